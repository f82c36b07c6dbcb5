/* Large products by cuBLASLt, which is opened at run time (library.h).
 *
 * cuBLAS counts columns first. Our row-major out[t][r] is its column-major matrix of `rows` x
 * `tokens` with leading dimension `stride`, so
 *
 *     out (rows x tokens) = weight^T (weight: cols x rows, as it lies) * x (cols x tokens)
 *
 * An algorithm is chosen once per shape and kept: the heuristic costs more than a small product. */

#include "kernels/cuda/gpu.h"

#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>

enum { SHAPES = 512, WORKSPACE = 32 << 20 };

struct shape {
    int rows, cols, tokens, stride, bf16;
};

struct chosen {
    struct shape shape;
    cublasLtMatmulAlgo_t algorithm;
    int known;
};

struct pd_gpu_gemm {
    cublasLtHandle_t handle;
    void *workspace;
    struct chosen chosen[SHAPES]; /* open addressing; when a run is full the first is replaced */
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
           find("cublasLtMatmulAlgoGetHeuristic", &gemm->heuristic);
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
        cudaMalloc(&gemm->workspace, WORKSPACE) != cudaSuccess) {
        snprintf(error, size, "cuBLASLt of %s does not start on GPU %d", library->path,
                 runtime->ordinal);
        return cudaErrorSharedObjectInitFailed;
    }
    return 0;
}

void pd_gpu_gemm_close(struct pd_cuda_runtime *runtime)
{
    struct pd_gpu_gemm *gemm = runtime->gemm;

    if (gemm == NULL)
        return;
    cudaFree(gemm->workspace);
    if (gemm->handle != NULL)
        gemm->destroy(gemm->handle);
    free(gemm);
    runtime->gemm = NULL;
}

/* ---- products -------------------------------------------------------------------------------- */

/* Descriptors of one product. */
struct product {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t weight, x, out;
};

static void forget(const struct pd_gpu_gemm *gemm, const struct product *product)
{
    if (product->operation != NULL)
        gemm->desc_destroy(product->operation);
    if (product->weight != NULL)
        gemm->layout_destroy(product->weight);
    if (product->x != NULL)
        gemm->layout_destroy(product->x);
    if (product->out != NULL)
        gemm->layout_destroy(product->out);
}

static bool describe(const struct pd_gpu_gemm *gemm, const struct shape *shape,
                     struct product *product)
{
    cudaDataType_t half = shape->bf16 ? CUDA_R_16BF : CUDA_R_16F;
    cublasOperation_t transposed = CUBLAS_OP_T;
    uint64_t rows = (uint64_t)shape->rows, cols = (uint64_t)shape->cols;
    uint64_t tokens = (uint64_t)shape->tokens;

    return gemm->desc_create(&product->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) == 0 &&
           gemm->desc_set(product->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                          sizeof(transposed)) == 0 &&
           gemm->layout_create(&product->weight, half, cols, rows, shape->cols) == 0 &&
           gemm->layout_create(&product->x, half, cols, tokens, shape->cols) == 0 &&
           gemm->layout_create(&product->out, CUDA_R_32F, rows, tokens, shape->stride) == 0;
}

static bool choose(const struct pd_gpu_gemm *gemm, const struct product *product,
                   cublasLtMatmulAlgo_t *algorithm)
{
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t result;
    size_t workspace = WORKSPACE;
    int found = 0;

    if (gemm->preference_create(&preference) != 0)
        return false;
    if (gemm->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                             sizeof(workspace)) == 0)
        gemm->heuristic(gemm->handle, product->operation, product->weight, product->x, product->out,
                        product->out, preference, 1, &result, &found);
    gemm->preference_destroy(preference);
    if (found > 0)
        *algorithm = result.algo;
    return found > 0;
}

static bool same(const struct shape *a, const struct shape *b)
{
    return a->rows == b->rows && a->cols == b->cols && a->tokens == b->tokens &&
           a->stride == b->stride && a->bf16 == b->bf16;
}

/* The entry of a shape: its own, or one that may become it. */
static struct chosen *entry_of(struct pd_gpu_gemm *gemm, const struct shape *shape)
{
    uint32_t hash = (uint32_t)shape->rows * 2654435761u ^ (uint32_t)shape->cols * 40503u ^
                    (uint32_t)shape->tokens * 2246822519u ^ (uint32_t)shape->bf16;
    struct chosen *first = &gemm->chosen[hash % SHAPES];

    for (uint32_t probe = 0; probe < 8; probe++) {
        struct chosen *entry = &gemm->chosen[(hash + probe) % SHAPES];

        if (!entry->known || same(&entry->shape, shape))
            return entry;
    }
    first->known = 0;
    return first;
}

extern "C" int pd_cuda_gemm(struct pd_cuda_runtime *runtime, int bf16, const uint16_t *weight,
                            const uint16_t *x, int rows, int cols, int tokens, int accumulate,
                            int stride, float *out)
{
    struct pd_gpu_gemm *gemm = runtime->gemm;
    struct shape shape = {rows, cols, tokens, stride, bf16};
    struct chosen *entry = entry_of(gemm, &shape);
    struct product product = {};
    const float one = 1, before = accumulate ? 1 : 0;
    int status = cudaErrorInvalidValue;

    if (describe(gemm, &shape, &product) &&
        (entry->known || choose(gemm, &product, &entry->algorithm))) {
        entry->shape = shape;
        entry->known = 1;
        if (gemm->matmul(gemm->handle, product.operation, &one, weight, product.weight, x,
                         product.x, &before, out, product.out, out, product.out, &entry->algorithm,
                         gemm->workspace, WORKSPACE, runtime->stream) == CUBLAS_STATUS_SUCCESS)
            status = 0;
    }
    forget(gemm, &product);
    return status;
}
