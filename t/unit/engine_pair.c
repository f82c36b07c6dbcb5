#include "t/unit/engine_pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

struct double_net *net;
struct lab source, reader;
static struct pd_kvx *source_kvx, *reader_kvx;

static void open_end(struct lab *lab, const struct lab_options *options, const char *instance,
                     struct pd_kvx **kvx)
{
    struct lab_options mine = *options;
    struct pd_kvx_callbacks callbacks = {0};

    mine.instance = instance;
    lab_open(lab, &mine);
    pd_engine_kvx_callbacks(lab->engine, &callbacks);
    *kvx = double_kvx_create(net, instance, &lab->model->pool, &callbacks);
}

/* The two may differ in shape; hooks can be set before start_pair. */
void open_pair(const struct lab_options *prefill, const struct lab_options *decode)
{
    net = double_net_create();
    open_end(&source, prefill, "source", &source_kvx);
    open_end(&reader, decode, "reader", &reader_kvx);
}

void start_pair(void)
{
    lab_start(&source, source_kvx);
    lab_start(&reader, reader_kvx);
}

void close_pair(void)
{
    lab_stop(&source);
    lab_stop(&reader);
    assert_int_equal(double_net_counts(net).broken_fences, 0);
    double_kvx_destroy(source_kvx);
    double_kvx_destroy(reader_kvx);
    double_net_destroy(net);
    lab_close(&source);
    lab_close(&reader);
}

struct pd_request *prefill_request(uint64_t id, const char *text, uint32_t max_tokens)
{
    struct pd_request *request = lab_request(&source, id, text, max_tokens);

    request->route = PD_ROUTE_PREFILL;
    return request;
}

/* The same request for the other worker, with the ticket instead of the prompt. */
struct pd_request *decode_request(uint64_t id, uint32_t max_tokens)
{
    struct pd_request *request = lab_request(&reader, id, "", max_tokens);

    lab_wait_placed(&source, id);
    request->route = PD_ROUTE_DECODE;
    assert_true(source.answers[id].where.has_ticket);
    request->ticket = source.answers[id].where.ticket;
    return request;
}

void warm(struct pd_sampling *sampling, uint64_t seed)
{
    sampling->temperature = 1.2f;
    sampling->presence = 1;
    sampling->repetition = 1.1f;
    sampling->top_p = 0.9f;
    sampling->seed = seed;
}

/* What both said, as the dispatcher puts it together by position. */
void expect_pair(uint64_t id, const int32_t *answer, int first, int length)
{
    const struct lab_answer *begun = lab_wait(&source, id);

    if (begun->failed)
        fail_msg("the source failed: %s", begun->message);
    assert_int_equal(begun->count, 1);
    assert_int_equal(begun->first_position, first);
    assert_int_equal(begun->tokens[0], answer[first]);
    lab_expect(&reader, id, answer + first, length - first);
    assert_int_equal(reader.answers[id].first_position, first);
    assert_int_equal(reader.answers[id].end.completion_tokens, length);
    assert_int_equal(reader.answers[id].placed, 1);
}

struct pd_request *no_ticket_request(uint64_t id, uint32_t tokens, uint32_t block_size)
{
    struct pd_request *request = lab_request(&reader, id, "", 10);

    request->route = PD_ROUTE_DECODE;
    request->ticket.tokens = tokens;
    request->ticket.block_size = block_size;
    return request;
}

void run_pair(uint64_t id, const char *text)
{
    lab_submit(&source, prefill_request(id, text, LAB_SPLIT));
    lab_submit(&reader, decode_request(id, LAB_SPLIT));
    assert_false(lab_wait(&source, id)->failed);
    assert_false(lab_wait(&reader, id)->failed);
}

void expect_failure(struct lab *lab, uint64_t id, int code)
{
    assert_true(lab_wait(lab, id)->failed);
    assert_int_equal(lab->answers[id].code, code);
    assert_int_equal(lab->answers[id].last_words, 1);
}

bool one_fetch(const struct double_counts *counts)
{
    return counts->fetches == 1;
}
