/* Template source to tokens, with Jinja's rules for white space around tags.
 *
 * As Hugging Face renders chat templates: trim_blocks (the newline after a block tag goes) and
 * lstrip_blocks (blanks between the line's start and a block tag go), one trailing newline of the
 * source dropped, `-` and `+` at a tag's edge as in Jinja. */
#ifndef PD_JINJA_LEXER_H
#define PD_JINJA_LEXER_H

#include "worker/base/error.h"
#include "worker/text/jinja_value.h"

enum pd_jinja_token_kind {
    PD_JINJA_T_END,
    PD_JINJA_T_DATA,       /* text between tags */
    PD_JINJA_T_OUTPUT,     /* {{ */
    PD_JINJA_T_OUTPUT_END, /* }} */
    PD_JINJA_T_BLOCK,      /* {% */
    PD_JINJA_T_BLOCK_END,  /* %} */
    PD_JINJA_T_NAME,
    PD_JINJA_T_STRING, /* text: unescaped */
    PD_JINJA_T_INT,
    PD_JINJA_T_FLOAT,
    PD_JINJA_T_OPERATOR, /* text: the operator as written */
};

struct pd_jinja_token {
    enum pd_jinja_token_kind kind;
    struct pd_string text;
    int64_t integer;
    double real;
    int line, column;
};

struct pd_jinja_lexer {
    const char *source, *end, *at;
    struct pd_arena *arena; /* holds unescaped strings */
    int line;
    const char *line_start;
    bool in_output, in_block; /* inside {{ }} or {% %} */
    bool trim_next;           /* the tag before ended with -%} */
    int braces;               /* open ( [ { of the tag: a "}}" inside a dict is not the end */
};

void pd_jinja_lexer_init(struct pd_jinja_lexer *lexer, const char *source, size_t length,
                         struct pd_arena *arena);

/* The next token; after PD_JINJA_T_END none may be asked for. */
int pd_jinja_lexer_next(struct pd_jinja_lexer *lexer, struct pd_jinja_token *token,
                        struct pd_error *error);

#endif
