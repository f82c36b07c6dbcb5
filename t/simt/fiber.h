/* The shim's own: fibers, warps, the block that runs. simt.cc has the scheduler, warp.cc what lanes
 * do together and the copies. */
#ifndef PD_SIMT_FIBER_H
#define PD_SIMT_FIBER_H

#include "kernels/cuda/pd_simt.cuh"

#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef PD_SIMT_TSAN
#include <sanitizer/tsan_interface.h>
/* In the runtime, not in its header. */
extern "C" void __tsan_read_range(void *address, unsigned long size);
extern "C" void __tsan_write_range(void *address, unsigned long size);
#endif

namespace pd_simt
{

/* What all lanes of a meeting do, once, when the last has come: each lane's argument, null for
 * lanes that have no part. */
typedef void collective(void *const arguments[PD_WARP]);

struct copy {
    void *to;
    const void *from;
    bool present;
    int group;
};

struct fiber {
    std::vector<char> stack;
    void *top;                /* of the stack, where it waits */
    void *argument;           /* of the meeting that it waits in */
    std::vector<copy> copies; /* under way */
    int group;                /* that the next copy belongs to */
    void *tsan;               /* ThreadSanitizer's name for it */
    void *asan;               /* AddressSanitizer's frames of it, while it waits */
};

/* Lanes that wait for the others of their mask. */
struct meeting {
    uint32_t lanes, arrived;
    collective *operation;
};

struct warp {
    std::vector<meeting> meetings;
};

/* The block that runs. A fiber is in `ready`, or waits at the block's barrier or in a meeting of
 * its warp, or has ended; who comes last to either lets the others on. */
struct block {
    int x, y, count;
    std::vector<fiber> fibers;
    std::vector<warp> warps;
    std::vector<int> ready;
    int current, at_barrier, finished;
    void *scheduler;
    void *scheduler_tsan, *scheduler_asan;
    const void *scheduler_stack; /* as AddressSanitizer knows it */
    size_t scheduler_bytes;
    const std::function<void()> *kernel;
    uint64_t random;
    std::vector<char> memory; /* static arrays, then the dynamic bytes */
    struct array {
        int line;
        size_t offset, bytes;
    };
    std::vector<array> arrays;
    size_t used, dynamic;

#ifdef PD_SIMT_TSAN
    ~block()
    {
        for (fiber &f : fibers)
            if (f.tsan)
                __tsan_destroy_fiber(f.tsan);
    }
#endif
};

extern thread_local block *running; /* of the thread that launches */

[[noreturn]] void die(const char *why);
uint64_t draw();
void yield();
void make_ready(int first, uint32_t lanes);

/* Offers an argument to the lanes of the mask, and returns when all have come. */
void meet(uint32_t lanes, collective *operation, void *argument);

/* Whether these bytes are shared memory of the block. */
bool is_shared(const void *address, size_t bytes);

/* For ThreadSanitizer: what one fiber did before `at` is seen by who comes to it after; what the
 * fiber that runs reads and writes by the shim's hand. */
#ifdef PD_SIMT_TSAN
static inline void arrive(void *at)
{
    __tsan_release(at);
}

static inline void leave(void *at)
{
    __tsan_acquire(at);
}

static inline void note_read(const void *at, size_t bytes)
{
    __tsan_read_range(const_cast<void *>(at), bytes);
}

static inline void note_write(void *at, size_t bytes)
{
    __tsan_write_range(at, bytes);
}
#else
static inline void arrive(void *)
{
}
static inline void leave(void *)
{
}
static inline void note_read(const void *, size_t)
{
}
static inline void note_write(void *, size_t)
{
}
#endif

} // namespace pd_simt

#endif
