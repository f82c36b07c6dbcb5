/* The reader's state machine, rule by rule. Messages, landings and time go in; what it does to the world
 * comes out as a line of text, which each case compares whole: an action too many or in another order
 * fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/kvx/reader.h"

enum { MS = 1000000, SOURCE_BOOT = 77, BLOCKS = 64, READS = 64 };

static const uint64_t silence_ns = 300 * (uint64_t)MS, stall_ns = 2000 * (uint64_t)MS;

struct world {
    struct pd_reader *reader;
    char log[8192];
    size_t used;
    uint64_t links;
    struct pd_to_source last;
    const struct pd_read *reads[READS]; /* in flight, oldest first */
    size_t in_flight;
    uint64_t link_of_reads;
    bool words, connect_fails, read_fails;
    unsigned window;
    uint64_t word[BLOCKS];
    int ends[16]; /* handles for the data ends: index is the link */
    struct pd_kvx_stats stats;
    char why[512];
};

static void note(struct world *world, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void note(struct world *world, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    if (world->used > 0)
        world->used +=
            (size_t)snprintf(world->log + world->used, sizeof(world->log) - world->used, "; ");
    world->used +=
        (size_t)vsnprintf(world->log + world->used, sizeof(world->log) - world->used, format, args);
    va_end(args);
}

static uint64_t on_next_link(void *context)
{
    return ++((struct world *)context)->links;
}

static void on_open(void *context, uint64_t link, const char *address)
{
    note(context, "open %llu %s", (unsigned long long)link, address);
}

static void on_close(void *context, uint64_t link, const char *why)
{
    (void)why;
    note(context, "close %llu", (unsigned long long)link);
}

static void on_send(void *context, uint64_t link, const struct pd_to_source *message)
{
    struct world *world = context;

    world->last = *message;
    switch (message->kind) {
    case PD_TO_SOURCE_HELLO:
        note(world, "%llu hello %llu", (unsigned long long)link,
             (unsigned long long)message->hello.epoch);
        break;
    case PD_TO_SOURCE_CLAIM:
        note(world, "%llu claim %llu", (unsigned long long)link,
             (unsigned long long)message->claim.generation);
        break;
    case PD_TO_SOURCE_RELEASE:
        note(world, "%llu release %llu", (unsigned long long)link,
             (unsigned long long)message->generation);
        break;
    case PD_TO_SOURCE_HEARTBEAT:
        note(world, "%llu heartbeat", (unsigned long long)link);
        break;
    case PD_TO_SOURCE_UNKNOWN:
        fail();
    }
}

static int on_connect(void *context, uint64_t link, const struct pd_source_hello *hello,
                      struct pd_data_path *path, struct pd_error *error)
{
    struct world *world = context;

    (void)hello;
    if (world->connect_fails)
        return pd_fail(error, PD_IO, "connection refused");
    note(world, "connect %llu", (unsigned long long)link);
    path->end = &world->ends[link];
    path->window = world->window;
    path->words = world->words;
    return PD_OK;
}

static int on_read(void *context, void *end, const struct pd_read *read)
{
    struct world *world = context;
    char ranges[1024] = "";
    size_t used = 0;

    for (size_t i = 0; i < read->count; i++)
        used += (size_t)snprintf(ranges + used, sizeof(ranges) - used, " %u>%u+%u",
                                 (unsigned)(read->ranges[i].source / 256),
                                 (unsigned)(read->ranges[i].destination / 256),
                                 read->ranges[i].length / 256);
    note(world, "read %llu%s", (unsigned long long)read->generation, ranges);
    if (world->read_fails)
        return PD_IO;
    world->link_of_reads = (uint64_t)((int *)end - world->ends);
    world->reads[world->in_flight++] = read;
    return PD_OK;
}

static uint64_t on_word(void *context, void *end, uint32_t block)
{
    (void)end;
    return ((struct world *)context)->word[block];
}

static void on_disconnect(void *context, void *end)
{
    struct world *world = context;

    world->in_flight = 0;
    note(world, "disconnect %d", (int)((int *)end - world->ends));
}

static void on_claimed(void *context, uint64_t fetch, const uint32_t *prompt, size_t count)
{
    note(context, "claimed %llu: %u..%u", (unsigned long long)fetch, prompt[0], prompt[count - 1]);
}

static void on_sampled(void *context, uint64_t fetch, uint32_t token, int finish)
{
    note(context, "sampled %llu: %u %d", (unsigned long long)fetch, token, finish);
}

static void on_complete(void *context, uint64_t fetch, uint32_t token, int finish, uint32_t cached,
                        const struct pd_kvx_stats *stats)
{
    struct world *world = context;

    world->stats = *stats;
    note(world, "complete %llu: %u %d %u", (unsigned long long)fetch, token, finish, cached);
}

static void on_closed(void *context, uint64_t fetch, bool cancelled, const char *why)
{
    struct world *world = context;

    snprintf(world->why, sizeof(world->why), "%s", why);
    note(world, "%s %llu", cancelled ? "cancelled" : "failed", (unsigned long long)fetch);
}

static void on_link_changed(void *context, const char *source, bool up, const char *transport,
                            const char *why)
{
    (void)context;
    (void)source;
    (void)up;
    (void)transport;
    (void)why;
}

static struct pd_fingerprint fingerprint(uint8_t byte)
{
    struct pd_fingerprint print;

    memset(&print, byte, sizeof(print));
    return print;
}

static struct pd_layout layout_of(uint64_t blocks)
{
    struct pd_layout layout = {.layers = 1,
                               .kv_heads = 1,
                               .block_size = 8,
                               .head_dim = 4,
                               .element_bytes = 4,
                               .blocks = blocks};

    assert_int_equal(pd_layout_derive(&layout, NULL), PD_OK);
    return layout;
}

static struct world *open_world(void)
{
    static const char *const transports[] = {"shm", "tcp", NULL};
    struct world *world = calloc(1, sizeof(*world));
    struct pd_reader_world actions = {
        .context = world,
        .next_link = on_next_link,
        .open = on_open,
        .close = on_close,
        .send = on_send,
        .connect = on_connect,
        .read = on_read,
        .word = on_word,
        .disconnect = on_disconnect,
        .claimed = on_claimed,
        .sampled = on_sampled,
        .complete = on_complete,
        .closed = on_closed,
        .link_changed = on_link_changed,
    };
    struct pd_reader_options options = {
        .instance = "d0",
        .host_id = "host",
        .transports = transports,
        .boot = 5,
        .fingerprint = fingerprint(9),
        .layout = layout_of(BLOCKS),
        .max_tokens = 1000,
        .max_fetches = 16,
        .max_links = 4,
        .silence_ns = silence_ns,
        .stall_ns = stall_ns,
    };

    world->window = 2;
    assert_int_equal(pd_reader_create(&options, &actions, &world->reader), PD_OK);
    return world;
}

static void close_world(struct world *world)
{
    pd_reader_shutdown(world->reader, 0);
    assert_int_equal(pd_reader_fetches(world->reader), 0);
    pd_reader_destroy(world->reader);
    free(world);
}

static void expect(struct world *world, const char *log)
{
    assert_string_equal(world->log, log);
    world->log[0] = '\0';
    world->used = 0;
}

static void ignore(struct world *world)
{
    world->log[0] = '\0';
    world->used = 0;
}

/* A ticket of `source` with 30 tokens: four blocks, the last one in part. */
static struct pd_ticket ticket_of(const char *source, uint64_t boot, uint64_t generation)
{
    struct pd_ticket ticket = {.boot = boot,
                               .epoch = 1,
                               .generation = generation,
                               .tokens = 30,
                               .block_size = 8,
                               .fingerprint = fingerprint(9)};

    strcpy(ticket.instance, source);
    snprintf(ticket.address, sizeof(ticket.address), "%s:9000", source);
    memset(ticket.secret, 3, sizeof(ticket.secret));
    return ticket;
}

static void fetch(struct world *world, uint64_t now, uint64_t id, uint64_t generation)
{
    struct pd_ticket ticket = ticket_of("p0", SOURCE_BOOT, generation);

    assert_int_equal(pd_reader_fetch(world->reader, now, id, &ticket), PD_OK);
}

static struct pd_from_source hello_of(const char *source, uint64_t boot)
{
    struct pd_from_source message = {.kind = PD_FROM_SOURCE_HELLO};

    message.hello.protocol = PD_KV_PROTOCOL;
    strcpy(message.hello.instance, source);
    message.hello.boot = boot;
    message.hello.epoch = 1;
    message.hello.fingerprint = fingerprint(9);
    strcpy(message.hello.transport, "tcp");
    message.hello.pool = layout_of(BLOCKS);
    return message;
}

static void greet(struct world *world, uint64_t now, uint64_t link)
{
    struct pd_from_source hello = hello_of("p0", SOURCE_BOOT);

    pd_reader_message(world->reader, now, link, &hello);
}

/* A fetch with id 5 of ticket 7, whose link 1 is up and whose claim is out. */
static void claim_seven(struct world *world, uint64_t now)
{
    fetch(world, now, 5, 7);
    expect(world, "open 1 p0:9000");
    pd_reader_link_up(world->reader, now, 1);
    expect(world, "1 hello 1");
    greet(world, now, 1);
    expect(world, "connect 1");
    pd_reader_connected(world->reader, now, 1);
    expect(world, "1 claim 7");
}

/* The source accepts: blocks 20, 21, 22 and 40. */
static struct pd_from_source claimed_of(uint64_t generation, uint32_t ready)
{
    static struct pd_extent extents[] = {{20, 3}, {40, 1}};
    static uint64_t words[] = {120, 121, 122, 140};
    static uint32_t prompt[30];
    struct pd_from_source message = {.kind = PD_FROM_SOURCE_CLAIMED};

    for (uint32_t i = 0; i < 30; i++)
        prompt[i] = 100 + i;
    message.claimed.generation = generation;
    message.claimed.extents = extents;
    message.claimed.extent_count = 2;
    message.claimed.prompt = prompt;
    message.claimed.prompt_count = 30;
    message.claimed.words = words;
    message.claimed.word_count = 4;
    message.claimed.ready.generation = generation;
    message.claimed.ready.tokens = ready;
    return message;
}

static void accept(struct world *world, uint64_t now, uint64_t link, uint64_t generation,
                   uint32_t ready)
{
    struct pd_from_source message = claimed_of(generation, ready);

    pd_reader_message(world->reader, now, link, &message);
}

static void gone(struct world *world, uint64_t now, uint64_t link, uint64_t generation)
{
    struct pd_from_source message = {.kind = PD_FROM_SOURCE_GONE};

    message.gone.generation = generation;
    strcpy(message.gone.why, "no such ticket");
    pd_reader_message(world->reader, now, link, &message);
}

static void revoked(struct world *world, uint64_t now, uint64_t link, uint64_t generation)
{
    struct pd_from_source message = {.kind = PD_FROM_SOURCE_REVOKED};

    message.gone.generation = generation;
    strcpy(message.gone.why, "preempted");
    pd_reader_message(world->reader, now, link, &message);
}

static void ready(struct world *world, uint64_t now, uint64_t generation, uint32_t tokens)
{
    struct pd_from_source message = {.kind = PD_FROM_SOURCE_READY};

    message.ready.generation = generation;
    message.ready.tokens = tokens;
    pd_reader_message(world->reader, now, 1, &message);
}

static void sampled(struct world *world, uint64_t now, uint64_t generation, int finish)
{
    struct pd_from_source message = {.kind = PD_FROM_SOURCE_READY};

    message.ready.generation = generation;
    message.ready.tokens = 30;
    message.ready.complete = true;
    message.ready.first_token = 4711;
    message.ready.finish = finish;
    message.ready.cached = 16;
    pd_reader_message(world->reader, now, 1, &message);
}

/* Into blocks 1, 2, 3, 9. */
static void want(struct world *world, uint64_t now, uint64_t id, size_t from)
{
    static const int32_t into[] = {1, 2, 3, 9};
    int32_t *blocks = malloc(sizeof(into));

    memcpy(blocks, into, sizeof(into));
    pd_reader_want(world->reader, now, id, from, blocks, 4);
}

static void land(struct world *world, uint64_t now)
{
    const struct pd_read *read = world->reads[0];

    assert_true(world->in_flight > 0);
    memmove(world->reads, world->reads + 1, --world->in_flight * sizeof(*world->reads));
    pd_reader_landed(world->reader, now, world->link_of_reads, read);
}

/* Fetch 5 of ticket 7 with one read in flight: blocks 0 and 1 of 4. */
static void read_seven(struct world *world, uint64_t now)
{
    claim_seven(world, now);
    accept(world, now, 1, 7, 16);
    expect(world, "claimed 5: 100..129");
    want(world, now, 5, 0);
    expect(world, "read 7 20>1+2");
}

/* ---- rules ---------------------------------------------------------------------------------- */

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
    hello = hello_of("p0", SOURCE_BOOT);
    world->connect_fails = true;
    refused_hello(world, &hello, "connection refused");
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

/* ---- opening links -------------------------------------------------------------------------- */

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
    assert_non_null(strstr(world->why, "next try in 100 ms; last: connection refused"));
    fetch(world, 100 * MS, 3, 13);
    expect(world, "open 2 p0:9000");
    pd_reader_tick(world->reader, 100 * MS + silence_ns);
    expect(world, "failed 3; close 2");
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
    pd_reader_tick(world->reader, silence_ns);
    expect(world, "disconnect 1; failed 1; close 1");
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

/* ---- a source that lies --------------------------------------------------------------------- */

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
        cmocka_unit_test(whole_life),
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
        cmocka_unit_test(fetches_wait_for_one_link),
        cmocka_unit_test(link_that_does_not_open_fails_its_fetches_and_pauses),
        cmocka_unit_test(deadline_covers_every_step_of_opening),
        cmocka_unit_test(idle_link_gives_way_busy_ones_do_not),
        cmocka_unit_test(read_that_cannot_be_posted_fails_the_link),
        cmocka_unit_test(window_is_kept_and_shared_in_turn),
        cmocka_unit_test(lies_about_blocks_fail_the_ticket),
        cmocka_unit_test(lies_about_words_fail_the_ticket),
        cmocka_unit_test(lies_about_progress_fail_the_ticket),
        cmocka_unit_test(bad_manners_end_the_link),
        cmocka_unit_test(engine_that_asks_for_nonsense_is_refused),
        cmocka_unit_test(fetches_have_a_limit),
        cmocka_unit_test(links_are_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
