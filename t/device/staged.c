/* The suites of own products and of the pool's ranges (t/simt/test_products.c, test_blocks.c) hand launchers memory of
 * their own, which a GPU does not see: these take their place, and the operands through pinned memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/runtime.h"

struct staged {
    struct pd_cuda_runtime *runtime;
    void *memory[4];
    int count, error;
};

/* As the suites know them. */
int pd_staged_fixed(void *stream, bool bf16, const uint16_t *weight, const uint16_t *x, int rows,
                    int cols, int tokens, struct pd_cuda_slices slices, bool accumulate, int stride,
                    float *out);
int pd_staged_small(void *stream, const struct pd_cuda_matrix *matrix, const float *x,
                    const float *bias, bool accumulate, int tokens, struct pd_cuda_slices slices,
                    int stride, float *out);
int pd_staged_slices(void *stream, const float *sums, int slices, size_t count, bool add,
                     float *out);
int pd_staged_gather(void *stream, const void *pool, const struct pd_cuda_ranges *ranges,
                     void *buffer);
int pd_staged_scatter(void *stream, const void *buffer, const struct pd_cuda_ranges *ranges,
                      void *pool);

static struct staged begin(void)
{
    struct staged staged = {0};
    char why[256];

    staged.error = pd_cuda_open(0, NULL, &staged.runtime, why, sizeof(why));
    return staged;
}

/* A copy of an operand where the GPU sees it; NULL is none. */
static void *put(struct staged *staged, const void *from, size_t bytes)
{
    void **to = &staged->memory[staged->count++];

    if (staged->error == 0 && from != NULL)
        staged->error = pd_cuda_allocate_pinned(staged->runtime, bytes, to);
    if (staged->error == 0 && from != NULL)
        memcpy(*to, from, bytes);
    return *to;
}

/* The result, once the launch has run. */
static int take(struct staged *staged, void *to, size_t bytes)
{
    int error = staged->error == 0 ? pd_cuda_drain(staged->runtime) : staged->error;

    if (error == 0)
        memcpy(to, staged->memory[staged->count - 1], bytes);
    else if (error > 0)
        fprintf(stderr, "a product: %s\n", pd_cuda_error_text(error));
    for (int i = 0; staged->runtime != NULL && i < staged->count; i++)
        pd_cuda_free_pinned(staged->runtime, staged->memory[i]);
    if (staged->runtime != NULL)
        pd_cuda_close(staged->runtime);
    return error;
}

/* Bytes of what a product writes. */
static size_t out_bytes(int tokens, struct pd_cuda_slices slices, int stride)
{
    return (slices.count > 1 ? (size_t)slices.count * slices.stride
                             : (size_t)tokens * (size_t)stride) *
           sizeof(float);
}

int pd_staged_fixed(void *stream, bool bf16, const uint16_t *weight, const uint16_t *x, int rows,
                    int cols, int tokens, struct pd_cuda_slices slices, bool accumulate, int stride,
                    float *out)
{
    struct staged staged = begin();
    size_t row = (size_t)cols * sizeof(*x), bytes = out_bytes(tokens, slices, stride);
    const uint16_t *on = put(&staged, weight, (size_t)rows * row);
    const uint16_t *in = put(&staged, x, (size_t)tokens * row);
    float *to = put(&staged, out, bytes);

    (void)stream;
    if (staged.error == 0)
        staged.error = pd_cuda_matmul_fixed(pd_cuda_stream(staged.runtime), bf16, on, in, rows,
                                            cols, tokens, slices, accumulate, stride, to);
    return take(&staged, out, bytes);
}

int pd_staged_small(void *stream, const struct pd_cuda_matrix *matrix, const float *x,
                    const float *bias, bool accumulate, int tokens, struct pd_cuda_slices slices,
                    int stride, float *out)
{
    struct staged staged = begin();
    struct pd_cuda_matrix on = *matrix;
    size_t row = (size_t)matrix->cols * sizeof(*x), bytes = out_bytes(tokens, slices, stride);
    const float *in, *add;
    float *to;

    (void)stream;
    if (matrix->format != PD_CUDA_F32) /* what the suite asks */
        return -1;
    on.values = put(&staged, matrix->values, (size_t)matrix->rows * row);
    in = put(&staged, x, (size_t)tokens * row);
    add = put(&staged, bias, (size_t)matrix->rows * sizeof(*bias));
    to = put(&staged, out, bytes);
    if (staged.error == 0)
        staged.error = pd_cuda_matmul_small(pd_cuda_stream(staged.runtime), &on, in, add,
                                            accumulate, tokens, slices, stride, to);
    return take(&staged, out, bytes);
}

int pd_staged_slices(void *stream, const float *sums, int slices, size_t count, bool add,
                     float *out)
{
    struct staged staged = begin();
    size_t bytes = count * sizeof(*out);
    const float *in = put(&staged, sums, slices > 0 ? (size_t)slices * bytes : 0);
    float *to = put(&staged, out, bytes);

    (void)stream;
    if (staged.error == 0)
        staged.error =
            pd_cuda_add_slices(pd_cuda_stream(staged.runtime), in, slices, count, add, to);
    return take(&staged, out, bytes);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

/* Bytes up to the end of the last range, in the pool and in the buffer; false: not for a launcher to take. */
static bool reach(const struct pd_cuda_ranges *ranges, const void *pool, const void *buffer,
                  size_t *in_pool, size_t *in_buffer)
{
    uint64_t odd = (uintptr_t)pool | (uintptr_t)buffer;

    *in_pool = *in_buffer = 0;
    for (int i = 0; i < ranges->count && i < PD_CUDA_RANGES; i++) {
        const struct pd_cuda_range *range = &ranges->range[i];

        odd |= range->pool | range->buffer | range->bytes;
        if (range->pool + range->bytes > *in_pool)
            *in_pool = range->pool + range->bytes;
        if (range->buffer + range->bytes > *in_buffer)
            *in_buffer = range->buffer + range->bytes;
    }
    return ranges->count > 0 && ranges->count <= PD_CUDA_RANGES && odd % PD_CUDA_RANGE_UNIT == 0;
}

int pd_staged_gather(void *stream, const void *pool, const struct pd_cuda_ranges *ranges,
                     void *buffer)
{
    size_t in_pool, in_buffer;
    struct staged staged;
    const void *from;
    void *to;

    if (!reach(ranges, pool, buffer, &in_pool, &in_buffer))
        return pd_cuda_gather_ranges(stream, pool, ranges, buffer);
    staged = begin();
    from = put(&staged, pool, in_pool);
    to = put(&staged, buffer, in_buffer);
    if (staged.error == 0)
        staged.error = pd_cuda_gather_ranges(pd_cuda_stream(staged.runtime), from, ranges, to);
    return take(&staged, buffer, in_buffer);
}

int pd_staged_scatter(void *stream, const void *buffer, const struct pd_cuda_ranges *ranges,
                      void *pool)
{
    size_t in_pool, in_buffer;
    struct staged staged;
    const void *from;
    void *to;

    if (!reach(ranges, pool, buffer, &in_pool, &in_buffer))
        return pd_cuda_scatter_ranges(stream, buffer, ranges, pool);
    staged = begin();
    from = put(&staged, buffer, in_buffer);
    to = put(&staged, pool, in_pool);
    if (staged.error == 0)
        staged.error = pd_cuda_scatter_ranges(pd_cuda_stream(staged.runtime), from, ranges, to);
    return take(&staged, pool, in_pool);
}
