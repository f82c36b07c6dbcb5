/* Operators that work row by row: each thread takes a run of rows. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

void pd_cpu_embed(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    const struct pd_step *step = run->step;
    int first, end;

    pd_host_own_rows(run, op, thread, &first, &end);
    for (int t = first; t < end; t++) {
        int32_t token = pd_host_token(run, t), row = token - op->first;
        float *out = pd_host_floats(op->out) + (size_t)t * (size_t)op->out.cols;

        if (row >= 0 && row < op->weight->rows)
            pd_cpu_weight_row(op->weight, row, out);
        else
            memset(out, 0, (size_t)op->out.cols * sizeof(*out));
        pd_host_history(run->host, step->slot[step->sequence[t]])[step->position[t]] = token;
    }
}

void pd_cpu_rmsnorm(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    const float *weight = pd_cpu_vector(op->weight);
    size_t cols = (size_t)op->in.cols;
    int first, end;

    pd_host_own_rows(run, op, thread, &first, &end);
    for (int t = first; t < end; t++)
        pd_cpu_of(run)->path->rmsnorm(pd_host_floats(op->in) + (size_t)t * cols, weight, (int)cols,
                                      op->eps, pd_host_floats(op->out) + (size_t)t * cols);
}

/* The angle is a float product, as the models' own code computes it; its cosine is rounded once
 * from double, so that it does not depend on which libm this is. */
void pd_cpu_rope_angles(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    const struct pd_rope *rope = op->rope;
    int half = rope->dim / 2, first, end;

    pd_host_own_rows(run, op, thread, &first, &end);
    for (int t = first; t < end; t++) {
        float *row = pd_host_floats(rope->table) + (size_t)t * (size_t)rope->dim;

        for (int i = 0; i < half; i++) {
            float angle = (float)run->step->position[t] * rope->inverse_frequency[i];
            row[i] = (float)(cos((double)angle) * (double)rope->factor);
            row[half + i] = (float)(sin((double)angle) * (double)rope->factor);
        }
    }
}

static void store_head(const struct pd_host_run *run, const struct pd_op *op, int head, int value,
                       int32_t kv_slot, const float *from)
{
    const struct pd_kv_pool *pool = &op->pool;
    int64_t tile = pd_kv_tile(pool, op->layer, head, kv_slot / pool->block_size, value);
    int64_t at = tile + (int64_t)(kv_slot % pool->block_size) * pool->head_dim;

    pd_cpu_of(run)->path->store_kv(pool->type,
                                   (char *)pool->buffer->host + at * pd_dtype_bytes(pool->type),
                                   from, pool->head_dim);
}

static void rope_store_row(const struct pd_host_run *run, const struct pd_op *op, int t)
{
    const struct pd_cpu_path *path = pd_cpu_of(run)->path;
    const struct pd_attention_shape *shape = &op->shape;
    int dim = shape->head_dim, heads = shape->heads, kv_heads = shape->kv_heads;
    float *row = pd_host_floats(op->in) + (size_t)t * (size_t)op->in.cols;
    const float *angles = pd_host_floats(op->rope->table) + (size_t)t * (size_t)op->rope->dim;

    for (int h = 0; h < heads + kv_heads; h++) {
        const float *norm = pd_cpu_vector(h < heads ? shape->q_norm : shape->k_norm);

        if (norm != NULL)
            path->rmsnorm(row + h * dim, norm, dim, shape->norm_eps, row + h * dim);
        path->rotate(row + h * dim, angles, shape->rope_dim, shape->rope_style);
    }
    for (int h = 0; h < kv_heads; h++) {
        store_head(run, op, h, 0, run->step->kv_slot[t], row + (heads + h) * dim);
        store_head(run, op, h, 1, run->step->kv_slot[t], row + (heads + kv_heads + h) * dim);
    }
}

void pd_cpu_rope_store(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    int first, end;

    pd_host_own_rows(run, op, thread, &first, &end);
    for (int t = first; t < end; t++)
        rope_store_row(run, op, t);
}

void pd_cpu_gather(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    size_t cols = (size_t)op->in.cols;
    int first, end;

    pd_host_own_rows(run, op, thread, &first, &end);
    for (int s = first; s < end; s++)
        memcpy(pd_host_floats(op->out) + (size_t)s * cols,
               pd_host_floats(op->in) + (size_t)run->step->sample_row[s] * cols,
               cols * sizeof(float));
}

void pd_cpu_read(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    size_t cols = (size_t)op->in.cols;
    int first, end;

    pd_host_own_rows(run, op, thread, &first, &end);
    memcpy((float *)op->pinned->host + (size_t)first * cols,
           pd_host_floats(op->in) + (size_t)first * cols,
           (size_t)(end - first) * cols * sizeof(float));
}
