
/*
 * Whether a worker fails more often than the others: see the header.
 */


#include "ngx_http_pd_tally.h"


#define NGX_HTTP_PD_TALLY_AGE     300000000    /* us */
#define NGX_HTTP_PD_TALLY_MOST    4096         /* of others: for the product */
#define NGX_HTTP_PD_TALLY_CHANCE  12           /* 3.5 deviations, squared */


ngx_uint_t
ngx_http_pd_tally_count(ngx_http_pd_worker_t *worker, ngx_uint_t failed,
    uint64_t now)
{
    ngx_uint_t  full;

    full = (worker->answers + 1 >= NGX_HTTP_PD_TALLY_FULL);

    worker->answers++;
    worker->failed += (failed != 0);

    if (full || now - worker->tallied > NGX_HTTP_PD_TALLY_AGE) {
        worker->answers /= 2;
        worker->failed /= 2;
        worker->tallied = now;
    }

    return full;
}


void
ngx_http_pd_tally_clear(ngx_http_pd_worker_t *worker)
{
    worker->answers = 0;
    worker->failed = 0;
}


ngx_uint_t
ngx_http_pd_tally_worse(ngx_http_pd_tally_t *worker,
    ngx_http_pd_tally_t *others, ngx_uint_t excess, ngx_uint_t least)
{
    uint64_t  f, n, of, on, more, p, t;

    f = worker->failed;
    n = worker->answers;
    of = others->failed;
    on = others->answers;

    if (n < least || on < least) {
        return 0;
    }

    if (on > NGX_HTTP_PD_TALLY_MOST) {
        of = of * NGX_HTTP_PD_TALLY_MOST / on;
        on = NGX_HTTP_PD_TALLY_MOST;
    }

    if (f * on <= of * n) {
        return 0;
    }

    /* both sides of the inequality, times n N, squared, times (n + N)^2 */

    more = f * on - of * n;
    p = f + of;
    t = n + on;

    return more * 100 >= excess * n * on
           && more * more * t > NGX_HTTP_PD_TALLY_CHANCE * p * (t - p) * n * on;
}
