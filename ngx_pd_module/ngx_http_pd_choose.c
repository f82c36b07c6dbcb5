
/*
 * The choice.
 *
 *     few tokens to be computed    a decode or mixed worker does it all
 *     otherwise                    prefill P and decode D, by policy
 *         (and who has more of the prompt than P, see borrow.h)
 *     no pair has room             a mixed worker
 *     none has                     the request waits
 *
 * A worker has room if its last report, less what was promised to it since,
 * holds the prompt and the tokens to come.  The table only helps to choose: D's
 * own reservation decides.  An idle worker always has room: it knows better
 * than we do whether a request fits at all.
 */


#include "ngx_http_pd_choose.h"
#include "ngx_http_pd_affinity.h"
#include "ngx_http_pd_borrow.h"
#include "ngx_http_pd_load.h"
#include "ngx_http_pd_pairs.h"
#include "ngx_http_pd_policy.h"
#include "ngx_http_pd_revision.h"
#include "ngx_http_pd_slot.h"
#include "ngx_http_pd_vitals.h"


#define NGX_HTTP_PD_CHOOSE_AUTO    64      /* tokens, while nothing is known */


#define ngx_http_pd_role(r)    (1u << (r))

#define NGX_HTTP_PD_PREFILL    ngx_http_pd_role(PD__V1__ROLE__ROLE_PREFILL)
#define NGX_HTTP_PD_DECODE     ngx_http_pd_role(PD__V1__ROLE__ROLE_DECODE)
#define NGX_HTTP_PD_MIXED      ngx_http_pd_role(PD__V1__ROLE__ROLE_MIXED)


static ngx_http_pd_worker_t *ngx_http_pd_choose_short(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record);
static uint32_t ngx_http_pd_choose_auto(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_http_pd_worker_t *worker);
static ngx_http_pd_worker_t *ngx_http_pd_choose_pair(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_http_pd_worker_t **decode);
static ngx_http_pd_worker_t *ngx_http_pd_choose_direct(
    ngx_http_pd_zone_t *zone, ngx_http_pd_record_t *record, ngx_uint_t roles);
static ngx_http_pd_worker_t *ngx_http_pd_choose_best(ngx_http_pd_zone_t *zone,
    ngx_http_pd_search_t *search);
static ngx_uint_t ngx_http_pd_choose_fits(ngx_http_pd_zone_t *zone,
    ngx_http_pd_search_t *search, ngx_http_pd_worker_t *worker);
static ngx_uint_t ngx_http_pd_choose_has_room(ngx_http_pd_search_t *search,
    ngx_http_pd_worker_t *worker);
static ngx_uint_t ngx_http_pd_choose_usable(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker);
static ngx_int_t ngx_http_pd_choose_models(ngx_http_pd_zone_t *zone,
    ngx_uint_t cluster, ngx_pool_t *pool, ngx_array_t *models);


ngx_int_t
ngx_http_pd_choose(ngx_http_pd_zone_t *zone, ngx_http_pd_record_t *record)
{
    ngx_http_pd_worker_t  *prefill, *decode;

    prefill = NULL;

    record->reason = record->split ? NGX_HTTP_PD_REASON_REDIRECTED
                                   : NGX_HTTP_PD_REASON_PAIR;
    record->limit = 0;

    decode = ngx_http_pd_choose_short(zone, record);

    if (decode == NULL) {
        prefill = ngx_http_pd_choose_pair(zone, record, &decode);
    }

    if (prefill == NULL && decode == NULL) {
        record->reason = NGX_HTTP_PD_REASON_MIXED;
        decode = ngx_http_pd_choose_direct(zone, record, NGX_HTTP_PD_MIXED);
    }

    if (prefill == NULL && decode == NULL) {
        return NGX_AGAIN;
    }

    if (prefill) {
        ngx_http_pd_policy_chosen(zone, prefill);
        record->prefill = ngx_http_pd_worker_index(zone, prefill);
    }

    if (decode) {
        ngx_http_pd_policy_chosen(zone, decode);
        record->decode = ngx_http_pd_worker_index(zone, decode);
    }

    ngx_http_pd_borrow_choose(zone, record);

    return NGX_OK;
}


ngx_int_t
ngx_http_pd_choose_decode(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record)
{
    ngx_http_pd_search_t   search;
    ngx_http_pd_worker_t  *decode;

    ngx_memzero(&search, sizeof(ngx_http_pd_search_t));

    search.record = record;
    search.roles = NGX_HTTP_PD_DECODE;
    search.decode = 1;
    search.partner = &zone->sh->workers[record->prefill];

    decode = ngx_http_pd_choose_best(zone, &search);

    if (decode == NULL) {
        return NGX_AGAIN;
    }

    ngx_http_pd_policy_chosen(zone, decode);
    record->decode = ngx_http_pd_worker_index(zone, decode);

    return NGX_OK;
}


/* where a few tokens are all that is to be computed */

static ngx_http_pd_worker_t *
ngx_http_pd_choose_short(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record)
{
    uint32_t               limit, left;
    ngx_http_pd_worker_t  *worker;

    limit = zone->sh->clusters[record->cluster].direct_threshold;

    if (limit == 0 || record->split) {
        return NULL;
    }

    worker = ngx_http_pd_choose_direct(zone, record,
                                       NGX_HTTP_PD_DECODE|NGX_HTTP_PD_MIXED);
    if (worker == NULL) {
        return NULL;
    }

    if (limit == NGX_HTTP_PD_DIRECT_AUTO) {
        limit = ngx_http_pd_choose_auto(zone, record, worker);
    }

    left = record->prompt - ngx_http_pd_affinity_cached(zone, record, worker);

    if (left >= limit) {
        return NULL;
    }

    record->reason = record->prompt < limit ? NGX_HTTP_PD_REASON_SHORT
                                            : NGX_HTTP_PD_REASON_CACHED;

    if (worker->role == PD__V1__ROLE__ROLE_DECODE) {
        record->limit = ngx_min((uint64_t) limit * 3 / 2,
                                NGX_MAX_INT32_VALUE);
    }

    return worker;
}


/*
 * Tokens that a worker which decodes may compute: no more than it can in the
 * time in which the best prefill worker would have computed the prompt, and no
 * more than hold up the answers that run there for two of their steps.
 */

static uint32_t
ngx_http_pd_choose_auto(ngx_http_pd_zone_t *zone, ngx_http_pd_record_t *record,
    ngx_http_pd_worker_t *worker)
{
    double                 us, per_token;
    ngx_http_pd_search_t   search;
    ngx_http_pd_worker_t  *prefill;

    ngx_memzero(&search, sizeof(ngx_http_pd_search_t));

    search.record = record;
    search.roles = NGX_HTTP_PD_PREFILL;
    search.prefill = 1;

    prefill = ngx_http_pd_choose_best(zone, &search);

    if (prefill == NULL || prefill->token_us_x1000 == 0) {
        return NGX_HTTP_PD_CHOOSE_AUTO;
    }

    /* a worker that has computed no prompt yet is taken for as fast */

    per_token = (double) (worker->token_us_x1000 ? worker->token_us_x1000
                                                 : prefill->token_us_x1000)
                / 1000;

    us = ngx_http_pd_policy_time(zone, record, prefill)
         - (worker->queued_tokens + worker->unseen_tokens) * per_token;

    if (worker->running) {
        us = ngx_min(us, 2.0 * worker->step_us);
    }

    return us > per_token ? (uint32_t) ngx_min(us / per_token, 1000000) : 0;
}


static ngx_http_pd_worker_t *
ngx_http_pd_choose_pair(ngx_http_pd_zone_t *zone, ngx_http_pd_record_t *record,
    ngx_http_pd_worker_t **decode)
{
    ngx_uint_t             i;
    ngx_http_pd_search_t   p, d;
    ngx_http_pd_worker_t  *prefill;

    ngx_memzero(&p, sizeof(ngx_http_pd_search_t));

    p.record = record;
    p.roles = NGX_HTTP_PD_PREFILL;
    p.prefill = 1;

    for ( ;; ) {

        prefill = ngx_http_pd_choose_best(zone, &p);

        if (prefill == NULL || record->single) {
            return prefill;
        }

        ngx_memzero(&d, sizeof(ngx_http_pd_search_t));

        d.record = record;
        d.roles = NGX_HTTP_PD_DECODE;
        d.decode = 1;
        d.partner = prefill;

        *decode = ngx_http_pd_choose_best(zone, &d);

        if (*decode) {
            return prefill;
        }

        i = ngx_http_pd_worker_index(zone, prefill);
        p.rejected[i / 64] |= (uint64_t) 1 << (i % 64);
    }
}


static ngx_http_pd_worker_t *
ngx_http_pd_choose_direct(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_uint_t roles)
{
    ngx_http_pd_search_t  search;

    ngx_memzero(&search, sizeof(ngx_http_pd_search_t));

    search.record = record;
    search.roles = roles;
    search.prefill = 1;
    search.decode = 1;

    return ngx_http_pd_choose_best(zone, &search);
}


static ngx_http_pd_worker_t *
ngx_http_pd_choose_best(ngx_http_pd_zone_t *zone, ngx_http_pd_search_t *search)
{
    ngx_uint_t             i, backup;
    ngx_http_pd_shared_t  *sh;
    ngx_http_pd_worker_t  *worker, *best;

    sh = zone->sh;
    best = NULL;

    for (backup = 0; backup < 2 && best == NULL; backup++) {

        for (i = 0; i < sh->nworkers; i++) {
            worker = &sh->workers[i];

            if ((worker->backup || ngx_http_pd_vitals_weak(worker)) == backup
                && ngx_http_pd_choose_fits(zone, search, worker)
                && (best == NULL
                    || ngx_http_pd_policy_better(zone, search, worker,
                                                 best)))
            {
                best = worker;
            }
        }
    }

    return best;
}


static ngx_uint_t
ngx_http_pd_choose_fits(ngx_http_pd_zone_t *zone, ngx_http_pd_search_t *search,
    ngx_http_pd_worker_t *worker)
{
    ngx_uint_t             i, n;
    ngx_http_pd_record_t  *record;

    record = search->record;

    if (!ngx_http_pd_choose_serves(worker, record->cluster, record->model)
        || !(ngx_http_pd_role(worker->role) & search->roles)
        || !ngx_http_pd_slot_attached(zone, record->slot, worker)
        || !ngx_http_pd_vitals_admits(zone, record, worker)
        || !ngx_http_pd_revision_admits(record, worker))
    {
        return 0;
    }

    if (search->partner
        && (!ngx_http_pd_choose_pair_fits(search->partner, worker)
            || !ngx_http_pd_pairs_usable(zone, search->partner,
                                               worker)))
    {
        return 0;
    }

    i = ngx_http_pd_worker_index(zone, worker);

    if ((search->rejected[i / 64] >> (i % 64)) & 1) {
        return 0;
    }

    for (n = 0; n < sizeof(record->avoid) / sizeof(record->avoid[0]); n++) {
        if (record->avoid[n] == i) {
            return 0;
        }
    }

    return ngx_http_pd_choose_has_room(search, worker);
}


static ngx_uint_t
ngx_http_pd_choose_has_room(ngx_http_pd_search_t *search,
    ngx_http_pd_worker_t *worker)
{
    uint64_t    tokens, blocks;
    ngx_uint_t  active;

    active = ngx_max(worker->jobs,
                     worker->running + worker->waiting + worker->unseen_jobs);

    if (active == 0) {
        return 1;
    }

    if ((worker->max_streams && worker->jobs >= worker->max_streams)
        || (worker->max_num_seqs && active >= worker->max_num_seqs))
    {
        return 0;
    }

    tokens = search->record->prompt;

    if (search->decode) {
        tokens += search->record->output;
    }

    blocks = ngx_http_pd_choose_blocks(worker, tokens);

    return worker->kv_free >= ngx_http_pd_load_promised(worker) + blocks;
}


ngx_uint_t
ngx_http_pd_choose_serves(ngx_http_pd_worker_t *worker, ngx_uint_t cluster,
    uint64_t model)
{
    return worker->id
           && worker->cluster == cluster
           && worker->known
           && (worker->configured || worker->lease)
           && !worker->down
           && !worker->draining
           && !worker->misplaced
           && (worker->asserted == PD__V1__ROLE__ROLE_UNKNOWN
               || worker->asserted == worker->role)
           && (model == 0 || worker->model_hash == model);
}


uint64_t
ngx_http_pd_choose_blocks(ngx_http_pd_worker_t *worker, uint64_t tokens)
{
    uint32_t  size;

    size = ngx_max(worker->block_size, 1);

    return (tokens + size - 1) / size;
}


ngx_uint_t
ngx_http_pd_choose_pair_fits(ngx_http_pd_worker_t *prefill,
    ngx_http_pd_worker_t *decode)
{
    return prefill->model_hash == decode->model_hash
           && prefill->revision == decode->revision
           && ngx_memcmp(prefill->digests, decode->digests,
                         NGX_HTTP_PD_DIGESTS)
              == 0;
}


ngx_uint_t
ngx_http_pd_choose_possible(ngx_http_pd_zone_t *zone, ngx_uint_t cluster,
    uint64_t model)
{
    ngx_uint_t             i, n;
    ngx_http_pd_shared_t  *sh;
    ngx_http_pd_worker_t  *worker, *other;

    sh = zone->sh;

    for (i = 0; i < sh->nworkers; i++) {
        worker = &sh->workers[i];

        if (!ngx_http_pd_choose_serves(worker, cluster, model)
            || worker->role == PD__V1__ROLE__ROLE_DECODE
            || !ngx_http_pd_choose_usable(zone, worker))
        {
            continue;
        }

        if (worker->role == PD__V1__ROLE__ROLE_MIXED) {
            return 1;
        }

        for (n = 0; n < sh->nworkers; n++) {
            other = &sh->workers[n];

            if (ngx_http_pd_choose_serves(other, cluster, model)
                && other->role == PD__V1__ROLE__ROLE_DECODE
                && ngx_http_pd_choose_pair_fits(worker, other)
                && ngx_http_pd_pairs_usable(zone, worker, other)
                && ngx_http_pd_choose_usable(zone, other))
            {
                return 1;
            }
        }
    }

    return 0;
}


static ngx_uint_t
ngx_http_pd_choose_usable(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker)
{
    return worker->vital != NGX_HTTP_PD_EJECTED
           && ngx_http_pd_slot_attached_any(zone, worker);
}


ngx_uint_t
ngx_http_pd_choose_ready(ngx_http_pd_zone_t *zone, ngx_uint_t cluster)
{
    uint64_t               model;
    ngx_uint_t             i, n, models;
    ngx_http_pd_worker_t  *workers;

    workers = zone->sh->workers;
    models = 0;

    for (i = 0; i < zone->sh->nworkers; i++) {

        if (!ngx_http_pd_choose_serves(&workers[i], cluster, 0)) {
            continue;
        }

        model = workers[i].model_hash;

        for (n = 0; n < i; n++) {
            if (ngx_http_pd_choose_serves(&workers[n], cluster, model)) {
                break;
            }
        }

        if (n < i) {
            continue;
        }

        if (!ngx_http_pd_choose_possible(zone, cluster, model)) {
            return 0;
        }

        models++;
    }

    return models != 0;
}


ngx_uint_t
ngx_http_pd_cluster_ready(ngx_http_pd_cluster_t *cluster, ngx_str_t *model)
{
    ngx_uint_t           ready;
    ngx_http_pd_zone_t  *zone;

    zone = cluster->main->zone->data;

    ngx_http_pd_zone_lock(zone);

    ready = cluster->shared_id
            && ngx_http_pd_choose_possible(zone, cluster->shared,
                                           ngx_http_pd_zone_hash(zone, model));

    ngx_http_pd_zone_unlock(zone);

    return ready;
}


ngx_int_t
ngx_http_pd_cluster_models(ngx_http_pd_cluster_t *cluster, ngx_pool_t *pool,
    ngx_array_t *models)
{
    ngx_int_t            rc;
    ngx_http_pd_zone_t  *zone;

    zone = cluster->main->zone->data;

    if (cluster->shared_id == 0) {
        return NGX_OK;
    }

    ngx_http_pd_zone_lock(zone);
    rc = ngx_http_pd_choose_models(zone, cluster->shared, pool, models);
    ngx_http_pd_zone_unlock(zone);

    return rc;
}


static ngx_int_t
ngx_http_pd_choose_models(ngx_http_pd_zone_t *zone, ngx_uint_t cluster,
    ngx_pool_t *pool, ngx_array_t *models)
{
    ngx_str_t             *model;
    ngx_uint_t             i, n;
    ngx_http_pd_worker_t  *worker;

    for (i = 0; i < zone->sh->nworkers; i++) {
        worker = &zone->sh->workers[i];

        if (!ngx_http_pd_choose_serves(worker, cluster, 0)) {
            continue;
        }

        model = models->elts;

        for (n = 0; n < models->nelts; n++) {
            if (model[n].len == worker->model_len
                && ngx_memcmp(model[n].data, worker->model, model[n].len) == 0)
            {
                break;
            }
        }

        if (n < models->nelts
            || !ngx_http_pd_choose_possible(zone, cluster, worker->model_hash))
        {
            continue;
        }

        model = ngx_array_push(models);
        if (model == NULL) {
            return NGX_ERROR;
        }

        model->len = worker->model_len;
        model->data = ngx_pnalloc(pool, model->len);

        if (model->data == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(model->data, worker->model, model->len);
    }

    return NGX_OK;
}
