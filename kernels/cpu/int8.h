/* Products with x rounded to bytes. A block of weights meets the first lines of all tokens, then the second ones of
 * those tokens that have one: the sums of either are as integer.h says, and the same token's always come in
 * that order. Included by integer_*.c only. */
#ifndef PD_INT8_H
#define PD_INT8_H

#include "kernels/cpu/integer.h"
#include "kernels/cpu/round8.h"

enum { LINES = 6 }; /* at once, at most */

/* As many as have their sums in the registers that a block of weights leaves; a form with two scales has twice
 * as many sums. Where no registers are left, one. */
INLINE int lines_at_once(int form)
{
#if defined(__AVX512F__)
    return LINES / form_scales(form);
#else
    (void)form;
    return 1;
#endif
}

/* Fewer than LINES by a function that has their number for a constant. */
#define EACH_REST(multiply, form, count, ...)                                                      \
    switch (count) {                                                                               \
    case 5:                                                                                        \
        multiply(form, 5, __VA_ARGS__);                                                            \
        break;                                                                                     \
    case 4:                                                                                        \
        multiply(form, 4, __VA_ARGS__);                                                            \
        break;                                                                                     \
    case 3:                                                                                        \
        multiply(form, 3, __VA_ARGS__);                                                            \
        break;                                                                                     \
    case 2:                                                                                        \
        multiply(form, 2, __VA_ARGS__);                                                            \
        break;                                                                                     \
    case 1:                                                                                        \
        multiply(form, 1, __VA_ARGS__);                                                            \
    }

/* Lines of a block, first or second ones, from a token on. */
struct place8 {
    const struct pd_cpu_byte_line *lines;
    const struct pd_cpu_scale *scales;
    float *acc;
};

INLINE struct place8 place_behind(struct place8 x, int tokens)
{
    return (struct place8){x.lines + tokens, x.scales + tokens, x.acc + tokens * PANEL};
}

/* How far on a token is: so many bytes its scale, twice as many its line, eight times as many its sums. An address
 * can have these factors, so one register finds all three, and nothing is computed. */
enum { STEP = sizeof(struct pd_cpu_scale) };

_Static_assert(sizeof(struct pd_cpu_byte_line) == 2 * STEP && sizeof(float[PANEL]) == 8 * STEP,
               "addresses");

INLINE const int32_t *words_at(struct place8 x, size_t step)
{
    return (const int32_t *)((const uint8_t *)x.lines + 2 * step);
}

INLINE const struct pd_cpu_scale *scale_at(struct place8 x, size_t step)
{
    return (const struct pd_cpu_scale *)((const uint8_t *)x.scales + step);
}

INLINE float *acc_at(struct place8 x, size_t step)
{
    return (float *)((uint8_t *)x.acc + 8 * step);
}

/* n lines, in the order of their tokens. n is a constant: loops up to it leave none behind. */
INLINE void multiply_lines(int form, int n, const struct unpacked *weights, struct place8 x,
                           const uint32_t steps[LINES])
{
    const int count = WORDS / form_scales(form);
    const int32_t *words_of_x[LINES];
    words sum[2][LINES][2]; /* [scale][line][tile] */

    for (int i = 0; i < n; i++)
        words_of_x[i] = words_at(x, steps[i]);
#pragma GCC unroll 2
    for (int s = 0; s < form_scales(form); s++) {
        for (int i = 0; i < n; i++)
            sum[s][i][0] = sum[s][i][1] = words_set(offset(form, s, scale_at(x, steps[i])));
        add_words(form, n, weights, words_of_x, s * count, count, sum[s]);
    }
    for (int i = 0; i < n; i++) {
#pragma GCC unroll 2
        for (int s = 0; s < form_scales(form); s++) {
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++)
                add_sum(form, weights, s, h, sum[s][i][h], scale_at(x, steps[i]),
                        acc_at(x, steps[i]));
        }
    }
}

/* Lines of n tokens that follow each other. */
INLINE void multiply_next(int form, int n, const struct unpacked *weights, struct place8 x)
{
    uint32_t steps[LINES];

    for (int i = 0; i < n; i++)
        steps[i] = (uint32_t)i * STEP;
    multiply_lines(form, n, weights, x, steps);
}

INLINE void multiply_every(int form, const struct unpacked *weights, struct place8 x, int tokens)
{
    const int most = lines_at_once(form);

    for (; tokens >= most; tokens -= most, x = place_behind(x, most))
        multiply_next(form, most, weights, x);
    EACH_REST(multiply_next, form, tokens, weights, x)
}

/* Lines of the first n tokens that were found, which then are found no more. */
INLINE void multiply_found(int form, int n, const struct unpacked *weights, struct place8 x,
                           uint64_t *found)
{
    uint32_t steps[LINES];

    for (int i = 0; i < n; i++, *found &= *found - 1)
        steps[i] = (uint32_t)__builtin_ctzll(*found) * STEP;
    multiply_lines(form, n, weights, x, steps);
}

INLINE void multiply_again(int form, const struct unpacked *weights, struct place8 x,
                           uint64_t found)
{
    const int most = lines_at_once(form);
    int count = __builtin_popcountll(found);

    for (; count >= most; count -= most)
        multiply_found(form, most, weights, x, &found);
    EACH_REST(multiply_found, form, count, weights, x, &found)
}

enum { FOUND = 64 }; /* tokens at a time */

/* Tokens that have a second line, a bit each. */
INLINE uint64_t find_again(const uint8_t *again, int tokens)
{
    const uint64_t gather = UINT64_C(0x0102040810204080); /* bits 8 i to 56 + i */
    uint64_t found = 0;

    for (int t = 0; t < tokens && t < FOUND; t += 8) {
        uint64_t eight;

        memcpy(&eight, again + t, sizeof(eight));
        if (tokens - t < 8)
            eight &= (UINT64_C(1) << 8 * (tokens - t)) - 1;
        found |= eight * gather >> 56 << t;
    }
    return found;
}

INLINE void multiply8(int form, const uint8_t *panel, int first_block, int blocks,
                      const struct pd_cpu_rounded *x, int first, int tokens, float *acc)
{
    const struct pd_cpu_bytes all = pd_cpu_bytes(x);

    memset(acc, 0, sizeof(*acc) * (size_t)tokens * PANEL);
    panel += (size_t)first_block * form_bytes(form);
    for (int b = first_block; b < first_block + blocks; b++, panel += form_bytes(form)) {
        size_t at = pd_cpu_rounded_at(x, b, first);
        struct place8 firsts = {all.lines[0] + at, all.scales[0] + at, acc},
                      seconds = {all.lines[1] + at, all.scales[1] + at, acc};
        struct unpacked weights;

        fetch_ahead(panel, form_bytes(form));
        weights = unpack_block(form, panel);
        multiply_every(form, &weights, firsts, tokens);
        for (int t = 0; t < tokens; t += FOUND)
            multiply_again(form, &weights, place_behind(seconds, t),
                           find_again(all.again + at + t, tokens - t));
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
