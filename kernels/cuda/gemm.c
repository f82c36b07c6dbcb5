#include "kernels/cuda/gemm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pd_cuda_gemm_chooser {
    struct pd_cuda_runtime *runtime;
    char key[PD_CUDA_ALGORITHMS_KEY];
    char path[1024]; /* "": nothing is kept */
    char told[1280]; /* what was found there */
    struct pd_cuda_algorithms table;
};

enum { OFFERS = 8 }; /* that are timed */

/* ---- open and close -------------------------------------------------------------------------- */

/* A file that does not fit is told of and made anew, by the first choice. */
static void find_file(struct pd_cuda_gemm_chooser *chooser, const char *directory)
{
    struct pd_cuda_device_info info;
    char why[128] = "";

    pd_cuda_info(chooser->runtime, &info);
    snprintf(chooser->key, sizeof(chooser->key), "%.64s sm_%d%d cublasLt %zu", info.name,
             info.major, info.minor, pd_cuda_gemm_version(chooser->runtime));
    if (directory == NULL || *directory == '\0')
        return;
    if (!pd_cuda_algorithms_path(directory, chooser->key, chooser->path, sizeof(chooser->path))) {
        *chooser->path = '\0';
        snprintf(chooser->told, sizeof(chooser->told),
                 "; no algorithms are kept: %.64s... is too long", directory);
    } else if (pd_cuda_algorithms_load(&chooser->table, chooser->key, chooser->path, why,
                                       sizeof(why))) {
        snprintf(chooser->told, sizeof(chooser->told), "; %d algorithms of %s",
                 chooser->table.count, chooser->path);
    } else {
        snprintf(chooser->told, sizeof(chooser->told), "; %s is not used: %s", chooser->path, why);
    }
}

struct pd_cuda_gemm_chooser *pd_cuda_gemm_open(struct pd_cuda_runtime *runtime,
                                               const char *directory)
{
    struct pd_cuda_gemm_chooser *chooser = calloc(1, sizeof(*chooser));

    if (chooser != NULL) {
        chooser->runtime = runtime;
        find_file(chooser, directory);
    }
    return chooser;
}

void pd_cuda_gemm_close(struct pd_cuda_gemm_chooser *chooser)
{
    free(chooser);
}

void pd_cuda_gemm_tell(const struct pd_cuda_gemm_chooser *chooser, char *text, size_t size)
{
    snprintf(text, size, "%s", chooser->told);
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* How far an address is aligned, as a power of two: the library's kernels ask for up to 2^8 bytes. */
static uint32_t alignment_of(const void *address)
{
    uint32_t power = 0;

    while (power < 8 && ((uintptr_t)address >> power & 1) == 0)
        power++;
    return power;
}

static struct pd_cuda_shape shape_of(const struct pd_cuda_product *product)
{
    return (struct pd_cuda_shape){
        .rows = product->rows,
        .cols = product->cols,
        .tokens = product->tokens,
        .stride = product->stride,
        .kind = (uint32_t)product->bf16 | (uint32_t)product->accumulate << 1 |
                (uint32_t)(product->bias != NULL) << 2 | alignment_of(product->out) << 4,
    };
}

/* Where there is no memory to time in, the library's first guess serves. */
static int quickest(struct pd_cuda_runtime *runtime, const struct pd_cuda_product *product,
                    const struct pd_cuda_algorithm *offers, int count, int *best)
{
    float least = 0, milliseconds = 0;

    *best = 0;
    for (int i = 0; i < count; i++) {
        int error = pd_cuda_gemm_time(runtime, product, &offers[i], &milliseconds);

        if (error == PD_CUDA_NO_MEMORY)
            return 0;
        if (error != 0)
            return error;
        if (i == 0 || milliseconds < least) {
            least = milliseconds;
            *best = i;
        }
    }
    return 0;
}

static void keep(struct pd_cuda_gemm_chooser *chooser, const struct pd_cuda_shape *shape,
                 const struct pd_cuda_algorithm *algorithm)
{
    char unused[128];

    pd_cuda_algorithms_note(&chooser->table, shape, algorithm)->trusted = true;
    /* What cannot be kept is chosen again by the next process: slower to start, and no more. */
    if (*chooser->path != '\0' && !pd_cuda_algorithms_save(&chooser->table, chooser->key,
                                                           chooser->path, unused, sizeof(unused)))
        *chooser->path = '\0';
}

static int choose(struct pd_cuda_gemm_chooser *chooser, const struct pd_cuda_product *product,
                  const struct pd_cuda_shape *shape, bool recording,
                  struct pd_cuda_algorithm *algorithm)
{
    struct pd_cuda_algorithm offers[OFFERS];
    int count = 0, best = 0;
    int error = pd_cuda_gemm_offers(chooser->runtime, product, offers, OFFERS, &count);

    if (error == 0 && count == 0)
        error = PD_CUDA_NO_ALGORITHM;
    if (error == 0 && !recording)
        error = quickest(chooser->runtime, product, offers, count, &best);
    if (error != 0)
        return error;
    *algorithm = offers[best];
    if (!recording)
        keep(chooser, shape, algorithm);
    return 0;
}

int pd_cuda_gemm_multiply(struct pd_cuda_gemm_chooser *chooser,
                          const struct pd_cuda_product *product, bool recording)
{
    struct pd_cuda_shape shape = shape_of(product);
    struct pd_cuda_chosen *chosen = pd_cuda_algorithms_find(&chooser->table, &shape);
    struct pd_cuda_algorithm algorithm;
    int error = 0;

    if (chosen != NULL && !chosen->trusted)
        chosen->trusted = pd_cuda_gemm_takes(chooser->runtime, product, &chosen->algorithm);
    if (chosen != NULL && chosen->trusted)
        algorithm = chosen->algorithm;
    else
        error = choose(chooser, product, &shape, recording, &algorithm);
    return error != 0 ? error : pd_cuda_gemm(chooser->runtime, product, &algorithm);
}
