/* Answers of a small model, token after token on the device, two steps in flight: what two ways of
 * launching a step must agree on. */
#ifndef PD_KERNEL_ANSWERS_H
#define PD_KERNEL_ANSWERS_H

#include "t/unit/kernel_model.h"

enum {
    PD_ANSWERS = 6,
    PD_ANSWER_STEPS = 20,
    PD_ANSWER_TOKENS = PD_ANSWERS * PD_ANSWER_STEPS,
    PD_ANSWER_PROMPT = 7,
};

/* A shape for it, to be opened by pd_small_open_answers. */
extern const struct pd_small_shape pd_answering;

/* Adds the next part of the answer in `slot` to a step: the prompt at position 0, else the token that
 * the slot sampled last. */
void pd_answers_add(struct pd_small_model *model, struct pd_step *step, int slot, int position);

/* Answers that begin one after the other, in steps of 1 to PD_ANSWERS rows:
 * out[step][slot] = token + 1, 0 for none. */
void pd_answers_generate(struct pd_small_model *model, int out[PD_ANSWER_TOKENS]);

#endif
