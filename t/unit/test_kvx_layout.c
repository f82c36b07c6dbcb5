/* Where blocks lie, how a hand-off is cut into reads, which transport a link gets, and the map of
 * ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/kvx/choose.h"
#include "worker/kvx/host.h"
#include "worker/kvx/idmap.h"
#include "worker/kvx/kvx.h"
#include "worker/kvx/layout.h"

static struct pd_layout layout_of(uint32_t layers, uint32_t heads, uint64_t blocks, uint32_t size,
                                  uint32_t dim, uint32_t element)
{
    struct pd_layout layout = {.layers = layers,
                               .kv_heads = heads,
                               .block_size = size,
                               .head_dim = dim,
                               .element_bytes = element,
                               .blocks = blocks};

    assert_int_equal(pd_layout_derive(&layout, NULL), PD_OK);
    return layout;
}

/* The design's array, written down as an array. */
static uint64_t offset_in_array(const struct pd_layout *layout, uint64_t layer, uint64_t head,
                                uint64_t block, uint64_t k_or_v, uint64_t token, uint64_t dim)
{
    uint64_t at = layer;

    at = at * layout->kv_heads + head;
    at = at * layout->blocks + block;
    at = at * 2 + k_or_v;
    at = at * layout->block_size + token;
    at = at * layout->head_dim + dim;
    return at * layout->element_bytes;
}

static void sizes_follow_from_the_shape(void **state)
{
    struct pd_layout layout = layout_of(30, 3, 1000, 16, 64, 2);
    struct pd_kv_pool pool = {NULL, 30, 3, 16, 64, 1000, PD_BF16};

    (void)state;
    assert_int_equal(layout.bytes, offset_in_array(&layout, 30, 0, 0, 0, 0, 0));
    assert_int_equal(layout.plane_bytes, offset_in_array(&layout, 0, 1, 0, 0, 0, 0));
    assert_int_equal(layout.block_bytes, offset_in_array(&layout, 0, 0, 1, 0, 0, 0));
    assert_int_equal(layout.words_offset % 4096, 0);
    assert_true(layout.words_offset >= layout.bytes && layout.words_offset < layout.bytes + 4096);
    assert_int_equal(pd_kvx_pool_bytes(&pool, 0), layout.words_offset + 8 * 1000);
}

static void pools_of_other_types_or_sizes_are_refused(void **state)
{
    struct pd_kv_pool pool = {NULL, 2, 2, 16, 64, 100, PD_F16};
    struct pd_layout layout;
    struct pd_error error;

    (void)state;
    assert_int_equal(pd_layout_of_pool(&pool, 0, 0, &layout, &error), PD_OK);
    assert_int_equal(layout.element_bytes, 2);
    pool.type = PD_F32;
    assert_int_equal(pd_layout_of_pool(&pool, 0, 0, &layout, &error), PD_OK);
    assert_int_equal(layout.element_bytes, 4);
    pool.type = PD_Q8_0;
    assert_int_equal(pd_layout_of_pool(&pool, 0, 0, &layout, &error), PD_UNSUPPORTED);
    assert_int_equal(pd_kvx_pool_bytes(&pool, 0), 0);
    pool.type = PD_F16;
    pool.layers = -1;
    assert_int_equal(pd_layout_of_pool(&pool, 0, 0, &layout, &error), PD_INVALID);
    pool.layers = 2;
    pool.blocks = -1;
    assert_int_equal(pd_layout_of_pool(&pool, 0, 0, &layout, &error), PD_INVALID);
}

static void out_of_bounds(struct pd_layout layout, const char *says)
{
    struct pd_error error;

    assert_int_equal(pd_layout_derive(&layout, &error), PD_INVALID);
    assert_non_null(strstr(error.text, says));
}

static void every_dimension_has_a_bound(void **state)
{
    struct pd_layout good = layout_of(2, 2, 10, 8, 4, 4), bad;

    (void)state;
    bad = good, bad.layers = 0, out_of_bounds(bad, "layers");
    bad = good, bad.layers = 1025, out_of_bounds(bad, "layers");
    bad = good, bad.kv_heads = 0, out_of_bounds(bad, "kv_heads");
    bad = good, bad.kv_heads = UINT32_MAX, out_of_bounds(bad, "kv_heads");
    bad = good, bad.head_dim = 1025, out_of_bounds(bad, "head_dim");
    bad = good, bad.block_size = 7, out_of_bounds(bad, "block_size");
    bad = good, bad.block_size = 33, out_of_bounds(bad, "block_size");
    bad = good, bad.element_bytes = 3, out_of_bounds(bad, "element_bytes");
    bad = good, bad.element_bytes = 8, out_of_bounds(bad, "element_bytes");
    bad = good, bad.blocks = 0, out_of_bounds(bad, "blocks");
    bad = good, bad.blocks = (uint64_t)INT32_MAX + 1, out_of_bounds(bad, "blocks");
    /* Each within its bound, all together beyond any machine. */
    bad = (struct pd_layout){.layers = 1024,
                             .kv_heads = 1024,
                             .block_size = 32,
                             .head_dim = 1024,
                             .element_bytes = 4,
                             .blocks = INT32_MAX};
    out_of_bounds(bad, "larger than");
}

static void locate_finds_runs_of_whole_blocks(void **state)
{
    struct pd_layout layout = layout_of(3, 2, 10, 8, 4, 4);
    uint32_t first, count;

    (void)state;
    for (uint64_t plane = 0; plane < 6; plane++)
        for (uint64_t block = 0; block < 10; block++)
            for (uint64_t n = 1; block + n <= 10; n++) {
                uint64_t at = offset_in_array(&layout, plane / 2, plane % 2, block, 0, 0, 0);

                assert_true(pd_layout_locate(&layout, at, n * layout.block_bytes, &first, &count));
                assert_int_equal(first, block);
                assert_int_equal(count, n);
            }
    assert_false(pd_layout_locate(&layout, 0, 0, &first, &count));
    assert_false(pd_layout_locate(&layout, 1, layout.block_bytes, &first, &count));
    assert_false(pd_layout_locate(&layout, 0, layout.block_bytes - 1, &first, &count));
    assert_false(pd_layout_locate(&layout, 9 * layout.block_bytes, 2 * layout.block_bytes, &first,
                                  &count)); /* over the end of a plane */
    assert_false(pd_layout_locate(&layout, layout.bytes, layout.block_bytes, &first, &count));
    assert_false(pd_layout_locate(&layout, layout.bytes - layout.block_bytes,
                                  2 * layout.block_bytes, &first, &count));
    assert_false(pd_layout_locate(&layout, UINT64_MAX - 255, layout.block_bytes, &first, &count));
    assert_false(pd_layout_locate(&layout, 0, UINT64_MAX, &first, &count));
}

static uint32_t next_random(uint32_t *random)
{
    return *random = *random * 1664525u + 1013904223u, *random >> 8;
}

/* A permutation of 0..count-1 with runs in it. */
static void shuffle(int32_t *blocks, size_t count, uint32_t *random)
{
    for (size_t i = 0; i < count; i++)
        blocks[i] = (int32_t)i;
    for (size_t i = 0; i + 1 < count; i++) {
        size_t other = i + next_random(random) % (count - i);
        int32_t swap = blocks[i];

        if (next_random(random) % 3 == 0) {
            blocks[i] = blocks[other];
            blocks[other] = swap;
        }
    }
}

/* Carries a plan out on arrays of 32-bit values and compares with a copy value by value. */
static void check_plan(const struct pd_layout *from, const struct pd_layout *to,
                       const int32_t *source, const int32_t *destination, size_t first, size_t end)
{
    uint8_t *out = malloc(from->bytes), *in = malloc(to->bytes), *expected = malloc(to->bytes);
    uint32_t blocks[64];
    struct pd_plan plan;
    struct pd_read read;
    uint64_t bytes = 0;

    for (uint64_t i = 0; i < from->bytes / 4; i++)
        ((uint32_t *)(void *)out)[i] = (uint32_t)i * 2654435761u;
    memset(in, 0, to->bytes);
    memset(expected, 0, to->bytes);
    for (uint64_t layer = 0; layer < from->layers; layer++)
        for (uint64_t head = 0; head < from->kv_heads; head++)
            for (size_t i = first; i < end; i++)
                for (uint64_t value = 0; value < from->block_bytes / 4; value++)
                    memcpy(
                        expected +
                            offset_in_array(to, layer, head, (uint64_t)destination[i], 0, 0, value),
                        out + offset_in_array(from, layer, head, (uint64_t)source[i], 0, 0, value),
                        4);
    for (size_t i = 0; i < end; i++)
        blocks[i] = (uint32_t)source[i];
    pd_plan_begin(&plan, from, blocks, to, destination, first, end);
    while (pd_plan_next(&plan, &read)) {
        uint64_t sum = 0;

        assert_in_range(read.count, 1, PD_READ_RANGES);
        for (size_t i = 0; i < read.count; i++) {
            const struct pd_range *range = &read.ranges[i];

            memcpy(in + range->destination, out + range->source, range->length);
            sum += range->length;
        }
        assert_int_equal(sum, read.bytes);
        assert_in_range(read.bytes, 1, PD_READ_BYTES);
        bytes += read.bytes;
    }
    assert_int_equal(bytes, (end - first) * from->block_bytes * from->layers * from->kv_heads);
    assert_memory_equal(in, expected, to->bytes);
    free(out);
    free(in);
    free(expected);
}

static void plans_copy_every_block_once(void **state)
{
    struct pd_layout from = layout_of(3, 2, 60, 8, 4, 4), to = layout_of(3, 2, 50, 8, 4, 4);
    int32_t source[60], destination[50];
    uint32_t random = 7;

    (void)state;
    for (int round = 0; round < 40; round++) {
        size_t end = 1 + next_random(&random) % 50, first = next_random(&random) % (end + 1);

        shuffle(source, 60, &random);
        shuffle(destination, 50, &random);
        check_plan(&from, &to, source, destination, first, end);
    }
}

/* 2,000 tokens of a 72B model on a rank of four: 80 layers x 2 heads, 125 blocks of 8 KiB in one
 * run. */
static void one_extent_takes_one_range_per_plane(void **state)
{
    struct pd_layout layout = layout_of(80, 2, 1000, 16, 128, 2);
    uint32_t source[125];
    int32_t destination[125];
    struct pd_plan plan;
    struct pd_read read;
    size_t ranges = 0, reads = 0;

    (void)state;
    for (int i = 0; i < 125; i++) {
        source[i] = 300 + (uint32_t)i;
        destination[i] = 17 + i;
    }
    pd_plan_begin(&plan, &layout, source, &layout, destination, 0, 125);
    for (; pd_plan_next(&plan, &read); reads++)
        ranges += read.count;
    assert_int_equal(ranges, 80 * 2);
    assert_int_equal(reads, 80 * 2); /* of 1,000 KiB each */
    /* In two extents on one side: twice as many. */
    for (int i = 60; i < 125; i++)
        destination[i] += 5;
    pd_plan_begin(&plan, &layout, source, &layout, destination, 0, 125);
    for (ranges = 0; pd_plan_next(&plan, &read);)
        ranges += read.count;
    assert_int_equal(ranges, 2 * 80 * 2);
}

static void empty_plan_has_no_reads(void **state)
{
    struct pd_layout layout = layout_of(2, 2, 10, 8, 4, 4);
    struct pd_plan plan = {0};
    struct pd_read read;

    (void)state;
    assert_false(pd_plan_more(&plan)); /* one that was never begun */
    pd_plan_begin(&plan, &layout, NULL, &layout, NULL, 3, 3);
    assert_false(pd_plan_more(&plan));
    assert_false(pd_plan_next(&plan, &read));
}

/* ---- choice of a transport ------------------------------------------------------------------- */

static const struct pd_transport_option both[] = {{"shm", NULL, true, false},
                                                  {"tcp", NULL, false, false}};

static struct pd_reader_hello reader_that_wants(const char *first, const char *second,
                                                const char *host)
{
    struct pd_reader_hello hello = {0};

    if (first)
        strcpy(hello.transports[hello.transport_count++], first);
    if (second)
        strcpy(hello.transports[hello.transport_count++], second);
    strcpy(hello.host_id, host);
    return hello;
}

static void best_common_transport_is_chosen(void **state)
{
    struct pd_reader_hello hello = reader_that_wants("shm", "tcp", "here");
    struct pd_transport_option unusable[] = {{"shm", "the pool is not sealed", true, false},
                                             {"tcp", NULL, false, false}};
    char why[PD_KV_WHY];

    (void)state;
    assert_int_equal(pd_transport_choose(&hello, "here", both, 2, why), 0);
    assert_string_equal(why, "");
    assert_int_equal(pd_transport_choose(&hello, "there", both, 2, why), 1);
    assert_string_equal(why, "no shm: reader and source do not share host, namespaces and user");
    assert_int_equal(pd_transport_choose(&hello, "here", unusable, 2, why), 1);
    assert_string_equal(why, "no shm: the pool is not sealed");
    hello = reader_that_wants("rdma", "tcp", "here");
    assert_int_equal(pd_transport_choose(&hello, "here", both, 2, why), 1);
    assert_string_equal(why, "no rdma: the source does not offer it");
    hello = reader_that_wants("tcp", "shm", "here"); /* the reader's order counts */
    assert_int_equal(pd_transport_choose(&hello, "here", both, 2, why), 1);
    assert_string_equal(why, "");
}

static void no_common_transport_is_said(void **state)
{
    struct pd_reader_hello hello = reader_that_wants("shm", NULL, "");
    char why[PD_KV_WHY];

    (void)state;
    assert_int_equal(pd_transport_choose(&hello, "", both, 2, why), -1); /* unknown is not equal */
    hello = reader_that_wants("shm", "tcp", "here");
    assert_int_equal(pd_transport_choose(&hello, "there", both, 1, why), -1);
    assert_string_equal(why, "no shm: reader and source do not share host, namespaces and user; "
                             "no tcp: the source does not offer it");
    hello = reader_that_wants(NULL, NULL, "here");
    assert_int_equal(pd_transport_choose(&hello, "here", both, 2, why), -1);
    assert_string_equal(why, "the reader offers no transport");
}

static void long_reasons_are_cut(void **state)
{
    struct pd_reader_hello hello = {0};
    char why[PD_KV_WHY];

    (void)state;
    for (int i = 0; i < PD_KV_TRANSPORTS; i++)
        strcpy(hello.transports[hello.transport_count++], "unknown");
    assert_int_equal(pd_transport_choose(&hello, "", both, 2, why), -1);
    assert_int_equal(strlen(why), PD_KV_WHY - 1);
}

static void host_id_is_stable_and_fits(void **state)
{
    char once[PD_KV_NAME], again[PD_KV_NAME];

    (void)state;
    pd_host_id(once);
    pd_host_id(again);
    assert_string_equal(once, again);
    assert_true(strlen(once) > 36);
}

/* ---- the map of ids -------------------------------------------------------------------------- */

enum { MAP = 300 };

/* Against a plain array, with ids that collide. */
static void map_agrees_with_an_array(void **state)
{
    struct pd_idmap map;
    int values[MAP];
    bool there[2 * MAP] = {false};
    uint32_t random = 3;
    size_t count = 0;

    (void)state;
    assert_int_equal(pd_idmap_init(&map, MAP), PD_OK);
    for (int round = 0; round < 20000; round++) {
        size_t at = next_random(&random) % (2 * MAP);
        uint64_t id = (uint64_t)at << (at % 3 == 0 ? 40 : 0);
        void *value = &values[at % MAP];

        if (next_random(&random) % 2) {
            int expected = there[at] ? PD_INVALID : count == MAP ? PD_FULL : PD_OK;

            assert_int_equal(pd_idmap_put(&map, id, value), expected);
            if (expected == PD_OK) {
                there[at] = true;
                count++;
            }
        } else {
            assert_ptr_equal(pd_idmap_remove(&map, id), there[at] ? value : NULL);
            count -= there[at];
            there[at] = false;
        }
        assert_int_equal(map.count, count);
        at = next_random(&random) % (2 * MAP);
        id = (uint64_t)at << (at % 3 == 0 ? 40 : 0);
        assert_ptr_equal(pd_idmap_get(&map, id), there[at] ? &values[at % MAP] : NULL);
    }
    pd_idmap_free(&map);
}

/* What each rank of a reader reads of a prompt, for every pair of numbers of ranks: its own heads and no others,
 * all of each, from a rank of the source that has the head, in at most layers x heads x extents ranges. */
static void check_ranks(uint32_t from_ranks, uint32_t to_ranks)
{
    enum { LAYERS = 3, HEADS = 4, EXTENTS = 2 };
    static const uint32_t source[] = {7, 8, 9, 3, 4};
    static const int32_t destination[] = {20, 21, 22, 11, 12};
    struct pd_layout from = {.layers = LAYERS,
                             .kv_heads = HEADS,
                             .block_size = 8,
                             .head_dim = 16,
                             .element_bytes = 2,
                             .blocks = 40,
                             .ranks = from_ranks};
    struct pd_layout to = from;
    uint64_t bytes[PD_RANKS_MAX][LAYERS * HEADS] = {{0}};
    int ranges[PD_RANKS_MAX] = {0};
    struct pd_plan plan;
    static struct pd_read read;

    to.ranks = to_ranks;
    to.blocks = 64;
    assert_int_equal(pd_layout_derive(&from, NULL), PD_OK);
    assert_int_equal(pd_layout_derive(&to, NULL), PD_OK);
    assert_int_equal(pd_layout_match(&from, &to, NULL), PD_OK);
    pd_plan_begin(&plan, &from, source, &to, destination, 0, 5);
    while (pd_plan_next(&plan, &read)) {
        for (size_t i = 0; i < read.count; i++) {
            const struct pd_range *range = &read.ranges[i];
            uint32_t rank = (uint32_t)(range->destination / to.stride), first, count;
            uint32_t plane = pd_layout_plane_number(&to, range->destination);

            assert_int_equal(plane, pd_layout_plane_number(&from, range->source));
            assert_true(pd_layout_locate(&from, range->source, range->length, &first, &count));
            assert_true(pd_layout_locate(&to, range->destination, range->length, &first, &count));
            bytes[rank][plane] += range->length;
            ranges[rank]++;
        }
    }
    for (uint32_t rank = 0; rank < to_ranks; rank++) {
        uint32_t heads = HEADS > to_ranks ? HEADS / to_ranks : 1, own = rank * HEADS / to_ranks;

        assert_true(ranges[rank] <= LAYERS * (int)heads * EXTENTS);
        for (uint32_t plane = 0; plane < LAYERS * HEADS; plane++) {
            bool owned = plane % HEADS >= own && plane % HEADS < own + heads;

            assert_int_equal(bytes[rank][plane], owned ? 5 * to.block_bytes : 0);
        }
    }
}

static void test_every_rank_reads_its_own_heads(void **state)
{
    (void)state;
    for (uint32_t from = 1; from <= 8; from *= 2)
        for (uint32_t to = 1; to <= 8; to *= 2)
            check_ranks(from, to);
}

/* Whole blocks of one plane of one rank: nothing between the memories of two can be asked for. */
static void test_nothing_lies_between_ranks(void **state)
{
    struct pd_layout layout = {.layers = 2,
                               .kv_heads = 2,
                               .block_size = 8,
                               .head_dim = 16,
                               .element_bytes = 2,
                               .blocks = 40,
                               .ranks = 2};
    struct pd_error error = {PD_OK, ""};
    uint32_t first, count;

    (void)state;
    assert_int_equal(pd_layout_derive(&layout, NULL), PD_OK);
    assert_int_equal(layout.stride % (2 << 20), 0);
    assert_int_equal(layout.bytes, layout.stride + layout.rank_bytes);
    assert_false(pd_layout_locate(&layout, layout.rank_bytes, layout.block_bytes, &first, &count));
    assert_false(pd_layout_locate(&layout, layout.stride - layout.block_bytes, layout.block_bytes,
                                  &first, &count));
    assert_false(pd_layout_locate(&layout, layout.bytes, layout.block_bytes, &first, &count));
    assert_true(pd_layout_locate(&layout, layout.stride + 3 * layout.block_bytes,
                                 2 * layout.block_bytes, &first, &count));
    assert_int_equal(first, 3);
    assert_int_equal(count, 2);
    layout.ranks = 3;
    assert_int_equal(pd_layout_derive(&layout, &error), PD_INVALID);
    assert_non_null(strstr(error.text, "3 ranks"));
    layout.ranks = 16;
    assert_int_equal(pd_layout_derive(&layout, &error), PD_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_rank_reads_its_own_heads),
        cmocka_unit_test(test_nothing_lies_between_ranks),
        cmocka_unit_test(sizes_follow_from_the_shape),
        cmocka_unit_test(pools_of_other_types_or_sizes_are_refused),
        cmocka_unit_test(every_dimension_has_a_bound),
        cmocka_unit_test(locate_finds_runs_of_whole_blocks),
        cmocka_unit_test(plans_copy_every_block_once),
        cmocka_unit_test(one_extent_takes_one_range_per_plane),
        cmocka_unit_test(empty_plan_has_no_reads),
        cmocka_unit_test(best_common_transport_is_chosen),
        cmocka_unit_test(no_common_transport_is_said),
        cmocka_unit_test(long_reasons_are_cut),
        cmocka_unit_test(host_id_is_stable_and_fits),
        cmocka_unit_test(map_agrees_with_an_array),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
