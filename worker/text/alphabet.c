/* Making the alphabet: Unicode is cut wherever a category or a set's range begins or ends; within
 * such an interval every character is in the same sets. The bits of those sets are the interval's
 * signature, and intervals of equal signature share a symbol. */
#include "worker/text/alphabet.h"

#include <stdlib.h>
#include <string.h>

enum { ASCII_END = 0x80, SYMBOLS = 256, BLOCK = 256 };

/* ---- sets of characters -------------------------------------------------------------------------
 */

bool pd_char_set_add(struct pd_char_set *set, uint32_t first, uint32_t last)
{
    size_t from = 0, to;

    while (from < set->range_count && set->ranges[from].last + 1 < first)
        from++;
    for (to = from; to < set->range_count && set->ranges[to].first <= last + 1; to++) {
        if (set->ranges[to].first < first)
            first = set->ranges[to].first;
        if (set->ranges[to].last > last)
            last = set->ranges[to].last;
    }
    if (to == from && set->range_count == PD_SET_RANGES_MAX)
        return false;
    memmove(&set->ranges[from + 1], &set->ranges[to],
            (set->range_count - to) * sizeof set->ranges[0]);
    set->ranges[from] = (struct pd_char_range){first, last};
    set->range_count = set->range_count - (to - from) + 1;
    return true;
}

bool pd_char_set_equal(const struct pd_char_set *a, const struct pd_char_set *b)
{
    return a->range_count == b->range_count && a->categories == b->categories &&
           a->negated == b->negated &&
           memcmp(a->ranges, b->ranges, a->range_count * sizeof a->ranges[0]) == 0;
}

static bool char_set_has(const struct pd_char_set *set, uint32_t code_point,
                         enum pd_category category)
{
    size_t i;

    if (set->categories >> category & 1)
        return !set->negated;
    for (i = 0; i < set->range_count && set->ranges[i].first <= code_point; i++)
        if (code_point <= set->ranges[i].last)
            return !set->negated;
    return set->negated;
}

/* ---- intervals ----------------------------------------------------------------------------------
 */

static int compare_code_points(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

/* Fills *cuts with the sorted beginnings of all intervals, PD_UNICODE_END last; returns their
 * number, or 0 without memory. Every ASCII character is an interval of its own. */
static size_t collect_cuts(const struct pd_char_set *sets, size_t count, uint32_t **cuts)
{
    size_t runs = pd_category_run_count(), i, j, used = 0, kept = 0;
    uint32_t *list = malloc((runs + ASCII_END + 2 + count * 2 * PD_SET_RANGES_MAX) * sizeof *list);
    enum pd_category category;

    if (!list)
        return 0;
    for (i = 0; i < runs; i++)
        pd_category_run(i, &list[used++], &category);
    for (i = 0; i <= ASCII_END; i++)
        list[used++] = (uint32_t)i;
    for (i = 0; i < count; i++)
        for (j = 0; j < sets[i].range_count; j++) {
            list[used++] = sets[i].ranges[j].first;
            list[used++] = sets[i].ranges[j].last + 1;
        }
    list[used++] = PD_UNICODE_END;
    qsort(list, used, sizeof *list, compare_code_points);
    for (i = 0; i < used; i++)
        if (kept == 0 || list[i] != list[kept - 1])
            list[kept++] = list[i];
    *cuts = list;
    return kept;
}

struct signature {
    uint64_t bits[PD_SETS_MAX / 64];
};

static struct signature signature_of(const struct pd_char_set *sets, size_t count,
                                     uint32_t code_point, enum pd_category category)
{
    struct signature signature = {{0}};
    size_t i;

    for (i = 0; i < count; i++)
        if (char_set_has(&sets[i], code_point, category))
            signature.bits[i / 64] |= UINT64_C(1) << (i % 64);
    return signature;
}

/* The symbol of a signature beyond ASCII, a new one if it is the first; SYMBOLS if there are too
 * many. */
static unsigned find_symbol(struct signature *known, unsigned *used, const struct signature *wanted)
{
    unsigned symbol;

    for (symbol = ASCII_END; symbol < *used; symbol++)
        if (memcmp(&known[symbol], wanted, sizeof *wanted) == 0)
            return symbol;
    if (symbol < SYMBOLS)
        known[(*used)++] = *wanted;
    return symbol;
}

/* Gives every interval its symbol: known[] becomes the symbols' signatures, flat[] each character's
 * symbol. */
static int assign_symbols(const struct pd_char_set *sets, size_t count, const uint32_t *cuts,
                          size_t cut_count, struct signature *known, uint8_t *flat,
                          struct pd_error *error)
{
    unsigned used = ASCII_END;
    size_t i, run = 0;

    for (i = 0; i + 1 < cut_count; i++) {
        struct signature signature;
        enum pd_category category, next;
        uint32_t first;
        unsigned symbol;

        pd_category_run(run, &first, &category);
        for (; run + 1 < pd_category_run_count(); run++, category = next) {
            pd_category_run(run + 1, &first, &next);
            if (first > cuts[i])
                break;
        }
        signature = signature_of(sets, count, cuts[i], category);
        if (cuts[i] < ASCII_END) {
            symbol = cuts[i];
            known[symbol] = signature;
        } else {
            symbol = find_symbol(known, &used, &signature);
        }
        if (symbol == SYMBOLS)
            return pd_fail(error, PD_UNSUPPORTED,
                           "the pre-tokeniser's expressions tell more than %d kinds of character "
                           "beyond ASCII apart",
                           SYMBOLS - ASCII_END);
        memset(flat + cuts[i], (int)symbol, cuts[i + 1] - cuts[i]);
    }
    return PD_OK;
}

/* ---- the two-level table
 * ------------------------------------------------------------------------- */

static int compress(struct pd_alphabet *alphabet, const uint8_t *flat)
{
    size_t page, block, used = 0;
    uint8_t(*blocks)[BLOCK] = malloc((PD_UNICODE_END / BLOCK) * sizeof *blocks);

    if (!blocks)
        return PD_NO_MEMORY;
    for (page = 0; page < PD_UNICODE_END / BLOCK; page++) {
        for (block = 0; block < used; block++)
            if (memcmp(blocks[block], flat + page * BLOCK, BLOCK) == 0)
                break;
        if (block == used)
            memcpy(blocks[used++], flat + page * BLOCK, BLOCK);
        alphabet->block_of[page] = (uint16_t)block;
    }
    alphabet->blocks = realloc(blocks, used * sizeof *blocks);
    if (!alphabet->blocks)
        alphabet->blocks = blocks; /* shrinking failed: keep the larger one */
    alphabet->block_count = used;
    return PD_OK;
}

int pd_alphabet_init(struct pd_alphabet *alphabet, const struct pd_char_set *sets, size_t count,
                     struct pd_symbol_set *members, struct pd_error *error)
{
    struct signature *known = calloc(SYMBOLS, sizeof *known);
    uint8_t *flat = malloc(PD_UNICODE_END);
    uint32_t *cuts = NULL;
    size_t cut_count = collect_cuts(sets, count, &cuts), i;
    unsigned symbol;
    int status = PD_NO_MEMORY;

    memset(alphabet, 0, sizeof *alphabet);
    if (!known || !flat || cut_count == 0) {
        pd_fail(error, PD_NO_MEMORY, "no memory for the pre-tokeniser's alphabet");
        goto done;
    }
    status = assign_symbols(sets, count, cuts, cut_count, known, flat, error);
    if (status != PD_OK)
        goto done;
    memset(members, 0, count * sizeof *members);
    for (i = 0; i < count; i++)
        for (symbol = 0; symbol < SYMBOLS; symbol++)
            if (known[symbol].bits[i / 64] >> (i % 64) & 1)
                members[i].bits[symbol / 64] |= UINT64_C(1) << (symbol % 64);
    status = compress(alphabet, flat);
    if (status != PD_OK)
        pd_fail(error, status, "no memory for the pre-tokeniser's alphabet");
done:
    free(cuts);
    free(flat);
    free(known);
    return status;
}

void pd_alphabet_free(struct pd_alphabet *alphabet)
{
    free(alphabet->blocks);
    alphabet->blocks = NULL;
}
