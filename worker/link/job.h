/* A submission on its way from the wire to the engine: its bytes, counted against one budget.
 *
 * Two sides hold a job: the Attach stream that assembles it and may cancel it, and intake, which
 * works on it. The last one frees it. Memory is charged to a budget that all streams share, as it
 * grows and not as a peer announces it, so that a big number costs nothing. */
#ifndef PD_JOB_H
#define PD_JOB_H

#include <stdatomic.h>

#include "worker/base/mailbox.h"
#include "worker/engine/engine.h"

struct pd_budget {
    atomic_size_t used;
    size_t limit;
};

struct pd_job {
    struct pd_message message; /* in intake's mailbox */
    atomic_uint references;
    atomic_bool cancelled; /* set by the stream: intake drops the job or takes its request back */
    struct pd_attempt id;
    uint64_t arrived_ns;
    uint8_t *bytes;
    size_t length, capacity;
    size_t total; /* what the first part announced */
    struct pd_budget *budget;
};

/* One reference, the caller's; NULL without memory. */
struct pd_job *pd_job_create(struct pd_attempt id, size_t total, struct pd_budget *budget);

struct pd_job *pd_job_share(struct pd_job *job);
void pd_job_release(struct pd_job *job);

/* PD_INVALID if the job would become longer than announced, PD_FULL if the budget is used up,
 * PD_NO_MEMORY. */
int pd_job_append(struct pd_job *job, const uint8_t *bytes, size_t length);

/* Gives the bytes back before the job itself goes. */
void pd_job_drop_bytes(struct pd_job *job);

#endif
