
/*
 * Messages are unpacked by protobuf-c's own descriptors into protobuf-c's own
 * structures, but not by its code: that scans each message twice and costs
 * more than all else that a token costs here.
 *
 *     bytes -> tag -> field -> value -> member of the structure
 *     `------- next field looked for behind the last one: writers go in order
 *
 * As protobuf has it: the last of a repeated single value counts, parts of one
 * message are merged, numbers may come packed or not.  Fields that are not
 * known are left out.  Zigzag numbers and groups occur in none of our messages
 * and are refused.
 *
 * Memory comes in pieces of blocks and nothing is given back; the next message
 * starts over.  One block is kept for good, so that a usual message costs no
 * malloc().
 */


#include "ngx_http_pd_unpack.h"
#include "ngx_http_pd_wire.h"


#define NGX_HTTP_PD_UNPACK_BLOCK    (64 * 1024)
#define NGX_HTTP_PD_UNPACK_KEEP     (128 * 1024)
#define NGX_HTTP_PD_UNPACK_ALIGN    16
#define NGX_HTTP_PD_UNPACK_DEPTH    32
#define NGX_HTTP_PD_UNPACK_ARRAY    4


typedef struct ngx_http_pd_arena_block_s  ngx_http_pd_arena_block_t;

struct ngx_http_pd_arena_block_s {
    ngx_http_pd_arena_block_t  *next;
    u_char                      *pos;
    u_char                      *end;
};


typedef struct {
    ngx_uint_t                   wire;
    size_t                       size;       /* of a member */
} ngx_http_pd_wire_type_t;


static ngx_int_t ngx_http_pd_unpack_message(ngx_http_pd_arena_t *arena,
    ProtobufCMessage *message, u_char *p, u_char *last, ngx_uint_t depth);
static ngx_inline const ProtobufCFieldDescriptor *ngx_http_pd_unpack_find(
    const ProtobufCMessageDescriptor *type, uint64_t id, unsigned *next);
static ngx_int_t ngx_http_pd_unpack_field(ngx_http_pd_arena_t *arena,
    ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
    ngx_http_pd_wire_t *value, ngx_uint_t depth);
static ngx_int_t ngx_http_pd_unpack_packed(ngx_http_pd_arena_t *arena,
    ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
    ngx_str_t *bytes);
static ngx_inline void ngx_http_pd_unpack_number(void *member,
    const ProtobufCFieldDescriptor *field, uint64_t number);
static ngx_int_t ngx_http_pd_unpack_bytes(ngx_http_pd_arena_t *arena,
    void *member, const ProtobufCFieldDescriptor *field, ngx_str_t *bytes,
    ngx_uint_t depth);
static void *ngx_http_pd_unpack_room(ngx_http_pd_arena_t *arena,
    ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
    size_t more);
static ngx_inline size_t ngx_http_pd_unpack_size(size_t n);
static ngx_int_t ngx_http_pd_unpack_copy(ngx_http_pd_arena_t *arena,
    uint8_t **data, ngx_str_t *bytes, size_t zero);
static void *ngx_http_pd_unpack_alloc(ngx_http_pd_arena_t *arena,
    size_t size);
static ngx_int_t ngx_http_pd_arena_grow(ngx_http_pd_arena_t *arena,
    size_t size);
static void ngx_http_pd_arena_reset(ngx_http_pd_arena_t *arena);


/* by ProtobufCType */

static const ngx_http_pd_wire_type_t  ngx_http_pd_wire_types[] = {
    { NGX_HTTP_PD_WIRE_VARINT, sizeof(int32_t) },                /* INT32 */
    { NGX_HTTP_PD_WIRE_NONE, 0 },                                /* SINT32 */
    { NGX_HTTP_PD_WIRE_32BIT, sizeof(int32_t) },                 /* SFIXED32 */
    { NGX_HTTP_PD_WIRE_VARINT, sizeof(int64_t) },                /* INT64 */
    { NGX_HTTP_PD_WIRE_NONE, 0 },                                /* SINT64 */
    { NGX_HTTP_PD_WIRE_64BIT, sizeof(int64_t) },                 /* SFIXED64 */
    { NGX_HTTP_PD_WIRE_VARINT, sizeof(uint32_t) },               /* UINT32 */
    { NGX_HTTP_PD_WIRE_32BIT, sizeof(uint32_t) },                /* FIXED32 */
    { NGX_HTTP_PD_WIRE_VARINT, sizeof(uint64_t) },               /* UINT64 */
    { NGX_HTTP_PD_WIRE_64BIT, sizeof(uint64_t) },                /* FIXED64 */
    { NGX_HTTP_PD_WIRE_32BIT, sizeof(float) },                   /* FLOAT */
    { NGX_HTTP_PD_WIRE_64BIT, sizeof(double) },                  /* DOUBLE */
    { NGX_HTTP_PD_WIRE_VARINT, sizeof(protobuf_c_boolean) },     /* BOOL */
    { NGX_HTTP_PD_WIRE_VARINT, sizeof(uint32_t) },               /* ENUM */
    { NGX_HTTP_PD_WIRE_BYTES, sizeof(char *) },                  /* STRING */
    { NGX_HTTP_PD_WIRE_BYTES, sizeof(ProtobufCBinaryData) },     /* BYTES */
    { NGX_HTTP_PD_WIRE_BYTES, sizeof(ProtobufCMessage *) }       /* MESSAGE */
};


void *
ngx_http_pd_unpack(ngx_http_pd_arena_t *arena,
    const ProtobufCMessageDescriptor *type, const u_char *data, size_t len)
{
    u_char            *p;
    ProtobufCMessage  *message;

    ngx_http_pd_arena_reset(arena);

    message = ngx_http_pd_unpack_alloc(arena, type->sizeof_message);
    if (message == NULL) {
        return NULL;
    }

    protobuf_c_message_init(type, message);

    p = (u_char *) data;

    if (ngx_http_pd_unpack_message(arena, message, p, p + len, 0) != NGX_OK) {
        return NULL;
    }

    return message;
}


static ngx_int_t
ngx_http_pd_unpack_message(ngx_http_pd_arena_t *arena,
    ProtobufCMessage *message, u_char *p, u_char *last, ngx_uint_t depth)
{
    unsigned                         next;
    ngx_http_pd_wire_t               value;
    const ProtobufCFieldDescriptor  *field;

    if (depth == NGX_HTTP_PD_UNPACK_DEPTH) {
        return NGX_ERROR;
    }

    next = 0;

    while (p < last) {
        p = ngx_http_pd_wire_field(p, last, &value);
        if (p == NULL) {
            return NGX_ERROR;
        }

        field = ngx_http_pd_unpack_find(message->descriptor, value.tag >> 3,
                                        &next);

        if (field
            && ngx_http_pd_unpack_field(arena, message, field, &value, depth)
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_inline const ProtobufCFieldDescriptor *
ngx_http_pd_unpack_find(const ProtobufCMessageDescriptor *type, uint64_t id,
    unsigned *next)
{
    unsigned  i, n;

    n = type->n_fields;

    for (i = *next; i < n && type->fields[i].id < id; i++) { /* void */ }

    if (i == n || type->fields[i].id != id) {
        for (i = 0; i < n && type->fields[i].id != id; i++) { /* void */ }

        if (i == n) {
            return NULL;
        }
    }

    *next = i;

    return &type->fields[i];
}


static ngx_int_t
ngx_http_pd_unpack_field(ngx_http_pd_arena_t *arena,
    ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
    ngx_http_pd_wire_t *value, ngx_uint_t depth)
{
    void                           *member;
    uint32_t                       *which;
    ngx_uint_t                      wire;
    const ngx_http_pd_wire_type_t  *type;

    type = &ngx_http_pd_wire_types[field->type];
    member = (u_char *) message + field->offset;

    wire = value->tag & 7;

    if (wire != type->wire) {

        if (field->label == PROTOBUF_C_LABEL_REPEATED
            && wire == NGX_HTTP_PD_WIRE_BYTES
            && type->wire != NGX_HTTP_PD_WIRE_NONE)
        {
            return ngx_http_pd_unpack_packed(arena, message, field,
                                             &value->bytes);
        }

        return NGX_ERROR;
    }

    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        member = ngx_http_pd_unpack_room(arena, message, field, 1);
        if (member == NULL) {
            return NGX_ERROR;
        }

        ngx_memzero(member, type->size);

    } else if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
        which = (uint32_t *) ((u_char *) message + field->quantifier_offset);

        if (*which != field->id) {
            *which = field->id;
            ngx_memzero(member, type->size);
        }

    } else if (field->label == PROTOBUF_C_LABEL_OPTIONAL
               && field->quantifier_offset)
    {
        *(protobuf_c_boolean *) ((u_char *) message
                                 + field->quantifier_offset) = 1;
    }

    if (type->wire != NGX_HTTP_PD_WIRE_BYTES) {
        ngx_http_pd_unpack_number(member, field, value->number);
        return NGX_OK;
    }

    return ngx_http_pd_unpack_bytes(arena, member, field, &value->bytes,
                                    depth);
}


static ngx_int_t
ngx_http_pd_unpack_packed(ngx_http_pd_arena_t *arena,
    ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
    ngx_str_t *bytes)
{
    u_char                         *p, *last, *member;
    size_t                          n;
    ngx_http_pd_wire_t              value;
    const ngx_http_pd_wire_type_t  *type;

    if (bytes->len == 0) {
        return NGX_OK;
    }

    type = &ngx_http_pd_wire_types[field->type];
    last = bytes->data + bytes->len;

    if (type->wire == NGX_HTTP_PD_WIRE_VARINT) {
        n = 0;

        for (p = bytes->data; p < last; p++) {
            n += (*p < 0x80);
        }

    } else {
        n = bytes->len / type->size;
    }

    if (n == 0) {
        return NGX_ERROR;
    }

    member = ngx_http_pd_unpack_room(arena, message, field, n);
    if (member == NULL) {
        return NGX_ERROR;
    }

    for (p = bytes->data; p < last; member += type->size) {
        p = ngx_http_pd_wire_value(p, last, type->wire, &value);
        if (p == NULL) {
            return NGX_ERROR;
        }

        ngx_http_pd_unpack_number(member, field, value.number);
    }

    return NGX_OK;
}


static ngx_inline void
ngx_http_pd_unpack_number(void *member, const ProtobufCFieldDescriptor *field,
    uint64_t number)
{
    if (field->type == PROTOBUF_C_TYPE_BOOL) {
        *(protobuf_c_boolean *) member = (number != 0);

    } else if (ngx_http_pd_wire_types[field->type].size == sizeof(uint64_t)) {
        *(uint64_t *) member = number;

    } else {
        *(uint32_t *) member = (uint32_t) number;
    }
}


static ngx_int_t
ngx_http_pd_unpack_bytes(ngx_http_pd_arena_t *arena, void *member,
    const ProtobufCFieldDescriptor *field, ngx_str_t *bytes, ngx_uint_t depth)
{
    uint8_t                           *data;
    ProtobufCMessage                  *message;
    ProtobufCBinaryData               *binary;
    const ProtobufCMessageDescriptor  *type;

    switch (field->type) {

    case PROTOBUF_C_TYPE_STRING:
        if (ngx_http_pd_unpack_copy(arena, &data, bytes, 1) != NGX_OK) {
            return NGX_ERROR;
        }

        *(char **) member = (char *) data;
        return NGX_OK;

    case PROTOBUF_C_TYPE_BYTES:
        binary = member;
        binary->len = bytes->len;
        return ngx_http_pd_unpack_copy(arena, &binary->data, bytes, 0);

    default: /* PROTOBUF_C_TYPE_MESSAGE */
        message = *(ProtobufCMessage **) member;

        if (message == NULL) {
            type = field->descriptor;

            message = ngx_http_pd_unpack_alloc(arena, type->sizeof_message);
            if (message == NULL) {
                return NGX_ERROR;
            }

            protobuf_c_message_init(type, message);
            *(ProtobufCMessage **) member = message;
        }

        return ngx_http_pd_unpack_message(arena, message, bytes->data,
                                          bytes->data + bytes->len, depth + 1);
    }
}


/*
 * Room for "more" elements behind those that a repeated field has, counted as
 * there.  An array's size is a power of two and follows from its length.
 */

static void *
ngx_http_pd_unpack_room(ngx_http_pd_arena_t *arena,
    ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
    size_t more)
{
    void    **array;
    u_char   *p;
    size_t   *n, size, room;

    n = (size_t *) ((u_char *) message + field->quantifier_offset);
    array = (void **) ((u_char *) message + field->offset);
    size = ngx_http_pd_wire_types[field->type].size;

    if (*n == 0 || *n + more > ngx_http_pd_unpack_size(*n)) {
        room = ngx_http_pd_unpack_size(*n + more);

        p = ngx_http_pd_unpack_alloc(arena, room * size);
        if (p == NULL) {
            return NULL;
        }

        if (*n) {
            ngx_memcpy(p, *array, *n * size);
        }

        *array = p;
    }

    p = (u_char *) *array + *n * size;
    *n += more;

    return p;
}


static ngx_inline size_t
ngx_http_pd_unpack_size(size_t n)
{
    size_t  size;

    for (size = NGX_HTTP_PD_UNPACK_ARRAY; size < n; size *= 2) { /* void */ }

    return size;
}


static ngx_int_t
ngx_http_pd_unpack_copy(ngx_http_pd_arena_t *arena, uint8_t **data,
    ngx_str_t *bytes, size_t zero)
{
    u_char  *p;

    p = NULL;

    if (bytes->len + zero) {
        p = ngx_http_pd_unpack_alloc(arena, bytes->len + zero);
        if (p == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(p, bytes->data, bytes->len);
        ngx_memzero(p + bytes->len, zero);
    }

    *data = p;

    return NGX_OK;
}


static void *
ngx_http_pd_unpack_alloc(ngx_http_pd_arena_t *arena, size_t size)
{
    u_char                      *p;
    ngx_http_pd_arena_block_t  *block;

    if (size > NGX_HTTP_PD_UNPACK_MAX) {
        return NULL;
    }

    size = ngx_align(size, NGX_HTTP_PD_UNPACK_ALIGN);
    block = arena->blocks;

    if (block == NULL || (size_t) (block->end - block->pos) < size) {

        if (ngx_http_pd_arena_grow(arena, size) != NGX_OK) {
            return NULL;
        }

        block = arena->blocks;
    }

    p = block->pos;
    block->pos += size;

    return p;
}


static ngx_int_t
ngx_http_pd_arena_grow(ngx_http_pd_arena_t *arena, size_t size)
{
    size_t                       header;
    u_char                      *p;
    ngx_http_pd_arena_block_t  *block;

    header = ngx_align(sizeof(ngx_http_pd_arena_block_t),
                       NGX_HTTP_PD_UNPACK_ALIGN);
    size = header + ngx_max(size, NGX_HTTP_PD_UNPACK_BLOCK);

    if (arena->size + size > NGX_HTTP_PD_UNPACK_MAX) {
        return NGX_ERROR;
    }

    p = ngx_alloc(size, ngx_cycle->log);
    if (p == NULL) {
        return NGX_ERROR;
    }

    block = (ngx_http_pd_arena_block_t *) p;
    block->next = arena->blocks;
    block->pos = p + header;
    block->end = p + size;

    arena->blocks = block;
    arena->size += size;

    return NGX_OK;
}


static void
ngx_http_pd_arena_reset(ngx_http_pd_arena_t *arena)
{
    ngx_http_pd_arena_block_t  *block;

    while (arena->blocks) {
        block = arena->blocks;

        if (block->next == NULL && arena->size <= NGX_HTTP_PD_UNPACK_KEEP) {
            block->pos = (u_char *) block
                         + ngx_align(sizeof(ngx_http_pd_arena_block_t),
                                     NGX_HTTP_PD_UNPACK_ALIGN);
            return;
        }

        arena->blocks = block->next;
        arena->size -= block->end - (u_char *) block;
        ngx_free(block);
    }
}


void
ngx_http_pd_arena_free(ngx_http_pd_arena_t *arena)
{
    ngx_http_pd_arena_block_t  *block;

    while (arena->blocks) {
        block = arena->blocks;
        arena->blocks = block->next;
        ngx_free(block);
    }

    arena->size = 0;
}
