#include "worker/link/kv_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/base/log.h"
#include "worker/link/address.h"
#include "worker/link/channel.h"

enum { OUT_BYTES_MAX = 16 << 20, STALL_MS_MAX = 10000, CONNECT_MS_MAX = 5000 };

struct pd_kv_stream {
    struct pd_link *link;
    struct pd_kv_stream *next;
    uint64_t id;
    struct pd_stream *stream;
    grpc_channel *channel; /* opened by us; NULL: served */
    bool open;             /* has been */
    char peer[PD_ADDRESS_MAX + 1];
};

struct kv_message {
    struct pd_message message;
    uint64_t id;
    uint8_t *bytes; /* SEND: owned */
    size_t length;
    char address[PD_ADDRESS_MAX + 1]; /* OPEN */
};

/* ---- on kvx's thread ----------------------------------------------------------------------------
 */

/* Without memory the message is lost and nobody knows of which link: all of them end. */
static void post(struct pd_link *link, enum pd_link_message kind, struct kv_message from)
{
    struct kv_message *message = malloc(sizeof(*message));

    if (!message) {
        free(from.bytes);
        if (!atomic_exchange(&link->kv_overrun, true))
            pd_loop_wake(&link->loop);
        return;
    }
    *message = from;
    pd_link_post(link, &message->message, kind);
}

void pd_kv_events_open(void *context, uint64_t id, const char *address)
{
    struct kv_message message = {.id = id};

    snprintf(message.address, sizeof(message.address), "%s", address);
    post(context, PD_LINK_KV_OPEN, message);
}

void pd_kv_events_close(void *context, uint64_t id)
{
    post(context, PD_LINK_KV_CLOSE, (struct kv_message){.id = id});
}

void pd_kv_events_send(void *context, uint64_t id, uint8_t *bytes, size_t length)
{
    post(context, PD_LINK_KV_SEND, (struct kv_message){.id = id, .bytes = bytes, .length = length});
}

void pd_kv_message_drop(struct pd_message *message)
{
    struct kv_message *kv = (struct kv_message *)message;

    free(kv->bytes);
    kv->bytes = NULL;
}

/* ---- streams ------------------------------------------------------------------------------------
 */

static struct pd_kv_stream *find(struct pd_link *link, uint64_t id)
{
    struct pd_kv_stream *kv = link->kv_streams;

    while (kv && kv->id != id)
        kv = kv->next;
    return kv;
}

static struct pd_kv_stream *add(struct pd_link *link, uint64_t id, const char *peer)
{
    struct pd_kv_stream *kv = calloc(1, sizeof(*kv));

    if (!kv)
        return NULL;
    kv->link = link;
    kv->id = id;
    snprintf(kv->peer, sizeof(kv->peer), "%s", peer);
    kv->next = link->kv_streams;
    link->kv_streams = kv;
    return kv;
}

/* The stream is over or being ended. */
static void forget(struct pd_kv_stream *kv)
{
    struct pd_link *link = kv->link;
    struct pd_kv_stream **at = &link->kv_streams;

    while (*at != kv)
        at = &(*at)->next;
    *at = kv->next;
    if (kv->channel)
        grpc_channel_destroy(kv->channel);
    if (kv->stream)
        *(kv->channel ? &link->kv_opened : &link->kv_served) -= 1;
    free(kv);
}

static void kv_opened(void *owner)
{
    struct pd_kv_stream *kv = owner;

    kv->open = true;
    pd_stream_settled(kv->stream);
    pd_log(PD_LOG_INFO, "link", "kv-link=%llu to %s is open", (unsigned long long)kv->id, kv->peer);
    pd_kvx_link_up(kv->link->kvx, kv->id);
}

static void kv_message(void *owner, const uint8_t *bytes, size_t length)
{
    struct pd_kv_stream *kv = owner;

    pd_kvx_receive(kv->link->kvx, kv->id, bytes, length);
}

/* Tells kvx, then forgets. */
static void down(struct pd_kv_stream *kv, const char *why)
{
    /* A lost link is tried again and again: kvx says once that it is. */
    pd_log(kv->open ? PD_LOG_INFO : PD_LOG_DEBUG, "link", "kv-link=%llu %s %s is down: %s",
           (unsigned long long)kv->id, kv->channel ? "to" : "from", kv->peer, why);
    pd_kvx_link_down(kv->link->kvx, kv->id, why);
    forget(kv);
}

static void kv_ended(void *owner, grpc_status_code code, const char *why)
{
    struct pd_kv_stream *kv = owner;
    char text[300];

    if (kv->channel)
        kv->link->counters.kv_links_failed++;
    snprintf(text, sizeof(text), "%s (gRPC status %d)", *why ? why : "ended", (int)code);
    down(kv, text);
}

static const struct pd_stream_events kv_events = {kv_opened, kv_message, kv_ended};

void pd_kv_accept(struct pd_link *link, grpc_call *call, const char *peer)
{
    static const struct pd_stream_limits limits = {OUT_BYTES_MAX, STALL_MS_MAX, 0};
    struct pd_kv_stream *kv = NULL;

    if (!link->kvx) {
        pd_stream_refuse(&link->streams, call, GRPC_STATUS_UNAVAILABLE,
                         "this worker has no KV to offer");
        return;
    }
    if (link->kv_served < PD_KV_LINKS_MAX)
        kv = add(link, pd_kvx_next_link_id(link->kvx), peer);
    if (!kv) {
        pd_stream_refuse(&link->streams, call, GRPC_STATUS_RESOURCE_EXHAUSTED,
                         "this worker has as many KV links as it accepts");
        return;
    }
    kv->stream = pd_stream_serve(&link->streams, call, &kv_events, kv, &limits);
    if (!kv->stream) {
        forget(kv);
        return;
    }
    kv->open = true;
    link->kv_served++;
    link->counters.kv_links_served++;
    pd_log(PD_LOG_INFO, "link", "kv-link=%llu from %s is open", (unsigned long long)kv->id, peer);
    pd_kvx_reader_up(link->kvx, kv->id, peer);
}

/* ---- what kvx asks for --------------------------------------------------------------------------
 */

static void refuse_open(struct pd_link *link, uint64_t id, const char *why)
{
    link->counters.kv_links_failed++;
    pd_kvx_link_down(link->kvx, id, why);
}

static void open_link(struct pd_link *link, uint64_t id, const char *address)
{
    static const struct pd_stream_limits limits = {OUT_BYTES_MAX, STALL_MS_MAX, CONNECT_MS_MAX};
    /* The largest message holds a whole prompt's ids and its blocks' generations. */
    int receive_max = (int)link->identity->max_model_len * 12 + 64 * 1024;
    struct pd_kv_stream *kv = NULL;

    if (link->kv_opened < PD_KV_LINKS_MAX)
        kv = add(link, id, address);
    if (!kv) {
        refuse_open(link, id, "as many KV links are open as this worker opens");
        return;
    }
    kv->channel = pd_channel_create(link->credentials.channel, address, receive_max);
    if (kv->channel)
        kv->stream =
            pd_stream_open(&link->streams, kv->channel, "/pd.v1.Kv/Link", &kv_events, kv, &limits);
    if (!kv->stream) {
        forget(kv);
        refuse_open(link, id, "the ticket's address cannot be dialled");
        return;
    }
    link->kv_opened++;
    link->counters.kv_links_opened++;
}

static void send_bytes(struct pd_kv_stream *kv, const uint8_t *bytes, size_t length)
{
    grpc_slice slice = grpc_slice_from_copied_buffer((const char *)bytes, length);
    int status = pd_stream_send(kv->stream, slice);

    if (status == PD_OK || status == PD_CLOSED)
        return;
    pd_stream_cut(kv->stream, GRPC_STATUS_RESOURCE_EXHAUSTED, "the peer does not read");
    down(kv, "the peer does not read");
}

void pd_kv_handle(struct pd_link *link, const struct pd_message *message)
{
    const struct kv_message *from = (const struct kv_message *)message;
    struct pd_kv_stream *kv;

    if (!link->kvx)
        return;
    kv = find(link, from->id);
    if (message->kind == PD_LINK_KV_OPEN) {
        open_link(link, from->id, from->address);
    } else if (kv && message->kind == PD_LINK_KV_SEND) {
        send_bytes(kv, from->bytes, from->length);
    } else if (kv && message->kind == PD_LINK_KV_CLOSE) {
        pd_stream_close(kv->stream, GRPC_STATUS_UNAVAILABLE, "the KV link was ended");
        forget(kv);
    }
}

static void close_all(struct pd_link *link, const char *why)
{
    while (link->kv_streams) {
        pd_stream_close(link->kv_streams->stream, GRPC_STATUS_UNAVAILABLE, why);
        down(link->kv_streams, why);
    }
}

void pd_kv_overrun(struct pd_link *link)
{
    pd_log(PD_LOG_ERROR, "link", "out of memory: KV control messages are lost, %zu links are ended",
           link->kv_served + link->kv_opened);
    close_all(link, "control messages were lost: out of memory");
}

void pd_kv_release(struct pd_link *link)
{
    close_all(link, "this worker leaves");
    link->kvx = NULL;
}
