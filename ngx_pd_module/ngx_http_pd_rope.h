
/*
 * A rope: bytes of unknown number in a chain of buffers.
 *
 * Prompts on their way in and answers on their way out are written once, in
 * order, into buffers that never move.  Room for a length that is known only
 * later is reserved in front and filled in afterwards.
 *
 *     first                        last
 *     [############|  ] -> [#######|          ]
 *                   `- too little for the reserve() that came next
 *
 * A rope that passes things on (a stream's) takes its buffers from the stock,
 * all of one size, so that the pool does not grow with what passes through;
 * whoever takes them out of the rope gives them back there.  Another one (a
 * prompt's) has its buffers in the pool, and doubles them as it grows.
 */


#ifndef _NGX_HTTP_PD_ROPE_H_INCLUDED_
#define _NGX_HTTP_PD_ROPE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_HTTP_PD_ROPE_MAX_BUFFER  65536


typedef struct {
    ngx_pool_t      *pool;      /* NULL: ngx_http_pd_stock.h */
    ngx_chain_t     *first;
    ngx_chain_t     *last;
    size_t           buffer;    /* bytes of the next buffer */
    size_t           size;      /* bytes written so far */
} ngx_http_pd_rope_t;


/* room for "len" (<= rope->buffer) bytes in one piece, counted as written */
u_char *ngx_http_pd_rope_reserve(ngx_http_pd_rope_t *rope, size_t len);

/* appends what the last buffer may have no room for */
ngx_int_t ngx_http_pd_rope_more(ngx_http_pd_rope_t *rope, u_char *p,
    size_t len);

/* most has room, and much is a literal, whose length the compiler knows */

static ngx_inline ngx_int_t
ngx_http_pd_rope_append(ngx_http_pd_rope_t *rope, u_char *p, size_t len)
{
    ngx_buf_t  *b;

    if (len && rope->last) {
        b = rope->last->buf;

        if (len <= (size_t) (b->end - b->last)) {
            b->last = ngx_cpymem(b->last, p, len);
            rope->size += len;

            return NGX_OK;
        }
    }

    return ngx_http_pd_rope_more(rope, p, len);
}

/* "p" as the inside of a JSON string; what is not UTF-8 becomes U+FFFD */
ngx_int_t ngx_http_pd_rope_escape(ngx_http_pd_rope_t *rope, u_char *p,
    size_t len);

#define ngx_http_pd_rope_literal(rope, text)                                  \
    ngx_http_pd_rope_append(rope, (u_char *) text, sizeof(text) - 1)

#define ngx_http_pd_rope_text(rope, text)                                     \
    ngx_http_pd_rope_append(rope, (u_char *) (text), ngx_strlen(text))

ngx_int_t ngx_http_pd_rope_number(ngx_http_pd_rope_t *rope, ngx_uint_t n);

/* the number's digits, NGX_INT_T_LEN at most; returns what lies behind them */
u_char *ngx_http_pd_rope_digits(u_char *p, ngx_uint_t n);

/* moves all of "tail" behind "rope", without a copy */
void ngx_http_pd_rope_join(ngx_http_pd_rope_t *rope, ngx_http_pd_rope_t *tail);

/* hands the buffers over and leaves the rope empty; NULL if it was */
ngx_chain_t *ngx_http_pd_rope_take(ngx_http_pd_rope_t *rope);


#endif /* _NGX_HTTP_PD_ROPE_H_INCLUDED_ */
