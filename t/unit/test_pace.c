/* How many rows of prompts a step has: on a device that takes so long for the answers and so long for
 * each row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "worker/engine/pace.h"

enum { MOST = 512, MS = 1000000 };

struct machine {
    uint64_t quiet_ns, row_ns;
};

static uint64_t step_of(const struct machine *machine, int rows)
{
    return machine->quiet_ns + (uint64_t)rows * machine->row_ns;
}

/* `quiet` steps of answers alone, then `shared` steps with as many rows as the pace allows; returns
 * the rows of the next. */
static int run(struct pd_pace *pace, const struct machine *machine, int quiet, int shared)
{
    for (int i = 0; i < quiet; i++)
        pd_pace_learn(pace, true, 0, step_of(machine, 0));
    for (int i = 0; i < shared; i++)
        pd_pace_learn(pace, true, pd_pace_rows(pace, true),
                      step_of(machine, pd_pace_rows(pace, true)));
    return pd_pace_rows(pace, true);
}

static void test_nothing_is_known_at_first(void **state)
{
    struct pd_pace pace;

    (void)state;
    pd_pace_init(&pace, MOST, 0, false);
    assert_int_equal(pd_pace_rows(&pace, true), 0);
    pd_pace_learn(&pace, true, 100, 50 * MS); /* what of it the answers take is not known */
    assert_int_equal(pd_pace_rows(&pace, true), 0);
    pd_pace_learn(&pace, true, 0, 10 * MS);
    assert_int_equal(pd_pace_rows(&pace, true), PD_PACE_FIRST);
    pd_pace_init(&pace, 8, 0, false);
    pd_pace_learn(&pace, true, 0, 10 * MS);
    assert_int_equal(pd_pace_rows(&pace, true), 8);
}

/* Prompts never leave a step to answers alone, and these become fewer, or more: within some hundred steps the bound is
 * that of now, and a step in 64 is all that it costs. */
static void test_it_asks_where_nobody_leaves_a_quiet_step(void **state)
{
    static const struct machine machines[] = {
        {50 * MS, MS / 4}, {5 * MS, MS / 4}, {20 * MS, MS / 2}, {10 * MS, MS / 8}};
    struct pd_pace pace;

    (void)state;
    pd_pace_init(&pace, MOST, 0, false);
    for (int i = 0; i < 4; i++) {
        int asked = 0;

        run(&pace, &machines[i], 0, 200);
        for (int step = 0; step < 10 * (PD_PACE_TRUST + 1); step++) {
            int rows = pd_pace_rows(&pace, true);

            asked += rows == 0;
            if (rows > PD_PACE_LEAST)
                assert_true(step_of(&machines[i], rows) <= 2 * machines[i].quiet_ns + MS / 4);
            pd_pace_learn(&pace, true, rows, step_of(&machines[i], rows));
        }
        assert_int_equal(asked, 10);
    }
}

static void test_a_step_takes_twice_a_quiet_one(void **state)
{
    static const struct machine machines[] = {
        {10 * MS, MS / 10}, {20 * MS, MS}, {5 * MS, MS / 20}, {2 * MS, MS / 100}};
    struct pd_pace pace;

    (void)state;
    for (int i = 0; i < 4; i++) {
        int rows;

        pd_pace_init(&pace, MOST, 0, false);
        rows = run(&pace, &machines[i], 1, 1);
        assert_int_equal(rows, machines[i].quiet_ns / machines[i].row_ns);
        assert_true(step_of(&machines[i], rows) <= 2 * machines[i].quiet_ns);
    }
}

static void test_bounds(void **state)
{
    static const struct machine slow = {MS, MS}, quick = {100 * MS, 1000}, free = {MS, 0};
    struct pd_pace pace;

    (void)state;
    pd_pace_init(&pace, MOST, 0, false);
    assert_int_equal(run(&pace, &slow, 1, 1), PD_PACE_LEAST); /* prompts go on all the same */
    pd_pace_init(&pace, MOST, 0, false);
    assert_int_equal(run(&pace, &quick, 1, 1), MOST);
    pd_pace_init(&pace, MOST, 0, false);
    assert_int_equal(run(&pace, &free, 1, 1), MOST);
    pd_pace_init(&pace, MOST, 0, false);
    pd_pace_learn(&pace, true, 0, 0);
    pd_pace_learn(&pace, true, 10, 0);
    pd_pace_learn(&pace, false, 100, 0);
    assert_in_range(pd_pace_rows(&pace, true), 1, MOST);
    assert_int_equal(pd_pace_rows(&pace, false), MOST);
}

/* Contexts grow, others take the core: the pace follows within some steps. */
static void test_it_follows(void **state)
{
    static const struct machine calm = {10 * MS, MS / 10}, busy = {10 * MS, MS / 2};
    struct pd_pace pace;

    (void)state;
    pd_pace_init(&pace, MOST, 0, false);
    assert_int_equal(run(&pace, &calm, 1, 4), 100);
    assert_in_range(run(&pace, &busy, 0, 16), 19, 21);
    assert_in_range(run(&pace, &calm, 0, 16), 95, 100);
    pd_pace_learn(&pace, true, 100,
                  500 * MS); /* one step that stumbled does not stop the prompts */
    assert_true(run(&pace, &calm, 0, 12) > 60);
}

/* Prompts alone: 25 ms of them, in whole units, whatever answers do. */
static void test_prompts_alone(void **state)
{
    struct pd_pace pace;

    (void)state;
    pd_pace_init(&pace, MOST, 0, false);
    assert_int_equal(pd_pace_rows(&pace, false), PD_PACE_FIRST);
    pd_pace_learn(&pace, true, 0, 10 * MS);
    pd_pace_learn(&pace, true, 10, 20 * MS);
    pd_pace_learn(&pace, false, 64, 64 * MS / 8);
    assert_int_equal(pd_pace_rows(&pace, false), 192);
    assert_int_equal(pd_pace_rows(&pace, true), PD_PACE_LEAST);
    pd_pace_learn(&pace, false, 1, 8 * MS); /* a last row says little */
    assert_int_equal(pd_pace_rows(&pace, false), 192);
    for (int i = 0; i < 20; i++)
        pd_pace_learn(&pace, false, pd_pace_rows(&pace, false), 1000 * (uint64_t)MS);
    assert_int_equal(pd_pace_rows(&pace, false), PD_PACE_LEAST_ALONE);
}

static void test_the_operator_says_how_long(void **state)
{
    struct pd_pace pace;

    (void)state;
    pd_pace_init(&pace, MOST, 10, false);
    pd_pace_learn(&pace, false, 64, 64 * MS / 8);
    assert_int_equal(pd_pace_rows(&pace, false), 80);
    pd_pace_init(&pace, MOST, 40, false);
    pd_pace_learn(&pace, false, 64, 64 * MS / 8);
    assert_int_equal(pd_pace_rows(&pace, false), 320);
}

/* Where a step can be left, chunks are long as long as nobody comes, and again when ten times as much was computed as
 * was lost. */
static void test_chunks_are_long_until_somebody_comes(void **state)
{
    struct pd_pace pace;

    (void)state;
    pd_pace_init(&pace, MOST, 0, true);
    pd_pace_learn(&pace, false, 40, 10 * MS);
    assert_int_equal(pd_pace_rows(&pace, false), 400);
    assert_true(pd_pace_leaves(&pace, 400, 10 * MS, 20));
    assert_true(pd_pace_leaves(&pace, 400, 80 * MS, 20));
    assert_false(pd_pace_leaves(&pace, 400, 90 * MS, 20));  /* it is as good as over */
    assert_false(pd_pace_leaves(&pace, 400, 400 * MS, 20)); /* it should be over */
    assert_false(pd_pace_leaves(&pace, 400, 10 * MS, 360)); /* who comes takes as long */
    pd_pace_left(&pace, 10 * MS);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(pd_pace_rows(&pace, false), 96);
        assert_false(pd_pace_leaves(&pace, 400, 10 * MS, 20));
        pd_pace_learn(&pace, false, 40, 10 * MS);
    }
    assert_int_equal(pd_pace_rows(&pace, false), 400);
    pd_pace_init(&pace, MOST, 0, false);
    pd_pace_learn(&pace, false, 40, 10 * MS);
    assert_false(pd_pace_leaves(&pace, 400, 10 * MS, 20));
}

static void test_what_is_long(void **state)
{
    struct pd_pace pace;

    (void)state;
    pd_pace_init(&pace, MOST, 0, false);
    assert_false(pd_pace_is_long(&pace, false, MOST)); /* nobody knows */
    assert_false(pd_pace_is_long(&pace, true, MOST));
    pd_pace_learn(&pace, false, 64, 64 * MS / 8);
    assert_false(pd_pace_is_long(&pace, false, 63));
    assert_true(pd_pace_is_long(&pace, false, 64));
    pd_pace_learn(&pace, true, 0, 10 * MS);
    pd_pace_learn(&pace, true, 10, 20 * MS); /* 1 ms a row */
    assert_false(pd_pace_is_long(&pace, true, 7));
    assert_true(pd_pace_is_long(&pace, true, 8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_known_at_first),
        cmocka_unit_test(test_a_step_takes_twice_a_quiet_one),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_it_follows),
        cmocka_unit_test(test_it_asks_where_nobody_leaves_a_quiet_step),
        cmocka_unit_test(test_prompts_alone),
        cmocka_unit_test(test_the_operator_says_how_long),
        cmocka_unit_test(test_chunks_are_long_until_somebody_comes),
        cmocka_unit_test(test_what_is_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
