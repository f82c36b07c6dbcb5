
/*
 * The dispatcher in one nginx process: its streams to the workers, its table
 * of jobs, its slot in the shared zone.
 */


#ifndef _NGX_HTTP_PD_PROCESS_H_INCLUDED_
#define _NGX_HTTP_PD_PROCESS_H_INCLUDED_


#include "ngx_http_pd_zone.h"


#define NGX_HTTP_PD_PROCESS_JOBS    4096   /* places; more share them */

/* numbers go up by one, so nobody shares before all places are taken */

#define ngx_http_pd_process_place(process, number)                            \
    (&(process)->jobs[(number) % NGX_HTTP_PD_PROCESS_JOBS])


typedef struct ngx_http_pd_attach_s  ngx_http_pd_attach_t;


typedef struct {
    ngx_http_pd_main_conf_t  *conf;
    ngx_http_pd_zone_t       *zone;
    ngx_log_t                *log;

    uint64_t                  changes;     /* of the zone, seen */
    ngx_http_pd_attach_t     *attaches[NGX_HTTP_PD_ZONE_WORKERS];

    /* jobs, each in its number's place; see ngx_http_pd_attempt.h */

    struct ngx_http_pd_attempt_s  *jobs[NGX_HTTP_PD_PROCESS_JOBS];
    uint64_t                  last_number;
    uint64_t                  ended;       /* jobs, so far */
    ngx_uint_t                queued;
    ngx_uint_t                unsettled;   /* submissions may yet follow */

    ngx_uint_t                sweeps;      /* it is the one that does */
    ngx_event_t               tick;        /* each second, or 0.1 s */
    ngx_msec_t                swept;
    ngx_event_t               self;        /* posted: grants, new workers */
    ngx_event_t               last_call;   /* of a worker_shutdown_timeout */
    ngx_connection_t         *wake;        /* the same from other processes */

    unsigned                  draining:1;  /* nginx leaves gracefully */
    unsigned                  drained:1;   /* the workers know it */
    unsigned                  terminating:1;
} ngx_http_pd_process_t;


ngx_int_t ngx_http_pd_process_init(ngx_cycle_t *cycle);
void ngx_http_pd_process_exit(ngx_cycle_t *cycle);

/* a request waits: look more often than each second */
void ngx_http_pd_process_watch(ngx_http_pd_process_t *process);

/* nginx leaves: gracefully, or its time to do so is over */
void ngx_http_pd_process_shutdown(ngx_http_pd_process_t *process,
    ngx_uint_t at_once);

/* tells the workers, once, that nothing more will be submitted */
void ngx_http_pd_process_settle(ngx_http_pd_process_t *process);


/* NULL where no cluster is configured, and in processes that serve nobody */
extern ngx_http_pd_process_t  *ngx_http_pd_process;


#endif /* _NGX_HTTP_PD_PROCESS_H_INCLUDED_ */
