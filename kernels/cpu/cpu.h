/* The cpu backend's own state, and the operators that share work out to the team. */
#ifndef PD_CPU_H
#define PD_CPU_H

#include "kernels/cpu/path.h"
#include "kernels/host.h"

struct pd_cpu {
    struct pd_host host;
    const char *isa; /* its name */
    const struct pd_cpu_path *path;
    enum pd_precision precision;        /* not AUTO */
    const struct pd_cpu_narrow *narrow; /* NULL: all products take f32 */
    pd_cpu_attend *attend;
    int query_rows; /* that a tile of queries has at most, as a rule */
    struct pd_weight_arena *arena;
};

/* How many panels of a thread's run have been taken, of one operator. */
struct pd_cpu_taken {
    _Alignas(64) atomic_int panels;
};

/* What one graph needs beside its tensors, allocated when it has been recorded. */
struct pd_cpu_plan {
    float *packed, *sums, *rounded; /* x of the running matmul, prepared by all for all */
    size_t packed_floats, sums_floats, rounded_floats;
    float *scratch; /* [threads][scratch_floats] */
    size_t scratch_floats;
    struct pd_cpu_attention *attentions; /* one per shape of heads */
    atomic_int *next;           /* [operators]: first attention item that nobody has taken */
    struct pd_cpu_taken *taken; /* [operators][threads]: matmuls */
};

static inline const struct pd_cpu *pd_cpu_of(const struct pd_host_run *run)
{
    return (const struct pd_cpu *)run->host;
}

static inline struct pd_cpu_plan *pd_cpu_plan_of(const struct pd_host_run *run)
{
    return run->graph->plan;
}

static inline float *pd_cpu_scratch(const struct pd_host_run *run, int thread)
{
    struct pd_cpu_plan *plan = pd_cpu_plan_of(run);

    return plan->scratch + (size_t)thread * plan->scratch_floats;
}

static inline struct pd_cpu_taken *pd_cpu_taken(const struct pd_host_run *run,
                                                const struct pd_op *op)
{
    return pd_cpu_plan_of(run)->taken + (op - run->graph->ops) * run->host->threads;
}

pd_host_operator pd_cpu_embed, pd_cpu_rmsnorm, pd_cpu_matmul, pd_cpu_rope_angles, pd_cpu_rope_store,
    pd_cpu_attention, pd_cpu_gather, pd_cpu_sample, pd_cpu_read;

/* ---- matmul.c -------------------------------------------------------------------------------- */

/* No panel has been taken; before the first operator. */
void pd_cpu_matmul_begin(const struct pd_host_run *run);

/* Asks memory for the first kilobytes of the thread's run of panels: `op` comes next, or soon. */
void pd_cpu_matmul_ahead(const struct pd_host_run *run, const struct pd_op *op, int thread);

/* ---- attention.c ----------------------------------------------------------------------------- */

/* Makes room for the graph's attention operators. */
int pd_cpu_attention_prepare(struct pd_graph *graph, struct pd_cpu_plan *plan);
void pd_cpu_attention_release(struct pd_cpu_plan *plan);

/* Divides the step's work into items; before the first operator. */
void pd_cpu_attention_begin(const struct pd_host_run *run);

/* Floats of scratch that a thread needs. */
size_t pd_cpu_attention_scratch(const struct pd_cpu *cpu, const struct pd_op *op);
size_t pd_cpu_sample_scratch(int vocabulary);

#endif
