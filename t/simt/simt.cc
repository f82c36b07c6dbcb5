#include "t/simt/simt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <vector>

namespace
{

enum { STACK = 64 * 1024, WARP = 32, SHARED_MAX = 48 * 1024, THREADS_MAX = 1024 };
enum state { RUNNABLE, AT_BARRIER, AT_SHUFFLE, FINISHED };

struct fiber {
    ucontext_t context;
    std::vector<char> stack;
    state at;
    int shuffles;     /* how many it has entered: lanes of a warp meet at equal counts */
    float offered[2]; /* by parity of `shuffles` */
};

struct block {
    int x, y, count;
    std::vector<fiber> fibers;
    int current;
    ucontext_t scheduler;
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

void yield(state at)
{
    fiber &self = running->fibers[(size_t)running->current];

    self.at = at;
    swapcontext(&self.context, &running->scheduler);
}

void fiber_main()
{
    (*running->kernel)();
    running->fibers[(size_t)running->current].at = FINISHED;
    setcontext(&running->scheduler);
}

/* Lets threads on that wait for each other and are all there. False if nobody could be let on. */
bool release()
{
    bool released = false;
    int waiting = 0, finished = 0;

    for (const fiber &f : running->fibers) {
        waiting += f.at == AT_BARRIER;
        finished += f.at == FINISHED;
    }
    if (waiting > 0 && waiting + finished == running->count && finished > 0)
        die("a barrier that some threads never reach");
    if (waiting == running->count) {
        for (fiber &f : running->fibers)
            f.at = RUNNABLE;
        return true;
    }
    for (int warp = 0; warp < running->count; warp += WARP) {
        bool all = true;

        for (int lane = 0; lane < WARP && all; lane++)
            all = running->fibers[(size_t)(warp + lane)].at == AT_SHUFFLE &&
                  running->fibers[(size_t)(warp + lane)].shuffles ==
                      running->fibers[(size_t)warp].shuffles;
        for (int lane = 0; lane < WARP && all; lane++)
            running->fibers[(size_t)(warp + lane)].at = RUNNABLE;
        released |= all;
    }
    return released;
}

void run_block()
{
    std::vector<int> ready;

    for (;;) {
        bool finished = true;

        ready.clear();
        for (int i = 0; i < running->count; i++) {
            finished &= running->fibers[(size_t)i].at == FINISHED;
            if (running->fibers[(size_t)i].at == RUNNABLE)
                ready.push_back(i);
        }
        if (finished)
            return;
        if (ready.empty()) {
            if (!release())
                die("all threads wait for each other");
            continue;
        }
        running->current = ready[draw() % ready.size()];
        swapcontext(&running->scheduler, &running->fibers[(size_t)running->current].context);
    }
}

__attribute__((noinline)) void start(fiber *f)
{
    f->at = RUNNABLE;
    f->shuffles = 0;
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack.data();
    f->context.uc_stack.ss_size = f->stack.size();
    f->context.uc_link = nullptr;
    makecontext(&f->context, fiber_main, 0);
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
    running->used += (bytes + 15) & ~(size_t)15;
    return running->memory.data() + running->arrays.back().offset;
}

void barrier()
{
    yield(AT_BARRIER);
}

float shuffle_xor(float value, int lane_mask)
{
    int self = running->current, other = self ^ lane_mask;
    fiber &f = running->fibers[(size_t)self];
    int parity = f.shuffles & 1;

    if (lane_mask < 0 || lane_mask >= WARP)
        die("a shuffle beyond the warp");
    f.offered[parity] = value;
    f.shuffles++;
    yield(AT_SHUFFLE);
    /* The other lane may already have offered its next value, but not the one after: it waits for us. */
    return running->fibers[(size_t)other].offered[parity];
}

int launch(int x, int y, int count, uint64_t seed, const std::function<void()> &kernel)
{
    block state = {};

    if (count <= 0 || count > THREADS_MAX || count % WARP != 0 || x <= 0 || y <= 0) {
        fprintf(stderr, "simt: a launch of %d x %d blocks of %d threads\n", x, y, count);
        abort();
    }
    state.count = count;
    state.fibers.resize((size_t)count);
    for (fiber &f : state.fibers)
        f.stack.resize(STACK);
    state.kernel = &kernel;
    state.random = seed;
    state.memory.resize(SHARED_MAX);
    running = &state;
    for (state.y = 0; state.y < y; state.y++) {
        for (state.x = 0; state.x < x; state.x++) {
            memset(state.memory.data(), 0xff, state.memory.size()); /* NaN in every type */
            state.arrays.clear();
            state.used = 0;
            for (fiber &f : state.fibers)
                start(&f);
            run_block();
        }
    }
    running = nullptr;
    return 0;
}

} // namespace pd_simt

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
