/* The inner loop of everything: up to ROWS tokens times a panel of 32 rows of weights.
 *
 *                       columns k ──▶
 *     panel   lane 0   w w w w w w      A register holds one column of a tile (16 rows). Each step
 * takes lane 1   w w w w w w      the next column, broadcasts x[t][k] of each token, and does one
 *              ...        │             FMA for each (token, tile). Nothing is ever added across
 * lanes, lane 31     ▼             and columns go from first to last: the order of a sum does not
 *     acc[t] += w[.][k] * x[t][k]       depend on how many tokens there are or which thread does
 * it.
 *
 * Quantised weights keep their integers until the end of a block: part = sum of q x over 32 columns
 * from zero, then acc += d part, acc += m (sum of x), one FMA each. For few tokens the integers are
 * unpacked in registers; for many, a stretch of blocks is unpacked into L1 once (the X forms) and
 * used by all.
 *
 * The arithmetic is the same on both ways, which is what batch invariance rests on: each chooses by
 * speed alone.
 *
 * Included by path_*.c only. */
#ifndef PD_MULTIPLY_H
#define PD_MULTIPLY_H

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/weight.h"

/* Blocks unpacked to f32:  X32M  f32 d[32], m[32]   X32  f32 d[32]   X16  f32 d[2][32],  then the
 * columns. */
enum { FORM_X32M = PD_FORM_COUNT, FORM_X32, FORM_X16 };

/* Tokens whose accumulators stay in registers beside an unpacking. */
enum { DIRECT_ROWS = ROWS / 3 };

enum { AHEAD = 2048 }; /* bytes */

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

/* Column k of tile h, not of nibbles; columns are `ws` numbers apart. */
INLINE lanes form_column(int form, const uint8_t *columns, ptrdiff_t ws, int k, int h)
{
    ptrdiff_t at = k * ws + h * LANES;

    switch (form) {
    case PD_FORM_I8:
    case PD_FORM_I8F:
        return lanes_load_i8((const int8_t *)columns + at);
    case PD_FORM_F16:
        return lanes_load_f16((const uint16_t *)columns + at);
    case PD_FORM_BF16:
        return lanes_load_bf16((const uint16_t *)columns + at);
    default:
        return lanes_load((const float *)columns + at);
    }
}

/* part[t] += w * x[t * xs] for n tokens. */
INLINE void multiply_column(const lanes w[TILES], int n, const float *x, ptrdiff_t xs,
                            lanes part[ROWS][TILES])
{
#pragma GCC unroll 12
    for (int t = 0; t < n; t++) {
        lanes value = lanes_set(x[t * xs]);

#pragma GCC unroll 2
        for (int i = 0; i < TILES; i++)
            part[t][i] = lanes_fma(w[i], value, part[t][i]);
    }
}

/* Columns first .. first + count - 1 of a block, tiles h .. h + TILES - 1. */
INLINE void multiply_columns(int form, int n, const uint8_t *block, ptrdiff_t ws, int h, int first,
                             int count, const float *x, ptrdiff_t xs, ptrdiff_t xk,
                             lanes part[ROWS][TILES])
{
    const uint8_t *columns = form_columns(form, block);
    lanes w[TILES];

    if (form_nibbles(form)) {
        for (int k = first; k < first + count; k += 8) {
            nibbles packed[TILES];

            for (int i = 0; i < TILES; i++)
                packed[i] =
                    nibbles_load((const uint32_t *)columns + k / 8 * PANEL + (h + i) * LANES);
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                for (int i = 0; i < TILES; i++)
                    w[i] = nibbles_get(packed[i], j);
                multiply_column(w, n, x + (k + j) * xk, xs, part);
            }
        }
        return;
    }
#pragma GCC unroll 4
    for (int k = first; k < first + count; k++) {
        for (int i = 0; i < TILES; i++)
            w[i] = form_column(form, columns, ws, k, h + i);
        multiply_column(w, n, x + k * xk, xs, part);
    }
}

/* A block that comes a few kilobytes later: memory that is read once, as one stream over many pages, is
 * not fetched early enough by the hardware alone. */
INLINE void fetch_ahead(const uint8_t *block, size_t bytes)
{
#pragma GCC unroll 64
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(block + AHEAD + i);
}

/* acc[t][32] += panel * x for n tokens; `block` is the panel's first of (columns + 31) / 32. x of token t,
 * column k is x[t * xs + k * xk]; its sum over block b is sums[t * ss + b * sb]. ws is PANEL but for
 * plain numbers that lie elsewhere. All of form, n, and the strides that are constants at a call make code
 * of their own. */
INLINE void multiply(int form, int n, const uint8_t *panel, ptrdiff_t ws, int columns,
                     const float *x, ptrdiff_t xs, ptrdiff_t xk, const float *sums, ptrdiff_t ss,
                     ptrdiff_t sb, float *acc)
{
    const int resident = form_plain(form) || n <= DIRECT_ROWS;

    for (int h = 0; h < PANEL / LANES; h += TILES) {
        lanes sum[ROWS][TILES];

#pragma GCC unroll 12
        for (int t = 0; t < n; t++) {
            for (int i = 0; i < TILES; i++)
                sum[t][i] = resident ? lanes_load(acc + t * PANEL + (h + i) * LANES) : lanes_set(0);
        }
        for (int b = 0; b * BLOCK < columns; b++) {
            const uint8_t *block = panel + (size_t)b * form_bytes(form);
            const float *xb = x + b * BLOCK * xk;

            if (form < PD_FORM_COUNT && n <= DIRECT_ROWS && h == 0)
                fetch_ahead(block, form_bytes(form));
            if (form_plain(form)) {
                int count = columns - b * BLOCK < BLOCK ? columns - b * BLOCK : BLOCK;
                multiply_columns(form, n, block, ws, h, 0, count, xb, xs, xk, sum);
                continue;
            }
#pragma GCC unroll 2
            for (int s = 0; s < form_scales(form); s++) {
                const int run = BLOCK / form_scales(form);
                lanes part[ROWS][TILES], d[TILES], m[TILES];

#pragma GCC unroll 12
                for (int t = 0; t < n; t++) {
                    for (int i = 0; i < TILES; i++)
                        part[t][i] = lanes_set(0);
                }
                multiply_columns(form, n, block, ws, h, s * run, run, xb, xs, xk, part);
                for (int i = 0; i < TILES; i++) {
                    d[i] = form_scale(form, block, s, h + i);
                    m[i] = form_minimum(form) ? form_offset(form, block, h + i, d[i]) : d[i];
                }
#pragma GCC unroll 12
                for (int t = 0; t < n; t++) {
                    for (int i = 0; i < TILES; i++) {
                        float *at = acc + t * PANEL + (h + i) * LANES;
                        lanes value =
                            lanes_fma(d[i], part[t][i], resident ? sum[t][i] : lanes_load(at));

                        if (form_minimum(form))
                            value = lanes_fma(m[i], lanes_set(sums[t * ss + b * sb]), value);
                        if (resident)
                            sum[t][i] = value;
                        else
                            lanes_store(at, value);
                    }
                }
            }
        }
#pragma GCC unroll 12
        for (int t = 0; resident && t < n; t++) {
            for (int i = 0; i < TILES; i++)
                lanes_store(acc + t * PANEL + (h + i) * LANES, sum[t][i]);
        }
    }
}

/* ---- unpacking ------------------------------------------------------------------------------- */

INLINE int unpacked_form(int form)
{
    if (form_nibbles(form))
        return FORM_X32M;
    return form == PD_FORM_I8 ? FORM_X32 : form == PD_FORM_I8F ? FORM_X16 : PD_FORM_F32;
}

INLINE void unpack_block(int form, const uint8_t *block, uint8_t *out)
{
    const int to = unpacked_form(form);
    const uint8_t *columns = form_columns(form, block);
    float *values = (float *)(out + (form_columns(to, out) - out));

    fetch_ahead(block, form_bytes(form));
    for (int h = 0; h < 2; h++) {
        for (int s = 0; s < form_scales(form) && !form_plain(form); s++) {
            lanes d = form_scale(form, block, s, h);

            lanes_store((float *)out + s * PANEL + h * LANES, d);
            if (form_minimum(form))
                lanes_store((float *)out + PANEL + h * LANES, form_offset(form, block, h, d));
        }
    }
    if (form_nibbles(form)) {
        for (int group = 0; group < BLOCK / 8; group++) {
            for (int h = 0; h < 2; h++) {
                nibbles packed = nibbles_load((const uint32_t *)columns + h * LANES);

#pragma GCC unroll 8
                for (int j = 0; j < 8; j++)
                    lanes_store(values + j * PANEL + h * LANES, nibbles_get(packed, j));
            }
            columns += 4 * PANEL;
            values += 8 * PANEL;
        }
        return;
    }
    for (int k = 0; k < BLOCK; k++, values += PANEL) {
        for (int h = 0; h < 2; h++)
            lanes_store(values + h * LANES, form_column(form, columns, PANEL, k, h));
    }
}

/* `blocks` blocks of a panel, from `block` on, to `out`. */
static void unpack(enum pd_form form, const uint8_t *block, int blocks, uint8_t *out)
{
    for (int b = 0; b < blocks; b++) {
        switch (form) {
        case PD_FORM_N4:
            unpack_block(PD_FORM_N4, block, out);
            break;
        case PD_FORM_N4F:
            unpack_block(PD_FORM_N4F, block, out);
            break;
        case PD_FORM_I8:
            unpack_block(PD_FORM_I8, block, out);
            break;
        case PD_FORM_I8F:
            unpack_block(PD_FORM_I8F, block, out);
            break;
        case PD_FORM_F16:
            unpack_block(PD_FORM_F16, block, out);
            break;
        default:
            unpack_block(PD_FORM_BF16, block, out);
            break;
        }
        block += form_bytes(form);
        out += form_bytes(unpacked_form(form));
    }
}

/* ---- one function for each form and number of tokens ----------------------------------------- */

/* Rows of x lie `stride` apart, rows of sums `blocks`. */
typedef void direct_multiply(const uint8_t *panel, int columns, const float *x, ptrdiff_t stride,
                             const float *sums, ptrdiff_t blocks, float *acc);
/* x is packed [column][n], sums [block][n]. */
typedef void packed_multiply(const uint8_t *panel, int columns, const float *x, const float *sums,
                             float *acc);

#define DIRECT(form, n)                                                                            \
    static void direct_##form##_##n(const uint8_t *panel, int columns, const float *x,             \
                                    ptrdiff_t stride, const float *sums, ptrdiff_t blocks,         \
                                    float *acc)                                                    \
    {                                                                                              \
        multiply(form, n, panel, PANEL, columns, x, stride, 1, sums, blocks, 1, acc);              \
    }
#define PACKED(form, n)                                                                            \
    static void packed_##form##_##n(const uint8_t *panel, int columns, const float *x,             \
                                    const float *sums, float *acc)                                 \
    {                                                                                              \
        multiply(form, n, panel, PANEL, columns, x, 1, n, sums, 1, n, acc);                        \
    }
#define NAME_DIRECT(form, n) direct_##form##_##n,
#define NAME_PACKED(form, n) packed_##form##_##n,

#if defined(__AVX512F__)
#define UP_TO_DIRECT(DO, form) DO(form, 1) DO(form, 2) DO(form, 3) DO(form, 4)
#define UP_TO_ROWS(DO, form)                                                                       \
    DO(form, 1)                                                                                    \
    DO(form, 2)                                                                                    \
    DO(form, 3)                                                                                    \
    DO(form, 4)                                                                                    \
    DO(form, 5)                                                                                    \
    DO(form, 6) DO(form, 7) DO(form, 8) DO(form, 9) DO(form, 10) DO(form, 11) DO(form, 12)
#elif defined(__AVX2__)
#define UP_TO_DIRECT(DO, form) DO(form, 1) DO(form, 2)
#define UP_TO_ROWS(DO, form)   DO(form, 1) DO(form, 2) DO(form, 3) DO(form, 4) DO(form, 5) DO(form, 6)
#else
#define UP_TO_DIRECT(DO, form) DO(form, 1)
#define UP_TO_ROWS(DO, form)   DO(form, 1) DO(form, 2) DO(form, 3)
#endif

UP_TO_DIRECT(DIRECT, PD_FORM_N4)
UP_TO_DIRECT(DIRECT, PD_FORM_N4F)
UP_TO_DIRECT(DIRECT, PD_FORM_I8)
UP_TO_DIRECT(DIRECT, PD_FORM_I8F)
UP_TO_DIRECT(DIRECT, PD_FORM_F16)
UP_TO_DIRECT(DIRECT, PD_FORM_BF16)
UP_TO_DIRECT(DIRECT, PD_FORM_F32)
UP_TO_ROWS(PACKED, PD_FORM_F32)
UP_TO_ROWS(PACKED, FORM_X32M)
UP_TO_ROWS(PACKED, FORM_X32)
UP_TO_ROWS(PACKED, FORM_X16)

/* [form][n - 1] */
static direct_multiply *const direct[PD_FORM_COUNT][DIRECT_ROWS] = {
    [PD_FORM_N4] = {UP_TO_DIRECT(NAME_DIRECT, PD_FORM_N4)},
    [PD_FORM_N4F] = {UP_TO_DIRECT(NAME_DIRECT, PD_FORM_N4F)},
    [PD_FORM_I8] = {UP_TO_DIRECT(NAME_DIRECT, PD_FORM_I8)},
    [PD_FORM_I8F] = {UP_TO_DIRECT(NAME_DIRECT, PD_FORM_I8F)},
    [PD_FORM_F16] = {UP_TO_DIRECT(NAME_DIRECT, PD_FORM_F16)},
    [PD_FORM_BF16] = {UP_TO_DIRECT(NAME_DIRECT, PD_FORM_BF16)},
    [PD_FORM_F32] = {UP_TO_DIRECT(NAME_DIRECT, PD_FORM_F32)},
};
static packed_multiply *const packed[FORM_X16 + 1][ROWS] = {
    [PD_FORM_F32] = {UP_TO_ROWS(NAME_PACKED, PD_FORM_F32)},
    [FORM_X32M] = {UP_TO_ROWS(NAME_PACKED, FORM_X32M)},
    [FORM_X32] = {UP_TO_ROWS(NAME_PACKED, FORM_X32)},
    [FORM_X16] = {UP_TO_ROWS(NAME_PACKED, FORM_X16)},
};

#endif
