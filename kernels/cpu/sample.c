/* Sampling: a row of logits becomes a token, without sorting the vocabulary.
 *
 *     logits ──bias, penalties, bans──▶ x ──▶ weight[i] = e^((x[i] - greatest) / temperature)
 *
 *     nothing filtered   walk the weights by id until u * total is passed, whole runs first
 *     top-k, top-p       take what is near the greatest, widening until the filter is decided
 *                        by it; select the prefix there (quickselect by count and by mass)
 *     typical-p          the same selection among what is left, by distance instead of logit
 *
 * The order of candidates is by logit, ties by id, so the answer does not depend on how it was
 * found. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/philox.h"

struct sampler {
    const struct pd_cpu_path *path;
    const struct pd_sample_params *params;
    int count;          /* of the vocabulary */
    const float *x;     /* adjusted logits */
    const float *order; /* what candidates are ordered by, greatest first: x, as a rule */
    float *adjusted, *weight, *run_sums;
    int32_t *ids; /* candidates */
};

static int runs_of(int count)
{
    return (count + PD_CPU_RUN - 1) / PD_CPU_RUN;
}

static size_t aligned(int count)
{
    return ((size_t)count + 15) / 16 * 16;
}

size_t pd_cpu_sample_scratch(int vocabulary)
{
    return 3 * aligned(vocabulary) + aligned(runs_of(vocabulary));
}

/* ---- bias, penalties, bans ------------------------------------------------------------------- */

static bool penalized(const struct pd_sample_params *params)
{
    return params->history > 0 &&
           (params->presence != 0 || params->frequency != 0 || params->repetition != 1);
}

/* `seen` is room for a number per token. */
static void penalize(const struct sampler *sampler, const int32_t *history, float *seen)
{
    const struct pd_sample_params *params = sampler->params;
    float *x = sampler->adjusted;

    memset(seen, 0, (size_t)sampler->count * sizeof(*seen));
    for (int j = 0; j < params->history; j++) {
        int32_t token = history[j];

        if (seen[token]++ == 0)
            x[token] = x[token] > 0 ? x[token] / params->repetition : x[token] * params->repetition;
    }
    memset(seen, 0, (size_t)sampler->count * sizeof(*seen));
    for (int j = params->prompt; j < params->history; j++)
        seen[history[j]]++;
    for (int j = params->prompt; j < params->history; j++) {
        int32_t token = history[j];

        if (seen[token] > 0)
            x[token] -= params->frequency * seen[token] + params->presence;
        seen[token] = 0;
    }
}

static void adjust(struct sampler *sampler, const struct pd_step *step, const float *logits,
                   const int32_t *history)
{
    const struct pd_sample_params *params = sampler->params;

    sampler->x = logits;
    if (params->bias_count == 0 && params->banned_count == 0 && !penalized(params))
        return;
    memcpy(sampler->adjusted, logits, (size_t)sampler->count * sizeof(*logits));
    sampler->x = sampler->adjusted;
    for (int b = params->bias_first; b < params->bias_first + params->bias_count; b++)
        sampler->adjusted[step->bias_token[b]] += step->bias_value[b];
    if (penalized(params))
        penalize(sampler, history, sampler->weight);
    for (int b = params->banned_first; b < params->banned_first + params->banned_count; b++)
        sampler->adjusted[step->banned[b]] = -INFINITY;
}

/* ---- selecting ------------------------------------------------------------------------------- */

static bool before(const float *x, int32_t a, int32_t b)
{
    return x[a] > x[b] || (x[a] == x[b] && a < b);
}

static void swap(int32_t *a, int32_t *b)
{
    int32_t other = *a;

    *a = *b;
    *b = other;
}

/* Moves the middle of three to ids[high] and all that come before it to the front; returns its
 * place. */
static int partition(const float *x, int32_t *ids, int low, int high)
{
    int middle = low + (high - low) / 2, place = low;

    if (before(x, ids[middle], ids[low]))
        swap(&ids[middle], &ids[low]);
    if (before(x, ids[high], ids[low]))
        swap(&ids[high], &ids[low]);
    if (before(x, ids[middle], ids[high]))
        swap(&ids[middle], &ids[high]);
    for (int i = low; i < high; i++) {
        if (before(x, ids[i], ids[high]))
            swap(&ids[i], &ids[place++]);
    }
    swap(&ids[place], &ids[high]);
    return place;
}

/* Brings the shortest prefix of the candidates, in order, that has `number` of them or at least
 * `mass` of weight to the front, and returns its length: all of them if neither is reached. */
static int select_prefix(const struct sampler *sampler, int32_t *ids, int count, int number,
                         double mass)
{
    int low = 0, high = count - 1;
    double have = 0;

    while (low <= high) {
        int place = partition(sampler->order, ids, low, high);
        double sum = have;

        for (int i = low; i < place; i++)
            sum += sampler->weight[ids[i]];
        if (place > low && (place >= number || sum >= mass)) {
            high = place - 1;
            continue;
        }
        have = sum + sampler->weight[ids[place]];
        low = place + 1;
        if (low >= number || have >= mass)
            return low;
    }
    return low;
}

static double mass_of(const struct sampler *sampler, const int32_t *ids, int count)
{
    double mass = 0;

    for (int i = 0; i < count; i++)
        mass += sampler->weight[ids[i]];
    return mass;
}

/* Candidates whose logit is near the greatest, in widening circles, until there are `number` of
 * them or they have `mass`. */
static int gather(const struct sampler *sampler, float greatest, float reach, int number,
                  double mass)
{
    for (int circle = 0;; circle++) {
        float bound = circle < 6 ? greatest - reach : -INFINITY;
        int found = sampler->path->at_least(sampler->x, sampler->count, bound, sampler->ids,
                                            sampler->count);

        if (circle >= 6 || found >= number || mass_of(sampler, sampler->ids, found) >= mass)
            return found;
        reach *= 2;
    }
}

/* Of the candidates, those whose information, -log p, lies nearest to its mean, until they have their
 * share; returns how many. -log p is (greatest - x) / temperature but for a constant. */
static int select_typical(struct sampler *sampler, float greatest, int count)
{
    const struct pd_sample_params *params = sampler->params;
    double total = 0, mean = 0, factor = 1 / (double)params->temperature;
    int kept = 0;

    for (int i = 0; i < count; i++) {
        int32_t id = sampler->ids[i];
        double weight = sampler->weight[id];

        if (weight <= 0) /* cannot be drawn, and may be infinitely far */
            continue;
        sampler->ids[kept++] = id;
        total += weight;
        mean += weight * ((double)greatest - sampler->x[id]) * factor;
    }
    mean /= total;
    for (int i = 0; i < kept; i++) {
        int32_t id = sampler->ids[i];

        sampler->adjusted[id] = -(float)fabs(((double)greatest - sampler->x[id]) * factor - mean);
    }
    sampler->order = sampler->adjusted; /* x may be the same memory: it is not needed any more */
    return select_prefix(sampler, sampler->ids, kept, INT32_MAX, params->typical_p * total);
}

/* Leaves the survivors of all filters in ids and returns how many. */
static int filter(struct sampler *sampler, float greatest, double total)
{
    const struct pd_sample_params *params = sampler->params;
    int count,
        number = params->top_k > 0 && params->top_k < sampler->count ? params->top_k : INT32_MAX;
    float reach = 4 * params->temperature;

    if (number != INT32_MAX) {
        count = gather(sampler, greatest, reach, number, INFINITY);
        count = select_prefix(sampler, sampler->ids, count, number, INFINITY);
        total = mass_of(sampler, sampler->ids, count);
    } else {
        double mass = params->top_p < 1 ? params->top_p * total : INFINITY;
        count = gather(sampler, greatest, reach, INT32_MAX, mass);
    }
    if (params->top_p < 1)
        count = select_prefix(sampler, sampler->ids, count, INT32_MAX, params->top_p * total);
    if (params->min_p > 0) {
        int kept = 0;
        for (int i = 0; i < count; i++) {
            if (sampler->weight[sampler->ids[i]] >= params->min_p)
                sampler->ids[kept++] = sampler->ids[i];
        }
        count = kept;
    }
    return params->typical_p < 1 ? select_typical(sampler, greatest, count) : count;
}

/* ---- drawing --------------------------------------------------------------------------------- */

/* Heapsort: ids ascending. */
static void sort_ids(int32_t *ids, int count)
{
    for (int size = count, start = count / 2; size > 1;) {
        int root, child;

        if (start > 0)
            start--;
        else
            swap(&ids[0], &ids[--size]);
        for (root = start; (child = 2 * root + 1) < size; root = child) {
            if (child + 1 < size && ids[child + 1] > ids[child])
                child++;
            if (ids[root] >= ids[child])
                break;
            swap(&ids[root], &ids[child]);
        }
    }
}

/* The first of ids whose cumulative weight exceeds `target`; rounding may leave none: the last. */
static int32_t draw_among(const struct sampler *sampler, double u, int count)
{
    double target;

    sort_ids(sampler->ids, count);
    target = u * mass_of(sampler, sampler->ids, count);
    for (int i = 0; i < count - 1; i++) {
        target -= sampler->weight[sampler->ids[i]];
        if (target < 0)
            return sampler->ids[i];
    }
    return sampler->ids[count - 1];
}

static int32_t draw_of_all(const struct sampler *sampler, double target)
{
    int run = 0, runs = runs_of(sampler->count), last = -1;

    while (run < runs - 1 && target >= sampler->run_sums[run])
        target -= sampler->run_sums[run++];
    for (int i = run * PD_CPU_RUN; i < sampler->count; i++) {
        if (sampler->weight[i] <= 0)
            continue;
        last = i;
        target -= sampler->weight[i];
        if (target < 0)
            return i;
    }
    while (last < 0 || sampler->weight[last] <= 0) /* rounding: the last that can be drawn */
        last = (last < 0 ? run * PD_CPU_RUN : last) - 1;
    return last;
}

/* Weights relative to the greatest; returns their sum. */
static double weigh(const struct sampler *sampler, const float *x, float greatest, float factor)
{
    double total = 0;

    sampler->path->exponentials(x, sampler->count, greatest, factor, sampler->weight,
                                sampler->run_sums);
    for (int i = 0; i < runs_of(sampler->count); i++)
        total += sampler->run_sums[i];
    return total;
}

static int32_t draw(struct sampler *sampler, float greatest)
{
    const struct pd_sample_params *params = sampler->params;
    double u = pd_philox_uniform(params->seed, params->draw);
    double total = weigh(sampler, sampler->x, greatest, 1 / params->temperature);

    if ((params->top_k <= 0 || params->top_k >= sampler->count) && params->top_p >= 1 &&
        params->min_p <= 0 && params->typical_p >= 1)
        return draw_of_all(sampler, u * total);
    return draw_among(sampler, u, filter(sampler, greatest, total));
}

/* ---- the operator ---------------------------------------------------------------------------- */

/* Of the distribution as the model gave it. */
static void log_probabilities(struct sampler *sampler, struct pd_step *step, int s,
                              const float *logits)
{
    float greatest = sampler->path->greatest(logits, sampler->count);
    double log_total = greatest + log(weigh(sampler, logits, greatest, 1));
    int wanted = sampler->params->logprobs - 1, found = 0;

    sampler->x = sampler->order = logits;
    step->sampled_logprob[s] = (float)(logits[step->sampled[s]] - log_total);
    if (wanted > 0)
        found = gather(sampler, greatest, 4, wanted, INFINITY);
    for (int i = 0; i < wanted; i++) {
        int at = s * PD_TOP_MAX + i;

        if (i < found) /* the first of those that are left */
            select_prefix(sampler, sampler->ids + i, found - i, 1, INFINITY);
        step->top_token[at] = i < found ? sampler->ids[i] : -1;
        step->top_logprob[at] =
            i < found ? (float)(logits[sampler->ids[i]] - log_total) : -INFINITY;
    }
}

static void sample_row(struct sampler *sampler, const struct pd_host_run *run, int s,
                       const float *logits)
{
    struct pd_step *step = run->step;
    int slot = step->sample_slot[s];
    int32_t token = 0;
    float greatest;

    sampler->params = &step->sample[s];
    adjust(sampler, step, logits, pd_host_history(run->host, slot));
    sampler->order = sampler->x;
    greatest = sampler->path->greatest(sampler->x, sampler->count);
    step->sample_fault[s] =
        !isfinite(greatest) ||
        (sampler->x != logits && isnan(sampler->path->greatest(logits, sampler->count)));
    if (!step->sample_fault[s]) {
        if (sampler->params->temperature > 0)
            token = draw(sampler, greatest);
        else
            sampler->path->at_least(sampler->x, sampler->count, greatest, &token, 1);
    }
    step->sampled[s] = token;
    run->host->last[slot] = token;
    if (sampler->params->logprobs > 0 && !step->sample_fault[s])
        log_probabilities(sampler, step, s, logits);
}

void pd_cpu_sample(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    size_t room = aligned(op->in.cols);
    float *scratch = pd_cpu_scratch(run, thread);
    struct sampler sampler = {
        .path = pd_cpu_of(run)->path,
        .count = op->in.cols,
        .adjusted = scratch,
        .weight = scratch + room,
        .ids = (int32_t *)(scratch + 2 * room),
        .run_sums = scratch + 3 * room,
    };
    int first, end;

    pd_host_share(run->step->samples, 1, thread, run->host->threads, &first, &end);
    for (int s = first; s < end; s++)
        sample_row(&sampler, run, s, pd_host_floats(op->in) + (size_t)s * (size_t)op->in.cols);
}
