#include "worker/sizing.h"

#include <stdio.h>
#include <string.h>

#include "worker/kvx/kvx.h"
#include "worker/model/ranks.h"

enum { KV_DEFAULT_BYTES = 1 << 30 };

/* Of a GPU's memory where --gpu-memory-utilization is not given. */
static const double UTILIZATION = 0.9;

const char *pd_size_text(uint64_t bytes, char text[32])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;

    while (value >= 1024 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(text, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}

static enum pd_dtype kv_type(const struct pd_options *options)
{
    switch (options->kv_cache_dtype) {
    case PD_OPTION_KV_F32:
        return PD_F32;
    case PD_OPTION_KV_BF16:
        return PD_BF16;
    default:
        return PD_F16;
    }
}

int pd_sizing_ranks(const struct pd_options *options)
{
    return options->tensor_parallel_size > 1 ? (int)options->tensor_parallel_size : 1;
}

int64_t pd_sizing_longest(const struct pd_options *options, const struct pd_model_config *config)
{
    return options->max_model_len ? options->max_model_len : config->context;
}

uint64_t pd_sizing_token(const struct pd_options *options, const struct pd_model_config *config,
                         int ranks)
{
    const struct pd_model_share share = pd_model_share_of(config, 0, ranks);

    return 2 * (uint64_t)config->layers * (uint64_t)share.kv_heads * (uint64_t)config->head_dim *
           (uint64_t)pd_dtype_bytes(kv_type(options));
}

/* Bytes of one more block: its values on every rank, and its generation word. */
static uint64_t block_bytes(const struct pd_sizing *sizing)
{
    struct pd_kv_pool shape = sizing->pool;

    shape.blocks = 1;
    return (uint64_t)sizing->ranks * pd_kv_pool_bytes(&shape) + sizeof(uint64_t);
}

/* Activations, what products and attention keep between their kernels, the step's descriptor and
 * histories: what kernels/cuda (plan.c, backend.c) and model/graph.c reserve, reckoned from the shape, for the
 * pool's size is decided before there is a model. t/simt/test_scratch.c counts what they do reserve. */
uint64_t pd_sizing_scratch(const struct pd_options *options, const struct pd_model_config *config,
                           int ranks)
{
    /* FIXED: a tile of weights, one of a product's slices, meetings, the library's. ROW: of the descriptor */
    enum { SPLIT = 256, FIXED = 256 << 20, ROW = 4 };
    struct pd_model_share share = pd_model_share_of(config, 0, ranks);
    uint64_t tokens = (uint64_t)options->max_num_batched_tokens;
    uint64_t seqs = (uint64_t)options->max_num_seqs, vocabulary = (uint64_t)config->vocabulary;
    uint64_t length = (uint64_t)pd_sizing_longest(options, config);
    uint64_t hidden = (uint64_t)config->hidden, inner = (uint64_t)share.inner;
    uint64_t queries = (uint64_t)(share.heads * config->head_dim);
    uint64_t keys = (uint64_t)(share.kv_heads * config->head_dim);
    uint64_t widest = inner > hidden ? inner : hidden;
    uint64_t row = 2 * hidden + (queries + 2 * keys) + queries + inner; /* activations */

    row += 2 * inner + hidden + (widest + 1) / 2; /* gate and up, what ranks add, 16-bit operands */
    row += (uint64_t)config->head_dim + ROW;      /* angles */
    return FIXED + 4 * tokens * row + 4 * seqs * (2 * hidden + 4 * vocabulary) +
           4 * seqs * (length / SPLIT + 1) * (uint64_t)share.heads *
               ((uint64_t)config->head_dim + 2) +
           4 * seqs * length * 2;
}

/* What --gpu-memory-utilization leaves for KV, of all ranks together. */
static int decide_gpu_bytes(const struct pd_options *options, const struct pd_sizing_room *room,
                            struct pd_sizing *sizing, struct pd_error *error)
{
    double share =
        options->gpu_memory_utilization > 0 ? options->gpu_memory_utilization : UTILIZATION;
    uint64_t others = room->gpu_total - room->gpu_free;
    uint64_t taken = others + room->gpu_weights + sizing->scratch;
    uint64_t most = (uint64_t)(share * (double)room->gpu_total);
    char all[32], weights[32], scratch[32], used[32];

    if (taken < most) {
        sizing->kv_bytes = (most - taken) * (uint64_t)sizing->ranks;
        return PD_OK;
    }
    return pd_fail(
        error, PD_INVALID,
        "nothing is left for KV: of %s, a share of %.2f, others have %s, weights take %s, "
        "steps up to %s: more GPUs (--tensor-parallel-size), a larger "
        "--gpu-memory-utilization, fewer --max-num-batched-tokens or --max-num-seqs",
        pd_size_text(room->gpu_total, all), share, pd_size_text(others, used),
        pd_size_text(room->gpu_weights, weights), pd_size_text(sizing->scratch, scratch));
}

static int decide_bytes(const struct pd_options *options, const struct pd_sizing_room *room,
                        struct pd_sizing *sizing, struct pd_error *error)
{
    uint64_t left = room->gpu_total ? room->gpu_free * (uint64_t)sizing->ranks : room->host;
    char have[32], want[32];

    sizing->kv_bytes = (uint64_t)options->kv_cache_memory;
    if (sizing->kv_bytes == 0 && room->gpu_total)
        return decide_gpu_bytes(options, room, sizing, error);
    if (sizing->kv_bytes == 0) {
        sizing->kv_bytes = KV_DEFAULT_BYTES;
        if (left && sizing->kv_bytes > left / 2)
            sizing->kv_bytes = left / 2;
    } else if (left && sizing->kv_bytes > left) {
        return pd_fail(error, PD_INVALID, "--kv-cache-memory %s is more than the %s that %s left",
                       pd_size_text(sizing->kv_bytes, want), pd_size_text(left, have),
                       room->gpu_total ? "the GPUs have" : "this machine has");
    }
    return PD_OK;
}

static int decide_blocks(const struct pd_options *options, struct pd_sizing *sizing,
                         struct pd_error *error)
{
    uint64_t one = block_bytes(sizing), most = INT32_MAX / (uint64_t)options->block_size;
    char have[32], want[32];

    sizing->pool.blocks = (int64_t)(sizing->kv_bytes / one < most ? sizing->kv_bytes / one : most);
    if (sizing->pool.blocks < 2)
        return pd_fail(error, PD_INVALID,
                       "a KV pool of %s holds no two blocks of %lld tokens: give --kv-cache-memory "
                       "at least %s",
                       pd_size_text(sizing->kv_bytes, have), (long long)options->block_size,
                       pd_size_text(2 * one, want));
    return PD_OK;
}

static int decide_length(const struct pd_options *options, const struct pd_model_config *config,
                         struct pd_sizing *sizing, struct pd_error *error)
{
    int64_t room = sizing->pool.blocks * options->block_size;
    int64_t wanted = options->max_model_len, blocks;
    char have[32], want[32];

    if (wanted > config->context)
        return pd_fail(
            error, PD_INVALID,
            "--max-model-len %lld is more than the %d tokens that the model was made for",
            (long long)wanted, config->context);
    if (wanted > room) {
        blocks = (wanted + options->block_size - 1) / options->block_size;
        return pd_fail(error, PD_INVALID,
                       "--max-model-len %lld does not fit into a KV pool of %s, which holds %lld "
                       "tokens: give --kv-cache-memory at least %s, or --max-model-len at most "
                       "%lld",
                       (long long)wanted, pd_size_text(sizing->kv_bytes, have), (long long)room,
                       pd_size_text((uint64_t)blocks * block_bytes(sizing), want), (long long)room);
    }
    sizing->len_was_reduced = wanted == 0 && room < config->context;
    if (wanted == 0)
        wanted = room < config->context ? room : config->context;
    sizing->max_model_len = (int)wanted;
    return PD_OK;
}

int pd_sizing_decide(const struct pd_options *options, const struct pd_model_config *config,
                     const struct pd_sizing_room *room, struct pd_sizing *sizing,
                     struct pd_error *error)
{
    struct pd_error why;
    int status;

    memset(sizing, 0, sizeof(*sizing));
    sizing->ranks = pd_sizing_ranks(options);
    if (pd_model_ranks_check(config, sizing->ranks, &why) != PD_OK)
        return pd_fail(error, why.status, "--tensor-parallel-size %d: %s", sizing->ranks, why.text);
    sizing->pool.layers = config->layers;
    sizing->pool.kv_heads = pd_model_share_of(config, 0, sizing->ranks).kv_heads;
    sizing->pool.head_dim = config->head_dim;
    sizing->pool.block_size = (int)options->block_size;
    sizing->pool.type = kv_type(options);
    sizing->scratch = pd_sizing_scratch(options, config, sizing->ranks);
    status = decide_bytes(options, room, sizing, error);
    if (status == PD_OK)
        status = decide_blocks(options, sizing, error);
    if (status == PD_OK)
        status = decide_length(options, config, sizing, error);
    return status;
}

/* ---- the machine -------------------------------------------------------------------------------- */

/* The first number behind `key` in a small file, times `unit`; 0 if there is none. */
static uint64_t read_number(const char *path, const char *key, uint64_t unit)
{
    char line[256];
    unsigned long long value = 0;
    FILE *file = fopen(path, "re");

    if (!file)
        return 0;
    while (fgets(line, sizeof(line), file))
        if (!strncmp(line, key, strlen(key)) && sscanf(line + strlen(key), " %llu", &value) == 1)
            break;
    fclose(file);
    return (uint64_t)value * unit;
}

uint64_t pd_memory_available(void)
{
    uint64_t machine = read_number("/proc/meminfo", "MemAvailable:", 1024);
    uint64_t most = read_number("/sys/fs/cgroup/memory.max", "", 1);
    uint64_t used = read_number("/sys/fs/cgroup/memory.current", "", 1);

    if (most && most > used && (!machine || most - used < machine))
        return most - used;
    return machine;
}

int pd_sizing_measure(const struct pd_options *options, const struct pd_model_files *files,
                      struct pd_sizing_room *room, struct pd_error *error)
{
    int ranks = pd_sizing_ranks(options);
    struct pd_device_options device = {
        .kind = options->device, .ranks = ranks, .cuda_libraries = options->cuda_libraries};
    char why[1024] = "";

    memset(room, 0, sizeof(*room));
    room->host = pd_memory_available();
    if (pd_device_memory(&device, &room->gpu_total, &room->gpu_free, why, sizeof(why)) !=
        PD_KERNEL_OK)
        return pd_fail(error, PD_UNSUPPORTED, "--device %s: %s", options->device, why);
    if (pd_model_ranks_check(pd_model_files_config(files), ranks, NULL) != PD_OK)
        return PD_OK; /* pd_sizing_decide says why not */
    for (int r = 0; r < ranks && room->gpu_total; r++) {
        uint64_t bytes = pd_model_files_gpu_bytes(files, r, ranks);

        if (bytes > room->gpu_weights)
            room->gpu_weights = bytes;
    }
    return PD_OK;
}
