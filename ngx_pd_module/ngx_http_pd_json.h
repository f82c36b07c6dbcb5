
/*
 * A push parser for JSON (RFC 8259).
 *
 * A request's body arrives in pieces of any size, and a prompt may be
 * megabytes long, so the document is never held as a whole: each piece is fed
 * once and turned into events, and a string's text is handed on in fragments
 * straight out of the piece.  The parser itself allocates nothing.
 *
 *     piece  {"a":[1,"x\n  y"]}         events  begin OBJECT
 *            ---------~~~~~~~~                  key "a"
 *            first    second                    begin ARRAY
 *                                               value NUMBER "1"
 *                                               begin STRING, text "x",
 *                                               text "\n", text "  y", end
 *                                               end ARRAY, end OBJECT
 *
 * Strings are decoded and their UTF-8 checked; a fragment may end within a
 * character, which is checked all the same when the next piece comes.  Lone
 * surrogates are errors.  Nesting is bounded, so is the length of a number;
 * a key longer than the parser's buffer is cut, and then equals no name that
 * anybody looks for.  Whether a key may come twice is left to the handlers,
 * who know which names they have seen.
 */


#ifndef _NGX_HTTP_PD_JSON_H_INCLUDED_
#define _NGX_HTTP_PD_JSON_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_HTTP_PD_JSON_DEPTH      64      /* one bit each in a uint64_t */
#define NGX_HTTP_PD_JSON_TOKEN      128     /* bytes of a key or a number */


typedef enum {
    NGX_HTTP_PD_JSON_NULL = 0,
    NGX_HTTP_PD_JSON_FALSE,
    NGX_HTTP_PD_JSON_TRUE,
    NGX_HTTP_PD_JSON_NUMBER,
    NGX_HTTP_PD_JSON_STRING,
    NGX_HTTP_PD_JSON_OBJECT,
    NGX_HTTP_PD_JSON_ARRAY
} ngx_http_pd_json_type_e;


/*
 * Each returns NGX_OK to go on, or NGX_ABORT to end the parse.
 *
 * begin() is called for every value.  A scalar but a string ends there, and
 * "text" is a number's text; for all others end() follows.
 */

typedef struct {
    ngx_int_t  (*begin)(void *data, ngx_http_pd_json_type_e type,
                        ngx_str_t *text);
    ngx_int_t  (*end)(void *data, ngx_http_pd_json_type_e type);
    ngx_int_t  (*key)(void *data, ngx_str_t *name);
    ngx_int_t  (*text)(void *data, u_char *p, size_t len);
    ngx_int_t  (*raw)(void *data, u_char *p, size_t len);
} ngx_http_pd_json_handlers_t;


typedef struct {
    const ngx_http_pd_json_handlers_t  *handlers;
    void                               *data;

    u_char                             *piece;     /* what is being fed */
    u_char                             *pos;       /* where the event is */
    u_char                             *raw;       /* not yet handed on */

    uint64_t                            objects;   /* which levels are */
    ngx_uint_t                          depth;
    ngx_uint_t                          state;
    ngx_uint_t                          number;    /* state within one */
    ngx_uint_t                          string;

    const char                         *literal;   /* what is left of it */
    ngx_http_pd_json_type_e             literal_type;

    ngx_uint_t                          code;      /* \uXXXX being read */
    ngx_uint_t                          high;      /* surrogate before it */
    ngx_uint_t                          digits;

    u_char                              utf8_rest; /* bytes still to come */
    u_char                              utf8_low;  /* range of the next */
    u_char                              utf8_high;

    unsigned                            in_key:1;

    size_t                              len;
    u_char                              token[NGX_HTTP_PD_JSON_TOKEN];

    off_t                               fed;       /* before this piece */
    off_t                               line_start;
    ngx_uint_t                          line;      /* from 1 */

    /* after NGX_ERROR; a column counts bytes, from 1 */

    const char                         *error;
    off_t                               error_offset;
    ngx_uint_t                          error_column;
} ngx_http_pd_json_t;


void ngx_http_pd_json_init(ngx_http_pd_json_t *json,
    const ngx_http_pd_json_handlers_t *handlers, void *data);

/*
 * NGX_OK: the piece is used up; NGX_ERROR: it is not JSON, see json->error;
 * NGX_ABORT: a handler ended it.  After anything but NGX_OK feed no more.
 */
ngx_int_t ngx_http_pd_json_feed(ngx_http_pd_json_t *json, u_char *pos,
    u_char *last);

/* the document must be complete now; returns as ngx_http_pd_json_feed() */
ngx_int_t ngx_http_pd_json_end(ngx_http_pd_json_t *json);

/*
 * Called by a handler from begin() of an object or array, resp. from end() of
 * the same: the raw() handler gets the value's text as it was sent.  The
 * other events come as always.
 */
void ngx_http_pd_json_raw_begin(ngx_http_pd_json_t *json);
ngx_int_t ngx_http_pd_json_raw_end(ngx_http_pd_json_t *json);

/*
 * The end of what may stand between quotes as it is: it stops at '"', '\', a
 * control character, and at what is not, or not yet, a UTF-8 character.
 */
u_char *ngx_http_pd_json_plain(u_char *p, u_char *last);


/* between the parser's two files */

/* NGX_DONE at the closing quote, else as ngx_http_pd_json_feed() */
ngx_int_t ngx_http_pd_json_string(ngx_http_pd_json_t *json, u_char *last);

ngx_int_t ngx_http_pd_json_error(ngx_http_pd_json_t *json, const char *error);


#endif /* _NGX_HTTP_PD_JSON_H_INCLUDED_ */
