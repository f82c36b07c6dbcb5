/* The attention kernels on the host against the plain reference backend: every width, group, block
 * size and type of pool that they tell apart, contexts of several splits, windows, and steps that
 * mix chunks of prompts with single rows. And whether a row has the same bits however its step is
 * made up, where the device is to be deterministic. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "t/unit/kernel_rig.h"

enum { SEQUENCES = 3, CONTEXT = 640, ROWS = 96 };

/* One layer's attention over a pool that earlier steps have filled. */
struct scene {
    int heads, kv_heads, head_dim, block_size, window;
    enum pd_dtype type;
    int context[SEQUENCES]; /* tokens in the cache after the step; 0: not in the step */
    int length[SEQUENCES];  /* of these, the step's own rows */
};

struct stage {
    struct pd_rig rig;
    struct pd_kv_pool pool;
    struct pd_attention_shape shape;
    struct pd_tensor qkv, out;
    struct pd_buffer *pinned;
    struct pd_graph *graph;
    float frequencies[128];
    int columns, width; /* of qkv, of out */
};

/* Q, K and V of token `position` of a sequence. */
static void token_values(const struct stage *stage, int sequence, int position, float *out)
{
    pd_rig_fill(out, (size_t)stage->columns, 1, (uint64_t)(1 + sequence * CONTEXT + position));
}

static void open_stage(struct stage *stage, const struct scene *scene, const char *kind,
                       bool deterministic)
{
    struct pd_device_options options = pd_rig_options(kind, NULL, 1);
    const struct pd_kv_pool pool = {.layers = 2,
                                    .kv_heads = scene->kv_heads,
                                    .block_size = scene->block_size,
                                    .head_dim = scene->head_dim,
                                    .blocks = SEQUENCES * (CONTEXT / 8 + 1) + 7,
                                    .type = scene->type};
    const struct pd_attention_shape shape = {.heads = scene->heads,
                                             .kv_heads = scene->kv_heads,
                                             .head_dim = scene->head_dim,
                                             .rope_dim = scene->head_dim,
                                             .rope_style = PD_ROPE_HALF,
                                             .inverse_frequency = stage->frequencies,
                                             .attention_factor = 1,
                                             .scale = 0.11f,
                                             .window = scene->window};

    options.block_size = scene->block_size;
    options.max_model_len = CONTEXT;
    options.max_tokens = ROWS;
    options.vocabulary = ROWS;
    options.deterministic = deterministic;
    memset(stage, 0, sizeof(*stage));
    pd_rig_open(&stage->rig, &options);
    stage->pool = pool;
    stage->shape = shape;
    stage->columns = (scene->heads + 2 * scene->kv_heads) * scene->head_dim;
    stage->width = scene->heads * scene->head_dim;
    assert_int_equal(pd_buffer_create(stage->rig.device, PD_BUFFER_KV, pd_kv_pool_bytes(&pool),
                                      &stage->pool.buffer),
                     PD_KERNEL_OK);
    stage->qkv = pd_rig_tensor(&stage->rig, ROWS, stage->columns);
    stage->out = pd_rig_tensor(&stage->rig, ROWS, stage->width);
    stage->pinned = pd_rig_pinned(&stage->rig, sizeof(float) * (size_t)(ROWS * stage->width));
}

/* Blocks of a sequence lie apart, and backwards. */
static int block_of(const struct stage *stage, int sequence, int index)
{
    return (int)stage->pool.blocks - 1 - (index * SEQUENCES + sequence);
}

static void fill_sequence(const struct stage *stage, struct pd_step *step, int sequence,
                          int position, int count)
{
    int s = step->sequences++, size = stage->pool.block_size;

    step->slot[s] = sequence;
    step->first[s] = step->tokens;
    step->length[s] = count;
    step->context[s] = position + count;
    for (int i = 0; i * size < position + count; i++)
        step->blocks[s * step->max_blocks + i] = block_of(stage, sequence, i);
    for (int i = 0; i < count; i++) {
        int row = step->tokens++, at = position + i;

        step->token[row] = row;
        step->position[row] = at;
        step->sequence[row] = s;
        step->kv_slot[row] = block_of(stage, sequence, at / size) * size + at % size;
    }
}

/* One step: rows count[s] of each sequence from position[s] on. The outputs go to `out`, if any. */
static void run_step(struct stage *stage, const int *position, const int *count, bool attend,
                     float *out)
{
    float *values = malloc(sizeof(float) * (size_t)(ROWS * stage->columns));
    struct pd_graph *graph;
    struct pd_step *step;
    int rows = 0;

    for (int s = 0; s < SEQUENCES; s++)
        for (int i = 0; i < count[s]; i++)
            token_values(stage, s, position[s] + i, values + stage->columns * rows++);
    graph = pd_rig_begin(&stage->rig);
    pd_op_embed(graph, pd_rig_input(&stage->rig, values, rows, stage->columns), stage->qkv);
    pd_op_rope_store(graph, stage->qkv, &stage->shape, &stage->pool, 1);
    if (attend) {
        pd_op_attention(graph, stage->qkv, &stage->shape, &stage->pool, 1, stage->out);
        pd_op_read(graph, stage->out, false, stage->pinned);
    }
    pd_rig_end(graph);
    assert_int_equal(pd_step_acquire(stage->rig.device, &step), PD_KERNEL_OK);
    for (int s = 0; s < SEQUENCES; s++)
        if (count[s] > 0)
            fill_sequence(stage, step, s, position[s], count[s]);
    pd_rig_run(&stage->rig, graph, step);
    if (out != NULL)
        memcpy(out, pd_buffer_host(stage->pinned), sizeof(float) * (size_t)(rows * stage->width));
    free(values);
}

/* Fills the cache up to the step, then runs it. Gives the number of its rows. */
static int play(struct stage *stage, const struct scene *scene, float *out)
{
    int rows = 0, position[SEQUENCES];

    for (int s = 0; s < SEQUENCES; s++) {
        int before = scene->context[s] - scene->length[s];

        for (int at = 0; at < before; at += ROWS) {
            int count[SEQUENCES] = {0}, from[SEQUENCES] = {0};

            count[s] = before - at < ROWS ? before - at : ROWS;
            from[s] = at;
            run_step(stage, from, count, false, NULL);
        }
        position[s] = before;
        rows += scene->length[s];
    }
    run_step(stage, position, scene->length, true, out);
    return rows;
}

static void check_scene(const struct scene *scene)
{
    size_t most = sizeof(float) * (size_t)(ROWS * scene->heads * scene->head_dim);
    float *expected = malloc(most), *out = malloc(most);
    struct stage stage;
    double error;
    int rows;

    open_stage(&stage, scene, "reference", false);
    rows = play(&stage, scene, expected);
    pd_rig_close(&stage.rig);
    open_stage(&stage, scene, "cuda", false);
    play(&stage, scene, out);
    pd_rig_close(&stage.rig);
    error = pd_rig_error(out, expected, (size_t)(rows * scene->heads * scene->head_dim));
    /* Queries and weights are rounded as the pool is: 11 bits, or 8. */
    if (!(error < (scene->type == PD_F32 ? 1e-5 : scene->type == PD_F16 ? 1e-3 : 6e-3)))
        fail_msg("%d of %d heads of %d, blocks of %d, window %d, contexts %d %d %d: error %g",
                 scene->heads, scene->kv_heads, scene->head_dim, scene->block_size, scene->window,
                 scene->context[0], scene->context[1], scene->context[2], error);
    free(expected);
    free(out);
}

static const struct scene scenes[] = {
    /* heads, kv_heads, dim, block, window, type, contexts, of these in the step */
    {3, 1, 64, 16, 0, PD_F16, {70, 1, 40}, {70, 1, 1}},
    {4, 2, 64, 8, 0, PD_F16, {300, 257, 17}, {1, 1, 1}},
    {7, 1, 128, 16, 0, PD_F16, {530, 256, 90}, {1, 1, 20}},
    {16, 1, 32, 32, 0, PD_BF16, {129, 64, 65}, {5, 1, 2}},
    {2, 2, 96, 11, 0, PD_F16, {75, 33, 12}, {11, 1, 12}},
    {4, 1, 256, 13, 0, PD_BF16, {290, 40, 31}, {1, 9, 31}},
    {6, 2, 64, 24, 33, PD_F16, {310, 34, 100}, {1, 34, 40}},
    {2, 1, 128, 16, 300, PD_BF16, {600, 520, 301}, {1, 7, 1}},
    {4, 2, 64, 16, 20, PD_F32, {90, 21, 5}, {12, 1, 5}},
    {64, 64, 32, 16, 0, PD_F16, {600, 5, 1}, {1, 1, 1}}, /* a block has several splits */
};

static void test_every_shape(void **state)
{
    const char *only = getenv("PD_SIMT_SHAPES"); /* the first so many: under a sanitizer */
    size_t most = only != NULL ? (size_t)atoi(only) : sizeof(scenes) / sizeof(scenes[0]);

    (void)state;
    for (size_t i = 0; i < most; i++) {
        char seed[24];

        snprintf(seed, sizeof(seed), "%zu", i + 1);
        setenv("PD_SIMT_SEED", seed, 1);
        check_scene(&scenes[i]);
    }
}

/* The last row of a prompt: alone, in a chunk, beside others. */
static void test_a_row_has_the_same_bits_in_every_step(void **state)
{
    static const struct scene ways[] = {
        {6, 2, 64, 16, 0, PD_F16, {150, 0, 0}, {1, 0, 0}},
        {6, 2, 64, 16, 0, PD_F16, {150, 0, 0}, {37, 0, 0}},
        {6, 2, 64, 16, 0, PD_F16, {150, 20, 7}, {3, 20, 1}},
    };
    enum { WIDTH = 6 * 64 };
    float *out = malloc(sizeof(float) * ROWS * WIDTH);
    float first[WIDTH];

    (void)state;
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct stage stage;

        open_stage(&stage, &ways[i], "cuda", true);
        play(&stage, &ways[i], out);
        pd_rig_close(&stage.rig);
        if (i == 0)
            memcpy(first, out, sizeof(first));
        assert_memory_equal(out + (ways[i].length[0] - 1) * WIDTH, first, sizeof(first));
    }
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_shape),
        cmocka_unit_test(test_a_row_has_the_same_bits_in_every_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
