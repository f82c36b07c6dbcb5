/* The calls of kvx.h: each becomes a message to the thread in service.c, and returns. */
#include "worker/kvx/kvx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/base/clock.h"
#include "worker/base/log.h"
#include "worker/kvx/kvx_state.h"

/* ---- posting --------------------------------------------------------------------------------- */

/* A call that ends something must not get lost; without memory for it this process cannot keep the
 * protocol, and its peers are better off seeing it die. */
static struct pd_kvx_call *new_call(enum pd_kvx_call_kind kind, uint64_t id)
{
    struct pd_kvx_call *call = calloc(1, sizeof(*call));

    if (!call) {
        pd_log(PD_LOG_ERROR, "kvx", "out of memory");
        abort();
    }
    call->message.kind = (int)kind;
    call->id = id;
    return call;
}

/* The number of waiting calls is bounded by what they are about: tickets, fetches, links and their
 * gauges. PD_CLOSED once the thread has stopped. */
static int post(struct pd_kvx *kvx, struct pd_kvx_call *call)
{
    int status = pd_mailbox_put(&kvx->box, &call->message, PD_MAILBOX_ALWAYS);

    if (status != PD_OK)
        pd_kvx_call_free(call);
    return status;
}

void pd_kvx_call_free(struct pd_kvx_call *call)
{
    switch ((enum pd_kvx_call_kind)call->message.kind) {
    case PD_CALL_OFFER:
        if (call->ticket)
            pd_source_ticket_free(call->ticket);
        break;
    case PD_CALL_FETCH:
        free(call->fetch);
        break;
    case PD_CALL_WANT:
        free(call->want.blocks);
        break;
    case PD_CALL_RECEIVE:
        free(call->receive.bytes);
        break;
    default:
        break;
    }
    free(call);
}

/* Takes one of `limit` places, or says that none is left. */
static bool take_place(atomic_size_t *taken, size_t limit)
{
    if (atomic_fetch_add(taken, 1) < limit)
        return true;
    atomic_fetch_sub(taken, 1);
    return false;
}

static void wake(void *context)
{
    struct pd_kvx *kvx = context;

    pd_loop_interrupt(&kvx->loop);
}

/* ---- life ------------------------------------------------------------------------------------ */

void pd_kvx_unmake(struct pd_kvx *kvx)
{
    pd_kvx_service_free(kvx);
    pd_pool_unmap(&kvx->pool);
    pd_mailbox_destroy(&kvx->box);
    pthread_mutex_destroy(&kvx->states_lock);
    free(kvx->states);
    free(kvx);
}

int pd_kvx_make(const struct pd_kvx_options *options, struct pd_kvx **out, struct pd_error *error)
{
    struct pd_kvx *kvx = calloc(1, sizeof(*kvx));
    int status;

    if (!kvx)
        return pd_fail(error, PD_NO_MEMORY, "kvx: no memory");
    kvx->callbacks = options->callbacks;
    kvx->max_tokens = options->max_model_len;
    kvx->clock = pd_clock_ns;
    for (int r = 0; r < PD_RANKS_MAX; r++)
        kvx->pool.readers_fd[r] = -1;
    kvx->loop.epoll = kvx->loop.wake = -1;
    atomic_init(&kvx->next_link, 1);
    pthread_mutex_init(&kvx->states_lock, NULL);
    pd_mailbox_init(&kvx->box, 1, wake, kvx); /* the limit is never used: see post() */
    kvx->states = calloc(PD_KVX_LINKS_MAX, sizeof(*kvx->states));
    if (!kvx->states)
        status = pd_fail(error, PD_NO_MEMORY, "kvx: no memory");
    else
        status = pd_pool_map(&kvx->pool, &options->pool, options->ranks, options->kv_heads,
                             options->memory, error);
    if (status == PD_OK)
        status = pd_kvx_service_init(kvx, options, error);
    if (status != PD_OK)
        pd_kvx_unmake(kvx);
    else
        *out = kvx;
    return status;
}

static void *run(void *kvx)
{
    pthread_setname_np(pthread_self(), "kvx");
    while (pd_kvx_service_turn(kvx, true))
        ;
    return NULL;
}

int pd_kvx_create(const struct pd_kvx_options *options, struct pd_kvx **out, struct pd_error *error)
{
    struct pd_kvx *kvx;
    int status = pd_kvx_make(options, &kvx, error);

    if (status != PD_OK)
        return status;
    status = pthread_create(&kvx->thread, NULL, run, kvx);
    if (status != 0) {
        pd_kvx_unmake(kvx);
        return pd_fail(error, PD_IO, "kvx: no thread: %s", strerror(status));
    }
    *out = kvx;
    return PD_OK;
}

void pd_kvx_stop(struct pd_kvx *kvx)
{
    post(kvx, new_call(PD_CALL_STOP, 0));
}

void pd_kvx_destroy(struct pd_kvx *kvx)
{
    pd_kvx_stop(kvx);
    pthread_join(kvx->thread, NULL);
    pd_kvx_unmake(kvx);
}

size_t pd_kvx_pool_bytes(const struct pd_kv_pool *pool, int ranks)
{
    struct pd_layout layout;

    return pd_layout_of_pool(pool, ranks, 0, &layout, NULL) == PD_OK ? layout.total : 0;
}

/* ---- source ---------------------------------------------------------------------------------- */

int pd_kvx_offer(struct pd_kvx *kvx, const struct pd_kvx_offer *offer)
{
    struct pd_source_ticket *ticket;
    struct pd_kvx_call *call;
    int status;

    if (offer->tokens > kvx->max_tokens)
        return PD_INVALID;
    if (!take_place(&kvx->tickets, PD_KVX_TICKETS_MAX))
        return PD_FULL;
    status = pd_source_ticket_create(offer, &kvx->pool.layout, &ticket);
    if (status == PD_OK) {
        call = new_call(PD_CALL_OFFER, offer->generation);
        call->ticket = ticket;
        status = post(kvx, call);
    }
    if (status != PD_OK)
        atomic_fetch_sub(&kvx->tickets, 1);
    return status;
}

void pd_kvx_ready(struct pd_kvx *kvx, uint64_t generation, uint32_t tokens)
{
    struct pd_kvx_call *call = new_call(PD_CALL_READY, generation);

    call->tokens = tokens;
    post(kvx, call);
}

void pd_kvx_complete(struct pd_kvx *kvx, uint64_t generation, const struct pd_kvx_first *first)
{
    struct pd_kvx_call *call = new_call(PD_CALL_COMPLETE, generation);

    call->first = *first;
    post(kvx, call);
}

void pd_kvx_revoke(struct pd_kvx *kvx, uint64_t generation, const char *why)
{
    struct pd_kvx_call *call = new_call(PD_CALL_REVOKE, generation);

    pd_kv_cut(call->why, sizeof(call->why), why);
    post(kvx, call);
}

void pd_kvx_forget_owner(struct pd_kvx *kvx, uint64_t owner)
{
    post(kvx, new_call(PD_CALL_FORGET_OWNER, owner));
}

void pd_kvx_recycled(struct pd_kvx *kvx, const int32_t *blocks, size_t count)
{
    pd_pool_recycled(&kvx->pool, blocks, count);
}

/* ---- reader ---------------------------------------------------------------------------------- */

int pd_kvx_fetch(struct pd_kvx *kvx, uint64_t fetch, const struct pd_ticket *ticket)
{
    struct pd_kvx_call *call;
    struct pd_ticket *copy;
    int status;

    if (!take_place(&kvx->fetches, PD_KVX_FETCHES_MAX))
        return PD_FULL;
    copy = malloc(sizeof(*copy));
    if (!copy) {
        status = PD_NO_MEMORY;
    } else {
        *copy = *ticket;
        call = new_call(PD_CALL_FETCH, fetch);
        call->fetch = copy;
        status = post(kvx, call);
    }
    if (status != PD_OK)
        atomic_fetch_sub(&kvx->fetches, 1);
    return status;
}

void pd_kvx_fetch_want(struct pd_kvx *kvx, uint64_t fetch, size_t from_block, const int32_t *blocks,
                       size_t block_count)
{
    struct pd_kvx_call *call = new_call(PD_CALL_WANT, fetch);

    call->want.blocks = calloc(block_count + 1, sizeof(*blocks));
    if (!call->want.blocks) { /* as good as a cancel: the engine hears `closed` */
        call->message.kind = PD_CALL_CANCEL;
    } else {
        if (block_count > 0)
            memcpy(call->want.blocks, blocks, block_count * sizeof(*blocks));
        call->want.from = from_block;
        call->want.count = block_count;
    }
    post(kvx, call);
}

void pd_kvx_fetch_cancel(struct pd_kvx *kvx, uint64_t fetch)
{
    post(kvx, new_call(PD_CALL_CANCEL, fetch));
}

/* ---- control streams ------------------------------------------------------------------------- */

uint64_t pd_kvx_next_link_id(struct pd_kvx *kvx)
{
    return atomic_fetch_add(&kvx->next_link, 1);
}

void pd_kvx_link_up(struct pd_kvx *kvx, uint64_t id)
{
    post(kvx, new_call(PD_CALL_LINK_UP, id));
}

void pd_kvx_link_down(struct pd_kvx *kvx, uint64_t id, const char *why)
{
    struct pd_kvx_call *call = new_call(PD_CALL_LINK_DOWN, id);

    pd_kv_cut(call->why, sizeof(call->why), why);
    post(kvx, call);
}

void pd_kvx_reader_up(struct pd_kvx *kvx, uint64_t id, const char *peer)
{
    struct pd_kvx_call *call = new_call(PD_CALL_READER_UP, id);

    pd_kv_cut(call->why, sizeof(call->why), peer);
    post(kvx, call);
}

/* Counted against the link's gauge until the thread has read it. */
void pd_kvx_receive(struct pd_kvx *kvx, uint64_t id, const uint8_t *bytes, size_t length)
{
    struct pd_kvx_gauge *gauge = pd_kvx_gauge_of(kvx, id);
    size_t cost = sizeof(struct pd_kvx_call) + length;
    struct pd_kvx_call *call;
    uint8_t *copy = NULL;

    if (atomic_fetch_add(&gauge->waiting, cost) + cost <= PD_KVX_GAUGE_MAX)
        copy = malloc(length + 1);
    if (!copy) {
        atomic_fetch_sub(&gauge->waiting, cost);
        if (!atomic_exchange(&gauge->flooded, true))
            post(kvx, new_call(PD_CALL_FLOOD, id));
        return;
    }
    if (length > 0)
        memcpy(copy, bytes, length);
    call = new_call(PD_CALL_RECEIVE, id);
    call->receive.bytes = copy;
    call->receive.length = length;
    post(kvx, call);
}

/* ---- reports --------------------------------------------------------------------------------- */

size_t pd_kvx_transports(const struct pd_kvx *kvx, const char **names, size_t capacity)
{
    size_t count = kvx->transport_count < capacity ? kvx->transport_count : capacity;

    for (size_t i = 0; i < count; i++)
        names[i] = kvx->choices[i].name;
    return count;
}

size_t pd_kvx_links(struct pd_kvx *kvx, struct pd_kvx_link_state *states, size_t capacity)
{
    size_t count;

    pthread_mutex_lock(&kvx->states_lock);
    count = kvx->state_count < capacity ? kvx->state_count : capacity;
    memcpy(states, kvx->states, count * sizeof(*states));
    pthread_mutex_unlock(&kvx->states_lock);
    return count;
}
