#include "kernels/pages.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static const size_t REGION = (size_t)2 << 20, PAGE = 4096;

enum {
    SHORTEST_MS =
        12, /* pause after a region became huge: the thread takes a seventh of a core at most */
    LONGEST_MS = 800, /* pause where there was nothing to do for long */
    SEEKS = 1024,     /* in one look, each less than a microsecond */
    TRIES = 3,        /* after so many failures a region stays as it is: someone holds its pages */
};

struct pd_pages {
    pthread_t thread;
    pthread_mutex_t lock; /* guards `stopping` */
    pthread_cond_t stop;
    bool stopping;
    int fd;
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

static bool make_huge(struct pd_pages *pages, size_t region)
{
    bool made = madvise(pages->memory + region * REGION, REGION, MADV_COLLAPSE) == 0;

    if (made)
        pages->tries[region] = 0;
    else
        pages->tries[region]--;
    pages->undone -= pages->tries[region] == 0;
    return made;
}

/* Looks for the next region in which something lies, from *at on, and makes it huge. Returns whether it did. */
static bool look(struct pd_pages *pages, size_t *at)
{
    for (int seeks = 0; *at < pages->regions && seeks < SEEKS; ++*at) {
        off_t data;

        if (pages->tries[*at] == 0)
            continue;
        seeks++;
        data = lseek(pages->fd, (off_t)(*at * REGION), SEEK_DATA);
        if (data < 0) { /* nothing lies behind */
            *at = pages->regions;
            break;
        }
        *at = (size_t)data / REGION;
        if (*at < pages->regions && pages->tries[*at] > 0)
            return make_huge(pages, (*at)++);
    }
    return false;
}

/* Returns whether to go on. */
static bool pause_or_stop(struct pd_pages *pages, int ms)
{
    struct timespec until;
    bool stopping;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms * 1000000L;
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

static bool has_moved(const struct pd_pages *pages, uint64_t *seen)
{
    uint64_t before = *seen;

    if (pages->clock == NULL)
        return true;
    *seen = atomic_load_explicit(pages->clock, memory_order_relaxed);
    return *seen != before;
}

/* From the first region to the last, in as many looks as that takes; and again when the clock has moved. */
static void *main_loop(void *argument)
{
    struct pd_pages *pages = argument;
    size_t at = 0;
    uint64_t seen = 0;
    int pause_ms = SHORTEST_MS;

    pthread_setname_np(pthread_self(), "pages");
    while (pages->undone > 0 && pause_or_stop(pages, pause_ms)) {
        if (at >= pages->regions && has_moved(pages, &seen))
            at = 0;
        pause_ms = look(pages, &at) ? SHORTEST_MS : 2 * pause_ms;
        if (pause_ms > LONGEST_MS)
            pause_ms = LONGEST_MS;
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

struct pd_pages *pd_pages_watch(int fd, void *memory, size_t bytes, const _Atomic uint64_t *clock)
{
    size_t regions = bytes / REGION;
    struct pd_pages *pages;

    if (regions == 0 || (uintptr_t)memory % REGION != 0 || madvise(memory, 0, MADV_COLLAPSE) != 0)
        return NULL;
    pages = calloc(1, sizeof(*pages) + regions);
    if (pages == NULL)
        return NULL;
    pages->fd = fd;
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
