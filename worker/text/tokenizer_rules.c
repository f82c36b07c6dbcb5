/* Pre-tokeniser rules by the name that llama.cpp writes into GGUF files.
 *
 * The expressions are those of the models' own tokenizer.json, not llama.cpp's renderings of them,
 * so that a model gives the same ids, and its tokenizer the same digest, from either kind of file.
 */
#include "worker/text/tokenizer.h"

#include <string.h>

#define CONTRACTIONS          "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
#define PUNCTUATION_AND_SPACE "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define STRING(literal)                                                                            \
    {                                                                                              \
        literal, sizeof literal - 1                                                                \
    }

static const struct pd_string gpt2[] = {
    STRING("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"),
};
static const struct pd_string llama3[] = {
    STRING(CONTRACTIONS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" PUNCTUATION_AND_SPACE),
};
static const struct pd_string qwen2[] = {
    STRING(CONTRACTIONS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" PUNCTUATION_AND_SPACE),
};
/* What llama.cpp does with a file that names no rule it knows. */
static const struct pd_string fallback[] = {
    STRING("[\\p{P}\\$\\+<=>\\^~\\|]+"),
    STRING("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"),
    STRING("\\p{N}+"),
    STRING("[0-9][0-9][0-9]"),
};

static const struct rules {
    const char *name;
    const struct pd_string *regexes;
    size_t count;
    bool digits_alone, nfc, ignore_merges;
} known[] = {
    {"smollm", gpt2, 1, true, false, false},
    {"starcoder", gpt2, 1, true, false, false},
    {"refact", gpt2, 1, true, false, false},
    {"gpt-2", gpt2, 1, false, false, false},
    {"qwen2", qwen2, 1, false, true, false},
    {"deepseek-r1-qwen", qwen2, 1, false, true, false},
    {"llama-bpe", llama3, 1, false, false, true},
    {"llama3", llama3, 1, false, false, true},
    {"llama-v3", llama3, 1, false, false, true},
    {"default", fallback, 4, false, false, false},
};

int pd_tokenizer_rules_by_name(const char *pre, struct pd_tokenizer_spec *spec,
                               struct pd_error *error)
{
    size_t i;

    for (i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].name, pre) != 0)
            continue;
        spec->regexes = known[i].regexes;
        spec->regex_count = known[i].count;
        spec->digits_alone = known[i].digits_alone;
        spec->nfc = known[i].nfc;
        spec->ignore_merges = known[i].ignore_merges;
        return PD_OK;
    }
    return pd_fail(error, PD_UNSUPPORTED, "pre-tokeniser \"%.64s\" is not supported", pre);
}
