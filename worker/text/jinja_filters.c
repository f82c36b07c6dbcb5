/* Filters: the table that the parser checks names against, and what they do. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/text/jinja_text.h"

typedef struct pd_jinja_render render_t;
typedef struct pd_jinja_value value_t;
typedef const struct pd_jinja_arguments arguments_t;

enum filter {
    F_ABS,
    F_ATTR,
    F_CAPITALIZE,
    F_COUNT,
    F_D,
    F_DEFAULT,
    F_DICTSORT,
    F_E,
    F_ESCAPE,
    F_FIRST,
    F_FLOAT,
    F_INDENT,
    F_INT,
    F_ITEMS,
    F_JOIN,
    F_LAST,
    F_LENGTH,
    F_LIST,
    F_LOWER,
    F_MAP,
    F_MAX,
    F_MIN,
    F_REJECT,
    F_REJECTATTR,
    F_REPLACE,
    F_REVERSE,
    F_ROUND,
    F_SAFE,
    F_SELECT,
    F_SELECTATTR,
    F_SORT,
    F_STRING,
    F_SUM,
    F_TITLE,
    F_TOJSON,
    F_TRIM,
    F_UNIQUE,
    F_UPPER,
};

static const char *const filter_names[] = {
    "abs",     "attr",    "capitalize", "count",  "d",      "default",    "dictsort", "e",
    "escape",  "first",   "float",      "indent", "int",    "items",      "join",     "last",
    "length",  "list",    "lower",      "map",    "max",    "min",        "reject",   "rejectattr",
    "replace", "reverse", "round",      "safe",   "select", "selectattr", "sort",     "string",
    "sum",     "title",   "tojson",     "trim",   "unique", "upper",
};

int pd_jinja_filter_number(struct pd_string name)
{
    return pd_jinja_number_in(filter_names, sizeof(filter_names) / sizeof(*filter_names), name);
}

/* ---- filters over sequences ------------------------------------------------------------------ */

static bool new_list(render_t *render, size_t capacity, value_t *out)
{
    return pd_jinja_list_new(&render->arena, capacity, out) || pd_jinja_exhausted(render);
}

static bool push(render_t *render, value_t *list, value_t item)
{
    return pd_jinja_list_push(&render->arena, list->list, item) || pd_jinja_exhausted(render);
}

/* item.a.b, as the attribute arguments of map, sort, selectattr and their like write it. */
static bool attribute_path(render_t *render, const value_t *item, const value_t *path, value_t *out)
{
    value_t parts, dot = pd_jinja_text(".", 1, PD_JINJA_TRUSTED);

    if (path->kind != PD_JINJA_STRING)
        return pd_jinja_lookup(render, item, path, out);
    if (!pd_jinja_split(render, &path->string, &dot.string, -1, &parts))
        return false;
    *out = *item;
    for (size_t i = 0; i < parts.list->count; i++) {
        value_t object = *out;

        if (!pd_jinja_lookup(render, &object, &parts.list->items[i], out))
            return false;
    }
    return true;
}

/* The arguments from `first` on, as another filter or test gets them. */
static void shifted(arguments_t *arguments, int first, struct pd_jinja_arguments *rest)
{
    rest->count = 0;
    for (int i = first; i < arguments->count; i++) {
        rest->values[rest->count] = arguments->values[i];
        rest->keywords[rest->count++] = arguments->keywords[i];
    }
}

/* select, reject, selectattr, rejectattr */
static bool select_items(render_t *render, int number, const struct pd_jinja_list *items,
                         arguments_t *arguments, value_t *out)
{
    bool by_attribute = number == F_SELECTATTR || number == F_REJECTATTR;
    bool wanted = number == F_SELECT || number == F_SELECTATTR;
    const value_t *attribute = by_attribute ? pd_jinja_argument(arguments, 0, NULL) : NULL;
    const value_t *name = pd_jinja_argument(arguments, by_attribute, NULL);
    struct pd_jinja_arguments rest;
    int test = -1;

    if (by_attribute && !attribute)
        return pd_jinja_fail(render, PD_INVALID, "selectattr needs an attribute");
    if (name && name->kind == PD_JINJA_STRING) {
        test = pd_jinja_test_number((struct pd_string){name->string.bytes, name->string.length});
        if (test < 0)
            return pd_jinja_fail(render, PD_UNSUPPORTED, "a test that select names is not known");
    }
    shifted(arguments, by_attribute + 1, &rest);
    if (!new_list(render, 0, out))
        return false;
    for (size_t i = 0; i < items->count; i++) {
        value_t subject = items->items[i];
        bool passes;

        if (attribute && !attribute_path(render, &items->items[i], attribute, &subject))
            return false;
        if (test < 0)
            passes = pd_jinja_truth(&subject);
        else if (!pd_jinja_test(render, test, &subject, &rest, &passes))
            return false;
        if (passes == wanted && !push(render, out, items->items[i]))
            return false;
    }
    return true;
}

static bool map_items(render_t *render, const struct pd_jinja_list *items, arguments_t *arguments,
                      value_t *out)
{
    const value_t *attribute = pd_jinja_argument(arguments, PD_JINJA_ARGUMENTS_MAX, "attribute");
    const value_t *missing = pd_jinja_argument(arguments, PD_JINJA_ARGUMENTS_MAX, "default");
    const value_t *name = pd_jinja_argument(arguments, 0, NULL);
    struct pd_jinja_arguments rest;
    int filter = -1;

    if (!attribute && name && name->kind == PD_JINJA_STRING)
        filter =
            pd_jinja_filter_number((struct pd_string){name->string.bytes, name->string.length});
    if (!attribute && filter < 0)
        return pd_jinja_fail(render, PD_UNSUPPORTED, "a filter that map names is not known");
    shifted(arguments, 1, &rest);
    if (!new_list(render, items->count, out))
        return false;
    for (size_t i = 0; i < items->count; i++) {
        value_t result;

        if (attribute ? !attribute_path(render, &items->items[i], attribute, &result)
                      : !pd_jinja_filter(render, filter, &items->items[i], &rest, &result))
            return false;
        if (attribute && missing && result.kind == PD_JINJA_UNDEFINED)
            result = *missing;
        if (!push(render, out, result))
            return false;
    }
    return true;
}

/* What an item is ordered by: Jinja ignores the case of strings unless told otherwise. */
static bool sort_key(render_t *render, const value_t *item, const value_t *attribute,
                     bool case_sensitive, value_t *key)
{
    value_t plain = *item;

    if (attribute && !attribute_path(render, item, attribute, &plain))
        return false;
    *key = plain;
    if (plain.kind == PD_JINJA_STRING && !case_sensitive)
        return pd_jinja_change_case(render, &plain.string, PD_JINJA_LOWER, true, key);
    return true;
}

struct keyed {
    value_t key, item;
    size_t index;
};

static int by_key(const void *a, const void *b)
{
    const struct keyed *x = a, *y = b;
    int order = 0;

    pd_jinja_compare(&x->key, &y->key, &order);
    return order ? order : (x->index > y->index) - (x->index < y->index);
}

static bool sort_items(render_t *render, const struct pd_jinja_list *items,
                       const value_t *attribute, bool reverse, bool case_sensitive, value_t *out)
{
    size_t count = items->count;
    struct keyed *keyed = pd_arena_take(&render->arena, (count + 1) * sizeof(*keyed));

    if (!keyed)
        return pd_jinja_exhausted(render);
    if (!pd_jinja_spend(render, count * 8) || !new_list(render, count, out))
        return false;
    for (size_t i = 0; i < count; i++) {
        int order;

        keyed[i].item = items->items[i];
        keyed[i].index = reverse ? count - i : i; /* equal items keep their order */
        if (!sort_key(render, &items->items[i], attribute, case_sensitive, &keyed[i].key))
            return false;
        if (!pd_jinja_compare(&keyed[0].key, &keyed[i].key, &order))
            return pd_jinja_fail(render, PD_INVALID, "'%s' and '%s' cannot be compared",
                                 pd_jinja_kind_name(keyed[0].key.kind),
                                 pd_jinja_kind_name(keyed[i].key.kind));
    }
    qsort(keyed, count, sizeof(*keyed), by_key);
    for (size_t i = 0; i < count; i++)
        out->list->items[i] = keyed[reverse ? count - 1 - i : i].item;
    out->list->count = count;
    return true;
}

static bool sort_filter(render_t *render, const struct pd_jinja_list *items, arguments_t *arguments,
                        value_t *out)
{
    const value_t *reverse = pd_jinja_argument(arguments, 0, "reverse");
    const value_t *sensitive = pd_jinja_argument(arguments, 1, "case_sensitive");
    const value_t *attribute = pd_jinja_argument(arguments, 2, "attribute");

    return sort_items(render, items, attribute, reverse && pd_jinja_truth(reverse),
                      sensitive && pd_jinja_truth(sensitive), out);
}

static bool dict_items(render_t *render, const value_t *input, value_t *out)
{
    static const struct pd_string items = {"items", 5};
    struct pd_jinja_arguments none = {.count = 0};

    if (input->kind == PD_JINJA_UNDEFINED)
        return new_list(render, 0, out);
    if (input->kind != PD_JINJA_DICT)
        return pd_jinja_fail(render, PD_INVALID, "Can only get item pairs from a mapping.");
    return pd_jinja_method(render, input, items, &none, out);
}

static bool dictsort(render_t *render, const value_t *input, arguments_t *arguments, value_t *out)
{
    const value_t *sensitive = pd_jinja_argument(arguments, 0, "case_sensitive");
    const value_t *by = pd_jinja_argument(arguments, 1, "by");
    const value_t *reverse = pd_jinja_argument(arguments, 2, "reverse");
    bool by_value = by && by->kind == PD_JINJA_STRING && by->string.length == 5;
    value_t pairs, position = pd_jinja_int(by_value);

    return dict_items(render, input, &pairs) &&
           sort_items(render, pairs.list, &position, reverse && pd_jinja_truth(reverse),
                      sensitive && pd_jinja_truth(sensitive), out);
}

static bool unique(render_t *render, const struct pd_jinja_list *items, arguments_t *arguments,
                   value_t *out)
{
    const value_t *sensitive = pd_jinja_argument(arguments, 0, "case_sensitive");
    const value_t *attribute = pd_jinja_argument(arguments, 1, "attribute");
    value_t keys;

    if (!new_list(render, 0, out) || !new_list(render, 0, &keys))
        return false;
    for (size_t i = 0; i < items->count; i++) {
        value_t key;
        bool seen;

        if (!sort_key(render, &items->items[i], attribute, sensitive && pd_jinja_truth(sensitive),
                      &key) ||
            !pd_jinja_contains(render, &key, &keys, &seen))
            return false;
        if (!seen && (!push(render, &keys, key) || !push(render, out, items->items[i])))
            return false;
    }
    return true;
}

static bool extreme(render_t *render, const struct pd_jinja_list *items, arguments_t *arguments,
                    bool largest, value_t *out)
{
    const value_t *attribute = pd_jinja_argument(arguments, 1, "attribute");
    value_t sorted;

    if (!sort_items(render, items, attribute, largest, false, &sorted))
        return false;
    *out = sorted.list->count ? sorted.list->items[0]
                              : pd_jinja_undefined((struct pd_string){"the item", 8});
    return true;
}

static bool sum(render_t *render, const struct pd_jinja_list *items, arguments_t *arguments,
                value_t *out)
{
    const value_t *attribute = pd_jinja_argument(arguments, 0, "attribute");
    double real = 0;
    int64_t integer = 0;
    bool integers = true;

    for (size_t i = 0; i < items->count; i++) {
        value_t item = items->items[i];

        if (attribute && attribute->kind != PD_JINJA_NONE &&
            !attribute_path(render, &items->items[i], attribute, &item))
            return false;
        if (item.kind == PD_JINJA_INT) {
            if (__builtin_add_overflow(integer, item.integer, &integer))
                return pd_jinja_fail(render, PD_INVALID, "a sum is too large");
            real += (double)item.integer;
        } else if (item.kind == PD_JINJA_FLOAT) {
            real += item.real;
            integers = false;
        } else {
            return pd_jinja_fail(render, PD_INVALID, "sum needs numbers");
        }
    }
    *out = integers ? pd_jinja_int(integer) : pd_jinja_float(real);
    return true;
}

static bool reverse(render_t *render, const struct pd_jinja_list *items, value_t *out)
{
    if (!pd_jinja_spend(render, items->count) || !new_list(render, items->count, out))
        return false;
    for (size_t i = 0; i < items->count; i++)
        out->list->items[i] = items->items[items->count - 1 - i];
    out->list->count = items->count;
    return true;
}

static bool join(render_t *render, const struct pd_jinja_list *items, arguments_t *arguments,
                 value_t *out)
{
    const value_t *separator = pd_jinja_argument(arguments, 0, "d");
    const value_t *attribute = pd_jinja_argument(arguments, 1, "attribute");
    value_t none = pd_jinja_text("", 0, PD_JINJA_TRUSTED), picked;

    if (separator && separator->kind != PD_JINJA_STRING)
        return pd_jinja_fail(render, PD_INVALID, "join needs a string");
    if (!attribute)
        return pd_jinja_join(render, items, separator ? &separator->string : &none.string, out);
    if (!new_list(render, items->count, &picked))
        return false;
    for (size_t i = 0; i < items->count; i++) {
        value_t item;

        if (!attribute_path(render, &items->items[i], attribute, &item) ||
            !push(render, &picked, item))
            return false;
    }
    return pd_jinja_join(render, picked.list, separator ? &separator->string : &none.string, out);
}

static bool over_sequence(render_t *render, int number, const value_t *input,
                          arguments_t *arguments, value_t *out)
{
    static const struct pd_string item = {"the item", 8};
    struct pd_jinja_list *items;

    if (!pd_jinja_iterate(render, input, &items) || !pd_jinja_spend(render, items->count))
        return false;
    switch (number) {
    case F_FIRST:
        *out = items->count ? items->items[0] : pd_jinja_undefined(item);
        return true;
    case F_LAST:
        *out = items->count ? items->items[items->count - 1] : pd_jinja_undefined(item);
        return true;
    case F_LIST:
        if (!new_list(render, items->count, out))
            return false;
        if (items->count)
            memcpy(out->list->items, items->items, items->count * sizeof(*items->items));
        out->list->count = items->count;
        return true;
    case F_JOIN:
        return join(render, items, arguments, out);
    case F_MAP:
        return map_items(render, items, arguments, out);
    case F_SORT:
        return sort_filter(render, items, arguments, out);
    case F_UNIQUE:
        return unique(render, items, arguments, out);
    case F_MAX:
    case F_MIN:
        return extreme(render, items, arguments, number == F_MAX, out);
    case F_SUM:
        return sum(render, items, arguments, out);
    case F_REVERSE:
        return reverse(render, items, out);
    default:
        return select_items(render, number, items, arguments, out);
    }
}

/* ---- filters over text and numbers ----------------------------------------------------------- */

static bool printed(render_t *render, const value_t *input, value_t *out)
{
    struct pd_jinja_output built;
    bool ok;

    if (input->kind == PD_JINJA_STRING) {
        *out = *input;
        return true;
    }
    pd_jinja_output_init(&built, render->limit);
    pd_jinja_print(&built, input, false);
    ok = pd_jinja_output_value(&built, &render->arena, out);
    pd_jinja_output_free(&built);
    return ok || pd_jinja_exhausted(render);
}

static bool escape(render_t *render, const value_t *input, value_t *out)
{
    static const char *const pairs[][2] = {
        {"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}};

    *out = *input;
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
        value_t from = pd_jinja_text(pairs[i][0], 1, PD_JINJA_TRUSTED);
        value_t to = pd_jinja_text(pairs[i][1], strlen(pairs[i][1]), PD_JINJA_TRUSTED);
        struct pd_jinja_string text = out->string;

        if (!pd_jinja_replace(render, &text, &from.string, &to.string, -1, out))
            return false;
    }
    return true;
}

/* The lines of a text, an empty last one included if it ends with a newline. */
static bool all_lines(render_t *render, const struct pd_jinja_string *text, value_t *lines)
{
    struct pd_jinja_string last;

    if (!pd_jinja_splitlines(render, text, true, lines))
        return false;
    if (lines->list->count == 0)
        return push(render, lines, pd_jinja_text("", 0, PD_JINJA_TRUSTED));
    last = lines->list->items[lines->list->count - 1].string;
    if (!pd_jinja_splitlines(render, text, false, lines))
        return false;
    if (lines->list->items[lines->list->count - 1].string.length == last.length)
        return true;
    return push(render, lines, pd_jinja_text("", 0, PD_JINJA_TRUSTED));
}

/* Indents every line but the first, which `first` asks for, and empty ones, which `blank` does. */
static bool indent(render_t *render, const value_t *input, arguments_t *arguments, value_t *out)
{
    const value_t *width = pd_jinja_argument(arguments, 0, "width");
    const value_t *first = pd_jinja_argument(arguments, 1, "first");
    const value_t *blank = pd_jinja_argument(arguments, 2, "blank");
    int64_t spaces = !width ? 4 : width->kind == PD_JINJA_INT ? width->integer : 0;
    struct pd_jinja_output built;
    value_t lines;
    bool ok;

    if (spaces < 0 || spaces > 1000)
        return pd_jinja_fail(render, PD_INVALID, "indent is too wide");
    if (!all_lines(render, &input->string, &lines))
        return false;
    pd_jinja_output_init(&built, render->limit);
    for (size_t i = 0; i < lines.list->count && !built.full; i++) {
        const struct pd_jinja_string *line = &lines.list->items[i].string;
        bool indented = i == 0 ? first && pd_jinja_truth(first)
                               : line->length || (blank && pd_jinja_truth(blank));

        if (i > 0)
            pd_jinja_output_put(&built, "\n", 1, false);
        for (int64_t j = 0; indented && j < spaces; j++)
            pd_jinja_output_put(&built, " ", 1, false);
        if (indented && width && width->kind == PD_JINJA_STRING)
            pd_jinja_output_string(&built, &width->string);
        pd_jinja_output_string(&built, line);
    }
    ok = pd_jinja_output_value(&built, &render->arena, out);
    pd_jinja_output_free(&built);
    return ok || pd_jinja_exhausted(render);
}

static bool replace(render_t *render, const value_t *input, arguments_t *arguments, value_t *out)
{
    const value_t *old = pd_jinja_argument(arguments, 0, "old");
    const value_t *with = pd_jinja_argument(arguments, 1, "new");
    const value_t *count = pd_jinja_argument(arguments, 2, "count");

    if (!old || !with || old->kind != PD_JINJA_STRING || with->kind != PD_JINJA_STRING)
        return pd_jinja_fail(render, PD_INVALID, "replace needs two strings");
    return pd_jinja_replace(render, &input->string, &old->string, &with->string,
                            count && count->kind == PD_JINJA_INT ? count->integer : -1, out);
}

static bool trim(render_t *render, const value_t *input, arguments_t *arguments, value_t *out)
{
    const value_t *set = pd_jinja_argument(arguments, 0, "chars");

    if (set && set->kind != PD_JINJA_STRING)
        return pd_jinja_fail(render, PD_INVALID, "trim needs a string");
    *out = *input;
    out->string = pd_jinja_strip(&input->string, set ? &set->string : NULL, true, true);
    return true;
}

static bool over_text(render_t *render, int number, const value_t *input, arguments_t *arguments,
                      value_t *out)
{
    value_t text;

    if (!printed(render, input, &text))
        return false;
    switch (number) {
    case F_CAPITALIZE:
        return pd_jinja_change_case(render, &text.string, PD_JINJA_CAPITALIZE, false, out);
    case F_LOWER:
        return pd_jinja_change_case(render, &text.string, PD_JINJA_LOWER, false, out);
    case F_UPPER:
        return pd_jinja_change_case(render, &text.string, PD_JINJA_UPPER, false, out);
    case F_TITLE:
        return pd_jinja_change_case(render, &text.string, PD_JINJA_TITLE, false, out);
    case F_E:
    case F_ESCAPE:
        return escape(render, &text, out);
    case F_INDENT:
        return indent(render, &text, arguments, out);
    case F_REPLACE:
        return replace(render, &text, arguments, out);
    case F_TRIM:
        return trim(render, &text, arguments, out);
    default: /* string, safe */
        *out = text;
        return true;
    }
}

static bool to_number(render_t *render, int number, const value_t *input, arguments_t *arguments,
                      value_t *out)
{
    const value_t *missing = pd_jinja_argument(arguments, 0, "default");
    char text[64] = "", *end = text;
    double real = 0;

    if (input->kind == PD_JINJA_STRING) {
        struct pd_jinja_string bare = pd_jinja_strip(&input->string, NULL, true, true);
        size_t length = bare.length < sizeof(text) - 1 ? bare.length : sizeof(text) - 1;

        memcpy(text, bare.bytes, length);
        text[length] = '\0';
        real = strtod(text, &end);
        if (end == text || *end) {
            *out = missing ? *missing : number == F_INT ? pd_jinja_int(0) : pd_jinja_float(0);
            return true;
        }
    } else if (input->kind == PD_JINJA_INT || input->kind == PD_JINJA_BOOL) {
        real = input->kind == PD_JINJA_INT ? (double)input->integer : input->boolean;
        if (number == F_INT && input->kind == PD_JINJA_INT) {
            *out = *input;
            return true;
        }
    } else if (input->kind == PD_JINJA_FLOAT) {
        real = input->real;
    }
    if (number == F_FLOAT)
        *out = pd_jinja_float(real);
    else if (isfinite(real) && fabs(real) < 9e18)
        *out = pd_jinja_int((int64_t)real);
    else
        return pd_jinja_fail(render, PD_INVALID, "a number is too large for an integer");
    return true;
}

static bool absolute(render_t *render, const value_t *input, value_t *out)
{
    *out = *input;
    if (input->kind == PD_JINJA_FLOAT)
        out->real = fabs(input->real);
    else if (input->kind == PD_JINJA_INT && input->integer != INT64_MIN)
        out->integer = input->integer < 0 ? -input->integer : input->integer;
    else
        return pd_jinja_fail(render, PD_INVALID, "abs needs a number");
    return true;
}

static bool round_number(render_t *render, const value_t *input, arguments_t *arguments,
                         value_t *out)
{
    const value_t *precision = pd_jinja_argument(arguments, 0, "precision");
    const value_t *method = pd_jinja_argument(arguments, 1, "method");
    int64_t digits = precision && precision->kind == PD_JINJA_INT ? precision->integer : 0;
    double scale, scaled;

    if (input->kind != PD_JINJA_FLOAT && input->kind != PD_JINJA_INT)
        return pd_jinja_fail(render, PD_INVALID, "round needs a number");
    scale = pow(10, (double)digits);
    scaled = (input->kind == PD_JINJA_INT ? (double)input->integer : input->real) * scale;
    if (method && method->kind == PD_JINJA_STRING && method->string.length == 4)
        scaled = ceil(scaled);
    else if (method && method->kind == PD_JINJA_STRING && method->string.bytes[0] == 'f')
        scaled = floor(scaled);
    else
        scaled = nearbyint(scaled); /* to even, as Python does */
    *out = pd_jinja_float(scaled / scale);
    return true;
}

static struct pd_string separator_of(const value_t *separators, size_t index, const char *missing)
{
    if (separators && separators->kind == PD_JINJA_LIST && index < separators->list->count &&
        separators->list->items[index].kind == PD_JINJA_STRING) {
        const struct pd_jinja_string *string = &separators->list->items[index].string;

        return (struct pd_string){string->bytes, string->length};
    }
    return (struct pd_string){missing, strlen(missing)};
}

static bool tojson(render_t *render, const value_t *input, arguments_t *arguments, value_t *out)
{
    const value_t *ascii = pd_jinja_argument(arguments, 0, "ensure_ascii");
    const value_t *width = pd_jinja_argument(arguments, 1, "indent");
    const value_t *separators = pd_jinja_argument(arguments, 2, "separators");
    const value_t *sorted = pd_jinja_argument(arguments, 3, "sort_keys");
    bool indented = width && width->kind == PD_JINJA_INT && width->integer >= 0;
    struct pd_jinja_json_style style = {
        .indent = indented ? (int)(width->integer < 32 ? width->integer : 32) : -1,
        .sort_keys = sorted && pd_jinja_truth(sorted),
        .ascii = ascii && pd_jinja_truth(ascii),
        .item_separator = separator_of(separators, 0, indented ? "," : ", "),
        .key_separator = separator_of(separators, 1, ": ")};
    struct pd_jinja_output built;
    bool ok;

    pd_jinja_output_init(&built, render->limit);
    ok = pd_jinja_to_json(&built, input, &style);
    if (!ok && !built.full)
        pd_jinja_fail(render, PD_INVALID, "Object of type %s is not JSON serializable",
                      pd_jinja_kind_name(input->kind));
    ok = ok && pd_jinja_spend(render, built.length / 64 + 1) &&
         pd_jinja_output_value(&built, &render->arena, out);
    pd_jinja_output_free(&built);
    return ok || pd_jinja_exhausted(render);
}

static bool length(render_t *render, const value_t *input, value_t *out)
{
    switch (input->kind) {
    case PD_JINJA_STRING:
        *out = pd_jinja_int((int64_t)pd_jinja_characters(&input->string));
        return pd_jinja_spend(render, input->string.length / 256 + 1);
    case PD_JINJA_LIST:
        *out = pd_jinja_int((int64_t)input->list->count);
        return true;
    case PD_JINJA_DICT:
        *out = pd_jinja_int((int64_t)input->dict->count);
        return true;
    case PD_JINJA_UNDEFINED:
        *out = pd_jinja_int(0);
        return true;
    default:
        return pd_jinja_fail(render, PD_INVALID, "object of type '%s' has no len()",
                             pd_jinja_kind_name(input->kind));
    }
}

static bool default_value(const value_t *input, arguments_t *arguments, value_t *out)
{
    const value_t *missing = pd_jinja_argument(arguments, 0, "default_value");
    const value_t *falsy = pd_jinja_argument(arguments, 1, "boolean");
    bool absent = input->kind == PD_JINJA_UNDEFINED ||
                  (falsy && pd_jinja_truth(falsy) && !pd_jinja_truth(input));

    *out = !absent ? *input : missing ? *missing : pd_jinja_text("", 0, PD_JINJA_TRUSTED);
    return true;
}

bool pd_jinja_filter(render_t *render, int number, const value_t *input, arguments_t *arguments,
                     value_t *out)
{
    const value_t *name;

    if (!pd_jinja_spend(render, 1))
        return false;
    switch (number) {
    case F_ABS:
        return absolute(render, input, out);
    case F_ATTR:
        name = pd_jinja_argument(arguments, 0, "name");
        return name ? pd_jinja_lookup(render, input, name, out)
                    : pd_jinja_fail(render, PD_INVALID, "attr needs a name");
    case F_COUNT:
    case F_LENGTH:
        return length(render, input, out);
    case F_D:
    case F_DEFAULT:
        return default_value(input, arguments, out);
    case F_DICTSORT:
        return dictsort(render, input, arguments, out);
    case F_FLOAT:
    case F_INT:
        return to_number(render, number, input, arguments, out);
    case F_ITEMS:
        return dict_items(render, input, out);
    case F_ROUND:
        return round_number(render, input, arguments, out);
    case F_TOJSON:
        return tojson(render, input, arguments, out);
    case F_REVERSE:
        if (input->kind == PD_JINJA_STRING)
            return pd_jinja_slice_string(render, &input->string,
                                         (int64_t)pd_jinja_characters(&input->string) - 1, -1,
                                         pd_jinja_characters(&input->string), out);
        return over_sequence(render, number, input, arguments, out);
    case F_CAPITALIZE:
    case F_E:
    case F_ESCAPE:
    case F_INDENT:
    case F_LOWER:
    case F_REPLACE:
    case F_SAFE:
    case F_STRING:
    case F_TITLE:
    case F_TRIM:
    case F_UPPER:
        return over_text(render, number, input, arguments, out);
    default:
        return over_sequence(render, number, input, arguments, out);
    }
}
