/* One gRPC call as two queues of messages, on either side of the wire.
 *
 * Everything that the worker speaks is a conversation of this form: Attach and Stats (server), the
 * KV link (server on a prefill worker, client on a decode worker), Register (client). This file
 * knows how a call lives and dies and what bounds it; what the messages mean is its owner's
 * business.
 *
 *   owner ──send──▶ [queue, at most out_bytes] ──one at a time──▶ gRPC      completion = flow
 * control owner ◀─message── one read outstanding ◀──────────────────── gRPC      took it, not the
 * peer owner ◀─ended── exactly once, unless the owner closed the stream first
 *
 * A peer that does not read lets sends stall: then the queue reaches its limit (pd_stream_send says
 * PD_FULL) or its oldest message grows older than stall_ms (the stream ends). A call is given back
 * to gRPC when it has no outstanding operation left; the stream frees itself. The loop's thread
 * only. */
#ifndef PD_STREAM_H
#define PD_STREAM_H

#include <grpc/slice.h>
#include <stddef.h>

#include "worker/link/loop.h"

struct pd_stream;

struct pd_stream_events {
    /* Client: the server has answered, without a message yet. May be NULL. */
    void (*opened)(void *owner);
    /* One whole message; `bytes` is valid during the call. The owner may close the stream. */
    void (*message)(void *owner, const uint8_t *bytes, size_t length);
    /* The last event. The stream must not be used any more. */
    void (*ended)(void *owner, grpc_status_code code, const char *why);
};

struct pd_stream_limits {
    size_t out_bytes;     /* of messages that wait to be sent */
    uint32_t stall_ms;    /* that one message may take to leave */
    uint32_t deadline_ms; /* until pd_stream_settled is called; 0: none */
};

/* All streams of a loop, for ticks, counts and the end. */
struct pd_streams {
    struct pd_loop *loop;
    struct pd_stream *first;
    size_t count; /* calls that gRPC has not given back yet */
    size_t queued_bytes;
    bool gathering;
};

/* Server side: takes over a call that has just been accepted. NULL: no memory, the call is gone. */
struct pd_stream *pd_stream_serve(struct pd_streams *streams, grpc_call *call,
                                  const struct pd_stream_events *events, void *owner,
                                  const struct pd_stream_limits *limits);

/* Server side: answers a call with nothing but a status. */
void pd_stream_refuse(struct pd_streams *streams, grpc_call *call, grpc_status_code code,
                      const char *why);

/* Client side: starts a call of `method`; `ended` tells of a failure to connect too. */
struct pd_stream *pd_stream_open(struct pd_streams *streams, grpc_channel *channel,
                                 const char *method, const struct pd_stream_events *events,
                                 void *owner, const struct pd_stream_limits *limits);

/* Queues one message and takes the slice. PD_FULL (and nothing is queued) if the queue is at its
 * limit. */
int pd_stream_send(struct pd_stream *stream, grpc_slice message);

/* Between these two, messages are queued and do not leave: what one stream gets leaves by one write
 * then, and wakes its peer once. */
void pd_streams_gather(struct pd_streams *streams);
void pd_streams_release(struct pd_streams *streams);

/* Client side: nothing more will be sent. */
void pd_stream_half_close(struct pd_stream *stream);

/* The conversation has got as far as its deadline asked for. */
void pd_stream_settled(struct pd_stream *stream);

/* Ends the stream from this side: no event follows. Server: what is queued is sent first if `code`
 * is OK or UNAVAILABLE, then the status; a peer that does not read is cut. Client: the call is
 * cancelled. */
void pd_stream_close(struct pd_stream *stream, grpc_status_code code, const char *why);

/* Cuts the stream at once: what is queued is lost. No event follows. */
void pd_stream_cut(struct pd_stream *stream, grpc_status_code code, const char *why);

size_t pd_stream_queued_bytes(const struct pd_stream *stream);

/* Applies deadlines; asks the loop for the next tick. */
void pd_streams_tick(struct pd_streams *streams, uint64_t now_ns);

/* Cuts all that are left. */
void pd_streams_cut(struct pd_streams *streams, const char *why);

#endif
