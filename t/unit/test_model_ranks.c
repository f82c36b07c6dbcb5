/* Whole models on groups of ranks: the logits of every family are the same bits on 1, 2, 4 and 8 ranks where
 * its shape divides, near them where it does not, and what cannot be divided is refused by its number. */
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

#include "kernels/backend.h"
#include "t/unit/model_run.h"

enum { COUNT = 24, VOCABULARY = 261, VALUES = COUNT * VOCABULARY };

static const char divisible[] = "\"hidden_size\": 64, \"intermediate_size\": 512, "
                                "\"num_attention_heads\": 8, \"num_key_value_heads\": 4, "
                                "\"head_dim\": 32, \"tie_word_embeddings\": false, ";

static const struct {
    const char *text;
    const char *shape;
} families[] = {
    {"\"architectures\": [\"LlamaForCausalLM\"], \"torch_dtype\": \"bfloat16\", ", divisible},
    {"\"architectures\": [\"Qwen2ForCausalLM\"], \"use_sliding_window\": false, \"dtype\": "
     "\"float16\", ",
     divisible},
    {"\"architectures\": [\"Qwen3ForCausalLM\"], \"torch_dtype\": \"float32\", ",
     "\"hidden_size\": 96, \"intermediate_size\": 256, \"num_attention_heads\": 16, "
     "\"num_key_value_heads\": 8, \"head_dim\": 64, \"tie_word_embeddings\": true, "},
};

/* Nine heads, three of them for KV, as SmolLM2 has. */
static const char uneven[] = "\"hidden_size\": 96, \"intermediate_size\": 384, "
                             "\"num_attention_heads\": 9, \"num_key_value_heads\": 3, "
                             "\"head_dim\": 32, \"tie_word_embeddings\": true, ";

static void write_model(const char *family, const char *shape, char directory[64])
{
    char path[128];
    FILE *file;

    snprintf(directory, 64, "/tmp/pd-ranks-XXXXXX");
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/config.json", directory);
    file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "{%s%s \"num_hidden_layers\": 2, \"vocab_size\": %d, \"max_position_embeddings\": 128, "
            "\"rms_norm_eps\": 1e-6}",
            family, shape, VOCABULARY);
    assert_int_equal(fclose(file), 0);
}

static void remove_model(const char *directory)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/config.json", directory);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(directory), 0);
}

/* Half of the tokens in one chunk, then one by one; `sampled` gets what was drawn of each. */
static void compute(const char *directory, const char *kind, int ranks, float *logits,
                    int32_t *sampled)
{
    int32_t ids[COUNT];
    int wanted[COUNT];
    struct model_run run;

    for (int i = 0; i < COUNT; i++) {
        ids[i] = (i * 37 + 11) % VOCABULARY;
        wanted[i] = i;
    }
    model_run_make_ranks(&run, directory, 5, kind, 2, ranks);
    model_run_step(&run, ids, 0, COUNT / 2, wanted, COUNT / 2, logits, sampled);
    for (int i = COUNT / 2; i < COUNT; i++)
        model_run_step(&run, ids, i, 1, &wanted[i], 1, logits + (size_t)VOCABULARY * (size_t)i,
                       sampled + i);
    model_run_close(&run);
}

static void check_same_bits(int family, const char *kind, int most)
{
    static float expected[VALUES], logits[VALUES];
    int32_t drawn[COUNT], sampled[COUNT];
    char directory[64];

    write_model(families[family].text, families[family].shape, directory);
    compute(directory, kind, 1, expected, drawn);
    for (int i = 0; i < VALUES; i++)
        assert_true(isfinite(expected[i]));
    for (int ranks = 2; ranks <= most; ranks *= 2) {
        compute(directory, kind, ranks, logits, sampled);
        if (memcmp(logits, expected, sizeof(logits)) != 0)
            fail_msg("family %d, %s: %d ranks differ from one", family, kind, ranks);
        assert_memory_equal(sampled, drawn, sizeof(sampled));
    }
    remove_model(directory);
}

static void test_the_same_bits_on_any_number_of_ranks(void **state)
{
    (void)state;
    for (int family = 0; family < (int)(sizeof(families) / sizeof(families[0])); family++)
        check_same_bits(family, "cpu", 8);
    check_same_bits(1, "reference", 8);
}

/* Only where the CUDA backend is linked in (over t/simt/): GPUs, in their deterministic way, over pools that
 * the matrix unit reads. */
static void test_the_same_bits_on_any_number_of_gpus(void **state)
{
    (void)state;
    if (&pd_backend_cuda == NULL)
        skip();
    model_run_deterministic = true;
    for (int family = 0; family < 2; family++) {
        model_run_pool_type = family == 0 ? PD_F16 : PD_BF16;
        check_same_bits(family, "cuda", 4);
    }
    model_run_deterministic = false;
    model_run_pool_type = PD_F32;
}

static void test_three_ranks_of_nine_heads(void **state)
{
    static float expected[VALUES], logits[VALUES];
    int32_t drawn[COUNT], sampled[COUNT];
    double difference = 0, size = 0;
    char directory[64];

    (void)state;
    write_model(families[0].text, uneven, directory);
    compute(directory, "cpu", 1, expected, drawn);
    compute(directory, "cpu", 3, logits, sampled);
    remove_model(directory);
    for (int i = 0; i < VALUES; i++) {
        difference += fabs((double)logits[i] - expected[i]);
        size += fabs((double)expected[i]);
    }
    assert_true(difference / size < 1e-5);
    assert_memory_not_equal(logits, expected, sizeof(logits));
}

static void test_how_many_slices_a_shape_has(void **state)
{
    struct pd_model_config config = {
        .heads = 64, .kv_heads = 8, .head_dim = 128, .feed_forward = 29568, .vocabulary = 152064};

    (void)state;
    assert_int_equal(pd_model_slices(&config), 4); /* 29568 is 924 times 32 */
    config.feed_forward = 28672;
    assert_int_equal(pd_model_slices(&config), 8);
    config.kv_heads = 3;
    assert_int_equal(pd_model_slices(&config), 1);
    config = (struct pd_model_config){
        .heads = 28, .kv_heads = 4, .head_dim = 128, .feed_forward = 18944};
    assert_int_equal(pd_model_slices(&config), 4);
    config =
        (struct pd_model_config){.heads = 9, .kv_heads = 3, .head_dim = 64, .feed_forward = 1536};
    assert_int_equal(pd_model_slices(&config), 1);
    config =
        (struct pd_model_config){.heads = 8, .kv_heads = 1, .head_dim = 4, .feed_forward = 512};
    assert_int_equal(pd_model_slices(&config), 1); /* 32 columns behind attention */
}

/* Every head, row and token belongs to exactly one rank; KV heads to as many as each other. */
static void test_shares_cover_the_model(void **state)
{
    const struct pd_model_config config = {
        .heads = 16, .kv_heads = 4, .head_dim = 64, .feed_forward = 640, .vocabulary = 1003};

    (void)state;
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        int heads = 0, inner = 0, tokens = 0, owners[4] = {0};

        for (int r = 0; r < ranks; r++) {
            struct pd_model_share share = pd_model_share_of(&config, r, ranks);

            assert_int_equal(share.first_head, heads);
            assert_int_equal(share.first_inner, inner);
            assert_int_equal(share.first_token, tokens);
            heads += share.heads;
            inner += share.inner;
            tokens += share.tokens;
            for (int h = 0; h < share.kv_heads; h++)
                owners[share.first_kv_head + h]++;
            for (int h = share.first_head; h < heads; h++) /* its heads' keys are its own */
                assert_in_range(h / 4, share.first_kv_head,
                                share.first_kv_head + share.kv_heads - 1);
        }
        assert_int_equal(heads, 16);
        assert_int_equal(inner, 640);
        assert_int_equal(tokens, 1003);
        for (int h = 0; h < 4; h++)
            assert_int_equal(owners[h], ranks > 4 ? ranks / 4 : 1);
    }
}

static void assert_refused(const struct pd_model_config *config, int ranks, const char *part)
{
    struct pd_error error = {PD_OK, ""};

    assert_int_equal(pd_model_ranks_check(config, ranks, &error), PD_UNSUPPORTED);
    if (!strstr(error.text, part))
        fail_msg("\"%s\" does not hold \"%s\"", error.text, part);
}

static void test_what_does_not_divide_is_named(void **state)
{
    struct pd_model_config config = {
        .heads = 9, .kv_heads = 3, .head_dim = 64, .feed_forward = 1536, .vocabulary = 49152};
    struct pd_error error;

    (void)state;
    assert_refused(&config, 2, "9 heads");
    assert_refused(&config, 9, "1 to 8");
    assert_refused(&config, 0, "1 to 8");
    assert_int_equal(pd_model_ranks_check(&config, 3, &error), PD_OK);
    config.heads = 12;
    assert_refused(&config, 2, "3 KV heads");
    assert_int_equal(pd_model_ranks_check(&config, 6, &error), PD_OK);
    config.feed_forward = 1537;
    assert_refused(&config, 3, "1537");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_bits_on_any_number_of_ranks),
        cmocka_unit_test(test_the_same_bits_on_any_number_of_gpus),
        cmocka_unit_test(test_three_ranks_of_nine_heads),
        cmocka_unit_test(test_how_many_slices_a_shape_has),
        cmocka_unit_test(test_shares_cover_the_model),
        cmocka_unit_test(test_what_does_not_divide_is_named),
    };

    if (&pd_backend_cuda != NULL) /* over the shim: all else runs without it */
        cmocka_set_test_filter("*gpus*");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
