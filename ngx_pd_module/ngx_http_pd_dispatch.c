
/*
 * What workers' messages mean for their jobs.
 *
 *     N            P                    D
 *     |- Submit -->|
 *     |<- Placed --|  ticket
 *     |- Submit (ticket) -------------->|
 *     |            |<==== reads KV =====|
 *     |<- Step 0 --|                    |   held until D accepts
 *     |<---------------------- Placed --|
 *     |<---------------- Step 0, 1 ... -|   0 again: a repeat, dropped
 *
 * The two streams overtake each other: every token has its position.  Once the
 * ticket went to D, D alone judges the attempt; what happens to P after that is
 * D's business, or the same work would be done twice.
 *
 * Workers' messages name a job by its number.  A consumer may end its job, and
 * free it, in any of its handlers: after each call the number is looked up
 * again.
 */


#include "ngx_http_pd_account.h"
#include "ngx_http_pd_attempt.h"
#include "ngx_http_pd_learn.h"
#include "ngx_http_pd_report.h"
#include "ngx_http_pd_vitals.h"


static void ngx_http_pd_dispatch_hand_over(ngx_http_pd_attempt_t *attempt,
    Pd__V1__Ticket *ticket);
static ngx_uint_t ngx_http_pd_dispatch_ticket_ok(Pd__V1__Ticket *ticket);
static void ngx_http_pd_dispatch_tell_placed(ngx_http_pd_attempt_t *attempt,
    Pd__V1__Placed *placed);
static void ngx_http_pd_dispatch_account(ngx_http_pd_attach_t *attach,
    Pd__V1__Step *step);
static void ngx_http_pd_dispatch_prefill_step(ngx_http_pd_attempt_t *attempt,
    Pd__V1__SequenceStep *seq);
static void ngx_http_pd_dispatch_decode_step(ngx_http_pd_attempt_t *attempt,
    Pd__V1__SequenceStep *seq);
static ngx_int_t ngx_http_pd_dispatch_hold(ngx_http_pd_attempt_t *attempt,
    Pd__V1__SequenceStep *seq);
static ngx_int_t ngx_http_pd_dispatch_deliver(ngx_http_pd_attempt_t *attempt,
    Pd__V1__SequenceStep *seq);
static void ngx_http_pd_dispatch_finish(ngx_http_pd_attempt_t *attempt,
    Pd__V1__Finished *finished);


ngx_http_pd_side_t *
ngx_http_pd_dispatch_side(ngx_http_pd_attach_t *attach, uint64_t request,
    uint32_t number)
{
    ngx_http_pd_attempt_t  *attempt;

    attempt = ngx_http_pd_attempt_find(attach->process, request);

    if (attempt == NULL || attempt->number != number) {
        return NULL;
    }

    if (attempt->decode.attach == attach) {
        return &attempt->decode;
    }

    return (attempt->prefill.attach == attach) ? &attempt->prefill : NULL;
}


void
ngx_http_pd_dispatch_placed(ngx_http_pd_attach_t *attach,
    Pd__V1__Placed *placed)
{
    ngx_http_pd_job_t       *job;
    ngx_http_pd_side_t      *side;
    ngx_http_pd_zone_t      *zone;
    ngx_http_pd_attempt_t   *attempt;
    ngx_http_pd_job_peer_t  *peer;
    Pd__V1__SequenceStep    *held;

    side = ngx_http_pd_dispatch_side(attach, placed->request,
                                     placed->attempt);

    if (side == NULL || side->placed) {
        return;
    }

    side->placed = 1;

    attempt = side->attempt;
    job = attempt->job;
    zone = attach->process->zone;

    peer = side->decode ? &job->decode : &job->prefill;
    peer->state.header_time = ngx_current_msec - side->started;

    if (side->decode && job->route == NGX_HTTP_PD_ROUTE_SPLIT) {

        attempt->accepted = 1;

        held = attempt->held;

        if (held) {
            attempt->held = NULL;
            (void) ngx_http_pd_dispatch_deliver(attempt, held);
            pd__v1__sequence_step__free_unpacked(held, NULL);
        }

        return;
    }

    ngx_http_pd_zone_lock(zone);
    ngx_http_pd_load_exact(zone, attempt->record,
                           placed->prompt_tokens + attempt->position);
    ngx_http_pd_account_exact(zone, attempt->record, placed->prompt_tokens,
                              ngx_http_pd_now_us());
    ngx_http_pd_learn_counted(attempt, placed->prompt_tokens);
    ngx_http_pd_zone_unlock(zone);

    if (!side->decode) {
        ngx_http_pd_dispatch_hand_over(attempt, placed->ticket);

        side = ngx_http_pd_dispatch_side(attach, placed->request,
                                         placed->attempt);
        if (side == NULL) {
            return;
        }
    }

    ngx_http_pd_dispatch_tell_placed(attempt, placed);
}


static void
ngx_http_pd_dispatch_tell_placed(ngx_http_pd_attempt_t *attempt,
    Pd__V1__Placed *placed)
{
    ngx_http_pd_job_t  *job;

    job = attempt->job;

    if (!attempt->delivered) {
        job->placed_us = ngx_http_pd_now_us();
        job->prompt_tokens = placed->prompt_tokens;
        job->cached_tokens = ngx_min(placed->cached_tokens,
                                     placed->prompt_tokens);
    }

    if (job->handlers->placed && !attempt->told) {
        attempt->told = 1;
        job->handlers->placed(job);
    }
}


/* D gets the ticket at once, while P begins to compute */

static void
ngx_http_pd_dispatch_hand_over(ngx_http_pd_attempt_t *attempt,
    Pd__V1__Ticket *ticket)
{
    ngx_uint_t            decode;
    ngx_http_pd_zone_t   *zone;

    zone = attempt->process->zone;
    decode = zone->sh->records[attempt->record].decode;

    if (decode == NGX_HTTP_PD_NONE) {

        /* one token is all that is wanted: P's */

        return;
    }

    if (!ngx_http_pd_dispatch_ticket_ok(ticket)) {
        ngx_http_pd_attempt_fail(attempt, NGX_HTTP_INTERNAL_SERVER_ERROR, 0,
                                 "The prefill worker has sent no valid "
                                 "ticket.");
        return;
    }

    if (ngx_http_pd_attempt_suffix(&attempt->decode,
                                   PD__V1__ROUTE__ROUTE_DECODE, ticket)
        != NGX_OK)
    {
        ngx_http_pd_attempt_fail(attempt, NGX_HTTP_INTERNAL_SERVER_ERROR, 0,
                                 "The server has no memory left.");
        return;
    }

    attempt->handed = 1;

    ngx_http_pd_attempt_submitted(attempt);
    ngx_http_pd_attempt_send(attempt, &attempt->decode, decode);
}


static ngx_uint_t
ngx_http_pd_dispatch_ticket_ok(Pd__V1__Ticket *ticket)
{
    return ticket
           && ngx_strlen(ticket->instance) <= NGX_HTTP_PD_INSTANCE_MAX
           && ngx_strlen(ticket->address) <= NGX_HTTP_PD_ADDRESS_MAX
           && ticket->secret.len <= 64;
}


void
ngx_http_pd_dispatch_step(ngx_http_pd_attach_t *attach, Pd__V1__Step *step)
{
    size_t                 i;
    ngx_http_pd_side_t    *side;
    Pd__V1__SequenceStep  *seq;

    ngx_http_pd_dispatch_account(attach, step);

    for (i = 0; i < step->n_sequences; i++) {
        seq = step->sequences[i];

        side = ngx_http_pd_dispatch_side(attach, seq->request, seq->attempt);

        if (side == NULL || side->finished) {
            continue;
        }

        if (side->decode) {
            ngx_http_pd_dispatch_decode_step(side->attempt, seq);

        } else {
            ngx_http_pd_dispatch_prefill_step(side->attempt, seq);
        }
    }
}


/* all that the step changes in the shared zone, under one lock */

static void
ngx_http_pd_dispatch_account(ngx_http_pd_attach_t *attach, Pd__V1__Step *step)
{
    size_t                 i;
    ngx_http_pd_side_t    *side;
    ngx_http_pd_zone_t    *zone;
    Pd__V1__SequenceStep  *seq;

    zone = attach->process->zone;

    ngx_http_pd_zone_lock(zone);

    if (step->load) {
        ngx_http_pd_report_apply(attach, step->load);
    }

    for (i = 0; i < step->n_sequences; i++) {
        seq = step->sequences[i];

        side = ngx_http_pd_dispatch_side(attach, seq->request, seq->attempt);

        if (side == NULL || side->finished) {
            continue;
        }

        if (side->decode) {
            ngx_http_pd_load_progress(zone, side->attempt->record,
                                        seq->n_tokens);

        } else if (seq->finished) {
            ngx_http_pd_load_prefilled(zone, side->attempt->record);
        }
    }

    ngx_http_pd_ledger_run(zone);

    ngx_http_pd_zone_unlock(zone);
}


static void
ngx_http_pd_dispatch_prefill_step(ngx_http_pd_attempt_t *attempt,
    Pd__V1__SequenceStep *seq)
{
    ngx_int_t           rc;
    ngx_http_pd_job_t  *job;

    job = attempt->job;

    if (job->first_us == 0 && seq->n_tokens) {
        job->first_us = ngx_http_pd_now_us();
    }

    if (seq->finished) {
        attempt->prefill.finished = 1;
        ngx_http_pd_dispatch_side_over(&attempt->prefill, NGX_HTTP_OK,
                                       seq->finished->timing);

        if (seq->finished->reason != PD__V1__FINISH_REASON__FINISH_NONE) {

            /* the answer ends with P's token: D is not needed */

            rc = ngx_http_pd_dispatch_deliver(attempt, seq);

            if (rc == NGX_OK) {
                ngx_http_pd_dispatch_finish(attempt, seq->finished);
            }

            return;
        }
    }

    if (attempt->accepted || attempt->alone) {

        if (ngx_http_pd_dispatch_deliver(attempt, seq) != NGX_OK) {
            return;
        }

    } else if (ngx_http_pd_dispatch_hold(attempt, seq) != NGX_OK) {
        ngx_http_pd_attempt_fail(attempt, NGX_HTTP_INTERNAL_SERVER_ERROR, 0,
                                 "The server has no memory left.");
        return;
    }

    if (seq->finished && !attempt->handed) {
        ngx_http_pd_attempt_fail(attempt, NGX_HTTP_INTERNAL_SERVER_ERROR, 0,
                                 "The prefill worker has handed over to "
                                 "nobody.");
    }
}


/* a copy: the message itself ends with this event */

static ngx_int_t
ngx_http_pd_dispatch_hold(ngx_http_pd_attempt_t *attempt,
    Pd__V1__SequenceStep *seq)
{
    size_t   size;
    u_char  *p;

    if (attempt->held) {
        return NGX_OK;
    }

    size = pd__v1__sequence_step__get_packed_size(seq);

    p = ngx_alloc(size, attempt->job->log);
    if (p == NULL) {
        return NGX_ERROR;
    }

    pd__v1__sequence_step__pack(seq, p);

    attempt->held = pd__v1__sequence_step__unpack(NULL, size, p);

    ngx_free(p);

    return attempt->held ? NGX_OK : NGX_ERROR;
}


static void
ngx_http_pd_dispatch_decode_step(ngx_http_pd_attempt_t *attempt,
    Pd__V1__SequenceStep *seq)
{
    ngx_http_pd_job_t  *job;

    job = attempt->job;

    if (job->first_us == 0 && seq->n_tokens) {
        job->first_us = ngx_http_pd_now_us();
    }

    /* tokens say as much as Placed does */

    attempt->accepted = 1;
    ngx_http_pd_attempt_unhold(attempt);

    if (seq->finished) {
        attempt->decode.finished = 1;
        ngx_http_pd_dispatch_side_over(&attempt->decode, NGX_HTTP_OK,
                                       seq->finished->timing);
    }

    if (ngx_http_pd_dispatch_deliver(attempt, seq) != NGX_OK) {
        return;
    }

    if (seq->finished == NULL) {
        return;
    }

    if (seq->finished->reason == PD__V1__FINISH_REASON__FINISH_NONE) {
        ngx_http_pd_attempt_fail(attempt, NGX_HTTP_INTERNAL_SERVER_ERROR, 0,
                                 "The worker has ended without a reason.");
        return;
    }

    /* D has released the ticket: nobody needs to be told */

    ngx_http_pd_attach_drop(&attempt->prefill, 0, 0);
    ngx_http_pd_attach_drop(&attempt->decode, 0, 0);

    ngx_http_pd_dispatch_finish(attempt, seq->finished);
}


/* in order and without repeats; NGX_DONE: the attempt is gone */

static ngx_int_t
ngx_http_pd_dispatch_deliver(ngx_http_pd_attempt_t *attempt,
    Pd__V1__SequenceStep *seq)
{
    uint64_t                now, number, ended;
    ngx_http_pd_job_t      *job;
    ngx_http_pd_delta_t     delta;
    ngx_http_pd_process_t  *process;

    job = attempt->job;
    process = attempt->process;
    number = job->number;

    if (seq->position < attempt->position
        && seq->position + seq->n_tokens <= attempt->position)
    {
        return NGX_OK;
    }

    if (seq->position != attempt->position) {
        ngx_http_pd_attempt_fail(attempt, NGX_HTTP_INTERNAL_SERVER_ERROR, 0,
                                 "The worker has sent token %uD in place of "
                                 "token %ui.", seq->position,
                                 attempt->position);
        return NGX_DONE;
    }

    if (seq->n_tokens == 0 && seq->text.len == 0 && seq->reasoning.len == 0
        && seq->n_tool_calls == 0)
    {
        return NGX_OK;
    }

    now = ngx_http_pd_now_us();

    if (attempt->position <= 1 && attempt->position + seq->n_tokens > 1) {
        job->second_us = now;
    }

    if (seq->n_tokens) {
        job->last_us = now;
    }

    ngx_http_pd_failover_keep(attempt, seq);
    ngx_http_pd_learn_answer(attempt, seq);

    attempt->position += seq->n_tokens;
    attempt->delivered = 1;
    job->completion_tokens = attempt->position;

    delta.text.data = seq->text.data;
    delta.text.len = seq->text.len;
    delta.reasoning.data = seq->reasoning.data;
    delta.reasoning.len = seq->reasoning.len;
    delta.step = seq;
    delta.tokens = seq->n_tokens;

    ended = process->ended;

    if (job->handlers->delta(job, &delta) != NGX_OK) {
        return NGX_DONE;
    }

    /* nobody has ended: so neither has it */

    if (process->ended == ended) {
        return NGX_OK;
    }

    return ngx_http_pd_attempt_find(process, number) ? NGX_OK : NGX_DONE;
}


static void
ngx_http_pd_dispatch_finish(ngx_http_pd_attempt_t *attempt,
    Pd__V1__Finished *finished)
{
    ngx_http_pd_job_t     *job;
    ngx_http_pd_zone_t    *zone;
    ngx_http_pd_result_t   result;

    job = attempt->job;
    zone = attempt->process->zone;

    ngx_http_pd_zone_lock(zone);
    ngx_http_pd_vitals_success(zone, &zone->sh->records[attempt->record]);
    ngx_http_pd_zone_unlock(zone);

    ngx_memzero(&result, sizeof(ngx_http_pd_result_t));

    ngx_http_pd_learn_finished(attempt);

    result.status = NGX_HTTP_OK;
    result.finish = finished->reason;
    result.stop_matched.data = (u_char *) finished->stop_matched;
    result.stop_matched.len = ngx_strlen(finished->stop_matched);

    if (job->prompt_tokens == 0) {
        job->prompt_tokens = finished->prompt_tokens;
    }

    if (finished->completion_tokens) {
        job->completion_tokens = finished->completion_tokens;
    }

    ngx_http_pd_attempt_done(attempt, &result,
                             PD__V1__CANCEL__REASON__FINISHED_ELSEWHERE);
}


void
ngx_http_pd_dispatch_side_over(ngx_http_pd_side_t *side, ngx_uint_t status,
    Pd__V1__Timing *timing)
{
    size_t                   len;
    ngx_http_pd_job_t       *job;
    ngx_http_pd_job_peer_t  *peer;

    job = side->attempt->job;
    peer = side->decode ? &job->decode : &job->prefill;

    peer->state.status = status;
    peer->state.response_time = ngx_current_msec - side->started;

    if (timing == NULL) {
        return;
    }

    len = ngx_min(ngx_strlen(timing->kv_transport),
                  sizeof(peer->kv_transport) - 1);

    ngx_memcpy(peer->kv_transport, timing->kv_transport, len);
    peer->kv_transport[len] = '\0';

    peer->timing = *timing;
    peer->timing.kv_transport = (char *) peer->kv_transport;
    peer->timing.base.n_unknown_fields = 0;
    peer->timing.base.unknown_fields = NULL;
}
