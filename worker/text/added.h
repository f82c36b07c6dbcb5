/* Added tokens: the ones that are found in the text as a whole, before anything else is done with
 * it. */
#ifndef PD_ADDED_H
#define PD_ADDED_H

#include "worker/text/vocabulary.h"

struct pd_added {
    int32_t *ids; /* ascending by their bytes */
    size_t count;
    bool begins[256]; /* first bytes that occur */
};

/* Collects the vocabulary's added and special tokens. The vocabulary is borrowed by every later
 * call. Two of equal bytes are PD_INVALID. */
int pd_added_init(struct pd_added *added, const struct pd_vocabulary *vocabulary,
                  struct pd_error *error);
void pd_added_free(struct pd_added *added);

/* The leftmost token in text[*at..end), and of those that begin there the longest. Returns its id
 * and sets *at to its first byte; -1 if there is none. */
int32_t pd_added_next(const struct pd_added *added, const struct pd_vocabulary *vocabulary,
                      const char *text, size_t *at, size_t end);

/* The token of exactly these bytes, or -1. */
int32_t pd_added_find(const struct pd_added *added, const struct pd_vocabulary *vocabulary,
                      const char *bytes, size_t length);

#endif
