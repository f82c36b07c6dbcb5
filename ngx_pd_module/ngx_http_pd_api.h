
/*
 * The HTTP side of the module: one request to the API.
 *
 *     handler.c    which operation a path means; errors of the outermost kind
 *     tenant.c     who asks
 *     limit.c      how much of it he may have
 *     urgency.c    how soon
 *     body.c       the body, in pieces, into the parser
 *     request.c    the request's jobs: submitted, heard, cancelled
 *     answer.c     what answers have in common
 *     stream.c     the answer as server-sent events
 *     response.c   the answer as one JSON text
 *     logprobs.c   log probabilities in either
 *     models.c     GET .../models
 *     filter.c     every error of the location in the API's shape
 *     variables.c  the request's story, for logs and maps
 *
 * A request has "n" choices of each prompt, and each choice is a job.
 * Handlers of a job may end the request, and with it all of its memory: after
 * one that returns NGX_DONE nothing of it may be touched.
 */


#ifndef _NGX_HTTP_PD_API_H_INCLUDED_
#define _NGX_HTTP_PD_API_H_INCLUDED_


#include "ngx_http_pd_module.h"
#include "ngx_http_pd_openai.h"


#define NGX_HTTP_PD_ID_MAX        56    /* of a client's; ours are shorter */


typedef struct ngx_http_pd_ctx_s     ngx_http_pd_ctx_t;
typedef struct ngx_http_pd_choice_s  ngx_http_pd_choice_t;


/*
 * How an answer is written: one for each way.  They return NGX_OK (or
 * NGX_AGAIN: it waits for the client), NGX_ERROR: the connection is broken, or
 * NGX_DECLINED: the answer fails with ctx->error.
 */

typedef struct {
    ngx_int_t  (*delta)(ngx_http_pd_choice_t *choice,
                        ngx_http_pd_delta_t *delta);

    /* a choice has ended well; ctx->running counts those that have not */
    ngx_int_t  (*finish)(ngx_http_pd_choice_t *choice);

    /* the last words, where the header is out already */
    ngx_int_t  (*fail)(ngx_http_pd_ctx_t *ctx);

    /* the answer will go on; what waits in between shall know; may be NULL */
    ngx_int_t  (*pause)(ngx_http_pd_ctx_t *ctx);

} ngx_http_pd_answer_t;


/*
 * Log probabilities of tokens, as far as they wait to be sent: the list of a
 * chat, or the four parallel lists of a completion.
 */

typedef struct {
    ngx_http_pd_rope_t            lists[4];
    ngx_uint_t                    tokens;
} ngx_http_pd_logprobs_t;


/* an answer that is sent in one piece, as far as it has come, escaped */

typedef struct {
    ngx_http_pd_rope_t            text;         /* and all before it */
    ngx_http_pd_rope_t            reasoning;
    ngx_http_pd_logprobs_t        logprobs;
} ngx_http_pd_gathered_t;


struct ngx_http_pd_choice_s {
    ngx_http_pd_job_t             job;
    ngx_http_pd_ctx_t            *ctx;
    ngx_uint_t                    index;
    Pd__V1__FinishReason          finish;

    ngx_http_pd_gathered_t       *gathered;     /* NULL: of a stream */
    ngx_uint_t                    characters;   /* of logprobs' tokens */

    ngx_str_t                     head;         /* of a stream's events; */
    size_t                        open;         /* behind it, of those with
                                                   text: a member begins */

    unsigned                      done:1;
};


/* the events of a stream that wait to be sent, the last one still open */

typedef struct {
    ngx_http_pd_rope_t            out;
    ngx_http_pd_logprobs_t       *logprobs;     /* of the open event; NULL:
                                                   there were none ever */
    ngx_http_pd_choice_t         *choice;       /* whose event is open */
    ngx_uint_t                    kind;         /* and of what; 0: none is */
    ngx_chain_t                  *busy;         /* with the output filters */
} ngx_http_pd_stream_t;


struct ngx_http_pd_ctx_s {
    ngx_http_request_t           *request;
    ngx_str_t                     id;
    ngx_str_t                     traceparent;
    ngx_str_t                     tenant;       /* empty: nobody asked */
    ngx_http_pd_tenant_t         *known;        /* of the key file, or NULL */
    ngx_str_t                     wanted;       /* x-request-timeout-ms */
    ngx_msec_t                    timeout;      /* of the whole request */
    ngx_uint_t                    class;
    ngx_http_pd_claim_t          *claim;        /* NULL: not understood yet */

    ngx_http_pd_openai_t          openai;
    ngx_http_pd_parse_t          *parse;        /* while the body comes */
    ngx_chain_t                  *body;         /* not yet parsed */

    ngx_http_pd_choice_t         *choices;
    ngx_uint_t                    nchoices;
    ngx_uint_t                    running;      /* choices not done */
    ngx_msec_int_t                received;     /* ms: how long that took */

    const ngx_http_pd_answer_t   *answer;
    ngx_str_t                     prefix;       /* how its JSON begins */
    ngx_http_pd_stream_t          stream;

    ngx_http_pd_error_t           error;        /* status 0: none */
    ngx_chain_t                  *error_body;   /* for the filter */

    unsigned                      body_read:1;
    unsigned                      body_shared:1;
    unsigned                      keepalive:1;  /* as it was before an error */
    unsigned                      replace:1;    /* the body that comes */
};


/* --- ngx_http_pd_request.c --- */

/* the request's context, made if there is none; NULL: no memory */
ngx_http_pd_ctx_t *ngx_http_pd_ctx(ngx_http_request_t *r);

/* the context, or NULL if the request has none (yet) */
ngx_http_pd_ctx_t *ngx_http_pd_ctx_peek(ngx_http_request_t *r);

/* $request_time so far, in milliseconds */
ngx_msec_int_t ngx_http_pd_request_age(ngx_http_request_t *r);

/* the body is understood: submits it, or finalizes the request */
void ngx_http_pd_request_run(ngx_http_pd_ctx_t *ctx);

/* finalizes a request that has not answered yet with ctx->error */
void ngx_http_pd_request_refuse(ngx_http_pd_ctx_t *ctx);


/* --- ngx_http_pd_body.c --- */

/* reads the body; then ngx_http_pd_request_run() */
ngx_int_t ngx_http_pd_body(ngx_http_pd_ctx_t *ctx, ngx_uint_t surface);


/* --- ngx_http_pd_stream.c, ngx_http_pd_response.c --- */

ngx_int_t ngx_http_pd_stream_init(ngx_http_pd_ctx_t *ctx);

/* the request is gone: gives back the buffers that it still has */
void ngx_http_pd_stream_free(ngx_http_pd_ctx_t *ctx);

ngx_int_t ngx_http_pd_response_init(ngx_http_pd_ctx_t *ctx);


/* --- ngx_http_pd_answer.c: what both write alike --- */

/* "{"id": ... "choices":[" */
ngx_int_t ngx_http_pd_answer_begin(ngx_http_pd_ctx_t *ctx,
    ngx_http_pd_rope_t *rope);

/* the same as ctx->prefix, with "room" bytes behind it */
ngx_int_t ngx_http_pd_answer_prefix(ngx_http_pd_ctx_t *ctx, size_t room);

/* ""usage":{ ... }" of all choices */
ngx_int_t ngx_http_pd_answer_usage(ngx_http_pd_ctx_t *ctx,
    ngx_http_pd_rope_t *rope);

const char *ngx_http_pd_answer_finish(ngx_http_pd_choice_t *choice);

/* a response in one piece, its header included: a code to finalize with */
ngx_int_t ngx_http_pd_answer_send(ngx_http_request_t *r,
    ngx_http_pd_rope_t *rope);

/* a header of the response; NGX_ERROR: no memory */
ngx_int_t ngx_http_pd_answer_header(ngx_http_request_t *r, const char *name,
    ngx_str_t *value);


/* --- ngx_http_pd_logprobs.c --- */

/* ropes like "rope" */
void ngx_http_pd_logprobs_init(ngx_http_pd_logprobs_t *logprobs,
    ngx_http_pd_rope_t *rope);

/* takes those of a step, if it has any */
ngx_int_t ngx_http_pd_logprobs_add(ngx_http_pd_logprobs_t *logprobs,
    ngx_http_pd_choice_t *choice, ngx_http_pd_delta_t *delta);

/* bytes that wait */
size_t ngx_http_pd_logprobs_size(ngx_http_pd_logprobs_t *logprobs);

/*
 * Moves them behind "rope" as a member "logprobs", or writes that it is null;
 * NULL: there are none.
 */
ngx_int_t ngx_http_pd_logprobs_take(ngx_http_pd_logprobs_t *logprobs,
    ngx_uint_t surface, ngx_http_pd_rope_t *rope);


/* --- ngx_http_pd_models.c --- */

ngx_int_t ngx_http_pd_models(ngx_http_pd_ctx_t *ctx, ngx_str_t *id);


/* --- ngx_http_pd_filter.c, ngx_http_pd_variables.c --- */

ngx_int_t ngx_http_pd_filter_init(ngx_conf_t *cf);
ngx_int_t ngx_http_pd_add_variables(ngx_conf_t *cf);


#endif /* _NGX_HTTP_PD_API_H_INCLUDED_ */
