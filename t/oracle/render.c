/* Renders chat templates for t/oracle/chat_template.py: one JSON object per input line
 * {"template", "messages", "tools", "arguments", "add_generation_prompt", "bos", "eos"}, one per
 * output line
 * {"text", "literal": [[first, length], ...]} or {"error"}. */

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/text/chat_template.h"

static struct pd_string text_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_string(value))
        return (struct pd_string){"", 0};
    return (struct pd_string){json_string_value(value), json_string_length(value)};
}

/* A member as JSON text; the caller frees it. */
static char *dumped(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return value && !json_is_null(value) ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
}

static struct pd_string borrowed(const char *text)
{
    return (struct pd_string){text ? text : "", text ? strlen(text) : 0};
}

static void fill_message(const json_t *from, struct pd_chat_message *message, char **calls)
{
    *calls = dumped(from, "tool_calls");
    *message = (struct pd_chat_message){
        .role = text_of(from, "role"),
        .content = text_of(from, "content"),
        .content_null = !json_is_string(json_object_get(from, "content")),
        .name = text_of(from, "name"),
        .tool_calls = borrowed(*calls),
        .tool_call_id = text_of(from, "tool_call_id"),
        .reasoning = text_of(from, "reasoning_content"),
    };
}

static json_t *fault(const struct pd_error *error)
{
    return json_pack("{s:s}", "error", error->text);
}

static json_t *rendered(const struct pd_rendered *result)
{
    json_t *literal = json_array();

    for (size_t i = 0; i < result->literal_count; i++)
        json_array_append_new(literal, json_pack("[I,I]", (json_int_t)result->literal[i].first,
                                                 (json_int_t)result->literal[i].length));
    return json_pack("{s:s%,s:o}", "text", result->text ? result->text : "", result->length,
                     "literal", literal);
}

static json_t *render(const json_t *request)
{
    struct pd_string source = text_of(request, "template");
    const json_t *list = json_object_get(request, "messages");
    size_t count = json_array_size(list);
    struct pd_chat_message *messages = calloc(count + 1, sizeof(*messages));
    char **calls = calloc(count + 1, sizeof(*calls));
    char *tools = dumped(request, "tools"), *arguments = dumped(request, "arguments");
    struct pd_chat_template *compiled;
    struct pd_rendered result;
    struct pd_error error;
    json_t *answer;

    for (size_t i = 0; i < count; i++)
        fill_message(json_array_get(list, i), &messages[i], &calls[i]);
    if (pd_chat_template_compile(source.bytes, source.length, &compiled, &error) != PD_OK) {
        answer = fault(&error);
    } else {
        struct pd_chat_input input = {
            .messages = messages,
            .message_count = count,
            .tools = borrowed(tools),
            .arguments = borrowed(arguments),
            .add_generation_prompt =
                json_is_true(json_object_get(request, "add_generation_prompt")),
            .bos_token = text_of(request, "bos"),
            .eos_token = text_of(request, "eos"),
        };

        if (pd_chat_template_render(compiled, &input, 1 << 20, &result, &error) != PD_OK) {
            answer = fault(&error);
        } else {
            answer = rendered(&result);
            pd_rendered_free(&result);
        }
        pd_chat_template_destroy(compiled);
    }
    for (size_t i = 0; i < count; i++)
        free(calls[i]);
    free(calls);
    free(messages);
    free(tools);
    free(arguments);
    return answer;
}

int main(void)
{
    char *line = NULL;
    size_t capacity = 0;

    while (getline(&line, &capacity, stdin) > 0) {
        json_error_t why;
        json_t *request = json_loads(line, 0, &why), *answer;

        if (!request) {
            fprintf(stderr, "render: input is not JSON: %s\n", why.text);
            return 1;
        }
        answer = render(request);
        json_dumpf(answer, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(answer);
        json_decref(request);
    }
    free(line);
    return 0;
}
