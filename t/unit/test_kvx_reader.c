/* The reader's state machine, rule by rule: messages, landings and time go in, and what it does to
 * the world is compared as text. An action too many, or in another order, fails. */
#include "t/unit/kvx_reader_world.h"

/* ---- rules ----------------------------------------------------------------------------------- */

static void whole_life(void **state)
{
    struct world *world = open_world();

    (void)state;
    read_seven(world, 0);
    land(world, 10 * MS);
    expect(world, "");
    ready(world, 20 * MS, 7, 24);
    expect(world, "read 7 22>3+1");
    sampled(world, 25 * MS, 7, 0);
    expect(world, "sampled 5: 4711 0; read 7 40>9+1");
    land(world, 30 * MS);
    expect(world, "");
    land(world, 31 * MS);
    expect(world, "1 release 7; complete 5: 4711 0 16");
    assert_int_equal(world->stats.bytes, 4 * 256);
    assert_int_equal(world->stats.chunks, 3);
    assert_int_equal(world->stats.wait_us, 10000);
    assert_int_equal(world->stats.wire_us, 21000);
    assert_int_equal(world->stats.exposed_us, 6000);
    assert_string_equal(world->stats.transport, "tcp");
    close_world(world);
}

static void rule_1_no_read_before_the_answer_to_the_claim(void **state)
{
    struct world *world = open_world();

    (void)state;
    claim_seven(world, 0);
    want(world, 0, 5, 0);
    ready(world, 0, 7, 24);
    sampled(world, 0, 7, 0);
    expect(world, "");
    accept(world, 0, 1, 7, 24);
    expect(world, "claimed 5: 100..129");
    want(world, 0, 5, 0);
    expect(world, "read 7 20>1+3");
    close_world(world);
}

static void rule_4_revoked_drains_releases_and_fails(void **state)
{
    struct world *world = open_world();

    (void)state;
    read_seven(world, 0);
    revoked(world, 0, 1, 7);
    expect(world, ""); /* a read is in flight: nothing is free yet (8) */
    ready(world, 0, 7, 24);
    expect(world, "");
    land(world, 0);
    expect(world, "1 release 7; failed 5");
    assert_string_equal(world->why, "preempted");
    close_world(world);
}

static void rule_4_revoked_while_waiting_fails_at_once(void **state)
{
    struct world *world = open_world();

    (void)state;
    read_seven(world, 0);
    land(world, 0);
    revoked(world, 0, 1, 7);
    expect(world, "1 release 7; failed 5");
    close_world(world);
}

static void rule_5_chunks_before_the_claim_are_read(void **state)
{
    struct world *world = open_world();

    (void)state;
    claim_seven(world, 0);
    accept(world, 0, 1, 7, 24);
    want(world, 0, 5, 0);
    expect(world, "claimed 5: 100..129; read 7 20>1+3");
    ready(world, 0, 7, 16); /* late or repeated: no block is read twice */
    ready(world, 0, 7, 24);
    expect(world, "");
    sampled(world, 0, 7, 0);
    sampled(world, 0, 7, 0);
    expect(world, "sampled 5: 4711 0; read 7 40>9+1");
    close_world(world);
}

static void rule_5_late_count_takes_nothing_back(void **state)
{
    struct world *world = open_world();

    (void)state;
    claim_seven(world, 0);
    accept(world, 0, 1, 7, 8);
    ready(world, 0, 7, 24);
    ready(world, 0, 7, 16);
    want(world, 0, 5, 0);
    expect(world, "claimed 5: 100..129; read 7 20>1+3");
    close_world(world);
}

static void rule_5_blocks_in_part_are_not_read_before_the_end(void **state)
{
    struct world *world = open_world();

    (void)state;
    claim_seven(world, 0);
    accept(world, 0, 1, 7, 7);
    want(world, 0, 5, 0);
    expect(world, "claimed 5: 100..129");
    ready(world, 0, 7, 15);
    expect(world, "read 7 20>1+1");
    ready(world, 0, 7, 30);
    expect(world, "read 7 21>2+2");
    close_world(world);
}

static void rule_7_cancelled_claim_is_released_without_its_answer(void **state)
{
    struct world *world = open_world();

    (void)state;
    claim_seven(world, 0);
    pd_reader_cancel(world->reader, 0, 5);
    expect(world, "1 release 7; cancelled 5");
    /* The same ticket again, before the answer: it would be mistaken for that of the new claim. */
    fetch(world, 0, 6, 7);
    expect(world, "failed 6");
    assert_non_null(strstr(world->why, "already"));
    accept(world, 0, 1, 7, 30);
    ready(world, 0, 7, 30);
    expect(world, "");
    fetch(world, 0, 8, 7);
    expect(world, "1 claim 7");
    gone(world, 0, 1, 7);
    expect(world, "failed 8");
    close_world(world);
}

static void rule_7_every_way_out_after_a_claim_releases_once(void **state)
{
    struct world *world = open_world();

    (void)state;
    claim_seven(world, 0);
    accept(world, 0, 1, 7, 16);
    expect(world, "claimed 5: 100..129");
    pd_reader_cancel(world->reader, 0, 5); /* before the engine has said what it wants */
    expect(world, "1 release 7; cancelled 5");
    pd_reader_cancel(world->reader, 0, 5);
    want(world, 0, 5, 0);
    revoked(world, 0, 1, 7);
    ready(world, 0, 7, 24);
    gone(world, 0, 1, 7);
    expect(world, "");
    close_world(world);
}

static void rule_7_gone_and_lost_link_need_no_release(void **state)
{
    struct world *world = open_world();

    (void)state;
    claim_seven(world, 0);
    gone(world, 0, 1, 7);
    expect(world, "failed 5");
    assert_string_equal(world->why, "no such ticket");
    fetch(world, 0, 6, 8);
    expect(world, "1 claim 8");
    pd_reader_link_down(world->reader, 0, 1, "cut");
    expect(world, "disconnect 1; failed 6");
    close_world(world);
}

static void rule_8_cancel_waits_for_reads_in_flight(void **state)
{
    struct world *world = open_world();

    (void)state;
    world->window = 1;
    claim_seven(world, 0);
    accept(world, 0, 1, 7, 24);
    want(world, 0, 5, 0);
    expect(world, "claimed 5: 100..129; read 7 20>1+3");
    pd_reader_cancel(world->reader, 0, 5);
    sampled(world, 0, 7, 0);
    expect(world, "");
    land(world, 0);
    expect(world, "1 release 7; cancelled 5");
    close_world(world);
}

static void rule_8_lost_stream_destroys_the_data_ends_first(void **state)
{
    struct world *world = open_world();

    (void)state;
    read_seven(world, 0);
    pd_reader_link_down(world->reader, 0, 1, "cut");
    expect(world, "disconnect 1; failed 5");
    assert_string_equal(world->why, "cut");
    close_world(world);
}

static void rule_8_lost_stream_ends_a_drain(void **state)
{
    struct world *world = open_world();

    (void)state;
    read_seven(world, 0);
    pd_reader_cancel(world->reader, 0, 5);
    pd_reader_link_down(world->reader, 0, 1, "cut");
    expect(world, "disconnect 1; cancelled 5");
    close_world(world);
}

static void rule_9_loss_of_a_data_connection_ends_the_link(void **state)
{
    struct world *world = open_world();

    (void)state;
    read_seven(world, 0);
    fetch(world, 0, 6, 8);
    expect(world, "1 claim 8");
    pd_reader_link_fail(world->reader, 0, 1, "a data connection was closed");
    expect(world, "disconnect 1; failed 5; failed 6; close 1");
    close_world(world);
}

static void rule_10_nothing_is_taken_over_to_a_new_link(void **state)
{
    struct world *world = open_world();

    (void)state;
    read_seven(world, 0);
    pd_reader_link_down(world->reader, 0, 1, "cut");
    expect(world, "disconnect 1; failed 5");
    fetch(world, 0, 6, 8);
    expect(world, "open 2 p0:9000"); /* a link that was up is opened again at once */
    pd_reader_link_up(world->reader, 0, 2);
    greet(world, 0, 2);
    pd_reader_connected(world->reader, 0, 2);
    expect(world, "2 hello 2; connect 2; 2 claim 8"); /* (11): its epoch has risen */
    accept(world, 0, 2, 7, 30);                       /* of the old link's fetch */
    accept(world, 0, 1, 8, 30);                       /* over the old link */
    expect(world, "");
    close_world(world);
}

static void rule_11_new_boot_of_a_source_ends_what_is_left_of_the_old(void **state)
{
    struct world *world = open_world();
    struct pd_ticket ticket = ticket_of("p0", SOURCE_BOOT + 1, 1);
    struct pd_from_source hello = hello_of("p0", SOURCE_BOOT + 1);

    (void)state;
    read_seven(world, 0);
    assert_int_equal(pd_reader_fetch(world->reader, 0, 6, &ticket), PD_OK);
    expect(world, "open 2 p0:9000");
    pd_reader_link_up(world->reader, 0, 2);
    expect(world, "2 hello 2");
    pd_reader_message(world->reader, 0, 2, &hello);
    expect(world, "disconnect 1; failed 5; close 1; connect 2");
    close_world(world);
}

static void rule_12_stale_ticket_does_not_touch_the_living_link(void **state)
{
    struct world *world = open_world();
    struct pd_ticket ticket = ticket_of("p0", SOURCE_BOOT - 1, 1);
    struct pd_from_source hello = hello_of("p0", SOURCE_BOOT);

    (void)state;
    read_seven(world, 0);
    assert_int_equal(pd_reader_fetch(world->reader, 0, 6, &ticket), PD_OK);
    expect(world, "open 2 p0:9000");
    pd_reader_link_up(world->reader, 0, 2);
    expect(world, "2 hello 2");
    assert_int_equal(world->last.hello.source_boot, SOURCE_BOOT - 1);
    pd_reader_message(world->reader, 0, 2, &hello);
    expect(world, "failed 6; close 2");
    assert_non_null(strstr(world->why, "boot 000000000000004c of p0, which runs 000000000000004d"));
    land(world, 0);
    ready(world, 0, 7, 24);
    expect(world, "read 7 22>3+1");
    close_world(world);
}

static void refused_hello(struct world *world, const struct pd_from_source *hello, const char *says)
{
    static uint64_t id = 100;
    struct pd_ticket ticket = ticket_of("p0", SOURCE_BOOT, 1);
    static uint64_t now = 1;

    now += 60000 * (uint64_t)MS; /* past any pause */
    assert_int_equal(pd_reader_fetch(world->reader, now, ++id, &ticket), PD_OK);
    pd_reader_link_up(world->reader, now, world->links);
    ignore(world);
    pd_reader_message(world->reader, now, world->links, hello);
    assert_null(strstr(world->log, "connect"));
    assert_non_null(strstr(world->log, "failed"));
    assert_non_null(strstr(world->log, "close"));
    if (!strstr(world->why, says))
        fail_msg("'%s' does not say '%s'", world->why, says);
    ignore(world);
}

static void rule_12_hello_is_checked_by_name(void **state)
{
    struct world *world = open_world();
    struct pd_from_source hello;

    (void)state;
    hello = hello_of("p1", SOURCE_BOOT);
    refused_hello(world, &hello, "answers as p1");
    hello = hello_of("p0", SOURCE_BOOT);
    hello.hello.fingerprint.weights[0] = 8;
    refused_hello(world, &hello, "weights differ: source 08090909..., reader 09090909...");
    hello = hello_of("p0", SOURCE_BOOT);
    hello.hello.transport[0] = '\0';
    strcpy(hello.hello.why, "no transport in common");
    refused_hello(world, &hello, "refused by p0: no transport in common");
    hello = hello_of("p0", SOURCE_BOOT);
    strcpy(hello.hello.transport, "rdma");
    refused_hello(world, &hello, "not offered");
    hello = hello_of("p0", SOURCE_BOOT);
    hello.hello.protocol = 0;
    refused_hello(world, &hello, "protocol");
    hello = hello_of("p0", SOURCE_BOOT);
    hello.hello.pool.head_dim = 8;
    assert_int_equal(pd_layout_derive(&hello.hello.pool, NULL), PD_OK);
    refused_hello(world, &hello, "source 1/1/8/8/4, reader 1/1/8/4/4");
    close_world(world);
}

static void refused_ticket(struct world *world, const struct pd_ticket *ticket, const char *says)
{
    assert_int_equal(pd_reader_fetch(world->reader, 0, 50, ticket), PD_OK);
    expect(world, "failed 50");
    if (!strstr(world->why, says))
        fail_msg("'%s' does not say '%s'", world->why, says);
}

static void rule_12_ticket_is_checked_by_name(void **state)
{
    struct world *world = open_world();
    struct pd_ticket ticket;

    (void)state;
    ticket = ticket_of("p0", SOURCE_BOOT, 1);
    ticket.fingerprint.chat_template[3] = 1;
    refused_ticket(world, &ticket, "chat templates differ: source 09090901");
    ticket = ticket_of("p0", SOURCE_BOOT, 1);
    ticket.block_size = 16;
    refused_ticket(world, &ticket, "block sizes differ: source 16, reader 8");
    ticket = ticket_of("p0", SOURCE_BOOT, 1);
    ticket.tokens = 0;
    refused_ticket(world, &ticket, "0 tokens");
    ticket.tokens = 1001;
    refused_ticket(world, &ticket, "1 to 1000");
    ticket.tokens = UINT32_MAX;
    refused_ticket(world, &ticket, "1 to 1000");
    ticket = ticket_of("", SOURCE_BOOT, 1);
    refused_ticket(world, &ticket, "names no source");
    /* Of another epoch of the pool: known once the source has said hello. */
    claim_seven(world, 0);
    ticket = ticket_of("p0", SOURCE_BOOT, 8);
    ticket.epoch = 2;
    refused_ticket(world, &ticket, "epoch 2 of the source's pool, which is at 1");
    close_world(world);
}

static void rule_14_answer_that_ends_with_the_first_token_is_left_at_once(void **state)
{
    struct world *world = open_world();

    (void)state;
    claim_seven(world, 0);
    accept(world, 0, 1, 7, 16);
    want(world, 0, 5, 0);
    expect(world, "claimed 5: 100..129; read 7 20>1+2");
    sampled(world, 0, 7, 1);
    expect(world, "sampled 5: 4711 1; read 7 22>3+1 40>9+1");
    pd_reader_cancel(world->reader, 0, 5);
    land(world, 0);
    expect(world, "");
    land(world, 0);
    expect(world, "1 release 7; cancelled 5");
    close_world(world);
}

static void read_all_over_shared_memory(struct world *world)
{
    struct pd_from_source hello = hello_of("p0", SOURCE_BOOT);

    world->words = true;
    for (unsigned i = 0; i < BLOCKS; i++)
        world->word[i] = 100 + i;
    strcpy(hello.hello.transport, "shm");
    fetch(world, 0, 5, 7);
    pd_reader_link_up(world->reader, 0, 1);
    pd_reader_message(world->reader, 0, 1, &hello);
    pd_reader_connected(world->reader, 0, 1);
    accept(world, 0, 1, 7, 16);
    want(world, 0, 5, 1); /* block 0 is held already */
    sampled(world, 0, 7, 0);
    land(world, 0);
    ignore(world);
}

static void rule_15_moved_word_fails_the_ticket(void **state)
{
    static const unsigned blocks[] = {21, 22, 40};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct world *world = open_world();

        read_all_over_shared_memory(world);
        world->word[blocks[i]]++; /* the first two were read by the first of the two reads */
        land(world, 0);
        expect(world, "disconnect 1; failed 5; close 1");
        assert_int_equal(pd_reader_counters(world->reader)->words_moved, 1);
        close_world(world);
    }
}

static void rule_15_words_of_blocks_that_were_not_read_do_not_matter(void **state)
{
    struct world *world = open_world();

    (void)state;
    read_all_over_shared_memory(world);
    world->word[20]++; /* the prompt's first block, which was not read */
    world->word[23]++; /* not the prompt's */
    land(world, 0);
    expect(world, "1 release 7; complete 5: 4711 0 16");
    close_world(world);
}

static void rule_20_only_missing_blocks_are_read(void **state)
{
    struct world *world = open_world();

    (void)state;
    claim_seven(world, 0);
    accept(world, 0, 1, 7, 24);
    want(world, 0, 5, 2);
    expect(world, "claimed 5: 100..129; read 7 22>3+1");
    close_world(world);
}

static void rule_20_nothing_to_read_still_waits_for_the_token(void **state)
{
    struct world *world = open_world();

    (void)state;
    claim_seven(world, 0);
    accept(world, 0, 1, 7, 30);
    want(world, 0, 5, 4);
    expect(world, "claimed 5: 100..129");
    sampled(world, 0, 7, 0);
    expect(world, "sampled 5: 4711 0; 1 release 7; complete 5: 4711 0 16");
    close_world(world);
}

static void rule_21_silence_ends_the_link(void **state)
{
    struct world *world = open_world();

    (void)state;
    read_seven(world, 0);
    pd_reader_tick(world->reader, silence_ns / 3);
    expect(world, "1 heartbeat");
    pd_reader_tick(world->reader, silence_ns);
    expect(world, "disconnect 1; failed 5; close 1");
    assert_int_equal(pd_reader_counters(world->reader)->silences, 1);
    close_world(world);
}

/* Ticks and the source's heartbeats until `until`; fails if the link is lost on the way. */
static void live_on(struct world *world, uint64_t until)
{
    struct pd_from_source heartbeat = {.kind = PD_FROM_SOURCE_HEARTBEAT};

    for (uint64_t now = 0; now < until; now += silence_ns / 2) {
        pd_reader_message(world->reader, now, 1, &heartbeat);
        pd_reader_tick(world->reader, now);
        assert_null(strstr(world->log, "disconnect"));
        ignore(world);
    }
    pd_reader_message(world->reader, until, 1, &heartbeat);
}

static void rule_21_reads_without_progress_end_the_link(void **state)
{
    struct world *world = open_world();

    (void)state;
    read_seven(world, 0);
    live_on(world, stall_ns);
    pd_reader_tick(world->reader, stall_ns);
    assert_non_null(strstr(world->log, "disconnect 1; failed 5; close 1"));
    assert_int_equal(pd_reader_counters(world->reader)->stalls, 1);
    close_world(world);
}

static void rule_21_claims_without_an_answer_end_the_link(void **state)
{
    struct world *world = open_world();

    (void)state;
    claim_seven(world, 0);
    live_on(world, stall_ns);
    pd_reader_tick(world->reader, stall_ns);
    assert_non_null(strstr(world->log, "disconnect 1; failed 5; close 1"));
    close_world(world);
}

static void rule_21_waiting_for_a_chunk_is_not_a_stall(void **state)
{
    struct world *world = open_world();

    (void)state;
    read_seven(world, 0);
    land(world, 0);
    live_on(world, 10 * stall_ns);
    sampled(world, 10 * stall_ns, 7, 0);
    assert_non_null(strstr(world->log, "sampled 5: 4711 0; read 7 22>3+1 40>9+1"));
    close_world(world);
}

/* Behind one small read, alone on its rail: its block comes again. Then no more at a time than the rail's
 * share of the window. */
static void rail_is_measured_alone(void **state)
{
    struct world *world = open_world();
    struct pd_ticket ticket = ticket_of("p0", SOURCE_BOOT, 7);

    (void)state;
    ticket.rail = 2;
    assert_int_equal(pd_reader_fetch(world->reader, 0, 5, &ticket), PD_OK);
    pd_reader_link_up(world->reader, 0, 1);
    greet(world, 0, 1);
    pd_reader_connected(world->reader, 0, 1);
    accept(world, 0, 1, 7, 16);
    ignore(world);
    want(world, 0, 5, 0);
    expect(world, "read 7 20>1+1 on rail 2");
    sampled(world, 1 * MS, 7, 0); /* more to read, and room in the window: the small one is alone */
    expect(world, "sampled 5: 4711 0");
    land(world, 2 * MS);
    expect(world, "read 7 20>1+2 on rail 2");
    land(world, 5 * MS);
    expect(world, "read 7 22>3+1 40>9+1 on rail 2");
    land(world, 6 * MS);
    expect(world, "1 release 7; complete 5: 4711 0 16");
    assert_int_equal(world->stats.round_trip_ns, 2 * MS);
    assert_int_equal(world->stats.bytes, 4 * 256);
    assert_int_equal(world->stats.wire_us, 4000);
    assert_int_equal(world->stats.rails, 2);
    close_world(world);
}

static void rail_that_there_is_not_is_refused(void **state)
{
    struct world *world = open_world();
    struct pd_ticket ticket = ticket_of("p0", SOURCE_BOOT, 8);

    (void)state;
    claim_seven(world, 0);
    ticket.rail = 3;
    refused_ticket(world, &ticket, "has 2 data connections, none of number 3");
    close_world(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_life),
        cmocka_unit_test(rail_is_measured_alone),
        cmocka_unit_test(rail_that_there_is_not_is_refused),
        cmocka_unit_test(rule_1_no_read_before_the_answer_to_the_claim),
        cmocka_unit_test(rule_4_revoked_drains_releases_and_fails),
        cmocka_unit_test(rule_4_revoked_while_waiting_fails_at_once),
        cmocka_unit_test(rule_5_chunks_before_the_claim_are_read),
        cmocka_unit_test(rule_5_late_count_takes_nothing_back),
        cmocka_unit_test(rule_5_blocks_in_part_are_not_read_before_the_end),
        cmocka_unit_test(rule_7_cancelled_claim_is_released_without_its_answer),
        cmocka_unit_test(rule_7_every_way_out_after_a_claim_releases_once),
        cmocka_unit_test(rule_7_gone_and_lost_link_need_no_release),
        cmocka_unit_test(rule_8_cancel_waits_for_reads_in_flight),
        cmocka_unit_test(rule_8_lost_stream_destroys_the_data_ends_first),
        cmocka_unit_test(rule_8_lost_stream_ends_a_drain),
        cmocka_unit_test(rule_9_loss_of_a_data_connection_ends_the_link),
        cmocka_unit_test(rule_10_nothing_is_taken_over_to_a_new_link),
        cmocka_unit_test(rule_11_new_boot_of_a_source_ends_what_is_left_of_the_old),
        cmocka_unit_test(rule_12_stale_ticket_does_not_touch_the_living_link),
        cmocka_unit_test(rule_12_hello_is_checked_by_name),
        cmocka_unit_test(rule_12_ticket_is_checked_by_name),
        cmocka_unit_test(rule_14_answer_that_ends_with_the_first_token_is_left_at_once),
        cmocka_unit_test(rule_15_moved_word_fails_the_ticket),
        cmocka_unit_test(rule_15_words_of_blocks_that_were_not_read_do_not_matter),
        cmocka_unit_test(rule_20_only_missing_blocks_are_read),
        cmocka_unit_test(rule_20_nothing_to_read_still_waits_for_the_token),
        cmocka_unit_test(rule_21_silence_ends_the_link),
        cmocka_unit_test(rule_21_reads_without_progress_end_the_link),
        cmocka_unit_test(rule_21_claims_without_an_answer_end_the_link),
        cmocka_unit_test(rule_21_waiting_for_a_chunk_is_not_a_stall),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
