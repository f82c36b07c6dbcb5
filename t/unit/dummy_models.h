/* Small configurations of every family, as directories with a config.json alone. */
#ifndef PD_DUMMY_MODELS_H
#define PD_DUMMY_MODELS_H

#include "t/unit/model_run.h"

/* NULL ends. */
extern const char *const dummy_families[];

/* Writes the configuration of a family (0, 1, ...) to a new directory, whose path it returns; the
 * caller gives it back. */
const char *dummy_model_write(int family, char directory[64]);
void dummy_model_remove(const char *directory);

/* Every logit of a sequence of `count` <= MODEL_RUN_SAMPLES tokens, computed in one chunk and then
 * token by token: logits[count][256]. */
void dummy_model_logits(struct model_run *run, int count, float *logits);

#endif
