/* Control messages: what is packed unpacks to the same, every bound of a peer's number holds, and
 * bytes of any kind cost neither a crash nor memory. Messages over a bound are made with the
 * generated code, as a peer would. */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/pd.pb-c.h"
#include "worker/kvx/messages.h"

enum { MAX_TOKENS = 1000 };

static struct pd_fingerprint fingerprint(void)
{
    struct pd_fingerprint print;

    for (int i = 0; i < PD_DIGEST; i++) {
        print.weights[i] = (uint8_t)i;
        print.tokenizer[i] = (uint8_t)(50 + i);
        print.chat_template[i] = (uint8_t)(100 + i);
        print.layout[i] = (uint8_t)(150 + i);
    }
    return print;
}

/* ---- there and back -------------------------------------------------------------------------- */

static struct pd_to_source back_to_source(const struct pd_to_source *message)
{
    struct pd_to_source back;
    struct pd_error error;
    size_t length;
    uint8_t *bytes = pd_to_source_pack(message, &length);

    assert_non_null(bytes);
    if (pd_to_source_unpack(bytes, length, &back, &error) != PD_OK)
        fail_msg("%s", error.text);
    free(bytes);
    return back;
}

static void messages_to_a_source_come_back(void **state)
{
    struct pd_to_source message = {.kind = PD_TO_SOURCE_HELLO}, back;

    (void)state;
    message.hello = (struct pd_reader_hello){.protocol = 1,
                                             .instance = "decode-0",
                                             .boot = UINT64_MAX,
                                             .epoch = 3,
                                             .source_boot = 77,
                                             .fingerprint = fingerprint(),
                                             .transports = {"shm", "tcp"},
                                             .transport_count = 2,
                                             .host_id = "host",
                                             .checksum = true,
                                             .tls = true};
    back = back_to_source(&message);
    assert_memory_equal(&back, &message, sizeof(back));
    message = (struct pd_to_source){.kind = PD_TO_SOURCE_CLAIM};
    message.claim = (struct pd_claim){.generation = 5, .epoch = 1, .secret = {1, 2, 3, 0, 5}};
    back = back_to_source(&message);
    assert_memory_equal(&back, &message, sizeof(back));
    message = (struct pd_to_source){.kind = PD_TO_SOURCE_RELEASE, .generation = 1ull << 60};
    back = back_to_source(&message);
    assert_memory_equal(&back, &message, sizeof(back));
    message = (struct pd_to_source){.kind = PD_TO_SOURCE_HEARTBEAT, .heartbeat = 9};
    back = back_to_source(&message);
    assert_memory_equal(&back, &message, sizeof(back));
}

/* The caller clears it. */
static struct pd_from_source back_from_source(const struct pd_from_source *message)
{
    struct pd_from_source back;
    struct pd_error error;
    size_t length;
    uint8_t *bytes = pd_from_source_pack(message, &length);

    assert_non_null(bytes);
    assert_true(length <= pd_from_source_max(MAX_TOKENS));
    if (pd_from_source_unpack(bytes, length, MAX_TOKENS, &back, &error) != PD_OK)
        fail_msg("%s", error.text);
    free(bytes);
    return back;
}

static void messages_from_a_source_come_back(void **state)
{
    struct pd_from_source message = {.kind = PD_FROM_SOURCE_HELLO}, back;

    (void)state;
    message.hello = (struct pd_source_hello){.protocol = 1,
                                             .instance = "prefill-0",
                                             .boot = 77,
                                             .epoch = 1,
                                             .fingerprint = fingerprint(),
                                             .transport = "tcp",
                                             .why = "no shm: another host",
                                             .data_address = "10.0.0.1:4000",
                                             .link_key = 1234567890123456789u};
    message.hello.checksum = message.hello.tls = true;
    memset(message.hello.certificate, 0xc5, sizeof(message.hello.certificate));
    message.hello.pool = (struct pd_layout){.layers = 30,
                                            .kv_heads = 3,
                                            .block_size = 16,
                                            .head_dim = 64,
                                            .element_bytes = 2,
                                            .blocks = 5000};
    assert_int_equal(pd_layout_derive(&message.hello.pool, NULL), PD_OK);
    back = back_from_source(&message);
    assert_memory_equal(&back.hello, &message.hello, sizeof(back.hello));
    pd_from_source_clear(&back);
    message = (struct pd_from_source){.kind = PD_FROM_SOURCE_GONE};
    message.gone = (struct pd_gone){7, "no such ticket"};
    back = back_from_source(&message);
    assert_memory_equal(&back, &message, sizeof(back));
    message.kind = PD_FROM_SOURCE_REVOKED;
    back = back_from_source(&message);
    assert_memory_equal(&back, &message, sizeof(back));
    message = (struct pd_from_source){.kind = PD_FROM_SOURCE_READY};
    message.ready = (struct pd_chunk_ready){.generation = 7, .tokens = 300, .complete = true};
    message.ready.first = (struct pd_kvx_first){.token = 4711, .finish = 2, .cached = 64};
    back = back_from_source(&message);
    assert_memory_equal(&back.ready, &message.ready, sizeof(back.ready));
    message.ready.first.chances = PD_KVX_CHANCES;
    for (uint32_t i = 0; i < PD_KVX_CHANCES; i++)
        message.ready.first.chance[i] = (struct pd_kvx_chance){4711 - i, -0.5f * (float)(i + 1)};
    back = back_from_source(&message);
    assert_memory_equal(&back.ready, &message.ready, sizeof(back.ready));
    message.ready.sums_from = 3;
    message.ready.sum_count = 2;
    message.ready.sums = (uint64_t[]){UINT64_MAX, 0};
    back = back_from_source(&message);
    assert_int_equal(back.ready.sums_from, 3);
    assert_int_equal(back.ready.sum_count, 2);
    assert_memory_equal(back.ready.sums, message.ready.sums, 2 * sizeof(uint64_t));
    pd_from_source_clear(&back);
    message = (struct pd_from_source){.kind = PD_FROM_SOURCE_HEARTBEAT, .heartbeat = 9};
    back = back_from_source(&message);
    assert_memory_equal(&back, &message, sizeof(back));
}

/* The largest honest answer: every block an extent of its own, large ids and words. */
static void largest_claim_comes_back(void **state)
{
    struct pd_extent extents[MAX_TOKENS / 8];
    uint64_t words[MAX_TOKENS / 8];
    uint64_t sums[MAX_TOKENS / 8];
    uint32_t prompt[MAX_TOKENS];
    struct pd_from_source message = {.kind = PD_FROM_SOURCE_CLAIMED}, back;

    (void)state;
    for (size_t i = 0; i < MAX_TOKENS / 8; i++) {
        extents[i] = (struct pd_extent){INT32_MAX - 2 * (uint32_t)i, 1};
        words[i] = UINT64_MAX - i;
        sums[i] = ~words[i] << 32;
    }
    for (uint32_t i = 0; i < MAX_TOKENS; i++)
        prompt[i] = UINT32_MAX - i;
    extents[0].first--;
    message.claimed.generation = 7;
    message.claimed.extents = extents;
    message.claimed.extent_count = MAX_TOKENS / 8;
    message.claimed.prompt = prompt;
    message.claimed.prompt_count = MAX_TOKENS;
    message.claimed.words = words;
    message.claimed.word_count = MAX_TOKENS / 8;
    message.claimed.ready = (struct pd_chunk_ready){
        .generation = 7, .tokens = 300, .sum_count = MAX_TOKENS / 8, .sums = sums};
    back = back_from_source(&message);
    assert_int_equal(back.claimed.generation, 7);
    assert_int_equal(back.claimed.extent_count, MAX_TOKENS / 8);
    assert_memory_equal(back.claimed.extents, extents, sizeof(extents));
    assert_int_equal(back.claimed.prompt_count, MAX_TOKENS);
    assert_memory_equal(back.claimed.prompt, prompt, sizeof(prompt));
    assert_int_equal(back.claimed.word_count, MAX_TOKENS / 8);
    assert_memory_equal(back.claimed.words, words, sizeof(words));
    assert_int_equal(back.claimed.ready.tokens, 300);
    assert_int_equal(back.claimed.ready.sum_count, MAX_TOKENS / 8);
    assert_memory_equal(back.claimed.ready.sums, sums, sizeof(sums));
    pd_from_source_clear(&back);
}

/* ---- bounds ---------------------------------------------------------------------------------- */

static void refuse_to_source(const Pd__V1__KvToSource *wire, const char *says)
{
    size_t length = pd__v1__kv_to_source__get_packed_size(wire);
    uint8_t *bytes = malloc(length + 1);
    struct pd_to_source message;
    struct pd_error error;

    pd__v1__kv_to_source__pack(wire, bytes);
    assert_int_equal(pd_to_source_unpack(bytes, length, &message, &error), PD_INVALID);
    if (!strstr(error.text, says))
        fail_msg("'%s' does not say '%s'", error.text, says);
    free(bytes);
}

static uint8_t zeros[256];

static Pd__V1__Fingerprint wire_fingerprint(void)
{
    Pd__V1__Fingerprint print = PD__V1__FINGERPRINT__INIT;

    print.weights = (ProtobufCBinaryData){PD_DIGEST, zeros};
    print.tokenizer = (ProtobufCBinaryData){PD_DIGEST, zeros};
    print.chat_template = (ProtobufCBinaryData){PD_DIGEST, zeros};
    print.layout = (ProtobufCBinaryData){PD_DIGEST, zeros};
    return print;
}

static char *text_of(size_t length)
{
    static char texts[4][9000];
    static int next;
    char *text = texts[next++ % 4];

    memset(text, 'x', length);
    text[length] = '\0';
    return text;
}

static void bounds_of_a_readers_hello(void **state)
{
    Pd__V1__KvReaderHello hello = PD__V1__KV_READER_HELLO__INIT, good;
    Pd__V1__KvToSource wire = PD__V1__KV_TO_SOURCE__INIT;
    Pd__V1__Fingerprint print = wire_fingerprint();
    char *transports[9];

    (void)state;
    wire.kind_case = PD__V1__KV_TO_SOURCE__KIND_HELLO;
    wire.hello = &hello;
    hello.fingerprint = &print;
    good = hello;
    hello.instance = text_of(129);
    refuse_to_source(&wire, "hello.instance has 129 bytes, more than 128");
    hello = good;
    hello.host_id = text_of(129);
    refuse_to_source(&wire, "hello.host_id has 129 bytes");
    hello = good;
    hello.fingerprint = NULL;
    refuse_to_source(&wire, "no fingerprint");
    hello = good;
    print.tokenizer.len = 31;
    refuse_to_source(&wire, "fingerprint.tokenizer has 31 bytes instead of 32");
    print = wire_fingerprint();
    print.layout.len = 0;
    refuse_to_source(&wire, "fingerprint.layout has 0 bytes");
    print = wire_fingerprint();
    for (int i = 0; i < 9; i++)
        transports[i] = text_of(3);
    hello.transports = transports;
    hello.n_transports = 9;
    refuse_to_source(&wire, "9 transports, more than 8");
    hello = good;
    hello.instance = text_of(8500);
    refuse_to_source(&wire, "bytes, more than 8192");
}

static void bounds_of_a_claim(void **state)
{
    Pd__V1__KvClaim claim = PD__V1__KV_CLAIM__INIT;
    Pd__V1__KvToSource wire = PD__V1__KV_TO_SOURCE__INIT;

    (void)state;
    wire.kind_case = PD__V1__KV_TO_SOURCE__KIND_CLAIM;
    wire.claim = &claim;
    refuse_to_source(&wire, "claim.secret has 0 bytes instead of 16");
    claim.secret = (ProtobufCBinaryData){15, zeros};
    refuse_to_source(&wire, "claim.secret has 15 bytes");
    claim.secret.len = 17;
    refuse_to_source(&wire, "claim.secret has 17 bytes");
}

static void refuse_from_source(const Pd__V1__KvFromSource *wire, const char *says)
{
    size_t length = pd__v1__kv_from_source__get_packed_size(wire);
    uint8_t *bytes = malloc(length + 1);
    struct pd_from_source message;
    struct pd_error error;

    pd__v1__kv_from_source__pack(wire, bytes);
    assert_int_equal(pd_from_source_unpack(bytes, length, MAX_TOKENS, &message, &error),
                     PD_INVALID);
    if (!strstr(error.text, says))
        fail_msg("'%s' does not say '%s'", error.text, says);
    free(bytes);
}

static void bounds_of_a_sources_hello(void **state)
{
    Pd__V1__KvSourceHello hello = PD__V1__KV_SOURCE_HELLO__INIT, good;
    Pd__V1__KvFromSource wire = PD__V1__KV_FROM_SOURCE__INIT;
    Pd__V1__Fingerprint print = wire_fingerprint();
    Pd__V1__KvPoolLayout pool = PD__V1__KV_POOL_LAYOUT__INIT;

    (void)state;
    wire.kind_case = PD__V1__KV_FROM_SOURCE__KIND_HELLO;
    wire.hello = &hello;
    pool.layers = pool.kv_heads = 2;
    pool.blocks = 100;
    pool.block_size = 16;
    pool.head_dim = 4;
    pool.element_bytes = 4;
    pool.bytes = 4 * 100 * 2 * 16 * 4 * 4;
    pool.generations_offset = (pool.bytes + 4095) / 4096 * 4096;
    hello.fingerprint = &print;
    hello.pool = &pool;
    hello.transport = (char *)"tcp";
    good = hello;
    hello.instance = text_of(129);
    refuse_from_source(&wire, "hello.instance has 129 bytes");
    hello = good;
    hello.transport = text_of(8);
    refuse_from_source(&wire, "hello.transport has 8 bytes");
    hello = good;
    hello.data_address = text_of(257);
    refuse_from_source(&wire, "hello.data_address has 257 bytes");
    hello = good;
    hello.fingerprint = NULL;
    refuse_from_source(&wire, "no fingerprint");
    hello = good;
    hello.pool = NULL;
    refuse_from_source(&wire, "no pool layout");
    hello = good;
    pool.layers = 100000;
    refuse_from_source(&wire, "layers is 100000");
    pool.layers = 2;
    pool.blocks = 1ull << 40;
    refuse_from_source(&wire, "blocks is");
    pool.blocks = 100;
    pool.bytes++;
    refuse_from_source(&wire, "do not follow from its shape");
    pool.bytes--;
    pool.generations_offset = 8;
    refuse_from_source(&wire, "do not follow from its shape");
}

/* A claim's answer with `prompt` tokens, `extents` extents and `words` words, all zero but for one
 * extent. */
static void refuse_claimed(size_t prompt, size_t extents, size_t words, uint64_t first,
                           uint32_t count, const char *says)
{
    Pd__V1__KvClaimed claimed = PD__V1__KV_CLAIMED__INIT;
    Pd__V1__KvFromSource wire = PD__V1__KV_FROM_SOURCE__INIT;
    Pd__V1__KvExtent extent = PD__V1__KV_EXTENT__INIT;
    Pd__V1__KvExtent **list = calloc(extents + 1, sizeof(Pd__V1__KvExtent *));
    uint64_t *numbers = calloc(prompt + words + 1, sizeof(uint64_t));

    extent.first = first;
    extent.count = count;
    for (size_t i = 0; i < extents; i++)
        list[i] = &extent;
    claimed.prompt = (uint32_t *)(void *)numbers;
    claimed.n_prompt = prompt;
    claimed.block_generations = numbers;
    claimed.n_block_generations = words;
    claimed.extents = list;
    claimed.n_extents = extents;
    wire.kind_case = PD__V1__KV_FROM_SOURCE__KIND_CLAIMED;
    wire.claimed = &claimed;
    refuse_from_source(&wire, says);
    free(list);
    free(numbers);
}

static void bounds_of_a_claims_answer(void **state)
{
    size_t blocks = MAX_TOKENS / 8 + 1;

    (void)state;
    refuse_claimed(MAX_TOKENS + 1, 1, 0, 0, 1, "1001 prompt tokens, more than 1000");
    refuse_claimed(8, blocks + 1, 0, 0, 1, "more extents or words than 1000 tokens can have");
    refuse_claimed(8, 1, blocks + 1, 0, 1, "more extents or words than 1000 tokens can have");
    refuse_claimed(8, 1, 0, 0, 0, "out of any pool");
    refuse_claimed(8, 1, 0, 1ull << 31, 1, "out of any pool");
    refuse_claimed(8, 1, 0, UINT64_MAX, 1, "out of any pool");
    refuse_claimed(8, 1, 0, INT32_MAX - 1, 2, "out of any pool");
    refuse_claimed(8, 1, 0, 0, UINT32_MAX, "out of any pool");
    refuse_claimed(100000, 1, 0, 0, 1, "a message of");
}

static void unknown_kinds_and_values_are_no_error(void **state)
{
    /* Field 15, two bytes long: of a later protocol. */
    static const uint8_t later[] = {0x7a, 0x02, 0x08, 0x01};
    Pd__V1__KvChunkReady ready = PD__V1__KV_CHUNK_READY__INIT;
    Pd__V1__KvFromSource wire = PD__V1__KV_FROM_SOURCE__INIT;
    struct pd_to_source to;
    struct pd_from_source from;
    uint8_t bytes[64];
    size_t length;

    (void)state;
    assert_int_equal(pd_to_source_unpack(later, sizeof(later), &to, NULL), PD_OK);
    assert_int_equal(to.kind, PD_TO_SOURCE_UNKNOWN);
    assert_int_equal(pd_from_source_unpack(later, sizeof(later), MAX_TOKENS, &from, NULL), PD_OK);
    assert_int_equal(from.kind, PD_FROM_SOURCE_UNKNOWN);
    assert_int_equal(pd_to_source_unpack(later, 0, &to, NULL), PD_OK);
    assert_int_equal(to.kind, PD_TO_SOURCE_UNKNOWN);
    ready.finish = (Pd__V1__FinishReason)99; /* taken as NONE */
    wire.kind_case = PD__V1__KV_FROM_SOURCE__KIND_READY;
    wire.ready = &ready;
    length = pd__v1__kv_from_source__pack(&wire, bytes);
    assert_int_equal(pd_from_source_unpack(bytes, length, MAX_TOKENS, &from, NULL), PD_OK);
    assert_int_equal(from.ready.first.finish, PD__V1__FINISH_REASON__FINISH_NONE);
}

/* A token and 20 alternatives, no more. */
static void too_many_log_probabilities_are_refused(void **state)
{
    Pd__V1__KvChance chance = PD__V1__KV_CHANCE__INIT, *chances[PD_KVX_CHANCES + 1];
    Pd__V1__KvChunkReady ready = PD__V1__KV_CHUNK_READY__INIT;
    Pd__V1__KvFromSource wire = PD__V1__KV_FROM_SOURCE__INIT;
    struct pd_from_source message;
    struct pd_error error;
    uint8_t bytes[256];
    size_t length;

    (void)state;
    for (size_t i = 0; i < PD_KVX_CHANCES + 1; i++)
        chances[i] = &chance;
    ready.chances = chances;
    wire.kind_case = PD__V1__KV_FROM_SOURCE__KIND_READY;
    wire.ready = &ready;
    for (ready.n_chances = PD_KVX_CHANCES; ready.n_chances <= PD_KVX_CHANCES + 1;
         ready.n_chances++) {
        length = pd__v1__kv_from_source__pack(&wire, bytes);
        assert_int_equal(pd_from_source_unpack(bytes, length, MAX_TOKENS, &message, &error),
                         ready.n_chances == PD_KVX_CHANCES ? PD_OK : PD_INVALID);
    }
    assert_non_null(strstr(error.text, "22 log probabilities"));
}

static void long_reasons_are_cut(void **state)
{
    Pd__V1__KvGone gone = PD__V1__KV_GONE__INIT;
    Pd__V1__KvFromSource wire = PD__V1__KV_FROM_SOURCE__INIT;
    struct pd_from_source message;
    uint8_t bytes[2000];
    size_t length;

    (void)state;
    gone.why = text_of(1000);
    wire.kind_case = PD__V1__KV_FROM_SOURCE__KIND_GONE;
    wire.gone = &gone;
    length = pd__v1__kv_from_source__pack(&wire, bytes);
    assert_int_equal(pd_from_source_unpack(bytes, length, MAX_TOKENS, &message, NULL), PD_OK);
    assert_int_equal(strlen(message.gone.why), PD_KV_WHY - 1);
}

/* ---- bytes of any kind ----------------------------------------------------------------------- */

static uint32_t next_random(uint32_t *random)
{
    return *random = *random * 1664525u + 1013904223u, *random >> 8;
}

static void try_both(const uint8_t *bytes, size_t length)
{
    struct pd_to_source to;
    struct pd_from_source from;
    struct pd_error error;

    (void)pd_to_source_unpack(bytes, length, &to, &error);
    if (pd_from_source_unpack(bytes, length, MAX_TOKENS, &from, &error) == PD_OK)
        pd_from_source_clear(&from);
}

static void damaged_messages_do_no_harm(void **state)
{
    struct pd_extent extents[] = {{3, 4}, {9, 1}};
    uint64_t words[] = {1, 2, 3, 4, 5};
    uint32_t prompt[40] = {1, 2, 3}, random = 11;
    struct pd_from_source message = {.kind = PD_FROM_SOURCE_CLAIMED};
    uint64_t sums[] = {77};
    uint8_t *good, bytes[512];
    size_t length;

    (void)state;
    message.claimed =
        (struct pd_claimed){.generation = 7,
                            .extents = extents,
                            .extent_count = 2,
                            .prompt = prompt,
                            .prompt_count = 40,
                            .words = words,
                            .word_count = 5,
                            .ready = {.generation = 7, .tokens = 8, .sum_count = 1, .sums = sums}};
    good = pd_from_source_pack(&message, &length);
    assert_true(length < sizeof(bytes));
    for (size_t cut = 0; cut <= length; cut++)
        try_both(good, cut);
    for (int round = 0; round < 20000; round++) {
        memcpy(bytes, good, length);
        for (uint32_t n = 1 + next_random(&random) % 4; n > 0; n--)
            bytes[next_random(&random) % length] = (uint8_t)next_random(&random);
        try_both(bytes, length);
    }
    for (int round = 0; round < 20000; round++) {
        size_t size = next_random(&random) % sizeof(bytes);

        for (size_t i = 0; i < size; i++)
            bytes[i] = (uint8_t)next_random(&random);
        try_both(bytes, size);
    }
    free(good);
}

/* Two bytes on the wire are a structure of fifty in memory: a message of empty extents as large as
 * a message may be must not take more than the budget. */
static void dense_message_stays_within_its_budget(void **state)
{
    uint32_t max_tokens = 131072;
    size_t length = pd_from_source_max(max_tokens), inner = length - 8, before, after;
    uint8_t *bytes = malloc(length);
    struct pd_from_source message;
    struct pd_error error;

    (void)state;
    /* Field 2 (claimed) with a length of four bytes, then field 2 (extents), length 0, over and
     * over. */
    bytes[0] = 0x12;
    inner -= inner % 2;
    bytes[1] = (uint8_t)(inner | 0x80);
    bytes[2] = (uint8_t)(inner >> 7 | 0x80);
    bytes[3] = (uint8_t)(inner >> 14 | 0x80);
    bytes[4] = (uint8_t)(inner >> 21 & 0x7f);
    for (size_t i = 0; i < inner; i += 2) {
        bytes[5 + i] = 0x12;
        bytes[6 + i] = 0x00;
    }
    before = mallinfo2().uordblks;
    assert_int_equal(pd_from_source_unpack(bytes, inner + 5, max_tokens, &message, &error),
                     PD_INVALID);
    after = mallinfo2().uordblks;
    assert_true(after <= before);
    assert_non_null(strstr(error.text, "no KvFromSource message")); /* the budget, not a bound */
    free(bytes);
}

static void fingerprints_that_differ_are_named(void **state)
{
    struct pd_fingerprint source = fingerprint(), reader = fingerprint();
    struct pd_error error;

    (void)state;
    assert_int_equal(pd_fingerprint_match(&source, &reader, &error), PD_OK);
    reader.layout[31] ^= 1;
    assert_int_equal(pd_fingerprint_match(&source, &reader, &error), PD_INVALID);
    assert_non_null(strstr(error.text, "KV layouts differ: source 96979899"));
    reader.weights[0] = 0xff;
    assert_int_equal(pd_fingerprint_match(&source, &reader, &error), PD_INVALID);
    assert_non_null(strstr(error.text, "weights differ: source 00010203..., reader ff010203..."));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_to_a_source_come_back),
        cmocka_unit_test(messages_from_a_source_come_back),
        cmocka_unit_test(largest_claim_comes_back),
        cmocka_unit_test(bounds_of_a_readers_hello),
        cmocka_unit_test(bounds_of_a_claim),
        cmocka_unit_test(bounds_of_a_sources_hello),
        cmocka_unit_test(bounds_of_a_claims_answer),
        cmocka_unit_test(unknown_kinds_and_values_are_no_error),
        cmocka_unit_test(too_many_log_probabilities_are_refused),
        cmocka_unit_test(long_reasons_are_cut),
        cmocka_unit_test(damaged_messages_do_no_harm),
        cmocka_unit_test(dense_message_stays_within_its_budget),
        cmocka_unit_test(fingerprints_that_differ_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
