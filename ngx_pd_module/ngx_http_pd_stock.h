
/*
 * Buffers for what passes through: one stock for all streams of a process.
 *
 * An event lies in a buffer from its first byte until the client's socket has
 * taken it, which is nearly always one turn.  So a stream has no buffer while
 * it waits for its next token; only one whose client reads slowly keeps some.
 *
 *     take() -- rope, event -- output filters -- give(), if they hold nothing
 *
 * The stock keeps a few and gives the rest back to the heap.
 *
 * Before and behind each buffer's room there are a few bytes more, in which
 * what it holds can be framed where it lies (ngx_http_pd_chunk.c).
 */


#ifndef _NGX_HTTP_PD_STOCK_H_INCLUDED_
#define _NGX_HTTP_PD_STOCK_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_HTTP_PD_STOCK_BUFFER  1024     /* bytes of each */
#define NGX_HTTP_PD_STOCK_KEEP    64       /* buffers that wait for use */
#define NGX_HTTP_PD_STOCK_HEAD    6        /* bytes before each: "400" CR LF */
#define NGX_HTTP_PD_STOCK_TAIL    2        /* bytes behind each */


/* a link with an empty buffer; NULL: no memory */
ngx_chain_t *ngx_http_pd_stock_take(void);

/* whether that is one, no other's copy of it, and none of it was taken away */
ngx_uint_t ngx_http_pd_stock_whole(ngx_buf_t *b);

/* all of a chain of such links, which nobody may look at any more */
void ngx_http_pd_stock_give(ngx_chain_t *in);


#endif /* _NGX_HTTP_PD_STOCK_H_INCLUDED_ */
