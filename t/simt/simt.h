/* CUDA kernels on the host: one fiber per thread, the scheduler picks who runs next by a seeded
 * draw.
 *
 * What it keeps of the machine:
 *     a barrier           lets nobody through before the last has come
 *     a warp's operation  waits for the lanes of its mask, and for no others; the last to come
 *                         does it for all
 *     shared memory       is poisoned when a block starts: a read before the write shows
 *     a copy              poisons where it will arrive, and arrives at a moment that the seed
 *                         picks, at the latest in the wait that covers it
 *     order               threads run in any: a missing barrier shows on some seed
 *     the device's memory is out of reach but for what a launch's operator declares (memory.h), and
 *                         for copies; past its end always
 *     what the hand-off writes into memory that is exported is seen by nobody before the fence
 *
 * Built with PD_SIMT_TSAN, its barriers and nothing else are what ThreadSanitizer takes for
 * happens-before: a missing one shows on every seed.
 *
 * What it does not have: time, caches, memory consistency between blocks (blocks run one after
 * another). A kernel that breaks the rules (a barrier that some threads never reach, lanes that do
 * different things together, an address that is not aligned) ends the program with a message. */
#ifndef PD_SIMT_H
#define PD_SIMT_H

#include <functional>
#include <stddef.h>
#include <stdint.h>
#include <tuple>
#include <vector>

#define PD_GLOBAL void
#define PD_DEVICE static inline

#define PD_THREAD  (pd_simt::thread())
#define PD_THREADS (pd_simt::threads())
#define PD_BLOCK_X (pd_simt::block_x())
#define PD_BLOCK_Y (pd_simt::block_y())

/* Every thread of a block gets the same array for the same line of the source. */
#define PD_SHARED(type, name, count)                                                               \
    type *name = static_cast<type *>(pd_simt::shared(__LINE__, sizeof(type) * (size_t)(count)))

#define PD_SHARED_BYTES(name) char *name = pd_simt::shared_bytes()

#define PD_UNROLL(count)
#define PD_UNROLL_ALL

typedef uintptr_t pd_stream; /* the seed of the launch */

#define PD_LAUNCH(kernel, x, y, threads, stream, ...)                                              \
    PD_LAUNCH_SHARED(kernel, x, y, threads, 0, stream, __VA_ARGS__)

#define PD_LAUNCH_SHARED(kernel, x, y, threads, bytes, stream, ...)                                \
    pd_simt::launch(x, y, threads, bytes, stream, pd_simt::call(kernel, __VA_ARGS__))

namespace pd_simt
{
int thread();
int threads();
int block_x();
int block_y();
void *shared(int line, size_t bytes);
char *shared_bytes();
void barrier();
void pause(); /* lets other fibers go on, and other threads, which are other GPUs */
void warp_barrier();
float shuffle_xor(float value, int distance, uint32_t lanes);
float warp_sum(float value);
void copy_async(void *shared, const void *from, bool present);
void copy_commit();
void copy_wait(int pending);
void load_matrix(uint32_t *out, int matrices, bool transposed, const void *row);
void multiply(float *d, const uint32_t *a, const uint32_t *b, bool bf16);

/* A kernel with its arguments as they are now, as a launch takes them: what they were computed from
 * may change before it runs. */
template <typename... Parameters, typename... Arguments>
std::function<void()> call(void (*kernel)(Parameters...), const Arguments &...arguments)
{
    return
        [kernel, values = std::tuple<Parameters...>(arguments...)] { std::apply(kernel, values); };
}

/* Runs all blocks to their end, or is recorded. Order of threads by `seed`; `bytes` of dynamic shared
 * memory. */
int launch(int x, int y, int threads, size_t bytes, uint64_t seed, std::function<void()> kernel);

/* ---- the stream: what is enqueued runs at once, unless the thread records ---------------------- */

typedef std::vector<std::function<void()>> recording;

/* The calling thread's recording, NULL for none. */
void record_into(recording *into);
bool is_recording();

/* 0, or the error that a test has asked for (control.h). */
int enqueue(std::function<void()> work);
int fault();
} // namespace pd_simt

PD_DEVICE void pd_barrier(void)
{
    pd_simt::barrier();
}

PD_DEVICE void pd_warp_barrier(void)
{
    pd_simt::warp_barrier();
}

PD_DEVICE float pd_shuffle_xor(float value, int distance, uint32_t lanes = PD_LANES)
{
    return pd_simt::shuffle_xor(value, distance, lanes);
}

/* One meeting instead of five; the same additions in the same order. */
PD_DEVICE float pd_warp_sum(float value)
{
    return pd_simt::warp_sum(value);
}

float pd_from_f16(uint16_t bits);
float pd_from_bf16(uint16_t bits);
uint16_t pd_to_f16(float value);
uint16_t pd_to_bf16(float value);

PD_DEVICE uint32_t pd_pack_f16(float low, float high)
{
    return (uint32_t)pd_to_f16(low) | (uint32_t)pd_to_f16(high) << 16;
}

PD_DEVICE uint32_t pd_pack_bf16(float low, float high)
{
    return (uint32_t)pd_to_bf16(low) | (uint32_t)pd_to_bf16(high) << 16;
}

PD_DEVICE void pd_copy_async(void *shared, const void *from, bool present)
{
    pd_simt::copy_async(shared, from, present);
}

PD_DEVICE void pd_copy_commit(void)
{
    pd_simt::copy_commit();
}

template <int PENDING> PD_DEVICE void pd_copy_wait(void)
{
    pd_simt::copy_wait(PENDING);
}

PD_DEVICE void pd_load_matrix4(uint32_t out[4], const void *row)
{
    pd_simt::load_matrix(out, 4, false, row);
}

PD_DEVICE void pd_load_matrix2(uint32_t out[2], const void *row)
{
    pd_simt::load_matrix(out, 2, false, row);
}

PD_DEVICE void pd_load_matrix1(uint32_t out[1], const void *row)
{
    pd_simt::load_matrix(out, 1, false, row);
}

PD_DEVICE void pd_load_matrix4_transposed(uint32_t out[4], const void *row)
{
    pd_simt::load_matrix(out, 4, true, row);
}

PD_DEVICE void pd_multiply_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    pd_simt::multiply(d, a, b, false);
}

PD_DEVICE void pd_multiply_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    pd_simt::multiply(d, a, b, true);
}

/* Fibers change only where they wait, so plain loads and stores are atomic here; ThreadSanitizer is
 * told that they are meant so. */
template <typename T> static inline T pd_atomic_add(T *at, T value)
{
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

template <typename T> static inline T pd_atomic_max(T *at, T value)
{
    T before = __atomic_load_n(at, __ATOMIC_RELAXED);

    if (value > before)
        __atomic_store_n(at, value, __ATOMIC_RELAXED);
    return before;
}

static inline uint32_t pd_atomic_exchange(uint32_t *at, uint32_t value)
{
    return __atomic_exchange_n(at, value, __ATOMIC_RELAXED);
}

static inline void pd_store_system(uint64_t *at, uint64_t value)
{
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

static inline uint64_t pd_load_system(const uint64_t *at)
{
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static inline void pd_pause(void)
{
    pd_simt::pause();
}

#endif
