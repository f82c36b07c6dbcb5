/* The intake: a thread that turns complete submissions into requests, in the order of their
 * arrival.
 *
 * Rendering and tokenizing a long prompt takes milliseconds; on the thread of the streams it would
 * make every other frontend wait. What is short takes no longer than waking another thread does, and is
 * done on the thread that brings it, if nothing is under way here. A cancellation does not queue here: it marks the job, and intake
 * looks at the mark before it works, and again after it has given the request to the engine.
 * Whichever of the two threads comes second tells the engine, so none is lost. */
#ifndef PD_INTAKE_H
#define PD_INTAKE_H

#include "worker/link/submit.h"

enum { PD_INTAKE_JOBS_MAX = 4096 };

struct pd_intake;

/* Starts the thread. `failed` is called, on it or within pd_intake_put, for every job that does not
 * become a request. All is borrowed until pd_intake_destroy. */
int pd_intake_create(const struct pd_link_identity *identity, struct pd_engine *engine,
                     void (*failed)(void *context, const struct pd_failure *failure), void *context,
                     struct pd_intake **intake, struct pd_error *error);

/* One thread. Takes one reference of the job; PD_FULL leaves it with the caller. A short job is done
 * before this returns, and what the engine says of it may come meanwhile. */
int pd_intake_put(struct pd_intake *intake, struct pd_job *job);

/* Drops what waits (without a word), joins the thread, frees. */
void pd_intake_destroy(struct pd_intake *intake);

#endif
