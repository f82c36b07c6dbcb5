/* Bytes as a GGUF file: parsed, configured, bound, its tokenizer read; what a tensor claims to hold is touched
 * at both ends. An input that begins with 'P' is not the file itself but a list of patches (offset, 16 bits;
 * value; unused) for a good one, which gets behind the first checks at once. */
#include <stdint.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "t/unit/gguf_file.h"
#include "worker/model/config.h"
#include "worker/model/gguf_tokenizer.h"
#include "worker/model/weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

static void bind(const struct pd_gguf *gguf, const struct pd_tensor_table *tensors)
{
    static float frequencies[PD_HEAD_DIM_MAX / 2];
    struct pd_model_config config;
    struct pd_model_tensors bound;
    struct pd_rope rope;
    struct pd_error error;

    if (pd_config_from_gguf(gguf, tensors, &config, &rope, &error) != PD_OK)
        return;
    pd_rope_frequencies(&config, &rope, NULL, frequencies);
    if (pd_model_tensors_bind(tensors, PD_NAMING_GGUF, &config, "fuzz", &bound, &error) == PD_OK)
        pd_model_tensors_free(&bound);
}

static void read_tokenizer(const struct pd_gguf *gguf)
{
    struct pd_tokenizer_spec spec;
    struct pd_error error;

    if (pd_gguf_tokenizer_read(gguf, &spec, &error) != PD_OK)
        return;
    for (size_t i = 0; i < spec.token_count; i++)
        if (spec.tokens[i].length)
            sink = (uint8_t)spec.tokens[i].bytes[spec.tokens[i].length - 1] ^ spec.kinds[i];
    pd_gguf_tokenizer_free(&spec);
}

static void read_file(const uint8_t *data, size_t size)
{
    struct pd_tensor_table tensors = {0};
    struct pd_gguf *gguf;
    struct pd_error error;

    if (pd_gguf_parse("fuzz", data, size, &tensors, &gguf, &error) == PD_OK) {
        for (size_t i = 0; i < tensors.count; i++)
            sink =
                tensors.tensors[i].data[0] ^ tensors.tensors[i].data[tensors.tensors[i].bytes - 1];
        if (pd_tensor_table_seal(&tensors, &error) == PD_OK)
            bind(gguf, &tensors);
        read_tokenizer(gguf);
        pd_gguf_destroy(gguf);
    }
    pd_tensor_table_free(&tensors);
}

/* A copy of exactly its size, for the sanitizer. */
static void read_patched(const uint8_t *patches, size_t size)
{
    static struct bytes good;
    uint8_t *copy;

    if (!good.data) {
        struct gguf_file file = {0};

        gguf_tiny_llama(&file, 1);
        gguf_finish(&file, &good);
    }
    copy = malloc(good.size);
    if (!copy)
        return;
    memcpy(copy, good.data, good.size);
    for (size_t i = 0; i + 4 <= size; i += 4)
        copy[(size_t)(patches[i] | patches[i + 1] << 8) % good.size] = patches[i + 2];
    read_file(copy, good.size);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && data[0] == 'P')
        read_patched(data + 1, size - 1);
    else
        read_file(data, size);
    return 0;
}
