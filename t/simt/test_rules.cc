/* What the shim itself owes to the kernels that it runs: rules that a GPU has, or that catch who would
 * break them on one. Each is broken here, in a process of its own where that is to end it. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#include "kernels/cuda/pd_simt.cuh"
#include "kernels/cuda/runtime.h"

static struct pd_cuda_runtime *runtime;

static uint32_t *room(size_t bytes)
{
    void *memory = nullptr;

    assert_int_equal(pd_cuda_allocate(runtime, bytes, &memory), 0);
    return (uint32_t *)memory;
}

static uint32_t *pinned(size_t bytes)
{
    void *memory = nullptr;

    assert_int_equal(pd_cuda_allocate_pinned(runtime, bytes, &memory), 0);
    return (uint32_t *)memory;
}

/* Runs what is to end the process, and looks for why. */
static void assert_dies(void (*run)(void), const char *why)
{
    char text[1024] = "";
    int ends[2], status;
    size_t length = 0;
    ssize_t more;

    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        signal(SIGABRT, SIG_DFL); /* cmocka's would go on with the test */
        alarm(20);
        run();
        _exit(0);
    }
    close(ends[1]);
    while ((more = read(ends[0], text + length, sizeof(text) - 1 - length)) > 0)
        length += (size_t)more;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT || strstr(text, why) == nullptr)
        fail_msg("status %d, not \"%s\" but \"%s\"", status, why, text);
}

/* ---- device memory --------------------------------------------------------------------------- */

enum { COUNT = PD_WARP, BYTES = COUNT * 4 };

static PD_GLOBAL add(const uint32_t *a, const uint32_t *b, uint32_t *out)
{
    out[PD_THREAD] = a[PD_THREAD] + b[PD_THREAD];
}

static uint32_t *a, *b, *out;

static void launch_add(const uint32_t *other)
{
    assert_int_equal(PD_LAUNCH(add, 1, 1, COUNT, (pd_stream)3, a, other, out), 0);
}

static void declare(const void *first, const void *second, const void *third)
{
    const void *all[] = {first, second, third};

    pd_cuda_declare(runtime, all, 3);
}

static void read_undeclared()
{
    declare(a, out, nullptr);
    launch_add(b);
}

static void write_undeclared()
{
    declare(a, b, nullptr);
    launch_add(b);
}

static void read_past_the_end()
{
    declare(a, b, out);
    launch_add(b + COUNT);
}

static void read_on_the_host()
{
    fprintf(stderr, "%u\n", *(volatile uint32_t *)b);
}

static void read_what_is_new()
{
    b = room(BYTES);
    read_undeclared();
}

/* What was declared when it was recorded counts, not what is when it is played. */
static void replay_undeclared()
{
    struct pd_cuda_recording *recording;

    assert_int_equal(pd_cuda_record_begin(runtime), 0);
    declare(a, out, nullptr);
    launch_add(b);
    assert_int_equal(pd_cuda_record_end(runtime, &recording), 0);
    declare(a, b, out);
    pd_cuda_replay(runtime, recording);
}

static void test_a_launch_touches_what_it_declares(void **)
{
    uint32_t values[COUNT], *seen = pinned(BYTES), *aside = pinned(BYTES);

    a = room(BYTES);
    b = room(BYTES);
    out = room(BYTES);
    for (uint32_t i = 0; i < COUNT; i++)
        values[i] = aside[i] = i + 1;
    assert_int_equal(pd_cuda_copy(runtime, a, values, BYTES), 0);
    assert_int_equal(pd_cuda_copy(runtime, b, values, BYTES), 0);
    declare(a, b + 3, out); /* any byte of it will do */
    launch_add(b);
    assert_int_equal(pd_cuda_copy(runtime, seen, out, BYTES), 0);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(seen[i], 2 * i + 2);
    declare(a, out, nullptr); /* pinned memory is everybody's */
    launch_add(aside);
    assert_dies(read_undeclared, "of a buffer of 128, which nothing that runs declares");
    assert_dies(write_undeclared, "of a buffer of 128, which nothing that runs declares");
    assert_dies(read_past_the_end, "of a buffer of 128, past its end");
    assert_dies(read_on_the_host, "byte 0 of a buffer of 128, which nothing that runs declares");
    assert_dies(read_what_is_new, "of a buffer of 128, which nothing that runs declares");
    assert_dies(replay_undeclared, "of a buffer of 128, which nothing that runs declares");
    pd_cuda_free(runtime, a);
    pd_cuda_free(runtime, b);
    pd_cuda_free(runtime, out);
    pd_cuda_free_pinned(runtime, seen);
    pd_cuda_free_pinned(runtime, aside);
}

/* ---- shared memory --------------------------------------------------------------------------- */

/* What each block finds, before it leaves zeroes behind. */
static PD_GLOBAL find_shared(uint32_t *found)
{
    PD_SHARED(uint32_t, fixed, PD_WARP);
    PD_SHARED_BYTES(bytes);
    uint32_t *sized = (uint32_t *)bytes;

    found[(PD_BLOCK_X * 2 + 0) * PD_WARP + PD_THREAD] = fixed[PD_THREAD];
    found[(PD_BLOCK_X * 2 + 1) * PD_WARP + PD_THREAD] = sized[PD_THREAD];
    fixed[PD_THREAD] = sized[PD_THREAD] = 0;
}

static void test_shared_memory_holds_nothing_of_use(void **)
{
    enum { BLOCKS = 3, WORDS = BLOCKS * 2 * PD_WARP };
    uint32_t found[WORDS] = {0};

    assert_int_equal(
        PD_LAUNCH_SHARED(find_shared, BLOCKS, 1, PD_WARP, 4 * PD_WARP, (pd_stream)1, &found[0]), 0);
    for (int i = 0; i < WORDS; i++) {
        float value;

        memcpy(&value, &found[i], sizeof(value));
        assert_true(value != value);
    }
}

/* ---- order ----------------------------------------------------------------------------------- */

static PD_GLOBAL take_turns(uint32_t *turn, uint32_t *order)
{
    order[pd_atomic_add(turn, 1u)] = (uint32_t)PD_THREAD;
    pd_barrier();
    order[pd_atomic_add(turn, 1u)] = (uint32_t)PD_THREAD;
}

static void test_the_seed_picks_the_order(void **)
{
    enum { THREADS = 4 * PD_WARP, SEEDS = 4 };
    static uint32_t order[SEEDS + 1][2 * THREADS];

    for (int i = 0; i <= SEEDS; i++) {
        bool seen[2][THREADS] = {};
        uint32_t turn = 0;

        assert_int_equal(
            PD_LAUNCH(take_turns, 1, 1, THREADS, (pd_stream)(i % SEEDS + 1), &turn, &order[i][0]),
            0);
        for (int at = 0; at < 2 * THREADS; at++) { /* each once on either side of the barrier */
            assert_false(seen[at / THREADS][order[i][at]]);
            seen[at / THREADS][order[i][at]] = true;
        }
        assert_true(memcmp(order[i], order[i] + THREADS, sizeof(order[i]) / 2) != 0);
        for (int other = 0; other < i && i < SEEDS; other++)
            assert_true(memcmp(order[i], order[other], sizeof(order[i])) != 0);
    }
    assert_memory_equal(order[SEEDS], order[0], sizeof(order[0]));
}

/* ---- what a GPU would hang on, or worse ------------------------------------------------------ */

static PD_GLOBAL barrier_of_some(int some)
{
    if (PD_THREAD < some)
        pd_barrier();
}

static PD_GLOBAL absent_lane(float *results)
{
    if (PD_THREAD != 7)
        results[PD_THREAD] = pd_warp_sum(1);
}

static PD_GLOBAL different_things(float *results)
{
    if (PD_THREAD < 16)
        pd_warp_barrier();
    else
        results[PD_THREAD] = pd_warp_sum(1);
}

static PD_GLOBAL outside_the_mask(float *results)
{
    results[PD_THREAD] = pd_shuffle_xor(1, 1, 0x0000ffffu);
}

static PD_GLOBAL askew(const char *from)
{
    PD_SHARED(struct pd_u32x4, shared, PD_WARP);

    pd_copy_async(&shared[PD_THREAD], from + 4, true);
    pd_copy_wait<0>();
}

static PD_GLOBAL never_waited_for(const char *from)
{
    PD_SHARED(struct pd_u32x4, shared, PD_WARP);

    pd_copy_async(&shared[PD_THREAD], from, true);
}

static float results[PD_WARP];
alignas(16) static char bytes[64];

static void test_broken_rules_end_the_program(void **)
{
    assert_dies([] { PD_LAUNCH(barrier_of_some, 1, 1, 2 * PD_WARP, (pd_stream)1, PD_WARP); },
                "a barrier that some threads never reach");
    assert_dies([] { PD_LAUNCH(absent_lane, 1, 1, PD_WARP, (pd_stream)1, &results[0]); },
                "all threads wait for each other");
    assert_dies([] { PD_LAUNCH(different_things, 1, 1, PD_WARP, (pd_stream)1, &results[0]); },
                "lanes of a warp that do different things together");
    assert_dies([] { PD_LAUNCH(outside_the_mask, 1, 1, PD_WARP, (pd_stream)1, &results[0]); },
                "a lane in an operation whose mask leaves it out");
    assert_dies([] { PD_LAUNCH(askew, 1, 1, PD_WARP, (pd_stream)1, &bytes[0]); },
                "a copy at an address that is no multiple of 16");
    assert_dies([] { PD_LAUNCH(never_waited_for, 1, 1, PD_WARP, (pd_stream)1, &bytes[0]); },
                "a thread ends with copies under way");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_launch_touches_what_it_declares),
        cmocka_unit_test(test_shared_memory_holds_nothing_of_use),
        cmocka_unit_test(test_the_seed_picks_the_order),
        cmocka_unit_test(test_broken_rules_end_the_program),
    };
    char error[128];

    if (pd_cuda_open(0, nullptr, &runtime, error, sizeof(error)) != 0)
        return 1;
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
