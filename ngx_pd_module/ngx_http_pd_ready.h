
/*
 * Whether this frontend is fit to be given requests: what pd_health ready says.
 *
 *           too few finish, clearly fewer than the others'
 *     IN ---------------------------------------------------> AWAY
 *      ^                                                       |  ^  a canary
 *      +---- time is over, and all canaries (>= 98 %) sang ----+--+  too many
 *                                                                    failed
 *
 * A frontend cannot know alone whose fault its failures are.  It leaves only
 * if the others, of whom workers tell (ngx_http_pd_frontends.h), are clearly
 * better, and fewer than half of all are out already.  Else it stays, and says
 * that the cluster is degraded.
 *
 * Who is out gets no requests that could prove it well, so it sends canaries of
 * its own, spread over the time that it stays out at least.  That time has
 * jitter, and doubles from round to round.
 *
 * Judged each second by the process that sweeps; all of it lies in the shared
 * zone, outlives a reload there and an upgrade in the state file.
 */


#ifndef _NGX_HTTP_PD_READY_H_INCLUDED_
#define _NGX_HTTP_PD_READY_H_INCLUDED_


#include "ngx_http_pd_process.h"


typedef enum {
    NGX_HTTP_PD_READY_WAITING = 0,   /* a model has no pair that is usable */
    NGX_HTTP_PD_READY_AWAY,
    NGX_HTTP_PD_READY_DEGRADED,      /* in, though too few finish */
    NGX_HTTP_PD_READY
} ngx_http_pd_ready_e;


/* "readiness ..." in pd_cluster; its defaults, at the end of the block */
char *ngx_http_pd_ready_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
void ngx_http_pd_ready_unset(ngx_http_pd_cluster_t *cluster);
void ngx_http_pd_ready_defaults(ngx_http_pd_cluster_t *cluster);

/* each second, in the process that sweeps */
void ngx_http_pd_ready_tick(ngx_http_pd_process_t *process);

/* each 0.1 s while that says so: canaries whose time has come */
ngx_uint_t ngx_http_pd_ready_sing(ngx_http_pd_process_t *process);

/* a canary of the cluster has come back */
void ngx_http_pd_ready_canary(ngx_http_pd_process_t *process,
    ngx_http_pd_cluster_t *conf, ngx_http_pd_verdict_e verdict);

ngx_http_pd_ready_e ngx_http_pd_ready(ngx_http_pd_cluster_t *conf);

/* without the lock, for one bit of each answer */
ngx_uint_t ngx_http_pd_ready_away(ngx_http_pd_cluster_t *conf);
ngx_uint_t ngx_http_pd_ready_degraded(ngx_http_pd_cluster_t *conf);

/* the rest is called under the zone's lock */

/* the new configuration's window */
void ngx_http_pd_ready_place(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *conf);

/* what the workers of a cluster shall pass on */
void ngx_http_pd_ready_tell(ngx_http_pd_zone_t *zone, ngx_uint_t cluster,
    Pd__V1__FrontendHealth *health);

/* as the state file tells: out for so many s, after so many rounds */
void ngx_http_pd_ready_restore(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *conf, uint64_t left, uint64_t rounds);


#endif /* _NGX_HTTP_PD_READY_H_INCLUDED_ */
