/* Decoders of GGUF's block formats. The layouts and the order of the roundings are ggml's, so that
 * a value is the same to the bit; tests compare with vectors made by the `gguf` package.
 *
 *   Q4_0   d:f16                 16 bytes: column j low nibble, column j+16 high   (q-8) d
 *   Q4_1   d:f16 m:f16           same                                              q d + m
 *   Q5_0   d:f16 high:u32        same, fifth bits in `high`                        (q-16) d
 *   Q8_0   d:f16                 32 signed bytes                                   q d
 *   Q4_K   d:f16 dmin:f16, 8 x (6-bit scale s, 6-bit minimum n), 128 bytes         q ds - dmin n
 *   Q6_K   128 bytes low, 64 bytes high, 16 signed scales s, d:f16                 (q-32) ds */
#include <math.h>

#include "kernels/dtype.h"

static const struct {
    const char *name;
    int block, bytes;
    bool minimum;
} formats[PD_DTYPE_COUNT] = {
    [PD_F32] = {"F32", 1, 4, false},       [PD_F16] = {"F16", 1, 2, false},
    [PD_BF16] = {"BF16", 1, 2, false},     [PD_Q4_0] = {"Q4_0", 32, 18, false},
    [PD_Q4_1] = {"Q4_1", 32, 20, true},    [PD_Q5_0] = {"Q5_0", 32, 22, false},
    [PD_Q8_0] = {"Q8_0", 32, 34, false},   [PD_Q4_K] = {"Q4_K", 256, 144, true},
    [PD_Q6_K] = {"Q6_K", 256, 210, false},
};

static bool known(enum pd_dtype type)
{
    return (unsigned)type < PD_DTYPE_COUNT;
}

int pd_dtype_block(enum pd_dtype type)
{
    return known(type) ? formats[type].block : 0;
}

int pd_dtype_bytes(enum pd_dtype type)
{
    return known(type) ? formats[type].bytes : 0;
}

const char *pd_dtype_name(enum pd_dtype type)
{
    return known(type) ? formats[type].name : "?";
}

bool pd_dtype_quantized(enum pd_dtype type)
{
    return known(type) && formats[type].block > 1;
}

bool pd_dtype_has_minimum(enum pd_dtype type)
{
    return known(type) && formats[type].minimum;
}

size_t pd_dtype_apart_bytes(enum pd_dtype type, size_t values)
{
    bool nibbles = type == PD_Q4_0 || type == PD_Q4_1 || type == PD_Q4_K;

    if (pd_dtype_block(type) == 1)
        return values * (size_t)pd_dtype_bytes(type);
    return (nibbles ? values / 2 : values) + values / 32 * sizeof(uint32_t);
}

uint16_t pd_bf16_of_float(float value)
{
    uint32_t bits = pd_bits_of_float(value);

    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

uint16_t pd_f16_of_float(float value)
{
    uint32_t bits = pd_bits_of_float(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t rest;

    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* subnormal: let the float adder round to a multiple of 2^-24 */
        float shifted = pd_float_of_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (pd_bits_of_float(shifted) - 0x3f000000u));
    }
    rest = magnitude - (112u << 23);
    return (uint16_t)(sign | (rest + 0xfffu + (rest >> 13 & 1u)) >> 13);
}

static float f16_at(const uint8_t *bytes)
{
    return pd_float_of_f16((uint16_t)(bytes[0] | bytes[1] << 8));
}

static void decode_nibbles(const uint8_t *packed, int zero, int8_t *q)
{
    for (int j = 0; j < 16; j++) {
        q[j] = (int8_t)((packed[j] & 15) - zero);
        q[j + 16] = (int8_t)((packed[j] >> 4) - zero);
    }
}

static void decode_q5_0(const uint8_t *packed, int8_t *q)
{
    uint32_t high = (uint32_t)packed[0] | (uint32_t)packed[1] << 8 | (uint32_t)packed[2] << 16 |
                    (uint32_t)packed[3] << 24;

    decode_nibbles(packed + 4, 16, q);
    for (int j = 0; j < 32; j++)
        q[j] = (int8_t)(q[j] + (int8_t)((high >> j & 1u) << 4));
}

/* Scales and minimums of a Q4_K super-block are 6 bits each, eight of both in 12 bytes. */
static void q4_k_scale(const uint8_t *scales, int j, int *scale, int *minimum)
{
    if (j < 4) {
        *scale = scales[j] & 63;
        *minimum = scales[j + 4] & 63;
    } else {
        *scale = (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4;
        *minimum = scales[j + 4] >> 4 | (scales[j] >> 6) << 4;
    }
}

static void decode_q4_k(const uint8_t *super, int part, struct pd_block32 *block)
{
    const uint8_t *nibbles = super + 16 + part / 2 * 32;
    int scale, minimum;

    q4_k_scale(super + 4, part, &scale, &minimum);
    for (int j = 0; j < 32; j++)
        block->q[j] = (int8_t)(part & 1 ? nibbles[j] >> 4 : nibbles[j] & 15);
    block->d[0] = block->d[1] = f16_at(super) * (float)scale;
    block->m[0] = block->m[1] = -(f16_at(super + 2) * (float)minimum);
}

/* A super-block is two halves of 128 columns; a half has four runs of 32 that share 64 low bytes
 * (two runs per nibble position) and 32 high bytes (two bits per run). */
static void decode_q6_k(const uint8_t *super, int part, struct pd_block32 *block)
{
    int half = part / 4, run = part % 4;
    const uint8_t *low = super + half * 64 + run % 2 * 32;
    const uint8_t *high = super + 128 + half * 32;
    const int8_t *scales = (const int8_t *)super + 192 + part * 2;
    float d = f16_at(super + 208);

    for (int j = 0; j < 32; j++) {
        int nibble = run < 2 ? low[j] & 15 : low[j] >> 4;
        block->q[j] = (int8_t)((nibble | (high[j] >> 2 * run & 3) << 4) - 32);
    }
    block->d[0] = d * (float)scales[0];
    block->d[1] = d * (float)scales[1];
}

void pd_dtype_decode(enum pd_dtype type, const void *row, int index, struct pd_block32 *block)
{
    int per_block = formats[type].block / 32;
    const uint8_t *bytes =
        (const uint8_t *)row + (size_t)(index / per_block) * (size_t)formats[type].bytes;

    block->m[0] = block->m[1] = 0;
    switch (type) {
    case PD_Q4_1:
        decode_nibbles(bytes + 4, 0, block->q);
        block->m[0] = block->m[1] = f16_at(bytes + 2);
        break;
    case PD_Q4_0:
        decode_nibbles(bytes + 2, 8, block->q);
        break;
    case PD_Q5_0:
        decode_q5_0(bytes + 2, block->q);
        break;
    case PD_Q8_0:
        memcpy(block->q, bytes + 2, 32);
        break;
    case PD_Q4_K:
        decode_q4_k(bytes, index % per_block, block);
        return;
    case PD_Q6_K:
        decode_q6_k(bytes, index % per_block, block);
        return;
    default:
        memset(block, 0, sizeof(*block));
        return;
    }
    block->d[0] = block->d[1] = f16_at(bytes);
}

static void dequantize_run(enum pd_dtype type, const void *data, size_t first, float *out)
{
    struct pd_block32 block;
    size_t per_block = (size_t)formats[type].block / 32;
    const uint8_t *bytes = (const uint8_t *)data + first / per_block * (size_t)formats[type].bytes;

    pd_dtype_decode(type, bytes, (int)(first % per_block), &block);
    for (int j = 0; j < 32; j++) {
        out[j] = (float)block.q[j] * block.d[j / 16];
        if (formats[type].minimum)
            out[j] += block.m[j / 16];
    }
}

int pd_dequantize(enum pd_dtype type, const void *data, float *out, size_t count)
{
    const uint8_t *bytes = data;

    if (!known(type) || count % (size_t)formats[type].block != 0)
        return PD_KERNEL_INVALID;
    if (type == PD_F32) {
        memcpy(out, data, count * sizeof(float));
        return PD_KERNEL_OK;
    }
    if (pd_dtype_quantized(type)) {
        for (size_t run = 0; run < count / 32; run++)
            dequantize_run(type, data, run, out + run * 32);
        return PD_KERNEL_OK;
    }
    for (size_t i = 0; i < count; i++) {
        uint16_t bits = (uint16_t)(bytes[2 * i] | bytes[2 * i + 1] << 8);
        out[i] = type == PD_F16 ? pd_float_of_f16(bits) : pd_float_of_bf16(bits);
    }
    return PD_KERNEL_OK;
}

/* Adding 1.5 * 2^23 leaves no room for a fraction. */
static int16_t round_small(float value)
{
    return (int16_t)((value + 12582912.0f) - 12582912.0f);
}

float pd_quantize32(const float x[32], int most, int16_t q[32])
{
    uint32_t greatest = 0;
    float magnitude, inverse;

    for (int i = 0; i < 32; i++) {
        uint32_t bits = pd_bits_of_float(x[i]) & 0x7fffffffu;
        greatest = bits > greatest ? bits : greatest;
    }
    if (greatest < PD_QUANTIZE_LEAST || greatest >= PD_QUANTIZE_LIMIT) {
        memset(q, 0, 32 * sizeof(*q));
        return greatest < PD_QUANTIZE_LEAST ? 0 : NAN;
    }
    magnitude = pd_float_of_bits(greatest);
    inverse = (float)most / magnitude;
    for (int i = 0; i < 32; i++)
        q[i] = round_small(x[i] * inverse);
    return magnitude / (float)most;
}

bool pd_quantize_again(const float x[32], float d, const int16_t q[32], float rest[32])
{
    int squares = 0;

    for (int i = 0; i < 32; i++)
        squares += q[i] * q[i];
    if (squares == 0 || squares >= PD_QUANTIZE_ENOUGH)
        return false;
    for (int i = 0; i < 32; i++)
        rest[i] = x[i] - d * (float)q[i];
    return true;
}
