/* All-reduce of large messages by NCCL. The own way (collect.cu) reads all ranks' values on every rank, in one
 * launch: right for a few, too much for many. NCCL is opened at run time (library.h), and what is used of it is
 * declared in nccl.c as its manual has it, so nothing of it is needed to build.
 *
 * A group has one communicator for each GPU, all of this process. Each is used by its rank's pilot, so calls of
 * several ranks need not be grouped; sums are in the order of each rank's stream. Errors are numbers from
 * PD_CUDA_NCCL_ERROR on, beside the runtime's. */
#ifndef PD_CUDA_NCCL_H
#define PD_CUDA_NCCL_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/cuda/library.h"

enum { PD_CUDA_NCCL_ERROR = 100000 };

struct pd_cuda_nccl;

/* Communicators of `ranks` GPUs, none twice; the library stays open as long as they are. NULL: `why`, a line. */
struct pd_cuda_nccl *pd_cuda_nccl_open(const struct pd_cuda_library *library, const int *ordinals,
                                       int ranks, char *why, size_t size);

/* No rank may be in a call any more. NULL is nothing. */
void pd_cuda_nccl_close(struct pd_cuda_nccl *nccl);

/* As 2.27.3 is 22703. */
int pd_cuda_nccl_version(const struct pd_cuda_nccl *nccl);

/* Enqueues out[i] = the sum over all ranks' in[i], which may be one; in the thread of this rank's GPU. */
int pd_cuda_nccl_allreduce(struct pd_cuda_nccl *nccl, int rank, const float *in, float *out,
                           size_t count, void *stream);

/* What went wrong in the rank's sums since they were enqueued: 0, or an error. Any thread. */
int pd_cuda_nccl_look(struct pd_cuda_nccl *nccl, int rank);

/* Ends all sums that wait for a rank that does not come, and lets nobody begin another. Any thread; NULL is
 * nothing. */
void pd_cuda_nccl_abandon(struct pd_cuda_nccl *nccl);

/* What an error is to people. */
const char *pd_cuda_nccl_text(const struct pd_cuda_nccl *nccl, int error);

#endif
