
/*
 * How requests have ended: see the header.
 */


#include "ngx_http_pd_verdict.h"
#include "ngx_http_pd_choose.h"


/* our clock may have begun a moment ago, and the window is older */

#define NGX_HTTP_PD_VERDICT_BEFORE    86400000000u


static uint64_t ngx_http_pd_verdict_now(void);
static void ngx_http_pd_verdict_add(ngx_http_pd_zone_cluster_t *cluster,
    uint64_t part, uint32_t finished, uint32_t failed);
static ngx_uint_t ngx_http_pd_verdict_crowded(ngx_http_pd_attempt_t *attempt);


ngx_http_pd_verdict_e
ngx_http_pd_verdict(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_result_t *result)
{
    if (result->status == NGX_HTTP_OK) {
        return (result->finish == PD__V1__FINISH_REASON__FINISH_NONE)
               ? NGX_HTTP_PD_VERDICT_FAILED : NGX_HTTP_PD_VERDICT_FINISHED;
    }

    if (result->status < NGX_HTTP_INTERNAL_SERVER_ERROR
        || attempt->process->terminating
        || (result->status == NGX_HTTP_GATEWAY_TIME_OUT
            && attempt->job->hurried)
        || attempt->crowded
        || (attempt->queued && ngx_http_pd_verdict_crowded(attempt)))
    {
        return NGX_HTTP_PD_VERDICT_NONE;
    }

    return NGX_HTTP_PD_VERDICT_FAILED;
}


/* it has waited in vain for workers that are there, and busy */

static ngx_uint_t
ngx_http_pd_verdict_crowded(ngx_http_pd_attempt_t *attempt)
{
    return ngx_http_pd_cluster_ready(attempt->job->cluster,
                                     &attempt->job->model);
}


void
ngx_http_pd_verdict_count(ngx_http_pd_zone_t *zone, ngx_uint_t index,
    ngx_http_pd_verdict_e verdict)
{
    ngx_http_pd_zone_cluster_t  *cluster;

    cluster = &zone->sh->clusters[index];

    if (cluster->span == 0 || verdict == NGX_HTTP_PD_VERDICT_NONE) {
        return;
    }

    ngx_http_pd_verdict_add(cluster,
                            ngx_http_pd_verdict_now() / cluster->span,
                            verdict == NGX_HTTP_PD_VERDICT_FINISHED,
                            verdict == NGX_HTTP_PD_VERDICT_FAILED);

    zone->sh->leases++;                /* the state file has to be written */
}


static uint64_t
ngx_http_pd_verdict_now(void)
{
    return ngx_http_pd_now_us() + NGX_HTTP_PD_VERDICT_BEFORE;
}


static void
ngx_http_pd_verdict_add(ngx_http_pd_zone_cluster_t *cluster, uint64_t number,
    uint32_t finished, uint32_t failed)
{
    ngx_http_pd_part_t  *part;

    part = &cluster->parts[number % NGX_HTTP_PD_PARTS];

    if (part->number != number) {
        part->number = number;
        part->finished = 0;
        part->failed = 0;
    }

    part->finished += ngx_min(finished, NGX_MAX_UINT32_VALUE - part->finished);
    part->failed += ngx_min(failed, NGX_MAX_UINT32_VALUE - part->failed);
}


void
ngx_http_pd_verdict_sum(ngx_http_pd_zone_cluster_t *cluster,
    uint64_t *requests, uint64_t *finished)
{
    uint64_t    age;
    ngx_uint_t  i;

    *requests = 0;
    *finished = 0;

    for (i = 0; i < NGX_HTTP_PD_PARTS; i++) {

        if (ngx_http_pd_verdict_part(cluster, i, &age)) {
            *requests += (uint64_t) cluster->parts[i].finished
                         + cluster->parts[i].failed;
            *finished += cluster->parts[i].finished;
        }
    }
}


ngx_uint_t
ngx_http_pd_verdict_part(ngx_http_pd_zone_cluster_t *cluster, ngx_uint_t i,
    uint64_t *age)
{
    uint64_t             now;
    ngx_http_pd_part_t  *part;

    part = &cluster->parts[i];

    if (cluster->span == 0) {
        return 0;
    }

    now = ngx_http_pd_verdict_now();

    if (part->number + NGX_HTTP_PD_PARTS <= now / cluster->span) {
        return 0;
    }

    *age = (now - part->number * cluster->span) / 1000000;

    return 1;
}


void
ngx_http_pd_verdict_clear(ngx_http_pd_zone_cluster_t *cluster)
{
    ngx_memzero(cluster->parts, sizeof(cluster->parts));
}


void
ngx_http_pd_verdict_place(ngx_http_pd_zone_cluster_t *cluster,
    ngx_msec_t window)
{
    uint64_t  span;

    span = (uint64_t) window * 1000 / NGX_HTTP_PD_PARTS;

    if (cluster->span != span) {
        cluster->span = span;
        ngx_http_pd_verdict_clear(cluster);
    }
}


void
ngx_http_pd_verdict_restore(ngx_http_pd_zone_cluster_t *cluster,
    uint64_t age, uint64_t finished, uint64_t failed)
{
    uint64_t  now;

    now = ngx_http_pd_verdict_now();

    if (cluster->span == 0 || age * 1000000 >= cluster->span
                                               * NGX_HTTP_PD_PARTS)
    {
        return;
    }

    ngx_http_pd_verdict_add(cluster, (now - age * 1000000) / cluster->span,
                            ngx_min(finished, NGX_MAX_UINT32_VALUE),
                            ngx_min(failed, NGX_MAX_UINT32_VALUE));
}
