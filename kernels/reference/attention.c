/* Rotary positions, the KV store, and attention as the textbook has it. */
#include <math.h>
#include <stdlib.h>

#include "kernels/dtype.h"
#include "kernels/reference/reference.h"

static float kv_load(const struct pd_kv_pool *pool, int64_t index)
{
    const void *memory = pool->buffer->host;

    switch (pool->type) {
    case PD_F16:
        return pd_float_of_f16(((const uint16_t *)memory)[index]);
    case PD_BF16:
        return pd_float_of_bf16(((const uint16_t *)memory)[index]);
    default:
        return ((const float *)memory)[index];
    }
}

static void kv_store(const struct pd_kv_pool *pool, int64_t index, float value)
{
    void *memory = pool->buffer->host;

    switch (pool->type) {
    case PD_F16:
        ((uint16_t *)memory)[index] = pd_f16_of_float(value);
        break;
    case PD_BF16:
        ((uint16_t *)memory)[index] = pd_bf16_of_float(value);
        break;
    default:
        ((float *)memory)[index] = value;
    }
}

/* The angle is a float product, as the models' own code computes it; its cosine is exact. */
void pd_reference_rope_angles(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    const struct pd_rope *rope = op->rope;
    int half = rope->dim / 2;

    for (int t = 0; t < run->step->tokens && thread == 0; t++) {
        float *row = pd_host_floats(rope->table) + (size_t)t * (size_t)rope->dim;

        for (int i = 0; i < half; i++) {
            float angle = (float)run->step->position[t] * rope->inverse_frequency[i];
            row[i] = (float)(cos(angle) * rope->factor);
            row[half + i] = (float)(sin(angle) * rope->factor);
        }
    }
}

static void normalize_head(float *head, const struct pd_weight *norm, int dim, double eps)
{
    const float *weight = pd_reference_row(norm, 0);
    double squares = 0, scale;

    for (int i = 0; i < dim; i++)
        squares += (double)head[i] * head[i];
    scale = 1 / sqrt(squares / dim + eps);
    for (int i = 0; i < dim; i++)
        head[i] = (float)(head[i] * scale * weight[i]);
}

static void rotate(float *head, const float *angles, int dim, enum pd_rope_style style)
{
    int half = dim / 2;

    for (int i = 0; i < half; i++) {
        float *a = style == PD_ROPE_HALF ? head + i : head + 2 * i;
        float *b = style == PD_ROPE_HALF ? head + half + i : head + 2 * i + 1;
        double x = *a, y = *b, cosine = angles[i], sine = angles[half + i];

        *a = (float)(x * cosine - y * sine);
        *b = (float)(y * cosine + x * sine);
    }
}

static void store(const struct pd_op *op, int head, int value, int32_t kv_slot, const float *values)
{
    const struct pd_kv_pool *pool = &op->pool;
    int64_t tile = pd_kv_tile(pool, op->layer, head, kv_slot / pool->block_size, value);
    int64_t at = tile + (int64_t)(kv_slot % pool->block_size) * pool->head_dim;

    for (int i = 0; i < pool->head_dim; i++)
        kv_store(pool, at + i, values[i]);
}

void pd_reference_rope_store(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    const struct pd_attention_shape *shape = &op->shape;
    int dim = shape->head_dim, heads = shape->heads, kv_heads = shape->kv_heads;

    for (int t = 0; t < run->step->tokens && thread == 0; t++) {
        float *row = pd_host_floats(op->in) + (size_t)t * (size_t)op->in.cols;
        const float *angles = pd_host_floats(op->rope->table) + (size_t)t * (size_t)op->rope->dim;

        for (int h = 0; h < heads + kv_heads; h++) {
            const struct pd_weight *norm = h < heads ? shape->q_norm : shape->k_norm;

            if (norm != NULL)
                normalize_head(row + h * dim, norm, dim, shape->norm_eps);
            rotate(row + h * dim, angles, shape->rope_dim, shape->rope_style);
        }
        for (int h = 0; h < kv_heads; h++) {
            store(op, h, 0, run->step->kv_slot[t], row + (heads + h) * dim);
            store(op, h, 1, run->step->kv_slot[t], row + (heads + kv_heads + h) * dim);
        }
    }
}

/* Index in the pool of position j of a sequence. */
static int64_t locate(const struct pd_step *step, const struct pd_op *op, int sequence, int head,
                      int j, int value)
{
    const struct pd_kv_pool *pool = &op->pool;
    const int32_t *blocks = step->blocks + (size_t)sequence * (size_t)step->max_blocks;
    int64_t tile = pd_kv_tile(pool, op->layer, head, blocks[j / pool->block_size], value);

    return tile + (int64_t)(j % pool->block_size) * pool->head_dim;
}

/* One head of one row. `weight` has room for a number per position; `sum` one per dimension. */
static void attend(const struct pd_host_run *run, const struct pd_op *op, int t, int head,
                   double *weight, double *sum)
{
    const struct pd_attention_shape *shape = &op->shape;
    const struct pd_step *step = run->step;
    int dim = shape->head_dim, last = step->position[t], sequence = step->sequence[t];
    int kv_head = head / (shape->heads / shape->kv_heads);
    int first = shape->window > 0 && last >= shape->window ? last - shape->window + 1 : 0;
    const float *q =
        pd_host_floats(op->in) + (size_t)t * (size_t)op->in.cols + (size_t)(head * dim);
    float *out = pd_host_floats(op->out) + (size_t)t * (size_t)op->out.cols + (size_t)(head * dim);
    double largest = -INFINITY, total = 0;

    for (int j = first; j <= last; j++) {
        int64_t at = locate(step, op, sequence, kv_head, j, 0);

        weight[j] = 0;
        for (int i = 0; i < dim; i++)
            weight[j] += (double)q[i] * kv_load(&op->pool, at + i);
        weight[j] *= shape->scale;
        largest = fmax(largest, weight[j]);
    }
    for (int i = 0; i < dim; i++)
        sum[i] = 0;
    for (int j = first; j <= last; j++) {
        int64_t at = locate(step, op, sequence, kv_head, j, 1);

        weight[j] = exp(weight[j] - largest);
        total += weight[j];
        for (int i = 0; i < dim; i++)
            sum[i] += weight[j] * kv_load(&op->pool, at + i);
    }
    for (int i = 0; i < dim; i++)
        out[i] = (float)(sum[i] / total);
}

void pd_reference_attention(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    size_t positions = (size_t)run->host->device.options.max_model_len;
    double *scratch =
        thread == 0 ? malloc((positions + (size_t)op->shape.head_dim) * sizeof(double)) : NULL;

    if (thread != 0)
        return;
    if (scratch == NULL)
        abort(); /* a test's backend: nothing sensible is left to do */
    for (int t = 0; t < run->step->tokens; t++) {
        for (int head = 0; head < op->shape.heads; head++)
            attend(run, op, t, head, scratch, scratch + positions);
    }
    free(scratch);
}
