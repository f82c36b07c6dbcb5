#include "worker/link/stream.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/base/clock.h"
#include "worker/base/log.h"

struct outgoing {
    struct outgoing *next;
    grpc_byte_buffer *buffer;
    size_t size;
};

/* Which operation of a call a tag stands for. */
enum { TAG_END, TAG_HEAD, TAG_OPEN, TAG_READ, TAG_READY, TAG_SEND, TAG_FINISH, TAGS };

struct pd_stream {
    struct pd_streams *streams;
    struct pd_stream *next, *previous;
    grpc_call *call;
    bool client;
    const struct pd_stream_events *events; /* NULL: the owner is not told anything any more */
    void *owner;
    struct pd_stream_limits limits;

    struct pd_tag tags[TAGS];
    unsigned outstanding; /* tags that gRPC still holds */
    bool ended;           /* TAG_END has come: nothing can be sent or read */

    grpc_byte_buffer *incoming;
    struct outgoing *first, **last; /* the first one is being sent if `sending` */
    size_t queued_bytes;
    bool sending;
    bool reads_late; /* the next message is asked for behind what is being sent */
    uint64_t send_started_ns;

    uint64_t deadline_ns; /* 0: none */
    bool closing, finishing, half_closing;
    uint64_t cut_ns; /* while closing: when patience ends */
    grpc_status_code status;
    char why[256];

    int cancelled;                         /* server: what RECV_CLOSE_ON_SERVER says */
    grpc_metadata_array initial, trailing; /* client */
    grpc_status_code peer_status;          /* client */
    grpc_slice peer_details;               /* client */
};

static void end_done(struct pd_tag *tag, bool ok);
static void other_done(struct pd_tag *tag, bool ok);
static void open_done(struct pd_tag *tag, bool ok);
static void read_done(struct pd_tag *tag, bool ok);
static void ready_done(struct pd_tag *tag, bool ok);
static void send_done(struct pd_tag *tag, bool ok);

/* ---- life ---------------------------------------------------------------------------------------
 */

static struct pd_stream *stream_new(struct pd_streams *streams, grpc_call *call, bool client,
                                    const struct pd_stream_events *events, void *owner,
                                    const struct pd_stream_limits *limits)
{
    static void (*const handlers[TAGS])(struct pd_tag *, bool) = {
        [TAG_END] = end_done,     [TAG_HEAD] = other_done,  [TAG_OPEN] = open_done,
        [TAG_READ] = read_done,   [TAG_READY] = ready_done, [TAG_SEND] = send_done,
        [TAG_FINISH] = other_done};
    struct pd_stream *stream = calloc(1, sizeof(*stream));

    if (!stream)
        return NULL;
    stream->streams = streams;
    stream->call = call;
    stream->client = client;
    stream->events = events;
    stream->owner = owner;
    stream->limits = *limits;
    stream->last = &stream->first;
    for (int i = 0; i < TAGS; i++)
        stream->tags[i] = (struct pd_tag){.done = handlers[i], .owner = stream};
    grpc_metadata_array_init(&stream->initial);
    grpc_metadata_array_init(&stream->trailing);
    stream->peer_details = grpc_empty_slice();
    if (limits->deadline_ms) {
        stream->deadline_ns = pd_clock_ns() + (uint64_t)limits->deadline_ms * 1000000u;
        pd_loop_tick_at(streams->loop, stream->deadline_ns);
    }
    stream->next = streams->first;
    if (stream->next)
        stream->next->previous = stream;
    streams->first = stream;
    streams->count++;
    return stream;
}

static void drop_first(struct pd_stream *stream)
{
    struct outgoing *out = stream->first;

    stream->first = out->next;
    if (!stream->first)
        stream->last = &stream->first;
    stream->queued_bytes -= out->size;
    stream->streams->queued_bytes -= out->size;
    grpc_byte_buffer_destroy(out->buffer);
    free(out);
}

/* Forgets what waits; what gRPC has in its hands stays until it gives it back. */
static void drop_queue(struct pd_stream *stream)
{
    struct outgoing *kept = stream->sending ? stream->first : NULL;

    if (kept) {
        stream->first = kept->next;
        stream->last = stream->first ? stream->last : &stream->first;
    }
    while (stream->first)
        drop_first(stream);
    if (kept) {
        kept->next = NULL;
        stream->first = kept;
        stream->last = &kept->next;
    }
}

static void stream_free(struct pd_stream *stream)
{
    struct pd_streams *streams = stream->streams;

    drop_queue(stream);
    if (stream->next)
        stream->next->previous = stream->previous;
    *(stream->previous ? &stream->previous->next : &streams->first) = stream->next;
    streams->count--;
    if (stream->incoming)
        grpc_byte_buffer_destroy(stream->incoming);
    grpc_metadata_array_destroy(&stream->initial);
    grpc_metadata_array_destroy(&stream->trailing);
    grpc_slice_unref(stream->peer_details);
    grpc_call_unref(stream->call);
    free(stream);
}

/* Every handler's last line: the tag has been given back. */
static void tag_done(struct pd_stream *stream)
{
    if (--stream->outstanding == 0 && stream->ended)
        stream_free(stream);
}

static void start(struct pd_stream *stream, const grpc_op *op, int tag)
{
    grpc_call_error error = grpc_call_start_batch(stream->call, op, 1, &stream->tags[tag], NULL);

    if (error == GRPC_CALL_OK) {
        stream->outstanding++;
        return;
    }
    pd_log(PD_LOG_ERROR, "link", "gRPC refuses operation %d with error %d: the stream is cut",
           (int)op->op, (int)error);
    grpc_call_cancel(stream->call, NULL);
}

/* Tells the owner, once, that it is over. */
static void tell_ended(struct pd_stream *stream, grpc_status_code code, const char *why)
{
    const struct pd_stream_events *events = stream->events;

    stream->events = NULL;
    if (events)
        events->ended(stream->owner, code, why);
}

/* ---- sending ------------------------------------------------------------------------------------
 */

static void finish_if_flushed(struct pd_stream *stream)
{
    grpc_op op = {.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
    grpc_slice details;

    if (stream->first || stream->finishing || stream->ended)
        return;
    if (stream->client) {
        if (!stream->half_closing)
            return;
        op.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    } else {
        if (!stream->closing)
            return;
        details = grpc_slice_from_static_string(stream->why);
        op.data.send_status_from_server.status = stream->status;
        op.data.send_status_from_server.status_details = &details;
    }
    stream->finishing = true;
    start(stream, &op, TAG_FINISH);
}

static void send_next(struct pd_stream *stream)
{
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};

    if (stream->sending || stream->ended)
        return;
    if (!stream->first) {
        finish_if_flushed(stream);
        return;
    }
    stream->sending = true;
    stream->send_started_ns = pd_clock_ns();
    pd_loop_tick_at(stream->streams->loop,
                    stream->send_started_ns + (uint64_t)stream->limits.stall_ms * 1000000u);
    op.data.send_message.send_message = stream->first->buffer;
    op.flags = stream->first->next ? GRPC_WRITE_BUFFER_HINT : 0; /* the last one takes all along */
    start(stream, &op, TAG_SEND);
}

static void send_done(struct pd_tag *tag, bool ok)
{
    struct pd_stream *stream = tag->owner;

    stream->sending = false;
    drop_first(stream);
    if (ok) /* else the call is broken, and TAG_END says how */
        send_next(stream);
    tag_done(stream);
}

int pd_stream_send(struct pd_stream *stream, grpc_slice message)
{
    struct outgoing *out;
    size_t size = GRPC_SLICE_LENGTH(message);

    if (stream->queued_bytes + size > stream->limits.out_bytes) {
        grpc_slice_unref(message);
        return PD_FULL;
    }
    out = malloc(sizeof(*out));
    if (!out || stream->ended || stream->closing) {
        grpc_slice_unref(message);
        free(out);
        return out ? PD_CLOSED : PD_NO_MEMORY;
    }
    out->next = NULL;
    out->size = size;
    out->buffer = grpc_raw_byte_buffer_create(&message, 1);
    grpc_slice_unref(message);
    *stream->last = out;
    stream->last = &out->next;
    stream->queued_bytes += size;
    stream->streams->queued_bytes += size;
    if (!stream->streams->gathering)
        send_next(stream);
    return PD_OK;
}

void pd_streams_gather(struct pd_streams *streams)
{
    streams->gathering = true;
}

void pd_streams_release(struct pd_streams *streams)
{
    streams->gathering = false;
    for (struct pd_stream *stream = streams->first; stream; stream = stream->next)
        if (stream->first)
            send_next(stream);
}

/* ---- reading ------------------------------------------------------------------------------------
 */

static void read_next(struct pd_stream *stream)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};

    if (!stream->events || stream->ended)
        return;
    op.data.recv_message.recv_message = &stream->incoming;
    start(stream, &op, TAG_READ);
}

static void deliver(struct pd_stream *stream)
{
    grpc_byte_buffer_reader reader;
    grpc_slice whole;

    if (stream->events && grpc_byte_buffer_reader_init(&reader, stream->incoming)) {
        whole = grpc_byte_buffer_reader_readall(&reader);
        grpc_byte_buffer_reader_destroy(&reader);
        stream->events->message(stream->owner, GRPC_SLICE_START_PTR(whole),
                                GRPC_SLICE_LENGTH(whole));
        grpc_slice_unref(whole);
    }
    grpc_byte_buffer_destroy(stream->incoming);
    stream->incoming = NULL;
}

/* The stream's turn comes again when all that this event led to has been done. */
static void read_later(struct pd_stream *stream)
{
    stream->outstanding++;
    pd_loop_later(stream->streams->loop, &stream->tags[TAG_READY]);
}

static void read_done(struct pd_tag *tag, bool ok)
{
    struct pd_stream *stream = tag->owner;

    if (ok && stream->incoming) {
        deliver(stream);
        read_later(stream);
    } else if (!stream->client && stream->events) {
        /* The client has half-closed, or the call is cancelled: for a conversation, the same. */
        tell_ended(stream, GRPC_STATUS_OK, "closed by the peer");
        pd_stream_close(stream, GRPC_STATUS_OK, "");
    }
    tag_done(stream);
}

/* Reading on opens the peer's window at once, in a write of its own. If a message has been answered by
 * then, the answer has taken that along; of two answers, the first waits in gRPC for the second. */
static void ready_done(struct pd_tag *tag, bool ok)
{
    struct pd_stream *stream = tag->owner;

    (void)ok;
    stream->reads_late = !stream->reads_late && stream->first && stream->first->next;
    if (stream->reads_late)
        read_later(stream);
    else
        read_next(stream);
    tag_done(stream);
}

/* ---- the other tags -----------------------------------------------------------------------------
 */

static void other_done(struct pd_tag *tag, bool ok)
{
    (void)ok;
    tag_done(tag->owner);
}

static void open_done(struct pd_tag *tag, bool ok)
{
    struct pd_stream *stream = tag->owner;

    if (ok && stream->events && stream->events->opened && !stream->ended)
        stream->events->opened(stream->owner);
    tag_done(stream);
}

static void end_done(struct pd_tag *tag, bool ok)
{
    struct pd_stream *stream = tag->owner;
    char why[256];

    (void)ok;
    stream->ended = true;
    if (stream->client)
        snprintf(why, sizeof(why), "%.*s", (int)GRPC_SLICE_LENGTH(stream->peer_details),
                 (const char *)GRPC_SLICE_START_PTR(stream->peer_details));
    else
        snprintf(why, sizeof(why), "%s",
                 stream->cancelled ? "cancelled by the peer or connection lost" : "closed");
    tell_ended(stream, stream->client ? stream->peer_status : GRPC_STATUS_CANCELLED, why);
    tag_done(stream);
}

/* ---- beginning and end --------------------------------------------------------------------------
 */

struct pd_stream *pd_stream_serve(struct pd_streams *streams, grpc_call *call,
                                  const struct pd_stream_events *events, void *owner,
                                  const struct pd_stream_limits *limits)
{
    struct pd_stream *stream = stream_new(streams, call, false, events, owner, limits);
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};

    if (!stream) {
        grpc_call_unref(call);
        return NULL;
    }
    op.data.recv_close_on_server.cancelled = &stream->cancelled;
    start(stream, &op, TAG_END); /* first and alone: it is how cancellation arrives */
    op = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    start(stream, &op, TAG_HEAD);
    read_next(stream);
    return stream;
}

void pd_stream_refuse(struct pd_streams *streams, grpc_call *call, grpc_status_code code,
                      const char *why)
{
    static const struct pd_stream_events none = {NULL, NULL, NULL};
    static const struct pd_stream_limits limits = {.stall_ms = 2000};
    struct pd_stream *stream = pd_stream_serve(streams, call, &none, NULL, &limits);

    if (stream)
        pd_stream_close(stream, code, why);
}

struct pd_stream *pd_stream_open(struct pd_streams *streams, grpc_channel *channel,
                                 const char *method, const struct pd_stream_events *events,
                                 void *owner, const struct pd_stream_limits *limits)
{
    grpc_call *call = grpc_channel_create_call(
        channel, NULL, GRPC_PROPAGATE_DEFAULTS, streams->loop->queue,
        grpc_slice_from_static_string(method), NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    struct pd_stream *stream;
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};

    if (!call)
        return NULL;
    stream = stream_new(streams, call, true, events, owner, limits);
    if (!stream) {
        grpc_call_unref(call);
        return NULL;
    }
    op.data.recv_status_on_client.trailing_metadata = &stream->trailing;
    op.data.recv_status_on_client.status = &stream->peer_status;
    op.data.recv_status_on_client.status_details = &stream->peer_details;
    start(stream, &op, TAG_END);
    op = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    start(stream, &op, TAG_HEAD);
    op = (grpc_op){.op = GRPC_OP_RECV_INITIAL_METADATA};
    op.data.recv_initial_metadata.recv_initial_metadata = &stream->initial;
    start(stream, &op, TAG_OPEN);
    read_next(stream);
    return stream;
}

void pd_stream_half_close(struct pd_stream *stream)
{
    stream->half_closing = true;
    finish_if_flushed(stream);
}

void pd_stream_settled(struct pd_stream *stream)
{
    stream->deadline_ns = 0;
}

static void cancel(struct pd_stream *stream)
{
    drop_queue(stream);
    if (!stream->ended)
        grpc_call_cancel_with_status(stream->call, stream->status, stream->why, NULL);
}

void pd_stream_close(struct pd_stream *stream, grpc_status_code code, const char *why)
{
    stream->events = NULL;
    stream->deadline_ns = 0;
    if (stream->closing)
        return;
    stream->closing = true;
    stream->status = code;
    snprintf(stream->why, sizeof(stream->why), "%s", why);
    if (stream->client) {
        stream->status = GRPC_STATUS_CANCELLED;
        cancel(stream);
        return;
    }
    if (code != GRPC_STATUS_OK && code != GRPC_STATUS_UNAVAILABLE)
        drop_queue(stream);
    stream->cut_ns = pd_clock_ns() + (uint64_t)stream->limits.stall_ms * 1000000u;
    pd_loop_tick_at(stream->streams->loop, stream->cut_ns);
    finish_if_flushed(stream);
}

void pd_stream_cut(struct pd_stream *stream, grpc_status_code code, const char *why)
{
    stream->events = NULL;
    stream->deadline_ns = 0;
    stream->closing = true;
    stream->status = code;
    snprintf(stream->why, sizeof(stream->why), "%s", why);
    cancel(stream);
}

size_t pd_stream_queued_bytes(const struct pd_stream *stream)
{
    return stream->queued_bytes;
}

/* ---- time ---------------------------------------------------------------------------------------
 */

/* Ends a stream whose time is up. */
static void expire(struct pd_stream *stream, grpc_status_code code, const char *why)
{
    const struct pd_stream_events *events = stream->events;

    stream->events = NULL;
    if (code == GRPC_STATUS_DEADLINE_EXCEEDED)
        pd_stream_close(stream, code, why);
    else
        pd_stream_cut(stream, code, why);
    if (events)
        events->ended(stream->owner, code, why);
}

static void stream_tick(struct pd_stream *stream, uint64_t now_ns)
{
    struct pd_loop *loop = stream->streams->loop;
    uint64_t stalled_ns = stream->send_started_ns + (uint64_t)stream->limits.stall_ms * 1000000u;

    if (stream->ended)
        return;
    if (stream->closing) {
        if (now_ns >= stream->cut_ns)
            cancel(stream);
        else
            pd_loop_tick_at(loop, stream->cut_ns);
        return;
    }
    if (stream->deadline_ns && now_ns >= stream->deadline_ns) {
        expire(stream, GRPC_STATUS_DEADLINE_EXCEEDED, "the peer did not speak in time");
        return;
    }
    if (stream->sending && now_ns >= stalled_ns) {
        expire(stream, GRPC_STATUS_RESOURCE_EXHAUSTED, "the peer does not read");
        return;
    }
    if (stream->deadline_ns)
        pd_loop_tick_at(loop, stream->deadline_ns);
    if (stream->sending)
        pd_loop_tick_at(loop, stalled_ns);
}

/* No stream is freed here: that happens only when its tags come back. */
void pd_streams_tick(struct pd_streams *streams, uint64_t now_ns)
{
    for (struct pd_stream *stream = streams->first; stream; stream = stream->next)
        stream_tick(stream, now_ns);
}

void pd_streams_cut(struct pd_streams *streams, const char *why)
{
    for (struct pd_stream *stream = streams->first; stream; stream = stream->next)
        pd_stream_cut(stream, GRPC_STATUS_UNAVAILABLE, why);
}
