/* A tokenizer.json from a stranger: whatever it says, it is refused with words or becomes a tokenizer that
 * encodes and decodes. The first byte of the input chooses what the rest is put in place of, so that the
 * fuzzer need not find the way through a whole file first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/text/pretokenizer.h"
#include "worker/text/stream.h"
#include "worker/text/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"

/* A whole file in fields, in the order of the array below. */
static const char *const names[] = {"added_tokens", "normalizer",     "pre_tokenizer",
                                    "model",        "post_processor", "decoder"};
static const char *const defaults[] = {
    "[{\"id\":7,\"content\":\"<s>\",\"special\":true},{\"id\":8,\"content\":\"<t>\",\"normalized\":"
    "false}]",
    "null", /* NFC makes a table first: too slow for every input */
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{"
    "L}+|"
    "(?i:'s)\"},\"behavior\":\"Isolated\"}," BYTE_LEVEL "]}",
    "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\u0120\":3,\"\u0120a\":4},"
    "\"merges\":[\"a b\",[\"\u0120\",\"a\"]]}",
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},{"
    "\"Sequence\":{}}],"
    "\"special_tokens\":{\"<s>\":{\"ids\":[7]}}}",
    "{\"type\":\"ByteLevel\"}",
};
enum { FIELDS = sizeof names / sizeof names[0], WHOLE = FIELDS, CONFIG, REGEX, KINDS };

static const char sample[] = "<s>ab abe\u0301\u0301\u0316 '\u017f<t> 12\n\xf0\x9f\x98\x80";

static void use(struct pd_tokenizer *tokenizer)
{
    const struct pd_span literal = {3, 10};
    const struct pd_string stop = {"b a", 3};
    const struct pd_stop_rules rules = {&stop, 1, true};
    struct pd_tokens tokens = {0};
    struct pd_text_stream *stream;
    struct pd_text_delta delta;
    struct pd_error error;
    size_t i;

    pd_tokenizer_encode(tokenizer, sample, sizeof sample - 1, &literal, 1, 40, &tokens, &error);
    if (tokens.count > 40)
        abort();
    if (pd_text_stream_create(tokenizer, &rules, &stream, &error) == PD_OK) {
        for (i = 0; i < tokens.count; i++)
            if (pd_text_stream_push(stream, tokens.ids[i], &delta) != PD_OK || delta.stop >= 0)
                break;
        pd_text_stream_finish(stream, &delta);
        if (pd_utf8_valid(delta.bytes, delta.length) != delta.length)
            abort();
        pd_text_stream_destroy(stream);
    }
    pd_tokens_free(&tokens);
    pd_tokenizer_destroy(tokenizer);
}

static int add_length(void *context, const char *bytes, size_t length)
{
    (void)bytes;
    *(size_t *)context += length;
    return length > 0 ? PD_OK : PD_CLOSED;
}

/* An expression, a zero byte, and the text that it is to split. */
static void split(const char *data, size_t size)
{
    const char *zero = memchr(data, 0, size);
    struct pd_string regex = {data, zero ? (size_t)(zero - data) : size};
    struct pd_string text = {sample, sizeof sample - 1};
    struct pd_pretokenizer *rules;
    struct pd_error error;
    size_t total = 0;

    if (zero)
        text = (struct pd_string){zero + 1, (size_t)(data + size - zero - 1)};
    if (text.length > 64 || pd_utf8_valid(text.bytes, text.length) < text.length ||
        pd_pretokenizer_create(&regex, 1, &rules, &error) != PD_OK)
        return;
    if (pd_pretokenizer_split(rules, text.bytes, text.length, add_length, &total, &error) ==
            PD_OK &&
        total != text.length)
        abort();
    pd_pretokenizer_destroy(rules);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned kind = size > 0 ? data[0] % KINDS : WHOLE, i;
    struct pd_tokenizer *tokenizer;
    struct pd_error error;
    char *json = NULL;
    size_t length = 0;
    FILE *out;
    int status;

    if (size == 0)
        return 0;
    data++, size--;
    if (kind == REGEX) {
        split((const char *)data, size);
        return 0;
    }
    out = open_memstream(&json, &length);
    if (!out)
        abort();
    if (kind == WHOLE)
        fwrite(data, 1, size, out);
    for (i = 0; i < FIELDS && kind != WHOLE; i++) {
        fprintf(out, "%s\"%s\":", i == 0 ? "{" : ",", names[i]);
        if (i == kind)
            fwrite(data, 1, size, out);
        else
            fputs(defaults[i], out);
    }
    if (kind != WHOLE)
        fputc('}', out);
    fclose(out);
    status = pd_tokenizer_from_json(json, length, kind == CONFIG ? (const char *)data : NULL,
                                    kind == CONFIG ? size : 0, &tokenizer, &error);
    if (status == PD_OK)
        use(tokenizer);
    else if (error.text[0] == 0)
        abort();
    free(json);
    return 0;
}
