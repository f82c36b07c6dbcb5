#include "worker/kvx/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ThreadSanitizer does not model fences; the two here order accesses to memory that two processes
 * share, which it does not see either. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wtsan"
#endif

/* A reader's own descriptor of the same memory, opened for reading only. Its size must be sealed: a
 * pool that shrinks would kill whoever has it mapped. */
static void open_for_readers(struct pd_pool *pool, int fd)
{
    char path[64];
    int seals = fcntl(fd, F_GET_SEALS);

    pool->readers_fd = -1;
    if (!pool->words) {
        snprintf(pool->why_not_shared, sizeof(pool->why_not_shared),
                 "the pool's memory has no room for generation words");
        return;
    }
    if (seals < 0 || !(seals & F_SEAL_SHRINK)) {
        snprintf(pool->why_not_shared, sizeof(pool->why_not_shared),
                 "the size of the pool's memory is not sealed");
        return;
    }
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    pool->readers_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (pool->readers_fd < 0)
        snprintf(pool->why_not_shared, sizeof(pool->why_not_shared), "%s: %s", path,
                 strerror(errno));
}

int pd_pool_map(struct pd_pool *pool, const struct pd_kv_pool *shape,
                const struct pd_export *memory, struct pd_error *error)
{
    struct stat status;

    memset(pool, 0, sizeof(*pool));
    pool->readers_fd = -1;
    if (pd_layout_of_pool(shape, &pool->layout, error) != PD_OK)
        return error ? error->status : PD_INVALID;
    if (memory->kind != PD_EXPORT_MEMFD)
        return pd_fail(error, PD_UNSUPPORTED, "KV pool: only memory of the host can be handed off");
    if (memory->size < pool->layout.bytes)
        return pd_fail(error, PD_INVALID, "KV pool: exported %zu bytes, its shape needs %llu",
                       memory->size, (unsigned long long)pool->layout.bytes);
    if (fstat(memory->fd, &status) < 0 || (uint64_t)status.st_size < memory->size)
        return pd_fail(error, PD_INVALID, "KV pool: the exported file is shorter than %zu bytes",
                       memory->size);
    pool->base = mmap(NULL, memory->size, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
    if (pool->base == MAP_FAILED) {
        pool->base = NULL;
        return pd_fail(error, PD_IO, "KV pool: mmap of %zu bytes: %s", memory->size,
                       strerror(errno));
    }
    pool->size = memory->size;
    if (memory->size >= pool->layout.total)
        pool->words = (_Atomic uint64_t *)(void *)(pool->base + pool->layout.words_offset);
    open_for_readers(pool, memory->fd);
    return PD_OK;
}

void pd_pool_unmap(struct pd_pool *pool)
{
    if (pool->base)
        munmap(pool->base, pool->size);
    if (pool->readers_fd >= 0)
        close(pool->readers_fd);
    pool->base = NULL;
    pool->words = NULL;
    pool->readers_fd = -1;
}

/* The writer's half of a sequence lock: words first, then a fence, then the bytes. */
void pd_pool_recycled(struct pd_pool *pool, const int32_t *blocks, size_t count)
{
    if (!pool->words)
        return;
    for (size_t i = 0; i < count; i++)
        if (blocks[i] >= 0 && (uint64_t)blocks[i] < pool->layout.blocks)
            atomic_fetch_add_explicit(&pool->words[blocks[i]], 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

uint64_t pd_pool_word_after_copy(const _Atomic uint64_t *word)
{
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(word, memory_order_relaxed);
}
