/* Who goes first, who waits, and who may share: seen by steps and by counts, never by time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "kernels/backend.h"
#include "proto/pd.pb-c.h"
#include "t/unit/engine_lab.h"
#include "worker/engine/internal.h"

enum { LONG = 40, ORDER_MAX = 32 };

static struct lab lab;

/* What comes as soon as request 0 has its room, and in which order all have got theirs. */
static struct {
    void (*come)(struct lab *at);
    uint64_t order[ORDER_MAX];
    int placed;
} scene;

static void on_placed(struct lab *at, const struct pd_placed *placed)
{
    assert_true(scene.placed < ORDER_MAX);
    scene.order[scene.placed++] = placed->id.request;
    if (placed->id.request == 0)
        scene.come(at);
}

static void open_scene(const struct lab_options *options, void (*come)(struct lab *at))
{
    memset(&scene, 0, sizeof(scene));
    scene.come = come;
    lab_open(&lab, options);
    lab.on_placed = on_placed;
    lab_start(&lab, NULL);
}

static void close_scene(void)
{
    lab_stop(&lab);
    lab_close(&lab);
}

/* A text of `length` characters that shares no block with another's. */
static const char *text_of(uint64_t id, int length, char text[LAB_TOKENS])
{
    for (int i = 0; i < length; i++)
        text[i] = (char)('a' + (i * 7 + (int)id * 3 + i / 13) % 26);
    text[0] = (char)('A' + (int)id);
    text[length] = '\0';
    return text;
}

static void submit(struct lab *at, uint64_t id, int length, uint32_t answer)
{
    char text[LAB_TOKENS];

    lab_submit(at, lab_request(at, id, text_of(id, length, text), answer));
}

static void expect(uint64_t id, int length, int answer_length)
{
    int32_t answer[LAB_TOKENS];
    char text[LAB_TOKENS];

    lab_oracle(text_of(id, length, text), NULL, answer, answer_length);
    lab_expect(&lab, id, answer, answer_length);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static void a_short_one_comes(struct lab *at)
{
    submit(at, 1, 10, 1);
}

static void test_a_short_prompt_does_not_stand_behind_a_long_one(void **state)
{
    struct lab_options options = lab_defaults();

    (void)state;
    open_scene(&options, a_short_one_comes);
    submit(&lab, 0, 150, 1); /* ten steps of 16 rows */
    expect(1, 10, 1);
    expect(0, 150, 1);
    assert_true(lab.answers[1].end_step <= 3);
    assert_true(lab.answers[0].end_step >= 10);
    close_scene();
}

static void many_short_ones_come(struct lab *at)
{
    for (uint64_t id = 1; id <= 14; id++)
        submit(at, id, 16, 1);
}

/* 64 rows of younger prompts go before a prompt of 64 rows, and no more: 4 steps and its own 4,
 * where all of them would take 14. */
static void test_a_long_prompt_is_not_starved(void **state)
{
    struct lab_options options = lab_defaults();

    (void)state;
    options.model.max_seqs = 16;
    options.model.kv_blocks = 300;
    open_scene(&options, many_short_ones_come);
    submit(&lab, 0, 64, 1);
    expect(0, 64, 1);
    for (uint64_t id = 1; id <= 14; id++)
        expect(id, 16, 1);
    assert_in_range(lab.answers[0].end_step, 6, 11);
    assert_true(lab.answers[14].end_step > lab.answers[0].end_step);
    close_scene();
}

/* ---- slow rows ------------------------------------------------------------------------------- */

/* A device on which 64 rows are believed to take 25 ms, and whose third step does not end before a short
 * prompt that comes meanwhile has its place. */
static struct {
    const struct pd_backend *plain;
    struct pd_backend slow;
    bool came, sampled;
    int waits;
    uint64_t cut; /* the step that was asked to end early */
} third;

static int wait_for_third(struct pd_device *device, uint64_t number, int timeout_ms)
{
    if (number == 3 && lab.answers[1].placed == 0 && third.waits < 100) {
        if (!third.came)
            submit(&lab, 1, 10, 1);
        third.came = true;
        third.waits++;
        return PD_KERNEL_TIMEOUT;
    }
    return third.plain->wait(device, number, timeout_ms);
}

static void open_slow(void)
{
    struct lab_options options = lab_defaults();

    options.model.max_tokens = 64;
    options.model.max_model_len = 240;
    lab_open(&lab, &options);
    lab.engine->pace.alone_ns = 25 * 1000000 / 64;
    third.plain = lab.model->device->backend;
    third.slow = *third.plain;
    third.slow.wait = wait_for_third;
    third.slow.cut = NULL;
    third.came = false;
    third.waits = 0;
    third.cut = 0;
    lab.model->device->backend = &third.slow;
}

static void close_slow(void)
{
    lab_stop(&lab);
    lab.model->device->backend = third.plain;
    lab_close(&lab);
}

static void keep_rows_slow(struct lab *at, uint64_t step)
{
    (void)step;
    at->engine->pace.alone_ns = 25 * 1000000 / 64;
}

/* No chunk of a long prompt is launched ahead of the one that runs: the short prompt is in the very next step. */
static void test_a_short_prompt_waits_for_the_running_step_only(void **state)
{
    (void)state;
    open_slow();
    lab.on_step = keep_rows_slow;
    submit(&lab, 0, 230, 1);
    lab_start(&lab, NULL);
    expect(1, 10, 1);
    expect(0, 230, 1);
    assert_int_equal(lab.answers[1].end_step, 4);
    assert_true(third.waits < 100);
    close_slow();
}

/* The third step computes nothing and seems to go on until it is cut. One that samples is left only for somebody who
 * comes before the next one is behind it. */
static int launch_nothing(struct pd_graph *graph, struct pd_step *step)
{
    if (step->number == 3) {
        third.plain->cut(graph->object.device, step->number);
        third.sampled = step->samples > 0;
        if (third.sampled)
            submit(&lab, 1, 10, 1);
        third.came = third.sampled;
    }
    return third.plain->launch(graph, step);
}

static int wait_until_cut(struct pd_device *device, uint64_t number, int timeout_ms)
{
    if (number == 3 && third.cut == 0 && third.waits < 1000000) {
        if (!third.came) {
            if (lab.context)
                pd_engine_cancel(lab.engine, lab_id(0));
            else
                submit(&lab, 1, 10, 1);
        }
        third.came = true;
        third.waits++;
        return PD_KERNEL_TIMEOUT;
    }
    return third.plain->wait(device, number, timeout_ms);
}

static void note_cut(struct pd_device *device, uint64_t number)
{
    (void)device;
    third.cut = number;
}

/* 64 rows are believed to take 25 s: however slow this machine is, a step is far from its end. */
static void keep_rows_very_slow(struct lab *at, uint64_t step)
{
    (void)step;
    at->engine->pace.alone_ns = UINT64_C(25) * 1000000000 / 64;
}

static void open_cut(bool cancels, int length)
{
    open_slow();
    keep_rows_very_slow(&lab, 0);
    third.slow.launch = launch_nothing;
    third.slow.wait = wait_until_cut;
    third.slow.cut = note_cut;
    lab.on_step = keep_rows_very_slow;
    lab.context = cancels ? &lab : NULL;
    submit(&lab, 0, length, 8);
    lab_start(&lab, NULL);
}

/* Where a step can be left it is, and computed again: nobody's answer tells, whether the prompt goes on behind it
 * or ends in it. */
static void test_a_step_is_left_for_a_short_prompt(void **state)
{
    static const int lengths[] = {230, 90}; /* in steps of 32 rows */

    (void)state;
    for (int i = 0; i < 2; i++) {
        open_cut(false, lengths[i]);
        expect(1, 10, 1);
        expect(0, lengths[i], 8);
        assert_int_equal(third.cut, 3);
        assert_int_equal(third.sampled, i);
        assert_int_equal(lab.answers[1].end_step, 3);
        assert_int_equal(lab_load(&lab).steps_cut, 1);
        assert_int_equal(lab_load(&lab).tokens_prefilled, lengths[i] + 10);
        close_slow();
    }
}

static void test_a_step_for_nobody_is_left(void **state)
{
    (void)state;
    open_cut(true, 230);
    lab_wait(&lab, 0);
    assert_int_equal(lab.answers[0].code, PD__V1__FAILED__CODE__CANCELLED);
    lab_wait_rest(&lab);
    assert_int_equal(third.cut, 3);
    assert_int_equal(lab_load(&lab).steps, 2);
    assert_int_equal(lab_load(&lab).steps_cut, 1);
    submit(&lab, 1, 10, 1); /* its descriptor is free */
    expect(1, 10, 1);
    close_slow();
}

static uint64_t prefilled_at_first;

static void note_first(struct lab *at, uint64_t step)
{
    if (step == 1)
        prefilled_at_first = lab_load(at).tokens_prefilled;
}

/* Where a short prompt ends, a long one does not fill the step up; where a row takes no time, it does. */
static void test_a_step_in_which_a_prompt_ends_is_not_filled_up(void **state)
{
    (void)state;
    for (int slow = 0; slow < 2; slow++) {
        open_slow();
        third.came = true;
        third.waits = 100;
        lab.engine->pace.alone_ns *= (uint64_t)slow;
        lab.on_step = note_first;
        submit(&lab, 0, 150, 1);
        submit(&lab, 1, 10, 1);
        submit(&lab, 2, 12, 1);
        lab_start(&lab, NULL);
        for (uint64_t id = 0; id < 3; id++)
            expect(id, id == 0 ? 150 : 8 + 2 * (int)id, 1);
        assert_int_equal(prefilled_at_first, slow ? PD_PACE_LEAST_ALONE : PD_PACE_FIRST);
        assert_int_equal(lab.answers[1].end_step, 1);
        assert_int_equal(lab.answers[2].end_step, 1);
        close_slow();
    }
}

static void note_first_of_slow(struct lab *at, uint64_t step)
{
    note_first(at, step);
    keep_rows_slow(at, step);
}

/* 150 rows, where a step is to have 64: two steps of up to 80, not two of 64 and a short one. */
static void test_the_steps_of_a_prompt_are_even(void **state)
{
    struct lab_options options = lab_defaults();

    (void)state;
    options.model.max_tokens = 128;
    lab_open(&lab, &options);
    lab.engine->pace.cuts = false;
    keep_rows_slow(&lab, 0);
    lab.on_step = note_first_of_slow;
    submit(&lab, 0, 150, 1);
    lab_start(&lab, NULL);
    expect(0, 150, 1);
    assert_int_equal(prefilled_at_first, 80);
    assert_int_equal(lab.answers[0].end_step, 2);
    lab_stop(&lab);
    lab_close(&lab);
}

/* ---- beside answers -------------------------------------------------------------------------- */

static struct {
    uint64_t prefilled,
        most; /* tokens of prompts so far, and of one step since the first answer began */
} beside;

static void a_long_one_comes_at_the_first_token(struct lab *at, const struct pd_output *output)
{
    if (output->id.request != 0 || output->position != 0)
        return;
    beside.prefilled = lab_load(at).tokens_prefilled;
    submit(at, 1, 120, 1);
}

/* As much as a quiet step takes is believed to be 20 rows, or 2. */
static void keep_pace(struct lab *at, uint64_t step)
{
    uint64_t prefilled = lab_load(at).tokens_prefilled;

    (void)step;
    at->engine->pace.quiet_ns = 10 * 1000000;
    at->engine->pace.row_ns = at->engine->pace.quiet_ns / (at->context ? 2 : 20);
    if (beside.prefilled && prefilled - beside.prefilled > beside.most)
        beside.most = prefilled - beside.prefilled;
    beside.prefilled = beside.prefilled ? prefilled : 0;
}

/* The step holds 64, but an answer takes part in it. */
static void test_a_prompt_leaves_time_to_answers(void **state)
{
    struct lab_options options = lab_defaults();

    (void)state;
    options.model.max_tokens = 64;
    for (int slow = 0; slow < 2; slow++) {
        memset(&beside, 0, sizeof(beside));
        lab_open(&lab, &options);
        lab.context = slow ? &lab : NULL;
        lab.on_output = a_long_one_comes_at_the_first_token;
        lab.on_step = keep_pace;
        lab_start(&lab, NULL);
        submit(&lab, 0, 20, 60);
        expect(0, 20, 60);
        expect(1, 120, 1);
        assert_int_equal(beside.most, slow ? PD_PACE_LEAST : 20);
        close_scene();
    }
}

/* ---- the queue ------------------------------------------------------------------------------- */

static void a_big_one_and_small_ones_come(struct lab *at)
{
    submit(at, 1, 120, 1); /* 15 blocks, of which 14 are left at best */
    for (uint64_t id = 2; id <= 9; id++)
        submit(at, id, 40, 1);
}

/* Three prompts of 40 tokens may pass one of 120 that finds no room. */
static void test_small_ones_pass_a_big_one_for_a_while(void **state)
{
    static const uint64_t order[] = {0, 2, 3, 4, 1, 5, 6, 7, 8, 9};
    struct lab_options options = lab_defaults();

    (void)state;
    options.model.max_seqs = 16;
    options.model.kv_blocks = 22;
    options.no_caching = true;
    open_scene(&options, a_big_one_and_small_ones_come);
    submit(&lab, 0, 60, 90);
    expect(0, 60, 90);
    expect(1, 120, 1);
    for (uint64_t id = 2; id <= 9; id++)
        expect(id, 40, 1);
    assert_int_equal(scene.placed, 10);
    assert_memory_equal(scene.order, order, sizeof(order));
    close_scene();
}

static void a_big_one_and_pairs_come(struct lab *at)
{
    for (uint64_t id = 1; id <= 2; id++)
        submit(at, id, 16, 4);
    submit(at, 3, 120, 1);
    for (uint64_t id = 4; id <= 7; id++)
        submit(at, id, 40, 1);
}

static void keep_rows_free(struct lab *at, uint64_t step)
{
    (void)step;
    at->engine->pace.quiet_ns = 1000 * (at->engine->pace.row_ns = 1000);
}

/* Two places that are free at once let in no more than one after the other: of pairs of 40, one and a half. */
static void test_no_more_pass_at_once(void **state)
{
    static const uint64_t order[] = {0, 1, 2, 4, 5, 6, 3, 7};
    struct lab_options options = lab_defaults();

    (void)state;
    options.model.max_seqs = 3;
    options.model.max_tokens = 160;
    options.model.kv_blocks = 22;
    options.no_caching = true;
    open_scene(&options, a_big_one_and_pairs_come);
    lab.on_step = keep_rows_free;
    submit(&lab, 0, 60, 90);
    expect(0, 60, 90);
    for (uint64_t id = 4; id <= 7; id++)
        expect(id, 40, 1);
    expect(3, 120, 1);
    assert_int_equal(scene.placed, 8);
    assert_memory_equal(scene.order, order, sizeof(order));
    close_scene();
}

static void another_of_the_kind_comes(struct lab *at)
{
    submit(at, 1, 20, 70);
}

/* An answer of 70 tokens teaches how long they become; then another starts, and the one that comes meanwhile, which
 * has `length` of them. Both would not fit if they became 70. */
static void run_after_a_long_one(void (*comes)(struct lab *at), int length)
{
    struct lab_options options = lab_defaults();

    options.model.kv_blocks = 20;
    open_scene(&options, comes);
    submit(&lab, 2, 20, 70);
    expect(2, 20, 70);
    submit(&lab, 0, 20, 70);
    expect(0, 20, 70);
    expect(1, 20, length);
}

/* So the second waits. */
static void test_admission_counts_what_answers_become(void **state)
{
    (void)state;
    run_after_a_long_one(another_of_the_kind_comes, 70);
    assert_true(lab.answers[1].end_step > lab.answers[0].end_step + 60);
    assert_int_equal(lab_load(&lab).preemptions, 0);
    close_scene();
}

static void a_shorter_one_comes(struct lab *at)
{
    submit(at, 1, 20, 8);
}

/* But no answer becomes longer than it may. */
static void test_admission_knows_each_one_s_limit(void **state)
{
    (void)state;
    run_after_a_long_one(a_shorter_one_comes, 8);
    assert_true(lab.answers[1].end_step + 50 < lab.answers[0].end_step);
    close_scene();
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static struct {
    int looks, wasted;
} blocks_seen;

/* The engine's thread, after each step: nobody has a block that none of its tokens needs, and the pool has given
 * out no other. */
static void look_at_blocks(struct lab *at, uint64_t step)
{
    struct pd_block_counts counts;
    const struct pd_sequence *s;
    int64_t held = 0;

    (void)step;
    TAILQ_FOREACH (s, &at->engine->table.all, all) {
        int tokens = s->count + s->pending > s->launched ? s->count + s->pending : s->launched;

        held += s->block_count;
        blocks_seen.wasted += s->block_count > pd_engine_blocks_for(at->engine, tokens);
    }
    pd_block_pool_count(at->engine->pool, &counts);
    blocks_seen.wasted += counts.total - counts.available != held;
    blocks_seen.looks++;
}

static void test_nothing_is_wasted_but_the_last_block_s_rest(void **state)
{
    struct lab_options options = lab_defaults();

    (void)state;
    memset(&blocks_seen, 0, sizeof(blocks_seen));
    options.no_caching = true;
    lab_open(&lab, &options);
    lab.on_step = look_at_blocks;
    lab_start(&lab, NULL);
    for (uint64_t id = 0; id < 8; id++)
        submit(&lab, id, 7 + 5 * (int)id, 40);
    for (uint64_t id = 0; id < 8; id++)
        expect(id, 7 + 5 * (int)id, 40);
    close_scene();
    assert_true(blocks_seen.looks >= 80);
    assert_int_equal(blocks_seen.wasted, 0);
}

/* ---- one prompt, several answers ------------------------------------------------------------- */

static const char shared[] =
    "Eighty tokens of a prompt: ten blocks of which all but the last can be shared. .";

static struct pd_request *one_of_several(struct lab *at, uint64_t id)
{
    struct pd_request *request = lab_request(at, id, shared, 7);

    request->sampling.temperature = 1;
    request->sampling.seed = id;
    return request;
}

static void expect_one_of_several(uint64_t id)
{
    struct pd_sampling sampling = {
        .temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1, .seed = id};
    int32_t answer[7];

    lab_oracle(shared, &sampling, answer, 7);
    lab_expect(&lab, id, answer, 7);
}

static void three_more_come(struct lab *at)
{
    for (uint64_t id = 1; id < 4; id++)
        lab_submit(at, one_of_several(at, id));
}

/* In 24 blocks there is no room for three such prompts, but for four of which nine blocks are shared. */
static void test_answers_to_one_prompt_share_its_blocks(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_load load;

    (void)state;
    assert_int_equal(strlen(shared), 80);
    options.model.kv_blocks = 24;
    open_scene(&options, three_more_come);
    lab_submit(&lab, one_of_several(&lab, 0));
    for (uint64_t id = 0; id < 4; id++)
        expect_one_of_several(id);
    load = lab_load(&lab);
    assert_int_equal(load.preemptions, 0);
    assert_int_equal(load.tokens_prefilled, 80 + 3 * 8);
    for (uint64_t id = 1; id < 4; id++) {
        assert_int_equal(lab.answers[id].end.cached_tokens, 72);
        assert_true(lab.answers[id].end_step <= lab.answers[0].end_step + 4);
    }
    close_scene();
}

static void another_comes_and_the_first_leaves(struct lab *at)
{
    lab_submit(at, one_of_several(at, 1));
    pd_engine_cancel(at->engine, lab_id(0));
}

/* Who waits for another's blocks computes them itself where the other does not. */
static void test_a_follower_goes_on_alone(void **state)
{
    struct lab_options options = lab_defaults();

    (void)state;
    open_scene(&options, another_comes_and_the_first_leaves);
    lab_submit(&lab, one_of_several(&lab, 0));
    expect_one_of_several(1);
    assert_true(lab_wait(&lab, 0)->failed);
    close_scene();
}

static void one_with_another_end_comes(struct lab *at)
{
    char text[128];

    snprintf(text, sizeof(text), "%.40sand an end of its own, which nobody else has", shared);
    lab_submit(at, lab_request(at, 1, text, LONG));
}

/* A common beginning is computed once too, and only as much of it is waited for. */
static void test_a_common_beginning_is_shared(void **state)
{
    struct lab_options options = lab_defaults();
    int32_t answer[LONG];
    char text[128];

    (void)state;
    open_scene(&options, one_with_another_end_comes);
    lab_submit(&lab, one_of_several(&lab, 0));
    snprintf(text, sizeof(text), "%.40sand an end of its own, which nobody else has", shared);
    lab_oracle(text, NULL, answer, LONG);
    lab_expect(&lab, 1, answer, LONG);
    expect_one_of_several(0);
    assert_int_equal(lab.answers[1].end.cached_tokens, 40);
    close_scene();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_short_prompt_does_not_stand_behind_a_long_one),
        cmocka_unit_test(test_a_long_prompt_is_not_starved),
        cmocka_unit_test(test_a_short_prompt_waits_for_the_running_step_only),
        cmocka_unit_test(test_a_step_is_left_for_a_short_prompt),
        cmocka_unit_test(test_a_step_for_nobody_is_left),
        cmocka_unit_test(test_a_step_in_which_a_prompt_ends_is_not_filled_up),
        cmocka_unit_test(test_the_steps_of_a_prompt_are_even),
        cmocka_unit_test(test_a_prompt_leaves_time_to_answers),
        cmocka_unit_test(test_small_ones_pass_a_big_one_for_a_while),
        cmocka_unit_test(test_no_more_pass_at_once),
        cmocka_unit_test(test_admission_counts_what_answers_become),
        cmocka_unit_test(test_admission_knows_each_one_s_limit),
        cmocka_unit_test(test_nothing_is_wasted_but_the_last_block_s_rest),
        cmocka_unit_test(test_answers_to_one_prompt_share_its_blocks),
        cmocka_unit_test(test_a_follower_goes_on_alone),
        cmocka_unit_test(test_a_common_beginning_is_shared),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
