#include "kernels/pages.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static const size_t REGION = (size_t)2 << 20, PAGE = 4096;

enum {
    PAUSE_MS = 50,  /* between two looks, which take about a tenth of a millisecond, */
    LOOKED_AT = 64, /* with so many regions each, */
    MADE = 4,       /* so many of which are made huge at most */
    TRIES = 3,      /* after so many failures a region stays as it is: someone holds its pages */
    SAMPLES = 16,   /* pages of a region that tell whether something lies there */
};

struct pd_pages {
    pthread_t thread;
    pthread_mutex_t lock; /* guards `stopping` */
    pthread_cond_t stop;
    bool stopping;
    uint8_t *memory;
    const _Atomic uint64_t *clock;
    size_t regions, undone;
    uint8_t tries[]; /* of each region; 0: nothing more is to be done */
};

void *pd_pages_map(int fd, size_t bytes, int protection)
{
    uint8_t *place = MAP_FAILED, *memory;
    size_t before;

    if (bytes > SIZE_MAX - REGION) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    place =
        mmap(NULL, bytes + REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED)
        return MAP_FAILED;
    before = -(uintptr_t)place % REGION;
    memory = mmap(place + before, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
    if (memory == MAP_FAILED) {
        int reason = errno;

        munmap(place, bytes + REGION);
        errno = reason;
        return MAP_FAILED;
    }
    if (before > 0)
        munmap(place, before);
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    munmap(memory + bytes, REGION - before);
    return memory;
}

static bool holds_something(const uint8_t *region)
{
    unsigned char present = 0;

    for (size_t i = 0; i < SAMPLES && present == 0; i++) {
        if (mincore((void *)(region + i * (REGION / SAMPLES)), PAGE, &present) != 0)
            return false;
        present &= 1;
    }
    return present != 0;
}

/* Looks at the regions from *at on, goes on after the last with the first. Returns how many were looked at. */
static size_t look(struct pd_pages *pages, size_t *at, size_t most)
{
    size_t seen = 0;

    for (int made = 0; seen < most && seen < LOOKED_AT && made < MADE; seen++) {
        size_t i = *at;
        uint8_t *region = pages->memory + i * REGION;

        *at = (i + 1) % pages->regions;
        if (pages->tries[i] == 0 || !holds_something(region))
            continue;
        made++;
        if (madvise(region, REGION, MADV_COLLAPSE) == 0)
            pages->tries[i] = 0;
        else
            pages->tries[i]--;
        pages->undone -= pages->tries[i] == 0;
    }
    return seen;
}

/* Returns whether to go on. */
static bool pause_or_stop(struct pd_pages *pages)
{
    struct timespec until;
    bool stopping;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += PAUSE_MS * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    pthread_mutex_lock(&pages->lock);
    while (!pages->stopping &&
           pthread_cond_timedwait(&pages->stop, &pages->lock, &until) != ETIMEDOUT)
        ;
    stopping = pages->stopping;
    pthread_mutex_unlock(&pages->lock);
    return !stopping;
}

/* When the clock has moved, every region is due for a look. */
static void *main_loop(void *argument)
{
    struct pd_pages *pages = argument;
    size_t at = 0, due = pages->regions;
    uint64_t seen = 0;

    pthread_setname_np(pthread_self(), "pages");
    while (pages->undone > 0 && pause_or_stop(pages)) {
        if (pages->clock == NULL) {
            due = pages->regions;
        } else if (atomic_load_explicit(pages->clock, memory_order_relaxed) != seen) {
            seen = atomic_load_explicit(pages->clock, memory_order_relaxed);
            due = pages->regions;
        }
        due -= look(pages, &at, due);
    }
    return NULL;
}

static bool start(struct pd_pages *pages)
{
    pthread_condattr_t monotonic;
    sigset_t all, before;
    bool started;

    if (pthread_mutex_init(&pages->lock, NULL) != 0)
        return false;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    started = pthread_cond_init(&pages->stop, &monotonic) == 0;
    pthread_condattr_destroy(&monotonic);
    if (!started) {
        pthread_mutex_destroy(&pages->lock);
        return false;
    }
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    started = pthread_create(&pages->thread, NULL, main_loop, pages) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!started) {
        pthread_cond_destroy(&pages->stop);
        pthread_mutex_destroy(&pages->lock);
    }
    return started;
}

struct pd_pages *pd_pages_watch(void *memory, size_t bytes, const _Atomic uint64_t *clock)
{
    size_t regions = bytes / REGION;
    struct pd_pages *pages;

    if (regions == 0 || (uintptr_t)memory % REGION != 0 || madvise(memory, 0, MADV_COLLAPSE) != 0)
        return NULL;
    pages = calloc(1, sizeof(*pages) + regions);
    if (pages == NULL)
        return NULL;
    pages->memory = memory;
    pages->clock = clock;
    pages->regions = pages->undone = regions;
    for (size_t i = 0; i < regions; i++)
        pages->tries[i] = TRIES;
    if (start(pages))
        return pages;
    free(pages);
    return NULL;
}

void pd_pages_release(struct pd_pages *pages)
{
    if (pages == NULL)
        return;
    pthread_mutex_lock(&pages->lock);
    pages->stopping = true;
    pthread_cond_signal(&pages->stop);
    pthread_mutex_unlock(&pages->lock);
    pthread_join(pages->thread, NULL);
    pthread_cond_destroy(&pages->stop);
    pthread_mutex_destroy(&pages->lock);
    free(pages);
}
