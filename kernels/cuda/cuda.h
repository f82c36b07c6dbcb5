/* The CUDA kernels' launchers, in C: what a backend calls, with device pointers. Each enqueues on `stream` (a
 * cudaStream_t; under t/simt/ the seed of the threads' order), returns at once and gives 0 or the CUDA runtime's error number; a shape that a kernel does not take is -1
 * before anything is enqueued. The shapes are those of kernels.h's operators. */
#ifndef PD_CUDA_H
#define PD_CUDA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight, all f32. x, out [rows, cols]; weight [cols]. */
int pd_cuda_rmsnorm(void *stream, const float *x, const float *weight, float eps, int rows,
                    int cols, float *out);

enum pd_cuda_kv_type { PD_CUDA_KV_F32, PD_CUDA_KV_F16, PD_CUDA_KV_BF16 };

/* Attention of one new token per sequence over the paged cache: the decode half of pd_op_attention. */
struct pd_cuda_decode_attention {
    const float *qkv;     /* [rows, qkv_stride] rotated; the first heads * head_dim columns are Q */
    float *out;           /* [rows, heads * head_dim] */
    const void *pool;     /* [layer][kv_head][block][K|V][token][dim] */
    const int32_t *first; /* [sequences] row of its token */
    const int32_t *context; /* [sequences] tokens in the cache, this one included */
    const int32_t *blocks;  /* [sequences][max_blocks] */
    int64_t pool_blocks;
    enum pd_cuda_kv_type type;
    int sequences, heads, kv_heads, head_dim, block_size, max_blocks, layer, qkv_stride;
    int window; /* 0: none */
    float scale;
};

/* head_dim 64 or 128, heads / kv_heads 1 to 8. */
int pd_cuda_attention_decode(void *stream, const struct pd_cuda_decode_attention *arguments);

#ifdef __cplusplus
}
#endif

#endif
