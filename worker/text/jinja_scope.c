#include "worker/text/jinja_scope.h"

#include <string.h>

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

bool pd_jinja_scope_push(render_t *render)
{
    struct pd_jinja_scope *scope = pd_arena_take(&render->arena, sizeof(*scope));

    if (!scope)
        return pd_jinja_exhausted(render);
    scope->outer = render->scope;
    render->scope = scope;
    return true;
}

void pd_jinja_scope_pop(render_t *render)
{
    render->scope = render->scope->outer;
}

static bool same_name(struct pd_string a, struct pd_string b)
{
    return a.length == b.length && memcmp(a.bytes, b.bytes, a.length) == 0;
}

bool pd_jinja_define(render_t *render, struct pd_jinja_scope *scope, struct pd_string name,
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

value_t pd_jinja_lookup_name(const render_t *render, struct pd_string name)
{
    for (const struct pd_jinja_scope *scope = render->scope; scope; scope = scope->outer)
        for (size_t i = 0; i < scope->count; i++)
            if (same_name(scope->variables[i].name, name))
                return scope->variables[i].value;
    return pd_jinja_undefined(name);
}
