#include "worker/link/job.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 4096 };

struct pd_job *pd_job_create(struct pd_attempt id, size_t total, struct pd_budget *budget)
{
    struct pd_job *job = calloc(1, sizeof(*job));

    if (!job)
        return NULL;
    atomic_init(&job->references, 1);
    atomic_init(&job->cancelled, false);
    job->id = id;
    job->total = total;
    job->budget = budget;
    return job;
}

struct pd_job *pd_job_share(struct pd_job *job)
{
    atomic_fetch_add_explicit(&job->references, 1, memory_order_relaxed);
    return job;
}

void pd_job_drop_bytes(struct pd_job *job)
{
    free(job->bytes);
    atomic_fetch_sub_explicit(&job->budget->used, job->capacity, memory_order_relaxed);
    job->bytes = NULL;
    job->length = job->capacity = 0;
}

void pd_job_release(struct pd_job *job)
{
    if (atomic_fetch_sub_explicit(&job->references, 1, memory_order_acq_rel) != 1)
        return;
    pd_job_drop_bytes(job);
    free(job);
}

static bool charge(struct pd_budget *budget, size_t bytes)
{
    size_t used = atomic_fetch_add_explicit(&budget->used, bytes, memory_order_relaxed);

    if (bytes <= budget->limit && used <= budget->limit - bytes)
        return true;
    atomic_fetch_sub_explicit(&budget->used, bytes, memory_order_relaxed);
    return false;
}

/* Doubles, but never beyond what was announced. */
static int grow(struct pd_job *job, size_t wanted)
{
    size_t capacity = job->capacity ? job->capacity : FIRST_CAPACITY;
    uint8_t *bytes;

    while (capacity < wanted)
        capacity *= 2;
    if (capacity > job->total)
        capacity = job->total;
    if (!charge(job->budget, capacity - job->capacity))
        return PD_FULL;
    bytes = realloc(job->bytes, capacity);
    if (!bytes) {
        atomic_fetch_sub_explicit(&job->budget->used, capacity - job->capacity,
                                  memory_order_relaxed);
        return PD_NO_MEMORY;
    }
    job->bytes = bytes;
    job->capacity = capacity;
    return PD_OK;
}

int pd_job_append(struct pd_job *job, const uint8_t *bytes, size_t length)
{
    int status;

    if (length > job->total - job->length)
        return PD_INVALID;
    if (length > job->capacity - job->length) {
        status = grow(job, job->length + length);
        if (status != PD_OK)
            return status;
    }
    if (length)
        memcpy(job->bytes + job->length, bytes, length);
    job->length += length;
    return PD_OK;
}
