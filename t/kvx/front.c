/* The dispatcher's part: requests, attempts, and what it says to workers. Rules 2, 13, 17, 18. */
#include <string.h>

#include "t/kvx/world.h"

/* ---- the Attach streams ---------------------------------------------------------------------- */

/* Messages of one Attach stream do not overtake each other; those of two streams do, and so do a
 * stream's and a KV link's. What is under way when the stream is cut is lost. */
static bool passes(const struct node *node, uint64_t attach)
{
    return node->attach == attach && !node->attach_cut;
}

bool kvx_attach_passes(const struct node *node, uint64_t attach)
{
    return passes(node, attach) && node->worker_up && node->worker_attach == attach;
}

static uint64_t in_order(uint64_t *last)
{
    uint64_t at = world.now + kvx_draw(world.weather.message_ns);

    *last = at > *last ? at : *last;
    return *last - world.now;
}

static void on_answer(struct node *none, struct attempt *attempt, uint64_t packed);

void kvx_tell_front(struct node *node, uint64_t attach, struct attempt *attempt, enum answer answer)
{
    if (!node->dying && kvx_attach_passes(node, attach))
        kvx_plan_call(in_order(&node->to_front), NULL, on_answer, attempt,
                      attach << 16 | (uint64_t)node->index << 8 | (uint64_t)answer);
}

static void say_to(struct node *node, void (*what)(struct node *, struct attempt *, uint64_t),
                   struct attempt *attempt)
{
    if (node->front_up && !node->attach_cut)
        kvx_plan_call(in_order(&node->to_worker), node, what, attempt, node->attach);
}

/* ---- attempts -------------------------------------------------------------------------------- */

static void try_again(struct request *request);

/* (2) The attempt is left: everybody who may hold it is told. */
static void drop(struct request *request)
{
    struct attempt *attempt = request->attempt;

    SAY("front: leaves attempt %llu", (unsigned long long)attempt->id);
    say_to(attempt->p, kvx_on_cancel, attempt);
    if (request->state == HANDED)
        say_to(attempt->d, kvx_on_cancel, attempt);
    request->attempt = NULL;
    request->state = WAITING;
}

static void answer_request(struct request *request, bool well)
{
    CHECK(request->state != ANSWERED, "request %llu is answered twice",
          (unsigned long long)request->id);
    SAY("front: request %llu ends %s", (unsigned long long)request->id, well ? "well" : "in error");
    request->state = ANSWERED;
    request->attempt = NULL;
    if (well)
        world.answered++;
    else
        world.failed++;
}

/* Another worker than P whose Attach stream is up and that has not had this ticket. */
static bool choose_reader(struct attempt *attempt)
{
    size_t start = kvx_draw(NODES);

    for (size_t i = 0; i < NODES; i++) {
        struct node *node = &world.nodes[(start + i) % NODES];

        if (node == attempt->p || !node->front_up || attempt->tried & 1u << node->index)
            continue;
        attempt->d = node;
        attempt->tried |= 1u << node->index;
        return true;
    }
    return false;
}

static void hand_over(struct request *request)
{
    if (!choose_reader(request->attempt)) {
        request->state = SUBMITTED;
        drop(request);
        try_again(request);
        return;
    }
    SAY("front: ticket %llu to %s", (unsigned long long)request->attempt->id,
        request->attempt->d->name);
    request->state = HANDED;
    say_to(request->attempt->d, kvx_on_ticket, request->attempt);
}

static void begin_attempt(struct request *request)
{
    struct attempt *attempt = &world.attempts[world.attempt_count];
    size_t start = kvx_draw(NODES);

    for (size_t i = 0; i < NODES; i++) {
        struct node *node = &world.nodes[(start + i) % NODES];

        if (!node->front_up)
            continue;
        world.attempt_count++;
        *attempt = (struct attempt){.id = ++world.last_id, .request = request, .p = node};
        request->attempt = attempt;
        request->state = SUBMITTED;
        request->tries++;
        world.retries += request->tries > 1;
        SAY("front: request %llu is attempt %llu on %s, %u tokens of family %u (%u shared)",
            (unsigned long long)request->id, (unsigned long long)attempt->id, node->name,
            request->tokens, request->family, request->shared);
        say_to(node, kvx_on_submit, attempt);
        return;
    }
    answer_request(request, false);
}

static void on_retry(struct node *none, struct attempt *attempt, uint64_t argument)
{
    struct request *request = &world.requests[argument];

    (void)none;
    (void)attempt;
    if (request->state == WAITING)
        begin_attempt(request);
}

static void try_again(struct request *request)
{
    if (request->state == ANSWERED)
        return;
    if (request->tries >= TRIES || world.attempt_count == ATTEMPTS) {
        answer_request(request, false);
        return;
    }
    kvx_plan_call(kvx_draw(5 * MS), NULL, on_retry, NULL, (uint64_t)(request - world.requests));
}

void kvx_ask(struct request *request)
{
    if (world.attempt_count == ATTEMPTS)
        return;
    *request = (struct request){.id = ++world.last_id, .born = world.now, .state = WAITING};
    request->tokens = 1 + (uint32_t)kvx_draw(PROMPT_BLOCKS * BLOCK_SIZE);
    request->blocks = (request->tokens + BLOCK_SIZE - 1) / BLOCK_SIZE;
    request->family = (uint32_t)kvx_draw(FAMILIES);
    request->shared = kvx_draw(2) ? (uint32_t)kvx_draw(request->tokens / BLOCK_SIZE + 1) : 0;
    begin_attempt(request);
}

/* ---- what workers say ------------------------------------------------------------------------ */

/* Only the present attempt is listened to, and of D only what it says of the ticket it has. */
static void on_answer(struct node *none, struct attempt *attempt, uint64_t packed)
{
    struct node *node = &world.nodes[packed >> 8 & 0xff];
    struct request *request = attempt->request;

    (void)none;
    if (!passes(node, packed >> 16) || !node->front_up || request->attempt != attempt)
        return;
    switch ((enum answer)(packed & 0xff)) {
    case PLACED:
        if (request->state == SUBMITTED)
            hand_over(request);
        break;
    case REFUSED: /* (6) another reader may have the ticket */
        if (request->state == HANDED && attempt->d == node)
            hand_over(request);
        break;
    case FIRST: /* goes to the client; the request stays with D */
        break;
    case FIRST_AND_LAST: /* (14) nobody needs the KV any more */
        drop(request);
        answer_request(request, true);
        break;
    case FINISHED: /* D has the first token from P's last ChunkReady: P's own may come later (13) */
        answer_request(request, true);
        break;
    case FAILED:
        drop(request);
        try_again(request);
        break;
    }
}

/* ---- losses ---------------------------------------------------------------------------------- */

/* An older stream that the worker still believes in is lost first (11). */
static void accept_again(struct node *node, struct attempt *none, uint64_t attach)
{
    (void)none;
    if (node->attach != attach || node->attach_cut)
        return;
    if (node->worker_up)
        kvx_attach_lost(node);
    node->worker_up = true;
    node->worker_attach = attach;
}

static void reconnect(struct node *none, struct attempt *nothing, uint64_t index)
{
    struct node *node = &world.nodes[index];

    (void)none;
    (void)nothing;
    if (node->front_up)
        return;
    node->attach++;
    node->attach_cut = false;
    node->front_up = true;
    SAY("front: attaches to %s again", node->name);
    say_to(node, accept_again, NULL);
}

/* (18) Once D has the ticket, D alone judges: the loss of P's stream matters only before that. */
static void lose(struct node *node)
{
    node->front_up = false;
    SAY("front: has lost %s", node->name);
    for (size_t i = 0; i < REQUESTS; i++) {
        struct request *request = &world.requests[i];

        if ((request->state == SUBMITTED && request->attempt->p == node) ||
            (request->state == HANDED && request->attempt->d == node)) {
            drop(request);
            try_again(request);
        }
    }
    kvx_plan_call(kvx_draw(30 * MS), NULL, reconnect, NULL, (uint64_t)node->index);
}

static void front_notices(struct node *none, struct attempt *nothing, uint64_t packed)
{
    struct node *node = &world.nodes[packed & 0xff];

    (void)none;
    (void)nothing;
    if (node->front_up && node->attach == packed >> 8)
        lose(node);
}

static void worker_notices(struct node *node, struct attempt *none, uint64_t attach)
{
    (void)none;
    if (node->worker_up && node->attach_cut && node->attach == attach)
        kvx_attach_lost(node);
}

/* Each end notices for itself. */
void kvx_attach_cut(struct node *node)
{
    if (node->attach_cut)
        return;
    SAY("the Attach stream of %s is cut", node->name);
    node->attach_cut = true;
    if (node->front_up)
        kvx_plan_call(kvx_draw(50 * MS), NULL, front_notices, NULL,
                      node->attach << 8 | (uint64_t)node->index);
    kvx_plan_call(kvx_draw(50 * MS), node, worker_notices, NULL, node->attach);
}

/* Its successor knows nothing of the requests: their clients see an error. */
void kvx_front_dies(void)
{
    SAY("front: dies");
    for (size_t i = 0; i < REQUESTS; i++)
        if (world.requests[i].state != UNUSED && world.requests[i].state != ANSWERED)
            answer_request(&world.requests[i], false);
    for (size_t i = 0; i < NODES; i++)
        if (world.nodes[i].front_up) {
            kvx_attach_cut(&world.nodes[i]);
            lose(&world.nodes[i]);
        }
}

void kvx_client_leaves(void)
{
    struct request *request = &world.requests[kvx_draw(REQUESTS)];

    if (request->state == UNUSED || request->state == ANSWERED)
        return;
    SAY("client of request %llu leaves", (unsigned long long)request->id);
    if (request->attempt)
        drop(request);
    answer_request(request, false);
}
