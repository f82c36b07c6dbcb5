#include "worker/text/jinja_value.h"

#include <math.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { ARENA_CHUNK = 16384, NESTING_MAX = 64 };

/* ---- arena ----------------------------------------------------------------------------------- */

struct pd_arena_chunk {
    struct pd_arena_chunk *next;
    alignas(max_align_t) char bytes[];
};

void pd_arena_init(struct pd_arena *arena, size_t budget)
{
    *arena = (struct pd_arena){.budget = budget};
}

void *pd_arena_take(struct pd_arena *arena, size_t bytes)
{
    size_t size = (bytes + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);
    void *memory;

    if (size < bytes || size > arena->budget)
        return NULL;
    if (size > arena->left) {
        size_t chunk_size = size > ARENA_CHUNK ? size : ARENA_CHUNK;
        struct pd_arena_chunk *chunk = calloc(1, sizeof(*chunk) + chunk_size);

        if (!chunk)
            return NULL;
        chunk->next = arena->chunks;
        arena->chunks = chunk;
        arena->free = chunk->bytes;
        arena->left = chunk_size;
    }
    memory = arena->free;
    arena->free += size;
    arena->left -= size;
    arena->budget -= size;
    return memory;
}

void pd_arena_free(struct pd_arena *arena)
{
    while (arena->chunks) {
        struct pd_arena_chunk *next = arena->chunks->next;

        free(arena->chunks);
        arena->chunks = next;
    }
    arena->left = 0;
}

/* ---- constructors ---------------------------------------------------------------------------- */

struct pd_jinja_value pd_jinja_undefined(struct pd_string name)
{
    return (struct pd_jinja_value){.kind = PD_JINJA_UNDEFINED, .missing = name};
}

struct pd_jinja_value pd_jinja_none(void)
{
    return (struct pd_jinja_value){.kind = PD_JINJA_NONE};
}

struct pd_jinja_value pd_jinja_bool(bool value)
{
    return (struct pd_jinja_value){.kind = PD_JINJA_BOOL, .boolean = value};
}

struct pd_jinja_value pd_jinja_int(int64_t value)
{
    return (struct pd_jinja_value){.kind = PD_JINJA_INT, .integer = value};
}

struct pd_jinja_value pd_jinja_float(double value)
{
    return (struct pd_jinja_value){.kind = PD_JINJA_FLOAT, .real = value};
}

struct pd_jinja_value pd_jinja_text(const char *bytes, size_t length, enum pd_jinja_mark mark)
{
    return (struct pd_jinja_value){
        .kind = PD_JINJA_STRING,
        .string = {.bytes = bytes ? bytes : "", .length = length, .mark = mark}};
}

bool pd_jinja_list_new(struct pd_arena *arena, size_t capacity, struct pd_jinja_value *out)
{
    struct pd_jinja_list *list = pd_arena_take(arena, sizeof(*list));

    if (!list || capacity > SIZE_MAX / sizeof(*list->items))
        return false;
    if (capacity) {
        list->items = pd_arena_take(arena, capacity * sizeof(*list->items));
        if (!list->items)
            return false;
    }
    list->capacity = capacity;
    *out = (struct pd_jinja_value){.kind = PD_JINJA_LIST, .list = list};
    return true;
}

bool pd_jinja_list_push(struct pd_arena *arena, struct pd_jinja_list *list,
                        struct pd_jinja_value item)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 8;
        struct pd_jinja_value *items = pd_arena_take(arena, capacity * sizeof(*items));

        if (!items)
            return false;
        if (list->count)
            memcpy(items, list->items, list->count * sizeof(*items));
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = item;
    return true;
}

bool pd_jinja_dict_new(struct pd_arena *arena, size_t capacity, struct pd_jinja_value *out)
{
    struct pd_jinja_dict *dict = pd_arena_take(arena, sizeof(*dict));

    if (!dict || capacity > SIZE_MAX / sizeof(*dict->entries))
        return false;
    if (capacity) {
        dict->entries = pd_arena_take(arena, capacity * sizeof(*dict->entries));
        if (!dict->entries)
            return false;
    }
    dict->capacity = capacity;
    *out = (struct pd_jinja_value){.kind = PD_JINJA_DICT, .dict = dict};
    return true;
}

bool pd_jinja_dict_append(struct pd_arena *arena, struct pd_jinja_dict *dict,
                          struct pd_jinja_value key, struct pd_jinja_value value)
{
    if (dict->count == dict->capacity) {
        size_t capacity = dict->capacity ? dict->capacity * 2 : 8;
        struct pd_jinja_entry *entries = pd_arena_take(arena, capacity * sizeof(*entries));

        if (!entries)
            return false;
        if (dict->count)
            memcpy(entries, dict->entries, dict->count * sizeof(*entries));
        dict->entries = entries;
        dict->capacity = capacity;
    }
    dict->entries[dict->count++] = (struct pd_jinja_entry){key, value};
    return true;
}

const struct pd_jinja_value *pd_jinja_dict_get(const struct pd_jinja_dict *dict,
                                               const struct pd_jinja_value *key)
{
    for (size_t i = 0; i < dict->count; i++)
        if (pd_jinja_equal(&dict->entries[i].key, key))
            return &dict->entries[i].value;
    return NULL;
}

const struct pd_jinja_value *pd_jinja_dict_find(const struct pd_jinja_dict *dict, const char *key,
                                                size_t length)
{
    struct pd_jinja_value wanted = pd_jinja_text(key, length, PD_JINJA_TRUSTED);

    return pd_jinja_dict_get(dict, &wanted);
}

bool pd_jinja_dict_set(struct pd_arena *arena, struct pd_jinja_dict *dict,
                       struct pd_jinja_value key, struct pd_jinja_value value)
{
    struct pd_jinja_value *old = (struct pd_jinja_value *)pd_jinja_dict_get(dict, &key);

    if (!old)
        return pd_jinja_dict_append(arena, dict, key, value);
    *old = value;
    return true;
}

/* ---- Python's notions ------------------------------------------------------------------------ */

bool pd_jinja_truth(const struct pd_jinja_value *value)
{
    switch (value->kind) {
    case PD_JINJA_UNDEFINED:
    case PD_JINJA_NONE:
        return false;
    case PD_JINJA_BOOL:
        return value->boolean;
    case PD_JINJA_INT:
        return value->integer != 0;
    case PD_JINJA_FLOAT:
        return value->real != 0;
    case PD_JINJA_STRING:
        return value->string.length != 0;
    case PD_JINJA_LIST:
        return value->list->count != 0;
    case PD_JINJA_DICT:
        return value->dict->count != 0;
    case PD_JINJA_NAMESPACE:
    case PD_JINJA_MACRO:
    case PD_JINJA_FUNCTION:
        break;
    }
    return true;
}

static bool as_number(const struct pd_jinja_value *value, double *number)
{
    switch (value->kind) {
    case PD_JINJA_BOOL:
        *number = value->boolean;
        return true;
    case PD_JINJA_INT:
        *number = (double)value->integer;
        return true;
    case PD_JINJA_FLOAT:
        *number = value->real;
        return true;
    default:
        return false;
    }
}

static bool lists_equal(const struct pd_jinja_list *a, const struct pd_jinja_list *b)
{
    if (a->count != b->count || a->tuple != b->tuple)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (!pd_jinja_equal(&a->items[i], &b->items[i]))
            return false;
    return true;
}

static bool dicts_equal(const struct pd_jinja_dict *a, const struct pd_jinja_dict *b)
{
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++) {
        const struct pd_jinja_value *other = pd_jinja_dict_get(b, &a->entries[i].key);

        if (!other || !pd_jinja_equal(&a->entries[i].value, other))
            return false;
    }
    return true;
}

bool pd_jinja_equal(const struct pd_jinja_value *a, const struct pd_jinja_value *b)
{
    double x, y;

    if (a->kind == PD_JINJA_INT && b->kind == PD_JINJA_INT)
        return a->integer == b->integer;
    if (as_number(a, &x) && as_number(b, &y))
        return x == y;
    if (a->kind != b->kind)
        return false;
    switch (a->kind) {
    case PD_JINJA_STRING:
        return a->string.length == b->string.length &&
               memcmp(a->string.bytes, b->string.bytes, a->string.length) == 0;
    case PD_JINJA_LIST:
        return lists_equal(a->list, b->list);
    case PD_JINJA_DICT:
        return dicts_equal(a->dict, b->dict);
    case PD_JINJA_NAMESPACE:
        return a->dict == b->dict;
    case PD_JINJA_MACRO:
        return a->macro == b->macro;
    case PD_JINJA_FUNCTION:
        return a->function == b->function;
    default:
        return true;
    }
}

bool pd_jinja_compare(const struct pd_jinja_value *a, const struct pd_jinja_value *b, int *order)
{
    double x, y;

    if (as_number(a, &x) && as_number(b, &y)) {
        *order = (x > y) - (x < y);
        return true;
    }
    if (a->kind == PD_JINJA_STRING && b->kind == PD_JINJA_STRING) {
        size_t shorter = a->string.length < b->string.length ? a->string.length : b->string.length;
        int difference = shorter ? memcmp(a->string.bytes, b->string.bytes, shorter) : 0;

        if (difference == 0)
            difference =
                (a->string.length > b->string.length) - (a->string.length < b->string.length);
        *order = (difference > 0) - (difference < 0);
        return true;
    }
    return false;
}

const char *pd_jinja_kind_name(enum pd_jinja_kind kind)
{
    static const char *const names[] = {"undefined", "NoneType", "bool",    "int",
                                        "float",     "str",      "list",    "dict",
                                        "namespace", "macro",    "function"};

    return names[kind];
}

/* ---- building text --------------------------------------------------------------------------- */

void pd_jinja_output_init(struct pd_jinja_output *output, size_t limit)
{
    *output = (struct pd_jinja_output){.limit = limit};
}

void pd_jinja_output_free(struct pd_jinja_output *output)
{
    free(output->bytes);
    free(output->marks);
}

static bool output_grow(struct pd_jinja_output *output, size_t length)
{
    size_t capacity = output->capacity ? output->capacity : 256;
    char *bytes;
    uint8_t *marks;

    if (length > output->limit - output->length)
        return false;
    while (capacity < output->length + length)
        capacity *= 2;
    if (capacity == output->capacity)
        return true;
    bytes = realloc(output->bytes, capacity);
    if (bytes)
        output->bytes = bytes;
    marks = realloc(output->marks, capacity);
    if (marks)
        output->marks = marks;
    if (!bytes || !marks)
        return false;
    output->capacity = capacity;
    return true;
}

void pd_jinja_output_put(struct pd_jinja_output *output, const char *bytes, size_t length,
                         bool literal)
{
    if (length == 0 || output->full)
        return;
    if (!output_grow(output, length)) {
        output->full = true;
        return;
    }
    memcpy(output->bytes + output->length, bytes, length);
    memset(output->marks + output->length, literal, length);
    output->length += length;
}

void pd_jinja_output_string(struct pd_jinja_output *output, const struct pd_jinja_string *string)
{
    size_t start = output->length;

    pd_jinja_output_put(output, string->bytes, string->length, string->mark == PD_JINJA_LITERAL);
    if (string->mark == PD_JINJA_MIXED && !output->full)
        memcpy(output->marks + start, string->marks, string->length);
}

bool pd_jinja_output_value(const struct pd_jinja_output *output, struct pd_arena *arena,
                           struct pd_jinja_value *value)
{
    char *bytes;
    uint8_t *marks;

    *value = pd_jinja_text("", 0, PD_JINJA_TRUSTED);
    if (output->full)
        return false;
    if (output->length == 0)
        return true;
    bytes = pd_arena_take(arena, output->length);
    if (!bytes)
        return false;
    memcpy(bytes, output->bytes, output->length);
    value->string.bytes = bytes;
    value->string.length = output->length;
    if (!memchr(output->marks, 1, output->length))
        return true;
    if (!memchr(output->marks, 0, output->length)) {
        value->string.mark = PD_JINJA_LITERAL;
        return true;
    }
    marks = pd_arena_take(arena, output->length);
    if (!marks)
        return false;
    memcpy(marks, output->marks, output->length);
    value->string.mark = PD_JINJA_MIXED;
    value->string.marks = marks;
    return true;
}

struct pd_jinja_string pd_jinja_substring(const struct pd_jinja_string *string, size_t first,
                                          size_t length)
{
    struct pd_jinja_string part = *string;

    part.bytes += first;
    part.length = length;
    if (part.mark == PD_JINJA_MIXED)
        part.marks += first;
    return part;
}

static void put_trusted(struct pd_jinja_output *output, const char *text)
{
    pd_jinja_output_put(output, text, strlen(text), false);
}

/* The shortest digits that read back as the same double, written as Python's repr does. */
static void print_float(struct pd_jinja_output *output, double value)
{
    char text[64];
    int precision = 1;

    if (isnan(value)) {
        put_trusted(output, "nan");
        return;
    }
    if (isinf(value)) {
        put_trusted(output, value > 0 ? "inf" : "-inf");
        return;
    }
    do {
        snprintf(text, sizeof(text), "%.*e", precision - 1, value);
    } while (strtod(text, NULL) != value && precision++ < 17);
    {
        int exponent = atoi(strchr(text, 'e') + 1);

        if (exponent >= -4 && exponent < 16) {
            int decimals = precision - 1 - exponent;

            snprintf(text, sizeof(text), "%.*f", decimals > 1 ? decimals : 1, value);
        }
    }
    put_trusted(output, text);
}

/* What Python's repr shows as it is: everything but controls, unassigned and separators. */
static bool printable(utf8proc_int32_t code)
{
    switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return code == ' ';
    default:
        return true;
    }
}

static void escape_character(utf8proc_int32_t code, char quote, char escaped[12])
{
    escaped[0] = '\0';
    if (code == quote || code == '\\')
        snprintf(escaped, 12, "\\%c", (char)code);
    else if (code == '\n' || code == '\r' || code == '\t')
        snprintf(escaped, 12, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
    else if (!printable(code))
        snprintf(escaped, 12,
                 code < 0x100     ? "\\x%02x"
                 : code < 0x10000 ? "\\u%04x"
                                  : "\\U%08x",
                 (unsigned)code);
}

static void print_string_repr(struct pd_jinja_output *output, const struct pd_jinja_string *string)
{
    char quote =
        memchr(string->bytes, '\'', string->length) && !memchr(string->bytes, '"', string->length)
            ? '"'
            : '\'';

    pd_jinja_output_put(output, &quote, 1, false);
    for (size_t i = 0, length; i < string->length && !output->full; i += length) {
        utf8proc_int32_t code;
        utf8proc_ssize_t used = utf8proc_iterate((const utf8proc_uint8_t *)string->bytes + i,
                                                 (utf8proc_ssize_t)(string->length - i), &code);
        struct pd_jinja_string same;
        char escaped[12];

        length = used > 0 ? (size_t)used : 1;
        same = pd_jinja_substring(string, i, length);
        escape_character(used > 0 ? code : 0xfffd, quote, escaped);
        if (escaped[0])
            pd_jinja_output_put(output, escaped, strlen(escaped),
                                string->mark == PD_JINJA_LITERAL ||
                                    (string->mark == PD_JINJA_MIXED && string->marks[i]));
        else
            pd_jinja_output_string(output, &same);
    }
    pd_jinja_output_put(output, &quote, 1, false);
}

static void print_nested(struct pd_jinja_output *output, const struct pd_jinja_value *value,
                         bool repr, int depth)
{
    char number[32];

    if (depth > NESTING_MAX) {
        put_trusted(output, "...");
        return;
    }
    switch (value->kind) {
    case PD_JINJA_UNDEFINED:
        if (repr)
            put_trusted(output, "Undefined");
        break;
    case PD_JINJA_NONE:
        put_trusted(output, "None");
        break;
    case PD_JINJA_BOOL:
        put_trusted(output, value->boolean ? "True" : "False");
        break;
    case PD_JINJA_INT:
        snprintf(number, sizeof(number), "%lld", (long long)value->integer);
        put_trusted(output, number);
        break;
    case PD_JINJA_FLOAT:
        print_float(output, value->real);
        break;
    case PD_JINJA_STRING:
        if (repr)
            print_string_repr(output, &value->string);
        else
            pd_jinja_output_string(output, &value->string);
        break;
    case PD_JINJA_LIST:
        put_trusted(output, value->list->tuple ? "(" : "[");
        for (size_t i = 0; i < value->list->count && !output->full; i++) {
            put_trusted(output, i ? ", " : "");
            print_nested(output, &value->list->items[i], true, depth + 1);
        }
        if (value->list->tuple)
            put_trusted(output, value->list->count == 1 ? ",)" : ")");
        else
            put_trusted(output, "]");
        break;
    case PD_JINJA_DICT:
    case PD_JINJA_NAMESPACE:
        put_trusted(output, "{");
        for (size_t i = 0; i < value->dict->count && !output->full; i++) {
            put_trusted(output, i ? ", " : "");
            print_nested(output, &value->dict->entries[i].key, true, depth + 1);
            put_trusted(output, ": ");
            print_nested(output, &value->dict->entries[i].value, true, depth + 1);
        }
        put_trusted(output, "}");
        break;
    case PD_JINJA_MACRO:
    case PD_JINJA_FUNCTION:
        put_trusted(output, "<function>");
        break;
    }
}

void pd_jinja_print(struct pd_jinja_output *output, const struct pd_jinja_value *value, bool repr)
{
    print_nested(output, value, repr, 0);
}
