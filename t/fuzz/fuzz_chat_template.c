/* Any bytes as a template, and the same bytes as a client's content and tools. */

#include <stdint.h>
#include <stddef.h>

#include "worker/text/chat_template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char fixed[] =
        "{% for m in messages %}{{ m.content | trim | title }}{{ m | tojson }}"
        "{{ m.content.split('a') }}{% endfor %}{{ tools }}";
    struct pd_string all = {(const char *)data, size};
    struct pd_chat_message message = {.role = {"user", 4}, .content = all};
    struct pd_chat_input input = {.messages = &message, .message_count = 1, .tools = all};
    struct pd_chat_template *compiled;
    struct pd_rendered out;
    struct pd_error error;

    if (pd_chat_template_compile(fixed, sizeof(fixed) - 1, &compiled, &error) == PD_OK) {
        pd_chat_template_render(compiled, &input, 1 << 16, &out, &error);
        pd_rendered_free(&out);
        pd_chat_template_destroy(compiled);
    }
    input.tools.length = 0;
    if (pd_chat_template_compile(all.bytes, all.length, &compiled, &error) == PD_OK) {
        pd_chat_template_render(compiled, &input, 1 << 16, &out, &error);
        pd_rendered_free(&out);
        pd_chat_template_destroy(compiled);
    }
    return 0;
}
