/* One suite for every transport: the same cases, the same assertions, over real connections. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "t/unit/kvx_pair.h"

struct pair {
    struct kvx_net net;
    struct kvx_worker *source, *reader;
    const char *transport;
};

static struct pair *open_pair(void **state, const struct kvx_shape *shape)
{
    struct pair *pair = calloc(1, sizeof(*pair));

    pair->transport = *state;
    kvx_net_init(&pair->net);
    pair->source = kvx_start(&pair->net, "p0", pair->transport, shape, NULL);
    pair->reader = kvx_start(&pair->net, "d0", pair->transport, shape, NULL);
    return pair;
}

static void close_pair(struct pair *pair)
{
    kvx_net_free(&pair->net);
    free(pair);
}

/* Blocks of the reader for a prompt: scattered but fixed. */
static void scatter(int32_t *blocks, size_t count, int32_t pool)
{
    for (size_t i = 0; i < count; i++)
        blocks[i] = (int32_t)((i * 7 + 3) % (size_t)pool);
}

static void run_through(struct pair *pair, struct kvx_prompt *prompt, uint64_t fetch, size_t from,
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
    pd_kvx_complete(pair->source->kvx, prompt->generation, 4711, 0, 5);
    event = kvx_expect(pair->reader, KVX_SAMPLED, fetch);
    assert_int_equal(event.token, 4711);
    event = kvx_expect(pair->reader, KVX_COMPLETE, fetch);
    assert_int_equal(event.token, 4711);
    assert_int_equal(event.finish, 0);
    assert_int_equal(event.cached, 5);
    assert_string_equal(event.stats.transport, pair->transport);
    assert_int_equal(event.stats.bytes, (prompt->blocks - from) * pair->source->layout.block_bytes *
                                            pair->source->layout.layers *
                                            pair->source->layout.kv_heads);
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

int main(void)
{
    int failed = 0;
    static char *const transports[] = {"tcp", "shm"};

    for (size_t i = 0; i < 2; i++) {
        const struct CMUnitTest tests[] = {
            cmocka_unit_test_prestate(whole_prompt_arrives, transports[i]),
        };

        print_message("# over %s\n", transports[i]);
        failed += cmocka_run_group_tests_name(transports[i], tests, NULL, NULL);
    }
    return failed;
}
