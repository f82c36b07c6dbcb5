
/*
 * Policy: which of two workers that could do a request is to do it, and
 * whether a request needs a prefill worker at all.
 *
 *     least_time     P: fewest expected ms until the prompt is computed, out of
 *                    what waits there, the measured time per token, and what
 *                    of the prompt it has in its cache
 *                    D: the emptiest pool, leaning towards one that knows the
 *                    beginning of the prompt
 *     least_load     the same of tokens that wait and of pools alone
 *     round_robin    each in turn, by weight
 *     hash KEY       the same worker for the same key, by weight; where it has
 *                    no room, the same other one
 *
 * Whatever the policy: first the workers of the session ("sticky"), then those
 * of the prefill worker's zone; ties go to who has fewer requests, then to who
 * was chosen longer ago.
 */


#ifndef _NGX_HTTP_PD_POLICY_H_INCLUDED_
#define _NGX_HTTP_PD_POLICY_H_INCLUDED_


#include "ngx_http_pd_choose.h"


typedef enum {
    NGX_HTTP_PD_LEAST_TIME = 0,
    NGX_HTTP_PD_LEAST_LOAD,
    NGX_HTTP_PD_ROUND_ROBIN,
    NGX_HTTP_PD_HASH
} ngx_http_pd_policy_e;


/* directives of pd_cluster */
char *ngx_http_pd_policy_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_pd_policy_sticky(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* the same on every nginx, so that all choose alike; not 0 */
uint64_t ngx_http_pd_policy_hash(ngx_str_t *text);

/* a request's keys for "hash" and "sticky"; empty where there are none */
ngx_int_t ngx_http_pd_policy_keys(ngx_http_pd_cluster_t *cluster,
    ngx_http_request_t *r, ngx_str_t *hash, ngx_str_t *sticky);

/* the rest is called under the zone's lock */

/* "a" is to be preferred to "b" */
ngx_uint_t ngx_http_pd_policy_better(ngx_http_pd_zone_t *zone,
    ngx_http_pd_search_t *search, ngx_http_pd_worker_t *a,
    ngx_http_pd_worker_t *b);

/* the worker was chosen */
void ngx_http_pd_policy_chosen(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker);

/* us until the worker would have computed the record's prompt */
double ngx_http_pd_policy_time(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_http_pd_worker_t *worker);


#endif /* _NGX_HTTP_PD_POLICY_H_INCLUDED_ */
