/* Sampling as its definition reads: everything in double, the whole vocabulary sorted.
 *
 * Candidates are ordered by logit, ties by id. top-k keeps the first k of them; top-p the shortest
 * prefix of what is left whose share reaches top_p; min-p those that have at least min_p times the
 * probability of the first; typical-p, of those in the order of how far -log p lies from its mean, the
 * shortest prefix whose share reaches typical_p. The draw walks the survivors in the order of their ids. */
#include <math.h>
#include <stdlib.h>

#include "kernels/philox.h"
#include "kernels/reference/reference.h"

struct candidate {
    double logit;
    int32_t token;
    double distance; /* typical-p: of its information from the mean */
};

static int by_token(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;

    return (a->token > b->token) - (a->token < b->token);
}

static int descending(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;

    if (a->logit != b->logit)
        return a->logit > b->logit ? -1 : 1;
    return by_token(left, right);
}

static int nearest_first(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;

    if (a->distance != b->distance)
        return a->distance < b->distance ? -1 : 1;
    return by_token(left, right);
}

static void load(struct candidate *candidates, const float *logits, int count)
{
    for (int i = 0; i < count; i++)
        candidates[i] = (struct candidate){.logit = logits[i], .token = i};
}

/* Log probabilities of the distribution as the model gave it. */
static void log_probabilities(struct pd_step *step, int sample, const float *logits, int count,
                              struct candidate *candidates)
{
    int alternatives = step->sample[sample].logprobs - 1;
    double total = 0, log_total;

    load(candidates, logits, count);
    qsort(candidates, (size_t)count, sizeof(*candidates), descending);
    for (int i = 0; i < count; i++)
        total += exp(candidates[i].logit - candidates[0].logit);
    log_total = candidates[0].logit + log(total);
    step->sampled_logprob[sample] = (float)(logits[step->sampled[sample]] - log_total);
    for (int i = 0; i < alternatives; i++) {
        bool any = i < count;
        step->top_token[sample * PD_TOP_MAX + i] = any ? candidates[i].token : -1;
        step->top_logprob[sample * PD_TOP_MAX + i] =
            any ? (float)(candidates[i].logit - log_total) : -INFINITY;
    }
}

/* Candidates are in the order of their tokens here. */
static void penalize(const struct pd_host_run *run, int sample, struct candidate *candidates,
                     int count)
{
    const struct pd_sample_params *params = &run->step->sample[sample];
    const int32_t *history = pd_host_history(run->host, run->step->sample_slot[sample]);

    for (int i = 0; i < count; i++) {
        int generated = 0, present = 0;

        for (int j = 0; j < params->history; j++) {
            present |= history[j] == i;
            generated += history[j] == i && j >= params->prompt;
        }
        if (present)
            candidates[i].logit = candidates[i].logit > 0
                                      ? candidates[i].logit / params->repetition
                                      : candidates[i].logit * params->repetition;
        candidates[i].logit -= (double)params->frequency * generated;
        candidates[i].logit -= generated > 0 ? params->presence : 0;
    }
}

static void adjust(const struct pd_host_run *run, int sample, struct candidate *candidates,
                   int count)
{
    const struct pd_step *step = run->step;
    const struct pd_sample_params *params = &step->sample[sample];

    for (int b = params->bias_first; b < params->bias_first + params->bias_count; b++)
        candidates[step->bias_token[b]].logit += step->bias_value[b];
    penalize(run, sample, candidates, count);
    for (int b = params->banned_first; b < params->banned_first + params->banned_count; b++)
        candidates[step->banned[b]].logit = -INFINITY;
}

/* Relative to the most likely candidate's. */
static double probability(const struct candidate *candidates, int i, double temperature)
{
    return exp((candidates[i].logit - candidates[0].logit) / temperature);
}

/* How many of the sorted candidates survive top-k, top-p and min-p. */
static int survivors(const struct pd_sample_params *params, const struct candidate *candidates,
                     int count)
{
    double total = 0, reached = 0;
    int keep = params->top_k > 0 && params->top_k < count ? params->top_k : count, prefix = 0;

    for (int i = 0; i < keep; i++)
        total += probability(candidates, i, params->temperature);
    if (params->top_p < 1) {
        while (prefix < keep && (prefix == 0 || reached < params->top_p * total))
            reached += probability(candidates, prefix++, params->temperature);
        keep = prefix;
    }
    while (keep > 1 && probability(candidates, keep - 1, params->temperature) < params->min_p)
        keep--;
    return keep;
}

/* Of the first `keep`, the typical ones to the front; returns how many. */
static int typical(const struct pd_sample_params *params, struct candidate *candidates, int keep)
{
    double total = 0, mean = 0, reached = 0, first = candidates[0].logit;
    int prefix = 0;

    for (int i = 0; i < keep; i++)
        total += probability(candidates, i, params->temperature);
    for (int i = 0; i < keep; i++) {
        double p = probability(candidates, i, params->temperature) / total;

        mean -= p > 0 ? p * log(p) : 0;
    }
    for (int i = 0; i < keep; i++)
        candidates[i].distance =
            fabs(log(total) - (candidates[i].logit - first) / params->temperature - mean);
    qsort(candidates, (size_t)keep, sizeof(*candidates), nearest_first);
    while (prefix < keep && (prefix == 0 || reached < params->typical_p * total))
        reached += exp((candidates[prefix++].logit - first) / params->temperature);
    return prefix;
}

static int32_t draw(const struct pd_sample_params *params, struct candidate *candidates, int keep)
{
    double total = 0, target, first = candidates[0].logit;

    if (params->typical_p < 1)
        keep = typical(params, candidates, keep);
    qsort(candidates, (size_t)keep, sizeof(*candidates), by_token);
    for (int i = 0; i < keep; i++)
        total += exp((candidates[i].logit - first) / params->temperature);
    target = pd_philox_uniform(params->seed, params->draw) * total;
    for (int i = 0; i < keep - 1; i++) {
        target -= exp((candidates[i].logit - first) / params->temperature);
        if (target < 0)
            return candidates[i].token;
    }
    return candidates[keep - 1].token;
}

/* Whether something can be drawn: no NaN, and a largest logit that is finite. */
static bool sound(const float *logits, const struct candidate *sorted, int count)
{
    for (int i = 0; i < count; i++) {
        if (isnan(logits[i]))
            return false;
    }
    return isfinite(sorted[0].logit);
}

static void sample_one(const struct pd_host_run *run, int sample, const float *logits, int count,
                       struct candidate *candidates)
{
    struct pd_step *step = run->step;
    const struct pd_sample_params *params = &step->sample[sample];
    int32_t token = 0;

    load(candidates, logits, count);
    adjust(run, sample, candidates, count);
    qsort(candidates, (size_t)count, sizeof(*candidates), descending);
    step->sample_fault[sample] = !sound(logits, candidates, count);
    if (!step->sample_fault[sample])
        token = params->temperature > 0
                    ? draw(params, candidates, survivors(params, candidates, count))
                    : candidates[0].token;
    step->sampled[sample] = token;
    run->host->last[step->sample_slot[sample]] = token;
    if (params->logprobs > 0 && !step->sample_fault[sample])
        log_probabilities(step, sample, logits, count, candidates);
}

void pd_reference_sample(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    int count = op->in.cols;
    struct candidate *candidates = thread == 0 ? malloc((size_t)count * sizeof(*candidates)) : NULL;

    if (thread != 0)
        return;
    if (candidates == NULL)
        abort(); /* a test's backend: nothing sensible is left to do */
    for (int i = 0; i < run->step->samples; i++)
        sample_one(run, i, pd_host_floats(op->in) + (size_t)i * (size_t)count, count, candidates);
    free(candidates);
}
