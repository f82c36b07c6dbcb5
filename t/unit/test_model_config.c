/* A model's shape from GGUF metadata and from config.json: what is read, and what is refused by its
 * name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "t/unit/gguf_file.h"
#include "worker/model/config.h"
#include "worker/model/json.h"
#include "worker/model/weights.h"

/* ---- GGUF --------------------------------------------------------------------------------------
 */

struct outcome {
    struct bytes bytes;
    struct pd_tensor_table tensors;
    struct pd_gguf *gguf;
    struct pd_model_config config;
    struct pd_rope rope;
    struct pd_model_tensors bound;
    struct pd_error error;
    int status;
};

/* Everything up to the binding of tensors to their roles. */
static struct outcome read_gguf(struct gguf_file *file)
{
    struct outcome o = {.error = {PD_OK, ""}};

    gguf_finish(file, &o.bytes);
    o.status = pd_gguf_parse("x.gguf", o.bytes.data, o.bytes.size, &o.tensors, &o.gguf, &o.error);
    if (o.status == PD_OK)
        o.status = pd_tensor_table_seal(&o.tensors, &o.error);
    if (o.status == PD_OK)
        o.status = pd_config_from_gguf(o.gguf, &o.tensors, &o.config, &o.rope, &o.error);
    if (o.status == PD_OK)
        o.status = pd_model_tensors_bind(&o.tensors, PD_NAMING_GGUF, &o.config, "x.gguf", &o.bound,
                                         &o.error);
    return o;
}

static void release(struct outcome *o)
{
    pd_model_tensors_free(&o->bound);
    pd_gguf_destroy(o->gguf);
    pd_tensor_table_free(&o->tensors);
    bytes_free(&o->bytes);
}

static void assert_ok(const struct outcome *o)
{
    if (o->status != PD_OK)
        fail_msg("%s", o->error.text);
}

static void assert_words(const char *text, const char *words)
{
    char copy[256], *rest = copy, *word;

    snprintf(copy, sizeof(copy), "%s", words);
    while ((word = strsep(&rest, "|")))
        if (!strstr(text, word))
            fail_msg("\"%s\" is not in \"%s\"", word, text);
}

static void assert_gguf_refused(struct gguf_file *file, int status, const char *words)
{
    struct outcome o = read_gguf(file);

    assert_int_equal(o.status, status);
    assert_words(o.error.text, "x.gguf");
    assert_words(o.error.text, words);
    release(&o);
}

/* The tiny llama with the given statements applied to it (f). */
#define WITH(...)                                                                                  \
    struct gguf_file f = {0};                                                                      \
    gguf_tiny_llama(&f, 1);                                                                        \
    __VA_ARGS__

#define REFUSED(status, words, ...)                                                                \
    do {                                                                                           \
        WITH(__VA_ARGS__);                                                                         \
        assert_gguf_refused(&f, status, words);                                                    \
    } while (0)

static void test_gguf_shape(void **state)
{
    struct gguf_file file = {0};
    struct outcome o;

    (void)state;
    gguf_tiny_llama(&file, 1);
    o = read_gguf(&file);
    assert_ok(&o);
    assert_string_equal(o.config.architecture, "llama");
    assert_string_equal(o.config.name, "tiny");
    assert_int_equal(o.config.layers, TINY_LAYERS);
    assert_int_equal(o.config.hidden, TINY_HIDDEN);
    assert_int_equal(o.config.feed_forward, TINY_INNER);
    assert_int_equal(o.config.heads, TINY_HEADS);
    assert_int_equal(o.config.kv_heads, TINY_KV_HEADS);
    assert_int_equal(o.config.head_dim, TINY_HEAD_DIM);
    assert_int_equal(o.config.vocabulary, TINY_VOCABULARY);
    assert_int_equal(o.config.context, TINY_CONTEXT);
    assert_int_equal(o.config.rope_dim, TINY_HEAD_DIM);
    assert_int_equal(o.config.window, 0);
    assert_true(o.config.tied_output);
    assert_false(o.config.qkv_bias);
    assert_false(o.config.qk_norm);
    assert_int_equal(o.config.eos_count, 1);
    assert_int_equal(o.config.eos[0], 2);
    assert_int_equal(o.config.bos, 1);
    assert_int_equal(o.rope.style, PD_ROPE_INTERLEAVED);
    assert_int_equal(o.rope.scaling, PD_ROPE_PLAIN);
    assert_string_equal(o.bound.layers[1].down->name, "blk.1.ffn_down.weight");
    assert_null(o.bound.output);
    release(&o);
}

static void test_gguf_options(void **state)
{
    static const uint64_t output[] = {TINY_HIDDEN, TINY_VOCABULARY};
    static const uint64_t pairs[] = {TINY_HEAD_DIM / 2};
    static const float factors[] = {1, 1, 2, 8};
    struct outcome o;

    (void)state;
    {
        WITH(gguf_key_string(&f, "llama.rope.scaling.type", "linear"),
             gguf_key_f32(&f, "llama.rope.scaling.factor", 2.5f),
             gguf_key_u32(&f, "llama.attention.sliding_window", 64),
             gguf_key_u32(&f, "tokenizer.ggml.eot_token_id", 0),
             gguf_tensor(&f, "output.weight", 2, output, GGML_F32, NULL,
                         sizeof(float) * TINY_HIDDEN * TINY_VOCABULARY),
             gguf_tensor(&f, "rope_freqs.weight", 1, pairs, GGML_F32, factors, sizeof(factors)));
        o = read_gguf(&f);
    }
    assert_ok(&o);
    assert_int_equal(o.rope.scaling, PD_ROPE_LINEAR);
    assert_true(o.rope.factor == 2.5);
    assert_int_equal(o.config.window, 64);
    assert_int_equal(o.config.eos_count, 2);
    assert_false(o.config.tied_output);
    assert_string_equal(o.bound.output->name, "output.weight");
    assert_non_null(o.bound.rope_factors);
    release(&o);
}

static void test_gguf_refusals(void **state)
{
    struct gguf_file empty = {0}, other = {0};

    (void)state;
    assert_gguf_refused(&empty, PD_NOT_FOUND, "general.architecture: missing");
    gguf_key_string(&other, "general.architecture", "gemma3");
    assert_gguf_refused(&other, PD_UNSUPPORTED,
                        "x.gguf: architecture \"gemma3\" is not supported, but these are: llama, "
                        "qwen2, qwen3");
    REFUSED(PD_UNSUPPORTED, "llama.expert_count: 8", gguf_key_u32(&f, "llama.expert_count", 8));
    REFUSED(PD_UNSUPPORTED, "llama.logit_scale", gguf_key_f32(&f, "llama.logit_scale", 0.25f));
    REFUSED(PD_UNSUPPORTED, "llama.rope.scaling.type: \"yarn\"",
            gguf_key_string(&f, "llama.rope.scaling.type", "yarn"));
    REFUSED(PD_INVALID, "factor", gguf_key_f32(&f, "llama.rope.scale_linear", -1));
    REFUSED(PD_UNSUPPORTED, "llama.attention.value_length: 16",
            gguf_key_u32(&f, "llama.attention.value_length", 16));
    REFUSED(PD_INVALID, "rope.dimension_count: 0",
            gguf_key_u32(&f, "llama.rope.dimension_count", 0));
    REFUSED(PD_INVALID, "12 rotated dimensions",
            gguf_key_u32(&f, "llama.rope.dimension_count", 12));
    REFUSED(PD_INVALID, "end token 259", gguf_key_u32(&f, "tokenizer.ggml.eot_token_id", 259));
}

/* Each key of the shape in turn: absent, zero, or far too large. */
static void test_gguf_numbers_are_bounded(void **state)
{
    static const char *const names[] = {"block_count", "context_length", "embedding_length",
                                        "feed_forward_length", "attention.head_count"};
    static const uint32_t values[] = {0, UINT32_MAX};
    static const uint64_t dimensions[] = {32, 4};

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        for (size_t v = 0; v < 3; v++) {
            struct gguf_file f = {0};
            char key[64];

            gguf_key_string(&f, "general.architecture", "llama");
            for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
                snprintf(key, sizeof(key), "llama.%s", names[k]);
                if (k != i)
                    gguf_key_u32(&f, key, 4);
                else if (v < 2)
                    gguf_key_u32(&f, key, values[v]);
            }
            gguf_tensor(&f, "token_embd.weight", 2, dimensions, GGML_F32, NULL, 512);
            assert_gguf_refused(&f, v < 2 ? PD_INVALID : PD_NOT_FOUND, names[i]);
        }
}

static void test_tensors_must_fit_the_shape(void **state)
{
    static const uint64_t small[] = {TINY_HIDDEN, 8};
    static const uint64_t flat[] = {TINY_VOCABULARY * TINY_HIDDEN};
    static const uint64_t pairs[] = {TINY_HEAD_DIM / 2};
    static const float zero[TINY_HEAD_DIM / 2];

    (void)state;
    REFUSED(PD_UNSUPPORTED, "tensor blk.0.attn_q.bias: has no place in a llama model of 2 layers",
            gguf_tensor(&f, "blk.0.attn_q.bias", 1, small, GGML_F32, NULL, 128));
    REFUSED(PD_UNSUPPORTED, "tensor blk.2.attn_norm.weight: has no place",
            gguf_tensor(&f, "blk.2.attn_norm.weight", 1, small, GGML_F32, NULL, 128));
    REFUSED(PD_INVALID, "tensor output.weight|2 dimensions, 8 x 32|259 x 32",
            gguf_tensor(&f, "output.weight", 2, small, GGML_F32, NULL, 1024));
    REFUSED(PD_INVALID, "tensor output.weight|1 dimensions",
            gguf_tensor(&f, "output.weight", 1, flat, GGML_F32, NULL,
                        sizeof(float) * TINY_VOCABULARY * TINY_HIDDEN));
    REFUSED(PD_INVALID, "tensor rope_freqs.weight|vector of 4",
            gguf_tensor(&f, "rope_freqs.weight", 1, small, GGML_F32, NULL, 128));
    REFUSED(PD_INVALID, "tensor rope_freqs.weight|value 0 is 0",
            gguf_tensor(&f, "rope_freqs.weight", 1, pairs, GGML_F32, zero, sizeof(zero)));
}

static void test_a_missing_tensor_is_named(void **state)
{
    static const uint64_t dimensions[] = {32, 8};
    struct gguf_file file = {0};

    (void)state;
    gguf_key_string(&file, "general.architecture", "llama");
    gguf_key_u32(&file, "llama.block_count", 1);
    gguf_key_u32(&file, "llama.context_length", 64);
    gguf_key_u32(&file, "llama.embedding_length", 32);
    gguf_key_u32(&file, "llama.feed_forward_length", 64);
    gguf_key_u32(&file, "llama.attention.head_count", 4);
    gguf_key_f32(&file, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_tensor(&file, "token_embd.weight", 2, dimensions, GGML_F32, NULL, 1024);
    assert_gguf_refused(&file, PD_INVALID, "tensor output_norm.weight: missing");
}

/* ---- config.json -------------------------------------------------------------------------------
 */

static const char base[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"num_hidden_layers\":2,\"hidden_size\":64,"
    "\"intermediate_size\":160,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":"
    "300,"
    "\"max_position_embeddings\":512,\"rms_norm_eps\":1e-05,\"rope_theta\":500.0,\"bos_token_id\":"
    "1,"
    "\"eos_token_id\":[2,3],\"hidden_act\":\"silu\",\"tie_word_embeddings\":true}";

/* `base` with the members of `change` put over it; a null member takes one away. */
static int read_json(const char *change, struct pd_model_config *config, struct pd_rope *rope,
                     struct pd_error *error)
{
    const struct pd_tensor_table none = {0};
    json_t *root, *over;
    int status;

    *error = (struct pd_error){PD_OK, ""};
    assert_int_equal(pd_json_parse("config.json", base, strlen(base), &root, error), PD_OK);
    assert_int_equal(pd_json_parse("change", change, strlen(change), &over, error), PD_OK);
    json_object_update(root, over);
    status = pd_config_from_json("config.json", root, &none, config, rope, error);
    json_decref(over);
    json_decref(root);
    return status;
}

static void assert_json_refused(const char *change, int status, const char *words)
{
    struct pd_model_config config;
    struct pd_rope rope;
    struct pd_error error;

    assert_int_equal(read_json(change, &config, &rope, &error), status);
    assert_words(error.text, "config.json");
    assert_words(error.text, words);
}

static struct pd_model_config json_config(const char *change, struct pd_rope *rope)
{
    struct pd_model_config config;
    struct pd_error error;

    if (read_json(change, &config, rope, &error) != PD_OK)
        fail_msg("%s", error.text);
    return config;
}

static void test_json_shape(void **state)
{
    struct pd_rope rope;
    struct pd_model_config config = json_config("{}", &rope);

    (void)state;
    assert_string_equal(config.architecture, "llama");
    assert_int_equal(config.layers, 2);
    assert_int_equal(config.hidden, 64);
    assert_int_equal(config.feed_forward, 160);
    assert_int_equal(config.heads, 4);
    assert_int_equal(config.kv_heads, 2);
    assert_int_equal(config.head_dim, 16);
    assert_int_equal(config.vocabulary, 300);
    assert_int_equal(config.context, 512);
    assert_true(config.rope_base == 500.0f && config.norm_eps == 1e-5f);
    assert_true(config.tied_output);
    assert_int_equal(config.eos_count, 2);
    assert_int_equal(config.eos[1], 3);
    assert_int_equal(rope.style, PD_ROPE_HALF);
    config =
        json_config("{\"tie_word_embeddings\":false,\"head_dim\":32,\"num_key_value_heads\":null,"
                    "\"eos_token_id\":null,\"bos_token_id\":null}",
                    &rope);
    assert_false(config.tied_output);
    assert_int_equal(config.head_dim, 32);
    assert_int_equal(config.kv_heads, 4);
    assert_int_equal(config.eos_count, 0);
    assert_int_equal(config.bos, -1);
    config = json_config("{\"tie_word_embeddings\":null}", &rope);
    assert_true(config.tied_output); /* there is no lm_head.weight */
}

static void test_json_families(void **state)
{
    struct pd_rope rope;
    struct pd_model_config config;

    (void)state;
    config = json_config("{\"architectures\":[\"Qwen2ForCausalLM\"]}", &rope);
    assert_string_equal(config.architecture, "qwen2");
    assert_true(config.qkv_bias && !config.qk_norm);
    config = json_config("{\"architectures\":[\"Qwen3ForCausalLM\"]}", &rope);
    assert_string_equal(config.architecture, "qwen3");
    assert_true(config.qk_norm && !config.qkv_bias);
    assert_json_refused("{\"architectures\":[\"MixtralForCausalLM\"]}", PD_UNSUPPORTED,
                        "architecture \"MixtralForCausalLM\" is not supported, but these are: "
                        "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM");
    assert_json_refused("{\"architectures\":null}", PD_INVALID, "\"architectures\"");
}

static void test_json_windows(void **state)
{
    static const char mistral[] =
        "{\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":128}";
    static const char off[] = "{\"architectures\":[\"Qwen2ForCausalLM\"],\"sliding_window\":128,"
                              "\"use_sliding_window\":false,\"max_window_layers\":1}";
    static const char beyond[] = "{\"architectures\":[\"Qwen2ForCausalLM\"],\"sliding_window\":128,"
                                 "\"use_sliding_window\":true,\"max_window_layers\":2}";
    static const char all[] = "{\"architectures\":[\"Qwen2ForCausalLM\"],\"sliding_window\":128,"
                              "\"use_sliding_window\":true,\"max_window_layers\":0}";
    struct pd_rope rope;

    (void)state;
    assert_int_equal(json_config(mistral, &rope).window, 128);
    assert_int_equal(json_config("{\"sliding_window\":128}", &rope).window, 0); /* not Llama's */
    assert_int_equal(json_config(off, &rope).window, 0);
    assert_int_equal(json_config(beyond, &rope).window, 0);
    assert_int_equal(json_config(all, &rope).window, 128);
    assert_json_refused("{\"architectures\":[\"Qwen2ForCausalLM\"],\"use_sliding_window\":true,"
                        "\"max_window_layers\":1,\"sliding_window\":128}",
                        PD_UNSUPPORTED, "max_window_layers");
    assert_json_refused("{\"architectures\":[\"Qwen3ForCausalLM\"],\"use_sliding_window\":true,"
                        "\"layer_types\":[\"full_attention\",\"sliding_attention\"],"
                        "\"sliding_window\":128}",
                        PD_UNSUPPORTED, "layer_types");
}

static void test_json_refusals(void **state)
{
    (void)state;
    assert_json_refused("{\"attention_bias\":true}", PD_UNSUPPORTED, "attention_bias");
    assert_json_refused("{\"mlp_bias\":true}", PD_UNSUPPORTED, "mlp_bias");
    assert_json_refused("{\"hidden_act\":\"gelu\"}", PD_UNSUPPORTED, "\"gelu\"");
    assert_json_refused("{\"quantization_config\":{}}", PD_UNSUPPORTED, "quantization_config");
    assert_json_refused("{\"partial_rotary_factor\":0.5}", PD_UNSUPPORTED, "partial_rotary_factor");
    assert_json_refused("{\"num_hidden_layers\":0}", PD_INVALID, "num_hidden_layers");
    assert_json_refused("{\"num_hidden_layers\":\"2\"}", PD_INVALID, "num_hidden_layers");
    assert_json_refused("{\"hidden_size\":9223372036854775807}", PD_INVALID, "hidden_size");
    assert_json_refused("{\"vocab_size\":null}", PD_NOT_FOUND, "vocab_size");
    assert_json_refused("{\"num_key_value_heads\":3}", PD_INVALID, "4 query heads|3 KV heads");
    assert_json_refused("{\"num_attention_heads\":128,\"num_key_value_heads\":128}", PD_INVALID,
                        "heads of 0 dimensions");
    assert_json_refused("{\"head_dim\":17}", PD_INVALID, "17 dimensions");
    assert_json_refused("{\"rms_norm_eps\":0}", PD_INVALID, "epsilon");
    assert_json_refused("{\"rope_theta\":-1}", PD_INVALID, "rope base");
    assert_json_refused("{\"eos_token_id\":300}", PD_INVALID, "end token 300");
    assert_json_refused("{\"eos_token_id\":\"x\"}", PD_INVALID, "eos_token_id");
    assert_json_refused("{\"eos_token_id\":[1,2,3,4,5,6,7,8,9]}", PD_INVALID, "more than 8");
    assert_json_refused("{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}}", PD_UNSUPPORTED,
                        "\"yarn\"");
    assert_json_refused("{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4}}", PD_UNSUPPORTED,
                        "\"dynamic\"");
    assert_json_refused("{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":4}}", PD_NOT_FOUND,
                        "low_freq_factor");
    assert_json_refused("{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", PD_INVALID,
                        "factor");
}

static void test_json_generation(void **state)
{
    static const char text[] = "{\"eos_token_id\":[7,2]}";
    struct pd_rope rope;
    struct pd_model_config config = json_config("{}", &rope);
    struct pd_error error;
    json_t *root;

    (void)state;
    assert_int_equal(pd_json_parse("g.json", text, strlen(text), &root, &error), PD_OK);
    assert_int_equal(pd_config_read_generation("g.json", root, &config, &error), PD_OK);
    json_decref(root);
    assert_int_equal(config.eos_count, 2);
    assert_int_equal(config.eos[0], 7);
    assert_int_equal(config.eos[1], 2);
}

/* ---- angles ------------------------------------------------------------------------------------
 */

static void assert_frequencies(const char *change, const float *factors, const float *expected)
{
    struct pd_rope rope;
    struct pd_model_config config = json_config(change, &rope);
    float out[8];

    assert_int_equal(config.rope_dim, 16);
    pd_rope_frequencies(&config, &rope, factors, out);
    for (int i = 0; i < 8; i++)
        if (!(fabsf(out[i] - expected[i]) <= 4e-7f * expected[i]))
            fail_msg("pair %d: %.9g, not %.9g", i, (double)out[i], (double)expected[i]);
}

/* The expected values are what transformers 5.24 computes for the same parameters. */
static void test_frequencies(void **state)
{
    static const float llama3[] = {1,
                                   0.459863275f,
                                   0.113881998f,
                                   0.0243123118f,
                                   0.0111803403f,
                                   0.00514142821f,
                                   0.00236435398f,
                                   0.00108727964f};
    static const float linear[] = {0.400000006f,    0.1264911f,     0.0399999991f,
                                   0.0126491114f,   0.00399999972f, 0.00126491114f,
                                   0.000400000019f, 0.000126491112f};
    static const float ones[] = {1, 1, 1, 1, 1, 1, 1, 1};
    static const float halves[] = {2.5f, 2.5f, 2.5f, 2.5f, 2.5f, 2.5f, 2.5f, 2.5f};

    (void)state;
    assert_frequencies(
        "{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":4,\"low_freq_factor\":1,"
        "\"high_freq_factor\":4,\"original_max_position_embeddings\":64}}",
        NULL, llama3);
    assert_frequencies(
        "{\"rope_theta\":10000,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}", NULL,
        linear);
    assert_frequencies("{\"rope_theta\":null,\"rope_parameters\":{\"rope_type\":\"linear\","
                       "\"factor\":2.5,\"rope_theta\":10000}}",
                       ones, linear);
    assert_frequencies("{\"rope_theta\":10000}", halves, linear);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf_shape),
        cmocka_unit_test(test_gguf_options),
        cmocka_unit_test(test_gguf_refusals),
        cmocka_unit_test(test_gguf_numbers_are_bounded),
        cmocka_unit_test(test_tensors_must_fit_the_shape),
        cmocka_unit_test(test_a_missing_tensor_is_named),
        cmocka_unit_test(test_json_shape),
        cmocka_unit_test(test_json_families),
        cmocka_unit_test(test_json_windows),
        cmocka_unit_test(test_json_refusals),
        cmocka_unit_test(test_json_generation),
        cmocka_unit_test(test_frequencies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
