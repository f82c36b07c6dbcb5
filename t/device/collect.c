/* All-reduce among the GPUs of a group: the own way, in one shot over each other's memory, and NCCL, at sizes on both
 * sides of where the backend changes over (pd_cuda_one_shot_bytes). What is summed is an embedding by shares of the
 * vocabulary: one rank has a token's row, the others add nothing, so both ways owe its bits. The own way two ranks on one
 * GPU can go, too: they meet in one memory, at the same addresses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/backend.h"
#include "t/device/stage.h"

enum { VOCABULARY = 512, TIMES = 20 };

struct group {
    struct pd_device *device;
    struct pd_graph *graph;
    struct pd_buffer *read; /* rank 0's */
    int ranks, cols, most;  /* columns and most rows of the message */
};

static void check(const struct group *group, const char *what, int status)
{
    if (status == PD_KERNEL_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, pd_device_error(group->device));
    exit(1);
}

static int count_gpus(void)
{
    uint64_t total, available;
    int count = 0;

    while (count < PD_RANKS_MAX && pd_cuda_memory(count, &total, &available) == 0)
        count++;
    return count;
}

/* Value i of the share of the vocabulary that begins with token `first`. */
static float value_of(size_t i, int first)
{
    return (float)((i * 2654435761u + (size_t)first) % 4096) / 64 - 32;
}

/* The embedding alone, of this rank's share of the vocabulary. */
static struct pd_graph *record(struct group *group, int rank)
{
    struct pd_device *device = pd_device_rank(group->device, rank);
    int first = pd_share_first(VOCABULARY, rank, group->ranks);
    int rows = pd_share_first(VOCABULARY, rank + 1, group->ranks) - first;
    size_t values = (size_t)rows * (size_t)group->cols;
    float *own = malloc(values * sizeof(*own));
    struct pd_weight_source source = {own, PD_F32, rows};
    struct pd_weight *weight;
    struct pd_buffer *read;
    struct pd_graph *graph;
    struct pd_tensor out;

    if (own == NULL)
        exit(1);
    for (size_t i = 0; i < values; i++)
        own[i] = value_of(i, first);
    check(group, "a weight",
          pd_weight_create(device, PD_WEIGHT_ROWS, group->cols, &source, 1, true, &weight));
    free(own);
    check(group, "a tensor", pd_tensor_create(device, group->most, group->cols, &out));
    check(group, "a graph", pd_graph_begin(device, &graph));
    pd_op_embed(graph, weight, out);
    values = (size_t)group->most * (size_t)group->cols;
    check(group, "pinned memory",
          pd_buffer_create(device, PD_BUFFER_PINNED, values * sizeof(float), &read));
    pd_op_read(graph, out, false, read);
    if (rank == 0)
        group->read = read;
    check(group, "a graph", pd_graph_end(graph));
    return graph;
}

static bool open_group(struct group *group, bool one_gpu, char *error, size_t size)
{
    struct pd_device_options options = {
        .kind = "cuda",
        .ranks = group->ranks,
        .one_gpu = one_gpu,
        .cuda_enable = "nccl",
        .eager = true,
        .max_tokens = group->most,
        .max_seqs = 1,
        .max_model_len = group->most,
        .block_size = 16,
        .vocabulary = VOCABULARY,
    };
    struct pd_graph *graphs[PD_RANKS_MAX];

    if (pd_device_open(&options, &group->device, error, size) != PD_KERNEL_OK)
        return false;
    for (int r = 0; r < group->ranks; r++)
        graphs[r] = record(group, r);
    check(group, "joining", pd_graph_join(group->device, graphs, &group->graph));
    return true;
}

static int token_of(int row)
{
    return (row * 37 + 11) % VOCABULARY;
}

/* Seconds of one message of `rows` rows, the best of some: launch and kernel of the embedding included. */
static double time_message(struct group *group, int rows)
{
    double best = 1e9;

    for (int i = 0; i < TIMES; i++) {
        struct pd_step *step;
        double start;

        check(group, "a step", pd_step_acquire(group->device, &step));
        step->tokens = rows;
        step->sequences = 1;
        step->length[0] = step->context[0] = rows;
        for (int t = 0; t < rows; t++) {
            step->token[t] = token_of(t);
            step->position[t] = t;
        }
        start = pd_stage_seconds();
        check(group, "launching", pd_graph_launch(group->graph, step));
        check(group, "waiting", pd_step_wait(group->device, step->number, 10000));
        if (pd_stage_seconds() - start < best)
            best = pd_stage_seconds() - start;
    }
    return best;
}

/* Whether every row is that of its token, as the rank that has it made it. */
static bool is_summed(const struct group *group, int rows)
{
    const float *sums = pd_buffer_host(group->read);

    for (int t = 0; t < rows; t++) {
        int first = 0;

        for (int r = 1;
             r < group->ranks && pd_share_first(VOCABULARY, r, group->ranks) <= token_of(t); r++)
            first = pd_share_first(VOCABULARY, r, group->ranks);
        for (int c = 0; c < group->cols; c++) {
            size_t i = (size_t)(token_of(t) - first) * (size_t)group->cols + (size_t)c;

            if (sums[(size_t)t * (size_t)group->cols + (size_t)c] != value_of(i, first))
                return false;
        }
    }
    return true;
}

static bool measure(struct group *group, int rows, bool own, const char *where)
{
    size_t bytes = (size_t)rows * (size_t)group->cols * sizeof(float);
    char name[96];

    pd_cuda_one_shot_bytes = own ? SIZE_MAX : 0;
    snprintf(name, sizeof(name), "all-reduce of %zu KiB, %d ranks%s, %s", bytes >> 10, group->ranks,
             where, own ? "own" : "NCCL");
    memset(pd_buffer_host(group->read), 0xff, bytes);
    pd_stage_figure(name, "us", 1e6 * time_message(group, rows), 0);
    if (is_summed(group, rows))
        return true;
    fprintf(stderr, "%s: the sums are wrong\n", name);
    return false;
}

static bool on_one_gpu(struct group group)
{
    char error[512] = "";
    bool equal = true;

    group.ranks = 2;
    if (!open_group(&group, true, error, sizeof(error))) {
        fprintf(stderr, "%s\n", error);
        return false;
    }
    for (int rows = 1; rows <= group.most && equal; rows *= 8)
        equal = measure(&group, rows, true, " on one GPU");
    pd_device_close(group.device);
    return equal;
}

int pd_stage_collect(const struct pd_stage_options *options)
{
    struct group group = {.ranks = count_gpus(),
                          .cols = options->small ? 64 : 8192,
                          .most = options->small ? 16 : 512};
    struct pd_device_info info;
    char error[512] = "";
    bool equal = true;

    if (!on_one_gpu(group))
        return 1;
    if (group.ranks < 2) {
        printf("only ranks on one GPU: NCCL wants two\n");
        return PD_STAGE_SKIPPED;
    }
    if (options->small)
        group.ranks = 2;
    if (!open_group(&group, false, error, sizeof(error))) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    pd_device_describe(group.device, &info);
    if (strstr(info.numerics, "nccl") == NULL) {
        printf("%s\n", info.libraries);
        pd_device_close(group.device);
        return PD_STAGE_SKIPPED;
    }
    for (int rows = 1; rows <= group.most && equal; rows *= 4)
        equal = measure(&group, rows, true, "") && measure(&group, rows, false, "");
    pd_device_close(group.device);
    return equal ? 0 : 1;
}
