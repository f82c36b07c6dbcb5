/* A world for the reader's state machine that writes down what the machine does to it, as a line of
 * text which a test compares whole; and short words for what the source and the engine say.
 * Included by tests. */
#ifndef KVX_READER_WORLD_H
#define KVX_READER_WORLD_H

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
    bool words, connect_fails, read_fails, device_lost;
    unsigned window;
    uint64_t word[BLOCKS];
    int ends[16]; /* handles for the data ends: index is the link */
    struct pd_kvx_stats stats;
    char why[512];
};

static inline void note(struct world *world, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static inline void note(struct world *world, const char *format, ...)
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

static inline uint64_t on_next_link(void *context)
{
    return ++((struct world *)context)->links;
}

static inline void on_open(void *context, uint64_t link, const char *address)
{
    note(context, "open %llu %s", (unsigned long long)link, address);
}

static inline void on_close(void *context, uint64_t link, const char *why)
{
    (void)why;
    note(context, "close %llu", (unsigned long long)link);
}

static inline void on_send(void *context, uint64_t link, const struct pd_to_source *message)
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

static inline int on_connect(void *context, uint64_t link, const struct pd_source_hello *hello,
                             struct pd_data_path *path, struct pd_error *error)
{
    struct world *world = context;

    (void)hello;
    if (world->connect_fails)
        return pd_fail(error, PD_IO, "connection refused");
    note(world, "connect %llu", (unsigned long long)link);
    path->end = &world->ends[link];
    path->window = world->window;
    path->rails = 2;
    path->words = world->words;
    return PD_OK;
}

static inline int on_read(void *context, void *end, const struct pd_read *read)
{
    struct world *world = context;
    char ranges[1024] = "";
    size_t used = 0;

    for (size_t i = 0; i < read->count; i++)
        used += (size_t)snprintf(ranges + used, sizeof(ranges) - used, " %u>%u+%u",
                                 (unsigned)(read->ranges[i].source / 256),
                                 (unsigned)(read->ranges[i].destination / 256),
                                 read->ranges[i].length / 256);
    if (read->rail > 0)
        snprintf(ranges + used, sizeof(ranges) - used, " on rail %u", read->rail);
    note(world, "read %llu%s", (unsigned long long)read->generation, ranges);
    if (world->read_fails)
        return PD_IO;
    world->link_of_reads = (uint64_t)((int *)end - world->ends);
    world->reads[world->in_flight++] = read;
    return PD_OK;
}

static inline uint64_t on_word(void *context, void *end, uint32_t block)
{
    (void)end;
    return ((struct world *)context)->word[block];
}

/* What lands in block n of the one plane has the sum 1000 + n. */
static inline uint64_t on_sum(void *context, uint64_t offset, uint32_t plane)
{
    (void)context;
    assert_int_equal(plane, 0);
    return 1000 + offset / 256;
}

static inline bool on_arrived(void *context, void *end, const struct pd_read *read)
{
    (void)end;
    (void)read;
    return !((struct world *)context)->device_lost;
}

static inline void on_disconnect(void *context, void *end)
{
    struct world *world = context;

    world->in_flight = 0;
    note(world, "disconnect %d", (int)((int *)end - world->ends));
}

static inline void on_claimed(void *context, uint64_t fetch, const uint32_t *prompt, size_t count)
{
    note(context, "claimed %llu: %u..%u", (unsigned long long)fetch, prompt[0], prompt[count - 1]);
}

static inline void on_sampled(void *context, uint64_t fetch, const struct pd_kvx_first *first)
{
    note(context, "sampled %llu: %u %d", (unsigned long long)fetch, first->token, first->finish);
}

static inline void on_complete(void *context, uint64_t fetch, const struct pd_kvx_first *first,
                               const struct pd_kvx_stats *stats)
{
    struct world *world = context;

    world->stats = *stats;
    note(world, "complete %llu: %u %d %u", (unsigned long long)fetch, first->token, first->finish,
         first->cached);
}

static inline void on_closed(void *context, uint64_t fetch, bool cancelled, const char *why)
{
    struct world *world = context;

    snprintf(world->why, sizeof(world->why), "%s", why);
    note(world, "%s %llu", cancelled ? "cancelled" : "failed", (unsigned long long)fetch);
}

static inline void on_link_changed(void *context, const char *source, bool up,
                                   const char *transport, const char *why)
{
    (void)context;
    (void)source;
    (void)up;
    (void)transport;
    (void)why;
}

static inline struct pd_fingerprint fingerprint(uint8_t byte)
{
    struct pd_fingerprint print;

    memset(&print, byte, sizeof(print));
    return print;
}

static inline struct pd_layout layout_of(uint64_t blocks)
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

static inline struct world *open_world_with(bool checksum)
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
        .sum = on_sum,
        .arrived = on_arrived,
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
        .checksum = checksum,
        .max_fetches = 16,
        .max_links = 4,
        .silence_ns = silence_ns,
        .stall_ns = stall_ns,
    };

    world->window = 2;
    assert_int_equal(pd_reader_create(&options, &actions, &world->reader), PD_OK);
    return world;
}

static inline struct world *open_world(void)
{
    return open_world_with(false);
}

static inline void close_world(struct world *world)
{
    pd_reader_shutdown(world->reader, 0);
    assert_int_equal(pd_reader_fetches(world->reader), 0);
    pd_reader_destroy(world->reader);
    free(world);
}

static inline void expect(struct world *world, const char *log)
{
    assert_string_equal(world->log, log);
    world->log[0] = '\0';
    world->used = 0;
}

static inline void ignore(struct world *world)
{
    world->log[0] = '\0';
    world->used = 0;
}

/* A ticket of `source` with 30 tokens: four blocks, the last one in part. */
static inline struct pd_ticket ticket_of(const char *source, uint64_t boot, uint64_t generation)
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

static inline void fetch(struct world *world, uint64_t now, uint64_t id, uint64_t generation)
{
    struct pd_ticket ticket = ticket_of("p0", SOURCE_BOOT, generation);

    assert_int_equal(pd_reader_fetch(world->reader, now, id, &ticket), PD_OK);
}

static inline struct pd_from_source hello_of(const char *source, uint64_t boot)
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

static inline void greet(struct world *world, uint64_t now, uint64_t link)
{
    struct pd_from_source hello = hello_of("p0", SOURCE_BOOT);

    pd_reader_message(world->reader, now, link, &hello);
}

/* A fetch with id 5 of ticket 7, whose link 1 is up and whose claim is out. */
static inline void claim_seven(struct world *world, uint64_t now)
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
static inline struct pd_from_source claimed_of(uint64_t generation, uint32_t ready)
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

static inline void accept(struct world *world, uint64_t now, uint64_t link, uint64_t generation,
                          uint32_t ready)
{
    struct pd_from_source message = claimed_of(generation, ready);

    pd_reader_message(world->reader, now, link, &message);
}

static inline void gone(struct world *world, uint64_t now, uint64_t link, uint64_t generation)
{
    struct pd_from_source message = {.kind = PD_FROM_SOURCE_GONE};

    message.gone.generation = generation;
    strcpy(message.gone.why, "no such ticket");
    pd_reader_message(world->reader, now, link, &message);
}

static inline void revoked(struct world *world, uint64_t now, uint64_t link, uint64_t generation)
{
    struct pd_from_source message = {.kind = PD_FROM_SOURCE_REVOKED};

    message.gone.generation = generation;
    strcpy(message.gone.why, "preempted");
    pd_reader_message(world->reader, now, link, &message);
}

static inline void ready(struct world *world, uint64_t now, uint64_t generation, uint32_t tokens)
{
    struct pd_from_source message = {.kind = PD_FROM_SOURCE_READY};

    message.ready.generation = generation;
    message.ready.tokens = tokens;
    pd_reader_message(world->reader, now, 1, &message);
}

static inline void sampled(struct world *world, uint64_t now, uint64_t generation, int finish)
{
    struct pd_from_source message = {.kind = PD_FROM_SOURCE_READY};

    message.ready.generation = generation;
    message.ready.tokens = 30;
    message.ready.complete = true;
    message.ready.first.token = 4711;
    message.ready.first.finish = finish;
    message.ready.first.cached = 16;
    pd_reader_message(world->reader, now, 1, &message);
}

/* Into blocks 1, 2, 3, 9. */
static inline void want(struct world *world, uint64_t now, uint64_t id, size_t from)
{
    static const int32_t into[] = {1, 2, 3, 9};
    int32_t *blocks = malloc(sizeof(into));

    memcpy(blocks, into, sizeof(into));
    pd_reader_want(world->reader, now, id, from, blocks, 4);
}

static inline void land(struct world *world, uint64_t now)
{
    const struct pd_read *read = world->reads[0];

    assert_true(world->in_flight > 0);
    memmove(world->reads, world->reads + 1, --world->in_flight * sizeof(*world->reads));
    pd_reader_landed(world->reader, now, world->link_of_reads, read);
}

/* Fetch 5 of ticket 7 with one read in flight: blocks 0 and 1 of 4. */
static inline void read_seven(struct world *world, uint64_t now)
{
    claim_seven(world, now);
    accept(world, now, 1, 7, 16);
    expect(world, "claimed 5: 100..129");
    want(world, now, 5, 0);
    expect(world, "read 7 20>1+2");
}

#endif
