#include "worker/link/stats.h"

#include <stdlib.h>

#include "worker/link/accept.h"
#include "worker/link/report.h"

enum { OUT_BYTES_MAX = 1 << 20, STALL_MS_MAX = 5000, REQUEST_MS_MAX = 5000, COUNTERS_MAX = 64 };

struct stats_call {
    struct pd_link *link;
    struct pd_stream *stream;
};

static const char *const failure_names[PD_FAILURE_CODES] = {
    "failures_internal", "failures_invalid",  "failures_context_length",
    "failures_capacity", "failures_ticket",   "failures_cancelled",
    "failures_draining", "failures_deadline", "failures_redirect"};

struct counters {
    Pd__V1__Counter entries[COUNTERS_MAX];
    Pd__V1__Counter *list[COUNTERS_MAX];
    size_t count;
};

static void add(struct counters *counters, const char *name, double value)
{
    Pd__V1__Counter *entry = &counters->entries[counters->count];

    pd__v1__counter__init(entry);
    entry->name = (char *)name;
    entry->value = value;
    counters->list[counters->count++] = entry;
}

static void add_engine(struct counters *to, const struct pd_link *link)
{
    struct pd_load load;

    pd_engine_load(link->engine, &load);
    add(to, "kv_blocks", (double)load.kv_total);
    add(to, "tokens_prefilled", (double)load.tokens_prefilled);
    add(to, "tokens_decoded", (double)load.tokens_decoded);
    add(to, "prompt_tokens", (double)load.prompt_tokens);
    add(to, "requests", (double)load.requests);
    add(to, "ended_stop", (double)load.ended_stop);
    add(to, "ended_length", (double)load.ended_length);
    add(to, "ended_handed_over", (double)load.ended_handed_over);
    add(to, "ended_failed", (double)load.ended_failed);
    add(to, "steps_us", (double)load.steps_us);
    add(to, "steps_delay_us", (double)load.steps_delay_us);
    add(to, "queue_us", (double)load.queue_us);
    add(to, "prefill_us", (double)load.prefill_us);
    add(to, "decode_us", (double)load.decode_us);
    add(to, "prefill_chunk_tokens", (double)load.prefill_chunk_tokens);
    add(to, "preemptions", (double)load.preemptions);
    add(to, "cache_evictions", (double)load.evictions);
    add(to, "steps_cut", (double)load.steps_cut);
    add(to, "cache_hit_tokens", (double)load.cache_hit_tokens);
    add(to, "offered_tokens", (double)load.offered_tokens);
    add(to, "borrowed_tokens", (double)load.borrowed_tokens);
}

static void add_link(struct counters *to, const struct pd_link *link)
{
    const struct pd_link_counters *from = &link->counters;

    add(to, "attaches_now", (double)link->attach_count);
    add(to, "attaches", (double)from->attaches);
    add(to, "attaches_refused", (double)from->attaches_refused);
    add(to, "attaches_cut", (double)from->attaches_cut);
    add(to, "connections_refused", (double)pd_accept_refused());
    add(to, "submissions", (double)from->submissions);
    add(to, "submit_bytes", (double)from->submit_bytes);
    add(to, "submit_bytes_held", (double)atomic_load(&link->budget.used));
    add(to, "attempts_running", (double)atomic_load(&link->running));
    add(to, "cancels", (double)from->cancels);
    add(to, "step_messages", (double)from->step_messages);
    add(to, "messages_bad", (double)from->messages_bad);
    add(to, "bytes_unsent", (double)link->streams.queued_bytes);
    add(to, "kv_links_served_now", (double)link->kv_served);
    add(to, "kv_links_opened_now", (double)link->kv_opened);
    add(to, "kv_links_served", (double)from->kv_links_served);
    add(to, "kv_links_opened", (double)from->kv_links_opened);
    add(to, "kv_links_failed", (double)from->kv_links_failed);
    add(to, "registrations", (double)from->registrations);
    add(to, "registrations_failed", (double)from->registrations_failed);
    for (int i = 0; i < PD_FAILURE_CODES; i++)
        add(to, failure_names[i], (double)from->failures[i]);
}

static void answer(struct pd_link *link, struct pd_stream *stream)
{
    Pd__V1__StatsReply reply = PD__V1__STATS_REPLY__INIT;
    struct counters counters = {.count = 0};

    pd_scratch_reset(&link->scratch);
    add_engine(&counters, link);
    add_link(&counters, link);
    reply.hello = &link->hello;
    reply.load = pd_report_load(link, &link->scratch);
    reply.counters = counters.list;
    reply.n_counters = counters.count;
    pd_stream_send(stream, pd_link_pack(&reply.base));
}

static void forget(struct stats_call *call)
{
    call->link->stats_calls--;
    free(call);
}

static void stats_message(void *owner, const uint8_t *bytes, size_t length)
{
    struct stats_call *call = owner;
    Pd__V1__StatsRequest *request = pd__v1__stats_request__unpack(NULL, length, bytes);

    if (request) {
        answer(call->link, call->stream);
        pd_stream_close(call->stream, GRPC_STATUS_OK, "");
        pd__v1__stats_request__free_unpacked(request, NULL);
    } else {
        call->link->counters.messages_bad++;
        pd_stream_close(call->stream, GRPC_STATUS_INVALID_ARGUMENT, "the request cannot be read");
    }
    forget(call);
}

static void stats_ended(void *owner, grpc_status_code code, const char *why)
{
    (void)code;
    (void)why;
    forget(owner);
}

void pd_stats_accept(struct pd_link *link, grpc_call *grpc)
{
    static const struct pd_stream_events events = {NULL, stats_message, stats_ended};
    static const struct pd_stream_limits limits = {OUT_BYTES_MAX, STALL_MS_MAX, REQUEST_MS_MAX};
    struct stats_call *call = NULL;

    if (link->stats_calls < PD_STATS_CALLS_MAX)
        call = calloc(1, sizeof(*call));
    if (!call) {
        pd_stream_refuse(&link->streams, grpc, GRPC_STATUS_RESOURCE_EXHAUSTED,
                         "too many Stats calls at once");
        return;
    }
    call->link = link;
    call->stream = pd_stream_serve(&link->streams, grpc, &events, call, &limits);
    if (!call->stream)
        free(call);
    else
        link->stats_calls++;
}
