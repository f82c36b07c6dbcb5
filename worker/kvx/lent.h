/* A pool on devices that another process of this host has lent: mapped by every device of this process's
 * pool, and read from device to device, past all host memory.
 *
 *     P's devices ── handles, over a unix socket ──▶ D's devices map them ── copies ──▶ D's pool
 *
 * Who has the handles has all of the pool, as with shared memory: they go to the same user of the same host. */
#ifndef PD_KVX_LENT_H
#define PD_KVX_LENT_H

#include "worker/kvx/pool.h"

struct pd_lent {
    const struct pd_pool *pool;   /* this process's own; NULL: nothing is mapped */
    uint64_t stride;              /* between the source's ranks' memories, as offsets count */
    uint32_t ranks;               /* of the source */
    uint64_t bytes[PD_RANKS_MAX]; /* of the memory of each */
    void *memory[PD_RANKS_MAX][PD_RANKS_MAX]; /* [own rank][source's rank] */
};

/* NULL: the devices of this pool can be lent, and borrow; else why not. */
const char *pd_lent_obstacle(const struct pd_pool *pool);

/* Maps the memories of a source of layout `source` by their handles, which stay the caller's; `bytes` as the
 * source says them. NULL, or why not, and then nothing is mapped. */
const char *pd_lent_open(struct pd_lent *lent, const struct pd_pool *pool,
                         const struct pd_layout *source, const int *handles, const uint64_t *bytes);
void pd_lent_close(struct pd_lent *lent);

/* Copies the ranges, and waits. False: a device of this process is lost. */
bool pd_lent_read(const struct pd_lent *lent, const struct pd_read *read);

#endif
