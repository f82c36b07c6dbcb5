#include "worker/engine/borrow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/base/clock.h"
#include "worker/base/log.h"
#include "worker/engine/internal.h"

struct pd_borrow {
    LIST_ENTRY(pd_borrow) list;
    struct pd_sequence *sequence; /* that waits for it; NULL: not any more */
    uint64_t number;              /* the fetch's id */
    uint64_t until_ns;
    int32_t *blocks; /* of the ticket's tokens: first what is in the cache, then what is read */
    int block_count, held;
    pd_prefix prefix; /* names the held ones */
    int32_t *tokens;
};

static void free_borrow(struct pd_borrow *b)
{
    free(b->blocks);
    free(b->tokens);
    free(b);
}

/* kvx does not write to the blocks any more. */
static void end(struct pd_engine *engine, struct pd_borrow *b)
{
    if (b->sequence)
        b->sequence->borrow = NULL;
    LIST_REMOVE(b, list);
    pd_block_pool_release(engine->pool, b->blocks, (size_t)b->block_count);
    free_borrow(b);
    atomic_fetch_sub(&engine->living, 1);
}

/* ---- begin ----------------------------------------------------------------------------------- */

static struct pd_borrow *make_borrow(const struct pd_sequence *s, int tokens, int blocks)
{
    struct pd_borrow *b = calloc(1, sizeof(*b));

    if (!b)
        return NULL;
    b->tokens = malloc((size_t)tokens * sizeof(*b->tokens));
    b->blocks = malloc((size_t)blocks * sizeof(*b->blocks));
    if (!b->tokens || !b->blocks) {
        free_borrow(b);
        return NULL;
    }
    memcpy(b->tokens, s->tokens, (size_t)tokens * sizeof(*b->tokens));
    return b;
}

/* Blocks for all of the ticket: those that are here, and fresh ones. False: it has nothing more, or
 * there is no room. If it comes to nothing, the request is to find room all the same. */
static bool take_blocks(struct pd_engine *engine, struct pd_borrow *b, const struct pd_sequence *s,
                        int tokens)
{
    int count = tokens / engine->options.block_size;
    int held =
        (int)pd_block_pool_match(engine->pool, b->tokens, (size_t)tokens, b->blocks, &b->prefix);
    int beside = pd_engine_blocks_for(engine, s->count) - held;
    int32_t after = held ? b->blocks[held - 1] : PD_NO_BLOCK;

    if (held < count &&
        pd_admit_spare_blocks(engine, count - held, beside, after, b->blocks + held)) {
        b->held = held;
        b->block_count = count;
        return true;
    }
    pd_block_pool_release(engine->pool, b->blocks, (size_t)held);
    return false;
}

static uint64_t patience_ns(const struct pd_request *request)
{
    uint64_t ms = request->ticket_wait_ms ? request->ticket_wait_ms : PD_BORROW_MS;

    return (ms < PD_BORROW_MS_MAX ? ms : PD_BORROW_MS_MAX) * UINT64_C(1000000);
}

/* Whole blocks of this prompt, so that at least one token is left to be computed. */
static bool is_useful(const struct pd_engine *engine, const struct pd_sequence *s)
{
    const struct pd_ticket *ticket = &s->request->ticket;

    return ticket->tokens > 0 && engine->options.prefix_caching &&
           ticket->block_size == (uint32_t)engine->options.block_size &&
           ticket->tokens % ticket->block_size == 0 && ticket->tokens < (uint32_t)s->count;
}

void pd_borrow_begin(struct pd_engine *engine, struct pd_sequence *s)
{
    int tokens = (int)s->request->ticket.tokens;
    struct pd_borrow *b;

    if (!is_useful(engine, s))
        return;
    b = make_borrow(s, tokens, tokens / engine->options.block_size);
    if (!b)
        return;
    if (!take_blocks(engine, b, s, tokens)) {
        free_borrow(b);
        return;
    }
    b->number = ++engine->last_number;
    LIST_INSERT_HEAD(&engine->borrows, b, list);
    atomic_fetch_add(&engine->living, 1);
    if (pd_kvx_fetch(engine->kvx, b->number, &s->request->ticket) != PD_OK) {
        end(engine, b);
        return;
    }
    b->until_ns = pd_clock_ns() + patience_ns(s->request);
    b->sequence = s;
    s->borrow = b;
    s->own = (uint32_t)(b->held * engine->options.block_size);
}

/* ---- the end of the waiting ------------------------------------------------------------------ */

void pd_borrow_leave(struct pd_engine *engine, struct pd_sequence *s)
{
    struct pd_borrow *b = s->borrow;

    if (!b)
        return;
    s->borrow = NULL;
    b->sequence = NULL;
    pd_kvx_fetch_cancel(engine->kvx, b->number);
}

static void fail(struct pd_sequence *s, const char *why)
{
    char name[PD_REQUEST_NAME];

    snprintf(s->borrow_failed, sizeof(s->borrow_failed), "%s", why);
    pd_log(PD_LOG_DEBUG, "engine", "request %s: nothing is borrowed from %s: %s",
           pd_request_name(s->request, name), s->request->ticket.instance, why);
}

void pd_borrow_expire(struct pd_engine *engine, uint64_t now_ns)
{
    struct pd_borrow *b;

    LIST_FOREACH (b, &engine->borrows, list) {
        struct pd_sequence *s = b->sequence;

        if (!s || now_ns < b->until_ns)
            continue;
        fail(s, "it did not come in time");
        pd_borrow_leave(engine, s);
    }
}

uint64_t pd_borrow_deadline(const struct pd_engine *engine)
{
    uint64_t deadline = UINT64_MAX;
    const struct pd_borrow *b;

    LIST_FOREACH (b, &engine->borrows, list) {
        if (b->sequence && b->until_ns < deadline)
            deadline = b->until_ns;
    }
    return deadline;
}

/* ---- kvx's words ----------------------------------------------------------------------------- */

/* The owner's tokens are to be the prompt's: what it has computed is trusted, what it is of is not. */
static void claimed(struct pd_engine *engine, struct pd_borrow *b,
                    const struct pd_engine_message *m)
{
    size_t count = (size_t)b->block_count * (size_t)engine->options.block_size;

    if (!b->sequence)
        return;
    if (m->count != count || memcmp(m->prompt, b->tokens, count * sizeof(*b->tokens)) != 0) {
        fail(b->sequence, "the ticket is of another prompt");
        pd_borrow_leave(engine, b->sequence);
        return;
    }
    pd_kvx_fetch_want(engine->kvx, b->number, (size_t)b->held, b->blocks, (size_t)b->block_count);
}

static void publish(struct pd_engine *engine, const struct pd_borrow *b)
{
    int size = engine->options.block_size;
    pd_prefix prefix = b->prefix;

    for (int i = b->held; i < b->block_count; i++)
        prefix = pd_block_pool_publish(engine->pool, prefix, b->tokens + i * size, b->blocks[i]);
}

/* Nobody may wait for it any more: it is as good for the next. */
static void complete(struct pd_engine *engine, struct pd_borrow *b,
                     const struct pd_engine_message *m)
{
    struct pd_sequence *s = b->sequence;

    if (pd_fence_remote_writes(engine->device) == PD_KERNEL_OK) {
        publish(engine, b);
        if (s) {
            s->borrowed = (uint32_t)((b->block_count - b->held) * engine->options.block_size);
            s->timing.kv = m->stats;
            engine->load.borrowed_tokens += s->borrowed;
        }
    } else if (s) {
        fail(s, "what was received cannot be made visible to the device");
    }
    end(engine, b);
}

bool pd_borrow_handle(struct pd_engine *engine, const struct pd_engine_message *m)
{
    struct pd_borrow *b;

    LIST_FOREACH (b, &engine->borrows, list) {
        if (b->number == m->number)
            break;
    }
    if (!b)
        return false;
    switch ((enum pd_engine_message_kind)m->message.kind) {
    case PD_ENGINE_CLAIMED:
        claimed(engine, b, m);
        break;
    case PD_ENGINE_COMPLETE:
        complete(engine, b, m);
        break;
    case PD_ENGINE_CLOSED:
        if (b->sequence)
            fail(b->sequence, m->why);
        end(engine, b);
        break;
    default: /* SAMPLED: an offer has no token */
        break;
    }
    return true;
}

/* ---- for the engine -------------------------------------------------------------------------- */

uint64_t pd_borrow_blocks(const struct pd_engine *engine)
{
    const struct pd_borrow *b;
    uint64_t blocks = 0;

    LIST_FOREACH (b, &engine->borrows, list) {
        blocks += (uint64_t)(b->block_count - b->held);
    }
    return blocks;
}

void pd_borrow_destroy(struct pd_engine *engine)
{
    struct pd_borrow *b;

    while ((b = LIST_FIRST(&engine->borrows))) {
        LIST_REMOVE(b, list);
        free_borrow(b);
    }
}
