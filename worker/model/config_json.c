#include "worker/model/config.h"

#include <string.h>

#include "worker/model/json.h"

static int json_size(const char *file, const json_t *root, const char *key, int max, int *value,
                     struct pd_error *error)
{
    int64_t number;
    int status = pd_json_integer(file, root, key, 1, max, &number, error);

    if (status == PD_OK)
        *value = (int)number;
    return status;
}

static int json_size_or(const char *file, const json_t *root, const char *key, int max, int *value,
                        struct pd_error *error)
{
    int status = json_size(file, root, key, max, value, error);

    return status == PD_NOT_FOUND ? PD_OK : status;
}

static int json_number_or(const char *file, const json_t *root, const char *key, double *value,
                          struct pd_error *error)
{
    int status = pd_json_number(file, root, key, value, error);

    return status == PD_NOT_FOUND ? PD_OK : status;
}

static int json_refuse(const char *file, const json_t *root, struct pd_error *error)
{
    static const char *const switches[] = {"attention_bias", "mlp_bias"};
    const char *activation = "silu";
    double rotary = 1;
    int status;

    for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++) {
        bool on = false;

        status = pd_json_boolean(file, root, switches[i], &on, error);
        if (status != PD_OK && status != PD_NOT_FOUND)
            return status;
        if (on)
            return pd_fail(error, PD_UNSUPPORTED, "%s: \"%s\": true is not supported", file,
                           switches[i]);
    }
    if (json_is_object(json_object_get(root, "quantization_config")))
        return pd_fail(error, PD_UNSUPPORTED,
                       "%s: \"quantization_config\": quantised safetensors are not supported",
                       file);
    status = pd_json_string(file, root, "hidden_act", &activation, error);
    if (status != PD_OK && status != PD_NOT_FOUND)
        return status;
    if (strcmp(activation, "silu") != 0)
        return pd_fail(error, PD_UNSUPPORTED, "%s: \"hidden_act\": \"%.32s\" is not supported",
                       file, activation);
    if ((status = json_number_or(file, root, "partial_rotary_factor", &rotary, error)) != PD_OK)
        return status;
    return rotary == 1
               ? PD_OK
               : pd_fail(error, PD_UNSUPPORTED,
                         "%s: \"partial_rotary_factor\": %g is not supported", file, rotary);
}

static int json_llama3(const char *file, const json_t *scaling, struct pd_rope *rope,
                       struct pd_error *error)
{
    int status;

    rope->scaling = PD_ROPE_LLAMA3;
    if ((status = pd_json_number(file, scaling, "factor", &rope->factor, error)) != PD_OK ||
        (status = pd_json_number(file, scaling, "low_freq_factor", &rope->low_frequency, error)) !=
            PD_OK ||
        (status = pd_json_number(file, scaling, "high_freq_factor", &rope->high_frequency,
                                 error)) != PD_OK)
        return status;
    return json_size(file, scaling, "original_max_position_embeddings", PD_CONTEXT_MAX,
                     &rope->original_context, error);
}

/* Older files have "rope_theta" and "rope_scaling", newer ones both in "rope_parameters". */
static int json_rope(const char *file, const json_t *root, struct pd_model_config *config,
                     struct pd_rope *rope, struct pd_error *error)
{
    const json_t *scaling = json_object_get(root, "rope_parameters");
    const char *type = "default";
    double base = 10000;
    int status;

    if (!json_is_object(scaling))
        scaling = json_object_get(root, "rope_scaling");
    config->rope_dim = config->head_dim;
    if ((status = json_number_or(file, root, "rope_theta", &base, error)) != PD_OK ||
        (status = json_number_or(file, scaling, "rope_theta", &base, error)) != PD_OK)
        return status;
    config->rope_base = (float)base;
    status = pd_json_string(file, scaling, "rope_type", &type, error);
    if (status == PD_NOT_FOUND)
        status = pd_json_string(file, scaling, "type", &type, error);
    if (status != PD_OK && status != PD_NOT_FOUND)
        return status;
    if (strcmp(type, "default") == 0)
        return PD_OK;
    if (strcmp(type, "llama3") == 0)
        return json_llama3(file, scaling, rope, error);
    if (strcmp(type, "linear") != 0)
        return pd_fail(error, PD_UNSUPPORTED, "%s: rope scaling \"%.32s\" is not supported", file,
                       type);
    rope->scaling = PD_ROPE_LINEAR;
    return pd_json_number(file, scaling, "factor", &rope->factor, error);
}

static int fail_window(const char *file, const char *key, struct pd_error *error)
{
    return pd_fail(error, PD_UNSUPPORTED,
                   "%s: \"%s\": layers with and without a sliding window are not supported", file,
                   key);
}

/* Whether "layer_types" or, in older files, "max_window_layers" gives every layer the window. */
static int json_windowed_layers(const char *file, const json_t *root, int layers, bool *windowed,
                                struct pd_error *error)
{
    const json_t *types = json_object_get(root, "layer_types");
    int64_t first = 0;
    int status;

    if (json_is_array(types) && json_array_size(types) > 0) {
        const char *all = json_string_value(json_array_get(types, 0));

        for (size_t i = 0; i < json_array_size(types); i++) {
            const char *type = json_string_value(json_array_get(types, i));

            if (!type || !all || strcmp(type, all) != 0)
                return fail_window(file, "layer_types", error);
        }
        *windowed = strcmp(all, "sliding_attention") == 0;
        if (!*windowed && strcmp(all, "full_attention") != 0)
            return pd_fail(error, PD_UNSUPPORTED, "%s: \"layer_types\": \"%.32s\" is not supported",
                           file, all);
        return PD_OK;
    }
    status = pd_json_integer(file, root, "max_window_layers", 0, INT32_MAX, &first, error);
    if (status != PD_OK && status != PD_NOT_FOUND)
        return status;
    if (first > 0 && first < layers)
        return fail_window(file, "max_window_layers", error);
    *windowed = first == 0;
    return PD_OK;
}

static int json_window(const char *file, const json_t *root, bool by_switch,
                       struct pd_model_config *config, struct pd_error *error)
{
    bool use = !by_switch, windowed = true;
    int status = PD_OK;

    if (by_switch) {
        status = pd_json_boolean(file, root, "use_sliding_window", &use, error);
        if (status == PD_OK && use)
            status = json_windowed_layers(file, root, config->layers, &windowed, error);
    }
    if (status != PD_OK && status != PD_NOT_FOUND)
        return status;
    return use && windowed
               ? json_size_or(file, root, "sliding_window", PD_CONTEXT_MAX, &config->window, error)
               : PD_OK;
}

static int json_family(const char *file, const json_t *root, const struct pd_family **family,
                       struct pd_error *error)
{
    const char *name = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    char known[PD_FAMILY_LIST];

    if (!name)
        return pd_fail(error, PD_INVALID, "%s: \"architectures\" does not name a class", file);
    *family = pd_family_find(PD_FAMILY_CLASS, name, strlen(name));
    return *family ? PD_OK
                   : pd_fail(error, PD_UNSUPPORTED,
                             "%s: architecture \"%.64s\" is not supported, but these are: %s", file,
                             name, pd_family_list(PD_FAMILY_CLASS, known));
}

/* An id, a list of ids, or nothing. */
static int json_eos(const char *file, const json_t *root, struct pd_model_config *config,
                    struct pd_error *error)
{
    const json_t *value = json_object_get(root, "eos_token_id"), *item;
    size_t count = json_is_array(value) ? json_array_size(value) : 1;
    int status = PD_OK;

    if (!value || json_is_null(value))
        return PD_OK;
    config->eos_count = 0;
    for (size_t i = 0; i < count && status == PD_OK; i++) {
        item = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_integer(item))
            return pd_fail(error, PD_INVALID, "%s: \"eos_token_id\" is not a token id", file);
        status = pd_config_add_eos(config, json_integer_value(item), file, error);
    }
    return status;
}

static int json_tokens(const char *file, const json_t *root, struct pd_model_config *config,
                       struct pd_error *error)
{
    int64_t bos = -1;
    int status =
        pd_json_integer(file, root, "bos_token_id", -1, config->vocabulary - 1, &bos, error);

    if (status != PD_OK && status != PD_NOT_FOUND)
        return status;
    config->bos = (int32_t)bos;
    return json_eos(file, root, config, error);
}

/* The switch decides where it is given; without it, a model without an output matrix is tied. */
static int json_tied(const char *file, const json_t *root, const struct pd_tensor_table *tensors,
                     struct pd_model_config *config, struct pd_error *error)
{
    int status = pd_json_boolean(file, root, "tie_word_embeddings", &config->tied_output, error);

    if (status == PD_NOT_FOUND) {
        config->tied_output = !pd_tensor_table_find(tensors, "lm_head.weight");
        return PD_OK;
    }
    return status;
}

static int json_sizes(const char *file, const json_t *root, struct pd_model_config *config,
                      struct pd_error *error)
{
    double epsilon = 1e-6;
    int status;

    if ((status = json_size(file, root, "num_hidden_layers", PD_LAYERS_MAX, &config->layers,
                            error)) != PD_OK ||
        (status = json_size(file, root, "hidden_size", PD_HIDDEN_MAX, &config->hidden, error)) !=
            PD_OK ||
        (status = json_size(file, root, "intermediate_size", PD_FEED_FORWARD_MAX,
                            &config->feed_forward, error)) != PD_OK ||
        (status = json_size(file, root, "num_attention_heads", PD_HEADS_MAX, &config->heads,
                            error)) != PD_OK ||
        (status = json_size(file, root, "vocab_size", PD_VOCABULARY_MAX, &config->vocabulary,
                            error)) != PD_OK ||
        (status = json_size(file, root, "max_position_embeddings", PD_CONTEXT_MAX, &config->context,
                            error)) != PD_OK ||
        (status = json_number_or(file, root, "rms_norm_eps", &epsilon, error)) != PD_OK)
        return status;
    config->norm_eps = (float)epsilon;
    config->kv_heads = config->heads;
    config->head_dim = config->hidden / config->heads;
    if ((status = json_size_or(file, root, "num_key_value_heads", PD_HEADS_MAX, &config->kv_heads,
                               error)) != PD_OK)
        return status;
    return json_size_or(file, root, "head_dim", PD_HEAD_DIM_MAX, &config->head_dim, error);
}

int pd_config_from_json(const char *file, const json_t *root, const struct pd_tensor_table *tensors,
                        struct pd_model_config *config, struct pd_rope *rope,
                        struct pd_error *error)
{
    const struct pd_family *family;
    int status;

    memset(config, 0, sizeof(*config));
    memset(rope, 0, sizeof(*rope));
    rope->style = PD_ROPE_HALF;
    if ((status = json_family(file, root, &family, error)) != PD_OK)
        return status;
    pd_family_apply(family, config);
    if ((status = json_refuse(file, root, error)) != PD_OK ||
        (status = json_sizes(file, root, config, error)) != PD_OK ||
        (status = json_rope(file, root, config, rope, error)) != PD_OK ||
        (status = json_tied(file, root, tensors, config, error)) != PD_OK ||
        (status = json_tokens(file, root, config, error)) != PD_OK)
        return status;
    if (family->window != PD_WINDOW_NEVER &&
        (status = json_window(file, root, family->window == PD_WINDOW_BY_SWITCH, config, error)) !=
            PD_OK)
        return status;
    return pd_config_check(file, config, rope, error);
}

int pd_config_read_generation(const char *file, const json_t *root, struct pd_model_config *config,
                              struct pd_error *error)
{
    return json_eos(file, root, config, error);
}
