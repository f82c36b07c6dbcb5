
/*
 * Setters of the directives inside a pd_cluster block: conf is the cluster.
 */


#ifndef _NGX_HTTP_PD_CLUSTER_DIRECTIVES_H_INCLUDED_
#define _NGX_HTTP_PD_CLUSTER_DIRECTIVES_H_INCLUDED_


#include "ngx_http_pd_module.h"


char *ngx_http_pd_worker_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_pd_cluster_register(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_pd_cluster_queue(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_pd_cluster_direct(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_pd_cluster_borrow(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_pd_cluster_failover(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_pd_cluster_ejection(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/*
 * The time behind the "name" bytes of a parameter; 0: none, or not between
 * "min" (ms, above 0) and an hour.
 */
ngx_msec_t ngx_http_pd_cluster_time(ngx_str_t *value, size_t name,
    ngx_int_t min);

/*
 * Such a time, or a number, of a parameter that may be given once: NGX_ERROR
 * if it is not in these bounds, or was set before.
 */
ngx_int_t ngx_http_pd_cluster_span(ngx_str_t *value, size_t name,
    ngx_int_t min, ngx_msec_t *time);
ngx_int_t ngx_http_pd_cluster_number(ngx_str_t *value, size_t name,
    ngx_int_t min, ngx_int_t max, ngx_uint_t *number);


#endif /* _NGX_HTTP_PD_CLUSTER_DIRECTIVES_H_INCLUDED_ */
