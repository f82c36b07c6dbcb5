/* The engines' part of the protocol: blocks with users, a prefix cache, prompts that are computed
 * chunk by chunk, fetches, sequences. Rules 3, 14, 20. */
#include <string.h>

#include "t/kvx/world.h"

/* ---- blocks ---------------------------------------------------------------------------------- */

static uint64_t tag_of(const struct attempt *attempt, uint32_t index)
{
    return attempt->id << 8 | (index + 1);
}

/* A block that holds the family's index-th block already. */
static int32_t cached(const struct node *node, uint32_t family, uint32_t index)
{
    for (int32_t i = 0; i < BLOCKS; i++)
        if (node->blocks[i].cached && node->blocks[i].family == family &&
            node->blocks[i].index == index)
            return i;
    return -1;
}

/* Takes it out of the cache; readers on this host find out before it is written to (15). */
static void recycle(struct node *node, int32_t block)
{
    node->blocks[block].cached = false;
    node->blocks[block].tag = 0;
    pd_kvx_recycled(node->kvx, &block, 1);
}

/* Cached prefix blocks are shared, the rest is taken from what is free; all of it or nothing. */
static bool reserve(struct node *node, const struct attempt *attempt, int32_t *blocks,
                    uint32_t *shared)
{
    const struct request *request = attempt->request;
    uint32_t hits = 0, free = 0, n;
    int32_t at = (int32_t)kvx_draw(BLOCKS);

    while (hits < request->shared && (blocks[hits] = cached(node, request->family, hits)) >= 0)
        node->blocks[blocks[hits++]].users++;
    for (int32_t i = 0; i < BLOCKS; i++)
        free += node->blocks[i].users == 0;
    if (free < request->blocks - hits) {
        while (hits > 0)
            node->blocks[blocks[--hits]].users--;
        return false;
    }
    for (n = hits; n < request->blocks; at = (at + (kvx_draw(4) == 0 ? 2 : 1)) % BLOCKS) {
        if (node->blocks[at].users > 0)
            continue;
        node->blocks[at].users = 1;
        recycle(node, at);
        blocks[n++] = at;
    }
    *shared = hits;
    return true;
}

static void give_back(struct node *node, const int32_t *blocks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        CHECK(node->blocks[blocks[i]].users > 0, "%s: block %d is freed twice", node->name,
              blocks[i]);
        node->blocks[blocks[i]].users--;
    }
}

static void into_cache(struct node *node, int32_t block, const struct request *request,
                       uint32_t index)
{
    if (index >= request->shared || cached(node, request->family, index) >= 0)
        return;
    node->blocks[block].cached = true;
    node->blocks[block].family = request->family;
    node->blocks[block].index = index;
}

/* ---- neighbours: other work on the same worker, which wants every block that becomes free ------ */

static void neighbour_leaves(struct node *node, struct attempt *none, uint64_t block)
{
    (void)none;
    CHECK(kvx_holds_tag(node, (int32_t)block, UINT32_MAX - block),
          "%s: a neighbour's block was written to", node->name);
    node->blocks[block].users--;
}

static void take(struct node *node, int32_t block)
{
    if (node->blocks[block].users > 0)
        return;
    node->blocks[block].users = 1;
    recycle(node, block);
    kvx_write(node, block, UINT32_MAX - (uint32_t)block);
    kvx_plan_call(kvx_draw(20 * MS), node, neighbour_leaves, NULL, (uint64_t)block);
}

static void move_in(struct node *node, int32_t block)
{
    if (kvx_chance(2 * world.weather.neighbour))
        take(node, block);
}

void kvx_neighbour(struct node *node)
{
    take(node, (int32_t)kvx_draw(BLOCKS));
}

/* ---- P --------------------------------------------------------------------------------------- */

static bool computing(const struct node *p, const struct attempt *attempt)
{
    return attempt->p == p && attempt->p_life == p->life && attempt->offered && !attempt->stopped &&
           !attempt->completed;
}

/* Gives up: the computing stops at once, the blocks stay until kvx says so (3). */
static void stop_computing(struct node *p, struct attempt *attempt, const char *why)
{
    if (attempt->p != p || attempt->p_life != p->life || !attempt->offered || attempt->revoked)
        return;
    attempt->revoked = attempt->stopped = true;
    pd_kvx_revoke(p->kvx, attempt->id, why);
}

/* A chunk of one to three blocks, then says so; with the last one comes the token. */
static void compute(struct node *p, struct attempt *attempt, uint64_t argument)
{
    const struct request *request = attempt->request;
    uint32_t target = attempt->computed + 1 + (uint32_t)kvx_draw(3);

    (void)argument;
    if (!computing(p, attempt))
        return;
    if (kvx_chance(world.weather.fail)) {
        SAY("%s: attempt %llu fails", p->name, (unsigned long long)attempt->id);
        stop_computing(p, attempt, "the step failed");
        kvx_tell_front(p, attempt->p_attach, attempt, FAILED);
        return;
    }
    if (attempt->computed < request->blocks) {
        for (; attempt->computed < request->blocks && attempt->computed < target;
             attempt->computed++) {
            int32_t block = attempt->p_block[attempt->computed];

            kvx_write(p, block, attempt->tag[attempt->computed]);
            into_cache(p, block, request, attempt->computed);
        }
        pd_kvx_ready(p->kvx, attempt->id,
                     attempt->computed < request->blocks ? attempt->computed * BLOCK_SIZE
                                                         : request->tokens);
        kvx_plan_call(kvx_draw(4 * MS), p, compute, attempt, 0);
        return;
    }
    attempt->completed = true;
    pd_kvx_complete(p->kvx, attempt->id,
                    &(struct pd_kvx_first){.token = (uint32_t)attempt->id + 1,
                                           .finish = attempt->ends_early,
                                           .cached = attempt->shared * BLOCK_SIZE});
    kvx_tell_front(p, attempt->p_attach, attempt, attempt->ends_early ? FIRST_AND_LAST : FIRST);
}

void kvx_on_submit(struct node *p, struct attempt *attempt, uint64_t attach)
{
    const struct request *request = attempt->request;
    struct pd_kvx_offer offer = {.generation = attempt->id, .owner = attach};
    int32_t prompt[PROMPT_BLOCKS * BLOCK_SIZE];

    if (!kvx_attach_passes(p, attach))
        return;
    attempt->p_life = p->life;
    attempt->p_attach = attach;
    if (!reserve(p, attempt, attempt->p_block, &attempt->shared)) {
        SAY("%s: no room for attempt %llu", p->name, (unsigned long long)attempt->id);
        kvx_tell_front(p, attach, attempt, FAILED);
        return;
    }
    world.shared += attempt->shared;
    attempt->computed = attempt->shared;
    attempt->ends_early = kvx_draw(10) == 0;
    for (uint32_t i = 0; i < request->blocks; i++)
        attempt->tag[i] =
            i < attempt->shared ? p->blocks[attempt->p_block[i]].tag : tag_of(attempt, i);
    for (uint32_t i = 0; i < request->tokens; i++)
        prompt[i] = (int32_t)attempt->id;
    offer.blocks = attempt->p_block;
    offer.block_count = request->blocks;
    offer.prompt = prompt;
    offer.tokens = request->tokens;
    memset(offer.secret, (int)attempt->id, sizeof(offer.secret));
    SAY("%s: places attempt %llu", p->name, (unsigned long long)attempt->id);
    attempt->offered = true;
    CHECK(pd_kvx_offer(p->kvx, &offer) == PD_OK, "an offer is refused");
    if (attempt->shared > 0)
        pd_kvx_ready(p->kvx, attempt->id, attempt->shared * BLOCK_SIZE);
    kvx_tell_front(p, attach, attempt, PLACED);
    kvx_plan_call(kvx_draw(4 * MS), p, compute, attempt, 0);
}

static void on_released(void *context, uint64_t generation)
{
    struct node *p = context;

    if (p->dying)
        return;
    for (size_t i = 0; i < world.attempt_count; i++) {
        struct attempt *attempt = &world.attempts[i];

        if (attempt->id != generation)
            continue;
        CHECK(attempt->p == p && attempt->p_life == p->life && attempt->offered,
              "ticket %llu is released that is not offered", (unsigned long long)generation);
        SAY("%s: ticket %llu is released", p->name, (unsigned long long)generation);
        attempt->offered = false;
        give_back(p, attempt->p_block, attempt->request->blocks);
        move_in(p, attempt->p_block[kvx_draw(attempt->request->blocks)]);
        world.released++;
        return;
    }
    kvx_broken("ticket %llu is released that nobody has offered", (unsigned long long)generation);
}

/* ---- D --------------------------------------------------------------------------------------- */

static struct attempt *fetch_of(const struct node *d, uint64_t id)
{
    for (size_t i = 0; i < world.attempt_count; i++) {
        struct attempt *attempt = &world.attempts[i];

        if (attempt->id == id) {
            CHECK(attempt->fetch == FETCHING && attempt->d == d && attempt->d_life == d->life,
                  "%s hears of fetch %llu, which is not under way", d->name,
                  (unsigned long long)id);
            return attempt;
        }
    }
    kvx_broken("%s hears of fetch %llu, which never was", d->name, (unsigned long long)id);
}

static void end_fetch(struct node *d, struct attempt *attempt)
{
    for (uint32_t i = attempt->held; i < attempt->request->blocks; i++)
        d->blocks[attempt->d_block[i]].writer = 0;
}

/* Reserves the whole prompt or refuses. A fetch of an earlier D of this ticket may still be ending
 * there: it is the dispatcher's next attempt then. */
void kvx_on_ticket(struct node *d, struct attempt *attempt, uint64_t attach)
{
    const struct request *request = attempt->request;
    struct pd_ticket ticket = {.boot = attempt->p_life,
                               .epoch = PD_KVX_EPOCH,
                               .generation = attempt->id,
                               .tokens = request->tokens,
                               .block_size = BLOCK_SIZE,
                               .fingerprint = kvx_world_fingerprint()};

    if (!kvx_attach_passes(d, attach))
        return;
    if (kvx_draw(12) == 0 || !reserve(d, attempt, attempt->d_block, &attempt->held)) {
        SAY("%s: refuses ticket %llu", d->name, (unsigned long long)attempt->id);
        kvx_tell_front(d, attach, attempt, REFUSED);
        return;
    }
    attempt->d_life = d->life;
    attempt->d_attach = attach;
    attempt->fetch = FETCHING;
    attempt->cancelled = attempt->wanted = false;
    for (uint32_t i = attempt->held; i < request->blocks; i++)
        d->blocks[attempt->d_block[i]].writer = attempt->id;
    memset(ticket.secret, (int)attempt->id, sizeof(ticket.secret));
    strcpy(ticket.instance, attempt->p->name);
    strcpy(ticket.address, attempt->p->name);
    CHECK(pd_kvx_fetch(d->kvx, attempt->id, &ticket) == PD_OK, "a fetch is refused");
}

static bool fetching(const struct node *d, const struct attempt *attempt)
{
    return attempt->fetch == FETCHING && attempt->d == d && attempt->d_life == d->life;
}

static void want(struct node *d, struct attempt *attempt, uint64_t argument)
{
    (void)argument;
    if (fetching(d, attempt))
        pd_kvx_fetch_want(d->kvx, attempt->id, attempt->held, attempt->d_block,
                          attempt->request->blocks);
}

static void on_claimed(void *context, uint64_t fetch, const uint32_t *prompt, size_t count)
{
    struct node *d = context;
    struct attempt *attempt;

    if (d->dying)
        return;
    attempt = fetch_of(d, fetch);
    CHECK(!attempt->wanted && count == attempt->request->tokens && prompt[0] == (uint32_t)fetch &&
              prompt[count - 1] == (uint32_t)fetch,
          "the claim of %llu is answered with another prompt", (unsigned long long)fetch);
    SAY("%s: has claimed %llu", d->name, (unsigned long long)fetch);
    attempt->wanted = true;
    kvx_plan_call(kvx_draw(2 * MS), d, want, attempt, 0);
}

static void cancel_fetch(struct node *d, struct attempt *attempt)
{
    if (!fetching(d, attempt) || attempt->cancelled)
        return;
    attempt->cancelled = true;
    pd_kvx_fetch_cancel(d->kvx, attempt->id);
}

static void on_sampled(void *context, uint64_t fetch, const struct pd_kvx_first *first)
{
    struct node *d = context;
    struct attempt *attempt;

    if (d->dying)
        return;
    attempt = fetch_of(d, fetch);
    CHECK(first->token == (uint32_t)fetch + 1, "the first token of %llu is another's",
          (unsigned long long)fetch);
    if (first->finish != 0 && !attempt->cancelled) { /* (14) */
        kvx_tell_front(d, attempt->d_attach, attempt, FINISHED);
        cancel_fetch(d, attempt);
    }
}

static void look_at_blocks(const struct node *d, const struct attempt *attempt, const char *when)
{
    for (uint32_t i = attempt->held; i < attempt->request->blocks; i++)
        CHECK(kvx_holds_tag(d, attempt->d_block[i], attempt->tag[i]),
              "%s: block %u of fetch %llu holds another's bytes %s", d->name, i,
              (unsigned long long)attempt->id, when);
}

static void end_decoding(struct node *d, struct attempt *attempt, uint64_t argument)
{
    (void)argument;
    if (attempt->fetch != DECODING || attempt->d != d || attempt->d_life != d->life)
        return;
    look_at_blocks(d, attempt, "while it decodes");
    attempt->fetch = NO_FETCH;
    give_back(d, attempt->d_block, attempt->request->blocks);
    if (!attempt->cancelled)
        kvx_tell_front(d, attempt->d_attach, attempt, FINISHED);
}

/* Trusted: and only now may its blocks enter the prefix cache (20). */
static void on_complete(void *context, uint64_t fetch, const struct pd_kvx_first *first,
                        const struct pd_kvx_stats *stats)
{
    struct node *d = context;
    struct attempt *attempt;

    (void)stats;
    if (d->dying)
        return;
    attempt = fetch_of(d, fetch);
    CHECK(first->token == (uint32_t)fetch + 1 && first->finish == attempt->ends_early &&
              first->cached == attempt->shared * BLOCK_SIZE,
          "the first token of %llu is another's", (unsigned long long)fetch);
    SAY("%s: fetch %llu is complete", d->name, (unsigned long long)fetch);
    end_fetch(d, attempt);
    look_at_blocks(d, attempt, "and is trusted");
    for (uint32_t i = attempt->held; i < attempt->request->blocks; i++) {
        d->blocks[attempt->d_block[i]].tag = attempt->tag[i];
        into_cache(d, attempt->d_block[i], attempt->request, i);
    }
    world.completed++;
    world.unequal += attempt->p->ranks != d->ranks;
    attempt->fetch = DECODING;
    kvx_plan_call(kvx_draw(10 * MS), d, end_decoding, attempt, 0);
}

static void on_closed(void *context, uint64_t fetch, bool cancelled, const char *why)
{
    struct node *d = context;
    struct attempt *attempt;

    if (d->dying)
        return;
    attempt = fetch_of(d, fetch);
    CHECK(!cancelled || attempt->cancelled, "fetch %llu was cancelled by nobody",
          (unsigned long long)fetch);
    SAY("%s: fetch %llu is closed: %s", d->name, (unsigned long long)fetch, why);
    end_fetch(d, attempt);
    attempt->fetch = NO_FETCH;
    give_back(d, attempt->d_block, attempt->request->blocks);
    move_in(d, attempt->d_block[kvx_draw(attempt->request->blocks)]);
    world.closed++;
    if (!attempt->cancelled)
        kvx_tell_front(d, attempt->d_attach, attempt, FAILED);
}

const struct pd_kvx_callbacks kvx_engine_callbacks = {.released = on_released,
                                                      .claimed = on_claimed,
                                                      .sampled = on_sampled,
                                                      .complete = on_complete,
                                                      .closed = on_closed};

/* ---- ends ------------------------------------------------------------------------------------ */

void kvx_on_cancel(struct node *node, struct attempt *attempt, uint64_t attach)
{
    if (!kvx_attach_passes(node, attach))
        return;
    stop_computing(node, attempt, "cancelled");
    cancel_fetch(node, attempt);
    if (attempt->fetch == DECODING && attempt->d == node && attempt->d_life == node->life) {
        attempt->cancelled = true;
        end_decoding(node, attempt, 0);
    }
}

/* (1, 22) Unclaimed tickets of that stream have no reader; its fetches and sequences have nobody to
 * answer to. What is claimed goes on: its D judges (18). */
void kvx_attach_lost(struct node *node)
{
    SAY("%s: has lost the dispatcher", node->name);
    node->worker_up = false;
    pd_kvx_forget_owner(node->kvx, node->worker_attach);
    for (size_t i = 0; i < world.attempt_count; i++) {
        struct attempt *attempt = &world.attempts[i];

        cancel_fetch(node, attempt);
        if (attempt->fetch == DECODING && attempt->d == node && attempt->d_life == node->life) {
            attempt->cancelled = true;
            end_decoding(node, attempt, 0);
        }
    }
}

void kvx_engine_dies(struct node *node)
{
    for (size_t i = 0; i < world.attempt_count; i++) {
        struct attempt *attempt = &world.attempts[i];

        if (attempt->p == node && attempt->p_life == node->life)
            attempt->offered = false;
        if (attempt->d == node && attempt->d_life == node->life)
            attempt->fetch = NO_FETCH;
    }
}

bool kvx_engines_rest(void)
{
    for (size_t i = 0; i < world.attempt_count; i++)
        if (world.attempts[i].offered || world.attempts[i].fetch != NO_FETCH)
            return false;
    return true;
}
