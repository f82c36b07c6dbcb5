
/*
 * The walk through a request: json events against the tables; see
 * ngx_http_pd_openai_parse.h.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_pd_openai_parse.h"


static ngx_int_t ngx_http_pd_openai_together(ngx_http_pd_parse_t *parse);
static ngx_int_t ngx_http_pd_openai_json(ngx_http_pd_parse_t *parse,
    ngx_int_t rc);

static ngx_int_t ngx_http_pd_openai_begin(void *data,
    ngx_http_pd_json_type_e type, ngx_str_t *text);
static ngx_int_t ngx_http_pd_openai_value_end(void *data,
    ngx_http_pd_json_type_e type);
static ngx_int_t ngx_http_pd_openai_key(void *data, ngx_str_t *name);
static ngx_int_t ngx_http_pd_openai_text(void *data, u_char *p, size_t len);
static ngx_int_t ngx_http_pd_openai_raw(void *data, u_char *p, size_t len);

static ngx_int_t ngx_http_pd_openai_element(ngx_http_pd_parse_t *parse,
    ngx_http_pd_frame_t *frame);
static ngx_int_t ngx_http_pd_openai_type(ngx_http_pd_parse_t *parse,
    ngx_http_pd_json_type_e type, ngx_str_t *text);
static ngx_int_t ngx_http_pd_openai_enter(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_level_t *level);
static ngx_int_t ngx_http_pd_openai_leave(ngx_http_pd_parse_t *parse);
static ngx_int_t ngx_http_pd_openai_missing(ngx_http_pd_parse_t *parse,
    ngx_http_pd_frame_t *frame);
static ngx_int_t ngx_http_pd_openai_string(ngx_http_pd_parse_t *parse);
static ngx_int_t ngx_http_pd_openai_find(const ngx_http_pd_level_t *level,
    ngx_str_t *name);
static u_char *ngx_http_pd_openai_expected(u_char *p, u_char *last,
    ngx_uint_t types);
static u_char *ngx_http_pd_openai_path(ngx_http_pd_parse_t *parse, u_char *p,
    u_char *last);


static const ngx_http_pd_json_handlers_t  ngx_http_pd_openai_handlers = {
    ngx_http_pd_openai_begin,
    ngx_http_pd_openai_value_end,
    ngx_http_pd_openai_key,
    ngx_http_pd_openai_text,
    ngx_http_pd_openai_raw
};


static const char  *ngx_http_pd_openai_types[] = {
    "null", "a boolean", "a boolean", "a number", "a string", "an object",
    "an array"
};


/* bodies mostly come whole, one after another: then this one does for all */

static ngx_http_pd_parse_t  *ngx_http_pd_openai_spare;


ngx_http_pd_parse_t *
ngx_http_pd_openai_create(ngx_http_pd_openai_t *request,
    ngx_http_pd_error_t *error, ngx_uint_t surface, off_t size,
    ngx_pool_t *pool, ngx_log_t *log)
{
    ngx_http_pd_parse_t  *parse;

    parse = ngx_http_pd_openai_spare;
    ngx_http_pd_openai_spare = NULL;

    if (parse == NULL) {
        parse = ngx_alloc(sizeof(ngx_http_pd_parse_t), log);
        if (parse == NULL) {
            return NULL;
        }
    }

    ngx_memzero(parse, offsetof(ngx_http_pd_parse_t, scratch));

    parse->request = request;
    parse->size = size;

    ngx_http_pd_json_init(&parse->json, &ngx_http_pd_openai_handlers, parse);

    ngx_memzero(request, sizeof(ngx_http_pd_openai_t));

    request->surface = surface;
    request->pool = pool;
    request->sampling = &parse->sampling;
    request->error = error;

    if (ngx_array_init(&request->prompts, pool, 1, sizeof(ngx_http_pd_rope_t))
        != NGX_OK)
    {
        ngx_http_pd_openai_destroy(parse);
        return NULL;
    }

    pd__v1__sampling__init(request->sampling);

    request->n = 1;
    request->sampling->temperature = 1;

    if (surface == NGX_HTTP_PD_OPENAI_COMPLETIONS) {
        request->sampling->max_tokens = 16;  /* the API's own default */
    }

    return parse;
}


void
ngx_http_pd_openai_destroy(ngx_http_pd_parse_t *parse)
{
    if (ngx_http_pd_openai_spare == NULL) {
        ngx_http_pd_openai_spare = parse;
        return;
    }

    ngx_free(parse);
}


ngx_int_t
ngx_http_pd_openai_feed(ngx_http_pd_parse_t *parse, u_char *pos, u_char *last)
{
    return ngx_http_pd_openai_json(parse,
                              ngx_http_pd_json_feed(&parse->json, pos, last));
}


ngx_int_t
ngx_http_pd_openai_end(ngx_http_pd_parse_t *parse)
{
    ngx_int_t  rc;

    rc = ngx_http_pd_openai_json(parse, ngx_http_pd_json_end(&parse->json));

    if (rc != NGX_OK) {
        return rc;
    }

    if (ngx_http_pd_openai_together(parse) != NGX_OK
        || ngx_http_pd_field_biases(parse) != NGX_OK)
    {
        return NGX_ABORT;
    }

    return (parse->request->surface == NGX_HTTP_PD_OPENAI_CHAT)
           ? ngx_http_pd_chat_end(parse)
           : NGX_OK;
}


/* what fields say of each other */

static ngx_int_t
ngx_http_pd_openai_together(ngx_http_pd_parse_t *parse)
{
    Pd__V1__Sampling      *sampling;
    ngx_http_pd_openai_t  *request;

    static ngx_str_t  n = ngx_string("n");
    static ngx_str_t  min_tokens = ngx_string("min_tokens");
    static ngx_str_t  stream_options = ngx_string("stream_options");
    static ngx_str_t  top_logprobs = ngx_string("top_logprobs");

    request = parse->request;
    sampling = request->sampling;

    if (sampling->max_tokens && sampling->min_tokens > sampling->max_tokens) {
        return ngx_http_pd_error(request->error, request->pool, 400,
                                 "invalid_value", &min_tokens,
                                 "Invalid 'min_tokens': %uD is more than the "
                                 "%uD tokens that the answer may have",
                                 sampling->min_tokens, sampling->max_tokens);
    }

    if (request->n * request->prompts.nelts > NGX_HTTP_PD_MAX_CHOICES) {
        return ngx_http_pd_error(request->error, request->pool, 400,
                                 "invalid_value", &n,
                                 "Invalid 'n': %ui answers to each of %ui "
                                 "prompts are more than the %d that one "
                                 "request may ask for", request->n,
                                 request->prompts.nelts,
                                 NGX_HTTP_PD_MAX_CHOICES);
    }

    if (parse->stream_options && !request->stream) {
        return ngx_http_pd_error(request->error, request->pool, 400,
                                 "invalid_value", &stream_options,
                                 "Invalid 'stream_options': it is only "
                                 "allowed with 'stream'");
    }

    if (sampling->top_logprobs && !sampling->logprobs) {
        return ngx_http_pd_error(request->error, request->pool, 400,
                                 "invalid_value", &top_logprobs,
                                 "Invalid 'top_logprobs': it is only allowed "
                                 "with 'logprobs'");
    }

    return NGX_OK;
}


/* NGX_ERROR from the parser becomes an error for the client */

static ngx_int_t
ngx_http_pd_openai_json(ngx_http_pd_parse_t *parse, ngx_int_t rc)
{
    ngx_http_pd_json_t  *json;

    if (rc != NGX_ERROR) {
        return rc;
    }

    json = &parse->json;

    return ngx_http_pd_error(parse->request->error, parse->request->pool,
                             400, "invalid_json", NULL,
                             "The body is not valid JSON: %s, at byte %O "
                             "(line %ui, column %ui)", json->error,
                             json->error_offset, json->line,
                             json->error_column);
}


static ngx_int_t
ngx_http_pd_openai_begin(void *data, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    ngx_http_pd_parse_t *parse = data;

    ngx_int_t                   rc;
    ngx_http_pd_frame_t        *frame;
    const ngx_http_pd_field_t  *field;

    if (parse->skipped) {
        parse->skipped += (type >= NGX_HTTP_PD_JSON_OBJECT);
        return NGX_OK;
    }

    parse->rope = NULL;
    parse->len = 0;

    if (parse->depth == 0) {
        parse->field = &ngx_http_pd_root;

    } else {
        frame = &parse->frames[parse->depth - 1];

        if (ngx_http_pd_openai_element(parse, frame) != NGX_OK) {
            return NGX_ABORT;
        }
    }

    field = parse->field;

    if (type == NGX_HTTP_PD_JSON_NULL
        && !(field->flags & NGX_HTTP_PD_FIELD_REQUIRED))
    {
        return (field->flags & NGX_HTTP_PD_FIELD_NULL)
               ? field->set(parse, field, type, NULL)
               : NGX_OK;
    }

    rc = ngx_http_pd_openai_type(parse, type, text);

    if (rc == NGX_OK && field->begin) {
        rc = field->begin(parse, field, type);
    }

    if (rc != NGX_OK) {
        return rc;
    }

    switch (type) {

    case NGX_HTTP_PD_JSON_STRING:
        return NGX_OK;

    case NGX_HTTP_PD_JSON_OBJECT:
    case NGX_HTTP_PD_JSON_ARRAY:

        if (field->level) {
            return ngx_http_pd_openai_enter(parse, field->level);
        }

        parse->skipped = 1;

        if (parse->rope) {
            ngx_http_pd_json_raw_begin(&parse->json);
        }

        return NGX_OK;

    default:
        return field->set ? field->set(parse, field, type, text) : NGX_OK;
    }
}


static ngx_int_t
ngx_http_pd_openai_value_end(void *data, ngx_http_pd_json_type_e type)
{
    ngx_http_pd_parse_t *parse = data;

    const ngx_http_pd_field_t  *field;

    if (type == NGX_HTTP_PD_JSON_STRING) {
        return parse->skipped ? NGX_OK : ngx_http_pd_openai_string(parse);
    }

    if (!parse->skipped) {
        return ngx_http_pd_openai_leave(parse);
    }

    if (--parse->skipped || parse->rope == NULL) {
        return NGX_OK;
    }

    if (ngx_http_pd_json_raw_end(&parse->json) != NGX_OK) {
        return NGX_ABORT;
    }

    field = parse->field;

    return field->set ? field->set(parse, field, type, NULL) : NGX_OK;
}


static ngx_int_t
ngx_http_pd_openai_key(void *data, ngx_str_t *name)
{
    ngx_http_pd_parse_t *parse = data;

    ngx_int_t                   n;
    ngx_http_pd_frame_t        *frame;
    const ngx_http_pd_level_t  *level;

    if (parse->skipped) {
        return NGX_OK;
    }

    frame = &parse->frames[parse->depth - 1];
    level = frame->level;

    ngx_memcpy(parse->key, name->data, name->len);

    frame->name.data = parse->key;
    frame->name.len = name->len;

    if (level->element) {
        return NGX_OK;
    }

    n = ngx_http_pd_openai_find(level, name);

    if (n == NGX_DECLINED
        || !(level->fields[n].flags & parse->request->surface))
    {
        return ngx_http_pd_openai_error(parse, "unknown_parameter",
                                        "Unknown parameter:", "");
    }

    if (frame->seen[n / 64] & ((uint64_t) 1 << (n % 64))) {
        return ngx_http_pd_openai_error(parse, "duplicate_parameter",
                                        "Parameter given twice:", "");
    }

    frame->seen[n / 64] |= (uint64_t) 1 << (n % 64);
    frame->field = &level->fields[n];
    frame->name = frame->field->name;
    frame->required += !!(frame->field->flags & NGX_HTTP_PD_FIELD_REQUIRED);

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_openai_text(void *data, u_char *p, size_t len)
{
    ngx_http_pd_parse_t *parse = data;

    size_t  n;

    if (parse->skipped) {
        return NGX_OK;
    }

    if (parse->rope) {
        return ngx_http_pd_rope_append(parse->rope, p, len) == NGX_OK
               ? NGX_OK
               : ngx_http_pd_openai_no_memory(parse);
    }

    /* the length is counted to its end, for the error's sake */

    if (parse->len < NGX_HTTP_PD_SCRATCH) {
        n = ngx_min(len, NGX_HTTP_PD_SCRATCH - parse->len);
        ngx_memcpy(parse->scratch + parse->len, p, n);
    }

    parse->len += len;

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_openai_raw(void *data, u_char *p, size_t len)
{
    ngx_http_pd_parse_t *parse = data;

    parse->len += len;

    if (parse->field->max && parse->len > parse->field->max) {
        return ngx_http_pd_openai_error(parse, "string_above_max_length",
                                        "Invalid", ": more than %uz bytes",
                                        (size_t) parse->field->max);
    }

    return ngx_http_pd_rope_append(parse->rope, p, len) == NGX_OK
           ? NGX_OK
           : ngx_http_pd_openai_no_memory(parse);
}


/* sets parse->field for a value that begins in the frame */

static ngx_int_t
ngx_http_pd_openai_element(ngx_http_pd_parse_t *parse,
    ngx_http_pd_frame_t *frame)
{
    const ngx_http_pd_level_t  *level;

    level = frame->level;

    if (level->element == NULL) {
        parse->field = frame->field;
        return NGX_OK;
    }

    parse->field = level->element;
    frame->count++;

    if (level->max && frame->count > level->max) {
        parse->depth--;

        return ngx_http_pd_openai_error(parse, "array_above_max_length",
                                        "Invalid", ": more than %ui elements",
                                        level->max);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_openai_type(ngx_http_pd_parse_t *parse,
    ngx_http_pd_json_type_e type, ngx_str_t *text)
{
    size_t       n;
    u_char       buf[64], *p;
    ngx_uint_t   types;

    types = parse->field->types;

    if (types & (1 << type)) {
        return NGX_OK;
    }

    if (type == NGX_HTTP_PD_JSON_NUMBER
        && (types & NGX_HTTP_PD_TAKES_INTEGER))
    {
        for (n = 0; n < text->len; n++) {

            if (text->data[n] == '.' || (text->data[n] | 0x20) == 'e') {
                break;
            }
        }

        if (n == text->len) {
            return NGX_OK;
        }
    }

    p = ngx_http_pd_openai_expected(buf, buf + sizeof(buf), types);

    return ngx_http_pd_openai_error(parse, "invalid_type", "Invalid type for",
                                    ": expected %*s, but got %s",
                                    (size_t) (p - buf), buf,
                                    ngx_http_pd_openai_types[type]);
}


static ngx_int_t
ngx_http_pd_openai_enter(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_level_t *level)
{
    ngx_http_pd_frame_t  *frame;

    /* the tables are never deeper than the stack */

    frame = &parse->frames[parse->depth++];

    ngx_memzero(frame, sizeof(ngx_http_pd_frame_t));

    frame->level = level;

    return level->open ? level->open(parse) : NGX_OK;
}


static ngx_int_t
ngx_http_pd_openai_leave(ngx_http_pd_parse_t *parse)
{
    ngx_http_pd_frame_t  *frame;

    frame = &parse->frames[parse->depth - 1];

    if (frame->required < frame->level->required) {
        return ngx_http_pd_openai_missing(parse, frame);
    }

    parse->depth--;

    return frame->level->close ? frame->level->close(parse) : NGX_OK;
}


/* refuses what lacks a field, and names the first such one */

static ngx_int_t
ngx_http_pd_openai_missing(ngx_http_pd_parse_t *parse,
    ngx_http_pd_frame_t *frame)
{
    ngx_uint_t                  n;
    const ngx_http_pd_field_t  *field;

    for (n = 0; n < frame->level->nfields; n++) {
        field = &frame->level->fields[n];

        if ((field->flags & NGX_HTTP_PD_FIELD_REQUIRED)
            && (field->flags & parse->request->surface)
            && !(frame->seen[n / 64] & ((uint64_t) 1 << (n % 64))))
        {
            frame->name = field->name;
            break;
        }
    }

    return ngx_http_pd_openai_error(parse, "missing_required_parameter",
                                    "Missing required parameter:", "");
}


static ngx_int_t
ngx_http_pd_openai_string(ngx_http_pd_parse_t *parse)
{
    size_t                      max;
    ngx_str_t                   text;
    const ngx_http_pd_field_t  *field;

    field = parse->field;

    if (field->set == NULL) {
        return NGX_OK;
    }

    if (parse->rope) {
        return field->set(parse, field, NGX_HTTP_PD_JSON_STRING, NULL);
    }

    max = field->max ? (size_t) field->max : NGX_HTTP_PD_SCRATCH;

    if (parse->len > max) {
        return ngx_http_pd_openai_error(parse, "string_above_max_length",
                                        "Invalid", ": expected at most %uz "
                                        "bytes, but got %uz", max, parse->len);
    }

    if (memchr(parse->scratch, '\0', parse->len)) {
        return ngx_http_pd_openai_error(parse, "invalid_value", "Invalid",
                                        ": it holds a zero byte");
    }

    text.data = parse->scratch;
    text.len = parse->len;

    return field->set(parse, field, NGX_HTTP_PD_JSON_STRING, &text);
}


/* the index of the level's field, or NGX_DECLINED */

static ngx_int_t
ngx_http_pd_openai_find(const ngx_http_pd_level_t *level, ngx_str_t *name)
{
    ngx_int_t         order;
    ngx_uint_t        low, high, middle;
    const ngx_str_t  *candidate;

    low = 0;
    high = level->nfields;

    while (low < high) {
        middle = (low + high) / 2;
        candidate = &level->fields[middle].name;

        order = (ngx_int_t) name->len - (ngx_int_t) candidate->len;

        if (order == 0) {
            order = name->data[0] - candidate->data[0];
        }

        if (order == 0) {
            order = ngx_memcmp(name->data, candidate->data, name->len);
        }

        if (order == 0) {
            return middle;
        }

        if (order < 0) {
            high = middle;

        } else {
            low = middle + 1;
        }
    }

    return NGX_DECLINED;
}


/* "a string or an array" */

static u_char *
ngx_http_pd_openai_expected(u_char *p, u_char *last, ngx_uint_t types)
{
    u_char      *start;
    ngx_uint_t   i;

    static const struct {
        ngx_uint_t   types;
        const char  *name;
    } known[] = {
        { NGX_HTTP_PD_TAKES_BOOLEAN, "a boolean" },
        { NGX_HTTP_PD_TAKES_INTEGER, "an integer" },
        { NGX_HTTP_PD_TAKES_NUMBER, "a number" },
        { NGX_HTTP_PD_TAKES_STRING, "a string" },
        { NGX_HTTP_PD_TAKES_OBJECT, "an object" },
        { NGX_HTTP_PD_TAKES_ARRAY, "an array" }
    };

    start = p;

    for (i = 0; i < sizeof(known) / sizeof(known[0]); i++) {

        if (types & known[i].types) {
            p = ngx_slprintf(p, last, "%s%s", (p == start) ? "" : " or ",
                             known[i].name);
        }
    }

    return p;
}


/* where the walk is: "messages[2].content" */

static u_char *
ngx_http_pd_openai_path(ngx_http_pd_parse_t *parse, u_char *p, u_char *last)
{
    u_char               *start;
    ngx_uint_t            i;
    ngx_http_pd_frame_t  *frame;

    start = p;

    for (i = 0; i < parse->depth; i++) {
        frame = &parse->frames[i];

        if (frame->name.len) {
            p = ngx_slprintf(p, last, "%s%V", (p == start) ? "" : ".",
                             &frame->name);

        } else if (frame->count) {
            p = ngx_slprintf(p, last, "[%ui]", frame->count - 1);
        }
    }

    return p;
}


ngx_int_t
ngx_http_pd_openai_error(ngx_http_pd_parse_t *parse, const char *code,
    const char *problem, const char *fmt, ...)
{
    u_char                *p, *text, buf[NGX_HTTP_PD_ERROR_MESSAGE];
    va_list                args;
    ngx_str_t              path;
    ngx_http_pd_openai_t  *request;

    request = parse->request;

    text = ngx_http_pd_openai_path(parse, buf, buf + sizeof(buf) / 2);

    va_start(args, fmt);
    p = ngx_vslprintf(text, buf + sizeof(buf), fmt, args);
    va_end(args);

    if (text == buf) {
        return ngx_http_pd_error(request->error, request->pool, 400, code,
                                 NULL, "%s the body%*s", problem,
                                 (size_t) (p - text), text);
    }

    path.len = text - buf;
    path.data = ngx_pnalloc(request->pool, path.len);

    if (path.data == NULL) {
        return ngx_http_pd_openai_no_memory(parse);
    }

    ngx_memcpy(path.data, buf, path.len);

    return ngx_http_pd_error(request->error, request->pool, 400, code, &path,
                             "%s '%V'%*s", problem, &path,
                             (size_t) (p - text), text);
}


ngx_int_t
ngx_http_pd_openai_no_memory(ngx_http_pd_parse_t *parse)
{
    ngx_http_pd_error_status(parse->request->error, 500);

    return NGX_ABORT;
}
