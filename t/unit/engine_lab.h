/* A bench for engines: one over a tiny model, everything it says written down, and the questions
 * that tests ask. Waits are bounded; a wait that ends in vain fails the test. */
#ifndef PD_TEST_ENGINE_LAB_H
#define PD_TEST_ENGINE_LAB_H

#include <pthread.h>

#include "t/unit/tiny_model.h"
#include "worker/engine/engine.h"

enum { LAB_REQUESTS = 96, LAB_TOKENS = 256, LAB_TEXT = 2048 };

/* What was heard of one request. Tokens are ordered by position, repeats checked and dropped. */
struct lab_answer {
    int placed;
    struct pd_placed where;
    int queued;
    struct pd_load when_queued;
    int32_t tokens[LAB_TOKENS];
    float logprobs[LAB_TOKENS];
    int count;
    int first_position;
    char text[LAB_TEXT];
    size_t text_length;
    uint64_t end_step; /* steps that had run when the last word came */
    int last_words;    /* outputs with `finished`, and failures */
    bool failed;
    struct pd_output end; /* its pointers are not valid */
    int code;
    char message[256], param[64];
    uint32_t retry_after_ms;
};

struct lab {
    struct pd_engine *engine;
    struct pd_model *model;
    pthread_mutex_t lock;
    pthread_cond_t heard;
    struct lab_answer answers[LAB_REQUESTS];
    uint64_t steps, events;
    /* Called on the engine's thread, without the lock, after it is written down; may be NULL. */
    void (*on_placed)(struct lab *lab, const struct pd_placed *placed);
    void (*on_output)(struct lab *lab, const struct pd_output *output);
    void (*on_step)(struct lab *lab, uint64_t step);
    void (*on_failed)(struct lab *lab);
    void *context;
};

struct lab_options {
    struct tiny_options model;
    bool no_caching;
    int max_waiting;      /* 0: 64 */
    int patience_ms;      /* 0: the engine's own */
    const char *instance; /* NULL: "lab" */
};

/* The options that most tests start from: 4 sequences of 160 tokens, 16 in a step, 60 blocks of 8.
 */
struct lab_options lab_defaults(void);

/* An engine that is not running yet; then lab_start. */
void lab_open(struct lab *lab, const struct lab_options *options);
void lab_start(struct lab *lab, struct pd_kvx *kvx);
/* Waits until nothing lives, checks that no block is missing, stops. kvx may go after that. */
void lab_stop(struct lab *lab);
void lab_close(struct lab *lab);

/* A greedy request for `max_tokens` tokens behind the text `prompt`. Ids are below LAB_REQUESTS. */
struct pd_request *lab_request(struct lab *lab, uint64_t id, const char *prompt,
                               uint32_t max_tokens);
void lab_stop_string(struct lab *lab, struct pd_request *request, const char *stop, bool include);
/* To a request's prompt or generated tokens. */
void lab_append(struct pd_tokens *tokens, const int32_t *ids, size_t count);
void lab_submit(struct lab *lab, struct pd_request *request);
struct pd_attempt lab_id(uint64_t id);

/* Until the request's last word. */
struct lab_answer *lab_wait(struct lab *lab, uint64_t id);
void lab_wait_placed(struct lab *lab, uint64_t id);
void lab_wait_tokens(struct lab *lab, uint64_t id, int count);
/* Until nothing lives any more and all blocks are free. */
void lab_wait_rest(struct lab *lab);
struct pd_load lab_load(struct lab *lab);

/* What the model answers to `prompt`, by the oracle. */
void lab_oracle(const char *prompt, const struct pd_sampling *sampling, int32_t *answer,
                int length);
/* Fails unless the request ended well with exactly this answer. */
void lab_expect(struct lab *lab, uint64_t id, const int32_t *answer, int length);

#endif
