/* Rounding x to 12 bits, as pd_quantize32 defines it and to the same bits. Included by int12.h only. */
#ifndef PD_ROUND12_H
#define PD_ROUND12_H

#include "kernels/cpu/round.h"

enum { OFFSET12 = -8 }; /* times 16, as the high parts are */

#if defined(__AVX2__)

INLINE void round12(const float *x, const struct pd_cpu_rounded *out, size_t at)
{
    struct pd_cpu_line *line = pd_cpu_lines(out) + at;
    __m256 part[4];
    __m256i q[4], pair[2], high[2], low[2];
    float d;

    for (int i = 0; i < 4; i++)
        part[i] = _mm256_loadu_ps(x + 8 * i);
    d = quantize(part, PD_QUANTIZE_INT12, q);
    pack_pairs(q, pair);
    for (int i = 0; i < 2; i++) {
        high[i] = _mm256_srai_epi16(_mm256_add_epi16(pair[i], _mm256_set1_epi16(8)), 4);
        low[i] = _mm256_sub_epi16(pair[i], _mm256_slli_epi16(high[i], 4));
    }
    put_words(high, line->high);
    put_words(low, line->low);
    put_scale_of(pair, d, OFFSET12, pd_cpu_scales(out) + at);
}

#else

INLINE void round12(const float *x, const struct pd_cpu_rounded *out, size_t at)
{
    struct pd_cpu_line *line = pd_cpu_lines(out) + at;
    int16_t q[BLOCK];
    float d = pd_quantize32(x, PD_QUANTIZE_INT12, q);

    for (int k = 0; k < BLOCK; k++) {
        int high = (q[k] + 8) >> 4;

        ((int8_t *)line->high)[place_in_words(k)] = (int8_t)high;
        ((int8_t *)line->low)[place_in_words(k)] = (int8_t)(q[k] - 16 * high);
    }
    put_scale_of(q, d, OFFSET12, pd_cpu_scales(out) + at);
}

#endif

/* What tiles read of tokens that are none, behind the last: numbers that take no longer than others. */
INLINE void round_nothing(const struct pd_cpu_rounded *out)
{
    struct pd_cpu_scale *behind = pd_cpu_scales(out) + (size_t)out->tokens * (size_t)out->blocks;

    for (int i = 0; i < PD_CPU_BEHIND; i++)
        put_scale(1, 0, 0, OFFSET12, behind + i);
}

static void round_rows12(const float *x, int cols, const struct pd_cpu_rounded *out, int part,
                         int parts)
{
    if (part == 0)
        round_nothing(out);
    round_part(round12, x, cols, out, part, parts);
}

static size_t rounded12_bytes(int tokens, int blocks)
{
    return ((size_t)tokens * (size_t)blocks + PD_CPU_BEHIND) *
           (sizeof(struct pd_cpu_line) + sizeof(struct pd_cpu_scale));
}

#endif
