
/*
 * Processes in the shared zone: coming, going, dying, waking each other, and
 * which of them is attached to which worker.
 */


#ifndef _NGX_HTTP_PD_SLOT_H_INCLUDED_
#define _NGX_HTTP_PD_SLOT_H_INCLUDED_


#include "ngx_http_pd_zone.h"


/* this process takes the slot that nginx gave it, and leaves it */
ngx_int_t ngx_http_pd_slot_enter(ngx_http_pd_zone_t *zone, ngx_log_t *log);
void ngx_http_pd_slot_leave(ngx_http_pd_zone_t *zone);

/*
 * Once a second: what dead processes and ended leases have left.  1 if this
 * process is the one that cares for all.
 */
ngx_uint_t ngx_http_pd_slot_sweep(ngx_http_pd_zone_t *zone, ngx_log_t *log);

/* nginx has asked this process to leave: another one shall sweep */
void ngx_http_pd_slot_leaving(ngx_http_pd_zone_t *zone);

/* the rest is called under the lock */

/* wakes a process to look at its grants and at the workers */
void ngx_http_pd_slot_wake(ngx_http_pd_zone_t *zone, ngx_uint_t slot);
void ngx_http_pd_slot_wake_all(ngx_http_pd_zone_t *zone);

/* this process's stream to the worker is up; some process's is; that one's */
void ngx_http_pd_slot_set_attached(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker, ngx_uint_t attached);
ngx_uint_t ngx_http_pd_slot_attached_any(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker);
ngx_uint_t ngx_http_pd_slot_attached(ngx_http_pd_zone_t *zone,
    ngx_uint_t slot, ngx_http_pd_worker_t *worker);


#endif /* _NGX_HTTP_PD_SLOT_H_INCLUDED_ */
