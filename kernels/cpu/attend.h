/* A path's attention: one KV head, a tile of queries, a range of keys.
 *
 * Both products are multiply.h's: for the scores, keys are the rows of a panel and dimensions its
 * columns; for the sum of values, dimensions are the rows and keys the columns. So a score is
 * summed over dimensions from first to last, a value over keys from first to last, whatever the
 * tile.
 *
 *     keys 0..127    128..255    256..     splits of fixed length, each with a softmax of its own:
 *     [m, l, sum] ◀─ [m, l, sum] ◀─ ...    greatest score m, l = sum of e^(s - m), sum of e^(s - m)
 * v; merged from left to right
 *
 * A key that a row may not see scores -inf and weighs exactly 0. So it does not matter which keys
 * beyond a row's own the tile looks at, nor whether splits are computed by one thread or by many
 * and merged later.
 *
 * Included by path_*.c only. */
#ifndef PD_ATTEND_H
#define PD_ATTEND_H

#include "kernels/cpu/multiply.h"
#include "kernels/cpu/path.h"
#include "kernels/cpu/product.h"

#define SCORED(form, n)                                                                            \
    static void scored_##form##_##n(const uint8_t *panel, int columns, const float *x, float *acc) \
    {                                                                                              \
        multiply(form, n, panel, columns, x, PANEL, 1, x, 0, 0, acc);                              \
    }
#define NAME_SCORED(form, n) scored_##form##_##n,

/* x is [n][PANEL]: weights of 32 keys. */
typedef void scored_multiply(const uint8_t *panel, int columns, const float *x, float *acc);

UP_TO_ROWS(SCORED, PD_FORM_F32)

static scored_multiply *const scored[ROWS] = {UP_TO_ROWS(NAME_SCORED, PD_FORM_F32)};

struct attend {
    const struct pd_cpu_query *query;
    int group, rows, dim, padded; /* rows = tokens * group; padded: dim in whole panels */
    float *packed;                /* queries, times scale, in tiles of [dim][n] */
    float *scores;                /* [SPLIT / PANEL][rows][PANEL] */
    float *sums;                  /* [padded / PANEL][rows][PANEL] */
    float *states;                /* [rows][state_floats] */
    float *greatest, *total;      /* [rows], of the split */
    float *keys;                  /* [SPLIT / PANEL][dim][PANEL] */
    float *values;                /* [padded / PANEL][SPLIT][PANEL] */
};

INLINE lanes load_kv(enum pd_dtype type, const void *from, int64_t at)
{
    switch (type) {
    case PD_F16:
        return lanes_load_f16((const uint16_t *)from + at);
    case PD_BF16:
        return lanes_load_bf16((const uint16_t *)from + at);
    default:
        return lanes_load((const float *)from + at);
    }
}

static float load_kv_one(enum pd_dtype type, const void *from, int64_t at)
{
    switch (type) {
    case PD_F16:
        return pd_float_of_f16(((const uint16_t *)from)[at]);
    case PD_BF16:
        return pd_float_of_bf16(((const uint16_t *)from)[at]);
    default:
        return ((const float *)from)[at];
    }
}

/* Where the key (value = 0) or value (1) of position j lies. */
static int64_t locate(const struct pd_cpu_query *query, int j, int value)
{
    const struct pd_kv_pool *pool = query->pool;
    int64_t tile =
        pd_kv_tile(pool, query->layer, query->kv_head, query->blocks[j / pool->block_size], value);

    return tile + (int64_t)(j % pool->block_size) * pool->head_dim;
}

/* Sixteen keys from position j on, `count` of them real, turned so that a register holds one
 * dimension. */
INLINE void turn_keys(enum pd_dtype type, const struct pd_cpu_query *query, int j, int count,
                      int dim, float *out)
{
    const void *memory = query->pool->buffer->host;
    int64_t at[LANES];
    int whole = dim / LANES * LANES;

    for (int i = 0; i < count; i++)
        at[i] = locate(query, j + i, 0);
    for (int d = 0; d < whole; d += LANES) {
        lanes key[LANES];

        for (int i = 0; i < LANES; i++)
            key[i] = i < count ? load_kv(type, memory, at[i] + d) : lanes_set(0);
        lanes_transpose(key);
        for (int i = 0; i < LANES; i++)
            lanes_store(out + (d + i) * PANEL, key[i]);
    }
    for (int d = whole; d < dim; d++) {
        for (int i = 0; i < LANES; i++)
            out[d * PANEL + i] = i < count ? load_kv_one(type, memory, at[i] + d) : 0;
    }
}

/* Value of position j, dimensions in panels `SPLIT` rows apart. */
INLINE void copy_value(enum pd_dtype type, const struct pd_cpu_query *query, int j, int dim,
                       float *out)
{
    const void *memory = query->pool->buffer->host;
    int64_t at = locate(query, j, 1);
    int whole = dim / LANES * LANES;

    for (int d = 0; d < whole; d += LANES)
        lanes_store(out + d / PANEL * PANEL * PD_CPU_SPLIT + d % PANEL,
                    load_kv(type, memory, at + d));
    for (int d = whole; d < (dim + PANEL - 1) / PANEL * PANEL; d++)
        out[d / PANEL * PANEL * PD_CPU_SPLIT + d % PANEL] =
            d < dim ? load_kv_one(type, memory, at + d) : 0;
}

INLINE void load_split(enum pd_dtype type, const struct attend *a, int first, int count)
{
    for (int j = 0; j < count; j += LANES)
        turn_keys(type, a->query, first + j, count - j < LANES ? count - j : LANES, a->dim,
                  a->keys + j / PANEL * PANEL * a->dim + j % PANEL);
    if (count % PANEL > 0 && count % PANEL <= LANES) /* nobody has written the last half panel */
        turn_keys(type, a->query, 0, 0, a->dim, a->keys + count / PANEL * PANEL * a->dim + LANES);
    for (int j = 0; j < count; j++)
        copy_value(type, a->query, first + j, a->dim, a->values + j * PANEL);
}

static void load_keys_and_values(const struct attend *a, int first, int count)
{
    switch (a->query->pool->type) {
    case PD_F16:
        load_split(PD_F16, a, first, count);
        break;
    case PD_BF16:
        load_split(PD_BF16, a, first, count);
        break;
    default:
        load_split(PD_F32, a, first, count);
    }
}

static void score(const struct attend *a, int count)
{
    int tiles = pd_cpu_tiles(a->rows, ROWS), panels = (count + PANEL - 1) / PANEL;

    memset(a->scores, 0, (size_t)(panels * a->rows * PANEL) * sizeof(float));
    for (int p = 0; p < panels; p++) {
        const uint8_t *keys = (const uint8_t *)(a->keys + p * PANEL * a->dim);

        for (int i = 0; i < tiles; i++) {
            int r = pd_cpu_tile(a->rows, tiles, i), n = pd_cpu_tile(a->rows, tiles, i + 1) - r;
            float *q = a->packed + r * a->dim;

            packed[PD_FORM_F32][n - 1](keys, a->dim, q, q, a->scores + (p * a->rows + r) * PANEL);
        }
    }
}

/* Lanes of keys at, at + 1, ... that lie outside [low, high] become -inf. */
INLINE lanes hide(lanes scores, int at, int low, int high)
{
    float values[LANES];

    if (at >= low && at + LANES - 1 <= high)
        return scores;
    lanes_store(values, scores);
    for (int i = 0; i < LANES; i++)
        values[i] = at + i < low || at + i > high ? -INFINITY : values[i];
    return lanes_load(values);
}

/* Scores of a row become weights; keys of the split are first .. first + count - 1. */
static void weigh(const struct attend *a, int r, int first, int count)
{
    int high = a->query->position + r / a->group, window = a->query->shape->window;
    int low = window > 0 ? high - window + 1 : 0, stride = a->rows * PANEL;
    float *scores = a->scores + r * PANEL;
    lanes greatest = lanes_set(-INFINITY), total = lanes_set(0);

    for (int j = 0; j < count; j += LANES) {
        float *at = scores + j / PANEL * stride + j % PANEL;
        lanes seen = hide(lanes_load(at), first + j, low, high);

        lanes_store(at, seen);
        greatest = lanes_max(greatest, seen);
    }
    a->greatest[r] = lanes_greatest(greatest);
    greatest = lanes_set(a->greatest[r] == -INFINITY ? 0 : a->greatest[r]);
    for (int j = 0; j < count; j += LANES) {
        float *at = scores + j / PANEL * stride + j % PANEL;
        lanes weight = lanes_exp(lanes_sub(lanes_load(at), greatest));

        lanes_store(at, weight);
        total = lanes_add(total, weight);
    }
    a->total[r] = lanes_sum(total);
}

static void sum_values(const struct attend *a, int count)
{
    int tiles = pd_cpu_tiles(a->rows, ROWS);

    memset(a->sums, 0, (size_t)(a->padded * a->rows) * sizeof(float));
    for (int d = 0; d < a->padded / PANEL; d++) {
        for (int i = 0; i < tiles; i++) {
            int r = pd_cpu_tile(a->rows, tiles, i), n = pd_cpu_tile(a->rows, tiles, i + 1) - r;
            float *sums = a->sums + (d * a->rows + r) * PANEL;

            for (int j = 0; j < count; j += PANEL) {
                const float *values = a->values + (d * PD_CPU_SPLIT + j) * PANEL;
                int columns = count - j < PANEL ? count - j : PANEL;

                scored[n - 1]((const uint8_t *)values, columns,
                              a->scores + (j / PANEL * a->rows + r) * PANEL, sums);
            }
        }
    }
}

/* ---- states
 * -------------------------------------------------------------------------------------- */

static void clear_state(float *state, int head_dim)
{
    memset(state, 0, pd_cpu_state_floats(head_dim) * sizeof(*state));
    state[0] = -INFINITY;
}

/* Adds a later split to a state. -inf says that a row sees none of a split's keys. */
static void merge_state(float *state, float greatest, float total, const float *values, int stride,
                        int padded)
{
    float both = state[0] > greatest ? state[0] : greatest;
    lanes old, new;

    if (greatest == -INFINITY)
        return;
    if (state[0] == -INFINITY) {
        state[0] = greatest;
        state[1] = total;
        for (int d = 0; d < padded; d += LANES)
            lanes_store(state + PD_CPU_STATE_HEAD + d,
                        lanes_load(values + d / PANEL * stride + d % PANEL));
        return;
    }
    old = lanes_set(scalar_exp(state[0] - both));
    new = lanes_set(scalar_exp(greatest - both));
    state[0] = both;
    lanes_store_part(state + 1,
                     lanes_fma(lanes_set(total), new, lanes_mul(lanes_set(state[1]), old)), 1);
    for (int d = 0; d < padded; d += LANES) {
        float *at = state + PD_CPU_STATE_HEAD + d;
        lanes value = lanes_load(values + d / PANEL * stride + d % PANEL);

        lanes_store(at, lanes_fma(value, new, lanes_mul(lanes_load(at), old)));
    }
}

static void finish_state(const float *state, int dim, float *out)
{
    lanes total = lanes_set(state[1]);
    int whole = dim / LANES * LANES;

    for (int d = 0; d < whole; d += LANES)
        lanes_store(out + d, lanes_div(lanes_load(state + PD_CPU_STATE_HEAD + d), total));
    if (whole < dim)
        lanes_store_part(out + whole,
                         lanes_div(lanes_load(state + PD_CPU_STATE_HEAD + whole), total),
                         dim - whole);
}

static void merge(const float *states, int splits, size_t stride, int head_dim, float *state,
                  float *out)
{
    int padded = (head_dim + PANEL - 1) / PANEL * PANEL;

    clear_state(state, head_dim);
    for (int s = 0; s < splits; s++) {
        const float *other = states + (size_t)s * stride;
        merge_state(state, other[0], other[1], other + PD_CPU_STATE_HEAD, PANEL, padded);
    }
    finish_state(state, head_dim, out);
}

/* ---- the whole
 * ----------------------------------------------------------------------------------- */

static void start(struct attend *a, const struct pd_cpu_query *query, float *scratch)
{
    const struct pd_attention_shape *shape = query->shape;
    int tiles;

    *a = (struct attend){
        .query = query, .group = shape->heads / shape->kv_heads, .dim = shape->head_dim};
    a->rows = query->tokens * a->group;
    a->padded = (a->dim + PANEL - 1) / PANEL * PANEL;
    a->keys = scratch;
    a->values = a->keys + a->padded * PD_CPU_SPLIT;
    a->scores = a->values + a->padded * PD_CPU_SPLIT;
    a->sums = a->scores + a->rows * PD_CPU_SPLIT;
    a->states = a->sums + a->rows * a->padded;
    a->packed = a->states + (size_t)a->rows * pd_cpu_state_floats(a->dim);
    a->greatest = a->packed + a->rows * a->dim;
    a->total = a->greatest + a->rows;
    tiles = pd_cpu_tiles(a->rows, ROWS);
    for (int i = 0; i < tiles; i++) {
        int first = pd_cpu_tile(a->rows, tiles, i), end = pd_cpu_tile(a->rows, tiles, i + 1);

        for (int r = first; r < end; r++) { /* row r is head r % group of token r / group */
            const float *q =
                query->q + (size_t)(r / a->group) * query->q_stride + r % a->group * a->dim;

            for (int d = 0; d < a->dim; d++)
                a->packed[first * a->dim + d * (end - first) + r - first] = q[d] * shape->scale;
        }
    }
}

static float *row_state(const struct attend *a, float *states, size_t state_rows, int r)
{
    size_t row = (size_t)(r / a->group) * state_rows + (size_t)(r % a->group);

    return states + row * pd_cpu_state_floats(a->dim);
}

static void attend(const struct pd_cpu_query *query, int first, int end, float *states,
                   size_t state_rows, float *scratch)
{
    int keys = query->position + query->tokens; /* that the last row sees */
    bool write = states == NULL;
    struct attend a;

    start(&a, query, scratch);
    if (write) {
        states = a.states;
        state_rows = (size_t)a.group;
    }
    for (int r = 0; r < a.rows; r++)
        clear_state(row_state(&a, states, state_rows, r), a.dim);
    for (int s = first; s < end; s++) {
        int from = s * PD_CPU_SPLIT,
            count = keys - from < PD_CPU_SPLIT ? keys - from : PD_CPU_SPLIT;

        load_keys_and_values(&a, from, count);
        score(&a, count);
        for (int r = 0; r < a.rows; r++)
            weigh(&a, r, from, count);
        sum_values(&a, count);
        for (int r = 0; r < a.rows; r++)
            merge_state(row_state(&a, states, state_rows, r), a.greatest[r], a.total[r],
                        a.sums + r * PANEL, a.rows * PANEL, a.padded);
    }
    for (int r = 0; write && r < a.rows; r++)
        finish_state(row_state(&a, states, state_rows, r), a.dim,
                     query->out + (size_t)(r / a.group) * query->out_stride + r % a.group * a.dim);
}

#endif
