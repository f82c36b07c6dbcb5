/* The inner loop of products in integers: a panel of quantised weights times x rounded to 12 bits.
 *
 *     block b of the panel         16 registers: 2 tiles of 16 rows, 32 columns as 8 words of 4
 *     block b of token t           8 words of high parts, 8 of low parts, each broadcast to all rows
 *
 * Each word is one dot product of four columns for 16 rows. A block's sum is 16 times that of the high
 * parts plus that of the low ones: exact, in whatever order. Then acc[t] += d_row (d_t sum), and acc[t] +=
 * m_row (d_t sum of q): rounded here only, block after block from the first to the last. So a token's
 * result does not depend on who else is computed, and how many tokens are done at once is a matter of
 * speed alone. The weights are unpacked once a block and stay in registers for all tokens; sums stay in L1.
 *
 * Included by integer_*.c only. */
#ifndef PD_INTEGER_H
#define PD_INTEGER_H

#include "kernels/cpu/form.h"
#include "kernels/cpu/round.h"

enum { WORDS = BLOCK / 4 };

/* Tokens at once: as many sums as hide an addition's latency, if there are registers for them. */
#if defined(__AVX512F__)
enum { TOGETHER = 4 };
#elif defined(__AVX2__)
enum { TOGETHER = 2 };
#else
enum { TOGETHER = 1 };
#endif

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

/* Where a tile of tokens finds its block of x. */
struct place {
    const struct pd_cpu_line *lines;
    const struct pd_cpu_scale *scales;
};

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

/* Words from .. from + count - 1 of n tokens, added to sum. */
INLINE void add_words(int form, int n, const struct unpacked *weights, const int32_t *words_of_x,
                      int from, int count, words sum[TOGETHER][2])
{
    const int stride = sizeof(struct pd_cpu_line) / sizeof(int32_t);

#pragma GCC unroll 8
    for (int i = from; i < from + count; i++) {
#pragma GCC unroll 4
        for (int t = 0; t < n; t++) {
            words four = words_set(words_of_x[t * stride + i]);

            sum[t][0] = dot(form, sum[t][0], weights->w[0][i], four);
            sum[t][1] = dot(form, sum[t][1], weights->w[1][i], four);
        }
    }
}

INLINE int32_t offset(int form, int s, const struct pd_cpu_scale *x)
{
    if (form_nibbles(form))
        return 0;
    return form_scales(form) == 2 ? x->offset[s] : x->offset[0] + x->offset[1];
}

/* Scale s of the block, for n tokens. */
INLINE void add_products(int form, int n, const struct unpacked *weights, int s, struct place x,
                         float *acc)
{
    const int count = WORDS / form_scales(form), from = s * count;
    words sum[TOGETHER][2];

#pragma GCC unroll 4
    for (int t = 0; t < n; t++)
        sum[t][0] = sum[t][1] = words_set(offset(form, s, x.scales + t));
    add_words(form, n, weights, x.lines->high, from, count, sum);
#pragma GCC unroll 4
    for (int t = 0; t < n; t++) {
        sum[t][0] = words_times_16(sum[t][0]);
        sum[t][1] = words_times_16(sum[t][1]);
    }
    add_words(form, n, weights, x.lines->low, from, count, sum);
#pragma GCC unroll 4
    for (int t = 0; t < n; t++) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++)
            add_sum(form, weights, s, h, sum[t][h], x.scales + t, acc + t * PANEL);
    }
}

INLINE void multiply_block(int form, int n, const struct unpacked *weights, struct place x,
                           float *acc)
{
#pragma GCC unroll 2
    for (int s = 0; s < form_scales(form); s++)
        add_products(form, n, weights, s, x, acc);
}

INLINE struct place place_of(const struct pd_cpu_rounded *x, int block, int token)
{
    size_t at = pd_cpu_rounded_at(x, block, token);

    return (struct place){pd_cpu_lines(x) + at, pd_cpu_scales(x) + at};
}

INLINE void multiply(int form, const uint8_t *panel, int first_block, int blocks,
                     const struct pd_cpu_rounded *x, int first, int tokens, float *acc)
{
    memset(acc, 0, sizeof(*acc) * (size_t)tokens * PANEL);
    panel += (size_t)first_block * form_bytes(form);
    for (int b = first_block; b < first_block + blocks; b++, panel += form_bytes(form)) {
        struct unpacked weights;
        int t = 0;

        fetch_ahead(panel, form_bytes(form));
        weights = unpack_block(form, panel);
        for (; t + TOGETHER <= tokens; t += TOGETHER)
            multiply_block(form, TOGETHER, &weights, place_of(x, b, first + t), acc + t * PANEL);
        for (; t < tokens; t++)
            multiply_block(form, 1, &weights, place_of(x, b, first + t), acc + t * PANEL);
    }
}

static void multiply_panel(enum pd_form form, const uint8_t *panel, int first_block, int blocks,
                           const struct pd_cpu_rounded *x, int first, int tokens, float *acc)
{
    switch (form) {
    case PD_FORM_N4:
        multiply(PD_FORM_N4, panel, first_block, blocks, x, first, tokens, acc);
        break;
    case PD_FORM_N4F:
        multiply(PD_FORM_N4F, panel, first_block, blocks, x, first, tokens, acc);
        break;
    case PD_FORM_I8:
        multiply(PD_FORM_I8, panel, first_block, blocks, x, first, tokens, acc);
        break;
    default:
        multiply(PD_FORM_I8F, panel, first_block, blocks, x, first, tokens, acc);
    }
}

/* Of these kernels, with one way or another to multiply. */
#define INTEGER_KERNELS(multiplied)                                                                \
    {                                                                                              \
        .chunk = PD_CPU_CHUNK, .bytes = rounded_bytes, .round = round_rows,                        \
        .multiply = (multiplied)                                                                   \
    }

#endif
