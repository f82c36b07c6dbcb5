/* CUDA kernels on the host: one fiber per thread, the scheduler picks who runs next by a seeded
 * draw.
 *
 * What it keeps of the machine: a barrier lets nobody through before the last has come; a shuffle
 * waits for all lanes of its warp; shared memory is poisoned when a block starts, so a read before
 * the write shows; threads run in any order, so a missing barrier shows on some seed. What it does
 * not have: time, caches, memory consistency between blocks (blocks run one after another).
 *
 * A kernel that breaks the rules (a barrier that some threads never reach) ends the program with a
 * message. */
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

typedef uintptr_t pd_stream; /* the seed of the launch */

#define PD_LAUNCH(kernel, x, y, threads, stream, ...)                                              \
    pd_simt::launch(x, y, threads, stream, pd_simt::call(kernel, __VA_ARGS__))

namespace pd_simt
{
int thread();
int threads();
int block_x();
int block_y();
void *shared(int line, size_t bytes);
void barrier();
float shuffle_xor(float value, int lane_mask);
float warp_sum(float value);

/* A kernel with its arguments as they are now, as a launch takes them: what they were computed from
 * may change before it runs. */
template <typename... Parameters, typename... Arguments>
std::function<void()> call(void (*kernel)(Parameters...), const Arguments &...arguments)
{
    return
        [kernel, values = std::tuple<Parameters...>(arguments...)] { std::apply(kernel, values); };
}

/* Runs all blocks to their end, or is recorded. Order of threads by `seed`. */
int launch(int x, int y, int threads, uint64_t seed, std::function<void()> kernel);

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
    pd_simt::shuffle_xor(0, 0);
}

PD_DEVICE float pd_shuffle_xor(float value, int lane_mask)
{
    return pd_simt::shuffle_xor(value, lane_mask);
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

/* Fibers change only where they wait, so plain loads and stores are atomic here. */
template <typename T> static inline T pd_atomic_add(T *at, T value)
{
    T before = *at;

    *at = before + value;
    return before;
}

template <typename T> static inline T pd_atomic_max(T *at, T value)
{
    T before = *at;

    *at = value > before ? value : before;
    return before;
}

static inline uint32_t pd_atomic_exchange(uint32_t *at, uint32_t value)
{
    uint32_t before = *at;

    *at = value;
    return before;
}

static inline void pd_store_system(uint64_t *at, uint64_t value)
{
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

#endif
