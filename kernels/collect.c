/* How the ranks of a group of host devices meet.
 *
 *     rank 0   W x ──▶ partial 0 ─┐   all threads of all ranks    ┌─▶ out += tree of all partials
 *     rank 1   W x ──▶ partial 1 ─┴──── meet ─────────────────────┴─▶ out += the same      ──── meet
 *
 * Ranks are threads of one process, so a rank reads what the others computed where it lies, and adds it
 * in the order of ranks: ((0 + 1) + (2 + 3)) + ..., the upper part of the tree that a product's slices are the
 * lower part of. Before and after, all meet: nobody reads what is not written yet, and nobody overwrites
 * what is still read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/barrier.h"
#include "kernels/host.h"

struct meeting {
    struct pd_barrier barrier; /* of all threads of all ranks */
    const float *partial[PD_RANKS_MAX];
};

int pd_host_meet(struct pd_group *group, char *error, size_t size)
{
    struct meeting *meeting = aligned_alloc(_Alignof(struct meeting), sizeof(*meeting));
    unsigned threads = 0;

    if (meeting == NULL) {
        snprintf(error, size, "out of memory");
        return PD_KERNEL_NO_MEMORY;
    }
    for (int r = 0; r < group->ranks; r++)
        threads += (unsigned)((const struct pd_host *)group->rank[r])->threads;
    memset(meeting, 0, sizeof(*meeting));
    pd_barrier_init(&meeting->barrier, threads);
    group->meeting = meeting;
    return PD_KERNEL_OK;
}

void pd_host_abandon(struct pd_group *group)
{
    pd_barrier_break(&((struct meeting *)group->meeting)->barrier);
}

void pd_host_part(struct pd_group *group)
{
    free(group->meeting);
    group->meeting = NULL;
}

/* NULL: a rank will never come. */
static struct meeting *meet(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    const struct pd_device *device = &run->host->device;
    struct meeting *meeting = device->group->meeting;

    if (thread == 0)
        meeting->partial[device->rank] = pd_host_floats(op->in);
    return pd_barrier_wait(&meeting->barrier) ? meeting : NULL;
}

enum { RUN = 256 }; /* values summed at a time: they stay in L1 */

/* sums[0 .. count) = the tree over ranks first .. first + ranks - 1 of what they have from `at` on. */
static void add_ranks(const struct meeting *meeting, int first, int ranks, size_t at, size_t count,
                      float *sums)
{
    float right[RUN];
    int half = 1;

    if (ranks == 1) {
        memcpy(sums, meeting->partial[first] + at, count * sizeof(*sums));
        return;
    }
    while (2 * half < ranks) /* the left part is full: it has a power of two */
        half *= 2;
    add_ranks(meeting, first, half, at, count, sums);
    add_ranks(meeting, first + half, ranks - half, at, count, right);
    for (size_t i = 0; i < count; i++)
        sums[i] += right[i];
}

void pd_host_allreduce(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    struct meeting *meeting = meet(run, op, thread);
    float *out = pd_host_floats(op->out), sums[RUN];
    size_t values = (size_t)pd_host_rows(run, op) * (size_t)op->out.cols;
    int first, end;

    if (meeting == NULL)
        return;
    pd_host_share((int)((values + RUN - 1) / RUN), 1, thread, run->host->threads, &first, &end);
    for (size_t at = (size_t)first * RUN; at < (size_t)end * RUN && at < values; at += RUN) {
        size_t count = values - at < RUN ? values - at : RUN;

        add_ranks(meeting, 0, run->host->device.group->ranks, at, count, sums);
        for (size_t i = 0; op->epilogue == PD_EPILOGUE_ADD && i < count; i++)
            sums[i] = out[at + i] + sums[i];
        memcpy(out + at, sums, count * sizeof(*sums));
    }
    pd_barrier_wait(&meeting->barrier);
}

void pd_host_allgather(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    struct meeting *meeting = meet(run, op, thread);
    int ranks = run->host->device.group->ranks, cols = op->out.cols;
    int first, end;

    if (meeting == NULL)
        return;
    pd_host_share(pd_host_rows(run, op), 1, thread, run->host->threads, &first, &end);
    for (int row = first; row < end; row++) {
        float *out = pd_host_floats(op->out) + (size_t)row * (size_t)cols;

        for (int r = 0; r < ranks; r++) {
            int from = pd_share_first(cols, r, ranks), to = pd_share_first(cols, r + 1, ranks);

            memcpy(out + from, meeting->partial[r] + (size_t)row * (size_t)(to - from),
                   (size_t)(to - from) * sizeof(*out));
        }
    }
    pd_barrier_wait(&meeting->barrier);
}
