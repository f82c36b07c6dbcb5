/* Opening devices by kind, and the objects that a device owns.
 *
 * A backend is linked by naming it in `backends`; nothing else knows how many there are. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/dtype.h"

static const struct {
    const char *kind;
    const struct pd_backend *backend; /* NULL: not built into this program */
} backends[] = {
    {"cpu", &pd_backend_cpu},
    {"reference", &pd_backend_reference},
    {"cuda", &pd_backend_cuda},
};

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* Limits of one device; far above any model, so that sizes computed from them cannot overflow. */
enum {
    LIMIT_TOKENS = 1 << 20,
    LIMIT_SEQS = 1 << 16,
    LIMIT_MODEL_LEN = 1 << 24,
    LIMIT_VOCABULARY = 1 << 24,
    LIMIT_SIDE = 1 << 24, /* rows or cols of a tensor or weight */
};

static int refuse(char *error, size_t size, int status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static int refuse(char *error, size_t size, int status, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(error, size, format, arguments);
    va_end(arguments);
    return status;
}

static int check_limit(const char *name, int value, int low, int high, char *error, size_t size)
{
    if (value >= low && value <= high)
        return PD_KERNEL_OK;
    return refuse(error, size, PD_KERNEL_INVALID, "device option %s is %d; it must be %d to %d",
                  name, value, low, high);
}

static int check_options(const struct pd_device_options *options, char *error, size_t size)
{
    int status = check_limit("threads", options->threads, 0, 1024, error, size);

    if (status == PD_KERNEL_OK)
        status = check_limit("max_tokens", options->max_tokens, 1, LIMIT_TOKENS, error, size);
    if (status == PD_KERNEL_OK)
        status = check_limit("max_seqs", options->max_seqs, 1, LIMIT_SEQS, error, size);
    if (status == PD_KERNEL_OK)
        status =
            check_limit("max_model_len", options->max_model_len, 1, LIMIT_MODEL_LEN, error, size);
    if (status == PD_KERNEL_OK)
        status = check_limit("block_size", options->block_size, 8, 32, error, size);
    if (status == PD_KERNEL_OK)
        status = check_limit("ranks", options->ranks, 0, PD_RANKS_MAX, error, size);
    if (status == PD_KERNEL_OK)
        status = check_limit("vocabulary", options->vocabulary, 1, LIMIT_VOCABULARY, error, size);
    return status;
}

static int find_backend(const char *kind, const struct pd_backend **found, char *error, size_t size)
{
    for (int i = 0; i < COUNT(backends); i++) {
        if (strcmp(backends[i].kind, kind) != 0)
            continue;
        *found = backends[i].backend;
        return *found != NULL ? PD_KERNEL_OK
                              : refuse(error, size, PD_KERNEL_UNSUPPORTED,
                                       "device kind \"%s\" is not built into this program", kind);
    }
    return refuse(error, size, PD_KERNEL_INVALID,
                  "unknown device kind \"%s\": cpu, cuda or reference", kind);
}

static const char *kind_of(const struct pd_device_options *options)
{
    return options->kind != NULL ? options->kind : "cpu";
}

int pd_device_open(const struct pd_device_options *options, struct pd_device **device, char *error,
                   size_t size)
{
    const struct pd_backend *backend;
    int status;

    *device = NULL;
    status = check_options(options, error, size);
    if (status == PD_KERNEL_OK)
        status = find_backend(kind_of(options), &backend, error, size);
    if (status != PD_KERNEL_OK)
        return status;
    return options->ranks > 1 ? pd_group_open(backend, options, device, error, size)
                              : backend->open(options, device, error, size);
}

int pd_device_memory(const struct pd_device_options *options, uint64_t *total, uint64_t *available,
                     char *error, size_t size)
{
    struct pd_device_options own = *options;
    const struct pd_backend *backend;
    int status = find_backend(kind_of(options), &backend, error, size);

    *total = *available = 0;
    for (int r = 0; status == PD_KERNEL_OK && backend->memory != NULL &&
                    r < (options->ranks > 1 ? options->ranks : 1);
         r++) {
        uint64_t all = 0, left = 0;

        own.ordinal = options->ordinal + (options->one_gpu ? 0 : r);
        status = backend->memory(&own, &all, &left, error, size);
        if (r == 0 || left < *available) {
            *total = all;
            *available = left;
        }
    }
    return status;
}

void pd_device_close(struct pd_device *device)
{
    if (device == NULL)
        return;
    device->backend->drain(device);
    while (device->objects != NULL)
        pd_object_destroy(device->objects);
    device->backend->close(device);
}

int pd_device_init(struct pd_device *device, const struct pd_backend *backend,
                   const struct pd_device_options *options)
{
    device->backend = backend;
    device->options = *options;
    device->options.kind = backend->kind;
    device->options.isa = NULL; /* the caller's string may go away */
    device->options.ranks = options->ranks > 1 ? options->ranks : 1;
    return pthread_mutex_init(&device->lock, NULL) == 0 ? PD_KERNEL_OK : PD_KERNEL_NO_MEMORY;
}

void pd_device_fini(struct pd_device *device)
{
    free(device->steps.seen);
    pthread_mutex_destroy(&device->lock);
}

void pd_device_describe(const struct pd_device *device, struct pd_device_info *info)
{
    memset(info, 0, sizeof(*info));
    device->backend->describe(device, info);
}

const char *pd_device_error(const struct pd_device *device)
{
    return device->error;
}

int pd_device_fail(struct pd_device *device, int status, const char *format, ...)
{
    va_list arguments;

    pthread_mutex_lock(&device->lock);
    va_start(arguments, format);
    vsnprintf(device->error, sizeof(device->error), format, arguments);
    va_end(arguments);
    pthread_mutex_unlock(&device->lock);
    return status;
}

/* ---- objects --------------------------------------------------------------------------------- */

void pd_object_attach(struct pd_device *device, struct pd_object *object,
                      void (*release)(struct pd_object *))
{
    object->device = device;
    object->release = release;
    pthread_mutex_lock(&device->lock);
    object->next = device->objects;
    object->link = &device->objects;
    if (object->next != NULL)
        object->next->link = &object->next;
    device->objects = object;
    pthread_mutex_unlock(&device->lock);
}

void pd_object_destroy(struct pd_object *object)
{
    struct pd_device *device = object->device;

    pthread_mutex_lock(&device->lock);
    *object->link = object->next;
    if (object->next != NULL)
        object->next->link = object->link;
    pthread_mutex_unlock(&device->lock);
    object->release(object);
}

/* ---- buffers --------------------------------------------------------------------------------- */

int pd_buffer_make(struct pd_device *device, enum pd_buffer_class kind, size_t bytes,
                   struct pd_buffer **out)
{
    struct pd_buffer *buffer;
    int status;

    *out = NULL;
    if (bytes == 0)
        return pd_device_fail(device, PD_KERNEL_INVALID, "a buffer of 0 bytes was asked for");
    buffer = calloc(1, sizeof(*buffer));
    if (buffer == NULL)
        return pd_device_fail(device, PD_KERNEL_NO_MEMORY, "out of memory");
    buffer->object.device = device;
    buffer->kind = kind;
    buffer->bytes = bytes;
    buffer->fd = -1;
    status = device->backend->buffer_allocate(buffer);
    if (status != PD_KERNEL_OK) {
        free(buffer);
        return status;
    }
    *out = buffer;
    return PD_KERNEL_OK;
}

void pd_buffer_unmake(struct pd_buffer *buffer)
{
    buffer->object.device->backend->buffer_release(buffer);
    free(buffer);
}

static void release_buffer(struct pd_object *object)
{
    pd_buffer_unmake((struct pd_buffer *)object);
}

int pd_buffer_create(struct pd_device *device, enum pd_buffer_class kind, size_t bytes,
                     struct pd_buffer **buffer)
{
    int status = pd_buffer_make(device, kind, bytes, buffer);

    if (status == PD_KERNEL_OK)
        pd_object_attach(device, &(*buffer)->object, release_buffer);
    return status;
}

void pd_buffer_destroy(struct pd_buffer *buffer)
{
    if (buffer != NULL)
        pd_object_destroy(&buffer->object);
}

void *pd_buffer_host(struct pd_buffer *buffer)
{
    return buffer->kind == PD_BUFFER_PINNED ? buffer->host : NULL;
}

int pd_buffer_export(struct pd_buffer *buffer, struct pd_export *out)
{
    struct pd_device *device = buffer->object.device;

    if (buffer->kind != PD_BUFFER_KV || buffer->fd < 0)
        return pd_device_fail(device, PD_KERNEL_INVALID, "only a KV buffer can be exported");
    if (device->backend->buffer_export != NULL)
        return device->backend->buffer_export(buffer, out);
    *out = (struct pd_export){.kind = PD_EXPORT_MEMFD, .size = buffer->bytes};
    out->fd = fcntl(buffer->fd, F_DUPFD_CLOEXEC, 0);
    if (out->fd < 0)
        return pd_device_fail(device, PD_KERNEL_NO_MEMORY,
                              "cannot duplicate the pool's descriptor: %s", strerror(errno));
    return PD_KERNEL_OK;
}

int pd_tensor_create(struct pd_device *device, int rows, int cols, struct pd_tensor *tensor)
{
    memset(tensor, 0, sizeof(*tensor));
    if (rows < 1 || rows > LIMIT_SIDE || cols < 1 || cols > LIMIT_SIDE)
        return pd_device_fail(device, PD_KERNEL_INVALID, "a tensor of %d x %d was asked for", rows,
                              cols);
    tensor->rows = rows;
    tensor->cols = cols;
    return pd_buffer_create(device, PD_BUFFER_ACTIVATION,
                            (size_t)rows * (size_t)cols * sizeof(float), &tensor->buffer);
}

size_t pd_kv_pool_bytes(const struct pd_kv_pool *pool)
{
    size_t bytes = (size_t)pd_dtype_bytes(pool->type) * 2;

    if (pool->layers < 1 || pool->kv_heads < 1 || pool->block_size < 1 || pool->head_dim < 1 ||
        pool->blocks < 1 || __builtin_mul_overflow(bytes, (size_t)pool->layers, &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)pool->kv_heads, &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)pool->block_size, &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)pool->head_dim, &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)pool->blocks, &bytes))
        return SIZE_MAX;
    return bytes;
}

/* ---- weights --------------------------------------------------------------------------------- */

static void release_weight(struct pd_object *object)
{
    object->device->backend->weight_release((struct pd_weight *)object);
}

static int check_sources(struct pd_device *device, enum pd_weight_layout layout, int cols,
                         const struct pd_weight_source *sources, int count, int *rows)
{
    *rows = 0;
    if (count < 1 || cols < 1 || cols > LIMIT_SIDE)
        return pd_device_fail(device, PD_KERNEL_INVALID, "a weight of %d sources, %d columns",
                              count, cols);
    for (int i = 0; i < count; i++) {
        int block = pd_dtype_block(sources[i].type);

        if (block == 0 || cols % block != 0)
            return pd_device_fail(device, PD_KERNEL_INVALID,
                                  "weight source %d: %d columns of %s, which comes in blocks of %d",
                                  i, cols, pd_dtype_name(sources[i].type), block);
        if (sources[i].rows < 1 || sources[i].rows > LIMIT_SIDE - *rows)
            return pd_device_fail(device, PD_KERNEL_INVALID, "weight source %d has %d rows", i,
                                  sources[i].rows);
        *rows += sources[i].rows;
    }
    if (layout == PD_WEIGHT_GATE_UP && (count != 2 || sources[0].rows != sources[1].rows))
        return pd_device_fail(device, PD_KERNEL_INVALID,
                              "gate and up must be two sources with the same number of rows");
    return PD_KERNEL_OK;
}

static int create_weight(struct pd_device *device, enum pd_weight_layout layout, int cols,
                         const struct pd_weight_source *sources, int count, bool embedding,
                         const struct pd_weight_place *place, struct pd_weight **weight)
{
    int rows, status;

    *weight = NULL;
    status = check_sources(device, layout, cols, sources, count, &rows);
    if (status != PD_KERNEL_OK)
        return status;
    status = place != NULL ? device->backend->weight_create_in(device, layout, cols, sources, count,
                                                               *place, weight)
                           : device->backend->weight_create(device, layout, cols, sources, count,
                                                            embedding, weight);
    if (status != PD_KERNEL_OK)
        return status;
    (*weight)->layout = layout;
    (*weight)->rows = rows;
    (*weight)->cols = cols;
    (*weight)->embedding = embedding;
    pd_object_attach(device, &(*weight)->object, release_weight);
    return PD_KERNEL_OK;
}

int pd_weight_create(struct pd_device *device, enum pd_weight_layout layout, int cols,
                     const struct pd_weight_source *sources, int count, bool embedding,
                     struct pd_weight **weight)
{
    return create_weight(device, layout, cols, sources, count, embedding, NULL, weight);
}

size_t pd_weight_bytes(struct pd_device *device, enum pd_weight_layout layout, int cols,
                       const struct pd_weight_source *sources, int count)
{
    int rows;

    if (device->backend->weight_bytes == NULL ||
        check_sources(device, layout, cols, sources, count, &rows) != PD_KERNEL_OK)
        return 0;
    return device->backend->weight_bytes(device, layout, cols, sources, count);
}

int pd_weight_create_in(struct pd_device *device, enum pd_weight_layout layout, int cols,
                        const struct pd_weight_source *sources, int count, bool embedding,
                        struct pd_weight_place place, struct pd_weight **weight)
{
    *weight = NULL;
    if (place.memory == NULL || pd_weight_bytes(device, layout, cols, sources, count) == 0)
        return pd_device_fail(device, PD_KERNEL_INVALID,
                              "a weight that takes no place was given one");
    return create_weight(device, layout, cols, sources, count, embedding, &place, weight);
}

void pd_weight_destroy(struct pd_weight *weight)
{
    if (weight != NULL)
        pd_object_destroy(&weight->object);
}

/* ---- what the backend answers itself --------------------------------------------------------- */

int pd_history_write(struct pd_device *device, int slot, int position, const int32_t *tokens,
                     int count)
{
    const struct pd_device_options *options = &device->options;

    if (slot < 0 || slot >= options->max_seqs || position < 0 || count < 0 ||
        position > options->max_model_len || count > options->max_model_len - position)
        return pd_device_fail(device, PD_KERNEL_INVALID,
                              "history of slot %d: %d tokens from position %d", slot, count,
                              position);
    for (int i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] >= options->vocabulary)
            return pd_device_fail(device, PD_KERNEL_INVALID, "history of slot %d: token %d", slot,
                                  tokens[i]);
    }
    if (count == 0)
        return PD_KERNEL_OK;
    return device->backend->history_write(device, slot, position, tokens, count);
}

int pd_fence_remote_writes(struct pd_device *device)
{
    return device->backend->fence(device);
}

uint64_t pd_device_progress(const struct pd_device *device)
{
    return device->backend->progress(device);
}

uint64_t pd_device_delay_ns(const struct pd_device *device)
{
    return device->backend->delay_ns ? device->backend->delay_ns(device) : 0;
}
