/* Two engines and a wire that breaks, a dispatcher that leaves, a source that lies: in whichever stage
 * it happens, the request ends with the right failure and every block comes back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "kernels/backend.h"
#include "proto/pd.pb-c.h"
#include "t/unit/engine_pair.h"

enum { LONG = LAB_SPLIT };
enum { TICKET = PD__V1__FAILED__CODE__TICKET, CANCELLED = PD__V1__FAILED__CODE__CANCELLED };

static const char prompt[] = "A prompt of sixty-one tokens, which are seven blocks and a bit";
enum { PROMPT = sizeof(prompt) - 1, BLOCKS = (PROMPT + 7) / 8 };

/* ---- what breaks ----------------------------------------------------------------------------- */

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

static int fences, bad_fences;

static int fence(struct pd_device *device)
{
    fences++;
    return bad_fences-- > 0 ? pd_device_fail(device, PD_KERNEL_INVALID, "no fence") : PD_KERNEL_OK;
}

/* What has been received is read behind a fence, or not at all. */
static void test_nothing_is_read_without_a_fence(void **state)
{
    struct lab_options options = lab_defaults();
    static struct pd_backend fenced;

    (void)state;
    open_pair(&options, &options);
    fenced = *reader.model->device->backend;
    fenced.fence = fence;
    reader.model->device->backend = &fenced;
    fences = 0;
    bad_fences = 1;
    start_pair();
    lab_submit(&source, prefill_request(0, prompt, LONG));
    lab_submit(&reader, decode_request(0, LONG));
    expect_failure(&reader, 0, PD__V1__FAILED__CODE__INTERNAL);
    lab_wait_rest(&reader);
    assert_int_equal(lab_load(&reader).steps, 0);
    run_pair(1, prompt); /* nor has it stayed in the cache */
    assert_int_equal(fences, 2);
    assert_int_equal(lab_load(&reader).cache_hit_tokens, 0);
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

static void outside(struct pd_kvx_first *first)
{
    first->token = TINY_VOCABULARY;
}

static void outside_and_last(struct pd_kvx_first *first)
{
    first->token = UINT32_MAX;
    first->finish = PD__V1__FINISH_REASON__FINISH_STOP;
}

static void chance_outside(struct pd_kvx_first *first)
{
    first->chances = 1;
    first->chance[0].token = TINY_VOCABULARY;
}

static void unknown_end(struct pd_kvx_first *first)
{
    first->finish = PD__V1__FINISH_REASON__FINISH_TOOL_CALLS + 1;
}

/* A first token that no model has, or an end that no answer has, never gets as far as a step. */
static void test_a_first_token_is_checked(void **state)
{
    static void (*const changes[])(struct pd_kvx_first * first) = {outside, outside_and_last,
                                                                   chance_outside, unknown_end};
    struct lab_options options = lab_defaults();

    (void)state;
    open_pair(&options, &options);
    start_pair();
    for (uint64_t id = 0; id < sizeof(changes) / sizeof(changes[0]); id++) {
        double_net_change(net, changes[id]);
        lab_submit(&source, prefill_request(id, prompt, LONG));
        lab_submit(&reader, decode_request(id, LONG));
        expect_failure(&reader, id, TICKET);
        assert_int_equal(reader.answers[id].count, 0);
    }
    assert_int_equal(lab_load(&reader).steps, 0);
    double_net_change(net, NULL);
    run_pair(10, prompt);
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
    double_net_lie(net, true);
    lab_submit(&source, prefill_request(1, prompt, LONG));
    lab_submit(&reader, decode_request(1, LONG));
    expect_failure(&reader, 1, TICKET);
    close_pair();
}

static void test_tickets_out_of_range_are_refused(void **state)
{
    struct lab_options options = lab_defaults();

    (void)state;
    open_pair(&options, &options);
    start_pair();
    lab_submit(&reader, no_ticket_request(0, 20, 16));
    lab_submit(&reader, no_ticket_request(1, 0, 8));
    lab_submit(&reader, no_ticket_request(2, UINT32_MAX, 8));
    for (uint64_t id = 0; id < 3; id++)
        assert_true(lab_wait(&reader, id)->failed);
    assert_int_equal(reader.answers[0].code, PD__V1__FAILED__CODE__INVALID);
    assert_int_equal(reader.answers[1].code, PD__V1__FAILED__CODE__INVALID);
    assert_int_equal(reader.answers[2].code, PD__V1__FAILED__CODE__CONTEXT_LENGTH);
    assert_int_equal(double_net_counts(net).fetches, 0);
    close_pair();
}

static bool one_release(const struct double_counts *counts)
{
    return counts->released == 1;
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
    double_net_wait(net, one_release);
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
        cmocka_unit_test(test_cancel_in_each_stage_of_a_fetch),
        cmocka_unit_test(test_cancel_on_the_source_while_it_computes),
        cmocka_unit_test(test_a_revoked_ticket_fails_the_reader),
        cmocka_unit_test(test_a_lost_link_fails_the_reader_alone),
        cmocka_unit_test(test_nothing_is_read_without_a_fence),
        cmocka_unit_test(test_a_ticket_is_good_once),
        cmocka_unit_test(test_a_lying_source_is_not_believed),
        cmocka_unit_test(test_a_first_token_is_checked),
        cmocka_unit_test(test_tickets_out_of_range_are_refused),
        cmocka_unit_test(test_a_lost_stream_spares_claimed_tickets),
        cmocka_unit_test(test_a_lost_stream_cancels_the_fetch),
        cmocka_unit_test(test_poison_is_not_handed_over),
        cmocka_unit_test(test_a_stop_waits_for_its_releases),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
