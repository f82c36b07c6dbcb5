#include "worker/model/load.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "worker/base/log.h"
#include "worker/model/fingerprint.h"
#include "worker/model/parallel.h"
#include "worker/model/ranks.h"
#include "worker/model/weight_cache.h"

enum {
    SOURCES_MAX = 3,
    ALIGNMENT = 8,          /* what the device may expect of a source's address */
    READ_AHEAD = 256 << 20, /* bytes of weights that the kernel is asked for before they are due */
    WEIGHTS_PER_LAYER = 9,
    WEIGHTS_PER_MODEL = 3,
};

enum job_kind {
    JOB_HASH,   /* one piece of the fingerprint */
    JOB_MATRIX, /* sources as they lie, to be repacked */
    JOB_VECTOR, /* sources one behind the other as one row of f32: norms and biases */
};

/* What a rank takes of a tensor: a run of its rows (of a vector, of its values), and of their columns. */
struct part {
    const struct pd_file_tensor *tensor; /* NULL: none */
    int first, rows;
    int left, cols; /* of a matrix */
};

struct job {
    enum job_kind kind;
    const uint8_t *address; /* jobs run in this order */
    size_t piece;           /* HASH */
    struct pd_device *device;
    struct part sources[SOURCES_MAX];
    int count;
    enum pd_weight_layout layout;
    bool embedding;
    struct pd_weight **target;
    struct pd_weight_place place; /* in the cache; no memory: the device makes room */
    uint64_t bytes;               /* of the sources; 0 for HASH */
    uint64_t before;              /* bytes of all jobs before this one */
};

struct loader {
    const struct pd_model_options *options;
    struct pd_weight_tree *tree;
    struct pd_device
        *alone; /* the device, if it is no group: ranks keep what they cut to themselves */
    struct pd_weight_cache *cache; /* or NULL */
    struct job *jobs;
    size_t count, first; /* first: of those that run now */
    uint64_t total;
    atomic_size_t advised; /* jobs whose bytes the kernel was asked for */
    _Atomic uint64_t done;
};

/* ---- the list of jobs --------------------------------------------------------------------------
 */

static size_t part_bytes(const struct part *part)
{
    const struct pd_file_tensor *tensor = part->tensor;
    size_t values = (size_t)part->rows * (size_t)(tensor->rank == 2 ? part->cols : 1);

    return values / (size_t)pd_dtype_block(tensor->type) * (size_t)pd_dtype_bytes(tensor->type);
}

static struct job *add_weight(struct loader *loader, struct pd_device *device, enum job_kind kind,
                              const struct part parts[SOURCES_MAX], struct pd_weight **target)
{
    struct job *job = &loader->jobs[loader->count++];

    *job = (struct job){.kind = kind, .device = device, .layout = PD_WEIGHT_ROWS, .target = target};
    for (int i = 0; i < SOURCES_MAX && parts[i].tensor; i++) {
        job->sources[job->count++] = parts[i];
        job->bytes += part_bytes(&parts[i]);
        if (i == 0 || parts[i].tensor->data < job->address)
            job->address = parts[i].tensor->data;
    }
    return job;
}

static struct part rows_of(const struct pd_file_tensor *tensor, int first, int rows)
{
    return (struct part){tensor, first, rows, 0,
                         tensor && tensor->rank == 2 ? tensor->shape[1] : 0};
}

/* One tensor: of a vector, all; of a matrix, the columns left .. left + cols - 1. */
static void add_one(struct loader *loader, struct pd_device *device, enum job_kind kind,
                    const struct pd_file_tensor *tensor, int left, int cols,
                    struct pd_weight **target)
{
    const struct part parts[SOURCES_MAX] = {{tensor, 0, tensor->shape[0], left, cols}};

    add_weight(loader, device, kind, parts, target);
}

static void add_vector(struct loader *loader, struct pd_device *device,
                       const struct pd_file_tensor *tensor, struct pd_weight **target)
{
    add_one(loader, device, JOB_VECTOR, tensor, 0, 0, target);
}

static void add_layer(struct loader *loader, struct pd_device *device,
                      const struct pd_model_share *share, int head_dim,
                      const struct pd_layer_tensors *from, struct pd_layer_weights *to)
{
    int query = share->first_head * head_dim, queries = share->heads * head_dim;
    int key = share->first_kv_head * head_dim, keys = share->kv_heads * head_dim;
    const struct part qkv[] = {rows_of(from->query, query, queries), rows_of(from->key, key, keys),
                               rows_of(from->value, key, keys)};
    const struct part bias[] = {rows_of(from->query_bias, query, queries),
                                rows_of(from->key_bias, key, keys),
                                rows_of(from->value_bias, key, keys)};
    const struct part gate_up[SOURCES_MAX] = {rows_of(from->gate, share->first_inner, share->inner),
                                              rows_of(from->up, share->first_inner, share->inner)};

    add_vector(loader, device, from->attention_norm, &to->attention_norm);
    add_weight(loader, device, JOB_MATRIX, qkv, &to->qkv);
    if (from->query_bias)
        add_weight(loader, device, JOB_VECTOR, bias, &to->qkv_bias);
    if (from->query_norm) {
        add_vector(loader, device, from->query_norm, &to->query_norm);
        add_vector(loader, device, from->key_norm, &to->key_norm);
    }
    add_one(loader, device, JOB_MATRIX, from->attention_output, query, queries,
            &to->attention_output);
    add_vector(loader, device, from->feed_forward_norm, &to->feed_forward_norm);
    add_weight(loader, device, JOB_MATRIX, gate_up, &to->gate_up)->layout = PD_WEIGHT_GATE_UP;
    add_one(loader, device, JOB_MATRIX, from->down, share->first_inner, share->inner, &to->down);
}

static void add_rank(struct loader *loader, struct pd_device *device,
                     const struct pd_model_files *files, const struct pd_model_share *share,
                     struct pd_device_weights *weights)
{
    const struct pd_model_tensors *tensors = &files->tensors;
    const struct part embedding[SOURCES_MAX] = {
        rows_of(tensors->embedding, share->first_token, share->tokens)};
    const struct part output[SOURCES_MAX] = {
        rows_of(tensors->output, share->first_token, share->tokens)};

    add_weight(loader, device, JOB_MATRIX, embedding, &weights->embedding)->embedding = true;
    add_vector(loader, device, tensors->output_norm, &weights->output_norm);
    if (tensors->output)
        add_weight(loader, device, JOB_MATRIX, output, &weights->output);
    for (int i = 0; i < weights->layer_count; i++)
        add_layer(loader, device, share, files->config.head_dim, &tensors->layers[i],
                  &weights->layers[i]);
}

static int by_address(const void *a, const void *b)
{
    const struct job *left = a, *right = b;

    if (left->address != right->address)
        return left->address < right->address ? -1 : 1;
    return (int)left->kind - (int)right->kind;
}

/* What a cache is found by must be known before a matrix is made. */
static int hashes_first(const void *a, const void *b)
{
    const struct job *left = a, *right = b;

    if ((left->kind == JOB_HASH) != (right->kind == JOB_HASH))
        return left->kind == JOB_HASH ? -1 : 1;
    return by_address(a, b);
}

static bool wants_cache(const struct loader *loader)
{
    return loader->options->weight_cache && *loader->options->weight_cache;
}

static void add_jobs(struct loader *loader, const struct pd_model_files *files,
                     struct pd_device *device, struct pd_device_weights *weights)
{
    int ranks = pd_device_ranks(device);
    size_t bytes;

    for (size_t i = 0; i < pd_weight_tree_pieces(loader->tree); i++)
        loader->jobs[loader->count++] = (struct job){
            .kind = JOB_HASH, .piece = i, .address = pd_weight_tree_piece(loader->tree, i, &bytes)};
    for (int r = 0; r < ranks; r++) {
        struct pd_model_share share = pd_model_share_of(&files->config, r, ranks);

        add_rank(loader, pd_device_rank(device, r), files, &share, &weights[r]);
    }
    qsort(loader->jobs, loader->count, sizeof(*loader->jobs),
          wants_cache(loader) ? hashes_first : by_address);
    for (size_t i = 0; i < loader->count; i++) {
        loader->jobs[i].before = loader->total;
        loader->total += loader->jobs[i].bytes;
    }
}

/* ---- one job -----------------------------------------------------------------------------------
 */

/* Keeps READ_AHEAD bytes on their way from the disk before the job that is about to run. */
static void read_ahead(struct loader *loader, const struct job *job)
{
    size_t next = atomic_load(&loader->advised);

    while (next < loader->count && loader->jobs[next].before < job->before + READ_AHEAD)
        if (atomic_compare_exchange_weak(&loader->advised, &next, next + 1)) {
            for (int i = 0; i < loader->jobs[next].count; i++)
                pd_read_ahead(loader->jobs[next].sources[i].tensor->data,
                              loader->jobs[next].sources[i].tensor->bytes);
            next++;
        }
}

static int create(const struct job *job, int cols, const struct pd_weight_source *sources,
                  int count, struct pd_error *error)
{
    int code = job->place.memory
                   ? pd_weight_create_in(job->device, job->layout, cols, sources, count,
                                         job->embedding, job->place, job->target)
                   : pd_weight_create(job->device, job->layout, cols, sources, count,
                                      job->embedding, job->target);

    if (code == PD_KERNEL_OK)
        return PD_OK;
    *job->target = NULL;
    if (code == PD_KERNEL_NO_MEMORY)
        return pd_tensor_fail(job->sources[0].tensor, PD_NO_MEMORY, error,
                              "no room on the device for its %llu bytes",
                              (unsigned long long)job->bytes);
    return pd_tensor_fail(job->sources[0].tensor, PD_UNSUPPORTED, error,
                          "the device does not take it: %s", pd_device_error(job->device));
}

/* Ranks can cut between blocks of a format only. */
static int check_cut(const struct part *part, struct pd_error *error)
{
    const struct pd_file_tensor *tensor = part->tensor;
    int block = pd_dtype_block(tensor->type);
    bool matrix = tensor->rank == 2;

    if ((matrix ? part->left : part->first) % block == 0 &&
        (matrix ? part->cols : part->rows) % block == 0)
        return PD_OK;
    return pd_tensor_fail(tensor, PD_UNSUPPORTED, error,
                          "so many ranks would cut its blocks of %d %s values", block,
                          pd_dtype_name(tensor->type));
}

/* The part at an address that the device may use: where it lies, if it lies there in one piece and the
 * address is good (old safetensors files begin their data anywhere), else *copy, malloc'ed. */
static const void *gather(const struct part *part, void **copy)
{
    const struct pd_file_tensor *tensor = part->tensor;
    size_t block = (size_t)pd_dtype_block(tensor->type),
           unit = (size_t)pd_dtype_bytes(tensor->type);
    bool matrix = tensor->rank == 2;
    size_t row = matrix ? (size_t)tensor->shape[1] / block * unit : 0;
    size_t width = matrix ? (size_t)part->cols / block * unit : 0;
    const uint8_t *from =
        tensor->data + (matrix ? (size_t)part->first * row : (size_t)part->first / block * unit);

    from += (size_t)part->left / block * unit;
    *copy = NULL;
    if (width == row && (uintptr_t)from % ALIGNMENT == 0)
        return from;
    *copy = malloc(part_bytes(part));
    if (*copy && width == row)
        memcpy(*copy, from, part_bytes(part));
    for (int r = 0; *copy && width != row && r < part->rows; r++)
        memcpy((uint8_t *)*copy + (size_t)r * width, from + (size_t)r * row, width);
    return *copy;
}

static int load_matrix(const struct job *job, struct pd_error *error)
{
    struct pd_weight_source sources[SOURCES_MAX];
    void *copies[SOURCES_MAX] = {NULL};
    int status = PD_OK;

    for (int i = 0; i < job->count && status == PD_OK; i++) {
        const struct part *part = &job->sources[i];

        status = check_cut(part, error);
        if (status != PD_OK)
            break;
        sources[i] =
            (struct pd_weight_source){gather(part, &copies[i]), part->tensor->type, part->rows};
        if (!sources[i].data)
            status = pd_tensor_fail(part->tensor, PD_NO_MEMORY, error, "no memory for a copy");
    }
    if (status == PD_OK)
        status = create(job, job->sources[0].cols, sources, job->count, error);
    for (int i = 0; i < job->count; i++)
        free(copies[i]);
    return status;
}

static int load_vector(const struct job *job, struct pd_error *error)
{
    struct pd_weight_source row = {.type = PD_F32, .rows = 1};
    size_t length = 0, used = 0;
    int status = PD_OK;
    float *values;

    for (int i = 0; i < job->count; i++)
        length += (size_t)job->sources[i].rows;
    values = calloc(length, sizeof(*values));
    if (!values)
        return pd_tensor_fail(job->sources[0].tensor, PD_NO_MEMORY, error,
                              "no memory for its values");
    for (int i = 0; i < job->count && status == PD_OK; i++) {
        const struct part *part = &job->sources[i];
        void *copy = NULL;
        const void *data;

        status = check_cut(part, error);
        if (status != PD_OK)
            break;
        data = gather(part, &copy);
        if (!data ||
            pd_dequantize(part->tensor->type, data, values + used, (size_t)part->rows) != 0)
            status =
                pd_tensor_fail(part->tensor, PD_NO_MEMORY, error, "its values cannot be unpacked");
        used += (size_t)part->rows;
        free(copy);
    }
    row.data = values;
    if (status == PD_OK)
        status = create(job, (int)length, &row, 1, error);
    free(values);
    return status;
}

static int run_job(void *context, size_t index, struct pd_error *error)
{
    struct loader *loader = context;
    const struct job *job = &loader->jobs[loader->first + index];
    int status;

    read_ahead(loader, job);
    switch (job->kind) {
    case JOB_HASH:
        return pd_weight_tree_hash(loader->tree, job->piece, error);
    case JOB_MATRIX:
        status = load_matrix(job, error);
        break;
    default:
        status = load_vector(job, error);
        break;
    }
    atomic_fetch_add(&loader->done, job->bytes);
    return status;
}

static void tell_progress(void *context)
{
    struct loader *loader = context;

    loader->options->progress(loader->options->context, "weights", atomic_load(&loader->done),
                              loader->total);
}

/* ---- all of them -------------------------------------------------------------------------------
 */

static int run_range(struct loader *loader, size_t first, size_t end, struct pd_error *error)
{
    const struct pd_tasks tasks = {
        .count = end - first,
        .run = run_job,
        .tick = loader->options->progress ? tell_progress : NULL,
        .context = loader,
    };

    loader->first = first;
    return pd_tasks_run(&tasks, loader->options->threads, error);
}

/* Bytes of a job's matrix as the device wants it; 0: it takes no place. */
static size_t packed_bytes(const struct job *job)
{
    struct pd_weight_source sources[SOURCES_MAX];

    if (job->kind != JOB_MATRIX)
        return 0;
    for (int s = 0; s < job->count; s++)
        sources[s] = (struct pd_weight_source){job->sources[s].tensor->data,
                                               job->sources[s].tensor->type, job->sources[s].rows};
    return pd_weight_bytes(job->device, job->layout, job->sources[0].cols, sources, job->count);
}

/* What is in the file: which weights, packed how. */
static int name_contents(const struct loader *loader, const uint8_t digest[PD_DIGEST],
                         uint8_t key[PD_DIGEST], struct pd_error *error)
{
    struct {
        uint8_t weights[PD_DIGEST];
        char packing[sizeof(((struct pd_device_info *)0)->packing)];
    } named = {0};
    struct pd_device_info info = {0};

    if (loader->alone)
        pd_device_describe(loader->alone, &info);
    if (!info.packing[0])
        return pd_fail(error, PD_UNSUPPORTED, "this device keeps its weights itself");
    memcpy(named.weights, digest, PD_DIGEST);
    memcpy(named.packing, info.packing, strlen(info.packing));
    return pd_sha256(&named, sizeof(named), key, error);
}

static int open_cache(struct loader *loader, const uint8_t digest[PD_DIGEST],
                      struct pd_error *error)
{
    size_t *bytes = calloc(loader->count, sizeof(*bytes));
    uint8_t key[PD_DIGEST];
    int status = bytes ? name_contents(loader, digest, key, error)
                       : pd_fail(error, PD_NO_MEMORY, "no memory");

    for (size_t i = 0; status == PD_OK && i < loader->count; i++)
        bytes[i] = packed_bytes(&loader->jobs[i]);
    if (status == PD_OK)
        status = pd_weight_cache_open(loader->options->weight_cache, key, bytes, loader->count,
                                      loader->options->threads, &loader->cache, error);
    for (size_t i = 0; status == PD_OK && i < loader->count; i++)
        if (bytes[i] > 0)
            loader->jobs[i].place = pd_weight_cache_place(loader->cache, i);
    free(bytes);
    return status;
}

/* Without a cache the worker is as good as with one, but for time and memory. */
static void look_for_cache(struct loader *loader, const uint8_t digest[PD_DIGEST])
{
    struct pd_error error = {PD_OK, ""};

    if (open_cache(loader, digest, &error) != PD_OK)
        pd_log(PD_LOG_WARN, "model", "--weight-cache %s: %s; the weights are this process's own",
               loader->options->weight_cache, error.text);
}

static void keep_cache(struct loader *loader)
{
    struct pd_error error = {PD_OK, ""};

    if (loader->cache && pd_weight_cache_keep(loader->cache, &error) != PD_OK)
        pd_log(PD_LOG_WARN, "model", "--weight-cache %s: %s; the weights are not shared",
               loader->options->weight_cache, error.text);
}

static int run_jobs(struct loader *loader, uint8_t digest[PD_DIGEST], struct pd_error *error)
{
    size_t hashes = wants_cache(loader) ? pd_weight_tree_pieces(loader->tree) : 0;
    int status = run_range(loader, 0, hashes, error);

    if (status == PD_OK && hashes > 0)
        status = pd_weight_tree_root(loader->tree, digest, error);
    if (status == PD_OK && hashes > 0)
        look_for_cache(loader, digest);
    if (status == PD_OK)
        status = run_range(loader, hashes, loader->count, error);
    if (status != PD_OK)
        return status;
    keep_cache(loader);
    if (loader->options->progress)
        tell_progress(loader); /* the last job may have ended in another thread */
    return hashes > 0 ? PD_OK : pd_weight_tree_root(loader->tree, digest, error);
}

static uint64_t file_bytes(const struct job *job)
{
    return job->bytes;
}

static uint64_t gpu_bytes(const struct job *job)
{
    uint64_t bytes = 0;

    for (int i = 0; i < job->count; i++) {
        const struct part *part = &job->sources[i];
        size_t cols = part->tensor->rank == 2 ? (size_t)part->cols : 1;

        bytes += pd_dtype_apart_bytes(job->kind == JOB_VECTOR ? PD_F32 : part->tensor->type,
                                      (size_t)part->rows * cols);
    }
    return bytes;
}

static uint64_t rank_bytes(const struct pd_model_files *files, int rank, int ranks,
                           uint64_t (*bytes_of)(const struct job *job))
{
    struct pd_model_share share = pd_model_share_of(&files->config, rank, ranks);
    struct pd_device_weights weights = {.layer_count = files->config.layers};
    size_t layers = (size_t)files->config.layers;
    struct loader loader = {
        .jobs = calloc(WEIGHTS_PER_MODEL + layers * WEIGHTS_PER_LAYER, sizeof(struct job))};
    uint64_t bytes = 0;

    weights.layers = calloc(layers, sizeof(*weights.layers));
    if (loader.jobs && weights.layers)
        add_rank(&loader, NULL, files, &share, &weights);
    for (size_t i = 0; i < loader.count; i++)
        bytes += bytes_of(&loader.jobs[i]);
    free(weights.layers);
    free(loader.jobs);
    return bytes;
}

uint64_t pd_model_files_rank_bytes(const struct pd_model_files *files, int rank, int ranks)
{
    return rank_bytes(files, rank, ranks, file_bytes);
}

uint64_t pd_model_files_gpu_bytes(const struct pd_model_files *files, int rank, int ranks)
{
    return rank_bytes(files, rank, ranks, gpu_bytes);
}

static bool make_layers(const struct pd_model_files *files, struct pd_device_weights *weights,
                        int ranks)
{
    for (int r = 0; r < ranks; r++) {
        weights[r].layers = calloc((size_t)files->config.layers, sizeof(*weights[r].layers));
        weights[r].layer_count = files->config.layers;
        if (!weights[r].layers)
            return false;
    }
    return true;
}

int pd_device_weights_load(const struct pd_model_files *files, struct pd_device *device,
                           const struct pd_model_options *options,
                           struct pd_device_weights *weights, uint8_t digest[PD_DIGEST],
                           struct pd_error *error)
{
    struct loader loader = {.options = options};
    size_t layers = (size_t)files->config.layers;
    int ranks = pd_device_ranks(device);
    int status = pd_weight_tree_create(&files->table, &loader.tree, error);

    memset(weights, 0, (size_t)ranks * sizeof(*weights));
    if (status != PD_OK)
        return status;
    loader.jobs = calloc(pd_weight_tree_pieces(loader.tree) +
                             (size_t)ranks * (WEIGHTS_PER_MODEL + layers * WEIGHTS_PER_LAYER),
                         sizeof(*loader.jobs));
    if (make_layers(files, weights, ranks) && loader.jobs) {
        add_jobs(&loader, files, device, weights);
        loader.alone = ranks == 1 ? device : NULL;
        status = run_jobs(&loader, digest, error);
        weights->cache = loader.cache;
    } else {
        status = pd_fail(error, PD_NO_MEMORY, "%s: no memory to load it", files->source);
    }
    free(loader.jobs);
    pd_weight_tree_destroy(loader.tree);
    for (int r = 0; r < ranks && status != PD_OK; r++)
        pd_device_weights_free(&weights[r]);
    return status;
}

static void free_weight(struct pd_weight *weight)
{
    if (weight)
        pd_weight_destroy(weight);
}

void pd_device_weights_free(struct pd_device_weights *weights)
{
    for (int i = 0; weights->layers && i < weights->layer_count; i++) {
        struct pd_layer_weights *layer = &weights->layers[i];

        free_weight(layer->attention_norm);
        free_weight(layer->qkv);
        free_weight(layer->qkv_bias);
        free_weight(layer->query_norm);
        free_weight(layer->key_norm);
        free_weight(layer->attention_output);
        free_weight(layer->feed_forward_norm);
        free_weight(layer->gate_up);
        free_weight(layer->down);
    }
    free_weight(weights->embedding);
    free_weight(weights->output_norm);
    free_weight(weights->output);
    pd_weight_cache_close(weights->cache);
    free(weights->layers);
    memset(weights, 0, sizeof(*weights));
}
