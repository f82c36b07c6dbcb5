#include "worker/model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sizes that shapes are made of. */
enum size { NONE, HIDDEN, QUERIES, KEYS, HEAD, FEED_FORWARD, VOCABULARY, ROPE_PAIRS };

/* Which models have a role. */
enum presence { ALWAYS, WITH_QKV_BIAS, WITH_QK_NORM, WITHOUT_TIE, OPTIONAL };

struct role {
    const char *gguf, *hugging_face; /* %d: the layer; NULL: the format does not know it */
    enum size rows, cols;            /* rows NONE: a vector of cols */
    enum presence presence;
    size_t slot; /* offset in pd_model_tensors or pd_layer_tensors */
};

#define MODEL(member) offsetof(struct pd_model_tensors, member)
#define LAYER(member) offsetof(struct pd_layer_tensors, member)

static const struct role model_roles[] = {
    {"token_embd.weight", "model.embed_tokens.weight", VOCABULARY, HIDDEN, ALWAYS,
     MODEL(embedding)},
    {"output_norm.weight", "model.norm.weight", NONE, HIDDEN, ALWAYS, MODEL(output_norm)},
    {"output.weight", "lm_head.weight", VOCABULARY, HIDDEN, WITHOUT_TIE, MODEL(output)},
    {"rope_freqs.weight", NULL, NONE, ROPE_PAIRS, OPTIONAL, MODEL(rope_factors)},
};

static const struct role layer_roles[] = {
    {"blk.%d.attn_norm.weight", "model.layers.%d.input_layernorm.weight", NONE, HIDDEN, ALWAYS,
     LAYER(attention_norm)},
    {"blk.%d.attn_q.weight", "model.layers.%d.self_attn.q_proj.weight", QUERIES, HIDDEN, ALWAYS,
     LAYER(query)},
    {"blk.%d.attn_k.weight", "model.layers.%d.self_attn.k_proj.weight", KEYS, HIDDEN, ALWAYS,
     LAYER(key)},
    {"blk.%d.attn_v.weight", "model.layers.%d.self_attn.v_proj.weight", KEYS, HIDDEN, ALWAYS,
     LAYER(value)},
    {"blk.%d.attn_q.bias", "model.layers.%d.self_attn.q_proj.bias", NONE, QUERIES, WITH_QKV_BIAS,
     LAYER(query_bias)},
    {"blk.%d.attn_k.bias", "model.layers.%d.self_attn.k_proj.bias", NONE, KEYS, WITH_QKV_BIAS,
     LAYER(key_bias)},
    {"blk.%d.attn_v.bias", "model.layers.%d.self_attn.v_proj.bias", NONE, KEYS, WITH_QKV_BIAS,
     LAYER(value_bias)},
    {"blk.%d.attn_q_norm.weight", "model.layers.%d.self_attn.q_norm.weight", NONE, HEAD,
     WITH_QK_NORM, LAYER(query_norm)},
    {"blk.%d.attn_k_norm.weight", "model.layers.%d.self_attn.k_norm.weight", NONE, HEAD,
     WITH_QK_NORM, LAYER(key_norm)},
    {"blk.%d.attn_output.weight", "model.layers.%d.self_attn.o_proj.weight", HIDDEN, QUERIES,
     ALWAYS, LAYER(attention_output)},
    {"blk.%d.ffn_norm.weight", "model.layers.%d.post_attention_layernorm.weight", NONE, HIDDEN,
     ALWAYS, LAYER(feed_forward_norm)},
    {"blk.%d.ffn_gate.weight", "model.layers.%d.mlp.gate_proj.weight", FEED_FORWARD, HIDDEN, ALWAYS,
     LAYER(gate)},
    {"blk.%d.ffn_up.weight", "model.layers.%d.mlp.up_proj.weight", FEED_FORWARD, HIDDEN, ALWAYS,
     LAYER(up)},
    {"blk.%d.ffn_down.weight", "model.layers.%d.mlp.down_proj.weight", HIDDEN, FEED_FORWARD, ALWAYS,
     LAYER(down)},
};

struct binder {
    const struct pd_tensor_table *table;
    enum pd_naming naming;
    const struct pd_model_config *config;
    const char *source;
    bool *bound; /* [table->count] */
    struct pd_error *error;
};

static int size_of(const struct pd_model_config *config, enum size size)
{
    switch (size) {
    case HIDDEN:
        return config->hidden;
    case QUERIES:
        return config->heads * config->head_dim;
    case KEYS:
        return config->kv_heads * config->head_dim;
    case HEAD:
        return config->head_dim;
    case FEED_FORWARD:
        return config->feed_forward;
    case VOCABULARY:
        return config->vocabulary;
    case ROPE_PAIRS:
        return config->rope_dim / 2;
    case NONE:
        break;
    }
    return 0;
}

static int check_shape(const struct binder *binder, const struct role *role,
                       const struct pd_file_tensor *tensor)
{
    int rows = size_of(binder->config, role->rows), cols = size_of(binder->config, role->cols);

    if (role->rows == NONE) {
        if (tensor->rank == 1 && tensor->shape[0] == cols)
            return PD_OK;
        return pd_tensor_fail(
            tensor, PD_INVALID, binder->error,
            "%d dimensions of which the last is %d, where the configuration asks for "
            "a vector of %d",
            tensor->rank, tensor->shape[tensor->rank - 1], cols);
    }
    if (tensor->rank == 2 && tensor->shape[0] == rows && tensor->shape[1] == cols)
        return PD_OK;
    return pd_tensor_fail(tensor, PD_INVALID, binder->error,
                          "%d dimensions, %d x %d, where the configuration asks for %d x %d",
                          tensor->rank, tensor->rank > 1 ? tensor->shape[tensor->rank - 2] : 1,
                          tensor->shape[tensor->rank - 1], rows, cols);
}

static bool is_wanted(const struct pd_model_config *config, const struct role *role)
{
    switch (role->presence) {
    case WITH_QKV_BIAS:
        return config->qkv_bias;
    case WITH_QK_NORM:
        return config->qk_norm;
    case WITHOUT_TIE:
        return !config->tied_output;
    case ALWAYS:
    case OPTIONAL:
        break;
    }
    return true;
}

static int bind_role(struct binder *binder, const struct role *role, int layer, void *slots)
{
    const char *pattern = binder->naming == PD_NAMING_GGUF ? role->gguf : role->hugging_face;
    const struct pd_file_tensor *tensor;
    char name[PD_TENSOR_NAME];
    int status;

    if (!pattern || !is_wanted(binder->config, role))
        return PD_OK;
    snprintf(name, sizeof(name), pattern, layer);
    tensor = pd_tensor_table_find(binder->table, name);
    if (!tensor)
        return role->presence == OPTIONAL ? PD_OK
                                          : pd_fail(binder->error, PD_INVALID,
                                                    "%s: tensor %s: missing", binder->source, name);
    status = check_shape(binder, role, tensor);
    if (status != PD_OK)
        return status;
    binder->bound[tensor - binder->table->tensors] = true;
    memcpy((char *)slots + role->slot, &tensor, sizeof(tensor));
    return PD_OK;
}

/* Tensors that may lie in a file without a role. */
static bool is_harmless(const struct binder *binder, const struct pd_file_tensor *tensor)
{
    static const char frequencies[] = ".rotary_emb.inv_freq"; /* old checkpoints; we compute them */
    size_t length = strlen(tensor->name), tail = sizeof(frequencies) - 1;

    if (binder->naming == PD_NAMING_GGUF)
        return false;
    if (strcmp(tensor->name, "lm_head.weight") == 0) /* a copy of the tied embedding */
        return binder->config->tied_output;
    return length > tail && strcmp(tensor->name + length - tail, frequencies) == 0;
}

static int refuse_unbound(const struct binder *binder)
{
    for (size_t i = 0; i < binder->table->count; i++)
        if (!binder->bound[i] && !is_harmless(binder, &binder->table->tensors[i]))
            return pd_tensor_fail(&binder->table->tensors[i], PD_UNSUPPORTED, binder->error,
                                  "has no place in a %s model of %d layers",
                                  binder->config->architecture, binder->config->layers);
    return PD_OK;
}

static int check_rope_factors(const struct pd_file_tensor *factors, struct pd_error *error)
{
    if (factors && factors->type != PD_F32)
        return pd_tensor_fail(factors, PD_UNSUPPORTED, error, "type %s, not F32",
                              pd_dtype_name(factors->type));
    for (int i = 0; factors && i < factors->shape[0]; i++) {
        float factor;

        memcpy(&factor, factors->data + (size_t)i * sizeof(factor), sizeof(factor));
        if (!(factor >= 1e-6f && factor <= 1e6f))
            return pd_tensor_fail(factors, PD_INVALID, error,
                                  "value %d is %g, not between 1e-6 and 1e6", i, (double)factor);
    }
    return PD_OK;
}

static int bind_all(struct binder *binder, struct pd_model_tensors *tensors)
{
    int status = PD_OK;

    for (size_t i = 0; i < sizeof(model_roles) / sizeof(model_roles[0]) && status == PD_OK; i++)
        status = bind_role(binder, &model_roles[i], 0, tensors);
    for (int layer = 0; layer < binder->config->layers; layer++)
        for (size_t i = 0; i < sizeof(layer_roles) / sizeof(layer_roles[0]) && status == PD_OK; i++)
            status = bind_role(binder, &layer_roles[i], layer, &tensors->layers[layer]);
    if (status == PD_OK)
        status = refuse_unbound(binder);
    return status == PD_OK ? check_rope_factors(tensors->rope_factors, binder->error) : status;
}

int pd_model_tensors_bind(const struct pd_tensor_table *table, enum pd_naming naming,
                          const struct pd_model_config *config, const char *source,
                          struct pd_model_tensors *tensors, struct pd_error *error)
{
    struct binder binder = {.table = table,
                            .naming = naming,
                            .config = config,
                            .source = source,
                            .error = error,
                            .bound = calloc(table->count + 1, sizeof(bool))};
    int status;

    memset(tensors, 0, sizeof(*tensors));
    tensors->layers = calloc((size_t)config->layers, sizeof(*tensors->layers));
    if (tensors->layers && binder.bound)
        status = bind_all(&binder, tensors);
    else
        status = pd_fail(error, PD_NO_MEMORY, "%s: no memory", source);
    free(binder.bound);
    if (status != PD_OK)
        pd_model_tensors_free(tensors);
    return status;
}

/* ---- the other way round ------------------------------------------------------------------------ */

static int expect_role(const struct pd_model_config *config, const struct role *role, int layer,
                       struct pd_file_tensor *tensor, struct pd_tensor_table *table,
                       struct pd_error *error)
{
    uint64_t shape[2] = {(uint64_t)size_of(config, role->rows),
                         (uint64_t)size_of(config, role->cols)};
    bool vector = role->rows == NONE;
    int status;

    if (!role->hugging_face || role->presence == OPTIONAL || !is_wanted(config, role))
        return PD_OK;
    snprintf(tensor->name, sizeof(tensor->name), role->hugging_face, layer);
    status = pd_tensor_measure(tensor, vector ? shape + 1 : shape, vector ? 1 : 2, error);
    return status == PD_OK ? pd_tensor_table_add(table, tensor, error) : status;
}

int pd_model_tensors_expect(const struct pd_model_config *config, enum pd_dtype type,
                            const char *file, struct pd_tensor_table *table, struct pd_error *error)
{
    struct pd_file_tensor tensor = {.file = file, .type = type};
    int status = PD_OK;

    for (size_t i = 0; i < sizeof(model_roles) / sizeof(model_roles[0]) && status == PD_OK; i++)
        status = expect_role(config, &model_roles[i], 0, &tensor, table, error);
    for (int layer = 0; layer < config->layers; layer++)
        for (size_t i = 0; i < sizeof(layer_roles) / sizeof(layer_roles[0]) && status == PD_OK; i++)
            status = expect_role(config, &layer_roles[i], layer, &tensor, table, error);
    return status;
}

void pd_model_tensors_free(struct pd_model_tensors *tensors)
{
    free(tensors->layers);
    memset(tensors, 0, sizeof(*tensors));
}
