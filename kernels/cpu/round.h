/* What rounding x to 8 bits and to 12 share. Included by round8.h and round12.h only. */
#ifndef PD_ROUND_H
#define PD_ROUND_H

#include "kernels/cpu/packed.h"
#include "kernels/cpu/path.h"

/* low, high: sums of q over columns 0-15 and 16-31; offset: what takes out the 128 that bytes of weights have
 * too much, for each of q. */
INLINE void put_scale(float d, int low, int high, int offset, struct pd_cpu_scale *scale)
{
    scale->d = d;
    scale->sum = d * (float)(low + high);
    scale->offset[0] = offset * low;
    scale->offset[1] = offset * high;
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

/* pd_quantize32 of x in four registers. */
INLINE float quantize(const __m256 x[4], int most, __m256i q[4])
{
    uint32_t greatest =
        greatest_word(_mm256_max_epu32(_mm256_max_epu32(magnitudes(x[0]), magnitudes(x[1])),
                                       _mm256_max_epu32(magnitudes(x[2]), magnitudes(x[3]))));
    float magnitude = pd_float_of_bits(greatest);
    __m256 inverse = _mm256_set1_ps((float)most / magnitude);

    if (greatest < PD_QUANTIZE_LEAST || greatest >= PD_QUANTIZE_LIMIT) {
        for (int i = 0; i < 4; i++)
            q[i] = _mm256_setzero_si256();
        return greatest < PD_QUANTIZE_LEAST ? 0 : NAN;
    }
    for (int i = 0; i < 4; i++)
        q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(x[i], inverse));
    return magnitude / (float)most;
}

/* As 16-bit integers: columns 0-7 and 16-23, 8-15 and 24-31, which is how bytes packed from them come out in
 * order. Packing works within halves: 0-3 16-19 4-7 20-23 becomes 0-7 16-23 when halves were exchanged. */
INLINE void pack_pairs(const __m256i q[4], __m256i pair[2])
{
    for (int i = 0; i < 2; i++)
        pair[i] = _mm256_packs_epi32(_mm256_permute2x128_si256(q[i], q[i + 2], 0x20),
                                     _mm256_permute2x128_si256(q[i], q[i + 2], 0x31));
}

/* Of such pairs, bytes in the order of a weight's words. */
INLINE void put_words(const __m256i pair[2], int32_t *line)
{
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));

    _mm256_storeu_si256((__m256i *)line,
                        _mm256_shuffle_epi8(_mm256_packs_epi16(pair[0], pair[1]), order));
}

/* The sum of each half's 32-bit integers, in its first one. */
INLINE __m256i sum_halves(__m256i a)
{
    a = _mm256_add_epi32(a, _mm256_shuffle_epi32(a, 0x4e));
    return _mm256_add_epi32(a, _mm256_shuffle_epi32(a, 0xb1));
}

INLINE void put_scale_of(const __m256i pair[2], float d, int offset, struct pd_cpu_scale *scale)
{
    __m256i sums =
        sum_halves(_mm256_madd_epi16(_mm256_add_epi16(pair[0], pair[1]), _mm256_set1_epi16(1)));

    put_scale(d, _mm256_cvtsi256_si32(sums), _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1)),
              offset, scale);
}

#else

/* Where column k lies in the bytes of eight words: even columns of each eight, then odd ones. */
INLINE int place_in_words(int k)
{
    return k / 8 * 8 + k % 2 * 4 + k % 8 / 2;
}

INLINE void put_scale_of(const int16_t q[BLOCK], float d, int offset, struct pd_cpu_scale *scale)
{
    int sums[2] = {0, 0};

    for (int k = 0; k < BLOCK; k++)
        sums[k / (BLOCK / 2)] += q[k];
    put_scale(d, sums[0], sums[1], offset, scale);
}

#endif

/* Rounds a block, whose place is `at` (pd_cpu_rounded_at). */
typedef void round_block(const float *x, const struct pd_cpu_rounded *out, size_t at);

/* Part `part` of `parts` of x: of a few tokens a block of all of them, then the next, as they lie. Quantised
 * weights have whole blocks of columns. */
INLINE void round_part(round_block *one, const float *x, int cols, const struct pd_cpu_rounded *out,
                       int part, int parts)
{
    enum { FEW = 8 }; /* divides a chunk */
    int64_t tokens = out->tokens;
    int end = (int)(tokens * (part + 1) / parts);

    for (int first = (int)(tokens * part / parts), next; first < end; first = next) {
        size_t at = pd_cpu_rounded_at(out, 0, first), stride = (size_t)pd_cpu_chunk(out, first);

        next = first / FEW * FEW + FEW < end ? first / FEW * FEW + FEW : end;
        for (int b = 0; b < out->blocks; b++, at += stride) {
            const float *from = x + (ptrdiff_t)first * cols + b * BLOCK;

            for (int t = 0; t < next - first; t++, from += cols)
                one(from, out, at + (size_t)t);
        }
    }
}

#endif
