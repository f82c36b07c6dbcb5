/* A path's attention of so few rows that memory sets the pace, decoded tokens above all: each key and each value
 * is used once, as it comes.
 *
 *     keys     [key][dimension] ──▶ turned, a panel at a time: [dimension][key], of the pool's type
 *              ──▶ widened to f32, times q of each row ──▶ scores [row][key]
 *     values   [key][dimension] where they lie, widened, times weights of each row ──▶ sums [row][dimension]
 *
 * Whatever is computed, so much of what comes next is asked for meanwhile that memory never waits: half of it
 * beside the keys, half beside the values. The arithmetic is attend_many's: scores are sums over dimensions from first to
 * last, values over keys.
 *
 * Included by attend.h only. */
#ifndef PD_ATTEND_FEW_H
#define PD_ATTEND_FEW_H

#include "kernels/cpu/keys.h"
#include "kernels/cpu/multiply.h"
#include "kernels/cpu/path.h"
#include "kernels/cpu/states.h"
#include "kernels/cpu/weigh.h"

enum { MOST_WIDE = 2 * TILES };

struct few {
    const struct pd_cpu_query *query;
    int group, rows, dim;
    int count, quarter; /* keys of the split; a quarter of those to be loaded meanwhile */
    float *q;           /* [rows][dim], times scale */
    void *keys;         /* a panel, turned */
    float *scores;      /* [rows][SPLIT] */
    float *sums;        /* [rows][dim] */
    float *states;      /* [rows][state_floats] */
    struct located at;  /* the split's keys */
};

/* Registers of keys, or dimensions, whose sums of n rows are made at once. */
INLINE int wide(int n)
{
    return n <= ROWS / 2 ? MOST_WIDE : TILES;
}

/* sums[n][wide] = 0. Constants at each call: n, width. */
INLINE void clear_sums(int n, int width, lanes sums[ROWS][MOST_WIDE])
{
#pragma GCC unroll 12
    for (int r = 0; r < n; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < width; i++)
            sums[r][i] = lanes_set(0);
    }
}

/* += of each row, factors `stride` apart. */
INLINE void add_products(int n, int width, const lanes *numbers, const float *factors,
                         ptrdiff_t stride, lanes sums[ROWS][MOST_WIDE])
{
#pragma GCC unroll 12
    for (int r = 0; r < n; r++) {
        lanes factor = lanes_set(factors[r * stride]);

#pragma GCC unroll 4
        for (int i = 0; i < width; i++)
            sums[r][i] = lanes_fma(numbers[i], factor, sums[r][i]);
    }
}

INLINE void store_sums(int n, int width, lanes sums[ROWS][MOST_WIDE], float *out, ptrdiff_t stride)
{
#pragma GCC unroll 12
    for (int r = 0; r < n; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < width; i++)
            lanes_store(out + r * stride + i * LANES, sums[r][i]);
    }
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* Turns keys j .. j + 15: of f32 to [dim][16], of halves to twice [dim][8], dimensions in turn_eight's order. */
INLINE void turn_few(enum pd_dtype type, const struct few *f, int j, void *out)
{
    const uint8_t *const *keys = f->at.key + j;
    const int step = type == PD_F32 ? LANES : TURNED;

    for (int d = 0; d < f->dim; d += step) {
        fetch(&f->at, j / 4 + d * 4 / f->dim, j / 4 + (d + step) * 4 / f->dim);
        if (type != PD_F32) {
            turn_eight(keys, (size_t)d * 2, (uint16_t *)out + d * 8);
            turn_eight(keys + 8, (size_t)d * 2, (uint16_t *)out + (f->dim + d) * 8);
        } else {
            lanes key[LANES];

#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                key[i] = lanes_load((const float *)keys[i] + d);
            lanes_transpose(key);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                lanes_store((float *)out + (d + i) * LANES, key[i]);
        }
    }
}

/* Dimension d + i, d a multiple of 8, of sixteen keys. */
INLINE lanes turned_key(enum pd_dtype type, const void *keys, int dim, int d, int i)
{
    const uint16_t *at =
        (const uint16_t *)keys + d / TURNED * TURNED * 8 + d % TURNED + i * TURNED_STEP;

    switch (type) {
    case PD_F16:
        return lanes_load_two_f16(at, at + dim * 8);
    case PD_BF16:
        return lanes_load_two_bf16(at, at + dim * 8);
    default:
        return lanes_load((const float *)keys + (d + i) * LANES);
    }
}

/* Keys from j on, as many as registers hold, turned. */
INLINE void score_few(enum pd_dtype type, int n, const struct few *f, int j)
{
    const int width = wide(n), dim = f->dim, part = width * LANES / 4;
    const size_t bytes = (size_t)dim * LANES * (type == PD_F32 ? 4 : 2);
    lanes sums[ROWS][MOST_WIDE];

    clear_sums(n, width, sums);
    for (int d = 0; d < dim; d += 8) {
        int first = f->quarter + j / 4;

        fetch(&f->at, first + d * part / dim, first + (d + 8) * part / dim);
#pragma GCC unroll 2
        for (int i = 0; i < 8; i++) {
            lanes key[MOST_WIDE];

#pragma GCC unroll 4
            for (int k = 0; k < width; k++)
                key[k] = turned_key(type, (const uint8_t *)f->keys + (size_t)k * bytes, dim, d, i);
            add_products(n, width, key, f->q + d + i, dim, sums);
        }
    }
    store_sums(n, width, sums, f->scores + j, PD_CPU_SPLIT);
}

INLINE void score_all(enum pd_dtype type, int n, const struct few *f)
{
    const int width = wide(n) * LANES;
    const size_t bytes = (size_t)f->dim * (type == PD_F32 ? 4 : 2);

    for (int j = 0; j < f->count; j += width) {
        for (int i = 0; i < width && j + i < f->count; i += LANES)
            turn_few(type, f, j + i, (uint8_t *)f->keys + (size_t)i * bytes);
        score_few(type, n, f, j);
    }
}

/* ---- sums of values -------------------------------------------------------------------------- */

/* `width` registers of dimensions from d on. */
INLINE void sum_few(enum pd_dtype type, int n, int width, const struct few *f, int d)
{
    const size_t size = type == PD_F32 ? 4 : 2, bytes = (size_t)width * LANES * size;
    const size_t from = (size_t)d * size, value = from + f->at.tile;
    lanes sums[ROWS][MOST_WIDE];

    clear_sums(n, width, sums);
#pragma GCC unroll 2
    for (int j = 0; j < f->count; j++) {
        lanes numbers[MOST_WIDE];

        if (j % 2 == 0) {
            const uint8_t *ahead = f->at.ahead[2 * f->quarter + j / 2];

            for (size_t line = 0; line < bytes; line += 64) {
                __builtin_prefetch(ahead + from + line, 0, 2);
                __builtin_prefetch(ahead + value + line, 0, 2);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < width; i++)
            numbers[i] = load_kv(type, f->at.key[j] + value + (size_t)i * LANES * size);
        add_products(n, width, numbers, f->scores + j, PD_CPU_SPLIT, sums);
    }
    store_sums(n, width, sums, f->sums + d, f->dim);
}

INLINE void sum_all(enum pd_dtype type, int n, const struct few *f)
{
    const int step = wide(n) * LANES;
    int d = 0;

    for (; d + step <= f->dim; d += step)
        sum_few(type, n, wide(n), f, d);
    if (d < f->dim)
        sum_few(type, n, TILES, f, d);
}

/* ---- the whole ------------------------------------------------------------------------------- */

typedef void few_pass(const struct few *);

#define FEW(type, n)                                                                               \
    static void score_##type##_##n(const struct few *f)                                            \
    {                                                                                              \
        score_all(type, n, f);                                                                     \
    }                                                                                              \
    static void sum_##type##_##n(const struct few *f)                                              \
    {                                                                                              \
        sum_all(type, n, f);                                                                       \
    }
#define NAME_FEW(type, n) {score_##type##_##n, sum_##type##_##n},

UP_TO_ROWS(FEW, PD_F32)
UP_TO_ROWS(FEW, PD_F16)
UP_TO_ROWS(FEW, PD_BF16)

/* [type][n - 1] */
static const struct {
    few_pass *score, *sum;
} few_passes[PD_BF16 + 1][ROWS] = {
    [PD_F32] = {UP_TO_ROWS(NAME_FEW, PD_F32)},
    [PD_F16] = {UP_TO_ROWS(NAME_FEW, PD_F16)},
    [PD_BF16] = {UP_TO_ROWS(NAME_FEW, PD_BF16)},
};

/* Whether a query's rows are few, of a dimension in whole panels. */
static bool takes_few(const struct pd_cpu_query *query)
{
    const struct pd_attention_shape *shape = query->shape;

    return query->tokens * (shape->heads / shape->kv_heads) <= ROWS && shape->head_dim % PANEL == 0;
}

static void start_few(struct few *f, const struct pd_cpu_query *query, float *scratch)
{
    const struct pd_attention_shape *shape = query->shape;

    f->query = query;
    f->group = shape->heads / shape->kv_heads;
    f->rows = query->tokens * f->group;
    f->dim = shape->head_dim;
    f->keys = scratch;
    f->scores = scratch + f->dim * PD_CPU_SPLIT;
    f->q = f->scores + f->rows * PD_CPU_SPLIT;
    f->sums = f->q + f->rows * f->dim;
    f->states = f->sums + f->rows * f->dim;
    for (int r = 0; r < f->rows; r++) {
        const float *q = row_query(query, f->group, r);
        lanes scale = lanes_set(shape->scale);

        for (int d = 0; d < f->dim; d += LANES)
            lanes_store(f->q + r * f->dim + d, lanes_mul(lanes_load(q + d), scale));
    }
}

static void attend_few(struct pd_cpu_query *query, struct pd_cpu_query *next, float *scratch)
{
    int keys = keys_of(query);
    struct few f;

    start_few(&f, query, scratch);
    clear_states(query, f.states, f.group, f.rows);
    for (int s = query->first; s < query->end; s++) {
        int from = s * PD_CPU_SPLIT;
        float greatest[ROWS], total[ROWS];

        f.count = split_keys(keys, from);
        f.quarter = (f.count + 31) / 32 * 8;
        locate(query, next, from, f.count, &f.at);
        few_passes[query->pool->type][f.rows - 1].score(&f);
        for (int r = 0; r < f.rows; r++)
            weigh(query, r / f.group, from, f.count, f.scores + r * PD_CPU_SPLIT, PANEL,
                  greatest + r, total + r);
        few_passes[query->pool->type][f.rows - 1].sum(&f);
        for (int r = 0; r < f.rows; r++)
            merge_state(row_state(query, f.states, f.group, r), greatest[r], total[r],
                        f.sums + r * f.dim, PANEL, f.dim);
    }
    finish_states(query, f.states, f.group, f.rows);
}

#endif
