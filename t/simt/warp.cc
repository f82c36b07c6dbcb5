/* What the lanes of a warp do together, the copies, and 16-bit numbers.
 *
 * The pieces of the matrix unit's operands are gathered here into whole matrices, multiplied
 * plainly, and dealt out again; t/simt/test_layout.cc has the same layouts in the words of the PTX
 * manual. */
#include "t/simt/fiber.h"

#include <string.h>

namespace pd_simt
{

/* ---- shuffles and barriers ------------------------------------------------------------------- */

struct exchange {
    float value, received;
    int from; /* lane */
};

static void do_shuffle(void *const arguments[PD_WARP])
{
    for (int lane = 0; lane < PD_WARP; lane++) {
        exchange *own = static_cast<exchange *>(arguments[lane]);

        if (own && !arguments[own->from])
            die("a shuffle from a lane that has no part in it");
        if (own)
            own->received = static_cast<exchange *>(arguments[own->from])->value;
    }
}

float shuffle_xor(float value, int distance, uint32_t lanes)
{
    exchange own = {value, 0, running->current % PD_WARP ^ distance};

    if (distance < 0 || distance >= PD_WARP)
        die("a shuffle beyond the warp");
    meet(lanes, do_shuffle, &own);
    return own.received;
}

/* The tree that five shuffles walk. */
static void do_sum(void *const arguments[PD_WARP])
{
    float sum[PD_WARP];

    for (int lane = 0; lane < PD_WARP; lane++)
        sum[lane] = static_cast<exchange *>(arguments[lane])->value;
    for (int width = PD_WARP / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; lane++)
            sum[lane] += sum[lane + width];
    for (int lane = 0; lane < PD_WARP; lane++)
        static_cast<exchange *>(arguments[lane])->received = sum[0];
}

float warp_sum(float value)
{
    exchange own = {value, 0, 0};

    meet(PD_LANES, do_sum, &own);
    return own.received;
}

static void do_nothing(void *const *)
{
}

void warp_barrier()
{
    warp *own = &running->warps[(size_t)(running->current / PD_WARP)];

    arrive(own);
    meet(PD_LANES, do_nothing, nullptr);
    leave(own);
}

/* ---- copies ---------------------------------------------------------------------------------- */

enum { PIECE = 16 };

static void land(const copy &one)
{
    if (one.present)
        memcpy(one.to, one.from, PIECE);
    else
        memset(one.to, 0, PIECE);
    note_write(one.to, PIECE);
}

/* Copies arrive in any order, and some of them before they have to. */
static void land_some(fiber *self, int newest_due)
{
    std::vector<copy> &copies = self->copies;

    for (size_t i = copies.size(); i > 1; i--)
        std::swap(copies[i - 1], copies[draw() % i]);
    for (size_t i = 0; i < copies.size();) {
        if (copies[i].group > newest_due && draw() % 8 != 0) {
            i++;
            continue;
        }
        land(copies[i]);
        copies[i] = copies.back();
        copies.pop_back();
    }
}

void copy_async(void *to, const void *from, bool present)
{
    fiber *self = &running->fibers[(size_t)running->current];

    if (!is_shared(to, PIECE))
        die("a copy to what is not shared memory");
    if ((uintptr_t)to % PIECE != 0 || (uintptr_t)from % PIECE != 0)
        die("a copy at an address that is no multiple of 16");
    memset(to, 0xff, PIECE);
    note_write(to, PIECE);
    self->copies.push_back({to, from, present, self->group});
}

void copy_commit()
{
    fiber *self = &running->fibers[(size_t)running->current];

    self->group++;
    land_some(self, -1);
}

void copy_wait(int pending)
{
    fiber *self = &running->fibers[(size_t)running->current];

    land_some(self, self->group - 1 - pending);
}

/* ---- the matrix unit ------------------------------------------------------------------------- */

struct loading {
    const uint16_t *row;
    uint32_t *out;
    int matrices;
    bool transposed;
};

static void do_load(void *const arguments[PD_WARP])
{
    const loading *first = static_cast<loading *>(arguments[0]);

    for (int matrix = 0; matrix < first->matrices; matrix++) {
        uint16_t value[8][8];

        for (int row = 0; row < 8; row++)
            memcpy(value[row], static_cast<loading *>(arguments[8 * matrix + row])->row, PIECE);
        for (int lane = 0; lane < PD_WARP; lane++) {
            int g = lane / 4, i = lane % 4 * 2;
            uint16_t low = first->transposed ? value[i][g] : value[g][i];
            uint16_t high = first->transposed ? value[i + 1][g] : value[g][i + 1];

            static_cast<loading *>(arguments[lane])->out[matrix] = (uint32_t)low | (uint32_t)high
                                                                                       << 16;
        }
    }
}

void load_matrix(uint32_t *out, int matrices, bool transposed, const void *row)
{
    loading own = {static_cast<const uint16_t *>(row), out, matrices, transposed};

    if (running->current % PD_WARP < 8 * matrices) {
        if (!is_shared(row, PIECE))
            die("a matrix row that is not shared memory");
        if ((uintptr_t)row % PIECE != 0)
            die("a matrix row at an address that is no multiple of 16");
        note_read(row, PIECE);
    }
    meet(PD_LANES, do_load, &own);
}

struct product {
    float *d;
    const uint32_t *a, *b;
};

template <bool BF16> static float half(uint32_t word, int which)
{
    uint16_t bits = (uint16_t)(word >> (16 * which));

    return BF16 ? pd_from_bf16(bits) : pd_from_f16(bits);
}

template <bool BF16> static void do_multiply(void *const arguments[PD_WARP])
{
    float a[16][16], b[8][16];

    for (int lane = 0; lane < PD_WARP; lane++) {
        const product *own = static_cast<product *>(arguments[lane]);
        int g = lane / 4, i = lane % 4 * 2;

        for (int low = 0; low < 2; low++) {
            a[g][i + low] = half<BF16>(own->a[0], low);
            a[g + 8][i + low] = half<BF16>(own->a[1], low);
            a[g][i + 8 + low] = half<BF16>(own->a[2], low);
            a[g + 8][i + 8 + low] = half<BF16>(own->a[3], low);
            b[g][i + low] = half<BF16>(own->b[0], low);
            b[g][i + 8 + low] = half<BF16>(own->b[1], low);
        }
    }
    for (int lane = 0; lane < PD_WARP; lane++) {
        float *d = static_cast<product *>(arguments[lane])->d;

        for (int at = 0; at < 4; at++) {
            const float *row = a[lane / 4 + at / 2 * 8], *column = b[lane % 4 * 2 + at % 2];
            float sum = 0;

            for (int k = 0; k < 16; k++)
                sum += row[k] * column[k];
            d[at] += sum;
        }
    }
}

void multiply(float *d, const uint32_t *a, const uint32_t *b, bool bf16)
{
    product own = {d, a, b};

    meet(PD_LANES, bf16 ? do_multiply<true> : do_multiply<false>, &own);
}

} // namespace pd_simt

/* ---- 16-bit numbers --------------------------------------------------------------------------- */

/* Rounding is the host's own (kernels/dtype.h): C, and exact. */
extern "C" {
uint16_t pd_f16_of_float(float value);
uint16_t pd_bf16_of_float(float value);
}

static float float_of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* The exponent moves by a multiplication, which makes subnormals right. */
float pd_from_f16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, magnitude = (uint32_t)(bits & 0x7fff) << 13;

    if (magnitude >= 0x1fu << 23)
        return float_of_bits(sign | 0x7f800000u | magnitude);
    return float_of_bits(sign | 0x3f800000u) * (float_of_bits(magnitude) * 0x1p112f);
}

float pd_from_bf16(uint16_t bits)
{
    return float_of_bits((uint32_t)bits << 16);
}

uint16_t pd_to_f16(float value)
{
    return pd_f16_of_float(value);
}

uint16_t pd_to_bf16(float value)
{
    return pd_bf16_of_float(value);
}
