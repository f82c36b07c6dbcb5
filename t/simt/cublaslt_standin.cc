/* What stands in for cuBLASLt (cuda_standin.h): one product, column-major as the library counts, by plain loops over what
 * the descriptors say. An algorithm remembers which shape and which alignment it was offered for, and ends the program
 * where it is run on less. */
#include <cublasLt.h>
#include <map>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>

#include "t/simt/cuda_standin.h"

namespace
{
const uint64_t MAGIC = 0x4c74;

struct layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t leading;
};

struct operation {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    std::map<int, std::string> attributes;

    template <typename T> T get(cublasLtMatmulDescAttributes_t which, T otherwise) const
    {
        auto found = attributes.find(which);
        T value = otherwise;

        if (found != attributes.end())
            memcpy(&value, found->second.data(), sizeof(value));
        return value;
    }
};

struct preference {
    std::map<int, uint64_t> values;
};

/* What an algorithm remembers: 8 words. */
struct memory {
    uint64_t magic, index, rows, cols, tokens, alignments, workspace, unused;
};

static_assert(sizeof(memory) == sizeof(cublasLtMatmulAlgo_t), "an algorithm's room");

long alive;

[[noreturn]] void die(const char *why)
{
    fprintf(stderr, "stand-in for cuBLASLt: %s\n", why);
    abort();
}

layout *of(cublasLtMatrixLayout_t one)
{
    return reinterpret_cast<layout *>(one);
}

operation *of(cublasLtMatmulDesc_t one)
{
    return reinterpret_cast<operation *>(one);
}

preference *of(cublasLtMatmulPreference_t one)
{
    return reinterpret_cast<preference *>(one);
}

float wide(cudaDataType_t type, const void *from, size_t at)
{
    const uint16_t bits = static_cast<const uint16_t *>(from)[at];
    uint32_t word = (uint32_t)bits << 16;
    float value;

    if (type == CUDA_R_32F)
        return static_cast<const float *>(from)[at];
    if (type == CUDA_R_16F) {
        _Float16 half;

        memcpy(&half, &bits, sizeof(half));
        return (float)half;
    }
    memcpy(&value, &word, sizeof(value));
    return value;
}

/* Only the kind of product that is asked for here. */
bool fits(const operation &how, const layout &a, const layout &b, const layout &c, const layout &d)
{
    return how.compute == CUBLAS_COMPUTE_32F && how.scale == CUDA_R_32F &&
           how.get(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N) == CUBLAS_OP_T &&
           how.get(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) == CUBLAS_OP_N && a.type == b.type &&
           (a.type == CUDA_R_16F || a.type == CUDA_R_16BF) && c.type == CUDA_R_32F &&
           d.type == CUDA_R_32F && a.rows == b.rows && a.cols == d.rows && b.cols == d.cols &&
           a.leading >= (int64_t)a.rows && b.leading >= (int64_t)b.rows &&
           d.leading >= (int64_t)d.rows && c.leading == d.leading && c.rows == d.rows;
}

bool aligned(const void *address, uint64_t alignments, int which)
{
    return (uintptr_t)address % ((uint64_t)1 << (alignments >> 8 * which & 255)) == 0;
}

uint64_t power_of(uint64_t bytes)
{
    uint64_t power = 0;

    while (bytes > 1 && ++power)
        bytes /= 2;
    return power;
}
} // namespace

long cublaslt_standin_alive(void);
long cublaslt_standin_alive(void)
{
    return alive;
}

extern "C" {

size_t cublasLtGetVersion(void)
{
    return 130100;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    if (standin_current() < 0)
        die("a handle of no GPU");
    *handle = reinterpret_cast<cublasLtHandle_t>(new int(standin_current()));
    alive++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete reinterpret_cast<int *>(handle);
    alive--;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    *out = reinterpret_cast<cublasLtMatmulDesc_t>(new operation{compute, scale, {}});
    alive++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t one)
{
    delete of(one);
    alive--;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t one,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void *value, size_t bytes)
{
    of(one)->attributes[which] = std::string(static_cast<const char *>(value), bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t leading)
{
    *out = reinterpret_cast<cublasLtMatrixLayout_t>(new layout{type, rows, cols, leading});
    alive++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t one)
{
    delete of(one);
    alive--;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    *out = reinterpret_cast<cublasLtMatmulPreference_t>(new preference);
    alive++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t one)
{
    delete of(one);
    alive--;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t one,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void *value, size_t bytes)
{
    uint64_t word = 0;

    memcpy(&word, value, bytes);
    of(one)->values[which] = word;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t how,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wanted, int most,
                                              cublasLtMatmulHeuristicResult_t results[], int *count)
{
    static const cublasLtMatmulPreferenceAttributes_t alignment[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    std::map<int, uint64_t> &values = of(wanted)->values;
    uint64_t alignments = 0;

    *count = 0;
    if (!fits(*of(how), *of(a), *of(b), *of(c), *of(d)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < 4; i++) /* 256 bytes are taken for granted */
        alignments |= power_of(values.count(alignment[i]) ? values[alignment[i]] : 256) << 8 * i;
    for (; *count < most && *count < standin.offers; ++*count) {
        const memory own = {MAGIC,
                            (uint64_t)*count,
                            of(d)->rows,
                            of(a)->rows,
                            of(d)->cols,
                            alignments,
                            values[CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES],
                            0};

        memcpy(&results[*count].algo, &own, sizeof(own));
        /* The library's lists have holes. */
        results[*count].state = *count == 1 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
        results[*count].workspaceSize = own.workspace;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t how,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    memory own;

    memcpy(&own, algorithm, sizeof(own));
    result->workspaceSize = own.workspace;
    return own.magic == MAGIC && fits(*of(how), *of(a), *of(b), *of(c), *of(d)) &&
                   own.rows == of(d)->rows && own.cols == of(a)->rows && own.tokens == of(d)->cols
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_INVALID_VALUE;
}

/* At once: what is in the stream before it, the test waits for. */
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t how, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t bytes,
                              cudaStream_t stream)
{
    const layout &A = *of(a_layout), &B = *of(b_layout), &D = *of(d_layout);
    const float one = *static_cast<const float *>(alpha),
                before = *static_cast<const float *>(beta);
    const float *bias = of(how)->get(CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const float *)nullptr);
    cublasLtEpilogue_t epilogue =
        of(how)->get(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
    memory own;

    memcpy(&own, algorithm, sizeof(own));
    if (*reinterpret_cast<int *>(handle) != standin_current() || stream == nullptr)
        die("a product on another GPU than its handle's");
    if (own.magic != MAGIC || !fits(*of(how), A, B, *of(c_layout), D) || own.rows != D.rows ||
        own.cols != A.rows || own.tokens != D.cols)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!workspace || (uintptr_t)workspace % 256 != 0 || bytes < own.workspace)
        die("a workspace that is too small, or not aligned");
    if (!aligned(a, own.alignments, 0) || !aligned(b, own.alignments, 1) ||
        !aligned(c, own.alignments, 2) || !aligned(d, own.alignments, 3))
        die("operands that are less aligned than was said");
    if ((epilogue == CUBLASLT_EPILOGUE_BIAS) != (bias != nullptr) ||
        (bias && ((uintptr_t)bias % 16 != 0 ||
                  of(how)->get(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16F) != CUDA_R_32F)))
        die("a bias that the epilogue cannot add");
    for (uint64_t j = 0; j < D.cols; j++) {
        for (uint64_t i = 0; i < D.rows; i++) {
            size_t at = i + j * (size_t)D.leading;
            float sum = 0;

            for (uint64_t k = 0; k < A.rows; k++)
                sum += wide(A.type, a, k + i * (size_t)A.leading) *
                       wide(B.type, b, k + j * (size_t)B.leading);
            sum = one * sum + (before != 0 ? before * static_cast<const float *>(c)[at] : 0);
            static_cast<float *>(d)[at] = sum + (bias ? bias[i] : 0);
        }
    }
    return CUBLAS_STATUS_SUCCESS;
}
}
