/* What the command line means, and what it says to somebody who got it wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "worker/options.h"

static struct pd_options options;
static struct pd_error error;

/* Parses a command line written as one string; words are separated by single spaces. */
static int parse(const char *line)
{
    static char text[1024];
    char *argv[64] = {"pd-worker"};
    int argc = 1;

    snprintf(text, sizeof(text), "%s", line);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    memset(&error, 0, sizeof(error));
    return pd_options_parse(argc, argv, &options, &error);
}

#define assert_refused(line, sentence_part)                                                        \
    do {                                                                                           \
        assert_int_equal(parse(line), PD_INVALID);                                                 \
        if (!strstr(error.text, sentence_part))                                                    \
            fail_msg("\"%s\" does not hold \"%s\"", error.text, sentence_part);                    \
    } while (0)

static void test_defaults(void **state)
{
    (void)state;
    assert_int_equal(parse("--model m.gguf"), PD_OK);
    assert_int_equal(options.role, PD_OPTION_MIXED);
    assert_string_equal(options.host, "127.0.0.1");
    assert_int_equal(options.port, 9000);
    assert_string_equal(options.served_model_name, "m.gguf");
    assert_int_equal(options.kv_cache_memory, 0);
    assert_int_equal(options.kv_cache_dtype, PD_OPTION_KV_AUTO);
    assert_int_equal(options.block_size, 16);
    assert_int_equal(options.max_num_batched_tokens, 512);
    assert_int_equal(options.max_submit_bytes, 8 << 20);
    assert_int_equal(options.request_timeout, 3600);
    assert_true(options.prefix_caching);
    assert_string_equal(options.device, "cpu");
    assert_string_equal(options.kv_transport, "auto");
    assert_string_equal(options.name, "");
    assert_int_equal(options.log_level, PD_LOG_INFO);
    assert_false(options.check);
}

static void test_both_ways_to_write_a_value(void **state)
{
    (void)state;
    assert_int_equal(
        parse("--role=decode --model=/m/x --port 0 --kv-cache-memory=1.5GiB "
              "--no-enable-prefix-caching --served-model-name chat --max-model-len 2048 "
              "--dispatcher-address 10.0.0.1:9100 --dispatcher-address=[fd00::1]:9100 "
              "--log-level debug --check --isa avx2 --matmul-precision f32"),
        PD_OK);
    assert_int_equal(options.role, PD_OPTION_DECODE);
    assert_int_equal(options.port, 0);
    assert_int_equal(options.kv_cache_memory, 3ll << 29);
    assert_false(options.prefix_caching);
    assert_string_equal(options.served_model_name, "chat");
    assert_int_equal(options.max_model_len, 2048);
    assert_int_equal(options.dispatcher_count, 2);
    assert_string_equal(options.dispatchers[1], "[fd00::1]:9100");
    assert_int_equal(options.log_level, PD_LOG_DEBUG);
    assert_true(options.check);
    assert_string_equal(options.isa, "avx2");
    assert_int_equal(options.matmul_precision, PD_PRECISION_F32);
}

static void test_help_and_version_need_nothing_else(void **state)
{
    (void)state;
    assert_int_equal(parse("--help"), PD_OK);
    assert_true(options.help);
    assert_int_equal(parse("-h"), PD_OK);
    assert_true(options.help);
    assert_int_equal(parse("--version"), PD_OK);
    assert_true(options.version);
}

static void test_unknown_flags_are_answered_with_the_nearest(void **state)
{
    (void)state;
    assert_refused("--model m --max_model_len 5", "did you mean --max-model-len?");
    assert_refused("--model m --max-num-seq 5", "did you mean --max-num-seqs?");
    assert_refused("--model m --rol decode", "did you mean --role?");
    assert_refused("--model m --no-prefix-caching", "did you mean --enable-prefix-caching?");
    assert_refused("--model m --no-check", "--check");
    assert_refused("--model m --frobnicate 5", "pd-worker --help");
    assert_refused("-m x", "unknown flag");
    assert_refused("m.gguf", "--model m.gguf");
}

static void test_values_out_of_range(void **state)
{
    (void)state;
    assert_refused("--model m --port 65536", "from 0 to 65535");
    assert_refused("--model m --port 80x", "not \"80x\"");
    assert_refused("--model m --max-model-len 99999999999999999999", "whole number");
    assert_refused("--model m --kv-cache-memory 4GB", "4GiB");
    assert_refused("--model m --kv-cache-memory -1", "bytes such as");
    assert_refused("--model m --kv-cache-memory nan", "bytes such as");
    assert_refused("--model m --kv-cache-memory 9999999999TiB", "bytes such as");
    assert_refused("--model m --role both", "prefill, decode, mixed");
    assert_refused("--model m --block-size 12", "8, 16 or 32");
    assert_refused("--model m --port", "--port PORT");
    assert_refused("--model m --port --check", "--port PORT");
    assert_refused("--model m --zone=", "without a value");
    assert_refused("--model m --check=yes", "takes no value");
    assert_refused("--model m --dispatcher-address somewhere", "HOST:PORT");
    assert_refused("--model m --dispatcher-address unix:/run/x", "HOST:PORT");
    assert_refused("--model m --host ::x", "--host");
}

static void test_contradictions(void **state)
{
    (void)state;
    assert_refused("", "--model PATH");
    assert_refused("--model m --role prefill --role decode",
                   "given twice, as prefill and as decode");
    assert_int_equal(parse("--model m --role prefill --role prefill"), PD_OK);
    assert_refused("--model m --enable-prefix-caching --no-enable-prefix-caching", "given twice");
    assert_refused("--model m --tensor-parallel-size 9", "8");
    assert_int_equal(parse("--model m --tensor-parallel-size 8"), PD_OK);
    assert_refused("--model m --gpu-memory-utilization 0.9", "--kv-cache-memory");
    assert_int_equal(parse("--model m --device cuda --gpu-memory-utilization 0.9"), PD_OK);
    assert_refused("--model m --no-enable-chunked-prefill", "--max-num-batched-tokens");
    assert_refused("--model m --max-num-seqs 600", "--max-num-batched-tokens");
    assert_refused("--model m --host 0.0.0.0", "--kv-bind");
    assert_refused("--model m --host 0.0.0.0 --kv-bind ::", "--kv-bind");
    assert_int_equal(parse("--model m --host 0.0.0.0 --kv-bind 10.0.0.5"), PD_OK);
    assert_int_equal(parse("--model m --host 0.0.0.0 --role decode"), PD_OK);
    assert_refused("--model m --tls-cert c.pem", "--tls-key");
    assert_refused("--model m --tls-ca c.pem", "--tls-cert");
    assert_refused("--model m --kv-tls", "--tls-cert");
    assert_refused("--model m --kv-tls --tls-cert c --tls-key k --kv-transport rdma", "tcp only");
    assert_refused("--model m --dispatcher-token-file f", "--dispatcher-address");
}

/* The help names every flag that the parser takes, in lines that fit a terminal. */
static void test_help(void **state)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    static const char *const some[] = {
        "--role",  "--model",        "--kv-cache-memory", "--[no-]enable-prefix-caching",
        "--check", "--port-file",    "--drain-timeout",   "--tls-ca",
        "[1GiB,",  "--role prefill", "pd_cluster"};

    (void)state;
    pd_options_help(out);
    fclose(out);
    for (size_t i = 0; i < sizeof(some) / sizeof(*some); i++)
        if (!strstr(text, some[i]))
            fail_msg("the help does not speak of %s", some[i]);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        assert_true(strlen(line) <= 100);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_both_ways_to_write_a_value),
        cmocka_unit_test(test_help_and_version_need_nothing_else),
        cmocka_unit_test(test_unknown_flags_are_answered_with_the_nearest),
        cmocka_unit_test(test_values_out_of_range),
        cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_help),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
