/* The one spelling of everything in a kernel that is not plain C: launches, shared memory,
 * barriers, warp shuffles, half-precision loads. nvcc sees CUDA here, the host compiler sees
 * t/simt/simt.h, which runs the same source with one fiber per thread. A kernel that writes <<<>>>,
 * asm or a CUDA intrinsic itself could only ever be tested on a GPU: t/simt/simt.mk refuses it. */
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

/* Sum over a warp, the same value in every lane: pairs of lanes, pairs of pairs, ... 16 apart
 * first. */
PD_DEVICE float pd_warp_sum(float value)
{
    for (int mask = PD_WARP / 2; mask > 0; mask /= 2)
        value += pd_shuffle_xor(value, mask);
    return value;
}

/* The lanes of a warp meet; memory written before is seen after. All 32 take part. */
PD_DEVICE void pd_warp_barrier(void)
{
    __syncwarp();
}

PD_DEVICE float pd_from_f16(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}

PD_DEVICE float pd_from_bf16(uint16_t bits)
{
    return __bfloat162float(__ushort_as_bfloat16(bits));
}

PD_DEVICE uint16_t pd_to_f16(float value)
{
    return __half_as_ushort(__float2half_rn(value));
}

PD_DEVICE uint16_t pd_to_bf16(float value)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

/* On shared or global memory. Integers only: their order leaves no trace in the result. All give
 * the value before. */
PD_DEVICE uint32_t pd_atomic_add(uint32_t *at, uint32_t value)
{
    return atomicAdd(at, value);
}

PD_DEVICE uint64_t pd_atomic_add(uint64_t *at, uint64_t value)
{
    return atomicAdd((unsigned long long *)at, (unsigned long long)value);
}

PD_DEVICE uint32_t pd_atomic_max(uint32_t *at, uint32_t value)
{
    return atomicMax(at, value);
}

PD_DEVICE uint64_t pd_atomic_max(uint64_t *at, uint64_t value)
{
    return atomicMax((unsigned long long *)at, (unsigned long long)value);
}

PD_DEVICE uint32_t pd_atomic_exchange(uint32_t *at, uint32_t value)
{
    return atomicExch(at, value);
}

/* Everything that this stream wrote before is seen by whoever sees `value`: the host, a network
 * card. */
PD_DEVICE void pd_store_system(uint64_t *at, uint64_t value)
{
    __threadfence_system();
    *(volatile uint64_t *)at = value;
}

#endif

/* Sixteen bytes that one instruction loads; the address is a multiple of 16. */
struct alignas(16) pd_u32x4 {
    uint32_t word[4];
};

#endif
