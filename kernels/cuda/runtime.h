/* What the backend needs of a CUDA device beside its kernels: memory, one stream, two events. On a
 * GPU it is runtime.cu over the CUDA runtime; under t/simt/ it is the host's memory, and everything
 * has run when a call returns. So the whole backend, not only its kernels, runs without a GPU.
 *
 * Functions return 0 or the runtime's error number, which pd_cuda_error_text explains. One thread
 * (the engine's, or a rank's pilot) makes all calls that take a stream; memory may be had from several
 * threads at once. */
#ifndef PD_CUDA_RUNTIME_H
#define PD_CUDA_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/library.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pd_cuda_runtime;
struct pd_cuda_ranges; /* cuda.h */

enum { PD_CUDA_NO_MEMORY = 2 }; /* the error number of memory that is not there */

/* Error numbers of pd_cuda_open where there is nothing to open. */
enum { PD_CUDA_NO_DRIVER = 35, PD_CUDA_NO_DEVICE = 100 };

struct pd_cuda_device_info {
    char name[64];
    int major, minor; /* compute capability */
    uint64_t memory_total, memory_free;
};

/* The file of a library whose interface this was compiled with. */
const char *pd_cuda_library_file(enum pd_cuda_library_kind kind);

/* Opens GPU `ordinal`, and on it cuBLASLt, which stays open as long: without it (NULL) no pd_cuda_gemm_
 * call is to be made. On failure *runtime is NULL and `error` has a line for people. */
int pd_cuda_open(int ordinal, const struct pd_cuda_library *cublaslt,
                 struct pd_cuda_runtime **runtime, char *error, size_t size);
void pd_cuda_close(struct pd_cuda_runtime *runtime);

/* Bytes of GPU `ordinal`, all and free, before it is opened. */
int pd_cuda_memory(int ordinal, uint64_t *total, uint64_t *available);
void pd_cuda_info(struct pd_cuda_runtime *runtime, struct pd_cuda_device_info *info);
const char *pd_cuda_error_text(int error);

/* Makes the calling thread one that launches on this GPU, until it calls for another. The calls below do it
 * themselves; launchers do not. */
int pd_cuda_bind(struct pd_cuda_runtime *runtime);

/* Lets this GPU's kernels read and write what `peer` allocates. */
int pd_cuda_reach(struct pd_cuda_runtime *runtime, const struct pd_cuda_runtime *peer);

/* What launchers take as their stream. */
void *pd_cuda_stream(struct pd_cuda_runtime *runtime);

/* Zeroed memory of the device. */
int pd_cuda_allocate(struct pd_cuda_runtime *runtime, size_t bytes, void **memory);
void pd_cuda_free(struct pd_cuda_runtime *runtime, void *memory);

/* Zeroed memory of the host at one address that the device reads and writes too. */
int pd_cuda_allocate_pinned(struct pd_cuda_runtime *runtime, size_t bytes, void **memory);
void pd_cuda_free_pinned(struct pd_cuda_runtime *runtime, void *memory);

/* Zeroed memory of the device that another process can map: *fd is the handle to pass on. *bytes is
 * rounded up to what the device can map. Where the GPU can lend none, *fd is -1 and the memory is its own. */
int pd_cuda_allocate_shared(struct pd_cuda_runtime *runtime, size_t *bytes, void **memory, int *fd);
void pd_cuda_free_shared(struct pd_cuda_runtime *runtime, void *memory, size_t bytes, int fd);

/* Maps memory that another process has from pd_cuda_allocate_shared, `bytes` as it was rounded there, to be
 * copied and scattered from; the descriptor stays the caller's. Any thread. */
int pd_cuda_import(struct pd_cuda_runtime *runtime, int fd, size_t bytes, void **memory);
void pd_cuda_forget(struct pd_cuda_runtime *runtime, void *memory, size_t bytes);

/* A new descriptor of shared memory for network cards (dmabuf), the caller's to close; -1: the driver
 * gives none. */
int pd_cuda_dmabuf(struct pd_cuda_runtime *runtime, void *memory, size_t bytes);

/* Beside pinned memory, launches and products from here on touch the allocations that these addresses
 * lie in, and no others. Nothing is done with it on a GPU; the shim makes the rest inaccessible. */
void pd_cuda_declare(struct pd_cuda_runtime *runtime, const void *const *addresses, int count);

/* In stream order, in any direction. Host memory that is not pinned has been read when the call
 * returns. */
int pd_cuda_copy(struct pd_cuda_runtime *runtime, void *to, const void *from, size_t bytes);

/* ---- lanes ----------------------------------------------------------------------------------- */

/* An order of copies beside the stream's: for bytes that no launch is waiting for, or that are nobody's
 * yet. Any thread. On failure *lane is NULL; closing waits for its copies, and NULL is nothing. */
struct pd_cuda_lane;

int pd_cuda_lane_open(struct pd_cuda_runtime *runtime, struct pd_cuda_lane **lane);
void pd_cuda_lane_close(struct pd_cuda_lane *lane);

/* Begins to copy between pinned memory and the device, in either direction. */
int pd_cuda_lane_copy(struct pd_cuda_lane *lane, void *to, const void *from, size_t bytes);

/* Begins to gather ranges of the pool into the buffer, or to scatter them out of it: one launch
 * (pd_cuda_gather_ranges). The table has been read when the call returns. */
int pd_cuda_lane_gather(struct pd_cuda_lane *lane, const void *pool,
                        const struct pd_cuda_ranges *ranges, void *buffer);
int pd_cuda_lane_scatter(struct pd_cuda_lane *lane, const void *buffer,
                         const struct pd_cuda_ranges *ranges, void *pool);

/* Until all of these have ended. */
int pd_cuda_lane_wait(struct pd_cuda_lane *lane);

/* ---- order ----------------------------------------------------------------------------------- */

/* Event 0 or 1 stands behind everything enqueued so far. */
int pd_cuda_mark(struct pd_cuda_runtime *runtime, int event);

/* 1: what stood before the event has run; 0: not yet; -1 - error: the device failed. */
int pd_cuda_reached(struct pd_cuda_runtime *runtime, int event);

/* Until the stream is empty. */
int pd_cuda_drain(struct pd_cuda_runtime *runtime);

/* Makes what other devices wrote into this one's memory visible to later launches. */
int pd_cuda_fence(struct pd_cuda_runtime *runtime);

/* ---- recordings ------------------------------------------------------------------------------ */

/* What was enqueued once, to be enqueued again by one call. */
struct pd_cuda_recording;

/* From here to pd_cuda_record_end, what launchers, pd_cuda_copy and pd_cuda_gemm enqueue is kept
 * instead of run, with the arguments of this call; every other call here but the freeing ones is an
 * error. */
int pd_cuda_record_begin(struct pd_cuda_runtime *runtime);

/* On failure *recording is NULL. Either way nothing is recorded from here on. */
int pd_cuda_record_end(struct pd_cuda_runtime *runtime, struct pd_cuda_recording **recording);
int pd_cuda_replay(struct pd_cuda_runtime *runtime, struct pd_cuda_recording *recording);

/* Not while a replay of it may still run; NULL is nothing. */
void pd_cuda_recording_free(struct pd_cuda_runtime *runtime, struct pd_cuda_recording *recording);

/* ---- large products -------------------------------------------------------------------------- */

/* out[t][r] = sum_k weight[r][k] x[t][k] (+ bias[r]) (+ out[t][r] where `accumulate`): f16 or bf16
 * operands, f32 sums. weight [rows, cols], x [tokens, cols], without gaps; rows of out lie `stride`
 * values apart. A bias lies at a multiple of 16 bytes, and none goes with `accumulate`. */
struct pd_cuda_product {
    const uint16_t *weight, *x;
    const float *bias; /* or NULL */
    float *out;
    int rows, cols, tokens, stride;
    bool bf16, accumulate;
};

enum { PD_CUDA_BIAS_ALIGNMENT = 16 };

/* cuBLASLt on a GPU (gpu_gemm.cu), plain loops under t/simt/. gemm.h is what calls these. */
size_t pd_cuda_gemm_version(struct pd_cuda_runtime *runtime);

/* Algorithms that take a product, the library's first guess first: *count of at most `most`. */
int pd_cuda_gemm_offers(struct pd_cuda_runtime *runtime, const struct pd_cuda_product *product,
                        struct pd_cuda_algorithm *offers, int most, int *count);

/* Whether the library has this algorithm, and it takes the product: any eight words may be asked. */
bool pd_cuda_gemm_takes(struct pd_cuda_runtime *runtime, const struct pd_cuda_product *product,
                        const struct pd_cuda_algorithm *algorithm);

/* How long one takes, of some runs: waits for the stream, and is not for a recording. `out` has what it had
 * where it is accumulated, else anything. PD_CUDA_NO_MEMORY: there is no room to try it. */
int pd_cuda_gemm_time(struct pd_cuda_runtime *runtime, const struct pd_cuda_product *product,
                      const struct pd_cuda_algorithm *algorithm, float *milliseconds);

/* Enqueues a product. */
int pd_cuda_gemm(struct pd_cuda_runtime *runtime, const struct pd_cuda_product *product,
                 const struct pd_cuda_algorithm *algorithm);

#ifdef __cplusplus
}
#endif

#endif
