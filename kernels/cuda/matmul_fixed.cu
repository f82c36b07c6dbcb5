/* Products in one order: every output is one chain of the matrix unit's steps of sixteen columns,
 * first to last, whatever the number of tokens. So a token's product has the same bits alone, in a
 * batch and in a chunk of a prompt: what `deterministic` asks for.
 *
 *     out[t][r] = sum over k of x[t][k] weight[r][k]
 *
 * One block per TOKENS x ROWS outputs; its warps share them out, and each holds its sums in
 * registers. Columns come 32 at a time, STAGES - 1 pieces ahead of the one that is multiplied:
 *
 *     stage   0          1          2          3
 *             x, weight  x, weight  x, weight  arriving
 *
 * A product that ranks of a group share comes in slices of its columns, a chain each, so that one rank
 * has the sums that several would have (pd_cuda_slices): as many blocks for each.
 *
 * Two shapes of block, for few tokens and for many, differ in who computes an output and not in how.
 * The floor is 2 rows cols tokens over the matrix unit's rate, or the weights' bytes over the
 * bandwidth. */

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/pd_simt.cuh"

enum { PIECE = 32, STAGES = 4, STRIDE = PIECE + 8 /* rows in different banks */ };

/* WARPS_T x WARPS_R warps, each of T times 16 tokens by R times 8 rows. */
template <int WARPS_T, int WARPS_R, int T, int R> struct tiling {
    static constexpr int THREADS = WARPS_T * WARPS_R * PD_WARP;
    static constexpr int TOKENS = WARPS_T * T * 16, ROWS = WARPS_R * R * 8;
    static constexpr int STAGE = (TOKENS + ROWS) * STRIDE; /* 16-bit numbers */
    static constexpr size_t BYTES = STAGES * STAGE * sizeof(uint16_t);
    static constexpr int WARP_TOKENS = T * 16, WARP_ROWS = R * 8, ALONG_ROWS = WARPS_R;
    static constexpr int TILES_T = T, TILES_R = R;
};

typedef tiling<1, 4, 1, 2> few;
typedef tiling<2, 4, 4, 4> many;

static_assert(few::BYTES <= PD_SHARED_MOST && many::BYTES <= PD_SHARED_MOST, "a block's memory");

struct operands {
    const uint16_t *x, *weight;
    int tokens, rows;
    int cols, pitch; /* of a slice; of a row */
};

/* Begins to copy columns k .. k + PIECE - 1 of `count` rows; what lies beyond the slice is 0. */
template <int THREADS>
PD_DEVICE void fetch(const uint16_t *from, int first, int rows, int cols, int pitch, int k,
                     int count, uint16_t *to)
{
    for (int i = PD_THREAD; i < count * (PIECE / 8); i += THREADS) {
        int row = i / (PIECE / 8), column = i % (PIECE / 8) * 8;
        bool present = first + row < rows && k + column < cols;
        size_t at = (size_t)(first + row) * (size_t)pitch + (size_t)(k + column);

        pd_copy_async(to + row * STRIDE + column, present ? from + at : from, present);
    }
}

template <class S>
PD_DEVICE void fetch_both(const struct operands &o, int token, int row, int k, uint16_t *stage)
{
    if (k < o.cols) {
        fetch<S::THREADS>(o.x, token, o.tokens, o.cols, o.pitch, k, S::TOKENS, stage);
        fetch<S::THREADS>(o.weight, row, o.rows, o.cols, o.pitch, k, S::ROWS,
                          stage + S::TOKENS * STRIDE);
    }
    pd_copy_commit();
}

/* A warp's sums, one piece further. */
template <class S, bool BF16>
PD_DEVICE void multiply_piece(const uint16_t *x, const uint16_t *weight,
                              float sum[S::TILES_T][S::TILES_R][4])
{
    const int lane = PD_THREAD % PD_WARP;
    const uint16_t *x_row = x + lane % 16 * STRIDE + lane / 16 * 8;
    const uint16_t *w_row = weight + (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;

    for (int k = 0; k < PIECE; k += 16) {
        uint32_t a[S::TILES_T][4], b[S::TILES_R][2];

        for (int t = 0; t < S::TILES_T; t++)
            pd_load_matrix4(a[t], x_row + 16 * t * STRIDE + k);
        for (int r = 0; r < S::TILES_R; r += 2)
            pd_load_matrix4(b[r], w_row + 8 * r * STRIDE + k); /* b[r] and b[r + 1] */
        for (int t = 0; t < S::TILES_T; t++)
            for (int r = 0; r < S::TILES_R; r++)
                pd_multiply<BF16>(sum[t][r], a[t], b[r]);
    }
}

/* A lane's sums go out: rows g and g + 8 of each tile, two columns. */
template <class S>
PD_DEVICE void write_sums(const struct operands &o, int token, int row, int accumulate, int stride,
                          const float sum[S::TILES_T][S::TILES_R][4], float *out)
{
    const int g = PD_THREAD % PD_WARP / 4, i = PD_THREAD % 4 * 2;

    PD_UNROLL_ALL
    for (int t = 0; t < S::TILES_T; t++) {
        PD_UNROLL_ALL
        for (int r = 0; r < S::TILES_R; r++) {
            PD_UNROLL_ALL
            for (int at = 0; at < 4; at++) {
                int to_token = token + 16 * t + g + at / 2 * 8, to_row = row + 8 * r + i + at % 2;
                float *to = out + (size_t)to_token * (size_t)stride + to_row;

                if (to_token < o.tokens && to_row < o.rows)
                    *to = accumulate ? *to + sum[t][r][at] : sum[t][r][at];
            }
        }
    }
}

PD_BUDGET(matmul_fixed, 128, 0, 0);

template <class S, bool BF16>
static PD_GLOBAL matmul_fixed(struct operands o, int accumulate, size_t apart, int stride,
                              float *out)
{
    PD_SHARED_BYTES(bytes);
    uint16_t *shared = (uint16_t *)bytes;
    const int tiles = (o.rows + S::ROWS - 1) / S::ROWS, slice = PD_BLOCK_X / tiles;
    const int row = PD_BLOCK_X % tiles * S::ROWS, token = PD_BLOCK_Y * S::TOKENS;
    const int warp_token = PD_THREAD / PD_WARP / S::ALONG_ROWS * S::WARP_TOKENS;
    const int warp_row = PD_THREAD / PD_WARP % S::ALONG_ROWS * S::WARP_ROWS;
    float sum[S::TILES_T][S::TILES_R][4];
    int stage = 0;

    o.x += slice * o.cols;
    o.weight += slice * o.cols;
    out += slice * apart;
    for (int t = 0; t < S::TILES_T; t++)
        for (int r = 0; r < S::TILES_R; r++)
            for (int at = 0; at < 4; at++)
                sum[t][r][at] = 0;
    for (int i = 0; i < STAGES - 1; i++)
        fetch_both<S>(o, token, row, i * PIECE, shared + i * S::STAGE);
    for (int k = 0; k < o.cols; k += PIECE, stage = (stage + 1) % STAGES) {
        const uint16_t *here = shared + stage * S::STAGE;

        pd_copy_wait<STAGES - 2>();
        pd_barrier(); /* this piece is there, and nobody reads the one before any more */
        fetch_both<S>(o, token, row, k + (STAGES - 1) * PIECE,
                      shared + (stage + STAGES - 1) % STAGES * S::STAGE);
        multiply_piece<S, BF16>(here + warp_token * STRIDE, here + (S::TOKENS + warp_row) * STRIDE,
                                sum);
    }
    pd_copy_wait<0>();
    write_sums<S>(o, token + warp_token, row + warp_row, accumulate, stride, sum, out);
}

template <class S, bool BF16>
static int launch(pd_stream stream, const struct operands &o, const struct pd_cuda_slices &slices,
                  int accumulate, int stride, float *out)
{
    return PD_LAUNCH_SHARED((matmul_fixed<S, BF16>),
                            slices.count * ((o.rows + S::ROWS - 1) / S::ROWS),
                            (o.tokens + S::TOKENS - 1) / S::TOKENS, S::THREADS, S::BYTES, stream, o,
                            accumulate, slices.stride, stride, out);
}

int pd_cuda_matmul_fixed(void *stream, bool bf16, const uint16_t *weight, const uint16_t *x,
                         int rows, int cols, int tokens, struct pd_cuda_slices slices,
                         bool accumulate, int stride, float *out)
{
    if (rows < 1 || cols < 8 || cols % 8 != 0 || tokens < 0 || !pd_slices_divide(slices, cols))
        return -1;
    if (tokens == 0)
        return 0;

    const struct operands o = {x, weight, tokens, rows, cols / slices.count, cols};

    if (tokens <= few::TOKENS)
        return bf16 ? launch<few, true>((pd_stream)stream, o, slices, accumulate, stride, out)
                    : launch<few, false>((pd_stream)stream, o, slices, accumulate, stride, out);
    return bf16 ? launch<many, true>((pd_stream)stream, o, slices, accumulate, stride, out)
                : launch<many, false>((pd_stream)stream, o, slices, accumulate, stride, out);
}
