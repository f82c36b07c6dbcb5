#include "t/unit/double_kvx.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include <unistd.h>

#include "worker/base/clock.h"

struct fetch;

struct offer {
    LIST_ENTRY(offer) link;
    struct pd_kvx *kvx;
    uint64_t generation, owner;
    int32_t *blocks, *prompt;
    size_t block_count;
    uint32_t tokens, ready;
    struct pd_kvx_first first;
    int told;
    bool complete, revoked;
    uint8_t secret[PD_KVX_SECRET];
    struct fetch *reader;
};

struct fetch {
    LIST_ENTRY(fetch) link;
    struct pd_kvx *kvx;
    uint64_t id;
    struct pd_ticket ticket;
    struct offer *source;
    int32_t *blocks; /* set by want */
    size_t block_count, from, done;
    bool sampled, cancelled;
};

struct pd_kvx {
    LIST_ENTRY(pd_kvx) link;
    struct double_net *net;
    char instance[64];
    struct pd_kv_pool pool;
    uint8_t *memory;
    struct pd_export export;
    struct pd_kvx_callbacks callbacks;
};

struct double_net {
    pthread_mutex_t lock;
    LIST_HEAD(, offer) offers;
    LIST_HEAD(, fetch) fetches;
    LIST_HEAD(, pd_kvx) ends;
    int holds;
    bool lies;
    void (*change)(struct pd_kvx_first *first);
    struct double_counts counts;
};

/* ---- bytes ----------------------------------------------------------------------------------- */

static size_t block_bytes(const struct pd_kv_pool *pool)
{
    return 2 * (size_t)pool->block_size * (size_t)pool->head_dim * sizeof(float);
}

static uint8_t *block_at(const struct pd_kvx *kvx, int plane, int32_t block)
{
    return kvx->memory +
           ((size_t)plane * (size_t)kvx->pool.blocks + (size_t)block) * block_bytes(&kvx->pool);
}

static void read_block(const struct fetch *fetch, size_t index)
{
    const struct pd_kv_pool *pool = &fetch->kvx->pool;

    for (int plane = 0; plane < pool->layers * pool->kv_heads; plane++)
        memcpy(block_at(fetch->kvx, plane, fetch->blocks[index]),
               block_at(fetch->source->kvx, plane, fetch->source->blocks[index]),
               block_bytes(pool));
}

/* ---- ends, under the lock -------------------------------------------------------------------- */

static void end_offer(struct offer *offer)
{
    struct pd_kvx *kvx = offer->kvx;

    LIST_REMOVE(offer, link);
    kvx->net->counts.released++;
    kvx->callbacks.released(kvx->callbacks.engine, offer->generation);
    free(offer->blocks);
    free(offer->prompt);
    free(offer);
}

static void end_fetch(struct fetch *fetch)
{
    LIST_REMOVE(fetch, link);
    free(fetch->blocks);
    free(fetch);
}

static void close_fetch(struct fetch *fetch, const char *why)
{
    struct pd_kvx *kvx = fetch->kvx;

    kvx->net->counts.closed++;
    kvx->callbacks.closed(kvx->callbacks.engine, fetch->id, fetch->cancelled, why);
    if (fetch->source)
        end_offer(fetch->source);
    end_fetch(fetch);
}

/* ---- progress, under the lock ---------------------------------------------------------------- */

static struct offer *find_offer(struct double_net *net, const char *instance, uint64_t generation)
{
    struct offer *offer;

    LIST_FOREACH (offer, &net->offers, link) {
        if (offer->generation == generation && strcmp(offer->kvx->instance, instance) == 0)
            return offer;
    }
    return NULL;
}

static void claim(struct fetch *fetch)
{
    struct double_net *net = fetch->kvx->net;
    struct offer *offer = find_offer(net, fetch->ticket.instance, fetch->ticket.generation);
    const struct pd_kvx_callbacks *callbacks = &fetch->kvx->callbacks;

    if (!offer || offer->reader || offer->revoked ||
        memcmp(offer->secret, fetch->ticket.secret, sizeof(offer->secret)) != 0) {
        net->counts.refused++;
        close_fetch(fetch, "the ticket is gone");
        return;
    }
    offer->reader = fetch;
    fetch->source = offer;
    if (net->lies)
        offer->prompt[0] ^= 0x40000000;
    callbacks->claimed(callbacks->engine, fetch->id, (const uint32_t *)offer->prompt,
                       offer->tokens);
}

static void read_ready(struct fetch *fetch)
{
    struct offer *offer = fetch->source;
    size_t size = (size_t)fetch->kvx->pool.block_size;
    size_t whole = offer->complete ? offer->block_count : offer->ready / size;

    if (fetch->done < fetch->from)
        fetch->done = fetch->from;
    for (; fetch->done < whole; fetch->done++) {
        read_block(fetch, fetch->done);
        fetch->kvx->net->counts.blocks_read++;
    }
}

static void advance(struct fetch *fetch)
{
    struct double_net *net = fetch->kvx->net;
    const struct pd_kvx_callbacks *callbacks = &fetch->kvx->callbacks;
    struct offer *offer = fetch->source;
    struct pd_kvx_stats stats = {.chunks = 1, .transport = "double"};

    if (fetch->cancelled || (offer && offer->revoked)) {
        if (!(net->holds & DOUBLE_HOLD_END))
            close_fetch(fetch, fetch->cancelled ? "cancelled" : "the source gave up");
        return;
    }
    if (!offer) {
        if (!(net->holds & DOUBLE_HOLD_CLAIM))
            claim(fetch);
        return;
    }
    if (!fetch->blocks)
        return;
    if (offer->complete && !fetch->sampled) {
        fetch->sampled = true;
        callbacks->sampled(callbacks->engine, fetch->id, &offer->first);
    }
    if (net->holds & DOUBLE_HOLD_DATA)
        return;
    read_ready(fetch);
    if (!offer->complete)
        return;
    net->counts.completed++;
    callbacks->complete(callbacks->engine, fetch->id, &offer->first, &stats);
    end_offer(offer);
    end_fetch(fetch);
}

static void pump(struct double_net *net)
{
    struct fetch *fetch, *next_fetch;
    struct offer *offer, *next_offer;

    for (fetch = LIST_FIRST(&net->fetches); fetch; fetch = next_fetch) {
        next_fetch = LIST_NEXT(fetch, link);
        advance(fetch);
    }
    for (offer = LIST_FIRST(&net->offers); offer; offer = next_offer) {
        next_offer = LIST_NEXT(offer, link);
        if (offer->revoked && !offer->reader && !(net->holds & DOUBLE_HOLD_END))
            end_offer(offer);
    }
}

/* ---- the net --------------------------------------------------------------------------------- */

struct double_net *double_net_create(void)
{
    struct double_net *net = calloc(1, sizeof(*net));

    pthread_mutex_init(&net->lock, NULL);
    return net;
}

void double_net_destroy(struct double_net *net)
{
    assert_true(LIST_EMPTY(&net->offers));
    assert_true(LIST_EMPTY(&net->fetches));
    pthread_mutex_destroy(&net->lock);
    free(net);
}

void double_net_hold(struct double_net *net, int holds)
{
    pthread_mutex_lock(&net->lock);
    net->holds = holds;
    pump(net);
    pthread_mutex_unlock(&net->lock);
}

void double_net_change(struct double_net *net, void (*change)(struct pd_kvx_first *first))
{
    pthread_mutex_lock(&net->lock);
    net->change = change;
    pthread_mutex_unlock(&net->lock);
}

void double_net_lie(struct double_net *net, bool lies)
{
    pthread_mutex_lock(&net->lock);
    net->lies = lies;
    pthread_mutex_unlock(&net->lock);
}

void double_net_cut(struct double_net *net)
{
    struct fetch *fetch, *next;

    pthread_mutex_lock(&net->lock);
    for (fetch = LIST_FIRST(&net->fetches); fetch; fetch = next) {
        next = LIST_NEXT(fetch, link);
        close_fetch(fetch, "the link is lost");
    }
    pthread_mutex_unlock(&net->lock);
}

struct double_counts double_net_counts(struct double_net *net)
{
    struct double_counts counts;

    pthread_mutex_lock(&net->lock);
    counts = net->counts;
    pthread_mutex_unlock(&net->lock);
    return counts;
}

void double_net_wait(struct double_net *net, bool (*yes)(const struct double_counts *counts))
{
    uint64_t end = pd_clock_ns() + UINT64_C(10000000000);
    struct double_counts counts;

    for (counts = double_net_counts(net); !yes(&counts); counts = double_net_counts(net)) {
        if (pd_clock_ns() > end)
            fail_msg("the hand-off does not get there");
        usleep(1000);
    }
}

/* ---- the room's functions -------------------------------------------------------------------- */

struct pd_kvx *double_kvx_create(struct double_net *net, const char *instance,
                                 const struct pd_kv_pool *pool,
                                 const struct pd_kvx_callbacks *callbacks)
{
    struct pd_kvx *kvx = calloc(1, sizeof(*kvx));

    kvx->net = net;
    kvx->pool = *pool;
    kvx->callbacks = *callbacks;
    strncpy(kvx->instance, instance, sizeof(kvx->instance) - 1);
    assert_int_equal(pd_buffer_export(pool->buffer, &kvx->export), PD_KERNEL_OK);
    kvx->memory =
        mmap(NULL, kvx->export.size, PROT_READ | PROT_WRITE, MAP_SHARED, kvx->export.fd, 0);
    assert_ptr_not_equal(kvx->memory, MAP_FAILED);
    return kvx;
}

void double_kvx_destroy(struct pd_kvx *kvx)
{
    munmap(kvx->memory, kvx->export.size);
    close(kvx->export.fd);
    free(kvx);
}

static void *copy_of(const void *data, size_t size)
{
    return memcpy(malloc(size), data, size);
}

int pd_kvx_offer(struct pd_kvx *kvx, const struct pd_kvx_offer *given)
{
    struct offer *offer = calloc(1, sizeof(*offer));

    offer->kvx = kvx;
    offer->generation = given->generation;
    offer->owner = given->owner;
    offer->block_count = given->block_count;
    offer->blocks = copy_of(given->blocks, given->block_count * sizeof(*given->blocks));
    offer->prompt = copy_of(given->prompt, given->tokens * sizeof(*given->prompt));
    offer->tokens = given->tokens;
    memcpy(offer->secret, given->secret, sizeof(offer->secret));
    pthread_mutex_lock(&kvx->net->lock);
    assert_null(find_offer(kvx->net, kvx->instance, given->generation));
    LIST_INSERT_HEAD(&kvx->net->offers, offer, link);
    kvx->net->counts.offers++;
    pthread_mutex_unlock(&kvx->net->lock);
    return PD_OK;
}

void pd_kvx_ready(struct pd_kvx *kvx, uint64_t generation, uint32_t tokens)
{
    struct double_counts *counts = &kvx->net->counts;
    struct offer *offer;

    pthread_mutex_lock(&kvx->net->lock);
    offer = find_offer(kvx->net, kvx->instance, generation);
    if (offer) {
        assert_true(tokens >= offer->ready && tokens <= offer->tokens);
        offer->ready = tokens;
        counts->ready_calls++;
        if (offer->reader && ++offer->told > counts->most_ready_after_claim)
            counts->most_ready_after_claim = offer->told;
    }
    pump(kvx->net);
    pthread_mutex_unlock(&kvx->net->lock);
}

void pd_kvx_complete(struct pd_kvx *kvx, uint64_t generation, const struct pd_kvx_first *first)
{
    struct offer *offer;

    pthread_mutex_lock(&kvx->net->lock);
    offer = find_offer(kvx->net, kvx->instance, generation);
    if (offer) {
        offer->complete = true;
        offer->first = *first;
        if (kvx->net->change)
            kvx->net->change(&offer->first);
    }
    pump(kvx->net);
    pthread_mutex_unlock(&kvx->net->lock);
}

void pd_kvx_revoke(struct pd_kvx *kvx, uint64_t generation, const char *why)
{
    struct offer *offer;

    (void)why;
    pthread_mutex_lock(&kvx->net->lock);
    offer = find_offer(kvx->net, kvx->instance, generation);
    if (offer)
        offer->revoked = true;
    pump(kvx->net);
    pthread_mutex_unlock(&kvx->net->lock);
}

void pd_kvx_forget_owner(struct pd_kvx *kvx, uint64_t owner)
{
    struct offer *offer;

    pthread_mutex_lock(&kvx->net->lock);
    LIST_FOREACH (offer, &kvx->net->offers, link) {
        if (offer->kvx == kvx && offer->owner == owner && !offer->reader)
            offer->revoked = true;
    }
    pump(kvx->net);
    pthread_mutex_unlock(&kvx->net->lock);
}

static bool contains(const int32_t *blocks, size_t count, int32_t block)
{
    for (size_t i = 0; blocks && i < count; i++)
        if (blocks[i] == block)
            return true;
    return false;
}

void pd_kvx_recycled(struct pd_kvx *kvx, const int32_t *blocks, size_t count)
{
    const struct offer *offer;
    const struct fetch *fetch;

    pthread_mutex_lock(&kvx->net->lock);
    kvx->net->counts.recycled += count;
    for (size_t i = 0; i < count; i++) {
        LIST_FOREACH (offer, &kvx->net->offers, link) {
            if (offer->kvx == kvx && contains(offer->blocks, offer->block_count, blocks[i]))
                kvx->net->counts.broken_fences++;
        }
        LIST_FOREACH (fetch, &kvx->net->fetches, link) {
            if (fetch->kvx == kvx && contains(fetch->blocks, fetch->block_count, blocks[i]))
                kvx->net->counts.broken_fences++;
        }
    }
    pthread_mutex_unlock(&kvx->net->lock);
}

int pd_kvx_fetch(struct pd_kvx *kvx, uint64_t id, const struct pd_ticket *ticket)
{
    struct fetch *fetch = calloc(1, sizeof(*fetch));

    fetch->kvx = kvx;
    fetch->id = id;
    fetch->ticket = *ticket;
    pthread_mutex_lock(&kvx->net->lock);
    LIST_INSERT_HEAD(&kvx->net->fetches, fetch, link);
    kvx->net->counts.fetches++;
    pump(kvx->net);
    pthread_mutex_unlock(&kvx->net->lock);
    return PD_OK;
}

static struct fetch *find_fetch(const struct pd_kvx *kvx, uint64_t id)
{
    struct fetch *fetch;

    LIST_FOREACH (fetch, &kvx->net->fetches, link) {
        if (fetch->kvx == kvx && fetch->id == id)
            return fetch;
    }
    return NULL;
}

void pd_kvx_fetch_want(struct pd_kvx *kvx, uint64_t id, size_t from_block, const int32_t *blocks,
                       size_t block_count)
{
    struct fetch *fetch;

    pthread_mutex_lock(&kvx->net->lock);
    fetch = find_fetch(kvx, id);
    if (fetch) {
        assert_null(fetch->blocks);
        assert_true(from_block <= block_count);
        if (fetch->source)
            assert_int_equal(block_count, fetch->source->block_count);
        fetch->blocks = copy_of(blocks, block_count * sizeof(*blocks));
        fetch->block_count = block_count;
        fetch->from = from_block;
        kvx->net->counts.blocks_skipped += from_block;
        for (size_t i = 0; i < from_block; i++)
            fetch->blocks[i] = -1; /* those may be anybody's, too */
    }
    pump(kvx->net);
    pthread_mutex_unlock(&kvx->net->lock);
}

void pd_kvx_fetch_cancel(struct pd_kvx *kvx, uint64_t id)
{
    struct fetch *fetch;

    pthread_mutex_lock(&kvx->net->lock);
    fetch = find_fetch(kvx, id);
    if (fetch)
        fetch->cancelled = true;
    pump(kvx->net);
    pthread_mutex_unlock(&kvx->net->lock);
}
