/* The one spelling of everything in a kernel that is not plain C: launches, shared memory, barriers,
 * what the lanes of a warp do together, asynchronous copies, the matrix unit. nvcc sees CUDA here,
 * the host compiler sees t/simt/simt.h, which runs the same source with one fiber per thread. A
 * kernel that writes <<<>>>, asm or a CUDA intrinsic itself could only ever be tested on a GPU: the
 * build refuses it.
 *
 * The lanes of a warp hold the operands of the matrix unit in pieces. With g = lane / 4 and
 * i = lane % 4, a word holds two neighbouring 16-bit values, the first in its low half:
 *
 *     a[0]  row g,     columns 2i, 2i + 1            b[0]  rows 2i, 2i + 1,         column g
 *     a[1]  row g + 8, columns 2i, 2i + 1            b[1]  rows 2i + 8, 2i + 9,     column g
 *     a[2]  row g,     columns 2i + 8, 2i + 9        d[0..1]  row g,     columns 2i, 2i + 1
 *     a[3]  row g + 8, columns 2i + 8, 2i + 9        d[2..3]  row g + 8, columns 2i, 2i + 1
 */
#ifndef PD_SIMT_CUH
#define PD_SIMT_CUH

#include <math.h>
#include <stddef.h>
#include <stdint.h>

enum { PD_WARP = 32 };

/* All lanes of a warp. */
#define PD_LANES 0xffffffffu

/* Bytes of shared memory that every GPU from sm_80 on gives to one block. */
enum { PD_SHARED_MOST = 99 * 1024 };

/* Beside a kernel: the most registers of a thread, bytes of static shared memory of a block and bytes
 * of a thread's stack that ptxas may give it, over all its instances and architectures. t/simt/budgets
 * reads it. */
#define PD_BUDGET(kernel, registers, shared, stack)                                                \
    static_assert((registers) <= 255, "what a thread can have")

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

/* The block's bytes that PD_LAUNCH_SHARED asked for, aligned to 16, not initialised. */
#define PD_SHARED_BYTES(name)        extern __shared__ __align__(16) char name[]

#define PD_THREAD        ((int)threadIdx.x)
#define PD_THREADS       ((int)blockDim.x)
#define PD_BLOCK_X       ((int)blockIdx.x)
#define PD_BLOCK_Y       ((int)blockIdx.y)

/* Before a loop: so many rounds at once; all of them, which keeps arrays in registers. */
#define PD_PRAGMA(text)  _Pragma(#text)
#define PD_UNROLL(count) PD_PRAGMA(unroll count)
#define PD_UNROLL_ALL    PD_PRAGMA(unroll)

typedef cudaStream_t pd_stream;

/* Enqueues a kernel on a grid of x by y blocks of `threads`; 0, or the runtime's error number. */
#define PD_LAUNCH(kernel, x, y, threads, stream, ...)                                              \
    PD_LAUNCH_SHARED(kernel, x, y, threads, 0, stream, __VA_ARGS__)

/* The same with `bytes` of shared memory for PD_SHARED_BYTES, at most PD_SHARED_MOST. */
#define PD_LAUNCH_SHARED(kernel, x, y, threads, bytes, stream, ...)                                \
    pd_launch(kernel, dim3((unsigned)(x), (unsigned)(y)), threads, bytes, stream, __VA_ARGS__)

/* Bytes of shared memory that a kernel may have unasked. */
enum { PD_SHARED_UNASKED = 48 * 1024 };

/* By the call that says itself whether it worked: the runtime's last error may be another call's, such as the
 * "not ready" of a look at an event. */
template <typename... Parameters, typename... Arguments>
static int pd_launch(void (*kernel)(Parameters...), dim3 grid, int threads, size_t bytes,
                     pd_stream stream, const Arguments &...arguments)
{
    cudaLaunchConfig_t config = {};
    cudaError_t error = cudaSuccess;

    config.gridDim = grid;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    if (bytes > PD_SHARED_UNASKED)
        error = cudaFuncSetAttribute((const void *)kernel,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return (int)(error != cudaSuccess ? error : cudaLaunchKernelEx(&config, kernel, arguments...));
}

/* All threads of the block meet; shared memory written before is seen after. */
PD_DEVICE void pd_barrier(void)
{
    __syncthreads();
}

/* The value that the lane `distance` away (by exclusive or) holds. The lanes named in `lanes` take
 * part: those wait for each other, and for no others. Orders no memory. */
PD_DEVICE float pd_shuffle_xor(float value, int distance, uint32_t lanes = PD_LANES)
{
    return __shfl_xor_sync(lanes, value, distance);
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

/* Two numbers rounded to nearest, `low` in the low half. */
PD_DEVICE uint32_t pd_pack_f16(float low, float high)
{
    __half2 both = __floats2half2_rn(low, high);

    return *(uint32_t *)&both;
}

PD_DEVICE uint32_t pd_pack_bf16(float low, float high)
{
    __nv_bfloat162 both = __floats2bfloat162_rn(low, high);

    return *(uint32_t *)&both;
}

/* ---- asynchronous copies --------------------------------------------------------------------- */

/* Begins to copy 16 bytes to shared memory, or to zero them where not `present` (`from` is not
 * read then, and only has to be an address). Both addresses are multiples of 16. The bytes may
 * arrive at any moment up to the pd_copy_wait that covers them. */
PD_DEVICE void pd_copy_async(void *shared, const void *from, bool present)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(from), "r"(present ? 16 : 0)
                 : "memory");
}

/* The copies that this thread began since its last commit are a group. */
PD_DEVICE void pd_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until all but the last PENDING groups of this thread have arrived. Other threads see them behind
 * a barrier. */
template <int PENDING> PD_DEVICE void pd_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* ---- the matrix unit: all 32 lanes together -------------------------------------------------- */

/* Four matrices of 8 x 8 16-bit values from shared memory: lane l gives the address, a multiple of
 * 16, of row l % 8 of matrix l / 8. Of each matrix a lane receives row g, columns 2i and 2i + 1. */
PD_DEVICE void pd_load_matrix4(uint32_t out[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* Two: the addresses of lanes 0 to 15 count. */
PD_DEVICE void pd_load_matrix2(uint32_t out[2], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(out[0]), "=r"(out[1])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* One: the addresses of lanes 0 to 7 count. */
PD_DEVICE void pd_load_matrix1(uint32_t out[1], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(out[0])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* Transposed on the way: a lane receives rows 2i and 2i + 1, column g. */
PD_DEVICE void pd_load_matrix4_transposed(uint32_t out[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* d += a b: a 16 x 16, b 16 x 8, d 16 x 8, laid out as this file's head says. */
PD_DEVICE void pd_multiply_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

PD_DEVICE void pd_multiply_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* ---- atomics --------------------------------------------------------------------------------- */

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
 * card, another GPU. */
PD_DEVICE void pd_store_system(uint64_t *at, uint64_t value)
{
    __threadfence_system();
    *(volatile uint64_t *)at = value;
}

/* What was written before `value` was stored there is seen after. */
PD_DEVICE uint64_t pd_load_system(const uint64_t *at)
{
    uint64_t value;

    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

/* Between two looks at what another GPU is to write. */
PD_DEVICE void pd_pause(void)
{
    __nanosleep(100);
}

#endif

/* By the format of the operands. */
template <bool BF16> PD_DEVICE uint32_t pd_pack_half(float low, float high)
{
    return BF16 ? pd_pack_bf16(low, high) : pd_pack_f16(low, high);
}

template <bool BF16>
PD_DEVICE void pd_multiply(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    if (BF16)
        pd_multiply_bf16(d, a, b);
    else
        pd_multiply_f16(d, a, b);
}

/* Sixteen bytes that one instruction loads; the address is a multiple of 16. */
struct alignas(16) pd_u32x4 {
    uint32_t word[4];
};

#endif
