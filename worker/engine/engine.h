/* The engine: one thread that owns every sequence, the KV blocks and the device.
 *
 * Requests come in through a mailbox, results go out through callbacks on the engine's thread, which
 * must not block. The engine knows requests, not sockets: an attempt is named by numbers that only the
 * link room can interpret. */
#ifndef PD_ENGINE_H
#define PD_ENGINE_H

#include "worker/kvx/kvx.h"
#include "worker/model/model.h"
#include "worker/text/stream.h"

struct pd_attempt {
    uint64_t attach; /* the Attach stream, never reused in this process */
    uint64_t request;
    uint32_t attempt;
};

enum pd_route { PD_ROUTE_DIRECT, PD_ROUTE_PREFILL, PD_ROUTE_DECODE, PD_ROUTE_OFFER };

enum {
    PD_STOP_STRINGS_MAX = 16,
    PD_STOP_TOKENS_MAX = 64,
    PD_BORROW_MS = 1000,
    PD_BORROW_MS_MAX = 60000,
    PD_BORROW_WHY = 161,
};

struct pd_sampling {
    float temperature, top_p, min_p, typical_p, presence, frequency, repetition;
    int32_t top_k;
    uint64_t seed;
    uint32_t
        max_tokens; /* > 0 and prompt + max_tokens <= max_model_len once admitted; 0: as many as fit */
    uint32_t min_tokens;
    bool ignore_eos, include_stop;
    int logprobs; /* 0: none; else 1 + alternatives */
    int32_t stop_tokens[PD_STOP_TOKENS_MAX];
    int stop_token_count;
    struct {
        int32_t token;
        float bias;
    } * bias; /* malloc'ed */
    int bias_count;
};

/* Allocated by the sender with pd_request_create; owned by the engine once submitted. */
struct pd_request {
    struct pd_attempt id;
    enum pd_route route;
    struct pd_tokens prompt;    /* empty on DECODE */
    struct pd_tokens generated; /* ids sampled by earlier attempts */
    struct pd_sampling sampling;
    struct pd_text_stream *stream; /* made by the sender; the engine replays `generated` over it */
    struct pd_ticket ticket;       /* DECODE; PREFILL: may be borrowed from; tokens 0: none */
    uint32_t ticket_wait_ms;       /* PREFILL: for that; 0: PD_BORROW_MS */
    uint64_t arrived_ns, deadline_ns; /* pd_clock_ns; deadline 0: none */
    bool interactive;                 /* proto RequestClass */
    uint32_t
        redirect_above; /* DIRECT: more tokens to compute than this are REDIRECT; 0: any number */
    char request_id[65], tenant[129];
    char traceparent[65]; /* W3C; empty: none */
};

enum { PD_REQUEST_NAME = 160 };

/* How log lines name a request: `ID traceparent=T`, as far as it has them. Returns `name`. */
const char *pd_request_name(const struct pd_request *request, char name[PD_REQUEST_NAME]);

struct pd_request *pd_request_create(void);
void pd_request_free(struct pd_request *request);

/* ---- what the engine says ------------------------------------------------------------------------ */

struct pd_placed {
    struct pd_attempt id;
    uint32_t prompt_tokens, cached_tokens;
    bool has_ticket;
    struct pd_ticket ticket;
    uint64_t queued_ahead_tokens;
    uint32_t borrowed_tokens;          /* of cached_tokens, by the request's ticket */
    char borrow_failed[PD_BORROW_WHY]; /* why none were, where the way is at fault; "" else */
};

struct pd_token_logprob {
    int32_t token;
    float logprob;
};

struct pd_timing { /* microseconds; as in proto Timing */
    uint64_t queue_us, prefill_us, decode_us;
    struct pd_kvx_stats kv;
    uint64_t kv_exposed_us;
    uint32_t preemptions;
};

/* One sequence's share of one step. Pointers are valid during the callback. */
struct pd_output {
    struct pd_attempt id;
    uint32_t position;
    const int32_t *tokens;
    size_t token_count;
    const char *text;
    size_t text_length;
    const struct pd_token_logprob *logprobs; /* token_count rows of 1 + alternatives */
    int logprob_stride;                      /* 0: none */
    bool finished;
    int finish; /* proto FinishReason; FINISH_NONE: handed over to decode */
    uint32_t prompt_tokens, cached_tokens, completion_tokens;
    char stop_matched[65];
    struct pd_timing timing;
};

struct pd_failure {
    struct pd_attempt id;
    int code; /* proto Failed.Code */
    const char *message;
    const char *param; /* "" if none */
    uint32_t retry_after_ms, prompt_tokens;
};

struct pd_load {
    uint64_t steps;
    uint32_t step_us;
    uint64_t prefill_queued_tokens;
    uint32_t prefill_us_per_token_x1000;
    uint32_t prefill_chunk_tokens; /* that a step of prompts alone has now */
    uint32_t running, waiting;
    uint64_t kv_total, kv_free, kv_reserved;
    uint64_t
        kv_growth; /* of those free, what sequences will as a rule still take: see admission.c */
    uint64_t tokens_prefilled, tokens_decoded, requests, preemptions, evictions, cache_hit_tokens;
    uint64_t prompt_tokens;                   /* of requests that were given room */
    uint64_t offered_tokens, borrowed_tokens; /* of prompts, to and from other workers' caches */
    uint64_t ended_stop, ended_length, ended_handed_over, ended_failed; /* requests */
    uint64_t steps_us;                        /* time in which steps ran */
    uint64_t steps_cut;                       /* left for somebody who came; not in `steps` */
    uint64_t steps_delay_us;                  /* pd_device_delay_ns */
    uint64_t queue_us, prefill_us, decode_us; /* sums of pd_timing over ended requests */
    bool draining;
};

/* Each submitted request ends in exactly one finished output or one `failed` (CANCELLED where it was
 * cancelled); those of a forgotten attach may end in silence. The load that pd_engine_load returns after
 * a request's `queued`, `placed` or `failed` includes it. */
struct pd_engine_events {
    void *context;
    void (*placed)(void *context, const struct pd_placed *placed);
    /* Everything one step produced, all attaches mixed; `count` may be 0 (an idle tick). */
    void (*step)(void *context, uint64_t step, const struct pd_output *outputs, size_t count);
    void (*failed)(void *context, const struct pd_failure *failure);
    /* It has to wait for room before it is placed. May be NULL. */
    void (*queued)(void *context, const struct pd_attempt *id);
};

enum pd_role { PD_ROLE_PREFILL, PD_ROLE_DECODE, PD_ROLE_MIXED };

struct pd_engine_options {
    enum pd_role role;
    const char *instance, *kv_address; /* go into tickets */
    uint64_t boot;
    int max_model_len, max_tokens, max_seqs, block_size;
    int64_t kv_blocks;
    bool prefix_caching;
    int max_waiting; /* admitted and not running; over it: CAPACITY */
    int patience_ms; /* a step that takes so long is worth a line in the log, and if it takes 24 times
                      * as long, the device counts as lost; 0: 5 s */
    int chunk_ms; /* a step of prompts alone takes about so long where it may not be left for others; 0: PD_PACE_CHUNK_MS */
    struct pd_engine_events events;
};

struct pd_engine;

/* Makes the engine and its mailbox; nothing runs yet. The model, device and pool are borrowed. */
int pd_engine_create(const struct pd_engine_options *options, struct pd_model *model,
                     const struct pd_model_config *config, struct pd_device *device,
                     struct pd_engine **engine, struct pd_error *error);

/* The engine's half of the kvx callbacks, to be given to pd_kvx_create; then pd_engine_start. */
void pd_engine_kvx_callbacks(struct pd_engine *engine, struct pd_kvx_callbacks *callbacks);

/* `kvx` may be NULL for a worker that only goes direct. Starts the thread. */
int pd_engine_start(struct pd_engine *engine, struct pd_kvx *kvx, struct pd_error *error);

/* Any thread. On failure the request stays the caller's: PD_FULL at the mailbox's limit. */
int pd_engine_submit(struct pd_engine *engine, struct pd_request *request);
/* Unknown attempts are ignored. */
void pd_engine_cancel(struct pd_engine *engine, struct pd_attempt id);
/* The Attach stream is gone: ends all of its attempts, unclaimed tickets included. */
void pd_engine_forget(struct pd_engine *engine, uint64_t attach);
/* New requests are refused with DRAINING; running ones go on. */
void pd_engine_drain(struct pd_engine *engine);
/* Whether nothing is admitted, in transfer or offered. Any thread. */
bool pd_engine_idle(const struct pd_engine *engine);

/* A snapshot, never older than one step. Any thread, does not wait for the engine. */
void pd_engine_load(const struct pd_engine *engine, struct pd_load *load);

/* Whether the device is gone: nothing will be computed any more, and the process had better end. `why` is
 * one line for people, "" if it is not. Any thread. */
bool pd_engine_lost(const struct pd_engine *engine, char *why, size_t size);

/* Ends everything with CANCELLED failures and returns: what is left is for pd_engine_stop. */
void pd_engine_cut(struct pd_engine *engine);

/* Ends everything with CANCELLED failures, joins the thread, frees it. kvx must still live: its releases
 * are awaited. */
void pd_engine_stop(struct pd_engine *engine);
void pd_engine_destroy(struct pd_engine *engine);

#endif
