#include "worker/link/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 32 * 1024, ALIGNMENT = alignof(max_align_t) };

struct pd_arena_block {
    struct pd_arena_block *next;
    size_t used, capacity;
    alignas(max_align_t) unsigned char bytes[];
};

static void *protobuf_alloc(void *context, size_t bytes)
{
    return pd_arena_alloc(context, bytes);
}

static void protobuf_free(void *context, void *memory)
{
    (void)context;
    (void)memory;
}

void pd_arena_init(struct pd_arena *arena, size_t limit)
{
    arena->blocks = NULL;
    arena->used = 0;
    arena->limit = limit;
    arena->protobuf = (ProtobufCAllocator){protobuf_alloc, protobuf_free, arena};
}

static struct pd_arena_block *add_block(struct pd_arena *arena, size_t bytes)
{
    size_t capacity = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
    struct pd_arena_block *block = malloc(sizeof(*block) + capacity);

    if (!block)
        return NULL;
    block->next = arena->blocks;
    block->used = 0;
    block->capacity = capacity;
    arena->blocks = block;
    return block;
}

void *pd_arena_alloc(struct pd_arena *arena, size_t bytes)
{
    struct pd_arena_block *block = arena->blocks;
    void *memory;

    if (bytes > arena->limit - arena->used)
        return NULL;
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (!block || bytes > block->capacity - block->used)
        block = add_block(arena, bytes);
    if (!block)
        return NULL;
    memory = block->bytes + block->used;
    block->used += bytes;
    arena->used = bytes > arena->limit - arena->used ? arena->limit : arena->used + bytes;
    return memset(memory, 0, bytes);
}

void *pd_arena_array(struct pd_arena *arena, size_t count, size_t size)
{
    if (size && count > SIZE_MAX / size)
        return NULL;
    return pd_arena_alloc(arena, count * size);
}

static void free_blocks(struct pd_arena_block *block)
{
    while (block) {
        struct pd_arena_block *next = block->next;

        free(block);
        block = next;
    }
}

void pd_arena_reset(struct pd_arena *arena)
{
    if (arena->blocks) {
        free_blocks(arena->blocks->next);
        arena->blocks->next = NULL;
        arena->blocks->used = 0;
    }
    arena->used = 0;
}

void pd_arena_free(struct pd_arena *arena)
{
    free_blocks(arena->blocks);
    arena->blocks = NULL;
    arena->used = 0;
}
