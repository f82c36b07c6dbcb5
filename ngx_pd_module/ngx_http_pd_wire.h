
/*
 * Protobuf's wire format: the fields of a message, read where they lie and
 * written one by one.  No memory, no message types: what reads or writes more
 * than fields stands on this.
 */


#ifndef _NGX_HTTP_PD_WIRE_H_INCLUDED_
#define _NGX_HTTP_PD_WIRE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include <endian.h>


/* the wire types of protobuf, as far as they are read */

#define NGX_HTTP_PD_WIRE_VARINT    0
#define NGX_HTTP_PD_WIRE_64BIT     1
#define NGX_HTTP_PD_WIRE_BYTES     2
#define NGX_HTTP_PD_WIRE_32BIT     5
#define NGX_HTTP_PD_WIRE_NONE      8           /* of no field that is read */

/* a field's tag: its number and how it is written */

#define ngx_http_pd_wire_uint(id)    ((id) << 3 | NGX_HTTP_PD_WIRE_VARINT)
#define ngx_http_pd_wire_bytes(id)   ((id) << 3 | NGX_HTTP_PD_WIRE_BYTES)
#define ngx_http_pd_wire_float(id)   ((id) << 3 | NGX_HTTP_PD_WIRE_32BIT)

#define NGX_HTTP_PD_WIRE_NUMBER    10          /* bytes of a varint, at most */


typedef struct {
    uint32_t     tag;
    uint64_t     number;
    ngx_str_t    bytes;                         /* in the message */
} ngx_http_pd_wire_t;


/* each returns what lies behind what it has read, NULL if it is none */

u_char *ngx_http_pd_wire_long_varint(u_char *p, u_char *last,
    uint64_t *number);


/* most tags, lengths and numbers are one byte or two */

static ngx_inline u_char *
ngx_http_pd_wire_varint(u_char *p, u_char *last, uint64_t *number)
{
    if (p < last && *p < 0x80) {
        *number = *p;
        return p + 1;
    }

    if (last - p >= 2 && p[1] < 0x80) {
        *number = (p[0] & 0x7f) | (uint64_t) p[1] << 7;
        return p + 2;
    }

    return ngx_http_pd_wire_long_varint(p, last, number);
}


/* a value of that wire type */

static ngx_inline u_char *
ngx_http_pd_wire_value(u_char *p, u_char *last, ngx_uint_t type,
    ngx_http_pd_wire_t *wire)
{
    uint32_t  n;
    uint64_t  len;

    switch (type) {

    case NGX_HTTP_PD_WIRE_VARINT:
        return ngx_http_pd_wire_varint(p, last, &wire->number);

    case NGX_HTTP_PD_WIRE_BYTES:
        p = ngx_http_pd_wire_varint(p, last, &len);

        if (p == NULL || len > (uint64_t) (last - p)) {
            return NULL;
        }

        wire->bytes.data = p;
        wire->bytes.len = len;

        return p + len;

    case NGX_HTTP_PD_WIRE_32BIT:
        if (last - p < (ptrdiff_t) sizeof(uint32_t)) {
            return NULL;
        }

        ngx_memcpy(&n, p, sizeof(uint32_t));
        wire->number = le32toh(n);

        return p + sizeof(uint32_t);

    case NGX_HTTP_PD_WIRE_64BIT:
        if (last - p < (ptrdiff_t) sizeof(uint64_t)) {
            return NULL;
        }

        ngx_memcpy(&wire->number, p, sizeof(uint64_t));
        wire->number = le64toh(wire->number);

        return p + sizeof(uint64_t);

    default:
        return NULL;
    }
}


/* the next field: its tag and its value */

static ngx_inline u_char *
ngx_http_pd_wire_field(u_char *p, u_char *last, ngx_http_pd_wire_t *wire)
{
    uint64_t  tag;

    p = ngx_http_pd_wire_varint(p, last, &tag);

    if (p == NULL || (tag >> 3) == 0 || tag > NGX_MAX_UINT32_VALUE) {
        return NULL;
    }

    wire->tag = (uint32_t) tag;

    return ngx_http_pd_wire_value(p, last, tag & 7, wire);
}


/* these write, and return the end of what they have written */

u_char *ngx_http_pd_wire_put_long(u_char *p, uint64_t number);

static ngx_inline u_char *
ngx_http_pd_wire_put(u_char *p, uint64_t number)
{
    if (number < 0x80) {
        *p = (u_char) number;
        return p + 1;
    }

    return ngx_http_pd_wire_put_long(p, number);
}


#endif /* _NGX_HTTP_PD_WIRE_H_INCLUDED_ */
