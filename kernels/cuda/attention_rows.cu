/* Paged attention in f32, row by row: each token against the cached keys and values of its sequence.
 * For pools of f32, which the matrix unit cannot read: who asks for one wants exactness, not speed.
 *
 * One block per (row, head), four warps. A warp takes every fourth token; its lanes hold PER_LANE
 * neighbouring dimensions each of q, of the running sum and of the row at hand:
 *
 *     token   0   1   2   3   4   5 ...     lane l: dimensions [l * PER_LANE, (l + 1) * PER_LANE)
 *     warp    0   1   2   3   0   1
 *
 * Every warp keeps its own maximum, sum of weights and weighted V (online softmax); at the end they
 * are merged in their order. It depends on the context's length alone, never on the batch. */

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/pd_simt.cuh"

enum { WARPS = 4, THREADS = WARPS * PD_WARP, PER_LANE_MAX = 8 };

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

/* The maximum, the sum of weights and the sums of values of each warp. */
struct meeting {
    float *maxima, *sums; /* [WARPS] */
    float *values;        /* [WARPS][dim] */
};

template <int PER_LANE> PD_DEVICE void merge(const struct meeting &meeting, float *out)
{
    const int dim = PER_LANE * PD_WARP;

    for (int at = PD_THREAD; at < dim; at += THREADS) {
        float maximum = -INFINITY, sum = 0, value = 0;

        for (int w = 0; w < WARPS; w++)
            maximum = fmaxf(maximum, meeting.maxima[w]);
        for (int w = 0; w < WARPS; w++) {
            /* A warp without a token has the maximum -inf and the weight 0. */
            float weight = expf(meeting.maxima[w] - maximum);

            sum += meeting.sums[w] * weight;
            value += meeting.values[w * dim + at] * weight;
        }
        out[at] = value / sum;
    }
}

PD_BUDGET(attention_rows, 56, 4128, 0);

template <int PER_LANE>
static PD_GLOBAL attention_rows(struct pd_cuda_step step, struct pd_cuda_attention a)
{
    PD_SHARED(float, maxima, WARPS);
    PD_SHARED(float, sums, WARPS);
    PD_SHARED(float, values, WARPS *PER_LANE *PD_WARP);
    const int row = PD_BLOCK_X, head = PD_BLOCK_Y, dim = PER_LANE * PD_WARP;
    const int kv_head = head / (a.heads / a.pool.kv_heads);
    const int warp = PD_THREAD / PD_WARP, lane = PD_THREAD % PD_WARP;
    const float *q = a.qkv + (size_t)row * (size_t)a.qkv_stride + head * dim + lane * PER_LANE;
    float query[PER_LANE];
    struct softmax state = {-INFINITY, 0, {0}};
    const int32_t *table;
    int context, start;

    if (row >= step.counts[0])
        return;
    context = step.position[row] + 1;
    start = a.window > 0 && context > a.window ? context - a.window : 0;
    table = step.blocks + (size_t)step.sequence[row] * (size_t)step.max_blocks;
    for (int i = 0; i < PER_LANE; i++)
        query[i] = q[i] * a.scale;
    for (int token = start + warp; token < context; token += WARPS) {
        const float *key = (const float *)a.pool.values +
                           row_of(a.pool, a.layer, table, kv_head, token) + lane * PER_LANE;
        float score = 0;

        for (int i = 0; i < PER_LANE; i++)
            score += query[i] * key[i];
        absorb<PER_LANE>(&state, pd_warp_sum(score), key + a.pool.block_size * dim);
    }
    if (lane == 0) {
        maxima[warp] = state.maximum;
        sums[warp] = state.sum;
    }
    for (int i = 0; i < PER_LANE; i++)
        values[(warp * PD_WARP + lane) * PER_LANE + i] = state.value[i];
    pd_barrier();
    merge<PER_LANE>({maxima, sums, values},
                    a.out + ((size_t)row * (size_t)a.heads + (size_t)head) * dim);
}

template <int PER_LANE>
static int launch(pd_stream stream, const struct pd_cuda_step &step,
                  const struct pd_cuda_attention &a)
{
    return PD_LAUNCH((attention_rows<PER_LANE>), a.rows, a.heads, THREADS, stream, step, a);
}

int pd_cuda_attention_rows(void *stream, const struct pd_cuda_step *step,
                           const struct pd_cuda_attention *arguments)
{
    const struct pd_cuda_attention &a = *arguments;

    if (a.pool.kv_heads < 1 || a.heads < 1 || a.heads % a.pool.kv_heads != 0 || a.rows < 0 ||
        a.pool.block_size < 8 || a.pool.block_size > 32 || a.pool.type != PD_CUDA_F32)
        return -1;
    if (a.rows == 0)
        return 0;
    switch (a.pool.head_dim) {
    case 32:
        return launch<1>((pd_stream)stream, *step, a);
    case 64:
        return launch<2>((pd_stream)stream, *step, a);
    case 96:
        return launch<3>((pd_stream)stream, *step, a);
    case 128:
        return launch<4>((pd_stream)stream, *step, a);
    case 256:
        return launch<8>((pd_stream)stream, *step, a);
    default:
        return -1;
    }
}
