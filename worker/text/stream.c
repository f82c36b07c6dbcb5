/* Two filters in a row, fed token by token:
 *
 *     bytes of tokens ─▶ [≤ 3 bytes of a character] ─▶ whole characters ─▶ [what may begin a stop
 * string] ─▶ text
 *
 * Characters. An invalid sequence becomes one U+FFFD for each maximal part of a well-formed
 * character, as Rust's from_utf8_lossy does it; which parts these are depends on the bytes alone,
 * never on how tokens cut them. SentencePiece's tokens of bytes become one U+FFFD each. (There Hugging Face's decoder
 * gives up all neighbouring tokens of bytes, if some of them are no character: a stream has said the whole
 * characters among them long before.) The space that its decoder takes away is that of a text's beginning; an answer
 * goes on with its prompt's.
 *
 * Stop strings. For every stop string the matcher knows how much of it the text ends with now
 * (Knuth, Morris and Pratt's automaton). The longest of these is what is held back. The answer ends
 * where the first stop string is complete; of two that are complete at once, the longer counts, for
 * it began first. */
#include "worker/text/stream.h"

#include <stdlib.h>
#include <string.h>

#include "worker/text/unicode.h"

enum { STOP_COUNT_MAX = 64, STOP_BYTES_MAX = 1 << 16, CHARACTER_MAX = 4 };

struct stop_string {
    const unsigned char *bytes;
    uint32_t length;
    uint32_t *borders; /* [i]: longest proper prefix of bytes[0..i] that it ends with */
    uint32_t matched;
};

struct buffer {
    char *bytes;
    size_t length, capacity;
};

struct pd_text_stream {
    const struct pd_tokenizer *tokenizer;
    unsigned char partial[CHARACTER_MAX]; /* the beginning of a character */
    size_t partial_length;
    struct buffer text; /* [given out by the last call][held] */
    size_t given;
    bool include;
    int stop; /* the string that ended the answer, or -1 */
    struct stop_string *strings;
    size_t string_count;
    uint32_t *borders;
    unsigned char *string_bytes;
};

/* ---- making
 * ---------------------------------------------------------------------------------------- */

static int check_stop(const struct pd_stop_rules *stop, size_t *total, struct pd_error *error)
{
    size_t i;

    *total = 0;
    if (stop->count > STOP_COUNT_MAX)
        return pd_fail(error, PD_INVALID, "%zu stop strings, at most %d are supported", stop->count,
                       STOP_COUNT_MAX);
    for (i = 0; i < stop->count; i++) {
        const struct pd_string *string = &stop->strings[i];

        if (string->length == 0 || string->length > STOP_BYTES_MAX - *total)
            return pd_fail(error, PD_INVALID,
                           "stop string %zu is empty, or all together have more than %d bytes", i,
                           STOP_BYTES_MAX);
        if (pd_utf8_valid(string->bytes, string->length) < string->length)
            return pd_fail(error, PD_INVALID, "stop string %zu is not UTF-8", i);
        *total += string->length;
    }
    return PD_OK;
}

static void find_borders(struct stop_string *string)
{
    uint32_t border = 0, i;

    string->borders[0] = 0;
    for (i = 1; i < string->length; i++) {
        while (border > 0 && string->bytes[i] != string->bytes[border])
            border = string->borders[border - 1];
        border += string->bytes[i] == string->bytes[border];
        string->borders[i] = border;
    }
}

int pd_text_stream_create(const struct pd_tokenizer *tokenizer, const struct pd_stop_rules *stop,
                          struct pd_text_stream **stream, struct pd_error *error)
{
    struct pd_text_stream *made;
    size_t total, i, at = 0;
    int status = check_stop(stop, &total, error);

    if (status != PD_OK)
        return status;
    made = calloc(1, sizeof *made);
    if (made) {
        made->strings = calloc(stop->count + 1, sizeof *made->strings);
        made->borders = calloc(total + 1, sizeof *made->borders);
        made->string_bytes = malloc(total + 1);
    }
    if (!made || !made->strings || !made->borders || !made->string_bytes) {
        pd_text_stream_destroy(made);
        return pd_fail(error, PD_NO_MEMORY, "no memory for a stream of text");
    }
    made->tokenizer = tokenizer;
    made->include = stop->include;
    made->stop = -1;
    made->string_count = stop->count;
    for (i = 0; i < stop->count; i++) {
        struct stop_string *string = &made->strings[i];

        string->bytes = made->string_bytes + at;
        string->borders = made->borders + at;
        string->length = (uint32_t)stop->strings[i].length;
        memcpy(made->string_bytes + at, stop->strings[i].bytes, string->length);
        find_borders(string);
        at += string->length;
    }
    *stream = made;
    return PD_OK;
}

void pd_text_stream_destroy(struct pd_text_stream *stream)
{
    if (!stream)
        return;
    free(stream->text.bytes);
    free(stream->strings);
    free(stream->borders);
    free(stream->string_bytes);
    free(stream);
}

/* ---- stop strings
 * ----------------------------------------------------------------------------------- */

/* Moves every string's automaton by one byte; returns the longest string that is complete now, or
 * -1. */
static int advance(struct pd_text_stream *stream, unsigned char byte)
{
    uint32_t longest = 0;
    size_t i;
    int complete = -1;

    for (i = 0; i < stream->string_count; i++) {
        struct stop_string *string = &stream->strings[i];

        while (string->matched > 0 && string->bytes[string->matched] != byte)
            string->matched = string->borders[string->matched - 1];
        string->matched += string->bytes[string->matched] == byte;
        if (string->matched == string->length && string->length > longest) {
            longest = string->length;
            complete = (int)i;
        }
    }
    return complete;
}

static size_t held_back(const struct pd_text_stream *stream)
{
    size_t held = 0, i;

    for (i = 0; i < stream->string_count; i++)
        if (stream->strings[i].matched > held)
            held = stream->strings[i].matched;
    return held;
}

/* Looks for stop strings in the text from `at` on; cuts the text behind the first, or before it. */
static void match(struct pd_text_stream *stream, size_t at)
{
    for (; at < stream->text.length && stream->stop < 0; at++) {
        stream->stop = advance(stream, (unsigned char)stream->text.bytes[at]);
        if (stream->stop >= 0)
            stream->text.length =
                at + 1 - (stream->include ? 0 : stream->strings[stream->stop].length);
    }
}

/* ---- characters
 * ------------------------------------------------------------------------------------- */

static int reserve(struct buffer *buffer, size_t more)
{
    size_t capacity = buffer->capacity ? buffer->capacity : 64;
    char *larger;

    if (more <= buffer->capacity - buffer->length)
        return PD_OK;
    while (capacity < buffer->length + more)
        capacity *= 2;
    larger = realloc(buffer->bytes, capacity);
    if (!larger)
        return PD_NO_MEMORY;
    buffer->bytes = larger;
    buffer->capacity = capacity;
    return PD_OK;
}

static void append(struct buffer *buffer, const void *bytes, size_t length)
{
    memcpy(buffer->bytes + buffer->length, bytes, length);
    buffer->length += length;
}

/* What so many bytes become that are no character. */
static void replace(struct pd_text_stream *stream, size_t bytes)
{
    size_t count = pd_tokenizer_has_marks(stream->tokenizer) ? bytes : 1;

    while (count-- > 0)
        append(&stream->text, "\xEF\xBF\xBD", 3);
}

/* Whether some well-formed character is longer than these 1 to 3 bytes and begins with them. */
static bool may_go_on(const unsigned char *bytes, size_t length)
{
    char low[CHARACTER_MAX], high[CHARACTER_MAX];
    uint32_t code_point;

    if (pd_utf8_length((char)bytes[0]) <= length)
        return false;
    /* Where the second byte is still open, one of these two is within the bounds of any lead byte.
     */
    memset(low, 0x80, sizeof low);
    memset(high, 0xA0, sizeof high);
    memcpy(low, bytes, length);
    memcpy(high, bytes, length);
    return pd_utf8_decode(low, sizeof low, &code_point) > 0 ||
           pd_utf8_decode(high, sizeof high, &code_point) > 0;
}

/* Takes one more byte of a token. */
static void take_byte(struct pd_text_stream *stream, unsigned char byte)
{
    size_t length = ++stream->partial_length;
    uint32_t code_point;

    stream->partial[length - 1] = byte;
    if (pd_utf8_decode((const char *)stream->partial, length, &code_point) > 0) {
        append(&stream->text, stream->partial, length);
        stream->partial_length = 0;
    } else if (!may_go_on(stream->partial, length)) {
        replace(stream, length > 1 ? length - 1 : 1);
        stream->partial_length = 0;
        if (length > 1) /* the byte that broke one character may begin the next */
            take_byte(stream, byte);
    }
}

/* ---- the stream
 * -------------------------------------------------------------------------------------- */

/* Drops what the last call gave out. */
static void begin(struct pd_text_stream *stream)
{
    stream->text.length -= stream->given;
    if (stream->text.length > 0)
        memmove(stream->text.bytes, stream->text.bytes + stream->given, stream->text.length);
    stream->given = 0;
}

static void give(struct pd_text_stream *stream, size_t held, struct pd_text_delta *delta)
{
    stream->given = stream->text.length - held;
    delta->bytes = stream->given > 0 ? stream->text.bytes : "";
    delta->length = stream->given;
    delta->stop = stream->stop;
}

int pd_text_stream_push(struct pd_text_stream *stream, int32_t token, struct pd_text_delta *delta)
{
    struct pd_string bytes = {"", 0};
    size_t before, i;

    if (stream->stop >= 0)
        return PD_INVALID;
    begin(stream);
    if (pd_tokenizer_kind(stream->tokenizer, token) != PD_TOKEN_SPECIAL)
        bytes = pd_tokenizer_bytes(stream->tokenizer, token);
    /* A byte may become a U+FFFD, and so may the bytes that were held. */
    if (reserve(&stream->text, 3 * (bytes.length + CHARACTER_MAX)) != PD_OK)
        return PD_NO_MEMORY;
    before = stream->text.length;
    for (i = 0; i < bytes.length; i++)
        take_byte(stream, (unsigned char)bytes.bytes[i]);
    match(stream, before);
    give(stream, stream->stop >= 0 ? 0 : held_back(stream), delta);
    return PD_OK;
}

int pd_text_stream_finish(struct pd_text_stream *stream, struct pd_text_delta *delta)
{
    size_t before;

    begin(stream);
    if (reserve(&stream->text, 3 * CHARACTER_MAX) != PD_OK)
        return PD_NO_MEMORY;
    before = stream->text.length;
    if (stream->partial_length > 0 && stream->stop < 0) {
        replace(stream, stream->partial_length);
        stream->partial_length = 0;
        match(stream, before);
    }
    give(stream, 0, delta);
    return PD_OK;
}

struct pd_string pd_text_stream_stop(const struct pd_text_stream *stream)
{
    const struct stop_string *stop;

    if (stream->stop < 0)
        return (struct pd_string){"", 0};
    stop = &stream->strings[stream->stop];
    return (struct pd_string){(const char *)stop->bytes, stop->length};
}
