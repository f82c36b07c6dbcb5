/* What a test may ask of the shim that a program does not. */
#ifndef PD_SIMT_CONTROL_H
#define PD_SIMT_CONTROL_H

#include "kernels/cuda/library.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The next `calls` calls of the runtime (launches included) work; every later one fails with
 * `error`, as after a sticky error of a GPU. calls < 0: none fails. */
void pd_simt_fail_after(long calls, int error);

/* Replays of recordings since the program started. */
long pd_simt_replays(void);

/* Products that were asked of the library that stands in for cuBLASLt. */
long pd_simt_gemms(void);

/* The file that stands in for a library from here on; the one that did. */
const char *pd_simt_library_file(enum pd_cuda_library_kind kind, const char *file);

#ifdef __cplusplus
}
#endif

#endif
