/* Sampling: one block per row of logits, without sorting the vocabulary.
 *
 *     logits --bias, penalties, bans--> x --> weight = round(2^40 e^((x - greatest) / temperature))
 *
 * Weights are integers: a sum of them is exact, so atomics may add in any order and the result is
 * always the same. What weighs less than 2^-40 of the likeliest token is never drawn.
 *
 * Candidates are ordered by x, ties by id. top-k keeps the first k; top-p the shortest prefix with
 * its share of the mass; min-p what has its share of the first. All three keep a prefix, so the
 * survivors are told by one bound (x, id). typical-p keeps a prefix of them in another order, written
 * beside x, and so another bound. It is found by a radix select: x as an ordered integer,
 * eight bits at a time from the top, a histogram of counts or of mass for each; what ties at the
 * last key is cut by id. The draw walks the survivors in the order of their ids: tile sums first,
 * then the tile.
 *
 * A row is read about ten times out of L2: the floor is the first read, over the bandwidth. */

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/pd_simt.cuh"
#include "kernels/philox.h"

enum { THREADS = 512, BINS = 256, TILE = 1024, TILES_MAX = 1024 };

/* What the whole block knows about its row. */
struct row {
    const float *x, *order; /* order: what candidates are ordered by, x but for typical-p */
    int count;
    float greatest, temperature;
    uint32_t key;     /* candidates above it survive ... */
    int32_t last_tie; /* ... and those that have it, up to this id */
};

/* Shared memory of a block. */
struct board {
    uint64_t *bins;  /* [BINS] */
    uint64_t *tiles; /* [TILES_MAX] */
    uint64_t *word;  /* [2] */
    uint32_t *flag;  /* [2] */
};

/* Orders as the float does: -inf lowest. */
PD_DEVICE uint32_t key_of(float value)
{
    union {
        float value;
        uint32_t bits;
    } both = {value};

    return both.bits >> 31 ? ~both.bits : both.bits | 0x80000000u;
}

PD_DEVICE float value_of(uint32_t key)
{
    union {
        uint32_t bits;
        float value;
    } both = {key >> 31 ? key & 0x7fffffffu : ~key};

    return both.value;
}

PD_DEVICE uint64_t weight_of(const struct row &row, float x)
{
    return (uint64_t)(expf((x - row.greatest) / row.temperature) * 1099511627776.0f + 0.5f);
}

PD_DEVICE bool survives(const struct row &row, int id)
{
    uint32_t key = key_of(row.order[id]);

    return key > row.key || (key == row.key && id <= row.last_tie);
}

/* ---- bias, penalties, bans ------------------------------------------------------------------- */

/* In `seen`, a number per token: occurrences among the generated tokens; taken by whom it makes
 * adjust. */
PD_DEVICE void penalize(const struct pd_sample_params &params, const int32_t *history, float *x,
                        uint32_t *seen)
{
    const uint32_t taken = 0xffffffffu;

    for (int j = PD_THREAD; j < params.history; j += THREADS)
        seen[history[j]] = 0;
    pd_barrier();
    for (int j = params.prompt + PD_THREAD; j < params.history; j += THREADS)
        pd_atomic_add(&seen[history[j]], 1u);
    pd_barrier();
    for (int j = PD_THREAD; j < params.history; j += THREADS) {
        uint32_t generated = pd_atomic_exchange(&seen[history[j]], taken);
        float value = x[history[j]];

        if (generated == taken)
            continue;
        value = value > 0 ? value / params.repetition : value * params.repetition;
        value -= params.frequency * (float)generated;
        x[history[j]] = generated > 0 ? value - params.presence : value;
    }
    pd_barrier();
}

/* The adjusted logits of a row: in scratch, where there is anything to adjust. */
PD_DEVICE const float *adjust(const struct pd_cuda_step &step,
                              const struct pd_sample_params &params, const float *logits, int slot,
                              uint32_t *scratch)
{
    float *x = (float *)scratch;
    const bool penalized = params.history > 0 && (params.presence != 0 || params.frequency != 0 ||
                                                  params.repetition != 1);

    if (params.bias_count == 0 && params.banned_count == 0 && !penalized)
        return logits;
    for (int i = PD_THREAD; i < step.vocabulary; i += THREADS)
        x[i] = logits[i];
    pd_barrier();
    if (PD_THREAD == 0) /* a token may be named twice: one after the other */
        for (int b = 0; b < params.bias_count; b++)
            x[step.bias_token[params.bias_first + b]] += step.bias_value[params.bias_first + b];
    pd_barrier();
    if (penalized)
        penalize(params, step.history + (size_t)slot * (size_t)step.max_model_len, x,
                 scratch + step.vocabulary);
    for (int b = PD_THREAD; b < params.banned_count; b += THREADS)
        x[step.banned[params.banned_first + b]] = -INFINITY;
    pd_barrier();
    return x;
}

/* ---- over a whole row ------------------------------------------------------------------------ */

/* The greatest value; NaN if there is one. */
PD_DEVICE float greatest_of(const struct board &board, const float *x, int count)
{
    uint32_t key = 0, broken = 0;
    float greatest;

    if (PD_THREAD == 0)
        board.flag[0] = board.flag[1] = 0;
    pd_barrier();
    for (int i = PD_THREAD; i < count; i += THREADS) {
        broken |= x[i] != x[i];
        key = key_of(x[i]) > key ? key_of(x[i]) : key;
    }
    pd_atomic_max(&board.flag[0], key);
    pd_atomic_max(&board.flag[1], broken);
    pd_barrier();
    greatest = board.flag[1] ? NAN : value_of(board.flag[0]);
    pd_barrier();
    return greatest;
}

/* The sum of the survivors' weights. */
PD_DEVICE uint64_t mass_of(const struct board &board, const struct row &row)
{
    uint64_t sum = 0;

    if (PD_THREAD == 0)
        board.word[0] = 0;
    pd_barrier();
    for (int i = PD_THREAD; i < row.count; i += THREADS)
        sum += survives(row, i) ? weight_of(row, row.x[i]) : 0;
    pd_atomic_add(&board.word[0], sum);
    pd_barrier();
    sum = board.word[0];
    pd_barrier();
    return sum;
}

/* What a candidate counts for: its weight, or 1. */
PD_DEVICE uint64_t amount_of(const struct row &row, int id, bool by_mass)
{
    return by_mass ? weight_of(row, row.x[id]) : (uint64_t)1;
}

/* The id of the survivor of row.key, in the order of ids, with which `wanted` (at least 1) of
 * amount (1 each, or its weight) are reached. */
PD_DEVICE int32_t tie_with(const struct board &board, const struct row &row, uint64_t wanted,
                           bool by_mass)
{
    const int tiles = (row.count + TILE - 1) / TILE;
    int32_t found;

    for (int tile = PD_THREAD; tile < tiles; tile += THREADS)
        board.tiles[tile] = 0;
    pd_barrier();
    for (int i = PD_THREAD; i < row.count; i += THREADS)
        if (key_of(row.order[i]) == row.key)
            pd_atomic_add(&board.tiles[i / TILE], amount_of(row, i, by_mass));
    pd_barrier();
    if (PD_THREAD == 0) {
        int tile = 0, id = row.count - 1;

        while (tile < tiles - 1 && board.tiles[tile] < wanted)
            wanted -= board.tiles[tile++];
        for (int i = tile * TILE; i < row.count && i < (tile + 1) * TILE; i++) {
            uint64_t amount =
                key_of(row.order[i]) == row.key ? amount_of(row, i, by_mass) : (uint64_t)0;

            if (amount >= wanted) {
                id = i;
                break;
            }
            wanted -= amount;
        }
        board.flag[0] = (uint32_t)id;
    }
    pd_barrier();
    found = (int32_t)board.flag[0];
    pd_barrier();
    return found;
}

/* Cuts the row to its shortest prefix that has `wanted` tokens, or `wanted` of weight. */
PD_DEVICE void cut(const struct board &board, struct row *row, uint64_t wanted, bool by_mass)
{
    struct row before = *row;
    uint32_t prefix = 0, mask = 0;

    wanted = wanted > 0 ? wanted : 1;

    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int bin = PD_THREAD; bin < BINS; bin += THREADS)
            board.bins[bin] = 0;
        pd_barrier();
        for (int i = PD_THREAD; i < row->count; i += THREADS) {
            uint32_t key = key_of(row->order[i]);

            if ((key & mask) == prefix && survives(before, i))
                pd_atomic_add(&board.bins[key >> shift & 255], amount_of(before, i, by_mass));
        }
        pd_barrier();
        if (PD_THREAD == 0) {
            int bin = BINS - 1;
            uint64_t left = wanted;

            while (bin > 0 && board.bins[bin] < left)
                left -= board.bins[bin--];
            board.word[0] = left;
            board.word[1] = (uint64_t)bin;
        }
        pd_barrier();
        wanted = board.word[0];
        prefix |= (uint32_t)board.word[1] << shift;
        mask |= 255u << shift;
        pd_barrier();
    }
    row->key = prefix;
    row->last_tie = tie_with(board, *row, wanted, by_mass);
    if (before.key == row->key && before.last_tie < row->last_tie)
        row->last_tie = before.last_tie;
}

/* Cuts the survivors to those whose information, -log p, lies nearest to its mean, until they have
 * `share` of the mass. -log p is (greatest - x) / temperature but for a constant; `order` is room for a
 * number per token. */
PD_DEVICE void cut_to_typical(const struct board &board, struct row *row, float share, float *order)
{
    const uint64_t total = mass_of(board, *row);
    uint64_t sum = 0;
    float mean;

    if (PD_THREAD == 0)
        board.word[0] = 0;
    pd_barrier();
    for (int i = PD_THREAD; i < row->count; i += THREADS)
        if (survives(*row, i) && weight_of(*row, row->x[i]) > 0)
            sum += (uint64_t)((double)weight_of(*row, row->x[i]) *
                                  ((row->greatest - row->x[i]) / row->temperature) +
                              0.5);
    pd_atomic_add(&board.word[0], sum);
    pd_barrier();
    mean = (float)((double)board.word[0] / (double)total);
    for (int i = PD_THREAD; i < row->count; i += THREADS)
        order[i] = survives(*row, i) && weight_of(*row, row->x[i]) > 0
                       ? 0 - fabsf((row->greatest - row->x[i]) / row->temperature - mean)
                       : -INFINITY;
    pd_barrier();
    row->order = order;
    row->key = key_of(-INFINITY) + 1; /* whatever was refused is no candidate */
    row->last_tie = row->count;
    cut(board, row, (uint64_t)((double)share * (double)total + 0.5), true);
}

/* The survivor in whose weight `target` falls when they are laid side by side in the order of their
 * ids. */
PD_DEVICE int32_t draw(const struct board &board, const struct row &row, uint64_t target)
{
    const int tiles = (row.count + TILE - 1) / TILE;
    int32_t token;

    for (int tile = PD_THREAD; tile < tiles; tile += THREADS)
        board.tiles[tile] = 0;
    pd_barrier();
    for (int i = PD_THREAD; i < row.count; i += THREADS)
        if (survives(row, i))
            pd_atomic_add(&board.tiles[i / TILE], weight_of(row, row.x[i]));
    pd_barrier();
    if (PD_THREAD == 0) {
        int tile = 0;

        while (tile < tiles - 1 && board.tiles[tile] <= target)
            target -= board.tiles[tile++];
        for (int i = tile * TILE; i < row.count && i < (tile + 1) * TILE; i++) {
            uint64_t weight = survives(row, i) ? weight_of(row, row.x[i]) : 0;

            if (target < weight) {
                board.flag[0] = (uint32_t)i;
                break;
            }
            target -= weight;
        }
    }
    pd_barrier();
    token = (int32_t)board.flag[0];
    pd_barrier();
    return token;
}

/* The lowest id that has the greatest value. */
PD_DEVICE int32_t first_greatest(const struct board &board, const struct row &row)
{
    int32_t token;

    if (PD_THREAD == 0)
        board.flag[0] = 0;
    pd_barrier();
    for (int i = PD_THREAD; i < row.count; i += THREADS)
        if (row.x[i] == row.greatest)
            pd_atomic_max(&board.flag[0], (uint32_t)(row.count - i));
    pd_barrier();
    token = row.count - (int32_t)board.flag[0];
    pd_barrier();
    return token;
}

/* ---- one row --------------------------------------------------------------------------------- */

PD_DEVICE int32_t choose(const struct board &board, struct row *row,
                         const struct pd_sample_params &params, float *order)
{
    uint64_t total, target;

    if (params.temperature <= 0)
        return first_greatest(board, *row);
    row->key = key_of(-INFINITY);
    row->last_tie = row->count;
    if (params.top_k > 0 && params.top_k < row->count)
        cut(board, row, (uint64_t)params.top_k, false);
    if (params.top_p < 1)
        cut(board, row, (uint64_t)((double)params.top_p * (double)mass_of(board, *row) + 0.5),
            true);
    if (params.min_p > 0) {
        /* The least x that still has its share: as a bound it stands above what it refuses. */
        uint32_t bound = key_of(row->greatest + row->temperature * logf(params.min_p));

        if (bound > row->key) {
            row->key = bound;
            row->last_tie = row->count;
        }
    }
    if (params.typical_p < 1)
        cut_to_typical(board, row, params.typical_p, order);
    total = mass_of(board, *row);
    target = (uint64_t)(pd_philox_uniform(params.seed, params.draw) * (double)total);
    return draw(board, *row, target < total ? target : total - 1);
}

/* Of the distribution as the model gave it: its sum in 2^-40 as well. */
PD_DEVICE void log_probabilities(const struct board &board, const struct pd_cuda_step &step,
                                 int sample, const float *logits, int32_t token)
{
    struct row row = {logits, logits, step.vocabulary, 0, 1, key_of(-INFINITY), step.vocabulary};
    const int wanted = step.sample[sample].logprobs - 1;
    uint32_t key = 0xffffffffu;
    int32_t id = -1;
    float log_total;

    row.greatest = greatest_of(board, logits, row.count);
    log_total = row.greatest + logf((float)mass_of(board, row) * 0x1p-40f);
    if (PD_THREAD == 0)
        step.sampled_logprob[sample] = logits[token] - log_total;
    for (int n = 0; n < wanted; n++) {
        /* The greatest of what comes after (key, id) in the order of candidates. */
        if (PD_THREAD == 0)
            board.word[0] = 0;
        pd_barrier();
        for (int i = PD_THREAD; i < row.count; i += THREADS) {
            uint32_t own = key_of(logits[i]);

            if (own < key || (own == key && i > id))
                pd_atomic_max(&board.word[0], (uint64_t)own << 32 | (uint32_t)(row.count - i));
        }
        pd_barrier();
        key = (uint32_t)(board.word[0] >> 32);
        id = row.count - (int32_t)(uint32_t)board.word[0];
        if (PD_THREAD == 0) {
            bool any = n < row.count;

            step.top_token[sample * PD_TOP_MAX + n] = any ? id : -1;
            step.top_logprob[sample * PD_TOP_MAX + n] = any ? logits[id] - log_total : -INFINITY;
        }
        pd_barrier();
    }
}

PD_BUDGET(sample, 64, 10264, 0);

static PD_GLOBAL sample(struct pd_cuda_step step, const float *logits, uint32_t *scratch)
{
    PD_SHARED(uint64_t, bins, BINS);
    PD_SHARED(uint64_t, tiles, TILES_MAX);
    PD_SHARED(uint64_t, word, 2);
    PD_SHARED(uint32_t, flag, 2);
    const struct board board = {bins, tiles, word, flag};
    const int sample = PD_BLOCK_X;
    int32_t token = 0;

    if (sample >= step.counts[2])
        return;
    const struct pd_sample_params params = step.sample[sample];
    const int slot = step.sample_slot[sample];
    struct row row = {};

    logits += (size_t)sample * (size_t)step.vocabulary;
    scratch += (size_t)sample * 2 * (size_t)step.vocabulary;
    row.count = step.vocabulary;
    row.temperature = params.temperature;
    row.x = adjust(step, params, logits, slot, scratch);
    row.order = row.x;
    row.greatest = greatest_of(board, row.x, row.count);
    const float raw = row.x == logits ? 0 : greatest_of(board, logits, row.count);
    /* Neither NaN, which a ban may hide, nor infinite. */
    const bool sound = raw == raw && row.greatest - row.greatest == 0;

    if (sound)
        token = choose(board, &row, params, (float *)scratch + step.vocabulary);
    if (PD_THREAD == 0) {
        step.sample_fault[sample] = !sound;
        step.sampled[sample] = token;
        step.last[slot] = token;
    }
    if (sound && params.logprobs > 0)
        log_probabilities(board, step, sample, logits, token);
}

int pd_cuda_sample(void *stream, const struct pd_cuda_step *step, const float *logits,
                   uint32_t *scratch, int rows)
{
    if (rows < 0 || step->vocabulary > TILE * TILES_MAX)
        return -1;
    if (rows == 0)
        return 0;
    return PD_LAUNCH(sample, rows, 1, THREADS, (pd_stream)stream, *step, logits, scratch);
}
