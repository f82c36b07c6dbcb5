/* Step and Placed as the module reads them in place. What protobuf-c packs is the oracle for what it
 * writes; bytes by hand are for forms that it never writes. fuzz_step compares the two at large. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "step_view.h"

static ngx_http_pd_step_t step;
static ngx_http_pd_arena_t arena;

static int tear_down(void **state)
{
    ngx_http_pd_step_free(&step);
    ngx_http_pd_arena_free(&arena);
    return 0;
}

/* In memory of their own, so that a sanitizer sees who reads beyond. */
static ngx_int_t read_bytes(const void *bytes, size_t length, u_char **copy)
{
    *copy = malloc(length + !length);
    memcpy(*copy, bytes, length);
    return ngx_http_pd_step_read(&step, *copy, length);
}

static uint8_t *pack(const Pd__V1__FromWorker *message, size_t *size)
{
    uint8_t *packed = malloc(pd__v1__from_worker__get_packed_size(message));

    *size = pd__v1__from_worker__pack(message, packed);
    return packed;
}

/* ---- what writers write ------------------------------------------------------------------------- */

#define SEQUENCES 200

static struct {
    Pd__V1__FromWorker message;
    Pd__V1__Step step;
    Pd__V1__LoadReport load;
    Pd__V1__KvLinkState link, *links[1];
    Pd__V1__StreamSeen seen, *streams[300];
    Pd__V1__SequenceStep sequence[SEQUENCES], *sequences[SEQUENCES];
    uint32_t tokens[5];
    Pd__V1__TokenLogprob logprob, *logprobs[1];
    Pd__V1__Finished finished;
    Pd__V1__Timing timing;
} full;

static void fill_sequences(void)
{
    for (int i = 0; i < SEQUENCES; i++) {
        Pd__V1__SequenceStep *sequence = &full.sequence[i];

        pd__v1__sequence_step__init(sequence);
        sequence->request = (uint64_t)i << (i % 60);
        sequence->attempt = i;
        sequence->position = UINT32_MAX - i;
        sequence->n_tokens = i % 6;
        sequence->tokens = full.tokens;
        sequence->text = (ProtobufCBinaryData){i % 5, (uint8_t *)"w\0rds"};
        sequence->reasoning = (ProtobufCBinaryData){i % 3, (uint8_t *)"hm"};
        if (i % 7 == 0) {
            sequence->n_logprobs = 1;
            sequence->logprobs = full.logprobs;
        }
        if (i % 11 == 0)
            sequence->finished = &full.finished;
        full.sequences[i] = sequence;
    }
}

static void fill(void)
{
    memcpy(full.tokens, (uint32_t[]){0, 127, 128, 1 << 28, UINT32_MAX}, sizeof(full.tokens));
    pd__v1__timing__init(&full.timing);
    full.timing.queue_us = 1;
    full.timing.prefill_us = UINT64_MAX;
    full.timing.kv_bytes = 1ULL << 40;
    full.timing.kv_exposed_us = 300;
    full.timing.kv_transport = "shm";
    pd__v1__finished__init(&full.finished);
    full.finished.reason = PD__V1__FINISH_REASON__FINISH_STOP;
    full.finished.completion_tokens = 70000;
    full.finished.stop_matched = "END";
    full.finished.timing = &full.timing;
    pd__v1__token_logprob__init(&full.logprob);
    full.logprobs[0] = &full.logprob;
    pd__v1__kv_link_state__init(&full.link);
    full.link.peer = "p0";
    full.links[0] = &full.link;
    pd__v1__stream_seen__init(&full.seen);
    full.seen.stream = 1ULL << 50;
    full.seen.last_submission = 9;
    pd__v1__load_report__init(&full.load);
    full.load.number = 1;
    full.load.last_submission = 2;
    full.load.steps = 3ULL << 33;
    full.load.step_us = 4;
    full.load.prefill_queued_tokens = 5;
    full.load.prefill_us_per_token_x1000 = 6;
    full.load.running = 7;
    full.load.waiting = 8;
    full.load.kv_free = 9;
    full.load.kv_reserved = 10;
    full.load.draining = true;
    full.load.taken = 11;
    full.load.kv_growth = 12;
    full.load.n_links = 1;
    full.load.links = full.links;
    full.load.n_seen = 300;
    full.load.seen = full.streams;
    for (int i = 0; i < 300; i++)
        full.streams[i] = &full.seen;
    fill_sequences();
    pd__v1__step__init(&full.step);
    full.step.step = 77;
    full.step.n_sequences = SEQUENCES;
    full.step.sequences = full.sequences;
    full.step.load = &full.load;
    pd__v1__from_worker__init(&full.message);
    full.message.kind_case = PD__V1__FROM_WORKER__KIND_STEP;
    full.message.step = &full.step;
}

static void test_a_step_with_everything_is_read_as_it_was_packed(void **state)
{
    size_t size;
    uint8_t *packed;
    u_char *copy;

    fill();
    packed = pack(&full.message, &size);
    for (int round = 0; round < 3; round++) { /* its memory is used again */
        assert_int_equal(read_bytes(packed, size, &copy), NGX_OK);
        assert_true(step_view_is(&step, &full.message));
        free(copy);
    }
    free(packed);
}

static void test_no_beginning_of_a_step_is_one_that_says_more(void **state)
{
    size_t size;
    uint8_t *packed;
    u_char *copy;

    fill();
    full.step.n_sequences = 20;
    packed = pack(&full.message, &size);
    for (size_t length = 0; length < size; length++) {
        assert_int_equal(read_bytes(packed, length, &copy), NGX_DECLINED);
        free(copy);
    }
    free(packed);
}

static void test_placed_hands_its_ticket_on_as_it_came(void **state)
{
    Pd__V1__Ticket ticket = PD__V1__TICKET__INIT;
    Pd__V1__Placed placed = PD__V1__PLACED__INIT;
    Pd__V1__FromWorker message = PD__V1__FROM_WORKER__INIT;
    uint8_t *packed, expected[200];
    size_t size, length;
    u_char *copy;

    ticket.instance = "p0";
    ticket.address = "10.0.0.1:7000";
    ticket.boot = 0x1122334455667788;
    ticket.generation = 5;
    ticket.secret = (ProtobufCBinaryData){16, (uint8_t *)"0123456789abcdef"};
    placed.request = 1ULL << 40;
    placed.attempt = 2;
    placed.prompt_tokens = 3000;
    placed.cached_tokens = 16;
    placed.queued_ahead_tokens = 1;
    placed.borrowed_tokens = 300;
    placed.borrow_failed = "the link is lost";
    placed.ticket = &ticket;
    message.kind_case = PD__V1__FROM_WORKER__KIND_PLACED;
    message.placed = &placed;
    packed = pack(&message, &size);
    length = pd__v1__ticket__pack(&ticket, expected);
    assert_int_equal(read_bytes(packed, size, &copy), NGX_OK);
    assert_true(step_view_is(&step, &message));
    assert_int_equal(step.placed.borrowed_tokens, 300);
    assert_int_equal(step.placed.borrow_failed.len, strlen("the link is lost"));
    assert_int_equal(step.placed.ticket.len, length);
    assert_memory_equal(step.placed.ticket.data, expected, length);
    free(copy);
    free(packed);
}

/* ---- what they do not --------------------------------------------------------------------------- */

#define READ(literal, copy) read_bytes(literal, sizeof(literal) - 1, copy)

static void test_other_kinds_are_left_to_others(void **state)
{
    u_char *copy;

    assert_int_equal(READ("", &copy), NGX_DECLINED);
    free(copy);
    assert_int_equal(READ("\x12\x02\x08\x01", &copy), NGX_DECLINED); /* load */
    free(copy);
    assert_int_equal(READ("\x32\x00", &copy), NGX_DECLINED); /* drain */
    free(copy);
    assert_int_equal(READ("\x3a\x00", &copy), NGX_DECLINED); /* of a later protocol */
    free(copy);
}

static void test_fields_of_a_later_protocol_are_passed_over(void **state)
{
    u_char *copy;

    /* 7 = "x", Step { 15 = 1, sequence { 1 = 9, 16 = fixed, 12 = fixed64 } } */
    assert_int_equal(READ("\x3a\x01x\x22\x17\x78\x01\x12\x13\x08\x09\x85\x01"
                          "abcd\x61"
                          "abcdefgh",
                          &copy),
                     NGX_DECLINED); /* one byte is missing */
    free(copy);
    assert_int_equal(READ("\x3a\x01x\x22\x15\x78\x01\x12\x11\x08\x09\x85\x01"
                          "abcd\x61"
                          "abcdefgh",
                          &copy),
                     NGX_OK);
    assert_int_equal(step.nsequences, 1);
    assert_int_equal(step.sequences[0].request, 9);
    free(copy);
}

/* Each says the same as is unpacked from it, which test_unpack and fuzz_unpack hold to protobuf. */
static void check_unusual(const char *bytes, size_t length)
{
    Pd__V1__FromWorker *message;
    u_char *copy;

    assert_int_equal(read_bytes(bytes, length, &copy), NGX_DECLINED);
    message = ngx_http_pd_unpack(&arena, &pd__v1__from_worker__descriptor, copy, length);
    assert_non_null(message);
    free(copy);
    assert_int_equal(ngx_http_pd_step_normal(&step, message), NGX_OK);
    assert_true(step_view_is(&step, message));
}

#define UNUSUAL(literal) check_unusual(literal, sizeof(literal) - 1)

static void test_unusual_forms_mean_what_they_mean_everywhere(void **state)
{
    UNUSUAL("\x22\x04\x12\x02\x20\x07");                         /* a token, not packed */
    UNUSUAL("\x22\x08\x12\x06\x22\x01\x05\x22\x01\x06");         /* tokens in two lists */
    UNUSUAL("\x22\x09\x12\x07\x22\x05\xff\xff\xff\xff\x7f");     /* 35 bits */
    UNUSUAL("\x22\x0a\x12\x08\x22\x06\x85\x80\x80\x80\x80\x00"); /* longer than need be */
    UNUSUAL("\x22\x0e\x12\x0c\x22\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"); /* above 32 bits */
    UNUSUAL("\x22\x0a\x12\x08\x4a\x02\x08\x01\x4a\x02\x20\x05"); /* finished in two parts */
    UNUSUAL("\x22\x02\x12\x00\x22\x04\x12\x02\x08\x01");         /* a step in two parts */
    UNUSUAL("\x22\x08\x1a\x02\x08\x05\x1a\x02\x18\x06");         /* a report in two parts */
    UNUSUAL("\x1a\x08\x2a\x02\x28\x01\x2a\x02\x30\x02");         /* a ticket in two parts */
    UNUSUAL("\x22\x02\x12\x00\x1a\x02\x08\x01");                 /* two kinds: the last counts */
}

static void test_what_is_none_is_refused_by_both(void **state)
{
    static const char wrong_type[] = "\x22\x05\x12\x03\x2a\x01"; /* text runs out */
    static const char no_text[] = "\x22\x04\x12\x02\x28\x01";    /* text as a number */
    u_char *copy;

    assert_int_equal(READ(wrong_type, &copy), NGX_DECLINED);
    assert_null(
        ngx_http_pd_unpack(&arena, &pd__v1__from_worker__descriptor, copy, sizeof(wrong_type) - 1));
    free(copy);
    assert_int_equal(READ(no_text, &copy), NGX_DECLINED);
    assert_null(
        ngx_http_pd_unpack(&arena, &pd__v1__from_worker__descriptor, copy, sizeof(no_text) - 1));
    free(copy);
}

/* Two bytes each on the wire, some two hundred here. */
static void test_sequences_have_a_bound(void **state)
{
    size_t count = NGX_HTTP_PD_STEP_SEQUENCES;
    uint8_t *bytes = malloc(5 + 2 * (count + 1)), *p;

    for (int over = 0; over < 2; over++) {
        size_t length = 2 * (count + over);

        p = bytes;
        *p++ = 0x22;
        for (; length > 127; length >>= 7)
            *p++ = (uint8_t)(length | 128);
        *p++ = (uint8_t)length;
        for (size_t i = 0; i < count + over; i++) {
            *p++ = 0x12;
            *p++ = 0;
        }
        assert_int_equal(ngx_http_pd_step_read(&step, bytes, p - bytes),
                         over ? NGX_DECLINED : NGX_OK);
    }
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_step_with_everything_is_read_as_it_was_packed),
        cmocka_unit_test(test_no_beginning_of_a_step_is_one_that_says_more),
        cmocka_unit_test(test_placed_hands_its_ticket_on_as_it_came),
        cmocka_unit_test(test_other_kinds_are_left_to_others),
        cmocka_unit_test(test_fields_of_a_later_protocol_are_passed_over),
        cmocka_unit_test(test_unusual_forms_mean_what_they_mean_everywhere),
        cmocka_unit_test(test_what_is_none_is_refused_by_both),
        cmocka_unit_test(test_sequences_have_a_bound),
    };

    return cmocka_run_group_tests(tests, NULL, tear_down);
}
