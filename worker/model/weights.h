/* From names in files to places in the graph.
 *
 * A model's tensors have roles ("layer 3's gate"); GGUF and Hugging Face name them differently.
 * Binding finds the tensor of every role that the configuration asks for, checks its shape, and
 * refuses a tensor that has no role: a weight that the graph would leave out changes the model. */
#ifndef PD_WEIGHTS_H
#define PD_WEIGHTS_H

#include "worker/model/config.h"
#include "worker/model/tensors.h"

struct pd_layer_tensors {
    const struct pd_file_tensor *attention_norm, *query, *key, *value;
    const struct pd_file_tensor *query_bias, *key_bias, *value_bias; /* NULL without qkv_bias */
    const struct pd_file_tensor *query_norm, *key_norm;              /* NULL without qk_norm */
    const struct pd_file_tensor *attention_output, *feed_forward_norm, *gate, *up, *down;
};

/* Pointers into the table. */
struct pd_model_tensors {
    const struct pd_file_tensor *embedding, *output_norm;
    const struct pd_file_tensor *output;       /* NULL: tied to the embedding */
    const struct pd_file_tensor *rope_factors; /* GGUF only, or NULL */
    struct pd_layer_tensors *layers;           /* [config.layers] */
};

enum pd_naming { PD_NAMING_GGUF, PD_NAMING_HUGGING_FACE };

/* `source` names the model in errors about tensors that are missing. */
int pd_model_tensors_bind(const struct pd_tensor_table *table, enum pd_naming naming,
                          const struct pd_model_config *config, const char *source,
                          struct pd_model_tensors *tensors, struct pd_error *error);

/* The other way round: appends the tensors that such a model has, under Hugging Face's names, all of
 * `type`, without data. `file` (for messages) is borrowed. */
int pd_model_tensors_expect(const struct pd_model_config *config, enum pd_dtype type,
                            const char *file, struct pd_tensor_table *table,
                            struct pd_error *error);
void pd_model_tensors_free(struct pd_model_tensors *tensors);

#endif
