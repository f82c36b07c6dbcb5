/* The reader's links, how they are opened and given up, and sources and engines that talk nonsense;
 * in the manner of test_kvx_reader.c. */
#include "t/unit/kvx_reader_world.h"

/* ---- opening links --------------------------------------------------------------------------- */

static void fetches_wait_for_one_link(void **state)
{
    struct world *world = open_world();

    (void)state;
    fetch(world, 0, 1, 11);
    fetch(world, 0, 2, 12);
    fetch(world, 0, 3, 13);
    expect(world, "open 1 p0:9000");
    pd_reader_cancel(world->reader, 0, 2);
    expect(world, "cancelled 2");
    pd_reader_link_up(world->reader, 0, 1);
    greet(world, 0, 1);
    pd_reader_connected(world->reader, 0, 1);
    expect(world, "1 hello 1; connect 1; 1 claim 11; 1 claim 13");
    close_world(world);
}

static void link_that_does_not_open_fails_its_fetches_and_pauses(void **state)
{
    struct world *world = open_world();

    (void)state;
    fetch(world, 0, 1, 11);
    pd_reader_link_down(world->reader, 0, 1, "connection refused");
    expect(world, "open 1 p0:9000; failed 1");
    fetch(world, 1, 2, 12);
    expect(world, "failed 2");
    assert_non_null(strstr(world->why, "ms; last: connection refused"));
    fetch(world, 100 * MS, 3, 13);
    expect(world, "open 2 p0:9000");
    pd_reader_tick(world->reader, 100 * MS + silence_ns);
    expect(world, "failed 3; close 2");
    close_world(world);
}

/* The link to the source is up at the beginning, and lost at once. */
static struct world *lose_a_link(void)
{
    struct world *world = open_world();

    fetch(world, 0, 1, 11);
    pd_reader_link_up(world->reader, 0, 1);
    greet(world, 0, 1);
    pd_reader_connected(world->reader, 0, 1);
    ignore(world);
    pd_reader_link_down(world->reader, 0, 1, "reset");
    expect(world, "disconnect 1; failed 1");
    return world;
}

/* Time goes on, and no try to open the link is answered; the longest time between two of them. */
static uint64_t longest_gap(struct world *world, uint64_t from, uint64_t to)
{
    uint64_t longest = 0, last = from, now = from;

    for (; now < to; now += 50 * MS) {
        uint64_t tries = world->links;

        pd_reader_tick(world->reader, now);
        ignore(world);
        assert_in_range(world->links - tries, 0, 1);
        if (world->links == tries)
            continue;
        longest = now - last > longest ? now - last : longest;
        last = now;
    }
    return to - last > longest ? to - last : longest;
}

/* A path that was cut: nobody asks for it, and it is there again a moment after it has healed. */
static void lost_link_is_opened_again_without_a_ticket(void **state)
{
    struct world *world = lose_a_link();
    uint64_t now = 5000 * (uint64_t)MS;

    (void)state;
    assert_true(longest_gap(world, 0, now) < 1000 * (uint64_t)MS);
    for (uint64_t tries = world->links; world->links == tries; now += 50 * MS)
        pd_reader_tick(world->reader, now);
    ignore(world);
    pd_reader_link_up(world->reader, now, world->links);
    greet(world, now, world->links);
    pd_reader_connected(world->reader, now, world->links);
    ignore(world);
    assert_int_equal(longest_gap(world, now, now + 1), 1); /* it is up: no more tries */
    fetch(world, now, 2, 12);
    assert_non_null(strstr(world->log, "claim 12"));
    ignore(world);
    close_world(world);
}

/* One that is gone for good is left alone in the end, until a ticket names it. */
static void lost_link_is_not_tried_for_ever(void **state)
{
    struct world *world = lose_a_link();
    uint64_t now = 301000 * (uint64_t)MS;

    (void)state;
    longest_gap(world, 0, now);
    assert_int_equal(longest_gap(world, now, now + 60000 * (uint64_t)MS), 60000 * (uint64_t)MS);
    now += 60000 * (uint64_t)MS;
    fetch(world, now, 2, 12);
    assert_non_null(strstr(world->log, "open"));
    ignore(world);
    assert_true(longest_gap(world, now, now + 60000 * (uint64_t)MS) < 1000 * (uint64_t)MS);
    close_world(world);
}

/* Nor is one at whose address somebody else lives now. */
static void source_that_is_another_one_is_not_tried_again(void **state)
{
    struct world *world = lose_a_link();
    struct pd_from_source hello = hello_of("p0", SOURCE_BOOT + 1);

    (void)state;
    pd_reader_tick(world->reader, 50 * MS);
    expect(world, "open 2 p0:9000");
    pd_reader_link_up(world->reader, 50 * MS, 2);
    pd_reader_message(world->reader, 50 * MS, 2, &hello);
    ignore(world);
    assert_int_equal(longest_gap(world, 50 * MS, 60000 * (uint64_t)MS), 59950 * (uint64_t)MS);
    close_world(world);
}

/* A ticket that comes while the link is being tried waits for it, for as long as if it had begun the try. */
static void ticket_joins_a_try(void **state)
{
    struct world *world = lose_a_link();

    (void)state;
    pd_reader_tick(world->reader, 50 * MS);
    expect(world, "open 2 p0:9000");
    fetch(world, 300 * MS, 2, 12);
    pd_reader_tick(world->reader, 550 * MS);
    expect(world, "");
    pd_reader_link_up(world->reader, 550 * MS, 2);
    greet(world, 550 * MS, 2);
    pd_reader_connected(world->reader, 550 * MS, 2);
    expect(world, "2 hello 2; connect 2; 2 claim 12");
    close_world(world);
}

static void greet_over(struct world *world, uint64_t now, uint64_t link, const char *transport)
{
    struct pd_from_source hello = hello_of("p0", SOURCE_BOOT);

    strcpy(hello.hello.transport, transport);
    strcpy(hello.hello.why, "");
    pd_reader_message(world->reader, now, link, &hello);
}

/* The fetch waits on, and does not notice; the next hello offers what is left, and the link says why. */
static void transport_that_leads_nowhere_gives_way_to_the_next(void **state)
{
    struct world *world = open_world();
    struct pd_kvx_link_state link;

    (void)state;
    fetch(world, 0, 5, 7);
    pd_reader_link_up(world->reader, 0, 1);
    assert_int_equal(world->last.hello.transport_count, 2);
    world->connect_fails = true;
    ignore(world);
    greet_over(world, 0, 1, "shm");
    expect(world, "close 1; open 2 p0:9000");
    world->connect_fails = false;
    pd_reader_link_up(world->reader, 0, 2);
    assert_int_equal(world->last.hello.transport_count, 1);
    assert_string_equal(world->last.hello.transports[0], "tcp");
    greet_over(world, 0, 2, "tcp");
    ignore(world);
    pd_reader_connected(world->reader, 0, 2);
    expect(world, "2 claim 7");
    assert_int_equal(pd_reader_links(world->reader, &link, 1), 1);
    assert_string_equal(link.why, "no shm: connection refused");
    assert_int_equal(pd_reader_counters(world->reader)->fallbacks, 1);

    /* Lost within a minute, it is opened without; later the better one is tried again. */
    pd_reader_link_down(world->reader, 10 * (uint64_t)MS, 2, "reset");
    fetch(world, 20 * (uint64_t)MS, 6, 8);
    pd_reader_link_up(world->reader, 20 * (uint64_t)MS, 3);
    assert_int_equal(world->last.hello.transport_count, 1);
    pd_reader_link_down(world->reader, 30 * (uint64_t)MS, 3, "reset");
    fetch(world, 70000 * (uint64_t)MS, 9, 9);
    pd_reader_link_up(world->reader, 70000 * (uint64_t)MS, 4);
    assert_int_equal(world->last.hello.transport_count, 2);
    close_world(world);
}

/* A connection that is asked for and never stands is one too; and if none is left, the fetch fails. */
static void every_transport_is_tried_once(void **state)
{
    struct world *world = open_world();

    (void)state;
    fetch(world, 0, 5, 7);
    pd_reader_link_up(world->reader, 0, 1);
    greet_over(world, 0, 1, "shm");
    ignore(world);
    pd_reader_tick(world->reader, silence_ns);
    expect(world, "disconnect 1; close 1; open 2 p0:9000");
    pd_reader_link_up(world->reader, silence_ns, 2);
    greet_over(world, silence_ns, 2, "tcp");
    ignore(world);
    pd_reader_link_fail(world->reader, silence_ns, 2, "connection refused");
    expect(world, "disconnect 2; failed 5; close 2");
    assert_string_equal(world->why, "connection refused");
    fetch(world, 10 * silence_ns, 6, 8);
    pd_reader_link_up(world->reader, 10 * silence_ns, 3);
    assert_int_equal(world->last.hello.transport_count, 2);
    close_world(world);
}

static void deadline_covers_every_step_of_opening(void **state)
{
    struct world *world = open_world();

    (void)state;
    fetch(world, 0, 1, 11);
    pd_reader_link_up(world->reader, 0, 1);
    greet(world, 0, 1);
    expect(world, "open 1 p0:9000; 1 hello 1; connect 1");
    pd_reader_tick(world->reader, silence_ns - 1);
    assert_null(strstr(world->log, "disconnect"));
    ignore(world);
    pd_reader_tick(world->reader, silence_ns); /* of the transport: the next one has as long */
    expect(world, "disconnect 1; close 1; open 2 p0:9000");
    pd_reader_tick(world->reader, 2 * silence_ns - 1);
    expect(world, "");
    pd_reader_tick(world->reader, 2 * silence_ns);
    expect(world, "failed 1; close 2");
    close_world(world);
}

static void idle_link_gives_way_busy_ones_do_not(void **state)
{
    static const char *const sources[] = {"p0", "p1", "p2", "p3", "p4"};
    struct world *world = open_world();

    (void)state;
    for (uint64_t i = 0; i < 4; i++) {
        struct pd_ticket ticket = ticket_of(sources[i], SOURCE_BOOT, 1);
        struct pd_from_source hello = hello_of(sources[i], SOURCE_BOOT);

        assert_int_equal(pd_reader_fetch(world->reader, 0, i, &ticket), PD_OK);
        pd_reader_link_up(world->reader, 0, i + 1);
        pd_reader_message(world->reader, 0, i + 1, &hello);
        pd_reader_connected(world->reader, 0, i + 1);
    }
    ignore(world);
    {
        struct pd_ticket ticket = ticket_of(sources[4], SOURCE_BOOT, 1);

        assert_int_equal(pd_reader_fetch(world->reader, 0, 10, &ticket), PD_OK);
        expect(world, "failed 10");
        assert_non_null(strstr(world->why, "all 4 KV links are in use"));
        gone(world, 0, 2, 1);
        expect(world, "failed 1");
        assert_int_equal(pd_reader_fetch(world->reader, 0, 11, &ticket), PD_OK);
        expect(world, "disconnect 2; close 2; open 5 p4:9000");
    }
    close_world(world);
}

static void read_that_cannot_be_posted_fails_the_link(void **state)
{
    struct world *world = open_world();

    (void)state;
    claim_seven(world, 0);
    accept(world, 0, 1, 7, 16);
    world->read_fails = true;
    want(world, 0, 5, 0);
    expect(world, "claimed 5: 100..129; read 7 20>1+2; disconnect 1; failed 5; close 1");
    close_world(world);
}

static void bytes_that_do_not_reach_the_device_fail_the_link(void **state)
{
    struct world *world = open_world();

    (void)state;
    read_seven(world, 0);
    world->device_lost = true;
    land(world, 0);
    expect(world, "disconnect 1; failed 5; close 1");
    assert_string_equal(world->why, "the KV pool's device is lost");
    close_world(world);
}

static void window_is_kept_and_shared_in_turn(void **state)
{
    struct world *world = open_world();
    struct pd_from_source message;

    (void)state;
    claim_seven(world, 0);
    accept(world, 0, 1, 7, 8);
    want(world, 0, 5, 0);
    fetch(world, 0, 6, 8);
    accept(world, 0, 1, 8, 8);
    want(world, 0, 6, 0);
    expect(world, "claimed 5: 100..129; read 7 20>1+1; 1 claim 8; claimed 6: 100..129; "
                  "read 8 20>1+1");
    ready(world, 0, 7, 16);
    ready(world, 0, 8, 16);
    expect(world, ""); /* two are in flight */
    land(world, 0);
    expect(world, "read 7 21>2+1");
    land(world, 0);
    expect(world, "read 8 21>2+1");
    message = claimed_of(7, 8);
    pd_reader_message(world->reader, 0, 1, &message); /* a second answer means nothing */
    expect(world, "");
    close_world(world);
}

/* ---- a source that lies ---------------------------------------------------------------------- */

static void lie(struct world *world, struct pd_from_source message, const char *says)
{
    claim_seven(world, 0);
    pd_reader_message(world->reader, 0, 1, &message);
    expect(world, "1 release 7; failed 5");
    if (!strstr(world->why, says))
        fail_msg("'%s' does not say '%s'", world->why, says);
    close_world(world);
}

static void lies_about_blocks_fail_the_ticket(void **state)
{
    static struct pd_extent outside[] = {{20, 3}, {BLOCKS, 1}}, over_the_end[] = {{BLOCKS - 3, 4}},
                            few[] = {{20, 3}}, many[] = {{20, 5}};
    struct pd_from_source message = claimed_of(7, 0);

    (void)state;
    message.claimed.extents = outside;
    lie(open_world(), message, "outside of its pool");
    message.claimed.extents = over_the_end;
    message.claimed.extent_count = 1;
    lie(open_world(), message, "outside of its pool");
    message.claimed.extents = few;
    lie(open_world(), message, "3 blocks, the prompt has 4");
    message.claimed.extents = many;
    lie(open_world(), message, "5 blocks, the prompt has 4");
    message = claimed_of(7, 0);
    message.claimed.prompt_count = 29;
    lie(open_world(), message, "29 prompt tokens, the ticket 30");
}

static void lies_about_words_fail_the_ticket(void **state)
{
    struct world *world = open_world();
    struct pd_from_source message = claimed_of(7, 0);

    (void)state;
    world->words = true;
    message.claimed.word_count = 3;
    lie(world, message, "3 generation words for 4 blocks");
}

static void lies_about_progress_fail_the_ticket(void **state)
{
    struct world *world = open_world();
    struct pd_from_source message = {.kind = PD_FROM_SOURCE_READY};

    (void)state;
    read_seven(world, 0);
    ready(world, 0, 7, 31);
    expect(world, "");
    land(world, 0);
    expect(world, "1 release 7; failed 5");
    assert_non_null(strstr(world->why, "more or fewer tokens"));
    fetch(world, 0, 6, 8);
    accept(world, 0, 1, 8, 0);
    expect(world, "1 claim 8; claimed 6: 100..129");
    message.ready.generation = 8;
    message.ready.tokens = 16;
    message.ready.complete = true;
    pd_reader_message(world->reader, 0, 1, &message);
    expect(world, "1 release 8; failed 6");
    close_world(world);
}

/* Fetch 5 of ticket 7 by a reader that wants sums: the blocks land in 1, 2, 3 and 9. */
static struct world *claim_with_sums(const char *hello_says)
{
    struct world *world = open_world_with(true);
    struct pd_from_source hello = hello_of("p0", SOURCE_BOOT);

    fetch(world, 0, 5, 7);
    pd_reader_link_up(world->reader, 0, 1);
    assert_true(world->last.hello.checksum);
    hello.hello.checksum = !hello_says;
    pd_reader_message(world->reader, 0, 1, &hello);
    if (hello_says) {
        assert_non_null(strstr(world->why, hello_says));
        return world;
    }
    pd_reader_connected(world->reader, 0, 1);
    return world;
}

static void ready_with_sums(struct world *world, uint32_t tokens, uint32_t from, size_t count,
                            uint64_t *sums)
{
    struct pd_from_source message = {.kind = PD_FROM_SOURCE_READY};

    message.ready = (struct pd_chunk_ready){.generation = 7,
                                            .tokens = tokens,
                                            .complete = tokens == 30,
                                            .sums_from = from,
                                            .sum_count = count,
                                            .sums = sums};
    pd_reader_message(world->reader, 0, 1, &message);
}

static void blocks_are_compared_with_their_sums(void **state)
{
    uint64_t sums[] = {1001, 1002, 1003, 1009}, wrong[] = {1003, 1008};
    struct world *world;

    (void)state;
    close_world(claim_with_sums("gives no checksums"));

    world = claim_with_sums(NULL);
    accept(world, 0, 1, 7, 0);
    want(world, 0, 5, 0);
    ready_with_sums(world, 16, 0, 2, sums);
    ready_with_sums(world, 16, 0, 2, sums); /* once more */
    land(world, 0);
    ready_with_sums(world, 30, 2, 2, sums + 2);
    ignore(world);
    land(world, 0);
    expect(world, "1 release 7; complete 5: 0 0 0");
    close_world(world);

    world = claim_with_sums(NULL);
    accept(world, 0, 1, 7, 0);
    want(world, 0, 5, 0);
    ready_with_sums(world, 16, 0, 2, sums);
    ready_with_sums(world, 30, 2, 2, wrong);
    land(world, 0);
    ignore(world);
    land(world, 0);
    expect(world, "disconnect 1; failed 5; close 1");
    assert_non_null(strstr(world->why, "block 3 of ticket 7 did not arrive as the source had it"));
    assert_int_equal(pd_reader_counters(world->reader)->wrong_sums, 1);
    close_world(world);
}

/* Of a prefix that is held already nothing lands, and nothing is compared. */
static void sums_of_blocks_that_are_held_do_not_matter(void **state)
{
    uint64_t sums[] = {1, 2, 1003, 1009};
    struct world *world = claim_with_sums(NULL);

    (void)state;
    accept(world, 0, 1, 7, 0);
    want(world, 0, 5, 2);
    ready_with_sums(world, 30, 0, 4, sums);
    ignore(world);
    land(world, 0);
    expect(world, "1 release 7; complete 5: 0 0 0");
    close_world(world);
}

static void lies_about_sums_fail_the_ticket(void **state)
{
    uint64_t sums[5] = {0};
    const struct {
        uint32_t tokens, from;
        size_t count;
    } lies[] = {{16, 0, 1}, {16, 1, 2}, {30, 0, 3}, {30, 0, 5}, {30, 4, 1}, {16, 0, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
        struct world *world = claim_with_sums(NULL);

        accept(world, 0, 1, 7, 0);
        want(world, 0, 5, 0);
        ignore(world);
        ready_with_sums(world, lies[i].tokens, lies[i].from, lies[i].count, sums);
        expect(world, "1 release 7; failed 5");
        assert_non_null(strstr(world->why, "without their checksums"));
        close_world(world);
    }
}

static void bad_manners_end_the_link(void **state)
{
    struct world *world = open_world();

    (void)state;
    fetch(world, 0, 1, 11);
    pd_reader_link_up(world->reader, 0, 1);
    ignore(world);
    accept(world, 0, 1, 11, 0); /* before the hello */
    expect(world, "failed 1; close 1");
    fetch(world, 200 * MS, 5, 7);
    pd_reader_link_up(world->reader, 200 * MS, 2);
    greet(world, 200 * MS, 2);
    pd_reader_connected(world->reader, 200 * MS, 2);
    ignore(world);
    greet(world, 200 * MS, 2); /* a second hello */
    expect(world, "disconnect 2; failed 5; close 2");
    close_world(world);
}

static void engine_that_asks_for_nonsense_is_refused(void **state)
{
    struct world *world = open_world();
    int32_t *blocks = calloc(4, sizeof(*blocks));

    (void)state;
    claim_seven(world, 0);
    accept(world, 0, 1, 7, 16);
    ignore(world);
    blocks[3] = BLOCKS;
    pd_reader_want(world->reader, 0, 5, 0, blocks, 4);
    expect(world, "1 release 7; failed 5");
    close_world(world);
}

static void fetches_have_a_limit(void **state)
{
    struct world *world = open_world();
    struct pd_ticket ticket = ticket_of("p0", SOURCE_BOOT, 99);

    (void)state;
    for (uint64_t i = 0; i < 16; i++)
        fetch(world, 0, i, i);
    assert_int_equal(pd_reader_fetch(world->reader, 0, 16, &ticket), PD_FULL);
    assert_int_equal(pd_reader_fetch(world->reader, 0, 3, &ticket), PD_INVALID);
    close_world(world);
}

static void links_are_reported(void **state)
{
    struct world *world = open_world();
    struct pd_kvx_link_state states[4];

    (void)state;
    read_seven(world, 0);
    land(world, 0);
    assert_int_equal(pd_reader_links(world->reader, states, 4), 1);
    assert_string_equal(states[0].peer, "p0");
    assert_true(states[0].up);
    assert_string_equal(states[0].transport, "tcp");
    assert_int_equal(states[0].bytes, 512);
    pd_reader_link_down(world->reader, 0, 1, "cut");
    assert_int_equal(pd_reader_links(world->reader, states, 4), 1);
    assert_false(states[0].up);
    assert_string_equal(states[0].why, "cut");
    assert_int_equal(states[0].failures, 1);
    close_world(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fetches_wait_for_one_link),
        cmocka_unit_test(link_that_does_not_open_fails_its_fetches_and_pauses),
        cmocka_unit_test(lost_link_is_opened_again_without_a_ticket),
        cmocka_unit_test(lost_link_is_not_tried_for_ever),
        cmocka_unit_test(source_that_is_another_one_is_not_tried_again),
        cmocka_unit_test(ticket_joins_a_try),
        cmocka_unit_test(transport_that_leads_nowhere_gives_way_to_the_next),
        cmocka_unit_test(every_transport_is_tried_once),
        cmocka_unit_test(deadline_covers_every_step_of_opening),
        cmocka_unit_test(idle_link_gives_way_busy_ones_do_not),
        cmocka_unit_test(read_that_cannot_be_posted_fails_the_link),
        cmocka_unit_test(bytes_that_do_not_reach_the_device_fail_the_link),
        cmocka_unit_test(window_is_kept_and_shared_in_turn),
        cmocka_unit_test(lies_about_blocks_fail_the_ticket),
        cmocka_unit_test(lies_about_words_fail_the_ticket),
        cmocka_unit_test(lies_about_progress_fail_the_ticket),
        cmocka_unit_test(blocks_are_compared_with_their_sums),
        cmocka_unit_test(sums_of_blocks_that_are_held_do_not_matter),
        cmocka_unit_test(lies_about_sums_fail_the_ticket),
        cmocka_unit_test(bad_manners_end_the_link),
        cmocka_unit_test(engine_that_asks_for_nonsense_is_refused),
        cmocka_unit_test(fetches_have_a_limit),
        cmocka_unit_test(links_are_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
