/* Recording: each pd_op_ call checks its shapes and appends one pd_op.
 *
 * The first error sticks: later operators of the graph record nothing, and pd_graph_end returns it,
 * so that a caller may record a whole model and look once. Rotary angles depend on the step's
 * positions only, so the first pd_op_rope_store of a configuration also records the operator that
 * computes them for the whole step.
 *
 * What a rank of a group computes for all is recorded as two: a product (or the embedding) into a tensor
 * of the graph's own, and the operator in which the ranks meet. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"

enum { LIMIT_OPS = 1 << 20, LIMIT_HEAD_DIM = 512, LIMIT_HEADS = 4096, SLICE_UNIT = 32 };

static int refuse(struct pd_graph *graph, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int refuse(struct pd_graph *graph, int status, const char *format, ...)
{
    char text[PD_DEVICE_ERROR];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    graph->status = status;
    return pd_device_fail(graph->object.device, status, "%s", text);
}

#define INVALID(...) refuse(graph, PD_KERNEL_INVALID, __VA_ARGS__)

/* ---- life ------------------------------------------------------------------------------------ */

static void release_graph(struct pd_object *object)
{
    struct pd_graph *graph = (struct pd_graph *)object;

    object->device->backend->drain(object->device);
    if (graph->ended && graph->status == PD_KERNEL_OK)
        object->device->backend->graph_release(graph);
    while (graph->ropes != NULL) {
        struct pd_rope *rope = graph->ropes;
        graph->ropes = rope->next;
        pd_buffer_unmake(rope->table.buffer);
        free(rope);
    }
    if (graph->partial != NULL)
        pd_buffer_unmake(graph->partial);
    free(graph->ops);
    free(graph);
}

int pd_graph_begin(struct pd_device *device, struct pd_graph **out)
{
    struct pd_graph *graph = calloc(1, sizeof(*graph));

    *out = graph;
    if (graph == NULL)
        return pd_device_fail(device, PD_KERNEL_NO_MEMORY, "out of memory");
    graph->max_tokens = device->options.max_tokens;
    graph->max_samples = device->options.max_seqs;
    graph->kv_slots = INT64_MAX;
    pd_object_attach(device, &graph->object, release_graph);
    return PD_KERNEL_OK;
}

static int make_partial(struct pd_graph *graph);

int pd_graph_end(struct pd_graph *graph)
{
    if (graph->ended)
        return INVALID("a graph was ended twice");
    if (graph->status == PD_KERNEL_OK)
        graph->status = make_partial(graph);
    if (graph->status == PD_KERNEL_OK)
        graph->status = graph->object.device->backend->graph_prepare(graph);
    graph->ended = true;
    return graph->status;
}

void pd_graph_destroy(struct pd_graph *graph)
{
    if (graph != NULL)
        pd_object_destroy(&graph->object);
}

static int append(struct pd_graph *graph, const struct pd_op *op)
{
    if (graph->ended)
        return INVALID("an operator was recorded after pd_graph_end");
    if (graph->count == graph->capacity) {
        int capacity = graph->capacity ? graph->capacity * 2 : 256;
        struct pd_op *ops = NULL;

        if (capacity <= LIMIT_OPS)
            ops = realloc(graph->ops, (size_t)capacity * sizeof(*ops));
        if (ops == NULL)
            return refuse(graph, PD_KERNEL_NO_MEMORY, "no memory for %d operators", capacity);
        graph->ops = ops;
        graph->capacity = capacity;
    }
    graph->ops[graph->count++] = *op;
    return PD_KERNEL_OK;
}

/* ---- shape checks ---------------------------------------------------------------------------- */

static size_t tensor_bytes(struct pd_tensor tensor)
{
    return (size_t)tensor.rows * (size_t)tensor.cols * sizeof(float);
}

/* Also lowers the graph's capacity to the tensor's rows. */
static int check_tensor(struct pd_graph *graph, const char *op, struct pd_tensor tensor, int cols,
                        bool rows_are_samples)
{
    int *limit = rows_are_samples ? &graph->max_samples : &graph->max_tokens;

    if (tensor.buffer == NULL || tensor.rows < 1 || tensor.cols < 1 ||
        tensor.buffer->kind != PD_BUFFER_ACTIVATION)
        return INVALID("%s: a tensor of %d x %d without an activation buffer", op, tensor.rows,
                       tensor.cols);
    if (tensor.cols != cols)
        return INVALID("%s: a tensor has %d columns, not %d", op, tensor.cols, cols);
    if (tensor.offset % sizeof(float) != 0 || tensor.offset > tensor.buffer->bytes ||
        tensor_bytes(tensor) > tensor.buffer->bytes - tensor.offset)
        return INVALID("%s: a tensor of %d x %d at %zu leaves its buffer of %zu bytes", op,
                       tensor.rows, tensor.cols, tensor.offset, tensor.buffer->bytes);
    if (tensor.rows < *limit)
        *limit = tensor.rows;
    return PD_KERNEL_OK;
}

static int check_apart(struct pd_graph *graph, const char *op, struct pd_tensor a,
                       struct pd_tensor b)
{
    if (a.buffer == b.buffer && a.offset < b.offset + tensor_bytes(b) &&
        b.offset < a.offset + tensor_bytes(a))
        return INVALID("%s: input and output overlap", op);
    return PD_KERNEL_OK;
}

static int check_pair(struct pd_graph *graph, const char *op, struct pd_tensor in, int in_cols,
                      struct pd_tensor out, int out_cols, bool rows_are_samples)
{
    int status = check_tensor(graph, op, in, in_cols, rows_are_samples);

    if (status == PD_KERNEL_OK)
        status = check_tensor(graph, op, out, out_cols, rows_are_samples);
    return status == PD_KERNEL_OK ? check_apart(graph, op, in, out) : status;
}

static bool vector_of(const struct pd_weight *weight, int count)
{
    return (weight->rows == 1 && weight->cols == count) ||
           (weight->cols == 1 && weight->rows == count);
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* What a rank computes for all ranks goes through this tensor, one operator at a time. Its buffer is made
 * when the graph is ended, as large as the largest. */
static struct pd_tensor partial_of(struct pd_graph *graph, int rows, int cols)
{
    struct pd_tensor tensor = {.rows = rows, .cols = cols};

    if (tensor_bytes(tensor) > graph->partial_bytes)
        graph->partial_bytes = tensor_bytes(tensor);
    return tensor;
}

static int append_collective(struct pd_graph *graph, enum pd_op_kind kind,
                             enum pd_epilogue epilogue, struct pd_tensor partial,
                             bool rows_are_samples, struct pd_tensor out)
{
    struct pd_op op = {.kind = kind,
                       .in = partial,
                       .out = out,
                       .epilogue = epilogue,
                       .rows_are_samples = rows_are_samples};

    return append(graph, &op);
}

/* Gives the operators that name the partial tensor its buffer. */
static int make_partial(struct pd_graph *graph)
{
    int status;

    if (graph->partial_bytes == 0)
        return PD_KERNEL_OK;
    status = pd_buffer_make(graph->object.device, PD_BUFFER_ACTIVATION, graph->partial_bytes,
                            &graph->partial);
    for (int i = 0; status == PD_KERNEL_OK && i < graph->count; i++) {
        struct pd_op *op = &graph->ops[i];

        if (op->in.buffer == NULL && (op->kind == PD_OP_ALLREDUCE || op->kind == PD_OP_ALLGATHER))
            op->in.buffer = graph->partial;
        if (op->out.buffer == NULL && (op->kind == PD_OP_EMBED || op->kind == PD_OP_MATMUL))
            op->out.buffer = graph->partial;
    }
    return status;
}

/* ---- operators ------------------------------------------------------------------------------- */

/* Rows of `count` that are this rank's. */
static int own_share(const struct pd_device *device, int count)
{
    int ranks = pd_ranks_of(device);

    return pd_share_first(count, device->rank + 1, ranks) -
           pd_share_first(count, device->rank, ranks);
}

int pd_op_embed(struct pd_graph *graph, const struct pd_weight *weight, struct pd_tensor out)
{
    const struct pd_device *device = graph->object.device;
    int vocabulary = device->options.vocabulary;
    struct pd_op op = {.kind = PD_OP_EMBED,
                       .weight = weight,
                       .out = out,
                       .first = pd_share_first(vocabulary, device->rank, pd_ranks_of(device))};

    if (graph->status != PD_KERNEL_OK)
        return graph->status;
    if (!weight->embedding || weight->rows < own_share(device, vocabulary))
        return INVALID("embed: a weight of %d rows for a vocabulary of %d, %s for embedding",
                       weight->rows, own_share(device, vocabulary),
                       weight->embedding ? "made" : "not made");
    if (check_tensor(graph, "embed", out, weight->cols, false) != PD_KERNEL_OK)
        return graph->status;
    if (device->group == NULL)
        return append(graph, &op);
    op.out = partial_of(graph, out.rows, out.cols);
    append(graph, &op);
    return append_collective(graph, PD_OP_ALLREDUCE, PD_EPILOGUE_NONE, op.out, false, out);
}

int pd_op_rmsnorm(struct pd_graph *graph, struct pd_tensor x, const struct pd_weight *weight,
                  float eps, bool rows_are_samples, struct pd_tensor out)
{
    struct pd_op op = {.kind = PD_OP_RMSNORM,
                       .in = x,
                       .out = out,
                       .weight = weight,
                       .eps = eps,
                       .rows_are_samples = rows_are_samples};

    if (graph->status != PD_KERNEL_OK)
        return graph->status;
    if (!vector_of(weight, x.cols))
        return INVALID("rmsnorm: a weight of %d x %d for %d columns", weight->rows, weight->cols,
                       x.cols);
    if (check_pair(graph, "rmsnorm", x, x.cols, out, x.cols, rows_are_samples) != PD_KERNEL_OK)
        return graph->status;
    return append(graph, &op);
}

int pd_op_matmul(struct pd_graph *graph, const struct pd_weight *weight, struct pd_tensor x,
                 const struct pd_weight *bias, enum pd_epilogue epilogue, bool rows_are_samples,
                 struct pd_tensor out)
{
    struct pd_op op = {.kind = PD_OP_MATMUL,
                       .in = x,
                       .out = out,
                       .weight = weight,
                       .bias = bias,
                       .epilogue = epilogue,
                       .slices = 1,
                       .rows_are_samples = rows_are_samples};
    bool swiglu = epilogue == PD_EPILOGUE_SWIGLU;

    if (graph->status != PD_KERNEL_OK)
        return graph->status;
    if (swiglu != (weight->layout == PD_WEIGHT_GATE_UP))
        return INVALID("matmul: the gate/up layout and the SwiGLU epilogue go together");
    if (weight->rows < 2)
        return INVALID("matmul: a weight of one row is a vector");
    if (bias != NULL && !vector_of(bias, weight->rows))
        return INVALID("matmul: a bias of %d x %d for %d rows", bias->rows, bias->cols,
                       weight->rows);
    if (check_pair(graph, "matmul", x, weight->cols, out, swiglu ? weight->rows / 2 : weight->rows,
                   rows_are_samples) != PD_KERNEL_OK)
        return graph->status;
    return append(graph, &op);
}

int pd_op_matmul_reduce(struct pd_graph *graph, const struct pd_weight *weight, struct pd_tensor x,
                        int slices, struct pd_tensor out)
{
    const struct pd_device *device = graph->object.device;
    int ranks = pd_ranks_of(device);
    struct pd_op op = {.kind = PD_OP_MATMUL,
                       .in = x,
                       .out = out,
                       .weight = weight,
                       .slices = slices % ranks == 0 ? slices / ranks : 1,
                       .epilogue = PD_EPILOGUE_ADD};

    if (graph->status != PD_KERNEL_OK)
        return graph->status;
    if (slices < 1 || slices > PD_SLICES_MAX || (slices & (slices - 1)) != 0 ||
        (op.slices > 1 && weight->cols % (SLICE_UNIT * op.slices) != 0))
        return INVALID("matmul_reduce: %d columns on each of %d ranks, in %d slices", weight->cols,
                       ranks, slices);
    if (weight->layout != PD_WEIGHT_ROWS || weight->rows < 2)
        return INVALID("matmul_reduce: a weight of gate and up, or of one row");
    if (check_pair(graph, "matmul_reduce", x, weight->cols, out, weight->rows, false) !=
        PD_KERNEL_OK)
        return graph->status;
    if (device->group == NULL)
        return append(graph, &op);
    op.out = partial_of(graph, out.rows, out.cols);
    op.epilogue = PD_EPILOGUE_NONE;
    append(graph, &op);
    return append_collective(graph, PD_OP_ALLREDUCE, PD_EPILOGUE_ADD, op.out, false, out);
}

int pd_op_matmul_gather(struct pd_graph *graph, const struct pd_weight *weight, struct pd_tensor x,
                        bool rows_are_samples, struct pd_tensor out)
{
    const struct pd_device *device = graph->object.device;
    struct pd_op op = {.kind = PD_OP_MATMUL,
                       .in = x,
                       .weight = weight,
                       .slices = 1,
                       .rows_are_samples = rows_are_samples};

    if (device->group == NULL)
        return pd_op_matmul(graph, weight, x, NULL, PD_EPILOGUE_NONE, rows_are_samples, out);
    if (graph->status != PD_KERNEL_OK)
        return graph->status;
    if (weight->layout != PD_WEIGHT_ROWS || weight->rows < 2 ||
        weight->rows != own_share(device, out.cols))
        return INVALID("matmul_gather: a weight of %d rows for a share of %d", weight->rows,
                       own_share(device, out.cols));
    if (check_pair(graph, "matmul_gather", x, weight->cols, out, out.cols, rows_are_samples) !=
        PD_KERNEL_OK)
        return graph->status;
    op.out = partial_of(graph, out.rows, weight->rows);
    append(graph, &op);
    return append_collective(graph, PD_OP_ALLGATHER, PD_EPILOGUE_NONE, op.out, rows_are_samples,
                             out);
}

static int check_attention(struct pd_graph *graph, const char *op, struct pd_tensor qkv,
                           const struct pd_attention_shape *shape, const struct pd_kv_pool *pool,
                           int layer)
{
    int block_size = graph->object.device->options.block_size;

    if (shape->heads < 1 || shape->heads > LIMIT_HEADS || shape->kv_heads < 1 ||
        shape->heads % shape->kv_heads != 0 || shape->head_dim < 2 ||
        shape->head_dim > LIMIT_HEAD_DIM || shape->window < 0 || !isfinite(shape->scale))
        return INVALID("%s: %d heads, %d KV heads of %d, window %d", op, shape->heads,
                       shape->kv_heads, shape->head_dim, shape->window);
    if (pool->buffer == NULL || pool->buffer->kind != PD_BUFFER_KV ||
        pool->kv_heads != shape->kv_heads || pool->head_dim != shape->head_dim ||
        pool->block_size != block_size || layer < 0 || layer >= pool->layers ||
        pool->blocks > INT32_MAX / block_size ||
        (pool->type != PD_F32 && pool->type != PD_F16 && pool->type != PD_BF16))
        return INVALID("%s: layer %d of a pool of %d layers, %d heads of %d, blocks of %d, type %s",
                       op, layer, pool->layers, pool->kv_heads, pool->head_dim, pool->block_size,
                       pd_dtype_name(pool->type));
    if (pd_kv_pool_bytes(pool) > pool->buffer->bytes)
        return INVALID("%s: the pool needs %zu bytes, its buffer has %zu", op,
                       pd_kv_pool_bytes(pool), pool->buffer->bytes);
    if (pool->blocks * block_size < graph->kv_slots)
        graph->kv_slots = pool->blocks * block_size;
    return check_tensor(graph, op, qkv, (shape->heads + 2 * shape->kv_heads) * shape->head_dim,
                        false);
}

/* The graph's angles for this configuration; records their operator if they are new. */
static const struct pd_rope *find_rope(struct pd_graph *graph,
                                       const struct pd_attention_shape *shape)
{
    struct pd_op op = {.kind = PD_OP_ROPE_ANGLES};
    size_t bytes = (size_t)shape->rope_dim / 2 * sizeof(float);
    struct pd_rope *rope;

    for (rope = graph->ropes; rope != NULL; rope = rope->next) {
        if (rope->dim == shape->rope_dim && rope->factor == shape->attention_factor &&
            memcmp(rope->inverse_frequency, shape->inverse_frequency, bytes) == 0)
            return rope;
    }
    rope = calloc(1, sizeof(*rope) + bytes);
    if (rope == NULL) {
        refuse(graph, PD_KERNEL_NO_MEMORY, "out of memory");
        return NULL;
    }
    rope->dim = shape->rope_dim;
    rope->factor = shape->attention_factor;
    memcpy(rope->inverse_frequency, shape->inverse_frequency, bytes);
    rope->table.rows = graph->object.device->options.max_tokens;
    rope->table.cols = rope->dim;
    graph->status = pd_buffer_make(graph->object.device, PD_BUFFER_ACTIVATION,
                                   tensor_bytes(rope->table), &rope->table.buffer);
    if (graph->status != PD_KERNEL_OK) {
        free(rope);
        return NULL;
    }
    rope->next = graph->ropes;
    graph->ropes = rope;
    op.rope = rope;
    op.out = rope->table;
    return append(graph, &op) == PD_KERNEL_OK ? rope : NULL;
}

int pd_op_rope_store(struct pd_graph *graph, struct pd_tensor qkv,
                     const struct pd_attention_shape *shape, const struct pd_kv_pool *pool,
                     int layer)
{
    struct pd_op op = {
        .kind = PD_OP_ROPE_STORE, .in = qkv, .shape = *shape, .pool = *pool, .layer = layer};

    if (graph->status != PD_KERNEL_OK)
        return graph->status;
    if (check_attention(graph, "rope_store", qkv, shape, pool, layer) != PD_KERNEL_OK)
        return graph->status;
    if (shape->rope_dim < 2 || shape->rope_dim % 2 != 0 || shape->rope_dim > shape->head_dim ||
        shape->inverse_frequency == NULL)
        return INVALID("rope_store: %d rotated dimensions of %d", shape->rope_dim, shape->head_dim);
    if ((shape->q_norm != NULL && !vector_of(shape->q_norm, shape->head_dim)) ||
        (shape->k_norm != NULL && !vector_of(shape->k_norm, shape->head_dim)))
        return INVALID("rope_store: q_norm and k_norm are one row of %d each", shape->head_dim);
    op.rope = find_rope(graph, shape);
    if (op.rope == NULL)
        return graph->status;
    op.shape.inverse_frequency = op.rope->inverse_frequency;
    return append(graph, &op);
}

int pd_op_attention(struct pd_graph *graph, struct pd_tensor qkv,
                    const struct pd_attention_shape *shape, const struct pd_kv_pool *pool,
                    int layer, struct pd_tensor out)
{
    struct pd_op op = {.kind = PD_OP_ATTENTION,
                       .in = qkv,
                       .out = out,
                       .shape = *shape,
                       .pool = *pool,
                       .layer = layer};

    if (graph->status != PD_KERNEL_OK)
        return graph->status;
    if (check_attention(graph, "attention", qkv, shape, pool, layer) != PD_KERNEL_OK ||
        check_tensor(graph, "attention", out, shape->heads * shape->head_dim, false) !=
            PD_KERNEL_OK ||
        check_apart(graph, "attention", qkv, out) != PD_KERNEL_OK)
        return graph->status;
    op.shape.inverse_frequency = NULL;
    return append(graph, &op);
}

int pd_op_publish(struct pd_graph *graph, int layers)
{
    struct pd_op op = {.kind = PD_OP_PUBLISH, .layer = layers};

    if (graph->status != PD_KERNEL_OK)
        return graph->status;
    if (layers < 0 || layers > UINT16_MAX)
        return INVALID("publish: %d layers", layers);
    return append(graph, &op);
}

int pd_op_gather(struct pd_graph *graph, struct pd_tensor x, struct pd_tensor out)
{
    struct pd_op op = {.kind = PD_OP_GATHER, .in = x, .out = out, .rows_are_samples = true};

    if (graph->status != PD_KERNEL_OK)
        return graph->status;
    if (check_tensor(graph, "gather", x, x.cols, false) != PD_KERNEL_OK ||
        check_tensor(graph, "gather", out, x.cols, true) != PD_KERNEL_OK ||
        check_apart(graph, "gather", x, out) != PD_KERNEL_OK)
        return graph->status;
    return append(graph, &op);
}

int pd_op_sample(struct pd_graph *graph, struct pd_tensor logits)
{
    struct pd_op op = {.kind = PD_OP_SAMPLE, .in = logits, .rows_are_samples = true};

    if (graph->status != PD_KERNEL_OK)
        return graph->status;
    if (check_tensor(graph, "sample", logits, graph->object.device->options.vocabulary, true) !=
        PD_KERNEL_OK)
        return graph->status;
    return append(graph, &op);
}

int pd_op_read(struct pd_graph *graph, struct pd_tensor x, bool rows_are_samples,
               struct pd_buffer *pinned)
{
    struct pd_op op = {
        .kind = PD_OP_READ, .in = x, .rows_are_samples = rows_are_samples, .pinned = pinned};

    if (graph->status != PD_KERNEL_OK)
        return graph->status;
    if (pinned == NULL || pinned->kind != PD_BUFFER_PINNED || pinned->bytes < tensor_bytes(x))
        return INVALID("read: the pinned buffer is missing or too small for %d x %d", x.rows,
                       x.cols);
    if (check_tensor(graph, "read", x, x.cols, rows_are_samples) != PD_KERNEL_OK)
        return graph->status;
    return append(graph, &op);
}
