#include "worker/model/graph.h"

#include <math.h>
#include <string.h>

int pd_model_device_fail(struct pd_device *device, int code, const char *what,
                         struct pd_error *error)
{
    enum pd_status status = code == PD_KERNEL_NO_MEMORY     ? PD_NO_MEMORY
                            : code == PD_KERNEL_UNSUPPORTED ? PD_UNSUPPORTED
                            : code == PD_KERNEL_INVALID     ? PD_INVALID
                                                            : PD_IO;

    return pd_fail(error, status, "%s: %s", what, pd_device_error(device));
}

/* ---- activations -------------------------------------------------------------------------------
 */

int pd_step_tensors_create(struct pd_device *device, const struct pd_model_config *config,
                           const struct pd_model_share *share,
                           const struct pd_model_options *options, struct pd_step_tensors *tensors,
                           struct pd_error *error)
{
    int tokens = options->max_tokens, samples = options->max_seqs, code;
    int queries = share->heads * config->head_dim;
    const struct {
        struct pd_tensor *tensor;
        int rows, cols;
    } wanted[] = {
        {&tensors->residual, tokens, config->hidden},
        {&tensors->normed, tokens, config->hidden},
        {&tensors->qkv, tokens, queries + 2 * share->kv_heads * config->head_dim},
        {&tensors->attended, tokens, queries},
        {&tensors->inner, tokens, share->inner},
        {&tensors->sampled, samples, config->hidden},
        {&tensors->final, samples, config->hidden},
        {&tensors->logits, samples, config->vocabulary},
    };

    memset(tensors, 0, sizeof(*tensors));
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        code = pd_tensor_create(device, wanted[i].rows, wanted[i].cols, wanted[i].tensor);
        if (code != PD_KERNEL_OK) {
            pd_step_tensors_destroy(tensors);
            return pd_model_device_fail(device, code, "room for a step's activations", error);
        }
    }
    return PD_OK;
}

static void destroy(struct pd_tensor *tensor)
{
    if (tensor->buffer)
        pd_buffer_destroy(tensor->buffer);
    tensor->buffer = NULL;
}

void pd_step_tensors_destroy(struct pd_step_tensors *tensors)
{
    destroy(&tensors->residual);
    destroy(&tensors->normed);
    destroy(&tensors->qkv);
    destroy(&tensors->attended);
    destroy(&tensors->inner);
    destroy(&tensors->sampled);
    destroy(&tensors->final);
    destroy(&tensors->logits);
}

/* ---- the graph ---------------------------------------------------------------------------------
 */

/* Recording goes on after an error: pd_graph_end tells the first one. */
struct recorder {
    struct pd_graph *graph;
    const struct pd_model_config *config;
    const struct pd_step_tensors *tensors;
    const struct pd_kv_pool *pool;
    int slices;
    struct pd_attention_shape shape; /* the norms are set layer by layer */
};

static void record_attention(struct recorder *recorder, const struct pd_layer_weights *weights,
                             int layer)
{
    const struct pd_step_tensors *t = recorder->tensors;

    recorder->shape.q_norm = weights->query_norm;
    recorder->shape.k_norm = weights->key_norm;
    pd_op_rmsnorm(recorder->graph, t->residual, weights->attention_norm, recorder->config->norm_eps,
                  false, t->normed);
    pd_op_matmul(recorder->graph, weights->qkv, t->normed, weights->qkv_bias, PD_EPILOGUE_NONE,
                 false, t->qkv);
    pd_op_rope_store(recorder->graph, t->qkv, &recorder->shape, recorder->pool, layer);
    pd_op_publish(recorder->graph, layer + 1);
    pd_op_attention(recorder->graph, t->qkv, &recorder->shape, recorder->pool, layer, t->attended);
    pd_op_matmul_reduce(recorder->graph, weights->attention_output, t->attended, recorder->slices,
                        t->residual);
}

static void record_feed_forward(struct recorder *recorder, const struct pd_layer_weights *weights)
{
    const struct pd_step_tensors *t = recorder->tensors;

    pd_op_rmsnorm(recorder->graph, t->residual, weights->feed_forward_norm,
                  recorder->config->norm_eps, false, t->normed);
    pd_op_matmul(recorder->graph, weights->gate_up, t->normed, NULL, PD_EPILOGUE_SWIGLU, false,
                 t->inner);
    pd_op_matmul_reduce(recorder->graph, weights->down, t->inner, recorder->slices, t->residual);
}

static void record_output(struct recorder *recorder, const struct pd_device_weights *weights,
                          struct pd_buffer *pinned)
{
    const struct pd_step_tensors *t = recorder->tensors;

    pd_op_gather(recorder->graph, t->residual, t->sampled);
    pd_op_rmsnorm(recorder->graph, t->sampled, weights->output_norm, recorder->config->norm_eps,
                  true, t->final);
    pd_op_matmul_gather(recorder->graph, weights->output ? weights->output : weights->embedding,
                        t->final, true, t->logits);
    if (pinned)
        pd_op_read(recorder->graph, t->logits, true, pinned);
    pd_op_sample(recorder->graph, t->logits);
}

static struct pd_attention_shape attention_shape(const struct pd_model_files *files,
                                                 const struct pd_model_share *share)
{
    const struct pd_model_config *config = &files->config;

    return (struct pd_attention_shape){
        .heads = share->heads,
        .kv_heads = share->kv_heads,
        .head_dim = config->head_dim,
        .rope_dim = config->rope_dim,
        .rope_style = files->rope.style,
        .inverse_frequency = files->inverse_frequency,
        .attention_factor = 1,
        .scale = 1 / sqrtf((float)config->head_dim),
        .window = config->window,
        .norm_eps = config->norm_eps,
    };
}

int pd_model_record(const struct pd_model_files *files, const struct pd_model_share *share,
                    struct pd_device *device, const struct pd_device_weights *weights,
                    const struct pd_step_tensors *tensors, const struct pd_kv_pool *pool,
                    struct pd_buffer *pinned, struct pd_graph **graph, struct pd_error *error)
{
    struct recorder recorder = {.config = &files->config,
                                .tensors = tensors,
                                .pool = pool,
                                .slices = pd_model_slices(&files->config),
                                .shape = attention_shape(files, share)};
    int code, status;

    *graph = NULL;
    code = pd_graph_begin(device, graph);
    if (code != PD_KERNEL_OK)
        return pd_model_device_fail(device, code, "recording the step", error);
    recorder.graph = *graph;
    pd_op_embed(*graph, weights->embedding, tensors->residual);
    for (int layer = 0; layer < weights->layer_count; layer++) {
        record_attention(&recorder, &weights->layers[layer], layer);
        record_feed_forward(&recorder, &weights->layers[layer]);
    }
    record_output(&recorder, weights, pinned);
    code = pd_graph_end(*graph);
    if (code == PD_KERNEL_OK)
        return PD_OK;
    status = pd_model_device_fail(device, code, "recording the step", error);
    pd_graph_destroy(*graph);
    *graph = NULL;
    return status;
}
