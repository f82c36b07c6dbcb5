/* Submissions on an Attach stream: parts come in, a whole one goes to intake, a cancel overtakes
 * it.
 *
 * A submission that breaks a bound is refused by name and its remaining parts are ignored; the
 * stream and everybody else's requests go on. */
#ifndef PD_SUBMISSIONS_H
#define PD_SUBMISSIONS_H

#include "worker/link/attach.h"

/* Both may end the stream and free the attach. */
void pd_submissions_part(struct pd_attach *attach, const Pd__V1__SubmitPart *part);
void pd_submissions_cancel(struct pd_attach *attach, const Pd__V1__Cancel *cancel);

/* Refuses submissions whose last part does not come in time. False: the attach is gone. */
bool pd_submissions_tick(struct pd_attach *attach, uint64_t now_ns);

#endif
