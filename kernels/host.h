/* A device whose memory is the host's: what the cpu and the reference backends share.
 *
 *     engine's thread                      executor's thread = member 0 of the team
 *     ---------------                      ----------------------------------------
 *     launch ──▶ [history][step n+1] ──▶   takes commands in order; for a step, every thread of the
 * team wait   ◀── completed = n             walks the graph's operators, with a barrier after each
 *
 * With many rows, there is one after each run of operators that rows go through apart (apart.h).
 *
 * A step can be left between two operators, or runs. One thread looks whether it is to be, before the barrier behind an
 * operator, and behind the barrier all read what it saw.
 *
 * A backend gives a table of functions, one per kind of operator, and its own weights. */
#ifndef PD_HOST_H
#define PD_HOST_H

#include <stdatomic.h>

#include "kernels/backend.h"
#include "kernels/delay.h"
#include "kernels/team.h"

struct pd_host;

enum { PD_HOST_ROWS = 16 }; /* rows that go through operators apart are cut between so many */

/* One step as the operators see it. */
struct pd_host_run {
    struct pd_host *host;
    const struct pd_graph *graph;
    struct pd_step *step;
    /* Where rows go through operators apart (apart.h), the one thread's whose run this is: these. */
    bool apart;
    int first, end;
};

/* Runs on every thread of the team; `thread` says which. All share the work as they like, and may
 * meet in pd_team_barrier if all do; of a run apart, a thread does its rows alone. */
typedef void pd_host_operator(const struct pd_host_run *run, const struct pd_op *op, int thread);

struct pd_host_command;

struct pd_host {
    struct pd_device device;
    pd_host_operator *const *operators; /* [PD_OP_COUNT] */
    /* Runs on one thread before a step's first operator; may be NULL. */
    void (*begin)(const struct pd_host_run *run);
    /* Asks memory for what a thread reads first of an operator, when it has done its part of the one in front and waits
     * for the others; may be NULL. */
    pd_host_operator *ahead;
    /* So many rows at most go through operators apart at a time, a multiple of PD_HOST_ROWS; fewer than half of
     * them to a thread do not. 0: none do, and operators see no such runs. */
    int apart;
    struct pd_team *team;
    int threads;
    void *steps; /* memory of the descriptors */

    /* Touched by the executor only, or while nothing runs. */
    int32_t *history; /* [max_seqs][max_model_len] */
    int32_t *last;    /* [max_seqs] token sampled last */
    _Atomic uint64_t progress;
    struct pd_delay *delays;   /* [threads] */
    _Atomic int left_at;       /* the running step's operator behind which all leave it */
    _Atomic uint64_t delay_ns; /* in steps, the sum over all threads */
    _Atomic uint64_t cut;      /* the step that is to be left */

    pthread_t executor;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t queued, done;
    struct pd_host_command *first, **tail;
    int waiting_histories;
    uint64_t launched, completed; /* step numbers */
    uint64_t left;                /* the last step that was left */
    bool idle, closing;
    struct pd_host_command *launches[2]; /* preallocated: a launch allocates nothing */
};

/* Makes everything but the backend's own. `host` is zeroed memory with `operators` and `begin` set,
 * which pd_host_close frees. On failure `error` has a line and host is freed. */
int pd_host_open(struct pd_host *host, const struct pd_backend *backend,
                 const struct pd_device_options *options, int threads, char *error, size_t size);

/* The members of pd_backend that are the same for every host backend. */
void pd_host_close(struct pd_device *device);
int pd_host_buffer_allocate(struct pd_buffer *buffer);
void pd_host_buffer_release(struct pd_buffer *buffer);
int pd_host_launch(struct pd_graph *graph, struct pd_step *step);
int pd_host_wait(struct pd_device *device, uint64_t number, int timeout_ms);
void pd_host_cut(struct pd_device *device, uint64_t number);
void pd_host_drain(struct pd_device *device);
int pd_host_history_write(struct pd_device *device, int slot, int position, const int32_t *tokens,
                          int count);
int pd_host_fence(struct pd_device *device);
uint64_t pd_host_progress(const struct pd_device *device);
uint64_t pd_host_delay_ns(const struct pd_device *device);
int pd_host_meet(struct pd_group *group, char *error, size_t size);
void pd_host_abandon(struct pd_group *group);
void pd_host_part(struct pd_group *group);
void pd_host_memory(struct pd_device_info *info);

/* The operators of a group, the same for every host backend too (collect.c). */
pd_host_operator pd_host_allreduce, pd_host_allgather;

/* Memory for vectors: zeroed, on a page, huge pages where the system has them, and readable for 64
 * bytes past its end. NULL if there is none. Freed with the same size. */
void *pd_host_allocate(size_t bytes);
void pd_host_free(void *memory, size_t bytes);

static inline float *pd_host_floats(struct pd_tensor tensor)
{
    return (float *)((char *)tensor.buffer->host + tensor.offset);
}

/* Thread's share of `count` items in units of `unit`: items *first to *end. */
static inline void pd_host_share(int count, int unit, int thread, int threads, int *first, int *end)
{
    int64_t units = ((int64_t)count + unit - 1) / unit;
    int64_t from = units * thread / threads * unit, to = units * (thread + 1) / threads * unit;

    *first = (int)(from < count ? from : count);
    *end = (int)(to < count ? to : count);
}

/* Rows that an operator works on in this step. */
static inline int pd_host_rows(const struct pd_host_run *run, const struct pd_op *op)
{
    return op->rows_are_samples ? run->step->samples : run->step->tokens;
}

/* Whether a step of so many tokens has rows enough to go apart: graphs make room where one may. */
static inline bool pd_host_goes_apart(const struct pd_host *host, int tokens)
{
    return host->apart > 0 && 2 * (tokens / host->threads) >= host->apart;
}

/* Those of them that are this thread's, where operators work row by row. */
static inline void pd_host_own_rows(const struct pd_host_run *run, const struct pd_op *op,
                                    int thread, int *first, int *end)
{
    *first = run->first;
    *end = run->end;
    if (!run->apart)
        pd_host_share(pd_host_rows(run, op), 1, thread, run->host->threads, first, end);
}

static inline int32_t *pd_host_history(const struct pd_host *host, int slot)
{
    return host->history + (size_t)slot * (size_t)host->device.options.max_model_len;
}

/* The token of row t, wherever it comes from. */
static inline int32_t pd_host_token(const struct pd_host_run *run, int t)
{
    int32_t token = run->step->token[t];

    return token >= 0 ? token : run->host->last[-1 - token];
}

#endif
