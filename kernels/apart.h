/* Runs of operators that rows go through apart: each row of their tensors needs only itself.
 *
 *     barrier ▶ [ o ▶ rmsnorm ▶ gate, up ▶ down ▶ rmsnorm ▶ q, k, v ▶ rotation ] ▶ barrier ▶ attention ▶ ...
 *
 * With many rows, a thread takes some of its own through a whole run, then the next ones: it waits for no other
 * thread in between, and what an operator wrote is still in its cache when the next one reads it. */
#ifndef PD_APART_H
#define PD_APART_H

#include "kernels/backend.h"

/* Marks the operators that continue the run of the one before them (pd_op.continues). */
void pd_apart_mark(struct pd_graph *graph);

/* The operator behind the run that begins with `first`: `first` itself if rows do not go through it apart. */
int pd_apart_end(const struct pd_graph *graph, int first);

#endif
