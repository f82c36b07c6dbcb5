/* Products in bf16 by tiles, to the bit: beside the definition of the instruction, spelled out one number after
 * the other, for every format, number of tokens and of blocks. Where the machine has no such tiles, nothing is
 * to be tested. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/path.h"
#include "kernels/dtype.h"
#include "t/unit/kernel_rig.h"

enum { COLUMNS_MOST = 41 * BLOCK, TOKENS_MOST = 96 };

/* ---- the definition -------------------------------------------------------------------------- */

/* What is too small for a normal float is zero. */
static float flushed(float value)
{
    return fabsf(value) < 0x1p-126f ? copysignf(0, value) : value;
}

static float nearest_even(float value)
{
    return pd_float_of_bf16(pd_bf16_of_float(flushed(value)));
}

static float upper_half(float value)
{
    return pd_float_of_bits(pd_bits_of_float(value) & 0xffff0000u);
}

/* A row's 32 numbers of block b, as tiles get them. */
static void weights_of(enum pd_dtype type, const void *row, int b, float *out)
{
    struct pd_block32 block;

    for (int k = 0; k < BLOCK && !pd_dtype_quantized(type); k++) {
        uint16_t bits = ((const uint16_t *)row)[b * BLOCK + k];

        out[k] = type == PD_F16 ? nearest_even(pd_float_of_f16(bits)) : pd_float_of_bf16(bits);
    }
    if (!pd_dtype_quantized(type))
        return;
    pd_dtype_decode(type, row, b, &block);
    for (int k = 0; k < BLOCK; k++) {
        float d = block.d[k / 16] * PD_BF16_MORE;

        if (type == PD_Q4_0)
            out[k] = upper_half(fmaf((float)(block.q[k] + 8), d, -8 * block.d[0] * PD_BF16_MORE));
        else if (pd_dtype_has_minimum(type))
            out[k] = upper_half(fmaf(block.q[k], d, block.m[0] * PD_BF16_MORE));
        else
            out[k] = upper_half((float)block.q[k] * d);
    }
}

/* sum += the block's products: even columns and odd ones apart, each from first to last. */
static float add_block(float sum, const float *w, const float *x)
{
    float even = 0, odd = 0;

    for (int k = 0; k < BLOCK; k += 2) {
        even = flushed(fmaf(flushed(w[k]), x[k], even));
        odd = flushed(fmaf(flushed(w[k + 1]), x[k + 1], odd));
    }
    return flushed(sum + flushed(even + odd));
}

static float expected(enum pd_dtype type, const void *row, int blocks, const float *x)
{
    float sum = 0;

    for (int b = 0; b < blocks; b++) {
        float w[BLOCK], rounded[BLOCK];

        weights_of(type, row, b, w);
        for (int k = 0; k < BLOCK; k++)
            rounded[k] = nearest_even(x[b * BLOCK + k]);
        sum = add_block(sum, w, rounded);
    }
    return sum;
}

/* ---- against it ------------------------------------------------------------------------------ */

/* Ordinary numbers of every size that weights leave room for, and some that are hardly numbers. */
static void fill_x(float *x, int tokens, int cols, uint64_t seed)
{
    static const float strange[] = {0,     -0.0f,  1e-40f,      -1e-39f,
                                    3e37f, -3e37f, 1.00390625f, 1.01171875f};

    for (int t = 0; t < tokens; t++) {
        for (int k = 0; k < cols; k++)
            x[t * cols + k] = ldexpf(pd_rig_normal(&seed), t % 7 == 3 ? -100 : t % 5 - 2);
        for (int k = t % 3; t % 4 == 1 && k < cols; k += 11)
            x[t * cols + k] = strange[k % 8];
    }
}

/* One weight of 40 rows, two panels; its product with some tokens from `first` on of `all`. */
static void check(enum pd_dtype type, const struct pd_cpu_weight *weight, const uint8_t *rows,
                  int blocks, int all, int first, int tokens, const float *x)
{
    size_t row_bytes =
        (size_t)(blocks * BLOCK / pd_dtype_block(type)) * (size_t)pd_dtype_bytes(type);
    size_t bytes = pd_cpu_bf16.bytes(all, blocks);
    struct pd_cpu_rounded rounded = {aligned_alloc(64, (bytes + 63) / 64 * 64), all, blocks};
    static float acc[(TOKENS_MOST + 16) * PANEL];
    const struct pd_cpu_segment *segment = weight->segments;

    assert_non_null(rounded.memory);
    for (int part = 0; part < 3; part++)
        pd_cpu_bf16.round(x, blocks * BLOCK, &rounded, part, 3);
    for (int p = 0; p < 2; p++) {
        for (size_t i = 0; i < sizeof(acc) / sizeof(acc[0]); i++)
            acc[i] = NAN;
        pd_cpu_bf16.multiply(segment->form, segment->data + (size_t)p * segment->panel_bytes, 0,
                             blocks, &rounded, first, tokens, acc);
        for (int t = 0; t < tokens; t++) {
            for (int r = 0; r < PANEL && p * PANEL + r < weight->weight.rows; r += 1 + t % 5) {
                const uint8_t *row = rows + (size_t)(p * PANEL + r) * row_bytes;
                float want = expected(type, row, blocks, x + (first + t) * blocks * BLOCK);

                if (pd_bits_of_float(acc[t * PANEL + r]) != pd_bits_of_float(want))
                    fail_msg("%s, %d blocks, token %d of %d from %d, row %d: %a, not %a",
                             pd_dtype_name(type), blocks, t, all, first, r,
                             (double)acc[t * PANEL + r], (double)want);
            }
        }
    }
    free(rounded.memory);
}

static void check_type(enum pd_dtype type, int blocks)
{
    static const struct {
        int all, first, tokens;
    } ways[] = {{1, 0, 1},   {2, 0, 2},   {7, 0, 7},   {15, 0, 15}, {16, 0, 16},
                {17, 0, 17}, {17, 16, 1}, {32, 0, 32}, {33, 0, 33}, {40, 16, 24},
                {63, 0, 63}, {96, 0, 96}, {96, 48, 48}};
    struct pd_device_options options = pd_rig_options("cpu", "auto", 1);
    int cols = blocks * BLOCK;
    void *rows = pd_rig_matrix(type, 40, cols, (uint64_t)blocks);
    struct pd_weight_source source = {rows, type, 40};
    static float x[TOKENS_MOST * COLUMNS_MOST];
    struct pd_weight *weight;
    struct pd_rig rig;

    options.precision = PD_PRECISION_BF16;
    pd_rig_open(&rig, &options);
    assert_int_equal(pd_weight_create(rig.device, PD_WEIGHT_ROWS, cols, &source, 1, false, &weight),
                     PD_KERNEL_OK);
    fill_x(x, TOKENS_MOST, cols, (uint64_t)blocks + 7);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        check(type, (const struct pd_cpu_weight *)weight, rows, blocks, ways[i].all, ways[i].first,
              ways[i].tokens, x);
    pd_rig_close(&rig);
    free(rows);
}

static void test_products_are_the_definition(void **state)
{
    static const enum pd_dtype types[] = {PD_F16,  PD_BF16, PD_Q4_0, PD_Q4_1,
                                          PD_Q5_0, PD_Q8_0, PD_Q4_K, PD_Q6_K};
    static const int blocks[] = {1, 3, 18, 19, 40}; /* up to two stretches and more */

    (void)state;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        for (size_t j = 0; j < sizeof(blocks) / sizeof(blocks[0]); j++) {
            if (pd_dtype_block(types[i]) <= BLOCK || blocks[j] % 8 == 0)
                check_type(types[i], blocks[j]);
        }
    }
}

/* A number that is none in x makes every result of its token one, and no other token's. */
static void test_nan_stays_in_its_token(void **state)
{
    static const float strange[] = {NAN, INFINITY, -INFINITY};
    enum { ALL = 35, BLOCKS = 3 };
    struct pd_device_options options = pd_rig_options("cpu", "auto", 1);
    void *rows = pd_rig_matrix(PD_Q4_1, PANEL, BLOCKS * BLOCK, 4);
    struct pd_weight_source source = {rows, PD_Q4_1, PANEL};
    float x[ALL * BLOCKS * BLOCK], acc[(ALL + 16) * PANEL];
    struct pd_weight *weight;
    struct pd_rig rig;

    (void)state;
    options.precision = PD_PRECISION_BF16;
    pd_rig_open(&rig, &options);
    assert_int_equal(
        pd_weight_create(rig.device, PD_WEIGHT_ROWS, BLOCKS * BLOCK, &source, 1, false, &weight),
        PD_KERNEL_OK);
    for (int i = 0; i < 3; i++) {
        const struct pd_cpu_segment *segment = ((struct pd_cpu_weight *)weight)->segments;
        struct pd_cpu_rounded rounded = {aligned_alloc(64, pd_cpu_bf16.bytes(ALL, BLOCKS)), ALL,
                                         BLOCKS};

        assert_non_null(rounded.memory);
        pd_rig_fill(x, ALL * BLOCKS * BLOCK, 1, 8);
        x[6 * BLOCKS * BLOCK + 40] = strange[i];
        pd_cpu_bf16.round(x, BLOCKS * BLOCK, &rounded, 0, 1);
        pd_cpu_bf16.multiply(segment->form, segment->data, 0, BLOCKS, &rounded, 0, ALL, acc);
        for (int j = 0; j < ALL * PANEL; j++)
            assert_true(!isfinite(acc[j]) == (j / PANEL == 6));
        free(rounded.memory);
    }
    pd_rig_close(&rig);
    free(rows);
}

/* A scale that is no number is not lost in rounding, whatever its bits. */
static void test_scales_that_are_no_numbers(void **state)
{
    static const uint16_t scales[] = {0x7c01, 0x7e00, 0x7fff, 0xfc01, 0xffff, 0x7c00, 0xfc00};
    static const enum pd_dtype types[] = {PD_Q4_0, PD_Q4_1, PD_Q8_0};

    (void)state;
    for (size_t i = 0; i < 3 * sizeof(scales) / sizeof(scales[0]); i++) {
        struct pd_device_options options = pd_rig_options("cpu", "auto", 1);
        enum pd_dtype type = types[i % 3];
        uint8_t *rows = pd_rig_matrix(type, PANEL, BLOCK, i);
        struct pd_weight_source source = {rows, type, PANEL};
        struct pd_cpu_rounded rounded = {aligned_alloc(64, 64), 1, 1};
        float x[BLOCK], acc[16 * PANEL];
        struct pd_weight *weight;
        struct pd_rig rig;

        memcpy(rows + 5 * pd_dtype_bytes(type), &scales[i / 3], 2);
        options.precision = PD_PRECISION_BF16;
        pd_rig_open(&rig, &options);
        assert_int_equal(
            pd_weight_create(rig.device, PD_WEIGHT_ROWS, BLOCK, &source, 1, false, &weight),
            PD_KERNEL_OK);
        pd_rig_fill(x, BLOCK, 1, 8);
        assert_non_null(rounded.memory);
        pd_cpu_bf16.round(x, BLOCK, &rounded, 0, 1);
        pd_cpu_bf16.multiply(((struct pd_cpu_weight *)weight)->segments->form,
                             ((struct pd_cpu_weight *)weight)->segments->data, 0, 1, &rounded, 0, 1,
                             acc);
        for (int r = 0; r < PANEL; r++)
            assert_true(!isfinite(acc[r]) == (r == 5));
        pd_rig_close(&rig);
        free(rounded.memory);
        free(rows);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_are_the_definition),
        cmocka_unit_test(test_nan_stays_in_its_token),
        cmocka_unit_test(test_scales_that_are_no_numbers),
    };

    if (!pd_rig_has("auto", PD_PRECISION_BF16))
        return 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
