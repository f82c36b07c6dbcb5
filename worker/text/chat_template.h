/* The model's own chat template: a Jinja subset, compiled once, rendered per request.
 *
 * Text that came from a client is carried through rendering as *literal*: every string knows which of
 * its bytes a user wrote, whatever filters and slices it passes, and the result says so, so that the
 * tokenizer never reads a special token out of it. */
#ifndef PD_CHAT_TEMPLATE_H
#define PD_CHAT_TEMPLATE_H

#include "worker/text/tokenizer.h"

struct pd_chat_template;

/* Compiles `source`. A construct outside the subset is PD_UNSUPPORTED with its name, line and column. */
int pd_chat_template_compile(const char *source, size_t length, struct pd_chat_template **result,
                             struct pd_error *error);
void pd_chat_template_destroy(struct pd_chat_template *compiled);

struct pd_chat_message {
    struct pd_string role, content;
    bool content_null;
    struct pd_string name;         /* empty: none */
    struct pd_string tool_calls;   /* JSON array text, empty: none */
    struct pd_string tool_call_id; /* empty: none */
    struct pd_string reasoning;    /* empty: none */
};

struct pd_chat_input {
    const struct pd_chat_message *messages;
    size_t message_count;
    struct pd_string tools;     /* JSON array text, empty: none */
    struct pd_string arguments; /* JSON object text: extra variables, empty: none */
    bool add_generation_prompt;
    struct pd_string bos_token, eos_token; /* texts, trusted */
};

struct pd_rendered {
    char *text;
    size_t length;
    struct pd_span *literal; /* sorted, disjoint: bytes that a client wrote */
    size_t literal_count;
};

/* Renders; free the result with pd_rendered_free. raise_exception() and type errors are PD_INVALID
 * with the template's own words (for the client's eyes). Output over `limit` bytes, more than 10 million
 * steps or nesting over 64 are PD_INVALID. Any thread. */
int pd_chat_template_render(const struct pd_chat_template *compiled, const struct pd_chat_input *input,
                            size_t limit, struct pd_rendered *out, struct pd_error *error);
void pd_rendered_free(struct pd_rendered *rendered);

#endif
