#include "worker/kv/free_map.h"

#include <assert.h>
#include <stdlib.h>

bool pd_free_map_init(struct pd_free_map *map, int32_t size)
{
    map->words = calloc(((size_t)size + 63) / 64, sizeof(*map->words));
    map->size = size;
    map->free = 0;
    if (!map->words)
        return false;
    for (int32_t block = 0; block < size; block++)
        pd_free_map_put(map, block);
    return true;
}

void pd_free_map_destroy(struct pd_free_map *map)
{
    free(map->words);
}

static bool is_free(const struct pd_free_map *map, int32_t block)
{
    return map->words[block / 64] >> (block % 64) & 1;
}

void pd_free_map_put(struct pd_free_map *map, int32_t block)
{
    assert(!is_free(map, block));
    map->words[block / 64] |= UINT64_C(1) << (block % 64);
    map->free++;
}

static void take_one(struct pd_free_map *map, int32_t block)
{
    assert(is_free(map, block));
    map->words[block / 64] &= ~(UINT64_C(1) << (block % 64));
    map->free--;
}

/* First block at or behind `from` that is free (or not free), else map->size. */
static int32_t next_with(const struct pd_free_map *map, int32_t from, bool want_free)
{
    while (from < map->size) {
        uint64_t word = map->words[from / 64];

        word = (want_free ? word : ~word) >> (from % 64);
        if (word) {
            from += __builtin_ctzll(word);
            return from < map->size ? from : map->size;
        }
        from = (from / 64 + 1) * 64;
    }
    return map->size;
}

/* The length of run to take for `need` blocks: the shortest that holds them all, else the longest.
 */
static int32_t best_length(const struct pd_free_map *map, size_t need)
{
    int32_t enough = INT32_MAX, longest = 0;
    int32_t end;

    for (int32_t start = next_with(map, 0, true); start < map->size;
         start = next_with(map, end, true)) {
        end = next_with(map, start, false);
        if ((size_t)(end - start) >= need && end - start < enough)
            enough = end - start;
        if (end - start > longest)
            longest = end - start;
    }
    return enough < INT32_MAX ? enough : longest;
}

/* Takes the blocks from `start` on while they are free and fewer than `limit`; returns how many. */
static size_t take_run(struct pd_free_map *map, int32_t start, size_t limit, int32_t *blocks)
{
    size_t done = 0;

    for (int32_t block = start; done < limit && block < map->size && is_free(map, block); block++) {
        take_one(map, block);
        blocks[done++] = block;
    }
    return done;
}

void pd_free_map_take(struct pd_free_map *map, size_t count, int32_t after, int32_t *blocks)
{
    size_t done = 0;

    assert(count <= (size_t)map->free);
    if (after >= 0)
        done = take_run(map, after + 1, count, blocks);
    while (done < count) {
        int32_t length = best_length(map, count - done);
        int32_t end;

        /* All runs of this length that are used whole go in one pass. */
        for (int32_t start = next_with(map, 0, true); start < map->size;
             start = next_with(map, end, true)) {
            end = next_with(map, start, false);
            if (end - start != length)
                continue;
            done += take_run(map, start, count - done, blocks + done);
            if ((size_t)length > count - done)
                break;
        }
    }
}
