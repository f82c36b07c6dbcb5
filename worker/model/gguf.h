/* GGUF (versions 2 and 3, little-endian): metadata by key, and the tensor table.
 *
 *   magic "GGUF" | version | tensor count | key count
 *   key count    x  key | type | value
 *   tensor count x  name | rank | dimensions, innermost first | type | offset into the data section
 *   padding to general.alignment | data section
 *
 * Nothing here trusts the file: parsing walks it once with a cursor that cannot leave it, and what
 * a getter returns has been walked. Strings are borrowed from the mapping and end where they end:
 * no NUL. */
#ifndef PD_GGUF_H
#define PD_GGUF_H

#include "worker/model/tensors.h"
#include "worker/text/tokenizer.h"

struct pd_gguf;

enum { PD_GGUF_KEYS_MAX = 1 << 16 };

/* `file` (for messages) and `bytes` are borrowed for the life of the result. Tensors are appended
 * to *tensors, which the caller seals. */
int pd_gguf_parse(const char *file, const uint8_t *bytes, size_t size,
                  struct pd_tensor_table *tensors, struct pd_gguf **gguf, struct pd_error *error);
void pd_gguf_destroy(struct pd_gguf *gguf);

const char *pd_gguf_file(const struct pd_gguf *gguf);

/* Getters: PD_NOT_FOUND if the key is absent, PD_INVALID if its value has another type or lies
 * outside min..max. Every error names file and key. */
int pd_gguf_integer(const struct pd_gguf *gguf, const char *key, int64_t min, int64_t max,
                    int64_t *value, struct pd_error *error);
int pd_gguf_number(const struct pd_gguf *gguf, const char *key, double *value,
                   struct pd_error *error);
int pd_gguf_boolean(const struct pd_gguf *gguf, const char *key, bool *value,
                    struct pd_error *error);
int pd_gguf_string(const struct pd_gguf *gguf, const char *key, struct pd_string *value,
                   struct pd_error *error);

/* Arrays; *values is malloc'ed (the strings' bytes are borrowed), NULL where the array is empty. */
int pd_gguf_strings(const struct pd_gguf *gguf, const char *key, struct pd_string **values,
                    size_t *count, struct pd_error *error);
int pd_gguf_integers(const struct pd_gguf *gguf, const char *key, int32_t **values, size_t *count,
                     struct pd_error *error);
int pd_gguf_floats(const struct pd_gguf *gguf, const char *key, float **values, size_t *count,
                   struct pd_error *error);

#endif
