/* The engine's side of the hand-off: tickets that it offers, prompts that it receives.
 *
 *   PREFILL  placed ─offer─▶ [kvx] ◀─ready─ each step ... ◀─complete─ first token
 *                              └──released──▶ the blocks are ours again
 *
 *   DECODE   room reserved ─fetch─▶ [kvx] ──claimed──▶ cache hits swapped in ─want─▶ [kvx]
 *                              └──complete──▶ decode, or ──closed──▶ the blocks are ours again
 *
 * Between the first and the last arrow kvx may touch the blocks, whatever becomes of the request.
 * kvx speaks on its own thread; its words come through the mailbox like everybody's. */
#include "worker/engine/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "worker/base/clock.h"
#include "worker/engine/must.h"

/* ---- PREFILL: the source --------------------------------------------------------------------- */

bool pd_transfer_offer(struct pd_engine *engine, struct pd_sequence *s, struct pd_ticket *ticket)
{
    struct pd_kvx_offer offer = {
        .generation = s->number,
        .blocks = s->blocks,
        .block_count = (size_t)s->block_count,
        .prompt = s->tokens,
        .tokens = (uint32_t)s->count,
        .owner = s->request->id.attach,
    };

    if (getrandom(offer.secret, sizeof(offer.secret), 0) != sizeof(offer.secret) ||
        pd_kvx_offer(engine->kvx, &offer) != PD_OK)
        return false;
    s->in_transfer = true;
    if (s->collected > 0) /* found in the cache */
        pd_kvx_ready(engine->kvx, s->number, (uint32_t)s->collected);
    *ticket = (struct pd_ticket){
        .boot = engine->options.boot,
        .epoch = PD_KVX_EPOCH,
        .generation = s->number,
        .tokens = offer.tokens,
        .block_size = (uint32_t)engine->options.block_size,
        .fingerprint = engine->fingerprint,
    };
    snprintf(ticket->instance, sizeof(ticket->instance), "%s", engine->instance);
    snprintf(ticket->address, sizeof(ticket->address), "%s", engine->kv_address);
    memcpy(ticket->secret, offer.secret, sizeof(ticket->secret));
    return true;
}

static void released(struct pd_engine *engine, struct pd_sequence *s)
{
    s->in_transfer = false;
    if (s->phase != PD_PHASE_ENDED)
        pd_sequence_abort(engine, s, PD__V1__FAILED__CODE__TICKET,
                          "the ticket was given back before the prompt was computed");
    else
        pd_sequence_settle(engine, s);
}

/* ---- DECODE: the reader ---------------------------------------------------------------------- */

bool pd_transfer_fetch(struct pd_engine *engine, struct pd_sequence *s)
{
    if (pd_kvx_fetch(engine->kvx, s->number, &s->request->ticket) != PD_OK)
        return false;
    s->in_transfer = true;
    s->started_ns = pd_clock_ns();
    return true;
}

/* Whether what the source says it computed is what was asked for. */
static bool trust_prompt(const struct pd_engine *engine, const struct pd_sequence *s,
                         const int32_t *prompt, size_t count)
{
    const struct pd_tokens *generated = &s->request->generated;

    if (count != (size_t)s->prompt + generated->count)
        return false;
    for (size_t i = 0; i < count; i++)
        if (prompt[i] < 0 || prompt[i] >= engine->vocabulary)
            return false;
    for (size_t i = 0; i < generated->count; i++)
        if (prompt[(size_t)s->prompt + i] != generated->ids[i])
            return false;
    return true;
}

/* Whether the block behind the first `hits` of this sequence is just being received for another. */
static bool comes_for_another(const struct pd_engine *engine, const struct pd_sequence *s, int hits)
{
    int tokens = (hits + 1) * engine->options.block_size;
    const struct pd_sequence *other;

    if (!engine->options.prefix_caching || tokens > s->count)
        return false;
    TAILQ_FOREACH (other, &engine->table.all, all) {
        if (other != s && other->phase == PD_PHASE_RECEIVING && !other->awaits &&
            other->count >= tokens &&
            memcmp(other->tokens, s->tokens, (size_t)tokens * sizeof(*s->tokens)) == 0)
            return true;
    }
    return false;
}

/* Blocks that are in our own cache need not be read: they take the place of reserved ones. Those that
 * another receives are waited for, so that answers to one prompt read and hold it once. */
static void want(struct pd_engine *engine, struct pd_sequence *s)
{
    int32_t *hits = pd_must_alloc(((size_t)s->block_count + 1) * sizeof(*hits));
    size_t count = pd_block_pool_match(engine->pool, s->tokens, (size_t)s->count, hits, &s->prefix);

    s->awaits = comes_for_another(engine, s, (int)count);
    if (s->awaits) {
        pd_block_pool_release(engine->pool, hits, count);
        s->prefix = PD_PREFIX_EMPTY;
    } else {
        pd_block_pool_release(engine->pool, s->blocks, count);
        memcpy(s->blocks, hits, count * sizeof(*hits));
        s->published = (int)count;
        engine->load.cache_hit_tokens += count * (size_t)engine->options.block_size;
        pd_kvx_fetch_want(engine->kvx, s->number, count, s->blocks, (size_t)s->block_count);
    }
    free(hits);
}

void pd_transfer_go_on(struct pd_engine *engine)
{
    struct pd_sequence *s;

    TAILQ_FOREACH (s, &engine->table.all, all) {
        if (s->phase == PD_PHASE_RECEIVING && s->awaits)
            want(engine, s);
    }
}

static void claimed(struct pd_engine *engine, struct pd_sequence *s,
                    const struct pd_engine_message *m)
{
    if (s->phase != PD_PHASE_RECEIVING)
        return;
    if (s->count > 0 || !trust_prompt(engine, s, m->prompt, m->count)) {
        pd_sequence_abort(engine, s, PD__V1__FAILED__CODE__TICKET,
                          "the ticket's prompt is not the one that was asked for");
        return;
    }
    memcpy(s->tokens, m->prompt, m->count * sizeof(*m->prompt));
    s->count = (int)m->count;
    want(engine, s);
}

static bool is_token(const struct pd_engine *engine, uint32_t token)
{
    return token < (uint32_t)engine->vocabulary;
}

/* The source's first token, checked, and its log probabilities in `logprobs`, of which a source of an
 * earlier protocol says nothing. False: the sequence has failed. */
static bool trust_token(struct pd_engine *engine, struct pd_sequence *s,
                        const struct pd_kvx_first *from,
                        struct pd_token_logprob logprobs[PD_KVX_CHANCES], struct pd_sampled *first)
{
    bool known = s->count > 0 && is_token(engine, from->token) &&
                 from->finish >= PD__V1__FINISH_REASON__FINISH_NONE &&
                 from->finish <= PD__V1__FINISH_REASON__FINISH_TOOL_CALLS;

    for (uint32_t i = 0; i < from->chances; i++) {
        known = known && is_token(engine, from->chance[i].token);
        logprobs[i] =
            (struct pd_token_logprob){(int32_t)from->chance[i].token, from->chance[i].logprob};
    }
    if (!known) {
        pd_sequence_abort(engine, s, PD__V1__FAILED__CODE__TICKET,
                          "the source's first token is none of this model's");
        return false;
    }
    *first = (struct pd_sampled){.token = (int32_t)from->token, .forced = from->finish};
    if ((int)from->chances == s->request->sampling.logprobs) {
        first->logprobs = logprobs;
        first->stride = (int)from->chances;
    }
    return true;
}

/* An answer that ends with the source's token needs no KV: nothing more is read. */
static void sampled(struct pd_engine *engine, struct pd_sequence *s,
                    const struct pd_engine_message *m)
{
    struct pd_token_logprob logprobs[PD_KVX_CHANCES];
    struct pd_sampled first;

    if (s->phase != PD_PHASE_RECEIVING)
        return;
    s->sampled_ns = pd_clock_ns();
    if (m->first.finish == PD__V1__FINISH_REASON__FINISH_NONE ||
        !trust_token(engine, s, &m->first, logprobs, &first))
        return;
    pd_transfer_recall(engine, s, "");
    pd_answer_accept(engine, s, &first);
}

static void complete(struct pd_engine *engine, struct pd_sequence *s,
                     const struct pd_engine_message *m)
{
    struct pd_token_logprob logprobs[PD_KVX_CHANCES];
    struct pd_sampled first;

    s->in_transfer = false;
    if (s->phase != PD_PHASE_RECEIVING) {
        pd_sequence_settle(engine, s);
        return;
    }
    if (!trust_token(engine, s, &m->first, logprobs, &first))
        return;
    if (pd_fence_remote_writes(engine->device) != PD_KERNEL_OK) {
        pd_sequence_abort(engine, s, PD__V1__FAILED__CODE__INTERNAL,
                          "the received KV cannot be made visible to the device");
        return;
    }
    s->cached = m->first.cached < (uint32_t)s->prompt ? m->first.cached : (uint32_t)s->prompt;
    s->timing.kv = m->stats;
    s->launched = s->collected = s->target = s->count;
    s->history_behind = true;
    pd_sequence_publish(engine, s);
    s->phase = PD_PHASE_RUNNING;
    TAILQ_INSERT_TAIL(&engine->running, s, queue);
    pd_answer_accept(engine, s, &first);
}

static void closed(struct pd_engine *engine, struct pd_sequence *s,
                   const struct pd_engine_message *m)
{
    s->in_transfer = false;
    if (s->phase != PD_PHASE_ENDED)
        pd_sequence_abort(engine, s, PD__V1__FAILED__CODE__TICKET, m->why);
    else
        pd_sequence_settle(engine, s);
}

void pd_transfer_recall(struct pd_engine *engine, struct pd_sequence *s, const char *why)
{
    if (s->recalled)
        return;
    s->recalled = true;
    if (pd_sequence_offers(s))
        pd_kvx_revoke(engine->kvx, s->number, why);
    else
        pd_kvx_fetch_cancel(engine->kvx, s->number);
}

void pd_transfer_handle(struct pd_engine *engine, const struct pd_engine_message *m)
{
    struct pd_sequence *s = pd_sequence_by_number(&engine->table, m->number);

    if (!s || !s->in_transfer) {
        pd_borrow_handle(engine, m);
        return;
    }
    switch ((enum pd_engine_message_kind)m->message.kind) {
    case PD_ENGINE_RELEASED:
        released(engine, s);
        break;
    case PD_ENGINE_CLAIMED:
        claimed(engine, s, m);
        break;
    case PD_ENGINE_SAMPLED:
        sampled(engine, s, m);
        break;
    case PD_ENGINE_COMPLETE:
        complete(engine, s, m);
        break;
    case PD_ENGINE_CLOSED:
        closed(engine, s, m);
        break;
    default:
        break;
    }
}

/* ---- kvx's thread ---------------------------------------------------------------------------- */

static struct pd_engine_message *message_of(enum pd_engine_message_kind kind, uint64_t number)
{
    struct pd_engine_message *m = pd_must_alloc(sizeof(*m));

    m->message.kind = kind;
    m->number = number;
    return m;
}

static void post(void *context, struct pd_engine_message *m)
{
    struct pd_engine *engine = context;

    if (pd_mailbox_put(&engine->box, &m->message, PD_MAILBOX_ALWAYS) != PD_OK)
        pd_engine_message_free(m); /* stopped: nobody waits for it */
}

static void on_released(void *context, uint64_t generation)
{
    post(context, message_of(PD_ENGINE_RELEASED, generation));
}

/* A copy that finds no memory is sent as an empty prompt, which no request asked for. */
static void on_claimed(void *context, uint64_t fetch, const uint32_t *prompt, size_t count)
{
    struct pd_engine_message *m = message_of(PD_ENGINE_CLAIMED, fetch);

    m->prompt = malloc(count * sizeof(*m->prompt));
    if (m->prompt) {
        m->count = count;
        memcpy(m->prompt, prompt, count * sizeof(*prompt));
    }
    post(context, m);
}

static void on_sampled(void *context, uint64_t fetch, const struct pd_kvx_first *first)
{
    struct pd_engine_message *m = message_of(PD_ENGINE_SAMPLED, fetch);

    m->first = *first;
    post(context, m);
}

static void on_complete(void *context, uint64_t fetch, const struct pd_kvx_first *first,
                        const struct pd_kvx_stats *stats)
{
    struct pd_engine_message *m = message_of(PD_ENGINE_COMPLETE, fetch);

    m->first = *first;
    m->stats = *stats;
    post(context, m);
}

static void on_closed(void *context, uint64_t fetch, bool cancelled, const char *why)
{
    struct pd_engine_message *m = message_of(PD_ENGINE_CLOSED, fetch);

    snprintf(m->why, sizeof(m->why), "%s",
             why && *why ? why
             : cancelled ? "the fetch was cancelled"
                         : "the KV hand-off failed");
    post(context, m);
}

void pd_engine_kvx_callbacks(struct pd_engine *engine, struct pd_kvx_callbacks *callbacks)
{
    callbacks->engine = engine;
    callbacks->released = on_released;
    callbacks->claimed = on_claimed;
    callbacks->sampled = on_sampled;
    callbacks->complete = on_complete;
    callbacks->closed = on_closed;
}
