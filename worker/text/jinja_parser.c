#include "worker/text/jinja_parser.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { DEPTH_MAX = 200 };

struct parser {
    struct pd_jinja_lexer lexer;
    struct pd_jinja_token token; /* the next one, not yet used */
    struct pd_arena *arena;
    struct pd_error *error;
    bool failed;
    int depth, loops;
};

typedef struct pd_jinja_node node;

static node *expression(struct parser *parser);
static node *unary(struct parser *parser, bool with_filters);
static node *body_until(struct parser *parser, const char *const *ends);

/* ---- tokens ---------------------------------------------------------------------------------- */

static node *fail(struct parser *parser, enum pd_status status, const char *format, ...)
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

static void next(struct parser *parser)
{
    if (parser->failed)
        return;
    if (pd_jinja_lexer_next(&parser->lexer, &parser->token, parser->error) != PD_OK) {
        parser->failed = true;
        parser->token.kind = PD_JINJA_T_END;
    }
}

static bool text_is(struct pd_string text, const char *word)
{
    return text.length == strlen(word) && memcmp(text.bytes, word, text.length) == 0;
}

static bool at_operator(const struct parser *parser, const char *text)
{
    return parser->token.kind == PD_JINJA_T_OPERATOR && text_is(parser->token.text, text);
}

static bool at_name(const struct parser *parser, const char *text)
{
    return parser->token.kind == PD_JINJA_T_NAME && text_is(parser->token.text, text);
}

static bool accept_operator(struct parser *parser, const char *text)
{
    if (!at_operator(parser, text))
        return false;
    next(parser);
    return true;
}

static bool accept_name(struct parser *parser, const char *text)
{
    if (!at_name(parser, text))
        return false;
    next(parser);
    return true;
}

static void expect_operator(struct parser *parser, const char *text)
{
    if (!accept_operator(parser, text))
        fail(parser, PD_INVALID, "expected '%s'", text);
}

static void expect_end(struct parser *parser, enum pd_jinja_token_kind kind)
{
    if (parser->token.kind != kind)
        fail(parser, PD_INVALID, "expected the tag to end here");
    else
        next(parser);
}

static struct pd_string expect_name(struct parser *parser)
{
    struct pd_string name = parser->token.text;

    if (parser->token.kind != PD_JINJA_T_NAME)
        fail(parser, PD_INVALID, "expected a name");
    next(parser);
    return name;
}

static node *make(struct parser *parser, enum pd_jinja_node_kind kind)
{
    node *result = parser->failed ? NULL : pd_arena_take(parser->arena, sizeof(*result));

    if (!result)
        return fail(parser, PD_NO_MEMORY, "the template is too large");
    result->kind = kind;
    result->line = parser->token.line;
    result->column = parser->token.column;
    return result;
}

static node *make_with(struct parser *parser, enum pd_jinja_node_kind kind, node *a, node *b)
{
    node *result = make(parser, kind);

    if (result) {
        result->a = a;
        result->b = b;
    }
    return result;
}

/* ---- expressions, loosest first -------------------------------------------------------------- */

static node *constant(struct parser *parser, struct pd_jinja_value value)
{
    node *result = make(parser, PD_JINJA_CONSTANT);

    if (result)
        result->constant = value;
    return result;
}

/* Items up to `close`, which is consumed. Keywords are allowed where `calls`. */
static node *arguments(struct parser *parser, const char *close, bool calls)
{
    node *first = NULL, **last = &first;

    while (!parser->failed && !at_operator(parser, close)) {
        struct pd_string keyword = {"", 0};
        node *item;

        if (at_operator(parser, "*") || at_operator(parser, "**"))
            return fail(parser, PD_UNSUPPORTED, "arguments given by * or ** are not supported");
        item = expression(parser);
        if (calls && item && item->kind == PD_JINJA_NAME && accept_operator(parser, "=")) {
            keyword = item->text;
            item = expression(parser);
        }
        if (!item)
            return NULL;
        item->keyword = keyword;
        *last = item;
        last = &item->next;
        if (!accept_operator(parser, ","))
            break;
    }
    expect_operator(parser, close);
    return first;
}

static node *list_of(struct parser *parser, enum pd_jinja_node_kind kind, node *first)
{
    node *result = make(parser, kind);

    if (result)
        result->arguments = first;
    return result;
}

static node *dict_of(struct parser *parser)
{
    node *first = NULL, **last = &first;

    while (!parser->failed && !at_operator(parser, "}")) {
        node *key = expression(parser), *value;

        expect_operator(parser, ":");
        value = expression(parser);
        if (!key || !value)
            return NULL;
        *last = key;
        key->next = value;
        last = &value->next;
        if (!accept_operator(parser, ","))
            break;
    }
    expect_operator(parser, "}");
    return list_of(parser, PD_JINJA_DICT_OF, first);
}

static node *parenthesis(struct parser *parser)
{
    node *first, *more;

    if (accept_operator(parser, ")"))
        return list_of(parser, PD_JINJA_TUPLE_OF, NULL);
    first = expression(parser);
    if (!accept_operator(parser, ",")) {
        expect_operator(parser, ")");
        return first;
    }
    more = arguments(parser, ")", false);
    if (!first)
        return NULL;
    first->next = more;
    return list_of(parser, PD_JINJA_TUPLE_OF, first);
}

static node *name_or_keyword(struct parser *parser)
{
    struct pd_string name = expect_name(parser);
    node *result;

    if (text_is(name, "true") || text_is(name, "True"))
        return constant(parser, pd_jinja_bool(true));
    if (text_is(name, "false") || text_is(name, "False"))
        return constant(parser, pd_jinja_bool(false));
    if (text_is(name, "none") || text_is(name, "None"))
        return constant(parser, pd_jinja_none());
    result = make(parser, PD_JINJA_NAME);
    if (result)
        result->text = name;
    return result;
}

static node *string_constant(struct parser *parser)
{
    struct pd_string text = parser->token.text;

    next(parser);
    while (parser->token.kind == PD_JINJA_T_STRING) { /* "a" "b" is one string */
        char *both = pd_arena_take(parser->arena, text.length + parser->token.text.length + 1);

        if (!both)
            return fail(parser, PD_NO_MEMORY, "the template is too large");
        memcpy(both, text.bytes, text.length);
        memcpy(both + text.length, parser->token.text.bytes, parser->token.text.length);
        text = (struct pd_string){both, text.length + parser->token.text.length};
        next(parser);
    }
    return constant(parser, pd_jinja_text(text.bytes, text.length, PD_JINJA_TRUSTED));
}

static node *primary(struct parser *parser)
{
    struct pd_jinja_token token = parser->token;

    switch (token.kind) {
    case PD_JINJA_T_NAME:
        return name_or_keyword(parser);
    case PD_JINJA_T_STRING:
        return string_constant(parser);
    case PD_JINJA_T_INT:
        next(parser);
        return constant(parser, pd_jinja_int(token.integer));
    case PD_JINJA_T_FLOAT:
        next(parser);
        return constant(parser, pd_jinja_float(token.real));
    default:
        break;
    }
    if (accept_operator(parser, "("))
        return parenthesis(parser);
    if (accept_operator(parser, "["))
        return list_of(parser, PD_JINJA_LIST_OF, arguments(parser, "]", false));
    if (accept_operator(parser, "{"))
        return dict_of(parser);
    return fail(parser, PD_INVALID, "expected an expression");
}

static node *subscript(struct parser *parser, node *object)
{
    node *result = make_with(parser, PD_JINJA_INDEX, object, NULL);

    if (!result)
        return NULL;
    if (!at_operator(parser, ":"))
        result->b = expression(parser);
    if (accept_operator(parser, ":")) {
        result->kind = PD_JINJA_SLICE;
        if (!at_operator(parser, ":") && !at_operator(parser, "]"))
            result->c = expression(parser);
        if (accept_operator(parser, ":") && !at_operator(parser, "]"))
            result->d = expression(parser);
    }
    expect_operator(parser, "]");
    return result;
}

static node *call(struct parser *parser, node *callee)
{
    node *result = make_with(parser, PD_JINJA_CALL, callee, NULL);

    if (callee && callee->kind == PD_JINJA_ATTRIBUTE && !pd_jinja_method_known(callee->text))
        return fail(parser, PD_UNSUPPORTED, "the method '%.*s' is not supported",
                    (int)(callee->text.length < 64 ? callee->text.length : 64), callee->text.bytes);
    if (result)
        result->arguments = arguments(parser, ")", true);
    return result;
}

static node *postfix(struct parser *parser, node *object)
{
    while (!parser->failed) {
        if (accept_operator(parser, ".")) {
            node *result = make_with(parser, PD_JINJA_ATTRIBUTE, object, NULL);

            if (result && parser->token.kind == PD_JINJA_T_INT) { /* x.0 is x[0] */
                result->kind = PD_JINJA_INDEX;
                result->b = constant(parser, pd_jinja_int(parser->token.integer));
                next(parser);
            } else if (result) {
                result->text = expect_name(parser);
            }
            object = result;
        } else if (accept_operator(parser, "[")) {
            object = subscript(parser, object);
        } else if (accept_operator(parser, "(")) {
            object = call(parser, object);
        } else {
            break;
        }
    }
    return object;
}

static node *filter(struct parser *parser, node *object)
{
    node *result = make_with(parser, PD_JINJA_FILTER, object, NULL);
    struct pd_string name = parser->token.text;

    if (!result)
        return NULL;
    if (parser->token.kind == PD_JINJA_T_NAME) {
        result->number = pd_jinja_filter_number(name);
        if (result->number < 0)
            return fail(parser, PD_UNSUPPORTED, "the filter '%.*s' is not supported",
                        (int)(name.length < 64 ? name.length : 64), name.bytes);
    }
    result->text = expect_name(parser);
    if (accept_operator(parser, "("))
        result->arguments = arguments(parser, ")", true);
    return result;
}

static bool starts_test_argument(const struct parser *parser)
{
    if (parser->token.kind == PD_JINJA_T_NAME)
        return !at_name(parser, "else") && !at_name(parser, "or") && !at_name(parser, "and") &&
               !at_name(parser, "is") && !at_name(parser, "if") && !at_name(parser, "in") &&
               !at_name(parser, "not");
    return parser->token.kind == PD_JINJA_T_STRING || parser->token.kind == PD_JINJA_T_INT ||
           parser->token.kind == PD_JINJA_T_FLOAT || at_operator(parser, "[") ||
           at_operator(parser, "{");
}

static node *test(struct parser *parser, node *object)
{
    node *result = make_with(parser, PD_JINJA_TEST, object, NULL);
    struct pd_string name;

    if (!result)
        return NULL;
    result->negated = accept_name(parser, "not");
    name = parser->token.text;
    if (parser->token.kind == PD_JINJA_T_NAME) {
        result->number = pd_jinja_test_number(name);
        if (result->number < 0)
            return fail(parser, PD_UNSUPPORTED, "the test '%.*s' is not supported",
                        (int)(name.length < 64 ? name.length : 64), name.bytes);
    }
    result->text = expect_name(parser);
    if (accept_operator(parser, "("))
        result->arguments = arguments(parser, ")", false);
    else if (starts_test_argument(parser))
        result->arguments = postfix(parser, primary(parser));
    return result;
}

static node *filters_and_tests(struct parser *parser, node *object)
{
    while (!parser->failed) {
        if (accept_operator(parser, "|"))
            object = filter(parser, object);
        else if (accept_name(parser, "is"))
            object = test(parser, object);
        else if (accept_operator(parser, "("))
            object = call(parser, object);
        else
            break;
    }
    return object;
}

static node *unary(struct parser *parser, bool with_filters)
{
    node *result;

    if (++parser->depth > DEPTH_MAX)
        return fail(parser, PD_INVALID, "expressions are nested too deeply");
    if (accept_operator(parser, "-"))
        result = make_with(parser, PD_JINJA_NEGATE, unary(parser, false), NULL);
    else if (accept_operator(parser, "+"))
        result = unary(parser, false);
    else
        result = primary(parser);
    result = postfix(parser, result);
    if (with_filters)
        result = filters_and_tests(parser, result);
    parser->depth--;
    return result;
}

/* Binary operators by level, loosest first; all are left-associative as in Jinja. */
static const struct level {
    const char *text[7];
    enum pd_jinja_operator number[6];
} levels[] = {
    {{"+", "-", NULL}, {PD_JINJA_ADD, PD_JINJA_SUBTRACT}},
    {{"~", NULL}, {PD_JINJA_CONCATENATE}},
    {{"*", "/", "//", "%", NULL},
     {PD_JINJA_MULTIPLY, PD_JINJA_DIVIDE, PD_JINJA_FLOOR_DIVIDE, PD_JINJA_MODULO}},
    {{"**", NULL}, {PD_JINJA_POWER}},
};

static node *binary(struct parser *parser, size_t depth)
{
    node *left;

    if (depth == sizeof(levels) / sizeof(*levels))
        return unary(parser, true);
    left = binary(parser, depth + 1);
    for (int i = 0; !parser->failed && levels[depth].text[i];) {
        if (!accept_operator(parser, levels[depth].text[i])) {
            i++;
            continue;
        }
        left = make_with(parser, PD_JINJA_BINARY, left, binary(parser, depth + 1));
        if (left)
            left->number = (int)levels[depth].number[i];
        i = 0;
    }
    return left;
}

static int comparison_operator(struct parser *parser)
{
    static const struct {
        const char *text;
        enum pd_jinja_operator number;
    } operators[] = {{"==", PD_JINJA_EQUAL},      {"!=", PD_JINJA_NOT_EQUAL},
                     {"<=", PD_JINJA_LESS_EQUAL}, {">=", PD_JINJA_GREATER_EQUAL},
                     {"<", PD_JINJA_LESS},        {">", PD_JINJA_GREATER}};

    for (size_t i = 0; i < sizeof(operators) / sizeof(*operators); i++)
        if (accept_operator(parser, operators[i].text))
            return (int)operators[i].number;
    if (accept_name(parser, "in"))
        return PD_JINJA_IN;
    if (accept_name(parser, "not")) { /* in this place only `not in` can follow */
        if (!accept_name(parser, "in"))
            fail(parser, PD_INVALID, "expected 'in' after 'not'");
        return PD_JINJA_NOT_IN;
    }
    return -1;
}

/* a < b < c is (a < b) and (b < c); expressions have no effects, so b may be looked at twice. */
static node *comparison(struct parser *parser)
{
    node *left = binary(parser, 0), *chain = NULL;
    int number;

    while (!parser->failed && (number = comparison_operator(parser)) >= 0) {
        node *right = binary(parser, 0);
        node *step = make_with(parser, PD_JINJA_BINARY, left, right);

        if (!step)
            return NULL;
        step->number = number;
        chain = chain ? make_with(parser, PD_JINJA_AND, chain, step) : step;
        left = right;
    }
    return chain ? chain : left;
}

static node *negation(struct parser *parser)
{
    node *result;

    if (!accept_name(parser, "not"))
        return comparison(parser);
    if (++parser->depth > DEPTH_MAX)
        return fail(parser, PD_INVALID, "expressions are nested too deeply");
    result = make_with(parser, PD_JINJA_NOT, negation(parser), NULL);
    parser->depth--;
    return result;
}

static node *conjunction(struct parser *parser)
{
    node *left = negation(parser);

    while (!parser->failed && accept_name(parser, "and"))
        left = make_with(parser, PD_JINJA_AND, left, negation(parser));
    return left;
}

static node *disjunction(struct parser *parser)
{
    node *left = conjunction(parser);

    while (!parser->failed && accept_name(parser, "or"))
        left = make_with(parser, PD_JINJA_OR, left, conjunction(parser));
    return left;
}

static node *expression(struct parser *parser)
{
    node *value;

    if (++parser->depth > DEPTH_MAX)
        return fail(parser, PD_INVALID, "expressions are nested too deeply");
    value = disjunction(parser);
    while (!parser->failed && accept_name(parser, "if")) {
        value = make_with(parser, PD_JINJA_TERNARY, value, disjunction(parser));
        if (value && accept_name(parser, "else"))
            value->c = expression(parser);
    }
    parser->depth--;
    return value;
}

/* An expression, or several with commas between: a tuple. */
static node *expression_or_tuple(struct parser *parser)
{
    node *first = expression(parser), **last;

    if (!first || !at_operator(parser, ","))
        return first;
    last = &first->next;
    while (!parser->failed && accept_operator(parser, ",")) {
        if (parser->token.kind == PD_JINJA_T_OUTPUT_END ||
            parser->token.kind == PD_JINJA_T_BLOCK_END)
            break;
        *last = expression(parser);
        if (!*last)
            return NULL;
        last = &(*last)->next;
    }
    return list_of(parser, PD_JINJA_TUPLE_OF, first);
}

/* ---- statements ------------------------------------------------------------------------------ */

/* Names that a value is bound to: `a`, `a, b` or `(a, b)`. */
static node *target_names(struct parser *parser)
{
    bool closed = accept_operator(parser, "(");
    node *first = NULL, **last = &first;

    do {
        node *name = make(parser, PD_JINJA_NAME);

        if (!name)
            return NULL;
        name->text = expect_name(parser);
        *last = name;
        last = &name->next;
    } while (!parser->failed && accept_operator(parser, ","));
    if (closed)
        expect_operator(parser, ")");
    return first;
}

static node *if_statement(struct parser *parser)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const end[] = {"endif", NULL};
    node *result = make(parser, PD_JINJA_IF);

    if (!result)
        return NULL;
    result->a = expression_or_tuple(parser);
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    result->body = body_until(parser, ends);
    if (accept_name(parser, "elif")) {
        if (++parser->depth > DEPTH_MAX)
            return fail(parser, PD_INVALID, "statements are nested too deeply");
        result->other = if_statement(parser); /* consumes the endif */
        parser->depth--;
        return result;
    }
    if (accept_name(parser, "else")) {
        expect_end(parser, PD_JINJA_T_BLOCK_END);
        result->other = body_until(parser, end);
    }
    accept_name(parser, "endif");
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    return result;
}

static node *for_statement(struct parser *parser)
{
    static const char *const ends[] = {"else", "endfor", NULL}, *const end[] = {"endfor", NULL};
    node *result = make(parser, PD_JINJA_FOR);

    if (!result)
        return NULL;
    result->names = target_names(parser);
    if (!accept_name(parser, "in"))
        return fail(parser, PD_INVALID, "expected 'in'");
    result->a = disjunction(parser); /* `if` behind it filters the loop */
    if (accept_name(parser, "if"))
        result->b = expression(parser);
    if (at_name(parser, "recursive"))
        return fail(parser, PD_UNSUPPORTED, "recursive loops are not supported");
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    parser->loops++;
    result->body = body_until(parser, ends);
    parser->loops--;
    if (accept_name(parser, "else")) {
        expect_end(parser, PD_JINJA_T_BLOCK_END);
        result->other = body_until(parser, end);
    }
    accept_name(parser, "endfor");
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    return result;
}

static node *filter_chain(struct parser *parser)
{
    node *chain = filter(parser, NULL);

    while (!parser->failed && accept_operator(parser, "|"))
        chain = filter(parser, chain);
    return chain;
}

static node *set_statement(struct parser *parser)
{
    static const char *const end[] = {"endset", NULL};
    node *result = make(parser, PD_JINJA_SET);

    if (!result)
        return NULL;
    result->names = target_names(parser);
    if (result->names && accept_operator(parser, ".")) /* namespace attribute */
        result->text = expect_name(parser);
    if (accept_operator(parser, "=")) {
        result->a = expression_or_tuple(parser);
        expect_end(parser, PD_JINJA_T_BLOCK_END);
        return result;
    }
    result->kind = PD_JINJA_SET_BLOCK;
    if (accept_operator(parser, "|"))
        result->a = filter_chain(parser);
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    result->body = body_until(parser, end);
    accept_name(parser, "endset");
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    return result;
}

static node *macro_statement(struct parser *parser)
{
    static const char *const end[] = {"endmacro", NULL};
    node *result = make(parser, PD_JINJA_MACRO_DEF), **last;

    if (!result)
        return NULL;
    result->text = expect_name(parser);
    expect_operator(parser, "(");
    last = &result->names;
    while (!parser->failed && !at_operator(parser, ")")) {
        node *name = make(parser, PD_JINJA_NAME);

        if (!name)
            return NULL;
        name->text = expect_name(parser);
        if (accept_operator(parser, "="))
            name->a = expression(parser);
        *last = name;
        last = &name->next;
        if (!accept_operator(parser, ","))
            break;
    }
    expect_operator(parser, ")");
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    result->body = body_until(parser, end);
    accept_name(parser, "endmacro");
    if (parser->token.kind == PD_JINJA_T_NAME)
        next(parser); /* {% endmacro name %} */
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    return result;
}

static node *filter_statement(struct parser *parser)
{
    static const char *const end[] = {"endfilter", NULL};
    node *result = make(parser, PD_JINJA_FILTER_BLOCK);

    if (!result)
        return NULL;
    result->a = filter_chain(parser);
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    result->body = body_until(parser, end);
    accept_name(parser, "endfilter");
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    return result;
}

/* {% generation %}, which marks an assistant's text for training, changes nothing here. */
static node *generation_statement(struct parser *parser)
{
    static const char *const end[] = {"endgeneration", NULL};
    node *result = make(parser, PD_JINJA_IF);

    expect_end(parser, PD_JINJA_T_BLOCK_END);
    if (!result)
        return NULL;
    result->a = constant(parser, pd_jinja_bool(true));
    result->body = body_until(parser, end);
    accept_name(parser, "endgeneration");
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    return result;
}

static node *loop_control(struct parser *parser, enum pd_jinja_node_kind kind)
{
    node *result = make(parser, kind);

    if (parser->loops == 0)
        return fail(parser, PD_INVALID, "break or continue outside a loop");
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    return result;
}

static node *statement(struct parser *parser)
{
    struct pd_string word = parser->token.text;

    if (parser->token.kind != PD_JINJA_T_NAME)
        return fail(parser, PD_INVALID, "expected a statement");
    if (accept_name(parser, "if"))
        return if_statement(parser);
    if (accept_name(parser, "for"))
        return for_statement(parser);
    if (accept_name(parser, "set"))
        return set_statement(parser);
    if (accept_name(parser, "macro"))
        return macro_statement(parser);
    if (accept_name(parser, "filter"))
        return filter_statement(parser);
    if (accept_name(parser, "generation"))
        return generation_statement(parser);
    if (accept_name(parser, "break"))
        return loop_control(parser, PD_JINJA_BREAK);
    if (accept_name(parser, "continue"))
        return loop_control(parser, PD_JINJA_CONTINUE);
    return fail(parser, PD_UNSUPPORTED, "the statement '%.*s' is not supported",
                (int)(word.length < 64 ? word.length : 64), word.bytes);
}

static bool at_any(const struct parser *parser, const char *const *names)
{
    for (; names && *names; names++)
        if (at_name(parser, *names))
            return true;
    return false;
}

/* Statements up to a block tag that begins with one of `ends` (NULL: to the template's end). Stops
 * on that word, behind its `{%`. */
static node *body_until(struct parser *parser, const char *const *ends)
{
    node *first = NULL, **last = &first;

    if (++parser->depth > DEPTH_MAX)
        return fail(parser, PD_INVALID, "statements are nested too deeply");
    while (!parser->failed) {
        node *item = NULL;

        if (parser->token.kind == PD_JINJA_T_END) {
            if (ends)
                return fail(parser, PD_INVALID, "the template ends, but {%% %s %%} is missing",
                            ends[0]);
            break;
        }
        if (parser->token.kind == PD_JINJA_T_DATA) {
            item = make(parser, PD_JINJA_DATA);
            if (item)
                item->text = parser->token.text;
            next(parser);
        } else if (parser->token.kind == PD_JINJA_T_OUTPUT) {
            next(parser);
            item = make_with(parser, PD_JINJA_PRINT, expression_or_tuple(parser), NULL);
            expect_end(parser, PD_JINJA_T_OUTPUT_END);
        } else {
            next(parser); /* {% */
            if (at_any(parser, ends))
                break;
            item = statement(parser);
        }
        if (!item)
            return NULL;
        *last = item;
        last = &item->next;
    }
    parser->depth--;
    return first;
}

int pd_jinja_parse(const char *source, size_t length, struct pd_arena *arena,
                   struct pd_jinja_node **body, struct pd_error *error)
{
    struct parser parser = {.arena = arena, .error = error};

    pd_jinja_lexer_init(&parser.lexer, source, length, arena);
    next(&parser);
    *body = body_until(&parser, NULL);
    return parser.failed ? error ? error->status : PD_INVALID : PD_OK;
}
