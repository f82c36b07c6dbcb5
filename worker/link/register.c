#include "worker/link/register.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/base/clock.h"
#include "worker/base/log.h"
#include "worker/link/channel.h"

enum {
    CALL_MS_MAX = 5000,
    BACKOFF_MS_MIN = 200,
    BACKOFF_MS_MAX = 5000,
    LEASE_MS_MIN = 1000,
    LEASE_MS_MAX = 3600 * 1000,
    REPLY_BYTES_MAX = 4096,
    REQUEST_BYTES_MAX = 16 * 1024,
};

struct pd_registration {
    struct pd_link *link;
    const char *address, *token;
    grpc_channel *channel;
    struct pd_stream *stream; /* the call on its way, or NULL */
    uint64_t next_ns;         /* of the next call */
    uint32_t lease_ms;        /* of this call's reply; 0: none yet */
    uint32_t backoff_ms;
    bool registered, failing, leaving, said_goodbye;
};

static void schedule(struct pd_registration *r, uint32_t after_ms)
{
    r->next_ns = pd_clock_ns() + (uint64_t)after_ms * 1000000u;
    pd_loop_tick_at(&r->link->loop, r->next_ns);
}

static void registered(struct pd_registration *r)
{
    if (!r->registered)
        pd_log(PD_LOG_INFO, "register", "dispatcher=%s registered for %u ms", r->address,
               r->lease_ms);
    r->registered = true;
    r->failing = false;
    r->backoff_ms = 0;
    r->link->counters.registrations++;
    schedule(r, r->lease_ms / 3);
}

static void failed(struct pd_registration *r, grpc_status_code code, const char *why)
{
    if (!r->failing)
        pd_log(PD_LOG_WARN, "register",
               "dispatcher=%s does not take the registration: %s (gRPC status %d); trying again",
               r->address, *why ? why : "no answer", (int)code);
    r->failing = true;
    r->registered = false;
    r->link->counters.registrations_failed++;
    r->backoff_ms = r->backoff_ms ? r->backoff_ms * 2 : BACKOFF_MS_MIN;
    if (r->backoff_ms > BACKOFF_MS_MAX)
        r->backoff_ms = BACKOFF_MS_MAX;
    schedule(r, r->backoff_ms);
}

static void reply_message(void *owner, const uint8_t *bytes, size_t length)
{
    struct pd_registration *r = owner;
    Pd__V1__RegisterReply *reply = pd__v1__register_reply__unpack(NULL, length, bytes);

    if (!reply)
        return; /* no lease: the end of the call counts as a failure */
    r->lease_ms = reply->lease_ms < LEASE_MS_MIN   ? LEASE_MS_MIN
                  : reply->lease_ms > LEASE_MS_MAX ? LEASE_MS_MAX
                                                   : reply->lease_ms;
    pd__v1__register_reply__free_unpacked(reply, NULL);
}

static void call_ended(void *owner, grpc_status_code code, const char *why)
{
    struct pd_registration *r = owner;

    r->stream = NULL;
    if (r->leaving) {
        r->registered |= code == GRPC_STATUS_OK; /* a call that crossed our leaving */
        schedule(r, 0);                          /* says goodbye, if that has not been said */
    } else if (code == GRPC_STATUS_OK && r->lease_ms) {
        registered(r);
    } else {
        failed(r, code, code == GRPC_STATUS_OK ? "the reply cannot be read" : why);
    }
}

static void call(struct pd_registration *r)
{
    static const struct pd_stream_events events = {NULL, reply_message, call_ended};
    static const struct pd_stream_limits limits = {REQUEST_BYTES_MAX, CALL_MS_MAX, CALL_MS_MAX};
    Pd__V1__RegisterRequest request = PD__V1__REGISTER_REQUEST__INIT;

    request.token = (char *)r->token;
    request.address = (char *)r->link->identity->address;
    request.hello = &r->link->hello;
    request.leaving = r->leaving;
    r->said_goodbye = r->leaving;
    r->lease_ms = 0;
    if (!r->channel)
        r->channel = pd_channel_create(r->link->credentials.channel, r->address, REPLY_BYTES_MAX);
    if (r->channel)
        r->stream = pd_stream_open(&r->link->streams, r->channel, "/pd.v1.Dispatcher/Register",
                                   &events, r, &limits);
    if (!r->stream) {
        failed(r, GRPC_STATUS_INTERNAL, "the address cannot be dialled");
        return;
    }
    pd_stream_send(r->stream, pd_link_pack(&request.base));
    pd_stream_half_close(r->stream);
}

int pd_registrations_create(struct pd_link *link, const struct pd_link_registration *from,
                            struct pd_error *error)
{
    if (from->count == 0)
        return PD_OK;
    link->registrations = calloc(from->count, sizeof(*link->registrations));
    if (!link->registrations)
        return pd_fail(error, PD_NO_MEMORY, "no memory for registrations");
    for (size_t i = 0; i < from->count; i++) {
        link->registrations[i].link = link;
        link->registrations[i].address = from->addresses[i];
        link->registrations[i].token = from->token;
    }
    link->registration_count = from->count;
    return PD_OK;
}

void pd_registrations_tick(struct pd_link *link, uint64_t now_ns)
{
    for (size_t i = 0; i < link->registration_count; i++) {
        struct pd_registration *r = &link->registrations[i];

        if (r->stream || r->said_goodbye || (r->leaving && !r->registered))
            continue;
        if (now_ns >= r->next_ns)
            call(r);
        else
            pd_loop_tick_at(&link->loop, r->next_ns);
    }
}

void pd_registrations_leave(struct pd_link *link)
{
    for (size_t i = 0; i < link->registration_count; i++) {
        link->registrations[i].leaving = true;
        schedule(&link->registrations[i], 0);
    }
}

bool pd_registrations_done(const struct pd_link *link)
{
    for (size_t i = 0; i < link->registration_count; i++) {
        const struct pd_registration *r = &link->registrations[i];

        if (r->stream || (r->leaving && r->registered && !r->said_goodbye))
            return false;
    }
    return true;
}

void pd_registrations_free(struct pd_link *link)
{
    for (size_t i = 0; i < link->registration_count; i++) {
        struct pd_registration *r = &link->registrations[i];

        if (r->stream)
            pd_stream_close(r->stream, GRPC_STATUS_CANCELLED, "");
        if (r->channel)
            grpc_channel_destroy(r->channel);
    }
    free(link->registrations);
    link->registrations = NULL;
    link->registration_count = 0;
}
