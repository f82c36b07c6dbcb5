#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/tiles.h"

struct pd_cpu_tiles pd_cpu_tiles_whole(void)
{
    struct pd_cpu_tiles tiles = {.palette = 1};

    for (int i = 0; i < TILE_COUNT; i++) {
        tiles.row_bytes[i] = TILE_BYTES;
        tiles.rows[i] = TILE_ROWS;
    }
    return tiles;
}

void pd_cpu_tiles_configure(const struct pd_cpu_tiles *tiles)
{
    static _Thread_local struct pd_cpu_tiles configured;

    if (memcmp(&configured, tiles, sizeof(configured)) == 0)
        return;
    configured = *tiles;
    memory_is_used(); /* some compilers take the next instruction to read eight bytes */
    _tile_loadconfig(&configured);
}
