
/*
 * Who a caller is.
 *
 *     pd_tenant $variable       what auth_request, a client certificate, a JWT
 *                               module or a map has found out
 *     pd_key_file FILE          else: "Authorization: Bearer KEY"
 *
 * Where neither is configured, all callers are one nameless tenant.
 */


#ifndef _NGX_HTTP_PD_TENANT_H_INCLUDED_
#define _NGX_HTTP_PD_TENANT_H_INCLUDED_


#include "ngx_http_pd_api.h"
#include "ngx_http_pd_key.h"


/* pd_key_file FILE | off */
char *ngx_http_pd_tenant_key_file(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* fills ctx->tenant: NGX_OK, or a status, and ctx->error */
ngx_int_t ngx_http_pd_tenant(ngx_http_pd_ctx_t *ctx);

/* NGX_OK, or NGX_ABORT and ctx->error: the tenant may not use the model */
ngx_int_t ngx_http_pd_tenant_model(ngx_http_pd_ctx_t *ctx);


#endif /* _NGX_HTTP_PD_TENANT_H_INCLUDED_ */
