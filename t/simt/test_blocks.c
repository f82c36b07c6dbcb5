/* Ranges of a pool gathered and scattered on the host, straight through their launchers, beside plain memcpy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/cuda.h"
#include "t/unit/kernel_rig.h"

enum { UNIT = PD_CUDA_RANGE_UNIT, SPACE = 4 << 20, UNTOUCHED = 0xa5 };

struct sweep {
    int count;       /* ranges */
    uint64_t fewest; /* units of the first, and how many more each next one has */
    uint64_t more;
};

/* Every number of blocks that share a range, tables to the last entry, ranges of nothing, of one unit, around the
 * units that a block moves at once (256 of each of its four loads), and of several rounds of that. */
static const struct sweep sweeps[] = {{1, 1, 0},
                                      {1, 0, 0},
                                      {2, 255, 1},
                                      {3, 1023, 1},
                                      {5, 4095, 1},
                                      {1, 8191, 0},
                                      {1, 65537, 0},
                                      {31, 0, 17},
                                      {32, 64, 0},
                                      {33, 510, 1},
                                      {7, 2047, 3},
                                      {17, 1022, 1},
                                      {20, 3070, 1},
                                      {9, 6143, 1},
                                      {100, 0, 1},
                                      {PD_CUDA_RANGES, 0, 2},
                                      {PD_CUDA_RANGES, 512, 0}};

/* In the pool from its end down, with gaps; in the buffer from its start up, some with gaps. */
static struct pd_cuda_ranges *spread(const struct sweep *sweep)
{
    struct pd_cuda_ranges *ranges = calloc(1, sizeof(*ranges));
    uint64_t pool = SPACE, buffer = 0;

    assert_non_null(ranges);
    ranges->count = sweep->count;
    for (int i = 0; i < sweep->count; i++) {
        struct pd_cuda_range *range = &ranges->range[i];

        range->bytes = UNIT * (sweep->fewest + (uint64_t)i * sweep->more);
        assert_true(pool >= range->bytes + 3 * UNIT && buffer + range->bytes + UNIT <= SPACE);
        pool -= range->bytes + (uint64_t)(i % 4) * UNIT;
        range->pool = pool;
        range->buffer = buffer;
        buffer += range->bytes + (uint64_t)(i % 2) * UNIT;
    }
    return ranges;
}

static uint8_t *memory(bool filled)
{
    uint8_t *bytes = aligned_alloc(UNIT, SPACE);
    uint64_t state = 5 + (pd_rig_seed << 32);

    assert_non_null(bytes);
    memset(bytes, UNTOUCHED, SPACE);
    for (size_t i = 0; filled && i < SPACE; i += sizeof(uint64_t)) {
        uint64_t value = pd_rig_random(&state);

        memcpy(bytes + i, &value, sizeof(value));
    }
    return bytes;
}

static void check(const struct sweep *sweep, bool out)
{
    struct pd_cuda_ranges *ranges = spread(sweep);
    uint8_t *from = memory(true), *to = memory(false), *expected = memory(false);
    int status = out ? pd_cuda_gather_ranges((void *)3, from, ranges, to)
                     : pd_cuda_scatter_ranges((void *)4, from, ranges, to);

    assert_int_equal(status, 0);
    for (int i = 0; i < ranges->count; i++) {
        const struct pd_cuda_range *range = &ranges->range[i];

        if (out)
            memcpy(expected + range->buffer, from + range->pool, range->bytes);
        else
            memcpy(expected + range->pool, from + range->buffer, range->bytes);
    }
    if (memcmp(to, expected, SPACE) != 0)
        fail_msg("%s %d ranges of %d units and more", out ? "gathering" : "scattering",
                 sweep->count, (int)sweep->fewest);
    free(ranges);
    free(from);
    free(to);
    free(expected);
}

static void test_ranges_are_gathered_as_memcpy_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(sweeps) / sizeof(sweeps[0]); i++)
        check(&sweeps[i], true);
}

static void test_ranges_are_scattered_as_memcpy_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(sweeps) / sizeof(sweeps[0]); i++)
        check(&sweeps[i], false);
}

static void test_what_is_out_of_bounds_is_refused(void **state)
{
    struct pd_cuda_ranges *ranges = calloc(1, sizeof(*ranges));
    uint8_t *bytes = memory(false), *other = memory(false);
    uint64_t *const odd[] = {&ranges->range[1].pool, &ranges->range[1].buffer,
                             &ranges->range[1].bytes};

    (void)state;
    assert_int_equal(pd_cuda_gather_ranges((void *)1, bytes, ranges, other), 0); /* nothing to do */
    assert_int_equal(pd_cuda_scatter_ranges((void *)1, bytes, ranges, other), 0);
    ranges->count = 2;
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        *odd[i] = UNIT / 2;
        assert_int_equal(pd_cuda_gather_ranges((void *)1, bytes, ranges, other), -1);
        assert_int_equal(pd_cuda_scatter_ranges((void *)1, bytes, ranges, other), -1);
        *odd[i] = 0;
    }
    assert_int_equal(pd_cuda_gather_ranges((void *)1, bytes + 8, ranges, other), -1);
    assert_int_equal(pd_cuda_gather_ranges((void *)1, bytes, ranges, other + 8), -1);
    assert_int_equal(pd_cuda_scatter_ranges((void *)1, bytes + 8, ranges, other), -1);
    assert_int_equal(pd_cuda_scatter_ranges((void *)1, bytes, ranges, other + 8), -1);
    for (int count = -1; count <= PD_CUDA_RANGES + 1; count += PD_CUDA_RANGES + 2) {
        ranges->count = count;
        assert_int_equal(pd_cuda_gather_ranges((void *)1, bytes, ranges, other), -1);
        assert_int_equal(pd_cuda_scatter_ranges((void *)1, bytes, ranges, other), -1);
    }
    for (size_t i = 0; i < SPACE; i++)
        assert_true(bytes[i] == UNTOUCHED && other[i] == UNTOUCHED);
    free(ranges);
    free(bytes);
    free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges_are_gathered_as_memcpy_does),
        cmocka_unit_test(test_ranges_are_scattered_as_memcpy_does),
        cmocka_unit_test(test_what_is_out_of_bounds_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
