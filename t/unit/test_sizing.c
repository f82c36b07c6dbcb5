/* What fits into how much memory, and what is said when it does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "worker/sizing.h"

/* SmolLM2-135M: 2 * 30 layers * 3 heads * 64 values a token. */
static const struct pd_model_config config = {
    .layers = 30, .kv_heads = 3, .head_dim = 64, .context = 8192, .vocabulary = 49152};

enum { F16_BLOCK = 16 * 2 * 30 * 3 * 64 * 2 + 8 }; /* and a generation word */

static struct pd_options options;
static struct pd_sizing sizing;
static struct pd_error error;

static int decide(int64_t kv_bytes, int64_t max_model_len, uint64_t available)
{
    memset(&error, 0, sizeof(error));
    options.block_size = 16;
    options.kv_cache_memory = kv_bytes;
    options.max_model_len = max_model_len;
    return pd_sizing_decide(&options, &config, &(struct pd_sizing_room){.host = available}, &sizing,
                            &error);
}

static void assert_says(const char *part)
{
    if (!strstr(error.text, part))
        fail_msg("\"%s\" does not hold \"%s\"", error.text, part);
}

static void test_default_is_a_gibibyte(void **state)
{
    (void)state;
    assert_int_equal(decide(0, 0, 64ull << 30), PD_OK);
    assert_int_equal(sizing.kv_bytes, 1ull << 30);
    assert_int_equal(sizing.pool.blocks, (1ull << 30) / F16_BLOCK);
    assert_int_equal(sizing.pool.type, PD_F16);
    assert_int_equal(sizing.max_model_len, 8192);
    assert_false(sizing.len_was_reduced);
}

static void test_default_leaves_half_of_a_small_machine(void **state)
{
    (void)state;
    assert_int_equal(decide(0, 0, 100 << 20), PD_OK);
    assert_int_equal(sizing.kv_bytes, 50 << 20);
    assert_true(sizing.len_was_reduced);
    assert_int_equal(sizing.max_model_len, sizing.pool.blocks * 16);
}

static void test_bytes_as_given(void **state)
{
    (void)state;
    assert_int_equal(decide(10 * F16_BLOCK, 160, 0), PD_OK);
    assert_int_equal(sizing.pool.blocks, 10);
    assert_int_equal(sizing.max_model_len, 160);
    options.kv_cache_dtype = PD_OPTION_KV_F32;
    assert_int_equal(decide(10 * F16_BLOCK, 0, 0), PD_OK);
    assert_int_equal(sizing.pool.blocks, 5);
    assert_int_equal(sizing.pool.type, PD_F32);
    options.kv_cache_dtype = PD_OPTION_KV_AUTO;
}

static void test_what_does_not_fit_is_answered_with_what_would(void **state)
{
    (void)state;
    assert_int_equal(decide(10 * F16_BLOCK, 161, 0), PD_INVALID);
    assert_says("--max-model-len at most 160");
    assert_says("--kv-cache-memory at least 3.9 MiB");
    assert_int_equal(decide(11 * F16_BLOCK, 161, 0), PD_OK);
    assert_int_equal(decide(0, 8193, 0), PD_INVALID);
    assert_says("8192 tokens that the model was made for");
    assert_int_equal(decide(1000, 0, 0), PD_INVALID);
    assert_says("--kv-cache-memory");
    assert_int_equal(decide(2ll << 30, 0, 1 << 30), PD_INVALID);
    assert_says("more than the 1.0 GiB");
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

/* Qwen2.5-72B. */
static const struct pd_model_config large = {.layers = 80,
                                             .heads = 64,
                                             .kv_heads = 8,
                                             .head_dim = 128,
                                             .hidden = 8192,
                                             .feed_forward = 29568,
                                             .context = 32768,
                                             .vocabulary = 152064};

static int decide_on_gpus(int ranks, double share, struct pd_sizing_room room)
{
    struct pd_options own = {.block_size = 16,
                             .device = "cuda",
                             .tensor_parallel_size = ranks,
                             .gpu_memory_utilization = share,
                             .max_num_batched_tokens = 2048,
                             .max_num_seqs = 64};

    memset(&error, 0, sizeof(error));
    return pd_sizing_decide(&own, &large, &room, &sizing, &error);
}

/* What is measured free, less what weights and steps will take, up to the share. */
static void test_the_pool_takes_a_gpus_share(void **state)
{
    const uint64_t gib = 1ull << 30;
    struct pd_sizing_room room = {
        .host = 8 * gib, .gpu_total = 80 * gib, .gpu_free = 80 * gib, .gpu_weights = 36 * gib};
    uint64_t all;

    (void)state;
    assert_int_equal(decide_on_gpus(4, 0, room), PD_OK);
    all = sizing.kv_bytes;
    assert_true(sizing.scratch > gib / 4 && sizing.scratch < 4 * gib);
    assert_in_range(all / 4 + 36 * gib + sizing.scratch, 72 * gib - 8, 72 * gib + 8);
    /* 80 layers, 2 heads of 128, K and V, f16; each block has a generation word */
    assert_int_equal(sizing.pool.blocks, all / (4 * 16 * 80 * 2 * 128 * 2 * 2 + 8));
    /* what others hold is theirs */
    room.gpu_free = 70 * gib;
    assert_int_equal(decide_on_gpus(4, 0, room), PD_OK);
    assert_int_equal(all - sizing.kv_bytes, 4 * 10 * gib);
    room.gpu_free = 80 * gib;
    assert_int_equal(decide_on_gpus(4, 0.95, room), PD_OK);
    assert_in_range(sizing.kv_bytes - all, 4 * 4 * gib - 64, 4 * 4 * gib + 64);
    room.gpu_weights = 73 * gib;
    assert_int_equal(decide_on_gpus(4, 0, room), PD_INVALID);
    assert_says("nothing is left for KV: of 80.0 GiB, a share of 0.90");
    assert_says("weights take 73.0 GiB");
    assert_says("--tensor-parallel-size");
    assert_says("--gpu-memory-utilization");
}

/* A step descriptor names a token's place in 32 bits. */
static void test_the_pool_never_outgrows_its_indices(void **state)
{
    (void)state;
    assert_int_equal(decide((int64_t)1 << 50, 0, 0), PD_OK);
    assert_int_equal(sizing.pool.blocks, INT32_MAX / 16);
}

static void test_sizes_for_people(void **state)
{
    char text[32];

    (void)state;
    assert_string_equal(pd_size_text(1023, text), "1023 bytes");
    assert_string_equal(pd_size_text(1536, text), "1.5 KiB");
    assert_string_equal(pd_size_text(5ull << 40, text), "5.0 TiB");
    assert_true(pd_memory_available() > 1 << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default_is_a_gibibyte),
        cmocka_unit_test(test_default_leaves_half_of_a_small_machine),
        cmocka_unit_test(test_bytes_as_given),
        cmocka_unit_test(test_what_does_not_fit_is_answered_with_what_would),
        cmocka_unit_test(test_the_pool_takes_a_gpus_share),
        cmocka_unit_test(test_the_pool_never_outgrows_its_indices),
        cmocka_unit_test(test_sizes_for_people),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
