/* This process's KV pool as the hand-off sees it: mapped memory, of several ranks side by side, and the
 * generation words behind rank 0's (rule 15). */
#ifndef PD_KVX_POOL_H
#define PD_KVX_POOL_H

#include <stdatomic.h>
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
    uint8_t *base;                /* mapped.base */
    _Atomic uint64_t *words;      /* one per block; NULL: the export has no room for them */
    int readers_fd[PD_RANKS_MAX]; /* of each rank, read-only, for readers on this host */
    char why_not_shared[128];     /* "": all of them are open */
};

/* Maps the exported memories, one of each rank (0: 1), of a model of `kv_heads` (0: as many as the ranks
 * have). A pool that cannot be shared read-only is fine, and says why. */
int pd_pool_map(struct pd_pool *pool, const struct pd_kv_pool *shape, int ranks, int kv_heads,
                const struct pd_export *memory, struct pd_error *error);
void pd_pool_unmap(struct pd_pool *pool);

/* Bumps the words of these blocks. Returns before a byte that the caller writes afterwards can be
 * seen by a reader that still sees the old word. Any thread. */
void pd_pool_recycled(struct pd_pool *pool, const int32_t *blocks, size_t count);

/* The reader's counterpart: the word, loaded after everything that was copied before the call. */
uint64_t pd_pool_word_after_copy(const _Atomic uint64_t *word);

#endif
