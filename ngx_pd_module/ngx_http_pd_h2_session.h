
/*
 * The inside of an h2: its connection is moved by ngx_http_pd_h2.c; what it
 * says all day is read and written by ngx_http_pd_h2_frames.c, and all the rest
 * of the protocol is spoken by libnghttp2, see ngx_http_pd_h2_session.c.
 */


#ifndef _NGX_HTTP_PD_H2_SESSION_H_INCLUDED_
#define _NGX_HTTP_PD_H2_SESSION_H_INCLUDED_


#include "ngx_http_pd_grpc.h"
#include "ngx_http_pd_h2.h"

#include <nghttp2/nghttp2.h>


#define NGX_HTTP_PD_H2_FRAME    (16384 + 9)
#define NGX_HTTP_PD_H2_OUT      (2 * NGX_HTTP_PD_H2_FRAME)

#define NGX_HTTP_PD_H2_HEAD     9                  /* bytes before each */

#define NGX_HTTP_PD_H2_WINDOW   (4 * 1024 * 1024)  /* ours: of the connection,
                                                      and of the stream */


typedef enum {
    NGX_HTTP_PD_H2_OTHER = 0,                  /* libnghttp2's */
    NGX_HTTP_PD_H2_DATA,
    NGX_HTTP_PD_H2_UPDATED
} ngx_http_pd_h2_frame_e;


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

    /* the frame that is coming in */

    u_char                            head[NGX_HTTP_PD_H2_HEAD];
    size_t                            head_len;
    size_t                            frame_left;   /* of its payload */
    ngx_http_pd_h2_frame_e            frame;
    int64_t                          *updated;      /* of those below */
    uint32_t                          increment;

    /* flow control: the peer's, and what has come since it was told of it */

    int64_t                           window;
    int64_t                           initial_window;
    int64_t                           stream_window;  /* above the initial */
    size_t                            received;

    /* bytes on their way out */

    u_char                           *out;
    u_char                           *out_pos;
    u_char                           *out_last;

    ngx_http_pd_grpc_parser_t         parser;

    unsigned                          local:1;      /* a unix socket */
    unsigned                          opened:1;     /* the request went out */
    unsigned                          other:1;      /* libnghttp2 may write */
    unsigned                          over:1;       /* and will never again */
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

/* what has come: all of it is used, or the stream has ended */
ngx_int_t ngx_http_pd_h2_frames_read(ngx_http_pd_h2_t *h2, u_char *p,
    size_t len);

/* what is to go out next, into the empty buffer, which stays empty if nothing */
ngx_int_t ngx_http_pd_h2_frames_write(ngx_http_pd_h2_t *h2);

/* the stream's bytes, in pieces */
ngx_int_t ngx_http_pd_h2_message(ngx_http_pd_h2_t *h2, u_char *p, size_t len);

/* notes why the stream ends */
void ngx_http_pd_h2_why(ngx_http_pd_h2_t *h2, const char *fmt, ...);


#endif /* _NGX_HTTP_PD_H2_SESSION_H_INCLUDED_ */
