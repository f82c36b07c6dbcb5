#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "t/bench/peaks.h"

/* So many independent sums hide an instruction's latency. */
enum { CHAINS = 12, TILES = 4, ROUNDS = 200000, REPEATS = 7 };

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

static double measure(struct pd_team *team, const struct way *way)
{
    double best = 1e9;

    for (int i = 0; i < REPEATS; i++) {
        double before = seconds(), took;

        pd_team_run(team, job, (void *)(uintptr_t)way);
        took = seconds() - before;
        best = took < best ? took : best;
    }
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
