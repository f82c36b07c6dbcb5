
/*
 * The other frontends: what workers have passed on of how their requests end
 * (Frontends in proto/pd.proto), in the shared zone.
 *
 * Several workers tell of the same frontend; the last word counts.  Of one that
 * was not heard of for 5 s nothing is known: it has gone, or cannot be reached
 * by the workers that we reach, or the workers are of a version that does not
 * tell.  The table has 128 places; in a full one the frontend goes of which was
 * heard longest ago.
 *
 * All functions are called under the zone's lock.
 */


#ifndef _NGX_HTTP_PD_FRONTENDS_H_INCLUDED_
#define _NGX_HTTP_PD_FRONTENDS_H_INCLUDED_


#include "ngx_http_pd_zone.h"


#define NGX_HTTP_PD_RATIO_ALL        10000   /* a ratio: parts of 10,000 */
#define NGX_HTTP_PD_RATIO_UNKNOWN    ((ngx_uint_t) -1)


typedef struct {
    ngx_uint_t  known;               /* others */
    ngx_uint_t  away;                /* of these, those that are out */
    ngx_uint_t  median;              /* of those with enough requests */
} ngx_http_pd_frontends_view_t;


/* a worker of the cluster has told */
void ngx_http_pd_frontends_learn(ngx_http_pd_zone_t *zone, ngx_uint_t cluster,
    Pd__V1__Frontends *frontends);

/* what is known now; whoever had fewer requests has no ratio */
void ngx_http_pd_frontends_view(ngx_http_pd_zone_t *zone, ngx_uint_t cluster,
    uint64_t requests, ngx_http_pd_frontends_view_t *view);


/* rounded, so that a ratio is the same from whichever numbers */
#define ngx_http_pd_frontends_ratio(finished, requests)                      \
    ((ngx_uint_t) (((uint64_t) (finished) * NGX_HTTP_PD_RATIO_ALL            \
                    + (requests) / 2)                                        \
                   / (requests)))


#endif /* _NGX_HTTP_PD_FRONTENDS_H_INCLUDED_ */
