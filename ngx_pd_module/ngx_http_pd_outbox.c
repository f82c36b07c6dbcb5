
/*
 * What waits to be sent to one worker: see the header.
 *
 * Parts are written by hand: protobuf-c would want the data in one piece, and
 * would copy it once more.
 */


#include "ngx_http_pd_outbox.h"
#include "ngx_http_pd_grpc.h"
#include "ngx_http_pd_wire.h"


/* fields of ToWorker and SubmitPart: number << 3 | wire type */

#define NGX_HTTP_PD_TAG_SUBMIT      (2 << 3 | 2)
#define NGX_HTTP_PD_TAG_REQUEST     (1 << 3 | 0)
#define NGX_HTTP_PD_TAG_ATTEMPT     (2 << 3 | 0)
#define NGX_HTTP_PD_TAG_DATA        (3 << 3 | 2)
#define NGX_HTTP_PD_TAG_LAST        (4 << 3 | 0)
#define NGX_HTTP_PD_TAG_TOTAL       (5 << 3 | 0)


typedef struct {
    ngx_queue_t     queue;
    size_t          len;
    u_char          data[1];
} ngx_http_pd_note_t;


static void ngx_http_pd_outbox_take_note(ngx_http_pd_outbox_t *outbox);
static void ngx_http_pd_outbox_take_part(ngx_http_pd_outbox_t *outbox);
static u_char *ngx_http_pd_outbox_copy(ngx_http_pd_submission_t *submission,
    u_char *p, size_t len);


void
ngx_http_pd_outbox_init(ngx_http_pd_outbox_t *outbox)
{
    ngx_queue_init(&outbox->notes);
    ngx_queue_init(&outbox->submissions);

    outbox->notes_size = 0;
    outbox->pos = outbox->message;
    outbox->last = outbox->message;
}


void
ngx_http_pd_outbox_clear(ngx_http_pd_outbox_t *outbox)
{
    ngx_queue_t               *q;
    ngx_http_pd_note_t        *note;
    ngx_http_pd_submission_t  *submission;

    while (!ngx_queue_empty(&outbox->notes)) {
        q = ngx_queue_head(&outbox->notes);
        ngx_queue_remove(q);

        note = ngx_queue_data(q, ngx_http_pd_note_t, queue);
        ngx_free(note);
    }

    while (!ngx_queue_empty(&outbox->submissions)) {
        q = ngx_queue_head(&outbox->submissions);
        ngx_queue_remove(q);

        submission = ngx_queue_data(q, ngx_http_pd_submission_t, queue);
        submission->waits = 0;
    }

    ngx_http_pd_outbox_init(outbox);
}


ngx_int_t
ngx_http_pd_outbox_note(ngx_http_pd_outbox_t *outbox, Pd__V1__ToWorker *message)
{
    u_char              *p;
    size_t               len;
    ngx_http_pd_note_t  *note;

    len = pd__v1__to_worker__get_packed_size(message);

    if (NGX_HTTP_PD_GRPC_PREFIX + len > sizeof(outbox->message)
        || outbox->notes_size + len > NGX_HTTP_PD_OUTBOX_NOTES)
    {
        return NGX_ERROR;
    }

    note = ngx_alloc(sizeof(ngx_http_pd_note_t) + NGX_HTTP_PD_GRPC_PREFIX
                     + len, ngx_cycle->log);
    if (note == NULL) {
        return NGX_ERROR;
    }

    p = ngx_http_pd_grpc_prefix(note->data, len);
    pd__v1__to_worker__pack(message, p);

    note->len = NGX_HTTP_PD_GRPC_PREFIX + len;

    ngx_queue_insert_tail(&outbox->notes, &note->queue);
    outbox->notes_size += note->len;

    return NGX_OK;
}


void
ngx_http_pd_outbox_submit(ngx_http_pd_outbox_t *outbox,
    ngx_http_pd_submission_t *submission)
{
    submission->sent = 0;
    submission->pos = submission->body ? submission->body->buf->pos : NULL;
    submission->suffix_pos = submission->suffix.data;
    submission->waits = 1;

    ngx_queue_insert_tail(&outbox->submissions, &submission->queue);
}


ngx_uint_t
ngx_http_pd_outbox_remove(ngx_http_pd_outbox_t *outbox,
    ngx_http_pd_submission_t *submission)
{
    if (submission->waits) {
        ngx_queue_remove(&submission->queue);
        submission->waits = 0;
    }

    return submission->sent > 0;
}


size_t
ngx_http_pd_outbox_fill(ngx_http_pd_outbox_t *outbox, u_char *buf, size_t size)
{
    size_t   n;
    u_char  *p;

    p = buf;

    while ((size_t) (p - buf) < size) {

        if (outbox->pos == outbox->last) {

            if (!ngx_queue_empty(&outbox->notes)) {
                ngx_http_pd_outbox_take_note(outbox);

            } else if (!ngx_queue_empty(&outbox->submissions)) {
                ngx_http_pd_outbox_take_part(outbox);

            } else {
                break;
            }
        }

        n = ngx_min((size_t) (outbox->last - outbox->pos),
                    size - (size_t) (p - buf));

        p = ngx_cpymem(p, outbox->pos, n);
        outbox->pos += n;
    }

    return p - buf;
}


static void
ngx_http_pd_outbox_take_note(ngx_http_pd_outbox_t *outbox)
{
    ngx_queue_t         *q;
    ngx_http_pd_note_t  *note;

    q = ngx_queue_head(&outbox->notes);
    ngx_queue_remove(q);

    note = ngx_queue_data(q, ngx_http_pd_note_t, queue);

    outbox->pos = outbox->message;
    outbox->last = ngx_cpymem(outbox->pos, note->data, note->len);
    outbox->notes_size -= note->len;

    ngx_free(note);
}


static void
ngx_http_pd_outbox_take_part(ngx_http_pd_outbox_t *outbox)
{
    size_t                     len, part;
    u_char                    *p, *h, header[64];
    ngx_queue_t               *q;
    ngx_uint_t                 last;
    ngx_http_pd_submission_t  *submission;

    q = ngx_queue_head(&outbox->submissions);
    ngx_queue_remove(q);

    submission = ngx_queue_data(q, ngx_http_pd_submission_t, queue);

    len = ngx_min(submission->total - submission->sent,
                  NGX_HTTP_PD_OUTBOX_PART);
    last = (submission->sent + len == submission->total);

    /* a SubmitPart, its data at the end */

    h = header;

    *h++ = NGX_HTTP_PD_TAG_REQUEST;
    h = ngx_http_pd_wire_put(h, submission->request);
    *h++ = NGX_HTTP_PD_TAG_ATTEMPT;
    h = ngx_http_pd_wire_put(h, submission->attempt);

    if (submission->sent == 0) {
        *h++ = NGX_HTTP_PD_TAG_TOTAL;
        h = ngx_http_pd_wire_put(h, submission->total);
    }

    if (last) {
        *h++ = NGX_HTTP_PD_TAG_LAST;
        *h++ = 1;
    }

    *h++ = NGX_HTTP_PD_TAG_DATA;
    h = ngx_http_pd_wire_put(h, len);

    /* a ToWorker around it, of which we know the length now */

    part = (h - header) + len;

    p = outbox->message + NGX_HTTP_PD_GRPC_PREFIX;

    *p++ = NGX_HTTP_PD_TAG_SUBMIT;
    p = ngx_http_pd_wire_put(p, part);
    p = ngx_cpymem(p, header, h - header);
    p = ngx_http_pd_outbox_copy(submission, p, len);

    outbox->pos = outbox->message;
    outbox->last = p;

    (void) ngx_http_pd_grpc_prefix(outbox->message,
                                   p - outbox->message
                                   - NGX_HTTP_PD_GRPC_PREFIX);

    if (submission->sent == 0) {
        submission->begun(submission);
    }

    submission->sent += len;

    if (last) {
        submission->waits = 0;

    } else {
        ngx_queue_insert_tail(&outbox->submissions, q);
    }
}


static u_char *
ngx_http_pd_outbox_copy(ngx_http_pd_submission_t *submission, u_char *p,
    size_t len)
{
    size_t  n;

    while (len && submission->body) {
        n = ngx_min((size_t) (submission->body->buf->last - submission->pos),
                    len);

        p = ngx_cpymem(p, submission->pos, n);
        submission->pos += n;
        len -= n;

        if (submission->pos == submission->body->buf->last) {
            submission->body = submission->body->next;
            submission->pos = submission->body ? submission->body->buf->pos
                                               : NULL;
        }
    }

    p = ngx_cpymem(p, submission->suffix_pos, len);
    submission->suffix_pos += len;

    return p;
}
