/* The value of an expression. False is a failure that is already recorded in the rendering. */
#ifndef PD_JINJA_EVALUATE_H
#define PD_JINJA_EVALUATE_H

#include "worker/text/jinja_render.h"

bool pd_jinja_evaluate(struct pd_jinja_render *render, const struct pd_jinja_node *expression,
                       struct pd_jinja_value *out);

bool pd_jinja_evaluate_arguments(struct pd_jinja_render *render, const struct pd_jinja_node *first,
                                 struct pd_jinja_arguments *arguments);

/* jinja_render.c: renders a body, a macro's or a block's, into a string of its own. */
bool pd_jinja_capture(struct pd_jinja_render *render, const struct pd_jinja_node *body,
                      struct pd_jinja_value *out);

#endif
