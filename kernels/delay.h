/* How long a thread could have run while another one had its core: what the kernel calls its run delay.
 *
 * A step that takes longer than it should has either more to do or not the core that it counts on. Only
 * the scheduler can tell the two apart, and it does so in /proc/thread-self/schedstat. */
#ifndef PD_DELAY_H
#define PD_DELAY_H

#include <stdint.h>

/* Of one thread; zeroed before its first use. */
struct pd_delay {
    int file; /* descriptor + 1; 0: not opened yet, -1: this system does not tell */
};

/* Nanoseconds since the calling thread began; always the same thread for one `delay`. 0 where the system
 * does not tell. Costs about a microsecond. */
uint64_t pd_delay_ns(struct pd_delay *delay);

void pd_delay_close(struct pd_delay *delay);

#endif
