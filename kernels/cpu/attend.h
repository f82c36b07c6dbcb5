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

#include "kernels/cpu/attend_few.h"
#include "kernels/cpu/keys.h"
#include "kernels/cpu/multiply.h"
#include "kernels/cpu/path.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/states.h"
#include "kernels/cpu/weigh.h"

#define SUMMED(form, n)                                                                            \
    static void summed_##form##_##n(const uint8_t *values, int keys, const float *weights,         \
                                    float *sums)                                                   \
    {                                                                                              \
        multiply(form, n, 0, values, PANEL, keys, weights, PANEL, 1, weights, 0, 0, sums);         \
    }
#define NAME_SUMMED(form, n) summed_##form##_##n,

/* sums[n][PANEL] += 32 dimensions of at most 32 keys' values times weights[n][PANEL]. */
typedef void summed_multiply(const uint8_t *values, int keys, const float *weights, float *sums);

UP_TO_ROWS(SUMMED, PD_FORM_F32)

static summed_multiply *const summed[ROWS] = {UP_TO_ROWS(NAME_SUMMED, PD_FORM_F32)};

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
    struct located at;            /* the split's keys */
};

static float load_kv_one(enum pd_dtype type, const uint8_t *from)
{
    switch (type) {
    case PD_F16:
        return pd_float_of_f16(*(const uint16_t *)from);
    case PD_BF16:
        return pd_float_of_bf16(*(const uint16_t *)from);
    default:
        return *(const float *)from;
    }
}

/* Sixteen keys, turned so that a register holds one dimension of all. */
INLINE void turn_keys(enum pd_dtype type, size_t size, const uint8_t *const *keys, int dim,
                      float *out, const struct located *at, int j)
{
    int whole = dim / LANES * LANES;

    for (int d = 0; d < whole; d += LANES) {
        lanes key[LANES];

        fetch(at, j + d * LANES / whole, j + (d + LANES) * LANES / whole);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            key[i] = load_kv(type, keys[i] + (size_t)d * size);
        lanes_transpose(key);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            lanes_store(out + (d + i) * PANEL, key[i]);
    }
    for (int d = whole; d < dim; d++) {
        for (int i = 0; i < LANES; i++)
            out[d * PANEL + i] = load_kv_one(type, keys[i] + (size_t)d * size);
    }
}

/* One value, dimensions in panels `SPLIT` rows apart, zeros after the last. */
INLINE void copy_value(enum pd_dtype type, size_t size, const uint8_t *value, int dim, float *out)
{
    int whole = dim / LANES * LANES, padded = (dim + PANEL - 1) / PANEL * PANEL;

    for (int d = 0; d < whole; d += LANES)
        lanes_store(out + d / PANEL * PANEL * PD_CPU_SPLIT + d % PANEL,
                    load_kv(type, value + (size_t)d * size));
    for (int d = whole; d < padded; d++)
        out[d / PANEL * PANEL * PD_CPU_SPLIT + d % PANEL] =
            d < dim ? load_kv_one(type, value + (size_t)d * size) : 0;
}

/* Keys past the last of the split are the last again: their scores are hidden. */
INLINE void load_split(enum pd_dtype type, struct attend *a, int count)
{
    const size_t size = type == PD_F32 ? 4 : 2;

    for (int j = 0; j < count; j += LANES) {
        int at = j / PANEL * PANEL * a->dim + j % PANEL;

        turn_keys(type, size, a->at.key + j, a->dim, a->keys + at, &a->at, j);
    }
    for (int j = 0; j < count; j++)
        copy_value(type, size, a->at.key[j] + a->at.tile, a->dim, a->values + j * PANEL);
}

static void load_keys_and_values(struct attend *a, int count)
{
    EACH_TYPE(load_split, a, count)
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

/* Values of keys j .. end - 1, all in one panel of scores. */
static void sum_run(const struct attend *a, int j, int end)
{
    int tiles = pd_cpu_tiles(a->rows, ROWS);

    for (int d = 0; d < a->padded / PANEL; d++) {
        const uint8_t *values = (const uint8_t *)(a->values + (d * PD_CPU_SPLIT + j) * PANEL);

        for (int i = 0; i < tiles; i++) {
            int r = pd_cpu_tile(a->rows, tiles, i), n = pd_cpu_tile(a->rows, tiles, i + 1) - r;

            summed[n - 1](values, end - j, a->scores + (j / PANEL * a->rows + r) * PANEL,
                          a->sums + (d * a->rows + r) * PANEL);
        }
    }
}

static void sum_values(const struct attend *a, int count)
{
    memset(a->sums, 0, (size_t)(a->padded * a->rows) * sizeof(float));
    for (int j = 0; j < count; j += PANEL)
        sum_run(a, j, j + PANEL < count ? j + PANEL : count);
}

/* ---- the whole ------------------------------------------------------------------------------- */

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

/* As pack_queries does, a register of each row at a time. Every store but the last is cut short by the next; the
 * last runs into what is written later. */
static void turn_queries(const struct attend *a, int first, int n)
{
    float *out = a->packed + first * a->dim;
    lanes scale = lanes_set(a->query->shape->scale);

    for (int d = 0; d < a->dim; d += LANES) {
        lanes q[LANES];

#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            q[i] = i < n
                       ? lanes_mul(lanes_load(row_query(a->query, a->group, first + i) + d), scale)
                       : scale;
        lanes_transpose(q);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            lanes_store(out + (d + i) * n, q[i]);
    }
}

/* A tile's rows. */
static void pack_queries(const struct attend *a, int first, int end)
{
    float scale = a->query->shape->scale;

    if (a->dim % LANES == 0) {
        turn_queries(a, first, end - first);
        return;
    }
    for (int r = first; r < end; r++) {
        const float *q = row_query(a->query, a->group, r);
        float *out = a->packed + first * a->dim + r - first;

        for (int d = 0; d < a->dim; d++)
            out[d * (end - first)] = q[d] * scale;
    }
}

static void start(struct attend *a, const struct pd_cpu_query *query, float *scratch)
{
    const struct pd_attention_shape *shape = query->shape;
    int tiles;

    a->query = query;
    a->group = shape->heads / shape->kv_heads;
    a->dim = shape->head_dim;
    a->rows = query->tokens * a->group;
    a->padded = (a->dim + PANEL - 1) / PANEL * PANEL;
    a->keys = scratch;
    a->values = scratch + a->padded * PD_CPU_SPLIT;
    a->scores = a->values + a->padded * PD_CPU_SPLIT;
    a->sums = a->scores + a->rows * PD_CPU_SPLIT;
    a->states = a->sums + a->rows * a->padded;
    a->packed = a->states + (size_t)a->rows * pd_cpu_state_floats(a->dim);
    a->greatest = a->packed + a->rows * a->dim;
    a->total = a->greatest + a->rows;
    tiles = pd_cpu_tiles(a->rows, ROWS);
    for (int i = 0; i < tiles; i++)
        pack_queries(a, pd_cpu_tile(a->rows, tiles, i), pd_cpu_tile(a->rows, tiles, i + 1));
}

static void attend_many(struct pd_cpu_query *query, struct pd_cpu_query *next, float *scratch)
{
    int keys = keys_of(query);
    struct attend a;

    start(&a, query, scratch);
    clear_states(query, a.states, a.group, a.rows);
    for (int s = query->first; s < query->end; s++) {
        int from = s * PD_CPU_SPLIT, count = split_keys(keys, from);

        locate(query, next, from, count, &a.at);
        load_keys_and_values(&a, count);
        score(&a, count);
        for (int r = 0; r < a.rows; r++)
            weigh(query, r / a.group, from, count, a.scores + r * PANEL, a.rows * PANEL,
                  a.greatest + r, a.total + r);
        sum_values(&a, count);
        for (int r = 0; r < a.rows; r++)
            merge_state(row_state(query, a.states, a.group, r), a.greatest[r], a.total[r],
                        a.sums + r * PANEL, a.rows * PANEL, a.padded);
    }
    finish_states(query, a.states, a.group, a.rows);
}

static void attend(struct pd_cpu_query *query, struct pd_cpu_query *next, float *scratch)
{
    if (takes_few(query))
        attend_few(query, next, scratch);
    else
        attend_many(query, next, scratch);
}

#endif
