/* The barrier counts arrivals; the last one starts a new phase and wakes whoever sleeps on the
 * phase word.
 *
 * Why no wakeup is lost: a sleeper adds itself to `sleepers` and then lets the kernel compare
 * `phase`; the last arrival changes `phase` and then reads `sleepers`. Both are sequentially
 * consistent, so one of them sees the other. A break sets `broken` before it changes `phase`, and a thread
 * reads them the other way around: it sees that the barrier is broken, or that the phase changes. */
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/barrier.h"

/* Some tens of microseconds: longer than the gap between operators, shorter than a scheduler's
 * slice. Then some hundreds, as long as a step's tokens need to be carried on before the next step begins; whoever
 * wants the core meanwhile has it. A core that falls asleep instead takes 50 of them to wake on a virtual machine,
 * and then waits for the other one, which has fallen asleep as well. */
enum { SPINS = 1000, YIELDS = 2000 };

void pd_barrier_init(struct pd_barrier *barrier, unsigned threads)
{
    *barrier = (struct pd_barrier){.threads = threads};
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void sleep_while(struct pd_barrier *barrier, unsigned phase)
{
    atomic_fetch_add(&barrier->sleepers, 1);
    while (atomic_load(&barrier->phase) == phase)
        syscall(SYS_futex, &barrier->phase, FUTEX_WAIT_PRIVATE, phase, NULL, NULL, 0);
    atomic_fetch_sub(&barrier->sleepers, 1);
}

static void release(struct pd_barrier *barrier, unsigned phase)
{
    atomic_store(&barrier->phase, phase);
    if (atomic_load(&barrier->sleepers) != 0)
        syscall(SYS_futex, &barrier->phase, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static bool is_broken(const struct pd_barrier *barrier)
{
    return atomic_load_explicit(&barrier->broken, memory_order_relaxed);
}

bool pd_barrier_wait(struct pd_barrier *barrier)
{
    unsigned phase = atomic_load(&barrier->phase);

    if (is_broken(barrier))
        return false;
    if (atomic_fetch_add(&barrier->arrived, 1) == barrier->threads - 1) {
        atomic_store_explicit(&barrier->arrived, 0, memory_order_relaxed);
        release(barrier, phase + 1);
        return true;
    }
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&barrier->phase, memory_order_acquire) != phase)
            return !is_broken(barrier);
        relax();
    }
    for (int i = 0; i < YIELDS; i++) {
        if (atomic_load_explicit(&barrier->phase, memory_order_acquire) != phase)
            return !is_broken(barrier);
        sched_yield();
    }
    sleep_while(barrier, phase);
    return !is_broken(barrier);
}

void pd_barrier_excuse(struct pd_barrier *barrier, unsigned threads)
{
    atomic_fetch_add(&barrier->arrived, threads);
}

void pd_barrier_break(struct pd_barrier *barrier)
{
    atomic_store(&barrier->broken, true);
    release(barrier, atomic_load(&barrier->phase) + 1);
}
