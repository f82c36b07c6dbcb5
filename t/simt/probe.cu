#include "t/simt/probe.h"

#include "kernels/cuda/pd_simt.cuh"

enum { PIECES = 8 };

template <bool BF16> static PD_GLOBAL multiply(const uint32_t *a, const uint32_t *b, float *d)
{
    pd_multiply<BF16>(d + 4 * PD_THREAD, a + 4 * PD_THREAD, b + 2 * PD_THREAD);
}

int pd_probe_multiply(void *stream, bool bf16, const uint32_t *a, const uint32_t *b, float *d)
{
    return bf16 ? PD_LAUNCH((multiply<true>), 1, 1, PD_WARP, (pd_stream)stream, a, b, d)
                : PD_LAUNCH((multiply<false>), 1, 1, PD_WARP, (pd_stream)stream, a, b, d);
}

static PD_GLOBAL load_matrix(enum pd_probe_load which, const uint16_t *rows, uint32_t *out)
{
    PD_SHARED(struct pd_u32x4, shared, PD_WARP);
    uint32_t *to = out + 4 * PD_THREAD;

    shared[PD_THREAD] = ((const struct pd_u32x4 *)rows)[PD_THREAD];
    pd_warp_barrier();
    switch (which) {
    case PD_PROBE_1:
        pd_load_matrix1(to, &shared[PD_THREAD]);
        break;
    case PD_PROBE_2:
        pd_load_matrix2(to, &shared[PD_THREAD]);
        break;
    case PD_PROBE_4:
        pd_load_matrix4(to, &shared[PD_THREAD]);
        break;
    case PD_PROBE_4_TRANSPOSED:
        pd_load_matrix4_transposed(to, &shared[PD_THREAD]);
        break;
    }
}

int pd_probe_load_matrix(void *stream, enum pd_probe_load which, const uint16_t *rows,
                         uint32_t *out)
{
    return PD_LAUNCH(load_matrix, 1, 1, PD_WARP, (pd_stream)stream, which, rows, out);
}

static PD_GLOBAL copy(int count, int pending, const uint32_t *from, uint32_t *out)
{
    PD_SHARED(struct pd_u32x4, shared, PD_WARP * PIECES);
    struct pd_u32x4 *to = (struct pd_u32x4 *)out + PD_THREAD * count;

    for (int i = 0; i < count; i++) {
        pd_copy_async(&shared[PD_THREAD * PIECES + i], from + 4 * (PD_THREAD * count + i),
                      i % 2 == 0);
        pd_copy_commit();
    }
    if (pending == 0)
        pd_copy_wait<0>();
    else
        pd_copy_wait<2>();
    for (int i = 0; i < count; i++)
        to[i] = shared[PD_THREAD * PIECES + i];
    pd_copy_wait<0>();
}

int pd_probe_copy(void *stream, int count, int pending, const uint32_t *from, uint32_t *out)
{
    if (count < 1 || count > PIECES || (pending != 0 && pending != 2))
        return -1;
    return PD_LAUNCH(copy, 1, 1, PD_WARP, (pd_stream)stream, count, pending, from, out);
}

static PD_GLOBAL quads(const float *in, float *out)
{
    const uint32_t lanes = 15u << (PD_THREAD / 4 * 4);
    float value = in[PD_THREAD];

    for (int i = 0; i < PD_THREAD / 4; i++) {
        value += pd_shuffle_xor(value, 1, lanes);
        value += pd_shuffle_xor(value, 2, lanes);
    }
    out[PD_THREAD] = value;
}

int pd_probe_quads(void *stream, const float *in, float *out)
{
    return PD_LAUNCH(quads, 1, 1, PD_WARP, (pd_stream)stream, in, out);
}
