/* Any bytes as a safetensors file, and as a config.json. */
#include <stdint.h>
#include <stddef.h>

#include "worker/model/config.h"
#include "worker/model/json.h"
#include "worker/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
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
    read_config(data, size);
    return 0;
}
