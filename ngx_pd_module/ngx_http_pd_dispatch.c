
/*
 * The way of a job through the cluster.
 */


#include "ngx_http_pd_module.h"
#include "ngx_http_pd_cluster.h"


ngx_int_t
ngx_http_pd_job_submit(ngx_http_pd_job_t *job, ngx_http_pd_result_t *result)
{
    ngx_memzero(result, sizeof(ngx_http_pd_result_t));

    result->status = NGX_HTTP_SERVICE_UNAVAILABLE;
    ngx_str_set(&result->message, "no worker is attached");
    result->retry_after = 1;

    return NGX_DECLINED;
}


void
ngx_http_pd_job_cancel(ngx_http_pd_job_t *job, Pd__V1__Cancel__Reason reason)
{
    job->number = 0;
}


ngx_int_t
ngx_http_pd_cluster_models(ngx_http_pd_cluster_t *cluster, ngx_pool_t *pool,
    ngx_array_t *models)
{
    return NGX_OK;
}


ngx_uint_t
ngx_http_pd_cluster_ready(ngx_http_pd_cluster_t *cluster, ngx_str_t *model)
{
    return 0;
}


uint64_t
ngx_http_pd_now_us(void)
{
    struct timespec  ts;

    (void) clock_gettime(CLOCK_MONOTONIC, &ts);

    return (uint64_t) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}
