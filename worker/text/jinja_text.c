#include "worker/text/jinja_text.h"

#include <string.h>
#include <utf8proc.h>

static bool continues(char byte)
{
    return ((unsigned char)byte & 0xc0) == 0x80;
}

/* The character at `at` and its length; an invalid byte counts as one character. */
static int32_t decode(const struct pd_jinja_string *string, size_t at, size_t *length)
{
    utf8proc_int32_t code;
    utf8proc_ssize_t used = utf8proc_iterate((const utf8proc_uint8_t *)string->bytes + at,
                                             (utf8proc_ssize_t)(string->length - at), &code);

    *length = used > 0 ? (size_t)used : 1;
    return used > 0 ? code : 0xfffd;
}

size_t pd_jinja_characters(const struct pd_jinja_string *string)
{
    size_t count = 0;

    for (size_t i = 0; i < string->length; i++)
        count += !continues(string->bytes[i]);
    return count;
}

size_t pd_jinja_offset(const struct pd_jinja_string *string, size_t index)
{
    size_t at = 0;

    while (at < string->length && index > 0) {
        at++;
        while (at < string->length && continues(string->bytes[at]))
            at++;
        index--;
    }
    return at;
}

size_t pd_jinja_find(const struct pd_jinja_string *string, const struct pd_jinja_string *needle,
                     size_t from)
{
    const char *hit;

    if (from > string->length)
        return SIZE_MAX;
    if (needle->length == 0)
        return from;
    hit = memmem(string->bytes + from, string->length - from, needle->bytes, needle->length);
    return hit ? (size_t)(hit - string->bytes) : SIZE_MAX;
}

/* ---- kinds of characters --------------------------------------------------------------------- */

bool pd_jinja_is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

bool pd_jinja_is_digit(int32_t c)
{
    return utf8proc_category(c) == UTF8PROC_CATEGORY_ND;
}

bool pd_jinja_is_letter(int32_t c)
{
    utf8proc_category_t category = utf8proc_category(c);

    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool pd_jinja_is_alnum(int32_t c)
{
    utf8proc_category_t category = utf8proc_category(c);

    return pd_jinja_is_letter(c) ||
           (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

bool pd_jinja_all(const struct pd_jinja_string *string, bool (*is)(int32_t character))
{
    for (size_t at = 0, length; at < string->length; at += length)
        if (!is(decode(string, at, &length)))
            return false;
    return string->length > 0;
}

/* ---- strip, replace, split ------------------------------------------------------------------- */

static bool in_set(const struct pd_jinja_string *set, int32_t character)
{
    if (!set)
        return pd_jinja_is_space(character);
    for (size_t at = 0, length; at < set->length; at += length)
        if (decode(set, at, &length) == character)
            return true;
    return false;
}

struct pd_jinja_string pd_jinja_strip(const struct pd_jinja_string *string,
                                      const struct pd_jinja_string *set, bool left, bool right)
{
    size_t first = 0, end = string->length, length;

    while (left && first < end && in_set(set, decode(string, first, &length)))
        first += length;
    while (right && end > first) {
        size_t at = end - 1;

        while (at > first && continues(string->bytes[at]))
            at--;
        if (!in_set(set, decode(string, at, &length)))
            break;
        end = at;
    }
    return pd_jinja_substring(string, first, end - first);
}

static bool finish(struct pd_jinja_render *render, struct pd_jinja_output *built,
                   struct pd_jinja_value *out)
{
    bool ok = pd_jinja_output_value(built, &render->arena, out);

    pd_jinja_output_free(built);
    return ok || pd_jinja_exhausted(render);
}

bool pd_jinja_replace(struct pd_jinja_render *render, const struct pd_jinja_string *string,
                      const struct pd_jinja_string *old, const struct pd_jinja_string *with,
                      int64_t count, struct pd_jinja_value *out)
{
    struct pd_jinja_output built;
    size_t at = 0;

    pd_jinja_output_init(&built, render->limit);
    while (count != 0 && !built.full) {
        size_t hit = pd_jinja_find(string, old, at), step = old->length;
        struct pd_jinja_string before;

        if (hit == SIZE_MAX)
            break;
        before = pd_jinja_substring(string, at, hit - at);
        pd_jinja_output_string(&built, &before);
        pd_jinja_output_string(&built, with);
        count -= count > 0;
        if (step == 0) { /* an empty needle stands before each character and at the end */
            if (hit == string->length) {
                at = hit;
                break;
            }
            decode(string, hit, &step);
            before = pd_jinja_substring(string, hit, step);
            pd_jinja_output_string(&built, &before);
        }
        at = hit + step;
    }
    {
        struct pd_jinja_string rest = pd_jinja_substring(string, at, string->length - at);

        pd_jinja_output_string(&built, &rest);
    }
    return finish(render, &built, out);
}

static bool push_part(struct pd_jinja_render *render, struct pd_jinja_list *list,
                      const struct pd_jinja_string *string, size_t first, size_t end)
{
    struct pd_jinja_value part = {.kind = PD_JINJA_STRING};

    part.string = pd_jinja_substring(string, first, end - first);
    return pd_jinja_spend(render, 1) &&
           (pd_jinja_list_push(&render->arena, list, part) || pd_jinja_exhausted(render));
}

static bool split_at_space(struct pd_jinja_render *render, const struct pd_jinja_string *string,
                           int64_t count, struct pd_jinja_list *list)
{
    size_t at = 0, length;

    for (;;) {
        size_t first;

        while (at < string->length && pd_jinja_is_space(decode(string, at, &length)))
            at += length;
        if (at == string->length)
            return true;
        first = at;
        if (count == 0) {
            struct pd_jinja_string rest = pd_jinja_substring(string, first, string->length - first);

            rest = pd_jinja_strip(&rest, NULL, false, true);
            return push_part(render, list, string, first, first + rest.length);
        }
        while (at < string->length && !pd_jinja_is_space(decode(string, at, &length)))
            at += length;
        if (!push_part(render, list, string, first, at))
            return false;
        count--;
    }
}

bool pd_jinja_split(struct pd_jinja_render *render, const struct pd_jinja_string *string,
                    const struct pd_jinja_string *separator, int64_t count,
                    struct pd_jinja_value *out)
{
    size_t at = 0;

    if (!pd_jinja_list_new(&render->arena, 0, out))
        return pd_jinja_exhausted(render);
    if (!separator)
        return split_at_space(render, string, count, out->list);
    if (separator->length == 0)
        return pd_jinja_fail(render, PD_INVALID, "empty separator");
    for (; count != 0; count--) {
        size_t hit = pd_jinja_find(string, separator, at);

        if (hit == SIZE_MAX)
            break;
        if (!push_part(render, out->list, string, at, hit))
            return false;
        at = hit + separator->length;
    }
    return push_part(render, out->list, string, at, string->length);
}

bool pd_jinja_rsplit(struct pd_jinja_render *render, const struct pd_jinja_string *string,
                     const struct pd_jinja_string *separator, int64_t count,
                     struct pd_jinja_value *out)
{
    struct pd_jinja_list *parts;
    size_t extra;

    /* Splits everywhere, then joins what lies before the last `count` cuts by taking it from the
     * source. */
    if (!pd_jinja_split(render, string, separator, -1, out))
        return false;
    parts = out->list;
    if (count < 0 || parts->count <= (size_t)count + 1)
        return true;
    extra = parts->count - (size_t)count - 1;
    {
        const struct pd_jinja_string *last = &parts->items[extra].string;

        parts->items[0].string =
            pd_jinja_substring(string, 0, (size_t)(last->bytes - string->bytes) + last->length);
    }
    memmove(parts->items + 1, parts->items + extra + 1, (size_t)count * sizeof(*parts->items));
    parts->count = (size_t)count + 1;
    return true;
}

bool pd_jinja_splitlines(struct pd_jinja_render *render, const struct pd_jinja_string *string,
                         bool keep, struct pd_jinja_value *out)
{
    size_t first = 0, at = 0, length;

    if (!pd_jinja_list_new(&render->arena, 0, out))
        return pd_jinja_exhausted(render);
    while (at < string->length) {
        int32_t c = decode(string, at, &length);
        size_t end = at;

        at += length;
        if (!(c >= 10 && c <= 13) && !(c >= 0x1c && c <= 0x1e) && c != 0x85 && c != 0x2028 &&
            c != 0x2029)
            continue;
        if (c == '\r' && at < string->length && string->bytes[at] == '\n')
            at++;
        if (!push_part(render, out->list, string, first, keep ? at : end))
            return false;
        first = at;
    }
    return first == string->length || push_part(render, out->list, string, first, string->length);
}

/* ---- case, slices, join ---------------------------------------------------------------------- */

static bool begins_word(int32_t before, bool python)
{
    if (python)
        return utf8proc_category(before) > UTF8PROC_CATEGORY_LT ||
               utf8proc_category(before) == UTF8PROC_CATEGORY_CN;
    return pd_jinja_is_space(before) || (before > 0 && before < 128 && strchr("-([{<", before));
}

bool pd_jinja_change_case(struct pd_jinja_render *render, const struct pd_jinja_string *string,
                          enum pd_jinja_case mode, bool python, struct pd_jinja_value *out)
{
    struct pd_jinja_output built;
    int32_t before = ' ';

    pd_jinja_output_init(&built, render->limit);
    for (size_t at = 0, length; at < string->length && !built.full; at += length) {
        int32_t code = decode(string, at, &length);
        bool upper = mode == PD_JINJA_UPPER ||
                     (mode == PD_JINJA_TITLE && begins_word(before, python)) ||
                     (mode == PD_JINJA_CAPITALIZE && at == 0);
        int32_t changed = upper ? utf8proc_toupper(code) : utf8proc_tolower(code);
        bool literal = string->mark == PD_JINJA_LITERAL ||
                       (string->mark == PD_JINJA_MIXED && string->marks[at]);
        utf8proc_uint8_t bytes[4];

        if (upper && code == 0xdf) { /* the one common letter that grows */
            pd_jinja_output_put(&built, mode == PD_JINJA_UPPER ? "SS" : "Ss", 2, literal);
        } else {
            pd_jinja_output_put(&built, (const char *)bytes,
                                (size_t)utf8proc_encode_char(changed, bytes), literal);
        }
        before = code;
    }
    return finish(render, &built, out);
}

static bool slice_bound(struct pd_jinja_render *render, const struct pd_jinja_value *value,
                        int64_t length, int64_t low, int64_t high, int64_t missing, int64_t *bound)
{
    int64_t given = missing;

    if (value && value->kind == PD_JINJA_INT) {
        given = value->integer < 0 ? value->integer + length : value->integer;
        given = given < low ? low : given > high ? high : given;
    } else if (value && value->kind != PD_JINJA_NONE) {
        return pd_jinja_fail(render, PD_INVALID, "slice indices must be integers");
    }
    *bound = given;
    return true;
}

bool pd_jinja_slice_range(struct pd_jinja_render *render, const struct pd_jinja_value *start,
                          const struct pd_jinja_value *stop, const struct pd_jinja_value *step,
                          size_t length, int64_t *first, int64_t *stride, size_t *count)
{
    int64_t size = (int64_t)length, end = 0;
    bool back;

    *stride = step && step->kind == PD_JINJA_INT ? step->integer : 1;
    if (*stride == 0 || *stride > INT32_MAX || *stride < -INT32_MAX)
        return pd_jinja_fail(render, PD_INVALID, "slice step is zero or too large");
    back = *stride < 0;
    if (!slice_bound(render, start, size, back ? -1 : 0, back ? size - 1 : size,
                     back ? size - 1 : 0, first) ||
        !slice_bound(render, stop, size, back ? -1 : 0, back ? size - 1 : size, back ? -1 : size,
                     &end))
        return false;
    if (back)
        *count = *first > end ? (size_t)((*first - end - 1) / -*stride + 1) : 0;
    else
        *count = end > *first ? (size_t)((end - *first - 1) / *stride + 1) : 0;
    return pd_jinja_spend(render, *count / 16 + 1);
}

bool pd_jinja_slice_string(struct pd_jinja_render *render, const struct pd_jinja_string *string,
                           int64_t first, int64_t stride, size_t count, struct pd_jinja_value *out)
{
    struct pd_jinja_output built;

    *out = pd_jinja_text("", 0, PD_JINJA_TRUSTED);
    if (count == 0)
        return true;
    if (stride == 1) {
        size_t from = pd_jinja_offset(string, (size_t)first);
        struct pd_jinja_string rest = pd_jinja_substring(string, from, string->length - from);

        out->string = pd_jinja_substring(&rest, 0, pd_jinja_offset(&rest, count));
        return true;
    }
    if (!pd_jinja_spend(render, count * string->length / 64))
        return false;
    pd_jinja_output_init(&built, render->limit);
    for (size_t i = 0; i < count; i++, first += stride) {
        size_t from = pd_jinja_offset(string, (size_t)first), length;
        struct pd_jinja_string one;

        decode(string, from, &length);
        one = pd_jinja_substring(string, from, length);
        pd_jinja_output_string(&built, &one);
    }
    return finish(render, &built, out);
}

bool pd_jinja_join(struct pd_jinja_render *render, const struct pd_jinja_list *items,
                   const struct pd_jinja_string *separator, struct pd_jinja_value *out)
{
    struct pd_jinja_output built;

    if (!pd_jinja_spend(render, items->count))
        return false;
    pd_jinja_output_init(&built, render->limit);
    for (size_t i = 0; i < items->count && !built.full; i++) {
        if (i)
            pd_jinja_output_string(&built, separator);
        pd_jinja_print(&built, &items->items[i], false);
    }
    return finish(render, &built, out);
}
