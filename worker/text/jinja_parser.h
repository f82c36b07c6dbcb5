/* The template language's syntax tree, and the parser that makes it.
 *
 * What chat templates use of Jinja is here; what they do not (include, import, extends, block,
 * call, trans, recursive loops) is refused by name when a template is compiled, never when a
 * request is served. */
#ifndef PD_JINJA_PARSER_H
#define PD_JINJA_PARSER_H

#include "worker/text/jinja_lexer.h"

/* Of expressions and statements within each other, parsed or rendered. */
enum { PD_JINJA_DEPTH_MAX = 200 };

enum pd_jinja_node_kind {
    /* statements */
    PD_JINJA_DATA,         /* text */
    PD_JINJA_PRINT,        /* a */
    PD_JINJA_IF,           /* a: condition, body, other (an IF for elif) */
    PD_JINJA_FOR,          /* names, a: iterable, b: filter or NULL, body, other: else */
    PD_JINJA_SET,          /* names (or a NAME.text attribute), a: value */
    PD_JINJA_SET_BLOCK,    /* names, body, a: filter chain applied to the block or NULL */
    PD_JINJA_MACRO_DEF,    /* text: name, names: parameters with defaults in a, body */
    PD_JINJA_FILTER_BLOCK, /* a: filter chain over the block, body */
    PD_JINJA_BREAK,
    PD_JINJA_CONTINUE,
    /* expressions */
    PD_JINJA_CONSTANT,  /* constant */
    PD_JINJA_NAME,      /* text */
    PD_JINJA_ATTRIBUTE, /* a . text */
    PD_JINJA_INDEX,     /* a [ b ] */
    PD_JINJA_SLICE,     /* a [ b : c : d ] */
    PD_JINJA_CALL,      /* a ( arguments ) */
    PD_JINJA_FILTER,    /* a | number ( arguments ); a NULL: the enclosing block's text */
    PD_JINJA_TEST,      /* a is number ( arguments ) */
    PD_JINJA_NOT,       /* a */
    PD_JINJA_NEGATE,
    PD_JINJA_AND,
    PD_JINJA_OR,
    PD_JINJA_BINARY,  /* a operator b */
    PD_JINJA_TERNARY, /* a if b else c (c NULL: undefined) */
    PD_JINJA_LIST_OF, /* arguments */
    PD_JINJA_TUPLE_OF,
    PD_JINJA_DICT_OF, /* arguments: key, value, key, value */
};

enum pd_jinja_operator {
    PD_JINJA_ADD,
    PD_JINJA_SUBTRACT,
    PD_JINJA_MULTIPLY,
    PD_JINJA_DIVIDE,
    PD_JINJA_FLOOR_DIVIDE,
    PD_JINJA_MODULO,
    PD_JINJA_POWER,
    PD_JINJA_CONCATENATE,
    PD_JINJA_EQUAL,
    PD_JINJA_NOT_EQUAL,
    PD_JINJA_LESS,
    PD_JINJA_LESS_EQUAL,
    PD_JINJA_GREATER,
    PD_JINJA_GREATER_EQUAL,
    PD_JINJA_IN,
    PD_JINJA_NOT_IN,
};

struct pd_jinja_node {
    enum pd_jinja_node_kind kind;
    int line, column;
    struct pd_jinja_node *next; /* in a body, an argument list or a list of names */
    struct pd_string text;
    struct pd_jinja_node *a, *b, *c, *d;
    struct pd_jinja_node *names, *body, *other, *arguments;
    struct pd_string keyword; /* of an argument; empty: positional */
    int number;               /* operator, filter or test */
    bool negated;             /* TEST: is not */
    struct pd_jinja_value constant;
};

/* Parses a whole template into nodes that live in `arena` and borrow `source`. */
int pd_jinja_parse(const char *source, size_t length, struct pd_arena *arena,
                   struct pd_jinja_node **body, struct pd_error *error);

/* Numbers of filters (jinja_filters.c) and tests (jinja_tests.c) by name, or -1. */
int pd_jinja_filter_number(struct pd_string name);
int pd_jinja_test_number(struct pd_string name);
/* The index of `name` among `count` names, or -1. */
int pd_jinja_number_in(const char *const *names, size_t count, struct pd_string name);
/* Whether a value may have a method of this name (jinja_methods.c). */
bool pd_jinja_method_known(struct pd_string name);

#endif
