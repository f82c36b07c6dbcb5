#include "kernels/cuda/batch.h"

void pd_cuda_batch_begin(struct pd_cuda_batch *batch, struct pd_cuda_lane *lane, void *pool,
                         void *buffer, bool out)
{
    batch->lane = lane;
    batch->pool = pool;
    batch->buffer = buffer;
    batch->out = out;
    batch->short_ones.count = 0;
}

static int copy(const struct pd_cuda_batch *batch, const struct pd_cuda_range *range)
{
    char *inside = batch->pool + range->pool, *outside = batch->buffer + range->buffer;

    return batch->out ? pd_cuda_lane_copy(batch->lane, outside, inside, range->bytes)
                      : pd_cuda_lane_copy(batch->lane, inside, outside, range->bytes);
}

int pd_cuda_batch_end(struct pd_cuda_batch *batch)
{
    const struct pd_cuda_ranges *all = &batch->short_ones;
    int error;

    if (all->count == 0)
        return 0;
    if (all->count == 1) /* nothing is saved */
        error = copy(batch, &all->range[0]);
    else if (batch->out)
        error = pd_cuda_lane_gather(batch->lane, batch->pool, all, batch->buffer);
    else
        error = pd_cuda_lane_scatter(batch->lane, batch->buffer, all, batch->pool);
    batch->short_ones.count = 0;
    return error;
}

int pd_cuda_batch_add(struct pd_cuda_batch *batch, struct pd_cuda_range range)
{
    struct pd_cuda_ranges *all = &batch->short_ones;

    if (range.bytes >= PD_CUDA_LONG_RANGE ||
        (range.pool | range.buffer | range.bytes) % PD_CUDA_RANGE_UNIT != 0)
        return copy(batch, &range);
    all->range[all->count++] = range;
    return all->count < PD_CUDA_RANGES ? 0 : pd_cuda_batch_end(batch);
}
