/* A model out of its config.json alone: random weights of the real shapes, for benchmarks and for
 * comparing devices (`--load-format dummy --seed N`).
 *
 * Weights come from a counter, not from a state: value i of a tensor is a function of the seed, the
 * tensor's name and i, the same on every machine, however many threads make it, whatever else the
 * model has. Matrices keep a row's size about as it is (uniform, standard deviation 1 /
 * sqrt(columns)), norms lie around 1, biases around 0. */
#ifndef PD_MODEL_DUMMY_H
#define PD_MODEL_DUMMY_H

#include "worker/model/mapping.h"
#include "worker/model/weights.h"

/* Makes every tensor that a model of this shape has, under Hugging Face's names, in `type` (F32, F16
 * or BF16), by `threads` threads (0: one per core). `memory` holds the values and is closed as a
 * file's mapping is; the table is sealed. */
int pd_dummy_weights(const struct pd_model_config *config, enum pd_dtype type, uint64_t seed,
                     int threads, struct pd_mapping *memory, struct pd_tensor_table *table,
                     struct pd_error *error);

/* The same without values: what `memory` holds cannot be read. */
int pd_dummy_shapes(const struct pd_model_config *config, enum pd_dtype type,
                    struct pd_mapping *memory, struct pd_tensor_table *table,
                    struct pd_error *error);

/* A tokenizer of 256 tokens, each a byte. */
int pd_dummy_tokenizer(struct pd_tokenizer **tokenizer, struct pd_error *error);

#endif
