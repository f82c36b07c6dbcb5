/* This process's KV pool as the hand-off sees it: mapped memory, of several ranks side by side, and the
 * generation words behind rank 0's (rule 15).
 *
 * A pool in the memory of devices has a stage: as much host memory, laid out alike, pages of which are there
 * only once they are used. What goes over a transport that cannot reach the devices passes through it:
 *
 *     P's devices ── pd_pool_out ──▶ stage ── any transport ──▶ stage ── pd_pool_in ──▶ D's devices
 *                     when ready                                          when landed
 *
 * A block of the stage is written when a block of the ticket is told of, or when a read lands, so the
 * fences and words of the hand-off hold for it as they do for a pool in the host's memory. RDMA goes to
 * the device itself where it takes its memory (rdma_memory.h). */
#ifndef PD_KVX_POOL_H
#define PD_KVX_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "worker/base/error.h"
#include "worker/kvx/layout.h"

/* Memories of one size, mapped side by side. */
struct pd_mapped {
    uint8_t *base;  /* NULL: nothing is */
    void *reserved; /* what the base lies in */
    size_t size;    /* of that */
};

/* Maps `bytes` of each of `count` files with protection `prot`; false with errno. */
bool pd_mapped_open(struct pd_mapped *mapped, const int *fds, uint32_t count, size_t bytes,
                    int prot);
void pd_mapped_close(struct pd_mapped *mapped);

struct pd_pool {
    struct pd_layout layout;
    struct pd_mapped mapped;
    uint8_t *base;                         /* mapped.base: the pool, or its stage */
    struct pd_export device[PD_RANKS_MAX]; /* kind DEVICE: where the ranks' pools are */
    _Atomic uint64_t *words;      /* one per block; NULL: the export has no room for them */
    int readers_fd[PD_RANKS_MAX]; /* of each rank, read-only, for readers on this host */
    char why_not_shared[128];     /* "": all of them are open */
};

static inline bool pd_pool_on_device(const struct pd_pool *pool)
{
    return pool->device[0].kind == PD_EXPORT_DEVICE;
}

/* Blocks [first, first + count) of every plane, from the devices to the stage; what a read has brought, from the
 * stage to its devices. False: a device is lost. Only of a pool on devices. */
bool pd_pool_out(const struct pd_pool *pool, uint32_t first, uint32_t count);
bool pd_pool_in(const struct pd_pool *pool, const struct pd_read *read);

/* Maps the exported memories, one of each rank (0: 1), of a model of `kv_heads` (0: as many as the ranks
 * have), or makes a stage for them. A pool that cannot be shared read-only is fine, and says why. */
int pd_pool_map(struct pd_pool *pool, const struct pd_kv_pool *shape, int ranks, int kv_heads,
                const struct pd_export *memory, struct pd_error *error);
void pd_pool_unmap(struct pd_pool *pool);

/* Bumps the words of these blocks. Returns before a byte that the caller writes afterwards can be
 * seen by a reader that still sees the old word. Any thread. */
void pd_pool_recycled(struct pd_pool *pool, const int32_t *blocks, size_t count);

/* The reader's counterpart: the word, loaded after everything that was copied before the call. */
uint64_t pd_pool_word_after_copy(const _Atomic uint64_t *word);

#endif
