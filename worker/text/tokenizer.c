/* The tokenizer's own part is the order of things; each step is a file of its own.
 *
 *     text          added.c            normalizer.c   pretokenizer.c      bpe.c
 *     ──────────────┬──────────────────┬──────────────┬───────────────────┬─────────
 *     <|im_start|>  │ special ─────────┼──────────────┼───────────────────┼▶ 1
 *     user\nHéllo   │ text between ───▶│ NFC ────────▶│ user, \n, Héllo ─▶│▶ 4093, 198, ...
 */
#include "worker/text/tokenizer.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "worker/text/added.h"
#include "worker/text/bpe.h"
#include "worker/text/normalizer.h"
#include "worker/text/pretokenizer.h"
#include "worker/text/regex.h"
#include "worker/text/unicode.h"
#include "worker/text/vocabulary.h"

enum { TEXT_MAX = 256 << 20 };

static const char digits_regex[] = "\\p{N}";

struct pd_tokenizer {
    struct pd_vocabulary vocabulary;
    struct pd_added added;
    struct pd_bpe *bpe;
    struct pd_pretokenizer *pretokenizer;
    struct pd_normalizer *normalizer; /* NULL: none */
    enum pd_mark mark;
    bool add_bos;
    int32_t bos_id, eos_id;
    uint8_t digest[32];
};

/* ---- making
 * ---------------------------------------------------------------------------------------- */

/* The pre-tokeniser's expressions in their order; the digits' comes first. */
struct regex_list {
    struct pd_string regexes[PD_REGEX_COUNT_MAX];
    size_t count;
};

static int list_regexes(const struct pd_tokenizer_spec *spec, struct regex_list *list,
                        struct pd_error *error)
{
    list->count = 0;
    if (spec->digits_alone)
        list->regexes[list->count++] = (struct pd_string){digits_regex, sizeof digits_regex - 1};
    if (spec->regex_count > PD_REGEX_COUNT_MAX - list->count)
        return pd_fail(error, PD_UNSUPPORTED,
                       "the pre-tokeniser has %zu expressions, at most %d are supported",
                       spec->regex_count, PD_REGEX_COUNT_MAX);
    if (spec->regex_count > 0)
        memcpy(list->regexes + list->count, spec->regexes,
               spec->regex_count * sizeof *spec->regexes);
    list->count += spec->regex_count;
    return PD_OK;
}

static int check_bos_and_eos(const struct pd_tokenizer_spec *spec, struct pd_error *error)
{
    if (spec->bos_id < -1 || spec->bos_id >= (int64_t)spec->token_count)
        return pd_fail(error, PD_INVALID, "the begin token %d is not in the vocabulary",
                       (int)spec->bos_id);
    if (spec->eos_id < -1 || spec->eos_id >= (int64_t)spec->token_count)
        return pd_fail(error, PD_INVALID, "the end token %d is not in the vocabulary",
                       (int)spec->eos_id);
    if (spec->add_bos && spec->bos_id < 0)
        return pd_fail(error, PD_INVALID, "a begin token is to be added, but none is named");
    return PD_OK;
}

static int check_marks(const struct pd_tokenizer_spec *spec, struct pd_error *error)
{
    if (spec->marks &&
        (spec->regex_count > 0 || spec->digits_alone || spec->nfc || spec->ignore_merges))
        return pd_fail(
            error, PD_UNSUPPORTED,
            "SentencePiece's tokens together with expressions, NFC or ignore_merges are not "
            "supported");
    return PD_OK;
}

static void digest_string(EVP_MD_CTX *context, struct pd_string string)
{
    uint64_t length = string.length;

    EVP_DigestUpdate(context, &length, sizeof length);
    EVP_DigestUpdate(context, string.bytes, string.length);
}

/* The canonical form: a version, the flags (with marks one more), the tokens' kinds and bytes up to the last that is
 * used, the expressions and the merges; each list with its length before it. */
static int compute_digest(struct pd_tokenizer *tokenizer, const struct pd_tokenizer_spec *spec,
                          const struct regex_list *list, struct pd_error *error)
{
    static const char version[] = "pd tokenizer 1, " PD_UNICODE_TABLES;
    const struct pd_vocabulary *vocabulary = &tokenizer->vocabulary;
    uint8_t flags[4] = {spec->nfc, spec->ignore_merges, spec->add_bos,
                        (uint8_t)(0x80 | spec->mark)};
    int32_t bos = spec->add_bos ? spec->bos_id : -1;
    uint64_t counts[3] = {vocabulary->count, list->count, spec->merge_count};
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    size_t i;
    int done;

    while (counts[0] > 0 && vocabulary->kinds[counts[0] - 1] == PD_TOKEN_UNUSED)
        counts[0]--;
    if (!context || EVP_DigestInit_ex(context, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(context);
        return pd_fail(error, PD_NO_MEMORY, "no memory for the tokenizer's digest");
    }
    EVP_DigestUpdate(context, version, sizeof version);
    EVP_DigestUpdate(context, flags, spec->marks ? 4 : 3);
    EVP_DigestUpdate(context, &bos, sizeof bos);
    EVP_DigestUpdate(context, counts, sizeof counts);
    for (i = 0; i < counts[0]; i++) {
        EVP_DigestUpdate(context, &vocabulary->kinds[i], 1);
        digest_string(context, pd_vocabulary_bytes(vocabulary, i));
    }
    for (i = 0; i < list->count; i++)
        digest_string(context, list->regexes[i]);
    for (i = 0; i < spec->merge_count; i++)
        digest_string(context, spec->merges[i]);
    done = EVP_DigestFinal_ex(context, tokenizer->digest, NULL);
    EVP_MD_CTX_free(context);
    return done == 1 ? PD_OK : pd_fail(error, PD_IO, "SHA-256 failed in libcrypto");
}

static int build(struct pd_tokenizer *tokenizer, const struct pd_tokenizer_spec *spec,
                 struct pd_error *error)
{
    struct regex_list list;
    int status = list_regexes(spec, &list, error);

    if (status == PD_OK)
        status = check_bos_and_eos(spec, error);
    if (status == PD_OK)
        status = check_marks(spec, error);
    if (status == PD_OK)
        status = pd_vocabulary_init(&tokenizer->vocabulary, spec, error);
    if (status == PD_OK)
        status = pd_added_init(&tokenizer->added, &tokenizer->vocabulary, error);
    if (status == PD_OK)
        status = pd_bpe_create(&tokenizer->vocabulary, spec->merges, spec->merge_count,
                               spec->ignore_merges, &tokenizer->bpe, error);
    if (status == PD_OK)
        status = pd_pretokenizer_create(list.regexes, list.count, &tokenizer->pretokenizer, error);
    if (status == PD_OK && spec->nfc)
        status = pd_normalizer_create(&tokenizer->normalizer, error);
    if (status == PD_OK)
        status = compute_digest(tokenizer, spec, &list, error);
    tokenizer->mark = spec->mark;
    tokenizer->add_bos = spec->add_bos;
    tokenizer->bos_id = spec->bos_id;
    tokenizer->eos_id = spec->eos_id;
    return status;
}

int pd_tokenizer_create(const struct pd_tokenizer_spec *spec, struct pd_tokenizer **tokenizer,
                        struct pd_error *error)
{
    struct pd_tokenizer *made = calloc(1, sizeof *made);
    int status;

    if (!made)
        return pd_fail(error, PD_NO_MEMORY, "no memory for a tokenizer");
    status = build(made, spec, error);
    if (status != PD_OK) {
        pd_tokenizer_destroy(made);
        return status;
    }
    *tokenizer = made;
    return PD_OK;
}

void pd_tokenizer_destroy(struct pd_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    pd_normalizer_destroy(tokenizer->normalizer);
    pd_pretokenizer_destroy(tokenizer->pretokenizer);
    pd_bpe_destroy(tokenizer->bpe);
    pd_added_free(&tokenizer->added);
    pd_vocabulary_free(&tokenizer->vocabulary);
    free(tokenizer);
}

/* ---- encoding
 * -------------------------------------------------------------------------------------- */

struct encoder {
    const struct pd_tokenizer *tokenizer;
    struct pd_bpe_work work;
    struct pd_normalized normalized;
    size_t limit;
    struct pd_tokens *out;
    struct pd_error *error;
};

/* Turns a status into an error with words; pieces of the tokenizer that are called for every piece
 * of text return bare ones. */
static int explain(struct encoder *encoder, int status)
{
    if (status == PD_FULL)
        return pd_fail(encoder->error, PD_FULL, "the text has more than %zu tokens",
                       encoder->limit);
    if (status == PD_NO_MEMORY)
        return pd_fail(encoder->error, PD_NO_MEMORY, "no memory to encode text");
    return status;
}

static int encode_piece(void *context, const char *bytes, size_t length)
{
    struct encoder *encoder = context;

    return explain(encoder, pd_bpe_encode(encoder->tokenizer->bpe, &encoder->work, bytes, length,
                                          encoder->limit, encoder->out));
}

static bool gets_mark(enum pd_mark mark, bool first, char beginning)
{
    switch (mark) {
    case PD_MARK_ALWAYS:
        return true;
    case PD_MARK_MISSING:
        return beginning != ' ';
    case PD_MARK_FIRST:
        return first && beginning != ' ';
    case PD_MARK_NONE:
        break;
    }
    return false;
}

/* The whole text is one piece: merges do not go beyond a word unless there is a token that does. */
static int encode_marked(struct encoder *encoder, const char *text, size_t length, bool first)
{
    struct pd_normalized *marked = &encoder->normalized;

    if (marked->capacity < length + 1) {
        free(marked->bytes);
        marked->capacity = 0;
        marked->bytes = malloc(length + 1);
        if (!marked->bytes)
            return explain(encoder, PD_NO_MEMORY);
        marked->capacity = length + 1;
    }
    marked->bytes[0] = ' ';
    marked->length = 1 + pd_text_unmark(text, length, marked->bytes + 1);
    text = marked->bytes + 1;
    if (gets_mark(encoder->tokenizer->mark, first, text[0]))
        text--;
    return encode_piece(encoder, text, (size_t)(marked->bytes + marked->length - text));
}

/* Encodes text between added tokens; `first`: before all of them. */
static int encode_plain(struct encoder *encoder, const char *text, size_t length, bool first)
{
    const struct pd_tokenizer *tokenizer = encoder->tokenizer;
    bool changed = false;
    int status = PD_OK;

    if (length == 0)
        return PD_OK;
    if (tokenizer->vocabulary.marks)
        return encode_marked(encoder, text, length, first);
    if (tokenizer->normalizer)
        status = pd_normalize(tokenizer->normalizer, text, length, &encoder->normalized, &changed);
    if (status != PD_OK)
        return explain(encoder, status);
    if (changed) {
        text = encoder->normalized.bytes;
        length = encoder->normalized.length;
    }
    return pd_pretokenizer_split(tokenizer->pretokenizer, text, length, encode_piece, encoder,
                                 encoder->error);
}

/* Encodes the text, looking for added tokens only between the literal spans. */
static int encode_text(struct encoder *encoder, const char *text, size_t length,
                       const struct pd_span *literal, size_t literal_count)
{
    const struct pd_tokenizer *tokenizer = encoder->tokenizer;
    size_t done = 0, at = 0, span = 0;
    int status = PD_OK;

    while (at < length && status == PD_OK) {
        size_t end;
        int32_t id;

        while (span < literal_count && literal[span].length == 0)
            span++;
        end = span < literal_count ? literal[span].first : length;
        id = pd_added_next(&tokenizer->added, &tokenizer->vocabulary, text, &at, end);
        if (id < 0) { /* on behind the span */
            at = span < literal_count ? end + literal[span].length : length;
            span++;
            continue;
        }
        status = encode_plain(encoder, text + done, at - done, done == 0);
        if (status == PD_OK)
            status = explain(encoder, pd_tokens_append(encoder->out, id, encoder->limit));
        at += pd_vocabulary_bytes(&tokenizer->vocabulary, (size_t)id).length;
        done = at;
    }
    return status == PD_OK ? encode_plain(encoder, text + done, length - done, done == 0) : status;
}

static int check_text(const char *text, size_t length, const struct pd_span *literal,
                      size_t literal_count, struct pd_error *error)
{
    size_t valid, i, end = 0;

    if (length > TEXT_MAX)
        return pd_fail(error, PD_INVALID, "a text of %zu bytes, at most %d are supported", length,
                       TEXT_MAX);
    valid = pd_utf8_valid(text, length);
    if (valid < length)
        return pd_fail(error, PD_INVALID, "the text is not UTF-8 at byte %zu", valid);
    for (i = 0; i < literal_count; i++) {
        if (literal[i].first < end || literal[i].first > length ||
            literal[i].length > length - literal[i].first)
            return pd_fail(error, PD_INVALID, "literal span %zu is not in order or not in the text",
                           i);
        end = literal[i].first + literal[i].length;
    }
    return PD_OK;
}

/* Whether the text begins with the begin token, written by the template. */
static bool begins_with_bos(const struct pd_tokenizer *tokenizer, const char *text, size_t length,
                            const struct pd_span *literal, size_t literal_count)
{
    size_t at = 0, end = literal_count > 0 ? literal[0].first : length;

    return pd_added_next(&tokenizer->added, &tokenizer->vocabulary, text, &at, end) ==
               tokenizer->bos_id &&
           at == 0;
}

int pd_tokenizer_encode(const struct pd_tokenizer *tokenizer, const char *text, size_t length,
                        const struct pd_span *literal, size_t literal_count, size_t limit,
                        struct pd_tokens *out, struct pd_error *error)
{
    struct encoder encoder = {.tokenizer = tokenizer, .limit = limit, .out = out, .error = error};
    int status = check_text(text, length, literal, literal_count, error);

    if (status == PD_OK && tokenizer->add_bos &&
        !begins_with_bos(tokenizer, text, length, literal, literal_count))
        status = explain(&encoder, pd_tokens_append(out, tokenizer->bos_id, limit));
    if (status == PD_OK)
        status = encode_text(&encoder, text, length, literal, literal_count);
    pd_bpe_work_free(&encoder.work);
    pd_normalized_free(&encoder.normalized);
    return status;
}

void pd_tokens_free(struct pd_tokens *tokens)
{
    free(tokens->ids);
    memset(tokens, 0, sizeof *tokens);
}

/* ---- looking up
 * ------------------------------------------------------------------------------------ */

size_t pd_tokenizer_vocabulary(const struct pd_tokenizer *tokenizer)
{
    return tokenizer->vocabulary.count;
}

int32_t pd_tokenizer_eos(const struct pd_tokenizer *tokenizer)
{
    return tokenizer->eos_id;
}

int32_t pd_tokenizer_bos(const struct pd_tokenizer *tokenizer)
{
    return tokenizer->bos_id;
}

enum pd_token_kind pd_tokenizer_kind(const struct pd_tokenizer *tokenizer, int32_t id)
{
    if (id < 0 || (size_t)id >= tokenizer->vocabulary.count)
        return PD_TOKEN_UNUSED;
    return tokenizer->vocabulary.kinds[id];
}

bool pd_tokenizer_has_marks(const struct pd_tokenizer *tokenizer)
{
    return tokenizer->vocabulary.marks;
}

int32_t pd_tokenizer_find(const struct pd_tokenizer *tokenizer, const char *text, size_t length)
{
    return pd_added_find(&tokenizer->added, &tokenizer->vocabulary, text, length);
}

struct pd_string pd_tokenizer_bytes(const struct pd_tokenizer *tokenizer, int32_t id)
{
    if (id < 0 || (size_t)id >= tokenizer->vocabulary.count)
        return (struct pd_string){"", 0};
    return pd_vocabulary_bytes(&tokenizer->vocabulary, (size_t)id);
}

void pd_tokenizer_digest(const struct pd_tokenizer *tokenizer, uint8_t digest[32])
{
    memcpy(digest, tokenizer->digest, sizeof tokenizer->digest);
}
