/* Rounding x to bytes, as pd_quantize32 and pd_quantize_again define it and to the same bits.
 *
 * A block of 32 columns is a line of bytes and its scale; where bytes are too few for it, a second line has,
 * with a scale of its own, what the first one left. Most blocks have one: so products cost little more than
 * half of what 16 bits would.
 *
 * Included by int8.h only. */
#ifndef PD_ROUND8_H
#define PD_ROUND8_H

#include "kernels/cpu/round.h"

enum { OFFSET8 = -128 };

#if defined(__AVX2__)

/* One line. Returns d. */
INLINE float round_line(const __m256 x[4], __m256i q[4], __m256i pair[2],
                        struct pd_cpu_byte_line *line, struct pd_cpu_scale *scale)
{
    float d = quantize(x, PD_QUANTIZE_INT8, q);

    pack_pairs(q, pair);
    put_words(pair, line->words);
    put_scale_of(pair, d, OFFSET8, scale);
    return d;
}

INLINE int sum_of_squares(const __m256i pair[2])
{
    __m256i sums = sum_halves(
        _mm256_add_epi32(_mm256_madd_epi16(pair[0], pair[0]), _mm256_madd_epi16(pair[1], pair[1])));

    return _mm256_cvtsi256_si32(sums) + _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1));
}

INLINE void round8(const float *x, const struct pd_cpu_rounded *out, size_t at)
{
    struct pd_cpu_bytes to = pd_cpu_bytes(out);
    __m256 part[4];
    __m256i q[4], pair[2];
    float d;
    int squares;

    for (int i = 0; i < 4; i++)
        part[i] = _mm256_loadu_ps(x + 8 * i);
    d = round_line(part, q, pair, to.lines[0] + at, to.scales[0] + at);
    squares = sum_of_squares(pair);
    to.again[at] = squares != 0 && squares < PD_QUANTIZE_ENOUGH;
    if (!to.again[at])
        return;
    for (int i = 0; i < 4; i++)
        part[i] =
            _mm256_sub_ps(part[i], _mm256_mul_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(q[i])));
    round_line(part, q, pair, to.lines[1] + at, to.scales[1] + at);
}

#else

INLINE void put_line(const int16_t q[BLOCK], float d, struct pd_cpu_byte_line *line,
                     struct pd_cpu_scale *scale)
{
    for (int k = 0; k < BLOCK; k++)
        ((int8_t *)line->words)[place_in_words(k)] = (int8_t)q[k];
    put_scale_of(q, d, OFFSET8, scale);
}

INLINE void round8(const float *x, const struct pd_cpu_rounded *out, size_t at)
{
    struct pd_cpu_bytes to = pd_cpu_bytes(out);
    int16_t q[BLOCK];
    float rest[BLOCK], d = pd_quantize32(x, PD_QUANTIZE_INT8, q);

    put_line(q, d, to.lines[0] + at, to.scales[0] + at);
    to.again[at] = pd_quantize_again(x, d, q, rest);
    if (!to.again[at])
        return;
    d = pd_quantize32(rest, PD_QUANTIZE_INT8, q);
    put_line(q, d, to.lines[1] + at, to.scales[1] + at);
}

#endif

static void round_rows8(const float *x, int cols, const struct pd_cpu_rounded *out, int part,
                        int parts)
{
    round_part(round8, x, cols, out, part, parts);
}

static size_t rounded8_bytes(int tokens, int blocks)
{
    size_t block = 2 * (sizeof(struct pd_cpu_byte_line) + sizeof(struct pd_cpu_scale)) + 1;

    return ((size_t)tokens * (size_t)blocks * block + PD_CPU_AGAIN_BEHIND + 63) / 64 * 64;
}

#endif
