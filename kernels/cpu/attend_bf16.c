/* Attention in bf16 by tiles (AMX). Within a run, even and odd numbers are summed apart, then added (product_bf16.c
 * says more of the instruction). */
#include "kernels/cpu/attend_bf16.h"

enum { SUMMED = 4 }; /* tiles of values whose sums are made at once */

/* Sums, weights and queries of few rows have short tiles. */
static void configure(int width)
{
    struct pd_cpu_tiles tiles = pd_cpu_tiles_whole();

    for (int i = 0; i < TILE_COUNT; i++) {
        if (i < 5)
            tiles.rows[i] = (uint8_t)width;
        if (i > 5)
            tiles.row_bytes[i] = (uint16_t)(4 * width);
    }
    pd_cpu_tiles_configure(&tiles);
}

static void score(const struct attend *a, int g, int k, int from)
{
    const int runs = a->runs, width = 4 * a->width;
    const uint16_t *queries = a->queries + g * runs * RUN * a->width;
    const uint16_t *keys = a->keys + from * RUN * runs * RUN;
    float *scores = a->scores + k * RUN * a->width;

    for (int half = 0; half < 2; half++) {
        _tile_zero(7);
        for (int d = 0; d < runs; d++) {
            _tile_loadd(6, queries + d * RUN * a->width, width);
            _tile_loadd(5, keys + d * RUN, runs * TILE_BYTES);
            _tile_dpbf16ps(7, 5, 6);
        }
        _tile_stored(7, scores, width);
        keys += TILE_ROWS * runs * RUN;
        scores += TILE_ROWS * a->width;
    }
    memory_is_used();
}

/* Adds weights times values of run k, which lie in place `from`, to tiles t .. t + tiles - 1. */
INLINE void add_run(const struct attend *a, int k, int from, int t, int tiles)
{
    const uint16_t *values = a->values + (from * 2 * a->runs + t) * TILE_NUMBERS;

    _tile_loadd(4, a->weights + k * RUN, PD_CPU_SPLIT * sizeof(uint16_t));
    _tile_loadd(5, values, TILE_BYTES);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(5, values + TILE_NUMBERS, TILE_BYTES);
    _tile_dpbf16ps(1, 4, 5);
    if (tiles == SUMMED) {
        _tile_loadd(5, values + 2 * TILE_NUMBERS, TILE_BYTES);
        _tile_dpbf16ps(2, 4, 5);
        _tile_loadd(5, values + 3 * TILE_NUMBERS, TILE_BYTES);
        _tile_dpbf16ps(3, 4, 5);
    }
}

INLINE void clear_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

INLINE void store_sums(const struct attend *a, int t, int tiles)
{
    const int tile = a->width * LANES;
    float *sums = a->sums + t * tile;

    _tile_stored(0, sums, TILE_BYTES);
    _tile_stored(1, sums + tile, TILE_BYTES);
    if (tiles == SUMMED) {
        _tile_stored(2, sums + 2 * tile, TILE_BYTES);
        _tile_stored(3, sums + 3 * tile, TILE_BYTES);
    }
    memory_is_used();
}

INLINE void sum_tiles(const struct attend *a, int runs, int t, int tiles)
{
    clear_sums();
    for (int k = 0; k < runs; k++)
        add_run(a, k, k, t, tiles);
    store_sums(a, t, tiles);
}

static void sum_values(const struct attend *a, int runs)
{
    int tiles = 2 * a->runs, t = 0;

    for (; t + SUMMED <= tiles; t += SUMMED)
        sum_tiles(a, runs, t, SUMMED);
    if (t < tiles)
        sum_tiles(a, runs, t, 2);
}

/* Each run is loaded while the one before it is multiplied, into memory that stays in L1. */
static void score_alone(struct attend *a, int runs)
{
    load_keys(a, 0, 0);
    for (int k = 0; k < runs; k++) {
        if (k + 1 < runs)
            load_keys(a, k + 1, (k + 1) % 2);
        score(a, 0, k, k % 2);
    }
}

INLINE void sum_alone_tiles(struct attend *a, int runs, int count, int tiles)
{
    load_values(a, 0, 0, count);
    clear_sums();
    for (int k = 0; k < runs; k++) {
        if (k + 1 < runs)
            load_values(a, k + 1, (k + 1) % 2, count - (k + 1) * RUN);
        add_run(a, k, k % 2, 0, tiles);
        memory_is_used(); /* its place is that of the run after the next */
    }
    store_sums(a, 0, tiles);
}

/* So are values. Where a row's sums do not fit into tiles at once, values are loaded before. */
static void sum_alone(struct attend *a, int runs, int count)
{
    if (2 * a->runs == SUMMED) {
        sum_alone_tiles(a, runs, count, SUMMED);
        return;
    }
    if (2 * a->runs < SUMMED) {
        sum_alone_tiles(a, runs, count, 2);
        return;
    }
    for (int k = 0; k < runs; k++)
        load_values(a, k, k, count - k * RUN);
    sum_values(a, runs);
}

void pd_cpu_attend_bf16(struct pd_cpu_query *query, struct pd_cpu_query *next, float *scratch)
{
    attend(query, next, scratch);
}
