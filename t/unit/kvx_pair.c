#include "t/unit/kvx_pair.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <fcntl.h>

#include <cmocka.h>

#include "t/unit/kvx_certificates.h"

const struct kvx_shape kvx_small = {2, 2, 8, 4, 64};
const struct kvx_shape kvx_large = {4, 2, 16, 64, 384};

bool kvx_unsealed, kvx_without_words, kvx_under_tls, kvx_on_device, kvx_lends_nothing;
int kvx_ranks = 1;

enum { JUNK = 0xee, PATIENCE_S = 20 };

/* A control message that waits. */
struct kvx_parcel {
    struct kvx_parcel *next;
    size_t link;
    bool to_source;
    uint8_t *bytes;
    size_t length;
};

/* ---- the control links ----------------------------------------------------------------------- */

void kvx_net_init(struct kvx_net *net)
{
    pthread_condattr_t attributes;

    signal(SIGPIPE, SIG_IGN);
    memset(net, 0, sizeof(*net));
    pthread_mutex_init(&net->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&net->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    net->last = &net->first;
}

void kvx_net_free(struct kvx_net *net)
{
    for (size_t i = 0; i < KVX_WORKERS; i++)
        if (net->workers[i])
            kvx_free(net->workers[i]);
    while (net->first) {
        struct kvx_parcel *parcel = net->first;

        net->first = parcel->next;
        free(parcel->bytes);
        free(parcel);
    }
    pthread_cond_destroy(&net->changed);
    pthread_mutex_destroy(&net->lock);
}

/* With the lock held. */
static void deliver(struct kvx_net *net, struct kvx_parcel *parcel)
{
    const struct kvx_link *link = &net->links[parcel->link];
    struct kvx_worker *to = parcel->to_source ? link->source : link->reader;
    bool pass = link->alive && to->kvx;

    if (pass && net->tap)
        pass = net->tap(net->tap_context, parcel->to_source, &parcel->bytes, &parcel->length);
    if (pass)
        pd_kvx_receive(to->kvx, parcel->to_source ? link->source_id : link->reader_id,
                       parcel->bytes, parcel->length);
    free(parcel->bytes);
    free(parcel);
}

static void on_send(void *context, uint64_t id, uint8_t *bytes, size_t length)
{
    struct kvx_worker *from = context;
    struct kvx_net *net = from->net;
    struct kvx_parcel *parcel = calloc(1, sizeof(*parcel));
    bool found = false;

    pthread_mutex_lock(&net->lock);
    parcel->bytes = bytes;
    parcel->length = length;
    for (size_t i = 0; i < net->link_count && !found; i++) {
        struct kvx_link *link = &net->links[i];

        if (!link->alive)
            continue;
        parcel->link = i;
        parcel->to_source = link->reader == from && link->reader_id == id;
        found = parcel->to_source || (link->source == from && link->source_id == id);
    }
    if (!found) {
        free(bytes);
        free(parcel);
    } else if (net->held) {
        *net->last = parcel;
        net->last = &parcel->next;
    } else {
        deliver(net, parcel);
    }
    pthread_mutex_unlock(&net->lock);
}

static void on_open(void *context, uint64_t id, const char *address)
{
    struct kvx_worker *reader = context;
    struct kvx_net *net = reader->net;
    struct kvx_worker *source = NULL;

    pthread_mutex_lock(&net->lock);
    for (size_t i = 0; i < KVX_WORKERS; i++)
        if (net->workers[i] && net->workers[i]->kvx && !net->workers[i]->unreachable &&
            strcmp(net->workers[i]->address, address) == 0)
            source = net->workers[i];
    if (!reader->kvx) {
        /* it is being stopped, and hears nothing more */
    } else if (!source || net->link_count == KVX_LINKS) {
        pd_kvx_link_down(reader->kvx, id, "connection refused");
    } else {
        struct kvx_link *link = &net->links[net->link_count++];

        *link = (struct kvx_link){reader, source, id, pd_kvx_next_link_id(source->kvx), true};
        pd_kvx_reader_up(source->kvx, link->source_id, reader->address);
        pd_kvx_link_up(reader->kvx, id);
    }
    pthread_cond_broadcast(&net->changed);
    pthread_mutex_unlock(&net->lock);
}

/* Behind what was sent: held messages of this direction go first. */
static void on_close(void *context, uint64_t id)
{
    struct kvx_worker *from = context;
    struct kvx_net *net = from->net;

    pthread_mutex_lock(&net->lock);
    for (size_t i = 0; i < net->link_count; i++) {
        struct kvx_link *link = &net->links[i];

        if (!link->alive)
            continue;
        if (link->reader == from && link->reader_id == id) {
            link->alive = false;
            if (link->source->kvx)
                pd_kvx_link_down(link->source->kvx, link->source_id, "the reader hung up");
        } else if (link->source == from && link->source_id == id) {
            link->alive = false;
            if (link->reader->kvx)
                pd_kvx_link_down(link->reader->kvx, link->reader_id, "the source hung up");
        }
    }
    pthread_mutex_unlock(&net->lock);
}

void kvx_hold(struct kvx_net *net)
{
    pthread_mutex_lock(&net->lock);
    net->held = true;
    pthread_mutex_unlock(&net->lock);
}

void kvx_let_go(struct kvx_net *net)
{
    pthread_mutex_lock(&net->lock);
    while (net->first) {
        struct kvx_parcel *parcel = net->first;

        net->first = parcel->next;
        deliver(net, parcel);
    }
    net->last = &net->first;
    net->held = false;
    pthread_mutex_unlock(&net->lock);
}

static void cut(struct kvx_net *net, bool told)
{
    pthread_mutex_lock(&net->lock);
    for (size_t i = 0; i < net->link_count; i++) {
        struct kvx_link *link = &net->links[i];

        if (link->alive && told) {
            if (link->reader->kvx)
                pd_kvx_link_down(link->reader->kvx, link->reader_id, "the stream was cut");
            if (link->source->kvx)
                pd_kvx_link_down(link->source->kvx, link->source_id, "the stream was cut");
        }
        link->alive = false;
    }
    pthread_mutex_unlock(&net->lock);
}

void kvx_cut(struct kvx_net *net)
{
    cut(net, true);
}

void kvx_cut_silently(struct kvx_net *net)
{
    cut(net, false);
}

size_t kvx_streams(struct kvx_net *net)
{
    size_t count;

    pthread_mutex_lock(&net->lock);
    count = net->link_count;
    pthread_mutex_unlock(&net->lock);
    return count;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void record(struct kvx_worker *worker, const struct kvx_event *event)
{
    pthread_mutex_lock(&worker->net->lock);
    if (worker->event_count < KVX_EVENTS)
        worker->events[worker->event_count++] = *event;
    pthread_cond_broadcast(&worker->net->changed);
    while (worker->stuck)
        pthread_cond_wait(&worker->net->changed, &worker->net->lock);
    pthread_mutex_unlock(&worker->net->lock);
}

void kvx_stick(struct kvx_worker *worker, bool stuck)
{
    pthread_mutex_lock(&worker->net->lock);
    worker->stuck = stuck;
    pthread_cond_broadcast(&worker->net->changed);
    pthread_mutex_unlock(&worker->net->lock);
}

static void on_released(void *context, uint64_t generation)
{
    record(context, &(struct kvx_event){.kind = KVX_RELEASED, .id = generation});
}

static void on_claimed(void *context, uint64_t fetch, const uint32_t *prompt, size_t count)
{
    record(context, &(struct kvx_event){.kind = KVX_CLAIMED,
                                        .id = fetch,
                                        .prompt_first = prompt[0],
                                        .prompt_last = prompt[count - 1],
                                        .prompt_count = count});
}

static void on_sampled(void *context, uint64_t fetch, const struct pd_kvx_first *first)
{
    record(context,
           &(struct kvx_event){
               .kind = KVX_SAMPLED, .id = fetch, .token = first->token, .finish = first->finish});
}

static void on_complete(void *context, uint64_t fetch, const struct pd_kvx_first *first,
                        const struct pd_kvx_stats *stats)
{
    record(context, &(struct kvx_event){.kind = KVX_COMPLETE,
                                        .id = fetch,
                                        .token = first->token,
                                        .finish = first->finish,
                                        .cached = first->cached,
                                        .stats = *stats});
}

static void on_closed(void *context, uint64_t fetch, bool cancelled, const char *why)
{
    struct kvx_event event = {.kind = KVX_CLOSED, .id = fetch, .cancelled = cancelled};

    snprintf(event.why, sizeof(event.why), "%s", why);
    record(context, &event);
}

struct kvx_event kvx_expect(struct kvx_worker *worker, enum kvx_event_kind kind, uint64_t id)
{
    struct kvx_net *net = worker->net;
    struct timespec deadline;
    struct kvx_event event = {.id = UINT64_MAX};
    size_t next = 0;
    bool found = false;
    int status = 0;

    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&net->lock);
    while (!found && status == 0) {
        for (; next < worker->event_count && !found; next++) {
            struct kvx_event *at = &worker->events[next];

            if (at->seen || at->kind != kind || at->id != id)
                continue;
            at->seen = true;
            event = *at;
            found = true;
        }
        if (!found)
            status = pthread_cond_timedwait(&net->changed, &net->lock, &deadline);
    }
    if (!found)
        for (size_t i = 0; i < worker->event_count; i++)
            print_message("  %s had event %d of %llu %s\n", worker->address, worker->events[i].kind,
                          (unsigned long long)worker->events[i].id, worker->events[i].why);
    pthread_mutex_unlock(&net->lock);
    if (!found)
        fail_msg("%s: event %d of %llu did not come", worker->address, kind,
                 (unsigned long long)id);
    return event;
}

size_t kvx_count(struct kvx_worker *worker, enum kvx_event_kind kind, uint64_t id)
{
    size_t count = 0;

    pthread_mutex_lock(&worker->net->lock);
    for (size_t i = 0; i < worker->event_count; i++)
        count += worker->events[i].kind == kind && worker->events[i].id == id;
    pthread_mutex_unlock(&worker->net->lock);
    return count;
}

/* ---- workers --------------------------------------------------------------------------------- */

/* Of one rank's memory: `context` is where it begins. */
static bool device_copy(void *context, void *host, const struct pd_export_range *ranges,
                        size_t count, bool out)
{
    for (size_t i = 0; i < count; i++) {
        uint8_t *inside = (uint8_t *)context + ranges[i].offset;
        uint8_t *outside = (uint8_t *)host + ranges[i].other;

        memcpy(out ? outside : inside, out ? inside : outside, ranges[i].bytes);
    }
    return true;
}

/* Handles are the very files; a mapping of one is what the device has of it. */
static void *device_import(void *context, int handle, size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, handle, 0);

    (void)context;
    return memory == MAP_FAILED || kvx_lends_nothing ? NULL : memory;
}

static void device_forget(void *context, void *imported, size_t bytes)
{
    (void)context;
    munmap(imported, bytes);
}

static bool device_read(void *context, const void *imported, const struct pd_export_range *ranges,
                        size_t count)
{
    for (size_t i = 0; i < count; i++)
        memcpy((uint8_t *)context + ranges[i].offset, (const uint8_t *)imported + ranges[i].other,
               ranges[i].bytes);
    return true;
}

static bool device_settle(void *context)
{
    (void)context;
    return true;
}

static void make_pool(struct kvx_worker *worker)
{
    const struct pd_layout *layout = &worker->layout;
    size_t size = kvx_without_words ? layout->bytes : layout->total;

    for (uint32_t r = 0; r < layout->ranks; r++) {
        worker->fds[r] = memfd_create("kvx-test", MFD_ALLOW_SEALING | MFD_CLOEXEC);
        assert_true(worker->fds[r] >= 0);
        assert_int_equal(ftruncate(worker->fds[r], (off_t)size), 0);
        if (!kvx_unsealed)
            assert_int_equal(fcntl(worker->fds[r], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
        worker->options.memory[r] =
            (struct pd_export){.kind = PD_EXPORT_MEMFD, .fd = worker->fds[r], .size = size};
    }
    assert_true(
        pd_mapped_open(&worker->mapped, worker->fds, layout->ranks, size, PROT_READ | PROT_WRITE));
    worker->pool = worker->mapped.base;
    if (kvx_on_device)
        assert_true(pd_mapped_open(&worker->device, worker->fds, layout->ranks, size,
                                   PROT_READ | PROT_WRITE));
    for (uint32_t r = 0; kvx_on_device && r < layout->ranks; r++)
        worker->options.memory[r] =
            (struct pd_export){.kind = PD_EXPORT_DEVICE,
                               .fd = -1,
                               .size = size,
                               .copy_context = worker->device.base + r * size,
                               .copy = device_copy,
                               .handle = worker->fds[r],
                               .import = device_import,
                               .forget = device_forget,
                               .read = device_read,
                               .settle = device_settle};
}

static void set_callbacks(struct kvx_worker *worker)
{
    worker->options.callbacks = (struct pd_kvx_callbacks){
        .engine = worker,
        .released = on_released,
        .claimed = on_claimed,
        .sampled = on_sampled,
        .complete = on_complete,
        .closed = on_closed,
        .link = worker,
        .open_link = on_open,
        .close_link = on_close,
        .send = on_send,
    };
}

const char *kvx_bind_host(const char *name)
{
    const char *host = getenv(name[0] == 'p' ? "PD_SOURCE_ADDRESS" : "PD_READER_ADDRESS");

    return host ? host : "127.0.0.1";
}

/* How much slower than usual this machine is said to be (PD_SLOWNESS). */
static uint32_t slowness(void)
{
    const char *said = getenv("PD_SLOWNESS");

    return said && atoi(said) > 0 ? (uint32_t)atoi(said) : 1;
}

struct kvx_worker *kvx_start(struct kvx_net *net, const char *name, const char *transport,
                             const struct kvx_shape *shape,
                             void (*adjust)(struct pd_kvx_options *options))
{
    struct kvx_worker *worker = calloc(1, sizeof(*worker));
    struct pd_error error = {0};
    struct pd_kvx *kvx;

    worker->net = net;
    worker->events = calloc(KVX_EVENTS, sizeof(*worker->events));
    snprintf(worker->address, sizeof(worker->address), "%s", name);
    worker->options = (struct pd_kvx_options){
        .instance = worker->address,
        .boot = (uint64_t)(unsigned char)name[0] << 8 | (unsigned char)name[1],
        .ranks = kvx_ranks,
        .kv_heads = shape->kv_heads,
        .pool = {NULL, shape->layers, kvx_ranks > shape->kv_heads ? 1 : shape->kv_heads / kvx_ranks,
                 shape->block_size, shape->head_dim, shape->blocks, PD_F32},
        .transport = transport,
        .bind_host = kvx_bind_host(name),
        .max_model_len = 16384,
        .silence_ms = 2000 * slowness(),
    };
    memset(&worker->options.fingerprint, 0x5a, sizeof(worker->options.fingerprint));
    if (kvx_under_tls) {
        enum kvx_name shows = name[0] == 'p' ? KVX_SOURCE : KVX_READER;

        worker->options.tls_cert = kvx_certificate(shows);
        worker->options.tls_key = kvx_private_key(shows);
        worker->options.tls_ca = kvx_certificate(KVX_CA);
    }
    if (adjust)
        adjust(&worker->options);
    set_callbacks(worker);
    assert_int_equal(pd_layout_of_pool(&worker->options.pool, worker->options.ranks,
                                       worker->options.kv_heads, &worker->layout, NULL),
                     PD_OK);
    make_pool(worker);
    kvx_junk(worker);
    if (pd_kvx_create(&worker->options, &kvx, &error) != PD_OK)
        fail_msg("%s", error.text);
    pthread_mutex_lock(&net->lock);
    worker->kvx = kvx;
    for (size_t i = 0; i < KVX_WORKERS; i++)
        if (!net->workers[i]) {
            net->workers[i] = worker;
            break;
        }
    pthread_mutex_unlock(&net->lock);
    return worker;
}

void kvx_stop(struct kvx_worker *worker)
{
    struct pd_kvx *kvx;

    pthread_mutex_lock(&worker->net->lock);
    kvx = worker->kvx;
    worker->kvx = NULL;
    pthread_mutex_unlock(&worker->net->lock);
    if (kvx)
        pd_kvx_destroy(kvx);
}

void kvx_free(struct kvx_worker *worker)
{
    kvx_stop(worker);
    pthread_mutex_lock(&worker->net->lock);
    for (size_t i = 0; i < KVX_WORKERS; i++)
        if (worker->net->workers[i] == worker)
            worker->net->workers[i] = NULL;
    pthread_mutex_unlock(&worker->net->lock);
    pd_mapped_close(&worker->mapped);
    pd_mapped_close(&worker->device);
    for (uint32_t r = 0; r < worker->layout.ranks; r++)
        close(worker->fds[r]);
    free(worker->events);
    free(worker);
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* Eight bytes that say whose they are; plane: as if one rank had all heads. */
static uint64_t stamp(uint64_t generation, size_t index, uint64_t plane, uint64_t word)
{
    return generation << 40 | (uint64_t)index << 24 | plane << 16 | (word & 0xffff);
}

/* Planes of all ranks, one rank after the other. */
static uint64_t planes(const struct kvx_worker *worker)
{
    const struct pd_layout *layout = &worker->layout;

    return (uint64_t)layout->ranks * layout->layers * layout->rank_heads;
}

static uint64_t plane_offset(const struct kvx_worker *worker, uint64_t plane)
{
    const struct pd_layout *layout = &worker->layout;
    uint64_t per_rank = (uint64_t)layout->layers * layout->rank_heads;

    return plane / per_rank * layout->stride + plane % per_rank * layout->plane_bytes;
}

/* The block in that plane; *number is the plane's for stamps. */
static uint64_t *block_at(const struct kvx_worker *worker, uint64_t plane, int32_t block,
                          uint64_t *number)
{
    uint64_t offset = plane_offset(worker, plane);

    *number = pd_layout_plane_number(&worker->layout, offset);
    return (uint64_t *)(void *)(worker->pool + offset +
                                (uint64_t)block * worker->layout.block_bytes);
}

static void fill(struct kvx_worker *worker, uint64_t generation, size_t index, int32_t block)
{
    for (uint64_t plane = 0; plane < planes(worker); plane++) {
        uint64_t number, *words = block_at(worker, plane, block, &number);

        for (uint64_t i = 0; i < worker->layout.block_bytes / 8; i++)
            words[i] = stamp(generation, index, number, i);
    }
}

bool kvx_holds(const struct kvx_worker *worker, uint64_t generation, size_t index, int32_t block)
{
    for (uint64_t plane = 0; plane < planes(worker); plane++) {
        uint64_t number;
        const uint64_t *words = block_at(worker, plane, block, &number);

        for (uint64_t i = 0; i < worker->layout.block_bytes / 8; i++)
            if (words[i] != stamp(generation, index, number, i))
                return false;
    }
    return true;
}

static bool is_junk(const struct kvx_worker *worker, int32_t block)
{
    for (uint64_t plane = 0; plane < planes(worker); plane++) {
        uint64_t number;
        const uint8_t *bytes = (const uint8_t *)block_at(worker, plane, block, &number);

        for (uint64_t i = 0; i < worker->layout.block_bytes; i++)
            if (bytes[i] != JUNK)
                return false;
    }
    return true;
}

void kvx_junk(struct kvx_worker *worker)
{
    for (uint64_t plane = 0; plane < planes(worker); plane++)
        memset(worker->pool + plane_offset(worker, plane), JUNK, worker->layout.plane_bytes);
}

void kvx_assert_only(struct kvx_worker *worker, const struct kvx_prompt *prompt, size_t from,
                     const int32_t *blocks)
{
    for (int32_t block = 0; block < (int32_t)worker->layout.blocks; block++) {
        size_t index = from;

        while (index < prompt->blocks && blocks[index] != block)
            index++;
        if (index < prompt->blocks) {
            if (!kvx_holds(worker, prompt->generation, index, block))
                fail_msg("block %d does not hold block %zu of the prompt", block, index);
        } else if (!is_junk(worker, block)) {
            fail_msg("block %d was written, and is not of the prompt", block);
        }
    }
}

void kvx_prompt_init(struct kvx_prompt *prompt, struct kvx_worker *source, uint64_t generation,
                     uint32_t tokens, const int32_t *blocks, int32_t first)
{
    memset(prompt, 0, sizeof(*prompt));
    prompt->generation = generation;
    prompt->tokens = tokens;
    prompt->blocks = pd_layout_blocks_for(&source->layout, tokens);
    for (size_t i = 0; i < prompt->blocks; i++) {
        prompt->block[i] = blocks ? blocks[i] : first + (int32_t)i;
        fill(source, generation, i, prompt->block[i]);
    }
    memset(prompt->secret, (int)(generation % 251), sizeof(prompt->secret));
}

int kvx_offer(struct kvx_worker *source, const struct kvx_prompt *prompt, uint64_t owner)
{
    int32_t *tokens = calloc(prompt->tokens, sizeof(*tokens));
    struct pd_kvx_offer offer = {
        .generation = prompt->generation,
        .blocks = prompt->block,
        .block_count = prompt->blocks,
        .prompt = tokens,
        .tokens = prompt->tokens,
        .owner = owner,
    };
    int status;

    for (uint32_t i = 0; i < prompt->tokens; i++)
        tokens[i] = (int32_t)(100 + i);
    memcpy(offer.secret, prompt->secret, sizeof(offer.secret));
    status = pd_kvx_offer(source->kvx, &offer);
    free(tokens);
    return status;
}

void kvx_ticket(const struct kvx_worker *source, const struct kvx_prompt *prompt,
                struct pd_ticket *ticket)
{
    memset(ticket, 0, sizeof(*ticket));
    snprintf(ticket->instance, sizeof(ticket->instance), "%s", source->address);
    snprintf(ticket->address, sizeof(ticket->address), "%s", source->address);
    ticket->boot = source->options.boot;
    ticket->epoch = PD_KVX_EPOCH;
    ticket->generation = prompt->generation;
    ticket->tokens = prompt->tokens;
    ticket->block_size = source->layout.block_size;
    ticket->fingerprint = source->options.fingerprint;
    memcpy(ticket->secret, prompt->secret, sizeof(ticket->secret));
}
