#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/weight.h"
#include "kernels/dtype.h"

enum { TILE = 16 };

/* ---- one block of one row, in and out -------------------------------------------------------- */

static void put_u16(uint8_t *at, int index, uint16_t value)
{
    memcpy(at + 2 * index, &value, 2);
}

static uint16_t get_u16(const uint8_t *at, int index)
{
    uint16_t value;

    memcpy(&value, at + 2 * index, 2);
    return value;
}

static void put_f32(uint8_t *at, int index, float value)
{
    memcpy(at + 4 * index, &value, 4);
}

static float get_f32(const uint8_t *at, int index)
{
    float value;

    memcpy(&value, at + 4 * index, 4);
    return value;
}

/* Which 16-bit word has column k of row `lane`, where columns lie by rows; and the row's first bit there. */
static int short_of(int lane, int k)
{
    return lane / 4 * BLOCK + k;
}

static int bit_of(int lane)
{
    return 4 * (lane % 4);
}

/* Which int8 is column k of row `lane`, where columns lie by rows. */
static int signed_of(int lane, int k)
{
    return lane * BLOCK + k % 2 * BLOCK / 2 + k / 2;
}

static void put_nibbles_by_rows(uint8_t *words, int lane, const int8_t *q, int zero)
{
    for (int k = 0; k < BLOCK; k++) {
        unsigned others = get_u16(words, short_of(lane, k)) & ~(15u << bit_of(lane));

        put_u16(words, short_of(lane, k),
                (uint16_t)(others | ((unsigned)(q[k] + zero) & 15) << bit_of(lane)));
    }
}

static void put_nibbles(bool by_rows, uint8_t *words, int lane, const int8_t *q, int zero)
{
    if (by_rows) {
        put_nibbles_by_rows(words, lane, q, zero);
        return;
    }
    for (int group = 0; group < 4; group++) {
        uint32_t word = 0;

        for (int j = 0; j < 8; j++)
            word |= (uint32_t)((q[8 * group + j] + zero) & 15) << 4 * j;
        memcpy(words + 4 * (group * PANEL + lane), &word, 4);
    }
}

/* Any int8, plus 128. The word that has column k, and its byte. */
static uint8_t *byte_at(uint8_t *words, int lane, int column)
{
    return words + 4 * ((column / 8 * 2 + column % 2) * PANEL + lane) + column % 8 / 2;
}

static void put_bytes(bool by_rows, uint8_t *words, int lane, const int8_t *q)
{
    if (by_rows) {
        for (int k = 0; k < BLOCK; k++)
            words[signed_of(lane, k)] = (uint8_t)q[k];
        return;
    }
    for (int k = 0; k < BLOCK; k++)
        *byte_at(words, lane, k) = (uint8_t)(q[k] + 128);
}

static int get_byte(bool by_rows, const uint8_t *words, int lane, int column)
{
    if (by_rows)
        return (int8_t)words[signed_of(lane, column)];
    return *byte_at((uint8_t *)words, lane, column) - 128;
}

static int get_nibble(bool by_rows, const uint8_t *words, int lane, int column)
{
    uint32_t word;

    if (by_rows)
        return get_u16(words, short_of(lane, column)) >> bit_of(lane) & 15;
    memcpy(&word, words + 4 * (column / 8 * PANEL + lane), 4);
    return (int)(word >> 4 * (column % 8) & 15);
}

/* Q4_0 has no m: value = (nibble - 8) d = nibble d + (-8 d). */
static void put_quantized(enum pd_form form, bool by_rows, uint8_t *block, int lane,
                          enum pd_dtype type, const struct pd_block32 *in)
{
    bool symmetric = type == PD_Q4_0;
    float m = symmetric ? -8 * in->d[0] : in->m[0];

    switch (form) {
    case PD_FORM_N4:
        put_u16(block, lane, pd_f16_of_float(in->d[0]));
        put_u16(block + 2 * PANEL, lane, pd_f16_of_float(m));
        put_nibbles(by_rows, block + 4 * PANEL, lane, in->q, symmetric ? 8 : 0);
        break;
    case PD_FORM_N4F:
        put_f32(block, lane, in->d[0]);
        put_f32(block + 4 * PANEL, lane, m);
        put_nibbles(by_rows, block + 8 * PANEL, lane, in->q, symmetric ? 8 : 0);
        break;
    case PD_FORM_I8:
        put_u16(block, lane, pd_f16_of_float(in->d[0]));
        put_bytes(by_rows, block + 2 * PANEL, lane, in->q);
        break;
    default:
        put_f32(block, lane, in->d[0]);
        put_f32(block, PANEL + lane, in->d[1]);
        put_bytes(by_rows, block + 8 * PANEL, lane, in->q);
    }
}

/* Number k of row `lane` of a block of plain numbers. */
static int plain_at(bool by_rows, int lane, int k)
{
    return by_rows ? lane * BLOCK + k : k * PANEL + lane;
}

static void put_plain(enum pd_form form, bool by_rows, uint8_t *block, int lane, const uint8_t *in,
                      int count)
{
    size_t size = form == PD_FORM_F32 ? 4 : 2;

    for (int k = 0; k < count; k++)
        memcpy(block + size * (size_t)plain_at(by_rows, lane, k), in + size * (size_t)k, size);
}

static float get_value(enum pd_form form, bool by_rows, const uint8_t *block, int lane, int k)
{
    switch (form) {
    case PD_FORM_N4:
        return (float)get_nibble(by_rows, block + 4 * PANEL, lane, k) *
                   pd_float_of_f16(get_u16(block, lane)) +
               pd_float_of_f16(get_u16(block + 2 * PANEL, lane));
    case PD_FORM_N4F:
        return (float)get_nibble(by_rows, block + 8 * PANEL, lane, k) * get_f32(block, lane) +
               get_f32(block + 4 * PANEL, lane);
    case PD_FORM_I8:
        return (float)get_byte(by_rows, block + 2 * PANEL, lane, k) *
               pd_float_of_f16(get_u16(block, lane));
    case PD_FORM_I8F:
        return (float)get_byte(by_rows, block + 8 * PANEL, lane, k) *
               get_f32(block, k / 16 * PANEL + lane);
    case PD_FORM_F16:
        return pd_float_of_f16(get_u16(block, plain_at(by_rows, lane, k)));
    case PD_FORM_BF16:
        return pd_float_of_bf16(get_u16(block, plain_at(by_rows, lane, k)));
    default:
        return get_f32(block, plain_at(by_rows, lane, k));
    }
}

/* ---- repacking ------------------------------------------------------------------------------- */

static size_t row_bytes(enum pd_dtype type, int cols)
{
    return (size_t)(cols / pd_dtype_block(type)) * (size_t)pd_dtype_bytes(type);
}

static int blocks_of(int cols)
{
    return (cols + BLOCK - 1) / BLOCK;
}

/* Whether every -8 d of a Q4_0 matrix is a number that f16 has. */
static bool minimum_fits(const struct pd_weight_source *source, int cols)
{
    const uint8_t *block = source->data;
    size_t count = (size_t)source->rows * (size_t)(cols / 32);

    for (size_t i = 0; i < count; i++) {
        float m = -8 * pd_float_of_f16(get_u16(block + i * (size_t)pd_dtype_bytes(PD_Q4_0), 0));
        if (pd_float_of_f16(pd_f16_of_float(m)) != m)
            return false;
    }
    return true;
}

static enum pd_form choose_form(const struct pd_weight_source *source, int cols)
{
    switch (source->type) {
    case PD_Q4_0:
        return minimum_fits(source, cols) ? PD_FORM_N4 : PD_FORM_N4F;
    case PD_Q4_1:
        return PD_FORM_N4;
    case PD_Q4_K:
        return PD_FORM_N4F;
    case PD_Q5_0:
    case PD_Q8_0:
        return PD_FORM_I8;
    case PD_Q6_K:
        return PD_FORM_I8F;
    case PD_F16:
        return PD_FORM_F16;
    case PD_BF16:
        return PD_FORM_BF16;
    default:
        return PD_FORM_F32;
    }
}

/* ---- formats whose bytes are only moved ------------------------------------------------------- */

static uint64_t get_u64(const uint8_t *at)
{
    uint64_t value;

    memcpy(&value, at, sizeof(value));
    return value;
}

static void put_u32(uint8_t *at, int index, uint32_t value)
{
    memcpy(at + 4 * index, &value, 4);
}

/* Bytes 0, 2, 4 and 6. */
static uint32_t even_bytes(uint64_t bytes)
{
    bytes &= 0x00ff00ff00ff00ff;
    bytes = (bytes | bytes >> 8) & 0x0000ffff0000ffff;
    return (uint32_t)(bytes | bytes >> 16);
}

/* The low four bits of eight bytes, one behind the other. */
static uint32_t low_nibbles(uint64_t bytes)
{
    bytes &= 0x0f0f0f0f0f0f0f0f;
    return even_bytes(bytes | bytes >> 4);
}

/* ggml keeps column j in the low and column 16 + j in the high nibble of byte j. */
static void move_nibbles(const uint8_t *in, uint8_t *words, int lane)
{
    for (int half = 0; half < 2; half++) {
        uint64_t bytes = get_u64(in + 8 * half);

        put_u32(words, half * PANEL + lane, low_nibbles(bytes));
        put_u32(words, (2 + half) * PANEL + lane, low_nibbles(bytes >> 4));
    }
}

static void move_bytes(const uint8_t *in, uint8_t *words, int lane)
{
    for (int group = 0; group < 4; group++) {
        uint64_t bytes = get_u64(in + 8 * group) ^ 0x8080808080808080;

        put_u32(words, 2 * group * PANEL + lane, even_bytes(bytes));
        put_u32(words, (2 * group + 1) * PANEL + lane, even_bytes(bytes >> 8));
    }
}

/* Most of a file's bytes, as a rule, and a start waits for them. Returns false where numbers have to be
 * looked at. */
static bool move_row(const struct pd_cpu_segment *segment, uint8_t *panel, int lane, int cols,
                     enum pd_dtype type, const uint8_t *in)
{
    bool nibbles = type == PD_Q4_0 || type == PD_Q4_1;
    size_t size = pd_form_bytes(segment->form), step = (size_t)pd_dtype_bytes(type);

    if (segment->by_rows || segment->form != (nibbles ? PD_FORM_N4 : PD_FORM_I8) ||
        (!nibbles && type != PD_Q8_0))
        return false;
    for (int b = 0; b < blocks_of(cols); b++, panel += size, in += step) {
        uint16_t d = get_u16(in, 0);

        put_u16(panel, lane, d);
        if (type == PD_Q8_0) {
            move_bytes(in + 2, panel + 2 * PANEL, lane);
            continue;
        }
        put_u16(panel + 2 * PANEL, lane,
                type == PD_Q4_1 ? get_u16(in, 1) : pd_f16_of_float(-8 * pd_float_of_f16(d)));
        move_nibbles(in + (type == PD_Q4_1 ? 4 : 2), panel + 4 * PANEL, lane);
    }
    return true;
}

/* ---- rows ------------------------------------------------------------------------------------- */

/* Puts one row of a source into lane `lane` of a panel. */
static void put_row(const struct pd_cpu_segment *segment, uint8_t *panel, int lane, int cols,
                    const struct pd_weight_source *source, int row)
{
    const uint8_t *in = (const uint8_t *)source->data + (size_t)row * row_bytes(source->type, cols);
    size_t size = pd_form_bytes(segment->form);
    bool quantized = pd_dtype_quantized(source->type);

    if (move_row(segment, panel, lane, cols, source->type, in))
        return;
    for (int b = 0; b < blocks_of(cols); b++) {
        uint8_t *block = panel + (size_t)b * size;
        int count = cols - b * BLOCK < BLOCK ? cols - b * BLOCK : BLOCK;

        if (quantized) {
            struct pd_block32 decoded;
            pd_dtype_decode(source->type, in, b, &decoded);
            put_quantized(segment->form, segment->by_rows, block, lane, source->type, &decoded);
        } else {
            put_plain(segment->form, segment->by_rows, block, lane,
                      in + (size_t)b * BLOCK * (size_t)pd_dtype_bytes(source->type), count);
        }
    }
}

static void put_rows(const struct pd_cpu_segment *segment, int cols,
                     const struct pd_weight_source *source)
{
    for (int row = 0; row < source->rows; row++)
        put_row(segment, segment->data + (size_t)(row / PANEL) * segment->panel_bytes, row % PANEL,
                cols, source, row);
}

static void put_gate_up(const struct pd_cpu_segment *segment, int cols,
                        const struct pd_weight_source *sources)
{
    for (int half = 0; half < 2; half++) {
        for (int row = 0; row < sources[half].rows; row++)
            put_row(segment, segment->data + (size_t)(row / TILE) * segment->panel_bytes,
                    half * TILE + row % TILE, cols, &sources[half], row);
    }
}

/* ---- creation -------------------------------------------------------------------------------- */

static bool has_minimums(enum pd_form form)
{
    return form == PD_FORM_N4 || form == PD_FORM_N4F;
}

/* Whether products of that precision take x rounded. */
static bool is_narrow(enum pd_precision precision, enum pd_form form)
{
    return precision == PD_PRECISION_BF16
               ? form != PD_FORM_F32
               : precision != PD_PRECISION_F32 && pd_form_quantized(form);
}

static void add_segment(struct pd_cpu_weight *own, int cols, enum pd_precision precision,
                        enum pd_form form, int rows, int panel_rows)
{
    struct pd_cpu_segment *segment = &own->segments[own->count];
    size_t bytes;

    segment->form = form;
    segment->narrow = is_narrow(precision, form);
    segment->by_rows = segment->narrow && precision == PD_PRECISION_BF16;
    segment->rows = rows;
    segment->first_panel = own->panels;
    segment->first_output = own->count > 0 ? own->segments[own->count - 1].first_output +
                                                 own->segments[own->count - 1].rows
                                           : 0;
    segment->panels = (rows + panel_rows - 1) / panel_rows;
    segment->panel_bytes = (size_t)blocks_of(cols) * pd_form_bytes(form);
    bytes = (size_t)segment->panels * segment->panel_bytes;
    own->count++;
    own->panels += segment->panels;
    own->bytes += (bytes + 63) / 64 * 64;
    own->minimums = own->minimums || (!segment->narrow && has_minimums(form));
    own->narrow = own->narrow || segment->narrow;
    own->wide = own->wide || !segment->narrow;
}

/* What gate and up together become. */
static enum pd_form form_of_both(const struct pd_weight_source *sources, int cols)
{
    enum pd_form form = choose_form(&sources[0], cols);

    if (sources[0].type != sources[1].type)
        return PD_FORM_F32;
    /* Of two Q4_0, one may not fit the narrow form. */
    return form == choose_form(&sources[1], cols) ? form : PD_FORM_N4F;
}

static void plan_segments(struct pd_cpu_weight *own, enum pd_precision precision,
                          enum pd_weight_layout layout, int cols,
                          const struct pd_weight_source *sources, int count)
{
    if (layout == PD_WEIGHT_GATE_UP) {
        add_segment(own, cols, precision, form_of_both(sources, cols), sources[0].rows, TILE);
        return;
    }
    for (int i = 0; i < count; i++)
        add_segment(own, cols, precision, choose_form(&sources[i], cols), sources[i].rows, PANEL);
}

static void place_segments(struct pd_cpu_weight *own, uint8_t *memory)
{
    for (int i = 0; i < own->count; i++) {
        struct pd_cpu_segment *segment = &own->segments[i];

        segment->data = memory;
        memory += ((size_t)segment->panels * segment->panel_bytes + 63) / 64 * 64;
    }
}

/* Gate and up of different formats (a file may mix them) meet in f32, the values ggml computes
 * with. */
static bool fill_mixed(struct pd_cpu_weight *own, int cols, const struct pd_weight_source *sources)
{
    struct pd_weight_source plain[2];
    size_t count = (size_t)sources[0].rows * (size_t)cols;
    float *values = malloc(2 * count * sizeof(*values));

    if (values == NULL)
        return false;
    for (int i = 0; i < 2; i++) {
        pd_dequantize(sources[i].type, sources[i].data, values + (size_t)i * count, count);
        plain[i] = (struct pd_weight_source){values + (size_t)i * count, PD_F32, sources[i].rows};
    }
    put_gate_up(&own->segments[0], cols, plain);
    free(values);
    return true;
}

static bool fill(struct pd_cpu_weight *own, enum pd_weight_layout layout, int cols,
                 const struct pd_weight_source *sources, int count)
{
    if (layout == PD_WEIGHT_GATE_UP && sources[0].type != sources[1].type)
        return fill_mixed(own, cols, sources);
    if (layout == PD_WEIGHT_GATE_UP)
        put_gate_up(&own->segments[0], cols, sources);
    else
        for (int i = 0; i < count; i++)
            put_rows(&own->segments[i], cols, &sources[i]);
    return true;
}

static bool fill_vector(struct pd_cpu_weight *own, int cols, const struct pd_weight_source *sources,
                        int count)
{
    size_t at = 0, values = 0;

    for (int i = 0; i < count; i++)
        values += (size_t)sources[i].rows * (size_t)cols;
    own->vector = pd_weight_arena_take(own->arena, values * sizeof(float));
    for (int i = 0; own->vector != NULL && i < count; i++) {
        size_t part = (size_t)sources[i].rows * (size_t)cols;
        pd_dequantize(sources[i].type, sources[i].data, own->vector + at, part);
        at += part;
    }
    return own->vector != NULL;
}

static bool is_vector(enum pd_weight_layout layout, int cols,
                      const struct pd_weight_source *sources, int count)
{
    return layout != PD_WEIGHT_GATE_UP && (cols == 1 || (count == 1 && sources[0].rows == 1));
}

static struct pd_cpu_weight *make(int count)
{
    return calloc(1, sizeof(struct pd_cpu_weight) + (size_t)count * sizeof(struct pd_cpu_segment));
}

static bool create(struct pd_cpu_weight *own, enum pd_precision precision,
                   enum pd_weight_layout layout, int cols, const struct pd_weight_source *sources,
                   int count, const struct pd_weight_place *place)
{
    if (is_vector(layout, cols, sources, count))
        return fill_vector(own, cols, sources, count);
    plan_segments(own, precision, layout, cols, sources, count);
    if (place == NULL) {
        own->memory = pd_weight_arena_take(own->arena, own->bytes);
        if (own->memory == NULL)
            return false;
    }
    place_segments(own, place == NULL ? own->memory : place->memory);
    return (place != NULL && place->filled) || fill(own, layout, cols, sources, count);
}

int pd_cpu_weight_create(struct pd_device *device, struct pd_weight_arena *arena,
                         enum pd_precision precision, enum pd_weight_layout layout, int cols,
                         const struct pd_weight_source *sources, int count,
                         const struct pd_weight_place *place, struct pd_weight **weight)
{
    struct pd_cpu_weight *own = make(count);

    if (own == NULL)
        return pd_device_fail(device, PD_KERNEL_NO_MEMORY, "out of memory");
    own->arena = arena;
    if (!create(own, precision, layout, cols, sources, count, place)) {
        pd_cpu_weight_release(&own->weight);
        return pd_device_fail(device, PD_KERNEL_NO_MEMORY,
                              "no memory for a weight of %d columns of %s", cols,
                              pd_dtype_name(sources[0].type));
    }
    *weight = &own->weight;
    return PD_KERNEL_OK;
}

size_t pd_cpu_weight_bytes(enum pd_weight_layout layout, int cols,
                           const struct pd_weight_source *sources, int count)
{
    struct pd_cpu_weight *plan = is_vector(layout, cols, sources, count) ? NULL : make(count);
    size_t bytes;

    if (plan == NULL)
        return 0;
    /* of any precision: sizes are the same */
    plan_segments(plan, PD_PRECISION_F32, layout, cols, sources, count);
    bytes = plan->bytes;
    free(plan);
    return bytes;
}

void pd_cpu_weight_release(struct pd_weight *weight)
{
    struct pd_cpu_weight *own = (struct pd_cpu_weight *)weight;

    pd_weight_arena_return(own->arena, own->memory);
    pd_weight_arena_return(own->arena, own->vector);
    free(own);
}

void pd_cpu_weight_row(const struct pd_weight *weight, int row, float *out)
{
    const struct pd_cpu_weight *own = (const struct pd_cpu_weight *)weight;
    const struct pd_cpu_segment *segment = own->segments;
    const uint8_t *panel;

    if (own->vector != NULL) { /* a table of one column or one row */
        memcpy(out, own->vector + (size_t)row * (size_t)weight->cols,
               (size_t)weight->cols * sizeof(float));
        return;
    }
    while (row >= segment->first_output + segment->rows)
        segment++;
    row -= segment->first_output;
    panel = segment->data + (size_t)(row / PANEL) * segment->panel_bytes;
    for (int k = 0; k < weight->cols; k++)
        out[k] = get_value(segment->form, segment->by_rows,
                           panel + (size_t)(k / BLOCK) * pd_form_bytes(segment->form), row % PANEL,
                           k % BLOCK);
}
