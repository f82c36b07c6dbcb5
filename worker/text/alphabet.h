/* A small alphabet made to measure: every code point is one byte to the regular expressions.
 *
 * A pre-tokeniser's expressions ask only a few things of a character: is it a letter, a number,
 * white space, this one letter? Characters of which all answers are equal are one *symbol*. ASCII
 * keeps its codes, the rest of Unicode falls into at most 128 symbols from 0x80 on:
 *
 *     sets of the expressions     \p{L}   \s   [sS\x{17F}]            a  ─▶ 0x61
 *     "ſ" U+017F                    1      0        1       ─▶ 0x80   ſ  ─▶ 0x80
 *     "é", "語"                     1      0        0       ─▶ 0x81   é  ─▶ 0x81
 *     U+3000                        0      1        0       ─▶ 0x82   ...
 *
 * So the expressions run over bytes, fast, and mean what our own Unicode tables say on every
 * machine. */
#ifndef PD_ALPHABET_H
#define PD_ALPHABET_H

#include "worker/base/error.h"
#include "worker/text/unicode.h"

enum { PD_SET_RANGES_MAX = 64, PD_SETS_MAX = 128 };

/* A set of characters: (ranges or categories), or all the others if negated. */
struct pd_char_set {
    struct pd_char_range ranges[PD_SET_RANGES_MAX]; /* ascending, disjoint, not adjacent */
    size_t range_count;
    uint32_t categories; /* bit 1 << enum pd_category */
    bool negated;
};

/* Unites the set (before negation) with [first, last]. False if it has no room for another range.
 */
bool pd_char_set_add(struct pd_char_set *set, uint32_t first, uint32_t last);

bool pd_char_set_equal(const struct pd_char_set *a, const struct pd_char_set *b);

/* A set of symbols. */
struct pd_symbol_set {
    uint64_t bits[4];
};

static inline bool pd_symbol_set_has(const struct pd_symbol_set *set, unsigned symbol)
{
    return set->bits[symbol >> 6] >> (symbol & 63) & 1;
}

struct pd_alphabet {
    uint16_t block_of[PD_UNICODE_END >> 8];
    uint8_t (*blocks)[256];
    size_t block_count;
};

/* Makes the alphabet that tells `count` <= PD_SETS_MAX sets apart, and writes to members[] which
 * symbols each set consists of. PD_UNSUPPORTED if 128 symbols are not enough. */
int pd_alphabet_init(struct pd_alphabet *alphabet, const struct pd_char_set *sets, size_t count,
                     struct pd_symbol_set *members, struct pd_error *error);
void pd_alphabet_free(struct pd_alphabet *alphabet);

static inline uint8_t pd_alphabet_symbol(const struct pd_alphabet *alphabet, uint32_t code_point)
{
    return alphabet->blocks[alphabet->block_of[code_point >> 8]][code_point & 255];
}

#endif
