
/*
 * A job's inner life, shared by the dispatcher's files: attempt.c (its tries,
 * its waiting, its end), dispatch.c and failure.c (what its workers say).
 */


#ifndef _NGX_HTTP_PD_ATTEMPT_H_INCLUDED_
#define _NGX_HTTP_PD_ATTEMPT_H_INCLUDED_


#include "ngx_http_pd_attach.h"
#include "ngx_http_pd_ledger.h"
#include "ngx_http_pd_load.h"


#define NGX_HTTP_PD_CHOICES        3     /* of workers, for one job */
#define NGX_HTTP_PD_DEATHS         2     /* of workers with it, then no more */
#define NGX_HTTP_PD_MESSAGE_MAX    512   /* for the client's eyes */


struct ngx_http_pd_attempt_s {
    ngx_http_pd_attempt_t    *next;      /* in its place of process->jobs */
    ngx_http_pd_job_t        *job;
    ngx_http_pd_process_t    *process;
    uint32_t                  record;    /* in the shared zone */

    uint32_t                  number;    /* of this attempt, from 1 */
    ngx_uint_t                choices;
    ngx_uint_t                deaths;

    ngx_http_pd_side_t        prefill;
    ngx_http_pd_side_t        decode;
    ngx_http_pd_side_t        owner;     /* of the prompt's beginning */
    ngx_str_t                 lender;    /* its name */
    ngx_msec_t                borrow_end;    /* what it has is not waited for */

    size_t                    submit_size;
    size_t                    options_size;
    ngx_uint_t                position;  /* of the next token */
    ngx_http_pd_failover_t    failover;
    ngx_str_t                 held;      /* P's step, until D accepts */

    ngx_event_t               timer;     /* not cancelable: holds the process;
                                            over: posted with the result */
    ngx_msec_t                queue_end;
    ngx_msec_t                end;

    ngx_http_pd_result_t     *result;    /* of a failure */
    Pd__V1__Cancel__Reason    reason;    /* for the workers, if it fails */
    ngx_uint_t                retry_after;   /* seconds, as a worker said */
    ngx_http_pd_verdict_e     verdict;

    ngx_http_pd_tail_t        tail;      /* of prompt and answer */

    unsigned                  learns:1;  /* the tail is worth knowing */
    unsigned                  queued:1;
    unsigned                  unsettled:1;
    unsigned                  told:1;    /* the consumer: placed */
    unsigned                  borrowing:1;   /* the owner is asked */
    unsigned                  lent:1;    /* P has the owner's ticket */
    unsigned                  alone:1;   /* P, without D: one token */
    unsigned                  handed:1;  /* D has the ticket: D judges alone */
    unsigned                  accepted:1;
    unsigned                  crowded:1; /* the last try was refused for room */
    unsigned                  delivered:1;
};


/* --- ngx_http_pd_attempt.c --- */

/* the attempt of a number that came from a worker, or NULL */
ngx_http_pd_attempt_t *ngx_http_pd_attempt_find(ngx_http_pd_process_t *process,
    uint64_t number);

/* submits to the workers that the record names; waits for such a grant */
void ngx_http_pd_attempt_start(ngx_http_pd_attempt_t *attempt);
void ngx_http_pd_attempt_wait(ngx_http_pd_attempt_t *attempt);

/* handler of its event */
void ngx_http_pd_attempt_timer(ngx_event_t *ev);

/* grants of the shared zone are taken and sent */
void ngx_http_pd_attempt_grants(ngx_http_pd_process_t *process);

/* its prefill worker, or the one that does both phases, gets it; "ticket": what
 * the owner has, or NULL */
void ngx_http_pd_attempt_begin(ngx_http_pd_attempt_t *attempt,
    ngx_str_t *ticket);

/* what the consumer will hear if it fails */
ngx_http_pd_result_t *ngx_http_pd_attempt_result(
    ngx_http_pd_attempt_t *attempt);

/* submits to one worker, with that suffix; if it is gone, others are chosen */
void ngx_http_pd_attempt_send(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_side_t *side, ngx_uint_t worker);

/* other workers shall try, without that at "avoid"; or the job fails so */
void ngx_http_pd_attempt_again(ngx_http_pd_attempt_t *attempt,
    ngx_uint_t avoid, ngx_uint_t status, const char *message);

/* all is submitted: if all goes well, and unless it may go on elsewhere, ... */
void ngx_http_pd_attempt_submitted(ngx_http_pd_attempt_t *attempt);

/* ... nothing will be submitted for it any more */
void ngx_http_pd_attempt_settled(ngx_http_pd_attempt_t *attempt);

/* P's step, as it is packed, waits; or is not needed any more */
ngx_int_t ngx_http_pd_attempt_hold(ngx_http_pd_attempt_t *attempt,
    ngx_str_t *step);
void ngx_http_pd_attempt_unhold(ngx_http_pd_attempt_t *attempt);

/* where it is, for a log line */
const char *ngx_http_pd_attempt_stage(ngx_http_pd_attempt_t *attempt);

/* the end: workers that still know of it are told why */
void ngx_http_pd_attempt_end(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_outcome_e outcome, Pd__V1__Cancel__Reason reason);

/* it is answered: the consumer hears the result; the attempt is gone */
void ngx_http_pd_attempt_done(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_result_t *result, Pd__V1__Cancel__Reason reason);

/* the same for a failure; the consumer hears it from a posted event */
void ngx_http_pd_attempt_fail(ngx_http_pd_attempt_t *attempt,
    ngx_uint_t status, ngx_uint_t retry_after, const char *fmt, ...);

/* all jobs of this process fail now */
void ngx_http_pd_attempt_terminate(ngx_http_pd_process_t *process);


/* --- ngx_http_pd_suffix.c --- */

/* the fields that the dispatcher appends to a consumer's Submit, packed */
ngx_int_t ngx_http_pd_attempt_suffix(ngx_http_pd_side_t *side,
    Pd__V1__Route route, ngx_str_t *ticket);

/* the side's worker has all of it: the suffix is of no more use */
void ngx_http_pd_attempt_taken(ngx_http_pd_side_t *side);
void ngx_http_pd_attempt_unsuffix(ngx_http_pd_side_t *side);


/* --- ngx_http_pd_dispatch.c --- */

/* messages of a worker */
void ngx_http_pd_dispatch_placed(ngx_http_pd_attach_t *attach,
    ngx_http_pd_placed_t *placed);
void ngx_http_pd_dispatch_step(ngx_http_pd_attach_t *attach,
    ngx_http_pd_step_t *step);

/* the job's part that a message is about; NULL: it is over, or never was */
ngx_http_pd_side_t *ngx_http_pd_dispatch_side(ngx_http_pd_attach_t *attach,
    uint64_t request, uint32_t attempt);

/* of a size that a ticket may have */
ngx_uint_t ngx_http_pd_dispatch_ticket_ok(ngx_str_t *ticket);

/* for the logs: when and how the worker's part ended */
void ngx_http_pd_dispatch_side_over(ngx_http_pd_side_t *side,
    ngx_uint_t status, ngx_str_t *timing);


/* --- ngx_http_pd_failure.c --- */

void ngx_http_pd_failure_message(ngx_http_pd_attach_t *attach,
    Pd__V1__Failed *failed);

/* a worker's sentence for the log and the client: bounded and printable */
void ngx_http_pd_failure_text(u_char *dst, size_t size, const char *src);

/* the stream is gone, or (cancel) the worker is believed to be */
void ngx_http_pd_failure_lost(ngx_http_pd_attach_t *attach, ngx_uint_t cancel);


#endif /* _NGX_HTTP_PD_ATTEMPT_H_INCLUDED_ */
