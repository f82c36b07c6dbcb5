
/*
 * Groups of workers: see the header.
 */


#include "ngx_http_pd_revision.h"
#include "ngx_http_pd_choose.h"
#include "ngx_http_pd_slot.h"
#include "ngx_http_pd_vitals.h"


#define NGX_HTTP_PD_REVISION_LABEL    64
#define NGX_HTTP_PD_REVISION_WEIGHT   1000


static ngx_uint_t ngx_http_pd_revision_serves(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, uint64_t revision);


char *
ngx_http_pd_revision_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_cluster_t  *cluster = conf;

    ngx_int_t                     n;
    ngx_str_t                    *value;
    ngx_uint_t                    i;
    ngx_http_pd_revision_conf_t  *revision;

    value = cf->args->elts;

    n = NGX_ERROR;

    if (ngx_strncmp(value[2].data, "weight=", 7) == 0) {
        n = ngx_atoi(value[2].data + 7, value[2].len - 7);
    }

    if (n < 0 || n > NGX_HTTP_PD_REVISION_WEIGHT
        || value[1].len > NGX_HTTP_PD_REVISION_LABEL)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid \"revision %V %V\": use a label of at "
                           "most %d characters and weight=0 to weight=%d",
                           &value[1], &value[2], NGX_HTTP_PD_REVISION_LABEL,
                           NGX_HTTP_PD_REVISION_WEIGHT);
        return NGX_CONF_ERROR;
    }

    for (i = 0; i < cluster->nrevisions; i++) {
        if (cluster->revisions[i].label.len == value[1].len
            && ngx_memcmp(cluster->revisions[i].label.data, value[1].data,
                          value[1].len)
               == 0)
        {
            return "is duplicate";
        }
    }

    if (cluster->nrevisions == NGX_HTTP_PD_REVISIONS) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "too many \"revision\" lines: at most %d",
                           NGX_HTTP_PD_REVISIONS);
        return NGX_CONF_ERROR;
    }

    revision = &cluster->revisions[cluster->nrevisions++];
    revision->label = value[1];
    revision->weight = n;

    return NGX_CONF_OK;
}


void
ngx_http_pd_revision_place(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *cluster)
{
    ngx_uint_t                   i;
    ngx_http_pd_zone_cluster_t  *zc;

    zc = &zone->sh->clusters[cluster->shared];

    zc->nrevisions = cluster->nrevisions;

    for (i = 0; i < cluster->nrevisions; i++) {
        zc->revisions[i].hash = ngx_http_pd_revision_hash(zone,
                                              &cluster->revisions[i].label);
        zc->revisions[i].weight = cluster->revisions[i].weight;
        zc->revisions[i].current = 0;
    }
}


uint64_t
ngx_http_pd_revision_hash(ngx_http_pd_zone_t *zone, ngx_str_t *label)
{
    return label->len ? ngx_http_pd_zone_hash(zone, label) : 0;
}


/* as nginx's round robin does it: in the weights' proportion, and evenly */

void
ngx_http_pd_revision_draw(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record)
{
    int64_t                      total;
    ngx_uint_t                   i;
    ngx_http_pd_revision_t      *best, *revision;
    ngx_http_pd_zone_cluster_t  *cluster;

    cluster = &zone->sh->clusters[record->cluster];

    best = NULL;
    total = 0;

    for (i = 0; i < cluster->nrevisions; i++) {
        revision = &cluster->revisions[i];

        if (revision->weight == 0
            || !ngx_http_pd_revision_serves(zone, record, revision->hash))
        {
            continue;
        }

        revision->current += revision->weight;
        total += revision->weight;

        if (best == NULL || revision->current > best->current) {
            best = revision;
        }
    }

    if (best) {
        best->current -= total;
        record->revision = best->hash;
        record->grouped = 1;
    }
}


/* a mixed worker of the group, or one of each role */

static ngx_uint_t
ngx_http_pd_revision_serves(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, uint64_t revision)
{
    ngx_uint_t             i, roles;
    ngx_http_pd_worker_t  *worker;

    roles = 0;

    for (i = 0; i < zone->sh->nworkers; i++) {
        worker = &zone->sh->workers[i];

        if (worker->revision == revision
            && ngx_http_pd_choose_serves(worker, record->cluster,
                                         record->model)
            && ngx_http_pd_vitals_admits(zone, record, worker)
            && ngx_http_pd_slot_attached(zone, record->slot, worker))
        {
            roles |= (worker->role == PD__V1__ROLE__ROLE_PREFILL) ? 1
                     : (worker->role == PD__V1__ROLE__ROLE_DECODE) ? 2 : 3;
        }
    }

    return roles == 3;
}


void
ngx_http_pd_revision_pin(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record)
{
    ngx_uint_t  worker;

    worker = (record->decode != NGX_HTTP_PD_NONE) ? record->decode
                                                  : record->prefill;

    if (worker != NGX_HTTP_PD_NONE) {
        record->revision = zone->sh->workers[worker].revision;
        record->grouped = 1;
    }
}
