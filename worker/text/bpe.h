/* Byte pair encoding: a piece of text becomes its bytes' tokens (with marks, those of its characters, and of
 * the bytes of characters that have none), and the pair whose merge is ranked
 * best (then the leftmost) is replaced by the token it makes, until no pair can be merged. */
#ifndef PD_BPE_H
#define PD_BPE_H

#include "worker/text/vocabulary.h"

enum { PD_MERGES_MAX = 1 << 22 };

struct pd_bpe;

/* Reads the merges ("left right" in the byte alphabet, best first); the vocabulary is borrowed.
 * With `ignore_merges` a piece that is a token is taken whole. PD_INVALID names the merge that is
 * malformed or speaks of tokens that the vocabulary does not have. */
int pd_bpe_create(const struct pd_vocabulary *vocabulary, const struct pd_string *merges,
                  size_t merge_count, bool ignore_merges, struct pd_bpe **bpe,
                  struct pd_error *error);
void pd_bpe_destroy(struct pd_bpe *bpe);

/* Memory that one thread reuses from piece to piece; zero it before the first use. */
struct pd_bpe_work {
    struct pd_bpe_symbol *symbols;
    uint64_t *heap;
    size_t capacity; /* of symbols; the heap has twice as many */
};

void pd_bpe_work_free(struct pd_bpe_work *work);

/* Appends the piece's ids to *out. A byte that has no token of its own gives nothing, as in Hugging
 * Face's. PD_FULL, without merging anything, if the piece can not fit into `limit` tokens. Time is
 * O(n log n) in the piece's length. */
int pd_bpe_encode(const struct pd_bpe *bpe, struct pd_bpe_work *work, const char *piece,
                  size_t length, size_t limit, struct pd_tokens *out);

/* Appends one id; PD_FULL at the limit. */
int pd_tokens_append(struct pd_tokens *tokens, int32_t id, size_t limit);

#endif
