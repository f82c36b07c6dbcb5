/* What only a GPU can run, gpu_runtime.cu and gpu_gemm.cu, over what stands in for the CUDA runtime, the driver and
 * cuBLASLt (cuda_standin.h): that its calls are those that a GPU takes, that each is checked, and that nothing is kept
 * which has to be given back. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <thread>
#include <unistd.h>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gpu.h"
#include "t/simt/cuda_standin.h"

long cublaslt_standin_alive(void);

enum { GPU = 2, OTHER = 3 };

/* Every test begins with GPUs that can all, on a thread that has said nothing. */
static int begin(void **)
{
    standin = {true, true, true, true, true, -1, 0, 0, {}, {1, 2, 3 << 20, 4 << 20}, 4};
    return 0;
}

static int end(void **)
{
    assert_int_equal(standin_alive(), 0);
    assert_int_equal(cublaslt_standin_alive(), 0);
    return 0;
}

/* On a new thread: what it means is its own to say. */
template <typename F> static void elsewhere(F work)
{
    std::thread(work).join();
}

static struct pd_cuda_library cublaslt()
{
    struct pd_cuda_library library = {dlopen(nullptr, RTLD_NOW), "this program", ""};

    return library;
}

static struct pd_cuda_runtime *open_gpu(int ordinal, bool gemm = false)
{
    static const struct pd_cuda_library library = cublaslt();
    struct pd_cuda_runtime *runtime = nullptr;
    char error[256] = "";

    if (pd_cuda_open(ordinal, gemm ? &library : nullptr, &runtime, error, sizeof(error)) != 0)
        fail_msg("%s", error);
    return runtime;
}

/* ---- which GPU is meant ---------------------------------------------------------------------- */

static void use_all(struct pd_cuda_runtime *runtime, struct pd_cuda_runtime *other)
{
    struct pd_cuda_device_info info;
    struct pd_cuda_lane *lane;
    struct pd_cuda_ranges ranges = {1, {{16, 0, 32}}};
    void *memory, *pinned;

    elsewhere([&] { pd_cuda_info(runtime, &info); });
    assert_int_equal(info.memory_free, 3 << 20);
    elsewhere([&] { assert_int_equal(pd_cuda_reach(runtime, other), 0); });
    elsewhere(
        [&] { assert_int_equal(pd_cuda_reach(runtime, other), 0); }); /* once more: no error */
    elsewhere([&] { assert_int_equal(pd_cuda_allocate(runtime, 64, &memory), 0); });
    elsewhere([&] { assert_int_equal(pd_cuda_allocate_pinned(runtime, 64, &pinned), 0); });
    elsewhere([&] { assert_int_equal(pd_cuda_copy(runtime, memory, pinned, 64), 0); });
    elsewhere([&] { assert_int_equal(pd_cuda_mark(runtime, 1), 0); });
    elsewhere([&] { assert_int_equal(pd_cuda_reached(runtime, 1), 0); });
    elsewhere([&] { assert_int_equal(pd_cuda_reached(runtime, 1), 0); });
    elsewhere([&] { assert_int_equal(pd_cuda_reached(runtime, 1), 1); });
    elsewhere([&] { assert_int_equal(pd_cuda_drain(runtime), 0); });
    elsewhere([&] { assert_int_equal(pd_cuda_lane_open(runtime, &lane), 0); });
    elsewhere([&] { assert_int_equal(pd_cuda_lane_copy(lane, pinned, memory, 64), 0); });
    elsewhere([&] { assert_int_equal(pd_cuda_lane_gather(lane, memory, &ranges, pinned), 0); });
    elsewhere([&] { assert_int_equal(pd_cuda_lane_scatter(lane, pinned, &ranges, memory), 0); });
    elsewhere([&] { assert_int_equal(pd_cuda_lane_wait(lane), 0); });
    elsewhere([&] { pd_cuda_lane_close(lane); });
    elsewhere([&] { assert_int_equal(pd_cuda_fence(runtime), 0); });
    elsewhere([&] { pd_cuda_free(runtime, memory); });
    elsewhere([&] { pd_cuda_free_pinned(runtime, pinned); });
}

/* Each call on a thread of its own. */
static void test_a_thread_that_means_no_gpu_may_make_every_call(void **)
{
    struct pd_cuda_runtime *runtime, *other;

    elsewhere([&] { runtime = open_gpu(GPU, true); });
    elsewhere([&] { other = open_gpu(OTHER); });
    use_all(runtime, other);
    assert_int_equal(standin.flushed[GPU], 1);
    assert_int_equal(standin.flushed[0] + standin.flushed[1] + standin.flushed[OTHER], 0);
    elsewhere([&] { pd_cuda_close(runtime); });
    elsewhere([&] { pd_cuda_close(other); });
}

/* One thread between two GPUs: the last that it opened is not the one that it means. */
static void test_a_thread_of_another_gpu_may_make_every_call(void **)
{
    struct pd_cuda_runtime *runtime = open_gpu(GPU, true), *other = open_gpu(OTHER);
    struct pd_cuda_device_info info;
    void *memory;

    assert_int_equal(pd_cuda_allocate(other, 64, &memory), 0);
    pd_cuda_info(runtime, &info);
    assert_int_equal(info.memory_free, 3 << 20);
    assert_int_equal(pd_cuda_fence(runtime), 0);
    assert_int_equal(pd_cuda_fence(other), 0);
    assert_int_equal(standin.flushed[GPU], 1);
    assert_int_equal(standin.flushed[OTHER], 1);
    assert_int_equal(pd_cuda_mark(runtime, 0), 0);
    assert_int_equal(pd_cuda_mark(other, 0), 0);
    pd_cuda_free(other, memory);
    pd_cuda_close(runtime);
    pd_cuda_close(other);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void test_memory_is_zero_when_it_is_given(void **)
{
    struct pd_cuda_runtime *runtime = open_gpu(GPU);
    static const char zeros[100] = {};
    void *memory, *pinned;

    assert_int_equal(pd_cuda_allocate(runtime, 100, &memory), 0);
    assert_memory_equal(memory, zeros, 100);
    assert_int_equal(pd_cuda_allocate_pinned(runtime, 100, &pinned), 0);
    assert_memory_equal(pinned, zeros, 100);
    pd_cuda_free(runtime, memory);
    pd_cuda_free(runtime, nullptr);
    pd_cuda_free_pinned(runtime, pinned);
    pd_cuda_free_pinned(runtime, nullptr);
    pd_cuda_close(runtime);
}

/* From one GPU to another, as between two processes: what one writes, the other reads. */
static void test_a_pool_is_lent_in_whole_granules(void **)
{
    struct pd_cuda_runtime *runtime = open_gpu(GPU), *other = open_gpu(OTHER);
    size_t bytes = STANDIN_GRANULE + 1;
    void *memory, *lent;
    int fd, card;

    assert_int_equal(pd_cuda_allocate_shared(runtime, &bytes, &memory, &fd), 0);
    assert_int_equal(bytes, 2 * STANDIN_GRANULE);
    assert_true(fd >= 0);
    assert_int_equal(pd_cuda_import(other, fd, bytes, &lent), 0);
    ((char *)memory)[bytes - 1] = 7;
    assert_int_equal(((char *)lent)[bytes - 1], 7);
    card = pd_cuda_dmabuf(runtime, memory, bytes);
    assert_true(card >= 0);
    close(card);
    pd_cuda_free_shared(runtime, memory, bytes, fd); /* before the other forgets it */
    assert_int_equal(((char *)lent)[bytes - 1], 7);
    pd_cuda_forget(other, lent, bytes);
    pd_cuda_close(runtime);
    pd_cuda_close(other);
}

static void test_a_pool_that_no_card_reaches_is_lent_all_the_same(void **)
{
    struct pd_cuda_runtime *runtime = open_gpu(GPU);
    size_t bytes = 100;
    void *memory;
    int fd;

    standin.direct = false;
    assert_int_equal(pd_cuda_allocate_shared(runtime, &bytes, &memory, &fd), 0);
    assert_true(fd >= 0);
    assert_int_equal(pd_cuda_dmabuf(runtime, memory, bytes), -1);
    pd_cuda_free_shared(runtime, memory, bytes, fd);
    pd_cuda_close(runtime);
}

static void test_a_gpu_that_lends_nothing_has_a_pool(void **)
{
    struct pd_cuda_runtime *runtime = open_gpu(GPU);

    for (int without = 0; without < 2; without++) {
        size_t bytes = 100;
        void *memory;
        int fd;

        standin.maps = without != 0;
        standin.lends = without == 0;
        assert_int_equal(pd_cuda_allocate_shared(runtime, &bytes, &memory, &fd), 0);
        assert_int_equal(fd, -1);
        assert_int_equal(bytes, 100);
        assert_int_equal(((char *)memory)[99], 0);
        pd_cuda_free_shared(runtime, memory, bytes, fd);
    }
    pd_cuda_close(runtime);
}

static void test_no_fence_where_a_thread_cannot_flush(void **)
{
    struct pd_cuda_runtime *runtime = open_gpu(GPU);

    standin.flushes = false;
    assert_int_equal(pd_cuda_fence(runtime), 0);
    pd_cuda_close(runtime);
}

/* ---- recordings ------------------------------------------------------------------------------ */

static void test_a_recording_is_run_as_often_as_it_is_replayed(void **)
{
    struct pd_cuda_runtime *runtime = open_gpu(GPU, true);
    struct pd_cuda_recording *recording;
    int from = 1, to = 0;

    assert_int_equal(pd_cuda_record_begin(runtime), 0);
    assert_int_equal(pd_cuda_copy(runtime, &to, &from, sizeof(to)), 0);
    elsewhere([&] { /* others go on meanwhile */
                    void *memory;

                    assert_int_equal(pd_cuda_allocate(runtime, 64, &memory), 0);
                    pd_cuda_free(runtime, memory);
    });
    assert_int_equal(pd_cuda_record_end(runtime, &recording), 0);
    assert_int_equal(to, 0);
    for (from = 2; from < 4; from++) {
        assert_int_equal(pd_cuda_replay(runtime, recording), 0);
        assert_int_equal(pd_cuda_drain(runtime), 0);
        assert_int_equal(to, from);
    }
    pd_cuda_recording_free(runtime, recording);
    pd_cuda_recording_free(runtime, nullptr);
    pd_cuda_close(runtime);
}

/* ---- products -------------------------------------------------------------------------------- */

enum { ROWS = 5, COLS = 24, TOKENS = 11, STRIDE = 7 };

/* Bits of a small integer as f16 or bf16, and what it is. */
static uint16_t half(bool bf16, int value)
{
    float wide = (float)value;
    _Float16 narrow = (_Float16)wide;
    uint32_t word;
    uint16_t bits;

    memcpy(&word, &wide, sizeof(word));
    memcpy(&bits, &narrow, sizeof(bits));
    return bf16 ? (uint16_t)(word >> 16) : bits;
}

static int weight_at(int row, int col)
{
    return (row * 7 + col * 3) % 11 - 5;
}

static int x_at(int token, int col)
{
    return (token * 5 + col) % 7 - 3;
}

static void expect_product(struct pd_cuda_runtime *runtime, bool bf16, bool accumulate, bool biased,
                           int shift)
{
    alignas(256) static uint16_t weight[ROWS * COLS], x[TOKENS * COLS];
    alignas(256) static float room[TOKENS * STRIDE + 8], bias[ROWS];
    float *out = room + shift, milliseconds = 0;
    struct pd_cuda_product product = {
        weight, x, biased ? bias : nullptr, out, ROWS, COLS, TOKENS, STRIDE, bf16, accumulate};
    struct pd_cuda_algorithm offers[8];
    int count = 0;

    for (int i = 0; i < ROWS * COLS; i++)
        weight[i] = half(bf16, weight_at(i / COLS, i % COLS));
    for (int i = 0; i < TOKENS * COLS; i++)
        x[i] = half(bf16, x_at(i / COLS, i % COLS));
    for (int i = 0; i < TOKENS * STRIDE; i++)
        out[i] = (float)i;
    for (int i = 0; i < ROWS; i++)
        bias[i] = (float)(100 * i);
    assert_int_equal(pd_cuda_gemm_offers(runtime, &product, offers, 8, &count), 0);
    assert_int_equal(count, 3); /* one of the four is none */
    assert_true(pd_cuda_gemm_takes(runtime, &product, &offers[2]));
    assert_int_equal(pd_cuda_gemm_time(runtime, &product, &offers[0], &milliseconds), 0);
    assert_true(milliseconds > 0);
    for (int i = 0; i < TOKENS * STRIDE && !accumulate; i++)
        out[i] = (float)i;
    assert_int_equal(pd_cuda_gemm(runtime, &product, &offers[2]), 0);
    for (int t = 0; t < TOKENS; t++) {
        for (int r = 0; r < STRIDE; r++) {
            int expected = t * STRIDE + r, sum = 0;

            for (int k = 0; k < COLS && r < ROWS; k++)
                sum += weight_at(r, k) * x_at(t, k);
            if (r < ROWS)
                expected = sum + (accumulate ? expected : 0) + (biased ? 100 * r : 0);
            if (out[t * STRIDE + r] != (float)expected)
                fail_msg("token %d, row %d: %g instead of %d", t, r, (double)out[t * STRIDE + r],
                         expected);
        }
    }
    product.tokens--; /* of another shape */
    assert_false(pd_cuda_gemm_takes(runtime, &product, &offers[2]));
}

/* Whole numbers: what the library is told, column-major, is the product that is meant, row by row. */
static void test_products_are_told_as_the_library_counts(void **)
{
    struct pd_cuda_runtime *runtime = open_gpu(GPU, true);

    assert_int_equal(pd_cuda_gemm_version(runtime), 130100);
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int shift = 0; shift < 3; shift++) {
            expect_product(runtime, bf16, false, false, shift);
            expect_product(runtime, bf16, true, false, shift);
            expect_product(runtime, bf16, false, true, shift);
        }
    pd_cuda_close(runtime);
}

static void test_a_product_without_algorithms_has_none(void **)
{
    struct pd_cuda_runtime *runtime = open_gpu(GPU, true);
    const struct pd_cuda_product product = {nullptr, nullptr, nullptr, nullptr, 8,
                                            8,       8,       8,       true,    false};
    struct pd_cuda_algorithm offer;
    int count = 1;

    standin.offers = 0;
    assert_int_equal(pd_cuda_gemm_offers(runtime, &product, &offer, 1, &count), 0);
    assert_int_equal(count, 0);
    pd_cuda_close(runtime);
}

/* ---- calls that fail ------------------------------------------------------------------------- */

/* All that a device does in its life, as far as it comes. 0, or the first error. */
static int life(void)
{
    static const struct pd_cuda_library library = cublaslt();
    static uint16_t half_zeros[64];
    static float out[64];
    const struct pd_cuda_product product = {half_zeros, half_zeros, nullptr, out,  8,
                                            8,          8,          8,       true, true};
    struct pd_cuda_runtime *runtime = nullptr;
    struct pd_cuda_recording *recording = nullptr;
    struct pd_cuda_lane *lane = nullptr;
    struct pd_cuda_algorithm offer;
    void *memory = nullptr, *pinned = nullptr, *pool = nullptr, *lent = nullptr;
    size_t bytes = 1;
    float milliseconds;
    char why[256] = "";
    int fd = -1, count, error = pd_cuda_open(GPU, &library, &runtime, why, sizeof(why));
    auto next = [&error](int status) { error = error ? error : status; };

    if (error != 0) {
        assert_null(runtime);
        assert_true(*why != '\0');
        return error;
    }
    next(pd_cuda_allocate(runtime, 64, &memory));
    next(error ? 0 : pd_cuda_allocate_pinned(runtime, 64, &pinned));
    next(error ? 0 : pd_cuda_allocate_shared(runtime, &bytes, &pool, &fd));
    next(error ? 0 : pd_cuda_import(runtime, fd, bytes, &lent));
    next(error ? 0 : pd_cuda_lane_open(runtime, &lane));
    next(error ? 0 : pd_cuda_lane_copy(lane, memory, pinned, 64));
    next(error ? 0 : pd_cuda_lane_wait(lane));
    next(error ? 0 : pd_cuda_gemm_offers(runtime, &product, &offer, 1, &count));
    next(error ? 0 : pd_cuda_gemm_time(runtime, &product, &offer, &milliseconds));
    if (error == 0 && (error = pd_cuda_record_begin(runtime)) == 0) {
        next(pd_cuda_copy(runtime, pinned, memory, 64));
        next(pd_cuda_record_end(runtime, &recording));
    }
    next(error ? 0 : pd_cuda_replay(runtime, recording));
    next(error ? 0 : pd_cuda_mark(runtime, 0));
    for (int reached = 0; error == 0 && reached == 0;)
        if ((reached = pd_cuda_reached(runtime, 0)) < 0)
            error = -1 - reached;
    next(error ? 0 : pd_cuda_fence(runtime));
    next(error ? 0 : pd_cuda_drain(runtime));
    standin.fail_after = -1;
    pd_cuda_recording_free(runtime, recording);
    pd_cuda_lane_close(lane);
    if (lent != nullptr)
        pd_cuda_forget(runtime, lent, bytes);
    if (pool != nullptr)
        pd_cuda_free_shared(runtime, pool, bytes, fd);
    pd_cuda_free_pinned(runtime, pinned);
    pd_cuda_free(runtime, memory);
    pd_cuda_close(runtime);
    return error;
}

/* One after the other: the error comes back, and nothing is left of what went before. */
static void test_every_call_that_fails_is_noticed(void **)
{
    static const int errors[] = {2, 700, 801};
    long calls, last = 0;

    assert_int_equal(life(), 0);
    calls = standin.calls;
    for (int error : errors) {
        for (long after = 0; after < calls; after++) {
            int status;

            standin.fail_after = after;
            standin.error = error;
            elsewhere([&] { status = life(); });
            standin.fail_after = -1;
            if (status == 0) /* all that is left gives back */
                break;
            last = after;
            if (status != error && status != cudaErrorSharedObjectInitFailed)
                fail_msg("after %ld calls: error %d instead of %d", after, status, error);
            if (standin_alive() != 0 || cublaslt_standin_alive() != 0)
                fail_msg("after %ld calls: %ld and %ld are left", after, standin_alive(),
                         cublaslt_standin_alive());
        }
        assert_true(last > calls / 2);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_thread_that_means_no_gpu_may_make_every_call),
        TEST(test_a_thread_of_another_gpu_may_make_every_call),
        TEST(test_memory_is_zero_when_it_is_given),
        TEST(test_a_pool_is_lent_in_whole_granules),
        TEST(test_a_pool_that_no_card_reaches_is_lent_all_the_same),
        TEST(test_a_gpu_that_lends_nothing_has_a_pool),
        TEST(test_no_fence_where_a_thread_cannot_flush),
        TEST(test_a_recording_is_run_as_often_as_it_is_replayed),
        TEST(test_products_are_told_as_the_library_counts),
        TEST(test_a_product_without_algorithms_has_none),
        TEST(test_every_call_that_fails_is_noticed),
    };

    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
