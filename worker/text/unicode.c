/* UTF-8 by the table of well-formed byte sequences (Unicode, table 3-7), with a short cut for
 * ASCII, and lookups in the generated tables. */
#include "worker/text/unicode.h"

#include <string.h>

#include "worker/text/unicode_tables.inc"

const struct pd_char_range pd_white_space[] = {
    {0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
    {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000},
};
const size_t pd_white_space_count = sizeof pd_white_space / sizeof pd_white_space[0];

enum {
    RUN_COUNT = sizeof category_runs / sizeof category_runs[0],
    YOUNG_COUNT = sizeof young_ranges / sizeof young_ranges[0],
};

size_t pd_category_run_count(void)
{
    return RUN_COUNT;
}

void pd_category_run(size_t index, uint32_t *first, enum pd_category *category)
{
    *first = category_runs[index] >> 5;
    *category = category_runs[index] & 31;
}

static enum pd_category category_of(uint32_t code_point)
{
    size_t low = 0, high = RUN_COUNT;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (category_runs[middle] >> 5 <= code_point)
            low = middle;
        else
            high = middle;
    }
    return category_runs[low] & 31;
}

bool pd_unicode_young(uint32_t code_point)
{
    size_t i;

    for (i = 0; i < YOUNG_COUNT; i++)
        if (code_point >= young_ranges[i][0] && code_point <= young_ranges[i][1])
            return true;
    return category_of(code_point) == PD_CATEGORY_CN;
}

size_t pd_utf8_decode(const char *bytes, size_t left, uint32_t *code_point)
{
    const unsigned char *at = (const unsigned char *)bytes;
    unsigned char low = 0x80, high = 0xBF; /* bounds of the second byte */
    size_t length, i;

    if (left == 0)
        return 0;
    if (at[0] < 0x80) {
        *code_point = at[0];
        return 1;
    }
    if (at[0] < 0xC2 || at[0] > 0xF4)
        return 0;
    length = pd_utf8_length(bytes[0]);
    if (at[0] == 0xE0)
        low = 0xA0;
    else if (at[0] == 0xED)
        high = 0x9F;
    else if (at[0] == 0xF0)
        low = 0x90;
    else if (at[0] == 0xF4)
        high = 0x8F;
    if (left < length || at[1] < low || at[1] > high)
        return 0;
    for (i = 2; i < length; i++)
        if ((at[i] & 0xC0) != 0x80)
            return 0;
    *code_point = pd_utf8_next(&bytes);
    return length;
}

size_t pd_utf8_encode(uint32_t code_point, char bytes[4])
{
    if (code_point < 0x80) {
        bytes[0] = (char)code_point;
        return 1;
    }
    if (code_point < 0x800) {
        bytes[0] = (char)(0xC0 | code_point >> 6);
        bytes[1] = (char)(0x80 | (code_point & 0x3F));
        return 2;
    }
    if (code_point < 0x10000) {
        bytes[0] = (char)(0xE0 | code_point >> 12);
        bytes[1] = (char)(0x80 | (code_point >> 6 & 0x3F));
        bytes[2] = (char)(0x80 | (code_point & 0x3F));
        return 3;
    }
    bytes[0] = (char)(0xF0 | code_point >> 18);
    bytes[1] = (char)(0x80 | (code_point >> 12 & 0x3F));
    bytes[2] = (char)(0x80 | (code_point >> 6 & 0x3F));
    bytes[3] = (char)(0x80 | (code_point & 0x3F));
    return 4;
}

size_t pd_ascii_prefix(const char *bytes, size_t length)
{
    size_t at = 0;

    for (; length - at >= sizeof(uint64_t); at += sizeof(uint64_t)) {
        uint64_t eight;

        memcpy(&eight, bytes + at, sizeof eight);
        if (eight & UINT64_C(0x8080808080808080))
            break;
    }
    while (at < length && (unsigned char)bytes[at] < 0x80)
        at++;
    return at;
}

size_t pd_utf8_valid(const char *bytes, size_t length)
{
    size_t at = 0;

    while (at < length) {
        uint32_t code_point;
        size_t step = pd_ascii_prefix(bytes + at, length - at);

        if (step == 0)
            step = pd_utf8_decode(bytes + at, length - at, &code_point);
        if (step == 0)
            break;
        at += step;
    }
    return at;
}
