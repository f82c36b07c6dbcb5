/* Number formats: what a block of each holds, and the conversions of single numbers.
 *
 * Every quantised format of GGUF is, per run of 32 columns, small integers with one or two affine
 * pairs: value = q * d + m. pd_block32 is that form. It loses nothing, so dequantising and
 * repacking for a backend start from the same decoder. */
#ifndef PD_DTYPE_H
#define PD_DTYPE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"

/* 32 columns of one row. Columns 0..15 use d[0], m[0]; columns 16..31 use d[1], m[1]. */
struct pd_block32 {
    int8_t q[32];
    float d[2], m[2]; /* m is 0 where the format has none */
};

bool pd_dtype_quantized(enum pd_dtype type);

/* Whether value = q * d + m of this format has an m. */
bool pd_dtype_has_minimum(enum pd_dtype type);

/* Run `index` of 32 columns of a row at `row`; quantised types only. */
void pd_dtype_decode(enum pd_dtype type, const void *row, int index, struct pd_block32 *block);

/* Rounds 32 numbers to q[i] * d with |q[i]| <= most, and returns d: what a product with quantised weights
 * takes of x (PD_PRECISION_INT8, PD_PRECISION_INT12). d is the greatest magnitude / most, q the quotient
 * rounded to nearest, ties to even. Where a number is infinite or NaN, d is NaN and q zero: so is the
 * product. Below 2^-100 all are zero, since the quotient would overflow. */
float pd_quantize32(const float x[32], int most, int16_t q[32]);

/* PD_PRECISION_INT8: whether what bytes leave of the 32 numbers, x - d q, is rounded to bytes once more and
 * added. It is where one number stands out and the others have few bits of q. Then, and only then, rest is
 * that difference. */
bool pd_quantize_again(const float x[32], float d, const int16_t q[32], float rest[32]);

/* Greatest q: of a byte, and what 16 a + b makes of two int8 with -8 <= b < 8. Bits of the least magnitude, and
 * of the first too great one, that are rounded. The least sum of squares of 32 bytes that are enough: as much
 * as if all were a quarter of the greatest. */
enum {
    PD_QUANTIZE_INT8 = 127,
    PD_QUANTIZE_INT12 = 2039,
    PD_QUANTIZE_ENOUGH = 1 << 15,
    PD_QUANTIZE_LEAST = 0x0d800000,
    PD_QUANTIZE_LIMIT = 0x7f800000,
};

/* What scales of quantised weights are multiplied with in PD_PRECISION_BF16, where a weight is the upper half
 * of the float: what that drops is half a unit on average, of a number between 1 and 2 in the unit's scale. */
#define PD_BF16_MORE (1 + 11 * 0x1p-12f)

static inline float pd_float_of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint32_t pd_bits_of_float(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float pd_float_of_bf16(uint16_t bits)
{
    return pd_float_of_bits((uint32_t)bits << 16);
}

/* Exact; subnormals, infinities and NaN included. */
static inline float pd_float_of_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1fu;
    uint32_t mantissa = half & 0x3ffu;
    float value;

    if (exponent == 31)
        return pd_float_of_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0)
        return pd_float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    value = (float)mantissa * 0x1p-24f;
    return sign ? -value : value;
}

/* Rounds to nearest, ties to even, as the hardware's conversions do. */
uint16_t pd_f16_of_float(float value);
uint16_t pd_bf16_of_float(float value);

#endif
