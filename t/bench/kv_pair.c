/* How fast KV goes from one pool into another: two real instances of kvx with real data connections,
 * control messages handed over in memory.
 *
 *     kv_pair TRANSPORT BLOCKS ROUNDS [tls|sums]
 *
 * A block is 8 KiB in each of 32 planes, so 1, 16, 180 and 1024 blocks are 256 KiB, 4, 45 and 256 MiB.
 * Prints the median round as one JSON object: bytes, seconds from "all is ready" to "all has landed",
 * processor seconds of both ends together, the seconds that memcpy takes for the same blocks, and those of
 * a bare exchange: another thread is asked for them and they are there. Over tcp that is one socket, 16 bytes
 * one way and the blocks the other; else a wake each way, and the copy. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

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

/* ---- the bare exchange ------------------------------------------------------------------------- */

struct bare {
    struct kvx_worker *source, *reader;
    size_t blocks, rounds;
    int ask[2], answer[2]; /* tcp: one socket, its ends are ask[0] and ask[1]; else two eventfds */
    bool tcp;
};

static void all(int fd, bool out, uint8_t *at, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = out ? send(fd, at, bytes, MSG_NOSIGNAL) : recv(fd, at, bytes, 0);

        assert_true(n > 0);
        at += n;
        bytes -= (size_t)n;
    }
}

/* The blocks of all planes, as they lie: the same bytes that the hand-off touches. */
static void exchange_blocks(const struct bare *bare, struct kvx_worker *worker, int fd, bool out)
{
    const struct pd_layout *layout = &worker->layout;

    for (uint64_t plane = 0; plane < (uint64_t)layout->layers * layout->kv_heads; plane++)
        all(fd, out, worker->pool + plane * layout->plane_bytes,
            bare->blocks * layout->block_bytes);
}

static void *answer(void *context)
{
    struct bare *bare = context;
    uint8_t request[16];
    eventfd_t count;

    for (size_t i = 0; i < bare->rounds; i++) {
        if (bare->tcp) {
            all(bare->ask[1], false, request, sizeof(request));
            exchange_blocks(bare, bare->source, bare->ask[1], true);
        } else {
            eventfd_read(bare->ask[0], &count);
            eventfd_write(bare->answer[0], 1);
        }
    }
    return NULL;
}

static void connect_bare(struct bare *bare)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int door = socket(AF_INET, SOCK_STREAM, 0), on = 1;

    if (!bare->tcp) {
        bare->ask[0] = eventfd(0, 0);
        bare->answer[0] = eventfd(0, 0);
        close(door);
        return;
    }
    assert_int_equal(bind(door, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(door, 1), 0);
    getsockname(door, (struct sockaddr *)&address, &length);
    bare->ask[0] = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(bare->ask[0], (struct sockaddr *)&address, sizeof(address)), 0);
    bare->ask[1] = accept(door, NULL, NULL);
    for (int i = 0; i < 2; i++)
        setsockopt(bare->ask[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    close(door);
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static double exchange(struct bare *bare)
{
    double seconds[ROUNDS_MAX];
    uint8_t request[16] = {0};
    pthread_t thread;
    eventfd_t count;

    connect_bare(bare);
    pthread_create(&thread, NULL, answer, bare);
    for (size_t i = 0; i < bare->rounds; i++) {
        double begun = now();

        if (bare->tcp) {
            all(bare->ask[0], true, request, sizeof(request));
            exchange_blocks(bare, bare->reader, bare->ask[0], false);
        } else {
            eventfd_write(bare->ask[0], 1);
            eventfd_read(bare->answer[0], &count);
            copy_blocks(bare->reader, bare->source, bare->blocks);
        }
        seconds[i] = now() - begun;
    }
    pthread_join(thread, NULL);
    close(bare->ask[0]);
    close(bare->tcp ? bare->ask[1] : bare->answer[0]);
    qsort(seconds, bare->rounds, sizeof(*seconds), by_value);
    return seconds[bare->rounds / 2];
}

/* ---- the hand-off ------------------------------------------------------------------------------ */

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
    pd_kvx_complete(source->kvx, number, &(struct pd_kvx_first){.token = 1});
    event = kvx_expect(reader, KVX_COMPLETE, number);
    begun = now() - begun;
    *cost = (struct cost){.seconds = begun,
                          .processor = processor_seconds() - processor,
                          .memcpy_seconds = copied,
                          .bytes = event.stats.bytes};
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

static void adjust(struct pd_kvx_options *options)
{
    options->checksum = arguments[4] && strcmp(arguments[4], "sums") == 0;
}

static void measure(void **state)
{
    struct kvx_worker *source, *reader;
    struct cost costs[ROUNDS_MAX], middle;
    size_t rounds = (size_t)atoi(arguments[3]);
    struct kvx_net net;
    struct bare bare;

    (void)state;
    kvx_net_init(&net);
    kvx_under_tls = arguments[4] && strcmp(arguments[4], "tls") == 0;
    source = kvx_start(&net, "p0", arguments[1], &shape, adjust);
    reader = kvx_start(&net, "d0", arguments[1], &shape, adjust);
    for (size_t i = 0; i < rounds; i++)
        one_round(source, reader, i + 1, (uint32_t)atoi(arguments[2]), &costs[i]);
    qsort(costs, rounds, sizeof(*costs), by_seconds);
    middle = costs[rounds / 2];
    qsort(costs, rounds, sizeof(*costs), by_memcpy);
    bare = (struct bare){.source = source,
                         .reader = reader,
                         .blocks = (size_t)atoi(arguments[2]),
                         .rounds = rounds,
                         .tcp = strcmp(arguments[1], "tcp") == 0};
    printf("{\"bytes\": %llu, \"seconds\": %.6f, \"processor\": %.6f, \"memcpy\": %.6f, "
           "\"exchange\": %.6f}\n",
           (unsigned long long)middle.bytes, middle.seconds, middle.processor,
           costs[rounds / 2].memcpy_seconds, exchange(&bare));
    kvx_net_free(&net);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(measure)};

    if (argc < 4 || argc > 5 || atoi(argv[2]) < 1 || atoi(argv[2]) > 1024 || atoi(argv[3]) < 1 ||
        atoi(argv[3]) > ROUNDS_MAX) {
        fprintf(stderr, "usage: kv_pair TRANSPORT BLOCKS ROUNDS [tls|sums]\n");
        return 2;
    }
    arguments = argv;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
