#include "worker/model/json.h"

#include <inttypes.h>
#include <math.h>

/* jansson quotes the text where it stumbled; a log line must stay one line. */
static void make_printable(char *text)
{
    for (; *text; text++)
        if (*text < ' ' || *text > '~')
            *text = '?';
}

int pd_json_parse(const char *file, const void *bytes, size_t size, json_t **object,
                  struct pd_error *error)
{
    json_error_t cause;

    *object = json_loadb(bytes, size, JSON_REJECT_DUPLICATES, &cause);
    if (!*object) {
        make_printable(cause.text);
        return pd_fail(error, PD_INVALID, "%s: JSON at line %d, column %d: %s", file, cause.line,
                       cause.column, cause.text);
    }
    if (!json_is_object(*object)) {
        json_decref(*object);
        *object = NULL;
        return pd_fail(error, PD_INVALID, "%s: the JSON is not an object", file);
    }
    return PD_OK;
}

static int find(const char *file, const json_t *object, const char *key, const json_t **member,
                struct pd_error *error)
{
    *member = json_object_get(object, key);
    if (!*member || json_is_null(*member))
        return pd_fail(error, PD_NOT_FOUND, "%s: \"%s\" is missing", file, key);
    return PD_OK;
}

static int fail_type(const char *file, const char *key, const char *wanted, struct pd_error *error)
{
    return pd_fail(error, PD_INVALID, "%s: \"%s\" is not %s", file, key, wanted);
}

int pd_json_integer(const char *file, const json_t *object, const char *key, int64_t min,
                    int64_t max, int64_t *value, struct pd_error *error)
{
    const json_t *member;
    int status = find(file, object, key, &member, error);

    if (status != PD_OK)
        return status;
    if (!json_is_integer(member))
        return fail_type(file, key, "an integer", error);
    *value = json_integer_value(member);
    if (*value < min || *value > max)
        return pd_fail(error, PD_INVALID,
                       "%s: \"%s\": %" PRId64 " is not between %" PRId64 " and %" PRId64, file, key,
                       *value, min, max);
    return PD_OK;
}

int pd_json_number(const char *file, const json_t *object, const char *key, double *value,
                   struct pd_error *error)
{
    const json_t *member;
    int status = find(file, object, key, &member, error);

    if (status != PD_OK)
        return status;
    if (!json_is_number(member))
        return fail_type(file, key, "a number", error);
    *value = json_number_value(member);
    return isfinite(*value) ? PD_OK : fail_type(file, key, "a finite number", error);
}

int pd_json_boolean(const char *file, const json_t *object, const char *key, bool *value,
                    struct pd_error *error)
{
    const json_t *member;
    int status = find(file, object, key, &member, error);

    if (status != PD_OK)
        return status;
    if (!json_is_boolean(member))
        return fail_type(file, key, "true or false", error);
    *value = json_is_true(member);
    return PD_OK;
}

int pd_json_string(const char *file, const json_t *object, const char *key, const char **value,
                   struct pd_error *error)
{
    const json_t *member;
    int status = find(file, object, key, &member, error);

    if (status != PD_OK)
        return status;
    if (!json_is_string(member))
        return fail_type(file, key, "a string", error);
    *value = json_string_value(member);
    return PD_OK;
}
