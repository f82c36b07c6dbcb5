/* Which blocks are free: a bitmap that answers with runs. */
#ifndef PD_FREE_MAP_H
#define PD_FREE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pd_free_map {
    uint64_t *words; /* bit set: free */
    int32_t size;
    int32_t free;
};

/* All `size` (> 0) blocks free; false without memory. */
bool pd_free_map_init(struct pd_free_map *map, int32_t size);
void pd_free_map_destroy(struct pd_free_map *map);

void pd_free_map_put(struct pd_free_map *map, int32_t block);

/* Takes `count` <= map->free blocks: first what follows `after` (none if negative), then the fewest
 * runs, of these the shortest that will do. O(size / 64) per distinct length of run. */
void pd_free_map_take(struct pd_free_map *map, size_t count, int32_t after, int32_t *blocks);

#endif
