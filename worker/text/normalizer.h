/* Unicode normalisation form C, as the tokenizer's tables know it (unicode.h). */
#ifndef PD_NORMALIZER_H
#define PD_NORMALIZER_H

#include "worker/base/error.h"
#include "worker/text/unicode.h"

struct pd_normalizer;

int pd_normalizer_create(struct pd_normalizer **normalizer, struct pd_error *error);
void pd_normalizer_destroy(struct pd_normalizer *normalizer);

/* Memory that one thread reuses from text to text; zero it before the first use. */
struct pd_normalized {
    char *bytes;
    size_t length, capacity;
    int32_t *code_points;
    size_t code_point_capacity;
};

void pd_normalized_free(struct pd_normalized *normalized);

/* Puts the normal form of text[0..length), well-formed UTF-8, into *out. False in *changed, and
 * nothing in *out, if the text is its own normal form as far as a quick look shows. Linear in the
 * length. */
int pd_normalize(const struct pd_normalizer *normalizer, const char *text, size_t length,
                 struct pd_normalized *out, bool *changed);

#endif
