
/*
 * The answer as one JSON text, sent when every choice has ended.
 *
 * What comes before a choice's text is written first, the text is escaped when
 * it comes; at the end the rest is written behind it, and the choices' buffers
 * are joined: nothing is copied again, and a short answer is one buffer.
 */


#include "ngx_http_pd_api.h"


#define NGX_HTTP_PD_RESPONSE_BUFFER  512
#define NGX_HTTP_PD_RESPONSE_MAX     (32 * 1024 * 1024)


static ngx_int_t ngx_http_pd_response_delta(ngx_http_pd_choice_t *choice,
    ngx_http_pd_delta_t *delta);
static ngx_int_t ngx_http_pd_response_finish(ngx_http_pd_choice_t *choice);
static ngx_int_t ngx_http_pd_response_begin(ngx_http_pd_choice_t *choice);
static ngx_int_t ngx_http_pd_response_end(ngx_http_pd_choice_t *choice,
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

        if (ngx_http_pd_response_begin(&ctx->choices[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_response_begin(ngx_http_pd_choice_t *choice)
{
    ngx_int_t            rc;
    ngx_http_pd_ctx_t   *ctx;
    ngx_http_pd_rope_t  *text;

    ctx = choice->ctx;
    text = &choice->gathered->text;

    rc = (choice == ctx->choices) ? ngx_http_pd_answer_begin(ctx, text)
                                  : ngx_http_pd_rope_literal(text, ",");

    if (rc != NGX_OK
        || ngx_http_pd_rope_literal(text, "{\"index\":") != NGX_OK
        || ngx_http_pd_rope_number(text, choice->index) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return (ctx->openai.surface == NGX_HTTP_PD_OPENAI_CHAT)
           ? ngx_http_pd_rope_literal(text, ",\"message\":{\"role\":"
                                            "\"assistant\",\"content\":\"")
           : ngx_http_pd_rope_literal(text, ",\"text\":\"");
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
    ngx_http_pd_rope_t  *all;

    ctx = choice->ctx;

    if (ctx->running) {
        return NGX_OK;
    }

    all = &ctx->choices[0].gathered->text;

    for (i = 0; i < ctx->nchoices; i++) {

        if (i) {
            ngx_http_pd_rope_join(all, &ctx->choices[i].gathered->text);
        }

        if (ngx_http_pd_response_end(&ctx->choices[i], all) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (ngx_http_pd_rope_literal(all, "],") != NGX_OK
        || ngx_http_pd_answer_usage(ctx, all) != NGX_OK
        || ngx_http_pd_rope_literal(all, "}") != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_pd_answer_send(ctx->request, all);
}


static ngx_int_t
ngx_http_pd_response_end(ngx_http_pd_choice_t *choice, ngx_http_pd_rope_t *all)
{
    ngx_int_t   rc;
    ngx_uint_t  surface;

    surface = choice->ctx->openai.surface;

    rc = (surface == NGX_HTTP_PD_OPENAI_CHAT)
         ? ngx_http_pd_response_message(choice, all)
         : ngx_http_pd_rope_literal(all, "\"");

    if (rc != NGX_OK
        || ngx_http_pd_logprobs_take(&choice->gathered->logprobs, surface, all)
           != NGX_OK
        || ngx_http_pd_rope_literal(all, ",\"finish_reason\":\"") != NGX_OK
        || ngx_http_pd_rope_text(all, ngx_http_pd_answer_finish(choice))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_pd_rope_literal(all, "\"}");
}


/* what is behind a message's content */

static ngx_int_t
ngx_http_pd_response_message(ngx_http_pd_choice_t *choice,
    ngx_http_pd_rope_t *all)
{
    if (choice->gathered->reasoning.size == 0) {
        return ngx_http_pd_rope_literal(all, "\",\"refusal\":null}");
    }

    if (ngx_http_pd_rope_literal(all, "\",\"refusal\":null,"
                                      "\"reasoning_content\":\"")
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_pd_rope_join(all, &choice->gathered->reasoning);

    return ngx_http_pd_rope_literal(all, "\"}");
}


/* the header goes out with the whole, so nothing can fail between them */

static ngx_int_t
ngx_http_pd_response_fail(ngx_http_pd_ctx_t *ctx)
{
    return NGX_ERROR;
}
