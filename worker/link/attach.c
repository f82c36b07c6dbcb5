#include "worker/link/attach.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/base/clock.h"
#include "worker/base/log.h"
#include "worker/link/report.h"
#include "worker/link/submissions.h"

enum {
    PROTOCOL_MAX = 1, /* highest and lowest version spoken here */
    PROTOCOL_MIN = 1,
    SLOT_MAX = 1023,
    CAPABILITIES_MAX = 64,
    CAPABILITY_BYTES_MAX = 64,
    REPORT_MS_MIN = 100,
    REPORT_MS_MAX = 10000,
    REPORT_MS_DEFAULT = 1000,
    REPORT_MS_BUSY =
        50, /* while attempts of the stream run and no step speaks of them: a long prompt */
    OUT_BYTES_MAX = 2 << 20,
    STALL_MS_MAX = 10000,
    HELLO_MS_MAX = 10000,
};

_Static_assert(PD_ATTACHES_MAX == 256, "an attach id keeps its index in eight bits");
_Static_assert((int)PD_FRONTENDS_MAX >= (int)PD_ATTACHES_MAX,
               "each stream may be another frontend's");

struct pd_attach *pd_attach_find(const struct pd_link *link, uint64_t id)
{
    struct pd_attach *attach = link->attaches[id & (PD_ATTACHES_MAX - 1)];

    return attach && attach->id == id ? attach : NULL;
}

void pd_attach_running(struct pd_link *link, long by)
{
    atomic_fetch_add(&link->running, (size_t)by);
}

void pd_attach_attempt_over(struct pd_attach *attach, struct pd_attempt_entry *entry)
{
    if (entry->state == PD_ATTEMPT_ASSEMBLING)
        attach->assembling--;
    if (entry->state != PD_ATTEMPT_HANDED)
        pd_attach_running(attach->link, -1);
    pd_attempts_remove(&attach->attempts, entry);
}

/* ---- the end of a stream ------------------------------------------------------------------------
 */

/* The stream is over, or about to be: its attempts end with it. Frees the attach. */
static void forget(struct pd_attach *attach, const char *why)
{
    struct pd_link *link = attach->link;
    size_t running = pd_attempts_running(&attach->attempts);
    const struct pd_attempt_list *lists[] = {&attach->attempts.unseen, &attach->attempts.seen};

    for (int i = 0; i < 2; i++)
        for (struct pd_attempt_entry *entry = lists[i]->first; entry; entry = entry->next)
            atomic_store(&entry->job->cancelled, true);
    pd_engine_forget(link->engine, attach->id);
    pd_log(PD_LOG_INFO, "link", "attach=%llu frontend=%s slot=%u peer=%s ended: %s; %zu cancelled",
           (unsigned long long)attach->id, attach->frontend, attach->slot, attach->peer, why,
           running);
    pd_attach_running(link, -(long)running);
    pd_attempts_clear(&attach->attempts);
    pd_frontends_leave(attach->health);
    link->attaches[attach->id & (PD_ATTACHES_MAX - 1)] = NULL;
    link->attach_count--;
    free(attach);
}

static void attach_ended(void *owner, grpc_status_code code, const char *why)
{
    struct pd_attach *attach = owner;

    if (code == GRPC_STATUS_RESOURCE_EXHAUSTED)
        attach->link->counters.attaches_cut++;
    forget(attach, why);
}

void pd_attach_close_bad(struct pd_attach *attach, grpc_status_code code, const char *why)
{
    pd_log(PD_LOG_WARN, "link", "attach=%llu peer=%s: %s: the stream is closed",
           (unsigned long long)attach->id, attach->peer, why);
    attach->link->counters.messages_bad++;
    pd_stream_close(attach->stream, code, why);
    forget(attach, why);
}

void pd_attach_cut(struct pd_attach *attach, const char *why)
{
    pd_log(PD_LOG_WARN, "link", "attach=%llu peer=%s: %s: the stream is cut, %zu bytes are lost",
           (unsigned long long)attach->id, attach->peer, why,
           pd_stream_queued_bytes(attach->stream));
    attach->link->counters.attaches_cut++;
    pd_stream_cut(attach->stream, GRPC_STATUS_RESOURCE_EXHAUSTED, why);
    forget(attach, why);
}

/* ---- sending ------------------------------------------------------------------------------------
 */

bool pd_attach_send(struct pd_attach *attach, const Pd__V1__FromWorker *message)
{
    int status = pd_stream_send(attach->stream, pd_link_pack(&message->base));

    if (status == PD_OK || status == PD_CLOSED)
        return true; /* closed: the end of the stream is on its way to us */
    pd_attach_cut(attach, status == PD_FULL ? "the frontend does not read" : "out of memory");
    return false;
}

bool pd_attach_send_failed(struct pd_attach *attach, uint64_t request, uint32_t attempt,
                           const struct pd_refusal *refusal)
{
    Pd__V1__FromWorker message = PD__V1__FROM_WORKER__INIT;
    Pd__V1__Failed failed = PD__V1__FAILED__INIT;

    failed.request = request;
    failed.attempt = attempt;
    failed.code = (Pd__V1__Failed__Code)refusal->code;
    failed.message = (char *)refusal->message;
    failed.param = (char *)refusal->param;
    failed.retry_after_ms = refusal->retry_after_ms;
    failed.prompt_tokens = refusal->prompt_tokens;
    message.kind_case = PD__V1__FROM_WORKER__KIND_FAILED;
    message.failed = &failed;
    if (refusal->code >= 0 && refusal->code < PD_FAILURE_CODES)
        attach->link->counters.failures[refusal->code]++;
    return pd_attach_send(attach, &message);
}

bool pd_attach_refuse(struct pd_attach *attach, struct pd_attempt_entry *entry,
                      const struct pd_refusal *refusal)
{
    uint64_t request = entry->request;
    uint32_t attempt = entry->attempt;

    pd_attach_attempt_over(attach, entry);
    return pd_attach_send_failed(attach, request, attempt, refusal);
}

static bool same_frontend(const struct pd_attach *one, const struct pd_attach *other)
{
    return other != one && other->greeted && other->name && other->attempts.submissions &&
           !strcmp(other->frontend, one->frontend);
}

/* The processes of one frontend share what they know: each report says of all their streams what it
 * includes, so that whoever reads it first can tell what it does not. */
static void add_seen(const struct pd_attach *attach, Pd__V1__LoadReport *report)
{
    struct pd_link *link = attach->link;

    report->n_seen = 0;
    if (link->attach_count < 2 || !attach->name)
        return;
    report->seen = pd_scratch_array(&link->scratch, link->attach_count, sizeof(*report->seen));
    for (size_t i = 0; report->seen && i < PD_ATTACHES_MAX; i++) {
        const struct pd_attach *other = link->attaches[i];
        Pd__V1__StreamSeen *seen;

        if (!other || !same_frontend(attach, other))
            continue;
        seen = pd_scratch_alloc(&link->scratch, sizeof(*seen));
        if (!seen)
            return;
        pd__v1__stream_seen__init(seen);
        seen->stream = other->name;
        seen->last_submission = pd_attempts_last_submission(&other->attempts);
        report->seen[report->n_seen++] = seen;
    }
}

void pd_attach_number_report(struct pd_attach *attach, Pd__V1__LoadReport *report)
{
    report->number = ++attach->reports;
    report->last_submission = pd_attempts_last_submission(&attach->attempts);
    add_seen(attach, report);
    attach->report_at_ns = pd_clock_ns() + attach->report_interval_ns;
    if (pd_attempts_running(&attach->attempts))
        pd_attach_report_soon(attach);
    pd_loop_tick_at(&attach->link->loop, attach->report_at_ns);
}

void pd_attach_report_soon(struct pd_attach *attach)
{
    uint64_t soon_ns = pd_clock_ns() + REPORT_MS_BUSY * 1000000ull;

    if (soon_ns < attach->report_at_ns) {
        attach->report_at_ns = soon_ns;
        pd_loop_tick_at(&attach->link->loop, soon_ns);
    }
}

static bool send_report(struct pd_attach *attach)
{
    struct pd_link *link = attach->link;
    Pd__V1__FromWorker message = PD__V1__FROM_WORKER__INIT;

    pd_scratch_reset(&link->scratch);
    message.kind_case = PD__V1__FROM_WORKER__KIND_LOAD;
    message.load = pd_report_load(link, &link->scratch);
    if (!message.load) {
        pd_attach_cut(attach, "out of memory");
        return false;
    }
    pd_attach_number_report(attach, message.load);
    return pd_attach_send(attach, &message);
}

static bool send_drain(struct pd_attach *attach)
{
    Pd__V1__FromWorker message = PD__V1__FROM_WORKER__INIT;
    Pd__V1__WorkerDrain drain = PD__V1__WORKER_DRAIN__INIT;

    drain.deadline_ms = attach->link->drain_ms;
    message.kind_case = PD__V1__FROM_WORKER__KIND_DRAIN;
    message.drain = &drain;
    return pd_attach_send(attach, &message);
}

/* ---- hello --------------------------------------------------------------------------------------
 */

/* NULL, or what is wrong with it. */
static const char *check_hello(const Pd__V1__FrontendHello *hello)
{
    if (strlen(hello->frontend_id) > PD_FRONTEND_BYTES_MAX)
        return "hello: frontend_id is longer than 64 bytes";
    if (hello->slot > SLOT_MAX)
        return "hello: slot is above 1023";
    if (hello->n_capabilities > CAPABILITIES_MAX)
        return "hello: more than 64 capabilities";
    for (size_t i = 0; i < hello->n_capabilities; i++)
        if (strlen(hello->capabilities[i]) > CAPABILITY_BYTES_MAX)
            return "hello: a capability is longer than 64 bytes";
    if (hello->report_interval_ms &&
        (hello->report_interval_ms < REPORT_MS_MIN || hello->report_interval_ms > REPORT_MS_MAX))
        return "hello: report_interval_ms is not within 100..10000";
    return NULL;
}

static void answer_hello(struct pd_attach *attach)
{
    struct pd_link *link = attach->link;
    Pd__V1__FromWorker message = PD__V1__FROM_WORKER__INIT;

    message.kind_case = PD__V1__FROM_WORKER__KIND_HELLO;
    message.hello = &link->hello;
    if (pd_attach_send(attach, &message) && send_report(attach) && link->draining)
        send_drain(attach);
}

static void receive_hello(struct pd_attach *attach, const Pd__V1__FrontendHello *hello)
{
    const char *fault = check_hello(hello);
    uint32_t interval_ms =
        hello->report_interval_ms ? hello->report_interval_ms : REPORT_MS_DEFAULT;
    char why[128];

    if (fault) {
        pd_attach_close_bad(attach, GRPC_STATUS_INVALID_ARGUMENT, fault);
        return;
    }
    if (hello->protocol < PROTOCOL_MIN || hello->protocol_min > PROTOCOL_MAX) {
        snprintf(why, sizeof(why),
                 "the frontend speaks protocol %u to %u, this worker %d to %d: upgrade one of them",
                 hello->protocol_min, hello->protocol, PROTOCOL_MIN, PROTOCOL_MAX);
        pd_attach_close_bad(attach, GRPC_STATUS_FAILED_PRECONDITION, why);
        return;
    }
    attach->greeted = true;
    pd_stream_settled(attach->stream);
    strcpy(attach->frontend, hello->frontend_id);
    attach->health = pd_frontends_join(&attach->link->frontends, hello->frontend_id);
    attach->slot = hello->slot;
    attach->generation = hello->generation;
    attach->name = hello->stream;
    attach->report_interval_ns = (uint64_t)interval_ms * 1000000u;
    pd_log(PD_LOG_INFO, "link", "attach=%llu frontend=%s slot=%u generation=%llu peer=%s attached",
           (unsigned long long)attach->id, attach->frontend, attach->slot,
           (unsigned long long)attach->generation, attach->peer);
    answer_hello(attach);
}

/* ---- messages -----------------------------------------------------------------------------------
 */

/* The frontend's process lives, and may tell how its requests end; it hears of the others. */
static void receive_heartbeat(struct pd_attach *attach, const Pd__V1__Heartbeat *heartbeat)
{
    struct pd_link *link = attach->link;
    Pd__V1__FromWorker message = PD__V1__FROM_WORKER__INIT;
    uint64_t now_ns = pd_clock_ns();

    pd_frontends_tell(attach->health, heartbeat->health, now_ns);
    pd_scratch_reset(&link->scratch);
    message.kind_case = PD__V1__FROM_WORKER__KIND_FRONTENDS;
    message.frontends =
        pd_frontends_others(&link->frontends, attach->health, &link->scratch, now_ns);
    if (message.frontends)
        pd_attach_send(attach, &message);
}

static void receive(struct pd_attach *attach, const Pd__V1__ToWorker *message)
{
    if (!attach->greeted) {
        if (message->kind_case == PD__V1__TO_WORKER__KIND_HELLO)
            receive_hello(attach, message->hello);
        else
            pd_attach_close_bad(attach, GRPC_STATUS_INVALID_ARGUMENT,
                                "the first message is no hello");
        return;
    }
    switch (message->kind_case) {
    case PD__V1__TO_WORKER__KIND_HELLO:
        pd_attach_close_bad(attach, GRPC_STATUS_INVALID_ARGUMENT, "a second hello");
        break;
    case PD__V1__TO_WORKER__KIND_SUBMIT:
        pd_submissions_part(attach, message->submit);
        break;
    case PD__V1__TO_WORKER__KIND_CANCEL:
        pd_submissions_cancel(attach, message->cancel);
        break;
    case PD__V1__TO_WORKER__KIND_DRAIN:
        attach->leaving = true;
        break;
    case PD__V1__TO_WORKER__KIND_HEARTBEAT:
        receive_heartbeat(attach, message->heartbeat);
        break;
    default: /* a kind of a later version */
        break;
    }
}

static void attach_message(void *owner, const uint8_t *bytes, size_t length)
{
    struct pd_attach *attach = owner;
    struct pd_scratch *inbox = &attach->link->inbox;
    Pd__V1__ToWorker *message;

    pd_scratch_reset(inbox);
    message = pd__v1__to_worker__unpack(&inbox->protobuf, length, bytes);
    if (message)
        receive(attach, message);
    else
        pd_attach_close_bad(attach, GRPC_STATUS_INVALID_ARGUMENT, "a message cannot be read");
}

void pd_attach_accept(struct pd_link *link, grpc_call *call, const char *peer)
{
    static const struct pd_stream_events events = {NULL, attach_message, attach_ended};
    static const struct pd_stream_limits limits = {OUT_BYTES_MAX, STALL_MS_MAX, HELLO_MS_MAX};
    struct pd_attach *attach = NULL;
    size_t index = 0;

    while (index < PD_ATTACHES_MAX && link->attaches[index])
        index++;
    if (index < PD_ATTACHES_MAX)
        attach = calloc(1, sizeof(*attach));
    if (!attach) {
        link->counters.attaches_refused++;
        pd_stream_refuse(&link->streams, call, GRPC_STATUS_RESOURCE_EXHAUSTED,
                         "this worker has as many frontends as it accepts");
        return;
    }
    attach->link = link;
    attach->id = (uint64_t)++link->attach_serial << 8 | index;
    snprintf(attach->peer, sizeof(attach->peer), "%s", peer);
    attach->stream = pd_stream_serve(&link->streams, call, &events, attach, &limits);
    if (!attach->stream) {
        free(attach);
        return;
    }
    link->attaches[index] = attach;
    link->attach_count++;
    link->counters.attaches++;
}

/* ---- all of them --------------------------------------------------------------------------------
 */

void pd_attaches_drain(struct pd_link *link)
{
    for (size_t i = 0; i < PD_ATTACHES_MAX; i++)
        if (link->attaches[i] && link->attaches[i]->greeted)
            send_drain(link->attaches[i]);
}

void pd_attaches_tick(struct pd_link *link, uint64_t now_ns)
{
    for (size_t i = 0; i < PD_ATTACHES_MAX; i++) {
        struct pd_attach *attach = link->attaches[i];

        if (!attach || !attach->greeted || !pd_submissions_tick(attach, now_ns))
            continue;
        if (now_ns < attach->report_at_ns)
            pd_loop_tick_at(&link->loop, attach->report_at_ns);
        else
            send_report(attach);
    }
}

void pd_attaches_overrun(struct pd_link *link)
{
    pd_log(PD_LOG_ERROR, "link", "messages of the engine are lost: %zu streams are cut",
           link->attach_count);
    for (size_t i = 0; i < PD_ATTACHES_MAX; i++)
        if (link->attaches[i])
            pd_attach_cut(link->attaches[i], "messages of the engine were lost");
}

void pd_attaches_close(struct pd_link *link)
{
    for (size_t i = 0; i < PD_ATTACHES_MAX; i++) {
        if (!link->attaches[i])
            continue;
        pd_stream_close(link->attaches[i]->stream, GRPC_STATUS_UNAVAILABLE, "this worker leaves");
        forget(link->attaches[i], "this worker leaves");
    }
}
