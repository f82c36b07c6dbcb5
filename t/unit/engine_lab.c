#include "t/unit/engine_lab.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "worker/base/clock.h"
#include "worker/base/log.h"

enum { ATTACH = 7, ATTEMPT = 1, WAIT_S = 20 };

/* ---- what the engine says -------------------------------------------------------------------- */

static struct lab_answer *answer_of(struct lab *lab, const struct pd_attempt *id)
{
    assert_true(id->request < LAB_REQUESTS);
    return &lab->answers[id->request];
}

static void hear_placed(void *context, const struct pd_placed *placed)
{
    struct lab *lab = context;
    struct lab_answer *answer = answer_of(lab, &placed->id);

    pthread_mutex_lock(&lab->lock);
    assert_int_equal(answer->last_words, 0);
    answer->placed++;
    answer->where = *placed;
    pthread_cond_broadcast(&lab->heard);
    pthread_mutex_unlock(&lab->lock);
    if (lab->on_placed)
        lab->on_placed(lab, placed);
}

static void hear_queued(void *context, const struct pd_attempt *id)
{
    struct lab *lab = context;
    struct lab_answer *answer = answer_of(lab, id);
    struct pd_load load;

    pd_engine_load(lab->engine, &load);
    pthread_mutex_lock(&lab->lock);
    assert_int_equal(answer->placed, 0);
    answer->queued++;
    answer->when_queued = load;
    pthread_mutex_unlock(&lab->lock);
}

static void write_down(struct lab_answer *answer, const struct pd_output *output)
{
    assert_int_equal(answer->last_words, 0);
    if (answer->count == 0)
        answer->first_position = (int)output->position;
    assert_int_equal(output->position, answer->first_position + answer->count);
    for (size_t i = 0; i < output->token_count; i++) {
        assert_true(answer->count < LAB_TOKENS);
        if (output->logprob_stride > 0) {
            const struct pd_token_logprob *row =
                output->logprobs + i * (size_t)output->logprob_stride;

            assert_int_equal(row->token, output->tokens[i]);
            answer->logprobs[answer->count] = row->logprob;
        }
        answer->tokens[answer->count++] = output->tokens[i];
    }
    assert_true(answer->text_length + output->text_length < LAB_TEXT);
    memcpy(answer->text + answer->text_length, output->text, output->text_length);
    answer->text_length += output->text_length;
    if (output->finished) {
        answer->last_words++;
        answer->end = *output;
    }
}

static void hear_step(void *context, uint64_t step, const struct pd_output *outputs, size_t count)
{
    struct lab *lab = context;

    pthread_mutex_lock(&lab->lock);
    assert_true(step >= lab->steps);
    lab->steps = step;
    lab->events++;
    for (size_t i = 0; i < count; i++) {
        struct lab_answer *answer = answer_of(lab, &outputs[i].id);

        write_down(answer, &outputs[i]);
        answer->end_step = step;
    }
    pthread_cond_broadcast(&lab->heard);
    pthread_mutex_unlock(&lab->lock);
    for (size_t i = 0; lab->on_output && i < count; i++)
        lab->on_output(lab, &outputs[i]);
    if (lab->on_step)
        lab->on_step(lab, step);
}

static void hear_failed(void *context, const struct pd_failure *failure)
{
    struct lab *lab = context;
    struct lab_answer *answer = answer_of(lab, &failure->id);

    pthread_mutex_lock(&lab->lock);
    answer->last_words++;
    answer->failed = true;
    answer->code = failure->code;
    answer->retry_after_ms = failure->retry_after_ms;
    snprintf(answer->message, sizeof(answer->message), "%s", failure->message);
    snprintf(answer->param, sizeof(answer->param), "%s", failure->param);
    pthread_cond_broadcast(&lab->heard);
    pthread_mutex_unlock(&lab->lock);
    if (lab->on_failed)
        lab->on_failed(lab);
}

/* ---- life ------------------------------------------------------------------------------------ */

struct lab_options lab_defaults(void)
{
    return (struct lab_options){
        .model = {.max_tokens = 16,
                  .max_seqs = 4,
                  .max_model_len = 160,
                  .block_size = 8,
                  .kv_blocks = 60},
    };
}

void lab_open(struct lab *lab, const struct lab_options *options)
{
    struct pd_engine_options engine = {
        .role = PD_ROLE_MIXED,
        .instance = options->instance ? options->instance : "lab",
        .kv_address = options->instance ? options->instance : "lab",
        .boot = 99,
        .max_model_len = options->model.max_model_len,
        .max_tokens = options->model.max_tokens,
        .max_seqs = options->model.max_seqs,
        .block_size = options->model.block_size,
        .kv_blocks = options->model.kv_blocks,
        .prefix_caching = !options->no_caching,
        .max_waiting = options->max_waiting ? options->max_waiting : 64,
        .patience_ms = options->patience_ms,
        .events = {lab, hear_placed, hear_step, hear_failed, hear_queued},
    };
    struct pd_error error;

    memset(lab, 0, sizeof(*lab));
    pd_log_set_level(PD_LOG_ERROR + 1);
    pthread_mutex_init(&lab->lock, NULL);
    pthread_cond_init(&lab->heard, NULL);
    lab->model = tiny_model_create(&options->model);
    if (pd_engine_create(&engine, lab->model, &lab->model->config, lab->model->device, &lab->engine,
                         &error) != PD_OK)
        fail_msg("%s", error.text);
}

void lab_start(struct lab *lab, struct pd_kvx *kvx)
{
    assert_int_equal(pd_engine_start(lab->engine, kvx, NULL), PD_OK);
}

void lab_stop(struct lab *lab)
{
    lab_wait_rest(lab);
    pd_engine_stop(lab->engine);
}

void lab_close(struct lab *lab)
{
    pd_engine_destroy(lab->engine);
    tiny_model_destroy(lab->model);
    pthread_mutex_destroy(&lab->lock);
    pthread_cond_destroy(&lab->heard);
}

/* ---- requests -------------------------------------------------------------------------------- */

struct pd_attempt lab_id(uint64_t id)
{
    return (struct pd_attempt){ATTACH, id, ATTEMPT};
}

void lab_append(struct pd_tokens *tokens, const int32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (tokens->count == tokens->capacity) {
            tokens->capacity = tokens->capacity * 2 + 16;
            tokens->ids = realloc(tokens->ids, tokens->capacity * sizeof(*tokens->ids));
        }
        tokens->ids[tokens->count++] = ids[i];
    }
}

struct pd_request *lab_request(struct lab *lab, uint64_t id, const char *prompt,
                               uint32_t max_tokens)
{
    struct pd_request *request = pd_request_create();

    request->id = lab_id(id);
    request->sampling.max_tokens = max_tokens;
    request->sampling.ignore_eos = true;
    for (const char *p = prompt; *p; p++) {
        int32_t byte = (unsigned char)*p;

        lab_append(&request->prompt, &byte, 1);
    }
    request->arrived_ns = pd_clock_ns();
    lab_stop_string(lab, request, NULL, false);
    return request;
}

void lab_stop_string(struct lab *lab, struct pd_request *request, const char *stop, bool include)
{
    struct pd_string string = {stop, stop ? strlen(stop) : 0};
    struct pd_stop_rules rules = {&string, stop ? 1 : 0, include};

    pd_text_stream_destroy(request->stream);
    assert_int_equal(pd_text_stream_create(lab->model->tokenizer, &rules, &request->stream, NULL),
                     PD_OK);
}

void lab_submit(struct lab *lab, struct pd_request *request)
{
    assert_int_equal(pd_engine_submit(lab->engine, request), PD_OK);
}

/* ---- questions ------------------------------------------------------------------------------- */

/* Waits on the condition until `end`; the lock is held. */
static void wait_more(struct lab *lab, uint64_t end, const char *what, uint64_t id)
{
    struct timespec soon;

    if (pd_clock_ns() > end)
        fail_msg("request %llu: %s does not come", (unsigned long long)id, what);
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_nsec += 50000000;
    soon.tv_sec += soon.tv_nsec / 1000000000;
    soon.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&lab->heard, &lab->lock, &soon);
}

static uint64_t patience(void)
{
    return pd_clock_ns() + WAIT_S * UINT64_C(1000000000);
}

struct lab_answer *lab_wait(struct lab *lab, uint64_t id)
{
    uint64_t end = patience();

    pthread_mutex_lock(&lab->lock);
    while (lab->answers[id].last_words == 0)
        wait_more(lab, end, "the last word", id);
    pthread_mutex_unlock(&lab->lock);
    return &lab->answers[id];
}

void lab_wait_placed(struct lab *lab, uint64_t id)
{
    uint64_t end = patience();

    pthread_mutex_lock(&lab->lock);
    while (lab->answers[id].placed == 0)
        wait_more(lab, end, "its place", id);
    pthread_mutex_unlock(&lab->lock);
}

void lab_wait_tokens(struct lab *lab, uint64_t id, int count)
{
    uint64_t end = patience();

    pthread_mutex_lock(&lab->lock);
    while (lab->answers[id].count < count)
        wait_more(lab, end, "a token", id);
    pthread_mutex_unlock(&lab->lock);
}

struct pd_load lab_load(struct lab *lab)
{
    struct pd_load load;

    pd_engine_load(lab->engine, &load);
    return load;
}

void lab_wait_rest(struct lab *lab)
{
    uint64_t end = patience();
    struct pd_load load = lab_load(lab);

    pthread_mutex_lock(&lab->lock);
    while (!pd_engine_idle(lab->engine) || load.kv_free != load.kv_total || load.kv_reserved ||
           load.running || load.waiting || load.prefill_queued_tokens) {
        wait_more(lab, end, "rest", 0);
        load = lab_load(lab);
    }
    pthread_mutex_unlock(&lab->lock);
}

void lab_oracle(const char *prompt, const struct pd_sampling *sampling, int32_t *answer, int length)
{
    struct pd_sample_params params = {.top_p = 1, .typical_p = 1, .repetition = 1};
    int32_t tokens[LAB_TOKENS];
    int count = 0;

    for (const char *p = prompt; *p; p++)
        tokens[count++] = (unsigned char)*p;
    if (sampling) {
        params.temperature = sampling->temperature;
        params.top_p = sampling->top_p > 0 ? sampling->top_p : 1;
        params.min_p = sampling->min_p;
        params.typical_p = sampling->typical_p > 0 ? sampling->typical_p : 1;
        params.top_k = sampling->top_k;
        params.presence = sampling->presence;
        params.frequency = sampling->frequency;
        params.repetition = sampling->repetition > 0 ? sampling->repetition : 1;
        params.seed = sampling->seed;
    }
    tiny_model_answer(tokens, count, params, answer, NULL, length);
}

void lab_expect(struct lab *lab, uint64_t id, const int32_t *answer, int length)
{
    const struct lab_answer *heard = lab_wait(lab, id);

    if (heard->failed)
        fail_msg("request %llu failed: %s", (unsigned long long)id, heard->message);
    assert_int_equal(heard->last_words, 1);
    assert_int_equal(heard->count, length);
    assert_memory_equal(heard->tokens, answer, (size_t)length * sizeof(*answer));
}
