
/*
 * Canaries: see the header.
 *
 * Two tokens, so that a decode worker has to compute one.  Nothing holds up a
 * process that leaves: its timer is cancelable, and there is no second try.
 */


#include "ngx_http_pd_canary.h"
#include "ngx_http_pd_attempt.h"
#include "ngx_http_pd_choose.h"
#include "ngx_http_pd_ready.h"
#include "ngx_http_pd_vitals.h"


#define NGX_HTTP_PD_CANARY_POOL    2048
#define NGX_HTTP_PD_CANARY_TIME    10000    /* ms to sing */


typedef struct {
    ngx_http_pd_job_t        job;
    ngx_http_pd_process_t   *process;
    ngx_uint_t               worker;      /* or NONE: it is for a cluster */
    uint64_t                 id;          /* the worker's */
    uint64_t                 boot;
    u_char                   model[NGX_HTTP_PD_MODEL_MAX + 1];
} ngx_http_pd_canary_t;


static ngx_http_pd_canary_t *ngx_http_pd_canary_create(
    ngx_http_pd_process_t *process);
static void ngx_http_pd_canary_model(ngx_http_pd_canary_t *canary,
    ngx_http_pd_worker_t *worker);
static ngx_int_t ngx_http_pd_canary_submit(ngx_http_pd_canary_t *canary);
static ngx_int_t ngx_http_pd_canary_pack(ngx_http_pd_job_t *job);
static ngx_int_t ngx_http_pd_canary_delta(ngx_http_pd_job_t *job,
    ngx_http_pd_delta_t *delta);
static void ngx_http_pd_canary_done(ngx_http_pd_job_t *job,
    ngx_http_pd_result_t *result);


static const ngx_http_pd_job_handlers_t  ngx_http_pd_canary_handlers = {
    NULL,
    ngx_http_pd_canary_delta,
    ngx_http_pd_canary_done,
    NULL
};


ngx_int_t
ngx_http_pd_canary_send(ngx_http_pd_process_t *process, ngx_uint_t index)
{
    ngx_uint_t                i;
    ngx_http_pd_zone_t       *zone;
    ngx_http_pd_canary_t     *canary;
    ngx_http_pd_worker_t     *worker;
    ngx_http_pd_cluster_t   **clusters;

    canary = ngx_http_pd_canary_create(process);
    if (canary == NULL) {
        return NGX_ERROR;
    }

    zone = process->zone;
    clusters = process->conf->clusters.elts;

    ngx_http_pd_zone_lock(zone);

    worker = &zone->sh->workers[index];

    canary->worker = index;
    canary->id = worker->id;
    canary->boot = worker->boot;
    canary->job.canary = index + 1;

    for (i = 0; i < process->conf->clusters.nelts; i++) {
        if (clusters[i]->shared_id && clusters[i]->shared == worker->cluster)
        {
            canary->job.cluster = clusters[i];
        }
    }

    ngx_http_pd_canary_model(canary, worker);

    ngx_http_pd_zone_unlock(zone);

    return ngx_http_pd_canary_submit(canary);
}


ngx_int_t
ngx_http_pd_canary_pair(ngx_http_pd_process_t *process,
    ngx_http_pd_cluster_t *cluster, ngx_uint_t turn)
{
    ngx_uint_t             i, k;
    ngx_http_pd_zone_t    *zone;
    ngx_http_pd_canary_t  *canary;
    ngx_http_pd_worker_t  *worker;

    canary = ngx_http_pd_canary_create(process);
    if (canary == NULL) {
        return NGX_ERROR;
    }

    zone = process->zone;

    canary->worker = NGX_HTTP_PD_NONE;
    canary->job.canary = NGX_HTTP_PD_CANARY_PAIR;
    canary->job.cluster = cluster;

    ngx_http_pd_zone_lock(zone);

    /* the model of the next worker, from this turn's on */

    for (i = 0; i < zone->sh->nworkers; i++) {
        k = (turn + i) % zone->sh->nworkers;
        worker = &zone->sh->workers[k];

        if (ngx_http_pd_choose_serves(worker, cluster->shared, 0)) {
            ngx_http_pd_canary_model(canary, worker);
            break;
        }
    }

    ngx_http_pd_zone_unlock(zone);

    return ngx_http_pd_canary_submit(canary);
}


static ngx_http_pd_canary_t *
ngx_http_pd_canary_create(ngx_http_pd_process_t *process)
{
    ngx_pool_t            *pool;
    ngx_http_pd_canary_t  *canary;

    if (process->draining) {
        return NULL;
    }

    pool = ngx_create_pool(NGX_HTTP_PD_CANARY_POOL, process->log);
    if (pool == NULL) {
        return NULL;
    }

    canary = ngx_pcalloc(pool, sizeof(ngx_http_pd_canary_t));

    if (canary == NULL) {
        ngx_destroy_pool(pool);
        return NULL;
    }

    canary->job.pool = pool;
    canary->process = process;

    return canary;
}


static void
ngx_http_pd_canary_model(ngx_http_pd_canary_t *canary,
    ngx_http_pd_worker_t *worker)
{
    ngx_memcpy(canary->model, worker->model, worker->model_len);

    canary->job.model.data = canary->model;
    canary->job.model.len = worker->model_len;
}


/* on its way, or freed */

static ngx_int_t
ngx_http_pd_canary_submit(ngx_http_pd_canary_t *canary)
{
    ngx_http_pd_job_t     *job;
    ngx_http_pd_result_t   result;

    job = &canary->job;

    ngx_str_set(&job->id, "canary");

    job->handlers = &ngx_http_pd_canary_handlers;
    job->log = canary->process->log;
    job->max_tokens = 2;
    job->deadline = NGX_HTTP_PD_CANARY_TIME;

    if (job->cluster && job->model.len
        && ngx_http_pd_canary_pack(job) == NGX_OK
        && ngx_http_pd_job_submit(job, &result) == NGX_OK)
    {
        return NGX_OK;
    }

    ngx_destroy_pool(job->pool);

    return NGX_ERROR;
}


static ngx_int_t
ngx_http_pd_canary_pack(ngx_http_pd_job_t *job)
{
    size_t               size;
    ngx_buf_t           *b;
    Pd__V1__Submit       submit = PD__V1__SUBMIT__INIT;
    Pd__V1__Sampling     sampling = PD__V1__SAMPLING__INIT;

    sampling.max_tokens = job->max_tokens;
    sampling.ignore_eos = 1;

    submit.model = (char *) job->model.data;
    submit.request_id = (char *) job->id.data;
    submit.sampling = &sampling;

    size = pd__v1__submit__get_packed_size(&submit);

    /* the options, then a prompt of one letter: text = 11 */

    b = ngx_create_temp_buf(job->pool, size);
    job->options = ngx_alloc_chain_link(job->pool);
    job->submit = ngx_alloc_chain_link(job->pool);

    if (b == NULL || job->options == NULL || job->submit == NULL) {
        return NGX_ERROR;
    }

    b->last += pd__v1__submit__pack(&submit, b->last);

    job->options->buf = b;
    job->options->next = NULL;

    b = ngx_create_temp_buf(job->pool, 3);
    if (b == NULL) {
        return NGX_ERROR;
    }

    b->last = ngx_cpymem(b->last, "\x5a\x01" "a", 3);

    job->submit->buf = job->options->buf;
    job->submit->next = ngx_alloc_chain_link(job->pool);

    if (job->submit->next == NULL) {
        return NGX_ERROR;
    }

    job->submit->next->buf = b;
    job->submit->next->next = NULL;
    job->prompt_bytes = 1;

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_canary_delta(ngx_http_pd_job_t *job, ngx_http_pd_delta_t *delta)
{
    return NGX_OK;
}


static void
ngx_http_pd_canary_done(ngx_http_pd_job_t *job, ngx_http_pd_result_t *result)
{
    uint64_t                id, boot;
    ngx_uint_t              worker, sang;
    ngx_http_pd_canary_t   *canary;
    ngx_http_pd_cluster_t  *cluster;
    ngx_http_pd_verdict_e   verdict;
    ngx_http_pd_process_t  *process;

    canary = (ngx_http_pd_canary_t *) job;

    process = canary->process;
    worker = canary->worker;
    id = canary->id;
    boot = canary->boot;
    cluster = job->cluster;
    sang = (result->status == NGX_HTTP_OK);
    verdict = result->verdict;

    ngx_destroy_pool(job->pool);

    if (worker == NGX_HTTP_PD_NONE) {
        ngx_http_pd_ready_canary(process, cluster, verdict);

    } else {
        ngx_http_pd_vitals_canary(process, worker, id, boot, sang);
    }
}
