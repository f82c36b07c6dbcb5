/* Messages of the worker about itself and its sequences, built in scratch memory. */
#ifndef PD_REPORT_H
#define PD_REPORT_H

#include "worker/link/events.h"
#include "worker/link/server.h"

/* Fills link->hello from the identity; once, before anything is served. */
void pd_report_hello(struct pd_link *link);

/* A report without number and last_submission, which are the stream's. NULL without memory. */
Pd__V1__LoadReport *pd_report_load(struct pd_link *link, struct pd_scratch *scratch);

Pd__V1__Placed *pd_report_placed(struct pd_scratch *scratch, const struct pd_placed *placed);

/* One sequence's share of a step. Borrows the output's memory. */
Pd__V1__SequenceStep *pd_report_sequence(const struct pd_link *link, struct pd_scratch *scratch,
                                         const struct pd_output *output);

#endif
