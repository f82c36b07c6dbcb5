/* The source's state machine, rule by rule: messages and time go in, and what it does to the world
 * is compared as text. An action too many, or in another order, fails. */
#include "t/unit/kvx_source_world.h"

/* ---- rules ----------------------------------------------------------------------------------- */

static void rule_1_unclaimed_ticket_is_freed_on_revoke(void **state)
{
    struct world *world = open_world();

    (void)state;
    offer(world, 0, 7, 1);
    pd_source_revoke(world->source, 1, 7, "cancelled");
    expect(world, "released 7");
    link_up(world, 1, 1, "d0");
    claim(world, 2, 1, 7);
    expect(world, "1 gone 7");
    close_world(world);
}

static void rule_1_unclaimed_ticket_is_freed_with_its_owner(void **state)
{
    struct world *world = open_world();

    (void)state;
    offer(world, 0, 7, 1);
    offer(world, 0, 8, 2);
    offer(world, 0, 9, 1);
    link_up(world, 0, 1, "d0");
    claim(world, 0, 1, 9);
    expect(world, "1 claimed 9 at 0");
    pd_source_forget_owner(world->source, 1);
    expect(world, "released 7"); /* 8 is another's, 9 has a reader (18) */
    close_world(world);
}

static void rule_1_unclaimed_ticket_is_freed_at_the_claim_deadline(void **state)
{
    struct world *world = open_world();

    (void)state;
    offer(world, 5, 7, 1);
    pd_source_tick(world->source, 5 + claim_ns - 1);
    expect(world, "");
    pd_source_tick(world->source, 5 + claim_ns);
    expect(world, "released 7");
    assert_int_equal(pd_source_counters(world->source)->claim_deadlines, 1);
    close_world(world);
}

static void rule_1_no_timer_frees_a_claimed_ticket(void **state)
{
    struct world *world = open_world();
    uint64_t now = 0;

    (void)state;
    offer(world, now, 7, 1);
    link_up(world, now, 1, "d0");
    claim(world, now, 1, 7);
    expect(world, "1 claimed 7 at 0");
    for (; now < 100 * claim_ns; now += silence_ns / 2) {
        heartbeat(world, now, 1);
        pd_source_tick(world->source, now);
        assert_null(strstr(world->log, "released"));
        world->log[0] = '\0';
        world->used = 0;
    }
    release(world, now, 1, 7);
    expect(world, "released 7");
    close_world(world);
}

static void rule_3_revoked_ticket_waits_for_its_reader(void **state)
{
    struct world *world = open_world();

    (void)state;
    offer(world, 0, 7, 1);
    link_up(world, 0, 1, "d0");
    claim(world, 0, 1, 7);
    pd_source_ready(world->source, 1, 7, 8);
    expect(world, "1 claimed 7 at 0; 1 ready 7 8");
    pd_source_revoke(world->source, 1, 7, "preempted");
    expect(world, "1 revoked 7"); /* (4), and no release */
    assert_string_equal(world->last.gone.why, "preempted");
    pd_source_revoke(world->source, 1, 7, "again");
    pd_source_ready(world->source, 1, 7, 16);
    expect(world, "");
    /* The reader may be in the middle of a read: it is still allowed. */
    assert_true(pd_source_may_read(world->source, 1, 7, 10, 1));
    release(world, 2, 1, 7);
    expect(world, "released 7");
    assert_false(pd_source_may_read(world->source, 1, 7, 10, 1));
    close_world(world);
}

static void rule_3_link_end_is_destroyed_before_blocks_are_free(void **state)
{
    struct world *world = open_world();

    (void)state;
    offer(world, 0, 7, 1);
    offer(world, 0, 8, 1);
    link_up(world, 0, 1, "d0");
    claim(world, 0, 1, 7);
    claim(world, 0, 1, 8);
    expect(world, "1 claimed 7 at 0; 1 claimed 8 at 0");
    pd_source_link_down(world->source, 1, "cut");
    expect(world, "withdraw 1; released 7; released 8");
    close_world(world);
}

static void rule_5_ready_is_cumulative_and_answers_the_claim(void **state)
{
    struct world *world = open_world();

    (void)state;
    offer(world, 0, 7, 1);
    link_up(world, 0, 1, "d0");
    pd_source_ready(world->source, 0, 7, 8);
    pd_source_ready(world->source, 0, 7, 16);
    expect(world, ""); /* nobody to tell yet */
    claim(world, 0, 1, 7);
    expect(world, "1 claimed 7 at 16");
    pd_source_ready(world->source, 0, 7, 16); /* repeated */
    pd_source_ready(world->source, 0, 7, 8);  /* late */
    pd_source_ready(world->source, 0, 7, 31); /* more than there is */
    expect(world, "");
    pd_source_ready(world->source, 0, 7, 24);
    expect(world, "1 ready 7 24");
    close_world(world);
}

/* What is ready is brought to where the transport takes it from before the reader hears of it, and only
 * once; what is not claimed is not. */
static void blocks_are_staged_before_their_reader_is_told(void **state)
{
    struct world *world = open_world();

    (void)state;
    world->staged = true;
    offer(world, 0, 7, 1);
    link_up(world, 0, 1, "d0");
    pd_source_ready(world->source, 0, 7, 16);
    expect(world, "");
    claim(world, 0, 1, 7);
    expect(world, "1 claimed 7 at 0");
    assert_false(pd_source_may_read(world->source, 1, 7, 10, 1)); /* there may be another's bytes */
    work(world);
    expect(world, "stage 10+2; 1 ready 7 16");
    assert_true(pd_source_may_read(world->source, 1, 7, 10, 2));
    pd_source_ready(world->source, 0, 7, 17);
    expect(world, "1 ready 7 17");
    pd_source_complete(world->source, 0, 7, &(struct pd_kvx_first){.token = 4711});
    expect(world, "");
    assert_false(pd_source_may_read(world->source, 1, 7, 12, 1));
    work(world);
    expect(world, "stage 12+2; 1 ready 7 30 complete");
    close_world(world);
}

/* A chunk of several MiB is prepared in slices, and tickets take turns: a short one does not wait for a long one,
 * and what ends a ticket ends its preparing. */
static void long_chunks_are_staged_in_slices(void **state)
{
    struct world *world = open_world_of(4, 1024); /* a block is 256 KiB: four in a slice */
    int32_t blocks[12];

    (void)state;
    world->staged = true;
    for (int32_t i = 0; i < 12; i++)
        blocks[i] = i < 6 ? 20 + i : 30 + i;
    offer_blocks(world, 0, 7, 1, blocks, 12, 96);
    offer_blocks(world, 0, 8, 1, (const int32_t[]){5}, 1, 8);
    offer_blocks(world, 0, 9, 1, (const int32_t[]){50, 51, 52, 53, 54}, 5, 40);
    link_up(world, 0, 1, "d0");
    for (uint64_t generation = 7; generation < 10; generation++) {
        pd_source_complete(world->source, 0, generation, &(struct pd_kvx_first){.token = 4711});
        claim(world, 0, 1, generation);
    }
    expect(world, "1 claimed 7 at 0; 1 claimed 8 at 0; 1 claimed 9 at 0");
    assert_true(pd_source_work(world->source, 0));
    expect(world, "stage 20+4");
    assert_true(pd_source_work(world->source, 0));
    expect(world, "stage 5+1; 1 ready 8 8 complete");
    assert_true(pd_source_work(world->source, 0));
    expect(world, "stage 50+4");
    pd_source_revoke(world->source, 0, 9, "cancelled");
    expect(world, "1 revoked 9");
    work(world);
    expect(world, "stage 24+2; stage 36+4; stage 40+2; 1 ready 7 96 complete");
    close_world(world);
}

static void blocks_that_cannot_be_staged_revoke_the_ticket(void **state)
{
    struct world *world = open_world();

    (void)state;
    world->staged = true;
    offer(world, 0, 7, 1);
    link_up(world, 0, 1, "d0");
    claim(world, 0, 1, 7);
    expect(world, "1 claimed 7 at 0");
    world->loses_blocks = true;
    pd_source_ready(world->source, 0, 7, 16);
    work(world);
    expect(world, "stage 10+2; 1 revoked 7");
    pd_source_ready(world->source, 0, 7, 24);
    expect(world, "");
    release(world, 0, 1, 7);
    expect(world, "released 7");
    close_world(world);
}

/* A clock that leaps past the deadline of silence, of the claim and of the release at once: what is claimed
 * is freed by the end of its link all the same, silence is the reason, and what is not claimed goes by its
 * own deadline. */
static void rule_21_leaping_clock_ends_links_before_it_frees(void **state)
{
    struct world *world = open_world();

    (void)state;
    offer(world, 0, 7, 1);
    offer(world, 0, 8, 1);
    link_up(world, 0, 1, "d0");
    claim(world, 0, 1, 7);
    pd_source_complete(world->source, 0, 7, &(struct pd_kvx_first){.token = 4711});
    expect(world, "1 claimed 7 at 0; 1 ready 7 30 complete");
    pd_source_tick(world->source, 2 * release_ns);
    expect(world, "withdraw 1; released 7; close 1; released 8");
    assert_int_equal(pd_source_counters(world->source)->silences, 1);
    assert_int_equal(pd_source_counters(world->source)->release_deadlines, 0);
    assert_int_equal(pd_source_counters(world->source)->claim_deadlines, 1);
    close_world(world);
}

static void rule_6_first_claim_binds(void **state)
{
    struct world *world = open_world();

    (void)state;
    offer(world, 0, 7, 1);
    link_up(world, 0, 1, "d0");
    link_up(world, 0, 2, "d1");
    claim(world, 0, 1, 7);
    expect(world, "1 claimed 7 at 0");
    claim(world, 0, 2, 7);
    expect(world, "2 gone 7");
    claim(world, 0, 1, 7);
    expect(world, "1 gone 7");
    pd_source_ready(world->source, 0, 7, 8);
    expect(world, "1 ready 7 8");
    assert_true(pd_source_may_read(world->source, 1, 7, 10, 1));
    assert_false(pd_source_may_read(world->source, 2, 7, 10, 1));
    release(world, 0, 2, 7); /* not the owner */
    expect(world, "");
    pd_source_link_down(world->source, 2, "cut"); /* nor does its loss matter */
    expect(world, "withdraw 2");
    release(world, 0, 1, 7);
    expect(world, "released 7");
    close_world(world);
}

static void rule_6_refused_ticket_goes_on_to_another_reader(void **state)
{
    struct world *world = open_world();

    (void)state;
    offer(world, 0, 7, 1);
    link_up(world, 0, 1, "d0");
    link_up(world, 0, 2, "d1");
    claim_as(world, 0, 1, 7, EPOCH, 99);
    expect(world, "1 gone 7");
    release(world, 0, 1, 7); /* of a ticket that is not held by anybody */
    expect(world, "");
    claim(world, 0, 2, 7);
    expect(world, "2 claimed 7 at 0");
    close_world(world);
}

static void rule_7_unknown_tickets_are_ignored(void **state)
{
    struct world *world = open_world();

    (void)state;
    link_up(world, 0, 1, "d0");
    release(world, 0, 1, 12345);
    pd_source_ready(world->source, 0, 12345, 8);
    pd_source_complete(world->source, 0, 12345, &(struct pd_kvx_first){.token = 1});
    pd_source_revoke(world->source, 0, 12345, "?");
    expect(world, "");
    claim(world, 0, 1, 12345);
    expect(world, "1 gone 12345");
    close_world(world);
}

static void rule_9_loss_of_a_data_connection_ends_the_link(void **state)
{
    struct world *world = open_world();

    (void)state;
    offer(world, 0, 7, 1);
    link_up(world, 0, 1, "d0");
    claim(world, 0, 1, 7);
    expect(world, "1 claimed 7 at 0");
    pd_source_link_fail(world->source, 1, "a data connection was closed");
    expect(world, "withdraw 1; released 7; close 1");
    claim(world, 0, 1, 7);
    expect(world, "");
    close_world(world);
}

static void rule_10_claim_dies_with_its_link(void **state)
{
    struct world *world = open_world();

    (void)state;
    offer(world, 0, 7, 1);
    link_up(world, 0, 1, "d0");
    claim(world, 0, 1, 7);
    pd_source_link_down(world->source, 1, "cut");
    expect(world, "1 claimed 7 at 0; withdraw 1; released 7");
    link_up(world, 0, 2, "d0");
    assert_false(pd_source_may_read(world->source, 2, 7, 10, 1));
    claim(world, 0, 2, 7);
    expect(world, "2 gone 7");
    close_world(world);
}

static void rule_11_newer_link_runs_the_loss_of_the_older(void **state)
{
    struct world *world = open_world();

    (void)state;
    offer(world, 0, 7, 1);
    link_up(world, 0, 1, "d0");
    link_up(world, 0, 2, "d1");
    claim(world, 0, 1, 7);
    expect(world, "1 claimed 7 at 0");
    greet(world, 0, 3, "d0", 3);
    expect(world, "withdraw 1; released 7; close 1; 3 hello tcp");
    pd_source_link_down(world->source, 1, "noticed at last");
    expect(world, "");
    close_world(world);
}

static void rule_11_restarted_reader_replaces_its_dead_self(void **state)
{
    struct world *world = open_world();
    struct pd_to_source message = hello_of("d0", 6, 1); /* a new boot counts its links anew */

    (void)state;
    link_up(world, 0, 2, "d0");
    pd_source_link_up(world->source, 0, 3);
    pd_source_message(world->source, 0, 3, &message);
    expect(world, "withdraw 2; close 2; 3 hello tcp");
    close_world(world);
}

static void rule_11_late_hello_of_an_older_link_is_refused(void **state)
{
    struct world *world = open_world();

    (void)state;
    greet(world, 0, 1, "d0", 9);
    expect(world, "1 hello tcp");
    greet(world, 0, 2, "d0", 8);
    expect(world, "2 hello refused; close 2");
    greet(world, 0, 3, "d0", 9);
    expect(world, "3 hello refused; close 3");
    close_world(world);
}

static void refuses(struct world *world, struct pd_to_source message, const char *says)
{
    pd_source_link_up(world->source, 0, 4);
    pd_source_message(world->source, 0, 4, &message);
    expect(world, "4 hello refused; close 4");
    assert_non_null(strstr(world->last.hello.why, says));
}

static void rule_12_hello_is_checked_by_name(void **state)
{
    struct world *world = open_world();
    struct pd_to_source message;

    (void)state;
    link_up(world, 0, 1, "d0");
    message = hello_of("d0", 5, 9);
    message.hello.source_boot = BOOT + 1;
    refuses(world, message, "boot 000000000000004e of p0, which now runs boot 000000000000004d");
    message = hello_of("d0", 5, 9);
    message.hello.fingerprint.weights[0] = 8;
    refuses(world, message, "weights differ: source 09090909..., reader 08090909...");
    message = hello_of("d0", 5, 9);
    message.hello.fingerprint.tokenizer[31] = 8;
    refuses(world, message, "tokenizers differ");
    message = hello_of("d0", 5, 9);
    message.hello.fingerprint.chat_template[0] = 8;
    refuses(world, message, "chat templates differ");
    message = hello_of("d0", 5, 9);
    message.hello.fingerprint.layout[0] = 8;
    refuses(world, message, "KV layouts differ");
    message = hello_of("d0", 5, 9);
    message.hello.protocol = 0;
    refuses(world, message, "protocol");
    message = hello_of("", 5, 9);
    refuses(world, message, "name");
    /* None of them has touched the link that is up. */
    heartbeat(world, 0, 1);
    offer(world, 0, 7, 1);
    claim(world, 0, 1, 7);
    expect(world, "1 claimed 7 at 0");
    close_world(world);
}

static void rule_12_claim_is_checked(void **state)
{
    struct world *world = open_world();

    (void)state;
    offer(world, 0, 7, 1);
    link_up(world, 0, 1, "d0");
    claim_as(world, 0, 1, 7, EPOCH + 1, 7);
    expect(world, "1 gone 7");
    assert_non_null(strstr(world->last.gone.why, "epoch"));
    claim_as(world, 0, 1, 7, EPOCH, 8);
    expect(world, "1 gone 7");
    assert_non_null(strstr(world->last.gone.why, "secret"));
    claim(world, 0, 1, 8);
    expect(world, "1 gone 8");
    claim(world, 0, 1, 7);
    expect(world, "1 claimed 7 at 0");
    close_world(world);
}

static void rule_13_token_rides_in_the_last_ready(void **state)
{
    struct world *world = open_world();

    (void)state;
    offer(world, 0, 7, 1);
    offer(world, 0, 8, 1);
    link_up(world, 0, 1, "d0");
    claim(world, 0, 1, 7);
    expect(world, "1 claimed 7 at 0");
    pd_source_complete(world->source, 0, 7,
                       &(struct pd_kvx_first){.token = 4711, .finish = 1, .cached = 24});
    expect(world, "1 ready 7 30 complete");
    assert_int_equal(world->last.ready.first.token, 4711);
    assert_int_equal(world->last.ready.first.finish, 1);
    assert_int_equal(world->last.ready.first.cached, 24);
    pd_source_complete(world->source, 0, 7,
                       &(struct pd_kvx_first){.token = 4712}); /* it was sampled once */
    expect(world, "");
    /* To a reader that comes later it is in the answer to the claim. */
    pd_source_complete(world->source, 0, 8, &(struct pd_kvx_first){.token = 99, .finish = 2});
    claim(world, 0, 1, 8);
    expect(world, "1 claimed 8 at 30");
    assert_true(world->last.claimed.ready.complete);
    assert_int_equal(world->last.claimed.ready.first.token, 99);
    assert_int_equal(world->last.claimed.ready.first.finish, 2);
    close_world(world);
}

static void rule_15_claim_carries_the_generation_words(void **state)
{
    static const int32_t blocks[] = {40, 41, 5, 60};
    struct world *world = open_world();

    (void)state;
    world->serves_words = true;
    for (int i = 0; i < BLOCKS; i++)
        atomic_store(&world->pool_words[i], 1000u + (unsigned)i);
    offer_blocks(world, 0, 7, 1, blocks, 4, 32);
    link_up(world, 0, 1, "d0");
    claim(world, 0, 1, 7);
    expect(world, "1 claimed 7 at 0");
    assert_int_equal(world->last.claimed.word_count, 4);
    assert_int_equal(world->words[0], 1040);
    assert_int_equal(world->words[1], 1041);
    assert_int_equal(world->words[2], 1005);
    assert_int_equal(world->words[3], 1060);
    close_world(world);
}

static void rule_21_silence_ends_the_link(void **state)
{
    struct world *world = open_world();

    (void)state;
    offer(world, 0, 7, 1);
    link_up(world, 0, 1, "d0");
    link_up(world, 0, 2, "d1");
    claim(world, 0, 1, 7);
    expect(world, "1 claimed 7 at 0");
    heartbeat(world, 10, 2);
    pd_source_tick(world->source, silence_ns / 3 - 1);
    expect(world, "");
    pd_source_tick(world->source, silence_ns / 3);
    expect(world, "1 heartbeat; 2 heartbeat");
    pd_source_tick(world->source, silence_ns);
    expect(world, "withdraw 1; released 7; close 1; 2 heartbeat");
    assert_int_equal(pd_source_counters(world->source)->silences, 1);
    close_world(world);
}

static void rule_21_silent_stranger_is_hung_up_on(void **state)
{
    struct world *world = open_world();

    (void)state;
    pd_source_link_up(world->source, 0, 1);
    pd_source_tick(world->source, silence_ns);
    expect(world, "close 1");
    close_world(world);
}

static void rule_21_release_deadline_is_the_last_resort(void **state)
{
    struct world *world = open_world();
    uint64_t now;

    (void)state;
    offer(world, 0, 7, 1);
    offer(world, 0, 8, 1);
    link_up(world, 0, 1, "d0");
    claim(world, 0, 1, 7);
    claim(world, 0, 1, 8);
    pd_source_complete(world->source, 0, 7, &(struct pd_kvx_first){.token = 1});
    expect(world, "1 claimed 7 at 0; 1 claimed 8 at 0; 1 ready 7 30 complete");
    for (now = 0; now < release_ns; now += silence_ns / 2) {
        heartbeat(world, now, 1);
        pd_source_tick(world->source, now);
        assert_null(strstr(world->log, "released"));
    }
    world->log[0] = '\0';
    world->used = 0;
    heartbeat(world, now, 1);
    pd_source_tick(world->source, now);
    assert_non_null(strstr(world->log, "withdraw 1; released 7; released 8; close 1"));
    assert_int_equal(pd_source_counters(world->source)->release_deadlines, 1);
    close_world(world);
}

static void rule_21_reads_are_checked_against_ticket_owner_and_blocks(void **state)
{
    /* Block of the prompt: 0   1   2   3  4  5   6   7 */
    static const int32_t blocks[] = {40, 41, 42, 5, 6, 60, 43, 63};
    struct world *world = open_world();
    struct pd_source *source = world->source;

    (void)state;
    offer_blocks(world, 0, 7, 1, blocks, 8, 60);
    link_up(world, 0, 1, "d0");
    assert_false(pd_source_may_read(source, 1, 7, 40, 1)); /* unclaimed */
    claim(world, 0, 1, 7);
    assert_int_equal(world->last.claimed.extent_count, 5);
    assert_int_equal(world->extents[1].first, 5);
    assert_int_equal(world->extents[1].count, 2);
    assert_false(pd_source_may_read(source, 1, 7, 40, 1)); /* not ready */
    pd_source_ready(source, 0, 7, 47);                     /* five blocks and most of a sixth */
    assert_true(pd_source_may_read(source, 1, 7, 40, 1));
    assert_true(pd_source_may_read(source, 1, 7, 40, 3));
    assert_true(pd_source_may_read(source, 1, 7, 41, 2));
    assert_true(pd_source_may_read(source, 1, 7, 5, 2));
    assert_false(pd_source_may_read(source, 1, 7, 60, 1)); /* not ready */
    assert_false(pd_source_may_read(source, 1, 7, 43, 1)); /* its neighbour is: it is not */
    assert_false(pd_source_may_read(source, 1, 7, 40, 4)); /* over the end of a run */
    assert_false(pd_source_may_read(source, 1, 7, 39, 2)); /* before its beginning */
    assert_false(pd_source_may_read(source, 1, 7, 0, 1));
    assert_false(pd_source_may_read(source, 1, 7, 7, 1));
    assert_false(pd_source_may_read(source, 1, 7, 40, UINT32_MAX));
    assert_false(pd_source_may_read(source, 1, 7, UINT32_MAX, 1));
    assert_false(pd_source_may_read(source, 2, 7, 40, 1)); /* another link */
    assert_false(pd_source_may_read(source, 1, 8, 40, 1)); /* another ticket */
    pd_source_complete(source, 0, 7, &(struct pd_kvx_first){.token = 1});
    assert_true(pd_source_may_read(source, 1, 7, 60, 1));
    assert_true(pd_source_may_read(source, 1, 7, 43, 1));
    assert_true(pd_source_may_read(source, 1, 7, 63, 1)); /* the last block, in part */
    assert_false(pd_source_may_read(source, 1, 7, 62, 2));
    close_world(world);
}

/* ---- manners and limits ---------------------------------------------------------------------- */

static void first_message_must_be_a_hello_and_the_only_one(void **state)
{
    struct world *world = open_world();
    struct pd_to_source again;

    (void)state;
    offer(world, 0, 7, 1);
    pd_source_link_up(world->source, 0, 1);
    claim(world, 0, 1, 7);
    expect(world, "close 1");
    link_up(world, 0, 2, "d0");
    again = hello_of("d0", 5, 9);
    pd_source_message(world->source, 0, 2, &again);
    expect(world, "withdraw 2; close 2");
    close_world(world);
}

static void links_and_tickets_have_a_limit(void **state)
{
    static const int32_t block = 3;
    static const int32_t token = 1;
    struct world *world = open_world();
    struct pd_layout layout = {.layers = 1,
                               .kv_heads = 1,
                               .block_size = 8,
                               .head_dim = 4,
                               .element_bytes = 4,
                               .blocks = BLOCKS};
    struct pd_kvx_offer more = {
        .generation = 99, .blocks = &block, .block_count = 1, .prompt = &token, .tokens = 1};
    struct pd_source_ticket *ticket;

    (void)state;
    for (uint64_t i = 1; i <= 4; i++)
        pd_source_link_up(world->source, 0, i);
    expect(world, "");
    pd_source_link_up(world->source, 0, 5);
    expect(world, "close 5");
    for (uint64_t i = 1; i <= 16; i++)
        offer(world, 0, i, 1);
    assert_int_equal(pd_layout_derive(&layout, NULL), PD_OK);
    assert_int_equal(pd_source_ticket_create(&more, &layout, &ticket), PD_OK);
    assert_int_equal(pd_source_offer(world->source, 0, ticket), PD_FULL);
    pd_source_ticket_free(ticket);
    close_world(world);
}

static void offers_that_do_not_fit_the_pool_are_invalid(void **state)
{
    static const int32_t good[] = {1, 2}, high[] = {1, BLOCKS}, negative[] = {-1, 2};
    static const int32_t tokens[16] = {0};
    struct pd_layout layout = {.layers = 1,
                               .kv_heads = 1,
                               .block_size = 8,
                               .head_dim = 4,
                               .element_bytes = 4,
                               .blocks = BLOCKS};
    struct pd_kvx_offer offered = {
        .generation = 1, .blocks = good, .block_count = 2, .prompt = tokens, .tokens = 16};
    struct pd_source_ticket *ticket;

    (void)state;
    assert_int_equal(pd_layout_derive(&layout, NULL), PD_OK);
    assert_int_equal(pd_source_ticket_create(&offered, &layout, &ticket), PD_OK);
    pd_source_ticket_free(ticket);
    offered.tokens = 17;
    assert_int_equal(pd_source_ticket_create(&offered, &layout, &ticket), PD_INVALID);
    offered.tokens = 8;
    assert_int_equal(pd_source_ticket_create(&offered, &layout, &ticket), PD_INVALID);
    offered.tokens = 0;
    offered.block_count = 0;
    assert_int_equal(pd_source_ticket_create(&offered, &layout, &ticket), PD_INVALID);
    offered.tokens = 16;
    offered.block_count = 2;
    offered.blocks = high;
    assert_int_equal(pd_source_ticket_create(&offered, &layout, &ticket), PD_INVALID);
    offered.blocks = negative;
    assert_int_equal(pd_source_ticket_create(&offered, &layout, &ticket), PD_INVALID);
}

static void refused_transport_is_told(void **state)
{
    struct world *world = open_world();

    (void)state;
    world->serve_fails = 1;
    greet(world, 0, 1, "d0", 1);
    expect(world, "1 hello refused; close 1");
    assert_non_null(strstr(world->last.hello.why, "no transport in common"));
    close_world(world);
}

static void shutdown_gives_everything_back(void **state)
{
    struct world *world = open_world();

    (void)state;
    offer(world, 0, 7, 1);
    offer(world, 0, 8, 1);
    link_up(world, 0, 1, "d0");
    claim(world, 0, 1, 7);
    expect(world, "1 claimed 7 at 0");
    pd_source_shutdown(world->source);
    expect(world, "withdraw 1; released 7; close 1; released 8");
    close_world(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rule_1_unclaimed_ticket_is_freed_on_revoke),
        cmocka_unit_test(rule_1_unclaimed_ticket_is_freed_with_its_owner),
        cmocka_unit_test(rule_1_unclaimed_ticket_is_freed_at_the_claim_deadline),
        cmocka_unit_test(rule_1_no_timer_frees_a_claimed_ticket),
        cmocka_unit_test(rule_3_revoked_ticket_waits_for_its_reader),
        cmocka_unit_test(rule_3_link_end_is_destroyed_before_blocks_are_free),
        cmocka_unit_test(rule_5_ready_is_cumulative_and_answers_the_claim),
        cmocka_unit_test(blocks_are_staged_before_their_reader_is_told),
        cmocka_unit_test(long_chunks_are_staged_in_slices),
        cmocka_unit_test(blocks_that_cannot_be_staged_revoke_the_ticket),
        cmocka_unit_test(rule_21_leaping_clock_ends_links_before_it_frees),
        cmocka_unit_test(rule_6_first_claim_binds),
        cmocka_unit_test(rule_6_refused_ticket_goes_on_to_another_reader),
        cmocka_unit_test(rule_7_unknown_tickets_are_ignored),
        cmocka_unit_test(rule_9_loss_of_a_data_connection_ends_the_link),
        cmocka_unit_test(rule_10_claim_dies_with_its_link),
        cmocka_unit_test(rule_11_newer_link_runs_the_loss_of_the_older),
        cmocka_unit_test(rule_11_restarted_reader_replaces_its_dead_self),
        cmocka_unit_test(rule_11_late_hello_of_an_older_link_is_refused),
        cmocka_unit_test(rule_12_hello_is_checked_by_name),
        cmocka_unit_test(rule_12_claim_is_checked),
        cmocka_unit_test(rule_13_token_rides_in_the_last_ready),
        cmocka_unit_test(rule_15_claim_carries_the_generation_words),
        cmocka_unit_test(rule_21_silence_ends_the_link),
        cmocka_unit_test(rule_21_silent_stranger_is_hung_up_on),
        cmocka_unit_test(rule_21_release_deadline_is_the_last_resort),
        cmocka_unit_test(rule_21_reads_are_checked_against_ticket_owner_and_blocks),
        cmocka_unit_test(first_message_must_be_a_hello_and_the_only_one),
        cmocka_unit_test(links_and_tickets_have_a_limit),
        cmocka_unit_test(offers_that_do_not_fit_the_pool_are_invalid),
        cmocka_unit_test(refused_transport_is_told),
        cmocka_unit_test(shutdown_gives_everything_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
