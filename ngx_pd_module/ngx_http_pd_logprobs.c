
/*
 * Log probabilities of tokens, as the two surfaces show them.
 *
 *     chat         {"content":[{"token":"Hi","logprob":-0.1,"bytes":[72,105],
 *                               "top_logprobs":[{...}]}],"refusal":null}
 *     completions  {"tokens":["Hi"],"token_logprobs":[-0.1],
 *                   "top_logprobs":[{"Hi":-0.1}],"text_offset":[0]}
 *
 * A token may be a part of a character only; then its "token" shows U+FFFD, and
 * only "bytes" tells it exactly.
 */


#include "ngx_http_pd_api.h"


/* JSON has no infinity; this is what other servers write for it */

#define NGX_HTTP_PD_LOGPROB_LEAST  -9999.0


enum {
    list_tokens = 0,        /* a chat's only list */
    list_logprobs,
    list_top,
    list_offsets
};


static ngx_int_t ngx_http_pd_logprobs_chat(ngx_http_pd_logprobs_t *logprobs,
    Pd__V1__TokenLogprob *token);
static ngx_int_t ngx_http_pd_logprobs_entry(ngx_http_pd_rope_t *list,
    Pd__V1__TokenLogprob *token);
static ngx_int_t ngx_http_pd_logprobs_text(ngx_http_pd_logprobs_t *logprobs,
    Pd__V1__TokenLogprob *token, ngx_http_pd_choice_t *choice);
static ngx_int_t ngx_http_pd_logprobs_pair(ngx_http_pd_rope_t *list,
    Pd__V1__TokenLogprob *token);
static ngx_int_t ngx_http_pd_logprobs_string(ngx_http_pd_rope_t *list,
    ProtobufCBinaryData *text);
static ngx_int_t ngx_http_pd_logprobs_number(ngx_http_pd_rope_t *list,
    float value);


void
ngx_http_pd_logprobs_init(ngx_http_pd_logprobs_t *logprobs,
    ngx_http_pd_rope_t *rope)
{
    ngx_uint_t  i;

    for (i = 0; i < 4; i++) {
        logprobs->lists[i].pool = rope->pool;
        logprobs->lists[i].buffer = rope->buffer;
    }
}


ngx_int_t
ngx_http_pd_logprobs_add(ngx_http_pd_logprobs_t *logprobs,
    ngx_http_pd_choice_t *choice, ngx_http_pd_delta_t *delta)
{
    size_t                 i, n;
    ngx_int_t              rc;
    ngx_uint_t             list, lists;
    Pd__V1__TokenLogprob  *token;

    if (delta->nlogprobs == 0) {
        return NGX_OK;
    }

    lists = (choice->ctx->openai.surface == NGX_HTTP_PD_OPENAI_CHAT) ? 1 : 4;

    /* tokens before the last delta->tokens were heard of already */

    n = delta->nlogprobs;

    for (i = n - ngx_min(n, delta->tokens); i < n; i++) {
        token = delta->logprobs[i];

        for (list = 0; logprobs->tokens && list < lists; list++) {

            if (ngx_http_pd_rope_literal(&logprobs->lists[list], ",")
                != NGX_OK)
            {
                return NGX_ERROR;
            }
        }

        rc = (lists == 1) ? ngx_http_pd_logprobs_chat(logprobs, token)
                          : ngx_http_pd_logprobs_text(logprobs, token, choice);

        if (rc != NGX_OK) {
            return NGX_ERROR;
        }

        logprobs->tokens++;
    }

    return NGX_OK;
}


size_t
ngx_http_pd_logprobs_size(ngx_http_pd_logprobs_t *logprobs)
{
    return logprobs->lists[list_tokens].size
           + logprobs->lists[list_logprobs].size
           + logprobs->lists[list_top].size
           + logprobs->lists[list_offsets].size;
}


ngx_int_t
ngx_http_pd_logprobs_take(ngx_http_pd_logprobs_t *logprobs,
    ngx_uint_t surface, ngx_http_pd_rope_t *rope)
{
    ngx_uint_t  list;

    static const char  *before[] = {
        ",\"logprobs\":{\"tokens\":[", "],\"token_logprobs\":[",
        "],\"top_logprobs\":[", "],\"text_offset\":["
    };

    if (logprobs == NULL || logprobs->tokens == 0) {
        return ngx_http_pd_rope_literal(rope, ",\"logprobs\":null");
    }

    logprobs->tokens = 0;

    if (surface == NGX_HTTP_PD_OPENAI_CHAT) {

        if (ngx_http_pd_rope_literal(rope, ",\"logprobs\":{\"content\":[")
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        ngx_http_pd_rope_join(rope, &logprobs->lists[list_tokens]);

        return ngx_http_pd_rope_literal(rope, "],\"refusal\":null}");
    }

    for (list = 0; list < 4; list++) {

        if (ngx_http_pd_rope_text(rope, before[list]) != NGX_OK) {
            return NGX_ERROR;
        }

        ngx_http_pd_rope_join(rope, &logprobs->lists[list]);
    }

    return ngx_http_pd_rope_literal(rope, "]}");
}


static ngx_int_t
ngx_http_pd_logprobs_chat(ngx_http_pd_logprobs_t *logprobs,
    Pd__V1__TokenLogprob *token)
{
    size_t               i;
    ngx_http_pd_rope_t  *list;

    list = &logprobs->lists[list_tokens];

    if (ngx_http_pd_logprobs_entry(list, token) != NGX_OK
        || ngx_http_pd_rope_literal(list, ",\"top_logprobs\":[") != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < token->n_top; i++) {

        if ((i && ngx_http_pd_rope_literal(list, ",") != NGX_OK)
            || ngx_http_pd_logprobs_entry(list, token->top[i]) != NGX_OK
            || ngx_http_pd_rope_literal(list, "}") != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return ngx_http_pd_rope_literal(list, "]}");
}


/* without its closing brace */

static ngx_int_t
ngx_http_pd_logprobs_entry(ngx_http_pd_rope_t *list,
    Pd__V1__TokenLogprob *token)
{
    size_t  i;

    if (ngx_http_pd_rope_literal(list, "{\"token\":") != NGX_OK
        || ngx_http_pd_logprobs_string(list, &token->text) != NGX_OK
        || ngx_http_pd_rope_literal(list, ",\"logprob\":") != NGX_OK
        || ngx_http_pd_logprobs_number(list, token->logprob) != NGX_OK
        || ngx_http_pd_rope_literal(list, ",\"bytes\":[") != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < token->text.len; i++) {

        if ((i && ngx_http_pd_rope_literal(list, ",") != NGX_OK)
            || ngx_http_pd_rope_number(list, token->text.data[i]) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return ngx_http_pd_rope_literal(list, "]");
}


static ngx_int_t
ngx_http_pd_logprobs_text(ngx_http_pd_logprobs_t *logprobs,
    Pd__V1__TokenLogprob *token, ngx_http_pd_choice_t *choice)
{
    size_t               i;
    ngx_http_pd_rope_t  *list;

    if (ngx_http_pd_logprobs_string(&logprobs->lists[list_tokens],
                                    &token->text)
        != NGX_OK
        || ngx_http_pd_logprobs_number(&logprobs->lists[list_logprobs],
                                       token->logprob)
           != NGX_OK
        || ngx_http_pd_rope_number(&logprobs->lists[list_offsets],
                                   choice->characters)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < token->text.len; i++) {
        choice->characters += ((token->text.data[i] & 0xc0) != 0x80);
    }

    /* the token itself is always one of them */

    list = &logprobs->lists[list_top];

    if (ngx_http_pd_rope_literal(list, "{") != NGX_OK
        || ngx_http_pd_logprobs_pair(list, token) != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < token->n_top; i++) {

        if (token->top[i]->token == token->token) {
            continue;
        }

        if (ngx_http_pd_rope_literal(list, ",") != NGX_OK
            || ngx_http_pd_logprobs_pair(list, token->top[i]) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return ngx_http_pd_rope_literal(list, "}");
}


static ngx_int_t
ngx_http_pd_logprobs_pair(ngx_http_pd_rope_t *list,
    Pd__V1__TokenLogprob *token)
{
    if (ngx_http_pd_logprobs_string(list, &token->text) != NGX_OK
        || ngx_http_pd_rope_literal(list, ":") != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_pd_logprobs_number(list, token->logprob);
}


static ngx_int_t
ngx_http_pd_logprobs_string(ngx_http_pd_rope_t *list,
    ProtobufCBinaryData *text)
{
    if (ngx_http_pd_rope_literal(list, "\"") != NGX_OK
        || ngx_http_pd_rope_escape(list, text->data, text->len) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_pd_rope_literal(list, "\"");
}


static ngx_int_t
ngx_http_pd_logprobs_number(ngx_http_pd_rope_t *list, float value)
{
    u_char  *last, text[32];

    /* not a number compares with nothing */

    if (!(value > NGX_HTTP_PD_LOGPROB_LEAST)) {
        value = NGX_HTTP_PD_LOGPROB_LEAST;
    }

    if (value > 0) {
        value = 0;
    }

    last = ngx_snprintf(text, sizeof(text), "%.6f", (double) value);

    return ngx_http_pd_rope_append(list, text, last - text);
}
