#include "worker/engine/must.h"

#include <stdlib.h>

#include "worker/base/log.h"

static void *checked(void *memory, size_t size)
{
    if (memory)
        return memory;
    pd_log(PD_LOG_ERROR, "engine", "out of memory: %zu bytes for a message; the worker ends", size);
    abort();
}

void *pd_must_alloc(size_t size)
{
    return checked(calloc(1, size), size);
}

void *pd_must_realloc(void *memory, size_t size)
{
    return checked(realloc(memory, size), size);
}
