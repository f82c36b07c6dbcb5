/* Where the ranks of a group meet, over memory that all of their GPUs reach: one launch on every rank, each
 * of which does all of the work (one shot). The floor is each rank's bytes, read once by every other.
 *
 *     rank 0   in ─copy─▶ values 0 ─┐  flags: "block b of rank r has come    ┌─▶ out = tree of all values
 *     rank 1   in ─copy─▶ values 1 ─┴────────  for the n-th time"  ──────────┴─▶ out = the same tree
 *
 * Block b waits for block b of every rank only, and reads only what that block has written. How often it
 * has come is counted in the device's memory, so that a replayed launch goes on counting.
 *
 * A rank writes into halves of `values` in turn: before it writes a half again it has met all ranks once
 * more, and whoever has begun the next meeting has read the last one's values. So nobody waits at the
 * end. The number of blocks is fixed: all of them have always come equally often.
 *
 * A deterministic device sums the products behind which ranks meet in slices, as many on one rank as on
 * eight, and add_slices is the lower part of the same tree. */

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/pd_simt.cuh"

enum { THREADS = 512, BLOCKS = PD_CUDA_MEETING_BLOCKS, RANKS = PD_RANKS_MAX };

static_assert((int)PD_SLICES_MAX <= (int)RANKS, "one tree for both");

/* Looks at whether the group was given up only now and then: that word lies in the host's memory. */
enum { PATIENCE = 1024 };

/* What the threads of this block wrote to `values` is there for the block of every rank, and theirs for
 * this one; or the group was given up. */
PD_DEVICE void meet(const struct pd_cuda_meeting &meeting, uint64_t call)
{
    const int place = meeting.rank * BLOCKS + PD_BLOCK_X;
    const int peer = PD_THREAD;

    pd_barrier();
    if (peer < meeting.ranks) {
        const uint64_t *flag = meeting.flags[meeting.rank] + peer * BLOCKS + PD_BLOCK_X;

        pd_store_system(meeting.flags[peer] + place, call);
        for (int looks = 1; pd_load_system(flag) < call; looks++) {
            if (looks % PATIENCE == 0 && pd_load_system(meeting.abandoned) != 0)
                break;
            pd_pause();
        }
    }
    pd_barrier();
}

/* This block's share of `count` values. */
PD_DEVICE int share(int count, int block)
{
    return (int)((int64_t)count * block / BLOCKS);
}

/* sum[0] becomes ((0 + 1) + (2 + 3)) + ... */
PD_DEVICE void add_up(float sum[RANKS], int count)
{
    PD_UNROLL_ALL
    for (int step = 1; step < RANKS; step *= 2) {
        PD_UNROLL_ALL
        for (int r = 0; r + step < RANKS; r += 2 * step)
            if (r + step < count)
                sum[r] += sum[r + step];
    }
}

PD_BUDGET(allreduce, 48, 0, 0);

static PD_GLOBAL allreduce(struct pd_cuda_meeting meeting, const float *in, int count, bool add,
                           float *out)
{
    const uint64_t call = meeting.calls[PD_BLOCK_X] + 1;
    const size_t half = (size_t)(call % 2) * PD_CUDA_MEETING_VALUES;
    const int first = share(count, PD_BLOCK_X), end = share(count, PD_BLOCK_X + 1);

    for (int i = first + PD_THREAD; i < end; i += THREADS)
        meeting.values[meeting.rank][half + (size_t)i] = in[i];
    meet(meeting, call);
    for (int i = first + PD_THREAD; i < end; i += THREADS) {
        float sum[RANKS];

        PD_UNROLL_ALL
        for (int r = 0; r < RANKS; r++)
            sum[r] = r < meeting.ranks ? meeting.values[r][half + (size_t)i] : 0;
        add_up(sum, meeting.ranks);
        out[i] = add ? out[i] + sum[0] : sum[0];
    }
    if (PD_THREAD == 0)
        meeting.calls[PD_BLOCK_X] = call;
}

int pd_cuda_allreduce(void *stream, const struct pd_cuda_meeting *meeting, const float *in,
                      size_t count, bool add, float *out)
{
    int error = 0;

    for (size_t at = 0; at < count && error == 0; at += PD_CUDA_MEETING_VALUES) {
        int some = count - at < PD_CUDA_MEETING_VALUES ? (int)(count - at) : PD_CUDA_MEETING_VALUES;

        error = PD_LAUNCH(allreduce, BLOCKS, 1, THREADS, (pd_stream)stream, *meeting, in + at, some,
                          add, out + at);
    }
    return error;
}

PD_BUDGET(add_slices, 40, 0, 0);

static PD_GLOBAL add_slices(const float *sums, int slices, size_t count, bool add, float *out)
{
    const size_t i = (size_t)PD_BLOCK_X * THREADS + (size_t)PD_THREAD;
    float sum[RANKS];

    if (i >= count)
        return;
    PD_UNROLL_ALL
    for (int s = 0; s < RANKS; s++)
        sum[s] = s < slices ? sums[(size_t)s * count + i] : 0;
    add_up(sum, slices);
    out[i] = add ? out[i] + sum[0] : sum[0];
}

int pd_cuda_add_slices(void *stream, const float *sums, int slices, size_t count, bool add,
                       float *out)
{
    if (slices < 1 || slices > RANKS)
        return -1;
    if (count == 0)
        return 0;
    return PD_LAUNCH(add_slices, (int)((count + THREADS - 1) / THREADS), 1, THREADS,
                     (pd_stream)stream, sums, slices, count, add, out);
}

PD_BUDGET(allgather, 48, 0, 0);

/* `cols` of a row of `out`; of these, rank r's are those that pd_share_first gives it. */
static PD_GLOBAL allgather(struct pd_cuda_meeting meeting, const float *in, int rows, int cols,
                           float *out)
{
    const uint64_t call = meeting.calls[PD_BLOCK_X] + 1;
    const size_t half = (size_t)(call % 2) * PD_CUDA_MEETING_VALUES;
    const int own = (int)((int64_t)cols * (meeting.rank + 1) / meeting.ranks) -
                    (int)((int64_t)cols * meeting.rank / meeting.ranks);

    for (int i = share(rows * own, PD_BLOCK_X) + PD_THREAD; i < share(rows * own, PD_BLOCK_X + 1);
         i += THREADS)
        meeting.values[meeting.rank][half + (size_t)i] = in[i];
    meet(meeting, call);
    for (int r = 0; r < meeting.ranks; r++) {
        const int left = (int)((int64_t)cols * r / meeting.ranks);
        const int width = (int)((int64_t)cols * (r + 1) / meeting.ranks) - left;
        const int end = share(rows * width, PD_BLOCK_X + 1);

        for (int i = share(rows * width, PD_BLOCK_X) + PD_THREAD; i < end; i += THREADS)
            out[(size_t)(i / width) * (size_t)cols + (size_t)(left + i % width)] =
                meeting.values[r][half + (size_t)i];
    }
    if (PD_THREAD == 0)
        meeting.calls[PD_BLOCK_X] = call;
}

int pd_cuda_allgather(void *stream, const struct pd_cuda_meeting *meeting, const float *in,
                      int rows, int cols, float *out)
{
    int own = pd_share_first(cols, meeting->rank + 1, meeting->ranks) -
              pd_share_first(cols, meeting->rank, meeting->ranks);
    int most = PD_CUDA_MEETING_VALUES / ((cols + meeting->ranks - 1) / meeting->ranks), error = 0;

    if (cols < meeting->ranks || most == 0)
        return -1;
    for (int first = 0; first < rows && error == 0; first += most) {
        int some = rows - first < most ? rows - first : most;

        error = PD_LAUNCH(allgather, BLOCKS, 1, THREADS, (pd_stream)stream, *meeting,
                          in + (size_t)first * (size_t)own, some, cols,
                          out + (size_t)first * (size_t)cols);
    }
    return error;
}
