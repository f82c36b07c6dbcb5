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
static void round_row(const float *x, int cols, float *out)
{
    for (int k = 0; k + 32 <= cols; k += 32) {
        int16_t q[32];
        float d = pd_quantize32(x + k, q);

        for (int i = 0; i < 32; i++)
            out[k + i] = d * (float)q[i];
    }
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

/* Row r of W x + b. */
static double product(const struct pd_op *op, int r, const float *x, const float *rounded)
{
    bool rounds = rounded != NULL && ((const struct pd_reference_weight *)op->weight)->rounds[r];
    double sum = sliced(pd_reference_row(op->weight, r), rounds ? rounded : x, 0, op->weight->cols,
                        op->slices);

    return op->bias != NULL ? sum + pd_reference_row(op->bias, 0)[r] : sum;
}

/* The rows of W are shared out, for patience with larger models; each is still one plain loop. */
void pd_reference_matmul(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    int rows = pd_host_rows(run, op), columns = op->out.cols, first, end;
    bool rounds = run->host->device.options.precision == PD_PRECISION_INT12;
    float *rounded = rounds ? malloc((size_t)op->in.cols * sizeof(*rounded)) : NULL;

    if (rounds && rounded == NULL)
        abort(); /* a test's backend: nothing sensible is left to do */
    pd_host_share(columns, 1, thread, run->host->threads, &first, &end);
    for (int t = 0; t < rows; t++) {
        const float *x = pd_host_floats(op->in) + (size_t)t * (size_t)op->in.cols;
        float *out = pd_host_floats(op->out) + (size_t)t * (size_t)columns;

        if (rounds)
            round_row(x, op->in.cols, rounded);
        for (int r = first; r < end; r++) {
            double value = product(op, r, x, rounded);

            if (op->epilogue == PD_EPILOGUE_ADD)
                value += out[r];
            if (op->epilogue == PD_EPILOGUE_SWIGLU)
                value = value / (1 + exp(-value)) * product(op, columns + r, x, rounded);
            out[r] = (float)value;
        }
    }
    free(rounded);
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
