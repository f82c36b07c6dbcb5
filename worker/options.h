/* The worker's flags: one table that parses, checks and explains them.
 *
 * Names are those that vLLM users know, where the thing is the same. A flag is written `--flag
 * value` or `--flag=value`; a switch is `--switch` or `--no-switch`. What cannot be understood is
 * an error that says what to write instead; nothing is guessed and nothing is ignored. */
#ifndef PD_OPTIONS_H
#define PD_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "worker/base/error.h"
#include "worker/base/log.h"

enum { PD_DISPATCHERS_MAX = 16 };

/* Indices of the choices in the order that --help prints them; the first three equal enum pd_role.
 */
enum pd_option_role { PD_OPTION_PREFILL, PD_OPTION_DECODE, PD_OPTION_MIXED };
enum pd_option_kv_dtype {
    PD_OPTION_KV_AUTO,
    PD_OPTION_KV_F32,
    PD_OPTION_KV_F16,
    PD_OPTION_KV_BF16
};

/* Strings point into argv or are static; they live as long as the program. Empty: not given. */
struct pd_options {
    int role; /* enum pd_option_role */
    const char *host;
    int64_t port; /* 0: the system chooses */
    const char *port_file;
    int64_t metrics_port; /* 0: none */
    const char *name, *zone, *revision;
    const char *dispatchers[PD_DISPATCHERS_MAX]; /* host:port each */
    int dispatcher_count;
    const char *dispatcher_token_file;

    const char *model, *served_model_name;
    const char *load_format;  /* "auto", "dummy" */
    const char *weight_cache; /* folder; "": none */
    int64_t seed;             /* of dummy weights */
    int64_t tensor_parallel_size;
    int64_t max_model_len; /* 0: as long as the model and the KV memory allow */

    double gpu_memory_utilization; /* 0: not given */
    int64_t kv_cache_memory;       /* bytes; 0: chosen */
    int kv_cache_dtype;            /* enum pd_option_kv_dtype */
    int64_t block_size;
    bool prefix_caching;

    int64_t max_num_batched_tokens, max_num_seqs, max_waiting;
    int64_t prefill_chunk_ms;
    int64_t max_submit_bytes;
    bool chunked_prefill;

    const char *device, *isa;   /* as pd_device_options takes them */
    int64_t threads;            /* 0: one per core */
    int matmul_precision;       /* enum pd_precision */
    bool enforce_eager;         /* pd_device_options.eager */
    bool deterministic;         /* pd_device_options.deterministic */
    const char *cuda_enable;    /* pd_device_options.cuda_enable */
    const char *cuda_libraries; /* pd_device_options.cuda_libraries */
    const char *cuda_cache;     /* pd_device_options.cuda_cache */

    const char *kv_transport; /* "auto", "gpu", "shm", "rdma", "tcp" */
    const char *kv_bind, *kv_device;
    int64_t kv_qps;
    bool kv_busy_poll, kv_checksum, kv_tls;

    const char *tls_cert, *tls_key, *tls_ca;

    int64_t drain_timeout;   /* seconds */
    int64_t request_timeout; /* seconds */
    int log_level;           /* enum pd_log_level */
    bool check, help, version;
};

/* Fills *options with the defaults and what argv says. PD_INVALID with a sentence that says what to
 * write. After --help or --version the rest is neither required nor checked. */
int pd_options_parse(int argc, char **argv, struct pd_options *options, struct pd_error *error);

/* What --help prints. */
void pd_options_help(FILE *out);

#endif
