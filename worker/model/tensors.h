/* The tensors of a model as they lie in its mapped files, whatever the format: one table, ordered
 * by name, in which no two tensors share a name or a byte. */
#ifndef PD_TENSORS_H
#define PD_TENSORS_H

#include <stdbool.h>

#include "kernels/kernels.h"
#include "worker/base/error.h"

enum {
    PD_TENSOR_NAME = 128, /* with the NUL */
    PD_TENSOR_RANK = 4,
    PD_TENSORS_MAX = 1 << 18,
};

struct pd_file_tensor {
    char name[PD_TENSOR_NAME]; /* printable ASCII, no blanks */
    const char *file;          /* name of the file for error messages, borrowed */
    enum pd_dtype type;
    int rank;                  /* 1 .. PD_TENSOR_RANK */
    int shape[PD_TENSOR_RANK]; /* row-major: the last dimension is contiguous; all > 0 */
    const uint8_t *data;       /* not aligned to more than the file happens to give */
    size_t bytes;              /* > 0 */
};

struct pd_tensor_table {
    struct pd_file_tensor *tensors;
    size_t count, capacity;
};

/* Copies a name out of a file; false if it is empty, too long or not printable ASCII, which also
 * keeps hostile names out of the log. */
bool pd_tensor_set_name(struct pd_file_tensor *tensor, const char *name, size_t length);

/* "tensor NAME" errors are worded alike in all loaders. */
int pd_tensor_fail(const struct pd_file_tensor *tensor, enum pd_status status,
                   struct pd_error *error, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Checks that the shape is sane and sets `bytes` from type and shape: products are computed without
 * overflow, a row must be whole blocks of the type. */
int pd_tensor_measure(struct pd_file_tensor *tensor, const uint64_t *shape, int rank,
                      struct pd_error *error);

/* Appends a copy. */
int pd_tensor_table_add(struct pd_tensor_table *table, const struct pd_file_tensor *tensor,
                        struct pd_error *error);

/* After the last add: orders by name and refuses two tensors with one name or with common bytes. */
int pd_tensor_table_seal(struct pd_tensor_table *table, struct pd_error *error);

/* NULL if there is none. Only after seal. */
const struct pd_file_tensor *pd_tensor_table_find(const struct pd_tensor_table *table,
                                                  const char *name);

void pd_tensor_table_free(struct pd_tensor_table *table);

#endif
