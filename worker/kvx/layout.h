/* Where the bytes of a KV block lie in a pool, and how a hand-off is cut into reads.
 *
 * A pool is [rank][layer][kv_head of the rank][block][K|V][token][dim]. One (layer, kv_head) is a *plane*; the blocks
 * of a plane lie side by side, K and V of a block together:
 *
 *     plane 0: | block 0 | block 1 | ...   plane 1: | block 0 | block 1 | ...
 *
 * so a run of adjacent blocks is one contiguous range per plane, and blocks x planes ranges shrink
 * to runs x planes. Offsets, not addresses, travel: each end adds them to its own mapping (or its
 * registered region). Behind the pool, on a page of their own, lie the generation words: one 64-bit
 * word per block (rule 15).
 *
 * Where several ranks compute the model, each has its KV heads in a memory of its own (of the size of
 * the others'), in blocks of the same numbers; where there are fewer heads than ranks, several ranks
 * have the same head. The memories count as one pool, `stride` apart, and the words lie in rank 0's:
 *
 *     | rank 0: planes | words | pad | rank 1: planes | ...      offset = rank stride + plane's + block's
 *
 * So each rank of a reader gets exactly its heads, each from a rank of the source that has it, in
 * layers x its heads x runs ranges.
 *
 * Pure functions: no memory is touched here. */
#ifndef PD_KVX_LAYOUT_H
#define PD_KVX_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "worker/base/error.h"

enum {
    PD_LAYOUT_DIMENSION_MAX = 1024, /* layers, KV heads, head dimension */
    PD_LAYOUT_BLOCK_MIN = 8,        /* tokens */
    PD_LAYOUT_BLOCK_MAX = 32,
    PD_READ_RANGES = 256,    /* in one read */
    PD_READ_BYTES = 1 << 20, /* in one read: long enough to be fast, short enough to drain soon */
};

struct pd_layout {
    uint32_t layers, kv_heads, block_size, head_dim, element_bytes; /* kv_heads: of the model */
    uint32_t ranks;        /* whose memories it lies in; 0: 1 */
    uint64_t blocks;       /* at most INT32_MAX */
    uint32_t rank_heads;   /* KV heads of a rank */
    uint64_t block_bytes;  /* K and V of one block in one plane */
    uint64_t plane_bytes;  /* all blocks of one plane */
    uint64_t rank_bytes;   /* all planes of one rank */
    uint64_t stride;       /* from one rank's memory to the next one's */
    uint64_t bytes;        /* from the first plane to the end of the last one, all ranks' */
    uint64_t words_offset; /* where the generation words begin: rank_bytes, padded to a page */
    uint64_t total;        /* of one rank: planes, padding and words */
};

/* Fills the derived members from the first seven; PD_INVALID names the number that is out of bounds.
 * The numbers may be a peer's. */
int pd_layout_derive(struct pd_layout *layout, struct pd_error *error);

/* Of `ranks` (0: 1) that have a pool of this shape each, of a model of `kv_heads` (0: pool's times ranks).
 * PD_UNSUPPORTED for a pool of another type than F32, F16, BF16. */
int pd_layout_of_pool(const struct pd_kv_pool *pool, int ranks, int kv_heads,
                      struct pd_layout *layout, struct pd_error *error);

/* Whether blocks of one pool can be copied into the other as they are: everything but the numbers of
 * blocks and of ranks is equal. The error shows both shapes. */
int pd_layout_match(const struct pd_layout *source, const struct pd_layout *own,
                    struct pd_error *error);

/* Ranks that have the same head. */
static inline uint32_t pd_layout_copies(const struct pd_layout *layout)
{
    return layout->ranks > layout->kv_heads ? layout->ranks / layout->kv_heads : 1;
}

/* Whose memory an offset lies in, of so many ranks' that begin `stride` bytes apart. */
static inline uint32_t pd_rank_at(uint32_t ranks, uint64_t stride, uint64_t offset)
{
    return ranks > 1 ? (uint32_t)(offset / stride) : 0;
}

/* Where the plane of this layer and the model's head begins, on the rank that has the head; of several, on
 * number `copy` of them. */
uint64_t pd_layout_plane(const struct pd_layout *layout, uint32_t layer, uint32_t head,
                         uint32_t copy);

/* Which plane an offset lies in, counted as if one rank had all heads: layer * kv_heads + head. */
uint32_t pd_layout_plane_number(const struct pd_layout *layout, uint64_t offset);

static inline uint32_t pd_layout_blocks_for(const struct pd_layout *layout, uint32_t tokens)
{
    return tokens / layout->block_size + (tokens % layout->block_size != 0);
}

/* Which blocks a range of the pool covers. False unless it is a run of whole blocks of one
 * plane. */
bool pd_layout_locate(const struct pd_layout *layout, uint64_t offset, uint64_t length,
                      uint32_t *first, uint32_t *count);

/* A run of adjacent blocks. */
struct pd_extent {
    uint32_t first, count;
};

/* One contiguous piece: bytes of the source's pool to bytes of the reader's. */
struct pd_range {
    uint64_t source, destination; /* offsets in the two pools */
    uint32_t length;
    uint32_t block; /* of the prompt: the first one in it */
};

/* One request for bytes: the unit that is in flight, and that a drain waits for. */
struct pd_read {
    uint64_t generation; /* of the ticket that allows it */
    uint32_t rail;       /* the data connection that is to carry it, from 1; 0: any */
    uint64_t bytes;
    size_t count;
    struct pd_range ranges[PD_READ_RANGES];
};

/* The reads that bring blocks [next, end) of a prompt over, plane by plane. `source` and
 * `destination` name the prompt's blocks in order, in either pool; both are borrowed. */
struct pd_plan {
    const struct pd_layout *from, *to;
    const uint32_t *source;
    const int32_t *destination;
    size_t first, end, next;
    uint32_t plane; /* of the reader's, rank by rank */
};

void pd_plan_begin(struct pd_plan *plan, const struct pd_layout *from, const uint32_t *source,
                   const struct pd_layout *to, const int32_t *destination, size_t first,
                   size_t end);

/* Whether reads are left. */
bool pd_plan_more(const struct pd_plan *plan);

/* Fills bytes, count and ranges of the next read, at most PD_READ_RANGES and PD_READ_BYTES; false
 * at the end. */
bool pd_plan_next(struct pd_plan *plan, struct pd_read *read);

#endif
