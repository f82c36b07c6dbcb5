#include "t/unit/gguf_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void bytes_put(struct bytes *bytes, const void *data, size_t size)
{
    if (bytes->size + size > bytes->capacity) {
        bytes->capacity = 2 * (bytes->size + size);
        bytes->data = realloc(bytes->data, bytes->capacity);
        if (!bytes->data)
            abort();
    }
    if (size)
        memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
}

void bytes_u32(struct bytes *bytes, uint32_t value)
{
    bytes_put(bytes, &value, sizeof(value));
}

void bytes_u64(struct bytes *bytes, uint64_t value)
{
    bytes_put(bytes, &value, sizeof(value));
}

void bytes_string(struct bytes *bytes, const char *text)
{
    bytes_u64(bytes, strlen(text));
    bytes_put(bytes, text, strlen(text));
}

void bytes_free(struct bytes *bytes)
{
    free(bytes->data);
    memset(bytes, 0, sizeof(*bytes));
}

static void align(struct bytes *bytes, size_t alignment)
{
    while (bytes->size % alignment)
        bytes_put(bytes, "", 1);
}

/* ---- metadata ----------------------------------------------------------------------------------
 */

static struct bytes *begin_key(struct gguf_file *file, const char *key, uint32_t type)
{
    bytes_string(&file->keys, key);
    bytes_u32(&file->keys, type);
    file->key_count++;
    return &file->keys;
}

void gguf_key_u32(struct gguf_file *file, const char *key, uint32_t value)
{
    bytes_u32(begin_key(file, key, GGUF_U32), value);
}

void gguf_key_f32(struct gguf_file *file, const char *key, float value)
{
    bytes_put(begin_key(file, key, GGUF_F32), &value, sizeof(value));
}

void gguf_key_bool(struct gguf_file *file, const char *key, uint8_t value)
{
    bytes_put(begin_key(file, key, GGUF_BOOL), &value, sizeof(value));
}

void gguf_key_string(struct gguf_file *file, const char *key, const char *value)
{
    bytes_string(begin_key(file, key, GGUF_STRING), value);
}

static struct bytes *begin_array(struct gguf_file *file, const char *key, uint32_t type,
                                 size_t count)
{
    struct bytes *keys = begin_key(file, key, GGUF_ARRAY);

    bytes_u32(keys, type);
    bytes_u64(keys, count);
    return keys;
}

void gguf_key_strings(struct gguf_file *file, const char *key, const char *const *values,
                      size_t count)
{
    struct bytes *keys = begin_array(file, key, GGUF_STRING, count);

    for (size_t i = 0; i < count; i++)
        bytes_string(keys, values[i]);
}

void gguf_key_i32s(struct gguf_file *file, const char *key, const int32_t *values, size_t count)
{
    bytes_put(begin_array(file, key, GGUF_I32, count), values, count * sizeof(*values));
}

void gguf_key_f32s(struct gguf_file *file, const char *key, const float *values, size_t count)
{
    bytes_put(begin_array(file, key, GGUF_F32, count), values, count * sizeof(*values));
}

/* ---- tensors -----------------------------------------------------------------------------------
 */

void gguf_entry(struct gguf_file *file, const char *name, uint32_t rank, const uint64_t *dimensions,
                uint32_t type, uint64_t offset)
{
    bytes_string(&file->tensors, name);
    bytes_u32(&file->tensors, rank);
    for (uint32_t i = 0; i < rank; i++)
        bytes_u64(&file->tensors, dimensions[i]);
    bytes_u32(&file->tensors, type);
    bytes_u64(&file->tensors, offset);
    file->tensor_count++;
}

void gguf_tensor(struct gguf_file *file, const char *name, uint32_t rank,
                 const uint64_t *dimensions, uint32_t type, const void *data, size_t size)
{
    align(&file->data, file->alignment ? file->alignment : 32);
    gguf_entry(file, name, rank, dimensions, type, file->data.size);
    if (data) {
        bytes_put(&file->data, data, size);
        return;
    }
    for (size_t i = 0; i < size; i++) {
        uint8_t byte = (uint8_t)(i * 37 + file->tensor_count);

        bytes_put(&file->data, &byte, 1);
    }
}

void gguf_finish(struct gguf_file *file, struct bytes *out)
{
    memset(out, 0, sizeof(*out));
    if (file->alignment)
        gguf_key_u32(file, "general.alignment", file->alignment);
    bytes_put(out, "GGUF", 4);
    bytes_u32(out, file->version ? file->version : 3);
    bytes_u64(out, file->tensor_count);
    bytes_u64(out, file->key_count);
    bytes_put(out, file->keys.data, file->keys.size);
    bytes_put(out, file->tensors.data, file->tensors.size);
    if (file->data.size) {
        align(out, file->alignment ? file->alignment : 32);
        bytes_put(out, file->data.data, file->data.size);
    }
    bytes_free(&file->keys);
    bytes_free(&file->tensors);
    bytes_free(&file->data);
    memset(file, 0, sizeof(*file));
}

/* ---- a tiny model ------------------------------------------------------------------------------
 */

/* The character that stands for `byte` in the alphabet of byte-level BPE. */
static void byte_letter(int byte, char letter[5])
{
    int code = byte, shift = 0;

    for (int i = 0; i <= byte; i++) {
        int printable = (i >= '!' && i <= '~') || (i >= 0xa1 && i <= 0xac) || i >= 0xae;

        if (!printable && i == byte)
            code = 256 + shift;
        shift += !printable;
    }
    if (code < 0x80)
        snprintf(letter, 5, "%c", code);
    else
        snprintf(letter, 5, "%c%c", 0xc0 | code >> 6, 0x80 | (code & 0x3f));
}

static void tiny_tokenizer(struct gguf_file *file)
{
    static const char *const specials[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    char letters[256][5];
    const char *tokens[TINY_VOCABULARY];
    int32_t types[TINY_VOCABULARY];

    for (int i = 0; i < TINY_VOCABULARY; i++) {
        types[i] = i < 3 ? 3 : 1;
        if (i >= 3)
            byte_letter(i - 3, letters[i - 3]);
        tokens[i] = i < 3 ? specials[i] : letters[i - 3];
    }
    gguf_key_string(file, "tokenizer.ggml.model", "gpt2");
    gguf_key_string(file, "tokenizer.ggml.pre", "smollm");
    gguf_key_strings(file, "tokenizer.ggml.tokens", tokens, TINY_VOCABULARY);
    gguf_key_i32s(file, "tokenizer.ggml.token_type", types, TINY_VOCABULARY);
    gguf_key_strings(file, "tokenizer.ggml.merges", NULL, 0);
    gguf_key_u32(file, "tokenizer.ggml.bos_token_id", 1);
    gguf_key_u32(file, "tokenizer.ggml.eos_token_id", 2);
}

/* Uniform in (-1, 1) * scale + offset. */
static void tiny_tensor(struct gguf_file *file, uint64_t *state, const char *name, int rows,
                        int cols, float scale, float offset)
{
    const uint64_t dimensions[] = {(uint64_t)cols, (uint64_t)rows};
    size_t count = (size_t)cols * (size_t)(rows ? rows : 1);
    float *values = calloc(count, sizeof(*values));

    if (!values)
        abort();
    for (size_t i = 0; i < count; i++) {
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        values[i] = offset + scale * ((float)(*state >> 40) / (float)(1 << 23) - 1);
    }
    gguf_tensor(file, name, rows ? 2 : 1, dimensions, GGML_F32, values, count * sizeof(*values));
    free(values);
}

static void tiny_layer(struct gguf_file *file, uint64_t *state, int layer)
{
    static const struct {
        const char *name;
        int rows, cols;
    } weights[] = {
        {"attn_norm", 0, TINY_HIDDEN},
        {"attn_q", TINY_HEADS * TINY_HEAD_DIM, TINY_HIDDEN},
        {"attn_k", TINY_KV_HEADS * TINY_HEAD_DIM, TINY_HIDDEN},
        {"attn_v", TINY_KV_HEADS * TINY_HEAD_DIM, TINY_HIDDEN},
        {"attn_output", TINY_HIDDEN, TINY_HEADS * TINY_HEAD_DIM},
        {"ffn_norm", 0, TINY_HIDDEN},
        {"ffn_gate", TINY_INNER, TINY_HIDDEN},
        {"ffn_up", TINY_INNER, TINY_HIDDEN},
        {"ffn_down", TINY_HIDDEN, TINY_INNER},
    };
    char name[64];

    for (size_t i = 0; i < sizeof(weights) / sizeof(weights[0]); i++) {
        snprintf(name, sizeof(name), "blk.%d.%s.weight", layer, weights[i].name);
        if (weights[i].rows)
            tiny_tensor(file, state, name, weights[i].rows, weights[i].cols, 0.3f, 0);
        else
            tiny_tensor(file, state, name, 0, weights[i].cols, 0.2f, 1);
    }
}

void gguf_tiny_llama(struct gguf_file *file, uint64_t seed)
{
    uint64_t state = seed;

    gguf_key_string(file, "general.architecture", "llama");
    gguf_key_string(file, "general.name", "tiny");
    gguf_key_u32(file, "llama.block_count", TINY_LAYERS);
    gguf_key_u32(file, "llama.context_length", TINY_CONTEXT);
    gguf_key_u32(file, "llama.embedding_length", TINY_HIDDEN);
    gguf_key_u32(file, "llama.feed_forward_length", TINY_INNER);
    gguf_key_u32(file, "llama.attention.head_count", TINY_HEADS);
    gguf_key_u32(file, "llama.attention.head_count_kv", TINY_KV_HEADS);
    gguf_key_f32(file, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_key_f32(file, "llama.rope.freq_base", 10000);
    tiny_tokenizer(file);
    tiny_tensor(file, &state, "token_embd.weight", TINY_VOCABULARY, TINY_HIDDEN, 1, 0);
    tiny_tensor(file, &state, "output_norm.weight", 0, TINY_HIDDEN, 0.2f, 1);
    for (int layer = 0; layer < TINY_LAYERS; layer++)
        tiny_layer(file, &state, layer);
}
