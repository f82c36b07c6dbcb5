/* The module's reading of OpenAI requests: what a worker gets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ngx_http_pd_openai_parse.h"
#include "openai_request.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define HEAD         "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define TEXT         "{\"model\":\"m\",\"prompt\":\"hi\""

static void assert_bytes(ProtobufCBinaryData got, const char *expected)
{
    assert_int_equal(got.len, strlen(expected));
    assert_memory_equal(got.data, expected, got.len);
}

/* Reads a good body whole and in pieces: the wire must be the same. */
static Pd__V1__Submit *read_good(ngx_uint_t surface, const char *body, ngx_uint_t n)
{
    Pd__V1__Submit *first = NULL;
    uint8_t *wire[2];
    size_t length[2];

    for (size_t piece = 0; piece < 20; piece++) {
        struct openai_request read;
        Pd__V1__Submit *submit;
        int which = first ? 1 : 0;

        openai_read(&read, surface, body, strlen(body), piece);
        if (read.result != NGX_OK)
            fail_msg("%s: %.*s", body, (int)read.error.message.len,
                     read.error.message.data);
        read.request.seeded = 1;
        submit = openai_submit(&read, n);
        assert_non_null(submit);
        length[which] = pd__v1__submit__get_packed_size(submit);
        wire[which] = malloc(length[which]);
        pd__v1__submit__pack(submit, wire[which]);
        if (which) {
            assert_int_equal(length[0], length[1]);
            assert_memory_equal(wire[0], wire[1], length[0]);
            free(wire[1]);
            pd__v1__submit__free_unpacked(submit, NULL);
        } else {
            first = submit;
        }
        openai_free(&read);
    }
    free(wire[0]);
    return first;
}

static void packs_a_chat(void **state)
{
    Pd__V1__Submit *submit =
        read_good(CHAT,
                  "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
                  "{\"content\":\"Caf\\u00e9 "
                  "\xf0\x9f\x98\x80\\n\\\"x\\\"\",\"name\":\"ann\",\"role\":\"user\"},"
                  "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[ {\"id\":\"c1\"} "
                  "],\"reasoning_content\":\"hm\"},"
                  "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"\"},"
                  "{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"one\"},{"
                  "\"text\":\"two\",\"type\":\"text\"}]},"
                  "{\"role\":\"assistant\",\"refusal\":null,\"audio\":null,\"annotations\":[{}],"
                  "\"function_call\":null}],"
                  "\"model\":\"smol\",\"chat_template_kwargs\":{ \"enable_thinking\" : false },"
                  "\"add_generation_prompt\":false,\"max_completion_tokens\":7}",
                  0);
    Pd__V1__ChatMessage **messages = submit->chat->messages;

    (void)state;
    assert_string_equal(submit->model, "smol");
    assert_int_equal(submit->chat->n_messages, 6);
    assert_string_equal(messages[0]->role, "system");
    assert_bytes(messages[0]->content, "Be brief.");
    assert_string_equal(messages[1]->role, "user");
    assert_string_equal(messages[1]->name, "ann");
    assert_bytes(messages[1]->content, "Caf\xc3\xa9 \xf0\x9f\x98\x80\n\"x\"");
    assert_false(messages[1]->content_null);
    assert_string_equal(messages[2]->role, "assistant");
    assert_true(messages[2]->content_null);
    assert_bytes(messages[2]->tool_calls_json, "[ {\"id\":\"c1\"} ]");
    assert_bytes(messages[2]->reasoning, "hm");
    assert_string_equal(messages[3]->role, "tool");
    assert_string_equal(messages[3]->tool_call_id, "c1");
    assert_false(messages[3]->content_null);
    assert_int_equal(messages[3]->content.len, 0);
    assert_string_equal(messages[4]->role, "system");
    assert_bytes(messages[4]->content, "one\ntwo");
    assert_true(messages[5]->content_null);
    assert_bytes(submit->chat->template_arguments_json, "{ \"enable_thinking\" : false }");
    assert_true(submit->chat->no_generation_prompt);
    assert_int_equal(submit->sampling->max_tokens, 7);
    pd__v1__submit__free_unpacked(submit, NULL);
}

/* The search for a name needs every table in order, the walk no more levels than it has frames. */
static void check_level(const ngx_http_pd_level_t *level, int depth)
{
    assert_true(depth <= NGX_HTTP_PD_MAX_FRAMES);
    assert_true(level->nfields <= 8 * sizeof((ngx_http_pd_frame_t *)0)->seen);
    for (ngx_uint_t i = 0; i < level->nfields; i++) {
        const ngx_str_t *name = &level->fields[i].name,
                        *before = &level->fields[i ? i - 1 : 0].name;

        if (i && (before->len > name->len ||
                  (before->len == name->len && memcmp(before->data, name->data, name->len) >= 0)))
            fail_msg("%s is out of order", name->data);
        if (level->fields[i].level)
            check_level(level->fields[i].level, depth + 1);
    }
    if (level->element && level->element->level)
        check_level(level->element->level, depth + 1);
}

static void tables_are_in_order(void **state)
{
    (void)state;
    check_level(ngx_http_pd_root.level, 1);
}

static void check_documented(const ngx_http_pd_level_t *level, const char *readme)
{
    for (ngx_uint_t i = 0; i < level->nfields; i++) {
        const ngx_http_pd_field_t *field = &level->fields[i];
        char quoted[64];

        snprintf(quoted, sizeof quoted, "`%.*s`", (int)field->name.len, field->name.data);
        if (strstr(readme, quoted))
            continue;
        quoted[strlen(quoted) - 1] = '.'; /* with its members only */
        if (!strstr(readme, quoted))
            fail_msg("%s is not in the README", quoted);
    }
}

static void every_field_is_in_the_readme(void **state)
{
    FILE *file = fopen("ngx_pd_module/README.md", "r");
    static char readme[1 << 16];

    (void)state;
    assert_non_null(file);
    assert_in_range(fread(readme, 1, sizeof readme - 1, file), 1000, sizeof readme - 2);
    fclose(file);
    check_documented(ngx_http_pd_root.level, readme);
}

static void says_who_and_until_when(void **state)
{
    Pd__V1__Submit *submit = read_good(CHAT, HEAD "}", 0);

    (void)state;
    assert_string_equal(submit->request_id, "request-7");
    assert_string_equal(submit->tenant, "tenant-x");
    assert_string_equal(submit->traceparent, "00-trace");
    assert_int_equal(submit->deadline_us, 1500000);
    assert_int_equal(submit->route, PD__V1__ROUTE__ROUTE_DIRECT);
    assert_null(submit->ticket);
    assert_null(submit->generated);
    pd__v1__submit__free_unpacked(submit, NULL);
}

static void defaults_are_the_apis(void **state)
{
    Pd__V1__Submit *submit = read_good(CHAT, HEAD "}", 0);

    (void)state;
    assert_float_equal(submit->sampling->temperature, 1, 0);
    assert_float_equal(submit->sampling->top_p, 0, 0);
    assert_int_equal(submit->sampling->max_tokens, 0);
    assert_false(submit->sampling->ignore_eos);
    assert_int_equal(submit->sampling->n_stop, 0);
    assert_false(submit->chat->no_generation_prompt);
    pd__v1__submit__free_unpacked(submit, NULL);

    submit = read_good(COMPLETIONS, TEXT "}", 0);
    assert_int_equal(submit->sampling->max_tokens, 16);
    pd__v1__submit__free_unpacked(submit, NULL);
}

static void honours_sampling(void **state)
{
    Pd__V1__Submit *submit = read_good(
        CHAT,
        HEAD
        ",\"temperature\":0.25,\"top_p\":0.5,\"top_k\":40,\"min_p\":0.125,\"typical_p\":0.5,\"presence_penalty\":-2,"
        "\"frequency_penalty\":1.5,\"repetition_penalty\":1.25,\"seed\":-2,\"max_tokens\":100,"
        "\"min_tokens\":3,"
        "\"ignore_eos\":true,\"include_stop_str_in_output\":true,\"stop\":[\"\\n\\n\",\"END\"],"
        "\"stop_token_ids\":[2,151645],\"logit_bias\":{\"50\":-100,\"7\":2.5}}",
        0);
    Pd__V1__Sampling *sampling = submit->sampling;

    (void)state;
    assert_float_equal(sampling->temperature, 0.25, 0);
    assert_float_equal(sampling->top_p, 0.5, 0);
    assert_int_equal(sampling->top_k, 40);
    assert_float_equal(sampling->min_p, 0.125, 0);
    assert_float_equal(sampling->typical_p, 0.5, 0);
    assert_float_equal(sampling->presence_penalty, -2, 0);
    assert_float_equal(sampling->frequency_penalty, 1.5, 0);
    assert_float_equal(sampling->repetition_penalty, 1.25, 0);
    assert_true(sampling->seed == (uint64_t)-2);
    assert_int_equal(sampling->max_tokens, 100);
    assert_int_equal(sampling->min_tokens, 3);
    assert_true(sampling->ignore_eos);
    assert_true(sampling->include_stop);
    assert_int_equal(sampling->n_stop, 2);
    assert_bytes(sampling->stop[0], "\n\n");
    assert_bytes(sampling->stop[1], "END");
    assert_int_equal(sampling->n_stop_token_ids, 2);
    assert_int_equal(sampling->stop_token_ids[1], 151645);
    assert_int_equal(sampling->n_logit_bias, 2);
    assert_int_equal(sampling->logit_bias[0]->token, 50);
    assert_float_equal(sampling->logit_bias[0]->bias, -100, 0);
    assert_int_equal(sampling->logit_bias[1]->token, 7);
    assert_float_equal(sampling->logit_bias[1]->bias, 2.5, 0);
    pd__v1__submit__free_unpacked(submit, NULL);
}

static void takes_one_stop_string_and_an_off_top_k(void **state)
{
    Pd__V1__Submit *submit =
        read_good(COMPLETIONS, TEXT ",\"stop\":\"STOP\",\"top_k\":-1,\"temperature\":0}", 0);

    (void)state;
    assert_int_equal(submit->sampling->n_stop, 1);
    assert_bytes(submit->sampling->stop[0], "STOP");
    assert_int_equal(submit->sampling->top_k, 0);
    assert_float_equal(submit->sampling->temperature, 0, 0);
    pd__v1__submit__free_unpacked(submit, NULL);
}

static void hears_of_log_probabilities(void **state)
{
    Pd__V1__Submit *submit = read_good(CHAT, HEAD ",\"top_logprobs\":3,\"logprobs\":true}", 0);

    (void)state;
    assert_true(submit->sampling->logprobs);
    assert_int_equal(submit->sampling->top_logprobs, 3);
    pd__v1__submit__free_unpacked(submit, NULL);

    submit = read_good(COMPLETIONS, TEXT ",\"logprobs\":0}", 0);
    assert_true(submit->sampling->logprobs);
    assert_int_equal(submit->sampling->top_logprobs, 0);
    pd__v1__submit__free_unpacked(submit, NULL);
}

static void takes_extremes(void **state)
{
    Pd__V1__Submit *submit = read_good(
        CHAT,
        HEAD
        ",\"seed\":9223372036854775807,\"max_tokens\":2147483647,\"temperature\":2,\"top_p\":1}",
        0);

    (void)state;
    assert_true(submit->sampling->seed == INT64_MAX);
    assert_int_equal(submit->sampling->max_tokens, INT32_MAX);
    pd__v1__submit__free_unpacked(submit, NULL);

    submit = read_good(CHAT, HEAD ",\"seed\":-9223372036854775808}", 0);
    assert_true(submit->sampling->seed == (uint64_t)INT64_MIN);
    pd__v1__submit__free_unpacked(submit, NULL);
}

static void makes_each_prompt_of_a_list_a_submit(void **state)
{
    static const char strings[] =
        "{\"model\":\"m\",\"prompt\":[\"one\",\"zw\xc3\xb6lf\"],\"max_tokens\":4}";
    static const uint32_t ids[] = {0, 127, 128, 16384, 2097152, 268435456};
    static const char lists[] = "{\"prompt\":[[1,2,300],[2147483647]],\"model\":\"m\"}";
    Pd__V1__Submit *submit = read_good(COMPLETIONS, strings, 0);

    (void)state;
    assert_bytes(submit->text, "one");
    assert_int_equal(submit->sampling->max_tokens, 4);
    pd__v1__submit__free_unpacked(submit, NULL);
    submit = read_good(COMPLETIONS, strings, 1);
    assert_bytes(submit->text, "zw\xc3\xb6lf");
    pd__v1__submit__free_unpacked(submit, NULL);

    submit = read_good(COMPLETIONS, lists, 0);
    assert_int_equal(submit->text.len, 0);
    assert_int_equal(submit->tokens->n_ids, 3);
    assert_int_equal(submit->tokens->ids[0], 1);
    assert_int_equal(submit->tokens->ids[2], 300);
    pd__v1__submit__free_unpacked(submit, NULL);
    submit = read_good(COMPLETIONS, lists, 1);
    assert_int_equal(submit->tokens->n_ids, 1);
    assert_int_equal(submit->tokens->ids[0], INT32_MAX);
    pd__v1__submit__free_unpacked(submit, NULL);

    submit = read_good(COMPLETIONS,
                       "{\"prompt\":[0,127,128,16384,2097152,268435456],\"model\":\"m\"}", 0);
    assert_int_equal(submit->tokens->n_ids, 6);
    for (size_t i = 0; i < COUNT(ids); i++)
        assert_int_equal(submit->tokens->ids[i], ids[i]);
    pd__v1__submit__free_unpacked(submit, NULL);
}

static void options_are_the_submit_without_its_prompt(void **state)
{
    static const char body[] = HEAD ",\"seed\":5,\"stop\":\"x\"}";
    struct openai_request read;
    Pd__V1__Submit *submit;

    (void)state;
    openai_read(&read, CHAT, body, strlen(body), 0);
    submit = openai_options(&read, 0);
    assert_null(submit->chat);
    assert_int_equal(submit->sampling->seed, 5);
    assert_int_equal(submit->sampling->n_stop, 1);
    assert_string_equal(submit->model, "m");
    pd__v1__submit__free_unpacked(submit, NULL);
    openai_free(&read);
}

static void draws_a_seed_where_none_is_given(void **state)
{
    static const char body[] = "{\"model\":\"m\",\"prompt\":[\"a\",\"b\"]}";
    struct openai_request read;
    uint64_t seeds[2];

    (void)state;
    openai_read(&read, COMPLETIONS, body, strlen(body), 0);
    for (int i = 0; i < 2; i++) {
        Pd__V1__Submit *submit = openai_submit(&read, (ngx_uint_t)i);

        seeds[i] = submit->sampling->seed;
        pd__v1__submit__free_unpacked(submit, NULL);
    }
    assert_true(seeds[0] != seeds[1]);
    openai_free(&read);
}

/* Neighbours answer the same prompt; the first of them draws what it would draw alone. */
static void makes_each_choice_a_submit(void **state)
{
    static const char body[] = "{\"model\":\"m\",\"n\":3,\"seed\":5,\"prompt\":[\"a\",\"b\"]}";
    struct openai_request read;
    uint64_t seeds[6];

    (void)state;
    openai_read(&read, COMPLETIONS, body, strlen(body), 0);
    assert_int_equal(read.request.n, 3);
    for (int i = 0; i < 6; i++) {
        Pd__V1__Submit *submit = openai_submit(&read, (ngx_uint_t)i);

        assert_bytes(submit->text, i < 3 ? "a" : "b");
        seeds[i] = submit->sampling->seed;
        pd__v1__submit__free_unpacked(submit, NULL);
    }
    assert_true(seeds[0] == 5 && seeds[3] == 5);
    assert_true(seeds[1] == seeds[4] && seeds[2] == seeds[5]);
    assert_true(seeds[1] != seeds[0] && seeds[2] != seeds[0] && seeds[1] != seeds[2]);
    openai_free(&read);
}

static void hears_of_streaming(void **state)
{
    static const struct {
        const char *body;
        int stream, usage;
    } cases[] = {
        {HEAD "}", 0, 0},
        {HEAD ",\"stream\":false}", 0, 0},
        {HEAD ",\"stream\":true}", 1, 0},
        {HEAD ",\"stream_options\":{\"include_usage\":true},\"stream\":true}", 1, 1},
        {HEAD ",\"stream\":true,\"stream_options\":{\"include_usage\":false,\"include_"
              "obfuscation\":true}}",
         1, 0},
        {HEAD ",\"stream\":true,\"stream_options\":null}", 1, 0},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct openai_request read;

        openai_read(&read, CHAT, cases[i].body, strlen(cases[i].body), 0);
        assert_int_equal(read.result, NGX_OK);
        assert_int_equal(read.request.stream, cases[i].stream);
        assert_int_equal(read.request.include_usage, cases[i].usage);
        openai_free(&read);
    }
}

/* Fields without effect, and the one value of fields that ask for nothing. */
static void accepts_what_is_harmless(void **state)
{
    static const char *const fields[] = {
        "\"user\":\"u\"",
        "\"metadata\":{\"a\":{\"b\":[1]}}",
        "\"store\":true",
        "\"service_tier\":\"auto\"",
        "\"safety_identifier\":\"s\"",
        "\"prompt_cache_key\":\"k\"",
        "\"prompt_cache_retention\":\"24h\"",
        "\"prediction\":{\"type\":\"content\",\"content\":\"x\"}",
        "\"parallel_tool_calls\":true",
        "\"n\":1",
        "\"tools\":[]",
        "\"tool_choice\":\"none\"",
        "\"function_call\":\"none\"",
        "\"modalities\":[\"text\"]",
        "\"response_format\":{\"type\":\"text\"}",
        "\"logprobs\":false",
        "\"top_logprobs\":0",
        "\"skip_special_tokens\":true",
        "\"spaces_between_special_tokens\":true",
        "\"use_beam_search\":false",
        "\"continue_final_message\":false",
        "\"stop\":[]",
        "\"logit_bias\":{}",
        "\"stop_token_ids\":[]",
        /* null is absent */
        "\"temperature\":null",
        "\"n\":null",
        "\"tools\":null",
        "\"audio\":null",
        "\"functions\":null",
        "\"stop\":null",
        "\"seed\":null",
        "\"user\":null",
        "\"response_format\":null",
        "\"stream\":null",
        "\"reasoning_effort\":null",
        "\"chat_template_kwargs\":null",
        "\"logit_bias\":null",
        "\"max_tokens\":null",
    };

    (void)state;
    for (size_t i = 0; i < COUNT(fields); i++) {
        char body[256];

        snprintf(body, sizeof body, HEAD ",%s}", fields[i]);
        pd__v1__submit__free_unpacked(read_good(CHAT, body, 0), NULL);
    }
    pd__v1__submit__free_unpacked(
        read_good(COMPLETIONS,
                  TEXT ",\"echo\":false,\"best_of\":1,\"suffix\":null,\"logprobs\":null}", 0),
        NULL);
}

/* One copy of the text and little else, whatever its length. */
static void a_prompt_is_copied_once(void **state)
{
    for (size_t length = 1000; length <= 10000000; length *= 10) {
        char *body = malloc(length + 100);
        size_t at = (size_t)sprintf(body, "{\"model\":\"m\",\"prompt\":\"");
        struct openai_request read;
        Pd__V1__Submit *submit;
        size_t bytes;

        for (size_t i = 0; i < length; i++)
            body[at + i] = (char)('a' + i % 26);
        strcpy(body + at + length, "\"}");
        shim_pool_bytes();
        openai_read(&read, COMPLETIONS, body, strlen(body), 16384);
        bytes = shim_pool_bytes();
        assert_int_equal(read.result, NGX_OK);
        assert_in_range(bytes, length, length + length / 50 + NGX_HTTP_PD_ROPE_MAX_BUFFER);
        submit = openai_submit(&read, 0);
        assert_int_equal(submit->text.len, length);
        assert_memory_equal(submit->text.data, body + at, length);
        pd__v1__submit__free_unpacked(submit, NULL);
        openai_free(&read);
        free(body);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_in_order),
        cmocka_unit_test(every_field_is_in_the_readme),
        cmocka_unit_test(packs_a_chat),
        cmocka_unit_test(says_who_and_until_when),
        cmocka_unit_test(defaults_are_the_apis),
        cmocka_unit_test(honours_sampling),
        cmocka_unit_test(takes_one_stop_string_and_an_off_top_k),
        cmocka_unit_test(hears_of_log_probabilities),
        cmocka_unit_test(takes_extremes),
        cmocka_unit_test(makes_each_prompt_of_a_list_a_submit),
        cmocka_unit_test(options_are_the_submit_without_its_prompt),
        cmocka_unit_test(draws_a_seed_where_none_is_given),
        cmocka_unit_test(makes_each_choice_a_submit),
        cmocka_unit_test(hears_of_streaming),
        cmocka_unit_test(accepts_what_is_harmless),
        cmocka_unit_test(a_prompt_is_copied_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
