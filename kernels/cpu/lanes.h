/* Sixteen floats at a time, in the instruction set that this translation unit is compiled for.
 *
 * One vocabulary, three spellings: one AVX-512 register, two AVX registers, four plain ones (any
 * machine). Kernels are written once, in this vocabulary, and compiled three times. Lanes never mix
 * except in lanes_sum and lanes_greatest, which reduce in one fixed tree, so the FMA spellings
 * compute the same bits; the plain one rounds twice where they round once.
 *
 * Included by path_*.c only. */
#ifndef PD_LANES_H
#define PD_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/dtype.h"

#define INLINE static inline __attribute__((always_inline))

enum { LANES = 16 };

#define MIDDLE 12582912.0f /* 1.5 * 2^23: of floats around it, the last bit counts ones */
enum { INVERSE_GUESS = 0x7ef311c3 };

/* ---- AVX-512 --------------------------------------------------------------------------------- */
#if defined(__AVX512F__)
#include <immintrin.h>

typedef __m512 lanes;
enum { TILES = 2, ROWS = 12 }; /* what fits in 32 registers: see multiply.h */

INLINE lanes lanes_set(float value)
{
    return _mm512_set1_ps(value);
}

INLINE lanes lanes_load(const float *from)
{
    return _mm512_loadu_ps(from);
}

INLINE lanes lanes_load_f16(const uint16_t *from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}

INLINE lanes lanes_load_bf16(const uint16_t *from)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));

    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

INLINE void lanes_store(float *to, lanes a)
{
    _mm512_storeu_ps(to, a);
}

INLINE void lanes_store_f16(uint16_t *to, lanes a)
{
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

#if defined(__AVX512BF16__)
/* 32 numbers rounded to bf16, to nearest, ties to even: those of `low`, then those of `high`. */
INLINE __m512i lanes_to_bf16(lanes low, lanes high)
{
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}
#endif

INLINE lanes lanes_add(lanes a, lanes b)
{
    return _mm512_add_ps(a, b);
}

INLINE lanes lanes_sub(lanes a, lanes b)
{
    return _mm512_sub_ps(a, b);
}

INLINE lanes lanes_mul(lanes a, lanes b)
{
    return _mm512_mul_ps(a, b);
}

INLINE lanes lanes_div(lanes a, lanes b)
{
    return _mm512_div_ps(a, b);
}

/* a b + c */
INLINE lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* The second where either is NaN. */
INLINE lanes lanes_max(lanes a, lanes b)
{
    return _mm512_max_ps(a, b);
}

INLINE lanes lanes_min(lanes a, lanes b)
{
    return _mm512_min_ps(a, b);
}

/* 2^n x for n in -126..128, given as MIDDLE + n; 2^128 is infinite. */
INLINE lanes lanes_scale(lanes x, lanes n)
{
    __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(n), 23);

    return _mm512_mul_ps(
        x, _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(0x3f800000))));
}

/* 1 / a within a twentieth, for a between 2^-125 and 2^125: a's exponent with the other sign, and a line for what its
 * fraction adds. */
INLINE lanes lanes_inverse_guess(lanes a)
{
    return _mm512_castsi512_ps(
        _mm512_sub_epi32(_mm512_set1_epi32(INVERSE_GUESS), _mm512_castps_si512(a)));
}

/* Where x < bottom: 0, elsewhere (NaN too) value. */
INLINE lanes lanes_zero_below(lanes x, lanes bottom, lanes value)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bottom, _CMP_NLT_UQ), value);
}

/* One bit per lane: a >= b. */
INLINE unsigned lanes_at_least(lanes a, lanes b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}

INLINE unsigned lanes_is_nan(lanes a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}

INLINE void lanes_transpose(lanes a[LANES])
{
    __m512 t[LANES];

    for (int i = 0; i < LANES; i += 2) {
        t[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4) {
        __m512d lo0 = _mm512_castps_pd(t[i]), lo1 = _mm512_castps_pd(t[i + 2]);
        __m512d hi0 = _mm512_castps_pd(t[i + 1]), hi1 = _mm512_castps_pd(t[i + 3]);

        a[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo0, lo1));
        a[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo0, lo1));
        a[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(hi0, hi1));
        a[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(hi0, hi1));
    }
    for (int i = 0; i < 4;
         i++) { /* a[4 g + i] holds columns i, i+4, i+8, i+12 of rows 4 g .. 4 g + 3 */
        t[i] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        a[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        a[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        a[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* TURNED 16-bit numbers of eight rows: number 8 i + j of all of them goes to out + 8 i + TURNED_STEP j. */
enum { TURNED = 32, TURNED_STEP = 32 };

INLINE void turn_eight(const uint8_t *const rows[8], size_t offset, uint16_t *out)
{
    __m512i a[8], t[8];

#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        a[i] = _mm512_loadu_si512(rows[i] + offset);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm512_unpacklo_epi16(a[i], a[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi16(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        a[i] = _mm512_unpacklo_epi32(t[i], t[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi32(t[i], t[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi32(t[i + 1], t[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi32(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_si512(out + 64 * i, _mm512_unpacklo_epi64(a[i], a[i + 4]));
        _mm512_storeu_si512(out + 64 * i + 32, _mm512_unpackhi_epi64(a[i], a[i + 4]));
    }
}

/* Lanes 0-7 and 8-15. */
INLINE __m256i join_halves(const uint16_t *low, const uint16_t *high)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)low)),
                                   _mm_loadu_si128((const __m128i *)high), 1);
}

INLINE lanes lanes_load_two_f16(const uint16_t *low, const uint16_t *high)
{
    return _mm512_cvtph_ps(join_halves(low, high));
}

INLINE lanes lanes_load_two_bf16(const uint16_t *low, const uint16_t *high)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(join_halves(low, high)), 16));
}

INLINE void lanes_halves(lanes a, __m256 *low, __m256 *high)
{
    *low = _mm512_castps512_ps256(a);
    *high = _mm512_extractf32x8_ps(a, 1);
}

/* ---- AVX2 and FMA ---------------------------------------------------------------------------- */
#elif defined(__AVX2__)
#include <immintrin.h>

typedef struct {
    __m256 low, high;
} lanes;
enum { TILES = 1, ROWS = 6 };

#define BOTH(expression_low, expression_high)                                                      \
    (lanes)                                                                                        \
    {                                                                                              \
        expression_low, expression_high                                                            \
    }

INLINE lanes lanes_set(float value)
{
    __m256 all = _mm256_set1_ps(value);

    return BOTH(all, all);
}

INLINE lanes lanes_load(const float *from)
{
    return BOTH(_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8));
}

INLINE lanes lanes_load_f16(const uint16_t *from)
{
    return BOTH(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + 8))));
}

INLINE __m256 bf16_half(const uint16_t *from)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));

    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

INLINE lanes lanes_load_bf16(const uint16_t *from)
{
    return BOTH(bf16_half(from), bf16_half(from + 8));
}

INLINE void lanes_store(float *to, lanes a)
{
    _mm256_storeu_ps(to, a.low);
    _mm256_storeu_ps(to + 8, a.high);
}

INLINE void lanes_store_f16(uint16_t *to, lanes a)
{
    _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(to + 8), _mm256_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT));
}

INLINE lanes lanes_add(lanes a, lanes b)
{
    return BOTH(_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high));
}

INLINE lanes lanes_sub(lanes a, lanes b)
{
    return BOTH(_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high));
}

INLINE lanes lanes_mul(lanes a, lanes b)
{
    return BOTH(_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high));
}

INLINE lanes lanes_div(lanes a, lanes b)
{
    return BOTH(_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high));
}

INLINE lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return BOTH(_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high));
}

INLINE lanes lanes_max(lanes a, lanes b)
{
    return BOTH(_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high));
}

INLINE lanes lanes_min(lanes a, lanes b)
{
    return BOTH(_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high));
}

INLINE __m256 scale_half(__m256 x, __m256 n)
{
    __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(n), 23);

    return _mm256_mul_ps(
        x, _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(0x3f800000))));
}

INLINE lanes lanes_scale(lanes x, lanes n)
{
    return BOTH(scale_half(x.low, n.low), scale_half(x.high, n.high));
}

INLINE __m256 inverse_guess_half(__m256 a)
{
    return _mm256_castsi256_ps(
        _mm256_sub_epi32(_mm256_set1_epi32(INVERSE_GUESS), _mm256_castps_si256(a)));
}

INLINE lanes lanes_inverse_guess(lanes a)
{
    return BOTH(inverse_guess_half(a.low), inverse_guess_half(a.high));
}

INLINE lanes lanes_zero_below(lanes x, lanes bottom, lanes value)
{
    return BOTH(_mm256_and_ps(_mm256_cmp_ps(x.low, bottom.low, _CMP_NLT_UQ), value.low),
                _mm256_and_ps(_mm256_cmp_ps(x.high, bottom.high, _CMP_NLT_UQ), value.high));
}

INLINE unsigned lanes_at_least(lanes a, lanes b)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_GE_OQ)) |
           (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_GE_OQ)) << 8;
}

INLINE unsigned lanes_is_nan(lanes a)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.low, a.low, _CMP_UNORD_Q)) |
           (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.high, a.high, _CMP_UNORD_Q)) << 8;
}

/* Eight rows of eight. */
INLINE void transpose_half(__m256 a[8])
{
    __m256 t[8];

    for (int i = 0; i < 8; i += 4) {
        __m256 lo0 = _mm256_unpacklo_ps(a[i], a[i + 1]), hi0 = _mm256_unpackhi_ps(a[i], a[i + 1]);
        __m256 lo1 = _mm256_unpacklo_ps(a[i + 2], a[i + 3]);
        __m256 hi1 = _mm256_unpackhi_ps(a[i + 2], a[i + 3]);

        t[i] = _mm256_shuffle_ps(lo0, lo1, 0x44);
        t[i + 1] = _mm256_shuffle_ps(lo0, lo1, 0xee);
        t[i + 2] = _mm256_shuffle_ps(hi0, hi1, 0x44);
        t[i + 3] = _mm256_shuffle_ps(hi0, hi1, 0xee);
    }
    for (int i = 0; i < 4; i++) {
        a[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
        a[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
}

INLINE void lanes_transpose(lanes a[LANES])
{
    __m256 quarter[4][8];

    for (int i = 0; i < 8; i++) {
        quarter[0][i] = a[i].low;
        quarter[1][i] = a[i + 8].low;
        quarter[2][i] = a[i].high;
        quarter[3][i] = a[i + 8].high;
    }
    for (int q = 0; q < 4; q++)
        transpose_half(quarter[q]);
    for (int i = 0; i < 8; i++) {
        a[i] = BOTH(quarter[0][i], quarter[1][i]);
        a[i + 8] = BOTH(quarter[2][i], quarter[3][i]);
    }
}

enum { TURNED = 8, TURNED_STEP = 8 };

INLINE void turn_eight(const uint8_t *const rows[8], size_t offset, uint16_t *out)
{
    __m128i a[8], t[8], *to = (__m128i *)out;

    for (int i = 0; i < 8; i++)
        a[i] = _mm_loadu_si128((const __m128i *)(rows[i] + offset));
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm_unpacklo_epi16(a[i], a[i + 1]);
        t[i + 1] = _mm_unpackhi_epi16(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        a[i] = _mm_unpacklo_epi32(t[i], t[i + 2]);
        a[i + 1] = _mm_unpackhi_epi32(t[i], t[i + 2]);
        a[i + 2] = _mm_unpacklo_epi32(t[i + 1], t[i + 3]);
        a[i + 3] = _mm_unpackhi_epi32(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        _mm_storeu_si128(to + 2 * i, _mm_unpacklo_epi64(a[i], a[i + 4]));
        _mm_storeu_si128(to + 2 * i + 1, _mm_unpackhi_epi64(a[i], a[i + 4]));
    }
}

INLINE lanes lanes_load_two_f16(const uint16_t *low, const uint16_t *high)
{
    return BOTH(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)low)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)high)));
}

INLINE lanes lanes_load_two_bf16(const uint16_t *low, const uint16_t *high)
{
    return BOTH(bf16_half(low), bf16_half(high));
}

INLINE void lanes_halves(lanes a, __m256 *low, __m256 *high)
{
    *low = a.low;
    *high = a.high;
}

/* ---- any machine ----------------------------------------------------------------------------- */
#else

typedef float quad __attribute__((vector_size(16)));
typedef int32_t quad_int __attribute__((vector_size(16)));
typedef uint32_t quad_bits __attribute__((vector_size(16)));
typedef struct {
    quad q[4];
} lanes;
enum { TILES = 1, ROWS = 3 };

#define EACH_QUAD(expression)                                                                      \
    do {                                                                                           \
        for (int i = 0; i < 4; i++)                                                                \
            result.q[i] = expression;                                                              \
    } while (0)

INLINE lanes lanes_set(float value)
{
    lanes result;

    EACH_QUAD(((quad){value, value, value, value}));
    return result;
}

INLINE lanes lanes_load(const float *from)
{
    lanes result;

    memcpy(&result, from, sizeof(result));
    return result;
}

INLINE lanes lanes_load_f16(const uint16_t *from)
{
    float values[LANES];

    for (int i = 0; i < LANES; i++)
        values[i] = pd_float_of_f16(from[i]);
    return lanes_load(values);
}

INLINE lanes lanes_load_bf16(const uint16_t *from)
{
    float values[LANES];

    for (int i = 0; i < LANES; i++)
        values[i] = pd_float_of_bf16(from[i]);
    return lanes_load(values);
}

INLINE void lanes_store(float *to, lanes a)
{
    memcpy(to, &a, sizeof(a));
}

INLINE void lanes_store_f16(uint16_t *to, lanes a)
{
    for (int i = 0; i < LANES; i++)
        to[i] = pd_f16_of_float(a.q[i / 4][i % 4]);
}

INLINE lanes lanes_add(lanes a, lanes b)
{
    lanes result;

    EACH_QUAD(a.q[i] + b.q[i]);
    return result;
}

INLINE lanes lanes_sub(lanes a, lanes b)
{
    lanes result;

    EACH_QUAD(a.q[i] - b.q[i]);
    return result;
}

INLINE lanes lanes_mul(lanes a, lanes b)
{
    lanes result;

    EACH_QUAD(a.q[i] * b.q[i]);
    return result;
}

INLINE lanes lanes_div(lanes a, lanes b)
{
    lanes result;

    EACH_QUAD(a.q[i] / b.q[i]);
    return result;
}

INLINE lanes lanes_fma(lanes a, lanes b, lanes c)
{
    lanes result;

    EACH_QUAD(a.q[i] * b.q[i] + c.q[i]);
    return result;
}

INLINE quad quad_select(quad_int mask, quad a, quad b)
{
    return (quad)(((quad_int)a & mask) | ((quad_int)b & ~mask));
}

INLINE lanes lanes_max(lanes a, lanes b)
{
    lanes result;

    EACH_QUAD(quad_select((quad_int)(a.q[i] > b.q[i]), a.q[i], b.q[i]));
    return result;
}

INLINE lanes lanes_min(lanes a, lanes b)
{
    lanes result;

    EACH_QUAD(quad_select((quad_int)(a.q[i] < b.q[i]), a.q[i], b.q[i]));
    return result;
}

INLINE lanes lanes_scale(lanes x, lanes n)
{
    lanes result;

    EACH_QUAD(x.q[i] * (quad)(((quad_bits)n.q[i] << 23) + 0x3f800000u));
    return result;
}

INLINE lanes lanes_inverse_guess(lanes a)
{
    lanes result;

    EACH_QUAD((quad)(INVERSE_GUESS - (quad_bits)a.q[i]));
    return result;
}

INLINE lanes lanes_zero_below(lanes x, lanes bottom, lanes value)
{
    lanes result;

    EACH_QUAD((quad)((quad_int)value.q[i] & ~(quad_int)(x.q[i] < bottom.q[i])));
    return result;
}

INLINE unsigned lanes_at_least(lanes a, lanes b)
{
    unsigned bits = 0;

    for (int i = 0; i < LANES; i++)
        bits |= (unsigned)(a.q[i / 4][i % 4] >= b.q[i / 4][i % 4]) << i;
    return bits;
}

INLINE unsigned lanes_is_nan(lanes a)
{
    unsigned bits = 0;

    for (int i = 0; i < LANES; i++)
        bits |= (unsigned)(a.q[i / 4][i % 4] != a.q[i / 4][i % 4]) << i;
    return bits;
}

INLINE void lanes_transpose(lanes a[LANES])
{
    float in[LANES][LANES], out[LANES][LANES];

    for (int i = 0; i < LANES; i++)
        lanes_store(in[i], a[i]);
    for (int i = 0; i < LANES; i++) {
        for (int j = 0; j < LANES; j++)
            out[i][j] = in[j][i];
    }
    for (int i = 0; i < LANES; i++)
        a[i] = lanes_load(out[i]);
}

enum { TURNED = 8, TURNED_STEP = 8 };

INLINE void turn_eight(const uint8_t *const rows[8], size_t offset, uint16_t *out)
{
    for (int i = 0; i < 8; i++) {
        uint16_t row[TURNED];

        memcpy(row, rows[i] + offset, sizeof(row));
        for (int k = 0; k < TURNED; k++)
            out[k * TURNED_STEP + i] = row[k];
    }
}

INLINE lanes lanes_load_two_f16(const uint16_t *low, const uint16_t *high)
{
    float values[LANES];

    for (int i = 0; i < LANES; i++)
        values[i] = pd_float_of_f16(i < 8 ? low[i] : high[i - 8]);
    return lanes_load(values);
}

INLINE lanes lanes_load_two_bf16(const uint16_t *low, const uint16_t *high)
{
    float values[LANES];

    for (int i = 0; i < LANES; i++)
        values[i] = pd_float_of_bf16(i < 8 ? low[i] : high[i - 8]);
    return lanes_load(values);
}

INLINE void lanes_halves(lanes a, float low[8], float high[8])
{
    memcpy(low, &a.q[0], 32);
    memcpy(high, &a.q[2], 32);
}
#endif

/* ---- the same for all ------------------------------------------------------------------------ */

/* Lane 0 + lane 8, then halves again: one fixed tree. So also of the greatest. */
#if defined(__AVX2__)

INLINE float lanes_sum(lanes a)
{
    __m256 low, high;
    __m128 four;

    lanes_halves(a, &low, &high);
    low = _mm256_add_ps(low, high);
    four = _mm_add_ps(_mm256_castps256_ps128(low), _mm256_extractf128_ps(low, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

INLINE float lanes_greatest(lanes a)
{
    __m256 low, high;
    __m128 four;

    lanes_halves(a, &low, &high);
    low = _mm256_max_ps(low, high);
    four = _mm_max_ps(_mm256_castps256_ps128(low), _mm256_extractf128_ps(low, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

#else

INLINE float lanes_sum(lanes a)
{
    float low[8], high[8];

    lanes_halves(a, low, high);
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++)
            low[i] += half == 8 ? high[i] : low[i + half];
    }
    return low[0];
}

INLINE float lanes_greatest(lanes a)
{
    float low[8], high[8];

    lanes_halves(a, low, high);
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) {
            float other = half == 8 ? high[i] : low[i + half];
            low[i] = low[i] > other ? low[i] : other;
        }
    }
    return low[0];
}

#endif

/* Lanes first .. last, whatever numbers these are; the others become `rest`. */
INLINE lanes lanes_within(lanes a, int first, int last, float rest)
{
    if (first <= 0 && last >= LANES - 1)
        return a;
#if defined(__AVX512F__)
    first = first < 0 ? 0 : first > LANES ? LANES : first;
    last = last < -1 ? -1 : last > LANES - 1 ? LANES - 1 : last;
    return _mm512_mask_mov_ps(lanes_set(rest),
                              (__mmask16)(((1u << (last + 1)) - 1) & ~((1u << first) - 1)), a);
#else
    float values[LANES];

    lanes_store(values, a);
    for (int i = 0; i < LANES; i++)
        values[i] = i < first || i > last ? rest : values[i];
    return lanes_load(values);
#endif
}

/* First n lanes; the rest is `rest` and not read. */
INLINE lanes lanes_load_part(const float *from, int n, float rest)
{
    float values[LANES];

    for (int i = 0; i < LANES; i++)
        values[i] = i < n ? from[i] : rest;
    return lanes_load(values);
}

INLINE void lanes_store_part(float *to, lanes a, int n)
{
    float values[LANES];

    lanes_store(values, a);
    for (int i = 0; i < n; i++)
        to[i] = values[i];
}

/* e^x within 2 units in the last place, for x in -87..89; NaN stays NaN. What is added to MIDDLE has no room for a
 * fraction: so x log2(e) becomes a whole number n, and stays there for its bits. Cody and Waite's reduction, then the
 * polynomial with the least relative error between -log(2) / 2 and log(2) / 2, its constant and x exact. */
INLINE lanes lanes_exp_within(lanes x)
{
    lanes n = lanes_fma(x, lanes_set(1.44269504f), lanes_set(MIDDLE));
    lanes whole = lanes_sub(n, lanes_set(MIDDLE));
    lanes r = lanes_fma(whole, lanes_set(-0.693359375f), x);
    lanes p = lanes_set(1.3814532691e-3f);

    r = lanes_fma(whole, lanes_set(2.12194440e-4f), r);
    p = lanes_fma(p, r, lanes_set(8.3687450669e-3f));
    p = lanes_fma(p, r, lanes_set(4.1668390943e-2f));
    p = lanes_fma(p, r, lanes_set(1.6666520398e-1f));
    p = lanes_fma(p, r, lanes_set(4.9999993431e-1f));
    p = lanes_fma(p, r, lanes_set(1));
    p = lanes_fma(p, r, lanes_set(1));
    return lanes_scale(p, n);
}

/* The same for all x: 0 below -87, infinite from 88.4 on. */
INLINE lanes lanes_exp(lanes x)
{
    return lanes_zero_below(x, lanes_set(-87), lanes_exp_within(lanes_min(lanes_set(89), x)));
}

/* 1 / a within 2 units in the last place, for a between 2^-125 and 2^125. Dividing takes a processor's only divider
 * sixteen cycles; this is six operations. */
INLINE lanes lanes_inverse(lanes a)
{
    lanes one = lanes_set(1), guess = lanes_inverse_guess(a), minus = lanes_sub(lanes_set(0), a);
    lanes error = lanes_fma(minus, guess, one);

    guess =
        lanes_fma(guess, lanes_fma(error, error, error), guess); /* its error to the third power */
    return lanes_fma(guess, lanes_fma(minus, guess, one), guess);
}

#endif
