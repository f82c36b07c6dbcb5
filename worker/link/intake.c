#include "worker/link/intake.h"

#include <stdlib.h>

#include "proto/pd.pb-c.h"
#include "worker/base/log.h"

enum {
    RETRY_AFTER_MS = 1000,
    SHORT_BYTES = 2048, /* a submission of them takes some 50 us */
};

struct pd_intake {
    const struct pd_link_identity *identity;
    struct pd_engine *engine;
    void (*failed)(void *context, const struct pd_failure *failure);
    void *context;
    struct pd_mailbox box;
    atomic_size_t under_way; /* jobs in the mailbox and in the thread's hands */
    atomic_bool closing;
    pthread_t thread;
};

static bool is_cancelled(const struct pd_job *job)
{
    return atomic_load_explicit(&job->cancelled, memory_order_seq_cst);
}

/* `request` may be NULL: it was not read. */
static void tell_failed(const struct pd_intake *intake, const struct pd_job *job,
                        const struct pd_request *request, const struct pd_refusal *refusal)
{
    char name[PD_REQUEST_NAME];
    struct pd_failure failure = {
        .id = job->id,
        .code = refusal->code,
        .message = refusal->message,
        .param = refusal->param,
        .retry_after_ms = refusal->retry_after_ms,
        .prompt_tokens = refusal->prompt_tokens,
    };

    pd_log(PD_LOG_DEBUG, "intake", "attach=%llu request=%llu attempt=%u id=%s refused: %s",
           (unsigned long long)(job->id.attach), (unsigned long long)job->id.request,
           job->id.attempt, request ? pd_request_name(request, name) : "-", refusal->message);
    intake->failed(intake->context, &failure);
}

static void refuse_submit(struct pd_refusal *refusal, int status)
{
    if (status == PD_FULL)
        pd_refuse(refusal, PD__V1__FAILED__CODE__CAPACITY, "",
                  "this worker has as many requests waiting as it accepts");
    else if (status == PD_CLOSED)
        pd_refuse(refusal, PD__V1__FAILED__CODE__DRAINING, "", "this worker is leaving");
    else
        pd_refuse(refusal, PD__V1__FAILED__CODE__INTERNAL, "", "out of memory");
    if (status == PD_FULL)
        refusal->retry_after_ms = RETRY_AFTER_MS;
}

static void log_accepted(const struct pd_request *request)
{
    char name[PD_REQUEST_NAME];

    if (!pd_log_shows(PD_LOG_DEBUG))
        return;
    pd_log(PD_LOG_DEBUG, "intake",
           "attach=%llu request=%llu attempt=%u id=%s class=%s tenant=%s accepted: %zu tokens, "
           "at most %u to come",
           (unsigned long long)request->id.attach, (unsigned long long)request->id.request,
           request->id.attempt, pd_request_name(request, name),
           request->interactive ? "interactive" : "standard",
           request->tenant[0] ? request->tenant : "-", request->prompt.count,
           request->sampling.max_tokens);
}

static void work_on(struct pd_intake *intake, struct pd_job *job)
{
    struct pd_refusal refusal;
    struct pd_request *request = NULL;
    int status;

    if (is_cancelled(job)) {
        pd_refuse(&refusal, PD__V1__FAILED__CODE__CANCELLED, "", "cancelled");
        tell_failed(intake, job, NULL, &refusal);
        return;
    }
    if (pd_submit_read(intake->identity, job, &request, &refusal) != PD_OK) {
        tell_failed(intake, job, request, &refusal);
        pd_request_free(request);
        return;
    }
    log_accepted(request);
    status = pd_engine_submit(intake->engine, request);
    if (status != PD_OK) {
        refuse_submit(&refusal, status);
        tell_failed(intake, job, request, &refusal);
        pd_request_free(request);
    } else if (is_cancelled(job)) {
        pd_engine_cancel(intake->engine, job->id);
    }
}

static void finish(struct pd_intake *intake, struct pd_job *job)
{
    work_on(intake, job);
    pd_job_drop_bytes(job);
    pd_job_release(job);
}

static void *run(void *argument)
{
    struct pd_intake *intake = argument;
    struct pd_message *list;

    pthread_setname_np(pthread_self(), "intake");
    while (!atomic_load(&intake->closing)) {
        list = pd_mailbox_take(&intake->box, -1);
        while (list) {
            struct pd_job *job = (struct pd_job *)list;

            list = list->next;
            if (atomic_load(&intake->closing))
                pd_job_release(job);
            else
                finish(intake, job);
            atomic_fetch_sub(&intake->under_way, 1);
        }
    }
    return NULL;
}

int pd_intake_create(const struct pd_link_identity *identity, struct pd_engine *engine,
                     void (*failed)(void *context, const struct pd_failure *failure), void *context,
                     struct pd_intake **out, struct pd_error *error)
{
    struct pd_intake *intake = calloc(1, sizeof(*intake));

    if (!intake)
        return pd_fail(error, PD_NO_MEMORY, "no memory for intake");
    intake->identity = identity;
    intake->engine = engine;
    intake->failed = failed;
    intake->context = context;
    atomic_init(&intake->under_way, 0);
    atomic_init(&intake->closing, false);
    pd_mailbox_init(&intake->box, PD_INTAKE_JOBS_MAX, NULL, NULL);
    if (pthread_create(&intake->thread, NULL, run, intake)) {
        pd_mailbox_destroy(&intake->box);
        free(intake);
        return pd_fail(error, PD_IO, "the system gives no thread for intake (ulimit -u?)");
    }
    *out = intake;
    return PD_OK;
}

int pd_intake_put(struct pd_intake *intake, struct pd_job *job)
{
    int status;

    if (job->length <= SHORT_BYTES && atomic_load(&intake->under_way) == 0) {
        finish(intake, job);
        return PD_OK;
    }
    atomic_fetch_add(&intake->under_way, 1);
    status = pd_mailbox_put(&intake->box, &job->message, PD_MAILBOX_BOUNDED);
    if (status != PD_OK)
        atomic_fetch_sub(&intake->under_way, 1);
    return status;
}

void pd_intake_destroy(struct pd_intake *intake)
{
    struct pd_message *list;

    atomic_store(&intake->closing, true);
    pd_mailbox_close(&intake->box);
    pthread_join(intake->thread, NULL);
    for (list = pd_mailbox_take(&intake->box, 0); list;) {
        struct pd_job *job = (struct pd_job *)list;

        list = list->next;
        pd_job_release(job);
    }
    pd_mailbox_destroy(&intake->box);
    free(intake);
}
