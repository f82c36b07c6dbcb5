/* A model small enough for a test: two layers of seeded random weights on the reference backend, and
 * a byte-level tokenizer. A test that gives it to an engine links double_model.c too.
 *
 * The weights are drawn so that greedy answers wander through the vocabulary. One token's embedding
 * is not a number: it poisons every sequence that contains it, and no other. */
#ifndef PD_TEST_TINY_MODEL_H
#define PD_TEST_TINY_MODEL_H

#include "kernels/kernels.h"
#include "worker/model/model.h"

enum {
    TINY_VOCABULARY = 260, /* the bytes, and four more */
    TINY_EOS = 256,        /* special, like the next */
    TINY_BOS = 257,
    TINY_NAN = 258, /* poison */
};

struct tiny_options {
    const char *device; /* kind; NULL: "reference" */
    int max_tokens, max_seqs, max_model_len, block_size;
    int64_t kv_blocks;
    int32_t eos; /* 0: TINY_EOS */
};

/* The tests' own definition: what the real model room makes is not linked. */
struct pd_model {
    struct pd_device *device;
    struct pd_kv_pool pool;
    struct pd_graph *graph;
    struct pd_fingerprint fingerprint;
    struct pd_model_config config;
    struct pd_tokenizer *tokenizer;
};

/* The width of every head from here on, up to 32: 8, until a test says 32 for a device that takes no less. */
extern int tiny_head_dim;

/* Fails the running test if anything goes wrong. */
struct pd_model *tiny_model_create(const struct tiny_options *options);
void tiny_model_destroy(struct pd_model *model);

/* What the model answers, found one token at a time without the engine: the oracle. Feeds `count`
 * tokens as one chunk, then samples until `answer` is full. `params` as for the first token. */
void tiny_model_answer(const int32_t *prompt, int count, struct pd_sample_params params,
                       int32_t *answer, float *logprobs, int length);

#endif
