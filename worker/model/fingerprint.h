/* The fingerprint of a model's weights: a SHA-256 tree, so that any number of threads can compute
 * it while the weights are being loaded. README.md defines it byte by byte.
 *
 *        root                     over the tensors, in order of name
 *      /  |  \
 *   tensor ...                    over name, type, shape and its pieces
 *    / | \
 *   piece ...                     4 MiB of a tensor's bytes, the last one shorter */
#ifndef PD_FINGERPRINT_H
#define PD_FINGERPRINT_H

#include "worker/model/config.h"
#include "worker/model/tensors.h"

enum { PD_PIECE = 4 << 20 }; /* bytes; part of the definition */

struct pd_weight_tree;

/* For a sealed table, which is borrowed. */
int pd_weight_tree_create(const struct pd_tensor_table *tensors, struct pd_weight_tree **tree,
                          struct pd_error *error);
void pd_weight_tree_destroy(struct pd_weight_tree *tree);

/* Pieces are numbered through all tensors in order of name. */
size_t pd_weight_tree_pieces(const struct pd_weight_tree *tree);
/* The bytes of a piece. */
const uint8_t *pd_weight_tree_piece(const struct pd_weight_tree *tree, size_t piece, size_t *bytes);

/* Hashes one piece. Distinct pieces may be hashed at the same time. */
int pd_weight_tree_hash(struct pd_weight_tree *tree, size_t piece, struct pd_error *error);

/* The root, once every piece has been hashed. */
int pd_weight_tree_root(const struct pd_weight_tree *tree, uint8_t digest[PD_DIGEST],
                        struct pd_error *error);

/* Everything besides the weights that gives a KV byte its meaning: the shape of the computation and
 * the type in the pool. Not the pool's size nor its block size, which differ between workers that
 * fit each other. */
int pd_layout_digest(const struct pd_model_config *config, const struct pd_rope *rope,
                     const float *inverse_frequency, enum pd_dtype kv_type,
                     uint8_t digest[PD_DIGEST], struct pd_error *error);

int pd_sha256(const void *bytes, size_t size, uint8_t digest[PD_DIGEST], struct pd_error *error);

#endif
