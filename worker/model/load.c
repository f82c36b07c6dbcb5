#include "worker/model/load.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "worker/model/fingerprint.h"
#include "worker/model/parallel.h"

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

struct job {
    enum job_kind kind;
    const uint8_t *address; /* jobs run in this order */
    size_t piece;           /* HASH */
    const struct pd_file_tensor *sources[SOURCES_MAX];
    int count;
    enum pd_weight_layout layout;
    bool embedding;
    struct pd_weight **target;
    uint64_t bytes;  /* of the sources; 0 for HASH */
    uint64_t before; /* bytes of all jobs before this one */
};

struct loader {
    struct pd_device *device;
    const struct pd_model_options *options;
    struct pd_weight_tree *tree;
    struct job *jobs;
    size_t count;
    uint64_t total;
    atomic_size_t advised; /* jobs whose bytes the kernel was asked for */
    _Atomic uint64_t done;
};

/* ---- the list of jobs --------------------------------------------------------------------------
 */

static void add_weight(struct loader *loader, enum job_kind kind, enum pd_weight_layout layout,
                       const struct pd_file_tensor *const sources[SOURCES_MAX],
                       struct pd_weight **target)
{
    struct job *job = &loader->jobs[loader->count++];

    *job = (struct job){.kind = kind, .layout = layout, .target = target};
    for (int i = 0; i < SOURCES_MAX && sources[i]; i++) {
        job->sources[job->count++] = sources[i];
        job->bytes += sources[i]->bytes;
        if (i == 0 || sources[i]->data < job->address)
            job->address = sources[i]->data;
    }
}

static void add_matrix(struct loader *loader, const struct pd_file_tensor *source,
                       struct pd_weight **target)
{
    add_weight(loader, JOB_MATRIX, PD_WEIGHT_ROWS,
               (const struct pd_file_tensor *const[SOURCES_MAX]){source}, target);
}

static void add_vector(struct loader *loader, const struct pd_file_tensor *source,
                       struct pd_weight **target)
{
    add_weight(loader, JOB_VECTOR, PD_WEIGHT_ROWS,
               (const struct pd_file_tensor *const[SOURCES_MAX]){source}, target);
}

static void add_layer(struct loader *loader, const struct pd_layer_tensors *from,
                      struct pd_layer_weights *to)
{
    const struct pd_file_tensor *const qkv[] = {from->query, from->key, from->value};
    const struct pd_file_tensor *const bias[] = {from->query_bias, from->key_bias,
                                                 from->value_bias};
    const struct pd_file_tensor *const gate_up[] = {from->gate, from->up, NULL};

    add_vector(loader, from->attention_norm, &to->attention_norm);
    add_weight(loader, JOB_MATRIX, PD_WEIGHT_ROWS, qkv, &to->qkv);
    if (from->query_bias)
        add_weight(loader, JOB_VECTOR, PD_WEIGHT_ROWS, bias, &to->qkv_bias);
    if (from->query_norm) {
        add_vector(loader, from->query_norm, &to->query_norm);
        add_vector(loader, from->key_norm, &to->key_norm);
    }
    add_matrix(loader, from->attention_output, &to->attention_output);
    add_vector(loader, from->feed_forward_norm, &to->feed_forward_norm);
    add_weight(loader, JOB_MATRIX, PD_WEIGHT_GATE_UP, gate_up, &to->gate_up);
    add_matrix(loader, from->down, &to->down);
}

static int by_address(const void *a, const void *b)
{
    const struct job *left = a, *right = b;

    if (left->address != right->address)
        return left->address < right->address ? -1 : 1;
    return (int)left->kind - (int)right->kind;
}

static void add_jobs(struct loader *loader, const struct pd_model_files *files,
                     struct pd_device_weights *weights)
{
    size_t bytes;

    for (size_t i = 0; i < pd_weight_tree_pieces(loader->tree); i++)
        loader->jobs[loader->count++] = (struct job){
            .kind = JOB_HASH, .piece = i, .address = pd_weight_tree_piece(loader->tree, i, &bytes)};
    add_matrix(loader, files->tensors.embedding, &weights->embedding);
    loader->jobs[loader->count - 1].embedding = true;
    add_vector(loader, files->tensors.output_norm, &weights->output_norm);
    if (files->tensors.output)
        add_matrix(loader, files->tensors.output, &weights->output);
    for (int i = 0; i < weights->layer_count; i++)
        add_layer(loader, &files->tensors.layers[i], &weights->layers[i]);
    qsort(loader->jobs, loader->count, sizeof(*loader->jobs), by_address);
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
                pd_read_ahead(loader->jobs[next].sources[i]->data,
                              loader->jobs[next].sources[i]->bytes);
            next++;
        }
}

static int create(struct loader *loader, const struct job *job, int cols,
                  const struct pd_weight_source *sources, int count, struct pd_error *error)
{
    int code = pd_weight_create(loader->device, job->layout, cols, sources, count, job->embedding,
                                job->target);

    if (code == PD_KERNEL_OK)
        return PD_OK;
    *job->target = NULL;
    if (code == PD_KERNEL_NO_MEMORY)
        return pd_tensor_fail(job->sources[0], PD_NO_MEMORY, error,
                              "no room on the device for its %llu bytes",
                              (unsigned long long)job->bytes);
    return pd_tensor_fail(job->sources[0], PD_UNSUPPORTED, error, "the device does not take it: %s",
                          pd_device_error(loader->device));
}

/* A source at an address that the device may use. Old safetensors files begin their data anywhere:
 * then *copy is malloc'ed. */
static const void *align(const struct pd_file_tensor *tensor, void **copy)
{
    *copy = NULL;
    if ((uintptr_t)tensor->data % ALIGNMENT == 0)
        return tensor->data;
    *copy = malloc(tensor->bytes);
    if (*copy)
        memcpy(*copy, tensor->data, tensor->bytes);
    return *copy;
}

static int load_matrix(struct loader *loader, const struct job *job, struct pd_error *error)
{
    struct pd_weight_source sources[SOURCES_MAX];
    void *copies[SOURCES_MAX] = {NULL};
    int status = PD_OK;

    for (int i = 0; i < job->count; i++) {
        const struct pd_file_tensor *tensor = job->sources[i];

        sources[i] =
            (struct pd_weight_source){align(tensor, &copies[i]), tensor->type, tensor->shape[0]};
        if (!sources[i].data)
            status = pd_tensor_fail(tensor, PD_NO_MEMORY, error, "no memory for an aligned copy");
    }
    if (status == PD_OK)
        status = create(loader, job, job->sources[0]->shape[1], sources, job->count, error);
    for (int i = 0; i < job->count; i++)
        free(copies[i]);
    return status;
}

static int load_vector(struct loader *loader, const struct job *job, struct pd_error *error)
{
    struct pd_weight_source row = {.type = PD_F32, .rows = 1};
    size_t length = 0, used = 0;
    int status = PD_OK;
    float *values;

    for (int i = 0; i < job->count; i++)
        length += (size_t)job->sources[i]->shape[0];
    values = calloc(length, sizeof(*values));
    if (!values)
        return pd_tensor_fail(job->sources[0], PD_NO_MEMORY, error, "no memory for its values");
    for (int i = 0; i < job->count && status == PD_OK; i++) {
        const struct pd_file_tensor *tensor = job->sources[i];
        void *copy;
        const void *data = align(tensor, &copy);

        if (!data ||
            pd_dequantize(tensor->type, data, values + used, (size_t)tensor->shape[0]) != 0)
            status = pd_tensor_fail(tensor, PD_NO_MEMORY, error, "its values cannot be unpacked");
        used += (size_t)tensor->shape[0];
        free(copy);
    }
    row.data = values;
    if (status == PD_OK)
        status = create(loader, job, (int)length, &row, 1, error);
    free(values);
    return status;
}

static int run_job(void *context, size_t index, struct pd_error *error)
{
    struct loader *loader = context;
    const struct job *job = &loader->jobs[index];
    int status;

    read_ahead(loader, job);
    switch (job->kind) {
    case JOB_HASH:
        return pd_weight_tree_hash(loader->tree, job->piece, error);
    case JOB_MATRIX:
        status = load_matrix(loader, job, error);
        break;
    default:
        status = load_vector(loader, job, error);
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

static int run_jobs(struct loader *loader, uint8_t digest[PD_DIGEST], struct pd_error *error)
{
    const struct pd_tasks tasks = {
        .count = loader->count,
        .run = run_job,
        .tick = loader->options->progress ? tell_progress : NULL,
        .context = loader,
    };
    int status = pd_tasks_run(&tasks, loader->options->threads, error);

    if (status != PD_OK)
        return status;
    if (loader->options->progress)
        tell_progress(loader); /* the last job may have ended in another thread */
    return pd_weight_tree_root(loader->tree, digest, error);
}

int pd_device_weights_load(const struct pd_model_files *files, struct pd_device *device,
                           const struct pd_model_options *options,
                           struct pd_device_weights *weights, uint8_t digest[PD_DIGEST],
                           struct pd_error *error)
{
    struct loader loader = {.device = device, .options = options};
    size_t layers = (size_t)files->config.layers;
    int status = pd_weight_tree_create(&files->table, &loader.tree, error);

    memset(weights, 0, sizeof(*weights));
    if (status != PD_OK)
        return status;
    weights->layers = calloc(layers, sizeof(*weights->layers));
    weights->layer_count = files->config.layers;
    loader.jobs =
        calloc(pd_weight_tree_pieces(loader.tree) + WEIGHTS_PER_MODEL + layers * WEIGHTS_PER_LAYER,
               sizeof(*loader.jobs));
    if (weights->layers && loader.jobs) {
        add_jobs(&loader, files, weights);
        status = run_jobs(&loader, digest, error);
    } else {
        status = pd_fail(error, PD_NO_MEMORY, "%s: no memory to load it", files->source);
    }
    free(loader.jobs);
    pd_weight_tree_destroy(loader.tree);
    if (status != PD_OK)
        pd_device_weights_free(weights);
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
    free(weights->layers);
    memset(weights, 0, sizeof(*weights));
}
