/* Two engines and a wire: the answer that one begins and the other ends is the answer of one alone,
 * however the prompt came over and however little room there is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "proto/pd.pb-c.h"
#include "t/unit/engine_pair.h"

enum { NONE = PD__V1__FINISH_REASON__FINISH_NONE, LONG = LAB_SPLIT, SHORT = 10 };

static const char prompt[] = "A prompt of sixty-one tokens, which are seven blocks and a bit";
enum { PROMPT = sizeof(prompt) - 1, BLOCKS = (PROMPT + 7) / 8 };

/* ---- the same answer ------------------------------------------------------------------------- */

static void test_split_answers(void **state)
{
    static const char *const texts[] = {prompt, "short", "exactly sixteen.", "seventeen tokens."};
    struct lab_options p = lab_defaults(), d = lab_defaults();
    int32_t answer[LONG];

    (void)state;
    for (int turn = 0; turn < 2; turn++) {
        p.model.max_tokens = turn ? 5 : 16;
        p.model.kv_blocks = turn ? 41 : 60; /* blocks have other numbers than on the reader */
        open_pair(&p, &d);
        start_pair();
        for (uint64_t id = 0; id < 8; id++) {
            struct pd_sampling sampling;
            struct pd_request *begin = prefill_request(id, texts[id % 4], LONG), *end;

            if (id >= 4)
                warm(&begin->sampling, id);
            sampling = begin->sampling;
            lab_submit(&source, begin);
            end = decode_request(id, LONG);
            end->sampling = sampling;
            lab_submit(&reader, end);
            lab_oracle(texts[id % 4], &sampling, answer, LONG);
            expect_pair(id, answer, 0, LONG);
            assert_int_equal(source.answers[id].end.finish, NONE);
            assert_int_equal(reader.answers[id].end.prompt_tokens, strlen(texts[id % 4]));
        }
        close_pair();
    }
}

/* Everything at once, each with its own way through. */
static void submit_to_reader(struct lab *lab, const struct pd_placed *placed)
{
    struct pd_request *request = lab_request(&reader, placed->id.request, "", LONG);

    (void)lab;
    request->route = PD_ROUTE_DECODE;
    request->ticket = placed->ticket;
    warm(&request->sampling, placed->id.request);
    lab_submit(&reader, request);
}

static void test_many_at_once(void **state)
{
    struct lab_options p = lab_defaults(), d = lab_defaults();
    enum { MANY = 24 };

    (void)state;
    p.model.max_tokens = 24;
    d.model.max_seqs = d.model.max_tokens = MANY;
    d.model.kv_blocks = 400;
    open_pair(&p, &d);
    source.on_placed = submit_to_reader;
    start_pair();
    for (uint64_t id = 0; id < MANY; id++) {
        struct pd_request *request = prefill_request(id, prompt + id, LONG);

        warm(&request->sampling, id);
        lab_submit(&source, request);
    }
    for (uint64_t id = 0; id < MANY; id++) {
        struct pd_sampling sampling = {0};
        int32_t answer[LONG];

        warm(&sampling, id);
        lab_oracle(prompt + id, &sampling, answer, LONG);
        expect_pair(id, answer, 0, LONG);
    }
    assert_int_equal(double_net_counts(net).completed, MANY);
    close_pair();
}

static void wait_for_the_reader(struct lab *lab, uint64_t step)
{
    (void)lab;
    if (step == 1)
        double_net_wait(net, one_fetch);
}

static void test_chunks_are_offered_as_they_come(void **state)
{
    struct lab_options p = lab_defaults(), d = lab_defaults();

    (void)state;
    p.model.max_tokens = 8;
    open_pair(&p, &d);
    source.on_placed = submit_to_reader;
    source.on_step = wait_for_the_reader;
    start_pair();
    lab_submit(&source, prefill_request(0, prompt, LONG));
    assert_int_equal(lab_wait(&reader, 0)->count, LONG);
    assert_int_equal(double_net_counts(net).ready_calls, (PROMPT + 7) / 8);
    assert_true(double_net_counts(net).most_ready_after_claim >= (PROMPT + 7) / 8 - 1);
    close_pair();
}

static void test_only_missing_blocks_are_read(void **state)
{
    struct lab_options options = lab_defaults();
    struct double_counts counts;
    int ready_calls;
    int32_t answer[LONG];

    (void)state;
    lab_oracle(prompt, NULL, answer, LONG);
    open_pair(&options, &options);
    start_pair();
    run_pair(0, prompt);
    counts = double_net_counts(net);
    assert_int_equal(counts.blocks_read, BLOCKS);
    assert_int_equal(counts.blocks_skipped, 0);
    ready_calls = counts.ready_calls;
    run_pair(1, prompt);
    counts = double_net_counts(net);
    assert_int_equal(counts.ready_calls, ready_calls + 2); /* what is cached is ready at once */
    assert_int_equal(counts.blocks_read, BLOCKS + 1);      /* the last one is not full */
    assert_int_equal(counts.blocks_skipped, BLOCKS - 1);
    expect_pair(1, answer, 0, LONG);
    assert_int_equal(source.answers[1].where.cached_tokens, PROMPT / 8 * 8);
    assert_int_equal(reader.answers[1].end.cached_tokens, PROMPT / 8 * 8);
    close_pair();
}

/* Three answers to one prompt, all claimed before anything is read. */
static void begin_three(void)
{
    struct lab_options options = lab_defaults();

    open_pair(&options, &options);
    double_net_hold(net, DOUBLE_HOLD_DATA);
    start_pair();
    for (uint64_t id = 0; id < 3; id++) {
        lab_submit(&source, prefill_request(id, prompt, LONG));
        lab_submit(&reader, decode_request(id, LONG));
        lab_wait_placed(&reader, id);
    }
    lab_submit(&reader,
               lab_request(&reader, 9, "!", 1)); /* behind what the reader was told so far */
    assert_false(lab_wait(&reader, 9)->failed);
}

static void test_one_prompt_is_read_once(void **state)
{
    struct double_counts counts;
    int32_t answer[LONG];

    (void)state;
    lab_oracle(prompt, NULL, answer, LONG);
    begin_three();
    double_net_hold(net, 0);
    for (uint64_t id = 0; id < 3; id++)
        expect_pair(id, answer, 0, LONG);
    counts = double_net_counts(net);
    assert_int_equal(counts.blocks_read, BLOCKS + 2); /* the last one is not full */
    assert_int_equal(counts.blocks_skipped, 2 * (BLOCKS - 1));
    close_pair();
}

/* Who waits for what another receives reads it itself where the other does not. */
static void test_a_reader_goes_on_alone(void **state)
{
    struct double_counts counts;
    int32_t answer[LONG];

    (void)state;
    lab_oracle(prompt, NULL, answer, LONG);
    begin_three();
    pd_engine_cancel(reader.engine, lab_id(0));
    assert_true(lab_wait(&reader, 0)->failed);
    double_net_hold(net, 0);
    expect_pair(1, answer, 0, LONG);
    expect_pair(2, answer, 0, LONG);
    counts = double_net_counts(net);
    assert_int_equal(counts.blocks_read, BLOCKS + 1);
    close_pair();
}

/* Request 0's blocks are on their way, held up; request 1, of the same prompt, goes straight to the reader. */
static void begin_behind(void)
{
    struct lab_options options = lab_defaults();

    open_pair(&options, &options);
    double_net_hold(net, DOUBLE_HOLD_DATA);
    start_pair();
    lab_submit(&source, prefill_request(0, prompt, LONG));
    lab_submit(&reader, decode_request(0, LONG));
    lab_wait_placed(&reader, 0);
    lab_submit(&reader, lab_request(&reader, 1, prompt, LONG));
}

/* One that goes straight to the reader waits for what is being received, where that is at least half
 * of it, and computes a shorter beginning itself. */
static void test_what_is_received_is_not_computed(void **state)
{
    struct lab_answer *behind = &reader.answers[1];
    int32_t answer[LONG], other[SHORT];
    char beginning[PROMPT / 2];

    (void)state;
    snprintf(beginning, sizeof(beginning), "%.*s", (int)sizeof(beginning) - 1, prompt);
    lab_oracle(prompt, NULL, answer, LONG);
    lab_oracle(beginning, NULL, other, SHORT);
    begin_behind();
    lab_submit(&reader, lab_request(&reader, 2, beginning, SHORT));
    lab_expect(&reader, 2, other, SHORT);
    assert_int_equal(reader.answers[2].end.cached_tokens, 0);
    assert_int_equal(behind->placed, 0);
    double_net_hold(net, 0);
    expect_pair(0, answer, 0, LONG);
    lab_expect(&reader, 1, answer, LONG);
    assert_int_equal(behind->end.cached_tokens, PROMPT / 8 * 8);
    assert_int_equal(lab_load(&reader).tokens_prefilled, PROMPT % 8 + sizeof(beginning) - 1);
    close_pair();
}

static void test_what_does_not_come_is_computed(void **state)
{
    int32_t answer[LONG];

    (void)state;
    lab_oracle(prompt, NULL, answer, LONG);
    begin_behind();
    lab_submit(&reader,
               lab_request(&reader, 9, "!", 1)); /* behind what the reader was told so far */
    assert_false(lab_wait(&reader, 9)->failed);
    double_net_cut(net);
    assert_true(lab_wait(&reader, 0)->failed);
    lab_expect(&reader, 1, answer, LONG);
    assert_int_equal(reader.answers[1].end.cached_tokens, 0);
    close_pair();
}

static void test_blocks_that_were_read_are_cached(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_request *request;
    int32_t answer[LONG];

    (void)state;
    lab_oracle(prompt, NULL, answer, LONG);
    open_pair(&options, &options);
    start_pair();
    run_pair(0, prompt);
    request = lab_request(&reader, 1, prompt, LONG); /* straight to the reader */
    lab_submit(&reader, request);
    lab_expect(&reader, 1, answer, LONG);
    assert_int_equal(reader.answers[1].end.cached_tokens, PROMPT / 8 * 8);
    close_pair();
}

static void test_a_second_attempt_goes_on(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_request *begin, *end;
    struct pd_sampling sampling = {0};
    int32_t answer[LONG];

    (void)state;
    warm(&sampling, 9);
    lab_oracle(prompt, &sampling, answer, LONG);
    open_pair(&options, &options);
    start_pair();
    for (int cut = 1; cut < LONG; cut += 9) {
        uint64_t id = (uint64_t)cut;

        begin = prefill_request(id, prompt, LONG);
        warm(&begin->sampling, 9);
        lab_append(&begin->generated, answer, (size_t)cut);
        lab_submit(&source, begin);
        end = decode_request(id, LONG);
        warm(&end->sampling, 9);
        lab_append(&end->generated, answer, (size_t)cut);
        assert_int_equal(end->ticket.tokens, PROMPT + cut);
        lab_submit(&reader, end);
        expect_pair(id, answer, cut, LONG);
        assert_int_equal(source.answers[id].where.prompt_tokens, PROMPT);
        assert_int_equal(reader.answers[id].end.prompt_tokens, PROMPT);
    }
    close_pair();
}

/* ---- answers that end with the source's token ------------------------------------------------ */

static void test_one_token_needs_no_reader(void **state)
{
    struct lab_options options = lab_defaults();
    int32_t answer[1];

    (void)state;
    lab_oracle(prompt, NULL, answer, 1);
    open_pair(&options, &options);
    start_pair();
    lab_submit(&source, prefill_request(0, prompt, 1));
    lab_expect(&source, 0, answer, 1);
    assert_int_equal(source.answers[0].end.finish, PD__V1__FINISH_REASON__FINISH_LENGTH);
    assert_false(pd_engine_idle(source.engine)); /* its ticket still stands */
    pd_engine_cancel(source.engine, lab_id(0));
    close_pair();
}

/* The reader says the end at once, though not a byte has been read, and gives the ticket back. */
static void test_a_reader_ends_with_the_first_token(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_request *begin, *end;
    int32_t answer[1];

    (void)state;
    lab_oracle(prompt, NULL, answer, 1);
    open_pair(&options, &options);
    double_net_hold(net, DOUBLE_HOLD_DATA);
    start_pair();
    begin = prefill_request(0, prompt, LONG);
    begin->sampling.stop_tokens[0] = answer[0];
    begin->sampling.stop_token_count = 1;
    lab_submit(&source, begin);
    end = decode_request(0, LONG);
    end->sampling.stop_tokens[0] = answer[0];
    end->sampling.stop_token_count = 1;
    lab_submit(&reader, end);
    lab_expect(&reader, 0, answer, 1);
    assert_int_equal(reader.answers[0].end.finish, PD__V1__FINISH_REASON__FINISH_STOP);
    assert_int_equal(lab_wait(&source, 0)->end.finish, PD__V1__FINISH_REASON__FINISH_STOP);
    close_pair();
}

/* The reader's words may be heard before the source's: it says all that the source says of its token. */
static void test_a_reader_says_what_the_source_knows_of_its_token(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_request *begin, *end;

    (void)state;
    open_pair(&options, &options);
    start_pair();
    begin = prefill_request(0, prompt, LONG);
    begin->sampling.logprobs = 4;
    lab_submit(&source, begin);
    end = decode_request(0, LONG);
    end->sampling.logprobs = 4;
    lab_submit(&reader, end);
    lab_wait(&source, 0);
    lab_wait(&reader, 0);
    assert_int_equal(reader.answers[0].first_position, 0);
    assert_int_equal(reader.answers[0].tokens[0], source.answers[0].tokens[0]);
    assert_true(source.answers[0].logprobs[0] < 0);
    assert_true(reader.answers[0].logprobs[0] == source.answers[0].logprobs[0]);
    close_pair();
}

/* Every block that is taken, on either side, is marked before anything is written to it. */
static void test_blocks_are_marked_when_taken(void **state)
{
    struct lab_options options = lab_defaults();
    size_t each = BLOCKS + (PROMPT + LONG - 1 + 7) / 8; /* the last token is not stored */

    (void)state;
    options.no_caching = true;
    open_pair(&options, &options);
    start_pair();
    for (uint64_t id = 0; id < 3; id++) {
        run_pair(id, prompt);
        assert_int_equal(double_net_counts(net).recycled, (id + 1) * each);
    }
    close_pair();
}

/* ---- room ------------------------------------------------------------------------------------ */

static void test_no_room_on_the_reader(void **state)
{
    struct lab_options p = lab_defaults(), d = lab_defaults();
    int32_t answer[LONG];

    (void)state;
    lab_oracle(prompt, NULL, answer, LONG);
    d.model.max_model_len = 96;
    d.model.kv_blocks = 12; /* one prompt of 8 blocks, not two */
    open_pair(&p, &d);
    double_net_hold(net, DOUBLE_HOLD_DATA);
    start_pair();
    for (uint64_t id = 0; id < 2; id++)
        lab_submit(&source, prefill_request(id, prompt, LONG));
    for (uint64_t id = 0; id < 2; id++)
        lab_submit(&reader, decode_request(id, LONG));
    assert_true(lab_wait(&reader, 1)->failed);
    assert_int_equal(reader.answers[1].code, PD__V1__FAILED__CODE__CAPACITY);
    assert_int_equal(reader.answers[1].placed, 0);
    assert_int_equal(double_net_counts(net).fetches, 1);
    double_net_hold(net, 0);
    expect_pair(0, answer, 0, LONG);
    pd_engine_cancel(source.engine, lab_id(1));
    close_pair();
}

/* Blocks of a ticket are not taken by anybody, however little room there is. */
static void test_the_source_waits_for_its_tickets(void **state)
{
    struct lab_options p = lab_defaults(), d = lab_defaults();
    int32_t answer[LONG];

    (void)state;
    lab_oracle(prompt, NULL, answer, LONG);
    p.model.kv_blocks = 20; /* two prompts, not three */
    p.no_caching = true;
    open_pair(&p, &d);
    start_pair();
    for (uint64_t id = 0; id < 3; id++)
        lab_submit(&source, prefill_request(id, prompt, LONG));
    lab_wait(&source, 0);
    lab_wait(&source, 1);
    assert_int_equal(source.answers[2].placed, 0);
    for (uint64_t id = 0; id < 3; id++) {
        lab_submit(&reader, decode_request(id, LONG));
        expect_pair(id, answer, 0, LONG);
    }
    close_pair();
}

/* Tickets that nobody gave, one after the other: let in, they fail for what they are. */
static void next_asks(struct lab *lab)
{
    uint64_t id = 2;

    while (lab->answers[id].failed)
        id++;
    if (lab->answers[id - 1].code == PD__V1__FAILED__CODE__TICKET)
        lab_submit(lab, no_ticket_request(id, 16, 8));
}

static void one_waits_and_one_asks(struct lab *lab, const struct pd_placed *placed)
{
    if (placed->id.request != 0)
        return;
    lab_submit(lab, lab_request(lab, 1, prompt, 10)); /* 8 blocks, which are not there */
    lab_submit(lab, no_ticket_request(2, 16, 8));     /* two, which are */
}

/* Whoever waits for room is passed by no more tokens than it has itself. */
static void test_the_waiting_are_passed_for_a_while(void **state)
{
    struct lab_options options = lab_defaults();
    uint64_t id = 2;

    (void)state;
    options.model.max_model_len = 80;
    options.model.kv_blocks = 11;
    open_pair(&options, &options);
    reader.on_placed = one_waits_and_one_asks;
    reader.on_failed = next_asks;
    start_pair();
    lab_submit(&reader,
               lab_request(&reader, 0, "Some prompt of about five blocks, or tokens.", 30));
    for (; id < 2 + PROMPT / 16; id++)
        expect_failure(&reader, id, PD__V1__FAILED__CODE__TICKET);
    expect_failure(&reader, id, PD__V1__FAILED__CODE__CAPACITY);
    assert_int_equal(reader.answers[1].placed, 0);
    assert_int_equal(lab_wait(&reader, 0)->count, 30);
    assert_int_equal(lab_wait(&reader, 1)->count, 10);
    close_pair();
}

static void one_follows_and_one_asks(struct lab *lab, const struct pd_placed *placed)
{
    if (placed->id.request != 0)
        return;
    lab_submit(lab, lab_request(lab, 1, prompt, SHORT));
    lab_submit(lab, no_ticket_request(2, PROMPT, 8));
}

/* Whoever waits for blocks that are just being computed needs no room yet, and takes nobody's. */
static void test_a_follower_is_in_no_reader_s_way(void **state)
{
    struct lab_options options = lab_defaults();
    int32_t answer[SHORT];

    (void)state;
    lab_oracle(prompt, NULL, answer, SHORT);
    open_pair(&options, &options);
    reader.on_placed = one_follows_and_one_asks;
    start_pair();
    lab_submit(&reader, lab_request(&reader, 0, prompt, SHORT));
    expect_failure(&reader, 2, PD__V1__FAILED__CODE__TICKET);
    for (uint64_t id = 0; id < 2; id++)
        lab_expect(&reader, id, answer, SHORT);
    assert_int_equal(reader.answers[1].end.cached_tokens, PROMPT / 8 * 8);
    close_pair();
}

static void prefill_when_the_last_speaks(struct lab *lab, const struct pd_output *output)
{
    if (output->id.request == 2 && output->position == 0) {
        struct pd_request *request = lab_request(lab, 3, prompt, SHORT);

        request->route = PD_ROUTE_PREFILL;
        lab_submit(lab, request);
    }
}

/* Answers that run out of blocks take them from each other, never from a ticket that is computed. */
static void test_a_ticket_is_not_preempted(void **state)
{
    static const char *const texts[] = {"first", "second", "third"};
    struct lab_options options = lab_defaults();
    int32_t answer[60];

    (void)state;
    options.model.max_model_len = 80;
    options.model.max_tokens = 4; /* three answers leave one row for the prompt */
    options.model.kv_blocks = 16;
    options.no_caching = true;
    open_pair(&options, &options);
    source.on_output = prefill_when_the_last_speaks;
    start_pair();
    for (uint64_t id = 0; id < 3; id++)
        lab_submit(&source, lab_request(&source, id, texts[id], 60));
    lab_submit(&reader, decode_request(3, SHORT));
    lab_oracle(prompt, NULL, answer, SHORT);
    expect_pair(3, answer, 0, SHORT);
    for (uint64_t id = 0; id < 3; id++) {
        lab_oracle(texts[id], NULL, answer, 60);
        lab_expect(&source, id, answer, 60);
    }
    assert_true(lab_load(&source).preemptions > 0);
    assert_int_equal(source.answers[3].end.timing.preemptions, 0);
    close_pair();
}

static void test_a_received_answer_is_preempted(void **state)
{
    struct lab_options p = lab_defaults(), d = lab_defaults();
    enum { MANY = 3, LENGTH = 80 };
    int32_t answer[LENGTH];

    (void)state;
    d.model.kv_blocks = 27; /* three prompts of 8 blocks, and one more for each */
    open_pair(&p, &d);
    double_net_hold(net, DOUBLE_HOLD_DATA);
    start_pair();
    for (uint64_t id = 0; id < MANY; id++)
        lab_submit(&source, prefill_request(id, prompt + id, LENGTH));
    for (uint64_t id = 0; id < MANY; id++)
        lab_submit(&reader, decode_request(id, LENGTH));
    for (uint64_t id = 0; id < MANY; id++)
        lab_wait_placed(&reader, id);
    double_net_hold(net, 0);
    for (uint64_t id = 0; id < MANY; id++) {
        lab_oracle(prompt + id, NULL, answer, LENGTH);
        expect_pair(id, answer, 0, LENGTH);
    }
    assert_true(lab_load(&reader).preemptions > 0);
    close_pair();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_answers),
        cmocka_unit_test(test_many_at_once),
        cmocka_unit_test(test_chunks_are_offered_as_they_come),
        cmocka_unit_test(test_only_missing_blocks_are_read),
        cmocka_unit_test(test_one_prompt_is_read_once),
        cmocka_unit_test(test_a_reader_goes_on_alone),
        cmocka_unit_test(test_what_is_received_is_not_computed),
        cmocka_unit_test(test_what_does_not_come_is_computed),
        cmocka_unit_test(test_blocks_that_were_read_are_cached),
        cmocka_unit_test(test_a_second_attempt_goes_on),
        cmocka_unit_test(test_one_token_needs_no_reader),
        cmocka_unit_test(test_a_reader_ends_with_the_first_token),
        cmocka_unit_test(test_a_reader_says_what_the_source_knows_of_its_token),
        cmocka_unit_test(test_blocks_are_marked_when_taken),
        cmocka_unit_test(test_no_room_on_the_reader),
        cmocka_unit_test(test_the_source_waits_for_its_tickets),
        cmocka_unit_test(test_the_waiting_are_passed_for_a_while),
        cmocka_unit_test(test_a_follower_is_in_no_reader_s_way),
        cmocka_unit_test(test_a_ticket_is_not_preempted),
        cmocka_unit_test(test_a_received_answer_is_preempted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
