/* This process's KV pool as the hand-off sees it: mapped memory, and the generation words behind it
 * (rule 15). */
#ifndef PD_KVX_POOL_H
#define PD_KVX_POOL_H

#include <stdatomic.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "worker/base/error.h"
#include "worker/kvx/layout.h"

struct pd_pool {
    struct pd_layout layout;
    uint8_t *base;
    size_t size;
    _Atomic uint64_t *words; /* one per block; NULL: the export has no room for them */
    int readers_fd;          /* read-only, for readers on this host; -1: see why_not_shared */
    char why_not_shared[128];
};

/* Maps the exported memory. A pool that cannot be shared read-only is fine, and says why. */
int pd_pool_map(struct pd_pool *pool, const struct pd_kv_pool *shape,
                const struct pd_export *memory, struct pd_error *error);
void pd_pool_unmap(struct pd_pool *pool);

/* Bumps the words of these blocks. Returns before a byte that the caller writes afterwards can be
 * seen by a reader that still sees the old word. Any thread. */
void pd_pool_recycled(struct pd_pool *pool, const int32_t *blocks, size_t count);

/* The reader's counterpart: the word, loaded after everything that was copied before the call. */
uint64_t pd_pool_word_after_copy(const _Atomic uint64_t *word);

#endif
