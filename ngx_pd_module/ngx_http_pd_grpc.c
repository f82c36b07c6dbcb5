
/*
 * gRPC's message framing: see the header.
 *
 * A message that arrives in one piece is handed on where it lies.  Otherwise
 * it is put together in a buffer that grows with what has come, not with what
 * was announced.
 */


#include "ngx_http_pd_grpc.h"


#define NGX_HTTP_PD_GRPC_MIN     4096
#define NGX_HTTP_PD_GRPC_KEEP    65536      /* between messages */


static ngx_int_t ngx_http_pd_grpc_length(ngx_http_pd_grpc_parser_t *parser);
static ngx_int_t ngx_http_pd_grpc_append(ngx_http_pd_grpc_parser_t *parser,
    u_char *p, size_t len);


ngx_int_t
ngx_http_pd_grpc_parse(ngx_http_pd_grpc_parser_t *parser, u_char *p,
    size_t len)
{
    size_t   n;
    u_char  *message, *last;

    last = p + len;

    for ( ;; ) {

        while (parser->prefix_len < NGX_HTTP_PD_GRPC_PREFIX) {

            if (p == last) {
                return NGX_OK;
            }

            parser->prefix[parser->prefix_len++] = *p++;

            if (parser->prefix_len == NGX_HTTP_PD_GRPC_PREFIX
                && ngx_http_pd_grpc_length(parser) != NGX_OK)
            {
                return NGX_ERROR;
            }
        }

        n = ngx_min((size_t) (last - p), parser->need - parser->got);

        message = p;
        p += n;

        if (n < parser->need) {

            if (ngx_http_pd_grpc_append(parser, message, n) != NGX_OK) {
                return NGX_ERROR;
            }

            if (parser->got < parser->need) {
                return NGX_OK;
            }

            message = parser->buf;
        }

        parser->prefix_len = 0;

        if (parser->message(parser->data, message, parser->need) != NGX_OK) {
            return NGX_ERROR;
        }
    }
}


static ngx_int_t
ngx_http_pd_grpc_length(ngx_http_pd_grpc_parser_t *parser)
{
    u_char  *p;

    p = parser->prefix;

    if (p[0] != 0) {
        parser->error = "a message is compressed, "
                        "although only \"identity\" was offered";
        return NGX_ERROR;
    }

    parser->need = ((size_t) p[1] << 24) | ((size_t) p[2] << 16)
                   | ((size_t) p[3] << 8) | p[4];
    parser->got = 0;

    if (parser->need > NGX_HTTP_PD_GRPC_MESSAGE_MAX) {
        parser->error = "a message is longer than 4 MiB";
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_grpc_append(ngx_http_pd_grpc_parser_t *parser, u_char *p,
    size_t len)
{
    size_t   size;
    u_char  *buf;

    if (parser->got == 0 && parser->size > NGX_HTTP_PD_GRPC_KEEP) {
        ngx_http_pd_grpc_free(parser);
    }

    if (parser->size < parser->got + len) {

        size = ngx_max(2 * (parser->got + len), NGX_HTTP_PD_GRPC_MIN);

        buf = ngx_alloc(size, parser->log);
        if (buf == NULL) {
            return NGX_ERROR;
        }

        if (parser->buf) {
            ngx_memcpy(buf, parser->buf, parser->got);
            ngx_free(parser->buf);
        }

        parser->buf = buf;
        parser->size = size;
    }

    ngx_memcpy(parser->buf + parser->got, p, len);
    parser->got += len;

    return NGX_OK;
}


void
ngx_http_pd_grpc_free(ngx_http_pd_grpc_parser_t *parser)
{
    if (parser->buf) {
        ngx_free(parser->buf);
        parser->buf = NULL;
        parser->size = 0;
    }
}


u_char *
ngx_http_pd_grpc_prefix(u_char *p, size_t len)
{
    *p++ = 0;
    *p++ = (u_char) (len >> 24);
    *p++ = (u_char) (len >> 16);
    *p++ = (u_char) (len >> 8);
    *p++ = (u_char) len;

    return p;
}
