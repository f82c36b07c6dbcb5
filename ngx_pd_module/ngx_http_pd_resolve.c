
/*
 * A worker's name: see the header.
 *
 * A name that cannot be resolved keeps its last addresses: a name server that
 * is away takes no worker along.
 */


#include "ngx_http_pd_resolve.h"


#define NGX_HTTP_PD_RESOLVE_TIMEOUT    5000    /* ms */
#define NGX_HTTP_PD_RESOLVE_AGAIN      1       /* s, after a failure */


static void ngx_http_pd_resolve_handler(ngx_resolver_ctx_t *ctx);
static ngx_int_t ngx_http_pd_resolve_take(ngx_http_pd_attach_t *attach,
    ngx_resolver_ctx_t *ctx);


ngx_int_t
ngx_http_pd_resolve(ngx_http_pd_attach_t *attach)
{
    ngx_resolver_ctx_t  *ctx;

    if (attach->host.len == 0 || attach->valid > ngx_time()) {
        return NGX_OK;
    }

    if (attach->resolving) {
        return NGX_AGAIN;
    }

    ctx = ngx_resolve_start(attach->process->conf->resolver, NULL);

    if (ctx == NULL || ctx == NGX_NO_RESOLVER) {
        return NGX_ERROR;
    }

    ctx->name = attach->host;
    ctx->handler = ngx_http_pd_resolve_handler;
    ctx->data = attach;
    ctx->timeout = NGX_HTTP_PD_RESOLVE_TIMEOUT;
    ctx->cancelable = 1;

    attach->resolving = ctx;

    if (ngx_resolve_name(ctx) != NGX_OK) {
        attach->resolving = NULL;
        return NGX_ERROR;
    }

    return NGX_AGAIN;
}


void
ngx_http_pd_resolve_end(ngx_http_pd_attach_t *attach)
{
    if (attach->resolving) {
        ngx_resolve_name_done(attach->resolving);
        attach->resolving = NULL;
    }

    if (attach->names) {
        ngx_destroy_pool(attach->names);
        attach->names = NULL;
    }
}


static void
ngx_http_pd_resolve_handler(ngx_resolver_ctx_t *ctx)
{
    ngx_str_t              why;
    ngx_http_pd_attach_t  *attach;

    attach = ctx->data;

    ngx_str_null(&why);

    if (ctx->state) {
        why.data = (u_char *) ngx_resolver_strerror(ctx->state);
        why.len = ngx_strlen(why.data);

    } else if (ngx_http_pd_resolve_take(attach, ctx) != NGX_OK) {
        ngx_str_set(&why, "no memory");
    }

    attach->valid = why.len ? ngx_time() + NGX_HTTP_PD_RESOLVE_AGAIN
                            : ngx_max(ctx->valid, ngx_time() + 1);
    attach->resolving = NULL;

    ngx_resolve_name_done(ctx);

    attach->resolved(attach, &why);
}


/* the resolver's own addresses end with its answer, and have no port */

static ngx_int_t
ngx_http_pd_resolve_take(ngx_http_pd_attach_t *attach,
    ngx_resolver_ctx_t *ctx)
{
    ngx_uint_t        i;
    ngx_addr_t       *addrs;
    ngx_pool_t       *pool;
    struct sockaddr  *sockaddr;

    pool = ngx_create_pool(512, attach->process->log);
    if (pool == NULL) {
        return NGX_ERROR;
    }

    addrs = ngx_pcalloc(pool, ctx->naddrs * sizeof(ngx_addr_t));
    if (addrs == NULL) {
        ngx_destroy_pool(pool);
        return NGX_ERROR;
    }

    for (i = 0; i < ctx->naddrs; i++) {

        sockaddr = ngx_palloc(pool, ctx->addrs[i].socklen);
        if (sockaddr == NULL) {
            ngx_destroy_pool(pool);
            return NGX_ERROR;
        }

        ngx_memcpy(sockaddr, ctx->addrs[i].sockaddr, ctx->addrs[i].socklen);
        ngx_inet_set_port(sockaddr, attach->port);

        addrs[i].sockaddr = sockaddr;
        addrs[i].socklen = ctx->addrs[i].socklen;
        addrs[i].name = attach->name;
    }

    if (attach->names) {
        ngx_destroy_pool(attach->names);
    }

    attach->names = pool;
    attach->addrs = addrs;
    attach->naddrs = ctx->naddrs;
    attach->next_addr = 0;

    return NGX_OK;
}


ngx_uint_t
ngx_http_pd_resolve_holds(ngx_http_pd_attach_t *attach)
{
    ngx_uint_t  i;

    for (i = 0; i < attach->naddrs; i++) {

        if (ngx_cmp_sockaddr(attach->addrs[i].sockaddr,
                             attach->addrs[i].socklen,
                             &attach->peer.sockaddr, attach->peer_len, 1)
            == NGX_OK)
        {
            return 1;
        }
    }

    return 0;
}
