/* Bytes on their way between memory that the device does not read (files, a stage of the hand-off) and
 * the device: through pieces of pinned memory, each with a lane of its own, so that one piece is filled
 * while others travel, beside whatever the stream computes.
 *
 *     files ──fill──▶ piece 0 ──lane 0──┐
 *             fill──▶ piece 1 ──lane 1──┼──▶ the device's memory      several threads may fill
 *                     piece 2 ──lane 2──┘
 *
 * Functions return 0 or the runtime's error number. Any thread. */
#ifndef PD_CUDA_TRANSFER_H
#define PD_CUDA_TRANSFER_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/cuda/runtime.h"
#include "kernels/kernels.h"

struct pd_cuda_transfer;

struct pd_cuda_piece {
    void *memory; /* pinned, of pd_cuda_transfer_bytes */
    struct pd_cuda_lane *lane;
    bool taken;
};

enum { PD_CUDA_PIECES_MAX = 16 };

/* `pieces` of `bytes` each. On failure *transfer is NULL. */
int pd_cuda_transfer_open(struct pd_cuda_runtime *runtime, int pieces, size_t bytes,
                          struct pd_cuda_transfer **transfer);
/* Waits for what is under way; NULL is nothing. */
void pd_cuda_transfer_close(struct pd_cuda_transfer *transfer);
size_t pd_cuda_transfer_bytes(const struct pd_cuda_transfer *transfer);

/* A piece that nobody has and whose last copy has ended; waits for one. On failure it is nobody's. */
int pd_cuda_transfer_take(struct pd_cuda_transfer *transfer, struct pd_cuda_piece **piece);
/* Bytes [at, at + bytes) of a piece begin to travel to the device. */
int pd_cuda_transfer_send(struct pd_cuda_piece *piece, void *to, size_t at, size_t bytes);
/* Whatever still travels: whoever takes it next waits for that. */
void pd_cuda_transfer_give(struct pd_cuda_transfer *transfer, struct pd_cuda_piece *piece);

/* To the device: read when it returns, there when pd_cuda_transfer_settle has. */
int pd_cuda_transfer_in(struct pd_cuda_transfer *transfer, void *to, const void *from,
                        size_t bytes);

/* The same of ranges, between the device's memory at `pool` and the host's at `host`: each piece has as many as it
 * holds one after the other, and they travel together (batch.h). */
int pd_cuda_transfer_scatter(struct pd_cuda_transfer *transfer, void *pool, const void *host,
                             const struct pd_export_range *ranges, size_t count);
/* From the device: done when it returns. Of two pieces at least. */
int pd_cuda_transfer_gather(struct pd_cuda_transfer *transfer, void *host, const void *pool,
                            const struct pd_export_range *ranges, size_t count);

/* All that was sent before has arrived. */
int pd_cuda_transfer_settle(struct pd_cuda_transfer *transfer);

#endif
