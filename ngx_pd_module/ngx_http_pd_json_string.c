
/*
 * What is between the quotes of a string or a key.
 *
 * Long strings are nearly all of a long body, so the scan runs 16 bytes at a
 * time over what needs no look (printable ASCII) and in whole characters over
 * the rest, and stops for quotes, escapes and errors only.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_pd_json.h"

#if (__SSE2__)
#include <emmintrin.h>
#endif


enum {
    str_plain = 0,
    str_utf8,               /* within a character cut by the end of a piece */
    str_escape,
    str_hex,
    str_low,                /* after a high surrogate: "\" ... */
    str_low_u               /* ... and "u" */
};


static ngx_int_t ngx_http_pd_json_run(ngx_http_pd_json_t *json, u_char *last);
static u_char *ngx_http_pd_json_scan(u_char *p, u_char *last);
static u_char *ngx_http_pd_json_characters(u_char *p, u_char *last);
static ngx_int_t ngx_http_pd_json_utf8_start(ngx_http_pd_json_t *json,
    u_char ch);
static ngx_int_t ngx_http_pd_json_utf8_rest(ngx_http_pd_json_t *json,
    u_char ch);
static ngx_int_t ngx_http_pd_json_escape(ngx_http_pd_json_t *json, u_char ch);
static ngx_int_t ngx_http_pd_json_hex(ngx_http_pd_json_t *json, u_char ch);
static ngx_int_t ngx_http_pd_json_code(ngx_http_pd_json_t *json);
static ngx_int_t ngx_http_pd_json_text(ngx_http_pd_json_t *json, u_char *p,
    size_t len);


ngx_int_t
ngx_http_pd_json_string(ngx_http_pd_json_t *json, u_char *last)
{
    ngx_int_t  rc;

    do {
        switch (json->string) {

        case str_plain:
            rc = ngx_http_pd_json_run(json, last);
            break;

        case str_utf8:
            rc = ngx_http_pd_json_utf8_rest(json, *json->pos);
            break;

        case str_hex:
            rc = ngx_http_pd_json_hex(json, *json->pos);
            break;

        default: /* str_escape, str_low, str_low_u */
            rc = ngx_http_pd_json_escape(json, *json->pos);
            break;
        }

    } while (rc == NGX_OK && json->pos < last);

    return rc;
}


/* plain text, and what ends it */

static ngx_int_t
ngx_http_pd_json_run(ngx_http_pd_json_t *json, u_char *last)
{
    u_char     *p;
    ngx_int_t   rc;

    p = ngx_http_pd_json_plain(json->pos, last);

    if (p != json->pos) {
        rc = ngx_http_pd_json_text(json, json->pos, p - json->pos);

        if (rc != NGX_OK) {
            return rc;
        }

        json->pos = p;
    }

    if (p == last) {
        return NGX_OK;
    }

    if (*p == '"') {
        return NGX_DONE;
    }

    if (*p == '\\') {
        json->string = str_escape;
        json->pos++;

        return NGX_OK;
    }

    if (*p < 0x20) {
        return ngx_http_pd_json_error(json, "control character in a string");
    }

    return ngx_http_pd_json_utf8_start(json, *p);
}


u_char *
ngx_http_pd_json_plain(u_char *p, u_char *last)
{
    u_char  *next;

    next = p;

    do {
        p = ngx_http_pd_json_scan(next, last);

        if (p == last || *p < 0x80) {
            break;
        }

        next = ngx_http_pd_json_characters(p, last);

    } while (next != p);

    return p;
}


#if (__SSE2__)

/* which of 16 bytes are not plain: those are all ones */

static ngx_inline __m128i
ngx_http_pd_json_stop(__m128i bytes)
{
    const __m128i  quote = _mm_set1_epi8('"');
    const __m128i  backslash = _mm_set1_epi8('\\');
    const __m128i  space = _mm_set1_epi8(0x20);

    /* bytes of 0x80 and up are negative, and so less than a space too */

    return _mm_or_si128(_mm_cmplt_epi8(bytes, space),
                        _mm_or_si128(_mm_cmpeq_epi8(bytes, quote),
                                     _mm_cmpeq_epi8(bytes, backslash)));
}


static ngx_inline __m128i
ngx_http_pd_json_look(u_char *p)
{
    return ngx_http_pd_json_stop(_mm_loadu_si128((const __m128i *) p));
}

#endif


/* the first byte that is not plain ASCII: '"', '\', a control, 0x80 and up */

static u_char *
ngx_http_pd_json_scan(u_char *p, u_char *last)
{
#if (__SSE2__)

    int      mask, first, second;
    __m128i  stop;

    /* a first look, which most strings end in; of a long one, at 64 bytes */

    if (last - p >= 16) {
        mask = _mm_movemask_epi8(ngx_http_pd_json_look(p));

        if (mask) {
            return p + __builtin_ctz(mask);
        }

        p += 16;
    }

    while (last - p >= 64
           && !_mm_movemask_epi8(
                   _mm_or_si128(_mm_or_si128(ngx_http_pd_json_look(p),
                                             ngx_http_pd_json_look(p + 16)),
                                _mm_or_si128(ngx_http_pd_json_look(p + 32),
                                             ngx_http_pd_json_look(p + 48)))))
    {
        p += 64;
    }

    while (last - p >= 16) {
        mask = _mm_movemask_epi8(ngx_http_pd_json_look(p));

        if (mask) {
            return p + __builtin_ctz(mask);
        }

        p += 16;
    }

    /* less than 16 are left: twice 8 or twice 4 that overlap, if so many */

    if (last - p >= 8) {
        stop = ngx_http_pd_json_stop(
                   _mm_unpacklo_epi64(
                           _mm_loadl_epi64((const __m128i *) p),
                           _mm_loadl_epi64((const __m128i *) (last - 8))));

        if (!_mm_movemask_epi8(stop)) {
            return last;
        }

    } else if (last - p >= 4) {
        ngx_memcpy(&first, p, 4);
        ngx_memcpy(&second, last - 4, 4);

        stop = ngx_http_pd_json_stop(_mm_set_epi32(first, second, first,
                                                   second));
        if (!_mm_movemask_epi8(stop)) {
            return last;
        }
    }

#endif

    while (p < last && *p >= 0x20 && *p < 0x80 && *p != '"' && *p != '\\') {
        p++;
    }

    return p;
}


/* steps over whole, well-formed non-ASCII characters */

static u_char *
ngx_http_pd_json_characters(u_char *p, u_char *last)
{
    while (last - p >= 2 && p[0] >= 0xc2 && (p[1] & 0xc0) == 0x80) {

        if (p[0] < 0xe0) {
            p += 2;
            continue;
        }

        if (last - p < 3 || (p[2] & 0xc0) != 0x80) {
            break;
        }

        if (p[0] < 0xf0) {

            /* overlong forms, surrogates */

            if ((p[0] == 0xe0 && p[1] < 0xa0)
                || (p[0] == 0xed && p[1] > 0x9f))
            {
                break;
            }

            p += 3;
            continue;
        }

        /* overlong forms, beyond U+10FFFF */

        if (last - p < 4 || (p[3] & 0xc0) != 0x80 || p[0] > 0xf4
            || (p[0] == 0xf0 && p[1] < 0x90)
            || (p[0] == 0xf4 && p[1] > 0x8f))
        {
            break;
        }

        p += 4;
    }

    return p;
}


/* the first byte of a character that is cut by the end of the piece, or bad */

static ngx_int_t
ngx_http_pd_json_utf8_start(ngx_http_pd_json_t *json, u_char ch)
{
    json->utf8_low = 0x80;
    json->utf8_high = 0xbf;

    if (ch >= 0xc2 && ch < 0xe0) {
        json->utf8_rest = 1;

    } else if (ch >= 0xe0 && ch < 0xf0) {
        json->utf8_rest = 2;

        if (ch == 0xe0) {
            json->utf8_low = 0xa0;

        } else if (ch == 0xed) {
            json->utf8_high = 0x9f;
        }

    } else if (ch >= 0xf0 && ch < 0xf5) {
        json->utf8_rest = 3;

        if (ch == 0xf0) {
            json->utf8_low = 0x90;

        } else if (ch == 0xf4) {
            json->utf8_high = 0x8f;
        }

    } else {
        return ngx_http_pd_json_error(json, "invalid UTF-8");
    }

    json->string = str_utf8;

    return ngx_http_pd_json_text(json, json->pos++, 1);
}


static ngx_int_t
ngx_http_pd_json_utf8_rest(ngx_http_pd_json_t *json, u_char ch)
{
    if (ch < json->utf8_low || ch > json->utf8_high) {
        return ngx_http_pd_json_error(json, "invalid UTF-8");
    }

    json->utf8_low = 0x80;
    json->utf8_high = 0xbf;

    if (--json->utf8_rest == 0) {
        json->string = str_plain;
    }

    return ngx_http_pd_json_text(json, json->pos++, 1);
}


/* the byte after a backslash, and what must follow a high surrogate */

static ngx_int_t
ngx_http_pd_json_escape(ngx_http_pd_json_t *json, u_char ch)
{
    u_char  c;

    if (json->string == str_low) {

        if (ch != '\\') {
            return ngx_http_pd_json_error(json, "lone surrogate");
        }

        json->string = str_low_u;
        json->pos++;

        return NGX_OK;
    }

    if (ch == 'u') {
        json->code = 0;
        json->digits = 0;
        json->string = str_hex;
        json->pos++;

        return NGX_OK;
    }

    if (json->string == str_low_u) {
        return ngx_http_pd_json_error(json, "lone surrogate");
    }

    switch (ch) {

    case '"':
    case '\\':
    case '/':
        c = ch;
        break;

    case 'b':
        c = '\b';
        break;

    case 'f':
        c = '\f';
        break;

    case 'n':
        c = '\n';
        break;

    case 'r':
        c = '\r';
        break;

    case 't':
        c = '\t';
        break;

    default:
        return ngx_http_pd_json_error(json, "unknown escape in a string");
    }

    json->string = str_plain;
    json->pos++;

    return ngx_http_pd_json_text(json, &c, 1);
}


static ngx_int_t
ngx_http_pd_json_hex(ngx_http_pd_json_t *json, u_char ch)
{
    u_char  c;

    c = ch | 0x20;

    if (ch >= '0' && ch <= '9') {
        json->code = json->code * 16 + (ch - '0');

    } else if (c >= 'a' && c <= 'f') {
        json->code = json->code * 16 + (c - 'a' + 10);

    } else {
        return ngx_http_pd_json_error(json, "expected four hex digits");
    }

    if (++json->digits < 4) {
        json->pos++;
        return NGX_OK;
    }

    return ngx_http_pd_json_code(json);
}


/* all four digits are there */

static ngx_int_t
ngx_http_pd_json_code(ngx_http_pd_json_t *json)
{
    size_t       len;
    u_char       buf[4];
    ngx_uint_t   code;

    code = json->code;

    if (json->high) {

        if (code < 0xdc00 || code > 0xdfff) {
            return ngx_http_pd_json_error(json, "lone surrogate");
        }

        code = 0x10000 + ((json->high - 0xd800) << 10) + (code - 0xdc00);
        json->high = 0;

    } else if (code >= 0xdc00 && code <= 0xdfff) {
        return ngx_http_pd_json_error(json, "lone surrogate");

    } else if (code >= 0xd800 && code <= 0xdbff) {
        json->high = code;
        json->string = str_low;
        json->pos++;

        return NGX_OK;
    }

    if (code < 0x80) {
        buf[0] = (u_char) code;
        len = 1;

    } else if (code < 0x800) {
        buf[0] = (u_char) (0xc0 | (code >> 6));
        buf[1] = (u_char) (0x80 | (code & 0x3f));
        len = 2;

    } else if (code < 0x10000) {
        buf[0] = (u_char) (0xe0 | (code >> 12));
        buf[1] = (u_char) (0x80 | ((code >> 6) & 0x3f));
        buf[2] = (u_char) (0x80 | (code & 0x3f));
        len = 3;

    } else {
        buf[0] = (u_char) (0xf0 | (code >> 18));
        buf[1] = (u_char) (0x80 | ((code >> 12) & 0x3f));
        buf[2] = (u_char) (0x80 | ((code >> 6) & 0x3f));
        buf[3] = (u_char) (0x80 | (code & 0x3f));
        len = 4;
    }

    json->string = str_plain;
    json->pos++;

    return ngx_http_pd_json_text(json, buf, len);
}


static ngx_int_t
ngx_http_pd_json_text(ngx_http_pd_json_t *json, u_char *p, size_t len)
{
    if (!json->in_key) {
        return json->handlers->text(json->data, p, len);
    }

    len = ngx_min(len, NGX_HTTP_PD_JSON_TOKEN - json->len);

    ngx_memcpy(json->token + json->len, p, len);
    json->len += len;

    return NGX_OK;
}
