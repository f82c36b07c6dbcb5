#include <stdio.h>
#include <stdlib.h>

#include "kernels/dtype.h"
#include "kernels/reference/reference.h"

static pd_host_operator *const operators[PD_OP_COUNT] = {
    [PD_OP_EMBED] = pd_reference_embed,
    [PD_OP_RMSNORM] = pd_reference_rmsnorm,
    [PD_OP_MATMUL] = pd_reference_matmul,
    [PD_OP_ROPE_ANGLES] = pd_reference_rope_angles,
    [PD_OP_ROPE_STORE] = pd_reference_rope_store,
    [PD_OP_ATTENTION] = pd_reference_attention,
    [PD_OP_GATHER] = pd_reference_gather,
    [PD_OP_SAMPLE] = pd_reference_sample,
    [PD_OP_READ] = pd_reference_read,
    [PD_OP_ALLREDUCE] = pd_host_allreduce,
    [PD_OP_ALLGATHER] = pd_host_allgather,
};

static int reference_open(const struct pd_device_options *options, struct pd_device **device,
                          char *error, size_t size)
{
    struct pd_host *host = calloc(1, sizeof(*host));
    int status;

    if (host == NULL) {
        snprintf(error, size, "out of memory");
        return PD_KERNEL_NO_MEMORY;
    }
    host->operators = operators;
    status = pd_host_open(host, &pd_backend_reference, options,
                          options->threads ? options->threads : 1, error, size);
    if (status != PD_KERNEL_OK)
        return status;
    if (host->device.options.precision == PD_PRECISION_AUTO)
        host->device.options.precision = PD_PRECISION_F32;
    *device = &host->device;
    return PD_KERNEL_OK;
}

static void reference_describe(const struct pd_device *device, struct pd_device_info *info)
{
    snprintf(info->name, sizeof(info->name), "plain loops in double precision");
    snprintf(info->numerics, sizeof(info->numerics), "reference/2");
    info->threads = ((const struct pd_host *)device)->threads;
    info->ranks_are_exact = true;
    pd_host_memory(info);
}

static void release(struct pd_reference_weight *own)
{
    pd_host_free(own->values, own->bytes);
    free(own->rounds);
    free(own->quantized);
    free(own);
}

static bool rounds(enum pd_precision precision, const struct pd_weight_source *sources, int count,
                   enum pd_weight_layout layout, int index)
{
    enum pd_dtype type = sources[index].type;

    if (layout == PD_WEIGHT_GATE_UP && count > 1 && sources[0].type != sources[1].type)
        return false;
    return precision == PD_PRECISION_BF16
               ? type != PD_F32
               : precision != PD_PRECISION_F32 && pd_dtype_quantized(type);
}

static int reference_weight_create(struct pd_device *device, enum pd_weight_layout layout, int cols,
                                   const struct pd_weight_source *sources, int count,
                                   bool embedding, struct pd_weight **weight)
{
    struct pd_reference_weight *own = calloc(1, sizeof(*own));
    float *out;
    size_t rows = 0;

    (void)embedding;
    for (int i = 0; i < count; i++)
        rows += (size_t)sources[i].rows;
    if (own != NULL) {
        own->bytes = rows * (size_t)cols * sizeof(float);
        own->values = pd_host_allocate(own->bytes);
        own->rounds = calloc(rows, sizeof(*own->rounds));
        own->quantized = calloc(rows, sizeof(*own->quantized));
    }
    if (own == NULL || own->values == NULL || own->rounds == NULL || own->quantized == NULL) {
        if (own != NULL)
            release(own);
        return pd_device_fail(device, PD_KERNEL_NO_MEMORY, "no memory for a weight of %zu x %d",
                              rows, cols);
    }
    out = own->values;
    rows = 0;
    for (int i = 0; i < count; i++) {
        size_t values = (size_t)sources[i].rows * (size_t)cols;
        pd_dequantize(sources[i].type, sources[i].data, out, values);
        out += values;
        for (int r = 0; r < sources[i].rows; r++) {
            own->quantized[rows] = pd_dtype_quantized(sources[i].type);
            own->rounds[rows++] = rounds(device->options.precision, sources, count, layout, i);
        }
    }
    *weight = &own->weight;
    return PD_KERNEL_OK;
}

static void reference_weight_release(struct pd_weight *weight)
{
    release((struct pd_reference_weight *)weight);
}

static int reference_graph_prepare(struct pd_graph *graph)
{
    (void)graph;
    return PD_KERNEL_OK;
}

static void reference_graph_release(struct pd_graph *graph)
{
    (void)graph;
}

const struct pd_backend pd_backend_reference = {
    .kind = "reference",
    .open = reference_open,
    .close = pd_host_close,
    .describe = reference_describe,
    .buffer_allocate = pd_host_buffer_allocate,
    .buffer_release = pd_host_buffer_release,
    .weight_create = reference_weight_create,
    .weight_release = reference_weight_release,
    .graph_prepare = reference_graph_prepare,
    .graph_release = reference_graph_release,
    .launch = pd_host_launch,
    .wait = pd_host_wait,
    .drain = pd_host_drain,
    .history_write = pd_host_history_write,
    .fence = pd_host_fence,
    .progress = pd_host_progress,
    .cut = pd_host_cut,
    .delay_ns = pd_host_delay_ns,
    .meet = pd_host_meet,
    .abandon = pd_host_abandon,
    .part = pd_host_part,
};
