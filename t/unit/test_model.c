/* A model from file to logits: a tiny llama that the test writes itself. What the numbers should be is
 * t/oracle/test_logits.c's matter; here it is what must not change them, and what must be refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "t/unit/gguf_file.h"
#include "t/unit/model_run.h"

/* ---- files ------------------------------------------------------------------------------------- */

static char directory[] = "/tmp/pd-model-XXXXXX";
static char path[sizeof(directory) + 16];

static int make_directory(void **state)
{
    (void)state;
    if (!mkdtemp(directory))
        return -1;
    snprintf(path, sizeof(path), "%s/tiny.gguf", directory);
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(directory);
}

static void write_bytes(const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    fclose(file);
}

/* The tiny llama, with a chat template unless NULL, cut by `cut` bytes. */
static void write_tiny(uint64_t seed, const char *template, size_t cut)
{
    struct gguf_file file = {0};
    struct bytes bytes;

    gguf_tiny_llama(&file, seed);
    if (template)
        gguf_key_string(&file, "tokenizer.chat_template", template);
    gguf_finish(&file, &bytes);
    write_bytes(bytes.data, bytes.size - cut);
    bytes_free(&bytes);
}

static void assert_open_fails(int status, const char *words)
{
    struct pd_error error = {PD_OK, ""};
    struct pd_model_files *files;

    assert_int_equal(pd_model_files_open(path, &files, &error), status);
    assert_null(files);
    if (!strstr(error.text, "tiny.gguf") || !strstr(error.text, words))
        fail_msg("\"%s\" is not in \"%s\"", words, error.text);
}

static void test_a_file_is_verified_without_a_device(void **state)
{
    struct pd_model_files *files;
    struct pd_tokens tokens = {0};
    struct pd_error error = {PD_OK, ""};

    (void)state;
    write_tiny(1, "{{ messages[0].content }}", 0);
    if (pd_model_files_open(path, &files, &error) != PD_OK)
        fail_msg("%s", error.text);
    assert_int_equal(pd_model_files_config(files)->vocabulary, TINY_VOCABULARY);
    assert_true(pd_model_files_config(files)->weight_bytes >
                sizeof(float) * TINY_VOCABULARY * TINY_HIDDEN);
    assert_non_null(pd_model_files_template(files));
    assert_int_equal(pd_tokenizer_encode(pd_model_files_tokenizer(files), "A<|im_end|>\n", 12, NULL,
                                         0, 10, &tokens, &error),
                     PD_OK);
    assert_int_equal(tokens.count, 3);
    assert_int_equal(tokens.ids[0], 3 + 'A');
    assert_int_equal(tokens.ids[1], 2);
    assert_int_equal(tokens.ids[2], 3 + '\n');
    pd_tokens_free(&tokens);
    pd_model_files_close(files);
}

static void test_no_template_is_no_error(void **state)
{
    struct pd_model_files *files;

    (void)state;
    write_tiny(1, NULL, 0);
    assert_int_equal(pd_model_files_open(path, &files, NULL), PD_OK);
    assert_null(pd_model_files_template(files));
    pd_model_files_close(files);
}

static void test_faults_are_named(void **state)
{
    struct pd_error error;
    struct pd_model_files *files;

    (void)state;
    write_tiny(1, "{% nonsense %}", 0);
    assert_open_fails(PD_UNSUPPORTED, "chat template");
    write_tiny(1, NULL, 1);
    assert_open_fails(PD_INVALID, "tensor blk.1.ffn_down.weight: ");
    write_bytes("", 0);
    assert_open_fails(PD_INVALID, "empty");
    unlink(path);
    assert_open_fails(PD_NOT_FOUND, "No such file");
    assert_int_equal(pd_model_files_open(directory, &files, &error), PD_NOT_FOUND);
    assert_non_null(strstr(error.text, "model.safetensors"));
}

/* ---- on a device ------------------------------------------------------------------------------- */

enum { LENGTH = 100 };

static void fill_ids(int32_t ids[LENGTH])
{
    for (int i = 0; i < LENGTH; i++)
        ids[i] = (i * 89 + i * i % 7) % TINY_VOCABULARY;
}

/* Logits of every position, in chunks of `chunk`. */
static float *logits_of(const char *kind, int threads, int chunk)
{
    float *logits = calloc((size_t)LENGTH * TINY_VOCABULARY, sizeof(*logits));
    int32_t ids[LENGTH];
    struct model_run run;

    assert_non_null(logits);
    fill_ids(ids);
    model_run_open(&run, path, kind, PD_PRECISION_F32, threads, 0);
    for (int from = 0; from < LENGTH; from += chunk) {
        int count = LENGTH - from < chunk ? LENGTH - from : chunk;
        int wanted[MODEL_RUN_SAMPLES];

        for (int i = 0; i < count; i++)
            wanted[i] = from + i;
        model_run_step(&run, ids, from, count, wanted, count,
                       logits + (size_t)from * TINY_VOCABULARY, NULL);
    }
    model_run_close(&run);
    return logits;
}

static void test_chunks_and_threads_do_not_change_a_bit(void **state)
{
    static const char *const kinds[] = {"reference", "cpu"};
    static const int chunks[] = {1, 16, 23, MODEL_RUN_SAMPLES};

    (void)state;
    write_tiny(1, NULL, 0);
    for (size_t k = 0; k < 2; k++) {
        float *expected = logits_of(kinds[k], 1, 1);

        for (size_t i = 0; i < 4; i++) {
            float *other = logits_of(kinds[k], 1 + (int)i % 3, chunks[i]);

            assert_memory_equal(expected, other,
                                (size_t)LENGTH * TINY_VOCABULARY * sizeof(*expected));
            free(other);
        }
        free(expected);
    }
}

/* Made, found, and made without, since a reference device packs nothing: always the same bits. */
static void test_shared_weights_do_not_change_a_bit(void **state)
{
    static const char *const kinds[] = {"cpu", "cpu", "reference"};
    static char folder[sizeof(directory) + 16];
    char command[sizeof(folder) + 40];

    (void)state;
    write_tiny(1, NULL, 0);
    snprintf(folder, sizeof(folder), "%s/weights", directory);
    for (size_t k = 0; k < 3; k++) {
        float *expected = logits_of(kinds[k], 1, MODEL_RUN_SAMPLES), *other;

        model_run_weight_cache = folder;
        other = logits_of(kinds[k], 2, MODEL_RUN_SAMPLES);
        model_run_weight_cache = NULL;
        assert_memory_equal(expected, other, (size_t)LENGTH * TINY_VOCABULARY * sizeof(*expected));
        free(expected);
        free(other);
    }
    snprintf(command, sizeof(command), "ls '%s' | grep -qx '[0-9a-f]*\\.pdw'", folder);
    assert_int_equal(system(command), 0);
    snprintf(command, sizeof(command), "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
}

struct telling {
    uint64_t done, total;
    int calls;
};

static void tell(void *context, const char *stage, uint64_t done, uint64_t total)
{
    struct telling *telling = context;

    assert_string_equal(stage, "weights");
    assert_true(done >= telling->done && done <= total);
    telling->done = done;
    telling->total = total;
    telling->calls++;
}

static struct pd_model_options options_for(const struct model_run *run, struct pd_kv_pool *pool)
{
    *pool = run->pool[0];
    return (struct pd_model_options){.max_model_len = TINY_CONTEXT,
                                     .max_tokens = MODEL_RUN_TOKENS,
                                     .max_seqs = MODEL_RUN_SAMPLES,
                                     .pool = pool,
                                     .threads = 2};
}

static void test_progress_and_logits_are_optional(void **state)
{
    struct telling telling = {0};
    struct model_run run;
    struct pd_kv_pool pool;
    struct pd_model_options options;
    struct pd_model *model;

    (void)state;
    write_tiny(1, NULL, 0);
    model_run_open(&run, path, "reference", PD_PRECISION_F32, 1, 0);
    options = options_for(&run, &pool);
    options.progress = tell;
    options.context = &telling;
    assert_int_equal(pd_model_load(run.files, run.device, &options, &model, NULL), PD_OK);
    assert_true(telling.calls > 0);
    assert_int_equal(telling.done, telling.total);
    assert_int_equal(telling.total, run.config->weight_bytes);
    assert_null(pd_model_logits(model));
    assert_non_null(pd_model_logits(run.model));
    pd_model_destroy(model);
    model_run_close(&run);
}

static void test_options_must_fit_the_model(void **state)
{
    struct model_run run;
    struct pd_kv_pool pool;
    struct pd_model_options options;
    struct pd_model *model;
    struct pd_error error;

    (void)state;
    write_tiny(1, NULL, 0);
    model_run_open(&run, path, "reference", PD_PRECISION_F32, 1, 0);
    options = options_for(&run, &pool);
    options.max_model_len = TINY_CONTEXT + 1;
    assert_int_equal(pd_model_load(run.files, run.device, &options, &model, &error), PD_INVALID);
    assert_non_null(strstr(error.text, "257 tokens"));
    assert_null(model);
    options = options_for(&run, &pool);
    pool.layers--;
    assert_int_equal(pd_model_load(run.files, run.device, &options, &model, &error), PD_INVALID);
    options = options_for(&run, &pool);
    pool.kv_heads++;
    assert_int_equal(pd_model_load(run.files, run.device, &options, &model, &error), PD_INVALID);
    options = options_for(&run, &pool);
    pool.head_dim *= 2;
    assert_int_equal(pd_model_load(run.files, run.device, &options, &model, &error), PD_INVALID);
    assert_non_null(strstr(error.text, "KV pool"));
    options = options_for(&run, &pool);
    options.max_seqs = 0;
    assert_int_equal(pd_model_load(run.files, run.device, &options, &model, &error), PD_INVALID);
    model_run_close(&run);
}

static struct pd_fingerprint fingerprint_of(uint64_t seed, const char *template, int threads)
{
    struct pd_fingerprint fingerprint;
    struct model_run run;

    write_tiny(seed, template, 0);
    model_run_open(&run, path, "reference", PD_PRECISION_F32, threads, 0);
    fingerprint = *pd_model_fingerprint(run.model);
    model_run_close(&run);
    return fingerprint;
}

static void test_fingerprints(void **state)
{
    struct pd_fingerprint first = fingerprint_of(1, "{{ 1 }}", 1);
    struct pd_fingerprint again = fingerprint_of(1, "{{ 1 }}", 4);
    struct pd_fingerprint weights = fingerprint_of(2, "{{ 1 }}", 2);
    struct pd_fingerprint template = fingerprint_of(1, "{{ 2 }}", 2);

    (void)state;
    assert_memory_equal(&first, &again, sizeof(first));
    assert_memory_not_equal(first.weights, weights.weights, PD_DIGEST);
    assert_memory_equal(first.tokenizer, weights.tokenizer, PD_DIGEST);
    assert_memory_equal(first.chat_template, weights.chat_template, PD_DIGEST);
    assert_memory_equal(first.layout, weights.layout, PD_DIGEST);
    assert_memory_equal(first.weights, template.weights, PD_DIGEST);
    assert_memory_not_equal(first.chat_template, template.chat_template, PD_DIGEST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_is_verified_without_a_device),
        cmocka_unit_test(test_no_template_is_no_error),
        cmocka_unit_test(test_faults_are_named),
        cmocka_unit_test(test_chunks_and_threads_do_not_change_a_bit),
        cmocka_unit_test(test_progress_and_logits_are_optional),
        cmocka_unit_test(test_options_must_fit_the_model),
        cmocka_unit_test(test_shared_weights_do_not_change_a_bit),
        cmocka_unit_test(test_fingerprints),
    };

    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
