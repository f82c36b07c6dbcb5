#include "t/simt/fiber.h"

#include <atomic>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <unistd.h>

#include "t/simt/control.h"
#include "t/simt/memory.h"

#ifndef __x86_64__
#error "t/simt switches fibers by hand, and knows x86-64 only"
#endif

/* Saves the callee's registers and the stack of one fiber, and goes on with another's: a few
 * nanoseconds, where swapcontext() makes two system calls. */
extern "C" void pd_simt_switch(void **save, void *load);

asm(".text\n"
    ".globl pd_simt_switch\n"
    ".type pd_simt_switch, @function\n"
    "pd_simt_switch:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size pd_simt_switch, . - pd_simt_switch\n");

namespace pd_simt
{

#ifdef __SANITIZE_ADDRESS__
enum { STACK = 256 * 1024 }; /* its frames are wider */
#else
enum { STACK = 64 * 1024 };
#endif
enum { STATIC_MAX = 48 * 1024, THREADS_MAX = 1024 };

thread_local block *running;

[[noreturn]] void die(const char *why)
{
    fprintf(stderr, "simt: block (%d, %d), thread %d: %s\n", running->x, running->y,
            running->current, why);
    abort();
}

uint64_t draw()
{
    uint64_t z = running->random += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* ThreadSanitizer follows the switch, and takes it for no order: only barriers are. */
static void tell_switch(void *to)
{
#ifdef PD_SIMT_TSAN
    __tsan_switch_to_fiber(to, __tsan_switch_to_fiber_no_sync);
#else
    (void)to;
#endif
}

/* AddressSanitizer is told which stack comes, before a switch, and that it has come, behind one. What it keeps of
 * the stack that waits lies in `frames`; none is for one that has ended. */
static void tell_stack(void **frames, const void *stack, size_t bytes)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(frames, stack, bytes);
#else
    (void)frames, (void)stack, (void)bytes;
#endif
}

static void tell_arrival(void *frames, const void **before, size_t *bytes)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(frames, before, bytes);
#else
    (void)frames, (void)before, (void)bytes;
#endif
}

static void to_scheduler(fiber *own, bool ended)
{
    tell_switch(running->scheduler_tsan);
    tell_stack(ended ? nullptr : &own->asan, running->scheduler_stack, running->scheduler_bytes);
    pd_simt_switch(&own->top, running->scheduler);
    tell_arrival(own->asan, nullptr, nullptr);
}

static void to_fiber(fiber *next)
{
    tell_switch(next->tsan);
    tell_stack(&running->scheduler_asan, next->stack.data(), next->stack.size());
    pd_simt_switch(&running->scheduler, next->top);
    tell_arrival(running->scheduler_asan, nullptr, nullptr);
}

void yield()
{
    to_scheduler(&running->fibers[(size_t)running->current], false);
}

static void fiber_main()
{
    tell_arrival(nullptr, &running->scheduler_stack, &running->scheduler_bytes);
    leave(running);
    (*running->kernel)();
    if (!running->fibers[(size_t)running->current].copies.empty())
        die("a thread ends with copies under way");
    running->finished++;
    arrive(&running->finished);
    to_scheduler(&running->fibers[(size_t)running->current], true);
    abort(); /* nobody goes on with a fiber that has ended */
}

void make_ready(int first, uint32_t lanes)
{
    for (int i = 0; i < PD_WARP; i++)
        if (lanes >> i & 1)
            running->ready.push_back(first + i);
}

static void make_all_ready()
{
    for (int i = 0; i < running->count; i++)
        running->ready.push_back(i);
}

static void run_block()
{
    while (running->finished < running->count) {
        size_t pick;

        if (running->ready.empty())
            die(running->at_barrier + running->finished == running->count
                    ? "a barrier that some threads never reach"
                    : "all threads wait for each other");
        pick = draw() % running->ready.size();
        running->current = running->ready[pick];
        running->ready[pick] = running->ready.back();
        running->ready.pop_back();
        to_fiber(&running->fibers[(size_t)running->current]);
    }
}

/* Behind the registers that a switch restores stands where it returns to; the ABI wants the stack
 * at an odd multiple of 8 there. */
static void start(fiber *f)
{
    uintptr_t end = (uintptr_t)(f->stack.data() + f->stack.size()) & ~(uintptr_t)15;
    void **top = (void **)(end - 8);

#ifdef __SANITIZE_ADDRESS__ /* whoever ended here has left its frames */
    __asan_unpoison_memory_region(f->stack.data(), f->stack.size());
#endif
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    f->top = top;
    f->copies.clear();
    f->group = 0;
}

static void start_block()
{
    running->arrays.clear();
    running->used = 0;
    running->at_barrier = running->finished = 0;
    for (warp &w : running->warps)
        w.meetings.clear();
    for (int i = 0; i < running->count; i++)
        start(&running->fibers[(size_t)i]);
    memset(running->memory.data(), 0xff, running->memory.size()); /* NaN in every type */
    running->ready.clear();
    make_all_ready();
}

int thread()
{
    return running->current;
}

int threads()
{
    return running->count;
}

int block_x()
{
    return running->x;
}

int block_y()
{
    return running->y;
}

void *shared(int line, size_t bytes)
{
    for (const block::array &a : running->arrays)
        if (a.line == line)
            return running->memory.data() + a.offset;
    if (running->used + bytes > STATIC_MAX)
        die("more shared memory than a block has");
    running->arrays.push_back({line, running->used, bytes});
    running->used += (bytes + 15) & ~(size_t)15;
    return running->memory.data() + running->arrays.back().offset;
}

char *shared_bytes()
{
    return running->memory.data() + STATIC_MAX;
}

bool is_shared(const void *address, size_t bytes)
{
    const char *at = static_cast<const char *>(address), *memory = running->memory.data();

    return (at >= memory && at + bytes <= memory + running->used) ||
           (at >= memory + STATIC_MAX && at + bytes <= memory + STATIC_MAX + running->dynamic);
}

void barrier()
{
    arrive(&running->at_barrier);
    if (++running->at_barrier == running->count) {
        running->at_barrier = 0;
        make_all_ready();
    }
    yield();
    leave(&running->at_barrier);
}

void pause()
{
    running->ready.push_back(running->current);
    yield();
    sched_yield();
}

void meet(uint32_t lanes, collective *operation, void *argument)
{
    int self = running->current, first = self / PD_WARP * PD_WARP;
    uint32_t own = 1u << (self - first);
    std::vector<meeting> &meetings = running->warps[(size_t)(self / PD_WARP)].meetings;
    size_t at = 0;

    if (!(lanes & own))
        die("a lane in an operation whose mask leaves it out");
    running->fibers[(size_t)self].argument = argument;
    while (at < meetings.size() && meetings[at].lanes != lanes)
        at++;
    if (at == meetings.size())
        meetings.push_back({lanes, 0, operation});
    if (meetings[at].operation != operation)
        die("lanes of a warp that do different things together");
    meetings[at].arrived |= own;
    if (meetings[at].arrived == lanes) {
        void *arguments[PD_WARP];

        for (int i = 0; i < PD_WARP; i++)
            arguments[i] = lanes >> i & 1 ? running->fibers[(size_t)(first + i)].argument : nullptr;
        meetings.erase(meetings.begin() + (long)at);
        operation(arguments);
        make_ready(first, lanes);
    }
    yield();
}

/* Stacks, and ThreadSanitizer's fibers, serve every launch. */
static void prepare(block *state, int count)
{
    if (state->fibers.size() < (size_t)count)
        state->fibers.resize((size_t)count);
    for (int i = 0; i < count; i++) {
        fiber &f = state->fibers[(size_t)i];

        if (f.stack.empty())
            f.stack.resize(STACK);
#ifdef PD_SIMT_TSAN
        if (!f.tsan)
            f.tsan = __tsan_create_fiber(0);
#endif
    }
#ifdef PD_SIMT_TSAN
    state->scheduler_tsan = __tsan_get_current_fiber();
#endif
    state->warps.resize((size_t)(count / PD_WARP));
}

static void run(int x, int y, int count, size_t bytes, uint64_t seed,
                const std::function<void()> &kernel)
{
    static thread_local block state; /* a thread that launches is a GPU's stream of its own */

    state.count = count;
    state.kernel = &kernel;
    state.random = seed;
    state.dynamic = bytes;
    state.memory.resize(STATIC_MAX + bytes);
    prepare(&state, count);
    running = &state;
    for (state.y = 0; state.y < y; state.y++) {
        for (state.x = 0; state.x < x; state.x++) {
            start_block();
            arrive(&state);
            run_block();
            leave(&state.finished);
        }
    }
    running = nullptr;
}

int launch(int x, int y, int count, size_t bytes, uint64_t seed, std::function<void()> kernel)
{
    if (count <= 0 || count > THREADS_MAX || count % PD_WARP != 0 || x <= 0 || y <= 0 ||
        y > 65535 || bytes > PD_SHARED_MOST) {
        fprintf(stderr, "simt: a launch of %d x %d blocks of %d threads with %zu bytes\n", x, y,
                count, bytes);
        abort();
    }
    return enqueue([=, touched = declared()] {
        opened open(touched);

        run(x, y, count, bytes, seed, kernel);
    });
}

/* ---- the stream ------------------------------------------------------------------------------ */

static thread_local recording *recorder;
static std::atomic<long> calls_left{-1}; /* before the fault; below zero: never */
static std::atomic<int> fault_error;

void record_into(recording *into)
{
    recorder = into;
}

bool is_recording()
{
    return recorder != nullptr;
}

/* Of processes that no test is in: every call fails from when the file $PD_SIMT_FAULT.PID is there. */
static bool told_to_fail()
{
    static const char *const name = getenv("PD_SIMT_FAULT");

    return name && access((std::string(name) + "." + std::to_string(getpid())).c_str(), F_OK) == 0;
}

int fault()
{
    enum { ILLEGAL_ADDRESS = 700 };
    long left = calls_left.load();

    if (told_to_fail())
        return ILLEGAL_ADDRESS;
    while (left > 0)
        if (calls_left.compare_exchange_weak(left, left - 1))
            return 0;
    return left == 0 ? fault_error.load() : 0;
}

int enqueue(std::function<void()> work)
{
    int error = fault();

    if (error != 0)
        return error;
    if (recorder)
        recorder->push_back(std::move(work));
    else
        work();
    return 0;
}

} // namespace pd_simt

void pd_simt_fail_after(long calls, int error)
{
    pd_simt::fault_error = error;
    pd_simt::calls_left = calls;
}
