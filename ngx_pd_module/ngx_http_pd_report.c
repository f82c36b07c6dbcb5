
/*
 * Load reports: see the header.
 */


#include "ngx_http_pd_report.h"
#include "ngx_http_pd_attempt.h"


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


/*
 * Reports of one worker reach the processes out of order: the engine's step
 * counter tells which is newer.
 */

void
ngx_http_pd_report_apply(ngx_http_pd_attach_t *attach,
    Pd__V1__LoadReport *load)
{
    ngx_queue_t           *q;
    ngx_http_pd_side_t    *side;
    ngx_http_pd_zone_t    *zone;
    ngx_http_pd_worker_t  *worker;

    zone = attach->process->zone;
    worker = ngx_http_pd_zone_worker(zone, attach->index, attach->id);

    if (worker && worker->boot == attach->boot
        && load->steps >= worker->steps)
    {
        worker->reported = ngx_http_pd_now_us();
        worker->steps = load->steps;
        worker->queued_tokens = load->prefill_queued_tokens;
        worker->kv_free = ngx_min(load->kv_free, worker->kv_blocks);
        worker->running = load->running;
        worker->waiting = load->waiting;
        worker->draining = load->draining;
    }

    while (!ngx_queue_empty(&attach->unseen)) {
        q = ngx_queue_head(&attach->unseen);
        side = ngx_queue_data(q, ngx_http_pd_side_t, unseen);

        if (side->order > load->last_submission) {
            break;
        }

        ngx_queue_remove(q);
        side->waits = 0;

        ngx_http_pd_load_seen(zone, side->attempt->record, side->decode);
    }
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
