/* A sorted list is a trie that needs no building: the tokens that begin with the bytes read so far
 * are a range of it, and each further byte narrows the range by binary search.
 *
 *     text  < | i m        [<think> <|end|> <|im_end|> <|im_start|>]
 *           ↑               └──────────────── "<" ────────────────┘
 *             ↑                      └──────────── "<|" ──────────┘ ... */
#include "worker/text/added.h"

#include <stdlib.h>
#include <string.h>

/* Bounds one look: a token that is tried at every byte of a prompt must not be long. */
enum { ADDED_BYTES_MAX = 1024 };

static int compare_bytes(struct pd_string a, struct pd_string b)
{
    int order = memcmp(a.bytes, b.bytes, a.length < b.length ? a.length : b.length);

    return order ? order : (a.length > b.length) - (a.length < b.length);
}

static int compare_ids(const void *a, const void *b, void *vocabulary)
{
    return compare_bytes(pd_vocabulary_bytes(vocabulary, (size_t) * (const int32_t *)a),
                         pd_vocabulary_bytes(vocabulary, (size_t) * (const int32_t *)b));
}

static bool is_added(const struct pd_vocabulary *vocabulary, size_t id)
{
    return vocabulary->kinds[id] == PD_TOKEN_ADDED || vocabulary->kinds[id] == PD_TOKEN_SPECIAL;
}

int pd_added_init(struct pd_added *added, const struct pd_vocabulary *vocabulary,
                  struct pd_error *error)
{
    size_t i, count = 0;

    memset(added, 0, sizeof *added);
    for (i = 0; i < vocabulary->count; i++)
        count += is_added(vocabulary, i);
    added->ids = malloc((count + 1) * sizeof *added->ids);
    if (!added->ids)
        return pd_fail(error, PD_NO_MEMORY, "no memory for added tokens");
    for (i = 0; i < vocabulary->count; i++) {
        struct pd_string bytes = pd_vocabulary_bytes(vocabulary, i);

        if (!is_added(vocabulary, i))
            continue;
        if (bytes.length > ADDED_BYTES_MAX) {
            pd_added_free(added);
            return pd_fail(error, PD_UNSUPPORTED,
                           "added token %zu has %zu bytes, at most %d are supported", i,
                           bytes.length, ADDED_BYTES_MAX);
        }
        added->begins[(unsigned char)bytes.bytes[0]] = true;
        added->ids[added->count++] = (int32_t)i;
    }
    qsort_r(added->ids, added->count, sizeof *added->ids, compare_ids, (void *)vocabulary);
    for (i = 1; i < added->count; i++)
        if (compare_ids(&added->ids[i - 1], &added->ids[i], (void *)vocabulary) == 0) {
            pd_fail(error, PD_INVALID, "added tokens %d and %d are equal", (int)added->ids[i - 1],
                    (int)added->ids[i]);
            pd_added_free(added);
            return PD_INVALID;
        }
    return PD_OK;
}

void pd_added_free(struct pd_added *added)
{
    free(added->ids);
    memset(added, 0, sizeof *added);
}

/* Within ids[low..high), all of which share their first `depth` bytes: the first that is longer and
 * whose next byte is not below `byte`. */
static size_t lower_bound(const struct pd_added *added, const struct pd_vocabulary *vocabulary,
                          size_t low, size_t high, size_t depth, unsigned byte)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        struct pd_string token = pd_vocabulary_bytes(vocabulary, (size_t)added->ids[middle]);

        if (token.length > depth && (unsigned char)token.bytes[depth] >= byte)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The longest token that text[0..length) begins with, or -1. */
static int32_t longest_prefix(const struct pd_added *added, const struct pd_vocabulary *vocabulary,
                              const char *text, size_t length)
{
    size_t low = 0, high = added->count, depth;
    int32_t found = -1;

    for (depth = 0; depth < length; depth++) {
        unsigned byte = (unsigned char)text[depth];

        low = lower_bound(added, vocabulary, low, high, depth, byte);
        high = lower_bound(added, vocabulary, low, high, depth, byte + 1);
        if (low == high)
            break;
        /* The shortest of the range sorts first. */
        if (pd_vocabulary_bytes(vocabulary, (size_t)added->ids[low]).length == depth + 1)
            found = added->ids[low];
    }
    return found;
}

int32_t pd_added_next(const struct pd_added *added, const struct pd_vocabulary *vocabulary,
                      const char *text, size_t *at, size_t end)
{
    size_t i;

    for (i = *at; i < end; i++) {
        int32_t id;

        if (!added->begins[(unsigned char)text[i]])
            continue;
        id = longest_prefix(added, vocabulary, text + i, end - i);
        if (id >= 0) {
            *at = i;
            return id;
        }
    }
    return -1;
}

int32_t pd_added_find(const struct pd_added *added, const struct pd_vocabulary *vocabulary,
                      const char *bytes, size_t length)
{
    int32_t id = longest_prefix(added, vocabulary, bytes, length);

    if (id < 0 || pd_vocabulary_bytes(vocabulary, (size_t)id).length != length)
        return -1;
    return id;
}
