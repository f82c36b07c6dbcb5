/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a block of
 * four random words out of a counter and a key, so that draw n of a seed needs no state. */
#ifndef PD_PHILOX_H
#define PD_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__ /* the same numbers on a GPU */
#define PD_PHILOX static inline __host__ __device__
#else
#define PD_PHILOX static inline
#endif

struct pd_philox {
    uint32_t word[4];
};

PD_PHILOX struct pd_philox pd_philox4x32(uint64_t key, const uint32_t counter[4])
{
    struct pd_philox x = {{counter[0], counter[1], counter[2], counter[3]}};
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);

    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * x.word[0];
        uint64_t b = (uint64_t)0xcd9e8d57u * x.word[2];
        struct pd_philox next = {{(uint32_t)(b >> 32) ^ x.word[1] ^ key0, (uint32_t)b,
                                  (uint32_t)(a >> 32) ^ x.word[3] ^ key1, (uint32_t)a}};
        x = next;
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return x;
}

/* Uniform in [0, 1), 53 bits: draw number `draw` of an answer with this seed. */
PD_PHILOX double pd_philox_uniform(uint64_t seed, uint32_t draw)
{
    uint32_t counter[4] = {draw, 0, 0, 0};
    struct pd_philox x = pd_philox4x32(seed, counter);

    return (double)(((uint64_t)x.word[0] << 32 | x.word[1]) >> 11) * 0x1p-53;
}

#endif
