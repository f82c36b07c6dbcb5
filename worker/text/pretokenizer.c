/* The text is first spelt in the expressions' alphabet, one byte for each character (ASCII text is
 * its own spelling), and matched there. Pieces leave from left to right without a gap, so one
 * cursor in the text is enough to find the bytes of each. */
#include "worker/text/pretokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "worker/text/regex.h"

struct pd_pretokenizer {
    struct pd_alphabet alphabet;
    pcre2_code *codes[PD_REGEX_COUNT_MAX];
    size_t count;
};

int pd_pretokenizer_create(const struct pd_string *regexes, size_t count,
                           struct pd_pretokenizer **pretokenizer, struct pd_error *error)
{
    struct pd_pretokenizer *made = calloc(1, sizeof *made);
    int status;

    if (!made)
        return pd_fail(error, PD_NO_MEMORY, "no memory for the pre-tokeniser");
    status = pd_regexes_compile(regexes, count, &made->alphabet, made->codes, error);
    if (status != PD_OK) {
        free(made);
        return status;
    }
    made->count = count;
    *pretokenizer = made;
    return PD_OK;
}

void pd_pretokenizer_destroy(struct pd_pretokenizer *pretokenizer)
{
    size_t i;

    if (!pretokenizer)
        return;
    for (i = 0; i < pretokenizer->count; i++)
        pcre2_code_free(pretokenizer->codes[i]);
    pd_alphabet_free(&pretokenizer->alphabet);
    free(pretokenizer);
}

enum {
    STEPS = 10 * 1000 * 1000, /* of one match, whatever the text */
    STEPS_PER_SYMBOL = 8,     /* and for a long run that an expression goes back over */
};

/* ---- one split
 * ----------------------------------------------------------------------------------- */

struct split {
    const struct pd_pretokenizer *rules;
    const char *cursor; /* in the text: where the next piece begins */
    bool ascii;         /* one byte of text for each symbol */
    pcre2_match_data *found;
    pcre2_match_context *limits;
    pd_piece_fn piece;
    void *context;
    struct pd_error *error;
};

static int give_piece(struct split *split, size_t symbols)
{
    const char *first = split->cursor, *end = first;

    if (split->ascii)
        end += symbols;
    else
        for (; symbols > 0; symbols--)
            end += pd_utf8_length(*end);
    split->cursor = end;
    return split->piece(split->context, first, (size_t)(end - first));
}

/* Finds the next match at or behind `from`: 1, 0 if there is none, or an error's status. */
static int find_match(struct split *split, size_t level, const uint8_t *symbols, size_t count,
                      size_t from)
{
    const pcre2_code *code = split->rules->codes[level];
    int result = pcre2_match(code, symbols, count, from, 0, split->found, split->limits);

    if (result == PCRE2_ERROR_JIT_STACKLIMIT)
        result = pcre2_match(code, symbols, count, from, PCRE2_NO_JIT, split->found, split->limits);
    if (result >= 0)
        return 1;
    if (result == PCRE2_ERROR_NOMATCH)
        return 0;
    if (result == PCRE2_ERROR_NOMEMORY)
        return pd_fail(split->error, PD_NO_MEMORY, "no memory to split text");
    return pd_fail(
        split->error, PD_INVALID,
        "pre-tokeniser expression %zu needs too many steps on this text (PCRE2 error %d)",
        level + 1, result);
}

/* Splits symbols[0..count) by the expressions from `level` on. */
static int split_part(struct split *split, size_t level, const uint8_t *symbols, size_t count)
{
    size_t done = 0;
    int status = PD_OK;

    if (level == split->rules->count)
        return count > 0 ? give_piece(split, count) : PD_OK;
    while (done < count && status == PD_OK) {
        const PCRE2_SIZE *match = pcre2_get_ovector_pointer(split->found);
        size_t first = count, end = count;
        int found = find_match(split, level, symbols, count, done);

        if (found < 0)
            return found;
        if (found > 0) {
            first = match[0];
            end = match[1];
        }
        if (first > done)
            status = split_part(split, level + 1, symbols + done, first - done);
        if (end > first && status == PD_OK)
            status = split_part(split, level + 1, symbols + first, end - first);
        done = end;
    }
    return status;
}

static uint32_t steps_for(size_t symbols)
{
    uint64_t steps = STEPS + (uint64_t)STEPS_PER_SYMBOL * symbols;

    return steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX;
}

static void spell(const struct pd_alphabet *alphabet, const char *text, size_t length,
                  uint8_t *symbols, size_t *count)
{
    const char *end = text + length;
    uint8_t *out = symbols;

    while (text < end)
        if ((unsigned char)*text < 0x80)
            *out++ = (uint8_t)*text++;
        else
            *out++ = pd_alphabet_symbol(alphabet, pd_utf8_next(&text));
    *count = (size_t)(out - symbols);
}

int pd_pretokenizer_split(const struct pd_pretokenizer *pretokenizer, const char *text,
                          size_t length, pd_piece_fn piece, void *context, struct pd_error *error)
{
    struct split split = {.rules = pretokenizer,
                          .cursor = text,
                          .ascii = pd_ascii_prefix(text, length) == length,
                          .found = pcre2_match_data_create(1, NULL),
                          .limits = pcre2_match_context_create(NULL),
                          .piece = piece,
                          .context = context,
                          .error = error};
    uint8_t *spelling = split.ascii ? NULL : malloc(length);
    const uint8_t *symbols = split.ascii ? (const uint8_t *)text : spelling;
    size_t count = length;
    int status;

    if (!split.found || !split.limits || !symbols) {
        status = pd_fail(error, PD_NO_MEMORY, "no memory to split text");
    } else {
        if (!split.ascii)
            spell(&pretokenizer->alphabet, text, length, spelling, &count);
        pcre2_set_match_limit(split.limits, steps_for(count));
        status = split_part(&split, 0, symbols, count);
    }
    free(spelling);
    pcre2_match_context_free(split.limits);
    pcre2_match_data_free(split.found);
    return status;
}
