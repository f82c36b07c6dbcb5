#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "t/unit/kernel_model.h"

enum { PART_MOST = 400 }; /* tokens of a step */

static struct pd_attention_shape attention_shape(const struct pd_small_model *model,
                                                 const float *frequency)
{
    const struct pd_small_shape *shape = &model->shape;

    return (struct pd_attention_shape){
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .rope_dim = shape->rope_dim,
        .rope_style = shape->style,
        .inverse_frequency = frequency,
        .attention_factor = 1,
        .scale = 1 / sqrtf((float)shape->head_dim),
        .window = shape->window,
        .norm_eps = 1e-6f,
    };
}

/* Near 1, as trained ones are. */
static struct pd_weight *norm_weight(struct pd_rig *rig, int cols, int seed)
{
    float values[256];
    struct pd_weight_source source = {values, PD_F32, 1};
    struct pd_weight *weight;

    pd_rig_fill(values, (size_t)cols, 0.2f, (uint64_t)seed);
    for (int i = 0; i < cols; i++)
        values[i] += 1;
    assert_int_equal(
        pd_weight_create(rig->device, PD_WEIGHT_ROWS, cols, &source, 1, false, &weight),
        PD_KERNEL_OK);
    return weight;
}

static void record_layer(struct pd_small_model *model, int layer, struct pd_tensor x,
                         const struct pd_attention_shape *given)
{
    struct pd_rig *rig = &model->rig;
    struct pd_attention_shape shape = *given;
    enum pd_dtype type = model->shape.weight_type;
    int hidden = PD_MODEL_HIDDEN, tokens = rig->options.max_tokens, seed = 1000 * (layer + 1);
    int columns = shape.heads * shape.head_dim;
    struct pd_tensor normed = pd_rig_tensor(rig, tokens, hidden);
    struct pd_tensor qkv =
        pd_rig_tensor(rig, tokens, (shape.heads + 2 * shape.kv_heads) * shape.head_dim);
    struct pd_tensor attended = pd_rig_tensor(rig, tokens, columns),
                     gated = pd_rig_tensor(rig, tokens, 128);
    struct pd_weight_source pair[2] = {
        {pd_rig_matrix(type, 128, hidden, (uint64_t)seed + 1), type, 128},
        {pd_rig_matrix(type, 128, hidden, (uint64_t)seed + 2), type, 128}};
    struct pd_weight *gate_up;

    assert_int_equal(
        pd_weight_create(rig->device, PD_WEIGHT_GATE_UP, hidden, pair, 2, false, &gate_up),
        PD_KERNEL_OK);
    free((void *)pair[0].data);
    free((void *)pair[1].data);
    if (model->shape.qk_norm) {
        shape.q_norm = norm_weight(rig, shape.head_dim, seed + 3);
        shape.k_norm = norm_weight(rig, shape.head_dim, seed + 4);
    }
    pd_op_rmsnorm(model->graph, x, norm_weight(rig, hidden, seed + 5), 1e-5f, false, normed);
    /* f32: columns of attention need not be a multiple of 32 */
    pd_op_matmul(model->graph,
                 pd_rig_weight(rig, PD_F32, qkv.cols, hidden, false, (uint64_t)seed + 6), normed,
                 pd_rig_weight(rig, PD_F32, 1, qkv.cols, false, (uint64_t)seed + 7),
                 PD_EPILOGUE_NONE, false, qkv);
    pd_op_rope_store(model->graph, qkv, &shape, &model->pool, layer);
    pd_op_publish(model->graph, layer + 1);
    pd_op_attention(model->graph, qkv, &shape, &model->pool, layer, attended);
    pd_op_matmul(model->graph,
                 pd_rig_weight(rig, PD_F32, hidden, columns, false, (uint64_t)seed + 8), attended,
                 NULL, PD_EPILOGUE_ADD, false, x);
    pd_op_rmsnorm(model->graph, x, norm_weight(rig, hidden, seed + 9), 1e-5f, false, normed);
    pd_op_matmul(model->graph, gate_up, normed, NULL, PD_EPILOGUE_SWIGLU, false, gated);
    pd_op_matmul(model->graph, pd_rig_weight(rig, type, hidden, 128, false, (uint64_t)seed + 10),
                 gated, NULL, PD_EPILOGUE_ADD, false, x);
}

/* The rows that are sampled, times a matrix, into tokens. */
static void record_samples(struct pd_small_model *model, struct pd_tensor x)
{
    struct pd_rig *rig = &model->rig;
    int seqs = rig->options.max_seqs, vocabulary = rig->options.vocabulary;
    struct pd_tensor rows = pd_rig_tensor(rig, seqs, PD_MODEL_HIDDEN);
    struct pd_tensor logits = pd_rig_tensor(rig, seqs, vocabulary);

    pd_op_gather(model->graph, x, rows);
    pd_op_matmul(model->graph, pd_rig_weight(rig, PD_F32, vocabulary, PD_MODEL_HIDDEN, false, 78),
                 rows, NULL, PD_EPILOGUE_NONE, true, logits);
    pd_op_sample(model->graph, logits);
}

static void open_small(struct pd_small_model *model, const struct pd_small_shape *given,
                       struct pd_device_options options, bool samples)
{
    float frequency[256];
    struct pd_attention_shape shape;
    struct pd_tensor x;

    model->shape = *given;
    options.block_size = given->block_size;
    options.precision = given->precision;
    pd_rig_open(&model->rig, &options);
    model->pool = (struct pd_kv_pool){.layers = PD_MODEL_LAYERS,
                                      .kv_heads = given->kv_heads,
                                      .block_size = given->block_size,
                                      .head_dim = given->head_dim,
                                      .type = given->kv_type};
    model->pool.blocks = options.max_seqs * (options.max_model_len / given->block_size + 1);
    assert_int_equal(pd_buffer_create(model->rig.device, PD_BUFFER_KV,
                                      pd_kv_pool_bytes(&model->pool), &model->pool.buffer),
                     PD_KERNEL_OK);
    for (int i = 0; i < given->rope_dim / 2; i++)
        frequency[i] = powf(10000, -2.0f * (float)i / (float)given->rope_dim);
    shape = attention_shape(model, frequency);
    x = pd_rig_tensor(&model->rig, options.max_tokens, PD_MODEL_HIDDEN);
    model->hidden =
        pd_rig_pinned(&model->rig, sizeof(float) * (size_t)(options.max_tokens * PD_MODEL_HIDDEN));
    model->graph = pd_rig_begin(&model->rig);
    pd_op_embed(model->graph,
                pd_rig_weight(&model->rig, PD_F32, options.vocabulary, PD_MODEL_HIDDEN, true, 77),
                x);
    for (int layer = 0; layer < PD_MODEL_LAYERS; layer++)
        record_layer(model, layer, x, &shape);
    pd_op_read(model->graph, x, false, model->hidden);
    if (samples)
        record_samples(model, x);
    pd_rig_end(model->graph);
}

void pd_small_open(struct pd_small_model *model, const struct pd_small_shape *shape,
                   const char *kind, const char *isa, int threads)
{
    struct pd_device_options options = pd_rig_options(kind, isa, threads);

    options.max_tokens =
        PART_MOST; /* of several threads, too, each goes through with its own rows */
    open_small(model, shape, options, false);
}

void pd_small_open_enabled(struct pd_small_model *model, const struct pd_small_shape *shape,
                           const char *enable, bool eager)
{
    struct pd_device_options options = pd_rig_options("cuda", NULL, 1);

    options.cuda_enable = enable;
    options.eager = eager;
    open_small(model, shape, options, true);
}

void pd_small_open_answers(struct pd_small_model *model, const struct pd_small_shape *shape,
                           bool eager)
{
    pd_small_open_enabled(model, shape, "all", eager);
}

void pd_small_close(struct pd_small_model *model)
{
    pd_rig_close(&model->rig);
}

static int32_t token_of(int sequence, int position)
{
    return (int32_t)((sequence * 7919 + position * 104729 + position * position) % 300);
}

/* A step of these parts, not launched. */
static struct pd_step *fill_step(struct pd_small_model *model, const struct pd_small_part *parts,
                                 int count)
{
    struct pd_rig *rig = &model->rig;
    int per_sequence = rig->options.max_model_len / rig->options.block_size + 1;
    struct pd_step *step;

    assert_int_equal(pd_step_acquire(rig->device, &step), PD_KERNEL_OK);
    for (int p = 0; p < count; p++) {
        int32_t tokens[PART_MOST];

        for (int i = 0; i < parts[p].count; i++)
            tokens[i] = token_of(parts[p].sequence, parts[p].from + i);
        pd_rig_add(rig, step, parts[p].sequence, tokens, parts[p].count, parts[p].from,
                   parts[p].sequence * per_sequence);
    }
    return step;
}

void pd_small_step(struct pd_small_model *model, const struct pd_small_part *parts, int count,
                   float *out, int positions)
{
    const float *hidden = pd_buffer_host(model->hidden);

    pd_rig_run(&model->rig, model->graph, fill_step(model, parts, count));
    for (int p = 0; p < count; p++) {
        size_t row = (size_t)(parts[p].sequence * positions + parts[p].from);

        memcpy(out + row * PD_MODEL_HIDDEN, hidden,
               sizeof(float) * (size_t)(parts[p].count * PD_MODEL_HIDDEN));
        hidden += parts[p].count * PD_MODEL_HIDDEN;
    }
}

int pd_small_leave(struct pd_small_model *model, const struct pd_small_part *parts, int count)
{
    struct pd_device *device = model->rig.device;
    struct pd_step *step = fill_step(model, parts, count);
    int status;

    assert_int_equal(pd_graph_launch(model->graph, step), PD_KERNEL_OK);
    while (pd_device_progress(device) < (step->number << 16 | 1))
        continue;
    assert_true(pd_step_cut(device, step->number));
    status = pd_step_wait(device, step->number, 60000);
    if (status == PD_KERNEL_OK)
        return PD_MODEL_LAYERS + 1;
    assert_int_equal(status, PD_KERNEL_CUT);
    return (int)(pd_device_progress(device) & 0xffff);
}
