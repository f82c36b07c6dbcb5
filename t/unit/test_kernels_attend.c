/* Attention: a token's bits, whoever else is in its tile and however its splits are shared out, with scores so far
 * apart that every order of additions has sums of its own, and in memory that holds no numbers before. What the
 * results are is test_kernels_model's to say. What the machine has no instructions for is not tested. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cmocka.h>

#include "kernels/backend.h"
#include "kernels/cpu/path.h"
#include "kernels/dtype.h"
#include "t/unit/kernel_rig.h"

enum { KEYS = 300, TOKENS = 90, GROUP_MOST = 18, DIM_MOST = 128, SPLITS = 3 };

static const struct shape {
    int group, dim, block, window;
    enum pd_dtype type;
} shapes[] = {
    {1, 64, 8, 0, PD_F16},   {3, 64, 16, 0, PD_F16},  {4, 128, 32, 0, PD_BF16},
    {3, 80, 11, 40, PD_F32}, {5, 20, 24, 0, PD_F16},  {7, 96, 13, 150, PD_BF16},
    {8, 32, 16, 0, PD_F32},  {18, 64, 16, 3, PD_F16}, {2, 96, 16, 0, PD_F16},
    {2, 96, 16, 0, PD_F32},
};

static const struct way {
    const char *isa;
    enum pd_precision precision;
    pd_cpu_attend *attend;
    const struct pd_cpu_path *path; /* that merges */
    int rows;                       /* of a tile at most, as a rule */
} ways[] = {
    {"baseline", PD_PRECISION_F32, NULL, &pd_cpu_path_baseline, PD_CPU_QUERY_ROWS},
    {"avx2", PD_PRECISION_F32, NULL, &pd_cpu_path_avx2, PD_CPU_QUERY_ROWS},
    {"avx512", PD_PRECISION_F32, NULL, &pd_cpu_path_avx512, PD_CPU_QUERY_ROWS},
    {"bf16", PD_PRECISION_INT8, pd_cpu_attend_dot, &pd_cpu_path_avx512, PD_CPU_QUERY_ROWS_BF16},
    {"amx", PD_PRECISION_BF16, pd_cpu_attend_bf16, &pd_cpu_path_avx512, PD_CPU_QUERY_ROWS_BF16},
};

enum { WAYS = (int)(sizeof(ways) / sizeof(ways[0])), IN_BF16 = WAYS - 2 };

struct stage {
    const struct shape *shape;
    const struct way *way;
    struct pd_attention_shape attention;
    struct pd_buffer buffer;
    struct pd_kv_pool pool;
    int32_t blocks[KEYS];
    float *q, *scratch; /* q: [TOKENS][group][dim], of the last positions */
    size_t scratch_floats;
};

static void set_number(enum pd_dtype type, void *numbers, size_t at, float value)
{
    if (type == PD_F32)
        ((float *)numbers)[at] = value;
    else
        ((uint16_t *)numbers)[at] =
            type == PD_F16 ? pd_f16_of_float(value) : pd_bf16_of_float(value);
}

static void build(struct stage *stage, const struct way *way, const struct shape *shape)
{
    int blocks = (KEYS + shape->block - 1) / shape->block;
    size_t numbers;
    uint64_t seed = (uint64_t)shape->dim;

    memset(stage, 0, sizeof(*stage));
    stage->shape = shape;
    stage->way = way;
    stage->attention = (struct pd_attention_shape){.heads = 2 * shape->group,
                                                   .kv_heads = 2,
                                                   .head_dim = shape->dim,
                                                   .window = shape->window,
                                                   .scale = 5 / sqrtf((float)shape->dim)};
    stage->pool = (struct pd_kv_pool){.buffer = &stage->buffer,
                                      .layers = 1,
                                      .kv_heads = 2,
                                      .block_size = shape->block,
                                      .head_dim = shape->dim,
                                      .blocks = blocks,
                                      .type = shape->type};
    numbers = (size_t)(2 * blocks * 2 * shape->block * shape->dim);
    stage->buffer.host = calloc(numbers, 4);
    stage->q = calloc((size_t)(TOKENS * shape->group * shape->dim), sizeof(float));
    stage->scratch_floats = pd_cpu_query_scratch(PD_CPU_QUERY_ROWS_BF16, shape->group, shape->dim);
    stage->scratch = aligned_alloc(64, (stage->scratch_floats * sizeof(float) + 63) / 64 * 64);
    assert_true(stage->buffer.host != NULL && stage->q != NULL && stage->scratch != NULL);
    for (size_t i = 0; i < numbers; i++)
        set_number(shape->type, stage->buffer.host, i, pd_rig_normal(&seed));
    for (int i = 0; i < TOKENS * shape->group * shape->dim; i++)
        stage->q[i] = pd_rig_normal(&seed);
    for (int i = 0; i < blocks; i++)
        stage->blocks[i] = blocks - 1 - i;
}

static void attend(struct stage *stage, struct pd_cpu_query *query, struct pd_cpu_query *next)
{
    const struct way *way = stage->way;

    (way->attend != NULL ? way->attend : way->path->attend)(query, next, stage->scratch);
}

static void demolish(struct stage *stage)
{
    free(stage->buffer.host);
    free(stage->q);
    free(stage->scratch);
}

static struct pd_cpu_query query_of(struct stage *stage, int first, int tokens, float *out)
{
    int group = stage->shape->group, row = group * stage->shape->dim;
    int keys = KEYS - TOKENS + first + tokens;

    for (size_t i = 0; i < stage->scratch_floats; i++)
        stage->scratch[i] = NAN;
    return (struct pd_cpu_query){.shape = &stage->attention,
                                 .pool = &stage->pool,
                                 .kv_head = 1,
                                 .blocks = stage->blocks,
                                 .q = stage->q + first * row,
                                 .q_stride = (size_t)row,
                                 .tokens = tokens,
                                 .position = KEYS - TOKENS + first,
                                 .end = (keys + PD_CPU_SPLIT - 1) / PD_CPU_SPLIT,
                                 .out = out + first * row,
                                 .out_stride = (size_t)row};
}

/* One after the other, `tokens` at a time, each split by someone else. */
static void compute_shared(struct stage *stage, int tokens, float *out)
{
    int group = stage->shape->group, dim = stage->shape->dim;
    size_t state = pd_cpu_state_floats(dim), rows = (size_t)(tokens * group);
    float *states = calloc(SPLITS * rows * state, sizeof(float)), one[16 + DIM_MOST];

    assert_non_null(states);
    for (int t = 0; t < TOKENS; t += tokens) {
        struct pd_cpu_query query = query_of(stage, t, tokens, out);
        int splits = query.end;

        query.state_rows = (size_t)group;
        for (int s = splits - 1; s >= 0; s--) {
            query.first = s;
            query.end = s + 1;
            query.loaded = 0;
            query.states = states + (size_t)s * rows * state;
            attend(stage, &query, NULL);
        }
        for (size_t r = 0; r < rows; r++)
            stage->way->path->merge(states + r * state, splits, rows * state, dim, one,
                                    query.out + r * (size_t)dim);
    }
    free(states);
}

static void compute(struct stage *stage, int tokens, float *out)
{
    for (int t = 0; t < TOKENS; t += tokens) {
        int count = TOKENS - t < tokens ? TOKENS - t : tokens;
        struct pd_cpu_query query = query_of(stage, t, count, out), next = query;

        attend(stage, &query, t % 2 == 0 ? &next : NULL);
    }
}

enum { OUTPUTS = TOKENS * GROUP_MOST * DIM_MOST };

/* first[] becomes what tokens one at a time come to. */
static void check_bits(const struct way *way, const struct shape *shape, float *first)
{
    static float out[OUTPUTS];
    static struct stage stage;
    int most = pd_cpu_query_rows(way->rows, shape->group) / shape->group;
    size_t count = (size_t)(TOKENS * shape->group * shape->dim);

    build(&stage, way, shape);
    compute(&stage, 1, first);
    for (int tokens = 2; tokens <= most; tokens = tokens < 7 ? tokens + 1 : tokens + 5) {
        compute(&stage, tokens, out);
        if (memcmp(out, first, count * sizeof(float)) != 0)
            fail_msg("%s: %d tokens at a time differ from one", way->isa, tokens);
    }
    for (int tokens = 1; tokens <= 2 && tokens <= most; tokens++) {
        compute_shared(&stage, tokens, out);
        if (memcmp(out, first, count * sizeof(float)) != 0)
            fail_msg("%s: shared splits of %d tokens differ", way->isa, tokens);
    }
    for (size_t j = 0; j < count; j++)
        assert_true(isfinite(first[j]));
    demolish(&stage);
}

/* Nor does the instruction set, where all have the same numerics. */
static void test_tiles_change_no_bit(void **state)
{
    static float first[WAYS][OUTPUTS];

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (int w = 0; w < WAYS; w++) {
            if (!pd_rig_has(ways[w].isa, ways[w].precision))
                continue;
            check_bits(&ways[w], &shapes[i], first[w]);
            if (w > 0 && w < IN_BF16 &&
                strcmp(ways[w].path->numerics, ways[w - 1].path->numerics) == 0)
                assert_memory_equal(first[w], first[w - 1],
                                    (size_t)(TOKENS * shapes[i].group * shapes[i].dim) *
                                        sizeof(float));
        }
    }
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bw,avx512bf16"))) static void
dot(float sums[16], const uint16_t a[32], const uint16_t b[32])
{
    __m512bh left = (__m512bh)_mm512_loadu_si512(a), right = (__m512bh)_mm512_loadu_si512(b);

    _mm512_storeu_ps(sums, _mm512_dpbf16_ps(_mm512_loadu_ps(sums), left, right));
}

/* What has no normal exponent counts as zero. */
static float flushed(float value)
{
    return fabsf(value) < 0x1p-126f ? copysignf(0, value) : value;
}

static float product_of(uint16_t a, uint16_t b)
{
    return flushed(pd_float_of_bf16(a)) * flushed(pd_float_of_bf16(b));
}
#endif

/* All processors that have it must compute the same: the odd product is added, then the even one, each sum rounded to
 * nearest; denormals are zero on both sides. */
static void test_dot_products_are_the_definition(void **state)
{
#if defined(__x86_64__)
    uint64_t seed = 3;

    (void)state;
    if (!pd_rig_has("bf16", PD_PRECISION_INT8))
        skip();
    for (int i = 0; i < 20000; i++) {
        uint16_t a[32], b[32];
        float sums[16], expected[16];

        for (int k = 0; k < 32; k++) {
            int exponent = (int)(pd_rig_random(&seed) % 120) - 60;

            a[k] = pd_bf16_of_float(ldexpf(pd_rig_normal(&seed), exponent));
            b[k] = pd_bf16_of_float(ldexpf(pd_rig_normal(&seed), i % 3 - exponent));
            if (pd_rig_random(&seed) % 50 == 0)
                a[k] = pd_bf16_of_float(1e-39f);
        }
        for (int k = 0; k < 16; k++) {
            sums[k] = i % 7 == 0 ? 1e-39f : pd_rig_normal(&seed);
            expected[k] = flushed(flushed(sums[k]) + product_of(a[2 * k + 1], b[2 * k + 1]));
            expected[k] = flushed(expected[k] + product_of(a[2 * k], b[2 * k]));
        }
        dot(sums, a, b);
        for (int k = 0; k < 16; k++)
            assert_true(sums[k] == expected[k]);
    }
#else
    (void)state;
    skip();
#endif
}

static bool same_numbers(const float *a, const float *b, int count)
{
    for (int i = 0; i < count; i++) {
        if (isfinite(a[i]) ? memcmp(a + i, b + i, sizeof(*a)) != 0 : isfinite(b[i]))
            return false;
    }
    return true;
}

/* What is no number, in a key or a value, makes none of what comes behind it; nor does it of a query, and of no
 * other. (In f32 and bf16 an infinite key may be infinitely far from a query, and then not count; and what has
 * left a window, times 0, may still be none.) */
static void check_strange(const struct way *way, const struct shape *shape, float strange,
                          bool value)
{
    static float out[OUTPUTS], same[OUTPUTS];
    static struct stage stage;
    int at = KEYS - TOKENS / 2, row = shape->group * shape->dim;
    int64_t tile;

    int group = shape->group, most = pd_cpu_query_rows(PD_CPU_QUERY_ROWS_BF16, group) / group;

    build(&stage, way, shape);
    tile = pd_kv_tile(&stage.pool, 0, 1, stage.blocks[at / shape->block], 0) +
           (at % shape->block + (value ? shape->block : 0)) * shape->dim;
    set_number(shape->type, stage.buffer.host, (size_t)tile + 5, strange);
    compute(&stage, 1, out);
    if (shape->type == PD_F16) { /* numbers of others are theirs, whoever is in the tile */
        compute(&stage, most < 5 ? most : 5, same);
        assert_true(same_numbers(out, same, TOKENS * row));
        compute_shared(&stage, most < 2 ? most : 2, same);
        assert_true(same_numbers(out, same, TOKENS * row));
    }
    for (int t = 0; t < TOKENS; t++) {
        int position = KEYS - TOKENS + t;
        bool sees = position >= at && (shape->window == 0 || position < at + shape->window);

        for (int i = 0; i < row; i += shape->dim) {
            int finite = 0;

            for (int d = 0; d < shape->dim; d++)
                finite += isfinite(out[t * row + i + d]) != 0;
            if (shape->type != PD_F16 && position >= at &&
                (shape->window > 0 || (!value && isinf(strange))))
                continue;
            if (sees ? finite == shape->dim : finite < shape->dim)
                fail_msg("%g as a %s: token %d has %d numbers", (double)strange,
                         value ? "value" : "key", t, finite);
        }
    }
    stage.q[7 * row + 3] = strange;
    set_number(shape->type, stage.buffer.host, (size_t)tile + 5, 1);
    compute(&stage, 5, out);
    for (int t = 0; t < TOKENS; t++)
        assert_true(!isfinite(out[t * row]) == (t == 7));
    demolish(&stage);
}

static void test_what_is_no_number_makes_none(void **state)
{
    static const float strange[] = {NAN, -NAN, INFINITY, -INFINITY};

    (void)state;
    for (int w = IN_BF16; w < WAYS; w++) {
        if (!pd_rig_has(ways[w].isa, ways[w].precision))
            continue;
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            for (int j = 0; j < 4; j++) {
                check_strange(&ways[w], &shapes[i], strange[j], false);
                check_strange(&ways[w], &shapes[i], strange[j], true);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles_change_no_bit),
        cmocka_unit_test(test_dot_products_are_the_definition),
        cmocka_unit_test(test_what_is_no_number_makes_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
