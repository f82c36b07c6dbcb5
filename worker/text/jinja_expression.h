/* The parser's expressions: a recursive descent, one function a level of binding, loosest last.
 *
 * All return NULL after a fault (see jinja_cursor.h). */
#ifndef PD_JINJA_EXPRESSION_H
#define PD_JINJA_EXPRESSION_H

#include "worker/text/jinja_cursor.h"

struct pd_jinja_node *pd_jinja_expression(struct pd_jinja_parser *parser);

/* An expression, or several with commas between: a tuple. */
struct pd_jinja_node *pd_jinja_expression_or_tuple(struct pd_jinja_parser *parser);

/* An expression without `a if b else c` at its top: a loop's own `if` stands behind it. */
struct pd_jinja_node *pd_jinja_condition(struct pd_jinja_parser *parser);

/* A filter's name and arguments, its `|` used up; `object` NULL: the enclosing block's text. */
struct pd_jinja_node *pd_jinja_filter_of(struct pd_jinja_parser *parser,
                                         struct pd_jinja_node *object);

struct pd_jinja_node *pd_jinja_constant(struct pd_jinja_parser *parser,
                                        struct pd_jinja_value value);

#endif
