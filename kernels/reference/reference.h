/* The reference backend: every operator as the plainest loop that states what it means, in double
 * precision. It is what the other backends are tested against; nobody serves with it.
 *
 * Weights are dequantised to f32 once. Sums run in double and are rounded once, on store. */
#ifndef PD_REFERENCE_H
#define PD_REFERENCE_H

#include "kernels/host.h"

struct pd_reference_weight {
    struct pd_weight weight;
    size_t bytes;
    float *values;   /* [rows][cols]; gate rows first, then up rows */
    bool *rounds;    /* [rows] whether its products take x rounded, with the device's precision */
    bool *quantized; /* [rows] of what they were made of */
};

static inline const float *pd_reference_row(const struct pd_weight *weight, int row)
{
    const struct pd_reference_weight *own = (const struct pd_reference_weight *)weight;

    return own->values + (size_t)row * (size_t)weight->cols;
}

pd_host_operator pd_reference_embed, pd_reference_rmsnorm, pd_reference_matmul,
    pd_reference_rope_angles, pd_reference_rope_store, pd_reference_attention, pd_reference_gather,
    pd_reference_sample, pd_reference_read;

#endif
