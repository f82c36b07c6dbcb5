
/*
 * What waits to be sent to one worker.
 *
 * Notes (hello, cancel, heartbeat, drain) are small and go first.  Submissions
 * stay where they are, in their jobs' buffers, until the stream takes bytes;
 * then they go in parts of 32 KiB, each in its turn.  So a cancel waits for one
 * part at most, and a long prompt does not hold up a short one.
 */


#ifndef _NGX_HTTP_PD_OUTBOX_H_INCLUDED_
#define _NGX_HTTP_PD_OUTBOX_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "proto/pd.pb-c.h"


#define NGX_HTTP_PD_OUTBOX_PART     32768

/* notes that wait: a worker that reads no more is given up before this */
#define NGX_HTTP_PD_OUTBOX_NOTES    (1024 * 1024)


typedef struct ngx_http_pd_submission_s  ngx_http_pd_submission_t;

struct ngx_http_pd_submission_s {
    ngx_queue_t     queue;         /* while in an outbox */

    /* set by the owner */

    uint64_t        request;
    uint32_t        attempt;
    ngx_chain_t    *body;          /* a packed Submit, in memory ... */
    ngx_str_t       suffix;        /* ... and fields to be appended to it */
    size_t          total;         /* bytes of both */

    /* its first part is on its way */
    void          (*begun)(ngx_http_pd_submission_t *submission);

    /* the outbox's */

    size_t          sent;
    u_char         *pos;           /* in body's first buffer */
    u_char         *suffix_pos;
    unsigned        waits:1;
};


typedef struct {
    ngx_queue_t     notes;
    size_t          notes_size;
    ngx_queue_t     submissions;

    /* the message that is being sent */

    u_char         *pos;
    u_char         *last;
    u_char          message[NGX_HTTP_PD_OUTBOX_PART + 64];
} ngx_http_pd_outbox_t;


void ngx_http_pd_outbox_init(ngx_http_pd_outbox_t *outbox);

/* forgets everything: the stream is gone */
void ngx_http_pd_outbox_clear(ngx_http_pd_outbox_t *outbox);

/* NGX_ERROR: no memory, or the worker does not read */
ngx_int_t ngx_http_pd_outbox_note(ngx_http_pd_outbox_t *outbox,
    Pd__V1__ToWorker *note);

void ngx_http_pd_outbox_submit(ngx_http_pd_outbox_t *outbox,
    ngx_http_pd_submission_t *submission);

/* 1 if the worker has heard of it, and must be told to forget it */
ngx_uint_t ngx_http_pd_outbox_remove(ngx_http_pd_outbox_t *outbox,
    ngx_http_pd_submission_t *submission);

/* the next bytes of the stream; less than "size": there are no more */
size_t ngx_http_pd_outbox_fill(ngx_http_pd_outbox_t *outbox, u_char *buf,
    size_t size);


#endif /* _NGX_HTTP_PD_OUTBOX_H_INCLUDED_ */
