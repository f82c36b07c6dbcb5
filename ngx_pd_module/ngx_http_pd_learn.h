
/*
 * What a job teaches: who has seen its prompt and its answer, and how many
 * bytes made a token; and what was learned so far, for its choice.
 */


#ifndef _NGX_HTTP_PD_LEARN_H_INCLUDED_
#define _NGX_HTTP_PD_LEARN_H_INCLUDED_


#include "ngx_http_pd_attempt.h"


/* reads the prompt; what is needed for it besides under the zone's lock */
void ngx_http_pd_learn_prompt(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_need_t *need);
void ngx_http_pd_learn_estimate(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_need_t *need);

/* it goes to the workers that its record names */
void ngx_http_pd_learn_started(ngx_http_pd_attempt_t *attempt);

/* who was asked for what it has of it has nothing */
void ngx_http_pd_learn_missing(ngx_http_pd_attempt_t *attempt);

/* a worker has counted; under the zone's lock */
void ngx_http_pd_learn_counted(ngx_http_pd_attempt_t *attempt,
    size_t tokens);

/* so the answer goes on; it has ended well */
void ngx_http_pd_learn_answer(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_sequence_t *seq);
void ngx_http_pd_learn_finished(ngx_http_pd_attempt_t *attempt);


#endif /* _NGX_HTTP_PD_LEARN_H_INCLUDED_ */
