/* What the cpu kernels reach: the whole step of a model shaped like SmolLM2-135M-Instruct Q4_1, with random
 * weights, through kernels.h alone, beside what the machine can do at most in the same minute.
 *
 *     build/t/bench/kernels [threads [isa [auto|bf16|int8|int12|f32]]]
 *     build/t/bench/kernels threads limits                 only what the machine can do
 *
 * Prints a table to stderr and one line of JSON to stdout. Figures vary with the machine's mood: look
 * at ratios, and at the barrier's nanoseconds, before comparing two runs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/dtype.h"
#include "kernels/kernels.h"
#include "kernels/team.h"
#include "t/bench/peaks.h"

enum {
    LAYERS = 30,
    HIDDEN = 576,
    FEED_FORWARD = 1536,
    HEADS = 9,
    KV_HEADS = 3,
    HEAD_DIM = 64,
    VOCABULARY = 49152,
    MAX_TOKENS = 512,
    MAX_SEQS = 16,
    MAX_LEN = 2048,
    BLOCK_SIZE = 16,
};

static double clock_seconds(clockid_t clock)
{
    struct timespec time;

    clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double now(void)
{
    return clock_seconds(CLOCK_MONOTONIC);
}

static void check(struct pd_device *device, int status)
{
    if (status == PD_KERNEL_OK)
        return;
    fprintf(stderr, "kernels: %s\n", pd_device_error(device));
    exit(1);
}

/* ---- a model of random weights --------------------------------------------------------------- */

struct model {
    struct pd_device *device;
    struct pd_kv_pool pool;
    struct pd_graph *graph;
};

static uint64_t random_state = 1;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Random bytes with the scales of a trained matrix. */
static void *matrix(enum pd_dtype type, int rows, int cols)
{
    size_t blocks = (size_t)rows * (size_t)(cols / pd_dtype_block(type));
    size_t size = (size_t)pd_dtype_bytes(type);
    uint8_t *data = malloc(blocks * size);
    uint16_t d = pd_f16_of_float(type == PD_Q8_0 ? 0.0003f : 0.01f), m = pd_f16_of_float(-0.075f);

    for (size_t i = 0; i < blocks; i++) {
        for (size_t j = 0; j < size; j += 2) {
            uint16_t bits = (uint16_t)(next_random() >> 20);
            memcpy(data + i * size + j, &bits, 2);
        }
        memcpy(data + i * size, &d, 2);
        if (type == PD_Q4_1)
            memcpy(data + i * size + 2, &m, 2);
    }
    return data;
}

static struct pd_weight *weight(struct pd_device *device, enum pd_weight_layout layout,
                                enum pd_dtype type, int rows, int cols)
{
    int count = layout == PD_WEIGHT_GATE_UP ? 2 : 1;
    struct pd_weight_source sources[2];
    struct pd_weight *out;

    for (int i = 0; i < count; i++)
        sources[i] = (struct pd_weight_source){matrix(type, rows, cols), type, rows};
    check(device, pd_weight_create(device, layout, cols, sources, count, rows == VOCABULARY, &out));
    for (int i = 0; i < count; i++)
        free((void *)sources[i].data);
    return out;
}

static struct pd_weight *ones(struct pd_device *device)
{
    float values[HIDDEN];
    struct pd_weight_source source = {values, PD_F32, 1};
    struct pd_weight *out;

    for (int i = 0; i < HIDDEN; i++)
        values[i] = 1;
    check(device, pd_weight_create(device, PD_WEIGHT_ROWS, HIDDEN, &source, 1, false, &out));
    return out;
}

static struct pd_tensor tensor(struct pd_device *device, int rows, int cols)
{
    struct pd_tensor out;

    check(device, pd_tensor_create(device, rows, cols, &out));
    return out;
}

static void record(struct model *model, const struct pd_attention_shape *shape)
{
    struct pd_device *device = model->device;
    struct pd_weight *table = weight(device, PD_WEIGHT_ROWS, PD_Q8_0, VOCABULARY, HIDDEN);
    struct pd_tensor x = tensor(device, MAX_TOKENS, HIDDEN),
                     normed = tensor(device, MAX_TOKENS, HIDDEN);
    struct pd_tensor qkv = tensor(device, MAX_TOKENS, (HEADS + 2 * KV_HEADS) * HEAD_DIM);
    struct pd_tensor attended = tensor(device, MAX_TOKENS, HEADS * HEAD_DIM);
    struct pd_tensor gated = tensor(device, MAX_TOKENS, FEED_FORWARD);
    struct pd_tensor last = tensor(device, MAX_SEQS, HIDDEN),
                     logits = tensor(device, MAX_SEQS, VOCABULARY);
    struct pd_graph *graph;

    check(device, pd_graph_begin(device, &graph));
    pd_op_embed(graph, table, x);
    for (int layer = 0; layer < LAYERS; layer++) {
        pd_op_rmsnorm(graph, x, ones(device), 1e-5f, false, normed);
        pd_op_matmul(graph, weight(device, PD_WEIGHT_ROWS, PD_Q4_1, qkv.cols, HIDDEN), normed, NULL,
                     PD_EPILOGUE_NONE, false, qkv);
        pd_op_rope_store(graph, qkv, shape, &model->pool, layer);
        pd_op_attention(graph, qkv, shape, &model->pool, layer, attended);
        pd_op_matmul(graph, weight(device, PD_WEIGHT_ROWS, PD_Q4_1, HIDDEN, HIDDEN), attended, NULL,
                     PD_EPILOGUE_ADD, false, x);
        pd_op_rmsnorm(graph, x, ones(device), 1e-5f, false, normed);
        pd_op_matmul(graph, weight(device, PD_WEIGHT_GATE_UP, PD_Q4_1, FEED_FORWARD, HIDDEN),
                     normed, NULL, PD_EPILOGUE_SWIGLU, false, gated);
        pd_op_matmul(graph, weight(device, PD_WEIGHT_ROWS, PD_Q4_1, HIDDEN, FEED_FORWARD), gated,
                     NULL, PD_EPILOGUE_ADD, false, x);
        pd_op_publish(graph, layer + 1);
    }
    pd_op_gather(graph, x, last);
    pd_op_matmul(graph, table, last, NULL, PD_EPILOGUE_NONE, true, logits);
    pd_op_sample(graph, logits);
    check(device, pd_graph_end(graph));
    model->graph = graph;
}

static void open_model(struct model *model, int threads, const char *isa,
                       enum pd_precision precision, enum pd_dtype kv)
{
    struct pd_device_options options = {.kind = "cpu",
                                        .threads = threads,
                                        .isa = isa,
                                        .precision = precision,
                                        .max_tokens = MAX_TOKENS,
                                        .max_seqs = MAX_SEQS,
                                        .max_model_len = MAX_LEN,
                                        .block_size = BLOCK_SIZE,
                                        .vocabulary = VOCABULARY};
    float frequency[HEAD_DIM / 2];
    struct pd_attention_shape shape = {.heads = HEADS,
                                       .kv_heads = KV_HEADS,
                                       .head_dim = HEAD_DIM,
                                       .rope_dim = HEAD_DIM,
                                       .rope_style = PD_ROPE_INTERLEAVED,
                                       .inverse_frequency = frequency,
                                       .attention_factor = 1,
                                       .scale = 0.125f};
    char error[256];

    if (pd_device_open(&options, &model->device, error, sizeof(error)) != PD_KERNEL_OK) {
        fprintf(stderr, "kernels: %s\n", error);
        exit(1);
    }
    for (int i = 0; i < HEAD_DIM / 2; i++)
        frequency[i] = powf(100000, -2.0f * (float)i / HEAD_DIM);
    model->pool = (struct pd_kv_pool){.layers = LAYERS,
                                      .kv_heads = KV_HEADS,
                                      .block_size = BLOCK_SIZE,
                                      .head_dim = HEAD_DIM,
                                      .blocks = MAX_SEQS * MAX_LEN / BLOCK_SIZE,
                                      .type = kv};
    check(model->device, pd_buffer_create(model->device, PD_BUFFER_KV,
                                          pd_kv_pool_bytes(&model->pool), &model->pool.buffer));
    record(model, &shape);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void add_sequence(struct pd_step *step, int s, int rows, int position)
{
    int first = step->tokens;

    for (int i = 0; i < rows; i++) {
        step->token[first + i] = (int32_t)(next_random() % VOCABULARY);
        step->position[first + i] = position + i;
        step->sequence[first + i] = s;
        step->kv_slot[first + i] = s * MAX_LEN + position + i;
    }
    step->tokens += rows;
    step->slot[s] = s;
    step->first[s] = first;
    step->length[s] = rows;
    step->context[s] = position + rows;
    for (int b = 0; b < MAX_LEN / BLOCK_SIZE; b++)
        step->blocks[s * step->max_blocks + b] = s * MAX_LEN / BLOCK_SIZE + b;
    step->sample_row[s] = step->tokens - 1;
    step->sample_slot[s] = s;
    step->sample[s] = (struct pd_sample_params){.top_p = 1, .typical_p = 1, .repetition = 1};
    step->sequences = step->samples = s + 1;
}

/* Median seconds of a step of `sequences` sequences, `rows` new tokens each after `position` others. *cpu is
 * the least processor time of one: on a busy machine, that with one thread tells more. */
static double time_step(struct model *model, int sequences, int rows, int position, double *cpu)
{
    enum { RUNS = 15 };
    double seconds[RUNS], budget = now() + 3;
    int runs = 0;

    *cpu = 1e9;
    while (runs < RUNS && (runs < 3 || now() < budget)) {
        struct pd_step *step;
        double before, used;
        int i = runs++;

        check(model->device, pd_step_acquire(model->device, &step));
        for (int s = 0; s < sequences; s++)
            add_sequence(step, s, rows, position);
        used = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
        before = now();
        check(model->device, pd_graph_launch(model->graph, step));
        check(model->device, pd_step_wait(model->device, step->number, -1));
        before = now() - before;
        used = clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - used;
        *cpu = used < *cpu ? used : *cpu;
        for (; i > 0 && seconds[i - 1] > before; i--)
            seconds[i] = seconds[i - 1];
        seconds[i] = before;
    }
    return seconds[runs / 2];
}

/* ---- what the machine can do ----------------------------------------------------------------- */

struct floors {
    double read;      /* GB/s */
    double barrier;   /* ns */
    double f32, int8; /* 10^9 operations per second */
    const char *int8_name;
};

/* `path`: which instructions bytes may be multiplied with. */
static struct floors measure_floors(int threads, const char *path)
{
    struct pd_team *team = pd_team_create(threads);
    struct floors floors;

    if (team == NULL)
        exit(1);
    pd_team_settle(team);
    floors.read = pd_peak_read(team);
    floors.barrier = pd_least_barrier(team);
    floors.f32 = pd_peak_f32(team);
    floors.int8 = pd_peak_int8(team, path, &floors.int8_name);
    pd_team_destroy(team);
    return floors;
}

/* The floors alone, as JSON. */
static int print_limits(int threads)
{
    struct floors floors = measure_floors(threads, "auto");

    printf(
        "{\"read_gb_s\": %.2f, \"barrier_ns\": %.0f, \"fma_gflop_s\": %.1f, \"int8_gop_s\": %.1f, "
        "\"int8\": \"%s\"}\n",
        floors.read, floors.barrier, floors.f32, floors.int8, floors.int8_name);
    return 0;
}

/* ---- the table ------------------------------------------------------------------------------- */

enum { CASES = 14 };

static const struct bench_case {
    const char *name;
    int sequences, rows, position;
} cases[CASES] = {
    {"decode 1", 1, 1, 16},     {"decode 1 after 1024", 1, 1, 1024},
    {"decode 4", 4, 1, 128},    {"decode 8", 8, 1, 128},
    {"decode 16", 16, 1, 128},  {"decode 16 after 1024", 16, 1, 1024},
    {"prefill 16", 1, 16, 0},   {"prefill 20", 1, 20, 0},
    {"prefill 32", 1, 32, 0},   {"prefill 48", 1, 48, 0},
    {"prefill 64", 1, 64, 0},   {"prefill 128", 1, 128, 0},
    {"prefill 512", 1, 512, 0}, {"prefill 512 after 1024", 1, 512, 1024},
};

/* Multiply-adds of a token with all matrices but the head, and with the head; bytes of a step's weights. */
static const double MATRICES = LAYERS * (960.0 * 576 + 576.0 * 576 + 3.0 * 1536 * 576);
static const double HEAD = 49152.0 * 576;
static const double WEIGHT_BYTES =
    LAYERS * (960.0 * 576 + 576.0 * 576 + 3.0 * 1536 * 576) * 20 / 32 + 49152.0 * 576 * 34 / 32;

/* The least seconds that a step can take: to read the weights once, or to multiply, whichever is longer.
 * 12 bits of x are two bytes: two multiply-adds each; tiles take as long for one of bf16. 8 bits are one, where
 * nothing is left to multiply again. */
static double floor_of(const struct floors *floors, const char *numerics, double products)
{
    double read = WEIGHT_BYTES / (1e9 * floors->read), bytes = strstr(numerics, " int8 ") ? 1 : 2;
    double multiply = strstr(numerics, " f32 ") == NULL && floors->int8 > 0
                          ? 2 * bytes * products / (1e9 * floors->int8)
                          : 2 * products / (1e9 * floors->f32);

    return read > multiply || floors->f32 <= 0 ? read : multiply;
}

static void print_case(struct model *model, const struct floors *floors, const char *numerics,
                       const struct bench_case *c)
{
    int tokens = c->sequences * c->rows;
    double products = MATRICES * tokens + HEAD * c->sequences, cpu;
    double seconds = time_step(model, c->sequences, c->rows, c->position, &cpu);
    double least = floor_of(floors, numerics, products);

    fprintf(stderr, "%-24s %10.3f %10.3f %10.1f %10.1f %12.2f %10.3f\n", c->name, 1e3 * cpu,
            1e3 * seconds, tokens / seconds, 2e-9 * products / seconds,
            1e-9 * WEIGHT_BYTES / seconds, least / seconds);
    printf("{\"name\": \"%s\", \"unit\": \"tok/s\", \"value\": %.1f, \"peer\": \"floor\", "
           "\"peer_value\": %.1f, \"ratio\": %.3f, \"better\": \"higher\", \"goal\": null}",
           c->name, tokens / seconds, tokens / least, least / seconds);
}

static enum pd_precision precision_of(const char *name)
{
    static const char *const names[] = {"f32", "int8", "int12", "bf16", "auto"};
    int i = 0;

    while (i < 5 && strcmp(name, names[i]) != 0)
        i++;
    if (i < 5)
        return (enum pd_precision)i;
    fprintf(stderr, "kernels: no precision \"%s\": auto, bf16, int8, int12 or f32\n", name);
    exit(2);
}

int main(int count, char **arguments)
{
    int threads = count > 1 ? atoi(arguments[1]) : 2;
    const char *path = count > 2 ? arguments[2] : "auto";
    enum pd_precision precision = precision_of(count > 3 ? arguments[3] : "auto");
    struct pd_device_info info;
    struct floors floors;
    struct model model;

    if (strcmp(path, "limits") == 0)
        return print_limits(threads);
    open_model(&model, threads, path, precision, PD_F16);
    pd_device_describe(model.device, &info);
    floors = measure_floors(threads, path);
    fprintf(stderr,
            "%s; barrier %.0f ns, memory read %.1f GB/s, f32 %.0f GFLOP/s, bytes (%s) %.0f GOP/s\n",
            info.name, floors.barrier, floors.read, floors.f32, floors.int8_name, floors.int8);
    fprintf(stderr, "%-24s %10s %10s %10s %10s %12s %10s\n", "", "cpu ms", "ms", "tok/s", "GFLOP/s",
            "weights GB/s", "of floor");
    printf("{\"bench\": \"kernels\", \"figures\": [");
    for (int i = 0; i < CASES; i++) {
        printf("%s", i > 0 ? ", " : "");
        print_case(&model, &floors, info.numerics, &cases[i]);
    }
    printf("]}\n");
    pd_device_close(model.device);
    return 0;
}
