#include "worker/sample/sampling.h"

#include <math.h>
#include <string.h>

/* Below this, logits divided by the temperature leave float's range: greedy is meant. */
#define SMALLEST_TEMPERATURE 1e-5f

enum { BANNED_MAX = PD_MODEL_EOS_MAX + PD_STOP_TOKENS_MAX };

_Static_assert((int)PD_BIAS_MAX <= (int)PD_STEP_BIAS, "one request's biases fit into a step");
_Static_assert((int)BANNED_MAX <= (int)PD_STEP_BANNED,
               "one request's banned tokens fit into a step");

static int refuse_range(const char *name, double value, double low, double high, const char **param,
                        struct pd_error *error)
{
    *param = name;
    return pd_fail(error, PD_INVALID, "%s must be between %g and %g, not %g", name, low, high,
                   value);
}

static int check_numbers(const struct pd_sampling *s, const char **param, struct pd_error *error)
{
    const struct {
        const char *name;
        double value, low, high;
    } fields[] = {
        {"temperature", s->temperature, 0, 2},
        {"top_p", s->top_p, 0, 1},
        {"min_p", s->min_p, 0, 1},
        {"typical_p", s->typical_p, 0, 1},
        {"presence_penalty", s->presence, -2, 2},
        {"frequency_penalty", s->frequency, -2, 2},
        {"repetition_penalty", s->repetition, 0, 2},
        {"top_k", s->top_k, 0, INT32_MAX},
        {"top_logprobs", s->logprobs > 0 ? s->logprobs - 1 : s->logprobs, 0, PD_TOP_MAX},
        {"stop_token_ids", s->stop_token_count, 0, PD_STOP_TOKENS_MAX},
        {"logit_bias", s->bias_count, 0, PD_BIAS_MAX},
    };

    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
        if (!(fields[i].value >= fields[i].low && fields[i].value <= fields[i].high)) /* NaN too */
            return refuse_range(fields[i].name, fields[i].value, fields[i].low, fields[i].high,
                                param, error);
    return PD_OK;
}

static int check_tokens(const struct pd_sampling *s, int vocabulary, const char **param,
                        struct pd_error *error)
{
    for (int i = 0; i < s->stop_token_count; i++)
        if (s->stop_tokens[i] < 0 || s->stop_tokens[i] >= vocabulary) {
            *param = "stop_token_ids";
            return pd_fail(error, PD_INVALID, "stop_token_ids: the model has no token %d",
                           s->stop_tokens[i]);
        }
    for (int i = 0; i < s->bias_count; i++) {
        *param = "logit_bias";
        if (s->bias[i].token < 0 || s->bias[i].token >= vocabulary)
            return pd_fail(error, PD_INVALID, "logit_bias: the model has no token %d",
                           s->bias[i].token);
        if (!(s->bias[i].bias >= -100 && s->bias[i].bias <= 100))
            return refuse_range("logit_bias", s->bias[i].bias, -100, 100, param, error);
    }
    return PD_OK;
}

int pd_sampling_normalise(struct pd_sampling *s, int vocabulary, const char **param,
                          struct pd_error *error)
{
    int status;

    *param = "";
    status = check_numbers(s, param, error);
    if (status == PD_OK)
        status = check_tokens(s, vocabulary, param, error);
    if (status != PD_OK)
        return status;
    if (s->max_tokens > 0 && s->min_tokens > s->max_tokens) {
        *param = "min_tokens";
        return pd_fail(error, PD_INVALID, "min_tokens (%u) must not be above max_tokens (%u)",
                       s->min_tokens, s->max_tokens);
    }
    *param = "";
    if (s->top_p == 0)
        s->top_p = 1;
    if (s->typical_p == 0)
        s->typical_p = 1;
    if (s->repetition == 0)
        s->repetition = 1;
    if (s->top_k >= vocabulary)
        s->top_k = 0;
    if (s->temperature < SMALLEST_TEMPERATURE) {
        s->temperature = 0;
        s->top_p = 1;
        s->top_k = 0;
        s->min_p = 0;
        s->typical_p = 1;
    }
    return PD_OK;
}

static bool holds(const int32_t *tokens, int count, int32_t token)
{
    for (int i = 0; i < count; i++)
        if (tokens[i] == token)
            return true;
    return false;
}

bool pd_sampling_ends_with(const struct pd_sampling *s, const struct pd_eos *eos, int32_t token)
{
    if (holds(s->stop_tokens, s->stop_token_count, token))
        return true;
    return !s->ignore_eos && holds(eos->tokens, eos->count, token);
}

/* Every sample names its range of the shared pools, an empty one too: the last range's end is what
 * is used so far. */
static void pools_used(const struct pd_step *step, int32_t *bias, int32_t *banned)
{
    const struct pd_sample_params *last;

    *bias = *banned = 0;
    if (step->samples == 0)
        return;
    last = &step->sample[step->samples - 1];
    *bias = last->bias_first + last->bias_count;
    *banned = last->banned_first + last->banned_count;
}

/* What would end the answer before min_tokens. */
static int list_banned(const struct pd_sampling *s, const struct pd_eos *eos, uint32_t draw,
                       int32_t *banned)
{
    int count = 0;

    if (draw >= s->min_tokens)
        return 0;
    for (int i = 0; i < s->stop_token_count; i++)
        banned[count++] = s->stop_tokens[i];
    if (!s->ignore_eos)
        for (int i = 0; i < eos->count; i++)
            banned[count++] = eos->tokens[i];
    return count;
}

bool pd_sampling_fill(const struct pd_sampling *s, const struct pd_eos *eos,
                      const struct pd_sample_point *point, struct pd_step *step)
{
    int32_t banned[BANNED_MAX], bias_first, banned_first;
    int banned_count = list_banned(s, eos, point->draw, banned);

    pools_used(step, &bias_first, &banned_first);
    if (bias_first + s->bias_count > PD_STEP_BIAS || banned_first + banned_count > PD_STEP_BANNED)
        return false;
    for (int i = 0; i < s->bias_count; i++) {
        step->bias_token[bias_first + i] = s->bias[i].token;
        step->bias_value[bias_first + i] = s->bias[i].bias;
    }
    memcpy(step->banned + banned_first, banned, (size_t)banned_count * sizeof(*banned));
    step->sample_row[step->samples] = point->row;
    step->sample_slot[step->samples] = point->slot;
    step->sample[step->samples] = (struct pd_sample_params){
        .temperature = s->temperature,
        .top_p = s->top_p,
        .min_p = s->min_p,
        .typical_p = s->typical_p,
        .top_k = s->top_k,
        .presence = s->presence,
        .frequency = s->frequency,
        .repetition = s->repetition,
        .seed = s->seed,
        .draw = point->draw,
        .history = point->history,
        .prompt = point->prompt,
        .logprobs = s->logprobs,
        .bias_first = bias_first,
        .bias_count = s->bias_count,
        .banned_first = banned_first,
        .banned_count = banned_count,
    };
    step->samples++;
    return true;
}
