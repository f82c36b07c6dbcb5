/* Every instruction that pd_simt.cuh wraps, on operands laid out lane by lane: the suite that compares
 * the shim with the manual's words (t/simt/test_layout.c) compares the GPU with them. It hands its
 * kernels memory of its own, which a GPU does not see: the functions below, which it calls in the
 * probes' place, take the operands through pinned memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/runtime.h"
#include "t/device/stage.h"
#include "t/simt/probe.h"

enum { LANES = 32, STAGE = 8192, PIECES_MAX = 8 };

int pd_suite_layout(void);

static struct pd_cuda_runtime *runtime;
static uint8_t *stage[3];

/* A copy of an operand where the GPU sees it. */
static void *put(int which, const void *from, size_t bytes)
{
    memcpy(stage[which], from, bytes);
    return stage[which];
}

/* The result once the probe has run. */
static int take(int error, int which, void *to, size_t bytes)
{
    if (error == 0)
        error = pd_cuda_drain(runtime);
    if (error == 0)
        memcpy(to, stage[which], bytes);
    else if (error > 0)
        fprintf(stderr, "a probe: %s\n", pd_cuda_error_text(error));
    return error;
}

int pd_staged_multiply(void *stream, bool bf16, const uint32_t *a, const uint32_t *b, float *d)
{
    size_t words = LANES * sizeof(uint32_t);
    int error = pd_probe_multiply(pd_cuda_stream(runtime), bf16, put(0, a, 4 * words),
                                  put(1, b, 2 * words), put(2, d, 4 * words));

    (void)stream;
    return take(error, 2, d, 4 * words);
}

int pd_staged_load_matrix(void *stream, enum pd_probe_load which, const uint16_t *rows,
                          uint32_t *out)
{
    size_t bytes = LANES * 4 * sizeof(uint32_t);
    int error = pd_probe_load_matrix(pd_cuda_stream(runtime), which,
                                     put(0, rows, LANES * 8 * sizeof(*rows)), put(1, out, bytes));

    (void)stream;
    return take(error, 1, out, bytes);
}

int pd_staged_copy(void *stream, int count, int pending, const uint32_t *from, uint32_t *out)
{
    size_t bytes = LANES * 4 * sizeof(uint32_t) * (size_t)(count > 0 ? count : 0);
    int error;

    (void)stream;
    if (count > PIECES_MAX)
        return -1;
    error = pd_probe_copy(pd_cuda_stream(runtime), count, pending, put(0, from, bytes),
                          put(1, out, bytes));
    return take(error, 1, out, bytes);
}

int pd_staged_quads(void *stream, const float *in, float *out)
{
    size_t bytes = LANES * sizeof(float);
    int error = pd_probe_quads(pd_cuda_stream(runtime), put(0, in, bytes), put(1, out, bytes));

    (void)stream;
    return take(error, 1, out, bytes);
}

int pd_stage_wrappers(const struct pd_stage_options *options)
{
    char error[256];
    int status = pd_cuda_open(0, NULL, &runtime, error, sizeof(error));

    (void)options;
    for (int i = 0; i < 3 && status == 0; i++)
        status = pd_cuda_allocate_pinned(runtime, STAGE, (void **)&stage[i]);
    if (status != 0) {
        fprintf(stderr, "%s\n", runtime == NULL ? error : pd_cuda_error_text(status));
        return 1;
    }
    status = pd_suite_layout();
    for (int i = 0; i < 3; i++)
        pd_cuda_free_pinned(runtime, stage[i]);
    pd_cuda_close(runtime);
    return status;
}
