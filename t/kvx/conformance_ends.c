/* The conformance suite's other half: hand-offs that are cancelled, revoked, refused or cut, workers that fall silent,
 * stand still, die and come back, bytes that change. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "t/kvx/conformance.h"
#include "worker/kvx/messages.h"

/* Cancelled before the link is up, while claiming, before and after `want`, while reading. */
void cancel_at_every_stage(void **state)
{
    struct pair *pair = open_pair(state, &kvx_large);
    struct kvx_prompt prompt;
    int32_t blocks[384];

    for (int32_t i = 0; i < 384; i++)
        blocks[i] = i;
    for (uint64_t stage = 0; stage < 5; stage++) {
        kvx_prompt_init(&prompt, pair->source, 10 + stage, 300 * 16, NULL, 0);
        assert_int_equal(kvx_offer(pair->source, &prompt, 1), PD_OK);
        pd_kvx_ready(pair->source->kvx, 10 + stage, 300 * 16);
        fetch(pair, &prompt, stage);
        if (stage > 1)
            kvx_expect(pair->reader, KVX_CLAIMED, stage);
        if (stage > 2)
            pd_kvx_fetch_want(pair->reader->kvx, stage, 0, blocks, prompt.blocks);
        if (stage > 3)
            while (!kvx_holds(pair->reader, 10 + stage, 0, 0) &&
                   kvx_count(pair->reader, KVX_COMPLETE, stage) == 0)
                usleep(100);
        pd_kvx_fetch_cancel(pair->reader->kvx, stage);
        assert_true(kvx_expect(pair->reader, KVX_CLOSED, stage).cancelled);
        /* The blocks are the engine's again: whatever is written now stays. */
        kvx_junk(pair->reader);
        if (stage < 2)
            pd_kvx_revoke(pair->source->kvx, 10 + stage, "cancelled"); /* by the dispatcher */
        kvx_expect(pair->source, KVX_RELEASED, 10 + stage);
        usleep(2000);
        kvx_assert_only(pair->reader, &prompt, prompt.blocks, blocks);
        assert_int_equal(kvx_count(pair->reader, KVX_COMPLETE, stage), 0);
    }
    close_pair(pair);
}

void revoked_ticket_is_drained_and_released(void **state)
{
    struct pair *pair = open_pair(state, &kvx_small);
    struct kvx_prompt prompt;
    struct kvx_event event;
    int32_t blocks[8] = {0, 1, 2, 3, 4, 5, 6, 7};

    kvx_prompt_init(&prompt, pair->source, 1, 64, NULL, 0);
    assert_int_equal(kvx_offer(pair->source, &prompt, 1), PD_OK);
    pd_kvx_ready(pair->source->kvx, 1, 32);
    fetch(pair, &prompt, 1);
    kvx_expect(pair->reader, KVX_CLAIMED, 1);
    pd_kvx_fetch_want(pair->reader->kvx, 1, 0, blocks, 8);
    pd_kvx_revoke(pair->source->kvx, 1, "the step failed");
    event = kvx_expect(pair->reader, KVX_CLOSED, 1);
    assert_false(event.cancelled);
    assert_string_equal(event.why, "the step failed");
    kvx_expect(pair->source, KVX_RELEASED, 1);
    close_pair(pair);
}

void unclaimed_tickets_are_withdrawn(void **state)
{
    struct pair *pair = open_pair(state, &kvx_small);
    struct kvx_prompt prompt, other;

    kvx_prompt_init(&prompt, pair->source, 1, 64, NULL, 0);
    kvx_prompt_init(&other, pair->source, 2, 64, NULL, 20);
    assert_int_equal(kvx_offer(pair->source, &prompt, 5), PD_OK);
    assert_int_equal(kvx_offer(pair->source, &other, 6), PD_OK);
    pd_kvx_forget_owner(pair->source->kvx, 5);
    kvx_expect(pair->source, KVX_RELEASED, 1);
    fetch(pair, &prompt, 1);
    assert_non_null(strstr(kvx_expect(pair->reader, KVX_CLOSED, 1).why, "no such ticket"));
    assert_int_equal(kvx_count(pair->source, KVX_RELEASED, 2), 0);
    pd_kvx_revoke(pair->source->kvx, 2, "");
    kvx_expect(pair->source, KVX_RELEASED, 2);
    close_pair(pair);
}

static void short_claim(struct pd_kvx_options *options)
{
    options->claim_timeout_ms = 50;
}

void unclaimed_ticket_meets_its_deadline(void **state)
{
    struct kvx_net net;
    struct kvx_worker *source;
    struct kvx_prompt prompt;

    kvx_net_init(&net);
    source = kvx_start(&net, "p0", *state, &kvx_small, short_claim);
    kvx_prompt_init(&prompt, source, 1, 64, NULL, 0);
    assert_int_equal(kvx_offer(source, &prompt, 1), PD_OK);
    kvx_expect(source, KVX_RELEASED, 1);
    kvx_net_free(&net);
}

/* The stream is cut in mid-transfer; the next fetch has a link of its own. */
void cut_stream_ends_the_fetch_and_frees_the_ticket(void **state)
{
    struct pair *pair = open_pair(state, &kvx_large);
    struct kvx_prompt prompt;
    int32_t blocks[384];

    for (int32_t i = 0; i < 384; i++)
        blocks[i] = i;
    kvx_prompt_init(&prompt, pair->source, 1, 300 * 16, NULL, 0);
    assert_int_equal(kvx_offer(pair->source, &prompt, 1), PD_OK);
    pd_kvx_ready(pair->source->kvx, 1, 300 * 16);
    fetch(pair, &prompt, 1);
    kvx_expect(pair->reader, KVX_CLAIMED, 1);
    pd_kvx_fetch_want(pair->reader->kvx, 1, 0, blocks, prompt.blocks);
    kvx_cut(&pair->net);
    assert_false(kvx_expect(pair->reader, KVX_CLOSED, 1).cancelled);
    kvx_junk(pair->reader); /* ours again: nothing may land any more */
    kvx_expect(pair->source, KVX_RELEASED, 1);
    kvx_prompt_init(&prompt, pair->source, 2, 40, NULL, 0);
    run_through(pair, &prompt, 2, 0, blocks);
    kvx_assert_only(pair->reader, &prompt, 0, blocks);
    assert_int_equal(kvx_streams(&pair->net), 2);
    close_pair(pair);
}

static void quick_silence(struct pd_kvx_options *options)
{
    options->silence_ms = 1000;
}

/* Nobody is told and nothing passes any more: each end finds out for itself. */
void silence_ends_the_link_at_both_ends(void **state)
{
    struct kvx_net net;
    struct pair pair = {.transport = *state};
    struct kvx_prompt prompt;
    int32_t blocks[8] = {0, 1, 2, 3, 4, 5, 6, 7};

    kvx_net_init(&net);
    pair.source = kvx_start(&net, "p0", *state, &kvx_small, quick_silence);
    pair.reader = kvx_start(&net, "d0", *state, &kvx_small, quick_silence);
    kvx_prompt_init(&prompt, pair.source, 1, 64, NULL, 0);
    assert_int_equal(kvx_offer(pair.source, &prompt, 1), PD_OK);
    fetch(&pair, &prompt, 1);
    kvx_expect(pair.reader, KVX_CLAIMED, 1);
    pd_kvx_fetch_want(pair.reader->kvx, 1, 0, blocks, 8);
    kvx_cut_silently(&net);
    kvx_expect(pair.reader, KVX_CLOSED, 1);
    kvx_expect(pair.source, KVX_RELEASED, 1);
    kvx_net_free(&net);
}

/* A reader that stands still, then a source that does, each with a claimed ticket: what others have with the same
 * source, or the same reader has with another source, goes on. */
void stuck_peers_hold_up_nobody_else(void **state)
{
    struct pair *stuck = open_pair(state, &kvx_small);
    struct pair beside = {.transport = stuck->transport, .source = stuck->source};
    struct kvx_prompt long_one, other;
    int32_t blocks[8] = {0, 1, 2, 3, 4, 5, 6, 7}, others[8] = {20, 21, 22, 23, 24, 25, 26, 27};

    beside.reader = kvx_start(&stuck->net, "d1", stuck->transport, &kvx_small, NULL);
    kvx_prompt_init(&long_one, stuck->source, 1, 64, NULL, 0);
    assert_int_equal(kvx_offer(stuck->source, &long_one, 1), PD_OK);
    kvx_stick(stuck->reader, true);
    fetch(stuck, &long_one, 1);
    kvx_expect(stuck->reader, KVX_CLAIMED, 1); /* where its thread stands still */
    kvx_prompt_init(&other, stuck->source, 2, 64, NULL, 20);
    run_through(&beside, &other, 2, 0, others);
    kvx_stick(stuck->reader, false);
    pd_kvx_fetch_want(stuck->reader->kvx, 1, 0, blocks, 8);

    kvx_stick(stuck->source, true);
    kvx_prompt_init(&other, stuck->source, 3, 64, NULL, 20);
    assert_int_equal(kvx_offer(stuck->source, &other, 1), PD_OK);
    pd_kvx_revoke(stuck->source->kvx, 3, "nobody wants it");
    kvx_expect(stuck->source, KVX_RELEASED, 3); /* and its thread stands still */
    beside = (struct pair){.transport = stuck->transport, .reader = stuck->reader};
    beside.source = kvx_start(&stuck->net, "p1", stuck->transport, &kvx_small, NULL);
    kvx_prompt_init(&other, beside.source, 4, 64, NULL, 20);
    run_through(&beside, &other, 4, 0, others);
    kvx_stick(stuck->source, false);
    pd_kvx_complete(stuck->source->kvx, 1, &(struct pd_kvx_first){.token = 1});
    kvx_expect(stuck->reader, KVX_COMPLETE, 1);
    kvx_expect(stuck->source, KVX_RELEASED, 1);
    for (size_t i = 0; i < 8; i++) {
        assert_true(kvx_holds(stuck->reader, 1, i, blocks[i]));
        assert_true(kvx_holds(stuck->reader, 4, i, others[i]));
    }
    close_pair(stuck);
}

/* One link serves one ticket after the other, and is reported. (That heartbeats keep it while nothing
 * happens is a matter of time, and is tested where time is an argument: test_kvx_reader.c.) */
void link_is_kept_and_reported(void **state)
{
    struct pair *pair = open_pair(state, &kvx_small);
    struct pd_kvx_link_state link = {.up = false};
    struct kvx_prompt prompt;
    int32_t blocks[8] = {0, 1, 2, 3, 4, 5, 6, 7};

    kvx_prompt_init(&prompt, pair->source, 1, 64, NULL, 0);
    run_through(pair, &prompt, 1, 0, blocks);
    while (pd_kvx_links(pair->reader->kvx, &link, 1) == 0 || link.transfers == 0)
        usleep(1000); /* the report is written at the end of a turn, and with every tick */
    assert_true(link.up);
    assert_string_equal(link.peer, "p0");
    assert_string_equal(link.transport, pair->transport);
    assert_int_equal(link.transfers, 1);
    assert_int_equal(link.failures, 0);
    assert_int_equal(link.bytes, 8 * 4 * pair->source->layout.block_bytes);
    kvx_prompt_init(&prompt, pair->source, 2, 64, NULL, 0);
    run_through(pair, &prompt, 2, 0, blocks);
    assert_int_equal(kvx_streams(&pair->net), 1);
    close_pair(pair);
}

/* The source goes away in mid-transfer; another life of it, with a new boot, serves the next ticket
 * and refuses the old one's. */
void source_dies_and_lives_again(void **state)
{
    struct pair *pair = open_pair(state, &kvx_small);
    struct kvx_prompt prompt, old;
    struct kvx_event event;
    int32_t blocks[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct pd_ticket stale;

    kvx_prompt_init(&old, pair->source, 1, 64, NULL, 0);
    assert_int_equal(kvx_offer(pair->source, &old, 1), PD_OK);
    fetch(pair, &old, 1);
    kvx_expect(pair->reader, KVX_CLAIMED, 1);
    pd_kvx_fetch_want(pair->reader->kvx, 1, 0, blocks, 8);
    kvx_ticket(pair->source, &old, &stale);
    kvx_stop(pair->source);
    kvx_expect(pair->reader, KVX_CLOSED, 1);
    assert_int_equal(kvx_count(pair->source, KVX_RELEASED, 1), 1);
    kvx_free(pair->source);
    pair->source = kvx_start(&pair->net, "p0", pair->transport, &kvx_small, NULL);
    pair->source->options.boot = stale.boot; /* of the ticket below */
    kvx_prompt_init(&prompt, pair->source, 1, 64, NULL, 8);
    run_through(pair, &prompt, 2, 0, blocks);
    stale.boot ^= 1;
    assert_int_equal(pd_kvx_fetch(pair->reader->kvx, 3, &stale), PD_OK);
    event = kvx_expect(pair->reader, KVX_CLOSED, 3);
    assert_non_null(strstr(event.why, "boot"));
    close_pair(pair);
}

void reader_dies_with_a_claim(void **state)
{
    struct pair *pair = open_pair(state, &kvx_small);
    struct kvx_prompt prompt;
    int32_t blocks[8] = {0, 1, 2, 3, 4, 5, 6, 7};

    kvx_prompt_init(&prompt, pair->source, 1, 64, NULL, 0);
    assert_int_equal(kvx_offer(pair->source, &prompt, 1), PD_OK);
    fetch(pair, &prompt, 1);
    kvx_expect(pair->reader, KVX_CLAIMED, 1);
    kvx_stop(pair->reader);
    assert_int_equal(kvx_count(pair->reader, KVX_CLOSED, 1), 1);
    kvx_expect(pair->source, KVX_RELEASED, 1);
    kvx_free(pair->reader);
    pair->reader = kvx_start(&pair->net, "d0", pair->transport, &kvx_small, NULL);
    kvx_prompt_init(&prompt, pair->source, 2, 64, NULL, 0);
    run_through(pair, &prompt, 2, 0, blocks);
    close_pair(pair);
}

/* Control messages are held up while the ticket is cancelled on both sides, then come all at
 * once. */
void late_messages_are_ignored(void **state)
{
    struct pair *pair = open_pair(state, &kvx_small);
    struct kvx_prompt prompt;
    int32_t blocks[8] = {0, 1, 2, 3, 4, 5, 6, 7};

    kvx_prompt_init(&prompt, pair->source, 1, 64, NULL, 0);
    run_through(pair, &prompt, 1, 0, blocks);
    kvx_prompt_init(&prompt, pair->source, 2, 64, NULL, 0);
    assert_int_equal(kvx_offer(pair->source, &prompt, 1), PD_OK);
    kvx_hold(&pair->net);
    fetch(pair, &prompt, 2);
    pd_kvx_fetch_cancel(pair->reader->kvx, 2);
    assert_true(kvx_expect(pair->reader, KVX_CLOSED, 2).cancelled);
    pd_kvx_complete(pair->source->kvx, 2, &(struct pd_kvx_first){.token = 1});
    kvx_let_go(&pair->net);
    kvx_expect(pair->source, KVX_RELEASED, 2);
    kvx_prompt_init(&prompt, pair->source, 3, 64, NULL, 0);
    run_through(pair, &prompt, 3, 0, blocks);
    assert_int_equal(kvx_count(pair->reader, KVX_CLAIMED, 2), 0);
    assert_int_equal(kvx_streams(&pair->net), 1);
    close_pair(pair);
}

void bad_tickets_are_refused_by_name(void **state)
{
    struct pair *pair = open_pair(state, &kvx_small);
    struct kvx_prompt prompt;
    struct pd_ticket ticket;
    int32_t blocks[8] = {0, 1, 2, 3, 4, 5, 6, 7};

    kvx_prompt_init(&prompt, pair->source, 1, 64, NULL, 0);
    assert_int_equal(kvx_offer(pair->source, &prompt, 1), PD_OK);
    kvx_ticket(pair->source, &prompt, &ticket);
    ticket.secret[7] ^= 1;
    pd_kvx_fetch(pair->reader->kvx, 1, &ticket);
    assert_non_null(strstr(kvx_expect(pair->reader, KVX_CLOSED, 1).why, "secret"));
    kvx_ticket(pair->source, &prompt, &ticket);
    ticket.epoch++;
    pd_kvx_fetch(pair->reader->kvx, 2, &ticket);
    assert_non_null(strstr(kvx_expect(pair->reader, KVX_CLOSED, 2).why, "epoch"));
    kvx_ticket(pair->source, &prompt, &ticket);
    ticket.generation++;
    pd_kvx_fetch(pair->reader->kvx, 3, &ticket);
    assert_non_null(strstr(kvx_expect(pair->reader, KVX_CLOSED, 3).why, "no such ticket"));
    kvx_ticket(pair->source, &prompt, &ticket);
    ticket.fingerprint.weights[0] ^= 1;
    pd_kvx_fetch(pair->reader->kvx, 4, &ticket);
    assert_non_null(strstr(kvx_expect(pair->reader, KVX_CLOSED, 4).why,
                           "weights differ: source 5b5a5a5a..., reader 5a5a5a5a..."));
    kvx_ticket(pair->source, &prompt, &ticket);
    ticket.tokens--; /* the source's prompt is longer than the ticket says */
    pd_kvx_fetch(pair->reader->kvx, 5, &ticket);
    assert_non_null(strstr(kvx_expect(pair->reader, KVX_CLOSED, 5).why, "64 prompt tokens"));
    kvx_expect(pair->source, KVX_RELEASED, 1); /* the claim was accepted: it is released (7) */
    kvx_ticket(pair->source, &prompt, &ticket);
    strcpy(ticket.address, "nowhere");
    strcpy(ticket.instance, "p7");
    pd_kvx_fetch(pair->reader->kvx, 6, &ticket);
    assert_string_equal(kvx_expect(pair->reader, KVX_CLOSED, 6).why, "connection refused");
    kvx_prompt_init(&prompt, pair->source, 9, 64, NULL, 0);
    run_through(pair, &prompt, 9, 0, blocks); /* and all of it has hurt nobody */
    close_pair(pair);
}

static void other_weights(struct pd_kvx_options *options)
{
    options->fingerprint.weights[0] = 1;
}

/* The ticket looks right, the source itself serves other weights by now. */
void source_with_other_weights_is_refused(void **state)
{
    struct pair *pair = open_pair(state, &kvx_small);
    struct kvx_worker *other =
        kvx_start(&pair->net, "p1", pair->transport, &kvx_small, other_weights);
    struct kvx_prompt prompt;
    struct pd_ticket ticket;

    kvx_prompt_init(&prompt, other, 1, 64, NULL, 0);
    assert_int_equal(kvx_offer(other, &prompt, 1), PD_OK);
    kvx_ticket(other, &prompt, &ticket);
    ticket.fingerprint = pair->reader->options.fingerprint;
    pd_kvx_fetch(pair->reader->kvx, 1, &ticket);
    assert_non_null(
        strstr(kvx_expect(pair->reader, KVX_CLOSED, 1).why, "refused by p1: weights differ"));
    close_pair(pair);
}

void stop_with_everything_under_way(void **state)
{
    struct pair *pair = open_pair(state, &kvx_large);
    struct kvx_prompt prompt, waiting;
    int32_t blocks[384];

    for (int32_t i = 0; i < 384; i++)
        blocks[i] = i;
    kvx_prompt_init(&prompt, pair->source, 1, 300 * 16, NULL, 0);
    kvx_prompt_init(&waiting, pair->source, 2, 16, NULL, 320);
    assert_int_equal(kvx_offer(pair->source, &prompt, 1), PD_OK);
    assert_int_equal(kvx_offer(pair->source, &waiting, 1), PD_OK);
    pd_kvx_ready(pair->source->kvx, 1, 300 * 16);
    fetch(pair, &prompt, 1);
    kvx_expect(pair->reader, KVX_CLAIMED, 1);
    pd_kvx_fetch_want(pair->reader->kvx, 1, 0, blocks, prompt.blocks);
    fetch(pair, &waiting, 2);
    kvx_stop(pair->reader);
    assert_int_equal(kvx_count(pair->reader, KVX_CLOSED, 1), 1);
    assert_int_equal(kvx_count(pair->reader, KVX_CLOSED, 2), 1);
    kvx_stop(pair->source);
    assert_int_equal(kvx_count(pair->source, KVX_RELEASED, 1), 1);
    assert_int_equal(kvx_count(pair->source, KVX_RELEASED, 2), 1);
    close_pair(pair);
}

static void wants_checksums(struct pd_kvx_options *options)
{
    options->checksum = true;
}

/* A byte of ticket 2's block 3 changes behind its sum, and before its reader has heard that it may be read. */
static bool change_a_byte(void *context, bool to_source, uint8_t **bytes, size_t *length)
{
    struct pair *pair = context;
    struct pd_from_source message;

    if (to_source || pd_from_source_unpack(*bytes, *length, 16384, &message, NULL) != PD_OK)
        return true;
    if (message.kind == PD_FROM_SOURCE_READY && message.ready.generation == 2 &&
        message.ready.sum_count > 0)
        pair->source->pool[43 * pair->source->layout.block_bytes + 5] ^= 1;
    pd_from_source_clear(&message);
    return true;
}

/* What was ready before the claim and what came after it, from the middle of a prompt on; then a byte
 * changes on its way: here in the source's pool, behind its sum. */
void changed_byte_is_found_by_its_checksum(void **state)
{
    struct pair pair = {.transport = *state};
    struct kvx_prompt prompt;
    struct kvx_event event;
    int32_t blocks[64];

    if (kvx_on_device)
        skip(); /* what is changed there is not what its stage has */
    kvx_net_init(&pair.net);
    pair.net.tap = change_a_byte;
    pair.net.tap_context = &pair;
    pair.source = kvx_start(&pair.net, "p0", *state, &kvx_small, NULL);
    pair.reader = kvx_start(&pair.net, "d0", *state, &kvx_small, wants_checksums);
    kvx_prompt_init(&prompt, pair.source, 1, 83, NULL, 20);
    scatter(blocks, prompt.blocks, 64);
    pd_kvx_ready(pair.source->kvx, 1, 24);
    run_through(&pair, &prompt, 1, 2, blocks);
    kvx_assert_only(pair.reader, &prompt, 2, blocks);

    kvx_prompt_init(&prompt, pair.source, 2, 83, NULL, 40);
    assert_int_equal(kvx_offer(pair.source, &prompt, 1), PD_OK);
    pd_kvx_ready(pair.source->kvx, 2, 40);
    fetch(&pair, &prompt, 2);
    kvx_expect(pair.reader, KVX_CLAIMED, 2);
    pd_kvx_fetch_want(pair.reader->kvx, 2, 1, blocks, prompt.blocks);
    event = kvx_expect(pair.reader, KVX_CLOSED, 2);
    assert_non_null(strstr(event.why, "block 3 of ticket 2 did not arrive as the source had it"));
    kvx_expect(pair.source, KVX_RELEASED, 2);

    kvx_prompt_init(&prompt, pair.source, 3, 83, NULL, 0); /* over a new link */
    run_through(&pair, &prompt, 3, 0, blocks);
    kvx_net_free(&pair.net);
}
