/* Memory for one message: allocated piece by piece, bounded as a whole, given back at once.
 *
 * Outgoing messages are built in one, so that a step of a hundred sequences costs no hundred frees.
 * Incoming ones are unpacked into one, because a few bytes of protobuf can ask for many bytes of
 * structs: the arena's limit is where that ends. Not thread-safe. */
#ifndef PD_ARENA_H
#define PD_ARENA_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>

struct pd_arena_block;

struct pd_arena {
    struct pd_arena_block *blocks;
    size_t used, limit;          /* bytes; of all blocks together */
    ProtobufCAllocator protobuf; /* gives to protobuf-c's unpack functions; frees nothing */
};

void pd_arena_init(struct pd_arena *arena, size_t limit);

/* Zeroed, aligned for any type; NULL over the limit or without memory. */
void *pd_arena_alloc(struct pd_arena *arena, size_t bytes);
void *pd_arena_array(struct pd_arena *arena, size_t count, size_t size);

/* Forgets everything but keeps one block for the next message. */
void pd_arena_reset(struct pd_arena *arena);
void pd_arena_free(struct pd_arena *arena);

#endif
