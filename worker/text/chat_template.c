#include "worker/text/chat_template.h"

#include <stdlib.h>
#include <string.h>

#include "worker/text/jinja_render.h"

enum { SOURCE_MAX = 1 << 20 };

struct pd_chat_template {
    char *source;
    struct pd_arena arena;
    struct pd_jinja_node *body;
};

/* \r\n and \r become \n, as Jinja reads its sources. */
static size_t normalize_newlines(char *to, const char *from, size_t length)
{
    size_t written = 0;

    for (size_t i = 0; i < length; i++) {
        if (from[i] == '\r') {
            to[written++] = '\n';
            i += i + 1 < length && from[i + 1] == '\n';
        } else {
            to[written++] = from[i];
        }
    }
    return written;
}

int pd_chat_template_compile(const char *source, size_t length, struct pd_chat_template **result,
                             struct pd_error *error)
{
    struct pd_chat_template *compiled;
    int status;

    *result = NULL;
    if (length > SOURCE_MAX)
        return pd_fail(error, PD_INVALID, "chat template: %zu bytes are more than %d", length,
                       SOURCE_MAX);
    compiled = calloc(1, sizeof(*compiled));
    if (compiled)
        compiled->source = malloc(length + 1);
    if (!compiled || !compiled->source) {
        free(compiled);
        return pd_fail(error, PD_NO_MEMORY, "chat template: out of memory");
    }
    length = normalize_newlines(compiled->source, source, length);
    pd_arena_init(&compiled->arena, 4096 + length * 512);
    status = pd_jinja_parse(compiled->source, length, &compiled->arena, &compiled->body, error);
    if (status != PD_OK) {
        pd_chat_template_destroy(compiled);
        pd_fail_in(error, "chat template");
        return status;
    }
    *result = compiled;
    return PD_OK;
}

void pd_chat_template_destroy(struct pd_chat_template *compiled)
{
    if (!compiled)
        return;
    pd_arena_free(&compiled->arena);
    free(compiled->source);
    free(compiled);
}

/* ---- the conversation as values -------------------------------------------------------------- */

static bool put(struct pd_jinja_render *render, struct pd_jinja_value *dict, const char *key,
                struct pd_jinja_value value)
{
    return pd_jinja_dict_append(&render->arena, dict->dict,
                                pd_jinja_text(key, strlen(key), PD_JINJA_TRUSTED), value) ||
           pd_jinja_exhausted(render);
}

static struct pd_jinja_value client_text(struct pd_string text)
{
    return pd_jinja_text(text.bytes, text.length, PD_JINJA_LITERAL);
}

static bool json_value(struct pd_jinja_render *render, struct pd_string json, const char *what,
                       struct pd_jinja_value *value)
{
    struct pd_error fault;

    if (pd_jinja_from_json(&render->arena, json, value, &fault) == PD_OK)
        return true;
    return pd_jinja_fail(render, PD_INVALID, "%s: %s", what, fault.text);
}

/* OpenAI carries a call's arguments as JSON text; templates want the value (and Hugging Face gives
 * it). */
static bool open_arguments(struct pd_jinja_render *render, struct pd_jinja_value *calls)
{
    if (calls->kind != PD_JINJA_LIST)
        return pd_jinja_fail(render, PD_INVALID, "tool_calls is not a list");
    for (size_t i = 0; i < calls->list->count; i++) {
        const struct pd_jinja_value *call = &calls->list->items[i], *function, *arguments;
        struct pd_jinja_value opened;
        struct pd_string text;

        if (call->kind != PD_JINJA_DICT)
            return pd_jinja_fail(render, PD_INVALID, "tool_calls[%zu] is not an object", i);
        function = pd_jinja_dict_find(call->dict, "function", 8);
        if (!function || function->kind != PD_JINJA_DICT)
            continue;
        arguments = pd_jinja_dict_find(function->dict, "arguments", 9);
        if (!arguments || arguments->kind != PD_JINJA_STRING)
            continue;
        text = (struct pd_string){arguments->string.bytes, arguments->string.length};
        if (!json_value(render, text, "tool_calls[].function.arguments", &opened))
            return false;
        *(struct pd_jinja_value *)arguments = opened;
    }
    return true;
}

static bool message_value(struct pd_jinja_render *render, const struct pd_chat_message *message,
                          struct pd_jinja_value *out)
{
    struct pd_jinja_value calls;

    if (!pd_jinja_dict_new(&render->arena, 6, out))
        return pd_jinja_exhausted(render);
    if (!put(render, out, "role", client_text(message->role)) ||
        !put(render, out, "content",
             message->content_null ? pd_jinja_none() : client_text(message->content)))
        return false;
    if (message->name.length && !put(render, out, "name", client_text(message->name)))
        return false;
    if (message->tool_call_id.length &&
        !put(render, out, "tool_call_id", client_text(message->tool_call_id)))
        return false;
    if (message->reasoning.length &&
        !put(render, out, "reasoning_content", client_text(message->reasoning)))
        return false;
    if (message->tool_calls.length == 0)
        return true;
    return json_value(render, message->tool_calls, "tool_calls", &calls) &&
           open_arguments(render, &calls) && put(render, out, "tool_calls", calls);
}

/* chat_template_kwargs: each becomes a variable, but none may replace what the server itself gives.
 */
static bool define_arguments(struct pd_jinja_render *render, struct pd_string json)
{
    static const char *const own[] = {"messages", "tools", "add_generation_prompt", "bos_token",
                                      "eos_token"};
    struct pd_jinja_value arguments;

    if (json.length == 0)
        return true;
    if (!json_value(render, json, "chat_template_kwargs", &arguments))
        return false;
    if (arguments.kind != PD_JINJA_DICT)
        return pd_jinja_fail(render, PD_INVALID, "chat_template_kwargs is not an object");
    for (size_t i = 0; i < arguments.dict->count; i++) {
        const struct pd_jinja_string *name = &arguments.dict->entries[i].key.string;
        char *copy = pd_arena_take(&render->arena, name->length + 1);

        if (!copy)
            return pd_jinja_exhausted(render);
        memcpy(copy, name->bytes, name->length);
        for (size_t j = 0; j < sizeof(own) / sizeof(*own); j++)
            if (strcmp(copy, own[j]) == 0)
                return pd_jinja_fail(render, PD_INVALID, "chat_template_kwargs may not set %s",
                                     own[j]);
        if (!pd_jinja_render_define(render, copy, arguments.dict->entries[i].value))
            return false;
    }
    return true;
}

static bool define_conversation(struct pd_jinja_render *render, const struct pd_chat_input *input)
{
    struct pd_jinja_value messages, tools = pd_jinja_none();

    if (!pd_jinja_list_new(&render->arena, input->message_count, &messages))
        return pd_jinja_exhausted(render);
    for (size_t i = 0; i < input->message_count; i++)
        if (!message_value(render, &input->messages[i], &messages.list->items[i]))
            return false;
    messages.list->count = input->message_count;
    if (input->tools.length && !json_value(render, input->tools, "tools", &tools))
        return false;
    return pd_jinja_functions_define(render) &&
           pd_jinja_render_define(render, "messages", messages) &&
           pd_jinja_render_define(render, "tools", tools) &&
           pd_jinja_render_define(render, "add_generation_prompt",
                                  pd_jinja_bool(input->add_generation_prompt)) &&
           pd_jinja_render_define(
               render, "bos_token",
               pd_jinja_text(input->bos_token.bytes, input->bos_token.length, PD_JINJA_TRUSTED)) &&
           pd_jinja_render_define(
               render, "eos_token",
               pd_jinja_text(input->eos_token.bytes, input->eos_token.length, PD_JINJA_TRUSTED)) &&
           define_arguments(render, input->arguments);
}

/* ---- the result ------------------------------------------------------------------------------ */

/* Turns the marks of single bytes into spans. */
static int collect_spans(const struct pd_jinja_output *output, struct pd_rendered *out,
                         struct pd_error *error)
{
    size_t capacity = 0;

    for (size_t i = 0; i < output->length;) {
        size_t first;

        while (i < output->length && !output->marks[i])
            i++;
        first = i;
        while (i < output->length && output->marks[i])
            i++;
        if (i == first)
            break;
        if (out->literal_count == capacity) {
            struct pd_span *grown;

            capacity = capacity ? capacity * 2 : 16;
            grown = realloc(out->literal, capacity * sizeof(*grown));
            if (!grown)
                return pd_fail(error, PD_NO_MEMORY, "chat template: out of memory");
            out->literal = grown;
        }
        out->literal[out->literal_count++] = (struct pd_span){first, i - first};
    }
    return PD_OK;
}

int pd_chat_template_render(const struct pd_chat_template *compiled,
                            const struct pd_chat_input *input, size_t limit,
                            struct pd_rendered *out, struct pd_error *error)
{
    struct pd_error local;
    struct pd_jinja_output output;
    struct pd_jinja_render render;
    int status = PD_OK;

    if (!error)
        error = &local;
    *out = (struct pd_rendered){0};
    pd_jinja_output_init(&output, limit);
    pd_jinja_render_init(&render, &output, limit * 16 + (16u << 20), error);
    if (!define_conversation(&render, input) || !pd_jinja_render_body(&render, compiled->body))
        status = error->status;
    if (status == PD_OK)
        status = collect_spans(&output, out, error);
    if (status == PD_OK) {
        out->text = output.bytes;
        out->length = output.length;
        output.bytes = NULL;
    } else {
        pd_rendered_free(out);
    }
    pd_jinja_output_free(&output);
    pd_jinja_render_free(&render);
    return status;
}

void pd_rendered_free(struct pd_rendered *rendered)
{
    free(rendered->text);
    free(rendered->literal);
    *rendered = (struct pd_rendered){0};
}
