#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "t/unit/dummy_models.h"

const char *const dummy_families[] = {
    "\"architectures\": [\"LlamaForCausalLM\"], \"rope_theta\": 500.0, \"head_dim\": 32, "
    "\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\"",
    "\"architectures\": [\"MistralForCausalLM\"], \"sliding_window\": 9, \"head_dim\": 32, "
    "\"tie_word_embeddings\": false, \"torch_dtype\": \"float16\"",
    "\"architectures\": [\"Qwen2ForCausalLM\"], \"tie_word_embeddings\": true, "
    "\"head_dim\": 32, \"use_sliding_window\": false, \"dtype\": \"bfloat16\"",
    "\"architectures\": [\"Qwen3ForCausalLM\"], \"head_dim\": 32, \"tie_word_embeddings\": true, "
    "\"torch_dtype\": \"float32\"",
    NULL,
};

static void path_of(const char *directory, char path[128])
{
    snprintf(path, 128, "%s/config.json", directory);
}

const char *dummy_model_write(int family, char directory[64])
{
    char path[128];
    FILE *file;

    snprintf(directory, 64, "/tmp/pd-dummy-XXXXXX");
    assert_non_null(mkdtemp(directory));
    path_of(directory, path);
    file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "{%s, \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "
            "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 256, "
            "\"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-6}",
            dummy_families[family]);
    assert_int_equal(fclose(file), 0);
    return directory;
}

void dummy_model_remove(const char *directory)
{
    char path[128];

    path_of(directory, path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(directory), 0);
}

void dummy_model_logits(struct model_run *run, int count, float *logits)
{
    int chunk = count / 2, wanted[MODEL_RUN_SAMPLES];
    int32_t ids[MODEL_RUN_SAMPLES];

    assert_int_equal(run->config->vocabulary, 256);
    assert_true(count <= MODEL_RUN_SAMPLES);
    for (int i = 0; i < count; i++) {
        ids[i] = (i * 37 + 11) % 256;
        wanted[i] = i;
    }
    model_run_step(run, ids, 0, chunk, wanted, chunk, logits, NULL);
    for (int i = chunk; i < count; i++)
        model_run_step(run, ids, i, 1, &wanted[i], 1, logits + 256 * i, NULL);
}
