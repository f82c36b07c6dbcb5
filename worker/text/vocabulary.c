/* Tokens in one arena, found through a hash table with open addressing that never holds more than
 * half of its slots. */
#include "worker/text/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "worker/text/hash.h"
#include "worker/text/unicode.h"

/* ---- the alphabet of bytes
 * ------------------------------------------------------------------------ */

/* The byte that a character of the alphabet stands for, or -1. Printable Latin-1 stands for itself; the
 * other 68 bytes, in ascending order, are the characters from U+0100 on. */
static int byte_of(uint32_t character)
{
    if ((character >= 0x21 && character <= 0x7E) || (character >= 0xA1 && character <= 0xAC) ||
        (character >= 0xAE && character <= 0xFF))
        return (int)character;
    if (character >= 0x100 && character <= 0x120)
        return (int)character - 0x100; /* 0x00 to 0x20 */
    if (character >= 0x121 && character <= 0x142)
        return (int)character - 0x121 + 0x7F; /* 0x7F to 0xA0 */
    return character == 0x143 ? 0xAD : -1;
}

size_t pd_unspell(const char *spelling, size_t length, char *out)
{
    size_t at = 0, used = 0;

    while (at < length) {
        uint32_t character;
        size_t step = pd_utf8_decode(spelling + at, length - at, &character);
        int byte = step > 0 ? byte_of(character) : -1;

        if (byte < 0)
            return SIZE_MAX;
        out[used++] = (char)byte;
        at += step;
    }
    return used;
}

size_t pd_text_unmark(const char *text, size_t length, char *out)
{
    size_t at = 0, used = 0;

    while (at < length) {
        if (length - at >= 3 && memcmp(text + at, PD_TEXT_MARK, 3) == 0) {
            out[used++] = ' ';
            at += 3;
        } else {
            out[used++] = text[at++];
        }
    }
    return used;
}

size_t pd_unspell_marks(const char *spelling, size_t length, char *out)
{
    return memchr(spelling, ' ', length) ? SIZE_MAX : pd_text_unmark(spelling, length, out);
}

size_t pd_vocabulary_unspell(const struct pd_vocabulary *vocabulary, const char *spelling,
                             size_t length, char *out)
{
    return vocabulary->marks ? pd_unspell_marks(spelling, length, out)
                             : pd_unspell(spelling, length, out);
}

/* The byte that "<0x41>" stands for, or -1. */
static int spelt_byte(const struct pd_string *token)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *high, *low;

    if (token->length != 6 || memcmp(token->bytes, "<0x", 3) != 0 || token->bytes[5] != '>')
        return -1;
    high = memchr(digits, token->bytes[3], 16);
    low = memchr(digits, token->bytes[4], 16);
    return high && low ? (int)((high - digits) * 16 + (low - digits)) : -1;
}

/* ---- tokens
 * --------------------------------------------------------------------------------------- */

static int check_tokens(const struct pd_tokenizer_spec *spec, size_t *total, struct pd_error *error)
{
    size_t i;

    *total = 0;
    if (spec->token_count == 0 || spec->token_count > PD_VOCABULARY_MAX)
        return pd_fail(error, PD_INVALID, "the vocabulary has %zu tokens, supported are 1 to %d",
                       spec->token_count, PD_VOCABULARY_MAX);
    for (i = 0; i < spec->token_count; i++) {
        const struct pd_string *token = &spec->tokens[i];

        if (spec->kinds[i] > PD_TOKEN_UNUSED)
            return pd_fail(error, PD_INVALID, "token %zu is of the unknown kind %d", i,
                           spec->kinds[i]);
        if (token->length > PD_TOKEN_BYTES_MAX)
            return pd_fail(error, PD_INVALID, "token %zu has %zu bytes, at most %d are supported",
                           i, token->length, PD_TOKEN_BYTES_MAX);
        if (pd_utf8_valid(token->bytes, token->length) < token->length)
            return pd_fail(error, PD_INVALID, "token %zu is not UTF-8", i);
        if (token->length == 0 && spec->kinds[i] != PD_TOKEN_UNUSED)
            return pd_fail(error, PD_INVALID, "token %zu is empty", i);
        *total += token->length;
        if (*total > UINT32_MAX)
            return pd_fail(error, PD_INVALID, "the vocabulary has more than 4 GiB of text");
    }
    return PD_OK;
}

static uint64_t slot_of(const struct pd_vocabulary *vocabulary, const char *bytes, size_t length)
{
    uint64_t slot = pd_hash_bytes(vocabulary->seed, bytes, length) & vocabulary->slot_mask;

    while (vocabulary->slots[slot] >= 0) {
        struct pd_string token = pd_vocabulary_bytes(vocabulary, (size_t)vocabulary->slots[slot]);

        if (token.length == length && memcmp(token.bytes, bytes, length) == 0)
            break;
        slot = (slot + 1) & vocabulary->slot_mask;
    }
    return slot;
}

static int index_token(struct pd_vocabulary *vocabulary, int32_t id, struct pd_error *error)
{
    struct pd_string token = pd_vocabulary_bytes(vocabulary, (size_t)id);
    uint64_t slot = slot_of(vocabulary, token.bytes, token.length);

    if (vocabulary->slots[slot] >= 0)
        return pd_fail(error, PD_INVALID, "tokens %d and %d are equal",
                       (int)vocabulary->slots[slot], (int)id);
    vocabulary->slots[slot] = id;
    if (token.length > vocabulary->longest)
        vocabulary->longest = token.length;
    if (token.length == 1 && !vocabulary->marks)
        vocabulary->byte_ids[(unsigned char)token.bytes[0]] = id;
    return PD_OK;
}

/* Copies one token to the arena's end as the bytes that it stands for. True if it belongs into the
 * index. A normal token with a character outside the alphabet can be decoded, never encoded. */
static bool store_token(struct pd_vocabulary *vocabulary, const struct pd_tokenizer_spec *spec,
                        size_t id)
{
    const struct pd_string *token = &spec->tokens[id];
    char *out = vocabulary->bytes + vocabulary->offsets[id];
    size_t length = SIZE_MAX;

    vocabulary->kinds[id] = spec->kinds[id];
    vocabulary->offsets[id + 1] = vocabulary->offsets[id];
    if (spec->kinds[id] == PD_TOKEN_UNUSED)
        return false;
    if (vocabulary->marks && spec->kinds[id] == PD_TOKEN_NORMAL && spelt_byte(token) >= 0) {
        *out = (char)spelt_byte(token);
        vocabulary->byte_ids[spelt_byte(token)] = (int32_t)id;
        vocabulary->offsets[id + 1]++;
        return false;
    }
    if (spec->kinds[id] == PD_TOKEN_NORMAL)
        length = pd_vocabulary_unspell(vocabulary, token->bytes, token->length, out);
    if (length == SIZE_MAX) {
        memcpy(out, token->bytes, token->length);
        vocabulary->offsets[id + 1] += (uint32_t)token->length;
        return false;
    }
    vocabulary->offsets[id + 1] += (uint32_t)length;
    return true;
}

/* With marks every character must have a spelling. */
static int check_bytes(const struct pd_vocabulary *vocabulary, struct pd_error *error)
{
    for (int byte = 0; vocabulary->marks && byte < 256; byte++)
        if (vocabulary->byte_ids[byte] < 0)
            return pd_fail(
                error, PD_UNSUPPORTED,
                "the vocabulary has no token <0x%02X>: SentencePiece's without tokens of all "
                "bytes are not supported",
                (unsigned)byte);
    return PD_OK;
}

int pd_vocabulary_init(struct pd_vocabulary *vocabulary, const struct pd_tokenizer_spec *spec,
                       struct pd_error *error)
{
    size_t total, i, slots;
    int status = check_tokens(spec, &total, error);

    memset(vocabulary, 0, sizeof *vocabulary);
    if (status != PD_OK)
        return status;
    slots = pd_hash_slots(spec->token_count);
    vocabulary->count = spec->token_count;
    vocabulary->marks = spec->marks;
    vocabulary->slot_mask = slots - 1;
    vocabulary->seed = pd_hash_seed();
    vocabulary->kinds = malloc(spec->token_count);
    vocabulary->offsets = calloc(spec->token_count + 1, sizeof *vocabulary->offsets);
    vocabulary->bytes = malloc(total + 1);
    vocabulary->slots = malloc(slots * sizeof *vocabulary->slots);
    if (!vocabulary->kinds || !vocabulary->offsets || !vocabulary->bytes || !vocabulary->slots) {
        pd_vocabulary_free(vocabulary);
        return pd_fail(error, PD_NO_MEMORY, "no memory for a vocabulary of %zu tokens",
                       spec->token_count);
    }
    memset(vocabulary->slots, -1, slots * sizeof *vocabulary->slots);
    memset(vocabulary->byte_ids, -1, sizeof vocabulary->byte_ids);
    for (i = 0; i < spec->token_count && status == PD_OK; i++)
        if (store_token(vocabulary, spec, i))
            status = index_token(vocabulary, (int32_t)i, error);
    if (status == PD_OK)
        status = check_bytes(vocabulary, error);
    if (status != PD_OK)
        pd_vocabulary_free(vocabulary);
    return status;
}

void pd_vocabulary_free(struct pd_vocabulary *vocabulary)
{
    free(vocabulary->kinds);
    free(vocabulary->offsets);
    free(vocabulary->bytes);
    free(vocabulary->slots);
    memset(vocabulary, 0, sizeof *vocabulary);
}

int32_t pd_vocabulary_find(const struct pd_vocabulary *vocabulary, const char *bytes, size_t length)
{
    if (length > vocabulary->longest)
        return -1;
    return vocabulary->slots[slot_of(vocabulary, bytes, length)];
}
