
/*
 * Every field of a request's body, and what is done with it.
 *
 * A field is honoured, or accepted without effect because none can be noticed
 * (whom the request is for, what to store elsewhere), or accepted with the one
 * value that asks for nothing, or refused by name.  A field that is not in the
 * table is refused too: a client that misspells "max_tokens" should hear of
 * it.  null is the same as absent, as the API has it.
 *
 * The README's section "API" says the same for people.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_pd_openai_parse.h"


#define NGX_HTTP_PD_CHAT      NGX_HTTP_PD_OPENAI_CHAT
#define NGX_HTTP_PD_TEXT      NGX_HTTP_PD_OPENAI_COMPLETIONS
#define NGX_HTTP_PD_BOTH      NGX_HTTP_PD_FIELD_BOTH

#define NGX_HTTP_PD_MAX_INT   2147483647.0

#define ngx_http_pd_sampling(name)  offsetof(Pd__V1__Sampling, name)

/* the common kinds of lines in a table */

#define ngx_http_pd_accepted(name, surfaces, types)                           \
    { ngx_string(name), surfaces, types, NULL, NULL, NULL, 0, 0, 0, NULL }

#define ngx_http_pd_refused(name, surfaces)                                   \
    { ngx_string(name), surfaces, NGX_HTTP_PD_TAKES_ANY, NULL,                \
      ngx_http_pd_field_refused, NULL, 0, 0, 0, NULL }

#define ngx_http_pd_only(name, surfaces, types, value)                        \
    { ngx_string(name), surfaces, types, ngx_http_pd_field_only, NULL, NULL,  \
      0, 0, 0, value }

#define ngx_http_pd_number(name, surfaces, member, min, max)                  \
    { ngx_string(name), surfaces, NGX_HTTP_PD_TAKES_NUMBER,                   \
      ngx_http_pd_field_float, NULL, NULL, ngx_http_pd_sampling(member),      \
      min, max, NULL }

#define ngx_http_pd_integer(name, surfaces, set, member, min, max)            \
    { ngx_string(name), surfaces, NGX_HTTP_PD_TAKES_INTEGER,                  \
      set, NULL, NULL, ngx_http_pd_sampling(member), min, max, NULL }

#define ngx_http_pd_boolean(name, surfaces, set, member)                      \
    { ngx_string(name), surfaces, NGX_HTTP_PD_TAKES_BOOLEAN,                  \
      set, NULL, NULL, ngx_http_pd_sampling(member), 0, 0, NULL }

#define ngx_http_pd_list(name, surfaces, types, set, level)                   \
    { ngx_string(name), surfaces, types, set, NULL, level, 0, 0,              \
      NGX_HTTP_PD_MAX_STOP_BYTES, NULL }

#define ngx_http_pd_element(types, set)                                       \
    { ngx_null_string, NGX_HTTP_PD_BOTH | NGX_HTTP_PD_FIELD_REQUIRED, types,  \
      set, NULL, NULL, 0, 0, NGX_HTTP_PD_MAX_STOP_BYTES, NULL }

#define ngx_http_pd_fields(table)                                             \
    table, sizeof(table) / sizeof(table[0])


/* stop, stop_token_ids, logit_bias */

static const ngx_http_pd_field_t  ngx_http_pd_stop_element =
    ngx_http_pd_element(NGX_HTTP_PD_TAKES_STRING, ngx_http_pd_field_stop);

static const ngx_http_pd_level_t  ngx_http_pd_stop_level = {
    NULL, 0, 0, &ngx_http_pd_stop_element, NGX_HTTP_PD_MAX_STOPS, NULL, NULL
};


static const ngx_http_pd_field_t  ngx_http_pd_stop_token_element = {
    ngx_null_string, NGX_HTTP_PD_BOTH | NGX_HTTP_PD_FIELD_REQUIRED,
    NGX_HTTP_PD_TAKES_INTEGER, ngx_http_pd_field_stop_token, NULL, NULL,
    0, 0, NGX_HTTP_PD_MAX_INT, NULL
};

static const ngx_http_pd_level_t  ngx_http_pd_stop_token_level = {
    NULL, 0, 0, &ngx_http_pd_stop_token_element, NGX_HTTP_PD_MAX_STOP_TOKENS,
    NULL, NULL
};


static const ngx_http_pd_field_t  ngx_http_pd_bias_element = {
    ngx_null_string, NGX_HTTP_PD_BOTH | NGX_HTTP_PD_FIELD_REQUIRED,
    NGX_HTTP_PD_TAKES_NUMBER, ngx_http_pd_field_bias, NULL, NULL,
    0, -100, 100, NULL
};

static const ngx_http_pd_level_t  ngx_http_pd_bias_level = {
    NULL, 0, 0, &ngx_http_pd_bias_element, NGX_HTTP_PD_MAX_BIASES, NULL, NULL
};


/* stream_options */

static const ngx_http_pd_field_t  ngx_http_pd_stream_options_fields[] = {

    ngx_http_pd_boolean("include_usage", NGX_HTTP_PD_BOTH,
                        ngx_http_pd_field_include_usage, base),

    /* whether to pad events against eavesdroppers: none are padded */
    ngx_http_pd_accepted("include_obfuscation", NGX_HTTP_PD_BOTH,
                         NGX_HTTP_PD_TAKES_BOOLEAN)
};

static const ngx_http_pd_level_t  ngx_http_pd_stream_options_level = {
    ngx_http_pd_fields(ngx_http_pd_stream_options_fields),
    0, NULL, 0, ngx_http_pd_field_stream_options, NULL
};


/* response_format */

static const ngx_http_pd_field_t  ngx_http_pd_format_fields[] = {

    { ngx_string("type"), NGX_HTTP_PD_BOTH | NGX_HTTP_PD_FIELD_REQUIRED,
      NGX_HTTP_PD_TAKES_STRING, ngx_http_pd_field_only, NULL, NULL,
      0, 0, 0, "text" },

    ngx_http_pd_refused("json_schema", NGX_HTTP_PD_BOTH)
};

static const ngx_http_pd_level_t  ngx_http_pd_format_level = {
    ngx_http_pd_fields(ngx_http_pd_format_fields), 1, NULL, 0, NULL, NULL
};


/* lists of which only the empty, or the obvious, is supported */

static const ngx_http_pd_field_t  ngx_http_pd_tools_element = {
    ngx_null_string, NGX_HTTP_PD_BOTH | NGX_HTTP_PD_FIELD_REQUIRED,
    NGX_HTTP_PD_TAKES_ANY, NULL, ngx_http_pd_field_refused, NULL,
    0, 0, 0, NULL
};

static const ngx_http_pd_level_t  ngx_http_pd_tools_level = {
    NULL, 0, 0, &ngx_http_pd_tools_element, 0, NULL, NULL
};


static const ngx_http_pd_field_t  ngx_http_pd_modalities_element = {
    ngx_null_string, NGX_HTTP_PD_BOTH | NGX_HTTP_PD_FIELD_REQUIRED,
    NGX_HTTP_PD_TAKES_STRING, ngx_http_pd_field_only, NULL, NULL,
    0, 0, 0, "text"
};

static const ngx_http_pd_level_t  ngx_http_pd_modalities_level = {
    NULL, 0, 0, &ngx_http_pd_modalities_element, 0, NULL, NULL
};


static const ngx_http_pd_field_t  ngx_http_pd_root_fields[] = {

    { ngx_string("n"), NGX_HTTP_PD_BOTH, NGX_HTTP_PD_TAKES_INTEGER,
      ngx_http_pd_field_n, NULL, NULL, 0, 1, NGX_HTTP_PD_MAX_CHOICES, NULL },

    ngx_http_pd_only("echo", NGX_HTTP_PD_TEXT, NGX_HTTP_PD_TAKES_BOOLEAN,
                     "false"),

    ngx_http_pd_integer("seed", NGX_HTTP_PD_BOTH, ngx_http_pd_field_seed,
                        seed, 0, 0),

    ngx_http_pd_list("stop", NGX_HTTP_PD_BOTH,
                     NGX_HTTP_PD_TAKES_STRING|NGX_HTTP_PD_TAKES_ARRAY,
                     ngx_http_pd_field_stop, &ngx_http_pd_stop_level),

    ngx_http_pd_accepted("user", NGX_HTTP_PD_BOTH, NGX_HTTP_PD_TAKES_STRING),

    ngx_http_pd_refused("audio", NGX_HTTP_PD_CHAT),

    { ngx_string("min_p"), NGX_HTTP_PD_BOTH, NGX_HTTP_PD_TAKES_NUMBER,
      ngx_http_pd_field_float, NULL, NULL, ngx_http_pd_sampling(min_p),
      0, 1, NULL },

    { ngx_string("model"), NGX_HTTP_PD_BOTH | NGX_HTTP_PD_FIELD_REQUIRED,
      NGX_HTTP_PD_TAKES_STRING, ngx_http_pd_field_model, NULL, NULL,
      0, 0, NGX_HTTP_PD_MAX_MODEL, NULL },

    ngx_http_pd_accepted("store", NGX_HTTP_PD_BOTH,
                         NGX_HTTP_PD_TAKES_BOOLEAN),

    ngx_http_pd_list("tools", NGX_HTTP_PD_CHAT, NGX_HTTP_PD_TAKES_ARRAY,
                     NULL, &ngx_http_pd_tools_level),

    ngx_http_pd_integer("top_k", NGX_HTTP_PD_BOTH, ngx_http_pd_field_top_k,
                        top_k, -1, NGX_HTTP_PD_MAX_INT),

    { ngx_string("top_p"), NGX_HTTP_PD_BOTH | NGX_HTTP_PD_FIELD_ABOVE,
      NGX_HTTP_PD_TAKES_NUMBER, ngx_http_pd_field_float, NULL, NULL,
      ngx_http_pd_sampling(top_p), 0, 1, NULL },

    { ngx_string("prompt"), NGX_HTTP_PD_TEXT | NGX_HTTP_PD_FIELD_REQUIRED,
      NGX_HTTP_PD_TAKES_STRING|NGX_HTTP_PD_TAKES_ARRAY,
      ngx_http_pd_prompt_set, ngx_http_pd_prompt_begin, &ngx_http_pd_prompts,
      0, 0, 0, NULL },

    ngx_http_pd_boolean("stream", NGX_HTTP_PD_BOTH, ngx_http_pd_field_stream,
                        base),

    ngx_http_pd_refused("suffix", NGX_HTTP_PD_TEXT),

    ngx_http_pd_only("best_of", NGX_HTTP_PD_TEXT, NGX_HTTP_PD_TAKES_INTEGER,
                     "1"),

    { ngx_string("logprobs"), NGX_HTTP_PD_BOTH,
      NGX_HTTP_PD_TAKES_BOOLEAN|NGX_HTTP_PD_TAKES_INTEGER,
      ngx_http_pd_field_logprobs, NULL, NULL,
      ngx_http_pd_sampling(top_logprobs), 0, NGX_HTTP_PD_MAX_LOGPROBS, NULL },

    { ngx_string("messages"), NGX_HTTP_PD_CHAT | NGX_HTTP_PD_FIELD_REQUIRED,
      NGX_HTTP_PD_TAKES_ARRAY, NULL, NULL, &ngx_http_pd_messages,
      0, 0, 0, NULL },

    ngx_http_pd_accepted("metadata", NGX_HTTP_PD_BOTH,
                         NGX_HTTP_PD_TAKES_OBJECT),

    ngx_http_pd_refused("functions", NGX_HTTP_PD_CHAT),

    { ngx_string("typical_p"), NGX_HTTP_PD_BOTH | NGX_HTTP_PD_FIELD_ABOVE,
      NGX_HTTP_PD_TAKES_NUMBER, ngx_http_pd_field_float, NULL, NULL,
      ngx_http_pd_sampling(typical_p), 0, 1, NULL },

    ngx_http_pd_refused("verbosity", NGX_HTTP_PD_CHAT),

    ngx_http_pd_boolean("ignore_eos", NGX_HTTP_PD_BOTH,
                        ngx_http_pd_field_boolean, ignore_eos),

    ngx_http_pd_list("logit_bias", NGX_HTTP_PD_BOTH,
                     NGX_HTTP_PD_TAKES_OBJECT, NULL, &ngx_http_pd_bias_level),

    ngx_http_pd_integer("max_tokens", NGX_HTTP_PD_BOTH,
                        ngx_http_pd_field_max_tokens, max_tokens, 1,
                        NGX_HTTP_PD_MAX_INT),

    ngx_http_pd_integer("min_tokens", NGX_HTTP_PD_BOTH,
                        ngx_http_pd_field_uint, min_tokens, 0,
                        NGX_HTTP_PD_MAX_INT),

    ngx_http_pd_list("modalities", NGX_HTTP_PD_CHAT, NGX_HTTP_PD_TAKES_ARRAY,
                     NULL, &ngx_http_pd_modalities_level),

    /* a hint that may make an answer faster, and never another one */
    ngx_http_pd_accepted("prediction", NGX_HTTP_PD_CHAT,
                         NGX_HTTP_PD_TAKES_OBJECT),

    ngx_http_pd_number("temperature", NGX_HTTP_PD_BOTH, temperature, 0, 2),

    ngx_http_pd_only("tool_choice", NGX_HTTP_PD_CHAT,
                     NGX_HTTP_PD_TAKES_STRING, "none"),

    ngx_http_pd_accepted("service_tier", NGX_HTTP_PD_BOTH,
                         NGX_HTTP_PD_TAKES_STRING),

    ngx_http_pd_integer("top_logprobs", NGX_HTTP_PD_CHAT,
                        ngx_http_pd_field_uint, top_logprobs, 0,
                        NGX_HTTP_PD_MAX_LOGPROBS),

    ngx_http_pd_only("function_call", NGX_HTTP_PD_CHAT,
                     NGX_HTTP_PD_TAKES_STRING, "none"),

    ngx_http_pd_list("stop_token_ids", NGX_HTTP_PD_BOTH,
                     NGX_HTTP_PD_TAKES_ARRAY, NULL,
                     &ngx_http_pd_stop_token_level),

    ngx_http_pd_list("stream_options", NGX_HTTP_PD_BOTH,
                     NGX_HTTP_PD_TAKES_OBJECT, NULL,
                     &ngx_http_pd_stream_options_level),

    ngx_http_pd_list("response_format", NGX_HTTP_PD_BOTH,
                     NGX_HTTP_PD_TAKES_OBJECT, NULL,
                     &ngx_http_pd_format_level),

    ngx_http_pd_only("use_beam_search", NGX_HTTP_PD_BOTH,
                     NGX_HTTP_PD_TAKES_BOOLEAN, "false"),

    ngx_http_pd_number("presence_penalty", NGX_HTTP_PD_BOTH,
                       presence_penalty, -2, 2),

    ngx_http_pd_accepted("prompt_cache_key", NGX_HTTP_PD_BOTH,
                         NGX_HTTP_PD_TAKES_STRING),

    ngx_http_pd_refused("reasoning_effort", NGX_HTTP_PD_CHAT),

    ngx_http_pd_number("frequency_penalty", NGX_HTTP_PD_BOTH,
                       frequency_penalty, -2, 2),

    ngx_http_pd_accepted("safety_identifier", NGX_HTTP_PD_BOTH,
                         NGX_HTTP_PD_TAKES_STRING),

    { ngx_string("repetition_penalty"),
      NGX_HTTP_PD_BOTH | NGX_HTTP_PD_FIELD_ABOVE, NGX_HTTP_PD_TAKES_NUMBER,
      ngx_http_pd_field_float, NULL, NULL,
      ngx_http_pd_sampling(repetition_penalty), 0, 2, NULL },

    ngx_http_pd_refused("web_search_options", NGX_HTTP_PD_CHAT),

    /* of no effect without tools */
    ngx_http_pd_accepted("parallel_tool_calls", NGX_HTTP_PD_CHAT,
                         NGX_HTTP_PD_TAKES_BOOLEAN),

    ngx_http_pd_only("skip_special_tokens", NGX_HTTP_PD_BOTH,
                     NGX_HTTP_PD_TAKES_BOOLEAN, "true"),

    { ngx_string("chat_template_kwargs"), NGX_HTTP_PD_CHAT,
      NGX_HTTP_PD_TAKES_OBJECT, NULL, ngx_http_pd_arguments_begin, NULL,
      0, 0, 65536, NULL },

    ngx_http_pd_boolean("add_generation_prompt", NGX_HTTP_PD_CHAT,
                        ngx_http_pd_field_generation, base),

    ngx_http_pd_integer("max_completion_tokens", NGX_HTTP_PD_CHAT,
                        ngx_http_pd_field_max_tokens, max_tokens, 1,
                        NGX_HTTP_PD_MAX_INT),

    ngx_http_pd_only("continue_final_message", NGX_HTTP_PD_CHAT,
                     NGX_HTTP_PD_TAKES_BOOLEAN, "false"),

    ngx_http_pd_accepted("prompt_cache_retention", NGX_HTTP_PD_BOTH,
                         NGX_HTTP_PD_TAKES_STRING),

    ngx_http_pd_boolean("include_stop_str_in_output", NGX_HTTP_PD_BOTH,
                        ngx_http_pd_field_boolean, include_stop),

    ngx_http_pd_only("spaces_between_special_tokens", NGX_HTTP_PD_BOTH,
                     NGX_HTTP_PD_TAKES_BOOLEAN, "true")
};


static const ngx_http_pd_level_t  ngx_http_pd_root_level = {
    ngx_http_pd_fields(ngx_http_pd_root_fields), 2, NULL, 0, NULL, NULL
};


const ngx_http_pd_field_t  ngx_http_pd_root = {
    ngx_null_string, NGX_HTTP_PD_BOTH | NGX_HTTP_PD_FIELD_REQUIRED,
    NGX_HTTP_PD_TAKES_OBJECT, NULL, NULL, &ngx_http_pd_root_level,
    0, 0, 0, NULL
};
