/* Two engines and the real hand-off between them, over shared memory and over TCP, in both directions: the
 * same answers, and under a storm of cancels no wrong token, no missing last word and no missing block. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/backend.h"
#include "proto/pd.pb-c.h"
#include "t/unit/engine_lab.h"
#include "t/unit/kernel_rig.h"

enum { LONG = 24, MANY = 40, FEW = 8, LINKS = 64 };

/* One worker. */
struct end {
    struct lab lab;
    struct pd_kvx *kvx;
    struct pd_export memory;
    const char *name;
};

static struct end source, reader;

/* ---- the control streams, in place of the link room ------------------------------------------ */

/* Either worker reads from the other; the ids of one are not the other's. */
static struct {
    pthread_mutex_t lock;
    struct link {
        struct end *ends[2]; /* who opened it, and the other */
        uint64_t ids[2];
        bool alive;
    } links[LINKS];
    int count;
} wire = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void on_open(void *context, uint64_t id, const char *address)
{
    struct end *opener = context, *other = opener == &reader ? &source : &reader;
    struct link *link;

    assert_string_equal(address, other->name);
    pthread_mutex_lock(&wire.lock);
    assert_true(wire.count < LINKS);
    link = &wire.links[wire.count++];
    *link = (struct link){{opener, other}, {id, pd_kvx_next_link_id(other->kvx)}, true};
    pd_kvx_reader_up(other->kvx, link->ids[1], opener->name);
    pd_kvx_link_up(opener->kvx, id);
    pthread_mutex_unlock(&wire.lock);
}

/* Which end of a living link this is; *link: NULL if it is none's. */
static int find_link(const struct end *end, uint64_t id, struct link **link)
{
    for (int i = 0; i < 2 * wire.count; i++) {
        *link = &wire.links[i / 2];
        if ((*link)->alive && (*link)->ends[i % 2] == end && (*link)->ids[i % 2] == id)
            return i % 2;
    }
    *link = NULL;
    return 0;
}

static void on_send(void *context, uint64_t id, uint8_t *bytes, size_t length)
{
    struct link *link;
    int other;

    pthread_mutex_lock(&wire.lock);
    other = !find_link(context, id, &link);
    if (link)
        pd_kvx_receive(link->ends[other]->kvx, link->ids[other], bytes, length);
    pthread_mutex_unlock(&wire.lock);
    free(bytes);
}

static void on_close(void *context, uint64_t id)
{
    struct link *link;
    int other;

    pthread_mutex_lock(&wire.lock);
    other = !find_link(context, id, &link);
    if (link) {
        link->alive = false;
        pd_kvx_link_down(link->ends[other]->kvx, link->ids[other], "the other end hung up");
    }
    pthread_mutex_unlock(&wire.lock);
}

/* ---- a pair ---------------------------------------------------------------------------------- */

static void open_end(struct end *end, const char *name, const struct lab_options *options,
                     const char *transport)
{
    struct lab_options mine = *options;
    struct pd_kvx_options kvx = {
        .instance = name,
        .boot = 99,
        .transport = transport,
        .bind_host = "127.0.0.1",
        .max_model_len = (uint32_t)options->model.max_model_len,
        .callbacks = {.link = end, .open_link = on_open, .close_link = on_close, .send = on_send},
    };
    struct pd_error error;

    mine.instance = end->name = name;
    lab_open(&end->lab, &mine);
    assert_int_equal(pd_buffer_export(end->lab.model->pool.buffer, &end->memory), PD_KERNEL_OK);
    kvx.fingerprint = end->lab.model->fingerprint;
    kvx.pool = end->lab.model->pool;
    kvx.memory[0] = end->memory;
    pd_engine_kvx_callbacks(end->lab.engine, &kvx.callbacks);
    if (pd_kvx_create(&kvx, &end->kvx, &error) != PD_OK)
        fail_msg("%s", error.text);
}

static void open_pair(const struct lab_options *prefill, const struct lab_options *decode,
                      const char *transport)
{
    wire.count = 0;
    open_end(&source, "source", prefill, transport);
    open_end(&reader, "reader", decode, transport);
}

static void start_pair(void)
{
    lab_start(&source.lab, source.kvx);
    lab_start(&reader.lab, reader.kvx);
}

static void close_end(struct end *end)
{
    pd_kvx_destroy(end->kvx);
    close(end->memory.fd);
    lab_close(&end->lab);
}

static void close_pair(void)
{
    lab_stop(&reader.lab);
    lab_stop(&source.lab);
    close_end(&reader);
    close_end(&source);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Prompts that share beginnings: kinds 0 to 3, lengths 20 to 99. */
static const char *text_of(uint64_t id)
{
    static char texts[LAB_REQUESTS][100];
    uint64_t random = id;
    size_t length = 20 + pd_rig_random(&random) % 80;

    for (size_t i = 0; i < length; i++)
        texts[id][i] = (char)('a' + (i * (id % 4 + 1) + (i > 60 ? id : 0)) % 26);
    texts[id][length] = '\0';
    return texts[id];
}

static void sampling_of(uint64_t id, struct pd_sampling *sampling)
{
    sampling->temperature = id % 2 ? 1.1f : 0;
    sampling->repetition = 1.2f;
    sampling->top_p = 0.9f;
    sampling->seed = id;
    sampling->max_tokens = LONG;
}

static const int32_t *oracle_of(uint64_t id)
{
    static int32_t answers[LAB_REQUESTS][LONG];
    static bool known[LAB_REQUESTS];
    struct pd_sampling sampling = {0};

    sampling_of(id, &sampling);
    if (!known[id])
        lab_oracle(text_of(id), &sampling, answers[id], LONG);
    known[id] = true;
    return answers[id];
}

static void submit_to_source(uint64_t id)
{
    struct pd_request *request = lab_request(&source.lab, id, text_of(id), LONG);

    sampling_of(id, &request->sampling);
    request->route = PD_ROUTE_PREFILL;
    lab_submit(&source.lab, request);
}

static void submit_to_reader(struct lab *lab, const struct pd_placed *placed)
{
    uint64_t id = placed->id.request;
    struct pd_request *request = lab_request(&reader.lab, id, "", LONG);

    (void)lab;
    assert_true(placed->has_ticket);
    sampling_of(id, &request->sampling);
    request->route = PD_ROUTE_DECODE;
    request->ticket = placed->ticket;
    lab_submit(&reader.lab, request);
}

/* ---- the same answers ------------------------------------------------------------------------ */

/* The first `count` requests, on devices of one kind; NULL: the reference. */
static void same_answers(const char *device, uint64_t count, const char *transport)
{
    struct lab_options p = lab_defaults(), d = lab_defaults();

    p.model.device = d.model.device = device;
    p.model.max_tokens = 20;
    p.model.kv_blocks = 50; /* blocks are used again and again */
    d.model.max_seqs = d.model.max_tokens = MANY;
    d.model.kv_blocks = 700;
    open_pair(&p, &d, transport);
    source.lab.on_placed = submit_to_reader;
    start_pair();
    for (uint64_t id = 0; id < count; id++)
        submit_to_source(id);
    for (uint64_t id = 0; id < count; id++) {
        lab_expect(&source.lab, id, oracle_of(id), 1);
        lab_expect(&reader.lab, id, oracle_of(id), LONG);
        assert_string_equal(reader.lab.answers[id].end.timing.kv.transport, transport);
    }
    assert_true(lab_load(&reader.lab).cache_hit_tokens > 0);
    assert_true(lab_load(&source.lab).cache_hit_tokens > 0);
    close_pair();
}

static void test_same_answers_over_shm(void **state)
{
    (void)state;
    same_answers(NULL, MANY, "shm");
}

static void test_same_answers_over_tcp(void **state)
{
    (void)state;
    same_answers(NULL, MANY, "tcp");
}

/* Over t/simt/, whose device does not show what comes from outside before it is fenced. */
static void test_same_answers_of_gpus_through_their_stages(void **state)
{
    (void)state;
    if (&pd_backend_cuda == NULL)
        skip();
    same_answers("cuda", FEW, "shm");
    same_answers("cuda", FEW, "tcp");
}

static void test_same_answers_of_gpus_that_read_each_other(void **state)
{
    (void)state;
    if (&pd_backend_cuda == NULL)
        skip();
    same_answers("cuda", FEW, "gpu");
}

/* ---- a storm --------------------------------------------------------------------------------- */

/* What becomes of a request is drawn from its id: which side is cancelled, and when. */
static uint64_t fate_of(uint64_t id)
{
    uint64_t random = id + 1000;

    return pd_rig_random(&random) % 8;
}

static void source_placed(struct lab *lab, const struct pd_placed *placed)
{
    uint64_t fate = fate_of(placed->id.request);

    if (fate != 0)
        submit_to_reader(lab, placed);
    if (fate <= 1)
        pd_engine_cancel(lab->engine, placed->id);
    if (fate == 2)
        pd_engine_cancel(reader.lab.engine, placed->id);
}

static void source_said(struct lab *lab, const struct pd_output *output)
{
    uint64_t fate = fate_of(output->id.request);

    if (fate == 3)
        pd_engine_cancel(lab->engine, output->id);
    if (fate == 4)
        pd_engine_cancel(reader.lab.engine, output->id);
}

static void reader_placed(struct lab *lab, const struct pd_placed *placed)
{
    if (fate_of(placed->id.request) == 5)
        pd_engine_cancel(lab->engine, placed->id);
}

static void reader_said(struct lab *lab, const struct pd_output *output)
{
    if (fate_of(output->id.request) == 6 && output->position > 10)
        pd_engine_cancel(lab->engine, output->id);
}

static void expect_true_tokens(const struct lab_answer *answer, uint64_t id)
{
    assert_int_equal(answer->last_words, 1);
    assert_memory_equal(answer->tokens, oracle_of(id),
                        (size_t)answer->count * sizeof(*answer->tokens));
}

static void storm(const char *transport)
{
    struct lab_options p = lab_defaults(), d = lab_defaults();
    int well = 0;

    p.model.kv_blocks = 40;
    p.model.max_tokens = 9;
    d.model.max_seqs = 6;
    d.model.kv_blocks = 60;
    open_pair(&p, &d, transport);
    source.lab.on_placed = source_placed;
    source.lab.on_output = source_said;
    reader.lab.on_placed = reader_placed;
    reader.lab.on_output = reader_said;
    start_pair();
    for (uint64_t id = 0; id < MANY; id++)
        submit_to_source(id);
    for (uint64_t id = 0; id < MANY; id++) {
        const struct lab_answer *answer;

        expect_true_tokens(lab_wait(&source.lab, id), id);
        if (fate_of(id) != 0) {
            answer = lab_wait(&reader.lab, id);
            expect_true_tokens(answer, id);
            well += !answer->failed;
            if (!answer->failed)
                assert_int_equal(answer->count, LONG);
        }
        pd_engine_cancel(source.lab.engine, lab_id(id)); /* as the dispatcher does at every end */
    }
    assert_true(well > 0);
    close_pair();
}

static void test_storm_over_shm(void **state)
{
    (void)state;
    storm("shm");
}

static void test_storm_over_tcp(void **state)
{
    (void)state;
    storm("tcp");
}

/* ---- chats ----------------------------------------------------------------------------------- */

/* The second turn of request `id` is request SECOND + id, and OFFER + id asks the reader what it has. */
enum { CHATS = 16, SECOND = 48, OFFER = 80, TURN = 128 };

static struct turn {
    int32_t prompt[TURN], answer[LONG];
    int count;
} turns[CHATS];

static void ask_the_oracle(void)
{
    for (uint64_t id = 0; id < CHATS; id++) {
        struct turn *turn = &turns[id];
        struct pd_sample_params greedy = {.top_p = 1, .typical_p = 1, .repetition = 1};

        for (const char *p = text_of(2 * id); *p; p++)
            turn->prompt[turn->count++] = *p;
        for (int i = 0; i < LONG; i++)
            turn->prompt[turn->count++] = oracle_of(2 * id)[i];
        turn->prompt[turn->count++] = '?';
        assert_true(turn->count <= TURN);
        tiny_model_answer(turn->prompt, turn->count, greedy, turn->answer, NULL, LONG);
    }
}

static struct pd_request *turn_request(struct lab *lab, uint64_t id, uint64_t chat)
{
    struct pd_request *request = lab_request(lab, id, "", LONG);

    lab_append(&request->prompt, turns[chat].prompt, (size_t)turns[chat].count);
    return request;
}

static void offered(struct lab *lab, const struct pd_placed *placed)
{
    uint64_t chat = placed->id.request - OFFER, fate = fate_of(chat);
    struct pd_request *request;

    if (!placed->has_ticket)
        return; /* it is a decode's */
    request = turn_request(&source.lab, SECOND + chat, chat);
    request->route = PD_ROUTE_PREFILL;
    request->ticket = placed->ticket;
    request->ticket_wait_ms = fate == 3 ? 1 : 60000;
    lab_submit(&source.lab, request);
    if (fate == 1)
        pd_engine_cancel(source.lab.engine, lab_id(SECOND + chat));
    if (fate == 2)
        pd_engine_cancel(lab->engine, placed->id);
}

static void turn_placed(struct lab *lab, const struct pd_placed *placed)
{
    uint64_t id = placed->id.request;
    struct pd_request *request;

    if (id < SECOND) {
        submit_to_reader(lab, placed);
        return;
    }
    request = lab_request(&reader.lab, id, "", LONG);
    request->route = PD_ROUTE_DECODE;
    request->ticket = placed->ticket;
    lab_submit(&reader.lab, request);
}

static void first_turns(void)
{
    for (uint64_t chat = 0; chat < CHATS; chat++) {
        struct pd_request *request = lab_request(&source.lab, 2 * chat, text_of(2 * chat), LONG);

        sampling_of(2 * chat, &request->sampling);
        request->route = PD_ROUTE_PREFILL;
        lab_submit(&source.lab, request);
    }
    for (uint64_t chat = 0; chat < CHATS; chat++)
        lab_expect(&reader.lab, 2 * chat, oracle_of(2 * chat), LONG);
}

/* What came of a chat's second turn; how many tokens the source borrowed for it. */
static uint32_t expect_second_turn(uint64_t chat)
{
    const struct lab_answer *begun = lab_wait(&source.lab, SECOND + chat), *answer;

    assert_int_equal(begun->last_words, 1);
    if (begun->failed) {
        assert_int_equal(fate_of(chat), 1);
        if (!begun->placed)
            return 0;
    }
    answer = lab_wait(&reader.lab, SECOND + chat);
    assert_int_equal(answer->last_words, 1);
    assert_memory_equal(answer->tokens, turns[chat].answer,
                        (size_t)answer->count * sizeof(*answer->tokens));
    if (fate_of(chat) != 1)
        assert_int_equal(answer->count, LONG);
    return begun->where.borrowed_tokens;
}

static void chats(const char *transport)
{
    struct lab_options p = lab_defaults(), d = lab_defaults();
    uint32_t borrowed = 0;

    p.model.kv_blocks = 60; /* blocks are used again and again */
    p.model.max_tokens = 9;
    d.model.max_seqs = d.model.max_tokens = 2 * CHATS;
    d.model.kv_blocks = 700;
    open_pair(&p, &d, transport);
    source.lab.on_placed = turn_placed;
    reader.lab.on_placed = offered;
    start_pair();
    first_turns();
    for (uint64_t chat = 0; chat < CHATS; chat++) {
        struct pd_request *request = turn_request(&reader.lab, OFFER + chat, chat);

        request->route = PD_ROUTE_OFFER;
        lab_submit(&reader.lab, request);
    }
    for (uint64_t chat = 0; chat < CHATS; chat++) {
        borrowed += expect_second_turn(chat);
        pd_engine_cancel(source.lab.engine, lab_id(SECOND + chat));
        pd_engine_cancel(reader.lab.engine, lab_id(OFFER + chat));
    }
    assert_true(borrowed > 0);
    assert_true(lab_load(&source.lab).borrowed_tokens >= borrowed); /* some are evicted again */
    close_pair();
}

static void test_chats_over_shm(void **state)
{
    (void)state;
    chats("shm");
}

static void test_chats_over_tcp(void **state)
{
    (void)state;
    chats("tcp");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_answers_over_shm),
        cmocka_unit_test(test_same_answers_over_tcp),
        cmocka_unit_test(test_same_answers_of_gpus_through_their_stages),
        cmocka_unit_test(test_same_answers_of_gpus_that_read_each_other),
        cmocka_unit_test(test_storm_over_shm),
        cmocka_unit_test(test_storm_over_tcp),
        cmocka_unit_test(test_chats_over_shm),
        cmocka_unit_test(test_chats_over_tcp),
    };

    if (&pd_backend_cuda != NULL) { /* over the shim: all else runs without it */
        tiny_head_dim = 32;
        cmocka_set_test_filter("*gpus*");
    } else {
        ask_the_oracle();
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
