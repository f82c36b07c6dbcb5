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

static const struct {
    const char *name;
    const struct pd_cpu_narrow *integer;
} tables[] = {
    {"baseline", &pd_cpu_integer_baseline}, {"avx2", &pd_cpu_integer_avx2},
    {"avx512", &pd_cpu_integer_avx512},     {"vnni", &pd_cpu_integer_vnni},
    {"amx", &pd_cpu_integer_amx},
};

/* The table of a path that this machine can run. */
static const struct pd_cpu_narrow *table(const char *name)
{
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        if (strcmp(tables[i].name, name) == 0)
            return tables[i].integer;
    }
    fail_msg("no table of %s", name);
    return NULL;
}

/* ---- rounding -------------------------------------------------------------------------------- */

/* Where a test keeps rounded x: `tokens` rows of `blocks`. */
static struct pd_cpu_rounded make_rounded(int tokens, int blocks)
{
    size_t bytes = pd_cpu_integer_baseline.bytes(tokens, blocks);
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);

    assert_non_null(memory);
    return (struct pd_cpu_rounded){memory, tokens, blocks};
}

static void check_rounded(const char *path, const struct pd_cpu_line *line,
                          const struct pd_cpu_scale *scale, const float *x)
{
    int16_t q[BLOCK];
    float d = pd_quantize32(x, q);
    int low = 0, high = 0;

    for (int k = 0; k < BLOCK; k++) {
        int at = k / 8 * 8 + k % 2 * 4 + k % 8 / 2;
        int got = 16 * ((const int8_t *)line->high)[at] + ((const int8_t *)line->low)[at];

        if (got != q[k])
            fail_msg("%s: %g becomes %d, not %d", path, (double)x[k], got, q[k]);
        *(k < BLOCK / 2 ? &low : &high) += q[k];
    }
    assert_true(isnan(d) ? isnan(scale->d) && isnan(scale->sum)
                         : scale->d == d && scale->sum == d * (float)(low + high));
    assert_int_equal(scale->offset[0], -8 * low);
    assert_int_equal(scale->offset[1], -8 * high);
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
        x[kind % BLOCK] = PD_QUANTIZE_MOST;
    }
    if (kind % 7 == 0)
        x[kind / 7 % BLOCK] = strange[kind / 7 % 8];
    if (kind % 31 == 0)
        memset(x, 0, BLOCK * sizeof(*x));
}

static void test_rounding_is_the_definition(void **state)
{
    enum { ROWS = 30, BLOCKS = 40, PARTS = 4 };
    float *x = malloc(ROWS * BLOCKS * BLOCK * sizeof(*x));
    struct pd_cpu_rounded out = make_rounded(ROWS, BLOCKS);
    uint64_t random = 5;

    (void)state;
    assert_non_null(x);
    for (int b = 0; b < ROWS * BLOCKS; b++)
        fill_block(x + b * BLOCK, b, &random);
    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        memset(out.memory, 1, table(*path)->bytes(ROWS, BLOCKS));
        for (int part = 0; part < PARTS; part++)
            table(*path)->round(x, BLOCKS * BLOCK, &out, part, PARTS);
        for (int row = 0; row < ROWS; row++) {
            for (int b = 0; b < BLOCKS; b++)
                check_rounded(*path, &pd_cpu_lines(&out)[b * ROWS + row],
                              &pd_cpu_scales(&out)[b * ROWS + row], x + (row * BLOCKS + b) * BLOCK);
        }
    }
    free(x);
    free(out.memory);
}

/* What the definition itself promises. */
static void test_rounded_numbers_are_near(void **state)
{
    uint64_t random = 6;

    (void)state;
    for (int kind = 100; kind < 250; kind++) {
        float x[BLOCK], greatest = 0;
        int16_t q[BLOCK];
        float d;

        for (int k = 0; k < BLOCK; k++)
            x[k] = ldexpf(pd_rig_normal(&random), kind - 155);
        for (int k = 0; k < BLOCK; k++)
            greatest = fmaxf(greatest, fabsf(x[k]));
        d = pd_quantize32(x, q);
        assert_true(fabs((double)d * PD_QUANTIZE_MOST - greatest) <= 1e-6 * greatest);
        for (int k = 0; k < BLOCK; k++)
            assert_true(fabs((double)d * q[k] - x[k]) <= 0.501 * d);
    }
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

/* acc after a panel, for the first `tokens` of x. */
static void product(const char *path, enum pd_form form, const uint8_t *panel,
                    const struct pd_cpu_rounded *x, int tokens, float *acc)
{
    for (int i = 0; i < tokens * PANEL; i++)
        acc[i] = (float)(i % PANEL);
    table(path)->multiply(form, panel, 0, PRODUCT_BLOCKS, x, 0, tokens, acc);
}

static bool fused(const char *path)
{
    return strcmp(path, "baseline") != 0;
}

/* All paths with fused multiply-add give the same bits, whatever the number of tokens; the baseline, which
 * rounds once more, nearly so. */
static void check_products(enum pd_form form, uint64_t seed)
{
    uint8_t *panel = random_panel(form, &seed);
    struct pd_cpu_rounded x = make_rounded(PRODUCT_TOKENS, PRODUCT_BLOCKS);
    float first[PRODUCT_ROOM * PANEL], acc[PRODUCT_ROOM * PANEL];
    float rows[PRODUCT_TOKENS * COLUMNS];
    const char *expected = NULL;

    for (int t = 0; t < PRODUCT_TOKENS; t++)
        pd_rig_fill(rows + t * COLUMNS, COLUMNS, t % 5 == 0 ? 1e-3f : 1, seed + (uint64_t)t);
    pd_cpu_integer_baseline.round(rows, COLUMNS, &x, 0, 1);
    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        for (int tokens = 1; tokens <= PRODUCT_TOKENS; tokens++) {
            product(*path, form, panel, &x, tokens, acc);
            if (expected == NULL || (fused(*path) && !fused(expected))) {
                if (expected != NULL)
                    assert_true(pd_rig_error(acc, first, (size_t)(tokens * PANEL)) < 1e-6);
                product(*path, form, panel, &x, PRODUCT_TOKENS, first);
                expected = *path;
            }
            if (memcmp(acc, first, sizeof(float) * (size_t)(tokens * PANEL)) != 0)
                fail_msg("%s, form %d, %d tokens: not the bits of %s", *path, form, tokens,
                         expected);
        }
    }
    free(panel);
    free(x.memory);
}

static void test_products_are_equal(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
        check_products(forms[i], 70 + i);
}

/* Tokens of a later chunk get what they get alone. */
static void test_chunks_are_equal(void **state)
{
    enum { REST = 21, ALL = PD_CPU_CHUNK + REST };
    float *rows = malloc(ALL * COLUMNS * sizeof(*rows)), acc[2 * 16 * PANEL];
    uint64_t seed = 11;
    uint8_t *panel = random_panel(PD_FORM_N4, &seed);

    (void)state;
    assert_non_null(rows);
    pd_rig_fill(rows, ALL * COLUMNS, 1, seed);
    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        struct pd_cpu_rounded all = make_rounded(ALL, PRODUCT_BLOCKS),
                              rest = make_rounded(REST, PRODUCT_BLOCKS);
        float alone[2 * 16 * PANEL];

        for (int part = 0; part < 3; part++)
            table(*path)->round(rows, COLUMNS, &all, part, 3);
        table(*path)->round(rows + PD_CPU_CHUNK * COLUMNS, COLUMNS, &rest, 0, 1);
        table(*path)->multiply(PD_FORM_N4, panel, 1, PRODUCT_BLOCKS - 1, &all, PD_CPU_CHUNK, REST,
                               acc);
        table(*path)->multiply(PD_FORM_N4, panel, 1, PRODUCT_BLOCKS - 1, &rest, 0, REST, alone);
        assert_memory_equal(acc, alone, sizeof(*acc) * REST * PANEL);
        free(all.memory);
        free(rest.memory);
    }
    free(rows);
    free(panel);
}

/* A number that is none in x makes every result of its row one, and no other row's. */
static void test_nan_stays_in_its_row(void **state)
{
    (void)state;
    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        for (int kind = 0; kind < 3; kind++) {
            static const float strange[] = {NAN, INFINITY, -INFINITY};
            struct pd_cpu_rounded x = make_rounded(PRODUCT_TOKENS, PRODUCT_BLOCKS);
            float acc[PRODUCT_ROOM * PANEL], rows[PRODUCT_TOKENS * COLUMNS];
            uint64_t seed = 9;
            uint8_t *panel = random_panel(PD_FORM_N4, &seed);

            pd_rig_fill(rows, PRODUCT_TOKENS * COLUMNS, 1, seed);
            rows[6 * COLUMNS + 40] = strange[kind];
            table(*path)->round(rows, COLUMNS, &x, 0, 1);
            product(*path, PD_FORM_N4, panel, &x, PRODUCT_TOKENS, acc);
            for (int i = 0; i < PRODUCT_TOKENS * PANEL; i++)
                assert_true(!isfinite(acc[i]) == (i / PANEL == 6));
            free(panel);
            free(x.memory);
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
