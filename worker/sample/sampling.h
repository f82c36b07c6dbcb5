/* From what a client asked for to what the sampling kernel reads.
 *
 * A request's sampling parameters are checked and brought to one form once, when it is submitted.
 * In every step that samples for it they are written into the step descriptor together with what
 * changes: which token of the answer is drawn (the counter of its random number, so that any worker
 * can go on with any answer), how much of the slot's history counts for penalties, and which tokens
 * may not be drawn yet. */
#ifndef PD_SAMPLING_H
#define PD_SAMPLING_H

#include "worker/engine/engine.h"

enum { PD_BIAS_MAX = 1024 };

/* Tokens that end an answer of a model. */
struct pd_eos {
    const int32_t *tokens;
    int count; /* at most PD_MODEL_EOS_MAX */
};

/* Checks every field against its range and the vocabulary, and normalises: a top_p or repetition of
 * 0 becomes 1, a temperature too small to divide by becomes greedy, filters that cannot change
 * anything are switched off. PD_INVALID with a sentence for the client and, in *param, the field's
 * name. */
int pd_sampling_normalise(struct pd_sampling *sampling, int vocabulary, const char **param,
                          struct pd_error *error);

/* Whether the answer ends with `token`: a stop token, or an end-of-sequence token that counts. */
bool pd_sampling_ends_with(const struct pd_sampling *sampling, const struct pd_eos *eos,
                           int32_t token);

/* One row of logits to be sampled. */
struct pd_sample_point {
    int32_t row;     /* of the step */
    int32_t slot;    /* receives the token */
    uint32_t draw;   /* index of the token in the answer */
    int32_t history; /* tokens of the slot's history that count, this step's included */
    int32_t prompt;  /* of these, the prompt */
};

/* Appends a sample to the step. False, and nothing changed, if the step's pools of biases and
 * banned tokens have no room left; an empty step has room for any request. */
bool pd_sampling_fill(const struct pd_sampling *sampling, const struct pd_eos *eos,
                      const struct pd_sample_point *point, struct pd_step *step);

#endif
