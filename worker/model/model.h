/* A model on disk and on a device: files -> verified config, tokenizer, template, fingerprint ->
 * weights on the device -> the recorded graph of one step.
 *
 * pd_model_files is what --check looks at: everything is verified against the files' sizes, nothing is
 * on a device. pd_model is files + device. */
#ifndef PD_MODEL_H
#define PD_MODEL_H

#include "kernels/kernels.h"
#include "worker/base/error.h"
#include "worker/text/chat_template.h"
#include "worker/text/tokenizer.h"

enum { PD_MODEL_EOS_MAX = 8, PD_DIGEST = 32 };

struct pd_model_config {
    char architecture[32]; /* "llama", "qwen2", "qwen3", ... */
    char name[128];        /* what the file calls itself, for logs */
    int layers, hidden, feed_forward, heads, kv_heads, head_dim, vocabulary;
    int context; /* longest sequence that the model was made for */
    int window;  /* sliding window, 0: none */
    float norm_eps;
    float rope_base;
    int rope_dim;
    bool tied_output, qkv_bias, qk_norm;
    int32_t eos[PD_MODEL_EOS_MAX]; /* tokens that end an answer */
    int eos_count;
    int32_t bos;
    uint64_t weight_bytes; /* as they lie in the files */
};

struct pd_model_files;

/* Opens a .gguf file or a directory with config.json, safetensors (index or single) and tokenizer.json.
 * Everything is memory-mapped and checked: an error names file, tensor and fault. */
int pd_model_files_open(const char *path, struct pd_model_files **files, struct pd_error *error);

/* A model without files but config.json (and tokenizer.json, where there is one; else tokens are
 * bytes): weights out of `seed`, see dummy.h. */
int pd_model_files_make(const char *directory, uint64_t seed, int threads,
                        struct pd_model_files **files, struct pd_error *error);
/* Its shapes alone: good for every question but for values, and cannot be loaded. */
int pd_model_files_plan(const char *directory, struct pd_model_files **files,
                        struct pd_error *error);
void pd_model_files_close(struct pd_model_files *files);

/* Bytes of the weights that a rank of so many has, as they lie in the files. */
uint64_t pd_model_files_rank_bytes(const struct pd_model_files *files, int rank, int ranks);
/* And as they lie on a GPU: quantised matrices with integers and scales apart, vectors as f32. */
uint64_t pd_model_files_gpu_bytes(const struct pd_model_files *files, int rank, int ranks);

const struct pd_model_config *pd_model_files_config(const struct pd_model_files *files);

/* Owned by `files`. The template is NULL where the model has none (chat is then refused by name). */
const struct pd_tokenizer *pd_model_files_tokenizer(const struct pd_model_files *files);
const struct pd_chat_template *pd_model_files_template(const struct pd_model_files *files);

/* SHA-256 each. `weights` is a tree over fixed pieces, computed by `threads` threads; the other two are
 * of the tokenizer's canonical form and the template's source. */
struct pd_fingerprint {
    uint8_t weights[PD_DIGEST], tokenizer[PD_DIGEST], chat_template[PD_DIGEST], layout[PD_DIGEST];
};

struct pd_model_options {
    int max_model_len; /* <= config.context */
    int max_tokens;    /* in one step */
    int max_seqs;
    struct pd_kv_pool
        *pool;   /* one per rank, made on it by the caller for its share of the heads; borrowed */
    int threads; /* for hashing and repacking */
    void (*progress)(void *context, const char *stage, uint64_t done,
                     uint64_t total); /* may be NULL */
    void *context;
    const char *weight_cache; /* folder of weight_cache.h; "" or NULL: none */
    bool read_logits;         /* record a copy of every step's logits to pinned memory: for tests */
};

struct pd_model;

/* Loads the weights onto `device`, to each of its ranks what is its share (ranks.h), hashing them on the way,
 * in parallel, and records the step's graph:
 * embed, layers, publish after each, gather, logits, sample. */
int pd_model_load(struct pd_model_files *files, struct pd_device *device,
                  const struct pd_model_options *options, struct pd_model **model,
                  struct pd_error *error);
void pd_model_destroy(struct pd_model *model); /* before the device is closed */

struct pd_graph *pd_model_graph(struct pd_model *model);
const struct pd_fingerprint *pd_model_fingerprint(const struct pd_model *model);

/* Pinned copy of the last step's logits [samples][vocabulary]; NULL unless loaded with read_logits. */
const float *pd_model_logits(const struct pd_model *model);

#endif
