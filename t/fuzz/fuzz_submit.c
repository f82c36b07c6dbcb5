/* Bytes of a Submit as a frontend might send them: a request that keeps every bound, or a refusal that fits
 * the wire; nothing else. */
#include <stdlib.h>
#include <string.h>

#include "t/link/fakes.h"
#include "worker/link/submit.h"
#include "worker/text/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MODEL_LEN = 512 };

static const struct pd_link_identity *identity(uint8_t choice)
{
    static struct pd_link_identity fuzzed;

    fuzzed = (struct pd_link_identity){.instance = "fuzz",
                                       .model = "m",
                                       .role = (enum pd_role)(choice % 3),
                                       .max_model_len = MODEL_LEN,
                                       .block_size = 16,
                                       .vocabulary = FAKE_VOCABULARY,
                                       .max_submit_bytes = 1 << 20,
                                       .request_timeout_s = 60,
                                       .tokenizer = fake_tokenizer(),
                                       .chat_template = choice & 0x80 ? NULL : fake_template()};
    return &fuzzed;
}

#define PROMISE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition))                                                                          \
            abort();                                                                               \
    } while (0)

static void check_request(const struct pd_request *request)
{
    const struct pd_sampling *s = &request->sampling;
    /* A ticket covers what earlier attempts generated, too. */
    size_t prompt = request->route == PD_ROUTE_DECODE
                        ? request->ticket.tokens - request->generated.count
                        : request->prompt.count;

    PROMISE(prompt >= 1 && s->max_tokens >= 1 && prompt + s->max_tokens <= MODEL_LEN);
    PROMISE(request->generated.count == 0 || request->generated.count < s->max_tokens);
    for (size_t i = 0; i < request->prompt.count; i++)
        PROMISE(request->prompt.ids[i] >= 0 && request->prompt.ids[i] < FAKE_VOCABULARY);
    for (size_t i = 0; i < request->generated.count; i++)
        PROMISE(request->generated.ids[i] >= 0 && request->generated.ids[i] < FAKE_VOCABULARY);
    PROMISE(s->temperature >= 0 && s->temperature <= 2 && s->top_p > 0 && s->top_p <= 1);
    PROMISE(s->logprobs >= 0 && s->logprobs <= 21);
    PROMISE(request->route != PD_ROUTE_PREFILL || request->ticket.tokens < MODEL_LEN);
    PROMISE(request->stream != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pd_job job = {.id = {1, 2, 3}};
    struct pd_request *request = NULL;
    struct pd_refusal refusal;

    if (size < 1)
        return 0;
    job.bytes = malloc(size);
    job.length = size - 1;
    memcpy(job.bytes, data + 1, size - 1);
    if (pd_submit_read(identity(data[0]), &job, &request, &refusal) == PD_OK) {
        check_request(request);
    } else {
        size_t length = strlen(refusal.message);

        PROMISE(length > 0 && pd_utf8_valid(refusal.message, length) == length);
    }
    pd_request_free(request);
    free(job.bytes);
    return 0;
}
