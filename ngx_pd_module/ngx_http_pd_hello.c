
/*
 * A worker's hello: see the header.
 */


#include "ngx_http_pd_hello.h"
#include "ngx_http_pd_choose.h"
#include "ngx_http_pd_ledger.h"
#include "ngx_http_pd_revision.h"
#include "ngx_http_pd_slot.h"
#include "ngx_http_pd_vitals.h"


#define NGX_HTTP_PD_DIGEST                32
#define NGX_HTTP_PD_HELLO_CAPABILITIES    64      /* that are looked at */


static ngx_uint_t ngx_http_pd_hello_can(Pd__V1__WorkerHello *hello,
    const char *capability);
static void ngx_http_pd_hello_log_partner(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker, ngx_log_t *log);


static const char  *ngx_http_pd_hello_roles[] = {
    "unknown", "prefill", "decode", "mixed"
};


static const char  *ngx_http_pd_hello_digests[] = {
    "weights", "tokenizer", "chat template", "KV layout"
};


const char *
ngx_http_pd_hello_check(Pd__V1__WorkerHello *hello)
{
    size_t                 len;
    Pd__V1__Fingerprint  *f;

    if (hello->protocol < NGX_HTTP_PD_PROTOCOL_MIN
        || hello->protocol_min > NGX_HTTP_PD_PROTOCOL)
    {
        return "it speaks another version of the protocol";
    }

    len = ngx_strlen(hello->instance);

    if (len == 0 || len > NGX_HTTP_PD_INSTANCE_MAX) {
        return "its hello names no instance, or a too long one";
    }

    len = ngx_strlen(hello->model);

    if (len == 0 || len > NGX_HTTP_PD_MODEL_MAX) {
        return "its hello names no model, or a too long one";
    }

    if (ngx_strlen(hello->zone) > NGX_HTTP_PD_NAME_MAX) {
        return "its hello has a too long zone";
    }

    if (hello->boot == 0) {
        return "its hello has no boot id";
    }

    if (hello->role != PD__V1__ROLE__ROLE_PREFILL
        && hello->role != PD__V1__ROLE__ROLE_DECODE
        && hello->role != PD__V1__ROLE__ROLE_MIXED)
    {
        return "its hello has a role that is not known here";
    }

    f = hello->fingerprint;

    if (f == NULL
        || f->weights.len != NGX_HTTP_PD_DIGEST
        || f->tokenizer.len != NGX_HTTP_PD_DIGEST
        || f->chat_template.len != NGX_HTTP_PD_DIGEST
        || f->layout.len != NGX_HTTP_PD_DIGEST)
    {
        return "its hello has no full fingerprint";
    }

    if (hello->block_size == 0 || hello->block_size > 65536
        || hello->kv_blocks == 0 || hello->kv_blocks > NGX_MAX_UINT32_VALUE)
    {
        return "its hello has no sensible KV pool";
    }

    return NULL;
}


static ngx_uint_t
ngx_http_pd_hello_can(Pd__V1__WorkerHello *hello, const char *capability)
{
    size_t  i, n;

    n = ngx_min(hello->n_capabilities, NGX_HTTP_PD_HELLO_CAPABILITIES);

    for (i = 0; i < n; i++) {
        if (ngx_strcmp(hello->capabilities[i], capability) == 0) {
            return 1;
        }
    }

    return 0;
}


ngx_http_pd_worker_t *
ngx_http_pd_hello_namesake(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker, Pd__V1__WorkerHello *hello)
{
    size_t                 len;
    ngx_uint_t             i;
    ngx_http_pd_worker_t  *other;

    len = ngx_strlen(hello->instance);

    for (i = 0; i < zone->sh->nworkers; i++) {
        other = &zone->sh->workers[i];

        if (other != worker && other->id && other->known
            && other->cluster == worker->cluster
            && other->instance_len == len
            && ngx_memcmp(other->instance, hello->instance, len) == 0
            && ngx_http_pd_slot_attached_any(zone, other))
        {
            return other;
        }
    }

    return NULL;
}


void
ngx_http_pd_hello_learn(ngx_http_pd_zone_t *zone, ngx_http_pd_worker_t *worker,
    Pd__V1__WorkerHello *hello)
{
    u_char     *p;
    size_t      len;
    ngx_str_t   model, revision;
    ngx_uint_t  again;

    again = 0;

    /* sums over records are counted in its blocks */

    if (worker->block_size != hello->block_size) {
        worker->block_size = hello->block_size;
        ngx_http_pd_ledger_rebuild(zone);
    }

    if (worker->boot != hello->boot) {
        worker->boot = hello->boot;
        worker->draining = 0;
        worker->reported = 0;
        worker->cache = (uint16_t) ++zone->sh->last_id;
        worker->taken = 0;
        worker->steps = 0;
        worker->step_us = 0;
        worker->token_us_x1000 = 0;
        worker->kv_reserved = 0;
        worker->kv_growth = 0;
        worker->queued_tokens = 0;
        worker->running = 0;
        worker->waiting = 0;
        worker->kv_free = hello->kv_blocks;
        worker->stepped = 0;
        worker->moved = 0;
        worker->back = worker->known ? ngx_http_pd_now_us() : 0;

        again = worker->known;
    }

    worker->tried = 1;
    worker->known = 1;
    worker->role = hello->role;
    worker->offers = ngx_http_pd_hello_can(hello, "offer");
    worker->max_model_len = hello->max_model_len;
    worker->max_num_seqs = hello->max_num_seqs;
    worker->kv_blocks = hello->kv_blocks;

    model.data = (u_char *) hello->model;
    model.len = ngx_strlen(hello->model);

    worker->model_len = model.len;
    ngx_memcpy(worker->model, model.data, model.len);
    worker->model_hash = ngx_http_pd_zone_hash(zone, &model);

    revision.data = (u_char *) hello->revision;
    revision.len = ngx_strlen(hello->revision);
    worker->revision = ngx_http_pd_revision_hash(zone, &revision);

    worker->instance_len = ngx_strlen(hello->instance);
    ngx_memcpy(worker->instance, hello->instance, worker->instance_len);

    len = ngx_strlen(hello->zone);

    if (!worker->labelled) {
        worker->zone_len = len;
        ngx_memcpy(worker->zone, hello->zone, len);
    }

    worker->misplaced = len
                        && (len != worker->zone_len
                            || ngx_memcmp(worker->zone, hello->zone, len)
                               != 0);

    p = worker->digests;
    p = ngx_cpymem(p, hello->fingerprint->weights.data, NGX_HTTP_PD_DIGEST);
    p = ngx_cpymem(p, hello->fingerprint->tokenizer.data, NGX_HTTP_PD_DIGEST);
    p = ngx_cpymem(p, hello->fingerprint->chat_template.data,
                   NGX_HTTP_PD_DIGEST);
    ngx_memcpy(p, hello->fingerprint->layout.data, NGX_HTTP_PD_DIGEST);

    if (again) {
        ngx_http_pd_vitals_again(zone, worker);
    }
}


void
ngx_http_pd_hello_log(ngx_http_pd_zone_t *zone, ngx_http_pd_worker_t *worker,
    ngx_log_t *log)
{
    ngx_log_error(NGX_LOG_NOTICE, log, 0,
                  "pd: attached to worker \"%*s\": %s of model \"%*s\", "
                  "%uL blocks of %uD tokens",
                  (size_t) worker->address_len, worker->address,
                  ngx_http_pd_hello_roles[worker->role],
                  (size_t) worker->model_len, worker->model,
                  worker->kv_blocks, worker->block_size);

    if (worker->asserted != PD__V1__ROLE__ROLE_UNKNOWN
        && worker->asserted != worker->role)
    {
        ngx_log_error(NGX_LOG_ERR, log, 0,
                      "pd: worker \"%*s\" is not used: the configuration "
                      "calls it %s and it runs with --role %s",
                      (size_t) worker->address_len, worker->address,
                      ngx_http_pd_hello_roles[worker->asserted],
                      ngx_http_pd_hello_roles[worker->role]);
    }

    if (worker->misplaced) {
        ngx_log_error(NGX_LOG_ERR, log, 0,
                      "pd: worker \"%*s\" is not used: the configuration "
                      "puts it into zone \"%*s\", and it runs with another "
                      "--zone",
                      (size_t) worker->address_len, worker->address,
                      (size_t) worker->zone_len, worker->zone);
    }

    ngx_http_pd_hello_log_partner(zone, worker, log);
}


/* a worker of the other role with the same model and other weights */

static void
ngx_http_pd_hello_log_partner(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker, ngx_log_t *log)
{
    ngx_uint_t             i, n;
    ngx_http_pd_worker_t  *other;

    for (i = 0; i < zone->sh->nworkers; i++) {
        other = &zone->sh->workers[i];

        if (!ngx_http_pd_choose_serves(other, worker->cluster,
                                       worker->model_hash)
            || other->role == worker->role
            || other->role == PD__V1__ROLE__ROLE_MIXED
            || worker->role == PD__V1__ROLE__ROLE_MIXED
            || worker->revision != other->revision
            || ngx_http_pd_choose_pair_fits(worker, other))
        {
            continue;
        }

        for (n = 0; n < 3; n++) {
            if (ngx_memcmp(worker->digests + n * NGX_HTTP_PD_DIGEST,
                           other->digests + n * NGX_HTTP_PD_DIGEST,
                           NGX_HTTP_PD_DIGEST)
                != 0)
            {
                break;
            }
        }

        ngx_log_error(NGX_LOG_ERR, log, 0,
                      "pd: workers \"%*s\" and \"%*s\" serve model \"%*s\" "
                      "with different %s, and are never paired",
                      (size_t) worker->address_len, worker->address,
                      (size_t) other->address_len, other->address,
                      (size_t) worker->model_len, worker->model,
                      ngx_http_pd_hello_digests[n]);
        return;
    }
}
