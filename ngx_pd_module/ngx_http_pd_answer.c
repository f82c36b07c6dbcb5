
/*
 * What all answers have in common.
 */


#include "ngx_http_pd_api.h"
#include "ngx_http_pd_stock.h"


ngx_int_t
ngx_http_pd_answer_prefix(ngx_http_pd_ctx_t *ctx, const char *before,
    const char *object, size_t room)
{
    u_char              *p;
    size_t               len;
    const char          *kind;
    ngx_str_t           *model;
    ngx_chain_t         *cl;
    ngx_http_pd_rope_t   escaped;

    kind = (ctx->openai.surface == NGX_HTTP_PD_OPENAI_CHAT) ? "chatcmpl-"
                                                            : "cmpl-";
    model = &ctx->openai.model;

    ngx_memzero(&escaped, sizeof(ngx_http_pd_rope_t));

    escaped.buffer = NGX_HTTP_PD_STOCK_BUFFER;

    if (ngx_http_pd_rope_escape(&escaped, model->data, model->len) != NGX_OK) {
        ngx_http_pd_stock_give(ngx_http_pd_rope_take(&escaped));
        return NGX_ERROR;
    }

    len = ngx_strlen(before) + ngx_strlen(kind) + ctx->id.len
          + ngx_strlen(object) + NGX_TIME_T_LEN + escaped.size
          + sizeof("{\"id\":\"\",\"object\":\"\",\"created\":,"
                   "\"model\":\"\",\"choices\":[");

    p = ngx_pnalloc(ctx->request->pool, len + room);

    if (p) {
        ctx->prefix.data = p;

        p = ngx_sprintf(p, "%s{\"id\":\"%s%V\",\"object\":\"%s\","
                        "\"created\":%T,\"model\":\"", before, kind, &ctx->id,
                        object, ngx_time());

        for (cl = escaped.first; cl; cl = cl->next) {
            p = ngx_cpymem(p, cl->buf->pos, cl->buf->last - cl->buf->pos);
        }

        p = ngx_cpymem(p, "\",\"choices\":[",
                       sizeof("\",\"choices\":[") - 1);

        ctx->prefix.len = p - ctx->prefix.data;
    }

    ngx_http_pd_stock_give(ngx_http_pd_rope_take(&escaped));

    return p ? NGX_OK : NGX_ERROR;
}


ngx_int_t
ngx_http_pd_answer_usage(ngx_http_pd_ctx_t *ctx, ngx_http_pd_rope_t *rope)
{
    ngx_uint_t          i, prompt, cached, completion;
    ngx_http_pd_job_t  *job;

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

    if (ngx_http_pd_rope_literal(rope, "\"usage\":{\"prompt_tokens\":")
        != NGX_OK
        || ngx_http_pd_rope_number(rope, prompt) != NGX_OK
        || ngx_http_pd_rope_literal(rope, ",\"completion_tokens\":") != NGX_OK
        || ngx_http_pd_rope_number(rope, completion) != NGX_OK
        || ngx_http_pd_rope_literal(rope, ",\"total_tokens\":") != NGX_OK
        || ngx_http_pd_rope_number(rope, prompt + completion) != NGX_OK
        || ngx_http_pd_rope_literal(rope, ",\"prompt_tokens_details\":"
                                          "{\"cached_tokens\":")
           != NGX_OK
        || ngx_http_pd_rope_number(rope, cached) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_pd_rope_literal(rope, "}}");
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
