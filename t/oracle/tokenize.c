/* The tokenizer as a filter, for the oracle that compares it with another.
 *
 *     tokenize json FILE [CONFIG]       a tokenizer.json, and tokenizer_config.json
 *     tokenize spm FILE [CONFIG]        a tokenizer.model, and tokenizer_config.json
 *     tokenize dump FILE NAME           a dump of a GGUF file's vocabulary, and the name of its
 * rules
 *     tokenize gguf FILE                the tokenizer that a GGUF file describes
 *
 * First line out: the digest in hex. Then records in, records out, little-endian:
 *
 *     'e' u32 length, text           ─▶   u32 count (or 0xFFFFFFFF: refused), u32 ids
 *     'd' u32 count, u32 ids         ─▶   u32 length, text of the stream fed with them one by one
 *
 * A dump is u32 tokens, u32 merges, then u8 kind, u32 length, text for each token, and u32 length,
 * text for each merge. */
#include "worker/model/gguf_tokenizer.h"
#include "worker/text/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *what)
{
    fprintf(stderr, "tokenize: %s\n", what);
    exit(1);
}

static void *must(void *memory)
{
    if (!memory)
        die("no memory");
    return memory;
}

static char *read_file(const char *path, size_t *length)
{
    FILE *file = fopen(path, "rb");
    char *text = must(malloc(1 << 16));
    size_t capacity = 1 << 16, got;

    if (!file)
        die(path);
    *length = 0;
    while ((got = fread(text + *length, 1, capacity - *length, file)) > 0) {
        *length += got;
        if (*length == capacity)
            text = must(realloc(text, capacity *= 2));
    }
    fclose(file);
    return text;
}

static struct pd_tokenizer *from_files(char **argv)
{
    struct pd_tokenizer *tokenizer = NULL;
    struct pd_error error;
    size_t length, config_length = 0;
    char *file = read_file(argv[2], &length);
    char *config = argv[3] ? read_file(argv[3], &config_length) : NULL;

    if ((strcmp(argv[1], "spm") == 0 ? pd_tokenizer_from_sentencepiece(
                                           file, length, config, config_length, &tokenizer, &error)
                                     : pd_tokenizer_from_json(file, length, config, config_length,
                                                              &tokenizer, &error)) != PD_OK)
        die(error.text);
    free(file);
    free(config);
    return tokenizer;
}

static struct pd_tokenizer *from_gguf(char **argv)
{
    struct pd_tokenizer *tokenizer = NULL;
    struct pd_tokenizer_spec spec;
    struct pd_tensor_table tensors = {0};
    struct pd_gguf *gguf;
    struct pd_error error;
    size_t length;
    char *file = read_file(argv[2], &length);

    if (pd_gguf_parse(argv[2], (const uint8_t *)file, length, &tensors, &gguf, &error) != PD_OK ||
        pd_gguf_tokenizer_read(gguf, &spec, &error) != PD_OK ||
        pd_tokenizer_create(&spec, &tokenizer, &error) != PD_OK)
        die(error.text);
    pd_gguf_tokenizer_free(&spec);
    pd_gguf_destroy(gguf);
    pd_tensor_table_free(&tensors);
    free(file);
    return tokenizer;
}

static uint32_t take_u32(const char **at)
{
    uint32_t value;

    memcpy(&value, *at, sizeof value);
    *at += sizeof value;
    return value;
}

static struct pd_string take_string(const char **at)
{
    struct pd_string string;

    string.length = take_u32(at);
    string.bytes = *at;
    *at += string.length;
    return string;
}

static struct pd_tokenizer *from_dump(char **argv)
{
    struct pd_tokenizer *tokenizer = NULL;
    struct pd_tokenizer_spec spec = {.bos_id = -1, .eos_id = -1};
    struct pd_error error;
    struct pd_string *tokens, *merges;
    uint8_t *kinds;
    size_t length, i;
    char *dump = read_file(argv[2], &length);
    const char *at = dump;

    spec.token_count = take_u32(&at);
    spec.merge_count = take_u32(&at);
    spec.tokens = tokens = must(calloc(spec.token_count, sizeof *tokens));
    spec.kinds = kinds = must(calloc(spec.token_count, 1));
    spec.merges = merges = must(calloc(spec.merge_count, sizeof *merges));
    for (i = 0; i < spec.token_count; i++) {
        kinds[i] = (uint8_t)*at++;
        tokens[i] = take_string(&at);
    }
    for (i = 0; i < spec.merge_count; i++)
        merges[i] = take_string(&at);
    if (!argv[3] || pd_tokenizer_rules_by_name(argv[3], &spec, &error) != PD_OK ||
        pd_tokenizer_create(&spec, &tokenizer, &error) != PD_OK)
        die(error.text);
    free(tokens);
    free(kinds);
    free(merges);
    free(dump);
    return tokenizer;
}

static bool read_u32(uint32_t *value)
{
    return fread(value, sizeof *value, 1, stdin) == 1;
}

static void write_u32(uint32_t value)
{
    fwrite(&value, sizeof value, 1, stdout);
}

static void encode(const struct pd_tokenizer *tokenizer, uint32_t length)
{
    struct pd_tokens tokens = {0};
    struct pd_error error;
    char *text = must(malloc(length + 1));

    if (fread(text, 1, length, stdin) != length)
        die("a record is cut short");
    if (pd_tokenizer_encode(tokenizer, text, length, NULL, 0, SIZE_MAX, &tokens, &error) == PD_OK) {
        write_u32((uint32_t)tokens.count);
        fwrite(tokens.ids, sizeof *tokens.ids, tokens.count, stdout);
    } else {
        fprintf(stderr, "tokenize: %s\n", error.text);
        write_u32(UINT32_MAX);
    }
    pd_tokens_free(&tokens);
    free(text);
}

static void append(char **text, size_t *length, const struct pd_text_delta *delta)
{
    *text = must(realloc(*text, *length + delta->length + 1));
    memcpy(*text + *length, delta->bytes, delta->length);
    *length += delta->length;
}

static void decode(const struct pd_tokenizer *tokenizer, uint32_t count)
{
    struct pd_stop_rules none = {0};
    struct pd_text_stream *stream;
    struct pd_text_delta delta;
    struct pd_error error;
    char *text = NULL;
    size_t length = 0;

    if (pd_text_stream_create(tokenizer, &none, &stream, &error) != PD_OK)
        die(error.text);
    for (; count > 0; count--) {
        uint32_t id;

        if (!read_u32(&id))
            die("a record is cut short");
        if (pd_text_stream_push(stream, (int32_t)id, &delta) != PD_OK)
            die("a token was refused");
        append(&text, &length, &delta);
    }
    if (pd_text_stream_finish(stream, &delta) != PD_OK)
        die("the stream did not finish");
    append(&text, &length, &delta);
    write_u32((uint32_t)length);
    fwrite(text, 1, length, stdout);
    free(text);
    pd_text_stream_destroy(stream);
}

int main(int argc, char **argv)
{
    struct pd_tokenizer *tokenizer;
    uint8_t digest[32];
    uint32_t size;
    size_t i;
    int kind;

    if (argc < 3)
        die("usage: tokenize json|spm FILE [CONFIG] | dump FILE NAME | gguf FILE");
    tokenizer = strcmp(argv[1], "gguf") == 0   ? from_gguf(argv)
                : strcmp(argv[1], "dump") == 0 ? from_dump(argv)
                                               : from_files(argv);
    pd_tokenizer_digest(tokenizer, digest);
    for (i = 0; i < sizeof digest; i++)
        printf("%02x", digest[i]);
    putchar('\n');
    fflush(stdout);
    while ((kind = getchar()) != EOF) {
        if (!read_u32(&size))
            die("a record is cut short");
        if (kind == 'e')
            encode(tokenizer, size);
        else
            decode(tokenizer, size);
    }
    pd_tokenizer_destroy(tokenizer);
    return 0;
}
