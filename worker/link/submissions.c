#include "worker/link/submissions.h"

#include <stdio.h>

#include "worker/base/clock.h"
#include "worker/base/log.h"

enum {
    PART_BYTES_MAX = 32 * 1024,
    ASSEMBLING_MAX = 256,
    ASSEMBLY_MS_MAX = 30000, /* from a submission's first part to its last */
    RETRY_AFTER_MS = 1000,
};

static struct pd_attempt attempt_id(const struct pd_attach *attach, const Pd__V1__SubmitPart *part)
{
    return (struct pd_attempt){attach->id, part->request, part->attempt};
}

/* Whether a submission may begin now; otherwise *refusal says why not. */
static bool may_begin(const struct pd_attach *attach, const Pd__V1__SubmitPart *part,
                      struct pd_refusal *refusal)
{
    const struct pd_link *link = attach->link;

    if (link->draining) {
        pd_refuse(refusal, PD__V1__FAILED__CODE__DRAINING, "", "this worker is leaving");
    } else if (attach->leaving) {
        pd_refuse(refusal, PD__V1__FAILED__CODE__INTERNAL, "",
                  "a frontend that drains has submitted a request");
    } else if (part->total > link->identity->max_submit_bytes) {
        pd_refuse(refusal, PD__V1__FAILED__CODE__INVALID, "",
                  "the request has %llu bytes; this worker accepts %llu (--max-submit-bytes)",
                  (unsigned long long)part->total,
                  (unsigned long long)link->identity->max_submit_bytes);
    } else if (attach->assembling >= ASSEMBLING_MAX ||
               pd_attempts_running(&attach->attempts) >= PD_ATTEMPTS_MAX) {
        pd_refuse(refusal, PD__V1__FAILED__CODE__CAPACITY, "",
                  "this worker has as many requests of one frontend as it accepts");
        refusal->retry_after_ms = RETRY_AFTER_MS;
    } else {
        return true;
    }
    return false;
}

/* The first part of a submission. NULL: it was refused. */
static struct pd_attempt_entry *begin(struct pd_attach *attach, const Pd__V1__SubmitPart *part)
{
    struct pd_attempt_entry *entry;
    struct pd_refusal refusal;
    struct pd_job *job = NULL;
    bool may = may_begin(attach, part, &refusal);

    attach->link->counters.submissions++;
    if (may)
        job = pd_job_create(attempt_id(attach, part), (size_t)part->total, &attach->link->budget);
    entry = pd_attempts_add(&attach->attempts, job);
    if (entry) {
        attach->assembling++;
        pd_attach_running(attach->link, 1);
        entry->until_ns = pd_clock_ns() + ASSEMBLY_MS_MAX * 1000000ull;
        pd_loop_tick_at(&attach->link->loop, entry->until_ns);
        return entry;
    }
    if (may)
        pd_refuse(&refusal, PD__V1__FAILED__CODE__INTERNAL, "", "out of memory");
    if (job)
        pd_job_release(job);
    pd_attach_send_failed(attach, part->request, part->attempt, &refusal);
    return NULL;
}

/* All parts have come: the job goes to intake. */
static void complete(struct pd_attach *attach, struct pd_attempt_entry *entry)
{
    struct pd_job *job = entry->job;
    struct pd_refusal refusal;

    if (job->length != job->total) {
        pd_refuse(&refusal, PD__V1__FAILED__CODE__INVALID, "",
                  "the submission ended after %zu of %zu bytes", job->length, job->total);
        pd_attach_refuse(attach, entry, &refusal);
        return;
    }
    job->arrived_ns = pd_clock_ns();
    if (pd_intake_put(attach->link->intake, pd_job_share(job)) != PD_OK) {
        pd_job_release(job);
        pd_refuse(&refusal, PD__V1__FAILED__CODE__CAPACITY, "",
                  "this worker has as many requests waiting as it accepts");
        refusal.retry_after_ms = RETRY_AFTER_MS;
        pd_attach_refuse(attach, entry, &refusal);
        return;
    }
    attach->assembling--;
    entry->state = PD_ATTEMPT_SUBMITTED;
    pd_attach_report_soon(attach);
}

/* Adds the part's bytes; false: the submission has been refused. */
static bool add_part(struct pd_attach *attach, struct pd_attempt_entry *entry,
                     const Pd__V1__SubmitPart *part)
{
    struct pd_refusal refusal;

    if (part->data.len > PART_BYTES_MAX) {
        pd_refuse(&refusal, PD__V1__FAILED__CODE__INVALID, "",
                  "a part of the submission has more than 32 KiB");
        pd_attach_refuse(attach, entry, &refusal);
        return false;
    }
    switch (pd_job_append(entry->job, part->data.data, part->data.len)) {
    case PD_OK:
        attach->link->counters.submit_bytes += part->data.len;
        return true;
    case PD_INVALID:
        pd_refuse(&refusal, PD__V1__FAILED__CODE__INVALID, "",
                  "the submission is longer than the %zu bytes that were announced",
                  entry->job->total);
        break;
    case PD_FULL:
        pd_refuse(&refusal, PD__V1__FAILED__CODE__CAPACITY, "",
                  "this worker holds as many bytes of submissions as it accepts");
        refusal.retry_after_ms = RETRY_AFTER_MS;
        break;
    default:
        pd_refuse(&refusal, PD__V1__FAILED__CODE__INTERNAL, "", "out of memory");
    }
    pd_attach_refuse(attach, entry, &refusal);
    return false;
}

void pd_submissions_part(struct pd_attach *attach, const Pd__V1__SubmitPart *part)
{
    struct pd_attempt_entry *entry =
        pd_attempts_find(&attach->attempts, part->request, part->attempt);
    char why[96];

    if (entry && entry->state != PD_ATTEMPT_ASSEMBLING) {
        snprintf(why, sizeof(why), "request %llu attempt %u is submitted twice",
                 (unsigned long long)part->request, part->attempt);
        pd_attach_close_bad(attach, GRPC_STATUS_INVALID_ARGUMENT, why);
        return;
    }
    if (!entry && part->total == 0)
        return; /* the rest of a submission that was refused or cancelled in its middle */
    if (!entry)
        entry = begin(attach, part);
    if (entry && add_part(attach, entry, part) && part->last)
        complete(attach, entry);
}

void pd_submissions_cancel(struct pd_attach *attach, const Pd__V1__Cancel *cancel)
{
    struct pd_attempt_entry *entry =
        pd_attempts_find(&attach->attempts, cancel->request, cancel->attempt);
    struct pd_attempt id = {attach->id, cancel->request, cancel->attempt};
    struct pd_refusal refusal;

    if (!entry || entry->cancelled)
        return;
    attach->link->counters.cancels++;
    switch (entry->state) {
    case PD_ATTEMPT_ASSEMBLING:
        pd_refuse(&refusal, PD__V1__FAILED__CODE__CANCELLED, "", "cancelled");
        pd_attach_refuse(attach, entry, &refusal);
        break;
    case PD_ATTEMPT_SUBMITTED:
        entry->cancelled = true;
        atomic_store(&entry->job->cancelled, true);
        pd_engine_cancel(attach->link->engine, id);
        break;
    case PD_ATTEMPT_HANDED:
        pd_engine_cancel(attach->link->engine, id);
        pd_attach_attempt_over(attach, entry);
        break;
    }
}

bool pd_submissions_tick(struct pd_attach *attach, uint64_t now_ns)
{
    struct pd_attempt_entry *next, *entry = attach->attempts.unseen.first;
    struct pd_refusal refusal;

    for (; entry && attach->assembling; entry = next) {
        next = entry->next;
        if (entry->state != PD_ATTEMPT_ASSEMBLING)
            continue;
        if (now_ns < entry->until_ns) {
            pd_loop_tick_at(&attach->link->loop, entry->until_ns);
            continue;
        }
        pd_refuse(&refusal, PD__V1__FAILED__CODE__DEADLINE, "",
                  "the rest of the submission did not come within 30 s");
        if (!pd_attach_refuse(attach, entry, &refusal))
            return false;
    }
    return true;
}
