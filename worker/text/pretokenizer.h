/* The pre-tokeniser: cuts text into the pieces that BPE works on, by regular expressions in turn.
 *
 * Each expression isolates its matches: a piece becomes match, rest, match, ... and every part goes
 * on to the next expression, which sees nothing beyond it (Hugging Face's Split with "Isolated").
 */
#ifndef PD_PRETOKENIZER_H
#define PD_PRETOKENIZER_H

#include "worker/text/tokenizer.h"

struct pd_pretokenizer;

/* Compiles the expressions (regex.h says which). The result is immutable, for any number of
 * threads. */
int pd_pretokenizer_create(const struct pd_string *regexes, size_t count,
                           struct pd_pretokenizer **pretokenizer, struct pd_error *error);
void pd_pretokenizer_destroy(struct pd_pretokenizer *pretokenizer);

/* Takes one piece; anything but PD_OK ends the split. */
typedef int (*pd_piece_fn)(void *context, const char *bytes, size_t length);

/* Calls piece() for every piece of text[0..length), which is well-formed UTF-8, from left to right.
 * Returns the first status that is not PD_OK. */
int pd_pretokenizer_split(const struct pd_pretokenizer *pretokenizer, const char *text,
                          size_t length, pd_piece_fn piece, void *context, struct pd_error *error);

#endif
