/* Where the keys and values that a query attends to lie in the pool, and loading them early.
 *
 * They come from memory that was not touched since the step before, in pieces of a few kilobytes that the
 * hardware does not foresee. So while some keys are computed, as many others are loaded: of this query, then of
 * the one that follows.
 *
 *     query   ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒░░░░░░░         next   ▒▒▒░░░░░░░
 *             computed ▲         ▲ loaded so far, then ──▶
 *
 * Included by attend.h, attend_few.h and attend_bf16.h only. */
#ifndef PD_KEYS_H
#define PD_KEYS_H

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/path.h"

enum { LOADED_AHEAD = 2 * PD_CPU_SPLIT }; /* keys of the next query at most */

/* Rows of a pool: a split's keys, and as many whose loading is to be started meanwhile, or fewer and some of them
 * again. Each key's value lies `tile` bytes behind it. */
struct located {
    const uint8_t *key[PD_CPU_SPLIT], *ahead[PD_CPU_SPLIT];
    size_t row, tile; /* bytes */
};

INLINE size_t kv_size(const struct pd_kv_pool *pool)
{
    return pool->type == PD_F32 ? 4 : 2;
}

/* Sixteen numbers of a key or value. */
INLINE lanes load_kv(enum pd_dtype type, const uint8_t *from)
{
    switch (type) {
    case PD_F16:
        return lanes_load_f16((const uint16_t *)from);
    case PD_BF16:
        return lanes_load_bf16((const uint16_t *)from);
    default:
        return lanes_load((const float *)from);
    }
}

INLINE const uint8_t *kv_block(const struct pd_cpu_query *query, int block)
{
    const struct pd_kv_pool *pool = query->pool;
    int64_t at = pd_kv_tile(pool, query->layer, query->kv_head, query->blocks[block], 0);

    return (const uint8_t *)pool->buffer->host + (size_t)at * kv_size(pool);
}

/* Where keys from position `first` on lie, `count` of them. */
static void rows_from(const struct pd_cpu_query *query, int first, int count, const uint8_t **out)
{
    const struct pd_kv_pool *pool = query->pool;
    size_t row = (size_t)pool->head_dim * kv_size(pool);
    int block = first / pool->block_size, offset = first % pool->block_size;

    for (; count > 0; block++, offset = 0) {
        int rows = pool->block_size - offset < count ? pool->block_size - offset : count;
        const uint8_t *key = kv_block(query, block) + (size_t)offset * row;

        for (int i = 0; i < rows; i++)
            out[i] = key + (size_t)i * row;
        out += rows;
        count -= rows;
    }
}

/* Keys of which the query's last row sees some. */
INLINE int keys_of(const struct pd_cpu_query *query)
{
    int keys = query->position + query->tokens, end = query->end * PD_CPU_SPLIT;

    return keys < end ? keys : end;
}

/* Of `keys`, those of the split that begins at `first`. */
INLINE int split_keys(int keys, int first)
{
    return keys - first < PD_CPU_SPLIT ? keys - first : PD_CPU_SPLIT;
}

/* Of keys that are not on their way yet, before `end`, at most `room`: there they are, and now they are. */
static int rows_ahead(struct pd_cpu_query *query, int end, int room, const uint8_t **out)
{
    int count = end - query->loaded < room ? end - query->loaded : room;

    if (count <= 0)
        return 0;
    rows_from(query, query->loaded, count, out);
    query->loaded += count;
    return count;
}

/* Finds the `count` keys of the split that begins at `first`, and what is to be loaded while they are computed, of
 * the query and of the one that follows, unless NULL. Both are filled up to whole runs of 32 with what is there. */
static void locate(struct pd_cpu_query *query, struct pd_cpu_query *next, int first, int count,
                   struct located *out)
{
    int room = (count + 31) / 32 * 32, ahead, limit;

    out->row = (size_t)query->pool->head_dim * kv_size(query->pool);
    out->tile = (size_t)query->pool->block_size * out->row;
    rows_from(query, first, count, out->key);
    for (int j = count; j < room; j++)
        out->key[j] = out->key[count - 1];
    if (query->loaded < first + count)
        query->loaded = first + count;
    ahead = rows_ahead(query, keys_of(query), room, out->ahead);
    if (next != NULL) {
        limit = next->first * PD_CPU_SPLIT + LOADED_AHEAD;
        limit = limit < keys_of(next) ? limit : keys_of(next);
        ahead += rows_ahead(next, limit, room - ahead, out->ahead + ahead);
    }
    for (; ahead < room; ahead++)
        out->ahead[ahead] = out->key[count - 1];
}

/* Starts loading keys ahead[first .. end - 1] and their values. */
INLINE void fetch(const struct located *at, int first, int end)
{
    for (int i = first; i < end; i++) {
        for (size_t line = 0; line < at->row; line += 64) {
            __builtin_prefetch(at->ahead[i] + line, 0, 2);
            __builtin_prefetch(at->ahead[i] + at->tile + line, 0, 2);
        }
    }
}

/* What a function that has the pool's type for a constant does. */
#define EACH_TYPE(function, a, ...)                                                                \
    switch ((a)->query->pool->type) {                                                              \
    case PD_F16:                                                                                   \
        function(PD_F16, a, __VA_ARGS__);                                                          \
        break;                                                                                     \
    case PD_BF16:                                                                                  \
        function(PD_BF16, a, __VA_ARGS__);                                                         \
        break;                                                                                     \
    default:                                                                                       \
        function(PD_F32, a, __VA_ARGS__);                                                          \
    }

#endif
