
/*
 * Which workers are fit to be given work.
 *
 *              slow progress           none, or faults
 *     WELL -----------------> SUSPECT --------------------------> EJECTED
 *      ^  `------------------------------------------------------^ |  ^
 *      |      it moves again                                       |  | longer
 *      +------------------------ canary -----------------------<---+--+
 *
 * A worker is judged by progress: its step counter moves while it says that it
 * has work that needs steps.  One that is merely slow moves it.  Faults are
 * answers that ended by its own failure or by its death: too many in a row, or
 * clearly more often than with the others (ngx_http_pd_tally.h).
 *
 * A suspect is chosen where nobody else fits; who is ejected is not chosen, and
 * what it had goes on elsewhere; a canary (ngx_http_pd_canary.h) finds out when
 * it is back, and it gets more from second to second.  So it is with one that
 * was started again: its first work is a canary, at once.  The last one of its
 * kind is never ejected; one that becomes the last while it is out gets a
 * canary each second.
 *
 * A hand-off that fails while both workers live speaks against the pair, not
 * against them: ngx_http_pd_pairs.h.
 *
 * All of it lies in the shared zone: any process finds out for all, and what
 * is known outlives a reload.  All functions but the first three are called
 * under the zone's lock.
 */


#ifndef _NGX_HTTP_PD_VITALS_H_INCLUDED_
#define _NGX_HTTP_PD_VITALS_H_INCLUDED_


#include "ngx_http_pd_process.h"


typedef enum {
    NGX_HTTP_PD_WELL = 0,
    NGX_HTTP_PD_SUSPECT,
    NGX_HTTP_PD_EJECTED
} ngx_http_pd_vital_e;


/* sends it a canary, if its time has come; without the lock */
void ngx_http_pd_vitals_try(ngx_http_pd_process_t *process, ngx_uint_t index);

/* each second: looks at all workers if this process is the one that sweeps */
void ngx_http_pd_vitals_tick(ngx_http_pd_process_t *process,
    ngx_uint_t sweeps);

/* a canary has come back from that boot of the worker */
void ngx_http_pd_vitals_canary(ngx_http_pd_process_t *process,
    ngx_uint_t index, uint64_t id, uint64_t boot, ngx_uint_t sang);

/* as the state file tells: s until it may be tried again */
void ngx_http_pd_vitals_restore(ngx_http_pd_worker_t *worker, time_t left);

/* it has started again; others know by now what it is */
void ngx_http_pd_vitals_again(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker);

/* its report */
void ngx_http_pd_vitals_report(ngx_http_pd_worker_t *worker,
    Pd__V1__LoadReport *load);

/* an answer has ended well, or by the worker's fault */
void ngx_http_pd_vitals_success(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record);
void ngx_http_pd_vitals_fault(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *conf, ngx_uint_t index, ngx_uint_t death,
    ngx_log_t *log);

/*
 * For the choice: the record may have the worker, as a canary has the one that
 * it is for; had better not.
 */
ngx_uint_t ngx_http_pd_vitals_admits(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_http_pd_worker_t *worker);
ngx_uint_t ngx_http_pd_vitals_weak(ngx_http_pd_worker_t *worker);

/* us out, after so many times: twice as long each time */
uint64_t ngx_http_pd_vitals_backoff(ngx_http_pd_cluster_t *conf,
    ngx_uint_t times);

/* a worker that is there and not ejected serves what the other one does */
ngx_uint_t ngx_http_pd_vitals_serves(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker, ngx_http_pd_worker_t *like);


#endif /* _NGX_HTTP_PD_VITALS_H_INCLUDED_ */
