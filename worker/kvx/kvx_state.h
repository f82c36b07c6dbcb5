/* What kvx.c (the calls) and service.c (the thread) share. Private to them. */
#ifndef PD_KVX_STATE_H
#define PD_KVX_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "worker/base/mailbox.h"
#include "worker/kvx/choose.h"
#include "worker/kvx/kvx.h"
#include "worker/kvx/list.h"
#include "worker/kvx/loop.h"
#include "worker/kvx/pool.h"
#include "worker/kvx/reader.h"
#include "worker/kvx/source.h"
#include "worker/kvx/transport.h"

enum {
    PD_KVX_TICKETS_MAX = 4096, /* offered and not released; an offer beyond is refused */
    PD_KVX_FETCHES_MAX = 4096, /* begun and not over; a fetch beyond is refused */
    PD_KVX_LINKS_MAX = 256,    /* of each direction */
    PD_KVX_GAUGES = 1024,
    PD_KVX_GAUGE_MAX = 32 << 20, /* bytes of control messages of a link that may wait */
};

enum pd_kvx_call_kind {
    PD_CALL_OFFER,
    PD_CALL_READY,
    PD_CALL_COMPLETE,
    PD_CALL_REVOKE,
    PD_CALL_FORGET_OWNER,
    PD_CALL_FETCH,
    PD_CALL_WANT,
    PD_CALL_CANCEL,
    PD_CALL_LINK_UP,
    PD_CALL_LINK_DOWN,
    PD_CALL_READER_UP,
    PD_CALL_RECEIVE,
    PD_CALL_FLOOD,
    PD_CALL_STOP,
};

/* One call, on its way to the thread. */
struct pd_kvx_call {
    struct pd_message message; /* kind: enum pd_kvx_call_kind */
    uint64_t id;               /* generation, owner, fetch or link */
    union {
        struct pd_source_ticket *ticket;
        uint32_t tokens;
        struct pd_kvx_first first;
        struct pd_ticket *fetch;
        struct {
            size_t from, count;
            int32_t *blocks;
        } want;
        char why[PD_KV_WHY];
        struct {
            size_t length;
            uint8_t *bytes;
        } receive;
    };
};

/* Control messages of a link that wait for the thread. Links share gauges by id; a peer that sends
 * faster than it is listened to loses its link, and costs no more memory than PD_KVX_GAUGE_MAX. */
struct pd_kvx_gauge {
    atomic_size_t waiting;
    atomic_bool flooded;
};

struct pd_kvx {
    struct pd_kvx_callbacks callbacks;
    uint32_t max_tokens;
    struct pd_pool pool;
    struct pd_mailbox box;
    pthread_t thread;
    atomic_size_t tickets, fetches;
    atomic_uint_fast64_t next_link;
    struct pd_kvx_gauge gauges[PD_KVX_GAUGES];

    pthread_mutex_t states_lock; /* of the next two: a copy for reports */
    struct pd_kvx_link_state *states;
    size_t state_count;

    /* The thread's own from here on. */
    uint64_t (*clock)(void); /* nanoseconds; pd_clock_ns but in simulations */
    struct pd_loop loop;
    struct pd_transport *transports[PD_TRANSPORTS_MAX]; /* those that are allowed */
    struct pd_transport_option choices[PD_TRANSPORTS_MAX];
    size_t transport_count;
    char host_id[PD_KV_NAME];
    struct pd_source *source;
    struct pd_reader *reader;
    uint64_t tick_ns, next_tick;
    bool links_changed, stopping;
    bool preparing; /* the source has blocks to prepare */
};

static inline struct pd_kvx_gauge *pd_kvx_gauge_of(struct pd_kvx *kvx, uint64_t link)
{
    return &kvx->gauges[link % PD_KVX_GAUGES];
}

/* service.c: makes loop, transports and state machines. */
int pd_kvx_service_init(struct pd_kvx *kvx, const struct pd_kvx_options *options,
                        struct pd_error *error);
void pd_kvx_service_free(struct pd_kvx *kvx);

/* One turn of the thread; `wait`: until something comes or a deadline is due. False once
 * PD_CALL_STOP has been done: no further turn may follow. */
bool pd_kvx_service_turn(struct pd_kvx *kvx, bool wait);

/* kvx.c: an instance without its thread. pd_kvx_create adds one that turns until it is stopped; a
 * simulation makes the turns itself, all on one thread. */
int pd_kvx_make(const struct pd_kvx_options *options, struct pd_kvx **kvx, struct pd_error *error);
void pd_kvx_unmake(struct pd_kvx *kvx); /* after the last turn */
void pd_kvx_stop(struct pd_kvx *kvx);   /* posts PD_CALL_STOP */

/* Frees a call and what it still owns. */
void pd_kvx_call_free(struct pd_kvx_call *call);

#endif
