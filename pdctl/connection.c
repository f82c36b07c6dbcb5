#include "pdctl/connection.h"

#include <errno.h>
#include <grpc/grpc.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "worker/base/clock.h"
#include "worker/link/address.h"
#include "worker/link/channel.h"
#include "worker/link/credentials.h"
#include "worker/link/stream.h"

enum {
    RECEIVE_BYTES_MAX = 4 << 20,
    SEND_BYTES_MAX = 64 << 10,
    GONE_POLL_US = 20000,
    GONE_CONNECT_MS = 1000,
    LINGER_NS = 1000000, /* between looks whether gRPC has given a call back */
};

struct pd_connection {
    grpc_channel_credentials *credentials;
    grpc_channel *channel;
    uint32_t timeout_ms;
    char address[PD_ADDRESS_MAX + 1];
};

/* One call, while it lasts. */
struct call {
    struct pd_loop loop;
    struct pd_streams streams;
    struct pd_stream *stream; /* NULL: it is over */
    uint64_t silence_ns, silent_until_ns;
    bool heard; /* a message has come */
    pd_connection_message *message;
    void *owner;
    const char *address;
    int status;
    struct pd_error *error;
};

int pd_connection_open(const char *address, const struct pd_connection_options *options,
                       struct pd_connection **out, struct pd_error *error)
{
    struct pd_connection *connection;
    struct pd_address parsed;
    int status;

    if (!pd_address_parse(address, &parsed))
        return pd_fail(error, PD_INVALID, "\"%s\" is no address: write HOST:PORT", address);
    if (!*options->tls_cert != !*options->tls_key)
        return pd_fail(error, PD_INVALID, "--tls-cert and --tls-key go together");
    connection = calloc(1, sizeof(*connection));
    if (!connection)
        return pd_fail(error, PD_NO_MEMORY, "no memory for a connection");
    grpc_init();
    snprintf(connection->address, sizeof(connection->address), "%s", address);
    connection->timeout_ms = options->timeout_ms;
    status = pd_credentials_client(options->tls_cert, options->tls_key, options->tls_ca,
                                   &connection->credentials, error);
    if (status == PD_OK) {
        connection->channel =
            pd_channel_create(connection->credentials, address, RECEIVE_BYTES_MAX);
        if (!connection->channel)
            status = pd_fail(error, PD_INVALID, "gRPC cannot dial %s", address);
    }
    if (status == PD_OK)
        *out = connection;
    else
        pd_connection_close(connection);
    return status;
}

void pd_connection_close(struct pd_connection *connection)
{
    if (connection->channel)
        grpc_channel_destroy(connection->channel);
    if (connection->credentials)
        grpc_channel_credentials_release(connection->credentials);
    free(connection);
    grpc_shutdown();
}

const char *pd_connection_address(const struct pd_connection *connection)
{
    return connection->address;
}

struct pd_stream *pd_connection_stream(struct pd_connection *connection, struct pd_streams *streams,
                                       const char *method, const struct pd_stream_events *events,
                                       void *owner)
{
    const struct pd_stream_limits limits = {SEND_BYTES_MAX, connection->timeout_ms, 0};

    return pd_stream_open(streams, connection->channel, method, events, owner, &limits);
}

/* Whether a connection is refused at once. */
static bool refused(const struct addrinfo *at)
{
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct pollfd waiting = {fd, POLLOUT, 0};
    int code = 0;
    socklen_t length = sizeof(code);

    if (fd < 0)
        return false;
    if (connect(fd, at->ai_addr, at->ai_addrlen) < 0)
        code = errno;
    if (code == EINPROGRESS && (poll(&waiting, 1, GONE_CONNECT_MS) != 1 ||
                                getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &length) < 0))
        code = 0;
    close(fd);
    return code == ECONNREFUSED;
}

bool pd_connection_wait_gone(const struct pd_connection *connection)
{
    uint64_t until_ns = pd_clock_ns() + connection->timeout_ms * 1000000ull;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    struct pd_address parsed;
    char port[8];
    bool gone;

    if (!pd_address_parse(connection->address, &parsed))
        return false;
    snprintf(port, sizeof(port), "%u", parsed.port);
    if (getaddrinfo(parsed.host, port, &hints, &found))
        return false;
    while (!(gone = refused(found)) && pd_clock_ns() < until_ns)
        usleep(GONE_POLL_US);
    freeaddrinfo(found);
    return gone;
}

/* The call is over, in a way that is already told; the loop ends when gRPC has let go of it. */
static void over(struct call *call, int status)
{
    call->stream = NULL;
    call->status = status;
    pd_loop_tick_at(&call->loop, 0);
}

static void wait_on(struct call *call)
{
    call->silent_until_ns = pd_clock_ns() + call->silence_ns;
    pd_loop_tick_at(&call->loop, call->silent_until_ns);
}

static void got_message(void *owner, const uint8_t *bytes, size_t length)
{
    struct call *call = owner;

    call->heard = true;
    if (call->message(call->owner, bytes, length)) {
        wait_on(call);
        return;
    }
    pd_stream_close(call->stream, GRPC_STATUS_CANCELLED, "enough");
    over(call, PD_OK);
}

static void ended(void *owner, grpc_status_code code, const char *why)
{
    struct call *call = owner;
    const char *address = call->address;
    int status;

    switch (code) {
    case GRPC_STATUS_OK:
        status = PD_OK;
        break;
    case GRPC_STATUS_UNIMPLEMENTED:
        status = pd_fail(call->error, PD_UNSUPPORTED,
                         "the worker at %s is of an older version: it does not know this", address);
        break;
    case GRPC_STATUS_UNAVAILABLE:
        status = pd_fail(call->error, PD_IO, "the worker at %s %s: %s", address,
                         call->heard ? "was lost" : "is not reached", why);
        break;
    case GRPC_STATUS_RESOURCE_EXHAUSTED:
        status = pd_fail(call->error, PD_FULL, "the worker at %s refuses: %s", address, why);
        break;
    default:
        status = pd_fail(call->error, PD_INVALID, "the worker at %s refuses: %s (gRPC status %d)",
                         address, why, (int)code);
        break;
    }
    over(call, status);
}

static void woken(void *owner)
{
    (void)owner; /* no other thread speaks to this loop */
}

static void tick(void *owner, uint64_t now_ns)
{
    struct call *call = owner;

    pd_streams_tick(&call->streams, now_ns);
    if (call->stream && now_ns >= call->silent_until_ns) {
        pd_stream_close(call->stream, GRPC_STATUS_CANCELLED, "no answer in time");
        over(call, pd_fail(call->error, PD_TIMEOUT, "the worker at %s did not answer within %.3g s",
                           call->address, (double)call->silence_ns / 1e9));
    }
    if (call->stream)
        pd_loop_tick_at(&call->loop, call->silent_until_ns);
    else if (call->streams.count)
        pd_loop_tick_at(&call->loop, now_ns + LINGER_NS);
    else
        pd_loop_stop(&call->loop);
}

static grpc_slice pack(const ProtobufCMessage *message)
{
    grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(message));

    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    return slice;
}

static void begin(struct call *call, struct pd_connection *connection, const char *method,
                  const ProtobufCMessage *request)
{
    static const struct pd_stream_events events = {NULL, got_message, ended};

    call->stream = pd_connection_stream(connection, &call->streams, method, &events, call);
    if (!call->stream) {
        over(call, pd_fail(call->error, PD_NO_MEMORY, "gRPC gave no call"));
        return;
    }
    if (pd_stream_send(call->stream, pack(request)) != PD_OK) {
        pd_stream_close(call->stream, GRPC_STATUS_CANCELLED, "");
        over(call, pd_fail(call->error, PD_INVALID, "the request is too large to be sent"));
        return;
    }
    wait_on(call);
}

int pd_connection_call(struct pd_connection *connection, const char *method,
                       const ProtobufCMessage *request, uint32_t silence_ms,
                       pd_connection_message *message, void *owner, struct pd_error *error)
{
    struct call call = {.message = message, .owner = owner, .error = error};
    int status;

    call.address = connection->address;
    call.silence_ns = (silence_ms ? silence_ms : connection->timeout_ms) * 1000000ull;
    status = pd_loop_create(&call.loop, &call, woken, tick, error);
    if (status != PD_OK) {
        pd_loop_destroy(&call.loop);
        return status;
    }
    call.streams.loop = &call.loop;
    begin(&call, connection, method, request);
    pd_loop_run(&call.loop);
    pd_loop_destroy(&call.loop);
    return call.status;
}
