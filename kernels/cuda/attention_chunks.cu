/* Paged attention of chunks of prompts, on the matrix unit.
 *
 * One block per (run of rows, KV head), four warps of sixteen rows. The query heads that share the
 * KV head are rows of their own, so K and V are read once for all of them:
 *
 *     row of the tile   0        1        ...  group - 1   group    ...
 *     token, head       t, h0    t, h1         t, h_last   t + 1, h0
 *
 * Keys come in tiles at multiples of KEYS from the sequence's first: while one is multiplied the
 * next is on its way (two stages, asynchronous copies). A warp passes over tiles that lie behind
 * the positions of all its rows. Rows of several sequences in one run are done one sequence after
 * the other.
 *
 *     stage 0 | K | V |   stage 1 | K | V |
 *
 * A row's result depends on its own sequence alone: tiles have fixed places, and a key beyond the
 * row's own position leaves no trace. The floor is 4 DIM products a (row, head, key) over the matrix
 * unit's rate, half of them for a causal prompt. */

#include "kernels/cuda/attention.cuh"

enum { WARPS = 4, THREADS = WARPS * PD_WARP, TILE_ROWS = WARPS * PD_ATTEND_ROWS };

template <int DIM> struct stages {
    static constexpr int KEYS = DIM > 128 ? 32 : 64;
    static constexpr size_t BYTES = 4 * PD_TILE_BYTES(DIM, KEYS);
};

/* Rows first .. next - 1, all of one sequence, with all heads of a KV head. */
struct segment {
    int first, next, kv_head, group;
    int position; /* of the first row */
};

/* Row `row` of a tile: its token's row in the step, or -1. */
PD_DEVICE int token_of(const struct segment &segment, int row)
{
    int token = segment.first + row / segment.group;

    return token < segment.next ? token : -1;
}

/* Which of the lane's two rows there are, and which keys they see. Gives the end of the warp's
 * keys. */
template <int DIM, bool BF16>
PD_DEVICE int begin_rows(const struct pd_cuda_attention &a, const struct segment &segment,
                         struct pd_attend<DIM> *own)
{
    const int warp_row = PD_THREAD / PD_WARP * PD_ATTEND_ROWS, g = PD_THREAD % PD_WARP / 4;
    const float *q[2];
    int last = warp_row + PD_ATTEND_ROWS - 1;

    for (int half = 0; half < 2; half++) {
        int row = warp_row + g + 8 * half, token = token_of(segment, row);
        int head = segment.kv_head * segment.group + row % segment.group;
        int position = segment.position + token - segment.first;

        q[half] =
            token < 0 ? NULL : a.qkv + (size_t)token * (size_t)a.qkv_stride + (size_t)head * DIM;
        own->end[half] = token < 0 ? 0 : position + 1;
        own->low[half] = a.window > 0 ? position + 1 - a.window : 0;
    }
    pd_attend_begin<DIM, BF16>(own, q);
    if (token_of(segment, warp_row) < 0)
        return 0;
    last = segment.first + last / segment.group;
    last = last < segment.next ? last : segment.next - 1;
    return segment.position + last - segment.first + 1;
}

template <int DIM>
PD_DEVICE void write_rows(const struct pd_cuda_attention &a, const struct segment &segment,
                          const struct pd_attend<DIM> *own)
{
    const int lane = PD_THREAD % PD_WARP;

    for (int half = 0; half < 2; half++) {
        int row = PD_THREAD / PD_WARP * PD_ATTEND_ROWS + lane / 4 + 8 * half;
        int token = token_of(segment, row);
        int head = segment.kv_head * segment.group + row % segment.group;
        float inverse = 1.0f / pd_quad_sum(own->sum[half]);
        float *out = a.out + ((size_t)token * (size_t)a.heads + (size_t)head) * DIM + lane % 4 * 2;

        if (token < 0)
            continue;
        for (int n = 0; n < DIM / 8; n++) {
            out[8 * n] = own->out[n][2 * half] * inverse;
            out[8 * n + 1] = own->out[n][2 * half + 1] * inverse;
        }
    }
}

template <int DIM, bool BF16>
PD_DEVICE void attend_segment(const struct pd_cuda_step &step, const struct pd_cuda_attention &a,
                              const struct segment &segment, uint16_t *shared)
{
    constexpr int KEYS = stages<DIM>::KEYS, TILE = KEYS * PD_TILE_STRIDE(DIM);
    const struct pd_pages pages =
        pd_pages_of(step, a, step.sequence[segment.first], segment.kv_head);
    const int end = segment.position + segment.next - segment.first;
    const int low =
        a.window > 0 && segment.position >= a.window ? segment.position + 1 - a.window : 0;
    struct pd_attend<DIM> own;
    const int warp_end = begin_rows<DIM, BF16>(a, segment, &own);
    int stage = 0;

    pd_fetch_tile<DIM, KEYS, THREADS>(pages, low / KEYS * KEYS, low, end, shared, shared + TILE);
    pd_copy_commit();
    for (int tile = low / KEYS * KEYS; tile < end; tile += KEYS, stage ^= 1) {
        const uint16_t *here = shared + stage * 2 * TILE;
        uint16_t *there = shared + (stage ^ 1) * 2 * TILE;

        if (tile + KEYS < end)
            pd_fetch_tile<DIM, KEYS, THREADS>(pages, tile + KEYS, low, end, there, there + TILE);
        pd_copy_commit();
        pd_copy_wait<1>();
        pd_barrier(); /* all threads' copies of this tile have arrived */
        if (tile < warp_end)
            pd_attend_keys<DIM, BF16, KEYS>(&own, here, here + TILE, tile, pd_base2(a.scale));
        pd_barrier(); /* nobody reads this stage any more */
    }
    write_rows<DIM>(a, segment, &own);
}

PD_BUDGET(attention_chunks, 255, 0, 32);

template <int DIM, bool BF16>
static PD_GLOBAL attention_chunks(struct pd_cuda_step step, struct pd_cuda_attention a, int rows,
                                  int singles)
{
    PD_SHARED_BYTES(bytes);
    const int first = PD_BLOCK_X * rows;
    const int end = first + rows < step.counts[0] ? first + rows : step.counts[0];
    struct segment segment;

    segment.kv_head = PD_BLOCK_Y;
    segment.group = a.heads / a.pool.kv_heads;
    for (segment.first = first; segment.first < end; segment.first = segment.next) {
        int sequence = step.sequence[segment.first];

        segment.next = segment.first + 1;
        while (segment.next < end && step.sequence[segment.next] == sequence)
            segment.next++;
        segment.position = step.position[segment.first];
        if ((step.length[sequence] == 1) == (singles != 0))
            attend_segment<DIM, BF16>(step, a, segment, (uint16_t *)bytes);
    }
}

template <int DIM, bool BF16>
static int launch(pd_stream stream, const struct pd_cuda_step &step,
                  const struct pd_cuda_attention &a, int rows, int singles)
{
    return PD_LAUNCH_SHARED((attention_chunks<DIM, BF16>), (a.rows + rows - 1) / rows,
                            a.pool.kv_heads, THREADS, stages<DIM>::BYTES, stream, step, a, rows,
                            singles);
}

int pd_cuda_attention_chunks(void *stream, const struct pd_cuda_step *step,
                             const struct pd_cuda_attention *arguments, bool singles)
{
    const struct pd_cuda_attention &a = *arguments;
    int rows;

    if (!pd_attention_fits(a) || a.rows < 0)
        return -1;
    if (a.rows == 0)
        return 0;
    /* Single rows are all of different sequences: one block each, not one after the other. */
    rows = singles ? 1 : TILE_ROWS / (a.heads / a.pool.kv_heads);
    PD_BY_POOL(a.pool, (launch<DIM, BF16>((pd_stream)stream, *step, a, rows, singles)));
}
