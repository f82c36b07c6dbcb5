#include "t/unit/tiny_vocabulary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* The alphabet of bytes, as GPT-2's code makes it: printable bytes first, then the others in turn. */
static unsigned letter_of(unsigned char byte)
{
    unsigned next = 256, b;

    if ((byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE)
        return byte;
    for (b = 0; b < byte; b++)
        if (!((b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE))
            next++;
    return next;
}

static void put(struct tiny_vocabulary *vocabulary, char c)
{
    assert_true(vocabulary->text_length < TINY_TEXT);
    vocabulary->text[vocabulary->text_length++] = c;
}

static void spell(struct tiny_vocabulary *vocabulary, const char *bytes, size_t length)
{
    size_t i;

    for (i = 0; i < length; i++) {
        unsigned letter = letter_of((unsigned char)bytes[i]);

        if (letter < 0x80) {
            put(vocabulary, (char)letter);
        } else {
            put(vocabulary, (char)(0xC0 | letter >> 6));
            put(vocabulary, (char)(0x80 | (letter & 0x3F)));
        }
    }
}

static struct pd_string since(const struct tiny_vocabulary *vocabulary, size_t first)
{
    return (struct pd_string){vocabulary->text + first, vocabulary->text_length - first};
}

static int32_t add(struct tiny_vocabulary *vocabulary, const char *bytes, size_t length,
                   enum pd_token_kind kind)
{
    size_t first = vocabulary->text_length, i;

    assert_true(vocabulary->count < TINY_TOKENS);
    if (kind == PD_TOKEN_NORMAL)
        spell(vocabulary, bytes, length);
    else
        for (i = 0; i < length; i++)
            put(vocabulary, bytes[i]);
    vocabulary->tokens[vocabulary->count] = since(vocabulary, first);
    vocabulary->kinds[vocabulary->count] = (uint8_t)kind;
    return (int32_t)vocabulary->count++;
}

void tiny_init(struct tiny_vocabulary *vocabulary)
{
    int byte;

    vocabulary->count = vocabulary->merge_count = vocabulary->text_length = 0;
    for (byte = 0; byte < 256; byte++) {
        char c = (char)byte;

        add(vocabulary, &c, 1, PD_TOKEN_NORMAL);
    }
}

int32_t tiny_add(struct tiny_vocabulary *vocabulary, const char *bytes, enum pd_token_kind kind)
{
    return add(vocabulary, bytes, strlen(bytes), kind);
}

int32_t tiny_merge(struct tiny_vocabulary *vocabulary, const char *left, const char *right)
{
    size_t first = vocabulary->text_length;
    char both[64];

    assert_true(vocabulary->merge_count < TINY_MERGES);
    assert_true(strlen(left) + strlen(right) < sizeof both);
    spell(vocabulary, left, strlen(left));
    put(vocabulary, ' ');
    spell(vocabulary, right, strlen(right));
    vocabulary->merges[vocabulary->merge_count++] = since(vocabulary, first);
    strcpy(both, left);
    strcat(both, right);
    return tiny_add(vocabulary, both, PD_TOKEN_NORMAL);
}

struct pd_tokenizer_spec tiny_spec(const struct tiny_vocabulary *vocabulary)
{
    return (struct pd_tokenizer_spec){.tokens = vocabulary->tokens,
                                      .kinds = vocabulary->kinds,
                                      .token_count = vocabulary->count,
                                      .merges = vocabulary->merges,
                                      .merge_count = vocabulary->merge_count,
                                      .bos_id = -1,
                                      .eos_id = -1};
}

struct pd_tokenizer *tiny_build(const struct pd_tokenizer_spec *spec)
{
    struct pd_tokenizer *tokenizer = NULL;
    struct pd_error error;

    if (pd_tokenizer_create(spec, &tokenizer, &error) != PD_OK)
        fail_msg("%s", error.text);
    return tokenizer;
}

struct pd_tokens tiny_encode(const struct pd_tokenizer *tokenizer, const char *text, size_t length)
{
    struct pd_tokens tokens = {0};
    struct pd_error error;

    if (pd_tokenizer_encode(tokenizer, text, length, NULL, 0, SIZE_MAX, &tokens, &error) != PD_OK)
        fail_msg("%s", error.text);
    return tokens;
}
