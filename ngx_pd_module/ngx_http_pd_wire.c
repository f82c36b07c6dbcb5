
/*
 * Protobuf's wire format: see the header.
 */


#include "ngx_http_pd_wire.h"


u_char *
ngx_http_pd_wire_long_varint(u_char *p, u_char *last, uint64_t *number)
{
    u_char      c;
    uint64_t    n;
    ngx_uint_t  shift;

    n = 0;

    for (shift = 0; p < last && shift < 70; shift += 7) {
        c = *p++;

        if (shift == 63 && c > 1) {
            return NULL;
        }

        n |= (uint64_t) (c & 0x7f) << shift;

        if (c < 0x80) {
            *number = n;
            return p;
        }
    }

    return NULL;
}


u_char *
ngx_http_pd_wire_put_long(u_char *p, uint64_t number)
{
    while (number > 127) {
        *p++ = (u_char) (number | 128);
        number >>= 7;
    }

    *p++ = (u_char) number;

    return p;
}
