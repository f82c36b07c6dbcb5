
/*
 * pd_register: workers that name themselves, over gRPC on a server of nginx.
 */


#ifndef _NGX_HTTP_PD_REGISTER_H_INCLUDED_
#define _NGX_HTTP_PD_REGISTER_H_INCLUDED_


#include "ngx_http_pd_module.h"


char *ngx_http_pd_register(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);


#endif /* _NGX_HTTP_PD_REGISTER_H_INCLUDED_ */
