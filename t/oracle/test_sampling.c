/* Draws against the distributions of transformers' processors (sampling.json, made by sampling.py).
 *
 * Each case goes the whole way of a request: its parameters are checked and filled into steps as the
 * engine does it, the device draws, and the frequencies of 16,000 draws are compared with the
 * probabilities by a chi-square test. What has no probability must never be drawn. Seeds are fixed,
 * so the test ends alike every time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "t/unit/kernel_rig.h"
#include "worker/sample/sampling.h"

static const char reference_file[] = "t/oracle/sampling.json";

enum { ROWS = 16, STEPS = 1000, DRAWS = ROWS * STEPS, TOKENS_MAX = 64 };

struct given {
    float logits[TOKENS_MAX];
    double probabilities[TOKENS_MAX];
    int vocabulary;
    int32_t history[TOKENS_MAX];
    int history_count, prompt;
    struct pd_sampling sampling;
};

/* ---- the file -------------------------------------------------------------------------------- */

static double number_or(const json_t *params, const char *key, double otherwise)
{
    const json_t *value = json_object_get(params, key);

    return value ? json_number_value(value) : otherwise;
}

static void read_biases(json_t *params, struct pd_sampling *sampling)
{
    json_t *biases = json_object_get(params, "bias"), *value;
    const char *key;

    sampling->bias = calloc(json_object_size(biases) + 1, sizeof(*sampling->bias));
    assert_non_null(sampling->bias);
    json_object_foreach(biases, key, value)
    {
        sampling->bias[sampling->bias_count].token = atoi(key);
        sampling->bias[sampling->bias_count++].bias = (float)json_number_value(value);
    }
}

/* Banned tokens are such that would end an answer that is still too short. */
static void read_banned(const json_t *params, struct pd_sampling *sampling)
{
    const json_t *banned = json_object_get(params, "banned");

    for (size_t i = 0; i < json_array_size(banned); i++)
        sampling->stop_tokens[sampling->stop_token_count++] =
            (int32_t)json_integer_value(json_array_get(banned, i));
    sampling->min_tokens = banned ? UINT32_MAX : 0;
}

static void read_given(const json_t *root, const json_t *entry, struct given *given)
{
    const json_t *logits = json_object_get(entry, "logits"),
                 *probabilities = json_object_get(entry, "probabilities"),
                 *history = json_object_get(root, "history");
    json_t *params = json_object_get(entry, "params");

    memset(given, 0, sizeof(*given));
    given->vocabulary = (int)json_array_size(logits);
    given->history_count = (int)json_array_size(history);
    given->prompt = (int)json_integer_value(json_object_get(root, "prompt"));
    assert_in_range(given->vocabulary, 2, TOKENS_MAX);
    assert_in_range(given->history_count, 1, TOKENS_MAX);
    assert_int_equal(json_array_size(probabilities), given->vocabulary);
    for (int i = 0; i < given->vocabulary; i++) {
        given->logits[i] = (float)json_number_value(json_array_get(logits, (size_t)i));
        given->probabilities[i] = json_number_value(json_array_get(probabilities, (size_t)i));
    }
    for (int i = 0; i < given->history_count; i++)
        given->history[i] = (int32_t)json_integer_value(json_array_get(history, (size_t)i));
    given->sampling.temperature = (float)number_or(params, "temperature", 1);
    given->sampling.top_p = (float)number_or(params, "top_p", 0);
    given->sampling.min_p = (float)number_or(params, "min_p", 0);
    given->sampling.typical_p = (float)number_or(params, "typical_p", 0);
    given->sampling.top_k = (int32_t)number_or(params, "top_k", 0);
    given->sampling.presence = (float)number_or(params, "presence", 0);
    given->sampling.frequency = (float)number_or(params, "frequency", 0);
    given->sampling.repetition = (float)number_or(params, "repetition", 0);
    given->sampling.seed = 42;
    read_biases(params, &given->sampling);
    read_banned(params, &given->sampling);
}

/* ---- the draws ------------------------------------------------------------------------------- */

/* Row r of a step is token r; its embedding is the unit vector that picks the logits. */
static struct pd_graph *record(struct pd_rig *rig, const struct given *given)
{
    float *head = calloc((size_t)given->vocabulary * ROWS, sizeof(*head)), unit[ROWS * ROWS] = {0};
    struct pd_weight_source source = {head, PD_F32, given->vocabulary};
    struct pd_tensor x = pd_rig_tensor(rig, rig->options.max_tokens, ROWS);
    struct pd_tensor picked = pd_rig_tensor(rig, rig->options.max_seqs, ROWS);
    struct pd_tensor out = pd_rig_tensor(rig, rig->options.max_seqs, given->vocabulary);
    struct pd_weight *input, *weight;
    struct pd_graph *graph;

    assert_non_null(head);
    for (int r = 0; r < ROWS; r++) {
        unit[r * ROWS + r] = 1;
        for (int v = 0; v < given->vocabulary; v++)
            head[v * ROWS + r] = given->logits[v];
    }
    assert_int_equal(
        pd_weight_create(rig->device, PD_WEIGHT_ROWS, ROWS, &source, 1, false, &weight),
        PD_KERNEL_OK);
    free(head);
    input = pd_rig_input(rig, unit, ROWS, ROWS);
    graph = pd_rig_begin(rig);
    pd_op_embed(graph, input, x);
    pd_op_gather(graph, x, picked);
    pd_op_matmul(graph, weight, picked, NULL, PD_EPILOGUE_NONE, true, out);
    pd_op_sample(graph, out);
    pd_rig_end(graph);
    return graph;
}

static struct pd_step *fill_step(struct pd_rig *rig, const struct given *given, int number)
{
    const struct pd_eos eos = {NULL, 0};
    struct pd_step *step = NULL;

    for (int32_t r = 0; r < ROWS; r++) {
        if (r == 0)
            step = pd_rig_step(rig, r, &r, 1, given->history_count, 0);
        else
            pd_rig_add(rig, step, r, &r, 1, given->history_count, 0);
    }
    step->samples = 0;
    for (int r = 0; r < ROWS; r++) {
        const struct pd_sample_point point = {
            .row = r,
            .slot = r,
            .draw = (uint32_t)(number * ROWS + r),
            .history = given->history_count,
            .prompt = given->prompt,
        };

        if (number == 0)
            assert_int_equal(
                pd_history_write(rig->device, r, 0, given->history, given->history_count),
                PD_KERNEL_OK);
        assert_true(pd_sampling_fill(&given->sampling, &eos, &point, step));
    }
    return step;
}

static void draw(const struct given *given, const char *kind, const char *isa, int *seen)
{
    struct pd_device_options options = pd_rig_options(kind, isa, 2);
    struct pd_graph *graph;
    struct pd_rig rig;

    options.vocabulary = given->vocabulary;
    pd_rig_open(&rig, &options);
    graph = record(&rig, given);
    for (int i = 0; i < STEPS; i++) {
        struct pd_step *step = fill_step(&rig, given, i);

        pd_rig_run(&rig, graph, step);
        for (int s = 0; s < ROWS; s++) {
            assert_int_equal(step->sample_fault[s], 0);
            seen[step->sampled[s]]++;
        }
    }
    pd_rig_close(&rig);
}

/* ---- the comparison -------------------------------------------------------------------------- */

static double cell(double seen, double expected)
{
    return (seen - expected) * (seen - expected) / expected;
}

static void check_case(int number, struct given *given, const char *kind, const char *isa)
{
    int seen[TOKENS_MAX] = {0}, cells = 0;
    double chi = 0, rare = 0, rare_seen = 0;

    draw(given, kind, isa, seen);
    for (int i = 0; i < given->vocabulary; i++) {
        double expected = given->probabilities[i] * DRAWS;

        if (expected == 0 && seen[i] > 0)
            fail_msg("case %d, %s %s: token %d was drawn %d times", number, kind, isa, i, seen[i]);
        if (expected < 10) { /* together one cell */
            rare += expected;
            rare_seen += seen[i];
            continue;
        }
        chi += cell(seen[i], expected);
        cells++;
    }
    if (rare >= 10) {
        chi += cell(rare_seen, rare);
        cells++;
    }
    /* chi-square with cells - 1 degrees: mean cells - 1, deviation sqrt(2 (cells - 1)) */
    if (chi > cells - 1 + 5 * sqrt(2.0 * cells))
        fail_msg("case %d, %s %s: chi-square %g over %d cells", number, kind, isa, chi, cells);
}

static void test_against_transformers(void **state)
{
    json_error_t where;
    json_t *root = json_load_file(reference_file, 0, &where), *cases;
    struct pd_error error;
    struct given given;
    const char *param;

    (void)state;
    if (!root)
        fail_msg("%s: %s (run from the top of the tree)", reference_file, where.text);
    cases = json_object_get(root, "cases");
    assert_true(json_array_size(cases) > 10);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        read_given(root, json_array_get(cases, i), &given);
        assert_int_equal(pd_sampling_normalise(&given.sampling, given.vocabulary, &param, &error),
                         PD_OK);
        check_case((int)i, &given, "reference", "");
        for (const char *const *path = pd_rig_paths(); *path; path++)
            check_case((int)i, &given, "cpu", *path);
        free(given.sampling.bias);
    }
    print_message("# %zu distributions of transformers met by %d draws each\n",
                  json_array_size(cases), DRAWS);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_transformers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
