/* Whole steps of two models' shapes, with weights of no meaning: how near the device's ceilings
 * decoding, prefill and attention come. The shapes are those of t/device/shapes/. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "t/device/stage.h"

struct shape {
    const char *name;
    int hidden, feed_forward, layers, heads, kv_heads, head_dim, vocabulary;
    bool qkv_bias;
};

static const struct shape shapes[] = {
    {"llama-3.1-8b", 4096, 14336, 32, 32, 8, 128, 128256, false},
    {"qwen2.5-7b", 3584, 18944, 28, 28, 4, 128, 152064, true},
};
static const struct shape small_shapes[] = {
    {"small llama", 128, 256, 2, 4, 2, 32, 256, false},
    {"small qwen", 128, 192, 2, 4, 1, 32, 256, true},
};

enum { BLOCK = 16, SEQS = 64, TIMES = 5 };

struct bench {
    const struct shape *shape;
    struct pd_device *device;
    struct pd_graph *step, *attention; /* the whole, and its attention alone */
    struct pd_kv_pool pool;
    uint16_t *noise; /* bf16, as many values as the largest matrix */
    double copy, matmul;
    int context; /* tokens that a sequence of the pool has room for */
};

static void check(const struct bench *bench, const char *what, int status)
{
    if (status == PD_KERNEL_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", bench->shape->name, what, pd_device_error(bench->device));
    exit(1);
}

/* ---- recording --------------------------------------------------------------------------------- */

/* Small values, the same million over and over: no product may find a zero or a NaN to be quick
 * with. */
static void make_noise(struct bench *bench)
{
    const struct shape *shape = bench->shape;
    size_t rows = (size_t)shape->vocabulary, ffn = 2 * (size_t)shape->feed_forward;
    size_t values = (rows > ffn ? rows : ffn) * (size_t)shape->hidden, first = (size_t)1 << 20;
    uint64_t state = 88172645463325252u;

    bench->noise = malloc(values * sizeof(*bench->noise));
    if (bench->noise == NULL)
        exit(1);
    for (size_t i = 0; i < values && i < first; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bench->noise[i] = (uint16_t)(0x3c00 | (state >> 33 & 0x80ff)); /* +-0.0078 to 0.031 */
    }
    for (size_t at = first; at < values; at += first)
        memcpy(bench->noise + at, bench->noise,
               (values - at < first ? values - at : first) * sizeof(*bench->noise));
}

static struct pd_weight *weight(struct bench *bench, enum pd_weight_layout layout, int rows,
                                int cols, bool embedding)
{
    bool pair = layout == PD_WEIGHT_GATE_UP;
    struct pd_weight_source sources[2] = {{bench->noise, PD_BF16, pair ? rows / 2 : rows},
                                          {bench->noise, PD_BF16, rows / 2}};
    struct pd_weight *made;

    check(bench, "a weight",
          pd_weight_create(bench->device, layout, cols, sources, pair ? 2 : 1, embedding, &made));
    return made;
}

static struct pd_tensor tensor(struct bench *bench, int rows, int cols)
{
    struct pd_tensor made;

    check(bench, "an activation", pd_tensor_create(bench->device, rows, cols, &made));
    return made;
}

static void record_layer(struct bench *bench, const struct pd_attention_shape *attention, int layer,
                         const struct pd_tensor *t)
{
    const struct shape *s = bench->shape;
    int queries = s->heads * s->head_dim, qkv = queries + 2 * s->kv_heads * s->head_dim;
    struct pd_graph *g = bench->step;
    struct pd_weight *bias = s->qkv_bias ? weight(bench, PD_WEIGHT_ROWS, 1, qkv, false) : NULL;

    pd_op_rmsnorm(g, t[0], weight(bench, PD_WEIGHT_ROWS, 1, s->hidden, false), 1e-5f, false, t[1]);
    pd_op_matmul(g, weight(bench, PD_WEIGHT_ROWS, qkv, s->hidden, false), t[1], bias,
                 PD_EPILOGUE_NONE, false, t[2]);
    pd_op_rope_store(g, t[2], attention, &bench->pool, layer);
    pd_op_publish(g, layer + 1);
    pd_op_attention(g, t[2], attention, &bench->pool, layer, t[3]);
    pd_op_matmul(g, weight(bench, PD_WEIGHT_ROWS, s->hidden, queries, false), t[3], NULL,
                 PD_EPILOGUE_ADD, false, t[0]);
    pd_op_rmsnorm(g, t[0], weight(bench, PD_WEIGHT_ROWS, 1, s->hidden, false), 1e-5f, false, t[1]);
    pd_op_matmul(g, weight(bench, PD_WEIGHT_GATE_UP, 2 * s->feed_forward, s->hidden, false), t[1],
                 NULL, PD_EPILOGUE_SWIGLU, false, t[4]);
    pd_op_matmul(g, weight(bench, PD_WEIGHT_ROWS, s->hidden, s->feed_forward, false), t[4], NULL,
                 PD_EPILOGUE_ADD, false, t[0]);
    pd_op_attention(bench->attention, t[2], attention, &bench->pool, layer, t[3]);
}

static void record(struct bench *bench, int tokens)
{
    const struct shape *s = bench->shape;
    int queries = s->heads * s->head_dim;
    float frequencies[128];
    const struct pd_attention_shape attention = {.heads = s->heads,
                                                 .kv_heads = s->kv_heads,
                                                 .head_dim = s->head_dim,
                                                 .rope_dim = s->head_dim,
                                                 .rope_style = PD_ROPE_HALF,
                                                 .inverse_frequency = frequencies,
                                                 .attention_factor = 1,
                                                 .scale = 1 / sqrtf((float)s->head_dim)};
    const struct pd_tensor t[] = {
        tensor(bench, tokens, s->hidden),
        tensor(bench, tokens, s->hidden),
        tensor(bench, tokens, queries + 2 * s->kv_heads * s->head_dim),
        tensor(bench, tokens, queries),
        tensor(bench, tokens, s->feed_forward),
    };
    struct pd_tensor sampled = tensor(bench, SEQS, s->hidden);
    struct pd_tensor logits = tensor(bench, SEQS, s->vocabulary);

    for (int i = 0; i < s->head_dim / 2; i++)
        frequencies[i] = powf(500000.0f, -2.0f * (float)i / (float)s->head_dim);
    check(bench, "recording", pd_graph_begin(bench->device, &bench->step));
    check(bench, "recording", pd_graph_begin(bench->device, &bench->attention));
    pd_op_embed(bench->step, weight(bench, PD_WEIGHT_ROWS, s->vocabulary, s->hidden, true), t[0]);
    for (int layer = 0; layer < s->layers; layer++)
        record_layer(bench, &attention, layer, t);
    pd_op_gather(bench->step, t[0], sampled);
    pd_op_matmul(bench->step, weight(bench, PD_WEIGHT_ROWS, s->vocabulary, s->hidden, false),
                 sampled, NULL, PD_EPILOGUE_NONE, true, logits);
    pd_op_sample(bench->step, logits);
    check(bench, "recording", pd_graph_end(bench->step));
    check(bench, "recording", pd_graph_end(bench->attention));
}

static void open_bench(struct bench *bench, int tokens)
{
    const struct shape *s = bench->shape;
    const struct pd_device_options options = {.kind = "cuda",
                                              .cuda_enable = "all",
                                              .max_tokens = tokens,
                                              .max_seqs = SEQS,
                                              .max_model_len = 2 * tokens,
                                              .block_size = BLOCK,
                                              .vocabulary = s->vocabulary};
    char error[256];

    if (pd_device_open(&options, &bench->device, error, sizeof(error)) != PD_KERNEL_OK) {
        fprintf(stderr, "%s\n", error);
        exit(1);
    }
    bench->pool = (struct pd_kv_pool){.layers = s->layers,
                                      .kv_heads = s->kv_heads,
                                      .block_size = BLOCK,
                                      .head_dim = s->head_dim,
                                      .blocks = (int64_t)SEQS * bench->context / BLOCK,
                                      .type = PD_F16};
    check(bench, "a pool",
          pd_buffer_create(bench->device, PD_BUFFER_KV, pd_kv_pool_bytes(&bench->pool),
                           &bench->pool.buffer));
    make_noise(bench);
    record(bench, tokens);
    free(bench->noise);
}

/* ---- running ----------------------------------------------------------------------------------- */

/* `sequences` that have `rows` new tokens each behind `before` others. */
static struct pd_step *fill(struct bench *bench, int sequences, int before, int rows)
{
    struct pd_step *step;

    check(bench, "a step", pd_step_acquire(bench->device, &step));
    for (int s = 0; s < sequences; s++) {
        int first = s * (bench->context / BLOCK), end = before + rows;

        step->slot[s] = step->sample_slot[s] = s;
        step->first[s] = step->tokens;
        step->length[s] = rows;
        step->context[s] = end;
        for (int b = 0; b * BLOCK < end; b++)
            step->blocks[s * step->max_blocks + b] = first + b;
        for (int i = 0; i < rows; i++) {
            int row = step->tokens++, at = before + i;

            step->token[row] = (row * 31 + s) % bench->shape->vocabulary;
            step->position[row] = at;
            step->sequence[row] = s;
            step->kv_slot[row] = first * BLOCK + at;
        }
        step->sample_row[s] = step->tokens - 1;
        step->sample[s] =
            (struct pd_sample_params){.top_p = 1, .repetition = 1, .history = end, .prompt = end};
    }
    step->sequences = step->samples = sequences;
    return step;
}

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

/* Seconds of one step, the median of a few; each waits for the one before. */
static double time_step(struct bench *bench, struct pd_graph *graph, int sequences, int before,
                        int rows)
{
    double seconds[TIMES + 2];

    for (int i = 0; i < TIMES + 2; i++) {
        struct pd_step *step = fill(bench, sequences, before, rows);
        double start = pd_stage_seconds();

        check(bench, "launching", pd_graph_launch(graph, step));
        check(bench, "waiting", pd_step_wait(bench->device, step->number, 60000));
        seconds[i] = pd_stage_seconds() - start;
    }
    qsort(seconds + 2, TIMES, sizeof(seconds[0]), by_value); /* the first two record and load */
    return seconds[2 + TIMES / 2];
}

static double layer_values(const struct shape *s)
{
    double head = s->head_dim;

    return (double)s->hidden * (2 * s->heads * head + 2 * s->kv_heads * head) +
           3.0 * s->hidden * s->feed_forward;
}

/* What an H200 is to reach: shares of the copy bandwidth; of prefill, operations a second. */
static const double GOAL_ONE = 0.80, GOAL_MANY = 0.70, GOAL_ATTENTION = 0.85, GOAL_PREFILL = 475;

static void figure(const struct bench *bench, const char *what, const char *unit, double value,
                   double ceiling, double goal)
{
    char name[96];

    snprintf(name, sizeof(name), "%s: %s", bench->shape->name, what);
    pd_stage_figure_to_reach(name, unit, value, ceiling, goal);
}

/* Attention alone is to reach its share at long contexts, where it is most of a step. */
static void measure_decode(struct bench *bench, int sequences, int context, bool is_long)
{
    const struct shape *s = bench->shape;
    double weights = 2 * (layer_values(s) * s->layers + (double)s->vocabulary * s->hidden);
    double cache = 4.0 * s->layers * s->kv_heads * s->head_dim * context * sequences;
    double seconds = time_step(bench, bench->step, sequences, context - 1, 1);
    char what[64];

    snprintf(what, sizeof(what), "decode, %d after %d tokens", sequences, context);
    figure(bench, what, "GB/s", 1e-9 * (weights + cache) / seconds, 1e-9 * bench->copy,
           1e-9 * bench->copy * (sequences == 1 ? GOAL_ONE : GOAL_MANY));
    seconds = time_step(bench, bench->attention, sequences, context - 1, 1);
    snprintf(what, sizeof(what), "decode attention, %d after %d tokens", sequences, context);
    figure(bench, what, "GB/s", 1e-9 * cache / seconds, 1e-9 * bench->copy,
           is_long ? 1e-9 * bench->copy * GOAL_ATTENTION : 0);
}

static void measure_prefill(struct bench *bench, int tokens)
{
    const struct shape *s = bench->shape;
    double attention = 2.0 * s->layers * s->heads * s->head_dim * (double)tokens * tokens;
    double products = 2 * layer_values(s) * s->layers * tokens;
    double seconds = time_step(bench, bench->step, 1, 0, tokens);
    char what[64];

    snprintf(what, sizeof(what), "prefill of %d tokens", tokens);
    figure(bench, what, "TFLOP/s", 1e-12 * (attention + products) / seconds, 1e-12 * bench->matmul,
           bench->matmul > 0 ? GOAL_PREFILL : 0);
    seconds = time_step(bench, bench->attention, 1, 0, tokens);
    snprintf(what, sizeof(what), "prefill attention of %d tokens", tokens);
    figure(bench, what, "TFLOP/s", 1e-12 * attention / seconds, 1e-12 * bench->matmul, 0);
}

int pd_stage_shapes(const struct pd_stage_options *options)
{
    char why[512];
    double copy = pd_stage_copy_bandwidth(options->small);
    double matmul = pd_stage_matmul_rate(options->small, why, sizeof(why));
    int longest = options->small ? 32 : 8192;

    for (int i = 0; i < 2; i++) {
        struct bench bench = {.shape = options->small ? &small_shapes[i] : &shapes[i],
                              .copy = copy,
                              .matmul = matmul,
                              .context = longest / 2 + BLOCK};

        open_bench(&bench, longest);
        measure_decode(&bench, 1, longest / 8, false);
        measure_decode(&bench, options->small ? 4 : SEQS, longest / 8, false);
        measure_decode(&bench, options->small ? 4 : SEQS, longest / 2, true);
        measure_prefill(&bench, longest / 4);
        measure_prefill(&bench, longest);
        pd_device_close(bench.device);
    }
    if (matmul > 0)
        return 0;
    printf("large products by the own kernel, beside no ceiling: %s\n", why);
    return PD_STAGE_SKIPPED;
}
