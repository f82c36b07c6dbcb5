/* The CUDA backend's own objects. Inside kernels/cuda/ only.
 *
 *     backend.c   opens the device, owns its state, launches and waits
 *     weight.c    matrices on their way to the device
 *     meet.c      the ranks of a group: their pilots, and the memory that they meet in
 *     transfer.c  pieces of pinned memory between host and device
 *     export.c    the KV pool as the hand-off reaches it
 *     plan.c      one operator after the other becomes launches
 *     replay.c    whole steps as recordings
 */
#ifndef PD_CUDA_BACKEND_H
#define PD_CUDA_BACKEND_H

#include <stdatomic.h>

#include "kernels/backend.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/nccl.h"
#include "kernels/cuda/paths.h"
#include "kernels/cuda/pilot.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/transfer.h"

struct pd_cuda {
    struct pd_device device;
    struct pd_cuda_runtime *runtime;
    struct pd_cuda_library library[PD_CUDA_LIBRARIES];
    struct pd_cuda_gemm_chooser *gemms; /* large products by cuBLASLt; NULL: by the own one */
    bool recording;                     /* the stream is being recorded (replay.c) */
    void *steps;                        /* pinned: both descriptors */
    void *counts;                       /* pinned: struct pd_cuda_counts [2] */
    void *mirror;                       /* the device's copy of one descriptor, counts behind it */
    size_t step_bytes;                  /* of one descriptor */
    struct pd_cuda_step step;           /* addresses in the mirror */
    uint64_t *progress;                 /* pinned */
    struct pd_cuda_transfer *in;        /* what weights come through */
    struct pd_cuda_transfer *outside; /* what the hand-off copies through; NULL before an export */
    struct pd_cuda_lane *between;     /* its copies out of other processes' memory; likewise */
    struct pd_cuda_pilot *pilot;      /* of a rank of a group: who enqueues; or NULL */
    struct pd_cuda_meeting meeting;   /* of a rank: where it meets the others */
    struct pd_cuda_nccl *nccl;        /* of a rank: its group's, for large messages; or NULL */
    char sums[256];                   /* of a rank, for people: by what its group adds */
    unsigned paths;                   /* which are on (paths.h) */
    atomic_bool lost;                 /* a sticky error: nothing works any more */
};

/* Of pinned memory: enough pieces for several files' reads at a time, large enough for the bus. */
enum { PD_CUDA_PIECES = 8, PD_CUDA_OUTSIDE_PIECES = 2, PD_CUDA_PIECE_BYTES = 4 << 20 };

/* Copied before each step. */
struct pd_cuda_counts {
    uint64_t number;
    int32_t count[3]; /* tokens, sequences, samples */
    int32_t unused;
};

enum { PD_CUDA_PARTS = 4 }; /* most sources of one weight */

struct pd_cuda_weight {
    struct pd_weight weight;
    struct pd_cuda_matrix part[PD_CUDA_PARTS];
    int parts;
    float *vector; /* all values as f32, where the weight is a norm or a bias; else NULL */
};

static inline struct pd_cuda *pd_cuda_of(struct pd_device *device)
{
    return (struct pd_cuda *)device;
}

/* Notes a failing call of the runtime; PD_KERNEL_LOST, and the device is lost. */
int pd_cuda_fail(struct pd_cuda *cuda, const char *what, int error);

/* Enqueues a step. */
int pd_cuda_launch(struct pd_cuda *cuda, struct pd_graph *graph, struct pd_step *step);

/* ---- export.c -------------------------------------------------------------------------------- */

int pd_cuda_buffer_export(struct pd_buffer *buffer, struct pd_export *out);

/* ---- meet.c ---------------------------------------------------------------------------------- */

/* The largest message that goes through the own all-reduce where there is NCCL: 1 MiB, which eight ranks
 * read in the 20 us that a ring takes to come round at all, as others have measured; t/device measures where
 * the two meet. Tests lower it. */
extern size_t pd_cuda_one_shot_bytes;

/* pd_backend's meet, abandon and part. */
int pd_cuda_meet(struct pd_group *group, char *error, size_t size);
void pd_cuda_abandon(struct pd_group *group);
void pd_cuda_part(struct pd_group *group);

/* ---- weight.c -------------------------------------------------------------------------------- */

int pd_cuda_weight_create(struct pd_device *device, enum pd_weight_layout layout, int cols,
                          const struct pd_weight_source *sources, int count, bool embedding,
                          struct pd_weight **weight);
void pd_cuda_weight_release(struct pd_weight *weight);

/* ---- plan.c ---------------------------------------------------------------------------------- */

/* Scratch memory for a recorded graph, and a look whether the kernels take its shapes. */
int pd_cuda_graph_prepare(struct pd_graph *graph);
void pd_cuda_graph_release(struct pd_graph *graph);

/* Enqueues all of a graph's operators, on so many rows of tokens and samples: at least what the
 * running step has. `decoding`: no sequence has more than one row. Nothing else may depend on the
 * step. */
int pd_cuda_graph_run(struct pd_graph *graph, int tokens, int samples, bool decoding);

/* Whether a sum over ranks of a step of so many rows goes through NCCL. */
bool pd_cuda_graph_uses_nccl(const struct pd_graph *graph, int rows);

/* Where the graph's recordings are kept (replay.h). */
struct pd_cuda_replay *pd_cuda_graph_replay(struct pd_graph *graph);

#endif
