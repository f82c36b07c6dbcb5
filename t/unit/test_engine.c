/* The engine without a hand-off: the same tokens whatever the batch, the chunks, the cache or the
 * preemptions; the rules that end answers; refusals, cancels, and no block lost by any of it. */
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
#include "worker/engine/internal.h"
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

/* ---- the same tokens ------------------------------------------------------------------------- */

static void test_alone_as_the_oracle(void **state)
{
    struct lab_options options = lab_defaults();
    int32_t answer[LONG];

    (void)state;
    open_lab(&options);
    for (uint64_t i = 0; i < PROMPTS; i++) {
        lab_oracle(prompts[i], NULL, answer, LONG);
        lab_submit(&lab, lab_request(&lab, i, prompts[i], LONG));
        lab_expect(&lab, i, answer, LONG);
        assert_int_equal(lab.answers[i].end.finish, LENGTH);
        assert_int_equal(lab.answers[i].placed, 1);
        assert_int_equal(lab.answers[i].where.prompt_tokens, strlen(prompts[i]));
        assert_int_equal(lab.answers[i].end.completion_tokens, LONG);
    }
    close_lab();
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

/* All prompts at once, half of them sampled, on an engine of this shape: they wait when it starts, so
 * that who meets whom does not hang on how fast this thread is. */
static void crowd(const struct lab_options *options, uint32_t length)
{
    struct pd_sampling sampling = {0};
    int32_t answer[LAB_TOKENS];

    lab_open(&lab, options);
    for (uint64_t i = 0; i < 2 * PROMPTS; i++) {
        struct pd_request *request = lab_request(&lab, i, prompts[i % PROMPTS], length);

        if (i >= PROMPTS)
            warm(&request->sampling, i);
        lab_submit(&lab, request);
    }
    lab_start(&lab, NULL);
    for (uint64_t i = 0; i < 2 * PROMPTS; i++) {
        warm(&sampling, i);
        lab_oracle(prompts[i % PROMPTS], i >= PROMPTS ? &sampling : NULL, answer, (int)length);
        lab_expect(&lab, i, answer, (int)length);
    }
}

static void test_any_batch_chunk_and_block(void **state)
{
    static const int shapes[][3] = {{4, 4, 8},   {5, 4, 16},    {16, 1, 32}, {16, 4, 8},
                                    {16, 4, 16}, {200, 12, 32}, {7, 3, 8},   {7, 3, 24}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        struct lab_options options = lab_defaults();

        options.model.max_tokens = shapes[i][0];
        options.model.max_seqs = shapes[i][1];
        options.model.block_size = shapes[i][2];
        options.model.kv_blocks = 300;
        options.no_caching = i % 2;
        crowd(&options, LONG);
        assert_int_equal(lab_load(&lab).preemptions, 0);
        close_lab();
    }
}

static int preempted, older_than_some, out_of_turn;

/* Whoever goes first is younger than all that stay, and waits in front of those that came later. */
static void see_the_first_preempted(struct lab *at, uint64_t step)
{
    const struct pd_sequence *s, *gone = NULL;

    (void)step;
    TAILQ_FOREACH (s, &at->engine->waiting, queue) {
        const struct pd_sequence *next = TAILQ_NEXT(s, queue);

        out_of_turn += next && next->number < s->number;
    }
    if (preempted > 0 || at->engine->load.preemptions == 0)
        return;
    TAILQ_FOREACH (s, &at->engine->waiting, queue) {
        if (s->timing.preemptions > 0 && (!gone || s->number < gone->number))
            gone = s;
    }
    preempted = gone != NULL;
    TAILQ_FOREACH (s, &at->engine->running, queue) {
        older_than_some += gone && gone->number < s->number;
    }
}

static void test_the_youngest_is_preempted(void **state)
{
    struct lab_options options = lab_defaults();

    (void)state;
    options.model.kv_blocks = 24;
    preempted = older_than_some = out_of_turn = 0;
    lab_open(&lab, &options);
    lab.on_step = see_the_first_preempted;
    for (uint64_t id = 0; id < 6; id++)
        lab_submit(&lab, lab_request(&lab, id, prompts[id % 4], 100));
    lab_start(&lab, NULL);
    for (uint64_t id = 0; id < 6; id++) {
        assert_false(lab_wait(&lab, id)->failed);
        assert_int_equal(lab.answers[id].end.cached_tokens, lab.answers[id].where.cached_tokens);
    }
    assert_int_equal(preempted, 1);
    assert_int_equal(older_than_some, 0);
    assert_int_equal(out_of_turn, 0);
    close_lab();
}

static void test_preemption_changes_nothing(void **state)
{
    struct lab_options options = lab_defaults();

    (void)state;
    for (int caching = 0; caching < 2; caching++) {
        options.no_caching = !caching;
        options.model.kv_blocks = 24; /* four sequences of up to 126 tokens do not fit */
        crowd(&options, LONG);
        assert_true(lab_load(&lab).preemptions > 0);
        assert_int_equal(lab.answers[0].end.timing.preemptions, 0); /* the oldest never */
        close_lab();
    }
}

static void a_long_one_when_placed(struct lab *at, const struct pd_placed *placed)
{
    if (placed->id.request == 0)
        lab_submit(
            at, lab_request(at, 1,
                            "64 tokens of prompt, which would take all blocks that are left..", 8));
}

/* A prompt is not let in where the next steps of the answers in progress would push it out again. */
static void test_admission_leaves_room_to_grow(void **state)
{
    struct lab_options options = lab_defaults();

    (void)state;
    options.model.max_model_len = 72;
    options.model.kv_blocks = 9;
    options.no_caching = true;
    lab_open(&lab, &options);
    lab.on_placed = a_long_one_when_placed;
    lab_start(&lab, NULL);
    lab_submit(&lab, lab_request(&lab, 0, "8 tokens", 16));
    assert_int_equal(lab_wait(&lab, 0)->count, 16);
    assert_int_equal(lab_wait(&lab, 1)->count, 8);
    assert_int_equal(lab_load(&lab).preemptions, 0);

    /* who has to wait is told of once, and is part of the load from then on */
    assert_int_equal(lab.answers[0].queued, 0);
    assert_int_equal(lab.answers[1].queued, 1);
    assert_int_equal(lab.answers[1].when_queued.waiting, 1);
    assert_true(lab.answers[1].when_queued.prefill_queued_tokens >= 64);

    /* and so is what the running one keeps from it */
    assert_int_equal(lab.answers[1].when_queued.kv_growth, 1);
    assert_int_equal(lab_load(&lab).kv_growth, 0);
    close_lab();
}

static void ask_with_limit(uint64_t id, const char *prompt, uint32_t most)
{
    struct pd_request *request = lab_request(&lab, id, prompt, 4);

    request->redirect_above = most;
    lab_submit(&lab, request);
    lab_wait(&lab, id);
}

/* What is more to compute than the dispatcher thought goes back before it is computed; what is in the
 * cache counts for nothing. */
static void test_too_much_to_compute_is_redirected(void **state)
{
    static const char prompt[] = "a prompt of more than three blocks of eight tokens";
    const uint32_t length = sizeof(prompt) - 1;
    struct lab_options options = lab_defaults();

    (void)state;
    lab_open(&lab, &options);
    lab_start(&lab, NULL);
    ask_with_limit(0, prompt, 20);
    assert_true(lab.answers[0].failed);
    assert_int_equal(lab.answers[0].code, PD__V1__FAILED__CODE__REDIRECT);
    assert_int_equal(lab.answers[0].placed, 0);
    assert_int_equal(lab_load(&lab).tokens_prefilled, 0);
    ask_with_limit(1, prompt, length);
    assert_false(lab.answers[1].failed);
    assert_int_equal(lab.answers[1].count, 4);
    ask_with_limit(2, prompt, 20);
    assert_false(lab.answers[2].failed);
    assert_true(lab.answers[2].where.cached_tokens >= length - 20);
    close_lab();
}

static void test_a_cached_prefix_changes_nothing(void **state)
{
    struct lab_options options = lab_defaults();
    const char *prompt = prompts[4];
    int32_t answer[LONG];
    size_t length = strlen(prompt);

    (void)state;
    lab_oracle(prompt, NULL, answer, LONG);
    open_lab(&options);
    for (uint64_t i = 0; i < 2; i++) {
        struct pd_request *request = lab_request(&lab, i, prompt, LONG);

        request->sampling.logprobs = 1;
        lab_submit(&lab, request);
        lab_expect(&lab, i, answer, LONG);
    }
    assert_memory_equal(lab.answers[1].logprobs, lab.answers[0].logprobs, LONG * sizeof(float));
    assert_int_equal(lab.answers[0].end.cached_tokens, 0);
    assert_int_equal(lab.answers[1].end.cached_tokens, (length - 1) / 8 * 8);
    assert_int_equal(lab.answers[1].where.cached_tokens, (length - 1) / 8 * 8);
    assert_int_equal(lab_load(&lab).cache_hit_tokens, (length - 1) / 8 * 8);
    close_lab();
}

/* A prompt whose blocks are all cached still has one token to be computed. */
static void test_a_prompt_is_never_cached_whole(void **state)
{
    struct lab_options options = lab_defaults();
    int32_t answer[LONG];

    (void)state;
    open_lab(&options);
    lab_oracle("sixteen tokens..", NULL, answer, LONG);
    for (uint64_t id = 0; id < 2; id++) {
        lab_submit(&lab, lab_request(&lab, id, "sixteen tokens..", LONG));
        lab_expect(&lab, id, answer, LONG);
    }
    assert_int_equal(lab.answers[1].end.cached_tokens, 8);
    close_lab();
}

/* The next turn of a chat finds the blocks of prompt and answer. */
static void test_the_next_turn_is_cached(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_request *request;
    int32_t answer[LONG];

    (void)state;
    open_lab(&options);
    lab_oracle("sixteen tokens..", NULL, answer, LONG);
    lab_submit(&lab, lab_request(&lab, 0, "sixteen tokens..", 20));
    lab_expect(&lab, 0, answer, 20);
    request = lab_request(&lab, 1, "sixteen tokens..", LONG - 20);
    lab_append(&request->prompt, answer, 20);
    lab_submit(&lab, request);
    lab_expect(&lab, 1, answer + 20, LONG - 20);
    assert_int_equal(lab.answers[1].end.cached_tokens, 32);
    close_lab();
}

/* An answer that is continued after any of its tokens goes on as if nothing had happened. */
static void test_generated_tokens_are_replayed(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_sampling sampling = {0};
    const int length = (int)strlen(prompts[1]);
    int32_t answer[LONG];
    struct lab_answer *whole;
    int known;

    (void)state;
    warm(&sampling, 5);
    lab_oracle(prompts[1], &sampling, answer, LONG);
    open_lab(&options);
    for (int cut = 0; cut < LONG; cut += 3) {
        uint64_t id = (uint64_t)cut + 1;
        struct pd_request *request = lab_request(&lab, id, prompts[1], LONG);

        warm(&request->sampling, 5);
        lab_append(&request->generated, answer, (size_t)cut);
        lab_submit(&lab, request);
        lab_expect(&lab, id, answer + cut, LONG - cut);
        whole = &lab.answers[1];
        assert_int_equal(lab.answers[id].first_position, cut);
        assert_int_equal(lab.answers[id].end.prompt_tokens, strlen(prompts[1]));
        assert_int_equal(lab.answers[id].end.completion_tokens, LONG);
        known = (length + cut - 1) / 8 *
                8; /* the one before has computed it, but only the prompt counts */
        assert_int_equal(lab.answers[id].end.cached_tokens, cut == 0         ? 0
                                                            : known < length ? known
                                                                             : length);
        assert_memory_equal(whole->text + whole->text_length - lab.answers[id].text_length,
                            lab.answers[id].text, lab.answers[id].text_length);
    }
    close_lab();
}

static void test_log_probabilities(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_sample_params params = {.top_p = 1, .typical_p = 1, .repetition = 1, .logprobs = 4};
    struct pd_request *request;
    int32_t tokens[8], answer[LONG];
    float logprobs[LONG];

    (void)state;
    for (int i = 0; i < 8; i++)
        tokens[i] = "log prob"[i];
    tiny_model_answer(tokens, 8, params, answer, logprobs, LONG);
    open_lab(&options);
    request = lab_request(&lab, 0, "log prob", LONG);
    request->sampling.logprobs = 4;
    lab_submit(&lab, request);
    lab_expect(&lab, 0, answer, LONG);
    assert_memory_equal(lab.answers[0].logprobs, logprobs, sizeof(logprobs));
    assert_int_equal(lab.answers[0].end.logprob_stride, 4);
    close_lab();
}

enum { MANY = 10, BIASES = 1024, SHORT = 20 };

/* A request whose biases make it say one letter, and fill a quarter of a step's room for biases. */
static void submit_biased(struct lab *at, uint64_t id)
{
    struct pd_request *request = lab_request(at, id, "a", SHORT);

    request->sampling.bias = calloc(BIASES, sizeof(*request->sampling.bias));
    request->sampling.bias_count = BIASES;
    for (int k = 0; k < BIASES; k++) {
        request->sampling.bias[k].token = k == 0 ? 'A' + (int32_t)id : k % 26 + 'a';
        request->sampling.bias[k].bias = k == 0 ? 100 : -1;
    }
    lab_submit(at, request);
}

static void the_others_when_placed(struct lab *at, const struct pd_placed *placed)
{
    for (uint64_t id = 1; placed->id.request == 0 && id < MANY; id++)
        submit_biased(at, id);
}

/* Biases of more sequences than a step has room for: each waits its turn, which comes. */
static void test_crowded_sampling_parameters(void **state)
{
    struct lab_options options = lab_defaults();

    (void)state;
    options.model.max_seqs = MANY;
    lab_open(&lab, &options);
    lab.on_placed = the_others_when_placed;
    lab_start(&lab, NULL);
    submit_biased(&lab, 0);
    for (uint64_t id = 0; id < MANY; id++) {
        int32_t letter = 'A' + (int32_t)id;
        int32_t answer[SHORT];

        for (int i = 0; i < SHORT; i++)
            answer[i] = letter;
        lab_expect(&lab, id, answer, SHORT);
        assert_in_range(lab.answers[id].end_step, MANY * SHORT / 4 - 8, MANY * SHORT / 4 + 5);
    }
    close_lab();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone_as_the_oracle),
        cmocka_unit_test(test_any_batch_chunk_and_block),
        cmocka_unit_test(test_preemption_changes_nothing),
        cmocka_unit_test(test_the_youngest_is_preempted),
        cmocka_unit_test(test_admission_leaves_room_to_grow),
        cmocka_unit_test(test_too_much_to_compute_is_redirected),
        cmocka_unit_test(test_a_cached_prefix_changes_nothing),
        cmocka_unit_test(test_a_prompt_is_never_cached_whole),
        cmocka_unit_test(test_the_next_turn_is_cached),
        cmocka_unit_test(test_generated_tokens_are_replayed),
        cmocka_unit_test(test_log_probabilities),
        cmocka_unit_test(test_crowded_sampling_parameters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
