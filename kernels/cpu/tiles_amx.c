#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/tiles.h"

void pd_cpu_tiles_configure(const struct pd_cpu_tiles *tiles)
{
    static _Thread_local struct pd_cpu_tiles configured;

    if (memcmp(&configured, tiles, sizeof(configured)) == 0)
        return;
    configured = *tiles;
    memory_is_used(); /* some compilers take the next instruction to read eight bytes */
    _tile_loadconfig(&configured);
}
