
/*
 * What becomes of a field's value: checks of range, and where it is kept.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_pd_openai_parse.h"


static ngx_int_t ngx_http_pd_field_range(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_str_t *text, double value);
static ngx_int_t ngx_http_pd_field_int64(ngx_str_t *text, int64_t *value);
static double ngx_http_pd_field_double(ngx_str_t *text);


#define ngx_http_pd_member(parse, field, type)                                \
    (*(type *) ((u_char *) &(parse)->sampling + (field)->offset))


ngx_int_t
ngx_http_pd_field_float(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    double  value;

    value = ngx_http_pd_field_double(text);

    if (ngx_http_pd_field_range(parse, field, text, value) != NGX_OK) {
        return NGX_ABORT;
    }

    ngx_http_pd_member(parse, field, float) = (float) value;

    return NGX_OK;
}


ngx_int_t
ngx_http_pd_field_uint(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    int64_t  value;

    if (ngx_http_pd_field_integer(parse, field, text, &value) != NGX_OK) {
        return NGX_ABORT;
    }

    ngx_http_pd_member(parse, field, uint32_t) = (uint32_t) value;

    return NGX_OK;
}


/* how many answers to each prompt */

ngx_int_t
ngx_http_pd_field_n(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    int64_t  value;

    if (ngx_http_pd_field_integer(parse, field, text, &value) != NGX_OK) {
        return NGX_ABORT;
    }

    parse->request->n = (ngx_uint_t) value;

    return NGX_OK;
}


ngx_int_t
ngx_http_pd_field_top_k(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    int64_t  value;

    if (ngx_http_pd_field_integer(parse, field, text, &value) != NGX_OK) {
        return NGX_ABORT;
    }

    /* both -1 and 0 stand for "off" in the wild */

    parse->sampling.top_k = (value < 0) ? 0 : (uint32_t) value;

    return NGX_OK;
}


ngx_int_t
ngx_http_pd_field_seed(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    int64_t  value;

    if (ngx_http_pd_field_int64(text, &value) != NGX_OK) {
        return ngx_http_pd_openai_error(parse, "integer_out_of_range",
                                        "Invalid", ": expected an integer of "
                                        "64 bits, but got %V", text);
    }

    parse->sampling.seed = (uint64_t) value;
    parse->request->seeded = 1;

    return NGX_OK;
}


/* both names of it: the newer one for chats, the older for all */

ngx_int_t
ngx_http_pd_field_max_tokens(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    if (parse->max_tokens) {
        return ngx_http_pd_openai_error(parse, "invalid_value", "Invalid",
                                        ": 'max_tokens' and "
                                        "'max_completion_tokens' exclude each "
                                        "other");
    }

    parse->max_tokens = 1;

    return ngx_http_pd_field_uint(parse, field, type, text);
}


ngx_int_t
ngx_http_pd_field_boolean(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    ngx_http_pd_member(parse, field, protobuf_c_boolean) =
                                               (type == NGX_HTTP_PD_JSON_TRUE);

    return NGX_OK;
}


/* whether, for a chat; how many, for a completion */

ngx_int_t
ngx_http_pd_field_logprobs(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    ngx_uint_t         chat, number;
    Pd__V1__Sampling  *sampling;

    sampling = &parse->sampling;

    chat = (parse->request->surface == NGX_HTTP_PD_OPENAI_CHAT);
    number = (type == NGX_HTTP_PD_JSON_NUMBER);

    if (chat == number) {
        return ngx_http_pd_openai_error(parse, "invalid_type",
                                        "Invalid type for",
                                        chat ? ": expected a boolean, but got "
                                               "a number"
                                             : ": expected an integer, but "
                                               "got a boolean");
    }

    if (chat) {
        sampling->logprobs = (type == NGX_HTTP_PD_JSON_TRUE);
        return NGX_OK;
    }

    sampling->logprobs = 1;

    return ngx_http_pd_field_uint(parse, field, type, text);
}


ngx_int_t
ngx_http_pd_field_stream(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    parse->request->stream = (type == NGX_HTTP_PD_JSON_TRUE);

    return NGX_OK;
}


ngx_int_t
ngx_http_pd_field_stream_options(ngx_http_pd_parse_t *parse)
{
    parse->stream_options = 1;

    return NGX_OK;
}


ngx_int_t
ngx_http_pd_field_include_usage(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    parse->request->include_usage = (type == NGX_HTTP_PD_JSON_TRUE);

    return NGX_OK;
}


ngx_int_t
ngx_http_pd_field_generation(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    parse->no_generation_prompt = (type == NGX_HTTP_PD_JSON_FALSE);

    return NGX_OK;
}


ngx_int_t
ngx_http_pd_field_model(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    ngx_str_t  *model;

    if (text->len == 0) {
        return ngx_http_pd_openai_error(parse, "invalid_value", "Invalid",
                                        ": it is empty");
    }

    model = &parse->request->model;

    /* with a zero byte behind it, as the wire's strings need one */

    model->data = ngx_pnalloc(parse->request->pool, text->len + 1);
    if (model->data == NULL) {
        return ngx_http_pd_openai_no_memory(parse);
    }

    ngx_memcpy(model->data, text->data, text->len);
    model->data[text->len] = '\0';
    model->len = text->len;

    return NGX_OK;
}


/* a stop string, alone or in a list */

ngx_int_t
ngx_http_pd_field_stop(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    Pd__V1__Sampling      *sampling;
    ProtobufCBinaryData   *stop;
    ngx_http_pd_openai_t  *request;

    request = parse->request;
    sampling = request->sampling;

    if (text->len == 0) {
        return ngx_http_pd_openai_error(parse, "invalid_value", "Invalid",
                                        ": a stop string cannot be empty");
    }

    if (sampling->stop == NULL) {
        sampling->stop = ngx_palloc(request->pool,
                        NGX_HTTP_PD_MAX_STOPS * sizeof(ProtobufCBinaryData));
        if (sampling->stop == NULL) {
            return ngx_http_pd_openai_no_memory(parse);
        }
    }

    stop = &sampling->stop[sampling->n_stop];

    stop->data = ngx_pnalloc(request->pool, text->len);
    if (stop->data == NULL) {
        return ngx_http_pd_openai_no_memory(parse);
    }

    ngx_memcpy(stop->data, text->data, text->len);
    stop->len = text->len;

    sampling->n_stop++;

    return NGX_OK;
}


ngx_int_t
ngx_http_pd_field_stop_token(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    int64_t            value;
    Pd__V1__Sampling  *sampling;

    if (ngx_http_pd_field_integer(parse, field, text, &value) != NGX_OK) {
        return NGX_ABORT;
    }

    sampling = &parse->sampling;

    if (sampling->stop_token_ids == NULL) {
        sampling->stop_token_ids = ngx_palloc(parse->request->pool,
                             NGX_HTTP_PD_MAX_STOP_TOKENS * sizeof(uint32_t));
        if (sampling->stop_token_ids == NULL) {
            return ngx_http_pd_openai_no_memory(parse);
        }
    }

    sampling->stop_token_ids[sampling->n_stop_token_ids++] = (uint32_t) value;

    return NGX_OK;
}


/* one entry of logit_bias: the key is a token's number in decimal */

ngx_int_t
ngx_http_pd_field_bias(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    double                 value;
    int64_t                token;
    ngx_str_t             *key;
    Pd__V1__LogitBias     *bias;
    ngx_http_pd_openai_t  *request;

    request = parse->request;
    key = &parse->frames[parse->depth - 1].name;

    if (ngx_http_pd_field_int64(key, &token) != NGX_OK
        || token < 0 || token > NGX_MAX_INT32_VALUE)
    {
        return ngx_http_pd_openai_error(parse, "invalid_value",
                                        "Invalid key", ": expected the number "
                                        "of a token");
    }

    value = ngx_http_pd_field_double(text);

    if (ngx_http_pd_field_range(parse, field, text, value) != NGX_OK) {
        return NGX_ABORT;
    }

    if (parse->biases.elts == NULL
        && ngx_array_init(&parse->biases, request->pool, 8,
                          sizeof(Pd__V1__LogitBias))
           != NGX_OK)
    {
        return ngx_http_pd_openai_no_memory(parse);
    }

    bias = ngx_array_push(&parse->biases);
    if (bias == NULL) {
        return ngx_http_pd_openai_no_memory(parse);
    }

    pd__v1__logit_bias__init(bias);

    bias->token = (uint32_t) token;
    bias->bias = (float) value;

    return NGX_OK;
}


/* the wire's structures want pointers to the entries */

ngx_int_t
ngx_http_pd_field_biases(ngx_http_pd_parse_t *parse)
{
    ngx_uint_t            i;
    Pd__V1__Sampling     *sampling;
    Pd__V1__LogitBias    *bias;

    if (parse->biases.nelts == 0) {
        return NGX_OK;
    }

    sampling = &parse->sampling;

    sampling->logit_bias = ngx_palloc(parse->request->pool,
                          parse->biases.nelts * sizeof(Pd__V1__LogitBias *));
    if (sampling->logit_bias == NULL) {
        return ngx_http_pd_openai_no_memory(parse);
    }

    bias = parse->biases.elts;

    for (i = 0; i < parse->biases.nelts; i++) {
        sampling->logit_bias[i] = &bias[i];
    }

    sampling->n_logit_bias = parse->biases.nelts;

    return NGX_OK;
}


/* a field of which one value is supported, which is what absence means too */

ngx_int_t
ngx_http_pd_field_only(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    ngx_str_t  value;

    switch (type) {

    case NGX_HTTP_PD_JSON_TRUE:
        ngx_str_set(&value, "true");
        break;

    case NGX_HTTP_PD_JSON_FALSE:
        ngx_str_set(&value, "false");
        break;

    default:
        value = *text;
        break;
    }

    if (value.len == ngx_strlen(field->only)
        && ngx_memcmp(value.data, field->only, value.len) == 0)
    {
        return NGX_OK;
    }

    return ngx_http_pd_openai_error(parse, "unsupported_value",
                                    "Unsupported value for",
                                    ": '%V'; this server takes only '%s'",
                                    &value, field->only);
}


ngx_int_t
ngx_http_pd_field_refused(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type)
{
    return ngx_http_pd_openai_error(parse, "unsupported_parameter",
                                    "Unsupported parameter:",
                                    " is not supported by this server");
}


ngx_int_t
ngx_http_pd_field_integer(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_str_t *text, int64_t *value)
{
    if (ngx_http_pd_field_int64(text, value) != NGX_OK) {

        /* far out, and the range says so */

        *value = (text->data[0] == '-') ? -INT64_MAX : INT64_MAX;
    }

    return ngx_http_pd_field_range(parse, field, text, (double) *value);
}


static ngx_int_t
ngx_http_pd_field_range(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_str_t *text, double value)
{
    const char  *code, *from;
    ngx_uint_t   integer, above;

    above = (field->flags & NGX_HTTP_PD_FIELD_ABOVE);

    if (value > field->min && value <= field->max) {
        return NGX_OK;
    }

    if (value == field->min && !above) {
        return NGX_OK;
    }

    integer = (field->types & NGX_HTTP_PD_TAKES_INTEGER);

    if (value <= field->min) {
        code = integer ? "integer_below_min_value" : "decimal_below_min_value";

    } else {
        code = integer ? "integer_above_max_value" : "decimal_above_max_value";
    }

    from = above ? "above" : "from";

    /* the tables' limits are whole numbers */

    return ngx_http_pd_openai_error(parse, code, "Invalid",
                                    ": expected a value %s %L to %L, but got "
                                    "%V", from, (int64_t) field->min,
                                    (int64_t) field->max, text);
}


/* digits with or without a minus; NGX_ERROR: anything else, or over 64 bits */

static ngx_int_t
ngx_http_pd_field_int64(ngx_str_t *text, int64_t *value)
{
    u_char    *p, *last;
    uint64_t   n, max;

    p = text->data;
    last = p + text->len;
    max = (uint64_t) INT64_MAX;

    if (p < last && *p == '-') {
        max++;
        p++;
    }

    if (p == last) {
        return NGX_ERROR;
    }

    for (n = 0; p < last; p++) {

        if (*p < '0' || *p > '9' || n > (max - (*p - '0')) / 10) {
            return NGX_ERROR;
        }

        n = n * 10 + (*p - '0');
    }

    *value = (int64_t) (text->data[0] == '-' ? -n : n);

    return NGX_OK;
}


/* the text is a JSON number, so strtod() takes all of it */

static double
ngx_http_pd_field_double(ngx_str_t *text)
{
    u_char  buf[NGX_HTTP_PD_JSON_TOKEN + 1];

    ngx_memcpy(buf, text->data, text->len);
    buf[text->len] = '\0';

    return strtod((char *) buf, NULL);
}
