/* Vocabularies small enough to see through: the 256 bytes (a byte's id is its value), and whatever tokens
 * and merges a test adds. */
#ifndef TINY_VOCABULARY_H
#define TINY_VOCABULARY_H

#include "worker/text/tokenizer.h"

enum { TINY_TOKENS = 400, TINY_MERGES = 64, TINY_TEXT = 8192 };

struct tiny_vocabulary {
    struct pd_string tokens[TINY_TOKENS];
    uint8_t kinds[TINY_TOKENS];
    size_t count;
    struct pd_string merges[TINY_MERGES];
    size_t merge_count;
    char text[TINY_TEXT]; /* what tokens and merges point into */
    size_t text_length;
};

/* Only the bytes. Not to be moved in memory afterwards. */
void tiny_init(struct tiny_vocabulary *vocabulary);

/* Adds a token of these bytes; returns its id. */
int32_t tiny_add(struct tiny_vocabulary *vocabulary, const char *bytes, enum pd_token_kind kind);

/* Adds a merge, and the token that it makes, whose id it returns. */
int32_t tiny_merge(struct tiny_vocabulary *vocabulary, const char *left, const char *right);

/* A spec of the vocabulary with no expressions and no flags. */
struct pd_tokenizer_spec tiny_spec(const struct tiny_vocabulary *vocabulary);

/* Builds it, or fails the test with the error's words. */
struct pd_tokenizer *tiny_build(const struct pd_tokenizer_spec *spec);

/* Encodes all of it without a limit and asserts that it worked. */
struct pd_tokens tiny_encode(const struct pd_tokenizer *tokenizer, const char *text, size_t length);

#endif
