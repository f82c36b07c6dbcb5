/* Sampling parameters: ranges, normal form, and what a step descriptor says of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/sample/sampling.h"

enum { VOCABULARY = 100, SAMPLES = 64 };

static const int32_t eos_tokens[] = {2, 3};
static const struct pd_eos eos = {eos_tokens, 2};

static struct pd_sampling plain(void)
{
    return (struct pd_sampling){
        .temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1, .seed = 7};
}

/* The field at fault, "" if none. */
static const char *fault_of(struct pd_sampling *sampling)
{
    struct pd_error error = {0};
    const char *param = "unset";
    int status = pd_sampling_normalise(sampling, VOCABULARY, &param, &error);

    assert_int_equal(status, *param ? PD_INVALID : PD_OK);
    if (*param)
        assert_non_null(strstr(error.text, param));
    return param;
}

#define REFUSED(name, ...)                                                                         \
    do {                                                                                           \
        struct pd_sampling s = plain();                                                            \
        __VA_ARGS__;                                                                               \
        assert_string_equal(fault_of(&s), name);                                                   \
    } while (0)

static void test_every_range_is_checked(void **state)
{
    (void)state;
    REFUSED("", (void)0);
    REFUSED("temperature", s.temperature = 2.01f);
    REFUSED("temperature", s.temperature = -0.1f);
    REFUSED("temperature", s.temperature = NAN);
    REFUSED("temperature", s.temperature = INFINITY);
    REFUSED("top_p", s.top_p = 1.5f);
    REFUSED("top_p", s.top_p = NAN);
    REFUSED("min_p", s.min_p = -1);
    REFUSED("typical_p", s.typical_p = 1.01f);
    REFUSED("presence_penalty", s.presence = -2.5f);
    REFUSED("frequency_penalty", s.frequency = 2.5f);
    REFUSED("repetition_penalty", s.repetition = -1);
    REFUSED("top_k", s.top_k = -1);
    REFUSED("top_logprobs", s.logprobs = 22);
    REFUSED("", s.logprobs = 21);
    REFUSED("stop_token_ids", s.stop_token_count = PD_STOP_TOKENS_MAX + 1);
    REFUSED("stop_token_ids", (s.stop_tokens[0] = VOCABULARY, s.stop_token_count = 1));
    REFUSED("stop_token_ids", (s.stop_tokens[0] = -1, s.stop_token_count = 1));
    REFUSED("min_tokens", (s.max_tokens = 4, s.min_tokens = 5));
    REFUSED("", (s.max_tokens = 0, s.min_tokens = 5));
}

static void with_bias(struct pd_sampling *s, int count)
{
    s->bias = calloc((size_t)count, sizeof(*s->bias));
    s->bias_count = count;
    for (int i = 0; i < count; i++) {
        s->bias[i].token = i % VOCABULARY;
        s->bias[i].bias = (float)(i % 100);
    }
}

static void test_biases_are_checked(void **state)
{
    struct pd_sampling s = plain();

    (void)state;
    with_bias(&s, PD_BIAS_MAX);
    assert_string_equal(fault_of(&s), "");
    s.bias[3].token = VOCABULARY;
    assert_string_equal(fault_of(&s), "logit_bias");
    s.bias[3].token = 3;
    s.bias[9].bias = NAN;
    assert_string_equal(fault_of(&s), "logit_bias");
    s.bias[9].bias = -101;
    assert_string_equal(fault_of(&s), "logit_bias");
    s.bias[9].bias = 1;
    s.bias_count = PD_BIAS_MAX + 1;
    assert_string_equal(fault_of(&s), "logit_bias");
    free(s.bias);
}

static void test_normal_form(void **state)
{
    struct pd_sampling s = {.temperature = 0.5f, .top_k = VOCABULARY};

    (void)state;
    assert_string_equal(fault_of(&s), "");
    assert_true(s.top_p == 1 && s.repetition == 1 && s.top_k == 0 && s.temperature == 0.5f);
    s = (struct pd_sampling){
        .temperature = 1e-9f, .top_p = 0.5f, .top_k = 5, .min_p = 0.1f, .typical_p = 0.5f};
    assert_string_equal(fault_of(&s), "");
    assert_true(s.temperature == 0 && s.top_p == 1 && s.top_k == 0 && s.min_p == 0 &&
                s.typical_p == 1);
}

static void test_what_ends_an_answer(void **state)
{
    struct pd_sampling s = plain();

    (void)state;
    s.stop_tokens[0] = 42;
    s.stop_token_count = 1;
    assert_true(pd_sampling_ends_with(&s, &eos, 2));
    assert_true(pd_sampling_ends_with(&s, &eos, 3));
    assert_true(pd_sampling_ends_with(&s, &eos, 42));
    assert_false(pd_sampling_ends_with(&s, &eos, 4));
    s.ignore_eos = true;
    assert_false(pd_sampling_ends_with(&s, &eos, 2));
    assert_true(pd_sampling_ends_with(&s, &eos, 42));
}

/* ---- the step descriptor
 * ------------------------------------------------------------------------- */

static int32_t sample_row[SAMPLES], sample_slot[SAMPLES];
static int32_t bias_token[PD_STEP_BIAS], banned[PD_STEP_BANNED];
static float bias_value[PD_STEP_BIAS];
static struct pd_sample_params params[SAMPLES];

static struct pd_step empty_step(void)
{
    return (struct pd_step){.sample_row = sample_row,
                            .sample_slot = sample_slot,
                            .sample = params,
                            .bias_token = bias_token,
                            .bias_value = bias_value,
                            .banned = banned};
}

static void test_a_row_says_what_was_asked(void **state)
{
    struct pd_sampling s = plain();
    struct pd_step step = empty_step();
    struct pd_sample_point point = {.row = 5, .slot = 6, .draw = 7, .history = 8, .prompt = 4};

    (void)state;
    s.temperature = 0.25f;
    s.top_p = 0.5f;
    s.min_p = 0.125f;
    s.typical_p = 0.75f;
    s.top_k = 11;
    s.presence = 1;
    s.frequency = -1;
    s.repetition = 1.5f;
    s.logprobs = 3;
    s.seed = UINT64_C(0x123456789abcdef0);
    assert_true(pd_sampling_fill(&s, &eos, &point, &step));
    assert_int_equal(step.samples, 1);
    assert_int_equal(sample_row[0], 5);
    assert_int_equal(sample_slot[0], 6);
    assert_true(params[0].temperature == 0.25f && params[0].top_p == 0.5f);
    assert_true(params[0].min_p == 0.125f && params[0].typical_p == 0.75f &&
                params[0].presence == 1 && params[0].frequency == -1);
    assert_true(params[0].repetition == 1.5f && params[0].seed == s.seed);
    assert_int_equal(params[0].top_k, 11);
    assert_int_equal(params[0].logprobs, 3);
    assert_int_equal(params[0].draw, 7);
    assert_int_equal(params[0].history, 8);
    assert_int_equal(params[0].prompt, 4);
    assert_int_equal(params[0].bias_count, 0);
    assert_int_equal(params[0].banned_count, 0);
}

static void test_endings_are_banned_until_min_tokens(void **state)
{
    struct pd_sampling s = plain();
    struct pd_step step = empty_step();
    struct pd_sample_point point = {.draw = 1};

    (void)state;
    s.min_tokens = 2;
    s.stop_tokens[0] = 42;
    s.stop_token_count = 1;
    assert_true(pd_sampling_fill(&s, &eos, &point, &step)); /* token 1: too early */
    point.draw = 2;
    assert_true(pd_sampling_fill(&s, &eos, &point, &step)); /* token 2: may end */
    s.ignore_eos = true;
    point.draw = 0;
    assert_true(pd_sampling_fill(&s, &eos, &point, &step)); /* EOS is a token like any other */
    assert_int_equal(params[0].banned_first, 0);
    assert_int_equal(params[0].banned_count, 3);
    assert_int_equal(params[1].banned_count, 0);
    assert_int_equal(params[2].banned_first, 3);
    assert_int_equal(params[2].banned_count, 1);
    assert_int_equal(banned[0], 42);
    assert_int_equal(banned[1], 2);
    assert_int_equal(banned[2], 3);
    assert_int_equal(banned[3], 42);
}

static void test_pools_have_a_limit(void **state)
{
    struct pd_sampling s = plain(), small = plain();
    struct pd_step step = empty_step();
    struct pd_sample_point point = {0};
    int full = PD_STEP_BIAS / PD_BIAS_MAX;

    (void)state;
    with_bias(&s, PD_BIAS_MAX);
    with_bias(&small, 1);
    for (int i = 0; i < full; i++)
        assert_true(pd_sampling_fill(&s, &eos, &point, &step));
    assert_false(pd_sampling_fill(&s, &eos, &point, &step));
    assert_false(pd_sampling_fill(&small, &eos, &point, &step));
    assert_int_equal(step.samples, full);
    for (int i = 0; i < full; i++) {
        assert_int_equal(params[i].bias_first, i * PD_BIAS_MAX);
        assert_int_equal(params[i].bias_count, PD_BIAS_MAX);
        assert_int_equal(bias_token[i * PD_BIAS_MAX + 150], 50);
        assert_true(bias_value[i * PD_BIAS_MAX + 199] == 99);
    }
    small.bias_count = 0;
    assert_true(pd_sampling_fill(&small, &eos, &point, &step));
    free(s.bias);
    free(small.bias);
}

static void test_banned_pool_has_a_limit(void **state)
{
    struct pd_sampling s = plain();
    struct pd_step step = empty_step();
    struct pd_sample_point point = {0};
    int each = PD_STOP_TOKENS_MAX + eos.count, filled = 0;

    (void)state;
    s.min_tokens = 1;
    s.stop_token_count = PD_STOP_TOKENS_MAX;
    while (filled < SAMPLES && pd_sampling_fill(&s, &eos, &point, &step))
        filled++;
    assert_int_equal(filled, PD_STEP_BANNED / each);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_range_is_checked),
        cmocka_unit_test(test_biases_are_checked),
        cmocka_unit_test(test_normal_form),
        cmocka_unit_test(test_what_ends_an_answer),
        cmocka_unit_test(test_a_row_says_what_was_asked),
        cmocka_unit_test(test_endings_are_banned_until_min_tokens),
        cmocka_unit_test(test_pools_have_a_limit),
        cmocka_unit_test(test_banned_pool_has_a_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
