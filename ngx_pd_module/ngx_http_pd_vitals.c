
/*
 * Which workers are fit: see the header.
 */


#include "ngx_http_pd_vitals.h"
#include "ngx_http_pd_attempt.h"
#include "ngx_http_pd_canary.h"
#include "ngx_http_pd_choose.h"
#include "ngx_http_pd_pairs.h"
#include "ngx_http_pd_slot.h"
#include "ngx_http_pd_tally.h"


#define NGX_HTTP_PD_VITALS_STEPS      20          /* of its own, at least */
#define NGX_HTTP_PD_VITALS_LONGEST    60000000    /* us out, at most */
#define NGX_HTTP_PD_VITALS_TRUST      3600000000u /* us in: then all is well */
#define NGX_HTTP_PD_VITALS_RAMP       8           /* s of slow start */
#define NGX_HTTP_PD_VITALS_WHY        160         /* bytes */


static void ngx_http_pd_vitals_look(ngx_http_pd_process_t *process,
    ngx_http_pd_cluster_t *conf, ngx_http_pd_worker_t *worker);
static void ngx_http_pd_vitals_eject(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *conf, ngx_http_pd_worker_t *worker,
    const char *why, ngx_log_t *log);
static void ngx_http_pd_vitals_answer(ngx_http_pd_worker_t *worker,
    ngx_uint_t failed);
static void ngx_http_pd_vitals_compare(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *conf, ngx_http_pd_worker_t *worker,
    ngx_log_t *log);
static ngx_uint_t ngx_http_pd_vitals_last(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker);
static ngx_uint_t ngx_http_pd_vitals_replaces(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *other, ngx_http_pd_worker_t *worker);
static ngx_http_pd_cluster_t *ngx_http_pd_vitals_conf(
    ngx_http_pd_process_t *process, ngx_http_pd_worker_t *worker);


void
ngx_http_pd_vitals_tick(ngx_http_pd_process_t *process, ngx_uint_t sweeps)
{
    ngx_uint_t              i, n, m;
    ngx_uint_t              hung[NGX_HTTP_PD_ZONE_WORKERS];
    ngx_uint_t              away[NGX_HTTP_PD_ZONE_WORKERS];
    ngx_http_pd_shared_t   *sh;
    ngx_http_pd_worker_t   *worker;
    ngx_http_pd_cluster_t  *conf;

    sh = process->zone->sh;
    n = 0;
    m = 0;

    ngx_http_pd_zone_lock(process->zone);

    for (i = 0; i < sh->nworkers; i++) {
        worker = &sh->workers[i];
        conf = ngx_http_pd_vitals_conf(process, worker);

        if (conf == NULL || process->attaches[i] == NULL
            || process->attaches[i]->state != NGX_HTTP_PD_ATTACH_UP)
        {
            continue;
        }

        if (sweeps) {
            ngx_http_pd_vitals_look(process, conf, worker);
        }

        if (worker->vital != NGX_HTTP_PD_EJECTED) {
            continue;
        }

        if (!ngx_queue_empty(&process->attaches[i]->sides)
            && worker->hung)
        {
            hung[n++] = i;

        } else if (sweeps) {

            if (ngx_http_pd_vitals_last(process->zone, worker)) {
                worker->until = 0;
            }

            away[m++] = i;
        }
    }

    ngx_http_pd_zone_unlock(process->zone);

    for (i = 0; i < n; i++) {
        ngx_http_pd_failure_lost(process->attaches[hung[i]], 1);
    }

    for (i = 0; i < m; i++) {
        ngx_http_pd_vitals_try(process, away[i]);
    }
}


void
ngx_http_pd_vitals_try(ngx_http_pd_process_t *process, ngx_uint_t index)
{
    uint64_t               id, boot;
    ngx_uint_t             due;
    ngx_http_pd_worker_t  *worker;

    worker = &process->zone->sh->workers[index];

    ngx_http_pd_zone_lock(process->zone);

    due = worker->vital == NGX_HTTP_PD_EJECTED && !worker->canary
          && worker->until <= ngx_http_pd_now_us();

    if (due) {
        worker->canary = 1;
    }

    id = worker->id;
    boot = worker->boot;

    ngx_http_pd_zone_unlock(process->zone);

    if (due && ngx_http_pd_canary_send(process, index) != NGX_OK) {
        ngx_http_pd_vitals_canary(process, index, id, boot, 0);
    }
}


/*
 * The process that was ejected is gone; but one whose canaries have failed is
 * not believed the sooner for dying.
 */

void
ngx_http_pd_vitals_again(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker)
{
    worker->hung = 0;
    worker->kept = 0;
    worker->canary = 0;

    ngx_http_pd_pairs_forget(zone, worker);

    if (worker->vital == NGX_HTTP_PD_EJECTED && worker->ejections > 1) {
        return;
    }

    if (ngx_http_pd_vitals_last(zone, worker)) {
        worker->vital = NGX_HTTP_PD_WELL;
        return;
    }

    worker->vital = NGX_HTTP_PD_EJECTED;
    worker->until = 0;
}


/* one that has work and makes no step, for longer than it may need for one */

static void
ngx_http_pd_vitals_look(ngx_http_pd_process_t *process,
    ngx_http_pd_cluster_t *conf, ngx_http_pd_worker_t *worker)
{
    uint64_t  still, stall;

    still = ngx_http_pd_now_us() - worker->moved;

    stall = ngx_max((uint64_t) conf->stall * 1000,
                    (uint64_t) worker->step_us * NGX_HTTP_PD_VITALS_STEPS);

    if (worker->moved == 0 || worker->vital == NGX_HTTP_PD_EJECTED) {
        return;
    }

    if (still > stall) {
        worker->hung = 1;
        ngx_http_pd_vitals_eject(process->zone, conf, worker,
                                 "it has work and makes no step",
                                 process->log);

    } else if (still > stall / 2) {

        if (worker->vital == NGX_HTTP_PD_WELL) {
            worker->vital = NGX_HTTP_PD_SUSPECT;

            ngx_log_error(NGX_LOG_WARN, process->log, 0,
                          "pd: worker \"%*s\" is suspect: it has work and "
                          "makes no step", (size_t) worker->address_len,
                          worker->address);
        }

    } else if (worker->vital == NGX_HTTP_PD_SUSPECT) {
        worker->vital = NGX_HTTP_PD_WELL;
        worker->hung = 0;
        worker->kept = 0;
    }
}


void
ngx_http_pd_vitals_report(ngx_http_pd_worker_t *worker,
    Pd__V1__LoadReport *load)
{
    ngx_uint_t  busy;

    /* prompts that wait for room, or for another worker, need no step here */

    busy = load->running
           || (worker->role != PD__V1__ROLE__ROLE_DECODE && load->kv_reserved);

    if (!busy || load->steps > worker->stepped) {
        worker->moved = ngx_http_pd_now_us();
        worker->stepped = ngx_max(load->steps, worker->stepped);
    }
}


static void
ngx_http_pd_vitals_eject(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *conf, ngx_http_pd_worker_t *worker,
    const char *why, ngx_log_t *log)
{
    if (worker->vital == NGX_HTTP_PD_EJECTED) {
        return;
    }

    if (ngx_http_pd_vitals_last(zone, worker)) {

        if (!worker->kept) {
            ngx_log_error(NGX_LOG_ERR, log, 0,
                          "pd: worker \"%*s\" is the last one, and stays: %s",
                          (size_t) worker->address_len, worker->address, why);
        }

        worker->vital = NGX_HTTP_PD_SUSPECT;
        worker->hung = 0;
        worker->kept = 1;
        return;
    }

    if (worker->trusted <= ngx_http_pd_now_us()) {
        worker->ejections = 0;
    }

    worker->vital = NGX_HTTP_PD_EJECTED;
    worker->kept = 0;
    worker->until = ngx_http_pd_now_us()
                    + ngx_http_pd_vitals_backoff(conf, worker->ejections);
    worker->faults = 0;

    ngx_http_pd_tally_clear(worker);

    ngx_log_error(NGX_LOG_ERR, log, 0,
                  "pd: worker \"%*s\" is ejected: %s",
                  (size_t) worker->address_len, worker->address, why);

    worker->ejections++;
    zone->sh->leases++;                /* the state file has to be written */
}


void
ngx_http_pd_vitals_restore(ngx_http_pd_worker_t *worker, time_t left)
{
    worker->vital = NGX_HTTP_PD_EJECTED;
    worker->ejections = 1;
    worker->until = ngx_http_pd_now_us()
                    + ngx_min((uint64_t) left * 1000000,
                              NGX_HTTP_PD_VITALS_LONGEST * 5 / 4);
}


/* twice as long each time, a minute at most, give or take a quarter */

uint64_t
ngx_http_pd_vitals_backoff(ngx_http_pd_cluster_t *conf, ngx_uint_t times)
{
    uint64_t  span;

    span = (uint64_t) conf->backoff * 1000 << ngx_min(times, 10);
    span = ngx_min(span, NGX_HTTP_PD_VITALS_LONGEST);

    return span * 3 / 4 + ngx_random() % (span / 2 + 1);
}


void
ngx_http_pd_vitals_canary(ngx_http_pd_process_t *process, ngx_uint_t index,
    uint64_t id, uint64_t boot, ngx_uint_t sang)
{
    ngx_http_pd_worker_t   *worker;
    ngx_http_pd_cluster_t  *conf;

    ngx_http_pd_zone_lock(process->zone);

    worker = ngx_http_pd_zone_worker(process->zone, index, id);
    conf = worker ? ngx_http_pd_vitals_conf(process, worker) : NULL;

    if (conf && worker->canary && worker->boot == boot) {
        worker->canary = 0;

        if (sang) {
            worker->vital = NGX_HTTP_PD_WELL;
            worker->hung = 0;
            worker->back = ngx_http_pd_now_us();
            worker->trusted = worker->back + NGX_HTTP_PD_VITALS_TRUST;
            process->zone->sh->leases++;

            ngx_log_error(NGX_LOG_NOTICE, process->log, 0,
                          "pd: worker \"%*s\" is back: its canary sang",
                          (size_t) worker->address_len, worker->address);

            ngx_http_pd_ledger_run(process->zone);

        } else {
            worker->until = ngx_http_pd_now_us()
                            + ngx_http_pd_vitals_backoff(conf,
                                                         worker->ejections++);

            ngx_log_error(NGX_LOG_NOTICE, process->log, 0,
                          "pd: worker \"%*s\" stays out: its canary has not "
                          "sung", (size_t) worker->address_len,
                          worker->address);
        }
    }

    ngx_http_pd_zone_unlock(process->zone);
}


/* one canary is no row of answers: who dies of each third one still sings */

void
ngx_http_pd_vitals_success(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record)
{
    ngx_http_pd_worker_t  *prefill, *decode;

    prefill = NULL;
    decode = NULL;

    if (record->prefill != NGX_HTTP_PD_NONE) {
        prefill = &zone->sh->workers[record->prefill];
    }

    if (record->decode != NGX_HTTP_PD_NONE) {
        decode = &zone->sh->workers[record->decode];
    }

    if (prefill && !record->canary) {
        prefill->faults = 0;
        ngx_http_pd_vitals_answer(prefill, 0);
    }

    if (decode && !record->canary) {
        decode->faults = 0;
        ngx_http_pd_vitals_answer(decode, 0);
    }

    if (prefill && decode) {
        ngx_http_pd_pairs_well(zone, prefill, decode);
    }
}


void
ngx_http_pd_vitals_fault(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *conf, ngx_uint_t index, ngx_uint_t death,
    ngx_log_t *log)
{
    ngx_http_pd_worker_t  *worker;

    worker = &zone->sh->workers[index];

    /* each process sees a death; it is one */

    if (death) {
        if (worker->died == worker->boot) {
            return;
        }

        worker->died = worker->boot;
    }

    /* it is out, or its canary tells */

    if (worker->vital == NGX_HTTP_PD_EJECTED) {
        return;
    }

    ngx_http_pd_vitals_answer(worker, 1);

    if (++worker->faults >= conf->faults) {
        ngx_http_pd_vitals_eject(zone, conf, worker,
                                 "too many requests in a row failed with it",
                                 log);
        return;
    }

    ngx_http_pd_vitals_compare(zone, conf, worker, log);
}


/* as many as are compared, and nothing was found: it is what it was before */

static void
ngx_http_pd_vitals_answer(ngx_http_pd_worker_t *worker, ngx_uint_t failed)
{
    uint64_t  now;

    if (worker->vital == NGX_HTTP_PD_EJECTED) {
        return;
    }

    now = ngx_http_pd_now_us();

    if (ngx_http_pd_tally_count(worker, failed, now)) {
        worker->trusted = ngx_min(worker->trusted, now);
    }
}


/* not each of its answers fails, but more than of the others' */

static void
ngx_http_pd_vitals_compare(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *conf, ngx_http_pd_worker_t *worker,
    ngx_log_t *log)
{
    u_char                *p;
    ngx_uint_t             i;
    ngx_http_pd_tally_t    own, others;
    ngx_http_pd_worker_t  *other;
    u_char                 why[NGX_HTTP_PD_VITALS_WHY];

    own.answers = worker->answers;
    own.failed = worker->failed;
    others.answers = 0;
    others.failed = 0;

    for (i = 0; i < zone->sh->nworkers; i++) {
        other = &zone->sh->workers[i];

        if (ngx_http_pd_vitals_replaces(zone, other, worker)) {
            others.answers += other->answers;
            others.failed += other->failed;
        }
    }

    if (!ngx_http_pd_tally_worse(&own, &others, conf->excess, conf->answers)) {
        return;
    }

    p = ngx_snprintf(why, sizeof(why) - 1,
                     "%uL of %uL requests failed with it, and %uL of %uL with "
                     "the others", own.failed, own.answers, others.failed,
                     others.answers);
    *p = '\0';

    ngx_http_pd_vitals_eject(zone, conf, worker, (char *) why, log);
}


ngx_uint_t
ngx_http_pd_vitals_admits(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_http_pd_worker_t *worker)
{
    ngx_http_pd_worker_t  *target;

    if (record->canary && record->canary != NGX_HTTP_PD_CANARY_PAIR) {
        target = &zone->sh->workers[record->canary - 1];

        if (worker == target) {
            return 1;
        }

        if (worker->role == target->role
            || worker->role == PD__V1__ROLE__ROLE_MIXED
            || target->role == PD__V1__ROLE__ROLE_MIXED)
        {
            return 0;
        }
    }

    return worker->vital != NGX_HTTP_PD_EJECTED;
}


ngx_uint_t
ngx_http_pd_vitals_weak(ngx_http_pd_worker_t *worker)
{
    uint64_t  seconds;

    if (worker->vital == NGX_HTTP_PD_SUSPECT) {
        return 1;
    }

    if (worker->back == 0) {
        return 0;
    }

    /* slow start: 1, 2, 4 ... at a time */

    seconds = (ngx_http_pd_now_us() - worker->back) / 1000000;

    if (seconds >= NGX_HTTP_PD_VITALS_RAMP) {
        worker->back = 0;
        return 0;
    }

    return worker->jobs >= (1u << seconds);
}


/* nobody else could do what it does */

static ngx_uint_t
ngx_http_pd_vitals_last(ngx_http_pd_zone_t *zone, ngx_http_pd_worker_t *worker)
{
    ngx_uint_t             i;
    ngx_http_pd_worker_t  *other;

    for (i = 0; i < zone->sh->nworkers; i++) {
        other = &zone->sh->workers[i];

        if (ngx_http_pd_vitals_replaces(zone, other, worker)) {
            return 0;
        }
    }

    return 1;
}


static ngx_uint_t
ngx_http_pd_vitals_replaces(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *other, ngx_http_pd_worker_t *worker)
{
    return other != worker
           && (other->role == worker->role
               || other->role == PD__V1__ROLE__ROLE_MIXED)
           && ngx_http_pd_vitals_serves(zone, other, worker);
}


ngx_uint_t
ngx_http_pd_vitals_serves(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker, ngx_http_pd_worker_t *like)
{
    return ngx_http_pd_choose_serves(worker, like->cluster, like->model_hash)
           && worker->vital != NGX_HTTP_PD_EJECTED
           && ngx_http_pd_slot_attached_any(zone, worker);
}


static ngx_http_pd_cluster_t *
ngx_http_pd_vitals_conf(ngx_http_pd_process_t *process,
    ngx_http_pd_worker_t *worker)
{
    ngx_uint_t               i;
    ngx_http_pd_cluster_t  **clusters;

    if (worker->id == 0) {
        return NULL;
    }

    clusters = process->conf->clusters.elts;

    for (i = 0; i < process->conf->clusters.nelts; i++) {
        if (clusters[i]->shared_id && clusters[i]->shared == worker->cluster)
        {
            return clusters[i];
        }
    }

    return NULL;
}
