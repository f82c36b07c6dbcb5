/* The source's half of tcp: reads requests, asks whether they may be served, sends from the
 * pool. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "worker/base/log.h"
#include "worker/kvx/endpoint.h"
#include "worker/kvx/tcp.h"

enum {
    STRANGERS_MAX = 64,  /* the oldest gives way */
    CONNECTIONS_MAX = 8, /* of one link */
    LISTEN_BACKLOG = 64,
};

struct source_end {
    struct pd_source_end base;
    uint64_t key;
    struct pd_list in_tcp, connections;
    size_t count;
};

struct connection {
    struct pd_watch watch;
    struct pd_wire wire;
    struct pd_tcp *tcp;
    struct source_end *end; /* NULL: a stranger */
    struct pd_list in_list;
    uint64_t deadline; /* of a stranger */

    uint8_t input[PD_TCP_REQUEST_MAX]; /* hello and requests, as they come */
    size_t have;

    uint64_t generation;   /* of the request that is being answered, */
    uint32_t first, count; /* and its first range: asked again before every send */
    uint8_t header[PD_TCP_ANSWER_HEADER];
    struct iovec pieces[1 + PD_READ_RANGES];
    size_t piece, piece_count; /* piece == piece_count: nothing to send */
};

static void drop(struct connection *connection)
{
    int fd = connection->watch.fd;

    pd_loop_remove(connection->tcp->base.loop, &connection->watch);
    pd_wire_close(&connection->wire);
    close(fd);
    pd_list_remove(&connection->in_list);
    if (connection->end)
        connection->end->count--;
    else
        connection->tcp->stranger_count--;
    free(connection);
}

/* A stranger goes alone; a connection of a link takes the link along (9). */
static void lose(struct connection *connection, const char *why)
{
    struct pd_transport *transport = &connection->tcp->base;

    if (!connection->end) {
        if (!connection->tcp->told)
            pd_log(PD_LOG_WARN, "kvx", "a data connection is refused: %s", why);
        connection->tcp->told = true;
        drop(connection);
    } else
        transport->events.source_lost(transport->events.context, connection->end->base.link, why);
}

/* ---- who is it? ------------------------------------------------------------------------------ */

/* Looks at every end, whatever it finds. */
static struct source_end *end_by_key(struct pd_tcp *tcp, uint64_t key)
{
    struct source_end *found = NULL;

    for (struct pd_list *at = tcp->ends.next; at != &tcp->ends; at = at->next) {
        struct source_end *end = PD_OWNER(at, struct source_end, in_tcp);

        if (pd_transport_same_key(end->key, key))
            found = end;
    }
    return found;
}

/* True once the stranger has shown a key and been told that it is known. */
static bool welcome(struct connection *connection)
{
    const struct iovec ack = {(void *)(uintptr_t)PD_TCP_ACK, PD_TCP_MAGIC};
    struct source_end *end;

    if (memcmp(connection->input, PD_TCP_HELLO, PD_TCP_MAGIC) != 0)
        return false;
    end = end_by_key(connection->tcp, pd_get_u64(connection->input + PD_TCP_MAGIC));
    if (!end || end->count >= CONNECTIONS_MAX ||
        pd_wire_send(&connection->wire, &ack, 1) != PD_TCP_MAGIC)
        return false;
    pd_list_remove(&connection->in_list);
    pd_list_append(&end->connections, &connection->in_list);
    connection->tcp->stranger_count--;
    connection->end = end;
    end->count++;
    return true;
}

/* ---- requests -------------------------------------------------------------------------------- */

static void consume(struct connection *connection, size_t bytes)
{
    connection->have -= bytes;
    memmove(connection->input, connection->input + bytes, connection->have);
}

/* Bytes of the request at the head of the input as far as they are known: of its header at
 * first. */
static size_t request_bytes(const struct connection *connection)
{
    uint32_t count;

    if (connection->have < PD_TCP_REQUEST_HEADER)
        return PD_TCP_REQUEST_HEADER;
    count = pd_get_u32(connection->input + 12);
    if (count == 0 || count > PD_READ_RANGES)
        return 0;
    return PD_TCP_REQUEST_HEADER + count * (size_t)PD_TCP_RANGE;
}

/* Ticket, owner and every range are checked on every request (21). Fills pieces; false if the
 * request may not be served. */
static bool take_range(struct connection *connection, const uint8_t *range, size_t *total)
{
    const struct pd_transport *transport = &connection->tcp->base;
    uint64_t offset = pd_get_u64(range);
    uint32_t length = pd_get_u32(range + 8), first, count;

    if (!pd_layout_locate(&transport->pool->layout, offset, length, &first, &count) ||
        !transport->events.may_read(transport->events.context, connection->end->base.link,
                                    connection->generation, first, count))
        return false;
    if (connection->piece_count == 1) {
        connection->first = first;
        connection->count = count;
    }
    connection->pieces[connection->piece_count++] =
        (struct iovec){transport->pool->base + offset, length};
    *total += length;
    return *total <= PD_READ_BYTES;
}

static bool begin_answer(struct connection *connection)
{
    const uint8_t *at = connection->input;
    uint32_t id = pd_get_u32(at + 8), count = pd_get_u32(at + 12);
    size_t total = 0;

    connection->generation = pd_get_u64(at);
    connection->piece = 0;
    connection->piece_count = 1;
    at += PD_TCP_REQUEST_HEADER;
    for (uint32_t i = 0; i < count; i++, at += PD_TCP_RANGE)
        if (!take_range(connection, at, &total))
            return false;
    pd_put_u32(connection->header, id);
    pd_put_u32(connection->header + 4, (uint32_t)total);
    connection->pieces[0] = (struct iovec){connection->header, sizeof(connection->header)};
    return true;
}

enum progress { GO_ON, WAIT, TURN_OVER, LOST };

/* Sends what the socket takes. The ticket must still be its link's: a reader that releases while it
 * has a request under way has broken the protocol, and must not see what comes next into those
 * blocks. */
static enum progress send_some(struct connection *connection, size_t *budget)
{
    const struct pd_transport *transport = &connection->tcp->base;
    ssize_t sent;

    if (!transport->events.may_read(transport->events.context, connection->end->base.link,
                                    connection->generation, connection->first, connection->count))
        return LOST;
    sent = pd_wire_send(&connection->wire, connection->pieces + connection->piece,
                        connection->piece_count - connection->piece);
    if (sent < 0)
        return errno == EAGAIN ? WAIT : LOST;
    pd_iov_advance(connection->pieces, connection->piece_count, &connection->piece, (size_t)sent);
    if ((size_t)sent >= *budget)
        return TURN_OVER;
    *budget -= (size_t)sent;
    return GO_ON;
}

static enum progress receive_some(struct connection *connection)
{
    const struct iovec room = {connection->input + connection->have,
                               sizeof(connection->input) - connection->have};
    ssize_t got = pd_wire_receive(&connection->wire, &room, 1);

    if (got < 0)
        return errno == EAGAIN ? WAIT : LOST;
    if (got == 0)
        return LOST;
    connection->have += (size_t)got;
    return GO_ON;
}

static enum progress step(struct connection *connection, size_t *budget)
{
    size_t bytes;

    if (connection->piece < connection->piece_count)
        return send_some(connection, budget);
    if (!connection->end) {
        if (connection->have < PD_TCP_HELLO_BYTES)
            return receive_some(connection);
        if (!welcome(connection))
            return LOST;
        consume(connection, PD_TCP_HELLO_BYTES);
        return GO_ON;
    }
    bytes = request_bytes(connection);
    if (bytes == 0)
        return LOST;
    if (connection->have < bytes)
        return receive_some(connection);
    if (!begin_answer(connection))
        return LOST;
    consume(connection, bytes);
    return GO_ON;
}

/* A connection whose turn is over may hold requests in its input that no event will tell of: it
 * asks to be called again as soon as it can send. */
static void handle(struct pd_watch *watch, uint32_t events)
{
    struct connection *connection = PD_OWNER(watch, struct connection, watch);
    struct pd_loop *loop = connection->tcp->base.loop;
    size_t budget = PD_TCP_TURN;
    enum progress progress;

    (void)events;
    do
        progress = step(connection, &budget);
    while (progress == GO_ON);
    if (progress == LOST)
        lose(connection, connection->wire.why[0] ? connection->wire.why
                         : connection->end
                             ? "a data connection was closed, or asked for what it may not read"
                             : "it does not say which link it is of");
    else if (progress == TURN_OVER)
        pd_loop_change(loop, watch, EPOLLOUT);
    else if (connection->piece < connection->piece_count)
        pd_loop_change(loop, watch, connection->wire.send_wants);
    else
        pd_loop_change(loop, watch, connection->wire.receive_wants);
}

/* ---- the listener ---------------------------------------------------------------------------- */

static void admit(struct pd_tcp *tcp, int fd)
{
    struct connection *connection;

    if (tcp->stranger_count >= STRANGERS_MAX)
        drop(PD_OWNER(tcp->strangers.next, struct connection, in_list));
    pd_tcp_set_options(fd);
    connection = calloc(1, sizeof(*connection));
    if (!connection) {
        close(fd);
        return;
    }
    connection->tcp = tcp;
    connection->watch.handle = handle;
    connection->deadline = tcp->now + tcp->handshake_ns;
    pd_list_init(&connection->in_list);
    if (pd_wire_accept(&connection->wire, fd, tcp->tls) != PD_OK ||
        pd_loop_add(tcp->base.loop, &connection->watch, fd, EPOLLIN) != PD_OK) {
        pd_wire_close(&connection->wire);
        close(fd);
        free(connection);
        return;
    }
    pd_list_append(&tcp->strangers, &connection->in_list);
    tcp->stranger_count++;
}

/* Out of descriptors: stop listening until the next tick instead of turning in circles. */
void pd_tcp_on_connection(struct pd_watch *watch, uint32_t events)
{
    struct pd_tcp *tcp = PD_OWNER(watch, struct pd_tcp, listener);
    int fd = accept4(watch->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    (void)events;
    if (fd >= 0)
        admit(tcp, fd);
    else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
        pd_loop_change(tcp->base.loop, watch, 0);
}

void pd_tcp_source_tick(struct pd_transport *transport, uint64_t now)
{
    struct pd_tcp *tcp = (struct pd_tcp *)transport;

    tcp->now = now;
    tcp->told = false;
    pd_loop_change(tcp->base.loop, &tcp->listener, EPOLLIN); /* see pd_tcp_on_connection */
    while (!pd_list_empty(&tcp->strangers)) {
        struct connection *oldest = PD_OWNER(tcp->strangers.next, struct connection, in_list);

        if (now < oldest->deadline)
            break;
        drop(oldest);
    }
}

static int describe(struct pd_tcp *tcp, int fd)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);

    if (getsockname(fd, (struct sockaddr *)&address, &length) < 0)
        return PD_IO;
    return pd_endpoint_format((struct sockaddr *)&address, length, tcp->address);
}

static int listen_at(struct pd_tcp *tcp, const struct addrinfo *at)
{
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd >= 0 && bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, LISTEN_BACKLOG) == 0 &&
        describe(tcp, fd) == PD_OK &&
        pd_loop_add(tcp->base.loop, &tcp->listener, fd, EPOLLIN) == PD_OK)
        return PD_OK;
    if (fd >= 0)
        close(fd);
    return PD_IO;
}

/* Readers are told where to connect to, and a wildcard is no place: without an address of its own
 * this process only reads. */
int pd_tcp_listen(struct pd_tcp *tcp, const char *host, struct pd_error *error)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    int status = getaddrinfo(host, "0", &hints, &found);

    if (status != 0)
        return pd_fail(error, PD_INVALID, "KV data address %s: %s", host, gai_strerror(status));
    if (pd_endpoint_is_wildcard(found->ai_addr))
        tcp->base.why_not_served = "the source has no KV data address of its own (--kv-bind)";
    else if (listen_at(tcp, found) != PD_OK)
        status = pd_fail(error, PD_IO, "KV data address %s: %s", host, strerror(errno));
    freeaddrinfo(found);
    return status;
}

void pd_tcp_close_listener(struct pd_tcp *tcp)
{
    int fd = tcp->listener.fd;

    while (!pd_list_empty(&tcp->strangers))
        drop(PD_OWNER(tcp->strangers.next, struct connection, in_list));
    pd_loop_remove(tcp->base.loop, &tcp->listener);
    if (fd >= 0)
        close(fd);
}

/* ---- ends ------------------------------------------------------------------------------------ */

int pd_tcp_serve(struct pd_transport *transport, uint64_t link, char address[PD_KV_ADDRESS],
                 uint64_t *key, struct pd_source_end **out, struct pd_error *error)
{
    struct pd_tcp *tcp = (struct pd_tcp *)transport;
    struct source_end *end = calloc(1, sizeof(*end));

    if (!end || pd_transport_key(&end->key) != PD_OK) {
        free(end);
        return pd_fail(error, PD_NO_MEMORY, "tcp: no memory or no random numbers for a link");
    }
    end->base = (struct pd_source_end){transport, link};
    pd_list_init(&end->connections);
    pd_list_append(&tcp->ends, &end->in_tcp);
    memcpy(address, tcp->address, sizeof(tcp->address));
    *key = end->key;
    *out = &end->base;
    return PD_OK;
}

/* The fence: after this no send of this link is made, and the reset throws away what was (9,
 * 16). */
void pd_tcp_withdraw(struct pd_source_end *base)
{
    struct source_end *end = (struct source_end *)base;

    while (!pd_list_empty(&end->connections))
        drop(PD_OWNER(end->connections.next, struct connection, in_list));
    pd_list_remove(&end->in_tcp);
    free(end);
}
