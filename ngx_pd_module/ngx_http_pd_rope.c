
/*
 * Ropes; see ngx_http_pd_rope.h.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_pd_json.h"
#include "ngx_http_pd_rope.h"
#include "ngx_http_pd_stock.h"


static ngx_buf_t *ngx_http_pd_rope_room(ngx_http_pd_rope_t *rope, size_t len);
static ngx_chain_t *ngx_http_pd_rope_link(ngx_http_pd_rope_t *rope);
static size_t ngx_http_pd_rope_escape_byte(u_char *dst, u_char *p,
    u_char *last, size_t *used);


u_char *
ngx_http_pd_rope_reserve(ngx_http_pd_rope_t *rope, size_t len)
{
    u_char     *p;
    ngx_buf_t  *b;

    b = ngx_http_pd_rope_room(rope, len);
    if (b == NULL) {
        return NULL;
    }

    p = b->last;

    b->last += len;
    rope->size += len;

    return p;
}


ngx_int_t
ngx_http_pd_rope_more(ngx_http_pd_rope_t *rope, u_char *p, size_t len)
{
    size_t      n;
    ngx_buf_t  *b;

    /* an empty string may have no address */

    while (len) {
        b = ngx_http_pd_rope_room(rope, 1);
        if (b == NULL) {
            return NGX_ERROR;
        }

        n = ngx_min(len, (size_t) (b->end - b->last));

        b->last = ngx_cpymem(b->last, p, n);
        rope->size += n;

        p += n;
        len -= n;
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_pd_rope_escape(ngx_http_pd_rope_t *rope, u_char *p, size_t len)
{
    size_t   n, used;
    u_char  *last, *plain, escaped[6];

    if (len == 0) {
        return NGX_OK;
    }

    last = p + len;

    for ( ;; ) {
        plain = ngx_http_pd_json_plain(p, last);

        if (ngx_http_pd_rope_append(rope, p, plain - p) != NGX_OK) {
            return NGX_ERROR;
        }

        if (plain == last) {
            return NGX_OK;
        }

        n = ngx_http_pd_rope_escape_byte(escaped, plain, last, &used);

        if (ngx_http_pd_rope_append(rope, escaped, n) != NGX_OK) {
            return NGX_ERROR;
        }

        p = plain + used;
    }
}


ngx_int_t
ngx_http_pd_rope_number(ngx_http_pd_rope_t *rope, ngx_uint_t n)
{
    u_char  digits[NGX_INT_T_LEN];

    return ngx_http_pd_rope_append(rope, digits,
                                   ngx_http_pd_rope_digits(digits, n)
                                   - digits);
}


u_char *
ngx_http_pd_rope_digits(u_char *p, ngx_uint_t n)
{
    u_char      *last;
    ngx_uint_t   rest;

    last = p;

    for (rest = n; rest >= 10; rest /= 10) {
        last++;
    }

    for (p = last; /* void */; p--) {
        *p = (u_char) ('0' + n % 10);
        n /= 10;

        if (n == 0) {
            return last + 1;
        }
    }
}


void
ngx_http_pd_rope_join(ngx_http_pd_rope_t *rope, ngx_http_pd_rope_t *tail)
{
    if (tail->first == NULL) {
        return;
    }

    if (rope->last) {
        rope->last->next = tail->first;

    } else {
        rope->first = tail->first;
    }

    rope->last = tail->last;
    rope->size += tail->size;

    (void) ngx_http_pd_rope_take(tail);
}


ngx_chain_t *
ngx_http_pd_rope_take(ngx_http_pd_rope_t *rope)
{
    ngx_chain_t  *cl;

    cl = rope->first;

    rope->first = NULL;
    rope->last = NULL;
    rope->size = 0;

    return cl;
}


static ngx_buf_t *
ngx_http_pd_rope_room(ngx_http_pd_rope_t *rope, size_t len)
{
    ngx_chain_t  *cl;

    if (rope->last
        && len <= (size_t) (rope->last->buf->end - rope->last->buf->last))
    {
        return rope->last->buf;
    }

    cl = rope->pool ? ngx_http_pd_rope_link(rope) : ngx_http_pd_stock_take();
    if (cl == NULL) {
        return NULL;
    }

    if (rope->last) {
        rope->last->next = cl;

    } else {
        rope->first = cl;
    }

    rope->last = cl;

    return cl->buf;
}


static ngx_chain_t *
ngx_http_pd_rope_link(ngx_http_pd_rope_t *rope)
{
    ngx_chain_t  *cl;

    cl = ngx_alloc_chain_link(rope->pool);
    if (cl == NULL) {
        return NULL;
    }

    cl->buf = ngx_create_temp_buf(rope->pool, rope->buffer);
    if (cl->buf == NULL) {
        return NULL;
    }

    cl->next = NULL;

    rope->buffer = ngx_min(rope->buffer * 2, NGX_HTTP_PD_ROPE_MAX_BUFFER);

    return cl;
}


/* what cannot stand in a string as it is; returns the escape's length */

static size_t
ngx_http_pd_rope_escape_byte(u_char *dst, u_char *p, u_char *last,
    size_t *used)
{
    static u_char  hex[] = "0123456789abcdef";

    *used = 1;

    switch (*p) {

    case '"':
    case '\\':
        dst[0] = '\\';
        dst[1] = *p;
        return 2;

    case '\n':
        dst[0] = '\\';
        dst[1] = 'n';
        return 2;

    case '\r':
        dst[0] = '\\';
        dst[1] = 'r';
        return 2;

    case '\t':
        dst[0] = '\\';
        dst[1] = 't';
        return 2;

    default:
        break;
    }

    if (*p < 0x20) {
        dst[0] = '\\';
        dst[1] = 'u';
        dst[2] = '0';
        dst[3] = '0';
        dst[4] = hex[*p >> 4];
        dst[5] = hex[*p & 0xf];
        return 6;
    }

    /* one replacement for a broken character, not one for each byte of it */

    while (p + *used < last && (p[*used] & 0xc0) == 0x80) {
        (*used)++;
    }

    dst[0] = 0xef;
    dst[1] = 0xbf;
    dst[2] = 0xbd;

    return 3;
}
