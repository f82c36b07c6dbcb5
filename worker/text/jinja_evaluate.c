#include "worker/text/jinja_evaluate.h"

#include <stdio.h>

#include "worker/text/jinja_scope.h"
#include "worker/text/jinja_text.h"

typedef struct pd_jinja_render render_t;
typedef struct pd_jinja_node node;
typedef struct pd_jinja_value value_t;

/* ---- calls -------------------------------------------------------------------------------------- */

bool pd_jinja_evaluate_arguments(render_t *render, const node *first,
                                 struct pd_jinja_arguments *arguments)
{
    arguments->count = 0;
    for (; first; first = first->next) {
        if (arguments->count == PD_JINJA_ARGUMENTS_MAX)
            return pd_jinja_fail(render, PD_INVALID, "a call has more than %d arguments",
                                 PD_JINJA_ARGUMENTS_MAX);
        if (!pd_jinja_evaluate(render, first, &arguments->values[arguments->count]))
            return false;
        arguments->keywords[arguments->count++] = first->keyword;
    }
    return true;
}

static bool bind_parameters(render_t *render, const node *macro,
                            const struct pd_jinja_arguments *arguments)
{
    int index = 0;

    for (const node *name = macro->names; name; name = name->next, index++) {
        char keyword[128];
        const value_t *given;
        value_t value;

        snprintf(keyword, sizeof(keyword), "%.*s", (int)name->text.length, name->text.bytes);
        given = pd_jinja_argument(arguments, index, keyword);
        if (given)
            value = *given;
        else if (!name->a)
            value = pd_jinja_undefined(name->text);
        else if (!pd_jinja_evaluate(render, name->a, &value))
            return false;
        if (!pd_jinja_define(render, render->scope, name->text, value))
            return false;
    }
    return true;
}

static bool call_macro(render_t *render, const node *macro,
                       const struct pd_jinja_arguments *arguments, value_t *out)
{
    struct pd_jinja_scope *caller = render->scope;
    bool ok;

    render->scope = render->global;
    ok = pd_jinja_scope_push(render) && bind_parameters(render, macro, arguments) &&
         pd_jinja_capture(render, macro->body, out);
    render->scope = caller;
    return ok;
}

static bool call(render_t *render, const node *expression, value_t *out)
{
    struct pd_jinja_arguments arguments;
    const node *callee = expression->a;
    value_t target;

    if (callee->kind == PD_JINJA_ATTRIBUTE && pd_jinja_method_known(callee->text)) {
        return pd_jinja_evaluate(render, callee->a, &target) &&
               pd_jinja_evaluate_arguments(render, expression->arguments, &arguments) &&
               pd_jinja_method(render, &target, callee->text, &arguments, out);
    }
    if (!pd_jinja_evaluate(render, callee, &target) ||
        !pd_jinja_evaluate_arguments(render, expression->arguments, &arguments))
        return false;
    if (target.kind == PD_JINJA_MACRO)
        return call_macro(render, target.macro, &arguments, out);
    if (target.kind == PD_JINJA_FUNCTION)
        return pd_jinja_call_function(render, target.function, &arguments, out);
    if (target.kind == PD_JINJA_UNDEFINED)
        return pd_jinja_type_error(render, "call", &target, &target);
    return pd_jinja_fail(render, PD_INVALID, "'%s' object is not callable",
                         pd_jinja_kind_name(target.kind));
}

/* ---- expressions -------------------------------------------------------------------------------- */

static bool binary(render_t *render, const node *expression, value_t *out)
{
    value_t a, b;
    bool result;

    if (!pd_jinja_evaluate(render, expression->a, &a) ||
        !pd_jinja_evaluate(render, expression->b, &b))
        return false;
    if (expression->number <= PD_JINJA_CONCATENATE)
        return pd_jinja_compute(render, expression->number, &a, &b, out);
    if (!pd_jinja_relate(render, expression->number, &a, &b, &result))
        return false;
    *out = pd_jinja_bool(result);
    return true;
}

static bool slice(render_t *render, const node *expression, value_t *out)
{
    value_t object, bound[3];
    const node *parts[3] = {expression->b, expression->c, expression->d};
    int64_t first, stride;
    size_t length, count;

    if (!pd_jinja_evaluate(render, expression->a, &object))
        return false;
    for (int i = 0; i < 3; i++) {
        bound[i] = pd_jinja_none();
        if (parts[i] && !pd_jinja_evaluate(render, parts[i], &bound[i]))
            return false;
    }
    if (object.kind != PD_JINJA_LIST && object.kind != PD_JINJA_STRING)
        return pd_jinja_type_error(render, "slice", &object, &object);
    length =
        object.kind == PD_JINJA_LIST ? object.list->count : pd_jinja_characters(&object.string);
    if (!pd_jinja_slice_range(render, &bound[0], &bound[1], &bound[2], length, &first, &stride,
                              &count))
        return false;
    if (object.kind == PD_JINJA_STRING)
        return pd_jinja_slice_string(render, &object.string, first, stride, count, out);
    if (!pd_jinja_list_new(&render->arena, count, out))
        return pd_jinja_exhausted(render);
    for (size_t i = 0; i < count; i++, first += stride)
        out->list->items[i] = object.list->items[first];
    out->list->count = count;
    out->list->tuple = object.list->tuple;
    return true;
}

static bool collection(render_t *render, const node *expression, value_t *out)
{
    bool dict = expression->kind == PD_JINJA_DICT_OF;

    if (!(dict ? pd_jinja_dict_new(&render->arena, 0, out)
               : pd_jinja_list_new(&render->arena, 0, out)))
        return pd_jinja_exhausted(render);
    for (const node *item = expression->arguments; item; item = item->next) {
        value_t first, second;

        if (!pd_jinja_evaluate(render, item, &first))
            return false;
        if (dict) {
            item = item->next;
            if (!pd_jinja_evaluate(render, item, &second))
                return false;
            if (!pd_jinja_dict_set(&render->arena, out->dict, first, second))
                return pd_jinja_exhausted(render);
        } else if (!pd_jinja_list_push(&render->arena, out->list, first)) {
            return pd_jinja_exhausted(render);
        }
    }
    if (!dict)
        out->list->tuple = expression->kind == PD_JINJA_TUPLE_OF;
    return true;
}

static bool filter(render_t *render, const node *expression, value_t *out)
{
    struct pd_jinja_arguments arguments;
    value_t input;

    return pd_jinja_evaluate(render, expression->a, &input) &&
           pd_jinja_evaluate_arguments(render, expression->arguments, &arguments) &&
           pd_jinja_filter(render, expression->number, &input, &arguments, out);
}

static bool test(render_t *render, const node *expression, value_t *out)
{
    struct pd_jinja_arguments arguments;
    value_t input;
    bool result;

    if (!pd_jinja_evaluate(render, expression->a, &input) ||
        !pd_jinja_evaluate_arguments(render, expression->arguments, &arguments) ||
        !pd_jinja_test(render, expression->number, &input, &arguments, &result))
        return false;
    *out = pd_jinja_bool(result != expression->negated);
    return true;
}

static bool negate(render_t *render, const node *expression, value_t *out)
{
    value_t a, zero = pd_jinja_int(0);

    if (!pd_jinja_evaluate(render, expression->a, &a))
        return false;
    if (a.kind == PD_JINJA_STRING || a.kind == PD_JINJA_LIST)
        return pd_jinja_type_error(render, "unary -", &a, &a);
    return pd_jinja_compute(render, PD_JINJA_SUBTRACT, &zero, &a, out);
}

static bool look_inside(render_t *render, const node *expression, value_t *out)
{
    value_t object, key;

    if (!pd_jinja_evaluate(render, expression->a, &object))
        return false;
    if (expression->kind == PD_JINJA_ATTRIBUTE)
        key = pd_jinja_text(expression->text.bytes, expression->text.length, PD_JINJA_TRUSTED);
    else if (!pd_jinja_evaluate(render, expression->b, &key))
        return false;
    return pd_jinja_lookup(render, &object, &key, out);
}

static bool choose(render_t *render, const node *expression, value_t *out)
{
    value_t condition;

    if (expression->kind != PD_JINJA_TERNARY) { /* and, or: the operand that decides */
        if (!pd_jinja_evaluate(render, expression->a, out))
            return false;
        if (pd_jinja_truth(out) == (expression->kind == PD_JINJA_OR))
            return true;
        return pd_jinja_evaluate(render, expression->b, out);
    }
    if (!pd_jinja_evaluate(render, expression->b, &condition))
        return false;
    if (pd_jinja_truth(&condition))
        return pd_jinja_evaluate(render, expression->a, out);
    if (expression->c)
        return pd_jinja_evaluate(render, expression->c, out);
    *out = pd_jinja_undefined((struct pd_string){"the inline if-expression", 24});
    return true;
}

static bool evaluate_kind(render_t *render, const node *expression, value_t *out)
{
    switch (expression->kind) {
    case PD_JINJA_CONSTANT:
        *out = expression->constant;
        return true;
    case PD_JINJA_NAME:
        *out = pd_jinja_lookup_name(render, expression->text);
        return true;
    case PD_JINJA_ATTRIBUTE:
    case PD_JINJA_INDEX:
        return look_inside(render, expression, out);
    case PD_JINJA_SLICE:
        return slice(render, expression, out);
    case PD_JINJA_CALL:
        return call(render, expression, out);
    case PD_JINJA_FILTER:
        return filter(render, expression, out);
    case PD_JINJA_TEST:
        return test(render, expression, out);
    case PD_JINJA_NOT:
        if (!pd_jinja_evaluate(render, expression->a, out))
            return false;
        *out = pd_jinja_bool(!pd_jinja_truth(out));
        return true;
    case PD_JINJA_NEGATE:
        return negate(render, expression, out);
    case PD_JINJA_AND:
    case PD_JINJA_OR:
    case PD_JINJA_TERNARY:
        return choose(render, expression, out);
    case PD_JINJA_BINARY:
        return binary(render, expression, out);
    default:
        return collection(render, expression, out);
    }
}

bool pd_jinja_evaluate(render_t *render, const node *expression, value_t *out)
{
    bool ok;

    if (!pd_jinja_spend(render, 1))
        return false;
    if (++render->depth > PD_JINJA_DEPTH_MAX)
        return pd_jinja_fail(render, PD_INVALID, "the chat template nests too deeply");
    ok = evaluate_kind(render, expression, out);
    render->depth--;
    return ok;
}
