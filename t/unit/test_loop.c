/* The link's loop: in which order a turn does what it has to, and that gRPC's locks are not watched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <grpc/support/sync.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "worker/link/locks.h"
#include "worker/link/loop.h"

/* ---- the order of a turn ------------------------------------------------------------------------ */

struct diary {
    struct pd_loop loop;
    struct pd_tag put_off;
    int woken, done;
    char words[128];
};

static void write_down(struct diary *diary, const char *word)
{
    strcat(diary->words, word);
}

/* Wakes the loop from its own thread and puts something off, in the first turn. */
static void woken(void *owner)
{
    struct diary *diary = owner;

    write_down(diary, "woken(");
    if (diary->woken++ == 0) {
        pd_loop_later(&diary->loop, &diary->put_off);
        pd_loop_wake(&diary->loop);
        pd_loop_tick_at(&diary->loop, 0);
    }
    write_down(diary, ") ");
}

static void put_off_done(struct pd_tag *tag, bool ok)
{
    struct diary *diary = tag->owner;

    assert_true(ok);
    write_down(diary, "later ");
    if (diary->done++ == 0)
        pd_loop_later(&diary->loop, tag);
    else
        pd_loop_stop(&diary->loop);
}

static void tick(void *owner, uint64_t now_ns)
{
    struct diary *diary = owner;

    (void)now_ns;
    write_down(diary, "tick ");
    pd_loop_tick_at(&diary->loop, 0);
}

static void test_a_turn(void **state)
{
    static struct diary diary;
    struct pd_error error;

    (void)state;
    grpc_init();
    diary.put_off = (struct pd_tag){.done = put_off_done, .owner = &diary};
    assert_int_equal(pd_loop_create(&diary.loop, &diary, woken, tick, &error), PD_OK);
    pd_loop_wake(&diary.loop);
    pd_loop_run(&diary.loop);
    /* A wake of its own comes before what was put off; what is put off again, after the tick. */
    assert_string_equal(diary.words, "woken() woken() later tick later tick ");
    pd_loop_destroy(&diary.loop);
    grpc_shutdown();
}

/* ---- locks -------------------------------------------------------------------------------------- */

static void lock_both(gpr_mu *first, gpr_mu *second)
{
    gpr_mu_lock(first);
    gpr_mu_lock(second);
    gpr_mu_unlock(second);
    gpr_mu_unlock(first);
}

/* Whether a process lives that takes two locks of gRPC's first in one order, then in the other. */
static bool outlives_both_orders(bool unwatched)
{
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit no_core = {0, 0};
        gpr_mu a, b;

        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGABRT, SIG_DFL);
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        if (unwatched)
            pd_locks_unwatched();
        gpr_mu_init(&a);
        gpr_mu_init(&b);
        lock_both(&a, &b);
        lock_both(&b, &a);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void test_locks_are_not_watched(void **state)
{
    (void)state;
    if (outlives_both_orders(false))
        skip(); /* this build of abseil keeps no watch */
    assert_true(outlives_both_orders(true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_locks_are_not_watched), /* before gRPC has threads */
        cmocka_unit_test(test_a_turn),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
