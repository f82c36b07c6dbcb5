
/*
 * How urgent a request is: its class, its tenant's weight, and how long it may
 * take and wait.
 */


#ifndef _NGX_HTTP_PD_URGENCY_H_INCLUDED_
#define _NGX_HTTP_PD_URGENCY_H_INCLUDED_


#include "ngx_http_pd_api.h"


/*
 * Fills ctx->class (pd_class, else the tenant's, else standard) and
 * ctx->timeout: NGX_OK, NGX_ABORT: the client's own timeout is none, see
 * ctx->error, or NGX_ERROR.
 */
ngx_int_t ngx_http_pd_urgency(ngx_http_pd_ctx_t *ctx);


#endif /* _NGX_HTTP_PD_URGENCY_H_INCLUDED_ */
