/* A text room that can be followed by hand: a token is a byte, "<s>" is special where no user wrote it,
 * and the template is "<s>role:content\n" per message. The role evil is refused, the role slow takes a
 * fifth of a second. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "t/link/fakes.h"

struct pd_tokenizer {
    int unused;
};

struct pd_chat_template {
    int unused;
};

struct pd_text_stream {
    size_t stops;
};

static struct pd_tokenizer tokenizer;
static struct pd_chat_template template;

const struct pd_tokenizer *fake_tokenizer(void)
{
    return &tokenizer;
}

const struct pd_chat_template *fake_template(void)
{
    return &template;
}

/* ---- tokenizer ----------------------------------------------------------------------------------
 */

static bool is_literal(const struct pd_span *spans, size_t count, size_t at)
{
    for (size_t i = 0; i < count; i++)
        if (at >= spans[i].first && at - spans[i].first < spans[i].length)
            return true;
    return false;
}

int pd_tokenizer_encode(const struct pd_tokenizer *ignored, const char *text, size_t length,
                        const struct pd_span *literal, size_t literal_count, size_t limit,
                        struct pd_tokens *out, struct pd_error *error)
{
    (void)ignored;
    out->capacity = out->count + (length < limit ? length : limit) + 1;
    out->ids = realloc(out->ids, out->capacity * sizeof(*out->ids));
    for (size_t at = 0; at < length; at++) {
        bool special = text[at] == '<' && at + 3 <= length && !memcmp(text + at, "<s>", 3) &&
                       !is_literal(literal, literal_count, at) &&
                       !is_literal(literal, literal_count, at + 2);

        if ((unsigned char)text[at] == 0xff)
            return pd_fail(error, PD_INVALID, "invalid UTF-8 at byte %zu", at);
        if (out->count >= limit)
            return pd_fail(error, PD_FULL, "more than %zu tokens", limit);
        out->ids[out->count++] = special ? FAKE_BOS : (unsigned char)text[at];
        if (special)
            at += 2;
    }
    return PD_OK;
}

void pd_tokens_free(struct pd_tokens *tokens)
{
    free(tokens->ids);
    memset(tokens, 0, sizeof(*tokens));
}

int32_t pd_tokenizer_eos(const struct pd_tokenizer *ignored)
{
    (void)ignored;
    return FAKE_EOS;
}

int32_t pd_tokenizer_bos(const struct pd_tokenizer *ignored)
{
    (void)ignored;
    return FAKE_BOS;
}

struct pd_string pd_tokenizer_bytes(const struct pd_tokenizer *ignored, int32_t id)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz{|}~";

    (void)ignored;
    if (id == FAKE_BOS)
        return (struct pd_string){"<s>", 3};
    if (id < 'a' || id > '~')
        return (struct pd_string){"", 0};
    return (struct pd_string){&letters[id - 'a'], 1};
}

/* ---- template -----------------------------------------------------------------------------------
 */

struct text {
    struct pd_rendered *out;
    size_t capacity;
};

static void put(struct text *text, struct pd_string string, bool literal)
{
    struct pd_rendered *out = text->out;

    while (out->length + string.length > text->capacity) {
        text->capacity = text->capacity ? 2 * text->capacity : 256;
        out->text = realloc(out->text, text->capacity);
    }
    if (string.length)
        memcpy(out->text + out->length, string.bytes, string.length);
    if (literal && string.length) {
        out->literal = realloc(out->literal, (out->literal_count + 1) * sizeof(*out->literal));
        out->literal[out->literal_count++] = (struct pd_span){out->length, string.length};
    }
    out->length += string.length;
}

static void put_text(struct text *text, const char *bytes)
{
    put(text, (struct pd_string){bytes, strlen(bytes)}, false);
}

int pd_chat_template_render(const struct pd_chat_template *ignored,
                            const struct pd_chat_input *input, size_t limit,
                            struct pd_rendered *out, struct pd_error *error)
{
    struct text text = {out, 0};

    (void)ignored;
    memset(out, 0, sizeof(*out));
    for (size_t i = 0; i < input->message_count; i++) {
        const struct pd_chat_message *message = &input->messages[i];

        if (message->role.length == 4 && !memcmp(message->role.bytes, "evil", 4)) {
            pd_rendered_free(out);
            return pd_fail(error, PD_INVALID, "the template knows no role evil");
        }
        if (message->role.length == 4 && !memcmp(message->role.bytes, "slow", 4))
            nanosleep(&(struct timespec){0, 200000000}, NULL);
        put(&text, input->bos_token, false);
        put(&text, message->role, true);
        put_text(&text, ":");
        put(&text, message->content, true);
        put_text(&text, "\n");
    }
    if (input->tools.length) {
        put_text(&text, "tools:");
        put(&text, input->tools, true);
    }
    if (input->add_generation_prompt)
        put_text(&text, "<s>assistant:");
    if (out->length > limit) {
        pd_rendered_free(out);
        return pd_fail(error, PD_INVALID, "the rendered prompt is too long");
    }
    return PD_OK;
}

void pd_rendered_free(struct pd_rendered *rendered)
{
    free(rendered->text);
    free(rendered->literal);
    memset(rendered, 0, sizeof(*rendered));
}

/* ---- stream -------------------------------------------------------------------------------------
 */

int pd_text_stream_create(const struct pd_tokenizer *ignored, const struct pd_stop_rules *stop,
                          struct pd_text_stream **stream, struct pd_error *error)
{
    (void)ignored;
    (void)error;
    *stream = calloc(1, sizeof(**stream));
    (*stream)->stops = stop->count;
    return PD_OK;
}

void pd_text_stream_destroy(struct pd_text_stream *stream)
{
    free(stream);
}
