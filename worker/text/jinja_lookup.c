#include "worker/text/jinja_render.h"
#include "worker/text/jinja_text.h"

#include <string.h>

typedef struct pd_jinja_render render_t;
typedef struct pd_jinja_node node;
typedef struct pd_jinja_value value_t;

const value_t *pd_jinja_argument(const struct pd_jinja_arguments *arguments, int index,
                                 const char *keyword)
{
    int position = 0;

    for (int i = 0; i < arguments->count; i++) {
        if (arguments->keywords[i].length == 0) {
            if (position++ == index)
                return &arguments->values[i];
        } else if (keyword && arguments->keywords[i].length == strlen(keyword) &&
                   memcmp(arguments->keywords[i].bytes, keyword, strlen(keyword)) == 0) {
            return &arguments->values[i];
        }
    }
    return NULL;
}

static bool characters_of(render_t *render, const struct pd_jinja_string *string,
                          struct pd_jinja_list *list)
{
    for (size_t at = 0; at < string->length;) {
        struct pd_jinja_string rest = pd_jinja_substring(string, at, string->length - at);
        size_t length = pd_jinja_offset(&rest, 1);
        value_t one = {.kind = PD_JINJA_STRING, .string = pd_jinja_substring(&rest, 0, length)};

        if (!pd_jinja_spend(render, 1))
            return false;
        if (!pd_jinja_list_push(&render->arena, list, one))
            return pd_jinja_exhausted(render);
        at += length;
    }
    return true;
}

bool pd_jinja_iterate(render_t *render, const value_t *value, struct pd_jinja_list **items)
{
    value_t list;

    if (value->kind == PD_JINJA_LIST) {
        *items = value->list;
        return true;
    }
    if (!pd_jinja_list_new(&render->arena, 0, &list))
        return pd_jinja_exhausted(render);
    *items = list.list;
    switch (value->kind) {
    case PD_JINJA_UNDEFINED:
        return true;
    case PD_JINJA_STRING:
        return characters_of(render, &value->string, list.list);
    case PD_JINJA_DICT:
        for (size_t i = 0; i < value->dict->count; i++)
            if (!pd_jinja_list_push(&render->arena, list.list, value->dict->entries[i].key))
                return pd_jinja_exhausted(render);
        return pd_jinja_spend(render, value->dict->count);
    default:
        return pd_jinja_fail(render, PD_INVALID, "'%s' object is not iterable",
                             pd_jinja_kind_name(value->kind));
    }
}

static bool lookup_index(render_t *render, const value_t *object, int64_t index, value_t *out)
{
    if (object->kind == PD_JINJA_LIST) {
        int64_t count = (int64_t)object->list->count;

        index += index < 0 ? count : 0;
        if (index >= 0 && index < count)
            *out = object->list->items[index];
        return true;
    }
    if (object->kind == PD_JINJA_STRING) {
        int64_t count = (int64_t)pd_jinja_characters(&object->string);

        index += index < 0 ? count : 0;
        if (index >= 0 && index < count)
            return pd_jinja_slice_string(render, &object->string, index, 1, 1, out);
    }
    return true;
}

bool pd_jinja_lookup(render_t *render, const value_t *object, const value_t *key, value_t *out)
{
    const value_t *found = NULL;
    struct pd_string name = {"the value", 9};

    if (key->kind == PD_JINJA_STRING)
        name = (struct pd_string){key->string.bytes, key->string.length};
    *out = pd_jinja_undefined(name);
    if (object->kind == PD_JINJA_UNDEFINED)
        return pd_jinja_fail(render, PD_INVALID, "'%.*s' is undefined",
                             (int)(object->missing.length < 100 ? object->missing.length : 100),
                             object->missing.bytes);
    if (object->kind == PD_JINJA_DICT || object->kind == PD_JINJA_NAMESPACE) {
        if (!pd_jinja_spend(render, object->dict->count / 8 + 1))
            return false;
        found = pd_jinja_dict_get(object->dict, key);
        if (found)
            *out = *found;
        return true;
    }
    if (key->kind == PD_JINJA_INT)
        return lookup_index(render, object, key->integer, out);
    return true;
}

bool pd_jinja_contains(render_t *render, const value_t *needle, const value_t *haystack,
                       bool *result)
{
    *result = false;
    switch (haystack->kind) {
    case PD_JINJA_STRING:
        if (needle->kind != PD_JINJA_STRING)
            return pd_jinja_fail(render, PD_INVALID,
                                 "'in <string>' requires string as left operand, not %s",
                                 pd_jinja_kind_name(needle->kind));
        *result = pd_jinja_find(&haystack->string, &needle->string, 0) != SIZE_MAX;
        return pd_jinja_spend(render, haystack->string.length / 256 + 1);
    case PD_JINJA_LIST:
        for (size_t i = 0; i < haystack->list->count && !*result; i++)
            *result = pd_jinja_equal(&haystack->list->items[i], needle);
        return pd_jinja_spend(render, haystack->list->count + 1);
    case PD_JINJA_DICT:
        *result = pd_jinja_dict_get(haystack->dict, needle) != NULL;
        return pd_jinja_spend(render, haystack->dict->count / 8 + 1);
    case PD_JINJA_UNDEFINED:
        return true;
    default:
        return pd_jinja_fail(render, PD_INVALID, "argument of type '%s' is not iterable",
                             pd_jinja_kind_name(haystack->kind));
    }
}
