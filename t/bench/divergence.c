/* How far products with rounded x take a model from float32: the mean Kullback-Leibler divergence of the next
 * token's distribution, over every position of the reference texts, each read as it is. The float32 side is
 * our own, which test_logits holds to within 0.001 of transformers.
 *
 *     divergence MODEL                     from the top of the tree
 *     divergence MODEL IDS [PRECISION]     of the texts in a file: a JSON list of lists of ids, the second half of
 *                                          each, as llama-perplexity looks at its chunks; auto, int8,
 *                                          int12 or bf16
 *
 * Prints one line of JSON: positions, the mean, the largest, how often the most likely token differs, at how
 * many positions it is clear (more than MARGIN ahead of the next in float32), and how often it differs there. */
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

#include "t/unit/model_run.h"

enum { TEXT_MAX = 2048 };

static const float MARGIN = 0.2f;

struct sums {
    double total, greatest;
    int positions, other, clear, other_clear;
};

/* Log of the sum of exponentials. */
static double normalizer(const float *logits, int count)
{
    double greatest = logits[0], sum = 0;

    for (int i = 1; i < count; i++)
        greatest = logits[i] > greatest ? logits[i] : greatest;
    for (int i = 0; i < count; i++)
        sum += exp(logits[i] - greatest);
    return greatest + log(sum);
}

static void compare(const float *exact, const float *rounded, int count, struct sums *sums)
{
    double of_exact = normalizer(exact, count), of_rounded = normalizer(rounded, count), kl = 0;
    int best = 0, best_rounded = 0;
    float next = -INFINITY; /* the best of all but `best` */

    for (int i = 0; i < count; i++) {
        double p = exact[i] - of_exact;

        kl += exp(p) * (p - (rounded[i] - of_rounded));
        if (i > 0 && exact[i] > exact[best]) {
            next = exact[best];
            best = i;
        } else if (i > 0 && exact[i] > next) {
            next = exact[i];
        }
        best_rounded = rounded[i] > rounded[best_rounded] ? i : best_rounded;
    }
    sums->total += kl;
    sums->greatest = kl > sums->greatest ? kl : sums->greatest;
    sums->positions++;
    sums->other += best != best_rounded;
    sums->clear += exact[best] - next > MARGIN;
    sums->other_clear += exact[best] - next > MARGIN && best != best_rounded;
}

static int read_ids(const json_t *text, int32_t *ids)
{
    static const char *const lists[] = {"ids", "greedy"};
    int count = 0;

    for (int i = 0; i < 2; i++) {
        const json_t *list = json_object_get(text, lists[i]);

        for (size_t j = 0; j < json_array_size(list) && count < TEXT_MAX; j++)
            ids[count++] = (int32_t)json_integer_value(json_array_get(list, j));
    }
    return count;
}

/* Positions from `first` on count. */
static void read_text(struct model_run runs[2], const int32_t *ids, int count, int first,
                      float *logits[2], struct sums *sums)
{
    int vocabulary = runs[0].config->vocabulary;

    for (int from = 0; from < count; from += MODEL_RUN_SAMPLES) {
        int n = count - from < MODEL_RUN_SAMPLES ? count - from : MODEL_RUN_SAMPLES;
        int wanted[MODEL_RUN_SAMPLES];

        for (int i = 0; i < n; i++)
            wanted[i] = from + i;
        for (int i = 0; i < 2; i++)
            model_run_step(&runs[i], ids, from, n, wanted, n, logits[i], NULL);
        for (int i = from < first ? first - from : 0; i < n; i++)
            compare(logits[0] + (size_t)i * (size_t)vocabulary,
                    logits[1] + (size_t)i * (size_t)vocabulary, vocabulary, sums);
    }
}

/* A text is an object of the references, or a list of ids. */
static void read_texts(struct model_run runs[2], const json_t *texts, float *logits[2],
                       struct sums *sums)
{
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        int32_t ids[TEXT_MAX];
        int count = 0;

        if (json_is_object(text)) {
            count = read_ids(text, ids);
            read_text(runs, ids, count, 0, logits, sums);
            continue;
        }
        for (size_t j = 0; j < json_array_size(text) && count < TEXT_MAX; j++)
            ids[count++] = (int32_t)json_integer_value(json_array_get(text, j));
        read_text(runs, ids, count, count / 2, logits, sums);
    }
}

/* Returns whether `name` is one. */
static bool find_precision(const char *name, enum pd_precision *precision)
{
    static const char *const names[] = {[PD_PRECISION_INT8] = "int8",
                                        [PD_PRECISION_INT12] = "int12",
                                        [PD_PRECISION_BF16] = "bf16",
                                        [PD_PRECISION_AUTO] = "auto"};

    for (int i = PD_PRECISION_INT8; i <= PD_PRECISION_AUTO; i++) {
        if (strcmp(names[i], name) == 0)
            *precision = (enum pd_precision)i;
    }
    return *precision != PD_PRECISION_F32;
}

int main(int count, char **arguments)
{
    enum pd_precision precisions[] = {PD_PRECISION_F32, PD_PRECISION_F32};
    json_t *root = json_load_file(count >= 3 ? arguments[2] : "t/oracle/logits.json", 0, NULL);
    const json_t *texts = json_is_array(root) ? root : json_object_get(root, "prompts");
    struct sums sums = {0};
    struct model_run runs[2];
    float *logits[2];

    if (count < 2 || count > 4 || root == NULL ||
        !find_precision(count == 4 ? arguments[3] : "auto", &precisions[1])) {
        fprintf(stderr, "usage: divergence MODEL [IDS [auto|int8|int12|bf16]] (from the top of the "
                        "tree)\n");
        return 2;
    }
    for (int i = 0; i < 2; i++) {
        model_run_open(&runs[i], arguments[1], "cpu", precisions[i], 2, TEXT_MAX);
        logits[i] = malloc(MODEL_RUN_SAMPLES * (size_t)runs[i].config->vocabulary * sizeof(float));
        if (logits[i] == NULL)
            return 1;
    }
    read_texts(runs, texts, logits, &sums);
    printf("{\"positions\": %d, \"mean\": %.3g, \"greatest\": %.3g, \"other_token\": %d, "
           "\"clear\": %d, \"other_token_clear\": %d}\n",
           sums.positions, sums.total / sums.positions, sums.greatest, sums.other, sums.clear,
           sums.other_clear);
    for (int i = 0; i < 2; i++) {
        model_run_close(&runs[i]);
        free(logits[i]);
    }
    json_decref(root);
    return 0;
}
