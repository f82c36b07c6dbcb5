/* safetensors: one file, or several under an index.
 *
 *   header length, 8 bytes | JSON header | data
 *   {"NAME": {"dtype": "BF16", "shape": [4096, 4096], "data_offsets": [begin, end]}, ...}
 *
 * As with the official reader, offsets count from the end of the header, every byte of the data
 * belongs to exactly one tensor, and an entry's length is what its type and shape say. */
#ifndef PD_SAFETENSORS_H
#define PD_SAFETENSORS_H

#include "worker/model/mapping.h"
#include "worker/model/tensors.h"

enum {
    PD_SAFETENSORS_HEADER_MAX = 100 * 1000 * 1000, /* bytes, as the official reader has it */
    PD_SAFETENSORS_SHARDS_MAX = 1024,
};

/* Appends one file's tensors. `file` (for messages) and `bytes` are borrowed as long as the table
 * is used. That no two tensors share a byte is found when the caller seals the table. */
int pd_safetensors_parse(const char *file, const uint8_t *bytes, size_t size,
                         struct pd_tensor_table *tensors, struct pd_error *error);

struct pd_shards {
    struct pd_mapping *files;
    size_t count;
};

/* Maps and parses model.safetensors.index.json's shards, or else model.safetensors, of `directory`.
 * On failure nothing stays mapped. The table's tensors point into `shards`. The table is sealed. */
int pd_safetensors_open(const char *directory, struct pd_shards *shards,
                        struct pd_tensor_table *tensors, struct pd_error *error);
void pd_shards_close(struct pd_shards *shards);

#endif
