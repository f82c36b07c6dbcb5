/* The two step descriptors: their memory, their life, and the checks that let kernels trust them.
 *
 *     FREE ──acquire──▶ FILLING ──launch──▶ IN_FLIGHT ──wait──▶ FREE
 *
 * Step n lives in descriptor n % 2, so that while one runs the next is filled, and results stay
 * readable until the acquire after next. Both descriptors lie in one piece of memory: a device that
 * copies them copies once. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"

static int max_blocks(const struct pd_device_options *options)
{
    return (options->max_model_len + options->block_size - 1) / options->block_size;
}

/* Takes `count` elements of `size` bytes at *offset, aligned for vectors; NULL memory only
 * measures. */
static void *carve(uint8_t *memory, size_t *offset, size_t count, size_t size)
{
    size_t at = *offset;

    *offset += (count * size + 63) & ~(size_t)63;
    return memory != NULL ? memory + at : NULL;
}

static size_t carve_step(const struct pd_device_options *options, uint8_t *memory,
                         struct pd_step *step)
{
    size_t tokens = (size_t)options->max_tokens, seqs = (size_t)options->max_seqs, at = 0;

    step->max_blocks = max_blocks(options);
    step->token = carve(memory, &at, tokens, sizeof(int32_t));
    step->position = carve(memory, &at, tokens, sizeof(int32_t));
    step->sequence = carve(memory, &at, tokens, sizeof(int32_t));
    step->kv_slot = carve(memory, &at, tokens, sizeof(int32_t));
    step->slot = carve(memory, &at, seqs, sizeof(int32_t));
    step->first = carve(memory, &at, seqs, sizeof(int32_t));
    step->length = carve(memory, &at, seqs, sizeof(int32_t));
    step->context = carve(memory, &at, seqs, sizeof(int32_t));
    step->blocks = carve(memory, &at, seqs * (size_t)step->max_blocks, sizeof(int32_t));
    step->sample_row = carve(memory, &at, seqs, sizeof(int32_t));
    step->sample_slot = carve(memory, &at, seqs, sizeof(int32_t));
    step->sample = carve(memory, &at, seqs, sizeof(struct pd_sample_params));
    step->bias_token = carve(memory, &at, PD_STEP_BIAS, sizeof(int32_t));
    step->bias_value = carve(memory, &at, PD_STEP_BIAS, sizeof(float));
    step->banned = carve(memory, &at, PD_STEP_BANNED, sizeof(int32_t));
    step->sampled = carve(memory, &at, seqs, sizeof(int32_t));
    step->sampled_logprob = carve(memory, &at, seqs, sizeof(float));
    step->top_token = carve(memory, &at, seqs * PD_TOP_MAX, sizeof(int32_t));
    step->top_logprob = carve(memory, &at, seqs * PD_TOP_MAX, sizeof(float));
    step->sample_fault = carve(memory, &at, seqs, sizeof(int32_t));
    return at;
}

size_t pd_steps_bytes(const struct pd_device_options *options)
{
    struct pd_step step;

    return 2 * carve_step(options, NULL, &step);
}

int pd_steps_init(struct pd_device *device, void *memory)
{
    struct pd_steps *steps = &device->steps;
    size_t bytes;

    steps->seen = calloc((size_t)device->options.max_seqs, sizeof(*steps->seen));
    if (steps->seen == NULL)
        return PD_KERNEL_NO_MEMORY;
    bytes = carve_step(&device->options, memory, &steps->step[0]);
    carve_step(&device->options, (uint8_t *)memory + bytes, &steps->step[1]);
    steps->next = 1;
    return PD_KERNEL_OK;
}

#define COPY(member, count) memcpy(to->member, from->member, (size_t)(count) * sizeof(*to->member))

/* Only what is in use: the tables' and pools' capacities are many times that. */
void pd_step_copy_filled(const struct pd_step *from, struct pd_step *to, int block_size)
{
    int biases = 0, banned = 0;

    to->tokens = from->tokens;
    to->sequences = from->sequences;
    to->samples = from->samples;
    COPY(token, from->tokens);
    COPY(position, from->tokens);
    COPY(sequence, from->tokens);
    COPY(kv_slot, from->tokens);
    COPY(slot, from->sequences);
    COPY(first, from->sequences);
    COPY(length, from->sequences);
    COPY(context, from->sequences);
    for (int s = 0; s < from->sequences; s++) {
        size_t at = (size_t)s * (size_t)from->max_blocks;

        memcpy(to->blocks + at, from->blocks + at,
               (size_t)((from->context[s] + block_size - 1) / block_size) * sizeof(*to->blocks));
    }
    COPY(sample_row, from->samples);
    COPY(sample_slot, from->samples);
    COPY(sample, from->samples);
    for (int i = 0; i < from->samples; i++) {
        const struct pd_sample_params *params = &from->sample[i];

        if (params->bias_first + params->bias_count > biases)
            biases = params->bias_first + params->bias_count;
        if (params->banned_first + params->banned_count > banned)
            banned = params->banned_first + params->banned_count;
    }
    COPY(bias_token, biases);
    COPY(bias_value, biases);
    COPY(banned, banned);
}

void pd_step_copy_results(const struct pd_step *from, struct pd_step *to)
{
    COPY(sampled, from->samples);
    COPY(sampled_logprob, from->samples);
    COPY(top_token, from->samples * PD_TOP_MAX);
    COPY(top_logprob, from->samples * PD_TOP_MAX);
    COPY(sample_fault, from->samples);
}

int pd_step_acquire(struct pd_device *device, struct pd_step **out)
{
    struct pd_steps *steps = &device->steps;
    int index = (int)(steps->next % 2);
    struct pd_step *step = &steps->step[index];

    *out = NULL;
    if (steps->state[index] == PD_STEP_IN_FLIGHT)
        return pd_device_fail(device, PD_KERNEL_BUSY, "both step descriptors are in flight");
    steps->state[index] = PD_STEP_FILLING;
    step->number = steps->next;
    step->tokens = step->sequences = step->samples = 0;
    *out = step;
    return PD_KERNEL_OK;
}

int pd_graph_launch(struct pd_graph *graph, struct pd_step *step)
{
    struct pd_device *device = graph->object.device;
    struct pd_steps *steps = &device->steps;
    int index = (int)(steps->next % 2), status;

    if (step != &steps->step[index] || steps->state[index] != PD_STEP_FILLING)
        return pd_device_fail(device, PD_KERNEL_INVALID, "the launched step was not acquired");
    if (!graph->ended || graph->status != PD_KERNEL_OK)
        return pd_device_fail(device, PD_KERNEL_INVALID, "the launched graph was not recorded");
    status = pd_step_check(graph, step);
    if (status != PD_KERNEL_OK)
        return status;
    status = device->backend->launch(graph, step);
    if (status != PD_KERNEL_OK)
        return status;
    steps->state[index] = PD_STEP_IN_FLIGHT;
    steps->next++;
    return PD_KERNEL_OK;
}

int pd_step_wait(struct pd_device *device, uint64_t number, int timeout_ms)
{
    struct pd_steps *steps = &device->steps;
    int status;

    if (number == 0 || number >= steps->next)
        return pd_device_fail(device, PD_KERNEL_INVALID, "step %llu was not launched",
                              (unsigned long long)number);
    status = device->backend->wait(device, number, timeout_ms);
    if (status == PD_KERNEL_TIMEOUT || status == PD_KERNEL_LOST)
        return status;
    if (steps->step[number % 2].number == number && steps->state[number % 2] == PD_STEP_IN_FLIGHT)
        steps->state[number % 2] = PD_STEP_FREE;
    return status;
}

bool pd_device_cuts(const struct pd_device *device)
{
    return device->backend->cut != NULL;
}

bool pd_step_cut(struct pd_device *device, uint64_t number)
{
    if (!pd_device_cuts(device))
        return false;
    if (number != 0 && number == device->steps.next - 1) /* else it is not the last one */
        device->backend->cut(device, number);
    return true;
}

/* ---- checks ---------------------------------------------------------------------------------- */

#define REFUSE(...) return pd_device_fail(graph->object.device, PD_KERNEL_INVALID, __VA_ARGS__)

static bool outside(int32_t value, int64_t limit)
{
    return value < 0 || value >= limit;
}

static int check_counts(struct pd_graph *graph, const struct pd_step *step)
{
    const struct pd_device_options *options = &graph->object.device->options;

    if (step->tokens < 0 || step->tokens > options->max_tokens || step->tokens > graph->max_tokens)
        REFUSE("step of %d tokens: the device takes %d, the graph %d", step->tokens,
               options->max_tokens, graph->max_tokens);
    if (step->sequences < 0 || step->sequences > options->max_seqs)
        REFUSE("step of %d sequences: the device takes %d", step->sequences, options->max_seqs);
    if (step->samples < 0 || step->samples > options->max_seqs ||
        step->samples > graph->max_samples)
        REFUSE("step of %d samples: the device takes %d, the graph %d", step->samples,
               options->max_seqs, graph->max_samples);
    return PD_KERNEL_OK;
}

static int check_tokens(struct pd_graph *graph, const struct pd_step *step)
{
    const struct pd_device_options *options = &graph->object.device->options;

    for (int t = 0; t < step->tokens; t++) {
        int64_t slot = -1 - (int64_t)step->token[t];

        if (step->token[t] >= options->vocabulary || slot >= options->max_seqs)
            REFUSE("row %d: token %d", t, step->token[t]);
        if (outside(step->position[t], options->max_model_len))
            REFUSE("row %d: position %d", t, step->position[t]);
        if (outside(step->sequence[t], step->sequences))
            REFUSE("row %d: sequence %d of %d", t, step->sequence[t], step->sequences);
        if (outside(step->kv_slot[t], graph->kv_slots))
            REFUSE("row %d: KV slot %d", t, step->kv_slot[t]);
    }
    return PD_KERNEL_OK;
}

/* Marks `slot` and tells whether this check had met it before. */
static bool repeated(struct pd_steps *steps, int32_t slot)
{
    bool again = steps->seen[slot] == steps->mark;

    steps->seen[slot] = steps->mark;
    return again;
}

static int check_sequence(struct pd_graph *graph, const struct pd_step *step, int s)
{
    struct pd_device *device = graph->object.device;
    const struct pd_device_options *options = &device->options;
    const int32_t *blocks = step->blocks + (size_t)s * (size_t)step->max_blocks;
    int32_t first = step->first[s], length = step->length[s], context = step->context[s];

    if (outside(step->slot[s], options->max_seqs) || repeated(&device->steps, step->slot[s]))
        REFUSE("sequence %d: slot %d is out of range or taken twice", s, step->slot[s]);
    if (first < 0 || length < 1 || first > step->tokens - length)
        REFUSE("sequence %d: rows %d + %d of %d", s, first, length, step->tokens);
    if (context < length || context > options->max_model_len)
        REFUSE("sequence %d: %d rows, %d tokens of context", s, length, context);
    for (int i = 0; i < length; i++) {
        if (step->sequence[first + i] != s || step->position[first + i] != context - length + i)
            REFUSE("sequence %d: row %d is of sequence %d at position %d", s, first + i,
                   step->sequence[first + i], step->position[first + i]);
    }
    for (int b = 0; b * options->block_size < context; b++) {
        if (blocks[b] < 0 || blocks[b] >= graph->kv_slots / options->block_size)
            REFUSE("sequence %d: block %d is %d", s, b, blocks[b]);
    }
    return PD_KERNEL_OK;
}

static int check_numbers(struct pd_graph *graph, const struct pd_sample_params *params, int i)
{
    if (!(params->temperature >= 0) || !isfinite(params->temperature) ||
        !(params->top_p >= 0 && params->top_p <= 1) ||
        !(params->min_p >= 0 && params->min_p <= 1) ||
        !(params->typical_p >= 0 && params->typical_p <= 1) || params->top_k < 0 ||
        !isfinite(params->presence) || !isfinite(params->frequency) || !(params->repetition > 0) ||
        !isfinite(params->repetition))
        REFUSE("sample %d: a sampling parameter is out of range", i);
    return PD_KERNEL_OK;
}

static int check_sample(struct pd_graph *graph, const struct pd_step *step, int i)
{
    struct pd_device *device = graph->object.device;
    const struct pd_device_options *options = &device->options;
    const struct pd_sample_params *params = &step->sample[i];

    if (outside(step->sample_row[i], step->tokens))
        REFUSE("sample %d: row %d of %d", i, step->sample_row[i], step->tokens);
    if (outside(step->sample_slot[i], options->max_seqs) ||
        repeated(&device->steps, step->sample_slot[i]))
        REFUSE("sample %d: slot %d is out of range or taken twice", i, step->sample_slot[i]);
    if (params->prompt < 0 || params->history < params->prompt ||
        params->history > options->max_model_len)
        REFUSE("sample %d: history of %d tokens, prompt of %d", i, params->history, params->prompt);
    if (params->logprobs < 0 || params->logprobs > PD_TOP_MAX + 1)
        REFUSE("sample %d: %d log probabilities", i, params->logprobs);
    if (params->bias_first < 0 || params->bias_count < 0 ||
        params->bias_first > PD_STEP_BIAS - params->bias_count || params->banned_first < 0 ||
        params->banned_count < 0 || params->banned_first > PD_STEP_BANNED - params->banned_count)
        REFUSE("sample %d: biases or banned tokens lie outside their pool", i);
    for (int b = 0; b < params->bias_count; b++) {
        int at = params->bias_first + b;
        if (outside(step->bias_token[at], options->vocabulary) || !isfinite(step->bias_value[at]))
            REFUSE("sample %d: bias of token %d", i, step->bias_token[at]);
    }
    for (int b = 0; b < params->banned_count; b++) {
        if (outside(step->banned[params->banned_first + b], options->vocabulary))
            REFUSE("sample %d: banned token %d", i, step->banned[params->banned_first + b]);
    }
    return check_numbers(graph, params, i);
}

int pd_step_check(struct pd_graph *graph, const struct pd_step *step)
{
    struct pd_steps *steps = &graph->object.device->steps;
    int status = check_counts(graph, step);

    if (status == PD_KERNEL_OK)
        status = check_tokens(graph, step);
    steps->mark++;
    for (int s = 0; s < step->sequences && status == PD_KERNEL_OK; s++)
        status = check_sequence(graph, step, s);
    steps->mark++;
    for (int i = 0; i < step->samples && status == PD_KERNEL_OK; i++)
        status = check_sample(graph, step, i);
    return status;
}
