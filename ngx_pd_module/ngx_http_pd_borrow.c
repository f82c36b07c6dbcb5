
/*
 * Borrowed beginnings of prompts: see the header.
 */


#include "ngx_http_pd_borrow.h"
#include "ngx_http_pd_affinity.h"
#include "ngx_http_pd_attempt.h"
#include "ngx_http_pd_choose.h"
#include "ngx_http_pd_pairs.h"
#include "ngx_http_pd_slot.h"
#include "ngx_http_pd_unpack.h"
#include "ngx_http_pd_vitals.h"


#define NGX_HTTP_PD_BORROW_UNKNOWN    256      /* tokens, while no time is */
#define NGX_HTTP_PD_BORROW_TRIP       10000    /* us, of the messages */
#define NGX_HTTP_PD_BORROW_GAIN       2        /* times what it costs */
#define NGX_HTTP_PD_BORROW_WHY        161      /* bytes, with a null */


static uint32_t ngx_http_pd_borrow_threshold(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *owner, ngx_http_pd_worker_t *prefill);
static ngx_uint_t ngx_http_pd_borrow_fits(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_http_pd_worker_t *owner,
    ngx_http_pd_worker_t *prefill);
static ngx_uint_t ngx_http_pd_borrow_ticket_ok(ngx_str_t *ticket);
static void ngx_http_pd_borrow_go_on(ngx_http_pd_attempt_t *attempt,
    ngx_str_t *ticket);
static void ngx_http_pd_borrow_none(ngx_http_pd_attempt_t *attempt,
    const char *why);
static void ngx_http_pd_borrow_count(ngx_http_pd_attempt_t *attempt,
    ngx_uint_t tokens, ngx_uint_t failed);


void
ngx_http_pd_borrow_choose(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record)
{
    uint32_t               has, most, cached;
    ngx_uint_t             n;
    ngx_http_pd_worker_t  *prefill, *owner;

    record->owner = NGX_HTTP_PD_NONE;

    if (record->prefill == NGX_HTTP_PD_NONE || record->canary
        || zone->sh->clusters[record->cluster].borrow_threshold == 0)
    {
        return;
    }

    prefill = &zone->sh->workers[record->prefill];
    has = ngx_http_pd_affinity_cached(zone, record, prefill);
    most = has;

    for (n = 0; n < NGX_HTTP_PD_NEAR; n++) {

        if (record->near[n].worker == NGX_HTTP_PD_NONE
            || record->near[n].worker == record->prefill)
        {
            continue;
        }

        owner = &zone->sh->workers[record->near[n].worker];
        cached = ngx_http_pd_affinity_cached(zone, record, owner);

        if (cached > most
            && cached - has >= ngx_http_pd_borrow_threshold(zone, owner,
                                                            prefill)
            && ngx_http_pd_borrow_fits(zone, record, owner, prefill))
        {
            most = cached;
            record->owner = record->near[n].worker;
        }
    }
}


/*
 * Tokens that are worth it: with "auto", those that the prefill worker takes
 * twice as long to compute as all of it takes: a step of the owner, in which it
 * does not listen, what reading takes in this cluster, and the messages.
 */

static uint32_t
ngx_http_pd_borrow_threshold(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *owner, ngx_http_pd_worker_t *prefill)
{
    double                       us, tokens;
    ngx_http_pd_zone_cluster_t  *cluster;

    cluster = &zone->sh->clusters[prefill->cluster];

    if (cluster->borrow_threshold != NGX_HTTP_PD_BORROW_AUTO) {
        return cluster->borrow_threshold;
    }

    if (prefill->token_us_x1000 == 0) {
        return NGX_HTTP_PD_BORROW_UNKNOWN;
    }

    us = NGX_HTTP_PD_BORROW_TRIP + (double) owner->step_us;

    if (cluster->kv_transfers) {
        us += (double) cluster->kv_us[NGX_HTTP_PD_KV_WIRE]
              / cluster->kv_transfers;
    }

    tokens = NGX_HTTP_PD_BORROW_GAIN * us * 1000 / prefill->token_us_x1000;

    return tokens < NGX_MAX_INT32_VALUE ? (uint32_t) tokens + 1
                                        : NGX_MAX_INT32_VALUE;
}


static ngx_uint_t
ngx_http_pd_borrow_fits(ngx_http_pd_zone_t *zone, ngx_http_pd_record_t *record,
    ngx_http_pd_worker_t *owner, ngx_http_pd_worker_t *prefill)
{
    return owner->offers
           && ngx_http_pd_choose_serves(owner, record->cluster, record->model)
           && owner->vital == NGX_HTTP_PD_WELL
           && ngx_http_pd_slot_attached(zone, record->slot, owner)
           && ngx_http_pd_choose_pair_fits(owner, prefill)
           && ngx_http_pd_pairs_usable(zone, owner, prefill);
}


ngx_int_t
ngx_http_pd_borrow_ask(ngx_http_pd_attempt_t *attempt)
{
    ngx_uint_t                 owner;
    ngx_http_pd_job_t         *job;
    ngx_http_pd_side_t        *side;
    ngx_http_pd_attach_t      *attach;
    ngx_http_pd_submission_t  *submission;

    job = attempt->job;
    side = &attempt->owner;
    submission = &side->submission;

    owner = attempt->process->zone->sh->records[attempt->record].owner;

    if (owner == NGX_HTTP_PD_NONE) {
        return NGX_DECLINED;
    }

    attach = attempt->process->attaches[owner];

    if (attach == NULL || attach->state != NGX_HTTP_PD_ATTACH_UP
        || ngx_http_pd_attempt_suffix(side, PD__V1__ROUTE__ROUTE_OFFER, NULL)
           != NGX_OK)
    {
        return NGX_DECLINED;
    }

    submission->request = job->number;
    submission->attempt = attempt->number;
    submission->body = job->submit;
    submission->total = submission->suffix.len + attempt->submit_size;

    if (attach->max_submit && submission->total > attach->max_submit) {
        return NGX_DECLINED;
    }

    attempt->lender.data = ngx_pstrdup(job->pool, &attach->name);
    if (attempt->lender.data == NULL) {
        return NGX_DECLINED;
    }

    attempt->lender.len = attach->name.len;
    attempt->borrowing = 1;
    attempt->borrow_end = ngx_current_msec + job->cluster->borrow_timeout;

    ngx_http_pd_attach_submit(attach, side);

    return NGX_OK;
}


void
ngx_http_pd_borrow_offered(ngx_http_pd_side_t *side,
    ngx_http_pd_placed_t *placed)
{
    ngx_http_pd_attempt_t  *attempt;

    attempt = side->attempt;

    if (!ngx_http_pd_borrow_ticket_ok(&placed->ticket)) {
        ngx_http_pd_borrow_refused(side, "it has sent no valid ticket");
        return;
    }

    attempt->lent = 1;

    ngx_http_pd_borrow_go_on(attempt, &placed->ticket);
}


/* what is no ticket would make all of P's submission unreadable */

static ngx_uint_t
ngx_http_pd_borrow_ticket_ok(ngx_str_t *ticket)
{
    static ngx_http_pd_arena_t  arena;

    return ngx_http_pd_dispatch_ticket_ok(ticket)
           && ngx_http_pd_unpack(&arena, &pd__v1__ticket__descriptor,
                                 ticket->data, ticket->len);
}


void
ngx_http_pd_borrow_refused(ngx_http_pd_side_t *side, const char *why)
{
    ngx_http_pd_attempt_t  *attempt;

    attempt = side->attempt;

    ngx_http_pd_attach_drop(side, 1, PD__V1__CANCEL__REASON__REFUSED_ELSEWHERE);

    if (!attempt->borrowing) {
        return;
    }

    ngx_http_pd_borrow_none(attempt, why);
    ngx_http_pd_borrow_count(attempt, 0, 0);
    ngx_http_pd_borrow_go_on(attempt, NULL);
}


/* P gets the prompt, as another attempt than the owner had */

static void
ngx_http_pd_borrow_go_on(ngx_http_pd_attempt_t *attempt, ngx_str_t *ticket)
{
    attempt->borrowing = 0;
    attempt->number++;

    ngx_http_pd_attempt_begin(attempt, ticket);
}


static void
ngx_http_pd_borrow_none(ngx_http_pd_attempt_t *attempt, const char *why)
{
    ngx_log_error(NGX_LOG_INFO, attempt->job->log, 0,
                  "pd: request \"%V\" borrows nothing from worker \"%V\": %s",
                  &attempt->job->id, &attempt->lender, why);
}


void
ngx_http_pd_borrow_over(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_placed_t *placed)
{
    u_char              raw[NGX_HTTP_PD_BORROW_WHY];
    u_char              why[NGX_HTTP_PD_BORROW_WHY];
    ngx_uint_t          failed, tokens;
    ngx_http_pd_job_t  *job;

    if (!attempt->lent) {
        return;
    }

    attempt->lent = 0;

    job = attempt->job;
    failed = (placed->borrow_failed.len != 0);

    tokens = ngx_min(placed->borrowed_tokens, placed->cached_tokens);

    /* of an answer that goes on, the first part counts, as of cached tokens */

    if (tokens && !attempt->delivered) {
        job->borrowed_tokens = tokens;
        job->borrowed_from = attempt->lender;
    }

    if (failed) {
        ngx_cpystrn(raw, placed->borrow_failed.data,
                    ngx_min(placed->borrow_failed.len + 1, sizeof(raw)));
        ngx_http_pd_failure_text(why, sizeof(why), (char *) raw);
        ngx_http_pd_borrow_none(attempt, (char *) why);
    }

    ngx_http_pd_borrow_count(attempt, tokens, failed);

    ngx_http_pd_attach_drop(&attempt->owner, 1,
                            PD__V1__CANCEL__REASON__FINISHED_ELSEWHERE);
}


/* for the counters; and whether the way between the two is to be trusted */

static void
ngx_http_pd_borrow_count(ngx_http_pd_attempt_t *attempt, ngx_uint_t tokens,
    ngx_uint_t failed)
{
    ngx_http_pd_zone_t          *zone;
    ngx_http_pd_record_t        *record;
    ngx_http_pd_worker_t        *owner, *prefill;
    ngx_http_pd_zone_cluster_t  *cluster;

    zone = attempt->process->zone;
    record = &zone->sh->records[attempt->record];
    cluster = &zone->sh->clusters[record->cluster];

    ngx_http_pd_zone_lock(zone);

    cluster->borrows[tokens ? NGX_HTTP_PD_BORROWED : NGX_HTTP_PD_COMPUTED]++;
    cluster->borrowed_tokens += tokens;

    owner = &zone->sh->workers[record->owner];
    prefill = &zone->sh->workers[record->prefill];

    if (tokens) {
        ngx_http_pd_pairs_well(zone, owner, prefill);

    } else if (failed) {
        ngx_http_pd_pairs_fault(zone, attempt->job->cluster, owner, prefill,
                                attempt->process->log);
    }

    ngx_http_pd_zone_unlock(zone);
}


void
ngx_http_pd_borrow_drop(ngx_http_pd_attempt_t *attempt,
    Pd__V1__Cancel__Reason reason)
{
    attempt->borrowing = 0;
    attempt->lent = 0;

    ngx_http_pd_attach_drop(&attempt->owner, 1, reason);
}


ngx_msec_int_t
ngx_http_pd_borrow_left(ngx_http_pd_attempt_t *attempt, ngx_msec_int_t left)
{
    ngx_msec_int_t  n;

    if (!attempt->borrowing) {
        return left;
    }

    n = (ngx_msec_int_t) (attempt->borrow_end - ngx_current_msec);

    return ngx_min(left, n);
}


ngx_int_t
ngx_http_pd_borrow_timer(ngx_http_pd_attempt_t *attempt)
{
    if (!attempt->borrowing
        || (ngx_msec_int_t) (attempt->borrow_end - ngx_current_msec) > 0)
    {
        return NGX_OK;
    }

    ngx_http_pd_borrow_refused(&attempt->owner, "it did not answer in time");

    return NGX_DONE;
}
