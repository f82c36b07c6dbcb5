
/*
 * Step and Placed, read in place: see the header.
 *
 * A known field of another wire type makes a form unusual; so does a message
 * that comes twice.  Of numbers and bytes that come twice, the last counts.
 */


#include "ngx_http_pd_step.h"
#include "ngx_http_pd_wire.h"


#define NGX_HTTP_PD_STEP_ROOM     64       /* sequences, at first */
#define NGX_HTTP_PD_STEP_KEEP     4096     /* sequences, between messages */

/* numbers of fields that are known here, at most; all below are known */

#define NGX_HTTP_PD_STEP_FROM_WORKER    6
#define NGX_HTTP_PD_STEP_PLACED         8
#define NGX_HTTP_PD_STEP_STEP           3
#define NGX_HTTP_PD_STEP_SEQUENCE       9
#define NGX_HTTP_PD_STEP_FINISHED       6
#define NGX_HTTP_PD_STEP_TIMING         10


static void ngx_http_pd_step_reset(ngx_http_pd_step_t *step);
static ngx_int_t ngx_http_pd_step_placed(ngx_http_pd_placed_t *placed,
    ngx_str_t *in);
static ngx_int_t ngx_http_pd_step_step(ngx_http_pd_step_t *step,
    ngx_str_t *in);
static ngx_int_t ngx_http_pd_step_room(ngx_http_pd_step_t *step);
static ngx_int_t ngx_http_pd_step_tokens(ngx_http_pd_sequence_t *seq,
    ngx_str_t *in);
static ngx_int_t ngx_http_pd_step_finished(ngx_http_pd_finished_t *finished,
    ngx_str_t *in);


ngx_int_t
ngx_http_pd_step_read(ngx_http_pd_step_t *step, u_char *p, size_t len)
{
    u_char              *last;
    ngx_int_t            rc;
    ngx_str_t            in;
    ngx_http_pd_wire_t   wire;

    ngx_http_pd_step_reset(step);

    last = p + len;
    in.data = NULL;

    while (p < last) {
        p = ngx_http_pd_wire_field(p, last, &wire);

        if (p == NULL) {
            return NGX_DECLINED;
        }

        switch (wire.tag) {

        case ngx_http_pd_wire_bytes(3):
        case ngx_http_pd_wire_bytes(4):

            if (in.data) {
                return NGX_DECLINED;
            }

            step->kind = wire.tag >> 3;
            in = wire.bytes;
            break;

        default:

            if (!ngx_http_pd_step_unknown(&wire,
                                          NGX_HTTP_PD_STEP_FROM_WORKER))
            {
                return NGX_DECLINED;
            }
        }
    }

    if (in.data == NULL) {
        return NGX_DECLINED;
    }

    rc = (step->kind == PD__V1__FROM_WORKER__KIND_PLACED)
         ? ngx_http_pd_step_placed(&step->placed, &in)
         : ngx_http_pd_step_step(step, &in);

    if (rc != NGX_OK) {
        step->rare = 0;
    }

    return rc;
}


ngx_int_t
ngx_http_pd_step_normal(ngx_http_pd_step_t *step, Pd__V1__FromWorker *message)
{
    size_t   len;
    u_char  *p;

    len = pd__v1__from_worker__get_packed_size(message);

    p = ngx_alloc(len, ngx_cycle->log);
    if (p == NULL) {
        return NGX_ERROR;
    }

    (void) pd__v1__from_worker__pack(message, p);

    if (ngx_http_pd_step_read(step, p, len) != NGX_OK) {
        ngx_free(p);
        return NGX_ERROR;
    }

    step->normal = p;

    return step->rare ? ngx_http_pd_step_full(step, message) : NGX_OK;
}


ngx_int_t
ngx_http_pd_step_full(ngx_http_pd_step_t *step, Pd__V1__FromWorker *message)
{
    ngx_uint_t  i;

    if (message == NULL
        || message->kind_case != PD__V1__FROM_WORKER__KIND_STEP
        || message->step->n_sequences != step->nsequences)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < step->nsequences; i++) {
        step->sequences[i].full = message->step->sequences[i];
    }

    return NGX_OK;
}


/* memory that one large message needed is not kept for all time */

static void
ngx_http_pd_step_reset(ngx_http_pd_step_t *step)
{
    if (step->normal || step->room > NGX_HTTP_PD_STEP_KEEP) {
        ngx_http_pd_step_free(step);
    }

    step->kind = PD__V1__FROM_WORKER__KIND__NOT_SET;
    step->nsequences = 0;
    step->rare = 0;
    step->load = NULL;
    step->nlinks = 0;
}


void
ngx_http_pd_step_free(ngx_http_pd_step_t *step)
{
    if (step->normal) {
        ngx_free(step->normal);
        step->normal = NULL;
    }

    if (step->sequences) {
        ngx_free(step->sequences);
        step->sequences = NULL;
        step->room = 0;
    }
}


static ngx_int_t
ngx_http_pd_step_placed(ngx_http_pd_placed_t *placed, ngx_str_t *in)
{
    u_char              *p, *last;
    ngx_http_pd_wire_t   wire;

    ngx_memzero(placed, sizeof(ngx_http_pd_placed_t));

    last = in->data + in->len;

    for (p = in->data; p < last; /* void */) {
        p = ngx_http_pd_wire_field(p, last, &wire);

        if (p == NULL) {
            return NGX_DECLINED;
        }

        switch (wire.tag) {

        case ngx_http_pd_wire_uint(1):
            placed->request = wire.number;
            break;

        case ngx_http_pd_wire_uint(2):
            placed->attempt = (uint32_t) wire.number;
            break;

        case ngx_http_pd_wire_uint(3):
            placed->prompt_tokens = (uint32_t) wire.number;
            break;

        case ngx_http_pd_wire_uint(4):
            placed->cached_tokens = (uint32_t) wire.number;
            break;

        case ngx_http_pd_wire_bytes(5):

            if (placed->ticket.data) {
                return NGX_DECLINED;
            }

            placed->ticket = wire.bytes;
            break;

        case ngx_http_pd_wire_uint(6):
            break;

        case ngx_http_pd_wire_uint(7):
            placed->borrowed_tokens = (uint32_t) wire.number;
            break;

        case ngx_http_pd_wire_bytes(8):
            placed->borrow_failed = wire.bytes;
            break;

        default:

            if (!ngx_http_pd_step_unknown(&wire, NGX_HTTP_PD_STEP_PLACED)) {
                return NGX_DECLINED;
            }
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_step_step(ngx_http_pd_step_t *step, ngx_str_t *in)
{
    u_char                  *p, *last;
    ngx_http_pd_wire_t       wire;
    ngx_http_pd_sequence_t  *seq;

    last = in->data + in->len;

    for (p = in->data; p < last; /* void */) {
        p = ngx_http_pd_wire_field(p, last, &wire);

        if (p == NULL) {
            return NGX_DECLINED;
        }

        switch (wire.tag) {

        case ngx_http_pd_wire_uint(1):
            break;

        case ngx_http_pd_wire_bytes(2):

            if (step->nsequences == step->room
                && ngx_http_pd_step_room(step) != NGX_OK)
            {
                return NGX_DECLINED;
            }

            seq = &step->sequences[step->nsequences++];

            if (ngx_http_pd_step_sequence(seq, wire.bytes.data,
                                          wire.bytes.len)
                != NGX_OK)
            {
                return NGX_DECLINED;
            }

            step->rare |= seq->logprobs;
            break;

        case ngx_http_pd_wire_bytes(3):

            if (step->load
                || ngx_http_pd_step_load(step, &wire.bytes) != NGX_OK)
            {
                return NGX_DECLINED;
            }

            break;

        default:

            if (!ngx_http_pd_step_unknown(&wire, NGX_HTTP_PD_STEP_STEP)) {
                return NGX_DECLINED;
            }
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_step_room(ngx_http_pd_step_t *step)
{
    ngx_uint_t               room;
    ngx_http_pd_sequence_t  *sequences;

    room = ngx_max(2 * step->room, NGX_HTTP_PD_STEP_ROOM);

    if (room > NGX_HTTP_PD_STEP_SEQUENCES) {
        return NGX_ERROR;
    }

    sequences = ngx_alloc(room * sizeof(ngx_http_pd_sequence_t),
                          ngx_cycle->log);
    if (sequences == NULL) {
        return NGX_ERROR;
    }

    if (step->sequences) {
        ngx_memcpy(sequences, step->sequences,
                   step->nsequences * sizeof(ngx_http_pd_sequence_t));
        ngx_free(step->sequences);
    }

    step->sequences = sequences;
    step->room = room;

    return NGX_OK;
}


/*
 * Nearly every sequence begins so: whose it is, where, one token, short text.
 * Returns where what is left begins, be it all.
 */

static ngx_inline u_char *
ngx_http_pd_step_usual(ngx_http_pd_sequence_t *seq, u_char *p, u_char *last)
{
    size_t     len;
    u_char    *next;
    uint64_t   number;

    static const u_char  tags[] = {
        ngx_http_pd_wire_uint(1), ngx_http_pd_wire_uint(2),
        ngx_http_pd_wire_uint(3), ngx_http_pd_wire_bytes(4),
        ngx_http_pd_wire_bytes(5)
    };

    if (p < last && *p == tags[0]) {
        next = ngx_http_pd_wire_varint(p + 1, last, &number);

        if (next == NULL) {
            return p;
        }

        seq->request = number;
        p = next;
    }

    if (last - p >= 2 && p[0] == tags[1] && p[1] < 0x80) {
        seq->attempt = p[1];
        p += 2;
    }

    if (p < last && *p == tags[2]) {
        next = ngx_http_pd_wire_varint(p + 1, last, &number);

        if (next == NULL) {
            return p;
        }

        seq->position = (uint32_t) number;
        p = next;
    }

    if (last - p >= 2 && p[0] == tags[3] && p[1] <= 3) {
        len = p[1];
        next = ngx_http_pd_wire_varint(p + 2, last, &number);

        /* at most three bytes, which are one token */

        if (next == NULL || next != p + 2 + len) {
            return p;
        }

        seq->tokens.data = p + 2;
        seq->tokens.len = len;
        seq->ntokens = 1;
        p = next;
    }

    if (last - p >= 2 && p[0] == tags[4] && p[1] < 0x80
        && p[1] <= last - p - 2)
    {
        seq->text.data = p + 2;
        seq->text.len = p[1];
        p += 2 + seq->text.len;
    }

    return p;
}


ngx_int_t
ngx_http_pd_step_sequence(ngx_http_pd_sequence_t *seq, u_char *p, size_t len)
{
    u_char              *last;
    ngx_http_pd_wire_t   wire;

    ngx_memzero(seq, offsetof(ngx_http_pd_sequence_t, finished));

    seq->raw.data = p;
    seq->raw.len = len;

    last = p + len;
    p = ngx_http_pd_step_usual(seq, p, last);

    while (p < last) {
        p = ngx_http_pd_wire_field(p, last, &wire);

        if (p == NULL) {
            return NGX_DECLINED;
        }

        switch (wire.tag) {

        case ngx_http_pd_wire_uint(1):
            seq->request = wire.number;
            break;

        case ngx_http_pd_wire_uint(2):
            seq->attempt = (uint32_t) wire.number;
            break;

        case ngx_http_pd_wire_uint(3):
            seq->position = (uint32_t) wire.number;
            break;

        case ngx_http_pd_wire_bytes(4):

            if (ngx_http_pd_step_tokens(seq, &wire.bytes) != NGX_OK) {
                return NGX_DECLINED;
            }

            break;

        case ngx_http_pd_wire_bytes(5):
            seq->text = wire.bytes;
            break;

        case ngx_http_pd_wire_bytes(6):
            seq->reasoning = wire.bytes;
            break;

        case ngx_http_pd_wire_bytes(7):
            seq->tools = 1;
            break;

        case ngx_http_pd_wire_bytes(8):
            seq->logprobs = 1;
            break;

        case ngx_http_pd_wire_bytes(9):

            if (seq->ended
                || ngx_http_pd_step_finished(&seq->finished, &wire.bytes)
                   != NGX_OK)
            {
                return NGX_DECLINED;
            }

            seq->ended = 1;
            break;

        default:

            if (!ngx_http_pd_step_unknown(&wire, NGX_HTTP_PD_STEP_SEQUENCE)) {
                return NGX_DECLINED;
            }
        }
    }

    return NGX_OK;
}


/* none larger than it may be, or longer than it need be */

static ngx_int_t
ngx_http_pd_step_tokens(ngx_http_pd_sequence_t *seq, ngx_str_t *in)
{
    u_char    *p, *last, *next;
    uint64_t   id;

    if (seq->ntokens) {
        return NGX_DECLINED;
    }

    last = in->data + in->len;

    for (p = in->data; p < last; p = next) {
        next = ngx_http_pd_wire_varint(p, last, &id);

        if (next == NULL || next - p > 5 || id > NGX_MAX_UINT32_VALUE) {
            return NGX_DECLINED;
        }

        seq->ntokens++;
    }

    seq->tokens = *in;

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_step_finished(ngx_http_pd_finished_t *finished, ngx_str_t *in)
{
    u_char              *p, *last;
    ngx_http_pd_wire_t   wire;

    ngx_memzero(finished, sizeof(ngx_http_pd_finished_t));

    last = in->data + in->len;

    for (p = in->data; p < last; /* void */) {
        p = ngx_http_pd_wire_field(p, last, &wire);

        if (p == NULL) {
            return NGX_DECLINED;
        }

        switch (wire.tag) {

        case ngx_http_pd_wire_uint(1):
            finished->reason = (Pd__V1__FinishReason) (int32_t) wire.number;
            break;

        case ngx_http_pd_wire_uint(2):
            finished->prompt_tokens = (uint32_t) wire.number;
            break;

        case ngx_http_pd_wire_uint(3):
            finished->cached_tokens = (uint32_t) wire.number;
            break;

        case ngx_http_pd_wire_uint(4):
            finished->completion_tokens = (uint32_t) wire.number;
            break;

        case ngx_http_pd_wire_bytes(5):
            finished->stop_matched = wire.bytes;
            break;

        case ngx_http_pd_wire_bytes(6):

            if (finished->timing.data) {
                return NGX_DECLINED;
            }

            finished->timing = wire.bytes;
            break;

        default:

            if (!ngx_http_pd_step_unknown(&wire, NGX_HTTP_PD_STEP_FINISHED)) {
                return NGX_DECLINED;
            }
        }
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_pd_step_timing(ngx_http_pd_timing_t *timing, ngx_str_t *packed)
{
    u_char              *p, *last;
    ngx_http_pd_wire_t   wire;

    ngx_memzero(timing, sizeof(ngx_http_pd_timing_t));

    last = packed->data + packed->len;

    for (p = packed->data; p < last; /* void */) {
        p = ngx_http_pd_wire_field(p, last, &wire);

        if (p == NULL) {
            return NGX_DECLINED;
        }

        switch (wire.tag) {

        case ngx_http_pd_wire_uint(2):
            timing->prefill_us = wire.number;
            break;

        case ngx_http_pd_wire_uint(4):
            timing->kv_bytes = wire.number;
            break;

        case ngx_http_pd_wire_uint(5):
            timing->kv_chunks = wire.number;
            break;

        case ngx_http_pd_wire_uint(6):
            timing->kv_wait_us = wire.number;
            break;

        case ngx_http_pd_wire_uint(7):
            timing->kv_wire_us = wire.number;
            break;

        case ngx_http_pd_wire_uint(8):
            timing->kv_exposed_us = wire.number;
            break;

        case ngx_http_pd_wire_bytes(9):
            timing->kv_transport = wire.bytes;
            break;

        default:
            break;
        }
    }

    return NGX_OK;
}
