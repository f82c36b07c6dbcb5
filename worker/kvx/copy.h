/* Copies that are too large to stay in a cache. */
#ifndef PD_KVX_COPY_H
#define PD_KVX_COPY_H

#include <stddef.h>

/* As memcpy, but the destination's lines are neither read first nor kept in the cache: a third less
 * traffic on the memory bus, and whoever else has something in the cache keeps it. What was written is
 * visible to who acquires what the caller releases afterwards, as with memcpy. */
void pd_copy_past_cache(void *to, const void *from, size_t bytes);

#endif
