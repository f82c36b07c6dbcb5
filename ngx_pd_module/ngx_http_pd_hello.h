
/*
 * A worker's hello: what it says of itself, checked and put into its entry of
 * the shared zone.  On an Attach stream and in a registration it is the same
 * message.
 */


#ifndef _NGX_HTTP_PD_HELLO_H_INCLUDED_
#define _NGX_HTTP_PD_HELLO_H_INCLUDED_


#include "ngx_http_pd_zone.h"


#define NGX_HTTP_PD_PROTOCOL        1
#define NGX_HTTP_PD_PROTOCOL_MIN    1


/* NULL, or what is wrong with it, for a log line */
const char *ngx_http_pd_hello_check(Pd__V1__WorkerHello *hello);

/*
 * Who else bears that name in the cluster and is attached, or NULL: a name is
 * one worker's, and whoever was there first keeps it.  Under the zone's lock.
 */
ngx_http_pd_worker_t *ngx_http_pd_hello_namesake(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker, Pd__V1__WorkerHello *hello);

/* under the zone's lock */
void ngx_http_pd_hello_learn(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker, Pd__V1__WorkerHello *hello);

/* who has attached, and what will not work with it; under the zone's lock */
void ngx_http_pd_hello_log(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker, ngx_log_t *log);


#endif /* _NGX_HTTP_PD_HELLO_H_INCLUDED_ */
