
/*
 * What workers say all day: Step (one for each step of their engine, with the
 * tokens of every answer of ours) and Placed.
 *
 * These two are read where they lie, by hand: what is of interest is found
 * once, nothing is copied, nothing is allocated.  All other messages, and what
 * is rare in these, are unpacked by ngx_http_pd_unpack.h.
 *
 *     FromWorker [ Step [ SequenceStep | SequenceStep | ... | LoadReport ] ]
 *                         ^     ^  ^
 *                         |     |  `- text
 *                         |     `---- tokens        a sequence's view: where
 *                         `---------- raw           its parts are
 *
 * Only the form is read that writers use: numbers packed, each message once.
 * What protobuf allows beyond that (parts to be merged) is first brought into
 * that form by unpacking and packing it, so that it means here what it means
 * everywhere.
 */


#ifndef _NGX_HTTP_PD_STEP_H_INCLUDED_
#define _NGX_HTTP_PD_STEP_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "proto/pd.pb-c.h"

#include "ngx_http_pd_unpack.h"


/* of one message; more is none that a worker has a reason to send */
#define NGX_HTTP_PD_STEP_SEQUENCES   65536

#define NGX_HTTP_PD_STEP_STREAMS     255      /* that a report may name */
#define NGX_HTTP_PD_STEP_LINKS       256      /* likewise */


/* what else may stand in a message: fields of a later protocol */

#define ngx_http_pd_step_unknown(wire, known)   ((wire)->tag >> 3 > (known))


typedef struct {
    Pd__V1__FinishReason         reason;
    uint32_t                     prompt_tokens;
    uint32_t                     cached_tokens;
    uint32_t                     completion_tokens;
    ngx_str_t                    stop_matched;
    ngx_str_t                    timing;       /* packed; data NULL: none */
} ngx_http_pd_finished_t;


/* what one step did for one answer */

typedef struct {
    uint64_t                     request;
    uint32_t                     attempt;
    uint32_t                     position;     /* of the first token */

    ngx_str_t                    tokens;       /* as in a packed TokenList:
                                                  at most 5 bytes each */
    size_t                       ntokens;
    ngx_str_t                    text;
    ngx_str_t                    reasoning;

    ngx_str_t                    raw;          /* the whole SequenceStep */
    Pd__V1__SequenceStep        *full;         /* unpacked; NULL: no need */
    void                        *owner;        /* the reader's own */

    unsigned                     ended:1;      /* "finished" is there */
    unsigned                     logprobs:1;   /* these are, see "full" */
    unsigned                     tools:1;

    ngx_http_pd_finished_t       finished;     /* last: zeroed if needed */
} ngx_http_pd_sequence_t;


typedef struct {
    uint64_t                     request;
    uint32_t                     attempt;
    uint32_t                     prompt_tokens;
    uint32_t                     cached_tokens;
    ngx_str_t                    ticket;       /* packed; data NULL: none */
    uint32_t                     borrowed_tokens;
    ngx_str_t                    borrow_failed;
} ngx_http_pd_placed_t;


/* one message; zeroed before its first use, and used again for the next */

typedef struct {
    ngx_uint_t                   kind;         /* as kind_case of FromWorker */

    /* KIND_PLACED */

    ngx_http_pd_placed_t         placed;

    /* KIND_STEP */

    ngx_http_pd_sequence_t      *sequences;
    ngx_uint_t                   nsequences;
    ngx_uint_t                   rare;         /* some have logprobs */
    Pd__V1__LoadReport          *load;         /* without links; or NULL */
    ngx_uint_t                   nlinks;       /* of the report, packed */

    /* what these lie in */

    ngx_uint_t                   room;         /* for sequences */
    Pd__V1__LoadReport           report;
    Pd__V1__StreamSeen           seen[NGX_HTTP_PD_STEP_STREAMS];
    Pd__V1__StreamSeen          *streams[NGX_HTTP_PD_STEP_STREAMS];
    ngx_str_t                    links[NGX_HTTP_PD_STEP_LINKS];
    u_char                      *normal;       /* a message in usual form */
} ngx_http_pd_step_t;


/* how a worker spent its time on a request, as far as it is asked for */

typedef struct {
    uint64_t                     prefill_us;
    uint64_t                     kv_bytes;
    uint64_t                     kv_chunks;
    uint64_t                     kv_wait_us;
    uint64_t                     kv_wire_us;
    uint64_t                     kv_exposed_us;
    ngx_str_t                    kv_transport;
} ngx_http_pd_timing_t;


/*
 * Reads a FromWorker.  NGX_DECLINED: it is of another kind, or of an unusual
 * form, or none at all; unpack it.  What is found lies in the message.
 */
ngx_int_t ngx_http_pd_step_read(ngx_http_pd_step_t *step, u_char *p,
    size_t len);

/* its report's part of that: into step->report, which is step->load then */
ngx_int_t ngx_http_pd_step_load(ngx_http_pd_step_t *step, ngx_str_t *in);

/*
 * The message that was read, unpacked, because it has something rare: what that
 * is can be found in its sequences then.  NGX_ERROR: not the same message.
 */
ngx_int_t ngx_http_pd_step_full(ngx_http_pd_step_t *step,
    Pd__V1__FromWorker *message);

/*
 * Reads a Step or Placed that was unpacked because of its form, which may have
 * something rare.  NGX_ERROR: no memory, or too many sequences.
 */
ngx_int_t ngx_http_pd_step_normal(ngx_http_pd_step_t *step,
    Pd__V1__FromWorker *message);

/* reads a SequenceStep alone; NGX_DECLINED as above */
ngx_int_t ngx_http_pd_step_sequence(ngx_http_pd_sequence_t *seq, u_char *p,
    size_t len);

/* reads a Timing; NGX_DECLINED: it is none */
ngx_int_t ngx_http_pd_step_timing(ngx_http_pd_timing_t *timing,
    ngx_str_t *packed);

/* reads a KvLinkState; NGX_DECLINED: it is none, or names nobody */
ngx_int_t ngx_http_pd_step_link(ngx_str_t *packed, ngx_str_t *peer,
    ngx_uint_t *up);

/* gives back what the message lies in */
void ngx_http_pd_step_free(ngx_http_pd_step_t *step);


#endif /* _NGX_HTTP_PD_STEP_H_INCLUDED_ */
