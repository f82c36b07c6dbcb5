/* What stands in for NCCL over the shim: a library of its name, found and opened as NCCL is. Its ranks are threads of
 * one process; a sum waits for all of them, in each one's stream, and adds from the last rank to the first, an order
 * that the own kernels do not have. It is as strict as NCCL: no GPU twice, one count for all, and whoever waits for a
 * rank that does not come waits until the communicators are aborted. A recording with a sum in it keeps its communicator
 * from ending, by whichever call: NCCL would wait for ever, this ends the program.
 *
 * The shim itself is the program's (linked with -rdynamic). */
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

#include "kernels/cuda/pd_simt.cuh"
#include "t/simt/memory.h"

enum {
    SUCCESS,
    UNHANDLED_CUDA_ERROR,
    SYSTEM_ERROR,
    INTERNAL_ERROR,
    INVALID_ARGUMENT,
    INVALID_USAGE
};

namespace
{
struct world {
    std::mutex lock;
    std::condition_variable changed;
    std::vector<const float *> in;
    std::vector<float *> out;
    std::vector<size_t> count;
    size_t come = 0, ranks;
    std::atomic<long> recorded{0};
    long rounds = 0;
    bool aborted = false;
};

struct comm {
    std::shared_ptr<world> all;
    size_t rank;
};

std::mutex counts_lock;
long calls_left = -1, sums, alive;
int fault, late_fault;

int fails()
{
    std::lock_guard<std::mutex> locked(counts_lock);

    if (calls_left > 0)
        calls_left--;
    return calls_left == 0 ? fault : SUCCESS;
}

void add(world &all)
{
    std::vector<const void *> touched(all.in.begin(), all.in.end());

    touched.insert(touched.end(), all.out.begin(), all.out.end());
    pd_simt::opened open(touched);

    for (size_t i = 0; i < all.count[0]; i++) {
        float sum = 0;

        for (size_t r = all.ranks; r-- > 0;)
            sum += all.in[r][i];
        for (size_t r = 0; r < all.ranks; r++)
            all.out[r][i] = sum;
    }
}

void meet(const std::shared_ptr<world> &all, size_t rank, const float *in, float *out, size_t count)
{
    std::unique_lock<std::mutex> locked(all->lock);
    long round = all->rounds;

    all->in[rank] = in;
    all->out[rank] = out;
    all->count[rank] = count;
    if (++all->come == all->ranks) {
        for (size_t other : all->count)
            if (other != count)
                abort(); /* NCCL would hang, or worse */
        add(*all);
        all->come = 0;
        all->rounds++;
        all->changed.notify_all();
    }
    all->changed.wait(locked, [&] { return all->rounds != round || all->aborted; });
}

int end(void *of)
{
    comm *one = static_cast<comm *>(of);

    if (one->all->recorded) {
        fprintf(stderr, "nccl: %ld sums of a communicator that ends are in recordings\n",
                one->all->recorded.load());
        abort();
    }
    delete one;
    std::lock_guard<std::mutex> locked(counts_lock);
    alive--;
    return SUCCESS;
}
} // namespace

extern "C" {

/* ---- what NCCL has --------------------------------------------------------------------------- */

int ncclGetVersion(int *version)
{
    *version = 22703;
    return SUCCESS;
}

const char *ncclGetErrorString(int error)
{
    return error == SYSTEM_ERROR    ? "unhandled system error"
           : error == INVALID_USAGE ? "invalid usage"
                                    : "some error";
}

int ncclCommInitAll(void **comms, int count, const int *ordinals)
{
    auto all = std::make_shared<world>();
    int failed = fails();

    if (failed)
        return failed;
    if (std::set<int>(ordinals, ordinals + count).size() != (size_t)count)
        return INVALID_USAGE;
    all->ranks = (size_t)count;
    all->in.resize(all->ranks);
    all->out.resize(all->ranks);
    all->count.resize(all->ranks);
    for (int r = 0; r < count; r++)
        comms[r] = new comm{all, (size_t)r};
    std::lock_guard<std::mutex> locked(counts_lock);
    alive += count;
    return SUCCESS;
}

int ncclAllReduce(const void *in, void *out, size_t count, int type, int operation, void *of,
                  void *)
{
    const comm one = *static_cast<comm *>(of);
    int failed = fails();

    if (failed)
        return failed;
    if (type != 7 || operation != 0)
        return INVALID_ARGUMENT;
    {
        std::lock_guard<std::mutex> locked(counts_lock);
        sums++;
    }
    one.all->recorded += pd_simt::is_recording();
    return pd_simt::enqueue([=] {
               meet(one.all, one.rank, static_cast<const float *>(in), static_cast<float *>(out),
                    count);
           }) != 0
               ? UNHANDLED_CUDA_ERROR
               : SUCCESS;
}

int ncclCommGetAsyncError(void *, int *error)
{
    std::lock_guard<std::mutex> locked(counts_lock);

    *error = late_fault;
    return SUCCESS;
}

int ncclCommAbort(void *of)
{
    std::shared_ptr<world> all = static_cast<comm *>(of)->all;

    {
        std::lock_guard<std::mutex> locked(all->lock);
        all->aborted = true;
        all->changed.notify_all();
    }
    return end(of);
}

int ncclCommDestroy(void *of)
{
    return end(of);
}

/* ---- what a test may ask of it --------------------------------------------------------------- */

/* As pd_simt_fail_after: of its calls; and what all communicators say of their sums, later. */
void nccl_standin_fail_after(long calls, int error)
{
    std::lock_guard<std::mutex> locked(counts_lock);

    calls_left = calls;
    fault = error;
}

void nccl_standin_fail_late(int error)
{
    std::lock_guard<std::mutex> locked(counts_lock);

    late_fault = error;
}

long nccl_standin_sums(void)
{
    std::lock_guard<std::mutex> locked(counts_lock);

    return sums;
}

long nccl_standin_alive(void)
{
    std::lock_guard<std::mutex> locked(counts_lock);

    return alive;
}
}
