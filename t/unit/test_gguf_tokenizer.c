/* tokenizer.ggml.* metadata as a tokenizer's definition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "t/unit/gguf_file.h"
#include "worker/model/gguf_tokenizer.h"

static const char *const tokens[] = {"<bos>", "<eos>", "a", "b", "ab", "<think>", "[PAD6]"};
static const int32_t types[] = {3, 3, 1, 1, 1, 4, 5};
static const char *const merges[] = {"a b"};

enum { TOKENS = 7 };

struct outcome {
    struct bytes bytes;
    struct pd_tensor_table tensors;
    struct pd_gguf *gguf;
    struct pd_tokenizer_spec spec;
    struct pd_error error;
    int status;
};

static struct outcome read_file(struct gguf_file *file)
{
    struct outcome o = {.error = {PD_OK, ""}};

    gguf_finish(file, &o.bytes);
    assert_int_equal(
        pd_gguf_parse("x.gguf", o.bytes.data, o.bytes.size, &o.tensors, &o.gguf, &o.error), PD_OK);
    o.status = pd_gguf_tokenizer_read(o.gguf, &o.spec, &o.error);
    return o;
}

static void release(struct outcome *o)
{
    pd_gguf_tokenizer_free(&o->spec);
    pd_gguf_destroy(o->gguf);
    pd_tensor_table_free(&o->tensors);
    bytes_free(&o->bytes);
}

static void put_base(struct gguf_file *file, const char *pre)
{
    gguf_key_string(file, "tokenizer.ggml.model", "gpt2");
    gguf_key_string(file, "tokenizer.ggml.pre", pre);
    gguf_key_strings(file, "tokenizer.ggml.tokens", tokens, TOKENS);
    gguf_key_i32s(file, "tokenizer.ggml.token_type", types, TOKENS);
    gguf_key_strings(file, "tokenizer.ggml.merges", merges, 1);
}

static void assert_refused(struct gguf_file *file, int status, const char *words)
{
    struct outcome o = read_file(file);

    assert_int_equal(o.status, status);
    if (!strstr(o.error.text, "x.gguf: metadata tokenizer.ggml.") || !strstr(o.error.text, words))
        fail_msg("\"%s\" is not in \"%s\"", words, o.error.text);
    assert_null(o.spec.tokens);
    release(&o);
}

static void test_a_definition_is_read(void **state)
{
    static const uint8_t kinds[] = {PD_TOKEN_SPECIAL, PD_TOKEN_SPECIAL, PD_TOKEN_NORMAL,
                                    PD_TOKEN_NORMAL,  PD_TOKEN_NORMAL,  PD_TOKEN_ADDED,
                                    PD_TOKEN_UNUSED};
    struct gguf_file file = {0};
    struct outcome o;

    (void)state;
    put_base(&file, "smollm");
    gguf_key_u32(&file, "tokenizer.ggml.bos_token_id", 0);
    gguf_key_u32(&file, "tokenizer.ggml.eos_token_id", 1);
    gguf_key_bool(&file, "tokenizer.ggml.add_bos_token", 1);
    o = read_file(&file);
    assert_int_equal(o.status, PD_OK);
    assert_int_equal(o.spec.token_count, TOKENS);
    assert_memory_equal(o.spec.kinds, kinds, sizeof(kinds));
    assert_int_equal(o.spec.tokens[5].length, 7);
    assert_memory_equal(o.spec.tokens[5].bytes, "<think>", 7);
    assert_int_equal(o.spec.merge_count, 1);
    assert_memory_equal(o.spec.merges[0].bytes, "a b", 3);
    assert_int_equal(o.spec.bos_id, 0);
    assert_int_equal(o.spec.eos_id, 1);
    assert_true(o.spec.add_bos);
    assert_true(o.spec.digits_alone);
    assert_true(o.spec.regex_count > 0);
    release(&o);
}

/* Where add_bos_token is missing, Llama 3 alone gets one. */
static void test_bos_by_default(void **state)
{
    static const char *const names[] = {"smollm", "qwen2", "llama-bpe"};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct gguf_file file = {0};
        struct outcome o;

        put_base(&file, names[i]);
        gguf_key_u32(&file, "tokenizer.ggml.bos_token_id", 0);
        o = read_file(&file);
        assert_int_equal(o.status, PD_OK);
        assert_int_equal(o.spec.add_bos, i == 2);
        assert_int_equal(o.spec.eos_id, -1);
        release(&o);
    }
}

static void test_faults_are_named(void **state)
{
    static const int32_t bytes[] = {3, 3, 6, 1, 1, 4, 5};
    struct gguf_file file = {0};

    (void)state;
    put_base(&file, "no-such-rule");
    assert_refused(&file, PD_UNSUPPORTED, "no-such-rule");
    put_base(&file, "smollm");
    gguf_key_u32(&file, "tokenizer.ggml.bos_token_id", TOKENS);
    assert_refused(&file, PD_INVALID, "bos_token_id: 7 is not between 0 and 6");
    put_base(&file, "smollm");
    gguf_key_bool(&file, "tokenizer.ggml.add_bos_token", 1);
    assert_refused(&file, PD_INVALID, "there is no bos_token_id");
    gguf_key_string(&file, "tokenizer.ggml.model", "bert");
    assert_refused(&file, PD_UNSUPPORTED, "\"bert\" is not supported");
    gguf_key_string(&file, "tokenizer.ggml.model", "gpt2");
    gguf_key_strings(&file, "tokenizer.ggml.tokens", tokens, TOKENS);
    gguf_key_strings(&file, "tokenizer.ggml.merges", merges, 1);
    gguf_key_i32s(&file, "tokenizer.ggml.token_type", types, TOKENS - 1);
    assert_refused(&file, PD_INVALID, "6 types for 7 tokens");
    gguf_key_string(&file, "tokenizer.ggml.model", "gpt2");
    gguf_key_strings(&file, "tokenizer.ggml.tokens", tokens, TOKENS);
    gguf_key_strings(&file, "tokenizer.ggml.merges", merges, 1);
    gguf_key_i32s(&file, "tokenizer.ggml.token_type", bytes, TOKENS);
    assert_refused(&file, PD_INVALID, "token 2 is of type 6");
    gguf_key_string(&file, "tokenizer.ggml.model", "gpt2");
    gguf_key_strings(&file, "tokenizer.ggml.tokens", tokens, 0);
    assert_refused(&file, PD_INVALID, "0 tokens");
    assert_refused(&file, PD_NOT_FOUND, "model: missing");
    gguf_key_string(&file, "tokenizer.ggml.model", "gpt2");
    assert_refused(&file, PD_NOT_FOUND, "tokens: missing");
    gguf_key_string(&file, "tokenizer.ggml.model", "gpt2");
    gguf_key_strings(&file, "tokenizer.ggml.tokens", tokens, TOKENS);
    gguf_key_i32s(&file, "tokenizer.ggml.token_type", types, TOKENS);
    assert_refused(&file, PD_NOT_FOUND, "merges: missing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_definition_is_read),
        cmocka_unit_test(test_bos_by_default),
        cmocka_unit_test(test_faults_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
