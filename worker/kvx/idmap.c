#include "worker/kvx/idmap.h"

#include <stdlib.h>

#include "worker/base/error.h"

struct pd_idmap_slot {
    uint64_t id;
    void *value; /* NULL: free */
};

/* Fibonacci hashing, folded. Only ids of this process are put; a peer can merely ask for others. */
static size_t home(const struct pd_idmap *map, uint64_t id)
{
    uint64_t mixed = id * 0x9e3779b97f4a7c15u;

    return (size_t)(mixed ^ mixed >> 32) & map->mask;
}

int pd_idmap_init(struct pd_idmap *map, size_t capacity)
{
    size_t slots = 16;

    while (slots < 2 * capacity)
        slots *= 2;
    map->slots = calloc(slots, sizeof(*map->slots));
    map->mask = slots - 1;
    map->count = 0;
    map->capacity = capacity;
    return map->slots ? PD_OK : PD_NO_MEMORY;
}

void pd_idmap_free(struct pd_idmap *map)
{
    free(map->slots);
    map->slots = NULL;
}

/* The slot that holds the id, or the free one where it would go. */
static size_t find(const struct pd_idmap *map, uint64_t id)
{
    size_t at = home(map, id);

    while (map->slots[at].value && map->slots[at].id != id)
        at = (at + 1) & map->mask;
    return at;
}

void *pd_idmap_get(const struct pd_idmap *map, uint64_t id)
{
    return map->slots[find(map, id)].value;
}

int pd_idmap_put(struct pd_idmap *map, uint64_t id, void *value)
{
    size_t at = find(map, id);

    if (map->slots[at].value)
        return PD_INVALID;
    if (map->count == map->capacity)
        return PD_FULL;
    map->slots[at] = (struct pd_idmap_slot){id, value};
    map->count++;
    return PD_OK;
}

/* Closes the gap: an entry behind it moves in unless its home lies between gap and entry. */
void *pd_idmap_remove(struct pd_idmap *map, uint64_t id)
{
    size_t gap = find(map, id), at = gap;
    void *value = map->slots[gap].value;

    if (!value)
        return NULL;
    for (;;) {
        at = (at + 1) & map->mask;
        if (!map->slots[at].value)
            break;
        if (((at - home(map, map->slots[at].id)) & map->mask) < ((at - gap) & map->mask))
            continue;
        map->slots[gap] = map->slots[at];
        gap = at;
    }
    map->slots[gap].value = NULL;
    map->count--;
    return value;
}
