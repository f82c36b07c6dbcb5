
/*
 * Whether this frontend is fit: see the header.
 */


#include "ngx_http_pd_ready.h"
#include "ngx_http_pd_canary.h"
#include "ngx_http_pd_choose.h"
#include "ngx_http_pd_cluster_directives.h"
#include "ngx_http_pd_frontends.h"
#include "ngx_http_pd_verdict.h"


#define NGX_HTTP_PD_READY_RATIO       95          /* % that finish */
#define NGX_HTTP_PD_READY_WINDOW      300000      /* ms */
#define NGX_HTTP_PD_READY_REQUESTS    50          /* before it is judged */
#define NGX_HTTP_PD_READY_OUT         10000       /* ms out, at first */
#define NGX_HTTP_PD_READY_CANARIES    20          /* that prove it well */

#define NGX_HTTP_PD_READY_POINTS      500         /* of 10,000: clearly */
#define NGX_HTTP_PD_READY_SING        98          /* % of canaries */
#define NGX_HTTP_PD_READY_LONGEST     600000000   /* us out, at most */
#define NGX_HTTP_PD_READY_LOST        15000000    /* us: it died with its
                                                     process */


static ngx_int_t ngx_http_pd_ready_param(ngx_http_pd_cluster_t *cluster,
    ngx_str_t *value);
static void ngx_http_pd_ready_pairs(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *conf, ngx_log_t *log);
static void ngx_http_pd_ready_judge(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *conf, ngx_log_t *log);
static const char *ngx_http_pd_ready_stays(ngx_uint_t own,
    ngx_http_pd_frontends_view_t *view);
static void ngx_http_pd_ready_leave(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *conf);
static void ngx_http_pd_ready_round(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *conf);
static void ngx_http_pd_ready_canaries(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *conf, uint64_t span);
static ngx_uint_t ngx_http_pd_ready_due(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *conf, ngx_log_t *log);
static void ngx_http_pd_ready_alone(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *conf, ngx_log_t *log);
static ngx_http_pd_readiness_t *ngx_http_pd_ready_of(
    ngx_http_pd_cluster_t *conf);


char *
ngx_http_pd_ready_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_cluster_t  *cluster = conf;

    ngx_str_t   *value;
    ngx_uint_t   i;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_http_pd_ready_param(cluster, &value[i]) != NGX_OK) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\" in \"readiness\": "
                               "use off, or ratio=1%% to ratio=100%%, "
                               "window=1s to window=1h, requests=1 to "
                               "requests=1000000, out=100ms to out=1h, "
                               "canaries=20 to canaries=1000, each once",
                               &value[i]);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_pd_ready_param(ngx_http_pd_cluster_t *cluster, ngx_str_t *value)
{
    ngx_str_t  ratio;

    if (ngx_strcmp(value->data, "off") == 0
        && cluster->ready_ratio == NGX_CONF_UNSET_UINT)
    {
        cluster->ready_ratio = 0;
        return NGX_OK;
    }

    if (ngx_strncmp(value->data, "ratio=", 6) == 0
        && value->data[value->len - 1] == '%')
    {
        ratio.data = value->data;
        ratio.len = value->len - 1;

        return ngx_http_pd_cluster_number(&ratio, 6, 1, 100,
                                          &cluster->ready_ratio);
    }

    if (ngx_strncmp(value->data, "window=", 7) == 0) {
        return ngx_http_pd_cluster_span(value, 7, 1000,
                                        &cluster->ready_window);
    }

    if (ngx_strncmp(value->data, "requests=", 9) == 0) {
        return ngx_http_pd_cluster_number(value, 9, 1, 1000000,
                                          &cluster->ready_requests);
    }

    if (ngx_strncmp(value->data, "out=", 4) == 0) {
        return ngx_http_pd_cluster_span(value, 4, 100, &cluster->ready_out);
    }

    if (ngx_strncmp(value->data, "canaries=", 9) == 0) {
        return ngx_http_pd_cluster_number(value, 9,
                                          NGX_HTTP_PD_READY_CANARIES, 1000,
                                          &cluster->ready_canaries);
    }

    return NGX_ERROR;
}


void
ngx_http_pd_ready_unset(ngx_http_pd_cluster_t *cluster)
{
    cluster->ready_ratio = NGX_CONF_UNSET_UINT;
    cluster->ready_window = NGX_CONF_UNSET_MSEC;
    cluster->ready_requests = NGX_CONF_UNSET_UINT;
    cluster->ready_out = NGX_CONF_UNSET_MSEC;
    cluster->ready_canaries = NGX_CONF_UNSET_UINT;
}


void
ngx_http_pd_ready_defaults(ngx_http_pd_cluster_t *cluster)
{
    ngx_conf_init_uint_value(cluster->ready_ratio, NGX_HTTP_PD_READY_RATIO);
    ngx_conf_init_msec_value(cluster->ready_window, NGX_HTTP_PD_READY_WINDOW);
    ngx_conf_init_uint_value(cluster->ready_requests,
                             NGX_HTTP_PD_READY_REQUESTS);
    ngx_conf_init_msec_value(cluster->ready_out, NGX_HTTP_PD_READY_OUT);
    ngx_conf_init_uint_value(cluster->ready_canaries,
                             NGX_HTTP_PD_READY_CANARIES);
}


void
ngx_http_pd_ready_place(ngx_http_pd_zone_t *zone, ngx_http_pd_cluster_t *conf)
{
    ngx_http_pd_verdict_place(&zone->sh->clusters[conf->shared],
                              conf->ready_ratio ? conf->ready_window : 0);
}


void
ngx_http_pd_ready_tick(ngx_http_pd_process_t *process)
{
    ngx_uint_t               i;
    ngx_http_pd_zone_t      *zone;
    ngx_http_pd_cluster_t  **clusters;

    zone = process->zone;
    clusters = process->conf->clusters.elts;

    ngx_http_pd_zone_lock(zone);

    for (i = 0; i < process->conf->clusters.nelts; i++) {

        if (ngx_http_pd_ready_of(clusters[i])) {
            ngx_http_pd_ready_pairs(zone, clusters[i], process->log);
            ngx_http_pd_ready_judge(zone, clusters[i], process->log);
        }
    }

    ngx_http_pd_zone_unlock(zone);
}


/* for the log: pd_health looks for itself */

static void
ngx_http_pd_ready_pairs(ngx_http_pd_zone_t *zone, ngx_http_pd_cluster_t *conf,
    ngx_log_t *log)
{
    ngx_uint_t                has;
    ngx_http_pd_readiness_t  *ready;

    ready = &zone->sh->clusters[conf->shared].ready;
    has = ngx_http_pd_choose_ready(zone, conf->shared);

    if (has && !ready->pairs) {
        ready->pairs = 1;

        ngx_log_error(NGX_LOG_NOTICE, log, 0,
                      "pd: cluster \"%V\" has a usable pair for each model",
                      &conf->name);

    } else if (!has && ready->pairs) {
        ready->pairs = 0;

        ngx_log_error(NGX_LOG_ERR, log, 0,
                      "pd: this frontend is not ready: cluster \"%V\" has no "
                      "usable pair for a model", &conf->name);
    }
}


static void
ngx_http_pd_ready_judge(ngx_http_pd_zone_t *zone, ngx_http_pd_cluster_t *conf,
    ngx_log_t *log)
{
    uint64_t                       requests, finished;
    const char                    *why;
    ngx_http_pd_readiness_t       *ready;
    ngx_http_pd_zone_cluster_t    *cluster;
    ngx_http_pd_frontends_view_t   view;

    cluster = &zone->sh->clusters[conf->shared];
    ready = &cluster->ready;

    if (conf->ready_ratio == 0) {
        ready->away = 0;
        ready->degraded = 0;
        return;
    }

    if (ready->away) {
        ngx_http_pd_ready_alone(zone, conf, log);
        return;
    }

    ngx_http_pd_verdict_sum(cluster, &requests, &finished);

    if (requests < conf->ready_requests
        || finished * 100 >= requests * conf->ready_ratio)
    {
        if (ready->degraded) {
            ready->degraded = 0;
            ngx_log_error(NGX_LOG_NOTICE, log, 0,
                          "pd: cluster \"%V\" is degraded no more",
                          &conf->name);
        }

        return;
    }

    ngx_http_pd_frontends_view(zone, conf->shared, conf->ready_requests,
                               &view);

    why = ngx_http_pd_ready_stays(ngx_http_pd_frontends_ratio(finished,
                                                              requests),
                                  &view);
    if (why == NULL) {
        ngx_http_pd_ready_leave(zone, conf);

        ngx_log_error(NGX_LOG_ERR, log, 0,
                      "pd: this frontend takes itself out: %uL of %uL "
                      "requests of cluster \"%V\" have finished, and %ui.%02ui "
                      "%% of the other frontends'",
                      finished, requests, &conf->name, view.median / 100,
                      view.median % 100);

    } else if (!ready->degraded) {
        ready->degraded = 1;

        ngx_log_error(NGX_LOG_ERR, log, 0,
                      "pd: cluster \"%V\" is degraded: %uL of %uL requests "
                      "have finished; this frontend stays: %s",
                      &conf->name, finished, requests, why);
    }
}


/* NULL: it does not */

static const char *
ngx_http_pd_ready_stays(ngx_uint_t own, ngx_http_pd_frontends_view_t *view)
{
    if (view->median == NGX_HTTP_PD_RATIO_UNKNOWN) {
        return "it knows of no other to compare with";
    }

    if (own + NGX_HTTP_PD_READY_POINTS > view->median) {
        return "the others are not clearly better";
    }

    if (2 * view->away >= view->known + 1) {
        return "half of all are out already";
    }

    return NULL;
}


static void
ngx_http_pd_ready_leave(ngx_http_pd_zone_t *zone, ngx_http_pd_cluster_t *conf)
{
    ngx_http_pd_readiness_t  *ready;

    ready = &zone->sh->clusters[conf->shared].ready;

    /* the last time is long ago */

    if (ngx_http_pd_now_us() - ready->back
        > (uint64_t) conf->ready_window * 1000)
    {
        ready->rounds = 0;
    }

    ready->away = 1;
    ready->degraded = 0;
    ready->singing = 0;

    ngx_http_pd_ready_round(zone, conf);
}


/* out anew: for twice as long, give or take a quarter, with canaries in it */

static void
ngx_http_pd_ready_round(ngx_http_pd_zone_t *zone, ngx_http_pd_cluster_t *conf)
{
    uint64_t                  span;
    ngx_http_pd_readiness_t  *ready;

    ready = &zone->sh->clusters[conf->shared].ready;

    span = (uint64_t) conf->ready_out * 1000 << ngx_min(ready->rounds, 16);
    span = ngx_min(span, NGX_HTTP_PD_READY_LONGEST);
    span = span * 3 / 4 + ngx_random() % (span / 2 + 1);

    ready->rounds++;

    ngx_http_pd_ready_canaries(zone, conf, span);
}


static void
ngx_http_pd_ready_canaries(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *conf, uint64_t span)
{
    uint64_t                  now;
    ngx_http_pd_readiness_t  *ready;

    ready = &zone->sh->clusters[conf->shared].ready;
    now = ngx_http_pd_now_us();

    ready->until = now + span;
    ready->pace = span / conf->ready_canaries;
    ready->next = now + ready->pace;
    ready->asked = 0;
    ready->sang = 0;

    zone->sh->leases++;                /* the state file has to be written */
}


/* out, and nobody else is in: then it is better than nobody */

static void
ngx_http_pd_ready_alone(ngx_http_pd_zone_t *zone, ngx_http_pd_cluster_t *conf,
    ngx_log_t *log)
{
    ngx_http_pd_readiness_t       *ready;
    ngx_http_pd_frontends_view_t   view;

    ready = &zone->sh->clusters[conf->shared].ready;

    ngx_http_pd_frontends_view(zone, conf->shared, conf->ready_requests,
                               &view);

    /* one that was cut off has heard of nobody yet: that takes a second */

    if (view.away < view.known || !ready->pairs
        || (view.known == 0 && ngx_http_pd_now_us() < ready->until))
    {
        return;
    }

    ready->away = 0;
    ready->back = ngx_http_pd_now_us();
    zone->sh->leases++;

    ngx_log_error(NGX_LOG_ERR, log, 0,
                  "pd: this frontend is back in cluster \"%V\": no other one "
                  "is in", &conf->name);
}


ngx_uint_t
ngx_http_pd_ready_sing(ngx_http_pd_process_t *process)
{
    ngx_uint_t                i, n, due;
    ngx_http_pd_zone_t       *zone;
    ngx_http_pd_cluster_t   **clusters;
    ngx_http_pd_readiness_t  *ready;

    zone = process->zone;
    clusters = process->conf->clusters.elts;

    if (!process->sweeps) {
        return 0;
    }

    for (i = 0, n = 0; i < process->conf->clusters.nelts; i++) {

        ready = ngx_http_pd_ready_of(clusters[i]);

        if (ready == NULL || !ready->away) {
            continue;
        }

        n++;

        ngx_http_pd_zone_lock(zone);
        due = ngx_http_pd_ready_due(zone, clusters[i], process->log);
        ngx_http_pd_zone_unlock(zone);

        if (due
            && ngx_http_pd_canary_pair(process, clusters[i], ready->asked)
               != NGX_OK)
        {
            ngx_http_pd_ready_canary(process, clusters[i],
                                     NGX_HTTP_PD_VERDICT_NONE);
        }
    }

    return n;
}


/* a canary has to be sent; or all have come back well, and time is over */

static ngx_uint_t
ngx_http_pd_ready_due(ngx_http_pd_zone_t *zone, ngx_http_pd_cluster_t *conf,
    ngx_log_t *log)
{
    uint64_t                  now;
    ngx_http_pd_readiness_t  *ready;

    ready = &zone->sh->clusters[conf->shared].ready;
    now = ngx_http_pd_now_us();

    if (!ready->away
        || (ready->singing && now - ready->singing
                              < NGX_HTTP_PD_READY_LOST))
    {
        return 0;
    }

    if (ready->asked < conf->ready_canaries) {

        if (now < ready->next) {
            return 0;
        }

        ready->singing = now;
        ready->next = ngx_max(ready->next + ready->pace, now);

        return 1;
    }

    if (now < ready->until) {
        return 0;
    }

    ready->away = 0;
    ready->back = now;
    zone->sh->leases++;

    ngx_http_pd_verdict_clear(&zone->sh->clusters[conf->shared]);

    ngx_log_error(NGX_LOG_NOTICE, log, 0,
                  "pd: this frontend is back in cluster \"%V\": %uD of %uD "
                  "canaries sang", &conf->name, ready->sang, ready->asked);

    return 0;
}


void
ngx_http_pd_ready_canary(ngx_http_pd_process_t *process,
    ngx_http_pd_cluster_t *conf, ngx_http_pd_verdict_e verdict)
{
    uint32_t                  failed, of;
    ngx_http_pd_readiness_t  *ready;

    ready = ngx_http_pd_ready_of(conf);

    if (ready == NULL) {
        return;
    }

    ngx_http_pd_zone_lock(process->zone);

    /* where there was no room, it is asked again */

    if (ready->away && ready->singing && verdict != NGX_HTTP_PD_VERDICT_NONE) {
        ready->asked++;
        ready->sang += (verdict == NGX_HTTP_PD_VERDICT_FINISHED);

        failed = ready->asked - ready->sang;
        of = ngx_max(ready->asked, conf->ready_canaries);

        if (failed * 100 > of * (100 - NGX_HTTP_PD_READY_SING)) {
            ngx_http_pd_ready_round(process->zone, conf);

            ngx_log_error(NGX_LOG_NOTICE, process->log, 0,
                          "pd: this frontend stays out of cluster \"%V\" for "
                          "%uL ms more: %uD of its canaries failed",
                          &conf->name,
                          (ready->until - ngx_http_pd_now_us()) / 1000,
                          failed);
        }
    }

    ready->singing = 0;

    ngx_http_pd_zone_unlock(process->zone);
}


ngx_http_pd_ready_e
ngx_http_pd_ready(ngx_http_pd_cluster_t *conf)
{
    ngx_uint_t                has;
    ngx_http_pd_zone_t       *zone;
    ngx_http_pd_readiness_t  *ready;

    ready = ngx_http_pd_ready_of(conf);

    if (ready == NULL) {
        return NGX_HTTP_PD_READY_WAITING;
    }

    zone = conf->main->zone->data;

    ngx_http_pd_zone_lock(zone);
    has = ngx_http_pd_choose_ready(zone, conf->shared);
    ngx_http_pd_zone_unlock(zone);

    return !has ? NGX_HTTP_PD_READY_WAITING
           : ready->away ? NGX_HTTP_PD_READY_AWAY
           : ready->degraded ? NGX_HTTP_PD_READY_DEGRADED
           : NGX_HTTP_PD_READY;
}


ngx_uint_t
ngx_http_pd_ready_away(ngx_http_pd_cluster_t *conf)
{
    ngx_http_pd_readiness_t  *ready;

    ready = ngx_http_pd_ready_of(conf);

    return ready && ready->away;
}


ngx_uint_t
ngx_http_pd_ready_degraded(ngx_http_pd_cluster_t *conf)
{
    ngx_http_pd_readiness_t  *ready;

    ready = ngx_http_pd_ready_of(conf);

    return ready && ready->degraded;
}


void
ngx_http_pd_ready_tell(ngx_http_pd_zone_t *zone, ngx_uint_t index,
    Pd__V1__FrontendHealth *health)
{
    uint64_t                     requests, finished;
    ngx_http_pd_zone_cluster_t  *cluster;

    cluster = &zone->sh->clusters[index];

    ngx_http_pd_verdict_sum(cluster, &requests, &finished);

    /* a ratio is what matters: of very many both are made smaller */

    while (requests > NGX_MAX_INT32_VALUE) {
        requests >>= 1;
        finished >>= 1;
    }

    health->requests = requests;
    health->finished = finished;
    health->away = cluster->ready.away;
}


void
ngx_http_pd_ready_restore(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *conf, uint64_t left, uint64_t rounds)
{
    ngx_http_pd_readiness_t  *ready;

    if (conf->ready_ratio == 0) {
        return;
    }

    ready = &zone->sh->clusters[conf->shared].ready;

    ready->away = 1;
    ready->rounds = ngx_min(rounds, 16);

    ngx_http_pd_ready_canaries(zone, conf,
                               ngx_min(left * 1000000,
                                       NGX_HTTP_PD_READY_LONGEST));
}


/* NULL: the cluster has found no place in the zone */

static ngx_http_pd_readiness_t *
ngx_http_pd_ready_of(ngx_http_pd_cluster_t *conf)
{
    ngx_http_pd_zone_t  *zone;

    if (conf->shared_id == 0) {
        return NULL;
    }

    zone = conf->main->zone->data;

    return &zone->sh->clusters[conf->shared].ready;
}
