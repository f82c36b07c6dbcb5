/* Streams of Kv.Link, in both directions: kvx's bytes, carried and not read.
 *
 * A prefill worker is dialled (accept), a decode worker dials when kvx asks (open). Who may say
 * what, and when a peer is to be called dead, is kvx's business; this file bounds what waits to be
 * sent and how long a connection may take, and reports every end once. A stream that kvx closed is
 * not reported any more. */
#ifndef PD_KV_STREAM_H
#define PD_KV_STREAM_H

#include "worker/link/server.h"

/* A call of Kv.Link has been accepted. */
void pd_kv_accept(struct pd_link *link, grpc_call *call, const char *peer);

/* The link's half of pd_kvx_callbacks: called on kvx's thread, `context` is the link. */
void pd_kv_events_open(void *context, uint64_t id, const char *address);
void pd_kv_events_close(void *context, uint64_t id);
void pd_kv_events_send(void *context, uint64_t id, uint8_t *bytes, size_t length);

/* The same messages, on the link's thread. */
void pd_kv_handle(struct pd_link *link, const struct pd_message *message);

/* Frees what a message owns; the message itself is the caller's. */
void pd_kv_message_drop(struct pd_message *message);

/* Messages of kvx were lost: ends every stream and reports it as down. */
void pd_kv_overrun(struct pd_link *link);

/* Reports every stream as down and ends it; kvx is not called any more. */
void pd_kv_release(struct pd_link *link);

#endif
