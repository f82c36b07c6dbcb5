
/*
 * Limits of a tenant, for one request: see ngx_http_pd_limit.h.
 */


#include "ngx_http_pd_limit.h"


#define NGX_HTTP_PD_LIMIT_BYTES    16      /* of text, a token at most */


static ngx_int_t ngx_http_pd_limit_output(ngx_http_pd_ctx_t *ctx);
static ngx_int_t ngx_http_pd_limit_count(ngx_http_request_t *r,
    const char *name, ngx_uint_t n);
static ngx_int_t ngx_http_pd_limit_time(ngx_http_request_t *r,
    const char *name, uint64_t us);


char *
ngx_http_pd_limit(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_loc_conf_t  *plcf = conf;

    ngx_str_t   *value;
    ngx_uint_t   i;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        switch (ngx_http_pd_limits_word(&plcf->limits, &value[i])) {

        case NGX_OK:
            break;

        case NGX_DECLINED:
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\" in \"pd_limit\": "
                               "use " NGX_HTTP_PD_LIMITS, &value[i]);
            return NGX_CONF_ERROR;

        default: /* NGX_ERROR */
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid \"%V\" in \"pd_limit\": a limit is a "
                               "number from 1 to %d, or \"off\"",
                               &value[i], NGX_HTTP_PD_LIMIT_MAX);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


ngx_int_t
ngx_http_pd_limit_claim(ngx_http_pd_ctx_t *ctx)
{
    ngx_str_t                   *model;
    ngx_uint_t                   i;
    ngx_http_pd_limits_t        *limits;
    ngx_http_pd_tenant_t        *known;
    ngx_http_pd_loc_conf_t      *plcf;
    ngx_http_pd_model_limits_t  *others;

    plcf = ngx_http_get_module_loc_conf(ctx->request, ngx_http_pd_module);

    ctx->claim = ngx_pcalloc(ctx->request->pool, sizeof(ngx_http_pd_claim_t));
    if (ctx->claim == NULL) {
        return NGX_ERROR;
    }

    ctx->claim->dry_run = plcf->limit_dry_run;

    limits = &ctx->claim->limits;
    known = ctx->known;

    if (known == NULL) {
        *limits = plcf->limits;
        return ngx_http_pd_limit_output(ctx);
    }

    ngx_http_pd_limits_init(limits);

    model = &ctx->openai.model;
    others = known->others.elts;

    for (i = 0; i < known->others.nelts; i++) {

        if (others[i].model.len == model->len
            && ngx_memcmp(others[i].model.data, model->data, model->len) == 0)
        {
            *limits = others[i].limits;
            break;
        }
    }

    ngx_http_pd_limits_merge(limits, &known->limits);
    ngx_http_pd_limits_merge(limits, &plcf->limits);

    return ngx_http_pd_limit_output(ctx);
}


/* the longest answer: who asks for no length gets as much as is allowed */

static ngx_int_t
ngx_http_pd_limit_output(ngx_http_pd_ctx_t *ctx)
{
    ngx_str_t              param;
    ngx_uint_t             limit;
    ngx_http_pd_openai_t  *openai;

    limit = ctx->claim->limits.output;
    openai = &ctx->openai;

    if (limit == 0
        || (openai->sampling->max_tokens
            && openai->sampling->max_tokens <= limit))
    {
        return NGX_OK;
    }

    /* 16 for a completion may be nobody's wish, but the API's own default */

    if (openai->sampling->max_tokens == 0
        || (openai->surface == NGX_HTTP_PD_OPENAI_COMPLETIONS
            && openai->sampling->max_tokens == 16))
    {
        openai->sampling->max_tokens = limit;
        return NGX_OK;
    }

    ngx_str_set(&param, "max_tokens");

    return ngx_http_pd_error(&ctx->error, ctx->request->pool,
                             NGX_HTTP_BAD_REQUEST,
                             "integer_above_max_value", &param,
                             "'max_tokens' is %uD, and the caller may ask for "
                             "at most %ui", openai->sampling->max_tokens,
                             limit);
}


void
ngx_http_pd_limit_choices(ngx_http_pd_ctx_t *ctx)
{
    ngx_uint_t  i;

    ctx->claim->prompts = ctx->nchoices;

    for (i = 0; i < ctx->nchoices; i++) {
        ctx->claim->bytes += ctx->choices[i].job.prompt_bytes;
        ctx->choices[i].job.claim = ctx->claim;
    }
}


void
ngx_http_pd_limit_names(ngx_http_pd_claim_t *claim, ngx_uint_t reason,
    ngx_str_t *value)
{
    static ngx_str_t  rejected = ngx_string("REJECTED");
    static ngx_str_t  dry_run = ngx_string("REJECTED_DRY_RUN");
    static ngx_str_t  passed = ngx_string("PASSED");
    static ngx_str_t  reasons[] = {
        ngx_null_string,
        ngx_null_string,
        ngx_string("requests"),
        ngx_string("tokens"),
        ngx_string("concurrent"),
        ngx_string("large")
    };

    if (reason) {
        *value = reasons[claim->exempt ? claim->exempt : claim->state];

    } else if (claim->exempt) {
        *value = dry_run;

    } else if (claim->state == NGX_HTTP_PD_CLAIM_PASSED) {
        *value = passed;

    } else if (claim->state != NGX_HTTP_PD_CLAIM_NONE) {
        *value = rejected;
    }
}


ngx_int_t
ngx_http_pd_limit_tell(ngx_http_pd_ctx_t *ctx)
{
    ngx_str_t             reason;
    ngx_http_request_t   *r;
    ngx_http_pd_claim_t  *claim;

    r = ctx->request;
    claim = ctx->claim;

    if (claim->exempt) {
        ngx_http_pd_limit_names(claim, 1, &reason);

        ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                      "pd: request \"%V\" of tenant \"%V\" is over its "
                      "limit (%V), dry run",
                      &ctx->id, &ctx->tenant, &reason);
    }

    if (claim->state == NGX_HTTP_PD_CLAIM_NONE) {
        return NGX_OK;
    }

    if (claim->limits.requests
        && (ngx_http_pd_limit_count(r, "x-ratelimit-limit-requests",
                                    claim->limits.requests)
            != NGX_OK
            || ngx_http_pd_limit_count(r, "x-ratelimit-remaining-requests",
                                       claim->requests)
               != NGX_OK
            || ngx_http_pd_limit_time(r, "x-ratelimit-reset-requests",
                                      claim->requests_us)
               != NGX_OK))
    {
        return NGX_ERROR;
    }

    if (claim->limits.tokens
        && (ngx_http_pd_limit_count(r, "x-ratelimit-limit-tokens",
                                    claim->limits.tokens)
            != NGX_OK
            || ngx_http_pd_limit_count(r, "x-ratelimit-remaining-tokens",
                                       claim->tokens)
               != NGX_OK
            || ngx_http_pd_limit_time(r, "x-ratelimit-reset-tokens",
                                      claim->tokens_us)
               != NGX_OK))
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_limit_count(ngx_http_request_t *r, const char *name, ngx_uint_t n)
{
    ngx_str_t  value;

    value.data = ngx_pnalloc(r->pool, NGX_INT_T_LEN);
    if (value.data == NULL) {
        return NGX_ERROR;
    }

    value.len = ngx_sprintf(value.data, "%ui", n) - value.data;

    return ngx_http_pd_answer_header(r, name, &value);
}


/* as OpenAI writes it: "120ms", "8.640s", "6m0.000s" */

static ngx_int_t
ngx_http_pd_limit_time(ngx_http_request_t *r, const char *name, uint64_t us)
{
    u_char     *p;
    uint64_t    ms;
    ngx_str_t   value;

    ms = (us + 999) / 1000;

    p = ngx_pnalloc(r->pool, NGX_INT64_LEN + sizeof("m00.000s"));
    if (p == NULL) {
        return NGX_ERROR;
    }

    value.data = p;

    if (ms < 1000) {
        p = ngx_sprintf(p, "%uLms", ms);

    } else {

        if (ms >= 60000) {
            p = ngx_sprintf(p, "%uLm", ms / 60000);
            ms %= 60000;
        }

        p = ngx_sprintf(p, "%uL.%03uLs", ms / 1000, ms % 1000);
    }

    value.len = p - value.data;

    return ngx_http_pd_answer_header(r, name, &value);
}


ngx_int_t
ngx_http_pd_limit_prompt(ngx_http_pd_choice_t *choice)
{
    ngx_str_t            param;
    ngx_uint_t           limit;
    ngx_http_pd_ctx_t   *ctx;
    ngx_http_pd_job_t   *job;

    ctx = choice->ctx;
    job = &choice->job;
    limit = ctx->claim->limits.prompt;

    if (limit == 0) {
        return NGX_OK;
    }

    if (job->prompt_tokens == 0) {

        /* not counted yet: what is too long by any tokenizer */

        if (job->prompt_bytes / NGX_HTTP_PD_LIMIT_BYTES <= limit) {
            return NGX_OK;
        }

    } else if (job->prompt_tokens <= limit) {
        return NGX_OK;
    }

    if (ctx->openai.surface == NGX_HTTP_PD_OPENAI_CHAT) {
        ngx_str_set(&param, "messages");

    } else {
        ngx_str_set(&param, "prompt");
    }

    return ngx_http_pd_error(&ctx->error, ctx->request->pool,
                             NGX_HTTP_BAD_REQUEST, "prompt_above_limit",
                             &param, "The prompt is longer than the %ui "
                             "tokens that the caller may send.", limit);
}


ngx_uint_t
ngx_http_pd_limit_spent(ngx_http_pd_choice_t *choice)
{
    ngx_http_pd_job_t  *job;

    job = &choice->job;

    if (job->completion_tokens < job->paid
        || ngx_http_pd_job_more(job) == NGX_OK)
    {
        return 0;
    }

    ngx_log_error(NGX_LOG_INFO, job->log, 0,
                  "pd: request \"%V\" ends after %ui tokens: tenant \"%V\" "
                  "has no more this minute, and the request sets no length",
                  &job->id, job->completion_tokens, &job->tenant);

    return 1;
}


void
ngx_http_pd_limit_refusal(ngx_http_pd_job_t *job, ngx_http_pd_result_t *result)
{
    u_char               *p;
    const char           *what;
    ngx_uint_t            limit;
    ngx_http_pd_claim_t  *claim;

    claim = job->claim;

    result->status = NGX_HTTP_TOO_MANY_REQUESTS;
    result->retry_after = claim->retry_after;
    ngx_str_set(&result->code, "rate_limit_exceeded");

    switch (claim->state) {

    case NGX_HTTP_PD_CLAIM_REQUESTS:
        what = "Rate limit reached: %ui requests a minute.";
        limit = claim->limits.requests;
        break;

    case NGX_HTTP_PD_CLAIM_CONCURRENT:
        what = "Rate limit reached: %ui requests at once.";
        limit = claim->limits.concurrent;
        break;

    case NGX_HTTP_PD_CLAIM_TOKENS:
        what = "Rate limit reached: %ui tokens a minute.";
        limit = claim->limits.tokens;
        break;

    default: /* NGX_HTTP_PD_CLAIM_LARGE */
        what = "The request may need more than the %ui tokens that the caller "
               "has in a minute: send a shorter prompt, or set a smaller "
               "'max_tokens'.";
        limit = claim->limits.tokens;
        result->status = NGX_HTTP_REQUEST_ENTITY_TOO_LARGE;
        result->retry_after = 0;
        ngx_str_set(&result->code, "request_above_limit");
        break;
    }

    p = ngx_pnalloc(job->pool, NGX_HTTP_PD_ERROR_MESSAGE);

    if (p) {
        result->message.data = p;
        result->message.len = ngx_snprintf(p, NGX_HTTP_PD_ERROR_MESSAGE, what,
                                           limit)
                              - p;
    }
}
