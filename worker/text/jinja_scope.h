/* A rendering's variables: a stack of scopes, one for the template, each loop's turn and each call of
 * a macro. All of it lives in the rendering's arena; false is a failure that is already recorded. */
#ifndef PD_JINJA_SCOPE_H
#define PD_JINJA_SCOPE_H

#include "worker/text/jinja_render.h"

bool pd_jinja_scope_push(struct pd_jinja_render *render);
void pd_jinja_scope_pop(struct pd_jinja_render *render);

/* Sets `name` in `scope` itself, whatever the scopes around it hold. */
bool pd_jinja_define(struct pd_jinja_render *render, struct pd_jinja_scope *scope,
                     struct pd_string name, struct pd_jinja_value value);

/* The innermost variable of this name; undefined where there is none. */
struct pd_jinja_value pd_jinja_lookup_name(const struct pd_jinja_render *render,
                                           struct pd_string name);

#endif
