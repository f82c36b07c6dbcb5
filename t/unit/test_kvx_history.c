/* Random histories of the hand-off: the two state machines as they are, in a world of seeded
 * delays, cut and half-open streams, dying and restarting workers, cancels at any moment, and
 * neighbours that take every block that becomes free.
 *
 * A block is one number: the tag of whoever wrote it last. Checked at every step:
 *   - a read lands only in a block that belongs to the fetch that posted it;
 *   - a completed fetch holds exactly its ticket's tags;
 *   - a neighbour's block keeps the neighbour's tag;
 *   - every offer is released once, every fetch ends once;
 * and at rest: no ticket, no fetch, no read and no block is left over.
 *
 * A history is its seed: KVX_SEED=n replays one, KVX_HISTORIES=n runs more. */
#include "t/unit/kvx_sim.h"

enum { STEPS = 1500, HISTORIES = 300 };

/* ---- the engines ----------------------------------------------------------------------------- */

/* `count` free blocks, taken at random; false if there are not as many. */
static bool take_blocks(struct sim *sim, struct pool *pool, uint32_t count, uint64_t owner,
                        int32_t *blocks)
{
    uint32_t free = 0;

    for (uint32_t i = 0; i < BLOCKS; i++)
        free += pool->owner[i] == 0;
    if (free < count)
        return false;
    for (uint32_t n = 0; n < count;) {
        int32_t block = (int32_t)kvx_draw(sim, BLOCKS);

        if (n > 0 && kvx_draw(sim, 2) && blocks[n - 1] + 1 < BLOCKS)
            block = blocks[n - 1] + 1;
        if (pool->owner[block] != 0)
            continue;
        pool->owner[block] = owner;
        blocks[n++] = block;
    }
    return true;
}

static bool submit(struct sim *sim, struct job *job)
{
    struct pd_kvx_offer offer = {0};
    struct pd_source_ticket *ticket;
    struct pd_layout layout = kvx_sim_layout();
    int32_t prompt[PROMPT_BLOCKS * BLOCK_SIZE];

    if (job->used || sim->quiet)
        return false;
    memset(job, 0, sizeof(*job));
    job->id = ++sim->next_id;
    job->p = &sim->sources[kvx_draw(sim, SOURCES)];
    job->d = &sim->readers[kvx_draw(sim, READERS)];
    job->p_boot = job->p->boot;
    job->tokens = 1 + (uint32_t)kvx_draw(sim, PROMPT_BLOCKS * BLOCK_SIZE);
    job->blocks = pd_layout_blocks_for(&layout, job->tokens);
    if (!take_blocks(sim, job->p->pool, job->blocks, job->id, job->p_block))
        return false;
    for (uint32_t i = 0; i < job->blocks; i++)
        atomic_fetch_add(&job->p->pool->words[job->p_block[i]], 1);
    for (uint32_t i = 0; i < job->tokens; i++)
        prompt[i] = (int32_t)job->id;
    offer.generation = job->id;
    offer.blocks = job->p_block;
    offer.block_count = job->blocks;
    offer.prompt = prompt;
    offer.tokens = job->tokens;
    offer.owner = kvx_draw(sim, 3);
    job->used = job->p_alive = true;
    job->to_send = kvx_draw(sim, 8) != 0; /* or the dispatcher changes its mind */
    assert_int_equal(pd_source_ticket_create(&offer, &layout, &ticket), PD_OK);
    assert_int_equal(pd_source_offer(job->p->source, sim->now, ticket), PD_OK);
    return true;
}

/* The source computes a block's worth, then says so; with the last one comes the token. */
static bool compute(struct sim *sim, struct job *job)
{
    uint32_t done;

    if (!job->p_alive || job->revoked || job->completed)
        return false;
    if (job->computed < job->blocks) {
        job->p->pool->tag[job->p_block[job->computed]] = kvx_tag_of(job->id, job->computed);
        job->computed++;
        done = job->computed * BLOCK_SIZE < job->tokens ? job->computed * BLOCK_SIZE : job->tokens;
        pd_source_ready(job->p->source, sim->now, job->id, done);
        return true;
    }
    job->completed = true;
    pd_source_complete(job->p->source, sim->now, job->id, (uint32_t)job->id + 1, 0, 0);
    return true;
}

static bool send_ticket(struct sim *sim, struct job *job)
{
    struct pd_ticket ticket = {.boot = job->p_boot,
                               .epoch = PD_KVX_EPOCH,
                               .generation = job->id,
                               .tokens = job->tokens,
                               .block_size = BLOCK_SIZE,
                               .fingerprint = kvx_sim_fingerprint()};

    if (!job->to_send)
        return false;
    job->to_send = false;
    if (!take_blocks(sim, job->d->pool, job->blocks, job->id, job->d_block))
        return true;
    strcpy(ticket.instance, job->p->name);
    strcpy(ticket.address, job->p->name);
    job->fetching = true;
    assert_int_equal(pd_reader_fetch(job->d->reader, sim->now, job->id, &ticket), PD_OK);
    return true;
}

static bool say_wanted(struct sim *sim, struct job *job)
{
    int32_t *blocks;

    if (!job->to_want)
        return false;
    job->to_want = false;
    if (!job->fetching)
        return true;
    job->from = kvx_draw(sim, 3) ? 0 : (uint32_t)kvx_draw(sim, job->blocks + 1);
    blocks = malloc(sizeof(job->d_block));
    memcpy(blocks, job->d_block, sizeof(job->d_block));
    pd_reader_want(job->d->reader, sim->now, job->id, job->from, blocks, job->blocks);
    return true;
}

/* The dispatcher's cancel, or the engine's own trouble: at any moment, at either end. */
static bool cancel(struct sim *sim, struct job *job)
{
    if (!job->used || kvx_draw(sim, sim->quiet ? 4 : 60))
        return false;
    job->to_send = false;
    if (job->p_alive && !job->revoked && (sim->quiet || kvx_draw(sim, 3))) {
        job->revoked = true;
        pd_source_revoke(job->p->source, sim->now, job->id, "cancelled");
    }
    if (job->fetching && (sim->quiet || kvx_draw(sim, 3)))
        pd_reader_cancel(job->d->reader, sim->now, job->id);
    return true;
}

static bool end_decode(struct sim *sim, struct job *job)
{
    if (!job->decoding || kvx_draw(sim, 4))
        return false;
    for (uint32_t i = job->from; i < job->blocks; i++)
        KVX_CHECK(job->d->pool->tag[job->d_block[i]] == kvx_tag_of(job->id, i),
                  "a block changes while its owner decodes");
    job->decoding = false;
    kvx_free_blocks(job->d->pool, job->d_block, job->blocks, job->id);
    return true;
}

static bool step_job(struct sim *sim, struct job *job)
{
    bool (*const steps[])(struct sim *, struct job *) = {
        submit, compute, compute, send_ticket, say_wanted, end_decode, cancel};

    if (job->used && !job->p_alive && !job->to_send && !job->fetching && !job->decoding)
        job->used = job->to_want = false;
    if (!job->used)
        return submit(sim, job);
    if (kvx_stopped(job->p) || kvx_stopped(job->d))
        return false;
    return steps[1 + kvx_draw(sim, 6)](sim, job);
}

/* A neighbour takes a free block, writes its own tag, and later finds it untouched. */
static bool neighbour(struct sim *sim, struct pool *pool)
{
    uint32_t block = (uint32_t)kvx_draw(sim, BLOCKS);
    uint64_t mine = UINT64_MAX - block;

    if (pool->owner[block] == mine) {
        KVX_CHECK(pool->tag[block] == mine, "a neighbour's block was written");
        pool->owner[block] = 0;
        return true;
    }
    if (pool->owner[block] != 0 || sim->quiet)
        return false;
    atomic_fetch_add(&pool->words[block], 1);
    pool->owner[block] = mine;
    pool->tag[block] = mine;
    return true;
}

/* ---- a history ------------------------------------------------------------------------------- */

static void tick(struct sim *sim)
{
    for (size_t i = 0; i < SOURCES; i++)
        if (!kvx_stopped(&sim->sources[i]))
            pd_source_tick(sim->sources[i].source, sim->now);
    for (size_t i = 0; i < READERS; i++)
        if (!kvx_stopped(&sim->readers[i]))
            pd_reader_tick(sim->readers[i].reader, sim->now);
    sim->next_tick = sim->now + 20 * kvx_ms;
}

static void restart_somebody(struct sim *sim)
{
    struct sim_node *node;

    if (sim->pool_count == POOLS)
        return;
    if (kvx_draw(sim, 2)) {
        node = &sim->sources[kvx_draw(sim, SOURCES)];
        kvx_kill_source(node);
        kvx_start_source(node);
    } else {
        node = &sim->readers[kvx_draw(sim, READERS)];
        kvx_kill_reader(node);
        kvx_start_reader(node);
    }
}

static void misfortune(struct sim *sim)
{
    uint64_t what = kvx_draw(sim, 100);
    struct stream *stream = kvx_some_stream(sim);

    if (what < 8 && stream && stream->established)
        kvx_cut_stream(stream, kvx_draw(sim, 3) == 0);
    else if (what < 10)
        restart_somebody(sim);
    else if (what < 12) /* everybody is late */
        sim->now += kvx_draw(sim, 150) * kvx_ms;
    else if (what < 14) /* SIGSTOP, and SIGCONT before or after the others have given it up */
        sim->sources[kvx_draw(sim, SOURCES)].frozen = sim->now + kvx_draw(sim, 400) * kvx_ms;
    else if (what < 18)
        sim->readers[kvx_draw(sim, READERS)].frozen = sim->now + kvx_draw(sim, 400) * kvx_ms;
    else if (what < 22)
        pd_source_forget_owner(sim->sources[kvx_draw(sim, SOURCES)].source, kvx_draw(sim, 3));
}

/* The first thing out of many that can happen. */
static void step(struct sim *sim)
{
    sim->now += kvx_draw(sim, 2 * kvx_ms);
    if (sim->now >= sim->next_tick)
        tick(sim);
    if (!sim->quiet && kvx_draw(sim, 8) == 0)
        misfortune(sim);
    for (int tries = 0; tries < 40; tries++) {
        struct stream *stream = kvx_some_stream(sim);
        struct sim_node *node = kvx_draw(sim, 2) ? &sim->sources[kvx_draw(sim, SOURCES)]
                                                 : &sim->readers[kvx_draw(sim, READERS)];
        bool done = false;

        switch (kvx_draw(sim, 6)) {
        case 0:
        case 1:
            done = stream && kvx_step_stream(sim, stream);
            break;
        case 2:
            done = kvx_step_read(sim, &sim->reads[kvx_draw(sim, 8)]);
            break;
        case 3:
            done = neighbour(sim, node->pool);
            break;
        default:
            done = step_job(sim, &sim->jobs[kvx_draw(sim, JOBS)]);
            break;
        }
        if (done)
            break;
    }
}

static bool pool_is_free(const struct pool *pool)
{
    for (size_t i = 0; i < BLOCKS; i++)
        if (pool->owner[i] != 0)
            return false;
    return true;
}

/* Nothing is left over anywhere. */
static bool at_rest(const struct sim *sim)
{
    bool rest = true;

    for (size_t i = 0; i < JOBS; i++)
        rest = rest && !sim->jobs[i].used;
    for (size_t i = 0; i < READS; i++)
        rest = rest && !sim->reads[i].read;
    for (size_t i = 0; i < SOURCES; i++)
        rest = rest && pd_source_tickets(sim->sources[i].source) == 0 &&
               pool_is_free(sim->sources[i].pool);
    for (size_t i = 0; i < READERS; i++)
        rest = rest && pd_reader_fetches(sim->readers[i].reader) == 0 &&
               pool_is_free(sim->readers[i].pool);
    return rest;
}

static struct sim *begin(uint64_t seed, bool shm)
{
    struct sim *sim = calloc(1, sizeof(*sim));

    sim->random = seed;
    sim->shm = shm;
    for (int i = 0; i < SOURCES; i++) {
        sim->sources[i] = (struct sim_node){.sim = sim, .index = i};
        snprintf(sim->sources[i].name, sizeof(sim->sources[i].name), "p%d", i);
        kvx_start_source(&sim->sources[i]);
    }
    for (int i = 0; i < READERS; i++) {
        sim->readers[i] = (struct sim_node){.sim = sim, .index = i};
        snprintf(sim->readers[i].name, sizeof(sim->readers[i].name), "d%d", i);
        kvx_start_reader(&sim->readers[i]);
    }
    return sim;
}

static void end(struct sim *sim)
{
    for (size_t i = 0; i < SOURCES; i++)
        kvx_kill_source(&sim->sources[i]);
    for (size_t i = 0; i < READERS; i++)
        kvx_kill_reader(&sim->readers[i]);
    free(sim);
}

struct totals {
    uint64_t completed, closed, released, streams, words_moved;
};

static void run_history(uint64_t seed, bool shm, struct totals *totals)
{
    struct sim *sim = begin(seed, shm);

    kvx_seed = seed;
    for (int i = 0; i < STEPS; i++)
        step(sim);
    sim->quiet = true;
    for (int i = 0; i < 20 * STEPS && !at_rest(sim); i++)
        step(sim);
    KVX_CHECK(at_rest(sim), "something is left over");
    totals->completed += sim->completed;
    totals->closed += sim->closed;
    totals->released += sim->released;
    totals->streams += sim->stream_count;
    for (size_t i = 0; i < READERS; i++)
        totals->words_moved += pd_reader_counters(sim->readers[i].reader)->words_moved;
    for (size_t i = 0; i < SOURCES; i++)
        KVX_CHECK(pd_source_counters(sim->sources[i].source)->release_deadlines == 0,
                  "honest workers have needed the last resort");
    end(sim);
}

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void run_histories(bool shm)
{
    uint64_t first = from_environment("KVX_SEED", 1);
    uint64_t count = getenv("KVX_SEED") ? 1 : from_environment("KVX_HISTORIES", HISTORIES);
    struct totals totals = {0};

    for (uint64_t seed = first; seed < first + count; seed++)
        run_history(seed, shm, &totals);
    print_message("%llu histories: %llu fetches complete, %llu closed, %llu tickets released, "
                  "%llu links, %llu moved words\n",
                  (unsigned long long)count, (unsigned long long)totals.completed,
                  (unsigned long long)totals.closed, (unsigned long long)totals.released,
                  (unsigned long long)totals.streams, (unsigned long long)totals.words_moved);
    /* A world in which nothing works, or nothing goes wrong, would prove nothing. */
    if (count >= 100) {
        assert_true(totals.completed > 10 * count);
        assert_true(totals.closed > 5 * count);
        assert_true(!shm || totals.words_moved > 0);
    }
}

static void histories_with_a_fence(void **state)
{
    (void)state;
    run_histories(false);
}

static void histories_with_shared_memory(void **state)
{
    (void)state;
    run_histories(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(histories_with_a_fence),
        cmocka_unit_test(histories_with_shared_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
