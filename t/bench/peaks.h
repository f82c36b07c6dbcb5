/* What a machine can do at most: read memory that no cache holds, the floor under what takes few
 * operations per byte; let its threads meet; and multiply with all operands in registers, the floor under the rest. A
 * multiply-add counts as two operations. */
#ifndef PD_PEAKS_H
#define PD_PEAKS_H

#include "kernels/team.h"

/* Bytes read in order by all threads, 64 MiB each, in 10^9 per second; 0 where there is no memory for it. */
double pd_peak_read(struct pd_team *team);

/* Nanoseconds that a barrier takes where nobody is late. */
double pd_least_barrier(struct pd_team *team);

/* Of f32, in 10^9 operations per second of all threads; 0 where there is no fused multiply-add. */
double pd_peak_f32(struct pd_team *team);

/* Of bytes, by the best instructions that `path` may use ("auto", or what pd_device_options.isa takes);
 * *name says which those are. 0 where there are none. */
double pd_peak_int8(struct pd_team *team, const char *path, const char **name);

#endif
