/* Products with x rounded to 12 bits. A block's sum is 16 times that of the high parts plus that of the low ones;
 * the rest is as integer.h says. Included by integer_*.c only. */
#ifndef PD_INT12_H
#define PD_INT12_H

#include "kernels/cpu/integer.h"
#include "kernels/cpu/round12.h"

/* Tokens at once: as many sums as hide an addition's latency, if there are registers for them. */
#if defined(__AVX512F__)
enum { TOGETHER = 4 };
#elif defined(__AVX2__)
enum { TOGETHER = 2 };
#else
enum { TOGETHER = 1 };
#endif

/* Where a tile of tokens finds its block of x. */
struct place {
    const struct pd_cpu_line *lines;
    const struct pd_cpu_scale *scales;
};

/* Scale s of the block, for n tokens. */
INLINE void add_products(int form, int n, const struct unpacked *weights, int s, struct place x,
                         float *acc)
{
    const int count = WORDS / form_scales(form), from = s * count;
    const int32_t *high[TOGETHER], *low[TOGETHER];
    words sum[TOGETHER][2];

#pragma GCC unroll 4
    for (int t = 0; t < n; t++) {
        high[t] = x.lines[t].high;
        low[t] = x.lines[t].low;
        sum[t][0] = sum[t][1] = words_set(offset(form, s, x.scales + t));
    }
    add_words(form, n, weights, high, from, count, sum);
#pragma GCC unroll 4
    for (int t = 0; t < n; t++) {
        sum[t][0] = words_times_16(sum[t][0]);
        sum[t][1] = words_times_16(sum[t][1]);
    }
    add_words(form, n, weights, low, from, count, sum);
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
    EACH_INTEGER_FORM(multiply, form, panel, first_block, blocks, x, first, tokens, acc)
}

/* Of these kernels, with one way or another to multiply. */
#define INT12_KERNELS(multiplied)                                                                  \
    {                                                                                              \
        .chunk = PD_CPU_CHUNK, .bytes = rounded12_bytes, .round = round_rows12,                    \
        .multiply = (multiplied)                                                                   \
    }

#endif
