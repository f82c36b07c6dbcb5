/* The reader's half of tcp: sends read requests, receives the answers straight into the pool. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "worker/kvx/endpoint.h"
#include "worker/kvx/tcp.h"

enum connection_state { CONNECTING, GREETING, READY };

enum { OUTPUT_BYTES = PD_TCP_HELLO_BYTES + PD_TCP_WINDOW * PD_TCP_REQUEST_MAX };

static const char not_accepted[] = "the source did not accept a data connection: its log says why";

struct connection {
    struct pd_watch watch;
    struct pd_wire wire;
    struct reader_end *end;
    struct pd_list in_pending;
    enum connection_state state;

    uint8_t output[OUTPUT_BYTES]; /* room for every request of the window */
    size_t sent, queued;          /* output[sent, queued) is to go out */

    const struct pd_read *reads[PD_TCP_WINDOW]; /* asked for, oldest first: a ring */
    size_t oldest, waiting;
    uint32_t next_id; /* of the next request; the oldest one's is next_id - waiting */

    uint8_t header[PD_TCP_ANSWER_HEADER]; /* and the ack */
    struct iovec pieces[1 + PD_READ_RANGES];
    size_t piece, piece_count; /* piece == piece_count: no answer is being received */
};

struct reader_end {
    struct pd_reader_end base;
    uint64_t key;
    size_t ready;
    struct connection connections[PD_TCP_CONNECTIONS];
};

static struct pd_loop *loop_of(struct connection *connection)
{
    return connection->end->base.transport->loop;
}

static struct pd_tcp *tcp_of(const struct connection *connection)
{
    return (struct pd_tcp *)connection->end->base.transport;
}

static void lose(struct connection *connection, const char *why)
{
    struct pd_transport *transport = connection->end->base.transport;

    transport->events.reader_lost(transport->events.context, connection->end->base.link,
                                  connection->wire.why[0] ? connection->wire.why : why);
}

/* What the output and the input wait for; input is always welcome. */
static void watch_events(struct connection *connection)
{
    pd_loop_change(loop_of(connection), &connection->watch,
                   EPOLLIN | connection->wire.send_wants | connection->wire.receive_wants);
}

/* ---- output ---------------------------------------------------------------------------------- */

/* Sends what the socket takes of the output; false if the connection is broken. */
static bool flush(struct connection *connection)
{
    while (connection->sent < connection->queued) {
        const struct iovec rest = {connection->output + connection->sent,
                                   connection->queued - connection->sent};
        ssize_t n = pd_wire_send(&connection->wire, &rest, 1);

        if (n < 0 && errno != EAGAIN)
            return false;
        if (n < 0)
            break;
        connection->sent += (size_t)n;
    }
    if (connection->sent == connection->queued)
        connection->sent = connection->queued = 0;
    watch_events(connection);
    return true;
}

/* `bytes` of room at the end of the output. It is there: see OUTPUT_BYTES. */
static uint8_t *append(struct connection *connection, size_t bytes)
{
    uint8_t *at;

    if (sizeof(connection->output) - connection->queued < bytes) {
        connection->queued -= connection->sent;
        memmove(connection->output, connection->output + connection->sent, connection->queued);
        connection->sent = 0;
    }
    at = connection->output + connection->queued;
    connection->queued += bytes;
    return at;
}

static void append_request(struct connection *connection, const struct pd_read *read)
{
    uint8_t *at = append(connection, PD_TCP_REQUEST_HEADER + read->count * (size_t)PD_TCP_RANGE);

    pd_put_u64(at, read->generation);
    pd_put_u32(at + 8, connection->next_id++);
    pd_put_u32(at + 12, (uint32_t)read->count);
    at += PD_TCP_REQUEST_HEADER;
    for (size_t i = 0; i < read->count; i++, at += PD_TCP_RANGE) {
        pd_put_u64(at, read->ranges[i].source);
        pd_put_u32(at + 8, read->ranges[i].length);
    }
}

int pd_tcp_read(struct pd_reader_end *base, const struct pd_read *read)
{
    struct reader_end *end = (struct reader_end *)base;
    struct connection *least = &end->connections[read->rail ? read->rail - 1 : 0];

    for (size_t i = 1; i < PD_TCP_CONNECTIONS && !read->rail; i++)
        if (end->connections[i].waiting < least->waiting)
            least = &end->connections[i];
    if (least->waiting == PD_TCP_WINDOW)
        return PD_FULL;
    least->reads[(least->oldest + least->waiting++) % PD_TCP_WINDOW] = read;
    append_request(least, read);
    return flush(least) ? PD_OK : PD_IO;
}

/* ---- answers --------------------------------------------------------------------------------- */

enum progress { GO_ON, WAIT, LOST, LANDED };

/* The bytes of an answer go where its read wants them. Its header comes first and is judged as soon
 * as it is there; what a false one brings along lands in blocks of this very read, and is not
 * trusted. */
static void expect_answer(struct connection *connection)
{
    const struct pd_read *read = connection->reads[connection->oldest];
    uint8_t *pool = connection->end->base.transport->pool->base;

    connection->pieces[0] = (struct iovec){connection->header, sizeof(connection->header)};
    for (size_t i = 0; i < read->count; i++)
        connection->pieces[1 + i] =
            (struct iovec){pool + read->ranges[i].destination, read->ranges[i].length};
    connection->piece = 0;
    connection->piece_count = 1 + read->count;
}

static bool header_fits(const struct connection *connection)
{
    const struct pd_read *read = connection->reads[connection->oldest];

    return pd_get_u32(connection->header) == connection->next_id - (uint32_t)connection->waiting &&
           pd_get_u32(connection->header + 4) == read->bytes;
}

static enum progress receive_answer(struct connection *connection, size_t *budget)
{
    bool had_header = connection->piece > 0;
    ssize_t got = pd_wire_receive(&connection->wire, connection->pieces + connection->piece,
                                  connection->piece_count - connection->piece);

    if (got < 0)
        return errno == EAGAIN ? WAIT : LOST;
    if (got == 0)
        return LOST;
    pd_iov_advance(connection->pieces, connection->piece_count, &connection->piece, (size_t)got);
    if (!had_header && connection->piece > 0 && !header_fits(connection))
        return LOST;
    if (connection->piece == connection->piece_count)
        return LANDED;
    if ((size_t)got >= *budget)
        return WAIT;
    *budget -= (size_t)got;
    return GO_ON;
}

/* Nothing was asked for: only the end of the connection may come. */
static enum progress receive_nothing(struct connection *connection)
{
    uint8_t byte;
    const struct iovec room = {&byte, 1};

    return pd_wire_receive(&connection->wire, &room, 1) < 0 && errno == EAGAIN ? WAIT : LOST;
}

static void landed(struct connection *connection)
{
    struct pd_transport *transport = connection->end->base.transport;
    const struct pd_read *read = connection->reads[connection->oldest];

    connection->oldest = (connection->oldest + 1) % PD_TCP_WINDOW;
    connection->waiting--;
    transport->events.landed(transport->events.context, connection->end->base.link, read);
}

static void receive(struct connection *connection)
{
    size_t budget = PD_TCP_TURN;
    enum progress progress;

    do {
        if (connection->piece < connection->piece_count) {
            progress = receive_answer(connection, &budget);
        } else if (connection->waiting > 0) {
            expect_answer(connection);
            progress = GO_ON;
        } else {
            progress = receive_nothing(connection);
        }
    } while (progress == GO_ON);
    watch_events(connection);
    if (progress != LOST && pd_wire_pending(&connection->wire) &&
        pd_list_empty(&connection->in_pending))
        pd_list_append(&tcp_of(connection)->pending, &connection->in_pending);
    if (progress == LOST)
        lose(connection, "the source closed a data connection, or answered what was not asked");
    else if (progress == LANDED)
        landed(connection);
}

/* What TLS has taken out of the socket already. */
bool pd_tcp_work(struct pd_transport *transport)
{
    struct pd_tcp *tcp = (struct pd_tcp *)transport;
    struct connection *connection;

    if (pd_list_empty(&tcp->pending))
        return false;
    connection = PD_OWNER(tcp->pending.next, struct connection, in_pending);
    pd_list_remove(&connection->in_pending);
    receive(connection);
    return !pd_list_empty(&tcp->pending);
}

/* ---- connecting ------------------------------------------------------------------------------ */

static void connected(struct connection *connection)
{
    int problem = 0;
    socklen_t length = sizeof(problem);
    char why[PD_KV_WHY];

    getsockopt(connection->watch.fd, SOL_SOCKET, SO_ERROR, &problem, &length);
    if (problem != 0) {
        snprintf(why, sizeof(why), "no data connection to the source: %s; is a firewall between?",
                 strerror(problem));
        lose(connection, why);
        return;
    }
    connection->state = GREETING;
    connection->pieces[0] = (struct iovec){connection->header, PD_TCP_MAGIC};
    connection->piece = 0;
    connection->piece_count = 1;
    if (!flush(connection))
        lose(connection, not_accepted);
}

static void greeted(struct connection *connection)
{
    struct reader_end *end = connection->end;
    struct pd_transport *transport = end->base.transport;
    ssize_t got = pd_wire_receive(&connection->wire, connection->pieces, 1);

    watch_events(connection);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got > 0)
        pd_iov_advance(connection->pieces, 1, &connection->piece, (size_t)got);
    if (got <= 0 ||
        (connection->piece == 1 && memcmp(connection->header, PD_TCP_ACK, PD_TCP_MAGIC) != 0)) {
        lose(connection, not_accepted);
        return;
    }
    if (connection->piece < 1)
        return;
    connection->state = READY;
    if (++end->ready == PD_TCP_CONNECTIONS)
        transport->events.connected(transport->events.context, end->base.link);
}

static void handle(struct pd_watch *watch, uint32_t events)
{
    struct connection *connection = PD_OWNER(watch, struct connection, watch);

    if (connection->state == CONNECTING) {
        connected(connection);
        return;
    }
    if (connection->sent < connection->queued && !flush(connection)) {
        lose(connection,
             connection->state == GREETING ? not_accepted : "the source closed a data connection");
        return;
    }
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR | connection->wire.receive_wants)))
        return;
    if (connection->state == GREETING)
        greeted(connection);
    else
        receive(connection);
}

static int open_connection(struct connection *connection, const struct addrinfo *address,
                           const struct pd_source_hello *source)
{
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    uint8_t *hello = append(connection, PD_TCP_HELLO_BYTES);

    if (fd < 0)
        return PD_IO;
    memcpy(hello, PD_TCP_HELLO, PD_TCP_MAGIC);
    pd_put_u64(hello + PD_TCP_MAGIC, connection->end->key);
    connection->watch.handle = handle;
    pd_tcp_set_options(fd);
    if (pd_wire_connect(&connection->wire, fd, tcp_of(connection)->tls, source->certificate) !=
            PD_OK ||
        (connect(fd, address->ai_addr, address->ai_addrlen) < 0 && errno != EINPROGRESS) ||
        pd_loop_add(loop_of(connection), &connection->watch, fd, EPOLLOUT) != PD_OK) {
        close(fd);
        return PD_IO;
    }
    return PD_OK;
}

int pd_tcp_connect(struct pd_transport *transport, uint64_t link,
                   const struct pd_source_hello *hello, struct pd_reader_end **out,
                   struct pd_error *error)
{
    bool tls = ((struct pd_tcp *)transport)->tls != NULL;
    struct addrinfo *address;
    struct reader_end *end;

    if (tls != hello->tls)
        return pd_fail(error, PD_INVALID, "data connections of %s are %s, those of this worker %s",
                       hello->instance, hello->tls ? "under TLS" : "plain",
                       tls ? "under TLS (--kv-tls)" : "plain (no --kv-tls)");
    if (pd_endpoint_parse(hello->data_address, &address, error) != PD_OK)
        return PD_INVALID;
    end = calloc(1, sizeof(*end));
    if (!end) {
        freeaddrinfo(address);
        return pd_fail(error, PD_NO_MEMORY, "tcp: no memory for a link");
    }
    end->base = (struct pd_reader_end){transport, link, PD_TCP_CONNECTIONS};
    end->key = hello->link_key;
    for (size_t i = 0; i < PD_TCP_CONNECTIONS; i++) {
        end->connections[i].end = end;
        end->connections[i].watch.fd = -1;
        pd_list_init(&end->connections[i].in_pending);
    }
    for (size_t i = 0; i < PD_TCP_CONNECTIONS; i++) {
        if (open_connection(&end->connections[i], address, hello) != PD_OK) {
            pd_fail(error, PD_IO, "no data connection to %s: %s", hello->data_address,
                    strerror(errno));
            freeaddrinfo(address);
            pd_tcp_disconnect(&end->base);
            return PD_IO;
        }
    }
    freeaddrinfo(address);
    *out = &end->base;
    return PD_OK;
}

/* The fence: after this no byte is received into a block by this end (8). */
void pd_tcp_disconnect(struct pd_reader_end *base)
{
    struct reader_end *end = (struct reader_end *)base;

    for (size_t i = 0; i < PD_TCP_CONNECTIONS; i++) {
        int fd = end->connections[i].watch.fd;

        pd_loop_remove(base->transport->loop, &end->connections[i].watch);
        pd_list_remove(&end->connections[i].in_pending);
        pd_wire_close(&end->connections[i].wire);
        if (fd >= 0)
            close(fd);
    }
    free(end);
}
