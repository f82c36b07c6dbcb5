/* Matrix times a few vectors: what a decode step of up to eight sequences is made of.
 *
 * One warp for ROWS rows of the matrix: its lanes take eight columns each, 256 at a time, for every
 * row and token at once. A weight is read once, and unpacked in registers; a value of x, which comes
 * out of the caches, serves all rows of the warp. What hides the memory's latency is how much is
 * asked for before the first answer is needed: UNROLL runs of columns of ROWS rows.
 *
 *     lane        0       1      ...  31     |  0 ...           x  [token]  the same columns
 *     columns     0-7     8-15        248-255|  256-263 ...
 *     rows        ROWS neighbours
 *
 * The floor is the matrix's bytes over the bandwidth. Lanes add up by exclusive-or shuffles: the
 * order of a sum depends on the columns alone, not on how many tokens there are or which shape of
 * the kernel they get. */

#include "kernels/cuda/matrix.cuh"

enum { WARPS = 4, THREADS = WARPS * PD_WARP, STRIDE = 8 * PD_WARP };

/* Of M tokens: fewer rows at a time where each needs more sums, more runs where a row has little to
 * ask for. */
template <int M> struct tuning {
    static constexpr int ROWS = M <= 2 ? 2 : 4, UNROLL = M <= 2 ? 4 : 1;
};

/* Columns col .. col + 7 of all rows and tokens. Past the last row or token the last one is computed
 * once more, and not stored. */
template <enum pd_cuda_format FORMAT, int M>
PD_DEVICE void add_run(const struct pd_cuda_matrix &matrix, const float *x, int tokens, int row,
                       int col, float sum[M][tuning<M>::ROWS])
{
    constexpr int ROWS = tuning<M>::ROWS;
    const struct pd_cuda_matrix values = {x, NULL, PD_CUDA_F32, tokens, matrix.cols};
    float weight[ROWS][8];

    for (int r = 0; r < ROWS; r++)
        pd_unpack8<FORMAT>(matrix, row + r < matrix.rows ? row + r : matrix.rows - 1, col,
                           weight[r]);
    for (int t = 0; t < M; t++) {
        float from[8];

        pd_unpack8<PD_CUDA_F32>(values, t < tokens ? t : tokens - 1, col, from);
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < 8; i++)
                sum[t][r] += weight[r][i] * from[i];
    }
}

PD_BUDGET(matmul_small, 168, 0, 0);

template <enum pd_cuda_format FORMAT, int M>
static PD_GLOBAL matmul_small(struct pd_cuda_matrix matrix, const float *x, const float *bias,
                              int accumulate, int tokens, int width, size_t apart, int stride,
                              float *out)
{
    constexpr int ROWS = tuning<M>::ROWS;
    const int row = (PD_BLOCK_X * WARPS + PD_THREAD / PD_WARP) * ROWS, lane = PD_THREAD % PD_WARP;
    const int first = PD_BLOCK_Y * width; /* this slice's columns */
    float sum[M][ROWS];

    if (row >= matrix.rows)
        return;
    for (int t = 0; t < M; t++)
        for (int r = 0; r < ROWS; r++)
            sum[t][r] = 0;
    PD_UNROLL(tuning<M>::UNROLL)
    for (int col = first + 8 * lane; col < first + width; col += STRIDE)
        add_run<FORMAT, M>(matrix, x, tokens, row, col, sum);
    for (int t = 0; t < M; t++) {
        for (int r = 0; r < ROWS; r++) {
            float value = pd_warp_sum(sum[t][r]);
            float *to = out + PD_BLOCK_Y * apart + (size_t)t * (size_t)stride + (row + r);

            if (lane != 0 || t >= tokens || row + r >= matrix.rows)
                continue;
            if (bias != NULL)
                value += bias[row + r];
            *to = accumulate ? *to + value : value;
        }
    }
}

template <enum pd_cuda_format FORMAT, int M>
static int launch_for(pd_stream stream, const struct pd_cuda_matrix &matrix, const float *x,
                      const float *bias, int accumulate, int tokens,
                      const struct pd_cuda_slices &slices, int stride, float *out)
{
    const int rows = WARPS * tuning<M>::ROWS;

    return PD_LAUNCH((matmul_small<FORMAT, M>), (matrix.rows + rows - 1) / rows, slices.count,
                     THREADS, stream, matrix, x, bias, accumulate, tokens,
                     matrix.cols / slices.count, slices.stride, stride, out);
}

template <enum pd_cuda_format FORMAT>
static int launch(pd_stream stream, const struct pd_cuda_matrix &matrix, const float *x,
                  const float *bias, int accumulate, int tokens,
                  const struct pd_cuda_slices &slices, int stride, float *out)
{
    const auto launch_some = tokens == 1   ? launch_for<FORMAT, 1>
                             : tokens == 2 ? launch_for<FORMAT, 2>
                             : tokens <= 4 ? launch_for<FORMAT, 4>
                                           : launch_for<FORMAT, 8>;

    return launch_some(stream, matrix, x, bias, accumulate, tokens, slices, stride, out);
}

int pd_cuda_matmul_small(void *stream, const struct pd_cuda_matrix *matrix, const float *x,
                         const float *bias, bool accumulate, int tokens,
                         struct pd_cuda_slices slices, int stride, float *out)
{
    if (tokens < 0 || tokens > PD_CUDA_SMALL || matrix->rows < 1 || matrix->cols < 1 ||
        !pd_slices_divide(slices, matrix->cols))
        return -1;
    if (tokens == 0)
        return 0;
    PD_BY_FORMAT(matrix->format, (launch<FORMAT>((pd_stream)stream, *matrix, x, bias, accumulate,
                                                 tokens, slices, stride, out)));
}
