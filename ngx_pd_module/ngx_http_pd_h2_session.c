
/*
 * A gRPC stream's protocol: what libnghttp2 is told, and what it tells.  The
 * stream's data is not its business (ngx_http_pd_h2_frames.c): for that of ours
 * it is told to wait, for ever.
 *
 * Whatever the peer does wrong ends as an error of the session, with a reason
 * for the log; nothing here closes the connection, which would be under
 * libnghttp2's feet.
 */


#include "ngx_http_pd_h2_session.h"


#define NGX_HTTP_PD_H2_HEADERS    16384
#define NGX_HTTP_PD_H2_INITIAL    65535        /* a window, unless told so */


static ngx_int_t ngx_http_pd_h2_submit(ngx_http_pd_h2_t *h2);
static int ngx_http_pd_h2_on_header(nghttp2_session *session,
    const nghttp2_frame *frame, const uint8_t *name, size_t name_len,
    const uint8_t *value, size_t value_len, uint8_t flags, void *data);
static int ngx_http_pd_h2_on_frame(nghttp2_session *session,
    const nghttp2_frame *frame, void *data);
static int ngx_http_pd_h2_on_sent(nghttp2_session *session,
    const nghttp2_frame *frame, void *data);
static int ngx_http_pd_h2_on_data(nghttp2_session *session, uint8_t flags,
    int32_t stream, const uint8_t *p, size_t len, void *data);
static int ngx_http_pd_h2_on_close(nghttp2_session *session, int32_t stream,
    uint32_t code, void *data);
static void ngx_http_pd_h2_end(ngx_http_pd_h2_t *h2);
static ssize_t ngx_http_pd_h2_on_wait(nghttp2_session *session, int32_t stream,
    uint8_t *buf, size_t len, uint32_t *flags, nghttp2_data_source *source,
    void *data);


/* over TLS, this would come after the handshake */

ngx_int_t
ngx_http_pd_h2_session_start(ngx_http_pd_h2_t *h2)
{
    int                         rc;
    nghttp2_option             *option;
    nghttp2_settings_entry      settings[3];
    nghttp2_session_callbacks  *callbacks;

    h2->out = ngx_palloc(h2->pool, NGX_HTTP_PD_H2_OUT);
    if (h2->out == NULL) {
        return NGX_ERROR;
    }

    h2->out_pos = h2->out;
    h2->out_last = h2->out;

    h2->window = NGX_HTTP_PD_H2_INITIAL;
    h2->initial_window = NGX_HTTP_PD_H2_INITIAL;
    h2->other = 1;

    if (!h2->local && ngx_tcp_nodelay(h2->connection) != NGX_OK) {
        return NGX_ERROR;
    }

    if (nghttp2_session_callbacks_new(&callbacks) != 0) {
        return NGX_ERROR;
    }

    if (nghttp2_option_new(&option) != 0) {
        nghttp2_session_callbacks_del(callbacks);
        return NGX_ERROR;
    }

    nghttp2_session_callbacks_set_on_header_callback(callbacks,
                                                   ngx_http_pd_h2_on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks,
                                                   ngx_http_pd_h2_on_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks,
                                                   ngx_http_pd_h2_on_frame);
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks,
                                                   ngx_http_pd_h2_on_sent);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks,
                                                   ngx_http_pd_h2_on_close);
    nghttp2_option_set_no_closed_streams(option, 1);

    rc = nghttp2_session_client_new2(&h2->session, callbacks, h2, option);

    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);

    if (rc != 0) {
        return NGX_ERROR;
    }

    settings[0].settings_id = NGHTTP2_SETTINGS_ENABLE_PUSH;
    settings[0].value = 0;
    settings[1].settings_id = NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE;
    settings[1].value = NGX_HTTP_PD_H2_WINDOW;
    settings[2].settings_id = NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE;
    settings[2].value = NGX_HTTP_PD_H2_HEADERS;

    if (nghttp2_submit_settings(h2->session, NGHTTP2_FLAG_NONE, settings, 3)
        != 0
        || nghttp2_session_set_local_window_size(h2->session,
                                                 NGHTTP2_FLAG_NONE, 0,
                                                 NGX_HTTP_PD_H2_WINDOW)
           != 0)
    {
        return NGX_ERROR;
    }

    return ngx_http_pd_h2_submit(h2);
}


static ngx_int_t
ngx_http_pd_h2_submit(ngx_http_pd_h2_t *h2)
{
    ngx_uint_t              i, n;
    nghttp2_nv              headers[8];
    nghttp2_data_provider   provider;

    static ngx_str_t  names[] = {
        ngx_string(":method"), ngx_string("POST"),
        ngx_string(":scheme"), ngx_string("http"),
        ngx_string(":path"), ngx_null_string,
        ngx_string(":authority"), ngx_null_string,
        ngx_string("te"), ngx_string("trailers"),
        ngx_string("content-type"), ngx_string("application/grpc"),
        ngx_string("grpc-accept-encoding"), ngx_string("identity"),
        ngx_string("user-agent"), ngx_string("ngx-pd/1")
    };

    n = sizeof(names) / sizeof(names[0]) / 2;

    for (i = 0; i < n; i++) {
        headers[i].name = names[2 * i].data;
        headers[i].namelen = names[2 * i].len;
        headers[i].value = names[2 * i + 1].data;
        headers[i].valuelen = names[2 * i + 1].len;
        headers[i].flags = NGHTTP2_NV_FLAG_NONE;
    }

    headers[2].value = (u_char *) h2->path;
    headers[2].valuelen = ngx_strlen(h2->path);
    headers[3].value = h2->name->data;
    headers[3].valuelen = h2->name->len;

    if (h2->local) {
        headers[3].value = (u_char *) "localhost";
        headers[3].valuelen = sizeof("localhost") - 1;
    }

    provider.source.ptr = h2;
    provider.read_callback = ngx_http_pd_h2_on_wait;

    h2->stream = nghttp2_submit_request(h2->session, NULL, headers, n,
                                        &provider, NULL);

    return (h2->stream < 0) ? NGX_ERROR : NGX_OK;
}


static int
ngx_http_pd_h2_on_header(nghttp2_session *session, const nghttp2_frame *frame,
    const uint8_t *name, size_t name_len, const uint8_t *value,
    size_t value_len, uint8_t flags, void *data)
{
    ngx_http_pd_h2_t  *h2 = data;

    if (frame->hd.stream_id != h2->stream) {
        return 0;
    }

    if (name_len == 7 && ngx_memcmp(name, ":status", 7) == 0) {

        if (value_len == 3 && ngx_memcmp(value, "200", 3) == 0) {
            h2->status = 1;
            return 0;
        }

        ngx_http_pd_h2_why(h2, "the peer answers HTTP status %*s: "
                           "is it a pd-worker?", value_len, value);
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    }

    if (name_len == 12 && ngx_memcmp(name, "content-type", 12) == 0) {
        h2->type = value_len >= 16
                   && ngx_memcmp(value, "application/grpc", 16) == 0;
        return 0;
    }

    if (name_len == 11 && ngx_memcmp(name, "grpc-status", 11) == 0) {
        h2->grpc_status = ngx_atoi((u_char *) value, value_len);
        return 0;
    }

    if (name_len == 12 && ngx_memcmp(name, "grpc-message", 12) == 0) {
        ngx_http_pd_h2_why(h2, "%*s", ngx_min(value_len, 128), value);
    }

    return 0;
}


static int
ngx_http_pd_h2_on_frame(nghttp2_session *session, const nghttp2_frame *frame,
    void *data)
{
    ngx_http_pd_h2_t  *h2 = data;

    if (frame->hd.type == NGHTTP2_SETTINGS) {
        h2->initial_window = nghttp2_session_get_remote_settings(session,
                                          NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE);
        return 0;
    }

    if (frame->hd.type == NGHTTP2_HEADERS
        && frame->hd.stream_id == h2->stream
        && frame->headers.cat == NGHTTP2_HCAT_RESPONSE
        && !h2->type)
    {
        ngx_http_pd_h2_why(h2, "the peer does not speak gRPC: "
                           "is it a pd-worker?");
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    }

    if (frame->hd.stream_id == h2->stream
        && (frame->hd.type == NGHTTP2_HEADERS
            || frame->hd.type == NGHTTP2_DATA)
        && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM))
    {
        ngx_http_pd_h2_end(h2);
    }

    return 0;
}


static int
ngx_http_pd_h2_on_sent(nghttp2_session *session, const nghttp2_frame *frame,
    void *data)
{
    ngx_http_pd_h2_t  *h2 = data;

    if (frame->hd.type == NGHTTP2_HEADERS
        && frame->hd.stream_id == h2->stream)
    {
        h2->opened = 1;
    }

    return 0;
}


/* of an unusual frame */

static int
ngx_http_pd_h2_on_data(nghttp2_session *session, uint8_t flags, int32_t stream,
    const uint8_t *p, size_t len, void *data)
{
    ngx_http_pd_h2_t  *h2 = data;

    if (stream != h2->stream
        || ngx_http_pd_h2_message(h2, (u_char *) p, len) == NGX_OK)
    {
        return 0;
    }

    return NGHTTP2_ERR_CALLBACK_FAILURE;
}


ngx_int_t
ngx_http_pd_h2_message(ngx_http_pd_h2_t *h2, u_char *p, size_t len)
{
    if (ngx_http_pd_grpc_parse(&h2->parser, p, len) == NGX_OK) {
        return NGX_OK;
    }

    if (h2->parser.error) {
        ngx_http_pd_h2_why(h2, "%s", h2->parser.error);
    }

    return NGX_ERROR;
}


static int
ngx_http_pd_h2_on_close(nghttp2_session *session, int32_t stream,
    uint32_t code, void *data)
{
    ngx_http_pd_h2_t  *h2 = data;

    if (stream == h2->stream && !h2->ended) {
        h2->ended = 1;
        ngx_http_pd_h2_why(h2, "the stream was reset: %s",
                           nghttp2_http2_strerror(code));
    }

    return 0;
}


/* the worker has sent its last; our side is of no use any more */

static void
ngx_http_pd_h2_end(ngx_http_pd_h2_t *h2)
{
    size_t  len;
    u_char  text[128];

    h2->ended = 1;

    len = ngx_min(h2->why.len, sizeof(text));
    ngx_memcpy(text, h2->why_text, len);

    if (h2->grpc_status == -1) {
        ngx_http_pd_h2_why(h2, "the worker has ended the stream");

    } else {
        ngx_http_pd_h2_why(h2, "the worker has ended the stream: "
                           "grpc-status %i \"%*s\"", h2->grpc_status, len,
                           text);
    }
}


static ssize_t
ngx_http_pd_h2_on_wait(nghttp2_session *session, int32_t stream, uint8_t *buf,
    size_t len, uint32_t *flags, nghttp2_data_source *source, void *data)
{
    return NGHTTP2_ERR_DEFERRED;
}
