#include "worker/model/gguf_tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/text/scores.h"
#include "worker/text/sentencepiece.h"

enum { TOKENS_MAX = 1 << 24, MERGES_MAX = 1 << 24 };

static bool equals(const struct pd_string *string, const char *text)
{
    return string->length == strlen(text) && memcmp(string->bytes, text, string->length) == 0;
}

/* llama.cpp's token types are SentencePiece's; a byte-level BPE has none for bytes. */
static int kind_of(int32_t type, bool marks, uint8_t *kind)
{
    return (type != 6 || marks) && pd_sentencepiece_kind(type, kind) ? PD_OK : PD_INVALID;
}

static int read_kinds(const struct pd_gguf *gguf, struct pd_tokenizer_spec *spec,
                      struct pd_error *error)
{
    static const char key[] = "tokenizer.ggml.token_type";
    int32_t *types;
    uint8_t *kinds;
    size_t count;
    int status = pd_gguf_integers(gguf, key, &types, &count, error);

    if (status != PD_OK)
        return status;
    kinds = calloc(spec->token_count, sizeof(*kinds));
    spec->kinds = kinds;
    if (!kinds)
        status =
            pd_fail(error, PD_NO_MEMORY, "%s: metadata %s: no memory", pd_gguf_file(gguf), key);
    else if (count != spec->token_count)
        status = pd_fail(error, PD_INVALID, "%s: metadata %s: %zu types for %zu tokens",
                         pd_gguf_file(gguf), key, count, spec->token_count);
    for (size_t i = 0; status == PD_OK && i < count; i++)
        if (kind_of(types[i], spec->marks, &kinds[i]) != PD_OK)
            status = pd_fail(error, PD_INVALID,
                             "%s: metadata %s: token %zu is of type %d, which a %s does not have",
                             pd_gguf_file(gguf), key, i, (int)types[i],
                             spec->marks ? "SentencePiece BPE" : "byte-level BPE");
    free(types);
    return status;
}

static int read_merges(const struct pd_gguf *gguf, struct pd_tokenizer_spec *spec,
                       struct pd_error *error)
{
    struct pd_string *strings;
    int status =
        pd_gguf_strings(gguf, "tokenizer.ggml.merges", &strings, &spec->merge_count, error);

    spec->merges = strings;
    if (status == PD_OK && spec->merge_count > MERGES_MAX)
        status = pd_fail(error, PD_INVALID, "%s: metadata tokenizer.ggml.merges: more than %d",
                         pd_gguf_file(gguf), MERGES_MAX);
    return status;
}

static int read_scores(const struct pd_gguf *gguf, struct pd_tokenizer_spec *spec,
                       struct pd_error *error)
{
    static const char key[] = "tokenizer.ggml.scores";
    float *scores;
    size_t count;
    int status = pd_gguf_floats(gguf, key, &scores, &count, error);

    if (status != PD_OK)
        return status;
    if (count != spec->token_count)
        status = pd_fail(error, PD_INVALID, "%s: metadata %s: %zu scores for %zu tokens",
                         pd_gguf_file(gguf), key, count, spec->token_count);
    else if ((status = pd_merges_from_scores(spec, scores, error)) != PD_OK)
        status = pd_fail_in(error, "%s: metadata %s", pd_gguf_file(gguf), key);
    free(scores);
    return status;
}

static int read_lists(const struct pd_gguf *gguf, struct pd_tokenizer_spec *spec,
                      struct pd_error *error)
{
    struct pd_string *strings;
    int status =
        pd_gguf_strings(gguf, "tokenizer.ggml.tokens", &strings, &spec->token_count, error);

    spec->tokens = strings;
    if (status != PD_OK)
        return status;
    if (spec->token_count == 0 || spec->token_count > TOKENS_MAX)
        return pd_fail(error, PD_INVALID,
                       "%s: metadata tokenizer.ggml.tokens: %zu tokens, not 1 to %d",
                       pd_gguf_file(gguf), spec->token_count, TOKENS_MAX);
    status = read_kinds(gguf, spec, error);
    if (status != PD_OK)
        return status;
    return spec->marks ? read_scores(gguf, spec, error) : read_merges(gguf, spec, error);
}

static int read_id(const struct pd_gguf *gguf, const char *key, size_t tokens, int32_t *id,
                   struct pd_error *error)
{
    int64_t value = -1;
    int status = pd_gguf_integer(gguf, key, 0, (int64_t)tokens - 1, &value, error);

    if (status != PD_OK && status != PD_NOT_FOUND)
        return status;
    *id = (int32_t)value;
    return PD_OK;
}

/* `fallback`: where the file is silent. */
static int read_add_bos(const struct pd_gguf *gguf, bool fallback, struct pd_tokenizer_spec *spec,
                        struct pd_error *error)
{
    int status = pd_gguf_boolean(gguf, "tokenizer.ggml.add_bos_token", &spec->add_bos, error);

    if (status == PD_NOT_FOUND)
        spec->add_bos = fallback;
    else if (status != PD_OK)
        return status;
    if (spec->add_bos && spec->bos_id < 0)
        return pd_fail(error, PD_INVALID,
                       "%s: metadata tokenizer.ggml.add_bos_token: there is no bos_token_id",
                       pd_gguf_file(gguf));
    return PD_OK;
}

/* Sets `marks`: which of the two spellings the lists have. */
static int read_model(const struct pd_gguf *gguf, struct pd_tokenizer_spec *spec,
                      struct pd_error *error)
{
    struct pd_string model;
    int status = pd_gguf_string(gguf, "tokenizer.ggml.model", &model, error);

    if (status != PD_OK)
        return status;
    spec->marks = equals(&model, "llama");
    if (!spec->marks && !equals(&model, "gpt2"))
        return pd_fail(error, PD_UNSUPPORTED,
                       "%s: metadata tokenizer.ggml.model: \"%.*s\" is not supported (gpt2, a "
                       "byte-level BPE, and llama, SentencePiece's, are)",
                       pd_gguf_file(gguf), model.length < 32 ? (int)model.length : 32, model.bytes);
    return PD_OK;
}

/* llama.cpp puts a mark before text that begins, and goes on behind a special token, whatever it begins with. */
static int read_mark(const struct pd_gguf *gguf, struct pd_tokenizer_spec *spec,
                     struct pd_error *error)
{
    bool prefix = true;
    int status = pd_gguf_boolean(gguf, "tokenizer.ggml.add_space_prefix", &prefix, error);

    if (status != PD_OK && status != PD_NOT_FOUND)
        return status;
    spec->mark = prefix ? PD_MARK_ALWAYS : PD_MARK_NONE;
    return PD_OK;
}

/* The expressions of a byte-level BPE by their name. Where the file does not say it, llama.cpp puts a BOS before the
 * text of Llama 3 and of no other one. */
static int read_pre(const struct pd_gguf *gguf, struct pd_tokenizer_spec *spec, bool *add_bos,
                    struct pd_error *error)
{
    struct pd_string pre = {"default", 7};
    char name[64];
    int status = pd_gguf_string(gguf, "tokenizer.ggml.pre", &pre, error);

    if (status != PD_OK && status != PD_NOT_FOUND)
        return status;
    *add_bos = equals(&pre, "llama-bpe") || equals(&pre, "llama3") || equals(&pre, "llama-v3");
    snprintf(name, sizeof(name), "%.*s", pre.length < sizeof(name) ? (int)pre.length : 63,
             pre.bytes);
    status = pd_tokenizer_rules_by_name(name, spec, error);
    if (status != PD_OK)
        return pd_fail_in(error, "%s: metadata tokenizer.ggml.pre", pd_gguf_file(gguf));
    return PD_OK;
}

static int read_rules(const struct pd_gguf *gguf, struct pd_tokenizer_spec *spec,
                      struct pd_error *error)
{
    bool add_bos = true;
    int status = spec->marks ? read_mark(gguf, spec, error) : read_pre(gguf, spec, &add_bos, error);

    if (status != PD_OK)
        return status;
    if ((status = read_id(gguf, "tokenizer.ggml.bos_token_id", spec->token_count, &spec->bos_id,
                          error)) != PD_OK ||
        (status = read_id(gguf, "tokenizer.ggml.eos_token_id", spec->token_count, &spec->eos_id,
                          error)) != PD_OK)
        return status;
    return read_add_bos(gguf, add_bos, spec, error);
}

int pd_gguf_tokenizer_read(const struct pd_gguf *gguf, struct pd_tokenizer_spec *spec,
                           struct pd_error *error)
{
    int status;

    memset(spec, 0, sizeof(*spec));
    status = read_model(gguf, spec, error);
    if (status == PD_OK)
        status = read_lists(gguf, spec, error);
    if (status == PD_OK)
        status = read_rules(gguf, spec, error);
    if (status != PD_OK)
        pd_gguf_tokenizer_free(spec);
    return status;
}

void pd_gguf_tokenizer_free(struct pd_tokenizer_spec *spec)
{
    free((void *)(uintptr_t)spec->tokens);
    free((void *)(uintptr_t)spec->merges);
    free((void *)(uintptr_t)spec->kinds);
    memset(spec, 0, sizeof(*spec));
}
