/* Rounding x to 12 bits, as pd_quantize32 defines it and to the same bits. Included by integer.h only. */
#ifndef PD_ROUND_H
#define PD_ROUND_H

#include "kernels/cpu/packed.h"
#include "kernels/cpu/path.h"

INLINE void put_scale(float d, int low, int high, struct pd_cpu_scale *scale)
{
    scale->d = d;
    scale->sum = d * (float)(low + high);
    scale->offset[0] = -8 * low;
    scale->offset[1] = -8 * high;
}

INLINE void round_plainly(const float *x, struct pd_cpu_line *line, struct pd_cpu_scale *scale)
{
    int16_t q[BLOCK];
    int sums[2] = {0, 0};
    float d = pd_quantize32(x, q);

    for (int k = 0; k < BLOCK; k++) {
        int at = k / 8 * 8 + k % 2 * 4 + k % 8 / 2; /* even columns of each eight, then odd ones */
        int high = (q[k] + 8) >> 4;

        ((int8_t *)line->high)[at] = (int8_t)high;
        ((int8_t *)line->low)[at] = (int8_t)(q[k] - 16 * high);
        sums[k / 16] += q[k];
    }
    put_scale(d, sums[0], sums[1], scale);
}

#if defined(__AVX2__)

INLINE __m256i magnitudes(__m256 a)
{
    return _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7fffffff));
}

INLINE uint32_t greatest_word(__m256i a)
{
    __m128i half = _mm_max_epu32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));

    half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(half);
}

/* q in two registers of 16: columns 0-7 and 16-23, 8-15 and 24-31, which is how bytes packed from them
 * come out in order. */
INLINE void put_line(const __m256i q[2], float d, struct pd_cpu_line *line,
                     struct pd_cpu_scale *scale)
{
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    __m256i high[2], low[2];
    __m256i sums = _mm256_madd_epi16(_mm256_add_epi16(q[0], q[1]), _mm256_set1_epi16(1));

    for (int i = 0; i < 2; i++) {
        high[i] = _mm256_srai_epi16(_mm256_add_epi16(q[i], _mm256_set1_epi16(8)), 4);
        low[i] = _mm256_sub_epi16(q[i], _mm256_slli_epi16(high[i], 4));
    }
    _mm256_storeu_si256((__m256i *)line->high,
                        _mm256_shuffle_epi8(_mm256_packs_epi16(high[0], high[1]), order));
    _mm256_storeu_si256((__m256i *)line->low,
                        _mm256_shuffle_epi8(_mm256_packs_epi16(low[0], low[1]), order));
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xb1));
    put_scale(d, _mm256_cvtsi256_si32(sums), _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1)),
              scale);
}

INLINE void round_block(const float *x, struct pd_cpu_line *line, struct pd_cpu_scale *scale)
{
    __m256 part[4], inverse;
    __m256i q[4], pair[2], most;
    uint32_t greatest;
    float magnitude;

    for (int i = 0; i < 4; i++)
        part[i] = _mm256_loadu_ps(x + 8 * i);
    most = _mm256_max_epu32(_mm256_max_epu32(magnitudes(part[0]), magnitudes(part[1])),
                            _mm256_max_epu32(magnitudes(part[2]), magnitudes(part[3])));
    greatest = greatest_word(most);
    if (greatest < PD_QUANTIZE_LEAST || greatest >= PD_QUANTIZE_LIMIT) {
        round_plainly(x, line, scale);
        return;
    }
    magnitude = pd_float_of_bits(greatest);
    inverse = _mm256_set1_ps(PD_QUANTIZE_MOST / magnitude);
    for (int i = 0; i < 4; i++)
        q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(part[i], inverse));
    /* packing works within halves: 0-3 16-19 4-7 20-23 becomes 0-7 16-23 when halves were exchanged */
    for (int i = 0; i < 2; i++)
        pair[i] = _mm256_packs_epi32(_mm256_permute2x128_si256(q[i], q[i + 2], 0x20),
                                     _mm256_permute2x128_si256(q[i], q[i + 2], 0x31));
    put_line(pair, magnitude / PD_QUANTIZE_MOST, line, scale);
}

#else

INLINE void round_block(const float *x, struct pd_cpu_line *line, struct pd_cpu_scale *scale)
{
    round_plainly(x, line, scale);
}

#endif

/* What tiles read of tokens that are none, behind the last: numbers that take no longer than others. */
INLINE void round_nothing(const struct pd_cpu_rounded *out)
{
    struct pd_cpu_scale *behind = pd_cpu_scales(out) + (size_t)out->tokens * (size_t)out->blocks;

    for (int i = 0; i < PD_CPU_BEHIND; i++)
        put_scale(1, 0, 0, behind + i);
}

/* Tokens first .. end - 1 of one chunk: a block of all of them, then the next, as they lie. */
INLINE void round_few(const float *x, int cols, const struct pd_cpu_rounded *out, int first,
                      int end)
{
    size_t at = pd_cpu_rounded_at(out, 0, first), stride = (size_t)pd_cpu_chunk(out, first);

    for (int b = 0; b < out->blocks; b++, at += stride) {
        const float *from = x + (ptrdiff_t)first * cols + b * BLOCK;

        for (int t = 0; t < end - first; t++, from += cols)
            round_block(from, pd_cpu_lines(out) + at + t, pd_cpu_scales(out) + at + t);
    }
}

/* Quantised weights have whole blocks of columns. */
static void round_rows(const float *x, int cols, const struct pd_cpu_rounded *out, int part,
                       int parts)
{
    enum { FEW = 8 }; /* divides a chunk */
    int64_t tokens = out->tokens;
    int end = (int)(tokens * (part + 1) / parts);

    if (part == 0)
        round_nothing(out);
    for (int t = (int)(tokens * part / parts), next; t < end; t = next) {
        next = t / FEW * FEW + FEW < end ? t / FEW * FEW + FEW : end;
        round_few(x, cols, out, t, next);
    }
}

static size_t rounded_bytes(int tokens, int blocks)
{
    return ((size_t)tokens * (size_t)blocks + PD_CPU_BEHIND) *
           (sizeof(struct pd_cpu_line) + sizeof(struct pd_cpu_scale));
}

#endif
