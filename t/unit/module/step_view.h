/* What the module reads in place beside the same message as protobuf-c has it. */
#ifndef STEP_VIEW_H
#define STEP_VIEW_H

#include <stdbool.h>

#include "ngx_http_pd_step.h"

/* Whether they say the same, as far as the view says anything. */
bool step_view_is(const ngx_http_pd_step_t *step, const Pd__V1__FromWorker *message);

#endif
