/* The sum of a block, by which a reader that asked for it (--kv-checksum) knows that what arrived is what
 * the source had.
 *
 *     sum(block) = the sum over all planes of XXH3-64(the block's bytes in that plane, seed = plane)
 *
 * modulo 2^64, planes counted as if one rank had all heads; a reader whose ranks hold copies of the heads adds
 * each, and expects that multiple. Addition has no order, so the source sums a block whole when it is ready, and the reader
 * plane by plane as its reads land, whatever their order. It finds what wires, memories and faults of
 * programs do to bytes; it does not keep out who wants to deceive: TLS does. */
#ifndef PD_KVX_CHECKSUM_H
#define PD_KVX_CHECKSUM_H

#include <stdint.h>

#include "worker/kvx/pool.h"

/* One block's part of its sum: `offset` is where its bytes in this plane begin. */
uint64_t pd_checksum_part(const struct pd_pool *pool, uint64_t offset, uint32_t plane);

#endif
