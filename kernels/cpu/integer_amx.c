/* Products in integers by tiles: sixteen tokens times sixteen rows of weights in one instruction.
 *
 *     x        16 tokens  x  [8 words of high parts | 8 of low parts]     lines as they lie
 *     weights  [8 words times 16 | 8 words]  x  16 rows                   nibbles leave room for the 16
 *
 * so one multiplication gives 16 high + low: the same exact sum as everywhere. Bytes leave no room for it:
 * there high and low are multiplied apart, by tiles of half the depth, which takes as long.
 *
 *     x        16 tokens  x  [8 words of high parts], and [8 of low parts]
 *     weights  [8 words]  x  16 rows                                      as they lie
 *
 * What follows (integer.h) is done by vectors. Blocks with two scales, and fewer than sixteen tokens, go the
 * way of VNNI. */
#include "kernels/cpu/integer.h"
#include "kernels/cpu/tiles.h"

enum { TILE_TOKENS = TILE_ROWS };

/* Of bytes, tiles 4 and 5 are x, 6 and 7 the weights. */
static void configure_tiles(bool bytes)
{
    struct pd_cpu_tiles tiles = pd_cpu_tiles_whole();

    if (bytes) {
        tiles.row_bytes[4] = tiles.row_bytes[5] = TILE_BYTES / 2;
        tiles.rows[6] = tiles.rows[7] = WORDS;
    }
    pd_cpu_tiles_configure(&tiles);
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
INLINE void multiply_tiles(int form, const uint8_t *panel, int first_block, int blocks,
                           const struct pd_cpu_rounded *x, int first, int tokens, float *acc)
{
    _Alignas(64) words sums[2][2][TILE_TOKENS];
    struct tiles tiles;

    memset(acc, 0, sizeof(*acc) * (size_t)tokens * PANEL);
    panel += (size_t)first_block * form_bytes(form);
    for (int b = first_block; b < first_block + blocks; b++, panel += form_bytes(form)) {
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

/* Tiles 0 and 1, 2 and 3: high and low parts of sixteen tokens times the two tiles of rows. */
INLINE void multiply_byte_tile(const struct pd_cpu_line *x, words sums[4][TILE_TOKENS])
{
    _tile_loadd(4, x->high, sizeof(*x));
    _tile_loadd(5, x->low, sizeof(*x));
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 5, 6);
    _tile_dpbsud(2, 4, 7);
    _tile_dpbsud(3, 5, 7);
    _tile_stored(0, sums[0], TILE_BYTES);
    _tile_stored(1, sums[1], TILE_BYTES);
    _tile_stored(2, sums[2], TILE_BYTES);
    _tile_stored(3, sums[3], TILE_BYTES);
    memory_is_used();
}

/* `tokens` is a multiple of sixteen. */
static void multiply_bytes(const uint8_t *panel, int first_block, int blocks,
                           const struct pd_cpu_rounded *x, int first, int tokens, float *acc)
{
    enum { ROW = PANEL * 4 }; /* bytes of a word of all rows */
    _Alignas(64) words sums[4][TILE_TOKENS];

    memset(acc, 0, sizeof(*acc) * (size_t)tokens * PANEL);
    panel += (size_t)first_block * form_bytes(PD_FORM_I8);
    for (int b = first_block; b < first_block + blocks; b++, panel += form_bytes(PD_FORM_I8)) {
        const uint8_t *columns = form_columns(PD_FORM_I8, panel);
        struct unpacked weights;

        fetch_ahead(panel, form_bytes(PD_FORM_I8));
        weights = unpack_block(PD_FORM_I8, panel);
        _tile_loadd(6, columns, ROW);
        _tile_loadd(7, columns + TILE_BYTES, ROW);
        for (int t = 0; t < tokens; t += TILE_TOKENS) {
            struct place at = place_of(x, b, first + t);

            multiply_byte_tile(at.lines, sums);
#pragma GCC unroll 4
            for (int i = 0; i < TILE_TOKENS; i++) {
                words less = words_set(offset(PD_FORM_I8, 0, at.scales + i));

                for (int h = 0; h < 2; h++) {
                    words high = words_times_16(_mm512_add_epi32(sums[2 * h][i], less));

                    add_sum(PD_FORM_I8, &weights, 0, h, _mm512_add_epi32(high, sums[2 * h + 1][i]),
                            at.scales + i, acc + (t + i) * PANEL);
                }
            }
        }
    }
}

static void multiply_by_tiles(enum pd_form form, const uint8_t *panel, int first_block, int blocks,
                              const struct pd_cpu_rounded *x, int first, int tokens, float *acc)
{
    int whole = tokens / TILE_TOKENS * TILE_TOKENS;

    if (whole == 0 || form == PD_FORM_I8F) {
        multiply_panel(form, panel, first_block, blocks, x, first, tokens, acc);
        return;
    }
    configure_tiles(form == PD_FORM_I8);
    if (form == PD_FORM_I8)
        multiply_bytes(panel, first_block, blocks, x, first, whole, acc);
    else if (form == PD_FORM_N4)
        multiply_tiles(PD_FORM_N4, panel, first_block, blocks, x, first, whole, acc);
    else
        multiply_tiles(PD_FORM_N4F, panel, first_block, blocks, x, first, whole, acc);
    if (whole < tokens)
        multiply_panel(form, panel, first_block, blocks, x, first + whole, tokens - whole,
                       acc + whole * PANEL);
}

const struct pd_cpu_narrow pd_cpu_integer_amx = INTEGER_KERNELS(multiply_by_tiles);
