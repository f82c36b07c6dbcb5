/* The stock's buffers: which of those that come through other filters may be framed where they lie.
 *
 * A filter that sends a buffer in pieces copies its ngx_buf_t for each, tag and all, as nginx's sub filter does: the
 * bytes behind the first piece are the second one's, so no piece may be framed in place.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ngx_http_pd_stock.h"
#include "ngx_shim.h"

static const char event[] = "data: {\"text\":\"Hello\"}\n\n";

/* A link of the stock that holds the event. */
static ngx_chain_t *held(void)
{
    ngx_chain_t *link = ngx_http_pd_stock_take();

    assert_non_null(link);
    link->buf->last = ngx_cpymem(link->buf->last, event, sizeof(event) - 1);
    return link;
}

static void takes_its_own(void **state)
{
    ngx_chain_t *link = held();

    (void)state;
    assert_true(ngx_http_pd_stock_whole(link->buf));

    link->buf->last = link->buf->end;
    assert_true(ngx_http_pd_stock_whole(link->buf));
    ngx_http_pd_stock_give(link);
}

static void takes_no_piece_of_a_copy(void **state)
{
    ngx_chain_t *link = held();
    ngx_buf_t first = *link->buf, second = *link->buf;

    (void)state;
    first.last = first.pos + 10;
    second.pos = first.last;

    assert_false(ngx_http_pd_stock_whole(&first));
    assert_false(ngx_http_pd_stock_whole(&second));
    assert_true(ngx_http_pd_stock_whole(link->buf));
    ngx_http_pd_stock_give(link);
}

static void takes_none_that_was_begun_or_framed(void **state)
{
    ngx_chain_t *link = held();
    ngx_buf_t *b = link->buf;

    (void)state;
    b->pos++;
    assert_false(ngx_http_pd_stock_whole(b));

    b->pos = b->start;
    b->last = b->end + NGX_HTTP_PD_STOCK_TAIL;
    assert_false(ngx_http_pd_stock_whole(b));
    ngx_http_pd_stock_give(link);
}

static void takes_no_other(void **state)
{
    u_char bytes[NGX_HTTP_PD_STOCK_BUFFER];
    ngx_buf_t b = {.pos = bytes, .last = bytes + 10, .start = bytes, .end = bytes + sizeof(bytes)};

    (void)state;
    assert_false(ngx_http_pd_stock_whole(&b));
}

static void gives_them_back_empty(void **state)
{
    ngx_chain_t *link = held(), *again;

    (void)state;
    link->buf->pos = link->buf->last;
    ngx_http_pd_stock_give(link);

    again = ngx_http_pd_stock_take();
    assert_ptr_equal(again, link);
    assert_null(again->next);
    assert_ptr_equal(again->buf->pos, again->buf->start);
    assert_ptr_equal(again->buf->last, again->buf->start);
    ngx_http_pd_stock_give(again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_its_own),
        cmocka_unit_test(takes_no_piece_of_a_copy),
        cmocka_unit_test(takes_none_that_was_begun_or_framed),
        cmocka_unit_test(takes_no_other),
        cmocka_unit_test(gives_them_back_empty),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
