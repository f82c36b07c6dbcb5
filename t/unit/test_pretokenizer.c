/* Where expressions cut text, and which expressions are refused. The expected pieces are what Hugging Face's
 * `tokenizers` gives for the same expressions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/text/pretokenizer.h"

#define QWEN2  "qwen2"
#define LLAMA3 "llama3"
#define SMOLLM "smollm"

/* Pieces are joined by "|" and compared as one text. */
static int join(void *context, const char *bytes, size_t length)
{
    char *joined = context;

    strcat(joined, "|");
    strncat(joined, bytes, length);
    return PD_OK;
}

static struct pd_pretokenizer *make(const struct pd_string *regexes, size_t count)
{
    struct pd_pretokenizer *made = NULL;
    struct pd_error error;

    if (pd_pretokenizer_create(regexes, count, &made, &error) != PD_OK)
        fail_msg("%s", error.text);
    return made;
}

static void expect_pieces(const struct pd_string *regexes, size_t count, const char *text,
                          const char *expected)
{
    struct pd_pretokenizer *rules = make(regexes, count);
    struct pd_error error;
    char joined[1024] = "";

    assert_int_equal(pd_pretokenizer_split(rules, text, strlen(text), join, joined, &error), PD_OK);
    strcat(joined, "|");
    assert_string_equal(joined, expected);
    pd_pretokenizer_destroy(rules);
}

static void named_rules_cut_as_their_models_do(void **state)
{
    static const struct {
        const char *rules, *text, *pieces;
    } cases[] = {
        {QWEN2, "Hello world", "|Hello| world|"},
        {QWEN2, "I'll can'\u017fay 'LL", "|I|'ll| can|'\u017f|ay| '|LL|"},
        {QWEN2, "a  b\t\tc  ", "|a| | b|\t|\tc|  |"},
        {QWEN2, "x\n\n  y\r\n", "|x|\n\n| | y|\r\n|"},
        {QWEN2, "12345 \u0663\u0664x", "|1|2|3|4|5| |\u0663|\u0664|x|"},
        {QWEN2, "\u180e \xc2\x85\u00a0\u00e9", "|\u180e| \xc2\x85|\u00a0\u00e9|"},
        {QWEN2, "日本語、テスト！", "|日本語|、テスト|！|"},
        {QWEN2, "a\u0301\u0301b ½Ⅷ", "|a|\u0301\u0301|b| |½|Ⅷ|"},
        {QWEN2, "  \n  if (x) {\n", "|  \n| | if| (|x|)| {\n|"},
        {QWEN2, "'\u017f'S'K", "|'\u017f|'S|'K|"},
        {LLAMA3, "12345 \u0663\u0664x", "|123|45| |\u0663\u0664|x|"},
        {LLAMA3, "a\u0301\u0301b ½Ⅷ", "|a|\u0301\u0301|b| |½Ⅷ|"},
        {SMOLLM, "I'll can'\u017fay 'LL", "|I|'ll| can|'|\u017fay| '|LL|"},
        {SMOLLM, "a  b\t\tc  ", "|a| | b|\t|\t|c|  |"},
        {SMOLLM, "x\n\n  y\r\n", "|x|\n\n | y|\r\n|"},
        {SMOLLM, "\u180e \xc2\x85\u00a0\u00e9", "|\u180e| \xc2\x85|\u00a0|\u00e9|"},
        {SMOLLM, "日本語、テスト！", "|日本語|、|テスト|！|"},
        {SMOLLM, "  \n  if (x) {\n", "|  \n | if| (|x|)| {|\n|"},
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pd_tokenizer_spec spec = {.regex_count = 0};
        struct pd_string regexes[8] = {{"\\p{N}", 5}};
        struct pd_error error;

        assert_int_equal(pd_tokenizer_rules_by_name(cases[i].rules, &spec, &error), PD_OK);
        memcpy(regexes + spec.digits_alone, spec.regexes, spec.regex_count * sizeof regexes[0]);
        expect_pieces(regexes, spec.regex_count + spec.digits_alone, cases[i].text,
                      cases[i].pieces);
    }
}

static void expect_cut(const char *regex, const char *text, const char *pieces)
{
    expect_pieces(&(struct pd_string){regex, strlen(regex)}, 1, text, pieces);
}

static void syntax_means_what_it_does_elsewhere(void **state)
{
    (void)state;
    expect_cut("x", "axxb", "|a|x|x|b|");
    expect_cut("[^\\s,]+", "ab, c\u3000d", "|ab|, |c|\u3000|d|");
    expect_cut("[a-cé]+", "xabéz", "|x|abé|z|");
    expect_cut("[-a\\-\\]]+", "b-a]b", "|b|-a]|b|");
    expect_cut("[\\x41\\u00e9\\x{1F600}]", "A\u00e9\U0001F600.", "|A|\u00e9|\U0001F600|.|");
    expect_cut("\\D+", "ab12c", "|ab|12|c|");
    expect_cut("\\P{L}+", "ab12c", "|ab|12|c|");
    expect_cut("\\p{^L}+", "ab12c", "|ab|12|c|");
    expect_cut("[\\S]+", "ab c", "|ab| |c|");
    expect_cut("\\p{Lu}\\p{Ll}*", "HiYou", "|Hi|You|");
    expect_cut(".+", "ab\ncd", "|ab|\n|cd|");
    expect_cut("(?:ab){2}", "ababab", "|abab|ab|");
    expect_cut("a{,2}b", "aaab", "|a|aab|");
    expect_cut("a{2,}", "aaaba", "|aaa|ba|");
    expect_cut("(a|b)c", "acbcc", "|ac|bc|c|");
    expect_cut("a(?=b)|(?<=c)d", "abcdad", "|a|bc|d|ad|");
    expect_cut("a++b|a", "aab", "|aab|");
    expect_cut("a+?", "aa", "|a|a|");
    expect_cut("(?>a+)b", "aab", "|aab|");
    expect_cut("'(?i:[sdmt]|ll|ve|re)", "'S'\u017f'Ll'x", "|'S|'\u017f|'Ll|'x|");
    expect_cut("(?i:k)+", "j\u212aKkj", "|j|\u212aKk|j|");
    expect_cut("\\x{80}+", "\xc2\x80\xc2\x81\xc2\x82", "|\xc2\x80|\xc2\x81\xc2\x82|");
    expect_cut("\\.\\|\\+", ".|+x", "|.|+|x|");
    expect_cut("[\\p{Lu}\\p{Cs}]", "aB", "|a|B|");
    expect_cut("\\p{Cs}+", "aB", "|aB|");
}

static void each_expression_sees_only_its_piece(void **state)
{
    static const struct pd_string regexes[] = {{"\\p{N}", 5}, {"x(?=1)|a+", 9}};

    (void)state;
    expect_pieces(regexes, 2, "aax1a2x", "|aa|x|1|a|2|x|"); /* x is cut as the rest, not by the 1 */
    expect_pieces(regexes, 0, "a b", "|a b|");
}

static void a_piece_may_be_very_long(void **state)
{
    static const char regex[] = "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+|x";
    const size_t length = 12000000; /* more than PCRE2 goes back by itself */
    struct pd_pretokenizer *rules = make(&(struct pd_string){regex, sizeof regex - 1}, 1);
    char *text = malloc(length), *joined = calloc(1, length + 16);
    struct pd_error error;

    (void)state;
    memset(text, ' ', length);
    text[length - 1] = 'x';
    assert_int_equal(pd_pretokenizer_split(rules, text, length, join, joined, &error), PD_OK);
    assert_int_equal(strlen(joined), length + 3);
    assert_string_equal(joined + length - 2, " | |x");
    free(text);
    free(joined);
    pd_pretokenizer_destroy(rules);
}

static int refuse_second(void *context, const char *bytes, size_t length)
{
    int *calls = context;

    (void)bytes, (void)length;
    return ++*calls == 2 ? PD_FULL : PD_OK;
}

static void a_refused_piece_ends_the_split(void **state)
{
    struct pd_pretokenizer *rules = make(&(struct pd_string){"a", 1}, 1);
    struct pd_error error;
    int calls = 0;

    (void)state;
    assert_int_equal(pd_pretokenizer_split(rules, "aaaa", 4, refuse_second, &calls, &error),
                     PD_FULL);
    assert_int_equal(calls, 2);
    pd_pretokenizer_destroy(rules);
}

static void expressions_are_refused_by_name(void **state)
{
    static const struct {
        const char *regex;
        int status;
        const char *words;
    } cases[] = {
        {"a\\w", PD_UNSUPPORTED, "expression 1, byte 1: this escape"},
        {"\\bfoo", PD_UNSUPPORTED, "byte 0: this escape"},
        {"(a)\\1", PD_UNSUPPORTED, "this escape"},
        {"^a", PD_UNSUPPORTED, "an anchor"},
        {"a$", PD_UNSUPPORTED, "an anchor"},
        {"\\p{Han}", PD_UNSUPPORTED, "no general category"},
        {"\\pL", PD_UNSUPPORTED, "without braces"},
        {"[a[b]]", PD_UNSUPPORTED, "a class within a class"},
        {"[\\p{L}&&[^a]]", PD_UNSUPPORTED, "an intersection"},
        {"[a-c-e]", PD_UNSUPPORTED, "a dash"},
        {"(?i)a", PD_UNSUPPORTED, "this kind of group"},
        {"(?<name>a)", PD_UNSUPPORTED, "this kind of group"},
        {"(?i:ä)", PD_UNSUPPORTED, "ignoring the case"},
        {"(?i:[^a])", PD_UNSUPPORTED, "ignoring case in a class"},
        {"(?i:\\s)(?i:ss)", PD_UNSUPPORTED, "two letters that fold into one"},
        {"a{2}+", PD_UNSUPPORTED, "a lazy or possessive repeat count"},
        {"a{b}", PD_UNSUPPORTED, "a brace"},
        {"a{,}", PD_UNSUPPORTED, "a brace"},
        {"a]", PD_UNSUPPORTED, "a bracket"},
        {"a*", PD_UNSUPPORTED, "match nothing"},
        {"", PD_UNSUPPORTED, "match nothing"},
        {"a|+", PD_INVALID, "nothing to repeat"},
        {"a+*", PD_INVALID, "nothing to repeat"},
        {"(a", PD_INVALID, "a group is not closed"},
        {"a)", PD_INVALID, "a closing parenthesis too many"},
        {"[a", PD_INVALID, "a class is not closed"},
        {"[]", PD_INVALID, "a class is not closed or empty"},
        {"[b-a]", PD_INVALID, "a range"},
        {"a\\", PD_INVALID, "a backslash"},
        {"\\x4", PD_INVALID, "hexadecimal"},
        {"\\x{110000}", PD_INVALID, "no such code point"},
        {"\\x{d800}", PD_INVALID, "no such code point"},
        {"\\xe9", PD_UNSUPPORTED, "a single byte"},
        {"\\p{L", PD_INVALID, "not closed"},
        {"a\xff", PD_INVALID, "byte 1: not UTF-8"},
        {"(?<=a+)b", PD_INVALID, "expression 1: "},
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pd_string regex = {cases[i].regex, strlen(cases[i].regex)};
        struct pd_pretokenizer *made = NULL;
        struct pd_error error = {0};
        int status = pd_pretokenizer_create(&regex, 1, &made, &error);

        if (status != cases[i].status || !strstr(error.text, cases[i].words))
            fail_msg("%s: status %d, \"%s\"", cases[i].regex, status, error.text);
        assert_null(made);
    }
}

/* Fills `out` with `count` copies of `unit`. */
static struct pd_string repeated(char *out, const char *unit, size_t count)
{
    size_t length = strlen(unit), i;

    for (i = 0; i < count; i++)
        memcpy(out + i * length, unit, length);
    return (struct pd_string){out, count * length};
}

static void expect_refusal(struct pd_string *regexes, size_t count, const char *words)
{
    struct pd_pretokenizer *made;
    struct pd_error error;

    assert_int_equal(pd_pretokenizer_create(regexes, count, &made, &error), PD_UNSUPPORTED);
    if (!strstr(error.text, words))
        fail_msg("\"%s\" does not say \"%s\"", error.text, words);
}

static void sizes_are_bounded(void **state)
{
    static char text[8192];
    struct pd_string regexes[32];
    size_t i;

    (void)state;
    regexes[0] = repeated(text, "a", 4097);
    expect_refusal(regexes, 1, "at most 4096");
    regexes[0] = repeated(text, "(", 33);
    expect_refusal(regexes, 1, "nesting deeper than 32");
    for (i = 0; i < 32; i++)
        regexes[i] = (struct pd_string){"a", 1};
    expect_refusal(regexes, 32, "at most 16");

    /* 129 different sets, and one class of 65 ranges */
    for (i = 0; i < 129; i++) {
        text[2 * i] = (char)(0xC4 + i / 64);
        text[2 * i + 1] = (char)(0x80 + i % 64);
    }
    regexes[0] = (struct pd_string){text, 2 * 129};
    expect_refusal(regexes, 1, "more than 128 different");
    text[0] = '[';
    for (i = 0; i < 65; i++) {
        text[1 + 2 * i] = (char)(0xC4 + i / 32);
        text[2 + 2 * i] = (char)(0x80 + i % 32 * 2);
    }
    text[1 + 2 * 65] = ']';
    regexes[0] = (struct pd_string){text, 2 + 2 * 65};
    expect_refusal(regexes, 1, "more than 64 ranges");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(named_rules_cut_as_their_models_do),
        cmocka_unit_test(syntax_means_what_it_does_elsewhere),
        cmocka_unit_test(each_expression_sees_only_its_piece),
        cmocka_unit_test(a_piece_may_be_very_long),
        cmocka_unit_test(a_refused_piece_ends_the_split),
        cmocka_unit_test(expressions_are_refused_by_name),
        cmocka_unit_test(sizes_are_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
