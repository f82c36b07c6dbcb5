/* Two engines and a wire: the answer that one begins and the other ends is the answer of one alone,
 * however the prompt came over, and whatever breaks in whichever stage, every block comes back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "proto/pd.pb-c.h"
#include "t/unit/double_kvx.h"
#include "t/unit/engine_lab.h"

enum { NONE = PD__V1__FINISH_REASON__FINISH_NONE, LONG = 30 };
enum { TICKET = PD__V1__FAILED__CODE__TICKET, CANCELLED = PD__V1__FAILED__CODE__CANCELLED };

static const char prompt[] = "A prompt of sixty-one tokens, which are seven blocks and a bit";
enum { PROMPT = sizeof(prompt) - 1, BLOCKS = (PROMPT + 7) / 8 };

static struct double_net *net;
static struct lab source, reader;
static struct pd_kvx *source_kvx, *reader_kvx;

/* ---- a pair of workers --------------------------------------------------------------------------
 */

static void open_end(struct lab *lab, const struct lab_options *options, const char *instance,
                     struct pd_kvx **kvx)
{
    struct lab_options mine = *options;
    struct pd_kvx_callbacks callbacks = {0};

    mine.instance = instance;
    lab_open(lab, &mine);
    pd_engine_kvx_callbacks(lab->engine, &callbacks);
    *kvx = double_kvx_create(net, instance, &lab->model->pool, &callbacks);
}

/* The two may differ in shape; hooks can be set before start_pair. */
static void open_pair(const struct lab_options *prefill, const struct lab_options *decode)
{
    net = double_net_create();
    open_end(&source, prefill, "source", &source_kvx);
    open_end(&reader, decode, "reader", &reader_kvx);
}

static void start_pair(void)
{
    lab_start(&source, source_kvx);
    lab_start(&reader, reader_kvx);
}

static void close_pair(void)
{
    lab_stop(&source);
    lab_stop(&reader);
    assert_int_equal(double_net_counts(net).broken_fences, 0);
    double_kvx_destroy(source_kvx);
    double_kvx_destroy(reader_kvx);
    double_net_destroy(net);
    lab_close(&source);
    lab_close(&reader);
}

static struct pd_request *prefill_request(uint64_t id, const char *text, uint32_t max_tokens)
{
    struct pd_request *request = lab_request(&source, id, text, max_tokens);

    request->route = PD_ROUTE_PREFILL;
    return request;
}

/* The same request for the other worker, with the ticket instead of the prompt. */
static struct pd_request *decode_request(uint64_t id, uint32_t max_tokens)
{
    struct pd_request *request = lab_request(&reader, id, "", max_tokens);

    lab_wait_placed(&source, id);
    request->route = PD_ROUTE_DECODE;
    assert_true(source.answers[id].where.has_ticket);
    request->ticket = source.answers[id].where.ticket;
    return request;
}

static void warm(struct pd_sampling *sampling, uint64_t seed)
{
    sampling->temperature = 1.2f;
    sampling->presence = 1;
    sampling->repetition = 1.1f;
    sampling->top_p = 0.9f;
    sampling->seed = seed;
}

/* What both said, as the dispatcher puts it together by position. */
static void expect_pair(uint64_t id, const int32_t *answer, int first, int length)
{
    const struct lab_answer *begun = lab_wait(&source, id);

    if (begun->failed)
        fail_msg("the source failed: %s", begun->message);
    assert_int_equal(begun->count, 1);
    assert_int_equal(begun->first_position, first);
    assert_int_equal(begun->tokens[0], answer[first]);
    lab_expect(&reader, id, answer + first, length - first);
    assert_int_equal(reader.answers[id].first_position, first);
    assert_int_equal(reader.answers[id].end.completion_tokens, length);
    assert_int_equal(reader.answers[id].placed, 1);
}

/* ---- the same answer ----------------------------------------------------------------------------
 */

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

static bool one_fetch(const struct double_counts *counts)
{
    return counts->fetches == 1;
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

static void run_pair(uint64_t id, const char *text)
{
    lab_submit(&source, prefill_request(id, text, LONG));
    lab_submit(&reader, decode_request(id, LONG));
    assert_false(lab_wait(&source, id)->failed);
    assert_false(lab_wait(&reader, id)->failed);
}

static void test_only_missing_blocks_are_read(void **state)
{
    struct lab_options options = lab_defaults();
    struct double_counts counts;
    int32_t answer[LONG];

    (void)state;
    lab_oracle(prompt, NULL, answer, LONG);
    open_pair(&options, &options);
    start_pair();
    run_pair(0, prompt);
    counts = double_net_counts(net);
    assert_int_equal(counts.blocks_read, BLOCKS);
    assert_int_equal(counts.blocks_skipped, 0);
    run_pair(1, prompt);
    counts = double_net_counts(net);
    assert_int_equal(counts.blocks_read, BLOCKS + 1); /* the last one is not full */
    assert_int_equal(counts.blocks_skipped, BLOCKS - 1);
    expect_pair(1, answer, 0, LONG);
    assert_int_equal(source.answers[1].where.cached_tokens, PROMPT / 8 * 8);
    assert_int_equal(reader.answers[1].end.cached_tokens, PROMPT / 8 * 8);
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

/* ---- answers that end with the source's token ---------------------------------------------------
 */

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

/* ---- room ---------------------------------------------------------------------------------------
 */

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

static void test_a_received_answer_is_preempted(void **state)
{
    struct lab_options p = lab_defaults(), d = lab_defaults();
    enum { MANY = 3, LENGTH = 80 };
    int32_t answer[LENGTH];

    (void)state;
    d.model.kv_blocks = 26; /* three prompts of 8 blocks, and hardly any room to grow */
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

/* ---- what breaks --------------------------------------------------------------------------------
 */

static void expect_failure(struct lab *lab, uint64_t id, int code)
{
    assert_true(lab_wait(lab, id)->failed);
    assert_int_equal(lab->answers[id].code, code);
    assert_int_equal(lab->answers[id].last_words, 1);
}

static uint64_t blocks_held(struct lab *lab)
{
    struct pd_load load = lab_load(lab);

    return load.kv_total - load.kv_free;
}

/* A pair whose hand-off stands still in the stage that `holds` names. */
static void stand_still(int holds)
{
    struct lab_options options = lab_defaults();

    open_pair(&options, &options);
    double_net_hold(net, holds | DOUBLE_HOLD_END);
    start_pair();
    lab_submit(&source, prefill_request(0, prompt, LONG));
    lab_submit(&reader, decode_request(0, LONG));
    lab_wait_placed(&reader, 0);
    double_net_wait(net, one_fetch);
}

/* Both are told; the blocks come back when the hand-off is over, not before. */
static void test_cancel_in_each_stage_of_a_fetch(void **state)
{
    static const int stages[] = {DOUBLE_HOLD_CLAIM, DOUBLE_HOLD_DATA};

    (void)state;
    for (int i = 0; i < 2; i++) {
        stand_still(stages[i]);
        pd_engine_cancel(reader.engine, lab_id(0));
        pd_engine_cancel(reader.engine, lab_id(0));
        expect_failure(&reader, 0, CANCELLED);
        assert_false(pd_engine_idle(reader.engine));
        assert_int_equal(blocks_held(&reader), BLOCKS);
        lab_wait(&source, 0);
        pd_engine_cancel(source.engine, lab_id(0));
        assert_false(pd_engine_idle(source.engine));
        assert_int_equal(blocks_held(&source), BLOCKS);
        double_net_hold(net, 0);
        close_pair();
    }
}

static void cancel_when_placed(struct lab *lab, const struct pd_placed *placed)
{
    pd_engine_cancel(lab->engine, placed->id);
}

static void test_cancel_on_the_source_while_it_computes(void **state)
{
    struct lab_options options = lab_defaults();

    (void)state;
    options.model.max_tokens = 4;
    open_pair(&options, &options);
    source.on_placed = cancel_when_placed;
    double_net_hold(net, DOUBLE_HOLD_END);
    start_pair();
    lab_submit(&source, prefill_request(0, prompt, LONG));
    expect_failure(&source, 0, CANCELLED);
    assert_int_equal(source.answers[0].count, 0);
    assert_false(pd_engine_idle(source.engine));
    double_net_hold(net, 0);
    close_pair();
}

static void test_a_revoked_ticket_fails_the_reader(void **state)
{
    (void)state;
    stand_still(DOUBLE_HOLD_DATA);
    lab_wait(&source, 0);
    pd_engine_cancel(source.engine, lab_id(0));
    double_net_hold(net, DOUBLE_HOLD_DATA);
    expect_failure(&reader, 0, TICKET);
    close_pair();
}

static void test_a_lost_link_fails_the_reader_alone(void **state)
{
    (void)state;
    stand_still(DOUBLE_HOLD_DATA);
    assert_false(lab_wait(&source, 0)->failed);
    double_net_cut(net);
    expect_failure(&reader, 0, TICKET);
    assert_non_null(strstr(reader.answers[0].message, "link"));
    close_pair();
}

static void test_a_ticket_is_good_once(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_request *again;

    (void)state;
    open_pair(&options, &options);
    start_pair();
    run_pair(0, prompt);
    again = decode_request(0, LONG);
    again->id.request = 1;
    lab_submit(&reader, again);
    expect_failure(&reader, 1, TICKET);
    assert_int_equal(double_net_counts(net).refused, 1);
    close_pair();
}

static void test_a_lying_source_is_not_believed(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_request *request;
    int32_t invented = 'x';

    (void)state;
    open_pair(&options, &options);
    start_pair();
    lab_submit(&source, prefill_request(0, prompt, LONG));
    request = decode_request(0, LONG);
    lab_append(&request->generated, &invented, 1); /* is not what the ticket's prompt ends with */
    lab_submit(&reader, request);
    expect_failure(&reader, 0, TICKET);
    double_net_lie(net);
    lab_submit(&source, prefill_request(1, prompt, LONG));
    lab_submit(&reader, decode_request(1, LONG));
    expect_failure(&reader, 1, TICKET);
    close_pair();
}

static void test_tickets_out_of_range_are_refused(void **state)
{
    struct lab_options options = lab_defaults();
    uint64_t id = 0;

    (void)state;
    open_pair(&options, &options);
    start_pair();
    for (; id < 3; id++) {
        struct pd_request *request = lab_request(&reader, id, "", 10);

        request->route = PD_ROUTE_DECODE;
        request->ticket.block_size = id == 0 ? 16 : 8;
        request->ticket.tokens = id == 1 ? 0 : id == 2 ? UINT32_MAX : 20;
        lab_submit(&reader, request);
        assert_true(lab_wait(&reader, id)->failed);
    }
    assert_int_equal(reader.answers[0].code, PD__V1__FAILED__CODE__INVALID);
    assert_int_equal(reader.answers[1].code, PD__V1__FAILED__CODE__INVALID);
    assert_int_equal(reader.answers[2].code, PD__V1__FAILED__CODE__CONTEXT_LENGTH);
    assert_int_equal(double_net_counts(net).fetches, 0);
    close_pair();
}

/* The dispatcher's stream to the source breaks: a claimed ticket is the reader's to judge, any
 * other is given up. */
static void test_a_lost_stream_spares_claimed_tickets(void **state)
{
    struct lab_options p = lab_defaults(), d = lab_defaults();
    int32_t answer[LONG];

    (void)state;
    lab_oracle(prompt, NULL, answer, LONG);
    open_pair(&p, &d);
    double_net_hold(net, DOUBLE_HOLD_DATA);
    start_pair();
    lab_submit(&source, prefill_request(0, prompt, LONG));
    lab_submit(&reader, decode_request(0, LONG));
    lab_wait(&source, 0);
    lab_submit(&source, prefill_request(1, prompt, LONG)); /* nobody will claim it */
    lab_wait(&source, 1);
    double_net_wait(net, one_fetch);
    pd_engine_forget(source.engine, lab_id(0).attach);
    double_net_hold(net, 0);
    expect_pair(0, answer, 0, LONG);
    close_pair();
}

static void test_a_lost_stream_cancels_the_fetch(void **state)
{
    (void)state;
    stand_still(DOUBLE_HOLD_DATA);
    pd_engine_forget(reader.engine, lab_id(0).attach);
    expect_failure(&reader, 0, CANCELLED);
    double_net_hold(net, 0);
    close_pair();
}

static void test_poison_is_not_handed_over(void **state)
{
    struct lab_options options = lab_defaults();
    struct pd_request *request;

    (void)state;
    open_pair(&options, &options);
    double_net_hold(net, DOUBLE_HOLD_DATA);
    start_pair();
    request = prefill_request(0, prompt, LONG);
    request->prompt.ids[30] = TINY_NAN;
    lab_submit(&source, request);
    lab_submit(&reader, decode_request(0, LONG));
    expect_failure(&source, 0, PD__V1__FAILED__CODE__INTERNAL);
    expect_failure(&reader, 0, TICKET);
    close_pair();
}

/* A worker that ends waits until nobody reads its blocks any more. */
static void test_a_stop_waits_for_its_releases(void **state)
{
    (void)state;
    stand_still(DOUBLE_HOLD_DATA);
    lab_wait(&source, 0);
    double_net_hold(net, DOUBLE_HOLD_DATA);
    pd_engine_stop(source.engine);
    assert_true(pd_engine_idle(source.engine));
    expect_failure(&reader, 0, TICKET);
    close_pair();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_answers),
        cmocka_unit_test(test_many_at_once),
        cmocka_unit_test(test_chunks_are_offered_as_they_come),
        cmocka_unit_test(test_only_missing_blocks_are_read),
        cmocka_unit_test(test_blocks_that_were_read_are_cached),
        cmocka_unit_test(test_a_second_attempt_goes_on),
        cmocka_unit_test(test_one_token_needs_no_reader),
        cmocka_unit_test(test_a_reader_ends_with_the_first_token),
        cmocka_unit_test(test_no_room_on_the_reader),
        cmocka_unit_test(test_the_source_waits_for_its_tickets),
        cmocka_unit_test(test_a_received_answer_is_preempted),
        cmocka_unit_test(test_cancel_in_each_stage_of_a_fetch),
        cmocka_unit_test(test_cancel_on_the_source_while_it_computes),
        cmocka_unit_test(test_a_revoked_ticket_fails_the_reader),
        cmocka_unit_test(test_a_lost_link_fails_the_reader_alone),
        cmocka_unit_test(test_a_ticket_is_good_once),
        cmocka_unit_test(test_a_lying_source_is_not_believed),
        cmocka_unit_test(test_tickets_out_of_range_are_refused),
        cmocka_unit_test(test_a_lost_stream_spares_claimed_tickets),
        cmocka_unit_test(test_a_lost_stream_cancels_the_fetch),
        cmocka_unit_test(test_poison_is_not_handed_over),
        cmocka_unit_test(test_a_stop_waits_for_its_releases),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
