
/*
 * The dispatcher's side of ngx_http_pd_job.h: jobs come in, and are cancelled.
 * What happens in between is in ngx_http_pd_attempt.c.
 */


#include "ngx_http_pd_attempt.h"
#include "ngx_http_pd_account.h"
#include "ngx_http_pd_limit.h"
#include "ngx_http_pd_learn.h"
#include "ngx_http_pd_queue.h"


#define NGX_HTTP_PD_JOB_DEADLINE    600000     /* ms, if the job has none */


static ngx_http_pd_attempt_t *ngx_http_pd_job_attempt(ngx_http_pd_job_t *job,
    ngx_http_pd_process_t *process);
static ngx_int_t ngx_http_pd_job_admit(ngx_http_pd_job_t *job,
    ngx_http_pd_attempt_t *attempt, ngx_http_pd_result_t *result);
static size_t ngx_http_pd_job_size(ngx_chain_t *in);
static void ngx_http_pd_job_refuse(ngx_http_pd_job_t *job,
    ngx_http_pd_result_t *result, ngx_http_pd_refused_e why,
    ngx_uint_t retry_after);


ngx_int_t
ngx_http_pd_job_submit(ngx_http_pd_job_t *job, ngx_http_pd_result_t *result)
{
    ngx_int_t               rc;
    ngx_http_pd_attempt_t  *attempt, **place;
    ngx_http_pd_process_t  *process;

    ngx_memzero(result, sizeof(ngx_http_pd_result_t));

    process = ngx_http_pd_process;
    job->submitted_us = ngx_http_pd_now_us();

    if (process == NULL || process->terminating) {
        result->status = NGX_HTTP_SERVICE_UNAVAILABLE;
        result->retry_after = 1;
        ngx_str_set(&result->message, "The server is shutting down.");
        return NGX_DECLINED;
    }

    attempt = ngx_http_pd_job_attempt(job, process);

    if (attempt == NULL) {
        result->status = NGX_HTTP_INTERNAL_SERVER_ERROR;
        ngx_str_set(&result->message, "The server has no memory left.");
        return NGX_DECLINED;
    }

    rc = ngx_http_pd_job_admit(job, attempt, result);

    if (rc == NGX_DECLINED) {
        return NGX_DECLINED;
    }

    job->attempt = attempt;
    process->unsettled++;

    place = ngx_http_pd_process_place(process, job->number);

    attempt->next = *place;
    *place = attempt;

    if (rc == NGX_AGAIN) {
        ngx_http_pd_attempt_wait(attempt);

    } else {
        ngx_http_pd_attempt_start(attempt);
    }

    return NGX_OK;
}


static ngx_http_pd_attempt_t *
ngx_http_pd_job_attempt(ngx_http_pd_job_t *job, ngx_http_pd_process_t *process)
{
    ngx_http_pd_attempt_t  *attempt;

    attempt = ngx_pcalloc(job->pool, sizeof(ngx_http_pd_attempt_t));
    if (attempt == NULL) {
        return NULL;
    }

    job->number = ++process->last_number;

    attempt->job = job;
    attempt->process = process;
    attempt->prefill.attempt = attempt;
    attempt->decode.attempt = attempt;
    attempt->decode.decode = 1;
    attempt->owner.attempt = attempt;
    attempt->owner.offers = 1;
    attempt->unsettled = 1;

    attempt->submit_size = ngx_http_pd_job_size(job->submit);
    attempt->options_size = ngx_http_pd_job_size(job->options);

    attempt->end = ngx_current_msec
                   + (job->deadline ? job->deadline
                                    : NGX_HTTP_PD_JOB_DEADLINE);

    if (job->queue_timeout == 0) {
        job->queue_timeout = job->cluster->queue_timeout;
    }

    attempt->queue_end = ngx_current_msec + job->queue_timeout;

    ngx_http_pd_failover_init(attempt);

    attempt->timer.handler = ngx_http_pd_attempt_timer;
    attempt->timer.data = attempt;
    attempt->timer.log = job->log;
    attempt->timer.cancelable = (job->canary != 0);

    return attempt;
}


static ngx_int_t
ngx_http_pd_job_admit(ngx_http_pd_job_t *job, ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_result_t *result)
{
    ngx_int_t                    rc;
    ngx_uint_t                   retry_after;
    ngx_http_pd_need_t           need;
    ngx_http_pd_zone_t          *zone;
    ngx_http_pd_refused_e        why;
    ngx_http_pd_zone_cluster_t  *cluster;

    zone = attempt->process->zone;
    cluster = &zone->sh->clusters[job->cluster->shared];

    need.cluster = job->cluster;
    need.number = job->number;
    need.model = job->model;
    need.output = job->max_tokens;
    need.canary = job->canary;
    need.tenant = job->tenant;
    need.bytes = job->prompt_bytes;
    need.claim = job->claim;
    need.class = job->class;
    need.weight = job->weight;
    need.wait = ngx_min(job->queue_timeout, attempt->end - ngx_current_msec);

    /* with a limit of its own, the whole answer is reserved */

    job->paid = job->max_tokens ? NGX_MAX_SIZE_T_VALUE
                                : NGX_HTTP_PD_ACCOUNT_SLICE;

    ngx_http_pd_learn_prompt(attempt, &need);

    ngx_http_pd_zone_lock(zone);

    ngx_http_pd_learn_estimate(attempt, &need);

    rc = ngx_http_pd_ledger_admit(zone, &need, &attempt->record, &why);
    retry_after = ngx_http_pd_queue_drain(cluster);

    if (rc != NGX_DECLINED) {
        cluster->admitted += (job->canary == 0);

    } else if (why != NGX_HTTP_PD_REFUSED_CANARY) {
        cluster->refused[why - 1]++;
    }

    ngx_http_pd_zone_unlock(zone);

    if (rc == NGX_DECLINED && why != NGX_HTTP_PD_REFUSED_CANARY) {
        ngx_http_pd_job_refuse(job, result, why, retry_after);
    }

    return rc;
}


static size_t
ngx_http_pd_job_size(ngx_chain_t *in)
{
    size_t  size;

    for (size = 0; in; in = in->next) {
        size += in->buf->last - in->buf->pos;
    }

    return size;
}


static void
ngx_http_pd_job_refuse(ngx_http_pd_job_t *job, ngx_http_pd_result_t *result,
    ngx_http_pd_refused_e why, ngx_uint_t retry_after)
{
    u_char  *p;
    size_t   len;

    if (why == NGX_HTTP_PD_REFUSED_MODEL) {
        result->status = NGX_HTTP_NOT_FOUND;
        ngx_str_set(&result->param, "model");
        ngx_str_set(&result->code, "model_not_found");
        ngx_str_set(&result->message, "The model does not exist.");

        len = sizeof("The model `` does not exist.") + job->model.len;

        p = ngx_pnalloc(job->pool, len);

        if (p) {
            result->message.data = p;
            result->message.len = ngx_snprintf(p, len, "The model `%V` does "
                                               "not exist.", &job->model)
                                  - p;
        }

        return;
    }

    if (why == NGX_HTTP_PD_REFUSED_LIMIT) {
        ngx_http_pd_limit_refusal(job, result);
        return;
    }

    result->status = NGX_HTTP_SERVICE_UNAVAILABLE;
    result->retry_after = retry_after;

    if (why == NGX_HTTP_PD_REFUSED_QUEUE) {
        ngx_str_set(&result->message, "All workers are busy and the queue is "
                    "full. Please try again later.");
        ngx_log_error(NGX_LOG_WARN, job->log, 0,
                      "pd: refused request \"%V\": the queue of cluster "
                      "\"%V\" is full", &job->id, &job->cluster->name);

    } else if (why == NGX_HTTP_PD_REFUSED_WAIT) {
        ngx_str_set(&result->message, "All workers are busy, and the request "
                    "would wait for longer than it may. Please try again "
                    "later.");
        ngx_log_error(NGX_LOG_WARN, job->log, 0,
                      "pd: refused request \"%V\": in the queue of cluster "
                      "\"%V\" it would wait for longer than %M ms",
                      &job->id, &job->cluster->name,
                      ngx_min(job->queue_timeout, job->deadline));

    } else {
        ngx_str_set(&result->message, "The server has too many requests. "
                    "Please try again later.");
        ngx_log_error(NGX_LOG_WARN, job->log, 0,
                      "pd: refused request \"%V\": pd_zone is too small for "
                      "more requests", &job->id);
    }
}


void
ngx_http_pd_job_cancel(ngx_http_pd_job_t *job, Pd__V1__Cancel__Reason reason)
{
    ngx_http_pd_attempt_t  *attempt;

    attempt = job->attempt;

    if (attempt == NULL) {
        return;
    }

    job->attempt = NULL;

    if (attempt->timer.posted) {
        ngx_delete_posted_event(&attempt->timer);
        return;
    }

    ngx_http_pd_attempt_end(attempt, NGX_HTTP_PD_LEFT, reason);
}


ngx_int_t
ngx_http_pd_job_more(ngx_http_pd_job_t *job)
{
    size_t                  n;
    ngx_http_pd_zone_t     *zone;
    ngx_http_pd_attempt_t  *attempt;

    attempt = job->attempt;
    zone = attempt->process->zone;

    ngx_http_pd_zone_lock(zone);
    n = ngx_http_pd_account_more(zone, attempt->record, ngx_http_pd_now_us());
    ngx_http_pd_zone_unlock(zone);

    job->paid += n;

    return (n || job->completion_tokens < job->paid) ? NGX_OK : NGX_DECLINED;
}


uint64_t
ngx_http_pd_now_us(void)
{
    struct timespec  ts;

    (void) clock_gettime(CLOCK_MONOTONIC, &ts);

    return (uint64_t) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}
