
/*
 * Canaries: see the header.
 *
 * Two tokens, so that a decode worker has to compute one.  Nothing holds up a
 * process that leaves: its timer is cancelable, and there is no second try.
 */


#include "ngx_http_pd_canary.h"
#include "ngx_http_pd_attempt.h"
#include "ngx_http_pd_vitals.h"


#define NGX_HTTP_PD_CANARY_POOL    1024
#define NGX_HTTP_PD_CANARY_TIME    10000    /* ms to sing */


typedef struct {
    ngx_http_pd_job_t        job;
    ngx_http_pd_process_t   *process;
    ngx_uint_t               worker;
    uint64_t                 id;
} ngx_http_pd_canary_t;


static ngx_int_t ngx_http_pd_canary_job(ngx_http_pd_canary_t *canary);
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
ngx_http_pd_canary_send(ngx_http_pd_process_t *process, ngx_uint_t worker)
{
    ngx_pool_t            *pool;
    ngx_http_pd_canary_t  *canary;
    ngx_http_pd_result_t   result;

    if (process->draining) {
        return NGX_ERROR;
    }

    pool = ngx_create_pool(NGX_HTTP_PD_CANARY_POOL, process->log);
    if (pool == NULL) {
        return NGX_ERROR;
    }

    canary = ngx_pcalloc(pool, sizeof(ngx_http_pd_canary_t));

    if (canary) {
        canary->job.pool = pool;
        canary->process = process;
        canary->worker = worker;

        if (ngx_http_pd_canary_job(canary) == NGX_OK
            && ngx_http_pd_job_submit(&canary->job, &result) == NGX_OK)
        {
            return NGX_OK;
        }
    }

    ngx_destroy_pool(pool);

    return NGX_ERROR;
}


static ngx_int_t
ngx_http_pd_canary_job(ngx_http_pd_canary_t *canary)
{
    u_char                   model[NGX_HTTP_PD_MODEL_MAX];
    ngx_uint_t               i;
    ngx_http_pd_job_t       *job;
    ngx_http_pd_zone_t      *zone;
    ngx_http_pd_worker_t    *worker;
    ngx_http_pd_cluster_t  **clusters;

    job = &canary->job;
    zone = canary->process->zone;
    clusters = canary->process->conf->clusters.elts;

    ngx_http_pd_zone_lock(zone);

    worker = &zone->sh->workers[canary->worker];
    canary->id = worker->id;

    for (i = 0; i < canary->process->conf->clusters.nelts; i++) {
        if (clusters[i]->shared_id && clusters[i]->shared == worker->cluster)
        {
            job->cluster = clusters[i];
        }
    }

    job->model.len = worker->model_len;
    ngx_memcpy(model, worker->model, worker->model_len);

    ngx_http_pd_zone_unlock(zone);

    job->model.data = ngx_pnalloc(job->pool, job->model.len + 1);

    if (job->model.data == NULL || job->cluster == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(job->model.data, model, job->model.len);
    job->model.data[job->model.len] = '\0';

    ngx_str_set(&job->id, "canary");

    job->handlers = &ngx_http_pd_canary_handlers;
    job->log = canary->process->log;
    job->max_tokens = 2;
    job->deadline = NGX_HTTP_PD_CANARY_TIME;
    job->canary = canary->worker + 1;

    return ngx_http_pd_canary_pack(job);
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
    uint64_t                id;
    ngx_pool_t             *pool;
    ngx_uint_t              worker, sang;
    ngx_http_pd_canary_t   *canary;
    ngx_http_pd_process_t  *process;

    canary = (ngx_http_pd_canary_t *) job;

    process = canary->process;
    worker = canary->worker;
    id = canary->id;
    sang = (result->status == NGX_HTTP_OK);

    pool = job->pool;
    ngx_destroy_pool(pool);

    ngx_http_pd_vitals_canary(process, worker, id, sang);
}
