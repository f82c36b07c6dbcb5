#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/memfd.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#include "kernels/apart.h"
#include "kernels/host.h"
#include "kernels/pages.h"

enum pd_host_command_kind { COMMAND_STEP, COMMAND_HISTORY };

struct pd_host_command {
    struct pd_host_command *next;
    enum pd_host_command_kind kind;
    struct pd_graph *graph; /* step */
    struct pd_step *step;
    int slot, position, count; /* history */
    int32_t tokens[];
};

static const size_t HUGE_PAGE = (size_t)2 << 20;

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t padded(size_t bytes)
{
    size_t page = 4096;

    return (bytes + 64 + page - 1) / page * page;
}

void *pd_host_allocate(size_t bytes)
{
    void *memory;

    if (bytes > SIZE_MAX / 2)
        return NULL;
    memory = mmap(NULL, padded(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, padded(bytes), MADV_HUGEPAGE); /* a wish */
    return memory;
}

void pd_host_free(void *memory, size_t bytes)
{
    if (memory != NULL)
        munmap(memory, padded(bytes));
}

/* Memory that other processes can map: a memfd whose size is sealed, so that who maps it cannot be hit by a
 * truncation. Huge pages are allocated at once or not at all: a page that fails later is a signal. */
static int share_memory(struct pd_buffer *buffer, size_t bytes, unsigned flags)
{
    int fd = memfd_create("pd-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    void *memory = MAP_FAILED;

    if (fd >= 0 && bytes <= INT64_MAX && ftruncate(fd, (off_t)bytes) == 0 &&
        (flags == 0 || fallocate(fd, 0, 0, (off_t)bytes) == 0) &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        memory = pd_pages_map(fd, bytes, PROT_READ | PROT_WRITE);
    if (memory == MAP_FAILED) {
        int reason = errno;
        if (fd >= 0)
            close(fd);
        errno = reason;
        return -1;
    }
    buffer->host = memory;
    buffer->bytes = bytes;
    buffer->fd = fd;
    return 0;
}

/* Reserved huge pages (vm.nr_hugepages) are taken if there are enough; else small ones become huge when
 * something lies there. */
static int allocate_shared(struct pd_buffer *buffer)
{
    size_t asked = buffer->bytes;

    if (asked >= HUGE_PAGE && asked < SIZE_MAX - HUGE_PAGE &&
        share_memory(buffer, (asked + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE,
                     MFD_HUGETLB | MFD_HUGE_2MB) == 0)
        return PD_KERNEL_OK;
    if (share_memory(buffer, asked, 0) != 0)
        return pd_device_fail(buffer->object.device, PD_KERNEL_NO_MEMORY,
                              "cannot reserve a KV pool of %zu bytes: %s", asked, strerror(errno));
    madvise(buffer->host, buffer->bytes, MADV_HUGEPAGE); /* a wish */
    buffer->pages = pd_pages_watch(buffer->fd, buffer->host, buffer->bytes,
                                   &((const struct pd_host *)buffer->object.device)->progress);
    return PD_KERNEL_OK;
}

int pd_host_buffer_allocate(struct pd_buffer *buffer)
{
    if (buffer->kind == PD_BUFFER_KV)
        return allocate_shared(buffer);
    buffer->host = pd_host_allocate(buffer->bytes);
    if (buffer->host == NULL)
        return pd_device_fail(buffer->object.device, PD_KERNEL_NO_MEMORY,
                              "cannot allocate a buffer of %zu bytes", buffer->bytes);
    return PD_KERNEL_OK;
}

void pd_host_buffer_release(struct pd_buffer *buffer)
{
    if (buffer->kind == PD_BUFFER_KV) {
        pd_pages_release(buffer->pages);
        munmap(buffer->host, buffer->bytes);
        close(buffer->fd);
    } else {
        pd_host_free(buffer->host, buffer->bytes);
    }
}

void pd_host_memory(struct pd_device_info *info)
{
    struct sysinfo memory;

    if (sysinfo(&memory) != 0)
        return;
    info->memory_total = (uint64_t)memory.totalram * memory.mem_unit;
    info->memory_free = (uint64_t)memory.freeram * memory.mem_unit;
}

/* ---- the executor ---------------------------------------------------------------------------- */

static const int TO_THE_END = INT_MAX;

static bool is_left(struct pd_host_run const *run, int thread, int at)
{
    struct pd_host *host = run->host;

    if (thread == 0 &&
        atomic_load_explicit(&host->cut, memory_order_relaxed) == run->step->number &&
        atomic_load_explicit(&host->left_at, memory_order_relaxed) == TO_THE_END)
        atomic_store_explicit(&host->left_at, at, memory_order_relaxed);
    pd_team_barrier(host->team);
    return atomic_load_explicit(&host->left_at, memory_order_relaxed) <= at;
}

/* A thread's rows go through operators i .. end - 1, in parts of nearly equal size. */
static void run_apart(const struct pd_host_run *run, int thread, int i, int end)
{
    struct pd_host *host = run->host;
    struct pd_host_run own = *run;
    int first, last, parts;

    pd_host_share(run->step->tokens, PD_HOST_ROWS, thread, host->threads, &first, &last);
    parts = (last - first + host->apart - 1) / host->apart;
    own.apart = true;
    for (int part = 0; part < parts; part++) {
        pd_host_share(last - first, PD_HOST_ROWS, part, parts, &own.first, &own.end);
        own.first += first;
        own.end += first;
        for (int k = i; k < end; k++)
            host->operators[run->graph->ops[k].kind](&own, &run->graph->ops[k], thread);
    }
}

/* Lets whoever else wants this core have it first. A step begins when the one before has just ended, and the tokens of
 * that one are to be carried on: by the engine's thread, by gRPC's, often by a proxy and a client on the same core. They
 * wake one another and wait for one another's locks, and whenever one of them sleeps for a moment, the scheduler finds it
 * fair to let this thread compute for a whole slice, milliseconds in which finished tokens lie about. So it gives up what
 * is left of its slice, and the next one, too, if it is chosen all the same. With nobody else there nothing happens. */
static void give_way(void)
{
    sched_yield();
    sched_yield();
}

/* Every thread of the team walks the list. A publish needs no barrier: what it tells of is behind
 * the barrier before it, and nothing reads what it writes. Ranks that meet have one of their own. */
static void run_operators(void *context, int thread)
{
    const struct pd_host_run *run = context;
    struct pd_host *host = run->host;
    uint64_t delay_ns = pd_delay_ns(&host->delays[thread]);
    bool apart = pd_host_goes_apart(host, run->step->tokens);

    give_way();
    for (int i = 0, end; i < run->graph->count; i = end) {
        const struct pd_op *op = &run->graph->ops[i];

        end = apart ? pd_apart_end(run->graph, i) : i;

        if (op->kind == PD_OP_PUBLISH) {
            if (thread == 0)
                atomic_store_explicit(&host->progress,
                                      run->step->number << 16 | (uint64_t)op->layer,
                                      memory_order_release);
            end = i + 1;
            continue;
        }
        if (end > i) {
            run_apart(run, thread, i, end);
        } else {
            host->operators[op->kind](run, op, thread);
            end = i + 1;
        }
        if (host->ahead != NULL && end < run->graph->count)
            host->ahead(run, &run->graph->ops[end], thread);
        if (op->kind != PD_OP_ALLREDUCE && op->kind != PD_OP_ALLGATHER &&
            is_left(run, thread, end - 1))
            break;
    }
    delay_ns = pd_delay_ns(&host->delays[thread]) - delay_ns;
    if (delay_ns > 0)
        atomic_fetch_add_explicit(&host->delay_ns, delay_ns, memory_order_relaxed);
}

static void run_step(struct pd_host *host, struct pd_host_command *command)
{
    struct pd_host_run run = {.host = host, .graph = command->graph, .step = command->step};

    atomic_store_explicit(&host->left_at, TO_THE_END, memory_order_relaxed);
    if (host->begin != NULL)
        host->begin(&run);
    pd_team_run(host->team, run_operators, &run);
}

static void run_command(struct pd_host *host, struct pd_host_command *command)
{
    if (command->kind == COMMAND_STEP)
        run_step(host, command);
    else
        memcpy(pd_host_history(host, command->slot) + command->position, command->tokens,
               (size_t)command->count * sizeof(*command->tokens));
}

/* Notes under the lock that a command has run. */
static void retire(struct pd_host *host, struct pd_host_command *command)
{
    if (command->kind == COMMAND_STEP) {
        host->completed = command->step->number;
        if (atomic_load_explicit(&host->left_at, memory_order_relaxed) != TO_THE_END)
            host->left = host->completed;
    } else {
        host->waiting_histories--;
        free(command);
    }
}

static void *executor_main(void *argument)
{
    struct pd_host *host = argument;

    pthread_setname_np(pthread_self(), "kernels");
    pd_team_settle(host->team);
    pthread_mutex_lock(&host->lock);
    for (;;) {
        struct pd_host_command *command = host->first;

        host->idle = command == NULL;
        if (command == NULL) {
            if (host->closing)
                break;
            pthread_cond_broadcast(&host->done);
            pthread_cond_wait(&host->queued, &host->lock);
            continue;
        }
        host->first = command->next;
        if (host->first == NULL)
            host->tail = &host->first;
        pthread_mutex_unlock(&host->lock);
        run_command(host, command);
        pthread_mutex_lock(&host->lock);
        retire(host, command);
        pthread_mutex_unlock(&host->lock);
        pthread_cond_broadcast(&host->done); /* without the lock: whoever wakes takes it at once */
        pthread_mutex_lock(&host->lock);
    }
    pthread_mutex_unlock(&host->lock);
    return NULL;
}

/* With the lock held. */
static void enqueue(struct pd_host *host, struct pd_host_command *command)
{
    command->next = NULL;
    *host->tail = command;
    host->tail = &command->next;
    host->idle = false;
    pthread_cond_signal(&host->queued);
}

int pd_host_launch(struct pd_graph *graph, struct pd_step *step)
{
    struct pd_host *host = (struct pd_host *)graph->object.device;
    struct pd_host_command *command = host->launches[step->number % 2];

    command->kind = COMMAND_STEP;
    command->graph = graph;
    command->step = step;
    pthread_mutex_lock(&host->lock);
    host->launched = step->number;
    enqueue(host, command);
    pthread_mutex_unlock(&host->lock);
    return PD_KERNEL_OK;
}

/* A write waits for the steps before it, since one of them may still write into the same history.
 */
int pd_host_history_write(struct pd_device *device, int slot, int position, const int32_t *tokens,
                          int count)
{
    struct pd_host *host = (struct pd_host *)device;
    size_t bytes = (size_t)count * sizeof(*tokens);
    struct pd_host_command *command = malloc(sizeof(*command) + bytes);
    bool full;

    if (command == NULL)
        return pd_device_fail(device, PD_KERNEL_NO_MEMORY, "out of memory");
    *command = (struct pd_host_command){
        .kind = COMMAND_HISTORY, .slot = slot, .position = position, .count = count};
    memcpy(command->tokens, tokens, bytes);
    pthread_mutex_lock(&host->lock);
    full = host->waiting_histories >= 4 * device->options.max_seqs;
    if (!full) {
        host->waiting_histories++;
        enqueue(host, command);
    }
    pthread_mutex_unlock(&host->lock);
    if (!full)
        return PD_KERNEL_OK;
    free(command);
    return pd_device_fail(device, PD_KERNEL_BUSY, "%d history writes wait for the running steps",
                          4 * device->options.max_seqs);
}

static struct timespec deadline_in(int timeout_ms)
{
    struct timespec deadline;

    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += timeout_ms / 1000;
    deadline.tv_nsec += timeout_ms % 1000 * 1000000L;
    if (deadline.tv_nsec >= 1000000000L) {
        deadline.tv_sec++;
        deadline.tv_nsec -= 1000000000L;
    }
    return deadline;
}

int pd_host_wait(struct pd_device *device, uint64_t number, int timeout_ms)
{
    struct pd_host *host = (struct pd_host *)device;
    struct timespec deadline = deadline_in(timeout_ms < 0 ? 0 : timeout_ms);
    int status = PD_KERNEL_OK;

    pthread_mutex_lock(&host->lock);
    while (host->completed < number && status == PD_KERNEL_OK) {
        if (timeout_ms < 0)
            pthread_cond_wait(&host->done, &host->lock);
        else if (pthread_cond_timedwait(&host->done, &host->lock, &deadline) == ETIMEDOUT &&
                 host->completed < number)
            status = PD_KERNEL_TIMEOUT;
    }
    if (status == PD_KERNEL_OK && host->left == number)
        status = PD_KERNEL_CUT;
    pthread_mutex_unlock(&host->lock);
    if (status == PD_KERNEL_CUT)
        return pd_device_fail(device, status, "step %llu was cut", (unsigned long long)number);
    if (status != PD_KERNEL_OK)
        return pd_device_fail(device, status, "step %llu has not run after %d ms",
                              (unsigned long long)number, timeout_ms);
    return PD_KERNEL_OK;
}

void pd_host_cut(struct pd_device *device, uint64_t number)
{
    atomic_store_explicit(&((struct pd_host *)device)->cut, number, memory_order_relaxed);
}

void pd_host_drain(struct pd_device *device)
{
    struct pd_host *host = (struct pd_host *)device;

    pthread_mutex_lock(&host->lock);
    while (!host->idle)
        pthread_cond_wait(&host->done, &host->lock);
    pthread_mutex_unlock(&host->lock);
}

/* Bytes that another thread or process wrote are ordered before later launches by the queue's lock.
 */
int pd_host_fence(struct pd_device *device)
{
    struct pd_host *host = (struct pd_host *)device;

    pthread_mutex_lock(&host->lock);
    pthread_mutex_unlock(&host->lock);
    return PD_KERNEL_OK;
}

uint64_t pd_host_progress(const struct pd_device *device)
{
    return atomic_load_explicit(&((const struct pd_host *)device)->progress, memory_order_acquire);
}

uint64_t pd_host_delay_ns(const struct pd_device *device)
{
    return atomic_load_explicit(&((const struct pd_host *)device)->delay_ns, memory_order_relaxed);
}

/* ---- open and close -------------------------------------------------------------------------- */

static size_t history_bytes(const struct pd_device_options *options)
{
    return (size_t)options->max_seqs * (size_t)options->max_model_len * sizeof(int32_t);
}

static bool allocate_state(struct pd_host *host)
{
    const struct pd_device_options *options = &host->device.options;

    host->steps = pd_host_allocate(pd_steps_bytes(options));
    host->history = pd_host_allocate(history_bytes(options));
    host->last = calloc((size_t)options->max_seqs, sizeof(*host->last));
    host->delays = calloc((size_t)host->threads, sizeof(*host->delays));
    for (int i = 0; i < 2; i++)
        host->launches[i] = calloc(1, sizeof(*host->launches[i]));
    return host->steps != NULL && host->history != NULL && host->last != NULL &&
           host->delays != NULL && host->launches[0] != NULL && host->launches[1] != NULL &&
           pd_steps_init(&host->device, host->steps) == PD_KERNEL_OK;
}

static bool start_executor(struct pd_host *host)
{
    pthread_condattr_t monotonic;
    sigset_t all, before;
    bool started;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&host->lock, NULL);
    pthread_cond_init(&host->queued, &monotonic);
    pthread_cond_init(&host->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    host->tail = &host->first;
    host->idle = true;
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    started = pthread_create(&host->executor, NULL, executor_main, host) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        return true;
    pthread_cond_destroy(&host->done);
    pthread_cond_destroy(&host->queued);
    pthread_mutex_destroy(&host->lock);
    return false;
}

static void free_host(struct pd_host *host)
{
    const struct pd_device_options *options = &host->device.options;

    if (host->team != NULL)
        pd_team_destroy(host->team);
    for (int i = 0; i < 2; i++)
        free(host->launches[i]);
    free(host->last);
    for (int i = 0; host->delays != NULL && i < host->threads; i++)
        pd_delay_close(&host->delays[i]);
    free(host->delays);
    pd_host_free(host->history, history_bytes(options));
    pd_host_free(host->steps, pd_steps_bytes(options));
    pd_device_fini(&host->device);
    free(host);
}

int pd_host_open(struct pd_host *host, const struct pd_backend *backend,
                 const struct pd_device_options *options, int threads, char *error, size_t size)
{
    if (pd_device_init(&host->device, backend, options) != PD_KERNEL_OK) {
        free(host);
        snprintf(error, size, "out of memory");
        return PD_KERNEL_NO_MEMORY;
    }
    host->threads = threads;
    host->team = pd_team_create(threads);
    if (host->team == NULL || !allocate_state(host) || !start_executor(host)) {
        snprintf(error, size,
                 "no memory or no threads for a device of %d threads, %d sequences of %d tokens",
                 threads, options->max_seqs, options->max_model_len);
        free_host(host);
        return PD_KERNEL_NO_MEMORY;
    }
    return PD_KERNEL_OK;
}

void pd_host_close(struct pd_device *device)
{
    struct pd_host *host = (struct pd_host *)device;

    pthread_mutex_lock(&host->lock);
    host->closing = true;
    pthread_cond_signal(&host->queued);
    pthread_mutex_unlock(&host->lock);
    pthread_join(host->executor, NULL);
    pthread_cond_destroy(&host->done);
    pthread_cond_destroy(&host->queued);
    pthread_mutex_destroy(&host->lock);
    free_host(host);
}
