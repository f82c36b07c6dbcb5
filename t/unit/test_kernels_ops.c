/* Every path of the cpu backend against the reference backend: embedding, norm, matmul in all
 * formats, epilogues and shapes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <float.h>
#include <math.h>

#include <cmocka.h>

#include "t/unit/kernel_rig.h"

/* One matmul: `sources` matrices one below the other (or gate and up), optional bias. */
struct job {
    enum pd_weight_layout layout;
    enum pd_epilogue epilogue;
    int cols, count;
    struct {
        enum pd_dtype type;
        int rows;
    } source[3];
    bool bias;
    int tokens;
    uint64_t seed;
};

enum { STRANGE_ROWS = 7, UNFIT_ROWS = 4 };

/* Of a row each: what makes no number of what it is multiplied with, then zeros and denormals, whose squares are none. */
static void make_strange(float *x, int cols)
{
    static const float unfit[UNFIT_ROWS] = {NAN, INFINITY, -INFINITY, -NAN};

    for (int i = 0; i < UNFIT_ROWS; i++)
        x[i * cols + (5 * i + 1) % cols] = unfit[i];
    for (int i = 0; i < cols; i++) {
        x[UNFIT_ROWS * cols + i] = i % 2 ? -0.0f : 0;
        x[(UNFIT_ROWS + 1) * cols + i] *= FLT_MIN / 64;
        x[(UNFIT_ROWS + 2) * cols + i] *= i % 3 ? 1e-40f : 1;
    }
}

static int job_rows(const struct job *job)
{
    int rows = 0;

    for (int i = 0; i < job->count; i++)
        rows += job->source[i].rows;
    return rows;
}

static struct pd_weight *job_weight(struct pd_rig *rig, const struct job *job)
{
    struct pd_weight_source sources[3];
    struct pd_weight *weight;

    for (int i = 0; i < job->count; i++) {
        sources[i].type = job->source[i].type;
        sources[i].rows = job->source[i].rows;
        sources[i].data =
            pd_rig_matrix(sources[i].type, sources[i].rows, job->cols, job->seed + (uint64_t)i);
    }
    if (pd_weight_create(rig->device, job->layout, job->cols, sources, job->count, false,
                         &weight) != PD_KERNEL_OK)
        fail_msg("%s", pd_device_error(rig->device));
    for (int i = 0; i < job->count; i++)
        free((void *)sources[i].data);
    return weight;
}

/* A step of `tokens` rows in one sequence: row t is row t of the input. */
static void run_rows(struct pd_rig *rig, struct pd_graph *graph, int tokens)
{
    int32_t token[96];

    for (int t = 0; t < tokens; t++)
        token[t] = t;
    pd_rig_run(rig, graph, pd_rig_step(rig, 0, token, tokens, 0, 0));
}

/* The result of `job` on a device, malloc'ed: [tokens][*outputs]; with strange numbers in the first rows of x, or without. */
static float *job_run(const struct pd_device_options *options, const struct job *job, bool strange,
                      int *outputs)
{
    int rows = job_rows(job), columns = job->layout == PD_WEIGHT_GATE_UP ? rows / 2 : rows;
    size_t count = (size_t)job->tokens * (size_t)columns;
    float *x = malloc(sizeof(float) * (size_t)(job->tokens * job->cols)),
          *result = malloc(count * sizeof(float));
    float *before = malloc(count * sizeof(float));
    struct pd_weight *weight, *bias = NULL;
    struct pd_tensor in, out;
    struct pd_buffer *pinned;
    struct pd_graph *graph;
    struct pd_rig rig;

    pd_rig_open(&rig, options);
    pd_rig_fill(x, (size_t)(job->tokens * job->cols), 1, job->seed + 10);
    if (strange)
        make_strange(x, job->cols);
    pd_rig_fill(before, count, 1, job->seed + 11);
    weight = job_weight(&rig, job);
    if (job->bias)
        bias = pd_rig_weight(&rig, PD_F32, rows, 1, false, job->seed + 12);
    in = pd_rig_tensor(&rig, options->max_tokens, job->cols);
    out = pd_rig_tensor(&rig, options->max_tokens, columns);
    pinned = pd_rig_pinned(&rig, sizeof(float) * (size_t)(options->max_tokens * columns));
    graph = pd_rig_begin(&rig);
    pd_op_embed(graph, pd_rig_input(&rig, x, job->tokens, job->cols), in);
    pd_op_embed(graph, pd_rig_input(&rig, before, job->tokens, columns), out);
    pd_op_matmul(graph, weight, in, bias, job->epilogue, false, out);
    pd_op_read(graph, out, false, pinned);
    pd_rig_end(graph);
    run_rows(&rig, graph, job->tokens);
    memcpy(result, pd_buffer_host(pinned), count * sizeof(float));
    pd_rig_close(&rig);
    free(x);
    free(before);
    *outputs = columns;
    return result;
}

/* The largest error of all paths and thread counts against the reference. */
static void check_precision(const struct job *job, enum pd_precision precision)
{
    struct pd_device_options reference = pd_rig_options("reference", NULL, 2);
    static const char *const names[] = {"f32", "int8", "int12", "bf16"};
    int outputs;
    float *expected;

    reference.precision = precision;
    expected = job_run(&reference, job, false, &outputs);
    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        struct pd_device_options options = pd_rig_options("cpu", *path, 1 + job->tokens % 3);
        /* Weights are dequantised with one rounding less than the reference's, and what differs by an
         * ulp may round apart. */
        double allowed = precision == PD_PRECISION_BF16 ? 1e-4 : 1e-6, error;
        float *result;

        if (!pd_rig_has(*path, precision))
            continue;
        options.precision = precision;
        result = job_run(&options, job, false, &outputs);
        error = pd_rig_error(result, expected, (size_t)(job->tokens * outputs));
        if (!(error < allowed))
            fail_msg("%s, %s: %s x%d of %d columns, %d tokens: error %g", *path, names[precision],
                     pd_dtype_name(job->source[0].type), job_rows(job), job->cols, job->tokens,
                     error);
        free(result);
    }
    free(expected);
}

static void check_job(const struct job *job)
{
    check_precision(job, PD_PRECISION_F32);
    check_precision(job, PD_PRECISION_INT8);
    check_precision(job, PD_PRECISION_INT12);
    check_precision(job, PD_PRECISION_BF16);
}

static const enum pd_dtype types[] = {PD_F32,  PD_F16,  PD_BF16, PD_Q4_0, PD_Q4_1,
                                      PD_Q5_0, PD_Q8_0, PD_Q4_K, PD_Q6_K};

static void test_matmul_every_format(void **state)
{
    static const int tokens[] = {1, 2, 4, 5, 13, 29}, rows[] = {32, 77, 7, 160, 48, 33};

    (void)state;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        for (size_t j = 0; j < sizeof(tokens) / sizeof(tokens[0]); j++) {
            int cols = pd_dtype_block(types[i]) == 256 ? 256 : 96 + 32 * (int)j;
            struct job job = {
                PD_WEIGHT_ROWS, PD_EPILOGUE_NONE, cols,       1, {{types[i], rows[j]}},
                false,          tokens[j],        100 * i + j};
            check_job(&job);
        }
    }
}

static void test_matmul_every_number_of_tokens(void **state)
{
    (void)state;
    for (int tokens = 1; tokens <= 70; tokens++) {
        struct job job = {PD_WEIGHT_ROWS,  PD_EPILOGUE_NONE, 288,    1,
                          {{PD_Q4_1, 40}}, tokens % 2 == 0,  tokens, (uint64_t)tokens};
        check_job(&job);
    }
}

static void test_matmul_odd_columns(void **state)
{
    (void)state;
    for (int cols = 2; cols <= 70; cols += 5) {
        struct job job = {PD_WEIGHT_ROWS, PD_EPILOGUE_NONE, cols, 1, {{types[cols % 3], 50}}, false,
                          1 + cols % 19,  (uint64_t)cols};
        check_job(&job);
    }
}

static void test_matmul_epilogues(void **state)
{
    static const int tokens[] = {1, 3, 17, 40};

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct job residual = {PD_WEIGHT_ROWS,  PD_EPILOGUE_ADD, 192,       1,
                               {{PD_Q8_0, 61}}, i % 2,           tokens[i], 5};
        struct job swiglu = {PD_WEIGHT_GATE_UP,
                             PD_EPILOGUE_SWIGLU,
                             192,
                             2,
                             {{PD_Q4_1, 45}, {PD_Q4_1, 45}},
                             i % 2,
                             tokens[i],
                             6};
        struct job mixed = {PD_WEIGHT_GATE_UP,
                            PD_EPILOGUE_SWIGLU,
                            256,
                            2,
                            {{PD_Q4_K, 19}, {PD_Q6_K, 19}},
                            i % 2,
                            tokens[i],
                            7};
        struct job fused = {
            PD_WEIGHT_ROWS, PD_EPILOGUE_NONE, 256, 3, {{PD_Q4_K, 70}, {PD_Q8_0, 24}, {PD_Q6_K, 24}},
            i % 2,          tokens[i],        8};

        check_job(&residual);
        check_job(&swiglu);
        check_job(&mixed);
        check_job(&fused);
    }
}

static void check_strange(const struct job *job, enum pd_precision precision)
{
    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        struct pd_device_options options = pd_rig_options("cpu", *path, 2);
        float *with, *without;
        int outputs, unfit;

        if (!pd_rig_has(*path, precision))
            continue;
        options.precision = precision;
        with = job_run(&options, job, true, &outputs);
        without = job_run(&options, job, false, &outputs);
        unfit = UNFIT_ROWS * outputs;
        for (int i = 0; i < STRANGE_ROWS * outputs; i++)
            if ((i >= unfit) != !!isfinite(with[i]))
                fail_msg("%s: %s, output %d of %d columns: %g", *path,
                         pd_dtype_name(job->source[0].type), i, outputs, (double)with[i]);
        for (int i = unfit; i < unfit + outputs; i++)
            assert_true(with[i] == 0);
        for (int i = unfit + outputs; i < unfit + 2 * outputs; i++)
            assert_true(fabsf(with[i]) < 1e-35f);
        assert_memory_equal(with + STRANGE_ROWS * outputs, without + STRANGE_ROWS * outputs,
                            sizeof(float) * (size_t)((job->tokens - STRANGE_ROWS) * outputs));
        free(with);
        free(without);
    }
}

/* A row's NaN and infinities stay in it and are seen in all of its outputs, denormals do no harm, and no other row's
 * bits tell of any. */
static void test_matmul_of_strange_numbers(void **state)
{
    static const enum pd_precision precisions[] = {PD_PRECISION_F32, PD_PRECISION_INT8,
                                                   PD_PRECISION_INT12, PD_PRECISION_BF16};

    (void)state;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        for (int p = 0; p < 4; p++) {
            struct job job = {.layout = PD_WEIGHT_ROWS,
                              .epilogue = PD_EPILOGUE_NONE,
                              .cols = 256,
                              .count = 1,
                              .source = {{types[i], 53}},
                              .tokens = i % 2 ? 40 : 11,
                              .seed = 60 + i};

            check_strange(&job, precisions[p]);
        }
    }
}

/* Rows come back to the bit, whatever the weight was repacked into. */
static void test_embedding_is_exact(void **state)
{
    (void)state;
    for (size_t n = 0; n < 2 * sizeof(types) / sizeof(types[0]); n++) {
        struct pd_device_options options = pd_rig_options("cpu", "auto", 2);
        size_t i = n / 2;
        int cols = pd_dtype_block(types[i]) == 256 ? 512 : 96;
        size_t count = (size_t)options.vocabulary * (size_t)cols;
        void *matrix = pd_rig_matrix(types[i], options.vocabulary, cols, 40 + i);
        float *expected = malloc(count * sizeof(float));
        struct pd_rig rig;
        struct pd_weight *weight;
        struct pd_weight_source source = {matrix, types[i], options.vocabulary};
        struct pd_tensor out;
        struct pd_buffer *pinned;
        struct pd_graph *graph;

        options.precision = n % 2 && pd_rig_has("amx", PD_PRECISION_BF16)
                                ? PD_PRECISION_BF16
                                : PD_PRECISION_INT12; /* they pack otherwise */
        assert_int_equal(pd_dequantize(types[i], matrix, expected, count), PD_KERNEL_OK);
        pd_rig_open(&rig, &options);
        assert_int_equal(
            pd_weight_create(rig.device, PD_WEIGHT_ROWS, cols, &source, 1, true, &weight),
            PD_KERNEL_OK);
        out = pd_rig_tensor(&rig, options.max_tokens, cols);
        pinned = pd_rig_pinned(&rig, sizeof(float) * (size_t)(options.max_tokens * cols));
        graph = pd_rig_begin(&rig);
        pd_op_embed(graph, weight, out);
        pd_op_read(graph, out, false, pinned);
        pd_rig_end(graph);
        for (int32_t token = 0; token < options.vocabulary; token += 7) {
            pd_rig_run(&rig, graph, pd_rig_step(&rig, 0, &token, 1, 0, 0));
            assert_memory_equal(pd_buffer_host(pinned), expected + token * cols,
                                sizeof(float) * (size_t)cols);
        }
        pd_rig_close(&rig);
        free(matrix);
        free(expected);
    }
}

/* A scale whose -8 d no f16 can hold. */
static void test_extreme_q4_0(void **state)
{
    struct pd_device_options kinds[2] = {pd_rig_options("reference", NULL, 1),
                                         pd_rig_options("cpu", NULL, 1)};
    uint8_t block[18 * 2];
    float results[2][2], x[32];

    (void)state;
    for (int i = 0; i < 36; i++)
        block[i] = (uint8_t)(i * 37);
    memcpy(block, "\xff\x78", 2); /* 40928 */
    memcpy(block + 18, "\x01\x04", 2);
    pd_rig_fill(x, 32, 1, 3);
    for (int i = 0; i < 2; i++) {
        struct pd_rig rig;
        struct pd_weight *weight;
        struct pd_weight_source source = {block, PD_Q4_0, 2};
        struct pd_tensor in, out;
        struct pd_buffer *pinned;
        struct pd_graph *graph;

        pd_rig_open(&rig, &kinds[i]);
        assert_int_equal(
            pd_weight_create(rig.device, PD_WEIGHT_ROWS, 32, &source, 1, false, &weight),
            PD_KERNEL_OK);
        in = pd_rig_tensor(&rig, 96, 32);
        out = pd_rig_tensor(&rig, 96, 2);
        pinned = pd_rig_pinned(&rig, 96 * 2 * sizeof(float));
        graph = pd_rig_begin(&rig);
        pd_op_embed(graph, pd_rig_input(&rig, x, 1, 32), in);
        pd_op_matmul(graph, weight, in, NULL, PD_EPILOGUE_NONE, false, out);
        pd_op_read(graph, out, false, pinned);
        pd_rig_end(graph);
        run_rows(&rig, graph, 1);
        memcpy(results[i], pd_buffer_host(pinned), sizeof(results[i]));
        pd_rig_close(&rig);
    }
    assert_true(pd_rig_error(results[1], results[0], 1) < 1e-6);
    assert_true(pd_rig_error(results[1] + 1, results[0] + 1, 1) < 1e-5);
}

static void test_rmsnorm(void **state)
{
    (void)state;
    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        for (int cols = 1; cols <= 100; cols += 9) {
            struct pd_device_options kinds[2] = {pd_rig_options("reference", NULL, 1),
                                                 pd_rig_options("cpu", *path, 2)};
            float results[2][5 * 100], x[5 * 100];

            pd_rig_fill(x, 500, 3, (uint64_t)cols);
            for (int i = 0; i < 2; i++) {
                struct pd_rig rig;
                struct pd_tensor in, out;
                struct pd_buffer *pinned;
                struct pd_graph *graph;

                pd_rig_open(&rig, &kinds[i]);
                in = pd_rig_tensor(&rig, 96, cols);
                out = pd_rig_tensor(&rig, 96, cols);
                pinned = pd_rig_pinned(&rig, sizeof(float) * (size_t)(96 * cols));
                graph = pd_rig_begin(&rig);
                pd_op_embed(graph, pd_rig_input(&rig, x, 5, cols), in);
                pd_op_rmsnorm(graph, in, pd_rig_weight(&rig, PD_F32, 1, cols, false, 9), 1e-5f,
                              false, out);
                pd_op_read(graph, out, false, pinned);
                pd_rig_end(graph);
                run_rows(&rig, graph, 5);
                memcpy(results[i], pd_buffer_host(pinned), sizeof(float) * (size_t)(5 * cols));
                pd_rig_close(&rig);
            }
            assert_true(pd_rig_error(results[1], results[0], (size_t)(5 * cols)) < 3e-7);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul_every_format),
        cmocka_unit_test(test_matmul_every_number_of_tokens),
        cmocka_unit_test(test_matmul_odd_columns),
        cmocka_unit_test(test_matmul_epilogues),
        cmocka_unit_test(test_matmul_of_strange_numbers),
        cmocka_unit_test(test_embedding_is_exact),
        cmocka_unit_test(test_extreme_q4_0),
        cmocka_unit_test(test_rmsnorm),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
