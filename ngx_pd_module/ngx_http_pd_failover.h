
/*
 * What a running answer needs so that it can go on elsewhere.
 *
 *     client      nginx                     P1, D1          P2, D2
 *       |           |<--- tokens 0..n, text --|
 *       |<-- text --|  ids 0..n are kept      x
 *       |           |--- Submit, generated = ids 0..n ------->|
 *       |<- : ... --|                          replays them in silence
 *       |<-- text --|<----------------------- tokens n+1 .. --|
 *
 * Kept are the ids of the tokens that the consumer has, packed as they will be
 * sent, and the submission, which lies in its buffers anyway.  Both together
 * have a limit, job->failover_buffer; an answer that passes it runs on without
 * the promise, and gives its submission's memory back.
 *
 * The second answer is the first one's continuation to the bit if all workers
 * that have had a part in it compute alike (numerics_id); else it is called
 * approximate.
 *
 * Answers that move at the same time are paced, by a budget for the cluster:
 * each of them is a long prompt to those that are left.
 */


#ifndef _NGX_HTTP_PD_FAILOVER_H_INCLUDED_
#define _NGX_HTTP_PD_FAILOVER_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_pd_step.h"


typedef struct ngx_http_pd_attempt_s  ngx_http_pd_attempt_t;


typedef struct {
    u_char       *ids;             /* as in a packed TokenList; from the heap */
    size_t        len;
    size_t        size;
    uint64_t      numerics;        /* of all workers so far, hashed; 0: none */
    uint32_t      counted;         /* the last try that has a part in it */
    uint64_t      due;             /* us of our clock; 0: not paced */
    ngx_msec_t    comment;         /* when the consumer hears of the pause */
    ngx_uint_t    base;            /* tokens it had when this try began */

    unsigned      off:1;           /* past the limit: no promise */
    unsigned      mixed:1;         /* workers that do not compute alike */
    unsigned      paused:1;        /* the consumer waits in mid-answer */
    unsigned      moving:1;        /* nothing has come since it began to */
} ngx_http_pd_failover_t;


/* the job's submission is known: is the promise given? */
void ngx_http_pd_failover_init(ngx_http_pd_attempt_t *attempt);
void ngx_http_pd_failover_free(ngx_http_pd_attempt_t *attempt);

/* the consumer gets these tokens */
void ngx_http_pd_failover_keep(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_sequence_t *seq);

/* another try may go on where this one has come to */
ngx_uint_t ngx_http_pd_failover_possible(ngx_http_pd_attempt_t *attempt);

/* the try is over by no fault of the request: the next one is prepared */
void ngx_http_pd_failover_begin(ngx_http_pd_attempt_t *attempt);

/* a try begins: 1 if it has to wait for its turn first */
ngx_uint_t ngx_http_pd_failover_waits(ngx_http_pd_attempt_t *attempt);

/* ms until the pause needs a word, or the turn has come, at most "left" */
ngx_msec_int_t ngx_http_pd_failover_left(ngx_http_pd_attempt_t *attempt,
    ngx_msec_int_t left);

/* that time has come: NGX_DONE if the attempt was started or is gone */
ngx_int_t ngx_http_pd_failover_timer(ngx_http_pd_attempt_t *attempt);

/* the field "generated" of a Submit: its bytes, and how many they are */
size_t ngx_http_pd_failover_size(ngx_http_pd_attempt_t *attempt);
u_char *ngx_http_pd_failover_pack(ngx_http_pd_attempt_t *attempt, u_char *p);


#endif /* _NGX_HTTP_PD_FAILOVER_H_INCLUDED_ */
