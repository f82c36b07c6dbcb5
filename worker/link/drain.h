/* Worker.Drain: an operator asks this worker to leave, and watches.
 *
 * There is one way in which a worker leaves, and it begins with SIGTERM; so the first call sends the
 * process that signal, and main does what it always does, in the time that the caller gives. Every
 * call then hears how far it is, several times a second, and at the end that it is over:
 *
 *   pdctl ──DrainRequest──▶ SIGTERM ──▶ main ──pd_link_drain──▶ begin ──progress, ...──▶ pdctl
 *                                             └──pd_link_destroy──▶ end ──last, OK─────▶
 *
 * The link's thread only. */
#ifndef PD_DRAIN_H
#define PD_DRAIN_H

#include "worker/link/server.h"

void pd_drain_accept(struct pd_link *link, grpc_call *call);

/* The worker drains from now on; it leaves. */
void pd_drains_begin(struct pd_link *link);
void pd_drains_end(struct pd_link *link);

/* Sends progress that is due; asks for the next tick. */
void pd_drains_tick(struct pd_link *link, uint64_t now_ns);

#endif
