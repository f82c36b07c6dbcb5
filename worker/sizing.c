#include "worker/sizing.h"

#include <stdio.h>
#include <string.h>

#include "worker/kvx/kvx.h"
#include "worker/model/ranks.h"

enum { KV_DEFAULT_BYTES = 1 << 30 };

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

/* Bytes of one more block: its values on every rank, and its generation word. */
static uint64_t block_bytes(const struct pd_sizing *sizing)
{
    struct pd_kv_pool shape = sizing->pool;

    shape.blocks = 1;
    return (uint64_t)sizing->ranks * pd_kv_pool_bytes(&shape) + sizeof(uint64_t);
}

static int decide_blocks(const struct pd_options *options, uint64_t memory_available,
                         struct pd_sizing *sizing, struct pd_error *error)
{
    uint64_t one = block_bytes(sizing), most = INT32_MAX / (uint64_t)options->block_size;
    char have[32], want[32];

    sizing->kv_bytes = (uint64_t)options->kv_cache_memory;
    if (sizing->kv_bytes == 0) {
        sizing->kv_bytes = KV_DEFAULT_BYTES;
        if (memory_available && sizing->kv_bytes > memory_available / 2)
            sizing->kv_bytes = memory_available / 2;
    } else if (memory_available && sizing->kv_bytes > memory_available) {
        return pd_fail(error, PD_INVALID,
                       "--kv-cache-memory %s is more than the %s that this machine has left",
                       pd_size_text(sizing->kv_bytes, want), pd_size_text(memory_available, have));
    }
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
                     uint64_t memory_available, struct pd_sizing *sizing, struct pd_error *error)
{
    struct pd_error why;
    int status;

    memset(sizing, 0, sizeof(*sizing));
    sizing->ranks = options->tensor_parallel_size > 1 ? (int)options->tensor_parallel_size : 1;
    if (pd_model_ranks_check(config, sizing->ranks, &why) != PD_OK)
        return pd_fail(error, why.status, "--tensor-parallel-size %d: %s", sizing->ranks, why.text);
    sizing->pool.layers = config->layers;
    sizing->pool.kv_heads = pd_model_share_of(config, 0, sizing->ranks).kv_heads;
    sizing->pool.head_dim = config->head_dim;
    sizing->pool.block_size = (int)options->block_size;
    sizing->pool.type = kv_type(options);
    status = decide_blocks(options, memory_available, sizing, error);
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
