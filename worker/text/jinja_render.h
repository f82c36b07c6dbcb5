/* Rendering: the walk over a template's tree, and what its filters, tests and methods share. */
#ifndef PD_JINJA_RENDER_H
#define PD_JINJA_RENDER_H

#include "worker/text/jinja_parser.h"

enum { PD_JINJA_ARGUMENTS_MAX = 16 };

struct pd_jinja_scope;

struct pd_jinja_render {
    struct pd_arena arena;
    struct pd_jinja_output *output; /* where text goes now */
    struct pd_jinja_scope *scope, *global;
    uint64_t steps; /* left; a hostile template or input cannot run for ever */
    int depth;
    size_t limit; /* bytes of any one text */
    struct pd_error *error;
    bool failed;
};

struct pd_jinja_arguments {
    struct pd_jinja_value values[PD_JINJA_ARGUMENTS_MAX];
    struct pd_string keywords[PD_JINJA_ARGUMENTS_MAX]; /* empty: positional */
    int count;
};

/* Prepares a rendering; `arena_budget` bounds all that it makes. */
void pd_jinja_render_init(struct pd_jinja_render *render, struct pd_jinja_output *output,
                          size_t arena_budget, struct pd_error *error);
void pd_jinja_render_free(struct pd_jinja_render *render);

/* Sets a variable of the template. */
bool pd_jinja_render_define(struct pd_jinja_render *render, const char *name,
                            struct pd_jinja_value value);

/* Renders `body` into the output. */
bool pd_jinja_render_body(struct pd_jinja_render *render, const struct pd_jinja_node *body);

/* ---- for filters, tests and methods ---------------------------------------------------------- */

/* Records the first failure and returns false, so that `return pd_jinja_fail(...)` reads as one
 * step. */
bool pd_jinja_fail(struct pd_jinja_render *render, enum pd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool pd_jinja_exhausted(struct pd_jinja_render *render); /* memory; returns false */

/* Counts work that one node may cause. */
bool pd_jinja_spend(struct pd_jinja_render *render, uint64_t steps);

/* jinja_lookup.c: the positional argument `index`, or the one called `keyword`; NULL if not given. */
const struct pd_jinja_value *pd_jinja_argument(const struct pd_jinja_arguments *arguments,
                                               int index, const char *keyword);

/* The items of a list, the keys of a dict, the characters of a string; nothing for undefined. */
bool pd_jinja_iterate(struct pd_jinja_render *render, const struct pd_jinja_value *value,
                      struct pd_jinja_list **items);

/* object.name or object[key] without calling anything; undefined where there is none. */
bool pd_jinja_lookup(struct pd_jinja_render *render, const struct pd_jinja_value *object,
                     const struct pd_jinja_value *key, struct pd_jinja_value *out);

/* `needle in haystack`. */
bool pd_jinja_contains(struct pd_jinja_render *render, const struct pd_jinja_value *needle,
                       const struct pd_jinja_value *haystack, bool *result);

/* jinja_operators.c: `a operator b`, an arithmetic one or a comparison (enum pd_jinja_operator). */
bool pd_jinja_compute(struct pd_jinja_render *render, int operator, const struct pd_jinja_value * a,
                      const struct pd_jinja_value *b, struct pd_jinja_value *out);
bool pd_jinja_relate(struct pd_jinja_render *render, int operator, const struct pd_jinja_value * a,
                     const struct pd_jinja_value *b, bool *result);
/* Fails because a and b do not go with `what`. */
bool pd_jinja_type_error(struct pd_jinja_render *render, const char *what,
                         const struct pd_jinja_value *a, const struct pd_jinja_value *b);

/* jinja_filters.c and jinja_tests.c */
bool pd_jinja_filter(struct pd_jinja_render *render, int number, const struct pd_jinja_value *input,
                     const struct pd_jinja_arguments *arguments, struct pd_jinja_value *out);
bool pd_jinja_test(struct pd_jinja_render *render, int number, const struct pd_jinja_value *input,
                   const struct pd_jinja_arguments *arguments, bool *result);

/* jinja_methods.c */
bool pd_jinja_method(struct pd_jinja_render *render, const struct pd_jinja_value *object,
                     struct pd_string name, const struct pd_jinja_arguments *arguments,
                     struct pd_jinja_value *out);

enum pd_jinja_function {
    PD_JINJA_RANGE,
    PD_JINJA_MAKE_NAMESPACE,
    PD_JINJA_MAKE_DICT,
    PD_JINJA_RAISE_EXCEPTION,
    PD_JINJA_STRFTIME_NOW,
};
/* The global functions by name. */
bool pd_jinja_functions_define(struct pd_jinja_render *render);
bool pd_jinja_call_function(struct pd_jinja_render *render, int function,
                            const struct pd_jinja_arguments *arguments, struct pd_jinja_value *out);

#endif
