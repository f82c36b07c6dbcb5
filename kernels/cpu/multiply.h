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

#include "kernels/cpu/form.h"

/* Tokens whose accumulators stay in registers beside an unpacking. */
enum { DIRECT_ROWS = ROWS / 3 };

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

    if (!form_plain(form) && form < PD_FORM_COUNT) {
        for (int k = first; k < first + count; k += 8) {
            words packed[TILES][2];

            for (int i = 0; i < TILES; i++)
                form_words(form, columns, k, h + i, packed[i]);
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                for (int i = 0; i < TILES; i++)
                    w[i] = form_integer(form, packed[i], j);
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

/* acc[t][32] += panel * x for n tokens; `block` is the panel's first of (columns + 31) / 32. x of token t,
 * column k is x[t * xs + k * xk]; its sum over block b is sums[t * ss + b * sb]. ws is PANEL but for
 * plain numbers that lie elsewhere. `ahead`: the panel is part of a long stream from memory. All of form,
 * n, ahead, and the strides that are constants at a call make code of their own. */
INLINE void multiply(int form, int n, int ahead, const uint8_t *panel, ptrdiff_t ws, int columns,
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

            if (ahead && h == 0)
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
    for (int k = 0; k < BLOCK && !form_plain(form); k += 8) {
        for (int h = 0; h < 2; h++) {
            words packed[2];

            form_words(form, columns, k, h, packed);
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++)
                lanes_store(values + (k + j) * PANEL + h * LANES, form_integer(form, packed, j));
        }
    }
    for (int k = 0; k < BLOCK && form_plain(form); k++, values += PANEL) {
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
        multiply(form, n, 1, panel, PANEL, columns, x, stride, 1, sums, blocks, 1, acc);           \
    }
#define PACKED(form, n)                                                                            \
    static void packed_##form##_##n(const uint8_t *panel, int columns, const float *x,             \
                                    const float *sums, float *acc)                                 \
    {                                                                                              \
        multiply(form, n, 0, panel, PANEL, columns, x, 1, n, sums, 1, n, acc);                     \
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
