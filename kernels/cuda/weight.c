/* Weights on their way to the device: a run of rows at a time, read from the file and packed straight
 * into a piece of pinned memory (transfer.h) by the thread that loads them, while earlier pieces
 * travel. As many files are read at a time as there are threads; nothing holds a whole weight twice.
 *
 * Plain types keep their own form. Every quantised format of GGUF becomes one of two (cuda.h): what
 * has integers of 4 bits, W4; what has more, W8. Both take their integers from the one decoder
 * (dtype.h). d and m are rounded to f16: exact for Q4_0, Q4_1, Q5_0 and Q8_0, whose scales are f16;
 * Q4_K's and Q6_K's products of two scales lose up to 2^-11 of themselves. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/backend.h"
#include "kernels/dtype.h"

static enum pd_cuda_format format_of(enum pd_dtype type)
{
    switch (type) {
    case PD_F32:
        return PD_CUDA_F32;
    case PD_F16:
        return PD_CUDA_F16;
    case PD_BF16:
        return PD_CUDA_BF16;
    case PD_Q4_0:
    case PD_Q4_1:
    case PD_Q4_K:
        return PD_CUDA_W4;
    default:
        return PD_CUDA_W8;
    }
}

static size_t value_bytes(const struct pd_cuda_matrix *matrix)
{
    size_t values = (size_t)matrix->rows * (size_t)matrix->cols;

    switch (matrix->format) {
    case PD_CUDA_F32:
        return 4 * values;
    case PD_CUDA_W4:
        return values / 2;
    case PD_CUDA_W8:
        return values;
    default:
        return 2 * values;
    }
}

static size_t scale_bytes(const struct pd_cuda_matrix *matrix)
{
    bool quantized = matrix->format == PD_CUDA_W4 || matrix->format == PD_CUDA_W8;

    return quantized ? (size_t)matrix->rows * (size_t)(matrix->cols / 32) * sizeof(uint32_t) : 0;
}

/* 32 columns. Integers of a format without a minimum are signed: they move up by 8, and d * -8 is
 * their m. */
static void pack_w4(const struct pd_block32 *block, bool has_minimum, uint32_t *quants,
                    uint32_t *scale)
{
    float m = has_minimum ? block->m[0] : -8 * block->d[0];

    for (int i = 0; i < 32; i++) {
        uint32_t q = (uint32_t)(block->q[i] + (has_minimum ? 0 : 8));

        quants[i / 8] |= q << (i % 8 * 4);
    }
    *scale = (uint32_t)pd_f16_of_float(block->d[0]) | (uint32_t)pd_f16_of_float(m) << 16;
}

static void pack_w8(const struct pd_block32 *block, uint32_t *quants, uint32_t *scale)
{
    memcpy(quants, block->q, 32);
    *scale = (uint32_t)pd_f16_of_float(block->d[0]) | (uint32_t)pd_f16_of_float(block->d[1]) << 16;
}

/* Rows [first, first + rows) of the source. */
static void pack_quantized(const struct pd_cuda_matrix *matrix,
                           const struct pd_weight_source *source, int first, int rows,
                           uint32_t *values, uint32_t *scales)
{
    int runs = matrix->cols / 32, words = matrix->format == PD_CUDA_W4 ? 4 : 8;
    size_t row_bytes = (size_t)(matrix->cols / pd_dtype_block(source->type)) *
                       (size_t)pd_dtype_bytes(source->type);
    bool has_minimum = pd_dtype_has_minimum(source->type);

    for (int row = first; row < first + rows; row++) {
        const uint8_t *from = (const uint8_t *)source->data + (size_t)row * row_bytes;

        for (int run = 0; run < runs; run++) {
            struct pd_block32 block;

            pd_dtype_decode(source->type, from, run, &block);
            if (matrix->format == PD_CUDA_W4)
                pack_w4(&block, has_minimum, values, scales);
            else
                pack_w8(&block, values, scales);
            values += words;
            scales++;
        }
    }
}

/* Values of as many rows as fit, their scales behind them, in every piece. The source's rows are those of
 * the matrix from `at` on. */
static int send_quantized(struct pd_cuda *cuda, const struct pd_cuda_matrix *matrix,
                          const struct pd_weight_source *source, int at)
{
    size_t value_row = value_bytes(matrix) / (size_t)matrix->rows;
    size_t scale_row = scale_bytes(matrix) / (size_t)matrix->rows;
    int most = (int)(pd_cuda_transfer_bytes(cuda->in) / (value_row + scale_row)), error = 0;

    for (int first = 0; first < source->rows && error == 0; first += most) {
        int rows = source->rows - first < most ? source->rows - first : most;
        size_t values = (size_t)rows * value_row, scales = (size_t)rows * scale_row;
        size_t to = (size_t)(at + first);
        struct pd_cuda_piece *piece;

        error = pd_cuda_transfer_take(cuda->in, &piece);
        if (error != 0)
            break;
        memset(piece->memory, 0, values);
        pack_quantized(matrix, source, first, rows, piece->memory,
                       (uint32_t *)((char *)piece->memory + values));
        error = pd_cuda_transfer_send(piece, (char *)matrix->values + to * value_row, 0, values);
        if (error == 0)
            error = pd_cuda_transfer_send(piece, (char *)matrix->scales + to * scale_row, values,
                                          scales);
        pd_cuda_transfer_give(cuda->in, piece);
    }
    return error;
}

static int fail_to_send(struct pd_cuda *cuda, int rows, int cols, int error)
{
    char what[96];

    snprintf(what, sizeof(what), "sending a weight of %d x %d", rows, cols);
    return pd_cuda_fail(cuda, what, error);
}

static int no_room(struct pd_cuda *cuda, int rows, int cols, size_t bytes, int error)
{
    return pd_device_fail(&cuda->device, PD_KERNEL_NO_MEMORY,
                          "no room on GPU %d for a weight of %d x %d (%zu bytes): %s",
                          cuda->device.options.ordinal, rows, cols, bytes,
                          pd_cuda_error_text(error));
}

/* Memory for a matrix whose shape and format are set: one piece, scales behind the values. */
static int make_room(struct pd_cuda *cuda, struct pd_cuda_matrix *matrix)
{
    size_t values = (value_bytes(matrix) + 15) & ~(size_t)15, bytes = values + scale_bytes(matrix);
    void *memory = NULL;
    int error;

    if (bytes / (size_t)matrix->rows > pd_cuda_transfer_bytes(cuda->in) && scale_bytes(matrix) > 0)
        return pd_device_fail(&cuda->device, PD_KERNEL_UNSUPPORTED,
                              "a quantised weight of %d columns: at most %d bytes a row",
                              matrix->cols, PD_CUDA_PIECE_BYTES);
    error = pd_cuda_allocate(cuda->runtime, bytes, &memory);
    if (error != 0)
        return no_room(cuda, matrix->rows, matrix->cols, bytes, error);
    matrix->values = memory;
    matrix->scales = (uint32_t *)((uint8_t *)memory + values);
    return PD_KERNEL_OK;
}

/* A source becomes the rows of the matrix from `at` on. */
static int send(struct pd_cuda *cuda, const struct pd_cuda_matrix *matrix,
                const struct pd_weight_source *source, int at)
{
    size_t row_bytes = value_bytes(matrix) / (size_t)matrix->rows;
    int error = scale_bytes(matrix) > 0
                    ? send_quantized(cuda, matrix, source, at)
                    : pd_cuda_transfer_in(cuda->in, (char *)matrix->values + (size_t)at * row_bytes,
                                          source->data, (size_t)source->rows * row_bytes);

    return error != 0 ? fail_to_send(cuda, source->rows, matrix->cols, error) : PD_KERNEL_OK;
}

/* Sources of one format are rows of one matrix, so that Q, K and V, or gate and up, are one product. */
static int send_parts(struct pd_cuda *cuda, struct pd_cuda_weight *own, int cols,
                      const struct pd_weight_source *sources, int count)
{
    int status = PD_KERNEL_OK;

    for (int i = 0, end; i < count && status == PD_KERNEL_OK; i = end) {
        struct pd_cuda_matrix *part = &own->part[own->parts++];
        int at = 0;

        *part = (struct pd_cuda_matrix){.format = format_of(sources[i].type), .cols = cols};
        for (end = i; end < count && format_of(sources[end].type) == part->format; end++)
            part->rows += sources[end].rows;
        status = make_room(cuda, part);
        for (int s = i; s < end && status == PD_KERNEL_OK; at += sources[s++].rows)
            status = send(cuda, part, &sources[s], at);
    }
    return status;
}

/* All values as f32: what norms and biases are read as. */
static int send_vector(struct pd_cuda *cuda, struct pd_cuda_weight *own, int cols,
                       const struct pd_weight_source *sources, int count)
{
    size_t values = 0, at = 0;
    float *floats;
    void *memory = NULL;
    int error;

    for (int i = 0; i < count; i++)
        values += (size_t)sources[i].rows * (size_t)cols;
    error = pd_cuda_allocate(cuda->runtime, values * sizeof(*floats), &memory);
    if (error != 0)
        return no_room(cuda, 1, (int)values, values * sizeof(*floats), error);
    own->vector = memory;
    floats = malloc(values * sizeof(*floats));
    if (floats == NULL)
        return pd_device_fail(&cuda->device, PD_KERNEL_NO_MEMORY, "no memory to pack a weight");
    for (int i = 0; i < count; i++) {
        size_t own_values = (size_t)sources[i].rows * (size_t)cols;

        pd_dequantize(sources[i].type, sources[i].data, floats + at, own_values);
        at += own_values;
    }
    error = pd_cuda_transfer_in(cuda->in, memory, floats, values * sizeof(*floats));
    free(floats);
    return error != 0 ? fail_to_send(cuda, 1, (int)values, error) : PD_KERNEL_OK;
}

static bool is_vector(int cols, const struct pd_weight_source *sources, int count)
{
    return cols == 1 || (count == 1 && sources[0].rows == 1);
}

int pd_cuda_weight_create(struct pd_device *device, enum pd_weight_layout layout, int cols,
                          const struct pd_weight_source *sources, int count, bool embedding,
                          struct pd_weight **weight)
{
    struct pd_cuda *cuda = pd_cuda_of(device);
    bool vector = !embedding && is_vector(cols, sources, count);
    struct pd_cuda_weight *own;
    int status = PD_KERNEL_OK;

    (void)layout; /* gate and up one below the other: SwiGLU reads both */
    if (count > PD_CUDA_PARTS || (embedding && count != 1))
        return pd_device_fail(device, PD_KERNEL_UNSUPPORTED,
                              "a weight of %d sources: at most %d, and one for an embedding", count,
                              PD_CUDA_PARTS);
    if (!vector && cols % 8 != 0)
        return pd_device_fail(device, PD_KERNEL_UNSUPPORTED,
                              "a weight of %d columns: the CUDA kernels take multiples of 8", cols);
    own = calloc(1, sizeof(*own));
    if (own == NULL)
        return pd_device_fail(device, PD_KERNEL_NO_MEMORY, "out of memory");
    own->weight.object.device = device;
    if (vector)
        status = send_vector(cuda, own, cols, sources, count);
    else
        status = send_parts(cuda, own, cols, sources, count);
    if (status != PD_KERNEL_OK) {
        pd_cuda_weight_release(&own->weight);
        return status;
    }
    *weight = &own->weight;
    return PD_KERNEL_OK;
}

void pd_cuda_weight_release(struct pd_weight *weight)
{
    struct pd_cuda_weight *own = (struct pd_cuda_weight *)weight;
    struct pd_cuda_runtime *runtime = pd_cuda_of(weight->object.device)->runtime;

    for (int i = 0; i < own->parts; i++)
        pd_cuda_free(runtime, (void *)own->part[i].values);
    pd_cuda_free(runtime, own->vector);
    free(own);
}
