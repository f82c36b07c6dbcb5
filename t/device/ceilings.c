/* What everything else is measured against: copies within the device, and one large product. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/runtime.h"
#include "t/device/stage.h"

static struct pd_cuda_runtime *open_gpu(void)
{
    static struct pd_cuda_library library[PD_CUDA_LIBRARIES];
    struct pd_cuda_runtime *runtime;
    char error[512] = "";

    pd_cuda_libraries_open(NULL, library);
    if (library[PD_CUDA_LIBRARY_CUBLASLT].handle == NULL)
        pd_cuda_libraries_tell(library, error, sizeof(error));
    else if (pd_cuda_open(0, &library[PD_CUDA_LIBRARY_CUBLASLT], &runtime, error, sizeof(error)) ==
             0)
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
    struct pd_cuda_runtime *runtime = open_gpu();
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

double pd_stage_matmul_rate(bool small)
{
    int side = small ? 64 : 8192;
    size_t values = (size_t)side * (size_t)side;
    struct pd_cuda_runtime *runtime = open_gpu();
    uint16_t *a = allocate(runtime, 2 * values), *b = allocate(runtime, 2 * values);
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

int pd_stage_ceilings(const struct pd_stage_options *options)
{
    struct pd_cuda_runtime *runtime = open_gpu();
    struct pd_cuda_device_info info;

    pd_cuda_info(runtime, &info);
    pd_cuda_close(runtime);
    fprintf(stderr, "%s, sm_%d%d\n", info.name, info.major, info.minor);
    pd_stage_figure("compute capability", "sm", info.major * 10 + info.minor, 0);
    pd_stage_figure("memory free", "GB", 1e-9 * (double)info.memory_free,
                    1e-9 * (double)info.memory_total);
    pd_stage_figure("device copy, read and written", "GB/s",
                    1e-9 * pd_stage_copy_bandwidth(options->small), 0);
    pd_stage_figure("bf16 product of 8192 x 8192 x 8192", "TFLOP/s",
                    1e-12 * pd_stage_matmul_rate(options->small), 0);
    return 0;
}
