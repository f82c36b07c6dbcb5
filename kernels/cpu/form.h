/* Where the parts of a block lie (weight.h has the picture), read sixteen rows at a time. `form` is a
 * constant wherever these are called, so that each form becomes code of its own.
 *
 * Included by path_*.c and integer_*.c only. */
#ifndef PD_FORM_H
#define PD_FORM_H

#include "kernels/cpu/packed.h"
#include "kernels/cpu/weight.h"

/* Blocks unpacked to f32:  X32M  f32 d[32], m[32]   X32  f32 d[32]   X16  f32 d[2][32],  then the
 * columns. */
enum { FORM_X32M = PD_FORM_COUNT, FORM_X32, FORM_X16 };

INLINE size_t form_bytes(int form)
{
    return form < PD_FORM_COUNT ? pd_form_bytes((enum pd_form)form)
                                : (size_t)(form == FORM_X32 ? 4 : 8) * PANEL + 4 * PANEL * BLOCK;
}

INLINE int form_plain(int form)
{
    return form == PD_FORM_F16 || form == PD_FORM_BF16 || form == PD_FORM_F32;
}

INLINE int form_nibbles(int form)
{
    return form == PD_FORM_N4 || form == PD_FORM_N4F;
}

INLINE int form_minimum(int form)
{
    return form_nibbles(form) || form == FORM_X32M;
}

/* Scales per row and block. */
INLINE int form_scales(int form)
{
    return form == PD_FORM_I8F || form == FORM_X16 ? 2 : 1;
}

/* Where the columns begin. */
INLINE const uint8_t *form_columns(int form, const uint8_t *block)
{
    switch (form) {
    case PD_FORM_N4:
    case FORM_X32:
        return block + 4 * PANEL;
    case PD_FORM_I8:
        return block + 2 * PANEL;
    case PD_FORM_N4F:
    case PD_FORM_I8F:
    case FORM_X32M:
    case FORM_X16:
        return block + 8 * PANEL;
    default:
        return block;
    }
}

/* Scale number `index` of tile h. */
INLINE lanes form_scale(int form, const uint8_t *block, int index, int h)
{
    int at = index * PANEL + h * LANES;

    if (form == PD_FORM_N4 || form == PD_FORM_I8)
        return lanes_load_f16((const uint16_t *)block + at);
    return lanes_load((const float *)block + at);
}

/* What the block's sum of x is multiplied with. Nibbles are unpacked as q - 8, which leaves less to
 * cancel, so m becomes m + 8 d. */
INLINE lanes form_offset(int form, const uint8_t *block, int h, lanes d)
{
    lanes m = form_scale(form, block, 1, h);

    return form == FORM_X32M ? m : lanes_fma(lanes_set(8), d, m);
}

/* Column k of tile h of a plain form; columns are `ws` numbers apart. */
INLINE lanes form_column(int form, const uint8_t *columns, ptrdiff_t ws, int k, int h)
{
    ptrdiff_t at = k * ws + h * LANES;

    switch (form) {
    case PD_FORM_F16:
        return lanes_load_f16((const uint16_t *)columns + at);
    case PD_FORM_BF16:
        return lanes_load_bf16((const uint16_t *)columns + at);
    default:
        return lanes_load((const float *)columns + at);
    }
}

/* The words of tile h for eight columns, k a multiple of 8: one of nibbles, or two of bytes, the first with
 * the even columns. */
INLINE void form_words(int form, const uint8_t *columns, int k, int h, words out[2])
{
    const uint32_t *at = (const uint32_t *)columns + h * LANES;

    if (form_nibbles(form)) {
        out[0] = words_load(at + k / 8 * PANEL);
        return;
    }
    out[0] = words_load(at + k / 4 * PANEL);
    out[1] = words_load(at + (k / 4 + 1) * PANEL);
}

/* Column j of those eight, as the integer less half of its range. */
INLINE lanes form_integer(int form, const words from[2], int j)
{
    return form_nibbles(form) ? words_nibble(from[0], j) : words_byte(from[j % 2], j / 2);
}

enum { AHEAD = 16384, NEAR = 5120 }; /* bytes */

/* Blocks that come some kilobytes later: memory that is read once, as one stream over many pages, is not
 * fetched early enough by the hardware alone. From memory into the second cache, which can wait for three times as
 * many lines as the first: that is worth a quarter of the speed of one token. From there into the first one, since
 * a core that computes does not look far enough ahead to hide even the second: worth a tenth. */
INLINE void fetch_ahead(const uint8_t *block, size_t bytes)
{
#pragma GCC unroll 64
    for (size_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch(block + AHEAD + i, 0, 2);
        __builtin_prefetch(block + NEAR + i, 0, 3);
    }
}

#endif
