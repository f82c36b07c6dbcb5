/* What a model's files say about its shape, checked so far that later code multiplies without fear:
 * every number is bounded, heads divide as attention needs it, and whatever this build would
 * compute otherwise than the model's makers meant is refused by its name. */
#ifndef PD_MODEL_CONFIG_H
#define PD_MODEL_CONFIG_H

#include <jansson.h>

#include "worker/model/family.h"
#include "worker/model/gguf.h"
#include "worker/model/model.h"

enum {
    PD_LAYERS_MAX = 1024,
    PD_HIDDEN_MAX = 1 << 17,
    PD_FEED_FORWARD_MAX = 1 << 20,
    PD_HEADS_MAX = 1024,
    PD_HEAD_DIM_MAX = 1024,
    PD_VOCABULARY_MAX = 1 << 24,
    PD_CONTEXT_MAX = 1 << 24,
};

enum pd_rope_scaling { PD_ROPE_PLAIN, PD_ROPE_LINEAR, PD_ROPE_LLAMA3 };

/* How positions become angles, beyond config.rope_base and rope_dim. */
struct pd_rope {
    enum pd_rope_style style;
    enum pd_rope_scaling scaling;
    double factor;                        /* LINEAR, LLAMA3: >= 1 */
    double low_frequency, high_frequency; /* LLAMA3 */
    int original_context;                 /* LLAMA3 */
};

/* Fills everything but weight_bytes. `tensors` is the sealed table: it tells the vocabulary where
 * the metadata does not, and whether the output is tied. */
int pd_config_from_gguf(const struct pd_gguf *gguf, const struct pd_tensor_table *tensors,
                        struct pd_model_config *config, struct pd_rope *rope,
                        struct pd_error *error);

/* The same from config.json. eos and bos are read too, and may be overridden by
 * pd_config_read_generation. */
int pd_config_from_json(const char *file, const json_t *root, const struct pd_tensor_table *tensors,
                        struct pd_model_config *config, struct pd_rope *rope,
                        struct pd_error *error);

/* generation_config.json: its eos_token_id, where it has one, replaces config.json's. */
int pd_config_read_generation(const char *file, const json_t *root, struct pd_model_config *config,
                              struct pd_error *error);

/* out[rope_dim / 2]: radians per position of each pair. `factors` (NULL: none) divide them one by
 * one, as GGUF's rope_freqs.weight does. */
void pd_rope_frequencies(const struct pd_model_config *config, const struct pd_rope *rope,
                         const float *factors, float *out);

/* ---- shared by the two readers, config_gguf.c and config_json.c
 * ---------------------------------- */

/* A name for people: made printable and cut to fit. */
void pd_config_set_name(struct pd_model_config *config, const char *name, size_t length);

/* Adds a token that ends an answer, unless it is none (-1) or known. */
int pd_config_add_eos(struct pd_model_config *config, int64_t token, const char *file,
                      struct pd_error *error);

/* Everything filled in: do the numbers fit each other? */
int pd_config_check(const char *file, const struct pd_model_config *config,
                    const struct pd_rope *rope, struct pd_error *error);

#endif
