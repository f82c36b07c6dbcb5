/* The link's parts that need no gRPC: addresses, scratch memory, jobs and the table of attempts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/pd.pb-c.h"
#include "worker/link/address.h"
#include "worker/link/attempts.h"
#include "worker/link/clean.h"
#include "worker/link/scratch.h"

/* ---- addresses ---------------------------------------------------------------------------------- */

static void test_addresses(void **state)
{
    static const struct {
        const char *text, *host; /* host NULL: refused */
        int port;
    } cases[] = {
        {"10.0.0.1:9000", "10.0.0.1", 9000},
        {"worker-1.rack_2:1", "worker-1.rack_2", 1},
        {"[fd00::1]:65535", "fd00::1", 65535},
        {"[::]:80", "::", 80},
        {"10.0.0.1", NULL, 0},
        {"10.0.0.1:", NULL, 0},
        {"10.0.0.1:0", NULL, 0},
        {"10.0.0.1:65536", NULL, 0},
        {"10.0.0.1:+80", NULL, 0},
        {"10.0.0.1: 80", NULL, 0},
        {":80", NULL, 0},
        {"fd00::1:80", NULL, 0},
        {"[fd00::1:80", NULL, 0},
        {"[worker]:80", NULL, 0},
        {"[]:80", NULL, 0},
        {"unix:/run/x:80", NULL, 0},
        {"dns:///a:80", NULL, 0},
        {"a b:80", NULL, 0},
        {"a%00:80", NULL, 0},
        {"", NULL, 0},
    };
    struct pd_address address;
    char text[300];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        if (pd_address_parse(cases[i].text, &address) != (cases[i].host != NULL))
            fail_msg("%s", cases[i].text);
        if (!cases[i].host)
            continue;
        assert_string_equal(address.host, cases[i].host);
        assert_int_equal(address.port, cases[i].port);
        assert_true(pd_address_format(address.host, address.port, text, sizeof(text)));
        assert_string_equal(text, cases[i].text);
    }
    memset(text, 'a', sizeof(text) - 4);
    strcpy(text + sizeof(text) - 4, ":80");
    assert_false(pd_address_parse(text, &address));
}

static void test_which_addresses_are_private(void **state)
{
    static const char *const private[] = {
        "127.0.0.1",   "127.9.9.9",   "10.255.0.1",     "172.16.0.1", "172.31.0.1",
        "192.168.1.1", "169.254.1.1", "100.64.0.1",     "::1",        "fd12::1",
        "fe80::1",     "localhost",   "::ffff:10.0.0.1"};
    static const char *const public[] = {"8.8.8.8", "172.32.0.1", "172.15.0.1",  "11.0.0.1",
                                         "0.0.0.0", "::",         "2001:db8::1", "::ffff:8.8.8.8"};

    (void)state;
    for (size_t i = 0; i < sizeof(private) / sizeof(*private); i++)
        if (!pd_address_is_private(private[i]))
            fail_msg("%s", private[i]);
    for (size_t i = 0; i < sizeof(public) / sizeof(*public); i++)
        if (pd_address_is_private(public[i]))
            fail_msg("%s", public[i]);
    assert_true(pd_address_is_wildcard("0.0.0.0"));
    assert_true(pd_address_is_wildcard("::"));
    assert_false(pd_address_is_wildcard("::1"));
}

/* ---- text --------------------------------------------------------------------------------------- */

static void test_text_for_the_wire(void **state)
{
    static const struct {
        const char *before, *after;
    } cases[] = {
        {"", ""},
        {"plain", "plain"},
        {"gr\xc3\xbc\xc3\x9f dich \xf0\x9f\x99\x82", "gr\xc3\xbc\xc3\x9f dich \xf0\x9f\x99\x82"},
        {"cut \xf0\x9f\x99", "cut "},
        {"cut \xc3", "cut "},
        {"\xff in front", "? in front"},
        {"a surrogate \xed\xa0\x80 inside", "a surrogate ??? inside"},
        {"\xff\xfe\xfd\xfc", "?"},
    };
    char text[64];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        strcpy(text, cases[i].before);
        pd_clean_text(text);
        assert_string_equal(text, cases[i].after);
    }
}

/* ---- scratch memory ----------------------------------------------------------------------------- */

static void test_scratch_is_bounded_and_zeroed(void **state)
{
    struct pd_scratch scratch;
    uint8_t *first, *second;

    (void)state;
    pd_scratch_init(&scratch, 100000);
    first = pd_scratch_alloc(&scratch, 10);
    memset(first, 0xff, 10);
    second = pd_scratch_alloc(&scratch, 3);
    assert_int_equal((uintptr_t)second % 16, 0);
    assert_true(second >= first + 10 || second + 3 <= first);
    assert_non_null(pd_scratch_alloc(&scratch, 80000)); /* larger than a block */
    assert_null(pd_scratch_alloc(&scratch, 80000));
    assert_null(pd_scratch_array(&scratch, SIZE_MAX / 2, 16));
    assert_null(pd_scratch_alloc(&scratch, SIZE_MAX));
    assert_non_null(pd_scratch_alloc(&scratch, 10));
    pd_scratch_reset(&scratch);
    first = pd_scratch_alloc(&scratch, 99990);
    assert_non_null(first);
    for (int i = 0; i < 99990; i++)
        assert_int_equal(first[i], 0);
    pd_scratch_free(&scratch);
}

/* A message of 2-byte entries costs far more in memory; the limit stops it and nothing leaks. */
static void test_unpacking_stops_at_the_limit(void **state)
{
    struct pd_scratch scratch;
    uint8_t wire[2000];
    Pd__V1__Sampling *sampling;

    (void)state;
    for (size_t i = 0; i < sizeof(wire); i += 2) {
        wire[i] = 15 << 3 | 2; /* logit_bias, no bytes */
        wire[i + 1] = 0;
    }
    pd_scratch_init(&scratch, 1 << 20);
    sampling = pd__v1__sampling__unpack(&scratch.protobuf, sizeof(wire), wire);
    assert_non_null(sampling);
    assert_int_equal(sampling->n_logit_bias, 1000);
    pd_scratch_free(&scratch);
    pd_scratch_init(&scratch, 20000);
    assert_null(pd__v1__sampling__unpack(&scratch.protobuf, sizeof(wire), wire));
    pd_scratch_free(&scratch);
}

/* ---- jobs --------------------------------------------------------------------------------------- */

static void test_jobs_are_charged_for_what_they_hold(void **state)
{
    struct pd_budget budget = {.limit = 10000};
    struct pd_attempt id = {1, 2, 3};
    struct pd_job *one = pd_job_create(id, 9000, &budget),
                  *two = pd_job_create(id, 1 << 30, &budget);
    uint8_t bytes[5000] = {1, 2, 3};

    (void)state;
    assert_int_equal(budget.used, 0); /* what is announced costs nothing */
    assert_int_equal(pd_job_append(one, bytes, 5000), PD_OK);
    assert_int_equal(budget.used, 8192);
    assert_int_equal(pd_job_append(two, bytes, 1000), PD_FULL);
    assert_int_equal(budget.used, 8192);
    assert_int_equal(pd_job_append(one, bytes, 4000), PD_OK);
    assert_int_equal(budget.used, 9000);
    assert_int_equal(pd_job_append(one, bytes, 1), PD_INVALID);
    assert_int_equal(pd_job_append(one, bytes, 0), PD_OK);
    assert_int_equal(one->length, 9000);
    assert_memory_equal(one->bytes + 5000, bytes, 4000);
    pd_job_share(one);
    pd_job_release(one);
    pd_job_drop_bytes(one);
    assert_int_equal(budget.used, 0);
    assert_int_equal(pd_job_append(two, bytes, 1000), PD_OK);
    pd_job_release(one);
    pd_job_release(two);
    assert_int_equal(budget.used, 0);
}

/* ---- attempts ----------------------------------------------------------------------------------- */

static struct pd_budget budget = {.limit = 1 << 20};

static struct pd_attempt_entry *add(struct pd_attempts *attempts, uint64_t request,
                                    uint32_t attempt)
{
    struct pd_attempt id = {9, request, attempt};
    struct pd_job *job = pd_job_create(id, 1, &budget);
    struct pd_attempt_entry *entry = pd_attempts_add(attempts, job);

    if (!entry)
        pd_job_release(job);
    return entry;
}

static void test_last_submission(void **state)
{
    struct pd_attempts *attempts = calloc(1, sizeof(*attempts));
    struct pd_attempt_entry *one, *two, *four;

    (void)state;
    assert_int_equal(pd_attempts_last_submission(attempts), 0);
    one = add(attempts, 1, 1);
    two = add(attempts, 2, 1);
    assert_int_equal(pd_attempts_last_submission(attempts), 0);
    pd_attempts_seen(attempts, two);
    assert_int_equal(pd_attempts_last_submission(attempts), 0); /* the first is still on its way */
    pd_attempts_seen(attempts, one);
    pd_attempts_seen(attempts, one);
    assert_int_equal(pd_attempts_last_submission(attempts), 2);
    assert_null(pd_attempts_add(attempts, NULL)); /* refused at once: over, and counted */
    assert_int_equal(pd_attempts_last_submission(attempts), 3);
    four = add(attempts, 4, 1);
    assert_int_equal(pd_attempts_last_submission(attempts), 3);
    pd_attempts_remove(attempts, four);
    assert_int_equal(pd_attempts_last_submission(attempts), 4);
    assert_int_equal(pd_attempts_running(attempts), 2);
    pd_attempts_clear(attempts);
    assert_int_equal(pd_attempts_running(attempts), 0);
    free(attempts);
}

static void test_find(void **state)
{
    struct pd_attempts *attempts = calloc(1, sizeof(*attempts));

    (void)state;
    for (uint64_t request = 0; request < 3000; request++)
        assert_non_null(add(attempts, request << 20, (uint32_t)request % 3));
    for (uint64_t request = 0; request < 3000; request++) {
        struct pd_attempt_entry *entry =
            pd_attempts_find(attempts, request << 20, (uint32_t)request % 3);

        assert_non_null(entry);
        assert_int_equal(entry->number, request + 1);
        assert_null(pd_attempts_find(attempts, request << 20, 7));
        if (request % 2)
            pd_attempts_remove(attempts, entry);
    }
    assert_int_equal(pd_attempts_running(attempts), 1500);
    assert_null(pd_attempts_find(attempts, 1 << 20, 1));
    assert_non_null(pd_attempts_find(attempts, 2 << 20, 2));
    pd_attempts_clear(attempts);
    free(attempts);
}

static void test_the_table_is_bounded(void **state)
{
    struct pd_attempts *attempts = calloc(1, sizeof(*attempts));

    (void)state;
    for (int i = 0; i < PD_ATTEMPTS_MAX; i++)
        assert_non_null(add(attempts, (uint64_t)i, 1));
    assert_null(add(attempts, 99999, 1));
    assert_int_equal(attempts->submissions, PD_ATTEMPTS_MAX + 1);
    /* Handed over, they no longer run, and only the newest are remembered. */
    for (int i = 0; i < PD_ATTEMPTS_MAX; i++)
        pd_attempts_handed(attempts, pd_attempts_find(attempts, (uint64_t)i, 1));
    assert_int_equal(pd_attempts_running(attempts), 0);
    pd_attempts_handed(attempts, add(attempts, 99999, 1));
    assert_int_equal(attempts->handed.count, PD_ATTEMPTS_HANDED_MAX);
    assert_null(pd_attempts_find(attempts, 0, 1));
    assert_non_null(pd_attempts_find(attempts, 1, 1));
    assert_non_null(pd_attempts_find(attempts, 99999, 1));
    pd_attempts_clear(attempts);
    assert_int_equal(attempts->handed.count, 0);
    free(attempts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_which_addresses_are_private),
        cmocka_unit_test(test_text_for_the_wire),
        cmocka_unit_test(test_scratch_is_bounded_and_zeroed),
        cmocka_unit_test(test_unpacking_stops_at_the_limit),
        cmocka_unit_test(test_jobs_are_charged_for_what_they_hold),
        cmocka_unit_test(test_last_submission),
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_the_table_is_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
