/* Paged attention, row by row: each token against the cached keys and values of its sequence. Made
 * for decode, where a sequence has one row; right for any.
 *
 * One block per (row, KV head), four warps. All query heads that share the KV head are computed
 * together, so K and V are read once. A warp takes every fourth token; its lanes hold PER_LANE
 * neighbouring dimensions each of q, of the running sum and of the row at hand:
 *
 *     token   0   1   2   3   4   5 ...     lane l: dimensions [l * PER_LANE, (l + 1) * PER_LANE)
 *     warp    0   1   2   3   0   1
 *
 * Every warp keeps its own maximum, sum of weights and weighted V per head (online softmax); at the
 * end warp 0's order merges them by log-sum-exp through shared memory. The order depends on the
 * context's length alone, never on the batch. The floor is the KV bytes of the context over the
 * bandwidth. */

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/simt.cuh"

enum { WARPS = 4, THREADS = WARPS * PD_WARP, PER_LANE_MAX = 8 };

PD_DEVICE float load(const struct pd_cuda_pool &pool, size_t index)
{
    if (pool.type == PD_CUDA_F32)
        return ((const float *)pool.values)[index];
    if (pool.type == PD_CUDA_F16)
        return pd_from_f16(((const uint16_t *)pool.values)[index]);
    return pd_from_bf16(((const uint16_t *)pool.values)[index]);
}

/* Index of the first K value of a token; its V lies block_size * head_dim values behind. */
PD_DEVICE size_t row_of(const struct pd_cuda_pool &pool, int layer, const int32_t *table,
                        int kv_head, int token)
{
    size_t block = (size_t)table[token / pool.block_size];
    size_t head = ((size_t)layer * (size_t)pool.kv_heads + (size_t)kv_head) * (size_t)pool.blocks;
    size_t offset = (size_t)(token % pool.block_size);

    return ((head + block) * 2 * (size_t)pool.block_size + offset) * (size_t)pool.head_dim;
}

/* Running softmax of one head in one warp. */
struct softmax {
    float maximum, sum, value[PER_LANE_MAX];
};

template <int PER_LANE>
PD_DEVICE void absorb(struct softmax *state, float score, const float *value)
{
    float maximum = fmaxf(state->maximum, score);
    float keep = expf(state->maximum - maximum), weight = expf(score - maximum);

    state->maximum = maximum;
    state->sum = state->sum * keep + weight;
    for (int i = 0; i < PER_LANE; i++)
        state->value[i] = state->value[i] * keep + weight * value[i];
}

template <int PER_LANE, int GROUP>
static PD_GLOBAL attention_rows(struct pd_cuda_step step, struct pd_cuda_attention a)
{
    PD_SHARED(float, maxima, WARPS *GROUP);
    PD_SHARED(float, sums, WARPS *GROUP);
    PD_SHARED(float, values, WARPS *GROUP *PER_LANE *PD_WARP);
    const int row = PD_BLOCK_X, first_head = PD_BLOCK_Y * GROUP;
    const int kv_head = first_head / (a.heads / a.pool.kv_heads);
    const int warp = PD_THREAD / PD_WARP, lane = PD_THREAD % PD_WARP;
    const bool present = row < step.counts[0];
    const int context = present ? step.position[row] + 1 : 0;
    const int start = a.window > 0 && context > a.window ? context - a.window : 0;
    const int32_t *table =
        step.blocks + (size_t)(present ? step.sequence[row] : 0) * (size_t)step.max_blocks;
    const float *q =
        a.qkv + (size_t)row * (size_t)a.qkv_stride + (size_t)first_head * PER_LANE * PD_WARP;
    float *out = a.out + ((size_t)row * (size_t)a.heads + (size_t)first_head) * PER_LANE * PD_WARP;
    float query[GROUP][PER_LANE];
    struct softmax state[GROUP];

    for (int head = 0; head < GROUP; head++) {
        state[head].maximum = -INFINITY;
        state[head].sum = 0;
        for (int i = 0; i < PER_LANE; i++) {
            query[head][i] = q[(head * PD_WARP + lane) * PER_LANE + i] * a.scale;
            state[head].value[i] = 0;
        }
    }
    for (int token = start + warp; token < context; token += WARPS) {
        size_t at = row_of(a.pool, a.layer, table, kv_head, token) + (size_t)lane * PER_LANE;
        float key[PER_LANE], value[PER_LANE];

        for (int i = 0; i < PER_LANE; i++) {
            key[i] = load(a.pool, at + (size_t)i);
            value[i] =
                load(a.pool, at + (size_t)i + (size_t)a.pool.block_size * (size_t)a.pool.head_dim);
        }
        for (int head = 0; head < GROUP; head++) {
            float score = 0;

            for (int i = 0; i < PER_LANE; i++)
                score += query[head][i] * key[i];
            absorb<PER_LANE>(&state[head], pd_warp_sum(score), value);
        }
    }
    for (int head = 0; head < GROUP; head++) {
        int slot = warp * GROUP + head;

        if (lane == 0) {
            maxima[slot] = state[head].maximum;
            sums[slot] = state[head].sum;
        }
        for (int i = 0; i < PER_LANE; i++)
            values[(slot * PD_WARP + lane) * PER_LANE + i] = state[head].value[i];
    }
    pd_barrier();
    for (int at = PD_THREAD; at < GROUP * PER_LANE * PD_WARP; at += THREADS) {
        int head = at / (PER_LANE * PD_WARP), dimension = at % (PER_LANE * PD_WARP);
        float maximum = -INFINITY, sum = 0, value = 0;

        for (int w = 0; w < WARPS; w++)
            maximum = fmaxf(maximum, maxima[w * GROUP + head]);
        for (int w = 0; w < WARPS; w++) {
            /* A warp without a token has the maximum -inf and the weight 0. */
            float weight = expf(maxima[w * GROUP + head] - maximum);

            sum += sums[w * GROUP + head] * weight;
            value += values[(w * GROUP + head) * PER_LANE * PD_WARP + dimension] * weight;
        }
        if (present)
            out[at] = value / sum;
    }
}

/* The heads that share a KV head go together in the common sizes, else one by one. */
template <int PER_LANE>
static int launch_groups(pd_stream stream, const struct pd_cuda_step &step,
                         const struct pd_cuda_attention &a)
{
    switch (a.heads / a.pool.kv_heads) {
#define PD_CASE(group)                                                                             \
    case group:                                                                                    \
        return PD_LAUNCH((attention_rows<PER_LANE, group>), a.rows, a.heads / group, THREADS,      \
                         stream, step, a)
        PD_CASE(2);
        PD_CASE(3);
        PD_CASE(4);
        PD_CASE(5);
        PD_CASE(6);
        PD_CASE(7);
        PD_CASE(8);
#undef PD_CASE
    default:
        return PD_LAUNCH((attention_rows<PER_LANE, 1>), a.rows, a.heads, THREADS, stream, step, a);
    }
}

template <int PER_LANE>
static int launch_heads(pd_stream stream, const struct pd_cuda_step &step,
                        const struct pd_cuda_attention &a)
{
    return PD_LAUNCH((attention_rows<PER_LANE, 1>), a.rows, a.heads, THREADS, stream, step, a);
}

int pd_cuda_attention_rows(void *stream, const struct pd_cuda_step *step,
                           const struct pd_cuda_attention *arguments)
{
    const struct pd_cuda_attention &a = *arguments;

    if (a.pool.kv_heads < 1 || a.heads < 1 || a.heads % a.pool.kv_heads != 0 || a.rows < 0 ||
        a.pool.block_size < 8 || a.pool.block_size > 32)
        return -1;
    if (a.rows == 0)
        return 0;
    switch (a.pool.head_dim) {
    case 32:
        return launch_heads<1>((pd_stream)stream, *step, a);
    case 64:
        return launch_groups<2>((pd_stream)stream, *step, a);
    case 96:
        return launch_heads<3>((pd_stream)stream, *step, a);
    case 128:
        return launch_groups<4>((pd_stream)stream, *step, a);
    case 256:
        return launch_heads<8>((pd_stream)stream, *step, a);
    default:
        return -1;
    }
}
