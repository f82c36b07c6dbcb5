/* What one family of models has that others have not. All of them are one graph with switches; to
 * add a family of that kind is to add a row to the table in family.c, and nothing else. */
#ifndef PD_FAMILY_H
#define PD_FAMILY_H

#include <stddef.h>

#include "worker/model/model.h"

/* Who decides whether config.json's "sliding_window" counts. */
enum pd_family_window {
    PD_WINDOW_NEVER,
    PD_WINDOW_ALWAYS,
    PD_WINDOW_BY_SWITCH, /* "use_sliding_window" */
};

struct pd_family {
    const char *name;       /* as GGUF's general.architecture has it */
    const char *class_name; /* as config.json's "architectures" has it */
    bool qkv_bias, qk_norm;
    enum pd_rope_style gguf_rope; /* GGUF's llama has Q and K permuted */
    enum pd_family_window window;
};

enum pd_family_spelling { PD_FAMILY_GGUF, PD_FAMILY_CLASS };

/* The family of that name, of which `length` bytes are given; NULL if there is none. */
const struct pd_family *pd_family_find(enum pd_family_spelling spelling, const char *name,
                                       size_t length);

enum { PD_FAMILY_LIST = 512 };

/* "llama, qwen2, qwen3": every name that pd_family_find knows, once. Returns `text`. */
const char *pd_family_list(enum pd_family_spelling spelling, char text[PD_FAMILY_LIST]);

/* Writes what the family decides into the model's shape. */
void pd_family_apply(const struct pd_family *family, struct pd_model_config *config);

#endif
