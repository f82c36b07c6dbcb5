#include "kernels/cuda/paths.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    bool shown;
} paths[PD_CUDA_PATHS] = {
#include "kernels/cuda/shown.h" /* written by t/device/shown */
};

const char *pd_cuda_path_name(enum pd_cuda_path path)
{
    return paths[path].name;
}

bool pd_cuda_path_shown(enum pd_cuda_path path)
{
    return paths[path].shown;
}

/* The bits of one name of `length` bytes; 0: there is no such path. */
static unsigned bits_of(const char *name, size_t length)
{
    if (length == 3 && memcmp(name, "all", 3) == 0)
        return (1u << PD_CUDA_PATHS) - 1;
    for (int i = 0; i < PD_CUDA_PATHS; i++)
        if (strlen(paths[i].name) == length && memcmp(paths[i].name, name, length) == 0)
            return 1u << i;
    return 0;
}

static bool refuse(const char *name, size_t length, char *error, size_t size)
{
    size_t used = (size_t)snprintf(error, size, "there is no path \"%.*s\": all",
                                   length < 32 ? (int)length : 32, name);

    for (int i = 0; i < PD_CUDA_PATHS && used < size; i++)
        used += (size_t)snprintf(error + used, size - used, ", %s", paths[i].name);
    return false;
}

bool pd_cuda_paths_on(const char *enable, unsigned *on, char *error, size_t size)
{
    *on = 0;
    for (int i = 0; i < PD_CUDA_PATHS; i++)
        *on |= (unsigned)paths[i].shown << i;
    while (enable != NULL && *enable != '\0') {
        size_t length = strcspn(enable, ",");
        unsigned bits = bits_of(enable, length);

        if (bits == 0)
            return refuse(enable, length, error, size);
        *on |= bits;
        enable += length + (enable[length] == ',');
    }
    return true;
}
