/* The module's reading of OpenAI requests: what a client is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "openai_request.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define HEAD         "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define TEXT         "{\"model\":\"m\",\"prompt\":\"hi\""

static void assert_text(ngx_str_t got, const char *expected)
{
    if (got.len != strlen(expected) || (got.len && memcmp(got.data, expected, got.len)))
        fail_msg("\"%.*s\" instead of \"%s\"", (int)got.len, got.data, expected);
}

static const struct refusal {
    ngx_uint_t surface;
    const char *body;
    const char *param, *code, *message;
} refusals[] = {
    /* JSON */
    {CHAT, "", "", "invalid_json",
     "The body is not valid JSON: it ends too early, at byte 0 (line 1, column 1)"},
    {CHAT, "{\"a", "", "invalid_json",
     "The body is not valid JSON: it ends too early, at byte 3 (line 1, column 4)"},
    {CHAT, "{\n\"model\" \"m\"}", "", "invalid_json",
     "The body is not valid JSON: expected ':' after a key, at byte 10 (line 2, column 9)"},
    {CHAT, "[]", "", "invalid_type",
     "Invalid type for the body: expected an object, but got an array"},
    {CHAT, "null", "", "invalid_type",
     "Invalid type for the body: expected an object, but got null"},
    {CHAT, "{\"model\":\"\xff\"}", "", "invalid_json",
     "The body is not valid JSON: invalid UTF-8, at byte 10 (line 1, column 11)"},
    {CHAT, HEAD "} x", "", "invalid_json",
     "The body is not valid JSON: text after the end of it, at byte 58 (line 1, column 59)"},
    /* required, unknown, twice */
    {CHAT, "{}", "model", "missing_required_parameter", "Missing required parameter: 'model'"},
    {CHAT, "{\"model\":\"m\"}", "messages", "missing_required_parameter",
     "Missing required parameter: 'messages'"},
    {CHAT, "{\"model\":null}", "model", "invalid_type",
     "Invalid type for 'model': expected a string, but got null"},
    {CHAT, "{\"model\":\"\"}", "model", "invalid_value", "Invalid 'model': it is empty"},
    {COMPLETIONS, "{\"model\":\"m\"}", "prompt", "missing_required_parameter",
     "Missing required parameter: 'prompt'"},
    {CHAT, HEAD ",\"max_token\":1}", "max_token", "unknown_parameter",
     "Unknown parameter: 'max_token'"},
    {CHAT, HEAD ",\"prompt\":\"x\"}", "prompt", "unknown_parameter", "Unknown parameter: 'prompt'"},
    {COMPLETIONS, TEXT ",\"messages\":[]}", "messages", "unknown_parameter",
     "Unknown parameter: 'messages'"},
    {CHAT, HEAD ",\"n\":1,\"n\":1}", "n", "duplicate_parameter", "Parameter given twice: 'n'"},
    {CHAT, "{\"messages\":[{\"role\":\"user\",\"role\":\"user\"}]}", "messages[0].role",
     "duplicate_parameter", "Parameter given twice: 'messages[0].role'"},
    /* messages */
    {CHAT, "{\"messages\":{}}", "messages", "invalid_type",
     "Invalid type for 'messages': expected an array, but got an object"},
    {CHAT, "{\"messages\":[]}", "messages", "invalid_value", "Invalid 'messages': it is empty"},
    {CHAT, "{\"messages\":[1]}", "messages[0]", "invalid_type",
     "Invalid type for 'messages[0]': expected an object, but got a number"},
    {CHAT, "{\"messages\":[{\"content\":\"x\"}]}", "messages[0].role", "missing_required_parameter",
     "Missing required parameter: 'messages[0].role'"},
    {CHAT, "{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content",
     "missing_required_parameter", "Missing required parameter: 'messages[0].content'"},
    {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":null}]}", "messages[0].content",
     "missing_required_parameter", "Missing required parameter: 'messages[0].content'"},
    {CHAT, "{\"messages\":[{\"role\":\"robot\"}]}", "messages[0].role", "invalid_value",
     "Invalid 'messages[0].role': expected 'system', 'developer', 'user', 'assistant' or 'tool', "
     "but got 'robot'"},
    {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "messages[0].content",
     "invalid_type",
     "Invalid type for 'messages[0].content': expected a string or an array, but got a number"},
    {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[\"x\"]}]}", "messages[0].content[0]",
     "invalid_type",
     "Invalid type for 'messages[0].content[0]': expected an object, but got a string"},
    {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
     "messages[0].content[0].text", "missing_required_parameter",
     "Missing required parameter: 'messages[0].content[0].text'"},
    {CHAT,
     "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":[{"
     "\"type\":\"text\","
     "\"text\":\"a\"},{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]}",
     "messages[1].content[1].type", "unsupported_value",
     "Unsupported value for 'messages[1].content[1].type': 'image_url'; this server takes only "
     "'text'"},
    {CHAT, "{\"messages\":[{\"content\":[{\"image_url\":{}}]}]}",
     "messages[0].content[0].image_url", "unsupported_parameter",
     "Unsupported parameter: 'messages[0].content[0].image_url' is not supported by this server"},
    {CHAT, "{\"messages\":[{\"name\":\"a\\u0000b\"}]}", "messages[0].name", "invalid_value",
     "Invalid 'messages[0].name': it holds a zero byte"},
    {CHAT, "{\"messages\":[{\"tool_calls\":\"x\"}]}", "messages[0].tool_calls", "invalid_type",
     "Invalid type for 'messages[0].tool_calls': expected an array, but got a string"},
    {CHAT, "{\"messages\":[{\"function_call\":{}}]}", "messages[0].function_call",
     "unsupported_parameter",
     "Unsupported parameter: 'messages[0].function_call' is not supported by this server"},
    {CHAT, "{\"messages\":[{\"contents\":\"x\"}]}", "messages[0].contents", "unknown_parameter",
     "Unknown parameter: 'messages[0].contents'"},
    /* prompt */
    {COMPLETIONS, "{\"prompt\":\"\"}", "prompt", "invalid_value", "Invalid 'prompt': it is empty"},
    {COMPLETIONS, "{\"prompt\":[]}", "prompt", "invalid_value", "Invalid 'prompt': it is empty"},
    {COMPLETIONS, "{\"prompt\":[\"a\",\"\"]}", "prompt[1]", "invalid_value",
     "Invalid 'prompt[1]': it is empty"},
    {COMPLETIONS, "{\"prompt\":[[1],[]]}", "prompt[1]", "invalid_value",
     "Invalid 'prompt[1]': it is empty"},
    {COMPLETIONS, "{\"prompt\":[1,\"a\"]}", "prompt[1]", "invalid_type",
     "Invalid type for 'prompt[1]': a list of prompts holds strings only, tokens only or lists of "
     "tokens only"},
    {COMPLETIONS, "{\"prompt\":[[1,\"a\"]]}", "prompt[0][1]", "invalid_type",
     "Invalid type for 'prompt[0][1]': expected an integer, but got a string"},
    {COMPLETIONS, "{\"prompt\":[1,-1]}", "prompt[1]", "integer_below_min_value",
     "Invalid 'prompt[1]': expected a value from 0 to 2147483647, but got -1"},
    {COMPLETIONS, "{\"prompt\":[1,2147483648]}", "prompt[1]", "integer_above_max_value",
     "Invalid 'prompt[1]': expected a value from 0 to 2147483647, but got 2147483648"},
    {COMPLETIONS, "{\"prompt\":[1,99999999999999999999999]}", "prompt[1]",
     "integer_above_max_value",
     "Invalid 'prompt[1]': expected a value from 0 to 2147483647, but got 99999999999999999999999"},
    {COMPLETIONS, "{\"prompt\":[1.0]}", "prompt[0]", "invalid_type",
     "Invalid type for 'prompt[0]': expected an integer or a string or an array, but got a number"},
    {COMPLETIONS, "{\"prompt\":[null]}", "prompt[0]", "invalid_type",
     "Invalid type for 'prompt[0]': expected an integer or a string or an array, but got null"},
    {COMPLETIONS, "{\"prompt\":{}}", "prompt", "invalid_type",
     "Invalid type for 'prompt': expected a string or an array, but got an object"},
    /* numbers */
    {CHAT, HEAD ",\"temperature\":2.5}", "temperature", "decimal_above_max_value",
     "Invalid 'temperature': expected a value from 0 to 2, but got 2.5"},
    {CHAT, HEAD ",\"temperature\":-0.1}", "temperature", "decimal_below_min_value",
     "Invalid 'temperature': expected a value from 0 to 2, but got -0.1"},
    {CHAT, HEAD ",\"temperature\":1e999}", "temperature", "decimal_above_max_value",
     "Invalid 'temperature': expected a value from 0 to 2, but got 1e999"},
    {CHAT, HEAD ",\"temperature\":\"1\"}", "temperature", "invalid_type",
     "Invalid type for 'temperature': expected a number, but got a string"},
    {CHAT, HEAD ",\"top_p\":0}", "top_p", "decimal_below_min_value",
     "Invalid 'top_p': expected a value above 0 to 1, but got 0"},
    {CHAT, HEAD ",\"typical_p\":0}", "typical_p", "decimal_below_min_value",
     "Invalid 'typical_p': expected a value above 0 to 1, but got 0"},
    {CHAT, HEAD ",\"min_p\":1.01}", "min_p", "decimal_above_max_value",
     "Invalid 'min_p': expected a value from 0 to 1, but got 1.01"},
    {CHAT, HEAD ",\"top_k\":-2}", "top_k", "integer_below_min_value",
     "Invalid 'top_k': expected a value from -1 to 2147483647, but got -2"},
    {CHAT, HEAD ",\"presence_penalty\":2.1}", "presence_penalty", "decimal_above_max_value",
     "Invalid 'presence_penalty': expected a value from -2 to 2, but got 2.1"},
    {CHAT, HEAD ",\"frequency_penalty\":-3}", "frequency_penalty", "decimal_below_min_value",
     "Invalid 'frequency_penalty': expected a value from -2 to 2, but got -3"},
    {CHAT, HEAD ",\"repetition_penalty\":0}", "repetition_penalty", "decimal_below_min_value",
     "Invalid 'repetition_penalty': expected a value above 0 to 2, but got 0"},
    {CHAT, HEAD ",\"max_tokens\":0}", "max_tokens", "integer_below_min_value",
     "Invalid 'max_tokens': expected a value from 1 to 2147483647, but got 0"},
    {CHAT, HEAD ",\"max_tokens\":1.5}", "max_tokens", "invalid_type",
     "Invalid type for 'max_tokens': expected an integer, but got a number"},
    {CHAT, HEAD ",\"max_tokens\":1e2}", "max_tokens", "invalid_type",
     "Invalid type for 'max_tokens': expected an integer, but got a number"},
    {CHAT, HEAD ",\"max_tokens\":5,\"max_completion_tokens\":5}", "max_completion_tokens",
     "invalid_value",
     "Invalid 'max_completion_tokens': 'max_tokens' and 'max_completion_tokens' exclude each "
     "other"},
    {CHAT, HEAD ",\"min_tokens\":6,\"max_tokens\":5}", "min_tokens", "invalid_value",
     "Invalid 'min_tokens': 6 is more than the 5 tokens that the answer may have"},
    {CHAT, HEAD ",\"seed\":9223372036854775808}", "seed", "integer_out_of_range",
     "Invalid 'seed': expected an integer of 64 bits, but got 9223372036854775808"},
    {CHAT, HEAD ",\"seed\":\"x\"}", "seed", "invalid_type",
     "Invalid type for 'seed': expected an integer, but got a string"},
    {CHAT, HEAD ",\"n\":0}", "n", "integer_below_min_value",
     "Invalid 'n': expected a value from 1 to 128, but got 0"},
    {CHAT, HEAD ",\"n\":129}", "n", "integer_above_max_value",
     "Invalid 'n': expected a value from 1 to 128, but got 129"},
    {CHAT, HEAD ",\"n\":99999999999999999999}", "n", "integer_above_max_value",
     "Invalid 'n': expected a value from 1 to 128, but got 99999999999999999999"},
    {COMPLETIONS, "{\"model\":\"m\",\"n\":65,\"prompt\":[\"a\",\"b\"]}", "n", "invalid_value",
     "Invalid 'n': 65 answers to each of 2 prompts are more than the 128 that one request may ask "
     "for"},
    {CHAT, HEAD ",\"logprobs\":1}", "logprobs", "invalid_type",
     "Invalid type for 'logprobs': expected a boolean, but got a number"},
    {CHAT, HEAD ",\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs",
     "integer_above_max_value",
     "Invalid 'top_logprobs': expected a value from 0 to 20, but got 21"},
    {CHAT, HEAD ",\"top_logprobs\":2}", "top_logprobs", "invalid_value",
     "Invalid 'top_logprobs': it is only allowed with 'logprobs'"},
    {COMPLETIONS, TEXT ",\"logprobs\":true}", "logprobs", "invalid_type",
     "Invalid type for 'logprobs': expected an integer, but got a boolean"},
    {COMPLETIONS, TEXT ",\"logprobs\":-1}", "logprobs", "integer_below_min_value",
     "Invalid 'logprobs': expected a value from 0 to 20, but got -1"},
    {COMPLETIONS, TEXT ",\"best_of\":3}", "best_of", "unsupported_value",
     "Unsupported value for 'best_of': '3'; this server takes only '1'"},
    /* booleans, strings, lists, maps */
    {CHAT, HEAD ",\"stream\":1}", "stream", "invalid_type",
     "Invalid type for 'stream': expected a boolean, but got a number"},
    {CHAT, HEAD ",\"ignore_eos\":\"yes\"}", "ignore_eos", "invalid_type",
     "Invalid type for 'ignore_eos': expected a boolean, but got a string"},
    {CHAT, HEAD ",\"stream_options\":{\"include_usage\":true}}", "stream_options", "invalid_value",
     "Invalid 'stream_options': it is only allowed with 'stream'"},
    {CHAT, HEAD ",\"stream\":true,\"stream_options\":{\"usage\":true}}", "stream_options.usage",
     "unknown_parameter", "Unknown parameter: 'stream_options.usage'"},
    {CHAT, HEAD ",\"stream\":true,\"stream_options\":[]}", "stream_options", "invalid_type",
     "Invalid type for 'stream_options': expected an object, but got an array"},
    {CHAT, HEAD ",\"stop\":\"\"}", "stop", "invalid_value",
     "Invalid 'stop': a stop string cannot be empty"},
    {CHAT, HEAD ",\"stop\":[\"a\",5]}", "stop[1]", "invalid_type",
     "Invalid type for 'stop[1]': expected a string, but got a number"},
    {CHAT,
     HEAD ",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"10\",\"11\",\"12\","
          "\"13\",\"14\",\"15\","
          "\"16\",\"17\"]}",
     "stop", "array_above_max_length", "Invalid 'stop': more than 16 elements"},
    {CHAT, HEAD ",\"stop_token_ids\":[-1]}", "stop_token_ids[0]", "integer_below_min_value",
     "Invalid 'stop_token_ids[0]': expected a value from 0 to 2147483647, but got -1"},
    {CHAT, HEAD ",\"logit_bias\":{\"x\":1}}", "logit_bias.x", "invalid_value",
     "Invalid key 'logit_bias.x': expected the number of a token"},
    {CHAT, HEAD ",\"logit_bias\":{\"5\":101}}", "logit_bias.5", "decimal_above_max_value",
     "Invalid 'logit_bias.5': expected a value from -100 to 100, but got 101"},
    {CHAT, HEAD ",\"logit_bias\":{\"5\":null}}", "logit_bias.5", "invalid_type",
     "Invalid type for 'logit_bias.5': expected a number, but got null"},
    {CHAT, HEAD ",\"response_format\":{\"type\":\"json_object\"}}", "response_format.type",
     "unsupported_value",
     "Unsupported value for 'response_format.type': 'json_object'; this server takes only 'text'"},
    {CHAT, HEAD ",\"response_format\":{}}", "response_format.type", "missing_required_parameter",
     "Missing required parameter: 'response_format.type'"},
    {CHAT, HEAD ",\"tools\":[{\"type\":\"function\"}]}", "tools[0]", "unsupported_parameter",
     "Unsupported parameter: 'tools[0]' is not supported by this server"},
    {CHAT, HEAD ",\"tool_choice\":\"auto\"}", "tool_choice", "unsupported_value",
     "Unsupported value for 'tool_choice': 'auto'; this server takes only 'none'"},
    {CHAT, HEAD ",\"tool_choice\":{\"type\":\"function\"}}", "tool_choice", "invalid_type",
     "Invalid type for 'tool_choice': expected a string, but got an object"},
    {CHAT, HEAD ",\"modalities\":[\"text\",\"audio\"]}", "modalities[1]", "unsupported_value",
     "Unsupported value for 'modalities[1]': 'audio'; this server takes only 'text'"},
    {CHAT, HEAD ",\"audio\":{}}", "audio", "unsupported_parameter",
     "Unsupported parameter: 'audio' is not supported by this server"},
    {CHAT, HEAD ",\"functions\":[]}", "functions", "unsupported_parameter",
     "Unsupported parameter: 'functions' is not supported by this server"},
    {CHAT, HEAD ",\"reasoning_effort\":\"low\"}", "reasoning_effort", "unsupported_parameter",
     "Unsupported parameter: 'reasoning_effort' is not supported by this server"},
    {CHAT, HEAD ",\"user\":5}", "user", "invalid_type",
     "Invalid type for 'user': expected a string, but got a number"},
    {CHAT, HEAD ",\"chat_template_kwargs\":[]}", "chat_template_kwargs", "invalid_type",
     "Invalid type for 'chat_template_kwargs': expected an object, but got an array"},
    {COMPLETIONS, TEXT ",\"suffix\":\"x\"}", "suffix", "unsupported_parameter",
     "Unsupported parameter: 'suffix' is not supported by this server"},
};

static void check_refusal(const struct refusal *refusal, size_t piece)
{
    struct openai_request read;

    openai_read(&read, refusal->surface, refusal->body, strlen(refusal->body), piece);
    if (read.result != NGX_ABORT)
        fail_msg("%s is taken", refusal->body);
    assert_int_equal(read.error.status, 400);
    assert_text(read.error.message, refusal->message);
    assert_text(read.error.param, refusal->param);
    assert_text(read.error.code, refusal->code);
    openai_free(&read);
}

static void refuses_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(refusals); i++)
        for (size_t piece = 0; piece < 4; piece++)
            check_refusal(&refusals[i], piece);
}

/* A body of `count` times `element` between two texts. */
static char *repeat(const char *before, const char *element, size_t count, const char *after)
{
    char *body = malloc(strlen(before) + (strlen(element) + 1) * count + strlen(after) + 1);
    char *at = stpcpy(body, before);

    for (size_t i = 0; i < count; i++) {
        at = stpcpy(at, element);
        if (i + 1 < count)
            *at++ = ',';
    }
    strcpy(at, after);
    return body;
}

static void bounds_every_list(void **state)
{
    static const struct {
        ngx_uint_t surface;
        const char *before, *element, *after;
        size_t most;
        const char *param;
    } lists[] = {
        {CHAT, "{\"model\":\"m\",\"messages\":[", "{\"role\":\"user\",\"content\":\"x\"}", "]}",
         NGX_HTTP_PD_MAX_MESSAGES, "messages"},
        {CHAT, HEAD ",\"stop_token_ids\":[", "7", "]}", NGX_HTTP_PD_MAX_STOP_TOKENS,
         "stop_token_ids"},
        {CHAT, HEAD ",\"stop\":[", "\"s\"", "]}", NGX_HTTP_PD_MAX_STOPS, "stop"},
        {CHAT, HEAD ",\"logit_bias\":{", "\"1\":1", "}}", NGX_HTTP_PD_MAX_BIASES, "logit_bias"},
        {COMPLETIONS, "{\"model\":\"m\",\"prompt\":[", "[1]", "]}", NGX_HTTP_PD_MAX_PROMPTS,
         "prompt[128]"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(lists); i++) {
        for (int over = 0; over < 2; over++) {
            char *body =
                repeat(lists[i].before, lists[i].element, lists[i].most + over, lists[i].after);
            struct openai_request read;

            openai_read(&read, lists[i].surface, body, strlen(body), 1000);
            assert_int_equal(read.result, over ? NGX_ABORT : NGX_OK);
            if (over) {
                assert_text(read.error.code, "array_above_max_length");
                assert_text(read.error.param, lists[i].param);
            }
            openai_free(&read);
            free(body);
        }
    }
}

static void bounds_every_string(void **state)
{
    static const struct {
        const char *before, *after;
        size_t most;
        const char *param;
    } strings[] = {
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"model\":\"", "\"}",
         NGX_HTTP_PD_MAX_MODEL, "model"},
        {HEAD ",\"stop\":\"", "\"}", NGX_HTTP_PD_MAX_STOP_BYTES, "stop"},
        {HEAD ",\"stop\":[\"", "\"]}", NGX_HTTP_PD_MAX_STOP_BYTES, "stop[0]"},
        {"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\",\"name\":\"", "\"}]}",
         64, "messages[0].name"},
        {"{\"model\":\"m\",\"messages\":[{\"role\":\"tool\",\"content\":\"\",\"tool_call_id\":\"",
         "\"}]}", 128, "messages[0].tool_call_id"},
        {HEAD ",\"chat_template_kwargs\":{\"a\":\"", "\"}}", 65536 - 8, "chat_template_kwargs"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(strings); i++) {
        for (size_t over = 0; over < 2; over++) {
            size_t before = strlen(strings[i].before), length = strings[i].most + over;
            char *body = malloc(before + length + strlen(strings[i].after) + 1);
            struct openai_request read;

            memcpy(body, strings[i].before, before);
            memset(body + before, 'x', length);
            strcpy(body + before + length, strings[i].after);
            openai_read(&read, CHAT, body, strlen(body), 100);
            if (read.result != (over ? NGX_ABORT : NGX_OK))
                fail_msg("%s over %zu", strings[i].param, over);
            if (over) {
                assert_text(read.error.code, "string_above_max_length");
                assert_text(read.error.param, strings[i].param);
            }
            openai_free(&read);
            free(body);
        }
    }
}

static void an_unknown_name_is_cut(void **state)
{
    char body[400] = "{\"";
    struct openai_request read;

    (void)state;
    memset(body + 2, 'k', 300);
    strcpy(body + 302, "\":1}");
    openai_read(&read, CHAT, body, strlen(body), 50);
    assert_int_equal(read.result, NGX_ABORT);
    assert_text(read.error.code, "unknown_parameter");
    assert_int_equal(read.error.param.len, 128);
    openai_free(&read);
}

static void memory_that_fails_is_the_servers_fault(void **state)
{
    static const char body[] = "{\"model\":\"m\",\"stop\":[\"a\"],\"logit_bias\":{\"1\":1},\"stop_"
                               "token_ids\":[1],\"chat_template_kwargs\":{\"a\":1},"
                               "\"messages\":[{\"role\":\"user\",\"content\":\"hi\",\"tool_calls\":"
                               "[]}],\"add_generation_prompt\":false}";
    struct openai_request read;
    long count;

    (void)state;
    for (count = 0; count < 1000; count++) {
        shim_fail_after(count);
        openai_read(&read, CHAT, body, sizeof body - 1, 10);
        shim_fail_after(-1);
        if (read.result == NGX_OK)
            break;
        if (read.result == NGX_ABORT)
            assert_int_equal(read.error.status, 500);
        openai_free(&read);
    }
    assert_in_range(count, 8, 100);
    openai_free(&read);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_by_name),
        cmocka_unit_test(bounds_every_list),
        cmocka_unit_test(bounds_every_string),
        cmocka_unit_test(an_unknown_name_is_cut),
        cmocka_unit_test(memory_that_fails_is_the_servers_fault),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
