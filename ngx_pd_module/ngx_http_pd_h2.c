
/*
 * A gRPC stream over HTTP/2; this file moves the bytes.
 *
 *     c->recv --> frames --> DATA --> [0][length][message] --> message()
 *     c->send <-- out buffer <-- frames <-- DATA <-- fill()
 *
 * What arrives is read always and at once, so that the peer is never held up
 * by our clients.  What goes out is asked for only when the connection and the
 * peer's window take it, so that nothing but one buffer waits here, and late
 * decisions (a cancel) still overtake what was not sent.
 *
 * The connection is "idle" in nginx's sense: it never holds up a graceful
 * exit.
 */


#include "ngx_http_pd_h2_session.h"


#define NGX_HTTP_PD_H2_IN         65536
#define NGX_HTTP_PD_H2_TURNS      16          /* reads before others' turn */
#define NGX_HTTP_PD_H2_CONNECT    5000        /* ms */


static void ngx_http_pd_h2_connect_handler(ngx_event_t *ev);
static ngx_int_t ngx_http_pd_h2_test_connect(ngx_http_pd_h2_t *h2);
static void ngx_http_pd_h2_read_handler(ngx_event_t *rev);
static void ngx_http_pd_h2_write_handler(ngx_event_t *wev);
static ngx_int_t ngx_http_pd_h2_recv(ngx_http_pd_h2_t *h2);
static ngx_int_t ngx_http_pd_h2_send(ngx_http_pd_h2_t *h2);
static void ngx_http_pd_h2_errno(ngx_http_pd_h2_t *h2, const char *what,
    ngx_err_t err);
static void ngx_http_pd_h2_fail(ngx_http_pd_h2_t *h2);


ngx_http_pd_h2_t *
ngx_http_pd_h2_open(ngx_addr_t *addr, ngx_str_t *name, const char *path,
    const ngx_http_pd_h2_handlers_t *handlers, void *data, ngx_log_t *log,
    ngx_str_t *why)
{
    ngx_int_t               rc;
    ngx_pool_t             *pool;
    ngx_connection_t       *c;
    ngx_http_pd_h2_t       *h2;
    ngx_peer_connection_t   peer;

    ngx_str_set(why, "no memory");

    pool = ngx_create_pool(1024, log);
    if (pool == NULL) {
        return NULL;
    }

    h2 = ngx_pcalloc(pool, sizeof(ngx_http_pd_h2_t));
    if (h2 == NULL) {
        ngx_destroy_pool(pool);
        return NULL;
    }

    h2->pool = pool;
    h2->log = log;
    h2->name = name;
    h2->path = path;
    h2->handlers = handlers;
    h2->data = data;
    h2->local = (addr->sockaddr->sa_family == AF_UNIX);
    h2->grpc_status = -1;
    h2->parser.message = handlers->message;
    h2->parser.data = data;
    h2->parser.log = log;

    ngx_memzero(&peer, sizeof(ngx_peer_connection_t));

    peer.sockaddr = addr->sockaddr;
    peer.socklen = addr->socklen;
    peer.name = name;
    peer.get = ngx_event_get_peer;
    peer.log = log;
    peer.log_error = NGX_ERROR_INFO;

    rc = ngx_event_connect_peer(&peer);

    if (rc == NGX_ERROR || rc == NGX_DECLINED || peer.connection == NULL) {

        if (peer.connection) {
            ngx_close_connection(peer.connection);
        }

        ngx_destroy_pool(pool);
        ngx_str_set(why, "cannot connect");
        return NULL;
    }

    c = peer.connection;

    h2->connection = c;

    c->data = h2;
    c->pool = pool;
    c->idle = 1;
    c->log = log;
    c->read->log = log;
    c->write->log = log;

    c->read->handler = ngx_http_pd_h2_connect_handler;
    c->write->handler = ngx_http_pd_h2_connect_handler;

    c->write->cancelable = 1;
    ngx_add_timer(c->write, NGX_HTTP_PD_H2_CONNECT);

    if (rc == NGX_OK) {
        ngx_post_event(c->write, &ngx_posted_events);
    }

    return h2;
}


static void
ngx_http_pd_h2_connect_handler(ngx_event_t *ev)
{
    ngx_connection_t  *c;
    ngx_http_pd_h2_t  *h2;

    c = ev->data;
    h2 = c->data;

    if (c->close) {
        c->close = 0;
        h2->handlers->shutdown(h2->data, c->error);
        return;
    }

    if (ev->timedout) {
        ngx_http_pd_h2_why(h2, "connecting took too long");
        ngx_http_pd_h2_fail(h2);
        return;
    }

    if (ngx_http_pd_h2_test_connect(h2) != NGX_OK
        || ngx_http_pd_h2_session_start(h2) != NGX_OK)
    {
        ngx_http_pd_h2_fail(h2);
        return;
    }

    ngx_del_timer(c->write);

    c->read->handler = ngx_http_pd_h2_read_handler;
    c->write->handler = ngx_http_pd_h2_write_handler;

    if (c->read->ready) {
        ngx_post_event(c->read, &ngx_posted_events);
    }

    if (ngx_http_pd_h2_send(h2) != NGX_OK) {
        ngx_http_pd_h2_fail(h2);
    }
}


static ngx_int_t
ngx_http_pd_h2_test_connect(ngx_http_pd_h2_t *h2)
{
    int        err;
    socklen_t  len;

    err = 0;
    len = sizeof(int);

    if (getsockopt(h2->connection->fd, SOL_SOCKET, SO_ERROR, (void *) &err,
                   &len)
        == -1)
    {
        err = ngx_socket_errno;
    }

    if (err) {
        ngx_http_pd_h2_errno(h2, "connect() failed", err);
        return NGX_ERROR;
    }

    return NGX_OK;
}


void
ngx_http_pd_h2_flush(ngx_http_pd_h2_t *h2)
{
    if (h2->session && ngx_http_pd_h2_send(h2) != NGX_OK) {
        ngx_http_pd_h2_fail(h2);
    }
}


void
ngx_http_pd_h2_close(ngx_http_pd_h2_t *h2)
{
    if (h2->session) {
        nghttp2_session_del(h2->session);
    }

    ngx_http_pd_grpc_free(&h2->parser);

    ngx_close_connection(h2->connection);
    ngx_destroy_pool(h2->pool);
}


static void
ngx_http_pd_h2_read_handler(ngx_event_t *rev)
{
    ngx_connection_t  *c;
    ngx_http_pd_h2_t  *h2;

    c = rev->data;
    h2 = c->data;

    if (c->close) {
        c->close = 0;
        h2->handlers->shutdown(h2->data, c->error);
        return;
    }

    if (ngx_http_pd_h2_recv(h2) != NGX_OK
        || ngx_http_pd_h2_send(h2) != NGX_OK
        || h2->ended)
    {
        ngx_http_pd_h2_fail(h2);
    }
}


static void
ngx_http_pd_h2_write_handler(ngx_event_t *wev)
{
    ngx_connection_t  *c;
    ngx_http_pd_h2_t  *h2;

    c = wev->data;
    h2 = c->data;

    /* epoll says "writable" along with each thing that is read */

    if (h2->blocked && ngx_http_pd_h2_send(h2) != NGX_OK) {
        ngx_http_pd_h2_fail(h2);
    }
}


static ngx_int_t
ngx_http_pd_h2_recv(ngx_http_pd_h2_t *h2)
{
    ssize_t            n;
    ngx_uint_t         turn;
    ngx_connection_t  *c;

    static u_char      buffer[NGX_HTTP_PD_H2_IN];

    c = h2->connection;

    for (turn = 0; turn < NGX_HTTP_PD_H2_TURNS; turn++) {

        n = c->recv(c, buffer, sizeof(buffer));

        if (n == NGX_AGAIN) {
            return ngx_handle_read_event(c->read, 0);
        }

        if (n == 0) {
            ngx_http_pd_h2_why(h2, "the worker has closed the connection");
            return NGX_ERROR;
        }

        if (n == NGX_ERROR) {
            ngx_http_pd_h2_errno(h2, "recv() failed", ngx_socket_errno);
            return NGX_ERROR;
        }

        if (ngx_http_pd_h2_frames_read(h2, buffer, n) != NGX_OK) {
            return NGX_ERROR;
        }

        if (h2->ended) {
            return NGX_OK;
        }

        if (!c->read->ready) {
            return ngx_handle_read_event(c->read, 0);
        }
    }

    /* others' turn */

    ngx_post_event(c->read, &ngx_posted_next_events);

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_h2_send(ngx_http_pd_h2_t *h2)
{
    ssize_t            n;
    ngx_connection_t  *c;

    c = h2->connection;

    h2->blocked = 0;

    for ( ;; ) {

        if (h2->out_pos == h2->out_last) {

            if (ngx_http_pd_h2_frames_write(h2) != NGX_OK) {
                return NGX_ERROR;
            }

            if (h2->out_pos == h2->out_last) {
                break;
            }
        }

        n = c->send(c, h2->out_pos, h2->out_last - h2->out_pos);

        if (n == NGX_AGAIN) {
            h2->blocked = 1;
            break;
        }

        if (n == NGX_ERROR) {
            ngx_http_pd_h2_errno(h2, "send() failed", ngx_socket_errno);
            return NGX_ERROR;
        }

        h2->out_pos += n;
    }

    if (h2->over) {
        ngx_http_pd_h2_why(h2, "HTTP/2: the session has ended");
        return NGX_ERROR;
    }

    return ngx_handle_write_event(c->write, 0);
}


void
ngx_http_pd_h2_why(ngx_http_pd_h2_t *h2, const char *fmt, ...)
{
    u_char   *p;
    va_list   args;

    va_start(args, fmt);
    p = ngx_vslprintf(h2->why_text, h2->why_text + sizeof(h2->why_text), fmt,
                      args);
    va_end(args);

    h2->why.data = h2->why_text;
    h2->why.len = p - h2->why_text;
}


static void
ngx_http_pd_h2_errno(ngx_http_pd_h2_t *h2, const char *what, ngx_err_t err)
{
    u_char  *p, text[128];

    p = ngx_strerror(err, text, sizeof(text));

    ngx_http_pd_h2_why(h2, "%s (%d: %*s)", what, err, (size_t) (p - text),
                       text);
}


static void
ngx_http_pd_h2_fail(ngx_http_pd_h2_t *h2)
{
    void                             *data;
    u_char                           *p, *last;
    u_char                            text[sizeof(h2->why_text)];
    ngx_str_t                         why;
    const ngx_http_pd_h2_handlers_t  *handlers;

    if (h2->why.len == 0) {
        ngx_http_pd_h2_why(h2, "internal error");
    }

    /* a peer's words go to the log */

    why.data = text;
    why.len = h2->why.len;
    ngx_memcpy(text, h2->why_text, why.len);

    for (p = text, last = text + why.len; p < last; p++) {
        if (*p < 0x20 || *p > 0x7e) {
            *p = '?';
        }
    }

    handlers = h2->handlers;
    data = h2->data;

    ngx_http_pd_h2_close(h2);

    handlers->closed(data, &why);
}
