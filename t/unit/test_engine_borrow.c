/* Two engines and a wire: a chat's second turn takes what the decode worker has cached of it instead of
 * computing it, and whatever comes between, it is computed, the answer is the same and every block comes
 * back. The first turn's prompt is in both caches, its answer in the reader's alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/pd.pb-c.h"
#include "t/unit/engine_pair.h"
#include "worker/base/log.h"

enum { NONE = PD__V1__FINISH_REASON__FINISH_NONE, TICKET = PD__V1__FAILED__CODE__TICKET };

static const char prompt[] = "A prompt of sixty-one tokens, which are seven blocks and a bit";
static const char more[] = " And what else?";

/* The answer's last token has no KV. */
enum {
    FIRST = LAB_SPLIT,
    SECOND = 12,
    BLOCK = 8,
    PROMPT = sizeof(prompt) - 1,
    WITH_SOURCE = PROMPT / BLOCK * BLOCK,
    WITH_READER = (PROMPT + FIRST - 1) / BLOCK * BLOCK,
    SECOND_PROMPT = PROMPT + FIRST + sizeof(more) - 1,
};

static int32_t second_prompt[SECOND_PROMPT], second_answer[SECOND];

/* ---- the second turn ------------------------------------------------------------------------- */

static void ask_the_oracle(void)
{
    struct pd_sample_params greedy = {.top_p = 1, .typical_p = 1, .repetition = 1};
    int count = 0;

    for (int i = 0; i < PROMPT; i++)
        second_prompt[count++] = prompt[i];
    lab_oracle(prompt, NULL, second_prompt + count, FIRST);
    count += FIRST;
    for (const char *p = more; *p; p++)
        second_prompt[count++] = *p;
    tiny_model_answer(second_prompt, count, greedy, second_answer, NULL, SECOND);
}

/* A pair behind the first turn of a chat. */
static void open_chat(const struct lab_options *prefill, const struct lab_options *decode)
{
    open_pair(prefill, decode);
    start_pair();
    run_pair(0, prompt);
    lab_wait_rest(&source);
    lab_wait_rest(&reader);
}

static void open_usual_chat(void)
{
    struct lab_options options = lab_defaults();

    open_chat(&options, &options);
}

static struct pd_request *second_request(struct lab *lab, uint64_t id, enum pd_route route)
{
    struct pd_request *request = lab_request(lab, id, "", SECOND);

    request->route = route;
    lab_append(&request->prompt, second_prompt, SECOND_PROMPT);
    return request;
}

/* Asks the reader for what it has, and begins the second turn on the source with that. */
static void begin_with_ticket(uint64_t id, uint64_t offer, uint32_t wait_ms)
{
    struct pd_request *request = second_request(&source, id, PD_ROUTE_PREFILL);

    lab_submit(&reader, second_request(&reader, offer, PD_ROUTE_OFFER));
    lab_wait_placed(&reader, offer);
    assert_true(reader.answers[offer].where.has_ticket);
    request->ticket = reader.answers[offer].where.ticket;
    request->ticket_wait_ms = wait_ms;
    lab_submit(&source, request);
}

static void end_second_turn(uint64_t id)
{
    lab_submit(&reader, decode_request(id, SECOND));
    expect_pair(id, second_answer, 0, SECOND);
}

/* What the source says of it: so many tokens it did not compute, so many of these it has borrowed. */
static void expect_cached(uint64_t id, int cached, int borrowed)
{
    const struct pd_placed *placed = &source.answers[id].where;

    assert_int_equal(placed->cached_tokens, cached);
    assert_int_equal(placed->borrowed_tokens, borrowed);
    assert_int_equal(source.answers[id].end.cached_tokens, cached);
    assert_int_equal(reader.answers[id].end.cached_tokens, cached);
}

static bool two_fetches(const struct double_counts *counts)
{
    return counts->fetches == 2;
}

/* The borrow stands still in the stage that `holds` names. */
static void stand_still(int holds, uint32_t wait_ms)
{
    open_usual_chat();
    double_net_hold(net, holds | DOUBLE_HOLD_END);
    begin_with_ticket(1, 21, wait_ms);
    double_net_wait(net, two_fetches);
}

/* ---- it goes well ---------------------------------------------------------------------------- */

static void test_the_reader_s_cache_is_not_computed_again(void **state)
{
    uint64_t computed;
    size_t read;

    (void)state;
    open_usual_chat();
    computed = lab_load(&source).tokens_prefilled;
    read = double_net_counts(net).blocks_read;
    begin_with_ticket(1, 21, 0);
    end_second_turn(1);
    expect_cached(1, WITH_READER, WITH_READER - WITH_SOURCE);
    assert_string_equal(source.answers[1].where.borrow_failed, "");
    assert_int_equal(lab_load(&source).tokens_prefilled - computed, SECOND_PROMPT - WITH_READER);
    assert_int_equal(lab_load(&source).borrowed_tokens, WITH_READER - WITH_SOURCE);
    assert_string_equal(source.answers[1].end.timing.kv.transport, "double");
    /* Each has read what it had not: the source the answer, the reader what is behind it. */
    assert_int_equal(double_net_counts(net).blocks_read - read,
                     (WITH_READER - WITH_SOURCE) / BLOCK + (SECOND_PROMPT + BLOCK - 1) / BLOCK -
                         WITH_READER / BLOCK);
    close_pair();
}

static void test_an_offer_is_a_ticket_and_no_request(void **state)
{
    struct pd_load before, after;

    (void)state;
    open_usual_chat();
    before = lab_load(&reader);
    lab_submit(&reader, second_request(&reader, 21, PD_ROUTE_OFFER));
    assert_false(lab_wait(&reader, 21)->failed);
    after = lab_load(&reader);
    assert_int_equal(reader.answers[21].end.finish, NONE);
    assert_int_equal(reader.answers[21].count, 0);
    assert_int_equal(reader.answers[21].where.prompt_tokens, SECOND_PROMPT);
    assert_int_equal(reader.answers[21].where.cached_tokens, WITH_READER);
    assert_int_equal(reader.answers[21].where.ticket.tokens, WITH_READER);
    assert_int_equal(after.kv_total - after.kv_free, WITH_READER / BLOCK);
    assert_int_equal(after.offered_tokens, WITH_READER);
    assert_int_equal(after.requests, before.requests);
    assert_int_equal(after.ended_handed_over, before.ended_handed_over);
    assert_int_equal(after.steps, before.steps);
    pd_engine_cancel(reader.engine, lab_id(21)); /* nobody has claimed it */
    lab_wait_rest(&reader);
    close_pair();
}

static void test_nothing_cached_is_no_offer(void **state)
{
    struct lab_options options = lab_defaults();
    uint64_t failed;

    (void)state;
    open_pair(&options, &options);
    start_pair();
    failed = lab_load(&reader).ended_failed;
    lab_submit(&reader, second_request(&reader, 21, PD_ROUTE_OFFER));
    expect_failure(&reader, 21, TICKET);
    assert_int_equal(reader.answers[21].placed, 0);
    assert_int_equal(lab_load(&reader).ended_failed, failed);
    close_pair();
}

/* The whole prompt may be cached: its last token is left for whoever asks. */
static void test_a_token_is_left_to_be_computed(void **state)
{
    static const char whole[] = "eight to the block and all full!";
    enum { WHOLE = sizeof(whole) - 1 };
    struct pd_request *request;

    (void)state;
    assert_int_equal(WHOLE % BLOCK, 0);
    open_usual_chat();
    run_pair(2, whole);
    request = lab_request(&reader, 22, whole, 1);
    request->route = PD_ROUTE_OFFER;
    lab_submit(&reader, request);
    lab_wait_placed(&reader, 22);
    assert_int_equal(reader.answers[22].where.ticket.tokens, WHOLE - BLOCK);
    pd_engine_cancel(reader.engine, lab_id(22));
    close_pair();
}

static void test_what_the_source_has_itself_is_left_alone(void **state)
{
    int fetches;

    (void)state;
    open_usual_chat();
    begin_with_ticket(1, 21, 0);
    end_second_turn(1);
    fetches = double_net_counts(net).fetches;
    begin_with_ticket(2, 22, 0);
    end_second_turn(2);
    assert_int_equal(double_net_counts(net).fetches, fetches + 1); /* the reader's own */
    assert_int_equal(source.answers[2].where.borrowed_tokens, 0);
    assert_string_equal(source.answers[2].where.borrow_failed, "");
    pd_engine_cancel(reader.engine, lab_id(22));
    close_pair();
}

/* ---- it does not ----------------------------------------------------------------------------- */

static void test_a_lost_link(void **state)
{
    static const int stages[] = {DOUBLE_HOLD_CLAIM, DOUBLE_HOLD_DATA};

    (void)state;
    for (int i = 0; i < 2; i++) {
        stand_still(stages[i], 60000);
        assert_int_equal(source.answers[1].placed, 0);
        double_net_cut(net);
        double_net_hold(net, 0);
        end_second_turn(1);
        expect_cached(1, WITH_SOURCE, 0);
        assert_string_equal(source.answers[1].where.borrow_failed, "the link is lost");
        pd_engine_cancel(reader.engine, lab_id(21));
        close_pair();
    }
}

static void test_a_ticket_that_is_gone(void **state)
{
    struct pd_request *request;

    (void)state;
    open_usual_chat();
    lab_submit(&reader, second_request(&reader, 21, PD_ROUTE_OFFER));
    lab_wait_placed(&reader, 21);
    pd_engine_cancel(reader.engine, lab_id(21));
    lab_wait_rest(&reader);
    request = second_request(&source, 1, PD_ROUTE_PREFILL);
    request->ticket = reader.answers[21].where.ticket;
    lab_submit(&source, request);
    end_second_turn(1);
    expect_cached(1, WITH_SOURCE, 0);
    assert_string_equal(source.answers[1].where.borrow_failed, "the ticket is gone");
    close_pair();
}

/* The request goes on with other blocks; what may still be written to is free when kvx says so. */
static void test_one_that_takes_too_long(void **state)
{
    static const int stages[] = {DOUBLE_HOLD_CLAIM, DOUBLE_HOLD_DATA};

    (void)state;
    for (int i = 0; i < 2; i++) {
        stand_still(stages[i], 1);
        assert_false(lab_wait(&source, 1)->failed);
        assert_string_equal(source.answers[1].where.borrow_failed, "it did not come in time");
        assert_int_equal(lab_load(&source).kv_reserved, (WITH_READER - WITH_SOURCE) / BLOCK);
        double_net_hold(net, 0);
        end_second_turn(1);
        expect_cached(1, WITH_SOURCE, 0);
        pd_engine_cancel(reader.engine, lab_id(21));
        close_pair();
    }
}

static void test_a_client_that_leaves(void **state)
{
    static const int stages[] = {DOUBLE_HOLD_CLAIM, DOUBLE_HOLD_DATA};

    (void)state;
    for (int i = 0; i < 2; i++) {
        stand_still(stages[i], 60000);
        pd_engine_cancel(source.engine, lab_id(1));
        expect_failure(&source, 1, PD__V1__FAILED__CODE__CANCELLED);
        assert_false(pd_engine_idle(source.engine));
        pd_engine_cancel(reader.engine, lab_id(21));
        double_net_hold(net, 0);
        close_pair();
    }
}

static void test_a_dispatcher_that_leaves(void **state)
{
    (void)state;
    stand_still(DOUBLE_HOLD_DATA, 60000);
    pd_engine_forget(source.engine, lab_id(1).attach);
    pd_engine_forget(reader.engine, lab_id(21).attach);
    expect_failure(&source, 1, PD__V1__FAILED__CODE__CANCELLED);
    double_net_hold(net, 0);
    close_pair();
}

/* What the log says at a level from here to read_log. */
struct heard {
    FILE *file;
    int before; /* descriptor of what the log went to */
};

static struct heard hear_log(enum pd_log_level level)
{
    struct heard heard = {tmpfile(), dup(STDERR_FILENO)};

    assert_non_null(heard.file);
    assert_true(dup2(fileno(heard.file), STDERR_FILENO) >= 0);
    pd_log_set_level(level);
    return heard;
}

static void read_log(struct heard heard, char log[4096])
{
    pd_log_set_level(PD_LOG_ERROR + 1);
    assert_true(dup2(heard.before, STDERR_FILENO) >= 0);
    close(heard.before);
    rewind(heard.file);
    log[fread(log, 1, 4095, heard.file)] = '\0';
    fclose(heard.file);
}

/* The dispatcher is told why; the log, which has a line a second, only if it is asked for each request. */
static void lie(enum pd_log_level level, char log[4096])
{
    struct heard heard;

    open_usual_chat();
    heard = hear_log(level);
    double_net_hold(net, DOUBLE_HOLD_CLAIM);
    begin_with_ticket(1, 21, 60000);
    double_net_wait(net, two_fetches);
    double_net_lie(net, true);
    double_net_hold(net, 0);
    lab_wait_placed(&source, 1);
    double_net_lie(net, false);
    end_second_turn(1);
    read_log(heard, log);
    expect_cached(1, WITH_SOURCE, 0);
    assert_string_equal(source.answers[1].where.borrow_failed, "the ticket is of another prompt");
    close_pair();
}

static void test_an_owner_that_lies(void **state)
{
    static const char words[] = "nothing is borrowed from ";
    char log[4096];

    (void)state;
    lie(PD_LOG_INFO, log);
    assert_null(strstr(log, words));
    lie(PD_LOG_DEBUG, log);
    assert_non_null(strstr(log, words));
}

/* Tickets that are none of this prompt's, or of no worker like this, are not asked for. */
static void test_tickets_that_do_not_fit(void **state)
{
    static const struct {
        uint32_t tokens, block_size;
    } tickets[] = {{WITH_READER + 1, BLOCK},
                   {(SECOND_PROMPT / BLOCK + 1) * BLOCK, BLOCK},
                   {6 * 16, 16},
                   {0, BLOCK}};

    (void)state;
    for (size_t i = 0; i < sizeof(tickets) / sizeof(*tickets); i++) {
        struct pd_request *request;
        int fetches;

        open_usual_chat();
        fetches = double_net_counts(net).fetches;
        request = second_request(&source, 1, PD_ROUTE_PREFILL);
        request->ticket.tokens = tickets[i].tokens;
        request->ticket.block_size = tickets[i].block_size;
        lab_submit(&source, request);
        assert_false(lab_wait(&source, 1)->failed);
        assert_string_equal(source.answers[1].where.borrow_failed, "");
        assert_int_equal(double_net_counts(net).fetches, fetches);
        pd_engine_cancel(source.engine, lab_id(1));
        close_pair();
    }
}

/* There is to be room for it beside all that the request needs without it. */
static void test_no_room_for_it(void **state)
{
    struct lab_options p = lab_defaults(), d = lab_defaults();

    (void)state;
    p.model.kv_blocks = 20; /* 14 for the prompt, of which 7 are cached, and 4 that are borrowed */
    open_chat(&p, &d);
    for (uint64_t id = 10; id < 12;
         id++) { /* hold the 7 that are not, with a ticket nobody claims */
        struct pd_request *request = lab_request(&source, id, "", 1);

        for (int i = 0; i < 3 * BLOCK; i++)
            lab_append(&request->prompt, &(int32_t){(int32_t)(id + 20)}, 1);
        request->route = PD_ROUTE_PREFILL;
        lab_submit(&source, request);
        assert_false(lab_wait(&source, id)->failed);
    }
    assert_int_equal(lab_load(&source).kv_free, 14);
    begin_with_ticket(1, 21, 60000);
    end_second_turn(1);
    expect_cached(1, WITH_SOURCE, 0);
    assert_string_equal(source.answers[1].where.borrow_failed, "");
    for (uint64_t id = 10; id < 12; id++)
        pd_engine_cancel(source.engine, lab_id(id));
    pd_engine_cancel(reader.engine, lab_id(21));
    close_pair();
}

static void test_without_a_cache(void **state)
{
    struct lab_options p = lab_defaults(), d = lab_defaults();

    (void)state;
    p.no_caching = true;
    open_chat(&p, &d);
    begin_with_ticket(1, 21, 60000);
    end_second_turn(1);
    expect_cached(1, 0, 0);
    pd_engine_cancel(reader.engine, lab_id(21));
    close_pair();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_reader_s_cache_is_not_computed_again),
        cmocka_unit_test(test_an_offer_is_a_ticket_and_no_request),
        cmocka_unit_test(test_nothing_cached_is_no_offer),
        cmocka_unit_test(test_a_token_is_left_to_be_computed),
        cmocka_unit_test(test_what_the_source_has_itself_is_left_alone),
        cmocka_unit_test(test_a_lost_link),
        cmocka_unit_test(test_a_ticket_that_is_gone),
        cmocka_unit_test(test_one_that_takes_too_long),
        cmocka_unit_test(test_a_client_that_leaves),
        cmocka_unit_test(test_a_dispatcher_that_leaves),
        cmocka_unit_test(test_an_owner_that_lies),
        cmocka_unit_test(test_tickets_that_do_not_fit),
        cmocka_unit_test(test_no_room_for_it),
        cmocka_unit_test(test_without_a_cache),
    };

    ask_the_oracle();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
