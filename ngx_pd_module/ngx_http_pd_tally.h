
/*
 * How answers with each worker have ended of late, and whether one fails more
 * of them than the others of its kind do: by more than chance, and by enough
 * to matter.
 *
 *     the worker    f of n failed        p = (f + F) / (n + N)
 *     the others    F of N
 *                                  f/n - F/N > 3.5 sqrt(p (1-p) (1/n + 1/N))
 *
 * The right side is what two samples of the same kind differ by once in some
 * thousand times.  So where all fail alike, none is worse, however many fail;
 * and a worker that fails each tenth answer among good ones is known for it
 * after 60 to 150 of its answers.
 *
 * A worker has two numbers in the shared zone.  Both are halved when 256
 * answers are counted, and after five minutes: what was long ago weighs little.
 *
 * All functions are called under the zone's lock.
 */


#ifndef _NGX_HTTP_PD_TALLY_H_INCLUDED_
#define _NGX_HTTP_PD_TALLY_H_INCLUDED_


#include "ngx_http_pd_zone.h"


#define NGX_HTTP_PD_TALLY_FULL    256          /* answers */


typedef struct {
    uint64_t  answers;
    uint64_t  failed;
} ngx_http_pd_tally_t;


/* one more answer of the worker's; "now": us of our clock; 1: it is full */
ngx_uint_t ngx_http_pd_tally_count(ngx_http_pd_worker_t *worker,
    ngx_uint_t failed, uint64_t now);

void ngx_http_pd_tally_clear(ngx_http_pd_worker_t *worker);

/*
 * 1 if the worker is worse than the others: by "excess" points of 100 or more,
 * each side having "least" answers
 */
ngx_uint_t ngx_http_pd_tally_worse(ngx_http_pd_tally_t *worker,
    ngx_http_pd_tally_t *others, ngx_uint_t excess, ngx_uint_t least);


#endif /* _NGX_HTTP_PD_TALLY_H_INCLUDED_ */
