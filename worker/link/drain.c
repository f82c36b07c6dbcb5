#include "worker/link/drain.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "worker/base/clock.h"
#include "worker/base/log.h"
#include "worker/link/report.h"

enum {
    OUT_BYTES_MAX = 4096,
    STALL_MS_MAX = 5000,
    REQUEST_MS_MAX = 5000,
    PROGRESS_MS = 250,
    DEADLINE_MS_MAX = 24 * 3600 * 1000,
};

struct pd_drain {
    struct pd_link *link;
    struct pd_stream *stream;
    size_t index; /* in link->drains */
    bool asked;   /* its request has come */
};

static void forget(struct pd_drain *drain)
{
    drain->link->drains[drain->index] = NULL;
    free(drain);
}

static void close_drain(struct pd_drain *drain, grpc_status_code code, const char *why)
{
    pd_stream_close(drain->stream, code, why);
    forget(drain);
}

static uint64_t left_ms(const struct pd_link *link)
{
    uint64_t now_ns = pd_clock_ns();

    return link->drain_until_ns > now_ns ? (link->drain_until_ns - now_ns) / 1000000u : 0;
}

static bool watched(const struct pd_link *link)
{
    for (size_t i = 0; i < PD_DRAIN_CALLS_MAX; i++)
        if (link->drains[i] && link->drains[i]->asked)
            return true;
    return false;
}

/* To everybody who has asked; a watcher that does not read misses some. */
static void tell(struct pd_link *link, bool last)
{
    Pd__V1__DrainProgress progress = PD__V1__DRAIN_PROGRESS__INIT;
    const Pd__V1__LoadReport *load;

    if (!watched(link))
        return;
    pd_scratch_reset(&link->scratch);
    load = pd_report_load(link, &link->scratch);
    progress.attempts = (uint32_t)atomic_load(&link->running);
    progress.running = load ? load->running : 0;
    progress.waiting = load ? load->waiting : 0;
    progress.left_ms = left_ms(link);
    progress.last = last;
    for (size_t i = 0; i < PD_DRAIN_CALLS_MAX; i++)
        if (link->drains[i] && link->drains[i]->asked)
            pd_stream_send(link->drains[i]->stream, pd_link_pack(&progress.base));
}

void pd_drains_begin(struct pd_link *link)
{
    link->drain_tell_ns = 0;
    pd_loop_tick_at(&link->loop, 0);
}

void pd_drains_tick(struct pd_link *link, uint64_t now_ns)
{
    if (!link->draining || link->stopping || !watched(link))
        return;
    if (now_ns >= link->drain_tell_ns) {
        tell(link, false);
        link->drain_tell_ns = now_ns + PROGRESS_MS * 1000000ull;
    }
    pd_loop_tick_at(&link->loop, link->drain_tell_ns);
}

void pd_drains_end(struct pd_link *link)
{
    tell(link, true);
    for (size_t i = 0; i < PD_DRAIN_CALLS_MAX; i++)
        if (link->drains[i])
            close_drain(link->drains[i], GRPC_STATUS_OK, "");
}

static void ask(struct pd_link *link, uint32_t deadline_ms)
{
    if (link->draining || link->asked_to_drain)
        return;
    link->asked_to_drain = true;
    atomic_store(&link->asked_drain_ms, deadline_ms);
    pd_log(PD_LOG_INFO, "link", "asked to drain over the wire");
    kill(getpid(), SIGTERM);
}

static void drain_message(void *owner, const uint8_t *bytes, size_t length)
{
    struct pd_drain *drain = owner;
    struct pd_link *link = drain->link;
    Pd__V1__DrainRequest *request = pd__v1__drain_request__unpack(NULL, length, bytes);
    bool sound = request && !drain->asked && request->deadline_ms <= DEADLINE_MS_MAX;
    uint32_t deadline_ms = request ? request->deadline_ms : 0;

    if (request)
        pd__v1__drain_request__free_unpacked(request, NULL);
    if (!sound) {
        link->counters.messages_bad++;
        close_drain(drain, GRPC_STATUS_INVALID_ARGUMENT,
                    "one request of at most a day is what a drain takes");
        return;
    }
    drain->asked = true;
    pd_stream_settled(drain->stream);
    ask(link, deadline_ms);
    pd_drains_begin(link);
}

/* Whoever watched has left, or does not read: the worker drains all the same. */
static void drain_ended(void *owner, grpc_status_code code, const char *why)
{
    (void)code;
    (void)why;
    forget(owner);
}

void pd_drain_accept(struct pd_link *link, grpc_call *call)
{
    static const struct pd_stream_events events = {NULL, drain_message, drain_ended};
    static const struct pd_stream_limits limits = {OUT_BYTES_MAX, STALL_MS_MAX, REQUEST_MS_MAX};
    struct pd_drain *drain = NULL;
    size_t index = 0;

    while (index < PD_DRAIN_CALLS_MAX && link->drains[index])
        index++;
    if (index < PD_DRAIN_CALLS_MAX)
        drain = calloc(1, sizeof(*drain));
    if (!drain) {
        pd_stream_refuse(&link->streams, call, GRPC_STATUS_RESOURCE_EXHAUSTED,
                         "too many Drain calls at once");
        return;
    }
    drain->link = link;
    drain->index = index;
    drain->stream = pd_stream_serve(&link->streams, call, &events, drain, &limits);
    if (drain->stream)
        link->drains[index] = drain;
    else
        free(drain);
}
