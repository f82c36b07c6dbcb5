/* Operators that work row by row. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dtype.h"
#include "kernels/reference/reference.h"

void pd_reference_embed(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    const struct pd_step *step = run->step;
    size_t cols = (size_t)op->out.cols;
    float *out = pd_host_floats(op->out);

    for (int t = 0; t < step->tokens && thread == 0; t++) {
        int32_t token = pd_host_token(run, t), row = token - op->first;

        if (row >= 0 && row < op->weight->rows)
            memcpy(out + (size_t)t * cols, pd_reference_row(op->weight, row), cols * sizeof(float));
        else
            memset(out + (size_t)t * cols, 0, cols * sizeof(float));
        pd_host_history(run->host, step->slot[step->sequence[t]])[step->position[t]] = token;
    }
}

static void normalize(const float *x, const float *weight, int cols, double eps, float *out)
{
    double squares = 0;

    for (int i = 0; i < cols; i++)
        squares += (double)x[i] * x[i];
    for (int i = 0; i < cols; i++)
        out[i] = (float)(x[i] / sqrt(squares / cols + eps) * weight[i]);
}

void pd_reference_rmsnorm(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    int cols = op->in.cols, rows = pd_host_rows(run, op);
    const float *x = pd_host_floats(op->in), *weight = pd_reference_row(op->weight, 0);
    float *out = pd_host_floats(op->out);

    for (int t = 0; t < rows && thread == 0; t++)
        normalize(x + (size_t)t * (size_t)cols, weight, cols, op->eps,
                  out + (size_t)t * (size_t)cols);
}

static double dot(const float *a, const float *b, int count)
{
    double sum = 0;

    for (int i = 0; i < count; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

/* x as a product with quantised weights sees it where the device rounds. */
static void round_to_12_bits(const float *x, int cols, float *out)
{
    for (int k = 0; k + 32 <= cols; k += 32) {
        int16_t q[32];
        float d = pd_quantize32(x + k, PD_QUANTIZE_INT12, q);

        for (int i = 0; i < 32; i++)
            out[k + i] = d * (float)q[i];
    }
}

static void round_to_bytes(const float *x, int cols, float *out)
{
    for (int k = 0; k + 32 <= cols; k += 32) {
        int16_t q[32];
        float rest[32], d = pd_quantize32(x + k, PD_QUANTIZE_INT8, q);
        bool again = pd_quantize_again(x + k, d, q, rest);

        for (int i = 0; i < 32; i++)
            out[k + i] = d * (float)q[i];
        if (!again)
            continue;
        d = pd_quantize32(rest, PD_QUANTIZE_INT8, q);
        for (int i = 0; i < 32; i++)
            out[k + i] += d * (float)q[i];
    }
}

static void round_to_bf16(const float *from, int count, float *out)
{
    for (int i = 0; i < count; i++)
        out[i] = pd_float_of_bf16(pd_bf16_of_float(from[i]));
}

/* Weights that were quantised are rounded by their scales. */
static void upper_halves(const float *from, int count, float *out)
{
    for (int i = 0; i < count; i++)
        out[i] = pd_float_of_bits(pd_bits_of_float(from[i] * PD_BF16_MORE) & 0xffff0000u);
}

/* Columns first .. end - 1 of a row, in slices: what several devices could have computed is rounded to what
 * they tell each other. */
static double sliced(const float *row, const float *x, int first, int end, int slices)
{
    int middle = first + (end - first) / 2;

    if (slices <= 1)
        return dot(row + first, x + first, end - first);
    return (float)sliced(row, x, first, middle, slices / 2) +
           (float)sliced(row, x, middle, end, slices / 2);
}

/* What a row's products take: it and x rounded, each to a row of memory. */
struct rounded {
    enum pd_precision precision;
    float *x, *row;
};

/* Row r of W x + b. */
static double product(const struct pd_op *op, int r, const float *x, const struct rounded *rounded)
{
    const struct pd_reference_weight *weight = (const struct pd_reference_weight *)op->weight;
    bool rounds = weight->rounds[r];
    const float *row = pd_reference_row(op->weight, r);
    double sum;

    if (rounds && rounded->precision == PD_PRECISION_BF16) {
        (weight->quantized[r] ? upper_halves : round_to_bf16)(row, op->weight->cols, rounded->row);
        row = rounded->row;
    }
    sum = sliced(row, rounds ? rounded->x : x, 0, op->weight->cols, op->slices);

    return op->bias != NULL ? sum + pd_reference_row(op->bias, 0)[r] : sum;
}

/* The rows of W are shared out, for patience with larger models; each is still one plain loop. */
void pd_reference_matmul(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    int rows = pd_host_rows(run, op), columns = op->out.cols, first, end;
    float *memory = malloc(2 * (size_t)op->in.cols * sizeof(*memory));
    struct rounded rounded = {run->host->device.options.precision, memory, memory + op->in.cols};

    if (memory == NULL)
        abort(); /* a test's backend: nothing sensible is left to do */
    pd_host_share(columns, 1, thread, run->host->threads, &first, &end);
    for (int t = 0; t < rows; t++) {
        const float *x = pd_host_floats(op->in) + (size_t)t * (size_t)op->in.cols;
        float *out = pd_host_floats(op->out) + (size_t)t * (size_t)columns;

        if (rounded.precision == PD_PRECISION_INT8)
            round_to_bytes(x, op->in.cols, rounded.x);
        if (rounded.precision == PD_PRECISION_INT12)
            round_to_12_bits(x, op->in.cols, rounded.x);
        if (rounded.precision == PD_PRECISION_BF16)
            round_to_bf16(x, op->in.cols, rounded.x);
        for (int r = first; r < end; r++) {
            double value = product(op, r, x, &rounded);

            if (op->epilogue == PD_EPILOGUE_ADD)
                value += out[r];
            if (op->epilogue == PD_EPILOGUE_SWIGLU)
                value = value / (1 + exp(-value)) * product(op, columns + r, x, &rounded);
            out[r] = (float)value;
        }
    }
    free(memory);
}

void pd_reference_gather(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    size_t cols = (size_t)op->in.cols;

    for (int s = 0; s < run->step->samples && thread == 0; s++)
        memcpy(pd_host_floats(op->out) + (size_t)s * cols,
               pd_host_floats(op->in) + (size_t)run->step->sample_row[s] * cols,
               cols * sizeof(float));
}

void pd_reference_read(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    size_t rows = (size_t)pd_host_rows(run, op);

    if (thread == 0)
        memcpy(op->pinned->host, pd_host_floats(op->in),
               rows * (size_t)op->in.cols * sizeof(float));
}
