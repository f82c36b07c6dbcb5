#include "worker/model/fingerprint.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What each node's hash begins with, so that none can pass for another. */
enum { LEAF = 0, TENSOR = 1, ROOT = 2 };

struct pd_weight_tree {
    const struct pd_tensor_table *tensors;
    size_t *first; /* [count + 1]: number of each tensor's first piece */
    uint8_t (*leaves)[PD_DIGEST];
};

/* ---- hashing -----------------------------------------------------------------------------------
 */

struct hash {
    EVP_MD_CTX *context;
    bool good; /* stays false after a failure: asked once, at the end */
};

static void hash_begin(struct hash *hash)
{
    hash->context = EVP_MD_CTX_new();
    hash->good = hash->context && EVP_DigestInit_ex(hash->context, EVP_sha256(), NULL) == 1;
}

static void hash_bytes(struct hash *hash, const void *bytes, size_t size)
{
    hash->good = hash->good && EVP_DigestUpdate(hash->context, bytes, size) == 1;
}

/* Integers are hashed as 8 bytes, lowest first. */
static void hash_integer(struct hash *hash, uint64_t value)
{
    uint8_t bytes[8];

    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
    hash_bytes(hash, bytes, sizeof(bytes));
}

static void hash_text(struct hash *hash, const char *text)
{
    hash_integer(hash, strlen(text));
    hash_bytes(hash, text, strlen(text));
}

static void hash_begin_node(struct hash *hash, uint8_t kind)
{
    hash_begin(hash);
    hash_bytes(hash, &kind, 1);
}

static int hash_end(struct hash *hash, uint8_t digest[PD_DIGEST], struct pd_error *error)
{
    bool good = hash->good && EVP_DigestFinal_ex(hash->context, digest, NULL) == 1;

    EVP_MD_CTX_free(hash->context);
    return good ? PD_OK : pd_fail(error, PD_NO_MEMORY, "OpenSSL cannot compute SHA-256");
}

int pd_sha256(const void *bytes, size_t size, uint8_t digest[PD_DIGEST], struct pd_error *error)
{
    struct hash hash;

    hash_begin(&hash);
    hash_bytes(&hash, bytes, size);
    return hash_end(&hash, digest, error);
}

/* ---- the tree ----------------------------------------------------------------------------------
 */

int pd_weight_tree_create(const struct pd_tensor_table *tensors, struct pd_weight_tree **tree,
                          struct pd_error *error)
{
    struct pd_weight_tree *result = calloc(1, sizeof(*result));
    size_t pieces = 0;

    *tree = NULL;
    if (!result)
        return pd_fail(error, PD_NO_MEMORY, "no memory for the weights' fingerprint");
    result->tensors = tensors;
    result->first = calloc(tensors->count + 1, sizeof(*result->first));
    for (size_t i = 0; result->first && i < tensors->count; i++) {
        pieces += (tensors->tensors[i].bytes + PD_PIECE - 1) / PD_PIECE;
        result->first[i + 1] = pieces;
    }
    result->leaves = calloc(pieces + 1, sizeof(*result->leaves));
    if (!result->first || !result->leaves) {
        pd_weight_tree_destroy(result);
        return pd_fail(error, PD_NO_MEMORY, "no memory for the weights' fingerprint");
    }
    *tree = result;
    return PD_OK;
}

void pd_weight_tree_destroy(struct pd_weight_tree *tree)
{
    if (!tree)
        return;
    free(tree->first);
    free(tree->leaves);
    free(tree);
}

size_t pd_weight_tree_pieces(const struct pd_weight_tree *tree)
{
    return tree->first[tree->tensors->count];
}

/* The tensor that `piece` is of: the last one whose first piece is not behind it. */
static size_t tensor_of(const struct pd_weight_tree *tree, size_t piece)
{
    size_t low = 0, high = tree->tensors->count;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (tree->first[middle] <= piece)
            low = middle;
        else
            high = middle;
    }
    return low;
}

const uint8_t *pd_weight_tree_piece(const struct pd_weight_tree *tree, size_t piece, size_t *bytes)
{
    size_t index = tensor_of(tree, piece);
    const struct pd_file_tensor *tensor = &tree->tensors->tensors[index];
    size_t offset = (piece - tree->first[index]) * PD_PIECE;

    *bytes = tensor->bytes - offset < PD_PIECE ? tensor->bytes - offset : PD_PIECE;
    return tensor->data + offset;
}

int pd_weight_tree_hash(struct pd_weight_tree *tree, size_t piece, struct pd_error *error)
{
    struct hash hash;
    size_t bytes;
    const uint8_t *data = pd_weight_tree_piece(tree, piece, &bytes);

    hash_begin_node(&hash, LEAF);
    hash_bytes(&hash, data, bytes);
    return hash_end(&hash, tree->leaves[piece], error);
}

static int hash_tensor(const struct pd_weight_tree *tree, size_t index, uint8_t digest[PD_DIGEST],
                       struct pd_error *error)
{
    const struct pd_file_tensor *tensor = &tree->tensors->tensors[index];
    size_t first = tree->first[index], pieces = tree->first[index + 1] - first;
    struct hash hash;

    hash_begin_node(&hash, TENSOR);
    hash_text(&hash, tensor->name);
    hash_text(&hash, pd_dtype_name(tensor->type));
    hash_integer(&hash, (uint64_t)tensor->rank);
    for (int i = 0; i < tensor->rank; i++)
        hash_integer(&hash, (uint64_t)tensor->shape[i]);
    hash_bytes(&hash, tree->leaves[first], pieces * PD_DIGEST);
    return hash_end(&hash, digest, error);
}

int pd_weight_tree_root(const struct pd_weight_tree *tree, uint8_t digest[PD_DIGEST],
                        struct pd_error *error)
{
    uint8_t node[PD_DIGEST];
    struct hash hash;
    int status = PD_OK, end;

    hash_begin_node(&hash, ROOT);
    hash_integer(&hash, tree->tensors->count);
    for (size_t i = 0; i < tree->tensors->count && status == PD_OK; i++) {
        status = hash_tensor(tree, i, node, error);
        hash_bytes(&hash, node, sizeof(node));
    }
    end = hash_end(&hash, digest, error);
    return status != PD_OK ? status : end;
}

/* ---- the layout --------------------------------------------------------------------------------
 */

static void hash_floats(struct hash *hash, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;

        memcpy(&bits, &values[i], sizeof(bits));
        hash_integer(hash, bits);
    }
}

int pd_layout_digest(const struct pd_model_config *config, const struct pd_rope *rope,
                     const float *inverse_frequency, enum pd_dtype kv_type,
                     uint8_t digest[PD_DIGEST], struct pd_error *error)
{
    const uint64_t shape[] = {
        (uint64_t)config->layers,   (uint64_t)config->hidden,   (uint64_t)config->feed_forward,
        (uint64_t)config->heads,    (uint64_t)config->kv_heads, (uint64_t)config->head_dim,
        (uint64_t)config->rope_dim, (uint64_t)config->window,   (uint64_t)config->vocabulary,
        (uint64_t)rope->style,
    };
    struct hash hash;

    hash_begin(&hash);
    hash_text(&hash, "pd layout 1");
    hash_text(&hash, config->architecture);
    hash_text(&hash, pd_dtype_name(kv_type));
    for (size_t i = 0; i < sizeof(shape) / sizeof(shape[0]); i++)
        hash_integer(&hash, shape[i]);
    hash_floats(&hash, &config->norm_eps, 1);
    hash_floats(&hash, inverse_frequency, (size_t)config->rope_dim / 2);
    return hash_end(&hash, digest, error);
}
