/* SentencePiece's file, tokenizer.model: a protobuf message ModelProto.
 *
 *     1 piece    1 text  2 score  3 type      once for each id
 *     2 trainer  3 model_type  24 treat_whitespace_as_suffix  35 byte_fallback  41 bos_id  42 eos_id
 *     3 normalizer  1 name  2 precompiled_charsmap  3 add_dummy_prefix  4 remove_extra_whitespaces  5 escape_whitespaces
 *
 * It is read into the tokenizer.json that `transformers` makes of it, so that a model's directory with either, or with both, has one
 * tokenizer. What that has no words for is refused by name. */
#ifndef PD_SENTENCEPIECE_H
#define PD_SENTENCEPIECE_H

#include "worker/text/tokenizer.h"

/* The kind of a token by the number of its type, which GGUF has the same: 1 normal, 2 unknown, 3 control, 4 user-defined,
 * 5 unused, 6 a byte. False: there is no such type. */
bool pd_sentencepiece_kind(int64_t type, uint8_t *kind);

#endif
