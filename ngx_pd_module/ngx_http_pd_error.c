
/*
 * Errors in the API's shape; see ngx_http_pd_error.h.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_pd_error.h"


typedef struct {
    ngx_uint_t    status;
    ngx_str_t     type;
    ngx_str_t     code;
    ngx_str_t     message;
} ngx_http_pd_error_known_t;


/* the last line stands for every status that is not in the table */

static ngx_http_pd_error_known_t  ngx_http_pd_error_known[] = {

    { 400, ngx_string("invalid_request_error"),
      ngx_string("bad_request"),
      ngx_string("The request could not be understood.") },

    { 401, ngx_string("authentication_error"),
      ngx_string("invalid_api_key"),
      ngx_string("The request carries no valid API key.") },

    { 403, ngx_string("permission_error"),
      ngx_string("forbidden"),
      ngx_string("The caller is not allowed to make this request.") },

    { 404, ngx_string("invalid_request_error"),
      ngx_string("not_found"),
      ngx_string("There is nothing at this address.") },

    { 405, ngx_string("invalid_request_error"),
      ngx_string("method_not_allowed"),
      ngx_string("This address does not take this method.") },

    { 408, ngx_string("invalid_request_error"),
      ngx_string("request_timeout"),
      ngx_string("The request took too long to arrive.") },

    { 413, ngx_string("invalid_request_error"),
      ngx_string("request_too_large"),
      ngx_string("The request's body is too large.") },

    { 415, ngx_string("invalid_request_error"),
      ngx_string("unsupported_media_type"),
      ngx_string("The request's body must be application/json.") },

    { 429, ngx_string("rate_limit_error"),
      ngx_string("rate_limit_exceeded"),
      ngx_string("Too many requests from this caller.") },

    { 502, ngx_string("server_error"),
      ngx_string("bad_gateway"),
      ngx_string("A worker failed while it served the request.") },

    { 503, ngx_string("server_error"),
      ngx_string("service_unavailable"),
      ngx_string("No capacity to serve the request now.") },

    { 504, ngx_string("server_error"),
      ngx_string("timeout"),
      ngx_string("The request was not served in time.") },

    { 500, ngx_string("server_error"),
      ngx_string("internal_error"),
      ngx_string("The server failed to serve the request.") },

    { 0, ngx_string("invalid_request_error"),
      ngx_null_string,
      ngx_string("The request was refused.") }
};


static ngx_http_pd_error_known_t *ngx_http_pd_error_find(ngx_uint_t status);
static ngx_int_t ngx_http_pd_error_value(ngx_http_pd_rope_t *rope,
    ngx_str_t *value);


ngx_int_t
ngx_http_pd_error(ngx_http_pd_error_t *error, ngx_pool_t *pool,
    ngx_uint_t status, const char *code, ngx_str_t *param, const char *fmt,
    ...)
{
    u_char   *p, buf[NGX_HTTP_PD_ERROR_MESSAGE];
    va_list   args;

    ngx_memzero(error, sizeof(ngx_http_pd_error_t));

    va_start(args, fmt);
    p = ngx_vslprintf(buf, buf + NGX_HTTP_PD_ERROR_MESSAGE, fmt, args);
    va_end(args);

    error->message.data = ngx_pnalloc(pool, p - buf);

    if (error->message.data == NULL) {
        ngx_http_pd_error_status(error, 500);
        return NGX_ABORT;
    }

    error->message.len = p - buf;
    ngx_memcpy(error->message.data, buf, p - buf);

    error->status = status;

    if (code) {
        error->code.data = (u_char *) code;
        error->code.len = ngx_strlen(code);
    }

    if (param) {
        error->param = *param;
    }

    return NGX_ABORT;
}


void
ngx_http_pd_error_status(ngx_http_pd_error_t *error, ngx_uint_t status)
{
    ngx_http_pd_error_known_t  *known;

    known = ngx_http_pd_error_find(status);

    ngx_memzero(error, sizeof(ngx_http_pd_error_t));

    error->status = status;
    error->message = known->message;
    error->code = known->code;
}


ngx_int_t
ngx_http_pd_error_json(ngx_http_pd_error_t *error, ngx_http_pd_rope_t *rope)
{
    ngx_http_pd_error_known_t  *known;

    known = ngx_http_pd_error_find(error->status);

    if (ngx_http_pd_rope_literal(rope, "{\"error\":{\"message\":") != NGX_OK
        || ngx_http_pd_error_value(rope, &error->message) != NGX_OK
        || ngx_http_pd_rope_literal(rope, ",\"type\":") != NGX_OK
        || ngx_http_pd_error_value(rope, &known->type) != NGX_OK
        || ngx_http_pd_rope_literal(rope, ",\"param\":") != NGX_OK
        || ngx_http_pd_error_value(rope, &error->param) != NGX_OK
        || ngx_http_pd_rope_literal(rope, ",\"code\":") != NGX_OK
        || ngx_http_pd_error_value(rope, &error->code) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_pd_rope_literal(rope, "}}");
}


static ngx_int_t
ngx_http_pd_error_value(ngx_http_pd_rope_t *rope, ngx_str_t *value)
{
    if (value->len == 0) {
        return ngx_http_pd_rope_literal(rope, "null");
    }

    if (ngx_http_pd_rope_literal(rope, "\"") != NGX_OK
        || ngx_http_pd_rope_escape(rope, value->data, value->len) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_pd_rope_literal(rope, "\"");
}


static ngx_http_pd_error_known_t *
ngx_http_pd_error_find(ngx_uint_t status)
{
    ngx_http_pd_error_known_t  *known;

    known = ngx_http_pd_error_known;

    while (known->status && known->status != status) {

        if (known->status == 500 && status > 500) {
            return known;
        }

        known++;
    }

    return known;
}
