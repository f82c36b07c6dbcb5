/* From an answer's tokens to its text, one token at a time.
 *
 * Two filters in a row: the detokenizer collects bytes and lets only whole characters through (at most
 * three bytes are held; invalid bytes become U+FFFD as in Hugging Face's decoder), the stop matcher
 * holds back what might be the beginning of a stop string. What was held comes with a later token or
 * with pd_text_stream_finish(). Feeding the same tokens always gives the same text at the same
 * positions: that is what lets another worker go on with an answer. */
#ifndef PD_TEXT_STREAM_H
#define PD_TEXT_STREAM_H

#include "worker/text/tokenizer.h"

struct pd_text_stream;

struct pd_stop_rules {
    const struct pd_string *strings; /* UTF-8, not empty; copied */
    size_t count;
    bool include; /* keep the matched string in the text */
};

int pd_text_stream_create(const struct pd_tokenizer *tokenizer, const struct pd_stop_rules *stop,
                          struct pd_text_stream **stream, struct pd_error *error);
void pd_text_stream_destroy(struct pd_text_stream *stream);

struct pd_text_delta {
    const char *bytes; /* valid until the next call on this stream */
    size_t length;
    int stop; /* index of the stop string that ended the answer, or -1 */
};

/* Feeds one token. Special tokens give no text. After a stop no more may be fed. */
int pd_text_stream_push(struct pd_text_stream *stream, int32_t token, struct pd_text_delta *delta);

/* The answer has ended otherwise: gives what was held. */
int pd_text_stream_finish(struct pd_text_stream *stream, struct pd_text_delta *delta);

/* The stop string that ended the answer; empty if none has. Valid as long as the stream. */
struct pd_string pd_text_stream_stop(const struct pd_text_stream *stream);

#endif
