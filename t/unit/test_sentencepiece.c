/* tokenizer.model, alone and in a model's directory: what is read, and what is refused by name. Its ids are compared with others'
 * in t/oracle/tokenizer.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "t/unit/gguf_file.h"
#include "worker/model/model.h"
#include "worker/text/tokenizer.h"

#define MARK "\xE2\x96\x81"

/* What a test changes of a file; 0: as in Llama 2's. */
struct change {
    int model_type, no_bytes, suffix, unescaped, extra, no_prefix, charsmap, bos, unused;
    const char *twice; /* a piece that there is already */
};

enum { FIRST = 259, MARKED_A = FIRST + 3, AB, MARKED_AB, X, PIECES };

static void put_number(struct bytes *out, int field, uint64_t value)
{
    uint8_t key[2] = {(uint8_t)((field << 3 & 127) | (field > 15 ? 128 : 0)),
                      (uint8_t)(field >> 4)};

    bytes_put(out, key, field > 15 ? 2 : 1);
    do {
        uint8_t byte = (uint8_t)((value & 127) | (value > 127 ? 128 : 0));

        bytes_put(out, &byte, 1);
        value >>= 7;
    } while (value > 0);
}

static void put_bytes(struct bytes *out, int field, const void *data, size_t size)
{
    uint8_t head[3] = {(uint8_t)(field << 3 | 2), (uint8_t)((size & 127) | 128),
                       (uint8_t)(size >> 7)};

    bytes_put(out, head, sizeof(head));
    bytes_put(out, data, size);
}

static void put_piece(struct bytes *out, const char *text, float score, uint64_t type)
{
    static const uint8_t key = 2 << 3 | 5;
    struct bytes piece = {0};

    put_bytes(&piece, 1, text, strlen(text));
    bytes_put(&piece, &key, 1);
    bytes_put(&piece, &score, sizeof(score));
    put_number(&piece, 3, type);
    put_bytes(out, 1, piece.data, piece.size);
    bytes_free(&piece);
}

static void put_pieces(struct bytes *out, const struct change *change)
{
    char name[8];

    put_piece(out, "<unk>", 0, 2);
    put_piece(out, "<s>", 0, 3);
    put_piece(out, "</s>", 0, 3);
    for (int i = 0; i < 256; i++) {
        snprintf(name, sizeof(name), "<0x%02X>", (unsigned)i);
        put_piece(out, name, 0, 6);
    }
    put_piece(out, MARK, -10, 1);
    put_piece(out, "a", -11, 1);
    put_piece(out, "b", -12, 1);
    put_piece(out, MARK "a", -1, 1);
    put_piece(out, "ab", -2, 1);
    put_piece(out, MARK "ab", -3, 1);
    put_piece(out, "[X]", 0, 4);
    if (change->unused)
        put_piece(out, "zzz", 0, 5);
    if (change->twice)
        put_piece(out, change->twice, 0, 1);
}

static struct bytes make(struct change change)
{
    struct bytes out = {0}, trainer = {0}, normalizer = {0};

    put_pieces(&out, &change);
    put_number(&trainer, 3, change.model_type ? (uint64_t)change.model_type : 2);
    put_number(&trainer, 24, (uint64_t)change.suffix);
    put_number(&trainer, 35, !change.no_bytes);
    put_number(&trainer, 41, change.bos ? (uint64_t)(int64_t)change.bos : 1);
    put_bytes(&out, 2, trainer.data, trainer.size);
    put_bytes(&normalizer, 1, "nmt_nfkc", 8);
    put_bytes(&normalizer, 2, "charsmap", change.charsmap ? 8 : 0);
    put_number(&normalizer, 3, !change.no_prefix);
    put_number(&normalizer, 4, (uint64_t)change.extra);
    put_number(&normalizer, 5, !change.unescaped);
    put_bytes(&out, 3, normalizer.data, normalizer.size);
    bytes_free(&trainer);
    bytes_free(&normalizer);
    return out;
}

static int load(struct change change, const char *config, struct pd_tokenizer **tokenizer,
                struct pd_error *error)
{
    struct bytes file = make(change);
    int status = pd_tokenizer_from_sentencepiece(file.data, file.size, config,
                                                 config ? strlen(config) : 0, tokenizer, error);

    bytes_free(&file);
    return status;
}

static struct pd_tokenizer *must_load(struct change change, const char *config)
{
    struct pd_tokenizer *tokenizer;
    struct pd_error error;

    if (load(change, config, &tokenizer, &error) != PD_OK)
        fail_msg("%s", error.text);
    return tokenizer;
}

/* Asserts the ids of a text, of which there are `count`. */
static void expect(struct change change, const char *config, const char *text, size_t count,
                   const int32_t *ids)
{
    struct pd_tokenizer *tokenizer = must_load(change, config);
    struct pd_tokens tokens = {0};
    struct pd_error error;

    assert_int_equal(
        pd_tokenizer_encode(tokenizer, text, strlen(text), NULL, 0, 60, &tokens, &error), PD_OK);
    assert_int_equal(tokens.count, count);
    assert_memory_equal(tokens.ids, ids, count * sizeof(*ids));
    pd_tokens_free(&tokens);
    pd_tokenizer_destroy(tokenizer);
}

#define EXPECT(change, config, text, ...)                                                          \
    do {                                                                                           \
        static const int32_t ids_[] = {__VA_ARGS__};                                               \
        expect(change, config, text, sizeof(ids_) / sizeof(ids_[0]), ids_);                        \
    } while (0)

static const struct change none;

static void test_a_file_becomes_a_tokenizer(void **state)
{
    struct pd_tokenizer *tokenizer = must_load(none, NULL);

    (void)state;
    assert_int_equal(pd_tokenizer_vocabulary(tokenizer), PIECES);
    assert_int_equal(pd_tokenizer_bos(tokenizer), 1);
    assert_int_equal(pd_tokenizer_eos(tokenizer), 2);
    assert_int_equal(pd_tokenizer_kind(tokenizer, 0), PD_TOKEN_SPECIAL);
    assert_int_equal(pd_tokenizer_kind(tokenizer, X), PD_TOKEN_ADDED);
    assert_true(pd_tokenizer_has_marks(tokenizer));
    pd_tokenizer_destroy(tokenizer);
    EXPECT(none, NULL, "ab", 1, MARKED_AB);
    EXPECT(none, NULL, "bab", 1, FIRST, FIRST + 2, AB);
    EXPECT(none, NULL, "\xC3\xA9", 1, FIRST, 3 + 0xC3, 3 + 0xA9);
}

/* As the tokenizer.json that transformers makes of it; the flags are tokenizer_config.json's. */
static void test_flags(void **state)
{
    struct pd_tokenizer *tokenizer;

    (void)state;
    EXPECT(none, NULL, "[X]ab", 1, X, MARKED_AB);
    EXPECT(none, "{\"legacy\":true}", "[X]ab", 1, X, MARKED_AB);
    EXPECT(none, "{\"legacy\":false}", "[X]ab", 1, X, AB);
    EXPECT(none, "{\"legacy\":false}", "ab", 1, MARKED_AB);
    EXPECT(none, "{\"add_prefix_space\":false}", "ab", 1, AB);
    EXPECT(none, "{\"legacy\":false,\"add_prefix_space\":false}", "ab", 1, AB);
    EXPECT(((struct change){.no_prefix = 1}), NULL, "ab", 1, AB);
    EXPECT(none, "{\"add_bos_token\":false}", "ab", MARKED_AB);
    EXPECT(((struct change){.bos = -1}), NULL, "ab", MARKED_AB);
    EXPECT(none, "{\"added_tokens_decoder\":{\"266\":{\"content\":\"<n>\",\"special\":true}}}",
           "ab<n>", 1, MARKED_AB, PIECES);
    tokenizer = must_load(none, "{\"eos_token\":\"[X]\",\"bos_token\":{\"content\":\"</s>\"}}");
    assert_int_equal(pd_tokenizer_eos(tokenizer), X);
    assert_int_equal(pd_tokenizer_bos(tokenizer), 2);
    pd_tokenizer_destroy(tokenizer);
}

static void assert_refused(struct change change, const char *config, int status, const char *words)
{
    struct pd_tokenizer *tokenizer = NULL;
    struct pd_error error = {PD_OK, ""};

    assert_int_equal(load(change, config, &tokenizer, &error), status);
    if (!strstr(error.text, words))
        fail_msg("\"%s\" is not in \"%s\"", words, error.text);
}

static void test_what_is_not_supported_is_named(void **state)
{
    (void)state;
    assert_refused((struct change){.model_type = 1}, NULL, PD_UNSUPPORTED,
                   "tokenizer.model: a model that is no BPE (unigram, word, char)");
    assert_refused((struct change){.no_bytes = 1}, NULL, PD_UNSUPPORTED, "byte_fallback");
    assert_refused((struct change){.suffix = 1}, NULL, PD_UNSUPPORTED, "whitespace_as_suffix");
    assert_refused((struct change){.charsmap = 1}, NULL, PD_UNSUPPORTED, "\"nmt_nfkc\"");
    assert_refused((struct change){.extra = 1}, NULL, PD_UNSUPPORTED, "remove_extra_whitespaces");
    assert_refused((struct change){.unescaped = 1}, NULL, PD_UNSUPPORTED, "not escaped");
    assert_refused((struct change){.unused = 1}, NULL, PD_UNSUPPORTED, "piece 266 is an unused");
    assert_refused((struct change){.twice = "ab"}, NULL, PD_INVALID, "tokenizer.model: tokens");
    assert_refused((struct change){.twice = "<0x41>"}, NULL, PD_INVALID, "two pieces are equal");
    assert_refused((struct change){.twice = "a\xFF"}, NULL, PD_INVALID, "token 266 is not UTF-8");
    assert_refused((struct change){.bos = 300}, NULL, PD_INVALID, "begin or end token");
    assert_refused(none, "{\"add_eos_token\":true}", PD_UNSUPPORTED, "add_eos_token");
    assert_refused(none, "{", PD_INVALID, "tokenizer_config.json, line 1");
    assert_refused(none, "[]", PD_INVALID, "tokenizer_config.json is no JSON object");
}

/* Cut anywhere, or a byte changed, it is refused with words or is another tokenizer. */
static void test_damage(void **state)
{
    struct bytes file = make(none);
    struct pd_tokenizer *tokenizer;
    struct pd_error error;

    (void)state;
    for (size_t size = 0; size < file.size; size += size < 64 || size > file.size - 128 ? 1 : 41) {
        error.text[0] = '\0';
        assert_int_not_equal(
            pd_tokenizer_from_sentencepiece(file.data, size, NULL, 0, &tokenizer, &error), PD_OK);
        assert_true(error.text[0] != '\0');
    }
    for (size_t at = 0; at < file.size; at += at < 64 || at > file.size - 160 ? 1 : 41) {
        for (int bit = 0; bit < 8; bit++) {
            file.data[at] ^= (uint8_t)(1 << bit);
            if (pd_tokenizer_from_sentencepiece(file.data, file.size, NULL, 0, &tokenizer,
                                                &error) == PD_OK)
                pd_tokenizer_destroy(tokenizer);
            file.data[at] ^= (uint8_t)(1 << bit);
        }
    }
    bytes_free(&file);
}

/* ---- in a directory -------------------------------------------------------------------------- */

static char directory[] = "/tmp/pd-spm-XXXXXX";

static void write_file(const char *name, const void *data, size_t size)
{
    char path[64];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", directory, name);
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static int plan(struct pd_model_files **files, struct pd_error *error)
{
    return pd_model_files_plan(directory, files, error);
}

static void test_a_directory_without_a_tokenizer_json(void **state)
{
    static const char config[] =
        "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": "
        "160, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"vocab_size\": 300, "
        "\"max_position_embeddings\": 128}";
    static const char added[] = "{\"<s>\": 1, \"<n>\": 266}";
    static const char named[] =
        "{\"added_tokens_decoder\": {\"266\": {\"content\": \"<n>\", \"special\": true}}}";
    static const char *const names[] = {"config.json", "tokenizer.model", "added_tokens.json",
                                        "tokenizer_config.json"};
    struct bytes model = make(none);
    struct pd_model_files *files;
    struct pd_error error = {PD_OK, ""};
    char path[64];

    (void)state;
    assert_non_null(mkdtemp(directory));
    write_file("config.json", config, sizeof(config) - 1);
    write_file("tokenizer.model", model.data, model.size);
    if (plan(&files, &error) != PD_OK)
        fail_msg("%s", error.text);
    assert_int_equal(pd_tokenizer_vocabulary(pd_model_files_tokenizer(files)), PIECES);
    pd_model_files_close(files);
    write_file("added_tokens.json", added, sizeof(added) - 1);
    assert_int_equal(plan(&files, &error), PD_UNSUPPORTED);
    assert_non_null(strstr(error.text, "/added_tokens.json: token \"<n>\""));
    write_file("tokenizer_config.json", named, sizeof(named) - 1);
    assert_int_equal(plan(&files, &error), PD_OK);
    assert_int_equal(pd_tokenizer_find(pd_model_files_tokenizer(files), "<n>", 3), 266);
    pd_model_files_close(files);
    write_file("tokenizer.model", "", 0);
    assert_int_equal(plan(&files, &error), PD_INVALID);
    assert_non_null(strstr(error.text, "/tokenizer.model: the file is empty"));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", directory, names[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(directory), 0);
    bytes_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_becomes_a_tokenizer),           cmocka_unit_test(test_flags),
        cmocka_unit_test(test_what_is_not_supported_is_named),       cmocka_unit_test(test_damage),
        cmocka_unit_test(test_a_directory_without_a_tokenizer_json),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
