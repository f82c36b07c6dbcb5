
/*
 * An error as the API's clients know it:
 *
 *     {"error":{"message":"...","type":"...","param":"..."|null,
 *               "code":"..."|null}}
 *
 * Who finds a fault fills an ngx_http_pd_error_t and goes home; the text is
 * written where the response is: by the error filter, or as a stream's last
 * event.
 */


#ifndef _NGX_HTTP_PD_ERROR_H_INCLUDED_
#define _NGX_HTTP_PD_ERROR_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_pd_rope.h"


#define NGX_HTTP_PD_ERROR_MESSAGE   512     /* bytes, longer ones are cut */


typedef struct {
    ngx_uint_t    status;           /* HTTP status, 0: no error */
    ngx_uint_t    retry_after;      /* seconds, 0: not said */
    ngx_str_t     message;
    ngx_str_t     param;            /* empty: null */
    ngx_str_t     code;             /* empty: null */
} ngx_http_pd_error_t;


/*
 * Fills "error", its message formatted as by ngx_slprintf() in "pool"; "code"
 * is not copied and "param" (may be NULL) neither.  Returns NGX_ABORT, so that
 * a check can end with it.  Without memory the message is a fixed one.
 */
ngx_int_t ngx_http_pd_error(ngx_http_pd_error_t *error, ngx_pool_t *pool,
    ngx_uint_t status, const char *code, ngx_str_t *param, const char *fmt,
    ...);

/* what a bare status means to a client of the API */
void ngx_http_pd_error_status(ngx_http_pd_error_t *error, ngx_uint_t status);

/* appends the JSON text above */
ngx_int_t ngx_http_pd_error_json(ngx_http_pd_error_t *error,
    ngx_http_pd_rope_t *rope);


#endif /* _NGX_HTTP_PD_ERROR_H_INCLUDED_ */
