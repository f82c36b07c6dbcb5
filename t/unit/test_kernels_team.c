/* The team: every thread takes part in every job, and a barrier shows all of what came before it, with
 * more threads than cores and with threads that dawdle long enough for the others to sleep; each stays on a
 * core of its own where there are as many cores as threads. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "kernels/team.h"

enum { THREADS = 7, ROUNDS = 200 };

struct relay {
    struct pd_team *team;
    int dawdler; /* sleeps now and then; -1: nobody */
    int written[THREADS];
    int wrong[THREADS];
};

/* Plain memory: a barrier that orders nothing fails here, and under the thread sanitizer. */
static void relay_job(void *context, int thread)
{
    struct relay *relay = context;
    int threads = pd_team_threads(relay->team);

    for (int round = 1; round <= ROUNDS; round++) {
        struct timespec pause = {0, 300000};

        if (thread == relay->dawdler && round % 50 == 0)
            nanosleep(&pause, NULL);
        relay->written[thread] = round;
        pd_team_barrier(relay->team);
        for (int i = 0; i < threads; i++)
            relay->wrong[thread] += relay->written[i] != round;
        pd_team_barrier(relay->team);
    }
}

static void test_barriers(void **state)
{
    (void)state;
    for (int threads = 1; threads <= THREADS; threads += 2) {
        for (int dawdler = -1; dawdler < threads; dawdler += threads) {
            struct relay relay = {.team = pd_team_create(threads), .dawdler = dawdler};

            assert_non_null(relay.team);
            assert_int_equal(pd_team_threads(relay.team), threads);
            pd_team_run(relay.team, relay_job, &relay);
            for (int i = 0; i < threads; i++) {
                assert_int_equal(relay.written[i], ROUNDS);
                assert_int_equal(relay.wrong[i], 0);
            }
            pd_team_destroy(relay.team);
        }
    }
}

static void count_job(void *context, int thread)
{
    ((int *)context)[thread]++;
}

static void test_many_short_jobs(void **state)
{
    struct pd_team *team = pd_team_create(3);
    int counts[3] = {0};

    (void)state;
    assert_non_null(team);
    for (int i = 0; i < 1000; i++) {
        struct timespec pause = {0, 200000};

        pd_team_run(team, count_job, counts);
        if (i % 100 == 0)
            nanosleep(&pause, NULL); /* long enough that the members fall asleep */
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(counts[i], 1000);
    pd_team_destroy(team);
}

struct places {
    struct pd_team *team;
    cpu_set_t of[THREADS];
};

static void place_job(void *context, int thread)
{
    sched_getaffinity(0, sizeof(cpu_set_t), &((struct places *)context)->of[thread]);
}

/* Where each thread of such a team may run. */
static struct places places_of(int threads)
{
    struct places places = {.team = pd_team_create(threads)};

    assert_non_null(places.team);
    pd_team_settle(places.team);
    pd_team_run(places.team, place_job, &places);
    pd_team_destroy(places.team);
    return places;
}

static void test_a_core_for_each_thread(void **state)
{
    cpu_set_t before, cores, seen;
    struct places places;
    int count = 0;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    CPU_ZERO(&cores);
    for (int i = 0; i < CPU_SETSIZE && count < THREADS - 1; i++) {
        if (CPU_ISSET(i, &before)) {
            CPU_SET(i, &cores);
            count++;
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof(cores), &cores), 0);
    places = places_of(count + 1);
    for (int i = 0; i <= count; i++)
        assert_true(CPU_EQUAL(&places.of[i], &cores));
    places = places_of(count);
    CPU_ZERO(&seen);
    for (int i = 0; i < count; i++) {
        assert_int_equal(CPU_COUNT(&places.of[i]), 1);
        CPU_OR(&seen, &seen, &places.of[i]);
    }
    assert_true(CPU_EQUAL(&seen, &cores)); /* each has another */
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_barriers),
        cmocka_unit_test(test_many_short_jobs),
        cmocka_unit_test(test_a_core_for_each_thread),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
