/* A piece is a linked list of symbols. Every neighbouring pair that a merge fits stands in a heap,
 * as rank and position in one word, so that the smallest word is the next merge:
 *
 *     symbols   [h] ⇄ [e] ⇄ [l] ⇄ [l] ⇄ [o]        heap   (rank of "l l", 2) (rank of "h e", 0) ...
 *                            └─ ll ─┘               after merging: pairs (e, ll) and (ll, o) join
 * the heap
 *
 * A pair that a merge has changed is left in the heap and recognised when it comes up: the symbol
 * at its position remembers the rank of the pair that it is the left half of now.
 *
 * Most pieces are common words, and of these most are one token. Whether a token comes out whole when
 * its own bytes are encoded is remembered when a piece is such a token for the first time; from then
 * on the piece costs one lookup. To find it for all tokens would take half of the time in which a
 * tokenizer is made, and a worker's start waits for that. */
#include "worker/text/bpe.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "worker/text/hash.h"
#include "worker/text/unicode.h"

enum { WORK_MIN = 256 };
#define NONE UINT32_MAX

struct pd_bpe_symbol {
    int32_t id;
    uint32_t rank; /* of the merge of this symbol and the next, NONE: there is none */
    uint32_t previous, next;
};

/* A merge in the hash table; rank NONE: a free slot. */
struct merge {
    int32_t left, right;
    uint32_t rank;
};

struct pd_bpe {
    const struct pd_vocabulary *vocabulary;
    struct merge *slots;
    size_t slot_mask;
    uint64_t seed;
    int32_t (*merges)[3]; /* left, right, made; by rank */
    size_t merge_count;
    atomic_uchar *whole; /* by id: what becomes of a piece of exactly these bytes. Any thread; it is
                          * the same whoever finds it, so the order of writes does not matter */
};

enum whole { UNKNOWN, WHOLE, IN_PARTS };

/* ---- merges
 * --------------------------------------------------------------------------------------- */

static inline struct merge *find_slot(const struct pd_bpe *bpe, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t at = pd_hash_u64(bpe->seed, pair) & bpe->slot_mask;
    struct merge *slot = &bpe->slots[at];

    while (slot->rank != NONE && (slot->left != left || slot->right != right)) {
        at = (at + 1) & bpe->slot_mask;
        slot = &bpe->slots[at];
    }
    return slot;
}

static int merge_fault(size_t rank, const struct pd_string *merge, const char *what,
                       struct pd_error *error)
{
    return pd_fail(error, PD_INVALID, "merge %zu, \"%.*s\": %s", rank,
                   (int)(merge->length < 100 ? merge->length : 100), merge->bytes, what);
}

/* Looks "left right" up: the ids of both and of what they make. `scratch` has the merge's length.
 */
static int read_merge(const struct pd_vocabulary *vocabulary, const struct pd_string *merge,
                      size_t rank, char *scratch, int32_t ids[3], struct pd_error *error)
{
    const char *space = memchr(merge->bytes, ' ', merge->length);
    size_t left, right, left_spelt;

    if (!space)
        return merge_fault(rank, merge, "no space between two tokens", error);
    left_spelt = (size_t)(space - merge->bytes);
    left = pd_vocabulary_unspell(vocabulary, merge->bytes, left_spelt, scratch);
    if (left == SIZE_MAX)
        return merge_fault(rank, merge, "not in the alphabet of bytes", error);
    right = pd_vocabulary_unspell(vocabulary, space + 1, merge->length - left_spelt - 1,
                                  scratch + left);
    if (right == SIZE_MAX)
        return merge_fault(rank, merge, "not in the alphabet of bytes", error);
    ids[0] = pd_vocabulary_find(vocabulary, scratch, left);
    ids[1] = pd_vocabulary_find(vocabulary, scratch + left, right);
    ids[2] = pd_vocabulary_find(vocabulary, scratch, left + right);
    if (ids[0] < 0 || ids[1] < 0 || ids[2] < 0)
        return merge_fault(rank, merge, "a token of it is not in the vocabulary", error);
    return PD_OK;
}

static int read_merges(struct pd_bpe *bpe, const struct pd_string *merges, struct pd_error *error)
{
    char *scratch;
    size_t i, longest = 1;
    int status = PD_OK;

    for (i = 0; i < bpe->merge_count; i++)
        if (merges[i].length > longest)
            longest = merges[i].length;
    if (longest > 2 * PD_TOKEN_BYTES_MAX + 1)
        return pd_fail(error, PD_INVALID, "a merge has %zu bytes, at most %d are supported",
                       longest, 2 * PD_TOKEN_BYTES_MAX + 1);
    scratch = malloc(longest);
    if (!scratch)
        return pd_fail(error, PD_NO_MEMORY, "no memory for merges");
    for (i = 0; i < bpe->merge_count && status == PD_OK; i++) {
        int32_t *ids = bpe->merges[i];

        status = read_merge(bpe->vocabulary, &merges[i], i, scratch, ids, error);
        if (status == PD_OK) /* of two merges of one pair the later counts, as in Hugging Face's */
            *find_slot(bpe, ids[0], ids[1]) = (struct merge){ids[0], ids[1], (uint32_t)i};
    }
    free(scratch);
    return status;
}

/* ---- one piece
 * ------------------------------------------------------------------------------------ */

struct heap {
    uint64_t *entries;
    size_t count;
};

static void heap_sink(struct heap *heap, size_t at, uint64_t entry)
{
    for (;;) {
        size_t child = 2 * at + 1;

        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && heap->entries[child + 1] < heap->entries[child])
            child++;
        if (heap->entries[child] >= entry)
            break;
        heap->entries[at] = heap->entries[child];
        at = child;
    }
    heap->entries[at] = entry;
}

static void heap_push(struct heap *heap, uint64_t entry)
{
    size_t at = heap->count++;

    while (at > 0 && heap->entries[(at - 1) / 2] > entry) {
        heap->entries[at] = heap->entries[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->entries[at] = entry;
}

static uint64_t heap_pop(struct heap *heap)
{
    uint64_t least = heap->entries[0];

    if (--heap->count > 0)
        heap_sink(heap, 0, heap->entries[heap->count]);
    return least;
}

/* Ranks the pair that begins at `at` and puts it into the heap if it can be merged. */
static void rank_pair(const struct pd_bpe *bpe, struct pd_bpe_symbol *symbols, uint32_t at,
                      struct heap *heap)
{
    struct pd_bpe_symbol *symbol = &symbols[at];

    symbol->rank = NONE;
    if (symbol->next != NONE)
        symbol->rank = find_slot(bpe, symbol->id, symbols[symbol->next].id)->rank;
    if (symbol->rank != NONE)
        heap_push(heap, (uint64_t)symbol->rank << 32 | at);
}

static int reserve(struct pd_bpe_work *work, size_t length)
{
    size_t capacity = work->capacity ? work->capacity : WORK_MIN;

    if (length <= work->capacity)
        return PD_OK;
    while (capacity < length)
        capacity *= 2;
    pd_bpe_work_free(work);
    work->symbols = malloc(capacity * sizeof *work->symbols);
    work->heap = malloc(2 * capacity * sizeof *work->heap);
    if (!work->symbols || !work->heap) {
        pd_bpe_work_free(work);
        return PD_NO_MEMORY;
    }
    work->capacity = capacity;
    return PD_OK;
}

void pd_bpe_work_free(struct pd_bpe_work *work)
{
    free(work->symbols);
    free(work->heap);
    memset(work, 0, sizeof *work);
}

/* Puts the tokens of these bytes behind `count` symbols; returns how many there are then. */
static uint32_t list_bytes(const struct pd_bpe *bpe, struct pd_bpe_symbol *symbols, uint32_t count,
                           const char *piece, size_t length)
{
    size_t i;

    for (i = 0; i < length; i++) {
        int32_t id = bpe->vocabulary->byte_ids[(unsigned char)piece[i]];

        if (id < 0)
            continue;
        symbols[count] = (struct pd_bpe_symbol){id, NONE, count - 1, count + 1};
        count++;
    }
    return count;
}

/* The same of each character's token, or of its bytes'. */
static uint32_t list_characters(const struct pd_bpe *bpe, struct pd_bpe_symbol *symbols,
                                const char *piece, size_t length)
{
    uint32_t count = 0;
    size_t at = 0, step;

    for (; at < length; at += step) {
        int32_t id;

        step = pd_utf8_length(piece[at]);
        if (step > length - at)
            step = length - at;
        id = pd_vocabulary_find(bpe->vocabulary, piece + at, step);
        if (id < 0) {
            count = list_bytes(bpe, symbols, count, piece + at, step);
            continue;
        }
        symbols[count] = (struct pd_bpe_symbol){id, NONE, count - 1, count + 1};
        count++;
    }
    return count;
}

/* Makes the list of what the piece is spelt in; returns the number of symbols. */
static uint32_t spell(const struct pd_bpe *bpe, struct pd_bpe_symbol *symbols, const char *piece,
                      size_t length)
{
    uint32_t count = bpe->vocabulary->marks ? list_characters(bpe, symbols, piece, length)
                                            : list_bytes(bpe, symbols, 0, piece, length);

    if (count > 0)
        symbols[count - 1].next = NONE; /* symbols[0].previous is NONE already: 0 - 1 */
    return count;
}

/* Merges until nothing can be merged. Symbol 0 is never merged away: the list still begins there.
 */
static void merge_all(const struct pd_bpe *bpe, struct pd_bpe_work *work, uint32_t count)
{
    struct pd_bpe_symbol *symbols = work->symbols;
    struct heap heap = {work->heap, 0};
    uint32_t i;

    for (i = 0; i + 1 < count; i++)
        rank_pair(bpe, symbols, i, &heap);
    while (heap.count > 0) {
        uint64_t entry = heap_pop(&heap);
        uint32_t at = (uint32_t)entry, right;

        if (symbols[at].rank != entry >> 32)
            continue;
        right = symbols[at].next;
        symbols[at].id = bpe->merges[symbols[at].rank][2];
        symbols[at].next = symbols[right].next;
        symbols[right].rank = NONE;
        if (symbols[at].next != NONE)
            symbols[symbols[at].next].previous = at;
        rank_pair(bpe, symbols, at, &heap);
        if (symbols[at].previous != NONE)
            rank_pair(bpe, symbols, symbols[at].previous, &heap);
    }
}

int pd_tokens_append(struct pd_tokens *tokens, int32_t id, size_t limit)
{
    if (tokens->count >= limit)
        return PD_FULL;
    if (tokens->count == tokens->capacity) {
        size_t capacity = tokens->capacity ? 2 * tokens->capacity : 64;
        int32_t *ids = realloc(tokens->ids, capacity * sizeof *ids);

        if (!ids)
            return PD_NO_MEMORY;
        tokens->ids = ids;
        tokens->capacity = capacity;
    }
    tokens->ids[tokens->count++] = id;
    return PD_OK;
}

/* Whether so many bytes give more tokens than there is room for, however well they merge. */
static bool cannot_fit(const struct pd_bpe *bpe, const char *piece, size_t length, size_t room)
{
    size_t longest = bpe->vocabulary->longest, kept = 0, i;

    if (longest == 0 || length / longest <= room)
        return false;
    for (i = 0; i < length; i++)
        kept += bpe->vocabulary->byte_ids[(unsigned char)piece[i]] >= 0;
    return kept / longest > room;
}

static bool is_one(const struct pd_bpe_symbol *symbols, uint32_t count, int32_t id)
{
    return count > 0 && symbols[0].next == NONE && symbols[0].id == id;
}

int pd_bpe_encode(const struct pd_bpe *bpe, struct pd_bpe_work *work, const char *piece,
                  size_t length, size_t limit, struct pd_tokens *out)
{
    int32_t id = pd_vocabulary_find(bpe->vocabulary, piece, length);
    int whole = id < 0 ? IN_PARTS : atomic_load_explicit(&bpe->whole[id], memory_order_relaxed);
    uint32_t count, at;
    int status;

    if (whole == WHOLE)
        return pd_tokens_append(out, id, limit);
    if (out->count > limit || cannot_fit(bpe, piece, length, limit - out->count))
        return PD_FULL;
    status = reserve(work, length);
    if (status != PD_OK)
        return status;
    count = spell(bpe, work->symbols, piece, length);
    merge_all(bpe, work, count);
    if (whole == UNKNOWN)
        atomic_store_explicit(&bpe->whole[id], is_one(work->symbols, count, id) ? WHOLE : IN_PARTS,
                              memory_order_relaxed);
    for (at = count > 0 ? 0 : NONE; at != NONE && status == PD_OK; at = work->symbols[at].next)
        status = pd_tokens_append(out, work->symbols[at].id, limit);
    return status;
}

/* ---- making
 * --------------------------------------------------------------------------------------- */

int pd_bpe_create(const struct pd_vocabulary *vocabulary, const struct pd_string *merges,
                  size_t merge_count, bool ignore_merges, struct pd_bpe **bpe,
                  struct pd_error *error)
{
    struct pd_bpe *made;
    size_t slots = pd_hash_slots(merge_count), i;
    int status;

    if (merge_count > PD_MERGES_MAX)
        return pd_fail(error, PD_INVALID, "the tokenizer has %zu merges, at most %d are supported",
                       merge_count, PD_MERGES_MAX);
    made = calloc(1, sizeof *made);
    if (!made)
        return pd_fail(error, PD_NO_MEMORY, "no memory for merges");
    made->vocabulary = vocabulary;
    made->slot_mask = slots - 1;
    made->seed = pd_hash_seed();
    made->merge_count = merge_count;
    made->slots = malloc(slots * sizeof *made->slots);
    made->merges = malloc((merge_count + 1) * sizeof *made->merges);
    made->whole = malloc(vocabulary->count * sizeof *made->whole);
    if (!made->slots || !made->merges || !made->whole) {
        pd_bpe_destroy(made);
        return pd_fail(error, PD_NO_MEMORY, "no memory for %zu merges", merge_count);
    }
    for (i = 0; i < slots; i++)
        made->slots[i] = (struct merge){-1, -1, NONE};
    for (i = 0; i < vocabulary->count; i++)
        atomic_init(&made->whole[i], ignore_merges ? WHOLE : UNKNOWN);
    status = read_merges(made, merges, error);
    if (status != PD_OK) {
        pd_bpe_destroy(made);
        return status;
    }
    *bpe = made;
    return PD_OK;
}

void pd_bpe_destroy(struct pd_bpe *bpe)
{
    if (!bpe)
        return;
    free(bpe->slots);
    free(bpe->merges);
    free(bpe->whole);
    free(bpe);
}
