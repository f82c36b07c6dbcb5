#include "t/simt/cuda_standin.h"

#include <algorithm>
#include <cuda.h>
#include <cuda_runtime.h>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "kernels/cuda/cuda.h"

struct standin standin;

/* ---- what lives ------------------------------------------------------------------------------ */

struct CUstream_st {
    int device;
    std::vector<std::function<void()>> queue;
    struct CUgraph_st *recording;
};

struct CUevent_st {
    int device;
    CUstream_st *on;
    size_t behind; /* entries of its stream's queue, when it was recorded */
    long looks;
};

struct CUgraph_st {
    std::vector<std::function<void()>> work;
};

struct CUgraphExec_st {
    std::vector<std::function<void()>> work;
};

namespace
{
struct mapping {
    size_t bytes;
    bool mapped, open;
};

std::recursive_mutex lock;
std::set<void *> streams, events, graphs, executables, device_memory, pinned_memory;
std::map<unsigned long long, int> handles; /* a file each */
std::map<CUdeviceptr, mapping> addresses;
thread_local int current = -1;
thread_local CUstream_st *recording; /* by this thread */

[[noreturn]] void die(const char *why, ...)
{
    va_list list;

    va_start(list, why);
    fputs("stand-in for CUDA: ", stderr);
    vfprintf(stderr, why, list);
    fputc('\n', stderr);
    abort();
}

int fault()
{
    standin.calls++;
    return standin.fail_after >= 0 && standin.fail_after-- == 0 ? standin.error : 0;
}

/* Of every call but those that ask for no GPU. */
cudaError_t enter(const char *call, bool recordable)
{
    if (current < 0)
        die("%s by a thread that means no GPU", call);
    if (recording && !recordable)
        die("%s while the thread records", call);
    return (cudaError_t)fault();
}

void of(const char *call, int device)
{
    if (device != current)
        die("%s of GPU %d by a thread that means GPU %d", call, device, current);
}

template <typename T> void forget(std::set<void *> &all, T *one, const char *call)
{
    if (all.erase(one) != 1)
        die("%s of what is not there", call);
}

cudaError_t enqueue(CUstream_st *stream, std::function<void()> work)
{
    if (stream->recording)
        stream->recording->work.push_back(std::move(work));
    else
        stream->queue.push_back(std::move(work));
    return cudaSuccess;
}

void run(CUstream_st *stream, size_t count)
{
    for (size_t i = 0; i < count; i++)
        stream->queue[i]();
    stream->queue.erase(stream->queue.begin(), stream->queue.begin() + (long)count);
    for (void *one : events) {
        CUevent_st *event = static_cast<CUevent_st *>(one);

        if (event->on == stream)
            event->behind -= std::min(event->behind, count);
    }
}
} // namespace

long standin_alive(void)
{
    return (long)(streams.size() + events.size() + graphs.size() + executables.size() +
                  device_memory.size() + pinned_memory.size() + handles.size() + addresses.size());
}

int standin_current(void)
{
    return current;
}

/* What kernels of the pool's ranges are: their launchers. */
extern "C" int pd_cuda_gather_ranges(void *stream, const void *pool,
                                     const struct pd_cuda_ranges *ranges, void *buffer)
{
    CUstream_st *on = static_cast<CUstream_st *>(stream);

    of("a launch", on->device);
    return enqueue(on, [=, table = *ranges] {
        for (int i = 0; i < table.count; i++)
            memcpy((char *)buffer + table.range[i].buffer, (const char *)pool + table.range[i].pool,
                   table.range[i].bytes);
    });
}

extern "C" int pd_cuda_scatter_ranges(void *stream, const void *buffer,
                                      const struct pd_cuda_ranges *ranges, void *pool)
{
    CUstream_st *on = static_cast<CUstream_st *>(stream);

    of("a launch", on->device);
    return enqueue(on, [=, table = *ranges] {
        for (int i = 0; i < table.count; i++)
            memcpy((char *)pool + table.range[i].pool, (const char *)buffer + table.range[i].buffer,
                   table.range[i].bytes);
    });
}

/* ---- the runtime ----------------------------------------------------------------------------- */

#define LOCKED std::lock_guard<std::recursive_mutex> locked(lock)
#define ENTER(recordable)                                                                          \
    LOCKED;                                                                                        \
    if (cudaError_t error = enter(__func__, recordable))                                           \
    return error

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "out of memory" : "some error";
}

cudaError_t cudaSetDevice(int device)
{
    LOCKED;
    cudaError_t error = (cudaError_t)fault();

    if (error == cudaSuccess && (device < 0 || device >= STANDIN_GPUS))
        error = cudaErrorInvalidDevice;
    if (error == cudaSuccess)
        current = device;
    return error;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int)
{
    ENTER(false);
    memset(properties, 0, sizeof(*properties));
    snprintf(properties->name, sizeof(properties->name), "GPU of the stand-in");
    properties->major = 9;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    ENTER(false);
    of(__func__, device);
    if (attribute != cudaDevAttrGPUDirectRDMAFlushWritesOptions)
        return cudaErrorInvalidValue;
    *value = standin.flushes ? cudaFlushGPUDirectRDMAWritesOptionHost : 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTarget,
                                               cudaFlushGPUDirectRDMAWritesScope)
{
    ENTER(false);
    if (!standin.flushes)
        return cudaErrorNotSupported;
    standin.flushed[current]++;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int)
{
    ENTER(false);
    of(__func__, device);
    *can = standin.reaches;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned)
{
    static bool enabled[STANDIN_GPUS][STANDIN_GPUS];

    ENTER(false);
    if (enabled[current][peer])
        return cudaErrorPeerAccessAlreadyEnabled;
    enabled[current][peer] = true;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    ENTER(false);
    *available = standin.free_bytes[current];
    *total = (size_t)1 << 32;
    return cudaSuccess;
}

/* The default stream: what it is to do is done when somebody waits for it. */
static std::vector<std::function<void()>> legacy;

static void run_legacy()
{
    for (const auto &work : legacy)
        work();
    legacy.clear();
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    ENTER(false);
    *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    memset(*memory, 0xff, std::min(bytes, (size_t)4096));
    device_memory.insert(*memory);
    return cudaSuccess;
}

/* It waits for all that is under way, and may say what went wrong there; the memory is free all the same. */
cudaError_t cudaFree(void *memory)
{
    LOCKED;
    cudaError_t error = enter(__func__, false);

    run_legacy();
    if (memory)
        forget(device_memory, memory, __func__);
    free(memory);
    return error;
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    ENTER(false);
    if (flags != (cudaHostAllocPortable | cudaHostAllocMapped))
        die("%s: not for all GPUs", __func__);
    *memory = malloc(bytes);
    memset(*memory, 0xff, bytes);
    pinned_memory.insert(*memory);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    ENTER(false);
    if (memory)
        forget(pinned_memory, memory, __func__);
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *memory, int value, size_t bytes)
{
    ENTER(false);
    legacy.push_back([=] { memset(memory, value, bytes); });
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    ENTER(false);
    if (flags != cudaStreamNonBlocking)
        die("a stream that waits for the default one");
    *stream = new CUstream_st{current, {}, nullptr};
    streams.insert(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    ENTER(false);
    of(__func__, stream->device);
    forget(streams, stream, __func__);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    ENTER(false);
    if (stream == cudaStreamLegacy) {
        run_legacy();
        return cudaSuccess;
    }
    of(__func__, stream->device);
    run(stream, stream->queue.size());
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    ENTER(true);
    of(__func__, stream->device);
    if (kind != cudaMemcpyDefault)
        return cudaErrorInvalidValue;
    return enqueue(stream, [=] { memcpy(to, from, bytes); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    ENTER(false);
    *event = new CUevent_st{current, nullptr, 0, 0};
    events.insert(*event);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    ENTER(false);
    forget(events, event, __func__);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    ENTER(false);
    of(__func__, stream->device);
    of(__func__, event->device);
    event->on = stream;
    event->behind = stream->queue.size();
    event->looks = 0;
    return cudaSuccess;
}

/* What was enqueued has run when somebody has looked for the third time. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    ENTER(false);
    if (event->behind > 0 && ++event->looks < 3)
        return cudaErrorNotReady;
    if (event->behind > 0)
        run(event->on, event->behind);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    ENTER(false);
    run(event->on, event->behind);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t, cudaEvent_t)
{
    ENTER(false);
    *milliseconds = 1;
    return cudaSuccess;
}

/* ---- recordings ------------------------------------------------------------------------------ */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    ENTER(false);
    of(__func__, stream->device);
    if (mode != cudaStreamCaptureModeThreadLocal)
        die("a recording that other threads' calls break");
    stream->recording = new CUgraph_st;
    graphs.insert(stream->recording);
    recording = stream;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    LOCKED;
    cudaError_t error = (cudaError_t)fault();

    if (recording != stream)
        die("%s of a stream that this thread does not record", __func__);
    recording = nullptr;
    *graph = stream->recording;
    stream->recording = nullptr;
    if (error != cudaSuccess) { /* the graph is the runtime's then */
        forget(graphs, *graph, __func__);
        delete *graph;
        *graph = nullptr;
    }
    return error;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long)
{
    ENTER(false);
    *executable = new CUgraphExec_st{graph->work};
    executables.insert(*executable);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    LOCKED;
    forget(graphs, graph, __func__);
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream)
{
    ENTER(false);
    of(__func__, stream->device);
    for (const auto &work : executable->work)
        enqueue(stream, work);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable)
{
    ENTER(false);
    forget(executables, executable, __func__);
    delete executable;
    return cudaSuccess;
}

/* ---- the driver ------------------------------------------------------------------------------ */

static CUresult device_get(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice)
{
    *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ? standin.maps
             : attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
                 ? standin.lends
             : attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
                 ? standin.direct
                 : 0;
    return CUDA_SUCCESS;
}

static CUresult granularity(size_t *bytes, const CUmemAllocationProp *,
                            CUmemAllocationGranularity_flags)
{
    *bytes = STANDIN_GRANULE;
    return (CUresult)fault();
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes,
                       const CUmemAllocationProp *properties, unsigned long long)
{
    static unsigned long long next = 1;
    LOCKED;
    int error = fault(), fd;

    if (error)
        return (CUresult)error;
    of("cuMemCreate", properties->location.id);
    if (!standin.maps || !standin.lends || bytes == 0 || bytes % STANDIN_GRANULE != 0 ||
        (properties->allocFlags.gpuDirectRDMACapable && !standin.direct))
        return CUDA_ERROR_INVALID_VALUE;
    fd = memfd_create("stand-in", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        die("no memory");
    handles[ *handle = next++] = fd;
    return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    LOCKED;
    if (handles.count(handle) != 1)
        die("cuMemRelease of what is not there");
    close(handles[handle]);
    handles.erase(handle);
    return CUDA_SUCCESS;
}

static CUresult reserve(CUdeviceptr *address, size_t bytes, size_t, CUdeviceptr, unsigned long long)
{
    LOCKED;
    int error = fault();

    if (error)
        return (CUresult)error;
    if (bytes % STANDIN_GRANULE != 0)
        return CUDA_ERROR_INVALID_VALUE;
    *address = (CUdeviceptr)mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    addresses[*address] = {bytes, false, false};
    return CUDA_SUCCESS;
}

static mapping &reserved(const char *call, CUdeviceptr address, size_t bytes, bool mapped)
{
    auto found = addresses.find(address);

    if (found == addresses.end() || found->second.bytes != bytes || found->second.mapped != mapped)
        die("%s of what was not reserved so", call);
    return found->second;
}

static CUresult unreserve(CUdeviceptr address, size_t bytes)
{
    LOCKED;
    reserved("cuMemAddressFree", address, bytes, false);
    munmap((void *)address, bytes);
    addresses.erase(address);
    return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle handle,
                    unsigned long long)
{
    LOCKED;
    int error = fault();

    if (error)
        return (CUresult)error;
    if (mmap((void *)address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, handles.at(handle), 0) ==
        MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    reserved("cuMemMap", address, bytes, false).mapped = true;
    return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr address, size_t bytes)
{
    LOCKED;
    run_legacy();
    reserved("cuMemUnmap", address, bytes, true).mapped = false;
    return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
                           size_t count)
{
    LOCKED;
    int error = fault();

    if (error)
        return (CUresult)error;
    reserved("cuMemSetAccess", address, bytes, true);
    if (count != 1 || access->location.id != current)
        die("access for GPU %d by a thread that means GPU %d", access->location.id, current);
    mprotect((void *)address, bytes, PROT_READ | PROT_WRITE);
    return CUDA_SUCCESS;
}

static CUresult export_handle(void *to, CUmemGenericAllocationHandle handle,
                              CUmemAllocationHandleType, unsigned long long)
{
    LOCKED;
    int error = fault();

    if (error)
        return (CUresult)error;
    *(int *)to = dup(handles.at(handle));
    return CUDA_SUCCESS;
}

static CUresult import_handle(CUmemGenericAllocationHandle *handle, void *from,
                              CUmemAllocationHandleType)
{
    static unsigned long long next = 1 << 20;
    LOCKED;
    int error = fault();

    if (error)
        return (CUresult)error;
    handles[ *handle = next++] = dup((int)(intptr_t)from);
    return CUDA_SUCCESS;
}

/* Of whole pages, of memory that network cards may reach. */
static CUresult range_handle(void *to, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
                             unsigned long long)
{
    LOCKED;
    int error = fault();

    if (error)
        return (CUresult)error;
    if (!standin.direct || address % 4096 != 0 || bytes % 4096 != 0 ||
        type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD)
        return CUDA_ERROR_NOT_SUPPORTED;
    *(int *)to = memfd_create("dmabuf", MFD_CLOEXEC);
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *result)
{
    static const struct {
        const char *name;
        unsigned since;
        void *function;
    } all[] = {
        {"cuDeviceGet", 2000, (void *)device_get},
        {"cuDeviceGetAttribute", 2000, (void *)device_attribute},
        {"cuMemGetAllocationGranularity", 10020, (void *)granularity},
        {"cuMemCreate", 10020, (void *)create},
        {"cuMemRelease", 10020, (void *)release},
        {"cuMemAddressReserve", 10020, (void *)reserve},
        {"cuMemAddressFree", 10020, (void *)unreserve},
        {"cuMemMap", 10020, (void *)map},
        {"cuMemUnmap", 10020, (void *)unmap},
        {"cuMemSetAccess", 10020, (void *)set_access},
        {"cuMemExportToShareableHandle", 10020, (void *)export_handle},
        {"cuMemImportFromShareableHandle", 10020, (void *)import_handle},
        {"cuMemGetHandleForAddressRange", 11070, (void *)range_handle},
    };

    ENTER(false);
    if (flags != cudaEnableDefault)
        return cudaErrorInvalidValue;
    *result = cudaDriverEntryPointSymbolNotFound;
    for (const auto &one : all) {
        if (strcmp(one.name, symbol) != 0)
            continue;
        *result = version < one.since ? cudaDriverEntryPointVersionNotSufficent
                                      : cudaDriverEntryPointSuccess;
        *function = version < one.since ? nullptr : one.function;
    }
    return cudaSuccess;
}
