/* Hashes of prefixes: the same for the same text in whatever pieces it comes, another for another.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ngx_http_pd_prefix.h"

#define TEXT 700

/* The point behind `length` bytes in pieces of 0 to `most` bytes, each in memory of its own. */
static ngx_http_pd_point_t in_pieces(const unsigned char *text, size_t length, size_t most,
                                     unsigned seed)
{
    ngx_http_pd_tail_t tail = {.hash = 7};
    ngx_http_pd_point_t point;

    for (size_t at = 0; at < length;) {
        size_t count = (size_t)rand_r(&seed) % (most + 1);
        u_char *copy;

        if (count > length - at)
            count = length - at;
        copy = malloc(count ? count : 1);
        memcpy(copy, text + at, count);
        ngx_http_pd_tail_text(&tail, copy, count);
        free(copy);
        at += count;
    }
    assert_int_equal(tail.bytes, length);
    ngx_http_pd_tail_end(&tail, &point);
    return point;
}

static void hashes_do_not_depend_on_pieces(void **state)
{
    unsigned char text[TEXT];
    unsigned seed = 11;

    (void)state;
    for (size_t i = 0; i < TEXT; i++)
        text[i] = (unsigned char)rand_r(&seed);
    for (size_t length = 0; length < TEXT; length += length < 70 ? 1 : 37) {
        ngx_http_pd_point_t whole = in_pieces(text, length, 10 * TEXT, 1);

        assert_int_equal(whole.bytes, length);
        for (size_t most = 1; most < 100; most += most < 12 ? 1 : 29)
            assert_true(in_pieces(text, length, most, seed++).hash == whole.hash);
    }
}

static void each_byte_counts(void **state)
{
    unsigned char text[TEXT] = {0};
    ngx_http_pd_point_t plain[TEXT + 1];

    (void)state;
    for (size_t length = 0; length <= TEXT; length++) {
        plain[length] = in_pieces(text, length, TEXT, 1);
        for (size_t shorter = 0; shorter < length; shorter++)
            assert_true(plain[shorter].hash != plain[length].hash);
    }
    for (size_t i = 0; i < TEXT; i++) {
        text[i] = 1;
        assert_true(in_pieces(text, TEXT, 9, 3).hash != plain[TEXT].hash);
        text[i] = 0;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hashes_do_not_depend_on_pieces),
        cmocka_unit_test(each_byte_counts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
