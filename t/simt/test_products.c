/* Own products on the host, straight through their launchers: the kernel with one order for every
 * number of tokens, and the one for few. Integers are exact in every order, so a wrong place shows at
 * once; random numbers show whether an order stays what it is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/cuda.h"
#include "kernels/dtype.h"
#include "t/unit/kernel_rig.h"

enum { ALIGNED = 64 };

static const struct pd_cuda_slices WHOLE = {1, 0};

struct shape {
    int rows, cols, tokens, stride;
    bool bf16, accumulate;
};

static void *room(size_t bytes)
{
    void *memory = aligned_alloc(ALIGNED, (bytes + ALIGNED - 1) / ALIGNED * ALIGNED);

    assert_non_null(memory);
    memset(memory, 0, bytes);
    return memory;
}

/* -4 .. 4, or anything. */
static uint16_t *operand(size_t count, bool bf16, bool integers, uint64_t seed)
{
    uint16_t *values = room(2 * count);
    uint64_t state = seed + (pd_rig_seed << 32);

    for (size_t i = 0; i < count; i++) {
        float value =
            integers ? (float)(int)(pd_rig_random(&state) % 9) - 4 : pd_rig_normal(&state);

        values[i] = bf16 ? pd_bf16_of_float(value) : pd_f16_of_float(value);
    }
    return values;
}

static float wide(bool bf16, uint16_t value)
{
    return bf16 ? pd_float_of_bf16(value) : pd_float_of_f16(value);
}

/* Between the rows of out lie numbers that must stay. */
static float *outputs(const struct shape *shape)
{
    size_t count = (size_t)shape->tokens * (size_t)shape->stride;
    float *out = room(sizeof(float) * count);

    for (size_t i = 0; i < count; i++)
        out[i] = (float)(i % 7);
    return out;
}

static void check_fixed(const struct shape *shape, uintptr_t seed)
{
    size_t cols = (size_t)shape->cols;
    uint16_t *weight = operand((size_t)shape->rows * cols, shape->bf16, true, 11 * seed);
    uint16_t *x = operand((size_t)shape->tokens * cols, shape->bf16, true, 13 * seed);
    float *out = outputs(shape);

    assert_int_equal(pd_cuda_matmul_fixed((void *)seed, shape->bf16, weight, x, shape->rows,
                                          shape->cols, shape->tokens, WHOLE, shape->accumulate,
                                          shape->stride, out),
                     0);
    for (int t = 0; t < shape->tokens; t++) {
        for (int r = 0; r < shape->stride; r++) {
            size_t at = (size_t)t * (size_t)shape->stride + (size_t)r;
            float expected = r >= shape->rows || shape->accumulate ? (float)(at % 7) : 0;

            for (size_t k = 0; r < shape->rows && k < cols; k++)
                expected += wide(shape->bf16, weight[(size_t)r * cols + k]) *
                            wide(shape->bf16, x[(size_t)t * cols + k]);
            if (out[at] != expected)
                fail_msg("%d x %d of %d tokens: row %d of token %d is %g, not %g", shape->rows,
                         shape->cols, shape->tokens, r, t, (double)out[at], (double)expected);
        }
    }
    free(weight);
    free(x);
    free(out);
}

static void test_every_edge_of_a_tile(void **state)
{
    static const struct shape shapes[] = {
        {1, 8, 1, 1, false, false},      {64, 32, 16, 64, false, false},
        {65, 40, 16, 70, false, true},   {100, 136, 3, 100, true, false},
        {63, 160, 17, 64, true, true},   {130, 72, 129, 131, false, false},
        {128, 96, 40, 128, false, true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        check_fixed(&shapes[i], i + 1);
}

/* The same token, last of so many. */
static void test_bits_do_not_depend_on_the_batch(void **state)
{
    enum { ROWS = 24, COLS = 200, MOST = 20 };
    static const int tokens[] = {1, 2, 16, 17, MOST};
    uint16_t *weight = operand(ROWS * COLS, false, false, 3);
    uint16_t *x = operand((size_t)MOST * COLS, false, false, 4);
    float first[ROWS], *out = room(sizeof(float) * MOST * ROWS);

    (void)state;
    for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) {
        const uint16_t *last = x + (size_t)(MOST - tokens[i]) * COLS;

        assert_int_equal(pd_cuda_matmul_fixed((void *)5, false, weight, last, ROWS, COLS, tokens[i],
                                              WHOLE, false, ROWS, out),
                         0);
        if (i == 0)
            memcpy(first, out, sizeof(first));
        assert_memory_equal(out + (tokens[i] - 1) * ROWS, first, sizeof(first));
    }
    free(weight);
    free(x);
    free(out);
}

static void test_small_products_keep_their_order(void **state)
{
    enum { ROWS = 21, COLS = 616 };
    float *weight = room(sizeof(float) * ROWS * COLS), *out = room(sizeof(float) * 8 * ROWS);
    float *x = room(sizeof(float) * 8 * COLS), first[ROWS];
    struct pd_cuda_matrix matrix = {weight, NULL, PD_CUDA_F32, ROWS, COLS};

    (void)state;
    pd_rig_fill(weight, ROWS * COLS, 1, 5);
    pd_rig_fill(x, 8 * COLS, 1, 6);
    for (int tokens = 1; tokens <= PD_CUDA_SMALL; tokens++) {
        assert_int_equal(pd_cuda_matmul_small((void *)7, &matrix, x + (8 - tokens) * COLS, NULL,
                                              false, tokens, WHOLE, ROWS, out),
                         0);
        if (tokens == 1)
            memcpy(first, out, sizeof(first));
        assert_memory_equal(out + (tokens - 1) * ROWS, first, sizeof(first));
    }
    free(weight);
    free(x);
    free(out);
}

/* Every slice is the product of its columns alone, to the bit, and they are added in a balanced tree. */
static void test_slices_are_products_of_their_own(void **state)
{
    enum {
        ROWS = 70,
        COLS = 256,
        TOKENS = 21,
        SLICES = 4,
        WIDTH = COLS / SLICES,
        ALL = ROWS * TOKENS
    };
    const struct pd_cuda_slices slices = {SLICES, ALL};
    uint16_t *weight = operand(ROWS * COLS, false, false, 8),
             *x = operand(TOKENS * COLS, false, false, 9);
    uint16_t *own_weight = room(ROWS * WIDTH * 2), *own_x = room(TOKENS * WIDTH * 2);
    float *sums = room(sizeof(float) * SLICES * ALL), *out = room(sizeof(float) * ALL);
    float *own = room(sizeof(float) * ALL);

    (void)state;
    assert_int_equal(pd_cuda_matmul_fixed((void *)3, false, weight, x, ROWS, COLS, TOKENS, slices,
                                          false, ROWS, sums),
                     0);
    for (int s = 0; s < SLICES; s++) {
        for (int r = 0; r < ROWS; r++)
            memcpy(own_weight + r * WIDTH, weight + r * COLS + s * WIDTH, WIDTH * 2);
        for (int t = 0; t < TOKENS; t++)
            memcpy(own_x + t * WIDTH, x + t * COLS + s * WIDTH, WIDTH * 2);
        assert_int_equal(pd_cuda_matmul_fixed((void *)4, false, own_weight, own_x, ROWS, WIDTH,
                                              TOKENS, WHOLE, false, ROWS, own),
                         0);
        assert_memory_equal(sums + s * ALL, own, sizeof(float) * ALL);
    }
    for (int add = 0; add < 2; add++) {
        for (int i = 0; i < ALL; i++)
            out[i] = (float)i;
        assert_int_equal(pd_cuda_add_slices((void *)5, sums, SLICES, ALL, add, out), 0);
        for (int i = 0; i < ALL; i++) {
            float tree = (sums[i] + sums[ALL + i]) + (sums[2 * ALL + i] + sums[3 * ALL + i]);

            assert_true(out[i] == (add ? (float)i + tree : tree));
        }
    }
    free(weight);
    free(x);
    free(own_weight);
    free(own_x);
    free(sums);
    free(out);
    free(own);
}

static void test_slices_that_do_not_divide_are_refused(void **state)
{
    static const struct {
        int cols, slices;
    } wrong[] = {{96, 2}, {256, 0}, {256, 16}, {256, -1}};
    struct pd_cuda_matrix matrix = {NULL, NULL, PD_CUDA_F32, 1, 0};

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const struct pd_cuda_slices slices = {wrong[i].slices, 1};

        matrix.cols = wrong[i].cols;
        assert_int_equal(pd_cuda_matmul_fixed((void *)1, false, NULL, NULL, 1, wrong[i].cols, 1,
                                              slices, false, 1, NULL),
                         -1);
        assert_int_equal(
            pd_cuda_matmul_small((void *)1, &matrix, NULL, NULL, false, 1, slices, 1, NULL), -1);
        assert_int_equal(pd_cuda_add_slices((void *)1, NULL,
                                            wrong[i].slices == 2 ? 9 : wrong[i].slices, 1, false,
                                            NULL),
                         -1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_edge_of_a_tile),
        cmocka_unit_test(test_bits_do_not_depend_on_the_batch),
        cmocka_unit_test(test_small_products_keep_their_order),
        cmocka_unit_test(test_slices_are_products_of_their_own),
        cmocka_unit_test(test_slices_that_do_not_divide_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
