#include "worker/kvx/lent.h"

#include <string.h>

enum { SLACK = 1 << 30 }; /* bytes that a device may have rounded a memory up by */

const char *pd_lent_obstacle(const struct pd_pool *pool)
{
    if (!pd_pool_on_device(pool))
        return "the KV pool is in the host's memory";
    for (uint32_t r = 0; r < pool->layout.ranks; r++)
        if (pool->device[r].handle < 0 || !pool->device[r].import)
            return "the device gives other processes no handle of its memory";
    return NULL;
}

/* What a source's memory must hold, and no absurd number beyond it. */
static bool plausible(const struct pd_layout *source, uint64_t bytes)
{
    uint64_t needed = source->ranks > 1 ? source->stride : source->rank_bytes;

    return bytes >= needed && bytes - needed <= SLACK;
}

const char *pd_lent_open(struct pd_lent *lent, const struct pd_pool *pool,
                         const struct pd_layout *source, const int *handles, const uint64_t *bytes)
{
    memset(lent, 0, sizeof(*lent));
    for (uint32_t s = 0; s < source->ranks; s++)
        if (!plausible(source, bytes[s]))
            return "the source's devices have lent less, or far more, than its pool";
    lent->pool = pool;
    lent->stride = source->stride;
    lent->ranks = source->ranks;
    memcpy(lent->bytes, bytes, source->ranks * sizeof(*bytes));
    for (uint32_t r = 0; r < pool->layout.ranks; r++) {
        const struct pd_export *own = &pool->device[r];

        for (uint32_t s = 0; s < source->ranks; s++) {
            lent->memory[r][s] = own->import(own->copy_context, handles[s], bytes[s]);
            if (lent->memory[r][s])
                continue;
            pd_lent_close(lent);
            return "this device cannot map the source's memory";
        }
    }
    return NULL;
}

void pd_lent_close(struct pd_lent *lent)
{
    for (uint32_t r = 0; lent->pool && r < lent->pool->layout.ranks; r++) {
        const struct pd_export *own = &lent->pool->device[r];

        for (uint32_t s = 0; s < lent->ranks; s++)
            if (lent->memory[r][s])
                own->forget(own->copy_context, lent->memory[r][s], lent->bytes[s]);
    }
    lent->pool = NULL;
}

/* What of a read goes from one memory of the source's into one of this process's. */
static bool read_between(const struct pd_lent *lent, const struct pd_read *read, uint32_t to,
                         uint32_t from)
{
    const struct pd_layout *own = &lent->pool->layout;
    const struct pd_export *device = &lent->pool->device[to];
    struct pd_export_range ranges[PD_READ_RANGES];
    size_t count = 0;

    for (size_t i = 0; i < read->count; i++) {
        const struct pd_range *range = &read->ranges[i];

        if (pd_rank_at(own->ranks, own->stride, range->destination) == to &&
            pd_rank_at(lent->ranks, lent->stride, range->source) == from)
            ranges[count++] =
                (struct pd_export_range){range->destination - to * own->stride,
                                         range->source - from * lent->stride, range->length};
    }
    return count == 0 || device->read(device->copy_context, lent->memory[to][from], ranges, count);
}

/* A device may be asked to wait for what it was not asked to copy: that is nothing. */
bool pd_lent_read(const struct pd_lent *lent, const struct pd_read *read)
{
    const struct pd_layout *own = &lent->pool->layout;
    bool good = true;

    for (uint32_t to = 0; to < own->ranks; to++)
        for (uint32_t from = 0; from < lent->ranks; from++)
            good = good && read_between(lent, read, to, from);
    for (uint32_t r = 0; r < own->ranks; r++)
        good = lent->pool->device[r].settle(lent->pool->device[r].copy_context) && good;
    return good;
}
