#include "worker/model/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF files are read as they lie");

enum value_type {
    TYPE_U8,
    TYPE_I8,
    TYPE_U16,
    TYPE_I16,
    TYPE_U32,
    TYPE_I32,
    TYPE_F32,
    TYPE_BOOL,
    TYPE_STRING,
    TYPE_ARRAY,
    TYPE_U64,
    TYPE_I64,
    TYPE_F64,
    TYPE_COUNT
};

/* Bytes of a value; 0 for those that say themselves how long they are. */
static const uint8_t value_bytes[TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

static const char *const value_names[TYPE_COUNT] = {
    "uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
    "bool",  "string", "array",  "uint64", "int64",  "float64"};

enum {
    DEFAULT_ALIGNMENT = 32,
    ALIGNMENT_MAX = 1 << 20,
    KEY_SHOWN = 96, /* of a key in a message */
};

struct entry {
    struct pd_string key;
    uint32_t type; /* of the value, or of an array's elements */
    bool array;
    uint64_t count;      /* elements of an array, else 1 */
    const uint8_t *data; /* walked: `count` values of `type` lie here inside the file */
};

struct pd_gguf {
    const char *file;
    struct entry *entries; /* ordered by key */
    size_t count;
};

/* ---- the cursor --------------------------------------------------------------------------------
 */

/* Reads forward and never leaves the file. The first fault sticks in `status`; after it everything
 * reads as zero, so a caller asks once after a group of reads. */
struct cursor {
    const char *file;
    const uint8_t *bytes;
    size_t at, size;
    char where[KEY_SHOWN + 32]; /* what is being read: "metadata entry 3" */
    int status;
    struct pd_error *error;
};

static int fault(struct cursor *cursor, enum pd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int fault(struct cursor *cursor, enum pd_status status, const char *format, ...)
{
    char text[PD_ERROR_TEXT];
    va_list args;

    if (cursor->status != PD_OK)
        return cursor->status;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    pd_fail(cursor->error, status, "%s: %s: %s", cursor->file, cursor->where, text);
    cursor->status = status;
    return status;
}

/* NULL after a fault. */
static const uint8_t *take(struct cursor *cursor, uint64_t bytes)
{
    const uint8_t *data = cursor->bytes + cursor->at;

    if (cursor->status != PD_OK)
        return NULL;
    if (bytes > cursor->size - cursor->at) {
        fault(cursor, PD_INVALID,
              "%" PRIu64 " bytes are wanted at offset %zu, but the file ends after %zu", bytes,
              cursor->at, cursor->size);
        return NULL;
    }
    cursor->at += (size_t)bytes;
    return data;
}

static uint32_t take_u32(struct cursor *cursor)
{
    const uint8_t *data = take(cursor, sizeof(uint32_t));
    uint32_t value = 0;

    if (data)
        memcpy(&value, data, sizeof(value));
    return value;
}

static uint64_t take_u64(struct cursor *cursor)
{
    const uint8_t *data = take(cursor, sizeof(uint64_t));
    uint64_t value = 0;

    if (data)
        memcpy(&value, data, sizeof(value));
    return value;
}

static struct pd_string take_string(struct cursor *cursor)
{
    uint64_t length = take_u64(cursor);
    const uint8_t *data = take(cursor, length);

    return data ? (struct pd_string){(const char *)data, (size_t)length}
                : (struct pd_string){"", 0};
}

/* ---- metadata ----------------------------------------------------------------------------------
 */

/* Walks over `count` values of `type`. */
static int skip_values(struct cursor *cursor, uint32_t type, uint64_t count)
{
    uint64_t bytes;

    if (type == TYPE_STRING)
        for (uint64_t i = 0; i < count && cursor->status == PD_OK; i++)
            take_string(cursor);
    else if (__builtin_mul_overflow(count, (uint64_t)value_bytes[type], &bytes))
        fault(cursor, PD_INVALID, "%" PRIu64 " values do not fit in any file", count);
    else
        take(cursor, bytes);
    return cursor->status;
}

static int take_value(struct cursor *cursor, struct entry *entry)
{
    entry->type = take_u32(cursor);
    entry->count = 1;
    if (entry->type == TYPE_ARRAY) {
        entry->array = true;
        entry->type = take_u32(cursor);
        entry->count = take_u64(cursor);
        if (entry->type == TYPE_ARRAY)
            return fault(cursor, PD_UNSUPPORTED, "an array of arrays");
    }
    if (entry->type >= TYPE_COUNT)
        return fault(cursor, PD_INVALID, "value type %" PRIu32 " does not exist", entry->type);
    entry->data = cursor->bytes + cursor->at;
    return skip_values(cursor, entry->type, entry->count);
}

static int shown(const struct pd_string *key)
{
    return key->length < KEY_SHOWN ? (int)key->length : KEY_SHOWN;
}

/* Keys are dotted ASCII words. */
static bool key_is_plain(const struct pd_string *key)
{
    for (size_t i = 0; i < key->length; i++)
        if (key->bytes[i] <= ' ' || key->bytes[i] > '~')
            return false;
    return key->length > 0;
}

static int take_entry(struct cursor *cursor, uint64_t number, struct entry *entry)
{
    snprintf(cursor->where, sizeof(cursor->where), "metadata entry %" PRIu64, number);
    entry->key = take_string(cursor);
    if (!key_is_plain(&entry->key))
        return fault(cursor, PD_INVALID, "the key is not printable ASCII");
    snprintf(cursor->where, sizeof(cursor->where), "metadata %.*s", shown(&entry->key),
             entry->key.bytes);
    return take_value(cursor, entry);
}

static int compare_strings(const struct pd_string *a, const struct pd_string *b)
{
    size_t common = a->length < b->length ? a->length : b->length;
    int order = memcmp(a->bytes, b->bytes, common);

    if (order != 0)
        return order;
    return (a->length > b->length) - (a->length < b->length);
}

static int by_key(const void *a, const void *b)
{
    return compare_strings(&((const struct entry *)a)->key, &((const struct entry *)b)->key);
}

static int take_metadata(struct cursor *cursor, uint64_t count, struct pd_gguf *gguf)
{
    int status;

    gguf->entries = calloc(count ? count : 1, sizeof(*gguf->entries));
    if (!gguf->entries)
        return fault(cursor, PD_NO_MEMORY, "no memory for %" PRIu64 " metadata entries", count);
    for (; gguf->count < count; gguf->count++)
        if ((status = take_entry(cursor, gguf->count, &gguf->entries[gguf->count])) != PD_OK)
            return status;
    qsort(gguf->entries, gguf->count, sizeof(*gguf->entries), by_key);
    for (size_t i = 1; i < gguf->count; i++) {
        const struct pd_string *key = &gguf->entries[i].key;

        if (by_key(&gguf->entries[i - 1], &gguf->entries[i]) == 0)
            return pd_fail(cursor->error, PD_INVALID,
                           "%s: metadata %.*s: there are two of this key", cursor->file, shown(key),
                           key->bytes);
    }
    return PD_OK;
}

/* ---- tensors -----------------------------------------------------------------------------------
 */

/* ggml's numbers; those without a name here have been withdrawn. */
static const struct {
    const char *name;
    int type; /* enum pd_dtype, -1: not read by this build */
} tensor_types[] = {
    [0] = {"F32", PD_F32},    [1] = {"F16", PD_F16},    [2] = {"Q4_0", PD_Q4_0},
    [3] = {"Q4_1", PD_Q4_1},  [6] = {"Q5_0", PD_Q5_0},  [7] = {"Q5_1", -1},
    [8] = {"Q8_0", PD_Q8_0},  [9] = {"Q8_1", -1},       [10] = {"Q2_K", -1},
    [11] = {"Q3_K", -1},      [12] = {"Q4_K", PD_Q4_K}, [13] = {"Q5_K", -1},
    [14] = {"Q6_K", PD_Q6_K}, [15] = {"Q8_K", -1},      [16] = {"IQ2_XXS", -1},
    [17] = {"IQ2_XS", -1},    [18] = {"IQ3_XXS", -1},   [19] = {"IQ1_S", -1},
    [20] = {"IQ4_NL", -1},    [21] = {"IQ3_S", -1},     [22] = {"IQ2_S", -1},
    [23] = {"IQ4_XS", -1},    [24] = {"I8", -1},        [25] = {"I16", -1},
    [26] = {"I32", -1},       [27] = {"I64", -1},       [28] = {"F64", -1},
    [29] = {"IQ1_M", -1},     [30] = {"BF16", PD_BF16}, [34] = {"TQ1_0", -1},
    [35] = {"TQ2_0", -1},     [39] = {"MXFP4", -1},
};

static int set_tensor_type(struct pd_file_tensor *tensor, uint32_t number, struct pd_error *error)
{
    if (number >= sizeof(tensor_types) / sizeof(tensor_types[0]) || !tensor_types[number].name)
        return pd_tensor_fail(tensor, PD_INVALID, error, "type %" PRIu32 " does not exist", number);
    if (tensor_types[number].type < 0)
        return pd_tensor_fail(
            tensor, PD_UNSUPPORTED, error,
            "type %s is not read (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q8_0, Q4_K and "
            "Q6_K are)",
            tensor_types[number].name);
    tensor->type = (enum pd_dtype)tensor_types[number].type;
    return PD_OK;
}

/* Leaves the offset into the data section in *offset: where that begins is known after the last
 * entry. */
static int take_tensor(struct cursor *cursor, uint64_t number, struct pd_file_tensor *tensor,
                       uint64_t *offset)
{
    uint64_t shape[PD_TENSOR_RANK];
    struct pd_string name;
    uint32_t rank, type;

    snprintf(cursor->where, sizeof(cursor->where), "tensor entry %" PRIu64, number);
    name = take_string(cursor);
    if (!pd_tensor_set_name(tensor, name.bytes, name.length))
        return fault(cursor, PD_INVALID, "the name is not 1 to %d characters of printable ASCII",
                     PD_TENSOR_NAME - 1);
    tensor->file = cursor->file;
    snprintf(cursor->where, sizeof(cursor->where), "tensor %.*s", KEY_SHOWN, tensor->name);
    rank = take_u32(cursor);
    if (rank > PD_TENSOR_RANK)
        return fault(cursor, PD_INVALID, "has %" PRIu32 " dimensions, not 1 to %d", rank,
                     PD_TENSOR_RANK);
    for (uint32_t i = rank; i > 0; i--) /* innermost first in the file: turned round, row-major */
        shape[i - 1] = take_u64(cursor);
    type = take_u32(cursor);
    *offset = take_u64(cursor);
    if (cursor->status == PD_OK)
        cursor->status = set_tensor_type(tensor, type, cursor->error);
    if (cursor->status == PD_OK)
        cursor->status = pd_tensor_measure(tensor, shape, (int)rank, cursor->error);
    return cursor->status;
}

/* Turns `offset`, relative to the data section, into an address that was checked. */
static int place_tensor(const struct cursor *cursor, size_t section, size_t alignment,
                        uint64_t offset, struct pd_file_tensor *tensor)
{
    size_t room = cursor->size - section;

    if (offset % alignment != 0)
        return pd_tensor_fail(tensor, PD_INVALID, cursor->error,
                              "offset %" PRIu64 " is not a multiple of the alignment %zu", offset,
                              alignment);
    if (offset > room || tensor->bytes > room - (size_t)offset)
        return pd_tensor_fail(
            tensor, PD_INVALID, cursor->error,
            "%zu bytes at offset %" PRIu64
            " of the data, which has only %zu: the file is cut short or the entry "
            "is wrong",
            tensor->bytes, offset, room);
    tensor->data = cursor->bytes + section + (size_t)offset;
    return PD_OK;
}

static int take_tensors(struct cursor *cursor, uint64_t count, size_t alignment,
                        struct pd_tensor_table *tensors)
{
    uint64_t *offsets = calloc(count ? count : 1, sizeof(*offsets));
    size_t first = tensors->count, section;
    int status = PD_OK;

    if (!offsets)
        return fault(cursor, PD_NO_MEMORY, "no memory for %" PRIu64 " tensor entries", count);
    for (uint64_t i = 0; i < count && status == PD_OK; i++) {
        struct pd_file_tensor tensor = {0};

        status = take_tensor(cursor, i, &tensor, &offsets[i]);
        if (status == PD_OK)
            status = pd_tensor_table_add(tensors, &tensor, cursor->error);
    }
    section = cursor->at + (alignment - cursor->at % alignment) % alignment;
    if (section > cursor->size) /* nothing but padding is missing: the first tensor will say so */
        section = cursor->size;
    for (uint64_t i = 0; i < count && status == PD_OK; i++)
        status = place_tensor(cursor, section, alignment, offsets[i], &tensors->tensors[first + i]);
    free(offsets);
    return status;
}

/* ---- the file ----------------------------------------------------------------------------------
 */

struct header {
    uint64_t tensors, keys;
};

static int take_header(struct cursor *cursor, struct header *header)
{
    const uint8_t *magic;
    uint32_t version;

    snprintf(cursor->where, sizeof(cursor->where), "header");
    magic = take(cursor, 4);
    if (magic && memcmp(magic, "GGUF", 4) != 0)
        return fault(cursor, PD_INVALID, "not a GGUF file: it does not begin with \"GGUF\"");
    version = take_u32(cursor);
    header->tensors = take_u64(cursor);
    header->keys = take_u64(cursor);
    if (cursor->status != PD_OK)
        return cursor->status;
    if (version != 0 && (version & 0xffff) == 0)
        return fault(cursor, PD_UNSUPPORTED, "a big-endian file");
    if (version != 2 && version != 3)
        return fault(cursor, PD_UNSUPPORTED, "version %" PRIu32 " (2 and 3 are read)", version);
    if (header->tensors > PD_TENSORS_MAX || header->tensors > cursor->size)
        return fault(cursor, PD_INVALID, "%" PRIu64 " tensors, more than %d or than the file holds",
                     header->tensors, PD_TENSORS_MAX);
    if (header->keys > PD_GGUF_KEYS_MAX || header->keys > cursor->size)
        return fault(cursor, PD_INVALID,
                     "%" PRIu64 " metadata entries, more than %d or than the file holds",
                     header->keys, PD_GGUF_KEYS_MAX);
    return PD_OK;
}

static int read_alignment(const struct pd_gguf *gguf, size_t *alignment, struct pd_error *error)
{
    int64_t value;
    int status = pd_gguf_integer(gguf, "general.alignment", 8, ALIGNMENT_MAX, &value, error);

    *alignment = DEFAULT_ALIGNMENT;
    if (status == PD_NOT_FOUND)
        return PD_OK;
    if (status != PD_OK)
        return status;
    if (value & (value - 1))
        return pd_fail(error, PD_INVALID,
                       "%s: metadata general.alignment: %" PRId64 " is not a power of two",
                       gguf->file, value);
    *alignment = (size_t)value;
    return PD_OK;
}

static int refuse_split(const struct pd_gguf *gguf, struct pd_error *error)
{
    int64_t parts;
    int status = pd_gguf_integer(gguf, "split.count", 0, UINT16_MAX, &parts, error);

    if (status == PD_NOT_FOUND || (status == PD_OK && parts <= 1))
        return PD_OK;
    if (status != PD_OK)
        return status;
    return pd_fail(error, PD_UNSUPPORTED,
                   "%s: metadata split.count: one of %" PRId64
                   " parts; join them first (llama-gguf-split --merge)",
                   gguf->file, parts);
}

static int parse(struct cursor *cursor, struct pd_gguf *gguf, struct pd_tensor_table *tensors)
{
    struct header header = {0, 0};
    size_t alignment;
    int status;

    if ((status = take_header(cursor, &header)) != PD_OK ||
        (status = take_metadata(cursor, header.keys, gguf)) != PD_OK ||
        (status = refuse_split(gguf, cursor->error)) != PD_OK ||
        (status = read_alignment(gguf, &alignment, cursor->error)) != PD_OK)
        return status;
    return take_tensors(cursor, header.tensors, alignment, tensors);
}

int pd_gguf_parse(const char *file, const uint8_t *bytes, size_t size,
                  struct pd_tensor_table *tensors, struct pd_gguf **gguf, struct pd_error *error)
{
    struct cursor cursor = {.file = file, .bytes = bytes, .size = size, .error = error};
    struct pd_gguf *result = calloc(1, sizeof(*result));
    int status;

    *gguf = NULL;
    if (!result)
        return pd_fail(error, PD_NO_MEMORY, "%s: no memory", file);
    result->file = file;
    status = parse(&cursor, result, tensors);
    if (status != PD_OK) {
        pd_gguf_destroy(result);
        return status;
    }
    *gguf = result;
    return PD_OK;
}

void pd_gguf_destroy(struct pd_gguf *gguf)
{
    if (!gguf)
        return;
    free(gguf->entries);
    free(gguf);
}

const char *pd_gguf_file(const struct pd_gguf *gguf)
{
    return gguf->file;
}

/* ---- getters -----------------------------------------------------------------------------------
 */

static int find(const struct pd_gguf *gguf, const char *key, bool array, const struct entry **entry,
                struct pd_error *error)
{
    struct entry wanted = {.key = {key, strlen(key)}};
    const struct entry *found = NULL;

    if (gguf->count > 0)
        found = bsearch(&wanted, gguf->entries, gguf->count, sizeof(wanted), by_key);
    if (!found)
        return pd_fail(error, PD_NOT_FOUND, "%s: metadata %s: missing", gguf->file, key);
    if (found->array != array)
        return pd_fail(error, PD_INVALID, "%s: metadata %s: is %s array", gguf->file, key,
                       array ? "no" : "an");
    *entry = found;
    return PD_OK;
}

static int fail_type(const struct pd_gguf *gguf, const char *key, const struct entry *entry,
                     const char *wanted, struct pd_error *error)
{
    return pd_fail(error, PD_INVALID, "%s: metadata %s: %s%s where %s is needed", gguf->file, key,
                   entry->array ? "array of " : "", value_names[entry->type], wanted);
}

/* The integer at element `index`; false if the type is none or the value does not fit. */
static bool load_integer(const struct entry *entry, uint64_t index, int64_t *value)
{
    const uint8_t *at = entry->data + index * value_bytes[entry->type];
    uint64_t wide = 0;

    memcpy(&wide, at, value_bytes[entry->type]);
    switch (entry->type) {
    case TYPE_U8:
    case TYPE_U16:
    case TYPE_U32:
        *value = (int64_t)wide;
        return true;
    case TYPE_I8:
        *value = (int8_t)wide;
        return true;
    case TYPE_I16:
        *value = (int16_t)wide;
        return true;
    case TYPE_I32:
        *value = (int32_t)wide;
        return true;
    case TYPE_U64:
        *value = (int64_t)wide;
        return wide <= INT64_MAX;
    case TYPE_I64:
        *value = (int64_t)wide;
        return true;
    default:
        return false;
    }
}

int pd_gguf_integer(const struct pd_gguf *gguf, const char *key, int64_t min, int64_t max,
                    int64_t *value, struct pd_error *error)
{
    const struct entry *entry;
    int status = find(gguf, key, false, &entry, error);

    if (status != PD_OK)
        return status;
    if (!load_integer(entry, 0, value))
        return fail_type(gguf, key, entry, "an integer", error);
    if (*value < min || *value > max)
        return pd_fail(error, PD_INVALID,
                       "%s: metadata %s: %" PRId64 " is not between %" PRId64 " and %" PRId64,
                       gguf->file, key, *value, min, max);
    return PD_OK;
}

int pd_gguf_number(const struct pd_gguf *gguf, const char *key, double *value,
                   struct pd_error *error)
{
    const struct entry *entry;
    int64_t whole;
    float single;
    int status = find(gguf, key, false, &entry, error);

    if (status != PD_OK)
        return status;
    if (entry->type == TYPE_F32) {
        memcpy(&single, entry->data, sizeof(single));
        *value = (double)single;
    } else if (entry->type == TYPE_F64) {
        memcpy(value, entry->data, sizeof(*value));
    } else if (load_integer(entry, 0, &whole)) {
        *value = (double)whole;
    } else {
        return fail_type(gguf, key, entry, "a number", error);
    }
    if (!isfinite(*value))
        return pd_fail(error, PD_INVALID, "%s: metadata %s: not a finite number", gguf->file, key);
    return PD_OK;
}

int pd_gguf_boolean(const struct pd_gguf *gguf, const char *key, bool *value,
                    struct pd_error *error)
{
    const struct entry *entry;
    int status = find(gguf, key, false, &entry, error);

    if (status != PD_OK)
        return status;
    if (entry->type != TYPE_BOOL || *entry->data > 1)
        return fail_type(gguf, key, entry, "a bool of 0 or 1", error);
    *value = *entry->data == 1;
    return PD_OK;
}

/* The string at *at, which parsing has walked; moves *at behind it. */
static struct pd_string load_string(const uint8_t **at)
{
    struct pd_string string;
    uint64_t length;

    memcpy(&length, *at, sizeof(length));
    string.bytes = (const char *)*at + sizeof(length);
    string.length = (size_t)length;
    *at += sizeof(length) + (size_t)length;
    return string;
}

int pd_gguf_string(const struct pd_gguf *gguf, const char *key, struct pd_string *value,
                   struct pd_error *error)
{
    const struct entry *entry;
    const uint8_t *at;
    int status = find(gguf, key, false, &entry, error);

    if (status != PD_OK)
        return status;
    if (entry->type != TYPE_STRING)
        return fail_type(gguf, key, entry, "a string", error);
    at = entry->data;
    *value = load_string(&at);
    return PD_OK;
}

int pd_gguf_strings(const struct pd_gguf *gguf, const char *key, struct pd_string **values,
                    size_t *count, struct pd_error *error)
{
    const struct entry *entry;
    const uint8_t *at;
    int status = find(gguf, key, true, &entry, error);

    *values = NULL;
    *count = 0;
    if (status != PD_OK)
        return status;
    if (entry->type != TYPE_STRING)
        return fail_type(gguf, key, entry, "an array of strings", error);
    if (entry->count == 0)
        return PD_OK;
    *values = calloc(entry->count, sizeof(**values));
    if (!*values)
        return pd_fail(error, PD_NO_MEMORY, "%s: metadata %s: no memory", gguf->file, key);
    *count = (size_t)entry->count;
    at = entry->data;
    for (size_t i = 0; i < *count; i++)
        (*values)[i] = load_string(&at);
    return PD_OK;
}

int pd_gguf_integers(const struct pd_gguf *gguf, const char *key, int32_t **values, size_t *count,
                     struct pd_error *error)
{
    const struct entry *entry;
    int64_t value;
    int status = find(gguf, key, true, &entry, error);

    *values = NULL;
    *count = 0;
    if (status != PD_OK || entry->count == 0)
        return status;
    *values = calloc(entry->count, sizeof(**values));
    if (!*values)
        return pd_fail(error, PD_NO_MEMORY, "%s: metadata %s: no memory", gguf->file, key);
    for (uint64_t i = 0; i < entry->count; i++) {
        if (!load_integer(entry, i, &value) || value < INT32_MIN || value > INT32_MAX) {
            free(*values);
            *values = NULL;
            return fail_type(gguf, key, entry, "an array of 32-bit integers", error);
        }
        (*values)[i] = (int32_t)value;
    }
    *count = (size_t)entry->count;
    return PD_OK;
}

int pd_gguf_floats(const struct pd_gguf *gguf, const char *key, float **values, size_t *count,
                   struct pd_error *error)
{
    const struct entry *entry;
    int status = find(gguf, key, true, &entry, error);

    *values = NULL;
    *count = 0;
    if (status != PD_OK || entry->count == 0)
        return status;
    if (entry->type != TYPE_F32)
        return fail_type(gguf, key, entry, "an array of 32-bit floats", error);
    *values = calloc(entry->count, sizeof(**values));
    if (!*values)
        return pd_fail(error, PD_NO_MEMORY, "%s: metadata %s: no memory", gguf->file, key);
    memcpy(*values, entry->data, entry->count * sizeof(**values));
    *count = (size_t)entry->count;
    return PD_OK;
}
