
/*
 * When a worker says no, or nothing any more.
 *
 *     no room, leaving           others are chosen
 *     the hand-off was lost      others are chosen
 *     "use a prefill worker"     a pair is chosen
 *     the stream is gone         others are chosen, unless it is the second
 *     the worker is at fault     the same
 *     the request is at fault    400
 *     it is too late             504
 *
 * In mid-answer others go on where it has come to, see ngx_http_pd_failover.h;
 * if that cannot be, it ends with 503.
 *
 * What P says, or that it is gone, counts only until D has the ticket.
 */


#include "ngx_http_pd_attempt.h"
#include "ngx_http_pd_borrow.h"
#include "ngx_http_pd_learn.h"
#include "ngx_http_pd_pairs.h"
#include "ngx_http_pd_vitals.h"


static void ngx_http_pd_failure_blame(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_attach_t *attach, ngx_uint_t death);
static void ngx_http_pd_failure_pair(ngx_http_pd_attempt_t *attempt);
static void ngx_http_pd_failure_fault(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_attach_t *attach, const char *message);
static void ngx_http_pd_failure_refused(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_attach_t *attach, ngx_uint_t unclaimed,
    Pd__V1__Failed__Code code, const char *message);
static ngx_int_t ngx_http_pd_failure_other_decode(
    ngx_http_pd_attempt_t *attempt, ngx_uint_t avoid);
static void ngx_http_pd_failure_redirect(ngx_http_pd_attempt_t *attempt,
    ngx_uint_t prompt_tokens, const char *message);
static void ngx_http_pd_failure_prefilled(ngx_http_pd_attempt_t *attempt);
static void ngx_http_pd_failure_param(ngx_http_pd_attempt_t *attempt,
    const char *param);


void
ngx_http_pd_failure_message(ngx_http_pd_attach_t *attach,
    Pd__V1__Failed *failed)
{
    char                    message[NGX_HTTP_PD_MESSAGE_MAX];
    ngx_uint_t              decode, placed, retry_after;
    ngx_http_pd_side_t     *side;
    ngx_http_pd_attempt_t  *attempt;

    side = ngx_http_pd_dispatch_side(attach, failed->request,
                                     failed->attempt);

    if (side == NULL || side->finished) {
        return;
    }

    attempt = side->attempt;
    decode = side->decode;
    placed = side->placed;

    ngx_http_pd_failure_text((u_char *) message, sizeof(message),
                             failed->message);

    if (side->offers) {
        ngx_http_pd_attach_drop(side, 0, 0);

        if (failed->code == PD__V1__FAILED__CODE__TICKET) {
            ngx_http_pd_learn_missing(attempt);
        }

        ngx_http_pd_borrow_refused(side, message);
        return;
    }

    retry_after = ngx_min((failed->retry_after_ms + 999u) / 1000, 3600);

    ngx_http_pd_dispatch_side_over(side, NGX_HTTP_SERVICE_UNAVAILABLE, NULL);
    ngx_http_pd_attach_drop(side, 0, 0);

    if (!decode && attempt->handed) {
        ngx_http_pd_failure_prefilled(attempt);

        ngx_log_error(NGX_LOG_INFO, attempt->job->log, 0,
                      "pd: prefill worker \"%V\" failed with request \"%V\", "
                      "its decode worker will say more: %s",
                      &attach->name, &attempt->job->id, message);
        return;
    }

    switch (failed->code) {

    case PD__V1__FAILED__CODE__CONTEXT_LENGTH:
        ngx_str_set(&ngx_http_pd_attempt_result(attempt)->code,
                    "context_length_exceeded");

        /* fall through */

    case PD__V1__FAILED__CODE__INVALID:
        ngx_http_pd_failure_param(attempt, failed->param);
        ngx_http_pd_attempt_fail(attempt, NGX_HTTP_BAD_REQUEST, 0, "%s",
                                 message);
        break;

    case PD__V1__FAILED__CODE__CAPACITY:
    case PD__V1__FAILED__CODE__DRAINING:
    case PD__V1__FAILED__CODE__TICKET:
    case PD__V1__FAILED__CODE__CANCELLED:
        attempt->retry_after = ngx_max(retry_after, 1);

        if (placed && decode && failed->code == PD__V1__FAILED__CODE__TICKET)
        {
            ngx_http_pd_failure_pair(attempt);
        }

        if (placed) {
            ngx_http_pd_failover_begin(attempt);
        }

        /* a ticket that D has not accepted may be handed to another one */

        ngx_http_pd_failure_refused(attempt, attach,
                                    decode && attempt->handed
                                    && !attempt->accepted && failed->code
                                       != PD__V1__FAILED__CODE__TICKET,
                                    failed->code, message);
        break;

    case PD__V1__FAILED__CODE__REDIRECT:
        ngx_http_pd_failure_redirect(attempt, failed->prompt_tokens, message);
        break;

    case PD__V1__FAILED__CODE__DEADLINE:
        ngx_http_pd_attempt_fail(attempt, NGX_HTTP_GATEWAY_TIME_OUT, 0, "%s",
                                 message);
        break;

    default: /* INTERNAL, and what a later protocol may add */
        ngx_http_pd_failure_fault(attempt, attach, message);
        break;
    }
}


/* both workers live, and the way between them does not */

static void
ngx_http_pd_failure_pair(ngx_http_pd_attempt_t *attempt)
{
    ngx_http_pd_zone_t    *zone;
    ngx_http_pd_record_t  *record;

    zone = attempt->process->zone;
    record = &zone->sh->records[attempt->record];

    if (record->prefill == NGX_HTTP_PD_NONE) {
        return;
    }

    ngx_http_pd_zone_lock(zone);
    ngx_http_pd_pairs_fault(zone, attempt->job->cluster,
                            &zone->sh->workers[record->prefill],
                            &zone->sh->workers[record->decode],
                            attempt->process->log);
    ngx_http_pd_zone_unlock(zone);
}


/* like a death: it may be the request that does it */

static void
ngx_http_pd_failure_fault(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_attach_t *attach, const char *message)
{
    attempt->deaths++;

    ngx_http_pd_failure_blame(attempt, attach, 0);
    ngx_http_pd_failover_begin(attempt);
    ngx_http_pd_attempt_again(attempt, attach->index,
                              NGX_HTTP_INTERNAL_SERVER_ERROR, message);
}


/* no fault of the request: others may do it, as long as nothing was sent */

static void
ngx_http_pd_failure_refused(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_attach_t *attach, ngx_uint_t unclaimed,
    Pd__V1__Failed__Code code, const char *message)
{
    ngx_http_pd_zone_t    *zone;
    ngx_http_pd_worker_t  *worker;

    zone = attach->process->zone;

    /* our table was wrong about it; its next report tells better */

    ngx_http_pd_zone_lock(zone);

    worker = ngx_http_pd_zone_worker(zone, attach->index, attach->id);

    if (worker && code == PD__V1__FAILED__CODE__CAPACITY) {
        worker->kv_free = 0;
        worker->waiting = ngx_max(worker->waiting, 1);
    }

    if (worker && code == PD__V1__FAILED__CODE__DRAINING) {
        worker->draining = 1;
    }

    ngx_http_pd_zone_unlock(zone);

    if (unclaimed
        && ngx_http_pd_failure_other_decode(attempt, attach->index) == NGX_OK)
    {
        return;
    }

    attempt->crowded = (code == PD__V1__FAILED__CODE__CAPACITY);

    ngx_http_pd_attempt_again(attempt, attach->index,
                              NGX_HTTP_SERVICE_UNAVAILABLE, message);
}


static ngx_int_t
ngx_http_pd_failure_other_decode(ngx_http_pd_attempt_t *attempt,
    ngx_uint_t avoid)
{
    ngx_int_t             rc;
    ngx_uint_t            worker;
    ngx_http_pd_zone_t   *zone;

    /* one that D has accepted is D's */

    if (attempt->choices >= NGX_HTTP_PD_CHOICES
        || attempt->prefill.attach == NULL
        || attempt->decode.submission.suffix.data == NULL)
    {
        return NGX_DECLINED;
    }

    zone = attempt->process->zone;

    ngx_http_pd_zone_lock(zone);
    rc = ngx_http_pd_ledger_again_decode(zone, attempt->record, avoid);
    worker = zone->sh->records[attempt->record].decode;
    ngx_http_pd_zone_unlock(zone);

    if (rc != NGX_OK) {
        return NGX_DECLINED;
    }

    ngx_log_error(NGX_LOG_INFO, attempt->job->log, 0,
                  "pd: request \"%V\" goes to another decode worker",
                  &attempt->job->id);

    attempt->choices++;

    ngx_http_pd_attempt_send(attempt, &attempt->decode, worker);

    return NGX_OK;
}


/* more of the prompt was to be computed than we knew: a prefill worker's job */

static void
ngx_http_pd_failure_redirect(ngx_http_pd_attempt_t *attempt,
    ngx_uint_t prompt_tokens, const char *message)
{
    ngx_http_pd_zone_t  *zone;

    zone = attempt->process->zone;

    if (attempt->job->route != NGX_HTTP_PD_ROUTE_DIRECT) {
        ngx_http_pd_attempt_fail(attempt, NGX_HTTP_INTERNAL_SERVER_ERROR, 0,
                                 "%s", message);
        return;
    }

    ngx_http_pd_zone_lock(zone);

    if (prompt_tokens) {
        ngx_http_pd_load_exact(zone, attempt->record,
                               prompt_tokens + attempt->position);
    }

    zone->sh->records[attempt->record].split = 1;

    ngx_http_pd_zone_unlock(zone);

    ngx_http_pd_attempt_again(attempt, NGX_HTTP_PD_NONE,
                              NGX_HTTP_SERVICE_UNAVAILABLE, message);
}


void
ngx_http_pd_failure_lost(ngx_http_pd_attach_t *attach, ngx_uint_t cancel)
{
    ngx_uint_t              decode, finished;
    ngx_queue_t            *q;
    ngx_http_pd_side_t     *side;
    ngx_http_pd_attempt_t  *attempt;

    while (!ngx_queue_empty(&attach->sides)) {

        q = ngx_queue_head(&attach->sides);
        side = ngx_queue_data(q, ngx_http_pd_side_t, queue);

        attempt = side->attempt;
        decode = side->decode;
        finished = side->finished;

        if (side->offers) {
            ngx_http_pd_attach_drop(side, cancel,
                                    PD__V1__CANCEL__REASON__REFUSED_ELSEWHERE);
            ngx_http_pd_borrow_refused(side, "it was lost");
            continue;
        }

        if (!finished) {
            ngx_http_pd_dispatch_side_over(side, NGX_HTTP_BAD_GATEWAY, NULL);
            ngx_http_pd_failure_blame(attempt, attach, 1);
        }

        ngx_http_pd_attach_drop(side, cancel,
                                PD__V1__CANCEL__REASON__REFUSED_ELSEWHERE);

        attempt->deaths += !finished;

        if (!decode && (attempt->handed || finished)) {
            ngx_http_pd_failure_prefilled(attempt);
            continue;
        }

        ngx_http_pd_failover_begin(attempt);
        ngx_http_pd_attempt_again(attempt, attach->index,
                                  NGX_HTTP_SERVICE_UNAVAILABLE,
                                  attempt->delivered
                                  ? "The worker was lost in the middle of the "
                                    "answer."
                                  : "The worker was lost.");
    }
}


/* what the worker did, or that it died, is held against it */

static void
ngx_http_pd_failure_blame(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_attach_t *attach, ngx_uint_t death)
{
    ngx_http_pd_zone_t  *zone;

    zone = attach->process->zone;

    if (attach->process->terminating) {
        return;
    }

    ngx_http_pd_zone_lock(zone);

    if (ngx_http_pd_zone_worker(zone, attach->index, attach->id)) {
        ngx_http_pd_vitals_fault(zone, attempt->job->cluster, attach->index,
                                 death, attach->process->log);
    }

    ngx_http_pd_zone_unlock(zone);
}


/* D has the ticket, and P is out of the account */

static void
ngx_http_pd_failure_prefilled(ngx_http_pd_attempt_t *attempt)
{
    ngx_http_pd_zone_t  *zone;

    zone = attempt->process->zone;

    ngx_http_pd_zone_lock(zone);
    ngx_http_pd_load_prefilled(zone, attempt->record);
    ngx_http_pd_ledger_run(zone);
    ngx_http_pd_zone_unlock(zone);
}


static void
ngx_http_pd_failure_param(ngx_http_pd_attempt_t *attempt, const char *param)
{
    u_char      text[64];
    ngx_str_t  *name;

    ngx_http_pd_failure_text(text, sizeof(text), param);

    name = &ngx_http_pd_attempt_result(attempt)->param;

    name->len = ngx_strlen(text);
    name->data = ngx_pnalloc(attempt->job->pool, sizeof(text));

    if (name->data == NULL) {
        name->len = 0;
        return;
    }

    ngx_memcpy(name->data, text, sizeof(text));
}


void
ngx_http_pd_failure_text(u_char *dst, size_t size, const char *src)
{
    u_char      *p, *last;
    ngx_uint_t   valid;

    p = ngx_cpystrn(dst, (u_char *) src, size);
    last = p;
    valid = 1;

    for (p = dst; p < last; /* void */ ) {

        if (*p < 0x80) {
            p++;

        } else if (ngx_utf8_decode(&p, last - p) > 0x10ffff) {
            valid = 0;
            break;
        }
    }

    for (p = dst; p < last; p++) {
        if (*p < 0x20 || *p == 0x7f || (*p > 0x7f && !valid)) {
            *p = '?';
        }
    }
}
