#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "t/unit/model_run.h"

const char *model_run_weight_cache;
bool model_run_deterministic;
bool model_run_eager;
const char *model_run_cuda_libraries;
enum pd_dtype model_run_pool_type = PD_F32;

static void open_device(struct model_run *run, const char *kind, enum pd_precision precision,
                        int threads)
{
    const struct pd_device_options options = {
        .kind = kind,
        .ranks = run->ranks,
        .threads = threads,
        .isa = "auto",
        .cuda_enable = "all",
        .cuda_libraries = model_run_cuda_libraries,
        .deterministic = model_run_deterministic,
        .eager = model_run_eager,
        .precision = precision,
        .max_tokens = MODEL_RUN_TOKENS,
        .max_seqs = MODEL_RUN_SAMPLES,
        .max_model_len = run->max_model_len,
        .block_size = MODEL_RUN_BLOCK,
        .vocabulary = run->config->vocabulary,
    };
    char error[256] = "";

    if (pd_device_open(&options, &run->device, error, sizeof(error)) != PD_KERNEL_OK)
        fail_msg("device %s: %s", kind, error);
}

static void make_pool(struct model_run *run, int rank)
{
    struct pd_model_share share = pd_model_share_of(run->config, rank, run->ranks);
    struct pd_kv_pool *pool = &run->pool[rank];

    *pool = (struct pd_kv_pool){
        .layers = run->config->layers,
        .kv_heads = share.kv_heads,
        .head_dim = run->config->head_dim,
        .block_size = MODEL_RUN_BLOCK,
        .blocks = (run->max_model_len + MODEL_RUN_BLOCK - 1) / MODEL_RUN_BLOCK,
        .type = model_run_pool_type,
    };
    assert_int_equal(pd_buffer_create(pd_device_rank(run->device, rank), PD_BUFFER_KV,
                                      pd_kv_pool_bytes(pool), &pool->buffer),
                     PD_KERNEL_OK);
}

static void load(struct model_run *run, const char *kind, enum pd_precision precision, int threads,
                 int max_model_len)
{
    struct pd_model_options options = {
        .max_tokens = MODEL_RUN_TOKENS,
        .max_seqs = MODEL_RUN_SAMPLES,
        .pool = run->pool,
        .threads = threads,
        .weight_cache = model_run_weight_cache,
        .read_logits = true,
    };
    struct pd_error error = {PD_OK, ""};

    run->config = pd_model_files_config(run->files);
    run->max_model_len = max_model_len ? max_model_len : run->config->context;
    options.max_model_len = run->max_model_len;
    open_device(run, kind, precision, threads);
    for (int r = 0; r < run->ranks; r++)
        make_pool(run, r);
    if (pd_model_load(run->files, run->device, &options, &run->model, &error) != PD_OK)
        fail_msg("%s", error.text);
}

void model_run_open(struct model_run *run, const char *path, const char *kind,
                    enum pd_precision precision, int threads, int max_model_len)
{
    struct pd_error error = {PD_OK, ""};

    memset(run, 0, sizeof(*run));
    if (pd_model_files_open(path, &run->files, &error) != PD_OK)
        fail_msg("%s", error.text);
    run->ranks = 1;
    load(run, kind, precision, threads, max_model_len);
}

void model_run_make(struct model_run *run, const char *directory, uint64_t seed, const char *kind,
                    int threads)
{
    model_run_make_ranks(run, directory, seed, kind, threads, 1);
}

void model_run_make_ranks(struct model_run *run, const char *directory, uint64_t seed,
                          const char *kind, int threads, int ranks)
{
    struct pd_error error = {PD_OK, ""};

    memset(run, 0, sizeof(*run));
    if (pd_model_files_make(directory, seed, threads, &run->files, &error) != PD_OK)
        fail_msg("%s", error.text);
    run->ranks = ranks;
    load(run, kind, PD_PRECISION_F32, threads, 0);
}

void model_run_close(struct model_run *run)
{
    pd_model_destroy(run->model);
    for (int r = 0; r < run->ranks; r++)
        pd_buffer_destroy(run->pool[r].buffer);
    pd_device_close(run->device);
    pd_model_files_close(run->files);
}

static int block_of(const struct model_run *run, int position)
{
    return (int)run->pool[0].blocks - 1 - position / MODEL_RUN_BLOCK;
}

static void fill_tokens(const struct model_run *run, struct pd_step *step, const int32_t *ids,
                        int from, int count)
{
    step->tokens = count;
    for (int i = 0; i < count; i++) {
        step->token[i] = ids[from + i];
        step->position[i] = from + i;
        step->sequence[i] = 0;
        step->kv_slot[i] = block_of(run, from + i) * MODEL_RUN_BLOCK + (from + i) % MODEL_RUN_BLOCK;
    }
    step->sequences = 1;
    step->slot[0] = 0;
    step->first[0] = 0;
    step->length[0] = count;
    step->context[0] = from + count;
    for (int block = 0; block * MODEL_RUN_BLOCK < from + count; block++)
        step->blocks[block] = block_of(run, block * MODEL_RUN_BLOCK);
}

static void fill_samples(struct pd_step *step, int from, const int *wanted, int wanted_count)
{
    step->samples = wanted_count;
    for (int i = 0; i < wanted_count; i++) {
        step->sample_row[i] = wanted[i] - from;
        step->sample_slot[i] = i;
        step->sample[i] = (struct pd_sample_params){.top_p = 1, .typical_p = 1, .repetition = 1};
    }
}

void model_run_step(struct model_run *run, const int32_t *ids, int from, int count,
                    const int *wanted, int wanted_count, float *logits, int32_t *sampled)
{
    size_t rows = (size_t)wanted_count;
    struct pd_step *step;

    assert_int_equal(pd_step_acquire(run->device, &step), PD_KERNEL_OK);
    fill_tokens(run, step, ids, from, count);
    fill_samples(step, from, wanted, wanted_count);
    assert_int_equal(pd_graph_launch(pd_model_graph(run->model), step), PD_KERNEL_OK);
    assert_int_equal(pd_step_wait(run->device, step->number, 600000), PD_KERNEL_OK);
    if (logits)
        memcpy(logits, pd_model_logits(run->model),
               rows * (size_t)run->config->vocabulary * sizeof(*logits));
    if (sampled)
        memcpy(sampled, step->sampled, rows * sizeof(*sampled));
}
