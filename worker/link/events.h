/* What the engine says, copied into messages for the link's thread.
 *
 * The callbacks run on the engine's thread (and, for refusals, on intake's) and do nothing but
 * copy: one allocation and one put per call. If the link's thread is thousands of messages behind,
 * what the engine says cannot be kept: then the overrun flag is raised and every Attach stream is
 * cut, so that no frontend waits for tokens that were lost. */
#ifndef PD_EVENTS_H
#define PD_EVENTS_H

#include "worker/base/mailbox.h"
#include "worker/engine/engine.h"

struct pd_link;

enum { PD_LINK_MESSAGES_MAX = 16384 };

struct pd_step_message {
    struct pd_message message;
    uint64_t step;
    size_t count;
    struct pd_output outputs[]; /* their pointers lead behind the array */
};

struct pd_placed_message {
    struct pd_message message;
    struct pd_placed placed;
};

struct pd_failed_message {
    struct pd_message message;
    struct pd_failure failure; /* text and param point into this message */
    char text[513], param[65];
};

struct pd_queued_message {
    struct pd_message message;
    struct pd_attempt id;
};

/* As pd_engine_events has them; `context` is the link. */
void pd_events_placed(void *context, const struct pd_placed *placed);
void pd_events_step(void *context, uint64_t step, const struct pd_output *outputs, size_t count);
void pd_events_failed(void *context, const struct pd_failure *failure);
void pd_events_queued(void *context, const struct pd_attempt *id);

#endif
