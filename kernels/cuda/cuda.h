/* The CUDA kernels' launchers, in C: what the backend calls, with device pointers. Each enqueues on
 * `stream` (a cudaStream_t; under t/simt/ the seed of the threads' order), returns at once and
 * gives 0 or the CUDA runtime's error number; a shape that a kernel does not take is -1 before
 * anything is enqueued. The shapes are those of kernels.h's operators. */
#ifndef PD_CUDA_H
#define PD_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The device's copy of the step descriptor: the same arrays as struct pd_step, at addresses that
 * never change, with what lives on the device from step to step beside them. */
struct pd_cuda_step {
    const int32_t *counts; /* [3] tokens, sequences, samples of the running step */
    const uint64_t *number;
    const int32_t *token, *position, *sequence, *kv_slot;
    const int32_t *slot, *first, *length; /* [sequences] */
    const int32_t *blocks;                /* [sequences][max_blocks] */
    const int32_t *sample_row, *sample_slot;
    const struct pd_sample_params *sample;
    const int32_t *bias_token, *banned;
    const float *bias_value;
    int32_t *sampled, *top_token, *sample_fault;
    float *sampled_logprob, *top_logprob;
    int32_t *history; /* [max_seqs][max_model_len] */
    int32_t *last;    /* [max_seqs] */
    int max_blocks, max_model_len, vocabulary;
};

/* How the device keeps a matrix. Quantised formats have the integers and the scales apart, so that
 * both are read in whole words:
 *
 *     W4   8 columns in 32 bits, the first lowest       scale word of 32 columns: d | m << 16
 *     W8   one signed byte a column                     d of columns 0-15 | d of 16-31 << 16
 *
 * d and m are f16; a value is q * d + m. */
enum pd_cuda_format { PD_CUDA_F32, PD_CUDA_F16, PD_CUDA_BF16, PD_CUDA_W4, PD_CUDA_W8 };

struct pd_cuda_matrix {
    const void *values;
    const uint32_t *scales; /* [rows][cols / 32]; quantised formats */
    enum pd_cuda_format format;
    int rows, cols; /* cols: a multiple of 8, of 32 in quantised formats */
};

/* ---- rows ------------------------------------------------------------------------------------ */

/* The matrix has the rows of tokens `first` and up; those of others become 0. */
int pd_cuda_embed(void *stream, const struct pd_cuda_step *step,
                  const struct pd_cuda_matrix *matrix, int first, int rows, float *out);

/* out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight, all f32. x, out [rows, cols]; weight
 * [cols]. */
int pd_cuda_rmsnorm(void *stream, const float *x, const float *weight, float eps, int rows,
                    int cols, float *out);

/* out[s] = x[sample_row[s]], for the first `rows` samples. */
int pd_cuda_gather(void *stream, const struct pd_cuda_step *step, const float *x, int rows,
                   int cols, float *out);

/* out[t][i] = silu(in[t][i]) * in[t][cols + i]. in [rows, 2 cols], out [rows, cols]. */
int pd_cuda_swiglu(void *stream, const float *in, int rows, int cols, float *out);

/* out[t][i] += bias[i]; rows of out lie `stride` values apart. */
int pd_cuda_add_bias(void *stream, const float *bias, int rows, int cols, int stride, float *out);

/* The progress word: step number << 16 | layers, behind everything that the stream did before. */
int pd_cuda_publish(void *stream, const struct pd_cuda_step *step, int layers, uint64_t *progress);

/* ---- matrices -------------------------------------------------------------------------------- */

enum { PD_CUDA_SMALL = 8 };

/* How a product is summed over its columns: in `count` runs of equal length, a multiple of 32 each, every
 * one from zero; those of run s go to out + s * stride, where pd_cuda_add_slices finds them. */
struct pd_cuda_slices {
    int count; /* 1: whole, into out itself */
    size_t stride;
};

static inline bool pd_slices_divide(struct pd_cuda_slices slices, int cols)
{
    return slices.count == 1 ||
           (slices.count > 1 && slices.count <= PD_SLICES_MAX && cols % (32 * slices.count) == 0);
}

/* out[t][r] = sum_k matrix[r][k] x[t][k] (+ bias[r]) (+ out[t][r] where `accumulate`), f32 sums,
 * for at most PD_CUDA_SMALL tokens. x [tokens, cols]; rows of out lie `stride` values apart. The
 * order of a sum depends on cols and slices alone. */
int pd_cuda_matmul_small(void *stream, const struct pd_cuda_matrix *matrix, const float *x,
                         const float *bias, bool accumulate, int tokens,
                         struct pd_cuda_slices slices, int stride, float *out);

/* out[t][r] = sum_k weight[r][k] x[t][k] (+ out[t][r] where `accumulate`): f16 or bf16 operands, f32
 * sums on the matrix unit, in an order that depends on cols and slices alone. weight [rows, cols], x
 * [tokens, cols], without gaps, at multiples of 16 bytes; cols a multiple of 8. */
int pd_cuda_matmul_fixed(void *stream, bool bf16, const uint16_t *weight, const uint16_t *x,
                         int rows, int cols, int tokens, struct pd_cuda_slices slices,
                         bool accumulate, int stride, float *out);

/* out[i] = the sum of slices[s][i] over all `slices` (+ out[i] where `add`), in the tree in which
 * pd_cuda_allreduce adds what ranks have: whoever computes which slices, the bits are the same. */
int pd_cuda_add_slices(void *stream, const float *sums, int slices, size_t count, bool add,
                       float *out);

/* Rows first .. first + rows - 1 of a matrix, or of activations (format F32), as f16 or bf16
 * without gaps. f16 ends at its largest value, never at infinity. */
int pd_cuda_to_half(void *stream, const struct pd_cuda_matrix *matrix, int first, int rows,
                    enum pd_cuda_format half, uint16_t *out);

/* ---- groups ---------------------------------------------------------------------------------- */

enum { PD_CUDA_MEETING_BLOCKS = 16, PD_CUDA_MEETING_VALUES = 1 << 20 };

/* Of one rank. All memory is zero before the first launch, and every rank launches the same. */
struct pd_cuda_meeting {
    int rank, ranks;
    float *values[PD_RANKS_MAX];   /* [2][PD_CUDA_MEETING_VALUES], written by rank r, read by all */
    uint64_t *flags[PD_RANKS_MAX]; /* [PD_RANKS_MAX][BLOCKS], written by all, read by rank r */
    uint64_t *calls;               /* [BLOCKS] this rank's */
    uint64_t *abandoned;           /* pinned: not 0, and nobody waits any more */
};

/* out[i] = the sum over all ranks' in[i] (+ out[i] where `add`), in a tree over the ranks:
 * ((0 + 1) + (2 + 3)) + ... The same bits on every rank. */
int pd_cuda_allreduce(void *stream, const struct pd_cuda_meeting *meeting, const float *in,
                      size_t count, bool add, float *out);

/* out [rows, cols]; in [rows, the rank's share of cols] (pd_share_first). */
int pd_cuda_allgather(void *stream, const struct pd_cuda_meeting *meeting, const float *in,
                      int rows, int cols, float *out);

/* ---- attention ------------------------------------------------------------------------------- */

enum { PD_CUDA_GROUP = 16 }; /* most query heads of one KV head, in pools of 16-bit numbers */

struct pd_cuda_pool {
    void *values;             /* [layer][kv_head][block][K|V][token][dim] */
    enum pd_cuda_format type; /* F32, F16 or BF16 */
    int64_t blocks;
    int kv_heads, block_size, head_dim;
};

/* table[t]: dim / 2 cosines, then dim / 2 sines of position[t] * inverse_frequency, times
 * factor. */
int pd_cuda_rope_angles(void *stream, const struct pd_cuda_step *step,
                        const float *inverse_frequency, float factor, int rows, int dim,
                        float *table);

struct pd_cuda_rope_store {
    struct pd_cuda_pool pool;
    float *qkv;         /* [rows, (heads + 2 kv_heads) * head_dim], Q and K rotated in place */
    const float *table; /* [rows][rope_dim] */
    const float *q_norm, *k_norm; /* [head_dim], or NULL */
    float eps;
    int rows, heads, layer, rope_dim;
    bool interleaved;
};

int pd_cuda_rope_store(void *stream, const struct pd_cuda_step *step,
                       const struct pd_cuda_rope_store *arguments);

struct pd_cuda_attention {
    struct pd_cuda_pool pool;
    const float *qkv; /* [rows, qkv_stride]; the first heads * head_dim columns are Q, rotated */
    float *out;       /* [rows, heads * head_dim] */
    float *partial;   /* pd_cuda_attention_partials() bytes; attention_decode */
    int rows, heads, layer, qkv_stride;
    int window; /* 0: none */
    float scale;
};

/* Rows against their own sequence's cache. head_dim 32, 64, 96, 128 or 256.
 *
 * Pools of F32: every row, in f32. */
int pd_cuda_attention_rows(void *stream, const struct pd_cuda_step *step,
                           const struct pd_cuda_attention *arguments);

/* Pools of F16 and BF16, heads / kv_heads up to PD_CUDA_GROUP: the rows of sequences that have
 * several in this step, or, with `singles`, of those that have one. A row's bits do not depend on
 * which. */
int pd_cuda_attention_chunks(void *stream, const struct pd_cuda_step *step,
                             const struct pd_cuda_attention *arguments, bool singles);

/* The same pools: the row of each sequence that has one. `sequences`: at least the step's. */
int pd_cuda_attention_decode(void *stream, const struct pd_cuda_step *step,
                             const struct pd_cuda_attention *arguments, int sequences);

/* Bytes that attention_decode wants for what it merges. */
size_t pd_cuda_attention_partials(int sequences, int heads, int head_dim, int max_model_len);

/* ---- blocks of the pool ---------------------------------------------------------------------- */

enum { PD_CUDA_RANGES = 128, PD_CUDA_RANGE_UNIT = 16 };

/* What one launch moves. Offsets and bytes are multiples of PD_CUDA_RANGE_UNIT, as are the addresses that the
 * offsets count from; bytes may be 0. It travels with the launch, whose arguments have room for 4 KiB: nobody has
 * to keep it. */
struct pd_cuda_ranges {
    int count; /* at most PD_CUDA_RANGES */
    struct pd_cuda_range {
        uint64_t pool, buffer; /* offsets */
        uint64_t bytes;
    } range[PD_CUDA_RANGES];
};

/* Ranges of the pool into the buffer, and out of it into the pool. The buffer is pinned memory, or another
 * device's that this one reaches. Ranges that are written do not overlap. */
int pd_cuda_gather_ranges(void *stream, const void *pool, const struct pd_cuda_ranges *ranges,
                          void *buffer);
int pd_cuda_scatter_ranges(void *stream, const void *buffer, const struct pd_cuda_ranges *ranges,
                           void *pool);

/* ---- sampling -------------------------------------------------------------------------------- */

/* One token for each of the first `rows` samples. logits [rows][vocabulary]; scratch, twice that,
 * holds anything before and after. */
int pd_cuda_sample(void *stream, const struct pd_cuda_step *step, const float *logits,
                   uint32_t *scratch, int rows);

#ifdef __cplusplus
}
#endif

#endif
