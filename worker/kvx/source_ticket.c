/* A ticket by itself: its copy of what was offered, the runs that its blocks are in, and what is done to them
 * before a reader hears of them. */
#include "worker/kvx/source_state.h"

#include <stdlib.h>
#include <string.h>

/* ---- the offer ------------------------------------------------------------------------------- */

static int compare_runs(const void *a, const void *b)
{
    const struct run *x = a, *y = b;

    return (x->first > y->first) - (x->first < y->first);
}

/* Cuts the prompt's blocks into runs of adjacent ones. Room for one run per block is there. */
static int find_runs(struct pd_source_ticket *ticket, const int32_t *blocks,
                     const struct pd_layout *layout)
{
    size_t n = 0;

    for (uint32_t i = 0; i < ticket->blocks; i++) {
        if (blocks[i] < 0 || (uint64_t)blocks[i] >= layout->blocks)
            return PD_INVALID;
        if (n > 0 && ticket->runs[n - 1].first + ticket->runs[n - 1].count == (uint32_t)blocks[i])
            ticket->runs[n - 1].count++;
        else
            ticket->runs[n++] = (struct run){(uint32_t)blocks[i], 1, i};
    }
    for (size_t i = 0; i < n; i++)
        ticket->extents[i] = (struct pd_extent){ticket->runs[i].first, ticket->runs[i].count};
    ticket->extent_count = n;
    qsort(ticket->runs, n, sizeof(*ticket->runs), compare_runs);
    return PD_OK;
}

int pd_source_ticket_create(const struct pd_kvx_offer *offer, const struct pd_layout *layout,
                            struct pd_source_ticket **out)
{
    struct pd_source_ticket *ticket;
    int status;

    if (offer->tokens == 0 || offer->block_count != pd_layout_blocks_for(layout, offer->tokens))
        return PD_INVALID;
    ticket = calloc(1, sizeof(*ticket));
    if (!ticket)
        return PD_NO_MEMORY;
    ticket->generation = offer->generation;
    ticket->owner = offer->owner;
    memcpy(ticket->secret, offer->secret, sizeof(ticket->secret));
    ticket->tokens = offer->tokens;
    ticket->blocks = (uint32_t)offer->block_count;
    ticket->ready.generation = offer->generation;
    pd_list_init(&ticket->in_source);
    pd_list_init(&ticket->in_link);
    pd_list_init(&ticket->in_work);
    ticket->prompt = calloc(offer->tokens, sizeof(*ticket->prompt));
    ticket->extents = calloc(offer->block_count, sizeof(*ticket->extents));
    ticket->runs = calloc(offer->block_count, sizeof(*ticket->runs));
    status = PD_NO_MEMORY;
    if (ticket->prompt && ticket->extents && ticket->runs) {
        for (uint32_t i = 0; i < offer->tokens; i++)
            ticket->prompt[i] = (uint32_t)offer->prompt[i];
        status = find_runs(ticket, offer->blocks, layout);
    }
    if (status != PD_OK)
        pd_source_ticket_free(ticket);
    else
        *out = ticket;
    return status;
}

void pd_source_ticket_free(struct pd_source_ticket *ticket)
{
    free(ticket->prompt);
    free(ticket->extents);
    free(ticket->runs);
    free(ticket->sums);
    free(ticket);
}

/* ---- preparing ------------------------------------------------------------------------------- */

uint32_t pd_ticket_ready_blocks(const struct pd_source *source,
                                const struct pd_source_ticket *ticket)
{
    return ticket->ready.complete ? ticket->blocks
                                  : ticket->ready.tokens / source->options.layout.block_size;
}

bool pd_ticket_wants_preparing(const struct pd_source_ticket *ticket)
{
    return ticket->link->path.staged || ticket->sums;
}

static uint64_t sum_block(const struct pd_source *source, uint32_t block)
{
    const struct pd_layout *layout = &source->options.layout;
    uint64_t sum = 0;

    for (uint32_t plane = 0; plane < layout->layers * layout->kv_heads; plane++) {
        uint64_t begin =
            pd_layout_plane(layout, plane / layout->kv_heads, plane % layout->kv_heads, 0);

        sum += source->world.sum(source->world.context,
                                 begin + block * (uint64_t)layout->block_bytes, plane);
    }
    return sum;
}

/* The run of the ticket's blocks from the `index`-th of the prompt on, cut at `end`. */
static struct pd_extent run_from(const struct pd_source_ticket *ticket, uint32_t index,
                                 uint32_t end)
{
    const struct pd_extent *extent = ticket->extents;

    for (; index >= extent->count; extent++) {
        index -= extent->count;
        end -= extent->count;
    }
    return (struct pd_extent){extent->first + index,
                              (end < extent->count ? end : extent->count) - index};
}

/* As many blocks as fill a slice, or one. From then on nobody writes to them. */
bool pd_ticket_prepare(struct pd_source *source, struct pd_source_ticket *ticket)
{
    const struct pd_layout *layout = &source->options.layout;
    uint64_t block = layout->layers * (uint64_t)layout->kv_heads * layout->block_bytes;
    uint32_t most = block < PD_READ_BYTES ? (uint32_t)(PD_READ_BYTES / block) : 1;
    uint32_t index = ticket->prepared, end = pd_ticket_ready_blocks(source, ticket), first, count;
    struct pd_extent run;

    if (index >= end)
        return true;
    run = run_from(ticket, index, end);
    first = run.first;
    count = run.count < most ? run.count : most;
    if (ticket->link->path.staged && !source->world.stage(source->world.context, first, count))
        return false;
    for (uint32_t i = 0; ticket->sums && i < count; i++)
        ticket->sums[index + i] = sum_block(source, first + i);
    ticket->prepared += count;
    return true;
}
