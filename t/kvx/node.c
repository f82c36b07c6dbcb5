/* Worker processes: real pd_kvx instances without threads, their memory, their clocks, their deaths;
 * and the loop's double, which turns "wake the thread" into "plan a turn". */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "t/kvx/world.h"
#include "worker/kvx/reader.h"
#include "worker/kvx/source.h"

enum { SILENCE_MS = 200, CLAIM_MS = 3000, LAYERS = 2, HEADS = 2 };

/* What one of so many ranks has: its share of the heads, or one that others have too. */
static struct pd_kv_pool shape_of_rank(uint32_t ranks)
{
    int heads = ranks > HEADS ? 1 : HEADS / (int)ranks;

    return (struct pd_kv_pool){NULL, LAYERS, heads, BLOCK_SIZE, 2, BLOCKS, PD_F16};
}

struct pd_fingerprint kvx_world_fingerprint(void)
{
    struct pd_fingerprint print;

    memset(&print, 1, sizeof(print));
    return print;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Calls `look` for a block's words in every plane of every rank, with the plane's number in the model: ranks
 * that have the same head have the same words. */
static bool each_plane(const struct node *node, int32_t block, uint64_t tag,
                       bool (*look)(uint64_t *words, size_t count, uint64_t first))
{
    const struct pd_layout *layout = &node->kvx->pool.layout;
    size_t count = layout->block_bytes / sizeof(uint64_t);

    for (uint32_t rank = 0; rank < layout->ranks; rank++)
        for (uint32_t plane = 0; plane < LAYERS * layout->rank_heads; plane++) {
            uint64_t at = rank * layout->stride + plane * layout->plane_bytes;
            uint8_t *bytes = node->kvx->pool.base + at + (uint64_t)block * layout->block_bytes;
            uint64_t number = pd_layout_plane_number(layout, at);

            if (!look((uint64_t *)(void *)bytes, count, tag << 16 | number << 8))
                return false;
        }
    return true;
}

static bool fill(uint64_t *words, size_t count, uint64_t first)
{
    for (size_t i = 0; i < count; i++)
        words[i] = first | i;
    return true;
}

static bool is_filled(uint64_t *words, size_t count, uint64_t first)
{
    for (size_t i = 0; i < count; i++)
        if (words[i] != (first | i))
            return false;
    return true;
}

void kvx_write(struct node *node, int32_t block, uint64_t tag)
{
    each_plane(node, block, tag, fill);
    node->blocks[block].tag = tag;
}

bool kvx_holds_tag(const struct node *node, int32_t block, uint64_t tag)
{
    return each_plane(node, block, tag, is_filled);
}

/* ---- time ------------------------------------------------------------------------------------ */

static struct node *turning; /* whose clock is read */

static uint64_t clock_of_node(void)
{
    return world.now + 1 + (turning ? turning->offset : 0);
}

static uint64_t world_now(void)
{
    return world.now;
}

static uint64_t step_delay(void)
{
    return kvx_draw(world.weather.step_ns);
}

static struct node *node_of(const struct pd_loop *loop)
{
    for (size_t i = 0; i < NODES; i++)
        if (world.nodes[i].kvx && &world.nodes[i].kvx->loop == loop)
            return &world.nodes[i];
    return NULL;
}

void kvx_turn_by(struct node *node, uint64_t when)
{
    if (!node->dying)
        kvx_plan(when > world.now ? when - world.now : 0,
                 (struct event){.kind = EV_TURN, .node = node});
}

static void wake(struct node *node)
{
    kvx_turn_by(node, world.now + kvx_draw(node->slow + 1));
}

/* ---- the fabric's questions ------------------------------------------------------------------ */

static bool passes(const struct pd_loop *a, const struct pd_loop *b)
{
    const struct node *one = node_of(a), *two = node_of(b);

    return !one || !two || !world.parted[one->index][two->index];
}

static void due(const struct pd_loop *loop, uint64_t when)
{
    struct node *node = node_of(loop);

    if (node)
        kvx_turn_by(node, when + kvx_draw(node->slow + 1));
}

static struct attempt *attempt_of(uint64_t id)
{
    for (size_t i = 0; i < world.attempt_count; i++)
        if (world.attempts[i].id == id)
            return &world.attempts[i];
    return NULL;
}

static void sampling(const struct pd_loop *source, uint64_t generation, uint32_t block)
{
    const struct node *node = node_of(source);
    const struct attempt *attempt = attempt_of(generation);

    CHECK(attempt && attempt->p == node && attempt->offered,
          "%s sends a block of ticket %llu, which is released", node->name,
          (unsigned long long)generation);
    CHECK(node->blocks[block].users > 0, "%s sends a free block", node->name);
}

static void landing(const struct pd_loop *reader, uint64_t generation, uint32_t block)
{
    struct node *node = node_of(reader);

    CHECK(node->blocks[block].writer == generation,
          "a late byte of fetch %llu lands on %s in block %u, which is %llu's",
          (unsigned long long)generation, node->name, block,
          (unsigned long long)node->blocks[block].writer);
    node->blocks[block].tag = 0; /* what its bytes say is looked at when they are trusted */
}

static bool post_fails(void)
{
    return !world.quiet && kvx_chance(world.weather.post_fails);
}

void kvx_fabric_for_world(void)
{
    kvx_fabric = (struct kvx_fabric){.now = world_now,
                                     .delay = step_delay,
                                     .passes = passes,
                                     .due = due,
                                     .sampling = sampling,
                                     .landing = landing,
                                     .post_fails = post_fails};
}

/* ---- the loop's double ----------------------------------------------------------------------- */

int pd_loop_init(struct pd_loop *loop)
{
    loop->count = 0;
    return PD_OK;
}

void pd_loop_free(struct pd_loop *loop)
{
    (void)loop;
}

void pd_loop_interrupt(struct pd_loop *loop)
{
    struct node *node = node_of(loop);

    if (node)
        wake(node);
}

void pd_loop_turn(struct pd_loop *loop, int timeout_ms)
{
    (void)loop;
    (void)timeout_ms;
}

/* ---- lives ----------------------------------------------------------------------------------- */

static void open_link(void *context, uint64_t link, const char *address)
{
    kvx_stream_open(context, link, address);
}

static void close_link(void *context, uint64_t link)
{
    kvx_stream_close(context, link);
}

static void send_bytes(void *context, uint64_t link, uint8_t *bytes, size_t length)
{
    kvx_stream_send(context, link, bytes, length);
}

static int make_memory(size_t size)
{
    int fd = memfd_create("kvx-world", MFD_ALLOW_SEALING | MFD_CLOEXEC);

    CHECK(fd >= 0 && ftruncate(fd, (off_t)size) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0,
          "no memory for a pool");
    return fd;
}

void kvx_start_node(struct node *node)
{
    struct pd_kvx_options options = {
        .instance = node->name,
        .boot = ++node->life,
        .fingerprint = kvx_world_fingerprint(),
        .pool = shape_of_rank(node->ranks),
        .ranks = (int)node->ranks,
        .kv_heads = HEADS,
        .transport = world.weather.transport,
        .checksum = node->checksum,
        .max_model_len = PROMPT_BLOCKS * BLOCK_SIZE,
        .claim_timeout_ms = CLAIM_MS,
        .silence_ms = SILENCE_MS,
        .callbacks = kvx_engine_callbacks,
    };
    size_t size = pd_kvx_pool_bytes(&options.pool, options.ranks);
    struct pd_error error;

    for (uint32_t rank = 0; rank < node->ranks; rank++) {
        node->memory[rank] = make_memory(size);
        options.memory[rank] =
            (struct pd_export){.kind = PD_EXPORT_MEMFD, .fd = node->memory[rank], .size = size};
    }
    options.callbacks.engine = options.callbacks.link = node;
    options.callbacks.open_link = open_link;
    options.callbacks.close_link = close_link;
    options.callbacks.send = send_bytes;
    CHECK(pd_kvx_make(&options, &node->kvx, &error) == PD_OK, "%s", error.text);
    node->kvx->clock = clock_of_node;
    node->tick_at = node->frozen = 0;
    node->mute = false;
    memset(node->blocks, 0, sizeof(node->blocks));
    world.lives++;
    wake(node);
}

/* SIGKILL. Its memory stays for those who have it mapped; streams and data ends are cut. */
void kvx_kill_node(struct node *node)
{
    SAY("%s: dies", node->name);
    world.words_moved += pd_reader_counters(node->kvx->reader)->words_moved;
    kvx_attach_cut(node);
    kvx_streams_of_dead(node);
    kvx_engine_dies(node);
    node->dying = true;
    pd_kvx_stop(node->kvx);
    turning = node;
    while (pd_kvx_service_turn(node->kvx, false))
        ;
    turning = NULL;
    pd_kvx_unmake(node->kvx);
    for (uint32_t rank = 0; rank < node->ranks; rank++)
        close(node->memory[rank]);
    node->kvx = NULL;
    node->dying = node->worker_up = false;
}

void kvx_turn(struct node *node)
{
    turning = node;
    pd_kvx_service_turn(node->kvx, false);
    turning = NULL;
    if (node->kvx->preparing)
        wake(node);
    if (node->tick_at > world.now)
        return;
    node->tick_at = node->kvx->next_tick - node->offset;
    kvx_turn_by(node, node->tick_at);
}

bool kvx_node_rests(const struct node *node)
{
    const struct pd_kvx *kvx = node->kvx;

    if (pd_source_tickets(kvx->source) > 0 || pd_reader_fetches(kvx->reader) > 0 ||
        atomic_load(&kvx->tickets) > 0 || atomic_load(&kvx->fetches) > 0)
        return false;
    for (size_t i = 0; i < BLOCKS; i++)
        if (node->blocks[i].users > 0 || node->blocks[i].writer != 0)
            return false;
    return true;
}
