/* The integer kernels of every instruction set: rounding and products to the bit, and what is not a number. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/path.h"
#include "kernels/dtype.h"
#include "t/unit/kernel_rig.h"

enum bits { INT8, INT12 };

static const char *const names[] = {"int8", "int12"};

static const struct {
    const char *path;
    const struct pd_cpu_narrow *kernels[2];
} tables[] = {
    {"baseline", {&pd_cpu_int8_baseline, &pd_cpu_int12_baseline}},
    {"avx2", {&pd_cpu_int8_avx2, &pd_cpu_int12_avx2}},
    {"avx512", {&pd_cpu_int8_avx512, &pd_cpu_int12_avx512}},
    {"vnni", {&pd_cpu_int8_vnni, &pd_cpu_int12_vnni}},
    {"bf16", {&pd_cpu_int8_vnni, &pd_cpu_int12_vnni}},
    {"amx", {&pd_cpu_int8_vnni, &pd_cpu_int12_amx}},
};

/* The table of a path that this machine can run. */
static const struct pd_cpu_narrow *table(const char *path, enum bits bits)
{
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        if (strcmp(tables[i].path, path) == 0)
            return tables[i].kernels[bits];
    }
    fail_msg("no table of %s", path);
    return NULL;
}

/* ---- rounding -------------------------------------------------------------------------------- */

/* Where a test keeps rounded x: `tokens` rows of `blocks`. */
static struct pd_cpu_rounded make_rounded(enum bits bits, int tokens, int blocks)
{
    size_t bytes = table("baseline", bits)->bytes(tokens, blocks);
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);

    assert_non_null(memory);
    return (struct pd_cpu_rounded){memory, tokens, blocks};
}

static void check_line(const char *path, const int16_t q[BLOCK], float d, int offset,
                       const int got[BLOCK], const struct pd_cpu_scale *scale)
{
    int sums[2] = {0, 0};

    for (int k = 0; k < BLOCK; k++) {
        if (got[k] != q[k])
            fail_msg("%s: column %d becomes %d, not %d", path, k, got[k], q[k]);
        sums[k / (BLOCK / 2)] += q[k];
    }
    assert_true(isnan(d) ? isnan(scale->d) && isnan(scale->sum)
                         : scale->d == d && scale->sum == d * (float)(sums[0] + sums[1]));
    assert_int_equal(scale->offset[0], offset * sums[0]);
    assert_int_equal(scale->offset[1], offset * sums[1]);
}

/* Column k of eight words of bytes. */
static int column(const int32_t *line, int k)
{
    return ((const int8_t *)line)[k / 8 * 8 + k % 2 * 4 + k % 8 / 2];
}

static void check_rounded12(const char *path, const struct pd_cpu_rounded *out, size_t at,
                            const float *x)
{
    const struct pd_cpu_line *line = pd_cpu_lines(out) + at;
    int16_t q[BLOCK];
    float d = pd_quantize32(x, PD_QUANTIZE_INT12, q);
    int got[BLOCK];

    for (int k = 0; k < BLOCK; k++)
        got[k] = 16 * column(line->high, k) + column(line->low, k);
    check_line(path, q, d, -8, got, pd_cpu_scales(out) + at);
}

static void check_bytes(const char *path, const struct pd_cpu_bytes *bytes, int second, size_t at,
                        const int16_t q[BLOCK], float d)
{
    int got[BLOCK];

    for (int k = 0; k < BLOCK; k++)
        got[k] = column(bytes->lines[second][at].words, k);
    check_line(path, q, d, -128, got, bytes->scales[second] + at);
}

static void check_rounded8(const char *path, const struct pd_cpu_rounded *out, size_t at,
                           const float *x)
{
    struct pd_cpu_bytes bytes = pd_cpu_bytes(out);
    int16_t q[BLOCK];
    float rest[BLOCK], d = pd_quantize32(x, PD_QUANTIZE_INT8, q);
    bool again = pd_quantize_again(x, d, q, rest);

    check_bytes(path, &bytes, 0, at, q, d);
    assert_int_equal(bytes.again[at], again);
    if (!again)
        return;
    d = pd_quantize32(rest, PD_QUANTIZE_INT8, q);
    check_bytes(path, &bytes, 1, at, q, d);
}

/* Ordinary numbers of every size, exact ties, and blocks with something strange in them. */
static void fill_block(float *x, int kind, uint64_t *random)
{
    static const float strange[] = {NAN, -NAN, INFINITY, -INFINITY, 1e-40f, -0.0f, 3e38f, -3e38f};

    for (int k = 0; k < BLOCK; k++)
        x[k] = ldexpf(pd_rig_normal(random), kind % 300 - 155);
    if (kind % 5 == 0) {
        for (int k = 0; k < BLOCK; k++)
            x[k] = ((float)(pd_rig_random(random) % 4077) - 2038) * 0.5f;
        x[kind % BLOCK] = kind % 10 ? PD_QUANTIZE_INT12 : PD_QUANTIZE_INT8 * 16;
    }
    if (kind % 7 == 0)
        x[kind / 7 % BLOCK] = strange[kind / 7 % 8];
    if (kind % 11 == 0)
        x[kind / 11 % BLOCK] *= 30; /* stands out */
    if (kind % 31 == 0)
        memset(x, 0, BLOCK * sizeof(*x));
}

static void check_rounding(enum bits bits, const float *x, int rows, int blocks)
{
    enum { PARTS = 4 };
    struct pd_cpu_rounded out = make_rounded(bits, rows, blocks);

    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        memset(out.memory, 1, table(*path, bits)->bytes(rows, blocks));
        for (int part = 0; part < PARTS; part++)
            table(*path, bits)->round(x, blocks * BLOCK, &out, part, PARTS);
        for (int i = 0; i < rows * blocks; i++) {
            const float *from = x + (i % rows * blocks + i / rows) * BLOCK;

            (bits == INT8 ? check_rounded8 : check_rounded12)(*path, &out, (size_t)i, from);
        }
    }
    free(out.memory);
}

static void test_rounding_is_the_definition(void **state)
{
    enum { ROWS = 30, BLOCKS = 40 };
    float *x = malloc(ROWS * BLOCKS * BLOCK * sizeof(*x));
    uint64_t random = 5;

    (void)state;
    assert_non_null(x);
    for (int b = 0; b < ROWS * BLOCKS; b++)
        fill_block(x + b * BLOCK, b, &random);
    check_rounding(INT8, x, ROWS, BLOCKS);
    check_rounding(INT12, x, ROWS, BLOCKS);
    free(x);
}

/* What the definition itself promises. */
static void check_near(const float x[BLOCK], int most)
{
    float greatest = 0, d;
    int16_t q[BLOCK];

    for (int k = 0; k < BLOCK; k++)
        greatest = fmaxf(greatest, fabsf(x[k]));
    d = pd_quantize32(x, most, q);
    assert_true(fabs((double)d * most - greatest) <= 1e-6 * greatest);
    for (int k = 0; k < BLOCK; k++)
        assert_true(fabs((double)d * q[k] - x[k]) <= 0.501 * d);
}

/* A second line makes 15 bits of 8, and comes where the squares are few for the greatest of them. */
static void check_near_again(const float x[BLOCK], int *again)
{
    float rest[BLOCK], d, d_rest;
    int16_t q[BLOCK], q_rest[BLOCK];
    double squares = 0, greatest = 0;

    for (int k = 0; k < BLOCK; k++) {
        squares += (double)x[k] * x[k];
        greatest = fmax(greatest, fabs((double)x[k]));
    }
    d = pd_quantize32(x, PD_QUANTIZE_INT8, q);
    if (!pd_quantize_again(x, d, q, rest)) {
        assert_true(sqrt(squares / BLOCK) > 0.24 * greatest);
        return;
    }
    assert_true(sqrt(squares / BLOCK) < 0.26 * greatest);
    d_rest = pd_quantize32(rest, PD_QUANTIZE_INT8, q_rest);
    assert_true(d_rest <= d / 253);
    for (int k = 0; k < BLOCK; k++)
        assert_true(fabs((double)d * q[k] + (double)d_rest * q_rest[k] - x[k]) <= 0.51 * d / 253);
    ++*again;
}

static void test_rounded_numbers_are_near(void **state)
{
    uint64_t random = 6;
    int again = 0;

    (void)state;
    for (int kind = 100; kind < 250; kind++) {
        float x[BLOCK];

        for (int k = 0; k < BLOCK; k++)
            x[k] = ldexpf(pd_rig_normal(&random), kind - 155);
        if (kind % 2)
            x[kind % BLOCK] *= 8;
        check_near(x, PD_QUANTIZE_INT8);
        check_near(x, PD_QUANTIZE_INT12);
        check_near_again(x, &again);
    }
    assert_in_range(again, 20, 130);
}

/* ---- products -------------------------------------------------------------------------------- */

static const enum pd_form forms[] = {PD_FORM_N4, PD_FORM_N4F, PD_FORM_I8, PD_FORM_I8F};

enum {
    PRODUCT_BLOCKS = 3,
    PRODUCT_TOKENS = 71,
    PRODUCT_ROOM = 80, /* whole tiles */
    COLUMNS = PRODUCT_BLOCKS * BLOCK
};

/* Any bytes where integers are, extremes among them; scales that are numbers. */
static uint8_t *random_panel(enum pd_form form, uint64_t *random)
{
    size_t size = pd_form_bytes(form);
    int integers = PANEL * BLOCK / (form == PD_FORM_N4 || form == PD_FORM_N4F ? 2 : 1);
    uint8_t *panel = aligned_alloc(64, (PRODUCT_BLOCKS * size + 4096 + 63) / 64 * 64);

    assert_non_null(panel);
    for (int b = 0; b < PRODUCT_BLOCKS; b++) {
        uint8_t *at = panel + (size_t)b * size;
        int scales = (int)size - integers;

        for (size_t i = 0; i < size; i++)
            at[i] = pd_rig_random(random) % 4 == 0 ? 255 : (uint8_t)pd_rig_random(random);
        for (int i = 0; i < scales; i += form == PD_FORM_N4 || form == PD_FORM_I8 ? 2 : 4) {
            float value = 0.01f * pd_rig_normal(random);
            uint16_t half = pd_f16_of_float(value);

            if (form == PD_FORM_N4 || form == PD_FORM_I8)
                memcpy(at + i, &half, 2);
            else
                memcpy(at + i, &value, 4);
        }
    }
    return panel;
}

/* Row t of x: some are small, and in some blocks of most a number stands out. */
static void fill_row(float *rows, int t, uint64_t seed)
{
    float *row = rows + t * COLUMNS;

    pd_rig_fill(row, COLUMNS, t % 5 == 0 ? 1e-3f : 1, seed + (uint64_t)t);
    for (int b = 0; b < PRODUCT_BLOCKS; b++) {
        if ((t >> b) % 2)
            row[b * BLOCK + t % BLOCK] *= 50;
    }
}

/* acc after a panel, for the first `tokens` of x. */
static void product(const struct pd_cpu_narrow *kernels, enum pd_form form, const uint8_t *panel,
                    const struct pd_cpu_rounded *x, int tokens, float *acc)
{
    for (int i = 0; i < tokens * PANEL; i++)
        acc[i] = (float)(i % PANEL);
    kernels->multiply(form, panel, 0, PRODUCT_BLOCKS, x, 0, tokens, acc);
}

static bool fused(const char *path)
{
    return strcmp(path, "baseline") != 0;
}

/* x as its rounding has it. */
static void rounded_row(enum bits bits, const float *x, double *out)
{
    for (int b = 0; b < PRODUCT_BLOCKS; b++, x += BLOCK, out += BLOCK) {
        int16_t q[BLOCK], q_rest[BLOCK] = {0};
        float rest[BLOCK],
            d = pd_quantize32(x, bits == INT8 ? PD_QUANTIZE_INT8 : PD_QUANTIZE_INT12, q),
            d_rest = 0;

        if (bits == INT8 && pd_quantize_again(x, d, q, rest))
            d_rest = pd_quantize32(rest, PD_QUANTIZE_INT8, q_rest);
        for (int k = 0; k < BLOCK; k++)
            out[k] = (double)d * q[k] + (double)d_rest * q_rest[k];
    }
}

/* Row r, column k of a panel of form N4. */
static double n4_weight(const uint8_t *panel, int r, int k)
{
    const uint8_t *block = panel + (size_t)(k / BLOCK) * pd_form_bytes(PD_FORM_N4);
    const uint16_t *scales = (const uint16_t *)block;
    uint32_t word = ((const uint32_t *)(block + 4 * PANEL))[k % BLOCK / 8 * PANEL + r];

    return (double)pd_float_of_f16(scales[r]) * (word >> 4 * (k % 8) & 15) +
           (double)pd_float_of_f16(scales[PANEL + r]);
}

static void check_n4(enum bits bits, const uint8_t *panel, const float *rows, const float *acc)
{
    for (int t = 0; t < PRODUCT_TOKENS; t++) {
        double x[COLUMNS];

        rounded_row(bits, rows + t * COLUMNS, x);
        for (int r = 0; r < PANEL; r++) {
            double sum = 0, size = 0;

            for (int k = 0; k < COLUMNS; k++) {
                sum += n4_weight(panel, r, k) * x[k];
                size += fabs(n4_weight(panel, r, k) * x[k]);
            }
            assert_true(fabs(acc[t * PANEL + r] - sum) <= 1e-6 * size);
        }
    }
}

/* All paths with fused multiply-add give the same bits, whatever the number of tokens; the baseline, which
 * rounds once more, nearly so. */
static void check_products(enum bits bits, enum pd_form form, uint64_t seed)
{
    uint8_t *panel = random_panel(form, &seed);
    struct pd_cpu_rounded x = make_rounded(bits, PRODUCT_TOKENS, PRODUCT_BLOCKS);
    float first[2][PRODUCT_ROOM * PANEL], acc[PRODUCT_ROOM * PANEL]; /* [fused] */
    float rows[PRODUCT_TOKENS * COLUMNS];
    const char *expected[2] = {NULL, NULL};

    for (int t = 0; t < PRODUCT_TOKENS; t++)
        fill_row(rows, t, seed);
    table("baseline", bits)->round(rows, COLUMNS, &x, 0, 1);
    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        bool own = fused(*path);

        if (expected[own] == NULL) {
            product(table(*path, bits), form, panel, &x, PRODUCT_TOKENS, first[own]);
            expected[own] = *path;
        }
        for (int tokens = 1; tokens <= PRODUCT_TOKENS; tokens++) {
            product(table(*path, bits), form, panel, &x, tokens, acc);
            if (memcmp(acc, first[own], sizeof(float) * (size_t)(tokens * PANEL)) != 0)
                fail_msg("%s, %s, form %d, %d tokens: not the bits of %s", *path, names[bits], form,
                         tokens, expected[own]);
        }
    }
    if (expected[1] != NULL)
        assert_true(pd_rig_error(first[1], first[0], (size_t)(PRODUCT_TOKENS * PANEL)) < 1e-6);
    if (form == PD_FORM_N4)
        check_n4(bits, panel, rows, first[0]);
    free(panel);
    free(x.memory);
}

static void test_products_are_equal(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        check_products(INT8, forms[i], 70 + i);
        check_products(INT12, forms[i], 70 + i);
    }
}

/* Tokens of a later chunk get what they get alone. */
static void check_chunks(const struct pd_cpu_narrow *kernels, enum bits bits)
{
    enum { REST = 21, ALL = PD_CPU_CHUNK + REST };
    float *rows = malloc(ALL * COLUMNS * sizeof(*rows));
    float acc[2 * 16 * PANEL], alone[2 * 16 * PANEL];
    uint64_t seed = 11;
    uint8_t *panel = random_panel(PD_FORM_N4, &seed);
    struct pd_cpu_rounded all = make_rounded(bits, ALL, PRODUCT_BLOCKS),
                          rest = make_rounded(bits, REST, PRODUCT_BLOCKS);

    assert_non_null(rows);
    for (int t = 0; t < ALL; t++)
        fill_row(rows, t, seed);
    for (int part = 0; part < 3; part++)
        kernels->round(rows, COLUMNS, &all, part, 3);
    kernels->round(rows + PD_CPU_CHUNK * COLUMNS, COLUMNS, &rest, 0, 1);
    kernels->multiply(PD_FORM_N4, panel, 1, PRODUCT_BLOCKS - 1, &all, PD_CPU_CHUNK, REST, acc);
    kernels->multiply(PD_FORM_N4, panel, 1, PRODUCT_BLOCKS - 1, &rest, 0, REST, alone);
    assert_memory_equal(acc, alone, sizeof(*acc) * REST * PANEL);
    free(all.memory);
    free(rest.memory);
    free(rows);
    free(panel);
}

static void test_chunks_are_equal(void **state)
{
    (void)state;
    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        check_chunks(table(*path, INT8), INT8);
        check_chunks(table(*path, INT12), INT12);
    }
}

/* A number that is none in x makes every result of its row one, and no other row's. */
static void check_nan(const struct pd_cpu_narrow *kernels, enum bits bits, float strange)
{
    struct pd_cpu_rounded x = make_rounded(bits, PRODUCT_TOKENS, PRODUCT_BLOCKS);
    float acc[PRODUCT_ROOM * PANEL], rows[PRODUCT_TOKENS * COLUMNS];
    uint64_t seed = 9;
    uint8_t *panel = random_panel(PD_FORM_N4, &seed);

    for (int t = 0; t < PRODUCT_TOKENS; t++)
        fill_row(rows, t, seed);
    rows[6 * COLUMNS + 40] = strange;
    kernels->round(rows, COLUMNS, &x, 0, 1);
    product(kernels, PD_FORM_N4, panel, &x, PRODUCT_TOKENS, acc);
    for (int i = 0; i < PRODUCT_TOKENS * PANEL; i++)
        assert_true(!isfinite(acc[i]) == (i / PANEL == 6));
    free(panel);
    free(x.memory);
}

static void test_nan_stays_in_its_row(void **state)
{
    static const float strange[] = {NAN, INFINITY, -INFINITY};

    (void)state;
    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        for (int kind = 0; kind < 3; kind++) {
            check_nan(table(*path, INT8), INT8, strange[kind]);
            check_nan(table(*path, INT12), INT12, strange[kind]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounding_is_the_definition),
        cmocka_unit_test(test_rounded_numbers_are_near),
        cmocka_unit_test(test_products_are_equal),
        cmocka_unit_test(test_chunks_are_equal),
        cmocka_unit_test(test_nan_stays_in_its_row),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
