/* The module's push parser, against jansson and against RFC 8259 by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "json_tree.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char *const good[] = {
    "{}",
    "[]",
    "0",
    "-0",
    "1",
    "-1",
    "10",
    "1.5",
    "0.25",
    "-0.0e0",
    "1e5",
    "1E+5",
    "12.75e-3",
    "true",
    "false",
    "null",
    "\"\"",
    "\"a\"",
    " { } ",
    "\t[\r\n]\n",
    "[1,2,3]",
    "[ 1 , 2 ]",
    "[[],[[]],{}]",
    "{\"a\":1}",
    "{\"a\":{\"b\":[1,{\"c\":null}]},\"d\":\"e\"}",
    "[true,false,null]",
    "[\"a\",\"\",\"b\"]",
    "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
    "\"\\u0041\\u00e9\\u20AC\"",
    "\"\\ud83d\\ude00\"",
    "\"\\uD834\\uDD1E\"",
    "\"\\u0000\"",
    "\"\\ufffe\\uffff\"",
    "\"\x7f\"",
    "\"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\"",
    "\"\xef\xbf\xbd\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80\"",
    "{\"\":0}",
    "{\"k\\u0065y\":\"v\"}",
    "[\"a long plain string that the scan walks over in steps of sixteen bytes\"]",
    "[\"sixteen bytes...\\n\",\"\xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x8c\xe4\xb8\x96\xe7\x95\x8c\"]",
    "[1.0,-2,3e2,{\"x\":[]}]",
};

/* With the byte at which each goes wrong. */
static const struct {
    const char *text;
    int offset;
} bad[] = {
    {"", 0},
    {" ", 1},
    {"{", 1},
    {"[", 1},
    {"}", 0},
    {"]", 0},
    {"[}", 1},
    {"{]", 1},
    {"{\"a\":1]", 6},
    {"[1}", 2},
    {",", 0},
    {"[,1]", 1},
    {"[1,]", 3},
    {"[1 2]", 3},
    {"{,}", 1},
    {"{\"a\":1,}", 7},
    {"{\"a\"}", 4},
    {"{\"a\" 1}", 5},
    {"{\"a\":}", 5},
    {"{1:2}", 1},
    {"{a:1}", 1},
    {"{'a':1}", 1},
    {"1 2", 2},
    {"[]]", 2},
    {"{}x", 2},
    {"01", 1},
    {"-", 1},
    {"-a", 1},
    {"+1", 0},
    {".5", 0},
    {"1.", 2},
    {"1.e5", 2},
    {"1e", 2},
    {"1e+", 3},
    {"1ee5", 2},
    {"0x10", 1},
    {"[1.2.3]", 4},
    {"tru", 3},
    {"trux", 3},
    {"truee", 4},
    {"nul", 3},
    {"nil", 1},
    {"True", 0},
    {"NaN", 0},
    {"Infinity", 0},
    {"\"", 1},
    {"\"abc", 4},
    {"\"\\", 2},
    {"\"\\x\"", 2},
    {"\"\\u12\"", 5},
    {"\"\\u12g4\"", 5},
    {"\"\n\"", 1},
    {"\"\x1f\"", 1},
    {"\"\\ud800\"", 7},
    {"\"\\ud800x\"", 7},
    {"\"\\ud800\\n\"", 8},
    {"\"\\ud800\\u0041\"", 12},
    {"\"\\udc00\"", 6},
    {"\"\xff\"", 1},
    {"\"\x80\"", 1},
    {"\"\xc0\x80\"", 1},
    {"\"\xc1\xbf\"", 1},
    {"\"\xe0\x80\x80\"", 2},
    {"\"\xed\xa0\x80\"", 2},
    {"\"\xf0\x80\x80\x80\"", 2},
    {"\"\xf4\x90\x80\x80\"", 2},
    {"\"\xf5\x80\x80\x80\"", 1},
    {"\"\xe2\x82\"", 3},
    {"\"\xc3(\"", 2},
    {"\"sixteen bytes...\xe2\x28\xa1\"", 18},
    {"\xef\xbb\xbf{}", 0},
    {"/* c */ 1", 0},
    {"[1]//", 3},
};

/* The same, whatever the pieces; where jansson takes it too, the same to jansson. */
static void check_good(const char *text, size_t length)
{
    json_t *expected = json_loadb(text, length, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);

    assert_non_null(expected);
    for (size_t piece = 0; piece <= length; piece++) {
        struct json_tree tree;
        json_t *got;

        json_tree_parse(&tree, text, length, piece, false, 0);
        assert_int_equal(tree.result, NGX_OK);
        got = json_loadb(tree.text, tree.length, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_non_null(got);
        assert_true(json_equal(expected, got));
        json_decref(got);
        json_tree_free(&tree);
    }
    json_decref(expected);
}

static void takes_what_is_json(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(good); i++)
        check_good(good[i], strlen(good[i]));
}

static void refuses_what_is_not_and_says_where(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        size_t length = strlen(bad[i].text);

        for (size_t piece = 0; piece <= length; piece++) {
            struct json_tree tree;

            json_tree_parse(&tree, bad[i].text, length, piece, false, 0);
            if (tree.result != NGX_ERROR || tree.json.error_offset != bad[i].offset)
                fail_msg("%s in pieces of %zu: %d at %d", bad[i].text, piece, (int)tree.result,
                         (int)tree.json.error_offset);
            assert_non_null(tree.json.error);
            json_tree_free(&tree);
        }
    }
}

static void tells_line_and_column(void **state)
{
    static const char text[] = "{\n  \"a\": 1,\r\n  \"b\": \xff\n}";

    (void)state;
    for (size_t piece = 0; piece < sizeof text; piece++) {
        struct json_tree tree;

        json_tree_parse(&tree, text, sizeof text - 1, piece, false, 0);
        assert_int_equal(tree.result, NGX_ERROR);
        assert_int_equal(tree.json.error_offset, 20);
        assert_int_equal(tree.json.line, 3);
        assert_int_equal(tree.json.error_column, 8);
        json_tree_free(&tree);
    }
}

static void bounds_nesting(void **state)
{
    char text[2 * (NGX_HTTP_PD_JSON_DEPTH + 1)];

    (void)state;
    for (size_t depth = NGX_HTTP_PD_JSON_DEPTH; depth <= NGX_HTTP_PD_JSON_DEPTH + 1; depth++) {
        struct json_tree tree;

        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        json_tree_parse(&tree, text, 2 * depth, 7, false, 0);
        assert_int_equal(tree.result, depth > NGX_HTTP_PD_JSON_DEPTH ? NGX_ERROR : NGX_OK);
        if (tree.result == NGX_ERROR)
            assert_int_equal(tree.json.error_offset, NGX_HTTP_PD_JSON_DEPTH);
        json_tree_free(&tree);
    }
}

static void remembers_which_levels_are_objects(void **state)
{
    char text[1024], *at = text;

    (void)state;
    for (int i = 0; i < 31; i++)
        at = stpcpy(at, "[{\"k\":");
    at = stpcpy(at, "0");
    for (int i = 0; i < 31; i++)
        at = stpcpy(at, "}]");
    check_good(text, (size_t)(at - text));
}

static void bounds_numbers_and_cuts_keys(void **state)
{
    char text[400];
    struct json_tree tree;

    (void)state;
    memset(text, '1', sizeof text);
    json_tree_parse(&tree, text, NGX_HTTP_PD_JSON_TOKEN, 3, false, 0);
    assert_int_equal(tree.result, NGX_OK);
    assert_int_equal(tree.length, NGX_HTTP_PD_JSON_TOKEN);
    json_tree_free(&tree);
    json_tree_parse(&tree, text, NGX_HTTP_PD_JSON_TOKEN + 1, 3, false, 0);
    assert_int_equal(tree.result, NGX_ERROR);
    json_tree_free(&tree);

    memcpy(text, "{\"", 2);
    memset(text + 2, 'k', 300);
    strcpy(text + 302, "\":\"v\"}");
    for (size_t piece = 0; piece < 310; piece += 31) {
        json_tree_parse(&tree, text, strlen(text), piece, false, 0);
        assert_int_equal(tree.result, NGX_OK);
        assert_int_equal(tree.length, strlen("{\"\":\"v\"}") + NGX_HTTP_PD_JSON_TOKEN);
        json_tree_free(&tree);
    }
}

static void captures_a_value_as_sent(void **state)
{
    static const char text[] = "{ \"a\" : [ 1 , {\"x\":\"\\u0041]}\"} ,[ ] ] , \"b\" : {} }";
    static const char raw[] = "[ 1 , {\"x\":\"\\u0041]}\"} ,[ ] ]";

    (void)state;
    for (size_t piece = 0; piece < sizeof text; piece++) {
        struct json_tree tree;

        json_tree_parse(&tree, text, sizeof text - 1, piece, true, 0);
        assert_int_equal(tree.result, NGX_OK);
        assert_int_equal(tree.raw_length, strlen(raw));
        assert_memory_equal(tree.raw, raw, strlen(raw));
        assert_string_equal(tree.text, "{\"a\":[1,{\"x\":\"A]}\"},[]],\"b\":{}}");
        json_tree_free(&tree);
    }
}

static void stops_where_a_handler_says(void **state)
{
    static const char text[] = "{\"a\":[1,\"b\\n\",{\"c\":null}],\"d\":\"e\"}";
    struct json_tree all;

    (void)state;
    json_tree_parse(&all, text, sizeof text - 1, 0, false, 0);
    for (int refuse = 1; refuse <= all.events; refuse++) {
        struct json_tree tree;

        json_tree_parse(&tree, text, sizeof text - 1, 0, false, refuse);
        assert_int_equal(tree.result, NGX_ABORT);
        assert_int_equal(tree.events, refuse);
        json_tree_free(&tree);
    }
    json_tree_free(&all);
}

/* Documents drawn at random, by jansson's own encoder, with every kind of character. */
static json_t *draw(unsigned *seed, int depth)
{
    int kind = rand_r(seed) % (depth ? 7 : 5);
    char text[64];
    json_t *value;

    switch (kind) {
    case 0:
        return json_integer((json_int_t)rand_r(seed) * (rand_r(seed) % 2 ? 1 : -1));
    case 1:
        return json_real((double)rand_r(seed) / 997 - 1e6);
    case 2:
        return rand_r(seed) % 2 ? json_true() : rand_r(seed) % 2 ? json_false() : json_null();
    case 3:
    case 4: {
        static const char *const pieces[] = {
            "plain text",       "\"", "\\",  "\n", "\x01", "\xc3\xa9", "\xe2\x82\xac",
            "\xf0\x9f\x98\x80", "/",  "\x7f"};
        text[0] = 0;
        for (int i = rand_r(seed) % 6; i > 0; i--)
            strcat(text, pieces[rand_r(seed) % COUNT(pieces)]);
        return json_string(text);
    }
    case 5:
        value = json_array();
        for (int i = rand_r(seed) % 5; i > 0; i--)
            json_array_append_new(value, draw(seed, depth - 1));
        return value;
    default:
        value = json_object();
        for (int i = rand_r(seed) % 5; i > 0; i--) {
            snprintf(text, sizeof text, "k\xc3\xa9y\n%d", rand_r(seed) % 100);
            json_object_set_new(value, text, draw(seed, depth - 1));
        }
        return value;
    }
}

static void agrees_with_jansson_on_random_documents(void **state)
{
    unsigned seed = 20;

    (void)state;
    for (int i = 0; i < 300; i++) {
        json_t *value = draw(&seed, 4);
        char *text = json_dumps(value, JSON_ENCODE_ANY | (i % 2 ? JSON_ENSURE_ASCII : 0) |
                                           (i % 3 ? 0 : JSON_INDENT(2)));

        if (strlen(text) < 400)
            check_good(text, strlen(text));
        free(text);
        json_decref(value);
    }
}

/* The end of what may stand between quotes: exactly the well-formed prefix. */
static void finds_plain_text_at_every_alignment(void **state)
{
    static const char *const ends[] = {"\"",       "\\",           "\n",       "\x80", "\xc3",
                                       "\xe2\x82", "\xf0\x9f\x98", "\xc0\x80", ""};
    char text[128];

    (void)state;
    for (size_t length = 0; length < 40; length++) {
        for (size_t end = 0; end < COUNT(ends); end++) {
            u_char *copy;
            size_t total = length + strlen(ends[end]);

            memset(text, 'x', length);
            strcpy(text + length, ends[end]);
            copy = malloc(total + 1);
            memcpy(copy, text, total);
            assert_ptr_equal(ngx_http_pd_json_plain(copy, copy + total), copy + length);
            free(copy);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_what_is_json),
        cmocka_unit_test(refuses_what_is_not_and_says_where),
        cmocka_unit_test(tells_line_and_column),
        cmocka_unit_test(bounds_nesting),
        cmocka_unit_test(remembers_which_levels_are_objects),
        cmocka_unit_test(bounds_numbers_and_cuts_keys),
        cmocka_unit_test(captures_a_value_as_sent),
        cmocka_unit_test(stops_where_a_handler_says),
        cmocka_unit_test(agrees_with_jansson_on_random_documents),
        cmocka_unit_test(finds_plain_text_at_every_alignment),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
