/* What the sizing of a worker takes a GPU's steps to need, beside what the backend reserves for them. Sizing
 * must know before there is a model on the GPU, so it reckons from the shape; here the same shapes are loaded,
 * and every byte of the device's memory is counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "t/simt/control.h"
#include "worker/model/ranks.h"
#include "worker/sizing.h"

enum { BLOCK = 16 };

/* Of two architectures, so that no term hides behind another: a wide head beside a narrow body, and the reverse. */
static const char *const models[] = {
    "\"hidden_size\": 128, \"intermediate_size\": 256, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 4, \"head_dim\": 32, \"vocab_size\": 4096",
    "\"hidden_size\": 256, \"intermediate_size\": 2048, \"num_attention_heads\": 8, "
    "\"num_key_value_heads\": 4, \"head_dim\": 64, \"vocab_size\": 261",
};

struct shape {
    int tokens, seqs, length, ranks;
    bool deterministic;
};

static struct pd_model_files *files;

static void open_model(const char *shape)
{
    char directory[] = "/tmp/pd-scratch-XXXXXX", path[64];
    struct pd_error error = {0};
    FILE *file;

    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/config.json", directory);
    file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "{\"architectures\": [\"LlamaForCausalLM\"], \"torch_dtype\": \"bfloat16\", %s, "
            "\"num_hidden_layers\": 2, \"max_position_embeddings\": 65536, \"rms_norm_eps\": 1e-6, "
            "\"tie_word_embeddings\": false}",
            shape);
    assert_int_equal(fclose(file), 0);
    if (pd_model_files_make(directory, 1, 1, &files, &error) != PD_OK)
        fail_msg("%s", error.text);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(directory), 0);
}

static struct pd_device *open_device(const struct shape *shape)
{
    const struct pd_device_options options = {
        .kind = "cuda",
        .ranks = shape->ranks,
        .threads = 1,
        .isa = "auto",
        .cuda_enable = "all",
        .deterministic = shape->deterministic,
        .max_tokens = shape->tokens,
        .max_seqs = shape->seqs,
        .max_model_len = shape->length,
        .block_size = BLOCK,
        .vocabulary = pd_model_files_config(files)->vocabulary,
    };
    struct pd_device *device;
    char error[256] = "";

    if (pd_device_open(&options, &device, error, sizeof(error)) != PD_KERNEL_OK)
        fail_msg("%s", error);
    return device;
}

static struct pd_kv_pool make_pool(struct pd_device *device, const struct shape *shape, int rank)
{
    const struct pd_model_config *config = pd_model_files_config(files);
    struct pd_kv_pool pool = {
        .layers = config->layers,
        .kv_heads = pd_model_share_of(config, rank, shape->ranks).kv_heads,
        .head_dim = config->head_dim,
        .block_size = BLOCK,
        .blocks = 1,
        .type = PD_F16,
    };

    assert_int_equal(pd_buffer_create(pd_device_rank(device, rank), PD_BUFFER_KV,
                                      pd_kv_pool_bytes(&pool), &pool.buffer),
                     PD_KERNEL_OK);
    return pool;
}

/* Bytes of all GPUs that a loaded model holds there beside its weights. */
static int64_t held(const struct shape *shape)
{
    struct pd_device *device = open_device(shape);
    struct pd_kv_pool pools[PD_RANKS_MAX];
    struct pd_model_options options = {
        .max_tokens = shape->tokens,
        .max_seqs = shape->seqs,
        .max_model_len = shape->length,
        .pool = pools,
        .threads = 1,
    };
    struct pd_error error = {0};
    struct pd_model *model;
    int64_t bytes;

    for (int r = 0; r < shape->ranks; r++)
        pools[r] = make_pool(device, shape, r);
    if (pd_model_load(files, device, &options, &model, &error) != PD_OK)
        fail_msg("%s", error.text);
    bytes = (int64_t)pd_simt_held();
    for (int r = 0; r < shape->ranks; r++)
        bytes -= (int64_t)(pd_kv_pool_bytes(&pools[r]) +
                           pd_model_files_gpu_bytes(files, r, shape->ranks));
    pd_model_destroy(model);
    for (int r = 0; r < shape->ranks; r++)
        pd_buffer_destroy(pools[r].buffer);
    pd_device_close(device);
    assert_int_equal(pd_simt_held(), 0);
    return bytes;
}

static int64_t reckoned(const struct shape *shape)
{
    struct pd_options options = {
        .max_num_batched_tokens = shape->tokens,
        .max_num_seqs = shape->seqs,
        .max_model_len = shape->length,
        .deterministic = shape->deterministic,
    };

    return shape->ranks *
           (int64_t)pd_sizing_scratch(&options, pd_model_files_config(files), shape->ranks);
}

/* A shape, and one that has less of one thing: what is reserved for that was reckoned with, and no more than
 * twice. */
static void check_growth(const struct shape *shape, const struct shape *less)
{
    int64_t reserved = held(shape) - held(less), expected = reckoned(shape) - reckoned(less);

    if (reserved <= 0 || expected < reserved || expected > 2 * reserved)
        fail_msg("%d tokens, %d sequences, %d long, %d ranks: %lld bytes more are reserved, "
                 "reckoned were %lld",
                 shape->tokens, shape->seqs, shape->length, shape->ranks, (long long)reserved,
                 (long long)expected);
}

static void test_what_steps_reserve_is_reckoned_with(void **state)
{
    static const struct shape small = {256, 16, 1024, 1, false}, pair = {256, 16, 1024, 2, false},
                              tokens = {16384, 16, 1024, 1, false},
                              seqs = {256, 256, 1024, 1, false},
                              length = {256, 16, 65536, 1, false},
                              both = {16384, 16, 1024, 2, false};

    (void)state;
    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
        open_model(models[m]);
        check_growth(&tokens, &small);
        check_growth(&seqs, &small);
        check_growth(&length, &small);
        check_growth(&both, &pair);
        pd_model_files_close(files);
    }
}

/* All in all, with what does not grow: tiles, the memory that ranks meet in, a product's slices. */
static void test_the_rest_has_room(void **state)
{
    static const struct shape shapes[] = {
        {256, 16, 1024, 1, false},
        {256, 16, 1024, 4, false},
        {16384, 16, 1024, 2, true},
        {64, 64, 64, 1, true},
    };

    (void)state;
    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
        open_model(models[m]);
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            assert_true(held(&shapes[i]) > 0);
            assert_true(held(&shapes[i]) <= reckoned(&shapes[i]));
        }
        pd_model_files_close(files);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_steps_reserve_is_reckoned_with),
        cmocka_unit_test(test_the_rest_has_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
