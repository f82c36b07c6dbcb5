
/*
 * Load: what a worker has to do, as the choice sees it.
 *
 *     its last report  +  what was promised and is not in that report yet
 *                      +  blocks for tokens still to come, if the report does
 *                         not leave more for them itself
 *
 * The second and third line are sums over records of the ledger, so that
 * whatever happens to a request, or to its process, takes its share along.
 *
 * A submission that has begun is in the list of its worker until a report
 * includes it.  Reports say so of all streams of this nginx, so whichever
 * process reads the newest changes numbers and list at once, and their sum is
 * true at any time.  A node of the list is named by its record's index * 2, + 1
 * for the decode worker's.
 *
 * All functions are called under the zone's lock.
 */


#ifndef _NGX_HTTP_PD_LOAD_H_INCLUDED_
#define _NGX_HTTP_PD_LOAD_H_INCLUDED_


#include "ngx_http_pd_zone.h"


/* the record's share is added to (1), or taken from (-1), its workers' sums */
void ngx_http_pd_load_charge(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_int_t sign);

/* takes it, and leaves the record without workers */
void ngx_http_pd_load_drop(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record);

/* the same after a death under the lock, which may have broken the lists */
void ngx_http_pd_load_rebuild(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record);

/* the submission to its decode (or prefill) worker begins: "number" of it */
void ngx_http_pd_load_begun(ngx_http_pd_zone_t *zone, uint32_t record,
    ngx_uint_t decode, uint64_t stream, uint64_t number);

/* it is over, or will be made again */
void ngx_http_pd_load_unlink(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_uint_t decode);

/* a report of the worker, that came on that stream */
void ngx_http_pd_load_report(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker, uint64_t stream, Pd__V1__LoadReport *load);

/* the prompt's true length */
void ngx_http_pd_load_exact(ngx_http_pd_zone_t *zone, uint32_t record,
    size_t prompt);

/* so many tokens have come */
void ngx_http_pd_load_progress(ngx_http_pd_zone_t *zone, uint32_t record,
    size_t tokens);

/* blocks that the report calls free and that will be taken */
uint64_t ngx_http_pd_load_promised(ngx_http_pd_worker_t *worker);

/* the prefill worker has done its part, or is gone after the hand-off */
void ngx_http_pd_load_prefilled(ngx_http_pd_zone_t *zone, uint32_t record);


#endif /* _NGX_HTTP_PD_LOAD_H_INCLUDED_ */
