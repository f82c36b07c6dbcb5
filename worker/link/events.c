#include "worker/link/events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/link/clean.h"
#include "worker/link/server.h"

/* Puts what must not be lost; if it cannot be kept, says so. `message` may be NULL: no memory. */
static void post(struct pd_link *link, struct pd_message *message, enum pd_link_message kind)
{
    if (message) {
        message->kind = (int)kind;
        if (pd_mailbox_put(&link->box, message, PD_MAILBOX_BOUNDED) == PD_OK)
            return;
        free(message);
    }
    if (!atomic_exchange(&link->overrun, true))
        pd_loop_wake(&link->loop);
}

void pd_events_placed(void *context, const struct pd_placed *placed)
{
    struct pd_placed_message *message = malloc(sizeof(*message));

    if (message)
        message->placed = *placed;
    post(context, message ? &message->message : NULL, PD_LINK_PLACED);
}

void pd_events_queued(void *context, const struct pd_attempt *id)
{
    struct pd_queued_message *message = malloc(sizeof(*message));

    if (message)
        message->id = *id;
    post(context, message ? &message->message : NULL, PD_LINK_QUEUED);
}

void pd_events_failed(void *context, const struct pd_failure *failure)
{
    struct pd_failed_message *message = malloc(sizeof(*message));

    if (message) {
        message->failure = *failure;
        snprintf(message->text, sizeof(message->text), "%s", failure->message);
        snprintf(message->param, sizeof(message->param), "%s", failure->param);
        message->failure.message = message->text;
        message->failure.param = message->param;
    }
    post(context, message ? &message->message : NULL, PD_LINK_FAILED);
}

/* ---- steps --------------------------------------------------------------------------------------
 */

static size_t logprob_count(const struct pd_output *output)
{
    return output->token_count * (size_t)(output->logprob_stride > 0 ? output->logprob_stride : 0);
}

static void *take(char **at, const void *from, size_t bytes)
{
    void *to = *at;

    if (bytes)
        memcpy(to, from, bytes);
    *at += bytes;
    return to;
}

void pd_events_step(void *context, uint64_t step, const struct pd_output *outputs, size_t count)
{
    size_t words = 0, text = 0;
    struct pd_step_message *message;
    char *at;

    if (count == 0)
        return;
    for (size_t i = 0; i < count; i++) {
        words += outputs[i].token_count * sizeof(int32_t) +
                 logprob_count(&outputs[i]) * sizeof(struct pd_token_logprob);
        text += outputs[i].text_length;
    }
    message = malloc(sizeof(*message) + count * sizeof(*outputs) + words + text);
    if (message) {
        message->step = step;
        message->count = count;
        at = (char *)(message->outputs + count);
        for (size_t i = 0; i < count; i++) { /* words first, so that they stay aligned */
            struct pd_output *output = &message->outputs[i];

            *output = outputs[i];
            pd_clean_text(output->stop_matched);
            output->tokens = take(&at, output->tokens, output->token_count * sizeof(int32_t));
            output->logprobs = take(&at, output->logprobs,
                                    logprob_count(output) * sizeof(struct pd_token_logprob));
        }
        for (size_t i = 0; i < count; i++)
            message->outputs[i].text = take(&at, outputs[i].text, outputs[i].text_length);
    }
    post(context, message ? &message->message : NULL, PD_LINK_STEP);
}
