/* What products in integers share: a panel of quantised weights times x rounded to bytes, or to 12 bits in two
 * bytes.
 *
 *     block b of the panel         16 registers: 2 tiles of 16 rows, 32 columns as 8 words of 4
 *     block b of token t           8 words, each broadcast to all rows
 *
 * Each word is one dot product of four columns for 16 rows. A block's sum is exact, in whatever order. Then
 * acc[t] += d_row (d_t sum), and acc[t] += m_row (d_t sum of q): rounded here only, block after block from the
 * first to the last. So a token's result does not depend on who else is computed, and how many tokens are
 * done at once is a matter of speed alone. The weights are unpacked once a block and stay in registers for
 * all tokens; sums stay in L1.
 *
 * Included by int8.h and int12.h only. */
#ifndef PD_INTEGER_H
#define PD_INTEGER_H

#include "kernels/cpu/form.h"
#include "kernels/cpu/path.h"

enum { WORDS = BLOCK / 4 };

/* What a block holds for its two tiles. */
struct unpacked {
    words w[2][WORDS];
    lanes d[2][2], m[2]; /* [scale][tile]; of the tile */
};

INLINE struct unpacked unpack_block(int form, const uint8_t *block)
{
    const uint32_t *columns = (const uint32_t *)form_columns(form, block);
    struct unpacked out;

#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
#pragma GCC unroll 8
        for (int i = 0; i < WORDS; i++) {
            if (form_nibbles(form)) {
                words both = words_load(columns + i / 2 * PANEL + h * LANES);
                out.w[h][i] = i % 2 == 0 ? words_even(both) : words_odd(both);
            } else {
                out.w[h][i] = words_load(columns + i * PANEL + h * LANES);
            }
        }
        for (int s = 0; s < form_scales(form); s++)
            out.d[s][h] = form_scale(form, block, s, h);
        out.m[h] = form_minimum(form) ? form_scale(form, block, 1, h) : out.d[0][h];
    }
    return out;
}

INLINE words dot(int form, words sum, words w, words x)
{
    return form_nibbles(form) ? words_dot_small(sum, w, x) : words_dot(sum, w, x);
}

/* Words from .. from + count - 1 of n lines, added to sum. */
INLINE void add_words(int form, int n, const struct unpacked *weights,
                      const int32_t *const *words_of_x, int from, int count, words (*sum)[2])
{
#pragma GCC unroll 8
    for (int i = from; i < from + count; i++) {
        for (int t = 0; t < n; t++) {
            words four = words_set(words_of_x[t][i]);

            sum[t][0] = dot(form, sum[t][0], weights->w[0][i], four);
            sum[t][1] = dot(form, sum[t][1], weights->w[1][i], four);
        }
    }
}

/* The end of a block: what scale s of tile h makes of a token's sum. */
INLINE void add_sum(int form, const struct unpacked *weights, int s, int h, words sum,
                    const struct pd_cpu_scale *x, float *acc)
{
    lanes value = lanes_mul(words_floats(sum), lanes_set(x->d));

    value = lanes_fma(weights->d[s][h], value, lanes_load(acc + h * LANES));
    if (form_minimum(form))
        value = lanes_fma(weights->m[h], lanes_set(x->sum), value);
    lanes_store(acc + h * LANES, value);
}

INLINE int32_t offset(int form, int s, const struct pd_cpu_scale *x)
{
    if (form_nibbles(form))
        return 0;
    return form_scales(form) == 2 ? x->offset[s] : x->offset[0] + x->offset[1];
}

/* A panel by a function that has the form for a constant. */
#define EACH_INTEGER_FORM(multiply, form, ...)                                                     \
    switch (form) {                                                                                \
    case PD_FORM_N4:                                                                               \
        multiply(PD_FORM_N4, __VA_ARGS__);                                                         \
        break;                                                                                     \
    case PD_FORM_N4F:                                                                              \
        multiply(PD_FORM_N4F, __VA_ARGS__);                                                        \
        break;                                                                                     \
    case PD_FORM_I8:                                                                               \
        multiply(PD_FORM_I8, __VA_ARGS__);                                                         \
        break;                                                                                     \
    default:                                                                                       \
        multiply(PD_FORM_I8F, __VA_ARGS__);                                                        \
    }

#endif
