
/*
 * What the dispatcher appends to a consumer's Submit: where it stands in a
 * job's life, see ngx_http_pd_attempt.h.
 *
 * Written by hand: protobuf-c looks at each field that a Submit may have, once
 * to count and once to pack.
 */


#include "ngx_http_pd_attempt.h"
#include "ngx_http_pd_wire.h"


/* fields of a Submit: what comes first is number * 8 + wire type */

#define NGX_HTTP_PD_SUFFIX_ROUTE       0x08
#define NGX_HTTP_PD_SUFFIX_DEADLINE    0x38
#define NGX_HTTP_PD_SUFFIX_TICKET      0x72
#define NGX_HTTP_PD_SUFFIX_REDIRECT    0x88
#define NGX_HTTP_PD_SUFFIX_WAIT        0x90

/* their tags and varints */
#define NGX_HTTP_PD_SUFFIX_MAX                                                \
    (2 + 4 * (2 + NGX_HTTP_PD_WIRE_NUMBER))


ngx_int_t
ngx_http_pd_attempt_suffix(ngx_http_pd_side_t *side, Pd__V1__Route route,
    ngx_str_t *ticket)
{
    u_char                 *p;
    size_t                  len;
    uint32_t                limit;
    ngx_str_t              *suffix;
    ngx_msec_int_t          left;
    ngx_http_pd_attempt_t  *attempt;

    attempt = side->attempt;
    suffix = &side->submission.suffix;

    left = (ngx_msec_int_t) (attempt->end - ngx_current_msec);
    len = ticket ? ticket->len : 0;

    ngx_http_pd_attempt_unsuffix(side);

    suffix->data = ngx_alloc(NGX_HTTP_PD_SUFFIX_MAX + len
                             + ngx_http_pd_failover_size(attempt),
                             attempt->job->log);

    if (suffix->data == NULL) {
        return NGX_ERROR;
    }

    p = suffix->data;

    *p++ = NGX_HTTP_PD_SUFFIX_ROUTE;
    *p++ = (u_char) route;

    *p++ = NGX_HTTP_PD_SUFFIX_DEADLINE;
    p = ngx_http_pd_wire_put(p, (uint64_t) ngx_max(left, 1) * 1000);

    if (ticket) {
        *p++ = NGX_HTTP_PD_SUFFIX_TICKET;
        p = ngx_http_pd_wire_put(p, len);
        p = ngx_cpymem(p, ticket->data, len);
    }

    if (ticket && route == PD__V1__ROUTE__ROUTE_PREFILL) {
        left = (ngx_msec_int_t) (attempt->borrow_end - ngx_current_msec);

        p = ngx_http_pd_wire_put(p, NGX_HTTP_PD_SUFFIX_WAIT);
        p = ngx_http_pd_wire_put(p, ngx_max(left, 1));
    }

    limit = attempt->process->zone->sh->records[attempt->record].limit;

    if (route == PD__V1__ROUTE__ROUTE_DIRECT && limit) {
        p = ngx_http_pd_wire_put(p, NGX_HTTP_PD_SUFFIX_REDIRECT);
        p = ngx_http_pd_wire_put(p, limit);
    }

    suffix->len = ngx_http_pd_failover_pack(attempt, p) - suffix->data;

    return NGX_OK;
}


/* from the heap: an answer may be moved often, and grows */

void
ngx_http_pd_attempt_unsuffix(ngx_http_pd_side_t *side)
{
    if (side->submission.suffix.data) {
        ngx_free(side->submission.suffix.data);
        ngx_str_null(&side->submission.suffix);
    }
}


/* what waits in an outbox is still needed, whatever the worker says */

void
ngx_http_pd_attempt_taken(ngx_http_pd_side_t *side)
{
    if (!side->submission.waits) {
        ngx_http_pd_attempt_unsuffix(side);
    }
}
