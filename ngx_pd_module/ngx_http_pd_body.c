
/*
 * The body: read unbuffered, and fed to the parser as it comes.
 *
 * A body may be megabytes and may all be there at once, so no more than 64 KB
 * of it are parsed in one turn of the event loop; then the others have theirs.
 */


#include "ngx_http_pd_api.h"


#define NGX_HTTP_PD_BODY_TURN   65536
#define NGX_HTTP_PD_BODY_PAGE   4096    /* of a file, at a time */


static ngx_int_t ngx_http_pd_body_copy(ngx_http_pd_ctx_t *ctx);
static void ngx_http_pd_body_start(ngx_http_request_t *r);
static void ngx_http_pd_body_read(ngx_http_request_t *r);
static ngx_int_t ngx_http_pd_body_turn(ngx_http_pd_ctx_t *ctx);
static ngx_int_t ngx_http_pd_body_feed(ngx_http_pd_ctx_t *ctx, size_t *room);
static ngx_int_t ngx_http_pd_body_file(ngx_http_pd_ctx_t *ctx, ngx_buf_t *b,
    size_t *room);
static ngx_int_t ngx_http_pd_body_end(ngx_http_pd_ctx_t *ctx);


ngx_int_t
ngx_http_pd_body(ngx_http_pd_ctx_t *ctx, ngx_uint_t surface)
{
    off_t                size;
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    r = ctx->request;

    /* read by another module, which may want to use it again */

    if (r->request_body && ngx_http_pd_body_copy(ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    size = ngx_max(r->headers_in.content_length_n, 0);

    ctx->parse = ngx_http_pd_openai_create(&ctx->openai, &ctx->error, surface,
                                           size, r->pool, r->connection->log);
    if (ctx->parse == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->request_body_no_buffering = 1;

    rc = ngx_http_read_client_request_body(r, ngx_http_pd_body_start);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        return rc;
    }

    return NGX_DONE;
}


static ngx_int_t
ngx_http_pd_body_copy(ngx_http_pd_ctx_t *ctx)
{
    ngx_buf_t           *b;
    ngx_chain_t         *in, *cl, **last;
    ngx_http_request_t  *r;

    r = ctx->request;
    in = r->request_body->bufs;

    if (in == NULL && r->headers_in.content_length_n > 0) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "pd: nothing is left of the request's body");
        return NGX_ERROR;
    }

    ctx->body_shared = 1;

    for (last = &ctx->body; in; in = in->next) {

        cl = ngx_alloc_chain_link(r->pool);
        b = ngx_alloc_buf(r->pool);

        if (cl == NULL || b == NULL) {
            return NGX_ERROR;
        }

        *b = *in->buf;

        cl->buf = b;
        cl->next = NULL;

        *last = cl;
        last = &cl->next;
    }

    return NGX_OK;
}


static void
ngx_http_pd_body_start(ngx_http_request_t *r)
{
    r->read_event_handler = ngx_http_pd_body_read;
    r->write_event_handler = ngx_http_request_empty_handler;

    ngx_http_pd_body_read(r);
}


static void
ngx_http_pd_body_read(ngx_http_request_t *r)
{
    ngx_int_t           rc;
    ngx_http_pd_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_pd_module);

    rc = ngx_http_pd_body_turn(ctx);

    if (rc == NGX_AGAIN) {
        return;
    }

    if (rc == NGX_OK) {
        rc = ngx_http_pd_body_end(ctx);
    }

    switch (rc) {

    case NGX_OK:
        ngx_http_pd_request_run(ctx);
        return;

    case NGX_ABORT:
        ngx_http_pd_request_refuse(ctx);
        return;

    default:
        ngx_http_finalize_request(r, rc);
        return;
    }
}


/*
 * NGX_OK: that was all; NGX_AGAIN: an event will call again; NGX_ABORT:
 * refused, see ctx->error; else a status.
 */

static ngx_int_t
ngx_http_pd_body_turn(ngx_http_pd_ctx_t *ctx)
{
    size_t               room;
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    r = ctx->request;
    room = NGX_HTTP_PD_BODY_TURN;

    for ( ;; ) {

        if (!ctx->body_shared && r->request_body->bufs) {
            ctx->body = r->request_body->bufs;
            r->request_body->bufs = NULL;
        }

        rc = ngx_http_pd_body_feed(ctx, &room);

        if (rc == NGX_AGAIN) {

            /* not to the events of this turn, which are run until none is */

            ngx_post_event(r->connection->read, &ngx_posted_next_events);
            return NGX_AGAIN;
        }

        if (rc != NGX_OK || !r->reading_body) {
            return rc;
        }

        rc = ngx_http_read_unbuffered_request_body(r);

        if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
            return rc;
        }

        if (rc == NGX_AGAIN && r->request_body->bufs == NULL) {
            return NGX_AGAIN;
        }
    }
}


/* what has arrived; NGX_AGAIN: there is more than there is room for */

static ngx_int_t
ngx_http_pd_body_feed(ngx_http_pd_ctx_t *ctx, size_t *room)
{
    size_t        size;
    ngx_int_t     rc;
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    while (ctx->body) {
        cl = ctx->body;
        b = cl->buf;

        while (ngx_buf_size(b)) {

            if (*room == 0) {
                return NGX_AGAIN;
            }

            if (!ngx_buf_in_memory(b)) {
                rc = ngx_http_pd_body_file(ctx, b, room);

                if (rc != NGX_OK) {
                    return rc;
                }

                continue;
            }

            size = ngx_min((size_t) (b->last - b->pos), *room);

            rc = ngx_http_pd_openai_feed(ctx->parse, b->pos, b->pos + size);

            if (rc != NGX_OK) {
                return rc;
            }

            b->pos += size;
            *room -= size;
        }

        ctx->body = cl->next;
        ngx_free_chain(ctx->request->pool, cl);
    }

    return NGX_OK;
}


/* a part of a body that another module had read to a file */

static ngx_int_t
ngx_http_pd_body_file(ngx_http_pd_ctx_t *ctx, ngx_buf_t *b, size_t *room)
{
    u_char     page[NGX_HTTP_PD_BODY_PAGE];
    size_t     size;
    ssize_t    n;
    ngx_int_t  rc;

    size = (size_t) ngx_min(b->file_last - b->file_pos,
                            (off_t) ngx_min(sizeof(page), *room));

    n = ngx_read_file(b->file, page, size, b->file_pos);

    if (n == NGX_ERROR || n == 0) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_pd_openai_feed(ctx->parse, page, page + n);

    b->file_pos += n;
    *room -= n;

    return rc;
}


static ngx_int_t
ngx_http_pd_body_end(ngx_http_pd_ctx_t *ctx)
{
    ctx->body_read = 1;

    /* nothing more is to come, so a close need not wait for it */

    ctx->request->lingering_close = 0;

    return ngx_http_pd_openai_end(ctx->parse);
}
