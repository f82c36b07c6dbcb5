/* One step: plan, fill, launch; and collect the one before.
 *
 *   host     plan n+1, launch │ collect n: text, stop rules, outputs │ plan n+2, launch │ ...
 *   device   ── n ────────────┼──── n+1 ─────────────────────────────┼──── n+2 ─────────┼─
 *
 * Step n+1 is launched before step n's tokens are read, so the device never waits for the host. A
 * row may therefore belong to an answer that turns out to have ended with step n: it was computed
 * for nothing, its token is dropped, and the sequence's slot and blocks come back one step later.
 *
 * One kind of step is not launched ahead: a long one of prompts alone behind another. It would stand
 * in front of whoever comes meanwhile, and what it saves is the host's moment between two long steps.
 * The engine listens to its mailbox instead, and chooses when the device is free:
 *
 *   host     plan n, launch │ listen · listen · listen · collect n, plan n+1, launch │ listen · ...
 *   device   ────────────── n ──────────────────────────   ───────── n+1 ───────────────────────
 *
 * Such a step may be left in the middle for somebody who comes (pace.h): its rows are planned again, behind the
 * other's.
 *
 * A step that the device cannot run fails the sequences in it and nobody else. Only a device that is
 * gone, or that can run no step at all, is given up. */
#include "worker/engine/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "worker/base/clock.h"
#include "worker/base/log.h"

enum {
    LISTEN_MS = 3, /* so long news wait while a step that nothing follows is awaited */
    PATIENCE_MS = 5000,
    LOST_TIMES = 24,  /* patience is lost so often before the device is given up */
    FAILURES_MAX = 8, /* so many steps in a row that fail, too */
};

/* ---- fill ------------------------------------------------------------------------------------ */

static void fill_rows(const struct pd_engine *engine, const struct pd_sequence *s, int rows,
                      struct pd_step *step)
{
    int size = engine->options.block_size;

    for (int i = 0; i < rows; i++) {
        int position = s->launched + i, row = step->tokens + i;

        step->token[row] = position < s->count ? s->tokens[position] : PD_TOKEN_OF_SLOT(s->slot);
        step->position[row] = position;
        step->sequence[row] = step->sequences;
        step->kv_slot[row] = s->blocks[position / size] * size + position % size;
    }
}

/* Writes one share into the step. False: the step has no room for its sample's parameters. */
static bool fill_share(const struct pd_engine *engine, struct pd_share *share, struct pd_step *step)
{
    const struct pd_sequence *s = share->sequence;
    int index = step->sequences, blocks = pd_engine_blocks_for(engine, share->end);

    if (share->end >= s->target) { /* the last known token is among the rows: a new one follows */
        struct pd_sample_point point = {
            .row = step->tokens + share->rows - 1,
            .slot = s->slot,
            .draw = (uint32_t)(share->end - s->prompt),
            .history = share->end,
            .prompt = s->prompt,
        };

        share->sample = step->samples;
        if (!pd_sampling_fill(&s->request->sampling, &engine->eos, &point, step))
            return false;
    }
    fill_rows(engine, s, share->rows, step);
    step->slot[index] = s->slot;
    step->first[index] = step->tokens;
    step->length[index] = share->rows;
    step->context[index] = share->end;
    memcpy(step->blocks + (size_t)index * (size_t)step->max_blocks, s->blocks,
           (size_t)blocks * sizeof(*s->blocks));
    step->tokens += share->rows;
    step->sequences++;
    return true;
}

static int write_history(struct pd_engine *engine, struct pd_sequence *s)
{
    if (!s->history_behind)
        return PD_KERNEL_OK;
    s->history_behind = false;
    return pd_history_write(engine->device, s->slot, 0, s->tokens, s->launched);
}

/* The whole plan into the step and the flight. Shares that find no room are the first in line next
 * time, in the order in which they stood. */
static int fill(struct pd_engine *engine, struct pd_step *step, struct pd_flight *flight)
{
    struct pd_sequence *left_out = NULL;

    flight->count = flight->prompt_rows = flight->answers = 0;
    for (int i = 0; i < engine->plan_count; i++) {
        struct pd_share *share = &engine->plan[i];
        struct pd_sequence *s = share->sequence;
        int status;

        if (!fill_share(engine, share, step)) {
            TAILQ_REMOVE(&engine->running, s, queue);
            if (left_out)
                TAILQ_INSERT_AFTER(&engine->running, left_out, s, queue);
            else
                TAILQ_INSERT_HEAD(&engine->running, s, queue);
            left_out = s;
            continue;
        }
        status = write_history(engine, s);
        if (status != PD_KERNEL_OK)
            return status;
        s->launched = share->end;
        s->pending += share->sample >= 0;
        s->in_flight++;
        flight->prompt_rows += share->prefill ? share->rows : 0;
        flight->answers += !share->prefill;
        flight->shares[flight->count++] = *share;
    }
    return PD_KERNEL_OK;
}

/* ---- a device that fails --------------------------------------------------------------------- */

/* Its step was not computed: the sequence is where it was before. */
static void undo_share(struct pd_engine *engine, const struct pd_share *share)
{
    struct pd_sequence *s = share->sequence;

    s->in_flight--;
    if (s->phase == PD_PHASE_ENDED) {
        pd_sequence_settle(engine, s);
        return;
    }
    s->pending -= share->sample >= 0;
    s->launched = share->end - share->rows;
}

/* Whether all whom the step is for have ended. */
static bool is_for_nobody(const struct pd_flight *flight)
{
    for (int i = 0; i < flight->count; i++) {
        if (flight->shares[i].sequence->phase != PD_PHASE_ENDED)
            return false;
    }
    return true;
}

/* The oldest flight, which none is behind, was left for somebody else. */
static void undo_flight(struct pd_engine *engine)
{
    const struct pd_flight *flight = &engine->flights[engine->first_flight];
    uint64_t now = pd_clock_ns(), ran_ns = now - flight->launched_ns;

    engine->first_flight = (engine->first_flight + 1) % PD_FLIGHTS;
    engine->flight_count--;
    engine->device_free_ns = now;
    engine->load.steps_cut++;
    engine->load.steps_us += ran_ns / 1000;
    if (!is_for_nobody(flight))
        pd_pace_left(&engine->pace, ran_ns);
    for (int i = 0; i < flight->count; i++)
        undo_share(engine, &flight->shares[i]);
}

/* Takes the oldest flight out; its sequences have one step less in flight. */
static void forget_flight(struct pd_engine *engine, bool fail)
{
    const struct pd_flight *flight = &engine->flights[engine->first_flight];

    engine->first_flight = (engine->first_flight + 1) % PD_FLIGHTS;
    engine->flight_count--;
    for (int i = 0; i < flight->count; i++) {
        struct pd_sequence *s = flight->shares[i].sequence;

        s->in_flight--;
        if (fail && s->phase != PD_PHASE_ENDED)
            pd_sequence_abort(engine, s, PD__V1__FAILED__CODE__INTERNAL,
                              "the step that this request was part of has failed");
        else
            pd_sequence_settle(engine, s);
    }
}

/* Whoever owns the engine asks (pd_engine_lost), tells of it once, and ends. */
static void lose_device(struct pd_engine *engine, const char *what)
{
    char why[sizeof(engine->lost_why)];

    snprintf(why, sizeof(why), "%s: %s", what, pd_device_error(engine->device));
    engine->lost = true;
    pthread_mutex_lock(&engine->load_lock);
    memcpy(engine->lost_why, why, sizeof(why));
    pthread_mutex_unlock(&engine->load_lock);
    while (engine->flight_count > 0)
        forget_flight(engine, false);
    pd_sequence_abort_all(engine, PD__V1__FAILED__CODE__INTERNAL, "the worker's device has failed");
}

/* The oldest flight did not run, or ended badly. The device may be as good as before. */
static void fail_step(struct pd_engine *engine, int status, const char *what)
{
    engine->failures++;
    if (status == PD_KERNEL_LOST || engine->failures >= FAILURES_MAX) {
        lose_device(engine, what);
        return;
    }
    pd_log(PD_LOG_ERROR, "engine", "%s: %s; the %d requests in it fail", what,
           pd_device_error(engine->device), engine->flights[engine->first_flight].count);
    forget_flight(engine, true);
}

/* ---- collect --------------------------------------------------------------------------------- */

static uint64_t patience_ms(const struct pd_engine *engine)
{
    return engine->options.patience_ms ? (uint64_t)engine->options.patience_ms : PATIENCE_MS;
}

/* Waits for the oldest flight: PD_KERNEL_OK, how it failed, or PD_KERNEL_LOST. */
static int wait_for(struct pd_engine *engine, const struct pd_flight *flight)
{
    uint64_t start = pd_clock_ns(), patience = patience_ms(engine), next_ms = patience;

    for (;;) {
        int status = pd_step_wait(engine->device, flight->number, (int)(patience / 5 + 1));
        uint64_t waited_ms = (pd_clock_ns() - start) / 1000000;

        if (status != PD_KERNEL_TIMEOUT)
            return status;
        if (waited_ms >= LOST_TIMES * patience)
            return PD_KERNEL_LOST;
        if (waited_ms < next_ms)
            continue;
        pd_log(PD_LOG_WARN, "engine",
               "step %" PRIu64 " (%d rows, %d sequences) has been running for %" PRIu64 " ms",
               flight->number, flight->rows, flight->count, waited_ms);
        next_ms *= 2;
    }
}

static void smooth(uint32_t *value, uint64_t sample)
{
    uint64_t limit = sample < UINT32_MAX ? sample : UINT32_MAX;

    *value = *value == 0 ? (uint32_t)limit : (uint32_t)(((uint64_t)*value * 7 + limit) / 8);
}

static void measure(struct pd_engine *engine, const struct pd_flight *flight)
{
    uint64_t now = pd_clock_ns(), start = flight->launched_ns;

    if (start < engine->device_free_ns)
        start = engine->device_free_ns; /* it stood in line behind the step before */
    engine->device_free_ns = now;
    pd_journal_step(&engine->journal, &engine->load, flight->answers, (now - start) / 1000, now);
    engine->load.steps++;
    engine->load.steps_us += (now - start) / 1000;
    engine->load.steps_delay_us = pd_device_delay_ns(engine->device) / 1000;
    engine->load.tokens_prefilled += (uint64_t)flight->prompt_rows;
    smooth(&engine->load.step_us, (now - start) / 1000);
    if (flight->prompt_rows > 0)
        smooth(&engine->load.prefill_us_per_token_x1000, (now - start) / (uint64_t)flight->rows);
    pd_pace_learn(&engine->pace, flight->answers > 0, flight->prompt_rows, now - start);
}

/* The model's numbers went wrong for this sequence alone: nobody else may meet its KV. */
static void fail_fault(struct pd_engine *engine, struct pd_sequence *s)
{
    char name[PD_REQUEST_NAME];

    for (int i = 0; i < s->block_count; i++)
        pd_block_pool_forget(engine->pool, s->blocks[i]);
    pd_log(PD_LOG_ERROR, "engine", "request %s: no finite logit after %d tokens",
           pd_request_name(s->request, name), s->count);
    pd_sequence_abort(engine, s, PD__V1__FAILED__CODE__INTERNAL,
                      "the model produced no usable number for this request");
}

static void accept_sample(struct pd_engine *engine, const struct pd_step *step,
                          const struct pd_share *share)
{
    struct pd_sequence *s = share->sequence;
    struct pd_token_logprob logprobs[1 + PD_TOP_MAX];
    int at = share->sample;
    struct pd_sampled sampled = {
        .token = step->sampled[at],
        .logprobs = logprobs,
        .stride = s->request->sampling.logprobs,
    };

    if (step->sample_fault[at] || sampled.token < 0 || sampled.token >= engine->vocabulary) {
        fail_fault(engine, s);
        return;
    }
    if (sampled.stride > 0) {
        logprobs[0] = (struct pd_token_logprob){sampled.token, step->sampled_logprob[at]};
        for (int i = 1; i < sampled.stride; i++)
            logprobs[i] = (struct pd_token_logprob){step->top_token[at * PD_TOP_MAX + i - 1],
                                                    step->top_logprob[at * PD_TOP_MAX + i - 1]};
    }
    if (!share->prefill)
        engine->load.tokens_decoded++;
    pd_answer_accept(engine, s, &sampled);
}

static void collect_share(struct pd_engine *engine, const struct pd_step *step,
                          const struct pd_share *share)
{
    struct pd_sequence *s = share->sequence;

    s->in_flight--;
    s->pending -= share->sample >= 0;
    if (s->phase == PD_PHASE_ENDED) {
        pd_sequence_settle(engine, s);
        return;
    }
    s->collected = share->end;
    pd_sequence_publish(engine, s);
    if (s->request->route == PD_ROUTE_PREFILL)
        pd_kvx_ready(engine->kvx, s->number, (uint32_t)s->collected);
    if (share->sample >= 0)
        accept_sample(engine, step, share);
}

/* The oldest flight has ended, well or not. */
static void take_in(struct pd_engine *engine, int status)
{
    const struct pd_flight *flight = &engine->flights[engine->first_flight];

    if (status == PD_KERNEL_CUT) {
        undo_flight(engine);
        return;
    }
    if (status != PD_KERNEL_OK) {
        fail_step(engine, status, "a step does not end well");
        return;
    }
    engine->failures = 0;
    engine->first_flight = (engine->first_flight + 1) % PD_FLIGHTS;
    engine->flight_count--;
    measure(engine, flight);
    for (int i = 0; i < flight->count; i++)
        collect_share(engine, flight->step, &flight->shares[i]);
    pd_engine_flush(engine);
}

static void collect(struct pd_engine *engine)
{
    take_in(engine, wait_for(engine, &engine->flights[engine->first_flight]));
}

/* Whether a long step of prompts alone is in flight, and nothing else. One that does not end soon is the watchdog's. */
static bool is_alone(const struct pd_engine *engine)
{
    const struct pd_flight *flight = &engine->flights[engine->first_flight];

    return engine->flight_count == 1 && flight->answers == 0 &&
           pd_pace_is_long(&engine->pace, false, flight->prompt_rows) &&
           pd_clock_ns() - flight->launched_ns <= patience_ms(engine) / 5 * 1000000;
}

/* Whether it stands in the way of somebody, and is left for that. */
static bool gives_way(struct pd_engine *engine)
{
    const struct pd_flight *flight = &engine->flights[engine->first_flight];
    uint64_t ran_ns = pd_clock_ns() - flight->launched_ns;
    bool leaves = is_for_nobody(flight);
    const struct pd_sequence *s;

    TAILQ_FOREACH (s, &engine->running, queue) {
        int waiting = pd_sequence_decodes(s) ? 1 : s->target - s->launched;

        if (!leaves && s->in_flight == 0 && waiting > 0)
            leaves = pd_pace_leaves(&engine->pace, flight->prompt_rows, ran_ns, waiting);
    }
    return leaves && pd_step_cut(engine->device, flight->number);
}

/* Whether no other is launched behind it. */
static bool stays_alone(const struct pd_engine *engine)
{
    const struct pd_sequence *s;

    TAILQ_FOREACH (s, &engine->running, queue) {
        if (pd_sequence_decodes(s))
            return false;
    }
    return true;
}

/* Waits a moment for it. */
static void listen(struct pd_engine *engine)
{
    uint64_t number = engine->flights[engine->first_flight].number;
    int status = pd_step_wait(engine->device, number, LISTEN_MS);

    if (status != PD_KERNEL_TIMEOUT)
        take_in(engine, status);
}

/* ---- launch ---------------------------------------------------------------------------------- */

/* Finds a plan that the blocks suffice for. First what is in flight is collected, since answers may
 * have ended; then the youngest go back to the queue. */
static void make_plan(struct pd_engine *engine)
{
    while (!pd_plan_make(engine)) {
        if (engine->flight_count > 0)
            collect(engine);
        else if (!pd_preempt_youngest(engine))
            break;
    }
}

/* The plan into a step and the step onto the device. `flight` has the shares that are in it, even
 * if it fails. */
static int send(struct pd_engine *engine, struct pd_flight *flight)
{
    struct pd_step *step;
    int status = pd_step_acquire(engine->device, &step);

    flight->count = 0;
    if (status == PD_KERNEL_OK)
        status = fill(engine, step, flight);
    if (status == PD_KERNEL_OK)
        status = pd_graph_launch(engine->graph, step);
    if (status != PD_KERNEL_OK)
        return status;
    flight->number = step->number;
    flight->step = step;
    flight->rows = step->tokens;
    return PD_KERNEL_OK;
}

static bool launch(struct pd_engine *engine)
{
    struct pd_flight *flight;
    int status;

    make_plan(engine);
    if (engine->lost || engine->plan_count == 0)
        return false;
    flight = &engine->flights[(engine->first_flight + engine->flight_count) % PD_FLIGHTS];
    status = send(engine, flight);
    engine->flight_count++;
    if (status != PD_KERNEL_OK) {
        while (engine->flight_count > 1 && !engine->lost)
            collect(engine);
        if (!engine->lost)
            fail_step(engine, status, "a step cannot be launched");
        return false;
    }
    flight->launched_ns = pd_clock_ns();
    for (int i = 0; i < flight->count; i++)
        if (!flight->shares[i].sequence->started_ns)
            flight->shares[i].sequence->started_ns = flight->launched_ns;
    return true;
}

bool pd_step_turn(struct pd_engine *engine)
{
    int before = engine->flight_count, failures = engine->failures;
    bool launched;

    if (is_alone(engine)) {
        if (gives_way(engine)) {
            collect(engine);
            return true;
        }
        if (stays_alone(engine)) {
            listen(engine);
            return true;
        }
    }
    launched = !engine->lost && launch(engine);
    if (engine->flight_count == PD_FLIGHTS || (!launched && engine->flight_count > 0))
        collect(engine);
    return launched || before > 0 || engine->failures != failures; /* whoever is left comes next */
}
