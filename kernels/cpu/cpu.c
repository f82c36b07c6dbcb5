/* The cpu backend: chooses a path, allocates what graphs need. */
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/apart.h"
#include "kernels/cpu/cpu.h"

static pd_host_operator *const operators[PD_OP_COUNT] = {
    [PD_OP_EMBED] = pd_cpu_embed,
    [PD_OP_RMSNORM] = pd_cpu_rmsnorm,
    [PD_OP_MATMUL] = pd_cpu_matmul,
    [PD_OP_ROPE_ANGLES] = pd_cpu_rope_angles,
    [PD_OP_ROPE_STORE] = pd_cpu_rope_store,
    [PD_OP_ATTENTION] = pd_cpu_attention,
    [PD_OP_GATHER] = pd_cpu_gather,
    [PD_OP_SAMPLE] = pd_cpu_sample,
    [PD_OP_READ] = pd_cpu_read,
    [PD_OP_ALLREDUCE] = pd_host_allreduce,
    [PD_OP_ALLGATHER] = pd_host_allgather,
};

/* ---- paths ----------------------------------------------------------------------------------- */

static bool any_machine(void)
{
    return true;
}

#if defined(__x86_64__)
/* By hand, since clang 14's __builtin_cpu_supports does not know the name. */
static bool has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;

    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static bool has_vnni(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512vnni");
}

static bool has_dot(void)
{
    return has_vnni() && __builtin_cpu_supports("avx512bf16");
}

/* The system gives a process the tiles' registers when it is asked; for all its threads, and for good. */
static bool has_amx(void)
{
    enum { REQUEST = 0x1023, TILE_DATA = 18, BF16 = 1 << 22, TILE = 1 << 24, INT8 = 1 << 25 };
    unsigned eax, ebx, ecx, edx;

    return has_dot() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & BF16) &&
           (edx & TILE) && (edx & INT8) && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}
#endif

/* From the plainest to the best. */
static const struct isa {
    const char *name;
    const struct pd_cpu_path *path;
    const struct pd_cpu_narrow *int8, *int12;
    pd_cpu_attend *attend; /* in bf16, where precision leaves the choice; NULL: there is none */
    bool (*supported)(void);
} isas[] = {
    {"baseline", &pd_cpu_path_baseline, &pd_cpu_int8_baseline, &pd_cpu_int12_baseline, NULL,
     any_machine},
#if defined(__x86_64__)
    {"avx2", &pd_cpu_path_avx2, &pd_cpu_int8_avx2, &pd_cpu_int12_avx2, NULL, has_avx2},
    {"avx512", &pd_cpu_path_avx512, &pd_cpu_int8_avx512, &pd_cpu_int12_avx512, NULL, has_avx512},
    {"vnni", &pd_cpu_path_avx512, &pd_cpu_int8_vnni, &pd_cpu_int12_vnni, NULL, has_vnni},
    {"bf16", &pd_cpu_path_avx512, &pd_cpu_int8_vnni, &pd_cpu_int12_vnni, pd_cpu_attend_dot,
     has_dot},
    {"amx", &pd_cpu_path_avx512, &pd_cpu_int8_vnni, &pd_cpu_int12_amx, pd_cpu_attend_bf16, has_amx},
#endif
};

enum { ISAS = (int)(sizeof(isas) / sizeof(isas[0])) };

/* The best of this machine, not above the one named. */
static const struct isa *choose_isa(const char *name, char *error, size_t size)
{
    const struct isa *best = isas;
    bool automatic = name == NULL || strcmp(name, "auto") == 0;

    for (int i = 0; i < ISAS; i++) {
        if (isas[i].supported())
            best = &isas[i];
        if (automatic || strcmp(isas[i].name, name) != 0)
            continue;
        if (best == &isas[i])
            return best;
        snprintf(error, size, "this machine cannot run isa \"%s\"; \"%s\" is its best", name,
                 best->name);
        return NULL;
    }
    if (automatic)
        return best;
    snprintf(error, size, "unknown isa \"%s\": auto, baseline, avx2, avx512, vnni, bf16 or amx",
             name);
    return NULL;
}

/* What attends, unless in f32. */
static void choose_attention(const struct isa *isa, struct pd_cpu *cpu, enum pd_precision precision)
{
    cpu->attend = isa->path->attend;
    cpu->query_rows = PD_CPU_QUERY_ROWS;
    if (isa->attend == NULL || precision == PD_PRECISION_F32)
        return;
    cpu->attend = isa->attend;
    cpu->query_rows = PD_CPU_QUERY_ROWS_BF16;
}

/* The precision of what has been asked for. */
static bool choose_precision(const struct isa *isa, struct pd_cpu *cpu, enum pd_precision asked,
                             char *error, size_t size)
{
    bool tiles = false;

#if defined(__x86_64__)
    tiles = isa->int12 == &pd_cpu_int12_amx;
#endif
    if (asked == PD_PRECISION_AUTO)
        asked = tiles ? PD_PRECISION_INT12 : PD_PRECISION_INT8;
    cpu->precision = asked;
    choose_attention(isa, cpu, asked);
    if (asked == PD_PRECISION_INT8)
        cpu->narrow = isa->int8;
    if (asked == PD_PRECISION_INT12)
        cpu->narrow = isa->int12;
    if (asked != PD_PRECISION_BF16)
        return true;
#if defined(__x86_64__)
    cpu->narrow = &pd_cpu_bf16;
#endif
    if (!tiles)
        snprintf(error, size,
                 "products in bf16 take isa \"amx\" on a machine that has AMX for bf16, not \"%s\"",
                 isa->name);
    return tiles;
}

/* ---- the device ------------------------------------------------------------------------------ */

static int usable_cores(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

static void begin(const struct pd_host_run *run)
{
    pd_cpu_matmul_begin(run);
    pd_cpu_attention_begin(run);
}

static void ahead(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    if (op->kind == PD_OP_MATMUL)
        pd_cpu_matmul_ahead(run, op, thread);
}

static int cpu_open(const struct pd_device_options *options, struct pd_device **device, char *error,
                    size_t size)
{
    const struct isa *isa = choose_isa(options->isa, error, size);
    struct pd_cpu *cpu;
    struct pd_weight_arena *arena;
    int status;

    if (isa == NULL)
        return PD_KERNEL_UNSUPPORTED;
    cpu = calloc(1, sizeof(*cpu));
    if (cpu != NULL && !choose_precision(isa, cpu, options->precision, error, size)) {
        free(cpu);
        return PD_KERNEL_UNSUPPORTED;
    }
    arena = pd_weight_arena_create();
    if (cpu == NULL || arena == NULL) {
        free(cpu);
        if (arena != NULL)
            pd_weight_arena_destroy(arena);
        snprintf(error, size, "out of memory");
        return PD_KERNEL_NO_MEMORY;
    }
    cpu->isa = isa->name;
    cpu->path = isa->path;
    cpu->arena = arena;
    cpu->host.operators = operators;
    cpu->host.begin = begin;
    cpu->host.ahead = ahead;
    cpu->host.apart = PD_CPU_CHUNK;
    status = pd_host_open(&cpu->host, &pd_backend_cpu, options,
                          options->threads > 0 ? options->threads : usable_cores(), error, size);
    if (status == PD_KERNEL_OK)
        *device = &cpu->host.device;
    else
        pd_weight_arena_destroy(arena);
    return status;
}

static void cpu_close(struct pd_device *device)
{
    struct pd_weight_arena *arena = ((struct pd_cpu *)device)->arena;

    pd_host_close(device);
    pd_weight_arena_destroy(arena);
}

static const char *const precisions[] = {
    [PD_PRECISION_F32] = "f32",
    [PD_PRECISION_INT8] = "int8",
    [PD_PRECISION_INT12] = "int12",
    [PD_PRECISION_BF16] = "bf16",
};

static void cpu_describe(const struct pd_device *device, struct pd_device_info *info)
{
    const struct pd_cpu *cpu = (const struct pd_cpu *)device;
    const char *attention = "";

#if defined(__x86_64__)
    if (cpu->attend == pd_cpu_attend_bf16)
        attention = " attention=bf16";
    if (cpu->attend == pd_cpu_attend_dot)
        attention = " attention=bf16-dot";
#endif
    snprintf(info->name, sizeof(info->name), "cpu, %s, %d threads", cpu->isa, cpu->host.threads);
    snprintf(info->numerics, sizeof(info->numerics), "cpu/4 %s %s split=%d%s",
             precisions[cpu->precision], cpu->path->numerics, PD_CPU_SPLIT, attention);
    snprintf(info->packing, sizeof(info->packing), "%s", pd_cpu_packing(cpu->precision));
    info->threads = cpu->host.threads;
    info->ranks_are_exact = true;
    pd_host_memory(info);
}

static int create_weight(struct pd_device *device, enum pd_weight_layout layout, int cols,
                         const struct pd_weight_source *sources, int count,
                         const struct pd_weight_place *place, struct pd_weight **weight)
{
    const struct pd_cpu *cpu = (const struct pd_cpu *)device;

    return pd_cpu_weight_create(device, cpu->arena, cpu->precision, layout, cols, sources, count,
                                place, weight);
}

static int cpu_weight_create(struct pd_device *device, enum pd_weight_layout layout, int cols,
                             const struct pd_weight_source *sources, int count, bool embedding,
                             struct pd_weight **weight)
{
    (void)embedding; /* every form can be read back by rows */
    return create_weight(device, layout, cols, sources, count, NULL, weight);
}

static int cpu_weight_create_in(struct pd_device *device, enum pd_weight_layout layout, int cols,
                                const struct pd_weight_source *sources, int count,
                                struct pd_weight_place place, struct pd_weight **weight)
{
    return create_weight(device, layout, cols, sources, count, &place, weight);
}

static size_t cpu_weight_bytes(struct pd_device *device, enum pd_weight_layout layout, int cols,
                               const struct pd_weight_source *sources, int count)
{
    (void)device;
    return pd_cpu_weight_bytes(layout, cols, sources, count);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static void at_most(size_t *most, size_t value)
{
    if (value > *most)
        *most = value;
}

/* What a product needs of each kind, few tokens or many. */
static void measure_matmul(const struct pd_graph *graph, const struct pd_op *op, int rows,
                           struct pd_cpu_plan *plan)
{
    const struct pd_cpu *cpu = (const struct pd_cpu *)graph->object.device;
    const struct pd_cpu_weight *weight = (const struct pd_cpu_weight *)op->weight;
    size_t blocks = ((size_t)op->in.cols + BLOCK - 1) / BLOCK, scratch = 64;
    int alone = 0; /* a thread's own */

    if (!op->rows_are_samples && pd_host_goes_apart(&cpu->host, graph->max_tokens))
        alone = rows < cpu->host.apart ? rows : cpu->host.apart;

    if (weight->narrow) {
        at_most(&plan->rounded_floats, cpu->narrow->bytes(rows, (int)blocks) / sizeof(float));
        if (alone < PD_CPU_ROUND_ALONE)
            alone = PD_CPU_ROUND_ALONE;
        scratch += cpu->narrow->bytes(alone, (int)blocks) / sizeof(float);
    }
    if (weight->wide) {
        at_most(&plan->packed_floats, (size_t)rows * (size_t)op->in.cols);
        at_most(&plan->sums_floats, (size_t)rows * blocks);
        if (alone < cpu->path->direct_rows)
            alone = cpu->path->direct_rows;
        scratch += (size_t)alone * ((size_t)op->in.cols + blocks);
    }
    at_most(&plan->scratch_floats, scratch + pd_cpu_product_scratch(rows, op->slices));
}

/* What operator `op` needs at most. */
static void measure(const struct pd_graph *graph, const struct pd_op *op, struct pd_cpu_plan *plan)
{
    const struct pd_cpu *cpu = (const struct pd_cpu *)graph->object.device;
    int rows = op->rows_are_samples ? graph->max_samples : graph->max_tokens;

    switch (op->kind) {
    case PD_OP_MATMUL:
        measure_matmul(graph, op, rows, plan);
        break;
    case PD_OP_ATTENTION:
        at_most(&plan->scratch_floats, pd_cpu_attention_scratch(cpu, op));
        break;
    case PD_OP_SAMPLE:
        at_most(&plan->scratch_floats, pd_cpu_sample_scratch(op->in.cols));
        break;
    default:
        break;
    }
}

static size_t scratch_bytes(const struct pd_graph *graph, const struct pd_cpu_plan *plan)
{
    const struct pd_cpu *cpu = (const struct pd_cpu *)graph->object.device;

    return (size_t)cpu->host.threads * plan->scratch_floats * sizeof(float);
}

static size_t taken_bytes(const struct pd_graph *graph)
{
    const struct pd_cpu *cpu = (const struct pd_cpu *)graph->object.device;

    return ((size_t)graph->count + 1) * (size_t)cpu->host.threads * sizeof(struct pd_cpu_taken);
}

static void cpu_graph_release(struct pd_graph *graph)
{
    struct pd_cpu_plan *plan = graph->plan;

    pd_cpu_attention_release(plan);
    pd_host_free(plan->packed, plan->packed_floats * sizeof(float));
    pd_host_free(plan->sums, plan->sums_floats * sizeof(float));
    pd_host_free(plan->rounded, plan->rounded_floats * sizeof(float));
    pd_host_free(plan->scratch, scratch_bytes(graph, plan));
    pd_host_free(plan->taken, taken_bytes(graph));
    free(plan->next);
    free(plan);
    graph->plan = NULL;
}

static int cpu_graph_prepare(struct pd_graph *graph)
{
    struct pd_cpu_plan *plan = calloc(1, sizeof(*plan));

    if (plan == NULL)
        return pd_device_fail(graph->object.device, PD_KERNEL_NO_MEMORY, "out of memory");
    graph->plan = plan;
    pd_apart_mark(graph);
    plan->packed_floats = plan->sums_floats = plan->rounded_floats = plan->scratch_floats = 16;
    for (int i = 0; i < graph->count; i++)
        measure(graph, &graph->ops[i], plan);
    plan->scratch_floats =
        (plan->scratch_floats + 1023) / 1024 * 1024; /* threads on pages of their own */
    plan->packed = pd_host_allocate(plan->packed_floats * sizeof(float));
    plan->sums = pd_host_allocate(plan->sums_floats * sizeof(float));
    plan->rounded = pd_host_allocate(plan->rounded_floats * sizeof(float));
    plan->scratch = pd_host_allocate(scratch_bytes(graph, plan));
    plan->next = calloc((size_t)graph->count + 1, sizeof(*plan->next));
    plan->taken = pd_host_allocate(taken_bytes(graph));
    if (plan->packed != NULL && plan->sums != NULL && plan->rounded != NULL &&
        plan->scratch != NULL && plan->next != NULL && plan->taken != NULL &&
        pd_cpu_attention_prepare(graph, plan) == PD_KERNEL_OK)
        return PD_KERNEL_OK;
    cpu_graph_release(graph);
    return pd_device_fail(graph->object.device, PD_KERNEL_NO_MEMORY,
                          "no memory for a graph of %d operators, %d tokens", graph->count,
                          graph->max_tokens);
}

const struct pd_backend pd_backend_cpu = {
    .kind = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .buffer_allocate = pd_host_buffer_allocate,
    .buffer_release = pd_host_buffer_release,
    .weight_create = cpu_weight_create,
    .weight_create_in = cpu_weight_create_in,
    .weight_bytes = cpu_weight_bytes,
    .weight_release = pd_cpu_weight_release,
    .graph_prepare = cpu_graph_prepare,
    .graph_release = cpu_graph_release,
    .launch = pd_host_launch,
    .wait = pd_host_wait,
    .drain = pd_host_drain,
    .history_write = pd_host_history_write,
    .fence = pd_host_fence,
    .progress = pd_host_progress,
    .cut = pd_host_cut,
    .delay_ns = pd_host_delay_ns,
    .meet = pd_host_meet,
    .abandon = pd_host_abandon,
    .part = pd_host_part,
};
