
/*
 * Which pairs of a prefill and a decode worker are left out.
 *
 * A hand-off that fails while both workers live speaks against the pair, not
 * against them.  After two in a row the pair is left out for a while, longer
 * each time; then requests try it, of which the first one that fails ends the
 * trial, and the first that is answered ends the matter.
 *
 *     faults   1   2 .......... 3 ............... (a hand-off works) 0
 *     used     yes | no, 1 s    | no, 2 s         | yes
 *                         ^
 *                         sooner, if the decode worker says that its link to
 *                         the prefill worker was down and is up again: it tries
 *                         by itself
 *
 * What is borrowed (ngx_http_pd_borrow.h) goes the other way, from its owner to
 * the prefill worker that reads it: these two are a pair of their own, in which
 * the owner stands for the prefill worker.
 *
 * 256 pairs are remembered, those that failed last.  The last pair that serves
 * a model stays in use.  All functions are called under the zone's lock.
 */


#ifndef _NGX_HTTP_PD_PAIRS_H_INCLUDED_
#define _NGX_HTTP_PD_PAIRS_H_INCLUDED_


#include "ngx_http_pd_process.h"


/* a hand-off between the workers has failed */
void ngx_http_pd_pairs_fault(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *conf, ngx_http_pd_worker_t *prefill,
    ngx_http_pd_worker_t *decode, ngx_log_t *log);

/* ... or an answer with both has ended well */
void ngx_http_pd_pairs_well(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *prefill, ngx_http_pd_worker_t *decode);

/* the worker has started again: what failed with it is past */
void ngx_http_pd_pairs_forget(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker);

/* what a decode worker's report says of its link to the "instance" */
void ngx_http_pd_pairs_link(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *decode, ngx_str_t *instance, ngx_uint_t up,
    ngx_log_t *log);

/* for the choice */
ngx_uint_t ngx_http_pd_pairs_usable(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *prefill, ngx_http_pd_worker_t *decode);


#endif /* _NGX_HTTP_PD_PAIRS_H_INCLUDED_ */
