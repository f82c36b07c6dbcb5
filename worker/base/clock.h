/* Time as the worker counts it: nanoseconds of CLOCK_MONOTONIC, never the wall clock. */
#ifndef PD_CLOCK_H
#define PD_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t pd_clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif
