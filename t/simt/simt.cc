#include "t/simt/simt.h"

#include <atomic>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "t/simt/control.h"

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

namespace
{

enum { STACK = 64 * 1024, WARP = 32, SHARED_MAX = 48 * 1024, THREADS_MAX = 1024 };

struct fiber {
    std::vector<char> stack;
    void *top;        /* of the stack, where it waits */
    int shuffles;     /* how many it has entered */
    float offered[2]; /* by parity of `shuffles` */
};

struct warp {
    int at_shuffle; /* lanes that have come to the shuffle that the others are still to reach */
};

/* The block that runs. A fiber is in `ready`, or waits at the block's barrier or at a shuffle of
 * its warp, or has ended; who comes last to a barrier or a shuffle lets the others on. */
struct block {
    int x, y, count;
    std::vector<fiber> fibers;
    std::vector<warp> warps;
    std::vector<int> ready;
    int current, at_barrier, finished;
    void *scheduler;
    const std::function<void()> *kernel;
    uint64_t random;
    std::vector<char> memory;
    struct array {
        int line;
        size_t offset, bytes;
    };
    std::vector<array> arrays;
    size_t used;
};

block *running;

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

void yield()
{
    pd_simt_switch(&running->fibers[(size_t)running->current].top, running->scheduler);
}

void fiber_main()
{
    (*running->kernel)();
    running->finished++;
    yield();
    abort(); /* nobody goes on with a fiber that has ended */
}

void make_ready(int first, int count)
{
    for (int i = 0; i < count; i++)
        running->ready.push_back(first + i);
}

void run_block()
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
        pd_simt_switch(&running->scheduler, running->fibers[(size_t)running->current].top);
    }
}

/* Behind the registers that a switch restores stands where it returns to; the ABI wants the stack
 * at an odd multiple of 8 there. */
void start(fiber *f)
{
    uintptr_t end = (uintptr_t)(f->stack.data() + f->stack.size()) & ~(uintptr_t)15;
    void **top = (void **)(end - 8);

    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    f->top = top;
    f->shuffles = 0;
}

void start_block()
{
    running->arrays.clear();
    running->used = 0;
    running->at_barrier = running->finished = 0;
    for (warp &w : running->warps)
        w.at_shuffle = 0;
    for (int i = 0; i < running->count; i++)
        start(&running->fibers[(size_t)i]);
    running->ready.clear();
    make_ready(0, running->count);
}

} // namespace

namespace pd_simt
{

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
    if (running->used + bytes > SHARED_MAX)
        die("more shared memory than a block has");
    running->arrays.push_back({line, running->used, bytes});
    memset(running->memory.data() + running->used, 0xff, bytes); /* NaN in every type */
    running->used += (bytes + 15) & ~(size_t)15;
    return running->memory.data() + running->arrays.back().offset;
}

void barrier()
{
    if (++running->at_barrier == running->count) {
        running->at_barrier = 0;
        make_ready(0, running->count);
    }
    yield();
}

/* Offers a value and waits until all lanes have. Gives the parity under which theirs are found:
 * another lane may already have offered its next value when this one goes on, but not the one
 * after, since that waits for us. */
static int meet(float value)
{
    int self = running->current, first = self / WARP * WARP;
    fiber &f = running->fibers[(size_t)self];
    warp &w = running->warps[(size_t)(self / WARP)];
    int parity = f.shuffles++ & 1;

    f.offered[parity] = value;
    if (++w.at_shuffle == WARP) {
        w.at_shuffle = 0;
        make_ready(first, WARP);
    }
    yield();
    return parity;
}

float shuffle_xor(float value, int lane_mask)
{
    int other = running->current ^ lane_mask;

    if (lane_mask < 0 || lane_mask >= WARP)
        die("a shuffle beyond the warp");
    return running->fibers[(size_t)other].offered[meet(value)];
}

/* Each lane walks the tree as the shuffles would: its own value first at every level. */
float warp_sum(float value)
{
    const fiber *lanes = &running->fibers[(size_t)(running->current / WARP * WARP)];
    int parity = meet(value);
    float sum[WARP];

    for (int lane = 0; lane < WARP; lane++)
        sum[lane] = lanes[lane].offered[parity];
    for (int width = WARP / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; lane++)
            sum[lane] += sum[lane + width];
    return sum[0];
}

static void run(int x, int y, int count, uint64_t seed, const std::function<void()> &kernel)
{
    static block state; /* its stacks serve every launch */

    state.count = count;
    if (state.fibers.size() < (size_t)count)
        state.fibers.resize((size_t)count);
    for (int i = 0; i < count; i++)
        if (state.fibers[(size_t)i].stack.empty())
            state.fibers[(size_t)i].stack.resize(STACK);
    state.warps.resize((size_t)(count / WARP));
    state.kernel = &kernel;
    state.random = seed;
    state.memory.resize(SHARED_MAX);
    running = &state;
    for (state.y = 0; state.y < y; state.y++) {
        for (state.x = 0; state.x < x; state.x++) {
            start_block();
            run_block();
        }
    }
    running = nullptr;
}

int launch(int x, int y, int count, uint64_t seed, std::function<void()> kernel)
{
    if (count <= 0 || count > THREADS_MAX || count % WARP != 0 || x <= 0 || y <= 0) {
        fprintf(stderr, "simt: a launch of %d x %d blocks of %d threads\n", x, y, count);
        abort();
    }
    return enqueue([=] { run(x, y, count, seed, kernel); });
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

int fault()
{
    long left = calls_left.load();

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

/* The formats' conversions are the host's own (kernels/dtype.h): C, and exact. */
extern "C" {
uint16_t pd_f16_of_float(float value);
uint16_t pd_bf16_of_float(float value);
}

float pd_from_f16(uint16_t bits)
{
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    float value = exponent == 31  ? (mantissa ? NAN : INFINITY)
                  : exponent == 0 ? ldexpf((float)mantissa, -24)
                                  : ldexpf((float)(mantissa + 1024), exponent - 25);

    return bits >> 15 ? -value : value;
}

float pd_from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;

    memcpy(&value, &wide, sizeof(value));
    return value;
}

uint16_t pd_to_f16(float value)
{
    return pd_f16_of_float(value);
}

uint16_t pd_to_bf16(float value)
{
    return pd_bf16_of_float(value);
}
