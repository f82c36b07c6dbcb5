#include "t/kvx/fabric.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "worker/base/clock.h"
#include "worker/kvx/list.h"

enum { WINDOW = 2 };

enum step { FREE, POSTED, SAMPLED };

struct wire_read {
    enum step step;
    const struct pd_read *read;
    uint8_t *bytes; /* sampled */
    uint64_t due;
};

struct reader_end;

struct source_end {
    struct pd_source_end base;
    uint64_t key;
    struct reader_end *peer;
    bool met;          /* it has had a reader */
    uint64_t lost_due; /* its reader has gone */
    struct pd_list in_transport, in_keys;
};

struct reader_end {
    struct pd_reader_end base;
    struct pd_layout source;
    struct source_end *peer;
    bool connected;
    uint64_t due;         /* of connecting, or of hearing that the source's end is gone */
    struct pd_mapped map; /* "simshm": the source's pool */
    struct wire_read reads[WINDOW];
    struct pd_list in_transport;
};

struct wire {
    struct pd_transport base;
    bool words;
    struct pd_list sources, readers;
};

/* Between threads, in real time: a few microseconds a step. */
static uint64_t short_delay(void)
{
    static _Atomic uint64_t count;

    return (atomic_fetch_add(&count, 1) * 7919 % 61) * 1000;
}

struct kvx_fabric kvx_fabric = {.now = pd_clock_ns, .delay = short_delay};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pd_list keys = {&keys, &keys};
static uint64_t last_key;
static unsigned reads_under_way;

unsigned kvx_fabric_reads(void)
{
    return reads_under_way;
}

static void call_on(struct pd_transport *transport, uint64_t when)
{
    if (kvx_fabric.due)
        kvx_fabric.due(transport->loop, when);
    else
        pd_loop_interrupt(transport->loop);
}

static uint64_t later(struct pd_transport *transport)
{
    uint64_t due = kvx_fabric.now() + kvx_fabric.delay();

    call_on(transport, due);
    return due;
}

/* Memory of one host cannot be parted. */
static bool passes(const struct wire *a, const struct pd_transport *b)
{
    return a->words || !kvx_fabric.passes || kvx_fabric.passes(a->base.loop, b->loop);
}

/* ---- source ---------------------------------------------------------------------------------- */

static int serve(struct pd_transport *transport, uint64_t link, char address[PD_KV_ADDRESS],
                 uint64_t *key, struct pd_source_end **out, struct pd_error *error)
{
    struct wire *wire = (struct wire *)transport;
    struct source_end *end = calloc(1, sizeof(*end));

    (void)error;
    strcpy(address, transport->kind->name);
    end->base = (struct pd_source_end){transport, link};
    pthread_mutex_lock(&lock);
    *key = end->key = ++last_key;
    pd_list_append(&wire->sources, &end->in_transport);
    pd_list_append(&keys, &end->in_keys);
    pthread_mutex_unlock(&lock);
    *out = &end->base;
    return PD_OK;
}

static void withdraw(struct pd_source_end *base)
{
    struct source_end *end = (struct source_end *)base;

    pthread_mutex_lock(&lock);
    if (end->peer) {
        end->peer->peer = NULL;
        end->peer->due = later(end->peer->base.transport);
    }
    pd_list_remove(&end->in_transport);
    pd_list_remove(&end->in_keys);
    pthread_mutex_unlock(&lock);
    free(end);
}

/* ---- reader ---------------------------------------------------------------------------------- */

static struct source_end *end_by_key(uint64_t key)
{
    for (struct pd_list *at = keys.next; at != &keys; at = at->next) {
        struct source_end *end = PD_OWNER(at, struct source_end, in_keys);

        if (end->key == key && !end->met)
            return end;
    }
    return NULL;
}

static int map_source(struct reader_end *end, const struct pd_pool *pool, struct pd_error *error)
{
    if (pd_mapped_open(&end->map, pool->readers_fd, pool->layout.ranks, pool->layout.total,
                       PROT_READ))
        return PD_OK;
    return pd_fail(error, PD_IO, "the source's pool cannot be mapped");
}

static int wire_connect(struct pd_transport *transport, uint64_t link,
                        const struct pd_source_hello *hello, struct pd_reader_end **out,
                        struct pd_error *error)
{
    struct wire *wire = (struct wire *)transport;
    struct reader_end *end = calloc(1, sizeof(*end));
    int status = PD_OK;

    end->base = (struct pd_reader_end){transport, link, 1};
    end->source = hello->pool;
    pthread_mutex_lock(&lock);
    end->peer = end_by_key(hello->link_key);
    if (end->peer && wire->words)
        status = map_source(end, end->peer->base.transport->pool, error);
    if (status == PD_OK) {
        if (end->peer) {
            end->peer->peer = end;
            end->peer->met = true;
        }
        end->due = later(transport);
        pd_list_append(&wire->readers, &end->in_transport);
        *out = &end->base;
    }
    pthread_mutex_unlock(&lock);
    if (status != PD_OK)
        free(end);
    return status;
}

static int post(struct pd_reader_end *base, const struct pd_read *read)
{
    struct reader_end *end = (struct reader_end *)base;
    struct wire *wire = (struct wire *)base->transport;
    int status = PD_FULL;

    if (kvx_fabric.post_fails && kvx_fabric.post_fails())
        return PD_IO;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < WINDOW && status == PD_FULL; i++)
        if (end->reads[i].step == FREE) {
            struct pd_transport *sampler =
                wire->words || !end->peer ? base->transport : end->peer->base.transport;

            end->reads[i] = (struct wire_read){POSTED, read, malloc(read->bytes), later(sampler)};
            reads_under_way++;
            status = PD_OK;
        }
    pthread_mutex_unlock(&lock);
    return status;
}

static uint64_t word(struct pd_reader_end *base, uint32_t block)
{
    struct reader_end *end = (struct reader_end *)base;
    const _Atomic uint64_t *words =
        (const _Atomic uint64_t *)(const void *)(end->map.base + end->source.words_offset);

    return pd_pool_word_after_copy(&words[block]);
}

static void done(struct wire_read *read)
{
    if (read->step == FREE)
        return;
    free(read->bytes);
    *read = (struct wire_read){FREE, NULL, NULL, 0};
    reads_under_way--;
}

static void wire_disconnect(struct pd_reader_end *base)
{
    struct reader_end *end = (struct reader_end *)base;

    pthread_mutex_lock(&lock);
    if (end->peer) {
        end->peer->peer = NULL;
        end->peer->lost_due = later(end->peer->base.transport);
    }
    for (size_t i = 0; i < WINDOW; i++)
        done(&end->reads[i]);
    pd_list_remove(&end->in_transport);
    pthread_mutex_unlock(&lock);
    pd_mapped_close(&end->map);
    free(end);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* What a step has to tell the state machines, once the lock is let go. */
struct told {
    enum { NOTHING, SOURCE_LOST, CONNECTED, LANDED, READER_LOST } what;
    uint64_t link;
    const struct pd_read *read;
    const char *why;
};

/* Calls `look` for every block of a read, with the end of the wire that it is asked about. */
static void each_block(const struct pd_read *read, const struct pd_layout *layout, bool source,
                       const struct pd_loop *loop,
                       void (*look)(const struct pd_loop *loop, uint64_t generation,
                                    uint32_t block))
{
    uint32_t first, count;

    if (!look)
        return;
    for (size_t i = 0; i < read->count; i++) {
        const struct pd_range *range = &read->ranges[i];

        if (pd_layout_locate(layout, source ? range->source : range->destination, range->length,
                             &first, &count))
            for (uint32_t n = 0; n < count; n++)
                look(loop, read->generation, first + n);
    }
}

static void sample(struct wire_read *read, const uint8_t *pool)
{
    uint8_t *to = read->bytes;

    for (size_t i = 0; i < read->read->count; i++) {
        memcpy(to, pool + read->read->ranges[i].source, read->read->ranges[i].length);
        to += read->read->ranges[i].length;
    }
    read->step = SAMPLED;
}

static bool may_read(struct pd_transport *source, uint64_t link, const struct pd_read *read)
{
    for (size_t i = 0; i < read->count; i++) {
        const struct pd_range *range = &read->ranges[i];
        uint32_t first, count;

        if (!pd_layout_locate(&source->pool->layout, range->source, range->length, &first,
                              &count) ||
            !source->events.may_read(source->events.context, link, read->generation, first, count))
            return false;
    }
    return true;
}

/* The source's part: it sends what was asked for, and hears that its reader has gone. */
static bool source_step(struct wire *wire, struct source_end *end, uint64_t now, struct told *told)
{
    struct pd_transport *transport = &wire->base;

    if (end->met && !end->peer) {
        if (now < end->lost_due)
            return true;
        end->lost_due = UINT64_MAX; /* told once */
        *told = (struct told){SOURCE_LOST, end->base.link, NULL, "the reader's end is gone"};
        return true;
    }
    if (wire->words || !end->peer || !passes(wire, end->peer->base.transport))
        return false;
    for (size_t i = 0; i < WINDOW; i++) {
        struct wire_read *read = &end->peer->reads[i];

        if (read->step != POSTED)
            continue;
        if (now >= read->due) {
            if (!may_read(transport, end->base.link, read->read)) {
                *told = (struct told){SOURCE_LOST, end->base.link, NULL,
                                      "the reader asks for what it may not read"};
                return true;
            }
            each_block(read->read, &transport->pool->layout, true, transport->loop,
                       kvx_fabric.sampling);
            sample(read, transport->pool->base);
            read->due = later(end->peer->base.transport);
        }
        return true;
    }
    return false;
}

static void land(struct wire *wire, struct reader_end *end, struct wire_read *read,
                 struct told *told)
{
    const uint8_t *from = read->bytes;

    each_block(read->read, &wire->base.pool->layout, false, wire->base.loop, kvx_fabric.landing);
    for (size_t i = 0; i < read->read->count; i++) {
        memcpy(wire->base.pool->base + read->read->ranges[i].destination, from,
               read->read->ranges[i].length);
        from += read->read->ranges[i].length;
    }
    *told = (struct told){LANDED, end->base.link, read->read, NULL};
    done(read);
}

/* The reader's part: a mapping can be copied from until the reader hears that the source's end is
 * gone. True if it waits for something. */
static bool reader_step(struct wire *wire, struct reader_end *end, uint64_t now, struct told *told)
{
    if (end->peer && !passes(wire, end->peer->base.transport))
        return true;
    if (!end->peer && now < end->due && !(wire->words && end->connected))
        return true;
    if (!end->peer && now >= end->due) {
        end->due = UINT64_MAX; /* told once */
        *told = (struct told){READER_LOST, end->base.link, NULL, "the source's end is gone"};
        return true;
    }
    if (!end->connected) {
        if (now >= end->due) {
            end->connected = true;
            *told = (struct told){CONNECTED, end->base.link, NULL, NULL};
        }
        return true;
    }
    for (size_t i = 0; i < WINDOW; i++) {
        struct wire_read *read = &end->reads[i];

        if (read->step == FREE || (read->step == POSTED && !wire->words))
            continue;
        if (now < read->due)
            return true;
        if (read->step == SAMPLED) {
            land(wire, end, read, told);
        } else {
            sample(read, end->map.base);
            read->due = later(&wire->base);
        }
        return true;
    }
    return false;
}

static void tell(const struct pd_transport *transport, const struct told *told)
{
    const struct pd_transport_events *events = &transport->events;

    switch (told->what) {
    case SOURCE_LOST:
        events->source_lost(events->context, told->link, told->why);
        break;
    case CONNECTED:
        events->connected(events->context, told->link);
        break;
    case LANDED:
        events->landed(events->context, told->link, told->read);
        break;
    case READER_LOST:
        events->reader_lost(events->context, told->link, told->why);
        break;
    case NOTHING:
        break;
    }
}

/* At most one step that has something to tell: ends may be gone after it. */
static bool work(struct pd_transport *transport)
{
    struct wire *wire = (struct wire *)transport;
    struct told told = {.what = NOTHING};
    uint64_t now = kvx_fabric.now();
    bool waits = false;

    pthread_mutex_lock(&lock);
    for (struct pd_list *at = wire->sources.next; at != &wire->sources && !told.what; at = at->next)
        waits |= source_step(wire, PD_OWNER(at, struct source_end, in_transport), now, &told);
    for (struct pd_list *at = wire->readers.next; at != &wire->readers && !told.what; at = at->next)
        waits |= reader_step(wire, PD_OWNER(at, struct reader_end, in_transport), now, &told);
    pthread_mutex_unlock(&lock);
    if (told.what && kvx_fabric.due)
        kvx_fabric.due(transport->loop, now); /* there may be more */
    tell(transport, &told);
    return waits;
}

static void destroy(struct pd_transport *transport)
{
    free(transport);
}

/* ---- the table ------------------------------------------------------------------------------- */

static const struct pd_transport_kind sim_kind = {
    .name = "sim",
    .window = WINDOW,
    .serve = serve,
    .withdraw = withdraw,
    .connect = wire_connect,
    .read = post,
    .disconnect = wire_disconnect,
    .work = work,
    .destroy = destroy,
};

static const struct pd_transport_kind simshm_kind = {
    .name = "simshm",
    .window = WINDOW,
    .words = true,
    .serve = serve,
    .withdraw = withdraw,
    .connect = wire_connect,
    .read = post,
    .word = word,
    .disconnect = wire_disconnect,
    .work = work,
    .destroy = destroy,
};

static int create(const struct pd_transport_options *options, const struct pd_transport_kind *kind,
                  struct pd_transport **out, struct pd_error *error)
{
    struct wire *wire = calloc(1, sizeof(*wire));

    (void)error;
    wire->base = (struct pd_transport){
        .kind = kind, .loop = options->loop, .pool = options->pool, .events = options->events};
    if (kind->words && options->pool->why_not_shared[0] != '\0')
        wire->base.why_not_served = options->pool->why_not_shared;
    wire->words = kind->words;
    pd_list_init(&wire->sources);
    pd_list_init(&wire->readers);
    *out = &wire->base;
    return PD_OK;
}

static int create_sim(const struct pd_transport_options *options, struct pd_transport **out,
                      struct pd_error *error)
{
    return create(options, &sim_kind, out, error);
}

static int create_simshm(const struct pd_transport_options *options, struct pd_transport **out,
                         struct pd_error *error)
{
    return create(options, &simshm_kind, out, error);
}

const struct pd_transport_maker pd_transport_makers[] = {
    {"simshm", true, false, false, create_simshm},
    {"sim", false, false, false, create_sim},
    {NULL, false, false, false, NULL},
};
