/* The tokenizer on vocabularies small enough to work its answers out by hand. That it agrees with Hugging
 * Face's on real ones is t/oracle/tokenizer.py's business. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "t/unit/tiny_vocabulary.h"

#define SPAN(from, to) ((struct pd_span){from, (to) - (from)})

static void expect_ids(const struct pd_tokenizer *tokenizer, const char *text,
                       const struct pd_span *literal, size_t literal_count, size_t count,
                       const int32_t *ids)
{
    struct pd_tokens tokens = {0};
    struct pd_error error;
    size_t i;

    assert_int_equal(pd_tokenizer_encode(tokenizer, text, strlen(text), literal, literal_count,
                                         1000, &tokens, &error),
                     PD_OK);
    assert_int_equal(tokens.count, count);
    for (i = 0; i < count; i++)
        assert_int_equal(tokens.ids[i], ids[i]);
    pd_tokens_free(&tokens);
}

#define IDS(...)                                                                                   \
    sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t), (int32_t[])                                \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define EXPECT(tokenizer, text, ...) expect_ids(tokenizer, text, NULL, 0, IDS(__VA_ARGS__))

static void every_byte_has_its_token(void **state)
{
    struct tiny_vocabulary v;
    struct pd_tokenizer_spec spec;
    struct pd_tokenizer *tokenizer;
    int byte;

    (void)state;
    tiny_init(&v);
    spec = tiny_spec(&v);
    tokenizer = tiny_build(&spec);
    for (byte = 0; byte < 256; byte++) {
        struct pd_string bytes = pd_tokenizer_bytes(tokenizer, byte);

        assert_int_equal(bytes.length, 1);
        assert_int_equal((unsigned char)bytes.bytes[0], byte);
    }
    EXPECT(tokenizer, "a \n\x7f", 'a', ' ', '\n', 0x7F);
    EXPECT(tokenizer, "é😀", 0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80);
    pd_tokenizer_destroy(tokenizer);
}

static void the_best_rank_is_merged_first_then_the_leftmost(void **state)
{
    struct tiny_vocabulary v;
    struct pd_tokenizer_spec spec;
    struct pd_tokenizer *tokenizer;
    int32_t bc, ab, aa, aaa, abc;

    (void)state;
    tiny_init(&v);
    bc = tiny_merge(&v, "b", "c");
    ab = tiny_merge(&v, "a", "b");
    aa = tiny_merge(&v, "a", "a");
    aaa = tiny_merge(&v, "aa", "a");
    abc = tiny_merge(&v, "ab", "c");
    spec = tiny_spec(&v);
    tokenizer = tiny_build(&spec);
    EXPECT(tokenizer, "abc", 'a', bc); /* not ab first, though it stands first */
    EXPECT(tokenizer, "abab", ab, ab);
    EXPECT(tokenizer, "aa", aa);
    EXPECT(tokenizer, "aaa", aaa);     /* aa|a, then aaa */
    EXPECT(tokenizer, "aaaa", aa, aa); /* both aa before aaa */
    EXPECT(tokenizer, "aaaaa", aa, aaa);
    EXPECT(tokenizer, "aab", 'a', ab);
    EXPECT(tokenizer, "xbcx", 'x', bc, 'x');
    /* "abc" is a token that its own bytes never become */
    assert_int_equal(pd_tokenizer_bytes(tokenizer, abc).length, 3);
    pd_tokenizer_destroy(tokenizer);

    spec.ignore_merges = true;
    tokenizer = tiny_build(&spec);
    EXPECT(tokenizer, "abc", abc);
    EXPECT(tokenizer, "abcx", 'a', bc, 'x');
    pd_tokenizer_destroy(tokenizer);
}

static void a_piece_of_a_million_bytes_is_no_burden(void **state)
{
    enum { LENGTH = 1 << 20 };
    struct tiny_vocabulary v;
    struct pd_tokenizer_spec spec;
    struct pd_tokenizer *tokenizer;
    char *text = malloc(LENGTH);
    struct pd_tokens tokens;
    struct pd_error error;
    size_t i;

    (void)state;
    tiny_init(&v);
    tiny_merge(&v, "a", "a");
    tiny_merge(&v, "aa", "aa");
    tiny_merge(&v, "aaaa", "aaaa");
    spec = tiny_spec(&v);
    tokenizer = tiny_build(&spec);
    memset(text, 'a', LENGTH);
    tokens = tiny_encode(tokenizer, text, LENGTH);
    assert_int_equal(tokens.count, LENGTH / 8);
    for (i = 0; i < tokens.count; i++)
        assert_int_equal(tokens.ids[i], 258);
    tokens.count = 0;
    assert_int_equal(
        pd_tokenizer_encode(tokenizer, text, LENGTH, NULL, 0, LENGTH / 8 - 1, &tokens, &error),
        PD_FULL);
    pd_tokens_free(&tokens);
    free(text);
    pd_tokenizer_destroy(tokenizer);
}

static void bytes_without_a_token_give_nothing(void **state)
{
    struct tiny_vocabulary v;
    struct pd_tokenizer_spec spec;
    struct pd_tokenizer *tokenizer;
    struct pd_tokens tokens = {0};
    struct pd_error error;
    int32_t ab;

    (void)state;
    tiny_init(&v);
    ab = tiny_merge(&v, "a", "b");
    v.kinds[4] = PD_TOKEN_UNUSED;
    spec = tiny_spec(&v);
    tokenizer = tiny_build(&spec);
    EXPECT(tokenizer, "x\x04y", 'x', 'y');
    EXPECT(tokenizer,
           "a\x04"
           "b",
           ab);
    expect_ids(tokenizer, "\x04\x04", NULL, 0, 0, NULL);
    assert_int_equal(pd_tokenizer_bytes(tokenizer, 4).length, 0);
    /* and count nothing towards the limit */
    assert_int_equal(pd_tokenizer_encode(tokenizer,
                                         "a\x04\x04\x04\x04\x04"
                                         "b",
                                         7, NULL, 0, 1, &tokens, &error),
                     PD_OK);
    assert_int_equal(tokens.count, 1);
    pd_tokens_free(&tokens);
    pd_tokenizer_destroy(tokenizer);
}

/* ---- added tokens ------------------------------------------------------------------------------------ */

struct chat {
    struct tiny_vocabulary v;
    struct pd_tokenizer *tokenizer;
    int32_t start, start_long, end, think, accent;
};

static void make_chat(struct chat *chat)
{
    struct pd_tokenizer_spec spec;

    tiny_init(&chat->v);
    chat->start = tiny_add(&chat->v, "<|im_start|>", PD_TOKEN_SPECIAL);
    chat->end = tiny_add(&chat->v, "<|im_end|>", PD_TOKEN_SPECIAL);
    chat->start_long = tiny_add(&chat->v, "<|im_start|>user", PD_TOKEN_SPECIAL);
    chat->think = tiny_add(&chat->v, "<think>", PD_TOKEN_ADDED);
    chat->accent = tiny_add(&chat->v, "é", PD_TOKEN_ADDED);
    spec = tiny_spec(&chat->v);
    spec.eos_id = chat->end;
    chat->tokenizer = tiny_build(&spec);
}

static void added_tokens_are_found_leftmost_and_longest(void **state)
{
    struct chat c;

    (void)state;
    make_chat(&c);
    EXPECT(c.tokenizer, "<|im_start|>", c.start);
    EXPECT(c.tokenizer, "<|im_start|>use", c.start, 'u', 's', 'e');
    EXPECT(c.tokenizer, "<|im_start|>users", c.start_long, 's');
    EXPECT(c.tokenizer, "a<|im_end|><think>b", 'a', c.end, c.think, 'b');
    EXPECT(c.tokenizer, "<<think>>", '<', c.think, '>');
    EXPECT(c.tokenizer, "<|im_<|im_end|>", '<', '|', 'i', 'm', '_', c.end);
    EXPECT(c.tokenizer, "éé", c.accent, c.accent);
    expect_ids(c.tokenizer, "", NULL, 0, 0, NULL);
    assert_int_equal(pd_tokenizer_find(c.tokenizer, "<think>", 7), c.think);
    assert_int_equal(pd_tokenizer_find(c.tokenizer, "<think", 6), -1);
    assert_int_equal(pd_tokenizer_find(c.tokenizer, "<think>>", 8), -1);
    assert_int_equal(pd_tokenizer_find(c.tokenizer, "a", 1), -1);
    assert_int_equal(pd_tokenizer_find(c.tokenizer, "", 0), -1);
    assert_int_equal(pd_tokenizer_kind(c.tokenizer, c.end), PD_TOKEN_SPECIAL);
    assert_int_equal(pd_tokenizer_kind(c.tokenizer, c.think), PD_TOKEN_ADDED);
    assert_int_equal(pd_tokenizer_kind(c.tokenizer, -1), PD_TOKEN_UNUSED);
    assert_int_equal(pd_tokenizer_kind(c.tokenizer, 9999), PD_TOKEN_UNUSED);
    assert_int_equal(pd_tokenizer_bytes(c.tokenizer, c.end).length, 10);
    assert_int_equal(pd_tokenizer_bytes(c.tokenizer, -1).length, 0);
    assert_int_equal(pd_tokenizer_bytes(c.tokenizer, 9999).length, 0);
    assert_int_equal(pd_tokenizer_eos(c.tokenizer), c.end);
    assert_int_equal(pd_tokenizer_bos(c.tokenizer), -1);
    assert_int_equal(pd_tokenizer_vocabulary(c.tokenizer), c.v.count);
    pd_tokenizer_destroy(c.tokenizer);
}

/* Whether any added token comes out of the text with these literal spans. */
static bool has_added(const struct chat *c, const char *text, const struct pd_span *literal,
                      size_t count)
{
    struct pd_tokens tokens = {0};
    struct pd_error error;
    bool found = false;
    size_t i;

    assert_int_equal(pd_tokenizer_encode(c->tokenizer, text, strlen(text), literal, count, 1000,
                                         &tokens, &error),
                     PD_OK);
    for (i = 0; i < tokens.count; i++)
        found = found || tokens.ids[i] >= 256;
    pd_tokens_free(&tokens);
    return found;
}

static void what_a_user_wrote_never_becomes_an_added_token(void **state)
{
    static const char text[] = "<|im_end|>";
    size_t first, end;
    struct chat c;

    (void)state;
    make_chat(&c);
    for (first = 0; first < sizeof text - 1; first++)
        for (end = first + 1; end < sizeof text; end++)
            assert_false(has_added(&c, text, &SPAN(first, end), 1));
    assert_false(has_added(&c, "<think>é", (struct pd_span[]){SPAN(0, 7), SPAN(7, 9)}, 2));
    assert_true(has_added(&c, text, &SPAN(3, 3), 1)); /* touches no byte */

    /* the template's own tokens around it are still found */
    expect_ids(c.tokenizer, "<|im_start|><think><|im_end|>", &SPAN(12, 19), 1,
               IDS(c.start, '<', 't', 'h', 'i', 'n', 'k', '>', c.end));
    /* a shorter token that ends before the span is found in place of the longer one */
    expect_ids(c.tokenizer, "<|im_start|>user", &SPAN(13, 16), 1, IDS(c.start, 'u', 's', 'e', 'r'));
    expect_ids(c.tokenizer, "a<think>", (struct pd_span[]){SPAN(0, 1), SPAN(8, 8)}, 2,
               IDS('a', c.think));
    pd_tokenizer_destroy(c.tokenizer);
}

static void spans_are_checked(void **state)
{
    static const struct {
        struct pd_span spans[2];
    } cases[] = {
        {{{0, 5}, {0, 0}}}, {{{5, 0}, {0, 0}}},        {{{0, SIZE_MAX}, {0, 0}}},
        {{{2, 2}, {3, 1}}}, {{{SIZE_MAX, 2}, {3, 1}}},
    };
    struct pd_tokens tokens = {0};
    struct pd_error error;
    struct chat c;
    size_t i;

    (void)state;
    make_chat(&c);
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(
            pd_tokenizer_encode(c.tokenizer, "abcd", 4, cases[i].spans, 2, 10, &tokens, &error),
            PD_INVALID);
    pd_tokens_free(&tokens);
    pd_tokenizer_destroy(c.tokenizer);
}

/* ---- begin token, limit, bad text -------------------------------------------------------------------- */

static void the_begin_token_is_added_once(void **state)
{
    struct tiny_vocabulary v;
    struct pd_tokenizer_spec spec;
    struct pd_tokenizer *tokenizer;
    int32_t bos;

    (void)state;
    tiny_init(&v);
    bos = tiny_add(&v, "<s>", PD_TOKEN_SPECIAL);
    spec = tiny_spec(&v);
    spec.bos_id = bos;
    tokenizer = tiny_build(&spec);
    EXPECT(tokenizer, "a", 'a');
    assert_int_equal(pd_tokenizer_bos(tokenizer), bos);
    pd_tokenizer_destroy(tokenizer);

    spec.add_bos = true;
    tokenizer = tiny_build(&spec);
    EXPECT(tokenizer, "a", bos, 'a');
    EXPECT(tokenizer, "", bos);
    EXPECT(tokenizer, "<s>a", bos, 'a'); /* the template has written it */
    EXPECT(tokenizer, "a<s>", bos, 'a', bos);
    expect_ids(tokenizer, "<s>a", &SPAN(0, 3), 1, IDS(bos, '<', 's', '>', 'a'));
    pd_tokenizer_destroy(tokenizer);
}

static void no_more_than_the_limit_is_appended(void **state)
{
    struct pd_tokens tokens = {0};
    struct pd_error error;
    struct chat c;

    (void)state;
    make_chat(&c);
    assert_int_equal(pd_tokenizer_encode(c.tokenizer, "abc", 3, NULL, 0, 3, &tokens, &error),
                     PD_OK);
    assert_int_equal(tokens.count, 3);
    /* appends to what is there */
    assert_int_equal(pd_tokenizer_encode(c.tokenizer, "de", 2, NULL, 0, 5, &tokens, &error), PD_OK);
    assert_int_equal(tokens.count, 5);
    assert_int_equal(tokens.ids[4], 'e');
    assert_int_equal(pd_tokenizer_encode(c.tokenizer, "f", 1, NULL, 0, 5, &tokens, &error),
                     PD_FULL);
    assert_non_null(strstr(error.text, "more than 5 tokens"));
    assert_int_equal(
        pd_tokenizer_encode(c.tokenizer, "<|im_end|>", 10, NULL, 0, 5, &tokens, &error), PD_FULL);
    assert_int_equal(tokens.count, 5);
    assert_int_equal(pd_tokenizer_encode(c.tokenizer, "", 0, NULL, 0, 0, &tokens, &error), PD_OK);
    pd_tokens_free(&tokens);
    pd_tokenizer_destroy(c.tokenizer);
}

static void text_that_is_not_utf8_is_refused_with_its_place(void **state)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"ab\xff", "byte 2"},           {"\xc3", "byte 0"},
        {"a\xed\xa0\x80", "byte 1"},    {"12345678\xc0\x80", "byte 8"},
        {"\xf4\x90\x80\x80", "byte 0"}, {"é\x80", "byte 2"},
    };
    struct pd_tokens tokens = {0};
    struct pd_error error;
    struct chat c;
    size_t i;

    (void)state;
    make_chat(&c);
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(pd_tokenizer_encode(c.tokenizer, cases[i].text, strlen(cases[i].text),
                                             NULL, 0, 100, &tokens, &error),
                         PD_INVALID);
        assert_non_null(strstr(error.text, cases[i].words));
    }
    assert_int_equal(tokens.count, 0);
    pd_tokens_free(&tokens);
    pd_tokenizer_destroy(c.tokenizer);
}

/* ---- normalisation ----------------------------------------------------------------------------------- */

/* The bytes of the text's tokens: in a vocabulary of bytes, the normalised text. */
static void expect_normal(const struct pd_tokenizer *tokenizer, const char *text,
                          const char *expected)
{
    struct pd_tokens tokens = tiny_encode(tokenizer, text, strlen(text));
    size_t i;

    assert_int_equal(tokens.count, strlen(expected));
    for (i = 0; i < tokens.count; i++)
        assert_int_equal(tokens.ids[i], (unsigned char)expected[i]);
    pd_tokens_free(&tokens);
}

static void text_is_put_into_normal_form(void **state)
{
    struct tiny_vocabulary v;
    struct pd_tokenizer_spec spec;
    struct pd_tokenizer *tokenizer;

    (void)state;
    tiny_init(&v);
    spec = tiny_spec(&v);
    tokenizer = tiny_build(&spec);
    expect_normal(tokenizer, "e\u0301", "e\u0301");
    pd_tokenizer_destroy(tokenizer);

    spec.nfc = true;
    tokenizer = tiny_build(&spec);
    expect_normal(tokenizer, "Re\u0301sume\u0301", "Résumé");
    expect_normal(tokenizer, "\u0301e", "\u0301e");
    expect_normal(tokenizer, "\u1100\u1161\u11a8\u1100", "\uac01\u1100");
    expect_normal(tokenizer, "\uac00\u11a8", "\uac01");
    expect_normal(tokenizer, "a\u0301\u0316b", "\u00e1\u0316b"); /* order, then composition */
    expect_normal(tokenizer, "q\u0301\u0316\u0301", "q\u0316\u0301\u0301");
    expect_normal(tokenizer, "\u212b\u2126\u037e", "\u00c5\u03a9;"); /* singletons */
    expect_normal(tokenizer, "\u0958", "\u0915\u093c");              /* excluded from composition */
    expect_normal(tokenizer, "\u1e9b\u0323", "\u1e9b\u0323");
    expect_normal(tokenizer, "\u09c7\u09be", "\u09cb"); /* the second half is no mark */
    expect_normal(tokenizer, "\U0001d158\U0001d165", "\U0001d158\U0001d165");
    /* Marks younger than the tables: no order, and nothing joins over them. U+0897 and U+1D127 are of
     * Unicode 16 and 18, U+11938 composed of Unicode 13. */
    expect_normal(tokenizer, "a\u08ca\u0316", "a\u08ca\u0316");
    expect_normal(tokenizer, "a\u0897\u0316", "a\u0897\u0316");
    expect_normal(tokenizer, "\U00011935\U00011930", "\U00011935\U00011930");
    expect_normal(tokenizer, "a\u08ca\u0301", "a\u08ca\u0301");
    pd_tokenizer_destroy(tokenizer);
}

static void a_million_marks_are_put_in_order(void **state)
{
    enum { PAIRS = 1 << 18 };
    struct tiny_vocabulary v;
    struct pd_tokenizer_spec spec;
    struct pd_tokenizer *tokenizer;
    struct pd_tokens tokens;
    char *text = malloc(1 + 4 * PAIRS), *at = text;
    size_t i;

    (void)state;
    tiny_init(&v);
    spec = tiny_spec(&v);
    spec.nfc = true;
    tokenizer = tiny_build(&spec);
    *at++ = 'q';
    for (i = 0; i < PAIRS; i++, at += 4)
        memcpy(at, "\u0301\u0316", 4); /* classes 230 and 220 */
    tokens = tiny_encode(tokenizer, text, 1 + 4 * PAIRS);
    assert_int_equal(tokens.count, 1 + 4 * PAIRS);
    for (i = 0; i < 2 * PAIRS; i++)
        assert_int_equal(tokens.ids[2 + 2 * i], i < PAIRS ? 0x96 : 0x81);
    pd_tokens_free(&tokens);
    free(text);
    pd_tokenizer_destroy(tokenizer);
}

/* ---- what can not be made ---------------------------------------------------------------------------- */

static void expect_refusal(const struct pd_tokenizer_spec *spec, int status, const char *words)
{
    struct pd_tokenizer *tokenizer = NULL;
    struct pd_error error;

    assert_int_equal(pd_tokenizer_create(spec, &tokenizer, &error), status);
    if (!strstr(error.text, words))
        fail_msg("\"%s\" does not say \"%s\"", error.text, words);
    assert_null(tokenizer);
}

static void faults_of_a_spec_are_named(void **state)
{
    static const struct {
        const char *merge, *words;
    } merges[] = {
        {"ab", "merge 0, \"ab\": no space"},     {"a b", "a token of it is not in the vocabulary"},
        {"a \xc4\x80\n", "not in the alphabet"}, {" a", "a token of it"},
        {"a b c", "not in the alphabet"},
    };
    struct tiny_vocabulary v;
    struct pd_tokenizer_spec spec;
    struct pd_string merge;
    size_t i;

    (void)state;
    tiny_init(&v);
    spec = tiny_spec(&v);
    spec.merges = &merge;
    spec.merge_count = 1;
    for (i = 0; i < sizeof merges / sizeof merges[0]; i++) {
        merge = (struct pd_string){merges[i].merge, strlen(merges[i].merge)};
        expect_refusal(&spec, PD_INVALID, merges[i].words);
    }
    spec = tiny_spec(&v);
    spec.token_count = 0;
    expect_refusal(&spec, PD_INVALID, "0 tokens");
    spec = tiny_spec(&v);
    spec.bos_id = 256;
    expect_refusal(&spec, PD_INVALID, "begin token 256");
    spec = tiny_spec(&v);
    spec.eos_id = -2;
    expect_refusal(&spec, PD_INVALID, "end token -2");
    spec = tiny_spec(&v);
    spec.add_bos = true;
    expect_refusal(&spec, PD_INVALID, "begin token is to be added");
    spec = tiny_spec(&v);
    spec.regexes = &(struct pd_string){"\\w", 2};
    spec.regex_count = 1;
    expect_refusal(&spec, PD_UNSUPPORTED, "expression 1");
    v.kinds[7] = 9;
    expect_refusal(&spec, PD_INVALID, "token 7 is of the unknown kind 9");
    v.kinds[7] = PD_TOKEN_NORMAL;
    v.tokens[7] = (struct pd_string){"\xff", 1};
    expect_refusal(&spec, PD_INVALID, "token 7 is not UTF-8");
    v.tokens[7] = v.tokens[8];
    expect_refusal(&spec, PD_INVALID, "tokens 7 and 8 are equal");
    v.tokens[7].length = 0;
    expect_refusal(&spec, PD_INVALID, "token 7 is empty");
}

static void added_tokens_are_checked(void **state)
{
    static char long_text[1025];
    struct tiny_vocabulary v;
    struct pd_tokenizer_spec spec;
    int32_t id;

    (void)state;
    tiny_init(&v);
    tiny_add(&v, "<a>", PD_TOKEN_SPECIAL);
    id = tiny_add(&v, "<a>", PD_TOKEN_ADDED);
    spec = tiny_spec(&v);
    expect_refusal(&spec, PD_INVALID, "are equal");
    memset(long_text, 'x', sizeof long_text);
    v.tokens[id] = (struct pd_string){long_text, sizeof long_text};
    expect_refusal(&spec, PD_UNSUPPORTED, "at most 1024");
    v.tokens[id].length--;
    pd_tokenizer_destroy(tiny_build(&spec));
}

static void rules_are_known_by_name(void **state)
{
    struct pd_tokenizer_spec spec = {.bos_id = 7};
    struct pd_error error;

    (void)state;
    assert_int_equal(pd_tokenizer_rules_by_name("smollm", &spec, &error), PD_OK);
    assert_true(spec.digits_alone && !spec.nfc && !spec.ignore_merges && spec.regex_count == 1);
    assert_int_equal(pd_tokenizer_rules_by_name("qwen2", &spec, &error), PD_OK);
    assert_true(!spec.digits_alone && spec.nfc && !spec.ignore_merges);
    assert_int_equal(pd_tokenizer_rules_by_name("llama-bpe", &spec, &error), PD_OK);
    assert_true(!spec.digits_alone && !spec.nfc && spec.ignore_merges);
    assert_int_equal(spec.bos_id, 7);
    assert_int_equal(pd_tokenizer_rules_by_name("no-such", &spec, &error), PD_UNSUPPORTED);
    assert_non_null(strstr(error.text, "no-such"));
}

static void every_named_rule_can_be_made(void **state)
{
    static const char *const names[] = {"smollm",   "starcoder", "refact",           "gpt-2",
                                        "qwen2",    "llama-bpe", "deepseek-r1-qwen", "llama3",
                                        "llama-v3", "default"};
    struct tiny_vocabulary v;
    struct pd_tokenizer_spec spec;
    struct pd_error error;
    size_t i;

    (void)state;
    tiny_init(&v);
    for (i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct pd_tokenizer *tokenizer;

        spec = tiny_spec(&v);
        assert_int_equal(pd_tokenizer_rules_by_name(names[i], &spec, &error), PD_OK);
        tokenizer = tiny_build(&spec);
        EXPECT(tokenizer, "a 1\n", 'a', ' ', '1', '\n');
        pd_tokenizer_destroy(tokenizer);
    }
}

/* ---- digest ------------------------------------------------------------------------------------------ */

struct digest {
    uint8_t bytes[32];
};

static struct digest digest_of(const struct pd_tokenizer_spec *spec)
{
    struct pd_tokenizer *tokenizer = tiny_build(spec);
    struct digest digest;

    pd_tokenizer_digest(tokenizer, digest.bytes);
    pd_tokenizer_destroy(tokenizer);
    return digest;
}

static void the_digest_tells_tokenizers_apart(void **state)
{
    struct tiny_vocabulary v;
    struct pd_tokenizer_spec specs[10];
    struct digest digests[10];
    struct pd_string swapped[2];
    uint8_t kinds[TINY_TOKENS];
    size_t count = sizeof specs / sizeof specs[0], i, j;

    (void)state;
    tiny_init(&v);
    tiny_merge(&v, "a", "b");
    tiny_merge(&v, "b", "c");
    tiny_add(&v, "<s>", PD_TOKEN_SPECIAL);
    for (i = 0; i < count; i++)
        specs[i] = tiny_spec(&v);
    specs[1].nfc = true;
    specs[2].ignore_merges = true;
    specs[3].digits_alone = true;
    specs[4].add_bos = true;
    specs[4].bos_id = 258;
    specs[5].add_bos = true;
    specs[5].bos_id = 257;
    specs[6].merge_count = 1;
    swapped[0] = v.merges[1];
    swapped[1] = v.merges[0];
    specs[7].merges = swapped;
    memcpy(kinds, v.kinds, sizeof kinds);
    kinds[258] = PD_TOKEN_ADDED;
    specs[8].kinds = kinds;
    specs[9].token_count--;
    for (i = 0; i < count; i++)
        digests[i] = digest_of(&specs[i]);
    for (i = 0; i < count; i++)
        for (j = 0; j < i; j++)
            assert_memory_not_equal(&digests[i], &digests[j], sizeof digests[i]);

    /* what changes nothing: names of tokens at the end that are not used, the end token */
    tiny_add(&v, "[PAD]", PD_TOKEN_UNUSED);
    specs[0] = tiny_spec(&v);
    specs[0].eos_id = 258;
    digests[1] = digest_of(&specs[0]);
    assert_memory_equal(&digests[0], &digests[1], sizeof digests[0]);
}

/* ---- threads ----------------------------------------------------------------------------------------- */

static const char shared_text[] = "<|im_start|>Re\u0301sume\u0301 12 ab ab\n";

/* Returns NULL if the text gives the same ids every time. */
static void *encode_often(void *tokenizer)
{
    struct pd_tokens first = {0}, again = {0};
    struct pd_error error;
    bool equal;
    int i;

    equal = pd_tokenizer_encode(tokenizer, shared_text, sizeof shared_text - 1, NULL, 0, 100,
                                &first, &error) == PD_OK;
    for (i = 0; i < 200 && equal; i++) {
        again.count = 0;
        equal = pd_tokenizer_encode(tokenizer, shared_text, sizeof shared_text - 1, NULL, 0, 100,
                                    &again, &error) == PD_OK &&
                again.count == first.count &&
                memcmp(again.ids, first.ids, first.count * sizeof first.ids[0]) == 0;
    }
    pd_tokens_free(&first);
    pd_tokens_free(&again);
    return equal ? NULL : tokenizer;
}

static void many_threads_encode_at_once(void **state)
{
    struct tiny_vocabulary v;
    struct pd_tokenizer_spec spec;
    struct pd_tokenizer *tokenizer;
    struct pd_error error;
    pthread_t threads[4];
    size_t i;

    (void)state;
    tiny_init(&v);
    tiny_merge(&v, "a", "b");
    tiny_add(&v, "<|im_start|>", PD_TOKEN_SPECIAL);
    spec = tiny_spec(&v);
    assert_int_equal(pd_tokenizer_rules_by_name("qwen2", &spec, &error), PD_OK);
    tokenizer = tiny_build(&spec);
    for (i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, tokenizer), 0);
    for (i = 0; i < 4; i++) {
        void *wrong;

        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    pd_tokenizer_destroy(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_has_its_token),
        cmocka_unit_test(the_best_rank_is_merged_first_then_the_leftmost),
        cmocka_unit_test(a_piece_of_a_million_bytes_is_no_burden),
        cmocka_unit_test(bytes_without_a_token_give_nothing),
        cmocka_unit_test(added_tokens_are_found_leftmost_and_longest),
        cmocka_unit_test(what_a_user_wrote_never_becomes_an_added_token),
        cmocka_unit_test(spans_are_checked),
        cmocka_unit_test(the_begin_token_is_added_once),
        cmocka_unit_test(no_more_than_the_limit_is_appended),
        cmocka_unit_test(text_that_is_not_utf8_is_refused_with_its_place),
        cmocka_unit_test(text_is_put_into_normal_form),
        cmocka_unit_test(a_million_marks_are_put_in_order),
        cmocka_unit_test(faults_of_a_spec_are_named),
        cmocka_unit_test(added_tokens_are_checked),
        cmocka_unit_test(rules_are_known_by_name),
        cmocka_unit_test(every_named_rule_can_be_made),
        cmocka_unit_test(the_digest_tells_tokenizers_apart),
        cmocka_unit_test(many_threads_encode_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
