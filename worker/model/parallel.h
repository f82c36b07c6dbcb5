/* Many independent tasks over a few threads: what makes loading fast. */
#ifndef PD_PARALLEL_H
#define PD_PARALLEL_H

#include <stddef.h>

#include "worker/base/error.h"

struct pd_tasks {
    size_t count;
    /* Runs task `index`; may run at the same time as others, in any thread. */
    int (*run)(void *context, size_t index, struct pd_error *error);
    /* Called in the caller's thread now and then; may be NULL. */
    void (*tick)(void *context);
    void *context;
};

/* Starts tasks 0, 1, 2, ... in this order, on `threads` threads of which the caller is one (0: one
 * per processor this process may use), and returns when all have ended. The first failure keeps
 * further tasks from starting, and is what *error and the result tell. Where no thread can be
 * created the caller does the work alone. */
int pd_tasks_run(const struct pd_tasks *tasks, int threads, struct pd_error *error);

#endif
