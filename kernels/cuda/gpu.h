/* What the sources that need a real GPU share: gpu_runtime.cu and gpu_gemm.cu. */
#ifndef PD_CUDA_GPU_H
#define PD_CUDA_GPU_H

#include <cuda_runtime.h>

#include "kernels/cuda/runtime.h"

struct pd_gpu_gemm;

struct pd_cuda_runtime {
    int ordinal;
    cudaDeviceProp properties;
    cudaStream_t stream;
    cudaEvent_t event[2];
    struct pd_gpu_gemm *gemm;
};

/* Starts cuBLASLt: a line in `error` where it does not. */
int pd_gpu_gemm_open(struct pd_cuda_runtime *runtime, const struct pd_cuda_library *library,
                     char *error, size_t size);
const char *pd_gpu_gemm_file(void);
void pd_gpu_gemm_close(struct pd_cuda_runtime *runtime);

#endif
