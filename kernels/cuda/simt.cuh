/* The one spelling of everything in a kernel that is not plain C: launches, shared memory, barriers, warp
 * shuffles, half-precision loads. nvcc sees CUDA here, the host compiler sees t/simt/simt.h, which runs
 * the same source with one fiber per thread. A kernel that writes <<<>>>, asm or a CUDA intrinsic
 * itself could only ever be tested on a GPU: t/simt/simt.mk refuses it. */
#ifndef PD_CUDA_SIMT_CUH
#define PD_CUDA_SIMT_CUH

#include <math.h>
#include <stddef.h>
#include <stdint.h>

enum { PD_WARP = 32 };

#ifdef PD_SIMT_HOST

#include "t/simt/simt.h"

#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define PD_GLOBAL                    __global__ void
#define PD_DEVICE                    static __device__ __forceinline__

/* A block's array, not initialised. */
#define PD_SHARED(type, name, count) __shared__ type name[count]

#define PD_THREAD  ((int)threadIdx.x)
#define PD_THREADS ((int)blockDim.x)
#define PD_BLOCK_X ((int)blockIdx.x)
#define PD_BLOCK_Y ((int)blockIdx.y)

typedef cudaStream_t pd_stream;

/* Enqueues a kernel on a grid of x by y blocks of `threads`; 0, or the runtime's error number. */
#define PD_LAUNCH(kernel, x, y, threads, stream, ...)                                              \
    (kernel<<<dim3((unsigned)(x), (unsigned)(y)), (unsigned)(threads), 0, stream>>>(__VA_ARGS__),  \
     (int)cudaGetLastError())

/* All threads of the block meet; shared memory written before is seen after. */
PD_DEVICE void pd_barrier(void)
{
    __syncthreads();
}

/* The value that the lane `lane_mask` away (by exclusive or) holds; all 32 lanes take part. */
PD_DEVICE float pd_shuffle_xor(float value, int lane_mask)
{
    return __shfl_xor_sync(0xffffffffu, value, lane_mask);
}

PD_DEVICE float pd_from_f16(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}

PD_DEVICE float pd_from_bf16(uint16_t bits)
{
    return __bfloat162float(__ushort_as_bfloat16(bits));
}

#endif

/* Sum over a warp, the same value in every lane, in one fixed order. */
PD_DEVICE float pd_warp_sum(float value)
{
    for (int mask = PD_WARP / 2; mask > 0; mask /= 2)
        value += pd_shuffle_xor(value, mask);
    return value;
}

#endif
