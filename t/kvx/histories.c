/* Random histories of the hand-off, in the world of world.h. Each seed draws its own weather: which
 * misfortunes there are, how often, how slow the wires are, and whether they have a fence; then
 * requests come, things go wrong, the weather clears, and what is left must come to an end.
 *
 * Checked at every step:
 *   - bytes leave a source with a fence only from blocks of a ticket that is not released;
 *   - bytes land only in a block that belongs to the fetch that reads them;
 *   - a fetch that completes holds the tags of its ticket on every rank, and so it does while its owner
 *     decodes;
 *   - a neighbour's block keeps the neighbour's tag;
 *   - every offer is released once, every fetch ends once, every request is answered once;
 * and at rest, within a stated time: no ticket, fetch, read or request is left, every block is free,
 * and nobody whose clock runs evenly needed the last resort (21).
 *
 *   usage: histories COUNT [FIRST]    COUNT histories from seed FIRST (1) on
 *          SEED=n histories           that one, told step by step */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "t/kvx/world.h"
#include "worker/base/log.h"
#include "worker/kvx/reader.h"
#include "worker/kvx/source.h"

/* Of simulated time. The longest of the fences' own deadlines is that of a release: 4.8 s. */
static const uint64_t arrivals_ns = 250 * MS, storm_ns = 400 * MS, patience_ns = 30000 * MS;

struct world world;
bool kvx_tracing;

/* ---- chance ---------------------------------------------------------------------------------- */

/* splitmix64 */
uint64_t kvx_draw(uint64_t below)
{
    uint64_t z = (world.random += 0x9e3779b97f4a7c15u);

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return below == 0 ? 0 : z % below;
}

bool kvx_chance(unsigned per_mille)
{
    return per_mille > 0 && kvx_draw(1000) < per_mille;
}

/* ---- telling --------------------------------------------------------------------------------- */

static void tell(FILE *to, const char *format, va_list arguments)
{
    fprintf(to, "%10.3f ms  ", (double)world.now / 1e6);
    vfprintf(to, format, arguments);
    fputc('\n', to);
}

void kvx_say(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    tell(stdout, format, arguments);
    va_end(arguments);
}

void kvx_broken(const char *format, ...)
{
    va_list arguments;

    fflush(stdout);
    fprintf(stderr, "history %llu is broken:\n", (unsigned long long)world.seed);
    va_start(arguments, format);
    tell(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "SEED=%llu make check-kvx-histories tells it step by step\n",
            (unsigned long long)world.seed);
    exit(1);
}

/* ---- events: a heap by time, then by order ---------------------------------------------------- */

static bool before(const struct event *a, const struct event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void push(struct event event)
{
    size_t at = world.heap_count++;

    if (world.heap_count > world.heap_room) {
        world.heap_room = world.heap_room ? 2 * world.heap_room : 256;
        world.heap = realloc(world.heap, world.heap_room * sizeof(*world.heap));
    }
    for (; at > 0 && before(&event, &world.heap[(at - 1) / 2]); at = (at - 1) / 2)
        world.heap[at] = world.heap[(at - 1) / 2];
    world.heap[at] = event;
}

void kvx_plan(uint64_t delay, struct event event)
{
    event.at = world.now + delay;
    event.order = ++world.order;
    event.life = event.node ? event.node->life : 0;
    push(event);
}

void kvx_plan_call(uint64_t delay, struct node *node,
                   void (*call)(struct node *node, struct attempt *attempt, uint64_t argument),
                   struct attempt *attempt, uint64_t argument)
{
    kvx_plan(
        delay,
        (struct event){
            .kind = EV_CALL, .node = node, .call = call, .attempt = attempt, .argument = argument});
}

static struct event pop(void)
{
    struct event top = world.heap[0], last = world.heap[--world.heap_count];
    size_t at = 0, child;

    while ((child = 2 * at + 1) < world.heap_count) {
        if (child + 1 < world.heap_count && before(&world.heap[child + 1], &world.heap[child]))
            child++;
        if (!before(&world.heap[child], &last))
            break;
        world.heap[at] = world.heap[child];
        at = child;
    }
    world.heap[at] = last;
    return top;
}

/* A process that is stopped gets its mail afterwards; one whose thread stands still gets it now, and
 * finds it later. */
static void happen(struct event *event)
{
    struct node *node = event->node;

    if (node && node->life != event->life) {
        free(event->bytes);
        return;
    }
    if (node && node->frozen > world.now && !(node->mute && event->kind != EV_TURN)) {
        event->at = node->frozen;
        push(*event);
        return;
    }
    switch (event->kind) {
    case EV_TURN:
        kvx_turn(node);
        break;
    case EV_ESTABLISH:
        kvx_establish(event);
        break;
    case EV_MESSAGE:
        kvx_message(event);
        break;
    case EV_STREAM_ENDS:
        kvx_stream_ends(event);
        break;
    case EV_CALL:
        event->call(node, event->attempt, event->argument);
        break;
    }
}

/* ---- weather --------------------------------------------------------------------------------- */

static unsigned maybe(unsigned per_mille)
{
    return kvx_draw(2) ? 0 : (unsigned)kvx_draw(per_mille) + 1;
}

static void choose_weather(struct weather *weather)
{
    static const char *const transports[] = {"sim", "simshm", "sim", "simshm", "auto"};
    static const uint64_t paces[] = {MS / 5, MS, 4 * MS, 20 * MS, 150 * MS};

    *weather = (struct weather){
        .cut = maybe(60),
        .silent = maybe(30),
        .restart = maybe(20),
        .freeze = maybe(60),
        .jump = maybe(20),
        .forget = maybe(40),
        .partition = maybe(20),
        .duplicate = maybe(200),
        .cancel = maybe(60),
        .fail = maybe(100),
        .front_dies = maybe(8),
        .neighbour = maybe(400),
        .post_fails = maybe(20),
        .message_ns = paces[kvx_draw(4)],
        .step_ns = paces[kvx_draw(5)],
        .transport = transports[kvx_draw(5)],
    };
    for (size_t i = 0; i < NODES; i++)
        world.nodes[i].slow = kvx_draw(6) ? 0 : kvx_draw(10 * MS);
}

/* In half of the histories every worker has its own number of ranks; prefill and decode differ often. A third of
 * the readers wants checksums. */
static void choose_workers(void)
{
    bool same = kvx_draw(2);

    for (size_t i = 0; i < NODES; i++)
        world.nodes[i].ranks = same ? 1 : 1u << kvx_draw(3);
    for (size_t i = 0; i < NODES; i++)
        world.nodes[i].checksum = kvx_draw(3) == 0;
}

static struct node *some_node(void)
{
    return &world.nodes[kvx_draw(NODES)];
}

static void restart(struct node *node)
{
    kvx_kill_node(node);
    kvx_start_node(node);
}

static void freeze(struct node *node)
{
    if (node->frozen > world.now)
        return;
    node->frozen = world.now + kvx_draw(450 * MS);
    node->mute = kvx_draw(2);
    SAY("%s: stands still for %.0f ms", node->name, (double)(node->frozen - world.now) / 1e6);
}

static void heal(struct node *none, struct attempt *nothing, uint64_t argument)
{
    (void)none;
    (void)nothing;
    (void)argument;
    memset(world.parted, 0, sizeof(world.parted));
    for (size_t i = 0; i < NODES; i++)
        kvx_turn_by(&world.nodes[i], world.now);
}

/* Nothing passes between one worker and the others; the dispatcher reaches both. */
static void part(struct node *node)
{
    SAY("%s: is parted from the other workers", node->name);
    for (size_t i = 0; i < NODES; i++)
        world.parted[node->index][i] = world.parted[i][node->index] = true;
    world.parted_until = world.now + kvx_draw(400 * MS);
    kvx_plan_call(world.parted_until - world.now, NULL, heal, NULL, 0);
}

static void misfortunes(struct node *none, struct attempt *nothing, uint64_t argument)
{
    const struct weather *weather = &world.weather;
    struct stream *stream;

    (void)none;
    (void)nothing;
    (void)argument;
    if (world.quiet)
        return;
    if (kvx_chance(weather->cut) && (stream = kvx_some_stream()) != NULL)
        kvx_stream_cut(stream, true);
    if (kvx_chance(weather->silent) && (stream = kvx_some_stream()) != NULL)
        kvx_stream_cut(stream, false);
    if (kvx_chance(weather->restart))
        restart(some_node());
    if (kvx_chance(weather->freeze))
        freeze(some_node());
    if (kvx_chance(weather->jump))
        some_node()->offset += kvx_draw(kvx_draw(3) ? 150 * MS : 8000 * MS);
    if (kvx_chance(weather->forget))
        kvx_attach_cut(some_node());
    if (kvx_chance(weather->partition) && world.parted_until <= world.now)
        part(some_node());
    if (kvx_chance(weather->cancel))
        kvx_client_leaves();
    if (kvx_chance(weather->front_dies))
        kvx_front_dies();
    if (kvx_chance(weather->neighbour))
        kvx_neighbour(some_node());
    kvx_plan_call(kvx_draw(6 * MS), NULL, misfortunes, NULL, 0);
}

/* ---- a history ------------------------------------------------------------------------------- */

static void arrive(struct node *none, struct attempt *nothing, uint64_t index)
{
    (void)none;
    (void)nothing;
    kvx_ask(&world.requests[index]);
}

static void begin(uint64_t seed)
{
    struct event *heap = world.heap;
    size_t room = world.heap_room;

    world = (struct world){.seed = seed, .random = seed, .heap = heap, .heap_room = room};
    world.now = 1000 * MS;
    choose_weather(&world.weather);
    choose_workers();
    SAY("history %llu over %s, on %u, %u, %u and %u ranks", (unsigned long long)seed,
        world.weather.transport, world.nodes[0].ranks, world.nodes[1].ranks, world.nodes[2].ranks,
        world.nodes[3].ranks);
    for (int i = 0; i < NODES; i++) {
        struct node *node = &world.nodes[i];

        node->index = i;
        snprintf(node->name, sizeof(node->name), "w%d", i);
        node->attach = node->worker_attach = 1;
        node->front_up = node->worker_up = true;
        kvx_start_node(node);
    }
    for (size_t i = 0; i < REQUESTS; i++)
        kvx_plan_call(kvx_draw(arrivals_ns), NULL, arrive, NULL, i);
    misfortunes(NULL, NULL, 0);
}

static bool at_rest(void)
{
    for (size_t i = 0; i < REQUESTS; i++)
        if (world.requests[i].state != UNUSED && world.requests[i].state != ANSWERED)
            return false;
    if (!kvx_engines_rest() || kvx_fabric_reads() > 0)
        return false;
    for (size_t i = 0; i < NODES; i++)
        if (!kvx_node_rests(&world.nodes[i]))
            return false;
    return true;
}

/* Says what is left over, where. */
static void complain(void)
{
    for (size_t i = 0; i < REQUESTS; i++)
        if (world.requests[i].state != UNUSED && world.requests[i].state != ANSWERED)
            fprintf(stderr, "request %llu is not answered\n",
                    (unsigned long long)world.requests[i].id);
    for (size_t i = 0; i < NODES; i++)
        if (!kvx_node_rests(&world.nodes[i]))
            fprintf(stderr, "%s has %zu tickets, %zu fetches, or blocks that are not free\n",
                    world.nodes[i].name, pd_source_tickets(world.nodes[i].kvx->source),
                    pd_reader_fetches(world.nodes[i].kvx->reader));
    kvx_broken("something is left over");
}

static void clear_up(void)
{
    world.quiet = true;
    world.weather.duplicate = world.weather.fail = world.weather.post_fails = 0;
    SAY("the weather clears");
}

static void end(void)
{
    for (size_t i = 0; i < NODES; i++) {
        CHECK(world.weather.jump > 0 ||
                  pd_source_counters(world.nodes[i].kvx->source)->release_deadlines == 0,
              "honest workers have needed the last resort");
        kvx_kill_node(&world.nodes[i]);
    }
    for (size_t i = 0; i < world.heap_count; i++)
        free(world.heap[i].bytes);
}

static void run(uint64_t seed)
{
    uint64_t clears, looked = 0;

    begin(seed);
    for (clears = world.now + storm_ns; world.heap_count > 0;) {
        struct event event = pop();

        world.now = event.at;
        happen(&event);
        if (!world.quiet && world.now >= clears)
            clear_up();
        if (!world.quiet || world.now < looked + 5 * MS)
            continue;
        looked = world.now;
        if (at_rest())
            break;
        if (world.now > clears + patience_ns)
            complain();
    }
    end();
}

struct totals {
    uint64_t answered, failed, completed, closed, released, lives, links, retries, shared,
        words_moved, unequal;
};

static void add(struct totals *totals)
{
    totals->answered += world.answered;
    totals->failed += world.failed;
    totals->completed += world.completed;
    totals->closed += world.closed;
    totals->released += world.released;
    totals->lives += world.lives;
    totals->links += world.stream_count;
    totals->retries += world.retries;
    totals->shared += world.shared;
    totals->words_moved += world.words_moved;
    totals->unequal += world.unequal;
}

/* A world in which nothing works, or nothing goes wrong, would prove nothing. */
static void expect_variety(const struct totals *totals, uint64_t count)
{
    if (count < 1000)
        return;
    CHECK(totals->answered > 3 * count && totals->failed > count && totals->closed > count &&
              totals->retries > count && totals->shared > count && totals->unequal > count / 2 &&
              4000 * totals->words_moved > count && 2 * totals->lives > (2 * NODES + 1) * count,
          "the histories are too much alike");
}

int main(int argc, char **argv)
{
    const char *one = getenv("SEED");
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    struct totals totals = {0};

    if (one && one[0] != '\0') {
        kvx_tracing = true;
        first = strtoull(one, NULL, 10);
        count = 1;
    }
    pd_log_set_level(PD_LOG_ERROR);
    kvx_fabric_for_world();
    for (uint64_t seed = first; seed < first + count; seed++) {
        run(seed);
        add(&totals);
    }
    printf(
        "%llu histories hold: %llu requests answered and %llu failed in %llu tries, %llu fetches "
        "complete and %llu closed, %llu tickets released, %llu links, %llu lives, %llu shared "
        "blocks, %llu moved words, %llu fetches between unequal ranks\n",
        (unsigned long long)count, (unsigned long long)totals.answered,
        (unsigned long long)totals.failed, (unsigned long long)totals.retries,
        (unsigned long long)totals.completed, (unsigned long long)totals.closed,
        (unsigned long long)totals.released, (unsigned long long)totals.links,
        (unsigned long long)totals.lives, (unsigned long long)totals.shared,
        (unsigned long long)totals.words_moved, (unsigned long long)totals.unequal);
    expect_variety(&totals, count);
    return 0;
}
