/* Products in integers by tiles: sixteen tokens times sixteen rows of weights in one instruction.
 *
 *     x        16 tokens  x  [8 words of high parts | 8 of low parts]     lines as they lie
 *     weights  [8 words times 16 | 8 words]  x  16 rows                   nibbles leave room for the 16
 *
 * so one multiplication gives 16 high + low: the same exact sum as everywhere. What follows it (integer.h)
 * is done by vectors. Bytes have no room for the 16, and fewer than sixteen tokens no tile: they go the
 * way of VNNI. */
#include "kernels/cpu/integer.h"

enum { TILE_TOKENS = 16, TILE_BYTES = 64 };

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Once a thread: nothing else of the program uses tiles. */
static void configure_tiles(void)
{
    static _Thread_local bool done;
    struct tile_config config = {.palette = 1};

    if (done)
        return;
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = TILE_BYTES;
        config.rows[i] = TILE_TOKENS;
    }
    _tile_loadconfig(&config);
    done = true;
}

/* The weights of each tile of rows. */
struct tiles {
    _Alignas(64) words rows[2][2 * WORDS];
};

INLINE void unpack_tiles(const struct unpacked *weights, struct tiles *out)
{
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
#pragma GCC unroll 8
        for (int i = 0; i < WORDS; i++) {
            out->rows[h][i] = words_times_16(weights->w[h][i]);
            out->rows[h][WORDS + i] = weights->w[h][i];
        }
    }
}

/* Compilers know nothing of what tiles read and write. */
INLINE void memory_is_used(void)
{
    __asm__ volatile("" ::: "memory");
}

/* Sixteen tokens from `from` on times both tiles of rows, in tiles 6 and 7. Tiles are named by digits
 * alone: the assembler reads them. */
#define MULTIPLY_TILES(x, first, second, from, sums)                                               \
    do {                                                                                           \
        _tile_loadd(x, from, TILE_BYTES);                                                          \
        _tile_zero(first);                                                                         \
        _tile_zero(second);                                                                        \
        _tile_dpbsud(first, x, 6);                                                                 \
        _tile_dpbsud(second, x, 7);                                                                \
        _tile_stored(first, (sums)[0], TILE_BYTES);                                                \
        _tile_stored(second, (sums)[1], TILE_BYTES);                                               \
        memory_is_used();                                                                          \
    } while (0)

INLINE void add_tiles(int form, const struct unpacked *weights, words sums[2][TILE_TOKENS],
                      const struct pd_cpu_scale *x, float *acc)
{
#pragma GCC unroll 4
    for (int t = 0; t < TILE_TOKENS; t++) {
        for (int h = 0; h < 2; h++)
            add_sum(form, weights, 0, h, sums[h][t], x + t, acc + t * PANEL);
    }
}

/* `tokens` is a multiple of sixteen. */
INLINE void multiply_tiles(int form, const uint8_t *panel, int blocks,
                           const struct pd_cpu_rounded *x, int first, int tokens, float *acc)
{
    _Alignas(64) words sums[2][2][TILE_TOKENS];
    struct tiles tiles;

    for (int b = 0; b < blocks; b++, panel += form_bytes(form)) {
        struct unpacked weights;

        fetch_ahead(panel, form_bytes(form));
        weights = unpack_block(form, panel);
        unpack_tiles(&weights, &tiles);
        memory_is_used();
        _tile_loadd(6, tiles.rows[0], TILE_BYTES);
        _tile_loadd(7, tiles.rows[1], TILE_BYTES);
        for (int t = 0; t < tokens; t += 2 * TILE_TOKENS) { /* two groups, which overlap */
            struct place at = place_of(x, b, first + t);
            bool both = t + TILE_TOKENS < tokens;

            MULTIPLY_TILES(4, 0, 1, at.lines, sums[0]);
            if (both)
                MULTIPLY_TILES(5, 2, 3, at.lines + TILE_TOKENS, sums[1]);
            add_tiles(form, &weights, sums[0], at.scales, acc + t * PANEL);
            if (both)
                add_tiles(form, &weights, sums[1], at.scales + TILE_TOKENS,
                          acc + (t + TILE_TOKENS) * PANEL);
        }
    }
}

static void multiply_by_tiles(enum pd_form form, const uint8_t *panel, int blocks,
                              const struct pd_cpu_rounded *x, int first, int tokens, float *acc)
{
    int whole = tokens / TILE_TOKENS * TILE_TOKENS;

    if (whole == 0 || (form != PD_FORM_N4 && form != PD_FORM_N4F)) {
        multiply_panel(form, panel, blocks, x, first, tokens, acc);
        return;
    }
    configure_tiles();
    if (form == PD_FORM_N4)
        multiply_tiles(PD_FORM_N4, panel, blocks, x, first, whole, acc);
    else
        multiply_tiles(PD_FORM_N4F, panel, blocks, x, first, whole, acc);
    if (whole < tokens)
        multiply_panel(form, panel, blocks, x, first + whole, tokens - whole, acc + whole * PANEL);
}

const struct pd_cpu_integer pd_cpu_integer_amx = {.round = round_row,
                                                  .multiply = multiply_by_tiles};
