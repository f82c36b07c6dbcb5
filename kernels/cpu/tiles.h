/* The tile registers of a thread (AMX), which everything that multiplies with them shares. */
#ifndef PD_CPU_TILES_H
#define PD_CPU_TILES_H

#include <stdint.h>

enum { TILE_ROWS = 16, TILE_BYTES = 64, TILE_COUNT = 8 };

/* As the processor reads it: rows and bytes of a row of each tile. */
struct pd_cpu_tiles {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Tiles of 16 rows of 64 bytes. */
static inline struct pd_cpu_tiles pd_cpu_tiles_whole(void)
{
    struct pd_cpu_tiles tiles = {.palette = 1};

    for (int i = 0; i < TILE_COUNT; i++) {
        tiles.row_bytes[i] = TILE_BYTES;
        tiles.rows[i] = TILE_ROWS;
    }
    return tiles;
}

/* Gives this thread's tiles these shapes, and clears them, unless they have them already. */
void pd_cpu_tiles_configure(const struct pd_cpu_tiles *tiles);

/* Compilers know nothing of what tiles read and write. */
static inline __attribute__((always_inline)) void memory_is_used(void)
{
    __asm__ volatile("" ::: "memory");
}

#endif
