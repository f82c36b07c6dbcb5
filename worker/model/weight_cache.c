#include "worker/model/weight_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "worker/base/clock.h"
#include "worker/model/parallel.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum {
    WEIGHT_FILES = 8,
    NAME_BYTES = 2 * PD_DIGEST + 5, /* hex, ".pdw" */
    HEADER_BYTES = 4096,
    ALIGNMENT = 64,
    TAIL = 64, /* a weight is readable so far past its end */
    CHUNK = 4 << 20,
    LOCK_PAUSE_MS = 20,
    LOCK_LIMIT_S = 120,
};

static const size_t HUGE_PAGE = (size_t)2 << 20;
static const char MAGIC[8] = "pd-wts 1", SUFFIX[] = ".pdw", UNFINISHED[] = ".making";

/* At the beginning of a file; in the machine's own order of bytes, as the weights are. */
struct header {
    char magic[8];
    uint8_t key[PD_DIGEST];
    uint64_t size; /* of the file */
    uint64_t sum;  /* of all that follows the header's page */
};

struct pd_weight_cache {
    int directory, lock;
    char name[NAME_BYTES];
    uint8_t key[PD_DIGEST];
    size_t *offsets; /* [count + 1]; the last is the file's size */
    size_t count;
    uint8_t *memory; /* mapped; NULL before */
    bool filled;
    int threads;
    uint64_t *sums; /* [chunks] */
};

/* ---- sums -------------------------------------------------------------------------------------- */

static size_t chunks_of(const struct pd_weight_cache *cache)
{
    return (cache->offsets[cache->count] - HEADER_BYTES + CHUNK - 1) / CHUNK;
}

/* Four chains of multiplications, as fast as memory is read. It finds what broke, not what was forged. */
static uint64_t sum_of(const uint8_t *bytes, size_t size)
{
    const uint64_t factor = 0x9e3779b97f4a7c15u;
    uint64_t chain[4] = {size, 1, 2, 3}, word[4];

    for (; size >= sizeof(word); bytes += sizeof(word), size -= sizeof(word)) {
        memcpy(word, bytes, sizeof(word));
        for (int i = 0; i < 4; i++) {
            chain[i] = (chain[i] ^ word[i]) * factor;
            chain[i] ^= chain[i] >> 29;
        }
    }
    for (; size > 0; bytes++, size--)
        chain[0] = (chain[0] ^ *bytes) * factor;
    for (int i = 1; i < 4; i++)
        chain[0] = (chain[0] ^ (chain[i] ^ chain[i] >> 32)) * factor;
    return chain[0] ^ chain[0] >> 32;
}

static int sum_chunk(void *context, size_t index, struct pd_error *error)
{
    struct pd_weight_cache *cache = context;
    size_t from = HEADER_BYTES + index * CHUNK, end = cache->offsets[cache->count];

    (void)error;
    cache->sums[index] = sum_of(cache->memory + from, end - from < CHUNK ? end - from : CHUNK);
    return PD_OK;
}

static uint64_t sum_all(struct pd_weight_cache *cache)
{
    const struct pd_tasks tasks = {.count = chunks_of(cache), .run = sum_chunk, .context = cache};

    pd_tasks_run(&tasks, cache->threads, NULL);
    return sum_of((const uint8_t *)cache->sums, tasks.count * sizeof(*cache->sums));
}

/* ---- the folder -------------------------------------------------------------------------------- */

/* Whether nobody but this user and root could have written it. */
static bool is_ours(const struct stat *status)
{
    return (status->st_uid == geteuid() || status->st_uid == 0) &&
           (status->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

static int open_directory(struct pd_weight_cache *cache, const char *path, struct pd_error *error)
{
    struct stat status;

    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return pd_fail(error, PD_IO, "%s: %s", path, strerror(errno));
    cache->directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (cache->directory < 0 || fstat(cache->directory, &status) != 0)
        return pd_fail(error, PD_IO, "%s: %s", path, strerror(errno));
    if (!is_ours(&status))
        return pd_fail(error, PD_INVALID, "%s: others may write there", path);
    return PD_OK;
}

/* One worker at a time looks for files and makes them. */
static int take_lock(struct pd_weight_cache *cache, struct pd_error *error)
{
    const struct timespec pause = {.tv_nsec = LOCK_PAUSE_MS * 1000000L};
    uint64_t end = pd_clock_ns() + (uint64_t)LOCK_LIMIT_S * 1000000000u;

    cache->lock = openat(cache->directory, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (cache->lock < 0)
        return pd_fail(error, PD_IO, "lock: %s", strerror(errno));
    while (flock(cache->lock, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return pd_fail(error, PD_IO, "lock: %s", strerror(errno));
        if (pd_clock_ns() >= end)
            return pd_fail(error, PD_TIMEOUT, "another worker has held its lock for %d s",
                           LOCK_LIMIT_S);
        nanosleep(&pause, NULL);
    }
    return PD_OK;
}

static void release_lock(struct pd_weight_cache *cache)
{
    if (cache->lock >= 0)
        close(cache->lock);
    cache->lock = -1;
}

static bool has_suffix(const char *name, const char *suffix)
{
    size_t length = strlen(name), tail = strlen(suffix);

    return length >= tail && strcmp(name + length - tail, suffix) == 0;
}

/* Finds the file that was used longest ago and counts all; removes what was left unfinished: its maker
 * held the lock, so it is gone. */
static int survey(struct pd_weight_cache *cache, char oldest[NAME_BYTES])
{
    int copy = dup(cache->directory), count = 0;
    DIR *directory = copy >= 0 ? fdopendir(copy) : NULL;
    struct timespec when = {0};
    struct dirent *entry;
    struct stat status;

    if (directory == NULL) {
        if (copy >= 0)
            close(copy);
        return 0;
    }
    rewinddir(directory);
    while ((entry = readdir(directory)) != NULL) {
        if (has_suffix(entry->d_name, UNFINISHED))
            unlinkat(cache->directory, entry->d_name, 0);
        if (strlen(entry->d_name) != NAME_BYTES - 1 || !has_suffix(entry->d_name, SUFFIX) ||
            fstatat(cache->directory, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (count++ > 0 &&
            (status.st_mtim.tv_sec > when.tv_sec ||
             (status.st_mtim.tv_sec == when.tv_sec && status.st_mtim.tv_nsec >= when.tv_nsec)))
            continue;
        when = status.st_mtim;
        memcpy(oldest, entry->d_name, NAME_BYTES);
    }
    closedir(directory);
    return count;
}

static void make_room(struct pd_weight_cache *cache)
{
    char oldest[NAME_BYTES];

    for (int i = 0; survey(cache, oldest) >= WEIGHT_FILES && i < 1000; i++)
        unlinkat(cache->directory, oldest, 0);
}

/* ---- one file ---------------------------------------------------------------------------------- */

/* Maps it where huge pages can begin, and asks for them: only tmpfs may give them. */
static bool map_file(struct pd_weight_cache *cache, int fd, int protection)
{
    size_t size = cache->offsets[cache->count], before;
    uint8_t *place =
        mmap(NULL, size + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (place == MAP_FAILED)
        return false;
    before = -(uintptr_t)place % HUGE_PAGE;
    cache->memory = mmap(place + before, size, protection, MAP_SHARED | MAP_FIXED, fd, 0);
    if (cache->memory == MAP_FAILED) {
        cache->memory = NULL;
        munmap(place, size + HUGE_PAGE);
        return false;
    }
    if (before > 0)
        munmap(place, before);
    munmap(cache->memory + size, HUGE_PAGE - before); /* sizes are of whole pages */
    madvise(cache->memory, size / HUGE_PAGE * HUGE_PAGE, MADV_COLLAPSE); /* a wish */
    return true;
}

static void unmap_file(struct pd_weight_cache *cache)
{
    if (cache->memory != NULL)
        munmap(cache->memory, cache->offsets[cache->count]);
    cache->memory = NULL;
}

static bool header_fits(struct pd_weight_cache *cache)
{
    const struct header *header = (const struct header *)cache->memory;

    return memcmp(header->magic, MAGIC, sizeof(MAGIC)) == 0 &&
           memcmp(header->key, cache->key, PD_DIGEST) == 0 &&
           header->size == cache->offsets[cache->count] && header->sum == sum_all(cache);
}

/* Whether there is a file that can be believed: then it is mapped. */
static bool find(struct pd_weight_cache *cache)
{
    int fd = openat(cache->directory, cache->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    struct stat status;

    if (fd < 0)
        return false;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && is_ours(&status) &&
        (uint64_t)status.st_size == cache->offsets[cache->count] &&
        map_file(cache, fd, PROT_READ)) {
        if (header_fits(cache))
            futimens(fd, NULL); /* it was used now */
        else
            unmap_file(cache);
    }
    close(fd);
    return cache->memory != NULL;
}

static void unfinished_name(const struct pd_weight_cache *cache, char name[2 * NAME_BYTES])
{
    snprintf(name, 2 * NAME_BYTES, "%s%s", cache->name, UNFINISHED);
}

/* All of its room is taken at once: a page that fails later would be a signal. */
static int begin(struct pd_weight_cache *cache, struct pd_error *error)
{
    char name[2 * NAME_BYTES];
    int fd, reason;

    make_room(cache);
    unfinished_name(cache, name);
    fd = openat(cache->directory, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0400);
    if (fd < 0)
        return pd_fail(error, PD_IO, "%s: %s", name, strerror(errno));
    reason = posix_fallocate(fd, 0, (off_t)cache->offsets[cache->count]);
    if (reason == 0 && !map_file(cache, fd, PROT_READ | PROT_WRITE))
        reason = errno;
    close(fd);
    if (reason == 0)
        return PD_OK;
    unlinkat(cache->directory, name, 0);
    return pd_fail(error, reason == ENOSPC ? PD_NO_MEMORY : PD_IO, "%s: %s", name,
                   strerror(reason));
}

/* ---- the whole --------------------------------------------------------------------------------- */

static struct pd_weight_cache *create(const uint8_t key[PD_DIGEST], const size_t *bytes,
                                      size_t count)
{
    struct pd_weight_cache *cache = calloc(1, sizeof(*cache));
    size_t at = HEADER_BYTES;

    if (cache == NULL)
        return NULL;
    cache->directory = cache->lock = -1;
    cache->count = count;
    memcpy(cache->key, key, PD_DIGEST);
    for (int i = 0; i < PD_DIGEST; i++)
        snprintf(cache->name + 2 * i, 3, "%02x", key[i]);
    strcat(cache->name, SUFFIX);
    cache->offsets = calloc(count + 1, sizeof(*cache->offsets));
    for (size_t i = 0; cache->offsets != NULL && i < count; i++) {
        cache->offsets[i] = at;
        if (bytes[i] > INT64_MAX / 2 - at) {
            pd_weight_cache_close(cache);
            return NULL;
        }
        if (bytes[i] > 0)
            at = (at + bytes[i] + TAIL + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    if (cache->offsets != NULL) {
        cache->offsets[count] = (at + HEADER_BYTES - 1) / HEADER_BYTES * HEADER_BYTES;
        cache->sums = calloc(chunks_of(cache) + 1, sizeof(*cache->sums));
    }
    if (cache->sums == NULL) {
        pd_weight_cache_close(cache);
        return NULL;
    }
    return cache;
}

/* Finds the file, or begins it and keeps the lock. */
static int obtain(struct pd_weight_cache *cache, const char *directory, struct pd_error *error)
{
    int status = open_directory(cache, directory, error);

    if (status != PD_OK)
        return status;
    cache->filled = find(cache);
    if (cache->filled)
        return PD_OK;
    status = take_lock(cache, error);
    if (status != PD_OK)
        return status;
    cache->filled = find(cache); /* whoever had the lock may have made it */
    if (!cache->filled)
        return begin(cache, error);
    release_lock(cache);
    return PD_OK;
}

int pd_weight_cache_open(const char *directory, const uint8_t key[PD_DIGEST], const size_t *bytes,
                         size_t count, int threads, struct pd_weight_cache **out,
                         struct pd_error *error)
{
    struct pd_weight_cache *cache = create(key, bytes, count);
    int status;

    *out = NULL;
    if (cache == NULL)
        return pd_fail(error, PD_NO_MEMORY, "no memory");
    cache->threads = threads;
    status = obtain(cache, directory, error);
    if (status != PD_OK)
        pd_weight_cache_close(cache);
    else
        *out = cache;
    return status;
}

struct pd_weight_place pd_weight_cache_place(const struct pd_weight_cache *cache, size_t index)
{
    return (struct pd_weight_place){cache->memory + cache->offsets[index], cache->filled};
}

int pd_weight_cache_keep(struct pd_weight_cache *cache, struct pd_error *error)
{
    struct header header = {.size = cache->offsets[cache->count]};
    char name[2 * NAME_BYTES];

    if (cache->filled)
        return PD_OK;
    memcpy(header.magic, MAGIC, sizeof(MAGIC));
    memcpy(header.key, cache->key, PD_DIGEST);
    header.sum = sum_all(cache);
    memcpy(cache->memory, &header, sizeof(header));
    unfinished_name(cache, name);
    if (mprotect(cache->memory, header.size, PROT_READ) != 0 ||
        renameat(cache->directory, name, cache->directory, cache->name) != 0)
        return pd_fail(error, PD_IO, "%s: %s", cache->name, strerror(errno));
    cache->filled = true;
    release_lock(cache);
    return PD_OK;
}

void pd_weight_cache_close(struct pd_weight_cache *cache)
{
    char name[2 * NAME_BYTES];

    if (cache == NULL)
        return;
    if (cache->memory != NULL && !cache->filled) {
        unfinished_name(cache, name);
        unlinkat(cache->directory, name, 0);
    }
    unmap_file(cache);
    release_lock(cache);
    if (cache->directory >= 0)
        close(cache->directory);
    free(cache->offsets);
    free(cache->sums);
    free(cache);
}
