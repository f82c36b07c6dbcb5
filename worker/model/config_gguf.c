#include "worker/model/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct gguf_keys {
    const struct pd_gguf *gguf;
    const char *prefix; /* "llama" */
    char key[96];
};

/* Metadata keys of the architecture begin with its name. */
static const char *key_of(struct gguf_keys *keys, const char *name)
{
    snprintf(keys->key, sizeof(keys->key), "%s.%s", keys->prefix, name);
    return keys->key;
}

static int gguf_size(struct gguf_keys *keys, const char *name, int max, int *value,
                     struct pd_error *error)
{
    int64_t number;
    int status = pd_gguf_integer(keys->gguf, key_of(keys, name), 1, max, &number, error);

    if (status == PD_OK)
        *value = (int)number;
    return status;
}

/* As gguf_size, but leaves *value where the key is absent. */
static int gguf_size_or(struct gguf_keys *keys, const char *name, int max, int *value,
                        struct pd_error *error)
{
    int status = gguf_size(keys, name, max, value, error);

    return status == PD_NOT_FOUND ? PD_OK : status;
}

static int gguf_number_or(struct gguf_keys *keys, const char *name, double *value,
                          struct pd_error *error)
{
    int status = pd_gguf_number(keys->gguf, key_of(keys, name), value, error);

    return status == PD_NOT_FOUND ? PD_OK : status;
}

/* Keys that would change the computation in a way that the graph does not follow. */
static int gguf_refuse(struct gguf_keys *keys, struct pd_error *error)
{
    static const char *const names[] = {
        "expert_count",    "attention.scale",        "attention.clamp_kqv",     "logit_scale",
        "embedding_scale", "attn_logit_softcapping", "final_logit_softcapping", "residual_scale",
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        double value = 0;
        int status = gguf_number_or(keys, names[i], &value, error);

        if (status != PD_OK)
            return status;
        if (value != 0)
            return pd_fail(error, PD_UNSUPPORTED, "%s: metadata %s: %g is not supported",
                           pd_gguf_file(keys->gguf), keys->key, value);
    }
    return PD_OK;
}

static int gguf_rope(struct gguf_keys *keys, struct pd_model_config *config, struct pd_rope *rope,
                     struct pd_error *error)
{
    double base = 10000, factor = 1;
    struct pd_string type = {"none", 4};
    int status;

    config->rope_dim = config->head_dim;
    if ((status = gguf_size_or(keys, "rope.dimension_count", PD_HEAD_DIM_MAX, &config->rope_dim,
                               error)) != PD_OK ||
        (status = gguf_number_or(keys, "rope.freq_base", &base, error)) != PD_OK ||
        (status = gguf_number_or(keys, "rope.scale_linear", &factor, error)) != PD_OK ||
        (status = gguf_number_or(keys, "rope.scaling.factor", &factor, error)) != PD_OK)
        return status;
    config->rope_base = (float)base;
    status = pd_gguf_string(keys->gguf, key_of(keys, "rope.scaling.type"), &type, error);
    if (status == PD_NOT_FOUND && factor != 1)
        type = (struct pd_string){"linear", 6};
    else if (status != PD_OK && status != PD_NOT_FOUND)
        return status;
    if (type.length == 4 && memcmp(type.bytes, "none", 4) == 0)
        return PD_OK;
    if (type.length != 6 || memcmp(type.bytes, "linear", 6) != 0)
        return pd_fail(error, PD_UNSUPPORTED, "%s: metadata %s: \"%.*s\" is not supported",
                       pd_gguf_file(keys->gguf), keys->key,
                       type.length < 32 ? (int)type.length : 32, type.bytes);
    rope->scaling = PD_ROPE_LINEAR;
    rope->factor = factor;
    return PD_OK;
}

static int gguf_heads(struct gguf_keys *keys, struct pd_model_config *config,
                      struct pd_error *error)
{
    int value_length, status;

    if ((status = gguf_size(keys, "attention.head_count", PD_HEADS_MAX, &config->heads, error)) !=
        PD_OK)
        return status;
    config->kv_heads = config->heads;
    config->head_dim = config->hidden / config->heads;
    if ((status = gguf_size_or(keys, "attention.head_count_kv", PD_HEADS_MAX, &config->kv_heads,
                               error)) != PD_OK ||
        (status = gguf_size_or(keys, "attention.key_length", PD_HEAD_DIM_MAX, &config->head_dim,
                               error)) != PD_OK)
        return status;
    value_length = config->head_dim;
    status = gguf_size_or(keys, "attention.value_length", PD_HEAD_DIM_MAX, &value_length, error);
    if (status == PD_OK && value_length != config->head_dim)
        status = pd_fail(error, PD_UNSUPPORTED,
                         "%s: metadata %s: %d differs from the keys' %d: not supported",
                         pd_gguf_file(keys->gguf), keys->key, value_length, config->head_dim);
    return status;
}

static int gguf_vocabulary(struct gguf_keys *keys, const struct pd_tensor_table *tensors,
                           struct pd_model_config *config, struct pd_error *error)
{
    const struct pd_file_tensor *embedding = pd_tensor_table_find(tensors, "token_embd.weight");

    if (!embedding)
        return pd_fail(error, PD_INVALID, "%s: tensor token_embd.weight: missing",
                       pd_gguf_file(keys->gguf));
    if (embedding->shape[0] > PD_VOCABULARY_MAX)
        return pd_tensor_fail(embedding, PD_INVALID, error, "%d rows, more than a vocabulary of %d",
                              embedding->shape[0], PD_VOCABULARY_MAX);
    config->vocabulary = embedding->shape[0];
    config->tied_output = !pd_tensor_table_find(tensors, "output.weight");
    return PD_OK;
}

static int gguf_special_tokens(const struct pd_gguf *gguf, struct pd_model_config *config,
                               struct pd_error *error)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    int64_t token;
    int status;

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        status = pd_gguf_integer(gguf, ends[i], 0, PD_VOCABULARY_MAX, &token, error);
        if (status == PD_OK)
            status = pd_config_add_eos(config, token, pd_gguf_file(gguf), error);
        if (status != PD_OK && status != PD_NOT_FOUND)
            return status;
    }
    config->bos = -1;
    status = pd_gguf_integer(gguf, "tokenizer.ggml.bos_token_id", 0, config->vocabulary - 1, &token,
                             error);
    if (status == PD_OK)
        config->bos = (int32_t)token;
    return status == PD_NOT_FOUND ? PD_OK : status;
}

static int gguf_family(struct gguf_keys *keys, struct pd_model_config *config, struct pd_rope *rope,
                       struct pd_error *error)
{
    const struct pd_family *family;
    char known[PD_FAMILY_LIST];
    struct pd_string name;
    int status = pd_gguf_string(keys->gguf, "general.architecture", &name, error);

    if (status != PD_OK)
        return status;
    family = pd_family_find(PD_FAMILY_GGUF, name.bytes, name.length);
    if (!family)
        return pd_fail(error, PD_UNSUPPORTED,
                       "%s: architecture \"%.*s\" is not supported, but these are: %s",
                       pd_gguf_file(keys->gguf), name.length < 32 ? (int)name.length : 32,
                       name.bytes, pd_family_list(PD_FAMILY_GGUF, known));
    pd_family_apply(family, config);
    keys->prefix = family->name;
    rope->style = family->gguf_rope;
    if (pd_gguf_string(keys->gguf, "general.name", &name, NULL) == PD_OK)
        pd_config_set_name(config, name.bytes, name.length);
    return PD_OK;
}

int pd_config_from_gguf(const struct pd_gguf *gguf, const struct pd_tensor_table *tensors,
                        struct pd_model_config *config, struct pd_rope *rope,
                        struct pd_error *error)
{
    struct gguf_keys keys = {.gguf = gguf};
    double epsilon;
    int status;

    memset(config, 0, sizeof(*config));
    memset(rope, 0, sizeof(*rope));
    if ((status = gguf_family(&keys, config, rope, error)) != PD_OK ||
        (status = gguf_refuse(&keys, error)) != PD_OK ||
        (status = gguf_size(&keys, "block_count", PD_LAYERS_MAX, &config->layers, error)) !=
            PD_OK ||
        (status = gguf_size(&keys, "context_length", PD_CONTEXT_MAX, &config->context, error)) !=
            PD_OK ||
        (status = gguf_size(&keys, "embedding_length", PD_HIDDEN_MAX, &config->hidden, error)) !=
            PD_OK ||
        (status = gguf_size(&keys, "feed_forward_length", PD_FEED_FORWARD_MAX,
                            &config->feed_forward, error)) != PD_OK ||
        (status = gguf_size_or(&keys, "attention.sliding_window", PD_CONTEXT_MAX, &config->window,
                               error)) != PD_OK ||
        (status = gguf_heads(&keys, config, error)) != PD_OK ||
        (status = gguf_rope(&keys, config, rope, error)) != PD_OK ||
        (status = gguf_vocabulary(&keys, tensors, config, error)) != PD_OK ||
        (status = gguf_special_tokens(gguf, config, error)) != PD_OK ||
        (status = pd_gguf_number(gguf, key_of(&keys, "attention.layer_norm_rms_epsilon"), &epsilon,
                                 error)) != PD_OK)
        return status;
    config->norm_eps = (float)epsilon;
    return pd_config_check(pd_gguf_file(gguf), config, rope, error);
}
