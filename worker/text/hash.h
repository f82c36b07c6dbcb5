/* Hashing for the tokenizer's tables: multiply and fold, keyed by a seed drawn for each table, so
 * that no file can be made whose entries all fall into one slot. The results of a lookup do not
 * depend on it. */
#ifndef PD_HASH_H
#define PD_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

static inline uint64_t pd_hash_mix(uint64_t a, uint64_t b)
{
    __uint128_t product = (__uint128_t)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t pd_hash_u64(uint64_t seed, uint64_t value)
{
    return pd_hash_mix(value ^ UINT64_C(0x9E3779B97F4A7C15), seed | 1);
}

static inline uint64_t pd_hash_bytes(uint64_t seed, const char *bytes, size_t length)
{
    uint64_t hash = seed ^ length, word;

    for (; length > sizeof word; bytes += sizeof word, length -= sizeof word) {
        memcpy(&word, bytes, sizeof word);
        hash = pd_hash_mix(hash ^ word, seed | 1);
    }
    word = 0;
    memcpy(&word, bytes, length);
    return pd_hash_mix(hash ^ word, UINT64_C(0xD6E8FEB86659FD93) ^ seed);
}

/* A seed from the system's random numbers, or from the clock where there are none. */
static inline uint64_t pd_hash_seed(void)
{
    uint64_t seed;

    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = (uint64_t)time(NULL) * UINT64_C(0x9E3779B97F4A7C15);
    return seed;
}

/* The number of slots, a power of two, for a table of `count` entries that is at most half full. */
static inline size_t pd_hash_slots(size_t count)
{
    size_t slots = 16;

    while (slots < count * 2)
        slots *= 2;
    return slots;
}

#endif
