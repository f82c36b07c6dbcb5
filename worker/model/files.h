/* What pd_model_files_open found: the inside of `struct pd_model_files`, for this room only. */
#ifndef PD_MODEL_FILES_H
#define PD_MODEL_FILES_H

#include "worker/model/config.h"
#include "worker/model/gguf.h"
#include "worker/model/model.h"
#include "worker/model/safetensors.h"
#include "worker/model/weights.h"

struct pd_model_files {
    char source[PD_FILE_NAME]; /* the path as given, for messages */
    struct pd_shards mappings; /* the GGUF file, or the safetensors of a directory */
    struct pd_gguf *gguf;      /* NULL for a directory */
    struct pd_tensor_table table;
    struct pd_model_config config;
    struct pd_rope rope;
    struct pd_model_tensors tensors;
    float inverse_frequency[PD_HEAD_DIM_MAX / 2];
    struct pd_tokenizer *tokenizer;
    struct pd_chat_template *chat_template;
    uint8_t template_digest[PD_DIGEST]; /* of the source; of nothing where there is none */
};

/* The two formats; `files` is zeroed but for `source`, and is closed by the caller on failure. */
int pd_files_open_gguf(struct pd_model_files *files, const char *path, struct pd_error *error);
int pd_files_open_directory(struct pd_model_files *files, const char *path, struct pd_error *error);

/* config.json alone: weights out of `seed`. */
int pd_files_make(struct pd_model_files *files, const char *directory, uint64_t seed, int threads,
                  struct pd_error *error);

/* The same without values. */
int pd_files_plan(struct pd_model_files *files, const char *directory, struct pd_error *error);

/* Compiles the template, whose source is in `file`. */
int pd_files_set_template(struct pd_model_files *files, const char *file, const char *source,
                          size_t length, struct pd_error *error);

#endif
