
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
#include "ngx_http_pd_borrow.h"
#include "ngx_http_pd_learn.h"
#include "ngx_http_pd_report.h"
#include "ngx_http_pd_vitals.h"


#define NGX_HTTP_PD_DISPATCH_TICKET    4096     /* bytes */


static void ngx_http_pd_dispatch_hand_over(ngx_http_pd_attempt_t *attempt,
    ngx_str_t *ticket);
static void ngx_http_pd_dispatch_tell_placed(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_placed_t *placed);
static void ngx_http_pd_dispatch_account(ngx_http_pd_attach_t *attach,
    ngx_http_pd_step_t *step);
static void ngx_http_pd_dispatch_prefill_step(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_sequence_t *seq, uint64_t now);
static void ngx_http_pd_dispatch_decode_step(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_sequence_t *seq, uint64_t now);
static void ngx_http_pd_dispatch_held(ngx_http_pd_attempt_t *attempt);
static ngx_int_t ngx_http_pd_dispatch_deliver(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_sequence_t *seq, uint64_t now);
static void ngx_http_pd_dispatch_finish(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_finished_t *finished);
static void ngx_http_pd_dispatch_count_kv(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_timing_t *told);


ngx_http_pd_side_t *
ngx_http_pd_dispatch_side(ngx_http_pd_attach_t *attach, uint64_t request,
    uint32_t number)
{
    ngx_http_pd_attempt_t  *attempt;

    attempt = ngx_http_pd_attempt_find(attach->process, request);

    if (attempt == NULL) {
        return NULL;
    }

    if (attempt->owner.attach == attach
        && attempt->owner.submission.attempt == number)
    {
        return &attempt->owner;
    }

    if (attempt->number != number) {
        return NULL;
    }

    if (attempt->decode.attach == attach) {
        return &attempt->decode;
    }

    return (attempt->prefill.attach == attach) ? &attempt->prefill : NULL;
}


void
ngx_http_pd_dispatch_placed(ngx_http_pd_attach_t *attach,
    ngx_http_pd_placed_t *placed)
{
    ngx_http_pd_job_t       *job;
    ngx_http_pd_side_t      *side;
    ngx_http_pd_zone_t      *zone;
    ngx_http_pd_attempt_t   *attempt;
    ngx_http_pd_job_peer_t  *peer;

    side = ngx_http_pd_dispatch_side(attach, placed->request,
                                     placed->attempt);

    if (side == NULL || side->placed) {
        return;
    }

    side->placed = 1;

    attempt = side->attempt;
    job = attempt->job;
    zone = attach->process->zone;

    ngx_http_pd_attempt_taken(side);

    if (side->offers) {
        ngx_http_pd_borrow_offered(side, placed);
        return;
    }

    peer = side->decode ? &job->decode : &job->prefill;
    peer->header_time = ngx_current_msec - side->started;

    if (side->decode && job->route == NGX_HTTP_PD_ROUTE_SPLIT) {

        attempt->accepted = 1;

        if (attempt->held.data) {
            ngx_http_pd_dispatch_held(attempt);
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
        ngx_http_pd_borrow_over(attempt, placed);
        ngx_http_pd_dispatch_hand_over(attempt, &placed->ticket);

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
    ngx_http_pd_placed_t *placed)
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
    ngx_str_t *ticket)
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


/* D gets it as it is; what it may hold is D's to check, but not how much */

ngx_uint_t
ngx_http_pd_dispatch_ticket_ok(ngx_str_t *ticket)
{
    return ticket->data && ticket->len <= NGX_HTTP_PD_DISPATCH_TICKET;
}


void
ngx_http_pd_dispatch_step(ngx_http_pd_attach_t *attach,
    ngx_http_pd_step_t *step)
{
    uint64_t                 now, ended;
    ngx_http_pd_side_t      *side;
    ngx_http_pd_sequence_t  *seq, *last;

    now = ngx_http_pd_now_us();    /* that of the whole step */
    ended = attach->process->ended;
    last = step->sequences + step->nsequences;

    ngx_http_pd_dispatch_account(attach, step);

    for (seq = step->sequences; seq < last; seq++) {
        side = seq->owner;

        /* if any attempt has ended since, this one may have */

        if (attach->process->ended != ended) {
            side = ngx_http_pd_dispatch_side(attach, seq->request,
                                             seq->attempt);
        }

        if (side == NULL || side->finished || side->offers) {
            continue;
        }

        if (side->decode) {
            ngx_http_pd_dispatch_decode_step(side->attempt, seq, now);

        } else {
            ngx_http_pd_dispatch_prefill_step(side->attempt, seq, now);
        }
    }
}


/* all that the step changes in the shared zone, under one lock */

static void
ngx_http_pd_dispatch_account(ngx_http_pd_attach_t *attach,
    ngx_http_pd_step_t *step)
{
    ngx_http_pd_side_t      *side;
    ngx_http_pd_zone_t      *zone;
    ngx_http_pd_sequence_t  *seq, *last;

    zone = attach->process->zone;
    last = step->sequences + step->nsequences;

    ngx_http_pd_zone_lock(zone);

    if (step->load) {
        ngx_http_pd_report_step(attach, step);
    }

    for (seq = step->sequences; seq < last; seq++) {

        side = ngx_http_pd_dispatch_side(attach, seq->request, seq->attempt);
        seq->owner = side;

        if (side == NULL || side->finished || side->offers) {
            continue;
        }

        if (side->decode) {
            ngx_http_pd_load_progress(zone, side->attempt->record,
                                      seq->ntokens);

        } else if (seq->ended) {
            ngx_http_pd_load_prefilled(zone, side->attempt->record);
        }
    }

    ngx_http_pd_ledger_run(zone);

    ngx_http_pd_zone_unlock(zone);
}


static void
ngx_http_pd_dispatch_prefill_step(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_sequence_t *seq, uint64_t now)
{
    ngx_int_t           rc;
    ngx_http_pd_job_t  *job;

    job = attempt->job;

    if (job->first_us == 0 && seq->ntokens) {
        job->first_us = now;
    }

    if (seq->ended) {
        attempt->prefill.finished = 1;
        ngx_http_pd_dispatch_side_over(&attempt->prefill, NGX_HTTP_OK,
                                       &seq->finished.timing);

        if (seq->finished.reason != PD__V1__FINISH_REASON__FINISH_NONE) {

            /* the answer ends with P's token: D is not needed */

            rc = ngx_http_pd_dispatch_deliver(attempt, seq, now);

            if (rc == NGX_OK) {
                ngx_http_pd_dispatch_finish(attempt, &seq->finished);
            }

            return;
        }
    }

    if (attempt->accepted || attempt->alone) {

        if (ngx_http_pd_dispatch_deliver(attempt, seq, now) != NGX_OK) {
            return;
        }

    } else if (ngx_http_pd_attempt_hold(attempt, &seq->raw) != NGX_OK) {
        ngx_http_pd_attempt_fail(attempt, NGX_HTTP_INTERNAL_SERVER_ERROR, 0,
                                 "The server has no memory left.");
        return;
    }

    if (seq->ended && !attempt->handed) {
        ngx_http_pd_attempt_fail(attempt, NGX_HTTP_INTERNAL_SERVER_ERROR, 0,
                                 "The prefill worker has handed over to "
                                 "nobody.");
    }
}


/* P's step, which was read once before */

static void
ngx_http_pd_dispatch_held(ngx_http_pd_attempt_t *attempt)
{
    ngx_str_t               held;
    ngx_http_pd_sequence_t  seq;

    static ngx_http_pd_arena_t  arena;

    held = attempt->held;
    ngx_str_null(&attempt->held);

    (void) ngx_http_pd_step_sequence(&seq, held.data, held.len);

    if (seq.logprobs) {
        seq.full = ngx_http_pd_unpack(&arena,
                                      &pd__v1__sequence_step__descriptor,
                                      held.data, held.len);
    }

    (void) ngx_http_pd_dispatch_deliver(attempt, &seq, ngx_http_pd_now_us());

    ngx_free(held.data);
}


static void
ngx_http_pd_dispatch_decode_step(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_sequence_t *seq, uint64_t now)
{
    ngx_http_pd_job_t  *job;

    job = attempt->job;

    if (job->first_us == 0 && seq->ntokens) {
        job->first_us = now;
    }

    /* tokens say as much as Placed does */

    attempt->accepted = 1;
    ngx_http_pd_attempt_unhold(attempt);

    if (seq->ended) {
        attempt->decode.finished = 1;
        ngx_http_pd_dispatch_side_over(&attempt->decode, NGX_HTTP_OK,
                                       &seq->finished.timing);
    }

    if (ngx_http_pd_dispatch_deliver(attempt, seq, now) != NGX_OK) {
        return;
    }

    if (!seq->ended) {
        return;
    }

    if (seq->finished.reason == PD__V1__FINISH_REASON__FINISH_NONE) {
        ngx_http_pd_attempt_fail(attempt, NGX_HTTP_INTERNAL_SERVER_ERROR, 0,
                                 "The worker has ended without a reason.");
        return;
    }

    /* D has released the ticket: nobody needs to be told */

    ngx_http_pd_attach_drop(&attempt->prefill, 0, 0);
    ngx_http_pd_attach_drop(&attempt->decode, 0, 0);

    ngx_http_pd_dispatch_finish(attempt, &seq->finished);
}


/* in order and without repeats; NGX_DONE: the attempt is gone */

static ngx_int_t
ngx_http_pd_dispatch_deliver(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_sequence_t *seq, uint64_t now)
{
    uint64_t                number, ended;
    ngx_http_pd_job_t      *job;
    ngx_http_pd_delta_t     delta;
    ngx_http_pd_process_t  *process;

    job = attempt->job;
    process = attempt->process;
    number = job->number;

    if (seq->position < attempt->position
        && seq->position + seq->ntokens <= attempt->position)
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

    if (seq->ntokens == 0 && seq->text.len == 0 && seq->reasoning.len == 0
        && !seq->tools)
    {
        return NGX_OK;
    }

    if (attempt->position <= 1 && attempt->position + seq->ntokens > 1) {
        job->second_us = now;
    }

    if (seq->ntokens) {
        job->last_us = now;
    }

    ngx_http_pd_failover_keep(attempt, seq);
    ngx_http_pd_learn_answer(attempt, seq);

    attempt->position += seq->ntokens;
    attempt->delivered = 1;
    job->completion_tokens = attempt->position;

    delta.text = seq->text;
    delta.reasoning = seq->reasoning;
    delta.logprobs = seq->full ? seq->full->logprobs : NULL;
    delta.nlogprobs = seq->full ? seq->full->n_logprobs : 0;
    delta.tokens = seq->ntokens;
    delta.last = seq->ended;

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
    ngx_http_pd_finished_t *finished)
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
    result.stop_matched = finished->stop_matched;

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
    ngx_str_t *timing)
{
    size_t                   len;
    ngx_http_pd_job_t       *job;
    ngx_http_pd_timing_t     told;
    ngx_http_pd_job_peer_t  *peer;

    job = side->attempt->job;
    peer = side->decode ? &job->decode : &job->prefill;

    peer->status = status;
    peer->response_time = ngx_current_msec - side->started;

    if (timing == NULL || timing->data == NULL
        || ngx_http_pd_step_timing(&told, timing) != NGX_OK)
    {
        return;
    }

    peer->prefill_us = told.prefill_us;
    peer->kv_bytes = told.kv_bytes;
    peer->kv_chunks = told.kv_chunks;
    peer->kv_wait_us = told.kv_wait_us;
    peer->kv_wire_us = told.kv_wire_us;
    peer->kv_exposed_us = told.kv_exposed_us;

    len = ngx_min(told.kv_transport.len, sizeof(peer->kv_transport) - 1);

    if (len) {
        ngx_memcpy(peer->kv_transport, told.kv_transport.data, len);
    }

    peer->kv_transport[len] = '\0';

    if (side->decode && len && job->canary == 0) {
        ngx_http_pd_dispatch_count_kv(side->attempt, &told);
    }
}


/* a hand-off that went well, or that a decode worker gave up */

static void
ngx_http_pd_dispatch_count_kv(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_timing_t *told)
{
    ngx_http_pd_zone_t          *zone;
    ngx_http_pd_zone_cluster_t  *cluster;

    zone = attempt->process->zone;
    cluster = &zone->sh->clusters[attempt->job->cluster->shared];

    ngx_http_pd_zone_lock(zone);

    cluster->kv_transfers++;
    cluster->kv_bytes += told->kv_bytes;
    cluster->kv_us[NGX_HTTP_PD_KV_WAIT] += told->kv_wait_us;
    cluster->kv_us[NGX_HTTP_PD_KV_WIRE] += told->kv_wire_us;
    cluster->kv_us[NGX_HTTP_PD_KV_EXPOSED] += told->kv_exposed_us;

    ngx_http_pd_zone_unlock(zone);
}
