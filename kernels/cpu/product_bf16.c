/* Products in bf16 by tiles: sixteen rows of weights times up to sixteen tokens, 32 columns in one instruction.
 * Sums stay in their tiles until all columns have passed.
 *
 *     weights  a block of a panel, as it is packed  ──▶  two tiles [16 rows][32 columns]   tiles 4, 5
 *     x        [group of tokens][block][16 pairs of columns][token]                       tiles 6, 7: of two groups
 *     sums     [16 rows][token]                     of both tiles of the panel, two groups: tiles 0 .. 3
 *
 * A sum: of each block, the even columns one after the other from zero, the odd ones beside them, each a fused
 * multiply-add; both are added to each other, and that to the sum. What is too small for a normal float counts as
 * zero. So is the instruction defined, and every number of tokens takes it: a token's result does not depend on
 * who else is computed.
 *
 * Few tokens: a block is unpacked while the one before it is multiplied. Many: a stretch of blocks is unpacked
 * into L1, and every two groups take their turn on it. */
#include "kernels/cpu/form.h"
#include "kernels/cpu/path.h"
#include "kernels/cpu/tiles.h"

enum {
    GROUP = TILE_ROWS,         /* tokens at once */
    TILE_NUMBERS = 16 * BLOCK, /* of bf16 */
    TILE_SUMS = 16 * GROUP,
    FEW = 2,   /* groups whose sums all have tiles */
    DEPTH = 9, /* blocks of a stretch: 18 KB, which leave room in L1 for x and sums */
    RING = 4,  /* blocks unpacked for few tokens, */
    BEHIND = 3 /* and how far behind they are multiplied: their stores have arrived by then */
};

struct unpacked {
    _Alignas(64) uint16_t tile[2][TILE_NUMBERS];
};

/* The first n numbers, 0 to 16, and zeros. */
INLINE lanes load_first(const float *from, int n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), from);
}

/* ---- unpacking ------------------------------------------------------------------------------- */

/* The scales of a block in memory, from where a load spreads one over a register at no cost, and a little
 * greater: the upper half of a float is then nearly the nearest bf16, neither too small on average nor too
 * great, and its error hardly more than that of rounding. */
struct scales {
    _Alignas(64) float space[2][2][PANEL]; /* of even blocks, and of odd ones */
    const float *d, *other;                /* of each row; the second d, or m */
};

INLINE bool two_scales(int form)
{
    return form_minimum(form) || form_scales(form) == 2;
}

/* Those of block number `number` of a walk. The next block's are found before this one is unpacked: what was
 * stored just now is not loaded as fast. */
INLINE void find_scales(int form, const uint8_t *block, int number, struct scales *out)
{
    float(*space)[PANEL] = out->space[number % 2];
    lanes more = lanes_set(PD_BF16_MORE);

    if (form_plain(form))
        return;
    for (int h = 0; h < 2; h++) {
        lanes_store(space[0] + h * LANES, lanes_mul(form_scale(form, block, 0, h), more));
        if (two_scales(form))
            lanes_store(space[1] + h * LANES, lanes_mul(form_scale(form, block, 1, h), more));
    }
}

INLINE void use_scales(int form, int number, struct scales *out)
{
    out->d = out->space[number % 2][0];
    __asm__ volatile(""
                     : "+r"(out->d)
                     :
                     : "memory"); /* compilers would shuffle registers instead */
    out->other = two_scales(form) ? out->d + PANEL : out->d;
}

/* A row's sixteen possible values, computed at once to be looked up: each one's upper half. */
INLINE __m512i table_of(const struct scales *scales, int row)
{
    const lanes numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);

    return _mm512_castps_si512(
        lanes_fma(numbers, lanes_set(scales->d[row]), lanes_set(scales->other[row])));
}

/* Four rows from `row` on, whose nibbles share words. An index is five bits: the nibble, and below it a one,
 * for the upper half, which is set in its neighbour's place; what is above is not looked at. */
INLINE void unpack_nibbles(const uint8_t *from, const struct scales *scales, int row, uint16_t *out)
{
    __m512i four = _mm512_loadu_si512(from);
    __m512i odd = _mm512_or_si512(four, _mm512_set1_epi16(0x0808));
    __m512i index[4] = {
        _mm512_or_si512(_mm512_add_epi16(four, four), _mm512_set1_epi16(1)),
        _mm512_srli_epi16(odd, 3),
        _mm512_srli_epi16(_mm512_or_si512(four, _mm512_set1_epi16(0x0080)), 7),
        _mm512_srli_epi16(odd, 11),
    };

#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        _mm512_store_si512(out + i * BLOCK,
                           _mm512_permutexvar_epi16(index[i], table_of(scales, row + i)));
}

INLINE __m512i sixteen_bytes(const uint8_t *from, lanes d)
{
    __m512i wide = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from));

    return _mm512_castps_si512(lanes_mul(_mm512_cvtepi32_ps(wide), d));
}

/* Even columns, then odd ones: their upper halves meet in words. Of two scales, the second is that of the last
 * sixteen columns. */
INLINE __m512i unpack_bytes(int form, const uint8_t *row, const struct scales *scales, int r)
{
    lanes d = lanes_set(scales->d[r]);
    __m512i upper = _mm512_set1_epi32((int)0xffff0000u);

    if (form_scales(form) == 2)
        d = _mm512_mask_mov_ps(d, 0xff00, lanes_set(scales->other[r]));
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(sixteen_bytes(row, d), 16), upper,
                                     sixteen_bytes(row + LANES, d), 0xf8); /* a | b & c */
}

INLINE __m512i unpack_f16(const uint8_t *row)
{
    return lanes_to_bf16(lanes_load_f16((const uint16_t *)row),
                         lanes_load_f16((const uint16_t *)row + LANES));
}

INLINE void unpack_block(int form, const uint8_t *block, const struct scales *scales, uint16_t *out)
{
    const uint8_t *columns = form_columns(form, block);

#pragma GCC unroll 8
    for (int r = 0; r < PANEL; r += 4) {
        if (form_nibbles(form)) {
            unpack_nibbles(columns + r * BLOCK / 2, scales, r, out + r * BLOCK);
            continue;
        }
#pragma GCC unroll 4
        for (int i = r; i < r + 4; i++)
            _mm512_store_si512(out + i * BLOCK,
                               form == PD_FORM_F16
                                   ? unpack_f16(columns + i * BLOCK * 2)
                                   : unpack_bytes(form, columns + i * BLOCK, scales, i));
    }
}

/* Where a walk over blocks has come to. */
struct walk {
    const uint8_t *block;
    int number, end;
    struct scales scales;
};

INLINE void begin_walk(int form, const uint8_t *block, int blocks, struct walk *walk)
{
    walk->block = block;
    walk->number = 0;
    walk->end = blocks;
    find_scales(form, block, 0, &walk->scales);
}

/* Where the tiles of the next block are: bf16 as it lies, or unpacked to `out`. */
INLINE const uint16_t *next_tiles(int form, struct walk *walk, struct unpacked *out)
{
    const uint8_t *block = walk->block;

    fetch_ahead(block, form_bytes(form));
    walk->block += form_bytes(form);
    if (form == PD_FORM_BF16)
        return (const uint16_t *)block;
    if (!form_plain(form))
        use_scales(form, walk->number, &walk->scales);
    if (++walk->number < walk->end)
        find_scales(form, walk->block, walk->number, &walk->scales);
    unpack_block(form, block, &walk->scales, out->tile[0]);
    return out->tile[0];
}

/* ---- x --------------------------------------------------------------------------------------- */

/* Tokens that every group has room for. A single one has no room to spare. */
INLINE int width_of(const struct pd_cpu_rounded *x)
{
    return x->tokens < GROUP ? x->tokens : GROUP;
}

INLINE int groups_of(int tokens)
{
    return (tokens + GROUP - 1) / GROUP;
}

/* Block `block` of group `group`. */
INLINE uint16_t *x_tile(const struct pd_cpu_rounded *x, int group, int block)
{
    size_t number = (size_t)group * (size_t)x->blocks + (size_t)block;

    return (uint16_t *)x->memory + number * (size_t)(width_of(x) * BLOCK);
}

static size_t x_bytes(int tokens, int blocks)
{
    size_t room = tokens < GROUP ? (size_t)tokens : (size_t)groups_of(tokens) * GROUP;

    return room * (size_t)blocks * BLOCK * sizeof(uint16_t);
}

INLINE lanes sixteen_of(const float *x, int count)
{
    return load_first(x, count > LANES ? LANES : count < 0 ? 0 : count);
}

static void round_tile(const float *x, int cols, const struct pd_cpu_rounded *out, int group,
                       int block)
{
    int width = width_of(out), tokens = out->tokens - group * GROUP, columns = cols - block * BLOCK;
    float *to = (float *)x_tile(out, group, block);
    lanes pairs[LANES];

    for (int t = 0; t < LANES; t++) {
        const float *from = x + (size_t)(group * GROUP + t) * (size_t)cols + block * BLOCK;

        pairs[t] = t < tokens
                       ? _mm512_castsi512_ps(lanes_to_bf16(
                             sixteen_of(from, columns), sixteen_of(from + LANES, columns - LANES)))
                       : lanes_set(0);
    }
    if (width == 1) {
        lanes_store(to, pairs[0]);
        return;
    }
    lanes_transpose(pairs);
    for (int k = 0; k < LANES; k++)
        _mm512_mask_storeu_ps(to + k * width, (__mmask16)((1u << width) - 1), pairs[k]);
}

static void round_x(const float *x, int cols, const struct pd_cpu_rounded *out, int part, int parts)
{
    int64_t tiles = (int64_t)groups_of(out->tokens) * out->blocks;

    for (int64_t i = tiles * part / parts; i < tiles * (part + 1) / parts; i++)
        round_tile(x, cols, out, (int)(i / out->blocks), (int)(i % out->blocks));
}

/* ---- products -------------------------------------------------------------------------------- */

static void configure_tiles(int width)
{
    struct pd_cpu_tiles tiles = pd_cpu_tiles_whole();

    for (int i = 0; i < TILE_COUNT; i++)
        tiles.row_bytes[i] = (uint16_t)(i == 4 || i == 5 ? TILE_BYTES : 4 * width);
    pd_cpu_tiles_configure(&tiles);
}

/* sums[2][16 rows][width] of a group, to acc[token][PANEL]. They may overlap. */
static void put_sums(const float *sums, int width, int tokens, float *acc)
{
    lanes rows[2][LANES];

    for (int h = 0; h < 2; h++) {
        if (width == 1) {
            lanes_store(acc + h * LANES, lanes_load(sums + h * LANES));
            continue;
        }
        for (int r = 0; r < LANES; r++)
            rows[h][r] = load_first(sums + (h * LANES + r) * width, width);
        lanes_transpose(rows[h]);
    }
    for (int t = 0; width > 1 && t < tokens; t++) {
        lanes_store(acc + t * PANEL, rows[0][t]);
        lanes_store(acc + t * PANEL + LANES, rows[1][t]);
    }
}

/* A block's two tiles times one group, or that and the next. Tiles are named by digits alone: the assembler
 * reads them. */
INLINE void multiply_tiles(int groups, const uint16_t *tiles, const uint16_t *x,
                           const uint16_t *next, int width)
{
    _tile_loadd(4, tiles, TILE_BYTES);
    _tile_loadd(6, x, 4 * width);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, tiles + TILE_NUMBERS, TILE_BYTES);
    _tile_dpbf16ps(1, 5, 6);
    if (groups == 1)
        return;
    _tile_loadd(7, next, 4 * width);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
}

INLINE void clear_tiles(int groups)
{
    _tile_zero(0);
    _tile_zero(1);
    if (groups == 1)
        return;
    _tile_zero(2);
    _tile_zero(3);
}

INLINE void load_tiles(int groups, const float *sums, int width)
{
    _tile_loadd(0, sums, 4 * width);
    _tile_loadd(1, sums + 16 * width, 4 * width);
    if (groups == 1)
        return;
    _tile_loadd(2, sums + 32 * width, 4 * width);
    _tile_loadd(3, sums + 48 * width, 4 * width);
}

INLINE void store_tiles(int groups, float *sums, int width)
{
    _tile_stored(0, sums, 4 * width);
    _tile_stored(1, sums + 16 * width, 4 * width);
    if (groups > 1) {
        _tile_stored(2, sums + 32 * width, 4 * width);
        _tile_stored(3, sums + 48 * width, 4 * width);
    }
    memory_is_used();
}

/* Some tokens from group `group` on, and blocks from `first` on. */
struct part {
    const struct pd_cpu_rounded *x;
    int group, tokens, first, blocks;
};

INLINE void multiply_few(int form, int groups, const uint8_t *block, const struct part *part,
                         float *acc)
{
    _Alignas(64) float sums[FEW][2][TILE_SUMS];
    struct unpacked ring[RING];
    const uint16_t *tiles[RING];
    struct walk walk;
    int width = width_of(part->x);

    begin_walk(form, block, part->blocks, &walk);
    clear_tiles(groups);
    for (int b = 0; b < part->blocks + BEHIND; b++) {
        int ready = b - BEHIND;

        if (b < part->blocks)
            tiles[b % RING] = next_tiles(form, &walk, &ring[b % RING]);
        memory_is_used();
        if (ready >= 0)
            multiply_tiles(
                groups, tiles[ready % RING], x_tile(part->x, part->group, part->first + ready),
                groups == 1 ? NULL : x_tile(part->x, part->group + 1, part->first + ready), width);
        memory_is_used(); /* its place is the next block's */
    }
    store_tiles(groups, sums[0][0], width);
    put_sums(sums[0][0], width, part->tokens < GROUP ? part->tokens : GROUP, acc);
    if (groups > 1)
        put_sums(sums[1][0], width, part->tokens - GROUP, acc + GROUP * PANEL);
}

/* Blocks first .. end - 1 of the part, unpacked, times all groups. Sums wait in acc, a group's where its results
 * will be. */
INLINE void multiply_stretch(const uint16_t *const *tiles, const struct part *part, int first,
                             int end, float *acc)
{
    int groups = groups_of(part->tokens);

    for (int g = 0; g < groups; g += 2, acc += 2 * GROUP * PANEL) {
        int together = g + 1 < groups ? 2 : 1;

        if (first == 0)
            clear_tiles(together);
        else
            load_tiles(together, acc, GROUP);
        for (int b = first; b < end; b++) {
            const uint16_t *x = x_tile(part->x, part->group + g, part->first + b);

            if (together == 2)
                multiply_tiles(2, tiles[b - first], x,
                               x_tile(part->x, part->group + g + 1, part->first + b), GROUP);
            else
                multiply_tiles(1, tiles[b - first], x, NULL, GROUP);
        }
        store_tiles(together, acc, GROUP);
    }
}

INLINE void multiply_many(int form, const uint8_t *block, const struct part *part, float *acc)
{
    int stretches = (part->blocks + DEPTH - 1) / DEPTH;
    struct unpacked unpacked[DEPTH];
    const uint16_t *tiles[DEPTH];
    struct walk walk;

    begin_walk(form, block, part->blocks, &walk);
    for (int i = 0; i < stretches; i++) {
        int first = part->blocks * i / stretches, end = part->blocks * (i + 1) / stretches;

        for (int b = first; b < end; b++)
            tiles[b - first] = next_tiles(form, &walk, &unpacked[b - first]);
        memory_is_used();
        multiply_stretch(tiles, part, first, end, acc);
    }
    for (int t = 0; t < part->tokens; t += GROUP, acc += GROUP * PANEL)
        put_sums(acc, GROUP, GROUP, acc);
}

INLINE void multiply(int form, const uint8_t *block, const struct part *part, float *acc)
{
    if (part->tokens <= GROUP)
        multiply_few(form, 1, block, part, acc);
    else if (part->tokens <= FEW * GROUP)
        multiply_few(form, 2, block, part, acc);
    else
        multiply_many(form, block, part, acc);
}

static void multiply_panel(enum pd_form form, const uint8_t *panel, int first_block, int blocks,
                           const struct pd_cpu_rounded *x, int first, int tokens, float *acc)
{
    const struct part part = {x, first / GROUP, tokens, first_block, blocks};
    const uint8_t *block = panel + (size_t)first_block * pd_form_bytes(form);

    configure_tiles(width_of(x));
    switch (form) {
    case PD_FORM_N4:
        multiply(PD_FORM_N4, block, &part, acc);
        break;
    case PD_FORM_N4F:
        multiply(PD_FORM_N4F, block, &part, acc);
        break;
    case PD_FORM_I8:
        multiply(PD_FORM_I8, block, &part, acc);
        break;
    case PD_FORM_I8F:
        multiply(PD_FORM_I8F, block, &part, acc);
        break;
    case PD_FORM_F16:
        multiply(PD_FORM_F16, block, &part, acc);
        break;
    default:
        multiply(PD_FORM_BF16, block, &part, acc);
    }
}

const struct pd_cpu_narrow pd_cpu_bf16 = {
    .chunk = 512,
    .bytes = x_bytes,
    .round = round_x,
    .multiply = multiply_panel,
};
