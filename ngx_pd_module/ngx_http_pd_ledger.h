
/*
 * The ledger: one record in the shared zone for each request from its arrival
 * to its end, and the queue of those that wait for room.
 *
 *     QUEUED ----> GRANTED ----> RUNNING ----> free
 *        |  room     |   taken      ^
 *        |           +-> QUEUED     |
 *        |            not taken     |
 *        +--------------------------+  room at once
 *
 * Whichever process frees room grants it to the head of the queue, in whose
 * name it chooses workers, and wakes the process that has the request.
 *
 * What a record adds to its workers' counters is the affair of
 * ngx_http_pd_load.h.
 *
 * All functions are called under the zone's lock.
 */


#ifndef _NGX_HTTP_PD_LEDGER_H_INCLUDED_
#define _NGX_HTTP_PD_LEDGER_H_INCLUDED_


#include "ngx_http_pd_prefix.h"
#include "ngx_http_pd_zone.h"


/* output tokens to expect where the client sets no limit */
#define NGX_HTTP_PD_LEDGER_OUTPUT    256


typedef struct {
    ngx_http_pd_cluster_t  *cluster;
    uint64_t                number;
    ngx_str_t               model;
    size_t                  prompt;        /* tokens, estimated */
    size_t                  output;        /* tokens, 0: no limit given */
    ngx_str_t               tenant;
    size_t                  bytes;         /* of the prompt */
    ngx_http_pd_claim_t    *claim;         /* NULL: on nobody's account */
    ngx_uint_t              canary;        /* 1 + the worker; 0: none */
    uint64_t                key;           /* of policy "hash", 0: none */
    uint64_t                session;       /* of "sticky", 0: none */
    ngx_http_pd_prefix_t   *prefix;        /* of the prompt, or NULL */
    ngx_uint_t              class;
    ngx_uint_t              weight;        /* the tenant's */
    ngx_msec_t              wait;          /* the longest that makes sense */
} ngx_http_pd_need_t;


typedef enum {
    NGX_HTTP_PD_REFUSED_MODEL = 1,         /* nobody serves it */
    NGX_HTTP_PD_REFUSED_LIMIT,             /* see the claim */
    NGX_HTTP_PD_REFUSED_QUEUE,             /* the queue is full */
    NGX_HTTP_PD_REFUSED_WAIT,              /* it would wait for too long */
    NGX_HTTP_PD_REFUSED_TABLE,             /* no record is left */
    NGX_HTTP_PD_REFUSED_CANARY             /* the last; its worker cannot be used */
} ngx_http_pd_refused_e;


/*
 * NGX_OK: running, its workers are in the record; NGX_AGAIN: in the queue;
 * NGX_DECLINED: *why.
 */
ngx_int_t ngx_http_pd_ledger_admit(ngx_http_pd_zone_t *zone,
    ngx_http_pd_need_t *need, uint32_t *record, ngx_http_pd_refused_e *why);

/*
 * A worker has refused, or is gone: choose again, without it.  NGX_OK or
 * NGX_AGAIN as above; a queued record keeps its place, that is, the front.
 */
ngx_int_t ngx_http_pd_ledger_again(ngx_http_pd_zone_t *zone, uint32_t record,
    ngx_uint_t avoid);

/* the same for the decode worker alone; NGX_AGAIN: none fits, none is set */
ngx_int_t ngx_http_pd_ledger_again_decode(ngx_http_pd_zone_t *zone,
    uint32_t record, ngx_uint_t avoid);

/* a request of this process that was granted its workers, or NIL */
uint32_t ngx_http_pd_ledger_take(ngx_http_pd_zone_t *zone);

/* the request has ended */
void ngx_http_pd_ledger_release(ngx_http_pd_zone_t *zone, uint32_t record);

/* grants what room there is; cheap where nobody waits */
void ngx_http_pd_ledger_run(ngx_http_pd_zone_t *zone);

/* grants that were not taken in 0.1 s move on */
void ngx_http_pd_ledger_expire(ngx_http_pd_zone_t *zone);

/* for the zone: a process is dead; a process died under the lock */
void ngx_http_pd_ledger_forget(ngx_http_pd_zone_t *zone, ngx_uint_t slot);
void ngx_http_pd_ledger_rebuild(ngx_http_pd_zone_t *zone);


#endif /* _NGX_HTTP_PD_LEDGER_H_INCLUDED_ */
