/* A worker as an operator reaches it: an address, keys, and one call after the other.
 *
 *   pd_connection_open ──▶ pd_connection_call ──request──▶ worker
 *                              │ ◀──message──┐ any number of them, each within the silence that is
 *                              │ ──▶ on_message  allowed; then the worker ends the call
 *                              ▼
 *                        PD_OK, or what went wrong in a sentence
 *
 * A call is a stream and a loop of the worker's link room, which is why a hostile or silent worker
 * costs a bounded time and bounded memory. One thread. */
#ifndef PDCTL_CONNECTION_H
#define PDCTL_CONNECTION_H

#include <stddef.h>
#include <stdint.h>

#include "pdctl/flags.h"
#include "proto/pd.pb-c.h"
#include "worker/base/error.h"
#include "worker/link/stream.h"

struct pd_connection;

/* The flags that every command with a WORKER has, to stand in its table. The keys are those that the
 * worker asks of frontends. */
struct pd_connection_options {
    const char *tls_cert, *tls_key, *tls_ca; /* paths of PEM files; empty: none */
    uint32_t timeout_ms;                     /* longest wait for an answer, connecting included */
};

#define PD_CONNECTION_DEFAULTS                                                                     \
    {                                                                                              \
        .tls_cert = "", .tls_key = "", .tls_ca = "", .timeout_ms = 5000                            \
    }

/* clang-format off */
#define PD_CONNECTION_FLAGS(options)                                                                 \
    {"timeout", "SECONDS", PD_FLAG_SECONDS, &(options).timeout_ms, 100, 3600 * 1000,                 \
     "longest wait for an answer [5]"},                                                              \
    {"tls-ca", "PATH", PD_FLAG_TEXT, &(options).tls_ca, 0, 0,                                        \
     "authorities (PEM) that must have signed the worker's certificate; turns TLS on"},              \
    {"tls-cert", "PATH", PD_FLAG_TEXT, &(options).tls_cert, 0, 0,                                    \
     "certificate (PEM) to show to a worker with --tls-ca"},                                         \
    {"tls-key", "PATH", PD_FLAG_TEXT, &(options).tls_key, 0, 0, "its private key (PEM)"}
/* clang-format on */

/* Checks the address (host:port) and reads the keys; nothing is dialled yet. */
int pd_connection_open(const char *address, const struct pd_connection_options *options,
                       struct pd_connection **connection, struct pd_error *error);

void pd_connection_close(struct pd_connection *connection);

const char *pd_connection_address(const struct pd_connection *connection);

/* Begins a call of `method` in the caller's own loop: a conversation that is more than one question. NULL:
 * gRPC gave none. */
struct pd_stream *pd_connection_stream(struct pd_connection *connection, struct pd_streams *streams,
                                       const char *method, const struct pd_stream_events *events,
                                       void *owner);

/* Waits, at most the connection's timeout, until nothing listens at the address any more. False: it is
 * still listened on, or cannot be told. */
bool pd_connection_wait_gone(const struct pd_connection *connection);

/* One message of an answer, valid during the call. False: it is none, or enough; the call ends. */
typedef bool pd_connection_message(void *owner, const uint8_t *bytes, size_t length);

/* Calls `method` ("/pd.v1.Worker/Stats") with one request and hands on what comes, until the worker
 * ends the call. `silence_ms`: longest wait for the next message; 0: the connection's timeout.
 * PD_OK if the worker ended it well, or `message` had enough; PD_TIMEOUT, PD_IO (not reached, lost),
 * PD_UNSUPPORTED (an older worker), PD_FULL or PD_INVALID (refused) with the reason otherwise. */
int pd_connection_call(struct pd_connection *connection, const char *method,
                       const ProtobufCMessage *request, uint32_t silence_ms,
                       pd_connection_message *message, void *owner, struct pd_error *error);

#endif
