
/*
 * What is said on an Attach stream: submissions, cancellations and notes to the
 * worker; its messages, each handed to whom it concerns.
 */


#include "ngx_http_pd_attach.h"
#include "ngx_http_pd_attempt.h"
#include "ngx_http_pd_report.h"
#include "ngx_http_pd_unpack.h"


static void ngx_http_pd_attach_begun(ngx_http_pd_submission_t *submission);
static ngx_int_t ngx_http_pd_attach_on_step(ngx_http_pd_attach_t *attach,
    ngx_http_pd_step_t *step);
static ngx_int_t ngx_http_pd_attach_on_other(ngx_http_pd_attach_t *attach,
    ngx_http_pd_step_t *step, u_char *p, size_t len);


void
ngx_http_pd_attach_submit(ngx_http_pd_attach_t *attach,
    ngx_http_pd_side_t *side)
{
    side->attach = attach;
    side->placed = 0;
    side->finished = 0;
    side->submission.begun = ngx_http_pd_attach_begun;

    ngx_queue_insert_tail(&attach->sides, &side->queue);
    ngx_http_pd_outbox_submit(&attach->outbox, &side->submission);

    ngx_post_event(&attach->flush, &ngx_posted_events);
}


/* the worker counts submissions by their first parts, and so do we */

static void
ngx_http_pd_attach_begun(ngx_http_pd_submission_t *submission)
{
    ngx_http_pd_side_t    *side;
    ngx_http_pd_zone_t    *zone;
    ngx_http_pd_attach_t  *attach;

    side = (ngx_http_pd_side_t *) submission;
    attach = side->attach;
    zone = attach->process->zone;

    attach->submitted++;

    if (side->offers) {

        /* no work of the worker's, and in no report */

        return;
    }

    ngx_http_pd_zone_lock(zone);
    ngx_http_pd_load_begun(zone, side->attempt->record, side->decode,
                           attach->stream, attach->submitted);
    ngx_http_pd_zone_unlock(zone);
}


void
ngx_http_pd_attach_drop(ngx_http_pd_side_t *side, ngx_uint_t cancel,
    Pd__V1__Cancel__Reason reason)
{
    ngx_uint_t             known;
    Pd__V1__Cancel         message = PD__V1__CANCEL__INIT;
    Pd__V1__ToWorker       note = PD__V1__TO_WORKER__INIT;
    ngx_http_pd_attach_t  *attach;

    attach = side->attach;

    if (attach == NULL) {
        return;
    }

    side->attach = NULL;
    ngx_queue_remove(&side->queue);

    known = ngx_http_pd_outbox_remove(&attach->outbox, &side->submission);

    if (!cancel || !known || attach->state != NGX_HTTP_PD_ATTACH_UP) {
        return;
    }

    message.request = side->submission.request;
    message.attempt = side->submission.attempt;
    message.reason = reason;

    note.kind_case = PD__V1__TO_WORKER__KIND_CANCEL;
    note.cancel = &message;

    ngx_http_pd_attach_note(attach, &note);
}


void
ngx_http_pd_attach_drain(ngx_http_pd_attach_t *attach)
{
    Pd__V1__ToWorker        note = PD__V1__TO_WORKER__INIT;
    Pd__V1__FrontendDrain  drain = PD__V1__FRONTEND_DRAIN__INIT;

    if (attach->state != NGX_HTTP_PD_ATTACH_UP || attach->drained
        || !ngx_queue_empty(&attach->outbox.submissions))
    {
        return;
    }

    attach->drained = 1;

    note.kind_case = PD__V1__TO_WORKER__KIND_DRAIN;
    note.drain = &drain;

    ngx_http_pd_attach_note(attach, &note);
}


void
ngx_http_pd_attach_note(ngx_http_pd_attach_t *attach, Pd__V1__ToWorker *note)
{
    if (ngx_http_pd_outbox_note(&attach->outbox, note) != NGX_OK) {

        /* not from here: a message of this stream may be in the works */

        attach->fault = "it does not read what it is sent";
        ngx_post_event(&attach->timer, &ngx_posted_events);
        return;
    }

    ngx_post_event(&attach->flush, &ngx_posted_events);
}


ngx_int_t
ngx_http_pd_attach_on_message(void *data, u_char *p, size_t len)
{
    ngx_http_pd_attach_t  *attach = data;

    /* of all streams: a message is done with before the next one comes */

    static ngx_http_pd_step_t  step;

    if (ngx_http_pd_step_read(&step, p, len) != NGX_OK || step.rare) {
        return ngx_http_pd_attach_on_other(attach, &step, p, len);
    }

    return ngx_http_pd_attach_on_step(attach, &step);
}


static ngx_int_t
ngx_http_pd_attach_on_step(ngx_http_pd_attach_t *attach,
    ngx_http_pd_step_t *step)
{
    attach->heard = ngx_current_msec;

    if (attach->state != NGX_HTTP_PD_ATTACH_UP) {
        attach->fault = "its first message is no hello";
        return NGX_ERROR;
    }

    if (step->kind == PD__V1__FROM_WORKER__KIND_PLACED) {
        ngx_http_pd_dispatch_placed(attach, &step->placed);

    } else {
        ngx_http_pd_dispatch_step(attach, step);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_attach_on_other(ngx_http_pd_attach_t *attach,
    ngx_http_pd_step_t *step, u_char *p, size_t len)
{
    ngx_int_t            rc;
    Pd__V1__FromWorker  *message;

    static ngx_http_pd_arena_t  arena;

    message = ngx_http_pd_unpack(&arena, &pd__v1__from_worker__descriptor, p,
                                 len);

    if (message == NULL) {
        attach->fault = "it sent a message that cannot be read";
        return NGX_ERROR;
    }

    attach->heard = ngx_current_msec;

    if (message->kind_case == PD__V1__FROM_WORKER__KIND_HELLO) {
        return ngx_http_pd_attach_hello(attach, message->hello);
    }

    if (attach->state != NGX_HTTP_PD_ATTACH_UP) {
        attach->fault = "its first message is no hello";
        return NGX_ERROR;
    }

    switch (message->kind_case) {

    case PD__V1__FROM_WORKER__KIND_LOAD:
        ngx_http_pd_report_alone(attach, message->load);
        break;

    case PD__V1__FROM_WORKER__KIND_PLACED:
    case PD__V1__FROM_WORKER__KIND_STEP:

        rc = step->rare ? ngx_http_pd_step_full(step, message)
                        : ngx_http_pd_step_normal(step, message);

        if (rc != NGX_OK) {
            attach->fault = "it sent a message that is too large";
            return NGX_ERROR;
        }

        return ngx_http_pd_attach_on_step(attach, step);

    case PD__V1__FROM_WORKER__KIND_FAILED:
        ngx_http_pd_failure_message(attach, message->failed);
        break;

    case PD__V1__FROM_WORKER__KIND_DRAIN:
        ngx_http_pd_report_drain(attach);
        break;

    case PD__V1__FROM_WORKER__KIND_FRONTENDS:
        ngx_http_pd_report_frontends(attach, message->frontends);
        break;

    default:
        /* of a later protocol */
        break;
    }

    return NGX_OK;
}
