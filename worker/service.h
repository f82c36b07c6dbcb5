/* The worker put together: which room is made after which, and taken down in which order.
 *
 *   files ─▶ sizes ─▶ device ─▶ KV pool ─▶ model ──┬─▶ what --check prints
 *                                                  └─▶ link (port) ─▶ engine ─▶ kvx ─▶ serving
 *
 * The link binds its port before the engine is made, because tickets name it; it answers nothing before
 * everything stands. Taking down goes the other way, with one twist: the engine waits for the KV that
 * others still read, so kvx and the link's streams live until it has stopped. */
#ifndef PD_SERVICE_H
#define PD_SERVICE_H

#include "worker/options.h"

struct pd_service;

/* Opens, verifies and loads everything that needs no socket. `poll` (may be NULL) is called now and then
 * while that takes its time. On failure nothing is left. */
int pd_service_load(const struct pd_options *options, void (*poll)(void),
                    struct pd_service **service, struct pd_error *error);

/* What --check prints: what would be served. */
void pd_service_describe(const struct pd_service *service, FILE *out);

/* Starts to serve. On failure the service can only be destroyed. */
int pd_service_start(struct pd_service *service, struct pd_error *error);

/* The ready line's facts. */
const char *pd_service_address(const struct pd_service *service); /* host:port */
int pd_service_port(const struct pd_service *service);
void pd_service_log_ready(const struct pd_service *service);

/* Refuses new work and tells everybody. */
void pd_service_drain(struct pd_service *service, uint32_t deadline_ms);

/* Milliseconds that whoever asked to drain over the wire gives; 0: nobody did, or it does not matter. */
uint32_t pd_service_asked_drain_ms(const struct pd_service *service);

/* Whether nothing runs, is handed over or waits to be said. */
bool pd_service_idle(const struct pd_service *service);

/* Whether the device is gone; `why` is a line for people. The service cannot be taken down in order
 * then. */
bool pd_service_lost(const struct pd_service *service, char *why, size_t size);

/* Ends what still runs and frees everything; from any state that pd_service_load leaves. */
void pd_service_destroy(struct pd_service *service);

#endif
