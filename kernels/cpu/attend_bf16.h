/* Attention in bf16: one KV head, up to sixteen rows of queries at a time, splits of 128 keys.
 *
 *     scores    keys, as they lie in the pool [16 keys][32 dimensions]     times queries [16 pairs of dimensions][row]
 *               ──▶ [key][row], f32
 *     weights   e^(score - the row's greatest), cut to bf16, turned ──▶ [row][128 keys]
 *     sums      weights [row][32 keys]   times values [16 pairs of keys][16 dimensions]  ──▶ [row][dimension]
 *
 * A register holds one key's scores of sixteen rows, or, where there are few rows, four keys' of four.
 *
 * A score is summed over runs of 32 dimensions from first to last, a value over runs of 32 keys from first to
 * last, and within a run as the instruction does, whatever the tile: one row or sixteen take the same steps.
 * A key that a row may not see scores -inf and weighs exactly 0.
 *
 * Keys k and k + 16 of a run are a pair, in place 4 (k % 4) + k / 4: so weights need the least turning. The sum of
 * weights is one of what they are after they have been cut, so that what they lack on average is lost in the
 * quotient.
 *
 * A number of f16 becomes one of bf16, 2^-112 as great, when its bits move by three: exponents of both begin at
 * nothing. So queries and weights are 2^100 as great where the pool is of f16, and results 2^12 as great. What is
 * too small for a normal f16 (6e-5) counts as zero. Infinities and what is no number would become numbers: so when one
 * was loaded, the rows that see it are told apart, and nothing that they make of it is a number.
 *
 * How a tile is multiplied is the includer's: attend_bf16.c, by tiles, and attend_dot.c, by dot products. */
#ifndef PD_ATTEND_BF16_H
#define PD_ATTEND_BF16_H

#include "kernels/cpu/keys.h"
#include "kernels/cpu/states.h"
#include "kernels/cpu/tiles.h"

enum {
    GROUP = TILE_ROWS, /* rows of queries at a time, */
    FEW = 4,           /* or up to so many */
    RUN = 32,          /* dimensions, or keys, of one instruction */
    PAIRS = RUN / 2,
    RING = 2 * RUN,                 /* keys, where they are taken as soon as they are loaded */
    TILE_NUMBERS = TILE_ROWS * RUN, /* of bf16 */
};

/* What the numbers of a pool's type are multiplied with. */
struct unit {
    float query;  /* queries */
    float score;  /* makes scores true */
    float weight; /* log2 of what weights are multiplied with */
    float sum;    /* makes sums true */
    uint16_t one; /* makes weights true, in bf16 */
};

static const struct unit units[] = {
    [PD_F32] = {1, 1, 0, 1, 0x3f80},
    [PD_F16] = {0x1p100f, 0x1p12f, 100, 0x1p12f, 0x0d80},
    [PD_BF16] = {1, 1, 0, 1, 0x3f80},
};

static const float LOG2_E = 1.44269504f;

/* log2 of how much greater than a power of two the greatest weight is: cut, it loses as much as all others on
 * average. */
static const float CUT = 0.00404f;

struct attend {
    struct pd_cpu_query *query;
    const struct unit *unit;
    int group, rows, groups, dim, runs; /* runs of dimensions */
    int width;                          /* rows that a group has room for: FEW or GROUP */
    uint16_t *queries;                  /* [group][run][16 pairs of dimensions][width] pairs */
    uint16_t *keys;                     /* [SPLIT][run][RUN]; of one group, [RING][run][RUN] */
    uint16_t *values;  /* [SPLIT / RUN][run][2][pair of keys][16 dimensions] pairs; or of RING */
    float *scores;     /* [SPLIT][width] */
    uint16_t *weights; /* [width][SPLIT] */
    float *sums;       /* [run][2][width][16 dimensions] */
    float *states;     /* [rows][state_floats] */
    struct located at; /* the split's keys */
    __m512i greatest;  /* the split's greatest magnitudes, as bits of f16 */
};

/* ---- the includer's -------------------------------------------------------------------------- */

/* For tiles of so many rows, FEW or GROUP. */
static void configure(int width);

/* Scores of run k's keys, which lie in place `from`, with the rows of group g. */
static void score(const struct attend *a, int g, int k, int from);

/* Scores of all runs' keys where nobody else needs them: loads them, too. */
static void score_alone(struct attend *a, int runs);

/* Sums of all runs' values, times the weights of a group's rows. */
static void sum_values(const struct attend *a, int runs);

/* The same, values loaded. `count`: keys of the split. */
static void sum_alone(struct attend *a, int runs, int count);

INLINE __m512i bits_of(lanes a)
{
    return _mm512_castps_si512(a);
}

INLINE lanes lanes_of(__m512i bits)
{
    return _mm512_castsi512_ps(bits);
}

/* ---- keys and values ------------------------------------------------------------------------- */

/* A run of a row's numbers, `mask` says which there are; zeros elsewhere. */
INLINE __m512i load_run(enum pd_dtype type, const uint8_t *from, __mmask32 mask, __m512i *greatest)
{
    __m512i bits;

    if (type == PD_F32)
        return lanes_to_bf16(_mm512_maskz_loadu_ps((__mmask16)mask, from),
                             _mm512_maskz_loadu_ps((__mmask16)(mask >> LANES), from + 64));
    bits = _mm512_maskz_loadu_epi16(mask, from);
    if (type == PD_BF16)
        return bits;
    *greatest = _mm512_max_epu16(*greatest, _mm512_and_si512(bits, _mm512_set1_epi16(0x7fff)));
    bits = _mm512_srai_epi16(_mm512_add_epi16(bits, _mm512_set1_epi16(4)), 3);
    return _mm512_and_si512(bits, _mm512_set1_epi16((short)0x8fff));
}

/* Of dimensions d * RUN .. */
INLINE __mmask32 mask_of(const struct attend *a, int d)
{
    int left = a->dim - d * RUN;

    return left >= RUN ? 0xffffffffu : (1u << left) - 1;
}

/* Loads a run of a key's or value's numbers and starts to load that of another. */
INLINE __m512i load_and_fetch(enum pd_dtype type, const uint8_t *from, __mmask32 mask,
                              const uint8_t *ahead, __m512i *greatest)
{
    __builtin_prefetch(ahead, 0, 2);
    if (type == PD_F32)
        __builtin_prefetch(ahead + 64, 0, 2);
    return load_run(type, from, mask, greatest);
}

/* Keys of run k, to place `to`. */
INLINE void load_key_run(enum pd_dtype type, struct attend *a, int k, int to)
{
    const int runs = a->runs;
    __m512i greatest = a->greatest;

    for (int d = 0; d < runs; d++) {
        const size_t at = (size_t)d * RUN * (type == PD_F32 ? 4 : 2);
        const uint8_t *const *key = a->at.key + k * RUN, *const *ahead = a->at.ahead + k * RUN;
        const uint8_t *const *end = key + RUN;
        const __mmask32 mask = mask_of(a, d);
        __m512i *out = (__m512i *)a->keys + to * RUN * runs + d;

        for (; key < end; key += 4, ahead += 4) {
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++, out += runs)
                *out = load_and_fetch(type, key[i] + at, mask, ahead[i] + at, &greatest);
        }
    }
    a->greatest = greatest;
    memory_is_used();
}

/* A pair of values: dimensions 0-3, 8-11, 16-19, 24-27 of a run to one tile, the others to the other. */
INLINE void put_pair(__m512i first, __m512i second, __m512i *out)
{
    out[0] = _mm512_unpacklo_epi16(first, second);
    out[PAIRS] = _mm512_unpackhi_epi16(first, second);
}

/* The first key of the pair in place i. */
INLINE int place_of_pair(int i)
{
    return i / 4 + i % 4 * 4;
}

/* Values of run k, to place `to`; all of them are there, or `count`. The others' are zeros, since they are
 * multiplied with weights of 0. */
INLINE void load_value_run(enum pd_dtype type, struct attend *a, int k, int to, bool all, int count)
{
    const uint8_t *const *keys = a->at.key + k * RUN, *const *ahead = a->at.ahead + k * RUN;
    const int runs = a->runs;
    __m512i greatest = a->greatest;

    for (int d = 0; d < runs; d++) {
        const size_t at = a->at.tile + (size_t)d * RUN * (type == PD_F32 ? 4 : 2);
        const __mmask32 mask = mask_of(a, d);
        __m512i *out = (__m512i *)a->values + (to * runs + d) * 2 * PAIRS;

#pragma GCC unroll 4
        for (int i = 0; i < PAIRS; i++) {
            const int j = place_of_pair(i);
            const __mmask32 first = all || j < count ? mask : 0;
            const __mmask32 second = all || j + PAIRS < count ? mask : 0;

            put_pair(load_and_fetch(type, keys[j] + at, first, ahead[j] + at, &greatest),
                     load_and_fetch(type, keys[j + PAIRS] + at, second, ahead[j + PAIRS] + at,
                                    &greatest),
                     out + i);
        }
    }
    a->greatest = greatest;
    memory_is_used();
}

INLINE void load_some_values(enum pd_dtype type, struct attend *a, int k, int to, int count)
{
    if (count >= RUN)
        load_value_run(type, a, k, to, true, RUN);
    else
        load_value_run(type, a, k, to, false, count);
}

static void load_keys(struct attend *a, int k, int to)
{
    EACH_TYPE(load_key_run, a, k, to)
}

static void load_values(struct attend *a, int k, int to, int count)
{
    EACH_TYPE(load_some_values, a, k, to, count)
}

/* ---- queries --------------------------------------------------------------------------------- */

/* Tiles of group g. Rows that are not there are zeros. */
static void pack_queries(const struct attend *a, int g)
{
    lanes scale = lanes_set(a->query->shape->scale * a->unit->query);
    float *out = (float *)a->queries + g * a->runs * PAIRS * a->width;
    __mmask16 there = (__mmask16)((1u << a->width) - 1);

    for (int d = 0; d < a->runs; d++) {
        __mmask32 mask = mask_of(a, d);
        lanes pairs[LANES];

        for (int i = 0; i < LANES; i++) {
            const float *q = row_query(a->query, a->group, g * GROUP + i) + d * RUN;

            pairs[i] = lanes_set(0);
            if (g * GROUP + i < a->rows)
                pairs[i] = lanes_of(lanes_to_bf16(
                    lanes_mul(_mm512_maskz_loadu_ps((__mmask16)mask, q), scale),
                    lanes_mul(_mm512_maskz_loadu_ps((__mmask16)(mask >> LANES), q + LANES),
                              scale)));
        }
        lanes_transpose(pairs);
        for (int i = 0; i < PAIRS; i++, out += a->width)
            _mm512_mask_storeu_ps(out, there, pairs[i]);
    }
}

/* ---- a group and a split --------------------------------------------------------------------- */

/* Keys of the split that rows of a group see: from low to high, counted from the split's first. */
struct seen {
    __m512i low, high; /* of the rows of a register's lanes */
    int runs;          /* of keys, behind which no row sees one */
    bool all;          /* every row sees all keys of these runs */
};

static struct seen seen_by(const struct attend *a, int g, int first, int count)
{
    int last = g * GROUP + GROUP < a->rows ? g * GROUP + GROUP - 1 : a->rows - 1;
    int window = a->query->shape->window, start = a->query->position - first;
    int least = start + g * GROUP / a->group, most = start + last / a->group;
    int keys = most < 0 ? 0 : most + 1 < count ? most + 1 : count, high[LANES];
    struct seen seen = {.runs = (keys + RUN - 1) / RUN};

    seen.all = least + 1 >= seen.runs * RUN && (window <= 0 || most - window + 1 <= 0);
    if (seen.all)
        return seen;
    for (int i = 0; i < LANES; i++) {
        int row = g * GROUP + i % a->width;

        high[i] = start + (row < last ? row : last) / a->group;
    }
    seen.high = _mm512_loadu_si512(high);
    seen.low = window > 0 ? _mm512_sub_epi32(seen.high, _mm512_set1_epi32(window - 1))
                          : _mm512_set1_epi32(0);
    return seen;
}

/* Hides what rows do not see. */
static void hide(const struct attend *a, const struct seen *seen)
{
    const lanes hidden = lanes_set(-INFINITY);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const int keys = LANES / a->width; /* of a register */
    __m512i key = a->width == FEW ? _mm512_srli_epi32(lane, 2) : _mm512_setzero_si512();

    for (int j = 0; j < seen->runs * RUN; j += keys) {
        __mmask16 visible =
            _mm512_mask_cmple_epi32_mask(_mm512_cmple_epi32_mask(key, seen->high), seen->low, key);
        float *at = a->scores + j * a->width;

        lanes_store(at, _mm512_mask_mov_ps(hidden, visible, lanes_load(at)));
        key = _mm512_add_epi32(key, _mm512_set1_epi32(keys));
    }
}

/* Every four lanes' numbers, swapped with those of four others. */
INLINE lanes swap_halves(lanes a)
{
    return _mm512_shuffle_f32x4(a, a, 0x4e);
}

INLINE lanes swap_quarters(lanes a)
{
    return _mm512_shuffle_f32x4(a, a, 0xb1);
}

/* Each row's greatest score of the runs. */
static lanes greatest_of(const struct attend *a, int runs)
{
    const float *scores = a->scores, *end = scores + runs * RUN * a->width;
    lanes most[4], all;

    for (int i = 0; i < 4; i++)
        most[i] = lanes_load(scores + i * LANES);
    for (scores += 4 * LANES; scores < end; scores += 4 * LANES) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            most[i] = lanes_max(most[i], lanes_load(scores + i * LANES));
    }
    all = lanes_max(lanes_max(most[0], most[1]), lanes_max(most[2], most[3]));
    if (a->width == FEW) {
        all = lanes_max(all, swap_halves(all));
        all = lanes_max(all, swap_quarters(all));
    }
    return all;
}

/* 2^x within 7.5e-5 of it. */
INLINE lanes power_of_two(lanes x)
{
    lanes r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    lanes p = lanes_fma(r, lanes_set(0.0780245227f), lanes_set(0.226067155f));

    p = lanes_fma(p, r, lanes_set(0.695833541f));
    return _mm512_scalef_ps(lanes_fma(p, r, lanes_set(0.999925219f)), x);
}

/* The upper halves of a pair's weights. */
INLINE __m512i cut_pair(lanes first, lanes second)
{
    return _mm512_mask_mov_epi16(_mm512_srli_epi32(bits_of(first), 16), 0xaaaaaaaau,
                                 bits_of(second));
}

/* Weights of a pair of registers of scores. */
INLINE __m512i weigh_pair(const float *scores, int width, lanes slope, lanes top)
{
    return cut_pair(power_of_two(lanes_fma(lanes_load(scores), slope, top)),
                    power_of_two(lanes_fma(lanes_load(scores + 16 * width), slope, top)));
}

/* Rows of a run's weights, from registers that hold key i and i + 16 of sixteen rows. */
INLINE void turn_many(const __m512i *pairs, uint16_t *out)
{
    lanes rows[LANES];

#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        rows[i % 4 * 4 + i / 4] = lanes_of(pairs[i]);
    lanes_transpose(rows);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        lanes_store((float *)(out + i * PD_CPU_SPLIT), rows[i]);
}

/* The same from four registers, each of four keys (and those 16 later) of four rows. */
INLINE void turn_few(const __m512i *pairs, uint16_t *out)
{
    __m512i low = _mm512_unpacklo_epi32(pairs[0], pairs[1]);
    __m512i high = _mm512_unpackhi_epi32(pairs[0], pairs[1]);
    __m512i low_too = _mm512_unpacklo_epi32(pairs[2], pairs[3]);
    __m512i high_too = _mm512_unpackhi_epi32(pairs[2], pairs[3]);

    _mm512_store_si512(out, _mm512_unpacklo_epi64(low, low_too));
    _mm512_store_si512(out + PD_CPU_SPLIT, _mm512_unpackhi_epi64(low, low_too));
    _mm512_store_si512(out + 2 * PD_CPU_SPLIT, _mm512_unpacklo_epi64(high, high_too));
    _mm512_store_si512(out + 3 * PD_CPU_SPLIT, _mm512_unpackhi_epi64(high, high_too));
}

/* Weights of the runs' keys, from scores; the greatest of each row is `greatest`. Returns their sums: keys that
 * are equal modulo 4 are added one after the other. */
INLINE lanes weigh(int width, const struct attend *a, int runs, lanes greatest)
{
    const lanes slope = lanes_set(a->unit->score * LOG2_E);
    const __m512bh one = (__m512bh)_mm512_set1_epi16((short)a->unit->one);
    __mmask16 none = _mm512_cmp_ps_mask(greatest, lanes_set(-INFINITY), _CMP_EQ_OQ);
    lanes top = _mm512_mask_mov_ps(greatest, none, lanes_set(0)), totals[4];

    top = lanes_sub(lanes_set(a->unit->weight + CUT), lanes_mul(top, slope));
    for (int i = 0; i < 4; i++)
        totals[i] = lanes_set(0);
    for (int k = 0; k < runs; k++) {
        const float *scores = a->scores + k * RUN * width;
        __m512i pairs[GROUP];

#pragma GCC unroll 16
        for (int i = 0; i < width; i++) {
            int t = width == FEW ? 0 : i % 4;

            pairs[i] = weigh_pair(scores + i * LANES, width, slope, top);
            totals[t] = _mm512_dpbf16_ps(totals[t], (__m512bh)pairs[i], one);
        }
        if (width == FEW)
            turn_few(pairs, a->weights + k * RUN);
        else
            turn_many(pairs, a->weights + k * RUN);
    }
    memory_is_used();
    if (width != FEW)
        return lanes_add(lanes_add(totals[0], totals[2]), lanes_add(totals[1], totals[3]));
    totals[0] = lanes_add(totals[0], swap_halves(totals[0]));
    return lanes_add(totals[0], swap_quarters(totals[0]));
}

/* ---- states ---------------------------------------------------------------------------------- */

/* Sums of 32 dimensions of a row, in order; tiles are `tile` floats apart. */
INLINE void row_sums(const float *sums, int tile, lanes *low, lanes *high)
{
    const __m512i firsts =
        _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i lasts =
        _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    lanes even = lanes_load(sums), odd = lanes_load(sums + tile);

    *low = _mm512_permutex2var_ps(even, firsts, odd);
    *high = _mm512_permutex2var_ps(even, lasts, odd);
}

/* Adds a split to the state of row i of its group: as merge_state does. */
INLINE void add_row(const struct attend *a, int i, float *state, float greatest, float total,
                    float old, float new)
{
    bool empty = state[0] == -INFINITY;
    const int tile = a->width * LANES;
    const float *sums = a->sums + i * LANES;
    float *at = state + PD_CPU_STATE_HEAD;
    lanes was = lanes_set(old), is = lanes_set(empty ? a->unit->sum : new * a->unit->sum), low,
          high;

    state[1] = empty ? total : fmaf(total, new, state[1] * old);
    state[0] = empty || greatest > state[0] ? greatest : state[0];
    for (int d = 0; d < a->runs; d++, at += RUN, sums += 2 * tile) {
        row_sums(sums, tile, &low, &high);
        lanes_store(at, empty ? lanes_mul(low, is)
                              : lanes_fma(low, is, lanes_mul(lanes_load(at), was)));
        lanes_store(at + LANES, empty
                                    ? lanes_mul(high, is)
                                    : lanes_fma(high, is, lanes_mul(lanes_load(at + LANES), was)));
    }
}

static void add_split(const struct attend *a, int g, lanes most, lanes sums)
{
    float was[LANES], greatest[LANES], total[LANES], old[LANES], new[LANES];
    int rows = a->rows - g * GROUP < GROUP ? a->rows - g * GROUP : GROUP;
    lanes old_share, new_share;

    most = lanes_mul(most, lanes_set(a->unit->score));
    for (int i = 0; i < LANES; i++)
        was[i] = i < rows ? row_state(a->query, a->states, a->group, g * GROUP + i)[0] : 0;
    share_of(lanes_load(was), most, &old_share, &new_share);
    lanes_store(greatest, most);
    lanes_store(total, sums);
    lanes_store(old, old_share);
    lanes_store(new, new_share);
    for (int i = 0; i < rows; i++) {
        if (greatest[i] != -INFINITY)
            add_row(a, i, row_state(a->query, a->states, a->group, g * GROUP + i), greatest[i],
                    total[i], old[i], new[i]);
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void start(struct attend *a, struct pd_cpu_query *query, float *scratch)
{
    const struct pd_attention_shape *shape = query->shape;
    size_t numbers; /* of a split's keys */

    a->query = query;
    a->unit = &units[query->pool->type];
    a->group = shape->heads / shape->kv_heads;
    a->dim = shape->head_dim;
    a->rows = query->tokens * a->group;
    a->groups = (a->rows + GROUP - 1) / GROUP;
    a->width = a->rows <= FEW ? FEW : GROUP;
    a->runs = (a->dim + RUN - 1) / RUN;
    numbers = (size_t)(PD_CPU_SPLIT * a->runs * RUN);
    a->scores = scratch;
    a->sums = a->scores + PD_CPU_SPLIT * a->width;
    a->states = a->sums + 2 * a->runs * a->width * LANES;
    a->keys = (uint16_t *)(a->states + (size_t)a->rows * pd_cpu_state_floats(a->dim));
    a->weights = a->keys + (a->groups == 1 ? (size_t)(RING * a->runs * RUN) : numbers);
    a->queries = a->weights + a->width * PD_CPU_SPLIT;
    a->values = a->queries + a->groups * a->runs * RUN * a->width;
    configure(a->width);
    for (int g = 0; g < a->groups; g++)
        pack_queries(a, g);
}

static void attend_to_group(struct attend *a, int g, int first, int count)
{
    struct seen seen = seen_by(a, g, first, count);
    bool alone = a->groups == 1;
    lanes greatest, totals;

    if (seen.runs == 0)
        return;
    if (alone)
        score_alone(a, seen.runs);
    for (int k = 0; !alone && k < seen.runs; k++)
        score(a, g, k, k);
    if (!seen.all)
        hide(a, &seen);
    greatest = greatest_of(a, seen.runs);
    totals =
        a->width == FEW ? weigh(FEW, a, seen.runs, greatest) : weigh(GROUP, a, seen.runs, greatest);
    if (alone)
        sum_alone(a, seen.runs, count);
    else
        sum_values(a, seen.runs);
    add_split(a, g, greatest, totals);
}

/* ---- what is no number ----------------------------------------------------------------------- */

enum { F16_INFINITY = 0x7c00 };

static bool is_strange(const uint8_t *numbers, int count)
{
    const uint16_t *bits = (const uint16_t *)numbers;
    bool strange = false;

    for (int i = 0; i < count; i++)
        strange = strange || (bits[i] & 0x7fff) >= F16_INFINITY;
    return strange;
}

/* A row makes no number of one that is none, where it sees it, and only there: it does not matter who else is in the
 * tile. To the others the key is hidden, and its weight 0. */
static void mark_rows(const struct attend *a, int position)
{
    const struct pd_cpu_query *query = a->query;
    int window = query->shape->window;

    for (int r = 0; r < a->rows; r++) {
        int own = query->position + r / a->group;

        if (position <= own && (window <= 0 || position > own - window))
            row_state(query, a->states, a->group, r)[1] = NAN;
    }
}

/* Looks for it in a split that has been added, if there is any. */
static void mark_strange(const struct attend *a, int first, int count)
{
    const __m512i infinity = _mm512_set1_epi16(F16_INFINITY);

    if (_mm512_cmpge_epu16_mask(a->greatest, infinity) == 0)
        return;
    for (int j = 0; j < count; j++) {
        if (is_strange(a->at.key[j], a->dim) || is_strange(a->at.key[j] + a->at.tile, a->dim))
            mark_rows(a, first + j);
    }
}

static void attend(struct pd_cpu_query *query, struct pd_cpu_query *next, float *scratch)
{
    int keys = keys_of(query);
    struct attend a;

    start(&a, query, scratch);
    clear_states(query, a.states, a.group, a.rows);
    for (int s = query->first; s < query->end; s++) {
        int first = s * PD_CPU_SPLIT, count = split_keys(keys, first);

        locate(query, next, first, count, &a.at);
        a.greatest = _mm512_setzero_si512();
        for (int k = 0; a.groups > 1 && k * RUN < count; k++) {
            load_keys(&a, k, k);
            load_values(&a, k, k, count - k * RUN);
        }
        for (int g = 0; g < a.groups; g++)
            attend_to_group(&a, g, first, count);
        mark_strange(&a, first, count);
    }
    finish_states(query, a.states, a.group, a.rows);
}

#endif
