#include "kernels/cuda/transfer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

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

int pd_cuda_transfer_in(struct pd_cuda_transfer *transfer, void *to, const void *from, size_t bytes)
{
    int error = 0;

    for (size_t at = 0; at < bytes && error == 0; at += transfer->bytes) {
        size_t some = bytes - at < transfer->bytes ? bytes - at : transfer->bytes;
        struct pd_cuda_piece *piece;

        error = pd_cuda_transfer_take(transfer, &piece);
        if (error != 0)
            break;
        memcpy(piece->memory, (const char *)from + at, some);
        error = pd_cuda_transfer_send(piece, (char *)to + at, 0, some);
        pd_cuda_transfer_give(transfer, piece);
    }
    return error;
}

/* Two pieces take turns: one travels while the other is emptied. */
int pd_cuda_transfer_out(struct pd_cuda_transfer *transfer, void *to, const void *from,
                         size_t bytes)
{
    struct pd_cuda_piece *before = NULL;
    size_t begun = 0, done = 0;
    int error = 0;

    while (done < bytes && error == 0) {
        size_t some = bytes - begun < transfer->bytes ? bytes - begun : transfer->bytes;
        struct pd_cuda_piece *piece = NULL;

        if (some > 0)
            error = pd_cuda_transfer_take(transfer, &piece);
        if (piece != NULL)
            error = pd_cuda_lane_copy(piece->lane, piece->memory, (const char *)from + begun, some);
        begun += some;
        if (before != NULL) {
            size_t ready = begun - some - done;
            int waited = pd_cuda_lane_wait(before->lane);

            error = error != 0 ? error : waited;
            memcpy((char *)to + done, before->memory, ready);
            done += ready;
            pd_cuda_transfer_give(transfer, before);
        }
        before = piece;
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
