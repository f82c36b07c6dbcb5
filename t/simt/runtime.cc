/* kernels/cuda/runtime.h on the host: the device's memory is the host's (memory.h), a stream has always
 * run already. */

#include "kernels/cuda/runtime.h"

#include <algorithm>
#include <atomic>
#include <fcntl.h>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/pd_simt.cuh"
#include "t/simt/control.h"
#include "t/simt/memory.h"

enum { GPUS = 8 };
static const uint64_t MEMORY = (uint64_t)1 << 32;
enum {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    ILLEGAL_ADDRESS = 700,
    NOT_WHILE_RECORDING = 900
}; /* as CUDA has them */

struct pd_cuda_recording {
    pd_simt::recording work;
};

/* What came from outside into memory that can be exported: launches do not see it before the fence. */
struct arrival {
    const struct pd_cuda_runtime *on;
    void *to;
    std::vector<char> bytes;
};

static std::mutex arrivals_lock;
static std::vector<arrival> arrivals;

struct pd_cuda_lane {
    const struct pd_cuda_runtime *on;
    uintptr_t seed;
    std::mutex lock;
    std::vector<std::function<int()>> under_way;

    int begin(std::function<int()> work)
    {
        int error = pd_simt::fault();
        std::lock_guard<std::mutex> locked(lock);

        if (!error)
            under_way.push_back(std::move(work));
        return error;
    }

    int arrive()
    {
        std::lock_guard<std::mutex> locked(lock);
        int error = 0;

        for (const auto &work : under_way)
            error = error ? error : work();
        under_way.clear();
        return error;
    }
};

static void deliver(const struct pd_cuda_runtime *on, void *to, const void *from, size_t bytes)
{
    pd_simt::opened both({to, from});
    const char *first = static_cast<const char *>(from);

    if (pd_simt::is_shared(to)) {
        std::lock_guard<std::mutex> held(arrivals_lock);

        arrivals.push_back({on, to, {first, first + bytes}});
    } else {
        memcpy(to, from, bytes);
    }
}

/* What a lane launches touches these, whatever its thread has declared for launches of its own. */
static int with(const void *pool, const void *buffer, const std::function<int()> &launch)
{
    const std::vector<const void *> before = pd_simt::declared();
    const void *const both[] = {pool, buffer};
    int error;

    pd_simt::declare(both, 2);
    error = launch();
    pd_simt::declare(before.data(), (int)before.size());
    return error;
}

/* Into a memory beside the pool, out of which the ranges are delivered: it may be one that shows nothing before
 * the fence. */
static int scatter(const struct pd_cuda_lane *lane, const void *buffer,
                   const struct pd_cuda_ranges &ranges, void *pool)
{
    struct pd_cuda_ranges beside = ranges;
    uint64_t bytes = 0;
    void *memory;
    int error;

    for (int i = 0; i < ranges.count; i++) {
        beside.range[i].pool = bytes;
        bytes += ranges.range[i].bytes;
    }
    memory = pd_simt::allocate(bytes, false);
    if (!memory)
        return OUT_OF_MEMORY;
    error = with(memory, buffer, [&] {
        return pd_cuda_scatter_ranges((void *)lane->seed, buffer, &beside, memory);
    });
    for (int i = 0; i < ranges.count && !error; i++)
        deliver(lane->on, static_cast<char *>(pool) + ranges.range[i].pool,
                static_cast<const char *>(memory) + beside.range[i].pool, ranges.range[i].bytes);
    pd_simt::release(memory);
    return error;
}

static void forget_arrivals(const struct pd_cuda_runtime *on)
{
    std::lock_guard<std::mutex> held(arrivals_lock);

    arrivals.erase(std::remove_if(arrivals.begin(), arrivals.end(),
                                  [on](const arrival &one) { return one.on == on; }),
                   arrivals.end());
}

static std::atomic<long> replays;

/* Libraries that any host has stand in for NVIDIA's: what they would do is done here. */
static const char *library_files[PD_CUDA_LIBRARIES] = {"libm.so.6", "libdl.so.2"};

/* Of calls that cannot be recorded. */
static int refuse()
{
    return pd_simt::is_recording() ? NOT_WHILE_RECORDING : pd_simt::fault();
}

struct pd_cuda_runtime {
    uintptr_t seed;                      /* of the next launches' order of threads */
    struct pd_cuda_recording *recording; /* begun and not ended */
};

extern "C" {

const char *pd_cuda_library_file(enum pd_cuda_library_kind kind)
{
    return getenv("PD_SIMT_NO_LIBRARIES") ? "libnone.so.0" : library_files[kind];
}

int pd_cuda_open(int ordinal, const struct pd_cuda_library *, struct pd_cuda_runtime **runtime,
                 char *error, size_t size)
{
    const char *seed = getenv("PD_SIMT_SEED");
    int fault = pd_simt::fault();

    *runtime = nullptr;
    if (fault) {
        snprintf(error, size, "GPU %d cannot be opened: %s", ordinal, pd_cuda_error_text(fault));
        return fault;
    }
    if (getenv("PD_SIMT_NO_GPU")) { /* as on a machine without one */
        snprintf(error, size, "GPU %d cannot be opened: no CUDA-capable device is detected",
                 ordinal);
        return PD_CUDA_NO_DEVICE;
    }
    if (ordinal < 0 || ordinal >= GPUS) {
        snprintf(error, size, "there is no GPU %d", ordinal);
        return 1;
    }
    *runtime = new pd_cuda_runtime{seed ? (uintptr_t)strtoull(seed, nullptr, 10) : 1, nullptr};
    return 0;
}

void pd_cuda_close(struct pd_cuda_runtime *runtime)
{
    forget_arrivals(runtime);
    delete runtime->recording;
    delete runtime;
}

void pd_cuda_info(struct pd_cuda_runtime *, struct pd_cuda_device_info *info)
{
    memset(info, 0, sizeof(*info));
    snprintf(info->name, sizeof(info->name), "SIMT shim on the host");
    info->memory_total = info->memory_free = MEMORY;
}

int pd_cuda_memory(int ordinal, uint64_t *total, uint64_t *available)
{
    *total = MEMORY;
    *available = MEMORY - MEMORY / 16; /* as if somebody else were there */
    return ordinal < 0 || ordinal >= GPUS ? 101 : pd_simt::fault();
}

const char *pd_cuda_error_text(int error)
{
    switch (error) {
    case OUT_OF_MEMORY:
        return "out of memory";
    case ILLEGAL_ADDRESS:
        return "an illegal memory access was encountered";
    case NOT_WHILE_RECORDING:
        return "operation not permitted when stream is capturing";
    case 101:
        return "invalid device ordinal";
    default:
        return "unknown error";
    }
}

int pd_cuda_bind(struct pd_cuda_runtime *)
{
    return pd_simt::fault();
}

int pd_cuda_reach(struct pd_cuda_runtime *, const struct pd_cuda_runtime *)
{
    return pd_simt::fault();
}

void *pd_cuda_stream(struct pd_cuda_runtime *runtime)
{
    return (void *)runtime->seed;
}

static int allocate(size_t bytes, bool pinned, void **memory)
{
    int error = refuse();

    *memory = error ? nullptr : pd_simt::allocate(bytes, pinned);
    return error ? error : *memory ? 0 : OUT_OF_MEMORY;
}

int pd_cuda_allocate(struct pd_cuda_runtime *, size_t bytes, void **memory)
{
    return allocate(bytes, false, memory);
}

void pd_cuda_free(struct pd_cuda_runtime *, void *memory)
{
    pd_simt::release(memory);
}

int pd_cuda_allocate_pinned(struct pd_cuda_runtime *, size_t bytes, void **memory)
{
    return allocate(bytes, true, memory);
}

void pd_cuda_free_pinned(struct pd_cuda_runtime *, void *memory)
{
    pd_simt::release(memory);
}

int pd_cuda_allocate_shared(struct pd_cuda_runtime *, size_t *bytes, void **memory, int *fd)
{
    int error = refuse();

    *fd = -1;
    *memory = nullptr;
    if (error)
        return error;
    *fd = memfd_create("simt-kv", MFD_CLOEXEC);
    if (*fd >= 0 && ftruncate(*fd, (off_t)*bytes) == 0) {
        *memory = pd_simt::allocate_file(*bytes, *fd, true);
        if (*memory)
            return 0;
    }
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    *memory = nullptr;
    return OUT_OF_MEMORY;
}

void pd_cuda_free_shared(struct pd_cuda_runtime *, void *memory, size_t, int fd)
{
    pd_simt::release(memory);
    close(fd);
}

/* As the driver: another process's descriptor, of all of its memory. */
int pd_cuda_import(struct pd_cuda_runtime *, int fd, size_t bytes, void **memory)
{
    struct stat status;
    int error = refuse();

    *memory = nullptr;
    if (!error && (fstat(fd, &status) != 0 || (uint64_t)status.st_size != bytes))
        error = INVALID_VALUE;
    if (!error && !(*memory = pd_simt::allocate_file(bytes, fd, false)))
        error = OUT_OF_MEMORY;
    return error;
}

void pd_cuda_forget(struct pd_cuda_runtime *, void *memory, size_t)
{
    pd_simt::release(memory);
}

void pd_cuda_declare(struct pd_cuda_runtime *, const void *const *addresses, int count)
{
    pd_simt::declare(addresses, count);
}

/* Shows what came for this device. */
static void settle(const struct pd_cuda_runtime *on)
{
    std::lock_guard<std::mutex> held(arrivals_lock);
    std::vector<arrival> others;

    for (arrival &one : arrivals) {
        if (one.on != on) {
            others.push_back(std::move(one));
            continue;
        }
        pd_simt::opened open({one.to});

        memcpy(one.to, one.bytes.data(), one.bytes.size());
    }
    arrivals.swap(others);
}

static void move(void *to, const void *from, size_t bytes)
{
    pd_simt::opened both({to, from});

    memcpy(to, from, bytes);
}

int pd_cuda_copy(struct pd_cuda_runtime *, void *to, const void *from, size_t bytes)
{
    return pd_simt::enqueue([=] { move(to, from, bytes); });
}

int pd_cuda_dmabuf(struct pd_cuda_runtime *, void *, size_t)
{
    return -1;
}

/* ---- lanes: a copy arrives as late as it may ------------------------------------------------- */

int pd_cuda_lane_open(struct pd_cuda_runtime *runtime, struct pd_cuda_lane **lane)
{
    int error = pd_simt::fault();

    *lane = error ? nullptr : new pd_cuda_lane{runtime, runtime->seed, {}, {}};
    return error;
}

void pd_cuda_lane_close(struct pd_cuda_lane *lane)
{
    if (lane)
        lane->arrive();
    delete lane;
}

int pd_cuda_lane_copy(struct pd_cuda_lane *lane, void *to, const void *from, size_t bytes)
{
    return lane->begin([=] {
        deliver(lane->on, to, from, bytes);
        return 0;
    });
}

int pd_cuda_lane_gather(struct pd_cuda_lane *lane, const void *pool,
                        const struct pd_cuda_ranges *ranges, void *buffer)
{
    return lane->begin([=, table = *ranges] {
        return with(pool, buffer, [&] {
            return pd_cuda_gather_ranges((void *)lane->seed, pool, &table, buffer);
        });
    });
}

int pd_cuda_lane_scatter(struct pd_cuda_lane *lane, const void *buffer,
                         const struct pd_cuda_ranges *ranges, void *pool)
{
    return lane->begin([=, table = *ranges] { return scatter(lane, buffer, table, pool); });
}

int pd_cuda_lane_wait(struct pd_cuda_lane *lane)
{
    int error = pd_simt::fault();

    return error ? error : lane->arrive();
}

int pd_cuda_mark(struct pd_cuda_runtime *, int)
{
    return refuse();
}

int pd_cuda_reached(struct pd_cuda_runtime *, int)
{
    int error = refuse();

    return error ? -1 - error : 1;
}

int pd_cuda_drain(struct pd_cuda_runtime *)
{
    return refuse();
}

int pd_cuda_fence(struct pd_cuda_runtime *runtime)
{
    int error = refuse();

    if (!error)
        settle(runtime);
    return error;
}

int pd_cuda_record_begin(struct pd_cuda_runtime *runtime)
{
    int error = refuse();

    if (error)
        return error;
    runtime->recording = new pd_cuda_recording;
    pd_simt::record_into(&runtime->recording->work);
    return 0;
}

int pd_cuda_record_end(struct pd_cuda_runtime *runtime, struct pd_cuda_recording **recording)
{
    int error = pd_simt::fault();

    pd_simt::record_into(nullptr);
    *recording = error ? nullptr : runtime->recording;
    if (error)
        delete runtime->recording;
    runtime->recording = nullptr;
    return error;
}

int pd_cuda_replay(struct pd_cuda_runtime *, struct pd_cuda_recording *recording)
{
    int error = refuse();

    for (size_t i = 0; !error && i < recording->work.size(); i++)
        recording->work[i]();
    replays += !error;
    return error;
}

void pd_cuda_recording_free(struct pd_cuda_runtime *, struct pd_cuda_recording *recording)
{
    delete recording;
}

/* ---- the library: algorithms that are alike, but for what a test says of their times --------- */

static void multiply(const struct pd_cuda_product &p)
{
    std::vector<float> floats((size_t)p.tokens * (size_t)p.cols), row((size_t)p.cols);
    auto wide = [&p](uint16_t bits) { return p.bf16 ? pd_from_bf16(bits) : pd_from_f16(bits); };

    for (size_t i = 0; i < floats.size(); i++)
        floats[i] = wide(p.x[i]);
    for (int r = 0; r < p.rows; r++) {
        for (int k = 0; k < p.cols; k++)
            row[k] = wide(p.weight[(size_t)r * (size_t)p.cols + (size_t)k]);
        for (int t = 0; t < p.tokens; t++) {
            const float *from = floats.data() + (size_t)t * (size_t)p.cols;
            float *to = p.out + (size_t)t * (size_t)p.stride + r;
            float sum = 0;

            for (int k = 0; k < p.cols; k++)
                sum += row[k] * from[k];
            *to = (p.accumulate ? *to + sum : sum) + (p.bias ? p.bias[r] : 0);
        }
    }
}

static struct pd_simt_gemms gemms = {3, 1, false, 0, 0, 0, 0, 0, 0};

/* Ranks count together. */
static void count(long *counter, long by)
{
    __atomic_fetch_add(counter, by, __ATOMIC_RELAXED);
}

static const uint64_t SIMT_ALGORITHM = 0x5349;

size_t pd_cuda_gemm_version(struct pd_cuda_runtime *)
{
    return 130000;
}

int pd_cuda_gemm_offers(struct pd_cuda_runtime *, const struct pd_cuda_product *,
                        struct pd_cuda_algorithm *offers, int most, int *found)
{
    count(&gemms.asked, 1);
    *found = gemms.offers < most ? gemms.offers : most;
    for (int i = 0; i < *found; i++)
        offers[i] = {{SIMT_ALGORITHM, (uint64_t)i}};
    return pd_simt::fault();
}

bool pd_cuda_gemm_takes(struct pd_cuda_runtime *, const struct pd_cuda_product *,
                        const struct pd_cuda_algorithm *algorithm)
{
    return algorithm->word[0] == SIMT_ALGORITHM && algorithm->word[1] < (uint64_t)gemms.offers;
}

int pd_cuda_gemm_time(struct pd_cuda_runtime *, const struct pd_cuda_product *,
                      const struct pd_cuda_algorithm *algorithm, float *milliseconds)
{
    int error = refuse();

    count(&gemms.timed, 1);
    *milliseconds = algorithm->word[1] == (uint64_t)gemms.quickest ? 1 : 2;
    return error ? error : gemms.no_memory ? OUT_OF_MEMORY : 0;
}

int pd_cuda_gemm(struct pd_cuda_runtime *, const struct pd_cuda_product *product,
                 const struct pd_cuda_algorithm *algorithm)
{
    count(&gemms.run, 1);
    count(&gemms.biases, product->bias != nullptr);
    count(&gemms.accumulated, product->accumulate);
    __atomic_store_n(&gemms.last, (long)algorithm->word[1], __ATOMIC_RELAXED);
    return pd_simt::enqueue([p = *product, touched = pd_simt::declared()] {
        pd_simt::opened open(touched);

        multiply(p);
    });
}
}

long pd_simt_replays(void)
{
    return replays;
}

size_t pd_simt_held(void)
{
    return pd_simt::held();
}

struct pd_simt_gemms *pd_simt_gemms(void)
{
    return &gemms;
}

const char *pd_simt_library_file(enum pd_cuda_library_kind kind, const char *file)
{
    const char *before = library_files[kind];

    library_files[kind] = file;
    return before;
}
