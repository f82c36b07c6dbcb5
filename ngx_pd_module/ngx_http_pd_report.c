
/*
 * Load reports: see the header.
 */


#include "ngx_http_pd_report.h"
#include "ngx_http_pd_attempt.h"
#include "ngx_http_pd_frontends.h"
#include "ngx_http_pd_pairs.h"
#include "ngx_http_pd_vitals.h"


static void ngx_http_pd_report_apply(ngx_http_pd_attach_t *attach,
    Pd__V1__LoadReport *load);
static void ngx_http_pd_report_link(ngx_http_pd_attach_t *attach,
    ngx_str_t *peer, ngx_uint_t up);


void
ngx_http_pd_report_alone(ngx_http_pd_attach_t *attach,
    Pd__V1__LoadReport *load)
{
    size_t               i;
    ngx_str_t            peer;
    ngx_http_pd_zone_t  *zone;

    zone = attach->process->zone;

    ngx_http_pd_zone_lock(zone);

    ngx_http_pd_report_apply(attach, load);

    for (i = 0; i < load->n_links; i++) {
        peer.data = (u_char *) load->links[i]->peer;
        peer.len = ngx_strlen(peer.data);

        ngx_http_pd_report_link(attach, &peer, load->links[i]->up);
    }

    ngx_http_pd_ledger_run(zone);

    ngx_http_pd_zone_unlock(zone);
}


static void
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
ngx_http_pd_report_step(ngx_http_pd_attach_t *attach,
    ngx_http_pd_step_t *step)
{
    ngx_str_t   peer;
    ngx_uint_t  i, up;

    ngx_http_pd_report_apply(attach, step->load);

    /* nobody asks, as a rule */

    if (attach->process->zone->sh->npairs == 0) {
        return;
    }

    for (i = 0; i < step->nlinks; i++) {
        if (ngx_http_pd_step_link(&step->links[i], &peer, &up) == NGX_OK) {
            ngx_http_pd_report_link(attach, &peer, up);
        }
    }
}


static void
ngx_http_pd_report_link(ngx_http_pd_attach_t *attach, ngx_str_t *peer,
    ngx_uint_t up)
{
    ngx_http_pd_zone_t    *zone;
    ngx_http_pd_worker_t  *worker;

    zone = attach->process->zone;
    worker = ngx_http_pd_zone_worker(zone, attach->index, attach->id);

    if (zone->sh->npairs && worker && worker->boot == attach->boot) {
        ngx_http_pd_pairs_link(zone, worker, peer, up, attach->process->log);
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
