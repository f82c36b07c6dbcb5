#include "worker/model/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "worker/model/fingerprint.h"
#include "worker/model/gguf_tokenizer.h"

enum { TEMPLATE_MAX = 1 << 20 };

/* ---- a GGUF file -------------------------------------------------------------------------------
 */

static int gguf_tokenizer(struct pd_model_files *files, struct pd_error *error)
{
    struct pd_tokenizer_spec spec;
    int status = pd_gguf_tokenizer_read(files->gguf, &spec, error);

    if (status != PD_OK)
        return status;
    status = pd_tokenizer_create(&spec, &files->tokenizer, error);
    pd_gguf_tokenizer_free(&spec);
    return status == PD_OK ? status : pd_fail_in(error, "%s: tokenizer", files->source);
}

static int gguf_template(struct pd_model_files *files, struct pd_error *error)
{
    struct pd_string source;
    int status = pd_gguf_string(files->gguf, "tokenizer.chat_template", &source, error);

    if (status == PD_NOT_FOUND)
        return PD_OK;
    return status == PD_OK
               ? pd_files_set_template(files, files->source, source.bytes, source.length, error)
               : status;
}

int pd_files_open_gguf(struct pd_model_files *files, const char *path, struct pd_error *error)
{
    struct pd_mapping *file = calloc(1, sizeof(*file));
    int status;

    files->mappings.files = file;
    if (!file)
        return pd_fail(error, PD_NO_MEMORY, "%s: no memory", files->source);
    if ((status = pd_mapping_open(file, path, 0, error)) != PD_OK)
        return status;
    files->mappings.count = 1;
    if ((status = pd_gguf_parse(file->name, file->bytes, file->size, &files->table, &files->gguf,
                                error)) != PD_OK ||
        (status = pd_tensor_table_seal(&files->table, error)) != PD_OK ||
        (status = pd_config_from_gguf(files->gguf, &files->table, &files->config, &files->rope,
                                      error)) != PD_OK ||
        (status = pd_model_tensors_bind(&files->table, PD_NAMING_GGUF, &files->config,
                                        files->source, &files->tensors, error)) != PD_OK ||
        (status = gguf_tokenizer(files, error)) != PD_OK)
        return status;
    return gguf_template(files, error);
}

/* ---- what both formats share -------------------------------------------------------------------
 */

int pd_files_set_template(struct pd_model_files *files, const char *file, const char *source,
                          size_t length, struct pd_error *error)
{
    int status;

    if (length > TEMPLATE_MAX)
        return pd_fail(error, PD_INVALID, "%s: chat template: %zu bytes, more than %d", file,
                       length, TEMPLATE_MAX);
    status = pd_chat_template_compile(source, length, &files->chat_template, error);
    if (status != PD_OK)
        return pd_fail_in(error, "%s: chat template", file);
    return pd_sha256(source, length, files->template_digest, error);
}

/* What can only be checked with everything at hand. */
static int finish(struct pd_model_files *files, struct pd_error *error)
{
    struct pd_model_config *config = &files->config;
    const struct pd_file_tensor *factors = files->tensors.rope_factors;
    float values[PD_HEAD_DIM_MAX / 2];
    size_t tokens = pd_tokenizer_vocabulary(files->tokenizer);

    if (tokens > (size_t)config->vocabulary)
        return pd_fail(error, PD_INVALID, "%s: the tokenizer has %zu tokens, the model only %d",
                       files->source, tokens, config->vocabulary);
    if (factors)
        memcpy(values, factors->data, factors->bytes);
    pd_rope_frequencies(config, &files->rope, factors ? values : NULL, files->inverse_frequency);
    for (size_t i = 0; i < files->table.count; i++)
        config->weight_bytes += files->table.tensors[i].bytes;
    return pd_config_add_eos(config, pd_tokenizer_eos(files->tokenizer), files->source, error);
}

static int open_path(struct pd_model_files *files, const char *path, struct pd_error *error)
{
    struct stat st;
    bool directory = stat(path, &st) == 0 && S_ISDIR(st.st_mode);

    return directory ? pd_files_open_directory(files, path, error)
                     : pd_files_open_gguf(files, path, error);
}

static struct pd_model_files *begin(const char *path, struct pd_error *error)
{
    struct pd_model_files *files = calloc(1, sizeof(*files));

    if (!files) {
        pd_fail(error, PD_NO_MEMORY, "%s: no memory", path);
        return NULL;
    }
    snprintf(files->source, sizeof(files->source), "%s", path);
    return files;
}

/* With the status of opening, gives the caller what was opened, or nothing. */
static int end(struct pd_model_files *files, int status, struct pd_model_files **out,
               struct pd_error *error)
{
    if (status == PD_OK && !files->chat_template)
        status = pd_sha256("", 0, files->template_digest, error);
    if (status == PD_OK)
        status = finish(files, error);
    if (status == PD_OK)
        *out = files;
    else
        pd_model_files_close(files);
    return status;
}

int pd_model_files_open(const char *path, struct pd_model_files **files, struct pd_error *error)
{
    struct pd_model_files *result = begin(path, error);

    *files = NULL;
    return result ? end(result, open_path(result, path, error), files, error) : PD_NO_MEMORY;
}

int pd_model_files_make(const char *directory, uint64_t seed, int threads,
                        struct pd_model_files **files, struct pd_error *error)
{
    struct pd_model_files *result = begin(directory, error);

    *files = NULL;
    return result
               ? end(result, pd_files_make(result, directory, seed, threads, error), files, error)
               : PD_NO_MEMORY;
}

int pd_model_files_plan(const char *directory, struct pd_model_files **files,
                        struct pd_error *error)
{
    struct pd_model_files *result = begin(directory, error);

    *files = NULL;
    return result ? end(result, pd_files_plan(result, directory, error), files, error)
                  : PD_NO_MEMORY;
}

void pd_model_files_close(struct pd_model_files *files)
{
    if (!files)
        return;
    pd_chat_template_destroy(files->chat_template);
    pd_tokenizer_destroy(files->tokenizer);
    pd_model_tensors_free(&files->tensors);
    pd_tensor_table_free(&files->table);
    pd_gguf_destroy(files->gguf);
    pd_shards_close(&files->mappings);
    free(files);
}

const struct pd_model_config *pd_model_files_config(const struct pd_model_files *files)
{
    return &files->config;
}

const struct pd_tokenizer *pd_model_files_tokenizer(const struct pd_model_files *files)
{
    return files->tokenizer;
}

const struct pd_chat_template *pd_model_files_template(const struct pd_model_files *files)
{
    return files->chat_template;
}
