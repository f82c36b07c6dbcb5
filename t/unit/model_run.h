/* Runs a model in a test, one sequence at a time: opens path and device, makes a KV pool, and feeds
 * steps. The sequence's blocks lie backwards in the pool, so that nothing works by an identical
 * table. Every call asserts that it succeeded. Include cmocka first. */
#ifndef MODEL_RUN_H
#define MODEL_RUN_H

#include "worker/model/ranks.h"

enum { MODEL_RUN_TOKENS = 128, MODEL_RUN_SAMPLES = 64, MODEL_RUN_BLOCK = 16 };

struct model_run {
    struct pd_model_files *files;
    const struct pd_model_config *config;
    struct pd_device *device;
    int ranks;
    struct pd_kv_pool pool[PD_RANKS_MAX];
    struct pd_model *model;
    int max_model_len;
};

/* pd_model_options.weight_cache of the models that are opened; NULL as a rule. */
extern const char *model_run_weight_cache;
/* pd_device_options.deterministic, and the type of the KV pool: false and PD_F32 as a rule. */
extern bool model_run_deterministic;
extern bool model_run_eager; /* likewise; false as a rule */
extern const char *model_run_cuda_libraries; /* as pd_device_options has it; NULL as a rule */
extern enum pd_dtype model_run_pool_type;

/* `kind` of device; at most max_model_len tokens (0: what the model was made for). */
void model_run_open(struct model_run *run, const char *path, const char *kind,
                    enum pd_precision precision, int threads, int max_model_len);
/* The same of a directory with a config.json alone: dummy weights. */
void model_run_make(struct model_run *run, const char *directory, uint64_t seed, const char *kind,
                    int threads);
/* On a group of `ranks`. */
void model_run_make_ranks(struct model_run *run, const char *directory, uint64_t seed,
                          const char *kind, int threads, int ranks);
void model_run_close(struct model_run *run);

/* Computes ids[from .. from + count), at those positions, after the ids before them have been fed;
 * count <= MODEL_RUN_TOKENS. Copies the logits of the `wanted` positions (ascending, all in this
 * range, at most MODEL_RUN_SAMPLES) to logits[wanted_count][vocabulary], and what greedy sampling
 * drew to sampled[] (either may be NULL). */
void model_run_step(struct model_run *run, const int32_t *ids, int from, int count,
                    const int *wanted, int wanted_count, float *logits, int32_t *sampled);

#endif
