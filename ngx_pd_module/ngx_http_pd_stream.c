
/*
 * The answer as server-sent events.
 *
 * What a step gives is written into an event that stays open until it is sent:
 *
 *     data: {"id": ... "choices":[{"index":0,"delta":{"content":"Hel
 *     `---------- prefix --------'                              ^
 *                                              the next delta goes here
 *
 * Where the client is quick the event is closed and sent at once.  Where it is
 * not, nothing is sent before what was sent is gone, and deltas gather in the
 * open event: so a slow client costs one growing text, which has a limit, and
 * not a queue of events.
 *
 * Buffers are those of the process (ngx_http_pd_stock.h), and go back as soon
 * as the output filters hold nothing of this request: a stream that waits for
 * its next token has none, and its pool does not grow with the answer.
 */


#include "ngx_http_pd_api.h"
#include "ngx_http_pd_json.h"
#include "ngx_http_pd_stock.h"


#define NGX_HTTP_PD_STREAM_INDEX   sizeof("{\"index\":999")


enum {
    event_none = 0,
    event_text,
    event_reasoning
};


static ngx_int_t ngx_http_pd_stream_delta(ngx_http_pd_choice_t *choice,
    ngx_http_pd_delta_t *delta);
static ngx_int_t ngx_http_pd_stream_finish(ngx_http_pd_choice_t *choice);
static ngx_int_t ngx_http_pd_stream_fail(ngx_http_pd_ctx_t *ctx);
static ngx_int_t ngx_http_pd_stream_pause(ngx_http_pd_ctx_t *ctx);

static ngx_int_t ngx_http_pd_stream_usual(ngx_http_pd_choice_t *choice,
    ngx_http_pd_delta_t *delta);
static ngx_int_t ngx_http_pd_stream_logprobs(ngx_http_pd_choice_t *choice,
    ngx_http_pd_delta_t *delta);
static ngx_int_t ngx_http_pd_stream_append(ngx_http_pd_choice_t *choice,
    ngx_uint_t kind, ngx_str_t *text);
static ngx_int_t ngx_http_pd_stream_begin(ngx_http_pd_choice_t *choice);
static ngx_int_t ngx_http_pd_stream_open(ngx_http_pd_choice_t *choice,
    ngx_uint_t kind);
static ngx_int_t ngx_http_pd_stream_close(ngx_http_pd_ctx_t *ctx);
static ngx_int_t ngx_http_pd_stream_compose(ngx_http_pd_choice_t *choice);
static ngx_int_t ngx_http_pd_stream_head(ngx_http_pd_choice_t *choice);
static ngx_int_t ngx_http_pd_stream_tail(ngx_http_pd_ctx_t *ctx,
    const char *finish);

static ngx_int_t ngx_http_pd_stream_send(ngx_http_pd_ctx_t *ctx,
    ngx_uint_t last);
static ngx_int_t ngx_http_pd_stream_output(ngx_http_pd_ctx_t *ctx,
    ngx_chain_t *out);
static ngx_int_t ngx_http_pd_stream_header(ngx_http_request_t *r);
static ngx_uint_t ngx_http_pd_stream_blocked(ngx_http_request_t *r);
static ngx_int_t ngx_http_pd_stream_arm(ngx_http_request_t *r);
static void ngx_http_pd_stream_writable(ngx_http_request_t *r);


#define NGX_HTTP_PD_STREAM_END  ",\"logprobs\":null,\"finish_reason\":null}]"

/* how a choice's member with text begins: a chat's is the second */

static ngx_str_t  ngx_http_pd_stream_members[2] = {
    ngx_string(",\"text\":\""),
    ngx_string(",\"delta\":{\"content\":\"")
};

/* how an event with text ends: of a chat, with the promise of usage */

static ngx_str_t  ngx_http_pd_stream_ends[2][2] = {
    { ngx_string("\"" NGX_HTTP_PD_STREAM_END "}\n\n"),
      ngx_string("\"" NGX_HTTP_PD_STREAM_END ",\"usage\":null}\n\n") },
    { ngx_string("\"}" NGX_HTTP_PD_STREAM_END "}\n\n"),
      ngx_string("\"}" NGX_HTTP_PD_STREAM_END ",\"usage\":null}\n\n") }
};


static const ngx_http_pd_answer_t  ngx_http_pd_stream = {
    ngx_http_pd_stream_delta,
    ngx_http_pd_stream_finish,
    ngx_http_pd_stream_fail,
    ngx_http_pd_stream_pause
};


ngx_int_t
ngx_http_pd_stream_init(ngx_http_pd_ctx_t *ctx)
{
    ngx_uint_t  chat;

    ctx->answer = &ngx_http_pd_stream;
    ctx->stream.out.buffer = NGX_HTTP_PD_STOCK_BUFFER;

    chat = (ctx->openai.surface == NGX_HTTP_PD_OPENAI_CHAT);

    return ngx_http_pd_answer_prefix(ctx, NGX_HTTP_PD_STREAM_INDEX
                                     + ngx_http_pd_stream_members[chat].len);
}


void
ngx_http_pd_stream_free(ngx_http_pd_ctx_t *ctx)
{
    ngx_uint_t             i;
    ngx_http_pd_stream_t  *stream;

    stream = &ctx->stream;

    ngx_http_pd_stock_give(stream->busy);
    ngx_http_pd_stock_give(ngx_http_pd_rope_take(&stream->out));

    stream->busy = NULL;

    for (i = 0; stream->logprobs && i < 4; i++) {
        ngx_http_pd_stock_give(
                        ngx_http_pd_rope_take(&stream->logprobs->lists[i]));
    }
}


static ngx_int_t
ngx_http_pd_stream_delta(ngx_http_pd_choice_t *choice,
    ngx_http_pd_delta_t *delta)
{
    size_t                   size;
    ngx_int_t                rc;
    ngx_http_pd_ctx_t       *ctx;
    ngx_http_request_t      *r;
    ngx_http_pd_stream_t    *stream;
    ngx_http_pd_loc_conf_t  *plcf;

    ctx = choice->ctx;
    r = ctx->request;
    stream = &ctx->stream;

    rc = ngx_http_pd_stream_usual(choice, delta);

    if (rc != NGX_DECLINED) {
        return rc;
    }

    if (ngx_http_pd_stream_append(choice, event_reasoning, &delta->reasoning)
        != NGX_OK
        || ngx_http_pd_stream_append(choice, event_text, &delta->text)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (delta->nlogprobs
        && ngx_http_pd_stream_logprobs(choice, delta) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (stream->out.size == 0) {
        return NGX_OK;
    }

    if (!ngx_http_pd_stream_blocked(r)) {
        return ngx_http_pd_stream_send(ctx, 0);
    }

    plcf = ngx_http_get_module_loc_conf(r, ngx_http_pd_module);

    size = stream->out.size
           + (stream->logprobs ? ngx_http_pd_logprobs_size(stream->logprobs)
                               : 0);

    if (size > plcf->stream_buffer) {
        (void) ngx_http_pd_error(&ctx->error, r->pool,
                                 NGX_HTTP_REQUEST_TIME_OUT, "client_too_slow",
                                 NULL, "More than %uz bytes of the answer wait "
                                 "for the client to read them",
                                 plcf->stream_buffer);
        return NGX_DECLINED;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_stream_finish(ngx_http_pd_choice_t *choice)
{
    const char          *nothing;
    ngx_http_pd_ctx_t   *ctx;
    ngx_http_pd_rope_t  *out;

    ctx = choice->ctx;
    out = &ctx->stream.out;

    nothing = (ctx->openai.surface == NGX_HTTP_PD_OPENAI_CHAT)
              ? ",\"delta\":{}" : ",\"text\":\"\"";

    if (ngx_http_pd_stream_begin(choice) != NGX_OK
        || ngx_http_pd_stream_close(ctx) != NGX_OK
        || ngx_http_pd_stream_head(choice) != NGX_OK
        || ngx_http_pd_rope_text(out, nothing) != NGX_OK
        || ngx_http_pd_stream_tail(ctx, ngx_http_pd_answer_finish(choice))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ctx->running) {
        return ngx_http_pd_stream_blocked(ctx->request)
               ? NGX_OK : ngx_http_pd_stream_send(ctx, 0);
    }

    if (ctx->openai.include_usage) {

        if (ngx_http_pd_rope_append(out, ctx->prefix.data, ctx->prefix.len)
            != NGX_OK
            || ngx_http_pd_rope_literal(out, "],") != NGX_OK
            || ngx_http_pd_answer_usage(ctx, out) != NGX_OK
            || ngx_http_pd_rope_literal(out, "}\n\n") != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (ngx_http_pd_rope_literal(out, "data: [DONE]\n\n") != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_pd_stream_send(ctx, 1);
}


static ngx_int_t
ngx_http_pd_stream_fail(ngx_http_pd_ctx_t *ctx)
{
    ngx_http_pd_rope_t  *out;

    out = &ctx->stream.out;

    if (ngx_http_pd_stream_close(ctx) != NGX_OK
        || ngx_http_pd_rope_literal(out, "data: ") != NGX_OK
        || ngx_http_pd_error_json(&ctx->error, out) != NGX_OK
        || ngx_http_pd_rope_literal(out, "\n\n") != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_pd_stream_send(ctx, 1);
}


/* a comment, which clients skip, keeps the connection from looking dead */

static ngx_int_t
ngx_http_pd_stream_pause(ngx_http_pd_ctx_t *ctx)
{
    if (!ctx->request->header_sent
        || ngx_http_pd_stream_blocked(ctx->request))
    {
        return NGX_OK;
    }

    if (ngx_http_pd_stream_close(ctx) != NGX_OK
        || ngx_http_pd_rope_literal(&ctx->stream.out, ": goes on\n\n")
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_pd_stream_send(ctx, 0);
}


/*
 * Nearly every event: plain text for a client that waits for it, written in
 * one go.  NGX_DECLINED: it is another one.
 */

static ngx_int_t
ngx_http_pd_stream_usual(ngx_http_pd_choice_t *choice,
    ngx_http_pd_delta_t *delta)
{
    u_char                *last;
    size_t                 begin;
    ngx_buf_t             *b;
    ngx_str_t             *text, *end;
    ngx_chain_t           *cl;
    ngx_http_pd_ctx_t     *ctx;
    ngx_http_request_t    *r;
    ngx_http_pd_stream_t  *stream;

    ctx = choice->ctx;
    r = ctx->request;
    stream = &ctx->stream;
    text = &delta->text;
    last = text->data + text->len;

    if (stream->out.size || stream->busy || choice->head.len == 0
        || delta->reasoning.len || delta->nlogprobs || text->len == 0
        || !r->header_sent || ngx_http_pd_stream_blocked(r))
    {
        return NGX_DECLINED;
    }

    end = &ngx_http_pd_stream_ends[ctx->openai.surface
                                   == NGX_HTTP_PD_OPENAI_CHAT]
                                  [ctx->openai.include_usage];

    begin = choice->head.len + choice->open;

    if (begin + text->len + end->len > NGX_HTTP_PD_STOCK_BUFFER
        || ngx_http_pd_json_plain(text->data, last) != last)
    {
        return NGX_DECLINED;
    }

    cl = ngx_http_pd_stock_take();
    if (cl == NULL) {
        return NGX_ERROR;
    }

    b = cl->buf;

    b->last = ngx_cpymem(b->last, choice->head.data, begin);
    b->last = ngx_cpymem(b->last, text->data, text->len);
    b->last = ngx_cpymem(b->last, end->data, end->len);
    b->flush = 1;

    if (ngx_http_pd_stream_output(ctx, cl) == NGX_ERROR) {
        return NGX_ERROR;
    }

    return stream->busy ? ngx_http_pd_stream_arm(r) : NGX_OK;
}


static ngx_int_t
ngx_http_pd_stream_logprobs(ngx_http_pd_choice_t *choice,
    ngx_http_pd_delta_t *delta)
{
    ngx_http_pd_stream_t  *stream;

    stream = &choice->ctx->stream;

    if (stream->logprobs == NULL) {
        stream->logprobs = ngx_pcalloc(choice->ctx->request->pool,
                                       sizeof(ngx_http_pd_logprobs_t));
        if (stream->logprobs == NULL) {
            return NGX_ERROR;
        }

        ngx_http_pd_logprobs_init(stream->logprobs, &stream->out);
    }

    if (stream->choice != choice
        && ngx_http_pd_stream_open(choice, event_text) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_pd_logprobs_add(stream->logprobs, choice, delta);
}


static ngx_int_t
ngx_http_pd_stream_append(ngx_http_pd_choice_t *choice, ngx_uint_t kind,
    ngx_str_t *text)
{
    ngx_http_pd_stream_t  *stream;

    if (text->len == 0) {
        return NGX_OK;
    }

    stream = &choice->ctx->stream;

    if ((stream->choice != choice || stream->kind != kind)
        && ngx_http_pd_stream_open(choice, kind) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_pd_rope_escape(&stream->out, text->data, text->len);
}


/* a chat's choice says first who speaks */

static ngx_int_t
ngx_http_pd_stream_begin(ngx_http_pd_choice_t *choice)
{
    ngx_http_pd_ctx_t  *ctx;

    ctx = choice->ctx;

    if (choice->head.len) {
        return NGX_OK;
    }

    if (ngx_http_pd_stream_compose(choice) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ctx->openai.surface != NGX_HTTP_PD_OPENAI_CHAT) {
        return NGX_OK;
    }

    if (ngx_http_pd_stream_close(ctx) != NGX_OK
        || ngx_http_pd_stream_head(choice) != NGX_OK
        || ngx_http_pd_rope_literal(&ctx->stream.out,
                        ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"}")
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_pd_stream_tail(ctx, NULL);
}


static ngx_int_t
ngx_http_pd_stream_open(ngx_http_pd_choice_t *choice, ngx_uint_t kind)
{
    ngx_int_t              rc;
    ngx_http_pd_ctx_t     *ctx;
    ngx_http_pd_stream_t  *stream;

    ctx = choice->ctx;
    stream = &ctx->stream;

    if (ngx_http_pd_stream_begin(choice) != NGX_OK
        || ngx_http_pd_stream_close(ctx) != NGX_OK
        || ngx_http_pd_stream_head(choice) != NGX_OK)
    {
        return NGX_ERROR;
    }

    rc = (kind == event_reasoning
          && ctx->openai.surface == NGX_HTTP_PD_OPENAI_CHAT)
         ? ngx_http_pd_rope_literal(&stream->out,
                                    ",\"delta\":{\"reasoning_content\":\"")
         : ngx_http_pd_rope_append(&stream->out,
                                   choice->head.data + choice->head.len,
                                   choice->open);
    if (rc != NGX_OK) {
        return NGX_ERROR;
    }

    stream->choice = choice;
    stream->kind = kind;

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_stream_close(ngx_http_pd_ctx_t *ctx)
{
    ngx_int_t              rc;
    ngx_http_pd_stream_t  *stream;

    stream = &ctx->stream;

    if (stream->kind == event_none) {
        return NGX_OK;
    }

    stream->kind = event_none;
    stream->choice = NULL;

    rc = (ctx->openai.surface == NGX_HTTP_PD_OPENAI_CHAT)
         ? ngx_http_pd_rope_literal(&stream->out, "\"}")
         : ngx_http_pd_rope_literal(&stream->out, "\"");

    return (rc == NGX_OK) ? ngx_http_pd_stream_tail(ctx, NULL) : NGX_ERROR;
}


/* how the events of a choice begin; there is room behind the prefix for one */

static ngx_int_t
ngx_http_pd_stream_compose(ngx_http_pd_choice_t *choice)
{
    u_char             *p;
    ngx_str_t          *prefix, *member;
    ngx_http_pd_ctx_t  *ctx;

    ctx = choice->ctx;
    prefix = &ctx->prefix;

    member = &ngx_http_pd_stream_members[ctx->openai.surface
                                         == NGX_HTTP_PD_OPENAI_CHAT];

    choice->head.data = prefix->data;
    p = prefix->data + prefix->len;

    if (choice->index) {
        p = ngx_pnalloc(ctx->request->pool, prefix->len
                                            + NGX_HTTP_PD_STREAM_INDEX
                                            + member->len);
        if (p == NULL) {
            return NGX_ERROR;
        }

        choice->head.data = p;
        p = ngx_cpymem(p, prefix->data, prefix->len);
    }

    p = ngx_sprintf(p, "{\"index\":%ui", choice->index);

    choice->head.len = p - choice->head.data;
    choice->open = member->len;

    ngx_memcpy(p, member->data, member->len);

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_stream_head(ngx_http_pd_choice_t *choice)
{
    return ngx_http_pd_rope_append(&choice->ctx->stream.out,
                                   choice->head.data, choice->head.len);
}


/* and how they end, nearly always in one of two ways */

static ngx_int_t
ngx_http_pd_stream_tail(ngx_http_pd_ctx_t *ctx, const char *finish)
{
    ngx_http_pd_rope_t  *out;

    out = &ctx->stream.out;

    if (finish == NULL
        && (ctx->stream.logprobs == NULL || ctx->stream.logprobs->tokens == 0))
    {

        return ctx->openai.include_usage
               ? ngx_http_pd_rope_literal(out, NGX_HTTP_PD_STREAM_END
                                               ",\"usage\":null}\n\n")
               : ngx_http_pd_rope_literal(out, NGX_HTTP_PD_STREAM_END
                                               "}\n\n");
    }

    if (ngx_http_pd_logprobs_take(ctx->stream.logprobs, ctx->openai.surface,
                                  out)
        != NGX_OK
        || ngx_http_pd_rope_text(out, finish ? ",\"finish_reason\":\""
                                             : ",\"finish_reason\":")
           != NGX_OK
        || ngx_http_pd_rope_text(out, finish ? finish : "null") != NGX_OK
        || ngx_http_pd_rope_text(out, finish ? "\"}]" : "}]") != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ctx->openai.include_usage
           ? ngx_http_pd_rope_literal(out, ",\"usage\":null}\n\n")
           : ngx_http_pd_rope_literal(out, "}\n\n");
}


/* all that waits, flushed; NGX_OK, NGX_AGAIN or NGX_ERROR */

static ngx_int_t
ngx_http_pd_stream_send(ngx_http_pd_ctx_t *ctx, ngx_uint_t last)
{
    ngx_int_t              rc;
    ngx_buf_t             *b;
    ngx_http_request_t    *r;
    ngx_http_pd_stream_t  *stream;

    r = ctx->request;
    stream = &ctx->stream;

    if (!r->header_sent) {
        rc = ngx_http_pd_stream_header(r);

        if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
            return NGX_ERROR;
        }
    }

    if (ngx_http_pd_stream_close(ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    if (stream->out.last) {
        b = stream->out.last->buf;

        b->flush = 1;
        b->last_buf = last;
        b->last_in_chain = last;
    }

    rc = ngx_http_pd_stream_output(ctx, ngx_http_pd_rope_take(&stream->out));

    if (rc == NGX_ERROR || last) {
        return rc;
    }

    return ngx_http_pd_stream_arm(r);
}


/*
 * NULL: only what was not sent yet.  A buffer is another request's next, so
 * that it is empty does not suffice: no filter may have anything of ours.
 */

static ngx_int_t
ngx_http_pd_stream_output(ngx_http_pd_ctx_t *ctx, ngx_chain_t *out)
{
    ngx_int_t      rc;
    ngx_chain_t  **last;

    for (last = &ctx->stream.busy; *last; last = &(*last)->next) {
        /* void */
    }

    *last = out;

    rc = ngx_http_output_filter(ctx->request, out);

    if (rc != NGX_ERROR && !ngx_http_pd_stream_blocked(ctx->request)) {
        ngx_http_pd_stock_give(ctx->stream.busy);
        ctx->stream.busy = NULL;
    }

    return rc;
}


static ngx_int_t
ngx_http_pd_stream_header(ngx_http_request_t *r)
{
    ngx_connection_t          *c;
    ngx_http_core_loc_conf_t  *clcf;

    static ngx_str_t  no = ngx_string("no");
    static ngx_str_t  no_cache = ngx_string("no-cache");

    c = r->connection;
    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    r->headers_out.status = NGX_HTTP_OK;

    ngx_str_set(&r->headers_out.content_type,
                "text/event-stream; charset=utf-8");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    ngx_http_clear_content_length(r);
    ngx_http_clear_accept_ranges(r);

    if (ngx_http_pd_answer_header(r, "Cache-Control", &no_cache) != NGX_OK
        || ngx_http_pd_answer_header(r, "X-Accel-Buffering", &no) != NGX_OK)
    {
        return NGX_ERROR;
    }

    /* an event that waits in a compressor is late */

#if (NGX_HTTP_GZIP)
    r->gzip_tested = 1;
    r->gzip_ok = 0;
#endif

#if (NGX_HTTP_V2)
    if (r->stream == NULL)
#endif
    {
        if (clcf->tcp_nodelay && ngx_tcp_nodelay(c) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    r->write_event_handler = ngx_http_pd_stream_writable;

    return ngx_http_send_header(r);
}


static ngx_uint_t
ngx_http_pd_stream_blocked(ngx_http_request_t *r)
{
    return r->header_sent && (r->buffered || r->connection->buffered);
}


/* a client that takes nothing for send_timeout has gone */

static ngx_int_t
ngx_http_pd_stream_arm(ngx_http_request_t *r)
{
    ngx_event_t               *wev;
    ngx_http_core_loc_conf_t  *clcf;

    wev = r->connection->write;

    if (!ngx_http_pd_stream_blocked(r)) {

        if (wev->timer_set && !wev->delayed) {
            ngx_del_timer(wev);
        }

        return NGX_OK;
    }

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (!wev->delayed) {
        ngx_add_timer(wev, clcf->send_timeout);
    }

    if (ngx_handle_write_event(wev, clcf->send_lowat) != NGX_OK) {
        return NGX_ERROR;
    }

    return NGX_AGAIN;
}


static void
ngx_http_pd_stream_writable(ngx_http_request_t *r)
{
    ngx_int_t           rc;
    ngx_event_t        *wev;
    ngx_connection_t   *c;
    ngx_http_pd_ctx_t  *ctx;

    c = r->connection;
    wev = c->write;

    ctx = ngx_http_get_module_ctx(r, ngx_http_pd_module);

    if (wev->timedout) {
        ngx_log_error(NGX_LOG_INFO, c->log, NGX_ETIMEDOUT,
                      "client timed out");
        c->timedout = 1;

        ngx_http_finalize_request(r, NGX_HTTP_REQUEST_TIME_OUT);
        return;
    }

    if (wev->delayed || r->aio) {

        if (ngx_http_pd_stream_arm(r) == NGX_ERROR) {
            ngx_http_finalize_request(r, NGX_ERROR);
        }

        return;
    }

    /* what is on its way first, then what has gathered meanwhile */

    rc = ngx_http_pd_stream_output(ctx, NULL);

    if (rc != NGX_ERROR) {
        rc = ngx_http_pd_stream_blocked(r) || ctx->stream.out.size == 0
             ? ngx_http_pd_stream_arm(r)
             : ngx_http_pd_stream_send(ctx, 0);
    }

    if (rc == NGX_ERROR) {
        ngx_http_finalize_request(r, NGX_ERROR);
    }
}
