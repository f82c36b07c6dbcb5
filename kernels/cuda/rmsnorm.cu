/* RMSNorm: one block per row. Reads x twice (the second time from L2) and writes once: the floor is
 * 8 bytes per value over the device's bandwidth.
 *
 * A thread sums every PD_THREADS-th square, a warp adds its lanes by exclusive-or shuffles, the
 * block its warps in order: one fixed order for a given row length, whatever the batch. */

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/pd_simt.cuh"

enum { THREADS = 256, WARPS = THREADS / PD_WARP };

PD_BUDGET(rmsnorm, 32, 32, 0);

static PD_GLOBAL rmsnorm(const float *x, const float *weight, float eps, int cols, float *out)
{
    PD_SHARED(float, partial, WARPS);
    const float *row = x + (size_t)PD_BLOCK_X * (size_t)cols;
    float *to = out + (size_t)PD_BLOCK_X * (size_t)cols;
    float sum = 0, scale;

    for (int i = PD_THREAD; i < cols; i += THREADS)
        sum += row[i] * row[i];
    sum = pd_warp_sum(sum);
    if (PD_THREAD % PD_WARP == 0)
        partial[PD_THREAD / PD_WARP] = sum;
    pd_barrier();
    sum = 0;
    for (int warp = 0; warp < WARPS; warp++)
        sum += partial[warp];
    scale = 1.0f / sqrtf(sum / (float)cols + eps);
    for (int i = PD_THREAD; i < cols; i += THREADS)
        to[i] = row[i] * scale * weight[i];
}

int pd_cuda_rmsnorm(void *stream, const float *x, const float *weight, float eps, int rows,
                    int cols, float *out)
{
    if (rows < 0 || cols <= 0)
        return -1;
    if (rows == 0)
        return 0;
    return PD_LAUNCH(rmsnorm, rows, 1, THREADS, (pd_stream)stream, x, weight, eps, cols, out);
}
