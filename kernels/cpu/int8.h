/* Products with x rounded to bytes. A block of weights meets the first lines of all tokens, then the second ones of
 * those tokens that have one: the sums of either are as integer.h says, and the same token's always come in
 * that order. Included by integer_*.c only. */
#ifndef PD_INT8_H
#define PD_INT8_H

#include "kernels/cpu/integer.h"
#include "kernels/cpu/round8.h"

/* Lines of a block: first or second ones. */
struct place8 {
    const struct pd_cpu_byte_line *lines;
    const struct pd_cpu_scale *scales;
    float *acc;
};

/* Scale s of the block, for n of its lines. */
INLINE void add_lines(int form, int n, const struct unpacked *weights, int s, struct place8 x,
                      const int *token)
{
    const int count = WORDS / form_scales(form), from = s * count;
    const int32_t *words_of_x[TOGETHER];
    words sum[TOGETHER][2];

#pragma GCC unroll 4
    for (int t = 0; t < n; t++) {
        words_of_x[t] = x.lines[token[t]].words;
        sum[t][0] = sum[t][1] = words_set(offset(form, s, x.scales + token[t]));
    }
    add_words(form, n, weights, words_of_x, from, count, sum);
#pragma GCC unroll 4
    for (int t = 0; t < n; t++) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++)
            add_sum(form, weights, s, h, sum[t][h], x.scales + token[t], x.acc + token[t] * PANEL);
    }
}

INLINE void multiply_lines(int form, int n, const struct unpacked *weights, struct place8 x,
                           const int *token)
{
#pragma GCC unroll 2
    for (int s = 0; s < form_scales(form); s++)
        add_lines(form, n, weights, s, x, token);
}

enum { HALF = (TOGETHER + 1) / 2 };

/* The lines of `count` tokens. */
INLINE void multiply_tokens(int form, const struct unpacked *weights, struct place8 x,
                            const int *token, int count)
{
    int i = 0;

    for (; i + TOGETHER <= count; i += TOGETHER)
        multiply_lines(form, TOGETHER, weights, x, token + i);
    for (; i + HALF <= count; i += HALF)
        multiply_lines(form, HALF, weights, x, token + i);
    for (; i < count; i++)
        multiply_lines(form, 1, weights, x, token + i);
}

/* Tokens that have a second line. */
INLINE int find_again(const uint8_t *again, int tokens, int *token)
{
    int count = 0;

    for (int t = 0; t < tokens; t += 8) {
        uint64_t eight;

        memcpy(&eight, again + t, sizeof(eight));
        if (tokens - t < 8)
            eight &= (UINT64_C(1) << 8 * (tokens - t)) - 1;
        for (; eight != 0; eight &= eight - 1)
            token[count++] = t + __builtin_ctzll(eight) / 8;
    }
    return count;
}

INLINE void multiply8(int form, const uint8_t *panel, int first_block, int blocks,
                      const struct pd_cpu_rounded *x, int first, int tokens, float *acc)
{
    const struct pd_cpu_bytes all = pd_cpu_bytes(x);
    int every[PD_CPU_CHUNK], again[PD_CPU_CHUNK];

    memset(acc, 0, sizeof(*acc) * (size_t)tokens * PANEL);
    for (int t = 0; t < tokens; t++)
        every[t] = t;
    panel += (size_t)first_block * form_bytes(form);
    for (int b = first_block; b < first_block + blocks; b++, panel += form_bytes(form)) {
        size_t at = pd_cpu_rounded_at(x, b, first);
        struct unpacked weights;

        fetch_ahead(panel, form_bytes(form));
        weights = unpack_block(form, panel);
        multiply_tokens(form, &weights, (struct place8){all.lines[0] + at, all.scales[0] + at, acc},
                        every, tokens);
        multiply_tokens(form, &weights, (struct place8){all.lines[1] + at, all.scales[1] + at, acc},
                        again, find_again(all.again + at, tokens, again));
    }
}

static void multiply_panel8(enum pd_form form, const uint8_t *panel, int first_block, int blocks,
                            const struct pd_cpu_rounded *x, int first, int tokens, float *acc)
{
    EACH_INTEGER_FORM(multiply8, form, panel, first_block, blocks, x, first, tokens, acc)
}

#define INT8_KERNELS                                                                               \
    {                                                                                              \
        .chunk = PD_CPU_CHUNK, .bytes = rounded8_bytes, .round = round_rows8,                      \
        .multiply = multiply_panel8                                                                \
    }

#endif
