/* Products in integers by tiles: sixteen tokens times sixteen rows of weights in one instruction.
 *
 *     x        16 tokens  x  [8 words of high parts | 8 of low parts]     lines as they lie
 *     weights  [8 words times 16 | 8 words]  x  16 rows                   nibbles leave room for the 16
 *
 * so one multiplication gives 16 high + low: the same exact sum as everywhere. Bytes leave no room for it:
 * there high and low are multiplied apart, by tiles of half the depth, which takes as long.
 *
 *     x        16 tokens  x  [8 words of high parts], and [8 of low parts]
 *     weights  [8 words]  x  16 rows                                      less 128: signed
 *
 * What follows (integer.h) is done by vectors and takes longer than the multiplication, whose sums come to them
 * through memory, a hundred cycles after it began. So one step does three things, on a walk over all blocks,
 * both tiles of rows of each, and all groups of sixteen tokens:
 *
 *     step s + 2    multiplied: the weights' tile is loaded for its first group, and the next one unpacked
 *     step s + 1    its sums are stored
 *     step s        its sums are scaled and added to acc
 *
 * Nothing that a step's end reads early comes after a store in the program: it would wait for that store's sums.
 *
 * While tiles are in use, one port of two multiplies floats, but both add them. So a sum of nibbles becomes a
 * float not by conversion, which the first port does, but by two additions: an integer one to the bits of
 * 1.5 * 2^23, whose unit is 1, and a subtraction of that number.
 *
 * Blocks with two scales, and a few tokens, go the way of VNNI. */
#include <stddef.h>

#include "kernels/cpu/int12.h"
#include "kernels/cpu/tiles.h"

enum {
    TILE_TOKENS = TILE_ROWS,
    LEAST_TOKENS = 11, /* of a tile: VNNI is done with fewer sooner */
    RING = 4           /* tiles of weights, from being unpacked to the end of their last group */
};

/* Tiles 0 to 2 are the sums of three steps, of bytes those of the high parts, and 3 to 5 of the low ones; 6
 * is x, 7 the weights. */
#define SIX(n) n, n, n, n, n, n

static const struct pd_cpu_tiles nibble_tiles = {
    .palette = 1,
    .row_bytes = {SIX(TILE_BYTES), TILE_BYTES, TILE_BYTES},
    .rows = {SIX(TILE_ROWS), TILE_ROWS, TILE_ROWS},
};
static const struct pd_cpu_tiles byte_tiles = {
    .palette = 1,
    .row_bytes = {SIX(TILE_BYTES), TILE_BYTES / 2, TILE_BYTES},
    .rows = {SIX(TILE_ROWS), TILE_ROWS, WORDS},
};

/* A block's weights for one tile of rows. */
struct tile {
    words columns[2 * WORDS];
    lanes d, m;
};

/* Of one step: of bytes, of the high parts and of the low ones. */
struct sums {
    words of[2][TILE_TOKENS];
};

/* Where a walk has come to. */
struct walk {
    const struct pd_cpu_line *lines;   /* of the block */
    const struct pd_cpu_scale *scales; /* likewise */
    int tokens;                        /* lines from a block to the next */
    int groups, group;
    int tile; /* of rows, counted over all blocks */
};

INLINE void walk_on(struct walk *at)
{
    if (++at->group < at->groups)
        return;
    at->group = 0;
    if (at->tile++ % 2 == 0)
        return;
    at->lines += at->tokens;
    at->scales += at->tokens;
}

/* Tile number `tile` of the panel's. */
INLINE void unpack_tile(int form, const uint8_t *panel, int tile, struct tile *out)
{
    const uint8_t *block = panel + (size_t)(tile / 2) * form_bytes(form);
    const uint32_t *columns = (const uint32_t *)form_columns(form, block) + tile % 2 * LANES;
    const words low = words_set(0x0f0f0f0f), high = words_set((int32_t)0xf0f0f0f0u);

#pragma GCC unroll 8
    for (int i = 0; i < WORDS; i++) {
        words w = words_load(columns + (form_nibbles(form) ? i / 2 : i) * PANEL);

        if (form_nibbles(form)) {
            out->columns[i] = _mm512_and_si512(i % 2 ? w : _mm512_slli_epi32(w, 4), high);
            out->columns[WORDS + i] = _mm512_and_si512(i % 2 ? _mm512_srli_epi32(w, 4) : w, low);
        } else {
            out->columns[i] = _mm512_xor_si512(w, words_set((int32_t)0x80808080u));
        }
    }
    out->d = form_scale(form, block, 0, tile % 2);
    out->m = form_minimum(form) ? form_scale(form, block, 1, tile % 2) : out->d;
    if (tile % 2 == 0)
        fetch_ahead(block, form_bytes(form));
}

/* By hand, since a compiler's own keep every address in a register, of which there are too few. Tiles are named
 * by digits: the assembler reads them. */
#define TILE_LOAD(tile, base, offset)                                                              \
    __asm__ volatile("tileloadd %c1(%0,%2,1), %%tmm" #tile ::"r"(base), "i"(offset),               \
                     "r"((ptrdiff_t)TILE_BYTES)                                                    \
                     : "memory")
#define TILE_STORE(tile, base, offset)                                                             \
    __asm__ volatile("tilestored %%tmm" #tile ", %c1(%0,%2,1)" ::"r"(base), "i"(offset),           \
                     "r"((ptrdiff_t)TILE_BYTES)                                                    \
                     : "memory")

/* What tiles read and write. All else about a panel stays in registers, or is meant to. */
struct memory {
    struct tile ring[RING]; /* by number of the tile */
    struct sums sums[3];    /* by number of the step */
};

/* Tile number `tile` of `tiles`, which has been unpacked; the next one is. */
INLINE void load_weights(int form, struct memory *memory, const uint8_t *panel, int tile, int tiles)
{
    TILE_LOAD(7, memory->ring + tile % RING, 0);
    if (tile + 1 < tiles)
        unpack_tile(form, panel, tile + 1, memory->ring + (tile + 1) % RING);
}

/* One step, into the tile `sum` and, of bytes, `low_sum`. */
#define MULTIPLY(form, memory, ahead, sum, low_sum)                                                \
    do {                                                                                           \
        const struct pd_cpu_line *tokens_of_x = (ahead)->lines + (ahead)->group * TILE_TOKENS;     \
                                                                                                   \
        if ((ahead)->group == 0)                                                                   \
            load_weights(form, memory, panel, (ahead)->tile, tiles);                               \
        TILE_LOAD(6, tokens_of_x, 0);                                                              \
        _tile_zero(sum);                                                                           \
        if (form_nibbles(form)) {                                                                  \
            _tile_dpbsud(sum, 6, 7);                                                               \
        } else {                                                                                   \
            _tile_dpbssd(sum, 6, 7);                                                               \
            TILE_LOAD(6, tokens_of_x, (int)offsetof(struct pd_cpu_line, low));                     \
            _tile_zero(low_sum);                                                                   \
            _tile_dpbssd(low_sum, 6, 7);                                                           \
        }                                                                                          \
        walk_on(ahead);                                                                            \
    } while (0)

#define STORE(form, memory, tile, low_tile)                                                        \
    do {                                                                                           \
        TILE_STORE(tile, (memory)->sums + (tile), 0);                                              \
        if (!form_nibbles(form))                                                                   \
            TILE_STORE(low_tile, (memory)->sums + (tile), TILE_TOKENS * TILE_BYTES);               \
    } while (0)

/* Token t's sum as a float: exact, since it is below 2^22 of nibbles, below 2^24 of bytes. */
INLINE lanes sum_of(int form, const struct sums *sums, int t)
{
    const lanes middle = lanes_set(0x1.8p23f);

    if (form_nibbles(form))
        return lanes_sub(
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(middle), sums->of[0][t])),
            middle);
    return words_floats(_mm512_add_epi32(words_times_16(sums->of[0][t]), sums->of[1][t]));
}

/* The end of a step: as add_sum of integer.h. */
INLINE void add_group(int form, const struct walk *at, lanes d, lanes m, const struct sums *sums,
                      float *acc)
{
    const struct pd_cpu_scale *x = at->scales + at->group * TILE_TOKENS;
    const __mmask16 begun = at->tile < 2 ? 0 : 0xffff; /* else from zero */

    acc += at->group * TILE_TOKENS * PANEL + at->tile % 2 * LANES;
#pragma GCC unroll 16
    for (int t = 0; t < TILE_TOKENS; t++) {
        lanes value = lanes_mul(sum_of(form, sums, t), lanes_set(x[t].d));

        value = lanes_fma(d, value, _mm512_maskz_loadu_ps(begun, acc + t * PANEL));
        if (form_minimum(form))
            value = lanes_fma(m, lanes_set(x[t].sum), value);
        lanes_store(acc + t * PANEL, value);
    }
}

/* Step number i of three, when `left` are to be done; two and three are the tiles of the steps after it. */
#define STEP(form, left, i, two, low_two, three, low_three)                                        \
    do {                                                                                           \
        const struct tile *weights = memory.ring + at.tile % RING;                                 \
        lanes d, m;                                                                                \
                                                                                                   \
        if ((left) > 2)                                                                            \
            MULTIPLY(form, &memory, &ahead, three, low_three);                                     \
        d = weights->d;                                                                            \
        m = weights->m;                                                                            \
        if ((left) > 1)                                                                            \
            STORE(form, &memory, two, low_two);                                                    \
        add_group(form, &at, d, m, memory.sums + (i), acc);                                        \
        walk_on(&at);                                                                              \
    } while (0)

/* x has lines and acc has room for whole tiles: what becomes of tokens that are none, nobody reads. */
INLINE void multiply_tiles(int form, const uint8_t *panel, int first_block, int blocks,
                           const struct pd_cpu_rounded *x, int first, int tokens, float *acc)
{
    struct place from = place_of(x, first_block, first);
    struct walk at = {.lines = from.lines,
                      .scales = from.scales,
                      .tokens = pd_cpu_chunk(x, first),
                      .groups = (tokens + TILE_TOKENS - 1) / TILE_TOKENS},
                ahead = at;
    int tiles = 2 * blocks, left = tiles * at.groups; /* steps, two at least */
    struct memory memory;

    panel += (size_t)first_block * form_bytes(form);
    unpack_tile(form, panel, 0, memory.ring);
    MULTIPLY(form, &memory, &ahead, 0, 3);
    MULTIPLY(form, &memory, &ahead, 1, 4);
    STORE(form, &memory, 0, 3);
    for (;; left -= 3) {
        STEP(form, left, 0, 1, 4, 2, 5);
        if (left <= 1)
            break;
        STEP(form, left - 1, 1, 2, 5, 0, 3);
        if (left <= 2)
            break;
        STEP(form, left - 2, 2, 0, 3, 1, 4);
        if (left <= 3)
            break;
    }
}

/* Each form a function of its own, or the registers do not suffice. */
#define TILES_OF(form)                                                                             \
    static __attribute__((noinline)) void tiles_##form(const uint8_t *panel, int first_block,      \
                                                       int blocks, const struct pd_cpu_rounded *x, \
                                                       int first, int tokens, float *acc)          \
    {                                                                                              \
        multiply_tiles(form, panel, first_block, blocks, x, first, tokens, acc);                   \
    }

TILES_OF(PD_FORM_N4)
TILES_OF(PD_FORM_N4F)
TILES_OF(PD_FORM_I8)

static void multiply_by_tiles(enum pd_form form, const uint8_t *panel, int first_block, int blocks,
                              const struct pd_cpu_rounded *x, int first, int tokens, float *acc)
{
    int rest = tokens % TILE_TOKENS < LEAST_TOKENS ? tokens % TILE_TOKENS : 0;
    int whole = form == PD_FORM_I8F ? 0 : tokens - rest;

    if (whole > 0)
        pd_cpu_tiles_configure(form == PD_FORM_I8 ? &byte_tiles : &nibble_tiles);
    if (whole > 0 && form == PD_FORM_N4)
        tiles_PD_FORM_N4(panel, first_block, blocks, x, first, whole, acc);
    else if (whole > 0 && form == PD_FORM_N4F)
        tiles_PD_FORM_N4F(panel, first_block, blocks, x, first, whole, acc);
    else if (whole > 0)
        tiles_PD_FORM_I8(panel, first_block, blocks, x, first, whole, acc);
    if (whole < tokens)
        multiply_panel(form, panel, first_block, blocks, x, first + whole, tokens - whole,
                       acc + whole * PANEL);
}

const struct pd_cpu_narrow pd_cpu_int12_amx = INT12_KERNELS(multiply_by_tiles);
