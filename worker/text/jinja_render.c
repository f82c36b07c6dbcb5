#include "worker/text/jinja_render.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "worker/text/jinja_evaluate.h"
#include "worker/text/jinja_scope.h"
#include "worker/text/jinja_text.h"

enum { STEPS = 10 * 1000 * 1000 };

typedef struct pd_jinja_render render_t;
typedef struct pd_jinja_node node;
typedef struct pd_jinja_value value_t;

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE, FLOW_FAILED };

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

/* ---- statements ------------------------------------------------------------------------------ */

/* Renders a body into a string of its own. */
bool pd_jinja_capture(render_t *render, const node *body, value_t *out)
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

static bool bind_names(render_t *render, const node *names, value_t value)
{
    struct pd_jinja_list *items;
    size_t index = 0;

    if (!names->next)
        return pd_jinja_define(render, render->scope, names->text, value);
    if (!pd_jinja_iterate(render, &value, &items))
        return false;
    for (const node *name = names; name; name = name->next, index++) {
        if (index >= items->count)
            return pd_jinja_fail(render, PD_INVALID, "not enough values to unpack");
        if (!pd_jinja_define(render, render->scope, name->text, items->items[index]))
            return false;
    }
    if (index != items->count)
        return pd_jinja_fail(render, PD_INVALID, "too many values to unpack");
    return true;
}

static bool set(render_t *render, const node *statement)
{
    value_t value, space, key;

    if (!pd_jinja_evaluate(render, statement->a, &value))
        return false;
    if (statement->text.length == 0)
        return bind_names(render, statement->names, value);
    space = pd_jinja_lookup_name(render, statement->names->text);
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
    return pd_jinja_evaluate_arguments(render, chain->arguments, &arguments) &&
           pd_jinja_filter(render, chain->number, &input, &arguments, out);
}

static bool captured_block(render_t *render, const node *statement, value_t *text)
{
    value_t raw;

    if (!pd_jinja_scope_push(render))
        return false;
    if (!pd_jinja_capture(render, statement->body, &raw))
        return false;
    pd_jinja_scope_pop(render);
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

        if (!pd_jinja_scope_push(render) || !bind_names(render, loop->names, all->items[i]) ||
            !pd_jinja_evaluate(render, loop->b, &passes))
            return false;
        pd_jinja_scope_pop(render);
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

    if (!pd_jinja_evaluate(render, loop->a, &iterable) ||
        !pd_jinja_iterate(render, &iterable, &items) || !filtered_items(render, loop, &items))
        return FLOW_FAILED;
    if (items->count == 0)
        return run_body(render, loop->other);
    if (!pd_jinja_dict_new(&render->arena, 10, &state)) {
        pd_jinja_exhausted(render);
        return FLOW_FAILED;
    }
    state.kind = PD_JINJA_NAMESPACE;
    for (size_t i = 0; i < items->count && flow != FLOW_BREAK; i++) {
        if (!pd_jinja_scope_push(render) || !update_loop(render, state.dict, items, i) ||
            !pd_jinja_define(render, render->scope, loop_name, state) ||
            !bind_names(render, loop->names, items->items[i]))
            return FLOW_FAILED;
        flow = run_body(render, loop->body);
        if (flow == FLOW_FAILED)
            return flow;
        completed |= flow == FLOW_ON;
        pd_jinja_scope_pop(render);
    }
    /* As in Jinja, a loop whose every turn was cut short counts as one that never ran. */
    return completed ? FLOW_ON : run_body(render, loop->other);
}

static enum flow run_if(render_t *render, const node *statement)
{
    value_t condition;

    if (!pd_jinja_evaluate(render, statement->a, &condition))
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
        ok = pd_jinja_evaluate(render, statement->a, &value);
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
        ok = pd_jinja_define(render, render->scope, statement->text, value);
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

    if (++render->depth > PD_JINJA_DEPTH_MAX) {
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
    if (pd_jinja_scope_push(render))
        render->global = render->scope;
}

void pd_jinja_render_free(render_t *render)
{
    pd_arena_free(&render->arena);
}

bool pd_jinja_render_define(render_t *render, const char *name, value_t value)
{
    return !render->failed &&
           pd_jinja_define(render, render->global, (struct pd_string){name, strlen(name)}, value);
}

bool pd_jinja_render_body(render_t *render, const node *body)
{
    return !render->failed && run_body(render, body) != FLOW_FAILED;
}
