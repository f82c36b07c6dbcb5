/* tokenizer.json and tokenizer_config.json: what is read, and what is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/text/tokenizer.h"

/* Fields of a file that a test replaces; NULL: the default below. */
struct parts {
    const char *added, *normalizer, *pre, *post, *decoder, *model, *vocab, *merges, *config;
};

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define SPLIT(regex)                                                                               \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex                                          \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define SEQUENCE(list, steps) "{\"type\":\"Sequence\",\"" list "\":[" steps "]}"

static const char * or (const char *value, const char *fallback)
{
    return value ? value : fallback;
}

static int load(const struct parts *p, struct pd_tokenizer **tokenizer, struct pd_error *error)
{
    char *json;
    int length, status;

    length = asprintf(
        &json,
        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":%s,"
        "\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":%s,"
        "\"model\":{\"type\":\"BPE\",%s\"vocab\":%s,\"merges\":%s}}",
        or (p->added, "[{\"id\":5,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
                      "{\"id\":4,\"content\":\"<t>\",\"special\":false,\"normalized\":false}]"),
        or (p->normalizer, "null"), or (p->pre, BYTE_LEVEL), or (p->post, "null"),
        or (p->decoder, "{\"type\":\"ByteLevel\"}"), or (p->model, ""),
        or (p->vocab, "{\"a\":0,\"b\":1,\"ab\":2,\"\u0120\":3}"), or (p->merges, "[\"a b\"]"));
    assert_true(length > 0);
    *tokenizer = NULL;
    status = pd_tokenizer_from_json(json, (size_t)length, p->config,
                                    p->config ? strlen(p->config) : 0, tokenizer, error);
    free(json);
    return status;
}

static struct pd_tokenizer *must_load(struct parts p)
{
    struct pd_tokenizer *tokenizer;
    struct pd_error error;

    if (load(&p, &tokenizer, &error) != PD_OK)
        fail_msg("%s", error.text);
    return tokenizer;
}

/* Asserts what `text` becomes: ids as digits. */
static void expect(const struct pd_tokenizer *tokenizer, const char *text, const char *digits)
{
    struct pd_tokens tokens = {0};
    struct pd_error error;
    char got[64] = "";
    size_t i;

    assert_int_equal(
        pd_tokenizer_encode(tokenizer, text, strlen(text), NULL, 0, 60, &tokens, &error), PD_OK);
    for (i = 0; i < tokens.count; i++)
        got[i] = (char)('0' + tokens.ids[i]);
    assert_string_equal(got, digits);
    pd_tokens_free(&tokens);
}

static void expect_with(struct parts p, const char *text, const char *digits)
{
    struct pd_tokenizer *tokenizer = must_load(p);

    expect(tokenizer, text, digits);
    pd_tokenizer_destroy(tokenizer);
}

static void a_file_becomes_a_tokenizer(void **state)
{
    struct pd_tokenizer *tokenizer = must_load((struct parts){0});

    (void)state;
    expect(tokenizer, "ab b a<s><t>",
           "23130"
           "54");
    assert_int_equal(pd_tokenizer_vocabulary(tokenizer), 6);
    assert_int_equal(pd_tokenizer_kind(tokenizer, 5), PD_TOKEN_SPECIAL);
    assert_int_equal(pd_tokenizer_kind(tokenizer, 4), PD_TOKEN_ADDED);
    assert_int_equal(pd_tokenizer_bos(tokenizer), -1);
    assert_int_equal(pd_tokenizer_eos(tokenizer), -1);
    pd_tokenizer_destroy(tokenizer);
}

static void each_understood_step_does_its_work(void **state)
{
    (void)state;
    expect_with((struct parts){.merges = "[[\"a\",\"b\"]]"}, "ab", "2");
    expect_with((struct parts){.pre = SEQUENCE("pretokenizers", SPLIT("a") "," BYTE_LEVEL)}, "ab",
                "01");
    expect_with((struct parts){.pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"},
                "ab ab", "232");
    expect_with((struct parts){.pre = SEQUENCE(
                                   "pretokenizers",
                                   "{\"type\":\"Digits\",\"individual_digits\":true}," BYTE_LEVEL),
                               .vocab = "{\"a\":0,\"b\":1,\"ab\":2,\"1\":3,\"11\":6}",
                               .merges = "[\"a b\",\"1 1\"]"},
                "ab11", "233");
    expect_with((struct parts){.normalizer = "{\"type\":\"NFC\"}"}, "ab\u037e\u0340", "2");
    expect_with((struct parts){.normalizer = SEQUENCE("normalizers", "{\"type\":\"NFC\"}")}, "ab",
                "2");
    expect_with((struct parts){.normalizer = SEQUENCE("normalizers", "")}, "ab", "2");
    expect_with((struct parts){.model =
                                   "\"dropout\":null,\"unk_token\":null,\"byte_fallback\":false,"
                                   "\"end_of_word_suffix\":\"\",\"fuse_unk\":false,"},
                "ab", "2");
    expect_with((struct parts){.model = "\"ignore_merges\":true,", .merges = "[]"}, "ab", "2");
    expect_with((struct parts){.decoder = SEQUENCE("decoders", "{\"type\":\"ByteLevel\"}")}, "ab",
                "2");
    expect_with((struct parts){.added = "null"}, "a<s>", "0");
    /* an added token may stand in the vocabulary, and ids may have gaps */
    expect_with((struct parts){.vocab = "{\"a\":0,\"b\":1,\"ab\":2,\"<s>\":5}"}, "a<s>b", "051");
    expect_with((struct parts){.added = "[{\"id\":9,\"content\":\"<s>\",\"special\":true}]"}, "<s>",
                "9");
}

#define TEMPLATE(single, ids)                                                                      \
    "{\"type\":\"TemplateProcessing\",\"single\":[" single                                         \
    "],\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[" ids                      \
    "],\"tokens\":[\"<s>\"]}}}"
#define BOS  "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}}"
#define TEXT "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"

static void begin_and_end_come_from_both_files(void **state)
{
    struct pd_tokenizer *tokenizer;

    (void)state;
    expect_with((struct parts){.post = TEMPLATE(BOS "," TEXT, "5")}, "a", "50");
    expect_with((struct parts){.post = TEMPLATE(TEXT, "5")}, "a", "0");
    expect_with(
        (struct parts){.post = SEQUENCE("processors", BYTE_LEVEL "," TEMPLATE(BOS "," TEXT, "5"))},
        "a", "50");
    expect_with(
        (struct parts){.post = TEMPLATE(BOS "," TEXT, "5"), .config = "{\"add_bos_token\":false}"},
        "a", "0");
    expect_with((struct parts){.config = "{\"add_bos_token\":true,\"bos_token\":\"<s>\"}"}, "a",
                "50");

    tokenizer = must_load((struct parts){
        .config = "{\"bos_token\":null,\"eos_token\":{\"content\":\"<s>\",\"special\":true}}"});
    assert_int_equal(pd_tokenizer_bos(tokenizer), -1);
    assert_int_equal(pd_tokenizer_eos(tokenizer), 5);
    pd_tokenizer_destroy(tokenizer);

    /* added tokens that only the config has, and flags that it corrects */
    tokenizer = must_load((struct parts){
        .config = "{\"added_tokens_decoder\":{\"7\":{\"content\":\"<u>\",\"special\":false,"
                  "\"normalized\":false},\"4\":{\"content\":\"<t>\",\"special\":true}}}"});
    expect(tokenizer, "<u>", "7");
    assert_int_equal(pd_tokenizer_kind(tokenizer, 4), PD_TOKEN_SPECIAL);
    pd_tokenizer_destroy(tokenizer);
}

#define ADDED(fields) "[{\"id\":5,\"content\":\"<s>\"," fields "}]"

static void what_is_not_understood_is_named(void **state)
{
    static const struct {
        struct parts parts;
        const char *words;
    } cases[] = {
        {{.normalizer = "{\"type\":\"NFKC\"}"}, "normalizer of type \"NFKC\""},
        {{.normalizer = SEQUENCE("normalizers", "{\"type\":\"Replace\"}")}, "\"Replace\""},
        {{.pre = "null"}, "not ByteLevel"},
        {{.pre = "{\"type\":\"Whitespace\"}"}, "\"Whitespace\""},
        {{.pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}"}, "add_prefix_space"},
        {{.pre = SEQUENCE("pretokenizers", BYTE_LEVEL "," SPLIT("a"))}, "behind ByteLevel"},
        {{.pre = SEQUENCE("pretokenizers", SPLIT("a"))}, "not ByteLevel"},
        {{.pre = SEQUENCE("pretokenizers", SPLIT("\\\\w") "," BYTE_LEVEL)}, "this escape"},
        {{.pre = SEQUENCE("pretokenizers", "{\"type\":\"Digits\",\"individual_digits\":false}")},
         "individual_digits"},
        {{.pre = SEQUENCE("pretokenizers",
                          SPLIT("a") ",{\"type\":\"Digits\",\"individual_digits\":true}")},
         "behind another"},
        {{.pre = "{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Isolated\"}"},
         "but a Regex"},
        {{.pre = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Removed\"}"},
         "\"Removed\""},
        {{.post = "{\"type\":\"BertProcessing\"}"}, "\"BertProcessing\""},
        {{.post = TEMPLATE(BOS "," TEXT "," BOS, "5")}, "\"single\""},
        {{.post = TEMPLATE(BOS "," TEXT, "5,5")}, "\"special_tokens\""},
        {{.post = TEMPLATE(BOS, "5")}, "\"single\""},
        {{.decoder = "{\"type\":\"WordPiece\"}"}, "\"WordPiece\""},
        {{.model = "\"dropout\":0.1,"}, "dropout"},
        {{.model = "\"byte_fallback\":true,"}, "byte_fallback"},
        {{.model = "\"continuing_subword_prefix\":\"##\","}, "continuing_subword_prefix"},
        {{.model = "\"unk_token\":\"<s>\","}, "unk_token"},
        {{.added = ADDED("\"lstrip\":true")}, "\"lstrip\""},
        {{.added = ADDED("\"rstrip\":true")}, "\"rstrip\""},
        {{.added = ADDED("\"single_word\":true")}, "\"single_word\""},
        {{.added = ADDED("\"normalized\":true"), .normalizer = "{\"type\":\"NFC\"}"},
         "\"normalized\""},
        {{.config = "{\"add_eos_token\":true}"}, "add_eos_token"},
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pd_tokenizer *tokenizer;
        struct pd_error error = {0};
        int status = load(&cases[i].parts, &tokenizer, &error);

        if (status != PD_UNSUPPORTED || !strstr(error.text, cases[i].words))
            fail_msg("%zu: status %d, \"%s\" for \"%s\"", i, status, error.text, cases[i].words);
    }
}

static void what_is_wrong_is_named(void **state)
{
    static const struct {
        struct parts parts;
        const char *words;
    } cases[] = {
        {{.vocab = "[]"}, "model.vocab"},
        {{.vocab = "{}"}, "model.vocab"},
        {{.vocab = "{\"a\":-1}"}, "id of \"a\""},
        {{.vocab = "{\"a\":2097152}"}, "id of \"a\""},
        {{.vocab = "{\"a\":0.5}"}, "id of \"a\""},
        {{.vocab = "{\"a\":0,\"b\":0}"}, "two tokens have the id 0"},
        {{.merges = "{}"}, "model.merges"},
        {{.merges = "[1]"}, "merge 0"},
        {{.merges = "[[\"a\"]]"}, "merge 0"},
        {{.merges = "[\"a c\"]"}, "not in the vocabulary"},
        {{.added = "{}"}, "added_tokens"},
        {{.added = "[3]"}, "an added token"},
        {{.added = "[{\"id\":5}]"}, "no content"},
        {{.added = "[{\"id\":5,\"content\":\"\"}]"}, "no content"},
        {{.added = "[{\"id\":5,\"content\":\"ab\"}]"}, "different tokens"},
        {{.added = "[{\"id\":0,\"content\":\"<s>\"}]"}, "different tokens"},
        {{.added = "[{\"id\":99999999,\"content\":\"<s>\"}]"}, "no integer from 0"},
        {{.added = "[{\"id\":6,\"content\":\"<s>\"},{\"id\":7,\"content\":\"<s>\"}]"}, "are equal"},
        {{.normalizer = "{\"type\":\"Sequence\"}"}, "Sequence"},
        {{.post = TEMPLATE(BOS "," TEXT, "-5")}, "id of \"<s>\""},
        {{.post = TEMPLATE(BOS "," TEXT, "50")}, "begin token 50"},
        {{.config = "{\"bos_token\":\"<none>\"}"}, "bos_token \"<none>\" is no token"},
        {{.config = "{\"eos_token\":5}"}, "eos_token is no text"},
        {{.config = "{\"add_bos_token\":true}"}, "begin token"},
        {{.config = "{\"added_tokens_decoder\":{\"x\":{}}}"}, "is no id"},
        {{.config = "{\"added_tokens_decoder\":{\"9999999\":{}}}"}, "is no id"},
        {{.config = "[]"}, "tokenizer_config.json is no JSON object"},
        {{.config = "{"}, "tokenizer_config.json, line 1"},
        {{.vocab = "{\"a\":0,}"}, "tokenizer.json, line 1, column"},
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pd_tokenizer *tokenizer;
        struct pd_error error = {0};
        int status = load(&cases[i].parts, &tokenizer, &error);

        if (status != PD_INVALID || !strstr(error.text, cases[i].words))
            fail_msg("%zu: status %d, \"%s\" for \"%s\"", i, status, error.text, cases[i].words);
    }
}

static void a_model_of_another_kind_is_named(void **state)
{
    static const struct {
        const char *json;
        int status;
        const char *words;
    } cases[] = {
        {"{\"pre_tokenizer\":" BYTE_LEVEL ",\"model\":{\"type\":\"Unigram\"}}", PD_UNSUPPORTED,
         "\"Unigram\""},
        {"{\"pre_tokenizer\":" BYTE_LEVEL "}", PD_INVALID, "no model"},
        {"{}", PD_UNSUPPORTED, "not ByteLevel"},
        {"", PD_INVALID, "line 1"},
        {"7", PD_INVALID, "tokenizer.json"},
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pd_tokenizer *tokenizer = NULL;
        struct pd_error error;

        assert_int_equal(pd_tokenizer_from_json(cases[i].json, strlen(cases[i].json), NULL, 0,
                                                &tokenizer, &error),
                         cases[i].status);
        assert_non_null(strstr(error.text, cases[i].words));
        assert_null(tokenizer);
    }
}

/* A vocabulary that has all bytes needs no token for unknown ones. */
static void an_unknown_token_without_use_is_ignored(void **state)
{
    char vocab[8192] = "{", *at = vocab + 1;
    unsigned byte, next = 256;

    (void)state;
    for (byte = 0; byte < 256; byte++) {
        bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
        unsigned letter = printable ? byte : next++;

        at += sprintf(at, "%s\"\\u%04x\":%u", byte ? "," : "", letter, byte);
    }
    strcpy(at, "}");
    expect_with(
        (struct parts){
            .model = "\"unk_token\":\"<s>\",", .vocab = vocab, .added = "[]", .merges = "[]"},
        "34", "cd");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_becomes_a_tokenizer),
        cmocka_unit_test(each_understood_step_does_its_work),
        cmocka_unit_test(begin_and_end_come_from_both_files),
        cmocka_unit_test(what_is_not_understood_is_named),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(a_model_of_another_kind_is_named),
        cmocka_unit_test(an_unknown_token_without_use_is_ignored),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
