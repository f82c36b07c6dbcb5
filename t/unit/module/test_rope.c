/* Ropes: bytes in order whatever the buffers, JSON that jansson reads, memory that does not grow.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "ngx_http_pd_error.h"
#include "ngx_http_pd_rope.h"
#include "ngx_http_pd_stock.h"
#include "ngx_shim.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* The rope's bytes, in one piece; free it. */
static char *flatten(const ngx_chain_t *chain, size_t *length)
{
    char *text = calloc(1, 1);

    *length = 0;
    for (; chain; chain = chain->next) {
        size_t count = (size_t)(chain->buf->last - chain->buf->pos);

        text = realloc(text, *length + count + 1);
        memcpy(text + *length, chain->buf->pos, count);
        *length += count;
        text[*length] = 0;
    }
    return text;
}

static void keeps_bytes_in_order(void **state)
{
    (void)state;
    for (size_t buffer = 8; buffer < 100; buffer += 13) {
        ngx_http_pd_rope_t rope = {.pool = shim_pool_create(), .buffer = buffer};
        char expected[4096], *got;
        size_t length = 0, got_length;
        unsigned seed = 3;

        while (length < 3000) {
            size_t count = (size_t)rand_r(&seed) % 60;

            for (size_t i = 0; i < count; i++)
                expected[length + i] = (char)rand_r(&seed);
            if (count < 8) {
                u_char *room = ngx_http_pd_rope_reserve(&rope, count);
                memcpy(room, expected + length, count);
            } else {
                assert_int_equal(ngx_http_pd_rope_append(&rope, (u_char *)expected + length, count),
                                 NGX_OK);
            }
            length += count;
            assert_int_equal(rope.size, length);
        }
        got = flatten(rope.first, &got_length);
        assert_int_equal(got_length, length);
        assert_memory_equal(got, expected, length);
        free(got);
        shim_pool_destroy(rope.pool);
    }
}

/* What was escaped, read back by jansson. */
static void check_escaped(const char *text, size_t length, const char *expected,
                          size_t expected_length)
{
    for (size_t buffer = 6; buffer < 40; buffer += 11) {
        ngx_http_pd_rope_t rope = {.pool = shim_pool_create(), .buffer = buffer};
        size_t got_length;
        char *got;
        json_t *value;

        assert_int_equal(ngx_http_pd_rope_literal(&rope, "\""), NGX_OK);
        assert_int_equal(ngx_http_pd_rope_escape(&rope, (u_char *)text, length), NGX_OK);
        assert_int_equal(ngx_http_pd_rope_literal(&rope, "\""), NGX_OK);
        got = flatten(rope.first, &got_length);
        value = json_loadb(got, got_length, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_non_null(value);
        assert_int_equal(json_string_length(value), expected_length);
        assert_memory_equal(json_string_value(value), expected, expected_length);
        json_decref(value);
        free(got);
        shim_pool_destroy(rope.pool);
    }
}

static void escapes_what_json_cannot_hold(void **state)
{
    char all[128];

    (void)state;
    for (int i = 0; i < 128; i++)
        all[i] = (char)i;
    check_escaped(all, 128, all, 128);
    check_escaped("", 0, "", 0);
    check_escaped("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", 14,
                  "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", 14);
}

static void replaces_what_is_not_utf8(void **state)
{
    static const char *const broken[] = {
        "\xff",         "\x80",     "\xc3",         "\xe2\x82",
        "\xf0\x9f\x98", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80"};

    (void)state;
    for (size_t i = 0; i < COUNT(broken); i++) {
        char text[32], expected[32];

        snprintf(text, sizeof text, "<%s>", broken[i]);
        snprintf(expected, sizeof expected, "<%s>", "\xef\xbf\xbd");
        check_escaped(text, strlen(text), expected, strlen(expected));
    }
}

/* Ropes that give their buffers back take no memory for what comes after the first, and more than
 * the stock keeps goes back to the heap (the sanitizer would tell). */
static void uses_buffers_again(void **state)
{
    ngx_http_pd_rope_t rope = {.buffer = NGX_HTTP_PD_STOCK_BUFFER};
    ngx_chain_t *taken[3], *many = NULL;

    (void)state;
    shim_pool_bytes();
    for (int event = 0; event < 1000; event++) {
        ngx_chain_t *chain;
        char *text;
        size_t length;
        int same = 0;

        for (int i = 0; i < 500; i++)
            assert_int_equal(ngx_http_pd_rope_literal(&rope, "token "), NGX_OK);
        assert_int_equal(rope.size, 3000);
        chain = ngx_http_pd_rope_take(&rope);
        assert_int_equal(rope.size, 0);
        assert_null(ngx_http_pd_rope_take(&rope));
        text = flatten(chain, &length);
        assert_int_equal(length, 3000);
        assert_memory_equal(text + 2994, "token ", 6);
        free(text);
        for (int i = 0; i < 3; i++) {
            ngx_chain_t *link = chain;

            for (int skip = 0; skip < i; skip++)
                link = link->next;
            for (int old = 0; old < 3; old++)
                same += event && link == taken[old];
        }
        assert_int_equal(same, event ? 3 : 0);
        for (int i = 0; i < 3; i++)
            taken[i] = i ? taken[i - 1]->next : chain;
        ngx_http_pd_stock_give(chain);
    }
    assert_int_equal(shim_pool_bytes(), 0);
    for (int i = 0; i < 3 * NGX_HTTP_PD_STOCK_KEEP; i++) {
        ngx_chain_t *link = ngx_http_pd_stock_take();

        assert_int_equal(link->buf->last - link->buf->pos, 0);
        link->next = many;
        many = link;
    }
    ngx_http_pd_stock_give(many);
}

static void errors_have_the_apis_shape(void **state)
{
    static const struct {
        ngx_uint_t status;
        const char *type;
    } kinds[] = {{400, "invalid_request_error"}, {401, "authentication_error"},
                 {403, "permission_error"},      {404, "invalid_request_error"},
                 {413, "invalid_request_error"}, {429, "rate_limit_error"},
                 {500, "server_error"},          {503, "server_error"},
                 {507, "server_error"},          {418, "invalid_request_error"}};
    ngx_str_t param = ngx_string("a\"b");

    (void)state;
    for (size_t i = 0; i < COUNT(kinds); i++) {
        for (int bare = 0; bare < 2; bare++) {
            ngx_http_pd_rope_t rope = {.pool = shim_pool_create(), .buffer = 64};
            ngx_http_pd_error_t error;
            const char *message, *type;
            json_t *value, *at;
            size_t length;
            char *text;

            if (bare)
                ngx_http_pd_error_status(&error, kinds[i].status);
            else
                assert_int_equal(ngx_http_pd_error(&error, rope.pool, kinds[i].status, "some_code",
                                                   &param, "%s \"%V\"", "no", &param),
                                 NGX_ABORT);
            assert_int_equal(ngx_http_pd_error_json(&error, &rope), NGX_OK);
            text = flatten(rope.first, &length);
            value = json_loadb(text, length, JSON_REJECT_DUPLICATES, NULL);
            assert_non_null(value);
            assert_int_equal(json_object_size(value), 1);
            at = json_object_get(value, "error");
            assert_int_equal(json_object_size(at), 4);
            assert_int_equal(json_unpack(at, "{s:s,s:s}", "message", &message, "type", &type), 0);
            assert_string_equal(type, kinds[i].type);
            if (bare) {
                assert_true(json_is_null(json_object_get(at, "param")));
            } else {
                assert_string_equal(message, "no \"a\"b\"");
                assert_string_equal(json_string_value(json_object_get(at, "param")), "a\"b");
                assert_string_equal(json_string_value(json_object_get(at, "code")), "some_code");
            }
            json_decref(value);
            free(text);
            shim_pool_destroy(rope.pool);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_bytes_in_order),
        cmocka_unit_test(escapes_what_json_cannot_hold),
        cmocka_unit_test(replaces_what_is_not_utf8),
        cmocka_unit_test(uses_buffers_again),
        cmocka_unit_test(errors_have_the_apis_shape),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
