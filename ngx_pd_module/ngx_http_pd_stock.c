
/*
 * The stock of buffers: see the header.
 */


#include "ngx_http_pd_stock.h"


/* link and buffer leave and come back together, so they are one piece */

typedef struct {
    ngx_chain_t     link;                  /* first */
    ngx_buf_t       buf;
    u_char          head[NGX_HTTP_PD_STOCK_HEAD];
    u_char          data[NGX_HTTP_PD_STOCK_BUFFER];
    u_char          tail[NGX_HTTP_PD_STOCK_TAIL];
} ngx_http_pd_stock_item_t;


static ngx_chain_t  *ngx_http_pd_stock_free;
static ngx_uint_t    ngx_http_pd_stock_n;


ngx_chain_t *
ngx_http_pd_stock_take(void)
{
    ngx_buf_t                 *b;
    ngx_chain_t               *cl;
    ngx_http_pd_stock_item_t  *item;

    cl = ngx_http_pd_stock_free;

    if (cl) {
        ngx_http_pd_stock_free = cl->next;
        ngx_http_pd_stock_n--;

        b = cl->buf;

    } else {
        item = ngx_alloc(sizeof(ngx_http_pd_stock_item_t), ngx_cycle->log);
        if (item == NULL) {
            return NULL;
        }

        cl = &item->link;
        b = &item->buf;

        cl->buf = b;

        ngx_memzero(b, sizeof(ngx_buf_t));

        b->start = item->data;
        b->end = item->data + NGX_HTTP_PD_STOCK_BUFFER;
        b->temporary = 1;
        b->tag = (ngx_buf_tag_t) &ngx_http_pd_stock_take;
    }

    cl->next = NULL;

    b->pos = b->start;
    b->last = b->start;
    b->flush = 0;
    b->last_buf = 0;
    b->last_in_chain = 0;

    return cl;
}


ngx_uint_t
ngx_http_pd_stock_whole(ngx_buf_t *b)
{
    ngx_http_pd_stock_item_t  *item;

    if (b->tag != (ngx_buf_tag_t) &ngx_http_pd_stock_take) {
        return 0;
    }

    item = (ngx_http_pd_stock_item_t *)
               (b->start - offsetof(ngx_http_pd_stock_item_t, data));

    return b == &item->buf && b->pos == b->start && b->last <= b->end;
}


void
ngx_http_pd_stock_give(ngx_chain_t *in)
{
    ngx_chain_t  *cl;

    while (in) {
        cl = in;
        in = in->next;

        if (ngx_http_pd_stock_n == NGX_HTTP_PD_STOCK_KEEP) {
            ngx_free(cl);
            continue;
        }

        cl->next = ngx_http_pd_stock_free;
        ngx_http_pd_stock_free = cl;
        ngx_http_pd_stock_n++;
    }
}
