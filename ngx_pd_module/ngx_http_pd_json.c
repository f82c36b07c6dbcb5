
/*
 * The push parser of ngx_http_pd_json.h: structure, literals and numbers, one
 * state machine that takes a byte at a time.  What is between quotes is in
 * ngx_http_pd_json_string.c.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_pd_json.h"


enum {
    sw_value = 0,           /* any value */
    sw_first_value,         /* after "[": a value or "]" */
    sw_first_key,           /* after "{": a key or "}" */
    sw_key,
    sw_colon,
    sw_next,                /* after a value: "," or the end of its parent */
    sw_end,                 /* after the document */
    sw_literal,
    sw_number,
    sw_string
};


enum {
    num_minus = 0,
    num_zero,
    num_int,
    num_point,
    num_frac,
    num_e,
    num_sign,
    num_exp,
    num_stop                /* the byte is not the number's */
};


static ngx_int_t ngx_http_pd_json_structure(ngx_http_pd_json_t *json,
    u_char ch);
static ngx_int_t ngx_http_pd_json_value(ngx_http_pd_json_t *json, u_char ch);
static ngx_int_t ngx_http_pd_json_open(ngx_http_pd_json_t *json,
    ngx_http_pd_json_type_e type);
static ngx_int_t ngx_http_pd_json_close(ngx_http_pd_json_t *json, u_char ch);
static ngx_int_t ngx_http_pd_json_literal(ngx_http_pd_json_t *json, u_char ch);
static ngx_int_t ngx_http_pd_json_number(ngx_http_pd_json_t *json,
    u_char *last);
static ngx_uint_t ngx_http_pd_json_number_next(ngx_uint_t state, u_char ch);
static ngx_int_t ngx_http_pd_json_number_end(ngx_http_pd_json_t *json);
static ngx_int_t ngx_http_pd_json_string_end(ngx_http_pd_json_t *json);


#define ngx_http_pd_json_after(json)                                          \
    (json)->state = (json)->depth ? sw_next : sw_end


void
ngx_http_pd_json_init(ngx_http_pd_json_t *json,
    const ngx_http_pd_json_handlers_t *handlers, void *data)
{
    ngx_memzero(json, sizeof(ngx_http_pd_json_t));

    json->handlers = handlers;
    json->data = data;
    json->state = sw_value;
    json->line = 1;
}


ngx_int_t
ngx_http_pd_json_feed(ngx_http_pd_json_t *json, u_char *pos, u_char *last)
{
    ngx_int_t  rc;

    json->piece = pos;
    json->pos = pos;

    if (json->raw) {
        json->raw = pos;
    }

    while (json->pos < last) {

        switch (json->state) {

        case sw_string:
            rc = ngx_http_pd_json_string(json, last);

            if (rc == NGX_DONE) {
                rc = ngx_http_pd_json_string_end(json);
            }

            break;

        case sw_number:
            rc = ngx_http_pd_json_number(json, last);
            break;

        case sw_literal:
            rc = ngx_http_pd_json_literal(json, *json->pos);
            break;

        default:
            rc = ngx_http_pd_json_structure(json, *json->pos);
            break;
        }

        if (rc != NGX_OK) {
            return rc;
        }
    }

    if (json->raw && json->raw < last) {
        rc = json->handlers->raw(json->data, json->raw, last - json->raw);

        if (rc != NGX_OK) {
            return rc;
        }
    }

    json->fed += last - pos;
    json->piece = last;

    return NGX_OK;
}


ngx_int_t
ngx_http_pd_json_end(ngx_http_pd_json_t *json)
{
    ngx_int_t  rc;

    json->pos = json->piece;

    if (json->state == sw_number && json->depth == 0) {
        rc = ngx_http_pd_json_number_end(json);

        if (rc != NGX_OK) {
            return rc;
        }
    }

    if (json->state != sw_end) {
        return ngx_http_pd_json_error(json, "it ends too early");
    }

    return NGX_OK;
}


void
ngx_http_pd_json_raw_begin(ngx_http_pd_json_t *json)
{
    json->raw = json->pos;
}


ngx_int_t
ngx_http_pd_json_raw_end(ngx_http_pd_json_t *json)
{
    u_char  *raw;

    raw = json->raw;
    json->raw = NULL;

    return json->handlers->raw(json->data, raw, json->pos + 1 - raw);
}


/* a byte outside strings, numbers and literals */

static ngx_int_t
ngx_http_pd_json_structure(ngx_http_pd_json_t *json, u_char ch)
{
    switch (ch) {

    case '\n':
        json->line++;
        json->line_start = json->fed + (json->pos - json->piece) + 1;
        /* fall through */

    case ' ':
    case '\t':
    case '\r':
        json->pos++;
        return NGX_OK;

    default:
        break;
    }

    switch (json->state) {

    case sw_first_value:
        if (ch == ']') {
            return ngx_http_pd_json_close(json, ch);
        }

        /* fall through */

    case sw_value:
        return ngx_http_pd_json_value(json, ch);

    case sw_first_key:
        if (ch == '}') {
            return ngx_http_pd_json_close(json, ch);
        }

        /* fall through */

    case sw_key:
        if (ch != '"') {
            return ngx_http_pd_json_error(json, "expected a key in quotes");
        }

        json->in_key = 1;
        json->len = 0;
        json->state = sw_string;
        break;

    case sw_colon:
        if (ch != ':') {
            return ngx_http_pd_json_error(json, "expected ':' after a key");
        }

        json->state = sw_value;
        break;

    case sw_next:
        if (ch != ',') {
            return ngx_http_pd_json_close(json, ch);
        }

        json->state = (json->objects & 1) ? sw_key : sw_value;
        break;

    default: /* sw_end */
        return ngx_http_pd_json_error(json, "text after the end of it");
    }

    json->pos++;

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_json_value(ngx_http_pd_json_t *json, u_char ch)
{
    ngx_int_t  rc;

    switch (ch) {

    case '{':
        return ngx_http_pd_json_open(json, NGX_HTTP_PD_JSON_OBJECT);

    case '[':
        return ngx_http_pd_json_open(json, NGX_HTTP_PD_JSON_ARRAY);

    case '"':
        rc = json->handlers->begin(json->data, NGX_HTTP_PD_JSON_STRING, NULL);

        json->in_key = 0;
        json->state = sw_string;
        json->pos++;

        return rc;

    case 't':
        json->literal = "rue";
        json->literal_type = NGX_HTTP_PD_JSON_TRUE;
        break;

    case 'f':
        json->literal = "alse";
        json->literal_type = NGX_HTTP_PD_JSON_FALSE;
        break;

    case 'n':
        json->literal = "ull";
        json->literal_type = NGX_HTTP_PD_JSON_NULL;
        break;

    default:

        if (ch != '-' && (ch < '0' || ch > '9')) {
            return ngx_http_pd_json_error(json, "expected a value");
        }

        json->number = (ch == '-') ? num_minus
                                   : (ch == '0') ? num_zero : num_int;
        json->token[0] = ch;
        json->len = 1;
        json->state = sw_number;
        json->pos++;

        return NGX_OK;
    }

    json->state = sw_literal;
    json->pos++;

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_json_open(ngx_http_pd_json_t *json, ngx_http_pd_json_type_e type)
{
    ngx_int_t  rc;

    if (json->depth == NGX_HTTP_PD_JSON_DEPTH) {
        return ngx_http_pd_json_error(json, "nested too deeply");
    }

    json->depth++;
    json->objects = (json->objects << 1) | (type == NGX_HTTP_PD_JSON_OBJECT);

    json->state = (json->objects & 1) ? sw_first_key : sw_first_value;

    rc = json->handlers->begin(json->data, type, NULL);

    json->pos++;

    return rc;
}


static ngx_int_t
ngx_http_pd_json_close(ngx_http_pd_json_t *json, u_char ch)
{
    ngx_int_t                rc;
    ngx_http_pd_json_type_e  type;

    if (json->objects & 1) {

        if (ch != '}') {
            return ngx_http_pd_json_error(json, "expected ',' or '}'");
        }

        type = NGX_HTTP_PD_JSON_OBJECT;

    } else {

        if (ch != ']') {
            return ngx_http_pd_json_error(json, "expected ',' or ']'");
        }

        type = NGX_HTTP_PD_JSON_ARRAY;
    }

    json->depth--;
    json->objects >>= 1;

    ngx_http_pd_json_after(json);

    rc = json->handlers->end(json->data, type);

    json->pos++;

    return rc;
}


static ngx_int_t
ngx_http_pd_json_literal(ngx_http_pd_json_t *json, u_char ch)
{
    if (ch != (u_char) *json->literal) {
        return ngx_http_pd_json_error(json,
                                      "expected true, false or null");
    }

    json->literal++;
    json->pos++;

    if (*json->literal) {
        return NGX_OK;
    }

    ngx_http_pd_json_after(json);

    return json->handlers->begin(json->data, json->literal_type, NULL);
}


static ngx_int_t
ngx_http_pd_json_number(ngx_http_pd_json_t *json, u_char *last)
{
    ngx_uint_t  next;

    while (json->pos < last) {

        next = ngx_http_pd_json_number_next(json->number, *json->pos);

        if (next == num_stop) {
            return ngx_http_pd_json_number_end(json);
        }

        if (json->len == NGX_HTTP_PD_JSON_TOKEN) {
            return ngx_http_pd_json_error(json, "too long a number");
        }

        json->token[json->len++] = *json->pos++;
        json->number = next;
    }

    return NGX_OK;
}


/* the state that "ch" leads to */

static ngx_uint_t
ngx_http_pd_json_number_next(ngx_uint_t state, u_char ch)
{
    ngx_uint_t  digit;

    digit = (ch >= '0' && ch <= '9');

    switch (state) {

    case num_minus:
        return !digit ? num_stop : (ch == '0') ? num_zero : num_int;

    case num_int:
        if (digit) {
            return num_int;
        }

        /* fall through */

    case num_zero:
        return (ch == '.') ? num_point
                           : ((ch | 0x20) == 'e') ? num_e : num_stop;

    case num_frac:
        if ((ch | 0x20) == 'e') {
            return num_e;
        }

        /* fall through */

    case num_point:
        return digit ? num_frac : num_stop;

    case num_e:
        if (ch == '+' || ch == '-') {
            return num_sign;
        }

        /* fall through */

    default: /* num_sign, num_exp */
        return digit ? num_exp : num_stop;
    }
}


static ngx_int_t
ngx_http_pd_json_number_end(ngx_http_pd_json_t *json)
{
    ngx_str_t  text;

    switch (json->number) {

    case num_zero:
    case num_int:
    case num_frac:
    case num_exp:
        break;

    default:
        return ngx_http_pd_json_error(json, "malformed number");
    }

    text.data = json->token;
    text.len = json->len;

    ngx_http_pd_json_after(json);

    return json->handlers->begin(json->data, NGX_HTTP_PD_JSON_NUMBER, &text);
}


/* the closing quote */

static ngx_int_t
ngx_http_pd_json_string_end(ngx_http_pd_json_t *json)
{
    ngx_int_t  rc;
    ngx_str_t  name;

    if (json->in_key) {
        name.data = json->token;
        name.len = json->len;

        json->state = sw_colon;

        rc = json->handlers->key(json->data, &name);

    } else {
        ngx_http_pd_json_after(json);

        rc = json->handlers->end(json->data, NGX_HTTP_PD_JSON_STRING);
    }

    json->pos++;

    return rc;
}


ngx_int_t
ngx_http_pd_json_error(ngx_http_pd_json_t *json, const char *error)
{
    json->error = error;
    json->error_offset = json->fed + (json->pos - json->piece);
    json->error_column = (ngx_uint_t) (json->error_offset - json->line_start)
                         + 1;

    return NGX_ERROR;
}
