/* Rotary positions, and the store of K and V into the paged pool.
 *
 * Angles: one thread per (row, frequency), once per step. Rotation: one warp per head of a row. A
 * lane owns the pairs (i, i + 32, ...) of its head, both members of each, so that Q and K turn in
 * place without a barrier; V heads are only copied. The floor is the row read and written once, and
 * the pool written once. */

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/pd_simt.cuh"

enum { WARPS = 4, THREADS = WARPS * PD_WARP };

PD_BUDGET(rope_angles, 32, 0, 32);

static PD_GLOBAL rope_angles(struct pd_cuda_step step, const float *inverse_frequency, float factor,
                             int dim, float *table)
{
    float *row = table + (size_t)PD_BLOCK_X * (size_t)dim;
    const int half = dim / 2;

    if (PD_BLOCK_X >= step.counts[0])
        return;
    for (int i = PD_THREAD; i < half; i += THREADS) {
        float angle = (float)step.position[PD_BLOCK_X] * inverse_frequency[i];

        row[i] = cosf(angle) * factor;
        row[half + i] = sinf(angle) * factor;
    }
}

int pd_cuda_rope_angles(void *stream, const struct pd_cuda_step *step,
                        const float *inverse_frequency, float factor, int rows, int dim,
                        float *table)
{
    if (rows < 0 || dim < 2 || dim % 2 != 0)
        return -1;
    if (rows == 0)
        return 0;
    return PD_LAUNCH(rope_angles, rows, 1, THREADS, (pd_stream)stream, *step, inverse_frequency,
                     factor, dim, table);
}

/* Multiplies a head by its norm. Every lane rewrites its own elements only; the sum is over all. */
PD_DEVICE void normalize(float *head, const float *weight, int dim, float eps, int lane)
{
    float sum = 0, scale;

    for (int i = lane; i < dim; i += PD_WARP)
        sum += head[i] * head[i];
    scale = 1.0f / sqrtf(pd_warp_sum(sum) / (float)dim + eps);
    for (int i = lane; i < dim; i += PD_WARP)
        head[i] = head[i] * scale * weight[i];
    pd_warp_barrier();
}

PD_DEVICE void rotate(float *head, const float *angles, int dim, bool interleaved, int lane)
{
    const int half = dim / 2;

    for (int i = lane; i < half; i += PD_WARP) {
        float *a = interleaved ? head + 2 * i : head + i;
        float *b = interleaved ? head + 2 * i + 1 : head + half + i;
        float x = *a, y = *b;

        *a = x * angles[i] - y * angles[half + i];
        *b = y * angles[i] + x * angles[half + i];
    }
    pd_warp_barrier();
}

PD_DEVICE void store(const struct pd_cuda_pool &pool, int layer, int head, int value, int slot,
                     const float *values, int lane)
{
    size_t tile = (((size_t)layer * (size_t)pool.kv_heads + (size_t)head) * (size_t)pool.blocks +
                   (size_t)(slot / pool.block_size)) *
                      2 +
                  (size_t)value;
    size_t at =
        (tile * (size_t)pool.block_size + (size_t)(slot % pool.block_size)) * (size_t)pool.head_dim;

    for (int i = lane; i < pool.head_dim; i += PD_WARP) {
        if (pool.type == PD_CUDA_F32)
            ((float *)pool.values)[at + (size_t)i] = values[i];
        else
            ((uint16_t *)pool.values)[at + (size_t)i] =
                pool.type == PD_CUDA_F16 ? pd_to_f16(values[i]) : pd_to_bf16(values[i]);
    }
}

PD_BUDGET(rope_store, 56, 0, 0);

static PD_GLOBAL rope_store(struct pd_cuda_step step, struct pd_cuda_rope_store a)
{
    const int row = PD_BLOCK_X, lane = PD_THREAD % PD_WARP;
    const int head = PD_BLOCK_Y * WARPS + PD_THREAD / PD_WARP;
    const int kv_heads = a.pool.kv_heads, dim = a.pool.head_dim;
    const float *norm = head < a.heads ? a.q_norm : a.k_norm;
    float *values;

    if (row >= step.counts[0] || head >= a.heads + 2 * kv_heads)
        return;
    values = a.qkv + ((size_t)row * (size_t)(a.heads + 2 * kv_heads) + (size_t)head) * (size_t)dim;
    if (head < a.heads + kv_heads) {
        if (norm != NULL)
            normalize(values, norm, dim, a.eps, lane);
        rotate(values, a.table + (size_t)row * (size_t)a.rope_dim, a.rope_dim, a.interleaved, lane);
    }
    if (head >= a.heads)
        store(a.pool, a.layer, (head - a.heads) % kv_heads, head >= a.heads + kv_heads,
              step.kv_slot[row], values, lane);
}

int pd_cuda_rope_store(void *stream, const struct pd_cuda_step *step,
                       const struct pd_cuda_rope_store *arguments)
{
    const struct pd_cuda_rope_store &a = *arguments;

    if (a.rows < 0 || a.heads < 1 || a.pool.kv_heads < 1 || a.rope_dim < 2 ||
        a.rope_dim > a.pool.head_dim)
        return -1;
    if (a.rows == 0)
        return 0;
    return PD_LAUNCH(rope_store, a.rows, (a.heads + 2 * a.pool.kv_heads + WARPS - 1) / WARPS,
                     THREADS, (pd_stream)stream, *step, a);
}
