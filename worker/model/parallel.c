#include "worker/model/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { THREADS_MAX = 256 };

struct run {
    const struct pd_tasks *tasks;
    atomic_size_t next;
    atomic_bool failed;
    pthread_mutex_t lock; /* of `status` and `error` */
    int status;
    struct pd_error error;
};

static void keep_first(struct run *run, int status, const struct pd_error *error)
{
    pthread_mutex_lock(&run->lock);
    if (run->status == PD_OK) {
        run->status = status;
        run->error = *error;
    }
    pthread_mutex_unlock(&run->lock);
    atomic_store(&run->failed, true);
}

static void work(struct run *run, void (*tick)(void *context))
{
    struct pd_error error = {PD_OK, ""};
    size_t index;
    int status;

    while (!atomic_load(&run->failed) &&
           (index = atomic_fetch_add(&run->next, 1)) < run->tasks->count) {
        status = run->tasks->run(run->tasks->context, index, &error);
        if (status != PD_OK)
            keep_first(run, status, &error);
        if (tick)
            tick(run->tasks->context);
    }
}

static void *helper(void *run)
{
    work(run, NULL);
    return NULL;
}

static int usable_processors(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

int pd_tasks_run(const struct pd_tasks *tasks, int threads, struct pd_error *error)
{
    struct run run = {.tasks = tasks, .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t helpers[THREADS_MAX];
    int started = 0;

    if (threads <= 0)
        threads = usable_processors();
    if (threads > THREADS_MAX)
        threads = THREADS_MAX;
    while (started + 1 < threads && (size_t)started + 1 < tasks->count &&
           pthread_create(&helpers[started], NULL, helper, &run) == 0)
        started++;
    work(&run, tasks->tick);
    while (started > 0)
        pthread_join(helpers[--started], NULL);
    pthread_mutex_destroy(&run.lock);
    if (run.status != PD_OK && error)
        *error = run.error;
    return run.status;
}
