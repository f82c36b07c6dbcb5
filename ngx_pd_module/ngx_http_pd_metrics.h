
/*
 * pd_metrics: what all nginx processes count together, for Prometheus.
 */


#ifndef _NGX_HTTP_PD_METRICS_H_INCLUDED_
#define _NGX_HTTP_PD_METRICS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


char *ngx_http_pd_metrics(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);


#endif /* _NGX_HTTP_PD_METRICS_H_INCLUDED_ */
