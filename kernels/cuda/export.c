/* The KV pool as the hand-off reaches it (pd_export): copies through pinned pieces, and copies from device to
 * device out of what another process of this host has lent, both in lanes of their own beside the stream:
 * who asks for them knows that the bytes are final, or nobody's. */
#include <stdio.h>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/batch.h"

static struct pd_cuda *owner(const struct pd_buffer *buffer)
{
    return pd_cuda_of(buffer->object.device);
}

/* False, and the device is lost: what happened to the ranges. */
static bool fail(struct pd_cuda *cuda, const char *way, const struct pd_export_range *ranges,
                 size_t count, int error)
{
    char what[112];
    size_t bytes = 0;

    for (size_t i = 0; i < count; i++)
        bytes += ranges[i].bytes;
    snprintf(what, sizeof(what), "copying %zu bytes of the KV pool %s, %zu ranges from %llu on",
             bytes, way, count, (unsigned long long)ranges[0].offset);
    pd_cuda_fail(cuda, what, error);
    return false;
}

static bool copy(void *context, void *host, const struct pd_export_range *ranges, size_t count,
                 bool out)
{
    struct pd_buffer *buffer = context;
    struct pd_cuda *cuda = owner(buffer);
    int error;

    if (cuda->lost)
        return false;
    if (out)
        error = pd_cuda_transfer_gather(cuda->outside, host, buffer->address, ranges, count);
    else if ((error = pd_cuda_transfer_scatter(cuda->outside, buffer->address, host, ranges,
                                               count)) == 0)
        error = pd_cuda_transfer_settle(cuda->outside);
    return error == 0 || fail(cuda, out ? "out" : "in", ranges, count, error);
}

/* What this GPU cannot map is no loss: the hand-off takes another way. */
static void *import(void *context, int handle, size_t bytes)
{
    void *memory = NULL;

    return pd_cuda_import(owner(context)->runtime, handle, bytes, &memory) == 0 ? memory : NULL;
}

static void forget(void *context, void *imported, size_t bytes)
{
    pd_cuda_forget(owner(context)->runtime, imported, bytes);
}

static bool read_imported(void *context, const void *imported, const struct pd_export_range *ranges,
                          size_t count)
{
    struct pd_buffer *buffer = context;
    struct pd_cuda *cuda = owner(buffer);
    struct pd_cuda_batch batch;
    int error = 0;

    if (cuda->lost)
        return false;
    pd_cuda_batch_begin(&batch, cuda->between, buffer->address, (void *)(uintptr_t)imported, false);
    for (size_t i = 0; i < count && error == 0; i++)
        error = pd_cuda_batch_add(
            &batch, (struct pd_cuda_range){ranges[i].offset, ranges[i].other, ranges[i].bytes});
    if (error == 0)
        error = pd_cuda_batch_end(&batch);
    return error == 0 || fail(cuda, "from another process", ranges, count, error);
}

static bool settle(void *context)
{
    struct pd_cuda *cuda = owner(context);
    int error = cuda->lost ? 0 : pd_cuda_lane_wait(cuda->between);

    if (error != 0)
        pd_cuda_fail(cuda, "waiting for copies from another process", error);
    return !cuda->lost;
}

int pd_cuda_buffer_export(struct pd_buffer *buffer, struct pd_export *out)
{
    struct pd_cuda *cuda = owner(buffer);
    int error = 0;
    bool direct;

    if (cuda->outside == NULL)
        error = pd_cuda_transfer_open(cuda->runtime, PD_CUDA_OUTSIDE_PIECES, PD_CUDA_PIECE_BYTES,
                                      &cuda->outside);
    if (error == 0 && cuda->between == NULL)
        error = pd_cuda_lane_open(cuda->runtime, &cuda->between);
    if (error != 0)
        return pd_device_fail(&cuda->device, PD_KERNEL_NO_MEMORY,
                              "no pinned memory to copy the KV pool of GPU %d through: %s",
                              cuda->device.options.ordinal, pd_cuda_error_text(error));
    direct = pd_cuda_path_on(cuda->paths, PD_CUDA_GPUDIRECT);
    *out = (struct pd_export){
        .kind = PD_EXPORT_DEVICE,
        .fd = direct ? pd_cuda_dmabuf(cuda->runtime, buffer->address, buffer->bytes) : -1,
        .size = buffer->bytes,
        .address = direct ? (uint64_t)(uintptr_t)buffer->address : 0,
        .copy_context = buffer,
        .copy = copy,
        .handle = pd_cuda_path_on(cuda->paths, PD_CUDA_LENT) ? buffer->fd : -1,
        .import = import,
        .forget = forget,
        .read = read_imported,
        .settle = settle,
    };
    return PD_KERNEL_OK;
}
