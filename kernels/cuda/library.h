/* NVIDIA's libraries are opened when the program runs, so that one program runs with and without them,
 * and says which it has. A file is looked for in this order, and the first that opens is it:
 *
 *     1. the folder that the operator names (--cuda-libraries)
 *     2. the toolkit: lib64/ and lib/ of $CUDA_HOME; where the dynamic linker looks ($LD_LIBRARY_PATH,
 *        the program's own lib/, ldconfig's list); the toolkit that this was built with
 *     3. the `nvidia` wheels of the Python at hand: of $VIRTUAL_ENV, of the first python3 of $PATH, of
 *        /usr/local and of ~/.local, in this order
 *
 * Any thread; a library stays open until it was closed as often as it was opened. */
#ifndef PD_CUDA_LIBRARY_H
#define PD_CUDA_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum pd_cuda_library_kind {
    PD_CUDA_LIBRARY_CUBLASLT,
    PD_CUDA_LIBRARY_NCCL, /* asked for by groups of ranks */
    PD_CUDA_LIBRARIES
};

struct pd_cuda_library {
    void *handle;   /* NULL: it is missing */
    char path[256]; /* of the file that was opened */
    char why[256];  /* why a file that is there was not opened; "": there is none */
};

/* Opens `file` ("libnccl.so.2"); `folder` may be NULL or "". False: the library is missing. */
bool pd_cuda_library_open(const char *file, const char *folder, struct pd_cuda_library *library);

/* A missing library is nothing. */
void pd_cuda_library_close(struct pd_cuda_library *library);

/* In memory until the process ends, however often it is closed: what has been at work on a GPU is not made to go, and
 * hundreds of MB take long to come again. */
void pd_cuda_library_keep(const struct pd_cuda_library *library);

/* *function is the address of a symbol, of a pointer's size; false: the library has none such. */
bool pd_cuda_library_find(const struct pd_cuda_library *library, const char *symbol,
                          void *function);

/* ---- all of them, as the runtime (runtime.h) names their files ------------------------------- */

void pd_cuda_libraries_open(const char *folder, struct pd_cuda_library library[PD_CUDA_LIBRARIES]);
void pd_cuda_libraries_close(struct pd_cuda_library library[PD_CUDA_LIBRARIES]);

/* "cuBLASLt of /usr/local/cuda/lib64/libcublasLt.so.13, NCCL missing (libnccl.so.2)" */
void pd_cuda_libraries_tell(const struct pd_cuda_library library[PD_CUDA_LIBRARIES], char *text,
                            size_t size);

#ifdef __cplusplus
}
#endif

#endif
