
/*
 * One Attach stream: from this process to one worker, for as long as both
 * live.  Hello, reconnection, heartbeats, load reports; messages about jobs
 * are handed to the dispatcher.
 */


#ifndef _NGX_HTTP_PD_ATTACH_H_INCLUDED_
#define _NGX_HTTP_PD_ATTACH_H_INCLUDED_


#include "ngx_http_pd_failover.h"
#include "ngx_http_pd_h2.h"
#include "ngx_http_pd_outbox.h"
#include "ngx_http_pd_process.h"


/* one job's part on one worker */

typedef struct {
    ngx_http_pd_submission_t   submission;    /* first */
    ngx_http_pd_attempt_t     *attempt;
    ngx_http_pd_attach_t      *attach;        /* NULL: not in use */
    ngx_queue_t                queue;         /* of attach->sides */
    ngx_msec_t                 started;
    unsigned                   decode:1;
    unsigned                   offers:1;      /* what it has in its cache */
    unsigned                   placed:1;
    unsigned                   finished:1;    /* the worker has done it */
} ngx_http_pd_side_t;


typedef enum {
    NGX_HTTP_PD_ATTACH_DOWN = 0,
    NGX_HTTP_PD_ATTACH_OPENING,               /* until the worker's hello */
    NGX_HTTP_PD_ATTACH_UP
} ngx_http_pd_attach_state_e;


struct ngx_http_pd_attach_s {
    ngx_http_pd_process_t        *process;
    ngx_uint_t                    index;      /* of the zone's entry */
    uint64_t                      id;
    ngx_str_t                     name;       /* the address as written */
    ngx_addr_t                   *addrs;      /* its addresses, in turn */
    ngx_uint_t                    naddrs;
    ngx_uint_t                    next_addr;

    /* of a name that is resolved at run time, see ngx_http_pd_resolve.h */

    ngx_str_t                     host;       /* empty: it is none */
    in_port_t                     port;
    time_t                        valid;      /* the addresses, so long */
    ngx_pool_t                   *names;      /* of the addresses */
    ngx_resolver_ctx_t           *resolving;
    ngx_sockaddr_t                peer;       /* connected to */
    socklen_t                     peer_len;
    void                        (*resolved)(ngx_http_pd_attach_t *attach,
                                    ngx_str_t *why);

    ngx_pool_t                   *pool;

    ngx_http_pd_attach_state_e    state;
    ngx_http_pd_h2_t             *h2;
    ngx_http_pd_outbox_t          outbox;
    ngx_event_t                   flush;      /* posted */
    ngx_event_t                   timer;      /* try again, or heartbeat */
    ngx_uint_t                    failures;   /* since it was up */
    ngx_msec_t                    heard;
    uint64_t                      heartbeats;
    uint64_t                      boot;       /* of the worker's hello */
    uint64_t                      numerics;   /* hash of its numerics_id */
    uint64_t                      max_submit; /* bytes */

    ngx_queue_t                   sides;
    uint64_t                      stream;     /* its name, of this nginx */
    uint64_t                      submitted;  /* on it */

    unsigned                      drained:1;
    unsigned                      moved:1;    /* its name is elsewhere now */
    const char                   *fault;      /* of a message */
};


/* starts to connect; NULL: no memory, or the address is none */
ngx_http_pd_attach_t *ngx_http_pd_attach_create(ngx_http_pd_process_t *process,
    ngx_http_pd_worker_t *worker);

/* closes it for good; its jobs have been told */
void ngx_http_pd_attach_destroy(ngx_http_pd_attach_t *attach);

/* queues the side's submission, whose fields are set */
void ngx_http_pd_attach_submit(ngx_http_pd_attach_t *attach,
    ngx_http_pd_side_t *side);

/* the side is over; the worker is told if "cancel", and if it knows of it */
void ngx_http_pd_attach_drop(ngx_http_pd_side_t *side, ngx_uint_t cancel,
    Pd__V1__Cancel__Reason reason);

/* no submission follows on this stream */
void ngx_http_pd_attach_drain(ngx_http_pd_attach_t *attach);

/* queues a message to the worker; what does not fit ends the stream soon */
void ngx_http_pd_attach_note(ngx_http_pd_attach_t *attach,
    Pd__V1__ToWorker *note);

/* a message of the worker; NGX_ERROR: attach->fault says what is wrong */
ngx_int_t ngx_http_pd_attach_on_message(void *data, u_char *p, size_t len);

/* its hello, which makes the stream usable; NGX_ERROR as above */
ngx_int_t ngx_http_pd_attach_hello(ngx_http_pd_attach_t *attach,
    Pd__V1__WorkerHello *hello);

/* sends what it can, now */
void ngx_http_pd_attach_flush(ngx_http_pd_attach_t *attach);


#endif /* _NGX_HTTP_PD_ATTACH_H_INCLUDED_ */
