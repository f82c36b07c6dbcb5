/* BPE tokenizer: text to token ids and back, as Hugging Face `tokenizers` does it.
 *
 *   text ─▶ added tokens (leftmost-longest, only where the text may hold them) ─▶ NFC ─▶ regex
 *        ─▶ byte map ─▶ BPE (lowest rank, then leftmost) ─▶ ids
 *
 * or, with SentencePiece's vocabularies (Llama 2, Mistral), where a space is written as the mark U+2581, words
 * begin with one, and a character without a token is spelt in tokens of bytes:
 *
 *   text ─▶ added tokens ─▶ marks ─▶ characters, bytes ─▶ BPE ─▶ ids
 *
 * The rules come from the model's own file through a spec; nothing is chosen by a model's name. A
 * tokenizer is immutable once made: any number of threads may encode at once. */
#ifndef PD_TOKENIZER_H
#define PD_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/base/error.h"

struct pd_string {
    const char *bytes;
    size_t length;
};

enum pd_token_kind {
    PD_TOKEN_NORMAL,
    PD_TOKEN_ADDED,   /* matched as a whole in the raw text, kept in the output ("<think>") */
    PD_TOKEN_SPECIAL, /* matched only where the template wrote it, dropped from the output */
    PD_TOKEN_UNUSED,
};

/* The mark before a text, and behind an added token: what makes its first word one like the others. */
enum pd_mark {
    PD_MARK_NONE,
    PD_MARK_ALWAYS,  /* before all text between added tokens, whatever it begins with */
    PD_MARK_MISSING, /* the same, unless it begins with a mark or a space */
    PD_MARK_FIRST,   /* before the text's beginning only, unless that is one */
};

/* A tokenizer's definition, borrowed for the call that reads it. */
struct pd_tokenizer_spec {
    /* by id, in the byte-map alphabet (added tokens: plain text), or with marks */
    const struct pd_string *tokens;
    const uint8_t *kinds; /* enum pd_token_kind by id */
    size_t token_count;
    const struct pd_string *merges; /* "left right", best first, spelt as the tokens are */
    size_t merge_count;
    /* pre-tokeniser: applied in turn, each splits the pieces of the one before */
    const struct pd_string *regexes;
    size_t regex_count;
    bool digits_alone;  /* split every digit off first (SmolLM2) */
    bool nfc;           /* normalise to NFC */
    bool ignore_merges; /* a whole piece that is a token is taken as it is (Llama 3) */
    bool add_bos;       /* put bos_id before a text that does not begin with it */
    /* SentencePiece's spelling; "<0x41>" is a byte, and all 256 must be there. No regexes, nfc and ignore_merges
     * then */
    bool marks;
    enum pd_mark mark;
    int32_t bos_id, eos_id; /* -1: none */
};

struct pd_tokenizer;

/* Makes a tokenizer; copies what it needs. Fails by name on a merge or regex it cannot use. */
int pd_tokenizer_create(const struct pd_tokenizer_spec *spec, struct pd_tokenizer **tokenizer,
                        struct pd_error *error);

/* From the text of a tokenizer.json, with the flags of tokenizer_config.json where given (NULL: none). */
int pd_tokenizer_from_json(const char *json, size_t length, const char *config,
                           size_t config_length, struct pd_tokenizer **tokenizer,
                           struct pd_error *error);

/* From the bytes of a SentencePiece file (tokenizer.model), as the tokenizer.json that `transformers` makes of it; the same flags. */
int pd_tokenizer_from_sentencepiece(const void *bytes, size_t length, const char *config,
                                    size_t config_length, struct pd_tokenizer **tokenizer,
                                    struct pd_error *error);

/* The regexes that llama.cpp's GGUF metadata names in tokenizer.ggml.pre ("smollm", "qwen2",
 * "llama-bpe", "default", ...). PD_UNSUPPORTED, by name, for one that is not known. Fills only regexes,
 * regex_count, digits_alone, nfc and ignore_merges; the strings are static. */
int pd_tokenizer_rules_by_name(const char *pre, struct pd_tokenizer_spec *spec,
                               struct pd_error *error);

void pd_tokenizer_destroy(struct pd_tokenizer *tokenizer);

/* Bytes [first, first + length) of a prompt that a user wrote: no special or added token is
 * recognised in a match that touches them. */
struct pd_span {
    size_t first, length;
};

struct pd_tokens {
    int32_t *ids; /* malloc'ed, grown as needed */
    size_t count, capacity;
};

/* Appends the ids of text[0..length) to *out. `literal` spans are sorted and disjoint. Invalid UTF-8
 * is PD_INVALID with its offset. PD_FULL as soon as out->count would pass `limit`: a hostile prompt
 * costs no more than the limit. */
int pd_tokenizer_encode(const struct pd_tokenizer *tokenizer, const char *text, size_t length,
                        const struct pd_span *literal, size_t literal_count, size_t limit,
                        struct pd_tokens *out, struct pd_error *error);

void pd_tokens_free(struct pd_tokens *tokens);

size_t pd_tokenizer_vocabulary(const struct pd_tokenizer *tokenizer);
int32_t pd_tokenizer_eos(const struct pd_tokenizer *tokenizer);
int32_t pd_tokenizer_bos(const struct pd_tokenizer *tokenizer);
enum pd_token_kind pd_tokenizer_kind(const struct pd_tokenizer *tokenizer, int32_t id);

/* Whether its tokens are SentencePiece's. */
bool pd_tokenizer_has_marks(const struct pd_tokenizer *tokenizer);

/* Id of an added or special token by its text, or -1. */
int32_t pd_tokenizer_find(const struct pd_tokenizer *tokenizer, const char *text, size_t length);

/* The raw bytes of a token (may be part of a character); "" for an id out of range. Specials give
 * their text here. Valid as long as the tokenizer. */
struct pd_string pd_tokenizer_bytes(const struct pd_tokenizer *tokenizer, int32_t id);

/* SHA-256 over a canonical form of everything that changes what encode or bytes return. */
void pd_tokenizer_digest(const struct pd_tokenizer *tokenizer, uint8_t digest[32]);

#endif
