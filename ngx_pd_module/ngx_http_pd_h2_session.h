
/*
 * The inside of an h2: its connection is moved by ngx_http_pd_h2.c, its
 * protocol is spoken by ngx_http_pd_h2_session.c.
 */


#ifndef _NGX_HTTP_PD_H2_SESSION_H_INCLUDED_
#define _NGX_HTTP_PD_H2_SESSION_H_INCLUDED_


#include "ngx_http_pd_grpc.h"
#include "ngx_http_pd_h2.h"

#include <nghttp2/nghttp2.h>


#define NGX_HTTP_PD_H2_FRAME    (16384 + 9)
#define NGX_HTTP_PD_H2_OUT      (2 * NGX_HTTP_PD_H2_FRAME)


struct ngx_http_pd_h2_s {
    ngx_connection_t                 *connection;
    ngx_pool_t                       *pool;
    ngx_log_t                        *log;
    ngx_str_t                        *name;
    const char                       *path;
    nghttp2_session                  *session;
    int32_t                           stream;

    const ngx_http_pd_h2_handlers_t  *handlers;
    void                             *data;

    /* bytes on their way out */

    u_char                           *out;
    u_char                           *out_pos;
    u_char                           *out_last;

    ngx_http_pd_grpc_parser_t         parser;

    unsigned                          local:1;      /* a unix socket */
    unsigned                          deferred:1;
    unsigned                          blocked:1;    /* the socket is full */
    unsigned                          status:1;     /* 200 was seen */
    unsigned                          type:1;       /* application/grpc */
    unsigned                          ended:1;
    ngx_int_t                         grpc_status;  /* -1: none */

    ngx_str_t                         why;
    u_char                            why_text[256];
};


/* the connection is up: the preface, our settings, the request */
ngx_int_t ngx_http_pd_h2_session_start(ngx_http_pd_h2_t *h2);

/* notes why the stream ends */
void ngx_http_pd_h2_why(ngx_http_pd_h2_t *h2, const char *fmt, ...);


#endif /* _NGX_HTTP_PD_H2_SESSION_H_INCLUDED_ */
