#include "worker/text/jinja_render.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "worker/text/jinja_text.h"

enum { DEPTH_MAX = 200 };
enum { STEPS = 10 * 1000 * 1000 };

typedef struct pd_jinja_render render_t;
typedef struct pd_jinja_node node;
typedef struct pd_jinja_value value_t;

/* Variables of one body: a loop's turn, a macro's call or the whole template. */
struct variable {
    struct pd_string name;
    value_t value;
};

struct pd_jinja_scope {
    struct pd_jinja_scope *outer;
    struct variable *variables;
    size_t count, capacity;
};

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE, FLOW_FAILED };

static bool evaluate(render_t *render, const node *expression, value_t *out);
static enum flow run_body(render_t *render, const node *body);

/* ---- failing and bounds ---------------------------------------------------------------------- */

bool pd_jinja_fail(render_t *render, enum pd_status status, const char *format, ...)
{
    char text[PD_ERROR_TEXT];
    va_list arguments;

    if (render->failed)
        return false;
    render->failed = true;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    pd_fail(render->error, status, "%s", text);
    return false;
}

bool pd_jinja_exhausted(render_t *render)
{
    return pd_jinja_fail(render, PD_INVALID, "the chat template needs too much memory");
}

bool pd_jinja_spend(render_t *render, uint64_t steps)
{
    if (render->failed)
        return false;
    if (steps > render->steps)
        return pd_jinja_fail(render, PD_INVALID, "the chat template takes too many steps");
    render->steps -= steps;
    return true;
}

/* ---- scopes ---------------------------------------------------------------------------------- */

static bool push_scope(render_t *render)
{
    struct pd_jinja_scope *scope = pd_arena_take(&render->arena, sizeof(*scope));

    if (!scope)
        return pd_jinja_exhausted(render);
    scope->outer = render->scope;
    render->scope = scope;
    return true;
}

static void pop_scope(render_t *render)
{
    render->scope = render->scope->outer;
}

static bool same_name(struct pd_string a, struct pd_string b)
{
    return a.length == b.length && memcmp(a.bytes, b.bytes, a.length) == 0;
}

static bool define(render_t *render, struct pd_jinja_scope *scope, struct pd_string name,
                   value_t value)
{
    for (size_t i = 0; i < scope->count; i++) {
        if (same_name(scope->variables[i].name, name)) {
            scope->variables[i].value = value;
            return true;
        }
    }
    if (scope->count == scope->capacity) {
        size_t capacity = scope->capacity ? scope->capacity * 2 : 8;
        struct variable *grown = pd_arena_take(&render->arena, capacity * sizeof(*grown));

        if (!grown)
            return pd_jinja_exhausted(render);
        if (scope->count)
            memcpy(grown, scope->variables, scope->count * sizeof(*grown));
        scope->variables = grown;
        scope->capacity = capacity;
    }
    scope->variables[scope->count++] = (struct variable){name, value};
    return true;
}

static value_t lookup_name(const render_t *render, struct pd_string name)
{
    for (const struct pd_jinja_scope *scope = render->scope; scope; scope = scope->outer)
        for (size_t i = 0; i < scope->count; i++)
            if (same_name(scope->variables[i].name, name))
                return scope->variables[i].value;
    return pd_jinja_undefined(name);
}

/* ---- looking into values --------------------------------------------------------------------- */

const value_t *pd_jinja_argument(const struct pd_jinja_arguments *arguments, int index,
                                 const char *keyword)
{
    int position = 0;

    for (int i = 0; i < arguments->count; i++) {
        if (arguments->keywords[i].length == 0) {
            if (position++ == index)
                return &arguments->values[i];
        } else if (keyword && arguments->keywords[i].length == strlen(keyword) &&
                   memcmp(arguments->keywords[i].bytes, keyword, strlen(keyword)) == 0) {
            return &arguments->values[i];
        }
    }
    return NULL;
}

static bool characters_of(render_t *render, const struct pd_jinja_string *string,
                          struct pd_jinja_list *list)
{
    for (size_t at = 0; at < string->length;) {
        struct pd_jinja_string rest = pd_jinja_substring(string, at, string->length - at);
        size_t length = pd_jinja_offset(&rest, 1);
        value_t one = {.kind = PD_JINJA_STRING, .string = pd_jinja_substring(&rest, 0, length)};

        if (!pd_jinja_spend(render, 1))
            return false;
        if (!pd_jinja_list_push(&render->arena, list, one))
            return pd_jinja_exhausted(render);
        at += length;
    }
    return true;
}

bool pd_jinja_iterate(render_t *render, const value_t *value, struct pd_jinja_list **items)
{
    value_t list;

    if (value->kind == PD_JINJA_LIST) {
        *items = value->list;
        return true;
    }
    if (!pd_jinja_list_new(&render->arena, 0, &list))
        return pd_jinja_exhausted(render);
    *items = list.list;
    switch (value->kind) {
    case PD_JINJA_UNDEFINED:
        return true;
    case PD_JINJA_STRING:
        return characters_of(render, &value->string, list.list);
    case PD_JINJA_DICT:
        for (size_t i = 0; i < value->dict->count; i++)
            if (!pd_jinja_list_push(&render->arena, list.list, value->dict->entries[i].key))
                return pd_jinja_exhausted(render);
        return pd_jinja_spend(render, value->dict->count);
    default:
        return pd_jinja_fail(render, PD_INVALID, "'%s' object is not iterable",
                             pd_jinja_kind_name(value->kind));
    }
}

static bool lookup_index(render_t *render, const value_t *object, int64_t index, value_t *out)
{
    if (object->kind == PD_JINJA_LIST) {
        int64_t count = (int64_t)object->list->count;

        index += index < 0 ? count : 0;
        if (index >= 0 && index < count)
            *out = object->list->items[index];
        return true;
    }
    if (object->kind == PD_JINJA_STRING) {
        int64_t count = (int64_t)pd_jinja_characters(&object->string);

        index += index < 0 ? count : 0;
        if (index >= 0 && index < count)
            return pd_jinja_slice_string(render, &object->string, index, 1, 1, out);
    }
    return true;
}

bool pd_jinja_lookup(render_t *render, const value_t *object, const value_t *key, value_t *out)
{
    const value_t *found = NULL;
    struct pd_string name = {"the value", 9};

    if (key->kind == PD_JINJA_STRING)
        name = (struct pd_string){key->string.bytes, key->string.length};
    *out = pd_jinja_undefined(name);
    if (object->kind == PD_JINJA_UNDEFINED)
        return pd_jinja_fail(render, PD_INVALID, "'%.*s' is undefined",
                             (int)(object->missing.length < 100 ? object->missing.length : 100),
                             object->missing.bytes);
    if (object->kind == PD_JINJA_DICT || object->kind == PD_JINJA_NAMESPACE) {
        if (!pd_jinja_spend(render, object->dict->count / 8 + 1))
            return false;
        found = pd_jinja_dict_get(object->dict, key);
        if (found)
            *out = *found;
        return true;
    }
    if (key->kind == PD_JINJA_INT)
        return lookup_index(render, object, key->integer, out);
    return true;
}

bool pd_jinja_contains(render_t *render, const value_t *needle, const value_t *haystack,
                       bool *result)
{
    *result = false;
    switch (haystack->kind) {
    case PD_JINJA_STRING:
        if (needle->kind != PD_JINJA_STRING)
            return pd_jinja_fail(render, PD_INVALID,
                                 "'in <string>' requires string as left operand, not %s",
                                 pd_jinja_kind_name(needle->kind));
        *result = pd_jinja_find(&haystack->string, &needle->string, 0) != SIZE_MAX;
        return pd_jinja_spend(render, haystack->string.length / 256 + 1);
    case PD_JINJA_LIST:
        for (size_t i = 0; i < haystack->list->count && !*result; i++)
            *result = pd_jinja_equal(&haystack->list->items[i], needle);
        return pd_jinja_spend(render, haystack->list->count + 1);
    case PD_JINJA_DICT:
        *result = pd_jinja_dict_get(haystack->dict, needle) != NULL;
        return pd_jinja_spend(render, haystack->dict->count / 8 + 1);
    case PD_JINJA_UNDEFINED:
        return true;
    default:
        return pd_jinja_fail(render, PD_INVALID, "argument of type '%s' is not iterable",
                             pd_jinja_kind_name(haystack->kind));
    }
}

static bool binary(render_t *render, const node *expression, value_t *out)
{
    value_t a, b;
    bool result;

    if (!evaluate(render, expression->a, &a) || !evaluate(render, expression->b, &b))
        return false;
    if (expression->number <= PD_JINJA_CONCATENATE)
        return pd_jinja_compute(render, expression->number, &a, &b, out);
    if (!pd_jinja_relate(render, expression->number, &a, &b, &result))
        return false;
    *out = pd_jinja_bool(result);
    return true;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static bool evaluate_arguments(render_t *render, const node *first,
                               struct pd_jinja_arguments *arguments)
{
    arguments->count = 0;
    for (; first; first = first->next) {
        if (arguments->count == PD_JINJA_ARGUMENTS_MAX)
            return pd_jinja_fail(render, PD_INVALID, "a call has more than %d arguments",
                                 PD_JINJA_ARGUMENTS_MAX);
        if (!evaluate(render, first, &arguments->values[arguments->count]))
            return false;
        arguments->keywords[arguments->count++] = first->keyword;
    }
    return true;
}

/* Renders a body into a string of its own. */
static bool capture(render_t *render, const node *body, value_t *out)
{
    struct pd_jinja_output *before = render->output, text;
    bool ok;

    pd_jinja_output_init(&text, render->limit);
    render->output = &text;
    ok = run_body(render, body) != FLOW_FAILED;
    render->output = before;
    ok = ok && (pd_jinja_output_value(&text, &render->arena, out) || pd_jinja_exhausted(render));
    pd_jinja_output_free(&text);
    return ok;
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
        else if (!evaluate(render, name->a, &value))
            return false;
        if (!define(render, render->scope, name->text, value))
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
    ok = push_scope(render) && bind_parameters(render, macro, arguments) &&
         capture(render, macro->body, out);
    render->scope = caller;
    return ok;
}

static bool call(render_t *render, const node *expression, value_t *out)
{
    struct pd_jinja_arguments arguments;
    const node *callee = expression->a;
    value_t target;

    if (callee->kind == PD_JINJA_ATTRIBUTE && pd_jinja_method_known(callee->text)) {
        return evaluate(render, callee->a, &target) &&
               evaluate_arguments(render, expression->arguments, &arguments) &&
               pd_jinja_method(render, &target, callee->text, &arguments, out);
    }
    if (!evaluate(render, callee, &target) ||
        !evaluate_arguments(render, expression->arguments, &arguments))
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

/* ---- expressions ----------------------------------------------------------------------------- */

static bool slice(render_t *render, const node *expression, value_t *out)
{
    value_t object, bound[3];
    const node *parts[3] = {expression->b, expression->c, expression->d};
    int64_t first, stride;
    size_t length, count;

    if (!evaluate(render, expression->a, &object))
        return false;
    for (int i = 0; i < 3; i++) {
        bound[i] = pd_jinja_none();
        if (parts[i] && !evaluate(render, parts[i], &bound[i]))
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

        if (!evaluate(render, item, &first))
            return false;
        if (dict) {
            item = item->next;
            if (!evaluate(render, item, &second))
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

    return evaluate(render, expression->a, &input) &&
           evaluate_arguments(render, expression->arguments, &arguments) &&
           pd_jinja_filter(render, expression->number, &input, &arguments, out);
}

static bool test(render_t *render, const node *expression, value_t *out)
{
    struct pd_jinja_arguments arguments;
    value_t input;
    bool result;

    if (!evaluate(render, expression->a, &input) ||
        !evaluate_arguments(render, expression->arguments, &arguments) ||
        !pd_jinja_test(render, expression->number, &input, &arguments, &result))
        return false;
    *out = pd_jinja_bool(result != expression->negated);
    return true;
}

static bool negate(render_t *render, const node *expression, value_t *out)
{
    value_t a, zero = pd_jinja_int(0);

    if (!evaluate(render, expression->a, &a))
        return false;
    if (a.kind == PD_JINJA_STRING || a.kind == PD_JINJA_LIST)
        return pd_jinja_type_error(render, "unary -", &a, &a);
    return pd_jinja_compute(render, PD_JINJA_SUBTRACT, &zero, &a, out);
}

static bool look_inside(render_t *render, const node *expression, value_t *out)
{
    value_t object, key;

    if (!evaluate(render, expression->a, &object))
        return false;
    if (expression->kind == PD_JINJA_ATTRIBUTE)
        key = pd_jinja_text(expression->text.bytes, expression->text.length, PD_JINJA_TRUSTED);
    else if (!evaluate(render, expression->b, &key))
        return false;
    return pd_jinja_lookup(render, &object, &key, out);
}

static bool choose(render_t *render, const node *expression, value_t *out)
{
    value_t condition;

    if (expression->kind != PD_JINJA_TERNARY) { /* and, or: the operand that decides */
        if (!evaluate(render, expression->a, out))
            return false;
        if (pd_jinja_truth(out) == (expression->kind == PD_JINJA_OR))
            return true;
        return evaluate(render, expression->b, out);
    }
    if (!evaluate(render, expression->b, &condition))
        return false;
    if (pd_jinja_truth(&condition))
        return evaluate(render, expression->a, out);
    if (expression->c)
        return evaluate(render, expression->c, out);
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
        *out = lookup_name(render, expression->text);
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
        if (!evaluate(render, expression->a, out))
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

static bool evaluate(render_t *render, const node *expression, value_t *out)
{
    bool ok;

    if (!pd_jinja_spend(render, 1))
        return false;
    if (++render->depth > DEPTH_MAX)
        return pd_jinja_fail(render, PD_INVALID, "the chat template nests too deeply");
    ok = evaluate_kind(render, expression, out);
    render->depth--;
    return ok;
}

/* ---- statements ------------------------------------------------------------------------------ */

static bool bind_names(render_t *render, const node *names, value_t value)
{
    struct pd_jinja_list *items;
    size_t index = 0;

    if (!names->next)
        return define(render, render->scope, names->text, value);
    if (!pd_jinja_iterate(render, &value, &items))
        return false;
    for (const node *name = names; name; name = name->next, index++) {
        if (index >= items->count)
            return pd_jinja_fail(render, PD_INVALID, "not enough values to unpack");
        if (!define(render, render->scope, name->text, items->items[index]))
            return false;
    }
    if (index != items->count)
        return pd_jinja_fail(render, PD_INVALID, "too many values to unpack");
    return true;
}

static bool set(render_t *render, const node *statement)
{
    value_t value, space, key;

    if (!evaluate(render, statement->a, &value))
        return false;
    if (statement->text.length == 0)
        return bind_names(render, statement->names, value);
    space = lookup_name(render, statement->names->text);
    if (space.kind != PD_JINJA_NAMESPACE)
        return pd_jinja_fail(render, PD_INVALID, "cannot assign attribute on non-namespace object");
    key = pd_jinja_text(statement->text.bytes, statement->text.length, PD_JINJA_TRUSTED);
    return pd_jinja_dict_set(&render->arena, space.dict, key, value) || pd_jinja_exhausted(render);
}

/* The filters of a chain whose innermost input is `text`. */
static bool apply_chain(render_t *render, const node *chain, const value_t *text, value_t *out)
{
    struct pd_jinja_arguments arguments;
    value_t input = *text;

    if (chain->a && !apply_chain(render, chain->a, text, &input))
        return false;
    return evaluate_arguments(render, chain->arguments, &arguments) &&
           pd_jinja_filter(render, chain->number, &input, &arguments, out);
}

static bool captured_block(render_t *render, const node *statement, value_t *text)
{
    value_t raw;

    if (!push_scope(render))
        return false;
    if (!capture(render, statement->body, &raw))
        return false;
    pop_scope(render);
    *text = raw;
    return !statement->a || apply_chain(render, statement->a, &raw, text);
}

static bool loop_field(render_t *render, struct pd_jinja_dict *loop, const char *name,
                       value_t value)
{
    value_t key = pd_jinja_text(name, strlen(name), PD_JINJA_TRUSTED);

    return pd_jinja_dict_set(&render->arena, loop, key, value) || pd_jinja_exhausted(render);
}

static bool update_loop(render_t *render, struct pd_jinja_dict *loop,
                        const struct pd_jinja_list *items, size_t index)
{
    static const struct pd_string none = {"loop item", 9};
    int64_t i = (int64_t)index, count = (int64_t)items->count;

    return loop_field(render, loop, "index", pd_jinja_int(i + 1)) &&
           loop_field(render, loop, "index0", pd_jinja_int(i)) &&
           loop_field(render, loop, "revindex", pd_jinja_int(count - i)) &&
           loop_field(render, loop, "revindex0", pd_jinja_int(count - i - 1)) &&
           loop_field(render, loop, "first", pd_jinja_bool(i == 0)) &&
           loop_field(render, loop, "last", pd_jinja_bool(i == count - 1)) &&
           loop_field(render, loop, "length", pd_jinja_int(count)) &&
           loop_field(render, loop, "previtem",
                      index ? items->items[index - 1] : pd_jinja_undefined(none)) &&
           loop_field(render, loop, "nextitem",
                      index + 1 < items->count ? items->items[index + 1]
                                               : pd_jinja_undefined(none));
}

/* The items that pass the loop's own `if`. */
static bool filtered_items(render_t *render, const node *loop, struct pd_jinja_list **items)
{
    struct pd_jinja_list *all = *items;
    value_t kept;

    if (!loop->b)
        return true;
    if (!pd_jinja_list_new(&render->arena, 0, &kept))
        return pd_jinja_exhausted(render);
    for (size_t i = 0; i < all->count; i++) {
        value_t passes;

        if (!push_scope(render) || !bind_names(render, loop->names, all->items[i]) ||
            !evaluate(render, loop->b, &passes))
            return false;
        pop_scope(render);
        if (pd_jinja_truth(&passes) &&
            !pd_jinja_list_push(&render->arena, kept.list, all->items[i]))
            return pd_jinja_exhausted(render);
    }
    *items = kept.list;
    return true;
}

static enum flow run_for(render_t *render, const node *loop)
{
    static const struct pd_string loop_name = {"loop", 4};
    struct pd_jinja_list *items;
    value_t iterable, state;
    enum flow flow = FLOW_ON;
    bool completed = false;

    if (!evaluate(render, loop->a, &iterable) || !pd_jinja_iterate(render, &iterable, &items) ||
        !filtered_items(render, loop, &items))
        return FLOW_FAILED;
    if (items->count == 0)
        return run_body(render, loop->other);
    if (!pd_jinja_dict_new(&render->arena, 10, &state)) {
        pd_jinja_exhausted(render);
        return FLOW_FAILED;
    }
    state.kind = PD_JINJA_NAMESPACE;
    for (size_t i = 0; i < items->count && flow != FLOW_BREAK; i++) {
        if (!push_scope(render) || !update_loop(render, state.dict, items, i) ||
            !define(render, render->scope, loop_name, state) ||
            !bind_names(render, loop->names, items->items[i]))
            return FLOW_FAILED;
        flow = run_body(render, loop->body);
        if (flow == FLOW_FAILED)
            return flow;
        completed |= flow == FLOW_ON;
        pop_scope(render);
    }
    /* As in Jinja, a loop whose every turn was cut short counts as one that never ran. */
    return completed ? FLOW_ON : run_body(render, loop->other);
}

static enum flow run_if(render_t *render, const node *statement)
{
    value_t condition;

    if (!evaluate(render, statement->a, &condition))
        return FLOW_FAILED;
    if (pd_jinja_truth(&condition))
        return run_body(render, statement->body);
    return run_body(render, statement->other);
}

static enum flow run(render_t *render, const node *statement)
{
    value_t value;
    bool ok = true;

    switch (statement->kind) {
    case PD_JINJA_DATA:
        pd_jinja_output_put(render->output, statement->text.bytes, statement->text.length, false);
        break;
    case PD_JINJA_PRINT:
        ok = evaluate(render, statement->a, &value);
        if (ok)
            pd_jinja_print(render->output, &value, false);
        break;
    case PD_JINJA_IF:
        return run_if(render, statement);
    case PD_JINJA_FOR:
        return run_for(render, statement);
    case PD_JINJA_SET:
        ok = set(render, statement);
        break;
    case PD_JINJA_SET_BLOCK:
        ok = captured_block(render, statement, &value) &&
             bind_names(render, statement->names, value);
        break;
    case PD_JINJA_FILTER_BLOCK:
        ok = captured_block(render, statement, &value);
        if (ok)
            pd_jinja_print(render->output, &value, false);
        break;
    case PD_JINJA_MACRO_DEF:
        value = (value_t){.kind = PD_JINJA_MACRO, .macro = statement};
        ok = define(render, render->scope, statement->text, value);
        break;
    case PD_JINJA_BREAK:
        return FLOW_BREAK;
    default:
        return FLOW_CONTINUE;
    }
    if (ok && render->output->full)
        ok = pd_jinja_fail(render, PD_INVALID, "the rendered prompt is too long");
    return ok ? FLOW_ON : FLOW_FAILED;
}

static enum flow run_body(render_t *render, const node *body)
{
    enum flow flow = FLOW_ON;

    if (++render->depth > DEPTH_MAX) {
        pd_jinja_fail(render, PD_INVALID, "the chat template nests too deeply");
        return FLOW_FAILED;
    }
    for (; body && flow == FLOW_ON; body = body->next) {
        if (!pd_jinja_spend(render, 1))
            return FLOW_FAILED;
        flow = run(render, body);
    }
    render->depth--;
    return flow;
}

/* ---- outside --------------------------------------------------------------------------------- */

void pd_jinja_render_init(render_t *render, struct pd_jinja_output *output, size_t arena_budget,
                          struct pd_error *error)
{
    *render = (render_t){.output = output, .steps = STEPS, .limit = output->limit, .error = error};
    pd_arena_init(&render->arena, arena_budget);
    if (push_scope(render))
        render->global = render->scope;
}

void pd_jinja_render_free(render_t *render)
{
    pd_arena_free(&render->arena);
}

bool pd_jinja_render_define(render_t *render, const char *name, value_t value)
{
    return !render->failed &&
           define(render, render->global, (struct pd_string){name, strlen(name)}, value);
}

bool pd_jinja_render_body(render_t *render, const node *body)
{
    return !render->failed && run_body(render, body) != FLOW_FAILED;
}
