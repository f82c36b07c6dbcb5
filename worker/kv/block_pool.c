#include "worker/kv/block_pool.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "worker/kv/free_map.h"

/* What is known about one block. `name` is not 0 exactly if the block is published, and then
 * `before`, `bucket_next` and its tokens are valid; it is in the LRU list exactly if it is
 * published and nobody holds it. */
struct block {
    uint32_t references;
    int32_t bucket_next;
    int32_t older, newer; /* LRU list */
    pd_prefix name, before;
};

struct pd_block_pool {
    struct pd_free_map free_map;
    struct block *blocks;
    int32_t *tokens; /* [blocks][block_size], of published ones */
    int32_t *buckets;
    uint64_t bucket_mask;
    uint64_t hash_key; /* random, so that no client can aim at one bucket */
    pd_prefix last_name;
    int32_t oldest, newest; /* LRU list */
    int32_t total, cached;
    int block_size;
    bool prefix_caching;
    uint64_t evictions;
};

int pd_block_pool_create(const struct pd_block_pool_options *options, struct pd_block_pool **result,
                         struct pd_error *error)
{
    struct pd_block_pool *pool;
    size_t count, buckets = 1;

    *result = NULL;
    if (options->blocks < 1 || options->blocks > INT32_MAX || options->block_size < 1 ||
        options->block_size > 1024)
        return pd_fail(error, PD_INVALID, "a KV pool of %lld blocks of %d tokens cannot be made",
                       (long long)options->blocks, options->block_size);
    count = (size_t)options->blocks;
    while (buckets < count)
        buckets *= 2;
    pool = calloc(1, sizeof(*pool));
    if (!pool)
        return pd_fail(error, PD_NO_MEMORY, "no memory for the table of KV blocks");
    pool->blocks = calloc(count, sizeof(*pool->blocks));
    pool->tokens = calloc(count * (size_t)options->block_size, sizeof(*pool->tokens));
    pool->buckets = malloc(buckets * sizeof(*pool->buckets));
    if (!pd_free_map_init(&pool->free_map, (int32_t)count) || !pool->blocks || !pool->tokens ||
        !pool->buckets) {
        pd_block_pool_destroy(pool);
        return pd_fail(error, PD_NO_MEMORY, "no memory for the table of %zu KV blocks", count);
    }
    for (size_t i = 0; i < buckets; i++)
        pool->buckets[i] = PD_NO_BLOCK;
    if (getrandom(&pool->hash_key, sizeof(pool->hash_key), 0) != sizeof(pool->hash_key)) {
        pd_block_pool_destroy(pool);
        return pd_fail(error, PD_IO, "getrandom() gives no key for the prefix cache");
    }
    pool->bucket_mask = buckets - 1;
    pool->oldest = pool->newest = PD_NO_BLOCK;
    pool->total = (int32_t)count;
    pool->block_size = options->block_size;
    pool->prefix_caching = options->prefix_caching;
    *result = pool;
    return PD_OK;
}

void pd_block_pool_destroy(struct pd_block_pool *pool)
{
    if (!pool)
        return;
    pd_free_map_destroy(&pool->free_map);
    free(pool->blocks);
    free(pool->tokens);
    free(pool->buckets);
    free(pool);
}

void pd_block_pool_count(const struct pd_block_pool *pool, struct pd_block_counts *counts)
{
    counts->total = pool->total;
    counts->available = (int64_t)pool->free_map.free + pool->cached;
    counts->cached = pool->cached;
    counts->evictions = pool->evictions;
}

uint32_t pd_block_pool_references(const struct pd_block_pool *pool, int32_t block)
{
    return pool->blocks[block].references;
}

/* ---- the table of published blocks ----------------------------------------------------------- */

static int32_t *tokens_of(const struct pd_block_pool *pool, int32_t block)
{
    return pool->tokens + (size_t)block * (size_t)pool->block_size;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    __uint128_t product = (__uint128_t)(a ^ UINT64_C(0x9e3779b97f4a7c15)) * (b | 1);

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static int32_t *bucket_of(const struct pd_block_pool *pool, pd_prefix before, const int32_t *tokens)
{
    uint64_t hash = mix(before ^ pool->hash_key, pool->hash_key);

    for (int i = 0; i < pool->block_size; i++)
        hash = mix(hash + (uint32_t)tokens[i], pool->hash_key);
    return &pool->buckets[hash & pool->bucket_mask];
}

static int32_t find(const struct pd_block_pool *pool, pd_prefix before, const int32_t *tokens)
{
    int32_t block = *bucket_of(pool, before, tokens);

    while (block != PD_NO_BLOCK) {
        const struct block *b = &pool->blocks[block];

        if (b->before == before &&
            memcmp(tokens_of(pool, block), tokens, (size_t)pool->block_size * sizeof(*tokens)) == 0)
            return block;
        block = b->bucket_next;
    }
    return PD_NO_BLOCK;
}

static void unpublish(struct pd_block_pool *pool, int32_t block)
{
    struct block *b = &pool->blocks[block];
    int32_t *link = bucket_of(pool, b->before, tokens_of(pool, block));

    while (*link != block)
        link = &pool->blocks[*link].bucket_next;
    *link = b->bucket_next;
    b->name = PD_PREFIX_EMPTY;
}

/* ---- the LRU list: published and held by nobody ---------------------------------------------- */

static void lru_append(struct pd_block_pool *pool, int32_t block)
{
    struct block *b = &pool->blocks[block];

    b->older = pool->newest;
    b->newer = PD_NO_BLOCK;
    if (pool->newest != PD_NO_BLOCK)
        pool->blocks[pool->newest].newer = block;
    else
        pool->oldest = block;
    pool->newest = block;
    pool->cached++;
}

static void lru_remove(struct pd_block_pool *pool, int32_t block)
{
    struct block *b = &pool->blocks[block];

    if (b->older != PD_NO_BLOCK)
        pool->blocks[b->older].newer = b->newer;
    else
        pool->oldest = b->newer;
    if (b->newer != PD_NO_BLOCK)
        pool->blocks[b->newer].older = b->older;
    else
        pool->newest = b->older;
    pool->cached--;
}

static void evict_oldest(struct pd_block_pool *pool)
{
    int32_t block = pool->oldest;

    lru_remove(pool, block);
    unpublish(pool, block);
    pd_free_map_put(&pool->free_map, block);
    pool->evictions++;
}

/* ---- holding --------------------------------------------------------------------------------- */

bool pd_block_pool_alloc(struct pd_block_pool *pool, size_t count, int32_t after, int32_t *blocks)
{
    if (count > (size_t)pool->free_map.free + (size_t)pool->cached)
        return false;
    while ((size_t)pool->free_map.free < count)
        evict_oldest(pool);
    pd_free_map_take(&pool->free_map, count, after, blocks);
    for (size_t i = 0; i < count; i++)
        pool->blocks[blocks[i]].references = 1;
    return true;
}

void pd_block_pool_release(struct pd_block_pool *pool, const int32_t *blocks, size_t count)
{
    while (count > 0) {
        int32_t block = blocks[--count];
        struct block *b = &pool->blocks[block];

        assert(b->references > 0);
        if (--b->references > 0)
            continue;
        if (b->name)
            lru_append(pool, block);
        else
            pd_free_map_put(&pool->free_map, block);
    }
}

size_t pd_block_pool_match(struct pd_block_pool *pool, const int32_t *tokens, size_t count,
                           int32_t *blocks, pd_prefix *prefix)
{
    size_t step = (size_t)pool->block_size, found = 0;

    *prefix = PD_PREFIX_EMPTY;
    while ((found + 1) * step <= count) {
        int32_t block = find(pool, *prefix, tokens + found * step);

        if (block == PD_NO_BLOCK)
            break;
        if (pool->blocks[block].references++ == 0)
            lru_remove(pool, block);
        *prefix = pool->blocks[block].name;
        blocks[found++] = block;
    }
    return found;
}

pd_prefix pd_block_pool_publish(struct pd_block_pool *pool, pd_prefix before, const int32_t *tokens,
                                int32_t block)
{
    struct block *b = &pool->blocks[block];
    int32_t equal, *bucket;

    assert(b->references > 0);
    if (!pool->prefix_caching)
        return PD_PREFIX_EMPTY;
    equal = find(pool, before, tokens);
    if (equal != PD_NO_BLOCK) {
        if (pool->blocks[equal].references == 0) { /* its prefix has just been used */
            lru_remove(pool, equal);
            lru_append(pool, equal);
        }
        return pool->blocks[equal].name;
    }
    assert(!b->name);
    bucket = bucket_of(pool, before, tokens);
    b->name = ++pool->last_name;
    b->before = before;
    memcpy(tokens_of(pool, block), tokens, (size_t)pool->block_size * sizeof(*tokens));
    b->bucket_next = *bucket;
    *bucket = block;
    return b->name;
}

void pd_block_pool_forget(struct pd_block_pool *pool, int32_t block)
{
    struct block *b = &pool->blocks[block];

    if (!b->name)
        return;
    unpublish(pool, block);
    if (b->references > 0)
        return;
    lru_remove(pool, block);
    pd_free_map_put(&pool->free_map, block);
}
