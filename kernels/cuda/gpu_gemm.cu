/* Large products by cuBLASLt, which is opened at run time (library.h).
 *
 * cuBLAS counts columns first. Our row-major out[t][r] is its column-major matrix of `rows` x
 * `tokens` with leading dimension `stride`, so
 *
 *     out (rows x tokens) = weight^T (weight: cols x rows, as it lies) * x (cols x tokens)
 *
 * A bias is a column of it, which the library's epilogue adds to each token; a residual is its C, with
 * beta = 1. The library has to be told how far addresses are aligned: it takes 256 bytes for granted. */

#include "kernels/cuda/gpu.h"

#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE = 32 << 20 };

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(struct pd_cuda_algorithm), "algorithms.h");

struct pd_gpu_gemm {
    cublasLtHandle_t handle;
    void *workspace;
    cudaEvent_t begun, ended; /* of what is timed */
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtMatmul) matmul;
    decltype(&cublasLtMatmulDescCreate) desc_create;
    decltype(&cublasLtMatmulDescDestroy) desc_destroy;
    decltype(&cublasLtMatmulDescSetAttribute) desc_set;
    decltype(&cublasLtMatrixLayoutCreate) layout_create;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create;
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
    decltype(&cublasLtMatmulAlgoCheck) check;
    decltype(&cublasLtGetVersion) version;
};

static bool find_all(struct pd_gpu_gemm *gemm, const struct pd_cuda_library *library)
{
    auto find = [library](const char *name, void *function) {
        return pd_cuda_library_find(library, name, function);
    };

    return find("cublasLtCreate", &gemm->create) && find("cublasLtDestroy", &gemm->destroy) &&
           find("cublasLtMatmul", &gemm->matmul) &&
           find("cublasLtMatmulDescCreate", &gemm->desc_create) &&
           find("cublasLtMatmulDescDestroy", &gemm->desc_destroy) &&
           find("cublasLtMatmulDescSetAttribute", &gemm->desc_set) &&
           find("cublasLtMatrixLayoutCreate", &gemm->layout_create) &&
           find("cublasLtMatrixLayoutDestroy", &gemm->layout_destroy) &&
           find("cublasLtMatmulPreferenceCreate", &gemm->preference_create) &&
           find("cublasLtMatmulPreferenceDestroy", &gemm->preference_destroy) &&
           find("cublasLtMatmulPreferenceSetAttribute", &gemm->preference_set) &&
           find("cublasLtMatmulAlgoGetHeuristic", &gemm->heuristic) &&
           find("cublasLtMatmulAlgoCheck", &gemm->check) &&
           find("cublasLtGetVersion", &gemm->version);
}

#define PD_TEXT_OF(number)  #number
#define PD_FILE_OF(version) "libcublasLt.so." PD_TEXT_OF(version)

/* The versions whose interface is the header's that this was compiled with. */
const char *pd_gpu_gemm_file(void)
{
    return PD_FILE_OF(CUBLAS_VER_MAJOR);
}

int pd_gpu_gemm_open(struct pd_cuda_runtime *runtime, const struct pd_cuda_library *library,
                     char *error, size_t size)
{
    struct pd_gpu_gemm *gemm = (struct pd_gpu_gemm *)calloc(1, sizeof(*gemm));

    runtime->gemm = gemm;
    if (gemm == NULL) {
        snprintf(error, size, "out of memory");
        return cudaErrorMemoryAllocation;
    }
    if (!find_all(gemm, library) || gemm->create(&gemm->handle) != CUBLAS_STATUS_SUCCESS ||
        cudaEventCreate(&gemm->begun) != cudaSuccess ||
        cudaEventCreate(&gemm->ended) != cudaSuccess ||
        cudaMalloc(&gemm->workspace, WORKSPACE) != cudaSuccess) {
        snprintf(error, size, "cuBLASLt of %s does not start on GPU %d", library->path,
                 runtime->ordinal);
        return cudaErrorSharedObjectInitFailed;
    }
    pd_cuda_library_keep(library);
    return 0;
}

void pd_gpu_gemm_close(struct pd_cuda_runtime *runtime)
{
    struct pd_gpu_gemm *gemm = runtime->gemm;

    if (gemm == NULL)
        return;
    cudaFree(gemm->workspace);
    if (gemm->begun != NULL)
        cudaEventDestroy(gemm->begun);
    if (gemm->ended != NULL)
        cudaEventDestroy(gemm->ended);
    if (gemm->handle != NULL)
        gemm->destroy(gemm->handle);
    free(gemm);
    runtime->gemm = NULL;
}

/* ---- one product ----------------------------------------------------------------------------- */

struct descriptors {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t weight, x, out;
};

static void forget(const struct pd_gpu_gemm *gemm, const struct descriptors *d)
{
    if (d->operation != NULL)
        gemm->desc_destroy(d->operation);
    if (d->weight != NULL)
        gemm->layout_destroy(d->weight);
    if (d->x != NULL)
        gemm->layout_destroy(d->x);
    if (d->out != NULL)
        gemm->layout_destroy(d->out);
}

static bool set_bias(const struct pd_gpu_gemm *gemm, cublasLtMatmulDesc_t operation,
                     const float *bias)
{
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    cudaDataType_t type = CUDA_R_32F;

    return gemm->desc_set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)) ==
               0 &&
           gemm->desc_set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof(type)) ==
               0 &&
           gemm->desc_set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)) == 0;
}

static bool describe(const struct pd_gpu_gemm *gemm, const struct pd_cuda_product *product,
                     struct descriptors *d)
{
    cudaDataType_t half = product->bf16 ? CUDA_R_16BF : CUDA_R_16F;
    cublasOperation_t transposed = CUBLAS_OP_T;
    uint64_t rows = (uint64_t)product->rows, cols = (uint64_t)product->cols;
    uint64_t tokens = (uint64_t)product->tokens;

    return gemm->desc_create(&d->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) == 0 &&
           gemm->desc_set(d->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                          sizeof(transposed)) == 0 &&
           (product->bias == NULL || set_bias(gemm, d->operation, product->bias)) &&
           gemm->layout_create(&d->weight, half, cols, rows, product->cols) == 0 &&
           gemm->layout_create(&d->x, half, cols, tokens, product->cols) == 0 &&
           gemm->layout_create(&d->out, CUDA_R_32F, rows, tokens, product->stride) == 0;
}

static uint32_t alignment_of(const void *address)
{
    uint32_t bytes = 256;

    while ((uintptr_t)address % bytes != 0)
        bytes /= 2;
    return bytes;
}

static bool prefer(const struct pd_gpu_gemm *gemm, const struct pd_cuda_product *product,
                   cublasLtMatmulPreference_t preference)
{
    const size_t workspace = WORKSPACE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        uint32_t bytes;
    } alignments[] = {
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(product->weight)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(product->x)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(product->out)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(product->out)},
    };
    bool good = gemm->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                     &workspace, sizeof(workspace)) == 0;

    for (const auto &a : alignments)
        good =
            good && gemm->preference_set(preference, a.attribute, &a.bytes, sizeof(a.bytes)) == 0;
    return good;
}

static int run(struct pd_cuda_runtime *runtime, const struct pd_cuda_product *product,
               const struct descriptors *d, const struct pd_cuda_algorithm *algorithm, float *out)
{
    const struct pd_gpu_gemm *gemm = runtime->gemm;
    const float one = 1, before = product->accumulate ? 1 : 0;
    cublasStatus_t status =
        gemm->matmul(gemm->handle, d->operation, &one, product->weight, d->weight, product->x, d->x,
                     &before, out, d->out, out, d->out, (const cublasLtMatmulAlgo_t *)algorithm,
                     gemm->workspace, WORKSPACE, runtime->stream);

    return status == CUBLAS_STATUS_SUCCESS ? 0 : cudaErrorInvalidValue;
}

/* ---- runtime.h ------------------------------------------------------------------------------- */

extern "C" {

size_t pd_cuda_gemm_version(struct pd_cuda_runtime *runtime)
{
    return runtime->gemm->version();
}

int pd_cuda_gemm_offers(struct pd_cuda_runtime *runtime, const struct pd_cuda_product *product,
                        struct pd_cuda_algorithm *offers, int most, int *count)
{
    enum { MOST = 16 };
    const struct pd_gpu_gemm *gemm = runtime->gemm;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t results[MOST];
    struct descriptors d = {};
    int found = 0;
    bool good = describe(gemm, product, &d) && gemm->preference_create(&preference) == 0 &&
                prefer(gemm, product, preference);

    *count = 0;
    if (good && gemm->heuristic(gemm->handle, d.operation, d.weight, d.x, d.out, d.out, preference,
                                most < MOST ? most : MOST, results, &found) == 0) {
        for (int i = 0; i < found; i++)
            if (results[i].state == CUBLAS_STATUS_SUCCESS)
                memcpy(&offers[(*count)++], &results[i].algo, sizeof(*offers));
    }
    if (preference != NULL)
        gemm->preference_destroy(preference);
    forget(gemm, &d);
    return good ? 0 : cudaErrorInvalidValue;
}

bool pd_cuda_gemm_takes(struct pd_cuda_runtime *runtime, const struct pd_cuda_product *product,
                        const struct pd_cuda_algorithm *algorithm)
{
    const struct pd_gpu_gemm *gemm = runtime->gemm;
    cublasLtMatmulHeuristicResult_t result;
    struct descriptors d = {};
    bool takes = describe(gemm, product, &d) &&
                 gemm->check(gemm->handle, d.operation, d.weight, d.x, d.out, d.out,
                             (const cublasLtMatmulAlgo_t *)algorithm, &result) == 0 &&
                 result.workspaceSize <= WORKSPACE;

    forget(gemm, &d);
    return takes;
}

int pd_cuda_gemm(struct pd_cuda_runtime *runtime, const struct pd_cuda_product *product,
                 const struct pd_cuda_algorithm *algorithm)
{
    struct descriptors d = {};
    int error = describe(runtime->gemm, product, &d)
                    ? run(runtime, product, &d, algorithm, product->out)
                    : cudaErrorInvalidValue;

    forget(runtime->gemm, &d);
    return error;
}

/* Into memory of its own where the output is an input too. The first run brings the kernel. */
int pd_cuda_gemm_time(struct pd_cuda_runtime *runtime, const struct pd_cuda_product *product,
                      const struct pd_cuda_algorithm *algorithm, float *milliseconds)
{
    enum { RUNS = 4 };
    const struct pd_gpu_gemm *gemm = runtime->gemm;
    size_t bytes = (size_t)product->tokens * (size_t)product->stride * sizeof(float);
    struct descriptors d = {};
    float *own = NULL;
    int error = product->accumulate ? cudaMalloc((void **)&own, bytes) : 0, freed;

    if (error != 0)
        return error;
    error = describe(gemm, product, &d) ? 0 : cudaErrorInvalidValue;
    for (int i = 0; i <= RUNS && error == 0; i++) {
        error = run(runtime, product, &d, algorithm, own != NULL ? own : product->out);
        if (error == 0 && i == 0)
            error = cudaEventRecord(gemm->begun, runtime->stream);
    }
    error = error ? error : cudaEventRecord(gemm->ended, runtime->stream);
    error = error ? error : cudaEventSynchronize(gemm->ended);
    error = error ? error : cudaEventElapsedTime(milliseconds, gemm->begun, gemm->ended);
    forget(gemm, &d);
    freed = cudaFree(own);
    return error ? error : freed;
}
}
