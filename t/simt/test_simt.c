/* The CUDA kernels, run on the host by the SIMT shim, against the plain reference backend: the same inputs go
 * through a recorded graph on the reference device and through the kernel, for several orders of threads. */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/cuda/cuda.h"
#include "t/unit/kernel_rig.h"

enum { SEEDS = 4 };

/* Largest absolute difference, with a NaN counting as infinite. */
static double largest_difference(const float *a, const float *b, size_t count)
{
    double largest = 0;

    for (size_t i = 0; i < count; i++) {
        double difference = fabs((double)a[i] - (double)b[i]);

        if (!(difference <= largest))
            largest = isnan(difference) ? INFINITY : difference;
    }
    return largest;
}

static void check_rmsnorm(int rows, int cols)
{
    struct pd_device_options options = pd_rig_options("reference", NULL, 1);
    size_t count = (size_t)rows * (size_t)cols;
    float *x = malloc(count * sizeof(*x)), *out = malloc(count * sizeof(*out));
    float *weight = malloc((size_t)cols * sizeof(*weight));
    struct pd_weight_source source = {weight, PD_F32, 1};
    int32_t tokens[96];
    struct pd_weight *scale;
    struct pd_tensor in, normed;
    struct pd_buffer *pinned;
    struct pd_graph *graph;
    struct pd_rig rig;

    pd_rig_fill(x, count, 3, 1);
    pd_rig_fill(weight, (size_t)cols, 1, 2);
    pd_rig_open(&rig, &options);
    in = pd_rig_tensor(&rig, options.max_tokens, cols);
    normed = pd_rig_tensor(&rig, options.max_tokens, cols);
    pinned = pd_rig_pinned(&rig, (size_t)options.max_tokens * (size_t)cols * sizeof(float));
    assert_int_equal(pd_weight_create(rig.device, PD_WEIGHT_ROWS, cols, &source, 1, false, &scale),
                     0);
    for (int i = 0; i < rows; i++)
        tokens[i] = i;
    graph = pd_rig_begin(&rig);
    pd_op_embed(graph, pd_rig_input(&rig, x, rows, cols), in);
    pd_op_rmsnorm(graph, in, scale, 1e-5f, false, normed);
    pd_op_read(graph, normed, false, pinned);
    pd_rig_end(graph);
    pd_rig_run(&rig, graph, pd_rig_step(&rig, 0, tokens, rows, 0, 0));
    for (uintptr_t seed = 1; seed <= SEEDS; seed++) {
        memset(out, 0xff, count * sizeof(*out));
        assert_int_equal(pd_cuda_rmsnorm((void *)seed, x, weight, 1e-5f, rows, cols, out), 0);
        assert_true(largest_difference(out, pd_buffer_host(pinned), count) < 2e-5);
    }
    pd_rig_close(&rig);
    free(x);
    free(out);
    free(weight);
}

static void rmsnorm_matches_reference(void **state)
{
    static const int cols[] = {32, 64, 576, 1000, 1536};

    (void)state;
    for (size_t i = 0; i < sizeof(cols) / sizeof(*cols); i++) {
        check_rmsnorm(1, cols[i]);
        check_rmsnorm(5, cols[i]);
    }
    assert_int_equal(pd_cuda_rmsnorm(NULL, NULL, NULL, 0, 0, 8, NULL), 0);
    assert_int_equal(pd_cuda_rmsnorm(NULL, NULL, NULL, 0, 1, 0, NULL), -1);
}

struct attention_case {
    int heads, kv_heads, head_dim, block_size, window, context;
    enum pd_dtype type;
};

/* One sequence of `context` tokens over scattered blocks: the reference fills the pool and gives the last
 * row's rotated Q and its attention. */
static void check_attention(const struct attention_case *c)
{
    static const enum pd_cuda_kv_type types[] = {
        [PD_F32] = PD_CUDA_KV_F32, [PD_F16] = PD_CUDA_KV_F16, [PD_BF16] = PD_CUDA_KV_BF16};
    struct pd_device_options options = pd_rig_options("reference", NULL, 1);
    int width = (c->heads + 2 * c->kv_heads) * c->head_dim, out_width = c->heads * c->head_dim;
    float frequency[64], *x, *out = malloc((size_t)out_width * sizeof(*out));
    struct pd_attention_shape shape = {.heads = c->heads,
                                       .kv_heads = c->kv_heads,
                                       .head_dim = c->head_dim,
                                       .rope_dim = c->head_dim,
                                       .rope_style = PD_ROPE_HALF,
                                       .inverse_frequency = frequency,
                                       .attention_factor = 1,
                                       .scale = 1 / sqrtf((float)c->head_dim),
                                       .window = c->window};
    struct pd_kv_pool pool = {.layers = 2,
                              .kv_heads = c->kv_heads,
                              .block_size = c->block_size,
                              .head_dim = c->head_dim,
                              .blocks = 31,
                              .type = c->type};
    struct pd_tensor qkv, attended;
    struct pd_buffer *pinned_qkv, *pinned_out;
    struct pd_graph *graph;
    struct pd_export shared;
    struct pd_step *step;
    struct pd_rig rig;
    int32_t tokens[96], first = 0, context = c->context;
    void *memory;

    options.block_size = c->block_size;
    for (int i = 0; i < c->head_dim / 2; i++)
        frequency[i] = powf(10000, -2.0f * (float)i / (float)c->head_dim);
    x = malloc((size_t)c->context * (size_t)width * sizeof(*x));
    pd_rig_fill(x, (size_t)c->context * (size_t)width, 1, 3);
    pd_rig_open(&rig, &options);
    assert_int_equal(
        pd_buffer_create(rig.device, PD_BUFFER_KV, pd_kv_pool_bytes(&pool), &pool.buffer), 0);
    qkv = pd_rig_tensor(&rig, options.max_tokens, width);
    attended = pd_rig_tensor(&rig, options.max_tokens, out_width);
    pinned_qkv = pd_rig_pinned(&rig, (size_t)options.max_tokens * (size_t)width * sizeof(float));
    pinned_out =
        pd_rig_pinned(&rig, (size_t)options.max_tokens * (size_t)out_width * sizeof(float));
    for (int i = 0; i < c->context; i++)
        tokens[i] = i;
    graph = pd_rig_begin(&rig);
    pd_op_embed(graph, pd_rig_input(&rig, x, c->context, width), qkv);
    pd_op_rope_store(graph, qkv, &shape, &pool, 1);
    pd_op_attention(graph, qkv, &shape, &pool, 1, attended);
    pd_op_read(graph, qkv, false, pinned_qkv);
    pd_op_read(graph, attended, false, pinned_out);
    pd_rig_end(graph);
    step = pd_rig_step(&rig, 0, tokens, c->context, 0, 0);
    for (int i = 0; i * c->block_size < c->context; i++)
        step->blocks[i] = (i * 7 + 3) % 31;
    for (int i = 0; i < c->context; i++)
        step->kv_slot[i] = step->blocks[i / c->block_size] * c->block_size + i % c->block_size;
    pd_rig_run(&rig, graph, step);
    assert_int_equal(pd_buffer_export(pool.buffer, &shared), 0);
    memory = mmap(NULL, shared.size, PROT_READ, MAP_SHARED, shared.fd, 0);
    assert_true(memory != MAP_FAILED);
    close(shared.fd);
    for (uintptr_t seed = 1; seed <= SEEDS; seed++) {
        struct pd_cuda_decode_attention arguments = {.qkv =
                                                         (const float *)pd_buffer_host(pinned_qkv) +
                                                         (size_t)(c->context - 1) * (size_t)width,
                                                     .out = out,
                                                     .pool = memory,
                                                     .first = &first,
                                                     .context = &context,
                                                     .blocks = step->blocks,
                                                     .pool_blocks = pool.blocks,
                                                     .type = types[c->type],
                                                     .sequences = 1,
                                                     .heads = c->heads,
                                                     .kv_heads = c->kv_heads,
                                                     .head_dim = c->head_dim,
                                                     .block_size = c->block_size,
                                                     .max_blocks = step->max_blocks,
                                                     .layer = 1,
                                                     .qkv_stride = width,
                                                     .window = c->window,
                                                     .scale = shape.scale};
        const float *expected = (const float *)pd_buffer_host(pinned_out) +
                                (size_t)(c->context - 1) * (size_t)out_width;

        memset(out, 0xff, (size_t)out_width * sizeof(*out));
        assert_int_equal(pd_cuda_attention_decode((void *)seed, &arguments), 0);
        assert_true(largest_difference(out, expected, (size_t)out_width) < 2e-5);
    }
    munmap(memory, shared.size);
    pd_rig_close(&rig);
    free(x);
    free(out);
}

static void attention_matches_reference(void **state)
{
    static const struct attention_case cases[] = {
        {9, 3, 64, 16, 0, 1, PD_F16},    {9, 3, 64, 16, 0, 2, PD_F16},
        {9, 3, 64, 16, 0, 77, PD_F16},   {4, 4, 64, 8, 0, 33, PD_F32},
        {8, 1, 128, 32, 0, 65, PD_BF16}, {14, 2, 64, 16, 0, 40, PD_BF16},
        {4, 2, 128, 16, 20, 70, PD_F16}, {5, 1, 64, 24, 3, 50, PD_F32},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        check_attention(&cases[i]);
}

static void unknown_shapes_are_refused(void **state)
{
    struct pd_cuda_decode_attention good = {
        .heads = 9, .kv_heads = 3, .head_dim = 64, .block_size = 16, .sequences = 0};
    struct pd_cuda_decode_attention bad = good;

    (void)state;
    assert_int_equal(pd_cuda_attention_decode(NULL, &good), 0);
    bad.sequences = 1;
    bad.head_dim = 80;
    assert_int_equal(pd_cuda_attention_decode(NULL, &bad), -1);
    bad = good;
    bad.kv_heads = 2;
    assert_int_equal(pd_cuda_attention_decode(NULL, &bad), -1);
    bad = good;
    bad.sequences = 1;
    bad.heads = 27;
    assert_int_equal(pd_cuda_attention_decode(NULL, &bad), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_matches_reference),
        cmocka_unit_test(attention_matches_reference),
        cmocka_unit_test(unknown_shapes_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
