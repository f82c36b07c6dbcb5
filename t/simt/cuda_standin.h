/* What stands in for the CUDA runtime, the driver and cuBLASLt under gpu_runtime.cu and gpu_gemm.cu, which are compiled
 * for the host then: GPUS devices, whose memory is the host's and whose streams do nothing before somebody waits for
 * them. It computes little, and is strict about what a GPU is strict about:
 *
 *     a thread         that has not said which GPU it means may not call for one; a stream, an event or a launch is of
 *                      the GPU that the calling thread means
 *     a recording      takes what can be recorded and nothing else, on its own thread
 *     memory           is released once; mapped in whole granules, by one GPU that was given access; unmapped before its
 *                      address is given back
 *     a product        is of operands that lie as far aligned as its algorithm was told, with a workspace
 *
 * Whoever breaks one of these ends the program with a line. */
#ifndef PD_SIMT_CUDA_STANDIN_H
#define PD_SIMT_CUDA_STANDIN_H

#include <stddef.h>

enum { STANDIN_GPUS = 4, STANDIN_GRANULE = 2 << 20 };

/* What the GPUs can, and what they were asked for; a test sets and reads it. */
struct standin {
    bool maps, lends, direct; /* cuMemCreate; POSIX handles; memory for network cards */
    bool flushes;             /* a thread may flush what network cards have written */
    bool reaches;             /* GPUs reach each other's memory */
    long fail_after;          /* calls that work before one fails; < 0: none does */
    int error;                /* of that one */
    long calls;               /* so far */
    long flushed[STANDIN_GPUS];
    size_t free_bytes[STANDIN_GPUS];
    int offers; /* algorithms for each product */
};

extern struct standin standin;

/* What is alive, of everything that has to be released: streams, events, allocations, handles, mappings,
 * addresses, recordings, descriptors. */
long standin_alive(void);

/* The GPU that the calling thread means; -1: it has not said. */
int standin_current(void);

#endif
