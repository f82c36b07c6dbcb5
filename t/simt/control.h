/* What a test may ask of the shim that a program does not. */
#ifndef PD_SIMT_CONTROL_H
#define PD_SIMT_CONTROL_H

#include <stddef.h>

#include "kernels/cuda/library.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The next `calls` calls of the runtime (launches included) work; every later one fails with
 * `error`, as after a sticky error of a GPU. calls < 0: none fails. */
void pd_simt_fail_after(long calls, int error);

/* Replays of recordings since the program started. */
long pd_simt_replays(void);

/* Of the library that stands in for cuBLASLt, since the program started. The first three say what it does. */
struct pd_simt_gemms {
    int offers, quickest; /* algorithms for each product, and which of them takes the least time */
    bool no_memory;       /* to time one in */
    long asked, timed, run;   /* for offers, algorithms, products */
    long biases, accumulated; /* of the products */
    long last;                /* algorithm of the last product */
};

struct pd_simt_gemms *pd_simt_gemms(void);

/* Bytes of device memory that are allocated now, of all GPUs; what is pinned is the host's. */
size_t pd_simt_held(void);

/* The file that stands in for a library from here on; the one that did. */
const char *pd_simt_library_file(enum pd_cuda_library_kind kind, const char *file);

#ifdef __cplusplus
}
#endif

#endif
