#include "worker/text/jinja_expression.h"

#include <string.h>

static struct pd_jinja_node *unary(struct pd_jinja_parser *parser, bool with_filters);

struct pd_jinja_node *pd_jinja_constant(struct pd_jinja_parser *parser, struct pd_jinja_value value)
{
    struct pd_jinja_node *result = pd_jinja_node_new(parser, PD_JINJA_CONSTANT);

    if (result)
        result->constant = value;
    return result;
}

/* Items up to `close`, which is consumed. Keywords are allowed where `calls`. */
static struct pd_jinja_node *arguments(struct pd_jinja_parser *parser, const char *close,
                                       bool calls)
{
    struct pd_jinja_node *first = NULL, **last = &first;

    while (!parser->failed && !pd_jinja_at_operator(parser, close)) {
        struct pd_string keyword = {"", 0};
        struct pd_jinja_node *item;

        if (pd_jinja_at_operator(parser, "*") || pd_jinja_at_operator(parser, "**"))
            return pd_jinja_refuse(parser, PD_UNSUPPORTED,
                                   "arguments given by * or ** are not supported");
        item = pd_jinja_expression(parser);
        if (calls && item && item->kind == PD_JINJA_NAME && pd_jinja_accept_operator(parser, "=")) {
            keyword = item->text;
            item = pd_jinja_expression(parser);
        }
        if (!item)
            return NULL;
        item->keyword = keyword;
        *last = item;
        last = &item->next;
        if (!pd_jinja_accept_operator(parser, ","))
            break;
    }
    pd_jinja_expect_operator(parser, close);
    return first;
}

static struct pd_jinja_node *list_of(struct pd_jinja_parser *parser, enum pd_jinja_node_kind kind,
                                     struct pd_jinja_node *first)
{
    struct pd_jinja_node *result = pd_jinja_node_new(parser, kind);

    if (result)
        result->arguments = first;
    return result;
}

static struct pd_jinja_node *dict_of(struct pd_jinja_parser *parser)
{
    struct pd_jinja_node *first = NULL, **last = &first;

    while (!parser->failed && !pd_jinja_at_operator(parser, "}")) {
        struct pd_jinja_node *key = pd_jinja_expression(parser), *value;

        pd_jinja_expect_operator(parser, ":");
        value = pd_jinja_expression(parser);
        if (!key || !value)
            return NULL;
        *last = key;
        key->next = value;
        last = &value->next;
        if (!pd_jinja_accept_operator(parser, ","))
            break;
    }
    pd_jinja_expect_operator(parser, "}");
    return list_of(parser, PD_JINJA_DICT_OF, first);
}

static struct pd_jinja_node *parenthesis(struct pd_jinja_parser *parser)
{
    struct pd_jinja_node *first, *more;

    if (pd_jinja_accept_operator(parser, ")"))
        return list_of(parser, PD_JINJA_TUPLE_OF, NULL);
    first = pd_jinja_expression(parser);
    if (!pd_jinja_accept_operator(parser, ",")) {
        pd_jinja_expect_operator(parser, ")");
        return first;
    }
    more = arguments(parser, ")", false);
    if (!first)
        return NULL;
    first->next = more;
    return list_of(parser, PD_JINJA_TUPLE_OF, first);
}

static struct pd_jinja_node *name_or_keyword(struct pd_jinja_parser *parser)
{
    struct pd_string name = pd_jinja_expect_name(parser);
    struct pd_jinja_node *result;

    if (pd_jinja_text_is(name, "true") || pd_jinja_text_is(name, "True"))
        return pd_jinja_constant(parser, pd_jinja_bool(true));
    if (pd_jinja_text_is(name, "false") || pd_jinja_text_is(name, "False"))
        return pd_jinja_constant(parser, pd_jinja_bool(false));
    if (pd_jinja_text_is(name, "none") || pd_jinja_text_is(name, "None"))
        return pd_jinja_constant(parser, pd_jinja_none());
    result = pd_jinja_node_new(parser, PD_JINJA_NAME);
    if (result)
        result->text = name;
    return result;
}

static struct pd_jinja_node *string_constant(struct pd_jinja_parser *parser)
{
    struct pd_string text = parser->token.text;

    pd_jinja_advance(parser);
    while (parser->token.kind == PD_JINJA_T_STRING) { /* "a" "b" is one string */
        char *both = pd_arena_take(parser->arena, text.length + parser->token.text.length + 1);

        if (!both)
            return pd_jinja_refuse(parser, PD_NO_MEMORY, "the template is too large");
        memcpy(both, text.bytes, text.length);
        memcpy(both + text.length, parser->token.text.bytes, parser->token.text.length);
        text = (struct pd_string){both, text.length + parser->token.text.length};
        pd_jinja_advance(parser);
    }
    return pd_jinja_constant(parser, pd_jinja_text(text.bytes, text.length, PD_JINJA_TRUSTED));
}

static struct pd_jinja_node *primary(struct pd_jinja_parser *parser)
{
    struct pd_jinja_token token = parser->token;

    switch (token.kind) {
    case PD_JINJA_T_NAME:
        return name_or_keyword(parser);
    case PD_JINJA_T_STRING:
        return string_constant(parser);
    case PD_JINJA_T_INT:
        pd_jinja_advance(parser);
        return pd_jinja_constant(parser, pd_jinja_int(token.integer));
    case PD_JINJA_T_FLOAT:
        pd_jinja_advance(parser);
        return pd_jinja_constant(parser, pd_jinja_float(token.real));
    default:
        break;
    }
    if (pd_jinja_accept_operator(parser, "("))
        return parenthesis(parser);
    if (pd_jinja_accept_operator(parser, "["))
        return list_of(parser, PD_JINJA_LIST_OF, arguments(parser, "]", false));
    if (pd_jinja_accept_operator(parser, "{"))
        return dict_of(parser);
    return pd_jinja_refuse(parser, PD_INVALID, "expected an expression");
}

static struct pd_jinja_node *subscript(struct pd_jinja_parser *parser, struct pd_jinja_node *object)
{
    struct pd_jinja_node *result = pd_jinja_node_with(parser, PD_JINJA_INDEX, object, NULL);

    if (!result)
        return NULL;
    if (!pd_jinja_at_operator(parser, ":"))
        result->b = pd_jinja_expression(parser);
    if (pd_jinja_accept_operator(parser, ":")) {
        result->kind = PD_JINJA_SLICE;
        if (!pd_jinja_at_operator(parser, ":") && !pd_jinja_at_operator(parser, "]"))
            result->c = pd_jinja_expression(parser);
        if (pd_jinja_accept_operator(parser, ":") && !pd_jinja_at_operator(parser, "]"))
            result->d = pd_jinja_expression(parser);
    }
    pd_jinja_expect_operator(parser, "]");
    return result;
}

static struct pd_jinja_node *call(struct pd_jinja_parser *parser, struct pd_jinja_node *callee)
{
    struct pd_jinja_node *result = pd_jinja_node_with(parser, PD_JINJA_CALL, callee, NULL);

    if (callee && callee->kind == PD_JINJA_ATTRIBUTE && !pd_jinja_method_known(callee->text))
        return pd_jinja_refuse(parser, PD_UNSUPPORTED, "the method '%.*s' is not supported",
                               (int)(callee->text.length < 64 ? callee->text.length : 64),
                               callee->text.bytes);
    if (result)
        result->arguments = arguments(parser, ")", true);
    return result;
}

static struct pd_jinja_node *postfix(struct pd_jinja_parser *parser, struct pd_jinja_node *object)
{
    while (!parser->failed) {
        if (pd_jinja_accept_operator(parser, ".")) {
            struct pd_jinja_node *result =
                pd_jinja_node_with(parser, PD_JINJA_ATTRIBUTE, object, NULL);

            if (result && parser->token.kind == PD_JINJA_T_INT) { /* x.0 is x[0] */
                result->kind = PD_JINJA_INDEX;
                result->b = pd_jinja_constant(parser, pd_jinja_int(parser->token.integer));
                pd_jinja_advance(parser);
            } else if (result) {
                result->text = pd_jinja_expect_name(parser);
            }
            object = result;
        } else if (pd_jinja_accept_operator(parser, "[")) {
            object = subscript(parser, object);
        } else if (pd_jinja_accept_operator(parser, "(")) {
            object = call(parser, object);
        } else {
            break;
        }
    }
    return object;
}

struct pd_jinja_node *pd_jinja_filter_of(struct pd_jinja_parser *parser,
                                         struct pd_jinja_node *object)
{
    struct pd_jinja_node *result = pd_jinja_node_with(parser, PD_JINJA_FILTER, object, NULL);
    struct pd_string name = parser->token.text;

    if (!result)
        return NULL;
    if (parser->token.kind == PD_JINJA_T_NAME) {
        result->number = pd_jinja_filter_number(name);
        if (result->number < 0)
            return pd_jinja_refuse(parser, PD_UNSUPPORTED, "the filter '%.*s' is not supported",
                                   (int)(name.length < 64 ? name.length : 64), name.bytes);
    }
    result->text = pd_jinja_expect_name(parser);
    if (pd_jinja_accept_operator(parser, "("))
        result->arguments = arguments(parser, ")", true);
    return result;
}

static bool starts_test_argument(const struct pd_jinja_parser *parser)
{
    if (parser->token.kind == PD_JINJA_T_NAME)
        return !pd_jinja_at_name(parser, "else") && !pd_jinja_at_name(parser, "or") &&
               !pd_jinja_at_name(parser, "and") && !pd_jinja_at_name(parser, "is") &&
               !pd_jinja_at_name(parser, "if") && !pd_jinja_at_name(parser, "in") &&
               !pd_jinja_at_name(parser, "not");
    return parser->token.kind == PD_JINJA_T_STRING || parser->token.kind == PD_JINJA_T_INT ||
           parser->token.kind == PD_JINJA_T_FLOAT || pd_jinja_at_operator(parser, "[") ||
           pd_jinja_at_operator(parser, "{");
}

static struct pd_jinja_node *test(struct pd_jinja_parser *parser, struct pd_jinja_node *object)
{
    struct pd_jinja_node *result = pd_jinja_node_with(parser, PD_JINJA_TEST, object, NULL);
    struct pd_string name;

    if (!result)
        return NULL;
    result->negated = pd_jinja_accept_name(parser, "not");
    name = parser->token.text;
    if (parser->token.kind == PD_JINJA_T_NAME) {
        result->number = pd_jinja_test_number(name);
        if (result->number < 0)
            return pd_jinja_refuse(parser, PD_UNSUPPORTED, "the test '%.*s' is not supported",
                                   (int)(name.length < 64 ? name.length : 64), name.bytes);
    }
    result->text = pd_jinja_expect_name(parser);
    if (pd_jinja_accept_operator(parser, "("))
        result->arguments = arguments(parser, ")", false);
    else if (starts_test_argument(parser))
        result->arguments = postfix(parser, primary(parser));
    return result;
}

static struct pd_jinja_node *filters_and_tests(struct pd_jinja_parser *parser,
                                               struct pd_jinja_node *object)
{
    while (!parser->failed) {
        if (pd_jinja_accept_operator(parser, "|"))
            object = pd_jinja_filter_of(parser, object);
        else if (pd_jinja_accept_name(parser, "is"))
            object = test(parser, object);
        else if (pd_jinja_accept_operator(parser, "("))
            object = call(parser, object);
        else
            break;
    }
    return object;
}

static struct pd_jinja_node *unary(struct pd_jinja_parser *parser, bool with_filters)
{
    struct pd_jinja_node *result;

    if (++parser->depth > PD_JINJA_DEPTH_MAX)
        return pd_jinja_refuse(parser, PD_INVALID, "expressions are nested too deeply");
    if (pd_jinja_accept_operator(parser, "-"))
        result = pd_jinja_node_with(parser, PD_JINJA_NEGATE, unary(parser, false), NULL);
    else if (pd_jinja_accept_operator(parser, "+"))
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

static struct pd_jinja_node *binary(struct pd_jinja_parser *parser, size_t depth)
{
    struct pd_jinja_node *left;

    if (depth == sizeof(levels) / sizeof(*levels))
        return unary(parser, true);
    left = binary(parser, depth + 1);
    for (int i = 0; !parser->failed && levels[depth].text[i];) {
        if (!pd_jinja_accept_operator(parser, levels[depth].text[i])) {
            i++;
            continue;
        }
        left = pd_jinja_node_with(parser, PD_JINJA_BINARY, left, binary(parser, depth + 1));
        if (left)
            left->number = (int)levels[depth].number[i];
        i = 0;
    }
    return left;
}

static int comparison_operator(struct pd_jinja_parser *parser)
{
    static const struct {
        const char *text;
        enum pd_jinja_operator number;
    } operators[] = {{"==", PD_JINJA_EQUAL},      {"!=", PD_JINJA_NOT_EQUAL},
                     {"<=", PD_JINJA_LESS_EQUAL}, {">=", PD_JINJA_GREATER_EQUAL},
                     {"<", PD_JINJA_LESS},        {">", PD_JINJA_GREATER}};

    for (size_t i = 0; i < sizeof(operators) / sizeof(*operators); i++)
        if (pd_jinja_accept_operator(parser, operators[i].text))
            return (int)operators[i].number;
    if (pd_jinja_accept_name(parser, "in"))
        return PD_JINJA_IN;
    if (pd_jinja_accept_name(parser, "not")) { /* in this place only `not in` can follow */
        if (!pd_jinja_accept_name(parser, "in"))
            pd_jinja_refuse(parser, PD_INVALID, "expected 'in' after 'not'");
        return PD_JINJA_NOT_IN;
    }
    return -1;
}

/* a < b < c is (a < b) and (b < c); expressions have no effects, so b may be looked at twice. */
static struct pd_jinja_node *comparison(struct pd_jinja_parser *parser)
{
    struct pd_jinja_node *left = binary(parser, 0), *chain = NULL;
    int number;

    while (!parser->failed && (number = comparison_operator(parser)) >= 0) {
        struct pd_jinja_node *right = binary(parser, 0);
        struct pd_jinja_node *step = pd_jinja_node_with(parser, PD_JINJA_BINARY, left, right);

        if (!step)
            return NULL;
        step->number = number;
        chain = chain ? pd_jinja_node_with(parser, PD_JINJA_AND, chain, step) : step;
        left = right;
    }
    return chain ? chain : left;
}

static struct pd_jinja_node *negation(struct pd_jinja_parser *parser)
{
    struct pd_jinja_node *result;

    if (!pd_jinja_accept_name(parser, "not"))
        return comparison(parser);
    if (++parser->depth > PD_JINJA_DEPTH_MAX)
        return pd_jinja_refuse(parser, PD_INVALID, "expressions are nested too deeply");
    result = pd_jinja_node_with(parser, PD_JINJA_NOT, negation(parser), NULL);
    parser->depth--;
    return result;
}

static struct pd_jinja_node *conjunction(struct pd_jinja_parser *parser)
{
    struct pd_jinja_node *left = negation(parser);

    while (!parser->failed && pd_jinja_accept_name(parser, "and"))
        left = pd_jinja_node_with(parser, PD_JINJA_AND, left, negation(parser));
    return left;
}

struct pd_jinja_node *pd_jinja_condition(struct pd_jinja_parser *parser)
{
    struct pd_jinja_node *left = conjunction(parser);

    while (!parser->failed && pd_jinja_accept_name(parser, "or"))
        left = pd_jinja_node_with(parser, PD_JINJA_OR, left, conjunction(parser));
    return left;
}

struct pd_jinja_node *pd_jinja_expression(struct pd_jinja_parser *parser)
{
    struct pd_jinja_node *value;

    if (++parser->depth > PD_JINJA_DEPTH_MAX)
        return pd_jinja_refuse(parser, PD_INVALID, "expressions are nested too deeply");
    value = pd_jinja_condition(parser);
    while (!parser->failed && pd_jinja_accept_name(parser, "if")) {
        value = pd_jinja_node_with(parser, PD_JINJA_TERNARY, value, pd_jinja_condition(parser));
        if (value && pd_jinja_accept_name(parser, "else"))
            value->c = pd_jinja_expression(parser);
    }
    parser->depth--;
    return value;
}

/* An expression, or several with commas between: a tuple. */
struct pd_jinja_node *pd_jinja_expression_or_tuple(struct pd_jinja_parser *parser)
{
    struct pd_jinja_node *first = pd_jinja_expression(parser), **last;

    if (!first || !pd_jinja_at_operator(parser, ","))
        return first;
    last = &first->next;
    while (!parser->failed && pd_jinja_accept_operator(parser, ",")) {
        if (parser->token.kind == PD_JINJA_T_OUTPUT_END ||
            parser->token.kind == PD_JINJA_T_BLOCK_END)
            break;
        *last = pd_jinja_expression(parser);
        if (!*last)
            return NULL;
        last = &(*last)->next;
    }
    return list_of(parser, PD_JINJA_TUPLE_OF, first);
}
