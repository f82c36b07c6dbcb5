/* What the attention kernels over 16-bit pools share: pages on their way to shared memory, and one
 * warp's sixteen rows of queries against some keys.
 *
 * A tile of KEYS keys and their values lies in shared memory as rows of DIM numbers with 16 bytes
 * between them, so that the eight rows that the matrix unit loads at once lie in different banks.
 * Scores of 16 rows by 8 keys leave the matrix unit in the layout in which weights of 16 rows by 16
 * keys enter it again: they never leave the registers.
 *
 *     S = Q K^T    Q: registers, K: rows of keys as columns of the second operand
 *     P = 2^(S scale - maximum)                      online softmax, in f32
 *     O = O 2^(old maximum - maximum) + P V          V: transposed as it is loaded
 *
 * A key that a row must not see has weight 0, and leaves its sums as they are to the last bit: what a
 * row gets does not depend on which rows it is computed with. */
#ifndef PD_CUDA_ATTENTION_CUH
#define PD_CUDA_ATTENTION_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/pd_simt.cuh"

/* Rows that a warp computes: those of the matrix unit's first operand. */
enum { PD_ATTEND_ROWS = 16 };

/* 16-bit numbers from one row of a tile to the next, and of a tile of keys or values. */
#define PD_TILE_STRIDE(dim)      ((dim) + 8)
#define PD_TILE_BYTES(dim, keys) ((size_t)(keys)*PD_TILE_STRIDE(dim) * sizeof(uint16_t))

/* The pages of one sequence, of one layer and KV head. */
struct pd_pages {
    const uint16_t *values; /* of block 0 */
    const int32_t *table;
    int block_size;
};

PD_DEVICE struct pd_pages pd_pages_of(const struct pd_cuda_step &step,
                                      const struct pd_cuda_attention &a, int sequence, int kv_head)
{
    size_t first = ((size_t)a.layer * (size_t)a.pool.kv_heads + (size_t)kv_head) *
                   (size_t)a.pool.blocks * 2 * (size_t)a.pool.block_size * (size_t)a.pool.head_dim;

    return {(const uint16_t *)a.pool.values + first,
            step.blocks + (size_t)sequence * (size_t)step.max_blocks, a.pool.block_size};
}

/* Begins to copy keys tile .. tile + KEYS - 1 and their values; what is not within [low, end)
 * becomes zero. All THREADS threads of the block take part; then they commit. */
template <int DIM, int KEYS, int THREADS>
PD_DEVICE void pd_fetch_tile(const struct pd_pages &pages, int tile, int low, int end,
                             uint16_t *keys, uint16_t *values)
{
    const int pieces = DIM / 8; /* of a row */

    for (int i = PD_THREAD; i < KEYS * pieces; i += THREADS) {
        int key = i / pieces, column = i % pieces * 8, token = tile + key;
        bool present = token >= low && token < end;
        const uint16_t *from = pages.values;

        if (present) {
            size_t block = (size_t)pages.table[token / pages.block_size] * 2;

            from += (block * (size_t)pages.block_size + (size_t)(token % pages.block_size)) * DIM +
                    column;
        }
        pd_copy_async(keys + key * PD_TILE_STRIDE(DIM) + column, from, present);
        pd_copy_async(values + key * PD_TILE_STRIDE(DIM) + column,
                      present ? from + pages.block_size * DIM : from, present);
    }
}

/* A lane's part of a warp's rows: row g and row g + 8. */
template <int DIM> struct pd_attend {
    uint32_t query[DIM / 16][4];
    float out[DIM / 8][4];
    float maximum[2];   /* of the scaled scores, base 2 */
    float sum[2];       /* of this lane's own columns */
    int low[2], end[2]; /* keys that the row sees */
};

/* `q`: the two rows' DIM numbers, or NULL for a row that is none. Keys that it sees: low, end. */
template <int DIM, bool BF16>
PD_DEVICE void pd_attend_begin(struct pd_attend<DIM> *own, const float *const q[2])
{
    const int i = PD_THREAD % 4 * 2;

    for (int step = 0; step < DIM / 16; step++) {
        for (int part = 0; part < 4; part++) {
            const float *row = q[part % 2];
            int column = 16 * step + part / 2 * 8 + i;

            own->query[step][part] =
                row != NULL ? pd_pack_half<BF16>(row[column], row[column + 1]) : 0;
        }
    }
    for (int n = 0; n < DIM / 8; n++)
        for (int at = 0; at < 4; at++)
            own->out[n][at] = 0;
    for (int row = 0; row < 2; row++) {
        own->maximum[row] = -INFINITY;
        own->sum[row] = 0;
    }
}

/* Scores of KEYS keys, in tiles of eight. */
template <int DIM, bool BF16, int KEYS>
PD_DEVICE void pd_scores(const struct pd_attend<DIM> *own, const uint16_t *keys,
                         float score[KEYS / 8][4])
{
    const int lane = PD_THREAD % PD_WARP;
    const uint16_t *row =
        keys + (lane / 16 * 8 + lane % 8) * PD_TILE_STRIDE(DIM) + lane / 8 % 2 * 8;

    for (int n = 0; n < KEYS / 8; n++)
        for (int at = 0; at < 4; at++)
            score[n][at] = 0;
    for (int step = 0; step < DIM / 16; step++) {
        for (int n = 0; n < KEYS / 8; n += 2) {
            uint32_t b[4];

            pd_load_matrix4(b, row + 8 * n * PD_TILE_STRIDE(DIM) + 16 * step);
            pd_multiply<BF16>(score[n], own->query[step], b);
            pd_multiply<BF16>(score[n + 1], own->query[step], b + 2);
        }
    }
}

/* The greatest of a row: its four lanes hold two columns of each tile. */
PD_DEVICE float pd_quad_max(float value)
{
    value = fmaxf(value, pd_shuffle_xor(value, 1));
    return fmaxf(value, pd_shuffle_xor(value, 2));
}

PD_DEVICE float pd_quad_sum(float value)
{
    value += pd_shuffle_xor(value, 1);
    return value + pd_shuffle_xor(value, 2);
}

/* Scores become weights, under the greatest score so far; the sums before are scaled to it. */
template <int DIM, int KEYS>
PD_DEVICE void pd_soften(struct pd_attend<DIM> *own, int first, float scale,
                         float score[KEYS / 8][4])
{
    const int column = first + PD_THREAD % 4 * 2;

    for (int row = 0; row < 2; row++) {
        float greatest = own->maximum[row], base, keep;

        for (int at = 0; at < KEYS / 4; at++) {
            int key = column + at / 2 * 8 + at % 2;
            float *one = &score[at / 2][2 * row + at % 2];

            *one = key >= own->low[row] && key < own->end[row] ? *one * scale : -INFINITY;
            greatest = fmaxf(greatest, *one);
        }
        greatest = pd_quad_max(greatest);
        base = greatest == -INFINITY ? 0 : greatest; /* no key yet: all weights are 0 */
        keep = exp2f(own->maximum[row] - base);
        own->maximum[row] = greatest;
        own->sum[row] *= keep;
        for (int at = 0; at < KEYS / 4; at++) {
            float *one = &score[at / 2][2 * row + at % 2];

            *one = exp2f(*one - base);
            own->sum[row] += *one;
        }
        for (int n = 0; n < DIM / 8; n++) {
            own->out[n][2 * row] *= keep;
            own->out[n][2 * row + 1] *= keep;
        }
    }
}

/* The warp's rows against keys first .. first + KEYS - 1, which lie at `keys` and `values`. `scale`
 * multiplies scores to base 2. */
template <int DIM, bool BF16, int KEYS>
PD_DEVICE void pd_attend_keys(struct pd_attend<DIM> *own, const uint16_t *keys,
                              const uint16_t *values, int first, float scale)
{
    const int lane = PD_THREAD % PD_WARP;
    const uint16_t *row =
        values + (lane / 8 % 2 * 8 + lane % 8) * PD_TILE_STRIDE(DIM) + lane / 16 * 8;
    float score[KEYS / 8][4];

    pd_scores<DIM, BF16, KEYS>(own, keys, score);
    pd_soften<DIM, KEYS>(own, first, scale, score);
    for (int step = 0; step < KEYS / 16; step++) {
        const float *left = score[2 * step], *right = score[2 * step + 1];
        const uint32_t weight[4] = {
            pd_pack_half<BF16>(left[0], left[1]), pd_pack_half<BF16>(left[2], left[3]),
            pd_pack_half<BF16>(right[0], right[1]), pd_pack_half<BF16>(right[2], right[3])};

        for (int n = 0; n < DIM / 8; n += 2) {
            uint32_t b[4];

            pd_load_matrix4_transposed(b, row + 16 * step * PD_TILE_STRIDE(DIM) + 8 * n);
            pd_multiply<BF16>(own->out[n], weight, b);
            pd_multiply<BF16>(own->out[n + 1], weight, b + 2);
        }
    }
}

/* Of scores to base 2: 2^(x log2 e) = e^x. */
PD_DEVICE float pd_base2(float scale)
{
    return scale * 1.4426950408889634f;
}

/* The shapes that both kernels take. */
static inline bool pd_attention_fits(const struct pd_cuda_attention &a)
{
    return a.pool.kv_heads >= 1 && a.heads >= 1 && a.heads % a.pool.kv_heads == 0 &&
           a.heads / a.pool.kv_heads <= PD_CUDA_GROUP && a.pool.block_size >= 8 &&
           a.pool.block_size <= 32 && (a.pool.type == PD_CUDA_F16 || a.pool.type == PD_CUDA_BF16);
}

/* Runs `call`, an expression with DIM and BF16 in it, for a pool; -1 for a width that is not
 * known. */
#define PD_BY_POOL(pool, call)                                                                     \
    switch ((pool).head_dim) {                                                                     \
        PD_BY_POOL_DIM(32, pool, call)                                                             \
        PD_BY_POOL_DIM(64, pool, call)                                                             \
        PD_BY_POOL_DIM(96, pool, call)                                                             \
        PD_BY_POOL_DIM(128, pool, call)                                                            \
        PD_BY_POOL_DIM(256, pool, call)                                                            \
    }                                                                                              \
    return -1

#define PD_BY_POOL_DIM(dim, pool, call)                                                            \
    case dim: {                                                                                    \
        constexpr int DIM = dim;                                                                   \
        if ((pool).type == PD_CUDA_BF16) {                                                         \
            constexpr bool BF16 = true;                                                            \
            return call;                                                                           \
        }                                                                                          \
        constexpr bool BF16 = false;                                                               \
        return call;                                                                               \
    }

#endif
