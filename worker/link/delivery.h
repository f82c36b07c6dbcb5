/* What the engine says, brought to the frontends it concerns.
 *
 * All sequences of one stream that took part in a step go into one message, with a load report: the
 * cost per token falls as the batch grows. Attempts that a frontend has cancelled get nothing but
 * their last word; those that nobody knows any more are dropped. */
#ifndef PD_DELIVERY_H
#define PD_DELIVERY_H

#include "worker/link/attach.h"
#include "worker/link/events.h"

void pd_delivery_step(struct pd_link *link, const struct pd_step_message *message);
void pd_delivery_queued(struct pd_link *link, const struct pd_attempt *id);
void pd_delivery_placed(struct pd_link *link, const struct pd_placed *placed);
void pd_delivery_failed(struct pd_link *link, const struct pd_failure *failure);

#endif
