/* Where the parser of templates stands: the next token, and what has gone wrong so far.
 *
 * The first fault wins: it is told with its line and column, and from then on nothing moves any more
 * and no node is made, so that callers need not look after every step. All nodes live in the parser's
 * arena. One thread. */
#ifndef PD_JINJA_CURSOR_H
#define PD_JINJA_CURSOR_H

#include "worker/text/jinja_parser.h"

struct pd_jinja_parser {
    struct pd_jinja_lexer lexer;
    struct pd_jinja_token token; /* the next one, not yet used */
    struct pd_arena *arena;
    struct pd_error *error;
    bool failed;
    int depth, loops;
};

/* Notes a fault at the next token. Returns NULL, for callers to return. */
struct pd_jinja_node *pd_jinja_refuse(struct pd_jinja_parser *parser, enum pd_status status,
                                      const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void pd_jinja_advance(struct pd_jinja_parser *parser);

bool pd_jinja_text_is(struct pd_string text, const char *word);
bool pd_jinja_at_operator(const struct pd_jinja_parser *parser, const char *text);
bool pd_jinja_at_name(const struct pd_jinja_parser *parser, const char *text);

/* Uses the next token up if it is this one. */
bool pd_jinja_accept_operator(struct pd_jinja_parser *parser, const char *text);
bool pd_jinja_accept_name(struct pd_jinja_parser *parser, const char *text);

/* Uses the next token up, or refuses the template. */
void pd_jinja_expect_operator(struct pd_jinja_parser *parser, const char *text);
struct pd_string pd_jinja_expect_name(struct pd_jinja_parser *parser);

/* A node that remembers where it stands; NULL after a fault, also where the arena is full. */
struct pd_jinja_node *pd_jinja_node_new(struct pd_jinja_parser *parser,
                                        enum pd_jinja_node_kind kind);
struct pd_jinja_node *pd_jinja_node_with(struct pd_jinja_parser *parser,
                                         enum pd_jinja_node_kind kind, struct pd_jinja_node *a,
                                         struct pd_jinja_node *b);

#endif
