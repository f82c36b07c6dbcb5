
/*
 * Load reports: see the header.
 */


#include "ngx_http_pd_report.h"
#include "ngx_http_pd_attempt.h"
#include "ngx_http_pd_frontends.h"
#include "ngx_http_pd_vitals.h"


void
ngx_http_pd_report_alone(ngx_http_pd_attach_t *attach,
    Pd__V1__LoadReport *load)
{
    ngx_http_pd_zone_t  *zone;

    zone = attach->process->zone;

    ngx_http_pd_zone_lock(zone);

    ngx_http_pd_report_apply(attach, load);
    ngx_http_pd_ledger_run(zone);

    ngx_http_pd_zone_unlock(zone);
}


void
ngx_http_pd_report_apply(ngx_http_pd_attach_t *attach,
    Pd__V1__LoadReport *load)
{
    ngx_http_pd_zone_t    *zone;
    ngx_http_pd_worker_t  *worker;

    zone = attach->process->zone;
    worker = ngx_http_pd_zone_worker(zone, attach->index, attach->id);

    if (worker && worker->boot == attach->boot) {
        ngx_http_pd_load_report(zone, worker, attach->stream, load);
        ngx_http_pd_vitals_report(worker, load);
    }
}


void
ngx_http_pd_report_frontends(ngx_http_pd_attach_t *attach,
    Pd__V1__Frontends *frontends)
{
    ngx_http_pd_zone_t    *zone;
    ngx_http_pd_worker_t  *worker;

    zone = attach->process->zone;

    ngx_http_pd_zone_lock(zone);

    worker = ngx_http_pd_zone_worker(zone, attach->index, attach->id);

    if (worker) {
        ngx_http_pd_frontends_learn(zone, worker->cluster, frontends);
    }

    ngx_http_pd_zone_unlock(zone);
}


void
ngx_http_pd_report_drain(ngx_http_pd_attach_t *attach)
{
    ngx_http_pd_zone_t    *zone;
    ngx_http_pd_worker_t  *worker;

    zone = attach->process->zone;

    ngx_http_pd_zone_lock(zone);

    worker = ngx_http_pd_zone_worker(zone, attach->index, attach->id);

    if (worker && worker->boot == attach->boot) {
        worker->draining = 1;
    }

    ngx_http_pd_zone_unlock(zone);

    ngx_log_error(NGX_LOG_NOTICE, attach->process->log, 0,
                  "pd: worker \"%V\" drains", &attach->name);
}
