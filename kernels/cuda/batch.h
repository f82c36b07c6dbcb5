/* Ranges between the KV pool and other memory, through one lane: a long one by a copy of its own, short ones
 * together by one launch (blocks.cu). A call costs some microseconds whatever it moves, and a prompt whose blocks
 * are scattered is tens of thousands of ranges of some KiB.
 *
 *     ranges ──▶ long, or not in whole units ──▶ pd_cuda_lane_copy
 *           └──▶ short: a table, PD_CUDA_RANGES at most ──▶ pd_cuda_lane_gather, pd_cuda_lane_scatter
 *
 * Nobody says in which order: ranges of one batch do not overlap where they are written. Functions return 0 or the
 * runtime's error number. A batch is one thread's. */
#ifndef PD_CUDA_BATCH_H
#define PD_CUDA_BATCH_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/runtime.h"

/* From here on a range is long: it is on the bus (50 GB/s) for as long as a call takes, and the copy engines move
 * it without a processor. */
enum { PD_CUDA_LONG_RANGE = 128 << 10 };

struct pd_cuda_batch {
    struct pd_cuda_lane *lane;
    char *pool, *buffer; /* buffer: pinned, or what another process has lent */
    bool out;            /* from the pool to the buffer */
    struct pd_cuda_ranges short_ones;
};

void pd_cuda_batch_begin(struct pd_cuda_batch *batch, struct pd_cuda_lane *lane, void *pool,
                         void *buffer, bool out);
int pd_cuda_batch_add(struct pd_cuda_batch *batch, struct pd_cuda_range range);
/* All that was added is on its way in the lane. */
int pd_cuda_batch_end(struct pd_cuda_batch *batch);

#endif
