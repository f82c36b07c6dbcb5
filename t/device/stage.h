/* pd-kernel-test: what one GPU can tell about the CUDA backend without a model, a daemon or a Python.
 *
 *     pd-kernel-test STAGE [--small] [--seed N]      one process for each stage
 *
 * A stage writes its figures to stdout, one JSON object a line, and what it does to stderr. Exit
 * status 0: all right; 1: a wrong number, or a failing call; 77: skipped, for the reason in the
 * last line of stdout. t/device/run gives it a deadline and makes one JSON of it. */
#ifndef PD_DEVICE_STAGE_H
#define PD_DEVICE_STAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PD_STAGE_SKIPPED = 77 };

struct pd_stage_options {
    bool small; /* shapes that a host's shim gets through */
    uint64_t seed;
};

int pd_stage_gpu(const struct pd_stage_options *options);
int pd_stage_ceilings(const struct pd_stage_options *options);
int pd_stage_wrappers(const struct pd_stage_options *options);
int pd_stage_operators(const struct pd_stage_options *options);
int pd_stage_forward(const struct pd_stage_options *options);
int pd_stage_shapes(const struct pd_stage_options *options);
int pd_stage_rows(const struct pd_stage_options *options);
int pd_stage_kernels(const struct pd_stage_options *options);
int pd_stage_collect(const struct pd_stage_options *options);

/* One figure. `ceiling`: what it is a share of, 0: nothing. */
void pd_stage_figure(const char *name, const char *unit, double value, double ceiling);

/* The same, and what an H200 is to reach, in the figure's unit. */
void pd_stage_figure_to_reach(const char *name, const char *unit, double value, double ceiling,
                              double goal);

/* Seconds on a clock that only runs forward. */
double pd_stage_seconds(void);

/* Bytes a second of a copy within the device, read and written, and multiply-adds a second times two
 * of a large bf16 product: measured anew. The latter is 0 where there is no cuBLASLt, and `why` says what there is. */
double pd_stage_copy_bandwidth(bool small);
double pd_stage_matmul_rate(bool small, char *why, size_t size);

#endif
