#include "worker/kvx/layout.h"

#include <string.h>

enum {
    WORDS_ALIGNMENT = 4096,
    RANK_ALIGNMENT = 2 << 20 /* a huge page, so that memories lie side by side */
};

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

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Heads of a rank: an equal share, or one that it shares with equally many others. */
static int derive_heads(struct pd_layout *layout, struct pd_error *error)
{
    if (layout->ranks == 0)
        layout->ranks = 1;
    if (bound("ranks", layout->ranks, 1, PD_RANKS_MAX, error) != PD_OK)
        return PD_INVALID;
    if (layout->kv_heads % layout->ranks != 0 && layout->ranks % layout->kv_heads != 0)
        return pd_fail(error, PD_INVALID, "pool layout: %u kv_heads on %u ranks", layout->kv_heads,
                       layout->ranks);
    layout->rank_heads = layout->ranks > layout->kv_heads ? 1 : layout->kv_heads / layout->ranks;
    return PD_OK;
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
        bound("blocks", layout->blocks, 1, INT32_MAX, error) != PD_OK ||
        derive_heads(layout, error) != PD_OK)
        return PD_INVALID;
    if (layout->element_bytes == 3)
        return pd_fail(error, PD_INVALID, "pool layout: element_bytes is 3");
    planes = (uint64_t)layout->layers * layout->rank_heads;
    layout->block_bytes =
        2u * (uint64_t)layout->block_size * layout->head_dim * layout->element_bytes;
    layout->plane_bytes = layout->blocks * layout->block_bytes;
    if (layout->plane_bytes > pool_bytes_max / planes)
        return pd_fail(error, PD_INVALID, "pool layout: larger than %llu bytes",
                       (unsigned long long)pool_bytes_max);
    layout->rank_bytes = planes * layout->plane_bytes;
    layout->words_offset = round_up(layout->rank_bytes, WORDS_ALIGNMENT);
    layout->total = layout->words_offset + layout->blocks * sizeof(uint64_t);
    if (layout->ranks > 1)
        layout->total = round_up(layout->total, RANK_ALIGNMENT);
    layout->stride = layout->total;
    layout->bytes = (layout->ranks - 1) * layout->stride + layout->rank_bytes;
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
int pd_layout_of_pool(const struct pd_kv_pool *pool, int ranks, int kv_heads,
                      struct pd_layout *layout, struct pd_error *error)
{
    memset(layout, 0, sizeof(*layout));
    layout->layers = (uint32_t)pool->layers;
    layout->ranks = ranks ? (uint32_t)ranks : 1;
    layout->kv_heads = kv_heads ? (uint32_t)kv_heads : (uint32_t)pool->kv_heads * layout->ranks;
    layout->block_size = (uint32_t)pool->block_size;
    layout->head_dim = (uint32_t)pool->head_dim;
    layout->element_bytes = element_bytes(pool->type);
    layout->blocks = (uint64_t)pool->blocks;
    if (layout->element_bytes == 0)
        return pd_fail(error, PD_UNSUPPORTED,
                       "KV pool: values of type %d cannot be handed off; use F32, F16 or BF16",
                       (int)pool->type);
    if (pd_layout_derive(layout, error) != PD_OK)
        return PD_INVALID;
    if (layout->rank_heads != (uint32_t)pool->kv_heads)
        return pd_fail(error, PD_INVALID, "KV pool: %d heads on each of %u ranks, the model has %u",
                       pool->kv_heads, layout->ranks, layout->kv_heads);
    return PD_OK;
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
    uint64_t in_rank = offset % layout->stride, in_plane;

    if (offset >= layout->bytes || in_rank >= layout->rank_bytes || length == 0 ||
        length > layout->rank_bytes - in_rank)
        return false;
    in_plane = in_rank % layout->plane_bytes;
    if (length > layout->plane_bytes - in_plane)
        return false;
    if (in_plane % layout->block_bytes != 0 || length % layout->block_bytes != 0)
        return false;
    *first = (uint32_t)(in_plane / layout->block_bytes);
    *count = (uint32_t)(length / layout->block_bytes);
    return true;
}

uint64_t pd_layout_plane(const struct pd_layout *layout, uint32_t layer, uint32_t head,
                         uint32_t copy)
{
    uint32_t rank = head / layout->rank_heads * pd_layout_copies(layout) + copy;
    uint64_t plane = (uint64_t)layer * layout->rank_heads + head % layout->rank_heads;

    return rank * layout->stride + plane * layout->plane_bytes;
}

/* The model's head that is a rank's first. */
static uint32_t first_head(const struct pd_layout *layout, uint32_t rank)
{
    return rank / pd_layout_copies(layout) * layout->rank_heads;
}

uint32_t pd_layout_plane_number(const struct pd_layout *layout, uint64_t offset)
{
    uint32_t rank = (uint32_t)(offset / layout->stride);
    uint32_t plane = (uint32_t)(offset % layout->stride / layout->plane_bytes);

    return plane / layout->rank_heads * layout->kv_heads + first_head(layout, rank) +
           plane % layout->rank_heads;
}

static uint32_t planes_of(const struct pd_layout *layout)
{
    return layout->ranks * layout->layers * layout->rank_heads;
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
    return plan->first < plan->end && plan->plane < planes_of(plan->to);
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

/* Where the plan's plane begins, in both pools. Ranks of a reader that have the same head read it from
 * different ranks of a source, as far as there are. */
static void place_plane(const struct pd_plan *plan, uint64_t *source, uint64_t *destination)
{
    const struct pd_layout *to = plan->to;
    uint32_t per_rank = to->layers * to->rank_heads;
    uint32_t rank = plan->plane / per_rank, plane = plan->plane % per_rank;
    uint32_t head = first_head(to, rank) + plane % to->rank_heads;

    *destination = rank * to->stride + plane * to->plane_bytes;
    *source = pd_layout_plane(plan->from, plane / to->rank_heads, head,
                              rank % pd_layout_copies(plan->from));
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
        uint64_t source, destination;

        if (length > PD_READ_BYTES - read->bytes)
            break;
        place_plane(plan, &source, &destination);
        range->source = source + plan->source[plan->next] * from->block_bytes;
        range->destination =
            destination + (uint64_t)plan->destination[plan->next] * to->block_bytes;
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
