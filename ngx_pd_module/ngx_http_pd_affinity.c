
/*
 * Affinity: see the header.
 */


#include "ngx_http_pd_affinity.h"


#define NGX_HTTP_PD_AFFINITY_LEAST    64    /* bytes: below, nothing is cached */


static void ngx_http_pd_affinity_near(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_http_pd_point_t *point, size_t all);
static ngx_http_pd_known_t *ngx_http_pd_affinity_lookup(
    ngx_http_pd_zone_t *zone, uint64_t hash, ngx_http_pd_known_t **oldest);
static void ngx_http_pd_affinity_forget_hash(ngx_http_pd_zone_t *zone,
    ngx_uint_t worker, uint64_t hash);
static ngx_uint_t ngx_http_pd_affinity_valid(ngx_http_pd_zone_t *zone,
    ngx_http_pd_holder_t *holder);
static ngx_http_pd_point_t *ngx_http_pd_affinity_longest(
    ngx_http_pd_prefix_t *prefix, ngx_uint_t *ends, ngx_uint_t *sizes);


ngx_uint_t
ngx_http_pd_affinity_sets(size_t size)
{
    return size / sizeof(ngx_http_pd_known_set_t);
}


void
ngx_http_pd_affinity_find(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_http_pd_prefix_t *prefix)
{
    size_t                all;
    ngx_uint_t            ends, sizes;
    ngx_http_pd_point_t  *point;

    all = prefix->tail.bytes;
    ends = ngx_min(prefix->ends, NGX_HTTP_PD_PREFIX_ENDS);
    sizes = prefix->sizes;

    while (record->near[NGX_HTTP_PD_NEAR - 1].worker == NGX_HTTP_PD_NONE) {
        point = ngx_http_pd_affinity_longest(prefix, &ends, &sizes);

        if (point == NULL || point->bytes < NGX_HTTP_PD_AFFINITY_LEAST) {
            return;
        }

        ngx_http_pd_affinity_near(zone, record, point, all);
    }
}


/* the next of both lists, the longest first */

static ngx_http_pd_point_t *
ngx_http_pd_affinity_longest(ngx_http_pd_prefix_t *prefix, ngx_uint_t *ends,
    ngx_uint_t *sizes)
{
    ngx_uint_t            i;
    ngx_http_pd_point_t  *end, *size;

    size = *sizes ? &prefix->size[*sizes - 1] : NULL;
    end = NULL;

    if (*ends) {
        i = prefix->ends - 1
            - (ngx_min(prefix->ends, NGX_HTTP_PD_PREFIX_ENDS) - *ends);
        end = &prefix->end[i % NGX_HTTP_PD_PREFIX_ENDS];
    }

    if (end && (size == NULL || end->bytes >= size->bytes)) {
        (*ends)--;
        return end;
    }

    if (size) {
        (*sizes)--;
    }

    return size;
}


static void
ngx_http_pd_affinity_near(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_http_pd_point_t *point, size_t all)
{
    ngx_uint_t            i, n;
    ngx_http_pd_known_t  *known, *oldest;

    known = ngx_http_pd_affinity_lookup(zone, point->hash, &oldest);

    if (known == NULL) {
        return;
    }

    for (i = 0; i < NGX_HTTP_PD_HOLDERS; i++) {

        if (!ngx_http_pd_affinity_valid(zone, &known->holder[i])) {
            continue;
        }

        for (n = 0; n < NGX_HTTP_PD_NEAR; n++) {

            if (record->near[n].worker == known->holder[i].worker) {
                break;
            }

            if (record->near[n].worker == NGX_HTTP_PD_NONE) {
                record->near[n].worker = known->holder[i].worker;
                record->near[n].share = point->bytes * NGX_HTTP_PD_SHARE
                                        / all;
                break;
            }
        }
    }
}


void
ngx_http_pd_affinity_stick(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, uint64_t key)
{
    ngx_uint_t            i, n;
    ngx_http_pd_known_t  *known, *oldest;

    known = ngx_http_pd_affinity_lookup(zone, key, &oldest);

    if (known == NULL) {
        return;
    }

    for (i = 0, n = 0; i < NGX_HTTP_PD_HOLDERS && n < 2; i++) {
        if (ngx_http_pd_affinity_valid(zone, &known->holder[i])) {
            record->stuck[n++] = known->holder[i].worker;
        }
    }
}


void
ngx_http_pd_affinity_learn(ngx_http_pd_zone_t *zone, ngx_uint_t worker,
    ngx_http_pd_prefix_t *prefix)
{
    ngx_uint_t            ends, sizes;
    ngx_http_pd_point_t  *point;

    ends = ngx_min(prefix->ends, NGX_HTTP_PD_PREFIX_ENDS);
    sizes = prefix->sizes;

    for ( ;; ) {
        point = ngx_http_pd_affinity_longest(prefix, &ends, &sizes);

        if (point == NULL || point->bytes < NGX_HTTP_PD_AFFINITY_LEAST) {
            return;
        }

        ngx_http_pd_affinity_learn_hash(zone, worker, point->hash);
    }
}


void
ngx_http_pd_affinity_learn_hash(ngx_http_pd_zone_t *zone, ngx_uint_t worker,
    uint64_t hash)
{
    ngx_uint_t             i;
    ngx_http_pd_known_t   *known, *oldest;
    ngx_http_pd_holder_t   holder, next;

    known = ngx_http_pd_affinity_lookup(zone, hash, &oldest);

    if (known == NULL) {

        if (oldest == NULL) {
            return;
        }

        known = oldest;
        known->hash = hash;
        known->used = zone->sh->known_clock;
        ngx_memset(known->holder, 0xff, sizeof(known->holder));
    }

    /* to the front; the others move back, up to its old place or the end */

    holder.worker = worker;
    holder.cache = zone->sh->workers[worker].cache;

    for (i = 0; i < NGX_HTTP_PD_HOLDERS; i++) {
        next = known->holder[i];
        known->holder[i] = holder;

        if (next.worker == worker) {
            break;
        }

        holder = next;
    }
}


void
ngx_http_pd_affinity_forget(ngx_http_pd_zone_t *zone, ngx_uint_t worker,
    ngx_http_pd_prefix_t *prefix)
{
    ngx_uint_t            ends, sizes;
    ngx_http_pd_point_t  *point;

    ends = ngx_min(prefix->ends, NGX_HTTP_PD_PREFIX_ENDS);
    sizes = prefix->sizes;

    for ( ;; ) {
        point = ngx_http_pd_affinity_longest(prefix, &ends, &sizes);

        if (point == NULL) {
            return;
        }

        ngx_http_pd_affinity_forget_hash(zone, worker, point->hash);
    }
}


static void
ngx_http_pd_affinity_forget_hash(ngx_http_pd_zone_t *zone, ngx_uint_t worker,
    uint64_t hash)
{
    ngx_uint_t            i, n;
    ngx_http_pd_known_t  *known, *oldest;

    known = ngx_http_pd_affinity_lookup(zone, hash, &oldest);

    if (known == NULL) {
        return;
    }

    for (i = 0, n = 0; i < NGX_HTTP_PD_HOLDERS; i++) {
        if (known->holder[i].worker != worker) {
            known->holder[n++] = known->holder[i];
        }
    }

    ngx_memset(&known->holder[n], 0xff,
               (NGX_HTTP_PD_HOLDERS - n) * sizeof(ngx_http_pd_holder_t));
}


/* the entry, and it was used now; or the one of its set to be given up */

static ngx_http_pd_known_t *
ngx_http_pd_affinity_lookup(ngx_http_pd_zone_t *zone, uint64_t hash,
    ngx_http_pd_known_t **oldest)
{
    uint32_t                  now;
    ngx_uint_t                i;
    ngx_http_pd_known_t      *known;
    ngx_http_pd_shared_t     *sh;
    ngx_http_pd_known_set_t  *set;

    sh = zone->sh;
    *oldest = NULL;

    if (sh->nknown == 0) {
        return NULL;
    }

    now = ++sh->known_clock;
    set = &sh->known[(hash >> 32) * sh->nknown >> 32];

    for (i = 0; i < NGX_HTTP_PD_WAYS; i++) {
        known = &set->entry[i];

        if (known->hash == hash) {
            known->used = now;
            return known;
        }

        if (*oldest == NULL || now - known->used > now - (*oldest)->used) {
            *oldest = known;
        }
    }

    return NULL;
}


static ngx_uint_t
ngx_http_pd_affinity_valid(ngx_http_pd_zone_t *zone,
    ngx_http_pd_holder_t *holder)
{
    return holder->worker < zone->sh->nworkers
           && zone->sh->workers[holder->worker].id
           && zone->sh->workers[holder->worker].cache == holder->cache;
}


uint32_t
ngx_http_pd_affinity_cached(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_http_pd_worker_t *worker)
{
    ngx_uint_t  i, n;

    i = ngx_http_pd_worker_index(zone, worker);

    for (n = 0; n < NGX_HTTP_PD_NEAR; n++) {
        if (record->near[n].worker == i) {
            return (uint64_t) record->prompt * record->near[n].share
                   / NGX_HTTP_PD_SHARE;
        }
    }

    return 0;
}
