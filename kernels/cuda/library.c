#include "kernels/cuda/runtime.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where the toolkit was that this was built with (Makefile). */
#ifndef PD_CUDA_TOOLKIT
#define PD_CUDA_TOOLKIT "/usr/local/cuda"
#endif

enum { PLACE = 1024 }; /* bytes of a path; a longer one is no place to look in */

/* The linker's own name of what it opened: the path, also where only the file's name was given. */
static void name_opened(struct pd_cuda_library *library, const char *name)
{
    struct link_map *map = NULL;

    if (dlinfo(library->handle, RTLD_DI_LINKMAP, &map) == 0 && *map->l_name != '\0')
        name = map->l_name;
    snprintf(library->path, sizeof(library->path), "%s", name);
}

/* A name without a slash is the linker's to find. */
static bool open_name(struct pd_cuda_library *library, const char *name)
{
    library->handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library->handle != NULL)
        name_opened(library, name);
    else if (strchr(name, '/') != NULL && access(name, F_OK) == 0)
        snprintf(library->why, sizeof(library->why), "%s", dlerror());
    return library->handle != NULL;
}

static bool open_in(struct pd_cuda_library *library, const char *file, const char *folder,
                    const char *below)
{
    char path[PLACE];
    int length = snprintf(path, sizeof(path), "%s%s/%s", folder, below, file);

    return length < PLACE && open_name(library, path);
}

/* ---- 2. the toolkit -------------------------------------------------------------------------- */

static bool open_in_toolkit(struct pd_cuda_library *library, const char *file, const char *toolkit)
{
    return open_in(library, file, toolkit, "/lib64") || open_in(library, file, toolkit, "/lib");
}

static bool open_of_toolkit(struct pd_cuda_library *library, const char *file)
{
    const char *home = getenv("CUDA_HOME");

    return (home != NULL && *home == '/' && open_in_toolkit(library, file, home)) ||
           open_name(library, file) || open_in_toolkit(library, file, PD_CUDA_TOOLKIT);
}

/* ---- 3. wheels ------------------------------------------------------------------------------- */

static bool open_of_prefix(struct pd_cuda_library *library, const char *file, const char *prefix)
{
    char pattern[PLACE];
    glob_t found = {0};
    int length = snprintf(pattern, sizeof(pattern),
                          "%s/lib/python3*/{site,dist}-packages/nvidia/*/lib/%s", prefix, file);

    /* A prefix that would be a pattern itself names no Python that anybody has. */
    if (*prefix != '/' || strpbrk(prefix, "*?[{\\") != NULL || length >= PLACE ||
        glob(pattern, GLOB_BRACE, NULL, &found) != 0)
        return false;
    for (size_t i = 0; i < found.gl_pathc && library->handle == NULL; i++)
        open_name(library, found.gl_pathv[i]);
    globfree(&found);
    return library->handle != NULL;
}

/* "/usr" of "/usr/bin", the first folder of $PATH that has a python3. A virtual environment's python3 is a
 * link to another one: its packages are beside the link. */
static bool find_python(char prefix[PLACE])
{
    const char *path = getenv("PATH");
    char program[PLACE + 16];

    while (path != NULL && *path != '\0') {
        size_t length = strcspn(path, ":");

        snprintf(prefix, PLACE, "%.*s", (int)(length < PLACE ? length : 0), path);
        snprintf(program, sizeof(program), "%s/python3", prefix);
        if (*prefix == '/' && access(program, X_OK) == 0) {
            *strrchr(prefix, '/') = '\0';
            return true;
        }
        path += length + (path[length] == ':');
    }
    return false;
}

static bool open_of_wheels(struct pd_cuda_library *library, const char *file)
{
    const char *environment = getenv("VIRTUAL_ENV"), *home = getenv("HOME");
    char prefix[PLACE];

    if (environment != NULL && open_of_prefix(library, file, environment))
        return true;
    if (find_python(prefix) && open_of_prefix(library, file, prefix))
        return true;
    if (open_of_prefix(library, file, "/usr/local"))
        return true;
    return home != NULL && snprintf(prefix, PLACE, "%s/.local", home) < PLACE &&
           open_of_prefix(library, file, prefix);
}

/* ---- the order ------------------------------------------------------------------------------- */

bool pd_cuda_library_open(const char *file, const char *folder, struct pd_cuda_library *library)
{
    *library = (struct pd_cuda_library){0};
    return (folder != NULL && *folder != '\0' && open_in(library, file, folder, "")) ||
           open_of_toolkit(library, file) || open_of_wheels(library, file);
}

void pd_cuda_library_close(struct pd_cuda_library *library)
{
    if (library->handle != NULL)
        dlclose(library->handle);
    library->handle = NULL;
}

void pd_cuda_library_keep(const struct pd_cuda_library *library)
{
    void *again = dlopen(library->path, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);

    if (again != NULL)
        dlclose(again);
}

bool pd_cuda_library_find(const struct pd_cuda_library *library, const char *symbol, void *function)
{
    void *address = dlsym(library->handle, symbol);

    memcpy(function, &address, sizeof(address));
    return address != NULL;
}

/* ---- all of them ----------------------------------------------------------------------------- */

void pd_cuda_libraries_open(const char *folder, struct pd_cuda_library library[PD_CUDA_LIBRARIES])
{
    for (int kind = 0; kind < PD_CUDA_LIBRARIES; kind++)
        pd_cuda_library_open(pd_cuda_library_file((enum pd_cuda_library_kind)kind), folder,
                             &library[kind]);
}

void pd_cuda_libraries_close(struct pd_cuda_library library[PD_CUDA_LIBRARIES])
{
    for (int kind = 0; kind < PD_CUDA_LIBRARIES; kind++)
        pd_cuda_library_close(&library[kind]);
}

void pd_cuda_libraries_tell(const struct pd_cuda_library library[PD_CUDA_LIBRARIES], char *text,
                            size_t size)
{
    static const char *const names[PD_CUDA_LIBRARIES] = {
        [PD_CUDA_LIBRARY_CUBLASLT] = "cuBLASLt",
        [PD_CUDA_LIBRARY_NCCL] = "NCCL",
    };
    const char *before = "";

    for (int kind = 0; kind < PD_CUDA_LIBRARIES; kind++, before = ", ") {
        const struct pd_cuda_library *one = &library[kind];
        const char *file = pd_cuda_library_file((enum pd_cuda_library_kind)kind);
        int used = one->handle != NULL
                       ? snprintf(text, size, "%s%s of %s", before, names[kind], one->path)
                       : snprintf(text, size, "%s%s missing (%s)", before, names[kind],
                                  *one->why != '\0' ? one->why : file);

        if ((size_t)used >= size)
            return;
        text += used;
        size -= (size_t)used;
    }
}
