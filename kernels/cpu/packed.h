/* Sixteen 32-bit words of packed integers, one word per row: eight nibbles or four bytes of neighbouring
 * columns, as weight.h lays them out. They leave as floats (a column at a time), or meet four int8 of x in
 * an integer dot product, which is exact and so the same however a machine does it.
 *
 * Spelled three times, as lanes.h is. Included by path_*.c and integer_*.c only. */
#ifndef PD_PACKED_H
#define PD_PACKED_H

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "kernels/cpu/lanes.h"

/* ---- AVX-512 --------------------------------------------------------------------------------- */
#if defined(__AVX512F__)

typedef __m512i words;

INLINE words words_load(const void *from)
{
    return _mm512_loadu_si512(from);
}

INLINE words words_set(int32_t value)
{
    return _mm512_set1_epi32(value);
}

INLINE lanes words_floats(words a)
{
    return _mm512_cvtepi32_ps(a);
}

INLINE words words_times_16(words a)
{
    return _mm512_slli_epi32(a, 4);
}

/* Nibble j of each word, minus 8. */
INLINE lanes words_nibble(words a, int j)
{
    const __m512 values = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);

    return _mm512_permutexvar_ps(j ? _mm512_srli_epi32(a, 4 * (unsigned)j) : a, values);
}

/* Byte j of each word, minus 128. */
INLINE lanes words_byte(words a, int j)
{
    words flipped = _mm512_xor_si512(a, _mm512_set1_epi32((int)0x80808080u));

    return _mm512_cvtepi32_ps(
        _mm512_srai_epi32(_mm512_slli_epi32(flipped, 24 - 8 * (unsigned)j), 24));
}

/* Nibbles 0, 2, 4, 6, or 1, 3, 5, 7, as bytes. */
INLINE words words_even(words a)
{
    return _mm512_and_si512(a, _mm512_set1_epi32(0x0f0f0f0f));
}

INLINE words words_odd(words a)
{
    return _mm512_and_si512(_mm512_srli_epi32(a, 4), _mm512_set1_epi32(0x0f0f0f0f));
}

/* sum + the dot product of four unsigned bytes below 16 with four signed ones. */
INLINE words words_dot_small(words sum, words a, words x)
{
#if defined(__AVX512VNNI__)
    return _mm512_dpbusd_epi32(sum, a, x);
#else
    words pairs = _mm512_maddubs_epi16(a, x);

    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#endif
}

/* The same for any unsigned bytes. */
INLINE words words_dot(words sum, words a, words x)
{
#if defined(__AVX512VNNI__)
    return _mm512_dpbusd_epi32(sum, a, x);
#else
    words high = _mm512_maddubs_epi16(words_odd(a), x); /* 255 * 127 * 2 would not fit */

    sum = words_dot_small(sum, words_even(a), x);
    return _mm512_add_epi32(sum, _mm512_madd_epi16(high, _mm512_set1_epi16(16)));
#endif
}

/* ---- AVX2 ------------------------------------------------------------------------------------ */
#elif defined(__AVX2__)

typedef struct {
    __m256i low, high;
} words;

#define BOTH_WORDS(expression_low, expression_high)                                                \
    (words)                                                                                        \
    {                                                                                              \
        expression_low, expression_high                                                            \
    }

INLINE words words_load(const void *from)
{
    return BOTH_WORDS(_mm256_loadu_si256(from), _mm256_loadu_si256((const __m256i *)from + 1));
}

INLINE words words_set(int32_t value)
{
    return BOTH_WORDS(_mm256_set1_epi32(value), _mm256_set1_epi32(value));
}

INLINE lanes words_floats(words a)
{
    return BOTH(_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high));
}

INLINE words words_times_16(words a)
{
    return BOTH_WORDS(_mm256_slli_epi32(a.low, 4), _mm256_slli_epi32(a.high, 4));
}

/* `bits` wide, the highest of them `top`, as a signed number: flipping the highest bit takes half of the
 * range away. */
INLINE __m256 field_half(__m256i a, int bits, int top, unsigned flip)
{
    __m256i flipped = _mm256_xor_si256(a, _mm256_set1_epi32((int)flip));

    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(flipped, 31 - top), 32 - bits));
}

INLINE lanes words_nibble(words a, int j)
{
    return BOTH(field_half(a.low, 4, 4 * j + 3, 0x88888888u),
                field_half(a.high, 4, 4 * j + 3, 0x88888888u));
}

INLINE lanes words_byte(words a, int j)
{
    return BOTH(field_half(a.low, 8, 8 * j + 7, 0x80808080u),
                field_half(a.high, 8, 8 * j + 7, 0x80808080u));
}

INLINE words words_even(words a)
{
    const __m256i mask = _mm256_set1_epi32(0x0f0f0f0f);

    return BOTH_WORDS(_mm256_and_si256(a.low, mask), _mm256_and_si256(a.high, mask));
}

INLINE words words_odd(words a)
{
    return words_even(BOTH_WORDS(_mm256_srli_epi32(a.low, 4), _mm256_srli_epi32(a.high, 4)));
}

INLINE __m256i dot_half(__m256i sum, __m256i a, __m256i x, int factor)
{
    __m256i pairs = _mm256_maddubs_epi16(a, x);

    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16((short)factor)));
}

INLINE words words_dot_small(words sum, words a, words x)
{
    return BOTH_WORDS(dot_half(sum.low, a.low, x.low, 1), dot_half(sum.high, a.high, x.high, 1));
}

INLINE words words_dot(words sum, words a, words x)
{
    words odd = words_odd(a); /* 255 * 127 * 2 would not fit into 16 bits */

    sum = words_dot_small(sum, words_even(a), x);
    return BOTH_WORDS(dot_half(sum.low, odd.low, x.low, 16),
                      dot_half(sum.high, odd.high, x.high, 16));
}

/* ---- any machine ----------------------------------------------------------------------------- */
#else

typedef struct {
    quad_int q[4];
} words;

INLINE words words_load(const void *from)
{
    words result;

    memcpy(&result, from, sizeof(result));
    return result;
}

INLINE words words_set(int32_t value)
{
    words result;

    EACH_QUAD(((quad_int){value, value, value, value}));
    return result;
}

INLINE lanes words_floats(words a)
{
    lanes result;

    EACH_QUAD(__builtin_convertvector(a.q[i], quad));
    return result;
}

INLINE words words_times_16(words a)
{
    words result;

    EACH_QUAD(a.q[i] * 16);
    return result;
}

INLINE lanes words_nibble(words a, int j)
{
    lanes result;

    EACH_QUAD(__builtin_convertvector(((a.q[i] >> 4 * j) & 15) - 8, quad));
    return result;
}

INLINE lanes words_byte(words a, int j)
{
    lanes result;

    EACH_QUAD(__builtin_convertvector(((a.q[i] >> 8 * j) & 255) - 128, quad));
    return result;
}

INLINE words words_even(words a)
{
    words result;

    EACH_QUAD(a.q[i] & 0x0f0f0f0f);
    return result;
}

INLINE words words_odd(words a)
{
    words result;

    EACH_QUAD((a.q[i] >> 4) & 0x0f0f0f0f);
    return result;
}

INLINE words words_dot(words sum, words a, words x)
{
    words result;

#if defined(__SSE2__)
    /* bytes 0 and 2, then 1 and 3 of each word, as 16-bit numbers */
    for (int i = 0; i < 4; i++) {
        __m128i w = (__m128i)a.q[i], v = (__m128i)x.q[i];
        __m128i low = _mm_madd_epi16(_mm_and_si128(w, _mm_set1_epi16(255)),
                                     _mm_srai_epi16(_mm_slli_epi16(v, 8), 8));
        __m128i high = _mm_madd_epi16(_mm_srli_epi16(w, 8), _mm_srai_epi16(v, 8));

        result.q[i] = sum.q[i] + (quad_int)_mm_add_epi32(low, high);
    }
#else
    for (int i = 0; i < 4; i++) {
        quad_int total = sum.q[i];

        for (int j = 0; j < 32; j += 8)
            total += ((a.q[i] >> j) & 255) * ((x.q[i] << (24 - j)) >> 24);
        result.q[i] = total;
    }
#endif
    return result;
}

INLINE words words_dot_small(words sum, words a, words x)
{
    return words_dot(sum, a, x);
}
#endif

#endif
