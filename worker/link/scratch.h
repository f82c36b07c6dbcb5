/* Memory for one message: allocated piece by piece, bounded as a whole, given back at once.
 *
 * Outgoing messages are built in one, so that a step of a hundred sequences costs no hundred frees.
 * Incoming ones are unpacked into one, because a few bytes of protobuf can ask for many bytes of
 * structs: the scratch's limit is where that ends. Not thread-safe. */
#ifndef PD_SCRATCH_H
#define PD_SCRATCH_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>

struct pd_scratch_block;

struct pd_scratch {
    struct pd_scratch_block *blocks;
    size_t used, limit;          /* bytes; of all blocks together */
    ProtobufCAllocator protobuf; /* gives to protobuf-c's unpack functions; frees nothing */
};

void pd_scratch_init(struct pd_scratch *scratch, size_t limit);

/* Zeroed, aligned for any type; NULL over the limit or without memory. */
void *pd_scratch_alloc(struct pd_scratch *scratch, size_t bytes);
void *pd_scratch_array(struct pd_scratch *scratch, size_t count, size_t size);

/* Forgets everything but keeps one block for the next message. */
void pd_scratch_reset(struct pd_scratch *scratch);
void pd_scratch_free(struct pd_scratch *scratch);

#endif
