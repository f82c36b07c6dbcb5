#include "worker/model/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/model/json.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors are read as they lie");

enum {
    LENGTH_BYTES = 8,
    INDEX_MAX = 64 << 20, /* bytes of an index file */
};

/* ---- one file ----------------------------------------------------------------------------------
 */

static int read_type(struct pd_file_tensor *tensor, const json_t *entry, struct pd_error *error)
{
    static const struct {
        const char *name;
        enum pd_dtype type;
    } known[] = {{"F32", PD_F32}, {"F16", PD_F16}, {"BF16", PD_BF16}};
    const char *name = json_string_value(json_object_get(entry, "dtype"));

    if (!name)
        return pd_tensor_fail(tensor, PD_INVALID, error, "\"dtype\" is not a string");
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(name, known[i].name) == 0) {
            tensor->type = known[i].type;
            return PD_OK;
        }
    return pd_tensor_fail(tensor, PD_UNSUPPORTED, error,
                          "dtype \"%.32s\" is not read (F32, F16 and BF16 are)", name);
}

static int read_shape(struct pd_file_tensor *tensor, const json_t *entry, struct pd_error *error)
{
    const json_t *list = json_object_get(entry, "shape");
    size_t rank = json_array_size(list);
    uint64_t shape[PD_TENSOR_RANK];

    if (!json_is_array(list) || rank > PD_TENSOR_RANK)
        return pd_tensor_fail(tensor, PD_INVALID, error,
                              "\"shape\" is not a list of 1 to %d integers", PD_TENSOR_RANK);
    for (size_t i = 0; i < rank; i++) {
        const json_t *size = json_array_get(list, i);

        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return pd_tensor_fail(tensor, PD_INVALID, error,
                                  "\"shape\"[%zu] is not an integer of 0 or more", i);
        shape[i] = (uint64_t)json_integer_value(size);
    }
    return pd_tensor_measure(tensor, shape, (int)rank, error);
}

/* `data` has `room` bytes. */
static int place(struct pd_file_tensor *tensor, const json_t *entry, const uint8_t *data,
                 size_t room, struct pd_error *error)
{
    const json_t *list = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(list, 0), *second = json_array_get(list, 1);
    int64_t begin, end;

    if (json_array_size(list) != 2 || !json_is_integer(first) || !json_is_integer(second))
        return pd_tensor_fail(tensor, PD_INVALID, error,
                              "\"data_offsets\" is not a list of two integers");
    begin = json_integer_value(first);
    end = json_integer_value(second);
    if (begin < 0 || end < begin)
        return pd_tensor_fail(tensor, PD_INVALID, error,
                              "\"data_offsets\" %" PRId64 ", %" PRId64 " are no range", begin, end);
    if ((uint64_t)end > room)
        return pd_tensor_fail(
            tensor, PD_INVALID, error,
            "ends at byte %" PRId64
            " of the data, which has only %zu: the file is cut short or the entry "
            "is wrong",
            end, room);
    if ((uint64_t)(end - begin) != tensor->bytes)
        return pd_tensor_fail(tensor, PD_INVALID, error,
                              "takes %" PRId64 " bytes, but its type and shape need %zu",
                              end - begin, tensor->bytes);
    tensor->data = data + begin;
    return PD_OK;
}

static int read_entry(const char *file, const char *name, size_t length, const json_t *entry,
                      const uint8_t *data, size_t room, struct pd_file_tensor *tensor,
                      struct pd_error *error)
{
    int status;

    memset(tensor, 0, sizeof(*tensor));
    tensor->file = file;
    if (!pd_tensor_set_name(tensor, name, length))
        return pd_fail(error, PD_INVALID,
                       "%s: a tensor's name is not 1 to %d characters of printable ASCII", file,
                       PD_TENSOR_NAME - 1);
    if (!json_is_object(entry))
        return pd_tensor_fail(tensor, PD_INVALID, error, "its entry is not an object");
    if ((status = read_type(tensor, entry, error)) != PD_OK ||
        (status = read_shape(tensor, entry, error)) != PD_OK)
        return status;
    return place(tensor, entry, data, room, error);
}

static int read_entries(const char *file, json_t *header, const uint8_t *data, size_t room,
                        struct pd_tensor_table *tensors, struct pd_error *error)
{
    struct pd_file_tensor tensor;
    size_t covered = 0; /* cannot overflow: at most PD_TENSORS_MAX ranges inside one file */
    const char *name;
    json_t *entry;
    int status;

    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        status = read_entry(file, name, strlen(name), entry, data, room, &tensor, error);
        if (status == PD_OK)
            status = pd_tensor_table_add(tensors, &tensor, error);
        if (status != PD_OK)
            return status;
        if (tensor.bytes > room - covered)
            return pd_tensor_fail(&tensor, PD_INVALID, error,
                                  "with it, the tensors take more than the %zu bytes of data",
                                  room);
        covered += tensor.bytes;
    }
    if (covered != room)
        return pd_fail(error, PD_INVALID, "%s: %zu of the %zu bytes of data belong to no tensor",
                       file, room - covered, room);
    return PD_OK;
}

int pd_safetensors_parse(const char *file, const uint8_t *bytes, size_t size,
                         struct pd_tensor_table *tensors, struct pd_error *error)
{
    uint64_t length;
    json_t *header;
    int status;

    if (size < LENGTH_BYTES)
        return pd_fail(error, PD_INVALID, "%s: header: the file ends after %zu bytes", file, size);
    memcpy(&length, bytes, sizeof(length));
    if (length > PD_SAFETENSORS_HEADER_MAX)
        return pd_fail(error, PD_INVALID,
                       "%s: header: %" PRIu64 " bytes, more than %d: not a safetensors file", file,
                       length, PD_SAFETENSORS_HEADER_MAX);
    if (length > size - LENGTH_BYTES)
        return pd_fail(error, PD_INVALID,
                       "%s: header: %" PRIu64 " bytes are announced, but the file ends after %zu",
                       file, length, size - LENGTH_BYTES);
    status = pd_json_parse(file, bytes + LENGTH_BYTES, (size_t)length, &header, error);
    if (status != PD_OK)
        return status;
    status = read_entries(file, header, bytes + LENGTH_BYTES + length,
                          size - LENGTH_BYTES - (size_t)length, tensors, error);
    json_decref(header);
    return status;
}

/* ---- a directory -------------------------------------------------------------------------------
 */

static int join(char *path, size_t size, const char *directory, const char *name,
                struct pd_error *error)
{
    int length = snprintf(path, size, "%s/%s", directory, name);

    if (length < 0 || (size_t)length >= size)
        return pd_fail(error, PD_INVALID, "%.200s: the path is longer than %zu bytes", directory,
                       size - 1);
    return PD_OK;
}

static int map_shard(const char *directory, const char *name, struct pd_shards *shards,
                     struct pd_tensor_table *tensors, struct pd_error *error)
{
    char path[4096];
    struct pd_mapping *file = &shards->files[shards->count];
    int status = join(path, sizeof(path), directory, name, error);

    if (status == PD_OK)
        status = pd_mapping_open(file, path, 0, error);
    if (status != PD_OK)
        return status;
    shards->count++;
    return pd_safetensors_parse(file->name, file->bytes, file->size, tensors, error);
}

/* A shard is a file of this directory and of no other. */
static bool shard_name_is_plain(const char *name)
{
    static const char suffix[] = ".safetensors";
    size_t length = strlen(name);

    if (length < sizeof(suffix) || length > 200 || name[0] == '.' ||
        strcmp(name + length - (sizeof(suffix) - 1), suffix) != 0)
        return false;
    for (; *name; name++)
        if (*name <= ' ' || *name > '~' || *name == '/')
            return false;
    return true;
}

static size_t shard_of(const struct pd_shards *shards, const char *name)
{
    for (size_t i = 0; i < shards->count; i++) {
        const char *slash = strrchr(shards->files[i].name, '/');

        if (slash && strcmp(slash + 1, name) == 0)
            return i;
    }
    return shards->count;
}

/* Maps every file that the index names, once. */
static int map_indexed(const char *directory, const char *index, json_t *weight_map,
                       struct pd_shards *shards, struct pd_tensor_table *tensors,
                       struct pd_error *error)
{
    const char *tensor;
    json_t *value;
    int status;

    json_object_foreach(weight_map, tensor, value)
    {
        const char *name = json_string_value(value);

        if (!name || !shard_name_is_plain(name))
            return pd_fail(
                error, PD_INVALID,
                "%s: a shard's name is not that of a .safetensors file in this directory", index);
        if (shard_of(shards, name) < shards->count)
            continue;
        if (shards->count == PD_SAFETENSORS_SHARDS_MAX)
            return pd_fail(error, PD_INVALID, "%s: more than %d shards", index,
                           PD_SAFETENSORS_SHARDS_MAX);
        status = map_shard(directory, name, shards, tensors, error);
        if (status != PD_OK)
            return status;
    }
    return PD_OK;
}

/* The index and the shards must tell the same story, tensor by tensor. */
static int compare_index(const char *index, const json_t *weight_map,
                         const struct pd_shards *shards, const struct pd_tensor_table *tensors,
                         struct pd_error *error)
{
    for (size_t i = 0; i < tensors->count; i++) {
        const struct pd_file_tensor *tensor = &tensors->tensors[i];
        const char *name = json_string_value(json_object_get(weight_map, tensor->name));

        if (!name)
            return pd_tensor_fail(tensor, PD_INVALID, error, "%s does not name it", index);
        if (tensor->file != shards->files[shard_of(shards, name)].name)
            return pd_tensor_fail(tensor, PD_INVALID, error, "%s expects it in %s", index, name);
    }
    if (json_object_size(weight_map) != tensors->count)
        return pd_fail(error, PD_INVALID, "%s: names %zu tensors, but the shards hold %zu", index,
                       json_object_size(weight_map), tensors->count);
    return PD_OK;
}

static int open_index(const char *directory, const struct pd_mapping *index,
                      struct pd_shards *shards, struct pd_tensor_table *tensors,
                      struct pd_error *error)
{
    json_t *root, *weight_map;
    int status = pd_json_parse(index->name, index->bytes, index->size, &root, error);

    if (status != PD_OK)
        return status;
    weight_map = json_object_get(root, "weight_map");
    if (!json_is_object(weight_map))
        status = pd_fail(error, PD_INVALID, "%s: \"weight_map\" is not an object", index->name);
    if (status == PD_OK)
        status = map_indexed(directory, index->name, weight_map, shards, tensors, error);
    if (status == PD_OK)
        status = pd_tensor_table_seal(tensors, error);
    if (status == PD_OK)
        status = compare_index(index->name, weight_map, shards, tensors, error);
    json_decref(root);
    return status;
}

static int open_directory(const char *directory, struct pd_shards *shards,
                          struct pd_tensor_table *tensors, struct pd_error *error)
{
    char path[4096];
    struct pd_mapping index;
    int status = join(path, sizeof(path), directory, "model.safetensors.index.json", error);

    if (status != PD_OK)
        return status;
    status = pd_mapping_open(&index, path, INDEX_MAX, error);
    if (status == PD_OK) {
        status = open_index(directory, &index, shards, tensors, error);
        pd_mapping_close(&index);
        return status;
    }
    if (status != PD_NOT_FOUND)
        return status;
    status = map_shard(directory, "model.safetensors", shards, tensors, error);
    return status == PD_OK ? pd_tensor_table_seal(tensors, error) : status;
}

int pd_safetensors_open(const char *directory, struct pd_shards *shards,
                        struct pd_tensor_table *tensors, struct pd_error *error)
{
    int status;

    memset(shards, 0, sizeof(*shards));
    shards->files = calloc(PD_SAFETENSORS_SHARDS_MAX, sizeof(*shards->files));
    if (!shards->files)
        return pd_fail(error, PD_NO_MEMORY, "%s: no memory", directory);
    status = open_directory(directory, shards, tensors, error);
    if (status != PD_OK) {
        pd_tensor_table_free(tensors);
        pd_shards_close(shards);
    }
    return status;
}

void pd_shards_close(struct pd_shards *shards)
{
    for (size_t i = 0; i < shards->count; i++)
        pd_mapping_close(&shards->files[i]);
    free(shards->files);
    memset(shards, 0, sizeof(*shards));
}
