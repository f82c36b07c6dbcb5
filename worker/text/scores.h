/* Merges out of scores: SentencePiece's files do not list merges, they give every token a score. */
#ifndef PD_SCORES_H
#define PD_SCORES_H

#include "worker/text/tokenizer.h"

/* Makes the merges of spec->tokens, whose kinds are filled in and whose `marks` is set: every way to put a token
 * together from two, the best score first, in the order in which `transformers` writes them into a tokenizer.json.
 * `scores` by id. spec->merges is one malloc'ed piece of memory. PD_INVALID: a score that is no number, or more merges
 * than a tokenizer may have. */
int pd_merges_from_scores(struct pd_tokenizer_spec *spec, const float *scores,
                          struct pd_error *error);

#endif
