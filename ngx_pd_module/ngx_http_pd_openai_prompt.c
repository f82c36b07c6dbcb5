
/*
 * Prompts in the wire's format, written while they are read.
 *
 * A protobuf field that holds text begins with its length, which is known at
 * the text's end.  Five bytes are kept free for it in front: a varint may be
 * written longer than it need be (0x85 0x80 0x80 0x80 0x00 is 5), and so
 * nothing has to be moved or chained in between.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_pd_openai_parse.h"


#define NGX_HTTP_PD_WIRE_TEXT       0x5a    /* Submit.text, 11, bytes */
#define NGX_HTTP_PD_WIRE_TOKENS     0x62    /* Submit.tokens, 12, message */
#define NGX_HTTP_PD_WIRE_IDS        0x0a    /* TokenList.ids, 1, packed */

#define NGX_HTTP_PD_MARK_LENGTH     5
#define NGX_HTTP_PD_PROMPT_BUFFER   512     /* of a prompt of unknown size */
#define NGX_HTTP_PD_PROMPT_LEAST    64


/* what the elements of a prompt's list are; all must be alike */

enum {
    prompt_unknown = 0,
    prompt_strings,
    prompt_tokens,
    prompt_lists
};


static ngx_int_t ngx_http_pd_prompts_open(ngx_http_pd_parse_t *parse);
static ngx_int_t ngx_http_pd_prompts_close(ngx_http_pd_parse_t *parse);
static ngx_int_t ngx_http_pd_prompts_begin(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type);
static ngx_int_t ngx_http_pd_prompts_set(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);

static ngx_int_t ngx_http_pd_tokens_open(ngx_http_pd_parse_t *parse);
static ngx_int_t ngx_http_pd_tokens_close(ngx_http_pd_parse_t *parse);
static ngx_int_t ngx_http_pd_tokens_set(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);


static const ngx_http_pd_field_t  ngx_http_pd_tokens_element = {
    ngx_null_string,
    NGX_HTTP_PD_FIELD_BOTH|NGX_HTTP_PD_FIELD_REQUIRED,
    NGX_HTTP_PD_TAKES_INTEGER,
    ngx_http_pd_tokens_set, NULL, NULL,
    0, 0, NGX_MAX_INT32_VALUE, NULL
};

static const ngx_http_pd_level_t  ngx_http_pd_tokens = {
    NULL, 0, 0, &ngx_http_pd_tokens_element, 0,
    ngx_http_pd_tokens_open, ngx_http_pd_tokens_close
};


static const ngx_http_pd_field_t  ngx_http_pd_prompts_element = {
    ngx_null_string,
    NGX_HTTP_PD_FIELD_BOTH|NGX_HTTP_PD_FIELD_REQUIRED,
    NGX_HTTP_PD_TAKES_STRING|NGX_HTTP_PD_TAKES_INTEGER|NGX_HTTP_PD_TAKES_ARRAY,
    ngx_http_pd_prompts_set, ngx_http_pd_prompts_begin, &ngx_http_pd_tokens,
    0, 0, NGX_MAX_INT32_VALUE, NULL
};

const ngx_http_pd_level_t  ngx_http_pd_prompts = {
    NULL, 0, 0, &ngx_http_pd_prompts_element, 0,
    ngx_http_pd_prompts_open, ngx_http_pd_prompts_close
};


ngx_int_t
ngx_http_pd_prompt_start(ngx_http_pd_parse_t *parse)
{
    off_t                  size;
    ngx_http_pd_rope_t    *rope;
    ngx_http_pd_openai_t  *request;

    request = parse->request;

    if (request->prompts.nelts == NGX_HTTP_PD_MAX_PROMPTS) {
        return ngx_http_pd_openai_error(parse, "array_above_max_length",
                                        "Invalid", ": more than %d prompts in "
                                        "one request",
                                        NGX_HTTP_PD_MAX_PROMPTS);
    }

    /*
     * The first is nearly always the only one, and then no longer than the
     * body is: one buffer, if it is not a large one.
     */

    size = request->prompts.nelts ? 0 : parse->size;

    rope = ngx_array_push(&request->prompts);
    if (rope == NULL) {
        return ngx_http_pd_openai_no_memory(parse);
    }

    ngx_memzero(rope, sizeof(ngx_http_pd_rope_t));

    rope->pool = request->pool;
    size = size ? ngx_max(size, NGX_HTTP_PD_PROMPT_LEAST)
                : NGX_HTTP_PD_PROMPT_BUFFER;

    rope->buffer = (size_t) ngx_min(size, NGX_HTTP_PD_ROPE_MAX_BUFFER);

    parse->prompt = rope;

    return NGX_OK;
}


ngx_int_t
ngx_http_pd_mark_begin(ngx_http_pd_parse_t *parse, ngx_http_pd_mark_t *mark,
    u_char tag)
{
    u_char  *p;

    p = ngx_http_pd_rope_reserve(parse->prompt, 1 + NGX_HTTP_PD_MARK_LENGTH);
    if (p == NULL) {
        return ngx_http_pd_openai_no_memory(parse);
    }

    *p++ = tag;

    mark->room = p;
    mark->size = parse->prompt->size;

    return NGX_OK;
}


void
ngx_http_pd_mark_end(ngx_http_pd_parse_t *parse, ngx_http_pd_mark_t *mark)
{
    size_t      len;
    ngx_uint_t  i;

    len = parse->prompt->size - mark->size;

    for (i = 0; i < NGX_HTTP_PD_MARK_LENGTH - 1; i++) {
        mark->room[i] = (u_char) (0x80 | (len & 0x7f));
        len >>= 7;
    }

    mark->room[i] = (u_char) (len & 0x7f);
}


/* "prompt", if it is a string */

ngx_int_t
ngx_http_pd_prompt_begin(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type)
{
    if (type != NGX_HTTP_PD_JSON_STRING) {
        return NGX_OK;
    }

    if (ngx_http_pd_prompt_start(parse) != NGX_OK
        || ngx_http_pd_mark_begin(parse, &parse->marks[0],
                                  NGX_HTTP_PD_WIRE_TEXT)
           != NGX_OK)
    {
        return NGX_ABORT;
    }

    parse->rope = parse->prompt;

    return NGX_OK;
}


ngx_int_t
ngx_http_pd_prompt_set(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    if (parse->prompt->size == parse->marks[0].size) {
        return ngx_http_pd_openai_error(parse, "invalid_value", "Invalid",
                                        ": it is empty");
    }

    ngx_http_pd_mark_end(parse, &parse->marks[0]);

    return NGX_OK;
}


/* "prompt" as a list: of strings, of tokens, or of lists of tokens */

static ngx_int_t
ngx_http_pd_prompts_open(ngx_http_pd_parse_t *parse)
{
    parse->kind = prompt_unknown;

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_prompts_begin(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type)
{
    ngx_uint_t  kind;

    kind = (type == NGX_HTTP_PD_JSON_STRING) ? prompt_strings
           : (type == NGX_HTTP_PD_JSON_NUMBER) ? prompt_tokens : prompt_lists;

    if (parse->kind == prompt_unknown) {
        parse->kind = kind;

        if (kind == prompt_tokens) {
            return ngx_http_pd_tokens_open(parse);
        }

    } else if (kind != parse->kind) {
        return ngx_http_pd_openai_error(parse, "invalid_type",
                                        "Invalid type for",
                                        ": a list of prompts holds strings "
                                        "only, tokens only or lists of tokens "
                                        "only");
    }

    return ngx_http_pd_prompt_begin(parse, field, type);
}


static ngx_int_t
ngx_http_pd_prompts_set(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    return (type == NGX_HTTP_PD_JSON_STRING)
           ? ngx_http_pd_prompt_set(parse, field, type, text)
           : ngx_http_pd_tokens_set(parse, field, type, text);
}


static ngx_int_t
ngx_http_pd_prompts_close(ngx_http_pd_parse_t *parse)
{
    switch (parse->kind) {

    case prompt_unknown:
        return ngx_http_pd_openai_error(parse, "invalid_value", "Invalid",
                                        ": it is empty");

    case prompt_tokens:
        return ngx_http_pd_tokens_close(parse);

    default:
        return NGX_OK;
    }
}


/* one prompt of tokens */

static ngx_int_t
ngx_http_pd_tokens_open(ngx_http_pd_parse_t *parse)
{
    if (ngx_http_pd_prompt_start(parse) != NGX_OK
        || ngx_http_pd_mark_begin(parse, &parse->marks[0],
                                  NGX_HTTP_PD_WIRE_TOKENS)
           != NGX_OK)
    {
        return NGX_ABORT;
    }

    return ngx_http_pd_mark_begin(parse, &parse->marks[1],
                                  NGX_HTTP_PD_WIRE_IDS);
}


static ngx_int_t
ngx_http_pd_tokens_set(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    u_char   *p, varint[5];
    int64_t   value;

    if (ngx_http_pd_field_integer(parse, field, text, &value) != NGX_OK) {
        return NGX_ABORT;
    }

    for (p = varint; value > 0x7f; value >>= 7) {
        *p++ = (u_char) (0x80 | (value & 0x7f));
    }

    *p++ = (u_char) value;

    return ngx_http_pd_rope_append(parse->prompt, varint, p - varint) == NGX_OK
           ? NGX_OK
           : ngx_http_pd_openai_no_memory(parse);
}


static ngx_int_t
ngx_http_pd_tokens_close(ngx_http_pd_parse_t *parse)
{
    if (parse->prompt->size == parse->marks[1].size) {
        return ngx_http_pd_openai_error(parse, "invalid_value", "Invalid",
                                        ": it is empty");
    }

    ngx_http_pd_mark_end(parse, &parse->marks[1]);
    ngx_http_pd_mark_end(parse, &parse->marks[0]);

    return NGX_OK;
}
