/* Reads a tokenizer.json into a spec.
 *
 * The file is a program for Hugging Face's `tokenizers`: a pipeline of typed steps. Every step that
 * changes ids is either understood or refused with its path and type; nothing is skipped because it
 * is rare. "truncation" and "padding" shape batches, not ids, and are not read.
 *
 *     normalizer ─▶ pre_tokenizer ─▶ model ─▶ post_processor ─▶ decoder
 *        NFC       Digits, Split,    BPE      begin token        ByteLevel
 *                   ByteLevel
 *
 * or, with SentencePiece's tokens, the mark before words put there by one of two steps:
 *
 *     Prepend, Replace    none       BPE      begin token        Replace, ByteFallback, Fuse, Strip
 *        none           Metaspace   with bytes
 */
#include "worker/text/tokenizer.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "worker/text/bpe.h"
#include "worker/text/regex.h"
#include "worker/text/unicode.h"
#include "worker/text/vocabulary.h"

enum { JSON_MAX = 512 << 20, STEPS_MAX = 16 };

/* What a ByteLevel step with "use_regex" splits by: GPT-2's expression. */
static const char byte_level_regex[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Texts of the spec are borrowed from the parsed files; the arrays are the reader's. */
struct reader {
    json_t *root, *config;
    struct pd_tokenizer_spec spec;
    struct pd_string *tokens;
    uint8_t *kinds;
    struct pd_string *merges;
    char *merge_text; /* of merges given as pairs */
    struct pd_string regexes[PD_REGEX_COUNT_MAX];
    bool byte_level;             /* the pre-tokeniser's last step */
    bool normalizes;             /* the normalizer changes text */
    bool byte_fallback, unmarks; /* steps of the decoder */
    struct pd_error *error;
};

/* ---- small readers
 * --------------------------------------------------------------------------------- */

static struct pd_string text_of(const json_t *string)
{
    return (struct pd_string){json_string_value(string), json_string_length(string)};
}

/* The "type" of a step, "" if it has none. */
static const char *type_of(const json_t *step)
{
    const char *type = json_string_value(json_object_get(step, "type"));

    return type ? type : "";
}

/* A flag; `fallback` where it is absent, null or no boolean. */
static bool flag(const json_t *object, const char *key, bool fallback)
{
    const json_t *value = json_object_get(object, key);

    return json_is_boolean(value) ? json_is_true(value) : fallback;
}

/* Whether a field is absent, null, "" or false: not in use. */
static bool unused(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_number(value) && json_number_value(value) == 0);
}

static int unsupported_step(struct reader *reader, const char *part, const json_t *step)
{
    return pd_fail(reader->error, PD_UNSUPPORTED,
                   "tokenizer.json: %s of type \"%.64s\" is not supported", part, type_of(step));
}

static int unsupported_option(struct reader *reader, const char *part, const char *option)
{
    return pd_fail(reader->error, PD_UNSUPPORTED, "tokenizer.json: %s with \"%s\" is not supported",
                   part, option);
}

/* Calls read() for a step, or for each step of a Sequence, whose steps are in `list`. */
static int read_steps(struct reader *reader, const json_t *step, const char *list,
                      int (*read)(struct reader *reader, const json_t *step))
{
    const json_t *steps = json_object_get(step, list);
    size_t i;
    int status = PD_OK;

    if (!step || json_is_null(step))
        return PD_OK;
    if (strcmp(type_of(step), "Sequence") != 0)
        return read(reader, step);
    if (!json_is_array(steps) || json_array_size(steps) > STEPS_MAX)
        return pd_fail(reader->error, PD_INVALID,
                       "tokenizer.json: a Sequence needs 0 to %d steps in \"%s\"", STEPS_MAX, list);
    for (i = 0; i < json_array_size(steps) && status == PD_OK; i++)
        status = read(reader, json_array_get(steps, i));
    return status;
}

/* ---- vocabulary
 * ------------------------------------------------------------------------------------ */

/* Reads an id, a JSON integer, and checks its bound. */
static int read_id(struct reader *reader, const json_t *value, const char *what, size_t *id)
{
    json_int_t number = json_integer_value(value);

    if (!json_is_integer(value) || number < 0 || number >= PD_VOCABULARY_MAX)
        return pd_fail(reader->error, PD_INVALID,
                       "tokenizer.json: the id of \"%.64s\" is no integer from 0 to %d", what,
                       PD_VOCABULARY_MAX - 1);
    *id = (size_t)number;
    return PD_OK;
}

/* Makes room for ids below `count`; new ones are unused. */
static int reserve_tokens(struct reader *reader, size_t count)
{
    struct pd_tokenizer_spec *spec = &reader->spec;
    struct pd_string *tokens;
    uint8_t *kinds;

    if (count <= spec->token_count)
        return PD_OK;
    tokens = realloc(reader->tokens, count * sizeof *tokens);
    if (tokens)
        reader->tokens = tokens;
    kinds = realloc(reader->kinds, count);
    if (kinds)
        reader->kinds = kinds;
    if (!tokens || !kinds)
        return pd_fail(reader->error, PD_NO_MEMORY, "no memory for %zu tokens", count);
    memset(tokens + spec->token_count, 0, (count - spec->token_count) * sizeof *tokens);
    memset(kinds + spec->token_count, PD_TOKEN_UNUSED, count - spec->token_count);
    spec->tokens = tokens;
    spec->kinds = kinds;
    spec->token_count = count;
    return PD_OK;
}

static int read_vocabulary(struct reader *reader, json_t *vocabulary)
{
    const char *key;
    json_t *value;
    size_t length, id = 0, highest = 0;
    int status = PD_OK;

    if (!json_is_object(vocabulary) || json_object_size(vocabulary) == 0)
        return pd_fail(reader->error, PD_INVALID,
                       "tokenizer.json: model.vocab is no object or empty");
    json_object_foreach(vocabulary, key, value)
    {
        if (read_id(reader, value, key, &id) != PD_OK)
            return PD_INVALID;
        if (id > highest)
            highest = id;
    }
    status = reserve_tokens(reader, highest + 1);
    if (status != PD_OK)
        return status;
    json_object_keylen_foreach(vocabulary, key, length, value)
    {
        id = (size_t)json_integer_value(value);
        if (reader->kinds[id] != PD_TOKEN_UNUSED)
            return pd_fail(reader->error, PD_INVALID, "tokenizer.json: two tokens have the id %zu",
                           id);
        reader->tokens[id] = (struct pd_string){key, length};
        reader->kinds[id] = PD_TOKEN_NORMAL;
    }
    return PD_OK;
}

/* Enters an added token, described by `token` ({"content", "special", ...}). */
static int add_token(struct reader *reader, const json_t *token, size_t id)
{
    static const char *const options[] = {"single_word", "lstrip", "rstrip"};
    const json_t *content = json_object_get(token, "content");
    const json_t *vocabulary = json_object_get(json_object_get(reader->root, "model"), "vocab");
    const json_t *before;
    struct pd_string text, *slot;
    size_t i;

    if (!json_is_string(content) || json_string_length(content) == 0)
        return pd_fail(reader->error, PD_INVALID, "tokenizer.json: added token %zu has no content",
                       id);
    text = text_of(content);
    for (i = 0; i < sizeof options / sizeof options[0]; i++)
        if (flag(token, options[i], false))
            return pd_fail(reader->error, PD_UNSUPPORTED,
                           "tokenizer.json: added token \"%.64s\" with \"%s\" is not supported",
                           text.bytes, options[i]);
    if (flag(token, "normalized", !flag(token, "special", false)) && reader->normalizes)
        return pd_fail(reader->error, PD_UNSUPPORTED,
                       "tokenizer.json: added token \"%.64s\" with \"normalized\" is not supported "
                       "where there is a normalizer",
                       text.bytes);
    if (reserve_tokens(reader, id + 1) != PD_OK)
        return PD_NO_MEMORY;
    slot = &reader->tokens[id];
    before = json_object_getn(vocabulary, text.bytes, text.length);
    if ((before && json_integer_value(before) != (json_int_t)id) ||
        (slot->length > 0 &&
         (slot->length != text.length || memcmp(slot->bytes, text.bytes, text.length) != 0)))
        return pd_fail(
            reader->error, PD_INVALID,
            "tokenizer.json: added token \"%.64s\" and id %zu belong to different tokens",
            text.bytes, id);
    *slot = text;
    reader->kinds[id] = flag(token, "special", false) ? PD_TOKEN_SPECIAL : PD_TOKEN_ADDED;
    return PD_OK;
}

/* The added tokens of tokenizer.json, then those of tokenizer_config.json, whose flags count. */
static int read_added_tokens(struct reader *reader)
{
    const json_t *list = json_object_get(reader->root, "added_tokens");
    json_t *decoder = json_object_get(reader->config, "added_tokens_decoder"), *token;
    const char *key;
    char *end;
    size_t i, id = 0;
    int status = PD_OK;

    if (list && !json_is_array(list) && !json_is_null(list))
        return pd_fail(reader->error, PD_INVALID, "tokenizer.json: added_tokens is no array");
    for (i = 0; i < json_array_size(list) && status == PD_OK; i++) {
        token = json_array_get(list, i);
        status = read_id(reader, json_object_get(token, "id"), "an added token", &id);
        if (status == PD_OK)
            status = add_token(reader, token, id);
    }
    json_object_foreach(decoder, key, token)
    {
        id = strtoul(key, &end, 10);
        if (key[0] < '0' || key[0] > '9' || *end || id >= PD_VOCABULARY_MAX)
            return pd_fail(reader->error, PD_INVALID,
                           "tokenizer_config.json: \"%.64s\" in added_tokens_decoder is no id",
                           key);
        if (status == PD_OK)
            status = add_token(reader, token, id);
    }
    return status;
}

/* ---- model
 * ------------------------------------------------------------------------------------------ */

/* Joins a merge given as ["left", "right"] into "left right" at *text, and moves *text behind it.
 */
static struct pd_string join_pair(struct pd_string left, struct pd_string right, char **text)
{
    struct pd_string joined = {*text, left.length + 1 + right.length};

    memcpy(*text, left.bytes, left.length);
    (*text)[left.length] = ' ';
    memcpy(*text + left.length + 1, right.bytes, right.length);
    *text += joined.length;
    return joined;
}

static int read_merges(struct reader *reader, const json_t *merges)
{
    size_t count = json_array_size(merges), pair_bytes = 0, i;
    char *text;

    if (!json_is_array(merges) || count > PD_MERGES_MAX)
        return pd_fail(reader->error, PD_INVALID,
                       "tokenizer.json: model.merges is no array, or has more than %d entries",
                       PD_MERGES_MAX);
    for (i = 0; i < count; i++) {
        const json_t *merge = json_array_get(merges, i);

        if (json_is_array(merge) && json_array_size(merge) == 2 &&
            json_is_string(json_array_get(merge, 0)) && json_is_string(json_array_get(merge, 1)))
            pair_bytes += json_string_length(json_array_get(merge, 0)) + 1 +
                          json_string_length(json_array_get(merge, 1));
        else if (!json_is_string(merge))
            return pd_fail(reader->error, PD_INVALID,
                           "tokenizer.json: merge %zu is neither a text nor a pair of texts", i);
    }
    reader->merges = malloc((count + 1) * sizeof *reader->merges);
    reader->merge_text = text = malloc(pair_bytes + 1);
    if (!reader->merges || !text)
        return pd_fail(reader->error, PD_NO_MEMORY, "no memory for %zu merges", count);
    for (i = 0; i < count; i++) {
        const json_t *merge = json_array_get(merges, i);

        reader->merges[i] = json_is_string(merge)
                                ? text_of(merge)
                                : join_pair(text_of(json_array_get(merge, 0)),
                                            text_of(json_array_get(merge, 1)), &text);
    }
    reader->spec.merges = reader->merges;
    reader->spec.merge_count = count;
    return PD_OK;
}

/* A token for unknown bytes can only be ignored if there are none: bytes that UTF-8 may hold. */
static int check_unknown_token(struct reader *reader, const json_t *model)
{
    bool known[256] = {false};
    char bytes[2]; /* no character of the alphabet is longer */
    size_t i;

    if (unused(model, "unk_token") ||
        reader->spec.marks) /* with marks the vocabulary asks for all bytes */
        return PD_OK;
    for (i = 0; i < reader->spec.token_count; i++)
        if (reader->kinds[i] == PD_TOKEN_NORMAL && reader->tokens[i].length <= sizeof bytes &&
            pd_unspell(reader->tokens[i].bytes, reader->tokens[i].length, bytes) == 1)
            known[(unsigned char)bytes[0]] = true;
    for (i = 0; i < 0xF5; i++)
        if (!known[i] && i != 0xC0 && i != 0xC1)
            return pd_fail(reader->error, PD_UNSUPPORTED,
                           "tokenizer.json: model.unk_token is not supported where the vocabulary "
                           "lacks a byte (0x%02zx)",
                           i);
    return PD_OK;
}

static int read_model(struct reader *reader)
{
    static const char *const options[] = {"dropout", "continuing_subword_prefix",
                                          "end_of_word_suffix"};
    const json_t *model = json_object_get(reader->root, "model");
    size_t i;
    int status;

    if (!json_is_object(model))
        return pd_fail(reader->error, PD_INVALID, "tokenizer.json: there is no model");
    if (strcmp(type_of(model), "BPE") != 0)
        return unsupported_step(reader, "a model", model);
    for (i = 0; i < sizeof options / sizeof options[0]; i++)
        if (!unused(model, options[i]))
            return unsupported_option(reader, "a model", options[i]);
    if (flag(model, "byte_fallback", false) != reader->spec.marks)
        return pd_fail(
            reader->error, PD_UNSUPPORTED,
            "tokenizer.json: a model %s \"byte_fallback\" is not supported where spaces are %s",
            reader->spec.marks ? "without" : "with", reader->spec.marks ? "marks" : "no marks");
    reader->spec.ignore_merges = flag(model, "ignore_merges", false);
    status = read_vocabulary(reader, json_object_get(model, "vocab"));
    if (status == PD_OK)
        status = check_unknown_token(reader, model);
    if (status == PD_OK)
        status = read_merges(reader, json_object_get(model, "merges"));
    return status;
}

/* ---- normalizer and pre-tokenizer
 * ------------------------------------------------------------------- */

static bool says(const json_t *object, const char *key, const char *text)
{
    const char *value = json_string_value(json_object_get(object, key));

    return value && strcmp(value, text) == 0;
}

/* Puts marks in the place of spaces; once, by a normalizer or by a pre_tokenizer. */
static int read_marks(struct reader *reader, const char *part, const json_t *step)
{
    if (reader->spec.marks)
        return unsupported_step(reader, part, step);
    reader->spec.marks = true;
    return PD_OK;
}

static int read_normalizer(struct reader *reader, const json_t *step)
{
    const char *type = type_of(step);

    reader->normalizes = true;
    if (strcmp(type, "NFC") == 0) {
        reader->spec.nfc = true;
        return PD_OK;
    }
    if (strcmp(type, "Prepend") == 0 && says(step, "prepend", PD_TEXT_MARK)) {
        reader->spec.mark = PD_MARK_ALWAYS;
        return PD_OK;
    }
    if (strcmp(type, "Replace") == 0 && says(step, "content", PD_TEXT_MARK) &&
        says(json_object_get(step, "pattern"), "String", " "))
        return read_marks(reader, "a normalizer", step);
    return unsupported_step(reader, "a normalizer", step);
}

/* "add_prefix_space" is what older files say instead of "prepend_scheme". */
static int read_metaspace(struct reader *reader, const json_t *step)
{
    static const struct {
        const char *name;
        enum pd_mark mark;
    } schemes[] = {{"first", PD_MARK_FIRST}, {"always", PD_MARK_MISSING}, {"never", PD_MARK_NONE}};
    const char *scheme = json_string_value(json_object_get(step, "prepend_scheme"));

    if (!says(step, "replacement", PD_TEXT_MARK))
        return unsupported_option(reader, "a Metaspace step", "replacement");
    if (flag(step, "split", true))
        return unsupported_option(reader, "a Metaspace step", "split");
    if (!scheme)
        scheme = flag(step, "add_prefix_space", true) ? "always" : "never";
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++)
        if (strcmp(schemes[i].name, scheme) == 0) {
            reader->spec.mark = schemes[i].mark;
            return read_marks(reader, "a pre_tokenizer", step);
        }
    return unsupported_option(reader, "a Metaspace step", "prepend_scheme");
}

static int add_regex(struct reader *reader, struct pd_string regex)
{
    if (reader->spec.regex_count == PD_REGEX_COUNT_MAX)
        return pd_fail(
            reader->error, PD_UNSUPPORTED,
            "tokenizer.json: a pre_tokenizer of more than %d expressions is not supported",
            PD_REGEX_COUNT_MAX);
    reader->regexes[reader->spec.regex_count++] = regex;
    reader->spec.regexes = reader->regexes;
    return PD_OK;
}

static int read_split(struct reader *reader, const json_t *step)
{
    const json_t *regex = json_object_get(json_object_get(step, "pattern"), "Regex");
    const char *behavior = json_string_value(json_object_get(step, "behavior"));

    if (!behavior || strcmp(behavior, "Isolated") != 0)
        return pd_fail(reader->error, PD_UNSUPPORTED,
                       "tokenizer.json: a Split with the behavior \"%.64s\" is not supported",
                       behavior ? behavior : "");
    if (!json_is_string(regex))
        return pd_fail(reader->error, PD_UNSUPPORTED,
                       "tokenizer.json: a Split by anything but a Regex is not supported");
    return add_regex(reader, text_of(regex));
}

static int read_digits(struct reader *reader, const json_t *step)
{
    if (!flag(step, "individual_digits", false))
        return pd_fail(reader->error, PD_UNSUPPORTED,
                       "tokenizer.json: a Digits step without individual_digits is not supported");
    if (reader->spec.regex_count > 0)
        return pd_fail(reader->error, PD_UNSUPPORTED,
                       "tokenizer.json: a Digits step behind another is not supported");
    reader->spec.digits_alone = true;
    return PD_OK;
}

static int read_byte_level(struct reader *reader, const json_t *step)
{
    reader->byte_level = true;
    if (flag(step, "add_prefix_space", true))
        return unsupported_option(reader, "a ByteLevel step", "add_prefix_space");
    if (!flag(step, "use_regex", true))
        return PD_OK;
    return add_regex(reader, (struct pd_string){byte_level_regex, sizeof byte_level_regex - 1});
}

static int read_pre_tokenizer(struct reader *reader, const json_t *step)
{
    const char *type = type_of(step);

    if (reader->byte_level)
        return pd_fail(reader->error, PD_UNSUPPORTED,
                       "tokenizer.json: a pre_tokenizer behind ByteLevel is not supported");
    if (strcmp(type, "Split") == 0)
        return read_split(reader, step);
    if (strcmp(type, "Digits") == 0)
        return read_digits(reader, step);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(reader, step);
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(reader, step);
    return unsupported_step(reader, "a pre_tokenizer", step);
}

/* What goes before the model, as a whole: bytes or marks. */
static int check_spelling(struct reader *reader)
{
    if (!reader->spec.marks && reader->spec.mark != PD_MARK_NONE)
        return unsupported_option(reader, "a normalizer without Replace", "prepend");
    if (reader->spec.marks && reader->byte_level)
        return pd_fail(reader->error, PD_UNSUPPORTED,
                       "tokenizer.json: a ByteLevel step where spaces are marks is not supported");
    if (!reader->spec.marks && !reader->byte_level)
        return pd_fail(
            reader->error, PD_UNSUPPORTED,
            "tokenizer.json: a pre_tokenizer that is not ByteLevel or Metaspace is not supported");
    return PD_OK;
}

/* ---- post-processor, decoder, begin and end
 * --------------------------------------------------------- */

/* TemplateProcessing: the text alone, or one special token and the text. */
static int read_template(struct reader *reader, const json_t *step)
{
    const json_t *single = json_object_get(step, "single"), *ids;
    const char *name;
    size_t count = json_array_size(single), id = 0;

    if (count == 0 || count > 2 || !json_object_get(json_array_get(single, count - 1), "Sequence"))
        return unsupported_option(reader, "a post_processor", "single");
    if (count == 1)
        return PD_OK;
    name = json_string_value(
        json_object_get(json_object_get(json_array_get(single, 0), "SpecialToken"), "id"));
    ids = name ? json_object_get(json_object_get(json_object_get(step, "special_tokens"), name),
                                 "ids")
               : NULL;
    if (json_array_size(ids) != 1)
        return unsupported_option(reader, "a post_processor", "special_tokens");
    if (read_id(reader, json_array_get(ids, 0), name, &id) != PD_OK)
        return PD_INVALID;
    reader->spec.add_bos = true;
    reader->spec.bos_id = (int32_t)id;
    return PD_OK;
}

static int read_post_processor(struct reader *reader, const json_t *step)
{
    if (strcmp(type_of(step), "ByteLevel") == 0)
        return PD_OK; /* moves offsets, not ids */
    if (strcmp(type_of(step), "TemplateProcessing") == 0)
        return read_template(reader, step);
    return unsupported_step(reader, "a post_processor", step);
}

/* Strip takes one space from the text's beginning, as stream.c says; Metaspace does so in any case. */
static int read_decoder(struct reader *reader, const json_t *step)
{
    const char *type = type_of(step);

    if (!reader->spec.marks)
        return strcmp(type, "ByteLevel") == 0 ? PD_OK : unsupported_step(reader, "a decoder", step);
    if (strcmp(type, "Fuse") == 0)
        return PD_OK;
    if (strcmp(type, "Strip") == 0 && says(step, "content", " ") && unused(step, "stop"))
        return PD_OK;
    if (strcmp(type, "ByteFallback") == 0) {
        reader->byte_fallback = true;
        return PD_OK;
    }
    if ((strcmp(type, "Replace") == 0 && says(step, "content", " ") &&
         says(json_object_get(step, "pattern"), "String", PD_TEXT_MARK)) ||
        (strcmp(type, "Metaspace") == 0 && says(step, "replacement", PD_TEXT_MARK))) {
        reader->unmarks = true;
        return PD_OK;
    }
    return unsupported_step(reader, "a decoder", step);
}

static int check_decoder(struct reader *reader)
{
    if (reader->spec.marks && !(reader->byte_fallback && reader->unmarks))
        return pd_fail(reader->error, PD_UNSUPPORTED,
                       "tokenizer.json: a decoder without ByteFallback, or that leaves marks in "
                       "the text, is not "
                       "supported");
    return PD_OK;
}

/* A token that tokenizer_config.json names by its text, or by an object with its content. */
static int read_named_token(struct reader *reader, const char *key, int32_t *id)
{
    const json_t *value = json_object_get(reader->config, key);
    struct pd_string text;
    size_t i;

    if (json_is_object(value))
        value = json_object_get(value, "content");
    if (!value || json_is_null(value))
        return PD_OK;
    if (!json_is_string(value))
        return pd_fail(reader->error, PD_INVALID, "tokenizer_config.json: %s is no text", key);
    text = text_of(value);
    for (i = 0; i < reader->spec.token_count; i++)
        if (reader->tokens[i].length == text.length && text.length > 0 &&
            memcmp(reader->tokens[i].bytes, text.bytes, text.length) == 0) {
            *id = (int32_t)i;
            return PD_OK;
        }
    return pd_fail(reader->error, PD_INVALID, "tokenizer_config.json: %s \"%.64s\" is no token",
                   key, text.bytes);
}

static int read_config(struct reader *reader)
{
    int status = read_named_token(reader, "bos_token", &reader->spec.bos_id);

    if (status == PD_OK)
        status = read_named_token(reader, "eos_token", &reader->spec.eos_id);
    reader->spec.add_bos = flag(reader->config, "add_bos_token", reader->spec.add_bos);
    if (status == PD_OK && flag(reader->config, "add_eos_token", false))
        status = pd_fail(reader->error, PD_UNSUPPORTED,
                         "tokenizer_config.json: add_eos_token is not supported");
    return status;
}

/* ---- the whole file
 * --------------------------------------------------------------------------------- */

static int read_all(struct reader *reader)
{
    const json_t *root = reader->root;
    int status =
        read_steps(reader, json_object_get(root, "normalizer"), "normalizers", read_normalizer);

    if (status == PD_OK)
        status = read_steps(reader, json_object_get(root, "pre_tokenizer"), "pretokenizers",
                            read_pre_tokenizer);
    if (status == PD_OK)
        status = check_spelling(reader);
    if (status == PD_OK)
        status = read_model(reader);
    if (status == PD_OK)
        status = read_added_tokens(reader);
    if (status == PD_OK)
        status = read_steps(reader, json_object_get(root, "post_processor"), "processors",
                            read_post_processor);
    if (status == PD_OK)
        status = read_steps(reader, json_object_get(root, "decoder"), "decoders", read_decoder);
    if (status == PD_OK)
        status = check_decoder(reader);
    if (status == PD_OK)
        status = read_config(reader);
    return status;
}

static int parse_json(const char *text, size_t length, const char *name, json_t **parsed,
                      struct pd_error *error)
{
    json_error_t fault;

    if (length > JSON_MAX)
        return pd_fail(error, PD_INVALID, "%s has %zu bytes, at most %d are supported", name,
                       length, JSON_MAX);
    *parsed = json_loadb(text, length, 0, &fault);
    if (!*parsed)
        return pd_fail(error, PD_INVALID, "%s, line %d, column %d: %s", name, fault.line,
                       fault.column, fault.text);
    if (!json_is_object(*parsed))
        return pd_fail(error, PD_INVALID, "%s is no JSON object", name);
    return PD_OK;
}

int pd_tokenizer_from_json(const char *json, size_t length, const char *config,
                           size_t config_length, struct pd_tokenizer **tokenizer,
                           struct pd_error *error)
{
    struct reader reader = {.spec = {.bos_id = -1, .eos_id = -1}, .error = error};
    int status = parse_json(json, length, "tokenizer.json", &reader.root, error);

    if (status == PD_OK && config)
        status = parse_json(config, config_length, "tokenizer_config.json", &reader.config, error);
    if (status == PD_OK)
        status = read_all(&reader);
    if (status == PD_OK)
        status = pd_tokenizer_create(&reader.spec, tokenizer, error);
    free(reader.tokens);
    free(reader.kinds);
    free(reader.merges);
    free(reader.merge_text);
    json_decref(reader.config);
    json_decref(reader.root);
    return status;
}
