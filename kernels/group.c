/* A group: devices that compute one model together, driven as one.
 *
 *     engine ── step ──▶ group ──┬─ copy ──▶ rank 0 ─┐
 *                                ├─ copy ──▶ rank 1 ─┼─ meet inside the step: PD_OP_ALLREDUCE, _ALLGATHER
 *                                └─ copy ──▶ rank 2 ─┘
 *            ◀─ rank 0's tokens ── when all are done
 *
 * It is a backend whose launches are launches on every rank. Ranks run their steps in the same order, so
 * that they meet in the same operators, and number them alike. Every rank draws every token; rank 0's
 * copies are what the engine reads.
 *
 * A step that some ranks have and others have not leaves the former waiting in the middle of it. So a
 * launch that fails on rank 0 has not happened, and one that fails later, like any rank that fails in its
 * step, loses the group: the others are let go, and nothing runs any more.
 *
 * Each rank's threads are started with the core set of that rank, a share of this process's cores in
 * their order (neighbours share caches); more ranks than cores share them. */
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/backend.h"

static struct pd_group *group_of(const struct pd_device *device)
{
    return (struct pd_group *)device;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Says on the group what rank `rank` said. */
static int repeat(struct pd_group *group, int rank, int status)
{
    return pd_device_fail(&group->device, status, "rank %d: %s", rank,
                          pd_device_error(group->rank[rank]));
}

static int lose(struct pd_group *group, int rank)
{
    if (!group->lost)
        group->rank[0]->backend->abandon(group);
    group->lost = true;
    return repeat(group, rank, PD_KERNEL_LOST);
}

static int refuse_lost(struct pd_group *group)
{
    return pd_device_fail(&group->device, PD_KERNEL_LOST, "a rank of the group has failed");
}

static int launch_rank(struct pd_group *group, int rank, struct pd_graph *graph,
                       const struct pd_step *step)
{
    struct pd_step *own;
    int status = pd_step_acquire(group->rank[rank], &own);

    if (status != PD_KERNEL_OK)
        return status;
    pd_step_copy_filled(step, own, group->device.options.block_size);
    return pd_graph_launch(graph, own);
}

static int group_launch(struct pd_graph *graph, struct pd_step *step)
{
    struct pd_group *group = group_of(graph->object.device);
    struct pd_graph *const *graphs = graph->plan;

    if (group->lost)
        return refuse_lost(group);
    for (int r = 0; r < group->ranks; r++) {
        int status = launch_rank(group, r, graphs[r], step);

        if (status != PD_KERNEL_OK)
            return r == 0 ? repeat(group, r, status) : lose(group, r);
    }
    return PD_KERNEL_OK;
}

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* All ranks within one time. */
static int group_wait(struct pd_device *device, uint64_t number, int timeout_ms)
{
    struct pd_group *group = group_of(device);
    int64_t end = now_ms() + timeout_ms;

    if (group->lost)
        return refuse_lost(group);
    for (int r = 0; r < group->ranks; r++) {
        int64_t left = end - now_ms();
        int status =
            pd_step_wait(group->rank[r], number, timeout_ms < 0 ? -1 : (int)(left > 0 ? left : 0));

        if (status == PD_KERNEL_TIMEOUT)
            return repeat(group, r, status);
        if (status != PD_KERNEL_OK)
            return lose(group, r);
    }
    if (device->steps.step[number % 2].number == number) /* no later step has its place */
        pd_step_copy_results(&group->rank[0]->steps.step[number % 2],
                             &device->steps.step[number % 2]);
    return PD_KERNEL_OK;
}

static void group_drain(struct pd_device *device)
{
    struct pd_group *group = group_of(device);

    for (int r = 0; r < group->ranks; r++)
        group->rank[r]->backend->drain(group->rank[r]);
}

/* Writing a history again is no harm, so one that a later rank refuses may be tried again. */
static int group_history_write(struct pd_device *device, int slot, int position,
                               const int32_t *tokens, int count)
{
    struct pd_group *group = group_of(device);

    for (int r = 0; r < group->ranks; r++) {
        int status = pd_history_write(group->rank[r], slot, position, tokens, count);

        if (status != PD_KERNEL_OK)
            return repeat(group, r, status);
    }
    return PD_KERNEL_OK;
}

static int group_fence(struct pd_device *device)
{
    struct pd_group *group = group_of(device);

    for (int r = 0; r < group->ranks; r++) {
        int status = pd_fence_remote_writes(group->rank[r]);

        if (status != PD_KERNEL_OK)
            return repeat(group, r, status);
    }
    return PD_KERNEL_OK;
}

static uint64_t group_progress(const struct pd_device *device)
{
    const struct pd_group *group = group_of(device);
    uint64_t least = UINT64_MAX;

    for (int r = 0; r < group->ranks; r++) {
        uint64_t own = pd_device_progress(group->rank[r]);

        if (own < least)
            least = own;
    }
    return least;
}

static uint64_t group_delay_ns(const struct pd_device *device)
{
    const struct pd_group *group = (const struct pd_group *)device;
    uint64_t sum = 0;

    for (int r = 0; r < group->ranks; r++)
        sum += pd_device_delay_ns(group->rank[r]);
    return sum;
}

static void group_describe(const struct pd_device *device, struct pd_device_info *info)
{
    const struct pd_group *group = group_of(device);
    struct pd_device_info own;

    info->threads = 0;
    for (int r = group->ranks - 1; r >= 0; r--) {
        pd_device_describe(group->rank[r], &own);
        info->threads += own.threads;
    }
    own.threads = info->threads;
    *info = own;
    snprintf(info->name, sizeof(info->name), "%d ranks of %.140s", group->ranks, own.name);
}

/* ---- what a group has not ---------------------------------------------------------------------- */

static int not_here(struct pd_device *device)
{
    return pd_device_fail(device, PD_KERNEL_INVALID,
                          "buffers, weights and graphs are made on a group's ranks");
}

static int group_buffer_allocate(struct pd_buffer *buffer)
{
    return not_here(buffer->object.device);
}

static void group_buffer_release(struct pd_buffer *buffer)
{
    (void)buffer;
}

static int group_weight_create(struct pd_device *device, enum pd_weight_layout layout, int cols,
                               const struct pd_weight_source *sources, int count, bool embedding,
                               struct pd_weight **weight)
{
    (void)layout;
    (void)cols;
    (void)sources;
    (void)count;
    (void)embedding;
    (void)weight;
    return not_here(device);
}

static void group_weight_release(struct pd_weight *weight)
{
    (void)weight;
}

static int group_graph_prepare(struct pd_graph *graph)
{
    return not_here(graph->object.device);
}

static void group_graph_release(struct pd_graph *graph)
{
    free(graph->plan);
}

/* ---- graphs ------------------------------------------------------------------------------------ */

int pd_device_ranks(const struct pd_device *device)
{
    return device->options.ranks;
}

struct pd_device *pd_device_rank(struct pd_device *device, int rank)
{
    return device->options.ranks > 1 ? group_of(device)->rank[rank] : device;
}

static bool same_operators(const struct pd_graph *a, const struct pd_graph *b)
{
    if (a->count != b->count)
        return false;
    for (int i = 0; i < a->count; i++) {
        if (a->ops[i].kind != b->ops[i].kind)
            return false;
    }
    return true;
}

static int check_graphs(struct pd_group *group, struct pd_graph *const *graphs)
{
    for (int r = 0; r < group->ranks; r++) {
        const struct pd_graph *graph = graphs[r];

        if (graph->object.device != group->rank[r] || !graph->ended ||
            graph->status != PD_KERNEL_OK || !same_operators(graphs[0], graph))
            return pd_device_fail(&group->device, PD_KERNEL_INVALID,
                                  "graph_join: the graph of rank %d is another's, not ended, or "
                                  "has other operators than rank 0's",
                                  r);
    }
    return PD_KERNEL_OK;
}

int pd_graph_join(struct pd_device *device, struct pd_graph *const *graphs, struct pd_graph **out)
{
    struct pd_group *group = group_of(device);
    struct pd_graph *graph, **own;
    int status;

    *out = graphs[0];
    if (device->options.ranks == 1)
        return PD_KERNEL_OK;
    *out = NULL;
    status = check_graphs(group, graphs);
    if (status != PD_KERNEL_OK)
        return status;
    own = calloc((size_t)group->ranks, sizeof(*own));
    status = own != NULL ? pd_graph_begin(device, &graph) : PD_KERNEL_NO_MEMORY;
    if (status != PD_KERNEL_OK) {
        free(own);
        return pd_device_fail(device, PD_KERNEL_NO_MEMORY, "out of memory");
    }
    memcpy(own, graphs, (size_t)group->ranks * sizeof(*own));
    graph->plan = own;
    graph->ended = true;
    for (int r = 0; r < group->ranks; r++) {
        if (graphs[r]->max_tokens < graph->max_tokens)
            graph->max_tokens = graphs[r]->max_tokens;
        if (graphs[r]->max_samples < graph->max_samples)
            graph->max_samples = graphs[r]->max_samples;
        if (graphs[r]->kv_slots < graph->kv_slots)
            graph->kv_slots = graphs[r]->kv_slots;
    }
    *out = graph;
    return PD_KERNEL_OK;
}

/* ---- open and close ---------------------------------------------------------------------------- */

static void group_close(struct pd_device *device)
{
    struct pd_group *group = group_of(device);

    if (group->meeting != NULL)
        group->rank[0]->backend->part(group);
    for (int r = 0; r < group->ranks; r++)
        pd_device_close(group->rank[r]);
    free(group->steps);
    pd_device_fini(device);
    free(group);
}

static const struct pd_backend backend = {
    .kind = "group",
    .close = group_close,
    .describe = group_describe,
    .buffer_allocate = group_buffer_allocate,
    .buffer_release = group_buffer_release,
    .weight_create = group_weight_create,
    .weight_release = group_weight_release,
    .graph_prepare = group_graph_prepare,
    .graph_release = group_graph_release,
    .launch = group_launch,
    .wait = group_wait,
    .drain = group_drain,
    .history_write = group_history_write,
    .fence = group_fence,
    .progress = group_progress,
    .delay_ns = group_delay_ns,
};

/* The cores of `all` that are this rank's: at least one. */
static void choose_cores(const cpu_set_t *all, int rank, int ranks, cpu_set_t *own)
{
    int cores = CPU_COUNT(all), seen = 0;
    int first = pd_share_first(cores, rank, ranks), end = pd_share_first(cores, rank + 1, ranks);

    CPU_ZERO(own);
    for (int c = 0; c < CPU_SETSIZE; c++) {
        if (!CPU_ISSET(c, all))
            continue;
        if (seen == first || (seen > first && seen < end))
            CPU_SET(c, own);
        seen++;
    }
}

static int open_rank(const struct pd_backend *kind, const struct pd_device_options *options,
                     int rank, struct pd_device **device, char *error, size_t size)
{
    struct pd_device_options own = *options;
    int ranks = options->ranks, status;
    cpu_set_t before, cores;
    bool pinned = sched_getaffinity(0, sizeof(before), &before) == 0;

    own.ranks = 1;
    own.ordinal = options->ordinal + (options->one_gpu ? 0 : rank);
    own.threads = pd_share_first(options->threads, rank + 1, ranks) -
                  pd_share_first(options->threads, rank, ranks);
    if (options->threads > 0 && own.threads == 0)
        own.threads = 1;
    if (pinned) { /* threads begin with the cores of the one that starts them */
        choose_cores(&before, rank, ranks, &cores);
        pinned = sched_setaffinity(0, sizeof(cores), &cores) == 0;
    }
    status = kind->open(&own, device, error, size);
    if (pinned)
        sched_setaffinity(0, sizeof(before), &before);
    return status;
}

static int open_ranks(struct pd_group *group, const struct pd_backend *kind,
                      const struct pd_device_options *options, char *error, size_t size)
{
    for (int r = 0; r < options->ranks; r++) {
        int status = open_rank(kind, options, r, &group->rank[r], error, size);

        if (status != PD_KERNEL_OK)
            return status;
        group->rank[r]->group = group;
        group->rank[r]->rank = r;
        group->ranks++;
    }
    return kind->meet(group, error, size);
}

int pd_group_open(const struct pd_backend *kind, const struct pd_device_options *options,
                  struct pd_device **device, char *error, size_t size)
{
    struct pd_group *group;
    size_t bytes = (pd_steps_bytes(options) + 63) / 64 * 64;
    int status;

    if (kind->meet == NULL) {
        snprintf(error, size, "devices of kind \"%s\" cannot compute one model together yet",
                 kind->kind);
        return PD_KERNEL_UNSUPPORTED;
    }
    group = calloc(1, sizeof(*group));
    if (group == NULL || pd_device_init(&group->device, &backend, options) != PD_KERNEL_OK) {
        free(group);
        snprintf(error, size, "out of memory");
        return PD_KERNEL_NO_MEMORY;
    }
    status = open_ranks(group, kind, options, error, size);
    group->steps = aligned_alloc(64, bytes);
    if (status == PD_KERNEL_OK && group->steps != NULL) {
        memset(group->steps, 0, bytes);
        if (pd_steps_init(&group->device, group->steps) == PD_KERNEL_OK) {
            *device = &group->device;
            return PD_KERNEL_OK;
        }
    }
    if (status == PD_KERNEL_OK) {
        snprintf(error, size, "out of memory");
        status = PD_KERNEL_NO_MEMORY;
    }
    group_close(&group->device);
    return status;
}
