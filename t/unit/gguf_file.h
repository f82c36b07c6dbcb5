/* Writes GGUF files into memory, for tests: by the format's description, and wrong wherever a test
 * wants it wrong. Plain counters and sections are open, so that a test can spoil them before the
 * end. */
#ifndef GGUF_FILE_H
#define GGUF_FILE_H

#include <stddef.h>
#include <stdint.h>

struct bytes {
    uint8_t *data;
    size_t size, capacity;
};

void bytes_put(struct bytes *bytes, const void *data, size_t size);
void bytes_u32(struct bytes *bytes, uint32_t value);
void bytes_u64(struct bytes *bytes, uint64_t value);
void bytes_string(struct bytes *bytes, const char *text); /* length and bytes */
void bytes_free(struct bytes *bytes);

/* ggml's numbers. */
enum {
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10
};
enum { GGML_F32 = 0, GGML_F16 = 1, GGML_Q4_1 = 3, GGML_Q8_0 = 8 };

struct gguf_file {
    uint32_t version;   /* 0: 3 */
    uint32_t alignment; /* 0: 32, without a key that says so */
    uint64_t key_count, tensor_count;
    struct bytes keys, tensors, data;
};

void gguf_key_u32(struct gguf_file *file, const char *key, uint32_t value);
void gguf_key_f32(struct gguf_file *file, const char *key, float value);
void gguf_key_bool(struct gguf_file *file, const char *key, uint8_t value);
void gguf_key_string(struct gguf_file *file, const char *key, const char *value);
void gguf_key_strings(struct gguf_file *file, const char *key, const char *const *values,
                      size_t count);
void gguf_key_i32s(struct gguf_file *file, const char *key, const int32_t *values, size_t count);
void gguf_key_f32s(struct gguf_file *file, const char *key, const float *values, size_t count);

/* An entry alone; dimensions innermost first. */
void gguf_entry(struct gguf_file *file, const char *name, uint32_t rank, const uint64_t *dimensions,
                uint32_t type, uint64_t offset);
/* An entry whose `size` bytes of data are appended (aligned). data NULL: a pattern. */
void gguf_tensor(struct gguf_file *file, const char *name, uint32_t rank,
                 const uint64_t *dimensions, uint32_t type, const void *data, size_t size);

/* The whole file; frees the sections. */
void gguf_finish(struct gguf_file *file, struct bytes *out);

/* A llama of two layers that a worker can serve: F32 weights drawn from `seed`, a byte-level
 * tokenizer of 256 byte tokens and three specials. Keys and tensors are added to *file, which the
 * caller may add to. */
enum {
    TINY_LAYERS = 2,
    TINY_HIDDEN = 32,
    TINY_INNER = 64,
    TINY_HEADS = 4,
    TINY_KV_HEADS = 2,
    TINY_HEAD_DIM = 8,
    TINY_VOCABULARY = 259,
    TINY_CONTEXT = 256
};
void gguf_tiny_llama(struct gguf_file *file, uint64_t seed);

#endif
