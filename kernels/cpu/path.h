/* A path: the kernels compiled for one instruction set. cpu.c chooses one when the device is
 * opened; the operators (matmul.c, attention.c, rows.c, sample.c) share out the work and call it.
 */
#ifndef PD_CPU_PATH_H
#define PD_CPU_PATH_H

#include "kernels/cpu/weight.h"

/* x rounded to 12 bits, 32 columns at a time: q = 16 high + low, each an int8, since four int8 are what
 * instructions multiply at once. Columns are in the order of a weight's words. */
struct pd_cpu_line {
    int32_t high[BLOCK / 4], low[BLOCK / 4]; /* four columns to a word */
};

struct pd_cpu_scale {
    float d, sum; /* x = d q; d times the sum of q */
    /* OFFSET8 or OFFSET12 times the sum of q over columns 0-15 and 16-31: what takes the 128 out of weights
     * whose bytes are plus 128. */
    int32_t offset[2];
};

/* x in fewer bits than f32, in memory that its kernels divide as they like. */
struct pd_cpu_rounded {
    void *memory;       /* pd_cpu_narrow.bytes of it, aligned to 64; NULL: there is none */
    int tokens, blocks; /* of x */
};

/* Products that take x rounded: the kernels of one precision and instruction set. Those in integers have the
 * same results on all instruction sets that have fused multiply-add, since products of integers are exact. */
struct pd_cpu_narrow {
    int chunk; /* tokens whose sums and x are best kept in cache: a multiple of 16 */
    size_t (*bytes)(int tokens, int blocks);
    /* Part `part` of `parts` of x, which is [tokens][cols]. */
    void (*round)(const float *x, int cols, const struct pd_cpu_rounded *out, int part, int parts);
    /* acc[t][PANEL] = blocks first_block .. of the panel times x, for `tokens` tokens from `first` on, which
     * begins a chunk that has them. acc has room for a multiple of 16 tokens. */
    void (*multiply)(enum pd_form form, const uint8_t *panel, int first_block, int blocks,
                     const struct pd_cpu_rounded *x, int first, int tokens, float *acc);
};

/* One matmul of one step, after its x has been prepared. */
struct pd_cpu_product {
    const struct pd_cpu_weight *weight;
    const float *bias; /* [outputs; gate's, then up's], or NULL */
    enum pd_epilogue epilogue;
    int slices; /* of the columns: pd_op_matmul_reduce */
    int tokens;
    /* Few tokens: rows of x and, if the weight has minimums, of their sums over blocks. Many: the
     * same packed: [stretch][tile][column][token], [stretch][tile][block][token]. sums is not NULL. */
    const float *x, *sums;
    struct pd_cpu_rounded rounded; /* for the weight's narrow segments */
    const struct pd_cpu_narrow *narrow;
    float *out; /* [tokens][outputs] */
    int outputs;
};

/* One KV head of one tile of queries, `tokens` rows with `group` heads each, and the splits of keys that
 * they attend to. */
struct pd_cpu_query {
    const struct pd_attention_shape *shape;
    const struct pd_kv_pool *pool;
    int layer, kv_head;
    const int32_t *blocks; /* the sequence's block table */
    const float *q;        /* of the first row and the group's first head */
    size_t q_stride;       /* between rows */
    int tokens, position;  /* of the first row; the others follow */
    int first, end;        /* splits */
    int loaded;            /* keys before this one are on their way from memory, or not needed */
    float *out;            /* as q: where finished rows go */
    size_t out_stride;
    /* NULL: the splits are merged and written to `out`. Else there is one split, and its state of (row i,
     * head h of the group) goes to states + (i * state_rows + h) * pd_cpu_state_floats. */
    float *states;
    size_t state_rows;
};

/* The running softmax of one (row, head): greatest score, sum of weights, weighted sum of values.
 */
enum { PD_CPU_STATE_HEAD = 16 }; /* floats before the sum of values: greatest, sum */

static inline size_t pd_cpu_state_floats(int head_dim)
{
    return PD_CPU_STATE_HEAD + ((size_t)head_dim + PANEL - 1) / PANEL * PANEL;
}

/* Computes one query. Loads what `next`, unless NULL, begins with meanwhile: this thread's next query, as a
 * rule. scratch of pd_cpu_query_scratch floats, aligned to 64 bytes. */
typedef void pd_cpu_attend(struct pd_cpu_query *query, struct pd_cpu_query *next, float *scratch);

struct pd_cpu_path {
    const char *numerics; /* equal for paths that compute the same bits */
    int direct_rows;      /* up to so many tokens, x is used as it lies */
    int tile_rows;        /* else it is packed in tiles of at most so many */

    /* sums[block] of each of `rows` rows. */
    void (*sum_blocks)(const float *x, int rows, int cols, float *sums);
    /* Packs the tile of n tokens from `first` on into its places of the packed x of all `tokens` and,
     * unless NULL, their sums. */
    void (*pack_tile)(const float *x, int cols, int tokens, int first, int n, float *out,
                      float *sums);
    /* Panels first .. end - 1; scratch of pd_cpu_product_scratch floats. */
    void (*multiply)(const struct pd_cpu_product *product, int first, int end, float *scratch);

    pd_cpu_attend *attend;
    /* Merges the states of `splits` splits, `stride` floats apart, and writes head_dim values. */
    void (*merge)(const float *states, int splits, size_t stride, int head_dim, float *state,
                  float *out);

    void (*rmsnorm)(const float *x, const float *weight, int cols, float eps, float *out);
    void (*rotate)(float *head, const float *angles, int dim, enum pd_rope_style style);
    void (*store_kv)(enum pd_dtype type, void *to, const float *from, int count);

    /* Greatest value; NAN if any is. */
    float (*greatest)(const float *values, int count);
    /* out[i] = exp((values[i] - greatest) * factor); the sum of each run of PD_CPU_RUN of them. */
    void (*exponentials)(const float *values, int count, float greatest, float factor, float *out,
                         float *run_sums);
    /* Indices of values >= bound, ascending, at most `limit`; returns how many. */
    int (*at_least)(const float *values, int count, float bound, int32_t *out, int limit);
};

extern const struct pd_cpu_path pd_cpu_path_baseline, pd_cpu_path_avx2, pd_cpu_path_avx512;
extern const struct pd_cpu_narrow pd_cpu_int12_baseline, pd_cpu_int12_avx2, pd_cpu_int12_avx512,
    pd_cpu_int12_vnni, pd_cpu_int12_amx, pd_cpu_int8_baseline, pd_cpu_int8_avx2, pd_cpu_int8_avx512,
    pd_cpu_int8_vnni, pd_cpu_bf16;
extern pd_cpu_attend pd_cpu_attend_bf16, pd_cpu_attend_dot;

enum {
    PD_CPU_CHUNK = 128,     /* tokens whose rounded x lies together, and is best kept in cache */
    PD_CPU_BEHIND = 16,     /* tokens */
    PD_CPU_STRETCH = 4,     /* blocks unpacked at a time */
    PD_CPU_ROUND_ALONE = 2, /* up to so many tokens, rounding x twice is cheaper than a barrier */
    PD_CPU_QUERY_ROWS = 48, /* of a tile of queries, */
    PD_CPU_QUERY_ROWS_BF16 = 96, /* which take their keys and values converted */
    PD_CPU_SPLIT = 128,          /* keys whose softmax is computed at once: part of the numerics */
    PD_CPU_RUN = 512, /* values whose exponentials are summed at once: part of the numerics */
};

/* Rounded x of integers: chunks of tokens, the last of fewer, each [block][token], so that what is read at a
 * time lies together. Behind the last there is room for PD_CPU_BEHIND more, so that tiles may read whole ones. */
static inline struct pd_cpu_line *pd_cpu_lines(const struct pd_cpu_rounded *x)
{
    return x->memory;
}

static inline struct pd_cpu_scale *pd_cpu_scales(const struct pd_cpu_rounded *x)
{
    return (void *)(pd_cpu_lines(x) + (size_t)x->tokens * (size_t)x->blocks);
}

/* x rounded to bytes: a line for each of the same places, and, where `again` says so, a second one with what the
 * first left.
 *
 *     lines      first lines of all places | second lines
 *     scales     of the first              | of the second
 *     again      of each place a byte, 1 or 0; a few that are none follow */
struct pd_cpu_byte_line {
    int32_t words[BLOCK / 4];
};

struct pd_cpu_bytes {
    struct pd_cpu_byte_line *lines[2];
    struct pd_cpu_scale *scales[2];
    uint8_t *again;
};

enum { PD_CPU_AGAIN_BEHIND = 8 };

static inline struct pd_cpu_bytes pd_cpu_bytes(const struct pd_cpu_rounded *x)
{
    size_t count = (size_t)x->tokens * (size_t)x->blocks;
    struct pd_cpu_byte_line *lines = x->memory;
    struct pd_cpu_scale *scales = (struct pd_cpu_scale *)(lines + 2 * count);

    return (struct pd_cpu_bytes){
        {lines, lines + count}, {scales, scales + count}, (uint8_t *)(scales + 2 * count)};
}

/* Tokens of the chunk that begins at, or has, this one. */
static inline int pd_cpu_chunk(const struct pd_cpu_rounded *x, int token)
{
    int left = x->tokens - token / PD_CPU_CHUNK * PD_CPU_CHUNK;

    return left < PD_CPU_CHUNK ? left : PD_CPU_CHUNK;
}

/* Which of the lines, and of the scales, a token's block is. */
static inline size_t pd_cpu_rounded_at(const struct pd_cpu_rounded *x, int block, int token)
{
    int first = token / PD_CPU_CHUNK * PD_CPU_CHUNK;

    return (size_t)first * (size_t)x->blocks + (size_t)block * (size_t)pd_cpu_chunk(x, token) +
           (size_t)(token - first);
}

/* Unpacked blocks, and sums: of the running slice and of those that wait for it in the tree. */
static inline size_t pd_cpu_product_scratch(int tokens, int slices)
{
    size_t sums = 1;

    for (; slices > 1; slices /= 2)
        sums++;
    return (size_t)PD_CPU_STRETCH * (8 * PANEL + PANEL * BLOCK) +
           (sums * (size_t)tokens + 15) * PANEL;
}

/* Tokens are cut into tiles of nearly equal size: tile i of `tiles` begins at pd_cpu_tile(i). */
static inline int pd_cpu_tiles(int tokens, int tile_rows)
{
    return (tokens + tile_rows - 1) / tile_rows;
}

static inline int pd_cpu_tile(int tokens, int tiles, int i)
{
    return (int)((int64_t)tokens * i / tiles);
}

/* Rows (tokens times heads of a group) of a query tile that has `most` as a rule. */
static inline int pd_cpu_query_rows(int most, int group)
{
    return group > most ? group : most / group * group;
}

/* For attend(): packed queries, scores, weighted sums, states; keys and values of a split. Tiles take sixteen
 * rows at a time. */
static inline size_t pd_cpu_query_scratch(int most, int group, int head_dim)
{
    size_t rows = ((size_t)pd_cpu_query_rows(most, group) + 15) / 16 * 16,
           dim = ((size_t)head_dim + PANEL - 1) / PANEL * PANEL;

    return rows * dim + rows * PD_CPU_SPLIT + rows * dim + rows * pd_cpu_state_floats(head_dim) +
           2 * dim * PD_CPU_SPLIT + 2 * rows;
}

#endif
