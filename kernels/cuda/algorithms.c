#include "kernels/cuda/algorithms.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the table ------------------------------------------------------------------------------- */

static bool same(const struct pd_cuda_shape *a, const struct pd_cuda_shape *b)
{
    return a->rows == b->rows && a->cols == b->cols && a->tokens == b->tokens &&
           a->stride == b->stride && a->kind == b->kind;
}

struct pd_cuda_chosen *pd_cuda_algorithms_find(struct pd_cuda_algorithms *table,
                                               const struct pd_cuda_shape *shape)
{
    for (int i = 0; i < table->count; i++)
        if (same(&table->chosen[i].shape, shape))
            return &table->chosen[i];
    return NULL;
}

struct pd_cuda_chosen *pd_cuda_algorithms_note(struct pd_cuda_algorithms *table,
                                               const struct pd_cuda_shape *shape,
                                               const struct pd_cuda_algorithm *algorithm)
{
    struct pd_cuda_chosen *chosen = pd_cuda_algorithms_find(table, shape);

    if (chosen == NULL && table->count < PD_CUDA_ALGORITHMS) {
        chosen = &table->chosen[table->count++];
    } else if (chosen == NULL) {
        chosen = &table->chosen[table->next];
        table->next = (table->next + 1) % PD_CUDA_ALGORITHMS;
    }
    *chosen = (struct pd_cuda_chosen){*shape, *algorithm, false};
    return chosen;
}

/* ---- as bytes -------------------------------------------------------------------------------- */

static const char magic[8] = "pd-algo1";

enum { SIDE = 1 << 24 /* above any matrix's (kernels/device.c) */, KINDS = 1 << 16 };

struct head {
    char magic[8], key[PD_CUDA_ALGORITHMS_KEY];
    uint32_t count, zero;
};

struct record {
    struct pd_cuda_shape shape;
    uint32_t zero;
    struct pd_cuda_algorithm algorithm;
};

_Static_assert(sizeof(struct head) == 144 && sizeof(struct record) == 88, "a file's layout");

static uint64_t sum_of(const uint8_t *bytes, size_t count)
{
    uint64_t sum = 14695981039346656037u;

    for (size_t i = 0; i < count; i++)
        sum = (sum ^ bytes[i]) * 1099511628211u;
    return sum;
}

size_t pd_cuda_algorithms_write(const struct pd_cuda_algorithms *table, const char *key,
                                uint8_t *bytes)
{
    struct head head = {.count = (uint32_t)table->count};
    size_t used = sizeof(head);
    uint64_t sum;

    memcpy(head.magic, magic, sizeof(magic));
    snprintf(head.key, sizeof(head.key), "%s", key);
    memcpy(bytes, &head, sizeof(head));
    for (int i = 0; i < table->count; i++, used += sizeof(struct record)) {
        struct record record = {table->chosen[i].shape, 0, table->chosen[i].algorithm};

        memcpy(bytes + used, &record, sizeof(record));
    }
    sum = sum_of(bytes, used);
    memcpy(bytes + used, &sum, sizeof(sum));
    return used + sizeof(sum);
}

/* What is wrong with a file's bytes; NULL: nothing. */
static const char *fault_of(const char *key, const uint8_t *bytes, size_t count)
{
    char expected[PD_CUDA_ALGORITHMS_KEY] = "";
    struct head head;
    uint64_t sum;

    if (count < sizeof(head) + sizeof(sum))
        return "it is too short";
    memcpy(&head, bytes, sizeof(head));
    if (memcmp(head.magic, magic, sizeof(magic)) != 0)
        return "it is of another kind or version";
    snprintf(expected, sizeof(expected), "%s", key);
    if (memcmp(head.key, expected, sizeof(expected)) != 0)
        return "it is of another GPU or library";
    if (head.zero != 0 || head.count > PD_CUDA_ALGORITHMS ||
        count != sizeof(head) + head.count * sizeof(struct record) + sizeof(sum))
        return "its length is wrong";
    memcpy(&sum, bytes + count - sizeof(sum), sizeof(sum));
    return sum == sum_of(bytes, count - sizeof(sum)) ? NULL : "its sum is wrong";
}

static bool is_possible(const struct record *record)
{
    const struct pd_cuda_shape *shape = &record->shape;

    return record->zero == 0 && shape->rows > 0 && shape->rows <= SIDE && shape->cols > 0 &&
           shape->cols <= SIDE && shape->tokens > 0 && shape->tokens <= SIDE &&
           shape->stride >= shape->rows && shape->stride <= SIDE && shape->kind < KINDS;
}

bool pd_cuda_algorithms_read(struct pd_cuda_algorithms *table, const char *key,
                             const uint8_t *bytes, size_t count, char *why, size_t size)
{
    const char *fault = fault_of(key, bytes, count);
    size_t records = (count - sizeof(struct head)) / sizeof(struct record);
    const uint8_t *from = bytes + sizeof(struct head);
    struct record record;

    for (size_t i = 0; fault == NULL && i < records; i++) {
        memcpy(&record, from + i * sizeof(record), sizeof(record));
        if (!is_possible(&record))
            fault = "it has a shape that no product has";
    }
    if (fault != NULL) {
        snprintf(why, size, "%s", fault);
        return false;
    }
    for (size_t i = 0; i < records && table->count < PD_CUDA_ALGORITHMS; i++) {
        memcpy(&record, from + i * sizeof(record), sizeof(record));
        if (pd_cuda_algorithms_find(table, &record.shape) == NULL)
            pd_cuda_algorithms_note(table, &record.shape, &record.algorithm);
    }
    return true;
}

/* ---- as a file ------------------------------------------------------------------------------- */

bool pd_cuda_algorithms_path(const char *directory, const char *key, char *path, size_t size)
{
    int used = snprintf(path, size, "%s/", directory);

    if (used < 0 || (size_t)used + strlen(key) + sizeof(".algorithms") > size)
        return false;
    for (; *key != '\0'; key++)
        path[used++] = isalnum((unsigned char)*key) || *key == '_' ? *key : '-';
    strcpy(path + used, ".algorithms");
    return true;
}

static bool fail(char *why, size_t size, const char *what)
{
    snprintf(why, size, "%s: %s", what, strerror(errno));
    return false;
}

/* As much as a file may have and one byte more; the count, or -1. */
static ssize_t read_file(int fd, uint8_t *bytes)
{
    size_t used = 0;
    ssize_t got = 1;

    while (got > 0 && used < PD_CUDA_ALGORITHMS_BYTES + 1) {
        got = read(fd, bytes + used, PD_CUDA_ALGORITHMS_BYTES + 1 - used);
        if (got < 0 && errno == EINTR)
            got = 1;
        else if (got > 0)
            used += (size_t)got;
    }
    return got < 0 ? -1 : (ssize_t)used;
}

bool pd_cuda_algorithms_load(struct pd_cuda_algorithms *table, const char *key, const char *path,
                             char *why, size_t size)
{
    /* Never waits: what lies there may be a pipe. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    uint8_t *bytes;
    ssize_t count;
    bool good;

    if (fd < 0)
        return errno == ENOENT || fail(why, size, "it cannot be opened");
    bytes = malloc(PD_CUDA_ALGORITHMS_BYTES + 1);
    count = bytes != NULL ? read_file(fd, bytes) : -1;
    good = count >= 0 ? pd_cuda_algorithms_read(table, key, bytes, (size_t)count, why, size)
                      : fail(why, size, "it cannot be read");
    free(bytes);
    close(fd);
    return good;
}

static bool write_file(const char *path, const uint8_t *bytes, size_t count)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    bool good = fd >= 0 && write(fd, bytes, count) == (ssize_t)count;

    return fd >= 0 && close(fd) == 0 && good;
}

bool pd_cuda_algorithms_save(const struct pd_cuda_algorithms *table, const char *key,
                             const char *path, char *why, size_t size)
{
    struct pd_cuda_algorithms *both = malloc(sizeof(*both));
    uint8_t *bytes = malloc(PD_CUDA_ALGORITHMS_BYTES);
    char temporary[1024], unused[64];
    bool good = both != NULL && bytes != NULL &&
                (size_t)snprintf(temporary, sizeof(temporary), "%s.%ld", path, (long)getpid()) <
                    sizeof(temporary);

    if (good) {
        *both = *table;
        pd_cuda_algorithms_load(both, key, path, unused, sizeof(unused));
        unlink(temporary); /* of a process of this number that ended in the middle */
        good = write_file(temporary, bytes, pd_cuda_algorithms_write(both, key, bytes)) &&
               rename(temporary, path) == 0;
        if (!good) {
            fail(why, size, "it cannot be written");
            unlink(temporary);
        }
    }
    free(bytes);
    free(both);
    return good;
}
