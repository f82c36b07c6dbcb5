#include "kernels/cuda/pilot.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/kernels.h"

/* Two launches, a call, and one that never is. */
enum { ORDERS = 4 };

struct order {
    struct pd_graph *graph; /* a launch */
    struct pd_step *step;
    uint64_t number;
    void (*work)(void *argument); /* a call */
    void *argument;
};

struct pd_cuda_pilot {
    struct pd_cuda_piloted piloted;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t ordered, done;
    struct order orders[ORDERS];
    unsigned given, finished; /* orders so far */
    uint64_t enqueued;        /* the last step that was */
    bool closing;
};

static void obey(struct pd_cuda_pilot *pilot, const struct order *order)
{
    if (order->work != NULL)
        order->work(order->argument);
    else
        pilot->piloted.launch(pilot->piloted.context, order->graph, order->step);
}

static void *fly(void *argument)
{
    struct pd_cuda_pilot *pilot = argument;

    pthread_setname_np(pthread_self(), "kernels");
    pilot->piloted.begin(pilot->piloted.context);
    pthread_mutex_lock(&pilot->lock);
    for (;;) {
        struct order order;

        while (pilot->finished == pilot->given && !pilot->closing)
            pthread_cond_wait(&pilot->ordered, &pilot->lock);
        if (pilot->finished == pilot->given)
            break;
        order = pilot->orders[pilot->finished % ORDERS];
        pthread_mutex_unlock(&pilot->lock);
        obey(pilot, &order);
        pthread_mutex_lock(&pilot->lock);
        pilot->finished++;
        if (order.work == NULL)
            pilot->enqueued = order.number;
        pthread_cond_broadcast(&pilot->done);
    }
    pthread_mutex_unlock(&pilot->lock);
    return NULL;
}

struct pd_cuda_pilot *pd_cuda_pilot_open(const struct pd_cuda_piloted *piloted)
{
    struct pd_cuda_pilot *pilot = calloc(1, sizeof(*pilot));
    pthread_condattr_t monotonic;

    if (pilot == NULL)
        return NULL;
    pilot->piloted = *piloted;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&pilot->lock, NULL);
    pthread_cond_init(&pilot->ordered, NULL);
    pthread_cond_init(&pilot->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&pilot->thread, NULL, fly, pilot) == 0)
        return pilot;
    free(pilot);
    return NULL;
}

void pd_cuda_pilot_close(struct pd_cuda_pilot *pilot)
{
    if (pilot == NULL)
        return;
    pthread_mutex_lock(&pilot->lock);
    pilot->closing = true;
    pthread_cond_signal(&pilot->ordered);
    pthread_mutex_unlock(&pilot->lock);
    pthread_join(pilot->thread, NULL);
    pthread_cond_destroy(&pilot->done);
    pthread_cond_destroy(&pilot->ordered);
    pthread_mutex_destroy(&pilot->lock);
    free(pilot);
}

/* The lock is held. */
static unsigned give(struct pd_cuda_pilot *pilot, const struct order *order)
{
    pilot->orders[pilot->given++ % ORDERS] = *order;
    pthread_cond_signal(&pilot->ordered);
    return pilot->given;
}

void pd_cuda_pilot_launch(struct pd_cuda_pilot *pilot, struct pd_graph *graph, struct pd_step *step)
{
    const struct order order = {.graph = graph, .step = step, .number = step->number};

    pthread_mutex_lock(&pilot->lock);
    give(pilot, &order);
    pthread_mutex_unlock(&pilot->lock);
}

bool pd_cuda_pilot_wait(struct pd_cuda_pilot *pilot, uint64_t number, int timeout_ms)
{
    struct timespec end;
    int error = 0;
    bool reached;

    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += timeout_ms / 1000;
    end.tv_nsec += timeout_ms % 1000 * 1000000L;
    if (end.tv_nsec >= 1000000000L) {
        end.tv_sec++;
        end.tv_nsec -= 1000000000L;
    }
    pthread_mutex_lock(&pilot->lock);
    while (pilot->enqueued < number && error != ETIMEDOUT)
        error = timeout_ms < 0 ? pthread_cond_wait(&pilot->done, &pilot->lock)
                               : pthread_cond_timedwait(&pilot->done, &pilot->lock, &end);
    reached = pilot->enqueued >= number;
    pthread_mutex_unlock(&pilot->lock);
    return reached;
}

void pd_cuda_pilot_call(struct pd_cuda_pilot *pilot, void (*work)(void *argument), void *argument)
{
    const struct order order = {.work = work, .argument = argument};
    unsigned place;

    pthread_mutex_lock(&pilot->lock);
    place = give(pilot, &order);
    while ((int)(pilot->finished - place) < 0)
        pthread_cond_wait(&pilot->done, &pilot->lock);
    pthread_mutex_unlock(&pilot->lock);
}
