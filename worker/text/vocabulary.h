/* The vocabulary: every token's bytes by id, and the id of a piece of text.
 *
 * Vocabulary files spell bytes in an alphabet of 256 printable characters ("Ġ" is a space). Here
 * all tokens are kept as the bytes that they stand for; the spelling is gone once the file is read.
 *
 * SentencePiece's vocabularies spell a space as the mark "▁", and have a token "<0x41>" for every byte beside
 * those for characters. There too a token is kept as what it stands for, a space, or the byte. */
#ifndef PD_VOCABULARY_H
#define PD_VOCABULARY_H

#include "worker/text/tokenizer.h"

enum {
    PD_VOCABULARY_MAX = 1 << 21, /* tokens */
    PD_TOKEN_BYTES_MAX = 1 << 16,
};

#define PD_TEXT_MARK "\xE2\x96\x81" /* U+2581 */

struct pd_vocabulary {
    size_t count;
    bool marks;        /* SentencePiece's spelling */
    uint8_t *kinds;    /* enum pd_token_kind by id */
    uint32_t *offsets; /* count + 1: token i is bytes[offsets[i]..offsets[i + 1]) */
    char *bytes;
    size_t longest;        /* bytes of the longest normal token */
    int32_t byte_ids[256]; /* the tokens of single bytes (marks: those spelt "<0x..>"), -1: none */
    int32_t *slots; /* hash table of the normal tokens that can be spelt, by bytes; -1: free */
    size_t slot_mask;
    uint64_t seed;
};

/* Reads tokens and kinds of the spec. A token of the kinds ADDED and SPECIAL is plain text; an
 * UNUSED one has no bytes; two normal tokens of equal bytes are PD_INVALID. */
int pd_vocabulary_init(struct pd_vocabulary *vocabulary, const struct pd_tokenizer_spec *spec,
                       struct pd_error *error);
void pd_vocabulary_free(struct pd_vocabulary *vocabulary);

/* The normal token of exactly these bytes, or -1. */
int32_t pd_vocabulary_find(const struct pd_vocabulary *vocabulary, const char *bytes,
                           size_t length);

static inline struct pd_string pd_vocabulary_bytes(const struct pd_vocabulary *vocabulary,
                                                   size_t id)
{
    uint32_t first = vocabulary->offsets[id];

    return (struct pd_string){vocabulary->bytes + first, vocabulary->offsets[id + 1] - first};
}

/* Reads bytes spelt in the alphabet: writes at most `length` bytes to out[]; returns their number,
 * or SIZE_MAX if a character is not of the alphabet. */
size_t pd_unspell(const char *spelling, size_t length, char *out);

/* The same of text with marks, for which there must be no space in it. */
size_t pd_unspell_marks(const char *spelling, size_t length, char *out);

/* One or the other, as the vocabulary's tokens are spelt. */
size_t pd_vocabulary_unspell(const struct pd_vocabulary *vocabulary, const char *spelling,
                             size_t length, char *out);

/* Writes text with every mark as a space, which is what a token with a mark stands for; returns the number of
 * bytes, at most `length`. */
size_t pd_text_unmark(const char *text, size_t length, char *out);

#endif
