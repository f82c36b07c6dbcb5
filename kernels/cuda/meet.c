/* How GPUs become the ranks of a group: memory that all reach, in which their kernels meet
 * (collect.cu), and a pilot for each (pilot.h). */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/backend.h"

static struct pd_cuda *rank_of(const struct pd_group *group, int rank)
{
    return pd_cuda_of(group->rank[rank]);
}

static void begin(void *context)
{
    struct pd_cuda *cuda = context;
    int error = pd_cuda_bind(cuda->runtime);

    if (error != 0)
        pd_cuda_fail(cuda, "choosing the GPU of a thread", error);
}

/* Whoever fails lets the others go at once: they may wait for it in the middle of the step. */
static void launch(void *context, struct pd_graph *graph, struct pd_step *step)
{
    struct pd_cuda *cuda = context;

    if (pd_cuda_launch(cuda, graph, step) != PD_KERNEL_OK)
        pd_cuda_abandon(cuda->device.group);
}

static int allocate_rank(struct pd_cuda *cuda, struct pd_cuda_meeting *all, int rank)
{
    size_t values = 2 * (size_t)PD_CUDA_MEETING_VALUES * sizeof(float);
    size_t flags = PD_CUDA_MEETING_BLOCKS * sizeof(uint64_t);
    int error = pd_cuda_allocate(cuda->runtime, values, (void **)&all->values[rank]);

    if (error == 0)
        error = pd_cuda_allocate(cuda->runtime, PD_RANKS_MAX * flags, (void **)&all->flags[rank]);
    if (error == 0)
        error = pd_cuda_allocate(cuda->runtime, flags, (void **)&cuda->meeting.calls);
    return error;
}

/* The memory of all ranks; each keeps its own count of calls. */
static int make_memory(struct pd_group *group, struct pd_cuda_meeting *all, char *error,
                       size_t size)
{
    for (int r = 0; r < group->ranks; r++) {
        struct pd_cuda *cuda = rank_of(group, r);
        int status = allocate_rank(cuda, all, r);

        if (status == 0 && r == 0)
            status =
                pd_cuda_allocate_pinned(cuda->runtime, sizeof(uint64_t), (void **)&all->abandoned);
        if (status != 0) {
            snprintf(error, size, "no room on GPU %d for what ranks meet in: %s",
                     cuda->device.options.ordinal, pd_cuda_error_text(status));
            return PD_KERNEL_NO_MEMORY;
        }
    }
    return PD_KERNEL_OK;
}

static int reach_all(struct pd_group *group, char *error, size_t size)
{
    for (int r = 0; r < group->ranks; r++) {
        for (int peer = 0; peer < group->ranks; peer++) {
            int status = pd_cuda_reach(rank_of(group, r)->runtime, rank_of(group, peer)->runtime);

            if (status == 0)
                continue;
            snprintf(error, size, "GPU %d cannot reach the memory of GPU %d: %s",
                     group->rank[r]->options.ordinal, group->rank[peer]->options.ordinal,
                     pd_cuda_error_text(status));
            return PD_KERNEL_UNSUPPORTED;
        }
    }
    return PD_KERNEL_OK;
}

/* ---- large messages -------------------------------------------------------------------------- */

size_t pd_cuda_one_shot_bytes = 1 << 20;

/* Why a group adds by its own kernels alone; NULL: it need not. */
static const char *obstacle(const struct pd_cuda *cuda)
{
    if (cuda->device.options.deterministic)
        return "--deterministic";
    if (!pd_cuda_path_on(cuda->paths, PD_CUDA_NCCL))
        return "no GPU has shown NCCL here (--cuda-enable nccl)";
    if (cuda->library[PD_CUDA_LIBRARY_NCCL].handle == NULL)
        return "NCCL is missing";
    return cuda->device.options.one_gpu ? "NCCL takes no GPU twice" : NULL;
}

/* What it will be, in a line that is told at start: a group computes with NCCL and without it. */
static void open_nccl(struct pd_group *group)
{
    struct pd_cuda *first = rank_of(group, 0);
    const char *why = obstacle(first);
    int ordinals[PD_RANKS_MAX], version = 0;
    struct pd_cuda_nccl *nccl = NULL;
    char error[160];

    for (int r = 0; r < group->ranks; r++)
        ordinals[r] = group->rank[r]->options.ordinal;
    if (why == NULL) {
        nccl = pd_cuda_nccl_open(&first->library[PD_CUDA_LIBRARY_NCCL], ordinals, group->ranks,
                                 error, sizeof(error));
        why = error;
    }
    if (nccl != NULL)
        version = pd_cuda_nccl_version(nccl);
    for (int r = 0; r < group->ranks; r++) {
        struct pd_cuda *cuda = rank_of(group, r);

        cuda->nccl = nccl;
        if (nccl == NULL)
            snprintf(cuda->sums, sizeof(cuda->sums), "all-reduce of every size by own kernels: %s",
                     why);
        else
            snprintf(cuda->sums, sizeof(cuda->sums), "all-reduce by NCCL %d.%d.%d beyond %zu KiB",
                     version / 10000, version / 100 % 100, version % 100,
                     pd_cuda_one_shot_bytes >> 10);
    }
}

static int start_pilots(struct pd_group *group, char *error, size_t size)
{
    for (int r = 0; r < group->ranks; r++) {
        struct pd_cuda *cuda = rank_of(group, r);
        const struct pd_cuda_piloted piloted = {cuda, begin, launch};

        cuda->pilot = pd_cuda_pilot_open(&piloted);
        if (cuda->pilot == NULL) {
            snprintf(error, size, "no thread for rank %d", r);
            return PD_KERNEL_NO_MEMORY;
        }
    }
    return PD_KERNEL_OK;
}

int pd_cuda_meet(struct pd_group *group, char *error, size_t size)
{
    struct pd_cuda_meeting all = {.ranks = group->ranks};
    int status = make_memory(group, &all, error, size);

    for (int r = 0; r < group->ranks; r++) {
        struct pd_cuda_meeting *own = &rank_of(group, r)->meeting;

        all.calls = own->calls;
        all.rank = r;
        *own = all;
    }
    group->meeting = &rank_of(group, 0)->meeting;
    if (status == PD_KERNEL_OK)
        status = reach_all(group, error, size);
    if (status == PD_KERNEL_OK) {
        open_nccl(group);
        status = start_pilots(group, error, size);
    }
    return status;
}

void pd_cuda_abandon(struct pd_group *group)
{
    __atomic_store_n(rank_of(group, 0)->meeting.abandoned, 1, __ATOMIC_RELEASE);
    pd_cuda_nccl_abandon(rank_of(group, 0)->nccl);
}

void pd_cuda_part(struct pd_group *group)
{
    struct pd_cuda_meeting all = rank_of(group, 0)->meeting;

    for (int r = 0; r < group->ranks; r++) {
        struct pd_cuda *cuda = rank_of(group, r);

        pd_cuda_pilot_close(cuda->pilot);
        cuda->pilot = NULL;
    }
    pd_cuda_nccl_close(rank_of(group, 0)->nccl);
    for (int r = 0; r < group->ranks; r++) {
        struct pd_cuda *cuda = rank_of(group, r);

        cuda->nccl = NULL;
        pd_cuda_free(cuda->runtime, cuda->meeting.calls);
        pd_cuda_free(cuda->runtime, all.values[r]);
        pd_cuda_free(cuda->runtime, all.flags[r]);
    }
    pd_cuda_free_pinned(rank_of(group, 0)->runtime, all.abandoned);
    group->meeting = NULL;
}
