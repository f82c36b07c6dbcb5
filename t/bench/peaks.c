#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "t/bench/peaks.h"

/* So many independent sums hide an instruction's latency. */
enum { CHAINS = 12, TILES = 4, ROUNDS = 200000, REPEATS = 15 };

typedef void multiply(void);

/* What keeps a result from being computed for nobody. */
#define KEEP(value) __asm__ volatile("" : : "x"(value))

#if defined(__x86_64__)

/* The same loop over CHAINS sums of `type`. */
#define CHAINED(type, zero, next)                                                                  \
    type sum[CHAINS];                                                                              \
    for (int i = 0; i < CHAINS; i++)                                                               \
        sum[i] = zero;                                                                             \
    for (int round = 0; round < ROUNDS; round++) {                                                 \
        _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++)                                  \
        {                                                                                          \
            sum[i] = next;                                                                         \
            KEEP(sum[i]);                                                                          \
        }                                                                                          \
    }

__attribute__((target("avx512f"))) static void f32_avx512(void)
{
    __m512 factor = _mm512_set1_ps(0.5f);

    CHAINED(__m512, _mm512_setzero_ps(), _mm512_fmadd_ps(sum[i], factor, factor))
}

__attribute__((target("avx2,fma"))) static void f32_avx2(void)
{
    __m256 factor = _mm256_set1_ps(0.5f);

    CHAINED(__m256, _mm256_setzero_ps(), _mm256_fmadd_ps(sum[i], factor, factor))
}

__attribute__((target("avx512f,avx512vnni"))) static void int8_vnni(void)
{
    __m512i factor = _mm512_set1_epi8(1);

    CHAINED(__m512i, _mm512_setzero_si512(), _mm512_dpbusd_epi32(sum[i], factor, factor))
}

/* Without VNNI a sum of four products takes three instructions. */
__attribute__((target("avx512f,avx512bw"))) static void int8_avx512(void)
{
    __m512i factor = _mm512_set1_epi8(1), ones = _mm512_set1_epi16(1);

    CHAINED(__m512i, _mm512_setzero_si512(),
            _mm512_add_epi32(
                sum[i], _mm512_madd_epi16(
                            _mm512_maddubs_epi16(factor, _mm512_xor_si512(factor, sum[i])), ones)))
}

__attribute__((target("avx2"))) static void int8_avx2(void)
{
    __m256i factor = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1);

    CHAINED(__m256i, _mm256_setzero_si256(),
            _mm256_add_epi32(
                sum[i], _mm256_madd_epi16(
                            _mm256_maddubs_epi16(factor, _mm256_xor_si256(factor, sum[i])), ones)))
}

#define EIGHT(value) value, value, value, value, value, value, value, value

/* In memory before it is read: compilers take the instruction to read eight bytes. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} whole_tiles = {1, 0, {0}, {EIGHT(64)}, {EIGHT(16)}};

/* Four sums of tiles; tiles 4 to 7 are what is multiplied. */
__attribute__((target("amx-tile,amx-int8"))) static void int8_amx(void)
{
    _tile_loadconfig(&whole_tiles);
    for (int round = 0; round < ROUNDS / 8; round++) {
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
    }
    _tile_release();
}

/* Linux gives a process tiles when it asks. */
static bool has_tiles(void)
{
    enum { REQUEST = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;

    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 25 & 1) &&
           syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

static bool has_vnni(void)
{
    return __builtin_cpu_supports("avx512vnni");
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512bw");
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

#endif

struct way {
    const char *name;
    bool (*there)(void);
    multiply *run;
    double operations; /* of one run */
};

/* The best first. */
static const struct way bytes[] = {
#if defined(__x86_64__)
    {"amx", has_tiles, int8_amx, 2.0 * 16 * 16 * 64 * TILES *(ROUNDS / 8)},
    {"vnni", has_vnni, int8_vnni, 2.0 * 64 * CHAINS *ROUNDS},
    {"avx512", has_avx512, int8_avx512, 2.0 * 64 * CHAINS *ROUNDS},
    {"avx2", has_avx2, int8_avx2, 2.0 * 32 * CHAINS *ROUNDS},
#endif
    {0}};

static const struct way floats[] = {
#if defined(__x86_64__)
    {"avx512", has_avx512, f32_avx512, 2.0 * 16 * CHAINS *ROUNDS},
    {"avx2", has_avx2, f32_avx2, 2.0 * 8 * CHAINS *ROUNDS},
#endif
    {0}};

static void job(void *context, int thread)
{
    (void)thread;
    ((const struct way *)context)->run();
}

static double seconds(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double least_seconds(struct pd_team *team, pd_team_job *run, void *context)
{
    double best = 1e9;

    for (int i = 0; i < REPEATS; i++) {
        double before = seconds(), took;

        pd_team_run(team, run, context);
        took = seconds() - before;
        best = took < best ? took : best;
    }
    return best;
}

static double measure(struct pd_team *team, const struct way *way)
{
    double best = least_seconds(team, job, (void *)(uintptr_t)way);

    return 1e-9 * way->operations * pd_team_threads(team) / best;
}

double pd_peak_f32(struct pd_team *team)
{
    for (const struct way *way = floats; way->name; way++)
        if (way->there())
            return measure(team, way);
    return 0;
}

double pd_peak_int8(struct pd_team *team, const char *path, const char **name)
{
    bool allowed = strcmp(path, "auto") == 0;

    *name = "none";
    for (const struct way *way = bytes; way->name; way++) {
        allowed = allowed || strcmp(path, way->name) == 0;
        if (!allowed || !way->there())
            continue;
        *name = way->name;
        return measure(team, way);
    }
    return 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* As few pages as there can be, the widest loads, and several places at once: hardware fetches ahead for
 * each place by itself and stops at every page's end, so that one place alone is read more slowly. */
enum { PLACES = 4, LINES = 2 };

static const size_t PART = (size_t)64 << 20, HUGE_PAGE = (size_t)2 << 20; /* a thread's bytes */

typedef uint64_t read_part(const uint8_t *from);

/* The compiler makes of a line what the function's target has. */
#define READER(target, name)                                                                       \
    target static uint64_t name(const uint8_t *from)                                               \
    {                                                                                              \
        typedef uint64_t line __attribute__((vector_size(64)));                                    \
        line sums[LINES] = {{0}};                                                                  \
                                                                                                   \
        for (size_t at = 0; at < PART / PLACES; at += sizeof(sums)) {                              \
            for (size_t place = at; place < PART; place += PART / PLACES) {                        \
                for (size_t i = 0; i < LINES; i++)                                                 \
                    sums[i] += ((const line *)(from + place))[i];                                  \
            }                                                                                      \
        }                                                                                          \
        for (size_t i = 1; i < LINES; i++)                                                         \
            sums[0] += sums[i];                                                                    \
        return sums[0][0] + sums[0][1] + sums[0][2] + sums[0][3] + sums[0][4] + sums[0][5] +       \
               sums[0][6] + sums[0][7];                                                            \
    }

READER(, read_plainly)
#if defined(__x86_64__)
READER(__attribute__((target("avx2"))), read_avx2)
READER(__attribute__((target("avx512f"))), read_avx512)
#endif

static read_part *widest_reader(void)
{
#if defined(__x86_64__)
    if (has_avx512())
        return read_avx512;
    if (has_avx2())
        return read_avx2;
#endif
    return read_plainly;
}

struct reading {
    read_part *read;
    const uint8_t *memory; /* PART of each thread */
    _Atomic uint64_t sum;  /* so that somebody wants what is read */
};

static void read_job(void *context, int thread)
{
    struct reading *reading = context;

    reading->sum += reading->read(reading->memory + (size_t)thread * PART);
}

double pd_peak_read(struct pd_team *team)
{
    size_t size = (size_t)pd_team_threads(team) * PART;
    uint8_t *memory = aligned_alloc(HUGE_PAGE, size);
    struct reading reading = {widest_reader(), memory, 0};
    double best;

    if (memory == NULL)
        return 0;
    madvise(memory, size, MADV_HUGEPAGE); /* a wish */
    memset(memory, 1, size);
    best = least_seconds(team, read_job, &reading);
    free(memory);
    return 1e-9 * (double)size / best;
}

/* ---- meeting --------------------------------------------------------------------------------- */

enum { BARRIERS = 2000 };

static void barrier_job(void *team, int thread)
{
    (void)thread;
    for (int i = 0; i < BARRIERS; i++)
        pd_team_barrier(team);
}

double pd_least_barrier(struct pd_team *team)
{
    return 1e9 * least_seconds(team, barrier_job, team) / BARRIERS;
}
