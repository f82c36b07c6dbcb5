/* The device kind "cuda".
 *
 *     engine's thread                                 stream
 *     ---------------                                 ------
 *     launch: copy the descriptor, enqueue all    ──▶ mirror <- descriptor, kernels,
 *             operators and the results' way back,    descriptor <- results, event
 *             mark the event
 *     wait:   look at the event
 *
 * The device has one copy of the descriptor, the mirror, at addresses that never change: copies and
 * kernels are in stream order, so step n+1's cannot overtake step n's kernels, although the engine
 * fills n+1 meanwhile in the other pinned descriptor.
 *
 * A call of the runtime that fails is sticky: the device is lost, every later call says so, and the
 * process is to end (its supervisor restarts it). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/replay.h"

int pd_cuda_fail(struct pd_cuda *cuda, const char *what, int error)
{
    cuda->lost = true;
    if (error < 0)
        return pd_device_fail(&cuda->device, PD_KERNEL_LOST, "%s: no kernel takes this shape",
                              what);
    if (error >= PD_CUDA_NCCL_ERROR)
        return pd_device_fail(&cuda->device, PD_KERNEL_LOST, "%s: NCCL: %s (GPU %d)", what,
                              pd_cuda_nccl_text(cuda->nccl, error), cuda->device.options.ordinal);
    return pd_device_fail(&cuda->device, PD_KERNEL_LOST, "%s: %s (GPU %d)", what,
                          pd_cuda_error_text(error), cuda->device.options.ordinal);
}

static int check_alive(struct pd_cuda *cuda)
{
    return cuda->lost ? PD_KERNEL_LOST : PD_KERNEL_OK;
}

/* ---- open and close -------------------------------------------------------------------------- */

/* Where a pointer into the first descriptor lies in the mirror. */
static void *mirrored(const struct pd_cuda *cuda, const void *pointer)
{
    return (char *)cuda->mirror + ((const char *)pointer - (const char *)cuda->steps);
}

static void lay_out(struct pd_cuda *cuda)
{
    const struct pd_device_options *options = &cuda->device.options;
    struct pd_cuda_counts *counts = (void *)((char *)cuda->mirror + cuda->step_bytes);
    const struct pd_step *step = &cuda->device.steps.step[0];
    struct pd_cuda_step *on = &cuda->step;

    on->counts = counts->count;
    on->number = &counts->number;
    on->token = mirrored(cuda, step->token);
    on->position = mirrored(cuda, step->position);
    on->sequence = mirrored(cuda, step->sequence);
    on->kv_slot = mirrored(cuda, step->kv_slot);
    on->slot = mirrored(cuda, step->slot);
    on->first = mirrored(cuda, step->first);
    on->length = mirrored(cuda, step->length);
    on->blocks = mirrored(cuda, step->blocks);
    on->sample_row = mirrored(cuda, step->sample_row);
    on->sample_slot = mirrored(cuda, step->sample_slot);
    on->sample = mirrored(cuda, step->sample);
    on->bias_token = mirrored(cuda, step->bias_token);
    on->bias_value = mirrored(cuda, step->bias_value);
    on->banned = mirrored(cuda, step->banned);
    on->sampled = mirrored(cuda, step->sampled);
    on->sampled_logprob = mirrored(cuda, step->sampled_logprob);
    on->top_token = mirrored(cuda, step->top_token);
    on->top_logprob = mirrored(cuda, step->top_logprob);
    on->sample_fault = mirrored(cuda, step->sample_fault);
    on->max_blocks = step->max_blocks;
    on->max_model_len = options->max_model_len;
    on->vocabulary = options->vocabulary;
}

static int allocate_state(struct pd_cuda *cuda)
{
    const struct pd_device_options *options = &cuda->device.options;
    size_t bytes = pd_steps_bytes(options);
    size_t seqs = (size_t)options->max_seqs, history = seqs * (size_t)options->max_model_len;
    int error = pd_cuda_allocate_pinned(cuda->runtime, bytes, &cuda->steps);

    cuda->step_bytes = bytes / 2;
    if (error == 0)
        error = pd_cuda_allocate_pinned(cuda->runtime, 2 * sizeof(struct pd_cuda_counts),
                                        &cuda->counts);
    if (error == 0)
        error = pd_cuda_allocate_pinned(cuda->runtime, sizeof(uint64_t), (void **)&cuda->progress);
    if (error == 0)
        error = pd_cuda_allocate(cuda->runtime, cuda->step_bytes + sizeof(struct pd_cuda_counts),
                                 &cuda->mirror);
    if (error == 0)
        error = pd_cuda_allocate(cuda->runtime, history * sizeof(int32_t),
                                 (void **)&cuda->step.history);
    if (error == 0)
        error = pd_cuda_allocate(cuda->runtime, seqs * sizeof(int32_t), (void **)&cuda->step.last);
    if (error == 0)
        error =
            pd_cuda_transfer_open(cuda->runtime, PD_CUDA_PIECES, PD_CUDA_PIECE_BYTES, &cuda->in);
    return error;
}

static void cuda_close(struct pd_device *device)
{
    struct pd_cuda *cuda = pd_cuda_of(device);

    if (cuda->runtime != NULL) {
        pd_cuda_lane_close(cuda->between);
        pd_cuda_transfer_close(cuda->outside);
        pd_cuda_transfer_close(cuda->in);
        pd_cuda_free(cuda->runtime, cuda->step.last);
        pd_cuda_free(cuda->runtime, cuda->step.history);
        pd_cuda_free(cuda->runtime, cuda->mirror);
        pd_cuda_free_pinned(cuda->runtime, cuda->progress);
        pd_cuda_free_pinned(cuda->runtime, cuda->counts);
        pd_cuda_free_pinned(cuda->runtime, cuda->steps);
        pd_cuda_gemm_close(cuda->gemms);
        pd_cuda_close(cuda->runtime);
    }
    pd_cuda_libraries_close(cuda->library);
    pd_device_fini(device);
    free(cuda);
}

/* A deterministic device has no use for a library whose order depends on the number of tokens. */
static bool uses_library(const struct pd_cuda *cuda)
{
    return !cuda->device.options.deterministic && pd_cuda_path_on(cuda->paths, PD_CUDA_CUBLASLT);
}

/* A path whose library is missing is off, and something else serves: that this is so, and where each
 * library came from, is told in one line at start. */
static void open_libraries(struct pd_cuda *cuda)
{
    pd_cuda_libraries_open(cuda->device.options.cuda_libraries, cuda->library);
    if (cuda->library[PD_CUDA_LIBRARY_CUBLASLT].handle == NULL)
        cuda->paths &= ~(1u << PD_CUDA_CUBLASLT);
}

/* Where there is no GPU, what else is missing is told at once. */
static int add_libraries(const struct pd_cuda_library library[PD_CUDA_LIBRARIES], char *error,
                         size_t size)
{
    size_t used = strlen(error);

    if (used + 2 < size)
        pd_cuda_libraries_tell(library, strcpy(error + used, "; ") + 2, size - used - 2);
    return PD_KERNEL_UNSUPPORTED;
}

static int open_runtime(struct pd_cuda *cuda, char *error, size_t size)
{
    const struct pd_cuda_library *cublaslt =
        uses_library(cuda) ? &cuda->library[PD_CUDA_LIBRARY_CUBLASLT] : NULL;
    int ordinal = cuda->device.options.ordinal;

    if (pd_cuda_open(ordinal, cublaslt, &cuda->runtime, error, size) != 0)
        return add_libraries(cuda->library, error, size);
    if (cublaslt != NULL)
        cuda->gemms = pd_cuda_gemm_open(cuda->runtime, cuda->device.options.cuda_cache);
    if (cublaslt == NULL || cuda->gemms != NULL)
        return PD_KERNEL_OK;
    snprintf(error, size, "out of memory");
    return PD_KERNEL_NO_MEMORY;
}

static int cuda_open(const struct pd_device_options *options, struct pd_device **device,
                     char *error, size_t size)
{
    struct pd_cuda *cuda = calloc(1, sizeof(*cuda));
    int status;

    if (cuda == NULL || pd_device_init(&cuda->device, &pd_backend_cuda, options) != PD_KERNEL_OK) {
        free(cuda);
        snprintf(error, size, "out of memory");
        return PD_KERNEL_NO_MEMORY;
    }
    if (!pd_cuda_paths_on(options->cuda_enable, &cuda->paths, error, size)) {
        cuda_close(&cuda->device);
        return PD_KERNEL_UNSUPPORTED;
    }
    open_libraries(cuda);
    status = open_runtime(cuda, error, size);
    if (status != PD_KERNEL_OK) {
        cuda_close(&cuda->device);
        return status;
    }
    status = allocate_state(cuda);
    if (status != 0 || pd_steps_init(&cuda->device, cuda->steps) != PD_KERNEL_OK) {
        snprintf(error, size, "no room on GPU %d for %d sequences of %d tokens: %s",
                 options->ordinal, options->max_seqs, options->max_model_len,
                 status != 0 ? pd_cuda_error_text(status) : "out of memory");
        cuda_close(&cuda->device);
        return PD_KERNEL_NO_MEMORY;
    }
    lay_out(cuda);
    *device = &cuda->device;
    return PD_KERNEL_OK;
}

/* "NVIDIA H200, off: cublaslt, graphs": what no GPU has shown is off, and says so. */
static void name_device(const struct pd_cuda *cuda, const char *gpu, char *name, size_t size)
{
    size_t used = (size_t)snprintf(name, size, "%s", gpu);
    const char *before = ", off: ";

    for (int i = 0; i < PD_CUDA_PATHS && used < size; i++) {
        if (pd_cuda_path_on(cuda->paths, (enum pd_cuda_path)i))
            continue;
        used += (size_t)snprintf(name + used, size - used, "%s%s", before,
                                 pd_cuda_path_name((enum pd_cuda_path)i));
        before = ", ";
    }
}

static int cuda_memory(const struct pd_device_options *options, uint64_t *total,
                       uint64_t *available, char *error, size_t size)
{
    int status = pd_cuda_memory(options->ordinal, total, available);
    struct pd_cuda_library library[PD_CUDA_LIBRARIES];

    if (status == 0)
        return PD_KERNEL_OK;
    snprintf(error, size, "the memory of GPU %d cannot be measured: %s", options->ordinal,
             pd_cuda_error_text(status));
    pd_cuda_libraries_open(options->cuda_libraries, library);
    add_libraries(library, error, size);
    pd_cuda_libraries_close(library);
    return PD_KERNEL_UNSUPPORTED;
}

/* Of a rank: how its group adds, which is a part of what can change a bit. */
static void tell_sums(const struct pd_cuda *cuda, struct pd_device_info *info)
{
    size_t told = strlen(info->libraries), named = strlen(info->numerics);

    if (*cuda->sums != '\0')
        snprintf(info->libraries + told, sizeof(info->libraries) - told, "; %s", cuda->sums);
    if (cuda->nccl != NULL)
        snprintf(info->numerics + named, sizeof(info->numerics) - named, " nccl>%zu",
                 pd_cuda_one_shot_bytes);
}

static void cuda_describe(const struct pd_device *device, struct pd_device_info *info)
{
    const struct pd_cuda *cuda = (const struct pd_cuda *)device;
    struct pd_cuda_device_info on;

    pd_cuda_info(cuda->runtime, &on);
    name_device(cuda, on.name, info->name, sizeof(info->name));
    pd_cuda_libraries_tell(cuda->library, info->libraries, sizeof(info->libraries));
    if (cuda->gemms != NULL) {
        size_t used = strlen(info->libraries);

        pd_cuda_gemm_tell(cuda->gemms, info->libraries + used, sizeof(info->libraries) - used);
    }
    snprintf(info->numerics, sizeof(info->numerics), "cuda/2 sm_%d%d%s", on.major, on.minor,
             device->options.deterministic ? " deterministic"
             : uses_library(cuda)          ? " cublaslt"
                                           : "");
    tell_sums(cuda, info);
    info->threads = 1;
    info->ranks_are_exact = device->options.deterministic;
    info->memory_total = on.memory_total;
    info->memory_free = on.memory_free;
}

/* ---- buffers --------------------------------------------------------------------------------- */

static int cuda_buffer_allocate(struct pd_buffer *buffer)
{
    struct pd_cuda *cuda = pd_cuda_of(buffer->object.device);
    int error;

    switch (buffer->kind) {
    case PD_BUFFER_KV:
        error =
            pd_cuda_allocate_shared(cuda->runtime, &buffer->bytes, &buffer->address, &buffer->fd);
        break;
    case PD_BUFFER_PINNED:
        error = pd_cuda_allocate_pinned(cuda->runtime, buffer->bytes, &buffer->address);
        buffer->host = buffer->address;
        break;
    default:
        error = pd_cuda_allocate(cuda->runtime, buffer->bytes, &buffer->address);
    }
    if (error != 0)
        return pd_device_fail(
            &cuda->device, PD_KERNEL_NO_MEMORY, "no room on GPU %d for a buffer of %zu bytes: %s",
            cuda->device.options.ordinal, buffer->bytes, pd_cuda_error_text(error));
    return PD_KERNEL_OK;
}

static void cuda_buffer_release(struct pd_buffer *buffer)
{
    struct pd_cuda *cuda = pd_cuda_of(buffer->object.device);

    if (buffer->kind == PD_BUFFER_KV)
        pd_cuda_free_shared(cuda->runtime, buffer->address, buffer->bytes, buffer->fd);
    else if (buffer->kind == PD_BUFFER_PINNED)
        pd_cuda_free_pinned(cuda->runtime, buffer->address);
    else
        pd_cuda_free(cuda->runtime, buffer->address);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Copies [from, end) of a pinned descriptor to its place in the mirror, or back. */
static int copy_part(struct pd_cuda *cuda, const struct pd_step *step, const void *from,
                     const void *end, bool back)
{
    size_t index = step == &cuda->device.steps.step[1];
    size_t at = (size_t)((const char *)from - (const char *)cuda->steps) - index * cuda->step_bytes;
    size_t bytes = (size_t)((const char *)end - (const char *)from);
    void *pinned = (char *)cuda->steps + index * cuda->step_bytes + at;
    void *mirror = (char *)cuda->mirror + at;

    return back ? pd_cuda_copy(cuda->runtime, pinned, mirror, bytes)
                : pd_cuda_copy(cuda->runtime, mirror, pinned, bytes);
}

/* The used rows of the block table, and everything around it up to the results. */
static int send_step(struct pd_cuda *cuda, const struct pd_step *step)
{
    struct pd_cuda_counts *counts = (struct pd_cuda_counts *)cuda->counts + step->number % 2;
    const int32_t *table_end = step->blocks + (size_t)step->sequences * (size_t)step->max_blocks;
    int error;

    *counts =
        (struct pd_cuda_counts){step->number, {step->tokens, step->sequences, step->samples}, 0};
    error = pd_cuda_copy(cuda->runtime, (char *)cuda->mirror + cuda->step_bytes, counts,
                         sizeof(*counts));
    if (error == 0)
        error = copy_part(cuda, step, step->token, table_end, false);
    if (error == 0)
        error = copy_part(cuda, step, step->sample_row, step->sampled, false);
    return error;
}

int pd_cuda_launch(struct pd_cuda *cuda, struct pd_graph *graph, struct pd_step *step)
{
    int status = check_alive(cuda), error;

    if (status != PD_KERNEL_OK)
        return status;
    error = pd_cuda_bind(cuda->runtime);
    if (error == 0)
        error = send_step(cuda, step);
    if (error != 0)
        return pd_cuda_fail(cuda, "sending a step", error);
    status = pd_cuda_step_enqueue(graph, step);
    if (status != PD_KERNEL_OK)
        return status;
    if (step->samples > 0)
        error = copy_part(cuda, step, step->sampled,
                          step->sample_fault + cuda->device.options.max_seqs, true);
    if (error == 0)
        error = pd_cuda_mark(cuda->runtime, (int)(step->number % 2));
    return error != 0 ? pd_cuda_fail(cuda, "ending a step", error) : PD_KERNEL_OK;
}

static int cuda_launch(struct pd_graph *graph, struct pd_step *step)
{
    struct pd_cuda *cuda = pd_cuda_of(graph->object.device);
    int status = check_alive(cuda);

    if (cuda->pilot == NULL || status != PD_KERNEL_OK)
        return status != PD_KERNEL_OK ? status : pd_cuda_launch(cuda, graph, step);
    pd_cuda_pilot_launch(cuda->pilot, graph, step);
    return PD_KERNEL_OK;
}

static int64_t milliseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

enum { NCCL_LOOKS = 64 }; /* looks at an event between two at NCCL */

/* What NCCL finds out later than at the call, it does not tell by itself: such a sum would never end. */
static int look_at_nccl(struct pd_cuda *cuda, unsigned looks)
{
    int error = cuda->nccl != NULL && looks % NCCL_LOOKS == 0
                    ? pd_cuda_nccl_look(cuda->nccl, cuda->device.rank)
                    : 0;

    return error != 0 ? pd_cuda_fail(cuda, "the sums of a step", error) : PD_KERNEL_OK;
}

/* A step takes milliseconds: looking every 20 us costs little of one core and nothing of the
 * GPU. */
static int cuda_wait(struct pd_device *device, uint64_t number, int timeout_ms)
{
    static const struct timespec pause = {0, 20000};
    struct pd_cuda *cuda = pd_cuda_of(device);
    int64_t end = milliseconds() + timeout_ms;
    unsigned looks = 0;
    int reached;

    if (cuda->pilot != NULL && !pd_cuda_pilot_wait(cuda->pilot, number, timeout_ms))
        return pd_device_fail(device, PD_KERNEL_TIMEOUT, "step %llu is not launched after %d ms",
                              (unsigned long long)number, timeout_ms);
    if (check_alive(cuda) != PD_KERNEL_OK)
        return PD_KERNEL_LOST;
    /* An event that was marked again for a later step stands behind the earlier one too. */
    if (look_at_nccl(cuda, looks) != PD_KERNEL_OK)
        return PD_KERNEL_LOST;
    while ((reached = pd_cuda_reached(cuda->runtime, (int)(number % 2))) == 0) {
        if (timeout_ms >= 0 && milliseconds() >= end)
            return pd_device_fail(device, PD_KERNEL_TIMEOUT, "step %llu has not run after %d ms",
                                  (unsigned long long)number, timeout_ms);
        if (look_at_nccl(cuda, ++looks) != PD_KERNEL_OK)
            return PD_KERNEL_LOST;
        nanosleep(&pause, NULL);
    }
    return reached < 0 ? pd_cuda_fail(cuda, "waiting for a step", -1 - reached) : PD_KERNEL_OK;
}

/* What is done in the stream's order is done by the rank's pilot, where there is one. */
static void in_order(struct pd_cuda *cuda, void (*work)(void *argument), void *argument)
{
    if (cuda->pilot != NULL)
        pd_cuda_pilot_call(cuda->pilot, work, argument);
    else
        work(argument);
}

static void drain(void *argument)
{
    struct pd_cuda *cuda = argument;
    int error = cuda->lost ? 0 : pd_cuda_drain(cuda->runtime);

    if (error != 0)
        pd_cuda_fail(cuda, "draining the stream", error);
}

static void cuda_drain(struct pd_device *device)
{
    in_order(pd_cuda_of(device), drain, device);
}

struct history {
    struct pd_cuda *cuda;
    size_t at;
    const int32_t *tokens;
    int count, status;
};

static void write_history(void *argument)
{
    struct history *history = argument;
    struct pd_cuda *cuda = history->cuda;
    int error = pd_cuda_copy(cuda->runtime, cuda->step.history + history->at, history->tokens,
                             (size_t)history->count * sizeof(*history->tokens));

    if (error != 0)
        history->status = pd_cuda_fail(cuda, "writing a history", error);
}

static int cuda_history_write(struct pd_device *device, int slot, int position,
                              const int32_t *tokens, int count)
{
    struct pd_cuda *cuda = pd_cuda_of(device);
    struct history history = {
        .cuda = cuda,
        .at = (size_t)slot * (size_t)device->options.max_model_len + (size_t)position,
        .tokens = tokens,
        .count = count,
    };

    if (check_alive(cuda) != PD_KERNEL_OK)
        return PD_KERNEL_LOST;
    in_order(cuda, write_history, &history);
    return history.status;
}

static int cuda_fence(struct pd_device *device)
{
    struct pd_cuda *cuda = pd_cuda_of(device);
    int error = cuda->lost ? 0 : pd_cuda_fence(cuda->runtime);

    if (error != 0)
        return pd_cuda_fail(cuda, "fencing remote writes", error);
    return check_alive(cuda);
}

static uint64_t cuda_progress(const struct pd_device *device)
{
    return __atomic_load_n(((const struct pd_cuda *)device)->progress, __ATOMIC_ACQUIRE);
}

const struct pd_backend pd_backend_cuda = {
    .kind = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .memory = cuda_memory,
    .describe = cuda_describe,
    .buffer_allocate = cuda_buffer_allocate,
    .buffer_release = cuda_buffer_release,
    .buffer_export = pd_cuda_buffer_export,
    .weight_create = pd_cuda_weight_create,
    .weight_release = pd_cuda_weight_release,
    .graph_prepare = pd_cuda_graph_prepare,
    .graph_release = pd_cuda_graph_release,
    .launch = cuda_launch,
    .wait = cuda_wait,
    .drain = cuda_drain,
    .history_write = cuda_history_write,
    .fence = cuda_fence,
    .progress = cuda_progress,
    .meet = pd_cuda_meet,
    .abandon = pd_cuda_abandon,
    .part = pd_cuda_part,
};
