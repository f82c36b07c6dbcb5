/* The regular expressions of a pre-tokeniser, translated from Oniguruma's syntax and Unicode into
 * byte expressions over a made-to-measure alphabet (alphabet.h), and compiled with PCRE2.
 *
 * What is understood: literals, \t \n \r \f, \xHH, \x{H..}, \uHHHH, escaped punctuation, the dot,
 * \s \S \d \D, \p{..} \P{..} of general categories, classes without nesting, groups, (?i:..),
 * (?>..), look-around, alternatives and repeats. Everything else is refused by name: an expression
 * that is almost understood would give wrong ids in silence. */
#ifndef PD_REGEX_H
#define PD_REGEX_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "worker/text/alphabet.h"
#include "worker/text/tokenizer.h"

enum { PD_REGEX_COUNT_MAX = 16, PD_REGEX_LENGTH_MAX = 4096 };

/* Compiles `count` <= PD_REGEX_COUNT_MAX expressions over one alphabet. On failure nothing is left
 * to free; on success the caller frees every code and the alphabet. PD_UNSUPPORTED or PD_INVALID
 * name the expression by its number from 1, and the place in it. */
int pd_regexes_compile(const struct pd_string *patterns, size_t count, struct pd_alphabet *alphabet,
                       pcre2_code **codes, struct pd_error *error);

#endif
