/* The engine's thread and its doors: what other threads may call, and the loop that answers.
 *
 *   loop:  take the mailbox ─▶ deadlines ─▶ admit ─▶ one step ─▶ say what is left ─▶ copy the load
 *
 * The loop sleeps only in the mailbox, and only when no step is in flight and none can be launched.
 */
#include "worker/engine/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/base/clock.h"
#include "worker/base/log.h"
#include "worker/engine/must.h"

enum {
    TICK_MS = 1000,      /* an idle engine shows that it lives */
    STOP_MS = 30000,     /* for kvx to let go of everything */
    MAILBOX_SLACK = 256, /* submissions that may wait beside those that the queue takes */
};

/* ---- making and unmaking --------------------------------------------------------------------- */

static int check_options(const struct pd_engine_options *options, struct pd_error *error)
{
    int64_t tokens = options->kv_blocks * options->block_size;

    if (options->max_seqs < 1 || options->max_tokens < options->max_seqs)
        return pd_fail(error, PD_INVALID,
                       "a step must hold a token of every sequence: --max-num-batched-tokens (%d) "
                       "must be at least --max-num-seqs (%d)",
                       options->max_tokens, options->max_seqs);
    if (options->max_model_len < 2 || tokens < options->max_model_len)
        return pd_fail(error, PD_INVALID,
                       "the KV pool holds %lld tokens and cannot take one sequence of "
                       "--max-model-len %d",
                       (long long)tokens, options->max_model_len);
    if (options->max_waiting < 1)
        return pd_fail(error, PD_INVALID, "the engine's queue must hold at least one request");
    return PD_OK;
}

static int make_tables(struct pd_engine *engine)
{
    size_t seqs = (size_t)engine->options.max_seqs;

    engine->free_slots = calloc(seqs, sizeof(*engine->free_slots));
    engine->plan = calloc(seqs, sizeof(*engine->plan));
    engine->prompts = calloc(seqs, sizeof(struct pd_sequence *));
    for (int i = 0; i < PD_FLIGHTS; i++)
        engine->flights[i].shares = calloc(seqs, sizeof(*engine->flights[i].shares));
    engine->instance = strdup(engine->options.instance ? engine->options.instance : "");
    engine->kv_address = strdup(engine->options.kv_address ? engine->options.kv_address : "");
    if (!pd_outbox_init(&engine->outbox, seqs) || !engine->free_slots || !engine->plan ||
        !engine->prompts || !engine->flights[0].shares || !engine->flights[1].shares ||
        !engine->instance || !engine->kv_address)
        return PD_NO_MEMORY;
    for (int slot = engine->options.max_seqs; slot-- > 0;)
        engine->free_slots[engine->free_slot_count++] = slot;
    return PD_OK;
}

int pd_engine_create(const struct pd_engine_options *options, struct pd_model *model,
                     const struct pd_model_config *config, struct pd_device *device,
                     struct pd_engine **result, struct pd_error *error)
{
    struct pd_block_pool_options pool = {options->kv_blocks, options->block_size,
                                         options->prefix_caching};
    struct pd_engine *engine;

    *result = NULL;
    if (check_options(options, error) != PD_OK)
        return PD_INVALID;
    engine = calloc(1, sizeof(*engine));
    if (!engine)
        return pd_fail(error, PD_NO_MEMORY, "no memory for the engine");
    engine->options = *options;
    engine->vocabulary = config->vocabulary;
    memcpy(engine->eos_tokens, config->eos, sizeof(engine->eos_tokens));
    engine->eos = (struct pd_eos){engine->eos_tokens, config->eos_count};
    engine->device = device;
    engine->graph = pd_model_graph(model);
    engine->fingerprint = *pd_model_fingerprint(model);
    engine->next_deadline_ns = UINT64_MAX;
    pd_pace_init(&engine->pace, options->max_tokens, options->chunk_ms, pd_device_cuts(device));
    pd_sequence_table_init(&engine->table);
    LIST_INIT(&engine->borrows);
    TAILQ_INIT(&engine->waiting);
    TAILQ_INIT(&engine->running);
    pthread_mutex_init(&engine->load_lock, NULL);
    pd_mailbox_init(&engine->box, (size_t)options->max_waiting + MAILBOX_SLACK, NULL, NULL);
    if (make_tables(engine) != PD_OK ||
        pd_block_pool_create(&pool, &engine->pool, error) != PD_OK) {
        pd_engine_destroy(engine);
        return pd_fail(error, PD_NO_MEMORY, "no memory for the engine's tables");
    }
    pd_engine_publish_load(engine);
    *result = engine;
    return PD_OK;
}

void pd_engine_destroy(struct pd_engine *engine)
{
    struct pd_sequence *s;

    if (!engine)
        return;
    while ((s = TAILQ_FIRST(&engine->table.all))) { /* none, unless kvx never let go */
        pd_sequence_table_remove(&engine->table, s);
        pd_sequence_free(s);
    }
    pd_borrow_destroy(engine);
    pd_block_pool_destroy(engine->pool);
    pd_outbox_destroy(&engine->outbox);
    for (int i = 0; i < PD_FLIGHTS; i++)
        free(engine->flights[i].shares);
    free(engine->plan);
    free(engine->prompts);
    free(engine->free_slots);
    free(engine->instance);
    free(engine->kv_address);
    pd_mailbox_destroy(&engine->box);
    pthread_mutex_destroy(&engine->load_lock);
    free(engine);
}

/* ---- what the engine says -------------------------------------------------------------------- */

void pd_engine_flush(struct pd_engine *engine)
{
    const struct pd_output *outputs = pd_outbox_seal(&engine->outbox);

    pd_engine_publish_load(engine);
    engine->options.events.step(engine->options.events.context, engine->load.steps, outputs,
                                engine->outbox.count);
    pd_outbox_clear(&engine->outbox);
}

void pd_engine_say_failed(struct pd_engine *engine, const struct pd_attempt *id, int code,
                          uint32_t prompt_tokens, const char *param, const char *message)
{
    struct pd_failure failure = {
        .id = *id,
        .code = code,
        .message = message,
        .param = param,
        .prompt_tokens = prompt_tokens,
    };

    if (code == PD__V1__FAILED__CODE__CAPACITY || code == PD__V1__FAILED__CODE__DRAINING)
        failure.retry_after_ms = pd_admit_retry_ms(engine);
    if (engine->outbox.count > 0)
        pd_engine_flush(engine);
    pd_engine_publish_load(engine);
    engine->options.events.failed(engine->options.events.context, &failure);
}

void pd_engine_publish_load(struct pd_engine *engine)
{
    struct pd_load *load = &engine->load;
    struct pd_block_counts blocks;
    const struct pd_sequence *s;

    load->prefill_queued_tokens = load->kv_reserved = 0;
    load->running = load->waiting = 0;
    TAILQ_FOREACH (s, &engine->table.all, all) {
        int written = pd_engine_blocks_for(engine, s->collected);

        if (s->phase == PD_PHASE_WAITING) {
            load->waiting++;
            load->prefill_queued_tokens += (uint64_t)s->count;
        } else if (s->phase == PD_PHASE_RECEIVING) {
            load->kv_reserved += (uint64_t)s->block_count;
        } else if (s->phase == PD_PHASE_RUNNING) {
            load->running += s->collected >= s->target;
            load->prefill_queued_tokens +=
                (uint64_t)(s->target > s->collected ? s->target - s->collected : 0);
            load->kv_reserved +=
                (uint64_t)(s->block_count > written ? s->block_count - written : 0);
        }
    }
    load->kv_reserved += pd_borrow_blocks(engine);
    pd_block_pool_count(engine->pool, &blocks);
    load->kv_total = (uint64_t)blocks.total;
    load->kv_free = (uint64_t)blocks.available;
    load->kv_growth = (uint64_t)pd_admit_growth(engine);
    load->evictions = blocks.evictions;
    load->prefill_chunk_tokens = (uint32_t)pd_pace_rows(&engine->pace, false);
    load->draining = engine->draining || engine->stopping;
    pthread_mutex_lock(&engine->load_lock);
    engine->load_copy = *load;
    pthread_mutex_unlock(&engine->load_lock);
}

/* ---- messages -------------------------------------------------------------------------------- */

void pd_engine_message_free(struct pd_engine_message *message)
{
    pd_request_free(message->request);
    free(message->prompt);
    free(message);
}

/* An Attach stream is gone. A ticket that has been claimed is another worker's answer in progress:
 * kvx knows which ones those are, and releases the others. */
static void forget(struct pd_engine *engine, uint64_t attach)
{
    struct pd_sequence *next;

    if (engine->kvx)
        pd_kvx_forget_owner(engine->kvx, attach);
    for (struct pd_sequence *s = TAILQ_FIRST(&engine->table.all); s; s = next) {
        next = TAILQ_NEXT(s, all);
        if (s->request->id.attach != attach)
            continue;
        if (pd_sequence_offers(s) && s->in_transfer)
            continue;
        pd_sequence_abort(engine, s, PD__V1__FAILED__CODE__CANCELLED, "the dispatcher is gone");
    }
}

static void cancel(struct pd_engine *engine, const struct pd_attempt *id)
{
    struct pd_sequence *s = pd_sequence_by_attempt(&engine->table, id);

    if (s)
        pd_sequence_abort(engine, s, PD__V1__FAILED__CODE__CANCELLED, "the request was cancelled");
}

static void stop(struct pd_engine *engine)
{
    engine->stopping = true;
    pd_sequence_abort_all(engine, PD__V1__FAILED__CODE__CANCELLED, "the worker is shutting down");
}

static void handle(struct pd_engine *engine, struct pd_engine_message *m)
{
    struct pd_request *request = m->request;

    switch ((enum pd_engine_message_kind)m->message.kind) {
    case PD_ENGINE_SUBMIT:
        m->request = NULL;
        pd_admit_request(engine, request);
        break;
    case PD_ENGINE_CANCEL:
        cancel(engine, &m->id);
        break;
    case PD_ENGINE_FORGET:
        forget(engine, m->id.attach);
        break;
    case PD_ENGINE_DRAIN:
        engine->draining = true;
        break;
    case PD_ENGINE_STOP:
        stop(engine);
        break;
    case PD_ENGINE_RELEASED:
    case PD_ENGINE_CLAIMED:
    case PD_ENGINE_SAMPLED:
    case PD_ENGINE_COMPLETE:
    case PD_ENGINE_CLOSED:
        pd_transfer_handle(engine, m);
        break;
    }
    pd_engine_message_free(m);
}

static bool handle_all(struct pd_engine *engine, struct pd_message *list)
{
    bool any = list != NULL;

    while (list) {
        struct pd_engine_message *m = (struct pd_engine_message *)list;

        list = list->next;
        handle(engine, m);
    }
    return any;
}

/* ---- the loop -------------------------------------------------------------------------------- */

static int idle_timeout_ms(const struct pd_engine *engine, uint64_t now)
{
    uint64_t ms, deadline = pd_borrow_deadline(engine);

    if (engine->next_deadline_ns < deadline)
        deadline = engine->next_deadline_ns;
    if (deadline <= now)
        return 0;
    ms = (deadline - now) / 1000000 + 1;
    return ms < TICK_MS ? (int)ms : TICK_MS;
}

/* Whether the stop that was asked for is reached. kvx owes its releases, and is bound by its own
 * deadlines; ours is the last resort. */
static bool stopped(const struct pd_engine *engine, uint64_t *stop_by)
{
    uint64_t now = pd_clock_ns();

    if (!engine->stopping)
        return false;
    if (*stop_by == 0)
        *stop_by = now + STOP_MS * UINT64_C(1000000);
    if (engine->table.count == 0 && engine->flight_count == 0 && LIST_EMPTY(&engine->borrows))
        return true;
    if (now < *stop_by)
        return false;
    pd_log(PD_LOG_ERROR, "engine", "%zu sequences are still in transfer after %d ms",
           engine->table.count, STOP_MS);
    return true;
}

static void *engine_main(void *argument)
{
    struct pd_engine *engine = argument;
    char line[PD_JOURNAL_LINE];
    bool worked = false;
    uint64_t stop_by = 0;

    pthread_setname_np(pthread_self(), "engine");
    while (!stopped(engine, &stop_by)) {
        int timeout = worked ? 0 : idle_timeout_ms(engine, pd_clock_ns());
        bool heard = handle_all(engine, pd_mailbox_take(&engine->box, timeout));

        pd_sequence_expire(engine, pd_clock_ns());
        pd_borrow_expire(engine, pd_clock_ns());
        pd_transfer_go_on(engine);
        if (!engine->lost)
            pd_admit_waiting(engine);
        worked = pd_step_turn(engine);
        pd_engine_publish_load(engine);
        if (pd_journal_due(&engine->journal, &engine->load, pd_clock_ns(), line))
            pd_log(PD_LOG_INFO, "engine", "%s", line);
        if (engine->outbox.count > 0 || (!heard && !worked))
            pd_engine_flush(engine);
    }
    pd_mailbox_close(&engine->box);
    handle_all(engine, pd_mailbox_take(&engine->box, 0));
    if (engine->outbox.count > 0)
        pd_engine_flush(engine);
    pd_engine_publish_load(engine);
    return NULL;
}

/* ---- other threads --------------------------------------------------------------------------- */

int pd_engine_start(struct pd_engine *engine, struct pd_kvx *kvx, struct pd_error *error)
{
    static const char *const roles[] = {"prefill", "decode", "mixed"};
    int status;

    engine->kvx = kvx;
    status = pthread_create(&engine->thread, NULL, engine_main, engine);
    if (status != 0)
        return pd_fail(error, PD_IO, "the engine's thread cannot be started: %s", strerror(status));
    engine->started = true;
    pd_log(PD_LOG_INFO, "engine",
           "role %s: %" PRId64
           " KV blocks of %d tokens, %d sequences, %d tokens in a step, %d in a "
           "sequence, prefix cache %s",
           roles[engine->options.role], engine->options.kv_blocks, engine->options.block_size,
           engine->options.max_seqs, engine->options.max_tokens, engine->options.max_model_len,
           engine->options.prefix_caching ? "on" : "off");
    return PD_OK;
}

int pd_engine_submit(struct pd_engine *engine, struct pd_request *request)
{
    struct pd_engine_message *m = calloc(1, sizeof(*m));
    int status;

    if (!m)
        return PD_NO_MEMORY;
    m->message.kind = PD_ENGINE_SUBMIT;
    m->request = request;
    atomic_fetch_add(&engine->living, 1);
    status = pd_mailbox_put(&engine->box, &m->message, PD_MAILBOX_BOUNDED);
    if (status != PD_OK) {
        atomic_fetch_sub(&engine->living, 1);
        free(m);
    }
    return status;
}

static void tell(struct pd_engine *engine, enum pd_engine_message_kind kind, struct pd_attempt id)
{
    struct pd_engine_message *m = pd_must_alloc(sizeof(*m));

    m->message.kind = kind;
    m->id = id;
    if (pd_mailbox_put(&engine->box, &m->message, PD_MAILBOX_ALWAYS) != PD_OK)
        free(m); /* stopped: there is nothing left to tell it of */
}

void pd_engine_cancel(struct pd_engine *engine, struct pd_attempt id)
{
    tell(engine, PD_ENGINE_CANCEL, id);
}

void pd_engine_forget(struct pd_engine *engine, uint64_t attach)
{
    tell(engine, PD_ENGINE_FORGET, (struct pd_attempt){.attach = attach});
}

void pd_engine_drain(struct pd_engine *engine)
{
    tell(engine, PD_ENGINE_DRAIN, (struct pd_attempt){0});
}

bool pd_engine_idle(const struct pd_engine *engine)
{
    return atomic_load(&engine->living) == 0;
}

void pd_engine_load(const struct pd_engine *engine, struct pd_load *load)
{
    struct pd_engine *e = (struct pd_engine *)engine; /* a lock is no change that anybody sees */

    pthread_mutex_lock(&e->load_lock);
    *load = e->load_copy;
    pthread_mutex_unlock(&e->load_lock);
}

bool pd_engine_lost(const struct pd_engine *engine, char *why, size_t size)
{
    struct pd_engine *e = (struct pd_engine *)engine;

    pthread_mutex_lock(&e->load_lock);
    snprintf(why, size, "%s", e->lost_why);
    pthread_mutex_unlock(&e->load_lock);
    return *why != '\0';
}

void pd_engine_cut(struct pd_engine *engine)
{
    tell(engine, PD_ENGINE_STOP, (struct pd_attempt){0});
}

void pd_engine_stop(struct pd_engine *engine)
{
    if (!engine->started)
        return;
    engine->started = false;
    pd_engine_cut(engine);
    pthread_join(engine->thread, NULL);
}
