/* The KV pool as a device of RDMA sees it: registered for its own writes and for remote reads. Of memory of
 * a GPU the first way that works is taken:
 *
 *     1. a dmabuf of it                            the kernel's own way; the driver of the GPU exports one
 *     2. its address, as if it were the host's     nvidia-peermem (module) translates it
 *     3. the stage in the host's memory (pool.h)   always works, and costs two copies
 *
 * The first two move bytes from GPU to GPU; no processor sees them, so they cannot be summed
 * (--kv-checksum), and then the third is taken at once. */
#ifndef PD_KVX_RDMA_MEMORY_H
#define PD_KVX_RDMA_MEMORY_H

#include <infiniband/verbs.h>

#include "worker/kvx/pool.h"

enum { PD_RDMA_WHY = 256 };

struct pd_rdma_memory {
    struct ibv_mr *region; /* its addr is what offsets of the pool are added to, at either end */
    bool direct;           /* the device's own memory, not the stage */
    const char *kind;      /* for the log, such as "GPU memory by dmabuf" */
    char why[PD_RDMA_WHY]; /* why not a better way; empty: it is the best */
};

/* `summed`: bytes have to pass through the host. PD_OK; or PD_UNSUPPORTED with errno telling why not even
 * the last way works. */
int pd_rdma_register(struct ibv_pd *domain, const struct pd_pool *pool, bool summed,
                     struct pd_rdma_memory *memory);

#endif
