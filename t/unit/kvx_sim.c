#include "t/unit/kvx_sim.h"

uint64_t kvx_seed;

/* splitmix64 */
uint64_t kvx_draw(struct sim *sim, uint64_t below)
{
    uint64_t z = (sim->random += 0x9e3779b97f4a7c15u);

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

uint64_t kvx_tag_of(uint64_t id, uint32_t index)
{
    return id << 8 | (index + 1);
}

struct pd_layout kvx_sim_layout(void)
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

/* ---- streams --------------------------------------------------------------------------------- */

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
    KVX_CHECK(bytes != NULL, "out of memory");
    if (stream->cut) {
        free(bytes);
        return;
    }
    KVX_CHECK(queue->count < QUEUE, "a control queue overflows");
    queue->at[(queue->first + queue->count++) % QUEUE] = (struct parcel){bytes, length};
}

void kvx_cut_stream(struct stream *stream, bool silent)
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

/* ---- the source's world ---------------------------------------------------------------------- */

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
    KVX_CHECK(stream->p_open, "the source sends on a stream that is closed");
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
    KVX_CHECK(stream->p_end, "an end is destroyed twice");
    stream->p_end = false;
    stream->d_data_lost = stream->d_end || stream->connecting;
}

void kvx_free_blocks(struct pool *pool, const int32_t *blocks, uint32_t count, uint64_t owner)
{
    for (uint32_t i = 0; i < count; i++) {
        KVX_CHECK(pool->owner[blocks[i]] == owner, "a block is freed that is another's");
        pool->owner[blocks[i]] = 0;
    }
}

static void p_released(void *context, uint64_t generation)
{
    struct sim_node *p = context;
    struct job *job = job_of(p->sim, generation);

    if (p->dead)
        return;
    KVX_CHECK(job && job->p == p && job->p_alive && job->p_boot == p->boot,
              "a ticket is released that is not offered");
    job->p_alive = false;
    p->sim->released++;
    kvx_free_blocks(p->pool, job->p_block, job->blocks, generation);
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

/* ---- the reader's world ---------------------------------------------------------------------- */

static uint64_t d_next_link(void *context)
{
    return ++((struct sim_node *)context)->next_link;
}

static void d_open(void *context, uint64_t link, const char *address)
{
    struct sim_node *d = context;
    struct sim *sim = d->sim;
    struct stream *stream = &sim->streams[sim->stream_count++];

    KVX_CHECK(sim->stream_count < STREAMS, "too many streams");
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
    KVX_CHECK(stream->d_open, "the reader sends on a stream that is closed");
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

    KVX_CHECK(stream->d_end, "a read is posted on an end that is not connected");
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

    KVX_CHECK(job && job->fetching && count == job->tokens && prompt[0] == (uint32_t)fetch,
              "a claim is answered with another prompt");
    job->to_want = true;
}

static void d_sampled(void *context, uint64_t fetch, uint32_t token, int finish)
{
    (void)context;
    (void)finish;
    KVX_CHECK(token == (uint32_t)fetch + 1, "the first token is another's");
}

static void d_complete(void *context, uint64_t fetch, uint32_t token, int finish, uint32_t cached,
                       const struct pd_kvx_stats *stats)
{
    struct sim_node *d = context;
    struct job *job = job_of(d->sim, fetch);

    (void)finish;
    (void)cached;
    (void)stats;
    KVX_CHECK(job && job->fetching, "a fetch ends twice");
    KVX_CHECK(token == (uint32_t)fetch + 1, "the first token is another's");
    for (uint32_t i = job->from; i < job->blocks; i++)
        KVX_CHECK(d->pool->tag[job->d_block[i]] == kvx_tag_of(fetch, i),
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
    KVX_CHECK(job && job->fetching, "a fetch ends twice");
    job->fetching = false;
    d->sim->closed++;
    kvx_free_blocks(d->pool, job->d_block, job->blocks, fetch);
}

/* ---- lives ----------------------------------------------------------------------------------- */

static struct pool *new_pool(struct sim *sim)
{
    KVX_CHECK(sim->pool_count < POOLS, "too many pools");
    return &sim->pools[sim->pool_count++];
}

struct pd_fingerprint kvx_sim_fingerprint(void)
{
    struct pd_fingerprint print;

    memset(&print, 1, sizeof(print));
    return print;
}

void kvx_start_source(struct sim_node *p)
{
    struct pd_source_world world = {p,          p_send,     p_close,       p_serve,
                                    p_withdraw, p_released, p_link_changed};
    struct pd_source_options options = {
        .instance = p->name,
        .epoch = PD_KVX_EPOCH,
        .fingerprint = kvx_sim_fingerprint(),
        .layout = kvx_sim_layout(),
        .max_tickets = 64,
        .max_links = 16,
        .claim_ns = 3000 * kvx_ms,
        .silence_ns = 200 * kvx_ms,
        .release_ns = 4000 * kvx_ms,
    };

    p->pool = new_pool(p->sim);
    options.boot = ++p->boot;
    options.words = p->pool->words;
    assert_int_equal(pd_source_create(&options, &world, &p->source), PD_OK);
}

void kvx_start_reader(struct sim_node *d)
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
        .fingerprint = kvx_sim_fingerprint(),
        .layout = kvx_sim_layout(),
        .max_tokens = PROMPT_BLOCKS * BLOCK_SIZE,
        .max_fetches = 64,
        .max_links = 8,
        .silence_ns = 200 * kvx_ms,
        .stall_ns = 1000 * kvx_ms,
    };

    d->pool = new_pool(d->sim);
    options.boot = ++d->boot;
    assert_int_equal(pd_reader_create(&options, &world, &d->reader), PD_OK);
}

/* SIGKILL: streams are cut, ends are gone; the memory stays for those who have it mapped. */
void kvx_kill_source(struct sim_node *p)
{
    for (size_t i = 0; i < p->sim->stream_count; i++) {
        struct stream *stream = &p->sim->streams[i];

        if (stream->p != p || !stream->established || stream->p_boot != p->boot)
            continue;
        kvx_cut_stream(stream, false);
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

void kvx_kill_reader(struct sim_node *d)
{
    for (size_t i = 0; i < d->sim->stream_count; i++) {
        struct stream *stream = &d->sim->streams[i];

        if (stream->d != d || stream->d_boot != d->boot)
            continue;
        kvx_cut_stream(stream, false);
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

/* ---- what may happen next -------------------------------------------------------------------- */

static bool d_lives(const struct stream *stream)
{
    return stream->d_open && stream->d_boot == stream->d->boot;
}

bool kvx_stopped(const struct sim_node *node)
{
    return node->sim->now < node->frozen;
}

static bool p_lives(const struct stream *stream)
{
    return stream->established && stream->p_open && stream->p_boot == stream->p->boot;
}

static void establish(struct sim *sim, struct stream *stream)
{
    if (kvx_draw(sim, 10) == 0) {
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

    KVX_CHECK(pd_to_source_unpack(parcel.bytes, parcel.length, &message, NULL) == PD_OK,
              "a message does not unpack");
    free(parcel.bytes);
    pd_source_message(stream->p->source, sim->now, stream->p_link, &message);
}

static void deliver_to_reader(struct sim *sim, struct stream *stream)
{
    struct parcel parcel = take(&stream->to_reader);
    struct pd_from_source message;

    KVX_CHECK(pd_from_source_unpack(parcel.bytes, parcel.length, PROMPT_BLOCKS * BLOCK_SIZE,
                                    &message, NULL) == PD_OK,
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
    if (!p_lives(stream) || kvx_stopped(stream->p))
        return false;
    if (stream->to_source.count > 0 && kvx_draw(sim, 2)) {
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
    if (!d_lives(stream) || kvx_stopped(stream->d))
        return false;
    if (stream->to_reader.count > 0 && kvx_draw(sim, 2)) {
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
bool kvx_step_stream(struct sim *sim, struct stream *stream)
{
    if (!stream->established) {
        if (!d_lives(stream) || stream->cut || kvx_stopped(stream->d) || kvx_stopped(stream->p))
            return false;
        establish(sim, stream);
        return true;
    }
    return kvx_draw(sim, 2) ? step_source_side(sim, stream) : step_reader_side(sim, stream);
}

/* The first stream from a random one on that has an open end. */
struct stream *kvx_some_stream(struct sim *sim)
{
    size_t start = sim->stream_count ? kvx_draw(sim, sim->stream_count) : 0;

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
        struct pd_layout layout = kvx_sim_layout();
        uint32_t first, count;

        KVX_CHECK(pd_layout_locate(&layout, range->source, range->length, &first, &count),
                  "a read of what are no blocks");
        KVX_CHECK(stream->shm || pd_source_may_read(stream->p->source, stream->p_link,
                                                    read->read->generation, first, count),
                  "an honest reader asks for what it may not read");
        for (uint32_t n = 0; n < count; n++) {
            read->value[read->count] = stream->p_pool->tag[first + n];
            read->into[read->count++] = (uint32_t)(range->destination / layout.block_bytes) + n;
        }
    }
    KVX_CHECK(job && job->d == stream->d, "a read of no job");
    read->sampled = true;
    return true;
}

bool kvx_step_read(struct sim *sim, struct read *read)
{
    struct stream *stream = read->stream;
    const struct pd_read *which = read->read;

    if (!which || read->broken || kvx_stopped(stream->d) ||
        (!stream->shm && kvx_stopped(stream->p)))
        return false;
    if (!read->sampled)
        return sample(sim, read);
    for (uint32_t i = 0; i < read->count; i++) {
        KVX_CHECK(stream->d->pool->owner[read->into[i]] == read->fetch,
                  "a late byte of fetch %llu lands in a block of %llu",
                  (unsigned long long)read->fetch,
                  (unsigned long long)stream->d->pool->owner[read->into[i]]);
        stream->d->pool->tag[read->into[i]] = read->value[i];
    }
    read->read = NULL;
    pd_reader_landed(stream->d->reader, sim->now, stream->d_link, which);
    return true;
}
