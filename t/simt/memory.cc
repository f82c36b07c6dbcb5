#include "t/simt/memory.h"

#include <map>
#include <mutex>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "t/simt/fiber.h"

namespace pd_simt
{

enum { PAGE = 4096, ALIGNED = 16 };

struct region {
    uintptr_t first; /* byte */
    size_t bytes;
    char *pages;
    size_t mapped; /* bytes of the pages, without the guard */
    int users;     /* launches and copies that have it open */
    bool pinned;
    bool shared; /* lent to other processes */
};

static std::mutex lock;
static std::map<uintptr_t, region> regions; /* by the first byte of their pages */
static thread_local std::vector<const void *> may_touch;

/* Whose pages, or guard page, the address lies in. With the lock, or in a process that dies. */
static region *find(const void *address)
{
    auto after = regions.upper_bound((uintptr_t)address);

    if (after == regions.begin())
        return nullptr;
    region &before = std::prev(after)->second;
    return (uintptr_t)address < (uintptr_t)before.pages + before.mapped + PAGE ? &before : nullptr;
}

/* ---- what is touched all the same ------------------------------------------------------------ */

static void explain(int number, siginfo_t *info, void *)
{
    const region *at = find(info->si_addr);
    uintptr_t address = (uintptr_t)info->si_addr;

    signal(number, SIG_DFL);
    if (!at)
        return; /* comes again, and ends the process as if nobody had looked */
    fprintf(stderr, "simt: byte %lld of a buffer of %zu, %s\n", (long long)(address - at->first),
            at->bytes,
            address < at->first + at->bytes ? "which nothing that runs declares" : "past its end");
    if (running)
        die("touches device memory that is not its operator's");
    abort();
}

/* Before every launch and copy: a test's frame may have put handlers of its own in between. */
static void watch()
{
    struct sigaction action = {};

    action.sa_sigaction = explain;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
}

/* ---- allocations ----------------------------------------------------------------------------- */

/* Pages and the guard behind them, nothing accessible. */
static char *reserve(size_t mapped)
{
    void *pages = mmap(nullptr, mapped + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return pages == MAP_FAILED ? nullptr : static_cast<char *>(pages);
}

static void *keep(char *pages, size_t mapped, size_t offset, size_t bytes, bool pinned, bool shared)
{
    std::lock_guard<std::mutex> locked(lock);

    watch();
    regions[(uintptr_t)pages] = {
        (uintptr_t)pages + offset, bytes, pages, mapped, 0, pinned, shared};
    return pages + offset;
}

void *allocate(size_t bytes, bool pinned)
{
    size_t rounded = (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
    size_t mapped = (rounded + PAGE - 1) / PAGE * PAGE;
    char *pages = reserve(mapped);

    if (!pages)
        return nullptr;
    if (pinned && mprotect(pages, mapped, PROT_READ | PROT_WRITE) != 0) {
        munmap(pages, mapped + PAGE);
        return nullptr;
    }
    return keep(pages, mapped, mapped - rounded, bytes, pinned, false);
}

void *allocate_file(size_t bytes, int fd, bool own)
{
    size_t mapped = (bytes + PAGE - 1) / PAGE * PAGE;
    char *pages = reserve(mapped);

    if (!pages)
        return nullptr;
    if (mmap(pages, mapped, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        munmap(pages, mapped + PAGE);
        return nullptr;
    }
    return keep(pages, mapped, 0, bytes, false, own);
}

bool is_shared(const void *address)
{
    std::lock_guard<std::mutex> locked(lock);
    const region *one = find(address);

    return one && one->shared;
}

size_t held()
{
    std::lock_guard<std::mutex> locked(lock);
    size_t bytes = 0;

    for (const auto &one : regions)
        bytes += one.second.pinned ? 0 : one.second.bytes;
    return bytes;
}

void release(void *memory)
{
    std::lock_guard<std::mutex> locked(lock);
    region *one = memory ? find(memory) : nullptr;

    if (!one)
        return;
    munmap(one->pages, one->mapped + PAGE);
    regions.erase((uintptr_t)one->pages);
}

/* ---- who may touch what ---------------------------------------------------------------------- */

void declare(const void *const *addresses, int count)
{
    may_touch.assign(addresses, addresses + count);
}

const std::vector<const void *> &declared()
{
    return may_touch;
}

static void use(const std::vector<const void *> &addresses, int more)
{
    std::lock_guard<std::mutex> locked(lock);

    for (const void *address : addresses) {
        region *one = find(address);
        int before = one ? one->users : 0;

        if (!one || one->pinned)
            continue;
        one->users += more;
        if ((before == 0) != (one->users == 0) &&
            mprotect(one->pages, one->mapped,
                     one->users > 0 ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
            abort();
    }
}

opened::opened(const std::vector<const void *> &given) : addresses(given)
{
    watch();
    use(addresses, 1);
}

opened::~opened()
{
    use(addresses, -1);
}

} // namespace pd_simt
