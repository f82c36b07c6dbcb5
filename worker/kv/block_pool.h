/* The KV pool's blocks: who holds which, which are worth keeping, which come next.
 *
 * Only numbers live here, never a KV byte. A block is in one of three states:
 *
 *                    alloc                          release, not published
 *        ┌──────┐ ─────────▶ ┌──────┐ ──────────────────────────────────▶ free again
 *        │ free │            │ held │
 *        └──────┘            └──────┘ ◀── match ── ┌────────┐
 *            ▲                   └── release ────▶ │ cached │  least recently used first
 *            └──────────── evicted by alloc ────── └────────┘
 *
 *   block   0    1    2    3    4    5    6    7    8    9
 *         ┌────┬────┬────┬────┬────┬────┬────┬────┬────┬────┐
 *   refs  │ 2  │ 2  │ 1  │ 1  │ 0  │ 0  │ 0  │ 0  │ 1  │ 0  │   two answers share blocks 0 and 1
 * and name  │ #1 │ #2 │ #3 │ -  │ #4 │ #5 │ -  │ -  │ #6 │ -  │   go on in 2 and in 3; 4, 5 are
 * cached; └────┴────┴────┴────┴────┴────┴────┴────┴────┴────┘   6, 7 and 9 are free: two extents
 *
 * Prefix cache. A full block whose KV is in place can be published under its chain: the name of the
 * prefix before it and its own tokens. A name is a number that is never given twice, so two chains
 * are equal exactly if the prefixes are: the hash only finds the candidate, and a collision, made
 * by whom ever, cannot hand one prompt's KV to another. A held block is never written again once
 * published, so sharing it copies nothing.
 *
 * Extents. The hand-off pays per run of adjacent blocks, so alloc uses as few runs as the free
 * blocks allow, and the smallest run that will do.
 *
 * One thread owns a pool. Everything is allocated at creation. */
#ifndef PD_BLOCK_POOL_H
#define PD_BLOCK_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/base/error.h"

struct pd_block_pool;

/* Name of a prefix of whole blocks. */
typedef uint64_t pd_prefix;

enum { PD_PREFIX_EMPTY = 0, PD_NO_BLOCK = -1 };

struct pd_block_pool_options {
    int64_t blocks; /* 1 .. INT32_MAX */
    int block_size; /* tokens, 1 .. 1024 */
    bool prefix_caching;
};

int pd_block_pool_create(const struct pd_block_pool_options *options, struct pd_block_pool **pool,
                         struct pd_error *error);
void pd_block_pool_destroy(struct pd_block_pool *pool);

struct pd_block_counts {
    int64_t total;
    int64_t available; /* free or cached: what an alloc can have */
    int64_t cached;    /* of these, cached */
    uint64_t evictions;
};

void pd_block_pool_count(const struct pd_block_pool *pool, struct pd_block_counts *counts);

/* Takes `count` blocks, one reference each, or none at all (false). Cached blocks are evicted only
 * as far as free ones do not suffice. `after` is the block that the caller's table ends with, or
 * PD_NO_BLOCK: where the blocks behind it are free the caller's last extent grows. */
bool pd_block_pool_alloc(struct pd_block_pool *pool, size_t count, int32_t after, int32_t *blocks);

/* Drops one reference of each. Blocks go to the cache so that a prompt's end is evicted before its
 * beginning. */
void pd_block_pool_release(struct pd_block_pool *pool, const int32_t *blocks, size_t count);

/* Finds the longest cached prefix of tokens[0..count) in whole blocks, takes a reference of each of
 * its blocks and writes them to `blocks` (room for count / block_size). Returns how many; *prefix
 * names what was found. */
size_t pd_block_pool_match(struct pd_block_pool *pool, const int32_t *tokens, size_t count,
                           int32_t *blocks, pd_prefix *prefix);

/* Says that the held block `block` contains the KV of the block_size `tokens` that follow `before`.
 * Returns the name of the longer prefix, which may be that of an equal block published earlier. */
pd_prefix pd_block_pool_publish(struct pd_block_pool *pool, pd_prefix before, const int32_t *tokens,
                                int32_t block);

/* Takes a published block out of the cache: nobody will match it any more. No-op for others. */
void pd_block_pool_forget(struct pd_block_pool *pool, int32_t block);

/* References of a block; for tests and asserts. */
uint32_t pd_block_pool_references(const struct pd_block_pool *pool, int32_t block);

#endif
