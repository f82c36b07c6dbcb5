/* Translation in two steps. Parsing turns an expression into a *skeleton*: its syntax as it stands,
 * each character set as a reference (REFERENCE, index) into a pool that all expressions share:
 *
 *     \p{N}| ?[^\s\p{L}]+      ─▶      (0)|(1)?(2)+       0: numbers  1: a space  2: neither \s nor
 * letters
 *
 * When the pool is complete, the alphabet is made, and every reference is written out as a byte
 * class. */
#include "worker/text/regex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEPTH_MAX = 32,
    REFERENCE = 1, /* a control character that the skeleton's syntax never holds */
    ALL_CATEGORIES = (1 << PD_CATEGORY_COUNT) - 1,
};

struct pool {
    struct pd_char_set sets[PD_SETS_MAX];
    size_t count;
};

struct parser {
    const char *pattern, *at, *end;
    size_t number; /* of the expression, from 1 */
    struct pool *pool;
    char *out; /* the skeleton; never longer than 3 bytes for one of the pattern */
    size_t out_length;
    bool fold[DEPTH_MAX + 1]; /* by depth of groups: letters match both cases */
    size_t depth;
    uint32_t folded; /* the character just before, if its case was ignored */
    bool repeatable; /* an atom or a group stands just before */
    struct pd_error *error;
};

static int unsupported(struct parser *parser, const char *place, const char *what)
{
    return pd_fail(parser->error, PD_UNSUPPORTED,
                   "pre-tokeniser expression %zu, byte %zu: %s is not supported", parser->number,
                   (size_t)(place - parser->pattern), what);
}

static int invalid(struct parser *parser, const char *place, const char *what)
{
    return pd_fail(parser->error, PD_INVALID, "pre-tokeniser expression %zu, byte %zu: %s",
                   parser->number, (size_t)(place - parser->pattern), what);
}

static void emit(struct parser *parser, const char *text, size_t length)
{
    memcpy(parser->out + parser->out_length, text, length);
    parser->out_length += length;
}

/* ---- sets
 * ---------------------------------------------------------------------------------------- */

static int emit_set(struct parser *parser, const struct pd_char_set *set)
{
    struct pool *pool = parser->pool;
    char reference[2] = {REFERENCE, 0};
    size_t i;

    for (i = 0; i < pool->count; i++)
        if (pd_char_set_equal(&pool->sets[i], set))
            break;
    if (i == PD_SETS_MAX)
        return unsupported(parser, parser->at, "more than 128 different character sets");
    if (i == pool->count)
        pool->sets[pool->count++] = *set;
    reference[1] = (char)i;
    emit(parser, reference, sizeof reference);
    parser->repeatable = true;
    return PD_OK;
}

static int add_range(struct parser *parser, struct pd_char_set *set, uint32_t first, uint32_t last)
{
    if (!pd_char_set_add(set, first, last))
        return unsupported(parser, parser->at, "a class of more than 64 ranges");
    return PD_OK;
}

static bool is_letter(uint32_t c)
{
    return (c | 32) >= 'a' && (c | 32) <= 'z' && c < 0x80;
}

/* Adds a letter in all its cases: simple folding joins two characters beyond ASCII to ASCII
 * letters. */
static int add_folded(struct parser *parser, struct pd_char_set *set, uint32_t c)
{
    int status = add_range(parser, set, c, c);

    if (status == PD_OK && is_letter(c))
        status = add_range(parser, set, c ^ 32, c ^ 32);
    if (status == PD_OK && (c | 32) == 's')
        status = add_range(parser, set, 0x17F, 0x17F); /* long s */
    if (status == PD_OK && (c | 32) == 'k')
        status = add_range(parser, set, 0x212A, 0x212A); /* Kelvin sign */
    return status;
}

static int add_white_space(struct parser *parser, struct pd_char_set *set, bool others)
{
    uint32_t gap = 0;
    size_t i;
    int status = PD_OK;

    for (i = 0; i < pd_white_space_count && status == PD_OK; i++) {
        const struct pd_char_range *range = &pd_white_space[i];

        if (!others)
            status = add_range(parser, set, range->first, range->last);
        else if (gap < range->first)
            status = add_range(parser, set, gap, range->first - 1);
        gap = range->last + 1;
    }
    if (others && status == PD_OK)
        status = add_range(parser, set, gap, PD_UNICODE_END - 1);
    return status;
}

/* ---- escapes
 * ------------------------------------------------------------------------------------- */

/* What an escape stands for: one character, or a set that is united with *set. */
struct escape {
    bool literal;
    uint32_t code_point;
};

/* The categories of "L", "Lu", ... as bits, or 0. */
static uint32_t categories_of(const char *name, size_t length)
{
    static const char names[PD_CATEGORY_COUNT][3] = {
        "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
        "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn",
    };
    uint32_t bits = 0;
    int i;

    if (length != 1 && length != 2)
        return 0;
    for (i = 0; i < PD_CATEGORY_COUNT; i++)
        if (memcmp(names[i], name, length) == 0)
            bits |= 1u << i;
    return bits;
}

/* \p{..} or \P{..}; parser->at stands behind the letter. */
static int parse_property(struct parser *parser, bool others, struct pd_char_set *set)
{
    const char *place = parser->at - 2, *name, *close;
    uint32_t bits;

    if (parser->at == parser->end || *parser->at != '{')
        return unsupported(parser, place, "\\p without braces");
    name = parser->at + 1;
    if (name < parser->end && *name == '^') {
        others = !others;
        name++;
    }
    close = memchr(name, '}', (size_t)(parser->end - name));
    if (!close)
        return invalid(parser, place, "\\p{ is not closed");
    bits = categories_of(name, (size_t)(close - name));
    if (bits == 0)
        return unsupported(parser, place, "a property that is no general category");
    set->categories |= others ? ALL_CATEGORIES & ~bits : bits;
    parser->at = close + 1;
    return PD_OK;
}

static int hex_digit(char c)
{
    const char *digits = "0123456789abcdef", *found;

    found = c ? strchr(digits, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;
    return found ? (int)(found - digits) : -1;
}

/* \xHH, \x{H..} or \uHHHH; parser->at stands behind the letter. */
static int parse_code_point(struct parser *parser, char letter, uint32_t *code_point)
{
    const char *place = parser->at - 2;
    bool braces = letter == 'x' && parser->at < parser->end && *parser->at == '{';
    int digits = 0, most = braces ? 6 : letter == 'x' ? 2 : 4;

    *code_point = 0;
    parser->at += braces;
    while (digits < most && parser->at < parser->end && hex_digit(*parser->at) >= 0) {
        *code_point = *code_point << 4 | (uint32_t)hex_digit(*parser->at++);
        digits++;
    }
    if (digits == 0 || (!braces && digits < most))
        return invalid(parser, place, "too few hexadecimal digits");
    if (braces && (parser->at == parser->end || *parser->at++ != '}'))
        return invalid(parser, place, "\\x{ is not closed");
    if (*code_point >= PD_UNICODE_END || (*code_point >= 0xD800 && *code_point < 0xE000))
        return invalid(parser, place, "no such code point");
    if (!braces && letter == 'x' && *code_point >= 0x80)
        return unsupported(parser, place, "a single byte beyond ASCII");
    return PD_OK;
}

/* parser->at stands behind the backslash. */
static int parse_escape(struct parser *parser, struct escape *escape, struct pd_char_set *set)
{
    const char *place = parser->at - 1;
    char c;

    if (parser->at == parser->end)
        return invalid(parser, place, "a backslash ends it");
    c = *parser->at++;
    escape->literal =
        strchr("nrtfxu", c) || !(is_letter((unsigned char)c) || (c >= '0' && c <= '9'));
    escape->code_point = (unsigned char)c;
    switch (c) {
    case 's':
    case 'S':
        return add_white_space(parser, set, c == 'S');
    case 'd':
    case 'D':
        set->categories |=
            c == 'd' ? 1u << PD_CATEGORY_ND : ALL_CATEGORIES & ~(1u << PD_CATEGORY_ND);
        return PD_OK;
    case 'p':
    case 'P':
        return parse_property(parser, c == 'P', set);
    case 'x':
    case 'u':
        return parse_code_point(parser, c, &escape->code_point);
    case 'n':
        escape->code_point = '\n';
        return PD_OK;
    case 'r':
        escape->code_point = '\r';
        return PD_OK;
    case 't':
        escape->code_point = '\t';
        return PD_OK;
    case 'f':
        escape->code_point = '\f';
        return PD_OK;
    default:
        if (!escape->literal || (unsigned char)c <= ' ' || (unsigned char)c >= 0x7F)
            return unsupported(parser, place, "this escape");
        return PD_OK;
    }
}

/* ---- classes
 * ------------------------------------------------------------------------------------- */

/* One character or escape of a class. */
static int parse_class_item(struct parser *parser, struct escape *item, struct pd_char_set *set)
{
    size_t length;

    if (parser->at == parser->end)
        return invalid(parser, parser->at, "a class is not closed");
    if (*parser->at == '\\') {
        parser->at++;
        return parse_escape(parser, item, set);
    }
    if (*parser->at == '[')
        return unsupported(parser, parser->at, "a class within a class");
    if (*parser->at == '&' && parser->end - parser->at > 1 && parser->at[1] == '&')
        return unsupported(parser, parser->at, "an intersection of classes");
    length = pd_utf8_decode(parser->at, (size_t)(parser->end - parser->at), &item->code_point);
    parser->at += length;
    item->literal = true;
    return PD_OK;
}

/* Whether parser->at stands at a dash that joins two ends of a range. */
static bool at_range(const struct parser *parser)
{
    return parser->end - parser->at > 1 && parser->at[0] == '-' && parser->at[1] != ']';
}

/* Makes the class match both cases; only classes of ASCII are folded. */
static int fold_class(struct parser *parser, const char *place, struct pd_char_set *set)
{
    struct pd_char_set plain = *set;
    uint32_t c;
    size_t i;
    int status = PD_OK;

    if (set->categories || set->negated ||
        (set->range_count && set->ranges[set->range_count - 1].last >= 0x80))
        return unsupported(parser, place, "ignoring case in a class beyond ASCII");
    for (i = 0; i < plain.range_count; i++)
        for (c = plain.ranges[i].first; c <= plain.ranges[i].last && status == PD_OK; c++)
            status = add_folded(parser, set, c);
    return status;
}

/* parser->at stands behind the opening bracket. */
static int parse_class(struct parser *parser)
{
    const char *place = parser->at - 1;
    struct pd_char_set set = {.range_count = 0};
    bool first = true;
    int status;

    if (parser->at < parser->end && *parser->at == '^') {
        set.negated = true;
        parser->at++;
    }
    for (; parser->at < parser->end && *parser->at != ']'; first = false) {
        struct escape low = {true, 0}, high;

        if (!first && at_range(parser))
            return unsupported(parser, parser->at, "a dash after a range or a set");
        if ((status = parse_class_item(parser, &low, &set)) != PD_OK)
            return status;
        if (!low.literal)
            continue;
        high = low;
        if (at_range(parser)) {
            parser->at++;
            if ((status = parse_class_item(parser, &high, &set)) != PD_OK)
                return status;
            if (!high.literal || high.code_point < low.code_point)
                return invalid(parser, parser->at, "a range of a class has no end");
        }
        if ((status = add_range(parser, &set, low.code_point, high.code_point)) != PD_OK)
            return status;
    }
    if (parser->at == parser->end || first)
        return invalid(parser, place, "a class is not closed or empty");
    parser->at++;
    if (parser->fold[parser->depth] && (status = fold_class(parser, place, &set)) != PD_OK)
        return status;
    return emit_set(parser, &set);
}

/* ---- groups, repeats, characters
 * ------------------------------------------------------------------ */

/* Groups by what stands behind the opening parenthesis: how they are written in PCRE2. */
static const struct group {
    const char *source, *target;
    bool fold;
} groups[] = {
    {"?:", "(?:", false},   {"?i:", "(?:", true},   {"?=", "(?=", false}, {"?!", "(?!", false},
    {"?<=", "(?<=", false}, {"?<!", "(?<!", false}, {"?>", "(?>", false},
};

static int open_group(struct parser *parser)
{
    const char *place = parser->at - 1, *target = "(?:";
    bool fold = parser->fold[parser->depth];
    size_t left = (size_t)(parser->end - parser->at), i;

    if (left > 0 && *parser->at == '?') {
        for (i = 0; i < sizeof groups / sizeof groups[0]; i++) {
            size_t length = strlen(groups[i].source);

            if (left >= length && memcmp(parser->at, groups[i].source, length) == 0) {
                target = groups[i].target;
                fold = fold || groups[i].fold;
                parser->at += length;
                break;
            }
        }
        if (i == sizeof groups / sizeof groups[0])
            return unsupported(parser, place, "this kind of group");
    }
    if (parser->depth == DEPTH_MAX)
        return unsupported(parser, place, "nesting deeper than 32");
    parser->fold[++parser->depth] = fold;
    emit(parser, target, strlen(target));
    parser->repeatable = false;
    return PD_OK;
}

static int close_group(struct parser *parser)
{
    if (parser->depth == 0)
        return invalid(parser, parser->at - 1, "a closing parenthesis too many");
    parser->depth--;
    emit(parser, ")", 1);
    parser->repeatable = true;
    return PD_OK;
}

/* ?, *, + and their lazy and possessive forms. */
static int parse_repeat(struct parser *parser)
{
    if (!parser->repeatable)
        return invalid(parser, parser->at - 1, "nothing to repeat");
    emit(parser, parser->at - 1, 1);
    if (parser->at < parser->end && (*parser->at == '?' || *parser->at == '+'))
        emit(parser, parser->at++, 1);
    parser->repeatable = false;
    return PD_OK;
}

/* {n}, {n,}, {n,m} and {,m}. With another ? or + behind, the two dialects differ. */
static int parse_counted_repeat(struct parser *parser)
{
    const char *place = parser->at - 1, *close, *c;
    bool comma = false;

    if (!parser->repeatable)
        return invalid(parser, place, "nothing to repeat");
    close = memchr(parser->at, '}', (size_t)(parser->end - parser->at));
    for (c = parser->at; close && c < close; c++) {
        if (*c == ',' ? comma : *c < '0' || *c > '9')
            close = NULL;
        comma = comma || *c == ',';
    }
    if (!close || close - parser->at == comma)
        return unsupported(parser, place, "a brace that is no repeat count");
    if (close + 1 < parser->end && strchr("?+", close[1]))
        return unsupported(parser, place, "a lazy or possessive repeat count");
    emit(parser, "{", 1);
    if (*parser->at == ',')
        emit(parser, "0", 1);
    emit(parser, parser->at, (size_t)(close + 1 - parser->at));
    parser->at = close + 1;
    parser->repeatable = false;
    return PD_OK;
}

/* Where case is ignored, two letters may also match one character, as "ss" does U+00DF. */
static bool folds_into_one(uint32_t first, uint32_t second)
{
    first |= 32;
    second |= 32;
    return (first == 's' && (second == 's' || second == 't')) ||
           (first == 'f' && (second == 'f' || second == 'i' || second == 'l'));
}

static int emit_character(struct parser *parser, const char *place, uint32_t before,
                          uint32_t code_point)
{
    struct pd_char_set set = {.range_count = 0};
    int status;

    if (!parser->fold[parser->depth]) {
        pd_char_set_add(&set, code_point, code_point);
        return emit_set(parser, &set);
    }
    if (code_point >= 0x80)
        return unsupported(parser, place, "ignoring the case of a character beyond ASCII");
    if (folds_into_one(before, code_point))
        return unsupported(parser, place, "ignoring case of two letters that fold into one");
    if ((status = add_folded(parser, &set, code_point)) != PD_OK)
        return status;
    parser->folded = code_point;
    return emit_set(parser, &set);
}

/* One character, escape, class or operator. */
static int parse_next(struct parser *parser)
{
    const char *place = parser->at;
    struct pd_char_set set = {.range_count = 0};
    struct escape escape;
    uint32_t code_point = 0, before = parser->folded;
    int status;

    parser->folded = 0;
    parser->at += pd_utf8_decode(place, (size_t)(parser->end - place), &code_point);
    switch (code_point) {
    case '(':
        return open_group(parser);
    case ')':
        return close_group(parser);
    case '[':
        return parse_class(parser);
    case '?':
    case '*':
    case '+':
        return parse_repeat(parser);
    case '{':
        return parse_counted_repeat(parser);
    case '|':
        emit(parser, "|", 1);
        parser->repeatable = false;
        return PD_OK;
    case '.':
        pd_char_set_add(&set, '\n', '\n');
        set.negated = true;
        return emit_set(parser, &set);
    case '\\':
        status = parse_escape(parser, &escape, &set);
        if (status != PD_OK)
            return status;
        return escape.literal ? emit_character(parser, place, before, escape.code_point)
                              : emit_set(parser, &set);
    case '^':
    case '$':
        return unsupported(parser, place, "an anchor");
    case ']':
    case '}':
        return unsupported(parser, place, "a bracket that closes nothing");
    default:
        return emit_character(parser, place, before, code_point);
    }
}

/* Writes the skeleton of `pattern` to out[0..*out_length), which has room for 3 bytes for one. */
static int parse(const struct pd_string *pattern, size_t number, struct pool *pool, char *out,
                 size_t *out_length, struct pd_error *error)
{
    struct parser parser = {.pattern = pattern->bytes,
                            .at = pattern->bytes,
                            .end = pattern->bytes + pattern->length,
                            .number = number,
                            .pool = pool,
                            .out = out,
                            .error = error};
    size_t valid = pd_utf8_valid(pattern->bytes, pattern->length);
    int status = PD_OK;

    if (valid < pattern->length)
        return invalid(&parser, parser.pattern + valid, "not UTF-8");
    while (parser.at < parser.end && status == PD_OK)
        status = parse_next(&parser);
    if (status == PD_OK && parser.depth > 0)
        return invalid(&parser, parser.end, "a group is not closed");
    *out_length = parser.out_length;
    return status;
}

/* ---- from skeleton to code
 * ------------------------------------------------------------------------ */

static void write_set(FILE *out, const struct pd_symbol_set *members)
{
    unsigned first = 0, last;

    fputc('[', out);
    for (; first < 256; first = last + 1) {
        last = first;
        if (!pd_symbol_set_has(members, first))
            continue;
        while (last < 255 && pd_symbol_set_has(members, last + 1))
            last++;
        if (first == last)
            fprintf(out, "\\x%02x", first);
        else
            fprintf(out, "\\x%02x-\\x%02x", first, last);
    }
    /* A class that no character is in can not be written as an empty one. */
    if ((members->bits[0] | members->bits[1] | members->bits[2] | members->bits[3]) == 0)
        fputs("^\\x00-\\xff", out);
    fputc(']', out);
}

static int compile(const char *skeleton, size_t length, size_t number,
                   const struct pd_symbol_set *members, pcre2_code **code, struct pd_error *error)
{
    const uint32_t options = PCRE2_NEVER_UTF | PCRE2_NEVER_UCP | PCRE2_NEVER_BACKSLASH_C;
    char *text = NULL;
    size_t text_length = 0, i;
    FILE *out = open_memstream(&text, &text_length);
    PCRE2_UCHAR reason[128];
    PCRE2_SIZE offset;
    uint32_t matches_empty = 0;
    int fault;

    if (!out)
        return pd_fail(error, PD_NO_MEMORY, "no memory for the pre-tokeniser's expressions");
    for (i = 0; i < length; i++)
        if (skeleton[i] == REFERENCE)
            write_set(out, &members[(unsigned char)skeleton[++i]]);
        else
            fputc(skeleton[i], out);
    if (fclose(out) != 0) {
        free(text);
        return pd_fail(error, PD_NO_MEMORY, "no memory for the pre-tokeniser's expressions");
    }
    *code = pcre2_compile((PCRE2_SPTR)text, text_length, options, &fault, &offset, NULL);
    free(text);
    if (!*code) {
        pcre2_get_error_message(fault, reason, sizeof reason);
        return pd_fail(error, PD_INVALID, "pre-tokeniser expression %zu: %s", number,
                       (char *)reason);
    }
    pcre2_pattern_info(*code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty) {
        pcre2_code_free(*code);
        *code = NULL;
        return pd_fail(error, PD_UNSUPPORTED,
                       "pre-tokeniser expression %zu: one that may match nothing is not supported",
                       number);
    }
    pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE); /* where it fails, the interpreter serves */
    return PD_OK;
}

static int check_sizes(const struct pd_string *patterns, size_t count, struct pd_error *error)
{
    size_t i;

    if (count > PD_REGEX_COUNT_MAX)
        return pd_fail(error, PD_UNSUPPORTED,
                       "the pre-tokeniser has %zu expressions, at most %d are supported", count,
                       PD_REGEX_COUNT_MAX);
    for (i = 0; i < count; i++)
        if (patterns[i].length > PD_REGEX_LENGTH_MAX)
            return pd_fail(error, PD_UNSUPPORTED,
                           "pre-tokeniser expression %zu has %zu bytes, at most %d are supported",
                           i + 1, patterns[i].length, PD_REGEX_LENGTH_MAX);
    return PD_OK;
}

/* What the translation of all expressions needs at once. */
struct workshop {
    struct pool pool;
    struct pd_symbol_set members[PD_SETS_MAX];
    char skeletons[PD_REGEX_COUNT_MAX][3 * PD_REGEX_LENGTH_MAX];
    size_t lengths[PD_REGEX_COUNT_MAX];
};

int pd_regexes_compile(const struct pd_string *patterns, size_t count, struct pd_alphabet *alphabet,
                       pcre2_code **codes, struct pd_error *error)
{
    struct workshop *shop;
    size_t i;
    int status = check_sizes(patterns, count, error);

    if (status != PD_OK)
        return status;
    shop = calloc(1, sizeof *shop);
    if (!shop)
        return pd_fail(error, PD_NO_MEMORY, "no memory for the pre-tokeniser's expressions");
    for (i = 0; i < count && status == PD_OK; i++)
        status =
            parse(&patterns[i], i + 1, &shop->pool, shop->skeletons[i], &shop->lengths[i], error);
    if (status == PD_OK)
        status =
            pd_alphabet_init(alphabet, shop->pool.sets, shop->pool.count, shop->members, error);
    if (status == PD_OK) {
        for (i = 0; i < count && status == PD_OK; i++)
            status = compile(shop->skeletons[i], shop->lengths[i], i + 1, shop->members, &codes[i],
                             error);
        if (status != PD_OK) {
            while (i-- > 0)
                pcre2_code_free(codes[i]); /* of the failed one: NULL */
            pd_alphabet_free(alphabet);
        }
    }
    free(shop);
    return status;
}
