#include "worker/text/jinja_cursor.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct pd_jinja_node *pd_jinja_refuse(struct pd_jinja_parser *parser, enum pd_status status,
                                      const char *format, ...)
{
    char text[200];
    va_list arguments;

    if (parser->failed)
        return NULL;
    parser->failed = true;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    pd_fail(parser->error, status, "line %d, column %d: %s", parser->token.line,
            parser->token.column, text);
    return NULL;
}

void pd_jinja_advance(struct pd_jinja_parser *parser)
{
    if (parser->failed)
        return;
    if (pd_jinja_lexer_next(&parser->lexer, &parser->token, parser->error) != PD_OK) {
        parser->failed = true;
        parser->token.kind = PD_JINJA_T_END;
    }
}

bool pd_jinja_text_is(struct pd_string text, const char *word)
{
    return text.length == strlen(word) && memcmp(text.bytes, word, text.length) == 0;
}

bool pd_jinja_at_operator(const struct pd_jinja_parser *parser, const char *text)
{
    return parser->token.kind == PD_JINJA_T_OPERATOR && pd_jinja_text_is(parser->token.text, text);
}

bool pd_jinja_at_name(const struct pd_jinja_parser *parser, const char *text)
{
    return parser->token.kind == PD_JINJA_T_NAME && pd_jinja_text_is(parser->token.text, text);
}

bool pd_jinja_accept_operator(struct pd_jinja_parser *parser, const char *text)
{
    if (!pd_jinja_at_operator(parser, text))
        return false;
    pd_jinja_advance(parser);
    return true;
}

bool pd_jinja_accept_name(struct pd_jinja_parser *parser, const char *text)
{
    if (!pd_jinja_at_name(parser, text))
        return false;
    pd_jinja_advance(parser);
    return true;
}

void pd_jinja_expect_operator(struct pd_jinja_parser *parser, const char *text)
{
    if (!pd_jinja_accept_operator(parser, text))
        pd_jinja_refuse(parser, PD_INVALID, "expected '%s'", text);
}

struct pd_string pd_jinja_expect_name(struct pd_jinja_parser *parser)
{
    struct pd_string name = parser->token.text;

    if (parser->token.kind != PD_JINJA_T_NAME)
        pd_jinja_refuse(parser, PD_INVALID, "expected a name");
    pd_jinja_advance(parser);
    return name;
}

struct pd_jinja_node *pd_jinja_node_new(struct pd_jinja_parser *parser,
                                        enum pd_jinja_node_kind kind)
{
    struct pd_jinja_node *result =
        parser->failed ? NULL : pd_arena_take(parser->arena, sizeof(*result));

    if (!result)
        return pd_jinja_refuse(parser, PD_NO_MEMORY, "the template is too large");
    result->kind = kind;
    result->line = parser->token.line;
    result->column = parser->token.column;
    return result;
}

struct pd_jinja_node *pd_jinja_node_with(struct pd_jinja_parser *parser,
                                         enum pd_jinja_node_kind kind, struct pd_jinja_node *a,
                                         struct pd_jinja_node *b)
{
    struct pd_jinja_node *result = pd_jinja_node_new(parser, kind);

    if (result) {
        result->a = a;
        result->b = b;
    }
    return result;
}
