/* `--check --load-format dummy`: what a model needs, on each rank, from its config.json alone. Nothing of the
 * size of a model is made, no device is opened; a GPU that is there is asked for its memory. */
#ifndef PD_PLAN_H
#define PD_PLAN_H

#include <stdio.h>

#include "worker/base/error.h"
#include "worker/options.h"

int pd_plan_print(const struct pd_options *options, FILE *out, struct pd_error *error);

#endif
