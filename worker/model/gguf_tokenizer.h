/* The tokenizer in GGUF metadata, in the terms of worker/text/tokenizer.h. */
#ifndef PD_GGUF_TOKENIZER_H
#define PD_GGUF_TOKENIZER_H

#include "worker/model/gguf.h"
#include "worker/text/tokenizer.h"

/* Fills `spec` from tokenizer.ggml.*; every id is below the number of tokens. The arrays are freed
 * with pd_gguf_tokenizer_free; strings are borrowed from the file. */
int pd_gguf_tokenizer_read(const struct pd_gguf *gguf, struct pd_tokenizer_spec *spec,
                           struct pd_error *error);
void pd_gguf_tokenizer_free(struct pd_tokenizer_spec *spec);

#endif
