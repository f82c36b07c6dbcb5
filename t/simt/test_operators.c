/* The CUDA backend as a device of kind "cuda", over the SIMT shim or on a GPU, against the plain
 * reference backend: every operator, over the shapes and formats that the kernels tell apart, and
 * whole steps of a small model in chunks and batches. Under the shim each runs for several orders of
 * threads. Sampling has its own suite, which is the CPU backend's too (test_kernels_sample). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/cuda.h"
#include "t/unit/kernel_model.h"

static const char *const seeds[] = {"1", "2", "3"};

/* The first so many of `most`: PD_SIMT_SHAPES says, under a sanitizer. */
static size_t some_of(size_t most)
{
    const char *only = getenv("PD_SIMT_SHAPES");

    return only != NULL && (size_t)atoi(only) < most ? (size_t)atoi(only) : most;
}

/* ---- products -------------------------------------------------------------------------------- */

/* One product: `count` matrices one below the other, or gate and up. */
struct product {
    enum pd_weight_layout layout;
    enum pd_epilogue epilogue;
    int cols, count;
    struct {
        enum pd_dtype type;
        int rows;
    } source[3];
    bool bias;
    int tokens;
    double allowed; /* error, rms over rms */
};

static struct pd_weight *product_weight(struct pd_rig *rig, const struct product *product)
{
    struct pd_weight_source sources[3];
    struct pd_weight *weight;

    for (int i = 0; i < product->count; i++) {
        sources[i].type = product->source[i].type;
        sources[i].rows = product->source[i].rows;
        sources[i].data =
            pd_rig_matrix(sources[i].type, sources[i].rows, product->cols, (uint64_t)(100 + i));
    }
    if (pd_weight_create(rig->device, product->layout, product->cols, sources, product->count,
                         false, &weight) != PD_KERNEL_OK)
        fail_msg("%s", pd_device_error(rig->device));
    for (int i = 0; i < product->count; i++)
        free((void *)sources[i].data);
    return weight;
}

static float *run_product(const char *kind, const struct product *product, int columns, int rows)
{
    struct pd_device_options options = pd_rig_options(kind, NULL, 1);
    size_t count = (size_t)product->tokens * (size_t)columns;
    float *x = malloc(sizeof(float) * (size_t)(product->tokens * product->cols));
    float *result = malloc(sizeof(float) * count);
    struct pd_weight *weight, *bias = NULL;
    struct pd_tensor in, out;
    struct pd_buffer *pinned;
    struct pd_graph *graph;
    int32_t tokens[96];
    struct pd_rig rig;

    pd_rig_open(&rig, &options);
    pd_rig_fill(x, (size_t)(product->tokens * product->cols), 1, 7);
    weight = product_weight(&rig, product);
    if (product->bias)
        bias = pd_rig_weight(&rig, PD_F32, rows, 1, false, 8);
    in = pd_rig_tensor(&rig, options.max_tokens, product->cols);
    out = pd_rig_tensor(&rig, options.max_tokens, columns);
    pinned = pd_rig_pinned(&rig, sizeof(float) * (size_t)(options.max_tokens * columns));
    pd_rig_fill(result, count, 1, 9);
    graph = pd_rig_begin(&rig);
    pd_op_embed(graph, pd_rig_input(&rig, x, product->tokens, product->cols), in);
    pd_op_embed(graph, pd_rig_input(&rig, result, product->tokens, columns), out);
    pd_op_matmul(graph, weight, in, bias, product->epilogue, false, out);
    pd_op_read(graph, out, false, pinned);
    pd_rig_end(graph);
    for (int t = 0; t < product->tokens; t++)
        tokens[t] = t;
    pd_rig_run(&rig, graph, pd_rig_step(&rig, 0, tokens, product->tokens, 0, 0));
    memcpy(result, pd_buffer_host(pinned), sizeof(float) * count);
    pd_rig_close(&rig);
    free(x);
    return result;
}

static void check_product(const struct product *product)
{
    int rows = 0, columns;
    float *expected, *result;
    double error;

    for (int i = 0; i < product->count; i++)
        rows += product->source[i].rows;
    columns = product->layout == PD_WEIGHT_GATE_UP ? rows / 2 : rows;
    expected = run_product("reference", product, columns, rows);
    result = run_product("cuda", product, columns, rows);
    error = pd_rig_error(result, expected, (size_t)(product->tokens * columns));
    if (!(error < product->allowed))
        fail_msg("%s, %d columns, %d tokens: error %g", pd_dtype_name(product->source[0].type),
                 product->cols, product->tokens, error);
    free(expected);
    free(result);
}

/* The small kernel multiplies in f32; the scales of Q4_K and Q6_K are rounded to f16. The matrix
 * unit's operands are f16, or bf16 where the weights are. */
static double allowed(enum pd_dtype type, int tokens)
{
    if (type == PD_F32 || (tokens <= PD_CUDA_SMALL && type != PD_Q4_K && type != PD_Q6_K))
        return 1e-6;
    return type == PD_BF16 ? 4e-3 : 8e-4;
}

static void test_matmul_every_format(void **state)
{
    static const enum pd_dtype types[] = {PD_F32,  PD_F16,  PD_BF16, PD_Q4_0, PD_Q4_1,
                                          PD_Q5_0, PD_Q8_0, PD_Q4_K, PD_Q6_K};
    static const int tokens[] = {1, 2, 3, 8, 9, 17};

    (void)state;
    for (size_t i = 0; i < some_of(sizeof(types) / sizeof(types[0])); i++) {
        for (size_t j = 0; j < sizeof(tokens) / sizeof(tokens[0]); j++) {
            int cols = pd_dtype_block(types[i]) == 256 ? 512 : 288 + 32 * (int)j;
            struct product product = {PD_WEIGHT_ROWS,
                                      PD_EPILOGUE_NONE,
                                      cols,
                                      1,
                                      {{types[i], 24 + 8 * (int)j}},
                                      false,
                                      tokens[j],
                                      allowed(types[i], tokens[j])};

            check_product(&product);
        }
    }
}

static void test_matmul_epilogues(void **state)
{
    static const int tokens[] = {1, 5, 20};

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct product residual = {PD_WEIGHT_ROWS, PD_EPILOGUE_ADD, 192, 1, {{PD_Q8_0, 56}},
                                   true,           tokens[i],       8e-4};
        struct product swiglu = {PD_WEIGHT_GATE_UP,
                                 PD_EPILOGUE_SWIGLU,
                                 256,
                                 2,
                                 {{PD_Q4_K, 40}, {PD_Q6_K, 40}},
                                 true,
                                 tokens[i],
                                 1.5e-3};
        struct product fused = {
            PD_WEIGHT_ROWS, PD_EPILOGUE_NONE, 256, 3, {{PD_BF16, 72}, {PD_Q8_0, 24}, {PD_F32, 24}},
            true,           tokens[i],        4e-3};

        struct product one = {
            PD_WEIGHT_ROWS, PD_EPILOGUE_NONE, 256, 3, {{PD_BF16, 72}, {PD_BF16, 24}, {PD_BF16, 24}},
            true,           tokens[i],        4e-3};
        struct product two = {
            PD_WEIGHT_ROWS, PD_EPILOGUE_ADD, 256, 3, {{PD_Q4_0, 70}, {PD_Q4_1, 26}, {PD_Q8_0, 24}},
            true,           tokens[i],       8e-4};

        check_product(&residual);
        check_product(&swiglu);
        check_product(&fused);
        check_product(&one);
        check_product(&two);
    }
}

/* ---- gather ---------------------------------------------------------------------------------- */

static void test_gather_takes_the_sampled_rows(void **state)
{
    enum { COLS = 296, FIRST = 5, SECOND = 3 };
    static float x[(FIRST + SECOND) * COLS];
    struct pd_device_options options = pd_rig_options("cuda", NULL, 1);
    static const int32_t tokens[] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct pd_tensor in, out;
    struct pd_buffer *pinned;
    struct pd_graph *graph;
    struct pd_step *step;
    struct pd_rig rig;
    const float *rows;

    (void)state;
    pd_rig_fill(x, (FIRST + SECOND) * COLS, 1, 12);
    pd_rig_open(&rig, &options);
    in = pd_rig_tensor(&rig, options.max_tokens, COLS);
    out = pd_rig_tensor(&rig, options.max_seqs, COLS);
    pinned = pd_rig_pinned(&rig, sizeof(float) * (size_t)(options.max_seqs * COLS));
    graph = pd_rig_begin(&rig);
    pd_op_embed(graph, pd_rig_input(&rig, x, FIRST + SECOND, COLS), in);
    pd_op_gather(graph, in, out);
    pd_op_read(graph, out, true, pinned);
    pd_rig_end(graph);
    step = pd_rig_step(&rig, 0, tokens, FIRST, 0, 0);
    pd_rig_add(&rig, step, 1, tokens + FIRST, SECOND, 0, 1);
    pd_rig_run(&rig, graph, step);
    rows = pd_buffer_host(pinned);
    assert_memory_equal(rows, x + (FIRST - 1) * COLS, COLS * sizeof(float));
    assert_memory_equal(rows + COLS, x + (FIRST + SECOND - 1) * COLS, COLS * sizeof(float));
    pd_rig_close(&rig);
}

/* ---- whole steps ----------------------------------------------------------------------------- */

enum { POSITIONS = 96, SEQUENCES = 3 };

/* Three sequences: chunks of a prompt, then single tokens, all mixed. */
static void play(struct pd_small_model *model, float *out)
{
    static const struct pd_small_part script[][3] = {
        {{0, 0, 41}, {1, 0, 9}, {0, 0, 0}},
        {{0, 41, 30}, {1, 9, 1}, {2, 0, 5}},
        {{0, 71, 1}, {1, 10, 1}, {2, 5, 1}},
        {{2, 6, 13}, {0, 72, 3}, {1, 11, 1}},
    };

    for (size_t i = 0; i < sizeof(script) / sizeof(script[0]); i++)
        pd_small_step(model, script[i], script[i][2].count > 0 ? 3 : 2, out, POSITIONS);
}

static const struct pd_small_shape shapes[] = {
    /* heads, kv_heads, head_dim, rope_dim, window, block, style, kv, weights, qk_norm, precision */
    {9, 3, 64, 64, 0, 16, PD_ROPE_INTERLEAVED, PD_F32, PD_Q4_1, false, PD_PRECISION_F32},
    {2, 2, 32, 32, 0, 8, PD_ROPE_HALF, PD_F16, PD_Q8_0, false, PD_PRECISION_F32},
    {8, 1, 64, 32, 0, 32, PD_ROPE_HALF, PD_BF16, PD_Q4_0, true, PD_PRECISION_F32},
    {2, 1, 96, 96, 17, 24, PD_ROPE_INTERLEAVED, PD_F32, PD_Q5_0, true, PD_PRECISION_F32},
    {5, 1, 128, 64, 20, 11, PD_ROPE_HALF, PD_F16, PD_F16, false, PD_PRECISION_F32},
    {2, 1, 256, 256, 0, 13, PD_ROPE_HALF, PD_F32, PD_BF16, false, PD_PRECISION_F32},
};

static void test_small_model(void **state)
{
    size_t count = (size_t)SEQUENCES * POSITIONS * PD_MODEL_HIDDEN;
    float *expected = malloc(count * sizeof(float)), *out = malloc(count * sizeof(float));

    (void)state;
    for (size_t i = 0; i < some_of(sizeof(shapes) / sizeof(shapes[0])); i++) {
        struct pd_small_model model;

        memset(expected, 0, count * sizeof(float));
        pd_small_open(&model, &shapes[i], "reference", NULL, 1);
        play(&model, expected);
        pd_small_close(&model);
        for (size_t seed = 0; seed < some_of(sizeof(seeds) / sizeof(seeds[0])); seed++) {
            double error;

            setenv("PD_SIMT_SEED", seeds[seed], 1);
            memset(out, 0, count * sizeof(float));
            pd_small_open(&model, &shapes[i], "cuda", NULL, 1);
            play(&model, out);
            assert_true(pd_device_progress(model.rig.device) == (4 << 16 | PD_MODEL_LAYERS));
            pd_small_close(&model);
            error = pd_rig_error(out, expected, count);
            if (!(error < (shapes[i].weight_type == PD_BF16 ? 8e-3 : 2e-3)))
                fail_msg("shape %zu, threads in order %s: error %g", i, seeds[seed], error);
        }
    }
    free(expected);
    free(out);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void test_what_no_kernel_takes_is_refused_by_name(void **state)
{
    static const struct pd_attention_shape shape = {
        .heads = 2, .kv_heads = 1, .head_dim = 80, .rope_dim = 80, .attention_factor = 1};
    struct pd_device_options options = pd_rig_options("cuda", NULL, 1);
    struct pd_kv_pool pool = {.layers = 1,
                              .kv_heads = 1,
                              .block_size = options.block_size,
                              .head_dim = 80,
                              .blocks = 4,
                              .type = PD_F16};
    float values[12 * 12] = {0};
    struct pd_weight_source source = {values, PD_F32, 12};
    struct pd_weight *weight;
    struct pd_graph *graph;
    struct pd_rig rig;
    char error[256];

    (void)state;
    pd_rig_open(&rig, &options);
    assert_int_equal(pd_weight_create(rig.device, PD_WEIGHT_ROWS, 12, &source, 1, false, &weight),
                     PD_KERNEL_UNSUPPORTED);
    assert_non_null(strstr(pd_device_error(rig.device), "12 columns"));
    assert_int_equal(
        pd_buffer_create(rig.device, PD_BUFFER_KV, pd_kv_pool_bytes(&pool), &pool.buffer), 0);
    graph = pd_rig_begin(&rig);
    pd_op_attention(graph, pd_rig_tensor(&rig, options.max_tokens, 4 * 80), &shape, &pool, 0,
                    pd_rig_tensor(&rig, options.max_tokens, 2 * 80));
    assert_int_equal(pd_graph_end(graph), PD_KERNEL_UNSUPPORTED);
    assert_non_null(strstr(pd_device_error(rig.device), "heads of 80"));
    pd_rig_close(&rig);
    options.ordinal = 1000;
    assert_int_equal(pd_device_open(&options, &rig.device, error, sizeof(error)),
                     PD_KERNEL_UNSUPPORTED);
    assert_non_null(strstr(error, "GPU 1000"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul_every_format),
        cmocka_unit_test(test_matmul_epilogues),
        cmocka_unit_test(test_gather_takes_the_sampled_rows),
        cmocka_unit_test(test_small_model),
        cmocka_unit_test(test_what_no_kernel_takes_is_refused_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
