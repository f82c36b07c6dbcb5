
/*
 * What all answers have in common.
 */


#include "ngx_http_pd_api.h"
#include "ngx_http_pd_stock.h"


/* how its JSON begins, up to the id, and goes on behind it: [stream][chat] */

static ngx_str_t  ngx_http_pd_answer_begins[2][2] = {
    { ngx_string("{\"id\":\"cmpl-"),
      ngx_string("{\"id\":\"chatcmpl-") },
    { ngx_string("data: {\"id\":\"cmpl-"),
      ngx_string("data: {\"id\":\"chatcmpl-") }
};

static ngx_str_t  ngx_http_pd_answer_objects[2][2] = {
    { ngx_string("\",\"object\":\"text_completion\",\"created\":"),
      ngx_string("\",\"object\":\"chat.completion\",\"created\":") },
    { ngx_string("\",\"object\":\"text_completion\",\"created\":"),
      ngx_string("\",\"object\":\"chat.completion.chunk\",\"created\":") }
};


ngx_int_t
ngx_http_pd_answer_begin(ngx_http_pd_ctx_t *ctx, ngx_http_pd_rope_t *rope)
{
    ngx_str_t   *begin, *object;
    ngx_uint_t   stream, chat;

    stream = ctx->openai.stream;
    chat = (ctx->openai.surface == NGX_HTTP_PD_OPENAI_CHAT);

    begin = &ngx_http_pd_answer_begins[stream][chat];
    object = &ngx_http_pd_answer_objects[stream][chat];

    if (ngx_http_pd_rope_append(rope, begin->data, begin->len) != NGX_OK
        || ngx_http_pd_rope_append(rope, ctx->id.data, ctx->id.len) != NGX_OK
        || ngx_http_pd_rope_append(rope, object->data, object->len) != NGX_OK
        || ngx_http_pd_rope_number(rope, (ngx_uint_t) ngx_time()) != NGX_OK
        || ngx_http_pd_rope_literal(rope, ",\"model\":\"") != NGX_OK
        || ngx_http_pd_rope_escape(rope, ctx->openai.model.data,
                                   ctx->openai.model.len)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_pd_rope_literal(rope, "\",\"choices\":[");
}


ngx_int_t
ngx_http_pd_answer_prefix(ngx_http_pd_ctx_t *ctx, size_t room)
{
    u_char              *p;
    ngx_chain_t         *in, *cl;
    ngx_http_pd_rope_t   rope;

    ngx_memzero(&rope, sizeof(ngx_http_pd_rope_t));

    rope.buffer = NGX_HTTP_PD_STOCK_BUFFER;
    p = NULL;

    if (ngx_http_pd_answer_begin(ctx, &rope) == NGX_OK) {
        p = ngx_pnalloc(ctx->request->pool, rope.size + room);
    }

    ctx->prefix.data = p;
    ctx->prefix.len = rope.size;

    in = ngx_http_pd_rope_take(&rope);

    for (cl = in; p && cl; cl = cl->next) {
        p = ngx_cpymem(p, cl->buf->pos, cl->buf->last - cl->buf->pos);
    }

    ngx_http_pd_stock_give(in);

    return p ? NGX_OK : NGX_ERROR;
}


ngx_int_t
ngx_http_pd_answer_usage(ngx_http_pd_ctx_t *ctx, ngx_http_pd_rope_t *rope)
{
    u_char             *p;
    ngx_uint_t          i, prompt, cached, completion;
    ngx_http_pd_job_t  *job;

    static const char  prompts[] = "\"usage\":{\"prompt_tokens\":";
    static const char  completions[] = ",\"completion_tokens\":";
    static const char  totals[] = ",\"total_tokens\":";
    static const char  details[] = ",\"prompt_tokens_details\":"
                                   "{\"cached_tokens\":";

    u_char  text[sizeof(prompts) + sizeof(completions) + sizeof(totals)
                 + sizeof(details) + 4 * NGX_INT_T_LEN + 2];

    prompt = 0;
    cached = 0;
    completion = 0;

    for (i = 0; i < ctx->nchoices; i++) {
        job = &ctx->choices[i].job;

        if (i % ctx->openai.n == 0) {  /* one prompt, however many choices */
            prompt += job->prompt_tokens;
            cached += job->cached_tokens;
        }

        completion += job->completion_tokens;
    }

    p = ngx_cpymem(text, prompts, sizeof(prompts) - 1);
    p = ngx_http_pd_rope_digits(p, prompt);
    p = ngx_cpymem(p, completions, sizeof(completions) - 1);
    p = ngx_http_pd_rope_digits(p, completion);
    p = ngx_cpymem(p, totals, sizeof(totals) - 1);
    p = ngx_http_pd_rope_digits(p, prompt + completion);
    p = ngx_cpymem(p, details, sizeof(details) - 1);
    p = ngx_http_pd_rope_digits(p, cached);

    *p++ = '}';
    *p++ = '}';

    return ngx_http_pd_rope_append(rope, text, p - text);
}


const char *
ngx_http_pd_answer_finish(ngx_http_pd_choice_t *choice)
{
    switch (choice->finish) {

    case PD__V1__FINISH_REASON__FINISH_LENGTH:
        return "length";

    case PD__V1__FINISH_REASON__FINISH_TOOL_CALLS:
        return "tool_calls";

    default:
        return "stop";
    }
}


ngx_int_t
ngx_http_pd_answer_send(ngx_http_request_t *r, ngx_http_pd_rope_t *rope)
{
    ngx_int_t  rc;

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = rope->size;

    ngx_str_set(&r->headers_out.content_type, "application/json");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    rope->last->buf->last_buf = 1;
    rope->last->buf->last_in_chain = 1;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_output_filter(r, ngx_http_pd_rope_take(rope));
}


ngx_int_t
ngx_http_pd_answer_header(ngx_http_request_t *r, const char *name,
    ngx_str_t *value)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->hash = 1;
    h->key.data = (u_char *) name;
    h->key.len = ngx_strlen(name);
    h->value = *value;

#if (nginx_version >= 1023000)
    h->next = NULL;
#endif

    return NGX_OK;
}
