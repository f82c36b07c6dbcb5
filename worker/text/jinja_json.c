/* JSON in and out of templates: tools and tool calls come in as text, templates write them with
 * tojson. */

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/text/jinja_value.h"

enum { NESTING_MAX = 64 };

struct writer {
    struct pd_jinja_output *output;
    const struct pd_jinja_json_style *style;
};

static void put(struct writer *writer, const char *text)
{
    pd_jinja_output_put(writer->output, text, strlen(text), false);
}

static void break_line(struct writer *writer, int depth)
{
    if (writer->style->indent < 0)
        return;
    put(writer, "\n");
    for (int i = 0; i < depth * writer->style->indent; i++)
        put(writer, " ");
}

/* One UTF-8 character at `bytes`; strings are valid UTF-8 by the time they are values. */
static uint32_t character(const unsigned char *bytes, size_t left, size_t *length)
{
    uint32_t code = bytes[0];
    size_t extra = code < 0x80 ? 0 : code < 0xe0 ? 1 : code < 0xf0 ? 2 : 3;

    if (extra >= left)
        extra = left - 1;
    if (extra)
        code &= 0x3fu >> extra;
    for (size_t i = 1; i <= extra; i++)
        code = code << 6 | (bytes[i] & 0x3fu);
    *length = extra + 1;
    return code;
}

static void write_string(struct writer *writer, const struct pd_jinja_string *string)
{
    put(writer, "\"");
    for (size_t i = 0, length; i < string->length && !writer->output->full; i += length) {
        const unsigned char *at = (const unsigned char *)string->bytes + i;
        uint32_t code = character(at, string->length - i, &length);
        struct pd_jinja_string same = pd_jinja_substring(string, i, length);
        char escaped[16] = "";
        bool literal = string->mark == PD_JINJA_LITERAL ||
                       (string->mark == PD_JINJA_MIXED && string->marks[i]);

        if (code == '"' || code == '\\')
            snprintf(escaped, sizeof(escaped), "\\%c", (char)code);
        else if (code == '\n' || code == '\r' || code == '\t' || code == '\b' || code == '\f')
            snprintf(escaped, sizeof(escaped), "\\%c", "btn?fr"[code - 8]);
        else if (code < 0x20 || (writer->style->ascii && code >= 0x7f && code < 0x10000))
            snprintf(escaped, sizeof(escaped), "\\u%04x", code);
        else if (writer->style->ascii && code >= 0x10000)
            snprintf(escaped, sizeof(escaped), "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10),
                     0xdc00 + ((code - 0x10000) & 0x3ff));
        if (escaped[0])
            pd_jinja_output_put(writer->output, escaped, strlen(escaped), literal);
        else
            pd_jinja_output_string(writer->output, &same);
    }
    put(writer, "\"");
}

static bool write_value(struct writer *writer, const struct pd_jinja_value *value, int depth);

static bool write_list(struct writer *writer, const struct pd_jinja_list *list, int depth)
{
    put(writer, "[");
    for (size_t i = 0; i < list->count; i++) {
        if (i)
            pd_jinja_output_put(writer->output, writer->style->item_separator.bytes,
                                writer->style->item_separator.length, false);
        break_line(writer, depth + 1);
        if (!write_value(writer, &list->items[i], depth + 1))
            return false;
    }
    if (list->count)
        break_line(writer, depth);
    put(writer, "]");
    return true;
}

static int by_key(const void *a, const void *b)
{
    const struct pd_jinja_entry *const *x = a, *const *y = b;
    int order = 0;

    pd_jinja_compare(&(*x)->key, &(*y)->key, &order);
    return order;
}

static bool write_entries(struct writer *writer, const struct pd_jinja_entry **entries,
                          size_t count, int depth)
{
    put(writer, "{");
    for (size_t i = 0; i < count; i++) {
        struct pd_jinja_value key = entries[i]->key;

        if (i)
            pd_jinja_output_put(writer->output, writer->style->item_separator.bytes,
                                writer->style->item_separator.length, false);
        break_line(writer, depth + 1);
        if (key.kind == PD_JINJA_STRING) {
            write_string(writer, &key.string);
        } else {
            put(writer, "\"");
            if (!write_value(writer, &key, depth + 1))
                return false;
            put(writer, "\"");
        }
        pd_jinja_output_put(writer->output, writer->style->key_separator.bytes,
                            writer->style->key_separator.length, false);
        if (!write_value(writer, &entries[i]->value, depth + 1))
            return false;
    }
    if (count)
        break_line(writer, depth);
    put(writer, "}");
    return true;
}

static bool write_dict(struct writer *writer, const struct pd_jinja_dict *dict, int depth)
{
    const struct pd_jinja_entry **entries = malloc((dict->count + 1) * sizeof(*entries));
    bool ok;

    if (!entries)
        return false;
    for (size_t i = 0; i < dict->count; i++)
        entries[i] = &dict->entries[i];
    if (writer->style->sort_keys)
        qsort(entries, dict->count, sizeof(*entries), by_key);
    ok = write_entries(writer, entries, dict->count, depth);
    free(entries);
    return ok;
}

static bool write_value(struct writer *writer, const struct pd_jinja_value *value, int depth)
{
    if (depth > NESTING_MAX || writer->output->full)
        return false;
    switch (value->kind) {
    case PD_JINJA_NONE:
        put(writer, "null");
        return true;
    case PD_JINJA_BOOL:
        put(writer, value->boolean ? "true" : "false");
        return true;
    case PD_JINJA_INT:
        pd_jinja_print(writer->output, value, false);
        return true;
    case PD_JINJA_FLOAT:
        if (isnan(value->real))
            put(writer, "NaN");
        else if (isinf(value->real))
            put(writer, value->real > 0 ? "Infinity" : "-Infinity");
        else
            pd_jinja_print(writer->output, value, false);
        return true;
    case PD_JINJA_STRING:
        write_string(writer, &value->string);
        return true;
    case PD_JINJA_LIST:
        return write_list(writer, value->list, depth);
    case PD_JINJA_DICT:
        return write_dict(writer, value->dict, depth);
    default:
        return false;
    }
}

bool pd_jinja_to_json(struct pd_jinja_output *output, const struct pd_jinja_value *value,
                      const struct pd_jinja_json_style *style)
{
    struct writer writer = {output, style};

    return write_value(&writer, value, 0);
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool read_value(struct pd_arena *arena, const json_t *json, int depth,
                       struct pd_jinja_value *out);

static bool read_text(struct pd_arena *arena, const char *text, size_t length,
                      struct pd_jinja_value *out)
{
    char *copy = pd_arena_take(arena, length + 1);

    if (!copy)
        return false;
    memcpy(copy, text, length);
    *out = pd_jinja_text(copy, length, PD_JINJA_LITERAL);
    return true;
}

static bool read_object(struct pd_arena *arena, const json_t *json, int depth,
                        struct pd_jinja_value *out)
{
    json_t *object = (json_t *)json; /* jansson's iterators are not const */

    if (!pd_jinja_dict_new(arena, json_object_size(json), out))
        return false;
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
        struct pd_jinja_value key, value;
        const char *name = json_object_iter_key(at);

        if (!read_text(arena, name, strlen(name), &key) ||
            !read_value(arena, json_object_iter_value(at), depth + 1, &value) ||
            !pd_jinja_dict_append(arena, out->dict, key, value))
            return false;
    }
    return true;
}

static bool read_array(struct pd_arena *arena, const json_t *json, int depth,
                       struct pd_jinja_value *out)
{
    size_t count = json_array_size(json);

    if (!pd_jinja_list_new(arena, count, out))
        return false;
    for (size_t i = 0; i < count; i++) {
        struct pd_jinja_value item;

        if (!read_value(arena, json_array_get(json, i), depth + 1, &item) ||
            !pd_jinja_list_push(arena, out->list, item))
            return false;
    }
    return true;
}

static bool read_value(struct pd_arena *arena, const json_t *json, int depth,
                       struct pd_jinja_value *out)
{
    if (depth > NESTING_MAX)
        return false;
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return read_object(arena, json, depth, out);
    case JSON_ARRAY:
        return read_array(arena, json, depth, out);
    case JSON_STRING:
        return read_text(arena, json_string_value(json), json_string_length(json), out);
    case JSON_INTEGER:
        *out = pd_jinja_int(json_integer_value(json));
        return true;
    case JSON_REAL:
        *out = pd_jinja_float(json_real_value(json));
        return true;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = pd_jinja_bool(json_is_true(json));
        return true;
    case JSON_NULL:
        break;
    }
    *out = pd_jinja_none();
    return true;
}

int pd_jinja_from_json(struct pd_arena *arena, struct pd_string json, struct pd_jinja_value *out,
                       struct pd_error *error)
{
    json_error_t fault;
    json_t *root = json_loadb(json.bytes, json.length, JSON_DECODE_ANY | JSON_ALLOW_NUL, &fault);
    bool ok;

    if (!root)
        return pd_fail(error, PD_INVALID, "not JSON: %s (byte %d)", fault.text, fault.position);
    ok = read_value(arena, root, 0, out);
    json_decref(root);
    if (!ok)
        return pd_fail(error, PD_INVALID, "JSON is nested too deeply or is too large");
    return PD_OK;
}
