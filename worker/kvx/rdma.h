/* The rdma transport: the reader's device reads out of the source's registered pool; no processor of
 * the source takes part, and no byte passes a kernel's buffer.
 *
 * A link has a few reliable connections (queue pairs), opened by the reader through rdma_cm, which
 * finds device, port, GID, route and MTU from two IP addresses. All numbers little-endian.
 *
 *     reader ▶ source   connect:  "pdkvrdm1", u64 link key
 *     reader ◀ source   accept:   "pdkvrdm1", u64 address of its pool, u64 bytes, u32 rkey
 *     reader ◀ source   RDMA READ, as the reader likes
 *
 *     pd_rdma ──┬── devices: protection domain, the pool's registration
 *               ├── listener, and one channel of rdma_cm events for all connections
 *               ├── source ends ──── queue pairs that post nothing (rdma_source.c)
 *               └── reader ends ──── queue pairs, one completion queue and its channel
 *                                    (rdma_reader.c)
 *
 * The fences are the queue pairs: a device answers no read over one that the source has destroyed,
 * and writes nothing through one that the reader has destroyed, and destroying is synchronous. So
 * nothing is ever reused or reconnected: an end that has failed is destroyed as a whole.
 *
 * A registration is for all of the pool, and the device asks nobody: a reader is trusted with the
 * pool as a whole, as over shm, and the link key stands for that. Registrations allow no remote
 * writes. */
#ifndef PD_KVX_RDMA_H
#define PD_KVX_RDMA_H

#include <rdma/rdma_cma.h>

#include "worker/kvx/list.h"
#include "worker/kvx/rdma_memory.h"
#include "worker/kvx/transport.h"

#define PD_RDMA_MAGIC "pdkvrdm1"

enum {
    PD_RDMA_DEVICES = 8,
    PD_RDMA_WINDOW = 16,     /* reads in flight on a link, over all of its queue pairs */
    PD_RDMA_GATHER = 16,     /* local pieces of one work request */
    PD_RDMA_RETRIES = 6,     /* of a packet; seven would mean for ever on some devices */
    PD_RDMA_EVENT_DATA = 64, /* bytes of private data that are looked at */
};

struct pd_rdma_request { /* private data of a connect */
    char magic[8];
    uint8_t key[8];
};

struct pd_rdma_grant { /* private data of an accept */
    char magic[8];
    uint8_t base[8], bytes[8], rkey[4];
};

/* What rdma_cm has to say of a connection: a copy, so that the event itself is given back before
 * anybody acts on it (an id with an event out cannot be destroyed). */
struct pd_rdma_event {
    enum rdma_cm_event_type type;
    int status;
    struct rdma_cm_id *id; /* of a connect request: a new one, and the handler's to destroy */
    uint8_t responder_resources;
    size_t length;
    uint8_t data[PD_RDMA_EVENT_DATA];
};

/* First member of whatever an rdma_cm id is for. */
struct pd_rdma_owner {
    struct rdma_cm_id *id; /* NULL: none yet */
    void (*handle)(struct pd_rdma_owner *owner, const struct pd_rdma_event *event);
};

/* One device that is in use, kept until the transport is destroyed. */
struct pd_rdma_device {
    struct pd_rdma *rdma;
    struct ibv_context *verbs; /* rdma_cm's */
    struct ibv_pd *domain;
    struct pd_rdma_memory pool;
    struct ibv_cq *idle; /* completion queue of the source's queue pairs, which complete nothing */
    struct pd_watch asynchronous;
    struct ibv_device_attr limits;
};

struct pd_rdma {
    struct pd_transport base;
    const char *device_name; /* the only one that may be used; NULL: any */
    unsigned qps;
    bool busy_poll, checksum;
    uint8_t ack_timeout; /* 4.096 us * 2^this: how long a packet waits for its answer */
    int resolve_ms;
    struct rdma_event_channel *channel;
    struct pd_watch events;
    struct pd_rdma_owner door;
    struct sockaddr_storage own; /* reads go out from here; family 0: from where the route says */
    char address[PD_KV_ADDRESS]; /* host:port of the door */
    struct pd_rdma_device devices[PD_RDMA_DEVICES];
    size_t device_count;
    struct pd_list served; /* source ends */
    struct pd_list busy;   /* reader ends with something to tell */
    struct pd_list active; /* reader ends with reads in flight; kept for busy polling */
    char why_not_served[192];
};

static inline void pd_rdma_put(uint8_t *to, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = (uint8_t)(value >> 8 * i);
}

static inline uint64_t pd_rdma_get(const uint8_t *from, size_t bytes)
{
    uint64_t value = 0;

    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)from[i] << 8 * i;
    return value;
}

/* rdma.c: the device of a connection, made ready for use with its first one. */
struct pd_rdma_device *pd_rdma_device_of(struct pd_rdma *rdma, struct rdma_cm_id *id,
                                         struct pd_error *error);
/* Destroys queue pair and id, in this order: the fence, then the name. */
void pd_rdma_drop(struct pd_rdma_owner *owner);

/* rdma_source.c */
void pd_rdma_on_door(struct pd_rdma_owner *door, const struct pd_rdma_event *event);
int pd_rdma_serve(struct pd_transport *transport, uint64_t link, char address[PD_KV_ADDRESS],
                  uint64_t *key, struct pd_source_end **end, struct pd_error *error);
void pd_rdma_withdraw(struct pd_source_end *end);

/* rdma_reader.c */
int pd_rdma_connect(struct pd_transport *transport, uint64_t link,
                    const struct pd_source_hello *hello, struct pd_reader_end **end,
                    struct pd_error *error);
int pd_rdma_read(struct pd_reader_end *end, const struct pd_read *read);
void pd_rdma_disconnect(struct pd_reader_end *end);
bool pd_rdma_work(struct pd_transport *transport);

#endif
