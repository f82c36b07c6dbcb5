/* Registration: this worker tells dispatchers that it is there, for as long as it is.
 *
 * One unary call per --dispatcher-address, renewed at a third of the lease that the dispatcher
 * gave. A dispatcher that does not answer is tried again for ever, at most every five seconds; that
 * is logged when it begins and when it ends. On leaving, the lease is given back with one last
 * call. */
#ifndef PD_REGISTER_H
#define PD_REGISTER_H

#include "worker/link/server.h"

/* Makes one registration per address; the first calls go out with the first tick. */
int pd_registrations_create(struct pd_link *link, const struct pd_link_registration *from,
                            struct pd_error *error);

/* Calls that are due; asks for the next tick. */
void pd_registrations_tick(struct pd_link *link, uint64_t now_ns);

/* Gives the leases back. */
void pd_registrations_leave(struct pd_link *link);

/* Whether nothing is on its way any more. */
bool pd_registrations_done(const struct pd_link *link);

/* Ends what is on its way and frees all. */
void pd_registrations_free(struct pd_link *link);

#endif
