
/*
 * Which pairs are left out: see the header.
 */


#include "ngx_http_pd_pairs.h"
#include "ngx_http_pd_choose.h"
#include "ngx_http_pd_slot.h"
#include "ngx_http_pd_vitals.h"


#define NGX_HTTP_PD_PAIRS_FAULTS      2           /* in a row */


static ngx_http_pd_pair_t *ngx_http_pd_pairs_find(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *prefill, ngx_http_pd_worker_t *decode);
static ngx_http_pd_pair_t *ngx_http_pd_pairs_add(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *prefill, ngx_http_pd_worker_t *decode);
static ngx_uint_t ngx_http_pd_pairs_last(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *prefill, ngx_http_pd_worker_t *decode);


void
ngx_http_pd_pairs_fault(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *conf, ngx_http_pd_worker_t *prefill,
    ngx_http_pd_worker_t *decode, ngx_log_t *log)
{
    uint64_t             now;
    ngx_http_pd_pair_t  *pair;

    /* a worker that is gone is no broken link */

    if (!ngx_http_pd_slot_attached_any(zone, prefill)
        || !ngx_http_pd_slot_attached_any(zone, decode))
    {
        return;
    }

    now = ngx_http_pd_now_us();
    pair = ngx_http_pd_pairs_find(zone, prefill, decode);

    if (pair == NULL) {
        pair = ngx_http_pd_pairs_add(zone, prefill, decode);
    }

    pair->touched = now;
    pair->faults++;
    pair->down = 0;

    if (pair->faults < NGX_HTTP_PD_PAIRS_FAULTS || pair->until > now
        || ngx_http_pd_pairs_last(zone, prefill, decode))
    {
        return;
    }

    pair->until = now + ngx_http_pd_vitals_backoff(conf, pair->faults
                                                   - NGX_HTTP_PD_PAIRS_FAULTS);

    ngx_log_error(NGX_LOG_ERR, log, 0,
                  "pd: the pair of \"%*s\" and \"%*s\" is left out: "
                  "hand-offs between them fail",
                  (size_t) prefill->address_len, prefill->address,
                  (size_t) decode->address_len, decode->address);
}


/* in place of the one that was touched longest ago */

static ngx_http_pd_pair_t *
ngx_http_pd_pairs_add(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *prefill, ngx_http_pd_worker_t *decode)
{
    ngx_uint_t           i;
    ngx_http_pd_pair_t  *pair;

    pair = zone->sh->pairs;

    for (i = 1; i < NGX_HTTP_PD_ZONE_PAIRS; i++) {
        if (zone->sh->pairs[i].touched < pair->touched) {
            pair = &zone->sh->pairs[i];
        }
    }

    if (pair->prefill == 0) {
        zone->sh->npairs++;
    }

    ngx_memzero(pair, sizeof(ngx_http_pd_pair_t));

    pair->prefill = prefill->id;
    pair->decode = decode->id;

    return pair;
}


void
ngx_http_pd_pairs_well(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *prefill, ngx_http_pd_worker_t *decode)
{
    ngx_http_pd_pair_t  *pair;

    pair = ngx_http_pd_pairs_find(zone, prefill, decode);

    if (pair) {
        ngx_memzero(pair, sizeof(ngx_http_pd_pair_t));
        zone->sh->npairs--;
    }
}


void
ngx_http_pd_pairs_forget(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker)
{
    ngx_uint_t           i;
    ngx_http_pd_pair_t  *pair;

    for (i = 0; i < NGX_HTTP_PD_ZONE_PAIRS; i++) {
        pair = &zone->sh->pairs[i];

        if (pair->prefill == worker->id || pair->decode == worker->id) {
            ngx_memzero(pair, sizeof(ngx_http_pd_pair_t));
            zone->sh->npairs--;
        }
    }
}


/*
 * That it is up says nothing by itself: it may be of a moment before the fault,
 * or not what has failed.  That it came up does.
 */

void
ngx_http_pd_pairs_link(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *decode, ngx_str_t *instance, ngx_uint_t up,
    ngx_log_t *log)
{
    ngx_uint_t             i;
    ngx_http_pd_pair_t    *pair;
    ngx_http_pd_worker_t  *prefill;

    for (i = 0; i < zone->sh->nworkers; i++) {
        prefill = &zone->sh->workers[i];

        if (prefill->id == 0 || prefill->instance_len != instance->len
            || ngx_memcmp(prefill->instance, instance->data, instance->len)
               != 0)
        {
            continue;
        }

        pair = ngx_http_pd_pairs_find(zone, prefill, decode);

        if (pair == NULL || pair->down == !up) {
            continue;
        }

        pair->down = !up;

        if (up && pair->until > ngx_http_pd_now_us()) {
            pair->until = 0;

            ngx_log_error(NGX_LOG_NOTICE, log, 0,
                          "pd: the pair of \"%*s\" and \"%*s\" is tried "
                          "again: the link between them is up",
                          (size_t) prefill->address_len, prefill->address,
                          (size_t) decode->address_len, decode->address);
        }
    }
}


ngx_uint_t
ngx_http_pd_pairs_usable(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *prefill, ngx_http_pd_worker_t *decode)
{
    ngx_http_pd_pair_t  *pair;

    pair = ngx_http_pd_pairs_find(zone, prefill, decode);

    return pair == NULL || pair->until <= ngx_http_pd_now_us();
}


static ngx_http_pd_pair_t *
ngx_http_pd_pairs_find(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *prefill, ngx_http_pd_worker_t *decode)
{
    ngx_uint_t           i;
    ngx_http_pd_pair_t  *pair;

    if (zone->sh->npairs == 0) {
        return NULL;
    }

    for (i = 0; i < NGX_HTTP_PD_ZONE_PAIRS; i++) {
        pair = &zone->sh->pairs[i];

        if (pair->prefill == prefill->id && pair->decode == decode->id) {
            return pair;
        }
    }

    return NULL;
}


/* nobody else could hand over what these two do */

static ngx_uint_t
ngx_http_pd_pairs_last(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *prefill, ngx_http_pd_worker_t *decode)
{
    ngx_uint_t             i, n;
    ngx_http_pd_worker_t  *p, *d;

    for (i = 0; i < zone->sh->nworkers; i++) {
        p = &zone->sh->workers[i];

        if (p->role == PD__V1__ROLE__ROLE_DECODE
            || !ngx_http_pd_vitals_serves(zone, p, prefill))
        {
            continue;
        }

        if (p->role == PD__V1__ROLE__ROLE_MIXED) {
            return 0;
        }

        for (n = 0; n < zone->sh->nworkers; n++) {
            d = &zone->sh->workers[n];

            if (d->role == PD__V1__ROLE__ROLE_DECODE
                && (p != prefill || d != decode)
                && ngx_http_pd_vitals_serves(zone, d, decode)
                && ngx_http_pd_choose_pair_fits(p, d)
                && ngx_http_pd_pairs_usable(zone, p, d))
            {
                return 0;
            }
        }
    }

    return 1;
}
