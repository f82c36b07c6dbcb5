/* Bytes between host and device: pieces of pinned memory, and the KV pool as the hand-off copies it. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/batch.h"
#include "kernels/cuda/transfer.h"
#include "t/simt/control.h"
#include "t/unit/kernel_rig.h"
#include "worker/kvx/pool.h"

enum { PIECE = 64, MOST = 1000, LARGE = 3 * PD_CUDA_LONG_RANGE, ILLEGAL_ADDRESS = 700 };

struct bench {
    struct pd_cuda_runtime *runtime;
    struct pd_cuda_transfer *transfer;
    uint8_t *memory; /* the device's */
    void *large, *pinned;
    uint8_t sent[MOST], received[MOST];
};

static void open_bench(struct bench *bench, int pieces)
{
    char error[128];
    void *memory;

    assert_int_equal(pd_cuda_open(0, NULL, &bench->runtime, error, sizeof(error)), 0);
    assert_int_equal(pd_cuda_transfer_open(bench->runtime, pieces, PIECE, &bench->transfer), 0);
    assert_int_equal(pd_cuda_allocate(bench->runtime, MOST, &memory), 0);
    bench->memory = memory;
    for (int i = 0; i < MOST; i++)
        bench->sent[i] = (uint8_t)(i * 7 + i / 256 + 1);
}

static void close_bench(struct bench *bench)
{
    pd_cuda_transfer_close(bench->transfer);
    pd_cuda_free(bench->runtime, bench->memory);
    pd_cuda_close(bench->runtime);
}

/* The device's memory is out of a program's reach but for copies in stream order. */
static void clear(struct bench *bench)
{
    static const uint8_t zeros[MOST];

    assert_int_equal(pd_cuda_copy(bench->runtime, bench->memory, zeros, MOST), 0);
}

static const uint8_t *look(struct bench *bench)
{
    static uint8_t seen[MOST];

    assert_int_equal(pd_cuda_copy(bench->runtime, seen, bench->memory, MOST), 0);
    return seen;
}

static int out(struct bench *bench, size_t bytes)
{
    const struct pd_export_range all = {0, 0, bytes};

    return pd_cuda_transfer_gather(bench->transfer, bench->received, bench->memory, &all, 1);
}

static void test_every_length_there_and_back(void **state)
{
    static const size_t lengths[] = {1, 63, 64, 65, 128, 129, 640, 999};
    struct bench bench;

    (void)state;
    for (int pieces = 1; pieces <= 3; pieces++) {
        open_bench(&bench, pieces);
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            clear(&bench);
            memset(bench.received, 0, MOST);
            assert_int_equal(
                pd_cuda_transfer_in(bench.transfer, bench.memory, bench.sent, lengths[i]), 0);
            assert_int_equal(pd_cuda_transfer_settle(bench.transfer), 0);
            assert_memory_equal(look(&bench), bench.sent, lengths[i]);
            if (pieces == 1 && lengths[i] > PIECE)
                continue; /* the way out takes two in turn */
            assert_int_equal(out(&bench, lengths[i]), 0);
            assert_memory_equal(bench.received, bench.sent, lengths[i]);
            assert_true(look(&bench)[lengths[i]] == 0 && bench.received[lengths[i]] == 0);
        }
        close_bench(&bench);
    }
}

/* What is sent arrives late, and a piece that is taken again has been read by then. */
static void test_nothing_arrives_before_it_is_waited_for(void **state)
{
    struct pd_cuda_piece *piece, *again;
    struct bench bench;

    (void)state;
    open_bench(&bench, 1);
    assert_int_equal(pd_cuda_transfer_take(bench.transfer, &piece), 0);
    memcpy(piece->memory, bench.sent, PIECE);
    assert_int_equal(pd_cuda_transfer_send(piece, bench.memory, 0, PIECE), 0);
    pd_cuda_transfer_give(bench.transfer, piece);
    assert_int_equal(look(&bench)[0], 0);
    assert_int_equal(pd_cuda_transfer_take(bench.transfer, &again), 0);
    assert_ptr_equal(again, piece);
    assert_memory_equal(look(&bench), bench.sent, PIECE);
    pd_cuda_transfer_give(bench.transfer, again);
    close_bench(&bench);
}

enum { THREADS = 4, ROUNDS = 50, SHARE = MOST / THREADS };

struct sender {
    struct bench *bench;
    size_t at;
};

static void *send_share(void *argument)
{
    const struct sender *sender = argument;
    struct bench *bench = sender->bench;
    int error = 0;

    for (int i = 0; i < ROUNDS; i++)
        error |= pd_cuda_transfer_in(bench->transfer, bench->memory + sender->at,
                                     bench->sent + sender->at, SHARE);
    return error != 0 ? bench : NULL;
}

static void test_several_threads_share_the_pieces(void **state)
{
    struct sender senders[THREADS];
    pthread_t threads[THREADS];
    struct bench bench;

    (void)state;
    open_bench(&bench, 2);
    for (size_t i = 0; i < THREADS; i++) {
        senders[i] = (struct sender){&bench, i * SHARE};
        assert_int_equal(pthread_create(&threads[i], NULL, send_share, &senders[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *failed;

        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(pd_cuda_transfer_settle(bench.transfer), 0);
    assert_memory_equal(look(&bench), bench.sent, MOST);
    close_bench(&bench);
}

/* Short and odd ranges, and one that several pieces share: from anywhere to anywhere. */
static const struct pd_export_range scattered[] = {
    {16, 480, 48}, {160, 96, 16}, {640, 144, 208}, {96, 33, 7}, {928, 384, 32}, {128, 416, 16},
};

enum { SCATTERED = sizeof(scattered) / sizeof(scattered[0]) };

static void test_ranges_travel_together(void **state)
{
    struct bench bench;

    (void)state;
    for (int pieces = 1; pieces <= 3; pieces++) {
        uint8_t inside[MOST] = {0}, outside[MOST] = {0};

        open_bench(&bench, pieces);
        for (int i = 0; i < SCATTERED; i++) {
            memcpy(inside + scattered[i].offset, bench.sent + scattered[i].other,
                   scattered[i].bytes);
            memcpy(outside + scattered[i].other, bench.sent + scattered[i].other,
                   scattered[i].bytes);
        }
        assert_int_equal(pd_cuda_transfer_scatter(bench.transfer, bench.memory, bench.sent,
                                                  scattered, SCATTERED),
                         0);
        assert_int_equal(pd_cuda_transfer_settle(bench.transfer), 0);
        assert_memory_equal(look(&bench), inside, MOST);
        memset(bench.received, 0, MOST);
        if (pieces > 1) {
            assert_int_equal(pd_cuda_transfer_gather(bench.transfer, bench.received, bench.memory,
                                                     scattered, SCATTERED),
                             0);
            assert_memory_equal(bench.received, outside, MOST);
        }
        close_bench(&bench);
    }
}

/* Calls of the runtime until `batch` has its ranges on the way: those before a fault do not fail. */
static long calls_of(struct bench *bench, size_t bytes, int count)
{
    long calls = 0;
    int error = ILLEGAL_ADDRESS;

    while (error != 0) {
        struct pd_cuda_batch batch;
        struct pd_cuda_lane *lane;

        assert_int_equal(pd_cuda_lane_open(bench->runtime, &lane), 0);
        pd_cuda_batch_begin(&batch, lane, bench->large, bench->pinned, false);
        pd_simt_fail_after(calls, ILLEGAL_ADDRESS);
        error = 0;
        for (int i = 0; i < count && error == 0; i++)
            error = pd_cuda_batch_add(
                &batch, (struct pd_cuda_range){(uint64_t)i * bytes, (uint64_t)i * bytes, bytes});
        error = error != 0 ? error : pd_cuda_batch_end(&batch);
        pd_simt_fail_after(-1, 0);
        pd_cuda_lane_close(lane);
        calls += error != 0;
        assert_true(calls <= 3 * PD_CUDA_RANGES);
    }
    return calls;
}

/* What it is all for. */
static void test_short_ranges_cost_a_call_for_a_table(void **state)
{
    struct bench bench;

    (void)state;
    open_bench(&bench, 1);
    assert_int_equal(pd_cuda_allocate(bench.runtime, LARGE, &bench.large), 0);
    assert_int_equal(pd_cuda_allocate_pinned(bench.runtime, LARGE, &bench.pinned), 0);
    assert_int_equal(calls_of(&bench, 64, 1), 1);
    assert_int_equal(calls_of(&bench, 64, PD_CUDA_RANGES), 1);
    assert_int_equal(calls_of(&bench, 64, 2 * PD_CUDA_RANGES + 2), 3);
    assert_int_equal(calls_of(&bench, PD_CUDA_LONG_RANGE - 16, 3), 1);
    assert_int_equal(calls_of(&bench, PD_CUDA_LONG_RANGE, 3), 3);
    assert_int_equal(calls_of(&bench, 24, 5), 5); /* not whole units */
    pd_cuda_free(bench.runtime, bench.large);
    pd_cuda_free_pinned(bench.runtime, bench.pinned);
    close_bench(&bench);
}

/* A call that fails leaves every piece to be taken, and the whole to be closed. */
static void test_faults_are_told_and_keep_no_piece(void **state)
{
    struct bench bench;

    (void)state;
    for (long calls = 0, in = 1, came = 1, settled = 1; in || came || settled; calls++) {
        open_bench(&bench, 2);
        pd_simt_fail_after(calls, ILLEGAL_ADDRESS);
        in = pd_cuda_transfer_in(bench.transfer, bench.memory, bench.sent, 300);
        pd_simt_fail_after(calls, ILLEGAL_ADDRESS);
        came = out(&bench, 300);
        pd_simt_fail_after(calls, ILLEGAL_ADDRESS);
        settled = pd_cuda_transfer_settle(bench.transfer);
        pd_simt_fail_after(-1, 0);
        assert_true(in == 0 || in == ILLEGAL_ADDRESS);
        assert_true(came == 0 || came == ILLEGAL_ADDRESS);
        assert_true(settled == (calls < 2 ? ILLEGAL_ADDRESS : 0));
        assert_int_equal(out(&bench, 300), 0);
        close_bench(&bench);
    }
}

/* ---- the KV pool ----------------------------------------------------------------------------- */

struct side {
    struct pd_rig rig;
    struct pd_kv_pool shape;
    struct pd_export memory;
    struct pd_pool pool;
};

static void open_side(struct side *side)
{
    struct pd_device_options options = pd_rig_options("cuda", NULL, 1);
    struct pd_error error;

    pd_rig_open(&side->rig, &options);
    side->shape = (struct pd_kv_pool){NULL, 2, 2, 16, 32, 6, PD_F16};
    assert_int_equal(pd_buffer_create(side->rig.device, PD_BUFFER_KV,
                                      pd_kv_pool_bytes(&side->shape), &side->shape.buffer),
                     PD_KERNEL_OK);
    assert_int_equal(pd_buffer_export(side->shape.buffer, &side->memory), PD_KERNEL_OK);
    assert_int_equal(side->memory.kind, PD_EXPORT_DEVICE);
    assert_true(side->memory.size >= pd_kv_pool_bytes(&side->shape));
    assert_true(side->memory.address != 0);
    if (pd_pool_map(&side->pool, &side->shape, 1, 0, &side->memory, &error) != PD_OK)
        fail_msg("%s", error.text);
    assert_true(pd_pool_on_device(&side->pool));
}

static void close_side(struct side *side)
{
    pd_pool_unmap(&side->pool);
    pd_rig_close(&side->rig);
}

/* The way of one block: P's device, P's stage, (a transport), D's stage, D's device. */
static void test_a_block_travels_from_device_to_device(void **state)
{
    static struct side p, d;
    const struct pd_layout *layout = &p.pool.layout;
    struct pd_export_range whole = {0, 0, 0};
    struct pd_read read = {0};
    uint8_t *all;
    size_t bytes;

    (void)state;
    open_side(&p);
    open_side(&d);
    bytes = pd_kv_pool_bytes(&p.shape);
    all = calloc(1, bytes);
    for (size_t i = 0; i < bytes; i++)
        all[i] = (uint8_t)(i * 13 + i / 251);
    whole.bytes = bytes;
    assert_true(p.memory.copy(p.memory.copy_context, all, &whole, 1, false));
    assert_int_equal(pd_fence_remote_writes(p.rig.device), PD_KERNEL_OK);
    assert_true(pd_pool_out(&p.pool, 2, 3));
    for (uint64_t plane = 0; plane < (uint64_t)layout->layers * layout->rank_heads; plane++) {
        uint64_t offset = plane * layout->plane_bytes + 2 * layout->block_bytes;

        assert_memory_equal(p.pool.base + offset, all + offset, 3 * layout->block_bytes);
        memcpy(d.pool.base + offset, p.pool.base + offset, 3 * layout->block_bytes);
        read.ranges[read.count++] =
            (struct pd_range){offset, offset, (uint32_t)(3 * layout->block_bytes), 0};
    }
    assert_true(pd_pool_in(&d.pool, &read));
    memset(all, 1, bytes);
    assert_true(d.memory.copy(d.memory.copy_context, all, &whole, 1, true));
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(all[i], 0); /* nothing is seen before the fence */
    assert_int_equal(pd_fence_remote_writes(d.rig.device), PD_KERNEL_OK);
    memset(all, 0, bytes);
    assert_true(d.memory.copy(d.memory.copy_context, all, &whole, 1, true));
    for (uint64_t at = 0; at < bytes; at++) {
        uint64_t block = at % layout->plane_bytes / layout->block_bytes;
        uint8_t expected = block >= 2 && block < 5 ? (uint8_t)(at * 13 + at / 251) : 0;

        if (all[at] != expected)
            fail_msg("byte %d of block %d", (int)at, (int)block);
    }
    close_side(&p);
    close_side(&d);
    free(all);
}

static void test_a_copy_that_fails_loses_the_device(void **state)
{
    static const struct pd_read read = {.count = 1, .ranges = {{0, 0, 64, 0}}};
    static struct side p;

    (void)state;
    for (int way = 0; way < 2; way++) {
        open_side(&p);
        pd_simt_fail_after(0, ILLEGAL_ADDRESS);
        if (way)
            assert_false(pd_pool_out(&p.pool, 0, 1));
        else
            assert_false(pd_pool_in(&p.pool, &read));
        pd_simt_fail_after(-1, 0);
        assert_non_null(strstr(pd_device_error(p.rig.device), "of the KV pool"));
        assert_non_null(strstr(pd_device_error(p.rig.device), "(GPU 0)"));
        assert_int_equal(pd_fence_remote_writes(p.rig.device), PD_KERNEL_LOST);
        assert_false(pd_pool_out(&p.pool, 0, 1));
        close_side(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_length_there_and_back),
        cmocka_unit_test(test_nothing_arrives_before_it_is_waited_for),
        cmocka_unit_test(test_several_threads_share_the_pieces),
        cmocka_unit_test(test_ranges_travel_together),
        cmocka_unit_test(test_short_ranges_cost_a_call_for_a_table),
        cmocka_unit_test(test_faults_are_told_and_keep_no_piece),
        cmocka_unit_test(test_a_block_travels_from_device_to_device),
        cmocka_unit_test(test_a_copy_that_fails_loses_the_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
