
/*
 * What another worker has of a prompt, for the prefill worker that would have
 * to compute it.
 *
 *     N             D (has the beginning)   P
 *     |- Submit, OFFER ->|
 *     |<-- Placed -------|  ticket
 *     |- Submit, PREFILL, ticket ---------->|
 *     |                  |<=== reads KV ====|
 *     |<---------------------- Placed ------|  so much was borrowed
 *     |- Cancel -------->|  what P has not asked for is free again
 *
 * So it is with the next turn of a chat that is too long for its decode worker,
 * or finds it full: the last answer's KV is there and nowhere else.  The table
 * of affinity tells who has how much; any worker of any role may have it.
 *
 * The request waits for all of this until a deadline (borrow_threshold ...
 * timeout=); then, or if anything fails, P computes what it has not.
 *
 * OFFER and PREFILL are two attempts to the workers, so that they may go to one
 * decode worker, the second with the prompt's own ticket.
 */


#ifndef _NGX_HTTP_PD_BORROW_H_INCLUDED_
#define _NGX_HTTP_PD_BORROW_H_INCLUDED_


#include "ngx_http_pd_attach.h"
#include "ngx_http_pd_zone.h"


/* who has so much more of the prompt than the record's prefill worker that it
 * is worth a hand-off; under the zone's lock */
void ngx_http_pd_borrow_choose(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record);

/* NGX_OK: that worker is asked, and P's turn comes later; NGX_DECLINED: now */
ngx_int_t ngx_http_pd_borrow_ask(ngx_http_pd_attempt_t *attempt);

/* its answer; the reason why it has none, or it is gone */
void ngx_http_pd_borrow_offered(ngx_http_pd_side_t *side,
    ngx_http_pd_placed_t *placed);
void ngx_http_pd_borrow_refused(ngx_http_pd_side_t *side, const char *why);

/* P has placed the prompt, whatever it has borrowed */
void ngx_http_pd_borrow_over(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_placed_t *placed);

/* the attempt is over */
void ngx_http_pd_borrow_drop(ngx_http_pd_attempt_t *attempt,
    Pd__V1__Cancel__Reason reason);

/* ms until the deadline, if it is near; NGX_DONE: it has come, P was asked */
ngx_msec_int_t ngx_http_pd_borrow_left(ngx_http_pd_attempt_t *attempt,
    ngx_msec_int_t left);
ngx_int_t ngx_http_pd_borrow_timer(ngx_http_pd_attempt_t *attempt);


#endif /* _NGX_HTTP_PD_BORROW_H_INCLUDED_ */
