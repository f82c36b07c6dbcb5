
/*
 * Policy: see the header.
 */


#include "ngx_http_pd_policy.h"
#include "ngx_http_pd_affinity.h"
#include "ngx_http_pd_load.h"


#define NGX_HTTP_PD_POLICY_TURN    1000000u    /* a turn of weight 1 */
#define NGX_HTTP_PD_POLICY_LEAN    0.25        /* of a pool, for a cache */


static ngx_uint_t ngx_http_pd_policy_stuck(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_http_pd_worker_t *worker);
static ngx_uint_t ngx_http_pd_policy_near(ngx_http_pd_worker_t *a,
    ngx_http_pd_worker_t *b);
static ngx_int_t ngx_http_pd_policy_compare(ngx_http_pd_zone_t *zone,
    ngx_http_pd_search_t *search, ngx_http_pd_worker_t *a,
    ngx_http_pd_worker_t *b);
static double ngx_http_pd_policy_tokens(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_http_pd_worker_t *worker,
    ngx_uint_t policy);
static double ngx_http_pd_policy_full(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_http_pd_worker_t *worker,
    ngx_uint_t policy);
static uint64_t ngx_http_pd_policy_turn(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker);
static double ngx_http_pd_policy_score(ngx_http_pd_record_t *record,
    ngx_http_pd_worker_t *worker);
static ngx_http_complex_value_t *ngx_http_pd_policy_value(ngx_conf_t *cf,
    ngx_http_pd_cluster_t *cluster, ngx_str_t *text);


static ngx_conf_enum_t  ngx_http_pd_policies[] = {
    { ngx_string("least_time"), NGX_HTTP_PD_LEAST_TIME },
    { ngx_string("least_load"), NGX_HTTP_PD_LEAST_LOAD },
    { ngx_string("round_robin"), NGX_HTTP_PD_ROUND_ROBIN },
    { ngx_string("hash"), NGX_HTTP_PD_HASH },
    { ngx_null_string, 0 }
};


#define ngx_http_pd_policy_order(x, y)  (((x) > (y)) - ((x) < (y)))


ngx_uint_t
ngx_http_pd_policy_better(ngx_http_pd_zone_t *zone,
    ngx_http_pd_search_t *search, ngx_http_pd_worker_t *a,
    ngx_http_pd_worker_t *b)
{
    ngx_int_t              order;
    ngx_http_pd_record_t  *record;

    record = search->record;

    order = (ngx_int_t) ngx_http_pd_policy_stuck(zone, record, b)
            - (ngx_int_t) ngx_http_pd_policy_stuck(zone, record, a);

    if (order == 0 && search->partner) {
        order = (ngx_int_t) ngx_http_pd_policy_near(b, search->partner)
                - (ngx_int_t) ngx_http_pd_policy_near(a, search->partner);
    }

    if (order == 0) {
        order = ngx_http_pd_policy_compare(zone, search, a, b);
    }

    if (order == 0) {
        order = ngx_http_pd_policy_order((double) a->jobs / a->weight,
                                         (double) b->jobs / b->weight);
    }

    return order ? order < 0 : a->chosen < b->chosen;
}


void
ngx_http_pd_policy_chosen(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker)
{
    uint64_t                     turn;
    ngx_http_pd_zone_cluster_t  *cluster;

    cluster = &zone->sh->clusters[worker->cluster];

    worker->chosen = ++zone->sh->last_order;

    /* whoever comes late, or was away, begins with the others' turn */

    turn = ngx_http_pd_policy_turn(zone, worker);

    cluster->turn[worker->role] = turn;
    worker->turn = turn + NGX_HTTP_PD_POLICY_TURN / worker->weight;
}


static ngx_uint_t
ngx_http_pd_policy_stuck(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_http_pd_worker_t *worker)
{
    ngx_uint_t  i;

    i = ngx_http_pd_worker_index(zone, worker);

    return record->stuck[0] == i || record->stuck[1] == i;
}


/* of one zone: KV goes from one to the other at least cost */

static ngx_uint_t
ngx_http_pd_policy_near(ngx_http_pd_worker_t *a, ngx_http_pd_worker_t *b)
{
    return a->zone_len == b->zone_len
           && ngx_memcmp(a->zone, b->zone, b->zone_len) == 0;
}


/* below 0: "a" */

static ngx_int_t
ngx_http_pd_policy_compare(ngx_http_pd_zone_t *zone,
    ngx_http_pd_search_t *search, ngx_http_pd_worker_t *a,
    ngx_http_pd_worker_t *b)
{
    ngx_int_t              order;
    ngx_uint_t             policy;
    ngx_http_pd_record_t  *record;

    record = search->record;
    policy = zone->sh->clusters[record->cluster].policy;
    order = 0;

    switch (policy) {

    case NGX_HTTP_PD_ROUND_ROBIN:
        return ngx_http_pd_policy_order(ngx_http_pd_policy_turn(zone, a),
                                        ngx_http_pd_policy_turn(zone, b));

    case NGX_HTTP_PD_HASH:

        if (record->key) {
            return ngx_http_pd_policy_order(
                                         ngx_http_pd_policy_score(record, a),
                                         ngx_http_pd_policy_score(record, b));
        }

        break;
    }

    if (search->prefill) {

        /* times, where both have measured one */

        if (policy == NGX_HTTP_PD_LEAST_TIME
            && a->token_us_x1000 && b->token_us_x1000)
        {
            order = ngx_http_pd_policy_order(
                       ngx_http_pd_policy_time(zone, record, a) / a->weight,
                       ngx_http_pd_policy_time(zone, record, b) / b->weight);

        } else {
            order = ngx_http_pd_policy_order(
                       ngx_http_pd_policy_tokens(zone, record, a, policy),
                       ngx_http_pd_policy_tokens(zone, record, b, policy));
        }
    }

    if (order == 0 && search->decode) {
        order = ngx_http_pd_policy_order(
                         ngx_http_pd_policy_full(zone, record, a, policy),
                         ngx_http_pd_policy_full(zone, record, b, policy));
    }

    return order;
}


double
ngx_http_pd_policy_time(ngx_http_pd_zone_t *zone, ngx_http_pd_record_t *record,
    ngx_http_pd_worker_t *worker)
{
    double  tokens;

    tokens = (double) worker->queued_tokens + worker->unseen_tokens
             + record->prompt
             - ngx_http_pd_affinity_cached(zone, record, worker);

    return tokens * worker->token_us_x1000 / 1000;
}


static double
ngx_http_pd_policy_tokens(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_http_pd_worker_t *worker,
    ngx_uint_t policy)
{
    double  tokens;

    tokens = (double) worker->queued_tokens + worker->unseen_tokens;

    if (policy != NGX_HTTP_PD_LEAST_LOAD) {
        tokens += record->prompt
                  - ngx_http_pd_affinity_cached(zone, record, worker);
    }

    return tokens / worker->weight;
}


/* the part of the pool that is taken or promised */

static double
ngx_http_pd_policy_full(ngx_http_pd_zone_t *zone, ngx_http_pd_record_t *record,
    ngx_http_pd_worker_t *worker, ngx_uint_t policy)
{
    double  full;

    full = ((double) worker->kv_blocks - worker->kv_free
            + ngx_http_pd_load_promised(worker))
           / (worker->kv_blocks + 1);

    if (policy != NGX_HTTP_PD_LEAST_LOAD && record->prompt) {
        full -= NGX_HTTP_PD_POLICY_LEAN
                * ngx_http_pd_affinity_cached(zone, record, worker)
                / record->prompt;

        /* a weight is more of what is positive */

        full += NGX_HTTP_PD_POLICY_LEAN;
    }

    return full / worker->weight;
}


static uint64_t
ngx_http_pd_policy_turn(ngx_http_pd_zone_t *zone, ngx_http_pd_worker_t *worker)
{
    return ngx_max(worker->turn,
                   zone->sh->clusters[worker->cluster].turn[worker->role]);
}


/*
 * Rendezvous hashing: each worker draws -log(u) / weight with a u of its own
 * for the key, and the least wins; so a worker that comes or goes moves no key
 * but its own.  The logarithm need only be a good one, not an exact one.
 */

static double
ngx_http_pd_policy_score(ngx_http_pd_record_t *record,
    ngx_http_pd_worker_t *worker)
{
    double    log2;
    uint64_t  u;
    int       zeros;

    u = (record->key ^ worker->name_hash) * 0x9e3779b97f4a7c15u;
    u = (u ^ (u >> 29)) * 0xbf58476d1ce4e5b9u;
    u = (u ^ (u >> 32)) | 1;

    /* 2^-zeros * (1 + m), and log2(1 + m) by its best parabola */

    zeros = __builtin_clzll(u);
    log2 = (double) (zeros < 63 ? u << (zeros + 1) : 0) / 18446744073709551616.0;
    log2 = log2 * (1.3465 - 0.3465 * log2);

    return (zeros + 1 - log2) / worker->weight;
}


/* FNV-1a: a client that aims at one worker could as well send its key */

uint64_t
ngx_http_pd_policy_hash(ngx_str_t *text)
{
    size_t    i;
    uint64_t  hash;

    hash = 14695981039346656037u;

    for (i = 0; i < text->len; i++) {
        hash ^= text->data[i];
        hash *= 1099511628211u;
    }

    return hash ? hash : 1;
}


char *
ngx_http_pd_policy_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_cluster_t  *cluster = conf;

    ngx_str_t        *value;
    ngx_conf_enum_t  *e;

    if (cluster->policy != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    for (e = ngx_http_pd_policies; e->name.len; e++) {
        if (ngx_strcmp(value[1].data, e->name.data) == 0) {
            break;
        }
    }

    if (e->name.len == 0
        || (cf->args->nelts == 3) != (e->value == NGX_HTTP_PD_HASH))
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid policy \"%V\": use \"least_time\", "
                           "\"least_load\", \"round_robin\" or "
                           "\"hash $variable\"", &value[1]);
        return NGX_CONF_ERROR;
    }

    cluster->policy = e->value;

    if (e->value == NGX_HTTP_PD_HASH) {
        cluster->hash = ngx_http_pd_policy_value(cf, cluster, &value[2]);

        if (cluster->hash == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


char *
ngx_http_pd_policy_sticky(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_cluster_t  *cluster = conf;

    ngx_str_t  *value;

    if (cluster->sticky) {
        return "is duplicate";
    }

    value = cf->args->elts;

    cluster->sticky = ngx_http_pd_policy_value(cf, cluster, &value[1]);

    return cluster->sticky ? NGX_CONF_OK : NGX_CONF_ERROR;
}


/* variables are known to the http block around ours */

static ngx_http_complex_value_t *
ngx_http_pd_policy_value(ngx_conf_t *cf, ngx_http_pd_cluster_t *cluster,
    ngx_str_t *text)
{
    void                              *ctx;
    ngx_int_t                          rc;
    ngx_http_complex_value_t          *value;
    ngx_http_compile_complex_value_t   ccv;

    value = ngx_pcalloc(cf->pool, sizeof(ngx_http_complex_value_t));
    if (value == NULL) {
        return NULL;
    }

    ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

    ccv.cf = cf;
    ccv.value = text;
    ccv.complex_value = value;

    ctx = cf->ctx;
    cf->ctx = cluster->http;

    rc = ngx_http_compile_complex_value(&ccv);

    cf->ctx = ctx;

    return rc == NGX_OK ? value : NULL;
}


ngx_int_t
ngx_http_pd_policy_keys(ngx_http_pd_cluster_t *cluster, ngx_http_request_t *r,
    ngx_str_t *hash, ngx_str_t *sticky)
{
    ngx_str_null(hash);
    ngx_str_null(sticky);

    if (cluster->hash
        && ngx_http_complex_value(r, cluster->hash, hash) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (cluster->sticky
        && ngx_http_complex_value(r, cluster->sticky, sticky) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}
