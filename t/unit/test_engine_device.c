/* What an engine does about its device: steps that cannot be launched, that end badly, late or never, and
 * cores that others take. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kernels/backend.h"
#include "proto/pd.pb-c.h"
#include "t/unit/engine_lab.h"
#include "worker/base/log.h"
#include "worker/engine/internal.h"

enum { LONG = 40 };

static const char *const prompts[] = {
    "a",
    "The quick brown fox jumps over",
    "The quick brown fox sleeps under the old tree.",
    "0123456789abcdef0123456789abcdef0123456789abcdef",
};
enum { PROMPTS = sizeof(prompts) / sizeof(*prompts) };

static struct lab lab;

static struct pd_graph *unfinished, *whole;

/* From here on a launch fails; one more step is in flight. */
static void break_the_device(struct lab *at, const struct pd_output *output)
{
    if (output->id.request == 0 && output->position == 3)
        at->engine->graph = unfinished;
}

static void repair_the_device(struct lab *at)
{
    at->engine->graph = whole;
}

static void open_breakable(void)
{
    struct lab_options options = lab_defaults();

    lab_open(&lab, &options);
    lab.on_output = break_the_device;
    whole = lab.engine->graph;
    assert_int_equal(pd_graph_begin(lab.model->device, &unfinished), PD_KERNEL_OK);
    lab_start(&lab, NULL);
}

static void close_breakable(void)
{
    lab_stop(&lab);
    pd_graph_destroy(unfinished);
    lab_close(&lab);
}

/* A step that fails takes its own sequences along, and nobody who comes after them. */
static void test_a_failed_step_fails_its_own(void **state)
{
    int32_t answer[LONG];
    char why[64];

    (void)state;
    open_breakable();
    lab.on_failed = repair_the_device;
    for (uint64_t i = 0; i < 4; i++)
        lab_submit(&lab, lab_request(&lab, i, prompts[i], 70));
    assert_true(lab_wait(&lab, 0)->failed);
    assert_int_equal(lab.answers[0].code, PD__V1__FAILED__CODE__INTERNAL);
    assert_string_equal(lab.answers[0].message,
                        "the step that this request was part of has failed");
    for (uint64_t i = 1; i < 4; i++)
        lab_wait(&lab, i); /* in the step, or not yet: it ends in either case */
    for (uint64_t i = 4; i < 10; i++) {
        lab_oracle(prompts[i % PROMPTS], NULL, answer, LONG);
        lab_submit(&lab, lab_request(&lab, i, prompts[i % PROMPTS], LONG));
        lab_expect(&lab, i, answer, LONG);
    }
    assert_false(pd_engine_lost(lab.engine, why, sizeof(why)));
    assert_string_equal(why, "");
    close_breakable();
}

static struct pd_backend unlucky;
static const struct pd_backend *lucky;

/* From here on the lab's device does what `unlucky` says: as before, but for what a test changes. */
static void take_backend(void)
{
    lucky = lab.model->device->backend;
    unlucky = *lucky;
    lab.model->device->backend = &unlucky;
}

static atomic_int bad_ends; /* steps that still are to end badly */

static int wait_unluckily(struct pd_device *device, uint64_t number, int timeout_ms)
{
    int status = lucky->wait(device, number, timeout_ms);

    if (status != PD_KERNEL_OK || atomic_load(&bad_ends) == 0)
        return status;
    atomic_fetch_sub(&bad_ends, 1);
    return pd_device_fail(device, PD_KERNEL_INVALID, "step %llu was unlucky",
                          (unsigned long long)number);
}

static void end_badly(struct lab *at, const struct pd_output *output)
{
    (void)at;
    if (output->id.request % 2 == 0 && output->position == 3)
        atomic_store(&bad_ends, 1);
}

/* A step that ran and ended badly gives its descriptor back: there are only two. */
static void test_a_bad_end_keeps_no_descriptor(void **state)
{
    struct lab_options options = lab_defaults();
    int32_t answer[LONG];
    char why[64];

    (void)state;
    lab_open(&lab, &options);
    take_backend();
    unlucky.wait = wait_unluckily;
    lab.on_output = end_badly;
    lab_start(&lab, NULL);
    for (uint64_t i = 0; i < 8; i += 2) {
        lab_submit(&lab, lab_request(&lab, i, prompts[1], 70));
        assert_true(lab_wait(&lab, i)->failed);
        assert_string_equal(lab.answers[i].message,
                            "the step that this request was part of has failed");
        lab_oracle(prompts[2], NULL, answer, LONG);
        lab_submit(&lab, lab_request(&lab, i + 1, prompts[2], LONG));
        lab_expect(&lab, i + 1, answer, LONG);
    }
    assert_false(pd_engine_lost(lab.engine, why, sizeof(why)));
    lab_stop(&lab);
    lab.model->device->backend = lucky;
    lab_close(&lab);
}

static int end_the_second_badly(struct pd_device *device, uint64_t number, int timeout_ms)
{
    int status = lucky->wait(device, number, timeout_ms);

    if (status != PD_KERNEL_OK || number != 2)
        return status;
    return pd_device_fail(device, PD_KERNEL_INVALID, "step 2 was unlucky");
}

/* What a failed step has left in its blocks is in nobody's cache: of three steps of a prompt, only the first ended well. */
static void test_a_failed_step_leaves_nothing_in_the_cache(void **state)
{
    struct lab_options options = lab_defaults();
    int32_t answer[LONG];

    (void)state;
    lab_open(&lab, &options);
    take_backend();
    unlucky.wait = end_the_second_badly;
    lab_submit(&lab, lab_request(&lab, 0, prompts[3], LONG));
    lab_start(&lab, NULL);
    assert_true(lab_wait(&lab, 0)->failed);
    lab_oracle(prompts[3], NULL, answer, LONG);
    lab_submit(&lab, lab_request(&lab, 1, prompts[3], LONG));
    lab_expect(&lab, 1, answer, LONG);
    assert_int_equal(lab.answers[1].end.cached_tokens, options.model.max_tokens);
    lab_stop(&lab);
    lab.model->device->backend = lucky;
    lab_close(&lab);
}

/* A device that can run no step at all is given up, and the process hears of it. */
static void test_a_lost_device_fails_everything(void **state)
{
    char why[256];

    (void)state;
    open_breakable();
    for (uint64_t i = 0; i < 40; i++)
        lab_submit(&lab, lab_request(&lab, i, prompts[i % PROMPTS], 70));
    for (uint64_t i = 0; i < 40; i++) {
        assert_true(lab_wait(&lab, i)->failed);
        assert_int_equal(lab.answers[i].code, PD__V1__FAILED__CODE__INTERNAL);
    }
    lab_submit(&lab, lab_request(&lab, 40, "late", 5));
    assert_true(lab_wait(&lab, 40)->failed);
    assert_int_equal(lab.answers[40].code, PD__V1__FAILED__CODE__INTERNAL);
    assert_true(pd_engine_lost(lab.engine, why, sizeof(why)));
    assert_non_null(strstr(why, "a step cannot be launched: "));
    close_breakable();
}

/* A device whose steps do not end, as far as anybody can see: until the log has a line, or never. */
static struct {
    atomic_int stuck, for_ever;
    FILE *log;
    int before; /* descriptor of what the log went to */
} idle_device;

static int wait_in_vain(struct pd_device *device, uint64_t number, int timeout_ms)
{
    struct timespec pause = {0, timeout_ms * 1000000L};
    struct stat log;

    assert_int_equal(fstat(fileno(idle_device.log), &log), 0);
    if (!atomic_load(&idle_device.for_ever) && log.st_size > 0)
        atomic_store(&idle_device.stuck, 0);
    if (!atomic_load(&idle_device.stuck))
        return lucky->wait(device, number, timeout_ms);
    nanosleep(&pause, NULL);
    return pd_device_fail(device, PD_KERNEL_TIMEOUT, "step %llu takes its time",
                          (unsigned long long)number);
}

/* An engine of so much patience on that device; its log goes into a file. */
static void open_impatient(int patience_ms, bool for_ever)
{
    struct lab_options options = lab_defaults();

    options.patience_ms = patience_ms;
    lab_open(&lab, &options);
    take_backend();
    unlucky.wait = wait_in_vain;
    idle_device.log = tmpfile();
    assert_non_null(idle_device.log);
    idle_device.before = dup(STDERR_FILENO);
    atomic_store(&idle_device.stuck, true);
    atomic_store(&idle_device.for_ever, for_ever);
    assert_true(dup2(fileno(idle_device.log), STDERR_FILENO) >= 0);
    pd_log_set_level(PD_LOG_WARN);
    lab_start(&lab, NULL);
}

static void close_impatient(char log[4096])
{
    atomic_store(&idle_device.for_ever, false);
    atomic_store(&idle_device.stuck, false);
    lab_stop(&lab);
    assert_true(dup2(idle_device.before, STDERR_FILENO) >= 0);
    close(idle_device.before);
    lab.model->device->backend = lucky;
    lab_close(&lab);
    rewind(idle_device.log);
    log[fread(log, 1, 4095, idle_device.log)] = '\0';
    fclose(idle_device.log);
}

/* A step that makes no progress is told of, and its end is waited for. */
static void test_a_slow_step_is_told_of(void **state)
{
    char why[256], log[4096];
    int32_t answer[LONG];

    (void)state;
    lab_oracle(prompts[1], NULL, answer, LONG);
    open_impatient(100, false);
    lab_submit(&lab, lab_request(&lab, 0, prompts[1], LONG));
    lab_expect(&lab, 0, answer, LONG);
    assert_false(pd_engine_lost(lab.engine, why, sizeof(why)));
    close_impatient(log);
    assert_non_null(
        strstr(log, "warn  engine: step 1 (16 rows, 1 sequences) has been running for "));
}

static void test_nobody_waits_for_ever(void **state)
{
    char why[256], log[4096];

    (void)state;
    open_impatient(10, true);
    lab_submit(&lab, lab_request(&lab, 0, prompts[1], LONG));
    assert_true(lab_wait(&lab, 0)->failed);
    assert_int_equal(lab.answers[0].code, PD__V1__FAILED__CODE__INTERNAL);
    assert_true(pd_engine_lost(lab.engine, why, sizeof(why)));
    assert_non_null(strstr(why, "a step does not end well: "));
    close_impatient(log);
    assert_null(strstr(log, "error ")); /* its owner says so, once */
}

static uint64_t lose_time(const struct pd_device *device)
{
    return device->steps.next * UINT64_C(3000000);
}

/* What threads of the device waited for others is in the load as soon as the step is. */
static void test_time_lost_is_counted(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_load load;

    (void)state;
    lab_open(&lab, &options);
    take_backend();
    unlucky.delay_ns = lose_time;
    lab_start(&lab, NULL);
    lab_submit(&lab, lab_request(&lab, 0, prompts[0], 1));
    lab_wait(&lab, 0);
    lab_wait_rest(&lab);
    load = lab_load(&lab);
    assert_int_equal(load.steps, 1);
    assert_int_equal(load.steps_delay_us, 3000 * lab.model->device->steps.next);
    lab_stop(&lab);
    lab.model->device->backend = lucky;
    lab_close(&lab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_failed_step_fails_its_own),
        cmocka_unit_test(test_a_bad_end_keeps_no_descriptor),
        cmocka_unit_test(test_a_failed_step_leaves_nothing_in_the_cache),
        cmocka_unit_test(test_a_lost_device_fails_everything),
        cmocka_unit_test(test_time_lost_is_counted),
        cmocka_unit_test(test_a_slow_step_is_told_of),
        cmocka_unit_test(test_nobody_waits_for_ever),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
