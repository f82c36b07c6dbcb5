/* A fixed-size map from 64-bit ids to pointers: tickets by generation, fetches and links by id.
 * Open addressing with linear probing; the table is made twice as large as its capacity, so a probe
 * is short, and it never grows. */
#ifndef PD_KVX_IDMAP_H
#define PD_KVX_IDMAP_H

#include <stddef.h>
#include <stdint.h>

struct pd_idmap {
    struct pd_idmap_slot *slots;
    size_t mask, count, capacity;
};

/* PD_OK or PD_NO_MEMORY. */
int pd_idmap_init(struct pd_idmap *map, size_t capacity);
void pd_idmap_free(struct pd_idmap *map);

/* NULL if there is none. */
void *pd_idmap_get(const struct pd_idmap *map, uint64_t id);

/* PD_OK; PD_FULL at the capacity; PD_INVALID if the id is there already. `value` is not NULL. */
int pd_idmap_put(struct pd_idmap *map, uint64_t id, void *value);

/* The value that was there, or NULL. */
void *pd_idmap_remove(struct pd_idmap *map, uint64_t id);

#endif
