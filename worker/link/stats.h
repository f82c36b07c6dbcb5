/* Worker.Stats: an operator's look inside. One message in, one out; never waits for the engine. */
#ifndef PD_STATS_H
#define PD_STATS_H

#include "worker/link/server.h"

void pd_stats_accept(struct pd_link *link, grpc_call *call);

#endif
