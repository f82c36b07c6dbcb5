/* Random histories of the hand-off: the two state machines as they are, in a world of seeded delays, cut
 * and half-open streams, dying and restarting workers, cancels at any moment, and neighbours that take
 * every block that becomes free.
 *
 * A block is one number: the tag of whoever wrote it last. Checked at every step:
 *   - a read lands only in a block that belongs to the fetch that posted it;
 *   - a completed fetch holds exactly its ticket's tags;
 *   - a neighbour's block keeps the neighbour's tag;
 *   - every offer is released once, every fetch ends once;
 * and at rest: no ticket, no fetch, no read and no block is left over.
 *
 * A history is its seed: KVX_SEED=n replays one, KVX_HISTORIES=n runs more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/kvx/reader.h"
#include "worker/kvx/source.h"

enum {
    SOURCES = 2,
    READERS = 2,
    BLOCKS = 12,
    BLOCK_SIZE = 8,
    PROMPT_BLOCKS = 4,
    STREAMS = 512,
    JOBS = 8,
    POOLS = 64,
    READS = 64,
    QUEUE = 256,
    STEPS = 1500,
    HISTORIES = 300,
};

static const uint64_t ms = 1000000;

/* The memory of one life of a worker: a reader's mapping outlives the process that made it. */
struct pool {
    uint64_t tag[BLOCKS];
    uint64_t owner[BLOCKS]; /* 0: free */
    _Atomic uint64_t words[BLOCKS];
};

struct sim_node {
    struct sim *sim;
    int index;
    char name[8];
    uint64_t boot, next_link;
    bool dead;       /* its last words are not heard */
    uint64_t frozen; /* stopped until then: it neither hears nor sees the time */
    struct pool *pool;
    struct pd_source *source; /* of a source */
    struct pd_reader *reader; /* of a reader */
};

struct parcel {
    uint8_t *bytes;
    size_t length;
};

struct queue {
    struct parcel at[QUEUE];
    size_t first, count;
    bool hung_up; /* the sender's last word */
};

/* A control stream with its data ends. */
struct stream {
    bool established, shm;
    bool cut, silent; /* silent: and no end is told */
    struct sim_node *d, *p;
    uint64_t d_boot, p_boot, d_link, p_link;
    bool d_open, p_open; /* each end's own belief */
    struct queue to_source, to_reader;
    bool d_end, p_end, connecting; /* data ends that are alive */
    bool d_data_lost, p_data_lost; /* the other end has gone, and this one will hear of it */
    struct pool *p_pool;
};

struct read {
    const struct pd_read *read; /* NULL: free */
    struct stream *stream;
    bool sampled, broken;
    uint64_t value[PROMPT_BLOCKS];
    uint32_t into[PROMPT_BLOCKS], count;
    uint64_t fetch;
};

enum job_stage { JOB_FREE, JOB_OFFERED, JOB_OVER };

/* One request: its ticket on a source, its fetch on a reader. */
struct job {
    bool used;
    uint64_t id; /* generation and fetch */
    struct sim_node *p, *d;
    uint64_t p_boot, d_boot;
    uint32_t tokens, blocks, from, computed;
    int32_t p_block[PROMPT_BLOCKS], d_block[PROMPT_BLOCKS];
    bool p_alive, revoked,
        completed; /* the offer is not released; the engine has given up, or is done */
    bool to_send, fetching, to_want, decoding;
};

struct sim {
    uint64_t random, now, next_tick, next_id;
    bool quiet, shm;
    struct sim_node sources[SOURCES], readers[READERS];
    struct stream streams[STREAMS];
    size_t stream_count;
    struct job jobs[JOBS];
    struct read reads[READS];
    struct pool pools[POOLS];
    size_t pool_count;
    uint64_t completed, closed, released;
};

static uint64_t current_seed;

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            print_error("KVX_SEED=%llu: ", (unsigned long long)current_seed);                      \
            fail_msg(__VA_ARGS__);                                                                 \
        }                                                                                          \
    } while (0)

/* splitmix64 */
static uint64_t draw(struct sim *sim, uint64_t below)
{
    uint64_t z = (sim->random += 0x9e3779b97f4a7c15u);

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

static uint64_t tag_of(uint64_t id, uint32_t index)
{
    return id << 8 | (index + 1);
}

static struct pd_layout the_layout(void)
{
    struct pd_layout layout = {.layers = 1,
                               .kv_heads = 1,
                               .block_size = BLOCK_SIZE,
                               .head_dim = 1,
                               .element_bytes = 4,
                               .blocks = BLOCKS};

    assert_int_equal(pd_layout_derive(&layout, NULL), PD_OK);
    return layout;
}

/* ---- streams -------------------------------------------------------------------------------- */

/* NULL if the node is dead, and nobody hears what it says. */
static struct stream *stream_of(struct sim_node *node, uint64_t link)
{
    if (node->dead)
        return NULL;
    for (size_t i = 0; i < node->sim->stream_count; i++) {
        struct stream *stream = &node->sim->streams[i];

        if ((stream->d == node && stream->d_boot == node->boot && stream->d_link == link) ||
            (stream->p == node && stream->established && stream->p_boot == node->boot &&
             stream->p_link == link))
            return stream;
    }
    return NULL;
}

static void clear_queue(struct queue *queue)
{
    while (queue->count > 0) {
        free(queue->at[queue->first].bytes);
        queue->first = (queue->first + 1) % QUEUE;
        queue->count--;
    }
}

static void put(struct stream *stream, struct queue *queue, uint8_t *bytes, size_t length)
{
    CHECK(bytes != NULL, "out of memory");
    if (stream->cut) {
        free(bytes);
        return;
    }
    CHECK(queue->count < QUEUE, "a control queue overflows");
    queue->at[(queue->first + queue->count++) % QUEUE] = (struct parcel){bytes, length};
}

static void cut_stream(struct stream *stream, bool silent)
{
    stream->cut = true;
    stream->silent = silent;
    clear_queue(&stream->to_source);
    clear_queue(&stream->to_reader);
}

static void drop_reads(struct sim *sim, struct stream *stream)
{
    for (size_t i = 0; i < READS; i++)
        if (sim->reads[i].read && sim->reads[i].stream == stream)
            sim->reads[i].read = NULL;
}

/* ---- the source's world --------------------------------------------------------------------- */

static struct job *job_of(struct sim *sim, uint64_t id)
{
    for (size_t i = 0; i < JOBS; i++)
        if (sim->jobs[i].used && sim->jobs[i].id == id)
            return &sim->jobs[i];
    return NULL;
}

static void p_send(void *context, uint64_t link, const struct pd_from_source *message)
{
    struct stream *stream = stream_of(context, link);
    size_t length;
    uint8_t *bytes = pd_from_source_pack(message, &length);

    if (!stream) {
        free(bytes);
        return;
    }
    CHECK(stream->p_open, "the source sends on a stream that is closed");
    put(stream, &stream->to_reader, bytes, length);
}

static void p_close(void *context, uint64_t link, const char *why)
{
    struct stream *stream = stream_of(context, link);

    (void)why;
    if (!stream)
        return;
    stream->p_open = false;
    stream->to_reader.hung_up = true;
    clear_queue(&stream->to_source);
}

static int p_serve(void *context, uint64_t link, const struct pd_reader_hello *reader,
                   struct pd_source_hello *hello, bool *words, void **end, struct pd_error *error)
{
    struct stream *stream = stream_of(context, link);

    (void)reader;
    (void)error;
    strcpy(hello->transport, stream->shm ? "shm" : "tcp");
    *words = stream->shm;
    stream->p_end = true;
    *end = stream;
    return PD_OK;
}

/* Over tcp nothing is sampled through this end any more; a mapping cannot be taken back. */
static void p_withdraw(void *context, void *end)
{
    struct stream *stream = end;

    if (((struct sim_node *)context)->dead)
        return;
    CHECK(stream->p_end, "an end is destroyed twice");
    stream->p_end = false;
    stream->d_data_lost = stream->d_end || stream->connecting;
}

static void free_blocks(struct pool *pool, const int32_t *blocks, uint32_t count, uint64_t owner)
{
    for (uint32_t i = 0; i < count; i++) {
        CHECK(pool->owner[blocks[i]] == owner, "a block is freed that is another's");
        pool->owner[blocks[i]] = 0;
    }
}

static void p_released(void *context, uint64_t generation)
{
    struct sim_node *p = context;
    struct job *job = job_of(p->sim, generation);

    if (p->dead)
        return;
    CHECK(job && job->p == p && job->p_alive && job->p_boot == p->boot,
          "a ticket is released that is not offered");
    job->p_alive = false;
    p->sim->released++;
    free_blocks(p->pool, job->p_block, job->blocks, generation);
}

static void p_link_changed(void *context, const char *reader, bool up, const char *transport,
                           const char *why)
{
    (void)context;
    (void)reader;
    (void)up;
    (void)transport;
    (void)why;
}

/* ---- the reader's world --------------------------------------------------------------------- */

static uint64_t d_next_link(void *context)
{
    return ++((struct sim_node *)context)->next_link;
}

static void d_open(void *context, uint64_t link, const char *address)
{
    struct sim_node *d = context;
    struct sim *sim = d->sim;
    struct stream *stream = &sim->streams[sim->stream_count++];

    CHECK(sim->stream_count < STREAMS, "too many streams");
    memset(stream, 0, sizeof(*stream));
    stream->d_open = true;
    stream->shm = sim->shm;
    stream->d = d;
    stream->d_boot = d->boot;
    stream->d_link = link;
    stream->p = &sim->sources[address[1] - '0'];
}

static void d_close(void *context, uint64_t link, const char *why)
{
    struct stream *stream = stream_of(context, link);

    (void)why;
    if (!stream)
        return;
    stream->d_open = false;
    stream->to_source.hung_up = true;
    clear_queue(&stream->to_reader);
}

static void d_send(void *context, uint64_t link, const struct pd_to_source *message)
{
    struct stream *stream = stream_of(context, link);
    size_t length;
    uint8_t *bytes = pd_to_source_pack(message, &length);

    if (!stream) {
        free(bytes);
        return;
    }
    CHECK(stream->d_open, "the reader sends on a stream that is closed");
    put(stream, &stream->to_source, bytes, length);
}

static int d_connect(void *context, uint64_t link, const struct pd_source_hello *hello,
                     struct pd_data_path *path, struct pd_error *error)
{
    struct stream *stream = stream_of(context, link);

    (void)hello;
    (void)error;
    stream->connecting = true;
    path->end = stream;
    path->window = 2;
    path->words = stream->shm;
    return PD_OK;
}

static int d_read(void *context, void *end, const struct pd_read *read)
{
    struct sim_node *d = context;
    struct stream *stream = end;

    CHECK(stream->d_end, "a read is posted on an end that is not connected");
    for (size_t i = 0; i < READS; i++) {
        struct read *at = &d->sim->reads[i];

        if (at->read)
            continue;
        *at = (struct read){.read = read, .stream = stream, .fetch = read->generation};
        return PD_OK;
    }
    return PD_FULL;
}

static uint64_t d_word(void *context, void *end, uint32_t block)
{
    (void)context;
    return atomic_load(&((struct stream *)end)->p_pool->words[block]);
}

static void d_disconnect(void *context, void *end)
{
    struct sim_node *d = context;
    struct stream *stream = end;

    if (d->dead)
        return;
    drop_reads(d->sim, stream);
    stream->d_end = stream->connecting = false;
    stream->p_data_lost = stream->p_end;
}

static void d_claimed(void *context, uint64_t fetch, const uint32_t *prompt, size_t count)
{
    struct sim_node *d = context;
    struct job *job = job_of(d->sim, fetch);

    CHECK(job && job->fetching && count == job->tokens && prompt[0] == (uint32_t)fetch,
          "a claim is answered with another prompt");
    job->to_want = true;
}

static void d_sampled(void *context, uint64_t fetch, uint32_t token, int finish)
{
    (void)context;
    (void)finish;
    CHECK(token == (uint32_t)fetch + 1, "the first token is another's");
}

static void d_complete(void *context, uint64_t fetch, uint32_t token, int finish, uint32_t cached,
                       const struct pd_kvx_stats *stats)
{
    struct sim_node *d = context;
    struct job *job = job_of(d->sim, fetch);

    (void)finish;
    (void)cached;
    (void)stats;
    CHECK(job && job->fetching, "a fetch ends twice");
    CHECK(token == (uint32_t)fetch + 1, "the first token is another's");
    for (uint32_t i = job->from; i < job->blocks; i++)
        CHECK(d->pool->tag[job->d_block[i]] == tag_of(fetch, i),
              "fetch %llu trusts a block with tag %llx", (unsigned long long)fetch,
              (unsigned long long)d->pool->tag[job->d_block[i]]);
    job->fetching = false;
    job->decoding = true;
    d->sim->completed++;
}

static void d_closed(void *context, uint64_t fetch, bool cancelled, const char *why)
{
    struct sim_node *d = context;
    struct job *job = job_of(d->sim, fetch);

    (void)cancelled;
    (void)why;
    if (d->dead)
        return;
    CHECK(job && job->fetching, "a fetch ends twice");
    job->fetching = false;
    d->sim->closed++;
    free_blocks(d->pool, job->d_block, job->blocks, fetch);
}

/* ---- lives ---------------------------------------------------------------------------------- */

static struct pool *new_pool(struct sim *sim)
{
    CHECK(sim->pool_count < POOLS, "too many pools");
    return &sim->pools[sim->pool_count++];
}

static struct pd_fingerprint fingerprint(void)
{
    struct pd_fingerprint print;

    memset(&print, 1, sizeof(print));
    return print;
}

static void start_source(struct sim_node *p)
{
    struct pd_source_world world = {p,          p_send,     p_close,       p_serve,
                                    p_withdraw, p_released, p_link_changed};
    struct pd_source_options options = {
        .instance = p->name,
        .epoch = PD_KVX_EPOCH,
        .fingerprint = fingerprint(),
        .layout = the_layout(),
        .max_tickets = 64,
        .max_links = 16,
        .claim_ns = 3000 * ms,
        .silence_ns = 200 * ms,
        .release_ns = 4000 * ms,
    };

    p->pool = new_pool(p->sim);
    options.boot = ++p->boot;
    options.words = p->pool->words;
    assert_int_equal(pd_source_create(&options, &world, &p->source), PD_OK);
}

static void start_reader(struct sim_node *d)
{
    static const char *const transports[] = {"shm", "tcp", NULL};
    struct pd_reader_world world = {
        .context = d,
        .next_link = d_next_link,
        .open = d_open,
        .close = d_close,
        .send = d_send,
        .connect = d_connect,
        .read = d_read,
        .word = d_word,
        .disconnect = d_disconnect,
        .claimed = d_claimed,
        .sampled = d_sampled,
        .complete = d_complete,
        .closed = d_closed,
        .link_changed = p_link_changed,
    };
    struct pd_reader_options options = {
        .instance = d->name,
        .host_id = "",
        .transports = transports,
        .fingerprint = fingerprint(),
        .layout = the_layout(),
        .max_tokens = PROMPT_BLOCKS * BLOCK_SIZE,
        .max_fetches = 64,
        .max_links = 8,
        .silence_ns = 200 * ms,
        .stall_ns = 1000 * ms,
    };

    d->pool = new_pool(d->sim);
    options.boot = ++d->boot;
    assert_int_equal(pd_reader_create(&options, &world, &d->reader), PD_OK);
}

/* SIGKILL: streams are cut, ends are gone; the memory stays for those who have it mapped. */
static void kill_source(struct sim_node *p)
{
    for (size_t i = 0; i < p->sim->stream_count; i++) {
        struct stream *stream = &p->sim->streams[i];

        if (stream->p != p || !stream->established || stream->p_boot != p->boot)
            continue;
        cut_stream(stream, false);
        stream->p_open = false;
        if (stream->p_end)
            stream->d_data_lost = stream->d_end || stream->connecting;
        stream->p_end = false;
    }
    for (size_t i = 0; i < JOBS; i++)
        if (p->sim->jobs[i].used && p->sim->jobs[i].p == p)
            p->sim->jobs[i].p_alive = false;
    p->dead = true;
    pd_source_shutdown(p->source);
    pd_source_destroy(p->source);
    p->dead = false;
}

static void kill_reader(struct sim_node *d)
{
    for (size_t i = 0; i < d->sim->stream_count; i++) {
        struct stream *stream = &d->sim->streams[i];

        if (stream->d != d || stream->d_boot != d->boot)
            continue;
        cut_stream(stream, false);
        drop_reads(d->sim, stream);
        stream->d_open = stream->d_end = stream->connecting = false;
        stream->p_data_lost = stream->p_end;
    }
    for (size_t i = 0; i < JOBS; i++) {
        struct job *job = &d->sim->jobs[i];

        if (job->used && job->d == d)
            job->to_send = job->fetching = job->to_want = job->decoding = false;
    }
    d->dead = true;
    pd_reader_shutdown(d->reader, d->sim->now);
    pd_reader_destroy(d->reader);
    d->dead = false;
}

/* ---- what may happen next ------------------------------------------------------------------- */

static bool d_lives(const struct stream *stream)
{
    return stream->d_open && stream->d_boot == stream->d->boot;
}

static bool stopped(const struct sim_node *node)
{
    return node->sim->now < node->frozen;
}

static bool p_lives(const struct stream *stream)
{
    return stream->established && stream->p_open && stream->p_boot == stream->p->boot;
}

static void establish(struct sim *sim, struct stream *stream)
{
    if (draw(sim, 10) == 0) {
        stream->cut = true;
        stream->d_open = false;
        pd_reader_link_down(stream->d->reader, sim->now, stream->d_link, "refused");
        return;
    }
    stream->established = stream->p_open = true;
    stream->p_boot = stream->p->boot;
    stream->p_link = ++stream->p->next_link;
    stream->p_pool = stream->p->pool;
    pd_source_link_up(stream->p->source, sim->now, stream->p_link);
    pd_reader_link_up(stream->d->reader, sim->now, stream->d_link);
}

static struct parcel take(struct queue *queue)
{
    struct parcel parcel = queue->at[queue->first];

    queue->first = (queue->first + 1) % QUEUE;
    queue->count--;
    return parcel;
}

static void deliver_to_source(struct sim *sim, struct stream *stream)
{
    struct parcel parcel = take(&stream->to_source);
    struct pd_to_source message;

    CHECK(pd_to_source_unpack(parcel.bytes, parcel.length, &message, NULL) == PD_OK,
          "a message does not unpack");
    free(parcel.bytes);
    pd_source_message(stream->p->source, sim->now, stream->p_link, &message);
}

static void deliver_to_reader(struct sim *sim, struct stream *stream)
{
    struct parcel parcel = take(&stream->to_reader);
    struct pd_from_source message;

    CHECK(pd_from_source_unpack(parcel.bytes, parcel.length, PROMPT_BLOCKS * BLOCK_SIZE, &message,
                                NULL) == PD_OK,
          "a message does not unpack");
    free(parcel.bytes);
    pd_reader_message(stream->d->reader, sim->now, stream->d_link, &message);
    pd_from_source_clear(&message);
}

static bool ended(const struct stream *stream, const struct queue *queue)
{
    return stream->cut ? !stream->silent : queue->hung_up && queue->count == 0;
}

static bool step_source_side(struct sim *sim, struct stream *stream)
{
    if (!p_lives(stream) || stopped(stream->p))
        return false;
    if (stream->to_source.count > 0 && draw(sim, 2)) {
        deliver_to_source(sim, stream);
    } else if (ended(stream, &stream->to_source)) {
        stream->p_open = false;
        pd_source_link_down(stream->p->source, stream->p_link, "the stream has ended");
    } else if (stream->p_data_lost && !stream->silent) {
        stream->p_data_lost = false;
        pd_source_link_fail(stream->p->source, stream->p_link, "a data end is gone");
    } else {
        return false;
    }
    return true;
}

static bool step_reader_side(struct sim *sim, struct stream *stream)
{
    if (!d_lives(stream) || stopped(stream->d))
        return false;
    if (stream->to_reader.count > 0 && draw(sim, 2)) {
        deliver_to_reader(sim, stream);
    } else if (ended(stream, &stream->to_reader)) {
        stream->d_open = false;
        pd_reader_link_down(stream->d->reader, sim->now, stream->d_link, "the stream has ended");
    } else if (stream->d_data_lost && !stream->silent) {
        stream->d_data_lost = false;
        pd_reader_link_fail(stream->d->reader, sim->now, stream->d_link, "a data end is gone");
    } else if (stream->connecting && stream->p_end && !stream->silent) {
        stream->connecting = false;
        stream->d_end = true;
        pd_reader_connected(stream->d->reader, sim->now, stream->d_link);
    } else {
        return false;
    }
    return true;
}

/* One thing that may happen to a stream; false if nothing may. */
static bool step_stream(struct sim *sim, struct stream *stream)
{
    if (!stream->established) {
        if (!d_lives(stream) || stream->cut || stopped(stream->d) || stopped(stream->p))
            return false;
        establish(sim, stream);
        return true;
    }
    return draw(sim, 2) ? step_source_side(sim, stream) : step_reader_side(sim, stream);
}

/* The first stream from a random one on that has an open end. */
static struct stream *some_stream(struct sim *sim)
{
    size_t start = sim->stream_count ? draw(sim, sim->stream_count) : 0;

    for (size_t i = 0; i < sim->stream_count; i++) {
        struct stream *stream = &sim->streams[(start + i) % sim->stream_count];

        if (d_lives(stream) || p_lives(stream))
            return stream;
    }
    return NULL;
}

/* The bytes leave the source's memory: what lies there now. */
static bool sample(struct sim *sim, struct read *read)
{
    struct stream *stream = read->stream;
    struct job *job = job_of(sim, read->fetch);

    if (!stream->shm && !stream->p_end) {
        read->broken = true;
        return false;
    }
    read->count = 0;
    for (size_t i = 0; i < read->read->count; i++) {
        const struct pd_range *range = &read->read->ranges[i];
        struct pd_layout layout = the_layout();
        uint32_t first, count;

        CHECK(pd_layout_locate(&layout, range->source, range->length, &first, &count),
              "a read of what are no blocks");
        CHECK(stream->shm || pd_source_may_read(stream->p->source, stream->p_link,
                                                read->read->generation, first, count),
              "an honest reader asks for what it may not read");
        for (uint32_t n = 0; n < count; n++) {
            read->value[read->count] = stream->p_pool->tag[first + n];
            read->into[read->count++] = (uint32_t)(range->destination / layout.block_bytes) + n;
        }
    }
    CHECK(job && job->d == stream->d, "a read of no job");
    read->sampled = true;
    return true;
}

static bool step_read(struct sim *sim, struct read *read)
{
    struct stream *stream = read->stream;
    const struct pd_read *which = read->read;

    if (!which || read->broken || stopped(stream->d) || (!stream->shm && stopped(stream->p)))
        return false;
    if (!read->sampled)
        return sample(sim, read);
    for (uint32_t i = 0; i < read->count; i++) {
        CHECK(stream->d->pool->owner[read->into[i]] == read->fetch,
              "a late byte of fetch %llu lands in a block of %llu", (unsigned long long)read->fetch,
              (unsigned long long)stream->d->pool->owner[read->into[i]]);
        stream->d->pool->tag[read->into[i]] = read->value[i];
    }
    read->read = NULL;
    pd_reader_landed(stream->d->reader, sim->now, stream->d_link, which);
    return true;
}

/* ---- the engines ---------------------------------------------------------------------------- */

/* `count` free blocks, taken at random; false if there are not as many. */
static bool take_blocks(struct sim *sim, struct pool *pool, uint32_t count, uint64_t owner,
                        int32_t *blocks)
{
    uint32_t free = 0;

    for (uint32_t i = 0; i < BLOCKS; i++)
        free += pool->owner[i] == 0;
    if (free < count)
        return false;
    for (uint32_t n = 0; n < count;) {
        int32_t block = (int32_t)draw(sim, BLOCKS);

        if (n > 0 && draw(sim, 2) && blocks[n - 1] + 1 < BLOCKS)
            block = blocks[n - 1] + 1;
        if (pool->owner[block] != 0)
            continue;
        pool->owner[block] = owner;
        blocks[n++] = block;
    }
    return true;
}

static bool submit(struct sim *sim, struct job *job)
{
    struct pd_kvx_offer offer = {0};
    struct pd_source_ticket *ticket;
    struct pd_layout layout = the_layout();
    int32_t prompt[PROMPT_BLOCKS * BLOCK_SIZE];

    if (job->used || sim->quiet)
        return false;
    memset(job, 0, sizeof(*job));
    job->id = ++sim->next_id;
    job->p = &sim->sources[draw(sim, SOURCES)];
    job->d = &sim->readers[draw(sim, READERS)];
    job->p_boot = job->p->boot;
    job->tokens = 1 + (uint32_t)draw(sim, PROMPT_BLOCKS * BLOCK_SIZE);
    job->blocks = pd_layout_blocks_for(&layout, job->tokens);
    if (!take_blocks(sim, job->p->pool, job->blocks, job->id, job->p_block))
        return false;
    for (uint32_t i = 0; i < job->blocks; i++)
        atomic_fetch_add(&job->p->pool->words[job->p_block[i]], 1);
    for (uint32_t i = 0; i < job->tokens; i++)
        prompt[i] = (int32_t)job->id;
    offer.generation = job->id;
    offer.blocks = job->p_block;
    offer.block_count = job->blocks;
    offer.prompt = prompt;
    offer.tokens = job->tokens;
    offer.owner = draw(sim, 3);
    job->used = job->p_alive = true;
    job->to_send = draw(sim, 8) != 0; /* or the dispatcher changes its mind */
    assert_int_equal(pd_source_ticket_create(&offer, &layout, &ticket), PD_OK);
    assert_int_equal(pd_source_offer(job->p->source, sim->now, ticket), PD_OK);
    return true;
}

/* The source computes a block's worth, then says so; with the last one comes the token. */
static bool compute(struct sim *sim, struct job *job)
{
    uint32_t done;

    if (!job->p_alive || job->revoked || job->completed)
        return false;
    if (job->computed < job->blocks) {
        job->p->pool->tag[job->p_block[job->computed]] = tag_of(job->id, job->computed);
        job->computed++;
        done = job->computed * BLOCK_SIZE < job->tokens ? job->computed * BLOCK_SIZE : job->tokens;
        pd_source_ready(job->p->source, sim->now, job->id, done);
        return true;
    }
    job->completed = true;
    pd_source_complete(job->p->source, sim->now, job->id, (uint32_t)job->id + 1, 0, 0);
    return true;
}

static bool send_ticket(struct sim *sim, struct job *job)
{
    struct pd_ticket ticket = {.boot = job->p_boot,
                               .epoch = PD_KVX_EPOCH,
                               .generation = job->id,
                               .tokens = job->tokens,
                               .block_size = BLOCK_SIZE,
                               .fingerprint = fingerprint()};

    if (!job->to_send)
        return false;
    job->to_send = false;
    if (!take_blocks(sim, job->d->pool, job->blocks, job->id, job->d_block))
        return true;
    strcpy(ticket.instance, job->p->name);
    strcpy(ticket.address, job->p->name);
    job->fetching = true;
    job->d_boot = job->d->boot;
    assert_int_equal(pd_reader_fetch(job->d->reader, sim->now, job->id, &ticket), PD_OK);
    return true;
}

static bool say_wanted(struct sim *sim, struct job *job)
{
    int32_t *blocks;

    if (!job->to_want)
        return false;
    job->to_want = false;
    if (!job->fetching)
        return true;
    job->from = draw(sim, 3) ? 0 : (uint32_t)draw(sim, job->blocks + 1);
    blocks = malloc(sizeof(job->d_block));
    memcpy(blocks, job->d_block, sizeof(job->d_block));
    pd_reader_want(job->d->reader, sim->now, job->id, job->from, blocks, job->blocks);
    return true;
}

/* The dispatcher's cancel, or the engine's own trouble: at any moment, at either end. */
static bool cancel(struct sim *sim, struct job *job)
{
    if (!job->used || draw(sim, sim->quiet ? 4 : 60))
        return false;
    job->to_send = false;
    if (job->p_alive && !job->revoked && (sim->quiet || draw(sim, 3))) {
        job->revoked = true;
        pd_source_revoke(job->p->source, sim->now, job->id, "cancelled");
    }
    if (job->fetching && (sim->quiet || draw(sim, 3)))
        pd_reader_cancel(job->d->reader, sim->now, job->id);
    return true;
}

static bool end_decode(struct sim *sim, struct job *job)
{
    if (!job->decoding || draw(sim, 4))
        return false;
    for (uint32_t i = job->from; i < job->blocks; i++)
        CHECK(job->d->pool->tag[job->d_block[i]] == tag_of(job->id, i),
              "a block changes while its owner decodes");
    job->decoding = false;
    free_blocks(job->d->pool, job->d_block, job->blocks, job->id);
    return true;
}

static bool step_job(struct sim *sim, struct job *job)
{
    bool (*const steps[])(struct sim *, struct job *) = {
        submit, compute, compute, send_ticket, say_wanted, end_decode, cancel};

    if (job->used && !job->p_alive && !job->to_send && !job->fetching && !job->decoding)
        job->used = job->to_want = false;
    if (!job->used)
        return submit(sim, job);
    if (stopped(job->p) || stopped(job->d))
        return false;
    return steps[1 + draw(sim, 6)](sim, job);
}

/* A neighbour takes a free block, writes its own tag, and later finds it untouched. */
static bool neighbour(struct sim *sim, struct pool *pool)
{
    uint32_t block = (uint32_t)draw(sim, BLOCKS);
    uint64_t mine = UINT64_MAX - block;

    if (pool->owner[block] == mine) {
        CHECK(pool->tag[block] == mine, "a neighbour's block was written");
        pool->owner[block] = 0;
        return true;
    }
    if (pool->owner[block] != 0 || sim->quiet)
        return false;
    atomic_fetch_add(&pool->words[block], 1);
    pool->owner[block] = mine;
    pool->tag[block] = mine;
    return true;
}

/* ---- a history ------------------------------------------------------------------------------ */

static void tick(struct sim *sim)
{
    for (size_t i = 0; i < SOURCES; i++)
        if (!stopped(&sim->sources[i]))
            pd_source_tick(sim->sources[i].source, sim->now);
    for (size_t i = 0; i < READERS; i++)
        if (!stopped(&sim->readers[i]))
            pd_reader_tick(sim->readers[i].reader, sim->now);
    sim->next_tick = sim->now + 20 * ms;
}

static void restart_somebody(struct sim *sim)
{
    struct sim_node *node;

    if (sim->pool_count == POOLS)
        return;
    if (draw(sim, 2)) {
        node = &sim->sources[draw(sim, SOURCES)];
        kill_source(node);
        start_source(node);
    } else {
        node = &sim->readers[draw(sim, READERS)];
        kill_reader(node);
        start_reader(node);
    }
}

static void misfortune(struct sim *sim)
{
    uint64_t what = draw(sim, 100);
    struct stream *stream = some_stream(sim);

    if (what < 8 && stream && stream->established)
        cut_stream(stream, draw(sim, 3) == 0);
    else if (what < 10)
        restart_somebody(sim);
    else if (what < 12) /* everybody is late */
        sim->now += draw(sim, 150) * ms;
    else if (what < 14) /* SIGSTOP, and SIGCONT before or after the others have given it up */
        sim->sources[draw(sim, SOURCES)].frozen = sim->now + draw(sim, 400) * ms;
    else if (what < 18)
        sim->readers[draw(sim, READERS)].frozen = sim->now + draw(sim, 400) * ms;
    else if (what < 22)
        pd_source_forget_owner(sim->sources[draw(sim, SOURCES)].source, draw(sim, 3));
}

/* The first thing out of many that can happen. */
static void step(struct sim *sim)
{
    sim->now += draw(sim, 2 * ms);
    if (sim->now >= sim->next_tick)
        tick(sim);
    if (!sim->quiet && draw(sim, 8) == 0)
        misfortune(sim);
    for (int tries = 0; tries < 40; tries++) {
        struct stream *stream = some_stream(sim);
        struct sim_node *node =
            draw(sim, 2) ? &sim->sources[draw(sim, SOURCES)] : &sim->readers[draw(sim, READERS)];
        bool done = false;

        switch (draw(sim, 6)) {
        case 0:
        case 1:
            done = stream && step_stream(sim, stream);
            break;
        case 2:
            done = step_read(sim, &sim->reads[draw(sim, 8)]);
            break;
        case 3:
            done = neighbour(sim, node->pool);
            break;
        default:
            done = step_job(sim, &sim->jobs[draw(sim, JOBS)]);
            break;
        }
        if (done)
            break;
    }
}

static bool pool_is_free(const struct pool *pool)
{
    for (size_t i = 0; i < BLOCKS; i++)
        if (pool->owner[i] != 0)
            return false;
    return true;
}

/* Nothing is left over anywhere. */
static bool at_rest(const struct sim *sim)
{
    bool rest = true;

    for (size_t i = 0; i < JOBS; i++)
        rest = rest && !sim->jobs[i].used;
    for (size_t i = 0; i < READS; i++)
        rest = rest && !sim->reads[i].read;
    for (size_t i = 0; i < SOURCES; i++)
        rest = rest && pd_source_tickets(sim->sources[i].source) == 0 &&
               pool_is_free(sim->sources[i].pool);
    for (size_t i = 0; i < READERS; i++)
        rest = rest && pd_reader_fetches(sim->readers[i].reader) == 0 &&
               pool_is_free(sim->readers[i].pool);
    return rest;
}

static struct sim *begin(uint64_t seed, bool shm)
{
    struct sim *sim = calloc(1, sizeof(*sim));

    sim->random = seed;
    sim->shm = shm;
    for (int i = 0; i < SOURCES; i++) {
        sim->sources[i] = (struct sim_node){.sim = sim, .index = i};
        snprintf(sim->sources[i].name, sizeof(sim->sources[i].name), "p%d", i);
        start_source(&sim->sources[i]);
    }
    for (int i = 0; i < READERS; i++) {
        sim->readers[i] = (struct sim_node){.sim = sim, .index = i};
        snprintf(sim->readers[i].name, sizeof(sim->readers[i].name), "d%d", i);
        start_reader(&sim->readers[i]);
    }
    return sim;
}

static void end(struct sim *sim)
{
    for (size_t i = 0; i < SOURCES; i++)
        kill_source(&sim->sources[i]);
    for (size_t i = 0; i < READERS; i++)
        kill_reader(&sim->readers[i]);
    free(sim);
}

struct totals {
    uint64_t completed, closed, released, streams, words_moved;
};

static void run_history(uint64_t seed, bool shm, struct totals *totals)
{
    struct sim *sim = begin(seed, shm);

    current_seed = seed;
    for (int i = 0; i < STEPS; i++)
        step(sim);
    sim->quiet = true;
    for (int i = 0; i < 20 * STEPS && !at_rest(sim); i++)
        step(sim);
    CHECK(at_rest(sim), "something is left over");
    totals->completed += sim->completed;
    totals->closed += sim->closed;
    totals->released += sim->released;
    totals->streams += sim->stream_count;
    for (size_t i = 0; i < READERS; i++)
        totals->words_moved += pd_reader_counters(sim->readers[i].reader)->words_moved;
    for (size_t i = 0; i < SOURCES; i++)
        CHECK(pd_source_counters(sim->sources[i].source)->release_deadlines == 0,
              "honest workers have needed the last resort");
    end(sim);
}

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void run_histories(bool shm)
{
    uint64_t first = from_environment("KVX_SEED", 1);
    uint64_t count = getenv("KVX_SEED") ? 1 : from_environment("KVX_HISTORIES", HISTORIES);
    struct totals totals = {0};

    for (uint64_t seed = first; seed < first + count; seed++)
        run_history(seed, shm, &totals);
    print_message("%llu histories: %llu fetches complete, %llu closed, %llu tickets released, "
                  "%llu links, %llu moved words\n",
                  (unsigned long long)count, (unsigned long long)totals.completed,
                  (unsigned long long)totals.closed, (unsigned long long)totals.released,
                  (unsigned long long)totals.streams, (unsigned long long)totals.words_moved);
    /* A world in which nothing works, or nothing goes wrong, would prove nothing. */
    if (count >= 100) {
        assert_true(totals.completed > 10 * count);
        assert_true(totals.closed > 5 * count);
        assert_true(!shm || totals.words_moved > 0);
    }
}

static void histories_with_a_fence(void **state)
{
    (void)state;
    run_histories(false);
}

static void histories_with_shared_memory(void **state)
{
    (void)state;
    run_histories(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(histories_with_a_fence),
        cmocka_unit_test(histories_with_shared_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
