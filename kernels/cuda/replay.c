#include "kernels/cuda/replay.h"

#include <stdio.h>

static int round_up(int rows, int step)
{
    return (rows + step - 1) / step * step;
}

int pd_cuda_bucket(int rows, int most)
{
    int bucket = rows;

    if (rows > 256)
        bucket = round_up(rows, 64);
    else if (rows > 64)
        bucket = round_up(rows, 16);
    else if (rows > 4)
        bucket = round_up(rows, 8);
    else if (rows == 3)
        bucket = 4;
    return bucket < most ? bucket : most;
}

static bool decodes(const struct pd_step *step)
{
    return step->tokens > 0 && step->tokens == step->sequences && step->tokens == step->samples;
}

/* The place of a bucket: its own, a free one, or -1. */
static int place_of(const struct pd_cuda_replay *replay, int rows)
{
    for (int i = 0; i < PD_CUDA_BUCKETS; i++)
        if (replay->bucket[i].rows == rows || replay->bucket[i].rows == 0)
            return i;
    return -1;
}

static int record(struct pd_graph *graph, int rows, struct pd_cuda_recording **recording)
{
    struct pd_cuda *cuda = pd_cuda_of(graph->object.device);
    char what[64];
    int status, error;

    snprintf(what, sizeof(what), "recording a step of %d rows (--enforce-eager: none)", rows);
    error = pd_cuda_record_begin(cuda->runtime);
    if (error != 0)
        return pd_cuda_fail(cuda, what, error);
    cuda->recording = true;
    status = pd_cuda_graph_run(graph, rows, rows, true);
    cuda->recording = false;
    error = pd_cuda_record_end(cuda->runtime, recording);
    if (status == PD_KERNEL_OK && error != 0)
        status = pd_cuda_fail(cuda, what, error);
    return status;
}

static int replay_bucket(struct pd_graph *graph, struct pd_cuda_replay *replay, int place, int rows)
{
    struct pd_cuda *cuda = pd_cuda_of(graph->object.device);
    struct pd_cuda_recording **recording = &replay->bucket[place].recording;
    int status = PD_KERNEL_OK, error;
    char what[64];

    if (replay->bucket[place].rows == 0) {
        replay->bucket[place].rows = rows;
        return pd_cuda_graph_run(graph, rows, rows, true);
    }
    if (*recording == NULL)
        status = record(graph, rows, recording);
    if (status != PD_KERNEL_OK)
        return status;
    error = pd_cuda_replay(cuda->runtime, *recording);
    snprintf(what, sizeof(what), "replaying a step of %d rows", rows);
    return error != 0 ? pd_cuda_fail(cuda, what, error) : PD_KERNEL_OK;
}

static bool can_record(const struct pd_graph *graph, const struct pd_step *step, int rows)
{
    const struct pd_device *device = graph->object.device;

    return decodes(step) && rows <= PD_CUDA_RECORDED_ROWS && !device->options.eager &&
           pd_cuda_path_on(((const struct pd_cuda *)device)->paths, PD_CUDA_GRAPHS) &&
           !pd_cuda_graph_uses_nccl(graph, rows);
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

int pd_cuda_step_enqueue(struct pd_graph *graph, const struct pd_step *step)
{
    const struct pd_device_options *options = &graph->object.device->options;
    struct pd_cuda_replay *replay = pd_cuda_graph_replay(graph);
    int tokens = pd_cuda_bucket(step->tokens, smaller(graph->max_tokens, options->max_tokens));
    int samples = pd_cuda_bucket(step->samples, smaller(graph->max_samples, options->max_seqs));
    int place = -1;

    if (tokens == samples && can_record(graph, step, tokens))
        place = place_of(replay, tokens);
    return place >= 0 ? replay_bucket(graph, replay, place, tokens)
                      : pd_cuda_graph_run(graph, tokens, samples, decodes(step));
}

void pd_cuda_replay_free(struct pd_cuda_runtime *runtime, struct pd_cuda_replay *replay)
{
    for (int i = 0; i < PD_CUDA_BUCKETS; i++)
        pd_cuda_recording_free(runtime, replay->bucket[i].recording);
}
