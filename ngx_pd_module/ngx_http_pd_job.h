
/*
 * A job: one submission on its way through the cluster.
 *
 * The dispatcher (cluster, zone, attach, dispatch) owns how a job is queued,
 * which workers it goes to and what their messages mean.  A consumer (an HTTP
 * request, a health canary) owns what to ask and what to do with the answer.
 * This header is all that the two share.
 *
 *     consumer                       dispatcher
 *     --------                       ----------
 *     fill the job
 *     ngx_http_pd_job_submit() ----> queue, choose P and D, send
 *                        placed <--- exact prompt and cached tokens
 *                         delta <--- text of one step, in order, no repeats
 *                          done <--- exactly once; the job is the consumer's
 *     ngx_http_pd_job_cancel() ----> both workers are told at once; no done
 *
 * Handlers run from the worker connection's read event.  They may finalize
 * their request; the dispatcher touches neither job nor request after a
 * handler has returned NGX_DONE.  The dispatcher finds jobs by number, never
 * by a pointer that came back from a worker.
 */


#ifndef _NGX_HTTP_PD_JOB_H_INCLUDED_
#define _NGX_HTTP_PD_JOB_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "proto/pd.pb-c.h"

#include "ngx_http_pd_step.h"


typedef struct ngx_http_pd_cluster_s  ngx_http_pd_cluster_t;
typedef struct ngx_http_pd_job_s      ngx_http_pd_job_t;
typedef struct ngx_http_pd_claim_s    ngx_http_pd_claim_t;


/* what one step gave this job; valid during the handler's call only */

typedef struct {
    ngx_str_t                  text;
    ngx_str_t                  reasoning;
    Pd__V1__TokenLogprob     **logprobs;   /* of tokens, the last ones */
    size_t                     nlogprobs;
    ngx_uint_t                 tokens;     /* new tokens in this delta */
    ngx_uint_t                 last;       /* of its worker */
} ngx_http_pd_delta_t;


/* what an end says of us: see ngx_http_pd_verdict.h */

typedef enum {
    NGX_HTTP_PD_VERDICT_NONE = 0,
    NGX_HTTP_PD_VERDICT_FINISHED,
    NGX_HTTP_PD_VERDICT_FAILED
} ngx_http_pd_verdict_e;


typedef struct {
    ngx_uint_t                 status;     /* HTTP status: 200 if it ended well */
    Pd__V1__FinishReason       finish;     /* with 200 */
    ngx_str_t                  message;    /* else: one sentence, in job->pool */
    ngx_str_t                  param;      /* field at fault, may be empty */
    ngx_str_t                  code;       /* OpenAI error code, may be empty */
    ngx_uint_t                 retry_after;    /* seconds, 0: none */
    ngx_str_t                  stop_matched;
    ngx_http_pd_verdict_e      verdict;
} ngx_http_pd_result_t;


typedef struct {
    void       (*placed)(ngx_http_pd_job_t *job);      /* may be NULL */
    ngx_int_t  (*delta)(ngx_http_pd_job_t *job, ngx_http_pd_delta_t *delta);
    void       (*done)(ngx_http_pd_job_t *job, ngx_http_pd_result_t *result);

    /* in mid-answer, each second: it will go on elsewhere; may be NULL */
    void       (*paused)(ngx_http_pd_job_t *job);
} ngx_http_pd_job_handlers_t;


/* one worker's part in the job, for $upstream_* and the request's story */

typedef struct {
    ngx_str_t                  name;       /* address, in job->pool */
    ngx_uint_t                 status;     /* HTTP's, 0: not over */
    ngx_msec_t                 header_time;    /* until placed; -1: never */
    ngx_msec_t                 response_time;  /* until over; -1: never */
    off_t                      bytes_sent;

    /* as the worker told at its end, zeros before */

    uint64_t                   prefill_us;
    uint64_t                   kv_bytes;
    uint64_t                   kv_chunks;
    uint64_t                   kv_wait_us;
    uint64_t                   kv_wire_us;
    uint64_t                   kv_exposed_us;
    u_char                     kv_transport[8];
} ngx_http_pd_job_peer_t;


typedef enum {
    NGX_HTTP_PD_ROUTE_NONE = 0,
    NGX_HTTP_PD_ROUTE_DIRECT,
    NGX_HTTP_PD_ROUTE_SPLIT
} ngx_http_pd_route_e;


#define NGX_HTTP_PD_CANARY_PAIR    0xffff      /* for whichever is chosen */


struct ngx_http_pd_job_s {

    /* set by the consumer */

    ngx_http_pd_cluster_t             *cluster;
    const ngx_http_pd_job_handlers_t  *handlers;
    void                              *data;
    ngx_pool_t                        *pool;   /* outlives the job */
    ngx_log_t                         *log;
    ngx_http_request_t                *request;    /* NULL for a canary */

    ngx_str_t                          model;
    ngx_str_t                          tenant;
    ngx_http_pd_claim_t               *claim;  /* or NULL: without limits */
    ngx_str_t                          id;     /* $pd_request_id */

    /*
     * The prompt and options, packed by the consumer as a Submit without
     * route, ticket and generated tokens; the dispatcher sends it in parts and
     * appends those fields (protobuf: fields may follow in any order).  For the
     * decode side, which needs no prompt, `options` is the same Submit
     * without its prompt.  An answer that cannot go on elsewhere drops its
     * prompt at the first token.
     */
    ngx_chain_t                       *submit;
    ngx_chain_t                       *options;
    size_t                             prompt_bytes;   /* for estimates */
    ngx_str_t                          hash_key;       /* of "policy hash" */
    ngx_str_t                          sticky_key;     /* of "sticky" */
    ngx_uint_t                         max_tokens;     /* 0: not given */
    ngx_msec_t                         deadline;       /* from submit, ms */
    ngx_uint_t                         hurried;        /* the client's own */
    ngx_msec_t                         queue_timeout;  /* 0: the cluster's */
    ngx_uint_t                         class;          /* NGX_HTTP_PD_CLASS_... */
    ngx_uint_t                         weight;         /* of the tenant */
    size_t                             failover_buffer;    /* bytes of submit
                                                  and ids; 0: no failover */
    ngx_uint_t                         submit_shared;  /* by several jobs */
    ngx_uint_t                         canary;     /* 1 + the worker it is for,
                                                  or ..._CANARY_PAIR: it
                                                  neither waits nor moves */

    /* kept by the dispatcher, read by the consumer */

    uint64_t                           number;     /* 0: not submitted */
    ngx_http_pd_route_e                route;
    const char                        *route_reason;
    ngx_http_pd_job_peer_t             prefill;
    ngx_http_pd_job_peer_t             decode;
    ngx_uint_t                         estimate;       /* prompt tokens */
    ngx_uint_t                         affinity;       /* of these, expected
                                                          to be cached */
    ngx_uint_t                         prompt_tokens;
    ngx_uint_t                         cached_tokens;
    ngx_uint_t                         borrowed_tokens;    /* of the cached,
                                                          from another worker */
    ngx_str_t                          borrowed_from;  /* its name, in pool */
    ngx_uint_t                         completion_tokens;
    ngx_uint_t                         failovers;      /* went on elsewhere */
    ngx_uint_t                         paid;       /* tokens of its answer */

    /* milliseconds and microseconds of ngx_pd's own monotonic clock, 0: not yet */

    uint64_t                           submitted_us;
    uint64_t                           sent_us;        /* left the queue */
    uint64_t                           placed_us;
    uint64_t                           first_us;       /* first token heard */
    uint64_t                           second_us;
    uint64_t                           last_us;

    /* the dispatcher's own */

    void                              *attempt;
};


/*
 * NGX_OK: done will be called later (never from inside this call).
 * NGX_DECLINED: refused now; *result says why, done will not be called.
 */
ngx_int_t ngx_http_pd_job_submit(ngx_http_pd_job_t *job,
    ngx_http_pd_result_t *result);

/*
 * The consumer does not want the answer any more; no handler is called after
 * this returns.  Harmless on a job that is done or was never submitted.
 */
void ngx_http_pd_job_cancel(ngx_http_pd_job_t *job,
    Pd__V1__Cancel__Reason reason);

/*
 * All tokens that were paid have come: NGX_OK: more may, job->paid is larger
 * now; NGX_DECLINED: the tenant's limit is reached.
 */
ngx_int_t ngx_http_pd_job_more(ngx_http_pd_job_t *job);

/* models that can be routed to right now: an array of ngx_str_t in pool */
ngx_int_t ngx_http_pd_cluster_models(ngx_http_pd_cluster_t *cluster,
    ngx_pool_t *pool, ngx_array_t *models);

/* 1 if at least one usable P-D pair, or a mixed worker, serves `model`
 * (empty: any model) */
ngx_uint_t ngx_http_pd_cluster_ready(ngx_http_pd_cluster_t *cluster,
    ngx_str_t *model);

/* the cluster a location's pd_pass names; NULL where there is none */
ngx_http_pd_cluster_t *ngx_http_pd_cluster_find(ngx_conf_t *cf,
    ngx_str_t *name);

/* microseconds of CLOCK_MONOTONIC */
uint64_t ngx_http_pd_now_us(void);


#endif /* _NGX_HTTP_PD_JOB_H_INCLUDED_ */
