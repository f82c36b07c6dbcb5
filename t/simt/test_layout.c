/* The matrix unit's layouts, the copies and the shuffles of pd_simt.cuh, against the words of the
 * PTX ISA manual ("Matrix fragments for mma.m16n8k16", "ldmatrix"), written down here element by
 * element. Operands are small integers: every sum is exact. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/dtype.h"
#include "t/simt/probe.h"
#include "t/unit/kernel_rig.h"

enum { LANES = 32 };

static int small_integer(uint64_t *state)
{
    return (int)(pd_rig_random(state) % 17) - 8;
}

static uint16_t half_of(bool bf16, int value)
{
    return bf16 ? pd_bf16_of_float((float)value) : pd_f16_of_float((float)value);
}

static void put(uint32_t *words, int element, uint16_t value)
{
    words[element / 2] |= (uint32_t)value << (element % 2 * 16);
}

/* "row = groupID for ai where 0 <= i < 2 || 4 <= i < 6, groupID + 8 otherwise; col =
 * (threadID_in_group * 2) + (i & 0x1) for ai where i < 4, + 8 where i >= 4" */
static int row_of_a(int lane, int i)
{
    return (i < 2 || (i >= 4 && i < 6)) ? lane >> 2 : (lane >> 2) + 8;
}

static int col_of_a(int lane, int i)
{
    return (lane % 4) * 2 + (i & 1) + (i >= 4 ? 8 : 0);
}

/* "row = (threadID_in_group * 2) + (i & 0x1) for bi where i < 2, + 8 where i >= 2; col = groupID" */
static int row_of_b(int lane, int i)
{
    return (lane % 4) * 2 + (i & 1) + (i >= 2 ? 8 : 0);
}

/* "row = groupID for ci where i < 2, groupID + 8 for ci where i >= 2; col = (threadID_in_group * 2)
 * + (i & 0x1)" */
static int row_of_c(int lane, int i)
{
    return i < 2 ? lane >> 2 : (lane >> 2) + 8;
}

static void check_product(uintptr_t seed, bool bf16)
{
    int a[16][16], b[16][8], d[16][8];
    uint32_t words_a[LANES][4] = {{0}}, words_b[LANES][2] = {{0}};
    float words_d[LANES][4];
    uint64_t state = seed;

    for (int i = 0; i < 256; i++)
        a[i / 16][i % 16] = small_integer(&state);
    for (int i = 0; i < 128; i++) {
        b[i / 8][i % 8] = small_integer(&state);
        d[i / 8][i % 8] = small_integer(&state);
    }
    for (int lane = 0; lane < LANES; lane++) {
        for (int i = 0; i < 8; i++)
            put(words_a[lane], i, half_of(bf16, a[row_of_a(lane, i)][col_of_a(lane, i)]));
        for (int i = 0; i < 4; i++) {
            put(words_b[lane], i, half_of(bf16, b[row_of_b(lane, i)][lane >> 2]));
            words_d[lane][i] = (float)d[row_of_c(lane, i)][(lane % 4) * 2 + (i & 1)];
        }
    }
    assert_int_equal(pd_probe_multiply((void *)seed, bf16, words_a[0], words_b[0], words_d[0]), 0);
    for (int lane = 0; lane < LANES; lane++) {
        for (int i = 0; i < 4; i++) {
            int row = row_of_c(lane, i), col = (lane % 4) * 2 + (i & 1), sum = d[row][col];

            for (int k = 0; k < 16; k++)
                sum += a[row][k] * b[k][col];
            assert_true(words_d[lane][i] == (float)sum);
        }
    }
}

static void test_products_are_exact_on_integers(void **state)
{
    (void)state;
    for (uintptr_t seed = 1; seed <= 8; seed++) {
        check_product(seed, false);
        check_product(seed, true);
    }
}

/* "Each thread holds a 32-bit register with two elements of a row: thread T receives row T / 4,
 * elements 2 * (T % 4) and the next"; with .trans the matrix is loaded in column-major format. */
static void test_loads_deal_rows_out(void **state)
{
    static const int matrices[] = {1, 2, 4, 4};
    uint16_t rows[LANES][8] __attribute__((aligned(16)));
    uint32_t out[LANES][4];

    (void)state;
    for (int i = 0; i < LANES * 8; i++)
        rows[i / 8][i % 8] = (uint16_t)(i / 8 << 8 | i % 8);
    for (int which = PD_PROBE_1; which <= PD_PROBE_4_TRANSPOSED; which++) {
        memset(out, 0xee, sizeof(out));
        assert_int_equal(
            pd_probe_load_matrix((void *)5, (enum pd_probe_load)which, rows[0], out[0]), 0);
        for (int lane = 0; lane < LANES; lane++) {
            for (int m = 0; m < 4; m++) {
                int one = 8 * m + lane / 4, two = 2 * (lane % 4);
                uint32_t row = (uint32_t)rows[one][two] | (uint32_t)rows[one][two + 1] << 16;
                uint32_t column = (uint32_t)rows[8 * m + two][lane / 4] |
                                  (uint32_t)rows[8 * m + two + 1][lane / 4] << 16;

                assert_int_equal(out[lane][m], m >= matrices[which]             ? 0xeeeeeeeeu
                                               : which == PD_PROBE_4_TRANSPOSED ? column
                                                                                : row);
            }
        }
    }
}

static void test_copies_arrive_when_waited_for(void **state)
{
    enum { COUNT = 6 };
    uint32_t from[LANES][COUNT][4] __attribute__((aligned(16)));
    uint32_t out[LANES][COUNT][4] __attribute__((aligned(16)));

    (void)state;
    for (uint32_t i = 0; i < LANES * COUNT * 4; i++)
        (&from[0][0][0])[i] = i * 2654435761u;
    for (uintptr_t seed = 1; seed <= 4; seed++) {
        int late = 0, early = 0;

        for (int pending = 0; pending <= 2; pending += 2) {
            assert_int_equal(pd_probe_copy((void *)seed, COUNT, pending, from[0][0], out[0][0]), 0);
            for (int i = 0; i < LANES * COUNT; i++) {
                static const uint32_t zero[4];
                const uint32_t *expected = i % COUNT % 2 == 0 ? from[i / COUNT][i % COUNT] : zero;
                bool arrived = memcmp(out[i / COUNT][i % COUNT], expected, 16) == 0;

                if (i % COUNT < COUNT - pending)
                    assert_true(arrived);
                else
                    *(arrived ? &early : &late) += 1;
            }
        }
        /* What need not be there yet sometimes is, more often is not. */
        assert_true(early > 0 && late > early);
    }
}

static void test_shuffles_wait_for_the_lanes_of_their_mask(void **state)
{
    float in[LANES], out[LANES];

    (void)state;
    for (int i = 0; i < LANES; i++)
        in[i] = (float)(1 << i % 4);
    for (uintptr_t seed = 1; seed <= 4; seed++) {
        assert_int_equal(pd_probe_quads((void *)seed, in, out), 0);
        for (int i = 0; i < LANES; i++) {
            float expected = in[i];

            for (int round = 0; round < i / 4; round++)
                expected = round == 0 ? 15 : 4 * expected;
            assert_true(out[i] == expected);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_are_exact_on_integers),
        cmocka_unit_test(test_loads_deal_rows_out),
        cmocka_unit_test(test_copies_arrive_when_waited_for),
        cmocka_unit_test(test_shuffles_wait_for_the_lanes_of_their_mask),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
