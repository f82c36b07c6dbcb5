/* Matrix times a few vectors: what a decode step of up to eight sequences is made of.
 *
 * One warp per row of the matrix: its lanes take eight columns each, 256 at a time, for every token
 * at once, so that a weight is read and unpacked once. The floor is the matrix's bytes over the
 * bandwidth; activations come out of the caches. Lanes add up by exclusive-or shuffles: the order
 * of a sum depends on the columns alone, not on how many tokens there are. */

#include "kernels/cuda/matrix.cuh"

enum { WARPS = 4, THREADS = WARPS * PD_WARP, STRIDE = 8 * PD_WARP };

template <enum pd_cuda_format FORMAT, int M>
static PD_GLOBAL matmul_small(struct pd_cuda_matrix matrix, const float *x, const float *bias,
                              int accumulate, int tokens, int stride, float *out)
{
    const int row = PD_BLOCK_X * WARPS + PD_THREAD / PD_WARP, lane = PD_THREAD % PD_WARP;
    float sum[M];

    if (row >= matrix.rows)
        return;
    for (int t = 0; t < M; t++)
        sum[t] = 0;
    for (int col = 8 * lane; col < matrix.cols; col += STRIDE) {
        float weight[8];

        pd_unpack8<FORMAT>(matrix, row, col, weight);
        for (int t = 0; t < M; t++) {
            /* Past the last token the last one is computed once more, and not stored. */
            const float *from = x + (size_t)(t < tokens ? t : tokens - 1) * (size_t)matrix.cols;

            for (int i = 0; i < 8; i++)
                sum[t] += weight[i] * from[col + i];
        }
    }
    for (int t = 0; t < M; t++) {
        float value = pd_warp_sum(sum[t]);
        float *to = out + (size_t)t * (size_t)stride + row;

        if (lane != 0 || t >= tokens)
            continue;
        if (bias != NULL)
            value += bias[row];
        *to = accumulate ? *to + value : value;
    }
}

template <enum pd_cuda_format FORMAT>
static int launch(pd_stream stream, const struct pd_cuda_matrix &matrix, const float *x,
                  const float *bias, int accumulate, int tokens, int stride, float *out)
{
    int blocks = (matrix.rows + WARPS - 1) / WARPS;

    if (tokens == 1)
        return PD_LAUNCH((matmul_small<FORMAT, 1>), blocks, 1, THREADS, stream, matrix, x, bias,
                         accumulate, tokens, stride, out);
    if (tokens == 2)
        return PD_LAUNCH((matmul_small<FORMAT, 2>), blocks, 1, THREADS, stream, matrix, x, bias,
                         accumulate, tokens, stride, out);
    if (tokens <= 4)
        return PD_LAUNCH((matmul_small<FORMAT, 4>), blocks, 1, THREADS, stream, matrix, x, bias,
                         accumulate, tokens, stride, out);
    return PD_LAUNCH((matmul_small<FORMAT, 8>), blocks, 1, THREADS, stream, matrix, x, bias,
                     accumulate, tokens, stride, out);
}

int pd_cuda_matmul_small(void *stream, const struct pd_cuda_matrix *matrix, const float *x,
                         const float *bias, bool accumulate, int tokens, int stride, float *out)
{
    if (tokens < 0 || tokens > PD_CUDA_SMALL || matrix->rows < 1 || matrix->cols < 1)
        return -1;
    if (tokens == 0)
        return 0;
    PD_BY_FORMAT(matrix->format, (launch<FORMAT>((pd_stream)stream, *matrix, x, bias, accumulate,
                                                 tokens, stride, out)));
}
