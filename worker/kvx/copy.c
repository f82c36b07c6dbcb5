#include "worker/kvx/copy.h"

#include <stdint.h>
#include <string.h>

#ifdef __x86_64__

#include <emmintrin.h>

enum { LINE = 64 };

void pd_copy_past_cache(void *to, const void *from, size_t bytes)
{
    uint8_t *out = to;
    const uint8_t *in = from;
    size_t before = -(uintptr_t)out % LINE;

    if (before > bytes)
        before = bytes;
    memcpy(out, in, before);
    out += before;
    in += before;
    bytes -= before;
    for (; bytes >= LINE; out += LINE, in += LINE, bytes -= LINE) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)in);
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(in + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(in + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(in + 48));

        _mm_stream_si128((__m128i *)(void *)out, a);
        _mm_stream_si128((__m128i *)(void *)(out + 16), b);
        _mm_stream_si128((__m128i *)(void *)(out + 32), c);
        _mm_stream_si128((__m128i *)(void *)(out + 48), d);
    }
    memcpy(out, in, bytes);
    _mm_sfence(); /* such stores are not ordered by themselves */
}

#else

void pd_copy_past_cache(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

#endif
