
/*
 * The queue of a cluster: who waits for room, and in which order it is given.
 *
 *     interactive   a  b  a  b  ...      first, but each eighth turn is
 *     standard      a  a  c  a  ...      standard's while somebody waits there
 *
 * Within a class tenants share by weight (start-time fair queueing): a request
 * begins, in tokens' time, where its tenant's one before it has ended, or now,
 * whichever is later, and ends so many tokens later as it needs, divided by the
 * tenant's weight; the order is that of the beginnings.  So whoever sends a
 * thousand requests waits behind them himself, and a tenant's own requests stay
 * in the order in which they came.  Where each tenant's last one ends is in its
 * account: tenants compete for one model.  When nobody waits any more, all
 * begin anew.
 *
 * The order is one for all nginx processes, and the trees are made of records,
 * so that they can be made anew from them.
 *
 * How fast the queue moves is measured while somebody waits, over the last ten
 * seconds of that or so: it tells newcomers how long they would wait.
 *
 * All functions are called under the zone's lock.
 */


#ifndef _NGX_HTTP_PD_QUEUE_H_INCLUDED_
#define _NGX_HTTP_PD_QUEUE_H_INCLUDED_


#include "ngx_http_pd_zone.h"


#define NGX_HTTP_PD_QUEUE_TURN    8      /* each so many is standard's */


/* a walk through those who wait, in their order */

typedef struct {
    ngx_http_pd_zone_cluster_t   *cluster;
    ngx_rbtree_node_t            *next[NGX_HTTP_PD_CLASSES];
} ngx_http_pd_queue_walk_t;


/* nobody waits */
void ngx_http_pd_queue_init(ngx_http_pd_zone_cluster_t *cluster);

/* gives a new record its place in the order */
void ngx_http_pd_queue_place(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_uint_t weight);

/* it leaves without having been served: its tenant has that to come */
void ngx_http_pd_queue_forgo(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record);

/* it waits; it does not any more, for whatever reason */
void ngx_http_pd_queue_insert(ngx_http_pd_zone_t *zone, uint32_t record);
void ngx_http_pd_queue_remove(ngx_http_pd_zone_t *zone, uint32_t record);

/* it was given room, after waiting or at once */
void ngx_http_pd_queue_served(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_uint_t waited);

/* the walk; the last record may be removed before the next call.  NIL: end */
void ngx_http_pd_queue_walk(ngx_http_pd_zone_cluster_t *cluster,
    ngx_http_pd_queue_walk_t *walk);
uint32_t ngx_http_pd_queue_next(ngx_http_pd_zone_t *zone,
    ngx_http_pd_queue_walk_t *walk);

/* for this model there is no room: who waits for nothing else is left out */
void ngx_http_pd_queue_stuck(ngx_http_pd_queue_walk_t *walk, uint64_t model);

/*
 * How long the record would wait, in microseconds: 0 if that is not known, and
 * "enough" or more where it is at least that.
 */
uint64_t ngx_http_pd_queue_wait(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, uint64_t enough);

/* seconds until all who wait have been served */
ngx_uint_t ngx_http_pd_queue_drain(ngx_http_pd_zone_cluster_t *cluster);


#endif /* _NGX_HTTP_PD_QUEUE_H_INCLUDED_ */
