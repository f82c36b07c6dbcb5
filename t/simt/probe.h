/* Kernels that do one thing of pd_simt.cuh each, on operands that the caller lays out lane by lane:
 * what the shim does can be asked of a GPU too. All run in one block of one warp. */
#ifndef PD_SIMT_PROBE_H
#define PD_SIMT_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* d += a b. a [32][4], b [32][2], d [32][4]: the lanes' words. */
int pd_probe_multiply(void *stream, bool bf16, const uint32_t *a, const uint32_t *b, float *d);

enum pd_probe_load { PD_PROBE_1, PD_PROBE_2, PD_PROBE_4, PD_PROBE_4_TRANSPOSED };

/* Loads from rows[32][8], row r as lane r's. out [32][4]: what each lane received. */
int pd_probe_load_matrix(void *stream, enum pd_probe_load which, const uint16_t *rows,
                         uint32_t *out);

/* Copies `count` (at most 8) pieces of 16 bytes a lane, each a group of its own; odd pieces are not
 * present. Looks at them when all but `pending` (0 or 2) groups have arrived. from, out
 * [32][count][4]. */
int pd_probe_copy(void *stream, int count, int pending, const uint32_t *from, uint32_t *out);

/* Quads of lanes add up among themselves, quad q q times. in, out [32]. */
int pd_probe_quads(void *stream, const float *in, float *out);

#ifdef __cplusplus
}
#endif

#endif
