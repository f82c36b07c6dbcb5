#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend.h"
#include "kernels/dtype.h"
#include "t/unit/kernel_rig.h"

struct pd_device_options pd_rig_options(const char *kind, const char *isa, int threads)
{
    return (struct pd_device_options){
        .kind = kind,
        .threads = threads,
        .isa = isa,
        .max_tokens = 96,
        .max_seqs = 16,
        .max_model_len = 512,
        .block_size = 16,
        .vocabulary = 300,
        .cuda_enable = "all",
    };
}

void pd_rig_open(struct pd_rig *rig, const struct pd_device_options *options)
{
    char error[256] = "";

    rig->options = *options;
    if (pd_device_open(options, &rig->device, error, sizeof(error)) != PD_KERNEL_OK)
        fail_msg("open: %s", error);
}

void pd_rig_close(struct pd_rig *rig)
{
    pd_device_close(rig->device);
    rig->device = NULL;
}

const char *const *pd_rig_paths(void)
{
    static const char *const all[] = {"cuda", "baseline", "avx2", "avx512", "vnni", "bf16", "amx"};
    static const char *found[8];
    int count = 0;

    for (int i = 0; i < 7 && (count == 0 || strcmp(found[0], "cuda") != 0); i++) {
        if (pd_rig_has(all[i], PD_PRECISION_F32))
            found[count++] = all[i];
    }
    found[count] = NULL;
    return found;
}

bool pd_rig_has(const char *path, enum pd_precision precision)
{
    struct pd_device_options options = pd_rig_options(pd_rig_kind(path), path, 1);
    struct pd_device *device;
    char error[256];

    options.precision = precision;
    if (pd_device_open(&options, &device, error, sizeof(error)) != PD_KERNEL_OK)
        return false;
    pd_device_close(device);
    return true;
}

const char *pd_rig_kind(const char *path)
{
    return strcmp(path, "cuda") == 0 ? "cuda" : "cpu";
}

/* ---- numbers --------------------------------------------------------------------------------- */

uint64_t pd_rig_seed;

void (*pd_rig_poison)(struct pd_device *device, void *memory, size_t bytes);

uint64_t pd_rig_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

float pd_rig_normal(uint64_t *state)
{
    double sum = 0;

    for (int i = 0; i < 4; i++)
        sum += (double)(pd_rig_random(state) >> 11) * 0x1p-53 - 0.5;
    return (float)(sum * 1.7320508);
}

void pd_rig_fill(float *values, size_t count, float scale, uint64_t seed)
{
    seed += pd_rig_seed << 32;
    for (size_t i = 0; i < count; i++)
        values[i] = scale * pd_rig_normal(&seed);
}

static void put_f16(uint8_t *out, float value)
{
    uint16_t half = pd_f16_of_float(value);

    memcpy(out, &half, 2);
}

/* Scales where the format has them, so that random bytes do not make infinities. */
static void sane_scales(enum pd_dtype type, uint8_t *block, uint64_t *state)
{
    float d = 1 + 0.2f * pd_rig_normal(state), m = 1 + 0.1f * pd_rig_normal(state);

    switch (type) {
    case PD_Q4_0:
        put_f16(block, 0.02f * d);
        break;
    case PD_Q4_1:
        put_f16(block, 0.02f * d);
        put_f16(block + 2, -0.15f * m);
        break;
    case PD_Q5_0:
        put_f16(block, -0.01f * d);
        break;
    case PD_Q8_0:
        put_f16(block, 0.001f * d);
        break;
    case PD_Q4_K:
        put_f16(block, 0.0007f * d);
        put_f16(block + 2, 0.005f * m);
        break;
    default:
        put_f16(block + 208, 0.00005f * d);
    }
}

static void random_value(enum pd_dtype type, uint8_t *out, uint64_t *state)
{
    float value = 0.1f * pd_rig_normal(state);
    uint16_t half = type == PD_F16 ? pd_f16_of_float(value) : pd_bf16_of_float(value);

    if (type == PD_F32)
        memcpy(out, &value, 4);
    else
        memcpy(out, &half, 2);
}

void *pd_rig_matrix(enum pd_dtype type, int rows, int cols, uint64_t seed)
{
    size_t blocks = (size_t)rows * (size_t)(cols / pd_dtype_block(type));
    size_t bytes = (size_t)pd_dtype_bytes(type);
    uint8_t *data = malloc(blocks * bytes);

    assert_non_null(data);
    seed += pd_rig_seed << 32;
    for (size_t b = 0; b < blocks; b++) {
        uint8_t *block = data + b * bytes;

        if (pd_dtype_block(type) == 1) {
            random_value(type, block, &seed);
            continue;
        }
        for (size_t i = 0; i < bytes; i++)
            block[i] = (uint8_t)(pd_rig_random(&seed) >> 32);
        sane_scales(type, block, &seed);
    }
    return data;
}

/* ---- objects --------------------------------------------------------------------------------- */

static void check(struct pd_rig *rig, const char *what, int status)
{
    if (status != PD_KERNEL_OK)
        fail_msg("%s: %d: %s", what, status, pd_device_error(rig->device));
}

struct pd_weight *pd_rig_weight(struct pd_rig *rig, enum pd_dtype type, int rows, int cols,
                                bool embedding, uint64_t seed)
{
    void *data = pd_rig_matrix(type, rows, cols, seed);
    struct pd_weight_source source = {data, type, rows};
    struct pd_weight *weight;

    check(rig, "weight",
          pd_weight_create(rig->device, PD_WEIGHT_ROWS, cols, &source, 1, embedding, &weight));
    free(data);
    return weight;
}

struct pd_weight *pd_rig_input(struct pd_rig *rig, const float *values, int rows, int cols)
{
    int vocabulary = rig->options.vocabulary;
    float *data = calloc((size_t)vocabulary * (size_t)cols, sizeof(float));
    struct pd_weight_source source = {data, PD_F32, vocabulary};
    struct pd_weight *weight;

    assert_non_null(data);
    assert_true(rows <= vocabulary);
    memcpy(data, values, (size_t)rows * (size_t)cols * sizeof(float));
    check(rig, "input",
          pd_weight_create(rig->device, PD_WEIGHT_ROWS, cols, &source, 1, true, &weight));
    free(data);
    return weight;
}

struct pd_tensor pd_rig_tensor(struct pd_rig *rig, int rows, int cols)
{
    struct pd_tensor tensor;

    check(rig, "tensor", pd_tensor_create(rig->device, rows, cols, &tensor));
    if (pd_rig_poison != NULL)
        pd_rig_poison(rig->device, (char *)tensor.buffer->address + tensor.offset,
                      sizeof(float) * (size_t)rows * (size_t)cols);
    return tensor;
}

struct pd_buffer *pd_rig_pinned(struct pd_rig *rig, size_t bytes)
{
    struct pd_buffer *buffer;

    check(rig, "pinned", pd_buffer_create(rig->device, PD_BUFFER_PINNED, bytes, &buffer));
    return buffer;
}

struct pd_graph *pd_rig_begin(struct pd_rig *rig)
{
    struct pd_graph *graph;

    check(rig, "begin", pd_graph_begin(rig->device, &graph));
    return graph;
}

void pd_rig_end(struct pd_graph *graph)
{
    int status = pd_graph_end(graph);

    if (status != PD_KERNEL_OK)
        fail_msg("end: %d", status);
}

/* ---- steps ----------------------------------------------------------------------------------- */

struct pd_step *pd_rig_step(struct pd_rig *rig, int slot, const int32_t *tokens, int count,
                            int position, int first_block)
{
    struct pd_step *step;

    check(rig, "acquire", pd_step_acquire(rig->device, &step));
    pd_rig_add(rig, step, slot, tokens, count, position, first_block);
    return step;
}

void pd_rig_add(struct pd_rig *rig, struct pd_step *step, int slot, const int32_t *tokens,
                int count, int position, int first_block)
{
    int s = step->sequences++, size = rig->options.block_size, first = step->tokens;

    for (int i = 0; i < count; i++) {
        int at = position + i;

        step->token[first + i] = tokens[i];
        step->position[first + i] = at;
        step->sequence[first + i] = s;
        step->kv_slot[first + i] = (first_block + at / size) * size + at % size;
    }
    step->tokens += count;
    step->slot[s] = slot;
    step->first[s] = first;
    step->length[s] = count;
    step->context[s] = position + count;
    for (int b = 0; b * size < position + count; b++)
        step->blocks[s * step->max_blocks + b] = first_block + b;
    step->sample_row[step->samples] = first + count - 1;
    step->sample_slot[step->samples] = slot;
    step->sample[step->samples++] = (struct pd_sample_params){.top_p = 1,
                                                              .typical_p = 1,
                                                              .repetition = 1,
                                                              .history = position + count,
                                                              .prompt = position + count};
}

void pd_rig_run(struct pd_rig *rig, struct pd_graph *graph, struct pd_step *step)
{
    check(rig, "launch", pd_graph_launch(graph, step));
    check(rig, "wait", pd_step_wait(rig->device, step->number, 60000));
}

double pd_rig_error(const float *a, const float *b, size_t count)
{
    double difference = 0, size = 0;

    for (size_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return size > 0 ? sqrt(difference / size) : sqrt(difference);
}
