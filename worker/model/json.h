/* Reading JSON that came in a model's files: small helpers over jansson whose errors name the file
 * and the key, and which refuse what a hostile file could do with numbers. */
#ifndef PD_MODEL_JSON_H
#define PD_MODEL_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "worker/base/error.h"

/* A JSON text that must be one object without duplicate keys. Free with json_decref(). */
int pd_json_parse(const char *file, const void *bytes, size_t size, json_t **object,
                  struct pd_error *error);

/* Members of `object`: PD_NOT_FOUND if absent or null, PD_INVALID for another type or a value
 * outside min..max. */
int pd_json_integer(const char *file, const json_t *object, const char *key, int64_t min,
                    int64_t max, int64_t *value, struct pd_error *error);
int pd_json_number(const char *file, const json_t *object, const char *key, double *value,
                   struct pd_error *error);
int pd_json_boolean(const char *file, const json_t *object, const char *key, bool *value,
                    struct pd_error *error);
/* The string is the object's. */
int pd_json_string(const char *file, const json_t *object, const char *key, const char **value,
                   struct pd_error *error);

#endif
