/* Matrices on their way to a matrix unit: quantised weights and f32 activations as f16 or bf16.
 *
 * A thread turns eight columns. The floor is what is read plus two bytes a value. */

#include "kernels/cuda/matrix.cuh"

enum { THREADS = 128 };

/* The largest finite f16: what overflows stays a large number. */
PD_DEVICE float within_f16(float value)
{
    return value > 65504.0f ? 65504.0f : value < -65504.0f ? -65504.0f : value;
}

PD_BUDGET(to_half, 40, 0, 0);

template <enum pd_cuda_format FORMAT, enum pd_cuda_format HALF>
static PD_GLOBAL to_half(struct pd_cuda_matrix matrix, int first, uint16_t *out)
{
    const int col = 8 * (PD_BLOCK_Y * THREADS + PD_THREAD);
    uint16_t *to = out + (size_t)PD_BLOCK_X * (size_t)matrix.cols + col;
    float values[8];

    if (col >= matrix.cols)
        return;
    pd_unpack8<FORMAT>(matrix, first + PD_BLOCK_X, col, values);
    for (int i = 0; i < 8; i++)
        to[i] = HALF == PD_CUDA_F16 ? pd_to_f16(within_f16(values[i])) : pd_to_bf16(values[i]);
}

template <enum pd_cuda_format FORMAT>
static int launch(pd_stream stream, const struct pd_cuda_matrix &matrix, int first, int rows,
                  enum pd_cuda_format half, uint16_t *out)
{
    int across = (matrix.cols + 8 * THREADS - 1) / (8 * THREADS);

    if (half == PD_CUDA_F16)
        return PD_LAUNCH((to_half<FORMAT, PD_CUDA_F16>), rows, across, THREADS, stream, matrix,
                         first, out);
    return PD_LAUNCH((to_half<FORMAT, PD_CUDA_BF16>), rows, across, THREADS, stream, matrix, first,
                     out);
}

int pd_cuda_to_half(void *stream, const struct pd_cuda_matrix *matrix, int first, int rows,
                    enum pd_cuda_format half, uint16_t *out)
{
    if (first < 0 || rows < 0 || rows > matrix->rows - first || matrix->cols < 1 ||
        (half != PD_CUDA_F16 && half != PD_CUDA_BF16))
        return -1;
    if (rows == 0)
        return 0;
    PD_BY_FORMAT(matrix->format,
                 (launch<FORMAT>((pd_stream)stream, *matrix, first, rows, half, out)));
}
