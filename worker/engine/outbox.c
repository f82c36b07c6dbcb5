#include "worker/engine/outbox.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "worker/engine/must.h"

enum { STRIDE = 1 + PD_TOP_MAX };

bool pd_outbox_init(struct pd_outbox *outbox, size_t capacity)
{
    memset(outbox, 0, sizeof(*outbox));
    outbox->capacity = capacity;
    outbox->outputs = calloc(capacity, sizeof(*outbox->outputs));
    outbox->tokens = calloc(capacity, sizeof(*outbox->tokens));
    outbox->text_at = calloc(capacity, sizeof(*outbox->text_at));
    outbox->logprobs = calloc(capacity * STRIDE, sizeof(*outbox->logprobs));
    return outbox->outputs && outbox->tokens && outbox->text_at && outbox->logprobs;
}

void pd_outbox_destroy(struct pd_outbox *outbox)
{
    free(outbox->outputs);
    free(outbox->tokens);
    free(outbox->text_at);
    free(outbox->logprobs);
    free(outbox->text);
}

struct pd_output *pd_outbox_add(struct pd_outbox *outbox)
{
    struct pd_output *output = &outbox->outputs[outbox->count];

    assert(!pd_outbox_full(outbox));
    memset(output, 0, sizeof(*output));
    outbox->text_at[outbox->count++] = outbox->text_length;
    return output;
}

void pd_outbox_text(struct pd_outbox *outbox, const char *bytes, size_t length)
{
    size_t need = outbox->text_length + length;

    if (length == 0)
        return;
    if (need > outbox->text_capacity) {
        outbox->text_capacity = need * 2;
        outbox->text = pd_must_realloc(outbox->text, outbox->text_capacity);
    }
    memcpy(outbox->text + outbox->text_length, bytes, length);
    outbox->text_length = need;
    outbox->outputs[outbox->count - 1].text_length += length;
}

void pd_outbox_token(struct pd_outbox *outbox, int32_t token)
{
    outbox->tokens[outbox->count - 1] = token;
    outbox->outputs[outbox->count - 1].token_count = 1;
}

struct pd_token_logprob *pd_outbox_logprobs(struct pd_outbox *outbox, int stride)
{
    assert(stride <= STRIDE);
    outbox->outputs[outbox->count - 1].logprob_stride = stride;
    return outbox->logprobs + (outbox->count - 1) * STRIDE;
}

const struct pd_output *pd_outbox_seal(struct pd_outbox *outbox)
{
    for (size_t i = 0; i < outbox->count; i++) {
        struct pd_output *output = &outbox->outputs[i];

        output->tokens = &outbox->tokens[i];
        output->text = output->text_length ? outbox->text + outbox->text_at[i] : "";
        output->logprobs = &outbox->logprobs[i * STRIDE];
    }
    return outbox->outputs;
}

void pd_outbox_clear(struct pd_outbox *outbox)
{
    outbox->count = 0;
    outbox->text_length = 0;
}
