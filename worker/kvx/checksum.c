#include "worker/kvx/checksum.h"

#include <xxhash.h>

uint64_t pd_checksum_part(const struct pd_pool *pool, uint64_t offset, uint32_t plane)
{
    return XXH3_64bits_withSeed(pool->base + offset, pool->layout.block_bytes, plane);
}
