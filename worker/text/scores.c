/* SentencePiece merges the two neighbours whose token scores best. A list of ranked merges says the same once it
 * holds each pair of tokens that make a third:
 *
 *     token   score      pairs                          rank
 *     ▁th     -3         (▁t, h) (▁, th)                1 2
 *     ▁the    -9         (▁th, e) (▁t, he) (▁, the)     7 8 9
 *
 * Of the pairs of one token, the one with the longer left half comes first. */
#include "worker/text/scores.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/text/bpe.h"
#include "worker/text/unicode.h"
#include "worker/text/vocabulary.h"

/* All halves of a token are looked up, which takes the square of its length. */
enum { SPLIT_BYTES_MAX = 1024, SPELLED_BYTES_MAX = 256 << 20 };

struct pair {
    float score;
    uint32_t left_characters, right_characters;
    int32_t left, right, token;
};

struct pairs {
    struct pair *list;
    size_t count, capacity;
};

static uint32_t characters(const char *bytes, size_t length)
{
    uint32_t count = 0;

    for (size_t at = 0; at < length; at += pd_utf8_length(bytes[at]))
        count++;
    return count;
}

static int add_pair(struct pairs *pairs, const struct pair *pair, struct pd_error *error)
{
    if (pairs->count == PD_MERGES_MAX)
        return pd_fail(error, PD_INVALID,
                       "the tokens' scores give more than %d merges, which is the most supported",
                       PD_MERGES_MAX);
    if (pairs->count == pairs->capacity) {
        size_t capacity = pairs->capacity ? 2 * pairs->capacity : 4096;
        struct pair *larger = realloc(pairs->list, capacity * sizeof(*larger));

        if (!larger)
            return pd_fail(error, PD_NO_MEMORY, "no memory for %zu merges", capacity);
        pairs->list = larger;
        pairs->capacity = capacity;
    }
    pairs->list[pairs->count++] = *pair;
    return PD_OK;
}

/* Every way to cut one token into two. */
static int split(const struct pd_vocabulary *vocabulary, int32_t id, float score,
                 struct pairs *pairs, struct pd_error *error)
{
    struct pd_string token = pd_vocabulary_bytes(vocabulary, (size_t)id);
    int status = PD_OK;

    if (pd_vocabulary_find(vocabulary, token.bytes, token.length) != id)
        return PD_OK; /* it is a byte, or cannot be spelt */
    if (token.length > SPLIT_BYTES_MAX)
        return pd_fail(
            error, PD_UNSUPPORTED,
            "token %d has %zu bytes, at most %d are supported where merges come from scores",
            (int)id, token.length, SPLIT_BYTES_MAX);
    for (size_t at = pd_utf8_length(token.bytes[0]); at < token.length && status == PD_OK;
         at += pd_utf8_length(token.bytes[at])) {
        struct pair pair = {.score = score, .token = id};

        pair.left = pd_vocabulary_find(vocabulary, token.bytes, at);
        pair.right = pd_vocabulary_find(vocabulary, token.bytes + at, token.length - at);
        if (pair.left < 0 || pair.right < 0)
            continue;
        pair.left_characters = characters(token.bytes, at);
        pair.right_characters = characters(token.bytes + at, token.length - at);
        status = add_pair(pairs, &pair, error);
    }
    return status;
}

static int by_rank(const void *left, const void *right)
{
    const struct pair *a = left, *b = right;

    if (a->score != b->score)
        return a->score > b->score ? -1 : 1;
    if (a->left_characters != b->left_characters)
        return a->left_characters > b->left_characters ? -1 : 1;
    if (a->right_characters != b->right_characters)
        return a->right_characters > b->right_characters ? -1 : 1;
    return (a->token > b->token) - (a->token < b->token);
}

/* The pairs in words, as spec->tokens spells them: the list, and behind it the text. */
static int spell(struct pd_tokenizer_spec *spec, const struct pairs *pairs, struct pd_error *error)
{
    size_t bytes = 0;
    struct pd_string *merges;
    char *text;

    for (size_t i = 0; i < pairs->count; i++)
        bytes += spec->tokens[pairs->list[i].left].length + 1 +
                 spec->tokens[pairs->list[i].right].length;
    if (bytes > SPELLED_BYTES_MAX)
        return pd_fail(error, PD_UNSUPPORTED,
                       "merges of %zu bytes in all, at most %d are supported where they come from "
                       "scores",
                       bytes, SPELLED_BYTES_MAX);
    merges = malloc((pairs->count + 1) * sizeof(*merges) + bytes);
    if (!merges)
        return pd_fail(error, PD_NO_MEMORY, "no memory for %zu merges", pairs->count);
    text = (char *)(merges + pairs->count + 1);
    for (size_t i = 0; i < pairs->count; i++) {
        struct pd_string left = spec->tokens[pairs->list[i].left];
        struct pd_string right = spec->tokens[pairs->list[i].right];

        merges[i] = (struct pd_string){text, left.length + 1 + right.length};
        memcpy(text, left.bytes, left.length);
        text[left.length] = ' ';
        memcpy(text + left.length + 1, right.bytes, right.length);
        text += merges[i].length;
    }
    spec->merges = merges;
    spec->merge_count = pairs->count;
    return PD_OK;
}

int pd_merges_from_scores(struct pd_tokenizer_spec *spec, const float *scores,
                          struct pd_error *error)
{
    struct pd_vocabulary vocabulary;
    struct pairs pairs = {0};
    int status = pd_vocabulary_init(&vocabulary, spec, error);

    if (status != PD_OK)
        return status;
    for (size_t i = 0; i < spec->token_count && status == PD_OK; i++) {
        if (spec->kinds[i] != PD_TOKEN_NORMAL)
            continue;
        status = isfinite(scores[i])
                     ? split(&vocabulary, (int32_t)i, scores[i], &pairs, error)
                     : pd_fail(error, PD_INVALID, "the score of token %zu is no number", i);
    }
    if (pairs.count > 0)
        qsort(pairs.list, pairs.count, sizeof(*pairs.list), by_rank);
    if (status == PD_OK)
        status = spell(spec, &pairs, error);
    free(pairs.list);
    pd_vocabulary_free(&vocabulary);
    return status;
}
