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

/* ---- memories side by side ------------------------------------------------------------------- */

enum { HUGE_PAGE = 2 << 20 }; /* what the memory of a pool may come in */

bool pd_mapped_open(struct pd_mapped *mapped, const int *fds, uint32_t count, size_t bytes,
                    int prot)
{
    size_t size = count * bytes + 2 * HUGE_PAGE; /* to align the first, and to round the last up */
    void *reserved =
        mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint8_t *base;

    memset(mapped, 0, sizeof(*mapped));
    if (reserved == MAP_FAILED)
        return false;
    base = (uint8_t *)(((uintptr_t)reserved + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    for (uint32_t r = 0; r < count; r++) {
        if (mmap(base + r * bytes, bytes, prot, MAP_SHARED | MAP_FIXED, fds[r], 0) == MAP_FAILED) {
            int reason = errno;

            munmap(reserved, size);
            errno = reason;
            return false;
        }
    }
    *mapped = (struct pd_mapped){base, reserved, size};
    return true;
}

void pd_mapped_close(struct pd_mapped *mapped)
{
    if (mapped->base)
        munmap(mapped->reserved, mapped->size);
    mapped->base = NULL;
}

/* ---- this process's pool --------------------------------------------------------------------- */

/* A reader's own descriptor of a rank's memory, opened for reading only. Its size must be sealed: a
 * pool that shrinks would kill whoever has it mapped. */
static bool open_for_readers(struct pd_pool *pool, uint32_t rank, int fd)
{
    char path[64];
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || !(seals & F_SEAL_SHRINK)) {
        snprintf(pool->why_not_shared, sizeof(pool->why_not_shared),
                 "the size of the pool's memory is not sealed");
        return false;
    }
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    pool->readers_fd[rank] = open(path, O_RDONLY | O_CLOEXEC);
    if (pool->readers_fd[rank] < 0)
        snprintf(pool->why_not_shared, sizeof(pool->why_not_shared), "%s: %s", path,
                 strerror(errno));
    return pool->readers_fd[rank] >= 0;
}

/* One rank's memory against what its share of the pool needs. */
static int check_memory(const struct pd_pool *pool, const struct pd_export *memory,
                        struct pd_error *error)
{
    uint64_t needed = pool->layout.ranks > 1 ? pool->layout.stride : pool->layout.rank_bytes;
    struct stat status;

    if (memory->size < needed)
        return pd_fail(error, PD_INVALID, "KV pool: exported %zu bytes, its shape needs %llu",
                       memory->size, (unsigned long long)needed);
    if (memory->kind == PD_EXPORT_DEVICE)
        return memory->copy ? PD_OK
                            : pd_fail(error, PD_UNSUPPORTED,
                                      "KV pool: the device's memory cannot be copied");
    if (fstat(memory->fd, &status) < 0 || (uint64_t)status.st_size < memory->size)
        return pd_fail(error, PD_INVALID, "KV pool: the exported file is shorter than %zu bytes",
                       memory->size);
    return PD_OK;
}

/* Maps the ranks' files, which stay the caller's. */
static int map(struct pd_pool *pool, const int *fds, size_t bytes, struct pd_error *error)
{
    const struct pd_layout *layout = &pool->layout;

    if (!pd_mapped_open(&pool->mapped, fds, layout->ranks, bytes, PROT_READ | PROT_WRITE))
        return pd_fail(error, PD_IO, "KV pool: mmap of %zu bytes: %s", bytes, strerror(errno));
    pool->base = pool->mapped.base;
    if (bytes >= layout->total)
        pool->words = (_Atomic uint64_t *)(void *)(pool->base + layout->words_offset);
    else
        snprintf(pool->why_not_shared, sizeof(pool->why_not_shared),
                 "the pool's memory has no room for generation words");
    for (uint32_t r = 0; r < layout->ranks && pool->words; r++)
        if (!open_for_readers(pool, r, fds[r]))
            break;
    return PD_OK;
}

static int make_stage(struct pd_pool *pool, struct pd_error *error)
{
    const struct pd_layout *layout = &pool->layout;
    size_t bytes = layout->ranks > 1 ? layout->stride : layout->total;
    int fds[PD_RANKS_MAX], status = PD_OK;
    uint32_t made;

    for (made = 0; made < layout->ranks && status == PD_OK; made++) {
        fds[made] = memfd_create("pd-kv-stage", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fds[made] < 0 || ftruncate(fds[made], (off_t)bytes) < 0 ||
            fcntl(fds[made], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
            status =
                pd_fail(error, PD_IO, "KV pool: a stage of %zu bytes: %s", bytes, strerror(errno));
    }
    if (status == PD_OK)
        status = map(pool, fds, bytes, error);
    while (made-- > 0)
        if (fds[made] >= 0)
            close(fds[made]);
    return status;
}

int pd_pool_map(struct pd_pool *pool, const struct pd_kv_pool *shape, int ranks, int kv_heads,
                const struct pd_export *memory, struct pd_error *error)
{
    const struct pd_layout *layout = &pool->layout;
    int fds[PD_RANKS_MAX];
    size_t bytes;

    memset(pool, 0, sizeof(*pool));
    for (int r = 0; r < PD_RANKS_MAX; r++)
        pool->readers_fd[r] = -1;
    if (pd_layout_of_pool(shape, ranks, kv_heads, &pool->layout, error) != PD_OK)
        return error ? error->status : PD_INVALID;
    for (uint32_t r = 0; r < layout->ranks; r++) {
        if (memory[r].kind != memory->kind)
            return pd_fail(error, PD_INVALID, "KV pool: ranks on a device and in host memory");
        if (check_memory(pool, &memory[r], error) != PD_OK)
            return error ? error->status : PD_INVALID;
        fds[r] = memory[r].fd;
    }
    if (memory->kind == PD_EXPORT_DEVICE) {
        memcpy(pool->device, memory, layout->ranks * sizeof(*memory));
        return make_stage(pool, error);
    }
    bytes = layout->ranks > 1 ? layout->stride : memory->size;
    return map(pool, fds, bytes, error);
}

/* A device is asked for as many ranges at once as there are, up to this. */
enum { RANGES = 1024 };

static bool out_of(const struct pd_pool *pool, uint32_t rank, uint32_t first, uint32_t count)
{
    const struct pd_layout *layout = &pool->layout;
    const struct pd_export *device = &pool->device[rank];
    uint64_t planes = (uint64_t)layout->layers * layout->rank_heads;
    struct pd_export_range ranges[RANGES];
    size_t collected = 0;

    for (uint64_t plane = 0; plane < planes; plane++) {
        uint64_t offset = plane * layout->plane_bytes + first * layout->block_bytes;

        ranges[collected++] = (struct pd_export_range){offset, offset, count * layout->block_bytes};
        if (collected < RANGES && plane + 1 < planes)
            continue;
        if (!device->copy(device->copy_context, pool->base + rank * layout->stride, ranges,
                          collected, true))
            return false;
        collected = 0;
    }
    return true;
}

bool pd_pool_out(const struct pd_pool *pool, uint32_t first, uint32_t count)
{
    for (uint32_t r = 0; r < pool->layout.ranks; r++)
        if (!out_of(pool, r, first, count))
            return false;
    return true;
}

bool pd_pool_in(const struct pd_pool *pool, const struct pd_read *read)
{
    const struct pd_layout *layout = &pool->layout;
    struct pd_export_range ranges[PD_READ_RANGES];

    for (uint32_t r = 0; r < layout->ranks; r++) {
        const struct pd_export *device = &pool->device[r];
        size_t count = 0;

        for (size_t i = 0; i < read->count; i++) {
            uint64_t offset = read->ranges[i].destination;

            if (pd_rank_at(layout->ranks, layout->stride, offset) != r)
                continue;
            offset -= r * layout->stride;
            ranges[count++] = (struct pd_export_range){offset, offset, read->ranges[i].length};
        }
        if (count > 0 && !device->copy(device->copy_context, pool->base + r * layout->stride,
                                       ranges, count, false))
            return false;
    }
    return true;
}

void pd_pool_unmap(struct pd_pool *pool)
{
    pd_mapped_close(&pool->mapped);
    for (int r = 0; r < PD_RANKS_MAX; r++) {
        if (pool->readers_fd[r] >= 0)
            close(pool->readers_fd[r]);
        pool->readers_fd[r] = -1;
    }
    pool->base = NULL;
    pool->words = NULL;
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
