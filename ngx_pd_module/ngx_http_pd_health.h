
/*
 * pd_health: what a load balancer in front of nginx asks.
 */


#ifndef _NGX_HTTP_PD_HEALTH_H_INCLUDED_
#define _NGX_HTTP_PD_HEALTH_H_INCLUDED_


#include "ngx_http_pd_module.h"


#define NGX_HTTP_PD_HEALTH_LIVE     1
#define NGX_HTTP_PD_HEALTH_READY    2


char *ngx_http_pd_health(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);


#endif /* _NGX_HTTP_PD_HEALTH_H_INCLUDED_ */
