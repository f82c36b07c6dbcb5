/* A path's matmul: panels times tokens, and what happens to the result. Included by path_*.c only.
 */
#ifndef PD_PRODUCT_H
#define PD_PRODUCT_H

#include "kernels/cpu/multiply.h"
#include "kernels/cpu/path.h"

static float sum_block(const float *x, int count)
{
    lanes low, high;

    if (count >= BLOCK)
        return lanes_sum(lanes_add(lanes_load(x), lanes_load(x + LANES)));
    low = lanes_load_part(x, count < LANES ? count : LANES, 0);
    high = lanes_load_part(x + LANES, count - LANES, 0);
    return lanes_sum(lanes_add(low, high));
}

static void sum_blocks(const float *x, int rows, int cols, float *sums)
{
    for (int t = 0; t < rows; t++) {
        for (int k = 0; k < cols; k += BLOCK)
            *sums++ = sum_block(x + (size_t)t * (size_t)cols + k, cols - k);
    }
}

/* Columns of the stretch that begins at column `from`. */
INLINE int stretch_columns(int cols, int from)
{
    return cols - from < PD_CPU_STRETCH * BLOCK ? cols - from : PD_CPU_STRETCH * BLOCK;
}

static void pack_tile(const float *x, int cols, int tokens, int first, int n, float *out,
                      float *sums)
{
    x += (size_t)first * (size_t)cols;
    for (int from = 0; from < cols; from += PD_CPU_STRETCH * BLOCK) {
        int count = stretch_columns(cols, from);
        float *to = out + (size_t)from * (size_t)tokens + (size_t)(first * count);

        for (int t = 0; t < n; t++) {
            for (int k = 0; k < count; k++)
                to[k * n + t] = x[(size_t)t * (size_t)cols + (size_t)(from + k)];
        }
        if (sums == NULL)
            continue;
        to = sums + (size_t)(from / BLOCK) * (size_t)tokens +
             (size_t)(first * ((count + BLOCK - 1) / BLOCK));
        for (int t = 0; t < n; t++) {
            for (int k = 0; k < count; k += BLOCK)
                to[k / BLOCK * n + t] =
                    sum_block(x + (size_t)t * (size_t)cols + (size_t)(from + k), count - k);
        }
    }
}

/* ---- the end of a panel ---------------------------------------------------------------------- */

/* gate / (1 + e^-gate). Beyond 86 the exponential counts for nothing, below -86 the result does. */
INLINE lanes silu(lanes gate)
{
    lanes power = lanes_sub(lanes_set(0), gate);

    power = lanes_max(lanes_set(-86), lanes_min(lanes_set(86), power));
    return lanes_mul(gate, lanes_inverse(lanes_add(lanes_set(1), lanes_exp_within(power))));
}

/* Up to 16 outputs of one token. */
INLINE void put_outputs(enum pd_epilogue epilogue, lanes value, int count, float *out)
{
    if (count >= LANES) {
        if (epilogue == PD_EPILOGUE_ADD)
            value = lanes_add(lanes_load(out), value);
        lanes_store(out, value);
    } else if (count > 0) {
        if (epilogue == PD_EPILOGUE_ADD)
            value = lanes_add(lanes_load_part(out, count, 0), value);
        lanes_store_part(out, value, count);
    }
}

INLINE lanes with_bias(lanes value, const float *bias, int at, int count)
{
    return bias != NULL && count > 0 ? lanes_add(value, lanes_load_part(bias + at, count, 0))
                                     : value;
}

/* Sums of `tokens` tokens from `token` on. */
INLINE void put_rows_as(const struct pd_cpu_product *product, enum pd_epilogue epilogue,
                        const float *bias, const float *acc, int token, int tokens, int first,
                        int count)
{
    size_t stride = (size_t)product->outputs;
    float *out = product->out + (size_t)token * stride + first;

    for (int t = 0; t < tokens; t++, acc += PANEL, out += stride) {
#pragma GCC unroll 2
        for (int h = 0; h < PANEL; h += LANES) {
            lanes value = with_bias(lanes_load(acc + h), bias, first + h, count - h);

            put_outputs(epilogue, value, count - h, out + h);
        }
    }
}

/* Most panels are whole, and have no bias: then the loop decides nothing. */
static void put_rows(const struct pd_cpu_product *product, const float *acc, int token, int tokens,
                     int first, int count)
{
    if (count < PANEL || product->bias != NULL)
        put_rows_as(product, product->epilogue, product->bias, acc, token, tokens, first, count);
    else if (product->epilogue == PD_EPILOGUE_ADD)
        put_rows_as(product, PD_EPILOGUE_ADD, NULL, acc, token, tokens, first, PANEL);
    else
        put_rows_as(product, PD_EPILOGUE_NONE, NULL, acc, token, tokens, first, PANEL);
}

INLINE void put_swiglu_as(const struct pd_cpu_product *product, const float *bias, const float *acc,
                          int token, int tokens, int first, int count)
{
    size_t stride = (size_t)product->outputs;
    float *out = product->out + (size_t)token * stride + first;

    for (int t = 0; t < tokens; t++, acc += PANEL, out += stride) {
        lanes gate = with_bias(lanes_load(acc), bias, first, count);
        lanes up = with_bias(lanes_load(acc + LANES), bias, product->outputs + first, count);

        put_outputs(PD_EPILOGUE_NONE, lanes_mul(silu(gate), up), count, out);
    }
}

static void put_swiglu(const struct pd_cpu_product *product, const float *acc, int token,
                       int tokens, int first, int count)
{
    if (count < LANES || product->bias != NULL)
        put_swiglu_as(product, product->bias, acc, token, tokens, first, count);
    else
        put_swiglu_as(product, NULL, acc, token, tokens, first, LANES);
}

/* ---- panels ---------------------------------------------------------------------------------- */

/* One panel and some tokens: what is summed at a time. */
struct work {
    const struct pd_cpu_product *product;
    const struct pd_cpu_segment *segment;
    const uint8_t *panel;
    int token, tokens;
    uint8_t *unpacked;
};

/* acc += panel * x over columns first .. end - 1, here and below. */
static void multiply_few(const struct work *work, int first, int end, float *acc)
{
    const struct pd_cpu_product *product = work->product;
    enum pd_form form = work->segment->form;
    int cols = product->weight->weight.cols;
    const float *sums = product->sums != NULL ? product->sums + first / BLOCK : NULL;

    direct[form][work->tokens - 1](work->panel + (size_t)(first / BLOCK) * pd_form_bytes(form),
                                   end - first, product->x + first, cols, sums,
                                   (cols + BLOCK - 1) / BLOCK, acc);
}

/* Some columns of the stretch that begins at `stretch`: unpacked once, then used by every tile while they
 * lie in L1. */
static void multiply_stretch(const struct work *work, int stretch, int first, int end, float *acc)
{
    const struct pd_cpu_product *product = work->product;
    enum pd_form own = work->segment->form;
    int form = own == PD_FORM_F32 ? PD_FORM_F32 : unpacked_form(own);
    int tokens = product->tokens, tiles = pd_cpu_tiles(tokens, ROWS);
    int columns = stretch_columns(product->weight->weight.cols, stretch),
        count = (columns + BLOCK - 1) / BLOCK;
    const uint8_t *block = work->panel + (size_t)(first / BLOCK) * pd_form_bytes(own);
    const float *x = product->x + (size_t)stretch * (size_t)tokens;
    const float *sums = product->sums + (size_t)(stretch / BLOCK) * (size_t)tokens;

    if (own != PD_FORM_F32) {
        unpack(own, block, (end - first + BLOCK - 1) / BLOCK, work->unpacked);
        block = work->unpacked;
    }
    for (int i = 0; i < tiles; i++) {
        int t = pd_cpu_tile(tokens, tiles, i), n = pd_cpu_tile(tokens, tiles, i + 1) - t;

        packed[form][n - 1](block, end - first, x + t * columns + (first - stretch) * n,
                            sums + t * count + (first - stretch) / BLOCK * n, acc + t * PANEL);
    }
}

static void multiply_many(const struct work *work, int first, int end, float *acc)
{
    const int width = PD_CPU_STRETCH * BLOCK;

    for (int stretch = first / width * width; stretch < end; stretch += width)
        multiply_stretch(work, stretch, stretch < first ? first : stretch,
                         stretch + width < end ? stretch + width : end, acc);
}

/* acc = panel * x over columns first .. end - 1, in `slices` slices and a tree; behind acc there is room for
 * the sums that wait. */
static void sum_slices(const struct work *work, int first, int end, int slices, float *acc)
{
    int values = work->tokens * PANEL, middle = first + (end - first) / 2;

    if (slices > 1) {
        sum_slices(work, first, middle, slices / 2, acc);
        sum_slices(work, middle, end, slices / 2, acc + values);
        for (int i = 0; i < values; i += LANES)
            lanes_store(acc + i, lanes_add(lanes_load(acc + i), lanes_load(acc + values + i)));
        return;
    }
    if (work->segment->narrow) {
        work->product->narrow->multiply(work->segment->form, work->panel, first / BLOCK,
                                        (end - first + BLOCK - 1) / BLOCK, &work->product->rounded,
                                        work->token, work->tokens, acc);
        return;
    }
    memset(acc, 0, (size_t)values * sizeof(*acc));
    if (work->tokens <= DIRECT_ROWS)
        multiply_few(work, first, end, acc);
    else
        multiply_many(work, first, end, acc);
}

static void put(const struct pd_cpu_product *product, const struct pd_cpu_segment *segment,
                const float *acc, int token, int tokens, int row)
{
    int first = segment->first_output + row, count = segment->rows - row;

    if (product->epilogue == PD_EPILOGUE_SWIGLU)
        put_swiglu(product, acc, token, tokens, first, count);
    else
        put_rows(product, acc, token, tokens, first, count);
}

/* The segment of panel p, searched from `segment` on; *row is its first row there, *panel its memory. */
INLINE const struct pd_cpu_segment *find_panel(const struct pd_cpu_product *product,
                                               const struct pd_cpu_segment *segment, int p,
                                               int *row, const uint8_t **panel)
{
    segment = pd_cpu_segment_of(segment, p);
    p -= segment->first_panel;
    *row = p * (product->epilogue == PD_EPILOGUE_SWIGLU ? LANES : PANEL);
    *panel = segment->data + (size_t)p * segment->panel_bytes;
    return segment;
}

/* A chunk of tokens goes through all panels of narrow segments, or of the others, then the next: rounded x
 * stays in L2, of which it fills more than the panels do. x in f32 comes packed in tiles of its own. */
static void multiply_chunks(const struct pd_cpu_product *product, bool narrow, int chunk, int first,
                            int end, uint8_t *unpacked, float *acc)
{
    struct work work = {.product = product, .unpacked = unpacked};

    for (int t = 0; t < product->tokens; t += chunk) {
        work.token = t;
        work.tokens = product->tokens - t < chunk ? product->tokens - t : chunk;
        work.segment = product->weight->segments;
        for (int p = first; p < end; p++) {
            int row;

            work.segment = find_panel(product, work.segment, p, &row, &work.panel);
            if (work.segment->narrow != narrow)
                continue;
            sum_slices(&work, 0, product->weight->weight.cols, product->slices, acc);
            put(product, work.segment, acc, t, work.tokens, row);
        }
    }
}

static void multiply_panels(const struct pd_cpu_product *product, int first, int end,
                            float *scratch)
{
    float *acc = scratch + PD_CPU_STRETCH * (8 * PANEL + PANEL * BLOCK);

    if (product->weight->wide)
        multiply_chunks(product, false, product->tokens, first, end, (uint8_t *)scratch, acc);
    if (product->weight->narrow)
        multiply_chunks(product, true, product->narrow->chunk, first, end, NULL, acc);
}

#endif
