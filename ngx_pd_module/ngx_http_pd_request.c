
/*
 * A request's jobs, from the parsed body to the last token.
 *
 * The jobs are heard from the worker connections' events, the client from its
 * own, and either may end the request.  What ends it, and why ever, runs the
 * cleanup handler, which cancels what still runs: so the workers stop at once
 * when a client leaves, in whatever stage it does.
 */


#include "ngx_http_pd_limit.h"
#include "ngx_http_pd_policy.h"
#include "ngx_http_pd_tenant.h"
#include "ngx_http_pd_urgency.h"


static void ngx_http_pd_request_headers(ngx_http_pd_ctx_t *ctx);
static ngx_uint_t ngx_http_pd_request_id_valid(ngx_str_t *value, size_t max);
static ngx_int_t ngx_http_pd_request_id(ngx_http_pd_ctx_t *ctx);
static ngx_int_t ngx_http_pd_request_prepare(ngx_http_pd_ctx_t *ctx);
static ngx_int_t ngx_http_pd_request_choices(ngx_http_pd_ctx_t *ctx);
static ngx_int_t ngx_http_pd_request_choice(ngx_http_pd_choice_t *choice);
static void ngx_http_pd_request_watch(ngx_http_request_t *r);
static void ngx_http_pd_request_cleanup(void *data);
static void ngx_http_pd_request_states(ngx_http_pd_ctx_t *ctx);
static void ngx_http_pd_request_anchor(void *data);
static void ngx_http_pd_request_placed(ngx_http_pd_job_t *job);
static ngx_int_t ngx_http_pd_request_delta(ngx_http_pd_job_t *job,
    ngx_http_pd_delta_t *delta);
static ngx_int_t ngx_http_pd_request_cut(ngx_http_pd_choice_t *choice);
static void ngx_http_pd_request_done(ngx_http_pd_job_t *job,
    ngx_http_pd_result_t *result);
static void ngx_http_pd_request_paused(ngx_http_pd_job_t *job);
static void ngx_http_pd_request_end(ngx_http_pd_ctx_t *ctx, ngx_int_t rc);
static void ngx_http_pd_request_result(ngx_http_pd_ctx_t *ctx,
    ngx_http_pd_result_t *result);
static void ngx_http_pd_request_cancel(ngx_http_pd_ctx_t *ctx,
    Pd__V1__Cancel__Reason reason);


static const ngx_http_pd_job_handlers_t  ngx_http_pd_request_handlers = {
    ngx_http_pd_request_placed,
    ngx_http_pd_request_delta,
    ngx_http_pd_request_done,
    ngx_http_pd_request_paused
};


ngx_http_pd_ctx_t *
ngx_http_pd_ctx(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t  *anchor;
    ngx_http_cleanup_t  *cln;
    ngx_http_pd_ctx_t   *ctx;

    ctx = ngx_http_pd_ctx_peek(r);

    if (ctx) {
        return ctx;
    }

    ctx = ngx_pcalloc(r->pool, sizeof(ngx_http_pd_ctx_t));
    anchor = ngx_pool_cleanup_add(r->pool, 0);
    cln = ngx_http_cleanup_add(r, 0);

    if (ctx == NULL || anchor == NULL || cln == NULL) {
        return NULL;
    }

    ctx->request = r;

    ngx_http_pd_request_headers(ctx);

    if (ctx->id.len == 0 && ngx_http_pd_request_id(ctx) != NGX_OK) {
        return NULL;
    }

    anchor->handler = ngx_http_pd_request_anchor;
    anchor->data = ctx;

    cln->handler = ngx_http_pd_request_cleanup;
    cln->data = ctx;

    ngx_http_set_ctx(r, ctx, ngx_http_pd_module);

    return ctx;
}


/*
 * An internal redirect (error_page) clears a request's contexts, but a log
 * still wants the variables: so the pool remembers.
 */

ngx_http_pd_ctx_t *
ngx_http_pd_ctx_peek(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t  *cln;
    ngx_http_pd_ctx_t   *ctx;

    r = r->main;

    ctx = ngx_http_get_module_ctx(r, ngx_http_pd_module);

    if (ctx || !(r->internal || r->filter_finalize)) {
        return ctx;
    }

    for (cln = r->pool->cleanup; cln; cln = cln->next) {

        if (cln->handler == ngx_http_pd_request_anchor) {
            return cln->data;
        }
    }

    return NULL;
}


/* the last that is heard of a request: nobody looks at its output any more */

static void
ngx_http_pd_request_anchor(void *data)
{
    ngx_http_pd_stream_free(data);
}


/* what a client or a proxy in front may say about the request */

static void
ngx_http_pd_request_headers(ngx_http_pd_ctx_t *ctx)
{
    ngx_uint_t           i;
    ngx_list_part_t     *part;
    ngx_table_elt_t     *h;

    static ngx_str_t  id = ngx_string("x-request-id");
    static ngx_str_t  traceparent = ngx_string("traceparent");
    static ngx_str_t  timeout = ngx_string("x-request-timeout-ms");

    part = &ctx->request->headers_in.headers.part;
    h = part->elts;

    for (i = 0; /* void */ ; i++) {

        if (i >= part->nelts) {

            if (part->next == NULL) {
                return;
            }

            part = part->next;
            h = part->elts;
            i = 0;
        }

        if (h[i].key.len == id.len
            && ngx_strncasecmp(h[i].key.data, id.data, id.len) == 0
            && ngx_http_pd_request_id_valid(&h[i].value, NGX_HTTP_PD_ID_MAX))
        {
            ctx->id = h[i].value;
        }

        if (h[i].key.len == traceparent.len
            && ngx_strncasecmp(h[i].key.data, traceparent.data,
                               traceparent.len)
               == 0
            && ngx_http_pd_request_id_valid(&h[i].value, 64))
        {
            ctx->traceparent = h[i].value;
        }

        if (h[i].key.len == timeout.len
            && ngx_strncasecmp(h[i].key.data, timeout.data, timeout.len) == 0)
        {
            ctx->wanted = h[i].value;
        }
    }
}


static ngx_uint_t
ngx_http_pd_request_id_valid(ngx_str_t *value, size_t max)
{
    u_char  ch;
    size_t  i;

    if (value->len == 0 || value->len > max) {
        return 0;
    }

    for (i = 0; i < value->len; i++) {
        ch = value->data[i];

        if ((ch < '0' || ch > '9') && (ch < 'a' || ch > 'z')
            && (ch < 'A' || ch > 'Z') && ch != '-' && ch != '_' && ch != '.')
        {
            return 0;
        }
    }

    return 1;
}


static ngx_int_t
ngx_http_pd_request_id(ngx_http_pd_ctx_t *ctx)
{
    u_char    *p;
    uint64_t   id[2];

    p = ngx_pnalloc(ctx->request->pool, 2 * sizeof(id));
    if (p == NULL) {
        return NGX_ERROR;
    }

    id[0] = ngx_http_pd_random();
    id[1] = ngx_http_pd_random();

    ctx->id.data = p;
    ctx->id.len = ngx_hex_dump(p, (u_char *) id, sizeof(id)) - p;

    return NGX_OK;
}


ngx_msec_int_t
ngx_http_pd_request_age(ngx_http_request_t *r)
{
    ngx_time_t      *tp;
    ngx_msec_int_t   ms;

    tp = ngx_timeofday();

    ms = (ngx_msec_int_t) ((tp->sec - r->start_sec) * 1000
                           + (ngx_msec_int_t) tp->msec
                           - (ngx_msec_int_t) r->start_msec);

    return ngx_max(ms, 0);
}


void
ngx_http_pd_request_run(ngx_http_pd_ctx_t *ctx)
{
    ngx_int_t              rc;
    ngx_uint_t             i;
    ngx_http_request_t    *r;
    ngx_http_pd_result_t   result;

    r = ctx->request;

    ctx->received = ngx_http_pd_request_age(r);

    switch (ngx_http_pd_request_prepare(ctx)) {

    case NGX_OK:
        break;

    case NGX_ABORT:
        ngx_http_pd_request_refuse(ctx);
        return;

    default: /* NGX_ERROR */
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    rc = NGX_OK;

    for (i = 0; i < ctx->nchoices && rc == NGX_OK; i++) {
        rc = ngx_http_pd_job_submit(&ctx->choices[i].job, &result);
    }

    if (ngx_http_pd_limit_tell(ctx) != NGX_OK) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    if (rc != NGX_OK) {
        ngx_http_pd_request_result(ctx, &result);
        ngx_http_pd_request_end(ctx, NGX_DECLINED);
        return;
    }

    ngx_http_pd_request_watch(r);
}


/* NGX_OK: all is ready to be submitted; NGX_ABORT: refused, see ctx->error */

static ngx_int_t
ngx_http_pd_request_prepare(ngx_http_pd_ctx_t *ctx)
{
    ngx_int_t   rc;
    ngx_uint_t  i;

    rc = ngx_http_pd_tenant_model(ctx);

    if (rc == NGX_OK) {
        rc = ngx_http_pd_urgency(ctx);
    }

    if (rc == NGX_OK) {
        rc = ngx_http_pd_limit_claim(ctx);
    }

    if (rc == NGX_OK) {
        rc = ngx_http_pd_request_choices(ctx);
    }

    if (rc != NGX_OK) {
        return rc;
    }

    /* all that it has understood is packed now */

    ngx_http_pd_openai_destroy(ctx->parse);
    ctx->parse = NULL;

    ctx->openai.sampling = NULL;

    ngx_http_pd_limit_choices(ctx);

    for (i = 0; i < ctx->nchoices && rc == NGX_OK; i++) {
        rc = ngx_http_pd_limit_prompt(&ctx->choices[i]);
    }

    return rc;
}


static ngx_int_t
ngx_http_pd_request_choices(ngx_http_pd_ctx_t *ctx)
{
    ngx_uint_t             i;
    ngx_http_request_t    *r;
    ngx_http_pd_choice_t  *choice;

    r = ctx->request;

    ctx->nchoices = ctx->openai.prompts.nelts * ctx->openai.n;
    ctx->running = ctx->nchoices;

    ctx->choices = ngx_pcalloc(r->pool,
                               ctx->nchoices * sizeof(ngx_http_pd_choice_t));
    if (ctx->choices == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < ctx->nchoices; i++) {
        choice = &ctx->choices[i];

        choice->ctx = ctx;
        choice->index = i;

        if (ngx_http_pd_request_choice(choice) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return ctx->openai.stream ? ngx_http_pd_stream_init(ctx)
                              : ngx_http_pd_response_init(ctx);
}


static ngx_int_t
ngx_http_pd_request_choice(ngx_http_pd_choice_t *choice)
{
    ngx_uint_t               first;
    ngx_http_request_t      *r;
    ngx_http_pd_ctx_t       *ctx;
    ngx_http_pd_job_t       *job;
    ngx_http_pd_submit_t     about;
    ngx_http_pd_loc_conf_t  *plcf;

    ctx = choice->ctx;
    r = ctx->request;

    plcf = ngx_http_get_module_loc_conf(r, ngx_http_pd_module);

    job = &choice->job;

    job->cluster = plcf->pass;
    job->handlers = &ngx_http_pd_request_handlers;
    job->data = choice;
    job->pool = r->pool;
    job->log = r->connection->log;
    job->request = r;
    job->model = ctx->openai.model;
    job->tenant = ctx->tenant;
    job->id = ctx->id;
    job->max_tokens = ctx->openai.sampling->max_tokens;
    job->deadline = ctx->timeout;
    job->hurried = (ctx->timeout < plcf->timeout);
    job->queue_timeout = plcf->queue_timeout;
    job->class = ctx->class;
    job->weight = ctx->known ? ctx->known->weight : 1;
    job->failover_buffer = plcf->failover_buffer;
    job->submit_shared = (ctx->openai.n > 1);

    job->prompt_bytes =
                 ngx_http_pd_openai_prompt(&ctx->openai, choice->index)->size;

    if (ngx_http_pd_policy_keys(job->cluster, r, &job->hash_key,
                                &job->sticky_key)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (choice->index) {
        job->id.data = ngx_pnalloc(r->pool, ctx->id.len + NGX_INT_T_LEN + 1);
        if (job->id.data == NULL) {
            return NGX_ERROR;
        }

        job->id.len = ngx_sprintf(job->id.data, "%V-%ui", &ctx->id,
                                  choice->index)
                      - job->id.data;
    }

    /* answers to one prompt share its blocks where they meet */

    if (ctx->openai.n > 1 && job->sticky_key.len == 0) {
        first = choice->index - choice->index % ctx->openai.n;
        job->sticky_key = ctx->choices[first].job.id;
    }

    about.id = job->id;
    about.tenant = job->tenant;
    about.traceparent = ctx->traceparent;
    about.deadline = ctx->timeout;
    about.urgent = (ctx->class == NGX_HTTP_PD_CLASS_INTERACTIVE);

    return ngx_http_pd_openai_submit(&ctx->openai, choice->index, &about,
                                     &job->submit, &job->options);
}


/* notices a client that leaves while the request waits */

static void
ngx_http_pd_request_watch(ngx_http_request_t *r)
{
    ngx_connection_t  *c;

    c = r->connection;

    r->read_event_handler = ngx_http_test_reading;

    if (ngx_handle_read_event(c->read, 0) != NGX_OK) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    /* a FIN that came together with the body has had its event already */

    if (c->read->pending_eof || c->read->ready) {
        ngx_post_event(c->read, &ngx_posted_events);
    }
}


static void
ngx_http_pd_request_cleanup(void *data)
{
    ngx_http_pd_ctx_t *ctx = data;

    if (ctx->parse) {
        ngx_http_pd_openai_destroy(ctx->parse);
        ctx->parse = NULL;
    }

    ngx_http_pd_request_cancel(ctx, PD__V1__CANCEL__REASON__CLIENT_GONE);
    ngx_http_pd_request_states(ctx);
}


static void
ngx_http_pd_request_cancel(ngx_http_pd_ctx_t *ctx,
    Pd__V1__Cancel__Reason reason)
{
    ngx_uint_t  i;

    for (i = 0; i < ctx->nchoices; i++) {

        if (!ctx->choices[i].done) {
            ctx->choices[i].done = 1;
            ngx_http_pd_job_cancel(&ctx->choices[i].job, reason);
        }
    }
}


/* for $upstream_addr and its kin */

static void
ngx_http_pd_request_states(ngx_http_pd_ctx_t *ctx)
{
    ngx_uint_t                  i, n;
    ngx_http_request_t         *r;
    ngx_http_pd_job_peer_t     *peers[2];
    ngx_http_upstream_state_t  *state;

    r = ctx->request;

    for (i = 0; i < ctx->nchoices; i++) {

        peers[0] = &ctx->choices[i].job.prefill;
        peers[1] = &ctx->choices[i].job.decode;

        for (n = 0; n < 2; n++) {

            if (peers[n]->name.len == 0) {
                continue;
            }

            if (r->upstream_states == NULL) {
                r->upstream_states = ngx_array_create(r->pool, 2,
                                           sizeof(ngx_http_upstream_state_t));
                if (r->upstream_states == NULL) {
                    return;
                }
            }

            state = ngx_array_push(r->upstream_states);
            if (state == NULL) {
                return;
            }

            ngx_memzero(state, sizeof(ngx_http_upstream_state_t));

            state->status = peers[n]->status;
            state->connect_time = (ngx_msec_t) -1;
            state->header_time = peers[n]->header_time;
            state->response_time = peers[n]->response_time;
            state->bytes_sent = peers[n]->bytes_sent;
            state->peer = &peers[n]->name;
        }
    }
}


void
ngx_http_pd_request_refuse(ngx_http_pd_ctx_t *ctx)
{
    ngx_http_request_t  *r;

    r = ctx->request;

    ngx_log_error(NGX_LOG_INFO, r->connection->log, 0,
                  "pd: request \"%V\" refused with %ui: %V", &ctx->id,
                  ctx->error.status, &ctx->error.message);

    ngx_http_finalize_request(r, ctx->error.status);
}


static void
ngx_http_pd_request_placed(ngx_http_pd_job_t *job)
{
    ngx_connection_t      *c;
    ngx_http_request_t    *r;
    ngx_http_pd_choice_t  *choice;

    choice = job->data;
    r = choice->ctx->request;
    c = r->connection;

    if (ngx_http_pd_limit_prompt(choice) == NGX_OK) {
        return;
    }

    ngx_http_set_log_request(c->log, r);

    ngx_http_pd_request_end(choice->ctx, NGX_DECLINED);
    ngx_http_run_posted_requests(c);
}


static ngx_int_t
ngx_http_pd_request_delta(ngx_http_pd_job_t *job, ngx_http_pd_delta_t *delta)
{
    ngx_int_t              rc;
    ngx_connection_t      *c;
    ngx_http_request_t    *r;
    ngx_http_pd_choice_t  *choice;

    choice = job->data;
    r = choice->ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    rc = choice->ctx->answer->delta(choice, delta);

    if (rc == NGX_OK || rc == NGX_AGAIN) {

        if (delta->last || !ngx_http_pd_limit_spent(choice)) {
            return NGX_OK;
        }

        rc = ngx_http_pd_request_cut(choice);

        if ((rc == NGX_OK || rc == NGX_AGAIN) && choice->ctx->running) {
            return NGX_DONE;
        }
    }

    ngx_http_pd_request_end(choice->ctx, rc);
    ngx_http_run_posted_requests(c);

    return NGX_DONE;
}


/* the answer ends here, as if it could be no longer */

static ngx_int_t
ngx_http_pd_request_cut(ngx_http_pd_choice_t *choice)
{
    choice->done = 1;
    choice->ctx->running--;
    choice->finish = PD__V1__FINISH_REASON__FINISH_LENGTH;

    ngx_http_pd_job_cancel(&choice->job,
                           PD__V1__CANCEL__REASON__FINISHED_ELSEWHERE);

    return choice->ctx->answer->finish(choice);
}


static void
ngx_http_pd_request_done(ngx_http_pd_job_t *job, ngx_http_pd_result_t *result)
{
    ngx_int_t              rc;
    ngx_connection_t      *c;
    ngx_http_request_t    *r;
    ngx_http_pd_ctx_t     *ctx;
    ngx_http_pd_choice_t  *choice;

    choice = job->data;
    ctx = choice->ctx;
    r = ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    choice->done = 1;
    ctx->running--;

    if (result->status == NGX_HTTP_OK) {
        choice->finish = result->finish;

        rc = ctx->answer->finish(choice);

        if ((rc == NGX_OK || rc == NGX_AGAIN) && ctx->running) {
            return;
        }

    } else {
        ngx_http_pd_request_result(ctx, result);
        rc = NGX_DECLINED;
    }

    ngx_http_pd_request_end(ctx, rc);
    ngx_http_run_posted_requests(c);
}


static void
ngx_http_pd_request_paused(ngx_http_pd_job_t *job)
{
    ngx_connection_t      *c;
    ngx_http_request_t    *r;
    ngx_http_pd_choice_t  *choice;

    choice = job->data;
    r = choice->ctx->request;
    c = r->connection;

    if (choice->ctx->answer->pause == NULL) {
        return;
    }

    ngx_http_set_log_request(c->log, r);

    if (choice->ctx->answer->pause(choice->ctx) == NGX_ERROR) {
        ngx_http_pd_request_end(choice->ctx, NGX_ERROR);
        ngx_http_run_posted_requests(c);
    }
}


/* NGX_DECLINED: it fails with ctx->error; else what to finalize it with */

static void
ngx_http_pd_request_end(ngx_http_pd_ctx_t *ctx, ngx_int_t rc)
{
    ngx_http_request_t  *r;

    r = ctx->request;

    if (rc == NGX_DECLINED) {
        ngx_http_pd_request_cancel(ctx,
                                   PD__V1__CANCEL__REASON__FINISHED_ELSEWHERE);

        if (!r->header_sent) {
            ngx_http_pd_request_refuse(ctx);
            return;
        }

        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "pd: request \"%V\" failed after its answer had begun: "
                      "%V", &ctx->id, &ctx->error.message);

        rc = ctx->answer->fail(ctx);
    }

    ngx_http_finalize_request(r, rc);
}


static void
ngx_http_pd_request_result(ngx_http_pd_ctx_t *ctx,
    ngx_http_pd_result_t *result)
{
    ngx_http_pd_error_t  *error;

    error = &ctx->error;

    ngx_http_pd_error_status(error, result->status);

    error->param = result->param;
    error->retry_after = result->retry_after;

    if (result->message.len) {
        error->message = result->message;
    }

    if (result->code.len) {
        error->code = result->code;
    }
}
