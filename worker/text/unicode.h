/* UTF-8 and the few Unicode facts that tokenisation stands on.
 *
 * The tables are the house's own (unicode_tables.inc) and not the system libraries': a token id
 * must not depend on which release of a library a machine happens to have, and must be the one that
 * Hugging Face's tokenizers give. */
#ifndef PD_UNICODE_H
#define PD_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PD_UNICODE_END = 0x110000 };

/* Version of the tables: part of a tokenizer's digest. */
#define PD_UNICODE_TABLES "categories 16.0, normalisation 9.0"

/* General categories, in the order of unicode_tables.inc. */
enum pd_category {
    PD_CATEGORY_LU,
    PD_CATEGORY_LL,
    PD_CATEGORY_LT,
    PD_CATEGORY_LM,
    PD_CATEGORY_LO,
    PD_CATEGORY_MN,
    PD_CATEGORY_MC,
    PD_CATEGORY_ME,
    PD_CATEGORY_ND,
    PD_CATEGORY_NL,
    PD_CATEGORY_NO,
    PD_CATEGORY_PC,
    PD_CATEGORY_PD,
    PD_CATEGORY_PS,
    PD_CATEGORY_PE,
    PD_CATEGORY_PI,
    PD_CATEGORY_PF,
    PD_CATEGORY_PO,
    PD_CATEGORY_SM,
    PD_CATEGORY_SC,
    PD_CATEGORY_SK,
    PD_CATEGORY_SO,
    PD_CATEGORY_ZS,
    PD_CATEGORY_ZL,
    PD_CATEGORY_ZP,
    PD_CATEGORY_CC,
    PD_CATEGORY_CF,
    PD_CATEGORY_CS,
    PD_CATEGORY_CO,
    PD_CATEGORY_CN,
    PD_CATEGORY_COUNT,
};

/* The table of general categories as runs of equal category: `first` ascends, run 0 begins at 0 and
 * each ends where the next begins. Surrogates, which UTF-8 can not hold, have no run of their own.
 */
size_t pd_category_run_count(void);
void pd_category_run(size_t index, uint32_t *first, enum pd_category *category);

/* Whether a code point is too young to take part in normalisation, or is not assigned. */
bool pd_unicode_young(uint32_t code_point);

/* The White_Space characters, which is what \s means: ascending, disjoint ranges. */
struct pd_char_range {
    uint32_t first, last;
};
extern const struct pd_char_range pd_white_space[];
extern const size_t pd_white_space_count;

/* Bytes of the longest prefix that is well-formed UTF-8; `length` if all of it is. */
size_t pd_utf8_valid(const char *bytes, size_t length);

/* Decodes the character at bytes[0..left): its length, or 0 if it is not well-formed. */
size_t pd_utf8_decode(const char *bytes, size_t left, uint32_t *code_point);

/* Writes the code point's UTF-8 form (not a surrogate, below PD_UNICODE_END); returns its length.
 */
size_t pd_utf8_encode(uint32_t code_point, char bytes[4]);

/* Length of the character that a lead byte of well-formed UTF-8 begins. */
static inline size_t pd_utf8_length(char lead)
{
    unsigned char byte = (unsigned char)lead;

    return 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0);
}

/* The same as pd_utf8_decode for text known to be well-formed: no check, and moves *bytes on. */
static inline uint32_t pd_utf8_next(const char **bytes)
{
    const unsigned char *at = (const unsigned char *)*bytes;
    size_t length = pd_utf8_length(**bytes);

    *bytes += length;
    switch (length) {
    case 1:
        return at[0];
    case 2:
        return (at[0] & 0x1Fu) << 6 | (at[1] & 0x3Fu);
    case 3:
        return (at[0] & 0x0Fu) << 12 | (at[1] & 0x3Fu) << 6 | (at[2] & 0x3Fu);
    default:
        return (at[0] & 0x07u) << 18 | (at[1] & 0x3Fu) << 12 | (at[2] & 0x3Fu) << 6 |
               (at[3] & 0x3Fu);
    }
}

/* Number of leading ASCII bytes. */
size_t pd_ascii_prefix(const char *bytes, size_t length);

#endif
