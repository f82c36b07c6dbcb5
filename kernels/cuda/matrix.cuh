/* Reading weights: eight neighbouring values of a row, in whichever format the device keeps
 * them. */
#ifndef PD_CUDA_MATRIX_CUH
#define PD_CUDA_MATRIX_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/pd_simt.cuh"

PD_DEVICE void pd_unpack_f32(const struct pd_cuda_matrix &matrix, size_t at, float out[8])
{
    const float *from = (const float *)matrix.values + at;

    for (int half = 0; half < 2; half++) {
        union {
            struct pd_u32x4 words;
            float value[4];
        } four = {((const struct pd_u32x4 *)from)[half]};

        for (int i = 0; i < 4; i++)
            out[4 * half + i] = four.value[i];
    }
}

template <enum pd_cuda_format FORMAT>
PD_DEVICE void pd_unpack_half(const struct pd_cuda_matrix &matrix, size_t at, float out[8])
{
    struct pd_u32x4 words = *(const struct pd_u32x4 *)((const uint16_t *)matrix.values + at);

    for (int i = 0; i < 8; i++) {
        uint16_t bits = (uint16_t)(words.word[i / 2] >> (i % 2 * 16));

        out[i] = FORMAT == PD_CUDA_F16 ? pd_from_f16(bits) : pd_from_bf16(bits);
    }
}

PD_DEVICE void pd_unpack_w4(const struct pd_cuda_matrix &matrix, size_t at, float out[8])
{
    uint32_t quants = ((const uint32_t *)matrix.values)[at / 8], scale = matrix.scales[at / 32];
    float d = pd_from_f16((uint16_t)scale), m = pd_from_f16((uint16_t)(scale >> 16));

    for (int i = 0; i < 8; i++)
        out[i] = (float)(quants >> (4 * i) & 15) * d + m;
}

PD_DEVICE void pd_unpack_w8(const struct pd_cuda_matrix &matrix, size_t at, float out[8])
{
    const uint32_t *quants = (const uint32_t *)matrix.values + at / 4;
    uint32_t scale = matrix.scales[at / 32];
    float d = pd_from_f16((uint16_t)(at % 32 < 16 ? scale : scale >> 16));

    for (int i = 0; i < 8; i++)
        out[i] = (float)(int8_t)(quants[i / 4] >> (i % 4 * 8)) * d;
}

/* Columns col .. col + 7 of a row; col is a multiple of 8. */
template <enum pd_cuda_format FORMAT>
PD_DEVICE void pd_unpack8(const struct pd_cuda_matrix &matrix, int row, int col, float out[8])
{
    size_t at = (size_t)row * (size_t)matrix.cols + (size_t)col;

    if (FORMAT == PD_CUDA_F32)
        pd_unpack_f32(matrix, at, out);
    else if (FORMAT == PD_CUDA_W4)
        pd_unpack_w4(matrix, at, out);
    else if (FORMAT == PD_CUDA_W8)
        pd_unpack_w8(matrix, at, out);
    else
        pd_unpack_half<FORMAT>(matrix, at, out);
}

/* Runs `call`, an expression with FORMAT in it, for the format of a matrix; -1 for none that is
 * known. */
#define PD_BY_FORMAT(format, call)                                                                 \
    switch (format) {                                                                              \
    case PD_CUDA_F32: {                                                                            \
        constexpr enum pd_cuda_format FORMAT = PD_CUDA_F32;                                        \
        return call;                                                                               \
    }                                                                                              \
    case PD_CUDA_F16: {                                                                            \
        constexpr enum pd_cuda_format FORMAT = PD_CUDA_F16;                                        \
        return call;                                                                               \
    }                                                                                              \
    case PD_CUDA_BF16: {                                                                           \
        constexpr enum pd_cuda_format FORMAT = PD_CUDA_BF16;                                       \
        return call;                                                                               \
    }                                                                                              \
    case PD_CUDA_W4: {                                                                             \
        constexpr enum pd_cuda_format FORMAT = PD_CUDA_W4;                                         \
        return call;                                                                               \
    }                                                                                              \
    case PD_CUDA_W8: {                                                                             \
        constexpr enum pd_cuda_format FORMAT = PD_CUDA_W8;                                         \
        return call;                                                                               \
    }                                                                                              \
    }                                                                                              \
    return -1

#endif
