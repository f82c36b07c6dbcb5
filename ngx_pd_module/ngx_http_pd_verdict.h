
/*
 * How requests of a cluster have ended of late: a window of minutes, in parts,
 * in the shared zone, so that all processes of this nginx count together and a
 * reload forgets nothing.
 *
 *                 now
 *     | 12/0 | 15/1 | 3/0 |      finished / failed in each part of the window;
 *        older ----->            a part that is too old counts for nothing
 *
 * What counts, and as what:
 *
 *     finished    an answer with a true finish reason
 *     failed      an error that is nobody's but ours: workers lost, at fault or
 *                 out of reach, hand-offs that fail, time that ran out
 *     neither     what the request itself is to blame for (4xx), what a limit
 *                 or a full house refuses (429; 503 while workers that serve
 *                 the model are busy), a client that leaves or reads too
 *                 slowly, time that the client itself has cut short, a process
 *                 that nginx ends, canaries
 *
 * Each answer counts: of a request with several, each one.
 */


#ifndef _NGX_HTTP_PD_VERDICT_H_INCLUDED_
#define _NGX_HTTP_PD_VERDICT_H_INCLUDED_


#include "ngx_http_pd_attempt.h"


/* what the end of an attempt says of us; before it is taken apart */
ngx_http_pd_verdict_e ngx_http_pd_verdict(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_result_t *result);

/* the rest is called under the zone's lock */

/* one more of a cluster's */
void ngx_http_pd_verdict_count(ngx_http_pd_zone_t *zone, ngx_uint_t cluster,
    ngx_http_pd_verdict_e verdict);

/* those of the window: all that counted, and those of them that finished */
void ngx_http_pd_verdict_sum(ngx_http_pd_zone_cluster_t *cluster,
    uint64_t *requests, uint64_t *finished);

void ngx_http_pd_verdict_clear(ngx_http_pd_zone_cluster_t *cluster);

/* the configuration's window, in ms; another one than before begins anew */
void ngx_http_pd_verdict_place(ngx_http_pd_zone_cluster_t *cluster,
    ngx_msec_t window);

/* as the state file tells: so many, so many seconds ago */
void ngx_http_pd_verdict_restore(ngx_http_pd_zone_cluster_t *cluster,
    uint64_t age, uint64_t finished, uint64_t failed);

/* 1 if the part is in the window: it began so many seconds ago */
ngx_uint_t ngx_http_pd_verdict_part(ngx_http_pd_zone_cluster_t *cluster,
    ngx_uint_t i, uint64_t *age);


#endif /* _NGX_HTTP_PD_VERDICT_H_INCLUDED_ */
