/* Methods of strings, lists and dicts, and the functions that every template may call. */

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "worker/text/jinja_text.h"

typedef struct pd_jinja_render render_t;
typedef struct pd_jinja_value value_t;
typedef const struct pd_jinja_arguments arguments_t;

enum method {
    M_CAPITALIZE,
    M_COUNT,
    M_CYCLE,
    M_ENDSWITH,
    M_FIND,
    M_GET,
    M_ISALNUM,
    M_ISALPHA,
    M_ISDIGIT,
    M_ISSPACE,
    M_ITEMS,
    M_JOIN,
    M_KEYS,
    M_LOWER,
    M_LSTRIP,
    M_REMOVEPREFIX,
    M_REMOVESUFFIX,
    M_REPLACE,
    M_RFIND,
    M_RSPLIT,
    M_RSTRIP,
    M_SPLIT,
    M_SPLITLINES,
    M_STARTSWITH,
    M_STRIP,
    M_TITLE,
    M_UPPER,
    M_VALUES,
};

static const char *const method_names[] = {
    "capitalize", "count",        "cycle",        "endswith", "find",  "get",    "isalnum",
    "isalpha",    "isdigit",      "isspace",      "items",    "join",  "keys",   "lower",
    "lstrip",     "removeprefix", "removesuffix", "replace",  "rfind", "rsplit", "rstrip",
    "split",      "splitlines",   "startswith",   "strip",    "title", "upper",  "values",
};

static int method_number(struct pd_string name)
{
    return pd_jinja_number_in(method_names, sizeof(method_names) / sizeof(*method_names), name);
}

bool pd_jinja_method_known(struct pd_string name)
{
    return method_number(name) >= 0;
}

/* The argument as a string; NULL if it was not given or is None. Any other type fails. */
static bool string_argument(render_t *render, arguments_t *arguments, int index,
                            const char *keyword, const struct pd_jinja_string **string)
{
    const value_t *value = pd_jinja_argument(arguments, index, keyword);

    *string = NULL;
    if (!value || value->kind == PD_JINJA_NONE)
        return true;
    if (value->kind != PD_JINJA_STRING)
        return pd_jinja_fail(render, PD_INVALID, "a string argument was expected, not %s",
                             pd_jinja_kind_name(value->kind));
    *string = &value->string;
    return true;
}

static bool required_string(render_t *render, arguments_t *arguments, int index,
                            const struct pd_jinja_string **string)
{
    if (!string_argument(render, arguments, index, NULL, string))
        return false;
    return *string || pd_jinja_fail(render, PD_INVALID, "a string argument is missing");
}

static int64_t integer_argument(arguments_t *arguments, int index, const char *keyword,
                                int64_t missing)
{
    const value_t *value = pd_jinja_argument(arguments, index, keyword);

    return value && value->kind == PD_JINJA_INT ? value->integer : missing;
}

static bool has_affix(const struct pd_jinja_string *string, const struct pd_jinja_string *affix,
                      bool at_end)
{
    return string->length >= affix->length &&
           memcmp(string->bytes + (at_end ? string->length - affix->length : 0), affix->bytes,
                  affix->length) == 0;
}

/* startswith and endswith take one string or a tuple of them. */
static bool affix_method(render_t *render, const struct pd_jinja_string *string,
                         arguments_t *arguments, bool at_end, value_t *out)
{
    const value_t *given = pd_jinja_argument(arguments, 0, NULL);
    const struct pd_jinja_string *affix;

    if (given && given->kind == PD_JINJA_LIST) {
        *out = pd_jinja_bool(false);
        for (size_t i = 0; i < given->list->count && !out->boolean; i++)
            if (given->list->items[i].kind == PD_JINJA_STRING)
                out->boolean = has_affix(string, &given->list->items[i].string, at_end);
        return true;
    }
    if (!required_string(render, arguments, 0, &affix))
        return false;
    *out = pd_jinja_bool(has_affix(string, affix, at_end));
    return true;
}

static bool remove_affix(render_t *render, const struct pd_jinja_string *string,
                         arguments_t *arguments, bool at_end, value_t *out)
{
    const struct pd_jinja_string *affix;

    if (!required_string(render, arguments, 0, &affix))
        return false;
    out->kind = PD_JINJA_STRING;
    out->string = *string;
    if (has_affix(string, affix, at_end))
        out->string =
            pd_jinja_substring(string, at_end ? 0 : affix->length, string->length - affix->length);
    return true;
}

static bool find_method(render_t *render, const struct pd_jinja_string *string,
                        arguments_t *arguments, int number, value_t *out)
{
    const struct pd_jinja_string *needle;
    size_t at = 0, last = SIZE_MAX, count = 0;

    if (!required_string(render, arguments, 0, &needle))
        return false;
    while ((at = pd_jinja_find(string, needle, at)) != SIZE_MAX) {
        last = at;
        count++;
        if (number == M_FIND)
            break;
        at += needle->length ? needle->length : 1;
    }
    if (number == M_COUNT) {
        *out = pd_jinja_int((int64_t)count);
        return true;
    }
    if (last == SIZE_MAX) {
        *out = pd_jinja_int(-1);
        return true;
    }
    {
        struct pd_jinja_string before = pd_jinja_substring(string, 0, last);

        *out = pd_jinja_int((int64_t)pd_jinja_characters(&before));
    }
    return true;
}

static bool replace_method(render_t *render, const struct pd_jinja_string *string,
                           arguments_t *arguments, value_t *out)
{
    const struct pd_jinja_string *old, *with;

    return required_string(render, arguments, 0, &old) &&
           required_string(render, arguments, 1, &with) &&
           pd_jinja_replace(render, string, old, with, integer_argument(arguments, 2, "count", -1),
                            out);
}

static bool split_method(render_t *render, const struct pd_jinja_string *string,
                         arguments_t *arguments, bool from_right, value_t *out)
{
    const struct pd_jinja_string *separator;
    int64_t count = integer_argument(arguments, 1, "maxsplit", -1);

    if (!string_argument(render, arguments, 0, "sep", &separator))
        return false;
    return from_right ? pd_jinja_rsplit(render, string, separator, count, out)
                      : pd_jinja_split(render, string, separator, count, out);
}

static bool strip_method(render_t *render, const struct pd_jinja_string *string,
                         arguments_t *arguments, bool left, bool right, value_t *out)
{
    const struct pd_jinja_string *set;

    if (!string_argument(render, arguments, 0, NULL, &set))
        return false;
    out->kind = PD_JINJA_STRING;
    out->string = pd_jinja_strip(string, set, left, right);
    return true;
}

static bool join_method(render_t *render, const struct pd_jinja_string *string,
                        arguments_t *arguments, value_t *out)
{
    const value_t *given = pd_jinja_argument(arguments, 0, NULL);
    struct pd_jinja_list *items;

    if (!given)
        return pd_jinja_fail(render, PD_INVALID, "join() needs an iterable");
    return pd_jinja_iterate(render, given, &items) && pd_jinja_join(render, items, string, out);
}

static bool string_method(render_t *render, const value_t *object, int number,
                          arguments_t *arguments, value_t *out)
{
    const struct pd_jinja_string *string = &object->string;

    switch (number) {
    case M_CAPITALIZE:
        return pd_jinja_change_case(render, string, PD_JINJA_CAPITALIZE, true, out);
    case M_LOWER:
        return pd_jinja_change_case(render, string, PD_JINJA_LOWER, true, out);
    case M_TITLE:
        return pd_jinja_change_case(render, string, PD_JINJA_TITLE, true, out);
    case M_UPPER:
        return pd_jinja_change_case(render, string, PD_JINJA_UPPER, true, out);
    case M_COUNT:
    case M_FIND:
    case M_RFIND:
        return find_method(render, string, arguments, number, out);
    case M_STARTSWITH:
    case M_ENDSWITH:
        return affix_method(render, string, arguments, number == M_ENDSWITH, out);
    case M_REMOVEPREFIX:
    case M_REMOVESUFFIX:
        return remove_affix(render, string, arguments, number == M_REMOVESUFFIX, out);
    case M_ISALNUM:
        *out = pd_jinja_bool(pd_jinja_all(string, pd_jinja_is_alnum));
        return true;
    case M_ISALPHA:
        *out = pd_jinja_bool(pd_jinja_all(string, pd_jinja_is_letter));
        return true;
    case M_ISDIGIT:
        *out = pd_jinja_bool(pd_jinja_all(string, pd_jinja_is_digit));
        return true;
    case M_ISSPACE:
        *out = pd_jinja_bool(pd_jinja_all(string, pd_jinja_is_space));
        return true;
    case M_JOIN:
        return join_method(render, string, arguments, out);
    case M_REPLACE:
        return replace_method(render, string, arguments, out);
    case M_SPLIT:
    case M_RSPLIT:
        return split_method(render, string, arguments, number == M_RSPLIT, out);
    case M_SPLITLINES: {
        const value_t *keep = pd_jinja_argument(arguments, 0, "keepends");

        return pd_jinja_splitlines(render, string, keep && pd_jinja_truth(keep), out);
    }
    case M_STRIP:
    case M_LSTRIP:
    case M_RSTRIP:
        return strip_method(render, string, arguments, number != M_RSTRIP, number != M_LSTRIP, out);
    default:
        return pd_jinja_fail(render, PD_INVALID, "'str' object has no method '%s'",
                             method_names[number]);
    }
}

static bool dict_listing(render_t *render, const struct pd_jinja_dict *dict, int number,
                         value_t *out)
{
    if (!pd_jinja_spend(render, dict->count))
        return false;
    if (!pd_jinja_list_new(&render->arena, dict->count, out))
        return pd_jinja_exhausted(render);
    for (size_t i = 0; i < dict->count; i++) {
        const struct pd_jinja_entry *entry = &dict->entries[i];
        value_t item = number == M_KEYS ? entry->key : entry->value;

        if (number == M_ITEMS) {
            if (!pd_jinja_list_new(&render->arena, 2, &item))
                return pd_jinja_exhausted(render);
            item.list->items[0] = entry->key;
            item.list->items[1] = entry->value;
            item.list->count = 2;
            item.list->tuple = true;
        }
        out->list->items[out->list->count++] = item;
    }
    return true;
}

static bool dict_method(render_t *render, const value_t *object, int number, arguments_t *arguments,
                        value_t *out)
{
    const value_t *key, *missing, *found;

    switch (number) {
    case M_ITEMS:
    case M_KEYS:
    case M_VALUES:
        return dict_listing(render, object->dict, number, out);
    case M_GET:
        key = pd_jinja_argument(arguments, 0, NULL);
        missing = pd_jinja_argument(arguments, 1, "default");
        if (!key)
            return pd_jinja_fail(render, PD_INVALID, "get() needs a key");
        found = pd_jinja_dict_get(object->dict, key);
        *out = found ? *found : missing ? *missing : pd_jinja_none();
        return pd_jinja_spend(render, object->dict->count / 8 + 1);
    default:
        return pd_jinja_fail(render, PD_INVALID, "'dict' object has no method '%s'",
                             method_names[number]);
    }
}

/* loop.cycle('odd', 'even') */
static bool cycle_method(render_t *render, const value_t *loop, arguments_t *arguments,
                         value_t *out)
{
    const value_t *index = pd_jinja_dict_find(loop->dict, "index0", 6);

    if (!index || index->kind != PD_JINJA_INT || arguments->count == 0)
        return pd_jinja_fail(render, PD_INVALID, "cycle() belongs to a loop and needs values");
    *out = arguments->values[index->integer % arguments->count];
    return true;
}

bool pd_jinja_method(render_t *render, const value_t *object, struct pd_string name,
                     arguments_t *arguments, value_t *out)
{
    int number = method_number(name);

    if (object->kind == PD_JINJA_STRING)
        return string_method(render, object, number, arguments, out);
    if (object->kind == PD_JINJA_DICT)
        return dict_method(render, object, number, arguments, out);
    if (object->kind == PD_JINJA_NAMESPACE && number == M_CYCLE)
        return cycle_method(render, object, arguments, out);
    if (object->kind == PD_JINJA_UNDEFINED)
        return pd_jinja_fail(render, PD_INVALID, "'%.*s' is undefined",
                             (int)(object->missing.length < 100 ? object->missing.length : 100),
                             object->missing.bytes);
    return pd_jinja_fail(render, PD_INVALID, "'%s' object has no method '%s'",
                         pd_jinja_kind_name(object->kind), method_names[number]);
}

/* ---- functions ------------------------------------------------------------------------------- */

bool pd_jinja_functions_define(render_t *render)
{
    static const char *const names[] = {"range", "namespace", "dict", "raise_exception",
                                        "strftime_now"};

    for (int i = 0; i < (int)(sizeof(names) / sizeof(*names)); i++) {
        value_t function = {.kind = PD_JINJA_FUNCTION, .function = i};

        if (!pd_jinja_render_define(render, names[i], function))
            return false;
    }
    return true;
}

static bool range(render_t *render, arguments_t *arguments, value_t *out)
{
    int64_t bounds[3] = {0, 0, 1}, count;

    for (int i = 0; i < arguments->count && i < 3; i++) {
        if (arguments->values[i].kind != PD_JINJA_INT)
            return pd_jinja_fail(render, PD_INVALID, "range() takes integers");
        bounds[i] = arguments->values[i].integer;
    }
    if (arguments->count == 1) {
        bounds[1] = bounds[0];
        bounds[0] = 0;
    }
    for (int i = 0; i < 3; i++)
        if (bounds[i] > INT32_MAX || bounds[i] < -INT32_MAX)
            return pd_jinja_fail(render, PD_INVALID, "range() is too large");
    if (bounds[2] == 0 || arguments->count == 0)
        return pd_jinja_fail(render, PD_INVALID, "range() needs a stop and a step that is not 0");
    count = bounds[2] > 0 ? (bounds[1] - bounds[0] + bounds[2] - 1) / bounds[2]
                          : (bounds[0] - bounds[1] - bounds[2] - 1) / -bounds[2];
    count = count < 0 ? 0 : count;
    if (count > 100000)
        return pd_jinja_fail(render, PD_INVALID, "range() is too large");
    if (!pd_jinja_list_new(&render->arena, (size_t)count, out))
        return pd_jinja_exhausted(render);
    for (int64_t i = 0; i < count; i++)
        out->list->items[i] = pd_jinja_int(bounds[0] + i * bounds[2]);
    out->list->count = (size_t)count;
    return pd_jinja_spend(render, (uint64_t)count);
}

/* dict(a=1) and namespace(a=1), both also from another dict. */
static bool from_keywords(render_t *render, arguments_t *arguments, bool space, value_t *out)
{
    const value_t *base = pd_jinja_argument(arguments, 0, NULL);
    bool ok = pd_jinja_dict_new(&render->arena, (size_t)arguments->count, out);

    for (size_t i = 0; ok && base && base->kind == PD_JINJA_DICT && i < base->dict->count; i++)
        ok = pd_jinja_dict_append(&render->arena, out->dict, base->dict->entries[i].key,
                                  base->dict->entries[i].value);
    for (int i = 0; ok && i < arguments->count; i++) {
        struct pd_string name = arguments->keywords[i];

        if (name.length)
            ok = pd_jinja_dict_set(&render->arena, out->dict,
                                   pd_jinja_text(name.bytes, name.length, PD_JINJA_TRUSTED),
                                   arguments->values[i]);
    }
    if (!ok)
        return pd_jinja_exhausted(render);
    if (space)
        out->kind = PD_JINJA_NAMESPACE;
    return true;
}

static bool raise_exception(render_t *render, arguments_t *arguments)
{
    const value_t *message = pd_jinja_argument(arguments, 0, "message");

    if (!message || message->kind != PD_JINJA_STRING)
        return pd_jinja_fail(render, PD_INVALID, "the chat template refused the conversation");
    return pd_jinja_fail(render, PD_INVALID, "%.*s",
                         (int)(message->string.length < 400 ? message->string.length : 400),
                         message->string.bytes);
}

static bool strftime_now(render_t *render, arguments_t *arguments, value_t *out)
{
    const struct pd_jinja_string *format;
    char pattern[128], text[256];
    time_t now = time(NULL);
    struct pd_jinja_output built;
    struct tm local;
    bool ok;

    if (!required_string(render, arguments, 0, &format))
        return false;
    if (format->length >= sizeof(pattern))
        return pd_jinja_fail(render, PD_INVALID, "strftime_now() has too long a format");
    memcpy(pattern, format->bytes, format->length);
    pattern[format->length] = '\0';
    localtime_r(&now, &local);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    text[strftime(text, sizeof(text), pattern, &local)] = '\0';
#pragma GCC diagnostic pop
    pd_jinja_output_init(&built, sizeof(text));
    pd_jinja_output_put(&built, text, strlen(text), format->mark != PD_JINJA_TRUSTED);
    ok = pd_jinja_output_value(&built, &render->arena, out);
    pd_jinja_output_free(&built);
    return ok || pd_jinja_exhausted(render);
}

bool pd_jinja_call_function(render_t *render, int function, arguments_t *arguments, value_t *out)
{
    switch (function) {
    case PD_JINJA_RANGE:
        return range(render, arguments, out);
    case PD_JINJA_MAKE_NAMESPACE:
        return from_keywords(render, arguments, true, out);
    case PD_JINJA_MAKE_DICT:
        return from_keywords(render, arguments, false, out);
    case PD_JINJA_STRFTIME_NOW:
        return strftime_now(render, arguments, out);
    default:
        return raise_exception(render, arguments);
    }
}
