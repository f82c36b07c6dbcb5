/* How fast KV goes from one pool into another: two real instances of kvx with real data connections,
 * control messages handed over in memory.
 *
 *     kv_pair TRANSPORT BLOCKS ROUNDS
 *
 * A block is 8 KiB in each of 32 planes, so 16, 180 and 1024 blocks are 4, 45 and 256 MiB. Prints the
 * median round as one JSON object: bytes, seconds from "all is ready" to "all has landed", processor
 * seconds of both ends together, and the seconds that memcpy takes for the same blocks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "t/unit/kvx_pair.h"
#include "worker/base/clock.h"

enum { ROUNDS_MAX = 64 };

static const struct kvx_shape shape = {8, 4, 16, 64, 1024};

struct cost {
    double seconds, processor, memcpy_seconds;
    uint64_t bytes;
};

static double processor_seconds(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static double now(void)
{
    return 1e-9 * (double)pd_clock_ns();
}

/* The floor of shm: the same runs of blocks, plane by plane, one thread. */
static double copy_blocks(struct kvx_worker *to, const struct kvx_worker *from, size_t blocks)
{
    const struct pd_layout *layout = &from->layout;
    double begun = now();

    for (uint64_t plane = 0; plane < (uint64_t)layout->layers * layout->kv_heads; plane++)
        memcpy(to->pool + plane * layout->plane_bytes, from->pool + plane * layout->plane_bytes,
               blocks * layout->block_bytes);
    return now() - begun;
}

/* The claim is made before the clock runs: only the way of the bytes is measured. */
static void one_round(struct kvx_worker *source, struct kvx_worker *reader, uint64_t number,
                      uint32_t blocks, struct cost *cost)
{
    static struct kvx_prompt prompt;
    static int32_t wanted[1024];
    struct pd_ticket ticket;
    struct kvx_event event;
    double begun, processor, copied;

    kvx_prompt_init(&prompt, source, number, blocks * 16, NULL, 0);
    for (uint32_t i = 0; i < blocks; i++)
        wanted[i] = (int32_t)i;
    copied = copy_blocks(reader, source, blocks);
    assert_int_equal(kvx_offer(source, &prompt, 1), 0);
    kvx_ticket(source, &prompt, &ticket);
    assert_int_equal(pd_kvx_fetch(reader->kvx, number, &ticket), 0);
    kvx_expect(reader, KVX_CLAIMED, number);
    pd_kvx_fetch_want(reader->kvx, number, 0, wanted, blocks);
    processor = processor_seconds();
    begun = now();
    pd_kvx_complete(source->kvx, number, 1, 0, 0);
    event = kvx_expect(reader, KVX_COMPLETE, number);
    begun = now() - begun;
    *cost = (struct cost){begun, processor_seconds() - processor, copied, event.stats.bytes};
    kvx_expect(source, KVX_RELEASED, number);
}

static int by_seconds(const void *a, const void *b)
{
    const struct cost *x = a, *y = b;

    return (x->seconds > y->seconds) - (x->seconds < y->seconds);
}

static int by_memcpy(const void *a, const void *b)
{
    const struct cost *x = a, *y = b;

    return (x->memcpy_seconds > y->memcpy_seconds) - (x->memcpy_seconds < y->memcpy_seconds);
}

static char **arguments;

static void measure(void **state)
{
    struct kvx_worker *source, *reader;
    struct cost costs[ROUNDS_MAX], middle;
    size_t rounds = (size_t)atoi(arguments[3]);
    struct kvx_net net;

    (void)state;
    kvx_net_init(&net);
    source = kvx_start(&net, "p0", arguments[1], &shape, NULL);
    reader = kvx_start(&net, "d0", arguments[1], &shape, NULL);
    for (size_t i = 0; i < rounds; i++)
        one_round(source, reader, i + 1, (uint32_t)atoi(arguments[2]), &costs[i]);
    qsort(costs, rounds, sizeof(*costs), by_seconds);
    middle = costs[rounds / 2];
    qsort(costs, rounds, sizeof(*costs), by_memcpy);
    printf("{\"bytes\": %llu, \"seconds\": %.6f, \"processor\": %.6f, \"memcpy\": %.6f}\n",
           (unsigned long long)middle.bytes, middle.seconds, middle.processor,
           costs[rounds / 2].memcpy_seconds);
    kvx_net_free(&net);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(measure)};

    if (argc != 4 || atoi(argv[2]) < 1 || atoi(argv[2]) > 1024 || atoi(argv[3]) < 1 ||
        atoi(argv[3]) > ROUNDS_MAX) {
        fprintf(stderr, "usage: kv_pair TRANSPORT BLOCKS ROUNDS\n");
        return 2;
    }
    arguments = argv;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
