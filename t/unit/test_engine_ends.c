/* How requests end in an engine: by their rules, by refusal, by cancel, deadline or a model's fault; each with
 * one last word, and with no block lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/pd.pb-c.h"
#include "t/unit/engine_lab.h"
#include "worker/base/clock.h"

enum {
    STOP = PD__V1__FINISH_REASON__FINISH_STOP,
    LENGTH = PD__V1__FINISH_REASON__FINISH_LENGTH,
    LONG = 40,
};

static const char *const prompts[] = {
    "a",
    "The quick brown fox jumps over",
    "The quick brown fox sleeps under the old tree.",
    "0123456789abcdef0123456789abcdef0123456789abcdef",
    "One more, of quite another kind; and with a longer tail than most of the others have.",
    "!",
};
enum { PROMPTS = sizeof(prompts) / sizeof(*prompts) };

static struct lab lab;

static void open_lab(const struct lab_options *options)
{
    lab_open(&lab, options);
    lab_start(&lab, NULL);
}

static void close_lab(void)
{
    lab_stop(&lab);
    lab_close(&lab);
}

/* Sampling that depends on everything that could go wrong: seed, draw, history. */
static void warm(struct pd_sampling *sampling, uint64_t seed)
{
    sampling->temperature = 1.3f;
    sampling->top_p = 0.95f;
    sampling->top_k = 50;
    sampling->presence = 0.5f;
    sampling->frequency = 0.25f;
    sampling->repetition = 1.2f;
    sampling->seed = seed;
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* An answer in which `*at` > 1 is the index of a token's first occurrence that is a printable byte.
 */
static void wander(int32_t *answer, int *at)
{
    struct pd_sampling sampling = {0};
    bool seen[TINY_VOCABULARY] = {false};

    warm(&sampling, 3);
    lab_oracle(prompts[2], &sampling, answer, LONG);
    *at = 0;
    for (int i = 0; i < LONG && !*at; i++) {
        if (i > 5 && !seen[answer[i]] && answer[i] > 32 && answer[i] < 127)
            *at = i;
        seen[answer[i]] = true;
    }
    assert_true(*at > 0);
}

static struct pd_request *wandering_request(uint64_t id)
{
    struct pd_request *request = lab_request(&lab, id, prompts[2], LONG);

    warm(&request->sampling, 3);
    return request;
}

static void test_stop_tokens(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_request *request;
    int32_t answer[LONG];
    char name[16];
    int at;

    (void)state;
    wander(answer, &at);
    open_lab(&options);
    for (uint64_t id = 0; id < 2; id++) {
        request = wandering_request(id);
        request->sampling.stop_tokens[0] = answer[at];
        request->sampling.stop_token_count = 1;
        request->sampling.include_stop = id == 1;
        lab_submit(&lab, request);
        lab_expect(&lab, id, answer, at + 1); /* the token is reported, its text is not */
        assert_int_equal(lab.answers[id].end.finish, STOP);
        snprintf(name, sizeof(name), "%d", answer[at]);
        assert_string_equal(lab.answers[id].end.stop_matched, name);
    }
    assert_int_equal(lab.answers[1].text_length, lab.answers[0].text_length + 1);
    assert_int_equal(lab.answers[1].text[lab.answers[0].text_length], answer[at]);
    close_lab();
}

/* The step behind the last token had been launched already: its row is computed for nothing, and its
 * token is not said. */
static void test_a_late_stop_costs_one_step(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_request *request;
    int32_t answer[LONG];
    int at;

    (void)state;
    wander(answer, &at);
    open_lab(&options);
    request = wandering_request(0);
    request->sampling.stop_tokens[0] = answer[at];
    request->sampling.stop_token_count = 1;
    lab_submit(&lab, request);
    lab_expect(&lab, 0, answer, at + 1);
    lab_wait_rest(&lab);
    /* Three steps of prompt, the last of which gives token 0. */
    assert_int_equal(lab_load(&lab).steps, 3 + at + 1);
    assert_int_equal(lab_load(&lab).tokens_decoded, at);
    close_lab();
}

static void test_end_of_sequence(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_request *request;
    int32_t answer[LONG];
    int at;

    (void)state;
    wander(answer, &at);
    options.model.eos = answer[at];
    open_lab(&options);
    request = wandering_request(0);
    request->sampling.ignore_eos = false;
    lab_submit(&lab, request);
    lab_expect(&lab, 0, answer, at + 1);
    assert_int_equal(lab.answers[0].end.finish, STOP);
    assert_string_equal(lab.answers[0].end.stop_matched, "");
    lab_submit(&lab, wandering_request(1)); /* ignore_eos */
    lab_expect(&lab, 1, answer, LONG);
    close_lab();
}

static void test_min_tokens(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_request *request;
    const struct lab_answer *heard;
    int32_t answer[LONG];
    int at;

    (void)state;
    wander(answer, &at);
    open_lab(&options);
    request = wandering_request(0);
    request->sampling.stop_tokens[0] = answer[at];
    request->sampling.stop_token_count = 1;
    request->sampling.min_tokens = LONG;
    lab_submit(&lab, request);
    heard = lab_wait(&lab, 0);
    assert_int_equal(heard->count, LONG);
    assert_memory_equal(heard->tokens, answer, (size_t)at * sizeof(*answer));
    for (int i = 0; i < LONG; i++)
        assert_int_not_equal(heard->tokens[i], answer[at]);
    close_lab();
}

static void test_stop_strings(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_request *request;
    int32_t answer[LONG];
    char stop[2] = "";
    int at;

    (void)state;
    wander(answer, &at);
    stop[0] = (char)answer[at];
    open_lab(&options);
    for (uint64_t id = 0; id < 2; id++) {
        request = wandering_request(id);
        lab_stop_string(&lab, request, stop, id == 1);
        lab_submit(&lab, request);
        lab_expect(&lab, id, answer, at + 1);
        assert_int_equal(lab.answers[id].end.finish, STOP);
        assert_string_equal(lab.answers[id].end.stop_matched, stop);
    }
    assert_int_equal(lab.answers[1].text_length, lab.answers[0].text_length + 1);
    close_lab();
}

/* What might have become a stop string did not: the answer's length ended it. */
static void test_text_that_was_held_back_is_said(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_request *request;
    int32_t answer[LONG];
    char stop[] = "??";
    int at;

    (void)state;
    wander(answer, &at);
    stop[0] = (char)answer[at];
    open_lab(&options);
    for (uint64_t id = 0; id < 2; id++) {
        request = wandering_request(id);
        request->sampling.max_tokens = (uint32_t)at + 1;
        if (id == 1)
            lab_stop_string(&lab, request, stop, false);
        lab_submit(&lab, request);
        lab_expect(&lab, id, answer, at + 1);
        assert_int_equal(lab.answers[id].end.finish, LENGTH);
    }
    assert_int_equal(lab.answers[1].text_length, lab.answers[0].text_length);
    assert_int_equal(lab.answers[1].text[lab.answers[1].text_length - 1], answer[at]);
    close_lab();
}

static void test_as_many_as_fit(void **state)
{
    struct lab_options options = lab_defaults();

    (void)state;
    open_lab(&options);
    lab_submit(&lab, lab_request(&lab, 0, prompts[1], 0));
    assert_int_equal(lab_wait(&lab, 0)->count, 160 - strlen(prompts[1]));
    assert_int_equal(lab.answers[0].end.finish, LENGTH);
    close_lab();
}

/* An earlier attempt had said the last token already. */
static void test_a_finished_answer_is_not_continued(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_request *request;
    int32_t answer[LONG];
    int at;

    (void)state;
    wander(answer, &at);
    open_lab(&options);
    request = wandering_request(0);
    request->sampling.stop_tokens[0] = answer[at];
    request->sampling.stop_token_count = 1;
    lab_append(&request->generated, answer, (size_t)at + 1);
    lab_submit(&lab, request);
    assert_int_equal(lab_wait(&lab, 0)->count, 0);
    assert_int_equal(lab.answers[0].end.finish, STOP);
    assert_int_equal(lab.answers[0].end.completion_tokens, at + 1);
    request = wandering_request(1);
    lab_append(&request->generated, answer, LONG);
    lab_submit(&lab, request);
    assert_int_equal(lab_wait(&lab, 1)->count, 0);
    assert_int_equal(lab.answers[1].end.finish, LENGTH);
    assert_int_equal(lab_load(&lab).tokens_prefilled, 0);
    close_lab();
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refused(struct pd_request *request, int code, const char *param)
{
    uint64_t id = request->id.request;

    lab_submit(&lab, request);
    assert_true(lab_wait(&lab, id)->failed);
    assert_int_equal(lab.answers[id].code, code);
    assert_string_equal(lab.answers[id].param, param);
    assert_int_equal(lab.answers[id].placed, 0);
}

static void test_refusals(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_request *request;
    int32_t outside = TINY_VOCABULARY;

    (void)state;
    open_lab(&options);
    refused(lab_request(&lab, 0, "", 5), PD__V1__FAILED__CODE__INVALID, "");
    refused(lab_request(&lab, 1, "too long", 153), PD__V1__FAILED__CODE__CONTEXT_LENGTH, "");
    request = lab_request(&lab, 2, "wrong", 5);
    request->prompt.ids[2] = outside;
    refused(request, PD__V1__FAILED__CODE__INVALID, "prompt");
    request = lab_request(&lab, 3, "wrong", 5);
    lab_append(&request->generated, &outside, 1);
    refused(request, PD__V1__FAILED__CODE__INVALID, "generated");
    request = lab_request(&lab, 4, "hot", 5);
    request->sampling.temperature = 3;
    refused(request, PD__V1__FAILED__CODE__INVALID, "temperature");
    request = lab_request(&lab, 5, "no kvx here", 5);
    request->route = PD_ROUTE_PREFILL;
    refused(request, PD__V1__FAILED__CODE__INVALID, "");
    lab_submit(&lab, lab_request(&lab, 6, "this fits", 151));
    assert_int_equal(lab_wait(&lab, 6)->count, 151);
    pd_engine_drain(lab.engine);
    refused(lab_request(&lab, 7, "late", 5), PD__V1__FAILED__CODE__DRAINING, "");
    assert_true(lab.answers[7].retry_after_ms > 0);
    close_lab();
}

static void five_more_when_placed(struct lab *at, const struct pd_placed *placed)
{
    for (uint64_t i = 1; placed->id.request == 0 && i < 6; i++)
        lab_submit(at, lab_request(at, i, prompts[1], 100));
}

static void test_a_full_queue_refuses(void **state)
{
    struct lab_options options = lab_defaults();
    int refusals = 0;

    (void)state;
    options.model.max_seqs = 1;
    options.max_waiting = 2;
    lab_open(&lab, &options);
    lab.on_placed = five_more_when_placed;
    lab_start(&lab, NULL);
    lab_submit(&lab, lab_request(&lab, 0, prompts[1], 100));
    for (uint64_t i = 0; i < 6; i++) {
        if (!lab_wait(&lab, i)->failed)
            continue;
        assert_int_equal(lab.answers[i].code, PD__V1__FAILED__CODE__CAPACITY);
        assert_true(lab.answers[i].retry_after_ms > 0);
        refusals++;
    }
    assert_int_equal(refusals, 3); /* one runs, two wait */
    close_lab();
}

static void test_draining_lets_the_running_go_on(void **state)
{
    struct lab_options options = lab_defaults();
    int32_t answer[LONG];

    (void)state;
    lab_oracle(prompts[1], NULL, answer, LONG);
    open_lab(&options);
    lab_submit(&lab, lab_request(&lab, 0, prompts[1], LONG));
    pd_engine_drain(lab.engine);
    lab_expect(&lab, 0, answer, LONG);
    lab_wait_rest(&lab);
    assert_true(lab_load(&lab).draining);
    close_lab();
}

static void test_impossible_engines(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_engine_options engine = {.max_model_len = 160,
                                       .max_tokens = 16,
                                       .max_seqs = 4,
                                       .block_size = 8,
                                       .kv_blocks = 60,
                                       .max_waiting = 4};
    struct pd_engine_options wrong;
    struct pd_engine *made;
    struct pd_error error;

    (void)state;
    lab_open(&lab, &options);
    wrong = engine;
    wrong.max_tokens = 3;
    assert_int_equal(
        pd_engine_create(&wrong, lab.model, &lab.model->config, lab.model->device, &made, &error),
        PD_INVALID);
    assert_non_null(strstr(error.text, "--max-num-batched-tokens"));
    wrong = engine;
    wrong.kv_blocks = 19;
    assert_int_equal(
        pd_engine_create(&wrong, lab.model, &lab.model->config, lab.model->device, &made, &error),
        PD_INVALID);
    assert_non_null(strstr(error.text, "--max-model-len"));
    lab_close(&lab);
}

/* ---- early ends ------------------------------------------------------------------------------ */

static void cancel_when_placed(struct lab *at, const struct pd_placed *placed)
{
    pd_engine_cancel(at->engine, placed->id);
}

static void cancel_at_third_token(struct lab *at, const struct pd_output *output)
{
    uint64_t *steps = at->context;

    if (output->position != 2)
        return;
    if (steps)
        steps[output->id.request] = at->steps;
    pd_engine_cancel(at->engine, output->id);
}

static void expect_cancelled(uint64_t id, int most_tokens)
{
    const struct lab_answer *heard = lab_wait(&lab, id);

    assert_true(heard->failed);
    assert_int_equal(heard->code, PD__V1__FAILED__CODE__CANCELLED);
    assert_true(heard->count <= most_tokens);
}

static void test_cancel_during_prefill(void **state)
{
    struct lab_options options = lab_defaults();

    (void)state;
    options.model.max_tokens = 4; /* 22 steps for the prompt */
    lab_open(&lab, &options);
    lab.on_placed = cancel_when_placed;
    lab_start(&lab, NULL);
    lab_submit(&lab, lab_request(&lab, 0, prompts[4], LONG));
    expect_cancelled(0, 0);
    close_lab();
}

/* The cancel comes while a step is told, when one more has been launched at most: the next one that is
 * launched has the sequence no more, and its blocks are free behind that. */
static void test_cancel_during_decode(void **state)
{
    struct lab_options options = lab_defaults();
    uint64_t steps[PROMPTS] = {0};

    (void)state;
    lab_open(&lab, &options);
    lab.on_output = cancel_at_third_token;
    lab.context = steps;
    lab_start(&lab, NULL);
    for (uint64_t i = 0; i < PROMPTS; i++)
        lab_submit(&lab, lab_request(&lab, i, prompts[i], 70));
    for (uint64_t i = 0; i < PROMPTS; i++) {
        expect_cancelled(i, 4);
        assert_true(lab.answers[i].count >= 3);
        assert_in_range(lab.answers[i].end_step, steps[i], steps[i] + 1);
    }
    close_lab();
}

static void cancel_the_waiting(struct lab *at, const struct pd_output *output)
{
    if (output->id.request == 0 && output->position == 0)
        pd_engine_cancel(at->engine, lab_id(1));
}

static void two_more_when_placed(struct lab *at, const struct pd_placed *placed)
{
    for (uint64_t i = 1; placed->id.request == 0 && i < 3; i++)
        lab_submit(at, lab_request(at, i, prompts[1], LONG));
}

static void test_cancel_while_waiting(void **state)
{
    struct lab_options options = lab_defaults();
    int32_t answer[LONG];

    (void)state;
    options.model.max_seqs = 1;
    lab_oracle(prompts[1], NULL, answer, LONG);
    lab_open(&lab, &options);
    lab.on_placed = two_more_when_placed;
    lab.on_output = cancel_the_waiting;
    lab_start(&lab, NULL);
    lab_submit(&lab, lab_request(&lab, 0, prompts[1], LONG));
    expect_cancelled(1, 0);
    assert_int_equal(lab.answers[1].placed, 0);
    lab_expect(&lab, 0, answer, LONG);
    lab_expect(&lab, 2, answer, LONG);
    pd_engine_cancel(lab.engine, lab_id(2));  /* over */
    pd_engine_cancel(lab.engine, lab_id(63)); /* never was */
    close_lab();
}

static void forget_when_it_speaks(struct lab *at, const struct pd_output *output)
{
    if (output->id.request == 0 && output->position == 0)
        pd_engine_forget(at->engine, output->id.attach);
}

static void test_a_lost_stream_takes_its_own(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_request *other;
    int32_t answer[LONG];

    (void)state;
    lab_oracle(prompts[2], NULL, answer, LONG);
    lab_open(&lab, &options);
    lab.on_output = forget_when_it_speaks;
    lab_start(&lab, NULL);
    other = lab_request(&lab, 1, prompts[2], LONG);
    other->id.attach++;
    lab_submit(&lab, other);
    lab_submit(&lab, lab_request(&lab, 0, prompts[1], 100));
    expect_cancelled(0, 3);
    lab_expect(&lab, 1, answer, LONG);
    close_lab();
}

static void test_a_deadline_is_kept(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_request *request;
    int32_t answer[LONG];

    (void)state;
    lab_oracle(prompts[2], NULL, answer, LONG);
    options.model.max_seqs = 1;
    open_lab(&options);
    request = lab_request(&lab, 0, prompts[1], 100);
    request->deadline_ns = pd_clock_ns() + 1;
    lab_submit(&lab, request);
    request = lab_request(&lab, 1, prompts[2], LONG);
    request->deadline_ns = pd_clock_ns() + UINT64_C(60000000000);
    lab_submit(&lab, request);
    assert_true(lab_wait(&lab, 0)->failed);
    assert_int_equal(lab.answers[0].code, PD__V1__FAILED__CODE__DEADLINE);
    lab_expect(&lab, 1, answer, LONG);
    close_lab();
}

static void test_poison_stays_with_its_own(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_request *request;
    int32_t answer[LONG];

    (void)state;
    lab_oracle(prompts[2], NULL, answer, LONG);
    open_lab(&options);
    for (uint64_t i = 0; i < 6; i++) {
        request = lab_request(&lab, i, prompts[2], LONG);
        if (i % 2 == 0)
            request->prompt.ids[20] = TINY_NAN;
        lab_submit(&lab, request);
    }
    for (uint64_t i = 0; i < 6; i++) {
        if (i % 2 == 1) {
            lab_expect(&lab, i, answer, LONG);
            continue;
        }
        assert_true(lab_wait(&lab, i)->failed);
        assert_int_equal(lab.answers[i].code, PD__V1__FAILED__CODE__INTERNAL);
        assert_int_equal(lab.answers[i].count, 0);
    }
    request = lab_request(&lab, 6, prompts[2], LONG);
    request->prompt.ids[20] = TINY_NAN;
    lab_submit(&lab, request);
    assert_true(lab_wait(&lab, 6)->failed);
    assert_true(lab.answers[6].where.cached_tokens <= 16); /* what is poisoned is not kept */
    close_lab();
}

static void test_a_stop_ends_everything(void **state)
{
    struct lab_options options = lab_defaults();

    (void)state;
    open_lab(&options);
    for (uint64_t i = 0; i < 12; i++)
        lab_submit(&lab, lab_request(&lab, i, prompts[i % PROMPTS], 70));
    lab_wait_tokens(&lab, 0, 1);
    pd_engine_stop(lab.engine);
    for (uint64_t i = 0; i < 12; i++)
        assert_int_equal(lab.answers[i].last_words, 1);
    assert_true(pd_engine_idle(lab.engine));
    assert_int_equal(lab_load(&lab).kv_free, 60);
    assert_int_equal(pd_engine_submit(lab.engine, NULL), PD_CLOSED);
    pd_engine_cancel(lab.engine, lab_id(0));
    lab_close(&lab);
}

static void test_one_event_per_step(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_load load;

    (void)state;
    options.model.max_tokens = 8;
    open_lab(&options);
    lab_submit(&lab, lab_request(&lab, 0, "32 tokens, so 4 steps of prompt!", 10));
    lab_wait(&lab, 0);
    lab_wait_rest(&lab);
    load = lab_load(&lab);
    /* 4 of the prompt, the last of which gives the first token, and 9 more. */
    assert_int_equal(load.steps, 13);
    assert_int_equal(load.tokens_prefilled, 32);
    assert_int_equal(load.tokens_decoded, 9);
    assert_int_equal(load.requests, 1);
    assert_true(load.step_us > 0 && load.prefill_us_per_token_x1000 > 0);
    assert_true(lab.events >= 13);
    close_lab();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_tokens),
        cmocka_unit_test(test_a_late_stop_costs_one_step),
        cmocka_unit_test(test_end_of_sequence),
        cmocka_unit_test(test_min_tokens),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_text_that_was_held_back_is_said),
        cmocka_unit_test(test_as_many_as_fit),
        cmocka_unit_test(test_a_finished_answer_is_not_continued),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_a_full_queue_refuses),
        cmocka_unit_test(test_draining_lets_the_running_go_on),
        cmocka_unit_test(test_impossible_engines),
        cmocka_unit_test(test_cancel_during_prefill),
        cmocka_unit_test(test_cancel_during_decode),
        cmocka_unit_test(test_cancel_while_waiting),
        cmocka_unit_test(test_a_lost_stream_takes_its_own),
        cmocka_unit_test(test_a_deadline_is_kept),
        cmocka_unit_test(test_poison_stays_with_its_own),
        cmocka_unit_test(test_a_stop_ends_everything),
        cmocka_unit_test(test_one_event_per_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
