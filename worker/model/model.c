#include "worker/model/model.h"

#include <stdlib.h>
#include <string.h>

#include "worker/model/files.h"
#include "worker/model/fingerprint.h"
#include "worker/model/graph.h"
#include "worker/model/load.h"

struct pd_model {
    struct pd_device_weights weights;
    struct pd_step_tensors tensors;
    struct pd_buffer *pinned_logits; /* NULL unless asked for */
    struct pd_graph *graph;
    struct pd_fingerprint fingerprint;
};

/* The caller's options against the model's shape: the operators would compute with either without
 * noticing. */
static int check_options(const struct pd_model_files *files, const struct pd_model_options *options,
                         struct pd_error *error)
{
    const struct pd_model_config *config = &files->config;
    const struct pd_kv_pool *pool = options->pool;

    if (options->max_model_len < 1 || options->max_model_len > config->context)
        return pd_fail(error, PD_INVALID,
                       "a longest sequence of %d tokens; %s was made for at most %d",
                       options->max_model_len, files->source, config->context);
    if (options->max_tokens < 1 || options->max_seqs < 1)
        return pd_fail(error, PD_INVALID, "a step of %d tokens and %d sequences",
                       options->max_tokens, options->max_seqs);
    if (pool->layers != config->layers || pool->kv_heads != config->kv_heads ||
        pool->head_dim != config->head_dim)
        return pd_fail(error, PD_INVALID,
                       "a KV pool of %d layers, %d heads of %d; %s has %d layers, %d heads of %d",
                       pool->layers, pool->kv_heads, pool->head_dim, files->source, config->layers,
                       config->kv_heads, config->head_dim);
    return PD_OK;
}

static int create_logits(struct pd_model *model, struct pd_device *device,
                         const struct pd_model_files *files, const struct pd_model_options *options,
                         struct pd_error *error)
{
    size_t bytes = (size_t)options->max_seqs * (size_t)files->config.vocabulary * sizeof(float);
    int code;

    if (!options->read_logits)
        return PD_OK;
    code = pd_buffer_create(device, PD_BUFFER_PINNED, bytes, &model->pinned_logits);
    return code == PD_KERNEL_OK ? PD_OK
                                : pd_model_device_fail(device, code, "room for the logits", error);
}

static int take_fingerprint(struct pd_model *model, const struct pd_model_files *files,
                            const struct pd_kv_pool *pool, struct pd_error *error)
{
    pd_tokenizer_digest(files->tokenizer, model->fingerprint.tokenizer);
    memcpy(model->fingerprint.chat_template, files->template_digest, PD_DIGEST);
    return pd_layout_digest(&files->config, &files->rope, files->inverse_frequency, pool->type,
                            model->fingerprint.layout, error);
}

static int load(struct pd_model *model, struct pd_model_files *files, struct pd_device *device,
                const struct pd_model_options *options, struct pd_error *error)
{
    int status;

    if ((status = check_options(files, options, error)) != PD_OK ||
        (status = take_fingerprint(model, files, options->pool, error)) != PD_OK ||
        (status = pd_step_tensors_create(device, &files->config, options, &model->tensors,
                                         error)) != PD_OK ||
        (status = create_logits(model, device, files, options, error)) != PD_OK ||
        (status = pd_device_weights_load(files, device, options, &model->weights,
                                         model->fingerprint.weights, error)) != PD_OK)
        return status;
    return pd_model_record(files, device, &model->weights, &model->tensors, options->pool,
                           model->pinned_logits, &model->graph, error);
}

int pd_model_load(struct pd_model_files *files, struct pd_device *device,
                  const struct pd_model_options *options, struct pd_model **model,
                  struct pd_error *error)
{
    struct pd_model *result = calloc(1, sizeof(*result));
    int status;

    *model = NULL;
    if (!result)
        return pd_fail(error, PD_NO_MEMORY, "%s: no memory", files->source);
    status = load(result, files, device, options, error);
    if (status != PD_OK) {
        pd_model_destroy(result);
        return status;
    }
    *model = result;
    return PD_OK;
}

void pd_model_destroy(struct pd_model *model)
{
    if (!model)
        return;
    if (model->graph)
        pd_graph_destroy(model->graph);
    pd_device_weights_free(&model->weights);
    pd_step_tensors_destroy(&model->tensors);
    if (model->pinned_logits)
        pd_buffer_destroy(model->pinned_logits);
    free(model);
}

struct pd_graph *pd_model_graph(struct pd_model *model)
{
    return model->graph;
}

const struct pd_fingerprint *pd_model_fingerprint(const struct pd_model *model)
{
    return &model->fingerprint;
}

const float *pd_model_logits(const struct pd_model *model)
{
    return model->pinned_logits ? pd_buffer_host(model->pinned_logits) : NULL;
}
