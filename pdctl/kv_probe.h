/* Measures the KV link between two running workers, as a frontend that asks for a few short answers would:
 * everything on the way is what requests will use, and it goes away with the streams.
 *
 *     pdctl ──Attach──▶ P   Submit PREFILL, random tokens ──▶ ticket; waits until all is computed
 *           ──Attach──▶ D   Submit DECODE, the ticket     ──▶ reads all of it at once; two tokens; its Timing
 *
 * Random tokens are in nobody's prefix cache, and a ticket that is complete when it is claimed never makes
 * D wait for P: so the time on the wire is the wire's. Whatever ends the probe closes both streams, by which
 * the workers cancel what is left of it. */
#ifndef PDCTL_KV_PROBE_H
#define PDCTL_KV_PROBE_H

#include "pdctl/connection.h"

enum { PD_KV_TRIES_MAX = 16, PD_KV_TEXT = 257 };

struct pd_kv_try {
    uint32_t tokens;
    uint64_t bytes, wire_us;
    uint64_t prefill_us; /* what P took to compute it */
    char transport[16];
};

struct pd_kv_probe {
    char prefill[129], decode[129]; /* instances */
    char model[PD_KV_TEXT];
    uint32_t block_size, max_model_len;
    char why[PD_KV_TEXT]; /* why not a better transport, or the last error of the link */
    uint64_t failures;    /* of the link, while it was measured */
    size_t count;
    struct pd_kv_try tries[PD_KV_TRIES_MAX];
};

/* Hands `sizes[0..count)` tokens over, one after the other; a size is cut to what the workers take. */
int pd_kv_probe_run(struct pd_connection *prefill, struct pd_connection *decode,
                    const uint32_t *sizes, size_t count, uint32_t deadline_ms,
                    struct pd_kv_probe *probe, struct pd_error *error);

#endif
