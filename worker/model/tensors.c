#include "worker/model/tensors.h"

#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool pd_tensor_set_name(struct pd_file_tensor *tensor, const char *name, size_t length)
{
    if (length == 0 || length >= sizeof(tensor->name))
        return false;
    for (size_t i = 0; i < length; i++)
        if (name[i] <= ' ' || name[i] > '~')
            return false;
    memcpy(tensor->name, name, length);
    tensor->name[length] = '\0';
    return true;
}

int pd_tensor_fail(const struct pd_file_tensor *tensor, enum pd_status status,
                   struct pd_error *error, const char *format, ...)
{
    char fault[PD_ERROR_TEXT];
    va_list args;

    va_start(args, format);
    vsnprintf(fault, sizeof(fault), format, args);
    va_end(args);
    return pd_fail(error, status, "%s: tensor %s: %s", tensor->file, tensor->name, fault);
}

int pd_tensor_measure(struct pd_file_tensor *tensor, const uint64_t *shape, int rank,
                      struct pd_error *error)
{
    uint64_t block = (uint64_t)pd_dtype_block(tensor->type);
    uint64_t values = 1, bytes;

    if (rank < 1 || rank > PD_TENSOR_RANK)
        return pd_tensor_fail(tensor, PD_INVALID, error, "has %d dimensions, not 1 to %d", rank,
                              PD_TENSOR_RANK);
    tensor->rank = rank;
    for (int i = 0; i < rank; i++) {
        if (shape[i] == 0 || shape[i] > INT_MAX)
            return pd_tensor_fail(tensor, PD_INVALID, error, "dimension %d is %llu, not 1 to %d", i,
                                  (unsigned long long)shape[i], INT_MAX);
        tensor->shape[i] = (int)shape[i];
        if (__builtin_mul_overflow(values, shape[i], &values))
            return pd_tensor_fail(tensor, PD_INVALID, error, "more values than 64 bits can count");
    }
    if (shape[rank - 1] % block != 0)
        return pd_tensor_fail(tensor, PD_INVALID, error,
                              "a row of %llu values is not whole blocks of %s (%llu values each)",
                              (unsigned long long)shape[rank - 1], pd_dtype_name(tensor->type),
                              (unsigned long long)block);
    if (__builtin_mul_overflow(values / block, (uint64_t)pd_dtype_bytes(tensor->type), &bytes) ||
        bytes > SIZE_MAX / 2)
        return pd_tensor_fail(tensor, PD_INVALID, error, "more bytes than an address space has");
    tensor->bytes = (size_t)bytes;
    return PD_OK;
}

int pd_tensor_table_add(struct pd_tensor_table *table, const struct pd_file_tensor *tensor,
                        struct pd_error *error)
{
    if (table->count == PD_TENSORS_MAX)
        return pd_tensor_fail(tensor, PD_INVALID, error, "more than %d tensors", PD_TENSORS_MAX);
    if (table->count == table->capacity) {
        size_t capacity = table->capacity ? 2 * table->capacity : 64;
        void *grown = realloc(table->tensors, capacity * sizeof(*table->tensors));

        if (!grown)
            return pd_tensor_fail(tensor, PD_NO_MEMORY, error, "no memory for the tensor table");
        table->tensors = grown;
        table->capacity = capacity;
    }
    table->tensors[table->count++] = *tensor;
    return PD_OK;
}

static int by_name(const void *a, const void *b)
{
    const struct pd_file_tensor *left = a, *right = b;

    return strcmp(left->name, right->name);
}

static int by_address(const void *a, const void *b)
{
    const struct pd_file_tensor *const *left = a, *const *right = b;

    if ((*left)->data != (*right)->data)
        return (*left)->data < (*right)->data ? -1 : 1;
    return 0;
}

/* Files are mapped at distinct addresses, so one order by address covers all of them. */
static int refuse_overlaps(const struct pd_tensor_table *table, struct pd_error *error)
{
    const struct pd_file_tensor **order = calloc(table->count, sizeof(*order));
    int status = PD_OK;

    if (!order)
        return pd_fail(error, PD_NO_MEMORY, "no memory for the tensor table");
    for (size_t i = 0; i < table->count; i++)
        order[i] = &table->tensors[i];
    qsort(order, table->count, sizeof(*order), by_address);
    for (size_t i = 1; i < table->count && status == PD_OK; i++)
        if (order[i - 1]->data + order[i - 1]->bytes > order[i]->data)
            status = pd_tensor_fail(order[i], PD_INVALID, error, "it overlaps tensor %s",
                                    order[i - 1]->name);
    free(order);
    return status;
}

int pd_tensor_table_seal(struct pd_tensor_table *table, struct pd_error *error)
{
    if (table->count == 0)
        return PD_OK;
    qsort(table->tensors, table->count, sizeof(*table->tensors), by_name);
    for (size_t i = 1; i < table->count; i++)
        if (by_name(&table->tensors[i - 1], &table->tensors[i]) == 0)
            return pd_tensor_fail(&table->tensors[i], PD_INVALID, error,
                                  "there are two of this name");
    return refuse_overlaps(table, error);
}

static int key_to_tensor(const void *key, const void *tensor)
{
    return strcmp(key, ((const struct pd_file_tensor *)tensor)->name);
}

const struct pd_file_tensor *pd_tensor_table_find(const struct pd_tensor_table *table,
                                                  const char *name)
{
    if (table->count == 0)
        return NULL;
    return bsearch(name, table->tensors, table->count, sizeof(*table->tensors), key_to_tensor);
}

void pd_tensor_table_free(struct pd_tensor_table *table)
{
    free(table->tensors);
    memset(table, 0, sizeof(*table));
}
