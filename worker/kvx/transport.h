/* How bytes get from a source's pool into a reader's: one interface, one implementation per kind of
 * wire.
 *
 *     kvx.c ── serve ────▶ source end  ◀───── wire ─────▶  reader end ◀── connect, read ── kvx.c
 *                                                                │
 *     events: source_lost                       connected, landed, reader_lost
 *
 * A transport knows pools, ranges and links, not tickets; where the source itself sends the bytes
 * (tcp) it asks `may_read` for every request. All of it runs on kvx's thread and never blocks: it
 * watches descriptors in the loop, and work without a descriptor (a copy out of shared memory) is
 * done in slices by `work`. An event is only raised from a watch's handler, `work` or `tick`, never
 * from within a call made by kvx.c; having raised one, a transport returns to the loop without
 * touching the end again, for the end may be gone by then.
 *
 * The two fences of the hand-off are withdraw and disconnect: when they return, nothing can be read
 * through the end, and nothing lands through it (README.md). */
#ifndef PD_KVX_TRANSPORT_H
#define PD_KVX_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/base/error.h"
#include "worker/kvx/layout.h"
#include "worker/kvx/loop.h"
#include "worker/kvx/messages.h"
#include "worker/kvx/pool.h"

struct pd_transport;

enum { PD_RDMA_QPS_MAX = 16, PD_RDMA_QPS = 2 };

/* First member of what each kind of transport keeps for an end of a link. */
struct pd_source_end {
    struct pd_transport *transport;
    uint64_t link;
};

struct pd_reader_end {
    struct pd_transport *transport;
    uint64_t link;
    unsigned rails; /* data connections that carry reads */
};

struct pd_transport_events {
    void *context;
    bool (*may_read)(void *context, uint64_t link, uint64_t generation, uint32_t first,
                     uint32_t count);
    void (*source_lost)(void *context, uint64_t link, const char *why);
    void (*connected)(void *context, uint64_t link);
    void (*landed)(void *context, uint64_t link, const struct pd_read *read);
    void (*reader_lost)(void *context, uint64_t link, const char *why);
};

struct pd_transport_kind {
    const char *name;
    unsigned
        window; /* reads in flight that keep the wire busy; each rail takes its share of them */
    bool words; /* no fence on the source: bytes are trusted by generation words (15) */

    /* Source. Opens an end for a link: says where its reader connects to, and by which key. */
    int (*serve)(struct pd_transport *transport, uint64_t link, char address[PD_KV_ADDRESS],
                 uint64_t *key, struct pd_source_end **end, struct pd_error *error);
    void (*withdraw)(struct pd_source_end *end);

    /* Reader. The hello is borrowed for the call. */
    int (*connect)(struct pd_transport *transport, uint64_t link,
                   const struct pd_source_hello *hello, struct pd_reader_end **end,
                   struct pd_error *error);
    int (*read)(struct pd_reader_end *end, const struct pd_read *read);
    uint64_t (*word)(struct pd_reader_end *end, uint32_t block); /* where `words` is set */
    void (*disconnect)(struct pd_reader_end *end);

    bool (*work)(struct pd_transport *transport); /* a slice; true if more is left; or NULL */
    void (*tick)(struct pd_transport *transport, uint64_t now); /* its own deadlines; or NULL */
    void (*destroy)(struct pd_transport *transport);            /* after all ends */
};

/* First member of every transport. */
struct pd_transport {
    const struct pd_transport_kind *kind;
    struct pd_loop *loop;
    struct pd_pool *pool;
    struct pd_transport_events events;
    const char *why_not_served; /* why this process cannot be a source over it; NULL: it can */
    bool direct;                /* moves bytes of a pool on a device itself, without its stage */
    const uint8_t *certificate; /* digest of what its data connections show; NULL: they are plain */
};

struct pd_transport_options {
    struct pd_loop *loop;
    struct pd_pool *pool;
    const char
        *bind_host;     /* tcp, rdma: where to listen, resolved once; NULL or a wildcard: nowhere */
    const char *device; /* rdma: the only device to use; NULL or empty: any */
    unsigned queue_pairs; /* rdma: of one link, 1 to PD_RDMA_QPS_MAX */
    bool busy_poll;       /* rdma: look for completions without pause while reads are in flight */
    bool checksum;        /* rdma: bytes must pass through host memory, where they can be summed */
    const char *tls_cert, *tls_key, *tls_ca; /* tcp: PEM files; a certificate of NULL: plain */
    uint64_t handshake_ns; /* life of a data connection that has not said which link it is of */
    struct pd_transport_events events;
};

/* The transports of this process, best first; ends with one without a name (transports.c). */
struct pd_transport_maker {
    const char *name;
    bool same_host_only; /* its bytes pass no wire */
    bool devices_only;   /* of pools on devices, without their stage; others do not speak of it */
    bool encrypts;       /* where options ask for it */
    int (*create)(const struct pd_transport_options *options, struct pd_transport **transport,
                  struct pd_error *error);
};

enum { PD_TRANSPORTS_MAX = 4 };

extern const struct pd_transport_maker pd_transport_makers[];

int pd_tcp_create(const struct pd_transport_options *options, struct pd_transport **transport,
                  struct pd_error *error);
/* PD_UNSUPPORTED: no RDMA device here. */
int pd_rdma_create(const struct pd_transport_options *options, struct pd_transport **transport,
                   struct pd_error *error);
int pd_shm_create(const struct pd_transport_options *options, struct pd_transport **transport,
                  struct pd_error *error);
/* PD_UNSUPPORTED: the pool is on no device, or on one that lends nothing. */
int pd_gpu_create(const struct pd_transport_options *options, struct pd_transport **transport,
                  struct pd_error *error);

/* A number that names a link on its data connections and cannot be guessed. PD_OK or PD_IO. */
int pd_transport_key(uint64_t *key);
/* Whether two of them are one; takes as long if not. */
bool pd_transport_same_key(uint64_t a, uint64_t b);

#endif
