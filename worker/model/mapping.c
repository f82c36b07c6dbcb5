#include "worker/model/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void set_name(struct pd_mapping *mapping, const char *path)
{
    size_t length = strlen(path);

    if (length < sizeof(mapping->name))
        memcpy(mapping->name, path, length + 1);
    else
        snprintf(mapping->name, sizeof(mapping->name), "...%s",
                 path + length - (sizeof(mapping->name) - 4));
}

static int fail_errno(const struct pd_mapping *mapping, const char *call, struct pd_error *error)
{
    int cause = errno;

    return pd_fail(error, cause == ENOENT ? PD_NOT_FOUND : PD_IO, "%s: %s: %s", mapping->name, call,
                   strerror(cause));
}

static int map_descriptor(struct pd_mapping *mapping, int fd, size_t limit, struct pd_error *error)
{
    struct stat st;
    void *address;

    if (fstat(fd, &st) != 0)
        return fail_errno(mapping, "stat", error);
    if (!S_ISREG(st.st_mode))
        return pd_fail(error, PD_INVALID, "%s: not a regular file", mapping->name);
    if (st.st_size == 0)
        return pd_fail(error, PD_INVALID, "%s: the file is empty", mapping->name);
    if ((uint64_t)st.st_size > SIZE_MAX / 2 || (limit && (uint64_t)st.st_size > limit))
        return pd_fail(error, PD_INVALID,
                       "%s: %llu bytes, more than the %zu that such a file may have", mapping->name,
                       (unsigned long long)st.st_size, limit ? limit : SIZE_MAX / 2);
    address = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED)
        return fail_errno(mapping, "mmap", error);
    mapping->bytes = address;
    mapping->size = (size_t)st.st_size;
    return PD_OK;
}

int pd_mapping_open(struct pd_mapping *mapping, const char *path, size_t limit,
                    struct pd_error *error)
{
    int fd, status;

    memset(mapping, 0, sizeof(*mapping));
    set_name(mapping, path);
    /* Without O_NONBLOCK a FIFO in a model's place would hang the start. */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fail_errno(mapping, "open", error);
    status = map_descriptor(mapping, fd, limit, error);
    close(fd);
    return status;
}

void pd_mapping_close(struct pd_mapping *mapping)
{
    if (mapping->bytes)
        munmap((void *)(uintptr_t)mapping->bytes, mapping->size);
    mapping->bytes = NULL;
    mapping->size = 0;
}

void pd_read_ahead(const uint8_t *address, size_t length)
{
    size_t before = (uintptr_t)address % (size_t)sysconf(_SC_PAGESIZE);

    madvise((void *)(uintptr_t)(address - before), before + length, MADV_WILLNEED);
}
