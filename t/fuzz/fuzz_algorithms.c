/* The file of chosen algorithms (kernels/cuda/algorithms.h): whatever its bytes, a table takes all of it or
 * nothing, holds no shape that no product has, and what it then writes is taken back, equal. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/algorithms.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define KEY "GPU sm_90 cublasLt 130000"

static void require(int truth)
{
    if (!truth)
        abort();
}

static void note(struct pd_cuda_algorithms *table, int rows)
{
    const struct pd_cuda_shape shape = {rows, 64, 16, rows, 1};
    const struct pd_cuda_algorithm algorithm = {{(uint64_t)rows}};

    pd_cuda_algorithms_note(table, &shape, &algorithm);
}

/* The bytes as they are; or, begun with a zero, a good file of four records in which each three bytes change
 * one, and whose sum is right. */
static uint8_t *file_of(const uint8_t *data, size_t *size)
{
    enum { RECORDS = 4, RECORD = 88, HEAD = 144 };
    static uint8_t bytes[PD_CUDA_ALGORITHMS_BYTES];
    struct pd_cuda_algorithms *table;
    uint64_t sum = 14695981039346656037u;
    uint8_t *file;
    size_t used;

    if (*size == 0 || *data != 0) {
        file = malloc(*size + (*size == 0));
        return memcpy(file, data, *size);
    }
    table = calloc(1, sizeof(*table));
    for (int i = 1; i <= RECORDS; i++)
        note(table, 8 * i);
    used = pd_cuda_algorithms_write(table, KEY, bytes);
    free(table);
    for (size_t i = 1; i + 2 < *size; i += 3)
        bytes[HEAD + (data[i] | (size_t)data[i + 1] << 8) % (RECORDS * RECORD)] = data[i + 2];
    for (size_t i = 0; i < used - 8; i++)
        sum = (sum ^ bytes[i]) * 1099511628211u;
    memcpy(bytes + used - 8, &sum, 8);
    *size = used;
    file = malloc(used);
    return memcpy(file, bytes, used);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct pd_cuda_algorithms table, back;
    static uint8_t bytes[PD_CUDA_ALGORITHMS_BYTES], again[PD_CUDA_ALGORITHMS_BYTES];
    uint8_t *file = file_of(data, &size);
    char why[64] = "";

    memset(&table, 0, sizeof(table));
    memset(&back, 0, sizeof(back));
    if (!pd_cuda_algorithms_read(&table, KEY, file, size, why, sizeof(why)))
        require(table.count == 0 && *why != '\0');
    free(file);
    require(table.count >= 0 && table.count <= PD_CUDA_ALGORITHMS);
    for (int i = 0; i < table.count; i++) {
        const struct pd_cuda_shape *shape = &table.chosen[i].shape;

        require(shape->rows > 0 && shape->cols > 0 && shape->tokens > 0 && shape->kind < 1 << 16);
        require(shape->stride >= shape->rows && !table.chosen[i].trusted);
        require(pd_cuda_algorithms_find(&table, shape) == &table.chosen[i]);
    }
    size = pd_cuda_algorithms_write(&table, KEY, bytes);
    require(pd_cuda_algorithms_read(&back, KEY, bytes, size, why, sizeof(why)));
    require(back.count == table.count);
    require(pd_cuda_algorithms_write(&back, KEY, again) == size);
    require(memcmp(again, bytes, size) == 0);
    return 0;
}
