
/*
 * How urgent a request is: see ngx_http_pd_urgency.h.
 */


#include "ngx_http_pd_urgency.h"


#define NGX_HTTP_PD_URGENCY_MAX    86400000      /* ms, of a client */


ngx_int_t
ngx_http_pd_urgency(ngx_http_pd_ctx_t *ctx)
{
    ngx_int_t                n;
    ngx_str_t                value;
    ngx_uint_t               class;
    ngx_http_pd_loc_conf_t  *plcf;

    plcf = ngx_http_get_module_loc_conf(ctx->request, ngx_http_pd_module);

    ctx->timeout = plcf->timeout;
    ctx->class = NGX_HTTP_PD_CLASS_STANDARD;

    if (ctx->known && ctx->known->class != NGX_CONF_UNSET_UINT) {
        ctx->class = ctx->known->class;
    }

    if (plcf->class) {

        if (ngx_http_complex_value(ctx->request, plcf->class, &value)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        class = ngx_http_pd_class_find(value.data, value.len);

        if (class != NGX_CONF_UNSET_UINT) {
            ctx->class = class;
        }
    }

    if (ctx->wanted.len == 0) {
        return NGX_OK;
    }

    n = ngx_atoi(ctx->wanted.data, ctx->wanted.len);

    if (n < 1 || n > NGX_HTTP_PD_URGENCY_MAX) {
        return ngx_http_pd_error(&ctx->error, ctx->request->pool,
                                 NGX_HTTP_BAD_REQUEST, "invalid_value", NULL,
                                 "The header x-request-timeout-ms must be a "
                                 "number from 1 to %d",
                                 NGX_HTTP_PD_URGENCY_MAX);
    }

    ctx->timeout = ngx_min(ctx->timeout, (ngx_msec_t) n);

    return NGX_OK;
}
