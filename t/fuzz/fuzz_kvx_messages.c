/* A peer of the KV hand-off that may send anything. The input is a row of messages, each behind its
 * length (two bytes); the first byte says who reads them: a source with tickets and a living link,
 * or a reader with fetches in all stages, and whether sums are asked for. Whatever comes, no read leaves either pool, every ticket
 * is released and every fetch ends exactly once, and what unpacks packs to bytes that unpack again.
 */
#include <stdlib.h>
#include <string.h>

#include "worker/kvx/reader.h"
#include "worker/kvx/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BLOCKS = 64, MAX_TOKENS = 256, TICKETS = 4, FETCHES = 4, READS = 16, LINK = 1 };
enum { A_SOURCE = 1, GREETED = 2, SUMS = 4 }; /* bits of the first byte */

static struct pd_layout layout;

struct world {
    struct pd_source *source;
    struct pd_reader *reader;
    uint64_t now;
    size_t released, ended;
    bool connecting;
    const struct pd_read *reads[READS];
    size_t read_count;
};

static void require(bool condition)
{
    if (!condition)
        abort();
}

/* ---- worlds in which little happens ---------------------------------------------------------- */

static void source_send(void *context, uint64_t link, const struct pd_from_source *message)
{
    struct pd_from_source back;
    size_t length;
    uint8_t *bytes = pd_from_source_pack(message, &length);

    (void)context;
    (void)link;
    require(bytes && pd_from_source_unpack(bytes, length, MAX_TOKENS, &back, NULL) == PD_OK);
    pd_from_source_clear(&back);
    free(bytes);
}

static void close_link(void *context, uint64_t link, const char *why)
{
    (void)context;
    (void)link;
    require(why[0] != '\0');
}

static int serve(void *context, uint64_t link, const struct pd_reader_hello *reader,
                 struct pd_source_hello *hello, struct pd_source_path *path, struct pd_error *error)
{
    (void)link;
    (void)error;
    strcpy(hello->transport, "shm");
    path->end = context;
    path->words = reader->transport_count & 1;
    path->staged = reader->transport_count & 2;
    path->sums = true;
    return PD_OK;
}

static bool stage(void *context, uint32_t first, uint32_t count)
{
    (void)context;
    require(first < BLOCKS && count <= BLOCKS - first);
    return true;
}

static uint64_t sum(void *context, uint64_t offset, uint32_t plane)
{
    (void)context;
    require(offset < layout.bytes && plane < layout.layers * layout.kv_heads);
    return offset;
}

static void end_gone(void *context, void *end)
{
    require(end == context);
    ((struct world *)context)->read_count = 0;
}

static void released(void *context, uint64_t generation)
{
    (void)generation;
    ((struct world *)context)->released++;
}

static void link_changed(void *context, const char *peer, bool up, const char *transport,
                         const char *why)
{
    (void)context;
    (void)peer;
    (void)up;
    (void)transport;
    (void)why;
}

static uint64_t next_link(void *context)
{
    (void)context;
    return LINK;
}

static void open_link(void *context, uint64_t link, const char *address)
{
    (void)context;
    (void)link;
    (void)address;
}

static void reader_send(void *context, uint64_t link, const struct pd_to_source *message)
{
    struct pd_to_source back;
    size_t length;
    uint8_t *bytes = pd_to_source_pack(message, &length);

    (void)context;
    (void)link;
    require(bytes && pd_to_source_unpack(bytes, length, &back, NULL) == PD_OK);
    require(back.kind == message->kind);
    free(bytes);
}

static int connect_ends(void *context, uint64_t link, const struct pd_source_hello *hello,
                        struct pd_data_path *path, struct pd_error *error)
{
    (void)link;
    (void)hello;
    (void)error;
    path->end = context;
    path->window = 2;
    path->words = true;
    ((struct world *)context)->connecting = true;
    return PD_OK;
}

static int read_blocks(void *context, void *end, const struct pd_read *read)
{
    struct world *world = context;
    uint32_t first, count;

    (void)end;
    for (size_t i = 0; i < read->count; i++)
        require(pd_layout_locate(&layout, read->ranges[i].source, read->ranges[i].length, &first,
                                 &count) &&
                pd_layout_locate(&layout, read->ranges[i].destination, read->ranges[i].length,
                                 &first, &count));
    require(world->read_count < READS);
    world->reads[world->read_count++] = read;
    return PD_OK;
}

static bool arrived(void *context, void *end, const struct pd_read *read)
{
    (void)context;
    (void)end;
    (void)read;
    return true;
}

static uint64_t word_of(void *context, void *end, uint32_t block)
{
    (void)context;
    (void)end;
    require(block < BLOCKS);
    return 0;
}

static void claimed(void *context, uint64_t fetch, const uint32_t *prompt, size_t count)
{
    (void)context;
    (void)fetch;
    require(prompt != NULL && count > 0 && count <= MAX_TOKENS);
}

static void sampled(void *context, uint64_t fetch, const struct pd_kvx_first *first)
{
    (void)context;
    (void)fetch;
    require(first->finish >= 0 && first->finish <= 3 && first->chances <= PD_KVX_CHANCES);
}

static void complete(void *context, uint64_t fetch, const struct pd_kvx_first *first,
                     const struct pd_kvx_stats *stats)
{
    (void)fetch;
    (void)first;
    (void)stats;
    ((struct world *)context)->ended++;
}

static void closed(void *context, uint64_t fetch, bool cancelled, const char *why)
{
    (void)fetch;
    (void)cancelled;
    (void)why;
    ((struct world *)context)->ended++;
}

/* ---- the row of messages --------------------------------------------------------------------- */

static bool next_message(const uint8_t **data, size_t *size, const uint8_t **bytes, size_t *length)
{
    if (*size < 2)
        return false;
    *length = (size_t)(*data)[0] | (size_t)(*data)[1] << 8;
    *data += 2;
    *size -= 2;
    if (*length > *size)
        *length = *size;
    *bytes = *data;
    *data += *length;
    *size -= *length;
    return true;
}

/* ---- a source -------------------------------------------------------------------------------- */

static void offer(struct world *world, uint64_t generation)
{
    int32_t blocks[4], prompt[30] = {0};
    struct pd_kvx_offer offered = {.generation = generation,
                                   .blocks = blocks,
                                   .block_count = 4,
                                   .prompt = prompt,
                                   .tokens = 30};
    struct pd_source_ticket *ticket;

    for (int32_t i = 0; i < 4; i++)
        blocks[i] = (int32_t)generation * 4 + i;
    require(pd_source_ticket_create(&offered, &layout, &ticket) == PD_OK);
    require(pd_source_offer(world->source, 0, ticket) == PD_OK);
    pd_source_ready(world->source, 0, generation, 16);
}

static void greet_source(struct world *world, unsigned flags)
{
    struct pd_to_source hello = {.kind = PD_TO_SOURCE_HELLO};

    hello.hello.protocol = PD_KV_PROTOCOL;
    strcpy(hello.hello.instance, "d0");
    hello.hello.transport_count = 1;
    hello.hello.checksum = flags & SUMS;
    pd_source_link_up(world->source, 0, LINK);
    pd_source_message(world->source, 0, LINK, &hello);
    for (uint64_t i = 0; i < 2; i++) {
        struct pd_to_source claim = {.kind = PD_TO_SOURCE_CLAIM, .claim.generation = i};

        pd_source_message(world->source, 0, LINK, &claim);
    }
}

static void feed_source(const uint8_t *data, size_t size, unsigned flags)
{
    static _Atomic uint64_t words[BLOCKS];
    struct world world = {0};
    struct pd_source_world actions = {.context = &world,
                                      .send = source_send,
                                      .close = close_link,
                                      .serve = serve,
                                      .withdraw = end_gone,
                                      .released = released,
                                      .stage = stage,
                                      .sum = sum,
                                      .link_changed = link_changed};
    struct pd_source_options options = {.instance = "p0",
                                        .layout = layout,
                                        .words = words,
                                        .max_tickets = TICKETS,
                                        .max_links = 4,
                                        .claim_ns = 1000,
                                        .silence_ns = 1000,
                                        .release_ns = 1000};
    const uint8_t *bytes;
    size_t length;

    require(pd_source_create(&options, &actions, &world.source) == PD_OK);
    for (uint64_t i = 0; i < TICKETS; i++)
        offer(&world, i);
    if (flags & GREETED)
        greet_source(&world, flags);
    else
        pd_source_link_up(world.source, 0, LINK);
    while (next_message(&data, &size, &bytes, &length)) {
        struct pd_to_source message;
        struct pd_error error;

        if (pd_to_source_unpack(bytes, length, &message, &error) != PD_OK)
            require(error.text[0] != '\0');
        else
            pd_source_message(world.source, 0, LINK, &message);
    }
    for (uint64_t i = 0; i < TICKETS; i++)
        pd_source_complete(world.source, 0, i, &(struct pd_kvx_first){.token = 1});
    pd_source_shutdown(world.source);
    require(world.released == TICKETS && pd_source_tickets(world.source) == 0);
    pd_source_destroy(world.source);
}

/* ---- a reader -------------------------------------------------------------------------------- */

static void fetch(struct world *world, uint64_t id)
{
    struct pd_ticket ticket = {.generation = id, .tokens = 30, .block_size = 8};

    strcpy(ticket.instance, "p0");
    strcpy(ticket.address, "p0");
    require(pd_reader_fetch(world->reader, 0, id, &ticket) == PD_OK);
}

static void greet_reader(struct world *world, unsigned flags)
{
    struct pd_from_source hello = {.kind = PD_FROM_SOURCE_HELLO};

    hello.hello.protocol = PD_KV_PROTOCOL;
    strcpy(hello.hello.instance, "p0");
    strcpy(hello.hello.transport, "shm");
    hello.hello.pool = layout;
    hello.hello.checksum = flags & SUMS;
    pd_reader_message(world->reader, 0, LINK, &hello);
}

static void accept_claim(struct world *world, uint64_t generation)
{
    struct pd_extent extents[] = {{10, 3}, {20, 1}};
    uint32_t prompt[30] = {0};
    uint64_t words[4] = {0};
    struct pd_from_source message = {.kind = PD_FROM_SOURCE_CLAIMED};

    message.claimed = (struct pd_claimed){.generation = generation,
                                          .extents = extents,
                                          .extent_count = 2,
                                          .prompt = prompt,
                                          .prompt_count = 30,
                                          .words = words,
                                          .word_count = 4};
    message.claimed.ready.tokens = 8;
    pd_reader_message(world->reader, 0, LINK, &message);
}

/* Whoever is claimed gets blocks; every other read lands. */
static void go_along(struct world *world)
{
    if (world->connecting) {
        world->connecting = false;
        pd_reader_connected(world->reader, world->now, LINK);
    }
    for (uint64_t id = 0; id < FETCHES; id++) {
        int32_t *blocks = calloc(4, sizeof(*blocks));

        for (int32_t i = 0; i < 4; i++)
            blocks[i] = (int32_t)id * 4 + i;
        pd_reader_want(world->reader, world->now, id, id % 2, blocks, 4);
    }
    if (world->read_count > 0 && world->now % 2)
        pd_reader_landed(world->reader, world->now, LINK, world->reads[--world->read_count]);
    if (world->now == 7)
        pd_reader_cancel(world->reader, world->now, 3);
}

static void feed_reader(const uint8_t *data, size_t size, unsigned flags)
{
    static const char *const transports[] = {"shm", NULL};
    struct world world = {0};
    struct pd_reader_world actions = {.context = &world,
                                      .next_link = next_link,
                                      .open = open_link,
                                      .close = close_link,
                                      .send = reader_send,
                                      .connect = connect_ends,
                                      .read = read_blocks,
                                      .arrived = arrived,
                                      .sum = sum,
                                      .word = word_of,
                                      .disconnect = end_gone,
                                      .claimed = claimed,
                                      .sampled = sampled,
                                      .complete = complete,
                                      .closed = closed,
                                      .link_changed = link_changed};
    struct pd_reader_options options = {.instance = "d0",
                                        .host_id = "",
                                        .transports = transports,
                                        .layout = layout,
                                        .max_tokens = MAX_TOKENS,
                                        .checksum = flags & SUMS,
                                        .max_fetches = FETCHES,
                                        .max_links = 4,
                                        .silence_ns = 1000,
                                        .stall_ns = 1000};
    const uint8_t *bytes;
    size_t length;

    require(pd_reader_create(&options, &actions, &world.reader) == PD_OK);
    for (uint64_t i = 0; i < FETCHES; i++)
        fetch(&world, i);
    pd_reader_link_up(world.reader, 0, LINK);
    if (flags & GREETED) {
        greet_reader(&world, flags);
        go_along(&world);
        accept_claim(&world, 0);
        accept_claim(&world, 1);
        go_along(&world);
    }
    while (next_message(&data, &size, &bytes, &length)) {
        struct pd_from_source message;
        struct pd_error error;

        world.now++;
        if (pd_from_source_unpack(bytes, length, MAX_TOKENS, &message, &error) != PD_OK) {
            require(error.text[0] != '\0');
            continue;
        }
        pd_reader_message(world.reader, world.now, LINK, &message);
        pd_from_source_clear(&message);
        go_along(&world);
    }
    pd_reader_shutdown(world.reader, world.now);
    require(world.ended == FETCHES && pd_reader_fetches(world.reader) == 0);
    pd_reader_destroy(world.reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    layout = (struct pd_layout){.layers = 2,
                                .kv_heads = 1,
                                .block_size = 8,
                                .head_dim = 2,
                                .element_bytes = 2,
                                .blocks = BLOCKS};
    require(pd_layout_derive(&layout, NULL) == PD_OK);
    if (size == 0)
        return 0;
    if (data[0] & A_SOURCE)
        feed_source(data + 1, size - 1, data[0]);
    else
        feed_reader(data + 1, size - 1, data[0]);
    return 0;
}
