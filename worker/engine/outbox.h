/* What the sequences said since the last `step` event, kept until it goes out as one.
 *
 * Text and log probabilities are copied in, so a sequence may be freed before its last output
 * leaves. */
#ifndef PD_OUTBOX_H
#define PD_OUTBOX_H

#include "worker/engine/engine.h"

struct pd_outbox {
    struct pd_output *outputs;
    int32_t *tokens;                   /* [capacity] one per output */
    size_t *text_at;                   /* [capacity] offset into `text`, which may move */
    struct pd_token_logprob *logprobs; /* [capacity][1 + PD_TOP_MAX] */
    size_t count, capacity;
    char *text;
    size_t text_length, text_capacity;
};

bool pd_outbox_init(struct pd_outbox *outbox, size_t capacity);
void pd_outbox_destroy(struct pd_outbox *outbox);

static inline bool pd_outbox_full(const struct pd_outbox *outbox)
{
    return outbox->count == outbox->capacity;
}

/* A new output, zeroed, while not full. Text appended next is its own. */
struct pd_output *pd_outbox_add(struct pd_outbox *outbox);

/* To the newest output. */
void pd_outbox_text(struct pd_outbox *outbox, const char *bytes, size_t length);
void pd_outbox_token(struct pd_outbox *outbox, int32_t token);
/* `stride` entries, at most 1 + PD_TOP_MAX; the caller fills them. */
struct pd_token_logprob *pd_outbox_logprobs(struct pd_outbox *outbox, int stride);

/* Sets the outputs' pointers; they hold until pd_outbox_clear. */
const struct pd_output *pd_outbox_seal(struct pd_outbox *outbox);
void pd_outbox_clear(struct pd_outbox *outbox);

#endif
