/* The tcp transport's two halves (tcp_source.c, tcp_reader.c) and what they say to each other.
 *
 * A link has PD_TCP_CONNECTIONS data connections, opened by the reader. All numbers little-endian.
 *
 *     reader ▶ source   "pdkvdat1", u64 link key                             once
 *     reader ◀ source   "pdkvack1"                                           once
 *     reader ▶ source   u64 generation, u32 id, u32 count,                   read request
 *                       count x { u64 offset, u32 length }
 *     reader ◀ source   u32 id, u32 length, length bytes                     its answer
 *
 * Requests of one connection are answered in order. There is no error answer: a request that may
 * not be served ends the link. Sockets are closed with a reset, so what is still in the kernel's
 * buffers is thrown away; the bytes there are copies (no MSG_ZEROCOPY), so the pool may be reused
 * at once (16). Everything goes through a wire (wire.h): as it is, or under TLS. */
#ifndef PD_KVX_TCP_H
#define PD_KVX_TCP_H

#include <endian.h>
#include <string.h>
#include <sys/socket.h>

#include "worker/kvx/list.h"
#include "worker/kvx/transport.h"
#include "worker/kvx/wire.h"

#define PD_TCP_HELLO "pdkvdat1"
#define PD_TCP_ACK   "pdkvack1"

enum {
    PD_TCP_MAGIC = 8,
    PD_TCP_HELLO_BYTES = PD_TCP_MAGIC + 8,
    PD_TCP_REQUEST_HEADER = 16,
    PD_TCP_RANGE = 12,
    PD_TCP_REQUEST_MAX = PD_TCP_REQUEST_HEADER + PD_READ_RANGES * PD_TCP_RANGE,
    PD_TCP_ANSWER_HEADER = 8,
    PD_TCP_CONNECTIONS = 2,
    PD_TCP_WINDOW = 8,     /* reads in flight on a link */
    PD_TCP_TURN = 2 << 20, /* bytes moved for one connection before others have their turn */
};

struct pd_tcp {
    struct pd_transport base;
    struct pd_watch listener;
    char address[PD_KV_ADDRESS]; /* host:port of the listener */
    uint64_t handshake_ns, now;
    struct pd_list
        strangers; /* connections that have not said which link they are of, oldest first */
    size_t stranger_count;
    bool told; /* since the last tick, why a stranger was refused: a log is no place for floods */
    struct pd_list ends;    /* of links that are served */
    struct pd_list pending; /* reader's connections with bytes that no event tells of */
    struct pd_tls *tls;     /* NULL: plain */
};

static inline void pd_put_u32(uint8_t *to, uint32_t value)
{
    value = htole32(value);
    memcpy(to, &value, sizeof(value));
}

static inline void pd_put_u64(uint8_t *to, uint64_t value)
{
    value = htole64(value);
    memcpy(to, &value, sizeof(value));
}

static inline uint32_t pd_get_u32(const uint8_t *from)
{
    uint32_t value;

    memcpy(&value, from, sizeof(value));
    return le32toh(value);
}

static inline uint64_t pd_get_u64(const uint8_t *from)
{
    uint64_t value;

    memcpy(&value, from, sizeof(value));
    return le64toh(value);
}

/* Close means reset, requests leave at once. */
void pd_tcp_set_options(int fd);

/* Steps over `done` bytes of the pieces from *next on. */
void pd_iov_advance(struct iovec *pieces, size_t count, size_t *next, size_t done);

/* tcp_source.c */
int pd_tcp_listen(struct pd_tcp *tcp, const char *host, struct pd_error *error);
void pd_tcp_on_connection(struct pd_watch *watch, uint32_t events);
void pd_tcp_close_listener(struct pd_tcp *tcp);
void pd_tcp_source_tick(struct pd_transport *transport, uint64_t now);
int pd_tcp_serve(struct pd_transport *transport, uint64_t link, char address[PD_KV_ADDRESS],
                 uint64_t *key, struct pd_source_end **end, struct pd_error *error);
void pd_tcp_withdraw(struct pd_source_end *end);

/* tcp_reader.c */
int pd_tcp_connect(struct pd_transport *transport, uint64_t link,
                   const struct pd_source_hello *hello, struct pd_reader_end **end,
                   struct pd_error *error);
int pd_tcp_read(struct pd_reader_end *end, const struct pd_read *read);
void pd_tcp_disconnect(struct pd_reader_end *end);
bool pd_tcp_work(struct pd_transport *transport);

#endif
