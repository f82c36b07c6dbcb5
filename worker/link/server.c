#include "worker/link/server.h"

#include <errno.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "worker/base/clock.h"
#include "worker/base/log.h"
#include "worker/link/address.h"
#include "worker/link/attach.h"
#include "worker/link/delivery.h"
#include "worker/link/drain.h"
#include "worker/link/events.h"
#include "worker/link/kv_stream.h"
#include "worker/link/register.h"
#include "worker/link/report.h"
#include "worker/link/stats.h"

enum {
    RECEIVE_BYTES_MAX = 64 * 1024, /* of one message: a part of 32 KiB and its frame */
    INBOX_BYTES_MAX = 4 << 20,     /* what unpacking such a message may take */
    WINDOW_BYTES = 1 << 20,        /* per stream: parts do not wait for a round trip each */
    STREAMS_PER_CONNECTION = 64,
    METADATA_BYTES_MAX = 16 * 1024,
    KEEPALIVE_MS = 10000,
    IDLE_MS_MAX = 60000,  /* of a connection without a call */
    SUBMISSIONS_HELD = 8, /* times max_submit_bytes, over all streams */
    STOP_MS_MAX = 2000,
    STOP_TICK_MS = 10,
};

/* ---- arguments ----------------------------------------------------------------------------------
 */

static grpc_arg integer(const char *key, int value)
{
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value};
}

static grpc_server *make_server(void)
{
    grpc_arg arguments[] = {
        integer(GRPC_ARG_ALLOW_REUSEPORT, 0), /* else a second daemon shares the port in silence */
        integer(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, RECEIVE_BYTES_MAX),
        integer(GRPC_ARG_MAX_CONCURRENT_STREAMS, STREAMS_PER_CONNECTION),
        integer(GRPC_ARG_MAX_METADATA_SIZE, METADATA_BYTES_MAX),
        integer(GRPC_ARG_HTTP2_BDP_PROBE, 0),
        integer(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, WINDOW_BYTES),
        integer(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0), /* small bytes, large messages */
        integer(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1),
        integer(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS), /* finds peers whose host is gone */
        integer(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_MS),
        integer(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        integer(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        integer(GRPC_ARG_MAX_CONNECTION_IDLE_MS, IDLE_MS_MAX),
        integer(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10000),
    };
    grpc_channel_args args = {sizeof(arguments) / sizeof(*arguments), arguments};

    return grpc_server_create(&args, NULL);
}

grpc_slice pd_link_pack(const ProtobufCMessage *message)
{
    grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(message));

    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    return slice;
}

/* ---- calls --------------------------------------------------------------------------------------
 */

static bool is_method(const struct pd_link *link, const char *name)
{
    return grpc_slice_str_cmp(link->details.method, name) == 0;
}

static void dispatch(struct pd_link *link)
{
    grpc_call *call = link->accepted;
    char *peer = grpc_call_get_peer(call);

    if (link->stopping)
        pd_stream_refuse(&link->streams, call, GRPC_STATUS_UNAVAILABLE, "this worker leaves");
    else if (is_method(link, "/pd.v1.Worker/Attach"))
        pd_attach_accept(link, call, peer);
    else if (is_method(link, "/pd.v1.Kv/Link"))
        pd_kv_accept(link, call, peer);
    else if (is_method(link, "/pd.v1.Worker/Stats"))
        pd_stats_accept(link, call);
    else if (is_method(link, "/pd.v1.Worker/Drain"))
        pd_drain_accept(link, call);
    else
        pd_stream_refuse(&link->streams, call, GRPC_STATUS_UNIMPLEMENTED,
                         "pd-worker has no such method");
    gpr_free(peer);
}

static void request_call(struct pd_link *link)
{
    grpc_call_details_init(&link->details);
    grpc_metadata_array_init(&link->metadata);
    link->accepted = NULL;
    if (grpc_server_request_call(link->server, &link->accepted, &link->details, &link->metadata,
                                 link->loop.queue, link->loop.queue,
                                 &link->accept_tag) != GRPC_CALL_OK)
        pd_log(PD_LOG_ERROR, "link", "gRPC accepts no more calls");
}

/* Every call is taken at once, and refused here if it must be: gRPC's own queue has no limit. */
static void accept_done(struct pd_tag *tag, bool ok)
{
    struct pd_link *link = tag->owner;

    if (ok)
        dispatch(link);
    grpc_call_details_destroy(&link->details);
    grpc_metadata_array_destroy(&link->metadata);
    if (ok)
        request_call(link);
}

/* ---- messages of other threads ------------------------------------------------------------------
 */

void pd_link_post(struct pd_link *link, struct pd_message *message, enum pd_link_message kind)
{
    message->kind = (int)kind;
    if (pd_mailbox_put(&link->box, message, PD_MAILBOX_ALWAYS) == PD_OK)
        return;
    if (kind == PD_LINK_KV_SEND)
        pd_kv_message_drop(message);
    free(message);
}

static void begin_drain(struct pd_link *link)
{
    if (link->draining)
        return;
    link->draining = true;
    pd_attaches_drain(link);
    pd_registrations_leave(link);
    pd_drains_begin(link);
}

static void shutdown_done(struct pd_tag *tag, bool ok)
{
    struct pd_link *link = tag->owner;

    (void)ok;
    link->server_is_down = true;
}

/* No new call, no new job; what is queued still goes out. */
static void begin_stop(struct pd_link *link)
{
    link->stopping = true;
    link->cut_ns = pd_clock_ns() + STOP_MS_MAX * 1000000ull;
    pd_attaches_close(link);
    pd_drains_end(link);
    pd_registrations_leave(link);
    if (link->server)
        grpc_server_shutdown_and_notify(link->server, link->loop.queue, &link->shutdown_tag);
    pd_loop_tick_at(&link->loop, 0);
}

static void handle(struct pd_link *link, struct pd_message *message)
{
    switch ((enum pd_link_message)message->kind) {
    case PD_LINK_STEP:
        pd_delivery_step(link, (struct pd_step_message *)message);
        break;
    case PD_LINK_QUEUED:
        pd_delivery_queued(link, &((struct pd_queued_message *)message)->id);
        break;
    case PD_LINK_PLACED:
        pd_delivery_placed(link, &((struct pd_placed_message *)message)->placed);
        break;
    case PD_LINK_FAILED:
        pd_delivery_failed(link, &((struct pd_failed_message *)message)->failure);
        break;
    case PD_LINK_KV_OPEN:
    case PD_LINK_KV_CLOSE:
    case PD_LINK_KV_SEND:
        pd_kv_handle(link, message);
        pd_kv_message_drop(message);
        break;
    case PD_LINK_DRAIN:
        begin_drain(link);
        break;
    case PD_LINK_RELEASE_KVX:
        pd_kv_release(link);
        sem_post(&link->acknowledged);
        break;
    case PD_LINK_STOP:
        begin_stop(link);
        sem_post(&link->acknowledged);
        break;
    case PD_LINK_END:
        link->ending = true;
        pd_loop_tick_at(&link->loop, 0);
        break;
    }
    free(message);
}

static void woken(void *owner)
{
    struct pd_link *link = owner;
    struct pd_message *list = pd_mailbox_take(&link->box, 0);

    pd_streams_gather(&link->streams);
    while (list) {
        struct pd_message *message = list;

        list = list->next;
        handle(link, message);
    }
    pd_streams_release(&link->streams);
    if (atomic_exchange(&link->overrun, false))
        pd_attaches_overrun(link);
    if (atomic_exchange(&link->kv_overrun, false))
        pd_kv_overrun(link);
}

/* ---- time ---------------------------------------------------------------------------------------
 */

/* Closes the connections, too: a graceful GOAWAY would wait for what the peers do. */
static void close_server(struct pd_link *link)
{
    if (link->server)
        grpc_server_cancel_all_calls(link->server);
    link->cut_ns = UINT64_MAX;
}

static void stop_tick(struct pd_link *link, uint64_t now_ns)
{
    bool flushed = link->ending && pd_registrations_done(link) && link->streams.count == 0;

    if (flushed && link->server_is_down) {
        pd_loop_stop(&link->loop);
        return;
    }
    if (!flushed && now_ns >= link->cut_ns) {
        pd_registrations_free(link);
        pd_streams_cut(&link->streams, "this worker leaves");
    }
    if (flushed || now_ns >= link->cut_ns)
        close_server(link);
    pd_loop_tick_at(&link->loop, now_ns + STOP_TICK_MS * 1000000ull);
}

static void tick(void *owner, uint64_t now_ns)
{
    struct pd_link *link = owner;

    pd_streams_tick(&link->streams, now_ns);
    pd_attaches_tick(link, now_ns);
    pd_registrations_tick(link, now_ns);
    pd_drains_tick(link, now_ns);
    if (link->stopping)
        stop_tick(link, now_ns);
}

static void *run(void *argument)
{
    struct pd_link *link = argument;

    pthread_setname_np(pthread_self(), "link");
    pd_loop_run(&link->loop);
    return NULL;
}

/* ---- life ---------------------------------------------------------------------------------------
 */

static void wake(void *context)
{
    pd_loop_wake(&((struct pd_link *)context)->loop);
}

static int bind_failed(const char *host, int port, int code, struct pd_error *error)
{
    if (code == EADDRINUSE)
        return pd_fail(error, PD_IO,
                       "port %d of %s is in use: choose another --port, or stop what listens there "
                       "(ss -ltnp 'sport = :%d' names it)",
                       port, host, port);
    if (code == EADDRNOTAVAIL)
        return pd_fail(error, PD_IO, "--host %s is no address of this machine (ip addr lists them)",
                       host);
    if (code == EACCES)
        return pd_fail(error, PD_IO, "port %d needs privileges: choose a --port above 1023", port);
    return pd_fail(error, PD_IO, "cannot listen on %s port %d: %s", host, port, strerror(code));
}

int pd_link_probe(const char *host, int port, struct pd_error *error)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    char service[8];
    int fd, one = 1, code = 0, status;

    snprintf(service, sizeof(service), "%d", port);
    status = getaddrinfo(host, service, &hints, &found);
    if (status)
        return pd_fail(error, PD_IO, "--host %s cannot be resolved: %s", host,
                       gai_strerror(status));
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
        bind(fd, found->ai_addr, found->ai_addrlen) < 0 || listen(fd, 1) < 0)
        code = errno;
    if (fd >= 0)
        close(fd);
    freeaddrinfo(found);
    return code ? bind_failed(host, port, code, error) : PD_OK;
}

static int bind_port(struct pd_link *link, const struct pd_link_listen *listen,
                     struct pd_error *error)
{
    char address[PD_ADDRESS_MAX + 16];

    if (!pd_address_format(listen->host, listen->port, address, sizeof(address)))
        return pd_fail(error, PD_INVALID, "--host %s is too long", listen->host);
    link->server = make_server();
    if (!link->server)
        return pd_fail(error, PD_NO_MEMORY, "gRPC gave no server");
    grpc_server_register_completion_queue(link->server, link->loop.queue, NULL);
    link->port = grpc_server_add_http2_port(link->server, address, link->credentials.server);
    if (link->port == 0)
        return bind_failed(listen->host, listen->port, EADDRINUSE, error);
    return PD_OK;
}

int pd_link_create(const struct pd_link_listen *listen, struct pd_link **out,
                   struct pd_error *error)
{
    struct pd_link *link = calloc(1, sizeof(*link));
    int status;

    if (!link)
        return pd_fail(error, PD_NO_MEMORY, "no memory for the link");
    link->accept_tag = (struct pd_tag){.done = accept_done, .owner = link};
    link->shutdown_tag = (struct pd_tag){.done = shutdown_done, .owner = link};
    link->server_is_down = true; /* until it is started */
    pd_scratch_init(&link->scratch, SIZE_MAX);
    pd_scratch_init(&link->inbox, INBOX_BYTES_MAX);
    pd_mailbox_init(&link->box, PD_LINK_MESSAGES_MAX, wake, link);
    sem_init(&link->acknowledged, 0, 0);
    link->kv_states = calloc(PD_KV_LINKS_MAX, sizeof(*link->kv_states));
    status = pd_loop_create(&link->loop, link, woken, tick, error);
    link->streams.loop = &link->loop;
    if (status == PD_OK && !link->kv_states)
        status = pd_fail(error, PD_NO_MEMORY, "no memory for the link");
    if (status == PD_OK)
        status = pd_credentials_create(listen->tls_cert, listen->tls_key, listen->tls_ca,
                                       &link->credentials, error);
    if (status == PD_OK)
        status = bind_port(link, listen, error);
    if (status != PD_OK)
        pd_link_destroy(link);
    else
        *out = link;
    return status;
}

int pd_link_port(const struct pd_link *link)
{
    return link->port;
}

void pd_link_engine_events(struct pd_link *link, struct pd_engine_events *events)
{
    events->context = link;
    events->placed = pd_events_placed;
    events->step = pd_events_step;
    events->failed = pd_events_failed;
    events->queued = pd_events_queued;
}

void pd_link_kvx_callbacks(struct pd_link *link, struct pd_kvx_callbacks *callbacks)
{
    callbacks->link = link;
    callbacks->open_link = pd_kv_events_open;
    callbacks->close_link = pd_kv_events_close;
    callbacks->send = pd_kv_events_send;
}

int pd_link_start(struct pd_link *link, const struct pd_link_identity *identity,
                  const struct pd_link_registration *registration, struct pd_engine *engine,
                  struct pd_kvx *kvx, struct pd_error *error)
{
    int status;

    link->identity = identity;
    link->engine = engine;
    link->kvx = kvx;
    link->budget.limit = SUBMISSIONS_HELD * (size_t)identity->max_submit_bytes;
    pd_report_hello(link);
    status = pd_registrations_create(link, registration, error);
    if (status == PD_OK)
        status = pd_intake_create(identity, engine, pd_events_failed, link, &link->intake, error);
    if (status != PD_OK)
        return status;
    grpc_server_start(link->server);
    link->server_is_down = false;
    request_call(link);
    pd_loop_tick_at(&link->loop, 0);
    if (pthread_create(&link->thread, NULL, run, link))
        return pd_fail(error, PD_IO, "the system gives no thread for the link (ulimit -u?)");
    link->started = true;
    return PD_OK;
}

/* A message without content. Without memory for it nothing can be ended in order: gRPC, too,
 * aborts. */
static void say(struct pd_link *link, enum pd_link_message kind)
{
    struct pd_message *message = malloc(sizeof(*message));

    if (!message)
        abort();
    pd_link_post(link, message, kind);
}

/* Like joining a thread: until the link's thread has answered, nothing can be freed. */
static void say_and_wait(struct pd_link *link, enum pd_link_message kind)
{
    say(link, kind);
    while (sem_wait(&link->acknowledged) < 0 && errno == EINTR) {
    }
}

void pd_link_drain(struct pd_link *link, uint32_t deadline_ms)
{
    /* read by the link's thread only after the message */
    link->drain_ms = deadline_ms;
    link->drain_until_ns = pd_clock_ns() + deadline_ms * 1000000ull;
    say(link, PD_LINK_DRAIN);
}

uint32_t pd_link_asked_drain_ms(const struct pd_link *link)
{
    return atomic_load(&link->asked_drain_ms);
}

bool pd_link_idle(const struct pd_link *link)
{
    return atomic_load(&link->running) == 0;
}

void pd_link_release_kvx(struct pd_link *link)
{
    if (link->started)
        say_and_wait(link, PD_LINK_RELEASE_KVX);
}

static void drop_messages(struct pd_link *link)
{
    struct pd_message *list = pd_mailbox_take(&link->box, 0);

    while (list) {
        struct pd_message *message = list;

        list = list->next;
        if (message->kind == PD_LINK_KV_SEND)
            pd_kv_message_drop(message);
        free(message);
    }
}

void pd_link_destroy(struct pd_link *link)
{
    if (link->started) {
        say_and_wait(link, PD_LINK_STOP); /* no job is given to intake after this */
        pd_intake_destroy(link->intake);
        say(link, PD_LINK_END);
        pthread_join(link->thread, NULL);
    } else if (link->loop.queue) {
        if (link->intake)
            pd_intake_destroy(link->intake);
        begin_stop(link);
        link->ending = true;
        link->server_is_down = !link->server;
        pd_loop_run(&link->loop);
    }
    pd_registrations_free(link);
    drop_messages(link);
    if (link->server)
        grpc_server_destroy(link->server);
    pd_loop_destroy(&link->loop);
    pd_credentials_free(&link->credentials);
    pd_mailbox_destroy(&link->box);
    sem_destroy(&link->acknowledged);
    pd_scratch_free(&link->scratch);
    pd_scratch_free(&link->inbox);
    free(link->kv_states);
    free(link);
}
