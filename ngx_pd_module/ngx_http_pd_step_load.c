
/*
 * A step's load report, read in place as the step around it is: see
 * ngx_http_pd_step.h.
 */


#include "ngx_http_pd_step.h"
#include "ngx_http_pd_wire.h"


/* numbers of fields that are known here, at most; all below are known */

#define NGX_HTTP_PD_STEP_LOAD    15
#define NGX_HTTP_PD_STEP_SEEN    2


static ngx_int_t ngx_http_pd_step_seen(ngx_http_pd_step_t *step,
    ngx_str_t *in);


ngx_int_t
ngx_http_pd_step_load(ngx_http_pd_step_t *step, ngx_str_t *in)
{
    u_char              *p, *last;
    Pd__V1__LoadReport  *load;
    ngx_http_pd_wire_t   wire;

    load = &step->report;
    step->load = load;

    pd__v1__load_report__init(load);
    load->seen = step->streams;

    last = in->data + in->len;

    for (p = in->data; p < last; /* void */) {
        p = ngx_http_pd_wire_field(p, last, &wire);

        if (p == NULL) {
            return NGX_DECLINED;
        }

        switch (wire.tag) {

        case ngx_http_pd_wire_uint(1):
            load->number = wire.number;
            break;

        case ngx_http_pd_wire_uint(2):
            load->last_submission = wire.number;
            break;

        case ngx_http_pd_wire_uint(3):
            load->steps = wire.number;
            break;

        case ngx_http_pd_wire_uint(4):
            load->step_us = (uint32_t) wire.number;
            break;

        case ngx_http_pd_wire_uint(5):
            load->prefill_queued_tokens = wire.number;
            break;

        case ngx_http_pd_wire_uint(6):
            load->prefill_us_per_token_x1000 = (uint32_t) wire.number;
            break;

        case ngx_http_pd_wire_uint(7):
            load->running = (uint32_t) wire.number;
            break;

        case ngx_http_pd_wire_uint(8):
            load->waiting = (uint32_t) wire.number;
            break;

        case ngx_http_pd_wire_uint(9):
            load->kv_free = wire.number;
            break;

        case ngx_http_pd_wire_uint(10):
            load->kv_reserved = wire.number;
            break;

        case ngx_http_pd_wire_uint(11):
            load->draining = (wire.number != 0);
            break;

        case ngx_http_pd_wire_bytes(12):

            if (step->nlinks < NGX_HTTP_PD_STEP_LINKS) {
                step->links[step->nlinks++] = wire.bytes;
            }

            break;

        case ngx_http_pd_wire_uint(13):
            load->taken = wire.number;
            break;

        case ngx_http_pd_wire_bytes(14):

            if (ngx_http_pd_step_seen(step, &wire.bytes) != NGX_OK) {
                return NGX_DECLINED;
            }

            break;

        case ngx_http_pd_wire_uint(15):
            load->kv_growth = wire.number;
            break;

        default:

            if (!ngx_http_pd_step_unknown(&wire, NGX_HTTP_PD_STEP_LOAD)) {
                return NGX_DECLINED;
            }
        }
    }

    return NGX_OK;
}


/* a report names no more streams than it may; of one that does, the first */

static ngx_int_t
ngx_http_pd_step_seen(ngx_http_pd_step_t *step, ngx_str_t *in)
{
    u_char              *p, *last;
    Pd__V1__StreamSeen  *seen;
    ngx_http_pd_wire_t   wire;

    if (step->report.n_seen == NGX_HTTP_PD_STEP_STREAMS) {
        return NGX_OK;
    }

    seen = &step->seen[step->report.n_seen];
    step->streams[step->report.n_seen++] = seen;

    pd__v1__stream_seen__init(seen);

    last = in->data + in->len;

    for (p = in->data; p < last; /* void */) {
        p = ngx_http_pd_wire_field(p, last, &wire);

        if (p == NULL) {
            return NGX_DECLINED;
        }

        switch (wire.tag) {

        case ngx_http_pd_wire_uint(1):
            seen->stream = wire.number;
            break;

        case ngx_http_pd_wire_uint(2):
            seen->last_submission = wire.number;
            break;

        default:

            if (!ngx_http_pd_step_unknown(&wire, NGX_HTTP_PD_STEP_SEEN)) {
                return NGX_DECLINED;
            }
        }
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_pd_step_link(ngx_str_t *packed, ngx_str_t *peer, ngx_uint_t *up)
{
    u_char              *p, *last;
    ngx_http_pd_wire_t   wire;

    ngx_str_null(peer);
    *up = 0;

    last = packed->data + packed->len;

    for (p = packed->data; p < last; /* void */) {
        p = ngx_http_pd_wire_field(p, last, &wire);

        if (p == NULL) {
            return NGX_DECLINED;
        }

        switch (wire.tag) {

        case ngx_http_pd_wire_bytes(1):
            *peer = wire.bytes;
            break;

        case ngx_http_pd_wire_uint(2):
            *up = (wire.number != 0);
            break;

        default:
            break;
        }
    }

    return peer->len ? NGX_OK : NGX_DECLINED;
}
