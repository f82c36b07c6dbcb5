#include "kernels/cuda/transfer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/batch.h"

struct pd_cuda_transfer {
    struct pd_cuda_runtime *runtime;
    size_t bytes;
    int count, next; /* next: where the search for a free piece begins, so that all take turns */
    pthread_mutex_t lock; /* guards `taken` and `next` */
    pthread_cond_t given;
    struct pd_cuda_piece piece[PD_CUDA_PIECES_MAX];
};

int pd_cuda_transfer_open(struct pd_cuda_runtime *runtime, int pieces, size_t bytes,
                          struct pd_cuda_transfer **out)
{
    struct pd_cuda_transfer *transfer = calloc(1, sizeof(*transfer));
    int error = 0;

    *out = NULL;
    if (transfer == NULL)
        return PD_CUDA_NO_MEMORY;
    transfer->runtime = runtime;
    transfer->bytes = bytes;
    pthread_mutex_init(&transfer->lock, NULL);
    pthread_cond_init(&transfer->given, NULL);
    for (int i = 0; i < pieces && i < PD_CUDA_PIECES_MAX && error == 0; i++) {
        struct pd_cuda_piece *piece = &transfer->piece[transfer->count++];

        error = pd_cuda_allocate_pinned(runtime, bytes, &piece->memory);
        if (error == 0)
            error = pd_cuda_lane_open(runtime, &piece->lane);
    }
    if (error != 0)
        pd_cuda_transfer_close(transfer);
    else
        *out = transfer;
    return error;
}

void pd_cuda_transfer_close(struct pd_cuda_transfer *transfer)
{
    if (transfer == NULL)
        return;
    for (int i = 0; i < transfer->count; i++) {
        pd_cuda_lane_close(transfer->piece[i].lane);
        pd_cuda_free_pinned(transfer->runtime, transfer->piece[i].memory);
    }
    pthread_cond_destroy(&transfer->given);
    pthread_mutex_destroy(&transfer->lock);
    free(transfer);
}

size_t pd_cuda_transfer_bytes(const struct pd_cuda_transfer *transfer)
{
    return transfer->bytes;
}

static struct pd_cuda_piece *find_free(struct pd_cuda_transfer *transfer)
{
    for (int i = 0; i < transfer->count; i++) {
        int at = (transfer->next + i) % transfer->count;

        if (!transfer->piece[at].taken) {
            transfer->next = (at + 1) % transfer->count;
            return &transfer->piece[at];
        }
    }
    return NULL;
}

void pd_cuda_transfer_give(struct pd_cuda_transfer *transfer, struct pd_cuda_piece *piece)
{
    pthread_mutex_lock(&transfer->lock);
    piece->taken = false;
    pthread_cond_signal(&transfer->given);
    pthread_mutex_unlock(&transfer->lock);
}

int pd_cuda_transfer_take(struct pd_cuda_transfer *transfer, struct pd_cuda_piece **piece)
{
    struct pd_cuda_piece *found;
    int error;

    pthread_mutex_lock(&transfer->lock);
    while ((found = find_free(transfer)) == NULL) /* whoever has one gives it back unasked */
        pthread_cond_wait(&transfer->given, &transfer->lock);
    found->taken = true;
    pthread_mutex_unlock(&transfer->lock);
    error = pd_cuda_lane_wait(found->lane);
    if (error != 0)
        pd_cuda_transfer_give(transfer, found);
    *piece = error == 0 ? found : NULL;
    return error;
}

int pd_cuda_transfer_send(struct pd_cuda_piece *piece, void *to, size_t at, size_t bytes)
{
    return pd_cuda_lane_copy(piece->lane, to, (const char *)piece->memory + at, bytes);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

/* Where the next piece's load begins. */
struct cursor {
    const struct pd_export_range *ranges;
    size_t count, at, done; /* done: bytes of ranges[at] */
    size_t used;            /* of the piece */
};

/* The next part of a range that goes into the piece, and where it is on the host; false: the piece is full, or
 * all is in. Whoever walks again from the same cursor gets the same parts. */
static bool next_part(struct cursor *cursor, size_t bytes, struct pd_cuda_range *part, size_t *host)
{
    const struct pd_export_range *range = &cursor->ranges[cursor->at];
    size_t start =
        (cursor->used + PD_CUDA_RANGE_UNIT - 1) / PD_CUDA_RANGE_UNIT * PD_CUDA_RANGE_UNIT;
    size_t some;

    if (cursor->at == cursor->count || start >= bytes)
        return false;
    some = range->bytes - cursor->done;
    if (some > bytes - start)
        some = bytes - start;
    *part = (struct pd_cuda_range){range->offset + cursor->done, start, some};
    *host = range->other + cursor->done;
    cursor->used = start + some;
    cursor->done += some;
    if (cursor->done == range->bytes) {
        cursor->at++;
        cursor->done = 0;
    }
    return true;
}

/* What fits into the piece is on its way; the cursor stands before the next piece's. */
static int begin(struct pd_cuda_transfer *transfer, const struct pd_cuda_piece *piece, void *pool,
                 bool out, struct cursor *cursor)
{
    struct pd_cuda_batch batch;
    struct pd_cuda_range part;
    size_t host;
    int error = 0;

    pd_cuda_batch_begin(&batch, piece->lane, pool, piece->memory, out);
    cursor->used = 0;
    while (error == 0 && next_part(cursor, transfer->bytes, &part, &host))
        error = pd_cuda_batch_add(&batch, part);
    return error != 0 ? error : pd_cuda_batch_end(&batch);
}

int pd_cuda_transfer_scatter(struct pd_cuda_transfer *transfer, void *pool, const void *host,
                             const struct pd_export_range *ranges, size_t count)
{
    struct cursor cursor = {ranges, count, 0, 0, 0};
    int error = 0;

    while (cursor.at < count && error == 0) {
        struct cursor fill = cursor;
        struct pd_cuda_range part;
        struct pd_cuda_piece *piece;
        size_t at;

        error = pd_cuda_transfer_take(transfer, &piece);
        if (error != 0)
            break;
        fill.used = 0;
        while (next_part(&fill, transfer->bytes, &part, &at))
            memcpy((char *)piece->memory + part.buffer, (const char *)host + at, part.bytes);
        error = begin(transfer, piece, pool, false, &cursor);
        pd_cuda_transfer_give(transfer, piece);
    }
    return error;
}

int pd_cuda_transfer_in(struct pd_cuda_transfer *transfer, void *to, const void *from, size_t bytes)
{
    const struct pd_export_range all = {0, 0, bytes};

    return pd_cuda_transfer_scatter(transfer, to, from, &all, 1);
}

/* A piece whose load began at the cursor. */
static int empty(struct pd_cuda_transfer *transfer, struct pd_cuda_piece *piece,
                 struct cursor cursor, void *host)
{
    int error = pd_cuda_lane_wait(piece->lane);
    struct pd_cuda_range part;
    size_t at;

    cursor.used = 0;
    while (error == 0 && next_part(&cursor, transfer->bytes, &part, &at))
        memcpy((char *)host + at, (const char *)piece->memory + part.buffer, part.bytes);
    pd_cuda_transfer_give(transfer, piece);
    return error;
}

/* Two pieces take turns: one travels while the other is emptied. */
int pd_cuda_transfer_gather(struct pd_cuda_transfer *transfer, void *host, const void *pool,
                            const struct pd_export_range *ranges, size_t count)
{
    struct cursor cursor = {ranges, count, 0, 0, 0}, begun = cursor;
    struct pd_cuda_piece *before = NULL;
    int error = 0;

    while (error == 0 && (cursor.at < count || before != NULL)) {
        struct cursor from = cursor;
        struct pd_cuda_piece *piece = NULL;

        if (cursor.at < count)
            error = pd_cuda_transfer_take(transfer, &piece);
        if (piece != NULL)
            error = begin(transfer, piece, (void *)(uintptr_t)pool, true, &cursor);
        if (before != NULL) {
            int emptied = empty(transfer, before, begun, host);

            error = error != 0 ? error : emptied;
        }
        before = piece;
        begun = from;
    }
    if (before != NULL)
        pd_cuda_transfer_give(transfer, before);
    return error;
}

int pd_cuda_transfer_settle(struct pd_cuda_transfer *transfer)
{
    int error = 0;

    for (int i = 0; i < transfer->count; i++) {
        int waited = pd_cuda_lane_wait(transfer->piece[i].lane);

        error = error != 0 ? error : waited;
    }
    return error;
}
