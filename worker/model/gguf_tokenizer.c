#include "worker/model/gguf_tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS_MAX = 1 << 24, MERGES_MAX = 1 << 24 };

static bool equals(const struct pd_string *string, const char *text)
{
    return string->length == strlen(text) && memcmp(string->bytes, text, string->length) == 0;
}

/* llama.cpp's token types. */
static int kind_of(int32_t type, uint8_t *kind)
{
    switch (type) {
    case 1:
        *kind = PD_TOKEN_NORMAL;
        return PD_OK;
    case 2: /* "unknown": never to be read out of a user's text */
    case 3: /* control */
        *kind = PD_TOKEN_SPECIAL;
        return PD_OK;
    case 4: /* user-defined */
        *kind = PD_TOKEN_ADDED;
        return PD_OK;
    case 5:
        *kind = PD_TOKEN_UNUSED;
        return PD_OK;
    default: /* 6, byte, belongs to other kinds of tokenizers */
        return PD_INVALID;
    }
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
        if (kind_of(types[i], &kinds[i]) != PD_OK)
            status =
                pd_fail(error, PD_INVALID,
                        "%s: metadata %s: token %zu is of type %d, which a byte-level BPE does "
                        "not have",
                        pd_gguf_file(gguf), key, i, (int)types[i]);
    free(types);
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
    status = pd_gguf_strings(gguf, "tokenizer.ggml.merges", &strings, &spec->merge_count, error);
    spec->merges = strings;
    if (status != PD_OK)
        return status;
    if (spec->merge_count > MERGES_MAX)
        return pd_fail(error, PD_INVALID, "%s: metadata tokenizer.ggml.merges: more than %d",
                       pd_gguf_file(gguf), MERGES_MAX);
    return read_kinds(gguf, spec, error);
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

/* Where the file is silent, llama.cpp puts a BOS before the text of Llama 3 and of no other BPE. */
static int read_add_bos(const struct pd_gguf *gguf, const struct pd_string *pre,
                        struct pd_tokenizer_spec *spec, struct pd_error *error)
{
    int status = pd_gguf_boolean(gguf, "tokenizer.ggml.add_bos_token", &spec->add_bos, error);

    if (status == PD_NOT_FOUND)
        spec->add_bos =
            equals(pre, "llama-bpe") || equals(pre, "llama3") || equals(pre, "llama-v3");
    else if (status != PD_OK)
        return status;
    if (spec->add_bos && spec->bos_id < 0)
        return pd_fail(error, PD_INVALID,
                       "%s: metadata tokenizer.ggml.add_bos_token: there is no bos_token_id",
                       pd_gguf_file(gguf));
    return PD_OK;
}

static int read_rules(const struct pd_gguf *gguf, struct pd_tokenizer_spec *spec,
                      struct pd_error *error)
{
    struct pd_string model, pre = {"default", 7};
    char name[64];
    int status = pd_gguf_string(gguf, "tokenizer.ggml.model", &model, error);

    if (status != PD_OK)
        return status;
    if (!equals(&model, "gpt2"))
        return pd_fail(error, PD_UNSUPPORTED,
                       "%s: metadata tokenizer.ggml.model: \"%.*s\" is not supported (gpt2, a "
                       "byte-level BPE, is)",
                       pd_gguf_file(gguf), model.length < 32 ? (int)model.length : 32, model.bytes);
    status = pd_gguf_string(gguf, "tokenizer.ggml.pre", &pre, error);
    if (status != PD_OK && status != PD_NOT_FOUND)
        return status;
    snprintf(name, sizeof(name), "%.*s", pre.length < sizeof(name) ? (int)pre.length : 63,
             pre.bytes);
    status = pd_tokenizer_rules_by_name(name, spec, error);
    if (status != PD_OK)
        return pd_fail_in(error, "%s: metadata tokenizer.ggml.pre", pd_gguf_file(gguf));
    if ((status = read_id(gguf, "tokenizer.ggml.bos_token_id", spec->token_count, &spec->bos_id,
                          error)) != PD_OK ||
        (status = read_id(gguf, "tokenizer.ggml.eos_token_id", spec->token_count, &spec->eos_id,
                          error)) != PD_OK)
        return status;
    return read_add_bos(gguf, &pre, spec, error);
}

int pd_gguf_tokenizer_read(const struct pd_gguf *gguf, struct pd_tokenizer_spec *spec,
                           struct pd_error *error)
{
    int status;

    memset(spec, 0, sizeof(*spec));
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
