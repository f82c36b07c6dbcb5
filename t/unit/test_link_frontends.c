/* What frontends tell of themselves, and who hears it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "worker/link/frontends.h"

static const uint64_t second_ns = 1000000000ull;

static struct pd_frontends frontends;
static struct pd_scratch scratch;

static int setup(void **state)
{
    (void)state;
    memset(&frontends, 0, sizeof(frontends));
    pd_scratch_init(&scratch, 1 << 20);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    pd_scratch_free(&scratch);
    return 0;
}

static void tell(struct pd_frontend *frontend, uint32_t requests, uint32_t finished, uint64_t now_s)
{
    Pd__V1__FrontendHealth health = PD__V1__FRONTEND_HEALTH__INIT;

    health.requests = requests;
    health.finished = finished;
    health.away = requests == 7;
    pd_frontends_tell(frontend, &health, now_s * second_ns);
}

static Pd__V1__Frontends *others(const struct pd_frontend *reader, uint64_t now_s)
{
    pd_scratch_reset(&scratch);
    return pd_frontends_others(&frontends, reader, &scratch, now_s * second_ns);
}

static void test_each_hears_of_the_others(void **state)
{
    struct pd_frontend *a = pd_frontends_join(&frontends, "a");
    struct pd_frontend *b = pd_frontends_join(&frontends, "b");
    Pd__V1__Frontends *heard;

    (void)state;
    assert_null(others(a, 10));
    tell(a, 100, 97, 10);
    assert_null(others(a, 10));
    heard = others(b, 10);
    assert_non_null(heard);
    assert_int_equal(heard->n_others, 1);
    assert_string_equal(heard->others[0]->frontend_id, "a");
    assert_int_equal(heard->others[0]->requests, 100);
    assert_int_equal(heard->others[0]->finished, 97);
    assert_false(heard->others[0]->away);
    tell(b, 7, 8, 11);
    heard = others(a, 11);
    assert_int_equal(heard->others[0]->finished, 7);
    assert_true(heard->others[0]->away);
}

static void test_who_is_silent_is_forgotten(void **state)
{
    struct pd_frontend *a = pd_frontends_join(&frontends, "a");
    struct pd_frontend *b = pd_frontends_join(&frontends, "b");

    (void)state;
    tell(a, 100, 97, 10);
    assert_non_null(others(b, 15));
    assert_null(others(b, 16));
    /* a frontend of the protocol before tells nothing: its heartbeats are no news */
    pd_frontends_tell(a, NULL, 16 * second_ns);
    assert_null(others(b, 16));
}

static void test_processes_of_one_frontend_are_one(void **state)
{
    struct pd_frontend *a = pd_frontends_join(&frontends, "a");
    struct pd_frontend *b = pd_frontends_join(&frontends, "b");

    (void)state;
    assert_ptr_equal(pd_frontends_join(&frontends, "a"), a);
    tell(a, 1, 1, 10);
    pd_frontends_leave(a);
    assert_int_equal(others(b, 10)->n_others, 1);
    pd_frontends_leave(a);
    assert_null(others(b, 10));
    assert_ptr_equal(pd_frontends_join(&frontends, "c"), a);
    assert_null(others(b, 10)); /* a newcomer has told nothing yet */
}

static void test_hostile_ids(void **state)
{
    struct pd_frontend *reader = pd_frontends_join(&frontends, "r");
    struct pd_frontend *broken = pd_frontends_join(&frontends, "\xff"
                                                               "rontend");

    (void)state;
    assert_null(pd_frontends_join(&frontends, ""));
    assert_null(others(NULL, 10));
    pd_frontends_leave(NULL);
    tell(NULL, 1, 1, 10);
    tell(broken, 1, 1, 10);
    assert_string_equal(others(reader, 10)->others[0]->frontend_id, "?rontend");
}

static void test_as_many_as_there_can_be_streams(void **state)
{
    struct pd_frontend *first = NULL;

    (void)state;
    for (int i = 0; i < PD_FRONTENDS_MAX; i++) {
        char id[16];
        struct pd_frontend *frontend;

        snprintf(id, sizeof(id), "f%d", i);
        frontend = pd_frontends_join(&frontends, id);
        assert_non_null(frontend);
        tell(frontend, 10, 10, 10);
        if (!first)
            first = frontend;
    }
    assert_null(pd_frontends_join(&frontends, "one more"));
    assert_int_equal(others(first, 10)->n_others, PD_FRONTENDS_MAX - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_each_hears_of_the_others, setup, teardown),
        cmocka_unit_test_setup_teardown(test_who_is_silent_is_forgotten, setup, teardown),
        cmocka_unit_test_setup_teardown(test_processes_of_one_frontend_are_one, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hostile_ids, setup, teardown),
        cmocka_unit_test_setup_teardown(test_as_many_as_there_can_be_streams, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
