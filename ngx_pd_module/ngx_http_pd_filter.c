
/*
 * Errors in the API's shape, whoever found them.
 *
 * An error of nginx's own (413, "deny", auth_request, limit_req) comes as an
 * HTML page, and often before the content handler has seen the request.  In a
 * location with pd_pass this filter lets the status pass and puts the JSON
 * text in place of the page; for the module's own errors it has the details.
 * A location that an error_page leads to is left alone.
 *
 * Every response of such a location also says the request's id.
 */


#include "ngx_http_pd_api.h"


static ngx_int_t ngx_http_pd_header_filter(ngx_http_request_t *r);
static ngx_int_t ngx_http_pd_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in);
static ngx_int_t ngx_http_pd_filter_error(ngx_http_pd_ctx_t *ctx);
static ngx_int_t ngx_http_pd_filter_retry(ngx_http_pd_ctx_t *ctx);


static ngx_http_output_header_filter_pt  ngx_http_next_header_filter;
static ngx_http_output_body_filter_pt    ngx_http_next_body_filter;


ngx_int_t
ngx_http_pd_filter_init(ngx_conf_t *cf)
{
    ngx_http_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_pd_header_filter;

    ngx_http_next_body_filter = ngx_http_top_body_filter;
    ngx_http_top_body_filter = ngx_http_pd_body_filter;

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_header_filter(ngx_http_request_t *r)
{
    ngx_http_pd_ctx_t       *ctx;
    ngx_http_pd_loc_conf_t  *plcf;

    plcf = ngx_http_get_module_loc_conf(r, ngx_http_pd_module);

    if (plcf->pass == NULL || r != r->main) {
        return ngx_http_next_header_filter(r);
    }

    ctx = ngx_http_pd_ctx(r);
    if (ctx == NULL) {
        return NGX_ERROR;
    }

    ngx_http_set_ctx(r, ctx, ngx_http_pd_module);

    if (ngx_http_pd_answer_header(r, "X-Request-Id", &ctx->id) != NGX_OK) {
        return NGX_ERROR;
    }

    if (r->headers_out.status >= NGX_HTTP_BAD_REQUEST
        && ngx_http_pd_filter_error(ctx) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_next_header_filter(r);
}


static ngx_int_t
ngx_http_pd_filter_error(ngx_http_pd_ctx_t *ctx)
{
    ngx_http_request_t   *r;
    ngx_http_pd_rope_t    rope;

    r = ctx->request;

    if (ctx->error.status != r->headers_out.status) {
        ngx_http_pd_error_status(&ctx->error, r->headers_out.status);
    }

    ngx_memzero(&rope, sizeof(ngx_http_pd_rope_t));

    rope.pool = r->pool;
    rope.buffer = 512;

    if (ngx_http_pd_error_json(&ctx->error, &rope) != NGX_OK
        || ngx_http_pd_filter_retry(ctx) != NGX_OK)
    {
        return NGX_ERROR;
    }

    rope.last->buf->last_buf = 1;
    rope.last->buf->last_in_chain = 1;

    ngx_str_set(&r->headers_out.content_type, "application/json");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    ngx_http_clear_content_length(r);
    ngx_http_clear_accept_ranges(r);
    ngx_http_clear_last_modified(r);
    ngx_http_clear_etag(r);

    r->headers_out.content_length_n = rope.size;

    ctx->error_body = ngx_http_pd_rope_take(&rope);
    ctx->replace = 1;

    /* nginx closes after a 400: not where the whole request was read */

    if (ctx->body_read && ctx->keepalive) {
        r->keepalive = 1;
    }

    return NGX_OK;
}


/* "later" is part of what 429 and 503 say */

static ngx_int_t
ngx_http_pd_filter_retry(ngx_http_pd_ctx_t *ctx)
{
    ngx_str_t            value;
    ngx_uint_t           seconds;
    ngx_http_request_t  *r;

    r = ctx->request;

    if (r->headers_out.status != NGX_HTTP_TOO_MANY_REQUESTS
        && r->headers_out.status != NGX_HTTP_SERVICE_UNAVAILABLE)
    {
        return NGX_OK;
    }

    seconds = ngx_max(ctx->error.retry_after, 1);

    value.data = ngx_pnalloc(r->pool, NGX_INT_T_LEN);
    if (value.data == NULL) {
        return NGX_ERROR;
    }

    value.len = ngx_sprintf(value.data, "%ui", seconds) - value.data;

    return ngx_http_pd_answer_header(r, "Retry-After", &value);
}


static ngx_int_t
ngx_http_pd_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_chain_t        *cl, *body;
    ngx_http_pd_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_pd_module);

    if (ctx == NULL || !ctx->replace || r != r->main || in == NULL) {
        return ngx_http_next_body_filter(r, in);
    }

    for (cl = in; cl; cl = cl->next) {

        if (ngx_buf_in_memory(cl->buf)) {
            cl->buf->pos = cl->buf->last;
        }

        cl->buf->file_pos = cl->buf->file_last;
    }

    body = ctx->error_body;
    ctx->error_body = NULL;

    /* after the first time there is nothing to add */

    return body ? ngx_http_next_body_filter(r, body) : NGX_OK;
}
