
/*
 * The messages of a chat, written as a ChatPrompt while they are read.
 *
 * Content is a string or a list of parts, of which text parts are supported;
 * their texts are joined by newlines.  "developer" is the API's newer name for
 * "system", which is the name that chat templates know.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_pd_openai_parse.h"


#define NGX_HTTP_PD_WIRE_CHAT           0x52  /* Submit.chat, 10 */

#define NGX_HTTP_PD_WIRE_MESSAGE        0x0a  /* ChatPrompt.messages, 1 */
#define NGX_HTTP_PD_WIRE_NO_GENERATION  0x20  /* .no_generation_prompt, 4 */
#define NGX_HTTP_PD_WIRE_ARGUMENTS      0x32  /* .template_arguments_json, 6 */

#define NGX_HTTP_PD_WIRE_ROLE           0x0a  /* ChatMessage.role, 1 */
#define NGX_HTTP_PD_WIRE_CONTENT        0x12  /* .content, 2 */
#define NGX_HTTP_PD_WIRE_CONTENT_NULL   0x18  /* .content_null, 3 */
#define NGX_HTTP_PD_WIRE_NAME           0x22  /* .name, 4 */
#define NGX_HTTP_PD_WIRE_TOOL_CALLS     0x2a  /* .tool_calls_json, 5 */
#define NGX_HTTP_PD_WIRE_TOOL_CALL_ID   0x32  /* .tool_call_id, 6 */
#define NGX_HTTP_PD_WIRE_REASONING      0x3a  /* .reasoning, 7 */


static ngx_int_t ngx_http_pd_messages_open(ngx_http_pd_parse_t *parse);
static ngx_int_t ngx_http_pd_messages_close(ngx_http_pd_parse_t *parse);
static ngx_int_t ngx_http_pd_message_open(ngx_http_pd_parse_t *parse);
static ngx_int_t ngx_http_pd_message_close(ngx_http_pd_parse_t *parse);
static ngx_int_t ngx_http_pd_message_role(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);
static ngx_int_t ngx_http_pd_message_text(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);
static ngx_int_t ngx_http_pd_message_stream(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type);
static ngx_int_t ngx_http_pd_message_streamed(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);
static ngx_int_t ngx_http_pd_content_close(ngx_http_pd_parse_t *parse);
static ngx_int_t ngx_http_pd_part_text(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type);
static ngx_int_t ngx_http_pd_wire_string(ngx_http_pd_parse_t *parse,
    u_char tag, ngx_str_t *text);


#define ngx_http_pd_part_refused(name)                                        \
    { ngx_string(name), NGX_HTTP_PD_FIELD_BOTH, NGX_HTTP_PD_TAKES_ANY,        \
      NULL, ngx_http_pd_field_refused, NULL, 0, 0, 0, NULL }

#define NGX_HTTP_PD_ELEMENT                                                   \
    (NGX_HTTP_PD_FIELD_BOTH|NGX_HTTP_PD_FIELD_REQUIRED)


/* a part of a message's content */

static const ngx_http_pd_field_t  ngx_http_pd_part_fields[] = {

    ngx_http_pd_part_refused("file"),

    { ngx_string("text"), NGX_HTTP_PD_ELEMENT, NGX_HTTP_PD_TAKES_STRING,
      NULL, ngx_http_pd_part_text, NULL, 0, 0, 0, NULL },

    { ngx_string("type"), NGX_HTTP_PD_ELEMENT, NGX_HTTP_PD_TAKES_STRING,
      ngx_http_pd_field_only, NULL, NULL, 0, 0, 0, "text" },

    ngx_http_pd_part_refused("refusal"),
    ngx_http_pd_part_refused("audio_url"),
    ngx_http_pd_part_refused("image_url"),
    ngx_http_pd_part_refused("video_url"),
    ngx_http_pd_part_refused("input_audio")
};

static const ngx_http_pd_level_t  ngx_http_pd_part = {
    ngx_http_pd_part_fields,
    sizeof(ngx_http_pd_part_fields) / sizeof(ngx_http_pd_field_t),
    2, NULL, 0, NULL, NULL
};


static const ngx_http_pd_field_t  ngx_http_pd_content_element = {
    ngx_null_string, NGX_HTTP_PD_ELEMENT, NGX_HTTP_PD_TAKES_OBJECT,
    NULL, NULL, &ngx_http_pd_part, 0, 0, 0, NULL
};

static const ngx_http_pd_level_t  ngx_http_pd_content = {
    NULL, 0, 0, &ngx_http_pd_content_element, 0, NULL, ngx_http_pd_content_close
};


/*
 * A message.  Clients send an answer's message back as they got it, so fields
 * that an answer has and that say nothing are taken.
 */

static const ngx_http_pd_field_t  ngx_http_pd_message_fields[] = {

    { ngx_string("name"), NGX_HTTP_PD_FIELD_BOTH, NGX_HTTP_PD_TAKES_STRING,
      ngx_http_pd_message_text, NULL, NULL,
      NGX_HTTP_PD_WIRE_NAME, 0, 64, NULL },

    { ngx_string("role"), NGX_HTTP_PD_ELEMENT, NGX_HTTP_PD_TAKES_STRING,
      ngx_http_pd_message_role, NULL, NULL, 0, 0, 0, NULL },

    ngx_http_pd_part_refused("audio"),

    { ngx_string("content"), NGX_HTTP_PD_FIELD_BOTH,
      NGX_HTTP_PD_TAKES_STRING|NGX_HTTP_PD_TAKES_ARRAY,
      ngx_http_pd_message_streamed, ngx_http_pd_message_stream,
      &ngx_http_pd_content, NGX_HTTP_PD_WIRE_CONTENT, 0, 0, NULL },

    ngx_http_pd_part_refused("refusal"),

    { ngx_string("tool_calls"), NGX_HTTP_PD_FIELD_BOTH,
      NGX_HTTP_PD_TAKES_ARRAY, ngx_http_pd_message_streamed,
      ngx_http_pd_message_stream, NULL,
      NGX_HTTP_PD_WIRE_TOOL_CALLS, 0, 0, NULL },

    { ngx_string("annotations"), NGX_HTTP_PD_FIELD_BOTH,
      NGX_HTTP_PD_TAKES_ARRAY, NULL, NULL, NULL, 0, 0, 0, NULL },

    { ngx_string("tool_call_id"), NGX_HTTP_PD_FIELD_BOTH,
      NGX_HTTP_PD_TAKES_STRING, ngx_http_pd_message_text, NULL, NULL,
      NGX_HTTP_PD_WIRE_TOOL_CALL_ID, 0, 128, NULL },

    ngx_http_pd_part_refused("function_call"),

    { ngx_string("reasoning_content"), NGX_HTTP_PD_FIELD_BOTH,
      NGX_HTTP_PD_TAKES_STRING, ngx_http_pd_message_streamed,
      ngx_http_pd_message_stream, NULL,
      NGX_HTTP_PD_WIRE_REASONING, 0, 0, NULL }
};

static const ngx_http_pd_level_t  ngx_http_pd_message = {
    ngx_http_pd_message_fields,
    sizeof(ngx_http_pd_message_fields) / sizeof(ngx_http_pd_field_t),
    1, NULL, 0, ngx_http_pd_message_open, ngx_http_pd_message_close
};


static const ngx_http_pd_field_t  ngx_http_pd_messages_element = {
    ngx_null_string, NGX_HTTP_PD_ELEMENT, NGX_HTTP_PD_TAKES_OBJECT,
    NULL, NULL, &ngx_http_pd_message, 0, 0, 0, NULL
};

const ngx_http_pd_level_t  ngx_http_pd_messages = {
    NULL, 0, 0, &ngx_http_pd_messages_element, NGX_HTTP_PD_MAX_MESSAGES,
    ngx_http_pd_messages_open, ngx_http_pd_messages_close
};


static const struct {
    ngx_str_t  name;
    ngx_str_t  wire;

} ngx_http_pd_roles[] = {
    { ngx_string("user"), ngx_string("user") },
    { ngx_string("assistant"), ngx_string("assistant") },
    { ngx_string("system"), ngx_string("system") },
    { ngx_string("developer"), ngx_string("system") },
    { ngx_string("tool"), ngx_string("tool") }
};


static ngx_int_t
ngx_http_pd_messages_open(ngx_http_pd_parse_t *parse)
{
    if (ngx_http_pd_prompt_start(parse) != NGX_OK) {
        return NGX_ABORT;
    }

    return ngx_http_pd_mark_begin(parse, &parse->marks[0],
                                  NGX_HTTP_PD_WIRE_CHAT);
}


static ngx_int_t
ngx_http_pd_messages_close(ngx_http_pd_parse_t *parse)
{
    if (parse->prompt->size == parse->marks[0].size) {
        return ngx_http_pd_openai_error(parse, "invalid_value", "Invalid",
                                        ": it is empty");
    }

    return NGX_OK;
}


/* the body is complete: what belongs into the ChatPrompt besides messages */

ngx_int_t
ngx_http_pd_chat_end(ngx_http_pd_parse_t *parse)
{
    u_char       *p;
    ngx_chain_t  *cl;

    if (parse->no_generation_prompt) {
        p = ngx_http_pd_rope_reserve(parse->prompt, 2);
        if (p == NULL) {
            return ngx_http_pd_openai_no_memory(parse);
        }

        p[0] = NGX_HTTP_PD_WIRE_NO_GENERATION;
        p[1] = 1;
    }

    if (parse->arguments.size) {

        if (ngx_http_pd_mark_begin(parse, &parse->marks[1],
                                   NGX_HTTP_PD_WIRE_ARGUMENTS)
            != NGX_OK)
        {
            return NGX_ABORT;
        }

        for (cl = parse->arguments.first; cl; cl = cl->next) {

            if (ngx_http_pd_rope_append(parse->prompt, cl->buf->pos,
                                        cl->buf->last - cl->buf->pos)
                != NGX_OK)
            {
                return ngx_http_pd_openai_no_memory(parse);
            }
        }

        ngx_http_pd_mark_end(parse, &parse->marks[1]);
    }

    ngx_http_pd_mark_end(parse, &parse->marks[0]);

    return NGX_OK;
}


/* chat_template_kwargs may come before the messages, so it waits */

ngx_int_t
ngx_http_pd_arguments_begin(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type)
{
    parse->arguments.pool = parse->request->pool;
    parse->arguments.buffer = 256;

    parse->rope = &parse->arguments;

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_message_open(ngx_http_pd_parse_t *parse)
{
    ngx_memzero(&parse->message, sizeof(ngx_http_pd_message_t));

    return ngx_http_pd_mark_begin(parse, &parse->message.mark,
                                  NGX_HTTP_PD_WIRE_MESSAGE);
}


static ngx_int_t
ngx_http_pd_message_close(ngx_http_pd_parse_t *parse)
{
    u_char                 *p;
    ngx_http_pd_message_t  *message;

    message = &parse->message;

    if (!message->has_content) {

        if (!message->assistant) {
            ngx_str_set(&parse->frames[parse->depth].name, "content");
            parse->depth++;

            return ngx_http_pd_openai_error(parse,
                                            "missing_required_parameter",
                                            "Missing required parameter:", "");
        }

        p = ngx_http_pd_rope_reserve(parse->prompt, 2);
        if (p == NULL) {
            return ngx_http_pd_openai_no_memory(parse);
        }

        p[0] = NGX_HTTP_PD_WIRE_CONTENT_NULL;
        p[1] = 1;
    }

    ngx_http_pd_mark_end(parse, &message->mark);

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_message_role(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    size_t      cut;
    ngx_str_t   role;
    ngx_uint_t  i;

    for (i = 0; i < sizeof(ngx_http_pd_roles) / sizeof(ngx_http_pd_roles[0]);
         i++)
    {
        if (text->len == ngx_http_pd_roles[i].name.len
            && ngx_memcmp(text->data, ngx_http_pd_roles[i].name.data,
                          text->len)
               == 0)
        {
            role = ngx_http_pd_roles[i].wire;
            parse->message.assistant = (role.data[0] == 'a');

            return ngx_http_pd_wire_string(parse, NGX_HTTP_PD_WIRE_ROLE,
                                           &role);
        }
    }

    cut = ngx_min(text->len, 32);

    return ngx_http_pd_openai_error(parse, "invalid_value", "Invalid",
                                    ": expected 'system', 'developer', "
                                    "'user', 'assistant' or 'tool', but got "
                                    "'%*s'", cut, text->data);
}


/* a short text whose place on the wire is in field->offset */

static ngx_int_t
ngx_http_pd_message_text(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    return ngx_http_pd_wire_string(parse, (u_char) field->offset, text);
}


/* a text of any length, or a list, likewise */

static ngx_int_t
ngx_http_pd_message_stream(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type)
{
    parse->rope = parse->prompt;

    return ngx_http_pd_mark_begin(parse, &parse->message.content,
                                  (u_char) field->offset);
}


static ngx_int_t
ngx_http_pd_message_streamed(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text)
{
    if (field->offset == NGX_HTTP_PD_WIRE_CONTENT) {
        return ngx_http_pd_content_close(parse);
    }

    ngx_http_pd_mark_end(parse, &parse->message.content);

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_content_close(ngx_http_pd_parse_t *parse)
{
    parse->message.has_content = 1;

    ngx_http_pd_mark_end(parse, &parse->message.content);

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_part_text(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type)
{
    parse->rope = parse->prompt;

    if (parse->message.parts++
        && ngx_http_pd_rope_literal(parse->prompt, "\n") != NGX_OK)
    {
        return ngx_http_pd_openai_no_memory(parse);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_wire_string(ngx_http_pd_parse_t *parse, u_char tag,
    ngx_str_t *text)
{
    u_char  *p;

    /* no longer than NGX_HTTP_PD_SCRATCH, so two bytes hold the length */

    p = ngx_http_pd_rope_reserve(parse->prompt, 3 + text->len);
    if (p == NULL) {
        return ngx_http_pd_openai_no_memory(parse);
    }

    *p++ = tag;
    *p++ = (u_char) (0x80 | (text->len & 0x7f));
    *p++ = (u_char) (text->len >> 7);

    ngx_memcpy(p, text->data, text->len);

    return NGX_OK;
}
