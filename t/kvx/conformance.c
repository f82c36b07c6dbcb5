/* One suite for every transport: the same cases, the same assertions, between whole instances with
 * their threads. Which transports there are, the table says that is linked: the daemon's, or the
 * simulated wire's.
 *
 *   usage: conformance [TRANSPORT ...]    those, or all of the table; one that encrypts twice, the
 *                                         second time under TLS; and once more with pools in the
 *                                         memory of devices */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "t/kvx/conformance.h"
#include "worker/kvx/kvx_state.h"

struct pair *open_pair(void **state, const struct kvx_shape *shape)
{
    struct pair *pair = calloc(1, sizeof(*pair));

    pair->transport = *state;
    kvx_net_init(&pair->net);
    pair->source = kvx_start(&pair->net, "p0", pair->transport, shape, NULL);
    pair->reader = kvx_start(&pair->net, "d0", pair->transport, shape, NULL);
    return pair;
}

void close_pair(struct pair *pair)
{
    kvx_net_free(&pair->net);
    free(pair);
}

void scatter(int32_t *blocks, size_t count, int32_t pool)
{
    for (size_t i = 0; i < count; i++)
        blocks[i] = (int32_t)((i * 7 + 3) % (size_t)pool);
}

void run_through(struct pair *pair, struct kvx_prompt *prompt, uint64_t fetch, size_t from,
                 const int32_t *blocks)
{
    struct pd_ticket ticket;
    struct kvx_event event;

    assert_int_equal(kvx_offer(pair->source, prompt, 1), PD_OK);
    kvx_ticket(pair->source, prompt, &ticket);
    assert_int_equal(pd_kvx_fetch(pair->reader->kvx, fetch, &ticket), PD_OK);
    event = kvx_expect(pair->reader, KVX_CLAIMED, fetch);
    assert_int_equal(event.prompt_count, prompt->tokens);
    assert_int_equal(event.prompt_first, 100);
    assert_int_equal(event.prompt_last, 100 + prompt->tokens - 1);
    pd_kvx_fetch_want(pair->reader->kvx, fetch, from, blocks, prompt->blocks);
    pd_kvx_complete(pair->source->kvx, prompt->generation,
                    &(struct pd_kvx_first){.token = 4711, .cached = 5});
    event = kvx_expect(pair->reader, KVX_SAMPLED, fetch);
    assert_int_equal(event.token, 4711);
    event = kvx_expect(pair->reader, KVX_COMPLETE, fetch);
    assert_int_equal(event.token, 4711);
    assert_int_equal(event.finish, 0);
    assert_int_equal(event.cached, 5);
    assert_string_equal(event.stats.transport, pair->transport);
    assert_int_equal(event.stats.bytes, (prompt->blocks - from) * pair->source->layout.block_bytes *
                                            pair->source->layout.layers *
                                            pair->source->layout.kv_heads *
                                            pd_layout_copies(&pair->reader->layout));
    kvx_expect(pair->source, KVX_RELEASED, prompt->generation);
    assert_int_equal(kvx_count(pair->reader, KVX_CLOSED, fetch), 0);
}

static void whole_prompt_arrives(void **state)
{
    struct pair *pair = open_pair(state, &kvx_small);
    struct kvx_prompt prompt;
    int32_t blocks[64];

    kvx_prompt_init(&prompt, pair->source, 1, 83, NULL, 20);
    scatter(blocks, prompt.blocks, 64);
    run_through(pair, &prompt, 1, 0, blocks);
    kvx_assert_only(pair->reader, &prompt, 0, blocks);
    close_pair(pair);
}

/* 23 MiB in one run: long reads, a full window, several turns. */
static void large_prompt_arrives(void **state)
{
    struct pair *pair = open_pair(state, &kvx_large);
    struct kvx_prompt prompt;
    int32_t blocks[384];

    kvx_prompt_init(&prompt, pair->source, 1, 360 * 16 - 3, NULL, 5);
    for (int32_t i = 0; i < 360; i++)
        blocks[i] = i < 100 ? i : i + 20; /* one gap */
    run_through(pair, &prompt, 1, 0, blocks);
    kvx_assert_only(pair->reader, &prompt, 0, blocks);
    close_pair(pair);
}

static void set_checksum(struct pd_kvx_options *options)
{
    options->checksum = strcmp(options->transport, "gpu") != 0; /* whose bytes no processor sees */
}

/* Four KV heads on other numbers of ranks at either end: divided, whole, or one on several. */
static void ranks_read_the_heads_that_they_own(void **state)
{
    static const struct kvx_shape shape = {3, 4, 8, 4, 64};
    static const int ranks[][2] = {{1, 2}, {2, 1}, {4, 2}, {2, 8}, {8, 4}, {8, 1}, {1, 8}, {8, 8}};

    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
        struct pair pair = {.transport = *state};
        struct kvx_prompt prompt;
        int32_t blocks[64];

        kvx_net_init(&pair.net);
        kvx_ranks = ranks[i][0];
        pair.source = kvx_start(&pair.net, "p0", pair.transport, &shape, NULL);
        kvx_ranks = ranks[i][1];
        pair.reader = kvx_start(&pair.net, "d0", pair.transport, &shape, set_checksum);
        kvx_ranks = 1;
        kvx_prompt_init(&prompt, pair.source, 1, 83, NULL, 20);
        scatter(blocks, prompt.blocks, 64);
        run_through(&pair, &prompt, 1, 0, blocks);
        kvx_assert_only(pair.reader, &prompt, 0, blocks);
        kvx_net_free(&pair.net);
    }
}

/* No two blocks adjacent: as many ranges as there can be. */
static void fragmented_prompt_arrives(void **state)
{
    struct pair *pair = open_pair(state, &kvx_large);
    struct kvx_prompt prompt;
    int32_t from[384], blocks[384];

    for (int32_t i = 0; i < 384; i++)
        from[i] = i * 5 % 384;
    scatter(blocks, 384, 384);
    for (size_t i = 0; i < 383; i++)
        if (blocks[i] + 1 == blocks[i + 1])
            fail();
    kvx_prompt_init(&prompt, pair->source, 1, 380 * 16, from, 0);
    run_through(pair, &prompt, 1, 0, blocks);
    kvx_assert_only(pair->reader, &prompt, 0, blocks);
    close_pair(pair);
}

static void only_missing_blocks_are_read(void **state)
{
    struct pair *pair = open_pair(state, &kvx_small);
    struct kvx_prompt prompt;
    int32_t blocks[64];

    kvx_prompt_init(&prompt, pair->source, 1, 80, NULL, 3);
    scatter(blocks, prompt.blocks, 64);
    run_through(pair, &prompt, 1, 7, blocks);
    kvx_assert_only(pair->reader, &prompt, 7, blocks);
    kvx_junk(pair->reader);
    kvx_prompt_init(&prompt, pair->source, 2, 80, NULL, 3);
    run_through(pair, &prompt, 2, 10, blocks); /* all of them are held */
    kvx_assert_only(pair->reader, &prompt, 10, blocks);
    close_pair(pair);
}

void fetch(struct pair *pair, const struct kvx_prompt *prompt, uint64_t id)
{
    struct pd_ticket ticket;

    kvx_ticket(pair->source, prompt, &ticket);
    assert_int_equal(pd_kvx_fetch(pair->reader->kvx, id, &ticket), PD_OK);
}

static void chunks_are_read_while_the_source_computes(void **state)
{
    struct pair *pair = open_pair(state, &kvx_small);
    struct kvx_prompt prompt;
    struct kvx_event event;
    int32_t blocks[64];

    kvx_prompt_init(&prompt, pair->source, 1, 40, NULL, 3);
    scatter(blocks, prompt.blocks, 64);
    assert_int_equal(kvx_offer(pair->source, &prompt, 1), PD_OK);
    pd_kvx_ready(pair->source->kvx, 1, 8); /* before the claim */
    fetch(pair, &prompt, 1);
    kvx_expect(pair->reader, KVX_CLAIMED, 1);
    pd_kvx_fetch_want(pair->reader->kvx, 1, 0, blocks, prompt.blocks);
    for (uint32_t ready = 16; ready <= 40; ready += 8) {
        size_t index = ready / 8 - 2; /* what was ready before is there, at the latest soon */

        while (!kvx_holds(pair->reader, 1, index, blocks[index]))
            usleep(200);
        assert_false(kvx_holds(pair->reader, 1, index + 1, blocks[index + 1]));
        pd_kvx_ready(pair->source->kvx, 1, ready);
    }
    assert_int_equal(kvx_count(pair->reader, KVX_COMPLETE, 1), 0);
    pd_kvx_complete(pair->source->kvx, 1, &(struct pd_kvx_first){.token = 7});
    event = kvx_expect(pair->reader, KVX_COMPLETE, 1);
    assert_int_equal(event.stats.chunks, 5);
    kvx_assert_only(pair->reader, &prompt, 0, blocks);
    kvx_expect(pair->source, KVX_RELEASED, 1);
    close_pair(pair);
}

enum { CROWD = 40 };

/* Many at once, over one link: none takes the other's bytes. */
static void many_prompts_share_a_link(void **state)
{
    struct pair *pair = open_pair(state, &kvx_large);
    static struct kvx_prompt prompts[CROWD];
    int32_t blocks[CROWD][16];

    for (size_t i = 0; i < CROWD; i++) {
        kvx_prompt_init(&prompts[i], pair->source, 100 + i, 9 * 16, NULL, (int32_t)(i * 9));
        assert_int_equal(kvx_offer(pair->source, &prompts[i], 1), PD_OK);
        fetch(pair, &prompts[i], 100 + i);
    }
    for (size_t i = 0; i < CROWD; i++) {
        for (size_t n = 0; n < 9; n++)
            blocks[i][n] = (int32_t)(383 - (i * 9 + n));
        kvx_expect(pair->reader, KVX_CLAIMED, 100 + i);
        pd_kvx_fetch_want(pair->reader->kvx, 100 + i, 0, blocks[i], 9);
    }
    for (size_t i = 0; i < CROWD; i++)
        pd_kvx_complete(pair->source->kvx, 100 + i, &(struct pd_kvx_first){.token = (uint32_t)i});
    for (size_t i = 0; i < CROWD; i++) {
        assert_int_equal(kvx_expect(pair->reader, KVX_COMPLETE, 100 + i).token, i);
        kvx_expect(pair->source, KVX_RELEASED, 100 + i);
        for (size_t n = 0; n < 9; n++)
            assert_true(kvx_holds(pair->reader, 100 + i, n, blocks[i][n]));
    }
    assert_int_equal(kvx_streams(&pair->net), 1);
    close_pair(pair);
}

/* A worker can be source and reader at once, also of one peer. */
static void both_directions_at_once(void **state)
{
    struct pair *pair = open_pair(state, &kvx_small);
    struct kvx_prompt there, back;
    struct pd_ticket ticket;
    int32_t blocks[8] = {50, 51, 52, 53, 54, 55, 56, 57};

    kvx_prompt_init(&there, pair->source, 1, 64, NULL, 0);
    kvx_prompt_init(&back, pair->reader, 2, 64, NULL, 10);
    assert_int_equal(kvx_offer(pair->source, &there, 1), PD_OK);
    assert_int_equal(kvx_offer(pair->reader, &back, 1), PD_OK);
    pd_kvx_complete(pair->source->kvx, 1, &(struct pd_kvx_first){.token = 1});
    pd_kvx_complete(pair->reader->kvx, 2, &(struct pd_kvx_first){.token = 2});
    fetch(pair, &there, 1);
    kvx_ticket(pair->reader, &back, &ticket);
    assert_int_equal(pd_kvx_fetch(pair->source->kvx, 2, &ticket), PD_OK);
    kvx_expect(pair->reader, KVX_CLAIMED, 1);
    kvx_expect(pair->source, KVX_CLAIMED, 2);
    pd_kvx_fetch_want(pair->reader->kvx, 1, 0, blocks, 8);
    pd_kvx_fetch_want(pair->source->kvx, 2, 0, blocks, 8);
    kvx_expect(pair->reader, KVX_COMPLETE, 1);
    kvx_expect(pair->source, KVX_COMPLETE, 2);
    for (size_t i = 0; i < 8; i++) {
        assert_true(kvx_holds(pair->reader, 1, i, blocks[i]));
        assert_true(kvx_holds(pair->source, 2, i, blocks[i]));
    }
    close_pair(pair);
}

/* ---- which transports ------------------------------------------------------------------------ */

/* Why this machine cannot have a source over it; an empty string if it can. */
static void look(const char *transport, char *why, size_t size)
{
    struct pd_kvx_options options = {
        .instance = "probe",
        .pool = {NULL, 1, 1, 8, 4, 8, PD_F32},
        .transport = transport,
        .bind_host = kvx_bind_host("p"),
        .max_model_len = 64,
    };
    size_t bytes = pd_kvx_pool_bytes(&options.pool, 0);
    int fd = memfd_create("kvx-probe", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    struct pd_error error;
    struct pd_kvx *kvx;

    assert_true(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    options.memory[0] = (struct pd_export){.kind = PD_EXPORT_MEMFD, .fd = fd, .size = bytes};
    if (pd_kvx_make(&options, &kvx, &error) != PD_OK) {
        snprintf(why, size, "%s", error.text);
    } else {
        const char *because = kvx->choices[0].why_not;

        snprintf(why, size, "%s", because ? because : "");
        pd_kvx_unmake(kvx);
    }
    close(fd);
}

static bool asked_for(const char *transport, int count, char **names)
{
    for (int i = 1; i < count; i++)
        if (strcmp(names[i], transport) == 0)
            return true;
    return count == 1;
}

static int run_over(char *transport)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(whole_prompt_arrives, transport),
        cmocka_unit_test_prestate(large_prompt_arrives, transport),
        cmocka_unit_test_prestate(ranks_read_the_heads_that_they_own, transport),
        cmocka_unit_test_prestate(fragmented_prompt_arrives, transport),
        cmocka_unit_test_prestate(only_missing_blocks_are_read, transport),
        cmocka_unit_test_prestate(chunks_are_read_while_the_source_computes, transport),
        cmocka_unit_test_prestate(many_prompts_share_a_link, transport),
        cmocka_unit_test_prestate(both_directions_at_once, transport),
        cmocka_unit_test_prestate(cancel_at_every_stage, transport),
        cmocka_unit_test_prestate(revoked_ticket_is_drained_and_released, transport),
        cmocka_unit_test_prestate(unclaimed_tickets_are_withdrawn, transport),
        cmocka_unit_test_prestate(unclaimed_ticket_meets_its_deadline, transport),
        cmocka_unit_test_prestate(cut_stream_ends_the_fetch_and_frees_the_ticket, transport),
        cmocka_unit_test_prestate(silence_ends_the_link_at_both_ends, transport),
        cmocka_unit_test_prestate(stuck_peers_hold_up_nobody_else, transport),
        cmocka_unit_test_prestate(link_is_kept_and_reported, transport),
        cmocka_unit_test_prestate(source_dies_and_lives_again, transport),
        cmocka_unit_test_prestate(reader_dies_with_a_claim, transport),
        cmocka_unit_test_prestate(late_messages_are_ignored, transport),
        cmocka_unit_test_prestate(bad_tickets_are_refused_by_name, transport),
        cmocka_unit_test_prestate(source_with_other_weights_is_refused, transport),
        cmocka_unit_test_prestate(stop_with_everything_under_way, transport),
        cmocka_unit_test_prestate(changed_byte_is_found_by_its_checksum, transport),
    };
    char why[512] = "";

    if (strcmp(transport, "rdma") == 0) /* any machine has sockets and memory, but no such device */
        look(transport, why, sizeof(why));
    if (why[0] == '\0') {
        print_message("# over %s%s%s\n", transport, kvx_under_tls ? " under TLS" : "",
                      kvx_on_device ? " between devices" : "");
        return cmocka_run_group_tests_name(transport, tests, NULL, NULL);
    }
    print_message("# skip over %s: %s\n", transport, why);
    return 0;
}

int main(int argc, char **argv)
{
    int failed = 0;

    for (const struct pd_transport_maker *maker = pd_transport_makers; maker->name; maker++) {
        char name[PD_KV_TRANSPORT];

        snprintf(name, sizeof(name), "%s", maker->name);
        if (!asked_for(name, argc, argv))
            continue;
        if (!maker->devices_only)
            failed += run_over(name);
        kvx_under_tls = maker->encrypts;
        if (kvx_under_tls)
            failed += run_over(name);
        kvx_under_tls = false;
        kvx_on_device = true;
        failed += run_over(name);
        kvx_on_device = false;
    }
    return failed;
}
