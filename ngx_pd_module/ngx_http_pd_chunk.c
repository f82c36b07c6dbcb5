
/*
 * Events framed as chunks where they lie.
 *
 *     [ "5f" CR LF ] data: {"id": ... }\n\n [ CR LF ]      one buffer
 *       its head                               its tail
 *
 * nginx's chunked filter puts a buffer before and one behind what it frames;
 * to lead three through the writing costs as much as all else that an event
 * needs.  A buffer of the stock has room at both ends, so one that has come
 * through all other filters untouched is framed in place and written.  What
 * is something else goes to the chunked filter, as ever: so HTTP/2, a filter
 * that rewrites, the last chunk, and whatever any other location sends.
 *
 * For that this is a module of its own, which nginx has to call just before
 * its chunked filter.  Where it does not lie so, it does nothing.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_pd_stock.h"


static ngx_int_t ngx_http_pd_chunk_init(ngx_conf_t *cf);
static ngx_int_t ngx_http_pd_chunk_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in);
static void ngx_http_pd_chunk_frame(ngx_buf_t *b);


static ngx_http_module_t  ngx_http_pd_chunk_filter_module_ctx = {
    NULL,                                  /* preconfiguration */
    ngx_http_pd_chunk_init,                /* postconfiguration */

    NULL,                                  /* create main configuration */
    NULL,                                  /* init main configuration */

    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */

    NULL,                                  /* create location configuration */
    NULL                                   /* merge location configuration */
};


ngx_module_t  ngx_http_pd_chunk_filter_module = {
    NGX_MODULE_V1,
    &ngx_http_pd_chunk_filter_module_ctx,  /* module context */
    NULL,                                  /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    NULL,                                  /* init module */
    NULL,                                  /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    NULL,                                  /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static ngx_http_output_body_filter_pt    ngx_http_next_body_filter;


/* between the chunked filter and what is called before it */

static ngx_int_t
ngx_http_pd_chunk_init(ngx_conf_t *cf)
{
    ngx_uint_t     i, n;
    ngx_module_t **modules;

    static char  *below[] = {
        "ngx_http_chunked_filter_module",
        "ngx_http_header_filter_module",
        "ngx_http_write_filter_module"
    };

    n = sizeof(below) / sizeof(below[0]);

    modules = cf->cycle->modules;

    for (i = 0; modules[i] != &ngx_http_pd_chunk_filter_module; i++) {
        /* void */
    }

    if (i < n) {
        return NGX_OK;
    }

    for (modules += i; n; n--) {
        if (ngx_strcmp(modules[-(ngx_int_t) n]->name, below[n - 1]) != 0) {
            return NGX_OK;
        }
    }

    ngx_http_next_body_filter = ngx_http_top_body_filter;
    ngx_http_top_body_filter = ngx_http_pd_chunk_body_filter;

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_chunk_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_buf_t  *b;

    if (!r->chunked || r->header_only || in == NULL || in->next) {
        return ngx_http_next_body_filter(r, in);
    }

    b = in->buf;

    if (!ngx_http_pd_stock_whole(b) || b->last_buf || b->pos == b->last) {
        return ngx_http_next_body_filter(r, in);
    }

    ngx_http_pd_chunk_frame(b);

    return ngx_http_write_filter(r, in);
}


static void
ngx_http_pd_chunk_frame(ngx_buf_t *b)
{
    size_t   size;
    u_char  *p;

    static u_char  hex[] = "0123456789abcdef";

    size = b->last - b->pos;
    p = b->pos;

    *--p = LF;
    *--p = CR;

    do {
        *--p = hex[size & 0xf];
        size >>= 4;
    } while (size);

    b->pos = p;

    *b->last++ = CR;
    *b->last++ = LF;
}
