/* A path's row-by-row kernels. Included by path_*.c only. */
#ifndef PD_ROWWISE_H
#define PD_ROWWISE_H

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/path.h"

/* The sum of squares runs in 16 lanes. In place is fine. */
static void rmsnorm(const float *x, const float *weight, int cols, float eps, float *out)
{
    int whole = cols / LANES * LANES;
    lanes squares = lanes_set(0), scale;

    for (int i = 0; i < whole; i += LANES)
        squares = lanes_fma(lanes_load(x + i), lanes_load(x + i), squares);
    if (whole < cols) {
        lanes tail = lanes_load_part(x + whole, cols - whole, 0);
        squares = lanes_fma(tail, tail, squares);
    }
    scale = lanes_set(1 / sqrtf(lanes_sum(squares) / (float)cols + eps));
    for (int i = 0; i < whole; i += LANES)
        lanes_store(out + i,
                    lanes_mul(lanes_mul(lanes_load(x + i), scale), lanes_load(weight + i)));
    if (whole < cols) {
        lanes tail = lanes_mul(lanes_load_part(x + whole, cols - whole, 0), scale);
        tail = lanes_mul(tail, lanes_load_part(weight + whole, cols - whole, 0));
        lanes_store_part(out + whole, tail, cols - whole);
    }
}

/* angles: dim / 2 cosines, then as many sines. Every product and sum rounds once. */
static void rotate(float *head, const float *angles, int dim, enum pd_rope_style style)
{
    int half = dim / 2;

    if (style == PD_ROPE_HALF) {
        for (int i = 0; i < half; i++) {
            float x = head[i], y = head[half + i];
            head[i] = x * angles[i] - y * angles[half + i];
            head[half + i] = y * angles[i] + x * angles[half + i];
        }
        return;
    }
    for (int i = 0; i < half; i++) {
        float x = head[2 * i], y = head[2 * i + 1];
        head[2 * i] = x * angles[i] - y * angles[half + i];
        head[2 * i + 1] = y * angles[i] + x * angles[half + i];
    }
}

static void store_kv(enum pd_dtype type, void *to, const float *from, int count)
{
    int i = 0;

    switch (type) {
    case PD_F16:
        for (; i + LANES <= count; i += LANES)
            lanes_store_f16((uint16_t *)to + i, lanes_load(from + i));
        for (; i < count; i++)
            ((uint16_t *)to)[i] = pd_f16_of_float(from[i]);
        break;
    case PD_BF16:
        for (; i < count; i++)
            ((uint16_t *)to)[i] = pd_bf16_of_float(from[i]);
        break;
    default:
        memcpy(to, from, (size_t)count * sizeof(float));
    }
}

/* ---- a row of logits ------------------------------------------------------------------------- */

static float greatest(const float *values, int count)
{
    lanes most = lanes_set(-INFINITY);
    unsigned nan = 0;
    int i = 0;

    for (; i + LANES <= count; i += LANES) {
        lanes next = lanes_load(values + i);

        nan |= lanes_is_nan(next);
        most = lanes_max(most, next);
    }
    if (i < count) {
        lanes next = lanes_load_part(values + i, count - i, -INFINITY);

        nan |= lanes_is_nan(next);
        most = lanes_max(most, next);
    }
    return nan ? NAN : lanes_greatest(most);
}

static void exponentials(const float *values, int count, float most, float factor, float *out,
                         float *run_sums)
{
    for (int first = 0; first < count; first += PD_CPU_RUN) {
        int end = first + PD_CPU_RUN < count ? first + PD_CPU_RUN : count;
        lanes sum = lanes_set(0);

        for (int i = first; i < end; i += LANES) {
            bool whole = i + LANES <= end;
            lanes x =
                whole ? lanes_load(values + i) : lanes_load_part(values + i, end - i, -INFINITY);

            x = lanes_exp(lanes_mul(lanes_sub(x, lanes_set(most)), lanes_set(factor)));
            sum = lanes_add(sum, x);
            if (whole)
                lanes_store(out + i, x);
            else
                lanes_store_part(out + i, x, end - i);
        }
        *run_sums++ = lanes_sum(sum);
    }
}

static int at_least(const float *values, int count, float bound, int32_t *out, int limit)
{
    lanes least = lanes_set(bound);
    int found = 0;

    for (int i = 0; i < count; i += LANES) {
        lanes x = i + LANES <= count ? lanes_load(values + i)
                                     : lanes_load_part(values + i, count - i, -INFINITY);
        unsigned bits = lanes_at_least(x, least);

        if (i + LANES > count)
            bits &= (1u << (count - i)) - 1;
        for (; bits != 0 && found < limit; bits &= bits - 1)
            out[found++] = i + __builtin_ctz(bits);
    }
    return found;
}

#endif
