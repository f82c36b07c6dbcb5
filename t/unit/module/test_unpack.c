/* Messages off the wire into protobuf-c's structures: protobuf-c's own packing is the oracle for what
 * it writes; bytes by hand are for what it never writes. fuzz_unpack compares the two at large. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "ngx_http_pd_unpack.h"
#include "proto/pd.pb-c.h"

static ngx_http_pd_arena_t arena;

static void *unpack(const ProtobufCMessageDescriptor *type, const char *bytes, size_t length)
{
    return ngx_http_pd_unpack(&arena, type, (const u_char *)bytes, length);
}

#define UNPACK(type, literal) unpack(&pd__v1__##type##__descriptor, literal, sizeof(literal) - 1)

static int tear_down(void **state)
{
    ngx_http_pd_arena_free(&arena);
    return 0;
}

static void test_a_step_with_everything_comes_as_it_was_packed(void **state)
{
    uint32_t tokens[300];
    Pd__V1__Timing timing = PD__V1__TIMING__INIT;
    Pd__V1__Finished finished = PD__V1__FINISHED__INIT;
    Pd__V1__TokenLogprob logprob = PD__V1__TOKEN_LOGPROB__INIT, *logprobs[] = {&logprob};
    Pd__V1__SequenceStep sequence = PD__V1__SEQUENCE_STEP__INIT, *sequences[100];
    Pd__V1__Step step = PD__V1__STEP__INIT;
    Pd__V1__FromWorker message = PD__V1__FROM_WORKER__INIT, *back;
    uint8_t *packed, *again;
    size_t size;

    for (uint32_t i = 0; i < 300; i++)
        tokens[i] = i * i * i * 100;
    timing.kv_bytes = UINT64_MAX;
    timing.kv_transport = "shm";
    finished.reason = PD__V1__FINISH_REASON__FINISH_TOOL_CALLS;
    finished.stop_matched = "";
    finished.timing = &timing;
    logprob.logprob = -1.5f;
    logprob.text = (ProtobufCBinaryData){3, (uint8_t *)"a\0b"};
    sequence.request = 1ULL << 63;
    sequence.n_tokens = 300;
    sequence.tokens = tokens;
    sequence.n_logprobs = 1;
    sequence.logprobs = logprobs;
    sequence.finished = &finished;
    for (int i = 0; i < 100; i++)
        sequences[i] = &sequence;
    step.n_sequences = 100;
    step.sequences = sequences;
    message.kind_case = PD__V1__FROM_WORKER__KIND_STEP;
    message.step = &step;

    size = pd__v1__from_worker__get_packed_size(&message);
    packed = malloc(size);
    again = malloc(size);
    pd__v1__from_worker__pack(&message, packed);
    for (int round = 0; round < 3; round++) { /* the arena starts over */
        back = unpack(&pd__v1__from_worker__descriptor, (char *)packed, size);
        assert_non_null(back);
        assert_int_equal(back->step->n_sequences, 100);
        assert_int_equal(pd__v1__from_worker__get_packed_size(back), size);
        pd__v1__from_worker__pack(back, again);
        assert_memory_equal(packed, again, size);
    }
    free(packed);
    free(again);
}

static void test_an_empty_message_has_the_defaults(void **state)
{
    Pd__V1__WorkerHello *hello = UNPACK(worker_hello, "");

    assert_non_null(hello);
    assert_string_equal(hello->instance, "");
    assert_int_equal(hello->n_capabilities, 0);
    assert_null(hello->fingerprint);
}

static void test_numbers_may_come_unpacked_and_in_parts(void **state)
{
    Pd__V1__SequenceStep *s = UNPACK(sequence_step, "\x20\x01\x22\x03\x02\xac\x02\x20\x04\x22\x00"
                                                    "\x22\x02\x05\x06");

    assert_non_null(s);
    assert_int_equal(s->n_tokens, 6);
    assert_int_equal(s->tokens[0], 1);
    assert_int_equal(s->tokens[1], 2);
    assert_int_equal(s->tokens[2], 300);
    assert_int_equal(s->tokens[3], 4);
    assert_int_equal(s->tokens[5], 6);
}

static void test_the_last_value_counts_and_parts_of_a_message_merge(void **state)
{
    Pd__V1__SequenceStep *s =
        UNPACK(sequence_step, "\x08\x01\x4a\x02\x10\x05\x08\x02\x4a\x02\x20\x07");

    assert_non_null(s);
    assert_int_equal(s->request, 2);
    assert_int_equal(s->finished->prompt_tokens, 5);
    assert_int_equal(s->finished->completion_tokens, 7);
}

static void test_the_last_of_alternatives_counts(void **state)
{
    Pd__V1__FromWorker *m = UNPACK(from_worker, "\x12\x02\x08\x09\x1a\x02\x08\x07\x12\x02\x18\x03");

    assert_non_null(m);
    assert_int_equal(m->kind_case, PD__V1__FROM_WORKER__KIND_LOAD);
    assert_int_equal(m->load->number, 0);
    assert_int_equal(m->load->steps, 3);
}

static void test_unknown_fields_are_left_out(void **state)
{
    Pd__V1__SequenceStep *s = UNPACK(sequence_step, "\xa0\x06\x01\xaa\x06\x02zz\xad\x06"
                                                    "1234\xa9\x06"
                                                    "12345678\x08\x07");

    assert_non_null(s);
    assert_int_equal(s->request, 7);
}

static void test_broken_bytes_are_refused(void **state)
{
    assert_null(UNPACK(sequence_step, "\x08"));     /* a tag without its value */
    assert_null(UNPACK(sequence_step, "\x08\x80")); /* a number without its end */
    assert_null(UNPACK(sequence_step, "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"));
    assert_null(UNPACK(sequence_step, "\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"));
    assert_null(UNPACK(sequence_step, "\x2a\x05zz")); /* longer than the message */
    assert_null(UNPACK(sequence_step, "\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01zz"));
    assert_null(UNPACK(sequence_step, "\x22\x02\x01\x80")); /* packed, without its end */
    assert_null(UNPACK(sequence_step, "\x0a\x01\x01"));     /* bytes for a single number */
    assert_null(UNPACK(sequence_step, "\x28\x01"));         /* a number for bytes */
    assert_null(UNPACK(sequence_step, "\x00\x01"));         /* field 0 */
    assert_null(UNPACK(sequence_step, "\xa3\x06\xa4\x06")); /* a group */
    assert_null(UNPACK(worker_hello, "\x21"
                                     "1234567")); /* a short fixed number */
}

static void test_nesting_and_memory_have_limits(void **state)
{
    char *bytes;
    size_t length = 0, size = 3 * 1024 * 1024;

    bytes = malloc(size);
    for (int i = 30; i-- > 0; length += 2) { /* a log probability within another one */
        bytes[2 * i] = 0x22;
        bytes[2 * i + 1] = (char)length;
    }
    assert_non_null(unpack(&pd__v1__token_logprob__descriptor, bytes, length));
    memmove(bytes + 2 * 10, bytes, length);
    for (int i = 10; i-- > 0; length += 2) {
        bytes[2 * i] = 0x22;
        bytes[2 * i + 1] = (char)length;
    }
    assert_null(unpack(&pd__v1__token_logprob__descriptor, bytes, length));

    for (size_t i = 0; i < size; i += 2) { /* empty steps of sequences */
        bytes[i] = 0x12;
        bytes[i + 1] = 0;
    }
    assert_null(unpack(&pd__v1__step__descriptor, bytes, size));
    assert_non_null(unpack(&pd__v1__step__descriptor, bytes, 2000));
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_step_with_everything_comes_as_it_was_packed),
        cmocka_unit_test(test_an_empty_message_has_the_defaults),
        cmocka_unit_test(test_numbers_may_come_unpacked_and_in_parts),
        cmocka_unit_test(test_the_last_value_counts_and_parts_of_a_message_merge),
        cmocka_unit_test(test_the_last_of_alternatives_counts),
        cmocka_unit_test(test_unknown_fields_are_left_out),
        cmocka_unit_test(test_broken_bytes_are_refused),
        cmocka_unit_test(test_nesting_and_memory_have_limits),
    };

    return cmocka_run_group_tests(tests, NULL, tear_down);
}
