#include "worker/text/sentencepiece.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "worker/text/scores.h"
#include "worker/text/vocabulary.h"

enum { MODEL_BPE = 2 };

bool pd_sentencepiece_kind(int64_t type, uint8_t *kind)
{
    static const uint8_t kinds[] = {
        [1] = PD_TOKEN_NORMAL,  [2] = PD_TOKEN_SPECIAL, /* "unknown": never to be read out of a user's text */
        [3] = PD_TOKEN_SPECIAL, [4] = PD_TOKEN_ADDED,   [5] = PD_TOKEN_UNUSED,
        [6] = PD_TOKEN_NORMAL,
    };

    if (type < 1 || type >= (int64_t)sizeof(kinds))
        return false;
    *kind = kinds[type];
    return true;
}

/* ---- protobuf -------------------------------------------------------------------------------- */

struct wire {
    const uint8_t *at, *end;
};

/* One field: a number, or bytes. */
struct field {
    uint64_t number, value;
    struct pd_string bytes;
};

static bool take_varint(struct wire *wire, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 64 && wire->at < wire->end; shift += 7) {
        uint8_t byte = *wire->at++;

        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

static bool take_bytes(struct wire *wire, uint64_t length, struct pd_string *bytes)
{
    if (length > (uint64_t)(wire->end - wire->at))
        return false;
    *bytes = (struct pd_string){(const char *)wire->at, (size_t)length};
    wire->at += length;
    return true;
}

static bool take_fixed(struct wire *wire, size_t length, uint64_t *value)
{
    struct pd_string bytes;

    if (!take_bytes(wire, length, &bytes))
        return false;
    *value = 0;
    while (length-- > 0)
        *value = *value << 8 | (uint8_t)bytes.bytes[length];
    return true;
}

/* False: what is there is no field. */
static bool take_field(struct wire *wire, struct field *field)
{
    uint64_t key, length;

    *field = (struct field){0};
    if (!take_varint(wire, &key))
        return false;
    field->number = key >> 3;
    switch (key & 7) {
    case 0:
        return take_varint(wire, &field->value);
    case 1:
        return take_fixed(wire, 8, &field->value);
    case 2:
        return take_varint(wire, &length) && take_bytes(wire, length, &field->bytes);
    case 5:
        return take_fixed(wire, 4, &field->value);
    default:
        return false;
    }
}

/* ---- the model ------------------------------------------------------------------------------- */

struct model {
    struct pd_string *pieces;
    float *scores;
    uint8_t *kinds;
    size_t count, capacity;
    int64_t type, bos_id, eos_id;
    bool byte_fallback, suffix;
    bool prefix, remove_extra, escape;
    struct pd_string normalizer;
    size_t charsmap; /* bytes */
    struct pd_error *error;
};

static int fail(const struct model *model, int status, const char *what)
{
    return pd_fail(model->error, status, "tokenizer.model: %s", what);
}

static int grow(struct model *model)
{
    size_t capacity = model->capacity ? 2 * model->capacity : 4096;
    struct pd_string *pieces = realloc(model->pieces, capacity * sizeof(*pieces));
    float *scores = pieces ? realloc(model->scores, capacity * sizeof(*scores)) : NULL;
    uint8_t *kinds = scores ? realloc(model->kinds, capacity) : NULL;

    model->pieces = pieces ? pieces : model->pieces;
    model->scores = scores ? scores : model->scores;
    model->kinds = kinds ? kinds : model->kinds;
    if (!kinds)
        return fail(model, PD_NO_MEMORY, "no memory for its pieces");
    model->capacity = capacity;
    return PD_OK;
}

static int read_piece(struct model *model, struct pd_string message)
{
    struct wire wire = {(const uint8_t *)message.bytes,
                        (const uint8_t *)message.bytes + message.length};
    struct pd_string text = {"", 0};
    uint32_t score = 0;
    int64_t type = 1;
    uint8_t kind;

    while (wire.at < wire.end) {
        struct field field;

        if (!take_field(&wire, &field))
            return fail(model, PD_INVALID, "damaged, or no SentencePiece file");
        text = field.number == 1 ? field.bytes : text;
        score = field.number == 2 ? (uint32_t)field.value : score;
        type = field.number == 3 ? (int64_t)field.value : type;
    }
    if (model->count == PD_VOCABULARY_MAX)
        return fail(model, PD_INVALID, "more pieces than a vocabulary may have");
    if (text.length == 0 || !pd_sentencepiece_kind(type, &kind))
        return pd_fail(model->error, PD_INVALID,
                       "tokenizer.model: piece %zu is empty, or of no known type", model->count);
    if (kind == PD_TOKEN_UNUSED)
        return pd_fail(model->error, PD_UNSUPPORTED,
                       "tokenizer.model: piece %zu is an unused one, which is not supported",
                       model->count);
    if (model->count == model->capacity && grow(model) != PD_OK)
        return PD_NO_MEMORY;
    model->pieces[model->count] = text;
    model->kinds[model->count] = kind;
    memcpy(&model->scores[model->count++], &score, sizeof(score));
    return PD_OK;
}

static void take_trainer(struct model *model, const struct field *field)
{
    switch (field->number) {
    case 3:
        model->type = (int64_t)field->value;
        break;
    case 24:
        model->suffix = field->value != 0;
        break;
    case 35:
        model->byte_fallback = field->value != 0;
        break;
    case 41:
        model->bos_id = (int32_t)field->value;
        break;
    case 42:
        model->eos_id = (int32_t)field->value;
        break;
    default:
        break;
    }
}

static void take_normalizer(struct model *model, const struct field *field)
{
    switch (field->number) {
    case 1:
        model->normalizer = field->bytes;
        break;
    case 2:
        model->charsmap = field->bytes.length;
        break;
    case 3:
        model->prefix = field->value != 0;
        break;
    case 4:
        model->remove_extra = field->value != 0;
        break;
    case 5:
        model->escape = field->value != 0;
        break;
    default:
        break;
    }
}

static int read_fields(struct model *model, struct pd_string message,
                       void (*take)(struct model *model, const struct field *field))
{
    struct wire wire = {(const uint8_t *)message.bytes,
                        (const uint8_t *)message.bytes + message.length};
    struct field field;

    while (wire.at < wire.end) {
        if (!take_field(&wire, &field))
            return fail(model, PD_INVALID, "damaged, or no SentencePiece file");
        take(model, &field);
    }
    return PD_OK;
}

static int read_model(struct model *model, const uint8_t *bytes, size_t length)
{
    struct wire wire = {bytes, bytes + length};
    struct field field;
    int status = PD_OK;

    while (wire.at < wire.end && status == PD_OK) {
        if (!take_field(&wire, &field))
            return fail(model, PD_INVALID, "damaged, or no SentencePiece file");
        if (field.number >= 1 && field.number <= 3 && !field.bytes.bytes)
            return fail(model, PD_INVALID, "no SentencePiece file");
        if (field.number == 1)
            status = read_piece(model, field.bytes);
        else if (field.number == 2)
            status = read_fields(model, field.bytes, take_trainer);
        else if (field.number == 3)
            status = read_fields(model, field.bytes, take_normalizer);
    }
    return status;
}

/* What the tokenizer here would do otherwise. */
static int check_model(const struct model *model)
{
    if (model->count == 0)
        return fail(model, PD_INVALID, "no pieces: no SentencePiece file");
    if (model->type != MODEL_BPE)
        return fail(model, PD_UNSUPPORTED,
                    "a model that is no BPE (unigram, word, char) is not supported");
    if (!model->byte_fallback)
        return fail(model, PD_UNSUPPORTED, "a model without byte_fallback is not supported");
    if (model->suffix)
        return fail(model, PD_UNSUPPORTED, "treat_whitespace_as_suffix is not supported");
    if (model->charsmap > 0)
        return pd_fail(model->error, PD_UNSUPPORTED,
                       "tokenizer.model: the normalizer \"%.*s\" is not supported, only identity",
                       model->normalizer.length < 32 ? (int)model->normalizer.length : 32,
                       model->normalizer.length ? model->normalizer.bytes : "");
    if (model->remove_extra)
        return fail(model, PD_UNSUPPORTED, "remove_extra_whitespaces is not supported");
    if (!model->escape)
        return fail(model, PD_UNSUPPORTED, "spaces that are not escaped are not supported");
    return PD_OK;
}

/* ---- its tokenizer.json ---------------------------------------------------------------------- */

static json_t *text_of(struct pd_string text)
{
    return json_stringn(text.bytes, text.length);
}

/* What was filled with `count` of something, or NULL: then something is missing. */
static json_t *filled(json_t *value, size_t count)
{
    if ((json_is_object(value) ? json_object_size(value) : json_array_size(value)) == count)
        return value;
    json_decref(value);
    return NULL;
}

static json_t *added_tokens(const struct model *model)
{
    json_t *list = json_array();
    size_t count = 0;

    for (size_t i = 0; i < model->count; i++) {
        if (model->kinds[i] == PD_TOKEN_NORMAL)
            continue;
        count++;
        json_array_append_new(list,
                              json_pack("{s:I, s:o, s:b, s:b}", "id", (json_int_t)i, "content",
                                        text_of(model->pieces[i]), "special",
                                        model->kinds[i] == PD_TOKEN_SPECIAL, "normalized", 0));
    }
    return filled(list, count);
}

static json_t *vocabulary(const struct model *model)
{
    json_t *object = json_object();

    for (size_t i = 0; i < model->count; i++)
        json_object_setn_new(object, model->pieces[i].bytes, model->pieces[i].length,
                             json_integer((json_int_t)i));
    return filled(object, model->count);
}

static json_t *merges(const struct pd_tokenizer_spec *spec)
{
    json_t *list = json_array();

    for (size_t i = 0; i < spec->merge_count; i++)
        json_array_append_new(list, text_of(spec->merges[i]));
    return filled(list, spec->merge_count);
}

/* The mark before text: by a normalizer ("legacy"), or by a pre_tokenizer. */
static json_t *normalizer(bool legacy, bool prefix)
{
    json_t *steps = json_array();

    if (legacy && prefix)
        json_array_append_new(steps,
                              json_pack("{s:s, s:s}", "type", "Prepend", "prepend", PD_TEXT_MARK));
    if (legacy)
        json_array_append_new(steps, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern",
                                               "String", " ", "content", PD_TEXT_MARK));
    return json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", steps);
}

static json_t *pre_tokenizer(bool legacy, bool prefix)
{
    return legacy
               ? json_null()
               : json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", PD_TEXT_MARK,
                           "prepend_scheme", prefix ? "first" : "never", "split", 0);
}

/* The begin token and the text, where there is one. */
static json_t *post_processor(const struct model *model)
{
    json_t *name;

    if (model->bos_id < 0)
        return json_null();
    name = text_of(model->pieces[model->bos_id]);
    return json_pack("{s:s, s:[{s:{s:o}}, {s:{}}], s:{s:{s:[I]}}}", "type", "TemplateProcessing",
                     "single", "SpecialToken", "id", name, "Sequence", "special_tokens",
                     json_string_value(name), "ids", (json_int_t)model->bos_id);
}

static json_t *decoder(void)
{
    return json_pack("{s:s, s:[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]}", "type", "Sequence", "decoders",
                     "type", "Replace", "pattern", "String", PD_TEXT_MARK, "content", " ", "type",
                     "ByteFallback", "type", "Fuse");
}

/* A switch of tokenizer_config.json; `fallback` where it is not one. */
static bool flag(const json_t *config, const char *key, bool fallback)
{
    const json_t *value = json_object_get(config, key);

    return json_is_boolean(value) ? json_is_true(value) : fallback;
}

static json_t *describe(const struct model *model, const struct pd_tokenizer_spec *spec,
                        const json_t *config)
{
    bool legacy = flag(config, "legacy", true);
    bool prefix = flag(config, "add_prefix_space", model->prefix);

    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:{s:s, s:b, s:o, s:o}}", "added_tokens",
                     added_tokens(model), "normalizer", normalizer(legacy, prefix), "pre_tokenizer",
                     pre_tokenizer(legacy, prefix), "post_processor", post_processor(model),
                     "decoder", decoder(), "model", "type", "BPE", "byte_fallback", 1, "vocab",
                     vocabulary(model), "merges", merges(spec));
}

/* What the model knows and tokenizer_config.json does not say. */
static void name_token(json_t *config, const char *key, const struct model *model, int64_t id)
{
    const json_t *named = json_object_get(config, key);

    if (id >= 0 && (!named || json_is_null(named)))
        json_object_set_new(config, key, text_of(model->pieces[id]));
}

/* ---- the whole file -------------------------------------------------------------------------- */

static int parse_config(const char *text, size_t length, json_t **config, struct pd_error *error)
{
    json_error_t fault = {0};

    *config = text ? json_loadb(text, length, 0, &fault) : json_object();
    if (!*config)
        return pd_fail(error, PD_INVALID, "tokenizer_config.json, line %d, column %d: %s",
                       fault.line, fault.column, fault.text);
    return json_is_object(*config)
               ? PD_OK
               : pd_fail(error, PD_INVALID, "tokenizer_config.json is no JSON object");
}

static int make(const struct model *model, const struct pd_tokenizer_spec *spec, json_t *config,
                struct pd_tokenizer **tokenizer)
{
    json_t *root = describe(model, spec, config);
    char *json = NULL, *settings;
    int status;

    name_token(config, "bos_token", model, model->bos_id);
    name_token(config, "eos_token", model, model->eos_id);
    if (root)
        json = json_dumps(root, JSON_COMPACT);
    settings = json_dumps(config, JSON_COMPACT);
    if (json && settings)
        status = pd_tokenizer_from_json(json, strlen(json), settings, strlen(settings), tokenizer,
                                        model->error);
    else
        status = fail(model, PD_INVALID, "two pieces are equal, or there is no memory for all");
    free(settings);
    free(json);
    json_decref(root);
    return status;
}

static int check_id(const struct model *model, int64_t *id)
{
    if (*id >= (int64_t)model->count)
        return fail(model, PD_INVALID, "its begin or end token is none of its pieces");
    if (*id < 0)
        *id = -1;
    return PD_OK;
}

int pd_tokenizer_from_sentencepiece(const void *bytes, size_t length, const char *config,
                                    size_t config_length, struct pd_tokenizer **tokenizer,
                                    struct pd_error *error)
{
    /* As the format has it where a file is silent. */
    struct model model = {.type = 1,
                          .bos_id = 1,
                          .eos_id = 2,
                          .prefix = true,
                          .remove_extra = true,
                          .escape = true,
                          .error = error};
    struct pd_tokenizer_spec spec = {.marks = true, .bos_id = -1, .eos_id = -1};
    json_t *settings = NULL;
    int status = read_model(&model, bytes, length);

    spec.tokens = model.pieces;
    spec.kinds = model.kinds;
    spec.token_count = model.count;
    if (status == PD_OK)
        status = check_model(&model);
    if (status == PD_OK && (status = check_id(&model, &model.bos_id)) == PD_OK)
        status = check_id(&model, &model.eos_id);
    if (status == PD_OK && (status = pd_merges_from_scores(&spec, model.scores, error)) != PD_OK)
        pd_fail_in(error, "tokenizer.model");
    if (status == PD_OK)
        status = parse_config(config, config_length, &settings, error);
    if (status == PD_OK)
        status = make(&model, &spec, settings, tokenizer);
    json_decref(settings);
    free((void *)(uintptr_t)spec.merges);
    free(model.pieces);
    free(model.scores);
    free(model.kinds);
    return status;
}
