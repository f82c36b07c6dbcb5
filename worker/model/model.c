#include "worker/model/model.h"

#include <stdlib.h>
#include <string.h>

#include "worker/model/files.h"
#include "worker/model/fingerprint.h"
#include "worker/model/graph.h"
#include "worker/model/load.h"
#include "worker/model/ranks.h"

/* What a rank of the device has. */
struct rank {
    struct pd_model_share share;
    struct pd_device_weights weights;
    struct pd_step_tensors tensors;
    struct pd_buffer *pinned_logits; /* NULL unless asked for */
};

struct pd_model {
    int ranks;
    struct rank rank[PD_RANKS_MAX];
    struct pd_graph *graphs[PD_RANKS_MAX]; /* of each rank */
    struct pd_graph *graph;                /* of all: graphs[0] where there is one */
    struct pd_fingerprint fingerprint;
};

/* The caller's options against the model's shape: the operators would compute with either without
 * noticing. */
static int check_options(const struct pd_model_files *files, const struct pd_model_options *options,
                         struct pd_error *error)
{
    const struct pd_model_config *config = &files->config;

    if (options->max_model_len < 1 || options->max_model_len > config->context)
        return pd_fail(error, PD_INVALID,
                       "a longest sequence of %d tokens; %s was made for at most %d",
                       options->max_model_len, files->source, config->context);
    if (options->max_tokens < 1 || options->max_seqs < 1)
        return pd_fail(error, PD_INVALID, "a step of %d tokens and %d sequences",
                       options->max_tokens, options->max_seqs);
    return PD_OK;
}

static int check_pool(const struct pd_model_files *files, const struct pd_model_share *share,
                      const struct pd_kv_pool *pool, struct pd_error *error)
{
    const struct pd_model_config *config = &files->config;

    if (pool->layers == config->layers && pool->kv_heads == share->kv_heads &&
        pool->head_dim == config->head_dim)
        return PD_OK;
    return pd_fail(error, PD_INVALID,
                   "a KV pool of %d layers, %d heads of %d; rank %d of %d of %s has %d layers, %d "
                   "heads of %d",
                   pool->layers, pool->kv_heads, pool->head_dim, share->rank, share->ranks,
                   files->source, config->layers, share->kv_heads, config->head_dim);
}

static int create_logits(struct rank *rank, struct pd_device *device,
                         const struct pd_model_files *files, const struct pd_model_options *options,
                         struct pd_error *error)
{
    size_t bytes = (size_t)options->max_seqs * (size_t)files->config.vocabulary * sizeof(float);
    int code;

    if (!options->read_logits)
        return PD_OK;
    code = pd_buffer_create(device, PD_BUFFER_PINNED, bytes, &rank->pinned_logits);
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

static int prepare_rank(struct rank *rank, const struct pd_model_files *files,
                        struct pd_device *device, const struct pd_model_options *options,
                        struct pd_error *error)
{
    int status;

    if ((status = check_pool(files, &rank->share, &options->pool[rank->share.rank], error)) !=
            PD_OK ||
        (status = pd_step_tensors_create(device, &files->config, &rank->share, options,
                                         &rank->tensors, error)) != PD_OK)
        return status;
    return create_logits(rank, device, files, options, error);
}

static int record(struct pd_model *model, const struct pd_model_files *files,
                  struct pd_device *device, const struct pd_model_options *options,
                  struct pd_error *error)
{
    int code;

    for (int r = 0; r < model->ranks; r++) {
        struct rank *rank = &model->rank[r];
        int status = pd_model_record(files, &rank->share, pd_device_rank(device, r), &rank->weights,
                                     &rank->tensors, &options->pool[r], rank->pinned_logits,
                                     &model->graphs[r], error);

        if (status != PD_OK)
            return status;
    }
    code = pd_graph_join(device, model->graphs, &model->graph);
    return code == PD_KERNEL_OK ? PD_OK
                                : pd_model_device_fail(device, code, "joining the ranks", error);
}

static int load(struct pd_model *model, struct pd_model_files *files, struct pd_device *device,
                const struct pd_model_options *options, struct pd_error *error)
{
    struct pd_device_weights weights[PD_RANKS_MAX];
    int ranks = pd_device_ranks(device), status;

    if ((status = check_options(files, options, error)) != PD_OK ||
        (status = pd_model_ranks_check(&files->config, ranks, error)) != PD_OK ||
        (status = take_fingerprint(model, files, options->pool, error)) != PD_OK)
        return status;
    model->ranks = ranks;
    for (int r = 0; r < ranks; r++) {
        model->rank[r].share = pd_model_share_of(&files->config, r, ranks);
        status = prepare_rank(&model->rank[r], files, pd_device_rank(device, r), options, error);
        if (status != PD_OK)
            return status;
    }
    status =
        pd_device_weights_load(files, device, options, weights, model->fingerprint.weights, error);
    if (status != PD_OK)
        return status;
    for (int r = 0; r < ranks; r++)
        model->rank[r].weights = weights[r];
    return record(model, files, device, options, error);
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
    if (model->graph && model->graph != model->graphs[0])
        pd_graph_destroy(model->graph);
    for (int r = 0; r < model->ranks; r++) {
        struct rank *rank = &model->rank[r];

        if (model->graphs[r])
            pd_graph_destroy(model->graphs[r]);
        pd_device_weights_free(&rank->weights);
        pd_step_tensors_destroy(&rank->tensors);
        if (rank->pinned_logits)
            pd_buffer_destroy(rank->pinned_logits);
    }
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
    struct pd_buffer *logits = model->rank[0].pinned_logits;

    return logits ? pd_buffer_host(logits) : NULL;
}
