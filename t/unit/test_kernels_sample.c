/* Sampling: the generator's published vectors, the cpu backend against the reference, draws against the
 * exact distribution, and what happens to logits that are no numbers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/philox.h"
#include "t/unit/kernel_rig.h"

enum { ROWS = 16 };

/* Fewer where every thread of a GPU is a fiber of the host; PD_SIMT_SHAPES: so many, under a
 * sanitizer. */
static int rounds_of(const char *path, int rounds, int fewer)
{
    const char *only = getenv("PD_SIMT_SHAPES");

    return strcmp(path, "cuda") != 0 ? rounds : only != NULL ? atoi(only) : fewer;
}

/* A device that samples from up to 16 rows of logits, the same in every step: row r is column r of a head
 * times the r-th unit vector, which is exact. */
struct bench {
    struct pd_rig rig;
    struct pd_graph *graph;
};

static void bench_open(struct bench *bench, const char *kind, const char *isa, int vocabulary,
                       const float *logits, int rows)
{
    struct pd_device_options options = pd_rig_options(kind, isa, 2);
    float *head = calloc((size_t)vocabulary * ROWS, sizeof(*head)), unit[ROWS * ROWS] = {0};
    struct pd_weight_source source = {head, PD_F32, vocabulary};
    struct pd_tensor x, picked, out;
    struct pd_weight *weight;

    for (int r = 0; r < rows; r++) {
        unit[r * ROWS + r] = 1;
        for (int v = 0; v < vocabulary; v++)
            head[v * ROWS + r] = logits[r * vocabulary + v];
    }
    options.vocabulary = vocabulary;
    pd_rig_open(&bench->rig, &options);
    assert_int_equal(
        pd_weight_create(bench->rig.device, PD_WEIGHT_ROWS, ROWS, &source, 1, false, &weight),
        PD_KERNEL_OK);
    free(head);
    x = pd_rig_tensor(&bench->rig, options.max_tokens, ROWS);
    picked = pd_rig_tensor(&bench->rig, options.max_seqs, ROWS);
    out = pd_rig_tensor(&bench->rig, options.max_seqs, vocabulary);
    bench->graph = pd_rig_begin(&bench->rig);
    pd_op_embed(bench->graph, pd_rig_input(&bench->rig, unit, rows, ROWS), x);
    pd_op_gather(bench->graph, x, picked);
    pd_op_matmul(bench->graph, weight, picked, NULL, PD_EPILOGUE_NONE, true, out);
    pd_op_sample(bench->graph, out);
    pd_rig_end(bench->graph);
}

/* A step that samples row r in slot r, for every row. */
static struct pd_step *bench_step(struct bench *bench, int rows)
{
    struct pd_step *step = NULL;

    for (int32_t r = 0; r < rows; r++) {
        if (r == 0)
            step = pd_rig_step(&bench->rig, r, &r, 1, 0, 0);
        else
            pd_rig_add(&bench->rig, step, r, &r, 1, 0, 0);
        step->sample[r].history = step->sample[r].prompt = 0;
    }
    return step;
}

static void make_logits(float *logits, int vocabulary, int rows, uint64_t seed)
{
    for (int r = 0; r < rows; r++) /* from flat to peaked */
        pd_rig_fill(logits + r * vocabulary, (size_t)vocabulary, 0.3f + 0.5f * (float)r,
                    seed + (uint64_t)r);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* From Random123's kat_vectors. */
static void test_philox_known_answers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], word[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct pd_philox x =
            pd_philox4x32((uint64_t)known[i].key[1] << 32 | known[i].key[0], known[i].counter);
        assert_memory_equal(x.word, known[i].word, sizeof(x.word));
    }
}

/* Parameters of all kinds, some at their limits. */
static void random_params(struct pd_sample_params *params, int vocabulary, uint64_t *random)
{
    static const float top_p[] = {1, 0.95f, 0.5f, 0, 0.999f}, min_p[] = {0, 0, 0.05f, 1};
    static const float temperature[] = {0, 0.7f, 1, 3, 0.01f, 50};
    static const int top_k[] = {0, 0, 1, 5, 50, 1 << 30};
    static const float typical_p[] = {1, 1, 0.9f, 0.4f, 0};

    params->temperature = temperature[pd_rig_random(random) % 6];
    params->top_p = top_p[pd_rig_random(random) % 5];
    params->min_p = min_p[pd_rig_random(random) % 4];
    params->top_k = top_k[pd_rig_random(random) % 6];
    params->typical_p = typical_p[pd_rig_random(random) % 5];
    if (pd_rig_random(random) % 8 == 0)
        params->top_k = vocabulary - 1;
    params->seed = pd_rig_random(random);
    params->draw = (uint32_t)pd_rig_random(random);
    if (pd_rig_random(random) % 2 == 0) {
        params->repetition = 1.3f;
        params->presence = 0.5f;
        params->frequency = -0.25f;
        params->history = 40;
        params->prompt = 15;
    }
}

/* The same parameters and the same history on both devices. */
static void compare_steps(struct bench *a, struct bench *b, int vocabulary, uint64_t *random,
                          int *draws, int *different)
{
    int rows = vocabulary < ROWS ? vocabulary : ROWS;
    struct pd_step *first = bench_step(a, rows), *second = bench_step(b, rows);
    int32_t history[64];

    for (int s = 0; s < rows; s++) {
        for (int i = 0; i < 40; i++)
            history[i] =
                (int32_t)(pd_rig_random(random) % (uint64_t)(vocabulary < 9 ? vocabulary : 9));
        pd_history_write(a->rig.device, s, 1, history, 40);
        pd_history_write(b->rig.device, s, 1, history, 40);
        random_params(&first->sample[s], vocabulary, random);
        if (vocabulary > 2 && s % 3 == 0) {
            first->sample[s].bias_first = first->sample[s].banned_first = s;
            first->sample[s].bias_count = first->sample[s].banned_count = 2;
            for (int i = s; i < s + 2; i++) {
                first->bias_token[i] = second->bias_token[i] = (i * 5) % vocabulary;
                first->bias_value[i] = second->bias_value[i] = i % 2 ? 3.0f : -100.0f;
                first->banned[i] = second->banned[i] = (i * 7 + 1) % vocabulary;
            }
        }
        second->sample[s] = first->sample[s];
    }
    pd_rig_run(&a->rig, a->graph, first);
    pd_rig_run(&b->rig, b->graph, second);
    for (int s = 0; s < rows; s++) {
        assert_int_equal(first->sample_fault[s], second->sample_fault[s]);
        ++*draws;
        *different += first->sampled[s] != second->sampled[s];
    }
}

/* The reference computes in double, so a draw that falls on a border may differ: one in a thousand is far
 * more than rounding explains and far less than any fault causes. */
static void test_paths_against_the_reference(void **state)
{
    static const int vocabularies[] = {2, 7, 300, 1500, 2048};

    (void)state;
    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        int draws = 0, different = 0;

        for (int i = 0; i < 5; i++) {
            int vocabulary = vocabularies[i], rows = vocabulary < ROWS ? vocabulary : ROWS;
            float *logits = malloc(sizeof(float) * (size_t)(vocabulary * ROWS));
            struct bench reference, cpu;
            uint64_t random = (uint64_t)i;

            make_logits(logits, vocabulary, ROWS, 5);
            bench_open(&reference, "reference", NULL, vocabulary, logits, rows);
            bench_open(&cpu, pd_rig_kind(*path), *path, vocabulary, logits, rows);
            for (int round = 0; round < rounds_of(*path, 20, 8); round++)
                compare_steps(&reference, &cpu, vocabulary, &random, &draws, &different);
            pd_rig_close(&reference.rig);
            pd_rig_close(&cpu.rig);
            free(logits);
        }
        if (different * 1000 > draws)
            fail_msg("%s: %d of %d draws differ", *path, different, draws);
    }
}

/* The exact distribution after temperature, top-k, top-p and min-p, as their definitions have it. */
static void exact(const float *logits, int count, const struct pd_sample_params *params, double *p)
{
    int order[400];
    double total = 0, kept = 0;

    for (int i = 0; i < count; i++) {
        int j = i;
        for (; j > 0 && logits[order[j - 1]] < logits[i]; j--)
            order[j] = order[j - 1];
        order[j] = i;
        p[i] = 0;
    }
    if (params->top_k > 0 && params->top_k < count)
        count = params->top_k;
    for (int i = 0; i < count; i++)
        total += exp((logits[order[i]] - logits[order[0]]) / params->temperature);
    for (int i = 0; i < count; i++) {
        double relative = exp((logits[order[i]] - logits[order[0]]) / params->temperature);

        if (kept >= params->top_p * total || relative < params->min_p)
            break;
        p[order[i]] = relative;
        kept += relative;
    }
    for (int i = 0; i < count; i++)
        p[order[i]] /= kept;
}

static void check_distribution(const char *kind, const char *isa,
                               const struct pd_sample_params *params)
{
    enum { VOCABULARY = 300 };
    const int steps = rounds_of(kind, 300, 60), draws = steps * ROWS;
    float logits[VOCABULARY * ROWS];
    int seen[VOCABULARY] = {0}, cells = 0, rare_seen = 0;
    double p[VOCABULARY], chi = 0, rare = 0;
    struct bench bench;

    make_logits(logits, VOCABULARY, 1, 17);
    for (int r = 1; r < ROWS; r++)
        memcpy(logits + r * VOCABULARY, logits, sizeof(float) * VOCABULARY);
    for (int i = 0; i < VOCABULARY * ROWS; i++)
        logits[i] *= 5;
    exact(logits, VOCABULARY, params, p);
    bench_open(&bench, kind, isa, VOCABULARY, logits, ROWS);
    for (int i = 0; i < steps; i++) {
        struct pd_step *step = bench_step(&bench, ROWS);

        for (int s = 0; s < ROWS; s++) {
            step->sample[s] = *params;
            step->sample[s].draw = (uint32_t)(i * ROWS + s);
        }
        pd_rig_run(&bench.rig, bench.graph, step);
        for (int s = 0; s < ROWS; s++)
            seen[step->sampled[s]]++;
    }
    pd_rig_close(&bench.rig);
    for (int i = 0; i < VOCABULARY; i++) {
        if (p[i] == 0)
            assert_int_equal(seen[i], 0);
        if (p[i] * draws < 10) { /* together one cell */
            rare += p[i];
            rare_seen += seen[i];
            continue;
        }
        chi += (seen[i] - p[i] * draws) * (seen[i] - p[i] * draws) / (p[i] * draws);
        cells++;
    }
    if (rare * draws >= 10) {
        chi += (rare_seen - rare * draws) * (rare_seen - rare * draws) / (rare * draws);
        cells++;
    }
    /* chi-square with cells - 1 degrees: mean cells - 1, deviation sqrt(2 (cells - 1)) */
    if (chi > cells - 1 + 5 * sqrt(2.0 * cells))
        fail_msg("%s %s: chi-square %g over %d cells", kind, isa, chi, cells);
}

static void test_draws_follow_the_distribution(void **state)
{
    static const struct pd_sample_params params[] = {
        {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1, .seed = 1},
        {.temperature = 0.5f, .top_p = 0.9f, .typical_p = 1, .repetition = 1, .seed = 2},
        {.temperature = 2, .top_p = 1, .typical_p = 1, .top_k = 20, .repetition = 1, .seed = 3},
        {.temperature = 1.5f,
         .top_p = 0.8f,
         .top_k = 50,
         .min_p = 0.02f,
         .typical_p = 1,
         .repetition = 1,
         .seed = 4},
        {.temperature = 3,
         .top_p = 1,
         .typical_p = 1,
         .min_p = 0.1f,
         .repetition = 1,
         .seed = 1ull << 40},
    };

    (void)state;
    for (int i = 0; i < 5; i++) {
        check_distribution("reference", "", &params[i]);
        for (const char *const *path = pd_rig_paths(); *path != NULL; path++)
            check_distribution(pd_rig_kind(*path), *path, &params[i]);
    }
}

static void test_log_probabilities(void **state)
{
    enum { VOCABULARY = 1000 };
    static float logits[VOCABULARY * ROWS];

    (void)state;
    make_logits(logits, VOCABULARY, ROWS, 23);
    logits[3] = logits[4] = 9; /* a tie at the top of row 0 */
    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        struct bench bench;
        struct pd_step *step;

        bench_open(&bench, pd_rig_kind(*path), *path, VOCABULARY, logits, ROWS);
        step = bench_step(&bench, ROWS);
        for (int s = 0; s < ROWS; s++) {
            step->sample[s].temperature = s % 2 ? 0.8f : 0;
            step->sample[s].seed = 99;
            step->sample[s].logprobs = s % 4 == 0 ? 21 : s % 4;
        }
        step->sample[0].bias_count = 1; /* biases do not change what is reported */
        step->bias_token[0] = 700;
        step->bias_value[0] = 50;
        pd_rig_run(&bench.rig, bench.graph, step);
        assert_int_equal(step->sampled[0], 700);
        assert_int_equal(step->top_token[0], 3);
        assert_int_equal(step->top_token[1], 4);
        for (int s = 0; s < ROWS; s++) {
            const float *row = logits + s * VOCABULARY;
            double total = 0;

            for (int v = 0; v < VOCABULARY; v++)
                total += exp(row[v]);
            if (step->sample[s].logprobs > 0)
                assert_float_equal(step->sampled_logprob[s], row[step->sampled[s]] - log(total),
                                   2e-5);
            for (int i = 0; i < step->sample[s].logprobs - 1; i++) {
                int32_t token = step->top_token[s * PD_TOP_MAX + i];
                int above = 0;

                for (int v = 0; v < VOCABULARY; v++)
                    above += row[v] > row[token] || (row[v] == row[token] && v < token);
                assert_int_equal(above, i);
                assert_float_equal(step->top_logprob[s * PD_TOP_MAX + i], row[token] - log(total),
                                   2e-5);
            }
        }
        pd_rig_close(&bench.rig);
    }
}

static void test_ties_take_the_lowest_id(void **state)
{
    float logits[300];

    (void)state;
    for (int i = 0; i < 300; i++)
        logits[i] = i == 40 || i == 41 || i == 299 ? 2.0f : -1.0f;
    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        struct bench bench;
        struct pd_step *step;

        bench_open(&bench, pd_rig_kind(*path), *path, 300, logits, 1);
        step = bench_step(&bench, 1);
        pd_rig_run(&bench.rig, bench.graph, step);
        assert_int_equal(step->sampled[0], 40);
        for (uint32_t draw = 0; draw < (uint32_t)rounds_of(*path, 50, 25);
             draw++) { /* top-k 2 leaves the two lowest */
            step = bench_step(&bench, 1);
            step->sample[0].temperature = 1;
            step->sample[0].top_k = 2;
            step->sample[0].draw = draw;
            pd_rig_run(&bench.rig, bench.graph, step);
            assert_in_range(step->sampled[0], 40, 41);
        }
        pd_rig_close(&bench.rig);
    }
}

/* Rows of logits straight from an embedding, so that one row's NaN stays its own. */
static void test_faults(void **state)
{
    enum { VOCABULARY = 40 };
    static float rows[4 * VOCABULARY];

    (void)state;
    for (int i = 0; i < 4 * VOCABULARY; i++)
        rows[i] = (float)(i % 5);
    rows[0 * VOCABULARY + 39] = NAN;
    for (int i = 0; i < VOCABULARY; i++)
        rows[1 * VOCABULARY + i] = -INFINITY;
    rows[2 * VOCABULARY + 7] = INFINITY;
    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        struct pd_device_options options = pd_rig_options(pd_rig_kind(*path), *path, 2);
        struct pd_tensor x, picked;
        struct bench bench;

        options.vocabulary = VOCABULARY;
        pd_rig_open(&bench.rig, &options);
        x = pd_rig_tensor(&bench.rig, options.max_tokens, VOCABULARY);
        picked = pd_rig_tensor(&bench.rig, options.max_seqs, VOCABULARY);
        bench.graph = pd_rig_begin(&bench.rig);
        pd_op_embed(bench.graph, pd_rig_input(&bench.rig, rows, 4, VOCABULARY), x);
        pd_op_gather(bench.graph, x, picked);
        pd_op_sample(bench.graph, picked);
        pd_rig_end(bench.graph);
        for (int round = 0; round < 3; round++) {
            struct pd_step *step = bench_step(&bench, 4);

            for (int s = 0; s < 4; s++) {
                step->sample[s].temperature = round == 1 ? 1 : 0;
                step->sample[s].logprobs = 3;
                if (round ==
                    2) { /* a ban of the NaN does not heal it; a ban of everything is a fault */
                    step->sample[s].banned_first = s == 3 ? 0 : VOCABULARY - 1;
                    step->sample[s].banned_count = s == 3 ? VOCABULARY : 1;
                }
            }
            for (int i = 0; i < VOCABULARY; i++)
                step->banned[i] = i;
            pd_rig_run(&bench.rig, bench.graph, step);
            for (int s = 0; s < 4; s++)
                assert_int_equal(step->sample_fault[s], s < 3 || round == 2);
        }
        pd_rig_close(&bench.rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test(test_paths_against_the_reference),
        cmocka_unit_test(test_draws_follow_the_distribution),
        cmocka_unit_test(test_log_probabilities),
        cmocka_unit_test(test_ties_take_the_lowest_id),
        cmocka_unit_test(test_faults),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
