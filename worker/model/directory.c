/* A directory as Hugging Face lays it out:
 *
 *   config.json  [generation_config.json]
 *   model.safetensors, or model.safetensors.index.json and its shards
 *   tokenizer.json, or tokenizer.model  [tokenizer_config.json]  [chat_template.jinja]  */
#include "worker/model/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/model/dummy.h"
#include "worker/model/json.h"

enum { CONFIG_MAX = 16 << 20, TOKENIZER_MAX = 256 << 20 };

static int map_file(const char *directory, const char *name, size_t limit,
                    struct pd_mapping *mapping, struct pd_error *error)
{
    char path[4096];
    int length = snprintf(path, sizeof(path), "%s/%s", directory, name);

    memset(mapping, 0, sizeof(*mapping));
    if (length < 0 || (size_t)length >= sizeof(path))
        return pd_fail(error, PD_INVALID, "%.200s: the path is too long", directory);
    return pd_mapping_open(mapping, path, limit, error);
}

/* As map_file, but a file that is not there maps as nothing. */
static int map_optional(const char *directory, const char *name, size_t limit,
                        struct pd_mapping *mapping, struct pd_error *error)
{
    int status = map_file(directory, name, limit, mapping, error);

    return status == PD_NOT_FOUND ? PD_OK : status;
}

/* The type that the weights were stored in, of those that are made here: BF16 where the file does not
 * say. */
static int read_type(const char *file, const json_t *root, enum pd_dtype *type,
                     struct pd_error *error)
{
    const char *name = "bfloat16";
    int status = pd_json_string(file, root, "torch_dtype", &name, error);

    if (status == PD_NOT_FOUND)
        status = pd_json_string(file, root, "dtype", &name, error);
    if (status != PD_OK && status != PD_NOT_FOUND)
        return status;
    *type = strcmp(name, "float32") == 0 ? PD_F32 : strcmp(name, "float16") == 0 ? PD_F16 : PD_BF16;
    return PD_OK;
}

static int read_config(struct pd_model_files *files, const char *directory, enum pd_dtype *type,
                       struct pd_error *error)
{
    struct pd_mapping file;
    json_t *root;
    int status = map_file(directory, "config.json", CONFIG_MAX, &file, error);

    if (status == PD_OK)
        status = pd_json_parse(file.name, file.bytes, file.size, &root, error);
    if (status == PD_OK) {
        status = pd_config_from_json(file.name, root, &files->table, &files->config, &files->rope,
                                     error);
        if (status == PD_OK)
            status = read_type(file.name, root, type, error);
        json_decref(root);
    }
    pd_mapping_close(&file);
    return status;
}

static int read_generation(struct pd_model_files *files, const char *directory,
                           struct pd_error *error)
{
    struct pd_mapping file;
    json_t *root;
    int status = map_optional(directory, "generation_config.json", CONFIG_MAX, &file, error);

    if (status != PD_OK || !file.bytes)
        return status;
    status = pd_json_parse(file.name, file.bytes, file.size, &root, error);
    if (status == PD_OK) {
        status = pd_config_read_generation(file.name, root, &files->config, error);
        json_decref(root);
    }
    pd_mapping_close(&file);
    return status;
}

/* "chat_template" is a string, or a list of named ones of which "default" is meant. NULL: none. */
static const char *template_in(const json_t *root)
{
    const json_t *value = json_object_get(root, "chat_template");

    if (json_is_string(value))
        return json_string_value(value);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *entry = json_array_get(value, i);
        const char *name = json_string_value(json_object_get(entry, "name"));

        if (name && strcmp(name, "default") == 0)
            return json_string_value(json_object_get(entry, "template"));
    }
    return NULL;
}

static int template_from_config(struct pd_model_files *files, const struct pd_mapping *config,
                                struct pd_error *error)
{
    const char *source;
    json_t *root;
    int status = pd_json_parse(config->name, config->bytes, config->size, &root, error);

    if (status != PD_OK)
        return status;
    source = template_in(root);
    if (source)
        status = pd_files_set_template(files, config->name, source, strlen(source), error);
    json_decref(root);
    return status;
}

/* A file of its own goes before the one in tokenizer_config.json. */
static int read_template(struct pd_model_files *files, const char *directory,
                         const struct pd_mapping *config, struct pd_error *error)
{
    struct pd_mapping file;
    int status = map_optional(directory, "chat_template.jinja", CONFIG_MAX, &file, error);

    if (status != PD_OK)
        return status;
    if (file.bytes)
        status =
            pd_files_set_template(files, file.name, (const char *)file.bytes, file.size, error);
    else if (config->bytes)
        status = template_from_config(files, config, error);
    pd_mapping_close(&file);
    return status;
}

static int tokenizer_from_json(struct pd_model_files *files, const struct pd_mapping *file,
                               const struct pd_mapping *config, struct pd_error *error)
{
    return pd_tokenizer_from_json((const char *)file->bytes, file->size,
                                  (const char *)config->bytes, config->size, &files->tokenizer,
                                  error);
}

static int tokenizer_from_sentencepiece(struct pd_model_files *files, const struct pd_mapping *file,
                                        const struct pd_mapping *config, struct pd_error *error)
{
    return pd_tokenizer_from_sentencepiece(file->bytes, file->size, (const char *)config->bytes,
                                           config->size, &files->tokenizer, error);
}

/* added_tokens.json says of each token its id and no more: it only repeats what a tokenizer.json, or
 * tokenizer_config.json, must say. */
static int check_added(const struct pd_model_files *files, const struct pd_mapping *file,
                       struct pd_error *error)
{
    const char *token;
    json_t *root, *id;
    int status = pd_json_parse(file->name, file->bytes, file->size, &root, error);

    if (status != PD_OK)
        return status;
    json_object_foreach(root, token, id)
    {
        if (pd_tokenizer_find(files->tokenizer, token, strlen(token)) != json_integer_value(id) ||
            !json_is_integer(id)) {
            status = pd_fail(error, PD_UNSUPPORTED,
                             "%s: token \"%.64s\" is not among those in tokenizer_config.json's "
                             "\"added_tokens_decoder\", and there is no tokenizer.json",
                             file->name, token);
            break;
        }
    }
    json_decref(root);
    return status;
}

/* What there is of tokenizer.json and tokenizer.model, in this order. */
static int read_tokenizer(struct pd_model_files *files, const char *directory,
                          const struct pd_mapping *config, struct pd_error *error)
{
    int (*read)(struct pd_model_files * files, const struct pd_mapping *file,
                const struct pd_mapping *config, struct pd_error *error) = tokenizer_from_json;
    struct pd_mapping file, added = {0};
    int status = map_file(directory, "tokenizer.json", TOKENIZER_MAX, &file, error);

    if (status == PD_NOT_FOUND) {
        read = tokenizer_from_sentencepiece;
        status = map_optional(directory, "tokenizer.model", TOKENIZER_MAX, &file, error);
        if (status == PD_OK && !file.bytes)
            status = pd_fail(error, PD_NOT_FOUND,
                             "%.200s: neither a tokenizer.json nor a tokenizer.model is there",
                             directory);
        if (status == PD_OK)
            status = map_optional(directory, "added_tokens.json", CONFIG_MAX, &added, error);
    }
    if (status == PD_OK && (status = read(files, &file, config, error)) != PD_OK)
        pd_fail_in(error, "%s", file.name);
    if (status == PD_OK && added.bytes)
        status = check_added(files, &added, error);
    pd_mapping_close(&added);
    pd_mapping_close(&file);
    return status;
}

static int read_text(struct pd_model_files *files, const char *directory, struct pd_error *error)
{
    struct pd_mapping config;
    int status = map_optional(directory, "tokenizer_config.json", CONFIG_MAX, &config, error);

    if (status == PD_OK)
        status = read_tokenizer(files, directory, &config, error);
    if (status == PD_OK)
        status = read_template(files, directory, &config, error);
    pd_mapping_close(&config);
    return status;
}

/* The last part of the path. */
static void set_name(struct pd_model_files *files, const char *path)
{
    const char *slash = strrchr(path, '/');

    slash = slash && slash[1] ? slash + 1 : path;
    pd_config_set_name(&files->config, slash, strlen(slash));
}

int pd_files_open_directory(struct pd_model_files *files, const char *path, struct pd_error *error)
{
    enum pd_dtype type;
    int status;

    if ((status = pd_safetensors_open(path, &files->mappings, &files->table, error)) != PD_OK ||
        (status = read_config(files, path, &type, error)) != PD_OK ||
        (status = read_generation(files, path, error)) != PD_OK ||
        (status = pd_model_tensors_bind(&files->table, PD_NAMING_HUGGING_FACE, &files->config,
                                        files->source, &files->tensors, error)) != PD_OK)
        return status;
    set_name(files, path);
    return read_text(files, path, error);
}

/* ---- no files but the configuration ------------------------------------------------------------- */

static int make_text(struct pd_model_files *files, const char *directory, struct pd_error *error)
{
    int status = read_text(files, directory, error);

    return status == PD_NOT_FOUND ? pd_dummy_tokenizer(&files->tokenizer, error) : status;
}

/* `threads` below 0: no values. */
static int make(struct pd_model_files *files, const char *directory, uint64_t seed, int threads,
                struct pd_error *error)
{
    enum pd_dtype type;
    int status = read_config(files, directory, &type, error);

    if (status != PD_OK)
        return status;
    files->mappings.files = calloc(1, sizeof(*files->mappings.files));
    if (!files->mappings.files)
        return pd_fail(error, PD_NO_MEMORY, "%s: no memory", files->source);
    files->mappings.count = 1;
    status = threads < 0 ? pd_dummy_shapes(&files->config, type, files->mappings.files,
                                           &files->table, error)
                         : pd_dummy_weights(&files->config, type, seed, threads,
                                            files->mappings.files, &files->table, error);
    if (status != PD_OK ||
        (status = pd_model_tensors_bind(&files->table, PD_NAMING_HUGGING_FACE, &files->config,
                                        files->source, &files->tensors, error)) != PD_OK)
        return status;
    set_name(files, directory);
    return make_text(files, directory, error);
}

int pd_files_make(struct pd_model_files *files, const char *directory, uint64_t seed, int threads,
                  struct pd_error *error)
{
    return make(files, directory, seed, threads > 0 ? threads : 0, error);
}

int pd_files_plan(struct pd_model_files *files, const char *directory, struct pd_error *error)
{
    return make(files, directory, 0, -1, error);
}
