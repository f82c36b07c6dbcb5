
/*
 * The dispatcher in one nginx process: see the header.
 *
 * Only processes that serve requests have one; nginx's helpers, which run the
 * same hooks, have not.
 */


#include "ngx_http_pd_process.h"
#include "ngx_http_pd_attempt.h"
#include "ngx_http_pd_ready.h"
#include "ngx_http_pd_slot.h"
#include "ngx_http_pd_state.h"
#include "ngx_http_pd_vitals.h"


#define NGX_HTTP_PD_PROCESS_TICK    1000
#define NGX_HTTP_PD_PROCESS_QUICK   100      /* while requests wait */
#define NGX_HTTP_PD_PROCESS_LAST_CALL    200 /* before nginx cuts */


static ngx_int_t ngx_http_pd_process_listen(ngx_http_pd_process_t *process);
static void ngx_http_pd_process_wake_handler(ngx_event_t *rev);
static void ngx_http_pd_process_self_handler(ngx_event_t *ev);
static void ngx_http_pd_process_tick_handler(ngx_event_t *ev);
static void ngx_http_pd_process_last_call_handler(ngx_event_t *ev);
static void ngx_http_pd_process_sync(ngx_http_pd_process_t *process);
static ngx_uint_t ngx_http_pd_process_wants(ngx_http_pd_process_t *process,
    ngx_http_pd_worker_t *worker);


ngx_http_pd_process_t  *ngx_http_pd_process;


ngx_int_t
ngx_http_pd_process_init(ngx_cycle_t *cycle)
{
    ngx_http_pd_process_t    *process;
    ngx_http_pd_main_conf_t  *pmcf;

    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)
    {
        return NGX_OK;
    }

    pmcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_pd_module);

    if (pmcf == NULL || pmcf->clusters.nelts == 0) {
        return NGX_OK;
    }

    process = ngx_pcalloc(cycle->pool, sizeof(ngx_http_pd_process_t));
    if (process == NULL) {
        return NGX_ERROR;
    }

    process->conf = pmcf;
    process->zone = pmcf->zone->data;
    process->log = cycle->log;

    process->self.handler = ngx_http_pd_process_self_handler;
    process->self.data = process;
    process->self.log = cycle->log;

    process->tick.handler = ngx_http_pd_process_tick_handler;
    process->tick.data = process;
    process->tick.log = cycle->log;
    process->tick.cancelable = 1;

    process->last_call.handler = ngx_http_pd_process_last_call_handler;
    process->last_call.data = process;
    process->last_call.log = cycle->log;
    process->last_call.cancelable = 1;

    process->zone->self = &process->self;

    if (ngx_http_pd_slot_enter(process->zone, cycle->log) != NGX_OK
        || ngx_http_pd_process_listen(process) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_pd_process = process;

    ngx_http_pd_process_sync(process);

    ngx_add_timer(&process->tick, NGX_HTTP_PD_PROCESS_TICK);

    return NGX_OK;
}


void
ngx_http_pd_process_exit(ngx_cycle_t *cycle)
{
    ngx_uint_t              i;
    ngx_http_pd_process_t  *process;

    process = ngx_http_pd_process;

    if (process == NULL) {
        return;
    }

    /* requests that are left are nginx's to end; the workers see the end of
     * the stream, and cancel what it had */

    process->terminating = 1;
    process->draining = 1;

    for (i = 0; i < NGX_HTTP_PD_ZONE_WORKERS; i++) {
        if (process->attaches[i]) {
            ngx_http_pd_attach_flush(process->attaches[i]);
            ngx_http_pd_attach_destroy(process->attaches[i]);
        }
    }

    if (process->tick.timer_set) {
        ngx_del_timer(&process->tick);
    }

    if (process->last_call.timer_set) {
        ngx_del_timer(&process->last_call);
    }

    if (process->wake) {
        ngx_close_connection(process->wake);
    }

    ngx_http_pd_process = NULL;

    ngx_http_pd_state_save(process->zone, process->log);
    ngx_http_pd_slot_leave(process->zone);
}


/* other processes wake this one by its slot's eventfd */

static ngx_int_t
ngx_http_pd_process_listen(ngx_http_pd_process_t *process)
{
    ngx_fd_t           fd;
    ngx_connection_t  *c;

    fd = process->zone->sh->slots[process->zone->slot].wake;

    if (fd == -1) {
        return NGX_OK;
    }

    c = ngx_get_connection(fd, process->log);
    if (c == NULL) {
        return NGX_ERROR;
    }

    c->data = process;
    c->log = process->log;
    c->read->log = process->log;
    c->write->log = process->log;
    c->read->handler = ngx_http_pd_process_wake_handler;

    process->wake = c;

    return ngx_handle_read_event(c->read, 0);
}


static void
ngx_http_pd_process_wake_handler(ngx_event_t *rev)
{
    uint64_t                n;
    ngx_connection_t       *c;
    ngx_http_pd_process_t  *process;

    c = rev->data;
    process = c->data;

    /* nginx leaves: the streams to the workers hear of it as well */

    if (c->close) {
        c->close = 0;
        return;
    }

    while (read(c->fd, &n, sizeof(n)) == sizeof(n)) { /* void */ }

    rev->ready = 0;

    if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        ngx_log_error(NGX_LOG_ALERT, process->log, 0,
                      "pd: cannot be woken any more");
    }

    ngx_http_pd_process_self_handler(&process->self);
}


static void
ngx_http_pd_process_self_handler(ngx_event_t *ev)
{
    ngx_http_pd_process_t  *process = ev->data;

    ngx_http_pd_process_sync(process);
    ngx_http_pd_attempt_grants(process);
}


static void
ngx_http_pd_process_tick_handler(ngx_event_t *ev)
{
    ngx_uint_t              quick;
    ngx_http_pd_zone_t     *zone;
    ngx_http_pd_process_t  *process;

    process = ev->data;
    zone = process->zone;

    /* with no stream to any worker, nothing else has told us */

    if (ngx_exiting) {
        ngx_http_pd_process_shutdown(process, 0);
    }

    if ((ngx_msec_int_t) (ngx_current_msec - process->swept)
        >= NGX_HTTP_PD_PROCESS_TICK)
    {
        process->swept = ngx_current_msec;

        process->sweeps = ngx_http_pd_slot_sweep(zone, process->log);

        if (process->sweeps) {
            ngx_http_pd_ready_tick(process);
            ngx_http_pd_state_save(zone, process->log);
        }

        ngx_http_pd_vitals_tick(process, process->sweeps);
    }

    quick = ngx_http_pd_ready_sing(process);

    ngx_http_pd_zone_lock(zone);
    ngx_http_pd_ledger_expire(zone);
    ngx_http_pd_ledger_run(zone);
    ngx_http_pd_zone_unlock(zone);

    ngx_http_pd_process_self_handler(&process->self);

    if (!ev->timer_set) {
        ngx_add_timer(ev, (process->queued || quick)
                          ? NGX_HTTP_PD_PROCESS_QUICK
                          : NGX_HTTP_PD_PROCESS_TICK);
    }
}


void
ngx_http_pd_process_watch(ngx_http_pd_process_t *process)
{
    ngx_add_timer(&process->tick, NGX_HTTP_PD_PROCESS_QUICK);
}


/* one stream for each worker of our clusters */

static void
ngx_http_pd_process_sync(ngx_http_pd_process_t *process)
{
    ngx_uint_t             i, n, wanted, later;
    ngx_http_pd_shared_t  *sh;
    ngx_http_pd_worker_t  *worker;
    ngx_http_pd_attach_t  *attach, *gone[NGX_HTTP_PD_ZONE_WORKERS];

    sh = process->zone->sh;

    if (process->changes == sh->changes || process->terminating) {
        return;
    }

    n = 0;
    later = 0;

    ngx_http_pd_zone_lock(process->zone);

    for (i = 0; i < sh->nworkers; i++) {
        worker = &sh->workers[i];
        attach = process->attaches[i];

        wanted = ngx_http_pd_process_wants(process, worker);

        if (attach && (!wanted || attach->id != worker->id)) {

            if (!ngx_queue_empty(&attach->sides)) {
                later = 1;
                continue;
            }

            gone[n++] = attach;
            process->attaches[i] = NULL;
        }

        if (wanted && process->attaches[i] == NULL) {
            process->attaches[i] = ngx_http_pd_attach_create(process, worker);

            if (process->attaches[i] == NULL) {
                later = 1;
            }
        }
    }

    process->changes = later ? 0 : sh->changes;

    ngx_http_pd_zone_unlock(process->zone);

    for (i = 0; i < n; i++) {
        ngx_http_pd_attach_destroy(gone[i]);
    }
}


static ngx_uint_t
ngx_http_pd_process_wants(ngx_http_pd_process_t *process,
    ngx_http_pd_worker_t *worker)
{
    ngx_uint_t               i;
    ngx_http_pd_cluster_t  **clusters;

    if (worker->id == 0 || worker->down
        || !(worker->configured || worker->lease))
    {
        return 0;
    }

    clusters = process->conf->clusters.elts;

    for (i = 0; i < process->conf->clusters.nelts; i++) {
        if (clusters[i]->shared_id
            && clusters[i]->shared == worker->cluster)
        {
            return 1;
        }
    }

    return 0;
}


/*
 * With a worker_shutdown_timeout, nginx will cut all connections at its end:
 * requests are ended shortly before, so that clients and workers still hear
 * why.
 */

void
ngx_http_pd_process_shutdown(ngx_http_pd_process_t *process,
    ngx_uint_t at_once)
{
    ngx_msec_t        left;
    ngx_core_conf_t  *ccf;

    if (at_once) {
        ngx_http_pd_process_last_call_handler(&process->last_call);
        return;
    }

    if (process->draining) {
        return;
    }

    process->draining = 1;

    ngx_http_pd_slot_leaving(process->zone);

    ccf = (ngx_core_conf_t *) ngx_get_conf(ngx_cycle->conf_ctx,
                                           ngx_core_module);

    if (ccf->shutdown_timeout) {
        left = ccf->shutdown_timeout;
        left -= ngx_min(left / 2, NGX_HTTP_PD_PROCESS_LAST_CALL);

        ngx_add_timer(&process->last_call, left);
    }

    ngx_http_pd_process_settle(process);
}


static void
ngx_http_pd_process_last_call_handler(ngx_event_t *ev)
{
    ngx_http_pd_process_t  *process = ev->data;

    if (!process->terminating) {
        process->draining = 1;
        process->terminating = 1;
        ngx_http_pd_attempt_terminate(process);
        ngx_http_pd_process_settle(process);
    }
}


void
ngx_http_pd_process_settle(ngx_http_pd_process_t *process)
{
    ngx_uint_t  i;

    if (!process->draining || process->drained || process->unsettled) {
        return;
    }

    process->drained = 1;

    for (i = 0; i < NGX_HTTP_PD_ZONE_WORKERS; i++) {
        if (process->attaches[i]) {
            ngx_http_pd_attach_drain(process->attaches[i]);
        }
    }
}
