/* Who gets room.
 *
 * Room is a slot on the device and the blocks of the whole prompt, both at once or neither: nobody
 * waits while holding half. A DIRECT or PREFILL request that finds no room waits; a DECODE request
 * is refused at once instead, for it does hold a half, the prompt's blocks on its source: two workers
 * whose pools are full of what the other is to read would wait for each other for ever, and the
 * dispatcher, in whose queue it can wait for any worker, could not take another. An OFFER
 * needs no room: it takes what is in the cache, or is refused at once.
 *
 * Who waits is tried in order of age. Behind one that finds no room a younger one may still be let
 * in, a DECODE request too, as long as those that have passed an older one are together no longer
 * than that one itself (`passed`, which counts on when it runs: see plan.c).
 *
 * A prompt that begins like one that is just being computed waits until those blocks are in the
 * cache, and holds nobody up meanwhile: so n answers to one prompt, or a burst of requests with one
 * system prompt, compute it once and hold its blocks once. So does one that begins like a prompt that
 * is being received, if that is at least half of it: what is received is trusted, and shared, only as
 * a whole, and nobody waits for a long prompt on another machine to be spared a short beginning. Who
 * waits so holds nothing, and what it waits for waits for nobody's room: it comes, or ends, by itself.
 *
 * What an answer grows by is not reserved, but counted: a sequence is let in where it fits beside
 * what those that run are likely to become. When blocks run out all the same, the youngest sequence
 * goes back to the queue and is computed again later, which the numbers do not notice. */
#include "worker/engine/internal.h"

#include <stdio.h>
#include <string.h>

#include "worker/base/clock.h"
#include "worker/base/log.h"

/* ---- checks ---------------------------------------------------------------------------------- */

struct verdict {
    int code; /* proto Failed.Code */
    const char *param;
    uint32_t prompt_tokens;
    struct pd_error error;
};

static int check_ids(const struct pd_engine *engine, const struct pd_tokens *tokens,
                     const char *name, struct verdict *verdict)
{
    for (size_t i = 0; i < tokens->count; i++)
        if (tokens->ids[i] < 0 || tokens->ids[i] >= engine->vocabulary) {
            verdict->param = name;
            return pd_fail(&verdict->error, PD_INVALID, "%s: the model has no token %d", name,
                           tokens->ids[i]);
        }
    return PD_OK;
}

/* The prompt's length: on DECODE as the ticket says, for the tokens come with the claim. */
static int check_length(const struct pd_engine *engine, const struct pd_request *request,
                        uint64_t *prompt, struct verdict *verdict)
{
    uint64_t limit = (uint64_t)engine->options.max_model_len;
    uint64_t answer = request->sampling.max_tokens ? request->sampling.max_tokens : 1;

    *prompt = request->prompt.count;
    if (request->route == PD_ROUTE_DECODE) {
        if (request->ticket.tokens <= request->generated.count)
            return pd_fail(&verdict->error, PD_INVALID, "the ticket covers no prompt");
        *prompt = request->ticket.tokens - request->generated.count;
    }
    verdict->prompt_tokens = (uint32_t)*prompt;
    if (*prompt == 0)
        return pd_fail(&verdict->error, PD_INVALID, "the prompt is empty");
    if (*prompt + answer <= limit)
        return PD_OK;
    verdict->code = PD__V1__FAILED__CODE__CONTEXT_LENGTH;
    return pd_fail(&verdict->error, PD_INVALID,
                   "prompt (%llu tokens) and answer (%llu) are longer than this model's limit of "
                   "%llu tokens",
                   (unsigned long long)*prompt, (unsigned long long)answer,
                   (unsigned long long)limit);
}

static int check_request(struct pd_engine *engine, struct pd_request *request, uint64_t *prompt,
                         struct verdict *verdict)
{
    int status;

    verdict->code = PD__V1__FAILED__CODE__INVALID;
    if (pd_sequence_by_attempt(&engine->table, &request->id))
        return pd_fail(&verdict->error, PD_INVALID, "this attempt is already known");
    if (request->route != PD_ROUTE_DIRECT && !engine->kvx)
        return pd_fail(&verdict->error, PD_INVALID, "this worker takes no part in a KV hand-off");
    if (request->route == PD_ROUTE_DECODE &&
        request->ticket.block_size != (uint32_t)engine->options.block_size)
        return pd_fail(&verdict->error, PD_INVALID,
                       "the ticket's blocks have %u tokens, this worker's %d",
                       request->ticket.block_size, engine->options.block_size);
    status = pd_sampling_normalise(&request->sampling, engine->vocabulary, &verdict->param,
                                   &verdict->error);
    if (status == PD_OK)
        status = check_ids(engine, &request->prompt, "prompt", verdict);
    if (status == PD_OK)
        status = check_ids(engine, &request->generated, "generated", verdict);
    if (status == PD_OK)
        status = check_length(engine, request, prompt, verdict);
    return status;
}

/* ---- room ------------------------------------------------------------------------------------ */

static bool take_blocks(struct pd_engine *engine, int count, int32_t after, int32_t *fresh)
{
    if (!pd_block_pool_alloc(engine->pool, (size_t)count, after, fresh))
        return false;
    if (engine->kvx)
        pd_kvx_recycled(engine->kvx, fresh, (size_t)count);
    return true;
}

bool pd_admit_blocks(struct pd_engine *engine, struct pd_sequence *s, int count)
{
    int32_t after = s->block_count ? s->blocks[s->block_count - 1] : PD_NO_BLOCK;

    if (!take_blocks(engine, count, after, s->blocks + s->block_count))
        return false;
    s->block_count += count;
    return true;
}

/* Blocks that an answer is likely to need beyond those it has, with `blocks` of them: as many as an
 * answer takes on the average, within its own limit; one at least, so that an admission is not
 * undone by the very next steps. */
static int64_t growth_of(const struct pd_engine *engine, const struct pd_sequence *s, int blocks)
{
    int answer = s->count > s->prompt ? s->count - s->prompt : 0, length, more;

    if (s->request->route == PD_ROUTE_PREFILL)
        return 0;
    length = engine->usual_answer > answer ? engine->usual_answer : answer + 1;
    if (length > s->max_answer)
        length = s->max_answer;
    more = pd_engine_blocks_for(engine, s->prompt + length) - blocks;
    return more > 1 ? more : 1;
}

/* Of those that run or receive their prompt, but `self`; -1: there are none. */
static int64_t growth_of_others(const struct pd_engine *engine, const struct pd_sequence *self)
{
    const struct pd_sequence *s;
    int64_t count = -1;

    TAILQ_FOREACH (s, &engine->table.all, all) {
        if (s != self && (s->phase == PD_PHASE_RUNNING || s->phase == PD_PHASE_RECEIVING))
            count = (count < 0 ? 0 : count) + growth_of(engine, s, s->block_count);
    }
    return count;
}

int64_t pd_admit_growth(const struct pd_engine *engine)
{
    int64_t growth = growth_of_others(engine, NULL);

    return growth < 0 ? 0 : growth;
}

bool pd_admit_spare_blocks(struct pd_engine *engine, int count, int beside, int32_t after,
                           int32_t *blocks)
{
    struct pd_block_counts counts;

    pd_block_pool_count(engine->pool, &counts);
    return counts.available >= count + beside + pd_admit_growth(engine) &&
           take_blocks(engine, count, after, blocks);
}

/* Alone a sequence always fits: it may then grow into all that there is. */
static bool reserve(struct pd_engine *engine, struct pd_sequence *s, int count)
{
    struct pd_block_counts blocks;
    int64_t growth = growth_of_others(engine, s);

    growth = growth < 0 ? 0 : growth + growth_of(engine, s, s->block_count + count);
    pd_block_pool_count(engine->pool, &blocks);
    if (engine->free_slot_count == 0 || blocks.available < count + growth ||
        !pd_admit_blocks(engine, s, count))
        return false;
    s->slot = engine->free_slots[--engine->free_slot_count];
    return true;
}

static void run(struct pd_engine *engine, struct pd_sequence *s)
{
    s->phase = PD_PHASE_RUNNING;
    TAILQ_INSERT_TAIL(&engine->running, s, queue);
}

/* Whether two sequences have these first tokens in common. */
static bool alike(const struct pd_sequence *a, const struct pd_sequence *b, int tokens)
{
    return tokens <= a->count && tokens <= b->count &&
           memcmp(a->tokens, b->tokens, (size_t)tokens * sizeof(*a->tokens)) == 0;
}

/* Whether the block behind the first `hits` of this sequence is just being computed or received for
 * another: see above. */
static bool follows(const struct pd_engine *engine, const struct pd_sequence *s, int hits)
{
    int tokens = (hits + 1) * engine->options.block_size;
    const struct pd_sequence *other;

    if (!engine->options.prefix_caching || tokens > s->count - 1)
        return false;
    TAILQ_FOREACH (other, &engine->running, queue) {
        if (other->collected < tokens && tokens <= other->target && alike(other, s, tokens))
            return true;
    }
    TAILQ_FOREACH (other, &engine->table.all, all) {
        int half = (other->count + 1) / 2;

        if (other->phase == PD_PHASE_RECEIVING && !other->awaits &&
            alike(other, s, tokens > half ? tokens : half))
            return true;
    }
    return false;
}

enum placing { PLACED, NO_ROOM, FOLLOWS };

/* Gives a waiting sequence its room: cached blocks for as much of its tokens as there are, so that
 * at least one token is left to be computed, fresh ones for the rest. */
static enum placing place(struct pd_engine *engine, struct pd_sequence *s)
{
    size_t hits =
        pd_block_pool_match(engine->pool, s->tokens, (size_t)s->count - 1, s->blocks, &s->prefix);
    enum placing placing = follows(engine, s, (int)hits) ? FOLLOWS : PLACED;

    s->block_count = s->published = (int)hits;
    if (placing == PLACED &&
        !reserve(engine, s, pd_engine_blocks_for(engine, s->count) - (int)hits))
        placing = NO_ROOM;
    if (placing != PLACED) {
        pd_sequence_drop_room(engine, s);
        return placing;
    }
    s->launched = s->collected = (int)hits * engine->options.block_size;
    s->history_behind = hits > 0;
    s->target = s->count;
    engine->load.cache_hit_tokens += (uint64_t)s->launched;
    if (!s->placed)
        s->cached = (uint32_t)(s->launched < s->prompt ? s->launched : s->prompt);
    return PLACED;
}

/* ---- the queue ------------------------------------------------------------------------------- */

static uint64_t tokens_ahead_of(const struct pd_engine *engine, const struct pd_sequence *self)
{
    const struct pd_sequence *s;
    uint64_t tokens = 0;

    TAILQ_FOREACH (s, &engine->running, queue) {
        if (s != self && pd_sequence_prefills(s))
            tokens += (uint64_t)(s->target - s->launched);
    }
    return tokens;
}

/* What was borrowed may have been evicted again before there was room. */
static uint32_t borrowed_of(const struct pd_sequence *s)
{
    uint32_t more = s->cached > s->own ? s->cached - s->own : 0;

    return more < s->borrowed ? more : s->borrowed;
}

static void say_placed(struct pd_engine *engine, struct pd_sequence *s,
                       const struct pd_ticket *ticket)
{
    struct pd_placed placed = {
        .id = s->request->id,
        .prompt_tokens = (uint32_t)s->prompt,
        .cached_tokens = s->cached,
        .has_ticket = ticket != NULL,
        .queued_ahead_tokens = tokens_ahead_of(engine, s),
        .borrowed_tokens = borrowed_of(s),
    };

    if (ticket)
        placed.ticket = *ticket;
    memcpy(placed.borrow_failed, s->borrow_failed, sizeof(placed.borrow_failed));
    s->placed = true;
    if (s->request->route != PD_ROUTE_OFFER)
        engine->load.prompt_tokens += (uint64_t)s->prompt;
    pd_engine_publish_load(engine);
    engine->options.events.placed(engine->options.events.context, &placed);
}

/* The dispatcher has taken the prompt for short, or for cached: known only now that it is placed. */
static bool too_much(const struct pd_sequence *s)
{
    uint32_t most = s->request->redirect_above;

    return most > 0 && s->request->route == PD_ROUTE_DIRECT &&
           (uint32_t)(s->count - s->launched) > most;
}

static void announce(struct pd_engine *engine, struct pd_sequence *s)
{
    struct pd_ticket ticket;

    if (s->placed)
        return;
    if (too_much(s))
        pd_sequence_abort(engine, s, PD__V1__FAILED__CODE__REDIRECT,
                          "there is more of the prompt to compute than was expected");
    else if (s->request->route != PD_ROUTE_PREFILL)
        say_placed(engine, s, NULL);
    else if (pd_transfer_offer(engine, s, &ticket))
        say_placed(engine, s, &ticket);
    else
        pd_sequence_abort(engine, s, PD__V1__FAILED__CODE__CAPACITY, "too many KV tickets are out");
}

static void leave_queue(struct pd_engine *engine, struct pd_sequence *s)
{
    TAILQ_REMOVE(&engine->waiting, s, queue);
    engine->waiting_count--;
    run(engine, s);
    announce(engine, s);
}

/* One has been let in past those in front of `behind` that found no room; NULL: past all. */
static void pass(struct pd_engine *engine, const struct pd_sequence *behind, int tokens)
{
    struct pd_sequence *s;

    TAILQ_FOREACH (s, &engine->waiting, queue) {
        if (s == behind)
            break;
        s->passed += s->blocked ? tokens : 0;
    }
}

/* Tokens that may yet pass those that found no room. */
static int64_t patience_of_all(const struct pd_engine *engine)
{
    const struct pd_sequence *s;
    int64_t patience = INT64_MAX;

    TAILQ_FOREACH (s, &engine->waiting, queue) {
        if (s->blocked && s->count - s->passed < patience)
            patience = s->count - s->passed;
    }
    return patience;
}

void pd_admit_waiting(struct pd_engine *engine)
{
    struct pd_sequence *s, *next;
    int64_t patience = INT64_MAX; /* tokens that may yet pass those that found no room */

    for (s = TAILQ_FIRST(&engine->waiting); s && engine->free_slot_count > 0; s = next) {
        enum placing placing = s->borrow              ? FOLLOWS
                               : s->count <= patience ? place(engine, s)
                                                      : NO_ROOM;

        next = TAILQ_NEXT(s, queue);
        s->blocked = placing == NO_ROOM;
        if (s->blocked && s->count - s->passed < patience)
            patience = s->count - s->passed;
        if (placing != PLACED)
            continue;
        if (patience < INT64_MAX) {
            pass(engine, s, s->count);
            patience -= s->count;
        }
        leave_queue(engine, s);
    }
}

static void queue_by_age(struct pd_engine *engine, struct pd_sequence *s)
{
    struct pd_sequence *younger;

    TAILQ_FOREACH (younger, &engine->waiting, queue) {
        if (younger->number > s->number)
            break;
    }
    if (younger)
        TAILQ_INSERT_BEFORE(younger, s, queue);
    else
        TAILQ_INSERT_TAIL(&engine->waiting, s, queue);
    s->phase = PD_PHASE_WAITING;
    engine->waiting_count++;
}

bool pd_preempt_youngest(struct pd_engine *engine)
{
    struct pd_sequence *s, *youngest = NULL;
    char name[PD_REQUEST_NAME];

    TAILQ_FOREACH (s, &engine->running, queue) {
        if (s->request->route != PD_ROUTE_PREFILL && (!youngest || s->number > youngest->number))
            youngest = s;
    }
    if (!youngest)
        return false;
    pd_log(PD_LOG_DEBUG, "engine", "request %s is preempted after %d tokens: KV blocks ran out",
           pd_request_name(youngest->request, name), youngest->count);
    TAILQ_REMOVE(&engine->running, youngest, queue);
    pd_sequence_drop_room(engine, youngest);
    youngest->launched = youngest->collected = youngest->target = 0;
    youngest->timing.preemptions++;
    engine->load.preemptions++;
    queue_by_age(engine, youngest);
    return true;
}

/* ---- submissions ----------------------------------------------------------------------------- */

uint32_t pd_admit_retry_ms(const struct pd_engine *engine)
{
    const struct pd_sequence *s;
    uint64_t tokens = tokens_ahead_of(engine, NULL);
    uint64_t ms;

    TAILQ_FOREACH (s, &engine->waiting, queue) {
        tokens += (uint64_t)s->count;
    }
    ms = tokens * engine->load.prefill_us_per_token_x1000 / 1000000;
    return ms < 100 ? 100 : ms > 60000 ? 60000 : (uint32_t)ms;
}

static struct pd_sequence *make_sequence(struct pd_engine *engine, struct pd_request *request,
                                         uint64_t prompt)
{
    uint64_t limit = (uint64_t)engine->options.max_model_len;
    uint64_t answer = request->sampling.max_tokens ? request->sampling.max_tokens : limit - prompt;
    struct pd_sequence *s = pd_sequence_create(request, ++engine->last_number,
                                               (int)(prompt + answer), engine->options.block_size);

    if (!s)
        return NULL;
    s->prompt = (int)prompt;
    s->max_answer = (int)answer;
    s->replayed = (int)request->generated.count;
    if (request->deadline_ns && request->deadline_ns < engine->next_deadline_ns)
        engine->next_deadline_ns = request->deadline_ns;
    engine->load.requests += request->route != PD_ROUTE_OFFER;
    return s;
}

/* What is in the cache, but for the prompt's last token, which whoever asks must compute. The blocks
 * stay until kvx says `released`. */
static void offer(struct pd_engine *engine, struct pd_sequence *s)
{
    int size = engine->options.block_size;
    size_t hits =
        pd_block_pool_match(engine->pool, s->tokens, (size_t)s->count - 1, s->blocks, &s->prefix);
    struct pd_ticket ticket;

    s->block_count = s->published = (int)hits;
    s->count = s->launched = s->collected = s->target = (int)hits * size;
    s->cached = (uint32_t)(s->count < s->prompt ? s->count : s->prompt);
    if (hits == 0) {
        pd_sequence_abort(engine, s, PD__V1__FAILED__CODE__TICKET,
                          "nothing of the prompt is in this worker's cache");
    } else if (!pd_transfer_offer(engine, s, &ticket)) {
        pd_sequence_abort(engine, s, PD__V1__FAILED__CODE__CAPACITY, "too many KV tickets are out");
    } else {
        engine->load.offered_tokens += (uint64_t)s->count;
        say_placed(engine, s, &ticket);
        pd_answer_offered(engine, s);
    }
}

static void start_decode(struct pd_engine *engine, struct pd_sequence *s)
{
    int tokens = (int)s->request->ticket.tokens;

    pd_admit_waiting(engine);
    s->phase = PD_PHASE_RECEIVING;
    if (tokens > patience_of_all(engine) ||
        !reserve(engine, s, pd_engine_blocks_for(engine, tokens))) {
        pd_sequence_abort(engine, s, PD__V1__FAILED__CODE__CAPACITY,
                          "no room for the prompt's KV blocks");
        return;
    }
    if (!pd_transfer_fetch(engine, s)) {
        pd_sequence_abort(engine, s, PD__V1__FAILED__CODE__CAPACITY,
                          "too many KV tickets are being read");
        return;
    }
    pass(engine, NULL, tokens);
    say_placed(engine, s, NULL);
}

static int check_state(const struct pd_engine *engine, struct verdict *verdict)
{
    verdict->code = PD__V1__FAILED__CODE__INTERNAL;
    if (engine->lost)
        return pd_fail(&verdict->error, PD_CLOSED, "the worker's device has failed");
    verdict->code = PD__V1__FAILED__CODE__DRAINING;
    if (engine->stopping || engine->draining)
        return pd_fail(&verdict->error, PD_CLOSED, "the worker is shutting down");
    return PD_OK;
}

static int check_queue(const struct pd_engine *engine, const struct pd_request *request,
                       struct verdict *verdict)
{
    bool waits = request->route == PD_ROUTE_DIRECT || request->route == PD_ROUTE_PREFILL;

    verdict->code = PD__V1__FAILED__CODE__CAPACITY;
    if (waits && engine->waiting_count >= engine->options.max_waiting)
        return pd_fail(&verdict->error, PD_FULL, "too many requests wait for this worker");
    return PD_OK;
}

static struct pd_sequence *accept(struct pd_engine *engine, struct pd_request *request,
                                  struct verdict *verdict)
{
    struct pd_sequence *s;
    uint64_t prompt = 0;

    if (check_state(engine, verdict) != PD_OK ||
        check_request(engine, request, &prompt, verdict) != PD_OK ||
        check_queue(engine, request, verdict) != PD_OK)
        return NULL;
    s = make_sequence(engine, request, prompt);
    if (!s)
        pd_fail(&verdict->error, PD_NO_MEMORY, "no memory for the request");
    return s;
}

/* Whoever waits is told of at once: its prompt is part of the load from now on. */
static void say_queued(struct pd_engine *engine, const struct pd_attempt *id)
{
    const struct pd_sequence *s = pd_sequence_by_attempt(&engine->table, id);

    if (!engine->options.events.queued || !s || s->phase != PD_PHASE_WAITING)
        return;
    pd_engine_publish_load(engine);
    engine->options.events.queued(engine->options.events.context, id);
}

void pd_admit_request(struct pd_engine *engine, struct pd_request *request)
{
    struct verdict verdict = {.param = ""};
    struct pd_sequence *s = accept(engine, request, &verdict);
    struct pd_attempt id = request->id;

    if (!s) {
        engine->load.ended_failed += request->route != PD_ROUTE_OFFER;
        pd_engine_say_failed(engine, &request->id, verdict.code, verdict.prompt_tokens,
                             verdict.param, verdict.error.text);
        pd_request_free(request);
        atomic_fetch_sub(&engine->living, 1);
        return;
    }
    pd_sequence_table_add(&engine->table, s);
    if (pd_answer_replay(engine, s))
        return;
    if (request->route == PD_ROUTE_DECODE) {
        start_decode(engine, s);
        return;
    }
    if (request->route == PD_ROUTE_OFFER) {
        offer(engine, s);
        return;
    }
    queue_by_age(engine, s);
    if (request->route == PD_ROUTE_PREFILL)
        pd_borrow_begin(engine, s);
    pd_admit_waiting(engine);
    say_queued(engine, &id);
}
