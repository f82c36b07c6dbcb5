/* From operators to launches.
 *
 * A product of at most eight tokens goes through the small kernel, with the weights as they lie.
 * More tokens go through the matrix unit: activations become f16 or bf16 once per product,
 * quantised weights piece by piece in a scratch tile, so that no second copy of the model is
 * needed. f32 weights, of which no model has many, stay f32: the small kernel takes their tokens by
 * eights. A deterministic device takes the second way for every number of tokens, with a product of
 * its own in the library's place; so does, for more than eight, one whose library is off (paths.h).
 *
 *     matmul   for each part of the weight:  small(part, x) | half(x), half(part tile) -> gemm
 *              with bias and residual, then SwiGLU out of a scratch tensor, where asked
 *
 * Q, K and V, or gate and up, are one part where they have one format (weight.c): one product. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/replay.h"

/* Of f16 weights at a time: what a large product unpacks before it is multiplied. */
static const size_t TILE_BYTES = (size_t)64 << 20;

struct pd_cuda_plan {
    float *gate_up;           /* [max rows][2 cols] */
    uint16_t *half_x;         /* [max rows][cols] */
    uint16_t *half_weight;    /* a tile */
    float *sums;              /* slices of a product, of some tokens at a time */
    uint32_t *sample_scratch; /* [max samples][2][vocabulary] */
    float *partial;           /* what attention over single rows merges */
    float **frequencies;      /* [ops] of the ROPE_ANGLES operators, else NULL */
    struct pd_cuda_replay replay;
};

/* What a running operator needs. It may be recorded: nothing of one step is here. */
struct run {
    struct pd_cuda *cuda;
    const struct pd_cuda_plan *plan;
    int tokens, samples; /* rows to launch for */
    bool decoding;       /* no sequence has more than one row */
    void *stream;
    struct pd_cuda_slices slices; /* that the columns of the running product are summed in */
};

static void *address(struct pd_tensor tensor)
{
    return (char *)tensor.buffer->address + tensor.offset;
}

static const struct pd_cuda_weight *weight_of(const struct pd_weight *weight)
{
    return (const struct pd_cuda_weight *)weight;
}

static const float *vector_of(const struct pd_weight *weight)
{
    return weight != NULL ? weight_of(weight)->vector : NULL;
}

static enum pd_cuda_format kv_format(enum pd_dtype type)
{
    return type == PD_F32 ? PD_CUDA_F32 : type == PD_F16 ? PD_CUDA_F16 : PD_CUDA_BF16;
}

/* ---- preparing ------------------------------------------------------------------------------- */

struct sizes {
    size_t gate_up, half_x, half_weight, sums, sample_scratch, partial;
};

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t matrix_bytes(const struct pd_cuda_matrix *matrix)
{
    size_t bytes = (size_t)matrix->rows * (size_t)matrix->cols * sizeof(uint16_t);
    size_t row = (size_t)matrix->cols * sizeof(uint16_t);

    return bytes < TILE_BYTES ? bytes : larger(TILE_BYTES, row);
}

/* A deterministic device's, of a product behind which ranks meet. */
static int slices_of(const struct pd_device *device, const struct pd_op *op)
{
    return device->options.deterministic ? op->slices : 1;
}

/* Tokens whose slices are kept at a time. */
static int sliced_tokens(const struct pd_op *op, int slices)
{
    size_t token = (size_t)slices * (size_t)op->weight->rows * sizeof(float);

    return token < TILE_BYTES ? (int)(TILE_BYTES / token) : 1;
}

static size_t sums_bytes(const struct pd_op *op, int slices, size_t rows)
{
    size_t most = (size_t)sliced_tokens(op, slices);

    return (rows < most ? rows : most) * (size_t)slices * (size_t)op->weight->rows * sizeof(float);
}

static void measure_matmul(const struct pd_device *device, const struct pd_op *op, size_t rows,
                           struct sizes *sizes)
{
    const struct pd_cuda_weight *weight = weight_of(op->weight);
    int slices = slices_of(device, op);

    if (slices > 1)
        sizes->sums = larger(sizes->sums, sums_bytes(op, slices, rows));
    if (op->epilogue == PD_EPILOGUE_SWIGLU)
        sizes->gate_up = larger(sizes->gate_up, rows * (size_t)op->weight->rows * sizeof(float));
    if (rows <= PD_CUDA_SMALL && !device->options.deterministic)
        return;
    sizes->half_x = larger(sizes->half_x, rows * (size_t)op->weight->cols * sizeof(uint16_t));
    for (int i = 0; i < weight->parts; i++)
        sizes->half_weight = larger(sizes->half_weight, matrix_bytes(&weight->part[i]));
}

static bool head_dim_known(int dim)
{
    return dim == 32 || dim == 64 || dim == 96 || dim == 128 || dim == 256;
}

static int measure_attention(struct pd_device *device, const struct pd_op *op, struct sizes *sizes)
{
    const struct pd_attention_shape *shape = &op->shape;
    const struct pd_device_options *options = &device->options;

    if (!head_dim_known(shape->head_dim))
        return pd_device_fail(device, PD_KERNEL_UNSUPPORTED,
                              "attention: heads of %d; the CUDA kernels take 32, 64, 96, 128 and "
                              "256",
                              shape->head_dim);
    if (op->pool.type == PD_F32)
        return PD_KERNEL_OK;
    if (shape->heads / shape->kv_heads > PD_CUDA_GROUP)
        return pd_device_fail(device, PD_KERNEL_UNSUPPORTED,
                              "attention: %d query heads of one KV head; the CUDA kernels take %d",
                              shape->heads / shape->kv_heads, PD_CUDA_GROUP);
    sizes->partial =
        larger(sizes->partial, pd_cuda_attention_partials(options->max_seqs, shape->heads,
                                                          shape->head_dim, options->max_model_len));
    return PD_KERNEL_OK;
}

static int look_at(struct pd_graph *graph, const struct pd_op *op, struct sizes *sizes)
{
    struct pd_device *device = graph->object.device;
    size_t rows = (size_t)(op->rows_are_samples ? graph->max_samples : graph->max_tokens);

    switch (op->kind) {
    case PD_OP_MATMUL:
        if (weight_of(op->weight)->parts == 0)
            return pd_device_fail(device, PD_KERNEL_UNSUPPORTED, "matmul: a weight of one column");
        measure_matmul(device, op, rows, sizes);
        break;
    case PD_OP_ATTENTION:
        return measure_attention(device, op, sizes);
    case PD_OP_SAMPLE:
        sizes->sample_scratch =
            larger(sizes->sample_scratch, rows * 2 * (size_t)op->in.cols * sizeof(uint32_t));
        break;
    default:
        break;
    }
    return PD_KERNEL_OK;
}

static int reserve(struct pd_cuda *cuda, size_t bytes, void *memory)
{
    int error = bytes > 0 ? pd_cuda_allocate(cuda->runtime, bytes, memory) : 0;

    if (error != 0)
        return pd_device_fail(&cuda->device, PD_KERNEL_NO_MEMORY,
                              "no room on the device for %zu bytes of scratch: %s", bytes,
                              pd_cuda_error_text(error));
    return PD_KERNEL_OK;
}

/* The angles' frequencies, on the device. */
static int send_frequencies(struct pd_cuda *cuda, const struct pd_graph *graph,
                            struct pd_cuda_plan *plan)
{
    for (int i = 0; i < graph->count; i++) {
        const struct pd_op *op = &graph->ops[i];
        size_t bytes =
            (size_t)(op->kind == PD_OP_ROPE_ANGLES ? op->rope->dim / 2 : 0) * sizeof(float);
        int status = reserve(cuda, bytes, &plan->frequencies[i]), error;

        if (status != PD_KERNEL_OK)
            return status;
        if (bytes == 0)
            continue;
        error =
            pd_cuda_transfer_in(cuda->in, plan->frequencies[i], op->rope->inverse_frequency, bytes);
        if (error != 0)
            return pd_cuda_fail(cuda, "sending rotary frequencies", error);
    }
    return PD_KERNEL_OK;
}

int pd_cuda_graph_prepare(struct pd_graph *graph)
{
    struct pd_cuda *cuda = pd_cuda_of(graph->object.device);
    struct pd_cuda_plan *plan = calloc(1, sizeof(*plan));
    struct sizes sizes = {0};
    int status = PD_KERNEL_OK, error;

    if (plan != NULL)
        plan->frequencies = calloc((size_t)graph->count + 1, sizeof(*plan->frequencies));
    if (plan == NULL || plan->frequencies == NULL) {
        free(plan);
        return pd_device_fail(&cuda->device, PD_KERNEL_NO_MEMORY, "out of memory");
    }
    graph->plan = plan;
    for (int i = 0; i < graph->count && status == PD_KERNEL_OK; i++)
        status = look_at(graph, &graph->ops[i], &sizes);
    if (status == PD_KERNEL_OK)
        status = reserve(cuda, sizes.gate_up, &plan->gate_up);
    if (status == PD_KERNEL_OK)
        status = reserve(cuda, sizes.half_x, &plan->half_x);
    if (status == PD_KERNEL_OK)
        status = reserve(cuda, sizes.half_weight, &plan->half_weight);
    if (status == PD_KERNEL_OK)
        status = reserve(cuda, sizes.sums, &plan->sums);
    if (status == PD_KERNEL_OK)
        status = reserve(cuda, sizes.sample_scratch, &plan->sample_scratch);
    if (status == PD_KERNEL_OK)
        status = reserve(cuda, sizes.partial, &plan->partial);
    if (status == PD_KERNEL_OK)
        status = send_frequencies(cuda, graph, plan);
    if (status == PD_KERNEL_OK && (error = pd_cuda_transfer_settle(cuda->in)) != 0)
        status = pd_cuda_fail(cuda, "sending weights", error);
    if (status != PD_KERNEL_OK)
        pd_cuda_graph_release(graph);
    return status;
}

void pd_cuda_graph_release(struct pd_graph *graph)
{
    struct pd_cuda_runtime *runtime = pd_cuda_of(graph->object.device)->runtime;
    struct pd_cuda_plan *plan = graph->plan;

    pd_cuda_replay_free(runtime, &plan->replay);
    pd_cuda_free(runtime, plan->gate_up);
    pd_cuda_free(runtime, plan->half_x);
    pd_cuda_free(runtime, plan->half_weight);
    pd_cuda_free(runtime, plan->sums);
    pd_cuda_free(runtime, plan->sample_scratch);
    pd_cuda_free(runtime, plan->partial);
    for (int i = 0; i < graph->count; i++)
        pd_cuda_free(runtime, plan->frequencies[i]);
    free(plan->frequencies);
    free(plan);
    graph->plan = NULL;
}

/* ---- matmul ---------------------------------------------------------------------------------- */

/* What the matrix unit reads: f16 holds all bits of the quantised formats. */
static enum pd_cuda_format half_of(const struct pd_cuda_matrix *matrix)
{
    return matrix->format == PD_CUDA_BF16 ? PD_CUDA_BF16 : PD_CUDA_F16;
}

static int small_part(const struct run *run, const struct pd_cuda_matrix *part, const float *x,
                      const float *bias, int tokens, bool accumulate, int stride, float *out)
{
    int error = 0;

    for (int t = 0; t < tokens && error == 0; t += PD_CUDA_SMALL) {
        int some = tokens - t < PD_CUDA_SMALL ? tokens - t : PD_CUDA_SMALL;

        error = pd_cuda_matmul_small(run->stream, part, x + (size_t)t * (size_t)part->cols, bias,
                                     accumulate, some, run->slices, stride,
                                     out + (size_t)t * (size_t)stride);
    }
    return error;
}

static bool deterministic(const struct run *run)
{
    return run->cuda->device.options.deterministic;
}

static int multiply_fixed(const struct run *run, const struct pd_cuda_product *p, const float *bias)
{
    int error = pd_cuda_matmul_fixed(run->stream, p->bf16, p->weight, p->x, p->rows, p->cols,
                                     p->tokens, run->slices, p->accumulate, p->stride, p->out);

    return error == 0 && bias != NULL
               ? pd_cuda_add_bias(run->stream, bias, p->tokens, p->rows, p->stride, p->out)
               : error;
}

/* The library is quicker, but its order depends on the number of tokens, and a GPU has to have shown
 * it (paths.h). It adds the residual and the bias itself, where it takes them. */
static int multiply(const struct run *run, struct pd_cuda_product *product, const float *bias)
{
    struct pd_cuda *cuda = run->cuda;
    bool fused = !product->accumulate && (uintptr_t)bias % PD_CUDA_BIAS_ALIGNMENT == 0;
    int error = PD_CUDA_NO_ALGORITHM;

    if (cuda->gemms != NULL) {
        product->bias = fused ? bias : NULL;
        error = pd_cuda_gemm_multiply(cuda->gemms, product, cuda->recording);
    }
    if (error == PD_CUDA_NO_ALGORITHM)
        return multiply_fixed(run, product, bias);
    return error == 0 && bias != NULL && !fused
               ? pd_cuda_add_bias(run->stream, bias, product->tokens, product->rows,
                                  product->stride, product->out)
               : error;
}

/* A part that the matrix unit cannot read where it lies is turned a tile of rows at a time. */
static int tiles_of(const struct run *run, const struct pd_cuda_matrix *part,
                    struct pd_cuda_product *product, const float *bias)
{
    size_t fit = TILE_BYTES / ((size_t)part->cols * sizeof(uint16_t));
    int most = fit > (size_t)part->rows ? part->rows : fit > 1 ? (int)fit : 1, error = 0;

    product->weight = run->plan->half_weight;
    for (int first = 0; first < part->rows && error == 0; first += most, product->out += most) {
        product->rows = part->rows - first < most ? part->rows - first : most;
        error = pd_cuda_to_half(run->stream, part, first, product->rows, PD_CUDA_F16,
                                run->plan->half_weight);
        if (error == 0)
            error = multiply(run, product, bias != NULL ? bias + first : NULL);
    }
    return error;
}

static int large_part(const struct run *run, const struct pd_cuda_matrix *part, const float *bias,
                      int tokens, bool accumulate, int stride, float *out)
{
    struct pd_cuda_product product = {
        .weight = part->values,
        .x = run->plan->half_x,
        .out = out,
        .rows = part->rows,
        .cols = part->cols,
        .tokens = tokens,
        .stride = stride,
        .bf16 = part->format == PD_CUDA_BF16,
        .accumulate = accumulate,
    };

    return part->format == half_of(part) ? multiply(run, &product, bias)
                                         : tiles_of(run, part, &product, bias);
}

/* All parts of a weight, side by side, into rows of `stride`. */
static int product(const struct run *run, const struct pd_op *op, const float *x, int tokens,
                   bool accumulate, int stride, float *out)
{
    const struct pd_cuda_weight *weight = weight_of(op->weight);
    const float *bias = vector_of(op->bias);
    struct pd_cuda_matrix activations = {.values = x, .rows = tokens, .cols = op->in.cols};
    enum pd_cuda_format converted = PD_CUDA_F32; /* what half_x holds: nothing yet */
    int error = 0, row = 0;

    for (int i = 0; i < weight->parts && error == 0; row += weight->part[i++].rows) {
        const struct pd_cuda_matrix *part = &weight->part[i];
        const float *own = bias != NULL ? bias + row : NULL;

        if (part->format == PD_CUDA_F32 || (tokens <= PD_CUDA_SMALL && !deterministic(run))) {
            error = small_part(run, part, x, own, tokens, accumulate, stride, out + row);
            continue;
        }
        if (half_of(part) != converted) {
            converted = half_of(part);
            error =
                pd_cuda_to_half(run->stream, &activations, 0, tokens, converted, run->plan->half_x);
        }
        if (error == 0)
            error = large_part(run, part, own, tokens, accumulate, stride, out + row);
    }
    return error;
}

/* The sums that several ranks would have made, on however many: each slice of the columns by itself, then
 * the tree. */
static int sliced_product(const struct run *run, const struct pd_op *op, int slices, int rows)
{
    int most = sliced_tokens(op, slices), cols = op->out.cols, error = 0;
    struct run own = *run;

    for (int first = 0; first < rows && error == 0; first += most) {
        int some = rows - first < most ? rows - first : most;
        size_t count = (size_t)some * (size_t)cols;

        own.slices = (struct pd_cuda_slices){slices, count};
        error =
            product(&own, op, (const float *)address(op->in) + (size_t)first * (size_t)op->in.cols,
                    some, false, cols, run->plan->sums);
        if (error == 0)
            error = pd_cuda_add_slices(run->stream, run->plan->sums, slices, count,
                                       op->epilogue == PD_EPILOGUE_ADD,
                                       (float *)address(op->out) + (size_t)first * (size_t)cols);
    }
    return error;
}

static int run_matmul(const struct run *run, const struct pd_op *op, int rows)
{
    int slices = slices_of(&run->cuda->device, op), error;
    const float *x = address(op->in);
    float *out = address(op->out);

    if (rows == 0)
        return 0;
    if (slices > 1)
        return sliced_product(run, op, slices, rows);
    if (op->epilogue != PD_EPILOGUE_SWIGLU)
        return product(run, op, x, rows, op->epilogue == PD_EPILOGUE_ADD, op->out.cols, out);
    error = product(run, op, x, rows, false, op->weight->rows, run->plan->gate_up);
    return error != 0 ? error
                      : pd_cuda_swiglu(run->stream, run->plan->gate_up, rows, op->out.cols, out);
}

/* ---- attention ------------------------------------------------------------------------------- */

static struct pd_cuda_pool pool_of(const struct pd_op *op)
{
    return (struct pd_cuda_pool){
        .values = op->pool.buffer->address,
        .type = kv_format(op->pool.type),
        .blocks = op->pool.blocks,
        .kv_heads = op->pool.kv_heads,
        .block_size = op->pool.block_size,
        .head_dim = op->pool.head_dim,
    };
}

static int run_rope_store(const struct run *run, const struct pd_op *op, int rows)
{
    struct pd_cuda_rope_store arguments = {
        .pool = pool_of(op),
        .qkv = address(op->in),
        .table = address(op->rope->table),
        .q_norm = vector_of(op->shape.q_norm),
        .k_norm = vector_of(op->shape.k_norm),
        .eps = op->shape.norm_eps,
        .rows = rows,
        .heads = op->shape.heads,
        .layer = op->layer,
        .rope_dim = op->shape.rope_dim,
        .interleaved = op->shape.rope_style == PD_ROPE_INTERLEAVED,
    };

    return pd_cuda_rope_store(run->stream, &run->cuda->step, &arguments);
}

/* Sequences with one row and those with several have kernels of their own, unless both must give the
 * same bits; a step that only decodes has none of the second kind. */
static int run_attention(const struct run *run, const struct pd_op *op, int rows)
{
    const struct pd_cuda_step *step = &run->cuda->step;
    int most = run->cuda->device.options.max_seqs, error;
    struct pd_cuda_attention arguments = {
        .pool = pool_of(op),
        .qkv = address(op->in),
        .out = address(op->out),
        .partial = run->plan->partial,
        .rows = rows,
        .heads = op->shape.heads,
        .layer = op->layer,
        .qkv_stride = op->in.cols,
        .window = op->shape.window,
        .scale = op->shape.scale,
    };

    if (op->pool.type == PD_F32)
        return pd_cuda_attention_rows(run->stream, step, &arguments);
    if (run->cuda->device.options.deterministic)
        error = pd_cuda_attention_chunks(run->stream, step, &arguments, true);
    else
        error = pd_cuda_attention_decode(run->stream, step, &arguments, rows < most ? rows : most);
    if (error == 0 && !run->decoding)
        error = pd_cuda_attention_chunks(run->stream, step, &arguments, false);
    return error;
}

/* ---- sums over ranks ------------------------------------------------------------------------- */

static bool by_nccl(const struct pd_cuda *cuda, size_t values)
{
    return cuda->nccl != NULL && values * sizeof(float) > pd_cuda_one_shot_bytes;
}

bool pd_cuda_graph_uses_nccl(const struct pd_graph *graph, int rows)
{
    const struct pd_cuda *cuda = pd_cuda_of(graph->object.device);

    for (int i = 0; cuda->nccl != NULL && i < graph->count; i++)
        if (graph->ops[i].kind == PD_OP_ALLREDUCE &&
            by_nccl(cuda, (size_t)rows * (size_t)graph->ops[i].out.cols))
            return true;
    return false;
}

/* NCCL adds into the partial sums themselves where there is something to add them to. */
static int run_allreduce(const struct run *run, const struct pd_op *op, int rows)
{
    struct pd_cuda *cuda = run->cuda;
    size_t count = (size_t)rows * (size_t)op->out.cols;
    bool add = op->epilogue == PD_EPILOGUE_ADD;
    float *in = address(op->in), *out = address(op->out);
    int error;

    if (!by_nccl(cuda, count))
        return pd_cuda_allreduce(run->stream, &cuda->meeting, in, count, add, out);
    error = pd_cuda_nccl_allreduce(cuda->nccl, cuda->device.rank, in, add ? in : out, count,
                                   run->stream);
    return error == 0 && add ? pd_cuda_add_slices(run->stream, in, 1, count, true, out) : error;
}

/* ---- what an operator touches ---------------------------------------------------------------- */

enum touch {
    IN = 1 << 0,
    OUT = 1 << 1,
    WEIGHT = 1 << 2,
    BIAS = 1 << 3,
    POOL = 1 << 4,
    ANGLES = 1 << 5,
    NORMS = 1 << 6,    /* of the heads of Q and K */
    PRODUCT = 1 << 7,  /* the scratch of products */
    PARTIAL = 1 << 8,  /* of attention */
    SAMPLING = 1 << 9, /* of sampling */
    FREQUENCIES = 1 << 10,
    MEETING = 1 << 11, /* where ranks meet */
};

/* Beside the step, which all may touch: the shim lets a launch read and write nothing else. */
static const unsigned touched[PD_OP_COUNT] = {
    [PD_OP_EMBED] = WEIGHT | OUT,
    [PD_OP_RMSNORM] = IN | WEIGHT | OUT,
    [PD_OP_MATMUL] = IN | WEIGHT | BIAS | OUT | PRODUCT,
    [PD_OP_ROPE_ANGLES] = FREQUENCIES | ANGLES,
    [PD_OP_ROPE_STORE] = IN | ANGLES | NORMS | POOL,
    [PD_OP_ATTENTION] = IN | POOL | OUT | PARTIAL,
    [PD_OP_GATHER] = IN | OUT,
    [PD_OP_SAMPLE] = IN | SAMPLING,
    [PD_OP_ALLREDUCE] = IN | OUT | MEETING,
    [PD_OP_ALLGATHER] = IN | OUT | MEETING,
};

struct declared {
    const void *address[32];
    int count;
};

static void note(struct declared *declared, bool touches, const void *address)
{
    if (touches && address != NULL)
        declared->address[declared->count++] = address;
}

static void note_weight(struct declared *declared, bool touches, const struct pd_weight *weight)
{
    for (int i = 0; touches && weight != NULL && i < weight_of(weight)->parts; i++)
        note(declared, true, weight_of(weight)->part[i].values);
    note(declared, touches, vector_of(weight));
}

/* Of all ranks: each reads what the others have. */
static void note_meeting(struct declared *declared, const struct pd_cuda_meeting *meeting)
{
    for (int r = 0; r < meeting->ranks; r++) {
        note(declared, true, meeting->values[r]);
        note(declared, true, meeting->flags[r]);
    }
    note(declared, true, meeting->calls);
}

static void declare(const struct run *run, const struct pd_op *op, const float *frequencies)
{
    const struct pd_cuda_plan *plan = run->plan;
    const unsigned what = touched[op->kind];
    struct declared all = {{run->cuda->mirror, run->cuda->step.history, run->cuda->step.last}, 3};

    note(&all, what & IN, what & IN ? address(op->in) : NULL);
    note(&all, what & OUT, what & OUT ? address(op->out) : NULL);
    note_weight(&all, what & WEIGHT, op->weight);
    note_weight(&all, what & BIAS, op->bias);
    note_weight(&all, what & NORMS, op->shape.q_norm);
    note_weight(&all, what & NORMS, op->shape.k_norm);
    note(&all, what & POOL, what & POOL ? op->pool.buffer->address : NULL);
    note(&all, what & ANGLES, what & ANGLES ? address(op->rope->table) : NULL);
    note(&all, what & PRODUCT, plan->gate_up);
    note(&all, what & PRODUCT, plan->half_x);
    note(&all, what & PRODUCT, plan->half_weight);
    note(&all, what & PRODUCT, plan->sums);
    note(&all, what & PARTIAL, plan->partial);
    note(&all, what & SAMPLING, plan->sample_scratch);
    note(&all, what & FREQUENCIES, frequencies);
    if (what & MEETING)
        note_meeting(&all, &run->cuda->meeting);
    pd_cuda_declare(run->cuda->runtime, all.address, all.count);
}

/* ---- one operator ---------------------------------------------------------------------------- */

static int rows_of(const struct run *run, const struct pd_op *op)
{
    return op->rows_are_samples ? run->samples : run->tokens;
}

static int run_op(const struct run *run, const struct pd_op *op, const float *frequencies)
{
    int rows = rows_of(run, op);
    const struct pd_cuda_step *step = &run->cuda->step;

    switch (op->kind) {
    case PD_OP_EMBED:
        return pd_cuda_embed(run->stream, step, &weight_of(op->weight)->part[0], op->first, rows,
                             address(op->out));
    case PD_OP_RMSNORM:
        return pd_cuda_rmsnorm(run->stream, address(op->in), vector_of(op->weight), op->eps, rows,
                               op->in.cols, address(op->out));
    case PD_OP_MATMUL:
        return run_matmul(run, op, rows);
    case PD_OP_ROPE_ANGLES:
        return pd_cuda_rope_angles(run->stream, step, frequencies, op->rope->factor, rows,
                                   op->rope->dim, address(op->rope->table));
    case PD_OP_ROPE_STORE:
        return run_rope_store(run, op, rows);
    case PD_OP_ATTENTION:
        return run_attention(run, op, rows);
    case PD_OP_PUBLISH:
        return pd_cuda_publish(run->stream, step, op->layer, run->cuda->progress);
    case PD_OP_GATHER:
        return pd_cuda_gather(run->stream, step, address(op->in), rows, op->in.cols,
                              address(op->out));
    case PD_OP_SAMPLE:
        return pd_cuda_sample(run->stream, step, address(op->in), run->plan->sample_scratch, rows);
    case PD_OP_READ:
        return pd_cuda_copy(run->cuda->runtime, op->pinned->host, address(op->in),
                            (size_t)rows * (size_t)op->in.cols * sizeof(float));
    case PD_OP_ALLREDUCE:
        return run_allreduce(run, op, rows);
    case PD_OP_ALLGATHER:
        return rows == 0 ? 0
                         : pd_cuda_allgather(run->stream, &run->cuda->meeting, address(op->in),
                                             rows, op->out.cols, address(op->out));
    default:
        return -1;
    }
}

/* What an operator is to people: "matmul of 8 rows, 4096 -> 6144". */
static void fail_text(const struct run *run, const struct pd_op *op, char *text, size_t size)
{
    static const char *const names[PD_OP_COUNT] = {
        [PD_OP_EMBED] = "embed",           [PD_OP_RMSNORM] = "rmsnorm",
        [PD_OP_MATMUL] = "matmul",         [PD_OP_ROPE_ANGLES] = "rope_angles",
        [PD_OP_ROPE_STORE] = "rope_store", [PD_OP_ATTENTION] = "attention",
        [PD_OP_PUBLISH] = "publish",       [PD_OP_GATHER] = "gather",
        [PD_OP_SAMPLE] = "sample",         [PD_OP_READ] = "read",
        [PD_OP_ALLREDUCE] = "allreduce",   [PD_OP_ALLGATHER] = "allgather",
    };

    snprintf(text, size, "%s of %d rows, %d -> %d columns, layer %d", names[op->kind],
             rows_of(run, op), op->in.cols, op->out.cols, op->layer);
}

int pd_cuda_graph_run(struct pd_graph *graph, int tokens, int samples, bool decoding)
{
    struct pd_cuda *cuda = pd_cuda_of(graph->object.device);
    const struct pd_cuda_plan *plan = graph->plan;
    struct run run = {cuda, plan, tokens, samples, decoding, pd_cuda_stream(cuda->runtime), {1, 0}};

    for (int i = 0; i < graph->count; i++) {
        char what[128];
        int error;

        declare(&run, &graph->ops[i], plan->frequencies[i]);
        error = run_op(&run, &graph->ops[i], plan->frequencies[i]);

        if (error == 0)
            continue;
        fail_text(&run, &graph->ops[i], what, sizeof(what));
        return pd_cuda_fail(cuda, what, error);
    }
    return PD_KERNEL_OK;
}

struct pd_cuda_replay *pd_cuda_graph_replay(struct pd_graph *graph)
{
    return &((struct pd_cuda_plan *)graph->plan)->replay;
}
