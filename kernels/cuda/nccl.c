#include "kernels/cuda/nccl.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"

/* ---- NCCL's own, as its manual declares them ------------------------------------------------- */

enum { SUCCESS = 0, FLOAT32 = 7, SUM = 0 }; /* ncclResult_t, ncclDataType_t, ncclRedOp_t */

/* Before it, a version was another number, and communicators could not be aborted in peace. */
enum { OLDEST = 20900 };

struct calls {
    int (*version)(int *version);
    int (*init_all)(void **comms, int count, const int *ordinals);
    int (*allreduce)(const void *in, void *out, size_t count, int type, int operation, void *comm,
                     void *stream);
    int (*async_error)(void *comm, int *error);
    int (*abort)(void *comm);
    int (*destroy)(void *comm);
    const char *(*text)(int error);
};

struct pd_cuda_nccl {
    struct calls call;
    int ranks, version;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t left;
    bool given_up;
    bool within[PD_RANKS_MAX]; /* the rank's pilot is in a call */
    void *comm[PD_RANKS_MAX];  /* NULL: aborted */
};

static bool find_all(const struct pd_cuda_library *library, struct calls *call)
{
    return pd_cuda_library_find(library, "ncclGetVersion", &call->version) &&
           pd_cuda_library_find(library, "ncclCommInitAll", &call->init_all) &&
           pd_cuda_library_find(library, "ncclAllReduce", &call->allreduce) &&
           pd_cuda_library_find(library, "ncclCommGetAsyncError", &call->async_error) &&
           pd_cuda_library_find(library, "ncclCommAbort", &call->abort) &&
           pd_cuda_library_find(library, "ncclCommDestroy", &call->destroy) &&
           pd_cuda_library_find(library, "ncclGetErrorString", &call->text);
}

/* ---- life ------------------------------------------------------------------------------------ */

static bool begin(struct pd_cuda_nccl *nccl, const struct pd_cuda_library *library,
                  const int *ordinals, char *why, size_t size)
{
    void *comms[PD_RANKS_MAX] = {NULL};
    int error;

    if (nccl->call.version(&nccl->version) != SUCCESS || nccl->version < OLDEST) {
        snprintf(why, size, "it is older than 2.9");
        return false;
    }
    error = nccl->call.init_all(comms, nccl->ranks, ordinals);
    if (error != SUCCESS) {
        snprintf(why, size, "ncclCommInitAll of %d GPUs: %s", nccl->ranks, nccl->call.text(error));
        return false;
    }
    memcpy(nccl->comm, comms, sizeof(comms));
    pd_cuda_library_keep(library);
    return true;
}

struct pd_cuda_nccl *pd_cuda_nccl_open(const struct pd_cuda_library *library, const int *ordinals,
                                       int ranks, char *why, size_t size)
{
    struct pd_cuda_nccl *nccl = calloc(1, sizeof(*nccl));

    if (nccl == NULL) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    nccl->ranks = ranks;
    pthread_mutex_init(&nccl->lock, NULL);
    pthread_cond_init(&nccl->left, NULL);
    if (!find_all(library, &nccl->call))
        snprintf(why, size, "it lacks a function");
    else if (begin(nccl, library, ordinals, why, size))
        return nccl;
    free(nccl);
    return NULL;
}

void pd_cuda_nccl_close(struct pd_cuda_nccl *nccl)
{
    if (nccl == NULL)
        return;
    for (int r = 0; r < nccl->ranks; r++)
        if (nccl->comm[r] != NULL)
            nccl->call.destroy(nccl->comm[r]);
    pthread_cond_destroy(&nccl->left);
    pthread_mutex_destroy(&nccl->lock);
    free(nccl);
}

enum { PATIENCE_MS = 100 };

/* A call that only enqueues is over in microseconds; one that is not waits for a rank that does not come, and
 * ends with its communicator. */
static void wait_outside(struct pd_cuda_nccl *nccl, int rank, const struct timespec *end)
{
    while (nccl->within[rank] && pthread_cond_timedwait(&nccl->left, &nccl->lock, end) != ETIMEDOUT)
        ;
}

void pd_cuda_nccl_abandon(struct pd_cuda_nccl *nccl)
{
    struct timespec end;

    if (nccl == NULL)
        return;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += PATIENCE_MS * 1000000L;
    end.tv_sec += end.tv_nsec / 1000000000L;
    end.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&nccl->lock);
    nccl->given_up = true;
    for (int r = 0; r < nccl->ranks; r++) {
        void *comm;

        wait_outside(nccl, r, &end);
        comm = nccl->comm[r];
        nccl->comm[r] = NULL;
        if (comm != NULL)
            nccl->call.abort(comm);
    }
    pthread_mutex_unlock(&nccl->lock);
}

int pd_cuda_nccl_version(const struct pd_cuda_nccl *nccl)
{
    return nccl->version;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* The rank's communicator, which nobody aborts before it has left or has been waited for; NULL: the group was
 * given up. */
static void *enter(struct pd_cuda_nccl *nccl, int rank)
{
    void *comm;

    pthread_mutex_lock(&nccl->lock);
    comm = nccl->given_up ? NULL : nccl->comm[rank];
    nccl->within[rank] = comm != NULL;
    pthread_mutex_unlock(&nccl->lock);
    return comm;
}

static void leave(struct pd_cuda_nccl *nccl, int rank)
{
    pthread_mutex_lock(&nccl->lock);
    nccl->within[rank] = false;
    pthread_cond_broadcast(&nccl->left);
    pthread_mutex_unlock(&nccl->lock);
}

int pd_cuda_nccl_allreduce(struct pd_cuda_nccl *nccl, int rank, const float *in, float *out,
                           size_t count, void *stream)
{
    void *comm = enter(nccl, rank);
    int error;

    if (comm == NULL)
        return PD_CUDA_NCCL_ERROR;
    error = nccl->call.allreduce(in, out, count, FLOAT32, SUM, comm, stream);
    leave(nccl, rank);
    return error == SUCCESS ? 0 : PD_CUDA_NCCL_ERROR + error;
}

int pd_cuda_nccl_look(struct pd_cuda_nccl *nccl, int rank)
{
    int error = SUCCESS;

    pthread_mutex_lock(&nccl->lock);
    if (nccl->comm[rank] != NULL)
        nccl->call.async_error(nccl->comm[rank], &error);
    pthread_mutex_unlock(&nccl->lock);
    return error == SUCCESS ? 0 : PD_CUDA_NCCL_ERROR + error;
}

const char *pd_cuda_nccl_text(const struct pd_cuda_nccl *nccl, int error)
{
    return error == PD_CUDA_NCCL_ERROR ? "the group was given up"
                                       : nccl->call.text(error - PD_CUDA_NCCL_ERROR);
}
