/* Who fails more often than the others: beyond chance, and by enough. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ngx_http_pd_tally.h"
#include "ngx_shim.h"

enum { EXCESS = 5, LEAST = 50, WORKERS = 4 };

static bool worse(uint64_t failed, uint64_t answers, uint64_t others_failed, uint64_t others)
{
    ngx_http_pd_tally_t own = {answers, failed}, rest = {others, others_failed};

    return ngx_http_pd_tally_worse(&own, &rest, EXCESS, LEAST);
}

static void one_bad_among_good(void **state)
{
    assert_true(worse(10, 100, 0, 300));
    assert_true(worse(10, 100, 3, 300));
    assert_true(worse(50, 50, 0, 50));
}

static void alike(void **state)
{
    assert_false(worse(10, 100, 30, 300));
    assert_false(worse(100, 100, 300, 300));
    assert_false(worse(0, 100, 0, 300));
    assert_false(worse(12, 100, 2, 50)); /* chance */
    assert_false(worse(0, 100, 30, 300));
}

/* Certain, and yet too little to matter: 4 of 100 is no reason. */
static void too_little(void **state)
{
    assert_false(worse(8, 200, 0, 4000));
    assert_true(worse(10, 200, 0, 4000));
}

static void too_few(void **state)
{
    assert_false(worse(49, 49, 0, 300));
    assert_false(worse(50, 50, 0, 49));
    assert_true(worse(50, 50, 0, 50));
}

/* The numbers of many others do not overflow. */
static void many_others(void **state)
{
    assert_true(worse(255, 255, 0, 255 * 255));
    assert_false(worse(255, 255, 255 * 255, 255 * 255));
    assert_false(worse(0, 255, 0, 255 * 255));
    assert_true(worse(26, 255, 0, 255 * 255));
}

static void it_forgets(void **state)
{
    ngx_http_pd_worker_t worker = {0};
    unsigned full = 0;

    for (int i = 0; i < 10; i++)
        ngx_http_pd_tally_count(&worker, 1, 1);
    for (int i = 0; i < 1500; i++)
        full += ngx_http_pd_tally_count(&worker, 0, 1);
    assert_in_range(full, 10, 12);
    assert_int_equal(worker.failed, 0);
    assert_in_range(worker.answers, 100, 256);

    for (int i = 0; i < 10; i++)
        ngx_http_pd_tally_count(&worker, 1, 1);
    ngx_http_pd_tally_count(&worker, 0, 302000000); /* five minutes later */
    assert_int_equal(worker.failed, 5);
}

/* xorshift: a fixed seed's, so that nothing here is chance */
static uint64_t next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static int ejections(const unsigned *per_mille, int answers, uint64_t seed)
{
    ngx_http_pd_worker_t workers[WORKERS] = {{0}};
    int found = 0;

    for (int i = 0; i < answers; i++) {
        int which = next(&seed) % WORKERS;
        bool failed = next(&seed) % 1000 < per_mille[which];
        ngx_http_pd_tally_t own, others = {0};

        ngx_http_pd_tally_count(&workers[which], failed, 1);
        own = (ngx_http_pd_tally_t){workers[which].answers, workers[which].failed};
        for (int k = 0; k < WORKERS; k++) {
            others.answers += k == which ? 0 : workers[k].answers;
            others.failed += k == which ? 0 : workers[k].failed;
        }
        if (failed && ngx_http_pd_tally_worse(&own, &others, EXCESS, LEAST)) {
            assert_int_equal(which, 0); /* nobody else, ever */
            ngx_http_pd_tally_clear(&workers[which]);
            found++;
        }
    }
    return found;
}

/* At random: a bad one is found again and again within 600 requests of four, and of equals none. */
static void at_random(void **state)
{
    const unsigned bad[] = {100, 0, 0, 0}, equal[] = {100, 100, 100, 100}, good[] = {1, 1, 1, 1};

    for (uint64_t seed = 1; seed <= 20; seed++) {
        assert_true(ejections(bad, 20000, seed) >= 20000 / 600);
        assert_int_equal(ejections(equal, 5000, seed), 0);
        assert_int_equal(ejections(good, 20000, seed), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_bad_among_good), cmocka_unit_test(alike),
        cmocka_unit_test(too_little),         cmocka_unit_test(too_few),
        cmocka_unit_test(many_others),        cmocka_unit_test(it_forgets),
        cmocka_unit_test(at_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
