/* Steps as recordings.
 *
 * A step of decoding is some hundred launches of a few microseconds each, more than the host can
 * enqueue in that time; a recording of them is enqueued by one call. Nothing of one step may be in
 * it, so steps are told apart by their size alone, rounded up to a bucket:
 *
 *     rows     1 2 4 8   16 24 ... 64   80 96 ... 256   320 384 ...
 *
 * Launches cover all rows of the bucket; kernels that look at the step end where `counts` (cuda.h)
 * ends, the others compute what nobody reads. Every step is rounded, recorded or not: both ways make
 * the same launches with the same arguments.
 *
 * Recorded is what decodes: one row for each sequence, and a sample of each row. A bucket's first
 * step runs launch by launch, which loads what is loaded on first use; its second is recorded and
 * replayed. What goes through NCCL is not recorded: a communicator waits, when it is destroyed and when it is
 * aborted, until no recording has a call of its any more. Its steps have rows enough to be longer than their
 * launches. */
#ifndef PD_CUDA_REPLAY_H
#define PD_CUDA_REPLAY_H

#include "kernels/cuda/backend.h"

/* Rows that are launched for `rows` of them, of at most `most`. 0 for 0. */
int pd_cuda_bucket(int rows, int most);

enum { PD_CUDA_RECORDED_ROWS = 256, PD_CUDA_BUCKETS = 24 };

/* Of one graph; zeroed at first. A bucket that finds no place is launched directly. */
struct pd_cuda_replay {
    struct {
        int rows; /* 0: free */
        struct pd_cuda_recording *recording;
    } bucket[PD_CUDA_BUCKETS];
};

/* Enqueues all of a graph's operators for a step that is on its way to the device. */
int pd_cuda_step_enqueue(struct pd_graph *graph, const struct pd_step *step);

void pd_cuda_replay_free(struct pd_cuda_runtime *runtime, struct pd_cuda_replay *replay);

#endif
