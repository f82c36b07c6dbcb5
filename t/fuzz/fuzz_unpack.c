/* The module's unpacker beside protobuf-c's own: what both take is the same message, and what
 * protobuf-c takes and writes again ours takes too. Unknown fields, which ours leaves out, are
 * taken out of protobuf-c's first.
 *
 * Where parts of a message merge, protobuf-c forgets numbers of the earlier part. It frees that part
 * then, so bytes for which it frees anything are only compared after it has written them again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ngx_http_pd_unpack.h"
#include "proto/pd.pb-c.h"

enum { DEPTH = 32 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int truth)
{
    if (!truth)
        abort();
}

static size_t frees;

static void *allocate(void *context, size_t size)
{
    return malloc(size);
}

static void release(void *context, void *piece)
{
    frees += piece != NULL;
    free(piece);
}

/* The messages that a field holds: an array, of which a single one is the shortest. */
static ProtobufCMessage **children(ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
                                   size_t *count)
{
    char *base = (char *)message;

    *count = 0;
    if (field->type != PROTOBUF_C_TYPE_MESSAGE)
        return NULL;
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        *count = *(size_t *)(base + field->quantifier_offset);
        return *(ProtobufCMessage ***)(base + field->offset);
    }
    if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF &&
        *(uint32_t *)(base + field->quantifier_offset) != field->id)
        return NULL;
    *count = *(ProtobufCMessage **)(base + field->offset) != NULL;
    return (ProtobufCMessage **)(base + field->offset);
}

/* Takes the unknown fields out; returns how deep messages lie in each other. */
static int strip(ProtobufCMessage *message)
{
    int depth = 0;

    for (unsigned i = 0; i < message->n_unknown_fields; i++)
        free(message->unknown_fields[i].data);
    free(message->unknown_fields);
    message->unknown_fields = NULL;
    message->n_unknown_fields = 0;
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        size_t count;
        ProtobufCMessage **child = children(message, &message->descriptor->fields[i], &count);

        for (size_t j = 0; j < count; j++) {
            int below = strip(child[j]);

            depth = below > depth ? below : depth;
        }
    }
    return depth + 1;
}

static uint8_t *pack(const ProtobufCMessage *message, size_t *size)
{
    uint8_t *bytes = malloc(protobuf_c_message_get_packed_size(message) + 1);

    *size = protobuf_c_message_pack(message, bytes);
    return bytes;
}

static void compare(const ProtobufCMessage *ours, const uint8_t *expected, size_t expected_size)
{
    size_t size;
    uint8_t *bytes = pack(ours, &size);

    require(size == expected_size && !memcmp(bytes, expected, size));
    free(bytes);
}

static void both(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t size)
{
    static ngx_http_pd_arena_t arena;
    ProtobufCAllocator allocator = {allocate, release, NULL};
    ProtobufCMessage *ours, *theirs;
    uint8_t *bytes;
    size_t length;

    frees = 0;
    theirs = protobuf_c_message_unpack(type, &allocator, size, data);
    ours = ngx_http_pd_unpack(&arena, type, data, size);
    if (!theirs)
        return;
    if (strip(theirs) <= DEPTH) {
        bytes = pack(theirs, &length);
        if (ours && !frees)
            compare(ours, bytes, length);
        ours = ngx_http_pd_unpack(&arena, type, bytes, length);
        require(ours != NULL);
        compare(ours, bytes, length);
        free(bytes);
    }
    protobuf_c_message_free_unpacked(theirs, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const ProtobufCMessageDescriptor *const types[] = {
        &pd__v1__from_worker__descriptor, &pd__v1__register_request__descriptor,
        &pd__v1__sequence_step__descriptor,
        &pd__v1__submit__descriptor, /* floats, booleans, a value of every kind */
    };

    if (size < 1)
        return 0;
    both(types[data[0] % 4], data + 1, size - 1);
    return 0;
}
