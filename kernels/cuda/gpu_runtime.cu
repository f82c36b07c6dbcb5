/* runtime.h on a GPU, over the CUDA runtime. The driver's virtual memory calls, which the runtime
 * lacks, are asked of it by name, so the program links with the static runtime alone and starts
 * where there is no driver.
 *
 * Any thread may come, and for any GPU: each call first says which it means, as the runtime keeps that for
 * each thread, and takes GPU 0 for a thread that has not said. Errors are those that a call returns; the
 * runtime's last error, which a look at an event sets too, nobody asks for. */

#include "kernels/cuda/gpu.h"

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/cuda.h"

/* ---- the driver's calls ---------------------------------------------------------------------- */

struct driver {
    decltype(&cuDeviceGet) device;
    decltype(&cuDeviceGetAttribute) attribute;
    decltype(&cuMemGetAllocationGranularity) granularity;
    decltype(&cuMemCreate) create;
    decltype(&cuMemRelease) release;
    decltype(&cuMemAddressReserve) reserve;
    decltype(&cuMemAddressFree) unreserve;
    decltype(&cuMemMap) map;
    decltype(&cuMemUnmap) unmap;
    decltype(&cuMemSetAccess) set_access;
    decltype(&cuMemExportToShareableHandle) export_handle;
    decltype(&cuMemImportFromShareableHandle) import_handle;
};

/* As it was in version `since` of CUDA. */
template <typename F> static int find(const char *name, F *function, unsigned since = 11020)
{
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    int error =
        cudaGetDriverEntryPointByVersion(name, (void **)function, since, cudaEnableDefault, &found);

    return error != 0 ? error : found != cudaDriverEntryPointSuccess ? cudaErrorNotSupported : 0;
}

static int find_driver(struct driver *driver)
{
    int error = find("cuDeviceGet", &driver->device);

    error = error ? error : find("cuDeviceGetAttribute", &driver->attribute);
    error = error ? error : find("cuMemGetAllocationGranularity", &driver->granularity);
    error = error ? error : find("cuMemCreate", &driver->create);
    error = error ? error : find("cuMemRelease", &driver->release);
    error = error ? error : find("cuMemAddressReserve", &driver->reserve);
    error = error ? error : find("cuMemAddressFree", &driver->unreserve);
    error = error ? error : find("cuMemMap", &driver->map);
    error = error ? error : find("cuMemUnmap", &driver->unmap);
    error = error ? error : find("cuMemSetAccess", &driver->set_access);
    error = error ? error : find("cuMemExportToShareableHandle", &driver->export_handle);
    return error ? error : find("cuMemImportFromShareableHandle", &driver->import_handle);
}

/* ---- open and close -------------------------------------------------------------------------- */

extern "C" {

const char *pd_cuda_error_text(int error)
{
    return cudaGetErrorString((cudaError_t)error);
}

int pd_cuda_bind(struct pd_cuda_runtime *runtime)
{
    return cudaSetDevice(runtime->ordinal);
}

static int open_device(struct pd_cuda_runtime *runtime)
{
    int error = pd_cuda_bind(runtime);

    error = error ? error : cudaGetDeviceProperties(&runtime->properties, runtime->ordinal);
    error = error ? error : cudaStreamCreateWithFlags(&runtime->stream, cudaStreamNonBlocking);
    for (int i = 0; i < 2; i++)
        error =
            error ? error : cudaEventCreateWithFlags(&runtime->event[i], cudaEventDisableTiming);
    return error;
}

const char *pd_cuda_library_file(enum pd_cuda_library_kind kind)
{
    return kind == PD_CUDA_LIBRARY_CUBLASLT ? pd_gpu_gemm_file() : "libnccl.so.2";
}

int pd_cuda_open(int ordinal, const struct pd_cuda_library *cublaslt, struct pd_cuda_runtime **out,
                 char *error, size_t size)
{
    struct pd_cuda_runtime *runtime = (struct pd_cuda_runtime *)calloc(1, sizeof(*runtime));
    int status = runtime == NULL ? cudaErrorMemoryAllocation : 0;

    *out = NULL;
    if (runtime != NULL) {
        runtime->ordinal = ordinal;
        status = open_device(runtime);
    }
    if (status != 0)
        snprintf(error, size, "GPU %d cannot be opened: %s", ordinal,
                 cudaGetErrorString((cudaError_t)status));
    else if (cublaslt != NULL)
        status = pd_gpu_gemm_open(runtime, cublaslt, error, size);
    if (status != 0 && runtime != NULL)
        pd_cuda_close(runtime);
    else
        *out = runtime;
    return status;
}

void pd_cuda_close(struct pd_cuda_runtime *runtime)
{
    pd_cuda_bind(runtime);
    pd_gpu_gemm_close(runtime);
    for (int i = 0; i < 2; i++)
        if (runtime->event[i] != NULL)
            cudaEventDestroy(runtime->event[i]);
    if (runtime->stream != NULL)
        cudaStreamDestroy(runtime->stream);
    free(runtime);
}

void pd_cuda_info(struct pd_cuda_runtime *runtime, struct pd_cuda_device_info *info)
{
    size_t free_bytes = 0, total = 0;

    memset(info, 0, sizeof(*info));
    if (pd_cuda_bind(runtime) == 0)
        cudaMemGetInfo(&free_bytes, &total);
    snprintf(info->name, sizeof(info->name), "%.*s", (int)sizeof(info->name) - 1,
             runtime->properties.name);
    info->major = runtime->properties.major;
    info->minor = runtime->properties.minor;
    info->memory_total = total;
    info->memory_free = free_bytes;
}

int pd_cuda_reach(struct pd_cuda_runtime *runtime, const struct pd_cuda_runtime *peer)
{
    int possible = 0;
    int error = pd_cuda_bind(runtime);

    if (error != 0 || runtime->ordinal == peer->ordinal)
        return error;
    error = cudaDeviceCanAccessPeer(&possible, runtime->ordinal, peer->ordinal);
    if (error == 0)
        error = possible ? cudaDeviceEnablePeerAccess(peer->ordinal, 0)
                         : cudaErrorPeerAccessUnsupported;
    return error == cudaErrorPeerAccessAlreadyEnabled ? 0 : error;
}

int pd_cuda_memory(int ordinal, uint64_t *total, uint64_t *available)
{
    size_t all = 0, left = 0;
    int error = cudaSetDevice(ordinal);

    error = error ? error : cudaMemGetInfo(&left, &all);
    *total = all;
    *available = left;
    return error;
}

void *pd_cuda_stream(struct pd_cuda_runtime *runtime)
{
    return runtime->stream;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* What the default stream zeroes, neither the stream nor a lane waits for by itself. */
static int zero(void *memory, size_t bytes)
{
    int error = cudaMemset(memory, 0, bytes);

    return error ? error : cudaStreamSynchronize(cudaStreamLegacy);
}

int pd_cuda_allocate(struct pd_cuda_runtime *runtime, size_t bytes, void **memory)
{
    int error = pd_cuda_bind(runtime);

    *memory = NULL;
    if (error != 0 || (error = cudaMalloc(memory, bytes)) != 0 ||
        (error = zero(*memory, bytes)) == 0)
        return error;
    cudaFree(*memory);
    *memory = NULL;
    return error;
}

void pd_cuda_free(struct pd_cuda_runtime *runtime, void *memory)
{
    if (memory != NULL && pd_cuda_bind(runtime) == 0)
        cudaFree(memory);
}

int pd_cuda_allocate_pinned(struct pd_cuda_runtime *runtime, size_t bytes, void **memory)
{
    int error = pd_cuda_bind(runtime);

    *memory = NULL;
    if (error == 0)
        error = cudaHostAlloc(memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    if (error == 0)
        memset(*memory, 0, bytes);
    return error;
}

void pd_cuda_free_pinned(struct pd_cuda_runtime *runtime, void *memory)
{
    if (memory != NULL && pd_cuda_bind(runtime) == 0)
        cudaFreeHost(memory);
}

static CUmemLocation location_of(const struct pd_cuda_runtime *runtime)
{
    CUmemLocation location = {};

    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = runtime->ordinal;
    return location;
}

static bool has(const struct driver *driver, const struct pd_cuda_runtime *runtime,
                CUdevice_attribute attribute)
{
    CUdevice device;
    int value = 0;

    return driver->device(&device, runtime->ordinal) == CUDA_SUCCESS &&
           driver->attribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
}

/* Not every GPU can lend memory: in some containers, and under some hypervisors, none can. */
static bool can_lend(const struct driver *driver, const struct pd_cuda_runtime *runtime)
{
    return has(driver, runtime, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
           has(driver, runtime, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
}

/* That network cards may reach it is asked for where the GPU knows such memory: others refuse the flag. */
static CUmemAllocationProp shared_properties(const struct driver *driver,
                                             const struct pd_cuda_runtime *runtime)
{
    CUmemAllocationProp properties = {};

    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = location_of(runtime);
    properties.allocFlags.gpuDirectRDMACapable =
        has(driver, runtime, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
    return properties;
}

/* At an address of its own, for one GPU. */
static int map_handle(const struct driver *driver, CUmemGenericAllocationHandle handle,
                      CUmemLocation location, CUmemAccess_flags allowed, size_t bytes,
                      CUdeviceptr *address)
{
    CUmemAccessDesc access = {};
    int error = driver->reserve(address, bytes, 0, 0, 0);

    if (error != 0)
        return error;
    access.location = location;
    access.flags = allowed;
    error = driver->map(*address, bytes, 0, handle, 0);
    if (error == 0 && (error = driver->set_access(*address, bytes, &access, 1)) != 0)
        driver->unmap(*address, bytes);
    if (error != 0)
        driver->unreserve(*address, bytes);
    return error;
}

static void unmap(const void *memory, size_t bytes)
{
    struct driver driver;

    if (find_driver(&driver) == 0) {
        driver.unmap((CUdeviceptr)memory, bytes);
        driver.unreserve((CUdeviceptr)memory, bytes);
    }
}

/* One reservation, one handle: what a network card registers and another process maps. */
static int create_shared(const struct driver *driver, const CUmemAllocationProp *properties,
                         size_t bytes, CUdeviceptr *address, int *fd)
{
    CUmemGenericAllocationHandle handle;
    int error = driver->create(&handle, bytes, properties, 0);

    if (error != 0)
        return error;
    error = driver->export_handle(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (error == 0)
        error = map_handle(driver, handle, properties->location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                           bytes, address);
    driver->release(handle); /* the mapping and the descriptor hold it */
    if (error != 0 && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return error;
}

void pd_cuda_free_shared(struct pd_cuda_runtime *runtime, void *memory, size_t bytes, int fd)
{
    if (fd < 0) {
        pd_cuda_free(runtime, memory);
        return;
    }
    unmap(memory, bytes);
    close(fd);
}

int pd_cuda_allocate_shared(struct pd_cuda_runtime *runtime, size_t *bytes, void **memory, int *fd)
{
    CUmemAllocationProp properties;
    struct driver driver;
    size_t granularity = 0;
    CUdeviceptr address = 0;
    int error = pd_cuda_bind(runtime);

    *fd = -1;
    *memory = NULL;
    error = error ? error : find_driver(&driver);
    if (error == 0 && !can_lend(&driver, runtime))
        return pd_cuda_allocate(runtime, *bytes, memory);
    if (error == 0) {
        properties = shared_properties(&driver, runtime);
        error = driver.granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    }
    if (error != 0)
        return error;
    *bytes = (*bytes + granularity - 1) / granularity * granularity;
    error = create_shared(&driver, &properties, *bytes, &address, fd);
    if (error != 0)
        return error;
    *memory = (void *)address;
    error = zero(*memory, *bytes);
    if (error != 0) {
        pd_cuda_free_shared(runtime, *memory, *bytes, *fd);
        *memory = NULL;
        *fd = -1;
    }
    return error;
}

/* The driver takes the descriptor as a pointer, and a reference of its own. */
int pd_cuda_import(struct pd_cuda_runtime *runtime, int fd, size_t bytes, void **memory)
{
    CUmemGenericAllocationHandle handle;
    struct driver driver;
    CUdeviceptr address = 0;
    int error = pd_cuda_bind(runtime);

    *memory = NULL;
    error = error ? error : find_driver(&driver);
    if (error == 0)
        error = driver.import_handle(&handle, (void *)(intptr_t)fd,
                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (error != 0)
        return error;
    error = map_handle(&driver, handle, location_of(runtime), CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                       bytes, &address);
    driver.release(handle); /* the mapping holds it */
    *memory = error == 0 ? (void *)address : NULL;
    return error;
}

void pd_cuda_forget(struct pd_cuda_runtime *, void *memory, size_t bytes)
{
    unmap(memory, bytes);
}

void pd_cuda_declare(struct pd_cuda_runtime *, const void *const *, int)
{
}

/* Since CUDA 11.7; the reservation begins and ends on the driver's pages. */
int pd_cuda_dmabuf(struct pd_cuda_runtime *runtime, void *memory, size_t bytes)
{
    decltype(&cuMemGetHandleForAddressRange) handle_of;
    int fd = -1;

    if (pd_cuda_bind(runtime) != 0 ||
        find("cuMemGetHandleForAddressRange", &handle_of, 11070) != 0 ||
        handle_of(&fd, (CUdeviceptr)memory, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) != 0)
        return -1;
    return fd;
}

int pd_cuda_copy(struct pd_cuda_runtime *runtime, void *to, const void *from, size_t bytes)
{
    int error = pd_cuda_bind(runtime);

    return error ? error : cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, runtime->stream);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

struct pd_cuda_lane {
    int ordinal;
    cudaStream_t stream;
};

int pd_cuda_lane_open(struct pd_cuda_runtime *runtime, struct pd_cuda_lane **out)
{
    struct pd_cuda_lane *lane = (struct pd_cuda_lane *)calloc(1, sizeof(*lane));
    int error = lane == NULL ? cudaErrorMemoryAllocation : pd_cuda_bind(runtime);

    *out = NULL;
    if (error == 0) {
        lane->ordinal = runtime->ordinal;
        error = cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking);
    }
    if (error == 0)
        *out = lane;
    else
        free(lane);
    return error;
}

void pd_cuda_lane_close(struct pd_cuda_lane *lane)
{
    if (lane == NULL)
        return;
    pd_cuda_lane_wait(lane);
    cudaStreamDestroy(lane->stream);
    free(lane);
}

int pd_cuda_lane_copy(struct pd_cuda_lane *lane, void *to, const void *from, size_t bytes)
{
    int error = cudaSetDevice(lane->ordinal);

    return error ? error : cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, lane->stream);
}

int pd_cuda_lane_gather(struct pd_cuda_lane *lane, const void *pool,
                        const struct pd_cuda_ranges *ranges, void *buffer)
{
    int error = cudaSetDevice(lane->ordinal);

    return error ? error : pd_cuda_gather_ranges(lane->stream, pool, ranges, buffer);
}

int pd_cuda_lane_scatter(struct pd_cuda_lane *lane, const void *buffer,
                         const struct pd_cuda_ranges *ranges, void *pool)
{
    int error = cudaSetDevice(lane->ordinal);

    return error ? error : pd_cuda_scatter_ranges(lane->stream, buffer, ranges, pool);
}

int pd_cuda_lane_wait(struct pd_cuda_lane *lane)
{
    int error = cudaSetDevice(lane->ordinal);

    return error ? error : cudaStreamSynchronize(lane->stream);
}

/* ---- order ----------------------------------------------------------------------------------- */

int pd_cuda_mark(struct pd_cuda_runtime *runtime, int event)
{
    int error = pd_cuda_bind(runtime);

    return error ? error : cudaEventRecord(runtime->event[event], runtime->stream);
}

int pd_cuda_reached(struct pd_cuda_runtime *runtime, int event)
{
    int error = pd_cuda_bind(runtime);

    error = error ? error : cudaEventQuery(runtime->event[event]);
    return error == cudaSuccess ? 1 : error == cudaErrorNotReady ? 0 : -1 - error;
}

int pd_cuda_drain(struct pd_cuda_runtime *runtime)
{
    int error = pd_cuda_bind(runtime);

    return error ? error : cudaStreamSynchronize(runtime->stream);
}

int pd_cuda_fence(struct pd_cuda_runtime *runtime)
{
    int supported = 0, error = pd_cuda_bind(runtime);

    error = error ? error
                  : cudaDeviceGetAttribute(&supported, cudaDevAttrGPUDirectRDMAFlushWritesOptions,
                                           runtime->ordinal);
    if (error != 0 || !(supported & cudaFlushGPUDirectRDMAWritesOptionHost))
        return error;
    return cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                              cudaFlushGPUDirectRDMAWritesToOwner);
}

/* ---- recordings ------------------------------------------------------------------------------ */

struct pd_cuda_recording {
    cudaGraphExec_t executable;
};

int pd_cuda_record_begin(struct pd_cuda_runtime *runtime)
{
    int error = pd_cuda_bind(runtime);

    return error ? error
                 : cudaStreamBeginCapture(runtime->stream, cudaStreamCaptureModeThreadLocal);
}

int pd_cuda_record_end(struct pd_cuda_runtime *runtime, struct pd_cuda_recording **out)
{
    struct pd_cuda_recording *recording = (struct pd_cuda_recording *)calloc(1, sizeof(*recording));
    cudaGraph_t graph = NULL;
    int error = cudaStreamEndCapture(runtime->stream, &graph);

    *out = NULL;
    if (error == 0)
        error = recording == NULL ? cudaErrorMemoryAllocation
                                  : cudaGraphInstantiate(&recording->executable, graph, 0);
    if (graph != NULL)
        cudaGraphDestroy(graph);
    if (error == 0)
        *out = recording;
    else
        free(recording);
    return error;
}

int pd_cuda_replay(struct pd_cuda_runtime *runtime, struct pd_cuda_recording *recording)
{
    int error = pd_cuda_bind(runtime);

    return error ? error : cudaGraphLaunch(recording->executable, runtime->stream);
}

void pd_cuda_recording_free(struct pd_cuda_runtime *runtime, struct pd_cuda_recording *recording)
{
    if (recording != NULL && pd_cuda_bind(runtime) == 0)
        cudaGraphExecDestroy(recording->executable);
    free(recording);
}
}
