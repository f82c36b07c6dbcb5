/* Models out of their config.json alone: the generator's numbers against those of an independent
 * implementation of its definition, and every family on two devices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "t/unit/dummy_models.h"
#include "worker/model/files.h"

static struct pd_model_files *make(int family, uint64_t seed, int threads)
{
    struct pd_model_files *files;
    struct pd_error error = {PD_OK, ""};
    char directory[64];

    if (pd_model_files_make(dummy_model_write(family, directory), seed, threads, &files, &error) !=
        PD_OK)
        fail_msg("%s", error.text);
    dummy_model_remove(directory);
    return files;
}

static unsigned bits(const struct pd_model_files *files, const char *name, size_t index)
{
    const struct pd_file_tensor *tensor = pd_tensor_table_find(&files->table, name);
    uint16_t value;

    assert_non_null(tensor);
    assert_int_equal(tensor->type, PD_BF16);
    memcpy(&value, tensor->data + 2 * index, 2);
    return value;
}

/* From a few lines of Python that know Philox4x32-10, FNV-1a and the definition in dummy.h. */
static void test_values_are_those_of_the_definition(void **state)
{
    static const struct {
        int family;
        const char *name;
        size_t index;
        unsigned bits;
    } known[] = {
        {0, "lm_head.weight", 0, 0xbe05},
        {0, "lm_head.weight", 1, 0xbc48},
        {0, "lm_head.weight", 7, 0x3d83},
        {0, "lm_head.weight", 8, 0xbd5a},
        {0, "lm_head.weight", 16383, 0x3e02},
        {0, "model.norm.weight", 0, 0x3f7d},
        {0, "model.norm.weight", 3, 0x3f65},
        {0, "model.norm.weight", 63, 0x3f48},
        {2, "model.layers.1.self_attn.k_proj.bias", 0, 0x3cb8},
        {2, "model.layers.1.self_attn.k_proj.bias", 31, 0x3e3c},
    };
    struct pd_model_files *files[] = {make(0, 42, 1), NULL, make(2, 42, 1)};

    (void)state;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        assert_int_equal(bits(files[known[i].family], known[i].name, known[i].index),
                         known[i].bits);
    for (int i = 0; i < 3; i++)
        pd_model_files_close(files[i]);
}

static void test_the_seed_alone_decides(void **state)
{
    struct pd_model_files *one = make(0, 7, 1), *three = make(0, 7, 3), *other = make(0, 8, 1);

    (void)state;
    assert_int_equal(one->table.count, three->table.count);
    for (size_t i = 0; i < one->table.count; i++) {
        const struct pd_file_tensor *tensor = &one->table.tensors[i];

        assert_memory_equal(tensor->data, three->table.tensors[i].data, tensor->bytes);
        assert_memory_not_equal(tensor->data, other->table.tensors[i].data, tensor->bytes);
    }
    assert_int_equal(pd_tokenizer_vocabulary(one->tokenizer), 256);
    pd_model_files_close(one);
    pd_model_files_close(three);
    pd_model_files_close(other);
}

static void test_every_family_computes_the_same_on_two_devices(void **state)
{
    enum { COUNT = 24, VALUES = COUNT * 256 };
    float *expected = malloc(sizeof(float) * VALUES), *logits = malloc(sizeof(float) * VALUES);

    (void)state;
    for (int family = 0; dummy_families[family]; family++) {
        double difference = 0, size = 0;
        struct model_run run;
        char directory[64];

        dummy_model_write(family, directory);
        model_run_make(&run, directory, 5, "reference", 1);
        dummy_model_logits(&run, COUNT, expected);
        model_run_close(&run);
        model_run_make(&run, directory, 5, "cpu", 2);
        dummy_model_logits(&run, COUNT, logits);
        model_run_close(&run);
        dummy_model_remove(directory);
        for (int i = 0; i < VALUES; i++) {
            assert_true(isfinite(expected[i]));
            difference += fabs((double)logits[i] - expected[i]);
            size += fabs((double)expected[i]);
        }
        assert_true(size / VALUES > 0.2 && size / VALUES < 5);
        assert_true(difference / size < 1e-4);
    }
    free(expected);
    free(logits);
}

/* Qwen2.5-72B: what each of 4 or 8 GPUs holds follows from its configuration, and nothing of that size is
 * made on the way. */
static void test_a_plan_knows_bytes_without_weights(void **state)
{
    enum { LAYERS = 80, HIDDEN = 8192, INNER = 29568, HEADS = 64, KV_HEADS = 8, DIM = 128 };
    enum { VOCABULARY = 152064 };
    static const int ranks[] = {1, 4, 8};
    char directory[64] = "/tmp/pd-plan-XXXXXX", path[128];
    struct pd_error error = {PD_OK, ""};
    struct pd_model_files *files;
    FILE *file;

    (void)state;
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/config.json", directory);
    file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "{\"architectures\": [\"Qwen2ForCausalLM\"], \"hidden_size\": %d, "
            "\"intermediate_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": %d, "
            "\"num_key_value_heads\": %d, \"vocab_size\": %d, \"max_position_embeddings\": 32768, "
            "\"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000.0, \"tie_word_embeddings\": false, "
            "\"use_sliding_window\": false, \"torch_dtype\": \"bfloat16\"}",
            HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCABULARY);
    assert_int_equal(fclose(file), 0);
    if (pd_model_files_plan(directory, &files, &error) != PD_OK)
        fail_msg("%s", error.text);
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
        uint64_t n = (uint64_t)ranks[i], qkv = (HEADS + 2 * KV_HEADS) * DIM;
        uint64_t divided =
            2ull * VOCABULARY * HIDDEN +
            LAYERS * (qkv * HIDDEN + (uint64_t)HEADS * DIM * HIDDEN + 3ull * INNER * HIDDEN);
        uint64_t biases = LAYERS * qkv, norms = (2ull * LAYERS + 1) * HIDDEN;

        for (int r = 0; r < ranks[i]; r++) {
            assert_int_equal(pd_model_files_rank_bytes(files, r, ranks[i]),
                             2 * divided / n + 2 * biases / n + 2 * norms);
            assert_int_equal(pd_model_files_gpu_bytes(files, r, ranks[i]),
                             2 * divided / n + 4 * biases / n + 4 * norms);
        }
    }
    pd_model_files_close(files);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(directory), 0);
}

static void test_without_a_configuration_there_is_no_model(void **state)
{
    struct pd_error error = {PD_OK, ""};
    struct pd_model_files *files;

    (void)state;
    assert_int_equal(pd_model_files_make("/nonexistent", 0, 1, &files, &error), PD_NOT_FOUND);
    assert_null(files);
    assert_non_null(strstr(error.text, "/nonexistent/config.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_are_those_of_the_definition),
        cmocka_unit_test(test_the_seed_alone_decides),
        cmocka_unit_test(test_every_family_computes_the_same_on_two_devices),
        cmocka_unit_test(test_a_plan_knows_bytes_without_weights),
        cmocka_unit_test(test_without_a_configuration_there_is_no_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
