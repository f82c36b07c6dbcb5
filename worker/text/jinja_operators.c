/* Arithmetic and comparison as Python does them, on 64-bit integers, doubles, marked strings and
 * lists. */

#include <math.h>
#include <string.h>

#include "worker/text/jinja_text.h"

typedef struct pd_jinja_render render_t;
typedef struct pd_jinja_value value_t;

bool pd_jinja_type_error(render_t *render, const char *what, const value_t *a, const value_t *b)
{
    const value_t *missing = a->kind == PD_JINJA_UNDEFINED ? a : b;

    if (missing->kind == PD_JINJA_UNDEFINED)
        return pd_jinja_fail(render, PD_INVALID, "'%.*s' is undefined",
                             (int)(missing->missing.length < 100 ? missing->missing.length : 100),
                             missing->missing.bytes);
    return pd_jinja_fail(render, PD_INVALID, "unsupported operand types for %s: '%s' and '%s'",
                         what, pd_jinja_kind_name(a->kind), pd_jinja_kind_name(b->kind));
}

static bool concatenate(render_t *render, const value_t *a, const value_t *b, value_t *out)
{
    struct pd_jinja_output built;
    bool ok;

    pd_jinja_output_init(&built, render->limit);
    pd_jinja_print(&built, a, false);
    pd_jinja_print(&built, b, false);
    ok = pd_jinja_spend(render, built.length / 256 + 1) &&
         (pd_jinja_output_value(&built, &render->arena, out) || pd_jinja_exhausted(render));
    pd_jinja_output_free(&built);
    return ok;
}

static bool add_lists(render_t *render, const value_t *a, const value_t *b, value_t *out)
{
    size_t count = a->list->count + b->list->count;

    if (!pd_jinja_spend(render, count + 1))
        return false;
    if (!pd_jinja_list_new(&render->arena, count, out))
        return pd_jinja_exhausted(render);
    for (size_t i = 0; i < count; i++)
        out->list->items[i] =
            i < a->list->count ? a->list->items[i] : b->list->items[i - a->list->count];
    out->list->count = count;
    out->list->tuple = a->list->tuple;
    return true;
}

static bool is_integer(const value_t *value)
{
    return value->kind == PD_JINJA_INT || value->kind == PD_JINJA_BOOL;
}

static int64_t integer_of(const value_t *value)
{
    return value->kind == PD_JINJA_BOOL ? value->boolean : value->integer;
}

static double real_of(const value_t *value)
{
    return value->kind == PD_JINJA_FLOAT ? value->real : (double)integer_of(value);
}

static bool integer_power(int64_t base, int64_t exponent, int64_t *result)
{
    *result = 1;
    if (exponent > 64 && base != 0 && base != 1 && base != -1)
        return false;
    for (int64_t i = 0; i < exponent % 128; i++)
        if (__builtin_mul_overflow(*result, base, result))
            return false;
    return true;
}

static bool integer_arithmetic(render_t *render, int operator, int64_t a, int64_t b, value_t *out)
{
    int64_t result = 0;
    bool overflow = false;

    switch (operator) {
    case PD_JINJA_ADD:
        overflow = __builtin_add_overflow(a, b, &result);
        break;
    case PD_JINJA_SUBTRACT:
        overflow = __builtin_sub_overflow(a, b, &result);
        break;
    case PD_JINJA_MULTIPLY:
        overflow = __builtin_mul_overflow(a, b, &result);
        break;
    case PD_JINJA_POWER:
        overflow = !integer_power(a, b, &result);
        break;
    default: /* FLOOR_DIVIDE, MODULO: Python rounds down */
        if (b == 0)
            return pd_jinja_fail(render, PD_INVALID, "integer division or modulo by zero");
        overflow = a == INT64_MIN && b == -1;
        if (!overflow) {
            int64_t quotient = a / b - ((a % b != 0) && ((a < 0) != (b < 0)));

            result = operator== PD_JINJA_FLOOR_DIVIDE ? quotient : a - quotient * b;
        }
        break;
    }
    if (overflow)
        return pd_jinja_fail(render, PD_INVALID, "an integer of the chat template is too large");
    *out = pd_jinja_int(result);
    return true;
}

static bool arithmetic(render_t *render, int operator, const value_t * a, const value_t *b,
                       value_t *out)
{
    bool integers = is_integer(a) && is_integer(b);
    double x, y;

    if (integers && operator!= PD_JINJA_DIVIDE && !(operator== PD_JINJA_POWER && integer_of(b) < 0))
        return integer_arithmetic(render, operator, integer_of(a), integer_of(b), out);
    x = real_of(a);
    y = real_of(b);
    if (y == 0 && (operator== PD_JINJA_DIVIDE || operator== PD_JINJA_FLOOR_DIVIDE || operator==
                   PD_JINJA_MODULO))
        return pd_jinja_fail(render, PD_INVALID, "division by zero");
    switch (operator) {
    case PD_JINJA_ADD:
        x += y;
        break;
    case PD_JINJA_SUBTRACT:
        x -= y;
        break;
    case PD_JINJA_MULTIPLY:
        x *= y;
        break;
    case PD_JINJA_DIVIDE:
        x /= y;
        break;
    case PD_JINJA_FLOOR_DIVIDE:
        x = floor(x / y);
        break;
    case PD_JINJA_POWER:
        x = pow(x, y);
        break;
    default:
        x = x - floor(x / y) * y;
        break;
    }
    *out = pd_jinja_float(x);
    return true;
}

/* "ab" * 3 */
static bool repeat(render_t *render, const value_t *text, int64_t times, value_t *out)
{
    struct pd_jinja_output built;
    bool ok;

    pd_jinja_output_init(&built, render->limit);
    for (int64_t i = 0; i < times && !built.full && text->string.length; i++)
        pd_jinja_output_string(&built, &text->string);
    ok = pd_jinja_spend(render, built.length / 64 + 1) &&
         (pd_jinja_output_value(&built, &render->arena, out) || pd_jinja_exhausted(render));
    pd_jinja_output_free(&built);
    return ok;
}

static bool is_number(const value_t *value)
{
    return is_integer(value) || value->kind == PD_JINJA_FLOAT;
}

bool pd_jinja_compute(render_t *render, int operator, const value_t * a, const value_t *b,
                      value_t *out)
{
    static const char *const symbols[] = {"+", "-", "*", "/", "//", "%", "**"};

    if (operator== PD_JINJA_CONCATENATE)
        return concatenate(render, a, b, out);
    if (is_number(a) && is_number(b))
        return arithmetic(render, operator, a, b, out);
    if (operator== PD_JINJA_ADD && a->kind == PD_JINJA_STRING && b->kind == PD_JINJA_STRING)
        return concatenate(render, a, b, out);
    if (operator== PD_JINJA_ADD && a->kind == PD_JINJA_LIST && b->kind == PD_JINJA_LIST)
        return add_lists(render, a, b, out);
    if (operator== PD_JINJA_MULTIPLY && a->kind == PD_JINJA_STRING && is_integer(b))
        return repeat(render, a, integer_of(b), out);
    if (operator== PD_JINJA_MULTIPLY && b->kind == PD_JINJA_STRING && is_integer(a))
        return repeat(render, b, integer_of(a), out);
    return pd_jinja_type_error(render, symbols[operator], a, b);
}

bool pd_jinja_relate(render_t *render, int operator, const value_t * a, const value_t *b,
                     bool *result)
{
    static const char *const symbols[] = {"<", "<=", ">", ">="};
    int order = 0;

    switch (operator) {
    case PD_JINJA_EQUAL:
        *result = pd_jinja_equal(a, b);
        return true;
    case PD_JINJA_NOT_EQUAL:
        *result = !pd_jinja_equal(a, b);
        return true;
    case PD_JINJA_IN:
        return pd_jinja_contains(render, a, b, result);
    case PD_JINJA_NOT_IN:
        if (!pd_jinja_contains(render, a, b, result))
            return false;
        *result = !*result;
        return true;
    default:
        break;
    }
    if (!pd_jinja_compare(a, b, &order))
        return pd_jinja_type_error(render, symbols[operator - PD_JINJA_LESS], a, b);
    *result = operator== PD_JINJA_LESS       ? order < 0 :
              operator== PD_JINJA_LESS_EQUAL ? order <= 0
              :
              operator== PD_JINJA_GREATER ? order > 0
                                          : order >= 0;
    return true;
}
