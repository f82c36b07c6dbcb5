/* Bytes as a safetensors file, and as a config.json. An input that begins with '{' is the header alone: its
 * length is put before it, and DATA bytes of data behind it. */
#include <stdint.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "worker/model/config.h"
#include "worker/model/json.h"
#include "worker/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { DATA = 32 };

static volatile uint8_t sink;

static void read_config(const uint8_t *data, size_t size)
{
    const struct pd_tensor_table none = {0};
    struct pd_model_config config;
    struct pd_rope rope;
    struct pd_error error;
    json_t *root;

    if (pd_json_parse("fuzz", data, size, &root, &error) != PD_OK)
        return;
    if (pd_config_from_json("fuzz", root, &none, &config, &rope, &error) == PD_OK)
        pd_config_read_generation("fuzz", root, &config, &error);
    json_decref(root);
}

static void read_file(const uint8_t *data, size_t size)
{
    struct pd_tensor_table tensors = {0};
    struct pd_error error;

    if (pd_safetensors_parse("fuzz", data, size, &tensors, &error) == PD_OK) {
        for (size_t i = 0; i < tensors.count; i++)
            sink =
                tensors.tensors[i].data[0] ^ tensors.tensors[i].data[tensors.tensors[i].bytes - 1];
        pd_tensor_table_seal(&tensors, &error);
    }
    pd_tensor_table_free(&tensors);
}

static void read_header(const uint8_t *header, size_t size)
{
    uint64_t length = size;
    uint8_t *file = calloc(1, sizeof(length) + size + DATA);

    if (!file)
        return;
    memcpy(file, &length, sizeof(length));
    memcpy(file + sizeof(length), header, size);
    read_file(file, sizeof(length) + size + DATA);
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && data[0] == '{')
        read_header(data, size);
    else
        read_file(data, size);
    read_config(data, size);
    return 0;
}
