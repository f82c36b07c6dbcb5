/* Weights as the cpu's kernels want them: quantised, repacked once when loaded.
 *
 * Rows go in panels of 32, two tiles of 16, one row per lane; a panel goes along the columns in
 * blocks of 32. Everything that one block needs lies together, so that a product with one token
 * reads memory as a single stream, and a row's sum is one lane's chain of fused multiply-adds in
 * the order of the columns, whatever else is computed beside it.
 *
 *     panel p, block b:   [scales of 32 rows][columns 32 b .. 32 b + 31 of 32 rows]
 *
 * Repacking loses nothing: the integers and scales are the file's own, so that a row can be read
 * back exactly (embeddings).
 *
 *     form   scales               columns                                  of
 *     N4     f16 d[32], m[32]     word[4][32]: eight columns' nibbles      Q4_0 (m = -8 d), Q4_1
 *     N4F    f32 d[32], m[32]     same                                     Q4_K
 *     I8     f16 d[32]            word[8][32]: four columns' bytes         Q5_0, Q8_0
 *     I8F    f32 d[2][32]         same; d[1] from column 16 on             Q6_K
 *     F16, BF16, F32              [32 columns][32 rows]                    themselves
 *     VECTOR                      f32 [count], not in panels               one row or one column
 *
 * Where products are in bf16, the columns of a block lie row after row, since tiles take the rows of weights as
 * they are; scales and sizes are the same, and f32, which no tile takes, stays as above:
 *
 *     N4, N4F     16-bit word[8][32 columns], of four rows each, the first in the lowest bits
 *     I8, I8F     int8 [32 rows][16 even columns, 16 odd ones]
 *     F16, BF16   [32 rows][32 columns]
 *
 * A word of nibbles has columns 8 g .. 8 g + 7, the first in its lowest bits. So its even columns
 * are four bytes when the odd ones are masked away: what an integer dot product takes. Words of
 * bytes follow that order: 2 g has the even columns of these eight, 2 g + 1 the odd ones, each plus
 * 128.
 * */
#ifndef PD_CPU_WEIGHT_H
#define PD_CPU_WEIGHT_H

#include "kernels/backend.h"
#include "kernels/cpu/weight_arena.h"

enum { PANEL = 32, BLOCK = 32 }; /* rows of a panel, columns of a block */

enum pd_form {
    PD_FORM_N4,
    PD_FORM_N4F,
    PD_FORM_I8,
    PD_FORM_I8F,
    PD_FORM_F16,
    PD_FORM_BF16,
    PD_FORM_F32,
    PD_FORM_COUNT
};

static inline bool pd_form_quantized(enum pd_form form)
{
    return form < PD_FORM_F16;
}

/* Bytes of one block of a panel. */
static inline size_t pd_form_bytes(enum pd_form form)
{
    switch (form) {
    case PD_FORM_N4:
        return 2 * 2 * PANEL + PANEL * BLOCK / 2;
    case PD_FORM_N4F:
        return 2 * 4 * PANEL + PANEL * BLOCK / 2;
    case PD_FORM_I8:
        return 2 * PANEL + PANEL * BLOCK;
    case PD_FORM_I8F:
        return 2 * 4 * PANEL + PANEL * BLOCK;
    case PD_FORM_F16:
    case PD_FORM_BF16:
        return 2 * PANEL * BLOCK;
    default:
        return 4 * PANEL * BLOCK;
    }
}

/* Consecutive panels of one form: the rows of one source, or of gate and up together (then a
 * panel's first tile is gate's rows, its second up's). */
struct pd_cpu_segment {
    enum pd_form form;
    bool narrow;      /* its products take x rounded */
    bool by_rows;     /* how its columns lie */
    int rows;         /* outputs it computes: of gate and up together, half */
    int first_output; /* column of the product that its first row makes */
    int first_panel;  /* of the weight's count */
    int panels;
    size_t panel_bytes;
    uint8_t *data;
};

struct pd_cpu_weight {
    struct pd_weight weight;
    struct pd_weight_arena *arena;
    float *vector;   /* VECTOR; else NULL */
    uint8_t *memory; /* of the segments, from the arena; NULL: they lie in a place that was given */
    size_t bytes;    /* of the segments */
    int panels, count;
    bool minimums;     /* whether a product in f32 needs the sums of x over blocks */
    bool wide, narrow; /* whether it has segments whose products take x in f32, or rounded */
    struct pd_cpu_segment segments[];
};

/* The segment of panel p, searched from `segment` on. */
static inline const struct pd_cpu_segment *pd_cpu_segment_of(const struct pd_cpu_segment *segment,
                                                             int p)
{
    while (p >= segment->first_panel + segment->panels)
        segment++;
    return segment;
}

/* Changes with the picture above. */
static inline const char *pd_cpu_packing(enum pd_precision precision)
{
    return precision == PD_PRECISION_BF16 ? "panels of 32 by rows, 1" : "panels of 32, 1";
}

/* For products of that precision, not AUTO. In a place of its own, or with NULL in the arena. */
int pd_cpu_weight_create(struct pd_device *device, struct pd_weight_arena *arena,
                         enum pd_precision precision, enum pd_weight_layout layout, int cols,
                         const struct pd_weight_source *sources, int count,
                         const struct pd_weight_place *place, struct pd_weight **weight);

/* Bytes of the segments; 0 for a vector. */
size_t pd_cpu_weight_bytes(enum pd_weight_layout layout, int cols,
                           const struct pd_weight_source *sources, int count);
void pd_cpu_weight_release(struct pd_weight *weight);

/* Row `row` (not of gate and up), dequantised exactly. */
void pd_cpu_weight_row(const struct pd_weight *weight, int row, float *out);

static inline const float *pd_cpu_vector(const struct pd_weight *weight)
{
    return weight != NULL ? ((const struct pd_cpu_weight *)weight)->vector : NULL;
}

#endif
