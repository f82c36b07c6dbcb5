/* The CUDA backend over the SIMT shim beyond its operators (test_operators): models of every family,
 * recordings, faults of every call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend.h"
#include "kernels/cuda/paths.h"
#include "kernels/cuda/replay.h"
#include "t/simt/control.h"
#include "t/unit/dummy_models.h"
#include "t/unit/kernel_answers.h"

/* ---- whole models ---------------------------------------------------------------------------- */

/* A prompt in one chunk, then tokens one by one: both of the ways of a product. */
static void test_every_family_of_dummy_models(void **state)
{
    enum { COUNT = 24, VALUES = COUNT * 256 };
    static float expected[VALUES], logits[VALUES];

    (void)state;
    for (int family = 0; dummy_families[family] != NULL; family++) {
        struct model_run run;
        char directory[64];
        double error;

        dummy_model_write(family, directory);
        model_run_make(&run, directory, 5, "reference", 1);
        dummy_model_logits(&run, COUNT, expected);
        model_run_close(&run);
        model_run_make(&run, directory, 5, "cuda", 1);
        dummy_model_logits(&run, COUNT, logits);
        model_run_close(&run);
        dummy_model_remove(directory);
        error = pd_rig_error(logits, expected, VALUES);
        if (!(error < 1e-2))
            fail_msg("family %d: error %g", family, error);
    }
}

/* ---- recordings ------------------------------------------------------------------------------ */

static void test_buckets(void **state)
{
    (void)state;
    for (int most = 1; most < 1000; most += 37) {
        int before = 0, buckets = 0;

        for (int rows = 0; rows <= most; rows++) {
            int bucket = pd_cuda_bucket(rows, most);

            assert_true(bucket >= rows && bucket <= most && bucket >= before);
            assert_true(rows == 0 ? bucket == 0 : bucket <= 2 * rows);
            buckets += bucket != before && bucket <= PD_CUDA_RECORDED_ROWS;
            before = bucket;
        }
        assert_true(buckets <= PD_CUDA_BUCKETS);
    }
}

static void test_replay_gives_the_tokens_of_direct_launches(void **state)
{
    int expected[PD_ANSWER_TOKENS] = {0}, tokens[PD_ANSWER_TOKENS] = {0};
    struct pd_small_model model;
    long before = pd_simt_replays();

    (void)state;
    pd_small_open_answers(&model, &pd_answering, true);
    pd_answers_generate(&model, expected);
    assert_int_equal(pd_simt_replays(), before);
    pd_small_close(&model);
    pd_small_open_answers(&model, &pd_answering, false);
    pd_answers_generate(&model, tokens);
    assert_int_equal(pd_device_progress(model.rig.device), PD_ANSWER_STEPS << 16 | PD_MODEL_LAYERS);
    pd_small_close(&model);
    assert_memory_equal(tokens, expected, sizeof(tokens));
    /* 6 steps bring a prompt; 1, 2, 4 and 8 rows run once before they are recorded. */
    assert_int_equal(pd_simt_replays() - before, PD_ANSWER_STEPS - PD_ANSWERS - 4);
}

/* ---- paths that only a GPU can show ---------------------------------------------------------- */

/* A device as it is by default: what it computes is right, and comes from what a GPU has shown. */
static void test_what_no_gpu_has_shown_is_off(void **state)
{
    static const char *const enable[] = {NULL, "cublaslt", "graphs", "graphs,cublaslt", "all"};
    int expected[PD_ANSWER_TOKENS] = {0};
    struct pd_small_model model;

    (void)state;
    pd_small_open_answers(&model, &pd_answering, false);
    pd_answers_generate(&model, expected);
    pd_small_close(&model);
    for (size_t i = 0; i < sizeof(enable) / sizeof(enable[0]); i++) {
        long replays = pd_simt_replays(), gemms = pd_simt_gemms()->run;
        int tokens[PD_ANSWER_TOKENS] = {0};
        struct pd_device_info info;
        char error[128];
        unsigned on;

        assert_true(pd_cuda_paths_on(enable[i], &on, error, sizeof(error)));
        pd_small_open_enabled(&model, &pd_answering, enable[i], false);
        pd_answers_generate(&model, tokens);
        pd_device_describe(model.rig.device, &info);
        pd_small_close(&model);
        assert_memory_equal(tokens, expected, sizeof(tokens));
        assert_true((pd_simt_replays() > replays) == pd_cuda_path_on(on, PD_CUDA_GRAPHS));
        assert_true((pd_simt_gemms()->run > gemms) == pd_cuda_path_on(on, PD_CUDA_CUBLASLT));
        assert_true((strstr(info.numerics, "cublaslt") != NULL) ==
                    pd_cuda_path_on(on, PD_CUDA_CUBLASLT));
        for (int path = 0; path < PD_CUDA_PATHS; path++) {
            const char *name = pd_cuda_path_name((enum pd_cuda_path)path);

            assert_true(pd_cuda_path_on(on, (enum pd_cuda_path)path) ==
                        (pd_cuda_path_shown((enum pd_cuda_path)path) ||
                         (enable[i] != NULL &&
                          (strcmp(enable[i], "all") == 0 || strstr(enable[i], name) != NULL))));
            assert_true((strstr(info.name, name) == NULL) ==
                        pd_cuda_path_on(on, (enum pd_cuda_path)path));
        }
    }
}

/* Neither a network card nor another process gets at the pool but where that is on; copies always do. */
static void test_a_pool_is_shown_to_whom_a_gpu_has_shown_it(void **state)
{
    static const struct {
        const char *enable;
        bool card, lent;
    } cases[] = {{NULL, false, false},
                 {"gpudirect", true, false},
                 {"lent", false, true},
                 {"all", true, true}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct pd_device_options options = pd_rig_options("cuda", NULL, 1);
        bool card = cases[i].card || pd_cuda_path_shown(PD_CUDA_GPUDIRECT);
        bool lent = cases[i].lent || pd_cuda_path_shown(PD_CUDA_LENT);
        const struct pd_export_range odd = {17, 0, 1};
        struct pd_export memory;
        struct pd_buffer *pool;
        char byte = 'x';
        struct pd_rig rig;

        options.cuda_enable = cases[i].enable;
        pd_rig_open(&rig, &options);
        assert_int_equal(pd_buffer_create(rig.device, PD_BUFFER_KV, 4096, &pool), PD_KERNEL_OK);
        assert_int_equal(pd_buffer_export(pool, &memory), PD_KERNEL_OK);
        assert_true((memory.address != 0) == card);
        assert_true(memory.fd < 0); /* the shim's driver exports no dmabuf */
        assert_true((memory.handle >= 0) == lent);
        assert_true(memory.copy(memory.copy_context, &byte, &odd, 1, true));
        assert_int_equal(byte, 0);
        pd_rig_close(&rig);
    }
}

static void test_a_path_that_there_is_not_is_refused(void **state)
{
    static const char *const enable[] = {"graph", "graphs,,all", "graphs, cublaslt",
                                         "a name far longer than any of those that there are"};

    (void)state;
    for (size_t i = 0; i < sizeof(enable) / sizeof(enable[0]); i++) {
        struct pd_device_options options = pd_rig_options("cuda", NULL, 1);
        struct pd_device *device;
        char error[256] = "";
        int status;

        options.cuda_enable = enable[i];
        status = pd_device_open(&options, &device, error, sizeof(error));
        assert_int_equal(status, PD_KERNEL_UNSUPPORTED);
        assert_non_null(strstr(error, "there is no path"));
        assert_non_null(strstr(error, "cublaslt"));
    }
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* Opens, runs some steps and closes, with every call after the first `calls` failing. False: none
 * was reached. */
static bool run_until_fault(long calls)
{
    struct pd_small_model model;
    int status = PD_KERNEL_OK;
    char error[PD_DEVICE_ERROR];

    pd_small_open_answers(&model, &pd_answering, false);
    pd_simt_fail_after(calls, 700);
    for (int n = 0; n < 4 && status == PD_KERNEL_OK; n++) {
        struct pd_step *step;

        assert_int_equal(pd_step_acquire(model.rig.device, &step), PD_KERNEL_OK);
        pd_answers_add(&model, step, 0, n == 0 ? 0 : PD_ANSWER_PROMPT + n - 1);
        status = pd_graph_launch(model.graph, step);
        if (status == PD_KERNEL_OK)
            status = pd_step_wait(model.rig.device, step->number, 60000);
    }
    if (status != PD_KERNEL_OK) {
        assert_int_equal(status, PD_KERNEL_LOST);
        snprintf(error, sizeof(error), "%s", pd_device_error(model.rig.device));
        if (strstr(error, "an illegal memory access was encountered (GPU 0)") == NULL)
            fail_msg("after %ld calls: \"%s\"", calls, error);
        if (strncmp(error, "matmul", 6) == 0)
            assert_non_null(strstr(error, " rows, "));
        pd_simt_fail_after(-1, 0);
        /* Sticky: whatever is called later, also when the call itself would work. */
        assert_int_equal(pd_fence_remote_writes(model.rig.device), PD_KERNEL_LOST);
        assert_int_equal(pd_history_write(model.rig.device, 0, 0, (int32_t[]){1}, 1),
                         PD_KERNEL_LOST);
        assert_string_equal(pd_device_error(model.rig.device), error);
    }
    pd_simt_fail_after(-1, 0);
    pd_small_close(&model);
    return status != PD_KERNEL_OK;
}

static void test_every_failing_call_loses_the_device_by_name(void **state)
{
    long calls = 0;

    (void)state;
    while (run_until_fault(calls))
        calls += 1 + calls / 10;
    assert_true(calls > 50);
}

static void test_a_device_that_does_not_open_says_why(void **state)
{
    struct pd_device_options options = pd_rig_options("cuda", NULL, 1);
    struct pd_device *device;
    char error[256];
    long calls = 0;

    (void)state;
    for (;; calls++) {
        pd_simt_fail_after(calls, 2);
        if (pd_device_open(&options, &device, error, sizeof(error)) == PD_KERNEL_OK)
            break;
        assert_null(device);
        assert_non_null(strstr(error, "GPU 0"));
        assert_non_null(strstr(error, "out of memory"));
    }
    pd_simt_fail_after(-1, 0);
    pd_device_close(device);
    assert_true(calls > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_family_of_dummy_models),
        cmocka_unit_test(test_buckets),
        cmocka_unit_test(test_replay_gives_the_tokens_of_direct_launches),
        cmocka_unit_test(test_what_no_gpu_has_shown_is_off),
        cmocka_unit_test(test_a_pool_is_shown_to_whom_a_gpu_has_shown_it),
        cmocka_unit_test(test_a_path_that_there_is_not_is_refused),
        cmocka_unit_test(test_every_failing_call_loses_the_device_by_name),
        cmocka_unit_test(test_a_device_that_does_not_open_says_why),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
