/* Logits and greedy continuations against transformers in float32 (logits.json, made by logits.py).
 *
 * Every reference text, prompt and continuation, is fed as it is, so one wrong token does not hide
 * what comes after it. At each generated position our greedy token must be the reference's wherever
 * the reference's margin between its best two exceeds another; the logits of the listed positions
 * must lie within a tolerance. The largest error seen is printed.
 *
 *   PD_MODEL        the GGUF that logits.json was made of
 *   PD_TINY_MODELS  the directory that tiny_models.py wrote
 *   PD_DEVICE       kind of device, "cpu" if unset; "cuda" multiplies in f16 and is allowed more
 *   PD_TEXTS        how many of SmolLM2's texts to ask, all if unset
 *   PD_ONLY         one test by its name, all if unset */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "t/unit/kernel_rig.h"
#include "t/unit/model_run.h"

static const char reference_file[] = "t/oracle/logits.json";

/* Largest distance of a logit from the reference's, and the margin from which a greedy token is
 * binding: it takes two errors of `logit` to swap two tokens. */
static const struct tolerance {
    double logit, margin;
} FLOAT = {0.001, 0.002}, HALF = {0.1, 0.2}, ATTENTION = {0.4, 0.2}, BF16 = {0.6, 0.2},
  BYTES = {1, 0.4};

enum { TEXT_MAX = 2048 };

struct tally {
    const struct tolerance *tolerance;
    double worst;
    char where[96]; /* of the worst */
    int logits, tokens, skipped;
};

static const char *device_kind(void)
{
    return getenv("PD_DEVICE") ? getenv("PD_DEVICE") : "cpu";
}

static bool is_cuda(void)
{
    return strcmp(device_kind(), "cuda") == 0;
}

/* 12 bits are held to what half floats are. Eight move single logits, of tokens far from being chosen, further
 * than they may move the greedy token; bench-engine has their divergence. Bytes move a rare greedy one, too, and
 * which depends on how attention is computed. */
static const struct tolerance *tolerance(enum pd_precision precision)
{
    if (precision == PD_PRECISION_INT8)
        return &BYTES;
    if (precision == PD_PRECISION_BF16)
        return &BF16;
    return is_cuda() || precision == PD_PRECISION_INT12 ? &HALF : &FLOAT;
}

/* Attention in bf16 beside products in 12 bits moves single logits, too. */
static bool attends_in_bf16(const struct model_run *run)
{
    struct pd_device_info info;

    pd_device_describe(run->device, &info);
    return strstr(info.numerics, "attention=bf16") != NULL;
}

/* ---- one reference text ------------------------------------------------------------------------
 */

struct text {
    const char *name;
    int32_t ids[TEXT_MAX];
    int count, prompt;
};

static void append_ids(struct text *text, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        assert_true(text->count < TEXT_MAX);
        text->ids[text->count++] = (int32_t)json_integer_value(json_array_get(list, i));
    }
}

static struct text read_text(const json_t *reference)
{
    struct text text = {.name = json_string_value(json_object_get(reference, "name"))};

    append_ids(&text, json_object_get(reference, "ids"));
    text.prompt = text.count;
    append_ids(&text, json_object_get(reference, "greedy"));
    assert_true(text.prompt > 0 && text.count > text.prompt);
    return text;
}

static void check_logit(const struct text *text, int at, int id, double ours, double theirs,
                        struct tally *tally)
{
    double error = fabs(ours - theirs);

    tally->logits++;
    if (error <= tally->worst)
        return;
    tally->worst = error;
    snprintf(tally->where, sizeof(tally->where), "%s, position %d, token %d", text->name, at, id);
}

/* A row's best logits, or all of them in units of 1e-5. */
static void check_logits(const struct text *text, const json_t *entry, int at, const float *row,
                         int vocabulary, struct tally *tally)
{
    const json_t *top = json_object_get(entry, "top"), *all = json_object_get(entry, "all");

    for (size_t i = 0; i < json_array_size(top); i++) {
        const json_t *pair = json_array_get(top, i);
        int id = (int)json_integer_value(json_array_get(pair, 0));

        check_logit(text, at, id, (double)row[id], json_number_value(json_array_get(pair, 1)),
                    tally);
    }
    assert_true(top || (int)json_array_size(all) == vocabulary);
    for (size_t i = 0; i < json_array_size(all); i++)
        check_logit(text, at, (int)i, (double)row[i],
                    json_number_value(json_array_get(all, i)) * 1e-5, tally);
}

/* The row that position `at` gave, where the reference lists it. */
static void check_position(const struct text *text, const json_t *reference, int at,
                           const float *row, int vocabulary, int32_t sampled, struct tally *tally)
{
    const json_t *list = json_object_get(reference, "logits");
    const json_t *margins = json_object_get(reference, "margins");

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);

        if (json_integer_value(json_object_get(entry, "at")) == at)
            check_logits(text, entry, at, row, vocabulary, tally);
    }
    if (at < text->prompt - 1 || at >= text->count - 1)
        return;
    if (json_number_value(json_array_get(margins, (size_t)(at - text->prompt + 1))) <=
        tally->tolerance->margin) {
        tally->skipped++;
        return;
    }
    tally->tokens++;
    if (sampled != text->ids[at + 1])
        fail_msg("%s, position %d: token %d, the reference has %d", text->name, at, (int)sampled,
                 (int)text->ids[at + 1]);
}

static bool is_wanted(const struct text *text, const json_t *reference, int at)
{
    const json_t *list = json_object_get(reference, "logits");

    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_object_get(json_array_get(list, i), "at")) == at)
            return true;
    return at >= text->prompt - 1;
}

/* Feeds the whole text in steps of `chunk` and checks what it can. */
static void check_text(struct model_run *run, const json_t *reference, int chunk,
                       struct tally *tally)
{
    struct text text = read_text(reference);
    size_t vocabulary = (size_t)run->config->vocabulary;
    float *logits = calloc(MODEL_RUN_SAMPLES * vocabulary, sizeof(*logits));
    int32_t sampled[MODEL_RUN_SAMPLES];

    assert_non_null(logits);
    for (int from = 0; from < text.count; from += chunk) {
        int count = text.count - from < chunk ? text.count - from : chunk;
        int wanted[MODEL_RUN_SAMPLES], wanted_count = 0;

        for (int at = from; at < from + count; at++)
            if (is_wanted(&text, reference, at))
                wanted[wanted_count++] = at;
        model_run_step(run, text.ids, from, count, wanted, wanted_count, logits, sampled);
        for (int i = 0; i < wanted_count; i++)
            check_position(&text, reference, wanted[i], logits + (size_t)i * vocabulary,
                           (int)vocabulary, sampled[i], tally);
    }
    free(logits);
}

static void report(const char *name, const struct tally *tally)
{
    print_message(
        "# %s: %d greedy tokens equal (%d more within a margin of %g), %d logits, largest "
        "error %.2g (%s)\n",
        name, tally->tokens, tally->skipped, tally->tolerance->margin, tally->logits, tally->worst,
        tally->where);
    assert_true(tally->tokens > 0 && tally->logits > 0);
    assert_true(tally->worst <= tally->tolerance->logit);
}

/* ---- the models --------------------------------------------------------------------------------
 */

static json_t *load_reference(void)
{
    json_error_t error;
    json_t *root = json_load_file(reference_file, 0, &error);

    if (!root)
        fail_msg("%s: %s (run from the top of the tree)", reference_file, error.text);
    return root;
}

static const char *path_or_skip(const char *variable)
{
    const char *path = getenv(variable);

    if (!path) {
        print_message("# SKIPPED: %s is not set; `make check-oracle` sets it\n", variable);
        skip();
    }
    return path;
}

/* fingerprint.py computed it too. */
static void check_fingerprint(const struct model_run *run, const json_t *root)
{
    const uint8_t *digest = pd_model_fingerprint(run->model)->weights;
    char text[2 * PD_DIGEST + 1];

    for (int i = 0; i < PD_DIGEST; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    assert_string_equal(text, json_string_value(json_object_get(root, "fingerprint")));
}

static size_t text_count(void)
{
    return getenv("PD_TEXTS") ? (size_t)atoi(getenv("PD_TEXTS")) : SIZE_MAX;
}

static void check_smollm2(const char *name, enum pd_precision precision)
{
    const char *path = path_or_skip("PD_MODEL");
    json_t *root = load_reference(), *texts = json_object_get(root, "prompts");
    struct tally tally = {.tolerance = tolerance(precision)};
    struct model_run run;

    model_run_open(&run, path, device_kind(), precision, 2, TEXT_MAX);
    if (precision == PD_PRECISION_INT12 && attends_in_bf16(&run))
        tally.tolerance = &ATTENTION;
    check_fingerprint(&run, root);
    assert_true(json_array_size(texts) >= 20);
    for (size_t i = 0; i < json_array_size(texts) && i < text_count(); i++)
        check_text(&run, json_array_get(texts, i), MODEL_RUN_SAMPLES, &tally);
    check_text(&run, json_array_get(texts, 0), 1, &tally); /* a token at a time */
    model_run_close(&run);
    report(name, &tally);
    json_decref(root);
}

static void test_smollm2(void **state)
{
    (void)state;
    check_smollm2("SmolLM2-135M-Instruct Q4_1", PD_PRECISION_F32);
}

static void test_smollm2_int8(void **state)
{
    (void)state;
    if (is_cuda())
        skip(); /* it has no such choice */
    check_smollm2("SmolLM2-135M-Instruct Q4_1, int8", PD_PRECISION_INT8);
}

static void test_smollm2_int12(void **state)
{
    (void)state;
    if (is_cuda())
        skip(); /* it has no such choice */
    check_smollm2("SmolLM2-135M-Instruct Q4_1, int12", PD_PRECISION_INT12);
}

static void test_smollm2_bf16(void **state)
{
    (void)state;
    if (is_cuda() || !pd_rig_has("amx", PD_PRECISION_BF16))
        skip();
    check_smollm2("SmolLM2-135M-Instruct Q4_1, bf16", PD_PRECISION_BF16);
}

/* One form of a tiny model, its texts in chunks of several sizes. */
static void check_tiny(const json_t *texts, const char *path)
{
    struct tally tally = {.tolerance = tolerance(PD_PRECISION_F32)};
    struct model_run run;

    model_run_open(&run, path, device_kind(), PD_PRECISION_F32, 2, 0);
    assert_true(json_array_size(texts) > 0);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        check_text(&run, json_array_get(texts, i), 1, &tally);
        check_text(&run, json_array_get(texts, i), 7, &tally);
        check_text(&run, json_array_get(texts, i), MODEL_RUN_SAMPLES, &tally);
    }
    model_run_close(&run);
    report(path, &tally);
}

static void test_tiny(void **state)
{
    const char *name = *state, *directory = path_or_skip("PD_TINY_MODELS");
    json_t *root = load_reference(), *texts = json_object_get(json_object_get(root, "tiny"), name);
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s", directory, name);
    check_tiny(texts, path);
    snprintf(path, sizeof(path), "%s/%s.gguf", directory, name);
    check_tiny(texts, path);
    json_decref(root);
}

#define TINY(model)                                                                                \
    {                                                                                              \
        model, test_tiny, NULL, NULL, (void *)(uintptr_t)(model)                                   \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        TINY("tiny-llama"),
        TINY("tiny-llama2"),
        TINY("tiny-smollm2"),
        TINY("tiny-mistral"),
        TINY("tiny-qwen2"),
        TINY("tiny-qwen2-window"),
        TINY("tiny-qwen3"),
        cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_smollm2_int8),
        cmocka_unit_test(test_smollm2_int12),
        cmocka_unit_test(test_smollm2_bf16),
    };

    cmocka_set_test_filter(getenv("PD_ONLY"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
