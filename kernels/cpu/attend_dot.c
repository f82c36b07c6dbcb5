/* Attention in bf16 by dot products of pairs (AVX-512 BF16): to a sum, each instruction adds the product of a pair's
 * odd numbers, then that of its even ones.
 *
 * Sixteen rows: a register has one key's scores of all of them, or sixteen dimensions of one row's sums; one operand
 * is a pair that all lanes share, from memory. Four rows, which wait for memory: keys and values go from the pool
 * through registers into sums. A register has four keys' scores of four rows then; so the pairs of four keys that meet
 * the same pair of dimensions are put next to each other first. */
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
    int32_t pair;

    memcpy(&pair, from, sizeof(pair));
    return _mm512_set1_epi32(pair);
}

/* Sixteen sums of sixteen lanes each. */
INLINE void clear_sums(lanes sums[TILE_ROWS])
{
#pragma GCC unroll 16
    for (int i = 0; i < TILE_ROWS; i++)
        sums[i] = lanes_set(0);
}

/* To each is added a pair of its own row, `stride` numbers behind the one before, times `other`. */
INLINE void add_rows(lanes sums[TILE_ROWS], const uint16_t *row, ptrdiff_t stride, __m512i other)
{
#pragma GCC unroll 16
    for (int i = 0; i < TILE_ROWS; i++)
        sums[i] = dot(sums[i], load_pair(row + i * stride), other);
}

INLINE void store_sums(lanes sums[TILE_ROWS], float *out)
{
#pragma GCC unroll 16
    for (int i = 0; i < TILE_ROWS; i++)
        lanes_store(out + i * LANES, sums[i]);
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* Of sixteen keys with sixteen rows. A number of runs that is a constant spares sixteen addresses. */
INLINE void score_runs(int runs, const uint16_t *queries, const uint16_t *keys, float *scores)
{
    const int pairs = runs * PAIRS, stride = 2 * pairs;
    lanes sums[TILE_ROWS];

    clear_sums(sums);
    for (int p = 0; p < pairs; p++)
        add_rows(sums, keys + 2 * p, stride, _mm512_loadu_si512(queries + p * RUN));
    store_sums(sums, scores);
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

/* Of a run of four keys: register i has in quarter j their pairs 4 j + i. */
INLINE void turn_four(const __m512i key[4], __m512i out[4])
{
    __m512i low[2], high[2];

    for (int i = 0; i < 2; i++) {
        low[i] = _mm512_unpacklo_epi32(key[2 * i], key[2 * i + 1]);
        high[i] = _mm512_unpackhi_epi32(key[2 * i], key[2 * i + 1]);
    }
    out[0] = _mm512_unpacklo_epi64(low[0], low[1]);
    out[1] = _mm512_unpackhi_epi64(low[0], low[1]);
    out[2] = _mm512_unpacklo_epi64(high[0], high[1]);
    out[3] = _mm512_unpackhi_epi64(high[0], high[1]);
}

/* Run d of sixteen keys from j on, turned four by four. */
INLINE void load_turned(enum pd_dtype type, struct attend *a, int j, int d, __m512i out[FEW][4])
{
    const size_t at = (size_t)d * RUN * (type == PD_F32 ? 4 : 2);
    const __mmask32 mask = mask_of(a, d);
    __m512i greatest = a->greatest;

#pragma GCC unroll 4
    for (int f = 0; f < FEW; f++, j += 4) {
        __m512i key[4];

#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            key[i] = load_and_fetch(type, a->at.key[j + i] + at, mask, a->at.ahead[j + i] + at,
                                    &greatest);
        turn_four(key, out[f]);
    }
    a->greatest = greatest;
}

/* Of sixteen keys from j on with four rows. */
INLINE void score_few(enum pd_dtype type, struct attend *a, int j)
{
    const __m512i each = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const uint16_t *queries = a->queries;
    lanes sums[FEW];

    for (int f = 0; f < FEW; f++)
        sums[f] = lanes_set(0);
    for (int d = 0; d < a->runs; d++, queries += PAIRS * 2 * FEW) {
        __m512i key[FEW][4];

        load_turned(type, a, j, d, key);
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
        lanes_store(a->scores + j * FEW + f * LANES, sums[f]);
}

INLINE void score_few_alone(enum pd_dtype type, struct attend *a, int runs)
{
    for (int j = 0; j < runs * RUN; j += TILE_ROWS)
        score_few(type, a, j);
}

static void score(const struct attend *a, int g, int k, int from)
{
    const uint16_t *queries = a->queries + g * a->runs * RUN * GROUP;
    const uint16_t *keys = a->keys + from * RUN * a->runs * RUN;
    float *scores = a->scores + k * RUN * GROUP;

    score_many(a, queries, keys, scores);
    score_many(a, queries, keys + TILE_ROWS * a->runs * RUN, scores + TILE_ROWS * GROUP);
}

static void score_alone(struct attend *a, int runs)
{
    if (a->width == FEW) {
        EACH_TYPE(score_few_alone, a, runs)
        return;
    }
    for (int k = 0; k < runs; k++) {
        load_keys(a, k, 0);
        score(a, 0, k, 0);
    }
}

/* ---- sums of values -------------------------------------------------------------------------- */

/* Of tile t, with sixteen rows. */
static void sum_tile(const struct attend *a, int runs, int t)
{
    lanes sums[GROUP];

    clear_sums(sums);
    for (int k = 0; k < runs; k++) {
        const uint16_t *values = a->values + (k * 2 * a->runs + t) * TILE_NUMBERS;
        const uint16_t *weights = a->weights + k * RUN;

        for (int p = 0; p < PAIRS; p++)
            add_rows(sums, weights + 2 * p, PD_CPU_SPLIT, _mm512_loadu_si512(values + p * RUN));
    }
    store_sums(sums, a->sums + t * GROUP * LANES);
}

static void sum_values(const struct attend *a, int runs)
{
    for (int t = 0; t < 2 * a->runs; t++)
        sum_tile(a, runs, t);
}

/* Pair p of run k's values, run d of their dimensions, with four rows. `left` of the run's keys are there: of a whole
 * run a constant says so, and no mask is computed. */
INLINE void add_pair(enum pd_dtype type, const struct attend *a, int k, int p, int d, int left,
                     lanes sums[2][FEW], __m512i *greatest)
{
    const size_t at = a->at.tile + (size_t)d * RUN * (type == PD_F32 ? 4 : 2);
    const int place = place_of_pair(p), first = k * RUN + place, second = first + PAIRS;
    const __mmask32 mask = mask_of(a, d);
    __m512i one, two, low, high;

    one = load_and_fetch(type, a->at.key[first] + at, place < left ? mask : 0,
                         a->at.ahead[first] + at, greatest);
    two = load_and_fetch(type, a->at.key[second] + at, place + PAIRS < left ? mask : 0,
                         a->at.ahead[second] + at, greatest);
    low = _mm512_unpacklo_epi16(one, two);
    high = _mm512_unpackhi_epi16(one, two);
#pragma GCC unroll 4
    for (int r = 0; r < FEW; r++) {
        const __m512i weight = load_pair(a->weights + r * PD_CPU_SPLIT + k * RUN + 2 * p);

        sums[0][r] = dot(sums[0][r], weight, low);
        sums[1][r] = dot(sums[1][r], weight, high);
    }
}

INLINE void sum_few_alone(enum pd_dtype type, struct attend *a, int runs, int count)
{
    __m512i greatest = a->greatest; /* in a register, however many are looked at */

    for (int d = 0; d < a->runs; d++) {
        lanes sums[2][FEW];

        for (int r = 0; r < FEW; r++)
            sums[0][r] = sums[1][r] = lanes_set(0);
        for (int k = 0; k < runs; k++) {
            const int left = count - k * RUN;

            if (left >= RUN) {
#pragma GCC unroll 4
                for (int p = 0; p < PAIRS; p++)
                    add_pair(type, a, k, p, d, RUN, sums, &greatest);
            } else {
                for (int p = 0; p < PAIRS; p++)
                    add_pair(type, a, k, p, d, left, sums, &greatest);
            }
        }
        for (int r = 0; r < FEW; r++) {
            lanes_store(a->sums + (2 * d * FEW + r) * LANES, sums[0][r]);
            lanes_store(a->sums + ((2 * d + 1) * FEW + r) * LANES, sums[1][r]);
        }
    }
    a->greatest = greatest;
}

static void sum_alone(struct attend *a, int runs, int count)
{
    if (a->width == FEW) {
        EACH_TYPE(sum_few_alone, a, runs, count)
        return;
    }
    for (int k = 0; k < runs; k++)
        load_values(a, k, k, count - k * RUN);
    sum_values(a, runs);
}

void pd_cpu_attend_dot(struct pd_cpu_query *query, struct pd_cpu_query *next, float *scratch)
{
    attend(query, next, scratch);
}
