
/*
 * Which workers a request goes to, judged by the tables of the shared zone
 * alone, so that any process can choose for any other.
 */


#ifndef _NGX_HTTP_PD_CHOOSE_H_INCLUDED_
#define _NGX_HTTP_PD_CHOOSE_H_INCLUDED_


#include "ngx_http_pd_zone.h"


/* what is looked for */

typedef struct {
    ngx_http_pd_record_t  *record;
    ngx_uint_t             roles;
    ngx_uint_t             prefill;    /* it computes the prompt */
    ngx_uint_t             decode;     /* it generates */
    ngx_http_pd_worker_t  *partner;    /* its prefill worker, if another */
    uint64_t               rejected[NGX_HTTP_PD_ZONE_WORKERS / 64];
} ngx_http_pd_search_t;


/*
 * Sets the record's workers: a pair, or only "decode" for both phases, or only
 * "prefill" where one token is all that is wanted.  NGX_AGAIN: nothing fits
 * now.  The record has no workers and no charges before.
 */
ngx_int_t ngx_http_pd_choose(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record);

/* another decode worker for a ticket that the prefill worker holds */
ngx_int_t ngx_http_pd_choose_decode(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record);

/* the worker serves the model (0: any model) and may be given requests */
ngx_uint_t ngx_http_pd_choose_serves(ngx_http_pd_worker_t *worker,
    ngx_uint_t cluster, uint64_t model);

/*
 * Somebody answers for the model (0: any), for each model that is served: a
 * mixed worker, or a pair, that is fit and that a process is attached to.
 */
ngx_uint_t ngx_http_pd_choose_possible(ngx_http_pd_zone_t *zone,
    ngx_uint_t cluster, uint64_t model);
ngx_uint_t ngx_http_pd_choose_ready(ngx_http_pd_zone_t *zone,
    ngx_uint_t cluster);

/* blocks that hold so many tokens */
uint64_t ngx_http_pd_choose_blocks(ngx_http_pd_worker_t *worker,
    uint64_t tokens);

/* the two workers' KV means the same */
ngx_uint_t ngx_http_pd_choose_pair_fits(ngx_http_pd_worker_t *prefill,
    ngx_http_pd_worker_t *decode);


#endif /* _NGX_HTTP_PD_CHOOSE_H_INCLUDED_ */
