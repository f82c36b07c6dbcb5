/* A barrier that its threads meet at again and again.
 *
 * A thread that waits first spins for a bounded time (operators of a small model are a few
 * microseconds apart), then lets others have its core between two looks, for as long as two steps may be
 * apart, then sleeps in the kernel: a busy machine is not fought over by threads that only wait. */
#ifndef PD_BARRIER_H
#define PD_BARRIER_H

#include <stdatomic.h>
#include <stdbool.h>

enum { PD_BARRIER_LINE = 64 };

/* `arrived` and `phase` lie in lines of their own: arrivals do not disturb those who spin. */
struct pd_barrier {
    _Alignas(PD_BARRIER_LINE) atomic_uint phase;
    atomic_uint sleepers;
    atomic_bool broken;
    _Alignas(PD_BARRIER_LINE) atomic_uint arrived;
    unsigned threads;
};

void pd_barrier_init(struct pd_barrier *barrier, unsigned threads);

/* Returns when all threads have called it. What was written before is seen after. False: it is broken, and
 * others may not have come. */
bool pd_barrier_wait(struct pd_barrier *barrier);

/* Arrives for `threads` that will never come, and does not wait. Not the last to arrive. */
void pd_barrier_excuse(struct pd_barrier *barrier, unsigned threads);

/* From now on nobody waits here, and who does is let go: somebody will never come. */
void pd_barrier_break(struct pd_barrier *barrier);

#endif
