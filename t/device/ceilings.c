/* What everything else is measured against: copies within the device, and one large product, of numbers that are
 * none of them zero: a GPU has more power left, and so more clock, where it multiplies nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/runtime.h"
#include "t/device/stage.h"

/* With cuBLASLt where `library` is not NULL. */
static struct pd_cuda_runtime *open_gpu(const struct pd_cuda_library *library)
{
    struct pd_cuda_runtime *runtime;
    char error[512] = "";

    if (pd_cuda_open(0, library, &runtime, error, sizeof(error)) == 0)
        return runtime;
    fprintf(stderr, "%s\n", error);
    exit(1);
}

static void check(const char *what, int error)
{
    if (error == 0)
        return;
    fprintf(stderr, "%s: %s\n", what, pd_cuda_error_text(error));
    exit(1);
}

static void *allocate(struct pd_cuda_runtime *runtime, size_t bytes)
{
    void *memory;

    check("allocating", pd_cuda_allocate(runtime, bytes, &memory));
    return memory;
}

double pd_stage_copy_bandwidth(bool small)
{
    size_t bytes = small ? (size_t)1 << 20 : (size_t)4 << 30;
    struct pd_cuda_runtime *runtime = open_gpu(NULL);
    void *from = allocate(runtime, bytes), *to = allocate(runtime, bytes);
    double best = 0;

    for (int i = 0; i < 5; i++) {
        double start, seconds;

        check("draining", pd_cuda_drain(runtime));
        start = pd_stage_seconds();
        for (int copy = 0; copy < 4; copy++)
            check("copying", pd_cuda_copy(runtime, to, from, bytes));
        check("draining", pd_cuda_drain(runtime));
        seconds = pd_stage_seconds() - start;
        if (8.0 * (double)bytes / seconds > best)
            best = 8.0 * (double)bytes / seconds;
    }
    pd_cuda_free(runtime, from);
    pd_cuda_free(runtime, to);
    pd_cuda_close(runtime);
    return best;
}

/* bf16 values of both signs, 0.008 to 0.03, the same million over and over. */
static uint16_t *allocate_noise(struct pd_cuda_runtime *runtime, size_t values)
{
    enum { RUN = 1 << 20 };
    uint16_t *run = malloc(RUN * sizeof(*run)), *noise = allocate(runtime, 2 * values);
    uint64_t state = 88172645463325252u;

    if (run == NULL)
        exit(1);
    for (size_t i = 0; i < RUN; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        run[i] = (uint16_t)(0x3c00 | (state >> 33 & 0x80ff));
    }
    for (size_t at = 0; at < values; at += RUN)
        check("filling", pd_cuda_copy(runtime, noise + at, run,
                                      2 * (values - at < RUN ? values - at : (size_t)RUN)));
    check("draining", pd_cuda_drain(runtime));
    free(run);
    return noise;
}

static double measure_matmul(bool small, const struct pd_cuda_library *library)
{
    int side = small ? 64 : 8192;
    size_t values = (size_t)side * (size_t)side;
    struct pd_cuda_runtime *runtime = open_gpu(library);
    uint16_t *a = allocate_noise(runtime, values), *b = allocate_noise(runtime, values);
    float *out = allocate(runtime, 4 * values);
    const struct pd_cuda_product product = {.weight = a,
                                            .x = b,
                                            .out = out,
                                            .rows = side,
                                            .cols = side,
                                            .tokens = side,
                                            .stride = side,
                                            .bf16 = true};
    struct pd_cuda_algorithm algorithm;
    double best = 0;
    int offers;

    check("asking for algorithms", pd_cuda_gemm_offers(runtime, &product, &algorithm, 1, &offers));
    if (offers == 0)
        check("no algorithm for the product", -1);
    pd_cuda_declare(runtime, (const void *[]){a, b, out}, 3);
    for (int i = 0; i < 5; i++) {
        double start, rate;

        check("draining", pd_cuda_drain(runtime));
        start = pd_stage_seconds();
        for (int run = 0; run < 4; run++)
            check("multiplying", pd_cuda_gemm(runtime, &product, &algorithm));
        check("draining", pd_cuda_drain(runtime));
        rate = 8.0 * (double)side * (double)values / (pd_stage_seconds() - start);
        if (i > 0 && rate > best) /* the first brings the kernel */
            best = rate;
    }
    pd_cuda_free(runtime, a);
    pd_cuda_free(runtime, b);
    pd_cuda_free(runtime, out);
    pd_cuda_close(runtime);
    return best;
}

double pd_stage_matmul_rate(bool small, char *why, size_t size)
{
    struct pd_cuda_library library[PD_CUDA_LIBRARIES];
    double rate = 0;

    pd_cuda_libraries_open(NULL, library);
    if (library[PD_CUDA_LIBRARY_CUBLASLT].handle != NULL)
        rate = measure_matmul(small, &library[PD_CUDA_LIBRARY_CUBLASLT]);
    else
        pd_cuda_libraries_tell(library, why, size);
    pd_cuda_libraries_close(library);
    return rate;
}

int pd_stage_ceilings(const struct pd_stage_options *options)
{
    struct pd_cuda_runtime *runtime = open_gpu(NULL);
    struct pd_cuda_device_info info;
    char why[512];
    double rate;

    pd_cuda_info(runtime, &info);
    pd_cuda_close(runtime);
    fprintf(stderr, "%s, sm_%d%d\n", info.name, info.major, info.minor);
    pd_stage_figure("compute capability", "sm", info.major * 10 + info.minor, 0);
    pd_stage_figure("memory free", "GB", 1e-9 * (double)info.memory_free,
                    1e-9 * (double)info.memory_total);
    pd_stage_figure("device copy, read and written", "GB/s",
                    1e-9 * pd_stage_copy_bandwidth(options->small), 0);
    rate = pd_stage_matmul_rate(options->small, why, sizeof(why));
    if (rate == 0) {
        printf("no large product: %s\n", why);
        return PD_STAGE_SKIPPED;
    }
    pd_stage_figure("bf16 product of 8192 x 8192 x 8192", "TFLOP/s", 1e-12 * rate, 0);
    return 0;
}
