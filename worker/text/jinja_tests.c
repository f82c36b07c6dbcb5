/* Tests (`x is defined`): the table that the parser checks names against, and what they do. */

#include <string.h>

#include "worker/text/jinja_text.h"

typedef struct pd_jinja_render render_t;
typedef struct pd_jinja_value value_t;
typedef const struct pd_jinja_arguments arguments_t;

enum test {
    T_BOOLEAN,
    T_CALLABLE,
    T_DEFINED,
    T_DIVISIBLEBY,
    T_EQ,
    T_EQUALTO,
    T_EVEN,
    T_FALSE,
    T_FLOAT,
    T_GE,
    T_GREATERTHAN,
    T_GT,
    T_IN,
    T_INTEGER,
    T_ITERABLE,
    T_LE,
    T_LESSTHAN,
    T_LOWER,
    T_LT,
    T_MAPPING,
    T_NE,
    T_NONE,
    T_NUMBER,
    T_ODD,
    T_SAMEAS,
    T_SEQUENCE,
    T_STRING,
    T_TRUE,
    T_UNDEFINED,
    T_UPPER,
};

static const char *const test_names[] = {
    "boolean", "callable", "defined",  "divisibleby", "eq",          "equalto",
    "even",    "false",    "float",    "ge",          "greaterthan", "gt",
    "in",      "integer",  "iterable", "le",          "lessthan",    "lower",
    "lt",      "mapping",  "ne",       "none",        "number",      "odd",
    "sameas",  "sequence", "string",   "true",        "undefined",   "upper",
};

int pd_jinja_number_in(const char *const *names, size_t count, struct pd_string name)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(names[i]) == name.length && memcmp(names[i], name.bytes, name.length) == 0)
            return (int)i;
    return -1;
}

int pd_jinja_test_number(struct pd_string name)
{
    return pd_jinja_number_in(test_names, sizeof(test_names) / sizeof(*test_names), name);
}

static bool divisible(render_t *render, const value_t *input, int64_t by, bool *result)
{
    if (input->kind != PD_JINJA_INT || by == 0)
        return pd_jinja_fail(render, PD_INVALID, "a test of divisibility needs integers");
    *result = by == -1 || input->integer % by == 0;
    return true;
}

static bool ordered(render_t *render, int number, const value_t *a, const value_t *b, bool *result)
{
    int order;

    if (!pd_jinja_compare(a, b, &order))
        return pd_jinja_fail(render, PD_INVALID, "'%s' and '%s' cannot be compared",
                             pd_jinja_kind_name(a->kind), pd_jinja_kind_name(b->kind));
    *result = number == T_GE                              ? order >= 0
              : number == T_LE                            ? order <= 0
              : number == T_GT || number == T_GREATERTHAN ? order > 0
                                                          : order < 0;
    return true;
}

static bool has_case(render_t *render, const value_t *input, enum pd_jinja_case mode, bool *result)
{
    value_t changed;

    *result = false;
    if (input->kind != PD_JINJA_STRING)
        return true;
    if (!pd_jinja_change_case(render, &input->string, mode, true, &changed))
        return false;
    *result = pd_jinja_equal(input, &changed);
    return true;
}

static bool test_with_operand(render_t *render, int number, const value_t *input,
                              const value_t *operand, bool *result)
{
    if (!operand)
        return pd_jinja_fail(render, PD_INVALID, "the test '%s' needs an argument",
                             test_names[number]);
    switch (number) {
    case T_DIVISIBLEBY:
        return divisible(render, input, operand->kind == PD_JINJA_INT ? operand->integer : 0,
                         result);
    case T_IN:
        return pd_jinja_contains(render, input, operand, result);
    case T_EQ:
    case T_EQUALTO:
    case T_SAMEAS:
        *result =
            pd_jinja_equal(input, operand) && (number != T_SAMEAS || input->kind == operand->kind);
        return true;
    case T_NE:
        *result = !pd_jinja_equal(input, operand);
        return true;
    default:
        return ordered(render, number, input, operand, result);
    }
}

bool pd_jinja_test(render_t *render, int number, const value_t *input, arguments_t *arguments,
                   bool *result)
{
    enum pd_jinja_kind kind = input->kind;

    switch (number) {
    case T_BOOLEAN:
        *result = kind == PD_JINJA_BOOL;
        return true;
    case T_CALLABLE:
        *result = kind == PD_JINJA_MACRO || kind == PD_JINJA_FUNCTION;
        return true;
    case T_DEFINED:
        *result = kind != PD_JINJA_UNDEFINED;
        return true;
    case T_UNDEFINED:
        *result = kind == PD_JINJA_UNDEFINED;
        return true;
    case T_NONE:
        *result = kind == PD_JINJA_NONE;
        return true;
    case T_TRUE:
    case T_FALSE:
        *result = kind == PD_JINJA_BOOL && input->boolean == (number == T_TRUE);
        return true;
    case T_EVEN:
        return divisible(render, input, 2, result);
    case T_ODD:
        if (!divisible(render, input, 2, result))
            return false;
        *result = !*result;
        return true;
    case T_FLOAT:
        *result = kind == PD_JINJA_FLOAT;
        return true;
    case T_INTEGER:
        *result = kind == PD_JINJA_INT;
        return true;
    case T_NUMBER:
        *result = kind == PD_JINJA_INT || kind == PD_JINJA_FLOAT || kind == PD_JINJA_BOOL;
        return true;
    case T_ITERABLE:
    case T_SEQUENCE: /* Undefined is both in Jinja: it is an empty iterable with a length */
        *result = kind == PD_JINJA_STRING || kind == PD_JINJA_LIST || kind == PD_JINJA_DICT ||
                  kind == PD_JINJA_UNDEFINED;
        return true;
    case T_MAPPING:
        *result = kind == PD_JINJA_DICT;
        return true;
    case T_STRING:
        *result = kind == PD_JINJA_STRING;
        return true;
    case T_LOWER:
        return has_case(render, input, PD_JINJA_LOWER, result);
    case T_UPPER:
        return has_case(render, input, PD_JINJA_UPPER, result);
    default:
        return test_with_operand(render, number, input, pd_jinja_argument(arguments, 0, NULL),
                                 result);
    }
}
