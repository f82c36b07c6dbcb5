
/*
 * gRPC's message framing, [0][length: 4 bytes][message], as a parser that is
 * pushed whatever pieces arrive.
 */


#ifndef _NGX_HTTP_PD_GRPC_H_INCLUDED_
#define _NGX_HTTP_PD_GRPC_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_HTTP_PD_GRPC_PREFIX         5

/* gRPC's own default; longer messages are refused */
#define NGX_HTTP_PD_GRPC_MESSAGE_MAX    (4 * 1024 * 1024)


typedef struct {

    /* one message, valid during the call; all but NGX_OK ends the parsing */
    ngx_int_t   (*message)(void *data, u_char *message, size_t len);
    void         *data;
    ngx_log_t    *log;

    const char   *error;            /* why parsing failed; NULL: memory, or
                                       the handler's own reason */

    u_char        prefix[NGX_HTTP_PD_GRPC_PREFIX];
    size_t        prefix_len;
    size_t        need;
    size_t        got;
    u_char       *buf;
    size_t        size;
} ngx_http_pd_grpc_parser_t;


/* zeroed and its first three fields set before the first call */
ngx_int_t ngx_http_pd_grpc_parse(ngx_http_pd_grpc_parser_t *parser, u_char *p,
    size_t len);

void ngx_http_pd_grpc_free(ngx_http_pd_grpc_parser_t *parser);

/* writes the prefix of a message of len bytes */
u_char *ngx_http_pd_grpc_prefix(u_char *p, size_t len);


#endif /* _NGX_HTTP_PD_GRPC_H_INCLUDED_ */
