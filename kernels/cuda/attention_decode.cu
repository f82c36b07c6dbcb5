/* Paged attention of single rows: decode, where a sequence has one token in the step.
 *
 * A context is cut into splits of SPLIT keys at fixed places, so that one long sequence fills the
 * GPU. One block computes a (sequence, KV head, split): the query heads that share the KV head are
 * the rows of the matrix unit's operand, padded to sixteen, and the warps share the keys of a tile
 * out among themselves.
 *
 *     context   | split 0                   | split 1                   | split 2 ...
 *     tiles     | w0 w1 w2 w3 | w0 w1 w2 w3 | ...     16 keys a warp, two stages of copies
 *
 * The warps' sums are merged in their order, the splits' by a second kernel in theirs; a context of
 * one split needs no second. So the order depends on the context alone, never on the batch or on
 * how many blocks there are: a block takes every `workers`-th split of its sequence.
 *
 *     partial[sequence][head][split]: maximum (base 2), sum, DIM sums of weighted values
 *
 * The floor is the KV bytes of the context over the bandwidth. */

#include "kernels/cuda/attention.cuh"

enum { SPLIT = 256, BLOCKS = 528, MERGE_THREADS = 128 };

/* Warps, and keys of a tile: two stages of 32 keys of 256 are what a block's memory holds. */
template <int DIM> struct shape {
    static constexpr int WARPS = DIM > 128 ? 2 : 4, THREADS = WARPS * PD_WARP, KEYS = WARPS * 16;
    static constexpr size_t BYTES = 4 * PD_TILE_BYTES(DIM, KEYS);
};

/* What a row sees: keys low .. context - 1. */
struct reach {
    int row, low, context;
};

PD_DEVICE struct reach reach_of(const struct pd_cuda_step &step, int window, int sequence)
{
    struct reach reach;

    reach.row = step.first[sequence];
    reach.context = step.position[reach.row] + 1;
    reach.low = window > 0 && reach.context > window ? reach.context - window : 0;
    return reach;
}

PD_DEVICE bool is_single(const struct pd_cuda_step &step, int sequence)
{
    return sequence < step.counts[1] && step.length[sequence] == 1;
}

PD_DEVICE float *partial_of(const struct pd_cuda_attention &a, int splits, int sequence, int head,
                            int split)
{
    return a.partial +
           (((size_t)sequence * (size_t)a.heads + (size_t)head) * (size_t)splits + (size_t)split) *
               (size_t)(a.pool.head_dim + 2);
}

/* The warps' sums in shared memory, where the tiles were; and their maxima and sums of weights. */
struct meeting {
    float *values;        /* [WARPS][16][DIM] */
    float *maxima, *sums; /* [WARPS][16] */
};

template <int DIM> PD_DEVICE void bring(const struct pd_attend<DIM> *own, struct meeting to)
{
    const int warp = PD_THREAD / PD_WARP, lane = PD_THREAD % PD_WARP;

    for (int half = 0; half < 2; half++) {
        int row = warp * PD_ATTEND_ROWS + lane / 4 + 8 * half;
        float sum = pd_quad_sum(own->sum[half]);

        if (lane % 4 == 0) {
            to.maxima[row] = own->maximum[half];
            to.sums[row] = sum;
        }
        for (int n = 0; n < DIM / 8; n++) {
            to.values[row * DIM + 8 * n + lane % 4 * 2] = own->out[n][2 * half];
            to.values[row * DIM + 8 * n + lane % 4 * 2 + 1] = own->out[n][2 * half + 1];
        }
    }
}

/* One number of one head: the warps in their order. Gives the weighted value; *maximum and *sum are
 * the split's. A warp without a key has the maximum -inf and the weight 0. */
template <int DIM>
PD_DEVICE float merge_warps(struct meeting from, int row, int column, float *maximum, float *sum)
{
    float value = 0;

    *maximum = -INFINITY;
    *sum = 0;
    for (int warp = 0; warp < shape<DIM>::WARPS; warp++)
        *maximum = fmaxf(*maximum, from.maxima[warp * PD_ATTEND_ROWS + row]);
    for (int warp = 0; warp < shape<DIM>::WARPS; warp++) {
        int at = warp * PD_ATTEND_ROWS + row;
        float weight = exp2f(from.maxima[at] - *maximum);

        *sum += from.sums[at] * weight;
        value += from.values[at * DIM + column] * weight;
    }
    return value;
}

/* Keys low .. end - 1 of a split, by all warps of the block. */
template <int DIM, bool BF16>
PD_DEVICE void attend_split(const struct pd_pages &pages, int split, int low, int end, float scale,
                            uint16_t *shared, struct pd_attend<DIM> *own)
{
    constexpr int KEYS = shape<DIM>::KEYS, THREADS = shape<DIM>::THREADS;
    constexpr int TILE = KEYS * PD_TILE_STRIDE(DIM);
    const int warp_key = PD_THREAD / PD_WARP * 16;
    const int start = low > split * SPLIT ? low / KEYS * KEYS : split * SPLIT;
    int stage = 0;

    pd_fetch_tile<DIM, KEYS, THREADS>(pages, start, low, end, shared, shared + TILE);
    pd_copy_commit();
    for (int tile = start; tile < end; tile += KEYS, stage ^= 1) {
        const uint16_t *here = shared + stage * 2 * TILE + warp_key * PD_TILE_STRIDE(DIM);
        uint16_t *there = shared + (stage ^ 1) * 2 * TILE;

        if (tile + KEYS < end)
            pd_fetch_tile<DIM, KEYS, THREADS>(pages, tile + KEYS, low, end, there, there + TILE);
        pd_copy_commit();
        pd_copy_wait<1>();
        pd_barrier(); /* all threads' copies of this tile have arrived */
        pd_attend_keys<DIM, BF16, 16>(own, here, here + TILE, tile + warp_key, scale);
        pd_barrier(); /* nobody reads this stage any more */
    }
}

PD_BUDGET(attention_decode, 255, 512, 0);

template <int DIM, bool BF16>
static PD_GLOBAL attention_decode(struct pd_cuda_step step, struct pd_cuda_attention a, int splits,
                                  int workers)
{
    PD_SHARED(float, maxima, shape<DIM>::WARPS *PD_ATTEND_ROWS);
    PD_SHARED(float, sums, shape<DIM>::WARPS *PD_ATTEND_ROWS);
    PD_SHARED_BYTES(bytes);
    const struct meeting meeting = {(float *)bytes, maxima, sums};
    const int sequence = PD_BLOCK_X, kv_head = PD_BLOCK_Y % a.pool.kv_heads;
    const int group = a.heads / a.pool.kv_heads, g = PD_THREAD % PD_WARP / 4;
    const bool single = is_single(step, sequence);
    const struct reach reach =
        single ? reach_of(step, a.window, sequence) : (struct reach){0, 0, 0};
    const struct pd_pages pages = pd_pages_of(step, a, single ? sequence : 0, kv_head);
    const float *q =
        a.qkv + (size_t)reach.row * (size_t)a.qkv_stride + (size_t)(kv_head * group) * DIM;
    const float *const rows[2] = {g < group ? q + g * DIM : NULL,
                                  g + 8 < group ? q + (g + 8) * DIM : NULL};
    const bool whole = reach.low / SPLIT == (reach.context - 1) / SPLIT; /* one split is all */

    for (int split = reach.low / SPLIT + PD_BLOCK_Y / a.pool.kv_heads;
         split * SPLIT < reach.context; split += workers) {
        int end = (split + 1) * SPLIT < reach.context ? (split + 1) * SPLIT : reach.context;
        struct pd_attend<DIM> own;

        pd_attend_begin<DIM, BF16>(&own, rows);
        own.low[0] = own.low[1] = reach.low;
        own.end[0] = own.end[1] = end;
        attend_split<DIM, BF16>(pages, split, reach.low, end, pd_base2(a.scale), (uint16_t *)bytes,
                                &own);
        bring<DIM>(&own, meeting);
        pd_barrier(); /* all warps' sums are there */
        for (int i = PD_THREAD; i < group * DIM; i += shape<DIM>::THREADS) {
            int head = kv_head * group + i / DIM;
            float maximum, sum, value = merge_warps<DIM>(meeting, i / DIM, i % DIM, &maximum, &sum);
            float *to = partial_of(a, splits, sequence, head, split);

            if (whole) {
                a.out[((size_t)reach.row * (size_t)a.heads + (size_t)head) * DIM +
                      (size_t)(i % DIM)] = value / sum;
                continue;
            }
            to[2 + i % DIM] = value;
            if (i % DIM == 0) {
                to[0] = maximum;
                to[1] = sum;
            }
        }
        pd_barrier(); /* the tiles of the next split come to the same memory */
    }
}

/* One block per (sequence, head) of more than one split. */
PD_BUDGET(merge_splits, 40, 0, 0);

static PD_GLOBAL merge_splits(struct pd_cuda_step step, struct pd_cuda_attention a, int splits)
{
    const int sequence = PD_BLOCK_X, head = PD_BLOCK_Y, dim = a.pool.head_dim;
    struct reach reach;
    int first, last;

    if (!is_single(step, sequence))
        return;
    reach = reach_of(step, a.window, sequence);
    first = reach.low / SPLIT;
    last = (reach.context - 1) / SPLIT;
    if (first == last)
        return;
    for (int column = PD_THREAD; column < dim; column += MERGE_THREADS) {
        float maximum = -INFINITY, sum = 0, value = 0;

        for (int split = first; split <= last; split++)
            maximum = fmaxf(maximum, partial_of(a, splits, sequence, head, split)[0]);
        for (int split = first; split <= last; split++) {
            const float *from = partial_of(a, splits, sequence, head, split);
            float weight = exp2f(from[0] - maximum);

            sum += from[1] * weight;
            value += from[2 + column] * weight;
        }
        a.out[((size_t)reach.row * (size_t)a.heads + (size_t)head) * (size_t)dim + (size_t)column] =
            value / sum;
    }
}

static int splits_of(int max_model_len)
{
    return (max_model_len + SPLIT - 1) / SPLIT;
}

size_t pd_cuda_attention_partials(int sequences, int heads, int head_dim, int max_model_len)
{
    return (size_t)sequences * (size_t)heads * (size_t)splits_of(max_model_len) *
           (size_t)(head_dim + 2) * sizeof(float);
}

template <int DIM, bool BF16>
static int launch(pd_stream stream, const struct pd_cuda_step &step,
                  const struct pd_cuda_attention &a, int sequences)
{
    int splits = splits_of(step.max_model_len), workers = BLOCKS / (sequences * a.pool.kv_heads);
    int error;

    workers = workers < 1 ? 1 : workers > splits ? splits : workers;
    error =
        PD_LAUNCH_SHARED((attention_decode<DIM, BF16>), sequences, a.pool.kv_heads * workers,
                         shape<DIM>::THREADS, shape<DIM>::BYTES, stream, step, a, splits, workers);
    if (error != 0 || splits == 1)
        return error;
    return PD_LAUNCH(merge_splits, sequences, a.heads, MERGE_THREADS, stream, step, a, splits);
}

int pd_cuda_attention_decode(void *stream, const struct pd_cuda_step *step,
                             const struct pd_cuda_attention *arguments, int sequences)
{
    const struct pd_cuda_attention &a = *arguments;

    if (!pd_attention_fits(a) || sequences < 0)
        return -1;
    if (sequences == 0)
        return 0;
    PD_BY_POOL(a.pool, (launch<DIM, BF16>((pd_stream)stream, *step, a, sequences)));
}
