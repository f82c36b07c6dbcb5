#include "worker/kvx/layout.h"

#include <string.h>

enum { WORDS_ALIGNMENT = 4096 };

/* No pool of today's machines comes near; keeps every sum below far from overflow. */
static const uint64_t pool_bytes_max = (uint64_t)1 << 48;

static int bound(const char *what, uint64_t value, uint64_t low, uint64_t high,
                 struct pd_error *error)
{
    if (value >= low && value <= high)
        return PD_OK;
    return pd_fail(error, PD_INVALID, "pool layout: %s is %llu, not within %llu to %llu", what,
                   (unsigned long long)value, (unsigned long long)low, (unsigned long long)high);
}

int pd_layout_derive(struct pd_layout *layout, struct pd_error *error)
{
    uint64_t planes;

    if (bound("layers", layout->layers, 1, PD_LAYOUT_DIMENSION_MAX, error) != PD_OK ||
        bound("kv_heads", layout->kv_heads, 1, PD_LAYOUT_DIMENSION_MAX, error) != PD_OK ||
        bound("head_dim", layout->head_dim, 1, PD_LAYOUT_DIMENSION_MAX, error) != PD_OK ||
        bound("block_size", layout->block_size, PD_LAYOUT_BLOCK_MIN, PD_LAYOUT_BLOCK_MAX, error) !=
            PD_OK ||
        bound("element_bytes", layout->element_bytes, 1, 4, error) != PD_OK ||
        bound("blocks", layout->blocks, 1, INT32_MAX, error) != PD_OK)
        return PD_INVALID;
    if (layout->element_bytes == 3)
        return pd_fail(error, PD_INVALID, "pool layout: element_bytes is 3");
    planes = (uint64_t)layout->layers * layout->kv_heads;
    layout->block_bytes =
        2u * (uint64_t)layout->block_size * layout->head_dim * layout->element_bytes;
    layout->plane_bytes = layout->blocks * layout->block_bytes;
    if (layout->plane_bytes > pool_bytes_max / planes)
        return pd_fail(error, PD_INVALID, "pool layout: larger than %llu bytes",
                       (unsigned long long)pool_bytes_max);
    layout->bytes = planes * layout->plane_bytes;
    layout->words_offset =
        (layout->bytes + WORDS_ALIGNMENT - 1) / WORDS_ALIGNMENT * WORDS_ALIGNMENT;
    layout->total = layout->words_offset + layout->blocks * sizeof(uint64_t);
    return PD_OK;
}

static uint32_t element_bytes(enum pd_dtype type)
{
    switch (type) {
    case PD_F32:
        return 4;
    case PD_F16:
    case PD_BF16:
        return 2;
    default:
        return 0;
    }
}

/* Negative dimensions become large and are refused by their bound. */
int pd_layout_of_pool(const struct pd_kv_pool *pool, struct pd_layout *layout,
                      struct pd_error *error)
{
    memset(layout, 0, sizeof(*layout));
    layout->layers = (uint32_t)pool->layers;
    layout->kv_heads = (uint32_t)pool->kv_heads;
    layout->block_size = (uint32_t)pool->block_size;
    layout->head_dim = (uint32_t)pool->head_dim;
    layout->element_bytes = element_bytes(pool->type);
    layout->blocks = (uint64_t)pool->blocks;
    if (layout->element_bytes == 0)
        return pd_fail(error, PD_UNSUPPORTED,
                       "KV pool: values of type %d cannot be handed off; use F32, F16 or BF16",
                       (int)pool->type);
    return pd_layout_derive(layout, error);
}

int pd_layout_match(const struct pd_layout *source, const struct pd_layout *own,
                    struct pd_error *error)
{
    if (source->layers == own->layers && source->kv_heads == own->kv_heads &&
        source->block_size == own->block_size && source->head_dim == own->head_dim &&
        source->element_bytes == own->element_bytes)
        return PD_OK;
    return pd_fail(error, PD_INVALID,
                   "the pools differ in shape (layers/kv_heads/block_size/head_dim/element_bytes): "
                   "source %u/%u/%u/%u/%u, reader %u/%u/%u/%u/%u; give both workers the same "
                   "model and --block-size",
                   source->layers, source->kv_heads, source->block_size, source->head_dim,
                   source->element_bytes, own->layers, own->kv_heads, own->block_size,
                   own->head_dim, own->element_bytes);
}

bool pd_layout_locate(const struct pd_layout *layout, uint64_t offset, uint64_t length,
                      uint32_t *first, uint32_t *count)
{
    uint64_t in_plane;

    if (offset >= layout->bytes || length == 0 || length > layout->bytes - offset)
        return false;
    in_plane = offset % layout->plane_bytes;
    if (length > layout->plane_bytes - in_plane)
        return false;
    if (in_plane % layout->block_bytes != 0 || length % layout->block_bytes != 0)
        return false;
    *first = (uint32_t)(in_plane / layout->block_bytes);
    *count = (uint32_t)(length / layout->block_bytes);
    return true;
}

void pd_plan_begin(struct pd_plan *plan, const struct pd_layout *from, const uint32_t *source,
                   const struct pd_layout *to, const int32_t *destination, size_t first, size_t end)
{
    plan->from = from;
    plan->to = to;
    plan->source = source;
    plan->destination = destination;
    plan->first = first;
    plan->end = end;
    plan->next = first;
    plan->plane = 0;
}

bool pd_plan_more(const struct pd_plan *plan)
{
    return plan->first < plan->end && plan->plane < plan->from->layers * plan->from->kv_heads;
}

/* How many blocks from plan->next on are adjacent in both pools and fit into one read. */
static size_t run_length(const struct pd_plan *plan)
{
    uint64_t most = PD_READ_BYTES / plan->from->block_bytes;
    size_t at = plan->next, n = 1;

    while (at + n < plan->end && n < most && plan->source[at + n] == plan->source[at] + n &&
           plan->destination[at + n] == plan->destination[at] + (int64_t)n)
        n++;
    return n;
}

/* A run is not cut to fill a read up: a plane's run of up to PD_READ_BYTES is one range. */
bool pd_plan_next(struct pd_plan *plan, struct pd_read *read)
{
    const struct pd_layout *from = plan->from, *to = plan->to;

    read->count = 0;
    read->bytes = 0;
    while (pd_plan_more(plan) && read->count < PD_READ_RANGES) {
        size_t blocks = run_length(plan);
        uint64_t length = blocks * from->block_bytes;
        struct pd_range *range = &read->ranges[read->count];

        if (length > PD_READ_BYTES - read->bytes)
            break;
        range->source =
            plan->plane * from->plane_bytes + plan->source[plan->next] * from->block_bytes;
        range->destination = plan->plane * to->plane_bytes +
                             (uint64_t)plan->destination[plan->next] * to->block_bytes;
        range->length = (uint32_t)length;
        range->block = (uint32_t)plan->next;
        read->count++;
        read->bytes += length;
        plan->next += blocks;
        if (plan->next == plan->end) {
            plan->next = plan->first;
            plan->plane++;
        }
    }
    return read->count > 0;
}
