/* Measures the KV link between two running workers, as a frontend that asks for a few short answers would:
 * everything on the way is what requests will use, and it goes away with the streams.
 *
 *     pdctl ──Attach──▶ P   Submit PREFILL, random tokens ──▶ ticket; waits until all is computed
 *           ──Attach──▶ D   Submit DECODE, the ticket     ──▶ reads all of it at once; two tokens; its Timing
 *
 * First a few of one block, over all of the link; then a long one over each of its rails (data connections:
 * tcp's, queue pairs), alone, behind a small read that shows the rail's round trip; then long ones over all.
 *
 * Random tokens are in nobody's prefix cache, and a ticket that is complete when it is claimed never makes
 * D wait for P: so the time on the wire is the wire's. Whatever ends the probe closes both streams, by which
 * the workers cancel what is left of it. */
#ifndef PDCTL_KV_PROBE_H
#define PDCTL_KV_PROBE_H

#include "pdctl/connection.h"

enum {
    PD_KV_SHORT_TRIES = 5,
    PD_KV_LONG_TRIES = 3,
    PD_KV_SHORT_TOKENS = 16,
    PD_KV_LONG_TOKENS = 2048,
    PD_KV_RAILS_MAX = 16,
    PD_KV_TRIES_MAX = PD_KV_SHORT_TRIES + PD_KV_RAILS_MAX + PD_KV_LONG_TRIES,
    PD_KV_TEXT = 257,
};

struct pd_kv_try {
    uint32_t tokens;
    uint32_t rail; /* 0: all */
    uint64_t bytes, wire_us, round_trip_ns;
    uint64_t prefill_us; /* what P took to compute it */
    char transport[16];
};

struct pd_kv_probe {
    char prefill[129], decode[129]; /* instances */
    char model[PD_KV_TEXT];
    uint32_t max_model_len;
    char why[PD_KV_TEXT]; /* why not a better transport, or the last error of the link */
    uint64_t failures;    /* of the link, while it was measured */
    uint32_t rails;       /* 0: D does not say */
    size_t count;
    struct pd_kv_try tries[PD_KV_TRIES_MAX]; /* short ones, one of each rail, long ones */
};

/* All tries, one after the other; a size is cut to what the workers take. */
int pd_kv_probe_run(struct pd_connection *prefill, struct pd_connection *decode,
                    uint32_t deadline_ms, struct pd_kv_probe *probe, struct pd_error *error);

#endif
