/* Whole steps of a small transformer: every path against the reference over many shapes of
 * attention, and equality to the bit however the same tokens are divided into steps, batches and
 * threads, and of steps that were left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "t/unit/kernel_model.h"

enum { POSITIONS = 200, SEQUENCES = 4 };

static size_t floats(void)
{
    return (size_t)SEQUENCES * POSITIONS * PD_MODEL_HIDDEN;
}

static float *results(void)
{
    float *out = calloc(floats(), sizeof(*out));

    assert_non_null(out);
    return out;
}

/* Three sequences of different lengths: chunks of a prompt, then single tokens, all mixed. */
static void play(struct pd_small_model *model, float *out)
{
    static const struct pd_small_part script[][3] = {
        {{0, 0, 61}, {1, 0, 17}},
        {{0, 61, 70}, {1, 17, 1}, {2, 0, 9}},
        {{0, 131, 1}, {1, 18, 1}, {2, 9, 1}},
        {{2, 10, 33}, {0, 132, 5}, {1, 19, 1}},
        {{0, 137, 1}, {2, 43, 1}, {1, 20, 2}},
    };

    for (size_t i = 0; i < sizeof(script) / sizeof(script[0]); i++)
        pd_small_step(model, script[i], script[i][2].count > 0 ? 3 : 2, out, POSITIONS);
}

static const struct pd_small_shape shapes[] = {
    /* heads, kv_heads, head_dim, rope_dim, window, block, style, kv, weights, qk_norm, precision */
    {9, 3, 64, 64, 0, 16, PD_ROPE_INTERLEAVED, PD_F32, PD_Q4_1, false, PD_PRECISION_F32},
    {2, 2, 32, 32, 0, 8, PD_ROPE_HALF, PD_F16, PD_Q8_0, false, PD_PRECISION_F32},
    {8, 1, 16, 16, 0, 32, PD_ROPE_HALF, PD_BF16, PD_Q4_0, true, PD_PRECISION_F32},
    {4, 2, 20, 12, 0, 24, PD_ROPE_INTERLEAVED, PD_F32, PD_Q5_0, false, PD_PRECISION_F32},
    {6, 3, 80, 80, 50, 16, PD_ROPE_HALF, PD_F16, PD_F16, true, PD_PRECISION_F32},
    {5, 1, 128, 64, 200, 11, PD_ROPE_HALF, PD_F32, PD_BF16, false, PD_PRECISION_F32},
    {4, 1, 6, 6, 5, 13, PD_ROPE_INTERLEAVED, PD_BF16, PD_F32, false, PD_PRECISION_F32},
    {14, 2, 64, 64, 128, 16, PD_ROPE_HALF, PD_F32, PD_Q8_0, true, PD_PRECISION_F32},
    {6, 2, 48, 48, 0, 16, PD_ROPE_HALF, PD_F32, PD_Q4_1, false, PD_PRECISION_INT12},
    {4, 4, 32, 32, 0, 16, PD_ROPE_HALF, PD_F32, PD_Q8_0, true, PD_PRECISION_INT12},
    {9, 3, 64, 64, 0, 16, PD_ROPE_INTERLEAVED, PD_F16, PD_Q4_1, false, PD_PRECISION_INT8},
    {4, 4, 32, 32, 0, 16, PD_ROPE_HALF, PD_F32, PD_Q8_0, true, PD_PRECISION_INT8},
    {9, 3, 64, 64, 0, 16, PD_ROPE_INTERLEAVED, PD_F16, PD_Q4_1, false, PD_PRECISION_BF16},
    {4, 2, 40, 40, 50, 11, PD_ROPE_HALF, PD_F32, PD_F16, true, PD_PRECISION_BF16},
    /* attention in bf16: few rows and many, runs of dimensions that are whole and that are not */
    {9, 3, 64, 64, 0, 8, PD_ROPE_HALF, PD_F16, PD_F16, false, PD_PRECISION_INT12},
    {6, 3, 80, 80, 50, 16, PD_ROPE_HALF, PD_F16, PD_F16, true, PD_PRECISION_INT12},
    {5, 1, 128, 64, 130, 11, PD_ROPE_HALF, PD_BF16, PD_F16, false, PD_PRECISION_INT12},
    {7, 1, 20, 12, 0, 24, PD_ROPE_INTERLEAVED, PD_F32, PD_F16, false, PD_PRECISION_INT12},
    {18, 1, 32, 32, 5, 13, PD_ROPE_HALF, PD_F16, PD_F16, false, PD_PRECISION_INT12},
    {8, 2, 96, 96, 0, 32, PD_ROPE_HALF, PD_BF16, PD_F16, false, PD_PRECISION_INT12},
};

enum { SHAPES = (int)(sizeof(shapes) / sizeof(shapes[0])), TILED = SHAPES - 6 };

/* Whether a path takes a shape. Those from TILED on say something new only where attention is in bf16. */
static bool takes(const char *path, int shape)
{
    return pd_rig_has(path, shapes[shape].precision) &&
           (shape < TILED || pd_rig_has(path, PD_PRECISION_BF16));
}

static bool attends_in_bf16(const struct pd_small_model *model)
{
    struct pd_device_info info;

    pd_device_describe(model->rig.device, &info);
    return strstr(info.numerics, "attention=bf16") != NULL;
}

/* Queries, keys, values and weights have eight bits left: each is off by up to 2^-8 of itself. */
static const double BF16_ATTENTION = 5e-3;

static void test_every_path_against_the_reference(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        float *expected = results(), *out = results();
        double allowed = shapes[i].kv_type == PD_F32   ? 3e-6
                         : shapes[i].kv_type == PD_F16 ? 1e-4
                                                       : 1e-3;
        struct pd_small_model model;

        if (shapes[i].precision == PD_PRECISION_INT12) /* what differs by an ulp may round apart */
            allowed = 1e-3;
        if (shapes[i].precision == PD_PRECISION_INT8 || shapes[i].precision == PD_PRECISION_BF16)
            allowed = 1e-2;
        pd_small_open(&model, &shapes[i], "reference", NULL, 2);
        play(&model, expected);
        pd_small_close(&model);
        for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
            double error;
            bool bf16;

            if (!takes(*path, i))
                continue;
            pd_small_open(&model, &shapes[i], "cpu", *path, 2);
            bf16 = attends_in_bf16(&model);
            memset(out, 0, floats() * sizeof(*out));
            play(&model, out);
            pd_small_close(&model);
            error = pd_rig_error(out, expected, floats());
            if (!(error < (bf16 ? allowed + BF16_ATTENTION : allowed)))
                fail_msg("shape %d on %s: error %g", i, *path, error);
        }
        free(expected);
        free(out);
    }
}

/* Two paths that name the same numerics compute the same bits. */
static void check_equal_numerics(const struct pd_small_shape *shape)
{
    float *first[8] = {NULL};
    char names[8][96];
    int count = 0;

    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        struct pd_small_model model;
        struct pd_device_info info;
        float *out = results();

        pd_small_open(&model, shape, "cpu", *path, 1);
        pd_device_describe(model.rig.device, &info);
        play(&model, out);
        pd_small_close(&model);
        for (int i = 0; i < count; i++) {
            if (strcmp(names[i], info.numerics) == 0)
                assert_memory_equal(out, first[i], floats() * sizeof(*out));
        }
        snprintf(names[count], sizeof(names[count]), "%s", info.numerics);
        first[count++] = out;
    }
    for (int i = 0; i < count; i++)
        free(first[i]);
}

static void test_equal_numerics_are_equal(void **state)
{
    (void)state;
    check_equal_numerics(&shapes[0]);
    for (int i = 1; i < TILED; i++) {
        if (shapes[i].precision == PD_PRECISION_INT8 || shapes[i].precision == PD_PRECISION_INT12)
            check_equal_numerics(&shapes[i]);
    }
}

/* Feeds sequence 0's first `length` tokens in chunks of `chunk`, with `others` sequences decoding
 * beside, or fed like it. */
static void feed(struct pd_small_model *model, int length, int chunk, int others, bool alike,
                 float *out)
{
    int fed[SEQUENCES] = {0};

    while (fed[0] < length) {
        struct pd_small_part parts[SEQUENCES];
        int count = 0;

        for (int s = 0; s <= others; s++) {
            int n = s == 0 || alike ? chunk : 1 + s;

            if (s == 0 && n > length - fed[0])
                n = length - fed[0];
            if (fed[s] + n > POSITIONS)
                continue;
            parts[count++] = (struct pd_small_part){s, fed[s], n};
            fed[s] += n;
        }
        pd_small_step(model, parts, count, out, POSITIONS);
    }
}

/* Each shape takes every other way, so that all of them meet all of these. */
static void check_invariance(int shape, const char *path)
{
    static const struct {
        int chunk, others, threads, alike;
    } ways[] = {{64, 0, 1, 0},  {64, 0, 2, 0},  {1, 0, 1, 0},   {1, 0, 3, 0},
                {1, 3, 2, 0},   {37, 3, 2, 0},  {16, 1, 4, 0},  {3, 2, 2, 0},
                {190, 0, 2, 0}, {150, 3, 1, 0}, {190, 1, 2, 1}, {190, 1, 2, 1}};
    const int length = 190;
    size_t bytes = sizeof(float) * (size_t)(length * PD_MODEL_HIDDEN);
    float *expected = results(), *out = results();

    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct pd_small_model model;

        if (i > 0 && i % 2 == (size_t)shape / 2 % 2)
            continue;
        pd_small_open(&model, &shapes[shape], "cpu", path, ways[i].threads);
        feed(&model, length, ways[i].chunk, ways[i].others, ways[i].alike, i == 0 ? expected : out);
        pd_small_close(&model);
        if (i > 0 && memcmp(out, expected, bytes) != 0)
            fail_msg("%s: way %zu (chunks of %d, %d others, %d threads) differs", path, i,
                     ways[i].chunk, ways[i].others, ways[i].threads);
    }
    free(expected);
    free(out);
}

static void test_division_changes_no_bit(void **state)
{
    (void)state;
    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        for (int i = 0; i < SHAPES; i += 1 + (strcmp(*path, "baseline") == 0)) {
            if (takes(*path, i))
                check_invariance(i, *path);
        }
    }
}

/* A step of many rows, whose rows go apart on two threads, or of few: left in its first layer, and computed again, it
 * gives the same bits, and so do those behind it. */
static void check_leaving(const char *path, int shape, int rows)
{
    const struct pd_small_part first[] = {{0, 0, rows}, {1, 0, rows}}, second = {0, rows, 20};
    float *expected = results(), *out = results();
    struct pd_small_model model;
    int left = 0;

    pd_small_open(&model, &shapes[shape], "cpu", path, 2);
    pd_small_step(&model, first, 2, expected, POSITIONS);
    pd_small_step(&model, &second, 1, expected, POSITIONS);
    pd_small_close(&model);
    pd_small_open(&model, &shapes[shape], "cpu", path, 2);
    for (int i = 0; i < 10000 && left != 1; i++)
        left = pd_small_leave(&model, first, 2);
    assert_int_equal(left, 1);
    pd_small_step(&model, first, 2, out, POSITIONS);
    pd_small_step(&model, &second, 1, out, POSITIONS);
    pd_small_close(&model);
    if (memcmp(out, expected, floats() * sizeof(*out)) != 0)
        fail_msg("%s: shape %d differs after a step of %d rows was left", path, shape, 2 * rows);
    free(expected);
    free(out);
}

static void test_a_step_that_was_left_changes_no_bit(void **state)
{
    (void)state;
    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        for (int i = 0; i < SHAPES; i += 4) {
            if (!takes(*path, i))
                continue;
            check_leaving(*path, i, 30);
            check_leaving(*path, i, 150);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_path_against_the_reference),
        cmocka_unit_test(test_equal_numerics_are_equal),
        cmocka_unit_test(test_division_changes_no_bit),
        cmocka_unit_test(test_a_step_that_was_left_changes_no_bit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
