/* Weights on their way to the device: every tensor is copied (and repacked by the device) and
 * hashed, by all threads at once, in the order in which the files hold them, with the kernel
 * reading ahead. */
#ifndef PD_MODEL_LOAD_H
#define PD_MODEL_LOAD_H

#include "worker/model/files.h"

struct pd_layer_weights {
    struct pd_weight *attention_norm, *qkv, *attention_output, *feed_forward_norm, *gate_up, *down;
    struct pd_weight *qkv_bias;              /* NULL without */
    struct pd_weight *query_norm, *key_norm; /* NULL without */
};

struct pd_device_weights {
    struct pd_weight *embedding, *output_norm;
    struct pd_weight *output; /* NULL: the embedding is the output too */
    struct pd_layer_weights *layers;
    int layer_count;
    struct pd_weight_cache *cache; /* where the matrices lie, or NULL */
};

/* Fills weights[rank] of every rank of the device with its share. On failure nothing stays on the device.
 * `digest` is the fingerprint of all weights. */
int pd_device_weights_load(const struct pd_model_files *files, struct pd_device *device,
                           const struct pd_model_options *options,
                           struct pd_device_weights *weights, uint8_t digest[PD_DIGEST],
                           struct pd_error *error);
void pd_device_weights_free(struct pd_device_weights *weights);

#endif
