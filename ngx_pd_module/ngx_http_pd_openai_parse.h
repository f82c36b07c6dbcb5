
/*
 * How a request is read: shared by the files ngx_http_pd_openai*.c only.
 *
 * The parser's events walk down a tree of levels.  A level is an object, whose
 * fields are a table, or a list, all of whose elements are alike; each field
 * says which types it takes, what to do with a value, and which level a
 * container opens.  A stack of frames says where the walk is, and so what an
 * error is about: "messages[2].content[0].type".
 */


#ifndef _NGX_HTTP_PD_OPENAI_PARSE_H_INCLUDED_
#define _NGX_HTTP_PD_OPENAI_PARSE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_pd_json.h"
#include "ngx_http_pd_openai.h"


/* types that a field takes: by json type, and some groups of them */

#define NGX_HTTP_PD_TAKES_BOOLEAN   ((1 << NGX_HTTP_PD_JSON_FALSE)            \
                                     | (1 << NGX_HTTP_PD_JSON_TRUE))
#define NGX_HTTP_PD_TAKES_NUMBER    (1 << NGX_HTTP_PD_JSON_NUMBER)
#define NGX_HTTP_PD_TAKES_STRING    (1 << NGX_HTTP_PD_JSON_STRING)
#define NGX_HTTP_PD_TAKES_OBJECT    (1 << NGX_HTTP_PD_JSON_OBJECT)
#define NGX_HTTP_PD_TAKES_ARRAY     (1 << NGX_HTTP_PD_JSON_ARRAY)
#define NGX_HTTP_PD_TAKES_INTEGER   0x0100   /* a number of digits only */
#define NGX_HTTP_PD_TAKES_ANY       0x00fe   /* null is for "absent" */


/* what else a field is */

#define NGX_HTTP_PD_FIELD_REQUIRED  0x10
#define NGX_HTTP_PD_FIELD_NULL      0x20    /* set() wants to hear of null */
#define NGX_HTTP_PD_FIELD_ABOVE     0x40    /* min itself is too little */

#define NGX_HTTP_PD_FIELD_BOTH      (NGX_HTTP_PD_OPENAI_CHAT                  \
                                     | NGX_HTTP_PD_OPENAI_COMPLETIONS)


#define NGX_HTTP_PD_SCRATCH         256     /* the longest short string */
#define NGX_HTTP_PD_MAX_FRAMES      6


typedef struct ngx_http_pd_field_s  ngx_http_pd_field_t;
typedef struct ngx_http_pd_level_s  ngx_http_pd_level_t;

typedef ngx_int_t (*ngx_http_pd_begin_pt)(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type);
typedef ngx_int_t (*ngx_http_pd_set_pt)(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);
typedef ngx_int_t (*ngx_http_pd_level_pt)(ngx_http_pd_parse_t *parse);


/*
 * begin() is called with the first byte of a value of the right type; it may
 * point parse->rope to where a string's or a raw container's text goes.  set()
 * is called when a value but a container is complete, with a scalar's or a
 * short string's text, and after a raw container.
 */

struct ngx_http_pd_field_s {
    ngx_str_t                   name;
    ngx_uint_t                  flags;  /* surfaces | NGX_HTTP_PD_FIELD_... */
    ngx_uint_t                  types;  /* NGX_HTTP_PD_TAKES_... */
    ngx_http_pd_set_pt          set;
    ngx_http_pd_begin_pt        begin;
    const ngx_http_pd_level_t  *level;  /* NULL: a container is skipped */
    size_t                      offset; /* in Pd__V1__Sampling, or a tag */
    double                      min;    /* of a number */
    double                      max;    /* of a number, or bytes of a string */
    const char                 *only;   /* the one value that is supported */
};


struct ngx_http_pd_level_s {
    const ngx_http_pd_field_t  *fields;     /* sorted by length, then name */
    ngx_uint_t                  nfields;
    ngx_uint_t                  required;   /* of them, on each surface */
    const ngx_http_pd_field_t  *element;    /* instead: of a list or a map */
    ngx_uint_t                  max;        /* elements of it */
    ngx_http_pd_level_pt        open;
    ngx_http_pd_level_pt        close;      /* the frame is just above depth */
};


typedef struct {
    const ngx_http_pd_level_t  *level;
    const ngx_http_pd_field_t  *field;      /* of the key read last */
    ngx_str_t                   name;       /* that key; in a list: empty */
    ngx_uint_t                  count;      /* elements begun */
    ngx_uint_t                  required;   /* fields that came and had to */
    uint64_t                    seen[2];    /* fields that came, by index */
} ngx_http_pd_frame_t;


/* room for a length that is known later; "size" is the rope's after it */

typedef struct {
    u_char                     *room;
    size_t                      size;
} ngx_http_pd_mark_t;


typedef struct {
    ngx_http_pd_mark_t          mark;
    ngx_http_pd_mark_t          content;
    ngx_uint_t                  parts;      /* texts joined so far */
    unsigned                    assistant:1;
    unsigned                    has_content:1;
} ngx_http_pd_message_t;


struct ngx_http_pd_parse_s {
    ngx_http_pd_json_t          json;
    ngx_http_pd_openai_t       *request;
    Pd__V1__Sampling            sampling;
    off_t                       size;       /* of the body, if known */

    ngx_http_pd_frame_t         frames[NGX_HTTP_PD_MAX_FRAMES];
    ngx_uint_t                  depth;      /* frames in use */

    const ngx_http_pd_field_t  *field;      /* whose value is being read */
    ngx_uint_t                  skipped;    /* containers open within it */

    ngx_http_pd_rope_t         *rope;       /* NULL: text goes to scratch */
    size_t                      len;        /* of it */

    ngx_http_pd_rope_t         *prompt;     /* the last of request->prompts */
    ngx_http_pd_mark_t          marks[2];   /* around it */
    ngx_http_pd_message_t       message;
    ngx_uint_t                  kind;       /* of a prompt's elements */

    ngx_http_pd_rope_t          arguments;  /* chat_template_kwargs */
    ngx_array_t                 biases;     /* of Pd__V1__LogitBias */
    unsigned                    no_generation_prompt:1;
    unsigned                    max_tokens:1;   /* given, by either name */
    unsigned                    stream_options:1;

    /* last: not zeroed */

    u_char                      scratch[NGX_HTTP_PD_SCRATCH];
    u_char                      key[NGX_HTTP_PD_JSON_TOKEN];   /* unknown */
};


/*
 * Refuses the value where the walk is: "<problem> '<its path>'<fmt ...>".
 * Both return NGX_ABORT.
 */
ngx_int_t ngx_http_pd_openai_error(ngx_http_pd_parse_t *parse,
    const char *code, const char *problem, const char *fmt, ...);
ngx_int_t ngx_http_pd_openai_no_memory(ngx_http_pd_parse_t *parse);


/* what becomes of a value: ngx_http_pd_openai_values.c */

ngx_int_t ngx_http_pd_field_float(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);
ngx_int_t ngx_http_pd_field_uint(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);
ngx_int_t ngx_http_pd_field_n(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);
ngx_int_t ngx_http_pd_field_seed(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);
ngx_int_t ngx_http_pd_field_top_k(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);
ngx_int_t ngx_http_pd_field_max_tokens(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);
ngx_int_t ngx_http_pd_field_boolean(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);
ngx_int_t ngx_http_pd_field_logprobs(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);
ngx_int_t ngx_http_pd_field_only(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);
ngx_int_t ngx_http_pd_field_model(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);
ngx_int_t ngx_http_pd_field_stream(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);
ngx_int_t ngx_http_pd_field_include_usage(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);
ngx_int_t ngx_http_pd_field_generation(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);
ngx_int_t ngx_http_pd_field_stop(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);
ngx_int_t ngx_http_pd_field_stop_token(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);
ngx_int_t ngx_http_pd_field_bias(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);

ngx_int_t ngx_http_pd_field_refused(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type);
ngx_int_t ngx_http_pd_field_stream_options(ngx_http_pd_parse_t *parse);
ngx_int_t ngx_http_pd_field_biases(ngx_http_pd_parse_t *parse);

/* a number's text as an integer within the field's range */
ngx_int_t ngx_http_pd_field_integer(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_str_t *text, int64_t *value);


/* prompts in wire format: ngx_http_pd_openai_prompt.c */

/* a new one, which becomes parse->prompt */
ngx_int_t ngx_http_pd_prompt_start(ngx_http_pd_parse_t *parse);

/* a length-delimited field whose length is known at its end */
ngx_int_t ngx_http_pd_mark_begin(ngx_http_pd_parse_t *parse,
    ngx_http_pd_mark_t *mark, u_char tag);
void ngx_http_pd_mark_end(ngx_http_pd_parse_t *parse,
    ngx_http_pd_mark_t *mark);

ngx_int_t ngx_http_pd_prompt_begin(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type);
ngx_int_t ngx_http_pd_prompt_set(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type,
    ngx_str_t *text);

/* chats: ngx_http_pd_openai_chat.c */

ngx_int_t ngx_http_pd_arguments_begin(ngx_http_pd_parse_t *parse,
    const ngx_http_pd_field_t *field, ngx_http_pd_json_type_e type);
ngx_int_t ngx_http_pd_chat_end(ngx_http_pd_parse_t *parse);


extern const ngx_http_pd_field_t  ngx_http_pd_root;
extern const ngx_http_pd_level_t  ngx_http_pd_messages;
extern const ngx_http_pd_level_t  ngx_http_pd_prompts;


#endif /* _NGX_HTTP_PD_OPENAI_PARSE_H_INCLUDED_ */
