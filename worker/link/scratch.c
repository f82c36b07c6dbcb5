#include "worker/link/scratch.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 32 * 1024, ALIGNMENT = alignof(max_align_t) };

struct pd_scratch_block {
    struct pd_scratch_block *next;
    size_t used, capacity;
    alignas(max_align_t) unsigned char bytes[];
};

static void *protobuf_alloc(void *context, size_t bytes)
{
    return pd_scratch_alloc(context, bytes);
}

static void protobuf_free(void *context, void *memory)
{
    (void)context;
    (void)memory;
}

void pd_scratch_init(struct pd_scratch *scratch, size_t limit)
{
    scratch->blocks = NULL;
    scratch->used = 0;
    scratch->limit = limit;
    scratch->protobuf = (ProtobufCAllocator){protobuf_alloc, protobuf_free, scratch};
}

static struct pd_scratch_block *add_block(struct pd_scratch *scratch, size_t bytes)
{
    size_t capacity = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
    struct pd_scratch_block *block = malloc(sizeof(*block) + capacity);

    if (!block)
        return NULL;
    block->next = scratch->blocks;
    block->used = 0;
    block->capacity = capacity;
    scratch->blocks = block;
    return block;
}

void *pd_scratch_alloc(struct pd_scratch *scratch, size_t bytes)
{
    struct pd_scratch_block *block = scratch->blocks;
    void *memory;

    if (bytes > scratch->limit - scratch->used)
        return NULL;
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (!block || bytes > block->capacity - block->used)
        block = add_block(scratch, bytes);
    if (!block)
        return NULL;
    memory = block->bytes + block->used;
    block->used += bytes;
    scratch->used = bytes > scratch->limit - scratch->used ? scratch->limit : scratch->used + bytes;
    return memset(memory, 0, bytes);
}

void *pd_scratch_array(struct pd_scratch *scratch, size_t count, size_t size)
{
    if (size && count > SIZE_MAX / size)
        return NULL;
    return pd_scratch_alloc(scratch, count * size);
}

static void free_blocks(struct pd_scratch_block *block)
{
    while (block) {
        struct pd_scratch_block *next = block->next;

        free(block);
        block = next;
    }
}

void pd_scratch_reset(struct pd_scratch *scratch)
{
    if (scratch->blocks) {
        free_blocks(scratch->blocks->next);
        scratch->blocks->next = NULL;
        scratch->blocks->used = 0;
    }
    scratch->used = 0;
}

void pd_scratch_free(struct pd_scratch *scratch)
{
    free_blocks(scratch->blocks);
    scratch->blocks = NULL;
    scratch->used = 0;
}
