/* A simulated wire behind the one transport interface: "sim" has a fence on the source, as tcp and
 * rdma have; "simshm" has none and is trusted by generation words, as shm is. It lives with the
 * tests: its table of transports takes the place of worker/kvx/transports.c when a test is linked,
 * so that no daemon can be told to use it.
 *
 *     read posted ──delay──▶ sampled: the bytes leave the source's memory, as they are now
 *                               │        "sim": by the source's turn, which asks may_read;
 *                             delay      "simshm": by the reader's own, out of its mapping
 *                               ▼
 *                            landed: they are written to the reader's memory, and it is told
 *
 * A fence is the moment after which the next step does not happen. Steps are taken by `work`, on the
 * thread of the worker whose memory or state machine they touch; what both ends share is under one
 * lock, so that workers may have threads (the conformance suite) or not (the histories). */
#ifndef KVX_FABRIC_H
#define KVX_FABRIC_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/kvx/transport.h"

/* What the world decides; as it stands, real time and short delays. Set before the first worker is
 * made. */
struct kvx_fabric {
    uint64_t (*now)(void);
    uint64_t (*delay)(void); /* nanoseconds, of one step */

    /* Whether bytes pass between these two workers now; NULL: always. */
    bool (*passes)(const struct pd_loop *a, const struct pd_loop *b);
    /* That worker has work at this time; NULL: its loop is interrupted, and polls. */
    void (*due)(const struct pd_loop *loop, uint64_t when);
    /* Before bytes are taken from a block, or put into one, for a ticket; either may be NULL. */
    void (*sampling)(const struct pd_loop *source, uint64_t generation, uint32_t block);
    void (*landing)(const struct pd_loop *reader, uint64_t generation, uint32_t block);
    /* Whether a read is to be refused when it is posted; NULL: never. */
    bool (*post_fails)(void);
};

extern struct kvx_fabric kvx_fabric;

/* Reads that are posted and have neither landed nor been fenced off. */
unsigned kvx_fabric_reads(void);

#endif
