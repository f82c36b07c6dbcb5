#include "worker/model/dummy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/dtype.h"
#include "kernels/philox.h"
#include "worker/model/parallel.h"

enum {
    ALIGNMENT = 64,     /* of a tensor's data */
    LANES = 8,          /* values of one block of the generator: 16 bits each */
    CHUNK = 1 << 13,    /* values that one task makes; whole blocks */
    STREAM = 0x7765696e /* the counter's last word: apart from every draw of a token */
};

/* ---- values ------------------------------------------------------------------------------------ */

struct chunk {
    const struct pd_file_tensor *tensor;
    size_t first; /* value */
};

struct maker {
    struct chunk *chunks;
    uint64_t seed;
};

/* FNV-1a. */
static uint32_t hash_name(const char *name)
{
    uint32_t hash = 2166136261u;

    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 16777619u;
    return hash;
}

static void put(enum pd_dtype type, uint8_t *data, size_t index, float value)
{
    uint16_t half;

    if (type == PD_F32) {
        memcpy(data + 4 * index, &value, 4);
        return;
    }
    half = type == PD_F16 ? pd_f16_of_float(value) : pd_bf16_of_float(value);
    memcpy(data + 2 * index, &half, 2);
}

/* Values are offset + scale * u, u in [-1, 1). */
static void range_of(const struct pd_file_tensor *tensor, float *offset, float *scale)
{
    size_t length = strlen(tensor->name);
    bool norm = length > 11 && strcmp(tensor->name + length - 11, "norm.weight") == 0;

    *offset = norm ? 1.0f : 0.0f;
    *scale = tensor->rank == 2 ? sqrtf(3.0f / (float)tensor->shape[1]) : 0.25f;
}

static size_t values_of(const struct pd_file_tensor *tensor)
{
    return tensor->bytes / (size_t)pd_dtype_bytes(tensor->type);
}

static int make_chunk(void *context, size_t index, struct pd_error *error)
{
    const struct maker *maker = context;
    const struct chunk *chunk = &maker->chunks[index];
    uint32_t name = hash_name(chunk->tensor->name);
    uint8_t *data = (uint8_t *)(uintptr_t)chunk->tensor->data;
    size_t left = values_of(chunk->tensor) - chunk->first;
    float offset, scale;

    (void)error;
    range_of(chunk->tensor, &offset, &scale);
    for (size_t i = 0; i < left && i < CHUNK; i += LANES) {
        uint64_t block = (chunk->first + i) / LANES;
        const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), name, STREAM};
        struct pd_philox random = pd_philox4x32(maker->seed, counter);

        for (size_t lane = 0; lane < LANES && i + lane < left; lane++) {
            uint32_t bits = random.word[lane / 2] >> (16 * (lane % 2)) & 0xffff;
            float part = ((float)bits - 32768.0f) / 32768.0f * scale;

            put(chunk->tensor->type, data, chunk->first + i + lane, offset + part);
        }
    }
    return PD_OK;
}

static int make_values(const struct pd_tensor_table *table, uint64_t seed, int threads,
                       struct pd_error *error)
{
    struct maker maker = {.seed = seed};
    struct pd_tasks tasks = {.run = make_chunk, .context = &maker};
    size_t count = 0;
    int status;

    for (size_t i = 0; i < table->count; i++)
        count += (values_of(&table->tensors[i]) + CHUNK - 1) / CHUNK;
    maker.chunks = calloc(count, sizeof(*maker.chunks));
    if (!maker.chunks)
        return pd_fail(error, PD_NO_MEMORY, "no memory to make weights");
    for (size_t i = 0; i < table->count; i++) {
        size_t values = values_of(&table->tensors[i]);

        for (size_t first = 0; first < values; first += CHUNK)
            maker.chunks[tasks.count++] = (struct chunk){&table->tensors[i], first};
    }
    status = pd_tasks_run(&tasks, threads, error);
    free(maker.chunks);
    return status;
}

/* ---- tensors ----------------------------------------------------------------------------------- */

/* One piece of memory for all tensors, one after the other. */
static int place(struct pd_tensor_table *table, int protection, struct pd_mapping *memory,
                 struct pd_error *error)
{
    size_t bytes = 0;
    uint8_t *data;

    for (size_t i = 0; i < table->count; i++)
        if (__builtin_add_overflow(
                bytes, (table->tensors[i].bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, &bytes))
            return pd_fail(error, PD_INVALID, "more weights than an address space holds");
    data = mmap(NULL, bytes, protection,
                MAP_PRIVATE | MAP_ANONYMOUS | (protection == PROT_NONE ? MAP_NORESERVE : 0), -1, 0);
    if (data == MAP_FAILED)
        return pd_fail(error, PD_NO_MEMORY, "no memory for weights of %zu bytes", bytes);
    memory->bytes = data;
    memory->size = bytes;
    snprintf(memory->name, sizeof(memory->name), "dummy weights");
    for (size_t i = 0; i < table->count; i++) {
        table->tensors[i].data = data;
        data += (table->tensors[i].bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    return pd_tensor_table_seal(table, error);
}

int pd_dummy_weights(const struct pd_model_config *config, enum pd_dtype type, uint64_t seed,
                     int threads, struct pd_mapping *memory, struct pd_tensor_table *table,
                     struct pd_error *error)
{
    int status = pd_model_tensors_expect(config, type, "dummy weights", table, error);

    if (status == PD_OK)
        status = place(table, PROT_READ | PROT_WRITE, memory, error);
    return status == PD_OK ? make_values(table, seed, threads, error) : status;
}

int pd_dummy_shapes(const struct pd_model_config *config, enum pd_dtype type,
                    struct pd_mapping *memory, struct pd_tensor_table *table,
                    struct pd_error *error)
{
    int status = pd_model_tensors_expect(config, type, "dummy weights", table, error);

    return status == PD_OK ? place(table, PROT_NONE, memory, error) : status;
}

/* ---- tokenizer --------------------------------------------------------------------------------- */

/* The letter that stands for a byte in GPT-2's alphabet: printable bytes for themselves, the others
 * from U+0100 on, in turn; as UTF-8. */
static size_t spell(unsigned byte, unsigned *next, char out[2])
{
    bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    unsigned letter = printable ? byte : (*next)++;

    if (letter < 0x80) {
        out[0] = (char)letter;
        return 1;
    }
    out[0] = (char)(0xC0 | letter >> 6);
    out[1] = (char)(0x80 | (letter & 0x3F));
    return 2;
}

int pd_dummy_tokenizer(struct pd_tokenizer **tokenizer, struct pd_error *error)
{
    struct pd_tokenizer_spec spec = {.token_count = 256, .bos_id = -1, .eos_id = -1};
    uint8_t kinds[256] = {PD_TOKEN_NORMAL};
    struct pd_string tokens[256];
    char letters[256][2];
    unsigned next = 256;
    int status;

    for (unsigned byte = 0; byte < 256; byte++)
        tokens[byte] = (struct pd_string){letters[byte], spell(byte, &next, letters[byte])};
    spec.tokens = tokens;
    spec.kinds = kinds;
    status = pd_tokenizer_rules_by_name("gpt-2", &spec, error);
    return status == PD_OK ? pd_tokenizer_create(&spec, tokenizer, error) : status;
}
