/* A world for the source's state machine that writes down what the machine does to it, as a line of
 * text which a test compares whole; and short words for what readers and the engine say. Included
 * by tests. */
#ifndef KVX_SOURCE_WORLD_H
#define KVX_SOURCE_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/kvx/source.h"

enum { MS = 1000000, BOOT = 77, EPOCH = 1, BLOCKS = 64 };

static const uint64_t claim_ns = 1000 * (uint64_t)MS, silence_ns = 300 * (uint64_t)MS,
                      release_ns = 5000 * (uint64_t)MS;

struct world {
    struct pd_source *source;
    char log[8192];
    size_t used;
    struct pd_from_source last; /* the last message; of Claimed the arrays are copied below */
    struct pd_extent extents[BLOCKS];
    uint32_t prompt[1024];
    uint64_t words[BLOCKS];
    _Atomic uint64_t pool_words[BLOCKS];
    bool serves_words, staged, loses_blocks;
    int serve_fails;
    int ends[8]; /* handles for the data ends: index is the link */
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

static inline void on_send(void *context, uint64_t link, const struct pd_from_source *message)
{
    struct world *world = context;
    const struct pd_claimed *claimed = &message->claimed;

    world->last = *message;
    switch (message->kind) {
    case PD_FROM_SOURCE_HELLO:
        note(world, "%llu hello %s", (unsigned long long)link,
             message->hello.transport[0] ? message->hello.transport : "refused");
        break;
    case PD_FROM_SOURCE_CLAIMED:
        memcpy(world->extents, claimed->extents, claimed->extent_count * sizeof(*claimed->extents));
        memcpy(world->prompt, claimed->prompt, claimed->prompt_count * sizeof(*claimed->prompt));
        if (claimed->word_count)
            memcpy(world->words, claimed->words, claimed->word_count * sizeof(*claimed->words));
        note(world, "%llu claimed %llu at %u", (unsigned long long)link,
             (unsigned long long)claimed->generation, claimed->ready.tokens);
        break;
    case PD_FROM_SOURCE_GONE:
        note(world, "%llu gone %llu", (unsigned long long)link,
             (unsigned long long)message->gone.generation);
        break;
    case PD_FROM_SOURCE_READY:
        note(world, "%llu ready %llu %u%s", (unsigned long long)link,
             (unsigned long long)message->ready.generation, message->ready.tokens,
             message->ready.complete ? " complete" : "");
        break;
    case PD_FROM_SOURCE_REVOKED:
        note(world, "%llu revoked %llu", (unsigned long long)link,
             (unsigned long long)message->gone.generation);
        break;
    case PD_FROM_SOURCE_HEARTBEAT:
        note(world, "%llu heartbeat", (unsigned long long)link);
        break;
    case PD_FROM_SOURCE_UNKNOWN:
        fail();
    }
}

static inline void on_close(void *context, uint64_t link, const char *why)
{
    (void)why;
    note(context, "close %llu", (unsigned long long)link);
}

static inline int on_serve(void *context, uint64_t link, const struct pd_reader_hello *reader,
                           struct pd_source_hello *hello, struct pd_source_path *path,
                           struct pd_error *error)
{
    struct world *world = context;

    (void)reader;
    if (world->serve_fails)
        return pd_fail(error, PD_UNSUPPORTED, "no transport in common");
    strcpy(hello->transport, world->serves_words ? "shm" : "tcp");
    path->words = world->serves_words;
    path->end = &world->ends[link];
    path->staged = world->staged;
    path->sums = true;
    return PD_OK;
}

static inline void on_withdraw(void *context, void *end)
{
    struct world *world = context;

    note(world, "withdraw %d", (int)((int *)end - world->ends));
}

static inline void on_released(void *context, uint64_t generation)
{
    note(context, "released %llu", (unsigned long long)generation);
}

static inline bool on_stage(void *context, uint32_t first, uint32_t count)
{
    struct world *world = context;

    note(world, "stage %u+%u", first, count);
    return !world->loses_blocks;
}

/* Of block n in plane p: 1000 n + p; block_bytes is 256. */
static inline uint64_t on_sum(void *context, uint64_t offset, uint32_t plane)
{
    (void)context;
    return offset / 256 % BLOCKS * 1000 + plane;
}

static inline void on_link_changed(void *context, const char *reader, bool up,
                                   const char *transport, const char *why)
{
    (void)context;
    (void)reader;
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

/* A block is 64 * head_dim bytes in each layer. */
static inline struct world *open_world_of(uint32_t layers, uint32_t head_dim)
{
    struct world *world = calloc(1, sizeof(*world));
    struct pd_source_world actions = {
        .context = world,
        .send = on_send,
        .close = on_close,
        .serve = on_serve,
        .withdraw = on_withdraw,
        .released = on_released,
        .stage = on_stage,
        .sum = on_sum,
        .link_changed = on_link_changed,
    };
    struct pd_source_options options = {
        .instance = "p0",
        .boot = BOOT,
        .epoch = EPOCH,
        .fingerprint = fingerprint(9),
        .layout = {.layers = layers,
                   .kv_heads = 1,
                   .block_size = 8,
                   .head_dim = head_dim,
                   .element_bytes = 4,
                   .blocks = BLOCKS},
        .words = world->pool_words,
        .max_tickets = 16,
        .max_links = 4,
        .claim_ns = claim_ns,
        .silence_ns = silence_ns,
        .release_ns = release_ns,
    };

    assert_int_equal(pd_layout_derive(&options.layout, NULL), PD_OK);
    assert_int_equal(pd_source_create(&options, &actions, &world->source), PD_OK);
    return world;
}

static inline struct world *open_world(void)
{
    return open_world_of(1, 4);
}

/* Prepares all that is to be prepared. */
static inline void work(struct world *world)
{
    while (pd_source_work(world->source, 0))
        ;
}

static inline void close_world(struct world *world)
{
    pd_source_shutdown(world->source);
    assert_int_equal(pd_source_tickets(world->source), 0);
    pd_source_destroy(world->source);
    free(world);
}

/* What has happened since the last look. */
static inline void expect(struct world *world, const char *log)
{
    assert_string_equal(world->log, log);
    world->log[0] = '\0';
    world->used = 0;
}

static inline void offer_blocks(struct world *world, uint64_t now, uint64_t generation,
                                uint64_t owner, const int32_t *blocks, size_t count,
                                uint32_t tokens)
{
    int32_t prompt[1024];
    struct pd_kvx_offer offer = {.generation = generation,
                                 .blocks = blocks,
                                 .block_count = count,
                                 .prompt = prompt,
                                 .tokens = tokens,
                                 .owner = owner};
    struct pd_layout layout = {.layers = 1,
                               .kv_heads = 1,
                               .block_size = 8,
                               .head_dim = 4,
                               .element_bytes = 4,
                               .blocks = BLOCKS};
    struct pd_source_ticket *ticket;

    for (uint32_t i = 0; i < tokens; i++)
        prompt[i] = (int32_t)(1000 + i);
    memset(offer.secret, (int)generation, sizeof(offer.secret));
    assert_int_equal(pd_layout_derive(&layout, NULL), PD_OK);
    assert_int_equal(pd_source_ticket_create(&offer, &layout, &ticket), PD_OK);
    assert_int_equal(pd_source_offer(world->source, now, ticket), PD_OK);
}

/* 30 tokens in blocks 10, 11, 12, 13. */
static inline void offer(struct world *world, uint64_t now, uint64_t generation, uint64_t owner)
{
    static const int32_t blocks[] = {10, 11, 12, 13};

    offer_blocks(world, now, generation, owner, blocks, 4, 30);
}

static inline struct pd_to_source hello_of(const char *reader, uint64_t boot, uint64_t epoch)
{
    struct pd_to_source message = {.kind = PD_TO_SOURCE_HELLO};

    message.hello.protocol = PD_KV_PROTOCOL;
    strcpy(message.hello.instance, reader);
    message.hello.boot = boot;
    message.hello.epoch = epoch;
    message.hello.source_boot = BOOT;
    message.hello.fingerprint = fingerprint(9);
    return message;
}

static inline void greet(struct world *world, uint64_t now, uint64_t link, const char *reader,
                         uint64_t epoch)
{
    struct pd_to_source message = hello_of(reader, 5, epoch);

    pd_source_link_up(world->source, now, link);
    pd_source_message(world->source, now, link, &message);
}

static inline void link_up(struct world *world, uint64_t now, uint64_t link, const char *reader)
{
    char hello[32];

    greet(world, now, link, reader, link);
    snprintf(hello, sizeof(hello), "%llu hello %s", (unsigned long long)link,
             world->serves_words ? "shm" : "tcp");
    expect(world, hello);
}

static inline void claim_as(struct world *world, uint64_t now, uint64_t link, uint64_t generation,
                            uint64_t epoch, uint8_t secret)
{
    struct pd_to_source message = {.kind = PD_TO_SOURCE_CLAIM};

    message.claim.generation = generation;
    message.claim.epoch = epoch;
    memset(message.claim.secret, secret, sizeof(message.claim.secret));
    pd_source_message(world->source, now, link, &message);
}

static inline void claim(struct world *world, uint64_t now, uint64_t link, uint64_t generation)
{
    claim_as(world, now, link, generation, EPOCH, (uint8_t)generation);
}

static inline void release(struct world *world, uint64_t now, uint64_t link, uint64_t generation)
{
    struct pd_to_source message = {.kind = PD_TO_SOURCE_RELEASE, .generation = generation};

    pd_source_message(world->source, now, link, &message);
}

static inline void heartbeat(struct world *world, uint64_t now, uint64_t link)
{
    struct pd_to_source message = {.kind = PD_TO_SOURCE_HEARTBEAT};

    pd_source_message(world->source, now, link, &message);
}

#endif
