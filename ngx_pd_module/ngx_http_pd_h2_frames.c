
/*
 * The frames that pass all day, by hand: see ngx_http_pd_h2_session.h.
 *
 *     recv --+-- DATA ------------> gRPC's parser
 *            +-- WINDOW_UPDATE ---> how much the peer takes
 *            `-- all other -------> libnghttp2
 *
 * Both are known by their first nine bytes, and mean one thing.  libnghttp2
 * hears nothing of them, in neither direction: the windows are kept here, and
 * of its own frames none counts against them.  DATA that is padded, that ends
 * the stream, or that comes before the response's header, is left to it.
 */


#include "ngx_http_pd_h2_session.h"


#define NGX_HTTP_PD_H2_PAYLOAD       16384         /* of a frame, at most */
#define NGX_HTTP_PD_H2_UPDATE        (NGX_HTTP_PD_H2_HEAD + 4)
#define NGX_HTTP_PD_H2_WINDOW_MAX    0x7fffffff


static ngx_int_t ngx_http_pd_h2_frame_begin(ngx_http_pd_h2_t *h2);
static ngx_int_t ngx_http_pd_h2_frame_payload(ngx_http_pd_h2_t *h2, u_char *p,
    size_t len);
static ngx_int_t ngx_http_pd_h2_window(ngx_http_pd_h2_t *h2);
static ngx_int_t ngx_http_pd_h2_other(ngx_http_pd_h2_t *h2, u_char *p,
    size_t len);
static ngx_int_t ngx_http_pd_h2_write_other(ngx_http_pd_h2_t *h2);
static void ngx_http_pd_h2_write_data(ngx_http_pd_h2_t *h2);
static void ngx_http_pd_h2_write_updates(ngx_http_pd_h2_t *h2);
static u_char *ngx_http_pd_h2_header(u_char *p, size_t len, ngx_uint_t type,
    uint32_t stream);


ngx_int_t
ngx_http_pd_h2_frames_read(ngx_http_pd_h2_t *h2, u_char *p, size_t len)
{
    size_t   n;
    u_char  *last;

    last = p + len;

    while (p < last && !h2->ended) {

        if (h2->head_len < NGX_HTTP_PD_H2_HEAD) {
            n = ngx_min(NGX_HTTP_PD_H2_HEAD - h2->head_len,
                        (size_t) (last - p));

            ngx_memcpy(h2->head + h2->head_len, p, n);

            h2->head_len += n;
            p += n;

            if (h2->head_len < NGX_HTTP_PD_H2_HEAD) {
                return NGX_OK;
            }

            if (ngx_http_pd_h2_frame_begin(h2) != NGX_OK) {
                return NGX_ERROR;
            }
        }

        n = ngx_min(h2->frame_left, (size_t) (last - p));

        h2->frame_left -= n;

        if (n && ngx_http_pd_h2_frame_payload(h2, p, n) != NGX_OK) {
            return NGX_ERROR;
        }

        p += n;

        if (h2->frame_left == 0) {
            h2->head_len = 0;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_h2_frame_begin(ngx_http_pd_h2_t *h2)
{
    u_char    *p;
    uint32_t   stream;

    p = h2->head;

    h2->frame_left = ((size_t) p[0] << 16) | ((size_t) p[1] << 8) | p[2];

    stream = ((uint32_t) (p[5] & 0x7f) << 24) | ((uint32_t) p[6] << 16)
             | ((uint32_t) p[7] << 8) | p[8];

    if (p[3] == NGHTTP2_DATA && p[4] == NGHTTP2_FLAG_NONE
        && stream == (uint32_t) h2->stream && h2->type
        && h2->frame_left <= NGX_HTTP_PD_H2_PAYLOAD)
    {
        h2->frame = NGX_HTTP_PD_H2_DATA;
        h2->received += h2->frame_left;

        if (h2->received > NGX_HTTP_PD_H2_WINDOW) {
            ngx_http_pd_h2_why(h2, "HTTP/2: it sends more than it may");
            return NGX_ERROR;
        }

        return NGX_OK;
    }

    if (p[3] == NGHTTP2_WINDOW_UPDATE && h2->frame_left == 4
        && (stream == 0 || stream == (uint32_t) h2->stream))
    {
        h2->frame = NGX_HTTP_PD_H2_UPDATED;
        h2->updated = stream ? &h2->stream_window : &h2->window;
        h2->increment = 0;

        return NGX_OK;
    }

    h2->frame = NGX_HTTP_PD_H2_OTHER;

    return ngx_http_pd_h2_other(h2, p, NGX_HTTP_PD_H2_HEAD);
}


static ngx_int_t
ngx_http_pd_h2_frame_payload(ngx_http_pd_h2_t *h2, u_char *p, size_t len)
{
    switch (h2->frame) {

    case NGX_HTTP_PD_H2_DATA:
        return ngx_http_pd_h2_message(h2, p, len);

    case NGX_HTTP_PD_H2_UPDATED:

        while (len--) {
            h2->increment = (h2->increment << 8) | *p++;
        }

        return h2->frame_left ? NGX_OK : ngx_http_pd_h2_window(h2);

    default: /* NGX_HTTP_PD_H2_OTHER */
        return ngx_http_pd_h2_other(h2, p, len);
    }
}


static ngx_int_t
ngx_http_pd_h2_window(ngx_http_pd_h2_t *h2)
{
    int64_t  size;

    h2->increment &= NGX_HTTP_PD_H2_WINDOW_MAX;

    *h2->updated += h2->increment;

    size = (h2->updated == &h2->window)
           ? h2->window : h2->initial_window + h2->stream_window;

    if (h2->increment == 0 || size > NGX_HTTP_PD_H2_WINDOW_MAX) {
        ngx_http_pd_h2_why(h2, "HTTP/2: a window update by %uD to %L",
                           h2->increment, size);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_h2_other(ngx_http_pd_h2_t *h2, u_char *p, size_t len)
{
    ssize_t  used;

    h2->other = 1;

    used = nghttp2_session_mem_recv(h2->session, p, len);

    if (used == (ssize_t) len) {
        return NGX_OK;
    }

    if (h2->why.len == 0) {
        ngx_http_pd_h2_why(h2, "HTTP/2: %s",
                           used < 0 ? nghttp2_strerror((int) used)
                                    : "trailing bytes");
    }

    return NGX_ERROR;
}


/* fills the empty buffer with frames, so that many leave by one call */

ngx_int_t
ngx_http_pd_h2_frames_write(ngx_http_pd_h2_t *h2)
{
    h2->out_pos = h2->out;
    h2->out_last = h2->out;

    if (h2->other && ngx_http_pd_h2_write_other(h2) != NGX_OK) {
        return NGX_ERROR;
    }

    if (h2->received >= NGX_HTTP_PD_H2_WINDOW / 2) {
        ngx_http_pd_h2_write_updates(h2);
    }

    if (h2->opened && !h2->ended) {
        ngx_http_pd_h2_write_data(h2);
    }

    return NGX_OK;
}


/* until it has nothing left to say, for now or for ever */

static ngx_int_t
ngx_http_pd_h2_write_other(ngx_http_pd_h2_t *h2)
{
    ssize_t         n;
    u_char         *end;
    const uint8_t  *p;

    end = h2->out + NGX_HTTP_PD_H2_OUT;

    while (end - h2->out_last >= NGX_HTTP_PD_H2_FRAME) {

        n = nghttp2_session_mem_send(h2->session, &p);

        if (n == 0) {
            h2->other = 0;
            h2->over = !nghttp2_session_want_read(h2->session)
                       && !nghttp2_session_want_write(h2->session);
            break;
        }

        if (n < 0 || n > end - h2->out_last) {
            ngx_http_pd_h2_why(h2, "HTTP/2: %s",
                               n < 0 ? nghttp2_strerror((int) n)
                                     : "oversized frame");
            return NGX_ERROR;
        }

        h2->out_last = ngx_cpymem(h2->out_last, p, n);
    }

    return NGX_OK;
}


static void
ngx_http_pd_h2_write_data(ngx_http_pd_h2_t *h2)
{
    size_t   n;
    u_char  *end;
    int64_t  size;

    end = h2->out + NGX_HTTP_PD_H2_OUT;

    while (end - h2->out_last > NGX_HTTP_PD_H2_HEAD) {

        size = end - h2->out_last - NGX_HTTP_PD_H2_HEAD;
        size = ngx_min(size, NGX_HTTP_PD_H2_PAYLOAD);
        size = ngx_min(size, h2->window);
        size = ngx_min(size, h2->initial_window + h2->stream_window);

        if (size <= 0) {
            return;
        }

        n = h2->handlers->fill(h2->data, h2->out_last + NGX_HTTP_PD_H2_HEAD,
                               (size_t) size);
        if (n == 0) {
            return;
        }

        h2->window -= n;
        h2->stream_window -= n;

        h2->out_last = ngx_http_pd_h2_header(h2->out_last, n, NGHTTP2_DATA,
                                             h2->stream)
                       + n;

        if (n < (size_t) size) {
            return;
        }
    }
}


/* what has come is dealt with: the peer may send as much again */

static void
ngx_http_pd_h2_write_updates(ngx_http_pd_h2_t *h2)
{
    u_char      *p;
    uint32_t     stream;
    ngx_uint_t   i;

    p = h2->out_last;

    if (h2->out + NGX_HTTP_PD_H2_OUT - p < 2 * NGX_HTTP_PD_H2_UPDATE) {
        return;
    }

    for (i = 0; i < 2; i++) {
        stream = i ? (uint32_t) h2->stream : 0;

        p = ngx_http_pd_h2_header(p, 4, NGHTTP2_WINDOW_UPDATE, stream);

        *p++ = (u_char) (h2->received >> 24);
        *p++ = (u_char) (h2->received >> 16);
        *p++ = (u_char) (h2->received >> 8);
        *p++ = (u_char) h2->received;
    }

    h2->received = 0;
    h2->out_last = p;
}


static u_char *
ngx_http_pd_h2_header(u_char *p, size_t len, ngx_uint_t type, uint32_t stream)
{
    *p++ = (u_char) (len >> 16);
    *p++ = (u_char) (len >> 8);
    *p++ = (u_char) len;
    *p++ = (u_char) type;
    *p++ = NGHTTP2_FLAG_NONE;
    *p++ = (u_char) (stream >> 24);
    *p++ = (u_char) (stream >> 16);
    *p++ = (u_char) (stream >> 8);
    *p++ = (u_char) stream;

    return p;
}
