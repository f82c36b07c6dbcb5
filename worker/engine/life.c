/* How a sequence ends, and when what it held is free again.
 *
 * An end has two halves that may lie far apart: the last word to whoever asked, at once, and the
 * return of slot and blocks, when no launched step and no transfer can touch them any more. */
#include "worker/engine/internal.h"

#include <string.h>

#include "worker/base/clock.h"

void pd_sequence_drop_room(struct pd_engine *engine, struct pd_sequence *sequence)
{
    if (sequence->slot >= 0)
        engine->free_slots[engine->free_slot_count++] = sequence->slot;
    sequence->slot = -1;
    pd_block_pool_release(engine->pool, sequence->blocks, (size_t)sequence->block_count);
    sequence->block_count = 0;
    sequence->published = 0;
    sequence->prefix = PD_PREFIX_EMPTY;
}

void pd_sequence_publish(struct pd_engine *engine, struct pd_sequence *s)
{
    int size = engine->options.block_size;
    int known = s->collected < s->count ? s->collected : s->count;

    for (; (s->published + 1) * size <= known; s->published++)
        s->prefix = pd_block_pool_publish(engine->pool, s->prefix, s->tokens + s->published * size,
                                          s->blocks[s->published]);
}

void pd_sequence_settle(struct pd_engine *engine, struct pd_sequence *sequence)
{
    if (sequence->phase != PD_PHASE_ENDED || sequence->in_flight > 0)
        return;
    if (sequence->slot >= 0) {
        engine->free_slots[engine->free_slot_count++] = sequence->slot;
        sequence->slot = -1;
    }
    if (sequence->in_transfer)
        return;
    pd_sequence_drop_room(engine, sequence);
    pd_sequence_table_remove(&engine->table, sequence);
    pd_sequence_free(sequence);
    atomic_fetch_sub(&engine->living, 1);
}

void pd_sequence_end(struct pd_engine *engine, struct pd_sequence *sequence)
{
    switch (sequence->phase) {
    case PD_PHASE_WAITING:
        TAILQ_REMOVE(&engine->waiting, sequence, queue);
        engine->waiting_count--;
        pd_borrow_leave(engine, sequence);
        break;
    case PD_PHASE_RUNNING:
        TAILQ_REMOVE(&engine->running, sequence, queue);
        break;
    case PD_PHASE_NEW:
    case PD_PHASE_RECEIVING:
    case PD_PHASE_ENDED:
        break;
    }
    sequence->phase = PD_PHASE_ENDED;
    pd_sequence_settle(engine, sequence);
}

void pd_sequence_abort(struct pd_engine *engine, struct pd_sequence *sequence, int code,
                       const char *message)
{
    struct pd_attempt id = sequence->request->id;
    uint32_t prompt = (uint32_t)sequence->prompt;
    bool counts = sequence->request->route != PD_ROUTE_OFFER;

    if (sequence->in_transfer)
        pd_transfer_recall(engine, sequence, message);
    if (sequence->phase == PD_PHASE_ENDED)
        return;
    engine->load.ended_failed += counts;
    pd_sequence_end(engine, sequence);
    pd_engine_say_failed(engine, &id, code, prompt, "", message);
}

void pd_sequence_abort_all(struct pd_engine *engine, int code, const char *message)
{
    struct pd_sequence *next;

    for (struct pd_sequence *s = TAILQ_FIRST(&engine->table.all); s; s = next) {
        next = TAILQ_NEXT(s, all);
        pd_sequence_abort(engine, s, code, message);
    }
}

void pd_sequence_expire(struct pd_engine *engine, uint64_t now_ns)
{
    struct pd_sequence *next;

    if (now_ns < engine->next_deadline_ns)
        return;
    engine->next_deadline_ns = UINT64_MAX;
    for (struct pd_sequence *s = TAILQ_FIRST(&engine->table.all); s; s = next) {
        uint64_t deadline = s->request->deadline_ns;

        next = TAILQ_NEXT(s, all);
        if (deadline == 0 || s->phase == PD_PHASE_ENDED)
            continue;
        if (deadline <= now_ns)
            pd_sequence_abort(engine, s, PD__V1__FAILED__CODE__DEADLINE,
                              "the request's deadline has passed");
        else if (deadline < engine->next_deadline_ns)
            engine->next_deadline_ns = deadline;
    }
}
