/* What the engine did and does, for Prometheus: GET /metrics on a port of its own.
 *
 *   the engine's snapshot (pd_engine_load) ──▶ text ──▶ libmicrohttpd's thread ──▶ whoever scrapes
 *
 * The port belongs to the inside: it is bound to --host where that is a private address, else to
 * 127.0.0.1. It takes no body, serves one path, and holds few connections for a short time. */
#ifndef PD_METRICS_H
#define PD_METRICS_H

#include <stdio.h>

#include "worker/engine/engine.h"

/* Of the label that every line carries. Strings are borrowed. */
struct pd_metrics_identity {
    const char *instance, *model, *role, *version, *numerics_id;
    uint32_t block_size;
};

/* Writes the page; what Prometheus' text format 0.0.4 wants. */
void pd_metrics_write(FILE *out, const struct pd_metrics_identity *identity,
                      const struct pd_load *load);

struct pd_metrics;

/* Serves until pd_metrics_stop. `engine` and `identity` are borrowed until then. PD_IO with a
 * sentence where the port cannot be had. */
int pd_metrics_start(const char *host, int port, const struct pd_metrics_identity *identity,
                     const struct pd_engine *engine, struct pd_metrics **metrics,
                     struct pd_error *error);
void pd_metrics_stop(struct pd_metrics *metrics); /* NULL: nothing */

#endif
