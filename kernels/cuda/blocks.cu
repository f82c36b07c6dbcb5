/* Blocks of the KV pool for the hand-off: ranges that lie anywhere in the pool, gathered into memory where
 * they follow each other, and scattered out of it; one launch for as many as a table has.
 *
 *     pool    ....[ a ]......[ b ]..[ c ]...        up to BLOCKS blocks of threads; where there are fewer
 *     buffer  [ a ][ b ][ c ]                       ranges, several blocks share each
 *
 * Of the two memories either may be the host's, pinned: the floor is the bus then, which some tens of KiB under
 * way keep busy. So few blocks are enough, and the steps that run beside them keep their processors. */

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/pd_simt.cuh"

enum { THREADS = 256, BLOCKS = 32, DEEP = 4 /* loads under way of a thread */ };

/* Share `way` of `ways` of `count` units. */
PD_DEVICE void move_units(const struct pd_u32x4 *from, struct pd_u32x4 *to, uint64_t count, int way,
                          int ways)
{
    const uint64_t stride = (uint64_t)ways * THREADS;

    for (uint64_t first = (uint64_t)(way * THREADS + PD_THREAD); first < count;
         first += DEEP * stride) {
        struct pd_u32x4 units[DEEP];

        PD_UNROLL_ALL
        for (int i = 0; i < DEEP; i++)
            if (first + (uint64_t)i * stride < count)
                units[i] = from[first + (uint64_t)i * stride];
        PD_UNROLL_ALL
        for (int i = 0; i < DEEP; i++)
            if (first + (uint64_t)i * stride < count)
                to[first + (uint64_t)i * stride] = units[i];
    }
}

PD_BUDGET(gather_ranges, 48, 0, 0);

static PD_GLOBAL gather_ranges(const struct pd_cuda_ranges ranges, int across, int ways,
                               const char *pool, char *buffer)
{
    for (int i = PD_BLOCK_X; i < ranges.count; i += across)
        move_units((const struct pd_u32x4 *)(pool + ranges.range[i].pool),
                   (struct pd_u32x4 *)(buffer + ranges.range[i].buffer),
                   ranges.range[i].bytes / PD_CUDA_RANGE_UNIT, PD_BLOCK_Y, ways);
}

PD_BUDGET(scatter_ranges, 48, 0, 0);

static PD_GLOBAL scatter_ranges(const struct pd_cuda_ranges ranges, int across, int ways,
                                const char *buffer, char *pool)
{
    for (int i = PD_BLOCK_X; i < ranges.count; i += across)
        move_units((const struct pd_u32x4 *)(buffer + ranges.range[i].buffer),
                   (struct pd_u32x4 *)(pool + ranges.range[i].pool),
                   ranges.range[i].bytes / PD_CUDA_RANGE_UNIT, PD_BLOCK_Y, ways);
}

static bool fit(const struct pd_cuda_ranges *ranges, const void *pool, const void *buffer)
{
    uint64_t odd = (uint64_t)(uintptr_t)pool | (uint64_t)(uintptr_t)buffer;

    if (ranges->count < 0 || ranges->count > PD_CUDA_RANGES)
        return false;
    for (int i = 0; i < ranges->count; i++)
        odd |= ranges->range[i].pool | ranges->range[i].buffer | ranges->range[i].bytes;
    return odd % PD_CUDA_RANGE_UNIT == 0;
}

int pd_cuda_gather_ranges(void *stream, const void *pool, const struct pd_cuda_ranges *ranges,
                          void *buffer)
{
    const int across = ranges->count < BLOCKS ? ranges->count : BLOCKS;

    if (!fit(ranges, pool, buffer))
        return -1;
    if (ranges->count == 0)
        return 0;
    return PD_LAUNCH(gather_ranges, across, BLOCKS / across, THREADS, (pd_stream)stream, *ranges,
                     across, BLOCKS / across, (const char *)pool, (char *)buffer);
}

int pd_cuda_scatter_ranges(void *stream, const void *buffer, const struct pd_cuda_ranges *ranges,
                           void *pool)
{
    const int across = ranges->count < BLOCKS ? ranges->count : BLOCKS;

    if (!fit(ranges, pool, buffer))
        return -1;
    if (ranges->count == 0)
        return 0;
    return PD_LAUNCH(scatter_ranges, across, BLOCKS / across, THREADS, (pd_stream)stream, *ranges,
                     across, BLOCKS / across, (const char *)buffer, (char *)pool);
}
