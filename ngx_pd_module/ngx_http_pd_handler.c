
/*
 * The content handler of a location with pd_pass: which operation of the API a
 * request means.
 *
 * The API's base may be anywhere ("location /v1/", "/team/openai/v1/"), so
 * operations are known by the end of the path.
 */


#include "ngx_http_pd_tenant.h"
#include "ngx_http_pd_ready.h"


static ngx_int_t ngx_http_pd_handler_models(ngx_http_pd_ctx_t *ctx);
static ngx_int_t ngx_http_pd_handler_id(ngx_http_request_t *r, ngx_str_t *id);
static ngx_uint_t ngx_http_pd_handler_ends(ngx_str_t *uri, const char *end);
static ngx_int_t ngx_http_pd_handler_method(ngx_http_pd_ctx_t *ctx,
    ngx_uint_t methods, const char *allow);


ngx_int_t
ngx_http_pd_handler(ngx_http_request_t *r)
{
    ngx_int_t                rc;
    ngx_uint_t               surface;
    ngx_http_pd_ctx_t       *ctx;
    ngx_http_pd_loc_conf_t  *plcf;

    if (r != r->main) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "pd: \"pd_pass\" cannot serve a subrequest");
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx = ngx_http_pd_ctx(r);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    /* there may be one already, from before an internal redirect */

    ngx_http_set_ctx(r, ctx, ngx_http_pd_module);
    ctx->error.status = 0;

    /* who is out of its load balancer also lets its clients go */

    plcf = ngx_http_get_module_loc_conf(r, ngx_http_pd_module);

    if (ngx_http_pd_ready_away(plcf->pass)) {
        r->keepalive = 0;
    }

    ctx->keepalive = r->keepalive;

    rc = ngx_http_pd_tenant(ctx);

    if (rc != NGX_OK) {
        return rc;
    }

    if (ngx_http_pd_handler_ends(&r->uri, "/chat/completions")) {
        surface = NGX_HTTP_PD_OPENAI_CHAT;

    } else if (ngx_http_pd_handler_ends(&r->uri, "/completions")) {
        surface = NGX_HTTP_PD_OPENAI_COMPLETIONS;

    } else {
        return ngx_http_pd_handler_models(ctx);
    }

    rc = ngx_http_pd_handler_method(ctx, NGX_HTTP_POST, "POST");

    if (rc != NGX_OK) {
        return rc;
    }

    return ngx_http_pd_body(ctx, surface);
}


/* ".../models" and ".../models/ID", where ID may hold slashes */

static ngx_int_t
ngx_http_pd_handler_models(ngx_http_pd_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_str_t            id;
    ngx_http_request_t  *r;

    r = ctx->request;

    ngx_str_null(&id);

    if (!ngx_http_pd_handler_ends(&r->uri, "/models")
        && ngx_http_pd_handler_id(r, &id) != NGX_OK)
    {
        (void) ngx_http_pd_error(&ctx->error, r->pool, NGX_HTTP_NOT_FOUND,
                                 "unknown_url", NULL,
                                 "There is no operation at %V", &r->uri);

        return NGX_HTTP_NOT_FOUND;
    }

    rc = ngx_http_pd_handler_method(ctx, NGX_HTTP_GET|NGX_HTTP_HEAD,
                                    "GET, HEAD");

    if (rc != NGX_OK) {
        return rc;
    }

    return ngx_http_pd_models(ctx, &id);
}


static ngx_int_t
ngx_http_pd_handler_id(ngx_http_request_t *r, ngx_str_t *id)
{
    u_char                    *p, *last;
    ngx_http_core_loc_conf_t  *clcf;

    static const char  models[] = "/models/";

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    p = r->uri.data;
    last = p + r->uri.len;

    /* the location's own name may hold the word too */

    if (clcf->name.len > 1 && clcf->name.len < r->uri.len
        && ngx_strncmp(p, clcf->name.data, clcf->name.len) == 0)
    {
        p += clcf->name.len - 1;
    }

    for ( /* void */ ; last - p > (ssize_t) sizeof(models) - 1; p++) {

        if (ngx_memcmp(p, models, sizeof(models) - 1) == 0) {
            id->data = p + sizeof(models) - 1;
            id->len = last - id->data;

            return NGX_OK;
        }
    }

    return NGX_DECLINED;
}


static ngx_uint_t
ngx_http_pd_handler_ends(ngx_str_t *uri, const char *end)
{
    size_t  len;

    len = ngx_strlen(end);

    return uri->len >= len
           && ngx_memcmp(uri->data + uri->len - len, end, len) == 0;
}


static ngx_int_t
ngx_http_pd_handler_method(ngx_http_pd_ctx_t *ctx, ngx_uint_t methods,
    const char *allow)
{
    ngx_str_t            value;
    ngx_http_request_t  *r;

    r = ctx->request;

    if (r->method & methods) {
        return NGX_OK;
    }

    value.data = (u_char *) allow;
    value.len = ngx_strlen(allow);

    if (ngx_http_pd_answer_header(r, "Allow", &value) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    (void) ngx_http_pd_error(&ctx->error, r->pool, NGX_HTTP_NOT_ALLOWED,
                             "method_not_allowed", NULL,
                             "%V does not take %V; use %s", &r->uri,
                             &r->method_name, allow);

    return NGX_HTTP_NOT_ALLOWED;
}
