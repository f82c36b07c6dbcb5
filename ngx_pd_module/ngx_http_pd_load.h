
/*
 * Load: what a worker has to do, as the choice sees it.
 *
 *     its last report  +  what was promised and is not in that report yet
 *                      +  blocks for tokens still to come
 *
 * The second and third line are sums over records of the ledger, so that
 * whatever happens to a request, or to its process, takes its share along.
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

/* the prompt's true length */
void ngx_http_pd_load_exact(ngx_http_pd_zone_t *zone, uint32_t record,
    size_t prompt);

/* a load report includes the request */
void ngx_http_pd_load_seen(ngx_http_pd_zone_t *zone, uint32_t record,
    ngx_uint_t decode);

/* so many tokens have come */
void ngx_http_pd_load_progress(ngx_http_pd_zone_t *zone, uint32_t record,
    size_t tokens);

/* the prefill worker has done its part */
void ngx_http_pd_load_prefilled(ngx_http_pd_zone_t *zone, uint32_t record);


#endif /* _NGX_HTTP_PD_LOAD_H_INCLUDED_ */
