/* Attention in bf16 by dot products of pairs (AVX-512 BF16): to a sum, each instruction adds the product of a pair's
 * odd numbers, then that of its even ones.
 *
 * Sixteen rows: a register has one key's scores of all of them, or sixteen dimensions of one row's sums; one operand
 * is a pair that all lanes share, from memory. Four rows: as attend_bf16.h says, four keys' scores of four; the pairs
 * of four keys that meet the same pair of dimensions are put next to each other first. */
#include "kernels/cpu/attend_bf16.h"

static void configure(int width)
{
    (void)width;
}

INLINE lanes dot(lanes sum, __m512i a, __m512i b)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

/* One pair, for all lanes. */
INLINE __m512i load_pair(const uint16_t *from)
{
    return _mm512_set1_epi32(*(const int32_t *)from);
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* Of sixteen keys with sixteen rows. A number of runs that is a constant spares sixteen addresses. */
INLINE void score_runs(int runs, const uint16_t *queries, const uint16_t *keys, float *scores)
{
    const int pairs = runs * PAIRS, stride = 2 * pairs;
    lanes sums[TILE_ROWS];

#pragma GCC unroll 16
    for (int i = 0; i < TILE_ROWS; i++)
        sums[i] = lanes_set(0);
    for (int p = 0; p < pairs; p++) {
        const __m512i query = _mm512_loadu_si512(queries + p * RUN);

#pragma GCC unroll 16
        for (int i = 0; i < TILE_ROWS; i++)
            sums[i] = dot(sums[i], load_pair(keys + i * stride + 2 * p), query);
    }
#pragma GCC unroll 16
    for (int i = 0; i < TILE_ROWS; i++)
        lanes_store(scores + i * GROUP, sums[i]);
}

static void score_many(const struct attend *a, const uint16_t *queries, const uint16_t *keys,
                       float *scores)
{
    switch (a->runs) {
    case 2:
        score_runs(2, queries, keys, scores);
        break;
    case 4:
        score_runs(4, queries, keys, scores);
        break;
    default:
        score_runs(a->runs, queries, keys, scores);
    }
}

/* A run of four keys, so that register i has in quarter j their pairs 4 j + i. */
INLINE void turn_four(const uint16_t *keys, int stride, __m512i out[4])
{
    __m512i key[4], low[2], high[2];

    for (int i = 0; i < 4; i++)
        key[i] = _mm512_loadu_si512(keys + i * stride);
    for (int i = 0; i < 2; i++) {
        low[i] = _mm512_unpacklo_epi32(key[2 * i], key[2 * i + 1]);
        high[i] = _mm512_unpackhi_epi32(key[2 * i], key[2 * i + 1]);
    }
    out[0] = _mm512_unpacklo_epi64(low[0], low[1]);
    out[1] = _mm512_unpackhi_epi64(low[0], low[1]);
    out[2] = _mm512_unpacklo_epi64(high[0], high[1]);
    out[3] = _mm512_unpackhi_epi64(high[0], high[1]);
}

/* Of sixteen keys with four rows. */
static void score_few(const struct attend *a, const uint16_t *queries, const uint16_t *keys,
                      float *scores)
{
    const __m512i each = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const int stride = a->runs * RUN;
    lanes sums[FEW];

    for (int f = 0; f < FEW; f++)
        sums[f] = lanes_set(0);
    for (int d = 0; d < a->runs; d++, queries += PAIRS * 2 * FEW) {
        __m512i key[FEW][4];

#pragma GCC unroll 4
        for (int f = 0; f < FEW; f++)
            turn_four(keys + 4 * f * stride + d * RUN, stride, key[f]);
#pragma GCC unroll 16
        for (int p = 0; p < PAIRS; p++) {
            const __m512i quarter = _mm512_add_epi32(each, _mm512_set1_epi32(p / 4 * 4));
            const __m512i query =
                _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(queries + p * 2 * FEW)));

#pragma GCC unroll 4
            for (int f = 0; f < FEW; f++)
                sums[f] = dot(sums[f], _mm512_permutexvar_epi32(quarter, key[f][p % 4]), query);
        }
    }
    for (int f = 0; f < FEW; f++)
        lanes_store(scores + f * LANES, sums[f]);
}

static void score(const struct attend *a, int g, int k, int from)
{
    const uint16_t *queries = a->queries + g * a->runs * RUN * a->width;
    const uint16_t *keys = a->keys + from * RUN * a->runs * RUN;
    float *scores = a->scores + k * RUN * a->width;

    for (int half = 0; half < 2; half++) {
        (a->width == FEW ? score_few : score_many)(a, queries, keys, scores);
        keys += TILE_ROWS * a->runs * RUN;
        scores += TILE_ROWS * a->width;
    }
}

/* ---- sums of values -------------------------------------------------------------------------- */

/* Of tiles t .. t + tiles - 1, with `rows` rows: together as many as there are registers for. */
INLINE void sum_tiles(const struct attend *a, int rows, int runs, int t, int tiles)
{
    lanes sums[SUMMED][GROUP];

#pragma GCC unroll 4
    for (int i = 0; i < tiles; i++) {
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
            sums[i][r] = lanes_set(0);
    }
    for (int k = 0; k < runs; k++) {
        const uint16_t *values = a->values + (k * 2 * a->runs + t) * TILE_NUMBERS;
        const uint16_t *weights = a->weights + k * RUN;

        for (int p = 0; p < PAIRS; p++) {
#pragma GCC unroll 4
            for (int i = 0; i < tiles; i++) {
                const __m512i value = _mm512_loadu_si512(values + i * TILE_NUMBERS + p * RUN);

#pragma GCC unroll 16
                for (int r = 0; r < rows; r++)
                    sums[i][r] =
                        dot(sums[i][r], load_pair(weights + r * PD_CPU_SPLIT + 2 * p), value);
            }
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < tiles; i++) {
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
            lanes_store(a->sums + ((t + i) * rows + r) * LANES, sums[i][r]);
    }
}

static void sum_values(const struct attend *a, int runs)
{
    int tiles = 2 * a->runs, t = 0;

    for (; a->width == FEW && t + SUMMED <= tiles; t += SUMMED)
        sum_tiles(a, FEW, runs, t, SUMMED);
    for (; a->width == FEW && t < tiles; t += 2)
        sum_tiles(a, FEW, runs, t, 2);
    for (; t < tiles; t++)
        sum_tiles(a, GROUP, runs, t, 1);
}

static void sum_alone(struct attend *a, int runs, int count)
{
    for (int k = 0; k < runs; k++)
        load_values(a, k, k, count - k * RUN);
    sum_values(a, runs);
}

void pd_cpu_attend_dot(struct pd_cpu_query *query, struct pd_cpu_query *next, float *scratch)
{
    attend(query, next, scratch);
}
