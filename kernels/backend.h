/* What a backend is, and what every backend shares. Inside kernels/ only.
 *
 *     kernels.h ──▶ device.c   open, describe, objects that a device owns    ┐
 *                   graph.c    operators -> list of pd_op, shapes checked    ├─▶ pd_backend:
 *                   step.c     two descriptors, their states, their checks   ┘   cpu, cuda, ...
 *
 * A graph is a list of pd_op with everything resolved: a backend walks it (cpu, reference) or turns
 * it into its own form in graph_prepare (CUDA). By then shapes are consistent, and a step that
 * reaches launch() indexes inside every array, so kernels check nothing. */
#ifndef PD_BACKEND_H
#define PD_BACKEND_H

#include <pthread.h>

#include "kernels/kernels.h"

enum { PD_DEVICE_ERROR = 320 };

/* Anything that a device owns until it is destroyed or the device is closed. */
struct pd_object {
    struct pd_object *next, **link;
    struct pd_device *device;
    void (*release)(struct pd_object *object); /* frees it; already unlinked */
};

enum pd_step_state { PD_STEP_FREE, PD_STEP_FILLING, PD_STEP_IN_FLIGHT };

struct pd_steps {
    struct pd_step step[2];
    enum pd_step_state state[2];
    uint64_t next;  /* number that the next acquire gives out */
    uint32_t *seen; /* [max_seqs] mark of the last check that met this slot */
    uint32_t mark;
};

/* Ranks that compute one model together; itself a device, which the engine drives (group.c). */
struct pd_group;

struct pd_device {
    const struct pd_backend *backend;
    struct pd_device_options options; /* of a rank and of a device that is no group, ranks is 1 */
    struct pd_steps steps;
    struct pd_group *group; /* that this device is a rank of, or NULL */
    int rank;
    pthread_mutex_t lock; /* objects and error: weights are made by several threads */
    struct pd_object *objects;
    char error[PD_DEVICE_ERROR];
};

struct pd_buffer {
    struct pd_object object;
    enum pd_buffer_class kind;
    size_t bytes;
    void *host;             /* address where the host may touch it, or NULL */
    void *address;          /* on the device, where that is another memory: the backend's */
    int fd;                 /* class KV: what is exported; else -1 */
    struct pd_pages *pages; /* class KV in host memory: who makes its pages huge; or NULL */
};

struct pd_weight {
    struct pd_object object;
    enum pd_weight_layout layout;
    int rows, cols;
    bool embedding;
};

/* Angles of one rotary configuration for the rows of the running step: computed once per step,
 * shared by the layers that rotate alike. */
struct pd_rope {
    struct pd_rope *next;
    int dim;
    float factor;
    struct pd_tensor table;    /* [max_tokens][dim]: dim/2 cosines, dim/2 sines, times factor */
    float inverse_frequency[]; /* [dim / 2] */
};

enum pd_op_kind {
    PD_OP_EMBED,
    PD_OP_RMSNORM,
    PD_OP_MATMUL,
    PD_OP_ROPE_ANGLES,
    PD_OP_ROPE_STORE,
    PD_OP_ATTENTION,
    PD_OP_PUBLISH,
    PD_OP_GATHER,
    PD_OP_SAMPLE,
    PD_OP_READ,
    PD_OP_ALLREDUCE, /* only in groups: the other operators of a rank are its own */
    PD_OP_ALLGATHER,
    PD_OP_COUNT
};

struct pd_op {
    enum pd_op_kind kind;
    bool rows_are_samples;
    /* matmul; allreduce: NONE or ADD, the sum over all ranks' `in` is stored or added */
    enum pd_epilogue epilogue;
    int slices;                      /* matmul: of its own columns, a power of two */
    int first;                       /* embed: token of the weight's first row; where other ranks
                                      * have the token's, out is 0 */
    struct pd_tensor in, out;        /* rope_store: `in` is rotated in place */
    const struct pd_weight *weight;  /* embed, rmsnorm, matmul */
    const struct pd_weight *bias;    /* matmul, or NULL */
    float eps;                       /* rmsnorm */
    struct pd_attention_shape shape; /* rope_store, attention */
    const struct pd_rope *rope;      /* rope_angles, rope_store */
    struct pd_kv_pool pool;          /* rope_store, attention */
    int layer;                       /* rope_store, attention; publish: layers */
    struct pd_buffer *pinned;        /* read */
    bool continues;                  /* the operator before's run: set by pd_apart_mark */
};

struct pd_graph {
    struct pd_object object;
    struct pd_op *ops;
    int count, capacity;
    bool ended;
    int status;                  /* first error while recording */
    int max_tokens, max_samples; /* what its tensors hold */
    int64_t kv_slots;            /* least blocks * block_size of its pools; INT64_MAX without one */
    struct pd_rope *ropes;
    size_t partial_bytes;      /* of a rank: what waits to be reduced or gathered */
    struct pd_buffer *partial; /* or NULL */
    void *plan;                /* the backend's, from graph_prepare to graph_release */
};

/* One table per kind of device. Functions return a pd_kernel_status and describe a failure with
 * pd_device_fail. Arguments were checked by the caller. */
struct pd_backend {
    const char *kind;
    int (*open)(const struct pd_device_options *options, struct pd_device **device, char *error,
                size_t size);
    void (*close)(struct pd_device *device); /* objects are gone by then */
    /* Of the device that would be opened; NULL: it has no memory of its own. */
    int (*memory)(const struct pd_device_options *options, uint64_t *total, uint64_t *available,
                  char *error, size_t size);
    void (*describe)(const struct pd_device *device, struct pd_device_info *info);

    /* Sets host and fd of a buffer whose other fields are filled. */
    int (*buffer_allocate)(struct pd_buffer *buffer);
    void (*buffer_release)(struct pd_buffer *buffer);
    /* Of class KV. NULL: its fd is that of a file in the host's memory. */
    int (*buffer_export)(struct pd_buffer *buffer, struct pd_export *out);

    /* Any thread. The result's common fields are filled by the caller. */
    /* For weights in places that they are given; NULL: there are none. */
    size_t (*weight_bytes)(struct pd_device *device, enum pd_weight_layout layout, int cols,
                           const struct pd_weight_source *sources, int count);
    int (*weight_create_in)(struct pd_device *device, enum pd_weight_layout layout, int cols,
                            const struct pd_weight_source *sources, int count,
                            struct pd_weight_place place, struct pd_weight **weight);
    int (*weight_create)(struct pd_device *device, enum pd_weight_layout layout, int cols,
                         const struct pd_weight_source *sources, int count, bool embedding,
                         struct pd_weight **weight);
    void (*weight_release)(struct pd_weight *weight);

    int (*graph_prepare)(struct pd_graph *graph);
    void (*graph_release)(struct pd_graph *graph);

    int (*launch)(struct pd_graph *graph, struct pd_step *step);
    int (*wait)(struct pd_device *device, uint64_t number, int timeout_ms);
    void (*cut)(struct pd_device *device, uint64_t number); /* NULL: steps run to their end */
    void (*drain)(struct pd_device *device);                /* until everything launched has run */
    int (*history_write)(struct pd_device *device, int slot, int position, const int32_t *tokens,
                         int count);
    int (*fence)(struct pd_device *device);
    uint64_t (*progress)(const struct pd_device *device);
    uint64_t (*delay_ns)(const struct pd_device *device); /* NULL: there is none */

    /* Makes what the ranks of a group, all of this kind, need to meet: group->meeting. NULL: devices of
     * this kind form no groups. `abandon`: a rank has failed; those that wait for it go on, whatever they
     * compute, so that the group can be drained and closed. */
    int (*meet)(struct pd_group *group, char *error, size_t size);
    void (*abandon)(struct pd_group *group);
    void (*part)(struct pd_group *group); /* after all ranks have been drained, before they close */
};

struct pd_group {
    struct pd_device device; /* the group as a device */
    int ranks;
    struct pd_device *rank[PD_RANKS_MAX];
    void *meeting; /* the ranks' backend's */
    void *steps;   /* memory of the group's descriptors */
    bool lost;     /* a rank has failed: nothing runs any more */
};

/* group.c: opens options->ranks devices of options->kind as one. */
int pd_group_open(const struct pd_backend *backend, const struct pd_device_options *options,
                  struct pd_device **device, char *error, size_t size);

/* The ranks that a rank computes with: 1 where there is no group. */
static inline int pd_ranks_of(const struct pd_device *device)
{
    return device->group != NULL ? device->group->ranks : 1;
}

extern const struct pd_backend pd_backend_reference, pd_backend_cpu;

/* Only in programs that are linked with kernels/cuda: its address is NULL elsewhere. */
extern const struct pd_backend pd_backend_cuda __attribute__((weak));

/* ---- device.c -------------------------------------------------------------------------------- */

/* Notes what went wrong and returns `status`. Any thread. */
int pd_device_fail(struct pd_device *device, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void pd_object_attach(struct pd_device *device, struct pd_object *object,
                      void (*release)(struct pd_object *));
void pd_object_destroy(struct pd_object *object); /* unlinks and releases */

/* A buffer that is part of another object: not in the device's list, freed by that object. */
int pd_buffer_make(struct pd_device *device, enum pd_buffer_class kind, size_t bytes,
                   struct pd_buffer **buffer);
void pd_buffer_unmake(struct pd_buffer *buffer);

/* Fills the common head of a device that a backend has allocated (zeroed). */
int pd_device_init(struct pd_device *device, const struct pd_backend *backend,
                   const struct pd_device_options *options);
void pd_device_fini(struct pd_device *device);

/* ---- step.c ---------------------------------------------------------------------------------- */

/* Carves both descriptors out of `memory` (pd_steps_bytes, 64-byte aligned, zeroed). */
size_t pd_steps_bytes(const struct pd_device_options *options);
int pd_steps_init(struct pd_device *device, void *memory);

/* PD_KERNEL_INVALID, with the reason noted, unless every index of `step` lies inside what the
 * device and the graph have. */
int pd_step_check(struct pd_graph *graph, const struct pd_step *step);

/* What the host fills, and what the device writes, from one descriptor to another of equal capacities. */
void pd_step_copy_filled(const struct pd_step *from, struct pd_step *to, int block_size);
void pd_step_copy_results(const struct pd_step *from, struct pd_step *to);

/* ---- the KV pool's layout -------------------------------------------------------------------- */

/* Index of the first element of the K (value = 0) or V (1) tile of a block. */
static inline int64_t pd_kv_tile(const struct pd_kv_pool *pool, int layer, int head, int64_t block,
                                 int value)
{
    int64_t tile = (((int64_t)layer * pool->kv_heads + head) * pool->blocks + block) * 2 + value;

    return tile * pool->block_size * pool->head_dim;
}

#endif
