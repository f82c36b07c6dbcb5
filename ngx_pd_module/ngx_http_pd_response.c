
/*
 * The answer as one JSON text, sent when every choice has ended.
 *
 * Text is escaped when it comes; at the end what surrounds it is written and
 * the buffers are joined, so that nothing is copied again.
 */


#include "ngx_http_pd_api.h"


#define NGX_HTTP_PD_RESPONSE_BUFFER  512
#define NGX_HTTP_PD_RESPONSE_MAX     (32 * 1024 * 1024)


static ngx_int_t ngx_http_pd_response_delta(ngx_http_pd_choice_t *choice,
    ngx_http_pd_delta_t *delta);
static ngx_int_t ngx_http_pd_response_finish(ngx_http_pd_choice_t *choice);
static ngx_int_t ngx_http_pd_response_choice(ngx_http_pd_choice_t *choice,
    ngx_http_pd_rope_t *all);
static ngx_int_t ngx_http_pd_response_message(ngx_http_pd_choice_t *choice,
    ngx_http_pd_rope_t *all);
static ngx_int_t ngx_http_pd_response_fail(ngx_http_pd_ctx_t *ctx);


static const ngx_http_pd_answer_t  ngx_http_pd_response = {
    ngx_http_pd_response_delta,
    ngx_http_pd_response_finish,
    ngx_http_pd_response_fail,
    NULL
};


ngx_int_t
ngx_http_pd_response_init(ngx_http_pd_ctx_t *ctx)
{
    ngx_uint_t               i;
    ngx_http_pd_gathered_t  *gathered;

    ctx->answer = &ngx_http_pd_response;

    gathered = ngx_pcalloc(ctx->request->pool,
                           ctx->nchoices * sizeof(ngx_http_pd_gathered_t));
    if (gathered == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < ctx->nchoices; i++) {

        gathered[i].text.pool = ctx->request->pool;
        gathered[i].text.buffer = NGX_HTTP_PD_RESPONSE_BUFFER;

        gathered[i].reasoning = gathered[i].text;

        ngx_http_pd_logprobs_init(&gathered[i].logprobs, &gathered[i].text);

        ctx->choices[i].gathered = &gathered[i];
    }

    return ngx_http_pd_answer_prefix(ctx, 0);
}


static ngx_int_t
ngx_http_pd_response_delta(ngx_http_pd_choice_t *choice,
    ngx_http_pd_delta_t *delta)
{
    ngx_http_pd_ctx_t       *ctx;
    ngx_http_pd_gathered_t  *so_far;

    so_far = choice->gathered;

    if (ngx_http_pd_rope_escape(&so_far->text, delta->text.data,
                                delta->text.len)
        != NGX_OK
        || ngx_http_pd_rope_escape(&so_far->reasoning, delta->reasoning.data,
                                   delta->reasoning.len)
           != NGX_OK
        || ngx_http_pd_logprobs_add(&so_far->logprobs, choice, delta)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (so_far->text.size + so_far->reasoning.size
        + ngx_http_pd_logprobs_size(&so_far->logprobs)
        > NGX_HTTP_PD_RESPONSE_MAX)
    {
        ctx = choice->ctx;

        (void) ngx_http_pd_error(&ctx->error, ctx->request->pool,
                                 NGX_HTTP_INTERNAL_SERVER_ERROR,
                                 "answer_too_long", NULL,
                                 "The answer has more than %d bytes",
                                 NGX_HTTP_PD_RESPONSE_MAX);
        return NGX_DECLINED;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_response_finish(ngx_http_pd_choice_t *choice)
{
    ngx_uint_t           i;
    ngx_http_pd_ctx_t   *ctx;
    ngx_http_pd_rope_t   all;

    ctx = choice->ctx;

    if (ctx->running) {
        return NGX_OK;
    }

    ngx_memzero(&all, sizeof(ngx_http_pd_rope_t));

    all.pool = ctx->request->pool;
    all.buffer = NGX_HTTP_PD_RESPONSE_BUFFER;

    if (ngx_http_pd_rope_append(&all, ctx->prefix.data, ctx->prefix.len)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < ctx->nchoices; i++) {

        if ((i && ngx_http_pd_rope_literal(&all, ",") != NGX_OK)
            || ngx_http_pd_response_choice(&ctx->choices[i], &all) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (ngx_http_pd_rope_literal(&all, "],") != NGX_OK
        || ngx_http_pd_answer_usage(ctx, &all) != NGX_OK
        || ngx_http_pd_rope_literal(&all, "}") != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_pd_answer_send(ctx->request, &all);
}


static ngx_int_t
ngx_http_pd_response_choice(ngx_http_pd_choice_t *choice,
    ngx_http_pd_rope_t *all)
{
    if (ngx_http_pd_rope_literal(all, "{\"index\":") != NGX_OK
        || ngx_http_pd_rope_number(all, choice->index) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (choice->ctx->openai.surface == NGX_HTTP_PD_OPENAI_CHAT) {

        if (ngx_http_pd_response_message(choice, all) != NGX_OK) {
            return NGX_ERROR;
        }

    } else {

        if (ngx_http_pd_rope_literal(all, ",\"text\":\"") != NGX_OK) {
            return NGX_ERROR;
        }

        ngx_http_pd_rope_join(all, &choice->gathered->text);

        if (ngx_http_pd_rope_literal(all, "\"") != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (ngx_http_pd_logprobs_take(&choice->gathered->logprobs,
                                  choice->ctx->openai.surface, all)
        != NGX_OK
        || ngx_http_pd_rope_literal(all, ",\"finish_reason\":\"") != NGX_OK
        || ngx_http_pd_rope_text(all, ngx_http_pd_answer_finish(choice))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_pd_rope_literal(all, "\"}");
}


static ngx_int_t
ngx_http_pd_response_message(ngx_http_pd_choice_t *choice,
    ngx_http_pd_rope_t *all)
{
    if (ngx_http_pd_rope_literal(all, ",\"message\":{\"role\":\"assistant\","
                                      "\"content\":\"")
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_pd_rope_join(all, &choice->gathered->text);

    if (ngx_http_pd_rope_literal(all, "\",\"refusal\":null") != NGX_OK) {
        return NGX_ERROR;
    }

    if (choice->gathered->reasoning.size) {

        if (ngx_http_pd_rope_literal(all, ",\"reasoning_content\":\"")
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        ngx_http_pd_rope_join(all, &choice->gathered->reasoning);

        if (ngx_http_pd_rope_literal(all, "\"") != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return ngx_http_pd_rope_literal(all, "}");
}


/* the header goes out with the whole, so nothing can fail between them */

static ngx_int_t
ngx_http_pd_response_fail(ngx_http_pd_ctx_t *ctx)
{
    return NGX_ERROR;
}
