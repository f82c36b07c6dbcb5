
/*
 * Affinity: which workers have seen the beginning of a prompt, and so have its
 * KV in their cache as likely as not.
 *
 *     set    |hash used workers|hash used workers|hash used workers|hash ...|
 *
 * A table of fixed size in the shared zone, a quarter of what is left beside
 * the other tables, in sets of four entries of 32 bytes: a hash (a point of a
 * prompt, or the key of a session), and the last five workers that had to do
 * with it.  Where a set is full, the entry that was used longest ago makes
 * room.  A worker that starts again has an empty cache, and is in no entry; one
 * that is asked for a prompt and has nothing of it is in none of the prompt's.
 *
 * All functions are called under the zone's lock.
 */


#ifndef _NGX_HTTP_PD_AFFINITY_H_INCLUDED_
#define _NGX_HTTP_PD_AFFINITY_H_INCLUDED_


#include "ngx_http_pd_prefix.h"
#include "ngx_http_pd_zone.h"


#define NGX_HTTP_PD_SHARE    1024       /* all of a prompt */


/* sets that fit into so many bytes */
ngx_uint_t ngx_http_pd_affinity_sets(size_t size);

/* a record learns which workers know how much of its prompt */
void ngx_http_pd_affinity_find(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_http_pd_prefix_t *prefix);

/* which workers its session was with; "key" is not 0 */
void ngx_http_pd_affinity_stick(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, uint64_t key);

/* the worker gets the prompt; has what ends at the point; has the session */
void ngx_http_pd_affinity_learn(ngx_http_pd_zone_t *zone, ngx_uint_t worker,
    ngx_http_pd_prefix_t *prefix);
void ngx_http_pd_affinity_learn_hash(ngx_http_pd_zone_t *zone,
    ngx_uint_t worker, uint64_t hash);

/* it has nothing of the prompt, although it had */
void ngx_http_pd_affinity_forget(ngx_http_pd_zone_t *zone, ngx_uint_t worker,
    ngx_http_pd_prefix_t *prefix);

/* tokens of the record's prompt that the worker need not compute */
uint32_t ngx_http_pd_affinity_cached(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_http_pd_worker_t *worker);


#endif /* _NGX_HTTP_PD_AFFINITY_H_INCLUDED_ */
