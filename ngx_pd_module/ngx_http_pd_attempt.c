
/*
 * A job's tries: which workers have it, what it waits for, and its end.
 *
 *                 +------- again (at most 3 choices) ----+
 *                 v                                      |
 *     submit -> start -> P's Placed -> D's Placed -> ... -> done
 *         |       ^         (dispatch.c)                     ^
 *         v       | grant                                    |
 *        wait ----+------- timeout, deadline ----------------+
 *
 * A third worker may be asked before P is: ngx_http_pd_borrow.h.
 *
 * Every job has a timer that is not cancelable: it is what keeps a process
 * that nginx has asked to leave until its last request is answered.
 *
 * A failure is told to the consumer from a posted event, so that it never comes
 * from inside of the consumer's own call.
 */


#include "ngx_http_pd_attempt.h"
#include "ngx_http_pd_queue.h"
#include "ngx_http_pd_account.h"
#include "ngx_http_pd_borrow.h"
#include "ngx_http_pd_learn.h"
#include "ngx_http_pd_verdict.h"


static void ngx_http_pd_attempt_remove(ngx_http_pd_attempt_t *attempt);
static void ngx_http_pd_attempt_settle(ngx_http_pd_attempt_t *attempt);
static void ngx_http_pd_attempt_arm(ngx_http_pd_attempt_t *attempt);
static void ngx_http_pd_attempt_later(ngx_event_t *ev);
static void ngx_http_pd_attempt_peer(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_side_t *side, ngx_http_pd_attach_t *attach);


/* by ngx_http_pd_reason_e */

static const char  *ngx_http_pd_attempt_reasons[] = {
    "pair", "redirected", "short prompt", "cached prompt", "mixed worker"
};


ngx_http_pd_attempt_t *
ngx_http_pd_attempt_find(ngx_http_pd_process_t *process, uint64_t number)
{
    ngx_http_pd_attempt_t  *attempt;

    attempt = *ngx_http_pd_process_place(process, number);

    while (attempt && attempt->job->number != number) {
        attempt = attempt->next;
    }

    return attempt;
}


static void
ngx_http_pd_attempt_remove(ngx_http_pd_attempt_t *attempt)
{
    ngx_http_pd_attempt_t  **place;

    place = ngx_http_pd_process_place(attempt->process, attempt->job->number);

    while (*place != attempt) {
        place = &(*place)->next;
    }

    *place = attempt->next;
}


void
ngx_http_pd_attempt_wait(ngx_http_pd_attempt_t *attempt)
{
    attempt->queued = 1;

    if (attempt->process->queued++ == 0) {
        ngx_http_pd_process_watch(attempt->process);
    }

    ngx_http_pd_attempt_arm(attempt);
}


void
ngx_http_pd_attempt_grants(ngx_http_pd_process_t *process)
{
    uint32_t                index;
    uint64_t                number;
    ngx_http_pd_attempt_t  *attempt;

    for ( ;; ) {
        number = 0;

        ngx_http_pd_zone_lock(process->zone);

        index = ngx_http_pd_ledger_take(process->zone);

        if (index != NGX_HTTP_PD_NIL) {
            number = process->zone->sh->records[index].number;
        }

        ngx_http_pd_zone_unlock(process->zone);

        if (index == NGX_HTTP_PD_NIL) {
            return;
        }

        attempt = ngx_http_pd_attempt_find(process, number);

        if (attempt == NULL) {
            continue;
        }

        attempt->queued = 0;
        process->queued--;

        ngx_http_pd_attempt_start(attempt);
    }
}


void
ngx_http_pd_attempt_start(ngx_http_pd_attempt_t *attempt)
{
    ngx_int_t               rc;
    ngx_http_pd_job_t      *job;
    ngx_http_pd_record_t   *record;
    ngx_http_pd_process_t  *process;

    job = attempt->job;
    process = attempt->process;

    if (ngx_http_pd_failover_waits(attempt)) {
        ngx_http_pd_attempt_arm(attempt);
        return;
    }

    /* the record is ours: nobody else writes these */

    record = &process->zone->sh->records[attempt->record];

    attempt->number++;
    attempt->choices++;
    attempt->handed = 0;
    attempt->accepted = 0;
    attempt->crowded = 0;
    attempt->alone = (record->decode == NGX_HTTP_PD_NONE);

    if (!attempt->delivered) {
        job->sent_us = ngx_http_pd_now_us();
        job->placed_us = 0;
        job->first_us = 0;
        job->borrowed_tokens = 0;
        ngx_str_null(&job->borrowed_from);
    }

    ngx_memzero(&job->prefill, sizeof(ngx_http_pd_job_peer_t));
    ngx_memzero(&job->decode, sizeof(ngx_http_pd_job_peer_t));

    job->route = (record->prefill == NGX_HTTP_PD_NONE)
                 ? NGX_HTTP_PD_ROUTE_DIRECT : NGX_HTTP_PD_ROUTE_SPLIT;
    job->route_reason = ngx_http_pd_attempt_reasons[record->reason];

    ngx_http_pd_learn_started(attempt);

    rc = ngx_http_pd_borrow_ask(attempt);

    ngx_http_pd_attempt_arm(attempt);

    if (rc != NGX_OK) {
        ngx_http_pd_attempt_begin(attempt, NULL);
    }
}


void
ngx_http_pd_attempt_begin(ngx_http_pd_attempt_t *attempt, ngx_str_t *ticket)
{
    ngx_uint_t             prefill, decode;
    Pd__V1__Route          route;
    ngx_http_pd_side_t    *side;
    ngx_http_pd_record_t  *record;

    record = &attempt->process->zone->sh->records[attempt->record];
    prefill = record->prefill;
    decode = record->decode;

    if (prefill == NGX_HTTP_PD_NONE) {
        route = PD__V1__ROUTE__ROUTE_DIRECT;
        side = &attempt->decode;

    } else {
        route = PD__V1__ROUTE__ROUTE_PREFILL;
        side = &attempt->prefill;
    }

    if (ngx_http_pd_attempt_suffix(side, route, ticket) != NGX_OK) {
        ngx_http_pd_attempt_fail(attempt, NGX_HTTP_INTERNAL_SERVER_ERROR, 0,
                                 "The server has no memory left.");
        return;
    }

    /* unless a decode worker will be next */

    if (!side->decode && !attempt->alone) {
        ngx_http_pd_attempt_send(attempt, side, prefill);
        return;
    }

    ngx_http_pd_attempt_submitted(attempt);
    ngx_http_pd_attempt_send(attempt, side, side->decode ? decode : prefill);
}


void
ngx_http_pd_attempt_send(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_side_t *side, ngx_uint_t worker)
{
    ngx_http_pd_job_t         *job;
    ngx_http_pd_attach_t      *attach;
    ngx_http_pd_submission_t  *submission;

    job = attempt->job;
    attach = attempt->process->attaches[worker];

    if (attach == NULL || attach->state != NGX_HTTP_PD_ATTACH_UP) {
        ngx_http_pd_attempt_again(attempt, worker,
                                  NGX_HTTP_SERVICE_UNAVAILABLE,
                                  "The worker has gone away.");
        return;
    }

    submission = &side->submission;

    submission->request = job->number;
    submission->attempt = attempt->number;
    submission->body = attempt->handed ? job->options : job->submit;
    submission->total = submission->suffix.len
                        + (attempt->handed ? attempt->options_size
                                           : attempt->submit_size);

    if (attach->max_submit && submission->total > attach->max_submit) {
        ngx_http_pd_attempt_fail(attempt, NGX_HTTP_REQUEST_ENTITY_TOO_LARGE, 0,
                                 "The request is too large for the worker.");
        return;
    }

    ngx_http_pd_attempt_peer(attempt, side, attach);
    ngx_http_pd_attach_submit(attach, side);
}


/* for $upstream_addr and its kin */

static void
ngx_http_pd_attempt_peer(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_side_t *side, ngx_http_pd_attach_t *attach)
{
    ngx_http_pd_job_t       *job;
    ngx_http_pd_job_peer_t  *peer;

    job = attempt->job;
    peer = side->decode ? &job->decode : &job->prefill;

    ngx_memzero(peer, sizeof(ngx_http_pd_job_peer_t));

    peer->name.data = ngx_pstrdup(job->pool, &attach->name);
    peer->name.len = peer->name.data ? attach->name.len : 0;

    peer->header_time = (ngx_msec_t) -1;
    peer->response_time = (ngx_msec_t) -1;
    peer->bytes_sent = side->submission.total;

    side->started = ngx_current_msec;
}


void
ngx_http_pd_attempt_again(ngx_http_pd_attempt_t *attempt, ngx_uint_t avoid,
    ngx_uint_t status, const char *message)
{
    ngx_int_t               rc;
    ngx_http_pd_process_t  *process;

    process = attempt->process;

    ngx_http_pd_borrow_drop(attempt,
                            PD__V1__CANCEL__REASON__REFUSED_ELSEWHERE);
    ngx_http_pd_attach_drop(&attempt->prefill, 1,
                            PD__V1__CANCEL__REASON__REFUSED_ELSEWHERE);
    ngx_http_pd_attach_drop(&attempt->decode, 1,
                            PD__V1__CANCEL__REASON__REFUSED_ELSEWHERE);
    ngx_http_pd_attempt_unhold(attempt);

    if (attempt->job->canary
        || !ngx_http_pd_failover_possible(attempt)
        || attempt->choices >= NGX_HTTP_PD_CHOICES
        || attempt->deaths >= NGX_HTTP_PD_DEATHS
        || process->drained || process->terminating)
    {
        ngx_http_pd_attempt_fail(attempt, status,
                                 ngx_max(attempt->retry_after, 1), "%s",
                                 message);
        return;
    }

    ngx_log_error(NGX_LOG_INFO, attempt->job->log, 0,
                  "pd: request \"%V\" goes to other workers: %s",
                  &attempt->job->id, message);

    if (!attempt->unsettled) {
        attempt->unsettled = 1;
        process->unsettled++;
    }

    ngx_http_pd_zone_lock(process->zone);
    rc = ngx_http_pd_ledger_again(process->zone, attempt->record, avoid);
    ngx_http_pd_zone_unlock(process->zone);

    if (rc == NGX_OK) {
        ngx_http_pd_attempt_start(attempt);

    } else {
        ngx_http_pd_attempt_wait(attempt);
    }
}


void
ngx_http_pd_attempt_submitted(ngx_http_pd_attempt_t *attempt)
{
    if (attempt->failover.off || attempt->job->canary) {
        ngx_http_pd_attempt_settled(attempt);
    }
}


void
ngx_http_pd_attempt_settled(ngx_http_pd_attempt_t *attempt)
{
    if (attempt->unsettled) {
        attempt->unsettled = 0;
        attempt->process->unsettled--;
        ngx_http_pd_process_settle(attempt->process);
    }
}


ngx_int_t
ngx_http_pd_attempt_hold(ngx_http_pd_attempt_t *attempt, ngx_str_t *step)
{
    u_char  *p;

    if (attempt->held.data) {
        return NGX_OK;
    }

    p = ngx_alloc(step->len, attempt->job->log);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(p, step->data, step->len);

    attempt->held.data = p;
    attempt->held.len = step->len;

    return NGX_OK;
}


void
ngx_http_pd_attempt_unhold(ngx_http_pd_attempt_t *attempt)
{
    if (attempt->held.data) {
        ngx_free(attempt->held.data);
        ngx_str_null(&attempt->held);
    }
}


static void
ngx_http_pd_attempt_arm(ngx_http_pd_attempt_t *attempt)
{
    ngx_msec_int_t  left, queue_left;

    left = (ngx_msec_int_t) (attempt->end - ngx_current_msec);

    if (attempt->queued) {
        queue_left = (ngx_msec_int_t) (attempt->queue_end - ngx_current_msec);
        left = ngx_min(left, queue_left);
    }

    left = ngx_http_pd_failover_left(attempt, left);
    left = ngx_http_pd_borrow_left(attempt, left);

    ngx_add_timer(&attempt->timer, (ngx_msec_t) ngx_max(left, 1));
}


void
ngx_http_pd_attempt_timer(ngx_event_t *ev)
{
    ngx_http_pd_attempt_t *attempt = ev->data;

    uint64_t                number;
    ngx_uint_t              retry_after;
    ngx_http_pd_process_t  *process;

    process = attempt->process;

    if ((ngx_msec_int_t) (attempt->end - ngx_current_msec) <= 0) {
        attempt->reason = PD__V1__CANCEL__REASON__DEADLINE;
        ngx_http_pd_attempt_fail(attempt, NGX_HTTP_GATEWAY_TIME_OUT, 0,
                                 "The request took longer than it may.");
        return;
    }

    if (attempt->queued
        && (ngx_msec_int_t) (attempt->queue_end - ngx_current_msec) <= 0)
    {
        ngx_http_pd_zone_lock(process->zone);
        retry_after = ngx_http_pd_queue_drain(
                &process->zone->sh->clusters[attempt->job->cluster->shared]);
        ngx_http_pd_zone_unlock(process->zone);

        ngx_http_pd_attempt_fail(attempt, NGX_HTTP_SERVICE_UNAVAILABLE,
                                 retry_after,
                                 "No worker had room in time. "
                                 "Please try again later.");
        return;
    }

    number = attempt->job->number;

    if (ngx_http_pd_borrow_timer(attempt) == NGX_DONE
        && ngx_http_pd_attempt_find(process, number) == NULL)
    {
        return;
    }

    if (ngx_http_pd_failover_timer(attempt) == NGX_OK) {
        ngx_http_pd_attempt_arm(attempt);
    }
}


/* nothing is left of the attempt but its job's result */

void
ngx_http_pd_attempt_end(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_outcome_e outcome, Pd__V1__Cancel__Reason reason)
{
    ngx_http_pd_process_t       *process;
    ngx_http_pd_zone_cluster_t  *cluster;

    process = attempt->process;
    cluster = &process->zone->sh->clusters[attempt->job->cluster->shared];

    ngx_http_pd_borrow_drop(attempt, reason);
    ngx_http_pd_attach_drop(&attempt->prefill, 1, reason);
    ngx_http_pd_attach_drop(&attempt->decode, 1, reason);
    ngx_http_pd_attempt_unhold(attempt);
    ngx_http_pd_attempt_unsuffix(&attempt->prefill);
    ngx_http_pd_attempt_unsuffix(&attempt->decode);
    ngx_http_pd_attempt_unsuffix(&attempt->owner);
    ngx_http_pd_failover_free(attempt);

    if (attempt->timer.timer_set) {
        ngx_del_timer(&attempt->timer);
    }

    if (attempt->queued) {
        attempt->queued = 0;
        process->queued--;
    }

    ngx_http_pd_attempt_remove(attempt);
    process->ended++;

    ngx_http_pd_zone_lock(process->zone);

    if (attempt->job->canary == 0) {
        cluster->ended[outcome]++;
        cluster->gave_up += (outcome == NGX_HTTP_PD_FAILED
                             && attempt->failover.moving);
    }

    ngx_http_pd_attempt_settle(attempt);
    ngx_http_pd_ledger_release(process->zone, attempt->record);
    ngx_http_pd_zone_unlock(process->zone);

    ngx_http_pd_attempt_settled(attempt);
}


/* what it has really used of what was reserved for it, and how it has ended */

static void
ngx_http_pd_attempt_settle(ngx_http_pd_attempt_t *attempt)
{
    ngx_http_pd_job_t   *job;
    ngx_http_pd_zone_t  *zone;

    job = attempt->job;
    zone = attempt->process->zone;

    ngx_http_pd_account_settle(zone, &zone->sh->records[attempt->record],
                               job->prompt_tokens + job->completion_tokens,
                               job->sent_us != 0, ngx_http_pd_now_us());

    if (!job->canary) {
        ngx_http_pd_verdict_count(zone, job->cluster->shared,
                                  attempt->verdict);
    }
}


void
ngx_http_pd_attempt_done(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_result_t *result, Pd__V1__Cancel__Reason reason)
{
    ngx_http_pd_job_t  *job;

    job = attempt->job;

    attempt->verdict = ngx_http_pd_verdict(attempt, result);
    result->verdict = attempt->verdict;

    ngx_http_pd_attempt_end(attempt, NGX_HTTP_PD_ANSWERED, reason);

    job->attempt = NULL;
    job->handlers->done(job, result);
}


void
ngx_http_pd_attempt_fail(ngx_http_pd_attempt_t *attempt, ngx_uint_t status,
    ngx_uint_t retry_after, const char *fmt, ...)
{
    u_char                *p;
    va_list                args;
    ngx_uint_t             level;
    const char            *stage;
    ngx_http_pd_job_t     *job;
    ngx_http_pd_result_t  *result;

    u_char                 text[NGX_HTTP_PD_MESSAGE_MAX];

    job = attempt->job;
    stage = ngx_http_pd_attempt_stage(attempt);

    va_start(args, fmt);
    p = ngx_vslprintf(text, text + sizeof(text), fmt, args);
    va_end(args);

    result = ngx_http_pd_attempt_result(attempt);

    result->status = status;
    result->retry_after = retry_after;

    result->message.len = p - text;
    result->message.data = ngx_pnalloc(job->pool, p - text);

    if (result->message.data) {
        ngx_memcpy(result->message.data, text, p - text);

    } else {
        result->message.len = 0;
    }

    level = (status < 500 || job->canary) ? NGX_LOG_INFO : NGX_LOG_ERR;

    ngx_log_error(level, job->log, 0,
                  "pd: request \"%V\" failed in %s, prefill \"%V\", "
                  "decode \"%V\", status %ui: %V",
                  &job->id, stage, &job->prefill.name, &job->decode.name,
                  status, &result->message);

    attempt->verdict = ngx_http_pd_verdict(attempt, result);
    result->verdict = attempt->verdict;

    ngx_http_pd_attempt_end(attempt, NGX_HTTP_PD_FAILED, attempt->reason);

    attempt->timer.handler = ngx_http_pd_attempt_later;

    ngx_post_event(&attempt->timer, &ngx_posted_events);
}


/* nearly no attempt needs one; without memory, all that fail share their words */

ngx_http_pd_result_t *
ngx_http_pd_attempt_result(ngx_http_pd_attempt_t *attempt)
{
    static ngx_http_pd_result_t  shared;

    if (attempt->result == NULL) {
        attempt->result = ngx_pcalloc(attempt->job->pool,
                                      sizeof(ngx_http_pd_result_t));
    }

    if (attempt->result == NULL) {
        ngx_memzero(&shared, sizeof(ngx_http_pd_result_t));
        attempt->result = &shared;
    }

    return attempt->result;
}


const char *
ngx_http_pd_attempt_stage(ngx_http_pd_attempt_t *attempt)
{
    if (attempt->queued) {
        return "the queue";
    }

    if (attempt->job->route == NGX_HTTP_PD_ROUTE_DIRECT) {
        return attempt->delivered ? "decode" : "prefill";
    }

    if (!attempt->handed) {
        return "prefill";
    }

    return attempt->accepted ? "decode" : "the hand-off";
}


static void
ngx_http_pd_attempt_later(ngx_event_t *ev)
{
    ngx_http_pd_attempt_t  *attempt = ev->data;

    ngx_http_pd_job_t  *job;

    job = attempt->job;

    job->attempt = NULL;
    job->handlers->done(job, attempt->result);
}


void
ngx_http_pd_attempt_terminate(ngx_http_pd_process_t *process)
{
    ngx_uint_t              i;
    ngx_http_pd_attempt_t  *attempt;

    for (i = 0; i < NGX_HTTP_PD_PROCESS_JOBS; i++) {

        while (process->jobs[i]) {
            attempt = process->jobs[i];

            attempt->reason = PD__V1__CANCEL__REASON__SHUTDOWN;
            ngx_http_pd_attempt_fail(attempt, NGX_HTTP_SERVICE_UNAVAILABLE, 1,
                                     "The server is shutting down.");
        }
    }
}
