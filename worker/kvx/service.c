/* kvx's thread: takes the calls out of the mailbox, runs the two state machines and the transports,
 * and is the world that they act on.
 *
 *     engine, link ──mailbox──▶ source.c, reader.c ──▶ callbacks (engine, link)
 *                                    ▲     │
 *                                 events   └──▶ tcp, shm, rdma
 *
 * A turn: all waiting calls, then deadlines if they are due, then one slice of preparing and copying, then
 * whatever epoll has. Calls come before deadlines, so that a message that waits in the mailbox
 * counts as heard. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/base/log.h"
#include "worker/kvx/checksum.h"
#include "worker/kvx/host.h"
#include "worker/kvx/kvx_state.h"

static const uint64_t ms = 1000000;

enum {
    DEFAULT_CLAIM_MS = 60000,
    DEFAULT_SILENCE_MS = 5000,
    STALL_SILENCES = 6,    /* reads or claims without progress for so many silences end a link */
    RELEASE_SILENCES = 24, /* so does a ticket that is not released (21) */
};

/* ---- the source's world ---------------------------------------------------------------------- */

static void hand_over(struct pd_kvx *kvx, uint64_t link, uint8_t *bytes, size_t length)
{
    if (!bytes) {
        pd_log(PD_LOG_ERROR, "kvx", "out of memory");
        abort();
    }
    kvx->callbacks.send(kvx->callbacks.link, link, bytes, length);
}

static void send_from_source(void *context, uint64_t link, const struct pd_from_source *message)
{
    size_t length = 0;
    uint8_t *bytes = pd_from_source_pack(message, &length);

    hand_over(context, link, bytes, length);
}

static void close_link(void *context, uint64_t link, const char *why)
{
    struct pd_kvx *kvx = context;

    (void)why; /* link_changed has logged it */
    kvx->callbacks.close_link(kvx->callbacks.link, link);
}

static int serve(void *context, uint64_t link, const struct pd_reader_hello *reader,
                 struct pd_source_hello *hello, struct pd_source_path *path, struct pd_error *error)
{
    struct pd_kvx *kvx = context;
    int chosen =
        pd_transport_choose(reader, kvx->host_id, kvx->choices, kvx->transport_count, hello->why);
    struct pd_transport *transport;
    struct pd_source_end *made;

    if (chosen < 0)
        return pd_fail(error, PD_UNSUPPORTED, "no transport in common: %s", hello->why);
    transport = kvx->transports[chosen];
    if (transport->kind->serve(transport, link, hello->data_address, &hello->link_key, &made,
                               error) != PD_OK)
        return error->status;
    pd_kv_cut(hello->transport, sizeof(hello->transport), transport->kind->name);
    hello->tls = transport->certificate != NULL;
    if (hello->tls)
        memcpy(hello->certificate, transport->certificate, sizeof(hello->certificate));
    path->end = made;
    path->words = transport->kind->words;
    path->staged = pd_pool_on_device(&kvx->pool) && !transport->direct;
    path->sums = !pd_pool_on_device(&kvx->pool) || path->staged;
    return PD_OK;
}

static void withdraw(void *context, void *end)
{
    struct pd_source_end *made = end;

    (void)context;
    made->transport->kind->withdraw(made);
}

static void released(void *context, uint64_t generation)
{
    struct pd_kvx *kvx = context;

    atomic_fetch_sub(&kvx->tickets, 1);
    kvx->callbacks.released(kvx->callbacks.engine, generation);
}

static bool stage(void *context, uint32_t first, uint32_t count)
{
    const struct pd_kvx *kvx = context;

    return pd_pool_out(&kvx->pool, first, count);
}

static uint64_t sum(void *context, uint64_t offset, uint32_t plane)
{
    const struct pd_kvx *kvx = context;

    return pd_checksum_part(&kvx->pool, offset, plane);
}

static void log_link(struct pd_kvx *kvx, const char *role, const char *peer, bool up,
                     const char *transport, const char *why)
{
    kvx->links_changed = true;
    if (up)
        pd_log(PD_LOG_INFO, "kvx", "link %s %s is up: transport=%s%s%s", role, peer, transport,
               why[0] ? ", because " : "", why);
    else
        pd_log(PD_LOG_WARN, "kvx", "link %s %s is down: %s", role, peer, why);
}

static void readers_link_changed(void *context, const char *reader, bool up, const char *transport,
                                 const char *why)
{
    log_link(context, "from", reader[0] ? reader : "an unnamed reader", up, transport, why);
}

/* ---- the reader's world ---------------------------------------------------------------------- */

static uint64_t next_link(void *context)
{
    return pd_kvx_next_link_id(context);
}

static void open_link(void *context, uint64_t link, const char *address)
{
    struct pd_kvx *kvx = context;

    kvx->callbacks.open_link(kvx->callbacks.link, link, address);
}

static void send_to_source(void *context, uint64_t link, const struct pd_to_source *message)
{
    size_t length = 0;
    uint8_t *bytes = pd_to_source_pack(message, &length);

    hand_over(context, link, bytes, length);
}

static struct pd_transport *transport_named(struct pd_kvx *kvx, const char *name)
{
    for (size_t i = 0; i < kvx->transport_count; i++)
        if (strcmp(kvx->transports[i]->kind->name, name) == 0)
            return kvx->transports[i];
    return NULL;
}

static int connect_end(void *context, uint64_t link, const struct pd_source_hello *hello,
                       struct pd_data_path *path, struct pd_error *error)
{
    struct pd_transport *transport = transport_named(context, hello->transport);
    struct pd_reader_end *made;

    if (!transport)
        return pd_fail(error, PD_UNSUPPORTED, "no transport %s here", hello->transport);
    if (transport->kind->connect(transport, link, hello, &made, error) != PD_OK)
        return error->status;
    path->end = made;
    path->window = transport->kind->window;
    path->rails = made->rails;
    path->words = transport->kind->words;
    return PD_OK;
}

static int read_end(void *context, void *end, const struct pd_read *read)
{
    struct pd_reader_end *made = end;

    (void)context;
    return made->transport->kind->read(made, read);
}

static bool arrived(void *context, void *end, const struct pd_read *read)
{
    const struct pd_kvx *kvx = context;
    const struct pd_reader_end *made = end;

    return !pd_pool_on_device(&kvx->pool) || made->transport->direct ||
           pd_pool_in(&kvx->pool, read);
}

static uint64_t word_of(void *context, void *end, uint32_t block)
{
    struct pd_reader_end *made = end;

    (void)context;
    return made->transport->kind->word(made, block);
}

static void disconnect(void *context, void *end)
{
    struct pd_reader_end *made = end;

    (void)context;
    made->transport->kind->disconnect(made);
}

static void claimed(void *context, uint64_t fetch, const uint32_t *prompt, size_t count)
{
    struct pd_kvx *kvx = context;

    kvx->callbacks.claimed(kvx->callbacks.engine, fetch, prompt, count);
}

static void sampled(void *context, uint64_t fetch, const struct pd_kvx_first *first)
{
    struct pd_kvx *kvx = context;

    kvx->callbacks.sampled(kvx->callbacks.engine, fetch, first);
}

static void complete(void *context, uint64_t fetch, const struct pd_kvx_first *first,
                     const struct pd_kvx_stats *stats)
{
    struct pd_kvx *kvx = context;

    atomic_fetch_sub(&kvx->fetches, 1);
    kvx->callbacks.complete(kvx->callbacks.engine, fetch, first, stats);
}

static void closed(void *context, uint64_t fetch, bool cancelled, const char *why)
{
    struct pd_kvx *kvx = context;

    atomic_fetch_sub(&kvx->fetches, 1);
    kvx->callbacks.closed(kvx->callbacks.engine, fetch, cancelled, why);
}

static void sources_link_changed(void *context, const char *source, bool up, const char *transport,
                                 const char *why)
{
    log_link(context, "to", source, up, transport, why);
}

/* ---- events of the transports ---------------------------------------------------------------- */

static bool on_may_read(void *context, uint64_t link, uint64_t generation, uint32_t first,
                        uint32_t count)
{
    struct pd_kvx *kvx = context;

    return pd_source_may_read(kvx->source, link, generation, first, count);
}

static void on_source_lost(void *context, uint64_t link, const char *why)
{
    struct pd_kvx *kvx = context;

    pd_source_link_fail(kvx->source, link, why);
}

static void on_connected(void *context, uint64_t link)
{
    struct pd_kvx *kvx = context;

    pd_reader_connected(kvx->reader, kvx->clock(), link);
}

static void on_landed(void *context, uint64_t link, const struct pd_read *read)
{
    struct pd_kvx *kvx = context;

    pd_reader_landed(kvx->reader, kvx->clock(), link, read);
}

static void on_reader_lost(void *context, uint64_t link, const char *why)
{
    struct pd_kvx *kvx = context;

    pd_reader_link_fail(kvx->reader, kvx->clock(), link, why);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void take_offer(struct pd_kvx *kvx, uint64_t now, struct pd_kvx_call *call)
{
    if (pd_source_offer(kvx->source, now, call->ticket) == PD_OK) {
        call->ticket = NULL;
        return;
    }
    pd_log(PD_LOG_ERROR, "kvx", "generation %llu was offered twice", (unsigned long long)call->id);
    atomic_fetch_sub(&kvx->tickets, 1);
}

static void take_fetch(struct pd_kvx *kvx, uint64_t now, const struct pd_kvx_call *call)
{
    int status = pd_reader_fetch(kvx->reader, now, call->id, call->fetch);

    if (status != PD_OK)
        closed(kvx, call->id, false,
               status == PD_NO_MEMORY ? "no memory for a fetch" : "the fetch's id is in use");
}

static void take_bytes(struct pd_kvx *kvx, uint64_t now, const struct pd_kvx_call *call)
{
    const uint8_t *bytes = call->receive.bytes;
    size_t length = call->receive.length;
    struct pd_error error;

    atomic_fetch_sub(&pd_kvx_gauge_of(kvx, call->id)->waiting, sizeof(*call) + length);
    if (pd_source_has_link(kvx->source, call->id)) {
        struct pd_to_source message;

        if (pd_to_source_unpack(bytes, length, &message, &error) != PD_OK)
            pd_source_link_fail(kvx->source, call->id, error.text);
        else
            pd_source_message(kvx->source, now, call->id, &message);
    } else if (pd_reader_has_link(kvx->reader, call->id)) {
        struct pd_from_source message;

        if (pd_from_source_unpack(bytes, length, kvx->max_tokens, &message, &error) != PD_OK) {
            pd_reader_link_fail(kvx->reader, now, call->id, error.text);
        } else {
            pd_reader_message(kvx->reader, now, call->id, &message);
            pd_from_source_clear(&message);
        }
    }
}

static void fail_link(struct pd_kvx *kvx, uint64_t now, uint64_t link, const char *why)
{
    pd_source_link_fail(kvx->source, link, why);
    pd_reader_link_fail(kvx->reader, now, link, why);
}

static void take_source_call(struct pd_kvx *kvx, uint64_t now, struct pd_kvx_call *call)
{
    switch ((enum pd_kvx_call_kind)call->message.kind) {
    case PD_CALL_OFFER:
        take_offer(kvx, now, call);
        break;
    case PD_CALL_READY:
        pd_source_ready(kvx->source, now, call->id, call->tokens);
        break;
    case PD_CALL_COMPLETE:
        pd_source_complete(kvx->source, now, call->id, &call->first);
        break;
    case PD_CALL_REVOKE:
        pd_source_revoke(kvx->source, now, call->id, call->why);
        break;
    case PD_CALL_FORGET_OWNER:
        pd_source_forget_owner(kvx->source, call->id);
        break;
    default:
        break;
    }
}

static void take_reader_call(struct pd_kvx *kvx, uint64_t now, struct pd_kvx_call *call)
{
    switch ((enum pd_kvx_call_kind)call->message.kind) {
    case PD_CALL_FETCH:
        take_fetch(kvx, now, call);
        break;
    case PD_CALL_WANT:
        pd_reader_want(kvx->reader, now, call->id, call->want.from, call->want.blocks,
                       call->want.count);
        call->want.blocks = NULL;
        break;
    case PD_CALL_CANCEL:
        pd_reader_cancel(kvx->reader, now, call->id);
        break;
    default:
        break;
    }
}

static void take_link_call(struct pd_kvx *kvx, uint64_t now, struct pd_kvx_call *call)
{
    switch ((enum pd_kvx_call_kind)call->message.kind) {
    case PD_CALL_LINK_UP:
        pd_reader_link_up(kvx->reader, now, call->id);
        break;
    case PD_CALL_LINK_DOWN:
        pd_source_link_down(kvx->source, call->id, call->why);
        pd_reader_link_down(kvx->reader, now, call->id, call->why);
        break;
    case PD_CALL_READER_UP:
        pd_log(PD_LOG_DEBUG, "kvx", "a reader calls from %s", call->why);
        pd_source_link_up(kvx->source, now, call->id);
        break;
    case PD_CALL_RECEIVE:
        take_bytes(kvx, now, call);
        break;
    case PD_CALL_FLOOD:
        fail_link(kvx, now, call->id, "the peer sends more control messages than can be read");
        atomic_store(&pd_kvx_gauge_of(kvx, call->id)->flooded, false);
        break;
    case PD_CALL_STOP:
        kvx->stopping = true;
        break;
    default:
        break;
    }
}

static void take_calls(struct pd_kvx *kvx)
{
    struct pd_message *list = pd_mailbox_take(&kvx->box, 0);
    uint64_t now = kvx->clock();

    while (list) {
        struct pd_kvx_call *call = PD_OWNER(list, struct pd_kvx_call, message);
        enum pd_kvx_call_kind kind = (enum pd_kvx_call_kind)list->kind;

        list = list->next;
        if (kind <= PD_CALL_FORGET_OWNER)
            take_source_call(kvx, now, call);
        else if (kind <= PD_CALL_CANCEL)
            take_reader_call(kvx, now, call);
        else
            take_link_call(kvx, now, call);
        pd_kvx_call_free(call);
    }
}

/* ---- the turn -------------------------------------------------------------------------------- */

static void tick(struct pd_kvx *kvx, uint64_t now)
{
    pd_source_tick(kvx->source, now);
    pd_reader_tick(kvx->reader, now);
    for (size_t i = 0; i < kvx->transport_count; i++)
        if (kvx->transports[i]->kind->tick)
            kvx->transports[i]->kind->tick(kvx->transports[i], now);
    kvx->next_tick = now + kvx->tick_ns;
    kvx->links_changed = true; /* their byte counts */
}

static bool work(struct pd_kvx *kvx)
{
    bool more = kvx->preparing = pd_source_work(kvx->source, kvx->clock());

    for (size_t i = 0; i < kvx->transport_count; i++)
        if (kvx->transports[i]->kind->work && kvx->transports[i]->kind->work(kvx->transports[i]))
            more = true;
    return more;
}

static void publish_states(struct pd_kvx *kvx)
{
    pthread_mutex_lock(&kvx->states_lock);
    kvx->state_count = pd_reader_links(kvx->reader, kvx->states, PD_KVX_LINKS_MAX);
    pthread_mutex_unlock(&kvx->states_lock);
    kvx->links_changed = false;
}

/* What came too late is owed its last callback all the same. */
static void stop(struct pd_kvx *kvx)
{
    struct pd_message *list;

    pd_reader_shutdown(kvx->reader, kvx->clock());
    pd_source_shutdown(kvx->source);
    pd_mailbox_close(&kvx->box);
    list = pd_mailbox_take(&kvx->box, 0);
    while (list) {
        struct pd_kvx_call *call = PD_OWNER(list, struct pd_kvx_call, message);

        list = list->next;
        if (call->message.kind == PD_CALL_OFFER)
            released(kvx, call->id);
        else if (call->message.kind == PD_CALL_FETCH)
            closed(kvx, call->id, false, "the worker is shutting down");
        pd_kvx_call_free(call);
    }
}

bool pd_kvx_service_turn(struct pd_kvx *kvx, bool wait)
{
    uint64_t now;
    bool more;

    take_calls(kvx);
    if (kvx->stopping) {
        stop(kvx);
        return false;
    }
    now = kvx->clock();
    if (now >= kvx->next_tick)
        tick(kvx, now);
    more = work(kvx);
    if (kvx->links_changed)
        publish_states(kvx);
    wait = wait && !more && now < kvx->next_tick;
    pd_loop_turn(&kvx->loop, wait ? (int)((kvx->next_tick - now) / ms) + 1 : 0);
    return true;
}

/* ---- life ------------------------------------------------------------------------------------ */

static bool encrypts(const struct pd_kvx_options *options)
{
    return options->tls_cert && *options->tls_cert;
}

/* With `auto` a machine that cannot do one of them does without, and says so. */
static int add_transport(struct pd_kvx *kvx, const struct pd_transport_maker *maker, bool automatic,
                         const struct pd_kvx_options *options, struct pd_error *error)
{
    struct pd_transport_options made = {
        .loop = &kvx->loop,
        .pool = &kvx->pool,
        .bind_host = options->bind_host,
        .device = options->device,
        .queue_pairs = options->queue_pairs ? options->queue_pairs : PD_RDMA_QPS,
        .busy_poll = options->busy_poll,
        .tls_cert = encrypts(options) ? options->tls_cert : NULL,
        .tls_key = options->tls_key,
        .tls_ca = options->tls_ca,
        .checksum = options->checksum,
        .handshake_ns = (options->silence_ms ? options->silence_ms : DEFAULT_SILENCE_MS) * ms,
        .events = {kvx, on_may_read, on_source_lost, on_connected, on_landed, on_reader_lost},
    };
    struct pd_transport *transport;
    int status;

    if (encrypts(options) && !maker->encrypts && !maker->same_host_only)
        status = pd_fail(error, PD_UNSUPPORTED, "KV over %s cannot be encrypted (--kv-tls)",
                         maker->name);
    else
        status = maker->create(&made, &transport, error);

    if (status == PD_UNSUPPORTED && automatic) {
        pd_log(PD_LOG_INFO, "kvx", "no KV hand-off over %s: %s", maker->name, error->text);
        return PD_OK;
    }
    if (status != PD_OK)
        return status;
    kvx->transports[kvx->transport_count] = transport;
    kvx->choices[kvx->transport_count++] =
        (struct pd_transport_option){.name = maker->name,
                                     .why_not = transport->why_not_served,
                                     .same_host_only = maker->same_host_only,
                                     .tls = transport->certificate != NULL};
    return PD_OK;
}

static int add_transports(struct pd_kvx *kvx, const struct pd_kvx_options *options,
                          struct pd_error *error)
{
    const char *wanted = options->transport ? options->transport : "auto";
    bool automatic = strcmp(wanted, "auto") == 0;

    if (options->queue_pairs > PD_RDMA_QPS_MAX)
        return pd_fail(error, PD_INVALID, "a KV link has at most %d queue pairs, not %u",
                       PD_RDMA_QPS_MAX, options->queue_pairs);
    for (const struct pd_transport_maker *maker = pd_transport_makers;
         maker->name && kvx->transport_count < PD_TRANSPORTS_MAX; maker++) {
        int status = PD_OK;

        if (automatic && maker->devices_only && !pd_pool_on_device(&kvx->pool))
            continue;
        if (automatic || strcmp(wanted, maker->name) == 0)
            status = add_transport(kvx, maker, automatic, options, error);
        if (status != PD_OK)
            return status;
    }
    if (kvx->transport_count == 0)
        return pd_fail(error, PD_INVALID,
                       "KV transport '%s' is not known: choose auto, gpu, shm, rdma or tcp",
                       wanted);
    return PD_OK;
}

static int make_source(struct pd_kvx *kvx, const struct pd_kvx_options *options,
                       uint64_t silence_ns)
{
    struct pd_source_world world = {
        .context = kvx,
        .send = send_from_source,
        .close = close_link,
        .serve = serve,
        .withdraw = withdraw,
        .released = released,
        .stage = stage,
        .sum = sum,
        .link_changed = readers_link_changed,
    };
    struct pd_source_options made = {
        .instance = options->instance,
        .boot = options->boot,
        .epoch = PD_KVX_EPOCH,
        .fingerprint = options->fingerprint,
        .layout = kvx->pool.layout,
        .words = kvx->pool.words,
        .max_tickets = PD_KVX_TICKETS_MAX,
        .max_links = PD_KVX_LINKS_MAX,
        .claim_ns = (options->claim_timeout_ms ? options->claim_timeout_ms : DEFAULT_CLAIM_MS) * ms,
        .silence_ns = silence_ns,
        .release_ns = RELEASE_SILENCES * silence_ns,
    };

    return pd_source_create(&made, &world, &kvx->source);
}

static int make_reader(struct pd_kvx *kvx, const struct pd_kvx_options *options,
                       uint64_t silence_ns)
{
    const char *wanted[PD_TRANSPORTS_MAX + 1] = {NULL};
    struct pd_reader_world world = {
        .context = kvx,
        .next_link = next_link,
        .open = open_link,
        .close = close_link,
        .send = send_to_source,
        .connect = connect_end,
        .read = read_end,
        .arrived = arrived,
        .sum = sum,
        .word = word_of,
        .disconnect = disconnect,
        .claimed = claimed,
        .sampled = sampled,
        .complete = complete,
        .closed = closed,
        .link_changed = sources_link_changed,
    };
    struct pd_reader_options made = {
        .instance = options->instance,
        .host_id = kvx->host_id,
        .transports = wanted,
        .boot = options->boot,
        .fingerprint = options->fingerprint,
        .layout = kvx->pool.layout,
        .max_tokens = options->max_model_len,
        .checksum = options->checksum,
        .tls = encrypts(options),
        .max_fetches = PD_KVX_FETCHES_MAX,
        .max_links = PD_KVX_LINKS_MAX,
        .silence_ns = silence_ns,
        .stall_ns = STALL_SILENCES * silence_ns,
    };

    for (size_t i = 0; i < kvx->transport_count; i++)
        wanted[i] = kvx->choices[i].name;
    return pd_reader_create(&made, &world, &kvx->reader);
}

int pd_kvx_service_init(struct pd_kvx *kvx, const struct pd_kvx_options *options,
                        struct pd_error *error)
{
    uint64_t silence_ns = (options->silence_ms ? options->silence_ms : DEFAULT_SILENCE_MS) * ms;
    int status;

    pd_host_id(kvx->host_id);
    kvx->tick_ns = silence_ns / 10 < 500 * ms ? silence_ns / 10 : 500 * ms;
    if (pd_loop_init(&kvx->loop) != PD_OK)
        return pd_fail(error, PD_IO, "kvx: no epoll");
    status = add_transports(kvx, options, error);
    if (status != PD_OK)
        return status;
    if (make_source(kvx, options, silence_ns) != PD_OK ||
        make_reader(kvx, options, silence_ns) != PD_OK)
        return pd_fail(error, PD_NO_MEMORY, "kvx: no memory");
    return PD_OK;
}

void pd_kvx_service_free(struct pd_kvx *kvx)
{
    if (kvx->source)
        pd_source_destroy(kvx->source);
    if (kvx->reader)
        pd_reader_destroy(kvx->reader);
    for (size_t i = 0; i < kvx->transport_count; i++)
        kvx->transports[i]->kind->destroy(kvx->transports[i]);
    pd_loop_free(&kvx->loop);
}
