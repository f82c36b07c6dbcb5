/* Operators that move rows or work on them value by value: embedding, gather, SwiGLU, bias, and the
 * progress word. Their floor is the bytes they read and write. */

#include "kernels/cuda/matrix.cuh"

enum { THREADS = 256 };

/* ---- embedding: one block per token ---------------------------------------------------------- */

PD_BUDGET(embed, 40, 0, 0);

template <enum pd_cuda_format FORMAT>
static PD_GLOBAL embed(struct pd_cuda_step step, struct pd_cuda_matrix matrix, int first,
                       float *out)
{
    const int row = PD_BLOCK_X;
    int32_t token;
    bool here;

    if (row >= step.counts[0])
        return;
    token = step.token[row];
    if (token < 0)
        token = step.last[-1 - token];
    here = token >= first && token - first < matrix.rows;
    for (int col = 8 * PD_THREAD; col < matrix.cols; col += 8 * THREADS) {
        float values[8] = {};

        if (here)
            pd_unpack8<FORMAT>(matrix, token - first, col, values);
        for (int i = 0; i < 8; i++)
            out[(size_t)row * (size_t)matrix.cols + (size_t)(col + i)] = values[i];
    }
    if (PD_THREAD == 0) {
        size_t slot = (size_t)step.slot[step.sequence[row]];

        step.history[slot * (size_t)step.max_model_len + (size_t)step.position[row]] = token;
    }
}

int pd_cuda_embed(void *stream, const struct pd_cuda_step *step,
                  const struct pd_cuda_matrix *matrix, int first, int rows, float *out)
{
    if (rows < 0)
        return -1;
    if (rows == 0)
        return 0;
    PD_BY_FORMAT(matrix->format, (PD_LAUNCH((embed<FORMAT>), rows, 1, THREADS, (pd_stream)stream,
                                            *step, *matrix, first, out)));
}

/* ---- gather: one block per sample ------------------------------------------------------------ */

PD_BUDGET(gather, 40, 0, 0);

static PD_GLOBAL gather(struct pd_cuda_step step, const float *x, int cols, float *out)
{
    const int row = PD_BLOCK_X;
    const float *from;

    if (row >= step.counts[2])
        return;
    from = x + (size_t)step.sample_row[row] * (size_t)cols;
    for (int i = PD_THREAD; i < cols; i += THREADS)
        out[(size_t)row * (size_t)cols + (size_t)i] = from[i];
}

int pd_cuda_gather(void *stream, const struct pd_cuda_step *step, const float *x, int rows,
                   int cols, float *out)
{
    if (rows < 0 || cols < 1)
        return -1;
    if (rows == 0)
        return 0;
    return PD_LAUNCH(gather, rows, 1, THREADS, (pd_stream)stream, *step, x, cols, out);
}

/* ---- SwiGLU and bias: one block per run of THREADS columns of a row -------------------------- */

PD_BUDGET(swiglu, 40, 0, 0);

static PD_GLOBAL swiglu(const float *in, int cols, float *out)
{
    const int i = PD_BLOCK_Y * THREADS + PD_THREAD;
    const float *row = in + (size_t)PD_BLOCK_X * 2 * (size_t)cols;

    if (i < cols)
        out[(size_t)PD_BLOCK_X * (size_t)cols + (size_t)i] =
            row[i] / (1.0f + expf(-row[i])) * row[cols + i];
}

int pd_cuda_swiglu(void *stream, const float *in, int rows, int cols, float *out)
{
    if (rows < 0 || cols < 1)
        return -1;
    if (rows == 0)
        return 0;
    return PD_LAUNCH(swiglu, rows, (cols + THREADS - 1) / THREADS, THREADS, (pd_stream)stream, in,
                     cols, out);
}

PD_BUDGET(add_bias, 40, 0, 0);

static PD_GLOBAL add_bias(const float *bias, int cols, int stride, float *out)
{
    const int i = PD_BLOCK_Y * THREADS + PD_THREAD;

    if (i < cols)
        out[(size_t)PD_BLOCK_X * (size_t)stride + (size_t)i] += bias[i];
}

int pd_cuda_add_bias(void *stream, const float *bias, int rows, int cols, int stride, float *out)
{
    if (rows < 0 || cols < 1)
        return -1;
    if (rows == 0)
        return 0;
    return PD_LAUNCH(add_bias, rows, (cols + THREADS - 1) / THREADS, THREADS, (pd_stream)stream,
                     bias, cols, stride, out);
}

/* ---- progress -------------------------------------------------------------------------------- */

PD_BUDGET(publish, 40, 0, 0);

static PD_GLOBAL publish(struct pd_cuda_step step, int layers, uint64_t *progress)
{
    if (PD_THREAD == 0)
        pd_store_system(progress, *step.number << 16 | (uint64_t)layers);
}

int pd_cuda_publish(void *stream, const struct pd_cuda_step *step, int layers, uint64_t *progress)
{
    return PD_LAUNCH(publish, 1, 1, PD_WARP, (pd_stream)stream, *step, layers, progress);
}
