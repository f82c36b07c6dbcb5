/* A bench for devices: one step in, tensors out, with inputs made by a seeded generator, so that
 * the same program can run on two devices and be compared. Every failure of a call fails the test.
 */
#ifndef PD_KERNEL_RIG_H
#define PD_KERNEL_RIG_H

#include "kernels/kernels.h"

struct pd_rig {
    struct pd_device *device;
    struct pd_device_options options;
};

/* Options that most tests want: 96 tokens, 16 sequences of 512, blocks of 16, a vocabulary of 300; all
 * paths of a GPU. */
struct pd_device_options pd_rig_options(const char *kind, const char *isa, int threads);

void pd_rig_open(struct pd_rig *rig, const struct pd_device_options *options);
void pd_rig_close(struct pd_rig *rig);

/* What is under test, NULL ends: "cuda" in a program that has that backend; else the paths of the
 * cpu backend that this machine can run, "baseline", then perhaps more. */
const char *const *pd_rig_paths(void);

/* Whether this machine has that precision on that path. */
bool pd_rig_has(const char *path, enum pd_precision precision);

/* The kind of device that goes with a path. */
const char *pd_rig_kind(const char *path);

/* Other numbers for every fill and matrix below; 0 at first. */
extern uint64_t pd_rig_seed;

/* Called, if set, with the memory of every tensor that a test makes: what no operator writes is to be
 * told from what one does. NULL at first. */
extern void (*pd_rig_poison)(struct pd_device *device, void *memory, size_t bytes);

/* splitmix64: the same numbers everywhere. */
uint64_t pd_rig_random(uint64_t *state);
float pd_rig_normal(uint64_t *state); /* about N(0, 1) */
void pd_rig_fill(float *values, size_t count, float scale, uint64_t seed);

/* A malloc'ed matrix of `type` with plausible contents: any bytes, sane scales. */
void *pd_rig_matrix(enum pd_dtype type, int rows, int cols, uint64_t seed);
struct pd_weight *pd_rig_weight(struct pd_rig *rig, enum pd_dtype type, int rows, int cols,
                                bool embedding, uint64_t seed);

/* An embedding whose row i is values[i]: the way by which a test's own numbers get into an
 * activation. Rows past `rows` are zero. */
struct pd_weight *pd_rig_input(struct pd_rig *rig, const float *values, int rows, int cols);

struct pd_tensor pd_rig_tensor(struct pd_rig *rig, int rows, int cols);
struct pd_buffer *pd_rig_pinned(struct pd_rig *rig, size_t bytes);
struct pd_graph *pd_rig_begin(struct pd_rig *rig);
void pd_rig_end(struct pd_graph *graph);

/* Acquires a step and fills it with one sequence in slot `slot`: rows of tokens[0..count) at
 * positions from `position`, blocks from `first_block` on, one sample of the last row (greedy). */
struct pd_step *pd_rig_step(struct pd_rig *rig, int slot, const int32_t *tokens, int count,
                            int position, int first_block);
/* Adds another sequence to a filled step. */
void pd_rig_add(struct pd_rig *rig, struct pd_step *step, int slot, const int32_t *tokens,
                int count, int position, int first_block);

void pd_rig_run(struct pd_rig *rig, struct pd_graph *graph, struct pd_step *step);

/* Root mean square of a - b over that of b. */
double pd_rig_error(const float *a, const float *b, size_t count);

#endif
