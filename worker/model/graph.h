/* The step of a decoder-only transformer, recorded once over kernels.h. */
#ifndef PD_MODEL_GRAPH_H
#define PD_MODEL_GRAPH_H

#include "worker/model/files.h"
#include "worker/model/load.h"
#include "worker/model/ranks.h"

/* Activations of one rank: allocated once, rows for the largest step. Heads and feed_forward are its share's. */
struct pd_step_tensors {
    struct pd_tensor residual; /* [tokens][hidden] runs through all layers */
    struct pd_tensor normed;   /* [tokens][hidden] */
    struct pd_tensor qkv;      /* [tokens][(heads + 2 kv_heads) head_dim] */
    struct pd_tensor attended; /* [tokens][heads head_dim] */
    struct pd_tensor inner;    /* [tokens][feed_forward] */
    struct pd_tensor sampled;  /* [samples][hidden] rows of `residual` whose logits are wanted */
    struct pd_tensor final;    /* [samples][hidden] the same, normed */
    struct pd_tensor logits;   /* [samples][vocabulary] */
};

int pd_step_tensors_create(struct pd_device *device, const struct pd_model_config *config,
                           const struct pd_model_share *share,
                           const struct pd_model_options *options, struct pd_step_tensors *tensors,
                           struct pd_error *error);
void pd_step_tensors_destroy(struct pd_step_tensors *tensors);

/* One rank's graph. `pinned` (or NULL) receives every step's logits. */
int pd_model_record(const struct pd_model_files *files, const struct pd_model_share *share,
                    struct pd_device *device, const struct pd_device_weights *weights,
                    const struct pd_step_tensors *tensors, const struct pd_kv_pool *pool,
                    struct pd_buffer *pinned, struct pd_graph **graph, struct pd_error *error);

/* Turns a failed call on the device into an error: `what` was being done. */
int pd_model_device_fail(struct pd_device *device, int code, const char *what,
                         struct pd_error *error);

#endif
