
/*
 * A request's story as variables, for logs, maps and headers.
 *
 * Times are seconds with microseconds, and empty (a "-" in a log) where the
 * request did not come so far.  Where a request has several prompts, tokens are
 * those of all, and the rest is the first one's.
 */


#include "ngx_http_pd_api.h"
#include "ngx_http_pd_limit.h"
#include "ngx_http_pd_ready.h"


typedef enum {
    NGX_HTTP_PD_VAR_ID = 0,
    NGX_HTTP_PD_VAR_MODEL,
    NGX_HTTP_PD_VAR_ROUTE,
    NGX_HTTP_PD_VAR_ROUTE_REASON,
    NGX_HTTP_PD_VAR_PREFILL_ADDR,
    NGX_HTTP_PD_VAR_DECODE_ADDR,
    NGX_HTTP_PD_VAR_KV_TRANSPORT,
    NGX_HTTP_PD_VAR_BORROWED_FROM,
    NGX_HTTP_PD_VAR_FINISH,
    NGX_HTTP_PD_VAR_TENANT,
    NGX_HTTP_PD_VAR_CLASS,
    NGX_HTTP_PD_VAR_LIMIT_STATUS,
    NGX_HTTP_PD_VAR_LIMIT_REASON,
    NGX_HTTP_PD_VAR_ERROR
} ngx_http_pd_text_e;


typedef enum {
    NGX_HTTP_PD_VAR_PREFILL = 0,
    NGX_HTTP_PD_VAR_KV,
    NGX_HTTP_PD_VAR_KV_WAIT,
    NGX_HTTP_PD_VAR_KV_WIRE,
    NGX_HTTP_PD_VAR_TTFT,
    NGX_HTTP_PD_VAR_SECOND,
    NGX_HTTP_PD_VAR_TPOT
} ngx_http_pd_time_e;


/* the spans of a request's time, one behind the other */

typedef enum {
    NGX_HTTP_PD_SPAN_RECEIVE = 0,
    NGX_HTTP_PD_SPAN_QUEUE,
    NGX_HTTP_PD_SPAN_PLACE,
    NGX_HTTP_PD_SPAN_FIRST,
    NGX_HTTP_PD_SPAN_ANSWER,
    NGX_HTTP_PD_SPAN_END
} ngx_http_pd_span_e;


typedef enum {
    NGX_HTTP_PD_VAR_ESTIMATE = 0,
    NGX_HTTP_PD_VAR_AFFINITY,
    NGX_HTTP_PD_VAR_PROMPT_TOKENS,
    NGX_HTTP_PD_VAR_CACHED_TOKENS,
    NGX_HTTP_PD_VAR_BORROWED_TOKENS,
    NGX_HTTP_PD_VAR_COMPLETION_TOKENS,
    NGX_HTTP_PD_VAR_KV_BYTES,
    NGX_HTTP_PD_VAR_KV_CHUNKS,
    NGX_HTTP_PD_VAR_RESERVED,
    NGX_HTTP_PD_VAR_FAILOVERS
} ngx_http_pd_count_e;


static ngx_int_t ngx_http_pd_variable_text(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_pd_variable_time(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_pd_variable_span_of(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static uint64_t ngx_http_pd_variable_total(ngx_http_request_t *r);
static ngx_int_t ngx_http_pd_variable_seconds(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uint64_t us);
static ngx_int_t ngx_http_pd_variable_count(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_pd_variable_degraded(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_pd_variable_choice(ngx_http_pd_choice_t *choice,
    uintptr_t data, ngx_str_t *value);
static uint64_t ngx_http_pd_variable_span(uint64_t from, uint64_t to);
static ngx_int_t ngx_http_pd_variable_set(ngx_http_variable_value_t *v,
    ngx_str_t *value);
static void ngx_http_pd_variable_name(ngx_str_t *value, const char *name);


#define NGX_HTTP_PD_VAR_UNKNOWN  ((uint64_t) -1)


#define ngx_http_pd_variable(name, handler, data)                             \
    { ngx_string(name), NULL, handler, data, NGX_HTTP_VAR_NOCACHEABLE, 0 }


static ngx_http_variable_t  ngx_http_pd_vars[] = {

    ngx_http_pd_variable("pd_request_id", ngx_http_pd_variable_text,
                         NGX_HTTP_PD_VAR_ID),
    ngx_http_pd_variable("pd_model", ngx_http_pd_variable_text,
                         NGX_HTTP_PD_VAR_MODEL),
    ngx_http_pd_variable("pd_tenant", ngx_http_pd_variable_text,
                         NGX_HTTP_PD_VAR_TENANT),
    ngx_http_pd_variable("pd_class", ngx_http_pd_variable_text,
                         NGX_HTTP_PD_VAR_CLASS),
    ngx_http_pd_variable("pd_limit_status", ngx_http_pd_variable_text,
                         NGX_HTTP_PD_VAR_LIMIT_STATUS),
    ngx_http_pd_variable("pd_limit_reason", ngx_http_pd_variable_text,
                         NGX_HTTP_PD_VAR_LIMIT_REASON),
    ngx_http_pd_variable("pd_route", ngx_http_pd_variable_text,
                         NGX_HTTP_PD_VAR_ROUTE),
    ngx_http_pd_variable("pd_route_reason", ngx_http_pd_variable_text,
                         NGX_HTTP_PD_VAR_ROUTE_REASON),
    ngx_http_pd_variable("pd_prefill_addr", ngx_http_pd_variable_text,
                         NGX_HTTP_PD_VAR_PREFILL_ADDR),
    ngx_http_pd_variable("pd_decode_addr", ngx_http_pd_variable_text,
                         NGX_HTTP_PD_VAR_DECODE_ADDR),
    ngx_http_pd_variable("pd_kv_transport", ngx_http_pd_variable_text,
                         NGX_HTTP_PD_VAR_KV_TRANSPORT),
    ngx_http_pd_variable("pd_borrowed_from", ngx_http_pd_variable_text,
                         NGX_HTTP_PD_VAR_BORROWED_FROM),
    ngx_http_pd_variable("pd_finish_reason", ngx_http_pd_variable_text,
                         NGX_HTTP_PD_VAR_FINISH),
    ngx_http_pd_variable("pd_error", ngx_http_pd_variable_text,
                         NGX_HTTP_PD_VAR_ERROR),

    ngx_http_pd_variable("pd_receive_time", ngx_http_pd_variable_span_of,
                         NGX_HTTP_PD_SPAN_RECEIVE),
    ngx_http_pd_variable("pd_queue_time", ngx_http_pd_variable_span_of,
                         NGX_HTTP_PD_SPAN_QUEUE),
    ngx_http_pd_variable("pd_place_time", ngx_http_pd_variable_span_of,
                         NGX_HTTP_PD_SPAN_PLACE),
    ngx_http_pd_variable("pd_first_time", ngx_http_pd_variable_span_of,
                         NGX_HTTP_PD_SPAN_FIRST),
    ngx_http_pd_variable("pd_answer_time", ngx_http_pd_variable_span_of,
                         NGX_HTTP_PD_SPAN_ANSWER),
    ngx_http_pd_variable("pd_end_time", ngx_http_pd_variable_span_of,
                         NGX_HTTP_PD_SPAN_END),
    ngx_http_pd_variable("pd_prefill_time", ngx_http_pd_variable_time,
                         NGX_HTTP_PD_VAR_PREFILL),
    ngx_http_pd_variable("pd_kv_time", ngx_http_pd_variable_time,
                         NGX_HTTP_PD_VAR_KV),
    ngx_http_pd_variable("pd_kv_wait_time", ngx_http_pd_variable_time,
                         NGX_HTTP_PD_VAR_KV_WAIT),
    ngx_http_pd_variable("pd_kv_wire_time", ngx_http_pd_variable_time,
                         NGX_HTTP_PD_VAR_KV_WIRE),
    ngx_http_pd_variable("pd_ttft", ngx_http_pd_variable_time,
                         NGX_HTTP_PD_VAR_TTFT),
    ngx_http_pd_variable("pd_second_token_time", ngx_http_pd_variable_time,
                         NGX_HTTP_PD_VAR_SECOND),
    ngx_http_pd_variable("pd_tpot", ngx_http_pd_variable_time,
                         NGX_HTTP_PD_VAR_TPOT),

    ngx_http_pd_variable("pd_prompt_estimate", ngx_http_pd_variable_count,
                         NGX_HTTP_PD_VAR_ESTIMATE),
    ngx_http_pd_variable("pd_affinity", ngx_http_pd_variable_count,
                         NGX_HTTP_PD_VAR_AFFINITY),
    ngx_http_pd_variable("pd_prompt_tokens", ngx_http_pd_variable_count,
                         NGX_HTTP_PD_VAR_PROMPT_TOKENS),
    ngx_http_pd_variable("pd_cached_tokens", ngx_http_pd_variable_count,
                         NGX_HTTP_PD_VAR_CACHED_TOKENS),
    ngx_http_pd_variable("pd_borrowed_tokens", ngx_http_pd_variable_count,
                         NGX_HTTP_PD_VAR_BORROWED_TOKENS),
    ngx_http_pd_variable("pd_completion_tokens", ngx_http_pd_variable_count,
                         NGX_HTTP_PD_VAR_COMPLETION_TOKENS),
    ngx_http_pd_variable("pd_kv_bytes", ngx_http_pd_variable_count,
                         NGX_HTTP_PD_VAR_KV_BYTES),
    ngx_http_pd_variable("pd_kv_chunks", ngx_http_pd_variable_count,
                         NGX_HTTP_PD_VAR_KV_CHUNKS),
    ngx_http_pd_variable("pd_reserved_tokens", ngx_http_pd_variable_count,
                         NGX_HTTP_PD_VAR_RESERVED),
    ngx_http_pd_variable("pd_degraded", ngx_http_pd_variable_degraded, 0),
    ngx_http_pd_variable("pd_failovers", ngx_http_pd_variable_count,
                         NGX_HTTP_PD_VAR_FAILOVERS),

      ngx_http_null_variable
};


ngx_int_t
ngx_http_pd_add_variables(ngx_conf_t *cf)
{
    ngx_http_variable_t  *var, *v;

    for (v = ngx_http_pd_vars; v->name.len; v++) {
        var = ngx_http_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_variable_text(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    ngx_str_t                value;
    ngx_http_pd_ctx_t       *ctx;
    ngx_http_pd_loc_conf_t  *plcf;

    ngx_str_null(&value);

    ctx = ngx_http_pd_ctx_peek(r);

    /* an id is given to whoever asks first, access rules for example */

    if (ctx == NULL && data == NGX_HTTP_PD_VAR_ID && r == r->main) {
        plcf = ngx_http_get_module_loc_conf(r, ngx_http_pd_module);

        if (plcf->pass) {
            ctx = ngx_http_pd_ctx(r);
        }
    }

    if (ctx == NULL) {
        return ngx_http_pd_variable_set(v, &value);
    }

    switch (data) {

    case NGX_HTTP_PD_VAR_ID:
        value = ctx->id;
        break;

    case NGX_HTTP_PD_VAR_MODEL:
        value = ctx->openai.model;
        break;

    case NGX_HTTP_PD_VAR_TENANT:
        value = ctx->tenant;
        break;

    case NGX_HTTP_PD_VAR_CLASS:

        if (ctx->timeout) {
            value = *ngx_http_pd_class_name(ctx->class);
        }

        break;

    case NGX_HTTP_PD_VAR_LIMIT_STATUS:
    case NGX_HTTP_PD_VAR_LIMIT_REASON:

        if (ctx->claim) {
            ngx_http_pd_limit_names(ctx->claim,
                                    data == NGX_HTTP_PD_VAR_LIMIT_REASON,
                                    &value);
        }

        break;

    case NGX_HTTP_PD_VAR_ERROR:

        if (ctx->error.status) {
            value = ctx->error.code;
        }

        break;

    default:

        if (ctx->nchoices) {
            ngx_http_pd_variable_choice(&ctx->choices[0], data, &value);
        }

        break;
    }

    return ngx_http_pd_variable_set(v, &value);
}


static ngx_int_t
ngx_http_pd_variable_choice(ngx_http_pd_choice_t *choice, uintptr_t data,
    ngx_str_t *value)
{
    ngx_http_pd_job_t  *job;

    job = &choice->job;

    switch (data) {

    case NGX_HTTP_PD_VAR_ROUTE:

        if (job->route == NGX_HTTP_PD_ROUTE_DIRECT) {
            ngx_http_pd_variable_name(value, "direct");

        } else if (job->route == NGX_HTTP_PD_ROUTE_SPLIT) {
            ngx_http_pd_variable_name(value, "split");
        }

        break;

    case NGX_HTTP_PD_VAR_ROUTE_REASON:
        ngx_http_pd_variable_name(value, job->route_reason);
        break;

    case NGX_HTTP_PD_VAR_PREFILL_ADDR:
        *value = job->prefill.name;
        break;

    case NGX_HTTP_PD_VAR_DECODE_ADDR:
        *value = job->decode.name;
        break;

    case NGX_HTTP_PD_VAR_KV_TRANSPORT:
        ngx_http_pd_variable_name(value,
                                  (const char *) job->decode.kv_transport);
        break;

    case NGX_HTTP_PD_VAR_BORROWED_FROM:
        *value = job->borrowed_from;
        break;

    default: /* NGX_HTTP_PD_VAR_FINISH */

        if (choice->finish != PD__V1__FINISH_REASON__FINISH_NONE) {
            ngx_http_pd_variable_name(value,
                                      ngx_http_pd_answer_finish(choice));
        }

        break;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_variable_time(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    uint64_t            us;
    ngx_str_t           value;
    ngx_http_pd_ctx_t  *ctx;
    ngx_http_pd_job_t  *job;

    ngx_str_null(&value);

    ctx = ngx_http_pd_ctx_peek(r);

    if (ctx == NULL || ctx->nchoices == 0) {
        return ngx_http_pd_variable_set(v, &value);
    }

    job = &ctx->choices[0].job;
    us = NGX_HTTP_PD_VAR_UNKNOWN;

    switch (data) {

    case NGX_HTTP_PD_VAR_PREFILL:
        us = job->prefill.name.len ? job->prefill.prefill_us
                                   : job->decode.prefill_us;

        if (us == 0) {

            /* the worker has not said yet */

            us = NGX_HTTP_PD_VAR_UNKNOWN;
        }

        break;

    case NGX_HTTP_PD_VAR_KV:
    case NGX_HTTP_PD_VAR_KV_WAIT:
    case NGX_HTTP_PD_VAR_KV_WIRE:

        if (job->prefill.name.len
            && ctx->choices[0].finish != PD__V1__FINISH_REASON__FINISH_NONE)
        {
            us = (data == NGX_HTTP_PD_VAR_KV) ? job->decode.kv_exposed_us
                 : (data == NGX_HTTP_PD_VAR_KV_WAIT) ? job->decode.kv_wait_us
                                                     : job->decode.kv_wire_us;
        }

        break;

    case NGX_HTTP_PD_VAR_TTFT:
        us = ngx_http_pd_variable_span(job->submitted_us, job->first_us);
        break;

    case NGX_HTTP_PD_VAR_SECOND:
        us = ngx_http_pd_variable_span(job->first_us, job->second_us);
        break;

    default: /* NGX_HTTP_PD_VAR_TPOT */

        if (job->completion_tokens > 1 && job->last_us >= job->first_us) {
            us = (job->last_us - job->first_us) / (job->completion_tokens - 1);
        }

        break;
    }

    return ngx_http_pd_variable_seconds(r, v, us);
}


static ngx_int_t
ngx_http_pd_variable_seconds(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uint64_t us)
{
    ngx_str_t  value;

    ngx_str_null(&value);

    if (us == NGX_HTTP_PD_VAR_UNKNOWN) {
        return ngx_http_pd_variable_set(v, &value);
    }

    value.data = ngx_pnalloc(r->pool, NGX_INT64_LEN + sizeof(".000000") - 1);
    if (value.data == NULL) {
        return NGX_ERROR;
    }

    value.len = ngx_sprintf(value.data, "%uL.%06uL", us / 1000000,
                            us % 1000000)
                - value.data;

    return ngx_http_pd_variable_set(v, &value);
}


/*
 * Spans lie between marks, in order; the first begins with the request, the
 * last ends when the log is written, both by the clock of $request_time, so
 * that all of them add up to it.  A mark that was not reached makes its span
 * unknown, and its time goes to the last one.
 *
 *     start  submitted  sent  placed  first token  last token   log
 *       |receive |queue  |place |first     |answer     |end      |
 */

static ngx_int_t
ngx_http_pd_variable_span_of(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    uint64_t            us, from, total, marks[NGX_HTTP_PD_SPAN_END];
    ngx_uint_t          i;
    ngx_http_pd_ctx_t  *ctx;
    ngx_http_pd_job_t  *job;

    ctx = ngx_http_pd_ctx_peek(r);

    if (ctx == NULL || ctx->nchoices == 0
        || ctx->choices[0].job.submitted_us == 0)
    {
        return ngx_http_pd_variable_seconds(r, v, NGX_HTTP_PD_VAR_UNKNOWN);
    }

    job = &ctx->choices[0].job;

    marks[NGX_HTTP_PD_SPAN_RECEIVE] = job->submitted_us;
    marks[NGX_HTTP_PD_SPAN_QUEUE] = job->sent_us;
    marks[NGX_HTTP_PD_SPAN_PLACE] = job->placed_us;
    marks[NGX_HTTP_PD_SPAN_FIRST] = job->first_us;
    marks[NGX_HTTP_PD_SPAN_ANSWER] = job->last_us;

    total = ngx_http_pd_variable_total(r);
    from = 0;

    for (i = 0; i < NGX_HTTP_PD_SPAN_END; i++) {

        if (marks[i] == 0) {
            us = NGX_HTTP_PD_VAR_UNKNOWN;

        } else {
            us = (uint64_t) ctx->received * 1000 + marks[i]
                 - job->submitted_us;
            us = ngx_max(ngx_min(us, total), from) - from;
            from += us;
        }

        if (i == data) {
            return ngx_http_pd_variable_seconds(r, v, us);
        }
    }

    return ngx_http_pd_variable_seconds(r, v, total - from);
}


/* $request_time, in us */

static uint64_t
ngx_http_pd_variable_total(ngx_http_request_t *r)
{
    return (uint64_t) ngx_http_pd_request_age(r) * 1000;
}


static ngx_int_t
ngx_http_pd_variable_count(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    uint64_t            n;
    ngx_str_t           value;
    ngx_uint_t          i;
    ngx_http_pd_ctx_t  *ctx;
    ngx_http_pd_job_t  *job;

    ngx_str_null(&value);

    ctx = ngx_http_pd_ctx_peek(r);

    if (ctx == NULL || ctx->nchoices == 0) {
        return ngx_http_pd_variable_set(v, &value);
    }

    n = 0;

    for (i = 0; i < ctx->nchoices; i++) {
        job = &ctx->choices[i].job;

        switch (data) {

        /* a prompt counts once, however many choices it has */

        case NGX_HTTP_PD_VAR_ESTIMATE:
            n += job->estimate;
            break;

        case NGX_HTTP_PD_VAR_AFFINITY:
            n += job->affinity;
            break;

        case NGX_HTTP_PD_VAR_PROMPT_TOKENS:
            n += (i % ctx->openai.n == 0) ? job->prompt_tokens : 0;
            break;

        case NGX_HTTP_PD_VAR_CACHED_TOKENS:
            n += (i % ctx->openai.n == 0) ? job->cached_tokens : 0;
            break;

        case NGX_HTTP_PD_VAR_BORROWED_TOKENS:
            n += job->borrowed_tokens;
            break;

        case NGX_HTTP_PD_VAR_COMPLETION_TOKENS:
            n += job->completion_tokens;
            break;

        case NGX_HTTP_PD_VAR_RESERVED:
            n = ctx->claim->reserved;
            break;

        case NGX_HTTP_PD_VAR_KV_BYTES:
            n += job->decode.kv_bytes;
            break;

        case NGX_HTTP_PD_VAR_KV_CHUNKS:
            n += job->decode.kv_chunks;
            break;

        default: /* NGX_HTTP_PD_VAR_FAILOVERS */
            n += job->failovers;
            break;
        }
    }

    value.data = ngx_pnalloc(r->pool, NGX_INT64_LEN);
    if (value.data == NULL) {
        return NGX_ERROR;
    }

    value.len = ngx_sprintf(value.data, "%uL", n) - value.data;

    return ngx_http_pd_variable_set(v, &value);
}


/* of the cluster of the location */

static ngx_int_t
ngx_http_pd_variable_degraded(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t                value;
    ngx_http_pd_loc_conf_t  *plcf;

    ngx_str_null(&value);

    plcf = ngx_http_get_module_loc_conf(r, ngx_http_pd_module);

    if (plcf->pass) {
        value.len = 1;
        value.data = (u_char *) (ngx_http_pd_ready_degraded(plcf->pass)
                                 ? "1" : "0");
    }

    return ngx_http_pd_variable_set(v, &value);
}


/* unknown if either has not come */

static uint64_t
ngx_http_pd_variable_span(uint64_t from, uint64_t to)
{
    return (from && to >= from) ? to - from : NGX_HTTP_PD_VAR_UNKNOWN;
}


static ngx_int_t
ngx_http_pd_variable_set(ngx_http_variable_value_t *v, ngx_str_t *value)
{
    if (value->len == 0) {
        v->not_found = 1;
        return NGX_OK;
    }

    v->data = value->data;
    v->len = value->len;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}


static void
ngx_http_pd_variable_name(ngx_str_t *value, const char *name)
{
    if (name) {
        value->data = (u_char *) name;
        value->len = ngx_strlen(name);
    }
}
