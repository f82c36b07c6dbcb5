/* Which of a library's algorithms serves which shape of product: a table of fixed size, and the file that
 * keeps it from one process to the next. The library's algorithm is eight words that nothing here looks
 * into; a file is the key's alone (a GPU and a version of the library), and whatever does not fit,
 * to the byte, is not used:
 *
 *     magic 8 | key 128, zeros behind | count 4, 0 4 | count * 88: shape 20, 0 4, algorithm 64 | sum 8
 *
 * in the host's order of bytes; the sum is FNV-1a of all before it. One thread at a time. */
#ifndef PD_CUDA_ALGORITHMS_H
#define PD_CUDA_ALGORITHMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PD_CUDA_ALGORITHMS = 1024,    /* shapes of a table */
    PD_CUDA_ALGORITHMS_KEY = 128, /* bytes of a key, its end too */
    PD_CUDA_ALGORITHMS_BYTES = 8 + 128 + 8 + 88 * PD_CUDA_ALGORITHMS + 8, /* of a file at most */
};

struct pd_cuda_algorithm {
    uint64_t word[8];
};

/* `kind` has what else an algorithm depends on: below 2^16. */
struct pd_cuda_shape {
    int32_t rows, cols, tokens, stride;
    uint32_t kind;
};

struct pd_cuda_chosen {
    struct pd_cuda_shape shape;
    struct pd_cuda_algorithm algorithm;
    bool trusted; /* this process's library took it; one out of a file is asked about first */
};

struct pd_cuda_algorithms {
    struct pd_cuda_chosen chosen[PD_CUDA_ALGORITHMS];
    int count, next; /* the one that the next takes the place of, where the table is full */
};

/* NULL: none was chosen. Until the next is noted. */
struct pd_cuda_chosen *pd_cuda_algorithms_find(struct pd_cuda_algorithms *table,
                                               const struct pd_cuda_shape *shape);

/* In the place of the shape's own, in a free one, or in the oldest's. */
struct pd_cuda_chosen *pd_cuda_algorithms_note(struct pd_cuda_algorithms *table,
                                               const struct pd_cuda_shape *shape,
                                               const struct pd_cuda_algorithm *algorithm);

/* ---- as bytes -------------------------------------------------------------------------------- */

/* Into `bytes` of PD_CUDA_ALGORITHMS_BYTES; how many they are. */
size_t pd_cuda_algorithms_write(const struct pd_cuda_algorithms *table, const char *key,
                                uint8_t *bytes);

/* Adds what the table has not: none of it is trusted. False, and nothing is added: `why` has a few words. */
bool pd_cuda_algorithms_read(struct pd_cuda_algorithms *table, const char *key,
                             const uint8_t *bytes, size_t count, char *why, size_t size);

/* ---- as a file ------------------------------------------------------------------------------- */

/* "DIRECTORY/NVIDIA-H200-sm_90-cublasLt-130002.algorithms". False: it is too long. */
bool pd_cuda_algorithms_path(const char *directory, const char *key, char *path, size_t size);

/* As pd_cuda_algorithms_read. A file that is not there is an empty one. */
bool pd_cuda_algorithms_load(struct pd_cuda_algorithms *table, const char *key, const char *path,
                             char *why, size_t size);

/* In one piece: whoever reads finds the old or the new one. What others have added since is kept. */
bool pd_cuda_algorithms_save(const struct pd_cuda_algorithms *table, const char *key,
                             const char *path, char *why, size_t size);

#ifdef __cplusplus
}
#endif

#endif
