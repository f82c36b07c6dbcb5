/* Most text is normal already. A character is *quiet* if it is never changed and never joins what
 * stands before it; then the text can be cut before it. Only the runs of other characters are
 * worked on, each with the quiet character before it, which may be what they join:
 *
 *     R  e  ́  s  u  m  e  ́       ─▶   R │ e ́ │ s u m │ e ́
 *
 * Such a run is decomposed, put into canonical order, and composed. The library knows
 * decompositions, classes and compositions; the order is made here, by counting, since a library
 * that sorts by exchange takes quadratic time on a hostile run of marks. Characters younger than
 * the tables are quiet, and nothing joins them. */
#include "worker/text/normalizer.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

enum {
    DECOMPOSED_MAX = 8, /* code points of one character; there are 4 at most */
    BYTE_EXPANSION = 2, /* code points for each byte of a character; there are 3 for 2 at most */
    CLASSES = 256,
    TABLE_END = 0x30000, /* beyond, the tables' Unicode has nothing to decompose or to order */
};

struct pd_normalizer {
    uint8_t loud[TABLE_END / 8];  /* bit by code point: not quiet */
    uint8_t young[TABLE_END / 8]; /* too young to take part */
};

static bool bit(const uint8_t *bits, uint32_t code_point)
{
    return code_point < TABLE_END && bits[code_point >> 3] >> (code_point & 7) & 1;
}

static void set_bit(uint8_t *bits, uint32_t code_point)
{
    if (code_point < TABLE_END)
        bits[code_point >> 3] |= (uint8_t)(1 << (code_point & 7));
}

static int class_of(int32_t code_point)
{
    return utf8proc_get_property(code_point)->combining_class & (CLASSES - 1);
}

/* Fully and canonically; a character that needs more than `room` > 0 stays as it is. */
static size_t decompose(uint32_t code_point, int32_t *out, size_t room)
{
    int boundclass = 0;
    utf8proc_ssize_t count = utf8proc_decompose_char(
        (int32_t)code_point, out, (utf8proc_ssize_t)room, UTF8PROC_DECOMPOSE, &boundclass);

    if (count >= 1 && (size_t)count <= room)
        return (size_t)count;
    out[0] = (int32_t)code_point;
    return 1;
}

static size_t compose(int32_t *code_points, size_t count)
{
    utf8proc_ssize_t composed = utf8proc_normalize_utf32(code_points, (utf8proc_ssize_t)count,
                                                         UTF8PROC_COMPOSE | UTF8PROC_STABLE);

    return composed >= 0 ? (size_t)composed : count;
}

/* ---- which characters are loud
 * --------------------------------------------------------------------- */

static void mark(struct pd_normalizer *normalizer, uint32_t code_point)
{
    set_bit(pd_unicode_young(code_point) ? normalizer->young : normalizer->loud, code_point);
}

/* Marks the character if it is loud, and what its decomposition tells of others: the parts behind
 * the first are second halves of compositions, and so is the first part of a young character, which
 * none may join. */
static void look_at(struct pd_normalizer *normalizer, uint32_t code_point)
{
    int32_t parts[DECOMPOSED_MAX];
    size_t count = decompose(code_point, parts, DECOMPOSED_MAX), i;

    if (count == 1 && parts[0] == (int32_t)code_point) {
        if (class_of((int32_t)code_point) != 0)
            mark(normalizer, code_point);
        return;
    }
    for (i = 1; i < count; i++)
        mark(normalizer, (uint32_t)parts[i]);
    if (pd_unicode_young((uint32_t)parts[0]))
        mark(normalizer, (uint32_t)parts[0]);
    if (compose(parts, count) != 1 || parts[0] != (int32_t)code_point)
        mark(normalizer, code_point);
}

int pd_normalizer_create(struct pd_normalizer **normalizer, struct pd_error *error)
{
    struct pd_normalizer *made = calloc(1, sizeof *made);
    uint32_t c;

    if (!made)
        return pd_fail(error, PD_NO_MEMORY, "no memory for normalisation");
    for (c = 0x80; c < TABLE_END; c++)
        if (c < 0xD800 || c > 0xDFFF)
            look_at(made, c);
    *normalizer = made;
    return PD_OK;
}

void pd_normalizer_destroy(struct pd_normalizer *normalizer)
{
    free(normalizer);
}

/* ---- one run
 * --------------------------------------------------------------------------------------- */

static int reserve_code_points(struct pd_normalized *out, size_t count)
{
    int32_t *larger;

    if (count <= out->code_point_capacity)
        return PD_OK;
    larger = realloc(out->code_points, 2 * count * sizeof *larger);
    if (!larger)
        return PD_NO_MEMORY;
    out->code_points = larger;
    out->code_point_capacity = 2 * count;
    return PD_OK;
}

static int reserve_bytes(struct pd_normalized *out, size_t more)
{
    size_t capacity = out->capacity ? out->capacity : 256;
    char *larger;

    if (out->length + more <= out->capacity)
        return PD_OK;
    while (capacity < out->length + more)
        capacity *= 2;
    larger = realloc(out->bytes, capacity);
    if (!larger)
        return PD_NO_MEMORY;
    out->bytes = larger;
    out->capacity = capacity;
    return PD_OK;
}

/* Sorts marks[0..count) by class, equal ones as they stand; `spare` has room for as many. */
static void order_marks(int32_t *marks, size_t count, int32_t *spare)
{
    size_t begins[CLASSES + 1] = {0}, i;
    bool ordered = true;

    for (i = 1; i < count && ordered; i++)
        ordered = class_of(marks[i - 1]) <= class_of(marks[i]);
    if (ordered)
        return;
    for (i = 0; i < count; i++)
        begins[class_of(marks[i]) + 1]++;
    for (i = 1; i <= CLASSES; i++)
        begins[i] += begins[i - 1];
    for (i = 0; i < count; i++)
        spare[begins[class_of(marks[i])]++] = marks[i];
    memcpy(marks, spare, count * sizeof *marks);
}

static void order_canonically(int32_t *code_points, size_t count, int32_t *spare)
{
    size_t first, end;

    for (first = 0; first < count; first = end + 1) {
        for (end = first; end < count && class_of(code_points[end]) != 0; end++)
            ;
        order_marks(code_points + first, end - first, spare);
    }
}

/* Appends bytes that do not change. */
static int append(struct pd_normalized *out, const char *bytes, size_t length)
{
    int status = reserve_bytes(out, length);

    if (status == PD_OK && length > 0) {
        memcpy(out->bytes + out->length, bytes, length);
        out->length += length;
    }
    return status;
}

/* Appends the normal form of one run. */
static int normalize_run(const char *text, size_t length, struct pd_normalized *out)
{
    const char *end = text + length;
    size_t most = length * BYTE_EXPANSION, count = 0, i;
    int status = reserve_code_points(out, 2 * most); /* the second half is spare room to sort in */

    if (status != PD_OK)
        return status;
    while (text < end) {
        size_t room = pd_utf8_length(*text) * BYTE_EXPANSION;

        count += decompose(pd_utf8_next(&text), out->code_points + count, room);
    }
    order_canonically(out->code_points, count, out->code_points + most);
    count = compose(out->code_points, count);
    status = reserve_bytes(out, 4 * count);
    for (i = 0; i < count && status == PD_OK; i++)
        out->length += pd_utf8_encode((uint32_t)out->code_points[i], out->bytes + out->length);
    return status;
}

/* ---- whole texts
 * ----------------------------------------------------------------------------------- */

/* Finds the next run in text[*at..length): sets its first byte and *at to its end; false if there
 * is none. */
static bool next_run(const struct pd_normalizer *normalizer, const char *text, size_t length,
                     size_t *first, size_t *at)
{
    size_t base = *at; /* where a run begins if the next character is loud */
    bool loud = false;

    while (*at < length) {
        size_t ascii = pd_ascii_prefix(text + *at, length - *at);
        const char *next = text + *at;
        uint32_t c = pd_utf8_next(&next);

        if (loud && !bit(normalizer->loud, c))
            return true;
        if (ascii > 0) {
            base = *at + ascii - 1;
            next = text + *at + ascii;
        } else if (bit(normalizer->young, c)) {
            base = (size_t)(next - text);
        } else if (!bit(normalizer->loud, c)) {
            base = *at;
        } else if (!loud) {
            loud = true;
            *first = base;
        }
        *at = (size_t)(next - text);
    }
    return loud;
}

int pd_normalize(const struct pd_normalizer *normalizer, const char *text, size_t length,
                 struct pd_normalized *out, bool *changed)
{
    size_t first = 0, at = 0, done = 0;
    int status = PD_OK;

    *changed = false;
    out->length = 0;
    while (status == PD_OK && next_run(normalizer, text, length, &first, &at)) {
        *changed = true;
        status = append(out, text + done, first - done);
        if (status == PD_OK)
            status = normalize_run(text + first, at - first, out);
        done = at;
    }
    if (*changed && status == PD_OK)
        status = append(out, text + done, length - done);
    return status;
}

void pd_normalized_free(struct pd_normalized *normalized)
{
    free(normalized->bytes);
    free(normalized->code_points);
    memset(normalized, 0, sizeof *normalized);
}
