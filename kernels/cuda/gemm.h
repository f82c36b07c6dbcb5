/* Large products by the library: which of its algorithms serves a shape is found out once, by timing
 * what it offers, and kept (algorithms.h).
 *
 *     product ──▶ shape known? ── yes ──────────────────────────────▶ pd_cuda_gemm
 *                      └─ no ──▶ offers ──▶ time each ──▶ note, save ──▶
 *
 * How many tokens a step launches for is rounded (replay.h), so there are few shapes, and the steps of
 * a bucket that run first take the time. Nothing is timed while a step is recorded. */
#ifndef PD_CUDA_GEMM_H
#define PD_CUDA_GEMM_H

#include "kernels/cuda/runtime.h"

enum { PD_CUDA_NO_ALGORITHM = -2 };

struct pd_cuda_gemm_chooser;

/* `directory`: where the file is kept; NULL or "": nowhere. NULL: out of memory. */
struct pd_cuda_gemm_chooser *pd_cuda_gemm_open(struct pd_cuda_runtime *runtime,
                                               const char *directory);
void pd_cuda_gemm_close(struct pd_cuda_gemm_chooser *chooser);

/* Enqueues a product; the runtime's error, or PD_CUDA_NO_ALGORITHM where the library has none for it and
 * nothing was done. `recording`: the stream is being recorded. */
int pd_cuda_gemm_multiply(struct pd_cuda_gemm_chooser *chooser,
                          const struct pd_cuda_product *product, bool recording);

/* "; 12 algorithms of FILE", "; FILE is not used: its sum is wrong"; "" where nothing is kept. */
void pd_cuda_gemm_tell(const struct pd_cuda_gemm_chooser *chooser, char *text, size_t size);

#endif
